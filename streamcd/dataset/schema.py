"""Columns of a dataset's tables, and a decoded chunk of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pyarrow import Schema as Schema  # re-exported, so that others need not import pyarrow

MAX_CLASSES = 65_536
"""Largest number of distinct labels treated as classes; with more, the manifest lists none."""


@dataclass(frozen=True)
class ChunkData:
    """A chunk of rows, decoded."""

    COLUMNS: ClassVar = ("source", "label", "weight", "feature", "value")
    row0: int  # number of its first row in the dataset
    source: np.ndarray  # (rows,) int64: 0-based number of each row in the source
    label: np.ndarray  # (rows,) float64
    weight: np.ndarray  # (rows,) float64
    indptr: np.ndarray  # (rows + 1,) int64: row r has the entries indptr[r]:indptr[r + 1]
    feature: np.ndarray  # (entries,) int32 or int64, 0-based
    value: np.ndarray  # (entries,) float32 or float64


# ---------------------------------------------------------------------------------------------------------------------
# Tables


def schema(**columns: Any) -> Schema:
    """Describe columns without nulls, given by name as numpy types or `str`, and with nulls by types of Arrow's."""
    return pa.schema(
        [
            pa.field(name, dtype)
            if isinstance(dtype, pa.DataType)
            else pa.field(name, pa.string() if dtype is str else pa.from_numpy_dtype(dtype), nullable=False)
            for name, dtype in columns.items()
        ]
    )


def row_dtype(n_rows: int) -> np.dtype:
    """Return the integer type for the numbers of `n_rows` rows."""
    return np.dtype(np.int32 if n_rows < 2**31 else np.int64)


def row_schemas(row_dtype: np.dtype, index_dtype: np.dtype, value_dtype: np.dtype) -> dict[str, Schema]:
    """Describe a part of the row layout: ``rows/`` and ``entries/``."""
    # `row` comes first: training skips it, and the two other columns are one contiguous read
    return {
        "rows": schema(
            row=row_dtype, source=np.int64, label=np.float64, weight=np.float64, n_entries=index_dtype
        ),
        "entries": schema(row=row_dtype, feature=index_dtype, value=value_dtype),
    }


def column_schemas(row_dtype: np.dtype, index_dtype: np.dtype, value_dtype: np.dtype) -> dict[str, Schema]:
    """Describe a part of the column layout: its entries and its index."""
    # `feature` comes first, for the same reason
    return {
        "entries": schema(feature=index_dtype, row=row_dtype, value=value_dtype),
        "index": schema(feature=index_dtype, n_entries=np.int64),
    }


FIRST_OF_ROWS = {"rows": "label", "entries": "feature"}
FIRST_OF_ALL = FIRST_OF_ROWS | {"rows": "source"}
FIRST_OF_COLUMNS = {"index": "feature", "entries": "row"}
"""The first column that training reads from each table of a part; `FIRST_OF_ALL` is for readers of whole rows."""


# `<table>_crc`: checksum of a chunk's bytes in that table, starting at the first column that training reads
ROW_CHUNKS = schema(
    part=np.int32, n_rows=np.int64, n_entries=np.int64, rows_crc=np.int64, entries_crc=np.int64
)
COLUMN_CHUNKS = schema(
    part=np.int32,
    first_feature=np.int64,
    n_features=np.int64,
    n_entries=np.int64,
    piece=np.int64,
    entries_crc=np.int64,
    index_crc=np.int64,
)
SCALES = schema(feature=np.int64, scale=np.float64)
INDICES = schema(index=np.int64)


FEATURES = pa.schema(
    [
        *schema(
            feature=np.int64,
            n_entries=np.int64,
            **dict.fromkeys(("min", "max", "mean", "mean_square"), np.float64),
            index=np.int64,
        ),
        pa.field("name", pa.large_string()),
    ]
)
"""Columns of ``features.parquet``: `index` is the source's, `name` is null if features have no names."""


def no_norms() -> np.ndarray:
    """Return the norms of no rows: smallest above 0, largest, sum of squares, number of rows of norm 0."""
    return np.array([np.inf, 0.0, 0.0, 0.0])


def norms_record(norms: np.ndarray, n_rows: int) -> dict[str, Any]:
    """Return the manifest's ``row_norms``, of rows as they are stored, from what `no_norms` begins."""
    least, greatest, squares, n_empty = norms.tolist()
    mean_square = squares / max(n_rows, 1)
    return {
        "min": least if greatest > 0 else None,  # of rows that are not empty
        "max": greatest,
        "mean_square": mean_square if np.isfinite(mean_square) else None,
        "n_empty": int(n_empty),
    }

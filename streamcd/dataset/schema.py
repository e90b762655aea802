"""The format of a dataset: columns of its tables, a decoded chunk of rows; manifests, with the names of the files listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pyarrow import Schema as Schema  # re-exported, so that others need not import pyarrow

from ..core.errors import DatasetError
from ..core.files import WRITER, Count, FileName, Kind, Structure, content_digest

MAX_CLASSES = 65_536
"""Largest number of distinct labels treated as classes; with more, the manifest lists none."""


@dataclass(frozen=True)
class ChunkData:
    """A chunk of rows, decoded."""

    COLUMNS: ClassVar = ("source", "label", "weight", "feature", "value")
    source: np.ndarray  # (rows,) int64: 0-based number of each row in the source
    label: np.ndarray  # (rows,) float64
    weight: np.ndarray  # (rows,) float64
    indptr: np.ndarray  # (rows + 1,) int64: row r has the entries indptr[r]:indptr[r + 1]
    feature: np.ndarray  # (entries,) int32 or int64, 0-based
    value: np.ndarray  # (entries,) float32 or float64


# ---------------------------------------------------------------------------------------------------------------------
# Tables


def schema(**columns: Any) -> Schema:
    """Describe columns without nulls, given by name as numpy types, and with nulls by types of Arrow's."""
    return pa.schema(
        [
            pa.field(name, dtype)
            if isinstance(dtype, pa.DataType)
            else pa.field(name, pa.from_numpy_dtype(dtype), nullable=False)
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
FEATURES = schema(
    feature=np.int64,
    n_entries=np.int64,
    **dict.fromkeys(("min", "max", "mean", "mean_square"), np.float64),
    index=np.int64,
    name=pa.large_string(),
)
"""Columns of ``features.parquet``: `index` is the source's, `name` is null if features have no names."""


NO_NORMS = (np.inf, 0.0, 0.0, 0.0)
"""The norms of no rows: smallest above 0, largest, sum of squares, number of rows of norm 0."""


def norms_record(norms: Sequence[Sequence[float]], n_rows: Sequence[int]) -> dict[str, Any]:
    """Return the manifest's ``row_norms`` from those of sets of rows: as `NO_NORMS`, with the mean in place of the sum."""
    least, greatest, squares, n_empty = zip(*norms, strict=True)
    mean_square = squares[0]
    if len(squares) > 1:
        mean_square = sum(square * n for square, n in zip(squares, n_rows, strict=True)) / max(sum(n_rows), 1)
    return {
        "min": min(least) if max(greatest) > 0 else None,  # of rows that are not empty
        "max": max(greatest),
        "mean_square": mean_square if isfinite(mean_square) else None,
        "n_empty": int(sum(n_empty)),
    }


# ---------------------------------------------------------------------------------------------------------------------
# Manifests: structure and fingerprint

INDICES_FILE = "indices.parquet"
"""File of the indices that the features have in the source, where these are not successive."""

SCALES_FILE = "scaling.parquet"
"""File of the divisors of features, where these are not 1."""

LISTED = {
    "chunks.parquet": "chunks",
    "features.parquet": "features",
    "kept.parquet": "kept",
    SCALES_FILE: "scales",
    "categories.parquet": "categories",
    INDICES_FILE: "indices",
}
"""Keys of a manifest for single files, by their names."""

Index = Literal["int32", "int64"]
Value = Literal["float32", "float64"]


class FileRecord(Structure):
    """A file that a manifest lists."""

    bytes: Count
    checksum: str
    content: str = ""  # digest of what it holds; empty where its bytes follow from that


class ScalingRecord(Structure):
    """Description of a `source_features.Scaling`."""

    scale: str
    normalize: str
    digest: str


class RowPart(Structure):
    """The files of a part of the row layout."""

    rows: FileName
    rows_bytes: Count
    rows_checksum: str
    entries: FileName
    entries_bytes: Count
    entries_checksum: str
    n_rows: Count
    n_entries: Count
    n_chunks: Count
    content: str  # see `writer.add_content`
    source: Count = 0  # to add to its rows' numbers in the source


class RowNorms(Structure):
    """Norms of the rows as they are stored."""

    max: float
    n_empty: Count
    min: float | None = None  # of rows that are not empty
    mean_square: float | None = None  # unless it is too large for a number


class TargetRange(Structure):
    """The range of the targets of a dataset's rows."""

    min: float
    max: float

    def __post_init__(self) -> None:
        if not -np.inf < self.min <= self.max < np.inf:
            raise ValueError("`targets` is no range of finite numbers")


class SourceColumn(Structure):
    """A column of the table that a dataset was made from, and its use; see `conversion.table_columns`."""

    column: str
    use: str
    features: Count
    missing: Count | None  # values; None where not known
    note: str


class DatasetManifest(Structure):
    """``manifest.json`` of a dataset."""

    n_rows: Count
    n_features: Count
    n_entries: Count
    index_dtype: Index
    value_dtype: Value
    classes: list[float] | None
    class_counts: list[Count] | None
    label_kind: Literal["integer", "decimal"]
    weighted: bool
    index_base: Literal[0, 1]
    seed: int
    fingerprint: str
    parts: list[RowPart]
    chunks: FileRecord
    features: FileRecord
    scales: FileRecord | None = None
    scaling: ScalingRecord | None = None
    row_norms: RowNorms | None = None
    compact: bool = False
    class_names: list[str] | None = None
    targets: TargetRange | None = None  # where rows have numbers to predict in place of classes
    encoding: dict[str, Any] | None = None
    categories: FileRecord | None = None
    indices: FileRecord | None = None  # of the features in the source, where these are `compact`
    kept: FileRecord | None = None
    table: list[SourceColumn] | None = None
    data_digest: str = ""
    compression: str = ""  # as asked for
    made_from: Literal["libsvm text", "table", "dense array", "sparse matrix"] | None = None

    def __post_init__(self) -> None:
        sizes = [None if listed is None else len(listed) for listed in (self.classes, self.class_counts)]
        if sizes[0] != sizes[1]:
            raise ValueError("`classes` and `class_counts` differ in length")
        if not np.isfinite(self.classes or []).all():
            raise ValueError("a class that is not finite")
        if self.targets is not None and self.classes is not None:
            raise ValueError("both `classes` and `targets`")
        if self.class_names is not None:
            check_class_names(self.class_names, self.classes)


class ColumnPart(Structure):
    """The files of a part of the column layout."""

    entries: FileName
    entries_bytes: Count
    entries_checksum: str
    index: FileName
    index_bytes: Count
    index_checksum: str


class ColumnsManifest(Structure):
    """``columns/manifest.json``."""

    dataset: str
    fingerprint: str
    n_features: Count
    n_entries: Count
    index_dtype: Index
    row_dtype: Index
    value_dtype: Value
    parts: list[ColumnPart]
    chunks: FileRecord
    compression: str = ""


_APART = "fingerprint", "source", "made_from", "table", "compression", WRITER
_OF_FILES = {
    f"{table}{what}" for table in ("rows", "entries", "index") for what in ("", "_bytes", "_checksum")
}


def manifest_fingerprint(manifest: Mapping[str, Any]) -> str:
    """Compute the digest of what a manifest says of the content, in order, not of its origin, place and compression.

    Of files it leaves out names, and where content has a digest, sizes and checksums.
    """
    files = {
        key: {
            name: value
            for name, value in manifest[key].items()
            if name not in ("bytes", "checksum") or not manifest[key].get("content")
        }
        for key in LISTED.values()
        if manifest.get(key)
    }
    parts = [
        {name: value for name, value in part.items() if name not in _OF_FILES} for part in manifest["parts"]
    ]
    return content_digest({**manifest, **files, "parts": parts}, *_APART)


ROW_LAYOUT = Kind(
    "streamcd-dataset",
    3,
    DatasetManifest,
    DatasetError,
    "restore the file or convert the data again",
    manifest_fingerprint,
)
COLUMN_LAYOUT = Kind(
    "streamcd-columns",
    2,
    ColumnsManifest,
    DatasetError,
    "make the layout again with 'streamcd columns DATASET --force'",
    manifest_fingerprint,
)


def check_class_names(names: Sequence[str], classes: Sequence[float] | None) -> None:
    """Raise ValueError if two classes have the same name, or if one is not the number of a name."""
    if len(set(names)) < len(names):
        raise ValueError("two classes of one name")
    if not set(classes or ()).issubset(range(len(names))):
        raise ValueError(f"`classes` are not numbers of the {len(names)} `class_names`")

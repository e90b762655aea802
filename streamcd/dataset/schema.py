"""The content of a dataset's files: columns of its tables, keys of its manifests, and a chunk of rows, decoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..core.errors import DatasetError
from ..core.metadata import Count, Kind, Structure, content_digest
from .parquet import Schema, schema

MAX_CLASSES = 65_536
"""With more distinct labels the labels are no classes, and the manifest lists none."""

_INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class ChunkData:
    """A chunk of rows, decoded.

    Attributes
    ----------
    row0 : int
        Number of its first row in the dataset.
    source : ndarray of int64, shape (rows,)
        0-based number of each row in the input.
    label, weight : ndarray of float64, shape (rows,)
    indptr : ndarray of int64, shape (rows + 1,)
        Row ``r`` has the entries ``indptr[r]:indptr[r + 1]``.
    feature : ndarray of int32 or int64, shape (entries,)
        0-based.
    value : ndarray of float32 or float64, shape (entries,)
    """

    row0: int
    source: np.ndarray
    label: np.ndarray
    weight: np.ndarray
    indptr: np.ndarray
    feature: np.ndarray
    value: np.ndarray


# ---------------------------------------------------------------------------------------------------------------------
# Tables


def row_dtype(n_rows: int) -> np.dtype:
    """Type of the numbers of `n_rows` rows."""
    return np.dtype(np.int32 if n_rows <= _INT32_MAX else np.int64)


def row_schemas(row_dtype: np.dtype, index_dtype: np.dtype, value_dtype: np.dtype) -> dict[str, Schema]:
    """Describe a part of the row layout: ``rows/`` and ``entries/``."""
    # `row` comes first: training skips it, and the two other columns are then one contiguous read
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


ROW_CHUNKS = schema(part=np.int32, n_rows=np.int64, n_entries=np.int64)
COLUMN_CHUNKS = schema(
    part=np.int32, first_feature=np.int64, n_features=np.int64, n_entries=np.int64, piece=np.int64
)
SCALES = schema(feature=np.int64, scale=np.float64)


def features_schema(compact: bool) -> Schema:
    """Describe ``features.parquet``."""
    statistics = {name: np.float64 for name in ("min", "max", "mean", "mean_square")}
    original = {"original": np.int64} if compact else {}
    return schema(feature=np.int64, n_entries=np.int64, **statistics, **original)


# ---------------------------------------------------------------------------------------------------------------------
# Manifests


Index = Literal["int32", "int64"]
Value = Literal["float32", "float64"]


class FileRecord(Structure):
    """A file that a manifest lists."""

    bytes: Count
    checksum: str


class ScalingRecord(Structure):
    """Transformation of the source's values; see `scaling.Scaling`."""

    scale: str
    normalize: str
    digest: str


class RowPart(Structure):
    """The files of a part of the row layout."""

    rows: str
    rows_bytes: Count
    rows_checksum: str
    entries: str
    entries_bytes: Count
    entries_checksum: str


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
    index_base: int
    seed: int
    parts: list[RowPart]
    chunks: FileRecord
    features: FileRecord
    scales: FileRecord | None = None
    scaling: ScalingRecord | None = None
    row_norms: dict[str, float | None] | None = None
    compact: bool = False

    def __post_init__(self) -> None:
        sizes = [None if counted is None else len(counted) for counted in (self.classes, self.class_counts)]
        if sizes[0] != sizes[1]:
            raise ValueError("`classes` and `class_counts` differ in length")


class ColumnPart(Structure):
    """The files of a part of the column layout."""

    entries: str
    entries_bytes: Count
    entries_checksum: str
    index: str
    index_bytes: Count
    index_checksum: str


class ColumnsManifest(Structure):
    """``columns/manifest.json``."""

    dataset: str
    n_features: Count
    n_entries: Count
    index_dtype: Index
    row_dtype: Index
    value_dtype: Value
    parts: list[ColumnPart]
    chunks: FileRecord


def manifest_fingerprint(manifest: Mapping[str, Any]) -> str:
    """Digest of a manifest, the checksums of all parts included, but for where the data came from."""
    return content_digest(manifest, "fingerprint", "source")[:32]


ROW_LAYOUT = Kind(
    "streamcd-dataset",
    1,
    DatasetManifest,
    DatasetError,
    "restore the file or convert the data again",
    "fingerprint",
    manifest_fingerprint,
)
COLUMN_LAYOUT = Kind(
    "streamcd-columns",
    1,
    ColumnsManifest,
    DatasetError,
    "make the layout again with 'streamcd columns --force'",
    "fingerprint",
    manifest_fingerprint,
)

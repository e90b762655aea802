"""Manifests of a dataset and of its column layout: structure, fingerprint, and the names of the files that they list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from ..core.classes import check_class_names
from ..core.errors import DatasetError
from ..core.metadata import WRITER, Count, FileName, Infix, Kind, Structure, content_digest

LISTED = {
    "chunks.parquet": "chunks",
    "features.parquet": "features",
    "scaling.parquet": "scales",
    "categories.parquet": "categories",
    "kept.parquet": "kept",
}
"""Keys of a manifest for single files, by their names."""

Index = Literal["int32", "int64"]
Value = Literal["float32", "float64"]


class FileRecord(Structure):
    """A file that a manifest lists."""

    bytes: Count
    checksum: str


class ScalingRecord(Structure):
    """Description of a `scaling.Scaling`."""

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


class RowNorms(Structure):
    """Norms of the rows as they are stored."""

    max: float
    n_empty: Count
    min: float | None = None  # of rows that are not empty
    mean_square: float | None = None  # unless it is too large for a number

    def __post_init__(self) -> None:
        if self.min is None and self.max > 0:
            raise ValueError("a largest row norm without a smallest")


class TargetRange(Structure):
    """The range of the targets of a dataset's rows."""

    min: float
    max: float

    def __post_init__(self) -> None:
        if not -np.inf < self.min <= self.max < np.inf:
            raise ValueError("`targets` is no range of finite numbers")


class SourceColumn(Structure):
    """A column of the table that a dataset was made from, and its use; see `conversion.column_summary`."""

    column: str
    use: str
    features: Count
    missing: Count
    example: str
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
    parts: list[RowPart]
    chunks: FileRecord
    features: FileRecord
    scales: FileRecord | None = None
    scaling: ScalingRecord | None = None
    row_norms: RowNorms | None = None
    compact: bool = False
    class_names: list[str] | None = None
    multilabel: str = ""  # what separates the labels of a class's name, a set of them; empty where rows have one
    targets: TargetRange | None = None  # where rows have numbers to predict in place of classes
    encoding: dict[str, Any] | None = None
    categories: FileRecord | None = None
    kept: FileRecord | None = None
    table: list[SourceColumn] | None = None
    data_digest: str = ""
    infix: Infix = ""
    made_from: Literal["libsvm text", "table", "dense array", "sparse matrix"] | None = None

    def __post_init__(self) -> None:
        sizes = [None if counted is None else len(counted) for counted in (self.classes, self.class_counts)]
        if sizes[0] != sizes[1]:
            raise ValueError("`classes` and `class_counts` differ in length")
        if not np.isfinite(self.classes or []).all():
            raise ValueError("a class that is not finite")
        if self.targets is not None and self.classes is not None:
            raise ValueError("both `classes` and `targets`")
        check_class_names(self.class_names)


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
    n_features: Count
    n_entries: Count
    index_dtype: Index
    row_dtype: Index
    value_dtype: Value
    parts: list[ColumnPart]
    chunks: FileRecord
    infix: Infix = ""


def manifest_fingerprint(manifest: Mapping[str, Any]) -> str:
    """Compute the digest of a manifest, with the checksums of all parts, but without the origin of the data."""
    return content_digest(manifest, "fingerprint", "source", "made_from", "table", "infix", WRITER)[:32]


def stored_name(name: str, manifest: Mapping[str, Any]) -> str:
    """Return the name under which a file is stored: with the manifest's infix, if it has one."""
    infix = manifest.get("infix")
    return f"{name.removesuffix('.parquet')}.{infix}.parquet" if infix else name


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

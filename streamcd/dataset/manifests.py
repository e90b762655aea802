"""Manifests of a dataset and of its column layout: structure, fingerprint, and the names of the files that they list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from ..core.errors import DatasetError
from ..core.files import WRITER, Count, FileName, Kind, Structure, content_digest
from ..core.setting import check_class_names

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
    n_rows: Count
    n_entries: Count
    n_chunks: Count
    content: str  # see `writer.RowContent`
    source: Count = 0  # to add to its rows' numbers in the source


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


_RECORDS = {*LISTED.values(), "parts"}
_APART = "fingerprint", "source", "made_from", "table", "compression", WRITER
_OF_FILES = {
    f"{table}{what}" for table in ("rows", "entries", "index") for what in ("", "_bytes", "_checksum")
}


def manifest_fingerprint(manifest: Mapping[str, Any]) -> str:
    """Compute the digest of what a manifest says of the content, in order, not of its origin, place and compression.

    Of files it leaves out names, and where content has a digest, sizes and checksums.
    """
    fields = dict(manifest)
    for key in _RECORDS.intersection(manifest):
        contents = []
        for record in manifest[key] if key == "parts" else [manifest[key]]:
            without = {*_OF_FILES, *(("bytes", "checksum") if record and record.get("content") else ())}
            contents.append(record and {name: value for name, value in record.items() if name not in without})
        fields[key] = contents if key == "parts" else contents[0]
    return content_digest(fields, *_APART)


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
    "make the layout again with 'streamcd columns --force'",
    manifest_fingerprint,
)

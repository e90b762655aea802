"""Manifests of a dataset and of its column layout: structure, fingerprint, and the names of the files that they list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from ..core.classes import check_class_names
from ..core.errors import DatasetError
from ..core.metadata import (
    WRITER,
    Count,
    FileName,
    Folder,
    Kind,
    Positive,
    Structure,
    content_digest,
)

_OF_A_BATCH = {"chunks.parquet": "chunks", "features.parquet": "features", "kept.parquet": "kept"}
INDICES_FILE = "indices.parquet"
"""File of the indices that the features have in the source, where these are not successive."""

LISTED = _OF_A_BATCH | {
    "scaling.parquet": "scales",
    "categories.parquet": "categories",
    INDICES_FILE: "indices",
}
"""Keys of a manifest for single files, by their names."""

EARLIER_FILE = "earlier.json"
"""File of a batch: the manifest of the dataset before it."""

OF_LATER = _OF_A_BATCH | {EARLIER_FILE: "earlier"}
"""Keys of a later batch for its files, by their names."""

Index = Literal["int32", "int64"]
Value = Literal["float32", "float64"]


class FileRecord(Structure):
    """A file that a manifest lists."""

    bytes: Count
    checksum: str
    folder: Folder = ""
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
    folder: Folder = ""
    content: str = ""  # see `content.RowContent`


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


def _check_lengths(classes: list[float] | None, counts: list[Count] | None) -> None:
    sizes = [None if listed is None else len(listed) for listed in (classes, counts)]
    if sizes[0] != sizes[1]:
        raise ValueError("`classes` and `class_counts` differ in length")


class BatchFigures(Structure):
    """Figures of the rows of a batch alone."""

    n_entries: Count
    classes: list[float] | None = None
    class_counts: list[Count] | None = None
    targets: TargetRange | None = None
    row_norms: RowNorms | None = None
    missing_values: dict[str, Count | None] | None = None  # of the columns of a table; None where not known

    def __post_init__(self) -> None:
        _check_lengths(self.classes, self.class_counts)


class RowBatch(Structure):
    """Rows that were appended at once: their parts, the last ones of those before the next batch, and their files."""

    n_parts: Count
    n_rows: Count
    figures: BatchFigures
    chunks: FileRecord
    features: FileRecord
    before: str  # fingerprint of the dataset without it and later ones
    earlier: FileRecord  # its manifest
    kept: FileRecord | None = None
    when: str = ""


class SourceColumn(Structure):
    """A column of the table that a dataset was made from, and its use; see `conversion.column_summary`."""

    column: str
    use: str
    features: Count
    missing: Count | None  # values; None where not known
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
    first: BatchFigures | None = (
        None  # of the first batch, whose files are listed above, where there are more
    )
    later: tuple[RowBatch, ...] = ()
    when: str = ""

    def __post_init__(self) -> None:
        if sum(batch.n_parts for batch in self.later) > len(self.parts):
            raise ValueError("more parts in `later` than there are")
        _check_lengths(self.classes, self.class_counts)
        if not np.isfinite(self.classes or []).all():
            raise ValueError("a class that is not finite")
        if self.targets is not None and self.classes is not None:
            raise ValueError("both `classes` and `targets`")
        check_class_names(self.class_names, self.classes)


class RowForm(Structure):
    """Record, in a dataset's manifest, of how its rows were made, for those that are appended to them."""

    seed: int
    shuffle: bool
    chunk_bytes: Positive
    shard_bytes: Positive
    n_explicit_zeros: Count = 0
    n_underflows: Count = 0
    n_ignored: Count = 0
    source: tuple[dict[str, Any], ...] = ()


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


def manifest_fingerprint(manifest: Mapping[str, Any]) -> str:
    """Compute the digest of what a manifest says of the content, in order, not of its origin, place and compression.

    That of a dataset to which rows were appended has those before, and so tells the whole history.
    """
    fields = {key: _content_of(value) if key in _RECORDS else value for key, value in manifest.items()}
    fields["later"] = [
        {key: _content_of(value) for key, value in batch.items() if key not in ("when", "earlier")}
        for batch in manifest.get("later", ())
    ]
    return content_digest(fields, *_APART)[:32]


_RECORDS = {*LISTED.values(), "parts", "first"}
_APART = "seal", "fingerprint", "source", "made_from", "table", "compression", "when", WRITER
_OF_FILES = {
    f"{table}{what}" for table in ("rows", "entries", "index") for what in ("", "_bytes", "_checksum")
}


def _content_of(record: Any) -> Any:
    """Leave out what describes a table, and files: names, places, and where content has a digest, sizes and checksums."""
    if isinstance(record, list):
        return [_content_of(one) for one in record]
    if not isinstance(record, Mapping):
        return record
    without = {
        "folder",
        "missing_values",
        *_OF_FILES,
        *(("bytes", "checksum") if record.get("content") else ()),
    }
    return {key: value for key, value in record.items() if key not in without}


def _derived(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {"fingerprint": manifest_fingerprint(manifest)}


def manifest_seal(manifest: Mapping[str, Any]) -> str:
    """Compute the digest of a whole manifest, checksums of files included."""
    return content_digest(manifest, "seal")[:32]


def stored_name(name: str, folder: str) -> str:
    """Return the name under which a file is stored: in its batch's folder, if it has one."""
    return f"{folder}/{name}" if folder else name


def batches_of(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the batches of a table's parts, in order, as `RowBatch` describes them; one where nothing was appended."""
    later = manifest.get("later") or []
    first = {key: manifest.get(key) for key in (*_OF_A_BATCH.values(), "when")}
    first["n_parts"] = len(manifest["parts"]) - sum(batch["n_parts"] for batch in later)
    first["n_rows"] = manifest.get("n_rows", 0) - sum(batch["n_rows"] for batch in later)
    return [first, *later]


def earlier_fingerprints(manifest: Mapping[str, Any]) -> list[str]:
    """Return the fingerprints that a dataset had before rows were appended, the first one first."""
    return [batch["before"] for batch in manifest.get("later", ())]


def names_in(manifest: Mapping[str, Any], name: str) -> list[str]:
    """Return the names of the files `name` of all batches that have it."""
    records: Iterable[Any]
    if name in _OF_A_BATCH:
        records = (batch.get(_OF_A_BATCH[name]) for batch in batches_of(manifest))
    else:
        records = (manifest.get(LISTED[name]),)
    return [stored_name(name, record.get("folder", "")) for record in records if record]


ROW_LAYOUT = Kind(
    "streamcd-dataset",
    2,
    DatasetManifest,
    DatasetError,
    "restore the file or convert the data again",
    "seal",
    manifest_seal,
    _derived,
)
COLUMN_LAYOUT = Kind(
    "streamcd-columns",
    2,
    ColumnsManifest,
    DatasetError,
    "make the layout again with 'streamcd columns --force'",
    "seal",
    manifest_seal,
    _derived,
)

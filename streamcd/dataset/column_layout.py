"""The column layout of a dataset: a second copy of its entries, sorted by feature, beside the row layout.

``columns/part-NNNNN.parquet`` holds (feature, row, value), sorted by feature, then row; ``columns/index-NNNNN.parquet``
lists the features of that part with their numbers of entries, in the same chunks. A chunk holds whole features; a feature
with more entries than fit in one chunk has several chunks to itself, its pieces. ``columns/manifest.json`` records the
fingerprint of the dataset, which the layout leaves unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..core.errors import DatasetError
from ..core.metadata import read_metadata
from ..core.storage import Location
from .chunked_table import ChunkedTable, starts_of
from .manifests import COLUMN_LAYOUT
from .schema import COLUMN_CHUNKS, FIRST_OF_COLUMNS, column_schemas
from .writer import TableWriter, close_part, open_part, write_manifest, write_table

Dataset = Any  # `dataset.Dataset`

FOLDER = "columns"
AGAIN = COLUMN_LAYOUT.remedy


class Columns(ChunkedTable):
    """Column layout of a dataset, open for reading (see `open_columns`). Its items are the features that occur."""

    KIND = COLUMN_LAYOUT
    TABLES: ClassVar = FIRST_OF_COLUMNS

    def __init__(
        self,
        dataset: Dataset,
        manifest: dict[str, Any],
        chunk_table: Mapping[str, np.ndarray],
    ) -> None:
        super().__init__(dataset.path / FOLDER, manifest, chunk_table, "n_features")
        self.dataset = dataset
        self.use_cache(dataset.cache)
        self.n_items: int = manifest["n_features"]
        self.row_dtype = np.dtype(manifest["row_dtype"])
        self.entry_bytes = self.row_dtype.itemsize + self.value_dtype.itemsize
        self.first_feature = chunk_table["first_feature"]
        begins = chunk_table["piece"] == 0
        # items item_start[c]:item_start[c + 1] begin in chunk c: none if the chunk continues a feature
        self.item_start = starts_of(np.where(begins, chunk_table["n_features"], 0))
        # chunks unit_start[u]:unit_start[u + 1] belong together: one chunk, or all pieces of a feature
        self.unit_start = np.append(np.flatnonzero(begins), self.n_chunks).astype(np.int64)

    def read_index(self, chunk: int, *, verify: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Read the features of a chunk, ascending, and the number of entries of each in the chunk."""
        feature, n_entries = self._read("index", chunk, ("feature", "n_entries"), verify)
        expected = int(self.entry_start[chunk + 1] - self.entry_start[chunk])
        if (feature.size and n_entries.min() < 0) or int(n_entries.sum()) != expected:
            raise DatasetError(
                f"{self.place(chunk)}: the index does not fit the chunk table's {expected} entries; {AGAIN}"
            )
        return feature, n_entries

    def read_entries(
        self, chunk: int, columns: Sequence[str] = ("row", "value"), *, verify: bool = True
    ) -> list[np.ndarray]:
        """Read columns of a chunk's entries: ``feature``, ``row``, ``value``."""
        return self._read("entries", chunk, columns, verify)

    def info(self) -> dict[str, Any]:
        """Summarise the layout without reading the entries."""
        return {
            "n_features": self.n_items,
            "n_entries": self.n_entries,
            "n_shards": self.n_shards,
            "n_chunks": self.n_chunks,
            "bytes": self.bytes_on_disk(),
            "fingerprint": self.fingerprint,
        }


def has_columns(dataset: Dataset) -> bool:
    """Check if there is a column layout."""
    return (dataset.path / FOLDER / "manifest.json").exists()


def read_columns_manifest(dataset: Dataset) -> dict[str, Any]:
    """Read ``columns/manifest.json``; raises `DatasetError` if it is damaged, `FileNotFoundError` if it is missing."""
    return read_metadata(dataset.path / FOLDER / "manifest.json", COLUMN_LAYOUT)[0]


def open_columns(dataset: Dataset, *, check_files: bool = True) -> Columns:
    """Open the column layout of a dataset; raises `DatasetError` if it is missing, damaged or another dataset's."""
    path = dataset.path / FOLDER
    try:
        manifest = read_columns_manifest(dataset)
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetError(
            f"{dataset.path} has no column layout; 'streamcd columns {dataset.path}' makes it, as convert --columns does"
        ) from None
    if manifest["dataset"] != dataset.fingerprint:
        raise DatasetError(
            f"{path / 'manifest.json'}: made from a dataset with fingerprint {manifest['dataset']}, "
            f"this one has {dataset.fingerprint}; {AGAIN}"
        )
    if manifest["n_entries"] != dataset.n_entries:
        raise _miscounted(path, "n_entries", manifest, "dataset", dataset.n_entries)
    columns = Columns(dataset, manifest, Columns.read_chunk_table(path, manifest, check_files))
    if columns.n_items != columns.item_start[-1]:
        raise _miscounted(path, "n_features", manifest, "chunk table", int(columns.item_start[-1]))
    return columns


def _miscounted(
    path: Location, key: str, manifest: Mapping[str, Any], other: str, found: int
) -> DatasetError:
    return DatasetError(
        f"{path / 'manifest.json'}: damaged ({key} is {manifest[key]}, the {other} has {found}); {AGAIN}"
    )


# ---------------------------------------------------------------------------------------------------------------------
# Writing


class ColumnsWriter:
    """Writer of a column layout: features in ascending order, cut into chunks by size alone.

    The caller makes the directory `path`, and renames it at the end. A chunk holds up to `chunk_bytes` of decoded
    entries; a new part begins after `shard_bytes` of them. With `finished`, what `close_parts` of earlier
    writers has returned, writing continues after their parts.
    """

    FEATURE_BYTES = 16
    """Added to the size of every feature when chunks are cut, to bound a chunk of many features with few entries."""

    def __init__(
        self,
        path: Path,
        dataset: Dataset,
        *,
        chunk_bytes: int,
        shard_bytes: int,
        compression: str,
        finished: Mapping[str, Any] | None = None,
    ) -> None:
        self._path, self._dataset, self._compression = path, dataset, compression
        self._chunk_bytes, self._shard_bytes = chunk_bytes, shard_bytes
        self._entry_bytes = dataset.row_dtype.itemsize + dataset.value_dtype.itemsize
        self.piece_entries = max(chunk_bytes // self._entry_bytes, 1)
        self._parts: list[dict[str, Any]] = list(finished["parts"]) if finished else []
        self._table: list[list[int]] = [list(chunk) for chunk in finished["chunks"]] if finished else []
        self._files: dict[str, TableWriter] = {}
        # not written yet: whole features, or the start of a piece
        self._pending: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
        self._pending_bytes = 0

    def add(self, feature: np.ndarray, n_entries: np.ndarray, row: np.ndarray, value: np.ndarray) -> None:
        """Append whole features, in ascending order; `row` and `value` hold their entries, feature by feature."""
        size = n_entries * self._entry_bytes + self.FEATURE_BYTES
        end, entry_end = np.cumsum(size), np.cumsum(n_entries)
        large = np.flatnonzero(n_entries > self.piece_entries)
        start = 0
        while start < feature.size:
            before, entry = (int(end[start - 1]), int(entry_end[start - 1])) if start else (0, 0)
            if n_entries[start] > self.piece_entries:
                self.begin_feature()
                stop = int(entry_end[start])
                self.add_pieces(int(feature[start]), row[entry:stop], value[entry:stop])
                self.end_feature()
                start += 1
                continue
            room = self._chunk_bytes - self._pending_bytes
            stop = int(np.searchsorted(end, before + room, side="right"))
            following = int(np.searchsorted(large, start))
            stop = min(stop, int(large[following]) if following < large.size else feature.size)
            if stop <= start and self._pending:
                self._flush()
                continue
            stop = max(stop, start + 1)
            last = int(entry_end[stop - 1])
            self._hold(feature[start:stop], n_entries[start:stop], row[entry:last], value[entry:last])
            self._pending_bytes += int(end[stop - 1]) - before
            if stop < feature.size:
                self._flush()
            start = stop

    def begin_feature(self) -> None:
        """Write the pending chunk and begin a feature larger than a chunk."""
        self._flush()
        self._piece = self._held_entries = 0

    def add_pieces(self, feature: int, row: np.ndarray, value: np.ndarray) -> None:
        """Append entries of the feature that was begun, ascending by row."""
        start = 0
        while start < row.size:
            stop = min(start + self.piece_entries - self._held_entries, row.size)
            count = np.array([stop - start])
            self._hold(np.array([feature]), count, row[start:stop], value[start:stop])
            self._held_entries += stop - start
            if self._held_entries == self.piece_entries:
                self._flush_piece()
            start = stop

    def end_feature(self) -> None:
        """End the feature that was begun."""
        if self._held_entries:
            self._flush_piece()

    def _hold(self, feature: np.ndarray, count: np.ndarray, row: np.ndarray, value: np.ndarray) -> None:
        # copied: the caller reuses its memory
        self._pending.append((feature.copy(), count.copy(), row.copy(), value.copy()))

    def _flush_piece(self) -> None:
        feature, count, row, value = map(np.concatenate, zip(*self._pending, strict=True))
        self._write(feature[:1], count.sum(keepdims=True), row, value, self._piece)
        self._piece += 1
        self._held_entries = 0

    def _flush(self) -> None:
        if self._pending:
            feature, count, row, value = map(np.concatenate, zip(*self._pending, strict=True))
            self._write(feature, count, row, value, 0)

    def _write(
        self, feature: np.ndarray, count: np.ndarray, row: np.ndarray, value: np.ndarray, piece: int
    ) -> None:
        self._pending, self._pending_bytes = [], 0
        files, part = self._current_part()
        feature = feature.astype(self._dataset.index_dtype, copy=False)
        files["entries"].write(feature=np.repeat(feature, count), row=row, value=value)
        files["index"].write(feature=feature, n_entries=count.astype(np.int64))
        part["n_entries"] += row.size
        part["n_chunks"] += 1
        self._table.append([len(self._parts) - 1, int(feature[0]), feature.size, row.size, piece])

    def _part_is_full(self) -> bool:
        return bool(self._parts[-1]["n_entries"] * self._entry_bytes >= self._shard_bytes)

    def _current_part(self) -> tuple[dict[str, TableWriter], dict[str, Any]]:
        if self._files and self._part_is_full():
            self._close_part()
        if not self._files:
            number, rows = len(self._parts), self._dataset
            names = {"entries": f"part-{number:05d}.parquet", "index": f"index-{number:05d}.parquet"}
            schemas = column_schemas(rows.row_dtype, rows.index_dtype, rows.value_dtype)
            self._files = open_part(self._path, names, schemas, self._compression, FIRST_OF_COLUMNS)
            self._parts.append({**names, "n_entries": 0, "n_chunks": 0})
        return self._files, self._parts[-1]

    def _close_part(self) -> None:
        if self._files:
            self._parts[-1] |= close_part(self._files)
            self._files = {}

    def close_parts(self) -> dict[str, Any]:
        """Write the pending chunk; returns the parts and their chunks, for another writer to continue from."""
        self._flush()
        self._close_part()
        return {"parts": self._parts, "chunks": self._table}

    def close(self) -> dict[str, Any]:
        """Write the chunk table and, last, the manifest, which is returned."""
        self.close_parts()
        table = np.array(self._table, dtype=np.int64).reshape(-1, 5)
        columns = dict(zip(COLUMN_CHUNKS.names, table.T, strict=False))
        for name in COLUMN_CHUNKS.names[5:]:
            columns[name] = np.array([crc for part in self._parts for crc in part.pop(f"{name}s")], np.int64)
        fields = {
            "dataset": self._dataset.fingerprint,
            "n_features": int(table[table[:, 4] == 0, 2].sum()),
            "n_entries": int(table[:, 3].sum()),
            "index_dtype": self._dataset.index_dtype.name,
            "row_dtype": self._dataset.row_dtype.name,
            "value_dtype": self._dataset.value_dtype.name,
            "chunk_bytes": self._chunk_bytes,
            "shard_bytes": self._shard_bytes,
            "parts": self._parts,
            "chunks": write_table(self._path / "chunks.parquet", COLUMN_CHUNKS, [columns], self._compression),
            "compression": self._compression,
        }
        return write_manifest(self._path, COLUMN_LAYOUT, fields)


class ColumnsOutline(ColumnsWriter):
    """Dry run of `ColumnsWriter`, which writes nothing: it finds where the parts begin, from numbers of entries alone."""

    def __init__(self, dataset: Dataset, **form: Any) -> None:
        super().__init__(Path(), dataset, **form)
        # first feature of every part, and the number of the feature's piece there
        self.starts: list[tuple[int, int]] = []

    def add_counts(self, feature: np.ndarray, n_entries: np.ndarray) -> None:
        """Append whole features, ascending, by their numbers of entries."""
        nothing = np.broadcast_to(np.int8(0), int(n_entries.sum()))  # takes no memory
        self.add(feature, n_entries, nothing, nothing)

    def close_parts(self) -> dict[str, Any]:
        """Record the start of the last part, if there is one more; nothing is written."""
        self._flush()
        return {}

    def _write(
        self, feature: np.ndarray, count: np.ndarray, row: np.ndarray, value: np.ndarray, piece: int
    ) -> None:
        self._pending, self._pending_bytes = [], 0
        if not self._parts or self._part_is_full():
            self._parts.append({"n_entries": 0})
            self.starts.append((int(feature[0]), piece))
        self._parts[-1]["n_entries"] += row.size

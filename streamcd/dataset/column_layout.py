"""The column layout of a dataset: a second copy of its entries, sorted by feature, beside the row layout.

``columns/part-NNNNN.parquet`` holds (feature, row, value), sorted by feature, then row; ``columns/index-NNNNN.parquet``
lists the features of that part with their numbers of entries, in the same chunks. A chunk holds whole features; a feature
with more entries than fit in one chunk has several chunks to itself, its pieces. ``columns/manifest.json`` records the
fingerprint of the dataset, which the layout leaves unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..core.errors import DatasetError
from ..core.files import read_metadata, sync, write_metadata
from .chunked_table import ChunkedTable, starts_of
from .schema import COLUMN_CHUNKS, COLUMN_LAYOUT, FIRST_OF_COLUMNS, column_schemas
from .writer import Part, PartFiles, write_chunk_table

Dataset = Any  # `dataset.Dataset`

FOLDER = "columns"
AGAIN = COLUMN_LAYOUT.remedy


class Columns(ChunkedTable):
    """Column layout of a dataset, open for reading (see `open_columns`). Its items are the features that occur."""

    KIND = COLUMN_LAYOUT
    TABLES: ClassVar = FIRST_OF_COLUMNS

    def __init__(
        self, dataset: Dataset, manifest: dict[str, Any], chunk_table: Mapping[str, np.ndarray]
    ) -> None:
        begins = chunk_table["piece"] == 0
        # none begins in a chunk that continues a feature
        n_begun = np.where(begins, chunk_table["n_features"], 0)
        super().__init__(dataset.path / FOLDER, manifest, chunk_table, "n_features", n_begun)
        self.dataset = dataset
        self.use_cache(dataset.cache)
        self.row_dtype = np.dtype(manifest["row_dtype"])
        self.entry_bytes = self.row_dtype.itemsize + self.value_dtype.itemsize
        self.first_feature = chunk_table["first_feature"]
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


def open_columns(dataset: Dataset, *, check_files: bool = True) -> Columns:
    """Open the column layout of a dataset; raises `DatasetError` if it is missing, damaged or another dataset's."""
    path = dataset.path / FOLDER
    try:
        manifest, _ = read_metadata(path / "manifest.json", COLUMN_LAYOUT)
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetError(
            f"{dataset.path} has no column layout; 'streamcd columns {dataset.path}' makes it"
        ) from None
    if manifest["dataset"] != dataset.fingerprint:  # safety: columns::layout_of_another_dataset
        raise DatasetError(
            f"{path / 'manifest.json'}: made from a dataset with fingerprint {manifest['dataset']}, "
            f"this one has {dataset.fingerprint}; {AGAIN}"
        )
    return Columns(dataset, manifest, Columns.read_chunk_table(path, manifest, check_files))


# ---------------------------------------------------------------------------------------------------------------------
# Writing


class ColumnsWriter:
    """Writer of consecutive parts of a column layout, from number `part` on, each of the features from its start on.

    Features come in ascending order, and are cut into chunks of up to `chunk_bytes` of decoded entries by size alone.
    """

    FEATURE_BYTES = 16
    """Added to the size of every feature when chunks are cut, to bound a chunk of many features with few entries."""

    def __init__(
        self,
        folder: Path,
        dataset: Dataset,
        part: int,
        starts: Sequence[int],
        chunk_bytes: int,
        compression: str,
    ) -> None:
        self._folder = folder
        self._dataset = dataset
        self._compression = compression
        self._number = part
        self._starts = np.array(starts, np.int64)
        self._chunk_bytes = chunk_bytes
        self._entry_bytes = dataset.row_dtype.itemsize + dataset.value_dtype.itemsize
        self.piece_entries = max(chunk_bytes // self._entry_bytes, 1)
        self._parts: list[Part] = []
        self._n_begun = 0  # parts
        self._files: PartFiles | None = None  # of the part begun
        # whole features that are not written yet
        self._pending: list[tuple[np.ndarray, ...]] = []
        self._pending_bytes = 0

    def add(self, feature: np.ndarray, n_entries: np.ndarray, row: np.ndarray, value: np.ndarray) -> None:
        """Append whole features, in ascending order; `row` and `value` hold their entries, feature by feature."""
        size = starts_of(n_entries * self._entry_bytes + self.FEATURE_BYTES)
        entry = starts_of(n_entries)
        large = np.flatnonzero(n_entries > self.piece_entries)
        borders = np.searchsorted(feature, self._starts)
        cuts = np.unique(np.concatenate([[0], large, large + 1, borders, [feature.size]])).tolist()
        for start, stop in pairwise(cuts):
            if n_entries[start] > self.piece_entries:
                ends = slice(entry[start], entry[stop])
                self.add_large(int(feature[start]), [(row[ends], value[ends])])
                continue
            self._begin_parts(int(feature[start]))
            first = start
            while first < stop:
                room = self._chunk_bytes - self._pending_bytes
                fitting = int(np.searchsorted(size, size[first] + room, side="right")) - 1
                if fitting <= first and self._pending:
                    self._flush()
                    continue
                last = min(max(fitting, first + 1), stop)
                ends = slice(entry[first], entry[last])
                # copied: the caller reuses its memory
                columns = (feature[first:last], n_entries[first:last], row[ends], value[ends])
                self._pending.append(tuple(column.copy() for column in columns))
                self._pending_bytes += int(size[last] - size[first])
                first = last

    def add_large(self, feature: int, blocks: Iterable[Sequence[np.ndarray]]) -> int:
        """Append a feature larger than a chunk from its rows and values, ascending; returns the number of its entries."""
        self._begin_parts(feature)
        self._flush()
        n_entries = n_held = piece = 0
        held: list[tuple[np.ndarray, np.ndarray]] = []
        for row, value in blocks:
            n_entries += row.size
            start = 0
            while start < row.size:
                stop = min(start + self.piece_entries - n_held, row.size)
                held.append((row[start:stop].copy(), value[start:stop].copy()))
                n_held += stop - start
                start = stop
                if n_held == self.piece_entries:
                    self._write_piece(feature, held, piece)
                    piece += 1
                    held = []
                    n_held = 0
        if held:
            self._write_piece(feature, held, piece)
        return n_entries

    def _write_piece(self, feature: int, held: list[tuple[np.ndarray, np.ndarray]], piece: int) -> None:
        row, value = map(np.concatenate, zip(*held, strict=True))
        self._write(np.array([feature]), np.array([row.size]), row, value, piece)

    def _flush(self) -> None:
        if self._pending:
            feature, count, row, value = map(np.concatenate, zip(*self._pending, strict=True))
            self._pending = []
            self._pending_bytes = 0
            self._write(feature, count, row, value, 0)

    def _write(
        self, feature: np.ndarray, count: np.ndarray, row: np.ndarray, value: np.ndarray, piece: int
    ) -> None:
        assert self._files is not None
        feature = feature.astype(self._dataset.index_dtype, copy=False)
        self._files.tables["entries"].write(
            {"feature": np.repeat(feature, count), "row": row, "value": value}
        )
        self._files.tables["index"].write({"feature": feature, "n_entries": count.astype(np.int64)})
        self._files.chunks.extend((int(feature[0]), feature.size, row.size, piece))

    def _begin_parts(self, feature: int) -> None:
        """Begin the part that a feature is in."""
        if self._n_begun == self._starts.size or feature < self._starts[self._n_begun]:
            return
        self._end_part()
        number = self._number + self._n_begun
        rows = self._dataset
        names = {"entries": f"part-{number:05d}.parquet", "index": f"index-{number:05d}.parquet"}
        schemas = column_schemas(rows.row_dtype, rows.index_dtype, rows.value_dtype)
        counted = COLUMN_CHUNKS.names[1:5]
        self._files = PartFiles(self._folder, names, schemas, self._compression, FIRST_OF_COLUMNS, counted)
        self._n_begun += 1

    def _end_part(self) -> None:
        self._flush()
        if self._files is not None:
            self._parts.append(self._files.close())
            self._files = None

    def close(self) -> list[Part]:
        """End the last part; returns all, for `write_columns`."""
        self._end_part()
        return self._parts


def write_columns(
    folder: Path,
    dataset: Dataset,
    parts: Sequence[Part],
    chunk_bytes: int,
    shard_bytes: int,
    compression: str,
) -> None:
    """Write the chunk table and, last, the manifest, of parts that are written."""
    fields = {
        "dataset": dataset.fingerprint,
        "n_features": sum(int(part.chunks["n_features"][part.chunks["piece"] == 0].sum()) for part in parts),
        "n_entries": sum(part.record["n_entries"] for part in parts),
        "index_dtype": dataset.index_dtype.name,
        "row_dtype": dataset.row_dtype.name,
        "value_dtype": dataset.value_dtype.name,
        "chunk_bytes": chunk_bytes,
        "shard_bytes": shard_bytes,
        "compression": compression,
        "parts": [part.record for part in parts],
        "chunks": write_chunk_table(folder, COLUMN_CHUNKS, parts, compression),
    }
    sync(folder)
    write_metadata(folder / "manifest.json", COLUMN_LAYOUT, fields)

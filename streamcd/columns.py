"""The column layout on disk: the entries of a dataset a second time, sorted by feature, beside its row layout.

``columns/part-NNNNN.parquet`` holds (feature, row, value), sorted by feature, then row; ``columns/index-NNNNN.parquet`` the
features of that part with their numbers of entries, row group by row group the same chunks. A chunk holds whole features;
a feature with more entries than a chunk takes chunks of its own, its pieces. ``columns/manifest.json`` is written last and
names the dataset's fingerprint, which the layout does not change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .errors import DatasetError
from .parquet import (
    OpenParts,
    Schema,
    TableWriter,
    file_checksum,
    read_table,
    reading,
    schema,
    sync_directory,
    write_file_atomically,
)
from .row_layout import MAX_OPEN_PARTS, RowTable
from .schema import manifest_fingerprint
from .verification import file_problems

FOLDER = "columns"
FORMAT = "streamcd-columns"
FORMAT_VERSION = 1

_CHUNKS_SCHEMA = schema(
    part=np.int32, first_feature=np.int64, n_features=np.int64, n_entries=np.int64, piece=np.int64
)
AGAIN = "make the layout again with 'streamcd columns --force'"
"""What to do where a layout is damaged."""


def _entries_schema(index_dtype: np.dtype, row_dtype: np.dtype, value_dtype: np.dtype) -> Schema:
    # `feature` comes first: training skips it, and the two other columns are then one contiguous read
    return schema(feature=index_dtype, row=row_dtype, value=value_dtype)


def _index_schema(index_dtype: np.dtype) -> Schema:
    return schema(feature=index_dtype, n_entries=np.int64)


# ---------------------------------------------------------------------------------------------------------------------
# Reading


class Columns:
    """The column layout of a dataset, open for reading; made by `open_columns`. Not for use by several threads at a time.

    Attributes
    ----------
    path : Path
        The folder of the layout.
    dataset : RowTable
        Whose columns these are.
    manifest : dict
    fingerprint : str
        Of the layout; the dataset's is in the manifest.
    n_chunks, n_shards, n_entries : int
    n_items : int
        Features that occur.
    entry_bytes : int
        Decoded bytes of one entry: its row and its value.
    chunk_part, chunk_group : ndarray of int32, shape (n_chunks,)
        The part and the row group in it that hold a chunk.
    first_feature : ndarray of int64, shape (n_chunks,)
    item_start, entry_start : ndarray of int64, shape (n_chunks + 1,)
        Chunk ``c`` begins the features ``item_start[c]:item_start[c + 1]`` of those that occur (none where it goes on with
        a feature), and holds entries likewise.
    unit_start : ndarray of int64, shape (units + 1,)
        Chunks ``unit_start[u]:unit_start[u + 1]`` belong together: one chunk, or all pieces of a feature.
    """

    def __init__(self, dataset: RowTable, manifest: dict[str, Any], table: Mapping[str, np.ndarray]) -> None:
        self.path, self.dataset, self.manifest = dataset.path / FOLDER, dataset, manifest
        self.fingerprint: str = manifest["fingerprint"]
        self.n_shards = len(manifest["parts"])
        self.n_entries, self.n_items = int(manifest["n_entries"]), int(manifest["n_features"])
        self.index_dtype = np.dtype(manifest["index_dtype"])
        self.row_dtype = np.dtype(manifest["row_dtype"])
        self.value_dtype = np.dtype(manifest["value_dtype"])
        self.chunk_part = table["part"].astype(np.int32)
        self.n_chunks = self.chunk_part.size
        first_of_part = np.searchsorted(self.chunk_part, np.arange(self.n_shards))
        self.chunk_group = (np.arange(self.n_chunks) - first_of_part[self.chunk_part]).astype(np.int32)
        self.first_feature, self.n_listed = table["first_feature"], table["n_features"]
        begins = table["piece"] == 0
        begun = np.where(begins, self.n_listed, 0)
        self.item_start = np.concatenate([[0], np.cumsum(begun, dtype=np.int64)])
        self.entry_start = np.concatenate([[0], np.cumsum(table["n_entries"], dtype=np.int64)])
        self.unit_start = np.append(np.flatnonzero(begins), self.n_chunks).astype(np.int64)
        self._parts = OpenParts(self.path, 2 * MAX_OPEN_PARTS)

    @property
    def entry_bytes(self) -> int:
        return self.row_dtype.itemsize + self.value_dtype.itemsize

    def read_index(self, chunk: int, *, verify: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Features of a chunk, ascending, and how many entries each has in it.

        Raises
        ------
        DatasetError
            Where the file is missing or damaged; names it.
        """
        part = self.manifest["parts"][self.chunk_part[chunk]]
        feature, n_entries = self._parts.read(
            part["index"], int(self.chunk_group[chunk]), ("feature", "n_entries"), verify
        )
        expected = int(self.entry_start[chunk + 1] - self.entry_start[chunk])
        if (
            feature.size != self.n_listed[chunk]
            or (feature.size and n_entries.min() < 0)
            or int(n_entries.sum()) != expected
        ):
            raise DatasetError(
                f"{self.place(chunk)}: the index does not fit the chunk table's {expected} entries; {AGAIN}"
            )
        return feature, n_entries

    def read_entries(
        self, chunk: int, columns: Sequence[str] = ("row", "value"), *, verify: bool = True
    ) -> list[np.ndarray]:
        """Columns of a chunk's entries: ``feature``, ``row``, ``value``."""
        part = self.manifest["parts"][self.chunk_part[chunk]]
        arrays = self._parts.read(part["entries"], int(self.chunk_group[chunk]), columns, verify)
        expected = int(self.entry_start[chunk + 1] - self.entry_start[chunk])
        if any(array.size != expected for array in arrays):
            raise DatasetError(
                f"{self.place(chunk)}: holds {arrays[0].size} entries, the chunk table says {expected}; {AGAIN}"
            )
        return arrays

    def find(self, feature: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows and values of one feature, ascending by row; empty where it does not occur."""
        rows, values = [np.empty(0, self.row_dtype)], [np.empty(0, self.value_dtype)]
        chunk = max(int(np.searchsorted(self.first_feature, feature, side="right")) - 1, 0)
        while chunk > 0 and self.first_feature[chunk - 1] == feature:
            chunk -= 1
        while chunk < self.n_chunks and self.first_feature[chunk] <= feature:
            listed, counts = self.read_index(chunk)
            place = int(np.searchsorted(listed, feature))
            if place < listed.size and listed[place] == feature:
                start = int(counts[:place].sum())
                row, value = self.read_entries(chunk)
                rows.append(row[start : start + int(counts[place])])
                values.append(value[start : start + int(counts[place])])
            chunk += 1
        return np.concatenate(rows), np.concatenate(values)

    def expect(self, chunk: int) -> None:
        """Say that a chunk's rows and values will be read, in the order of such calls."""
        part = self.manifest["parts"][self.chunk_part[chunk]]
        self._parts.expect(part["entries"], int(self.chunk_group[chunk]), 1)

    def read_directly(self) -> None:
        """From now until `close`, chunks that are expected are read past the page cache."""
        self._parts.read_directly()

    def chunk_bytes(self, chunk: int) -> int:
        """Bytes on disk that reading a chunk for training asks for: its index, rows and values."""
        part, group = self.manifest["parts"][self.chunk_part[chunk]], int(self.chunk_group[chunk])
        _, entries = self._parts[part["entries"]].extent(group, 1)
        _, index = self._parts[part["index"]].extent(group, 0)
        return entries + index

    def place(self, chunk: int) -> str:
        """Where a chunk is, for messages: the file and the number of the chunk in it."""
        part = self.manifest["parts"][self.chunk_part[chunk]]
        return f"{self.path / part['entries']}, chunk {int(self.chunk_group[chunk])}"

    def bytes_on_disk(self) -> int:
        """Bytes of all files of the layout."""
        parts = sum(part["entries_bytes"] + part["index_bytes"] for part in self.manifest["parts"])
        return int(parts + self.manifest["chunks"]["bytes"])

    def info(self) -> dict[str, Any]:
        """What there is to know without reading the entries."""
        return {
            "n_features": self.n_items,
            "n_entries": self.n_entries,
            "n_shards": self.n_shards,
            "n_chunks": self.n_chunks,
            "bytes": self.bytes_on_disk(),
            "fingerprint": self.fingerprint,
        }

    def close(self) -> None:
        """Close all files; the next read opens them again."""
        self._parts.close()


def has_columns(dataset: RowTable) -> bool:
    """Whether there is a column layout beside the row layout."""
    return (dataset.path / FOLDER / "manifest.json").exists()


def open_columns(dataset: RowTable, *, check_files: bool = True) -> Columns:
    """Open the column layout of a dataset.

    Raises
    ------
    DatasetError
        Where there is none, or it is damaged, or was made from another dataset.
    """
    path = dataset.path / FOLDER
    manifest = _read_manifest(dataset)
    if check_files:
        for _, problem in file_problems(path, listed_files(manifest)):
            raise DatasetError(f"{problem}; {AGAIN}")
    chunks_path = path / "chunks.parquet"
    with reading(chunks_path):
        if file_checksum(chunks_path) != manifest["chunks"]["checksum"]:
            raise DatasetError(f"{chunks_path}: checksum differs from the manifest's; {AGAIN}")
    return Columns(dataset, manifest, read_table(chunks_path))


def _read_manifest(dataset: RowTable) -> dict[str, Any]:
    path = dataset.path / FOLDER / "manifest.json"
    try:
        manifest = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetError(
            f"{dataset.path} has no column layout; 'streamcd columns {dataset.path}' makes it"
        ) from None
    except (ValueError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path}: damaged ({error}); {AGAIN}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DatasetError(f"{path}: expected the manifest of a {FORMAT}, found something else; {AGAIN}")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise DatasetError(
            f"{path}: expected format version {FORMAT_VERSION}, found {manifest.get('format_version')}; {AGAIN}"
        )
    if manifest.get("fingerprint") != manifest_fingerprint(manifest):
        raise DatasetError(f"{path}: changed since it was written; {AGAIN}")
    if manifest["dataset"] != dataset.fingerprint:
        raise DatasetError(
            f"{path}: made from a dataset with fingerprint {manifest['dataset']}, "
            f"this one has {dataset.fingerprint}; {AGAIN}"
        )
    return manifest


def listed_files(manifest: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
    """Name, bytes and checksum of every file that the manifest lists."""
    yield "chunks.parquet", manifest["chunks"]["bytes"], manifest["chunks"]["checksum"]
    for part in manifest["parts"]:
        for table in ("entries", "index"):
            yield part[table], part[f"{table}_bytes"], part[f"{table}_checksum"]


# ---------------------------------------------------------------------------------------------------------------------
# Writing


class ColumnsWriter:
    """Writes a column layout into a directory: features ascending, cut into chunks by their sizes and nothing else.

    Parameters
    ----------
    path : Path
        Made where it is not there. Meant to be a temporary one that is renamed at the end.
    dataset : RowTable
    chunk_bytes, shard_bytes : int
        Decoded bytes of a chunk's entries, and those at which a new part is begun.
    compression : {"lz4", "zstd", "none"}
    finished : dict, optional
        What `finished` gave, to go on behind those parts.
    """

    FEATURE_BYTES = 16
    """Counted for a feature when chunks are cut, so that features with hardly an entry do not make endless chunks."""

    def __init__(
        self,
        path: Path,
        dataset: RowTable,
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
        self._entries: TableWriter | None = None
        self._index: TableWriter | None = None
        # what is not yet a chunk: whole features, or the rest of a feature of pieces
        self._pending: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
        self._pending_bytes = 0
        path.mkdir(parents=True, exist_ok=True)

    def finished(self) -> dict[str, Any] | None:
        """Parts that are complete and what comes behind them, for a later writer to go on; None where there is none."""
        n_parts = len(self._parts) - 1
        behind = [chunk for chunk in self._table if chunk[0] == n_parts]
        if n_parts < 1 or not behind:
            return None
        done = [chunk for chunk in self._table if chunk[0] < n_parts]
        return {
            "parts": self._parts[:n_parts],
            "chunks": done,
            "feature": behind[0][1],
            "piece": behind[0][4],
        }

    def add(self, feature: np.ndarray, n_entries: np.ndarray, row: np.ndarray, value: np.ndarray) -> None:
        """Append whole features, ascending, with their entries one feature after another."""
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
                self.end_feature(int(feature[start]))
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

    def begin_feature(self, piece: int = 0) -> None:
        """Close the chunk begun so far: a feature larger than a chunk follows, from one of its pieces on."""
        self._flush()
        self._piece = piece
        self._held_entries = 0

    def add_pieces(self, feature: int, row: np.ndarray, value: np.ndarray) -> None:
        """Append entries of the feature that was begun, in order of their rows."""
        start = 0
        while start < row.size:
            stop = min(start + self.piece_entries - self._held_entries, row.size)
            count = np.array([stop - start])
            self._hold(np.array([feature]), count, row[start:stop], value[start:stop])
            self._held_entries += stop - start
            if self._held_entries == self.piece_entries:
                self._flush_piece(feature)
            start = stop

    def end_feature(self, feature: int) -> None:
        """The feature that was begun has no more entries."""
        if self._held_entries:
            self._flush_piece(feature)

    def _hold(self, feature: np.ndarray, count: np.ndarray, row: np.ndarray, value: np.ndarray) -> None:
        # copied: the caller uses its memory again
        self._pending.append((feature.copy(), count.copy(), row.copy(), value.copy()))

    def _flush_piece(self, feature: int) -> None:
        row = np.concatenate([held[2] for held in self._pending])
        value = np.concatenate([held[3] for held in self._pending])
        self._write(np.array([feature]), np.array([row.size]), row, value, self._piece)
        self._piece += 1
        self._held_entries = 0

    def _flush(self) -> None:
        if self._pending:
            feature, count, row, value = (
                np.concatenate([held[k] for held in self._pending]) for k in range(4)
            )
            self._write(feature, count, row, value, 0)

    def _write(
        self, feature: np.ndarray, count: np.ndarray, row: np.ndarray, value: np.ndarray, piece: int
    ) -> None:
        self._pending, self._pending_bytes = [], 0
        part = self._current_part()
        assert self._entries is not None
        assert self._index is not None
        feature = feature.astype(self._dataset.index_dtype, copy=False)
        self._entries.write(feature=np.repeat(feature, count), row=row, value=value)
        self._index.write(feature=feature, n_entries=count.astype(np.int64))
        part["n_entries"] += row.size
        part["n_chunks"] += 1
        self._table.append([len(self._parts) - 1, int(feature[0]), feature.size, row.size, piece])

    def _part_is_full(self) -> bool:
        return bool(self._parts[-1]["n_entries"] * self._entry_bytes >= self._shard_bytes)

    def _current_part(self) -> dict[str, Any]:
        if self._entries is not None and self._part_is_full():
            self._close_part()
        if self._entries is None:
            number, dtype = len(self._parts), self._dataset.index_dtype
            part = {"entries": f"part-{number:05d}.parquet", "index": f"index-{number:05d}.parquet"}
            self._entries = TableWriter(
                self._path / part["entries"],
                _entries_schema(dtype, self._dataset.row_dtype, self._dataset.value_dtype),
                self._compression,
            )
            self._index = TableWriter(self._path / part["index"], _index_schema(dtype), self._compression)
            self._parts.append({**part, "n_entries": 0, "n_chunks": 0})
        return self._parts[-1]

    def _close_part(self) -> None:
        if self._entries is None or self._index is None:
            return
        for table, writer in (("entries", self._entries), ("index", self._index)):
            for key, figure in writer.close().items():
                self._parts[-1][f"{table}_{key}"] = figure
        self._entries = self._index = None

    def close_parts(self) -> dict[str, Any]:
        """Write what is left: the parts and their chunks, for another writer to go on behind them."""
        self._flush()
        self._close_part()
        return {"parts": self._parts, "chunks": self._table}

    def close(self) -> dict[str, Any]:
        """Write the chunk table and, last, the manifest, which is returned."""
        self.close_parts()
        table = np.array(self._table, dtype=np.int64).reshape(-1, 5)
        writer = TableWriter(self._path / "chunks.parquet", _CHUNKS_SCHEMA, self._compression)
        columns: dict[str, np.ndarray] = {name: table[:, k] for k, name in enumerate(_CHUNKS_SCHEMA.names)}
        columns["part"] = table[:, 0].astype(np.int32)
        writer.write(**columns)
        content = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "dataset": self._dataset.fingerprint,
            "n_features": int(table[table[:, 4] == 0, 2].sum()),
            "n_entries": int(table[:, 3].sum()),
            "index_dtype": self._dataset.index_dtype.name,
            "row_dtype": self._dataset.row_dtype.name,
            "value_dtype": self._dataset.value_dtype.name,
            "chunk_bytes": self._chunk_bytes,
            "shard_bytes": self._shard_bytes,
            "parts": self._parts,
            "chunks": writer.close(),
        }
        content["fingerprint"] = manifest_fingerprint(content)
        sync_directory(self._path)
        write_file_atomically(self._path / "manifest.json", (json.dumps(content, indent=1) + "\n").encode())
        return content


class ColumnsOutline(ColumnsWriter):
    """Where a layout's parts will begin, from the numbers of entries alone; writes nothing.

    Attributes
    ----------
    starts : list of (int, int)
        The first feature of every part, and which of its pieces the part begins with.
    """

    def __init__(self, dataset: RowTable, *, chunk_bytes: int, shard_bytes: int) -> None:
        super().__init__(
            dataset.path,
            dataset,
            chunk_bytes=chunk_bytes,
            shard_bytes=shard_bytes,
            compression="none",
        )
        self.starts: list[tuple[int, int]] = []

    def add_counts(self, feature: np.ndarray, n_entries: np.ndarray) -> None:
        """Append whole features, ascending."""
        nothing = np.broadcast_to(np.int8(0), int(n_entries.sum()))  # takes no memory
        self.add(feature, n_entries, nothing, nothing)

    def close_parts(self) -> dict[str, Any]:
        """Nothing is left to write."""
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

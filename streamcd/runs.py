"""The external shuffle of `shuffle.py` for several writers and readers: runs of rows, each sorted by its leading key bits.

Whoever parses writes runs: files of segments, one segment or more for each bucket (leading bits of the keys), and an index
that tells where each bucket's are. Whoever writes shards gathers a bucket from all runs. Nothing is ever changed in
place, so processes need not wait for one another, and the order of the rows is that of `shuffle.Sorter`, whoever wrote
which run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from .shuffle import (
    ROW_BYTES,
    Arena,
    Rows,
    _read_header,
    _read_segment,
    _write_segment,
    row_keys,
)

MAX_BITS = 12
_MOST_INDICES = 32  # of runs, in memory: some 100 kB each, where there are as many buckets as can be
_SPLIT_LIMIT = 40  # bits at which buckets are not split further: by then no two rows share them

_SEGMENT = np.dtype([("offset", np.int64), ("n_rows", np.int64), ("n_entries", np.int64)])
_HEADER_BYTES = 24


@dataclass(frozen=True)
class RunFormat:
    """What writers and readers of runs have to agree on.

    Attributes
    ----------
    directory : Path
    seed : int or None
        None keeps the order of the source: every run is a bucket, and its number its place.
    bits : int
        Leading bits of the keys that make a bucket.
    value_dtype : dtype
    weighted : bool
    """

    directory: Path
    seed: int | None
    bits: int
    value_dtype: np.dtype
    weighted: bool

    @property
    def n_buckets(self) -> int:
        """Buckets in a run."""
        return 1 if self.seed is None else 1 << self.bits

    def path(self, run: int) -> Path:
        """The file of a run; its index lies beside it."""
        return self.directory / f"run-{run:07d}"

    def keys(self, place: np.ndarray) -> np.ndarray:
        """What rows are sorted by."""
        return place.astype(np.uint64) if self.seed is None else row_keys(place, self.seed)


class RunWriter:
    """Writes one run.

    Parameters
    ----------
    form : RunFormat
    number : int
    memory_bytes : int
        For rows in memory.
    """

    def __init__(self, form: RunFormat, number: int, memory_bytes: int) -> None:
        self._form, self._memory_bytes = form, memory_bytes
        self._segment_bytes = max(memory_bytes // 32, 1 << 16)
        self._path = form.path(number)
        self._file: BinaryIO = open(self._path, "wb", buffering=0)  # noqa: SIM115 - closed in close()
        self._offset = 0
        self._arena: Arena | None = None
        self._segments: list[list[tuple[int, int, int]]] = [[] for _ in range(form.n_buckets)]

    def append(self, rows: Rows, wide: bool) -> None:
        """Take the next rows of the source; `wide` where there are indices that need 64 bits."""
        index_dtype = np.dtype(np.int64 if wide else np.int32)
        if self._arena is not None and wide and self._arena.index_dtype != index_dtype:
            self._spill()
            self._arena = None
        if self._arena is None:
            self._arena = Arena(self._memory_bytes, index_dtype, self._form.value_dtype, self._form.weighted)
        if not self._arena.has_room(rows.n_rows, rows.n_entries):
            self._spill()
        self._arena.append(rows)

    def close(self) -> None:
        """Write what is left, and the index."""
        self._spill()
        self._file.close()
        starts = np.cumsum([0, *(len(bucket) for bucket in self._segments)])
        segments = np.array([segment for bucket in self._segments for segment in bucket], dtype=_SEGMENT)
        with open(_index_path(self._path), "wb") as file:
            starts.astype(np.int64).tofile(file)
            segments.tofile(file)

    def _spill(self) -> None:
        if self._arena is None or not self._arena.n_rows:
            return
        rows, form = self._arena.rows(), self._form
        order, ends = np.arange(rows.n_rows), np.array([rows.n_rows])
        if form.seed is not None:
            keys = form.keys(rows.place)
            order = np.argsort(keys)
            bucket = keys[order] >> np.uint64(64 - form.bits)
            ends = np.searchsorted(bucket, np.arange(1, form.n_buckets + 1).astype(np.uint64))
        start = 0
        for segments, end in zip(self._segments, ends.tolist(), strict=True):
            self._write(segments, rows, order[start:end])
            start = end
        self._arena.clear()

    def _write(self, segments: list[tuple[int, int, int]], rows: Rows, order: np.ndarray) -> None:
        assert self._arena is not None
        size = np.cumsum((rows.indptr[order + 1] - rows.indptr[order]) * self._arena.entry_bytes + ROW_BYTES)
        start = 0
        while start < len(order):
            limit = self._segment_bytes + (int(size[start - 1]) if start else 0)
            stop = max(int(np.searchsorted(size, limit, side="right")), start + 1)
            taken = rows.take(order[start:stop])
            _write_segment(self._file, taken)
            segments.append((self._offset, taken.n_rows, taken.n_entries))
            self._offset = self._file.tell()
            start = stop


_PUNCH_HOLE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE


def _give_back(file: BinaryIO, start: int, stop: int) -> None:
    """Free the blocks, and the cached pages, of a part of a file; where the file system cannot, nothing happens.

    What is read and written at that moment takes their place: less disk, and no waiting for pages to be found.
    """
    fallocate = getattr(ctypes.CDLL(None), "fallocate64", None)
    if fallocate is not None:
        arguments = ctypes.c_int64(start), ctypes.c_int64(stop - start)
        fallocate(ctypes.c_int(file.fileno()), ctypes.c_int(_PUNCH_HOLE), *arguments)


def _index_path(path: Path) -> Path:
    return path.with_name(path.name + ".index")


# ---------------------------------------------------------------------------------------------------------------------
# Reading


@dataclass(frozen=True)
class Cell:
    """Consecutive rows of the final order that fit in memory: those whose keys begin with `prefix`, of `depth` bits.

    In the order of the source, it is a segment of a run instead.
    """

    bucket: int
    n_rows: int
    n_entries: int
    depth: int = 0
    prefix: int = 0
    segment: int | None = None


class RunReader:
    """Reads buckets from all runs.

    Parameters
    ----------
    form : RunFormat
    n_runs : int
    memory_bytes : int
        For rows in memory.
    wide : bool
        Whether any index needs 64 bits.
    """

    def __init__(self, form: RunFormat, n_runs: int, memory_bytes: int, wide: bool) -> None:
        self._form, self._n_runs, self._memory_bytes = form, n_runs, memory_bytes
        self._index_dtype = np.dtype(np.int64 if wide else np.int32)
        self._entry_bytes = self._index_dtype.itemsize + form.value_dtype.itemsize
        self._arena: Arena | None = None
        self._indices: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def cells(self, bucket: int) -> list[Cell]:
        """Cut a bucket into cells, in their order."""
        if self._form.seed is None:
            segments = self._segments(bucket, bucket)
            return [
                Cell(bucket, int(segment["n_rows"]), int(segment["n_entries"]), segment=number)
                for number, segment in enumerate(segments)
            ]
        depth, n_rows, n_entries = self._form.bits, np.zeros(1, np.int64), np.zeros(1, np.int64)
        for run in range(self._n_runs):
            segments = self._segments(bucket, run)
            n_rows += segments["n_rows"].sum()
            n_entries += segments["n_entries"].sum()
        while (self._n_bytes(n_rows, n_entries) > self._memory_bytes).any() and depth < _SPLIT_LIMIT:
            depth += 2
            n_rows, n_entries = self._histogram(bucket, depth)
        first = bucket << (depth - self._form.bits)
        return [
            Cell(bucket, int(n_rows[i]), int(n_entries[i]), depth, first + i)
            for i in range(len(n_rows))
            if n_rows[i]
        ]

    def lengths(self, cell: Cell) -> np.ndarray:
        """The entries of a cell's rows, in their order."""
        found = [
            (keys[chosen], counts[chosen])
            for keys, counts in self._keys_and_counts(cell.bucket, cell.segment)
            if (chosen := self._chosen(cell, keys)).any()
        ]
        keys = np.concatenate([keys for keys, _ in found])
        counts: np.ndarray = np.concatenate([counts for _, counts in found])
        return counts[np.argsort(keys)]

    def load(self, cell: Cell, last: bool = False) -> tuple[Rows, np.ndarray]:
        """A cell's rows, and their order; the memory is used again for the next one's.

        With `last`, nobody reads the cell any more: its place on the disk is given back.
        """
        if self._arena is None:
            self._arena = Arena(
                self._memory_bytes, self._index_dtype, self._form.value_dtype, self._form.weighted
            )
        self._arena.clear()
        for file, number in self._files(cell.bucket, cell.segment, "r+b" if last else "rb"):
            self._read(file, number, cell)
            if last and self._is_whole(cell):
                _give_back(file, int(number["offset"]), file.tell())
        rows = self._arena.rows()
        return rows, np.argsort(self._form.keys(rows.place))

    def _read(self, file: BinaryIO, segment: np.void, cell: Cell) -> None:
        assert self._arena is not None
        file.seek(int(segment["offset"]))
        header = _read_header(file)
        assert header is not None
        n_rows, n_entries, index_dtype = header
        if self._is_whole(cell):
            entry0 = self._arena.n_entries
            _read_segment(file, self._arena.reserve(n_rows, n_entries), index_dtype, entry0)
            return
        # a part of a bucket that is too large as a whole: the segment is read, what belongs to the part is kept
        segment_arena = Arena(
            n_rows * ROW_BYTES + n_entries * self._entry_bytes + ROW_BYTES,
            self._index_dtype,
            self._form.value_dtype,
            self._form.weighted,
        )
        _read_segment(file, segment_arena.reserve(n_rows, n_entries), index_dtype, 0)
        rows = segment_arena.rows()
        chosen = np.flatnonzero(self._chosen(cell, self._form.keys(rows.place)))
        if chosen.size:
            self._arena.append(rows.take(chosen))

    def _is_whole(self, cell: Cell) -> bool:
        """Whether a cell is all of its segments."""
        return cell.segment is not None or cell.depth == self._form.bits

    def _n_bytes(self, n_rows: np.ndarray, n_entries: np.ndarray) -> np.ndarray:
        return n_rows * ROW_BYTES + n_entries * self._entry_bytes

    def _chosen(self, cell: Cell, keys: np.ndarray) -> np.ndarray:
        if cell.segment is not None:
            return np.ones(len(keys), np.bool_)
        return keys >> np.uint64(64 - cell.depth) == np.uint64(cell.prefix)

    def _histogram(self, bucket: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows and entries of a bucket by further bits of their keys, up to `depth` bits."""
        n_parts = 1 << (depth - self._form.bits)
        n_rows, n_entries = np.zeros(n_parts, np.int64), np.zeros(n_parts, np.int64)
        for keys, counts in self._keys_and_counts(bucket, None):
            part = ((keys >> np.uint64(64 - depth)) & np.uint64(n_parts - 1)).astype(np.int64)
            n_rows += np.bincount(part, minlength=n_parts)
            np.add.at(n_entries, part, counts)
        return n_rows, n_entries

    def _keys_and_counts(self, bucket: int, segment: int | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for file, found in self._files(bucket, segment):
            n_rows = int(found["n_rows"])
            file.seek(int(found["offset"]) + _HEADER_BYTES)
            place, counts = np.fromfile(file, np.int64, 2 * n_rows).reshape(2, n_rows)
            yield self._form.keys(place), counts

    def _files(self, bucket: int, only: int | None, mode: str = "rb") -> Iterator[tuple[BinaryIO, np.void]]:
        """The open file and the index's entry of every segment of a bucket, run by run."""
        for run in range(self._n_runs) if self._form.seed is not None else (bucket,):
            segments = self._segments(bucket, run)
            if segments.size:
                with open(self._form.path(run), mode, buffering=0) as opened:
                    file = cast(BinaryIO, opened)
                    yield from ((file, found) for n, found in enumerate(segments) if only in (None, n))

    def _segments(self, bucket: int, run: int) -> np.ndarray:
        place = 0 if self._form.seed is None else bucket
        starts, segments = self._index(run)
        return segments[starts[place] : starts[place + 1]]

    def _index(self, run: int) -> tuple[np.ndarray, np.ndarray]:
        """Where the segments of a run's buckets begin among its segments, and these; a bounded number is kept."""
        if run not in self._indices:
            path = _index_path(self._form.path(run))
            n_starts = self._form.n_buckets + 1
            found = np.fromfile(path, np.int64, n_starts), np.fromfile(path, _SEGMENT, offset=8 * n_starts)
            if len(self._indices) >= _MOST_INDICES:
                self._indices.pop(next(iter(self._indices)))
            self._indices[run] = found
        return self._indices[run]

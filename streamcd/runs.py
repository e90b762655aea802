"""The external shuffle of `shuffle.py` for several writers and readers: runs of rows, each sorted by its leading key bits.

Whoever parses writes runs: files of segments, one segment or more for each bucket (leading bits of the keys), and an index
that tells where each bucket's are. Whoever writes shards gathers a bucket from all runs. Nothing is ever changed in
place, so processes need not wait for one another, and the order of the rows is that of `shuffle.Sorter`, whoever wrote
which run.
"""

from __future__ import annotations

import os
import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .errors import file_named
from .shuffle import ROW_BYTES, Arena, Rows, fill_with_segment, row_keys, segment_columns

MAX_BITS = 12
_MOST_OPEN = 128  # runs, of two files each; a process commonly may have 1,024
_SPLIT_LIMIT = 40  # bits at which buckets are not split further: by then no two rows share them

_SEGMENT = struct.Struct("=4q")


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


class Segment(NamedTuple):
    """Rows of a bucket, one after the other in a run's file."""

    offset: int
    n_rows: int
    n_entries: int
    index_bytes: int


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
        self._file = open(self._path, "wb", buffering=0)  # noqa: SIM115 - closed in close()
        self._offset = 0
        self._arena: Arena | None = None
        self._segments: list[list[Segment]] = [[] for _ in range(form.n_buckets)]

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
        with open(_index_path(self._path), "wb") as file:
            starts.astype(np.int64).tofile(file)
            for segment in (segment for bucket in self._segments for segment in bucket):
                file.write(_SEGMENT.pack(*segment))

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

    def _write(self, segments: list[Segment], rows: Rows, order: np.ndarray) -> None:
        assert self._arena is not None
        size = np.cumsum((rows.indptr[order + 1] - rows.indptr[order]) * self._arena.entry_bytes + ROW_BYTES)
        start = 0
        while start < len(order):
            limit = self._segment_bytes + (int(size[start - 1]) if start else 0)
            stop = max(int(np.searchsorted(size, limit, side="right")), start + 1)
            taken = rows.take(order[start:stop])
            columns = segment_columns(taken)
            segments.append(Segment(self._offset, taken.n_rows, taken.n_entries, taken.index.itemsize))
            self._offset += sum(column.nbytes for column in columns)
            with file_named(self._path):
                _write_columns(self._file.fileno(), columns)
            start = stop


def _write_columns(descriptor: int, columns: Sequence[np.ndarray]) -> None:
    """Append arrays to a file; one call to the system is enough unless the disk is nearly full."""
    left = [column.data.cast("B") for column in columns]
    while left:
        left = _without(left, os.writev(descriptor, left))


def _read_columns(descriptor: int, name: Path, offset: int, columns: Sequence[np.ndarray]) -> None:
    """Fill arrays from a place in a file on."""
    left = [column.data.cast("B") for column in columns]
    while left:
        n_bytes = os.preadv(descriptor, left, offset)
        if not n_bytes:
            raise OSError(f"{name}: a temporary file is shorter than what was written to it")
        left, offset = _without(left, n_bytes), offset + n_bytes


def _without(buffers: list[memoryview], n_bytes: int) -> list[memoryview]:
    """What is left of buffers after so many bytes."""
    while buffers and n_bytes >= len(buffers[0]):
        n_bytes -= len(buffers[0])
        buffers = buffers[1:]
    return [buffers[0][n_bytes:], *buffers[1:]] if buffers else []


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


class _Run:
    """A run's files, open for reading; what is read of the index is read for the occasion, and not kept."""

    def __init__(self, path: Path, n_buckets: int) -> None:
        self.path, self._n_buckets = path, n_buckets
        self._data = os.open(path, os.O_RDONLY)
        self._index = os.open(_index_path(path), os.O_RDONLY)

    def segments(self, bucket: int) -> list[Segment]:
        first, stop = struct.unpack("=2q", os.pread(self._index, 16, 8 * bucket))
        offset = 8 * (self._n_buckets + 1) + _SEGMENT.size * first
        found = os.pread(self._index, _SEGMENT.size * (stop - first), offset)
        return [Segment(*fields) for fields in _SEGMENT.iter_unpack(found)]

    def read(self, offset: int, columns: Sequence[np.ndarray]) -> None:
        _read_columns(self._data, self.path, offset, columns)

    def close(self) -> None:
        os.close(self._data)
        os.close(self._index)


class RunReader:
    """Reads buckets from all runs; a context, which closes their files.

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
        self._open: OrderedDict[int, _Run] = OrderedDict()

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *_: object) -> None:
        for run in self._open.values():
            run.close()
        self._open.clear()

    def cells(self, bucket: int) -> list[Cell]:
        """Cut a bucket into cells, in their order."""
        if self._form.seed is None:
            segments = self._run(bucket).segments(0)
            return [
                Cell(bucket, segment.n_rows, segment.n_entries, segment=number)
                for number, segment in enumerate(segments)
            ]
        depth, n_rows, n_entries = self._form.bits, np.zeros(1, np.int64), np.zeros(1, np.int64)
        for _, segment in self._segments(bucket, None):
            n_rows += segment.n_rows
            n_entries += segment.n_entries
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

    def load(self, cell: Cell) -> tuple[Rows, np.ndarray]:
        """A cell's rows, and their order; the memory is used again for the next one's."""
        if self._arena is None:
            self._arena = Arena(
                self._memory_bytes, self._index_dtype, self._form.value_dtype, self._form.weighted
            )
        self._arena.clear()
        for run, segment in self._segments(cell.bucket, cell.segment):
            self._read(run, segment, cell)
        rows = self._arena.rows()
        return rows, np.argsort(self._form.keys(rows.place))

    def _read(self, run: _Run, segment: Segment, cell: Cell) -> None:
        assert self._arena is not None
        if self._is_whole(cell):
            self._read_into(self._arena, run, segment)
            return
        # a part of a bucket that is too large as a whole: the segment is read, what belongs to the part is kept
        segment_arena = Arena(
            segment.n_rows * ROW_BYTES + segment.n_entries * self._entry_bytes + ROW_BYTES,
            self._index_dtype,
            self._form.value_dtype,
            self._form.weighted,
        )
        self._read_into(segment_arena, run, segment)
        rows = segment_arena.rows()
        chosen = np.flatnonzero(self._chosen(cell, self._form.keys(rows.place)))
        if chosen.size:
            self._arena.append(rows.take(chosen))

    def _read_into(self, arena: Arena, run: _Run, segment: Segment) -> None:
        entry0 = arena.n_entries
        room = arena.reserve(segment.n_rows, segment.n_entries)
        dtype = np.dtype(f"i{segment.index_bytes}")
        fill_with_segment(room, dtype, entry0, partial(run.read, segment.offset))

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
        for run, found in self._segments(bucket, segment):
            place, counts = np.empty((2, found.n_rows), np.int64)
            run.read(found.offset, [place, counts])
            yield self._form.keys(place), counts

    def _segments(self, bucket: int, only: int | None) -> Iterator[tuple[_Run, Segment]]:
        """Every segment of a bucket, or one alone, and the run that holds it, run by run."""
        if self._form.seed is None:  # runs are buckets
            run = self._run(bucket)
            yield from ((run, segment) for n, segment in enumerate(run.segments(0)) if only in (None, n))
            return
        for number in range(self._n_runs):
            run = self._run(number)
            yield from ((run, segment) for segment in run.segments(bucket))

    def _run(self, number: int) -> _Run:
        """An open run; a bounded number stays open."""
        if number not in self._open:
            if len(self._open) >= _MOST_OPEN:
                self._open.popitem(last=False)[1].close()
            self._open[number] = _Run(self._form.path(number), self._form.n_buckets)
        return self._open[number]

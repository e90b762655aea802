"""Rows in a random order that depends on a seed and nothing else, however many there are and whoever reads them.

Every row has a key, a bijective hash of (seed, source row), so that keys never tie. Whoever parses writes a run: a file of
segments, one segment or more for each bucket (leading bits of the keys), and an index that tells where each bucket's are.
Whoever writes shards gathers a bucket from all runs. Nothing is ever changed in place, so processes need not wait for one
another. Where one process does it all and the rows fit in its memory, they stay there.
"""

from __future__ import annotations

import os
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .errors import file_named
from .rows import ROW_BYTES, Arena, Rows

MAX_BITS = 12
_MOST_OPEN = 128  # runs, of two files each; a process commonly may have 1,024
_SPLIT_LIMIT = 40  # bits at which buckets are not split further: by then no two rows share them

_SEGMENT = struct.Struct("=4q")


def _mix(bits: np.ndarray) -> np.ndarray:
    """A bijection of 64-bit integers in which every bit depends on all (the finaliser of SplitMix64)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def row_keys(source_row: np.ndarray, seed: int) -> np.ndarray:
    """Hash the numbers of rows in the source, bijectively, in another way for every seed.

    Parameters
    ----------
    source_row : ndarray of int64
    seed : int
        Taken modulo 2^64.

    Returns
    -------
    ndarray of uint64
    """
    golden = 0x9E3779B97F4A7C15
    first, second = _mix(np.array([seed % 2**64, (seed + golden) % 2**64], dtype=np.uint64))
    return _mix(_mix(source_row.astype(np.uint64) ^ first) + second)


@dataclass(frozen=True)
class RunFormat:
    """Format of runs, on which their writers and readers have to agree.

    Attributes
    ----------
    directory : Path
    seed : int or None
        None keeps the order of the source: every run is a bucket, and runs follow one another.
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

    def keys(self, source_row: np.ndarray) -> np.ndarray:
        """Keys that rows are sorted by."""
        return source_row.astype(np.uint64) if self.seed is None else row_keys(source_row, self.seed)

    def sorted(self, rows: Rows) -> tuple[np.ndarray, np.ndarray | None]:
        """The rows' final order, and their keys in it; no keys where it is that of the source."""
        if self.seed is None:
            return np.arange(rows.n_rows), None
        keys = self.keys(rows.source_row)
        order = np.argsort(keys)
        return order, keys[order]

    def arena(self, n_bytes: int, wide: bool) -> Arena:
        """Room for rows; `wide` where there are indices that need 64 bits."""
        return Arena(n_bytes, np.dtype(np.int64 if wide else np.int32), self.value_dtype, self.weighted)


class Segment(NamedTuple):
    """Rows of a bucket, one after the other in a run's file."""

    offset: int
    n_rows: int
    n_entries: int
    index_bytes: int


class HeldRows:
    """All rows there are, in memory, and their final order; until they are released."""

    def __init__(self, rows: Rows, order: np.ndarray) -> None:
        self.rows, self.order = rows, order

    def release(self) -> None:
        """Give the memory back."""
        del self.rows, self.order


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
        if self._arena is not None and wide and self._arena.index_dtype != np.int64:
            self._spill()
            self._arena = None
        if self._arena is None:
            self._arena = self._form.arena(self._memory_bytes, wide)
        if not self._arena.has_room(rows.n_rows, rows.n_entries):
            self._spill()
        self._arena.append(rows)

    def close(self, hold: bool = False) -> HeldRows | None:
        """Write what is left, and the index; with `hold`, give all rows if they are in memory, and write nothing."""
        if hold and not self._offset and self._arena is not None:
            self._file.close()
            rows = self._arena.rows()
            return HeldRows(rows, self._form.sorted(rows)[0])
        self._spill()
        self._file.close()
        starts = np.cumsum([0, *(len(bucket) for bucket in self._segments)])
        with open(_index_path(self._path), "wb") as file:
            starts.astype(np.int64).tofile(file)
            for segment in (segment for bucket in self._segments for segment in bucket):
                file.write(_SEGMENT.pack(*segment))
        return None

    def _spill(self) -> None:
        if self._arena is None or not self._arena.n_rows:
            return
        rows, form = self._arena.rows(), self._form
        order, keys = form.sorted(rows)
        ends = np.array([rows.n_rows])
        if keys is not None:
            bucket = keys >> np.uint64(64 - form.bits)
            ends = np.searchsorted(bucket, np.arange(1, form.n_buckets + 1).astype(np.uint64))
        start = 0
        for segments, end in zip(self._segments, ends.tolist(), strict=True):
            self._write(segments, rows, order[start:end], self._arena.entry_bytes)
            start = end
        self._arena.clear()

    def _write(self, segments: list[Segment], rows: Rows, order: np.ndarray, entry_bytes: int) -> None:
        size = np.cumsum((rows.indptr[order + 1] - rows.indptr[order]) * entry_bytes + ROW_BYTES)
        start = 0
        while start < len(order):
            limit = self._segment_bytes + (int(size[start - 1]) if start else 0)
            stop = max(int(np.searchsorted(size, limit, side="right")), start + 1)
            taken = rows.take(order[start:stop])
            columns = _segment_columns(taken)
            segments.append(Segment(self._offset, taken.n_rows, taken.n_entries, taken.index.itemsize))
            self._offset += sum(column.nbytes for column in columns)
            with file_named(self._path):
                _write_columns(self._file.fileno(), columns)
            start = stop


def _segment_columns(rows: Rows) -> list[np.ndarray]:
    """Columns that are written; those that decide the order and the cut into chunks come first, to be read alone."""
    columns = (rows.source_row, np.diff(rows.indptr), rows.label, rows.weight, rows.index, rows.value)
    return [column for column in columns if column is not None and column.size]


def _write_columns(descriptor: int, columns: Sequence[np.ndarray]) -> None:
    """Append arrays to a file; one call to the system is enough unless the disk is nearly full."""
    left = [column.data.cast("B") for column in columns]
    while left:
        left = _without(left, os.writev(descriptor, left))


def _read_columns(descriptor: int, name: Path, offset: int, columns: Sequence[np.ndarray]) -> None:
    """Fill arrays from an offset in a file on."""
    left = [column.data.cast("B") for column in columns]
    while left:
        n_bytes = os.preadv(descriptor, left, offset)
        if not n_bytes:
            raise OSError(f"{name}: a temporary file is shorter than what was written to it")
        left, offset = _without(left, n_bytes), offset + n_bytes


def _without(buffers: list[memoryview], n_bytes: int) -> list[memoryview]:
    """Drop the first `n_bytes` of buffers."""
    while buffers and n_bytes >= len(buffers[0]):
        n_bytes -= len(buffers[0])
        buffers = buffers[1:]
    return [buffers[0][n_bytes:], *buffers[1:]] if buffers else []


def _index_path(path: Path) -> Path:
    return path.with_name(path.name + ".index")


# ---------------------------------------------------------------------------------------------------------------------
# Reading


def _fill_with_segment(
    room: Rows, index_dtype: np.dtype, entry0: int, read: Callable[[list[np.ndarray]], None]
) -> None:
    """Fill reserved room with a segment.

    Parameters
    ----------
    room : Rows
        Of an arena.
    index_dtype : dtype
        Of the indices in the segment.
    entry0 : int
        Entries in the arena before the room.
    read : callable
        Reads arrays, as `_segment_columns` has them, one after the other.
    """
    counts = np.empty(room.n_rows, np.int64)
    index = room.index if room.index.dtype == index_dtype else np.empty(room.n_entries, index_dtype)
    columns = (room.source_row, counts, room.label, room.weight, index, room.value)
    read([column for column in columns if column is not None and column.size])
    indptr = room.indptr
    np.cumsum(counts, out=indptr)
    indptr += entry0
    if index is not room.index:
        room.index[:] = index


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
        True where any index needs 64 bits.
    held : HeldRows, optional
        All rows, where no run was written: one bucket of one cell.
    """

    def __init__(
        self, form: RunFormat, n_runs: int, memory_bytes: int, wide: bool, held: HeldRows | None = None
    ) -> None:
        self._form, self._n_runs, self._memory_bytes = form, n_runs, memory_bytes
        self._wide, self._held = wide, held
        self._arena: Arena | None = None
        self._loaded: tuple[Cell, Rows, np.ndarray] | None = None
        self._open: OrderedDict[int, _Run] = OrderedDict()

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *_: object) -> None:
        for run in self._open.values():
            run.close()
        self._open.clear()

    @property
    def n_buckets(self) -> int:
        """Buckets, the rows of one after those of the other."""
        if self._held is not None:
            return 1
        return self._n_runs if self._form.seed is None else self._form.n_buckets

    def cells(self, bucket: int) -> list[Cell]:
        """Cut a bucket into cells, in their order."""
        if self._held is not None:
            return [Cell(0, self._held.rows.n_rows, self._held.rows.n_entries)]
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

    def _n_bytes(self, n_rows: Any, n_entries: Any) -> Any:
        entry_bytes = (8 if self._wide else 4) + self._form.value_dtype.itemsize
        return n_rows * ROW_BYTES + n_entries * entry_bytes

    def lengths(self, cell: Cell) -> np.ndarray:
        """The entries of a cell's rows, in their order."""
        if self._held is not None:
            return np.diff(self._held.rows.indptr)[self._held.order]
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
        if self._held is not None:
            return self._held.rows, self._held.order
        if self._loaded is None or self._loaded[0] != cell:
            if self._arena is not None:
                self._arena.clear()
            # a row may be larger than the memory for rows
            if self._arena is None or not self._arena.has_room(cell.n_rows, cell.n_entries):
                n_bytes = int(self._n_bytes(cell.n_rows, cell.n_entries))
                self._arena = self._form.arena(max(self._memory_bytes, n_bytes), self._wide)
            for run, segment in self._segments(cell.bucket, cell.segment):
                self._read(self._arena, run, segment, cell)
            rows = self._arena.rows()
            self._loaded = cell, rows, self._form.sorted(rows)[0]
        return self._loaded[1:]

    def _read(self, arena: Arena, run: _Run, segment: Segment, cell: Cell) -> None:
        if cell.segment is not None or cell.depth == self._form.bits:
            self._read_into(arena, run, segment)
            return
        # a part of a bucket that is too large as a whole: the segment is read, what belongs to the part is kept
        size = (segment.n_rows + 1) * ROW_BYTES + segment.n_entries * arena.entry_bytes
        segment_arena = self._form.arena(size, self._wide)
        self._read_into(segment_arena, run, segment)
        rows = segment_arena.rows()
        chosen = np.flatnonzero(self._chosen(cell, self._form.keys(rows.source_row)))
        if chosen.size:
            arena.append(rows.take(chosen))

    @staticmethod
    def _read_into(arena: Arena, run: _Run, segment: Segment) -> None:
        entry0 = arena.n_entries
        room = arena.reserve(segment.n_rows, segment.n_entries)
        dtype = np.dtype(f"i{segment.index_bytes}")
        _fill_with_segment(room, dtype, entry0, partial(run.read, segment.offset))

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
            source_row, counts = np.empty((2, found.n_rows), np.int64)
            run.read(found.offset, [source_row, counts])
            yield self._form.keys(source_row), counts

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

"""Sorting more rows than fit in memory into a random order that depends on a seed and nothing else.

Every row has a key, a bijective hash of (seed, place in the source), so that keys never tie. Rows gather in memory; when
no more fit they are scattered by the leading bits of their keys to bucket files, which are sorted one after the other.
A bucket that turns out too large is scattered again by the next bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numba import njit

from .errors import file_named

ROW_BYTES = 72
"""What a row takes in memory besides its entries: place, label, weight, offset, key, and its part of the sort."""

_MAX_BITS = 9  # 512 bucket files open at a time, half of what a process commonly may have
_UNKNOWN_BITS = 8  # where the input's size is not known; larger buckets are scattered again


def _mix(bits: np.ndarray) -> np.ndarray:
    """A bijection of 64-bit integers in which every bit depends on all (the finaliser of SplitMix64)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def row_keys(place: np.ndarray, seed: int) -> np.ndarray:
    """The sort key of each row: a bijective hash of its place, another one for every seed.

    Parameters
    ----------
    place : ndarray of int64
    seed : int
        Taken modulo 2^64.

    Returns
    -------
    ndarray of uint64
    """
    golden = 0x9E3779B97F4A7C15
    first, second = _mix(np.array([seed % 2**64, (seed + golden) % 2**64], dtype=np.uint64))
    return _mix(_mix(place.astype(np.uint64) ^ first) + second)


@dataclass
class Rows:
    """Rows in memory; columns as in `streamcd.schema.ChunkData`, `index` as in the text.

    `weight` is None where the rows have none.
    """

    place: np.ndarray
    label: np.ndarray
    weight: np.ndarray | None
    indptr: np.ndarray
    index: np.ndarray
    value: np.ndarray

    @property
    def n_rows(self) -> int:
        return len(self.place)

    @property
    def n_entries(self) -> int:
        return len(self.index)

    def take(self, rows: np.ndarray) -> Rows:
        """Copy the given rows, in the given order."""
        indptr = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(self.indptr[rows + 1] - self.indptr[rows], out=indptr[1:])
        index = np.empty(indptr[-1], self.index.dtype)
        value = np.empty(indptr[-1], self.value.dtype)
        _gather(rows, self.indptr, self.index, self.value, index, value)
        return Rows(
            self.place[rows],
            self.label[rows],
            None if self.weight is None else self.weight[rows],
            indptr,
            index,
            value,
        )


@njit(cache=True, nogil=True)
def _gather(
    rows: np.ndarray,
    indptr: np.ndarray,
    index: np.ndarray,
    value: np.ndarray,
    out_index: np.ndarray,
    out_value: np.ndarray,
) -> None:
    """Copy the entries of rows, one after the other."""
    end = 0
    for row in rows:
        for entry in range(indptr[row], indptr[row + 1]):
            out_index[end] = index[entry]
            out_value[end] = value[entry]
            end += 1


def concatenate(pieces: list[Rows]) -> Rows:
    """Join rows, in order."""
    if len(pieces) == 1:
        return pieces[0]
    ends = np.cumsum([0, *(piece.n_entries for piece in pieces)])
    indptr = [piece.indptr[:-1] + end for piece, end in zip(pieces, ends[:-1], strict=True)]
    weights = [piece.weight for piece in pieces if piece.weight is not None]
    return Rows(
        np.concatenate([piece.place for piece in pieces]),
        np.concatenate([piece.label for piece in pieces]),
        np.concatenate(weights) if weights else None,
        np.concatenate([*indptr, ends[-1:]]),
        np.concatenate([piece.index for piece in pieces]),
        np.concatenate([piece.value for piece in pieces]),
    )


class Arena:
    """Room for rows up to a number of bytes. Memory is taken as it is filled, whatever the shares of rows and entries.

    Parameters
    ----------
    n_bytes : int
        `ROW_BYTES` a row and the bytes of its entries are counted.
    index_dtype, value_dtype : dtype
    weighted : bool
    """

    def __init__(self, n_bytes: int, index_dtype: np.dtype, value_dtype: np.dtype, weighted: bool) -> None:
        self._n_bytes = n_bytes
        self.entry_bytes = index_dtype.itemsize + value_dtype.itemsize
        max_rows, max_entries = n_bytes // ROW_BYTES, n_bytes // self.entry_bytes
        self.n_rows = self.n_entries = 0
        # pages of these are taken by the system at their first use only
        self._all = Rows(
            np.empty(max_rows, np.int64),
            np.empty(max_rows),
            np.empty(max_rows) if weighted else None,
            np.empty(max_rows + 1, np.int64),
            np.empty(max_entries, index_dtype),
            np.empty(max_entries, value_dtype),
        )
        self._all.indptr[0] = 0

    @property
    def index_dtype(self) -> np.dtype:
        return self._all.index.dtype

    def has_room(self, n_rows: int, n_entries: int) -> bool:
        """Whether so much more can be appended."""
        rows, entries = self.n_rows + n_rows, self.n_entries + n_entries
        return rows * ROW_BYTES + entries * self.entry_bytes <= self._n_bytes

    def reserve(self, n_rows: int, n_entries: int) -> Rows:
        """Take room for rows; the caller fills the arrays, `indptr` (of ``n_rows`` ends) counting from the arena's start."""
        row, entry = self.n_rows, self.n_entries
        self.n_rows, self.n_entries = row + n_rows, entry + n_entries
        held, stop, entry_stop = self._all, self.n_rows, self.n_entries
        return Rows(
            held.place[row:stop],
            held.label[row:stop],
            None if held.weight is None else held.weight[row:stop],
            held.indptr[row + 1 : stop + 1],
            held.index[entry:entry_stop],
            held.value[entry:entry_stop],
        )

    def clear(self) -> None:
        """Forget all rows, keep the memory."""
        self.n_rows = self.n_entries = 0

    def append(self, rows: Rows) -> None:
        """Copy rows to the end."""
        entry = self.n_entries
        room = self.reserve(rows.n_rows, rows.n_entries)
        room.place[:], room.label[:] = rows.place, rows.label
        room.indptr[:] = rows.indptr[1:] + entry
        room.index[:], room.value[:] = rows.index, rows.value
        if room.weight is not None:
            room.weight[:] = rows.weight

    def rows(self) -> Rows:
        """All rows, without a copy."""
        held, n_rows, n_entries = self._all, self.n_rows, self.n_entries
        return Rows(
            held.place[:n_rows],
            held.label[:n_rows],
            None if held.weight is None else held.weight[:n_rows],
            held.indptr[: n_rows + 1],
            held.index[:n_entries],
            held.value[:n_entries],
        )


# ---------------------------------------------------------------------------------------------------------------------
# Bucket files: segments of rows, each a header and its columns


def segment_columns(rows: Rows) -> list[np.ndarray]:
    """What is written of rows; what decides the order and the cut into chunks comes first, to be read alone."""
    columns = (rows.place, np.diff(rows.indptr), rows.label, rows.weight, rows.index, rows.value)
    return [column for column in columns if column is not None and column.size]


def _write_segment(file: BinaryIO, rows: Rows) -> None:
    header = np.array([rows.n_rows, rows.n_entries, rows.index.itemsize], dtype=np.int64)
    with file_named(file.name):
        for column in (header, *segment_columns(rows)):
            _write_all(file, column.data.cast("B"))


def _write_all(file: BinaryIO, data: memoryview) -> None:
    while data:  # an unbuffered file may take a part, as when the disk is nearly full
        data = data[file.write(data) :]


def _read_header(file: BinaryIO) -> tuple[int, int, np.dtype] | None:
    header = file.read(24)
    if not header:
        return None
    n_rows, n_entries, index_bytes = np.frombuffer(header, dtype=np.int64).tolist()
    return n_rows, n_entries, np.dtype(f"i{index_bytes}")


def _read_columns(file: BinaryIO, columns: list[np.ndarray]) -> None:
    for column in columns:
        if file.readinto(column) != column.nbytes:  # type: ignore[attr-defined]
            raise OSError(f"{file.name}: a temporary file is shorter than what was written to it")


def fill_with_segment(
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
        Reads arrays, as `segment_columns` has them, one after the other.
    """
    counts = np.empty(room.n_rows, np.int64)
    index = room.index if room.index.dtype == index_dtype else np.empty(room.n_entries, index_dtype)
    columns = (room.place, counts, room.label, room.weight, index, room.value)
    read([column for column in columns if column is not None and column.size])
    np.cumsum(counts, out=room.indptr)
    room.indptr += entry0
    if index is not room.index:
        room.index[:] = index


@dataclass
class _Bucket:
    path: Path
    depth: int  # leading bits of the keys that all its rows share
    n_rows: int = 0
    n_entries: int = 0


class Sorter:
    """Takes rows in source order, gives them back in the order of their keys.

    Parameters
    ----------
    directory : Path
        Where bucket files go; made when the first one is needed.
    seed : int or None
        None keeps the order of the source.
    memory_bytes : int
        For rows in memory.
    value_dtype : dtype
    weighted : bool
    """

    def __init__(
        self, directory: Path, *, seed: int | None, memory_bytes: int, value_dtype: np.dtype, weighted: bool
    ) -> None:
        self._directory, self._seed = directory, seed
        self._memory_bytes = memory_bytes
        self._segment_bytes = max(memory_bytes // 32, 1 << 16)
        self._value_dtype, self._weighted = value_dtype, weighted
        # one arena is used again and again: a second one beside it would exceed the memory
        self._arena: Arena | None = None
        self._wide = False
        self._buckets: list[_Bucket] = []
        self._files: list[BinaryIO] = []

    def append(self, rows: Rows, wide: bool, share_read: float | None) -> None:
        """Take the next rows of the source; they are copied.

        Parameters
        ----------
        rows : Rows
        wide : bool
            Whether there are indices that need 64 bits.
        share_read : float, optional
            The part of the input that is taken with these rows; from it follows the number of buckets.
        """
        if wide and not self._wide:
            self._spill(share_read)
            self._wide, self._arena = True, None
        if self._arena is None:
            index_dtype = np.dtype(np.int64 if self._wide else np.int32)
            self._arena = Arena(self._memory_bytes, index_dtype, self._value_dtype, self._weighted)
        if not self._arena.has_room(rows.n_rows, rows.n_entries):
            self._spill(share_read)
        self._arena.append(rows)

    def _spill(self, share_read: float | None) -> None:
        if self._arena is not None and self._arena.n_rows:
            self._open_buckets(share_read)
            self._scatter(self._arena, self._buckets)
            self._arena.clear()

    def _open_buckets(self, share_read: float | None) -> None:
        if self._buckets:
            return
        bits = _UNKNOWN_BITS
        if share_read:  # aim at buckets of half the memory
            bits = min(max(int(np.ceil(np.log2(2 / share_read))), 1), _MAX_BITS)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._buckets = self._make_buckets("bucket", 0, 0 if self._seed is None else bits)

    def _make_buckets(self, name: str, depth: int, bits: int) -> list[_Bucket]:
        buckets = [_Bucket(self._directory / f"{name}-{i:03x}", depth + bits) for i in range(1 << bits)]
        self._files = [open(bucket.path, "wb", buffering=0) for bucket in buckets]  # noqa: SIM115
        return buckets

    def _close_files(self) -> None:
        for file in self._files:
            file.close()
        self._files = []

    def _ordered(self, rows: Rows) -> tuple[np.ndarray, np.ndarray | None]:
        """The rows' numbers in final order, and their keys in that order."""
        if self._seed is None:
            return np.arange(rows.n_rows), None
        keys = row_keys(rows.place, self._seed)
        order = np.argsort(keys)
        return order, keys[order]

    def _scatter(self, arena: Arena, buckets: list[_Bucket]) -> None:
        """Write all rows of an arena to the bucket files."""
        rows = arena.rows()
        order, keys = self._ordered(rows)
        ends = np.array([rows.n_rows])
        if keys is not None and len(buckets) > 1:
            # all keys share the bits above those that tell the buckets apart
            depth, bits = buckets[0].depth, len(buckets).bit_length() - 1
            number = (keys >> np.uint64(64 - depth)) & np.uint64((1 << bits) - 1)
            ends = np.searchsorted(number, np.arange(1, len(buckets) + 1).astype(np.uint64))
        start = 0
        for bucket, file, end in zip(buckets, self._files, ends.tolist(), strict=True):
            self._write(bucket, file, rows, order[start:end], arena.entry_bytes)
            start = end

    def _write(
        self, bucket: _Bucket, file: BinaryIO, rows: Rows, order: np.ndarray, entry_bytes: int
    ) -> None:
        counts = rows.indptr[order + 1] - rows.indptr[order]
        size = np.cumsum(counts * entry_bytes + ROW_BYTES)
        start = 0
        while start < len(order):
            limit = self._segment_bytes + (int(size[start - 1]) if start else 0)
            stop = max(int(np.searchsorted(size, limit, side="right")), start + 1)
            _write_segment(file, rows.take(order[start:stop]))
            start = stop
        bucket.n_rows += len(order)
        bucket.n_entries += int(counts.sum())

    def finish(self) -> int:
        """Take no more rows. Returns the bytes in bucket files; 0 where all rows are in memory."""
        if self._buckets:
            self._spill(None)
        self._close_files()
        return sum(bucket.path.stat().st_size for bucket in self._buckets)

    def sorted_rows(self) -> Iterator[tuple[Rows, np.ndarray]]:
        """Give all rows in their final order, once.

        Yields
        ------
        Rows, ndarray of int64
            Rows in memory, and their order. The memory is used again for the next ones.
        """
        assert self._arena is not None, "no rows were appended"
        if not self._buckets:
            rows = self._arena.rows()
            yield rows, self._ordered(rows)[0]
        while self._buckets:
            yield from self._sorted_bucket(self._buckets.pop(0))
        self._arena = None  # its memory is free for what comes next

    def _sorted_bucket(self, bucket: _Bucket) -> Iterator[tuple[Rows, np.ndarray]]:
        assert self._arena is not None
        self._arena.clear()
        if self._seed is not None and not self._arena.has_room(bucket.n_rows, bucket.n_entries):
            yield from self._split(bucket)
            return
        # in source order (no seed) the bucket is simply read through, an arena at a time
        for rows in self._read(bucket):
            yield rows, self._ordered(rows)[0]
        bucket.path.unlink()

    def _split(self, bucket: _Bucket) -> Iterator[tuple[Rows, np.ndarray]]:
        """Scatter a bucket by further bits of the keys, then sort the parts."""
        size = bucket.path.stat().st_size
        bits = min(max(int(np.ceil(np.log2(4 * size / self._memory_bytes))), 1), _MAX_BITS, 64 - bucket.depth)
        parts = self._make_buckets(bucket.path.name, bucket.depth, bits)
        for _ in self._read(bucket):
            assert self._arena is not None
            self._scatter(self._arena, parts)
        self._close_files()
        bucket.path.unlink()
        for part in parts:
            yield from self._sorted_bucket(part)

    def _read(self, bucket: _Bucket) -> Iterator[Rows]:
        """Read a bucket file through, as many segments at a time as fit in the arena."""
        arena = self._arena
        assert arena is not None
        arena.clear()
        with open(bucket.path, "rb") as file:
            while (header := _read_header(file)) is not None:
                n_rows, n_entries, segment_dtype = header
                if arena.n_rows and not arena.has_room(n_rows, n_entries):
                    yield arena.rows()
                    arena.clear()
                entry0 = arena.n_entries
                room = arena.reserve(n_rows, n_entries)
                fill_with_segment(room, segment_dtype, entry0, partial(_read_columns, file))
        if arena.n_rows:
            yield arena.rows()

    def close(self) -> None:
        """Close files that an error left open."""
        self._close_files()

"""Copies of the rows that shrinking has left active, by chunk: in unused memory of arenas, or in a file without a name.

Rows that have shrunk are not visited until all rows return, so that reads in between need the entries of the others only.
They are copied from the windows of a read that is made anyhow. A window that is loaded from the copies has all of its rows,
those without a copy as empty rows: order and arithmetic of the visits are those of a window read from the dataset. Nothing
of this is part of a run's state: after a kill the dataset is read again until its rows have been copied again.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import IO, Any

import numpy as np

from ..dataset.dataset import Dataset
from ..kernels.rows import gather_entries
from .arenas import item_ends
from .window import RowArena, Window

_WORTH = 0.5
"""Largest size of a copy on disk as a share of the bytes that it saves: written and read once, it costs no more."""

_MARGIN = 1.1  # windows of the same rows in another order differ by a few per cent

_COPIED = {
    "weight": "f8",
    "code": "i4",
    "fold": "u1",
}  # what an arena has of a row; and its target, if it has one
_COPY = np.dtype([("offset", "i8"), ("n_entries", "i8"), ("n_rows", "i8")])  # offset -1: there is none
_ALIGNED = 8


class ActiveRows:
    """Copies of the active rows of chunks; `arenas` are the stream's, `folder` is the directory of the file or None."""

    def __init__(self, dataset: Dataset, arenas: Sequence[RowArena], folder: Path | None) -> None:
        self._dataset, self._folder, self._capacity = dataset, folder, int(arenas[0].feature.size)
        self._n_rows, self._n_entries = np.diff(dataset.row_start), np.diff(dataset.entry_start)
        self._copied = ({"target": "f8"} if dataset.has_targets else {}) | _COPIED
        self._row = np.dtype([("n_entries", "u4"), ("row", "u4"), *self._copied.items()], align=True)
        # a copy in memory precedes one on disk, which may be older and larger
        self._copies = np.zeros((2, dataset.n_chunks), _COPY)
        self._in_memory, self._on_disk = self._copies
        # sizes of the copies of the rows that were last active
        self._expected = self._size(self._n_rows, self._n_entries)
        self._whole_bytes = int(self._expected.sum())
        # two regions of each arena; an offset in memory is that in a region, plus the region's number times stride
        arrays = [array for arena in arenas for array in (arena.feature, arena.value)]
        self._regions = [array.view(np.uint8) for array in arrays]
        self._entry_sizes = [array.itemsize for array in arrays]
        self._stride = _ALIGNED * (max(region.size for region in self._regions) // _ALIGNED + 1)
        self._holes: list[list[int]] = []  # memory for copies: offset and size
        self._lock = Lock()  # of the holes
        self._file: IO[bytes] | None = None
        self._in_use = False
        self._forget()
        # compile the kernel, or load it from the cache, before windows take memory
        nothing, entries = np.zeros(1, dtype=np.int64), [array[:0] for array in arrays[:2]]
        gather_entries(nothing[:0], nothing, *entries, *entries)

    def begin_read(
        self, windows: Sequence[np.ndarray], loaded: Any, all_rows: bool, rows_return: bool, keeps: bool
    ) -> list[int]:
        """Divide the arenas between windows and copies for a read; returns those for windows.

        `windows` holds the chunks of each, `loaded` the arena and the entries of the first one if it is there already. A
        read that needs `all_rows` is of the dataset; if `rows_return`, copies are out of date; `keeps` tells whether `keep`
        will be called. Windows get one arena, so that the next is not read ahead, if the other one is full of copies, or if
        all rows to keep are expected to fit in it.
        """
        if rows_return:
            self._forget()
        self._in_use = not all_rows and bool((self._copies["offset"] >= 0).any())
        while True:
            entries = self.entries()
            sizes = [entries[chunks].sum() for chunks in windows] if self._in_use else [self._capacity]
            largest = max(int(max(sizes)), loaded[1] if loaded else 0)
            # copies in memory: chunks, and the arena and entry where each begins
            held = np.flatnonzero(self._in_memory["offset"] >= 0)
            region, start = np.divmod(self._in_memory["offset"][held], self._stride)
            arena, entry = region // 2, start // np.take(self._entry_sizes, region)
            usable = [number for number in range(2) if (entry[arena == number] >= largest).all()]
            if usable:
                break
            # other copies of these chunks, or the dataset, have more entries
            self._in_memory["offset"][held[entry < largest]] = -1
        share = self._expected.sum() / max(self._whole_bytes, 1)
        front, later = (min(int(_MARGIN * n), self._capacity) for n in (largest, share * self._capacity))
        fronts = [front if number in usable else 0 for number in range(2)]
        if not self._divide(fronts) and keeps and len(usable) == 2:
            one = loaded[0] if loaded else 0
            if self._divide([front if number == one else later for number in range(2)]):
                return [one]
            self._divide(fronts)
        return usable

    @property
    def may_be_read_next(self) -> bool:
        """Check if the next read may be of copies."""
        return bool(self._holes) or bool((self._copies["offset"] >= 0).any())

    def has(self, chunk: int) -> bool:
        """Tell whether this read has to `load` a chunk, not to read it from the dataset."""
        return self._in_use and bool((self._copies["offset"][:, chunk] >= 0).any())

    def entries(self) -> np.ndarray:
        """Return the number of entries of every chunk as this read loads it; int64, shape (chunks,)."""
        if not self._in_use:
            return self._n_entries
        memory, disk = self._in_memory, self._on_disk
        entries = np.where(disk["offset"] >= 0, disk["n_entries"], self._n_entries)
        return np.where(memory["offset"] >= 0, memory["n_entries"], entries)

    def abandon_file(self) -> None:
        """Drop all copies, and make none on disk from now on."""
        self._forget()
        self._holes, self._in_use = [], False  # windows of this read may need all memory now
        self._folder = None
        self.close()

    def close(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _forget(self) -> None:
        self._copies["offset"] = -1
        self.disk_bytes = 0
        if self._file is not None:
            self._file.truncate(0)

    def keep(self, window: Window, columns: np.ndarray) -> None:
        """Copy the rows of a window with any of these flags, by chunk, where a copy saves reading; may raise `OSError`."""
        arena = window.arena
        if arena.active[: window.stop.max(initial=0)].all():
            return
        for chunk, start, stop in window.chunk_ranges():
            rows = np.flatnonzero(arena.active[start:stop, columns].any(axis=1))
            indptr = np.ascontiguousarray(arena.indptr[start : stop + 1])
            counts = indptr[rows + 1] - indptr[rows]
            n_entries = int(counts.sum())
            self._expected[chunk] = n_bytes = int(self._size(rows.size, n_entries))
            copies, offset = self._choose_place(chunk, n_bytes)
            if copies is None:
                continue
            data = np.empty(n_bytes, np.uint8) if copies is self._on_disk else self._memory(offset, n_bytes)
            records, feature, value = self._parts(data, rows.size, n_entries)
            records["row"], records["n_entries"] = rows, counts
            for name in self._copied:
                records[name] = getattr(arena, name)[start + rows]
            gather_entries(rows, indptr, arena.feature, arena.value, feature, value)
            if copies is self._on_disk:
                self._write(data, offset)
            copies[chunk] = offset, n_entries, rows.size

    def _choose_place(self, chunk: int, n_bytes: int) -> tuple[np.ndarray | None, int]:
        """Choose memory or disk for a copy, and where; None if it is not worth it."""
        memory, disk = self._in_memory[chunk], self._on_disk[chunk]
        if memory["offset"] >= 0:  # an older copy is larger, and is not needed again
            return (self._in_memory if n_bytes <= _WORTH * self._bytes(memory) else None), int(
                memory["offset"]
            )
        offset = self._allocate(n_bytes)
        if offset >= 0:
            return self._in_memory, offset
        now = self._dataset.chunk_bytes(chunk) if disk["offset"] < 0 else self._bytes(disk)
        is_worth = self._folder is not None and n_bytes <= _WORTH * now
        offset = self.disk_bytes if disk["offset"] < 0 else int(disk["offset"])
        return (self._on_disk if is_worth else None), offset

    def load(self, arena: RowArena, chunk: int, row_start: int, entry_start: int) -> int:
        """Copy a chunk's rows to an arena, and from disk to memory where there is room; returns the bytes read from disk."""
        from_disk = bool(self._in_memory["offset"][chunk] < 0)
        copy = (self._on_disk if from_disk else self._in_memory)[chunk].copy()
        n_entries, n_bytes = int(copy["n_entries"]), self._bytes(copy)
        offset = self._allocate(n_bytes) if from_disk else int(copy["offset"])
        data = np.empty(n_bytes, np.uint8) if offset < 0 else self._memory(offset, n_bytes)
        if from_disk:
            assert self._file is not None
            if os.preadv(self._file.fileno(), [data.data], int(copy["offset"])) < n_bytes:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(self._folder))
            self._in_memory[chunk] = offset, n_entries, copy["n_rows"]
        records, feature, value = self._parts(data, int(copy["n_rows"]), n_entries)
        counts = np.zeros(self._n_rows[chunk], dtype=np.int64)
        counts[records["row"]] = records["n_entries"]
        arena.indptr[row_start] = entry_start
        arena.indptr[row_start + 1 : row_start + counts.size + 1] = item_ends(counts, entry_start)
        for name in self._copied:
            getattr(arena, name)[row_start + records["row"].astype(np.int64)] = records[name]
        arena.feature[entry_start : entry_start + n_entries] = feature
        arena.value[entry_start : entry_start + n_entries] = value
        return n_bytes if from_disk else 0

    def _size(self, n_rows: np.ndarray | int, n_entries: np.ndarray | int) -> np.ndarray:
        """Compute the bytes of copies; never 0, so that no two in memory begin at the same place."""
        n_bytes = np.multiply(n_rows, self._row.itemsize) + np.multiply(n_entries, self._dataset.entry_bytes)
        return np.asarray(np.maximum(-(-n_bytes // _ALIGNED), 1) * _ALIGNED)

    def _bytes(self, copy: Any) -> int:
        return int(self._size(copy["n_rows"], copy["n_entries"]))

    def _parts(self, data: np.ndarray, n_rows: int, n_entries: int) -> tuple[np.ndarray, ...]:
        """Return views of a copy: records of its rows, features and values of its entries."""
        rows, first, second = (
            n_rows * self._row.itemsize,
            self._dataset.index_dtype,
            self._dataset.value_dtype,
        )
        swapped = first.itemsize < second.itemsize  # the wider ones come first, so that all are aligned
        first, second = (second, first) if swapped else (first, second)
        middle, stop = rows + n_entries * first.itemsize, rows + n_entries * self._dataset.entry_bytes
        entries = data[rows:middle].view(first), data[middle:stop].view(second)
        return data[:rows].view(self._row), entries[swapped], entries[not swapped]

    def _divide(self, fronts: Sequence[int]) -> bool:
        """Use what follows the first `fronts` entries of each arena for copies; returns whether all are expected to fit."""
        sizes = [fronts[number // 2] * size for number, size in enumerate(self._entry_sizes)]
        self._holes = [hole for number, size in enumerate(sizes) for hole in self._gaps(number, size)]
        missing = self._expected[self._in_memory["offset"] < 0].sum()
        return bool(missing <= sum(size for _, size in self._holes))

    def _gaps(self, number: int, start: int) -> Iterator[list[int]]:
        """Iterate over the parts of a region from `start` on that hold no copy: offset and size."""
        copies, base = self._in_memory, number * self._stride
        held = np.flatnonzero((copies["offset"] >= base) & (copies["offset"] < base + self._stride))
        held = held[np.argsort(copies["offset"][held])]
        stops = copies["offset"][held] + self._size(copies["n_rows"][held], copies["n_entries"][held])
        begins = [base - (-start // _ALIGNED) * _ALIGNED, *stops.tolist()]
        ends = [*copies["offset"][held].tolist(), base + self._regions[number].size // _ALIGNED * _ALIGNED]
        for begin, stop in zip(begins, ends, strict=True):
            if stop > begin:
                yield [begin, stop - begin]

    def _allocate(self, n_bytes: int) -> int:
        """Take memory from the end of the largest hole; -1 if it is too small."""
        with self._lock:
            hole = max(self._holes, key=lambda hole: hole[1], default=[0, 0])
            if hole[1] < n_bytes:
                return -1
            hole[1] -= n_bytes
            return hole[0] + hole[1]

    def _memory(self, offset: int, n_bytes: int) -> np.ndarray:
        number, start = divmod(offset, self._stride)
        return self._regions[number][start : start + n_bytes]

    def _write(self, data: np.ndarray, offset: int) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
        disk, end = os.fstatvfs(self._file.fileno()), offset + data.size
        # never more than half of the space: checkpoints need some too
        is_full = end > self.disk_bytes and end > disk.f_bavail * disk.f_frsize
        if is_full or os.pwrite(self._file.fileno(), data.data, offset) < data.size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._folder))
        self.disk_bytes = max(self.disk_bytes, end)

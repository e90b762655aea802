"""Copies of the rows that shrinking has left active, by chunk, in a file without a name.

Rows that have shrunk are not visited until all rows return, so that reads in between need the entries of the others only.
They are copied from the windows of a read that is made anyhow. A window that is loaded from the copies has all of its rows,
those without a copy as empty rows: order and arithmetic of the visits are those of a window read from the dataset. Nothing
of this is part of a run's state: after a kill the dataset is read again until its rows have been copied again.
"""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import IO

import numpy as np

from ..dataset.dataset import Dataset
from ..kernels.rows import take_column
from .arenas import RowArena, Window, item_ends

_WORTH = 0.5
"""Largest size of a copy as a share of the bytes that it saves: written and read once, it costs no more."""

_COPIED = {"weight": "f8", "code": "i4", "fold": "u1"}  # what an arena has of a row; and its target, if any
_COPY = np.dtype([("offset", "i8"), ("n_bytes", "i8"), ("n_rows", "i8"), ("n_entries", "i8")])


class ActiveRows:
    """Copies of the active rows of chunks, in a file in `folder`; `arena` is one of the stream's."""

    def __init__(self, dataset: Dataset, arena: RowArena, folder: Path) -> None:
        self._dataset = dataset
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._n_rows = np.diff(dataset.row_start)
        self._copied = ({"target": "f8"} if dataset.has_targets else {}) | _COPIED
        self._row = np.dtype([("n_entries", "u4"), ("row", "u4"), *self._copied.items()], align=True)
        self._copies = np.zeros(dataset.n_chunks, _COPY)
        self.n_entries = self._copies["n_entries"]  # int64, of every chunk's copy
        self._given_up = False
        self._forget()
        nothing = np.zeros(1, dtype=np.int64)
        for column in (arena.feature[:0], arena.value[:0]):  # compiled, or loaded, before windows take memory
            take_column(nothing[:0], nothing, column, column)

    def begin_read(self, all_rows: bool, rows_return: bool) -> np.ndarray:
        """Return the chunks that a read has to `load`, bool, of which it does not need `all_rows`.

        If `rows_return`, copies are out of date. Those that this read makes are for later ones.
        """
        if rows_return:
            self._forget()
        return (self._copies["offset"] >= 0) & (not all_rows)

    @property
    def exist(self) -> bool:
        """Check if there are copies."""
        return bool((self._copies["offset"] >= 0).any())

    def give_up(self) -> None:
        """Drop all copies, and make none from now on."""
        self._forget()
        self._given_up = True
        self.close()

    def close(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def keep(self, window: Window, columns: np.ndarray) -> None:
        """Copy the rows of a window with any of these flags, by chunk, where a copy saves reading; may raise `OSError`."""
        arena = window.arena
        if self._given_up or arena.active[: window.stop.max(initial=0)].all():
            return
        for chunk, start, stop in window.chunk_ranges():
            rows = np.flatnonzero(arena.active[start:stop, columns].any(axis=1))
            indptr = np.ascontiguousarray(arena.indptr[start : stop + 1])
            counts = indptr[rows + 1] - indptr[rows]
            n_entries = int(counts.sum())
            copy = self._copies[chunk]
            n_bytes = rows.size * self._row.itemsize + n_entries * self._dataset.entry_bytes
            now = self._dataset.chunk_bytes(chunk) if copy["offset"] < 0 else copy["n_bytes"]
            if n_bytes > _WORTH * now:
                continue
            records = np.zeros(rows.size, self._row)
            records["row"] = rows
            records["n_entries"] = counts
            for name in self._copied:
                records[name] = getattr(arena, name)[start + rows]
            feature, value = (np.empty(n_entries, array.dtype) for array in (arena.feature, arena.value))
            take_column(rows, indptr, arena.feature, feature)
            take_column(rows, indptr, arena.value, value)
            offset = self.disk_bytes if copy["offset"] < 0 else int(copy["offset"])
            self._write([records, feature, value], offset, n_bytes)
            self._copies[chunk] = offset, n_bytes, rows.size, n_entries

    def load(self, arena: RowArena, chunk: int, row_start: int, entry_start: int) -> int:
        """Copy a chunk's rows to an arena; returns the bytes read."""
        _, n_bytes, n_rows, n_entries = self._copies[chunk].tolist()
        records = np.empty(n_rows, self._row)
        entries = slice(entry_start, entry_start + n_entries)
        assert self._file is not None
        into = [records.view(np.uint8).data, arena.feature[entries].data, arena.value[entries].data]
        if os.preadv(self._file.fileno(), into, self._copies["offset"][chunk]) < n_bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self._folder))
        counts = np.zeros(self._n_rows[chunk], dtype=np.int64)
        counts[records["row"]] = records["n_entries"]
        arena.indptr[row_start] = entry_start
        arena.indptr[row_start + 1 : row_start + counts.size + 1] = item_ends(counts, entry_start)
        for name in self._copied:
            getattr(arena, name)[row_start + records["row"].astype(np.int64)] = records[name]
        return int(n_bytes)

    def _forget(self) -> None:
        self._copies["offset"] = -1
        self.disk_bytes = 0
        if self._file is not None:
            self._file.truncate(0)

    def _write(self, arrays: list[np.ndarray], offset: int, n_bytes: int) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
        disk = os.fstatvfs(self._file.fileno())
        end = offset + n_bytes
        # never more than half of the space: checkpoints need some too
        is_full = end > self.disk_bytes and end > disk.f_bavail * disk.f_frsize
        pieces = [array.view(np.uint8).data for array in arrays]
        if is_full or os.pwritev(self._file.fileno(), pieces, offset) < n_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._folder))
        self.disk_bytes = max(self.disk_bytes, end)

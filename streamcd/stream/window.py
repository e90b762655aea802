"""A window: chunks that are in memory together, decoded into the arrays of an arena."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

_LINE = 64  # bytes of a cache line


class RowArena:
    """Preallocated arrays into which chunks of rows are decoded, with the state of the rows.

    The scalars of a row are the fields of one record: rows are visited in random order, and separate arrays would cost a
    cache line each. With windows of 330,000 rows of 12 entries a visit took 190 ns per row with separate arrays, 125 with
    all of them prefetched, and 64 with records.
    """

    def __init__(
        self,
        record: np.dtype[Any],  # `RowLayout.record`
        widths: tuple[int, int],  # numbers and flags of a row's state
        dtypes: tuple[np.dtype[Any], np.dtype[Any]],
        n_rows: int,
        n_entries: int,
    ) -> None:
        # fields of a single record have no stride, and kernels would be compiled once more for them
        n_rows = max(n_rows, 2)
        rows = aligned_zeros(n_rows + 1, record)
        self.indptr = rows["indptr"]
        self.feature = np.empty(n_entries, dtype=dtypes[0])
        self.value = np.empty(n_entries, dtype=dtypes[1])
        self.code, self.weight, self.fold = (rows[name][:n_rows] for name in ("code", "weight", "fold"))
        self.fold[:] = 255  # no fold; stays if there are none
        # empty where rows have classes
        self.target = rows["target"][:n_rows] if "target" in (record.names or ()) else self.weight[:0]
        if "alpha" in (record.names or ()):
            self.alpha, self.active = rows["alpha"][:n_rows], rows["active"][:n_rows]
        else:
            self.alpha = aligned_zeros(n_rows * widths[0], np.dtype(np.float64)).reshape(n_rows, widths[0])
            self.active = np.empty((n_rows, widths[1]), dtype=np.uint8)


def aligned_zeros(n: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Allocate zeros aligned to a cache line, so that as few records, or groups of eight lanes, as possible straddle two."""
    memory = np.zeros(n * dtype.itemsize + _LINE, dtype=np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + n * dtype.itemsize].view(dtype)


class ColumnArena:
    """Preallocated arrays into which chunks of columns are decoded, the segments of a feature one after another.

    Column ``c`` has the entries ``indptr[c]:indptr[c + 1]``.
    """

    def __init__(self, dtypes: tuple[np.dtype[Any], np.dtype[Any]], n_columns: int, n_entries: int) -> None:
        self.indptr = np.zeros(n_columns + 1, dtype=np.int64)
        self.feature = np.empty(n_columns, dtype=np.int64)
        self.row = np.empty(n_entries, dtype=dtypes[0])
        self.value = np.empty(n_entries, dtype=dtypes[1])


@dataclass(frozen=True)
class Window:
    """Chunks that are in memory together."""

    read: int
    number: int  # in the read, which has `count` windows
    count: int
    chunks: np.ndarray
    arena: Any  # RowArena or ColumnArena
    start: np.ndarray  # each chunk's items in the arena
    stop: np.ndarray
    n_entries: int
    sweep: Callable[[], Iterator[int]] | None = None
    """For a window of one feature with more entries than the arena holds: load them in order, a segment at a time, to the
    front of the arena, and yield the number of entries of each segment. None for other windows."""

    def chunk_ranges(self) -> Iterator[tuple[int, int, int]]:
        """Iterate over the chunks, each with the start and stop of its items in the arena."""
        return zip(self.chunks.tolist(), self.start.tolist(), self.stop.tolist(), strict=True)


def empty_window(arena: RowArena | ColumnArena) -> Window:
    """Make a window without items, by which kernels are loaded.

    An arena of rows has two records at least: fields of fewer would have the type of contiguous arrays.
    """
    none = np.zeros(0, dtype=np.int64)
    return Window(0, 0, 1, none, arena, none, none, 0)

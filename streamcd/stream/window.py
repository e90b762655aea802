"""A window as solvers see it: chunks in memory at one time, decoded into the arrays of an arena."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

_LINE = 64  # bytes that the processor fetches at a time


class RowArena:
    """Preallocated arrays into which chunks of rows are decoded, and the state of the rows beside them.

    Scalars of a row lie together, as fields of one record: rows come in random order, and each array of its own would be
    another line to fetch: with windows of 330,000 rows of 12 entries a visit took 190 ns a row, 125 with all
    prefetched, and 64 with records.
    """

    def __init__(
        self,
        dtypes: tuple[np.dtype[Any], np.dtype[Any]],
        n_rows: int,
        n_entries: int,
        widths: tuple[int, int],
    ) -> None:
        record = _aligned_zeros(n_rows + 1, row_record(widths))
        self.indptr = record["indptr"]
        self.feature = np.empty(n_entries, dtype=dtypes[0])
        self.value = np.empty(n_entries, dtype=dtypes[1])
        self.code, self.weight, self.fold = (record[name][:n_rows] for name in ("code", "weight", "fold"))
        self.fold[:] = 255  # of every row where there are no folds
        if widths[1] == 1:
            self.alpha, self.active = record["alpha"][:n_rows], record["active"][:n_rows]
        else:
            self.alpha = np.empty((n_rows, widths[0]), dtype=np.float64)
            self.active = np.empty((n_rows, widths[1]), dtype=np.uint8)


def row_record(widths: tuple[int, int]) -> np.dtype[Any]:
    """Return the type of a row's record, with its state of `widths` numbers and flags where that is one lane's."""
    fields: list[tuple[Any, ...]] = [("indptr", np.int64), ("weight", np.float64)]
    if widths[1] == 1:
        fields += [("alpha", np.float64, (widths[0],))]
    fields += [("code", np.int32), ("fold", np.uint8)]
    if widths[1] == 1:
        fields += [("active", np.uint8, (1,))]
    return np.dtype(fields, align=True)


def _aligned_zeros(n_rows: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Return zeros that begin with a line of memory, so that as few records as possible lie across two."""
    memory = np.zeros(n_rows * dtype.itemsize + _LINE, dtype=np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + n_rows * dtype.itemsize].view(dtype)


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
    """Chunks in memory at one time."""

    read: int
    number: int  # in the read, of `count`
    count: int
    chunks: np.ndarray
    arena: Any  # RowArena or ColumnArena
    start: np.ndarray  # each chunk's items in the arena
    stop: np.ndarray
    n_entries: int
    sweep: Callable[[], Iterator[int]] | None = None
    """For a window of one feature with more entries than the arena, which holds none of them yet: loads them all, in order,
    a part at a time, to the front of the arena, and yields the number of each part."""

    def chunk_ranges(self) -> Iterator[tuple[int, int, int]]:
        """Iterate over the chunks, each with the start and stop of its items in the arena."""
        return zip(self.chunks.tolist(), self.start.tolist(), self.stop.tolist(), strict=True)

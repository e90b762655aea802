"""A window as solvers see it: chunks in memory at one time, decoded into the arrays of an arena."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np


class RowArena:
    """Preallocated arrays into which chunks of rows are decoded, and the state of the rows beside them."""

    def __init__(
        self,
        dtypes: tuple[np.dtype[Any], np.dtype[Any]],
        n_rows: int,
        n_entries: int,
        widths: tuple[int, int],
    ) -> None:
        self.indptr = np.zeros(n_rows + 1, dtype=np.int64)
        self.feature = np.empty(n_entries, dtype=dtypes[0])
        self.value = np.empty(n_entries, dtype=dtypes[1])
        self.code = np.empty(n_rows, dtype=np.int32)
        self.weight = np.empty(n_rows, dtype=np.float64)
        self.fold = np.full(n_rows, 255, dtype=np.uint8)  # of every row where there are no folds
        self.alpha = np.empty((n_rows, widths[0]), dtype=np.float64)
        self.active = np.empty((n_rows, widths[1]), dtype=np.uint8)


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

"""Hash table of strings, which numbers those of several columns."""

from __future__ import annotations

import numpy as np

from ..core.errors import UsageError
from ..core.memory_budget import format_size
from ..dataset.arrow_columns import Strings
from ..kernels import strings as kernels


class StringTable:
    """Hash table of the strings of several columns, numbered in order of appearance, within `memory_bytes`."""

    def __init__(self, memory_bytes: int | None = None) -> None:
        self._memory_bytes = memory_bytes
        self.size = 0
        """Number of strings so far."""
        self._arrays = kernels.HashTable(
            np.full(1 << 10, -1, np.int32),
            np.empty(1 << 9, np.uint64),
            np.empty(1 << 9, np.int32),
            np.zeros((1 << 9) + 1, np.int64),
            np.empty(1 << 13, np.uint8),
        )

    def number(self, column: int, strings: Strings, add: bool, name: str) -> np.ndarray:
        """Number different strings of a column; see `kernels.strings.number_strings`. `name` is for messages."""
        out = np.empty(strings.size, np.int64)
        if add:
            self._make_room(strings.size, int(strings.offsets[-1] - strings.offsets[0]), name)
        self.size = int(kernels.number_strings(column, strings, add, self._arrays, self.size, out))
        return out

    def _make_room(self, n_more: int, more_bytes: int, name: str) -> None:
        n, (slots, hashes, columns, ends, arena) = self.size, self._arrays
        room, n_bytes = n + n_more, int(ends[n]) + more_bytes
        if room > hashes.size:
            size = max(room, 3 * hashes.size // 2)
            hashes, columns, ends = enlarged(hashes, size), enlarged(columns, size), enlarged(ends, size + 1)
        if 2 * room > slots.size:
            slots = np.full(1 << (2 * room).bit_length(), -1, np.int32)
            kernels.fill_slots(hashes, n, slots)
        if n_bytes > arena.size:
            arena = enlarged(arena, max(n_bytes, 3 * arena.size // 2))
        self._arrays = kernels.HashTable(slots, hashes, columns, ends, arena)
        # an array exists twice when it is enlarged
        needed = 1.5 * sum(array.nbytes for array in self._arrays)
        if self._memory_bytes is not None and needed > self._memory_bytes:
            raise UsageError(
                f"column {name!r}: the dictionary of its categories takes more than the "
                f"{format_size(self._memory_bytes)} of --memory that are left for it, after {n:,} categories; hash them "
                "into 2^B features with --hash B (20, say), leave it out with --drop, or give a larger --memory"
            )

    def strings(self) -> Strings:
        """Return all strings, by number."""
        return Strings(self._arrays.arena[: self._arrays.ends[self.size]], self._arrays.ends[: self.size + 1])

    def columns(self) -> np.ndarray:
        """Return the column of every string, by number."""
        return self._arrays.columns[: self.size]


def enlarged(array: np.ndarray, size: int) -> np.ndarray:
    larger = np.empty(size, array.dtype)
    larger[: array.size] = array
    return larger

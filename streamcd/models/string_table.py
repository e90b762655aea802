"""Hash table of strings, which numbers those of several columns."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from ..core.errors import UsageError
from ..core.memory_budget import format_size
from ..dataset.arrow_columns import Strings
from ..kernels import tables as kernels

_MAX_SLOTS = 1 << 31


class StringTable:
    """Hash table of the strings of several columns, numbered in order of appearance, within `memory_bytes`."""

    def __init__(self, memory_bytes: int | None = None) -> None:
        self._memory_bytes = memory_bytes
        self._slots = np.full(1 << 10, -1, np.int32)
        self._hashes, self._columns = np.empty(1 << 9, np.uint64), np.empty(1 << 9, np.int32)
        self._ends, self._arena = np.zeros((1 << 9) + 1, np.int64), np.empty(1 << 13, np.uint8)
        self._state = np.zeros(3, np.int64)

    @property
    def size(self) -> int:
        """Number of strings so far."""
        return int(self._state[0])

    def number(self, column: int, strings: Strings, valid: np.ndarray, add: bool, name: str) -> np.ndarray:
        """Number strings of a column; see `kernels.tables.number_strings`. `name` is the column's name in messages."""
        out = np.empty(strings.size, np.int64)
        done = 0
        while True:
            done = kernels.number_strings(column, (*strings, valid), done, add, self._arrays(), out)
            if done == strings.size:
                return out
            self._grow(name)

    def _arrays(self) -> kernels.HashTable:
        return kernels.HashTable(
            self._slots, self._hashes, self._columns, self._ends, self._arena, self._state
        )

    def _grow(self, name: str) -> None:
        """Enlarge what is full, so that the string without room has one."""
        n, n_bytes, length = self._state.tolist()
        if n == self._hashes.size:
            self._hashes, self._columns = (enlarged(array, 2 * n) for array in (self._hashes, self._columns))
            self._ends = enlarged(self._ends, 2 * n + 1)
        if 2 * (n + 1) > self._slots.size:
            self._slots = np.full(min(2 * self._slots.size, _MAX_SLOTS), -1, np.int32)
            kernels.fill_slots(self._hashes, n, self._slots)
        if n_bytes + length > self._arena.size:
            self._arena = enlarged(self._arena, 2 * (n_bytes + length))
        if self._memory_bytes is not None and self.nbytes > self._memory_bytes:
            self._refuse(name, n, format_size(self._memory_bytes))

    def _refuse(self, name: str, n_strings: int, room: str) -> NoReturn:
        raise UsageError(
            f"column {name!r}: the dictionary of its categories takes more than the {room} of --memory that are left for "
            f"it, after {n_strings:,} categories; hash them into 2^B features with --hash B (20, say), leave it out with "
            "--drop, or give a larger --memory"
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the table while it grows: an array exists twice when it is enlarged."""
        return int(1.5 * sum(array.nbytes for array in self._arrays()))

    def strings(self) -> Strings:
        """Return all strings, by number."""
        n, n_bytes, _ = self._state.tolist()
        return Strings(self._arena[:n_bytes], self._ends[: n + 1])

    def columns(self) -> np.ndarray:
        """Return the column of every string, by number."""
        return self._columns[: self.size]


def enlarged(array: np.ndarray, size: int) -> np.ndarray:
    larger = np.empty(size, array.dtype)
    larger[: array.size] = array
    return larger

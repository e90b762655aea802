"""Sparse rows as kernels take them; without numba, so that a module which only names them need not load it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class CSR(NamedTuple):
    """Compressed sparse rows: row r has the entries ``indptr[r]:indptr[r + 1]``. Kernels that make rows fill the arrays."""

    indptr: np.ndarray  # (rows + 1,) int64
    feature: np.ndarray  # (entries,) integer: features, indices or codes
    value: np.ndarray  # (entries,) float

    @classmethod
    def room(cls, n_rows: int, n_entries: int, value_dtype: np.dtype) -> CSR:
        """Make arrays for up to so many entries."""
        indptr = np.zeros(n_rows + 1, np.int64)
        return cls(indptr, np.empty(n_entries, np.int64), np.empty(n_entries, value_dtype))

    def cut(self) -> CSR:
        """Return the rows without the room that they did not need."""
        n_entries = self.indptr[-1]
        return CSR(self.indptr, self.feature[:n_entries], self.value[:n_entries])


class SparseRows(NamedTuple):
    """Rows of entries: row ``r`` has those from ``start[r]`` to ``stop[r]`` of the 0-based `feature` and of `value`."""

    start: np.ndarray
    stop: np.ndarray
    feature: np.ndarray
    value: np.ndarray

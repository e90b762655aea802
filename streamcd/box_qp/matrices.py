"""Matrices Q of box-constrained quadratic programs: dense, in memory or on disk, or sparse.

A matrix on disk that is larger than memory is read in panels of rows; mapped pages are released panel by panel.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.memory_budget import format_size
from ..kernels import box_qp as kernels
from ..kernels.box_qp import Point

_PANEL_SHARE = 8  # of the memory; there are a panel, mapped pages, the previous panel, and a copy in float64


class Matrix:
    """A symmetric matrix of `n` variables, float32 or float64: in memory, or a map of a file, of which panels are read.

    A visit of a map reads the rows of its variables in the order of the visit. Fixed panels of neighbouring rows would be
    read faster if rows are small, but convergence is slower if the same variables are always visited together: the dual of
    an SVM of 400 rows took 11,306 passes to 1e-8 with 8 such panels, 1,980 with this order.

    Attributes
    ----------
    diagonal : ndarray of float64, shape (n,)
    probe : ndarray of float64, shape (n,)
        Product with a random vector: almost surely not 0 in a row that is not zero.
    """

    def __init__(self, Q: Any, n: int, memory: int) -> None:
        self.n = n
        self.is_sparse = hasattr(Q, "tocsr")
        try:
            rows = Q.tocsr() if self.is_sparse else Q if isinstance(Q, np.memmap) else np.asarray(Q)
        except ValueError:
            raise UsageError("Q: expected a square matrix, found rows of different lengths") from None
        if rows.dtype.kind not in "iubf":
            raise UsageError(f"Q: expected real numbers, found {rows.dtype}")
        if rows.shape != (n, n):
            raise UsageError(f"Q: expected shape ({n}, {n}) beside {n} entries of h, found {rows.shape}")
        self._dtype = rows.dtype if rows.dtype in (np.float32, np.float64) else np.dtype(np.float64)
        if not self.is_sparse and rows.flags.f_contiguous:
            rows = rows.T  # the same matrix
        row_bytes = max(n, 1) * self._dtype.itemsize
        self._memory = memory if isinstance(Q, np.memmap) and 2 * n * row_bytes > memory else None
        if self.is_sparse:
            rows = rows.astype(self._dtype, copy=False)
        elif self._memory is None:
            rows = np.ascontiguousarray(rows, dtype=self._dtype)
        elif 2 * row_bytes > memory:
            raise UsageError(
                f"memory {format_size(memory)} is too small: two rows of Q take {format_size(2 * row_bytes)}"
            )
        self._rows: Any = rows
        self._panel_rows = max(1, min(1 << 25, memory // _PANEL_SHARE) // row_bytes)
        # pages of a private map are not released: changes made to them would be lost
        self._map = None if getattr(rows, "mode", "c") == "c" else getattr(rows, "_mmap", None)
        self._faulted = 0  # bytes of pages since they were last released
        self._examine()

    def _examine(self) -> None:
        """Read the diagonal, and refuse a matrix that is not symmetric by its products with a random vector, in one read.

        Differences are relative to the largest entry: entries that are only rounding errors need not be symmetric.
        """
        x = np.random.default_rng(0).standard_normal(self.n)
        with np.errstate(all="ignore"):  # the first gradient reports numbers that are not finite
            if self.is_sparse:
                self.probe = self._rows @ x
                transposed = self._rows.T @ x
                self.diagonal = self._rows.diagonal().astype(np.float64)
                largest = float(np.abs(self._rows.data).max(initial=0))
            else:
                self.probe = np.empty(self.n)
                transposed = np.zeros(self.n)
                largest = 0.0
                self.diagonal = np.empty(self.n)
                for rows, block in self._blocks():
                    self.probe[rows] = block @ x
                    self.diagonal[rows] = block.diagonal(rows.start)
                    transposed += x[rows] @ block
                    largest = max(largest, float(block.max()), -float(block.min()))
            difference = np.abs(self.probe - transposed)
        worst = int(difference.argmax()) if self.n else 0
        if self.n and difference[worst] > 1e-6 * largest:
            raise UsageError(
                f"Q: expected a symmetric matrix, found that row {worst} is not column {worst}; pass (Q + Qᵀ)/2, which has "
                "the same objective"
            )

    def product(self, x: np.ndarray) -> np.ndarray:
        """Compute ``Qx`` in float64; one read of a map."""
        if self.is_sparse:
            return np.asarray(self._rows @ x, dtype=np.float64)
        out = np.empty(self.n)
        for rows, block in self._blocks():
            out[rows] = block @ x
        return out

    def visit(self, order: np.ndarray, point: Point) -> None:
        """Visit all active variables in the given order, and keep at least their gradients up to date."""
        matrix = self._rows
        columns = np.sort(order)
        if self.is_sparse:
            kernels.visit_sparse(order, matrix.indptr, matrix.indices, matrix.data, self.diagonal, point)
        elif self._memory is None:
            kernels.visit_dense(order, order, matrix, columns, self.diagonal, point)
        else:
            for start in range(0, order.size, self._panel_rows):
                rows = order[start : start + self._panel_rows]
                panel = self._panel(rows)
                kernels.visit_dense(rows, np.arange(rows.size), panel, columns, self.diagonal, point)

    def _blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield all rows in float64, without a full copy of a float32 matrix."""
        step = max(self.n, 1) if self._dtype == np.float64 else 512
        step = step if self._memory is None else min(step, self._panel_rows)
        for start in range(0, self.n, step):
            rows = slice(start, min(start + step, self.n))
            block = self._rows[rows] if self._memory is None else self._panel(np.arange(start, rows.stop))
            yield rows, block.astype(np.float64, copy=False)

    def _panel(self, rows: np.ndarray) -> np.ndarray:
        """Copy rows of a map, whose pages are released when they take an eighth of the memory."""
        assert self._memory is not None
        panel = np.empty((rows.size, self.n), dtype=self._dtype)
        for target, row in zip(panel, rows.tolist(), strict=True):
            target[:] = self._rows[row]
            self._faulted += target.nbytes + (1 << 21)  # a fault may map a huge page of the page cache
            is_full = self._faulted > self._memory // _PANEL_SHARE
            if is_full and self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
                self._map.madvise(mmap.MADV_DONTNEED)
                self._faulted = 0
        return panel

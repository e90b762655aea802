"""Matrices Q of box-constrained quadratic programs: dense, in memory or on disk, or sparse.

A matrix on disk that is larger than memory is read in panels of rows; mapped pages are released panel by panel.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from ..core.errors import UsageError
from ..core.memory_budget import format_size
from ..kernels import box_qp as kernels
from ..kernels.box_qp import Point

PANEL_BYTES = 1 << 25
"""Size of a panel of rows of a matrix on disk, if memory allows it."""


# a panel, mapped pages, the previous panel and a copy take half of the memory, gathered entries the other half
_PANEL_SHARE = 8
_FAULT_BYTES = 1 << 21  # a fault may map a huge page of the page cache
_SYMMETRY = 1e-6  # largest difference of Q[i, j] and Q[j, i], relative to the largest entry
_TILE = 512  # rows and columns compared at a time; for a matrix on disk as memory allows, up to four times as many


class Matrix(Protocol):
    """Q of `n` variables, in one of its forms of storage."""

    n: int
    diagonal: np.ndarray

    def product(self, x: np.ndarray) -> np.ndarray:
        """Compute ``Qx``."""

    def visit(self, order: np.ndarray, point: Point) -> None:
        """Visit all active variables in the given order, and keep at least their gradients up to date."""

    def gather(self, active: np.ndarray) -> Matrix | None:
        """Copy the rows and columns of the active variables into memory; None if Q is in memory, or they do not fit."""


def make_matrix(Q: Any, n: int, memory: int) -> Matrix:
    """Make a `Matrix` of `n` variables from an array, a memory map or a sparse matrix.

    Raises
    ------
    UsageError
        If its shape or type is wrong, it is not symmetric, or two of its rows do not fit in `memory` bytes.
    """
    if hasattr(Q, "tocsr"):
        return SparseMatrix(Q.tocsr(), n)
    try:
        dense = Q if isinstance(Q, np.memmap) else np.asarray(Q)
    except ValueError:
        raise UsageError("Q: expected a square matrix, found rows of different lengths") from None
    if dense.dtype.kind not in "iubf":
        raise UsageError(f"Q: expected real numbers, found {dense.dtype}")
    if dense.shape != (n, n):
        raise UsageError(f"Q: expected shape ({n}, {n}) beside {n} entries of h, found {dense.shape}")
    if not dense.flags.c_contiguous and dense.flags.f_contiguous:
        dense = dense.T  # the same matrix
    dtype = float_type(dense)
    if isinstance(Q, np.memmap) and 2 * dense.size * dtype.itemsize > memory:
        return MappedMatrix(dense, memory)
    return DenseMatrix(np.ascontiguousarray(dense, dtype=dtype))


def float_type(matrix: np.ndarray) -> np.dtype[Any]:
    """Return the dtype for the kernels: float32 and float64 as they are, float64 for all others."""
    return matrix.dtype if matrix.dtype in (np.float32, np.float64) else np.dtype(np.float64)


def refuse_asymmetric(matrix: np.ndarray, tile: int, read: Callable[[slice, slice], np.ndarray]) -> None:
    """Refuse a square matrix that is not symmetric, comparing tiles of `tile` rows and columns that `read` returns.

    Differences are relative to the largest entry: entries that are only rounding errors need not be symmetric.
    """
    worst, worst_entry, largest, n = 0.0, (0, 0), 0.0, matrix.shape[0]
    for a in range(0, n, tile):
        for b in range(a, n, tile):
            rows, columns = slice(a, a + tile), slice(b, b + tile)
            upper = read(rows, columns)
            with np.errstate(invalid="ignore"):  # the first product reports numbers that are not finite
                difference = np.abs(upper - read(columns, rows).T)
            largest = max(largest, float(upper.max()), -float(upper.min()))
            at = int(difference.argmax())
            if difference.flat[at] > worst:
                worst = float(difference.flat[at])
                worst_entry = a + at // difference.shape[1], b + at % difference.shape[1]
    if worst > _SYMMETRY * largest:
        i, j = worst_entry
        raise UsageError(
            f"Q: expected a symmetric matrix, found Q[{i}, {j}] = {matrix[i, j]:g} and Q[{j}, {i}] = {matrix[j, i]:g}; "
            "pass (Q + Qᵀ)/2, which has the same objective"
        )


# ---------------------------------------------------------------------------------------------------------------------
# In memory


class _InMemory:
    def gather(self, active: np.ndarray) -> Matrix | None:
        return None


class DenseMatrix(_InMemory):
    """A full matrix in memory, float32 or float64, C order; `checked` if it is known to be symmetric."""

    def __init__(self, matrix: np.ndarray, *, checked: bool = False) -> None:
        self._matrix, self.n = matrix, matrix.shape[0]
        self.diagonal = matrix.diagonal().astype(np.float64)
        if not checked:
            refuse_asymmetric(matrix, _TILE, lambda rows, columns: matrix[rows, columns])

    def product(self, x: np.ndarray) -> np.ndarray:
        """Compute ``Qx`` in float64, without a full copy of a float32 matrix."""
        if self._matrix.dtype == np.float64:
            return np.asarray(self._matrix @ x)
        blocks = [
            self._matrix[start : start + _TILE].astype(np.float64) @ x for start in range(0, self.n, _TILE)
        ]
        return np.concatenate(blocks) if blocks else np.zeros(0)

    def visit(self, order: np.ndarray, point: Point) -> None:
        kernels.visit_dense(order, order, self._matrix, np.sort(order), self.diagonal, point)


# ---------------------------------------------------------------------------------------------------------------------
# On disk


class _Map:
    """Memory map under an array: counts the pages that reading faults in, and releases them at an eighth of the memory.

    Pages of a private map are not released: changes made to them would be lost.
    """

    def __init__(self, matrix: np.ndarray, memory: int) -> None:
        private = getattr(matrix, "mode", "c") == "c"
        self._map = None if private else getattr(matrix, "_mmap", None)
        self._allowed, self._seen = memory // _PANEL_SHARE, 0

    def read(self, values: np.ndarray, out: np.ndarray) -> None:
        """Copy adjacent entries from the map."""
        out[:] = values
        self._seen += values.nbytes + _FAULT_BYTES
        if self._seen > self._allowed and self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
            self._seen = 0


def panel_entries(memory: int, n: int, itemsize: int) -> int:
    """Return the number of entries of a panel, at least a row; refuse a memory too small for two rows."""
    row_bytes = max(n, 1) * itemsize
    if 2 * row_bytes > memory:
        raise UsageError(
            f"memory {format_size(memory)} is too small: two rows of Q take {format_size(2 * row_bytes)}"
        )
    return max(row_bytes, min(PANEL_BYTES, memory // _PANEL_SHARE)) // itemsize


class MappedMatrix:
    """A full matrix on disk. A visit reads the rows of its variables in the order of the visit, a panel at a time.

    Fixed panels of neighbouring rows would be read faster if rows are small, but convergence is slower if the same variables
    are always visited together: the dual of an SVM of 400 rows took 11,306 passes to 1e-8 with 8 such panels, 1,980 with
    this order.
    """

    def __init__(self, matrix: np.ndarray, memory: int) -> None:
        self._matrix, self.n, self._memory = matrix, matrix.shape[0], memory
        self._dtype, self._map = float_type(matrix), _Map(matrix, memory)
        self._rows = panel_entries(memory, self.n, self._dtype.itemsize) // self.n
        # one read of the matrix; memory holds a tile, its mirror image, their difference and its absolute value, as float64
        refuse_asymmetric(matrix, max(1, min(4 * _TILE, math.isqrt(memory // 64))), self._tile)
        self.diagonal = np.empty(self.n)
        for rows, panel in self._panels(np.arange(self.n)):
            self.diagonal[rows] = panel[np.arange(rows.size), rows]

    def _tile(self, rows: slice, columns: slice) -> np.ndarray:
        part = self._matrix[rows, columns]
        out = np.empty(part.shape, dtype=self._dtype)
        for values, target in zip(part, out, strict=True):
            self._map.read(values, target)
        return out

    def _panels(self, order: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Read rows in the given order; yields panels, as the numbers of the rows and their entries."""
        for start in range(0, order.size, self._rows):
            rows = order[start : start + self._rows]
            panel = np.empty((rows.size, self.n), dtype=self._dtype)
            for i, row in enumerate(rows.tolist()):
                self._map.read(self._matrix[row], panel[i])
            yield rows, panel

    def product(self, x: np.ndarray) -> np.ndarray:
        """Compute ``Qx`` in one read."""
        out = np.empty(self.n)
        for rows, panel in self._panels(np.arange(self.n)):
            out[rows] = panel.astype(np.float64, copy=False) @ x
        return out

    def visit(self, order: np.ndarray, point: Point) -> None:
        """See `Matrix`; reads the rows of `order`."""
        columns = np.sort(order)
        for rows, panel in self._panels(order):
            kernels.visit_dense(rows, np.arange(rows.size), panel, columns, self.diagonal, point)

    def gather(self, active: np.ndarray) -> Matrix | None:
        """Copy the active variables' rows and columns; None if they do not fit in half of the memory."""
        if 2 * active.size**2 * self._dtype.itemsize > self._memory:
            return None
        out = np.empty((active.size, active.size), dtype=self._dtype)
        start = 0
        for rows, panel in self._panels(active):
            out[start : start + rows.size] = panel[:, active]
            start += rows.size
        return DenseMatrix(out, checked=True)


# ---------------------------------------------------------------------------------------------------------------------
# Sparse


class SparseMatrix(_InMemory):
    """Compressed sparse rows; repeated entries are added."""

    def __init__(self, rows: Any, n: int) -> None:
        if rows.shape != (n, n):
            raise UsageError(f"Q: expected shape ({n}, {n}) beside {n} entries of h, found {rows.shape}")
        if rows.dtype.kind not in "iubf":
            raise UsageError(f"Q: expected real numbers, found {rows.dtype}")
        rows = rows.astype(float_type(rows), copy=False)
        difference = abs(rows - rows.T)
        if difference.nnz and difference.max() > _SYMMETRY * abs(rows).max():
            raise UsageError("Q: expected a symmetric matrix; pass (Q + Qᵀ)/2, which has the same objective")
        self._rows, self.n = rows, n
        self.diagonal = rows.diagonal().astype(np.float64)

    def product(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self._rows @ x, dtype=np.float64)

    def visit(self, order: np.ndarray, point: Point) -> None:
        rows = self._rows
        kernels.visit_sparse(order, rows.indptr, rows.indices, rows.data, self.diagonal, point)

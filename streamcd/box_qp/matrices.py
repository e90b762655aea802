"""Matrices Q of box-constrained quadratic programs: dense, in memory or on disk, or sparse.

A matrix on disk that is larger than memory is read in panels of rows; mapped pages are released panel by panel.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator
from typing import Any

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


def make_matrix(Q: Any, n: int, memory: int) -> Matrix:
    """Make a matrix of `n` variables from an array, a memory map or a sparse matrix.

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
        return FullMatrix(dense, memory)
    return FullMatrix(np.ascontiguousarray(dense, dtype=dtype))


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


class FullMatrix:
    """A full matrix, float32 or float64: in memory in C order, or a memory map, of which panels of rows are read.

    A visit of a map reads the rows of its variables in the order of the visit. Fixed panels of neighbouring rows would be
    read faster if rows are small, but convergence is slower if the same variables are always visited together: the dual of
    an SVM of 400 rows took 11,306 passes to 1e-8 with 8 such panels, 1,980 with this order.

    Parameters
    ----------
    memory : int, optional
        Bytes for panels of a map and for entries gathered from it; None if the matrix is in memory.
    checked : bool
        Whether the matrix is known to be symmetric.
    """

    def __init__(self, matrix: np.ndarray, memory: int | None = None, *, checked: bool = False) -> None:
        self._matrix, self.n, self._memory = matrix, matrix.shape[0], memory
        self._dtype, tile = float_type(matrix), _TILE
        if memory is not None:
            # pages of a private map are not released: changes made to them would be lost
            self._map = None if getattr(matrix, "mode", "c") == "c" else getattr(matrix, "_mmap", None)
            self._faulted = 0  # bytes of pages since they were last released
            self._panel_rows = panel_entries(memory, self.n, self._dtype.itemsize) // self.n
            # memory holds a tile, its mirror image, their difference and its absolute value, as float64
            tile = max(1, min(4 * _TILE, math.isqrt(memory // 64)))
        if not checked:
            refuse_asymmetric(matrix, tile, self._tile)
        parts = [panel[places, rows] for rows, places, panel in self._panels(np.arange(self.n))]
        self.diagonal = np.concatenate(parts).astype(np.float64)

    def product(self, x: np.ndarray) -> np.ndarray:
        """Compute ``Qx`` in float64, without a full copy of a float32 matrix; one read of a map."""
        out = np.empty(self.n)
        step = _TILE if self._dtype == np.float32 else max(self.n, 1)
        for rows, places, panel in self._panels(np.arange(self.n)):
            for start in range(0, places.size, step):
                part = slice(start, min(start + step, places.size))
                out[rows[part]] = panel[part].astype(np.float64, copy=False) @ x
        return out

    def visit(self, order: np.ndarray, point: Point) -> None:
        """Visit all active variables in the given order, and keep at least their gradients up to date."""
        columns = np.sort(order)
        for rows, places, panel in self._panels(order):
            kernels.visit_dense(rows, places, panel, columns, self.diagonal, point)

    def gather(self, active: np.ndarray) -> FullMatrix | None:
        """Copy the rows and columns of the active variables from a map; None if they do not fit in half of the memory."""
        if self._memory is None or 2 * active.size**2 * self._dtype.itemsize > self._memory:
            return None
        out = np.empty((active.size, active.size), dtype=self._dtype)
        start = 0
        for rows, _, panel in self._panels(active):
            out[start : start + rows.size] = panel[:, active]
            start += rows.size
        return FullMatrix(out, checked=True)

    def _panels(self, order: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Iterate over the rows in the given order: panels, each with the numbers of its rows and their places in it."""
        if self._memory is None:
            yield order, order, self._matrix
            return
        for start in range(0, order.size, self._panel_rows):
            rows = order[start : start + self._panel_rows]
            panel = np.empty((rows.size, self.n), dtype=self._dtype)
            for i, row in enumerate(rows.tolist()):
                self._read(self._matrix[row], panel[i])
            yield rows, np.arange(rows.size), panel

    def _tile(self, rows: slice, columns: slice) -> np.ndarray:
        part = self._matrix[rows, columns]
        if self._memory is None:
            return part
        out = np.empty(part.shape, dtype=self._dtype)
        for values, target in zip(part, out, strict=True):
            self._read(values, target)
        return out

    def _read(self, values: np.ndarray, out: np.ndarray) -> None:
        """Copy adjacent entries of the map; its pages are released when they take an eighth of the memory."""
        assert self._memory is not None
        out[:] = values
        self._faulted += values.nbytes + _FAULT_BYTES
        is_full = self._faulted > self._memory // _PANEL_SHARE
        if is_full and self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
            self._faulted = 0


def panel_entries(memory: int, n: int, itemsize: int) -> int:
    """Return the number of entries of a panel, at least a row; refuse a memory too small for two rows."""
    row_bytes = max(n, 1) * itemsize
    if 2 * row_bytes > memory:
        raise UsageError(
            f"memory {format_size(memory)} is too small: two rows of Q take {format_size(2 * row_bytes)}"
        )
    return max(row_bytes, min(PANEL_BYTES, memory // _PANEL_SHARE)) // itemsize


class SparseMatrix:
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
        """Compute ``Qx``."""
        return np.asarray(self._rows @ x, dtype=np.float64)

    def visit(self, order: np.ndarray, point: Point) -> None:
        """Visit all active variables in the given order, and keep all gradients up to date."""
        rows = self._rows
        kernels.visit_sparse(order, rows.indptr, rows.indices, rows.data, self.diagonal, point)

    def gather(self, active: np.ndarray) -> None:
        """Return None: all of it is in memory."""


Matrix = FullMatrix | SparseMatrix

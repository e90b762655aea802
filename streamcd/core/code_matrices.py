"""Code matrices, shape (classes, weight vectors): the sign of each class for each vector; 0 leaves the class out."""

from __future__ import annotations

import numpy as np


def diagonal_view(n_rows: int, n_columns: int, own: float, rest: float, dtype: type) -> np.ndarray:
    """Make a matrix of `own` where the column, modulo `n_rows`, is the row, and of `rest` elsewhere.

    It is read-only and takes the memory of a row and a column: along each diagonal all elements are one in memory.
    """
    band: np.ndarray = np.full(n_rows - 1 + n_columns, rest, dtype)
    band[n_rows - 1 :: n_rows] = own
    strides = -band.itemsize, band.itemsize
    return np.lib.stride_tricks.as_strided(band[n_rows - 1 :], (n_rows, n_columns), strides, writeable=False)


def default_code(loss: str, n_classes: int) -> np.ndarray:
    """The code matrix of a loss where none is given: the identity, or one-vs-rest (of two classes, a single vector)."""
    if loss in ("crammer_singer", "twin"):
        return diagonal_view(n_classes, n_classes, 1, 0, np.int8)
    if n_classes == 2:
        return np.array([[-1], [1]], dtype=np.int8)
    return diagonal_view(n_classes, n_classes, 1, -1, np.int8)


def has_vector_per_class(code: np.ndarray) -> bool:
    """Tell a matrix with 1 on the diagonal, and one smaller number everywhere else."""
    n = len(code)
    if code.shape != (n, n):
        return False
    rest = min(code[0, -1], 0)
    # row by row: of many classes the matrix may be a view that is larger than the memory
    return all(code[r, r] == 1 and np.count_nonzero(code[r] == rest) == n - 1 for r in range(n))

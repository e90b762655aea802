"""Symmetric matrices by their lower triangle alone, row after row: half the memory, and each pair of features has one place.

Row i begins at ``i (i + 1) / 2``, so the first numbers of a triangle are that of the first features.
"""

from __future__ import annotations

import numpy as np

from .compile import inlined, kernel

PANEL = 32
"""Columns of a matrix that are factored at a time, a multiple of four."""


def triangle_size(n):
    """Count the numbers of the triangle of n features."""
    return n * (n + 1) // 2


def diagonal_places(n):
    """Return where the diagonal is in the triangle of n features, (n,)."""
    return np.cumsum(np.arange(1, n + 1)) - 1


@inlined
def row_place(i):
    """Return where row i begins; it ends where the next one begins."""
    return i * (i + 1) // 2


@kernel
def unfold(triangle, order, matrix):
    """Write the whole matrix of some features, in their order, (k,), to `matrix`, (k, k)."""
    for i in range(order.size):
        for j in range(i + 1):
            a, b = max(order[i], order[j]), min(order[i], order[j])
            matrix[i, j] = matrix[j, i] = triangle[row_place(a) + b]


@kernel
def take_scaled(triangle, chosen, scale, part):
    """Write the triangle of chosen features, ascending, each divided by its scale, to `part`."""
    for i in range(chosen.size):
        row = triangle[row_place(chosen[i]) : row_place(chosen[i] + 1)]
        own = part[row_place(i) : row_place(i + 1)]
        for j in range(i + 1):
            own[j] = row[chosen[j]] / scale[j] / scale[i]


@kernel
def fold(matrix, chosen, part):
    """Write the triangle of chosen features of a whole symmetric matrix to `part`."""
    for i in range(chosen.size):
        row, own = matrix[chosen[i]], part[row_place(i) : row_place(i + 1)]
        for j in range(i + 1):
            own[j] = row[chosen[j]]


@kernel
def multiply(triangle, x, product):
    """Write the product of a matrix and a vector to `product`."""
    for i in range(x.size):
        row, total = triangle[row_place(i) : row_place(i + 1)], 0.0
        for j in range(i):
            total += row[j] * x[j]
            product[j] += row[j] * x[i]
        product[i] = total + row[i] * x[i]


@kernel
def solve_positive(triangle, x, least, panel):
    """Solve ``A y = x`` for a positive semidefinite A by Cholesky's method.

    Parameters
    ----------
    triangle : ndarray of float64, shape (D (D + 1) / 2,)
        Becomes that of the factor.
    x : ndarray of float64, shape (D,)
        Becomes y.
    least : ndarray of float64, shape (D,)
        A variable with a pivot not above this becomes 0: it is 0 up to rounding.
    panel : ndarray of float64, shape (PANEL, D)
        Scratch.
    """
    n = x.size
    for first in range(0, n, PANEL):
        stop = min(first + PANEL, n)
        _factor_panel(triangle, first, stop, least, panel)
        for i in range(stop, n):
            row = triangle[row_place(i) : row_place(i + 1)]
            for k in range(0, PANEL, 4):
                a, b, c, d = panel[k, i], panel[k + 1, i], panel[k + 2, i], panel[k + 3, i]
                p, q, r, s = panel[k], panel[k + 1], panel[k + 2], panel[k + 3]
                for j in range(stop, i + 1):
                    row[j] -= a * p[j] + b * q[j] + c * r[j] + d * s[j]
    for i in range(n):
        row = triangle[row_place(i) : row_place(i + 1)]
        for j in range(i):
            x[i] -= row[j] * x[j]
        x[i] /= row[i]
    for i in range(n - 1, -1, -1):
        row = triangle[row_place(i) : row_place(i + 1)]
        x[i] /= row[i]
        for j in range(i):
            x[j] -= row[j] * x[i]


@inlined
def _factor_panel(triangle, first, stop, least, panel):
    """Compute columns ``first:stop`` of the factor, in place and, transposed, in `panel`."""
    n = least.size
    for j in range(first, n):
        row = triangle[row_place(j) : row_place(j + 1)]
        for k in range(first, min(stop, j + 1)):
            panel[k - first, j] = row[k]
    for k in range(stop - first):
        pivot = panel[k, first + k]
        root = np.sqrt(pivot) if pivot > least[first + k] else np.inf
        for j in range(first + k, n):
            panel[k, j] /= root
        panel[k, first + k] = root
        for r in range(k + 1, stop - first):
            factor = panel[k, first + r]
            for j in range(first + r, n):
                panel[r, j] -= factor * panel[k, j]
    for j in range(first, n):
        row = triangle[row_place(j) : row_place(j + 1)]
        for k in range(first, min(stop, j + 1)):
            row[k] = panel[k - first, j]

"""Coordinate steps on an explicit quadratic over a box; they call nothing of `kernels`, so they have a file of their own.

Problem: ``min ½ aᵀQa + h·a`` over ``lo <= a <= hi``, with the gradient ``g = Qa + h`` kept, so that a variable that stays
costs nothing and one that moves costs one row of Q (which is its column: Q is symmetric).

Arrays that all visits share
----------------------------
order : (m,) int64           variables to visit, in order of visit
diagonal, lo, hi : (n,) float64
alpha, gradient : (n,) float64, active : (n,) uint8   changed in place
threshold : float            a variable at a bound whose gradient holds it there by more than this leaves the active set
out : (3,) float64           changed in place: the largest projected gradient met; a variable that falls for ever, or -1;
                             the sum of what the steps changed the objective by
"""

from __future__ import annotations

import numpy as np
from numba import njit

VIOLATION, UNBOUNDED, CHANGE = range(3)
"""Places in `out`."""


@njit(cache=True, inline="always")
def _projected(gradient, alpha, lo, hi):
    """The gradient, without the part that a bound keeps from being followed."""
    if alpha <= lo:
        gradient = min(gradient, 0.0)
    if alpha >= hi:
        gradient = max(gradient, 0.0)
    return gradient


@njit(cache=True, inline="always")
def _minimiser(gradient, curvature, alpha, lo, hi, omega):
    """Where a variable of curvature >= 0 goes: omega times the way to its minimum, or a bound where there is none inside."""
    if curvature > 0.0:
        return min(max(alpha - omega * gradient / curvature, lo), hi)
    return lo if gradient > 0.0 else hi


@njit(cache=True, inline="always")
def _better_bound(gradient, curvature, alpha, lo, hi):
    """The bound with the lower objective, an open one if there is one."""
    if np.isinf(lo) or np.isinf(hi):
        return lo if np.isinf(lo) else hi
    down, up = lo - alpha, hi - alpha
    if gradient * down + 0.5 * curvature * down * down < gradient * up + 0.5 * curvature * up * up:
        return lo
    return hi


@njit(cache=True, inline="always")
def _jump(i, diagonal, lo, hi, alpha, gradient, out):
    """Move a variable of negative curvature to its better bound, if that is better than where it is; returns its change.

    No gradient tells: where it is 0, or a bound holds the variable, the other bound may be lower. How much lower on the
    way there, per length of the way, stands for the projected gradient.
    """
    new = _better_bound(gradient[i], diagonal[i], alpha[i], lo[i], hi[i])
    if np.isinf(new):
        out[UNBOUNDED] = i
        return 0.0
    step = new - alpha[i]
    change = step * (gradient[i] + 0.5 * diagonal[i] * step)
    if not change < 0.0:
        return 0.0
    out[VIOLATION] = max(out[VIOLATION], -change / abs(step))
    out[CHANGE] += change
    alpha[i] = new
    return step


@njit(cache=True, inline="always")
def _move(i, diagonal, lo, hi, alpha, gradient, active, threshold, omega, out):
    """Take the step of one variable; returns its change."""
    if diagonal[i] < 0.0:
        return _jump(i, diagonal, lo, hi, alpha, gradient, out)
    old, slope = alpha[i], gradient[i]
    projected = _projected(slope, old, lo[i], hi[i])
    if projected == 0.0:
        if (old <= lo[i] and slope > threshold) or (old >= hi[i] and slope < -threshold):
            active[i] = 0
        return 0.0
    out[VIOLATION] = max(out[VIOLATION], abs(projected))
    new = _minimiser(slope, diagonal[i], old, lo[i], hi[i], omega)
    if np.isinf(new):
        out[UNBOUNDED] = i
        return 0.0
    alpha[i] = new
    step = new - old
    out[CHANGE] += step * (slope + 0.5 * diagonal[i] * step)
    return step


@njit(cache=True, nogil=True)
def visit_dense(
    order, rows, matrix, columns, diagonal, lo, hi, alpha, gradient, active, threshold, omega, out
):
    """Visit variables; the row of Q of the p-th is ``matrix[rows[p]]``. The gradient is kept up to date at `columns`.

    Cost: one row for each variable that moves.
    """
    n = alpha.size
    for p in range(order.size):
        i = order[p]
        change = _move(i, diagonal, lo, hi, alpha, gradient, active, threshold, omega, out)
        if change == 0.0:
            continue
        row = matrix[rows[p]]
        if columns.size == n:
            for j in range(n):
                gradient[j] += change * row[j]
        else:
            for j in columns:
                gradient[j] += change * row[j]


# ---------------------------------------------------------------------------------------------------------------------
# The lower triangle packed row by row: Q[i, j], j <= i, at i (i + 1) / 2 + j


@njit(cache=True, nogil=True)
def visit_packed(order, packed, diagonal, lo, hi, alpha, gradient, active, threshold, omega, out):
    """As `visit_dense` for all of the triangle."""
    n = alpha.size
    for p in range(order.size):
        i = order[p]
        change = _move(i, diagonal, lo, hi, alpha, gradient, active, threshold, omega, out)
        if change == 0.0:
            continue
        place = i * (i + 1) // 2
        for j in range(i + 1):
            gradient[j] += change * packed[place + j]
        place += i
        for j in range(i + 1, n):
            place += j
            gradient[j] += change * packed[place]


@njit(cache=True, nogil=True)
def visit_packed_rows(
    order, starts, panel, before, diagonal, lo, hi, alpha, gradient, active, threshold, omega, out
):
    """As `visit_dense`; row i of the triangle, of the p-th variable, begins at ``panel[starts[p]]``.

    Before its step, a variable's gradient takes what those before it (j < i) have changed by since `before`; after it, the
    gradients of those take its change. What it owes the later ones they take from their own rows: here, or in `settle`.
    """
    for p in range(order.size):
        i, place = order[p], starts[p]
        total = 0.0
        for j in range(i):
            total += panel[place + j] * (alpha[j] - before[j])
        gradient[i] += total
        change = _move(i, diagonal, lo, hi, alpha, gradient, active, threshold, omega, out)
        if change == 0.0:
            continue
        for j in range(i + 1):
            gradient[j] += change * panel[place + j]


@njit(cache=True, nogil=True)
def settle(rows, starts, panel, rank, change, gradient):
    """Add to the gradients of rows what variables before them changed by after `visit_packed_rows` had read the row.

    `rank` is the place of a variable in the order of the visit; `change` is 0 where it was not visited.
    """
    for p in range(rows.size):
        i, place = rows[p], starts[p]
        total = 0.0
        for j in range(i):
            if rank[j] > rank[i]:
                total += panel[place + j] * change[j]
        gradient[i] += total


@njit(cache=True, nogil=True)
def packed_product(slab, first, stop, x, out):
    """Add to `out` what the rows ``first:stop`` of the triangle, and their mirror images, give to ``Qx``."""
    place = 0
    for i in range(first, stop):
        total = 0.0
        for j in range(i):
            total += slab[place + j] * x[j]
            out[j] += slab[place + j] * x[i]
        out[i] += total + slab[place + i] * x[i]
        place += i + 1


# ---------------------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def visit_sparse(
    order, indptr, indices, data, diagonal, lo, hi, alpha, gradient, active, threshold, omega, out
):
    """As `visit_dense` for compressed sparse rows."""
    for p in range(order.size):
        i = order[p]
        change = _move(i, diagonal, lo, hi, alpha, gradient, active, threshold, omega, out)
        if change == 0.0:
            continue
        for k in range(indptr[i], indptr[i + 1]):
            gradient[indices[k]] += change * data[k]

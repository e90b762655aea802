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
    """Where the variable goes: omega times the way to its minimum, or the better bound where there is none inside."""
    if curvature > 0.0:
        return min(max(alpha - omega * gradient / curvature, lo), hi)
    if curvature == 0.0:
        return lo if gradient > 0.0 else hi
    if np.isinf(lo) or np.isinf(hi):
        return lo if np.isinf(lo) else hi
    down, up = lo - alpha, hi - alpha
    if gradient * down + 0.5 * curvature * down * down < gradient * up + 0.5 * curvature * up * up:
        return lo
    return hi


@njit(cache=True, inline="always")
def _move(i, diagonal, lo, hi, alpha, gradient, active, threshold, omega, out):
    """Take the step of one variable; returns its change."""
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
    order, panel, first, columns, diagonal, lo, hi, alpha, gradient, active, threshold, omega, out
):
    """Visit variables whose rows of Q are ``panel[i - first]``; the gradient is kept up to date at `columns` (sorted).

    Cost: one row for each variable that moves.
    """
    n = alpha.size
    for p in range(order.size):
        i = order[p]
        change = _move(i, diagonal, lo, hi, alpha, gradient, active, threshold, omega, out)
        if change == 0.0:
            continue
        row = panel[i - first]
        if columns.size == n:
            for j in range(n):
                gradient[j] += change * row[j]
        else:
            for j in columns:
                gradient[j] += change * row[j]


@njit(cache=True, nogil=True)
def visit_packed(order, packed, diagonal, lo, hi, alpha, gradient, active, threshold, omega, out):
    """As `visit_dense` for the lower triangle packed row by row: ``Q[i, j]``, j <= i, at ``i (i + 1) / 2 + j``."""
    n = alpha.size
    for p in range(order.size):
        i = order[p]
        change = _move(i, diagonal, lo, hi, alpha, gradient, active, threshold, omega, out)
        if change == 0.0:
            continue
        first = i * (i + 1) // 2
        for j in range(i + 1):
            gradient[j] += change * packed[first + j]
        place = first + i
        for j in range(i + 1, n):
            place += j
            gradient[j] += change * packed[place]


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


@njit(cache=True, nogil=True)
def packed_product(packed, x, out):
    """Write ``Qx`` to `out`, Q packed as in `visit_packed`."""
    n = x.size
    for i in range(n):
        out[i] = 0.0
    place = 0
    for i in range(n):
        total = 0.0
        for j in range(i):
            total += packed[place + j] * x[j]
            out[j] += packed[place + j] * x[i]
        out[i] += total + packed[place + i] * x[i]
        place += i + 1

"""Coordinate steps on an explicit quadratic over a box.

Problem: ``min ½ aᵀQa + h·a`` over ``lo <= a <= hi``. The gradient ``g = Qa + h`` is kept up to date, so that a variable that
does not move costs O(1), and one that moves costs one row of Q.

Arguments that all visits share
-------------------------------
order : (m,) int64       variables to visit, in this order
diagonal : (n,) float64  of Q
point : `Point`
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compile import inlined, kernel

VIOLATION, UNBOUNDED, CHANGE = range(3)
"""Elements of ``Point.out``."""


class Point(NamedTuple):
    """A box, a point in it, and the parameters of steps.

    A visit changes `alpha`, `gradient`, `active` and `out` in place. `out` holds the largest projected gradient met, a
    variable along which the objective is unbounded below (-1 for none), and the sum of the objective's changes.
    """

    lo: np.ndarray  # (n,) float64
    hi: np.ndarray  # (n,) float64
    alpha: np.ndarray  # (n,) float64
    gradient: np.ndarray  # (n,) float64
    active: np.ndarray  # (n,) uint8
    threshold: float  # a variable at a bound with a gradient beyond this leaves the active set
    omega: float  # over-relaxation in (0, 2); 1 is plain coordinate descent
    out: np.ndarray  # (3,) float64


@inlined
def _projected(gradient, alpha, lo, hi):
    """Project the gradient: 0 if a bound keeps the variable from moving along it."""
    if alpha <= lo:
        gradient = min(gradient, 0.0)
    if alpha >= hi:
        gradient = max(gradient, 0.0)
    return gradient


@inlined
def _minimiser(gradient, curvature, alpha, lo, hi, omega):
    """Return the next value of a variable of curvature >= 0: omega times the step to its minimum, clipped to the box."""
    if curvature > 0.0:
        return min(max(alpha - omega * gradient / curvature, lo), hi)
    return lo if gradient > 0.0 else hi


@inlined
def _jump(i, diagonal, point):
    """Move a variable of negative curvature to its better bound if that decreases the objective; returns its change.

    The gradient does not decide: even if it is 0, or a bound holds the variable, the other bound may be lower. The decrease
    per length of the step takes the place of the projected gradient.
    """
    alpha = point.alpha
    out = point.out
    gradient = point.gradient[i]
    curvature = diagonal[i]
    down = point.lo[i] - alpha[i]
    up = point.hi[i] - alpha[i]
    if np.isinf(down) or np.isinf(up):
        out[UNBOUNDED] = i
        return 0.0
    below = down * (gradient + 0.5 * curvature * down)
    above = up * (gradient + 0.5 * curvature * up)
    step, change = (down, below) if below < above else (up, above)
    if not change < 0.0:
        return 0.0
    out[VIOLATION] = max(out[VIOLATION], -change / abs(step))
    out[CHANGE] += change
    alpha[i] = point.lo[i] if below < above else point.hi[i]
    return step


@inlined
def _move(i, diagonal, point):
    """Take the step of one variable; returns its change."""
    if diagonal[i] < 0.0:
        return _jump(i, diagonal, point)
    out = point.out
    lo = point.lo[i]
    hi = point.hi[i]
    old = point.alpha[i]
    slope = point.gradient[i]
    projected = _projected(slope, old, lo, hi)
    if projected == 0.0:
        if (old <= lo and slope > point.threshold) or (old >= hi and slope < -point.threshold):
            point.active[i] = 0
        return 0.0
    out[VIOLATION] = max(out[VIOLATION], abs(projected))
    new = _minimiser(slope, diagonal[i], old, lo, hi, point.omega)
    if np.isinf(new):
        out[UNBOUNDED] = i
        return 0.0
    point.alpha[i] = new
    step = new - old
    out[CHANGE] += step * (slope + 0.5 * diagonal[i] * step)
    return step


@kernel
def visit_dense(order, rows, matrix, columns, diagonal, point):
    """Visit variables; the row of Q of the p-th is ``matrix[rows[p]]``. The gradient is kept up to date at `columns`.

    Cost: one row for each variable that moves.
    """
    gradient = point.gradient
    n = point.gradient.size
    for p in range(order.size):
        i = order[p]
        change = _move(i, diagonal, point)
        if change == 0.0:
            continue
        row = matrix[rows[p]]
        if columns.size == n:
            for j in range(n):
                gradient[j] += change * row[j]
        else:
            for j in columns:
                gradient[j] += change * row[j]


@kernel
def visit_sparse(order, indptr, indices, data, diagonal, point):
    """As `visit_dense` for compressed sparse rows."""
    gradient = point.gradient
    for p in range(order.size):
        i = order[p]
        change = _move(i, diagonal, point)
        if change == 0.0:
            continue
        for k in range(indptr[i], indptr[i + 1]):
            gradient[indices[k]] += change * data[k]

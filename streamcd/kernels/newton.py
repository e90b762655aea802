"""Newton's method for narrow data: what a read sums up at fixed weights, and the solution of the quadratic model.

Arrays of lanes have the lane first here, and ``D = d + 1`` features, the bias last. A dual variable a_i is minus the
slope of the loss at the row's margin ``t_i = s_i w·x_i``: its term of the gap is 0 where the margin is exact.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np

from .compile import inlined, kernel
from .loss_table import LOG_LOSS
from .losses import alpha_and_curvature, alpha_at, five_numbers, loss_at
from .penalties import elastic_gap_term, elastic_move, elastic_sensitivity, elastic_slope
from .primitives import Total, add_row, row_cost, row_dot, row_label

LENGTHS = np.array([0.0, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0])
"""Lengths of the step at which a read evaluates the objective, as shares of the step to the point where it is made."""

AT_POINT = 7
"""Index of the length 1, the point of the read."""

NEAR = LENGTHS.size
FAR = LENGTHS.size + 2
"""First columns of `Sums.line` with the terms of `row_shares`, each by the sign of ``s_i a_i``: + first."""

N_LINE = LENGTHS.size + 4

BLOCK = 128
"""Rows whose margins are computed before their part of the Hessian is added; a multiple of four."""

SPARSE = 6.0
"""Time of an update of the Hessian at a pair of entries, over that of one in a dense block of rows."""

_RARE = 1e-4
"""Probability of a row's own class up to which it counts in `FAR`."""


class Point(NamedTuple):
    """Points at which a read is made, by lane; never changed by a kernel."""

    w: np.ndarray  # (lanes, D)
    step: np.ndarray  # (lanes, D): the read's w is its base plus the step
    line_share: np.ndarray  # (lanes,): `share` of `losses.alpha_and_curvature`
    searches: np.ndarray  # (lanes,) bool: the objective is wanted at all lengths of the step
    begins: np.ndarray  # (lanes,) bool: the gradient is wanted at w = 0 too


class Sums(NamedTuple):
    """Sums over the rows of a read, by lane; added to by `newton_visit`."""

    # (lanes, 2, D): Σ s_i a_i x_i over s_i a_i >= 0, and over others
    v: np.ndarray
    hessian: np.ndarray  # (lanes, D, D): the lower triangle of Σ C_i l''(t_i) x_i x_iᵀ
    line: np.ndarray  # (lanes, N_LINE): losses at the lengths, and terms of `row_shares`
    start: np.ndarray  # (lanes, D): Σ s_i a_i x_i at w = 0
    totals: np.ndarray  # (lanes, N_TOTALS): N_VISITED, N_ACTIVE, LOSS, SLOPE and ALPHA_SQUARE


class Scratch(NamedTuple):
    """Room for a block of rows."""

    row: np.ndarray  # (BLOCK,) int64
    curvature: np.ndarray  # (BLOCK,) float64
    dense: np.ndarray  # (BLOCK, D) float64: zeros, before and after


@kernel
def newton_visit(order, rows, costs, lanes, point, tile, sums, scratch):
    """Add up losses, gradient and Hessian of rows at fixed w, and what proves the gap there.

    Parameters
    ----------
    order : ndarray of int64
        Rows.
    tile : ndarray of int64, shape (2,)
        Rows of the Hessian to add to. Other sums are added to if these begin at 0.
    sums : Sums
        Changed in place.

    Notes
    -----
    Cost: the entries of each row and, where its loss is curved, half of their square, or of D² for dense rows.
    """
    for first in range(0, order.size, BLOCK):
        block = order[first : min(first + BLOCK, order.size)]
        for lane in lanes:
            n = _add_terms(block, rows, costs, lane, point, tile[0] == 0, sums, scratch)
            if n and tile[1] > tile[0]:
                add_products(n, rows, costs.bias, tile, sums.hessian[lane], scratch)


@inlined
def _add_terms(order, rows, costs, lane, point, counts, sums, scratch):
    """Add the terms of a block of rows, if it `counts`; returns how many have a curvature, which `scratch` then lists."""
    w = point.w[lane]
    step = point.step[lane]
    bias = costs.bias
    line = sums.line[lane]
    totals = sums.totals
    last = w.size - 1
    n = 0
    loss = costs.loss
    for p in range(order.size):
        i = order[p]
        c = row_cost(i, lane, rows, costs)
        if c <= 0.0:
            continue
        sign, y = row_label(i, lane, rows, costs)
        numbers = five_numbers(loss, y, 1.0)
        start = rows.indptr[i]
        stop = rows.indptr[i + 1]
        dot, q = row_dot(rows, w, start, stop)
        t = sign * (dot + bias * w[last])
        a, curvature = alpha_and_curvature(loss, t, numbers, point.line_share[lane])
        if curvature > 0.0:
            scratch.row[n] = i
            scratch.curvature[n] = c * curvature
            n += 1
        if not counts:
            continue
        value = loss_at(loss, t, numbers)
        side = 0 if sign * a >= 0.0 else 1
        if a != 0.0:
            add_row(rows, sums.v[lane, side], start, stop, sign * a * c)
            sums.v[lane, side, last] += sign * a * c * bias
        line[AT_POINT] += c * value
        if point.searches[lane]:
            along, _ = row_dot(rows, step, start, stop)
            change = sign * (along + bias * step[last])
            for k in range(LENGTHS.size):
                if k != AT_POINT:
                    line[k] += c * loss_at(loss, t + (LENGTHS[k] - 1.0) * change, numbers)
        near, far = row_shares(loss, t, a, value, numbers)
        line[NEAR + side] += c * near
        line[FAR + side] += c * far
        if point.begins[lane]:
            at_zero = sign * c * alpha_at(loss, 0.0, numbers)
            add_row(rows, sums.start[lane], start, stop, at_zero)
            sums.start[lane, last] += at_zero * bias
        q += bias * bias
        totals[lane, Total.SLOPE] += 2.0 * c * abs(a) * math.sqrt(q)
        totals[lane, Total.ALPHA_SQUARE] += c * a * c * a * q
        totals[lane, Total.LOSS] += c * value
        totals[lane, Total.N_VISITED] += 1
        totals[lane, Total.N_ACTIVE] += 1
    return n


@inlined
def row_shares(loss, t, a, value, numbers):
    """Return `near` and `far`, ``far (1 - r) + near (1 - r)²`` being at least the row's term of the gap at r times a.

    It is that term for losses with five numbers. That of the logistic loss is at most ``C (1 - r)² a / (1 - a)``, a bound by
    the chi-square divergence; where that is large, it follows from the loss, since the term is convex in r and 0 at r = 1.
    """
    if loss.kind == LOG_LOSS:
        return (a / (1.0 - a), 0.0) if 1.0 - a > _RARE else (0.0, value)
    p = numbers[0]
    epsilon = numbers[1]
    diagonal = numbers[2]
    beyond = a * (p - t - diagonal * a) - epsilon * abs(a)  # 0 where the loss is curved
    return 0.5 * diagonal * a * a, max(beyond, 0.0)


@inlined
def add_products(n, rows, bias, tile, hessian, scratch):
    """Add ``c_i x_i x_iᵀ`` of the first n rows of `scratch` to the lower triangle: by pairs of entries, or as dense rows."""
    indptr = rows.indptr
    pairs = 0.0
    n_features = scratch.dense.shape[1]
    for p in range(n):
        count = indptr[scratch.row[p] + 1] - indptr[scratch.row[p]] + 1
        pairs += np.float64(count) * count
    if SPARSE * pairs < np.float64(n) * n_features * n_features:
        for p in range(n):
            _add_pairs(p, rows, bias, tile, hessian, scratch)
    else:
        _add_dense(n, rows, bias, tile, hessian, scratch)


@inlined
def _add_pairs(p, rows, bias, tile, hessian, scratch):
    """Add the products of a row's entries, whose features ascend."""
    feature = rows.feature
    value = rows.value
    last = scratch.dense.shape[1] - 1
    i = scratch.row[p]
    c = scratch.curvature[p]
    start = rows.indptr[i]
    stop = rows.indptr[i + 1]
    for k in range(start, stop):
        j = np.int64(feature[k])
        if j < tile[0] or j >= tile[1]:
            continue
        row = hessian[j]
        factor = c * np.float64(value[k])
        for m in range(start, k + 1):
            row[feature[m]] += factor * np.float64(value[m])
    if bias != 0.0 and tile[1] > last:
        row = hessian[last]
        factor = c * bias
        for m in range(start, stop):
            row[feature[m]] += factor * np.float64(value[m])
        row[last] += factor * bias


@inlined
def _add_dense(n, rows, bias, tile, hessian, scratch):
    """Add the products of a block of dense rows, four rows at a time."""
    dense = scratch.dense
    curvature = scratch.curvature
    last = scratch.dense.shape[1] - 1
    for p in range(n):
        for k in range(rows.indptr[scratch.row[p]], rows.indptr[scratch.row[p] + 1]):
            dense[p, rows.feature[k]] = np.float64(rows.value[k])
        dense[p, last] = bias
    n_padded = (n + 3) // 4 * 4
    for p in range(n, n_padded):
        curvature[p] = 0.0
    for j in range(tile[0], tile[1]):
        row = hessian[j]
        for p in range(0, n_padded, 4):
            a = curvature[p] * dense[p, j]
            b = curvature[p + 1] * dense[p + 1, j]
            c = curvature[p + 2] * dense[p + 2, j]
            d = curvature[p + 3] * dense[p + 3, j]
            if a != 0.0 or b != 0.0 or c != 0.0 or d != 0.0:
                first = dense[p]
                second = dense[p + 1]
                third = dense[p + 2]
                fourth = dense[p + 3]
                for m in range(j + 1):
                    row[m] += a * first[m] + b * second[m] + c * third[m] + d * fourth[m]
    for p in range(n):
        for k in range(rows.indptr[scratch.row[p]], rows.indptr[scratch.row[p] + 1]):
            dense[p, rows.feature[k]] = 0.0
        dense[p, last] = 0.0


# ---------------------------------------------------------------------------------------------------------------------
# The quadratic model


@kernel
def solve_positive(matrix, x, least):
    """Solve ``A y = x`` for a positive semidefinite A by Cholesky's method, four rows of the factor at a time.

    Parameters
    ----------
    matrix : ndarray of float64, shape (D, D)
        A in its upper triangle, which becomes that of the factor.
    x : ndarray of float64, shape (D,)
        Becomes y.
    least : ndarray of float64, shape (D,)
        A variable with a pivot not above this becomes 0: it is 0 up to rounding.
    """
    n = x.size
    for first in range(0, n, 4):
        stop = min(first + 4, n)
        for k in range(first, stop):
            row = matrix[k]
            for p in range(first, k):
                above = matrix[p]
                a = matrix[p, k]
                for j in range(k, n):
                    row[j] -= a * above[j]
            root = np.sqrt(row[k]) if row[k] > least[k] else np.inf
            for j in range(k, n):
                row[j] /= root
            row[k] = root
        for i in range(stop, n):
            p = matrix[first]
            q = matrix[first + 1]
            r = matrix[first + 2]
            s = matrix[first + 3]
            row = matrix[i]
            a = p[i]
            b = q[i]
            c = r[i]
            d = s[i]
            for j in range(i, n):
                row[j] -= a * p[j] + b * q[j] + c * r[j] + d * s[j]
    for i in range(n):
        row = matrix[i]
        x[i] /= row[i]
        for j in range(i + 1, n):
            x[j] -= row[j] * x[i]
    for i in range(n - 1, -1, -1):
        row = matrix[i]
        total = x[i]
        for j in range(i + 1, n):
            total -= row[j] * x[j]
        x[i] = total / row[i]


@partial(kernel, nothing=0.0)
def sweep_model(matrix, pull, u, l1, l2, free_bias):
    """Minimise ``½ sᵀHs - v·s + g(w + s)`` along each weight, g an elastic net, without the last weight if that is free.

    Returns the sum of the slopes before each step.

    Parameters
    ----------
    matrix : ndarray of float64, shape (D, D)
        H, symmetric.
    pull, u : ndarray of float64, shape (D,)
        v and w; become ``v - Hs`` and ``w + s``.
    """
    slopes = 0.0
    for j in range(u.size):
        row = matrix[j]
        ridge = l2
        threshold = l1
        if free_bias and j == u.size - 1:
            ridge = threshold = 0.0
        slopes += abs(elastic_slope(u[j], -pull[j], threshold, ridge))
        step = elastic_move(pull[j], u[j], row[j], threshold, ridge)
        if step != 0.0:
            u[j] += step
            for k in range(u.size):
                pull[k] -= step * row[k]
    return slopes


@partial(kernel, nothing=(0.0,) * 2)
def penalty_terms(w, v, share, l1, l2):
    """Return the penalty's term of the gap at `share` times v, and the norm of its derivative with respect to that."""
    total = squares = 0.0
    for j in range(w.size):
        total += elastic_gap_term(w[j], share * v[j], l1, l2)
        slope = elastic_sensitivity(w[j], share * v[j], l1, l2)
        squares += slope * slope
    return total, np.sqrt(squares)


@partial(kernel, nothing=0.0)
def slope_norm(w, v, l1, l2, free_bias):
    """Return the 2-norm of the smallest derivative of the objective, or with l1 its 1-norm, as LIBLINEAR measures them."""
    ones = squares = 0.0
    for j in range(w.size):
        slope = v[j] if free_bias and j == w.size - 1 else elastic_slope(w[j], -v[j], l1, l2)
        ones += abs(slope)
        squares += slope * slope
    return ones if l1 > 0.0 else np.sqrt(squares)

"""Newton's method for narrow data: what a read sums up at fixed weights, and the solution of the quadratic model.

Arrays of lanes have the lane first here, and ``D = d + 1`` features, the bias last. A dual variable a_i is minus the
slope of the loss at the row's margin ``t_i = s_i w·x_i``: its term of the gap is 0 where the margin is exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compile import inlined, kernel
from .dual import certify_row, keep_sums, sums_of
from .loss_table import LOG_LOSS
from .losses import (
    alpha_and_curvature,
    bend_distance,
    five_numbers,
    loss_at,
    model_curvature,
    most_curvature,
    unit_of,
)
from .penalties import elastic_gap_term, elastic_sensitivity, elastic_slope, elastic_step
from .primitives import (
    CURVE,
    LOSS,
    LOSS_SLOPE,
    N_ACTIVE,
    N_VISITED,
    UNIT,
    W_ALPHA,
    add_row,
    rounding_terms,
    row_cost,
    row_label,
    row_reach,
)
from .triangle import row_place
from .weights import row_dot

LENGTHS = np.array([0.0, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0])
"""Lengths of the step at which a read evaluates the objective, as shares of the step to the point where it is made."""

AT_POINT = 7
"""Index of the length 1, the point of the read."""

NEAR, FAR = LENGTHS.size, LENGTHS.size + 2
"""First columns of `Sums.line` with the terms of `row_shares`, each by the sign of ``s_i a_i``: + first."""

N_LINE = LENGTHS.size + 4

BLOCK = 128
"""Rows whose margins are computed before their part of the Hessian is added; a multiple of four."""

SPARSE = 6.0
"""Time of an update of the Hessian at a pair of entries, over that of one in a dense block of rows."""

_RARE = 1e-4
"""Probability of a row's own class up to which it counts in `FAR`."""

_LEAST_SHARE = 1e-12
"""Smallest of the dual variables that a model of the logistic loss expects, and of C less these, over C."""


class Point(NamedTuple):
    """Points at which a read is made, by lane; never changed by a kernel."""

    w: np.ndarray  # (lanes, D)
    step: np.ndarray  # (lanes, D): the read's w is its base plus the step
    line_share: np.ndarray  # (lanes,): `share` of `losses.model_curvature`
    searches: np.ndarray  # (lanes,) bool: the objective is wanted at all lengths of the step
    begins: np.ndarray  # (lanes,) bool: the gradient is wanted at w = 0 too
    compares: np.ndarray  # (lanes,) bool: the terms of a gap at the model's dual variables are wanted too
    # (lanes,): `losses.bend_distance` up to which the model had the losses themselves
    exact_within: np.ndarray


class Sums(NamedTuple):
    """Sums over the rows of a read, by lane; added to by `newton_visit`."""

    # (lanes, 4, D): Σ s_i a_i x_i over s_i a_i >= 0, and over others; and what rounding left out of each
    v: np.ndarray
    # (lanes, D (D + 1) / 2), triangles: Σ C_i l''(t_i) x_i x_iᵀ
    hessian: np.ndarray
    line: np.ndarray  # (lanes, N_LINE): losses at the lengths, and terms of `row_shares`
    start: np.ndarray  # (lanes, D): Σ s_i a_i x_i at w = 0
    # (lanes, D): Σ s_i b_i x_i, b_i being the dual variables that the last model expected
    expected: np.ndarray
    expected_totals: np.ndarray  # (lanes, N_TOTALS): sums of `dual.certify_row` at b
    totals: np.ndarray  # (lanes, N_TOTALS): N_VISITED, N_ACTIVE, LOSS, CURVE, LOSS_SLOPE and W_ALPHA


class Scratch(NamedTuple):
    """Room for a block of rows."""

    row: np.ndarray  # (BLOCK,) int64
    curvature: np.ndarray  # (BLOCK,) float64
    dense: np.ndarray  # (BLOCK, D) float64: zeros, before and after
    # (lanes, rows) float32: written, `losses.bend_distance` of every row; (lanes, 0) for none
    distance: np.ndarray


@kernel
def newton_visit(order, starts, rows, costs, lanes, point, tile, sums, scratch):
    """Add up losses, gradient and Hessian of rows at fixed w, and what proves the gap there.

    Parameters
    ----------
    order, starts : ndarray of int64
        Rows, in pieces that begin at ``starts[:-1]``. Rows of different pieces are never added up together first.
    tile : ndarray of int64, shape (2,)
        Rows of the Hessian to add to. Other sums are added to if these begin at 0.
    sums : Sums
        Changed in place.

    Notes
    -----
    Cost: the entries of each row and, where its loss is curved, half of their square, or of D² for dense rows.
    """
    for piece in range(starts.size - 1):
        for first in range(starts[piece], starts[piece + 1], BLOCK):
            block = order[first : min(first + BLOCK, starts[piece + 1])]
            for lane in lanes:
                n = _add_terms(block, rows, costs, lane, point, tile, sums, scratch)
                if n and tile[1] > tile[0]:
                    add_products(n, rows, costs.bias, tile, sums.hessian[lane], scratch)


@inlined
def _add_terms(order, rows, costs, lane, point, tile, sums, scratch):
    """Add the terms of a block of rows in a lane; returns how many have a curvature, which `scratch` then lists."""
    w, step, bias, line, totals = point.w[lane], point.step[lane], costs.bias, sums.line[lane], sums.totals
    last, n, counts, loss = w.size - 1, 0, tile[0] == 0, costs.loss
    keeps = scratch.distance.shape[1] > 0
    for p in range(order.size):
        i = order[p]
        c = row_cost(i, lane, rows, costs)
        if c <= 0.0:
            if keeps:
                scratch.distance[lane, i] = np.inf
            continue
        sign, y = row_label(i, lane, rows, costs)
        numbers = five_numbers(loss, y, 1.0)
        start, stop = rows.indptr[i], rows.indptr[i + 1]
        dot, q = row_dot(rows, w, start, stop)
        t = sign * (dot + bias * w[last])
        slope, curvature = alpha_and_curvature(loss, t, numbers)
        curvature = model_curvature(t, slope, curvature, numbers, point.line_share[lane])
        unit = unit_of(loss, numbers)
        if curvature > 0.0:
            scratch.row[n], scratch.curvature[n] = i, c * unit * curvature
            n += 1
        if not counts:
            continue
        if keeps:
            scratch.distance[lane, i] = bend_distance(loss, t, numbers)
        a = slope * unit
        value = loss_at(loss, t, numbers)
        side = 0 if sign * a >= 0.0 else 1
        if a != 0.0:
            high, low = sums.v[lane, side], sums.v[lane, side + 2]
            add_row_exactly(rows, high, low, 0, start, stop, sign * a * c)
            add_exactly(high, low, last, sign * a * c * bias)
        line[AT_POINT] += c * value
        reach, change = row_reach(q + bias * bias, stop - start + 1), 0.0
        if point.searches[lane] or point.compares[lane]:
            change, _ = row_dot(rows, step, start, stop)
            change = sign * (change + bias * step[last])
        if point.searches[lane]:
            for k in range(LENGTHS.size):
                if k != AT_POINT:
                    line[k] += c * loss_at(loss, t + (LENGTHS[k] - 1.0) * change, numbers)
        near, far = row_shares(loss, t, a, value, numbers)
        line[NEAR + side] += c * near
        line[FAR + side] += c * far
        if point.begins[lane]:
            at_zero = sign * c * unit * alpha_and_curvature(loss, 0.0, numbers)[0]
            add_row(rows, sums.start[lane], start, stop, at_zero)
            sums.start[lane, last] += at_zero * bias
        if point.compares[lane]:
            row, within = (t, y, c, reach), point.exact_within[lane]
            b = sign * c * _add_expected(lane, loss, row, (change, within), numbers, sums.expected_totals)
            add_row(rows, sums.expected[lane], start, stop, b)
            sums.expected[lane, last] += b * bias
        size = c * abs(a)
        terms = rounding_terms(0.0, 0.5 * c * most_curvature(loss, numbers), size, size, reach)
        totals[lane, CURVE] += terms[1]
        totals[lane, LOSS_SLOPE] += terms[2]
        totals[lane, W_ALPHA] += terms[3]
        totals[lane, LOSS] += c * value
        totals[lane, N_VISITED] += 1
        totals[lane, N_ACTIVE] += 1
    return n


@inlined
def add_exactly(high, low, j, x):
    """Add x to an element of `high`, and what rounding leaves out to that of `low`: Knuth's two-sum.

    The sum of both is wrong by a unit of itself, and by ``(n u)²`` times the sum of absolute values. L1 alone bounds v, and
    what v may be wrong by is taken off all dual variables.
    """
    before = high[j]
    after = before + x
    added = after - before
    low[j] += (before - (after - added)) + (x - added)
    high[j] = after


@inlined
def add_row_exactly(rows, high, low, first, start, stop, step):
    """Add `step` times the row with entries ``start:stop``, as `add_exactly`; its features begin at `first`."""
    feature, value = rows.feature, rows.value
    for k in range(start, stop):
        add_exactly(high, low, first + feature[k], step * np.float64(value[k]))


@inlined
def _add_expected(lane, loss, row, moved, numbers, totals):
    """Add a row's terms of the gap at the b that a model expects, in its bounds; returns b over C.

    At the margin before the step, t0, the row had the dual variable a and the curvature h; the model, of which this is the
    solution, expects ``b = a - h (t - t0)`` and ``Σ s_i b_i x_i = w``. So the gap is about a sum of squares of the model's
    errors, row by row, while that of the a at t also has their products: with a large C it comes a read later. For a row
    whose loss the model had itself, b is the a at t. `moved` is ``t - t0``, and the distance up to which rows are such.
    """
    (t, _, c, _), (change, within) = row, moved
    slope, curvature = alpha_and_curvature(loss, t - change, numbers)
    if np.float32(bend_distance(loss, t - change, numbers)) <= within:
        slope, curvature = alpha_and_curvature(loss, t, numbers)[0], 0.0
    b = unit_of(loss, numbers) * (slope - curvature * change)
    if loss.kind == LOG_LOSS:
        b = min(max(b, _LEAST_SHARE), 1.0 - _LEAST_SHARE)
    else:
        b = min(max(b, numbers[3]), numbers[4])
    sums = certify_row(loss, row, c * b, c * (1.0 - b), sums_of(lane, totals))
    keep_sums(lane, sums, totals)
    return b


@inlined
def row_shares(loss, t, a, value, numbers):
    """Return `near` and `far`, ``far (1 - r) + near (1 - r)²`` being at least the row's term of the gap at r times a.

    It is that term for losses with five numbers.
    """
    if loss.kind == LOG_LOSS:
        return log_shares(a, 1.0 - a, value)
    p, epsilon, diagonal = numbers[0], numbers[1], numbers[2]
    beyond = a * (p - t - diagonal * a) - epsilon * abs(a)  # 0 where the loss is curved
    return 0.5 * diagonal * a * a, max(beyond, 0.0)


@inlined
def log_shares(others, own, value):
    """Return `row_shares` where classes have probabilities: that of the row's own one, and the sum of the others.

    The term is at most ``C (1 - r)² others / own``, a bound by the chi-square divergence; where that is large, it follows
    from the loss, since the term is convex in r and 0 at r = 1.
    """
    return (others / own, 0.0) if own > _RARE else (0.0, value)


@inlined
def add_products(n, rows, bias, tile, hessian, scratch):
    """Add ``c_i x_i x_iᵀ`` of the first n rows of `scratch`: pair by pair of their entries, or as dense rows."""
    indptr, pairs, n_features = rows.indptr, 0.0, scratch.dense.shape[1]
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
    feature, value, last = rows.feature, rows.value, scratch.dense.shape[1] - 1
    i, c = scratch.row[p], scratch.curvature[p]
    start, stop = rows.indptr[i], rows.indptr[i + 1]
    for k in range(start, stop):
        j = np.int64(feature[k])
        if j < tile[0] or j >= tile[1]:
            continue
        row, factor = hessian[row_place(j) : row_place(j + 1)], c * np.float64(value[k])
        for m in range(start, k + 1):
            row[feature[m]] += factor * np.float64(value[m])
    if bias != 0.0 and tile[1] > last:
        row, factor = hessian[row_place(last) : row_place(last + 1)], c * bias
        for m in range(start, stop):
            row[feature[m]] += factor * np.float64(value[m])
        row[last] += factor * bias


@inlined
def _add_dense(n, rows, bias, tile, hessian, scratch):
    """Add the products of a block of dense rows, four rows at a time."""
    dense, curvature, last = scratch.dense, scratch.curvature, scratch.dense.shape[1] - 1
    for p in range(n):
        for k in range(rows.indptr[scratch.row[p]], rows.indptr[scratch.row[p] + 1]):
            dense[p, rows.feature[k]] = np.float64(rows.value[k])
        dense[p, last] = bias
    n_padded = (n + 3) // 4 * 4
    for p in range(n, n_padded):
        curvature[p] = 0.0
    for j in range(tile[0], tile[1]):
        row = hessian[row_place(j) : row_place(j + 1)]
        for p in range(0, n_padded, 4):
            a, b = curvature[p] * dense[p, j], curvature[p + 1] * dense[p + 1, j]
            c, d = curvature[p + 2] * dense[p + 2, j], curvature[p + 3] * dense[p + 3, j]
            if a != 0.0 or b != 0.0 or c != 0.0 or d != 0.0:
                first, second, third, fourth = dense[p], dense[p + 1], dense[p + 2], dense[p + 3]
                for m in range(j + 1):
                    row[m] += a * first[m] + b * second[m] + c * third[m] + d * fourth[m]
    for p in range(n):
        for k in range(rows.indptr[scratch.row[p]], rows.indptr[scratch.row[p] + 1]):
            dense[p, rows.feature[k]] = 0.0
        dense[p, last] = 0.0


# ---------------------------------------------------------------------------------------------------------------------
# The quadratic model


@kernel
def sweep_model(matrix, pull, u, l1, l2, n_penalised, goal, most):
    """Lower ``½ sᵀHs - v·s + g(w + s)`` by coordinate descent with soft thresholds, g an elastic net.

    Returns the largest change of a derivative in the first sweep, and in the last one, rounding left out.

    Parameters
    ----------
    matrix : ndarray of float64, shape (D, D)
        H, symmetric.
    pull : ndarray of float64, shape (D,)
        v; becomes ``v - Hs``.
    u : ndarray of float64, shape (D,)
        w; becomes ``w + s``.
    n_penalised : int
        Number of features in g: the first ones.
    goal, most : float, int
        Sweeps end where the largest change is not above this, or after so many.

    Notes
    -----
    A derivative changes by up to ``Σ_k |H_jk| u |w_k|`` where weights are rounded, and ``H_jk² <= H_jj H_kk``.
    Source: Friedman, Hastie, Tibshirani, J. Stat. Software 33 (2010); Yuan, Ho, Lin, JMLR 13 (2012).
    """
    first = largest = 0.0
    for sweep in range(most):
        largest = size = 0.0
        for j in range(u.size):
            size += np.sqrt(matrix[j, j]) * abs(u[j])
        for j in range(u.size):
            row, ridge, threshold = matrix[j], l2, l1
            if j >= n_penalised:
                ridge = threshold = 0.0
            if row[j] + ridge <= 0.0:
                continue
            change = elastic_step(pull[j], u[j], row[j], threshold, ridge) - u[j]
            if change != 0.0:
                rounding = 4.0 * UNIT * (np.sqrt(row[j]) * size + abs(pull[j]) + threshold)
                u[j] = 0.0 if change == -u[j] else u[j] + change
                for k in range(u.size):
                    pull[k] -= change * row[k]
                of_slope = abs(change) * (row[j] + ridge)
                largest = max(largest, of_slope if of_slope > rounding else 0.0)
        if sweep == 0:
            first = largest
        if largest <= goal:
            break
    return first, largest


@kernel
def penalty_terms(w, v, l1, l2, n_penalised):
    """Return the penalty's term of the gap, and the norm of its derivative with respect to v."""
    total = squares = 0.0
    for j in range(n_penalised):
        total += elastic_gap_term(w[j], v[j], l1, l2)
        slope = elastic_sensitivity(w[j], v[j], l1, l2)
        squares += slope * slope
    return total, np.sqrt(squares)


@kernel
def slope_norm(w, v, l1, l2, n_penalised):
    """Return the 2-norm of the smallest derivative of the objective, or with l1 its 1-norm, as LIBLINEAR measures them."""
    ones = squares = 0.0
    for j in range(w.size):
        penalised = j < n_penalised
        slope = elastic_slope(w[j], -v[j], l1, l2) if penalised else v[j]
        ones += abs(slope)
        squares += slope * slope
    return ones if l1 > 0.0 else np.sqrt(squares)

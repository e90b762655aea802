"""Working sets of columns: sums over columns at fixed weights, and a quadratic model that coordinate descent minimises.

Arguments that kernels here share
---------------------------------
columns : Columns                 see `columns`
order : (k,) int64                offsets of columns; -1 is the bias, a virtual column of ``bias`` in every row
scores, costs                     `Scores`, `ColumnCosts` of one lane: of its scores and costs alone
pull : (n,) float64               ``s_i a_i``, a_i minus the slope of the loss at the row's margin, with its cost
model : (2 n,) float64            of each row: what the model's step leaves of `pull`, and the curvature of the loss

With ``v_j = Σ_i x_ij pull_i`` the derivative of the loss by w_j is -v_j.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .compile import inlined, kernel
from .loss_table import LOG_LOSS
from .losses import (
    alpha_and_curvature,
    five_numbers,
    loss_at,
    loss_change,
    model_curvature,
    parabola_above,
    unit_of,
)
from .newton import BLOCK, Scratch, add_products, row_shares
from .penalties import elastic_gap_term, elastic_slope, elastic_step

_STEEP = 0.9
"""Dual variable of the logistic loss, of C = 1, up to which its term of the gap is that of its curvature."""

# The arrays of rows are read in random order: unsigned indices avoid numba's check for negative ones.


@inlined
def _numbers(scores, costs):
    """Return the five numbers of a row of cost 1."""
    return five_numbers(costs.loss, 1.0 if scores.target.size == 0 else 0.0, 1.0)


@inlined
def _row(j, scores, costs):
    """Return sign, cost and margin of a row."""
    c = costs.signed[np.uint64(scores.kind[j]), 0]
    if scores.weight.size > 0:
        c *= scores.weight[j]
    sign = math.copysign(1.0, c)
    return sign, abs(c), sign * scores.score[j] - (scores.target[j] if scores.target.size > 0 else 0.0)


@kernel
def model_rows(scores, costs, share, model):
    """Set `model` to the quadratic model of the loss at the scores, before any step.

    A row whose loss is a line there has the curvature of a parabola above it. That of the logistic loss is its own plus a
    share of what it lacks of such a parabola.

    Returns `near` over rows with pull < 0 and > 0, then `far`: with r times the pull as dual variables the rows' terms of
    the gap are ``near (1 - r)² + far (1 - r)``, those of the logistic loss about.
    """
    numbers = _numbers(scores, costs)
    unit = unit_of(costs.loss, numbers)
    near_below = near_above = far_below = far_above = 0.0
    for j in range(scores.score.size):
        sign, c, t = _row(j, scores, costs)
        alpha, curvature = alpha_and_curvature(costs.loss, t, numbers)
        near, far = _gap_shares(costs.loss, t, unit * alpha, numbers)
        above = np.float64(sign * alpha > 0.0)
        near_above += c * near * above
        near_below += c * near * (1.0 - above)
        far_above += c * far * above
        far_below += c * far * (1.0 - above)
        if costs.loss.kind == LOG_LOSS:
            curvature += share * (parabola_above(t) - curvature) if share > 0.0 else 0.0
        else:
            curvature = model_curvature(t, alpha, curvature, numbers, 1.0)
        model[2 * j] = sign * c * unit * alpha
        model[2 * j + 1] = c * unit * curvature
    return near_below, near_above, far_below, far_above


@inlined
def _gap_shares(loss, t, a, numbers):
    """Return a row's shares of `near` and `far`, its dual variable being a: by the curvature, or the loss if a is near 1."""
    if loss.kind != LOG_LOSS:
        return row_shares(loss, t, a, 0.0, numbers)
    if a < _STEEP:
        return 0.5 * a / (1.0 - a), 0.0
    return 0.0, loss_at(loss, t, numbers)


@kernel
def set_pull(scores, costs, side, pull):
    """Set `pull`, and return ``Σ pull``, ``Σ pull²`` and the largest cost; `side` holds factors for pull < 0 and > 0."""
    numbers = _numbers(scores, costs)
    unit = unit_of(costs.loss, numbers)
    total = squares = most = 0.0
    for j in range(scores.score.size):
        sign, c, t = _row(j, scores, costs)
        a = sign * c * unit * alpha_and_curvature(costs.loss, t, numbers)[0]
        a *= side[1] if a > 0.0 else side[0]
        pull[j] = a
        total += a
        squares += a * a
        most = max(most, c)
    return total, squares, most


@kernel
def change_on_line(scores, moved, length, costs):
    """Return the difference of the loss at ``score + length * moved`` from that at the scores."""
    numbers = _numbers(scores, costs)
    change = 0.0
    for j in range(scores.score.size):
        if moved[j] != 0.0:
            sign, c, t = _row(j, scores, costs)
            if c > 0.0:
                change += c * loss_change(costs.loss, t, sign * length * moved[j], numbers)
    return change


@kernel
def sum_columns(order, columns, pull, v, norm, count):
    """Compute v of columns, in `v`, their norms and their numbers of entries; each is (features,), and set at theirs."""
    for p in range(order.size):
        c = order[p]
        feature = columns.feature[c]
        start, stop = columns.indptr[c], columns.indptr[c + 1]
        sums = add_column(columns, start, stop, pull, 0.0, 0.0)
        v[feature], norm[feature], count[feature] = sums[0], math.sqrt(sums[1]), stop - start


@kernel
def add_column(columns, start, stop, pull, total, squares):
    """Add the entries ``start:stop`` of a column to `total`, its v, and to the sum of their squares; returns both."""
    for k in range(np.uint64(start), np.uint64(stop)):
        x = np.float64(columns.value[k])
        total += x * pull[np.uint64(columns.row[k])]
        squares += x * x
    return total, squares


@kernel
def add_scores(order, columns, bias, w, score):
    """Add ``w_p x_p`` to the scores, for column p of `order` with ``w[p] != 0``."""
    for p in range(order.size):
        if w[p] == 0.0:
            continue
        c = order[p]
        if c < 0:
            for j in range(score.size):
                score[j] += w[p] * bias
        else:
            add_segment(columns, columns.indptr[c], columns.indptr[c + 1], w[p], score)


@kernel
def add_segment(columns, start, stop, step, score):
    """Add `step` times the entries ``start:stop`` of a column to the scores."""
    for k in range(np.uint64(start), np.uint64(stop)):
        score[np.uint64(columns.row[k])] += step * np.float64(columns.value[k])


# ---------------------------------------------------------------------------------------------------------------------
# The model


@inlined
def _pull_of(c, columns, bias, model):
    """Return v of a column where the model stands."""
    total = 0.0
    if c < 0:
        for j in range(model.size // 2):
            total += model[2 * j]
        return bias * total
    for k in range(np.uint64(columns.indptr[c]), np.uint64(columns.indptr[c + 1])):
        total += np.float64(columns.value[k]) * model[np.uint64(2) * np.uint64(columns.row[k])]
    return total


@inlined
def _step_rows(c, columns, bias, step, model):
    """Move the model along a column."""
    if c < 0:
        for j in range(model.size // 2):
            model[2 * j] -= step * bias * model[2 * j + 1]
        return
    for k in range(np.uint64(columns.indptr[c]), np.uint64(columns.indptr[c + 1])):
        at = np.uint64(2) * np.uint64(columns.row[k])
        model[at] -= step * np.float64(columns.value[k]) * model[at + np.uint64(1)]


@kernel
def model_columns(order, columns, bias, model, v, curve):
    """Compute v and the model's curvature of columns, in their order."""
    for p in range(order.size):
        c = order[p]
        total = squares = 0.0
        if c < 0:
            for j in range(model.size // 2):
                total += bias * model[2 * j]
                squares += bias * bias * model[2 * j + 1]
        else:
            for k in range(np.uint64(columns.indptr[c]), np.uint64(columns.indptr[c + 1])):
                at, x = np.uint64(2) * np.uint64(columns.row[k]), np.float64(columns.value[k])
                total += x * model[at]
                squares += x * x * model[at + np.uint64(1)]
        v[p], curve[p] = total, squares


@kernel
def curved_products(order, columns, bias, moved, model, out):
    """Compute ``Σ_i h_i x_ij moved_i`` of columns, in their order, h being the curvatures in `model`."""
    for p in range(order.size):
        c = order[p]
        total = 0.0
        if c < 0:
            for j in range(moved.size):
                total += bias * model[2 * j + 1] * moved[j]
        else:
            for k in range(np.uint64(columns.indptr[c]), np.uint64(columns.indptr[c + 1])):
                j = np.uint64(columns.row[k])
                total += np.float64(columns.value[k]) * (model[np.uint64(2) * j + np.uint64(1)] * moved[j])
        out[p] = total


@kernel
def move_model(moved, model):
    """Move the model by a step that changes the scores by `moved`."""
    for j in range(moved.size):
        model[2 * j] -= model[2 * j + 1] * moved[j]


@kernel
def model_along(moved, model):
    """Return the model's slope, downwards, and its curvature along a step that changes the scores by `moved`."""
    slope = curvature = 0.0
    for j in range(moved.size):
        slope += model[2 * j] * moved[j]
        curvature += model[2 * j + 1] * moved[j] * moved[j]
    return slope, curvature


@kernel
def descend(visits, order, columns, bias, curve, penalty, u, model):
    """Minimise the model plus an elastic net along each column, once; returns the sum of the slopes before each step.

    Parameters
    ----------
    visits : ndarray of int64, shape (k,)
        Offsets into `order`, in the order of visits.
    curve, u : ndarray of float64, like `order`
        Curvatures of the model; weights, changed in place.
    penalty : tuple of (float, float, bool)
        l1, l2, and whether the bias is free of both.
    model : ndarray of float64
        Changed in place.

    Notes
    -----
    Cost: a read of each column, and another of those whose weights change. Source: Friedman, Hastie, Tibshirani, J. Stat.
    Software 33 (2010); Yuan, Ho, Lin, JMLR 13 (2012).
    """
    slopes = 0.0
    for p in visits:
        c = order[p]
        l1, l2, is_free = penalty
        if c < 0 and is_free:
            l1 = l2 = 0.0
        pull = _pull_of(c, columns, bias, model)
        if curve[p] + l2 > 0.0:
            moved = elastic_step(pull, u[p], curve[p], l1, l2)
        elif abs(pull) < l1:  # where the loss is flat the penalty alone decides
            moved = 0.0
        else:
            continue
        slopes += abs(elastic_slope(u[p], -pull, l1, l2))
        if moved != u[p]:
            _step_rows(c, columns, bias, moved - u[p], model)
            u[p] = moved
    return slopes


class Room(NamedTuple):
    """Room for `BLOCK` rows of some columns."""

    indptr: np.ndarray  # (BLOCK + 1,) int64
    feature: np.ndarray  # (BLOCK * columns,) int64
    value: np.ndarray  # (BLOCK * columns,) float64
    cursor: np.ndarray  # (columns,) int64: of each column, its first entry that has not been read
    scratch: Scratch


def new_room(n_columns: int) -> Room:
    """Return the room for a block of rows of columns, and the bias."""
    entries, size = BLOCK * n_columns, n_columns + 1
    scratch = Scratch(np.zeros(BLOCK, np.int64), np.zeros(BLOCK), np.zeros((BLOCK, size)))
    ends, cursor = np.zeros(BLOCK + 1, np.int64), np.zeros(n_columns, np.int64)
    return Room(ends, np.zeros(entries, np.int64), np.zeros(entries), cursor, scratch)


@kernel
def add_matrix(order, columns, bias, model, room, matrix):
    """Add the lower triangle of ``Σ_i h_i x_i x_iᵀ`` over all rows, each with the chosen columns and the bias.

    The curvatures h are those in `model`.

    Parameters
    ----------
    order : ndarray of int64, shape (k,)
        Offsets of columns, without the bias.
    matrix : ndarray of float64, shape (k + 1, k + 1)
        Changed in place.

    Notes
    -----
    Cost: half the square of the entries of each row whose loss is curved, or of k for dense rows.
    """
    scratch, n_rows = room.scratch, model.size // 2
    for p in range(order.size):
        room.cursor[p] = columns.indptr[order[p]]
    for first in range(0, n_rows, BLOCK):
        stop, n = min(first + BLOCK, n_rows), 0
        _take_rows(order, columns, first, stop, room)
        for j in range(first, stop):
            if model[2 * j + 1] > 0.0:
                scratch.row[n], scratch.curvature[n] = j - first, model[2 * j + 1]
                n += 1
        add_products(n, room, bias, (0, order.size + 1), matrix, scratch)


@inlined
def _take_rows(order, columns, first, stop, room):
    """Gather the entries that columns have in rows ``first:stop``, row by row."""
    indptr = room.indptr
    indptr[:] = 0
    for p in range(order.size):
        k, end = room.cursor[p], columns.indptr[order[p] + 1]
        while k < end and columns.row[k] < stop:
            indptr[columns.row[k] - first + 1] += 1
            k += 1
    for i in range(BLOCK):
        indptr[i + 1] += indptr[i]
    for p in range(order.size):
        k, end = room.cursor[p], columns.indptr[order[p] + 1]
        while k < end and columns.row[k] < stop:
            at = indptr[columns.row[k] - first]
            room.feature[at], room.value[at] = p, np.float64(columns.value[k])
            indptr[columns.row[k] - first] = at + 1
            k += 1
        room.cursor[p] = k
    for i in range(BLOCK, 0, -1):
        indptr[i] = indptr[i - 1]
    indptr[0] = 0


# ---------------------------------------------------------------------------------------------------------------------
# Certificates


@kernel
def largest_sum(v, norm, count, error):
    """Return the largest ``|v_j|`` that rounding allows; `error` is ``u ‖alpha‖``."""
    most = 0.0
    for j in range(v.size):
        most = max(most, abs(v[j]) + (count[j] + 8.0) * norm[j] * error)
    return most


@kernel
def penalty_terms(w, v, share, l1, l2):
    """Sum the penalty's terms of the gap at the dual point times `share`."""
    total = 0.0
    for j in range(w.size):
        total += elastic_gap_term(w[j], share * v[j], l1, l2)
    return total


@kernel
def screen(w, v, share, norm, count, error, radius, l1, screened):
    """Mark columns that are 0 at the optimum: weights are 0, and ``|x·θ| < l1`` in all of a ball that has the optimal θ."""
    for j in range(v.size):
        most = share * abs(v[j]) + norm[j] * (radius + (count[j] + 8.0) * error)
        if w[j] == 0.0 and most * (1.0 + 1e-9) < l1:
            screened[j] = True


# ---------------------------------------------------------------------------------------------------------------------
# Columns held in memory


@kernel
def hold(order, columns, held, n, n_entries):
    """Copy columns behind the first n of `held`, which have so many entries."""
    for p in range(order.size):
        start, stop = columns.indptr[order[p]], columns.indptr[order[p] + 1]
        for k in range(start, stop):
            held.row[n_entries + k - start] = columns.row[k]
            held.value[n_entries + k - start] = columns.value[k]
        n_entries += stop - start
        held.feature[n + p] = columns.feature[order[p]]
        held.indptr[n + p + 1] = n_entries


@kernel
def close_gaps(kept, held):
    """Keep the columns at these ascending offsets alone, moved to the front."""
    n_entries = 0
    for p in range(kept.size):
        start, stop = held.indptr[kept[p]], held.indptr[kept[p] + 1]
        for k in range(start, stop):
            held.row[n_entries + k - start] = held.row[k]
            held.value[n_entries + k - start] = held.value[k]
        held.feature[p] = held.feature[kept[p]]
        held.indptr[p] = n_entries
        n_entries += stop - start
        # the start of a column that moves next is at kept[p + 1] > p, so it is still in place
        if p + 1 == kept.size:
            held.indptr[p + 1] = n_entries

"""Working sets of columns: sums over columns, and a quadratic model of the loss that coordinate descent minimises.

Arguments that kernels here share
---------------------------------
columns : Columns                 see `primal`
order : (k,) int64                offsets of columns; -1 is the bias, a virtual column of ``bias`` in every row
scores, costs                     `Scores`, `ColumnCosts` of one lane: of its scores and costs alone
pull, curvature : (n,) float64    minus the slope of the model by each row's score, and its curvature

With ``v_j = Σ_i x_ij pull_i`` the derivative of the loss by w_j is -v_j.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from .compile import inlined, kernel
from .loss_table import LOG_LOSS
from .losses import alpha_and_curvature, loss_at, loss_change, parabola_above
from .newton import BLOCK, Scratch, add_products, row_shares
from .penalties import elastic_move, elastic_slope
from .primal import Columns, row_at, unit_numbers

# The arrays of rows are read in random order: unsigned indices avoid numba's check for negative ones.


@partial(kernel, nothing=(0.0,) * 4)
def model_rows(scores, costs, share, pull, curvature):
    """Set `pull` and `curvature` to those of the quadratic model of the loss at the scores.

    A row whose loss is a line there has the curvature of a parabola above it. That of the logistic loss is its own plus a
    share of what it lacks of such a parabola.

    Returns `near` over rows with pull < 0 and > 0, then `far`: with r times the pull as dual variables the rows' terms of
    the gap are at most ``near (1 - r)² + far (1 - r)``.
    """
    numbers = unit_numbers(scores, costs)
    near_below = near_above = far_below = far_above = 0.0
    for j in range(scores.score.size):
        signed, sign, t = row_at(j, 0, scores.score[j], scores, costs)
        c = abs(signed)
        alpha, curve = alpha_and_curvature(costs.loss, t, numbers, 1.0)
        value = loss_at(costs.loss, t, numbers) if costs.loss.kind == LOG_LOSS else 0.0
        near, far = row_shares(costs.loss, t, alpha, value, numbers)
        above = np.float64(sign * alpha > 0.0)
        near_above += c * near * above
        near_below += c * near * (1.0 - above)
        far_above += c * far * above
        far_below += c * far * (1.0 - above)
        if costs.loss.kind == LOG_LOSS:
            curve += share * (parabola_above(t) - curve) if share > 0.0 else 0.0
        pull[j] = signed * alpha
        curvature[j] = c * curve
    return near_below, near_above, far_below, far_above


@partial(kernel, nothing=0.0)
def change_on_line(scores, moved, length, costs):
    """Return the difference of the loss at ``score + length * moved`` from that at the scores."""
    numbers = unit_numbers(scores, costs)
    change = 0.0
    for j in range(scores.score.size):
        c, sign, t = row_at(j, 0, scores.score[j], scores, costs)
        if moved[j] != 0.0 and c != 0.0:
            change += abs(c) * loss_change(costs.loss, t, sign * length * moved[j], numbers)
    return change


@kernel
def sum_columns(order, columns, bias, pull, v):
    """Compute ``v_p = Σ_i x_ip pull_i`` of the columns in their order."""
    for p in range(order.size):
        v[p] = _dot(order[p], columns, bias, pull)


@inlined
def _dot(c, columns, bias, pull):
    total = 0.0
    if c < 0:
        for j in range(pull.size):
            total += pull[j]
        return bias * total
    row, value = columns.row, columns.value
    start, stop = np.uint64(columns.indptr[c]), np.uint64(columns.indptr[c + 1])
    # sums of their own: each addition would wait for the last
    one = two = three = 0.0
    four = np.uint64(4)
    while start + four <= stop:
        total += np.float64(value[start]) * pull[np.uint64(row[start])]
        one += np.float64(value[start + np.uint64(1)]) * pull[np.uint64(row[start + np.uint64(1)])]
        two += np.float64(value[start + np.uint64(2)]) * pull[np.uint64(row[start + np.uint64(2)])]
        three += np.float64(value[start + np.uint64(3)]) * pull[np.uint64(row[start + np.uint64(3)])]
        start += four
    for k in range(start, stop):
        total += np.float64(value[k]) * pull[np.uint64(row[k])]
    return (total + one) + (two + three)


@kernel
def sum_squares(order, columns, bias, curvature, squares):
    """Compute ``Σ_i x_ip² h_i`` of the columns in their order; all h are 1 if `curvature` is empty."""
    for p in range(order.size):
        c, total = order[p], 0.0
        if c < 0:
            for j in range(curvature.size):
                total += bias * bias * curvature[j]
        else:
            for k in range(np.uint64(columns.indptr[c]), np.uint64(columns.indptr[c + 1])):
                x = np.float64(columns.value[k])
                total += x * x * (curvature[np.uint64(columns.row[k])] if curvature.size else 1.0)
        squares[p] = total


@kernel
def add_columns(order, columns, bias, w, score):
    """Add ``w_p x_p`` to the scores, for column p of `order` with ``w[p] != 0``."""
    for p in range(order.size):
        if w[p] == 0.0:
            continue
        c = order[p]
        if c < 0:
            for j in range(score.size):
                score[j] += w[p] * bias
        else:
            for k in range(np.uint64(columns.indptr[c]), np.uint64(columns.indptr[c + 1])):
                score[np.uint64(columns.row[k])] += w[p] * np.float64(columns.value[k])


@partial(kernel, nothing=0.0)
def descend(visits, order, columns, bias, squares, penalty, u, pull, curvature):
    """Minimise the model plus an elastic net along each column, once; returns the sum of the slopes before each step.

    Parameters
    ----------
    visits : ndarray of int64, shape (k,)
        Offsets into `order`, in the order of visits.
    squares, u : ndarray of float64, like `order`
        Curvatures of the model; weights, changed in place.
    penalty : tuple of (float, float, bool)
        l1, l2, and whether the bias is free of both.
    pull : ndarray of float64
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
        v = _dot(c, columns, bias, pull)
        slopes += abs(elastic_slope(u[p], -v, l1, l2))
        step = elastic_move(v, u[p], squares[p], l1, l2)
        if step == 0.0:
            continue
        u[p] += step
        if c < 0:
            for j in range(pull.size):
                pull[j] -= step * bias * curvature[j]
        else:
            for k in range(np.uint64(columns.indptr[c]), np.uint64(columns.indptr[c + 1])):
                j = np.uint64(columns.row[k])
                pull[j] -= step * np.float64(columns.value[k]) * curvature[j]
    return slopes


@partial(kernel, nothing=(0.0, 0.0))
def line_of_model(pull, last, curvature):
    """Return slope and curvature of a model along its way from where its pull was `last`, at its end."""
    slope = curved = 0.0
    for j in range(pull.size):
        if curvature[j] > 0.0:  # else the pull stays
            moved = (last[j] - pull[j]) / curvature[j]
            slope += pull[j] * moved
            curved += curvature[j] * moved * moved
    return slope, curved


@kernel
def extrapolate(pull, last, length):
    """Move by a part of the way from `last`, which becomes the pull before."""
    for j in range(pull.size):
        before = pull[j]
        pull[j] += length * (before - last[j])
        last[j] = before


class Room(NamedTuple):
    """Room for `BLOCK` rows of some columns."""

    indptr: np.ndarray  # (BLOCK + 1,) int64
    feature: np.ndarray  # (BLOCK * columns,) int64
    value: np.ndarray  # (BLOCK * columns,) float64
    cursor: np.ndarray  # (columns,) int64: of each column, its first entry that has not been read
    scratch: Scratch


def matrix_of(order: np.ndarray, columns: Columns, bias: float, curvature: np.ndarray) -> np.ndarray:
    """Compute the lower triangle of ``Σ_i h_i x_i x_iᵀ``, x_i being a row's entries in the columns and `bias`, the last."""
    size, entries = order.size + 1, BLOCK * order.size
    scratch = Scratch(np.zeros(BLOCK, np.int64), np.zeros(BLOCK), np.zeros((BLOCK, size)))
    ends, cursor = np.zeros(BLOCK + 1, np.int64), columns.indptr[order]
    room = Room(ends, np.zeros(entries, np.int64), np.zeros(entries), cursor, scratch)
    matrix = np.zeros((size, size))
    add_matrix(order, columns, bias, curvature, room, matrix)
    return matrix


@kernel
def add_matrix(order, columns, bias, curvature, room, matrix):
    """Add to the matrix of `matrix_of`.

    Cost: half the square of the entries of each row whose loss is curved, or of k for dense rows.
    """
    scratch = room.scratch
    for first in range(0, curvature.size, BLOCK):
        stop, n = min(first + BLOCK, curvature.size), 0
        _take_rows(order, columns, first, stop, room)
        for j in range(first, stop):
            if curvature[j] > 0.0:
                scratch.row[n], scratch.curvature[n] = j - first, curvature[j]
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


@kernel
def hold(order, columns, held, n):
    """Copy columns behind the first n of `held`, which may be `columns` itself if they ascend from n on."""
    end = held.indptr[n]
    for p in range(order.size):
        start, stop = columns.indptr[order[p]], columns.indptr[order[p] + 1]
        for k in range(start, stop):
            held.row[end + k - start] = columns.row[k]
            held.value[end + k - start] = columns.value[k]
        end += stop - start
        held.feature[n + p] = columns.feature[order[p]]
        held.indptr[n + p + 1] = end

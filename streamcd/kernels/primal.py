"""Coordinate updates over columns: kernels of the primal methods (those of the dual ones are in `kernels/dual`).

Arguments that all kernels here share
-------------------------------------
order : (n,) int64                offsets of the columns to visit; -1 is the bias, a virtual column of ``bias`` in every row
data, scores, costs               `ColumnData`, and its `Scores` and `ColumnCosts`
w : ((d + 1) * lanes,) float64    weights, row-major; the last ones belong to the bias
lanes : (k,) int64                the lanes to work on
totals : (lanes, N_TOTALS)        sums as in `primitives`: GAP ``½ Σ D'²``, N_ACTIVE

Objective per lane: ``f(w) = ½‖w‖² + Σ C_j ξ(t_j)``, with ξ any loss of margins that has a curvature (`losses`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .compile import inlined, kernel
from .loss_table import LOG_LOSS, Loss
from .losses import (
    alpha_and_curvature,
    alpha_at,
    five_numbers,
    log_terms,
    loss_at,
    loss_change,
    most_curvature,
    row_terms,
)
from .penalties import gap_term, penalty_change, penalty_slope
from .primitives import Total, prefetch

PHI, LOSS_SUM = range(2)
"""Columns of the sums by `add_row_terms`: terms of the gap and of the primal loss."""
N_SUMS = 2

_SIGMA = 0.01  # part of the predicted decrease that a step has to reach
# of the curvature of rows on a straight piece: without it, columns with no other rows cannot move
_LINE_SHARE = 0.1
_NO_STEP = 1e-14  # a derivative below this is not worth a step
_LEAST_SHARE = 0.5**99  # of Newton's step, after which a line search ends without one
_BLOCK = 128  # rows whose terms are added up lane by lane: sums stay in registers, and scores in the cache
_COLUMNS_AHEAD = 3
_FETCH_AT_MOST = 64  # entries of a column to come


class Columns(NamedTuple):
    """Columns as an arena holds them; never changed by a kernel."""

    indptr: np.ndarray  # (columns + 1,) int64: column c has the entries ``indptr[c]:indptr[c + 1]``, by row
    feature: np.ndarray  # (columns,) int64: the feature of each
    row: np.ndarray  # (entries,): offsets into the arrays of `Scores`
    value: np.ndarray  # (entries,)


class Scores(NamedTuple):
    """Arrays kept of every row, the lanes of a row side by side.

    The margin is ``t = s z``, s the sign of the row's class; of a row with a target ``t = z - y``, and the loss is that of
    the target 0, which is the same: so all rows of a lane have the numbers of one kind of row.
    """

    score: np.ndarray  # (n * lanes,) float64: ``z = w·x``, changed in place
    fresh: np.ndarray  # like `score`, summed up anew by a read at fixed w; empty outside of one
    kind: np.ndarray  # (n,) uint16 or uint32: ``class * folds + fold`` (the class alone without folds)
    weight: np.ndarray  # (n,) float64; empty where all are 1
    target: np.ndarray  # (n,) float64; empty where rows have classes


class ColumnCosts(NamedTuple):
    """A problem as the primal methods take it."""

    signed: np.ndarray  # (kinds, lanes) float64: s C of a row of that kind in that lane; 0 leaves it out
    loss: Loss
    bias: float
    free_bias: bool  # whether the bias's weight is not penalised


class ColumnData(NamedTuple):
    """Columns with their rows and the problem."""

    columns: Columns
    scores: Scores
    costs: ColumnCosts


@inlined
def unit_numbers(scores, costs):
    """Return the five numbers of a row of cost 1."""
    return five_numbers(costs.loss, 1.0 if scores.target.size == 0 else 0.0, 1.0)


@inlined
def row_at(j, lane, z, scores, costs):
    """Return s C, s and the margin of row j at the score z; s C is 0 if the lane leaves the row out."""
    c = costs.signed[np.uint64(scores.kind[j]), np.uint64(lane)]
    if scores.weight.size > 0:
        c *= scores.weight[j]
    sign = math.copysign(1.0, c)
    return c, sign, sign * z - (scores.target[j] if scores.target.size > 0 else 0.0)


@inlined
def _fetch_ahead(order, p, columns, score, n_lanes):
    """Prefetch the first entries of a column further on, and the scores that a nearer one points to."""
    indptr = columns.indptr
    row = columns.row
    value = columns.value
    c = order[min(p + 2 * _COLUMNS_AHEAD, order.size - 1)]
    if c >= 0:
        for k in range(indptr[c], min(indptr[c] + _FETCH_AT_MOST, indptr[c + 1]), 16):
            prefetch(row, k)
            prefetch(value, k)
    c = order[min(p + _COLUMNS_AHEAD, order.size - 1)]
    if c >= 0:
        for k in range(indptr[c], min(indptr[c] + _FETCH_AT_MOST, indptr[c + 1])):
            prefetch(score, row[k] * n_lanes)


# The loops below are called with a literal `dense`, so that each case is compiled to a loop
# of its own: not all conditions inside one are taken out of it. Unsigned indices avoid the check for negative ones;
# decisions by margins are factors 0 or 1, since a branch would be mispredicted half of the time. Together they make it 17
# times as fast.


@inlined
def _entry(k, dense, data):
    """Return row and value of an entry; row k and the bias for the virtual column of the bias."""
    return (
        (k, data.costs.bias) if dense else (np.uint64(data.columns.row[k]), np.float64(data.columns.value[k]))
    )


@inlined
def _score_at(j, lane, costs):
    """Return the offset of row j and a lane in the flat arrays of `Scores`."""
    return np.uint64(j) * np.uint64(costs.signed.shape[1]) + np.uint64(lane)


@inlined
def _add_slopes(span, dense, lane, data, sums):
    """Add a column's terms to the sums of `_newton`: derivatives of the loss at step 0, and a bound of the second."""
    scores = data.scores
    costs = data.costs
    slope, curve, bound = sums
    numbers = unit_numbers(scores, costs)
    for k in range(np.uint64(span[0]), np.uint64(span[1])):
        j, v = _entry(k, dense, data)
        c, _, t = row_at(j, lane, scores.score[_score_at(j, lane, costs)], scores, costs)
        square = abs(c) * v * v
        alpha, curvature = alpha_and_curvature(costs.loss, t, numbers, _LINE_SHARE)
        slope -= c * v * alpha
        curve += square * curvature
        bound += square
    return slope, curve, bound


@inlined
def _add_slope_at_zero(span, dense, lane, data, slope):
    """Add a column's terms to the derivative of the loss at w = 0."""
    scores = data.scores
    costs = data.costs
    numbers = unit_numbers(scores, costs)
    for k in range(np.uint64(span[0]), np.uint64(span[1])):
        j, v = _entry(k, dense, data)
        c, _, t = row_at(j, lane, 0.0, scores, costs)
        slope -= c * v * alpha_at(costs.loss, t, numbers)
    return slope


@inlined
def _add_loss_change(span, dense, lane, data, step, change):
    """Add to `change` the difference that a step of the coordinate makes to the loss."""
    scores = data.scores
    costs = data.costs
    numbers = unit_numbers(scores, costs)
    for k in range(np.uint64(span[0]), np.uint64(span[1])):
        j, v = _entry(k, dense, data)
        c, sign, t = row_at(j, lane, scores.score[_score_at(j, lane, costs)], scores, costs)
        change += abs(c) * loss_change(costs.loss, t, sign * step * v, numbers)
    return change


@inlined
def _move(span, dense, lane, data, score, step):
    """Add a step along the coordinate to the scores."""
    for k in range(np.uint64(span[0]), np.uint64(span[1])):
        j, v = _entry(k, dense, data)
        score[_score_at(j, lane, data.costs)] += step * v


@inlined
def _newton(sums, weight, ridge, loss):
    """Return the gradient, Newton's step (0 if negligible), and the largest share of it accepted without evaluation."""
    most = most_curvature(loss, five_numbers(loss, 1.0, 1.0))
    gradient = penalty_slope(weight, ridge) + sums[0]
    curve = sums[1] + ridge
    bound = most * sums[2] + ridge
    if abs(gradient) <= _NO_STEP or curve <= 0.0:
        return gradient, 0.0, 0.0
    return gradient, -gradient / curve, 2.0 * (1.0 - _SIGMA) * curve / bound


@inlined
def _record_gradient(gradient, at_zero, lane, totals):
    """Add the gradient of a visited coordinate in a lane to the sums of the read."""
    totals[lane, Total.DUAL] += at_zero * at_zero
    totals[lane, Total.GAP] += 0.5 * gradient * gradient
    totals[lane, Total.N_ACTIVE] += 1


@inlined
def _solve(span, dense, weight, lane, data, begins, totals):
    """Choose one coordinate's step in one lane by line search, and add it to the scores; returns it, 0 for none.

    `weight` holds the weight, and the ridge: 1, or 0 if the weight is not penalised.
    """
    old, ridge = weight
    loss = data.costs.loss
    sums = _add_slopes(span, dense, lane, data, (0.0, 0.0, 0.0))
    gradient, step, free = _newton(sums, old, ridge, loss)
    at_zero = _add_slope_at_zero(span, dense, lane, data, 0.0) if begins[lane] else 0.0
    _record_gradient(gradient, at_zero, lane, totals)
    share = 1.0
    while step != 0.0 and share > free:
        change = _add_loss_change(span, dense, lane, data, step, penalty_change(old, step, ridge))
        if change <= _SIGMA * gradient * step:
            break
        step = 0.5 * step if share > _LEAST_SHARE else 0.0
        share = 0.5 * share
    if step != 0.0:
        _move(span, dense, lane, data, data.scores.score, step)
    return step


@kernel
def primal_visit(order, data, w, begins, lanes, totals):
    """Visit columns in the given order: a Newton step with backtracking along each coordinate, lane by lane.

    The largest ``s = d λ`` of λ = 1, ½, ¼, … for which ``f(w + s e_i) - f(w) <= σ s f'``, Armijo's rule; where
    ``λ <= 2 (1 - σ) D''(0) / H``, ``H = 1 + max ξ'' Σ C_j x_ji²``, this holds without an evaluation. Source: Chang, Hsieh,
    Lin, JMLR 9 (2008).

    Changed in place: `w`, the scores, `totals`. Cost: two sweeps over the column's entries,
    and one for each evaluation. For lanes marked in `begins` (lanes,) the squares of the derivatives at w = 0 are added to
    DUAL, at the cost of a sweep.
    """
    columns, scores, costs = data
    n_lanes = totals.shape[0]
    n_rows = scores.score.size // n_lanes
    last = w.size - n_lanes
    ridge = 0.0 if costs.free_bias else 1.0  # of the bias
    for p in range(order.size):
        _fetch_ahead(order, p, columns, scores.score, n_lanes)
        c = order[p]
        for lane in lanes:
            if c >= 0:
                at = columns.feature[c] * n_lanes + lane
                span = (columns.indptr[c], columns.indptr[c + 1])
                step = _solve(span, False, (w[at], 1.0), lane, data, begins, totals)
            else:
                at = last + lane
                step = _solve((0, n_rows), True, (w[at], ridge), lane, data, begins, totals)
            if step != 0.0:
                w[at] += step


# ---------------------------------------------------------------------------------------------------------------------
# Certificates. alpha_j is minus the slope of the loss at the score kept; ``s_j alpha_j``, the pull, takes that one's place.


@kernel
def set_pull(scores, costs, lanes, sums):
    """Replace the scores by pulls, and add those below and above 0 to `sums` (2, lanes)."""
    n_lanes = sums.shape[1]
    numbers = unit_numbers(scores, costs)
    for j in range(scores.score.size // n_lanes):
        for lane in lanes:
            at = _score_at(j, lane, costs)
            c, _, t = row_at(j, lane, scores.score[at], scores, costs)
            pull = c * alpha_at(costs.loss, t, numbers) if c != 0.0 else 0.0
            scores.score[at] = pull
            sums[1 if pull > 0.0 else 0, lane] += pull


@inlined
def _add_products(span, dense, lane, data, v):
    """Add a column's terms to ``v_i = Σ s_j alpha_j x_ji``."""
    for k in range(np.uint64(span[0]), np.uint64(span[1])):
        j, x = _entry(k, dense, data)
        v += x * data.scores.score[_score_at(j, lane, data.costs)]
    return v


@inlined
def _add_gap_term(weight, v, ridge, lane, totals):
    """Add the terms of one coordinate of w and of w(alpha) to the certificate's; of a free bias there are none, v is 0."""
    if ridge != 0.0:
        totals[lane, Total.GAP] += gap_term(weight, v)


@kernel
def primal_certify(order, data, w, lanes, totals):
    """Add up at fixed `w`: ``½ (w_i - v_i)²`` into GAP, ``v = w(alpha)``, from the pulls, and w·x into `fresh`.

    Any alpha is a point of the dual, so the certificate holds where the scores that it comes from had drifted from w·x: the
    rows' margins are those of `fresh`.
    """
    columns, scores, costs = data
    n_lanes = totals.shape[0]
    n_rows = scores.score.size // n_lanes
    last = w.size - n_lanes
    ridge = 0.0 if costs.free_bias else 1.0  # of the bias
    for p in range(order.size):
        _fetch_ahead(order, p, columns, scores.score, n_lanes)
        c = order[p]
        for lane in lanes:
            if c >= 0:
                weight = w[columns.feature[c] * n_lanes + lane]
                span = (columns.indptr[c], columns.indptr[c + 1])
                v = _add_products(span, False, lane, data, 0.0)
                _add_gap_term(weight, v, 1.0, lane, totals)
                _move(span, False, lane, data, scores.fresh, weight)
            else:
                weight = w[last + lane]
                v = _add_products((0, n_rows), True, lane, data, 0.0)
                _add_gap_term(weight, v, ridge, lane, totals)
                _move((0, n_rows), True, lane, data, scores.fresh, weight)


@kernel
def add_row_terms(scores, costs, lanes, sums):
    """Add the terms of rows to `sums` (lanes, N_SUMS), of margins from `fresh` and alpha from pulls, whose place `fresh`
    then takes.
    """
    n_lanes = sums.shape[0]
    for j in range(scores.score.size // n_lanes):
        for lane in lanes:
            at = _score_at(j, lane, costs)
            signed, sign, t = row_at(j, lane, scores.fresh[at], scores, costs)
            alpha = sign * scores.score[at]
            c = abs(signed)
            scores.score[at] = scores.fresh[at]
            if c == 0.0:
                continue
            if costs.loss.kind == LOG_LOSS:
                phi, primal, _ = log_terms(t, c, alpha, c - alpha)
            else:
                numbers = five_numbers(costs.loss, 1.0 if scores.target.size == 0 else 0.0, c)
                phi, primal, _ = row_terms(t, alpha, numbers)
            sums[lane, PHI] += phi
            sums[lane, LOSS_SUM] += primal


@kernel
def add_line_terms(scores, previous, costs, lanes, sums):
    """Add the rows' terms of a line search along ``d = score - previous`` to `sums` (lanes, 3).

    These are the loss at ``score + s d``, s = 0, and its first two derivatives with respect to s; the loss alone if
    `previous` is empty.
    """
    n_lanes = sums.shape[0]
    n_rows = scores.score.size // n_lanes
    numbers = unit_numbers(scores, costs)
    for start in range(0, n_rows, _BLOCK):
        for lane in lanes:
            total = sums[lane, 0]
            slope = sums[lane, 1]
            curve = sums[lane, 2]
            for j in range(start, min(start + _BLOCK, n_rows)):
                at = _score_at(j, lane, costs)
                c, _, t = row_at(j, lane, scores.score[at], scores, costs)
                total += abs(c) * loss_at(costs.loss, t, numbers)
                if previous.size:
                    moved = scores.score[at] - previous[at]
                    alpha, curvature = alpha_and_curvature(costs.loss, t, numbers, 0.0)
                    slope -= c * alpha * moved
                    curve += abs(c) * curvature * moved * moved
            sums[lane, 0] = total
            sums[lane, 1] = slope
            sums[lane, 2] = curve


# ---------------------------------------------------------------------------------------------------------------------
# Columns in segments, of which each call handles one, the first `size` entries of the arena, in all given lanes. A step is
# one that needs no trial, so that two sweeps over the column do.


@kernel
def segment_slopes(size, data, begins, lanes, sums):
    """Add a segment's terms to `sums` (lanes, 4): see `_add_slopes`, and the derivative at w = 0 where a lane begins."""
    for lane in lanes:
        of_lane = sums[lane]
        of_lane[0], of_lane[1], of_lane[2] = _add_slopes(
            (0, size), False, lane, data, (of_lane[0], of_lane[1], of_lane[2])
        )
        if begins[lane]:
            of_lane[3] = _add_slope_at_zero((0, size), False, lane, data, of_lane[3])


@kernel
def choose_steps(sums, w, loss, lanes, totals, steps):
    """Choose the steps (lanes,) of a column's weights `w` (lanes,), and add them to these."""
    for lane in lanes:
        of_lane = sums[lane]
        gradient, step, free = _newton((of_lane[0], of_lane[1], of_lane[2]), w[lane], 1.0, loss)
        _record_gradient(gradient, of_lane[3], lane, totals)
        steps[lane] = min(free, 1.0) * step
        w[lane] += steps[lane]


@kernel
def segment_products(size, data, lanes, v):
    """Add a segment's terms to v (lanes,)."""
    for lane in lanes:
        v[lane] = _add_products((0, size), False, lane, data, v[lane])


@kernel
def add_gap_terms(w, v, lanes, totals):
    """Add the terms of a column's weights (lanes,) to the certificate's."""
    for lane in lanes:
        _add_gap_term(w[lane], v[lane], 1.0, lane, totals)


@kernel
def move_segment(size, data, lanes, steps, score):
    """Add the steps (lanes,) along the column to the scores of a segment's rows."""
    for lane in lanes:
        if steps[lane] != 0.0:
            _move((0, size), False, lane, data, score, steps[lane])

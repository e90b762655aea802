"""Coordinate updates over columns: kernels of the primal methods (those of the dual ones are in `kernels/dual`).

Arguments that all kernels here share
-------------------------------------
order : (n,) int64                offsets of the columns to visit; -1 is the bias, a virtual column of ``bias`` in every row
data, scores, costs               `ColumnData`, and its `Scores` and `ColumnCosts` (see `columns`)
w : ((d + 1) * lanes,) float64    weights, row-major; the last ones belong to the bias
lanes : (k,) int64                the lanes to work on
totals : (lanes, N_TOTALS)        sums as in `primitives`: GAP ``½ Σ D'²``, the extremes of D', N_VISITED, N_ACTIVE

Objective per lane: ``f(w) = ½‖w‖² + Σ C_j ξ(t_j)``, with ξ any loss of margins that has a curvature (`losses`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .compile import inlined, kernel
from .loss_table import LOG_LOSS
from .losses import (
    alpha_and_curvature,
    alpha_at,
    falling,
    five_numbers,
    half_square_slopes,
    is_half_square,
    kink_terms,
    log_terms,
    loss_at,
    loss_change,
    model_curvature,
    most_curvature,
    most_curvature_near,
    row_terms,
    unit_of,
)
from .penalties import conjugate, gap_term, penalty_change, penalty_slope
from .primitives import (
    CURVE,
    DUAL,
    GAP,
    N_ACTIVE,
    N_STEPS,
    N_VISITED,
    ROUNDING,
    VIOLATION_MAX,
    VIOLATION_MIN,
    W_ALPHA,
    prefetch,
)

PHI, LOSS_SUM, LINEAR_SUM, OVER_COST_SUM, SQUARES_SUM, SLOPES_SUM, LARGEST_COST, ROUNDING_SUM = range(8)
"""Columns of the sums by `add_row_terms`: terms of the gap and of the primal loss; the part of the dual's that is linear in
alpha; alpha² / C; alpha²; squared derivatives of the gap's terms with respect to their margins, each divided by C; the
largest C; a bound on the rounding of the terms, in units of u."""
N_SUMS = 8

_SIGMA = 0.01  # part of the predicted decrease that a step has to reach
_LINE_SHARE = (
    0.1  # of the curvature of rows on a straight piece: without it, columns with no other rows cannot move
)
_NO_STEP = 1e-14  # a derivative below this is not worth a step
_LEAST_SHARE = 0.5**100  # of Newton's step, after which a line search ends without one
_BLOCK = 128  # rows whose terms are added up lane by lane: sums stay in registers, and scores in the cache
_COLUMNS_AHEAD = 3
_FETCH_AT_MOST = 64  # entries of a column to come


@inlined
def _fetch_ahead(order, p, columns, score, n_lanes):
    """Prefetch the first entries of a column further on, and the scores that a nearer one points to."""
    indptr, row, value = columns.indptr, columns.row, columns.value
    c = order[min(p + 2 * _COLUMNS_AHEAD, order.size - 1)]
    if c >= 0:
        for k in range(indptr[c], min(indptr[c] + _FETCH_AT_MOST, indptr[c + 1]), 16):
            prefetch(row, k)
            prefetch(value, k)
    c = order[min(p + _COLUMNS_AHEAD, order.size - 1)]
    if c >= 0:
        for k in range(indptr[c], min(indptr[c] + _FETCH_AT_MOST, indptr[c + 1])):
            prefetch(score, row[k] * n_lanes)


# The loops below are called with literals (`dense`, `has_targets`, `squares`), so that each case is compiled to a loop
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
def _unit_numbers(scores, costs):
    """Return the five numbers of a row of cost 1."""
    return five_numbers(costs.loss, 1.0 if scores.target.size == 0 else 0.0, 1.0)


@inlined
def _margin(j, sign, z, scores):
    """Return the margin of row j at the score z."""
    return sign * z - (scores.target[j] if scores.target.size > 0 else 0.0)


@inlined
def _margin_in(has_targets, j, sign, z, scores):
    """Return `_margin` in a loop that is compiled for rows with targets, or for rows with classes."""
    return z - scores.target[j] if has_targets else sign * z


@inlined
def _signed_cost(j, lane, scores, costs):
    """Return s C of row j, including its weight; 0 if the lane leaves it out."""
    c = costs.signed[np.uint64(scores.kind[j]), np.uint64(lane)]
    if scores.weight.size > 0:
        c *= scores.weight[j]
    return c


@inlined
def _score_at(j, lane, costs):
    """Return the offset of row j and a lane in the flat arrays of `Scores`."""
    return np.uint64(j) * np.uint64(costs.signed.shape[1]) + np.uint64(lane)


@inlined
def _add_slopes_in(has_targets, squares, span, dense, lane, data, sums):
    """See `_add_slopes`."""
    scores, costs = data.scores, data.costs
    slope, curve, bound = sums
    numbers = _unit_numbers(scores, costs)
    for k in range(np.uint64(span[0]), np.uint64(span[1])):
        j, v = _entry(k, dense, data)
        c = _signed_cost(j, lane, scores, costs)
        z = scores.score[_score_at(j, lane, costs)]
        t = _margin_in(has_targets, j, math.copysign(1.0, c), z, scores)
        square = abs(c) * v * v
        if squares:
            alpha, curvature = half_square_slopes(t, numbers)
        else:
            alpha, curvature = alpha_and_curvature(costs.loss, t, numbers)
            curvature = model_curvature(t, alpha, curvature, numbers, _LINE_SHARE)
        slope -= c * v * alpha
        curve += square * curvature
        bound += square
    return slope, curve, bound


@inlined
def _add_slopes(span, dense, lane, data, sums):
    """Add a column's terms to the sums of `_newton`: derivatives of the loss at step 0, and a bound of the second."""
    has_targets = data.scores.target.size > 0
    if is_half_square(_unit_numbers(data.scores, data.costs)):
        if has_targets:
            return _add_slopes_in(True, True, span, dense, lane, data, sums)
        return _add_slopes_in(False, True, span, dense, lane, data, sums)
    if has_targets:
        return _add_slopes_in(True, False, span, dense, lane, data, sums)
    return _add_slopes_in(False, False, span, dense, lane, data, sums)


@inlined
def _add_slope_at_zero(span, dense, lane, data, slope):
    """Add a column's terms to the derivative of the loss at w = 0."""
    scores, costs = data.scores, data.costs
    numbers = _unit_numbers(scores, costs)
    for k in range(np.uint64(span[0]), np.uint64(span[1])):
        j, v = _entry(k, dense, data)
        slope -= (
            _signed_cost(j, lane, scores, costs)
            * v
            * alpha_at(costs.loss, _margin(j, 1.0, 0.0, scores), numbers)
        )
    return slope


@inlined
def _add_loss_change(span, dense, lane, data, step, change):
    """Add to `change` the difference that a step of the coordinate makes to the loss."""
    scores, costs = data.scores, data.costs
    numbers = _unit_numbers(scores, costs)
    for k in range(np.uint64(span[0]), np.uint64(span[1])):
        j, v = _entry(k, dense, data)
        c = _signed_cost(j, lane, scores, costs)
        y = math.copysign(1.0, c)
        t = _margin(j, y, scores.score[_score_at(j, lane, costs)], scores)
        change += abs(c) * loss_change(costs.loss, t, y * step * v, numbers)
    return change


@inlined
def _move(span, dense, lane, data, score, step):
    """Add a step along the coordinate to the scores."""
    for k in range(np.uint64(span[0]), np.uint64(span[1])):
        j, v = _entry(k, dense, data)
        score[_score_at(j, lane, data.costs)] += step * v


# One coordinate in one lane: sweeps over its column, in one segment or in several, for the derivatives, for every trial of
# the line search, and for the move. After each sweep `_turned` decides what the next one does.

SLOPES, TRY, MOVE, DONE = 0.0, 1.0, 2.0, 3.0
"""Kinds of sweeps, as numbers that fit in an array with the rest of a search; `DONE` where there is no other sweep."""


class Search(NamedTuple):
    """The line search of one coordinate in one lane; before the first sweep all is 0 but `share`, 1."""

    sweep: float  # the kind of the next one
    slope: float  # see `_add_slopes`
    curve: float
    bound: float
    at_zero: float  # slope at w = 0
    gradient: float
    step: float
    share: float  # of Newton's step
    free: float  # the largest share that needs no trial
    change: float  # of the loss, by the step on trial


@inlined
def _swept(search, span, dense, begins, lane, data):
    """Sweep over a segment; returns the search with its sums."""
    kind, slope, curve, bound, at_zero, gradient, step, share, free, change = search
    if kind == SLOPES:
        sums = (slope, curve, bound)
        slope, curve, bound = _add_slopes(span, dense, lane, data, sums)
        if begins[lane]:
            at_zero = _add_slope_at_zero(span, dense, lane, data, at_zero)
    elif kind == TRY:
        change = _add_loss_change(span, dense, lane, data, step, change)
    elif kind == MOVE:
        _move(span, dense, lane, data, data.scores.score, step)
    return Search(kind, slope, curve, bound, at_zero, gradient, step, share, free, change)


@inlined
def _turned(search, weight, begins, lane, loss, totals):
    """Conclude a sweep over all of the column; returns the search with the kind of the next sweep.

    `weight` holds the weight, and the ridge: 1, or 0 if the weight is not penalised.
    """
    own, ridge = weight
    kind, slope, curve, bound, at_zero, gradient, step, share, free, change = search
    if kind == SLOPES:
        gradient, step, free = _newton((slope, curve, bound), own, ridge, loss)
        _record_gradient(gradient, at_zero, begins, lane, totals)
        kind = DONE if step == 0.0 else MOVE if share <= free else TRY
    elif kind == TRY:
        totals[lane, N_STEPS] += 1
        change += penalty_change(own, step, ridge)
        kind = MOVE
        if not _is_sufficient(change, gradient, step, loss):
            share, step, change = 0.5 * share, 0.5 * step, 0.0
            kind = MOVE if share <= free else TRY if share > _LEAST_SHARE else DONE
    else:
        kind = DONE
    return Search(kind, slope, curve, bound, at_zero, gradient, step, share, free, change)


@inlined
def _newton(sums, own, ridge, loss):
    """Return the gradient, Newton's step (0 if negligible), and the largest share of it accepted without evaluation."""
    numbers = five_numbers(loss, 1.0, 1.0)
    unit, most = unit_of(loss, numbers), most_curvature(loss, numbers)
    gradient = penalty_slope(own, ridge) + unit * sums[0]
    curve, bound = unit * sums[1] + ridge, most * sums[2] + ridge
    if abs(gradient) <= _NO_STEP or curve <= 0.0:
        return gradient, 0.0, 0.0
    free = 2.0 * (1.0 - _SIGMA) * curve / bound if loss.kind == LOG_LOSS else curve / (0.5 * bound + _SIGMA)
    return gradient, -gradient / curve, free


@inlined
def _record_gradient(gradient, at_zero, begins, lane, totals):
    """Add the gradient of a visited coordinate in a lane to the sums of the read."""
    if begins[lane]:
        totals[lane, DUAL] += at_zero * at_zero
    totals[lane, GAP] += 0.5 * gradient * gradient
    totals[lane, VIOLATION_MAX] = max(totals[lane, VIOLATION_MAX], gradient)
    totals[lane, VIOLATION_MIN] = min(totals[lane, VIOLATION_MIN], gradient)
    totals[lane, N_VISITED] += 1
    totals[lane, N_ACTIVE] += 1


@inlined
def _is_sufficient(change, gradient, step, loss):
    """Test that the objective falls enough: by Armijo's rule for the logistic loss, Algorithm 2's for others."""
    if loss.kind == LOG_LOSS:
        return change <= _SIGMA * gradient * step
    return change <= -_SIGMA * step * step


@inlined
def _solve(span, dense, weight, lane, data, begins, totals):
    """Choose one coordinate's step in one lane by line search, and add it to the scores; returns it, 0 for none."""
    search = Search(SLOPES, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0)
    while search.sweep != DONE:
        moves = search.sweep == MOVE
        search = _swept(search, span, dense, begins, lane, data)
        if moves:
            return search.step
        search = _turned(search, weight, begins, lane, data.costs.loss, totals)
    return 0.0


@kernel
def primal_visit(order, data, w, begins, lanes, totals):
    """Visit columns in the given order: a Newton step with backtracking along each coordinate, lane by lane.

    Algorithm 2 of Chang, Hsieh, Lin (JMLR 9, 2008): the largest ``s = d λ`` of λ = 1, ½, ¼, … for which
    ``f(w + s e_i) - f(w) <= -σ s²``; where ``λ <= D''(0) / (H/2 + σ)``, ``H = 1 + max ξ'' Σ C_j x_ji²``, this holds without
    an evaluation. Logistic: Newton's step with Armijo's rule ``f(w + s e_i) - f(w) <= σ s f'``, which holds without an
    evaluation where ``λ <= 2 (1 - σ) D''(0) / H``.

    Changed in place: `w`, the scores, `totals` (N_STEPS counts evaluations). Cost: two sweeps over the column's entries,
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
# Certificates. alpha_j is minus the slope of the loss at the score kept, times the factor of the row's side


@inlined
def _add_dual_sum_in(has_targets, span, dense, lane, data, side, sums):
    """See `_add_dual_sum`."""
    scores, costs = data.scores, data.costs
    total, squares = sums
    numbers = _unit_numbers(scores, costs)
    for k in range(np.uint64(span[0]), np.uint64(span[1])):
        j, v = _entry(k, dense, data)
        c = _signed_cost(j, lane, scores, costs)
        y = math.copysign(1.0, c)
        t = _margin_in(has_targets, j, y, scores.score[_score_at(j, lane, costs)], scores)
        signed = abs(c) * alpha_at(costs.loss, t, numbers) * y
        total += signed * v * (side[1, lane] if (signed if has_targets else c) > 0.0 else side[0, lane])
        squares += v * v
    return total, squares


@inlined
def _add_dual_sum(span, dense, lane, data, side, sums):
    """Add a column's terms to ``v_i = Σ s_j alpha_j x_ji`` and to ``Σ x_ji²``."""
    if data.scores.target.size > 0:
        return _add_dual_sum_in(True, span, dense, lane, data, side, sums)
    return _add_dual_sum_in(False, span, dense, lane, data, side, sums)


@inlined
def _accumulate_gap(own, sums, n_entries, lane, totals):
    """Add the terms of one coordinate of w and of w(alpha) to the certificate's; `sums` are those of `_add_dual_sum`.

    The error of v is at most ``(n + 8) u ‖alpha‖ ‖x_·i‖``: ROUNDING sums its effect on the term of the gap, in units of
    u ‖alpha‖, and W_ALPHA its square.
    """
    v, squares = sums
    error = (n_entries + 8.0) * math.sqrt(squares)
    gradient = own - v
    totals[lane, ROUNDING] += abs(gradient) * error
    totals[lane, W_ALPHA] += error * error
    totals[lane, GAP] += gap_term(own, v)
    totals[lane, DUAL] -= conjugate(v)
    totals[lane, VIOLATION_MAX] = max(totals[lane, VIOLATION_MAX], gradient)
    totals[lane, VIOLATION_MIN] = min(totals[lane, VIOLATION_MIN], gradient)


@kernel
def primal_certify(order, data, w, side, lanes, totals):
    """Add up at fixed `w`: ``½ (w_i - v_i)²`` into GAP and ``-½ v_i²`` into DUAL, ``v = w(alpha)``, and w·x into `fresh`.

    Parameters
    ----------
    side : ndarray of float64, shape (2, lanes)
        Factors of alpha for rows with s alpha < 0 and > 0; not above 1.

    Notes
    -----
    alpha comes from `score`, which may have drifted from w·x: any alpha is a point of the dual, so the certificate, which
    takes the rows' margins from `fresh`, holds all the same. A free bias has no term: `side` makes ``Σ y alpha = 0``.
    """
    columns, scores, costs = data
    n_lanes = totals.shape[0]
    n_rows = scores.score.size // n_lanes
    last = w.size - n_lanes
    for p in range(order.size):
        _fetch_ahead(order, p, columns, scores.score, n_lanes)
        c = order[p]
        for lane in lanes:
            totals[lane, N_VISITED] += 1
            if c >= 0:
                own = w[columns.feature[c] * n_lanes + lane]
                span = (columns.indptr[c], columns.indptr[c + 1])
                sums = _add_dual_sum(span, False, lane, data, side, (0.0, 0.0))
                n_entries = span[1] - span[0]
                _move(span, False, lane, data, scores.fresh, own)
            else:
                own = w[last + lane]
                n_entries = n_rows
                sums = _add_dual_sum((0, n_rows), True, lane, data, side, (0.0, 0.0))
                _move((0, n_rows), True, lane, data, scores.fresh, own)
            totals[lane, CURVE] += sums[1]
            if c >= 0 or not costs.free_bias:
                _accumulate_gap(own, sums, n_entries, lane, totals)


@kernel
def add_row_terms(scores, costs, side, lanes, sums):
    """Add the terms of rows to `sums` (lanes, N_SUMS): margins from `fresh`, alpha from `score` and `side`."""
    n_lanes = sums.shape[0]
    unit = _unit_numbers(scores, costs)
    for j in range(scores.score.size // n_lanes):
        for lane in lanes:
            c = _signed_cost(j, lane, scores, costs)
            if c == 0.0:
                continue
            y, c = math.copysign(1.0, c), abs(c)
            own = _margin(j, y, scores.score[j * n_lanes + lane], scores)
            alpha = alpha_at(costs.loss, own, unit)
            factor = side[1 if y * alpha > 0.0 else 0, lane]
            alpha = factor * c * alpha
            t = _margin(j, y, scores.fresh[j * n_lanes + lane], scores)
            over_cost = alpha * alpha / c
            if costs.loss.kind == LOG_LOSS:
                rest = factor * falling(-own) + (1.0 - factor)
                phi, primal, linear = log_terms(t, c, alpha, c * rest)
                magnitude = 64.0 * (primal + phi)
            else:
                numbers = five_numbers(costs.loss, 1.0 if scores.target.size == 0 else 0.0, c)
                phi, primal, _ = row_terms(t, alpha, numbers)
                linear = numbers[0] * alpha - numbers[1] * abs(alpha)
                magnitude = 8.0 * (primal + over_cost + abs(linear) + abs(alpha * t))
                magnitude += 16.0 * kink_terms(t, alpha, numbers)
            best = c * alpha_at(costs.loss, t, unit)
            slope = alpha - best
            sums[lane, PHI] += phi
            sums[lane, LOSS_SUM] += primal
            sums[lane, LINEAR_SUM] += linear
            sums[lane, OVER_COST_SUM] += over_cost
            sums[lane, SQUARES_SUM] += alpha * alpha
            sums[lane, SLOPES_SUM] += slope * slope / c
            sums[lane, LARGEST_COST] = max(sums[lane, LARGEST_COST], c)
            sums[lane, ROUNDING_SUM] += magnitude


@kernel
def add_losses(scores, costs, lanes, sums):
    """Add the rows' losses to `sums` (lanes,)."""
    n_lanes = sums.size
    n_rows = scores.score.size // n_lanes
    numbers = _unit_numbers(scores, costs)
    for start in range(0, n_rows, _BLOCK):
        for lane in lanes:
            total = sums[lane]
            for j in range(start, min(start + _BLOCK, n_rows)):
                c = _signed_cost(j, lane, scores, costs)
                t = _margin(j, math.copysign(1.0, c), scores.score[_score_at(j, lane, costs)], scores)
                total += abs(c) * loss_at(costs.loss, t, numbers)
            sums[lane] = total


@kernel
def add_line_terms(scores, previous, costs, lanes, sums):
    """Add the rows' terms of a line search along ``d = score - previous`` to `sums` (lanes, 4).

    These are the loss at ``score + s d``, s = 0; its first two derivatives with respect to s; a bound of the second for s
    in [0, 1].
    """
    n_lanes = sums.shape[0]
    n_rows = scores.score.size // n_lanes
    numbers = _unit_numbers(scores, costs)
    unit = unit_of(costs.loss, numbers)
    for start in range(0, n_rows, _BLOCK):
        for lane in lanes:
            total, slope, curve, bound = sums[lane, 0], sums[lane, 1], sums[lane, 2], sums[lane, 3]
            for j in range(start, min(start + _BLOCK, n_rows)):
                c = _signed_cost(j, lane, scores, costs)
                y, c, at = math.copysign(1.0, c), abs(c), _score_at(j, lane, costs)
                t, moved = _margin(j, y, scores.score[at], scores), y * (scores.score[at] - previous[at])
                alpha, curvature = alpha_and_curvature(costs.loss, t, numbers)
                alpha, curvature = unit * alpha, unit * curvature
                total += c * loss_at(costs.loss, t, numbers)
                slope -= c * alpha * moved
                curve += c * curvature * moved * moved
                bound += c * most_curvature_near(costs.loss, t, abs(moved), numbers) * moved * moved
            sums[lane, 0], sums[lane, 1], sums[lane, 2], sums[lane, 3] = total, slope, curve, bound


@kernel
def side_sums(scores, costs, lanes, sums):
    """Add the sizes of alpha of rows with s alpha < 0 and > 0 to `sums` (2, lanes)."""
    n_lanes = sums.shape[1]
    numbers = _unit_numbers(scores, costs)
    for j in range(scores.score.size // n_lanes):
        for lane in lanes:
            c = _signed_cost(j, lane, scores, costs)
            if c != 0.0:
                t = _margin(j, math.copysign(1.0, c), scores.score[j * n_lanes + lane], scores)
                signed = c * alpha_at(costs.loss, t, numbers)
                sums[1 if signed > 0.0 else 0, lane] += abs(signed)


# ---------------------------------------------------------------------------------------------------------------------

# Columns in segments (`Span`): each kernel handles one segment in all given lanes, and adds to the sums of earlier segments.
# Additions are made in the order of `_solve`, so the bits are the same. Rows are numbered from the first of `scores`.


@inlined
def _search_of(lane, searches):
    s = searches[lane]
    return Search(s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9])


@kernel
def sweep_segment(span, data, begins, lanes, searches):
    """Sweep over a segment, in each lane for what its row of `searches` (lanes, fields of `Search`) is at."""
    for lane in lanes:
        search = _search_of(lane, searches)
        if span.dense:
            search = _swept(search, span, True, begins, lane, data)
        else:
            search = _swept(search, span, False, begins, lane, data)
        for field in range(len(search)):
            searches[lane, field] = search[field]


@kernel
def turn_searches(w, ridge, loss, begins, lanes, totals, searches):
    """Conclude the sweep over all segments, and add the steps of lanes that have moved to `w` (lanes,)."""
    for lane in lanes:
        search = _search_of(lane, searches)
        if search.sweep == MOVE:
            w[lane] += search.step
        search = _turned(search, (w[lane], ridge), begins, lane, loss, totals)
        for field in range(len(search)):
            searches[lane, field] = search[field]


@kernel
def segment_moves(span, data, lanes, steps):
    """Add the steps (lanes,) along the column to the fresh scores, in place."""
    for lane in lanes:
        _move(span, span.dense, lane, data, data.scores.fresh, steps[lane])


@kernel
def segment_dual_sums(span, data, side, lanes, sums):
    """Add a segment's terms to `sums` (lanes, 2), as `_add_dual_sum` does."""
    for lane in lanes:
        before = (sums[lane, 0], sums[lane, 1])
        sums[lane, 0], sums[lane, 1] = _add_dual_sum(span, span.dense, lane, data, side, before)


@kernel
def accumulate_gap(own, sums, n_entries, ridge, lanes, totals):
    """Finish a coordinate as `primal_certify` does; `own` (lanes,) holds the weights, `sums` that of `segment_dual_sums`."""
    for lane in lanes:
        totals[lane, CURVE] += sums[lane, 1]
        if ridge > 0.0:
            _accumulate_gap(own[lane], (sums[lane, 0], sums[lane, 1]), n_entries, lane, totals)

"""Coordinate updates over columns: kernels of the primal methods (those of the dual ones are in `kernels/dual`).

Arguments that all kernels here share
-------------------------------------
order : (n,) int64                offsets of the columns to visit; -1 is the bias, a virtual column of ``bias`` in every row
columns, scores, costs            `Columns`, `Scores`, `ColumnCosts`
w : ((d + 1) * lanes,) float64    weights, row-major; the last ones belong to the bias
lanes : (k,) int64                the lanes to work on
totals : (lanes, N_TOTALS)        sums as in `primitives`: GAP ``½ Σ D'²``, the extremes of D', N_VISITED, N_ACTIVE

Objective per lane: ``f(w) = ½‖w‖² + Σ C_j ξ(t_j)``, ``ξ(t) = max(1 - t, 0)²`` or ``log(1 + e^-t)``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .compile import inlined, kernel
from .primitives import (
    CURVE,
    DUAL,
    GAP,
    LOG_LOSS,
    N_ACTIVE,
    N_STEPS,
    N_VISITED,
    ROUNDING,
    VIOLATION_MAX,
    VIOLATION_MIN,
    W_ALPHA,
    falling,
    log_terms,
    prefetch,
)

PHI, LOSS_SUM, ALPHA_SUM, QUADRATIC_SUM, SQUARES_SUM, SLOPES_SUM, LARGEST_COST, ROUNDING_SUM = range(8)
"""Columns of the sums by `row_terms`: terms of the gap and of the primal loss; alpha; D alpha²; alpha²; squared derivatives
of the gap's terms with respect to their margins, each divided by C; the largest C; a bound on the rounding of the terms, in
units of u."""
N_SUMS = 8

_SIGMA = 0.01  # part of the predicted decrease that a step has to reach
_NO_STEP = 1e-14  # a derivative below this is not worth a step
HALVINGS = 100
"""Largest number of trials of a line search."""
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
    """Arrays kept of every row, the lanes of a row side by side. The margin is ``t = y z``, ``b = 1 - t``."""

    score: np.ndarray  # (n * lanes,) float64: ``z = w·x``, changed in place
    fresh: np.ndarray  # like `score`, summed up anew by a read at fixed w; empty outside of one
    kind: np.ndarray  # (n,) uint16 or uint32: ``class * folds + fold`` (the class alone without folds)
    weight: np.ndarray  # (n,) float64; empty where all are 1


class ColumnCosts(NamedTuple):
    """A problem as the primal methods take it."""

    signed: np.ndarray  # (kinds, lanes) float64: y C of a row of that kind in that lane; 0 leaves it out
    loss: int
    bias: float
    free_bias: bool  # whether the bias's weight is not penalised


class Span(NamedTuple):
    """A segment of a column: ``row[start:stop]``, or, where `dense`, those rows themselves, each with the value `bias`."""

    start: int
    stop: int
    dense: bool


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


# The loops below are called with a literal `dense`, so that each case is compiled to its own loop; unsigned indices avoid
# the check for negative ones; decisions by margins are factors 0 or 1, since a branch would be mispredicted half of the
# time. Together: 800 M entries/s on a9a instead of 46.


@inlined
def _entry(k, dense, columns, costs):
    """Return row and value of an entry; row k and the bias for the virtual column of the bias."""
    return (k, costs.bias) if dense else (np.uint64(columns.row[k]), np.float64(columns.value[k]))


@inlined
def _signed_cost(j, lane, scores, costs):
    """Return y C of row j, including its weight; 0 if the lane leaves it out."""
    c = costs.signed[np.uint64(scores.kind[j]), np.uint64(lane)]
    if scores.weight.size > 0:
        c *= scores.weight[j]
    return c


@inlined
def _score_at(j, lane, costs):
    """Return the offset of row j and a lane in the flat arrays of `Scores`."""
    return np.uint64(j) * np.uint64(costs.signed.shape[1]) + np.uint64(lane)


@inlined
def _add_slopes(span, dense, lane, columns, scores, costs, sums):
    """Add a column's terms to the sums of `_newton`: derivatives of the loss at step 0, and a bound of the second."""
    slope, curve, bound = sums
    for k in range(np.uint64(span[0]), np.uint64(span[1])):
        j, v = _entry(k, dense, columns, costs)
        c = _signed_cost(j, lane, scores, costs)
        t = math.copysign(1.0, c) * scores.score[_score_at(j, lane, costs)]
        square = abs(c) * v * v
        bound += square
        if costs.loss == LOG_LOSS:
            p = falling(t)
            slope -= c * v * p
            curve += square * p * (1.0 - p)
        else:
            above = np.float64(t < 1.0)
            slope -= c * v * (1.0 - t) * above
            curve += square * above
    return slope, curve, bound


@inlined
def _add_slope_at_zero(span, dense, lane, columns, scores, costs, slope):
    """Add a column's terms to the derivative of the loss at w = 0, but for its factor (½ logistic loss, 2 squared hinge)."""
    for k in range(np.uint64(span[0]), np.uint64(span[1])):
        j, v = _entry(k, dense, columns, costs)
        slope -= _signed_cost(j, lane, scores, costs) * v
    return slope


@inlined
def _add_loss_change(span, dense, lane, columns, scores, costs, step, change):
    """Add to `change` the difference that a step of the coordinate makes to the loss."""
    for k in range(np.uint64(span[0]), np.uint64(span[1])):
        j, v = _entry(k, dense, columns, costs)
        c = _signed_cost(j, lane, scores, costs)
        y = math.copysign(1.0, c)
        t = y * scores.score[_score_at(j, lane, costs)]
        if costs.loss == LOG_LOSS:
            change += abs(c) * math.log1p(falling(t) * math.expm1(-y * step * v))
        else:
            before, after = max(1.0 - t, 0.0), max(1.0 - t - y * step * v, 0.0)
            change += abs(c) * (after - before) * (after + before)
    return change


@inlined
def _move(span, dense, lane, columns, costs, score, step):
    """Add a step along the coordinate to the scores."""
    for k in range(np.uint64(span[0]), np.uint64(span[1])):
        j, v = _entry(k, dense, columns, costs)
        score[_score_at(j, lane, costs)] += step * v


@inlined
def _newton(slope, curve, bound, own, ridge, loss):
    """Return the gradient, Newton's step (0 if negligible), and the largest share of it accepted without evaluation.

    `slope`, `curve`, `bound` are the sums over the column; `own` is the weight, 0 if it is not penalised.
    """
    if loss == LOG_LOSS:
        bound *= 0.25
    else:
        slope, curve, bound = 2.0 * slope, 2.0 * curve, 2.0 * bound
    gradient = own + slope
    curve += ridge
    bound += ridge
    if abs(gradient) <= _NO_STEP or curve <= 0.0:
        return gradient, 0.0, 0.0
    free = 2.0 * (1.0 - _SIGMA) * curve / bound if loss == LOG_LOSS else curve / (0.5 * bound + _SIGMA)
    return gradient, -gradient / curve, free


@inlined
def _record_gradient(gradient, at_zero, begins, lane, loss, totals):
    """Add the gradient of a visited coordinate in a lane to the sums of the read."""
    if begins[lane]:
        at_zero *= 0.5 if loss == LOG_LOSS else 2.0
        totals[lane, DUAL] += at_zero * at_zero
    totals[lane, GAP] += 0.5 * gradient * gradient
    totals[lane, VIOLATION_MAX] = max(totals[lane, VIOLATION_MAX], gradient)
    totals[lane, VIOLATION_MIN] = min(totals[lane, VIOLATION_MIN], gradient)
    totals[lane, N_VISITED] += 1
    totals[lane, N_ACTIVE] += 1


@inlined
def _is_sufficient(change, gradient, step, loss):
    """Test that the objective falls enough: by Armijo's rule for the logistic loss, Algorithm 2's for the squared hinge."""
    if loss == LOG_LOSS:
        return change <= _SIGMA * gradient * step
    return change <= -_SIGMA * step * step


@inlined
def _solve(coordinate, dense, lane, columns, scores, costs, begins, totals):
    """Choose one coordinate's step in one lane by line search, and add it to the scores; returns it, 0 for none.

    `coordinate` holds the range of its entries, the ridge (1, or 0 if its weight is not penalised), and the weight times the
    ridge. `solvers.long_columns._line_search` is the same search over a column in segments: here one lane, with no state
    between sweeps; there all lanes share each read of the column.
    """
    start, stop, ridge, own = coordinate
    span = (start, stop)
    slope, curve, bound = _add_slopes(span, dense, lane, columns, scores, costs, (0.0, 0.0, 0.0))
    at_zero = 0.0
    if begins[lane]:
        at_zero = _add_slope_at_zero(span, dense, lane, columns, scores, costs, 0.0)
    gradient, step, free = _newton(slope, curve, bound, own, ridge, costs.loss)
    _record_gradient(gradient, at_zero, begins, lane, costs.loss, totals)
    if step == 0.0:
        return 0.0
    share = 1.0
    for _ in range(HALVINGS):
        accepted = share <= free
        if not accepted:
            totals[lane, N_STEPS] += 1
            change = ridge * (own * step + 0.5 * step * step)
            change += _add_loss_change(span, dense, lane, columns, scores, costs, step, 0.0)
            accepted = _is_sufficient(change, gradient, step, costs.loss)
        if accepted:
            _move(span, dense, lane, columns, costs, scores.score, step)
            return step
        share *= 0.5
        step *= 0.5
    return 0.0


@kernel
def primal_visit(order, columns, scores, costs, w, begins, lanes, totals):
    """Visit columns in the given order: a Newton step with backtracking along each coordinate, lane by lane.

    Squared hinge: Algorithm 2 of Chang, Hsieh, Lin (JMLR 9, 2008): the largest ``s = d λ`` of λ = 1, ½, ¼, … for which
    ``f(w + s e_i) - f(w) <= -σ s²``; where ``λ <= D''(0) / (H/2 + σ)``, ``H = 1 + 2 Σ C_j x_ji²``, this holds without an
    evaluation. Logistic: Newton's step with Armijo's rule ``f(w + s e_i) - f(w) <= σ s f'``, which holds without an
    evaluation where ``λ <= 2 (1 - σ) D''(0) / H``, ``H = 1 + ¼ Σ C_j x_ji²``.

    Changed in place: `w`, the scores, `totals` (N_STEPS counts evaluations). Cost: two sweeps over the column's entries,
    and one for each evaluation. For lanes marked in `begins` (lanes,) the squares of the derivatives at w = 0 are added to
    DUAL, at the cost of a sweep.
    """
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
                coordinate = (columns.indptr[c], columns.indptr[c + 1], 1.0, w[at])
                step = _solve(coordinate, False, lane, columns, scores, costs, begins, totals)
            else:
                at = last + lane
                bias = (0, n_rows, ridge, ridge * w[at])
                step = _solve(bias, True, lane, columns, scores, costs, begins, totals)
            if step != 0.0:
                w[at] += step


# ---------------------------------------------------------------------------------------------------------------------
# Certificates. alpha_j = 2 C_j max(b_j, 0) or C_j / (1 + e^t_j), times the factor of the row's side


@inlined
def _alpha(t, c, loss):
    if loss == LOG_LOSS:
        return c * falling(t)
    return 2.0 * c * max(1.0 - t, 0.0)


@inlined
def _add_dual_sum(span, dense, lane, columns, scores, costs, side, sums):
    """Add a column's terms to ``v_i = Σ y_j alpha_j x_ji`` and to ``Σ x_ji²``."""
    total, squares = sums
    for k in range(np.uint64(span[0]), np.uint64(span[1])):
        j, v = _entry(k, dense, columns, costs)
        c = _signed_cost(j, lane, scores, costs)
        y = math.copysign(1.0, c)
        alpha = _alpha(y * scores.score[_score_at(j, lane, costs)], abs(c), costs.loss)
        total += alpha * y * v * (side[1, lane] if c > 0.0 else side[0, lane])
        squares += v * v
    return total, squares


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
    totals[lane, GAP] += 0.5 * gradient * gradient
    totals[lane, DUAL] -= 0.5 * v * v
    totals[lane, VIOLATION_MAX] = max(totals[lane, VIOLATION_MAX], gradient)
    totals[lane, VIOLATION_MIN] = min(totals[lane, VIOLATION_MIN], gradient)


@kernel
def primal_certify(order, columns, scores, costs, w, side, lanes, totals):
    """Add up at fixed `w`: ``½ (w_i - v_i)²`` into GAP and ``-½ v_i²`` into DUAL, ``v = w(alpha)``, and w·x into `fresh`.

    Parameters
    ----------
    side : ndarray of float64, shape (2, lanes)
        Factors of alpha for rows with y < 0 and y > 0; not above 1.

    Notes
    -----
    alpha comes from `score`, which may have drifted from w·x: any alpha is a point of the dual, so the certificate, which
    takes the rows' margins from `fresh`, holds all the same. A free bias has no term: `side` makes ``Σ y alpha = 0``.
    """
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
                sums = _add_dual_sum(span, False, lane, columns, scores, costs, side, (0.0, 0.0))
                n_entries = span[1] - span[0]
                _move(span, False, lane, columns, costs, scores.fresh, own)
            else:
                own = w[last + lane]
                n_entries = n_rows
                sums = _add_dual_sum((0, n_rows), True, lane, columns, scores, costs, side, (0.0, 0.0))
                _move((0, n_rows), True, lane, columns, costs, scores.fresh, own)
            totals[lane, CURVE] += sums[1]
            if c >= 0 or not costs.free_bias:
                _accumulate_gap(own, sums, n_entries, lane, totals)


@kernel
def row_terms(scores, costs, side, lanes, sums):
    """Add the terms of rows to `sums` (lanes, N_SUMS): margins from `fresh`, alpha from `score` and `side`.

    PHI is ``C ξ(t) - dual + alpha t``, the rows' part of the gap, each >= 0.
    """
    n_lanes = sums.shape[0]
    for j in range(scores.score.size // n_lanes):
        for lane in lanes:
            c = _signed_cost(j, lane, scores, costs)
            if c == 0.0:
                continue
            y, c = math.copysign(1.0, c), abs(c)
            own = y * scores.score[j * n_lanes + lane]
            factor = side[1 if y > 0.0 else 0, lane]
            alpha = factor * _alpha(own, c, costs.loss)
            t = y * scores.fresh[j * n_lanes + lane]
            quadratic = 0.0
            if costs.loss == LOG_LOSS:
                rest = factor * falling(-own) + (1.0 - factor)
                phi, primal, _ = log_terms(t, c, alpha, c * rest)
                slope = alpha - c * falling(t)
                magnitude = 64.0 * (primal + phi)
            else:
                slack = max(1.0 - t, 0.0)
                primal = c * slack * slack
                quadratic = 0.5 * alpha * alpha / c
                phi = primal - (alpha - 0.5 * quadratic) + alpha * t
                slope = alpha - 2.0 * c * slack
                magnitude = 8.0 * (primal + quadratic + alpha * (1.0 + abs(t)))
            sums[lane, PHI] += phi
            sums[lane, LOSS_SUM] += primal
            sums[lane, ALPHA_SUM] += alpha
            sums[lane, QUADRATIC_SUM] += quadratic
            sums[lane, SQUARES_SUM] += alpha * alpha
            sums[lane, SLOPES_SUM] += slope * slope / c
            sums[lane, LARGEST_COST] = max(sums[lane, LARGEST_COST], c)
            sums[lane, ROUNDING_SUM] += magnitude


@inlined
def _loss_terms(t, c, loss):
    """Return a row's loss, and its first and second derivative with respect to the margin."""
    if loss == LOG_LOSS:
        e = math.exp(-abs(t))
        p = (e if t > 0.0 else 1.0) / (1.0 + e)
        return c * (math.log1p(e) + max(-t, 0.0)), -c * p, c * p * (1.0 - p)
    slack = max(1.0 - t, 0.0)
    return c * slack * slack, -2.0 * c * slack, 2.0 * c * np.float64(t < 1.0)


@inlined
def _largest_curve(t, reach, c, curve, loss):
    """Bound the second derivative with respect to the margin, at most `reach` from t, `curve` being that at t."""
    if loss == LOG_LOSS:  # p (1 - p) changes by a factor e^reach at most, which is at most 1/(1 - reach)
        return min(0.25 * c, curve / (1.0 - reach)) if reach < 1.0 else 0.25 * c
    return 2.0 * c * np.float64(t < 1.0 + reach)


@kernel
def add_losses(scores, costs, lanes, sums):
    """Add the rows' losses to `sums` (lanes,)."""
    n_lanes = sums.size
    n_rows = scores.score.size // n_lanes
    for start in range(0, n_rows, _BLOCK):
        for lane in lanes:
            total = sums[lane]
            for j in range(start, min(start + _BLOCK, n_rows)):
                c = _signed_cost(j, lane, scores, costs)
                t = math.copysign(1.0, c) * scores.score[_score_at(j, lane, costs)]
                total += _loss_terms(t, abs(c), costs.loss)[0]
            sums[lane] = total


@kernel
def add_line_terms(scores, previous, costs, lanes, sums):
    """Add the rows' terms of a line search along ``d = score - previous`` to `sums` (lanes, 4).

    These are the loss at ``score + s d``, s = 0; its first two derivatives with respect to s; a bound of the second for s
    in [0, 1].
    """
    n_lanes = sums.shape[0]
    n_rows = scores.score.size // n_lanes
    for start in range(0, n_rows, _BLOCK):
        for lane in lanes:
            total, slope, curve, bound = sums[lane, 0], sums[lane, 1], sums[lane, 2], sums[lane, 3]
            for j in range(start, min(start + _BLOCK, n_rows)):
                c = _signed_cost(j, lane, scores, costs)
                y, c, at = math.copysign(1.0, c), abs(c), _score_at(j, lane, costs)
                t, moved = y * scores.score[at], y * (scores.score[at] - previous[at])
                loss, first, second = _loss_terms(t, c, costs.loss)
                total += loss
                slope += first * moved
                curve += second * moved * moved
                bound += _largest_curve(t, abs(moved), c, second, costs.loss) * moved * moved
            sums[lane, 0], sums[lane, 1], sums[lane, 2], sums[lane, 3] = total, slope, curve, bound


@kernel
def side_sums(scores, costs, lanes, sums):
    """Add alpha of rows with y < 0 and with y > 0 to `sums` (2, lanes)."""
    n_lanes = sums.shape[1]
    for j in range(scores.score.size // n_lanes):
        for lane in lanes:
            c = _signed_cost(j, lane, scores, costs)
            if c != 0.0:
                t = math.copysign(1.0, c) * scores.score[j * n_lanes + lane]
                sums[1 if c > 0.0 else 0, lane] += _alpha(t, abs(c), costs.loss)


# ---------------------------------------------------------------------------------------------------------------------

# Columns in segments (`Span`): each kernel handles one segment in all given lanes, and adds to the sums of earlier segments.
# Additions are made in the order of `_solve`, so the bits are the same. Rows are numbered from the first of `scores`.


@kernel
def segment_slopes(span, columns, scores, costs, begins, lanes, sums):
    """Add to `sums` (lanes, 4): slope, curve, bound, and, in lanes that begin, the slope at w = 0."""
    for lane in lanes:
        before, at_zero = (sums[lane, 0], sums[lane, 1], sums[lane, 2]), sums[lane, 3]
        if span.dense:
            slope, curve, bound = _add_slopes(span, True, lane, columns, scores, costs, before)
        else:
            slope, curve, bound = _add_slopes(span, False, lane, columns, scores, costs, before)
        if begins[lane]:
            at_zero = _add_slope_at_zero(span, span.dense, lane, columns, scores, costs, at_zero)
        sums[lane, 0], sums[lane, 1], sums[lane, 2], sums[lane, 3] = slope, curve, bound, at_zero


@kernel
def begin_steps(sums, own, ridge, loss, begins, lanes, totals, steps):
    """Compute gradient, step (0 for none) and free share of each lane into `steps` (lanes, 3), as `_solve` does.

    `own` (lanes,) holds the weights, 0 if they are not penalised; `sums` are those of `segment_slopes`.
    """
    for lane in lanes:
        gradient, step, free = _newton(sums[lane, 0], sums[lane, 1], sums[lane, 2], own[lane], ridge, loss)
        _record_gradient(gradient, sums[lane, 3], begins, lane, loss, totals)
        steps[lane, 0], steps[lane, 1], steps[lane, 2] = gradient, step, free


@kernel
def segment_changes(span, columns, scores, costs, lanes, steps, changes):
    """Add to `changes` (lanes,) the difference to the loss when the lane makes its step of `steps` (lanes,)."""
    for lane in lanes:
        step, before = steps[lane], changes[lane]
        changes[lane] = _add_loss_change(span, span.dense, lane, columns, scores, costs, step, before)


@kernel
def is_sufficient(change, own, ridge, gradient, step, loss):
    """Test whether a step that changes the loss by `change` is accepted."""
    return _is_sufficient(ridge * (own * step + 0.5 * step * step) + change, gradient, step, loss)


@kernel
def segment_moves(span, columns, costs, score, lanes, steps):
    """Add the steps (lanes,) along the column to `score`, in place."""
    for lane in lanes:
        _move(span, span.dense, lane, columns, costs, score, steps[lane])


@kernel
def segment_dual_sums(span, columns, scores, costs, side, lanes, sums):
    """Add a segment's terms to `sums` (lanes, 2), as `_add_dual_sum` does."""
    for lane in lanes:
        before = (sums[lane, 0], sums[lane, 1])
        sums[lane, 0], sums[lane, 1] = _add_dual_sum(
            span, span.dense, lane, columns, scores, costs, side, before
        )


@kernel
def accumulate_gap(own, sums, n_entries, ridge, lanes, totals):
    """Finish a coordinate as `primal_certify` does; `own` (lanes,) holds the weights, `sums` that of `segment_dual_sums`."""
    for lane in lanes:
        totals[lane, CURVE] += sums[lane, 1]
        if ridge > 0.0:
            _accumulate_gap(own[lane], (sums[lane, 0], sums[lane, 1]), n_entries, lane, totals)


@kernel
def compact_rows(indptr, row, n_columns, n_rows, following, rank, listed):
    """Number the rows that occur in columns, ascending, and replace the rows by these numbers.

    Parameters
    ----------
    indptr : (columns + 1,) int64
    row : (entries,)
        Changed in place; ascending within a column.
    following : (columns,) int64, rank : (rows at a time,) int64
        Scratch.
    listed : (at least as many as occur,) like `row`
        Written: row ``listed[i]`` has the number i.

    Returns
    -------
    int
        Number of rows that occur.

    Notes
    -----
    Works on a range of rows at a time through all columns: two sweeps over the entries, without sorting.
    """
    n = 0
    for c in range(n_columns):
        following[c] = indptr[c]
    for first in range(0, n_rows, rank.size):
        end = min(first + rank.size, n_rows)
        rank[:] = -1
        for c in range(n_columns):
            k, stop = following[c], indptr[c + 1]
            while k < stop and row[k] < end:
                rank[row[k] - first] = 0
                k += 1
        for j in range(end - first):
            if rank[j] == 0:
                rank[j] = n
                listed[n] = first + j
                n += 1
        for c in range(n_columns):
            k, stop = following[c], indptr[c + 1]
            while k < stop and row[k] < end:
                row[k] = rank[row[k] - first]
                k += 1
            following[c] = k
    return n

"""Coordinate updates over columns: numba functions over arrays for the primal methods (see `kernels` for the dual ones).

Arrays that all kernels here share
----------------------------------
order : (n,) int64              places of the columns to visit; -1 is the bias, a virtual column of ``bias`` in every row
indptr : (columns + 1,) int64   entries of column c are ``indptr[c]:indptr[c + 1]``, ascending by row
feature : (columns,) int64      the feature of each
row, value : (entries,)         0-based row, and the value
w : ((d + 1) * lanes,) float64  weights, row-major; the last ones belong to the bias
score : (n * lanes,) float64    ``z = w·x`` of every row and lane, row-major; the margin is ``t = y z``, ``b = 1 - t``
code : (n,) uint16              index of the row's label among the classes
weight : (n,) float64           weight of the row; empty where all are 1
fold : (n,) uint8               fold of the row; empty where there are none
sign, cost : (classes, lanes)   y and C of a row of that class in that lane; cost 0 leaves the class out
lane_fold : (lanes,) int64      the fold that a lane leaves out
free_bias : bool                whether the bias's weight is not penalised
lanes : (k,) int64              the lanes to work on
totals : (lanes, N_TOTALS)      sums as in `kernels`: GAP ``½ Σ D'²``, the extremes of D', N_VISITED, N_ACTIVE

Objective per lane: ``f(w) = ½‖w‖² + Σ C_j ξ(t_j)``, ``ξ(t) = max(1 - t, 0)²`` or ``log(1 + e^-t)``.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from .kernels import DUAL, GAP, LOG_LOSS, N_ACTIVE, N_STEPS, N_VISITED, VIOLATION_MAX, VIOLATION_MIN, prefetch

PHI, LOSS_SUM, DUAL_SUM, ALPHA_SUM, QUADRATIC_SUM = range(5)
"""Columns of what `row_terms` adds up: terms of the gap, of the primal loss, of the dual; alpha; D alpha²."""

_SIGMA = 0.01  # part of the predicted decrease that a step has to reach
_NO_STEP = 1e-14  # a derivative below this is not worth a step
_HALVINGS = 100
_FETCH_AHEAD = 24  # entries between a row's score being asked for and used
_COLUMNS_AHEAD = 3
_FETCH_AT_MOST = 64  # entries of a column to come


@njit(cache=True, inline="always")
def _row_cost(j, lane, code, weight, fold, cost, lane_fold):
    """C_j of a row in a lane; 0 where the lane leaves the row out."""
    c = cost[code[j], lane]
    if weight.size > 0:
        c *= weight[j]
    if fold.size > 0 and fold[j] == lane_fold[lane]:
        c = 0.0
    return c


@njit(cache=True, inline="always")
def _falling(t):
    """1 / (1 + e^t), minus the derivative of the logistic loss."""
    if t > 0.0:
        e = math.exp(-t)
        return e / (1.0 + e)
    return 1.0 / (1.0 + math.exp(t))


@njit(cache=True, inline="always")
def _fetch_ahead(order, p, indptr, row, value, score, n_lanes):
    """Prefetch the first entries of a column further on, and the scores that a nearer one points to."""
    c = order[min(p + 2 * _COLUMNS_AHEAD, order.size - 1)]
    if c >= 0:
        for k in range(indptr[c], min(indptr[c] + _FETCH_AT_MOST, indptr[c + 1]), 16):
            prefetch(row, k)
            prefetch(value, k)
    c = order[min(p + _COLUMNS_AHEAD, order.size - 1)]
    if c >= 0:
        for k in range(indptr[c], min(indptr[c] + _FETCH_AT_MOST, indptr[c + 1])):
            prefetch(score, row[k] * n_lanes)


@njit(cache=True, inline="always")
def _slope_and_curve(
    start,
    stop,
    dense,
    bias,
    row,
    value,
    lane,
    n_lanes,
    score,
    code,
    weight,
    fold,
    sign,
    cost,
    lane_fold,
    loss,
):
    """First and second derivative of the loss along a coordinate at step 0, and a bound of the second for all steps."""
    slope = curve = bound = 0.0
    last = row.size - 1
    for k in range(start, stop):
        if dense:
            j, v = np.int64(k), bias
        else:
            j, v = np.int64(row[k]), np.float64(value[k])
            prefetch(score, row[min(k + _FETCH_AHEAD, last)] * n_lanes)
        c = _row_cost(j, lane, code, weight, fold, cost, lane_fold)
        if c <= 0.0:
            continue
        y = sign[code[j], lane]
        t = y * score[j * n_lanes + lane]
        if loss == LOG_LOSS:
            p = _falling(t)
            slope -= c * y * v * p
            square = c * v * v
            curve += square * p * (1.0 - p)
            bound += 0.25 * square
        else:
            square = 2.0 * c * v * v
            bound += square
            if t < 1.0:
                slope -= 2.0 * c * y * v * (1.0 - t)
                curve += square
    return slope, curve, bound


@njit(cache=True, inline="always")
def _slope_at_zero(
    start, stop, dense, bias, row, value, lane, code, weight, fold, sign, cost, lane_fold, loss
):
    """The derivative of the loss along a coordinate at w = 0."""
    slope = 0.0
    for k in range(start, stop):
        if dense:
            j, v = np.int64(k), bias
        else:
            j, v = np.int64(row[k]), np.float64(value[k])
        slope -= _row_cost(j, lane, code, weight, fold, cost, lane_fold) * sign[code[j], lane] * v
    return slope * (0.5 if loss == LOG_LOSS else 2.0)


@njit(cache=True, inline="always")
def _loss_change(
    start,
    stop,
    dense,
    bias,
    row,
    value,
    lane,
    n_lanes,
    score,
    code,
    weight,
    fold,
    sign,
    cost,
    lane_fold,
    loss,
    step,
):
    """What the loss changes by when the coordinate makes a step."""
    change = 0.0
    for k in range(start, stop):
        if dense:
            j, v = np.int64(k), bias
        else:
            j, v = np.int64(row[k]), np.float64(value[k])
        c = _row_cost(j, lane, code, weight, fold, cost, lane_fold)
        if c <= 0.0:
            continue
        y = sign[code[j], lane]
        t = y * score[j * n_lanes + lane]
        if loss == LOG_LOSS:
            change += c * math.log1p(_falling(t) * math.expm1(-y * step * v))
        else:
            before, after = max(1.0 - t, 0.0), max(1.0 - t - y * step * v, 0.0)
            change += c * (after - before) * (after + before)
    return change


@njit(cache=True, inline="always")
def _is_sufficient(change, gradient, step, loss):
    """Whether the objective falls enough: Armijo's rule for the logistic loss, Algorithm 2's for the squared hinge."""
    if loss == LOG_LOSS:
        return change <= _SIGMA * gradient * step
    return change <= -_SIGMA * step * step


@njit(cache=True, nogil=True)
def primal_visit(
    order,
    indptr,
    feature,
    row,
    value,
    w,
    score,
    code,
    weight,
    fold,
    sign,
    cost,
    lane_fold,
    loss,
    bias,
    free_bias,
    begins,
    lanes,
    totals,
):
    """Visit columns in the given order: a Newton step with backtracking along each coordinate, lane by lane.

    Squared hinge: Algorithm 2 of Chang, Hsieh, Lin (JMLR 9, 2008): the largest ``s = d λ`` of λ = 1, ½, ¼, … for which
    ``f(w + s e_i) - f(w) <= -σ s²``; where ``λ <= D''(0) / (H/2 + σ)``, ``H = 1 + 2 Σ C_j x_ji²``, this holds without an
    evaluation. Logistic: Newton's step with Armijo's rule ``f(w + s e_i) - f(w) <= σ s f'``, which holds without an
    evaluation where ``λ <= 2 (1 - σ) D''(0) / H``, ``H = 1 + ¼ Σ C_j x_ji²``.

    Changed in place: `w`, `score`, `totals` (N_STEPS counts evaluations). Cost: two sweeps over the column's entries,
    and one for each evaluation. For lanes marked in `begins` (lanes,) the squares of the derivatives at w = 0 are added to
    DUAL, at the cost of a sweep.
    """
    n_lanes = totals.shape[0]
    n_rows = score.size // n_lanes
    for p in range(order.size):
        _fetch_ahead(order, p, indptr, row, value, score, n_lanes)
        column = order[p]
        dense = column < 0
        start, stop = np.int64(0), np.int64(n_rows)
        first = w.size - n_lanes
        if not dense:
            start, stop = indptr[column], indptr[column + 1]
            first = feature[column] * n_lanes
        ridge = 0.0 if dense and free_bias else 1.0
        for lane in lanes:
            slope, curve, bound = _slope_and_curve(
                start, stop, dense, bias, row, value, lane, n_lanes, score, code, weight, fold, sign, cost, lane_fold,
                loss
            )  # fmt: skip
            if begins[lane]:
                at_zero = _slope_at_zero(
                    start,
                    stop,
                    dense,
                    bias,
                    row,
                    value,
                    lane,
                    code,
                    weight,
                    fold,
                    sign,
                    cost,
                    lane_fold,
                    loss,
                )
                totals[lane, DUAL] += at_zero * at_zero
            own = ridge * w[first + lane]
            gradient = own + slope
            curve += ridge
            bound += ridge
            totals[lane, GAP] += 0.5 * gradient * gradient
            totals[lane, VIOLATION_MAX] = max(totals[lane, VIOLATION_MAX], gradient)
            totals[lane, VIOLATION_MIN] = min(totals[lane, VIOLATION_MIN], gradient)
            totals[lane, N_VISITED] += 1
            totals[lane, N_ACTIVE] += 1
            if abs(gradient) <= _NO_STEP or curve <= 0.0:
                continue
            step = -gradient / curve
            if loss == LOG_LOSS:
                free = 2.0 * (1.0 - _SIGMA) * curve / bound
            else:
                free = curve / (0.5 * bound + _SIGMA)
            share = 1.0
            accepted = False
            for _ in range(_HALVINGS):
                if share <= free:
                    accepted = True
                    break
                change = ridge * (own * step + 0.5 * step * step) + _loss_change(
                    start, stop, dense, bias, row, value, lane, n_lanes, score, code, weight, fold, sign, cost,
                    lane_fold, loss, step
                )  # fmt: skip
                totals[lane, N_STEPS] += 1
                if _is_sufficient(change, gradient, step, loss):
                    accepted = True
                    break
                share *= 0.5
                step *= 0.5
            if not accepted:
                continue
            w[first + lane] += step
            for k in range(start, stop):
                if dense:
                    score[k * n_lanes + lane] += step * bias
                else:
                    score[row[k] * n_lanes + lane] += step * value[k]


# ---------------------------------------------------------------------------------------------------------------------
# Certificates. alpha_j = 2 C_j max(b_j, 0) or C_j / (1 + e^t_j), times the factor of the row's side


@njit(cache=True, inline="always")
def _alpha(t, c, loss):
    if loss == LOG_LOSS:
        return c * _falling(t)
    return 2.0 * c * max(1.0 - t, 0.0)


@njit(cache=True, nogil=True)
def primal_certify(
    order,
    indptr,
    feature,
    row,
    value,
    w,
    score,
    code,
    weight,
    fold,
    sign,
    cost,
    lane_fold,
    loss,
    bias,
    free_bias,
    side,
    lanes,
    fresh,
    totals,
):
    """Add up at fixed `w`: ``½ (w_i - v_i)²`` into GAP and ``-½ v_i²`` into DUAL, ``v = w(alpha)``, and w·x into `fresh`.

    Parameters
    ----------
    side : ndarray of float64, shape (2, lanes)
        Factors of alpha for rows with y < 0 and y > 0; not above 1.
    fresh : ndarray like `score`
        Changed in place, like `totals`.

    Notes
    -----
    alpha comes from `score`, which may have drifted from w·x: any alpha is a point of the dual, so the certificate, which
    takes the rows' margins from `fresh`, holds all the same. A free bias has no term; that ``Σ y alpha = 0`` is for `side`.
    """
    n_lanes = totals.shape[0]
    n_rows = score.size // n_lanes
    for p in range(order.size):
        _fetch_ahead(order, p, indptr, row, value, score, n_lanes)
        column = order[p]
        dense = column < 0
        start, stop = np.int64(0), np.int64(n_rows)
        first = w.size - n_lanes
        if not dense:
            start, stop = indptr[column], indptr[column + 1]
            first = feature[column] * n_lanes
        for lane in lanes:
            own, sum_alpha = w[first + lane], 0.0
            for k in range(start, stop):
                if dense:
                    j, v = np.int64(k), bias
                else:
                    j, v = np.int64(row[k]), np.float64(value[k])
                fresh[j * n_lanes + lane] += own * v
                c = _row_cost(j, lane, code, weight, fold, cost, lane_fold)
                if c > 0.0:
                    y = sign[code[j], lane]
                    factor = side[1, lane] if y > 0.0 else side[0, lane]
                    sum_alpha += factor * _alpha(y * score[j * n_lanes + lane], c, loss) * y * v
            totals[lane, N_VISITED] += 1
            if dense and free_bias:
                continue
            gradient = own - sum_alpha
            totals[lane, GAP] += 0.5 * gradient * gradient
            totals[lane, DUAL] -= 0.5 * sum_alpha * sum_alpha
            totals[lane, VIOLATION_MAX] = max(totals[lane, VIOLATION_MAX], gradient)
            totals[lane, VIOLATION_MIN] = min(totals[lane, VIOLATION_MIN], gradient)


@njit(cache=True, inline="always")
def _x_log_x(x):
    return x * math.log(x) if x > 0.0 else 0.0


@njit(cache=True, nogil=True)
def row_terms(score, fresh, first, code, weight, fold, sign, cost, lane_fold, loss, side, lanes, sums):
    """Add the terms of rows to `sums` (lanes, 5): margins from `fresh`, alpha from `score` and `side`.

    The arrays may be those of some rows only; `first` is then the place in them of the first row. Columns of `sums`: PHI,
    ``C ξ(t) - dual + alpha t``, the rows' part of the gap, each >= 0; and LOSS_SUM, DUAL_SUM, ALPHA_SUM, QUADRATIC_SUM.
    """
    n_lanes = sums.shape[0]
    for j in range(score.size // n_lanes):
        for lane in lanes:
            c = _row_cost(first + j, lane, code, weight, fold, cost, lane_fold)
            if c <= 0.0:
                continue
            y = sign[code[first + j], lane]
            factor = side[1, lane] if y > 0.0 else side[0, lane]
            alpha = factor * _alpha(y * score[j * n_lanes + lane], c, loss)
            t = y * fresh[j * n_lanes + lane]
            quadratic = 0.0
            if loss == LOG_LOSS:
                primal = c * (math.log1p(math.exp(-t)) if t > 0.0 else math.log1p(math.exp(t)) - t)
                dual = _x_log_x(c) - _x_log_x(alpha) - _x_log_x(c - alpha)
            else:
                slack = max(1.0 - t, 0.0)
                primal = c * slack * slack
                quadratic = 0.5 * alpha * alpha / c
                dual = alpha - 0.5 * quadratic
            sums[lane, PHI] += primal - dual + alpha * t
            sums[lane, LOSS_SUM] += primal
            sums[lane, DUAL_SUM] += dual
            sums[lane, ALPHA_SUM] += alpha
            sums[lane, QUADRATIC_SUM] += quadratic


@njit(cache=True, nogil=True)
def side_sums(score, first, code, weight, fold, sign, cost, lane_fold, loss, lanes, sums):
    """Add alpha of rows with y < 0 and with y > 0 to `sums` (2, lanes)."""
    n_lanes = sums.shape[1]
    for j in range(score.size // n_lanes):
        for lane in lanes:
            c = _row_cost(first + j, lane, code, weight, fold, cost, lane_fold)
            if c > 0.0:
                y = sign[code[first + j], lane]
                sums[1 if y > 0.0 else 0, lane] += _alpha(y * score[j * n_lanes + lane], c, loss)

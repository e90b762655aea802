"""Coordinate updates over columns: numba functions over arrays for the primal methods (the dual ones are `dual_kernels`).

Arrays that all kernels here share
----------------------------------
order : (n,) int64              places of the columns to visit; -1 is the bias, a virtual column of ``bias`` in every row
indptr : (columns + 1,) int64   entries of column c are ``indptr[c]:indptr[c + 1]``, ascending by row
feature : (columns,) int64      the feature of each
row, value : (entries,)         0-based row, and the value
w : ((d + 1) * lanes,) float64  weights, row-major; the last ones belong to the bias
score : (n * lanes,) float64    ``z = w·x`` of every row and lane, row-major; the margin is ``t = y z``, ``b = 1 - t``
kind : (n,) uint16 or uint32    ``class * folds + fold`` of the row (the class alone where there are no folds)
weight : (n,) float64           weight of the row; empty where all are 1
signed : (kinds, lanes)         y C of a row of that kind in that lane; 0 leaves it out
free_bias : bool                whether the bias's weight is not penalised
lanes : (k,) int64              the lanes to work on
totals : (lanes, N_TOTALS)      sums as in `kernels`: GAP ``½ Σ D'²``, the extremes of D', N_VISITED, N_ACTIVE

Objective per lane: ``f(w) = ½‖w‖² + Σ C_j ξ(t_j)``, ``ξ(t) = max(1 - t, 0)²`` or ``log(1 + e^-t)``.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from .compiling import kernel
from .kernels import DUAL, GAP, LOG_LOSS, N_ACTIVE, N_STEPS, N_VISITED, VIOLATION_MAX, VIOLATION_MIN, prefetch

PHI, LOSS_SUM, DUAL_SUM, ALPHA_SUM, QUADRATIC_SUM = range(5)
"""Columns of what `row_terms` adds up: terms of the gap, of the primal loss, of the dual; alpha; D alpha²."""

_SIGMA = 0.01  # part of the predicted decrease that a step has to reach
_NO_STEP = 1e-14  # a derivative below this is not worth a step
HALVINGS = 100
"""Trials of a step at most."""
_COLUMNS_AHEAD = 3
_FETCH_AT_MOST = 64  # entries of a column to come


@njit(cache=True, inline="always")
def _falling(t):
    """1 / (1 + e^t), minus the derivative of the logistic loss."""
    e = math.exp(-abs(t))
    return (e if t > 0.0 else 1.0) / (1.0 + e)


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


# The loops below are called with `dense` as a literal, so that each case has a loop of its own; indices are unsigned, which
# spares the check for negative ones; what a margin decides is multiplied by 0 or 1, as a branch would be mispredicted half
# the time; and no function that takes arrays is called inside (numba then counts references at every entry). Together:
# 800 M entries/s on a9a instead of 46.


@njit(cache=True, inline="always")
def _add_slopes(
    start,
    stop,
    dense,
    bias,
    row,
    value,
    lane,
    n_lanes,
    score,
    kind,
    weight,
    signed,
    loss,
    slope,
    curve,
    bound,
):
    """Add a column's terms to the sums behind `_newton`'s derivatives of the loss at step 0, and bound of the second."""
    width, place = np.uint64(n_lanes), np.uint64(lane)
    for k in range(np.uint64(start), np.uint64(stop)):
        j, v = (k, bias) if dense else (np.uint64(row[k]), np.float64(value[k]))
        c = signed[np.uint64(kind[j]), place]
        if weight.size > 0:
            c *= weight[j]
        t = math.copysign(1.0, c) * score[j * width + place]
        square = abs(c) * v * v
        bound += square
        if loss == LOG_LOSS:
            p = _falling(t)
            slope -= c * v * p
            curve += square * p * (1.0 - p)
        else:
            above = np.float64(t < 1.0)
            slope -= c * v * (1.0 - t) * above
            curve += square * above
    return slope, curve, bound


@njit(cache=True, inline="always")
def _add_slope_at_zero(start, stop, dense, bias, row, value, lane, n_lanes, kind, weight, signed, slope):
    """Add a column's terms to the sum of the derivative of the loss at w = 0; half of it, or twice, is the derivative."""
    place = np.uint64(lane)
    for k in range(np.uint64(start), np.uint64(stop)):
        j, v = (k, bias) if dense else (np.uint64(row[k]), np.float64(value[k]))
        c = signed[np.uint64(kind[j]), place]
        if weight.size > 0:
            c *= weight[j]
        slope -= c * v
    return slope


@njit(cache=True, inline="always")
def _add_loss_change(
    start, stop, dense, bias, row, value, lane, n_lanes, score, kind, weight, signed, loss, step, change
):
    """Add to `change` what the loss changes by when the coordinate makes a step."""
    width, place = np.uint64(n_lanes), np.uint64(lane)
    for k in range(np.uint64(start), np.uint64(stop)):
        j, v = (k, bias) if dense else (np.uint64(row[k]), np.float64(value[k]))
        c = signed[np.uint64(kind[j]), place]
        if weight.size > 0:
            c *= weight[j]
        y = math.copysign(1.0, c)
        t = y * score[j * width + place]
        if loss == LOG_LOSS:
            change += abs(c) * math.log1p(_falling(t) * math.expm1(-y * step * v))
        else:
            before, after = max(1.0 - t, 0.0), max(1.0 - t - y * step * v, 0.0)
            change += abs(c) * (after - before) * (after + before)
    return change


@njit(cache=True, inline="always")
def _move(start, stop, dense, bias, row, value, lane, n_lanes, score, step):
    """Add a step along the coordinate to the scores."""
    width, place = np.uint64(n_lanes), np.uint64(lane)
    for k in range(np.uint64(start), np.uint64(stop)):
        j, v = (k, bias) if dense else (np.uint64(row[k]), np.float64(value[k]))
        score[j * width + place] += step * v


@njit(cache=True, inline="always")
def _newton(slope, curve, bound, own, ridge, loss):
    """Gradient of the objective, Newton's step (0 where none is worth it), and the largest share of it that needs no trial.

    `slope`, `curve`, `bound` are the sums over the column, `own` is the weight, 0 where it is not penalised.
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


@njit(cache=True, inline="always")
def _tell_gradient(gradient, at_zero, begins, lane, loss, totals):
    """Add up what a visit of a coordinate in a lane says of the read."""
    if begins[lane]:
        at_zero *= 0.5 if loss == LOG_LOSS else 2.0
        totals[lane, DUAL] += at_zero * at_zero
    totals[lane, GAP] += 0.5 * gradient * gradient
    totals[lane, VIOLATION_MAX] = max(totals[lane, VIOLATION_MAX], gradient)
    totals[lane, VIOLATION_MIN] = min(totals[lane, VIOLATION_MIN], gradient)
    totals[lane, N_VISITED] += 1
    totals[lane, N_ACTIVE] += 1


@njit(cache=True, inline="always")
def _is_sufficient(change, gradient, step, loss):
    """Whether the objective falls enough: Armijo's rule for the logistic loss, Algorithm 2's for the squared hinge."""
    if loss == LOG_LOSS:
        return change <= _SIGMA * gradient * step
    return change <= -_SIGMA * step * step


@njit(cache=True, inline="always")
def _solve(
    start, stop, dense, ridge, place, bias, row, value, lane, n_lanes, w, score, kind, weight, signed, loss, begins, totals
):  # fmt: skip
    """One coordinate, ``w[place]``, in one lane; `ridge` is 1, or 0 where its weight is not penalised."""
    slope, curve, bound = _add_slopes(
        start, stop, dense, bias, row, value, lane, n_lanes, score, kind, weight, signed, loss, 0.0, 0.0, 0.0
    )
    at_zero = 0.0
    if begins[lane]:
        at_zero = _add_slope_at_zero(
            start, stop, dense, bias, row, value, lane, n_lanes, kind, weight, signed, 0.0
        )
    own = ridge * w[place]
    gradient, step, free = _newton(slope, curve, bound, own, ridge, loss)
    _tell_gradient(gradient, at_zero, begins, lane, loss, totals)
    if step == 0.0:
        return
    share = 1.0
    for _ in range(HALVINGS):
        accepted = share <= free
        if not accepted:
            totals[lane, N_STEPS] += 1
            change = ridge * (own * step + 0.5 * step * step)
            change += _add_loss_change(
                start,
                stop,
                dense,
                bias,
                row,
                value,
                lane,
                n_lanes,
                score,
                kind,
                weight,
                signed,
                loss,
                step,
                0.0,
            )
            accepted = _is_sufficient(change, gradient, step, loss)
        if accepted:
            w[place] += step
            _move(start, stop, dense, bias, row, value, lane, n_lanes, score, step)
            return
        share *= 0.5
        step *= 0.5


@kernel
def primal_visit(
    order,
    indptr,
    feature,
    row,
    value,
    w,
    score,
    kind,
    weight,
    signed,
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
    last = w.size - n_lanes
    for p in range(order.size):
        _fetch_ahead(order, p, indptr, row, value, score, n_lanes)
        c = order[p]
        for lane in lanes:
            if c >= 0:
                _solve(
                    indptr[c], indptr[c + 1], False, 1.0, feature[c] * n_lanes + lane, bias, row, value, lane, n_lanes,
                    w, score, kind, weight, signed, loss, begins, totals
                )  # fmt: skip
            else:
                _solve(
                    0, n_rows, True, 0.0 if free_bias else 1.0, last + lane, bias, row, value, lane, n_lanes,
                    w, score, kind, weight, signed, loss, begins, totals
                )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# Certificates. alpha_j = 2 C_j max(b_j, 0) or C_j / (1 + e^t_j), times the factor of the row's side


@njit(cache=True, inline="always")
def _alpha(t, c, loss):
    if loss == LOG_LOSS:
        return c * _falling(t)
    return 2.0 * c * max(1.0 - t, 0.0)


@njit(cache=True, inline="always")
def _add_dual_sum(
    start, stop, dense, bias, row, value, lane, n_lanes, score, kind, weight, signed, loss, side, total
):
    """Add a column's terms to ``v_i = Σ y_j alpha_j x_ji``."""
    width, place = np.uint64(n_lanes), np.uint64(lane)
    for k in range(np.uint64(start), np.uint64(stop)):
        j, v = (k, bias) if dense else (np.uint64(row[k]), np.float64(value[k]))
        c = signed[np.uint64(kind[j]), place]
        if weight.size > 0:
            c *= weight[j]
        y = math.copysign(1.0, c)
        alpha = _alpha(y * score[j * width + place], abs(c), loss)
        total += alpha * y * v * (side[1, lane] if c > 0.0 else side[0, lane])
    return total


@njit(cache=True, inline="always")
def _tell_difference(own, v, lane, totals):
    """Add up what a coordinate of w and of w(alpha) says of the certificate."""
    gradient = own - v
    totals[lane, GAP] += 0.5 * gradient * gradient
    totals[lane, DUAL] -= 0.5 * v * v
    totals[lane, VIOLATION_MAX] = max(totals[lane, VIOLATION_MAX], gradient)
    totals[lane, VIOLATION_MIN] = min(totals[lane, VIOLATION_MIN], gradient)


@kernel
def primal_certify(
    order,
    indptr,
    feature,
    row,
    value,
    w,
    score,
    kind,
    weight,
    signed,
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
    last = w.size - n_lanes
    for p in range(order.size):
        _fetch_ahead(order, p, indptr, row, value, score, n_lanes)
        c = order[p]
        for lane in lanes:
            totals[lane, N_VISITED] += 1
            if c >= 0:
                own = w[feature[c] * n_lanes + lane]
                v = _add_dual_sum(
                    indptr[c], indptr[c + 1], False, bias, row, value, lane, n_lanes, score, kind, weight, signed, loss,
                    side, 0.0
                )  # fmt: skip
                _move(indptr[c], indptr[c + 1], False, bias, row, value, lane, n_lanes, fresh, own)
            else:
                own = w[last + lane]
                v = _add_dual_sum(
                    0,
                    n_rows,
                    True,
                    bias,
                    row,
                    value,
                    lane,
                    n_lanes,
                    score,
                    kind,
                    weight,
                    signed,
                    loss,
                    side,
                    0.0,
                )
                _move(0, n_rows, True, bias, row, value, lane, n_lanes, fresh, own)
                if free_bias:
                    continue
            _tell_difference(own, v, lane, totals)


@njit(cache=True, inline="always")
def _x_log_x(x):
    return x * math.log(x) if x > 0.0 else 0.0


@kernel
def row_terms(score, fresh, first, kind, weight, signed, loss, side, lanes, sums):
    """Add the terms of rows to `sums` (lanes, 5): margins from `fresh`, alpha from `score` and `side`.

    `score` and `fresh` may be those of some rows only, of which the first is row `first`. Columns of `sums`: PHI,
    ``C ξ(t) - dual + alpha t``, the rows' part of the gap, each >= 0; and LOSS_SUM, DUAL_SUM, ALPHA_SUM, QUADRATIC_SUM.
    """
    n_lanes = sums.shape[0]
    for j in range(score.size // n_lanes):
        for lane in lanes:
            c = signed[kind[first + j], lane]
            if weight.size > 0:
                c *= weight[first + j]
            if c == 0.0:
                continue
            y, c = math.copysign(1.0, c), abs(c)
            alpha = side[1 if y > 0.0 else 0, lane] * _alpha(y * score[j * n_lanes + lane], c, loss)
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


@kernel
def side_sums(score, first, kind, weight, signed, loss, lanes, sums):
    """Add alpha of rows with y < 0 and with y > 0 to `sums` (2, lanes); `score` as for `row_terms`."""
    n_lanes = sums.shape[1]
    for j in range(score.size // n_lanes):
        for lane in lanes:
            c = signed[kind[first + j], lane]
            if weight.size > 0:
                c *= weight[first + j]
            if c != 0.0:
                t = math.copysign(1.0, c) * score[j * n_lanes + lane]
                sums[1 if c > 0.0 else 0, lane] += _alpha(t, abs(c), loss)


# ---------------------------------------------------------------------------------------------------------------------
# A column in pieces: each kernel goes over one piece, in all lanes asked for, and goes on with the sums of those before. The
# additions are those of `_solve` in the same order, so the bits are too.
#
# start, stop : the piece is ``row[start:stop]``, or, where `dense`, the rows of the block, each with the value `bias`
# row : counted from the first row of the block
# score, kind, weight : of the rows of the block


@kernel
def piece_slopes(
    start, stop, dense, row, value, bias, score, kind, weight, signed, loss, begins, lanes, sums
):  # fmt: skip
    """Add to `sums` (lanes, 4): slope, curve, bound, and, in lanes that begin, the slope at w = 0."""
    n = sums.shape[0]
    for lane in lanes:
        slope, curve, bound, at_zero = sums[lane, 0], sums[lane, 1], sums[lane, 2], sums[lane, 3]
        if dense:
            slope, curve, bound = _add_slopes(
                start,
                stop,
                True,
                bias,
                row,
                value,
                lane,
                n,
                score,
                kind,
                weight,
                signed,
                loss,
                slope,
                curve,
                bound,
            )
            if begins[lane]:
                at_zero = _add_slope_at_zero(
                    start, stop, True, bias, row, value, lane, n, kind, weight, signed, at_zero
                )
        else:
            slope, curve, bound = _add_slopes(
                start,
                stop,
                False,
                bias,
                row,
                value,
                lane,
                n,
                score,
                kind,
                weight,
                signed,
                loss,
                slope,
                curve,
                bound,
            )
            if begins[lane]:
                at_zero = _add_slope_at_zero(
                    start, stop, False, bias, row, value, lane, n, kind, weight, signed, at_zero
                )
        sums[lane, 0], sums[lane, 1], sums[lane, 2], sums[lane, 3] = slope, curve, bound, at_zero


@kernel
def begin_steps(sums, own, ridge, loss, begins, lanes, totals, steps):
    """What `_solve` does between its sweeps: fills `steps` (lanes, 3) with gradient, step (0 for none) and free share.

    `own` (lanes,) holds the weights, 0 where they are not penalised; `sums` is what `piece_slopes` has added up.
    """
    for lane in lanes:
        gradient, step, free = _newton(sums[lane, 0], sums[lane, 1], sums[lane, 2], own[lane], ridge, loss)
        _tell_gradient(gradient, sums[lane, 3], begins, lane, loss, totals)
        steps[lane, 0], steps[lane, 1], steps[lane, 2] = gradient, step, free


@kernel
def piece_changes(
    start, stop, dense, row, value, bias, score, kind, weight, signed, loss, lanes, steps, changes
):  # fmt: skip
    """Add to `changes` (lanes,) what the loss changes by when the lane makes its step of `steps` (lanes,)."""
    n = changes.size
    for lane in lanes:
        if dense:
            changes[lane] = _add_loss_change(
                start, stop, True, bias, row, value, lane, n, score, kind, weight, signed, loss, steps[lane], changes[lane]
            )  # fmt: skip
        else:
            changes[lane] = _add_loss_change(
                start, stop, False, bias, row, value, lane, n, score, kind, weight, signed, loss, steps[lane], changes[lane]
            )  # fmt: skip


@kernel
def is_enough(change, own, ridge, gradient, step, loss):
    """Whether a step is accepted that changes the loss by `change`."""
    return _is_sufficient(ridge * (own * step + 0.5 * step * step) + change, gradient, step, loss)


@kernel
def piece_moves(start, stop, dense, row, value, bias, score, lanes, steps):
    """Add the steps (lanes,) along the column to `score`, in place."""
    for lane in lanes:
        if dense:
            _move(start, stop, True, bias, row, value, lane, steps.size, score, steps[lane])
        else:
            _move(start, stop, False, bias, row, value, lane, steps.size, score, steps[lane])


@kernel
def piece_dual_sums(
    start, stop, dense, row, value, bias, score, kind, weight, signed, loss, side, lanes, sums
):  # fmt: skip
    """Add to `sums` (lanes,) the coordinate of w(alpha)."""
    n = sums.size
    for lane in lanes:
        if dense:
            sums[lane] = _add_dual_sum(
                start,
                stop,
                True,
                bias,
                row,
                value,
                lane,
                n,
                score,
                kind,
                weight,
                signed,
                loss,
                side,
                sums[lane],
            )
        else:
            sums[lane] = _add_dual_sum(
                start,
                stop,
                False,
                bias,
                row,
                value,
                lane,
                n,
                score,
                kind,
                weight,
                signed,
                loss,
                side,
                sums[lane],
            )


@kernel
def tell_differences(own, sums, lanes, totals):
    """The end of a coordinate of `primal_certify`; `own` (lanes,) holds the weights, `sums` those of w(alpha)."""
    for lane in lanes:
        _tell_difference(own[lane], sums[lane], lane, totals)


@kernel
def compact_rows(indptr, row, n_columns, n_rows, following, rank, listed):
    """Number the rows that occur in columns, ascending, and put these numbers in place of the rows.

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
        How many rows occur.

    Notes
    -----
    A range of rows at a time, through all columns: two sweeps over the entries, and no sorting.
    """
    n = 0
    for c in range(n_columns):
        following[c] = indptr[c]
    for first in range(0, n_rows, rank.size):
        behind = min(first + rank.size, n_rows)
        rank[:] = -1
        for c in range(n_columns):
            k, stop = following[c], indptr[c + 1]
            while k < stop and row[k] < behind:
                rank[row[k] - first] = 0
                k += 1
        for j in range(behind - first):
            if rank[j] == 0:
                rank[j] = n
                listed[n] = first + j
                n += 1
        for c in range(n_columns):
            k, stop = following[c], indptr[c + 1]
            while k < stop and row[k] < behind:
                row[k] = rank[row[k] - first]
                k += 1
            following[c] = k
    return n

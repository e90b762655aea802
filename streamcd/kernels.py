"""Coordinate updates: numba functions over arrays, and nothing else.

Kernels that call each other share this file, because the compile cache of a caller does not notice an edit of its callee
elsewhere. A loss is an integer constant and an `if`: as fast as a function argument, and the only form the cache serves.

Arrays that all dual kernels share
----------------------------------
order : (n,) int64             places of the rows to visit, in order of visit
indptr : (rows + 1,) int64     entries of row r are ``indptr[r]:indptr[r + 1]``
feature, value : (entries,)    0-based feature, and its value
code : (rows,) int32           index of the row's label among the classes
weight : (rows,) float64       weight of the row
fold : (rows,) uint8           fold of the row; lane l leaves the row out where ``fold[r] == lane_fold[l]``
alpha : (rows, lanes) float64  dual variables; for the logistic loss (rows, 2 lanes), C - alpha in the second half;
                               for Crammer–Singer (rows, k lanes)
active : (rows, flags) uint8   0 where shrinking took the row out of the lane, or the class out of the row's problem
w : (d + 1, lanes) float64     weights; the last row belongs to the bias and stays 0 where there is none
sign, cost : (classes, lanes)  y and C of a row of that class in that lane; cost 0 leaves the class out
omega : (lanes,) float64       over-relaxation of the closed-form steps, in (0, 2); 1 is plain coordinate descent
totals : (lanes, N_TOTALS)     sums over the visited rows, columns as named below
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

HINGE, SQUARED_HINGE, LOG_LOSS, CRAMMER_SINGER, TWIN_HINGE, TWIN_SQUARED_HINGE = range(6)

_SQUARE = 6
"""Loss ½ t² of the rows that a twin plane hugs, those with ``y = -1`` (`_loss_of_row`)."""

GAP, LOSS, DUAL, VIOLATION_MAX, VIOLATION_MIN, N_VISITED, N_ACTIVE, N_SHRUNK, N_STEPS = range(9)
"""Columns of `totals`: the rows' terms of the gap, of the primal loss and of the dual objective (for a visit, the change
of the latter); the largest and smallest projected gradient; rows visited, rows still active, rows of which anything is
taken out, inner Newton steps."""
N_TOTALS = 9

_NO_STEP = 1e-12  # a projected gradient below this is not worth a step (LIBLINEAR's figure)
_TINY = 1e-290  # smallest dual variable of the logistic loss; its logarithm is finite
_SHRINK_NEWTON = 0.1  # what a Newton step that leaves the interval is replaced by: Z becomes this times Z

# Rows ahead of the one being solved: its entries are fetched, then, nearer, the weights they point to. Measured on made
# text (32 M entries, 300,000 features, rows of 107): 61-123 M entries/s without, 180 (random order over all rows) to 310
# (over windows of 4 M entries) with; 4 to 8 and 1 to 3 rows ahead differ by less than the noise.
_ENTRIES_AHEAD = 6
_WEIGHTS_AHEAD = 2


@intrinsic
def prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Ask the processor to fetch ``array[index]`` (one-dimensional) into its caches; never faults."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        pointer = builder.gep(data, [args[1]])
        flag = ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [pointer.type], ir.FunctionType(ir.VoidType(), [pointer.type, flag, flag, flag])
        )
        builder.call(function, [pointer, flag(0), flag(3), flag(1)])  # for reading, keep in all caches, data
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


def unsigned(index):
    """The same indices, none of them negative, without a sign where they have 32 bits.

    numba tests every signed index for being counted from the end, which costs a tenth of a visit (115 to 165 against 125 to
    175 M entries/s in alternate runs). 64-bit ones stay as they are: their products with an int64 would be floats.
    """
    return index.view(np.uint32) if index.dtype == np.int32 else index


# ---------------------------------------------------------------------------------------------------------------------
# Random order


@njit(cache=True, inline="always")
def _mix(state):
    """Output function of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a bijection of 64-bit integers."""
    z = np.uint64(state)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True)
def shuffle(order, key):
    """Permute `order` in place, uniformly at random, as a function of `key` (uint64) alone (Fisher-Yates)."""
    state = np.uint64(key)
    for i in range(order.size - 1, 0, -1):
        state += np.uint64(0x9E3779B97F4A7C15)
        # high bits times range: unbiased up to (i + 1) / 2**32, far below what n_rows < 2**32 could show
        if i < 0xFFFFFFFF:
            j = np.int64(((_mix(state) >> np.uint64(32)) * np.uint64(i + 1)) >> np.uint64(32))
        else:
            j = np.int64(_mix(state) % np.uint64(i + 1))
        order[i], order[j] = order[j], order[i]


@njit(cache=True, nogil=True)
def active_rows(row_start, row_stop, active, lanes, order):
    """Collect the places of the rows that are active in any of `lanes`.

    Parameters
    ----------
    row_start, row_stop : ndarray of int64
        Ranges of rows, one per chunk.
    active : ndarray of uint8, shape (rows, lanes)
    lanes : ndarray of int64
    order : ndarray of int64
        Filled in place.

    Returns
    -------
    int
        How many were written to `order`.
    """
    n = 0
    for piece in range(row_start.size):
        for i in range(row_start[piece], row_stop[piece]):
            for lane in lanes:
                if active[i, lane]:
                    order[n] = i
                    n += 1
                    break
    return n


@njit(cache=True, nogil=True)
def draw(candidates, key, order):
    """Fill `order` with independent uniform draws from `candidates`, with replacement, as a function of `key` alone."""
    state = np.uint64(key)
    for i in range(order.size):
        state += np.uint64(0x9E3779B97F4A7C15)
        # high bits times range: unbiased up to size / 2**32
        place = ((_mix(state) >> np.uint64(32)) * np.uint64(candidates.size)) >> np.uint64(32)
        order[i] = candidates[np.int64(place)]


@njit(cache=True, nogil=True)
def add_entry_hashes(row, feature, value_bits, sums):
    """Add two independent 64-bit hashes of every entry (row, feature, bits of the value) to `sums` (2,) uint64, modulo 2^64.

    The sums are those of a set of entries, whatever their order.
    """
    first, second = sums[0], sums[1]
    for k in range(row.size):
        place = _mix(np.uint64(row[k]) + np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(feature[k])
        entry = _mix(place) ^ np.uint64(value_bits[k])
        first += _mix(entry)
        second += _mix(entry * np.uint64(0xD6E8FEB86659FD93) + _mix(place + np.uint64(0x632BE59BD9B4E019)))
    sums[0], sums[1] = first, second


# ---------------------------------------------------------------------------------------------------------------------
# One row against one lane of weights


@njit(cache=True, inline="always")
def _row_dot(feature, value, w, start, stop):
    """Return x·w and x·x of the row with entries ``start:stop``; four sums, because one would wait for itself."""
    dot0 = dot1 = dot2 = dot3 = 0.0
    norm0 = norm1 = 0.0
    k = start
    while k + 4 <= stop:
        v0, v1 = np.float64(value[k]), np.float64(value[k + 1])
        v2, v3 = np.float64(value[k + 2]), np.float64(value[k + 3])
        dot0 += w[feature[k]] * v0
        dot1 += w[feature[k + 1]] * v1
        dot2 += w[feature[k + 2]] * v2
        dot3 += w[feature[k + 3]] * v3
        norm0 += v0 * v0 + v2 * v2
        norm1 += v1 * v1 + v3 * v3
        k += 4
    while k < stop:
        v0 = np.float64(value[k])
        dot0 += w[feature[k]] * v0
        norm0 += v0 * v0
        k += 1
    return (dot0 + dot1) + (dot2 + dot3), norm0 + norm1


@njit(cache=True, inline="always")
def _add_row(feature, value, w, start, stop, step):
    for k in range(start, stop):
        w[feature[k]] += step * value[k]


@njit(cache=True, inline="always")
def _fetch_ahead(order, p, indptr, feature, value, w, n_columns):
    """Prefetch the entries of a row further on and the weights of a nearer one; `w` is flat, `n_columns` a feature."""
    last = order.size - 1
    i = order[min(p + _ENTRIES_AHEAD, last)]
    for k in range(indptr[i], indptr[i + 1], 16):
        prefetch(feature, k)
        prefetch(value, k)
    i = order[min(p + _WEIGHTS_AHEAD, last)]
    for k in range(indptr[i], indptr[i + 1]):
        first = feature[k] * n_columns
        for column in range(0, n_columns, 8):
            prefetch(w, first + column)


# ---------------------------------------------------------------------------------------------------------------------
# One dual variable: its gradient, its step, its terms of the objectives. t = y w·x, q = x·x, both with the bias


@njit(cache=True, inline="always")
def _loss_of_row(loss, y):
    """The loss of one row: a twin plane hugs the rows with y = -1, and keeps the others at a distance."""
    if loss == TWIN_HINGE:
        return _SQUARE if y < 0.0 else HINGE
    if loss == TWIN_SQUARED_HINGE:
        return _SQUARE if y < 0.0 else SQUARED_HINGE
    return loss


@njit(cache=True, inline="always")
def _svc_diagonal(loss, cost):
    """D_ii and U_i of hinge, squared hinge and square (whose lower bound is -U_i)."""
    if loss == SQUARED_HINGE:
        return 0.5 / cost, np.inf
    if loss == _SQUARE:
        return 1.0 / cost, np.inf
    return 0.0, cost


@njit(cache=True, inline="always")
def _svc_terms(loss, t, cost, alpha):
    """Row's terms of gap, primal loss and dual objective: phi, C xi(t), alpha - D alpha²/2 (of a square: - D alpha²/2)."""
    diagonal, _ = _svc_diagonal(loss, cost)
    if loss == _SQUARE:
        primal = 0.5 * cost * t * t
        return 0.5 * cost * (t + diagonal * alpha) ** 2, primal, -0.5 * diagonal * alpha * alpha
    slack = max(1.0 - t, 0.0)
    primal = cost * slack * slack if loss == SQUARED_HINGE else cost * slack
    quadratic = 0.5 * diagonal * alpha * alpha
    return primal + quadratic - alpha * (1.0 - t), primal, alpha - quadratic


@njit(cache=True, inline="always")
def _svc_projected_gradient(loss, t, cost, alpha):
    """G, and G projected: 0 where the bound at which alpha stands keeps it from moving."""
    diagonal, upper = _svc_diagonal(loss, cost)
    if loss == _SQUARE:
        return t + diagonal * alpha, t + diagonal * alpha
    gradient = t - 1.0 + diagonal * alpha
    if alpha <= 0.0:
        return gradient, min(gradient, 0.0)
    if alpha >= upper:
        return gradient, max(gradient, 0.0)
    return gradient, gradient


@njit(cache=True, inline="always")
def _svc_step(loss, gradient, q, cost, alpha, omega):
    """Omega times the way to the minimiser of the dual over this one variable, as far as its bounds allow."""
    diagonal, upper = _svc_diagonal(loss, cost)
    curvature = q + diagonal
    if curvature <= 0.0:  # an empty row under hinge: the dual falls all the way to the bound
        return upper
    lower = -np.inf if loss == _SQUARE else 0.0
    return min(max(alpha - omega * gradient / curvature, lower), upper)


@njit(cache=True, inline="always")
def _x_log_x(x):
    return x * math.log(x) if x > 0.0 else 0.0


@njit(cache=True, inline="always")
def _log_terms(t, cost, alpha, rest):
    """As `_svc_terms` for the logistic loss; `rest` is C - alpha."""
    primal = cost * (math.log1p(math.exp(-t)) if t > 0.0 else math.log1p(math.exp(t)) - t)
    dual = _x_log_x(cost) - _x_log_x(alpha) - _x_log_x(rest)
    return primal - dual + alpha * t, primal, dual


@njit(cache=True, inline="always")
def _log_gradient(t, alpha, rest):
    """Derivative of the dual; 0 where alpha stands at the smallest number kept and would go on falling."""
    gradient = math.log(alpha / rest) + t
    if (alpha <= _TINY and gradient > 0.0) or (rest <= _TINY and gradient < 0.0):
        return 0.0
    return gradient


@njit(cache=True, inline="always")
def _log_step(t, q, cost, alpha, rest, tolerance):
    """Minimise the logistic dual over one variable by Newton's method, in the variable that is nearer to a bound.

    Returns alpha, C - alpha, the change of alpha (free of cancellation), and the Newton steps taken.
    Source: Yu, Huang, Lin, Machine Learning 85 (2011), Algorithms 4 and 5. No line search is needed.
    """
    if q <= 0.0:
        return 0.5 * cost, 0.5 * cost, 0.5 * cost - alpha, 0
    first = 0.5 * q * (rest - alpha) + t >= 0.0
    centre, slope = (alpha, t) if first else (rest, -t)
    z = centre if centre < 0.5 * cost else _SHRINK_NEWTON * centre
    steps = 0
    while steps < 1000:
        gradient = math.log(z / (cost - z)) + q * (z - centre) + slope
        if abs(gradient) <= tolerance:
            break
        candidate = z - gradient / (q + cost / (z * (cost - z)))
        z = candidate if candidate > 0.0 else _SHRINK_NEWTON * z
        steps += 1
        if z < _TINY:
            z = _TINY
            break
    if first:
        return z, cost - z, z - alpha, steps
    return cost - z, z, rest - z, steps


# ---------------------------------------------------------------------------------------------------------------------
# One row in one lane, and the visits of hinge, squared hinge and logistic loss


@njit(cache=True, inline="always")
def _row_cost(i, lane, code, weight, fold, cost, lane_fold):
    """C_i of a row in a lane; 0 where the lane leaves the row out."""
    if lane_fold[lane] == fold[i]:
        return 0.0
    return cost[code[i], lane] * weight[i]


@njit(cache=True, inline="always")
def _solve_row(i, lane, n_lanes, t, q, c, alpha, active, loss, high, low, tolerance, omega, totals):
    """Minimise the dual over the row's variable in one lane; returns the change of alpha.

    `alpha`, `active` and the lane's row of `totals` are changed in place. The row leaves the active set where it stands at
    a bound with a gradient beyond the threshold (Hsieh et al. 2008, section 3.2).
    """
    old = alpha[i, lane]
    totals[lane, N_VISITED] += 1
    if loss == LOG_LOSS:
        rest = alpha[i, n_lanes + lane]
        phi, _, dual_old = _log_terms(t, c, old, rest)
        gradient = projected = abs(_log_gradient(t, old, rest))  # its largest size is what LIBLINEAR stops by
    else:
        phi, _, dual_old = _svc_terms(loss, t, c, old)
        gradient, projected = _svc_projected_gradient(loss, t, c, old)
    totals[lane, GAP] += phi
    if projected == 0.0 and ((old <= 0.0 and gradient > high) or (old > 0.0 and gradient < low)):
        active[i, lane] = 0
        totals[lane, N_SHRUNK] += 1
        return 0.0
    totals[lane, N_ACTIVE] += 1
    totals[lane, VIOLATION_MAX] = max(totals[lane, VIOLATION_MAX], projected)
    totals[lane, VIOLATION_MIN] = min(totals[lane, VIOLATION_MIN], projected)
    if abs(projected) <= _NO_STEP:
        return 0.0
    if loss == LOG_LOSS:
        new, new_rest, change, steps = _log_step(t, q, c, old, alpha[i, n_lanes + lane], tolerance)
        alpha[i, n_lanes + lane] = new_rest
        totals[lane, N_STEPS] += steps
        _, _, dual_new = _log_terms(t, c, new, new_rest)
    else:
        new = _svc_step(loss, gradient, q, c, old, omega)
        change = new - old
        _, _, dual_new = _svc_terms(loss, t, c, new)
    alpha[i, lane] = new
    totals[lane, DUAL] += dual_new - dual_old
    return change


@njit(cache=True, nogil=True)
def dual_visit(
    order,
    indptr,
    feature,
    value,
    code,
    weight,
    fold,
    alpha,
    active,
    w,
    bias,
    sign,
    cost,
    lane_fold,
    loss,
    high,
    low,
    tolerance,
    omega,
    totals,
):
    """Visit rows once in the given order: dual coordinate descent for one lane.

    Problem: ``min f(a) = ½ aᵀ(Q + D)a - Σ a`` over ``0 <= a_i <= U_i`` (hinge, squared hinge), or
    ``½ aᵀQa + Σ a log a + (C - a) log(C - a)`` (logistic), ``Q_ij = y_i y_j x_i·x_j``, with ``w = Σ y_i a_i x_i`` kept.
    Of a twin plane, rows with y = 1 are of hinge or squared hinge, and those with y = -1 have the term ``½ a_i²/C_i`` and no
    bounds: their primal loss is ``½ C_i (w·x_i)²``.

    Parameters
    ----------
    high, low : ndarray of float64, shape (1,)
        Shrinking thresholds: rows at 0 with a gradient above `high` and at U with one below `low` leave the active set.
    tolerance : ndarray of float64, shape (1,)
        Inner tolerance of Newton's method (logistic).
    omega : ndarray of float64, shape (1,)
        Over-relaxation; no part of the logistic loss's step, which is not closed.
    alpha, active, w, totals
        Changed in place; shapes as at the head of this file with one lane, but `w` of shape (d + 1,).

    Notes
    -----
    Cost: two passes over the entries of each row. Sources: Hsieh et al., ICML 2008, Algorithm 3; Yu, Huang, Lin 2011.
    """
    last = w.size - 1
    for p in range(order.size):
        _fetch_ahead(order, p, indptr, feature, value, w, 1)
        i = order[p]
        c = _row_cost(i, 0, code, weight, fold, cost, lane_fold)
        if c <= 0.0:
            continue
        y = sign[code[i], 0]
        start, stop = indptr[i], indptr[i + 1]
        dot, q = _row_dot(feature, value, w, start, stop)
        t = y * (dot + bias * w[last])
        q += bias * bias
        kind = _loss_of_row(loss, y)
        change = _solve_row(
            i, 0, 1, t, q, c, alpha, active, kind, high[0], low[0], tolerance[0], omega[0], totals
        )
        if change != 0.0:
            _add_row(feature, value, w, start, stop, change * y)
            w[last] += change * y * bias


@njit(cache=True, nogil=True)
def dual_visit_lanes(
    order,
    indptr,
    feature,
    value,
    code,
    weight,
    fold,
    alpha,
    active,
    w,
    bias,
    sign,
    cost,
    lane_fold,
    loss,
    high,
    low,
    tolerance,
    omega,
    totals,
    lanes,
    dots,
    live,
):
    """As `dual_visit` for several lanes at once: a row is decoded and its lines of `w` are fetched once for all of them.

    Parameters
    ----------
    w : ndarray of float64, shape ((d + 1) * n_lanes,)
        Row-major: the weights of a feature in all lanes are neighbours.
    high, low, tolerance, omega : ndarray of float64, shape (n_lanes,)
    lanes : ndarray of int64
        The lanes to train.
    dots : ndarray of float64, shape (n_lanes,); live : ndarray of int64, shape (n_lanes,)
        Scratch.
    """
    n_lanes = totals.shape[0]
    last = w.size - n_lanes
    for p in range(order.size):
        _fetch_ahead(order, p, indptr, feature, value, w, n_lanes)
        i = order[p]
        n_live = 0
        for lane in lanes:
            if active[i, lane] and _row_cost(i, lane, code, weight, fold, cost, lane_fold) > 0.0:
                live[n_live] = lane
                n_live += 1
        if n_live == 0:
            continue
        start, stop = indptr[i], indptr[i + 1]
        _lane_dots(feature, value, w, n_lanes, start, stop, live, n_live, dots)
        q = bias * bias
        for k in range(start, stop):
            q += np.float64(value[k]) * np.float64(value[k])
        n_changed = 0
        for position in range(n_live):
            lane = live[position]
            y = sign[code[i], lane]
            c = _row_cost(i, lane, code, weight, fold, cost, lane_fold)
            t = y * (dots[lane] + bias * w[last + lane])
            change = _solve_row(
                i,
                lane,
                n_lanes,
                t,
                q,
                c,
                alpha,
                active,
                _loss_of_row(loss, y),
                high[lane],
                low[lane],
                tolerance[lane],
                omega[lane],
                totals,
            )
            if change != 0.0:
                live[n_changed] = lane
                dots[n_changed] = change * y
                n_changed += 1
                w[last + lane] += change * y * bias
        _add_row_lanes(feature, value, w, n_lanes, start, stop, live, dots, n_changed)


@njit(cache=True, inline="always")
def _lane_dots(feature, value, w, n_lanes, start, stop, live, n_live, dots):
    """x·w of a row in the first `n_live` of `live` lanes, into `dots` at the lane's place; four lanes a sweep."""
    position = 0
    while position + 4 <= n_live:
        a, b, c, d = live[position], live[position + 1], live[position + 2], live[position + 3]
        dot_a = dot_b = dot_c = dot_d = 0.0
        for k in range(start, stop):
            v = np.float64(value[k])
            first = feature[k] * n_lanes
            dot_a += w[first + a] * v
            dot_b += w[first + b] * v
            dot_c += w[first + c] * v
            dot_d += w[first + d] * v
        dots[a], dots[b], dots[c], dots[d] = dot_a, dot_b, dot_c, dot_d
        position += 4
    while position < n_live:
        lane = live[position]
        dot_a = 0.0
        for k in range(start, stop):
            dot_a += w[feature[k] * n_lanes + lane] * np.float64(value[k])
        dots[lane] = dot_a
        position += 1


@njit(cache=True, inline="always")
def _add_row_lanes(feature, value, w, n_lanes, start, stop, lanes, steps, n):
    """Add ``steps[p]`` times the row to lane ``lanes[p]``, for the first `n`."""
    if n == 0:
        return
    for k in range(start, stop):
        v = np.float64(value[k])
        first = feature[k] * n_lanes
        for position in range(n):
            w[first + lanes[position]] += steps[position] * v


@njit(cache=True, inline="always")
def _certify_row(i, lane, n_lanes, t, c, alpha, loss, totals):
    """Add the row's terms at fixed w to `totals`; returns its alpha."""
    a = alpha[i, lane]
    if loss == LOG_LOSS:
        phi, primal, dual = _log_terms(t, c, a, alpha[i, n_lanes + lane])
        projected = abs(_log_gradient(t, a, alpha[i, n_lanes + lane]))
    else:
        phi, primal, dual = _svc_terms(loss, t, c, a)
        _, projected = _svc_projected_gradient(loss, t, c, a)
    totals[lane, GAP] += phi
    totals[lane, LOSS] += primal
    totals[lane, DUAL] += dual
    totals[lane, VIOLATION_MAX] = max(totals[lane, VIOLATION_MAX], projected)
    totals[lane, VIOLATION_MIN] = min(totals[lane, VIOLATION_MIN], projected)
    totals[lane, N_VISITED] += 1
    return a


@njit(cache=True, nogil=True)
def dual_certify(
    order,
    indptr,
    feature,
    value,
    code,
    weight,
    fold,
    alpha,
    w,
    bias,
    sign,
    cost,
    lane_fold,
    loss,
    w_alpha,
    totals,
):
    """Add up rows' terms of gap, loss and dual at fixed `w`, and ``w(alpha) = Σ y_i alpha_i x_i`` into `w_alpha`.

    One lane; `w` and `w_alpha` of shape (d + 1,). Changed in place: `w_alpha`, `totals`.
    """
    last = w.size - 1
    for p in range(order.size):
        _fetch_ahead(order, p, indptr, feature, value, w, 1)
        i = order[p]
        c = _row_cost(i, 0, code, weight, fold, cost, lane_fold)
        if c <= 0.0:
            continue
        y = sign[code[i], 0]
        start, stop = indptr[i], indptr[i + 1]
        dot, _ = _row_dot(feature, value, w, start, stop)
        t = y * (dot + bias * w[last])
        a = _certify_row(i, 0, 1, t, c, alpha, _loss_of_row(loss, y), totals)
        if a != 0.0:
            _add_row(feature, value, w_alpha, start, stop, a * y)
            w_alpha[last] += a * y * bias


@njit(cache=True, nogil=True)
def dual_certify_lanes(
    order,
    indptr,
    feature,
    value,
    code,
    weight,
    fold,
    alpha,
    w,
    bias,
    sign,
    cost,
    lane_fold,
    loss,
    w_alpha,
    totals,
    lanes,
    dots,
    live,
):
    """As `dual_certify` for the given lanes; `w` and `w_alpha` flat as in `dual_visit_lanes`."""
    n_lanes = totals.shape[0]
    last = w.size - n_lanes
    for p in range(order.size):
        _fetch_ahead(order, p, indptr, feature, value, w, n_lanes)
        i = order[p]
        n_live = 0
        for lane in lanes:
            if _row_cost(i, lane, code, weight, fold, cost, lane_fold) > 0.0:
                live[n_live] = lane
                n_live += 1
        start, stop = indptr[i], indptr[i + 1]
        _lane_dots(feature, value, w, n_lanes, start, stop, live, n_live, dots)
        n_changed = 0
        for position in range(n_live):
            lane = live[position]
            y = sign[code[i], lane]
            c = _row_cost(i, lane, code, weight, fold, cost, lane_fold)
            t = y * (dots[lane] + bias * w[last + lane])
            a = _certify_row(i, lane, n_lanes, t, c, alpha, _loss_of_row(loss, y), totals)
            if a != 0.0:
                live[n_changed] = lane
                dots[n_changed] = a * y
                n_changed += 1
                w_alpha[last + lane] += a * y * bias
        _add_row_lanes(feature, value, w_alpha, n_lanes, start, stop, live, dots, n_changed)


# ---------------------------------------------------------------------------------------------------------------------
# Twin planes with an inverse: a_i of the rows with y = 1 alone, those of y = -1 being eliminated


@njit(cache=True, nogil=True)
def gram_visit(
    order, indptr, feature, value, code, weight, fold, bias, sign, cost, lane_fold, lanes, part, n_parts, gram
):
    """Add ``C_i x_i x_iᵀ`` of the rows with y = -1 to each lane's matrix; only its rows ``part, part + n_parts, …``.

    Parameters
    ----------
    gram : ndarray of float64, shape (lanes, d + 1, d + 1)
        Changed in place. Whatever `n_parts`, every number is summed up in the same order.
    """
    last = gram.shape[1] - 1
    for p in range(order.size):
        i = order[p]
        start, stop = indptr[i], indptr[i + 1]
        for lane in lanes:
            c = _row_cost(i, lane, code, weight, fold, cost, lane_fold)
            if c <= 0.0 or sign[code[i], lane] > 0.0:
                continue
            matrix = gram[lane]
            for k in range(start, stop + 1):
                row = last if k == stop else np.int64(feature[k])
                if row % n_parts != part:
                    continue
                factor = c * bias if k == stop else c * np.float64(value[k])
                if factor == 0.0:
                    continue
                for m in range(start, stop):
                    matrix[row, feature[m]] += factor * np.float64(value[m])
                matrix[row, last] += factor * bias


@njit(cache=True, nogil=True)
def mirror(matrix):
    """Copy the lower triangle of a square matrix to the upper one, in place, in blocks that stay in the cache."""
    n = matrix.shape[0]
    for block in range(0, n, 64):
        for other in range(0, block + 64, 64):
            for i in range(block, min(block + 64, n)):
                for j in range(other, min(other + 64, i)):
                    matrix[j, i] = matrix[i, j]


@njit(cache=True, nogil=True)
def twin_sor_visit(
    order,
    indptr,
    feature,
    value,
    code,
    weight,
    fold,
    alpha,
    active,
    w,
    bias,
    sign,
    cost,
    lane_fold,
    loss,
    high,
    low,
    omega,
    totals,
    lanes,
    inverse,
    column,
):
    """Visit rows once in the given order: SOR on the dual of a twin plane from which the rows with y = -1 are eliminated.

    Problem: ``min ½ aᵀBH⁻¹Bᵀa + ½ aᵀDa - Σ a`` over ``0 <= a_i <= U_i``, B the rows with y = 1,
    ``H = I + Σ C_i x_i x_iᵀ`` over those with y = -1, with ``w = H⁻¹Bᵀa`` kept.

    Parameters
    ----------
    w : ndarray of float64, shape ((d + 1) * n_lanes,)
        Changed in place.
    inverse : ndarray of float64, shape (lanes, d + 1, d + 1)
    column : ndarray of float64, shape (d + 1,)
        Scratch.
    totals
        Changed in place; DUAL gets the change of the whole dual objective, the quadratic term included.

    Notes
    -----
    Cost: the entries of each row, and (d + 1) times as many for each that moves.
    """
    n_lanes = totals.shape[0]
    last = column.size - 1
    for p in range(order.size):
        i = order[p]
        start, stop = indptr[i], indptr[i + 1]
        for lane in lanes:
            c = _row_cost(i, lane, code, weight, fold, cost, lane_fold)
            if c <= 0.0 or sign[code[i], lane] < 0.0 or not active[i, lane]:
                continue
            kind = _loss_of_row(loss, 1.0)
            t = bias * w[last * n_lanes + lane]
            for k in range(start, stop):
                t += w[feature[k] * n_lanes + lane] * np.float64(value[k])
            q = 0.0
            if abs(_svc_projected_gradient(kind, t, c, alpha[i, lane])[1]) > _NO_STEP:
                matrix = inverse[lane]
                for j in range(last + 1):
                    column[j] = bias * matrix[last, j]
                for k in range(start, stop):
                    v = np.float64(value[k])
                    row = matrix[feature[k]]
                    for j in range(last + 1):
                        column[j] += v * row[j]
                q = bias * column[last]
                for k in range(start, stop):
                    q += np.float64(value[k]) * column[feature[k]]
            change = _solve_row(
                i,
                lane,
                n_lanes,
                t,
                q,
                c,
                alpha,
                active,
                kind,
                high[lane],
                low[lane],
                0.0,
                omega[lane],
                totals,
            )
            if change != 0.0:
                totals[lane, DUAL] -= change * t + 0.5 * change * change * q
                for j in range(last + 1):
                    w[j * n_lanes + lane] += change * column[j]


@njit(cache=True, nogil=True)
def twin_sor_certify(
    order,
    indptr,
    feature,
    value,
    code,
    weight,
    fold,
    alpha,
    w,
    bias,
    sign,
    cost,
    lane_fold,
    loss,
    w_alpha,
    totals,
    lanes,
    pulled,
):
    """As `dual_certify_lanes`, with ``a_i = C_i w·x_i`` for the rows with y = -1, which no visit changes.

    That is a feasible point of the dual of `dual_visit`, so the certificate is of the same kind, and knows of no inverse.
    ``Σ a_i x_i`` of the rows with y = 1 is added to `pulled`, shape (d + 1, lanes).
    """
    n_lanes = totals.shape[0]
    last = pulled.shape[0] - 1
    for p in range(order.size):
        i = order[p]
        start, stop = indptr[i], indptr[i + 1]
        for lane in lanes:
            c = _row_cost(i, lane, code, weight, fold, cost, lane_fold)
            if c <= 0.0:
                continue
            y = sign[code[i], lane]
            t = bias * w[last * n_lanes + lane]
            for k in range(start, stop):
                t += w[feature[k] * n_lanes + lane] * np.float64(value[k])
            t *= y
            if y < 0.0:
                alpha[i, lane] = -c * t
            a = _certify_row(i, lane, n_lanes, t, c, alpha, _loss_of_row(loss, y), totals)
            if a == 0.0:
                continue
            for k in range(start, stop):
                w_alpha[feature[k] * n_lanes + lane] += a * y * np.float64(value[k])
            w_alpha[last * n_lanes + lane] += a * y * bias
            if y > 0.0:
                for k in range(start, stop):
                    pulled[feature[k], lane] += a * np.float64(value[k])
                pulled[last, lane] += a * bias


# ---------------------------------------------------------------------------------------------------------------------
# Crammer–Singer. A lane has k weight vectors: columns ``first:first + k`` of w, alpha and active


@njit(cache=True, inline="always")
def _class_margins(feature, value, w, n_columns, first, n_classes, start, stop, label, bias, margin):
    """Write ``G_m = w_m·x + [m ≠ y]`` of all classes to `margin`; returns x·x, with the bias."""
    last = w.size - n_columns + first
    for m in range(n_classes):
        margin[m] = bias * w[last + m] + (0.0 if m == label else 1.0)
    q = bias * bias
    for k in range(start, stop):
        v = np.float64(value[k])
        q += v * v
        place = feature[k] * n_columns + first
        for m in range(n_classes):
            margin[m] += w[place + m] * v
    return q


@njit(cache=True, inline="always")
def _class_terms(i, first, n_classes, label, c, alpha, margin):
    """Row's terms of gap, primal loss and dual objective."""
    largest, product, outside = margin[label], 0.0, 0.0
    for m in range(n_classes):
        a = alpha[i, first + m]
        largest = max(largest, margin[m])
        product += a * margin[m]
        if m != label:
            outside += a
    primal = c * (largest - margin[label])
    return primal + product, primal, -outside


@njit(cache=True, inline="always")
def _class_violation(i, first, n_classes, label, c, alpha, active, margin):
    """Largest G of the active classes, and smallest of those that may grow."""
    largest, smallest = -np.inf, np.inf
    for m in range(n_classes):
        if active[i, first + m]:
            largest = max(largest, margin[m])
            if alpha[i, first + m] < (c if m == label else 0.0):
                smallest = min(smallest, margin[m])
    return largest, smallest


@njit(cache=True, inline="always")
def _solve_classes(i, first, n_classes, label, q, c, alpha, active, margin, target, step):
    """The sub-problem of a row over its active classes; writes the changes of alpha to `step`, `alpha` in place.

    ``D_m = G_m - q a_m + q C_m``; beta is found by taking the largest D one after another, as few as there will be
    variables off their bound. Source: Keerthi et al., KDD 2008; Fan et al., LIBLINEAR, appendix E.
    """
    for m in range(n_classes):
        target[m] = -np.inf
        if active[i, first + m]:
            target[m] = margin[m] - q * alpha[i, first + m] + (q * c if m == label else 0.0)
    taken, total = 0, -q * c
    while True:
        best = -1
        for m in range(n_classes):
            if target[m] > -np.inf and (best < 0 or target[m] > target[best]):
                best = m
        if best < 0 or (taken > 0 and total >= taken * target[best]):
            break
        total += target[best]
        taken += 1
        target[best] = -np.inf
    beta = total / taken
    for m in range(n_classes):
        step[m] = 0.0
        if active[i, first + m]:
            old = alpha[i, first + m]
            new = min(c if m == label else 0.0, (beta - margin[m]) / q + old)
            alpha[i, first + m] = new
            step[m] = new - old


@njit(cache=True, nogil=True)
def crammer_singer_visit(
    order,
    indptr,
    feature,
    value,
    code,
    weight,
    fold,
    alpha,
    active,
    w,
    bias,
    cost,
    lane_fold,
    lane,
    first,
    n_columns,
    totals,
    margin,
    target,
    step,
):
    """Visit rows once in the given order: sequential dual method for the multiclass SVM of Crammer and Singer.

    Problem: ``min ½ Σ_m ‖w_m‖² + Σ_i Σ_{m ≠ y_i} a_im`` over ``Σ_m a_im = 0``, ``a_im <= C_i [m = y_i]``, with
    ``w_m = Σ_i a_im x_i`` kept.

    Parameters
    ----------
    alpha : ndarray of float64, shape (rows, n_columns); active : ndarray of uint8, like `alpha`
        Changed in place. Classes at their bound with a small G are taken out; a row with one class left leaves.
    w : ndarray of float64, shape ((d + 1) * n_columns,)
        Changed in place.
    cost : ndarray of float64, shape (classes, lanes)
    lane, first, n_columns : int
        The lane, its first column, and the columns of all lanes.
    totals : ndarray, shape (lanes, N_TOTALS)
        Changed in place; the largest violation is ``max_m G_m - min G_m`` over m that may grow.
    margin, target, step : ndarray of float64, shape (classes,)
        Scratch.
    """
    n_classes = cost.shape[0]
    last = w.size - n_columns + first
    totals[lane, VIOLATION_MIN] = min(totals[lane, VIOLATION_MIN], 0.0)
    totals[lane, VIOLATION_MAX] = max(totals[lane, VIOLATION_MAX], 0.0)
    for p in range(order.size):
        _fetch_ahead(order, p, indptr, feature, value, w, n_columns)
        i = order[p]
        c = _row_cost(i, lane, code, weight, fold, cost, lane_fold)
        if c <= 0.0:
            continue
        label = code[i]
        start, stop = indptr[i], indptr[i + 1]
        q = _class_margins(feature, value, w, n_columns, first, n_classes, start, stop, label, bias, margin)
        phi, _, dual_old = _class_terms(i, first, n_classes, label, c, alpha, margin)
        totals[lane, GAP] += phi
        totals[lane, N_VISITED] += 1
        if (
            q <= 0.0
        ):  # an empty row: the loss is C whatever w is; any feasible alpha with Σ_{m ≠ y} a = -C says so
            for m in range(n_classes):
                alpha[i, first + m] = 0.0
                active[i, first + m] = 0
            alpha[i, first + label] = c
            alpha[i, first + (1 if label == 0 else 0)] = -c
            totals[lane, DUAL] += c - dual_old
            continue
        largest, smallest = _class_violation(i, first, n_classes, label, c, alpha, active, margin)
        n_left = 0
        for m in range(n_classes):
            if active[i, first + m]:
                at_bound = alpha[i, first + m] >= (c if m == label else 0.0)
                if at_bound and margin[m] < smallest:
                    active[i, first + m] = 0
                else:
                    n_left += 1
        if n_left < n_classes:
            totals[lane, N_SHRUNK] += 1
        if n_left <= 1:
            for m in range(n_classes):
                active[i, first + m] = 0
            continue
        totals[lane, N_ACTIVE] += 1
        if largest - smallest <= _NO_STEP:
            continue
        totals[lane, VIOLATION_MAX] = max(totals[lane, VIOLATION_MAX], largest - smallest)
        _solve_classes(i, first, n_classes, label, q, c, alpha, active, margin, target, step)
        _, _, dual_new = _class_terms(i, first, n_classes, label, c, alpha, margin)
        totals[lane, DUAL] += dual_new - dual_old
        for m in range(n_classes):
            w[last + m] += step[m] * bias
        for k in range(start, stop):
            v = np.float64(value[k])
            place = feature[k] * n_columns + first
            for m in range(n_classes):
                w[place + m] += step[m] * v


@njit(cache=True, nogil=True)
def crammer_singer_certify(
    order,
    indptr,
    feature,
    value,
    code,
    weight,
    fold,
    alpha,
    w,
    bias,
    cost,
    lane_fold,
    lane,
    first,
    n_columns,
    w_alpha,
    totals,
    margin,
):
    """As `dual_certify` for a lane of Crammer–Singer. In place: `w_alpha`, `totals`."""
    n_classes = cost.shape[0]
    last = w.size - n_columns + first
    totals[lane, VIOLATION_MIN] = min(totals[lane, VIOLATION_MIN], 0.0)
    totals[lane, VIOLATION_MAX] = max(totals[lane, VIOLATION_MAX], 0.0)
    for p in range(order.size):
        _fetch_ahead(order, p, indptr, feature, value, w, n_columns)
        i = order[p]
        c = _row_cost(i, lane, code, weight, fold, cost, lane_fold)
        if c <= 0.0:
            continue
        label = code[i]
        start, stop = indptr[i], indptr[i + 1]
        q = _class_margins(feature, value, w, n_columns, first, n_classes, start, stop, label, bias, margin)
        phi, primal, dual = _class_terms(i, first, n_classes, label, c, alpha, margin)
        totals[lane, GAP] += phi
        totals[lane, LOSS] += primal
        totals[lane, DUAL] += dual
        totals[lane, N_VISITED] += 1
        if q > 0.0:
            largest, smallest = -np.inf, np.inf
            for m in range(n_classes):
                largest = max(largest, margin[m])
                if alpha[i, first + m] < (c if m == label else 0.0):
                    smallest = min(smallest, margin[m])
            totals[lane, VIOLATION_MAX] = max(totals[lane, VIOLATION_MAX], largest - smallest)
        for m in range(n_classes):
            w_alpha[last + m] += alpha[i, first + m] * bias
        for k in range(start, stop):
            v = np.float64(value[k])
            place = feature[k] * n_columns + first
            for m in range(n_classes):
                w_alpha[place + m] += alpha[i, first + m] * v


# ---------------------------------------------------------------------------------------------------------------------
# Prediction


@njit(cache=True, nogil=True)
def margins(indptr, feature, value, w, out):
    """Write ``x·w_m`` of every row and weight vector to `out`.

    Parameters
    ----------
    w : ndarray of float64, shape (d, n_vectors)
    out : ndarray of float64, shape (rows, n_vectors)
        Written.

    Returns
    -------
    int
        Entries that were left out because their feature is not below d.
    """
    n_features, n_vectors = w.shape
    ignored = 0
    for i in range(indptr.size - 1):
        for m in range(n_vectors):
            out[i, m] = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            j = feature[k]
            if j < 0 or j >= n_features:
                ignored += 1
                continue
            v = np.float64(value[k])
            for m in range(n_vectors):
                out[i, m] += w[j, m] * v
    return ignored


# ---------------------------------------------------------------------------------------------------------------------
# Rows as they are stored: norms and scaling


@njit(cache=True, inline="always")
def _row_norm(value, start, stop):
    """Euclidean norm of ``value[start:stop]``; squares that would leave the range of float64 are avoided."""
    squares, largest = 0.0, 0.0
    for k in range(start, stop):
        v = abs(np.float64(value[k]))
        squares += v * v
        largest = max(largest, v)
    if 1e-280 < squares < 1e300 or largest == 0.0:
        return math.sqrt(squares)
    ratios = 0.0
    for k in range(start, stop):
        ratio = np.float64(value[k]) / largest
        ratios += ratio * ratio
    return largest * math.sqrt(ratios)


@njit(cache=True, nogil=True)
def add_row_norms(indptr, value, sums):
    """Add rows, one after the other, to what is known of the norms of all.

    Parameters
    ----------
    indptr : (rows + 1,) int64
    value : (entries,) float
    sums : (4,) float64
        Least norm above 0, greatest norm, sum of the squared norms, rows of norm 0; changed in place.
    """
    for i in range(indptr.size - 1):
        norm = _row_norm(value, indptr[i], indptr[i + 1])
        if norm > 0.0:
            sums[0] = min(sums[0], norm)
            sums[1] = max(sums[1], norm)
            sums[2] += norm * norm
        else:
            sums[3] += 1.0


@njit(cache=True, nogil=True)
def scale_rows(indptr, feature, value, scale, n_features, unit_rows, out):
    """Divide every value by its feature's scale, then every row by its norm.

    Parameters
    ----------
    indptr : (rows + 1,) int64
    feature : (entries,) integer
    value : (entries,) float
    scale : (m,) float64
        Divisors of the features 0 … m - 1; others keep their values.
    n_features : int
        Entries of features from here on become 0, and so have no part in the norm.
    unit_rows : bool
        Whether rows are divided by their norms; rows of norm 0 stay as they are.
    out : (entries,) float64
        Written.
    """
    for i in range(indptr.size - 1):
        start, stop = indptr[i], indptr[i + 1]
        for k in range(start, stop):
            j = feature[k]
            out[k] = np.float64(value[k])
            if j < 0 or j >= n_features:
                out[k] = 0.0
            elif j < scale.size:
                out[k] /= scale[j]
        norm = _row_norm(out, start, stop) if unit_rows else 0.0
        if norm > 0.0:
            for k in range(start, stop):
                out[k] /= norm

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
alpha : (rows, k) float64      dual variables; for the logistic loss alpha in the first half, C - alpha in the second
active : (rows, lanes) uint8   0 where shrinking took the row out of the lane
w : (d + 1, lanes) float64     weights; the last row belongs to the bias and stays 0 where there is none
sign, cost : (classes, lanes)  y and C of a row of that class in that lane; cost 0 leaves the class out
totals : (lanes, N_TOTALS)     sums over the visited rows, columns as named below
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

HINGE, SQUARED_HINGE, LOG_LOSS, CRAMMER_SINGER = 0, 1, 2, 3

GAP, LOSS, DUAL, VIOLATION_MAX, VIOLATION_MIN, N_VISITED, N_ACTIVE, N_STEPS = range(8)
"""Columns of `totals`: the rows' terms of the gap, of the primal loss and of the dual objective (for a visit, the change
of the latter); the largest and smallest projected gradient; rows visited, rows still active, inner Newton steps."""
N_TOTALS = 8

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
def _svc_diagonal(loss, cost):
    """D_ii and U_i of hinge and squared hinge."""
    if loss == SQUARED_HINGE:
        return 0.5 / cost, np.inf
    return 0.0, cost


@njit(cache=True, inline="always")
def _svc_terms(loss, t, cost, alpha):
    """Row's terms of gap, primal loss and dual objective: phi, C xi(t), alpha - D alpha²/2."""
    diagonal, _ = _svc_diagonal(loss, cost)
    slack = max(1.0 - t, 0.0)
    primal = cost * slack * slack if loss == SQUARED_HINGE else cost * slack
    quadratic = 0.5 * diagonal * alpha * alpha
    return primal + quadratic - alpha * (1.0 - t), primal, alpha - quadratic


@njit(cache=True, inline="always")
def _svc_projected_gradient(loss, t, cost, alpha):
    """G, and G projected: 0 where the bound at which alpha stands keeps it from moving."""
    diagonal, upper = _svc_diagonal(loss, cost)
    gradient = t - 1.0 + diagonal * alpha
    if alpha <= 0.0:
        return gradient, min(gradient, 0.0)
    if alpha >= upper:
        return gradient, max(gradient, 0.0)
    return gradient, gradient


@njit(cache=True, inline="always")
def _svc_step(loss, gradient, q, cost, alpha):
    """The minimiser of the dual over this one variable."""
    diagonal, upper = _svc_diagonal(loss, cost)
    curvature = q + diagonal
    if curvature <= 0.0:  # an empty row under hinge: the dual falls all the way to the bound
        return upper
    return min(max(alpha - gradient / curvature, 0.0), upper)


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
# Visits: SVC and logistic regression, one lane


@njit(cache=True, nogil=True)
def dual_visit(
    order,
    indptr,
    feature,
    value,
    code,
    weight,
    alpha,
    active,
    w,
    bias,
    sign,
    cost,
    loss,
    high,
    low,
    tolerance,
    totals,
):
    """Visit rows once in the given order: dual coordinate descent for one lane.

    Problem: ``min f(a) = ½ aᵀ(Q + D)a - Σ a`` over ``0 <= a_i <= U_i`` (hinge, squared hinge), or
    ``½ aᵀQa + Σ a log a + (C - a) log(C - a)`` (logistic), ``Q_ij = y_i y_j x_i·x_j``, with ``w = Σ y_i a_i x_i`` kept.

    Parameters
    ----------
    high, low : float
        Shrinking thresholds: rows at 0 with a gradient above `high` and at U with one below `low` leave the active set.
    tolerance : float
        Inner tolerance of Newton's method (logistic).
    alpha, active, w, totals
        Changed in place; shapes as at the head of this file with one lane, `w` of shape (d + 1,), `totals` (N_TOTALS,).

    Notes
    -----
    Cost: two passes over the entries of each row. Sources: Hsieh et al., ICML 2008, Algorithm 3; Yu, Huang, Lin 2011.
    """
    last = w.size - 1
    lane_sign, lane_cost = sign[:, 0], cost[:, 0]
    gap = dual = 0.0
    largest, smallest = totals[VIOLATION_MAX], totals[VIOLATION_MIN]
    n_visited = n_active = n_steps = 0
    for p in range(order.size):
        _fetch_ahead(order, p, indptr, feature, value, w, 1)
        i = order[p]
        c = lane_cost[code[i]] * weight[i]
        if c <= 0.0:
            continue
        y = lane_sign[code[i]]
        start, stop = indptr[i], indptr[i + 1]
        t, q = _row_dot(feature, value, w, start, stop)
        t = y * (t + bias * w[last])
        q += bias * bias
        old = alpha[i, 0]
        n_visited += 1
        if loss == LOG_LOSS:
            phi, _, dual_old = _log_terms(t, c, old, alpha[i, 1])
            gap += phi
            gradient = _log_gradient(t, old, alpha[i, 1])
            largest, smallest = max(largest, gradient), min(smallest, gradient)
            n_active += 1
            new, rest, change, steps = _log_step(t, q, c, old, alpha[i, 1], tolerance)
            n_steps += steps
            alpha[i, 0] = new
            alpha[i, 1] = rest
            dual += _x_log_x(c) - _x_log_x(new) - _x_log_x(rest) - dual_old
        else:
            phi, _, dual_old = _svc_terms(loss, t, c, old)
            gap += phi
            gradient, projected = _svc_projected_gradient(loss, t, c, old)
            if projected == 0.0 and ((old <= 0.0 and gradient > high) or (old > 0.0 and gradient < low)):
                active[i, 0] = 0
                continue
            n_active += 1
            largest, smallest = max(largest, projected), min(smallest, projected)
            if abs(projected) <= _NO_STEP:
                continue
            new = _svc_step(loss, gradient, q, c, old)
            change = new - old
            alpha[i, 0] = new
            _, _, dual_new = _svc_terms(loss, t, c, new)
            dual += dual_new - dual_old
        if change != 0.0:
            _add_row(feature, value, w, start, stop, change * y)
            w[last] += change * y * bias
    totals[GAP] += gap
    totals[DUAL] += dual
    totals[VIOLATION_MAX], totals[VIOLATION_MIN] = largest, smallest
    totals[N_VISITED] += n_visited
    totals[N_ACTIVE] += n_active
    totals[N_STEPS] += n_steps


@njit(cache=True, nogil=True)
def dual_certify(
    order, indptr, feature, value, code, weight, alpha, w, bias, sign, cost, loss, w_alpha, totals
):
    """Add up rows' terms of gap, loss and dual at fixed `w`, and ``w(alpha) = Σ y_i alpha_i x_i`` into `w_alpha`.

    One lane; `w` and `w_alpha` of shape (d + 1,). Changed in place: `w_alpha`, `totals` (N_TOTALS,).
    """
    last = w.size - 1
    for p in range(order.size):
        _fetch_ahead(order, p, indptr, feature, value, w, 1)
        i = order[p]
        c = cost[code[i], 0] * weight[i]
        if c <= 0.0:
            continue
        y = sign[code[i], 0]
        start, stop = indptr[i], indptr[i + 1]
        t, _ = _row_dot(feature, value, w, start, stop)
        t = y * (t + bias * w[last])
        a = alpha[i, 0]
        if loss == LOG_LOSS:
            phi, primal, dual = _log_terms(t, c, a, alpha[i, 1])
            projected = _log_gradient(t, a, alpha[i, 1])
        else:
            phi, primal, dual = _svc_terms(loss, t, c, a)
            _, projected = _svc_projected_gradient(loss, t, c, a)
        totals[GAP] += phi
        totals[LOSS] += primal
        totals[DUAL] += dual
        totals[VIOLATION_MAX] = max(totals[VIOLATION_MAX], projected)
        totals[VIOLATION_MIN] = min(totals[VIOLATION_MIN], projected)
        totals[N_VISITED] += 1
        if a != 0.0:
            _add_row(feature, value, w_alpha, start, stop, a * y)
            w_alpha[last] += a * y * bias


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

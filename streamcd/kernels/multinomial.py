"""Multinomial logistic regression by a dual method that solves one row's problem over all classes; visit and certificate.

    min ½ Σ_m ‖w_m‖² + Σ_i C_i (log Σ_m exp(z_im) - z_i,y_i),    z_im = w_m·x_i

A row has a variable ``a_m >= 0`` for each class, ``Σ_m a_m = C_i``, and ``w_m = Σ_i (C_i [m = y_i] - a_im) x_i``; its term
of the dual is ``-Σ_m a_m log(a_m / C_i)``, and its term of the gap C_i times the divergence of ``a / C_i`` from the softmax
of z. The sum of the others stands in place of ``C_i - a_y``: nothing cancels in it. Columns and arguments are those of
`kernels.crammer_singer`. Source: Yu, Huang, Lin, Machine Learning 85 (2011), section 6, with each row's problem solved by
Newton's method in one variable, the multiplier of the sum.
"""

from __future__ import annotations

import math

import numpy as np

from .compile import inlined, kernel
from .crammer_singer import add_row_classes, class_scores
from .losses import divergence
from .primitives import (
    ALPHA,
    ALPHA_CURVATURE,
    ALPHA_SQUARE,
    DUAL,
    GAP,
    LOSS,
    N_ACTIVE,
    N_VISITED,
    NO_STEP,
    SLOPE,
    VIOLATION_MAX,
    VIOLATION_MIN,
    fetch_ahead,
    row_cost,
)

_SUM_TOLERANCE = 1e-7  # of Σ a / C; its square is left in the term of the gap
_ROOT_TOLERANCE = 1e-5  # of log a, of which the square is left
_MOST_STEPS = 50


@inlined
def log_softmax(z, out):
    """Write the logarithms of the softmax of `z` to `out`."""
    top = 0
    for m in range(1, z.size):
        if z[m] > z[top]:
            top = m
    rest = 0.0
    for m in range(z.size):
        out[m] = z[m] - z[top]
        if m != top:
            rest += math.exp(out[m])
    shift = math.log1p(rest)
    for m in range(z.size):
        out[m] -= shift


@inlined
def _entropy(alpha, c):
    """Return the row's term of the dual."""
    total = 0.0
    for m in range(alpha.size):
        p = alpha[m] / c
        total -= p * math.log(p) if p > 0.0 else 0.0
    return c * total


@inlined
def _row_terms(alpha, log_soft, label, c):
    """Return the row's terms of gap, primal loss and dual, and the largest ``|a_m - C s_m|``, s the softmax."""
    phi = dual = largest = 0.0
    for m in range(alpha.size):
        p, soft = alpha[m] / c, math.exp(log_soft[m])
        log_p = math.log(p) if p > 0.0 else 0.0
        phi += divergence(p, log_p, soft, log_soft[m])
        dual -= p * log_p
        largest = max(largest, abs(p - soft))
    return c * phi, -c * log_soft[label], c * dual, c * largest


@inlined
def _count(columns, alpha, label, q, sign, totals):
    """Add a row's variables ``C [m = y] - a_m`` to the sums for acceleration, or subtract them; `sign` is 1 or -1."""
    own, square = 0.0, 0.0
    for m in range(alpha.size):
        if m != label:
            own += alpha[m]
            square += alpha[m] * alpha[m]
    totals[columns.lane, ALPHA] += sign * own
    totals[columns.lane, ALPHA_CURVATURE] += sign * own * own * q
    totals[columns.lane, ALPHA_SQUARE] += sign * (square + own * own) * q


@inlined
def _first_root(t, q):
    """Return u near the solution of ``u + q e^u = t``."""
    log_q = math.log(q)
    v = t + log_q
    if v > 1.0:
        return math.log(v) - log_q
    e = math.exp(v)
    return t - e / (1.0 + e)


@inlined
def _root(t, q, u):
    """Solve ``u + q e^u = t`` by Newton's method from u, for which the function is convex; returns u and e^u."""
    if not abs(t - u) < 700.0 or abs(t - u - q * math.exp(u)) > 1.0:
        u = _first_root(t, q)
    for _ in range(_MOST_STEPS):
        a = math.exp(u)
        step = (t - u - q * a) / (1.0 + q * a)
        u += step
        if abs(step) <= _ROOT_TOLERANCE:
            return u, a * (1.0 + step + 0.5 * step * step)
    return u, math.exp(u)


@inlined
def _solve(alpha, z, q, c, log_a, new):
    """Write the solution of a row's problem to `new`: ``log a_m + q (a_m - alpha_m) = z_m + nu``, with nu so that Σ a = C.

    Newton's method on ``log(Σ a) - log C`` in nu, up to a tolerance, which counts from the score of the class with the
    largest variable. Where numbers are so large that its sum is lost, the variables stay as they are. `log_a` is scratch.
    """
    most = 0
    for m in range(alpha.size):
        most = m if alpha[m] > alpha[most] else most
    nu, origin = math.log(alpha[most]), z[most]
    for m in range(alpha.size):
        log_a[m] = math.log(alpha[m]) if alpha[m] > 0.0 else -np.inf
    total = 0.0
    for _ in range(_MOST_STEPS):
        total = slope = 0.0
        for m in range(alpha.size):
            log_a[m], new[m] = _root(z[m] - origin + q * alpha[m] + nu, q, log_a[m])
            total += new[m]
            slope += new[m] / (1.0 + q * new[m])
        if not 0.0 < slope < np.inf:
            for m in range(alpha.size):
                new[m] = alpha[m]
            return
        excess = math.log(total / c)
        if abs(excess) <= _SUM_TOLERANCE:
            break
        change = -excess * total / slope
        nu += change
        for m in range(alpha.size):
            log_a[m] += change / (1.0 + q * new[m])
    most = 0
    for m in range(alpha.size):
        most = m if new[m] > new[most] else most
    rest = 0.0
    for m in range(alpha.size):
        if m != most:
            rest += new[m]
    new[most] = c - rest


@inlined
def _take_steps(alpha, label, new):
    """Replace `alpha` by `new`, in place, and `new` by the changes of ``C [m = y] - a_m``."""
    own = 0.0
    for m in range(alpha.size):
        old, alpha[m] = alpha[m], new[m]
        new[m] = old - new[m]
        if m != label:
            own -= new[m]
    new[label] = own


@kernel
def multinomial_visit(order, rows, costs, variables, columns, totals):
    """Visit rows once in the given order, each row's problem over its classes being solved; `variables` has no flags in use.

    Changed in place: `variables`, and `totals`, whose largest violation is ``max_m |a_m - C s_m|``, s the softmax.
    """
    lane, scratch, z = columns.lane, columns.scratch, columns.scratch.margin
    n_classes = z.size
    own = slice(columns.first, columns.first + n_classes)
    fetched = range(columns.first, columns.first + n_classes, 8)
    totals[lane, VIOLATION_MIN] = min(totals[lane, VIOLATION_MIN], 0.0)
    totals[lane, VIOLATION_MAX] = max(totals[lane, VIOLATION_MAX], 0.0)
    for p in range(order.size):
        fetch_ahead(order, p, rows, variables.w, columns.n_columns, fetched)
        i = order[p]
        c = row_cost(i, lane, rows, costs)
        if c <= 0.0:
            continue
        label, alpha = rows.code[i], variables.alpha[i, own]
        q = class_scores(i, rows, variables.w, columns, costs.bias, 0.0)
        totals[lane, N_VISITED] += 1
        if not q < np.inf:  # the loop says what is wrong
            totals[lane, GAP] = np.inf
            continue
        log_softmax(z, scratch.target)
        phi, _, dual_old, apart = _row_terms(alpha, scratch.target, label, c)
        totals[lane, GAP] += phi
        q *= columns.inverse_mu
        accelerated = columns.inverse_mu != 1.0
        if columns.uncounted != 0.0:
            _count(columns, alpha, label, q, 1.0, totals)
        totals[lane, N_ACTIVE] += 1
        if apart <= NO_STEP * c:
            continue
        totals[lane, VIOLATION_MAX] = max(totals[lane, VIOLATION_MAX], apart)
        if q <= 0.0:
            for m in range(n_classes):
                alpha[m] = c / n_classes
            totals[lane, DUAL] += _entropy(alpha, c) - dual_old
            continue
        if accelerated:
            _count(columns, alpha, label, q, -1.0, totals)
        _solve(alpha, z, q, c, scratch.target, scratch.step)
        _take_steps(alpha, label, scratch.step)
        totals[lane, DUAL] += _entropy(alpha, c) - dual_old
        if accelerated:
            _count(columns, alpha, label, q, 1.0, totals)
            for m in range(n_classes):
                scratch.step[m] *= columns.inverse_mu
        add_row_classes(i, rows, variables.w, columns, costs.bias, scratch.step)


@kernel
def multinomial_certify(order, rows, costs, variables, columns, totals):
    """As `dual_certify` for a multinomial lane. Changed in place: `totals`."""
    lane, scratch, z = columns.lane, columns.scratch, columns.scratch.margin
    own = slice(columns.first, columns.first + z.size)
    fetched = range(columns.first, columns.first + z.size, 8)
    totals[lane, VIOLATION_MIN] = min(totals[lane, VIOLATION_MIN], 0.0)
    totals[lane, VIOLATION_MAX] = max(totals[lane, VIOLATION_MAX], 0.0)
    for p in range(order.size):
        fetch_ahead(order, p, rows, variables.w, columns.n_columns, fetched)
        i = order[p]
        c = row_cost(i, lane, rows, costs)
        if c <= 0.0:
            continue
        label, alpha = rows.code[i], variables.alpha[i, own]
        q = class_scores(i, rows, variables.w, columns, costs.bias, 0.0)
        log_softmax(z, scratch.target)
        phi, primal, dual, apart = _row_terms(alpha, scratch.target, label, c)
        totals[lane, GAP] += phi
        totals[lane, LOSS] += primal
        totals[lane, DUAL] += dual
        totals[lane, N_VISITED] += 1
        totals[lane, VIOLATION_MAX] = max(totals[lane, VIOLATION_MAX], apart)
        for m in range(z.size):
            totals[lane, ALPHA_SQUARE] += alpha[m] * alpha[m] * q
        totals[lane, SLOPE] += 4.0 * c * math.sqrt(q)


@kernel
def add_alpha_shares(order, rows, costs, variables, columns, v):
    """Add ``(C_i [m = y_i] - alpha_im) x_i`` of a lane's classes to `v`, of the shape of `w`, in place."""
    signed = columns.scratch.step
    own = slice(columns.first, columns.first + signed.size)
    fetched = range(own.start, own.stop, 8)
    for p in range(order.size):
        fetch_ahead(order, p, rows, v, columns.n_columns, fetched)
        i = order[p]
        if row_cost(i, columns.lane, rows, costs) <= 0.0:
            continue
        label, alpha, others = rows.code[i], variables.alpha[i, own], 0.0
        for m in range(signed.size):
            others += alpha[m] if m != label else 0.0
            signed[m] = -alpha[m]
        signed[label] = others
        add_row_classes(i, rows, v, columns, costs.bias, signed)

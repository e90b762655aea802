"""Losses of all classes of a row at once: Crammer and Singer's, and the multinomial; visits and certificates.

A lane has k weight vectors: columns ``first:first + k`` of w and alpha. Arguments are those at the head of `primitives`.

Crammer and Singer's multiclass SVM, by a sequential dual method:

    min ½ Σ_m ‖w_m‖² + Σ_i C_i max_m (w_m·x_i - w_y·x_i + [m ≠ y])

A row has a variable ``a_m <= C_i [m = y_i]`` for each class, ``Σ_m a_m = 0``, and ``w_m = Σ_i a_im x_i``; its term of the
dual is ``-Σ_{m ≠ y} a_m``. Each class has a flag. Source: Keerthi et al., KDD 2008; Fan et al., LIBLINEAR, appendix E.

Multinomial logistic regression:

    min ½ Σ_m ‖w_m‖² + Σ_i C_i (log Σ_m exp(z_im) - z_i,y_i),    z_im = w_m·x_i

A row has a variable ``a_m >= 0`` for each class, ``Σ_m a_m = C_i``, and ``w_m = Σ_i (C_i [m = y_i] - a_im) x_i``; its term
of the dual is ``-Σ_m a_m log(a_m / C_i)``, and its term of the gap C_i times the divergence of ``a / C_i`` from the softmax
of z. The sum of the others stands in place of ``C_i - a_y``: nothing cancels in it. Flags are not in use. Source: Yu, Huang,
Lin, Machine Learning 85 (2011), section 6, with each row's problem solved by Newton's method in one variable, the multiplier
of the sum.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .compile import inlined, kernel
from .loss_table import MULTINOMIAL
from .losses import divergence
from .primitives import NO_STEP, PATIENCE, Total, fetch_ahead, row_cost

_SUM_TOLERANCE = 1e-7  # of Σ a / C; its square is left in the term of the gap
_ROOT_TOLERANCE = 1e-5  # of log a, of which the square is left
_MOST_STEPS = 50


class ClassScratch(NamedTuple):
    """Room for a number of each class, (classes,) float64."""

    margin: np.ndarray
    target: np.ndarray
    step: np.ndarray


class LaneColumns(NamedTuple):
    """The columns of one lane, scratch, and the numbers by which its steps are made (see `primitives.Steering`)."""

    lane: int
    first: int
    n_columns: int  # of all lanes
    scratch: ClassScratch
    inverse_mu: float = 1.0
    uncounted: float = 0.0


@inlined
def class_scores(i, rows, w, columns, bias, apart):
    """Write ``w_m·x + apart [m ≠ y]`` of all classes to the scratch `margin`; returns x·x, with the bias."""
    margin = columns.scratch.margin
    feature = rows.feature
    value = rows.value
    first = columns.first
    n_columns = columns.n_columns
    label = rows.code[i]
    n_classes = margin.size
    last = w.size - n_columns + first
    for m in range(n_classes):
        margin[m] = bias * w[last + m] + (0.0 if m == label else apart)
    q = bias * bias
    for k in range(rows.indptr[i], rows.indptr[i + 1]):
        v = np.float64(value[k])
        q += v * v
        start = feature[k] * n_columns + first
        for m in range(n_classes):
            margin[m] += w[start + m] * v
    return q


@inlined
def _argmax(numbers):
    largest = 0
    for m in range(1, numbers.size):
        if numbers[m] > numbers[largest]:
            largest = m
    return largest


@inlined
def _sum_of_others(numbers, one):
    total = 0.0
    for m in range(numbers.size):
        if m != one:
            total += numbers[m]
    return total


@inlined
def _row_terms(smooth, alpha, label, c, scratch):
    """Return the row's terms of gap, primal loss and dual, and for the multinomial loss the largest ``|a_m - C s_m|``.

    `alpha` (classes,) is the row's; the softmax is s, its logarithms are written to ``scratch.target``.
    """
    margin = scratch.margin
    if smooth:
        log_soft = scratch.target
        _log_softmax(margin, log_soft)
        phi = dual = apart = 0.0
        for m in range(alpha.size):
            p = alpha[m] / c
            soft = math.exp(log_soft[m])
            log_p = math.log(p) if p > 0.0 else 0.0
            phi += divergence(p, log_p, soft, log_soft[m])
            dual -= p * log_p
            apart = max(apart, abs(p - soft))
        return c * phi, -c * log_soft[label], c * dual, c * apart
    largest = margin[label]
    product = 0.0
    for m in range(margin.size):
        largest = max(largest, margin[m])
        product += alpha[m] * margin[m]
    primal = c * (largest - margin[label])
    return primal + product, primal, _dual_term(smooth, alpha, label, c), 0.0


@inlined
def _dual_term(smooth, alpha, label, c):
    """Return the row's term of the dual."""
    if not smooth:
        return -_sum_of_others(alpha, label)
    total = 0.0
    for m in range(alpha.size):
        p = alpha[m] / c
        total -= c * p * math.log(p) if p > 0.0 else 0.0
    return total


@inlined
def _log_softmax(z, out):
    """Write the logarithms of the softmax of `z` to `out`."""
    top = _argmax(z)
    rest = 0.0
    for m in range(z.size):
        out[m] = z[m] - z[top]
        if m != top:
            rest += math.exp(out[m])
    shift = math.log1p(rest)
    for m in range(z.size):
        out[m] -= shift


@inlined
def _violation(alpha, active, of_all, label, c, margin):
    """Return the largest G of the active classes, or of all, and the smallest of those whose alpha may grow."""
    largest = -np.inf
    smallest = np.inf
    for m in range(margin.size):
        if of_all or active[m]:
            largest = max(largest, margin[m])
            if alpha[m] < (c if m == label else 0.0):
                smallest = min(smallest, margin[m])
    return largest, smallest


@inlined
def _shrink_classes(alpha, active, label, c, margin, smallest, patient):
    """Take out the classes at their bound with a G below `smallest`; returns the number left.

    With `patient` a class leaves at the last of `PATIENCE` such visits in a row.
    """
    n_left = 0
    for m in range(margin.size):
        if active[m]:
            if not (alpha[m] >= (c if m == label else 0.0) and margin[m] < smallest):
                active[m] = 1
                n_left += 1
            elif patient and active[m] < PATIENCE:
                active[m] += 1
                n_left += 1
            else:
                active[m] = 0
    return n_left


@inlined
def _count_classes(columns, alpha, label, q, sign, totals):
    """Add a row's alpha to the sums for acceleration, or subtract it; `sign` is 1 or -1. That of its own class is a sum."""
    count = square = 0.0
    for m in range(alpha.size):
        if m != label:
            count += alpha[m]
            square += alpha[m] * alpha[m]
    totals[columns.lane, Total.ALPHA] += sign * abs(count)
    totals[columns.lane, Total.ALPHA_CURVATURE] += sign * count * count * q
    totals[columns.lane, Total.ALPHA_SQUARE] += sign * (square + count * count) * q


@inlined
def _solve_classes(alpha, active, label, q, c, scratch):
    """Solve a row's problem over its active classes; changes `alpha` in place and writes the changes to ``scratch.step``.

    ``D_m = G_m - q a_m + q C_m``; beta is found by taking the largest D one after another, as few as there will be
    variables off their bound. G counts from its largest: beside a margin of 1 the terms of a row of size 1e-9 would be
    lost.
    """
    margin = scratch.margin
    target = scratch.target
    step = scratch.step
    n_classes = margin.size
    top = -np.inf
    for m in range(n_classes):
        if active[m]:
            top = max(top, margin[m])
    for m in range(n_classes):
        target[m] = -np.inf
        if active[m]:
            target[m] = margin[m] - top - q * alpha[m] + (q * c if m == label else 0.0)
    taken = 0
    total = -q * c
    while True:
        best = _argmax(target)
        if target[best] == -np.inf or (taken > 0 and total >= taken * target[best]):
            break
        total += target[best]
        taken += 1
        target[best] = -np.inf
    beta = total / taken
    for m in range(n_classes):
        step[m] = 0.0
        if active[m]:
            old = alpha[m]
            alpha[m] = min(c if m == label else 0.0, (beta - (margin[m] - top)) / q + old)
            step[m] = alpha[m] - old


@inlined
def _solve_empty_row(alpha, active, label, c):
    """Set an empty row's variables: its loss is C whatever w is, as any feasible alpha with ``Σ_{m ≠ y} a = -C`` proves."""
    for m in range(alpha.size):
        alpha[m] = 0.0
        active[m] = 0
    alpha[label] = c
    alpha[1 if label == 0 else 0] = -c


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
def _solve_shares(alpha, z, q, c, log_a, new):
    """Write the solution of a row's problem to `new`: ``log a_m + q (a_m - alpha_m) = z_m + nu``, with nu so that Σ a = C.

    Newton's method on ``log(Σ a) - log C`` in nu, up to a tolerance, which counts from the score of the class with the
    largest variable. Where numbers are so large that its sum is lost, the variables stay as they are. `log_a` is scratch.
    """
    most = _argmax(alpha)
    nu = math.log(alpha[most])
    origin = z[most]
    for m in range(alpha.size):
        log_a[m] = math.log(alpha[m]) if alpha[m] > 0.0 else -np.inf
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
    most = _argmax(new)
    new[most] = c - _sum_of_others(new, most)


@inlined
def _take_steps(alpha, label, new):
    """Replace `alpha` by `new`, in place, and `new` by the changes of ``C [m = y] - a_m``."""
    for m in range(alpha.size):
        old = alpha[m]
        alpha[m] = new[m]
        new[m] = old - new[m]
    new[label] = -_sum_of_others(new, label)


@inlined
def _add_row(i, rows, w, columns, bias, step):
    """Add ``step[m]`` times the row to the m-th vector of the lane, in place."""
    feature = rows.feature
    value = rows.value
    first = columns.first
    n_columns = columns.n_columns
    last = w.size - n_columns + first
    for m in range(step.size):
        w[last + m] += step[m] * bias
    for k in range(rows.indptr[i], rows.indptr[i + 1]):
        v = np.float64(value[k])
        start = feature[k] * n_columns + first
        for m in range(step.size):
            w[start + m] += step[m] * v


@kernel
def class_visit(order, rows, costs, variables, columns, totals, trains):
    """Visit rows once in the given order: the problem of each in the variables of its classes is solved.

    Where it does not train, the terms of rows at fixed w are added, as by `dual_certify`.

    Changed in place: `variables`, where classes of Crammer and Singer's at their bound with a small G are taken out, and a
    row with one class left leaves; and `totals`, whose largest violation is ``max_m G_m - min G_m`` over m that may grow, or
    ``max_m |a_m - C s_m|``, s the softmax.
    """
    lane = columns.lane
    scratch = columns.scratch
    smooth = costs.loss.kind == MULTINOMIAL
    n_classes = scratch.margin.size
    columns_of_lane = slice(columns.first, columns.first + n_classes)
    fetched = range(columns.first, columns.first + n_classes, 8)
    accelerated = columns.inverse_mu != 1.0
    totals[lane, Total.VIOLATION_MIN] = min(totals[lane, Total.VIOLATION_MIN], 0.0)
    totals[lane, Total.VIOLATION_MAX] = max(totals[lane, Total.VIOLATION_MAX], 0.0)
    for p in range(order.size):
        fetch_ahead(order, p, rows, variables.w, columns.n_columns, fetched)
        i = order[p]
        c = row_cost(i, lane, rows, costs)
        if c <= 0.0:
            continue
        label = rows.code[i]
        alpha = variables.alpha[i, columns_of_lane]
        q = class_scores(i, rows, variables.w, columns, costs.bias, 0.0 if smooth else 1.0)
        totals[lane, Total.N_VISITED] += 1
        if not q < np.inf:  # the loop says what is wrong
            totals[lane, Total.GAP] = np.inf
            continue
        phi, primal, dual_old, apart = _row_terms(smooth, alpha, label, c, scratch)
        totals[lane, Total.GAP] += phi
        # not in use by the multinomial loss
        active = variables.active[i, columns_of_lane]
        smallest = -np.inf
        if not smooth and q > 0.0:
            largest, smallest = _violation(alpha, active, not trains, label, c, scratch.margin)
            apart = largest - smallest
        if not trains:
            totals[lane, Total.LOSS] += primal
            totals[lane, Total.DUAL] += dual_old
            for m in range(n_classes):
                totals[lane, Total.ALPHA_SQUARE] += alpha[m] * alpha[m] * q
            totals[lane, Total.SLOPE] += 4.0 * c * math.sqrt(q)
            totals[lane, Total.VIOLATION_MAX] = max(totals[lane, Total.VIOLATION_MAX], apart)
            continue
        q *= columns.inverse_mu
        if not smooth and q <= 0.0:
            _solve_empty_row(alpha, active, label, c)
            totals[lane, Total.DUAL] += c - dual_old
            continue
        if columns.uncounted != 0.0:
            _count_classes(columns, alpha, label, q, 1.0, totals)
        if not smooth:
            n_left = _shrink_classes(alpha, active, label, c, scratch.margin, smallest, accelerated)
            if n_left < n_classes:
                totals[lane, Total.N_SHRUNK] += 1
            if n_left <= 1:
                active[:] = 0
                continue
        totals[lane, Total.N_ACTIVE] += 1
        if apart <= NO_STEP * (c if smooth else 1.0):
            continue
        totals[lane, Total.VIOLATION_MAX] = max(totals[lane, Total.VIOLATION_MAX], apart)
        if accelerated:
            _count_classes(columns, alpha, label, q, -1.0, totals)
        if not smooth:
            _solve_classes(alpha, active, label, q, c, scratch)
        elif q > 0.0:
            _solve_shares(alpha, scratch.margin, q, c, scratch.target, scratch.step)
            _take_steps(alpha, label, scratch.step)
        else:
            for m in range(n_classes):
                alpha[m] = c / n_classes
                scratch.step[m] = 0.0
        totals[lane, Total.DUAL] += _dual_term(smooth, alpha, label, c) - dual_old
        if accelerated:
            _count_classes(columns, alpha, label, q, 1.0, totals)
            for m in range(n_classes):
                scratch.step[m] *= columns.inverse_mu
        _add_row(i, rows, variables.w, columns, costs.bias, scratch.step)


@kernel
def add_alpha_classes(order, rows, costs, variables, columns, v):
    """Add rows, times their variables of a lane's classes, to `v`, of the shape of `w`, in place: after all it is w(alpha).

    They are alpha, or ``C_i [m = y_i] - alpha`` for the multinomial loss.
    """
    smooth = costs.loss.kind == MULTINOMIAL
    signed = columns.scratch.step
    columns_of_lane = slice(columns.first, columns.first + signed.size)
    fetched = range(columns_of_lane.start, columns_of_lane.stop, 8)
    for p in range(order.size):
        fetch_ahead(order, p, rows, v, columns.n_columns, fetched)
        i = order[p]
        if row_cost(i, columns.lane, rows, costs) <= 0.0:
            continue
        label = rows.code[i]
        alpha = variables.alpha[i, columns_of_lane]
        for m in range(signed.size):
            signed[m] = -alpha[m] if smooth else alpha[m]
        if smooth:
            signed[label] = _sum_of_others(alpha, label)
        _add_row(i, rows, v, columns, costs.bias, signed)


@kernel
def add_class_rows(order, rows, costs, columns, n_classes, sums):
    """Add ``C_i x_i`` to the column of the row's class in `sums`, of the shape of w, in place."""
    lane = columns.lane
    n_columns = columns.n_columns
    last = sums.size - n_columns + columns.first
    for i in order:
        c = row_cost(i, lane, rows, costs)
        label = rows.code[i]
        if c > 0.0 and label < n_classes:
            sums[last + label] += c * costs.bias
            for k in range(rows.indptr[i], rows.indptr[i + 1]):
                sums[rows.feature[k] * n_columns + columns.first + label] += c * np.float64(rows.value[k])

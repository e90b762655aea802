"""Crammer–Singer: the multiclass SVM by a sequential dual method; its visit and certificate.

A lane has k weight vectors: columns ``first:first + k`` of w, alpha and active. Arguments are those at the head of
`primitives`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .compile import inlined, kernel
from .primitives import (
    ALPHA,
    ALPHA_CURVATURE,
    ALPHA_SQUARE,
    DUAL,
    GAP,
    LOSS,
    N_ACTIVE,
    N_SHRUNK,
    N_VISITED,
    NO_STEP,
    PATIENCE,
    SLOPE,
    VIOLATION_MAX,
    VIOLATION_MIN,
    fetch_ahead,
    row_cost,
)


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
    feature, value, first, n_columns = rows.feature, rows.value, columns.first, columns.n_columns
    label, n_classes = rows.code[i], margin.size
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
def _class_terms(alpha, label, c, margin):
    """Return the row's terms of gap, primal loss and dual objective; `alpha` (classes,) is the row's."""
    largest, product, outside = margin[label], 0.0, 0.0
    for m in range(margin.size):
        largest = max(largest, margin[m])
        product += alpha[m] * margin[m]
        if m != label:
            outside += alpha[m]
    primal = c * (largest - margin[label])
    return primal + product, primal, -outside


@inlined
def _class_violation(alpha, active, of_all, label, c, margin):
    """Return the largest G of the active classes, or of all, and the smallest of those whose alpha may grow."""
    largest, smallest = -np.inf, np.inf
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
    """Add a row's alpha to the sums for acceleration, or subtract it; `sign` is 1 or -1."""
    own, square = alpha[label], 0.0
    for m in range(alpha.size):
        square += alpha[m] * alpha[m]
    totals[columns.lane, ALPHA] += sign * own
    totals[columns.lane, ALPHA_CURVATURE] += sign * own * own * q
    totals[columns.lane, ALPHA_SQUARE] += sign * square * q


@inlined
def _solve_classes(alpha, active, label, q, c, scratch):
    """Solve a row's problem over its active classes; changes `alpha` in place and writes the changes to ``scratch.step``.

    ``D_m = G_m - q a_m + q C_m``; beta is found by taking the largest D one after another, as few as there will be
    variables off their bound. G counts from its largest: beside a margin of 1 the terms of a row of size 1e-9 would be
    lost. Source: Keerthi et al., KDD 2008; Fan et al., LIBLINEAR, appendix E.
    """
    margin, target, step = scratch.margin, scratch.target, scratch.step
    n_classes = margin.size
    top = -np.inf
    for m in range(n_classes):
        if active[m]:
            top = max(top, margin[m])
    for m in range(n_classes):
        target[m] = -np.inf
        if active[m]:
            target[m] = margin[m] - top - q * alpha[m] + (q * c if m == label else 0.0)
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
def add_row_classes(i, rows, w, columns, bias, step):
    """Add ``step[m]`` times the row to the m-th vector of the lane, in place."""
    feature, value, first, n_columns = rows.feature, rows.value, columns.first, columns.n_columns
    last = w.size - n_columns + first
    for m in range(step.size):
        w[last + m] += step[m] * bias
    for k in range(rows.indptr[i], rows.indptr[i + 1]):
        v = np.float64(value[k])
        start = feature[k] * n_columns + first
        for m in range(step.size):
            w[start + m] += step[m] * v


@kernel
def crammer_singer_visit(order, rows, costs, variables, columns, totals):
    """Visit rows once in the given order: sequential dual method for the multiclass SVM of Crammer and Singer.

    Problem: ``min ½ Σ_m ‖w_m‖² + Σ_i Σ_{m ≠ y_i} a_im`` over ``Σ_m a_im = 0``, ``a_im <= C_i [m = y_i]``, with
    ``w_m = Σ_i a_im x_i`` kept.

    Changed in place: `variables`, where classes at their bound with a small G are taken out, and a row with one class left
    leaves; and `totals`, whose largest violation is ``max_m G_m - min G_m`` over m that may grow.
    """
    lane, scratch, margin = columns.lane, columns.scratch, columns.scratch.margin
    n_classes = margin.size
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
        label = rows.code[i]
        alpha, active = variables.alpha[i, own], variables.active[i, own]
        q = class_scores(i, rows, variables.w, columns, costs.bias, 1.0)
        phi, _, dual_old = _class_terms(alpha, label, c, margin)
        totals[lane, GAP] += phi
        totals[lane, N_VISITED] += 1
        if not q < np.inf:  # the loop says what is wrong
            totals[lane, GAP] = np.inf
            continue
        if q <= 0.0:
            _solve_empty_row(alpha, active, label, c)
            totals[lane, DUAL] += c - dual_old
            continue
        largest, smallest = _class_violation(alpha, active, False, label, c, margin)
        q *= columns.inverse_mu
        accelerated = columns.inverse_mu != 1.0
        if columns.uncounted != 0.0:
            _count_classes(columns, alpha, label, q, 1.0, totals)
        n_left = _shrink_classes(alpha, active, label, c, margin, smallest, accelerated)
        if n_left < n_classes:
            totals[lane, N_SHRUNK] += 1
        if n_left <= 1:
            active[:] = 0
            continue
        totals[lane, N_ACTIVE] += 1
        if largest - smallest <= NO_STEP:
            continue
        totals[lane, VIOLATION_MAX] = max(totals[lane, VIOLATION_MAX], largest - smallest)
        if accelerated:
            _count_classes(columns, alpha, label, q, -1.0, totals)
        _solve_classes(alpha, active, label, q, c, scratch)
        _, _, dual_new = _class_terms(alpha, label, c, margin)
        totals[lane, DUAL] += dual_new - dual_old
        if accelerated:
            _count_classes(columns, alpha, label, q, 1.0, totals)
            for m in range(n_classes):
                scratch.step[m] *= columns.inverse_mu
        add_row_classes(i, rows, variables.w, columns, costs.bias, scratch.step)


@kernel
def crammer_singer_certify(order, rows, costs, variables, columns, totals):
    """As `dual_certify` for a lane of Crammer–Singer. Changed in place: `totals`."""
    lane, margin = columns.lane, columns.scratch.margin
    own = slice(columns.first, columns.first + margin.size)
    fetched = range(columns.first, columns.first + margin.size, 8)
    totals[lane, VIOLATION_MIN] = min(totals[lane, VIOLATION_MIN], 0.0)
    totals[lane, VIOLATION_MAX] = max(totals[lane, VIOLATION_MAX], 0.0)
    for p in range(order.size):
        fetch_ahead(order, p, rows, variables.w, columns.n_columns, fetched)
        i = order[p]
        c = row_cost(i, lane, rows, costs)
        if c <= 0.0:
            continue
        label, alpha = rows.code[i], variables.alpha[i, own]
        q = class_scores(i, rows, variables.w, columns, costs.bias, 1.0)
        phi, primal, dual = _class_terms(alpha, label, c, margin)
        totals[lane, GAP] += phi
        totals[lane, LOSS] += primal
        totals[lane, DUAL] += dual
        totals[lane, N_VISITED] += 1
        size = 2.0 * c
        for m in range(margin.size):
            totals[lane, ALPHA_SQUARE] += alpha[m] * alpha[m] * q
            size += abs(alpha[m])
        totals[lane, SLOPE] += size * math.sqrt(q)
        if q > 0.0:
            active = variables.active[i, own]
            largest, smallest = _class_violation(alpha, active, True, label, c, margin)
            totals[lane, VIOLATION_MAX] = max(totals[lane, VIOLATION_MAX], largest - smallest)


@kernel
def add_alpha_classes(order, rows, costs, variables, columns, v):
    """Add ``alpha_im x_i`` of a lane's classes to `v`, of the shape of `w`, in place: after all rows it is w(alpha)."""
    own = slice(columns.first, columns.first + columns.scratch.step.size)
    fetched = range(own.start, own.stop, 8)
    for p in range(order.size):
        fetch_ahead(order, p, rows, v, columns.n_columns, fetched)
        i = order[p]
        if row_cost(i, columns.lane, rows, costs) > 0.0:
            add_row_classes(i, rows, v, columns, costs.bias, variables.alpha[i, own])


@kernel
def add_class_rows(order, rows, costs, columns, n_classes, sums):
    """Add ``C_i x_i`` to the column of the row's class in `sums`, of the shape of w, in place."""
    lane, n_columns = columns.lane, columns.n_columns
    last = sums.size - n_columns + columns.first
    for i in order:
        c, label = row_cost(i, lane, rows, costs), rows.code[i]
        if c > 0.0 and label < n_classes:
            sums[last + label] += c * costs.bias
            for k in range(rows.indptr[i], rows.indptr[i + 1]):
                sums[rows.feature[k] * n_columns + columns.first + label] += c * np.float64(rows.value[k])

"""Crammer–Singer: the multiclass SVM by a sequential dual method; its visit and certificate.

A lane has k weight vectors: columns ``first:first + k`` of w, alpha and active. Arrays are those at the head of `kernels`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .compiling import kernel
from .kernels import (
    DUAL,
    GAP,
    LOSS,
    N_ACTIVE,
    N_SHRUNK,
    N_VISITED,
    NO_STEP,
    VIOLATION_MAX,
    VIOLATION_MIN,
    fetch_ahead,
    row_cost,
)


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
    variables off their bound. G counts from its largest: beside a margin of 1 the terms of a row of size 1e-9 would be
    lost. Source: Keerthi et al., KDD 2008; Fan et al., LIBLINEAR, appendix E.
    """
    top = -np.inf
    for m in range(n_classes):
        if active[i, first + m]:
            top = max(top, margin[m])
    for m in range(n_classes):
        target[m] = -np.inf
        if active[i, first + m]:
            target[m] = margin[m] - top - q * alpha[i, first + m] + (q * c if m == label else 0.0)
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
            new = min(c if m == label else 0.0, (beta - (margin[m] - top)) / q + old)
            alpha[i, first + m] = new
            step[m] = new - old


@kernel
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
        fetch_ahead(order, p, indptr, feature, value, w, n_columns)
        i = order[p]
        c = row_cost(i, lane, code, weight, fold, cost, lane_fold)
        if c <= 0.0:
            continue
        label = code[i]
        start, stop = indptr[i], indptr[i + 1]
        q = _class_margins(feature, value, w, n_columns, first, n_classes, start, stop, label, bias, margin)
        phi, _, dual_old = _class_terms(i, first, n_classes, label, c, alpha, margin)
        totals[lane, GAP] += phi
        totals[lane, N_VISITED] += 1
        if not q < np.inf:  # the loop says what is wrong
            totals[lane, GAP] = np.inf
            continue
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
        if largest - smallest <= NO_STEP:
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


@kernel
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
        fetch_ahead(order, p, indptr, feature, value, w, n_columns)
        i = order[p]
        c = row_cost(i, lane, code, weight, fold, cost, lane_fold)
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

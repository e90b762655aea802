"""Multinomial logistic regression by columns: dual variables of rows, their terms of the gap, and scores of other classes.

Scores are (classes, rows). The dual variables of a row are C times shares of the classes, which sum up to 1: the softmax p
of its scores, mixed with shares rho that are the same for all rows, and with the row's own class::

    p' = s ((1 - t) p + t rho) + (1 - s) e_y

Biases that are not penalised ask for the first (`solvers.class_biases`), L1 alone, which bounds v, for the second.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .compile import inlined, kernel
from .losses import divergence
from .multinomial import log_softmax
from .primal import LARGEST_COST, LOSS_SUM, OVER_COST_SUM, PHI, ROUNDING_SUM, SLOPES_SUM
from .working_set import add_column

N_CLASS_SUMS = 3
PULL_SUM, PULL_SQUARES, CLASS_COST = range(N_CLASS_SUMS)


class ClassRows(NamedTuple):
    """Rows of a lane of all classes."""

    kind: np.ndarray  # (n,): as of `columns.Scores`
    weight: np.ndarray  # (n,) float64; empty where all are 1
    cost: np.ndarray  # (kinds,) float64: C of a row of that kind; 0 leaves it out
    label: np.ndarray  # (kinds,) int64: its class


@inlined
def _cost(j, rows):
    """Return C of a row."""
    c = rows.cost[np.uint64(rows.kind[j])]
    return c * rows.weight[j] if rows.weight.size > 0 else c


@inlined
def _write_log_shares(scores, j, z, out):
    """Write the logarithms of the softmax of a row's scores to `out`; `z` is scratch."""
    for m in range(z.size):
        z[m] = scores[m, j]
    log_softmax(z, out)


@kernel
def set_class_pull(scores, rows, t, rho, pull, sums, scratch):
    """Set `pull` (classes, rows) to ``C ([m = y] - p')`` for s = 1, and add to `sums` (N_CLASS_SUMS, classes).

    These are the sums of the pull, of its squares, and of C over the rows of each class. Returns the largest C. `scratch` is
    (3, classes).
    """
    z, log_share, most = scratch[0], scratch[1], 0.0
    for j in range(rows.kind.size):
        c, label, others = _cost(j, rows), rows.label[np.uint64(rows.kind[j])], 0.0
        if c > 0.0:
            _write_log_shares(scores, j, z, log_share)
        for m in range(rho.size):
            share = c * ((1.0 - t) * math.exp(log_share[m]) + t * rho[m]) if c > 0.0 else 0.0
            if m != label:
                pull[m, j] = -share
                others += share
        pull[label, j] = others
        for m in range(rho.size):
            sums[PULL_SUM, m] += pull[m, j]
            sums[PULL_SQUARES, m] += pull[m, j] * pull[m, j]
        sums[CLASS_COST, label] += c
        most = max(most, c)
    return most


@kernel
def add_class_terms(scores, fresh, rows, mix, rho, sums, scratch):
    """Add the terms of rows to `sums` (N_SUMS,): shares from `scores`, losses from `fresh`; `mix` is t and s, `scratch`
    (3, classes).

    An error e of the scores changes the loss by its mean over the classes, less that of the row's own, and the curvature
    along it is a variance.
    """
    n_classes, (t, s) = rho.size, mix
    z, log_share, log_soft = scratch[0], scratch[1], scratch[2]
    for j in range(rows.kind.size):
        c, label = _cost(j, rows), rows.label[np.uint64(rows.kind[j])]
        if c <= 0.0:
            continue
        _write_log_shares(scores, j, z, log_share)
        _write_log_shares(fresh, j, z, log_soft)
        phi = entropy = magnitude = apart = others = 0.0
        for m in range(n_classes):
            share = s * ((1.0 - t) * math.exp(log_share[m]) + t * rho[m])
            if m == label:
                share += 1.0 - s
            else:
                others += share
            log_of_share = math.log(share) if share > 0.0 else 0.0
            soft = math.exp(log_soft[m])
            phi += divergence(share, log_of_share, soft, log_soft[m])
            entropy -= share * log_of_share
            magnitude += abs(share * log_soft[m])
            apart += abs(share - soft)
        loss = -log_soft[label]
        sums[PHI] += c * phi
        sums[LOSS_SUM] += c * loss
        sums[OVER_COST_SUM] += 4.0 * c * others * others
        sums[SLOPES_SUM] += c * apart * apart
        sums[LARGEST_COST] = max(sums[LARGEST_COST], c)
        sums[ROUNDING_SUM] += c * (n_classes + 16.0) * (magnitude + loss + phi + entropy + apart)


@kernel
def other_classes(scores, own, out):
    """Write the logarithm of ``Σ_m exp(z_m)`` over the classes m other than `own` to `out` (rows,).

    Beside it the problem in the weights of one class is a logistic regression, of the scores less these.
    """
    for j in range(out.size):
        top, total = -np.inf, 0.0
        for m in range(scores.shape[0]):
            if m != own:
                top = max(top, scores[m, j])
        for m in range(scores.shape[0]):
            if m != own:
                total += math.exp(scores[m, j] - top)
        out[j] = top + math.log(total)


# ---------------------------------------------------------------------------------------------------------------------
# The quadratic model of all classes


@kernel
def set_shares(scores, share, scratch):
    """Set `share` (classes, rows) to the softmax of the scores; `scratch` is (3, classes)."""
    for j in range(scores.shape[1]):
        _write_log_shares(scores, j, scratch[0], scratch[1])
        for m in range(scores.shape[0]):
            share[m, j] = math.exp(scratch[1][m])


@kernel
def set_class_model(share, rows, own, model):
    """Set `model` (2 rows,) to the pull of a class and the curvature of the loss in its score, as `working_set` has them."""
    for j in range(rows.kind.size):
        c, p = _cost(j, rows), share[own, j]
        others = 0.0
        for m in range(share.shape[0]):
            others += share[m, j] if m != own else 0.0
        is_own = rows.label[np.uint64(rows.kind[j])] == own
        model[2 * j] = c * (others if is_own else -p)
        model[2 * j + 1] = c * p * others


@kernel
def curve_scores(share, rows, moved):
    """Multiply changes of scores, `moved` (classes, rows), by the curvature of each row, in place."""
    for j in range(rows.kind.size):
        c, mean = _cost(j, rows), 0.0
        for m in range(share.shape[0]):
            mean += share[m, j] * moved[m, j]
        for m in range(share.shape[0]):
            moved[m, j] = c * share[m, j] * (moved[m, j] - mean)


@kernel
def add_column_sums(order, columns, bias, of_rows, sums):
    """Add ``Σ_i x_ij of_rows_i`` of columns to `sums`, in their order."""
    for p in range(order.size):
        c = order[p]
        if c < 0:
            for j in range(of_rows.size):
                sums[p] += bias * of_rows[j]
        else:
            sums[p] = add_column(columns, columns.indptr[c], columns.indptr[c + 1], of_rows, sums[p], 0.0)[0]


@kernel
def class_loss_change(scores, moved, rows, scratch):
    """Return the difference of the loss at ``scores + moved`` from that at the scores; `scratch` is (3, classes)."""
    change, z, log_share = 0.0, scratch[0], scratch[1]
    for j in range(rows.kind.size):
        c, label = _cost(j, rows), np.uint64(rows.label[np.uint64(rows.kind[j])])
        if c <= 0.0:
            continue
        _write_log_shares(scores, j, z, log_share)
        before = log_share[label]
        for m in range(z.size):
            z[m] += moved[m, j]
        log_softmax(z, log_share)
        change += c * (before - log_share[label])
    return change

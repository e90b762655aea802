"""Sweeps over weights: all columns of an array in one sweep, feature by feature, in memory's order; products of rows."""

from __future__ import annotations

import numpy as np

from .compile import inlined, kernel
from .penalties import (
    conjugate,
    elastic_conjugate,
    elastic_gap_term,
    elastic_penalty,
    elastic_sensitivity,
    gap_term,
    penalty,
    weight_at,
)

_BLOCK = 128  # features summed column by column: with a hundred columns or so they stay in the cache


@kernel
def add_penalty_terms(w, v, columns, sums):
    """Add g(w_m), g*(v_m) and ``g(w_m) + g*(v_m) - w_m·v_m`` of some columns m to `sums`, in blocks of features.

    `w` and `v` have the shape (features, all columns), `sums` (3, all columns).
    """
    for start in range(0, w.shape[0], _BLOCK):
        stop = min(start + _BLOCK, w.shape[0])
        for m in columns:
            value = of_dual = gap = 0.0
            for j in range(start, stop):
                value += penalty(w[j, m], 1.0)
                of_dual += conjugate(v[j, m])
                gap += gap_term(w[j, m], v[j, m])
            sums[0, m] += value
            sums[1, m] += of_dual
            sums[2, m] += gap


@kernel
def add_elastic_terms(w, v, shares, columns, elastic_net, sums):
    """As `add_penalty_terms` for a `penalties.Penalty` and shares of v; and two rows more in `sums`.

    These are the squares of the derivative of ``g(w) + g*(v) - w·v`` with respect to v, and ``‖w‖²``.
    """
    l2 = elastic_net.l2
    for start in range(0, w.shape[0], _BLOCK):
        stop = min(start + _BLOCK, w.shape[0])
        for m in columns:
            l1, value, of_dual, gap, slopes, squares = elastic_net.l1[m], 0.0, 0.0, 0.0, 0.0, 0.0
            for j in range(start, stop):
                weight, of_rows = w[j, m], shares[m] * v[j, m]
                slope = elastic_sensitivity(weight, of_rows, l1, l2)
                value += elastic_penalty(weight, l1, l2)
                of_dual += elastic_conjugate(of_rows, l1, l2)
                gap += elastic_gap_term(weight, of_rows, l1, l2)
                slopes += slope * slope
                squares += weight * weight
            for row, term in enumerate((value, of_dual, gap, slopes, squares)):
                sums[row, m] += term


@kernel
def move_columns(source, target, columns):
    """Move some columns of an array to another one of its shape, and leave zeros."""
    for j in range(source.shape[0]):
        for m in columns:
            target[j, m] = source[j, m]
            source[j, m] = 0.0


@kernel
def add_copies(copies, target, start, stop):
    """Add ``copies[:, start:stop]``, shape (copies, features), to `target` in their order."""
    for j in range(start, stop):
        for k in range(copies.shape[0]):
            target[j] += copies[k, j]


@kernel
def add_changes(first, second, w, start, stop):
    """Add ``first - w`` and ``second - w``, the changes of two copies of `w`, to ``w[start:stop]``, in place."""
    for j in range(start, stop):
        w[j] += (first[j] - w[j]) + (second[j] - w[j])


@inlined
def row_dot(rows, w, start, stop, thresholds=None):
    """Return x·w and x·x of the row with entries ``start:stop``; independent partial sums hide the latency of additions.

    With thresholds `w` holds u, from which weights are read (`penalties.weight_at`).
    """
    feature, value = rows.feature, rows.value
    dot0 = dot1 = dot2 = dot3 = 0.0
    norm0 = norm1 = 0.0
    k = start
    while k + 4 <= stop:
        v0, v1 = np.float64(value[k]), np.float64(value[k + 1])
        v2, v3 = np.float64(value[k + 2]), np.float64(value[k + 3])
        dot0 += weight_at(w, feature[k], thresholds, 0) * v0
        dot1 += weight_at(w, feature[k + 1], thresholds, 0) * v1
        dot2 += weight_at(w, feature[k + 2], thresholds, 0) * v2
        dot3 += weight_at(w, feature[k + 3], thresholds, 0) * v3
        norm0 += v0 * v0 + v2 * v2
        norm1 += v1 * v1 + v3 * v3
        k += 4
    while k < stop:
        v0 = np.float64(value[k])
        dot0 += weight_at(w, feature[k], thresholds, 0) * v0
        norm0 += v0 * v0
        k += 1
    return (dot0 + dot1) + (dot2 + dot3), norm0 + norm1

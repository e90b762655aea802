"""Sweeps over weights: all columns of an array in one sweep, feature by feature, in memory's order; products of rows."""

from __future__ import annotations

import numpy as np

from .compile import inlined, kernel
from .penalties import gap_term, penalty

BLOCK = 128
"""Features summed column by column: with a hundred columns or so they stay in the cache."""


@kernel
def add_penalty_terms(w, v, columns, sums):
    """Add g(w_m), ``g(w_m) + g*(v_m) - w_m·v_m`` and ``‖v_m‖²`` of some columns m to `sums`, in blocks of features.

    `w` and `v` have the shape (features, all columns), `sums` (3, all columns).
    """
    for start in range(0, w.shape[0], BLOCK):
        stop = min(start + BLOCK, w.shape[0])
        for m in columns:
            value = gap = square = 0.0
            for j in range(start, stop):
                value += penalty(w[j, m])
                gap += gap_term(w[j, m], v[j, m])
                square += v[j, m] * v[j, m]
            sums[0, m] += value
            sums[1, m] += gap
            sums[2, m] += square


@kernel
def add_changes(first, second, w, start, stop):
    """Add ``first - w`` and ``second - w``, the changes of two copies of `w`, to ``w[start:stop]``, in place."""
    for j in range(start, stop):
        w[j] += (first[j] - w[j]) + (second[j] - w[j])


@inlined
def row_dot(rows, w, start, stop):
    """Return x·w and x·x of the row with entries ``start:stop``; independent partial sums hide the latency of additions."""
    feature, value = rows.feature, rows.value
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

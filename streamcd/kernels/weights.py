"""Sweeps over weights: all columns of an array in one sweep, feature by feature, in the order of memory."""

from __future__ import annotations

from .compile import kernel
from .penalties import conjugate, gap_term, penalty

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
def move_columns(source, target, columns):
    """Move some columns of an array to another one of its shape, and leave zeros."""
    for j in range(source.shape[0]):
        for m in columns:
            target[j, m] = source[j, m]
            source[j, m] = 0.0


@kernel
def move_copies(copies, target, start, stop):
    """Add ``copies[:, start:stop]``, shape (copies, features), to `target` in their order, and leave zeros."""
    for j in range(start, stop):
        for k in range(copies.shape[0]):
            target[j] += copies[k, j]
            copies[k, j] = 0.0

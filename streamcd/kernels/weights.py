"""Sweeps over weights: all columns of an array in one sweep, feature by feature, in the order of memory."""

from __future__ import annotations

from .compile import kernel

_BLOCK = 128  # features summed column by column: with a hundred columns or so they stay in the cache


@kernel
def add_squares(w, other, columns, sums):
    """Add ``‖w_m‖²``, ``‖other_m‖²`` and ``‖w_m - other_m‖²`` of some columns m to `sums`, in blocks of features.

    `w` and `other` have the shape (features, all columns), `sums` (3, all columns).
    """
    for start in range(0, w.shape[0], _BLOCK):
        stop = min(start + _BLOCK, w.shape[0])
        for m in columns:
            of_w = of_other = apart = 0.0
            for j in range(start, stop):
                u, v = w[j, m], other[j, m]
                of_w += u * u
                of_other += v * v
                apart += (u - v) * (u - v)
            sums[0, m] += of_w
            sums[1, m] += of_other
            sums[2, m] += apart


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

"""Randomness as a function of integers such as (seed, read, window): no generator whose state would have to be kept."""

from __future__ import annotations

import numpy as np

from ..kernels.primitives import mix

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 2**64 - 1


def random_key(*parts: int) -> np.uint64:
    """Derive a 64-bit key for `primitives.shuffle` from integers such as (seed, read, window)."""
    key = 0
    for part in parts:
        key = (key ^ (part & _WORD)) * _GOLDEN & _WORD
        key ^= key >> 32
        key = key * 0xD6E8FEB86659FD93 & _WORD
        key ^= key >> 29
    return np.uint64(key)


def rows_in_folds(fold: np.ndarray, seed: int, n_folds: int) -> np.ndarray:
    """Return a number for each row, all different, by which `assign_folds` assigns it to the fold given; int64."""
    wanted, limit = np.bincount(fold, minlength=n_folds), 2 * fold.size + 64
    while True:
        assigned = assign_folds(np.arange(limit), seed, n_folds)
        if (np.bincount(assigned, minlength=n_folds) >= wanted).all():
            break
        limit *= 2
    numbers = np.empty(fold.size, np.int64)
    for number in range(n_folds):
        numbers[fold == number] = np.flatnonzero(assigned == number)[: wanted[number]]
    return numbers


MOST_CELLS = 250
"""Cells that rows are hashed to, at most, for folds by several seeds: a row's is one byte."""


def count_cells(n_folds: int, n_seeds: int) -> int:
    """Return the number of cells of rows: folds themselves, or for several seeds as many as all folds share evenly."""
    return n_folds if n_seeds == 1 else n_folds * (MOST_CELLS // n_folds)


def split_cells(n_cells: int, n_folds: int, n_seeds: int, seed: int) -> np.ndarray:
    """Mark the cells of each fold, the folds of all seeds one after the other, bool of shape (seeds · folds, cells).

    Every seed deals the cells out to its folds in another order; with one seed they are the folds.
    """
    found = np.zeros((n_seeds * n_folds, n_cells), np.bool_)
    cells = np.arange(n_cells)
    for number in range(n_seeds):
        keys = mix.py_func(cells.astype(np.uint64) ^ random_key(seed, n_folds, number))
        order = cells if n_seeds == 1 else np.argsort(keys)
        found[number * n_folds + cells % n_folds, order] = True
    return found


def assign_folds(source: np.ndarray, seed: int, n_folds: int) -> np.ndarray:
    """Assign rows to folds by a hash of the seed and their rows in the source; uint8."""
    upper = mix.py_func(source.astype(np.uint64) ^ random_key(seed, n_folds)) >> np.uint64(32)
    # undo the mixer's last step: existing runs assigned their folds without it
    upper ^= upper >> np.uint64(31)
    return (upper * np.uint64(n_folds) >> np.uint64(32)).astype(np.uint8)

"""Randomness as a function of integers such as (seed, read, window): no generator whose state would have to be kept."""

from __future__ import annotations

import numpy as np

from ..kernels.primitives import mix

_WORD = 2**64 - 1


def random_key(*parts: int) -> np.uint64:
    """Derive a 64-bit key for `primitives.shuffle` from integers such as (seed, read, window)."""
    key = 0
    for part in parts:
        key = (key ^ (part & _WORD)) * 0x9E3779B97F4A7C15 & _WORD
        key ^= key >> 32
        key = key * 0xD6E8FEB86659FD93 & _WORD
        key ^= key >> 29
    return np.uint64(key)


def assign_folds(source: np.ndarray, seed: int, n_folds: int) -> np.ndarray:
    """Assign rows to folds by a hash of the seed and their rows in the source; uint8."""
    upper = mix.py_func(source.astype(np.uint64) ^ random_key(seed, n_folds)) >> np.uint64(32)
    # undo the mixer's last step: existing runs assigned their folds without it
    upper ^= upper >> np.uint64(31)
    return (upper * np.uint64(n_folds) >> np.uint64(32)).astype(np.uint8)

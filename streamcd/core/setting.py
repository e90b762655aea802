"""Settings (C and λ) of models, codes of classes, and random keys: beside options and data, they determine a run.

A code matrix, shape (classes, weight vectors), has the sign of each class for each vector; 0 leaves the class out.
Randomness is a function of integers such as (seed, read, window): no generator whose state would have to be kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..kernels.loss_table import MARGINS


class Setting(NamedTuple):
    """Cost and strength of L1 of a model."""

    C: float
    l1: float = 0.0  # 0: the penalty has no L1

    def __str__(self) -> str:
        return f"C = {self.C:g}" + (f", l1 = {self.l1:g}" if self.l1 else "")

    @property
    def name(self) -> str:
        """Name of a file of it, to all digits."""
        return f"C={self.C!r}" + (f",l1={self.l1!r}" if self.l1 else "")

    @classmethod
    def named(cls, name: str) -> Setting:
        """Read a `name`; raises ValueError for another text."""
        C, _, l1 = name.removeprefix("C=").partition(",l1=")
        return cls(float(C), float(l1 or 0.0))

    def fits(self, C: float | None, l1: float | None) -> bool:
        """Check if it has the values that are asked for; None for any."""
        return C in (None, self.C) and l1 in (None, self.l1)


# ---------------------------------------------------------------------------------------------------------------------
# Classes


def class_indices(classes: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of each label among `classes`, which ascend, and whether it is one; of another label any index."""
    index = np.minimum(np.searchsorted(classes, label), classes.size - 1)
    return index, classes[index] == label


def diagonal_view(n_rows: int, n_columns: int, diagonal: float, rest: float, dtype: type) -> np.ndarray:
    """Make a matrix that holds `diagonal` where ``column % n_rows == row``, and `rest` elsewhere.

    A read-only view with the memory of one row and one column: all elements of a diagonal share one address.
    """
    band: np.ndarray = np.full(n_rows - 1 + n_columns, rest, dtype)
    band[n_rows - 1 :: n_rows] = diagonal
    strides = -band.itemsize, band.itemsize
    return np.lib.stride_tricks.as_strided(band[n_rows - 1 :], (n_rows, n_columns), strides, writeable=False)


def default_code(form: str, n_classes: int) -> np.ndarray:
    """Return the default code of a loss of this form: one-vs-rest (one vector for two classes), of others the identity."""
    if form != MARGINS:
        return diagonal_view(n_classes, n_classes, 1, 0, np.int8)
    if n_classes == 2:
        return np.array([[-1], [1]], dtype=np.int8)
    return diagonal_view(n_classes, n_classes, 1, -1, np.int8)


# ---------------------------------------------------------------------------------------------------------------------
# Random keys


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

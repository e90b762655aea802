"""Settings (C and λ) of models, codes of classes, and random keys: beside options and data, they determine a run.

A code matrix, shape (classes, weight vectors), has the sign of each class for each vector; 0 leaves the class out.
Randomness is a function of integers such as (seed, read, window): no generator whose state would have to be kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from ..kernels.loss_table import MARGINS
from .errors import UsageError, first_of


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


def cost_name(C: float) -> str:
    """Name the scores of a C, to all digits: ``1`` for 1.0."""
    short = f"{C:g}"
    return short if float(short) == C else repr(C)


def asked_text(C: float | None, l1: float | None) -> str:
    """Tell the values that are asked for."""
    wanted = {"C": C, "l1": l1}
    return ", ".join(f"{name} = {value:g}" for name, value in wanted.items() if value is not None)


# ---------------------------------------------------------------------------------------------------------------------
# Classes


def class_indices(classes: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of each label among `classes`, which ascend, and whether it is one; of another label any index."""
    index = np.minimum(np.searchsorted(classes, label), classes.size - 1)
    return index, classes[index] == label


def place_of_label(given: Any, labels: Sequence[Any], option: str) -> int:
    """Return the place among a source's labels of one that is asked for as text, or as a number, which may be written +1."""
    texts = [str(label) for label in labels]
    if str(given) in texts:
        return texts.index(str(given))
    with suppress(ValueError):
        numbers = [float(text) for text in texts]
        return numbers.index(float(given))
    raise UsageError(f"{option}: expected one of {first_of(texts)}, found {given!r}")


def check_class_names(names: Sequence[str], classes: Sequence[float] | None) -> None:
    """Raise ValueError if two classes have the same name, or if one is not the number of a name."""
    if len(set(names)) < len(names):
        raise ValueError("two classes of one name")
    if not set(classes or ()).issubset(range(len(names))):
        raise ValueError(f"`classes` are not numbers of the {len(names)} `class_names`")


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


def has_vector_per_class(code: np.ndarray) -> bool:
    """Check if a matrix has 1 on the diagonal, and one and the same smaller number everywhere else."""
    n = len(code)
    if code.shape != (n, n):
        return False
    rest = min(code[0, -1], 0)
    # row by row: with many classes the matrix may be a view whose full array would not fit in memory
    return all(code[r, r] == 1 and np.count_nonzero(code[r] == rest) == n - 1 for r in range(n))


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


def assign_folds(source: np.ndarray, seed: int, n_folds: int) -> np.ndarray:
    """Assign rows to folds by a hash of the seed and their rows in the source; uint8."""
    from ..kernels.primitives import mix  # with numba

    upper = mix.py_func(source.astype(np.uint64) ^ random_key(seed, n_folds)) >> np.uint64(32)
    # undo the mixer's last step: existing runs assigned their folds without it
    upper ^= upper >> np.uint64(31)
    return (upper * np.uint64(n_folds) >> np.uint64(32)).astype(np.uint8)

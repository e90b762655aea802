"""Sums that depend neither on the order of the numbers nor on their division into blocks."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from ..core.errors import DataError

_BLOCK = 1 << 20  # halves of 27 bits, which add up exactly in float64


class ExactSum:
    """Sum of float64 numbers, rounded once at the end."""

    def __init__(self) -> None:
        self._integers: dict[int, int] = {}  # by the power of two that each is to be multiplied by
        self._special = 0.0  # infinities and NaN, which have no exact sum

    def add(self, numbers: np.ndarray) -> None:
        """Take numbers, shape (n,)."""
        numbers = np.asarray(numbers, dtype=np.float64)
        finite = np.isfinite(numbers)
        if not finite.all():
            self._special += float(numbers[~finite].sum())
            numbers = numbers[finite]
        for start in range(0, numbers.size, _BLOCK):
            self._add(numbers[start : start + _BLOCK])

    def value(self) -> float:
        total = sum((n * Fraction(2) ** power for power, n in self._integers.items()), start=Fraction(0))
        return float(total) + self._special

    def _add(self, numbers: np.ndarray) -> None:
        # a number is a 53-bit integer times a power of two; the integers of each power are added in halves, exactly
        fraction, exponent = np.frexp(numbers)
        whole = np.ldexp(fraction, 53).astype(np.int64)
        least = int(exponent.min())
        upper = np.bincount(exponent - least, weights=whole >> 27)
        lower = np.bincount(exponent - least, weights=whole & ((1 << 27) - 1))
        for i in np.flatnonzero((upper != 0) | (lower != 0)).tolist():
            power, integer = i + least - 53, (int(upper[i]) << 27) + int(lower[i])
            self._integers[power] = self._integers.get(power, 0) + integer


class Accuracy:
    """Share of the rows, by weight, whose class was predicted."""

    def __init__(self) -> None:
        self.weight, self._hits = ExactSum(), ExactSum()

    def add(self, weight: np.ndarray, truth: np.ndarray, predicted: np.ndarray) -> None:
        """Take rows: their weights and classes, and the predicted ones."""
        self.weight.add(weight)
        self._hits.add(weight[truth == predicted])

    def value(self) -> float:
        """Return the share; 0 without rows."""
        return self._hits.value() / (self.weight.value() or 1.0)


class RSquared:
    """Squared errors of predicted numbers, and R², which measures them by the targets' distance from their mean."""

    def __init__(self) -> None:
        # targets are counted from the first, so that a common offset costs no digits
        self._first: float | None = None
        self.squared_errors, self.weight = ExactSum(), ExactSum()
        self._sum, self._squares = ExactSum(), ExactSum()

    def add(self, weight: np.ndarray, target: np.ndarray, predicted: np.ndarray) -> None:
        """Take rows: their weights, targets and predicted numbers, in order."""
        if self._first is None and target.size:
            self._first = float(target[0])
        apart = target - (self._first or 0.0)
        self.squared_errors.add(weight * (target - predicted) ** 2)
        self.weight.add(weight)
        self._sum.add(weight * apart)
        self._squares.add(weight * apart * apart)

    def value(self) -> float | None:
        """Return R²; None where the targets are all the same."""
        weight = self.weight.value()
        total = self._squares.value() - self._sum.value() ** 2 / weight if weight else 0.0
        return 1.0 - self.squared_errors.value() / total if total > 0.0 else None


def some_weight(weight: ExactSum) -> float:
    """Return the sum of the rows' weights; refused if it is 0."""
    total = weight.value()
    if not total:
        raise DataError("expected a row whose weight is above 0, found none; --unweighted counts rows alike")
    return total


def figures_by_label(
    labels: Sequence[Any],
    n_rows: np.ndarray,
    weights: tuple[np.ndarray, np.ndarray, np.ndarray],
    *,
    weighted: bool,
) -> list[dict[str, Any]]:
    """Compute precision, recall and F1 of every label; None where the divisor is 0.

    `weights` are those of its rows, of the rows predicted to have it, and of both; the first is told where rows are
    `weighted`.
    """
    true, predicted, hits = (of.tolist() for of in weights)
    return [
        {
            "label": label,
            "n_rows": int(n),
            **({"sum_of_weights": there} if weighted else {}),
            "precision": hit / said if said else None,
            "recall": hit / there if there else None,
            "f1": 2 * hit / (there + said) if there + said else None,
        }
        for label, n, there, said, hit in zip(labels, n_rows, true, predicted, hits, strict=True)
    ]

"""Sums that depend neither on the order of the numbers nor on their division into blocks."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

import numpy as np


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
        for start in range(0, numbers.size, 1 << 20):  # halves of 27 bits, which add up exactly in float64
            self._add(numbers[start : start + (1 << 20)])

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


class WeightedMeans:
    """Means of rows' figures by name, weighted; R² too, by the targets' distance from their mean."""

    def __init__(self) -> None:
        self.weight = ExactSum()
        self._sums: defaultdict[str, ExactSum] = defaultdict(ExactSum)
        self._first: float | None = (
            None  # from which targets are counted, so that a common offset costs no digits
        )

    def add(self, weight: np.ndarray, **figures: np.ndarray) -> None:
        """Take figures of rows, and the rows' weights."""
        self.weight.add(weight)
        for name, figure in figures.items():
            self._sums[name].add(weight * figure)

    def add_targets(self, weight: np.ndarray, target: np.ndarray, predicted: np.ndarray) -> None:
        """Take rows' targets and predictions: the means ``mae`` and ``mse``, and what R² needs."""
        if self._first is None and target.size:
            self._first = float(target[0])
        apart, error = target - (self._first or 0.0), target - predicted
        self.add(weight, mae=np.abs(error), mse=error**2, target=apart, square=apart**2)

    def __getitem__(self, name: str) -> float:
        """Return a mean; 0 without rows."""
        return self._sums[name].value() / (self.weight.value() or 1.0)

    def r2(self) -> float | None:
        """Return R²; None where the targets are all the same."""
        variance = self["square"] - self["target"] ** 2
        return 1.0 - self["mse"] / variance if variance > 0.0 else None

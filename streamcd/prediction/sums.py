"""Sums that depend neither on the order of the numbers nor on their division into blocks."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

_EXPONENTS = 2200  # of all finite float64, with room
_BLOCK = 1 << 20  # halves of 27 bits, which add up exactly in float64


class ExactSum:
    """Sum of float64 numbers, rounded once at the end."""

    def __init__(self) -> None:
        self._total = Fraction(0)
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
        return float(self._total) + self._special

    def _add(self, numbers: np.ndarray) -> None:
        # a number is a 53-bit integer times a power of two; the integers of each power are added in halves, exactly
        fraction, exponent = np.frexp(numbers)
        whole = np.ldexp(fraction, 53).astype(np.int64)
        power = exponent.astype(np.int64) + _EXPONENTS // 2
        upper = np.bincount(power, weights=whole >> 27, minlength=_EXPONENTS)
        lower = np.bincount(power, weights=whole & ((1 << 27) - 1), minlength=_EXPONENTS)
        for i in np.flatnonzero((upper != 0) | (lower != 0)).tolist():
            integer = (int(upper[i]) << 27) + int(lower[i])
            self._total += integer * Fraction(2) ** (i - _EXPONENTS // 2 - 53)


class Spread:
    """The squared distance of targets from their mean, by which R² measures errors."""

    def __init__(self) -> None:
        self._first: float | None = (
            None  # targets are counted from it, so that a common offset costs no digits
        )
        self._weight, self._sum, self._squares = ExactSum(), ExactSum(), ExactSum()

    def add(self, target: np.ndarray, weight: np.ndarray) -> None:
        """Take the targets of rows with their weights, in the order of the rows."""
        if self._first is None and target.size:
            self._first = float(target[0])
        apart = target - (self._first or 0.0)
        self._weight.add(weight)
        self._sum.add(weight * apart)
        self._squares.add(weight * apart * apart)

    def r2(self, squared_errors: float) -> float | None:
        """Return R² for a sum of squared errors; None where the targets are all the same."""
        weight = self._weight.value()
        total = self._squares.value() - self._sum.value() ** 2 / weight if weight else 0.0
        return 1.0 - squared_errors / total if total > 0.0 else None

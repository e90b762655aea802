"""Centring: constants that training subtracts from features and targets as they enter a window.

Where the bias is not penalised this changes nothing but the conditioning: ``w·x + b = w·(x - m) + b'`` with
``b' = b + w·m``, and the penalty is of w alone. Features that every row stores are centred, so rows stay as sparse as they
are; and these, and targets, only as far as no subtraction rounds: it is the same problem to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..core.errors import counted
from .feature_order import SourceRows

STATISTICS = "feature", "n_entries", "min", "max", "mean", "mean_square"
"""Columns of ``features.parquet`` by which features are centred."""


@dataclass(frozen=True)
class Centre:
    """Shifts m of features and of targets. In its methods `bias` is the value of the constant feature."""

    n_features: int
    features: np.ndarray  # (k,) int64, ascending: those that are centred
    shifts: np.ndarray  # (k,) float64
    # of features from 0 on, in the type of the values; the last one, 0, is that of all further ones
    table: np.ndarray
    squares: np.ndarray  # (k,) float64: mean squares of the centred values
    target: float
    mean_square: float | None  # of the norms of centred rows; None where that of rows is not known

    def mean_squares(self, piece: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return ``mean_square`` of some features' statistics, as of centred values."""
        squares = piece["mean_square"].copy()
        centred = np.isin(piece["feature"], self.features)
        squares[centred] = self.squares[np.isin(self.features, piece["feature"])]
        return squares

    def enter(self, w: SourceRows, bias: float) -> None:
        """Turn weights (n_features + 1, vectors) for stored values into those for centred ones, in place; 0 stays 0."""
        moved = (_exact_sums(self.shifts[:, None] * w[self.features]) - self.target) / bias
        w[-1] += np.where(w.array.any(axis=0), moved, 0.0)

    def leave(self, blocks: Iterable[np.ndarray], bias: float) -> Iterator[np.ndarray]:
        """Iterate over blocks of rows of weights for centred values as of those for stored ones; the last is the bias's."""
        start = 0
        products = []
        for rows in blocks:
            stop = start + rows.shape[0]
            span = slice(*np.searchsorted(self.features, (start, stop)).tolist())
            products.append(self.shifts[span, None] * rows[self.features[span] - start])
            yield rows[: self.n_features - start]
            start = stop
        yield rows[-1:] - (_exact_sums(np.concatenate(products)) - self.target) / bias

    def describe(self) -> str:
        """Describe in a line what is centred."""
        features = (
            f"{self.features.size:,} of {counted(self.n_features, 'feature')}" if self.features.size else ""
        )
        targets = f"targets by {self.target:g}" if self.target else ""
        return " and ".join(filter(None, (features, targets)))


def find_centre(
    figures: Iterable[Mapping[str, np.ndarray]],
    shape: tuple[int, int],
    dtype: np.dtype,
    targets: Mapping[str, float] | None,
    mean_square: float | None,
) -> Centre | None:
    """Find what can be centred, None for nothing, by `STATISTICS` of the features, and the ends of targets.

    `shape` is that of the rows described, `dtype` the type of values, `mean_square` that of the rows' norms.
    """
    n_rows, n_features = shape
    none = np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0)
    centred = [none, *(_centred(piece, n_rows, dtype) for piece in figures)]
    features, shifts, squares, saved = (np.concatenate(columns) for columns in zip(*centred, strict=True))
    target = 0.0
    if targets is not None:
        least = np.array([targets["min"]])
        greatest = np.array([targets["max"]])
        target = float(_shifts(least, greatest, 0.5 * least + 0.5 * greatest, np.dtype(np.float64))[0])
    if not (features.size or target):
        return None
    table = np.zeros(int(features.max(initial=-1)) + 2, dtype)
    table[features] = shifts
    if mean_square is not None:
        mean_square = max(mean_square - math.fsum(saved), math.fsum(squares))
    return Centre(n_features, features, shifts, table, squares, target, mean_square)


def _centred(piece: Mapping[str, np.ndarray], n_rows: int, dtype: np.dtype) -> tuple[np.ndarray, ...]:
    """Return those of some features that are centred, their shifts and centred mean squares, and what these lack."""
    dense = piece["n_entries"] == n_rows
    feature, least, greatest, mean, square = (
        piece[name][dense] for name in ("feature", "min", "max", "mean", "mean_square")
    )
    shifts = _shifts(least, greatest, mean, dtype)
    used = shifts != 0.0
    centred = np.maximum(square - shifts * (2.0 * mean - shifts), 0.0)
    return feature[used].astype(np.int64), shifts[used], centred[used], (square - centred)[used]


def _shifts(least: np.ndarray, greatest: np.ndarray, middle: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the shifts nearest to `middle` with which no value between the bounds is rounded; 0 where signs differ.

    A shift of at most twice the smallest size, and a multiple of the last place of the largest, leaves a multiple of the
    value's last place that is no larger than the value.
    """
    one_sided = np.isfinite(least) & np.isfinite(greatest) & (least * greatest > 0.0)
    ends = np.abs(np.stack([least, greatest]))
    spacing = np.spacing(np.where(one_sided, ends.max(axis=0), 1.0).astype(dtype)).astype(np.float64)
    size = np.minimum(np.abs(middle), 2.0 * ends.min(axis=0))
    return np.where(
        one_sided, np.sign(least) * np.floor(np.where(one_sided, size, 0.0) / spacing) * spacing, 0.0
    )


def _exact_sums(products: np.ndarray) -> np.ndarray:
    """Sum columns, rounded once: bits depend neither on blocks of rows nor on the other columns."""
    return np.array([math.fsum(column) for column in products.T])

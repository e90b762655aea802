"""Figures of rows that come in blocks: weighted means, and the area under the ROC curve."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ..kernels.loss_table import Loss
from ..solvers.problem import losses_of

_BYTES_PER_SCORE = 110
"""Peak memory of a row: score and weight as taken, joined and sorted, their order, six numbers for each group of ties."""
_LEAST_SCORES = 1024
LEAST_BYTES = _LEAST_SCORES * _BYTES_PER_SCORE
"""Memory that a receiver takes at least."""


class WeightedMeans:
    """Means of rows' figures by name, weighted; R² too, by the targets' distance from their mean."""

    def __init__(self) -> None:
        self.weight = 0.0
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._first: float | None = None  # from which targets are counted, so that an offset costs no digits

    def add(self, weight: np.ndarray, **figures: np.ndarray) -> None:
        """Take figures of rows, and the rows' weights."""
        self.weight += float(weight.sum())
        for name, figure in figures.items():
            self._sums[name] += float((weight * figure).sum())

    def add_targets(
        self, weight: np.ndarray, target: np.ndarray, predicted: np.ndarray, row_loss: Loss
    ) -> None:
        """Take rows' targets and predictions: the means ``loss``, ``mae`` and ``mse``, and what R² needs."""
        if self._first is None and target.size:
            self._first = float(target[0])
        apart = target - (self._first or 0.0)
        error = target - predicted
        loss = losses_of(row_loss, target, predicted, np.ones(1))
        self.add(weight, loss=loss, mae=np.abs(error), mse=error**2, target=apart, square=apart**2)

    def __getitem__(self, name: str) -> float:
        """Return a mean, or ``r2``; nan without rows, and for R² where the targets are all the same."""
        if name == "r2":
            variance = self["square"] - self["target"] ** 2
            return 1.0 - self["mse"] / variance if variance > 0.0 else np.nan
        return self._sums[name] / self.weight if self.weight else np.nan


class RocArea:
    """Area under the ROC curve, of scores in any number of blocks, which count by the rows' weights.

    Scores beyond the memory are counted in bins, whose bounds are quantiles of the first ones: how well these separate the
    rest shows in the error. Scores that fit in it are counted at the end, in bins of equal ones.
    """

    def __init__(self, memory_bytes: int) -> None:
        self._capacity = self._room = max(_LEAST_SCORES, memory_bytes // _BYTES_PER_SCORE)
        self._held: list[tuple[np.ndarray, np.ndarray]] = []
        self._bounds: np.ndarray | None = None  # scores, ascending; bin 2 i + 1 has those equal to bound i
        self._sums = np.zeros((2, 0))  # weights of the positive and of the negative rows in each bin

    def add(self, score: np.ndarray, positive: np.ndarray, weight: np.ndarray) -> None:
        """Take rows: their scores, flags of those of the positive class, and their weights."""
        # descending, and -0 a tie with 0; copied, since the caller reuses its memory
        score = 0.0 - score[weight > 0]
        signed = np.where(positive, weight, -weight)[weight > 0]
        if self._bounds is None:  # the first scores are the same whatever the blocks
            room = self._room
            self._held.append((score[:room], signed[:room]))
            if score.size <= room:
                self._room -= score.size
                return
            # 65,536 bins: one for each of some scores, and one between two of these; no more memory than scores took
            self._begin_bins((1 << 15) - 1)
            score = score[room:]
            signed = signed[room:]
        self._count(score, signed)

    def _begin_bins(self, most_bounds: int) -> None:
        score, signed = (np.concatenate(parts) for parts in zip(*self._held, strict=True))
        self._held = []
        places = np.linspace(0, score.size - 1, min(most_bounds, score.size)).astype(np.int64)
        self._bounds = np.unique(np.sort(score)[places])
        self._sums = np.zeros((2, 2 * self._bounds.size + 1))
        self._count(score, signed)

    def _count(self, score: np.ndarray, signed: np.ndarray) -> None:
        assert self._bounds is not None
        first, stop = (np.searchsorted(self._bounds, score, side) for side in ("left", "right"))
        for sums, weight in zip(self._sums, (signed, -signed), strict=True):
            sums += np.bincount(first + stop, np.maximum(weight, 0.0), sums.size)

    def area(self) -> tuple[float, float] | None:
        """Compute the area of all rows and a bound on its error, 0 where all scores were held; None for one class.

        It is the probability that a positive row scores above a negative one, ties counted half, as are pairs in a bin of
        different scores.
        """
        if self._held:
            self._begin_bins(self._capacity)
        positives, negatives = self._sums
        n_pairs = float(positives.sum() * negatives.sum())
        if not n_pairs:
            return None
        # scores come in descending order
        doubled = float((negatives * (2 * np.cumsum(positives) - positives)).sum())
        return doubled / (2 * n_pairs), float((positives * negatives)[::2].sum() / (2 * n_pairs))

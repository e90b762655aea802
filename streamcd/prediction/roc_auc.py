"""Area under the ROC curve: exact while the scores fit in memory, else by bins, with a bound."""

from __future__ import annotations

import numpy as np

_BYTES_PER_SCORE = 110
"""Peak memory of a row: score and weight as taken, joined and sorted, their order, six numbers for each group of ties."""
_LEAST_SCORES = 1024
LEAST_BYTES = _LEAST_SCORES * _BYTES_PER_SCORE
"""Memory that a receiver takes at least."""


class RocArea:
    """Receiver of scores in any number of blocks.

    Rows count by their weights; without any, the counts are integers, and exact areas rounded once. Scores beyond the memory
    are counted in bins, whose bounds are quantiles of the first ones: how well these separate the rest shows in the error.
    """

    def __init__(self, memory_bytes: int) -> None:
        self._capacity = max(_LEAST_SCORES, memory_bytes // _BYTES_PER_SCORE)
        self._weighted = False
        self._held: list[tuple[np.ndarray, np.ndarray]] = []
        self._n_held = 0
        self._bounds: np.ndarray | None = None  # scores, ascending; bin 2 i + 1 has those equal to bound i
        self._sums = np.zeros((2, 0))  # weights of the positive and of the negative rows in each bin

    def add(self, score: np.ndarray, positive: np.ndarray, weight: np.ndarray | None = None) -> None:
        """Take rows: their scores, flags of those of the positive class, and their weights, all 1 by default."""
        if weight is None:
            weight = np.ones(score.size)
        elif (weight != 1.0).any():
            self._weighted = True
            score, positive, weight = (array[weight > 0] for array in (score, positive, weight))
        if not score.size:
            return
        # descending, and -0 a tie with 0; copied, since the caller reuses its memory
        score, signed = 0.0 - score, np.where(positive, weight, -weight)
        room = self._capacity - self._n_held
        if self._bounds is None and score.size > room:  # the first scores are the same whatever the blocks
            self._hold(score[:room], signed[:room])
            self._begin_bins()
            score, signed = score[room:], signed[room:]
        if self._bounds is None:
            self._hold(score, signed)
        else:
            self._count(score, signed, self._bounds)

    def _hold(self, score: np.ndarray, signed: np.ndarray) -> None:
        self._held.append((score, signed))
        self._n_held += score.size

    def _joined(self) -> list[np.ndarray]:
        return [np.concatenate(parts) for parts in zip(*self._held, strict=True)]

    def _begin_bins(self) -> None:
        score, signed = self._joined()
        self._held = []
        # 65,536 bins: one for each of some scores, and one between two of these; they take no more memory than scores did
        n_bounds = min((1 << 15) - 1, self._capacity)
        places = np.linspace(0, score.size - 1, n_bounds).astype(np.int64)
        self._bounds = np.unique(np.sort(score)[places])
        self._sums = np.zeros((2, 2 * self._bounds.size + 1))
        self._count(score, signed, self._bounds)

    def _count(self, score: np.ndarray, signed: np.ndarray, bounds: np.ndarray) -> None:
        number = np.searchsorted(bounds, score, side="left") + np.searchsorted(bounds, score, side="right")
        for sums, weight in zip(self._sums, (signed, -signed), strict=True):
            sums += np.bincount(number, np.maximum(weight, 0.0), sums.size)

    def area(self) -> tuple[float, float] | None:
        """Compute the area and a bound on its error, 0 where all scores were held; None for one class.

        It is the probability that a positive row scores above a negative one, ties counted half, as are pairs in a bin of
        different scores.
        """
        if not (self._held or self._sums.size):
            return None
        positives, negatives = _count_ties(*self._joined()) if self._held else self._sums
        if self._held and not self._weighted:
            positives, negatives = positives.astype(np.int64), negatives.astype(np.int64)
        # scores come in descending order
        first = np.cumsum(positives)
        n_positive, n_negative = first[-1].item(), negatives.sum().item()
        if not n_positive or not n_negative:
            return None
        n_pairs = n_positive * n_negative
        doubled = (negatives * (2 * first - positives)).sum().item()
        mixed = slice(0, 0 if self._bounds is None else None, 2)
        return doubled / (2 * n_pairs), float((positives * negatives)[mixed].sum() / (2 * n_pairs))


def _count_ties(score: np.ndarray, signed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sum the weights of the positive and of the negative rows of every distinct score, ascending."""
    order = np.argsort(score)
    score, signed = score[order], signed[order]
    group = np.flatnonzero(np.concatenate([[True], score[1:] != score[:-1]]))
    return np.add.reduceat(np.maximum(signed, 0.0), group), np.add.reduceat(np.maximum(-signed, 0.0), group)

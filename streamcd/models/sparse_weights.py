"""Weights of the features that have one that is not 0, in place of those of all features."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np


class SparseWeights:
    """A matrix of weights (features, vectors) by its rows that are not 0.

    Attributes
    ----------
    feature : ndarray of int64, shape (kept,)
        The features that have a weight, ascending.
    value : ndarray of float64, shape (kept, vectors)
        Their weights.
    shape : (features, vectors)

    Raises
    ------
    ValueError
        If features and weights do not fit together.
    """

    ndim = 2

    def __init__(self, feature: np.ndarray, value: np.ndarray, n_features: int) -> None:
        self.feature = np.ascontiguousarray(feature, dtype=np.int64)
        self.value = np.ascontiguousarray(value, dtype=np.float64)
        self.shape = (n_features, value.shape[1])
        least, greatest = self.feature.min(initial=0), self.feature.max(initial=-1)
        if least < 0 or greatest >= n_features or not (np.diff(self.feature) > 0).all():
            raise ValueError("expected features that ascend, each of the model's")

    @classmethod
    def from_blocks(cls, blocks: Iterable[np.ndarray], n_vectors: int) -> SparseWeights:
        """Take the rows that are not 0 from blocks of the rows of a matrix."""
        features, values, start = [np.zeros(0, np.int64)], [np.zeros((0, n_vectors))], 0
        for block in blocks:
            kept = np.flatnonzero(block.any(axis=1))
            features.append(start + kept)
            values.append(block[kept])
            start += block.shape[0]
        return cls(np.concatenate(features), np.concatenate(values), start)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, with those of `words`."""
        words = -(-self.shape[0] // 64) * 16
        return self.feature.nbytes + self.value.nbytes + words

    @cached_property
    def words(self) -> tuple[np.ndarray, np.ndarray]:
        """A bit for each feature, set where it is kept, 64 in a uint64, and how many are kept before each of these."""
        n_words = -(-self.shape[0] // 64)
        bits = np.zeros(n_words, dtype=np.uint64)
        np.bitwise_or.at(bits, self.feature >> 6, np.uint64(1) << (self.feature & 63).astype(np.uint64))
        return bits, np.searchsorted(self.feature, 64 * np.arange(n_words))

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return rows of the matrix."""
        start, stop, _ = rows.indices(self.shape[0])
        block = np.zeros((max(stop - start, 0), self.shape[1]))
        first, last = np.searchsorted(self.feature, [start, stop])
        block[self.feature[first:last] - start] = self.value[first:last]
        return block


def is_worth(n_kept: int, shape: tuple[int, int]) -> bool:
    """Tell whether weights take less than a quarter by the rows that are not 0, of which there are so many."""
    n_bytes = 8 * shape[0] * shape[1]
    return n_bytes >= 1 << 16 and 32 * n_kept * (1 + shape[1]) <= n_bytes


def sparse_if_worth(weights: np.ndarray | SparseWeights) -> np.ndarray | SparseWeights:
    """Return weights by their rows that are not 0, where these are few."""
    if isinstance(weights, SparseWeights) or not is_worth(0, weights.shape):
        return weights
    n_kept = int(weights.any(axis=1).sum())
    return (
        SparseWeights.from_blocks([weights], weights.shape[1]) if is_worth(n_kept, weights.shape) else weights
    )

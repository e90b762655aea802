"""The order of what a training has of features: descending by their entries, so that weights in use share cache lines.

Sources number features by alphabet, hash or first sight: a cache line has one frequent feature's weight and seven that
hardly occur. The rank of a feature is its place in arrays that are in order. Rows enter an arena with ranks in place of
features; all that goes on outside the loop (checkpoints, models, starts from runs) is in the source's numbers, by
`SourceRows`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..core.memory_budget import BLOCK_WEIGHTS

MOST_UNRANKED = 4096  # features whose weights fit in the processor's first-level cache in any order

SOURCE_ORDER = np.zeros(0, np.uint32)
"""The rank of features that stand as in the source."""


MOST_COUNTED = 65_535
"""Entries of a feature from which on the order is the source's: numbers of 16 bits are sorted by their digits."""


def make_rank(counts: np.ndarray) -> np.ndarray:
    """Return the rank of every feature by its `counts` (uint16), and of the bias, the last; uint32.

    Features with as many entries stand as in the source. Sorting takes some 22 bytes a feature, before weights take theirs.
    """
    rank = np.empty(counts.size + 1, np.uint32)
    rank[np.argsort(~counts, kind="stable")] = np.arange(counts.size, dtype=np.uint32)
    rank[-1] = counts.size
    return rank


class SourceRows:
    """An array in order (features and the bias, vectors), of which rows are got and set by the features of the source."""

    def __init__(self, array: np.ndarray, rank: np.ndarray) -> None:
        self.array = array
        self._rank = rank

    def __getitem__(self, features: Any) -> np.ndarray:
        return self.array[self._rank[features] if self._rank.size else features]

    def __setitem__(self, features: Any, rows: np.ndarray) -> None:
        self.array[self._rank[features] if self._rank.size else features] = rows

    def blocks(self) -> Iterator[slice]:
        """Iterate over blocks of features."""
        n_rows, n_vectors = self.array.shape
        step = max(BLOCK_WEIGHTS // n_vectors, 1)
        return (slice(start, start + step) for start in range(0, n_rows, step))

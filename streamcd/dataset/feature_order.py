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

MOST_UNRANKED = 4096  # features whose weights fit in the processor's first-level cache in any order

RANK_BYTES = 20
"""Memory of a feature while the rank is made: a key to sort by, and three numbers of 4 bytes."""

SOURCE_ORDER = np.zeros(0, np.uint32)
"""The rank of features that stand as in the source."""

_LARGEST = np.uint64(2**32 - 1)
_BLOCK_BYTES = (
    1 << 18
)  # gathered at a time: what is written of them, its checksum, stays in the processor's cache


def make_rank(counts: np.ndarray) -> np.ndarray:
    """Return the rank of every feature by its `counts` (uint64, overwritten), and of the bias, the last; uint32.

    Features with as many entries stand as in the source.
    """
    key, feature = counts, np.arange(counts.size, dtype=np.uint32)
    np.subtract(_LARGEST, np.minimum(key, _LARGEST, out=key), out=key)
    key <<= np.uint64(32)
    key |= feature
    key.sort()
    key &= _LARGEST
    rank = np.empty(counts.size + 1, np.uint32)
    rank[key.view(np.int64)] = feature
    rank[-1] = counts.size
    return rank


class SourceRows:
    """An array in order (features and the bias, vectors), of which rows are got and set by the features of the source."""

    def __init__(self, array: np.ndarray, rank: np.ndarray) -> None:
        self.array, self._rank = array, rank

    def __getitem__(self, features: Any) -> np.ndarray:
        rows: np.ndarray = self.array[self._rank[features] if self._rank.size else features]
        return rows

    def __setitem__(self, features: Any, rows: np.ndarray) -> None:
        self.array[self._rank[features] if self._rank.size else features] = rows

    def blocks(self) -> Iterator[slice]:
        """Iterate over blocks of features, so small that their rows stay in the processor's cache."""
        n_rows = self.array.shape[0]
        step = max(_BLOCK_BYTES * n_rows // max(self.array.nbytes, 1), 1)
        return (slice(start, start + step) for start in range(0, n_rows, step))

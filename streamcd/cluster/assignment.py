"""Assignment of shards to workers: neighbouring blocks, or dealt at random, then a part exchanged before every round.

Half of the shards mix the blocks as well as all would, and only these have to be read by another worker. With a quarter it
takes up to 1.4 times the rounds, with shards that stay three times.
"""

from __future__ import annotations

import numpy as np

from ..core.setting import random_key
from ..dataset.dataset import Dataset
from ..kernels.primitives import shuffle

_KEY = 0x6465616C  # makes these keys differ from those of reads and windows
EXCHANGED = 2  # one shard of so many changes hands


def make_assignment(dataset: Dataset, seed: int, *, exchanges: bool) -> Assignment:
    """Make the assignment of a dataset's shards to the workers of a run."""
    sizes = np.diff(dataset.entry_start)
    entries = np.bincount(dataset.chunk_part, weights=sizes, minlength=dataset.n_shards).astype(np.int64)
    return Assignment(entries, seed, exchanges=exchanges)


class Assignment:
    """Shards of every part in every round: a function of the seed, the round and the number of parts alone.

    Parameters
    ----------
    entries : ndarray of int64, shape (shards,)
        Entries of every shard.
    seed : int
    exchanges : bool
        Whether shards change hands between rounds, for which each worker needs two; else they stay.
    """

    def __init__(self, entries: np.ndarray, seed: int, *, exchanges: bool = True) -> None:
        self._entries = entries
        self._seed = seed
        self.exchanges = exchanges
        self._round = 0
        self._owned = list[list[int]]()

    def shares(self, number: int, n_parts: int) -> list[list[int]]:
        """Return the ascending shards of every part, of which some may have none; rounds count from 0."""
        number = number if self.exchanges else 0
        if len(self._owned) != n_parts or number < self._round:
            self._round = 0
            self._owned = self._deal_all(n_parts)
        while self._round < number:
            self._round += 1
            self._exchange()
        return list(map(sorted, self._owned))

    def _deal_all(self, n_workers: int) -> list[list[int]]:
        if self._entries.size <= n_workers:  # a shard each, the largest first: nothing to mix
            order = np.argsort(-self._entries, kind="stable")
            return [order[number : number + 1].tolist() for number in range(n_workers)]
        owned: list[list[int]] = [[] for _ in range(n_workers)]
        self._deal(np.arange(self._entries.size), owned)
        return owned

    def _exchange(self) -> None:
        """Take a part of every worker's shards, chosen at random, and deal them to all."""
        if self._entries.size <= len(self._owned):
            return
        given: list[int] = []
        for number, shards in enumerate(self._owned):
            order = np.array(shards, dtype=np.int64)
            shuffle(order, random_key(self._seed, _KEY, self._round, number + 1), 1)
            count = -(-order.size // EXCHANGED)
            given += order[:count].tolist()
            self._owned[number] = order[count:].tolist()
        self._deal(np.array(sorted(given)), self._owned)

    def _deal(self, shards: np.ndarray, owned: list[list[int]]) -> None:
        """Deal shards at random, so that workers have about as many entries each; changes `owned` in place.

        Large shards come first, so that small ones even out. Sizes and loads are compared roughly: to the entry, the same
        few shards would meet in every round.
        """
        order = shards.copy()
        shuffle(order, random_key(self._seed, _KEY, self._round), 1)
        size = np.maximum(self._entries, 1)
        largest = max(int(self._entries.max()), 1)
        order = order[np.argsort(np.rint(np.log2(largest / size[order])), kind="stable")]
        load = [int(size[shards].sum()) for shards in owned]
        for shard in order.tolist():
            worker = min(range(len(owned)), key=lambda worker: 4 * load[worker] // largest)
            owned[worker].append(shard)
            load[worker] += int(size[shard])

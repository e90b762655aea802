"""Places of shards in a resident arena: of all of them, or of those that fit, which may come and go."""

from __future__ import annotations

import numpy as np

from ..dataset.chunked_table import ChunkedTable
from .memory_plan import slot_size


class ShardSlots:
    """Places of shards in an arena, as many as fit; a shard keeps its place until another one needs it.

    Where all shards fit, each has its place for good. Otherwise the places are of equal size, with an item to spare, because
    an item's end is the next one's start. The arena has `n_items` and `n_entries`; `item_start` and `entry_start` are the
    offsets of every chunk in it, undefined without a place.
    """

    def __init__(self, table: ChunkedTable, n_slots: int) -> None:
        self._first, self._starts = table.shard_start, (table.item_start, table.entry_start)
        self._in_slot = np.arange(table.n_shards)  # -1: empty
        self.item_start, self.entry_start = (start[:-1] for start in self._starts)
        self.n_items, self.n_entries = table.n_items, table.n_entries
        if n_slots < table.n_shards:
            self._in_slot = np.full(n_slots, -1)
            self.item_start, self.entry_start = self.item_start.copy(), self.entry_start.copy()
            self._sizes = slot_size(table)
            self.n_items, self.n_entries = (n_slots * size for size in self._sizes)

    def hold(self, shards: np.ndarray) -> np.ndarray:
        """Give these shards places, at most as many as there are; returns the chunks that lost theirs."""
        arriving = np.setdiff1d(shards, self._in_slot)
        free = np.flatnonzero(~np.isin(self._in_slot, shards))[: arriving.size]
        leaving = self._in_slot[free]
        for slot, shard in zip(free.tolist(), arriving.tolist(), strict=True):
            chunks = slice(self._first[shard], self._first[shard + 1])
            placed = zip(self._starts, (self.item_start, self.entry_start), self._sizes, strict=True)
            for start, place, size in placed:
                place[chunks] = start[:-1][chunks] - start[chunks.start] + slot * size
        self._in_slot[free] = arriving
        lost = [np.arange(*self._first[shard : shard + 2]) for shard in leaving.tolist() if shard >= 0]
        return np.concatenate([np.zeros(0, np.int64), *lost])

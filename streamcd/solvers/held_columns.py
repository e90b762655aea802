"""The columns that came nearest to being useful in a read, held in memory until the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ..kernels import working_set as kernels
from ..kernels.primal import Columns
from ..stream.arenas import ColumnArena
from .primal import columns_of

_STAYS = 0.5
"""Share of the room that the longest columns keep where others have no room: the gap depends on the steepest derivative, and
theirs are. With random ones in their place it falls several times more slowly."""


class HeldColumns:
    """The nearest columns of a read that fit in as many entries and columns; those nearer than 0 are wanted."""

    def __init__(self, dtypes: tuple[np.dtype, np.dtype], n_columns: int, n_entries: int) -> None:
        self._arena = ColumnArena(dtypes, n_columns, n_entries)
        self._nearness = np.empty(n_columns)
        self.clear()

    def clear(self) -> None:
        """Forget all columns."""
        self._n = 0
        self._farthest = np.inf

    @property
    def columns(self) -> Columns:
        """Held columns and room for others."""
        return columns_of(self._arena)

    @property
    def offsets(self) -> np.ndarray:
        """Offsets of held columns."""
        return np.arange(self._n)

    def offer(
        self, arena: ColumnArena, offsets: np.ndarray, nearness: np.ndarray, solve: Callable[[], None] | None
    ) -> None:
        """Hold those of a window's columns that are nearer than columns without room.

        `solve` is called before wanted columns are dropped, if it is given: all but the longest are then.
        """
        sizes = arena.indptr[offsets + 1] - arena.indptr[offsets]
        start = 0
        while start < offsets.size:
            n = self._make_room_for_wanted(sizes[start:], nearness[start:], solve)
            some = slice(start, start + n)
            taken = self._drop_farther(sizes[some], nearness[some])
            kernels.hold(offsets[some][taken], columns_of(arena), self.columns, self._n)
            self._add(nearness[some][taken])
            start += n

    def offer_long(
        self,
        arena: ColumnArena,
        segments: Iterator[int],
        n_entries: int,
        nearness: np.ndarray,
        solve: Callable[[], None] | None,
    ) -> None:
        """Offer a column whose entries come in segments, to the front of the arena."""
        sizes = np.array([n_entries])
        self._make_room_for_wanted(sizes, nearness, solve)
        if not self._drop_farther(sizes, nearness).size:
            return
        store = self._arena
        at = int(self._arena.indptr[self._n])
        for n in segments:
            store.row[at : at + n] = arena.row[:n]
            store.value[at : at + n] = arena.value[:n]
            at += n
        store.feature[self._n] = arena.feature[0]
        store.indptr[self._n + 1] = at
        self._add(nearness)

    def _make_room_for_wanted(
        self, sizes: np.ndarray, nearness: np.ndarray, solve: Callable[[], None] | None
    ) -> int:
        """Return how many of the first columns have room beside the wanted ones, at least one."""
        if solve is None:
            return sizes.size
        sizes = sizes * (nearness < 0.0)
        if n := self._count_fitting(sizes):
            return n
        solve()
        for room in (_STAYS, 0.0):
            self._keep_longest(room)
            if n := self._count_fitting(sizes):
                break
        return n

    def _count_fitting(self, sizes: np.ndarray) -> int:
        store = self._arena
        wanted = self._nearness[: self._n] < 0.0
        held = int(np.diff(store.indptr[: self._n + 1])[wanted].sum())
        n = int(np.searchsorted(np.cumsum(sizes), store.row.size - held, side="right"))
        return min(n, store.feature.size - int(wanted.sum()))

    def _keep_longest(self, room: float) -> None:
        """Keep the longest columns, in this share of the room."""
        store = self._arena
        sizes = np.diff(self._arena.indptr[: self._n + 1])
        order = np.argsort(-sizes, kind="stable")
        most = int(np.searchsorted(np.cumsum(sizes[order]), room * store.row.size))
        self._keep(np.sort(order[: min(most, int(room * store.feature.size))]))
        self._farthest = np.inf

    def _drop_farther(self, sizes: np.ndarray, nearness: np.ndarray) -> np.ndarray:
        """Drop held columns for nearer ones of these sizes; returns which of them have room."""
        store = self._arena
        n = self._n
        near = np.flatnonzero(nearness < self._farthest)
        all_sizes = np.append(np.diff(store.indptr[: n + 1]), sizes[near])
        if all_sizes.size <= store.feature.size and all_sizes.sum() <= store.row.size:
            return near
        nearness = np.append(self._nearness[:n], nearness[near])
        order = np.argsort(nearness, kind="stable")
        ends = np.cumsum(all_sizes[order])
        most = min(int(np.searchsorted(ends, store.row.size, side="right")), store.feature.size)
        if most < order.size:
            self._farthest = float(nearness[order[most]])
        chosen = np.sort(order[:most])
        self._keep(chosen[chosen < n])
        return near[chosen[chosen >= n] - n]

    def _keep(self, chosen: np.ndarray) -> None:
        kernels.hold(chosen, self.columns, self.columns, 0)
        self._nearness[: chosen.size] = self._nearness[chosen]
        self._n = chosen.size

    def _add(self, nearness: np.ndarray) -> None:
        self._nearness[self._n : self._n + nearness.size] = nearness
        self._n += nearness.size

"""Columns held in memory between two reads: all of resident data, or those that came nearest to being useful in a read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..kernels import working_set as kernels
from ..kernels.columns import Columns
from ..kernels.primitives import unsigned
from ..stream.window import ColumnArena


class ResidentColumns:
    """Columns of an arena that keeps all data."""

    def __init__(self) -> None:
        self._arena: ColumnArena | None = None
        self._offsets: list[np.ndarray] = []

    def clear(self) -> None:
        """Forget all columns."""
        self._offsets = []

    def offer(self, arena: ColumnArena, offsets: np.ndarray) -> None:
        """Hold columns of a window."""
        self._arena = arena
        self._offsets.append(offsets.copy())

    @property
    def columns(self) -> Columns:
        """The arena's columns, of which `offsets` are held."""
        assert self._arena is not None
        return columns_of(self._arena)

    @property
    def offsets(self) -> np.ndarray:
        """Offsets of held columns."""
        return np.concatenate(self._offsets)


class NearestColumns:
    """The nearest columns of a read that fit in as many entries and columns."""

    def __init__(self, dtypes: tuple[np.dtype, np.dtype], n_columns: int, n_entries: int) -> None:
        self._arena = ColumnArena(dtypes, n_columns, n_entries)
        self._nearness = np.empty(n_columns)
        self.clear()

    def clear(self) -> None:
        """Forget all columns."""
        self._n, self._farthest = 0, np.inf

    @property
    def columns(self) -> Columns:
        """Held columns and room for others."""
        return columns_of(self._arena)

    @property
    def offsets(self) -> np.ndarray:
        """Offsets of held columns."""
        return np.arange(self._n)

    def count_fitting(self, sizes: np.ndarray) -> int:
        """Count the first of columns of these sizes that have room beside the held ones that are wanted: nearer than 0."""
        own, wanted = self._arena, self._nearness[: self._n] < 0.0
        held = int(np.diff(own.indptr[: self._n + 1])[wanted].sum())
        n = int(np.searchsorted(np.cumsum(sizes), own.row.size - held, side="right"))
        return min(n, own.feature.size - int(wanted.sum()))

    def keep(self, room: float) -> None:
        """Keep the longest columns, in this share of the room."""
        own, sizes = self._arena, np.diff(self._arena.indptr[: self._n + 1])
        order = np.argsort(-sizes, kind="stable")
        most = int(np.searchsorted(np.cumsum(sizes[order]), room * own.row.size))
        self._compact(np.sort(order[: min(most, int(room * own.feature.size))]))
        self._farthest = np.inf

    def offer(self, arena: ColumnArena, offsets: np.ndarray, nearness: np.ndarray) -> None:
        """Hold those of a window's columns, the smallest `nearness` first, that are nearer than columns without room."""
        near = nearness < self._farthest
        offsets, nearness = offsets[near], nearness[near]
        taken = self._make_room(arena.indptr[offsets + 1] - arena.indptr[offsets], nearness)
        self._copy(arena, offsets[taken], nearness[taken])

    def offer_long(
        self, arena: ColumnArena, segments: Iterator[int], n_entries: int, nearness: float
    ) -> None:
        """Hold a column whose entries come in segments, to the front of the arena, if it is near enough."""
        if not nearness < self._farthest:
            return
        if not self._make_room(np.array([n_entries]), np.array([nearness])).size:
            return
        own, at = self._arena, int(self._arena.indptr[self._n])
        for n in segments:
            own.row[at : at + n] = arena.row[:n]
            own.value[at : at + n] = arena.value[:n]
            at += n
        own.feature[self._n], own.indptr[self._n + 1] = arena.feature[0], at
        self._nearness[self._n] = nearness
        self._n += 1

    def _make_room(self, sizes: np.ndarray, nearness: np.ndarray) -> np.ndarray:
        """Drop held columns for nearer ones of these sizes; returns which of them have room."""
        own, n = self._arena, self._n
        held = np.diff(own.indptr[: n + 1])
        if n + sizes.size <= own.feature.size and held.sum() + sizes.sum() <= own.row.size:
            return np.arange(sizes.size)
        order = np.argsort(np.append(self._nearness[:n], nearness), kind="stable")
        ends = np.cumsum(np.append(held, sizes)[order])
        most = min(int(np.searchsorted(ends, own.row.size, side="right")), own.feature.size)
        if most < order.size:
            self._farthest = float(np.append(self._nearness[:n], nearness)[order[most]])
        chosen = np.sort(order[:most])
        kept, taken = chosen[chosen < n], chosen[chosen >= n] - n
        self._compact(kept)
        return taken

    def _compact(self, kept: np.ndarray) -> None:
        kernels.close_gaps(kept, self.columns)
        self._nearness[: kept.size] = self._nearness[kept]
        self._n = kept.size

    def _copy(self, arena: ColumnArena, offsets: np.ndarray, nearness: np.ndarray) -> None:
        n = self._n
        kernels.hold(offsets, columns_of(arena), self.columns, n, int(self._arena.indptr[n]))
        self._nearness[n : n + offsets.size] = nearness
        self._n += offsets.size


def columns_of(arena: ColumnArena) -> Columns:
    """Return an arena as an argument of kernels."""
    return Columns(arena.indptr, arena.feature, unsigned(arena.row), arena.value)

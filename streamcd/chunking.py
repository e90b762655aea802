"""Rows in their final order cut into chunks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .shuffle import Rows, concatenate

_ROW_BYTES = 16
"""Counted for a row when chunks are cut, so that rows with hardly an entry do not make chunks of a million rows."""


class ChunkRule:
    """Where chunks end: greedily, by decoded bytes of the rows in final order, so that nothing else decides."""

    def __init__(self, chunk_bytes: int, entry_bytes: int) -> None:
        self._chunk_bytes, self._entry_bytes = chunk_bytes, entry_bytes
        self._pending_bytes = 0

    def ends(self, counts: np.ndarray) -> Iterator[int]:
        """Take the entries of the next rows; give the places among them at which a chunk ends, 0 included."""
        end = np.cumsum(counts * self._entry_bytes + _ROW_BYTES)
        start = 0
        while start < len(counts):
            before = int(end[start - 1]) if start else 0
            stop = int(np.searchsorted(end, before + self._chunk_bytes - self._pending_bytes, side="right"))
            if stop <= start and self._pending_bytes:
                yield start
                self._pending_bytes = 0
                continue
            stop = max(stop, start + 1)  # a row larger than a chunk is a chunk of its own
            self._pending_bytes += int(end[stop - 1]) - before
            if stop < len(counts):
                yield stop
                self._pending_bytes = 0
            start = stop


class ChunkCutter:
    """Cuts rows in final order into chunks."""

    def __init__(self, chunk_bytes: int, entry_bytes: int) -> None:
        self._rule = ChunkRule(chunk_bytes, entry_bytes)
        self._pending: list[Rows] = []

    def cut(self, rows: Rows, order: np.ndarray) -> Iterator[Rows]:
        """Take rows in the given order; give the chunks that are complete."""
        start = 0
        for end in self._rule.ends(rows.indptr[order + 1] - rows.indptr[order]):
            if end > start:
                self._pending.append(rows.take(order[start:end]))
            yield self.rest()
            start = end
        if start < len(order):
            self._pending.append(rows.take(order[start:]))

    def rest(self) -> Rows:
        """The chunk begun so far."""
        chunk = concatenate(self._pending)
        self._pending = []
        return chunk

    @property
    def has_rest(self) -> bool:
        """Whether a chunk is begun."""
        return bool(self._pending)

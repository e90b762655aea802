"""Division of rows in final order into chunks, and of chunks into shards: greedily, by decoded bytes alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

_ROW_BYTES = 16
"""Bytes counted for a row, so that chunks of nearly empty rows do not have a million rows."""

_LENGTHS_AT_A_TIME = 1 << 16


class ChunkRule:
    """Rule for the ends of chunks: greedy, by decoded bytes of the rows in final order."""

    def __init__(self, chunk_bytes: int, entry_bytes: int) -> None:
        self._chunk_bytes, self._entry_bytes = chunk_bytes, entry_bytes
        self._pending_bytes = 0

    def ends(self, counts: np.ndarray) -> Iterator[int]:
        """Take the numbers of entries of the next rows; yield the positions among them at which a chunk ends, 0 included."""
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


def cut_chunks(lengths: Sequence[Path], chunk_bytes: int, entry_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Count the rows and entries of every chunk, from files with the entries of all rows in final order."""
    rule = ChunkRule(chunk_bytes, entry_bytes)
    n_rows, n_entries = [0], [0]
    for counts in _blocks_of_lengths(lengths):
        before = np.concatenate([[0], np.cumsum(counts)])
        for number, (start, stop) in enumerate(pairwise([0, *rule.ends(counts), len(counts)])):
            if number:
                n_rows.append(0)
                n_entries.append(0)
            n_rows[-1] += stop - start
            n_entries[-1] += int(before[stop] - before[start])
    return np.array(n_rows), np.array(n_entries)


def _blocks_of_lengths(lengths: Sequence[Path]) -> Iterator[np.ndarray]:
    """Yield a bounded number at a time, whatever the number of rows."""
    for path in lengths:
        with open(path, "rb") as file:
            while (counts := np.fromfile(file, np.int64, _LENGTHS_AT_A_TIME)).size:
                yield counts


def cut_shards(chunk_bytes: np.ndarray, shard_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of chunks that make a shard: a new one begins after `shard_bytes` of decoded entries."""
    start, held = 0, 0
    for chunk, n_bytes in enumerate(chunk_bytes.tolist()):
        if chunk > start and held >= shard_bytes:
            yield start, chunk
            start, held = chunk, 0
        held += n_bytes
    if start < len(chunk_bytes):
        yield start, len(chunk_bytes)

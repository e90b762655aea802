"""Rows that come shuffled, given back in the order of their source, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

LEAST_ROWS = 1024
"""Rows to a bucket, and rows dealt out at a time, however little memory there is."""


class SourceOrder:
    """Takes a record of floats per row with the row's place in the source, and gives all records back in that order.

    What does not fit in memory is dealt out to bucket files, one per range of places, that fit one at a time.

    Parameters
    ----------
    n_rows : int
        Places are 0 … n_rows − 1, each of them once.
    n_columns : int
        Floats of a record.
    memory_bytes : int
        What records may take.
    scratch : path
        An empty directory for the bucket files.
    """

    def __init__(
        self, n_rows: int, n_columns: int, memory_bytes: int, scratch: str | os.PathLike[str]
    ) -> None:
        record_bytes = 8 * (1 + n_columns)
        # A bucket is read and then put in order: two copies. What waits to be written is put in order as well.
        self._bucket_rows = max(LEAST_ROWS, memory_bytes // (2 * record_bytes))
        self._waiting_rows = max(LEAST_ROWS, memory_bytes // (3 * record_bytes))
        self._n_rows, self._n_columns, self._scratch = n_rows, n_columns, scratch
        self._one = np.empty((n_rows, n_columns)) if n_rows <= self._bucket_rows else None
        self._waiting: list[np.ndarray] = []
        self._n_waiting = 0

    def add(self, source: np.ndarray, records: np.ndarray) -> None:
        """Take rows: their places, int64 of shape (rows,), and records, float64 of shape (rows, n_columns)."""
        if self._one is not None:
            self._one[source] = records
            return
        tagged = np.empty((source.size, 1 + self._n_columns))
        tagged[:, 0] = np.ascontiguousarray(source, dtype=np.int64).view(np.float64)
        tagged[:, 1:] = records
        self._waiting.append(tagged)
        self._n_waiting += source.size
        if self._n_waiting >= self._waiting_rows:
            self._deal_out()

    def blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        """All records in order, at most `rows` at a time, each block with its first place."""
        self._deal_out()
        for start in range(0, self._n_rows, self._bucket_rows):
            bucket = self._one if self._one is not None else self._read(start)
            for place in range(0, bucket.shape[0], rows):
                yield start + place, bucket[place : place + rows]

    def _path(self, bucket: int) -> str:
        return os.path.join(self._scratch, f"bucket-{bucket:06d}")

    def _deal_out(self) -> None:
        if not self._waiting:
            return
        waiting = np.concatenate(self._waiting)
        self._waiting, self._n_waiting = [], 0
        bucket = waiting[:, 0].copy().view(np.int64) // self._bucket_rows
        order = np.argsort(bucket, kind="stable")
        ends = np.flatnonzero(np.diff(bucket[order], append=-1)) + 1
        start = 0
        for end in ends.tolist():
            with open(self._path(int(bucket[order[start]])), "ab") as file:
                waiting[order[start:end]].tofile(file)
            start = end

    def _read(self, start: int) -> np.ndarray:
        tagged = np.fromfile(self._path(start // self._bucket_rows)).reshape(-1, 1 + self._n_columns)
        ordered = np.empty((min(self._bucket_rows, self._n_rows - start), self._n_columns))
        ordered[tagged[:, 0].copy().view(np.int64) - start] = tagged[:, 1:]
        return ordered

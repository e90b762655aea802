"""Shuffled rows restored to the order of their source, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..core.external_partition import MAX_BUCKETS, Layout, PartitionReader, PartitionWriter, Records

LEAST_ROWS = 1024
"""Least rows in a bucket, and least rows buffered for writing, whatever the memory."""


class SourceOrder:
    """Sorter of records, one of floats per row, by the row's number in the source.

    Records that do not fit in memory are partitioned into buckets, one per range of source rows, each of which fits.
    Source rows are 0 … n_rows − 1, each of them once; `scratch` is an empty directory, for the buckets.
    """

    def __init__(
        self, n_rows: int, n_columns: int, memory_bytes: int, scratch: str | os.PathLike[str]
    ) -> None:
        self._layout = Layout((np.dtype(np.int64), np.dtype((np.float64, (n_columns,)))))
        # a bucket is sorted while blocks of a quarter of its size are read
        fitting = memory_bytes // (16 * (1 + n_columns))
        self._bucket_rows = max(LEAST_ROWS, fitting, n_rows // (MAX_BUCKETS - 1))
        self._n_rows, self._n_columns, self._path = n_rows, n_columns, Path(scratch) / "run"
        self._ordered: np.ndarray | None = None
        if n_rows <= self._bucket_rows:
            self._ordered = np.empty((n_rows, n_columns))
        else:
            n_buckets = -(-n_rows // self._bucket_rows)
            waiting = max(2 * memory_bytes // 3, LEAST_ROWS * self._layout.record_bytes)
            self._writer = PartitionWriter(self._path, self._layout, n_buckets, waiting)

    def add(self, source_row: np.ndarray, records: np.ndarray) -> None:
        """Take rows: their numbers in the source, int64 (rows,), and records, float64 (rows, n_columns)."""
        if self._ordered is not None:
            self._ordered[source_row] = records
        else:
            bucket = (source_row // self._bucket_rows).astype(np.uint16)
            self._writer.append(bucket, Records((source_row, records)))

    def blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Yield all records in order, at most `rows` at a time."""
        for ordered in self._buckets():
            for row in range(0, len(ordered), rows):
                yield ordered[row : row + rows]

    def _buckets(self) -> Iterator[np.ndarray]:
        if self._ordered is not None:
            yield self._ordered
            return
        self._writer.close()
        del self._writer  # its memory
        with PartitionReader([self._path], self._layout) as reader:
            for bucket, start in enumerate(range(0, self._n_rows, self._bucket_rows)):
                ordered = np.empty((min(self._bucket_rows, self._n_rows - start), self._n_columns))
                for block in reader.blocks(bucket, self._bucket_rows * self._layout.record_bytes // 4):
                    source_row, records = block.fields
                    ordered[source_row - start] = records
                yield ordered

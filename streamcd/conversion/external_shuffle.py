"""External shuffle: rows in a random order that depends on the seed alone.

Every row has a key, a bijective hash of (seed, source row), so that keys never tie. Parsing writes runs, in which the
leading bits of its key are a row's bucket; writing shards reads a bucket from all runs and sorts it. To keep the order of
the source, buckets are segments of a run instead, and runs follow one another. If a single process converts and the rows
fit in its memory, they stay there.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..core.external_partition import Layout, PartitionReader, PartitionWriter, Records
from ..kernels.primitives import mix
from ..kernels.scatter import hash_numbers, sort_keys
from .rows import Rows, concatenate

MAX_BITS = 12
_N_SEGMENTS = 256  # of a run in the order of the source
_SPLIT_LIMIT = 40  # bits at which buckets are not split further: by then no two rows share them
_ROW_BYTES = 72
"""Memory of a row besides its entries: source row, label, weight, offset, key, and its part of the sort."""


def row_keys(source_row: np.ndarray, seed: int) -> np.ndarray:
    """Hash the source rows by a bijection that depends on the seed.

    Parameters
    ----------
    source_row : ndarray of int64
    seed : int
        Taken modulo 2^64.

    Returns
    -------
    ndarray of uint64
    """
    keys = np.empty(source_row.shape, np.uint64)
    hash_numbers(source_row, *_hash_parameters(seed), keys)
    return keys


@functools.cache
def _hash_parameters(seed: int) -> tuple[np.uint64, np.uint64]:
    golden = 0x9E3779B97F4A7C15
    first, second = mix.py_func(np.array([seed % 2**64, (seed + golden) % 2**64], dtype=np.uint64))
    return first, second


def _sorted_order(keys: np.ndarray) -> np.ndarray:
    order = np.empty(keys.size, np.int64)
    sort_keys(keys, np.empty((1 << keys.size.bit_length()) + 1, np.int64), order)
    return order


@dataclass(frozen=True)
class RunFormat:
    """Format of runs, shared by their writers and readers."""

    directory: Path
    seed: int | None  # None keeps the order of the source
    bits: int  # leading bits of the keys that make a bucket
    value_dtype: np.dtype
    weighted: bool

    @property
    def n_buckets(self) -> int:
        return _N_SEGMENTS if self.seed is None else 1 << self.bits

    def layout(self, wide: bool) -> Layout:
        """Return the layout of rows as records; `wide` if any index needs 64 bits."""
        fields = [np.dtype(np.int64), np.dtype(np.float64)] + [np.dtype(np.float64)] * self.weighted
        return Layout(tuple(fields), (np.dtype(np.int64 if wide else np.int32), self.value_dtype))

    def rows(self, records: Records) -> Rows:
        source_row, label, *weight = records.fields
        assert records.indptr is not None
        return Rows(source_row, label, weight[0] if weight else None, records.indptr, *records.items)

    def order(self, rows: Rows) -> np.ndarray:
        """Return the final order of rows."""
        if self.seed is None:
            return np.arange(rows.n_rows)
        return _sorted_order(row_keys(rows.source_row, self.seed))


class HeldRows:
    """All rows of the source in memory, with their final order, until they are released."""

    def __init__(self, rows: Rows, order: np.ndarray) -> None:
        self.rows, self.order = rows, order

    def release(self) -> None:
        """Give the memory back."""
        del self.rows, self.order


class RunWriter:
    """Writer of the rows of task `number`, to one run, or to several if indices become wide or segments too many."""

    def __init__(self, form: RunFormat, number: int, memory_bytes: int) -> None:
        self._form, self._number, self._memory_bytes = form, number, memory_bytes
        self._segment_bytes = max(memory_bytes // 32, 1)
        self._writer: PartitionWriter | None = None
        self._n_runs = self._n_bytes = 0  # the bytes are those of the run
        self._wide = False

    def append(self, rows: Rows, wide: bool) -> None:
        """Append the next rows of the source; `wide` if any index needs 64 bits."""
        segment = self._n_bytes // self._segment_bytes
        if wide != self._wide or (self._form.seed is None and segment >= _N_SEGMENTS):
            self._end_run()
            self._wide = wide
            segment = 0
        layout = self._form.layout(wide)
        if self._writer is None:
            path = self._form.directory / f"run-{self._number:07d}-{self._n_runs:07d}"
            self._writer = PartitionWriter(
                path, layout, self._form.n_buckets, self._memory_bytes, record_bytes=_ROW_BYTES
            )
            self._n_runs, self._n_bytes = self._n_runs + 1, 0
        fields = [rows.source_row, rows.label, *([] if rows.weight is None else [rows.weight])]
        records = Records(fields, rows.indptr, (rows.index, rows.value))
        self._writer.append(self._bucket(rows, segment), records)
        self._n_bytes += rows.n_rows * _ROW_BYTES + rows.n_entries * layout.item_bytes

    def _bucket(self, rows: Rows, segment: int) -> np.ndarray:
        if self._form.seed is None:
            return np.full(rows.n_rows, segment, np.uint16)
        keys = row_keys(rows.source_row, self._form.seed)
        return (keys >> np.uint64(64 - self._form.bits)).astype(np.uint16)

    def close(self, hold: bool = False) -> HeldRows | None:
        """Write the remaining rows; with `hold`, return all rows if they are in memory, and write nothing."""
        if hold and self._n_runs == 1 and self._writer is not None and (records := self._writer.hold()):
            rows = self._form.rows(records)
            return HeldRows(rows, self._form.order(rows))
        self._end_run()
        return None

    def _end_run(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None


# ---------------------------------------------------------------------------------------------------------------------
# Reading


@dataclass(frozen=True)
class Cell:
    """Consecutive rows of the final order that fit in memory: those of a bucket whose keys begin with `prefix`.

    `prefix` has `depth` bits; with none, the cell is the whole bucket.
    """

    bucket: int
    n_rows: int
    n_entries: int
    depth: int = 0
    prefix: int = 0


class RunReader:
    """Reader of buckets from all runs; a context manager, which closes their files.

    `wide` where any index needs 64 bits; `held` are all rows, where no run was written: one bucket of one cell.
    """

    def __init__(self, form: RunFormat, memory_bytes: int, wide: bool, held: HeldRows | None = None) -> None:
        self._form, self._memory_bytes, self._held = form, memory_bytes, held
        self._layout = form.layout(wide)
        self._readers: dict[int, PartitionReader] = {}
        self._loaded: tuple[Cell, Rows, np.ndarray] | None = None

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *exception: object) -> None:
        for reader in self._readers.values():
            reader.__exit__(*exception)

    @cached_property
    def _paths(self) -> list[Path]:
        return [index.with_suffix("") for index in sorted(self._form.directory.glob("run-*.index"))]

    @property
    def n_buckets(self) -> int:
        """Number of buckets; the rows of each come after those of the one before."""
        if self._held is not None:
            return 1
        return self._form.n_buckets * (len(self._paths) if self._form.seed is None else 1)

    def _bucket(self, bucket: int) -> tuple[PartitionReader, int]:
        """Return the reader of a bucket, and the bucket's number there."""
        run, number = divmod(bucket, self._form.n_buckets)
        if run not in self._readers:
            if self._form.seed is None:  # one run at a time is open
                self.__exit__(None)
                self._readers.clear()
            paths = [self._paths[run]] if self._form.seed is None else self._paths
            self._readers[run] = PartitionReader(paths, self._layout)
        return self._readers[run], number

    def cells(self, bucket: int) -> list[Cell]:
        """Cut a bucket into cells, in their order."""
        if self._held is not None:
            return [Cell(0, self._held.rows.n_rows, self._held.rows.n_entries)]
        reader, number = self._bucket(bucket)
        whole = Cell(bucket, *reader.size(number))
        if self._form.seed is None or self._n_bytes(whole.n_rows, whole.n_entries) <= self._memory_bytes:
            return [whole] if whole.n_rows else []
        return self._parts(whole)

    def _parts(self, whole: Cell) -> list[Cell]:
        """Cut a bucket that is too large by further bits of its keys."""
        keys, counts = self._keys_and_lengths(whole)
        depth, shared = self._form.bits, self._form.bits
        n_rows = n_entries = np.array([self._memory_bytes])
        # parts are gathered in blocks and joined
        while (self._n_bytes(n_rows, n_entries) > self._memory_bytes // 2).any() and depth < _SPLIT_LIMIT:
            depth += 2
            part = ((keys >> np.uint64(64 - depth)) & np.uint64((1 << (depth - shared)) - 1)).astype(np.int64)
            n_rows = np.bincount(part, minlength=1 << (depth - shared))
            n_entries = np.bincount(part, counts, len(n_rows)).astype(np.int64)
        first = whole.bucket << (depth - shared)
        return [
            Cell(whole.bucket, int(n_rows[i]), int(n_entries[i]), depth, first + i)
            for i in np.flatnonzero(n_rows).tolist()
        ]

    def _n_bytes(self, n_rows: Any, n_entries: Any) -> Any:
        return n_rows * _ROW_BYTES + n_entries * self._layout.item_bytes

    def lengths(self, cell: Cell) -> np.ndarray:
        """Count the entries of a cell's rows, in final order."""
        if self._held is not None:
            return np.diff(self._held.rows.indptr)[self._held.order]
        keys, counts = self._keys_and_lengths(cell)
        return counts if self._form.seed is None else counts[_sorted_order(keys)]

    def load(self, cell: Cell) -> tuple[Rows, np.ndarray]:
        """Return a cell's rows, and their final order; those of the last call are kept."""
        if self._held is not None:
            return self._held.rows, self._held.order
        if self._loaded is None or self._loaded[0] != cell:
            self._loaded = None
            rows = self._read(cell)
            self._loaded = cell, rows, self._form.order(rows)
        return self._loaded[1:]

    def _read(self, cell: Cell) -> Rows:
        reader, number = self._bucket(cell.bucket)
        if not cell.depth:
            return self._form.rows(reader.read(number))
        parts = []
        for records in reader.blocks(number, self._memory_bytes // 4):
            rows = self._form.rows(records)
            parts.append(rows.take(np.flatnonzero(self._chosen(cell, rows.source_row))))
        return concatenate(parts)

    def _chosen(self, cell: Cell, source_row: np.ndarray) -> np.ndarray:
        assert self._form.seed is not None
        return row_keys(source_row, self._form.seed) >> np.uint64(64 - cell.depth) == np.uint64(cell.prefix)

    def _keys_and_lengths(self, cell: Cell) -> tuple[np.ndarray, np.ndarray]:
        """Return the keys of a cell's rows (their source rows without a seed), and their numbers of entries, as stored."""
        reader, number = self._bucket(cell.bucket)
        records = reader.read(number, items=False)
        assert records.indptr is not None
        source_row, counts = records.fields[0], np.diff(records.indptr)
        if cell.depth:
            chosen = self._chosen(cell, source_row)
            source_row, counts = source_row[chosen], counts[chosen]
        return source_row if self._form.seed is None else row_keys(source_row, self._form.seed), counts

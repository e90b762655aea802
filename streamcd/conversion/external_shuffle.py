"""External shuffle: rows in a random order that depends on the seed alone.

Every row has a key, a bijective hash of (seed, source row), so that keys never tie. Parsing writes runs, in which the
leading bits of its key are a row's bucket; writing shards reads a bucket from all runs and sorts it. To keep the order of
the source, buckets are segments of a run instead, and runs follow one another. If a single process converts and the rows
fit in its memory, they stay there.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..core.external_partition import Layout, PartitionReader, PartitionWriter, Records
from ..kernels.primitives import mix
from ..kernels.scatter import hash_numbers, sort_keys
from .rows import Rows

MAX_BITS = 12
_N_SEGMENTS = 256  # of a run in the order of the source
_CUT_BITS, _MOST_BITS = 6, 40  # of keys by which a bucket is cut; by 40 bits no two rows share them
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

    def buckets(self, source_row: np.ndarray, bits: int, above: int = 0) -> np.ndarray:
        """Number the rows by `bits` bits of their keys, after the first `above`."""
        assert self.seed is not None
        keys = row_keys(source_row, self.seed) << np.uint64(above)
        return (keys >> np.uint64(64 - bits)).astype(np.uint16)

    def order(self, source_row: np.ndarray) -> np.ndarray:
        """Return the final order of rows."""
        if self.seed is None:
            return np.arange(source_row.size)
        order = np.empty(source_row.size, np.int64)
        room = np.empty((1 << source_row.size.bit_length()) + 1, np.int64)
        sort_keys(row_keys(source_row, self.seed), room, order)
        return order


class HeldRows(NamedTuple):
    """All rows of the source in memory, with their final order."""

    rows: Rows
    order: np.ndarray


class RunWriter:
    """Writer of the rows of task `number`, to one run, or to several if indices become wide or segments too many.

    A context manager, which closes the file of a run that an error cut short.
    """

    def __init__(self, form: RunFormat, number: int, memory_bytes: int) -> None:
        self._form, self._number, self._memory_bytes = form, number, memory_bytes
        self._segment_bytes = max(memory_bytes // 32, 1)
        self._writer: PartitionWriter | None = None
        self._n_runs = self._n_bytes = 0  # the bytes are those of the run
        self._wide = False

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None and self._writer is not None:
            self._writer.__exit__(kind)

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
        if self._form.seed is None:
            bucket = np.full(rows.n_rows, segment, np.uint16)
        else:
            bucket = self._form.buckets(rows.source_row, self._form.bits)
        self._writer.append(bucket, Records(fields, rows.indptr, (rows.index, rows.value)))
        self._n_bytes += rows.n_rows * _ROW_BYTES + rows.n_entries * layout.item_bytes

    def close(self, hold: bool = False) -> HeldRows | None:
        """Write the remaining rows; with `hold`, return all rows if they are in memory, and write nothing."""
        if hold and self._n_runs == 1 and self._writer is not None and (records := self._writer.hold()):
            rows = self._form.rows(records)
            return HeldRows(rows, self._form.order(rows.source_row))
        self._end_run()
        return None

    def _end_run(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None


# ---------------------------------------------------------------------------------------------------------------------
# Reading


class Cell(NamedTuple):
    """Consecutive rows of the final order that fit in memory: a bucket of one run, or of all parsed ones."""

    run: str  # empty for all
    bucket: int
    n_rows: int
    n_entries: int


class RunReader:
    """Reader of cells; a context manager, which closes their files.

    `wide` where any index needs 64 bits; `held` are all rows, where no run was written: one bucket of one cell.
    """

    def __init__(self, form: RunFormat, memory_bytes: int, wide: bool, held: HeldRows | None = None) -> None:
        self._form, self._memory_bytes, self._held = form, memory_bytes, held
        self._layout = form.layout(wide)
        self._runs = sorted(path.name for path in form.directory.glob("run-*"))
        self._opened: tuple[str, PartitionReader] | None = None
        self._loaded: tuple[Cell, Rows, np.ndarray] | None = None

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._opened is not None:
            self._opened[1].__exit__(*exception)
            self._opened = None

    def _reader(self, run: str) -> PartitionReader:
        if self._opened is None or self._opened[0] != run:
            self.__exit__(None)
            runs = [run] if run else self._runs
            self._opened = run, PartitionReader([self._form.directory / name for name in runs], self._layout)
        return self._opened[1]

    @property
    def n_buckets(self) -> int:
        """Number of buckets; the rows of each come after those of the one before."""
        if self._held is not None:
            return 1
        return self._form.n_buckets * (len(self._runs) if self._form.seed is None else 1)

    def cells(self, bucket: int) -> Iterator[Cell]:
        """Cut a bucket into cells, in their order."""
        if self._held is not None:
            yield Cell("", 0, self._held.rows.n_rows, self._held.rows.n_entries)
        elif self._form.seed is None:
            run, segment = divmod(bucket, self._form.n_buckets)
            cell = self._cell(self._runs[run], segment)
            yield from [cell] if cell.n_rows else []
        else:
            yield from self._cut(self._cell("", bucket), self._form.bits)

    def _cell(self, run: str, bucket: int) -> Cell:
        return Cell(run, bucket, *self._reader(run).size(bucket))

    def _cut(self, cell: Cell, bits: int) -> Iterator[Cell]:
        """Cut a bucket of rows that share `bits` bits of their keys by further ones, until its parts fit."""
        n_bytes = cell.n_rows * _ROW_BYTES + cell.n_entries * self._layout.item_bytes
        if n_bytes <= self._memory_bytes or cell.n_rows == 1 or bits >= _MOST_BITS:
            yield from [cell] if cell.n_rows else []
            return
        run = f"cut-{cell.run}-{cell.bucket}"
        with PartitionWriter(
            self._form.directory / run, self._layout, 1 << _CUT_BITS, self._memory_bytes // 2
        ) as writer:
            for records in self._reader(cell.run).blocks(cell.bucket, self._memory_bytes // 4):
                writer.append(self._form.buckets(records.fields[0], _CUT_BITS, bits), records)
        for bucket in range(1 << _CUT_BITS):
            yield from self._cut(self._cell(run, bucket), bits + _CUT_BITS)

    def lengths(self, cell: Cell) -> np.ndarray:
        """Count the entries of a cell's rows, in final order."""
        if self._held is not None:
            return np.diff(self._held.rows.indptr)[self._held.order]
        records = self._reader(cell.run).read(cell.bucket, items=False)
        assert records.indptr is not None
        return np.diff(records.indptr)[self._form.order(records.fields[0])]

    def load(self, cell: Cell) -> tuple[Rows, np.ndarray]:
        """Return a cell's rows, and their final order; those of the last call are kept."""
        if self._held is not None:
            return self._held.rows, self._held.order
        if self._loaded is None or self._loaded[0] != cell:
            self._loaded = None
            rows = self._form.rows(self._reader(cell.run).read(cell.bucket))
            self._loaded = cell, rows, self._form.order(rows.source_row)
        return self._loaded[1:]

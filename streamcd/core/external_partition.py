"""Partitioning of records into buckets on disk, in bounded memory: the common part of every external sort of this package.

A record has fields, one value each, and may have items, any number of values each (the entries of a row, the bytes of a
line). The caller numbers the bucket of each record and appends it to a `PartitionWriter`, which writes a *run*: a sequence
of spills, each at most one memory's worth of records sorted by bucket. A `PartitionReader` reads a bucket from any number of
runs, in the order in which its records were written. The caller chooses the buckets (ranges of a key, leading bits of a
hash), and sorts within a bucket in memory. A bucket that does not fit in memory is read in blocks and partitioned again.

A run is a file of the spills one after another, column by column; an index, of where every bucket begins in them; and a
description of columns and spills, with its length.
"""

from __future__ import annotations

import functools
import json
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..kernels import rows as kernels
from .errors import file_named

MAX_BUCKETS = 1 << 16
_MAX_RECORDS = 1 << 31  # in memory: they are sorted by 32-bit indices
_BLOCK_BYTES = 2 << 20  # sorted and written at a time
_MAX_OPEN_RUNS = 256  # the usual limit is 1,024 open files a process


class Layout(NamedTuple):
    """Dtypes of a record's fields and items; subarray dtypes are allowed."""

    fields: tuple[np.dtype, ...]
    items: tuple[np.dtype, ...] = ()

    @property
    def record_bytes(self) -> int:
        """Bytes of a record in a writer's memory besides its items: fields, bucket, sort index and length."""
        return sum(dtype.itemsize for dtype in self.fields) + (14 if self.items else 6)

    @property
    def item_bytes(self) -> int:
        return sum(dtype.itemsize for dtype in self.items)

    @property
    def by_record(self) -> tuple[np.dtype, ...]:
        """Dtypes of the columns with a value for each record: its fields, and the number of its items."""
        return (*self.fields, np.dtype(np.int64)) if self.items else self.fields

    def places(self, offset: int, n_records: int, n_items: int) -> list[int]:
        """Return where each column begins in a spill, and where the last one ends."""
        sizes = [n_records * dtype.itemsize for dtype in self.by_record]
        sizes += [n_items * dtype.itemsize for dtype in self.items]
        return [offset + sum(sizes[:number]) for number in range(len(sizes) + 1)]


class Records(NamedTuple):
    """Records as arrays of their fields; record i has the items ``indptr[i]:indptr[i + 1]``."""

    fields: Sequence[np.ndarray]
    indptr: np.ndarray | None = None
    items: Sequence[np.ndarray] = ()

    @property
    def size(self) -> int:
        return len(self.fields[0])

    def slice(self, start: int, stop: int) -> Records:
        """Return the records ``start:stop``, without a copy."""
        fields = [field[start:stop] for field in self.fields]
        if self.indptr is None:
            return Records(fields)
        first, end = self.indptr[[start, stop]].tolist()
        return Records(
            fields, self.indptr[start : stop + 1] - first, [item[first:end] for item in self.items]
        )

    def take(self, order: np.ndarray, ends: np.ndarray | None = None) -> Records:
        """Copy the records numbered `order`, in that order; `ends` are those of their items, if they are known."""
        rows = order.astype(np.intp, copy=False)  # once for all fields
        fields = [np.take(field, rows, axis=0, mode="clip") for field in self.fields]
        if self.indptr is None:
            return Records(fields)
        if ends is None:
            ends = np.append(0, np.cumsum(np.diff(self.indptr)[order]))
        items = [np.empty((ends[-1] - ends[0], *item.shape[1:]), item.dtype) for item in self.items]
        for item, out in zip(self.items, items, strict=True):
            kernels.take_column(order, self.indptr, item, out)
        return Records(fields, ends - ends[0], items)


class Ranges:
    """Consecutive ranges of integers from 0 on, as buckets of keys; `ends` ascend, exclusive."""

    _TABLE_BITS = 18

    def __init__(self, ends: Sequence[int]) -> None:
        self._ends = np.asarray(ends, np.int64)
        last = int(self._ends[-1]) - 1
        self._shift = max(last.bit_length() - self._TABLE_BITS, 0)
        cells = np.arange((last >> self._shift) + 1) << self._shift
        self._first_bucket = np.searchsorted(self._ends, cells, side="right")

    def number(self, key: np.ndarray) -> np.ndarray:
        """Return the number of the range that holds each key; every key must be in one."""
        bucket = np.empty(len(key), np.uint16)
        kernels.number_by_ranges(key, self._ends, self._first_bucket, self._shift, bucket)
        return bucket


# ---------------------------------------------------------------------------------------------------------------------
# Writing


class PartitionWriter:
    """Writer of one run; a context manager.

    `memory_bytes` bounds the records in memory; the system allocates pages only as they are filled, whatever the shares of
    records and items. `record_bytes` is counted per record besides its items, if the caller needs more for it than the
    writer does.
    """

    def __init__(
        self, path: Path, layout: Layout, n_buckets: int, memory_bytes: int, *, record_bytes: int = 0
    ) -> None:
        assert n_buckets <= MAX_BUCKETS
        self._path = path
        self._layout = layout
        self._memory_bytes = memory_bytes
        self._record_bytes = max(record_bytes, layout.record_bytes)
        most = min(max(memory_bytes // self._record_bytes, 1), _MAX_RECORDS)
        most_items = max(memory_bytes // layout.item_bytes, 1) if layout.items else 0
        self._bucket = np.empty(most, np.uint16)
        self._fields = [np.empty(most, dtype) for dtype in layout.fields]
        self._items = [np.empty(most_items, dtype) for dtype in layout.items]
        self._indptr = np.zeros(most + 1 if layout.items else 1, np.int64)
        self._n = self._n_items = 0
        self._record_starts = np.zeros(n_buckets + 1, np.int64)
        self._file = open(path, "wb")  # noqa: SIM115 - closed in close()
        self._end = 0  # of the file
        self._spills: list[tuple[int, int, int]] = []  # offset, records, items
        self._starts: list[np.ndarray] = []  # where the records and items of each bucket start in each

    def __enter__(self) -> PartitionWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            with suppress(OSError):  # of a full disk, which the first error has told
                self._file.close()

    def append(self, bucket: np.ndarray, records: Records) -> None:
        """Append records, which are copied, with the numbers of their buckets."""
        n = self._n + records.size
        n_items = self._n_items
        if records.indptr is not None:
            n_items += int(records.indptr[-1] - records.indptr[0])
        n_bytes = n * self._record_bytes + n_items * self._layout.item_bytes
        if n <= len(self._bucket) and n_bytes <= self._memory_bytes:
            self._bucket[self._n : n] = bucket
            for held, field in zip(self._fields, records.fields, strict=True):
                held[self._n : n] = field
            if records.indptr is not None:
                first, stop = records.indptr[[0, -1]].tolist()
                self._indptr[self._n + 1 : n + 1] = records.indptr[1:] + (self._n_items - first)
                for held, item in zip(self._items, records.items, strict=True):
                    held[self._n_items : n_items] = item[first:stop]
            self._n = n
            self._n_items = n_items
        elif self._n:
            self.spill()
            self.append(bucket, records)
        elif records.size > 1:  # more than the memory holds
            half = records.size // 2
            self.append(bucket[:half], records.slice(0, half))
            self.append(bucket[half:], records.slice(half, records.size))
        else:
            self._write(bucket, records)

    def spill(self) -> None:
        """Write the records in memory."""
        if self._n:
            self._write(self._bucket[: self._n], self._held())
        self._n = self._n_items = 0

    def _held(self) -> Records:
        indptr = self._indptr[: self._n + 1] if self._items else None
        items = [item[: self._n_items] for item in self._items]
        return Records([field[: self._n] for field in self._fields], indptr, items)

    def hold(self) -> Records | None:
        """Return all records, without a copy, in place of a run; None if some were spilled already."""
        if self._spills:
            return None
        self._file.close()
        return self._held()

    def _write(self, bucket: np.ndarray, records: Records) -> None:
        order = np.empty(records.size, np.uint32)
        kernels.order_by_bucket(bucket, self._record_starts, order)
        ends = np.zeros(records.size + 1, np.int64)
        if records.indptr is not None:
            np.cumsum(np.diff(records.indptr)[order], out=ends[1:])
        self._starts.append(np.stack([self._record_starts, ends[self._record_starts]]))
        self._spills.append((self._end, records.size, int(ends[-1])))
        *offsets, self._end = self._layout.places(*self._spills[-1])
        with file_named(self._path):
            for start, stop in blocks_of(self._layout, ends, _BLOCK_BYTES):
                taken = records.take(order[start:stop], ends[start : stop + 1])
                lengths = [] if taken.indptr is None else [np.diff(taken.indptr)]
                for number, column in enumerate((*taken.fields, *lengths, *taken.items)):
                    self._file.seek(offsets[number])
                    offsets[number] += self._file.write(_bytes(column))

    def close(self) -> None:
        """Write the remaining records, then the index."""
        self.spill()
        with file_named(self._path):
            self._file.seek(self._end)
            # bucket by bucket, so that one read gets all about a bucket
            starts = (
                np.array(self._starts, np.int64).reshape(-1, 2, len(self._record_starts)).transpose(2, 0, 1)
            )
            self._file.write(_bytes(np.ascontiguousarray(starts)))
            dtypes = [[(dtype.base.str, dtype.shape) for dtype in kinds] for kinds in self._layout]
            about = json.dumps([self._end, self._spills, *dtypes]).encode()
            self._file.write(about + len(about).to_bytes(8, "little"))
            self._file.close()


def _bytes(column: np.ndarray) -> memoryview:
    return column.reshape(-1).view(np.uint8).data


def blocks_of(layout: Layout, ends: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Cut records whose items end at ``ends[1:]`` into ranges of about so many bytes, or of a single record."""
    start = 0
    most_items = most // max(layout.item_bytes, 1)
    while start < ends.size - 1:
        stop = int(np.searchsorted(ends, ends[start] + most_items, side="right")) - 1
        stop = max(min(stop, start + most // layout.record_bytes), start + 1)
        yield start, stop
        start = stop


# ---------------------------------------------------------------------------------------------------------------------
# Reading


class _Run:
    """A run, open for reading; where buckets begin is read on demand and not kept in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        length = np.empty(1, "<i8")
        size = os.fstat(self._file).st_size
        self._fill(length, size - 8)
        about = np.empty(length[0], np.uint8)
        self._fill(about, size - 8 - about.size)
        self._index, self._spills, *dtypes = json.loads(bytes(about))
        self._layout = Layout(
            *(tuple(np.dtype((kind, tuple(shape))) for kind, shape in kinds) for kinds in dtypes)
        )

    def extents(self, bucket: int) -> Iterator[_Extent]:
        """Iterate over the bucket's extents, one in each spill that holds records of it."""
        starts = np.empty((2, len(self._spills), 2), np.int64)
        self._fill(starts, self._index + starts.nbytes // 2 * bucket)
        for spill, (start, item_start), (stop, item_stop) in zip(self._spills, *starts.tolist(), strict=True):
            if stop > start:
                yield _Extent(self, spill, start, stop, item_start, item_stop)

    def read(self, extent: _Extent, columns: Sequence[np.ndarray]) -> None:
        """Fill arrays with an extent's fields, lengths (if there are items) and items, or only the first few of these."""
        by_record = self._layout.by_record
        dtypes = (*by_record, *self._layout.items)
        offsets = self._layout.places(*extent.spill)
        for number, (out, dtype, offset) in enumerate(zip(columns, dtypes, offsets, strict=False)):
            start = extent.start if number < len(by_record) else extent.item_start
            column = out if out.dtype == dtype.base else np.empty(out.shape, dtype.base)
            self._fill(column, offset + start * dtype.itemsize)
            if column is not out:
                out[:] = column

    def _fill(self, column: np.ndarray, offset: int) -> None:
        """Read bytes from `offset` on."""
        view = _bytes(column)
        done = 0
        while done < len(view):
            n_bytes = os.preadv(self._file, [view[done:]], offset + done)
            if not n_bytes:
                raise OSError(f"{self._path}: a temporary file is shorter than what was written to it")
            done += n_bytes


class _Extent(NamedTuple):
    """A bucket's part of a spill."""

    run: _Run
    spill: tuple[int, int, int]  # its offset, records, items
    start: int
    stop: int
    item_start: int
    item_stop: int


class PartitionReader:
    """Reader of buckets from runs, in the order of the runs; a context manager, which closes their files.

    Runs may have been written with other dtypes than those of `layout`: values are converted.
    """

    def __init__(self, paths: Sequence[Path], layout: Layout) -> None:
        self._paths = paths
        self._layout = layout
        self._run = functools.lru_cache(_MAX_OPEN_RUNS)(_Run)

    def __enter__(self) -> PartitionReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._run.cache_clear()

    def _extents(self, bucket: int) -> Iterator[_Extent]:
        for path in self._paths:
            yield from self._run(path).extents(bucket)

    def size(self, bucket: int) -> tuple[int, int]:
        """Count the records and items of a bucket."""
        sizes = [(stop - start, end - first) for _, _, start, stop, first, end in self._extents(bucket)]
        return sum(n_records for n_records, _ in sizes), sum(n_items for _, n_items in sizes)

    def read(self, bucket: int, *, items: bool = True) -> Records:
        """Read a whole bucket, with or without its items."""
        return self._read(self._extents(bucket), *self.size(bucket), items)

    def blocks(self, bucket: int, max_bytes: int) -> Iterator[Records]:
        """Read a bucket in blocks of about `max_bytes`, or of one record if that is larger."""
        for extent in self._extents(bucket):
            n_records = extent.stop - extent.start
            ends = self._read([extent], n_records, 0, items=False).indptr
            ends = np.zeros(n_records + 1, np.int64) if ends is None else ends
            for start, stop in blocks_of(self._layout, ends, max_bytes):
                first, end = ends[[start, stop]].tolist()
                part = extent._replace(
                    start=extent.start + start,
                    stop=extent.start + stop,
                    item_start=extent.item_start + first,
                    item_stop=extent.item_start + end,
                )
                yield self._read([part], stop - start, end - first)

    def _read(self, extents: Iterable[_Extent], n_records: int, n_items: int, items: bool = True) -> Records:
        fields = [np.empty(n_records, dtype) for dtype in self._layout.fields]
        arrays = [np.empty(n_items, dtype) for dtype in self._layout.items] if items else []
        indptr = np.zeros(n_records + 1, np.int64) if self._layout.items else None
        by_record = fields if indptr is None else [*fields, indptr[1:]]
        record = item = 0
        for extent in extents:
            stop = record + extent.stop - extent.start
            item_stop = item + extent.item_stop - extent.item_start
            columns = [column[record:stop] for column in by_record]
            extent.run.read(extent, columns + [column[item:item_stop] for column in arrays])
            record = stop
            item = item_stop
        return Records(fields, indptr if indptr is None else np.cumsum(indptr, out=indptr), arrays)

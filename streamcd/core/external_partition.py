"""Partitioning of records into buckets on disk, in bounded memory: the common part of every external sort of this package.

A record has fields, one value each, and may have items, any number of values each (the entries of a row, the bytes of a
line). The caller numbers the bucket of each record and appends it to a `PartitionWriter`, which writes a *run*: a sequence
of spills, each one memory's worth of records sorted by bucket. A `PartitionReader` reads a bucket from any number of runs,
in the order in which its records were written. The caller chooses the buckets (ranges of a key, leading bits of a hash),
and sorts within a bucket in memory. A bucket that does not fit in memory is read in blocks and partitioned again.

A run is a file of the spills one after another, column by column, sorted by bucket; an index, of where every bucket begins
in them and of the offsets and sizes of the spills; and a description of the columns.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..kernels import rows as kernels
from .errors import file_named

MAX_BUCKETS = 1 << 16
_MAX_RECORDS = 1 << 31  # in memory: they are sorted by 32-bit indices
_BLOCK_BYTES = 1 << 20  # sorted and written at a time
_HEADER_BYTES = 512  # at the end of a run
_MAX_OPEN_RUNS = 256  # the usual limit is 1,024 open files a process


class Layout(NamedTuple):
    """Dtypes of a record's fields and items; subarray dtypes are allowed."""

    fields: tuple[np.dtype, ...]
    items: tuple[np.dtype, ...] = ()

    @property
    def record_bytes(self) -> int:
        """Bytes of a record in a writer's memory besides its items: fields, bucket, sort index and length."""
        return sum(dtype.itemsize for dtype in self.fields) + 6 + (8 if self.items else 0)

    @property
    def item_bytes(self) -> int:
        return sum(dtype.itemsize for dtype in self.items)


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
        first, end = int(self.indptr[start]), int(self.indptr[stop])
        return Records(
            fields, self.indptr[start : stop + 1] - first, [item[first:end] for item in self.items]
        )

    def take(self, order: np.ndarray) -> Records:
        """Copy the records numbered `order`, in that order."""
        fields = [np.take(field, order, axis=0, mode="clip") for field in self.fields]
        if self.indptr is None:
            return Records(fields)
        indptr = np.zeros(len(order) + 1, np.int64)
        np.cumsum(self.indptr[order + 1] - self.indptr[order], out=indptr[1:])
        n_items = int(indptr[-1])
        return Records(
            fields, indptr, [_take_items(item, self.indptr, order, n_items) for item in self.items]
        )


def _take_items(items: np.ndarray, indptr: np.ndarray, order: np.ndarray, n_items: int) -> np.ndarray:
    out = np.empty((n_items, *items.shape[1:]), items.dtype)
    words = _words(items)
    kernels.take_items(order, indptr, words.shape[1], words.reshape(-1), _words(out).reshape(-1))
    return out


def _words(column: np.ndarray) -> np.ndarray:
    """View a column as unsigned words, shape (n, words per element)."""
    element_bytes = column.itemsize * int(np.prod(column.shape[1:], dtype=np.int64))
    width = next(width for width in (8, 4, 2, 1) if element_bytes % width == 0)
    return column.view(np.uint8).reshape(-1).view(f"u{width}").reshape(len(column), element_bytes // width)


class Ranges:
    """Consecutive ranges of integers, as buckets of keys: the first begins at `start`; `ends` ascend, exclusive."""

    _TABLE_BITS = 18

    def __init__(self, start: int, ends: Sequence[int] | np.ndarray) -> None:
        self._start, self._ends = start, np.asarray(ends, np.int64)
        width = int(self._ends[-1]) - start
        self._shift = max((width - 1).bit_length() - self._TABLE_BITS, 0)
        cells = (np.arange(((width - 1) >> self._shift) + 1) << self._shift) + start
        self._first_bucket = np.searchsorted(self._ends, cells, side="right")

    def number(self, key: np.ndarray) -> np.ndarray:
        """Return the number of the range that holds each key; every key must be in one."""
        bucket = np.empty(len(key), np.uint16)
        kernels.number_by_ranges(key, self._ends, self._first_bucket, self._shift, self._start, bucket)
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
        self,
        path: Path,
        layout: Layout,
        n_buckets: int,
        memory_bytes: int,
        *,
        record_bytes: int = 0,
    ) -> None:
        assert n_buckets <= MAX_BUCKETS
        self._record_bytes, self._item_bytes = max(record_bytes, layout.record_bytes), layout.item_bytes
        self._path, self._layout, self._memory_bytes = path, layout, memory_bytes
        most = min(max(memory_bytes // self._record_bytes, 1), _MAX_RECORDS)
        most_items = max(memory_bytes // layout.item_bytes, 1) if layout.items else 0
        self._bucket = np.empty(most, np.uint16)
        self._fields = [np.empty(most, dtype) for dtype in layout.fields]
        self._items = [np.empty(most_items, dtype) for dtype in layout.items]
        self._indptr = np.zeros(most + 1 if layout.items else 1, np.int64)
        self._n = self._n_items = 0
        self._record_starts = np.zeros(n_buckets + 1, np.int64)
        self._file = open(path, "wb")  # noqa: SIM115 - closed in close()
        # for each: offset, records, items, and where the records and items of each bucket start
        self._spills: list[tuple[int, int, int, np.ndarray]] = []

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
        start = 0
        while start < records.size:
            stop = self._fitting(records, start)
            if stop > start:
                self._hold(bucket[start:stop], records.slice(start, stop))
            elif self._n:
                self.spill()
            else:  # a single record larger than the memory
                stop = start + 1
                self._write(bucket[start:stop], records.slice(start, stop))
            start = stop

    def _fitting(self, records: Records, start: int) -> int:
        """Return the end of the records from `start` on for which there is room."""
        room = self._memory_bytes - self._n * self._record_bytes - self._n_items * self._item_bytes
        most = min(len(self._bucket) - self._n, records.size - start)
        if records.indptr is None:
            return start + most
        ends = records.indptr[start + 1 : start + 1 + most] - records.indptr[start]
        if most and most * self._record_bytes + int(ends[-1]) * self._item_bytes <= room:
            return start + most
        used = ends * self._item_bytes + self._record_bytes * np.arange(1, most + 1)
        return start + int(np.searchsorted(used, room, side="right"))

    def _hold(self, bucket: np.ndarray, records: Records) -> None:
        start, stop = self._n, self._n + records.size
        self._bucket[start:stop] = bucket
        for held, field in zip(self._fields, records.fields, strict=True):
            held[start:stop] = field
        self._n = stop
        if records.indptr is None:
            return
        self._indptr[start + 1 : stop + 1] = records.indptr[1:] + self._n_items
        first, self._n_items = self._n_items, self._n_items + int(records.indptr[-1])
        for held, item in zip(self._items, records.items, strict=True):
            held[first : self._n_items] = item

    def spill(self) -> None:
        """Write the records in memory."""
        if self._n:
            self._write(self._bucket[: self._n], self._held())
        self._n = self._n_items = 0

    def _held(self) -> Records:
        indptr = self._indptr[: self._n + 1] if self._layout.items else None
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
        lengths = [] if records.indptr is None else [np.diff(records.indptr)]
        ends = np.zeros(records.size + 1, np.int64)
        for length in lengths:
            np.cumsum(length[order], out=ends[1:])
        starts = np.stack([self._record_starts, ends[self._record_starts]])
        self._spills.append((self._file.tell(), records.size, int(ends[-1]), starts))
        step = max(_BLOCK_BYTES // self._layout.record_bytes, 1)
        with file_named(self._path):
            for field in (*records.fields, *lengths):
                for start in range(0, records.size, step):
                    part = order[start : start + step]
                    self._file.write(_bytes(np.take(field, part, axis=0, mode="clip")))
            for item in records.items:
                for start, stop in _cut_ranges(ends, _BLOCK_BYTES // item.itemsize):
                    n_items = int(ends[stop] - ends[start])
                    assert records.indptr is not None
                    self._file.write(_bytes(_take_items(item, records.indptr, order[start:stop], n_items)))

    def close(self) -> None:
        """Write the remaining records, then the index."""
        self.spill()
        with file_named(self._path):
            index = self._file.tell()
            # bucket by bucket, so that one read gets all about a bucket
            starts = np.array([spill[3] for spill in self._spills], np.int64)
            starts = starts.reshape(-1, 2, len(self._record_starts)).transpose(2, 0, 1)
            self._file.write(_bytes(np.ascontiguousarray(starts)))
            self._file.write(_bytes(np.array([spill[:3] for spill in self._spills], np.int64)))
            header = [index, len(self._record_starts), len(self._spills), *map(_describe, self._layout)]
            self._file.write(json.dumps(header).encode().ljust(_HEADER_BYTES))
            self._file.close()


def _bytes(column: np.ndarray) -> memoryview:
    return column.reshape(-1).view(np.uint8).data


def _cut_ranges(ends: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Cut records that end at ``ends[1:]`` into ranges that span at most `most`, or hold a single record."""
    start = 0
    while start < len(ends) - 1:
        stop = max(int(np.searchsorted(ends, ends[start] + most, side="right")) - 1, start + 1)
        yield start, stop
        start = stop


def _describe(dtypes: Sequence[np.dtype]) -> list[tuple[str, tuple[int, ...]]]:
    return [(dtype.base.str, dtype.shape) for dtype in dtypes]


# ---------------------------------------------------------------------------------------------------------------------
# Reading


class _Run:
    """A run, open for reading; where buckets begin is read on demand and not kept in memory."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115
        header = np.empty(_HEADER_BYTES, np.uint8)
        self._fill(header, os.fstat(self._file.fileno()).st_size - _HEADER_BYTES)
        self._index, n_starts, n_spills, fields, items = json.loads(bytes(header))
        counts = [("i8", ())] if items else []
        self._fields, self._items = (
            [np.dtype((kind, tuple(shape))) for kind, shape in kinds] for kinds in ([*fields, *counts], items)
        )
        spills = np.empty((n_spills, 3), np.int64)
        self._fill(spills, self._index + 16 * n_spills * n_starts)
        self._spills: list[tuple[int, int, int]] = spills.tolist()

    def extents(self, bucket: int) -> Iterator[_Extent]:
        """Iterate over the bucket's extents, one in each spill that holds records of it."""
        starts = np.empty((2, len(self._spills), 2), np.int64)
        self._fill(starts, self._index + starts.nbytes // 2 * bucket)
        for spill, (start, item_start), (stop, item_stop) in zip(self._spills, *starts.tolist(), strict=True):
            if stop > start:
                yield _Extent(self, spill, start, stop, item_start, item_stop)

    def read(self, extent: _Extent, columns: Sequence[np.ndarray]) -> None:
        """Fill arrays with an extent's fields, lengths (if there are items) and items, or only the first few of these."""
        offset, n_records, n_items = extent.spill
        kinds = [(dtype, n_records, extent.start) for dtype in self._fields]
        kinds += [(dtype, n_items, extent.item_start) for dtype in self._items]
        for (dtype, count, start), out in zip(kinds, columns, strict=False):
            column = out if out.dtype == dtype.base else np.empty(out.shape, dtype.base)
            self._fill(column, offset + start * dtype.itemsize)
            if column is not out:
                out[:] = column
            offset += count * dtype.itemsize

    def _fill(self, column: np.ndarray, offset: int) -> None:
        """Read bytes from `offset` on."""
        view, done = _bytes(column), 0
        while done < len(view):
            n_bytes = os.preadv(self._file.fileno(), [view[done:]], offset + done)
            if not n_bytes:
                raise OSError(f"{self._file.name}: a temporary file is shorter than what was written to it")
            done += n_bytes

    def close(self) -> None:
        self._file.close()


class _Extent(NamedTuple):
    """A bucket's part of a spill."""

    run: _Run
    spill: tuple[int, int, int]  # its offset, records, items
    start: int
    stop: int
    item_start: int
    item_stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def n_items(self) -> int:
        return self.item_stop - self.item_start


class PartitionReader:
    """Reader of buckets from runs, in the order of the runs; a context manager, which closes their files.

    Runs may have been written with other dtypes than those of `layout`: values are converted.
    """

    def __init__(self, paths: Sequence[Path], layout: Layout) -> None:
        self._paths, self._layout = paths, layout
        self._open: OrderedDict[Path, _Run] = OrderedDict()

    def __enter__(self) -> PartitionReader:
        return self

    def __exit__(self, *_: object) -> None:
        for run in self._open.values():
            run.close()
        self._open.clear()

    def _extents(self, bucket: int) -> Iterator[_Extent]:
        for path in self._paths:
            if path not in self._open:  # a bounded number stays open
                if len(self._open) >= _MAX_OPEN_RUNS:
                    self._open.popitem(last=False)[1].close()
                self._open[path] = _Run(path)
            yield from self._open[path].extents(bucket)

    def size(self, bucket: int) -> tuple[int, int]:
        """Count the records and items of a bucket."""
        sizes = [(extent.size, extent.n_items) for extent in self._extents(bucket)]
        return sum(n_records for n_records, _ in sizes), sum(n_items for _, n_items in sizes)

    def read(self, bucket: int, *, items: bool = True) -> Records:
        """Read a whole bucket, with or without its items."""
        # lazily, extent by extent: opening the next run may close the one before
        return self._read(self._extents(bucket), *self.size(bucket), items)

    def blocks(self, bucket: int, max_bytes: int) -> Iterator[Records]:
        """Read a bucket in blocks of about `max_bytes`, or of one record if that is larger."""
        layout = self._layout
        for extent in self._extents(bucket):
            starts = self._read([extent], extent.size, 0, items=False).indptr if layout.items else None
            indptr = np.zeros(extent.size + 1, np.int64) if starts is None else starts
            ends = indptr * layout.item_bytes + np.arange(indptr.size) * layout.record_bytes
            for start, stop in _cut_ranges(ends, max_bytes):
                items = (indptr[[start, stop]] + extent.item_start).tolist()
                records = extent.start + start, extent.start + stop
                part = _Extent(extent.run, extent.spill, *records, *items)
                yield self._read([part], part.size, part.n_items)

    def _read(self, extents: Iterable[_Extent], n_records: int, n_items: int, items: bool = True) -> Records:
        fields = [np.empty(n_records, dtype) for dtype in self._layout.fields]
        indptr = np.zeros(n_records + 1, np.int64)
        found = [np.empty(n_items, dtype) for dtype in self._layout.items] if items else []
        by_record = [*fields, indptr[1:]] if self._layout.items else fields
        record = item = 0
        for extent in extents:
            stop, item_stop = record + extent.size, item + extent.n_items
            columns = [column[record:stop] for column in by_record]
            extent.run.read(extent, columns + [column[item:item_stop] for column in found])
            record, item = stop, item_stop
        if not self._layout.items:
            return Records(fields)
        return Records(fields, np.cumsum(indptr, out=indptr), found)

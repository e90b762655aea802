"""External shuffle: rows in a random order that depends on the seed alone.

Every row has a key, a bijective hash of (seed, source row), so that keys never tie. Parsing writes runs, in which the
leading bits of its key are a row's bucket; writing shards reads a bucket from all runs and sorts it. To keep the order of
the source, buckets are segments of a run instead, and runs follow one another. If a single process converts and the rows
fit in its memory, they stay there.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..core.errors import DataError
from ..core.external_partition import Layout, PartitionReader, PartitionWriter, Records
from ..core.parallel import Tell, ahead
from ..dataset.source_features import Scaling
from ..dataset.writer import Part, PartWriter
from ..kernels.primitives import mix
from .feature_statistics import Summing
from .numbering import Numberer, Numbering
from .rows import Rows

MAX_BITS = 12
_N_SEGMENTS = 256  # of a run in the order of the source
_CUT_BITS, _MOST_BITS = 6, 40  # of keys by which a bucket is cut; by 40 bits no two rows share them
_ROW_BYTES = 72
"""Memory of a row besides its entries: source row, label, weight, offset, key, and its part of the sort."""

_DISK_ROW_BYTES = 16
"""Bytes counted for a row of a chunk, so that chunks of nearly empty rows do not have a million rows."""

_LENGTHS_AT_A_TIME = 1 << 16


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
    first, second = _mix(np.array([seed % 2**64, (seed + _GOLDEN) % 2**64], np.uint64))
    return _mix(_mix(source_row.astype(np.uint64) ^ first) + second)


_GOLDEN = 0x9E3779B97F4A7C15
_mix: Callable[[np.ndarray], np.ndarray] = mix.py_func


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

    def buckets(self, source_row: np.ndarray, bits: int, above: int = 0) -> np.ndarray:
        """Number the rows by `bits` bits of their keys, after the first `above`."""
        assert self.seed is not None
        keys = row_keys(source_row, self.seed) << np.uint64(above)
        return (keys >> np.uint64(64 - bits)).astype(np.uint16)

    def rows(self, records: Records) -> Rows:
        source_row, label, *weight = records.fields
        assert records.indptr is not None
        return Rows(source_row, label, weight[0] if weight else None, records.indptr, *records.items)

    def order(self, source_row: np.ndarray) -> np.ndarray:
        """Return the final order of rows."""
        if self.seed is None:
            return np.arange(source_row.size)
        return np.argsort(row_keys(source_row, self.seed))


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
        form, segment = self._form, self._n_bytes // self._segment_bytes
        if self._writer and (wide != self._wide or (form.seed is None and segment >= _N_SEGMENTS)):
            self._writer.close()
            self._writer = None
        layout = form.layout(wide)
        if self._writer is None:
            path = form.directory / f"run-{self._number:07d}-{self._n_runs:07d}"
            self._writer = PartitionWriter(
                path, layout, form.n_buckets, self._memory_bytes, record_bytes=_ROW_BYTES
            )
            self._n_runs, self._n_bytes, self._wide, segment = self._n_runs + 1, 0, wide, 0
        fields = [rows.source_row, rows.label, *([] if rows.weight is None else [rows.weight])]
        if form.seed is None:
            bucket = np.full(rows.n_rows, segment, np.uint16)
        else:
            bucket = form.buckets(rows.source_row, form.bits)
        self._writer.append(bucket, Records(fields, rows.indptr, (rows.index, rows.value)))
        self._n_bytes += rows.n_rows * _ROW_BYTES + rows.n_entries * layout.item_bytes

    def close(self, hold: bool = False) -> tuple[Rows, np.ndarray] | None:
        """Write the remaining rows; with `hold`, return all in memory with their final order, and write nothing."""
        if self._writer is None:
            return None
        if hold and self._n_runs == 1 and (records := self._writer.hold()):
            return self._form.rows(records), self._form.order(records.fields[0])
        self._writer.close()
        return None


# ---------------------------------------------------------------------------------------------------------------------
# Reading


class Cell(NamedTuple):
    """Consecutive rows of the final order that fit in memory: a bucket of one run, or of all parsed ones."""

    run: str  # empty for all
    bucket: int
    n_rows: int
    n_entries: int


class RunReader:
    """Reader of cells. `wide` where any index needs 64 bits; `held` are all rows, where no run was written: one cell."""

    def __init__(
        self,
        form: RunFormat,
        memory_bytes: int,
        wide: bool,
        held: tuple[Rows, np.ndarray] | None = None,
    ) -> None:
        self._form, self._memory_bytes, self._layout = form, memory_bytes, form.layout(wide)
        self._loaded: tuple[Cell, Rows, np.ndarray] | None = None
        self._runs: list[str] = []
        if held is not None:
            self._loaded, self.n_buckets = (Cell("", 0, held[0].n_rows, held[0].n_entries), *held), 1
        else:
            self._runs = sorted(path.name for path in form.directory.glob("run-*"))
            # the rows of each bucket come after those of the one before
            self.n_buckets = form.n_buckets * (len(self._runs) if form.seed is None else 1)

    def _reader(self, run: str) -> PartitionReader:
        return PartitionReader(
            [self._form.directory / name for name in ([run] if run else self._runs)], self._layout
        )

    def cells(self, bucket: int) -> Iterator[Cell]:
        """Cut a bucket into cells, in their order."""
        if self._loaded is not None and not self._runs:
            yield self._loaded[0]
        elif self._form.seed is None:
            run, segment = divmod(bucket, self._form.n_buckets)
            yield from self._cut(self._runs[run], segment, _MOST_BITS)
        else:
            yield from self._cut("", bucket, self._form.bits)

    def _cut(self, run: str, bucket: int, bits: int) -> Iterator[Cell]:
        """Cut a bucket of rows that share `bits` bits of their keys by further ones, until its parts fit."""
        with self._reader(run) as reader:
            cell = Cell(run, bucket, *reader.size(bucket))
            n_bytes = cell.n_rows * _ROW_BYTES + cell.n_entries * self._layout.item_bytes
            if n_bytes <= self._memory_bytes or cell.n_rows == 1 or bits >= _MOST_BITS:
                yield from [cell] if cell.n_rows else []
                return
            path = self._form.directory / f"cut-{run}-{bucket}"
            with PartitionWriter(path, self._layout, 1 << _CUT_BITS, self._memory_bytes // 2) as writer:
                for records in reader.blocks(bucket, self._memory_bytes // 4):
                    writer.append(self._form.buckets(records.fields[0], _CUT_BITS, bits), records)
        for part in range(1 << _CUT_BITS):
            yield from self._cut(path.name, part, bits + _CUT_BITS)

    def lengths(self, cell: Cell) -> np.ndarray:
        """Count the entries of a cell's rows, in final order."""
        if self._loaded is not None and self._loaded[0] == cell:
            return np.diff(self._loaded[1].indptr)[self._loaded[2]]
        with self._reader(cell.run) as reader:
            records = reader.read(cell.bucket, items=False)
        assert records.indptr is not None
        return np.diff(records.indptr)[self._form.order(records.fields[0])]

    def load(self, cell: Cell) -> tuple[Rows, np.ndarray]:
        """Return a cell's rows, and their final order; those of the last call are kept."""
        if self._loaded is None or self._loaded[0] != cell:
            self._loaded = None
            with self._reader(cell.run) as reader:
                rows = self._form.rows(reader.read(cell.bucket))
            self._loaded = cell, rows, self._form.order(rows.source_row)
        return self._loaded[1:]


# ---------------------------------------------------------------------------------------------------------------------
# Passes over the shards: rows gathered in final order, scaled, written, and their features summed up


class Shape(NamedTuple):
    """Size of the dataset, known when all is parsed."""

    n_rows: int
    n_features: int
    index_base: int
    index_dtype: np.dtype


class Shard(NamedTuple):
    """A shard to write: rows and entries of its chunks, and the cells that hold them, each with its first row's number."""

    number: int
    row0: int
    n_rows: int
    chunk_rows: np.ndarray
    chunk_entries: np.ndarray
    cells: list[tuple[int, Cell]]


@dataclass(frozen=True)
class ShardPass:
    """A pass over all shards, which workers share: what is done with the rows, and where their features are summed up."""

    reader: RunReader
    shape: Shape
    numbering: Numbering
    summing: Summing
    part: Callable[[int], PartWriter] | None = None  # None where rows are only summed up
    means: Path | None = None  # of the features, which are subtracted before values are summed up
    scaling: Scaling = field(default_factory=Scaling)  # without its divisors, which `scales` names
    scales: Path | None = None
    tell: Tell | None = None  # takes the rows done, if all shards are one task

    def whole_scaling(self) -> Scaling:
        return self.scaling if self.scales is None else replace(self.scaling, scales=np.load(self.scales))


def plan_buckets(reader: RunReader, start: int, stop: int, lengths: Path) -> list[Cell]:
    """Cut buckets into cells, and write the entries of their rows in final order."""
    with open(lengths, "wb") as file:
        cells = [cell for bucket in range(start, stop) for cell in reader.cells(bucket)]
        for cell in cells:
            reader.lengths(cell).tofile(file)
    return cells


def pass_over(work: ShardPass, shards: Sequence[Shard]) -> list[Part]:
    """Write shards, unless they are only summed up, and leave the sums of their features."""
    sums = work.summing.begin(f"{shards[0].number:07d}", 0, work.shape.n_features)
    numberer, index_dtype = Numberer(work.numbering), work.shape.index_dtype
    means = None if work.means is None else np.load(work.means)
    scaling, parts = work.whole_scaling(), list[Future[Part]]()
    # one thread gathers, the other encodes: no processor is idle while the last few shards are written
    with ThreadPoolExecutor(1, thread_name_prefix="streamcd-encode") as thread:
        for shard in shards:
            row = shard.row0
            part = None if work.part is None else work.part(shard.number)
            writing: Future[None] | None = None
            for gathered in _chunks(work.reader, shard):
                chunk = _scaled(numberer.apply(gathered, index_dtype), scaling, work.shape.n_features)
                if writing is not None:
                    writing.result()
                if part is not None:
                    columns = (chunk.source_row, chunk.label, chunk.weight)
                    entries = (chunk.indptr, chunk.index, chunk.value)
                    writing = thread.submit(part.write_chunk, *columns, *entries)
                value = chunk.value if means is None else chunk.value - means[chunk.index]
                sums.add(shard.number, chunk.index, value)
                row += chunk.n_rows
                if work.tell is not None:
                    work.tell(row)
            if writing is not None:
                writing.result()
            if part is not None:
                parts.append(thread.submit(part.close))
    sums.close()
    return [part.result() for part in parts]


def _scaled(chunk: Rows, scaling: Scaling, n_features: int) -> Rows:
    """Return rows with scaled values, in the type in which they are stored."""
    if not scaling.changes_values:
        return chunk
    with np.errstate(over="ignore", under="ignore"):
        value = scaling.apply(chunk.indptr, chunk.index, chunk.value, n_features).astype(chunk.value.dtype)
    if not np.isfinite(value).all():
        raise DataError(
            f"a scaled value is too large for {value.dtype}: a feature's scale is tiny beside its values; "
            "use --scale maxabs or --dtype float64"
        )
    return replace(chunk, value=value)


def _chunks(reader: RunReader, shard: Shard) -> Iterator[Rows]:
    """Yield the chunks of a shard, gathered from its cells, of which a thread reads the next one."""
    sizes = zip(shard.chunk_rows.tolist(), shard.chunk_entries.tolist(), strict=True)
    chunk, filled = None, 0
    # two in memory: what parsing took is free by now
    loaded = ahead((reader.load(cell) for _, cell in shard.cells), 1)
    for row0, cell in shard.cells:
        start = max(shard.row0 - row0, 0)
        end = min(shard.row0 + shard.n_rows - row0, cell.n_rows)
        rows, order = next(loaded)  # zip would keep the last ones until it has the next
        while start < end:
            if chunk is None:
                chunk, filled = rows.room(*next(sizes)), 0
            stop = min(start + chunk.n_rows - filled, end)
            rows.gather(order[start:stop], chunk, filled)
            filled += stop - start
            start = stop
            if filled == chunk.n_rows:
                yield chunk
                chunk = None
        del rows, order  # before the next ones are taken


# ---------------------------------------------------------------------------------------------------------------------
# Division of the rows in final order into chunks, and of chunks into shards: greedily, by decoded bytes alone


def cut_chunks(lengths: Sequence[Path], chunk_bytes: int, entry_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Count the rows and entries of every chunk, from files with the entries of all rows in final order.

    A row larger than a chunk is a chunk of its own.
    """
    n_rows, n_entries, counts = array("q"), array("q"), np.empty(0, np.int64)  # those of an open chunk
    for path in lengths:
        with open(path, "rb") as file:
            while (more := np.fromfile(file, np.int64, _LENGTHS_AT_A_TIME)).size:
                counts = np.concatenate([counts, more])
                end, start = np.cumsum(counts * entry_bytes + _DISK_ROW_BYTES), 0
                while True:
                    before = int(end[start - 1]) if start else 0
                    stop = max(int(np.searchsorted(end, before + chunk_bytes, side="right")), start + 1)
                    if stop >= counts.size:
                        break
                    n_rows.append(stop - start)
                    n_entries.append(int(counts[start:stop].sum()))
                    start = stop
                counts = counts[start:]
    if counts.size or not n_rows:
        n_rows.append(counts.size)
        n_entries.append(int(counts.sum()))
    return np.array(n_rows), np.array(n_entries)


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

"""External shuffle: rows in a random order that depends on the seed alone.

Every row has a key, a bijective hash of (seed, source row), so that keys never tie. Parsing writes runs, in which the
leading bits of its key are a row's bucket; writing shards reads a bucket from all runs and sorts it. If a single process
converts and the rows fit in its memory, they stay there.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..core.errors import DataError
from ..core.external_partition import Layout, PartitionReader, PartitionWriter, Records
from ..core.parallel import TASKS_PER_WORKER, Pool, Tell, ahead, in_shares
from ..dataset.source_features import Scaling, SourceIndices
from ..dataset.writer import Part, PartWriter
from ..kernels.primitives import mix
from .feature_statistics import LabelCounts, Summing
from .numbering import Numbering
from .rows import Rows

MAX_BITS = 12
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
    """Format of runs, and the memory of their writers and readers."""

    directory: Path
    seed: int
    bits: int  # a run has 2^bits buckets, by leading bits of the keys
    value_dtype: np.dtype
    weighted: bool
    memory_bytes: int  # of the rows in memory

    def layout(self, wide: bool) -> Layout:
        """Return the layout of rows as records; `wide` if any index needs 64 bits."""
        fields = [np.dtype(np.int64), np.dtype(np.float64)] + [np.dtype(np.float64)] * self.weighted
        return Layout(tuple(fields), (np.dtype(np.int64 if wide else np.int32), self.value_dtype))

    def buckets(self, source_row: np.ndarray, bits: int, above: int = 0) -> np.ndarray:
        """Number the rows by `bits` bits of their keys, after the first `above`."""
        keys = row_keys(source_row, self.seed) << np.uint64(above)
        return (keys >> np.uint64(64 - bits)).astype(np.uint16)

    def order(self, source_row: np.ndarray) -> np.ndarray:
        """Return the final order of rows."""
        return np.argsort(row_keys(source_row, self.seed))


def _as_rows(records: Records) -> Rows:
    source_row, label, *weight = records.fields
    assert records.indptr is not None
    return Rows(source_row, label, weight[0] if weight else None, records.indptr, *records.items)


class RunWriter:
    """Writer of the rows of task `number`, to one run, or to several if indices become wide."""

    def __init__(self, form: RunFormat, number: int) -> None:
        self._form = form
        self._number = number
        self._writer: PartitionWriter | None = None
        self._n_runs = 0
        self._wide = False

    def append(self, rows: Rows, wide: bool) -> None:
        """Append the next rows of the source; `wide` if any index needs 64 bits."""
        form = self._form
        if self._writer and wide != self._wide:
            self._writer.close()
            self._writer = None
        if self._writer is None:
            path = form.directory / f"run-{self._number:07d}-{self._n_runs:07d}"
            self._writer = PartitionWriter(
                path, form.layout(wide), 1 << form.bits, form.memory_bytes, record_bytes=_ROW_BYTES
            )
            self._n_runs += 1
            self._wide = wide
        fields = [rows.source_row, rows.label, *([] if rows.weight is None else [rows.weight])]
        bucket = form.buckets(rows.source_row, form.bits)
        self._writer.append(bucket, Records(fields, rows.indptr, (rows.index, rows.value)))

    def close(self, hold: bool = False) -> Rows | None:
        """Write the remaining rows; with `hold`, return all if they are in memory, and write nothing."""
        if self._writer is None:
            return None
        if hold and self._n_runs == 1 and (records := self._writer.hold()):
            return _as_rows(records)
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

    def __init__(self, form: RunFormat, wide: bool, held: Rows | None) -> None:
        self._form = form
        self._layout = form.layout(wide)
        self.held: tuple[Cell, Rows, np.ndarray] | None = None  # with their final order
        if held is not None:
            cell = Cell("", 0, held.n_rows, held.index.size)
            self.held = cell, held, form.order(held.source_row)
        self._loaded = self.held
        self._runs = sorted(path.name for path in form.directory.glob("run-*"))
        # the rows of each bucket come after those of the one before
        self.n_buckets = 1 if self.held else 1 << form.bits

    def _reader(self, run: str) -> PartitionReader:
        runs = [run] if run else self._runs
        return PartitionReader([self._form.directory / name for name in runs], self._layout)

    def plan(self, start: int, stop: int, lengths: Path) -> list[Cell]:
        """Cut buckets into cells, and write the entries of their rows in final order."""
        form = self._form
        cells = list[Cell]()
        with open(lengths, "wb") as file:
            if self.held is not None:
                cell, rows, order = self.held
                np.diff(rows.indptr)[order].tofile(file)
                return [cell]
            for bucket in range(start, stop):
                cells += self._cut("", bucket, form.bits)
            for cell in cells:
                with self._reader(cell.run) as reader:
                    records = reader.read(cell.bucket, items=False)
                assert records.indptr is not None
                np.diff(records.indptr)[form.order(records.fields[0])].tofile(file)
        return cells

    def _cut(self, run: str, bucket: int, bits: int) -> Iterator[Cell]:
        """Cut a bucket of rows that share `bits` bits of their keys by further ones, until its parts fit."""
        form = self._form
        most = self._form.memory_bytes // 4
        with self._reader(run) as reader:
            cell = Cell(run, bucket, *reader.size(bucket))
            n_bytes = cell.n_rows * _ROW_BYTES + cell.n_entries * self._layout.item_bytes
            if n_bytes <= most or cell.n_rows == 1 or bits >= _MOST_BITS:
                yield from [cell] if cell.n_rows else []
                return
            path = form.directory / f"cut-{run}-{bucket}"
            with PartitionWriter(path, self._layout, 1 << _CUT_BITS, most // 2) as writer:
                for records in reader.blocks(bucket, most // 4):
                    writer.append(form.buckets(records.fields[0], _CUT_BITS, bits), records)
        for part in range(1 << _CUT_BITS):
            yield from self._cut(path.name, part, bits + _CUT_BITS)

    def load(self, cell: Cell) -> tuple[Rows, np.ndarray]:
        """Return a cell's rows, and their final order; those of the last call are kept."""
        if self._loaded is None or self._loaded[0] != cell:
            self._loaded = None
            with self._reader(cell.run) as reader:
                rows = _as_rows(reader.read(cell.bucket))
            self._loaded = cell, rows, self._form.order(rows.source_row)
        return self._loaded[1:]


# ---------------------------------------------------------------------------------------------------------------------
# Division of the rows in final order into chunks, and of chunks into shards: greedily, by decoded bytes alone


class Shape(NamedTuple):
    """Size of the dataset and indices of its features in the source, known when all is parsed."""

    n_rows: int
    n_features: int
    index_base: int
    index_dtype: np.dtype
    kept: Path | None  # a file of the indices of `compact`, by feature

    def indices(self) -> SourceIndices:
        """Return the indices, which stay in their file, cached by the system."""
        numbers = None if self.kept is None else np.load(self.kept, mmap_mode="r")
        return SourceIndices(self.index_base, numbers)


class Shard(NamedTuple):
    """A shard to write: rows and entries of its chunks, and the cells that hold them, each with its first row's number."""

    number: int
    row0: int
    n_rows: int
    chunk_rows: np.ndarray
    chunk_entries: np.ndarray
    cells: list[tuple[int, Cell]]


def cut_shards(
    reader: RunReader, pool: Pool, work: Path, entry_bytes: int, chunk_bytes: int, shard_bytes: int
) -> list[Shard]:
    """Cut the rows by their lengths; a shard ends after `shard_bytes` of decoded entries. `work` is a directory."""
    ranges = in_shares([1] * reader.n_buckets, TASKS_PER_WORKER * pool.n_workers)
    lengths = [work / f"lengths-{start:07d}" for start, _ in ranges]
    tasks = [(reader, *ends, path) for ends, path in zip(ranges, lengths, strict=True)]
    sizes = [stop - start for start, stop in ranges]
    buckets = pool.run(RunReader.plan, tasks, phase="sort", unit="buckets", sizes=sizes)
    cells = [cell for bucket in buckets for cell in bucket]
    chunk_rows, chunk_entries = cut_chunks(lengths, chunk_bytes, entry_bytes)
    borders = [0]
    held = 0
    for chunk, n_entries in enumerate(chunk_entries.tolist()):
        if held >= shard_bytes:
            borders.append(chunk)
            held = 0
        held += n_entries * entry_bytes
    row_start = np.concatenate([[0], np.cumsum(chunk_rows)])
    cell_start = np.cumsum([0, *(cell.n_rows for cell in cells)])
    shards: list[Shard] = []
    for first, stop in pairwise([*borders, chunk_rows.size]):
        row0 = int(row_start[first])
        row_end = int(row_start[stop])
        low = int(np.searchsorted(cell_start, row0, side="right")) - 1
        high = int(np.searchsorted(cell_start, row_end, side="left"))
        numbered = [(int(cell_start[i]), cells[i]) for i in range(low, high)]
        chunks = chunk_rows[first:stop], chunk_entries[first:stop]
        shards.append(Shard(len(shards), row0, row_end - row0, *chunks, numbered))
    return shards


def cut_chunks(lengths: Sequence[Path], chunk_bytes: int, entry_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Count the rows and entries of every chunk, from files with the entries of all rows in final order.

    A row larger than a chunk is a chunk of its own.
    """
    # those of an open chunk
    n_rows = array("q")
    n_entries = array("q")
    counts = np.empty(0, np.int64)
    for path in lengths:
        with open(path, "rb") as file:
            while (more := np.fromfile(file, np.int64, _LENGTHS_AT_A_TIME)).size:
                counts = np.concatenate([counts, more])
                end = np.cumsum(counts * entry_bytes + _DISK_ROW_BYTES)
                start = 0
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


# ---------------------------------------------------------------------------------------------------------------------
# Passes over the shards: rows gathered in final order, numbered, scaled, written, and their features summed up


@dataclass(frozen=True)
class ShardPass:
    """A pass over all shards, which workers share: what is done with the rows, and where their features are summed up."""

    reader: RunReader
    shape: Shape
    numbering: Numbering | None  # None where features are numbered by indices, and classes by numbers
    summing: Summing
    has_targets: bool  # labels are numbers to predict
    scaling: Scaling  # without its divisors, which `scales` names
    scales: Path | None = None
    part: Callable[[int], PartWriter] | None = None  # None where rows are only summed up
    means: Path | None = None  # of the features, which are subtracted before values are summed up


def pass_over(work: ShardPass, shards: Sequence[Shard], tell: Tell | None) -> tuple[list[Part], LabelCounts]:
    """Write shards and count labels, unless features are only summed up, and leave the sums of features."""
    sums = work.summing.begin(f"{shards[0].number:07d}", 0, work.shape.n_features)
    numbered = None if work.numbering is None else work.numbering.opened()
    indices = work.shape.indices()
    index_dtype = work.shape.index_dtype
    scaling = work.scaling
    if work.scales is not None:
        scaling = replace(scaling, scales=np.load(work.scales))
    means = None if work.means is None else np.load(work.means)
    parts = list[Future[Part]]()
    labels = LabelCounts(None if work.has_targets else {})
    # one thread gathers, the other encodes: no processor is idle while the last few shards are written
    with ThreadPoolExecutor(1, thread_name_prefix="streamcd-encode") as thread:
        for shard in shards:
            row = shard.row0
            part = None if work.part is None else work.part(shard.number)
            writing: Future[None] | None = None
            for gathered in _chunks(work.reader, shard):
                chunk = gathered if numbered is None else numbered(gathered)
                chunk = replace(chunk, index=indices.features(chunk.index).astype(index_dtype, copy=False))
                if scaling.changes_values:
                    chunk = _scaled(chunk, scaling, work.shape.n_features)
                if writing is not None:
                    writing.result()
                if part is not None:
                    labels.add(chunk.label)
                    columns = (chunk.source_row, chunk.label, chunk.weight)
                    entries = (chunk.indptr, chunk.index, chunk.value)
                    writing = thread.submit(part.write_chunk, *columns, *entries)
                value = chunk.value if means is None else chunk.value - means[chunk.index]
                sums.add(shard.number, chunk.index, value)
                row += chunk.n_rows
                if tell is not None:
                    tell(row)
            if writing is not None:
                writing.result()
            if part is not None:
                parts.append(thread.submit(part.close))
    sums.close()
    return [part.result() for part in parts], labels


def _scaled(chunk: Rows, scaling: Scaling, n_features: int) -> Rows:
    """Return rows with scaled values, in the type in which they are stored."""
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
    chunk = None
    filled = 0
    # two in memory: what parsing took is free by now
    loaded = ahead((reader.load(cell) for _, cell in shard.cells), 1)
    for row0, cell in shard.cells:
        start = max(shard.row0 - row0, 0)
        end = min(shard.row0 + shard.n_rows - row0, cell.n_rows)
        rows, order = next(loaded)  # zip would keep the last ones until it has the next
        while start < end:
            if chunk is None:
                chunk = rows.room(*next(sizes))
                filled = 0
            stop = min(start + chunk.n_rows - filled, end)
            rows.gather(order[start:stop], chunk, filled)
            filled += stop - start
            start = stop
            if filled == chunk.n_rows:
                yield chunk
                chunk = None
        del rows, order  # before the next ones are taken

"""Passes over the shards of a dataset: rows gathered in final order, scaled, written, and their features summed up."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ..core.errors import DataError
from ..core.process_pool import Tell
from ..core.threads import ahead
from ..dataset.scaling import Scaling
from ..dataset.writer import Part, PartWriter
from .external_shuffle import Cell, RunReader
from .feature_statistics import Summing
from .numbering import Numberer, Numbering
from .rows import Rows

_INT32_MAX = 2**31 - 1

_ROW_BYTES = 16
"""Bytes counted for a row, so that chunks of nearly empty rows do not have a million rows."""

_LENGTHS_AT_A_TIME = 1 << 16


@dataclass(frozen=True)
class Shape:
    """Size of the dataset, known when all is parsed."""

    n_rows: int
    n_features: int
    index_base: int

    @property
    def index_dtype(self) -> np.dtype:
        return np.dtype(np.int32 if self.n_features <= _INT32_MAX + 1 else np.int64)


@dataclass(frozen=True)
class Shard:
    """A shard to write: rows and entries of its chunks, and the cells that hold them, each with its first row's number."""

    number: int
    row0: int
    chunk_rows: np.ndarray
    chunk_entries: np.ndarray
    cells: list[tuple[int, Cell]]

    @property
    def n_rows(self) -> int:
        return int(self.chunk_rows.sum())


@dataclass(frozen=True)
class ShardPass:
    """A pass over all shards, which workers share: what is done with the rows, and where their features are summed up."""

    reader: Callable[[], RunReader]  # opens the runs
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


def plan_buckets(reader: Callable[[], RunReader], start: int, stop: int, lengths: Path) -> list[Cell]:
    """Cut buckets into cells, and write the entries of their rows in final order."""
    with reader() as opened, open(lengths, "wb") as file:
        cells = [cell for bucket in range(start, stop) for cell in opened.cells(bucket)]
        for cell in cells:
            opened.lengths(cell).tofile(file)
    return cells


def pass_over(work: ShardPass, shards: Sequence[Shard]) -> list[Part]:
    """Write shards, unless they are only summed up, and leave the sums of their features."""
    sums = work.summing.begin(shards[0].number)
    numberer, index_dtype = Numberer(work.numbering), work.shape.index_dtype
    means = None if work.means is None else np.load(work.means)
    scaling, parts = work.whole_scaling(), list[Future[Part]]()
    # one thread gathers, the other encodes: no processor is idle while the last few shards are written
    with work.reader() as reader, ThreadPoolExecutor(1, thread_name_prefix="streamcd-encode") as thread:
        for shard in shards:
            row = shard.row0
            part = None if work.part is None else work.part(shard.number)
            writing: Future[None] | None = None
            for gathered in _chunks(reader, shard):
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
                end, start = np.cumsum(counts * entry_bytes + _ROW_BYTES), 0
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

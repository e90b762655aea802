"""Tasks that write the shards of a dataset: rows gathered in final order, scaled and encoded; sums of their features."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import DataError
from ..core.process_pool import Tell
from ..core.threads import ahead
from ..dataset.chunked_table import RowTable
from ..dataset.dataset import Dataset, open_dataset
from ..dataset.scaling import Scaling, feature_means, max_abs_scales, scales_digest, standard_scales
from ..dataset.schema import row_dtype
from ..dataset.writer import PartWriter
from .external_shuffle import Cell, RunReader
from .feature_statistics import RangeStatistics, save_columns, saved_columns
from .numbering import Numberer, Numbering
from .publication import Publication
from .rows import Rows

_INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class Shape:
    """Size of the dataset, known when all is parsed."""

    n_rows: int
    n_features: int
    index_base: int

    @property
    def index_dtype(self) -> np.dtype:
        return np.dtype(np.int32 if self.n_features <= _INT32_MAX + 1 else np.int64)

    @property
    def row_dtype(self) -> np.dtype:
        return row_dtype(self.n_rows)


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
class Writing:
    """Parameters of writing shards that all workers share."""

    reader: Callable[[], RunReader]  # opens the runs
    part: Callable[[int, int], PartWriter]
    shape: Shape
    numbering: Numbering
    dataset: Path
    scaling: Scaling  # without its divisors, which `scales` names
    scales: Path | None
    sums: Path | None  # a directory for the sums of features by task; None where they do not fit in memory
    publication: Publication | None = None  # uploads a shard once it is written; None for later, or none
    tell: Tell | None = None  # takes the rows written, if all shards are one task

    def whole_scaling(self) -> Scaling:
        return self.scaling if self.scales is None else replace(self.scaling, scales=np.load(self.scales))


def plan_buckets(writing: Writing, start: int, stop: int, lengths: Path) -> list[Cell]:
    """Cut buckets into cells, and write the entries of their rows in final order."""
    with writing.reader() as reader, open(lengths, "wb") as file:
        cells = [cell for bucket in range(start, stop) for cell in reader.cells(bucket)]
        for cell in cells:
            reader.lengths(cell).tofile(file)
    return cells


Written = tuple[dict[str, Any], "array[int]", np.ndarray]
"""Arguments of `DatasetWriter.add_part`."""


class _Encoder:
    """Writer of shards, which scales their chunks and sums up their features; a context manager."""

    def __init__(self, writing: Writing) -> None:
        self._writing, self._scaling = writing, writing.whole_scaling()
        self._statistics = None if writing.sums is None else RangeStatistics(0, writing.shape.n_features)
        # one thread gathers, the other encodes: no processor is idle while the last few shards are written
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="streamcd-encode")
        self._uploads = ThreadPoolExecutor(1, thread_name_prefix="streamcd-upload")
        self._uploading: list[Future[None]] = []

    def __enter__(self) -> _Encoder:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()
        self._uploads.shutdown(cancel_futures=True)

    def write(self, shard: Shard, chunks: Iterator[Rows]) -> Written:
        part, tell = self._writing.part(shard.number, shard.row0), self._writing.tell
        pending: Future[None] | None = None
        row = shard.row0
        for chunk in chunks:
            value = self._scaled(chunk)
            if pending is not None:
                pending.result()
            columns = (chunk.source_row, chunk.label, chunk.weight, chunk.indptr, chunk.index, value)
            pending = self._thread.submit(part.write_chunk, *columns)
            if self._statistics is not None:
                self._statistics.add(shard.number, chunk.index, value)
            row += chunk.n_rows
            if tell is not None:
                tell(row)
        if pending is not None:
            pending.result()
        record = part.close()
        self._upload(record)
        return record, part.chunk_table, part.row_norms

    def _upload(self, record: dict[str, Any]) -> None:
        """Begin to upload a shard, once the one before is uploaded: so that two are on disk at most."""
        self.end_uploads()
        publication = self._writing.publication
        if publication is not None:
            names = [record[table] for table in RowTable.TABLES]
            folder = self._writing.dataset
            self._uploading = [self._uploads.submit(publication.upload, folder, name) for name in names]

    def end_uploads(self) -> None:
        """Wait for what is being uploaded."""
        for upload in self._uploading:
            upload.result()

    def _scaled(self, chunk: Rows) -> np.ndarray:
        if not self._scaling.changes_values:
            return chunk.value
        n_features = self._writing.shape.n_features
        scaled = self._scaling.apply(chunk.indptr, chunk.index, chunk.value, n_features)
        return _stored_values(scaled, chunk.value.dtype)

    def save_statistics(self, first_shard: int) -> None:
        """Write the sums of the features of the shards written; the statistics themselves where these are all."""
        if self._writing.sums is None or self._statistics is None:
            return
        path = self._writing.sums / f"shard-{first_shard:07d}"
        if self._writing.tell is None:
            self._statistics.save(path)
        else:
            save_columns(self._statistics.columns(self._writing.shape.n_rows), path)


def write_shards(writing: Writing, shards: Sequence[Shard]) -> list[Written]:
    numberer, index_dtype = Numberer(writing.numbering), writing.shape.index_dtype
    with writing.reader() as reader, _Encoder(writing) as encoder:
        written = []
        for shard in shards:
            chunks = (numberer.apply(chunk, index_dtype) for chunk in _chunks(reader, shard))
            written.append(encoder.write(shard, chunks))
        encoder.end_uploads()
        encoder.save_statistics(shards[0].number)
    return written


def rescale_shards(writing: Writing, shards: Sequence[Shard], unscaled: Path) -> list[Written]:
    """Write the shards of an unscaled dataset again, scaled."""
    dataset = open_dataset(unscaled)
    with _Encoder(writing) as encoder:
        written = [encoder.write(shard, _stored_chunks(dataset, shard.number)) for shard in shards]
        encoder.end_uploads()
        encoder.save_statistics(shards[0].number)
    dataset.close()
    return written


def _stored_chunks(dataset: Dataset, part: int) -> Iterator[Rows]:
    """Yield the chunks of a dataset just written, as rows to write again."""
    for chunk in np.flatnonzero(dataset.chunk_part == part).tolist():
        data = dataset.read(chunk, verify=False)
        yield Rows(data.source, data.label, data.weight, data.indptr, data.feature, data.value)


def _stored_values(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return scaled values in the type in which they are stored."""
    with np.errstate(over="ignore", under="ignore"):
        stored = value.astype(dtype)
    if not np.isfinite(stored).all():
        raise DataError(
            f"a scaled value is too large for {stored.dtype}: a feature's scale is tiny beside its values; "
            "use --scale maxabs or --dtype float64"
        )
    return stored


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


def save_means(unscaled: Path, out: Path) -> None:
    dataset = open_dataset(unscaled)
    np.save(out, feature_means(dataset.read_features(), dataset.n_features))


def save_scales(unscaled: Path, means: Path | None, statistics: Sequence[Path], out: Path) -> str:
    """Write the divisors of the features; returns their digest."""
    dataset = open_dataset(unscaled)
    if means is None:
        scales = max_abs_scales(dataset.read_features(), dataset.n_features)
    else:
        deviations = (batch for path in statistics for batch in saved_columns(path))
        scales = standard_scales(deviations, np.load(means), dataset.n_rows)
    np.save(out, scales)
    return scales_digest(scales)

"""Decisions of a model, streamed over a dataset, text or tables in bounded memory, by threads and processes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ..conversion.byte_sources import BLOCK_BYTES, ByteRange, check_rows
from ..conversion.rows import Counts, query_ids_skipped
from ..conversion.sources import counted_pieces
from ..core.errors import DataError
from ..core.locks import scratch_directory
from ..core.process_pool import TASKS_PER_WORKER, Workers, in_shares
from ..core.progress import Listener, Progress, counted
from ..core.range_cache import Cache
from ..core.storage import Location
from ..core.threads import Threads, make_threads
from ..dataset.dataset import Dataset, open_dataset
from ..dataset.schema import FIRST_OF_ALL
from ..models.model import Model, load_model
from .reading_plan import Data, ReadingPlan, RowsToDecide

_CHUNKS_AHEAD = 16  # chunks that are read in advance: about 16 MB


@dataclass(frozen=True)
class DecidedRows:
    """Some rows, with the model's feature numbers; arrays are valid until the next rows are taken."""

    source: np.ndarray
    label: np.ndarray
    weight: np.ndarray
    decisions: np.ndarray
    n_ignored: int = 0  # entries


class Decisions:
    """One reading of the data: rows with the model's decisions, and the count of ignored entries.

    `plan` divides the budget; files of several processes go to `scratch`. Rows and their order do not depend on the number
    of processes and threads. See `RowsToDecide` for `compared`.
    """

    def __init__(
        self,
        data: Data,
        model: Model,
        budget: int,
        listener: Listener,
        workers: int = 1,
        scratch: Path | None = None,
        n_columns: int = 0,
        threads: int = 1,
        compared: bool = False,
    ) -> None:
        self.model, self.listener = model, listener
        self.scratch = scratch or Path(tempfile.gettempdir())
        self.n_ignored = self.n_unseen = self.n_query_ids = 0
        self._rows = RowsToDecide(data, model, compared=compared)
        self.dataset = self._rows.dataset
        self.plan = ReadingPlan(self._rows, budget, listener, workers, n_columns, threads)
        self._threads = Threads(self.plan.threads)

    def blocks(self, phase: str) -> Iterator[DecidedRows]:
        """Yield all rows; those of text in order, those of a dataset shuffled."""
        if self.plan.workers > 1:
            found = self._shared_rows(phase)
        elif self.dataset is not None:
            found = self.dataset_rows(phase, range(self.dataset.n_chunks))
        else:
            found = self.text_rows(phase)
        for rows in found:
            if self._rows.compared:
                self._require_labels(rows)
            yield rows
        if self.n_query_ids:
            self.listener.message(query_ids_skipped(self.n_query_ids))
        if self.n_ignored:
            self.listener.warning(
                f"{counted(self.n_ignored, 'entry', 'entries')} ignored: beyond the model's width of "
                f"{self.model.n_features:,} features"
            )
        if self.n_unseen:
            self.listener.warning(
                f"{counted(self.n_unseen, 'category', 'categories')} ignored that the model has not seen in training"
            )

    def _require_labels(self, rows: DecidedRows) -> None:
        missing = np.flatnonzero(np.isnan(rows.label))
        if missing.size:
            row = int(rows.source[missing[0]]) + 1
            encoding = self.model.encoding
            column = "" if encoding is None else f" in the column {encoding.label!r}"
            raise DataError(
                f"{self._rows.path}, row {row:,}: expected a label{column} to compare with, found none; "
                "'streamcd predict' needs none"
            )

    def dataset_rows(self, phase: str, chunks: range) -> Iterator[DecidedRows]:
        """Yield the rows of some chunks."""
        dataset = self.dataset
        assert dataset is not None
        count = self._threads.count
        readers = [dataset, *(dataset.another() for _ in range(count - 1))]
        # a reader has the chunks first, first + count, …, of which a thread takes one after the other
        shares = [chunks[first::count] for first in range(count)]
        for reader, share in zip(readers, shares, strict=True):
            reader.open_parts(share)
        calls = (
            partial(self._decide_chunk, readers[number % count], shares[number % count], number // count)
            for number in range(len(chunks))
        )
        try:
            for chunk, found in zip(chunks, self._threads.in_order(calls), strict=True):
                for rows in found:
                    self.n_ignored += rows.n_ignored
                    yield rows
                self.listener.progress(
                    Progress(phase, int(dataset.row_start[chunk + 1]), dataset.n_rows, "rows")
                )
        finally:
            for reader in readers[1:]:
                reader.close()

    def _decide_chunk(self, dataset: Dataset, chunks: range, number: int) -> Iterable[DecidedRows]:
        """Read and decide one of the chunks of a reader, and announce later ones; in one thread, block by block."""
        ahead = (
            chunks[number + _CHUNKS_AHEAD - 1 : number + _CHUNKS_AHEAD] if number else chunks[:_CHUNKS_AHEAD]
        )
        for later in ahead:
            dataset.expect(later, FIRST_OF_ALL)
        data = dataset.read(chunks[number])
        shift = self._rows.shift
        feature = data.feature.astype(np.int64) + shift if shift else data.feature
        found = self._decide(data.source, data.label, data.weight, data.indptr, feature, data.value)
        return found if self._threads.count == 1 else list(found)

    def text_rows(self, phase: str, part: ByteRange | None = None, *start: int) -> Iterator[DecidedRows]:
        """Yield the rows of all files, or of a part of one that starts at the given row and line."""
        source = self._rows.source(self.plan.text_block, self.plan.decoder_bytes, self.plan.batch_bytes)
        counts = Counts()
        pieces, first = (source.reader.whole(), (0, 0)) if part is None else ([part], start)
        for batch in source.parse(pieces, first[0], first[1], None):
            if part is None:
                self.listener.progress(Progress(phase, batch.bytes_read, source.reader.total_bytes, "B"))
            counts, rows = batch.counts, batch.rows
            feature = rows.index - self.model.index_base
            weight = np.ones(rows.n_rows) if rows.weight is None else rows.weight
            for found in self._decide(
                rows.source_row, rows.label, weight, rows.indptr, feature, rows.value, threads=self._threads
            ):
                self.n_ignored += found.n_ignored
                yield found
        if part is None:
            check_rows(counts.n_rows, source.reader.paths, source.what)
        self.n_ignored += counts.n_ignored
        self.n_unseen += counts.n_unseen
        self.n_query_ids += counts.n_query_ids

    def _shared_rows(self, phase: str) -> Iterator[DecidedRows]:
        """Yield all rows, decided by several processes, from whose files they are read in the order of a single process."""
        with scratch_directory(self.scratch, "decisions") as directory:
            self.model.save(directory / "model")
            with Workers(self.plan.workers, self.listener, __name__) as workers:
                tasks, sizes, unit = self._tasks(workers)
                paths = [directory / f"{number:07d}" for number in range(len(tasks))]
                data = (
                    (self._rows.path, None)
                    if self.dataset is None
                    else (self.dataset.path, self.dataset.cache)
                )
                shared = (
                    data,
                    str(directory),
                    self.plan.worker_bytes,
                    self._threads.count,
                    self._rows.compared,
                )
                tasks = [(*shared, path, *task) for path, task in zip(paths, tasks, strict=True)]
                shares = workers.run(_decide_share, tasks, phase=phase, unit=unit, sizes=sizes)
                for ignored, unseen, query_ids in shares:
                    self.n_ignored, self.n_unseen = self.n_ignored + ignored, self.n_unseen + unseen
                    self.n_query_ids += query_ids
            for path in paths:
                yield from self._read_rows(path)
                path.unlink()

    def _tasks(self, workers: Workers) -> tuple[list[tuple[Any, ...]], list[int], str]:
        """Return the tasks' arguments, their sizes, and the unit of the sizes."""
        n_tasks = TASKS_PER_WORKER * self.plan.workers
        dataset = self.dataset
        if dataset is not None:
            shares = in_shares(np.diff(dataset.entry_start).tolist(), n_tasks)
            sizes = [int(dataset.row_start[stop] - dataset.row_start[start]) for start, stop in shares]
            return [(range(start, stop),) for start, stop in shares], sizes, "rows"
        source = self._rows.source(BLOCK_BYTES, self.plan.piece_decoder_bytes, self.plan.batch_bytes)
        pieces = counted_pieces(source, n_tasks, workers)
        sizes = [piece.n_bytes for piece, *_ in pieces]
        return [(piece, *start) for piece, _, start in pieces], sizes, "B"

    def _read_rows(self, path: Path) -> Iterator[DecidedRows]:
        """Yield rows from a worker's file, in blocks of the size used here."""
        n_columns = 3 + self.model.n_vectors
        with open(path, "rb") as file:
            while (records := np.fromfile(file, count=self.plan.block_rows * n_columns)).size:
                records = records.reshape(-1, n_columns)
                source = records[:, 0].copy().view(np.int64)
                decisions = np.ascontiguousarray(records[:, 3:])
                yield DecidedRows(source, records[:, 1].copy(), records[:, 2].copy(), decisions)

    def _decide(
        self,
        source: np.ndarray,
        label: np.ndarray,
        weight: np.ndarray,
        *rows: np.ndarray,
        threads: Threads | None = None,
    ) -> Iterator[DecidedRows]:
        """Decide rows, block by block, each divided among `threads`."""
        indptr, feature, value = rows
        if self._rows.scaling is not None:
            value = self._rows.scaling.apply(indptr, feature, value, self.model.n_features)
        for start in range(0, label.size, self.plan.block_rows):
            stop = min(label.size, start + self.plan.block_rows)
            decided = self._decide_block(indptr[start : stop + 1], feature, value, threads or Threads())
            yield DecidedRows(source[start:stop], label[start:stop], weight[start:stop], *decided)

    def _decide_block(
        self, indptr: np.ndarray, feature: np.ndarray, value: np.ndarray, threads: Threads
    ) -> tuple[np.ndarray, int]:
        """Return the decisions about rows, divided among threads, and the number of ignored entries."""
        shares = threads.shares(indptr.size - 1, int(indptr[-1] - indptr[0]) * self.model.n_vectors)
        calls = [
            partial(self.model.decisions, indptr[share.start : share.stop + 1], feature, value)
            for share in shares
        ]
        found = list(Threads(len(shares)).in_order(calls))
        return np.concatenate([decisions for decisions, _ in found]), sum(ignored for _, ignored in found)


def threads_of_each(threads: int | None, workers: int) -> int:
    """Return the threads of each of a number of processes, which by default share the processors."""
    return make_threads(threads).count if threads is not None else max(make_threads(None).count // workers, 1)


@lru_cache(maxsize=1)
def _shared_model(directory: str) -> Model:
    return load_model(Path(directory) / "model")


def _decide_share(
    data: tuple[str | Location, Cache | None],
    directory: str,
    budget: int,
    threads: int,
    compared: bool,
    out: Path,
    part: range | ByteRange,
    *start: int,
) -> tuple[int, int, int]:
    """Write the rows of some chunks or of a part of a file, with their decisions.

    Returns the numbers of ignored entries, of unseen categories and of query ids.
    """
    model, (path, cache) = _shared_model(directory), data
    source = open_dataset(path) if isinstance(part, range) else path
    if isinstance(source, Dataset):
        source.use_cache(cache)
    decisions = Decisions(source, model, budget, Listener(), threads=threads, compared=compared)
    rows = (
        decisions.dataset_rows("", part) if isinstance(part, range) else decisions.text_rows("", part, *start)
    )
    with open(out, "wb") as file:
        for block in rows:
            records = np.empty((block.label.size, 3 + model.n_vectors))
            records[:, 0] = np.ascontiguousarray(block.source, dtype=np.int64).view(np.float64)
            records[:, 1], records[:, 2], records[:, 3:] = block.label, block.weight, block.decisions
            records.tofile(file)
    return decisions.n_ignored, decisions.n_unseen, decisions.n_query_ids

"""Rows of a dataset, text or tables with a model's decisions, in bounded memory, by threads and processes."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ..conversion.parsing import row_batches
from ..conversion.rows import QUERY_IDS_SKIPPED, Counts
from ..conversion.sources import BLOCK_BYTES, Piece, Reader, check_rows, counted_tasks
from ..core.errors import DataError, counted
from ..core.files import scratch_directory
from ..core.options import Progress
from ..core.parallel import TASKS_PER_WORKER, Pool, Threads, in_shares
from ..dataset.dataset import Dataset
from ..dataset.kept_columns import rows_of
from ..dataset.schema import ChunkData
from ..kernels.compile import load_together
from ..models.encoding import unknown_values
from ..models.model import Model
from ..models.scoring import score_chunks
from ..models.stored import load_model
from ..solvers.problem import losses_of
from .reading_plan import Data, Means, ReadingPlan, RowsToScore


@dataclass(frozen=True)
class ScoredRows:
    """Some rows, with the model's decisions; arrays are valid until the next rows are taken."""

    source: np.ndarray
    label: np.ndarray
    weight: np.ndarray
    decisions: np.ndarray
    n_ignored: int  # entries
    identity: Any = None  # an array of Arrow's: the column that identifies rows, of a file that has one


class Scoring:
    """One reading of the data: rows with the model's decisions; `ignored` counts what is left out.

    `plan` divides the budget; files of several processes go to `scratch`. Rows and their order do not depend on the number
    of processes and threads. See `RowsToScore` for `compared`.
    """

    def __init__(
        self,
        data: Data,
        model: Model,
        means: Means,
        *,
        compared: bool = False,
        scratch: Path | None = None,
        n_columns: int = 0,
    ) -> None:
        self.model, self.listener = model, means.listener
        self.scratch = scratch or Path(tempfile.gettempdir())
        self.ignored = Counts()
        self._rows = RowsToScore(data, model, compared=compared)
        self.dataset = self._rows.dataset
        self.plan = ReadingPlan(self._rows, means, n_columns)
        self._threads = Threads(self.plan.threads)

    def blocks(self, phase: str) -> Iterator[ScoredRows]:
        """Yield all rows; those of text in order, those of a dataset shuffled."""
        yield from self._of_workers(phase) if self.plan.workers > 1 else self.rows(phase)
        self._tell_ignored()

    def _tell_ignored(self) -> None:
        entries, query_ids = self.ignored.n_ignored, self.ignored.n_query_ids
        if query_ids:
            self.listener.message(f"{query_ids:,} {QUERY_IDS_SKIPPED}")
        if entries:
            self.listener.warning(
                f"{counted(entries, 'entry', 'entries')} ignored: "
                + (
                    f"beyond the model's width of {self.model.n_features:,} features"
                    if self.model.indices is None
                    else f"of features that are not among the model's {self.model.n_features:,}"
                )
            )
        for warning in unknown_values(self.ignored.unseen, self.ignored.unindicated):
            self.listener.warning(warning)

    def rows(self, phase: str, part: Any = None, *start: int) -> Iterator[ScoredRows]:
        """Yield the rows of all data, or of a part: some chunks, or a piece of a file from the given row and line on."""
        if self.dataset is not None:
            scored = self._of_dataset(phase, self.dataset, part)
        else:
            scored = self._of_files(phase, part, *start)
        with closing(self._threads):
            for rows in scored:
                self.ignored.n_ignored += rows.n_ignored
                if self._rows.compared:
                    self._require_labels(rows)
                yield rows

    def _require_labels(self, rows: ScoredRows) -> None:
        missing = np.flatnonzero(np.isnan(rows.label))
        if missing.size:
            row = int(rows.source[missing[0]]) + 1
            encoding = self.model.encoding
            column = "" if encoding is None else f" in the column {encoding.label!r}"
            raise DataError(
                f"{self._rows.path}, row {row:,}: expected a label{column} to compare with, found none; "
                "predict needs none"
            )

    def _load_kernels(self, reader: Reader | None) -> None:
        """Call kernels over nothing; `reader` is that of files."""
        if reader is not None:
            reader.load_kernels()
        self.model.decisions(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0))
        if self._rows.compared:
            losses_of(self.model.row_loss, *np.zeros((3, 0)))

    def _of_dataset(self, phase: str, dataset: Dataset, chunks: range | None) -> Iterator[ScoredRows]:
        load_together(partial(self._load_kernels, None))
        chunks = range(dataset.n_chunks) if chunks is None else chunks
        for chunk, scored in score_chunks(dataset, chunks, self._score_chunk, self._threads):
            yield from scored
            self.listener.progress(Progress(phase, int(dataset.row_start[chunk + 1]), dataset.n_rows, "rows"))

    def _score_chunk(self, data: ChunkData) -> Iterator[ScoredRows]:
        columns = data.source, data.label, data.weight
        return self._score(columns, data.indptr, self._rows.features(data.feature), data.value)

    def _of_files(self, phase: str, part: Piece | None, *start: int) -> Iterator[ScoredRows]:
        source = self._rows.source(self.plan.text_block, self.plan.decoder_bytes, self.plan.batch_bytes)
        counts, indices = Counts(), self.model.source_indices
        load_together(partial(self._load_kernels, source.reader))
        pieces, first = (source.reader.pieces(), (0, 0)) if part is None else ([part], start)
        for message in source.messages if part is None else ():
            self.listener.message(message)
        for batch in row_batches(source, pieces, first[0], first[1], None):
            if part is None:
                self.listener.progress(Progress(phase, batch.bytes_read, source.total_bytes, "B"))
            counts, rows = batch.counts, batch.rows
            weight = np.ones(rows.n_rows) if rows.weight is None else rows.weight
            columns, feature = (rows.source_row, rows.label, weight), indices.features(rows.index)
            for scored in self._score(columns, rows.indptr, feature, rows.value, self._threads):
                if batch.kept is None:
                    yield scored
                    continue
                before = int(scored.source[0] - rows.source_row[0])
                beside = rows_of(batch.kept, before, before + scored.source.size)
                yield replace(scored, identity=beside.column(0))
        if part is None:
            check_rows(counts.n_rows, source.reader.paths)
        self.ignored.add(counts)

    def _score(
        self,
        columns: tuple[np.ndarray, np.ndarray, np.ndarray],
        indptr: np.ndarray,
        feature: np.ndarray,
        value: np.ndarray,
        threads: Threads | None = None,
    ) -> Iterator[ScoredRows]:
        """Score rows block by block, each divided among `threads`; `columns` are source, label and weight."""
        if self._rows.scaling is not None:
            value = self._rows.scaling.apply(indptr, feature, value, self.model.n_features)
        for start in range(0, indptr.size - 1, self.plan.block_rows):
            block = slice(start, start + self.plan.block_rows)
            source, label, weight = (column[block] for column in columns)
            scored = self.model.decisions(indptr[start : block.stop + 1], feature, value, threads)
            yield ScoredRows(source, label, weight, *scored)

    # -- several processes --------------------------------------------------------------------------------------------

    def _of_workers(self, phase: str) -> Iterator[ScoredRows]:
        """Yield all rows, scored by several processes, from whose files they are read in the order of a single process."""
        with scratch_directory(self.scratch, "decisions") as directory:
            self.model.save(directory / "model")
            cache = None if self.dataset is None else self.dataset.cache
            means = Means(self.plan.worker_bytes, threads=self.plan.threads)
            fingerprint = None if self.dataset is None else self.dataset.fingerprint
            shared = (self._rows.path, fingerprint, cache, means, self._rows.compared)
            with Pool(self.plan.workers, self.listener, __name__) as workers:
                parts, sizes, unit = self._parts(workers)
                paths = [directory / f"{number:07d}" for number in range(len(parts))]
                tasks = [(path, *shared, *part) for path, part in zip(paths, parts, strict=True)]
                for ignored in workers.run(_score_part, tasks, phase=phase, unit=unit, sizes=sizes):
                    self.ignored.add(ignored)
            for path in paths:
                with open(path, "rb") as file, suppress(EOFError):
                    while True:
                        yield pickle.load(file)
                path.unlink()

    def _parts(self, workers: Pool) -> tuple[list[tuple[Any, ...]], list[int], str]:
        """Cut the data into arguments of `rows`; also returns the parts' sizes, and their unit."""
        n_parts = TASKS_PER_WORKER * self.plan.workers
        dataset = self.dataset
        if dataset is not None:
            shares = in_shares(np.diff(dataset.entry_start).tolist(), n_parts)
            sizes = [int(dataset.row_start[stop] - dataset.row_start[start]) for start, stop in shares]
            return [(range(start, stop),) for start, stop in shares], sizes, "rows"
        source = self._rows.source(BLOCK_BYTES, self.plan.piece_decoder_bytes, self.plan.batch_bytes)
        for message in source.messages:
            self.listener.message(message)
        tasks = counted_tasks(source, n_parts, workers)
        parts = [(task.pieces[0], task.first_row, task.first_line) for task in tasks]
        return parts, [task.pieces[0].n_bytes for task in tasks], "B"


@lru_cache(maxsize=1)
def _shared_model(directory: Path) -> Model:
    return load_model(directory / "model", deviations=False)


def _score_part(
    out: Path,
    path: str,
    fingerprint: str | None,
    cache: str | None,
    means: Means,
    compared: bool,
    *part: Any,
) -> Counts:
    """Write the scored rows of a part of the data; returns the counts of what was left out."""
    data = path if fingerprint is None else Dataset.open(path, fingerprint=fingerprint)
    scoring = Scoring(data, _shared_model(out.parent), means, compared=compared)
    if scoring.dataset is not None:
        scoring.dataset.use_cache(cache)
    with open(out, "wb") as file:
        for rows in scoring.rows("", *part):
            pickle.dump(rows, file)
    return scoring.ignored

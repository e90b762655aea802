"""Rows of a dataset, of files or in memory with a model's decisions, in bounded blocks, by threads and processes."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from copy import copy
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..conversion.formats import Files, expand, is_plain, open_source
from ..conversion.options import TableOptions
from ..conversion.parsing import row_batches
from ..conversion.rows import QUERY_IDS_SKIPPED, Counts
from ..conversion.sources import (
    LEAST_DECODER_BYTES,
    Reading,
    Source,
    Task,
    check_rows,
    counted_tasks,
    is_files,
    open_data,
    total_bytes,
)
from ..core.errors import ModelError, counted
from ..core.files import scratch_directory
from ..core.memory_budget import RESERVED_BYTES, parse_size, require
from ..core.options import Listener, Progress, SharedWork
from ..core.parallel import TASKS_PER_WORKER, Pool, Threads, available_cores, in_shares, memory_per_worker
from ..core.storage import REMOTE_BYTES, is_url, location
from ..dataset.dataset import Dataset, open_dataset
from ..dataset.kept_columns import rows_of
from ..dataset.read_ahead import AHEAD_BYTES
from ..dataset.schema import FIRST_OF_ALL, ChunkData
from ..dataset.source_features import Scaling, SourceIndices, indices_of
from ..kernels.compile import load_together
from ..models.encoding import unknown_values
from ..models.model import Model
from ..models.scoring import decisions_of
from ..models.stored import load_model
from ..solvers.problem import losses_of

Scored = TypeVar("Scored")

_BLOCK_BYTES = 8 << 20
"""Decisions of a block and what is made of them; with larger blocks predictions took as long."""

_READING_BYTES = 256 << 20
"""Memory that reading files takes, at most, for text, decompression, and batches of tables."""

_TEXT_BLOCK = 4 << 20
"""Text that is parsed at a time, at most; with a quarter of it predictions took 1.3 times as long."""

_TEXT_BLOCKS_HELD = 14  # the parser's own figure, a copy of the indices, and scaled values

_CHUNKS_ANNOUNCED = 16  # about 16 MB


@dataclass(frozen=True)
class ScoredBlock:
    """Some rows with a model's decisions; arrays are valid until the next block is taken."""

    source: np.ndarray
    label: np.ndarray
    weight: np.ndarray
    decisions: np.ndarray
    n_ignored: int  # entries
    identity: Any = None  # an array of Arrow's: the column that identifies rows, of a file that has one


class Scorer:
    """One reading of a dataset, of files or of blocks in memory, with a model's decisions.

    The memory of `options` is for the sum of the processes that score, and then for this one, which reads their results from
    files in `scratch`. It holds the model, a block, and what reading takes; `left` of it remains for the caller. Rows and
    their order do not depend on memory, processes and threads.

    Rows that are `compared` with their labels have the weights of the table's column, where it is there; others weigh 1.
    `counts` has the rows read of files, and what is left out.
    """

    def __init__(
        self,
        data: Any,
        model: Model,
        options: SharedWork,
        *,
        compared: bool = False,
        threads: int = 0,
        scratch: Path | None = None,
    ) -> None:
        # files in other directories than a dataset's are read like a glob
        if isinstance(data, str | os.PathLike) and (location(data) / "manifest.json").exists():
            data = open_dataset(data)
        self.model = model
        self.dataset = data if isinstance(data, Dataset) else None
        self.files = expand(data) if self.dataset is None and is_files(data) else Files([], {}, {})
        self.id_column = ""
        self.listener = options.listener or Listener()
        self.counts = Counts()
        self.scratch = scratch or Path(tempfile.gettempdir())
        self.block_rows = max(_BLOCK_BYTES // row_bytes(model), 1)
        self._data = data
        self._compared = compared
        self._scaling = model.scaling
        self._source: Source | None = None
        self._workers = options.workers
        self._threads = threads or max(available_cores() // self._workers, 1)
        self._indices = SourceIndices(0)  # of files: from the source's indices to features
        needs = {"the model": model.nbytes, "decisions": self.block_rows * row_bytes(model)}
        loads: list[Callable[[], object]] = [
            partial(decisions_of, (np.zeros(0, np.int64),) * 4, model.matrix, model.intercept)
        ]
        if compared:
            loads.append(partial(losses_of, model.row_loss, *np.zeros((3, 0))))
        if self.dataset is not None:
            self._scaling = _missing_scaling(self.dataset, model)
            self._indices = indices_of(self.dataset)
            needs["the client of the URL"] = self.dataset.client_bytes
            needs["one chunk"] = chunk_bytes(self.dataset)
            needs["indices of features"] = self._indices.nbytes
        else:
            paths = self.files.paths
            are_plain = all(map(is_plain, paths))
            needs["the client of the URL"] = REMOTE_BYTES * any(map(is_url, paths))
            needs["rows being read"] = _TEXT_BLOCKS_HELD << 16
            needs["decompression"] = LEAST_DECODER_BYTES * (not are_plain)
            needs["columns being read"] = self._open(0).held_bytes if paths and are_plain else 0
            if self._workers > 1 and (not paths or total_bytes(paths) is None):
                self._workers = 1
                self.listener.warning(
                    "blocks, standard input, pipes and servers without ranges are read by one process: continuing with "
                    "--workers 1"
                )
        self._renumbers = not self._indices.equal(model.source_indices)
        memory = parse_size(options.memory)
        self.left = require(memory, needs, "give a larger --memory, or leave --proba out")
        room = memory_per_worker(memory, self._workers, needs, {"model": model.nbytes})
        self._worker_bytes = RESERVED_BYTES + sum(needs.values()) + room
        if self.dataset is not None:
            self.id_column = self.dataset.id_column
            self._threads, taken = affordable_threads(self.dataset, room // 4, model.n_vectors, self._threads)
        else:
            taken = min(3 * room // 8, _READING_BYTES)
            self._source = self._open(taken)
            self.id_column = self._source.encoding.id if self._source.encoding else ""
            loads.append(self._source.reader.load_kernels)
        self.left -= taken
        if self._workers == 1:
            load_together(*loads)

    def _open(self, n_bytes: int) -> Source:
        """Open files, or blocks in memory, as a source of rows with the model's features.

        A third of the memory is for text, the rest for decompression or a batch of a table.
        """
        model = self.model
        ends = model.indices is None
        encoding = model.encoding
        if encoding is not None:
            encoding = encoding.but(id="" if self._compared else encoding.id, fold="")
        block_bytes = min((1 << 16) + n_bytes // 3 // _TEXT_BLOCKS_HELD, _TEXT_BLOCK)
        reading = Reading(
            np.float64,
            block_bytes,
            max_line_bytes=max(n_bytes // 9, block_bytes),
            decoder_bytes=LEAST_DECODER_BYTES + 2 * n_bytes // 3,
            batch_bytes=_TEXT_BLOCKS_HELD * block_bytes + 2 * n_bytes // 3,
            index_base=model.index_base,
            any_width=True,
            n_features=model.n_features if ends else None,
            ignore_beyond=ends,
            needs_label=False,
            reads_weights=self._compared,
            encoding=encoding,
            class_names=tuple(model.class_names or ()),
            of_numbers=model.class_names is None,
            end_label=2.0**53 if self._compared and not model.has_targets else np.inf,
        )
        if self.files.paths:
            return open_source(self.files, "auto", reading, TableOptions())
        return open_data(self._data, reading, TableOptions())

    def blocks(self, phase: str) -> Iterator[ScoredBlock]:
        """Yield all rows; those of files in order, those of a dataset shuffled."""
        source = self._source
        for message in source.messages if source is not None else ():
            self.listener.message(message)
        if self._workers > 1:
            yield from self._by_workers(phase)
        else:
            for block in self.part(None if source is None else Task(0, source.reader.pieces()), phase):
                self.counts.n_ignored += block.n_ignored
                yield block
        if n_ignored := self.counts.n_ignored:
            reason = f"beyond the model's width of {self.model.n_features:,} features"
            if self.model.indices is not None:
                reason = f"of features that are not among the model's {self.model.n_features:,}"
            self.listener.warning(f"{counted(n_ignored, 'entry', 'entries')} ignored: {reason}")
        if source is not None:
            check_rows(self.counts.n_rows, source.reader.paths)
            if query_ids := self.counts.n_query_ids:
                self.listener.message(f"{query_ids:,} {QUERY_IDS_SKIPPED}")
            for warning in unknown_values(self.counts.unseen, self.counts.unindicated):
                self.listener.warning(warning)

    def part(self, part: range | Task | None, phase: str = "") -> Iterator[ScoredBlock]:
        """Iterate over the rows of some pieces of files, or of some chunks of a dataset, by default all."""
        if isinstance(part, Task):
            return self._of_files(part, phase)
        assert self.dataset is not None
        return scored_chunks(self.dataset, part, self._score_rows, self._threads, self.listener, phase)

    def _of_files(self, task: Task, phase: str) -> Iterator[ScoredBlock]:
        source = self._source
        assert source is not None
        counts = Counts()
        with closing(Threads(self._threads)) as threads:
            for batch in row_batches(source, task.pieces, task.first_row, task.first_line, None):
                self.listener.progress(Progress(phase, batch.bytes_read, source.total_bytes, "B"))
                counts = batch.counts
                rows = batch.rows
                weight = np.ones(rows.n_rows) if rows.weight is None else rows.weight
                chunk = ChunkData(rows.source_row, rows.label, weight, rows.indptr, rows.index, rows.value)
                yield from self._score_rows(chunk, threads, batch.kept)
        self.counts.add(counts)

    def _score_rows(
        self, chunk: ChunkData, threads: Threads | None = None, beside: Any = None
    ) -> Iterator[ScoredBlock]:
        """Score rows block by block, each divided among `threads`; `beside` has the column that identifies them."""
        model = self.model
        feature = chunk.feature
        value = chunk.value
        if self._renumbers:
            index = self._indices.of(feature.astype(np.int64, copy=False))
            feature = model.source_indices.features(index)
        if self._scaling.changes_values:
            value = self._scaling.apply(chunk.indptr, feature, value, model.n_features)
        for start in range(0, chunk.label.size, self.block_rows):
            block = slice(start, start + self.block_rows)
            indptr = chunk.indptr[start : block.stop + 1]
            rows = indptr[:-1], indptr[1:], feature, value
            scored = decisions_of(rows, model.matrix, model.intercept, threads)
            identity = None if beside is None else rows_of(beside, start, block.stop).column(0)
            yield ScoredBlock(
                chunk.source[block], chunk.label[block], chunk.weight[block], *scored, identity=identity
            )

    def _by_workers(self, phase: str) -> Iterator[ScoredBlock]:
        """Yield all rows, scored by several processes, from whose files they are read in the order of a single process."""
        dataset = self.dataset
        parts: list[Any]
        with scratch_directory(self.scratch, "decisions") as directory:
            self.model.save(directory / "model")
            n_parts = TASKS_PER_WORKER * self._workers
            with Pool(self._workers, self.listener, __name__) as pool:
                if dataset is not None:
                    shares = in_shares(np.diff(dataset.entry_start).tolist(), n_parts)
                    parts = [range(*share) for share in shares]
                    sizes = [
                        int(dataset.row_start[stop] - dataset.row_start[start]) for start, stop in shares
                    ]
                elif self._source is not None:
                    parts = counted_tasks(self._source, n_parts, pool)
                    sizes = [task.pieces[0].n_bytes for task in parts]
                shared = self._data, self._compared, self._worker_bytes, self._threads
                paths = [directory / f"{number:07d}" for number in range(len(parts))]
                tasks = [(path, part, *shared) for path, part in zip(paths, parts, strict=True)]
                unit = "B" if dataset is None else "rows"
                for counts in pool.run(_score_part, tasks, phase=phase, unit=unit, sizes=sizes):
                    self.counts.add(counts)
            for path in paths:
                with open(path, "rb") as file, suppress(EOFError):
                    while True:
                        yield pickle.load(file)
                path.unlink()


@lru_cache(maxsize=1)
def _shared_model(directory: Path) -> Model:
    return load_model(directory / "model", deviations=False)


def _score_part(
    out: Path, part: range | Task, data: Any, compared: bool, memory: int, threads: int
) -> Counts:
    """Write the scored rows of a part of the data; returns the counts of what was left out."""
    options = SharedWork(memory=memory)
    scorer = Scorer(data, _shared_model(out.parent), options, compared=compared, threads=threads)
    with open(out, "wb") as file:
        for block in scorer.part(part):
            scorer.counts.n_ignored += block.n_ignored
            pickle.dump(block, file)
    return scorer.counts


def row_bytes(model: Model) -> int:
    """Return the bytes of a row's decisions, scores and probabilities, and of the arrays made from them."""
    return 8 * (5 * model.n_vectors + 4 * model.n_classes + 8)


def _missing_scaling(dataset: Dataset, model: Model) -> Scaling:
    """Return the scaling that a dataset's values still need for the model: none if scaled like its training data.

    Refuses other scales, targets where the model was trained on classes, and the other way round, and features that the
    source counts from 0, where the model's are counted from 1.
    """
    if dataset.scaling != model.scaling and dataset.scaling.changes_values:
        same_options = dataset.scaling.options() == model.scaling.options()
        raise ModelError(
            f"{dataset.path}: converted with {dataset.scaling.options()}, the model was trained on data with "
            f"{model.scaling.options()}{', by other scales' if same_options else ''}; "
            "convert it with --like MODEL, or without scaling, which predictions then apply"
        )
    if dataset.has_targets != model.has_targets:
        kinds = "classes", "numbers to predict"
        remedy = "with" if model.has_targets else "without"
        raise ModelError(
            f"{dataset.path}: expected rows with {kinds[model.has_targets]} for a model of {model.loss}, found "
            f"{kinds[dataset.has_targets]}; convert {remedy} --target, or --like the model"
        )
    if dataset.index_base < model.source_indices.base:
        raise ModelError(
            f"{dataset.path}: its text counts features from 0, the model's from {model.index_base}; "
            "convert it with --like MODEL or with the training data's --index-base"
        )
    return Scaling() if dataset.scaling == model.scaling else model.scaling


# ---------------------------------------------------------------------------------------------------------------------
# Chunks of a dataset


def scored_chunks(
    dataset: Dataset,
    chunks: range | None,
    score_chunk: Callable[[ChunkData], Iterator[Scored]],
    n_threads: int,
    listener: Listener,
    phase: str,
) -> Iterator[Scored]:
    """Read chunks, by default all, each by one of the threads, and yield in order what `score_chunk` yields of them.

    A single thread scores a chunk's rows as they are taken.
    """
    chunks = range(dataset.n_chunks) if chunks is None else chunks
    readers = [dataset, *(copy(dataset) for _ in range(1, n_threads))]

    def read_and_score(number: int) -> Any:
        # a reader has every `n_threads`-th chunk, and announces some before it reads them
        reader = readers[number % n_threads]
        first = number if number < n_threads else number + (_CHUNKS_ANNOUNCED - 1) * n_threads
        reader.announce(chunks[first : number + _CHUNKS_ANNOUNCED * n_threads : n_threads], FIRST_OF_ALL)
        scored = score_chunk(reader.read(chunks[number]))
        return scored if n_threads == 1 else list(scored)

    calls = (partial(read_and_score, number) for number in range(len(chunks)))
    try:
        for chunk, blocks in zip(chunks, Threads(n_threads).in_order(calls), strict=True):
            yield from blocks
            listener.progress(Progress(phase, int(dataset.row_start[chunk + 1]), dataset.n_rows, "rows"))
    finally:
        for reader in readers[1:]:
            reader.close()


def chunk_bytes(dataset: Dataset, n_vectors: int = 0) -> int:
    """Count the bytes of the largest chunk: as stored, decoded, again with 64-bit features and scaled values, and scored."""
    n_entries = int(np.diff(dataset.entry_start).max(initial=0))
    n_rows = int(np.diff(dataset.row_start).max(initial=0))
    # of a row six numbers, as stored and decoded, besides its entries
    return n_entries * (2 * dataset.entry_bytes + 16) + n_rows * (96 + 8 * n_vectors)


def affordable_threads(dataset: Dataset, memory: int, n_vectors: int, most: int) -> tuple[int, int]:
    """Return how many threads, at most `most`, can score chunks, and the bytes that they take.

    Of several, each has a chunk, or its scores wait; a single one takes nothing besides its chunk.
    """
    each = chunk_bytes(dataset, n_vectors) + AHEAD_BYTES
    count = 1 + min(most - 1, memory // each, dataset.n_chunks)
    return count, count * each if count > 1 else 0

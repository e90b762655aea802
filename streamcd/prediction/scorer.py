"""Rows of a dataset, of files or in memory with a model's decisions, in bounded blocks, by threads and processes."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
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
from ..dataset.parts import AHEAD_BYTES
from ..dataset.schema import FIRST_OF_ALL, ChunkData
from ..dataset.source_features import Scaling, indices_of
from ..kernels.compile import load_together
from ..models.encoding import unknown_values
from ..models.model import Model
from ..models.stored import load_model
from ..solvers.problem import losses_of

Scored = TypeVar("Scored")

_BLOCK_BYTES = 8 << 20
"""Decisions of a block and what is made of them; with larger blocks predictions took as long."""

_TEXT_BLOCK = 4 << 20
"""Text that is parsed at a time, at most; with a quarter of it predictions took 1.3 times as long."""

_TEXT_BLOCKS_HELD = 14  # the parser's own figure, a copy of the indices, and scaled values


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
        if _is_dataset(data):
            data = open_dataset(data)
        self.model = model
        self.dataset = data if isinstance(data, Dataset) else None
        self.files = expand(data) if is_files(data) else Files([], {}, {})
        self.id_column = ""
        self.listener = options.listener or Listener()
        self.counts = Counts()
        self.scratch = scratch or Path(tempfile.gettempdir())
        self.block_rows = max(_BLOCK_BYTES // row_bytes(model), 1)
        self._data = data
        self._compared = compared
        self._scaling = model.scaling if model.scaling.changes_values else None
        self._source: Source | None = None
        self._workers = options.workers
        self._threads = Threads(threads or max(available_cores() // self._workers, 1))
        needs = {"the model": _model_bytes(model), "decisions": self.block_rows * row_bytes(model)}
        if self.dataset is not None:
            self._scaling = _missing_scaling(self.dataset, model)
            self._indices = indices_of(self.dataset)
            needs |= {
                "the client of the URL": self.dataset.client_bytes,
                "one chunk": chunk_bytes(self.dataset),
                "indices of features": self._indices.nbytes,
            }
        else:
            paths = self.files.paths
            are_plain = all(map(is_plain, paths))
            needs |= {
                "the client of the URL": REMOTE_BYTES if any(map(is_url, paths)) else 0,
                "rows being read": _TEXT_BLOCKS_HELD << 16,
                "decompression": 0 if are_plain else LEAST_DECODER_BYTES,
                "columns being read": self._open(0).held_bytes if paths and are_plain else 0,
            }
            if self._workers > 1 and (not paths or total_bytes(paths) is None):
                self._workers = 1
                self.listener.warning(
                    "blocks, standard input, pipes and servers without ranges are read by one process: continuing with "
                    "--workers 1"
                )
        memory = parse_size(options.memory)
        self.left = require(memory, needs, "give a larger --memory, or leave --proba out")
        room = memory_per_worker(memory, self._workers, needs, {"model": needs["the model"]})
        self._worker_bytes = RESERVED_BYTES + sum(needs.values()) + room
        if self.dataset is None:
            self._source = self._open(room)
            self.id_column = self._source.encoding.id if self._source.encoding else ""
            self.left -= 3 * room // 8
        else:
            self.id_column = self.dataset.id_column
            count, taken = affordable_threads(self.dataset, room // 4, model.n_vectors, self._threads.count)
            self._threads = Threads(count)
            self.left -= taken

    def _open(self, room: int) -> Source:
        """Open files, or blocks in memory, as a source of rows with the model's features.

        An eighth of the room is for text, and a quarter for decompression or a batch of a table.
        """
        model = self.model
        ends = model.indices is None
        encoding = model.encoding
        if encoding is not None:
            encoding = replace(encoding, id="" if self._compared else encoding.id, fold="")
        block_bytes = min((1 << 16) + room // 8 // _TEXT_BLOCKS_HELD, _TEXT_BLOCK)
        reading = Reading(
            np.float64,
            block_bytes,
            max_line_bytes=max(room // 24, block_bytes),
            decoder_bytes=LEAST_DECODER_BYTES + room // 4,
            batch_bytes=_TEXT_BLOCKS_HELD * block_bytes + room // 4,
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
        elif self.dataset is not None:
            yield from self.part(range(self.dataset.n_chunks), phase)
        elif source is not None:
            yield from self.part(Task(0, source.reader.pieces()), phase)
        if source is not None:
            check_rows(self.counts.n_rows, source.reader.paths)
        entries, query_ids = self.counts.n_ignored, self.counts.n_query_ids
        if query_ids:
            self.listener.message(f"{query_ids:,} {QUERY_IDS_SKIPPED}")
        if entries:
            beyond = f"beyond the model's width of {self.model.n_features:,} features"
            unknown = f"of features that are not among the model's {self.model.n_features:,}"
            reason = beyond if self.model.indices is None else unknown
            self.listener.warning(f"{counted(entries, 'entry', 'entries')} ignored: {reason}")
        for warning in unknown_values(self.counts.unseen, self.counts.unindicated):
            self.listener.warning(warning)

    def part(self, part: range | Task, phase: str = "") -> Iterator[ScoredBlock]:
        """Yield the rows of some chunks of a dataset, or of pieces of files."""
        load_together(self._load_kernels)
        with closing(self._threads):
            for block in (
                self._of_chunks(part, phase) if isinstance(part, range) else self._of_files(part, phase)
            ):
                self.counts.n_ignored += block.n_ignored
                yield block

    def _load_kernels(self) -> None:
        """Call kernels over nothing."""
        if self._source is not None:
            self._source.reader.load_kernels()
        self.model.decisions(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0))
        if self._compared:
            losses_of(self.model.row_loss, *np.zeros((3, 0)))

    def _of_chunks(self, chunks: range, phase: str) -> Iterator[ScoredBlock]:
        dataset = self.dataset
        assert dataset is not None
        numbered_alike = self._indices.equal(self.model.source_indices)

        def score(chunk: ChunkData) -> Iterator[ScoredBlock]:
            if not numbered_alike:
                index = self._indices.of(chunk.feature.astype(np.int64))
                chunk = replace(chunk, feature=self.model.source_indices.features(index))
            return self._score(chunk)

        for number, blocks in score_chunks(dataset, chunks, score, self._threads):
            yield from blocks
            done = int(dataset.row_start[number + 1])
            self.listener.progress(Progress(phase, done, dataset.n_rows, "rows"))

    def _of_files(self, task: Task, phase: str) -> Iterator[ScoredBlock]:
        source = self._source
        assert source is not None
        counts = Counts()
        for batch in row_batches(source, task.pieces, task.first_row, task.first_line, None):
            self.listener.progress(Progress(phase, batch.bytes_read, source.total_bytes, "B"))
            counts, rows = batch.counts, batch.rows
            weight = np.ones(rows.n_rows) if rows.weight is None else rows.weight
            feature = self.model.source_indices.features(rows.index)
            chunk = ChunkData(0, rows.source_row, rows.label, weight, rows.indptr, feature, rows.value)
            yield from self._score(chunk, self._threads, batch.kept)
        self.counts.add(counts)

    def _score(
        self, chunk: ChunkData, threads: Threads | None = None, beside: Any = None
    ) -> Iterator[ScoredBlock]:
        """Score rows block by block, each divided among `threads`; `beside` has the column that identifies them."""
        value = chunk.value
        if self._scaling is not None:
            value = self._scaling.apply(chunk.indptr, chunk.feature, value, self.model.n_features)
        for start in range(0, chunk.label.size, self.block_rows):
            block = slice(start, start + self.block_rows)
            indptr = chunk.indptr[start : block.stop + 1]
            scored = self.model.decisions(indptr, chunk.feature, value, threads)
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
                shared = self._data, self._compared, self._worker_bytes, self._threads.count
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
            pickle.dump(block, file)
    return scorer.counts


def _is_dataset(data: Any) -> bool:
    """Tell the path of a dataset; files in other directories are read like a glob."""
    return isinstance(data, str | os.PathLike) and (location(data) / "manifest.json").exists()


def row_bytes(model: Model) -> int:
    """Return the bytes of a row's decisions, scores and probabilities, and of the arrays made from them."""
    return 8 * (5 * model.n_vectors + 4 * model.n_classes + 8)


def _model_bytes(model: Model) -> int:
    """Return the memory of a model, with its own copy of the code matrix, of one byte, and an intermediate one."""
    arrays = model.nbytes + (0 if model.scaling.scales is None else model.scaling.scales.nbytes)
    arrays += model.source_indices.nbytes
    return arrays + (0 if model.encoding is None else model.encoding.nbytes) + 2 * model.decoder.code_bytes


def _missing_scaling(dataset: Dataset, model: Model) -> Scaling | None:
    """Return the scaling that a dataset's values still need for the model, None if scaled like its training data.

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
    if dataset.index_base < model.index_base:
        raise ModelError(
            f"{dataset.path}: its text counts features from 0, the model's from {model.index_base}; "
            "convert it with --like MODEL or with the training data's --index-base"
        )
    return None if dataset.scaling == model.scaling else model.scaling


# ---------------------------------------------------------------------------------------------------------------------
# Chunks of a dataset


def score_chunks(
    dataset: Dataset,
    chunks: range,
    score_chunk: Callable[[ChunkData], Iterator[Scored]],
    threads: Threads,
) -> Iterator[tuple[int, Iterable[Scored]]]:
    """Read chunks, each by one of the threads, and yield the number of each with what `score_chunk` yields of it, in order.

    A single thread scores a chunk's rows as they are taken.
    """
    count = threads.count
    readers = [dataset, *(dataset.reopen() for _ in range(count - 1))]

    def read_and_score(number: int) -> Iterable[Scored]:
        # a reader has every `count`-th chunk, and announces 16 of them, about 16 MB
        reader = readers[number % count]
        first = number if number < count else number + 15 * count
        reader.announce(chunks[first : number + 16 * count : count], FIRST_OF_ALL)
        scored = score_chunk(reader.read(chunks[number]))
        return scored if count == 1 else list(scored)

    calls = (partial(read_and_score, number) for number in range(len(chunks)))
    try:
        yield from zip(chunks, threads.in_order(calls), strict=True)
    finally:
        for reader in readers[1:]:
            reader.close()


def chunk_bytes(dataset: Dataset, n_vectors: int = 0) -> int:
    """Count the bytes of the largest chunk: as stored, decoded, again with 64-bit features and scaled values, and scored."""
    n_entries, n_rows = (int(np.diff(at).max(initial=0)) for at in (dataset.entry_start, dataset.row_start))
    # of a row six numbers, as stored and decoded, besides its entries
    return n_entries * (2 * dataset.entry_bytes + 16) + n_rows * (96 + 8 * n_vectors)


def affordable_threads(dataset: Dataset, memory: int, n_vectors: int, most: int) -> tuple[int, int]:
    """Return how many threads, at most `most`, can score chunks, and the bytes that they take.

    Of several, each has a chunk, or its scores wait; a single one takes nothing besides its chunk.
    """
    each = chunk_bytes(dataset, n_vectors) + AHEAD_BYTES
    count = 1 + min(most - 1, memory // each, dataset.n_chunks)
    return count, count * each if count > 1 else 0

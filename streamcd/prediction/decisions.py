"""Decisions of a model, streamed over a dataset, text or tables in bounded memory, by threads and processes."""

from __future__ import annotations

import itertools
import math
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ..conversion.byte_sources import (
    BLOCK_BYTES,
    ByteRange,
    check_rows,
    expand_sources,
    is_compressed,
    total_bytes,
)
from ..conversion.formats import expand, open_source
from ..conversion.rows import Counts
from ..conversion.sources import Reading, Source, counted_pieces
from ..conversion.table_rows import TableOptions
from ..core.errors import DataError, ModelError, UsageError
from ..core.locks import scratch_directory
from ..core.memory_budget import RESERVED_BYTES, require
from ..core.metadata import content_digest
from ..core.process_pool import TASKS_PER_WORKER, Workers, checked_workers, in_shares, memory_per_worker
from ..core.progress import Listener, Progress, counted
from ..core.range_cache import Cache
from ..core.storage import REMOTE_BYTES, Location, Url, is_url, location
from ..core.threads import Threads, make_threads
from ..dataset.dataset import Dataset, open_cached, open_dataset
from ..dataset.parquet import file_checksum
from ..dataset.read_ahead import AHEAD_BYTES
from ..dataset.scaling import Scaling
from ..dataset.schema import FIRST_OF_ALL
from ..models.model import Model, load_model

_LEAST_ROWS, _MAX_ROWS = 256, 1 << 16  # decided at a time
FOOTER_BYTES = 900
"""Bytes that pyarrow keeps for each column of a row group until the file is closed; measured: 860 to 890."""

_LEAST_LINE_BYTES = 2  # a label and the end of the line
_LEAST_DECODER_BYTES = 10 << 20  # memory of xz -6
_TEXT_BLOCK = 4 << 20
_TEXT_BLOCKS_HELD = 14  # the parser's own figure, a copy of the indices, and scaled values
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

    The budget is for the sum of the processes that decide, and then for this one, which reads their results; `left` of it
    remains for the caller; `least_bytes` are needed beside the interpreter. Their files go to `scratch`. The footer of the
    Parquet file that the caller writes, of `n_columns` columns in row groups of `block_rows` rows, is counted;
    `most_groups` is the number of groups there is room for. At most `threads` share the work of this process, as many as
    the memory has room for; rows and their order do not depend on it. Rows that are `compared` with their labels need one,
    and have the weights of the table's column, where it is there; others need none, and weigh 1.
    """

    def __init__(
        self,
        data: Dataset | str | os.PathLike[str],
        model: Model,
        budget: int,
        listener: Listener,
        workers: int = 1,
        scratch: Path | None = None,
        n_columns: int = 0,
        threads: int = 1,
        compared: bool = False,
    ) -> None:
        self.model, self.listener, self._compared = model, listener, compared
        self.scratch = scratch or Path(tempfile.gettempdir())
        self.n_ignored = self.n_unseen = self._batch_bytes = 0
        self.dataset: Dataset | None = None
        self._path = str(data.path if isinstance(data, Dataset) else data)
        # decisions, scores, probabilities, and the arrays made from them
        row_bytes = 8 * (5 * model.n_vectors + 4 * model.n_classes + 8)
        needs = {"the model": _model_bytes(model), **self._open(data), "decisions": _LEAST_ROWS * row_bytes}
        self.left = require(budget, needs)
        least_rows = self._rows_of_a_group(needs, row_bytes, FOOTER_BYTES * n_columns)
        self.left = require(budget, needs, "give a larger --memory, or leave --proba out")
        self.least_bytes = sum(needs.values())
        self._workers = _usable_workers(data, workers, listener)
        self._share = self._bytes_of_a_worker(budget, needs) if self._workers > 1 else 0
        self._text_block, self._decoder_bytes = 1 << 16, needs.get("decompression", 0)
        if self._decoder_bytes:
            self._decoder_bytes += self._take()
        if self.dataset is None:
            self._text_block += self._take(_TEXT_BLOCKS_HELD, _TEXT_BLOCK - self._text_block, share=2)
            self._batch_bytes = self._take()  # of tables: a compressed batch of Arrow's is decoded as a whole
        self.block_rows = least_rows + self._take(row_bytes, _MAX_ROWS - least_rows)
        self._threads = Threads(self._count_threads(threads))
        room = needs.get("the footer of the predictions", 0) + self.left // 2
        self.most_groups = room // max(FOOTER_BYTES * n_columns, 1)

    def _open(self, data: Dataset | str | os.PathLike[str]) -> dict[str, int]:
        """Open the dataset, or find the files; returns the memory that reading them needs at least."""
        model = self.model
        if isinstance(data, Dataset) or is_dataset(data):
            self.dataset = data if isinstance(data, Dataset) else open_dataset(data)
            self._scaling = _missing_scaling(self.dataset, model)
            self._shift = _feature_shift(self.dataset, model)
            chunk = _chunk_bytes(self.dataset, scaled=self._scaling is not None)
            return {"the client of the URL": self.dataset.client_bytes, "one chunk": chunk}
        self._paths, self._roots = expand(self._path)
        self._scaling = model.scaling if model.scaling.changes_values else None
        is_plain = self._is_plain_text()
        return {
            "the client of the URL": REMOTE_BYTES if any(map(is_url, self._paths)) else 0,
            "text": _TEXT_BLOCKS_HELD << 16,
            "decompression": 0 if is_plain else _LEAST_DECODER_BYTES,
            "columns being read": self._source(1 << 16, 0).held_bytes if is_plain else 0,
        }

    def _bytes_of_a_worker(self, budget: int, needs: dict[str, int]) -> int:
        """Return the budget of each of several workers; the footer is this process's alone."""
        theirs, own = dict(needs), {"model": needs["the model"]}
        own["footer of the predictions"] = theirs.pop("the footer of the predictions", 0)
        each = sum(theirs.values()) + RESERVED_BYTES
        return each + memory_per_worker(budget, self._workers, theirs, own)

    def _take(self, each: int = 1, most: int = 1 << 62, share: int = 4) -> int:
        """Take the memory of up to `most` things of `each` bytes, in one of `share` parts of what is left; returns their
        number."""
        count = max(min(most, self.left // share // each), 0)
        self.left -= count * each
        return count

    def _count_threads(self, threads: int) -> int:
        """Return the number of threads there is memory for, and take it; with a dataset, each reads and decides a chunk."""
        if self.dataset is None or self._workers > 1:
            return threads
        n_rows = int(np.diff(self.dataset.row_start).max(initial=0))
        each = _chunk_bytes(self.dataset, scaled=self._scaling is not None) + AHEAD_BYTES
        each += n_rows * 8 * self.model.n_vectors
        count = 1 + min(threads - 1, self.left // 4 // each, self.dataset.n_chunks)
        # of several, each has a chunk, or its results wait
        self.left -= count * each if count > 1 else 0
        return count

    def _is_plain_text(self) -> bool:
        """Return whether all files are regular and uncompressed."""
        return total_bytes(self._paths) is not None and not any(is_compressed(path) for path in self._paths)

    def _source(self, block_bytes: int, decoder_bytes: int) -> Source:
        """Open the files as a source of rows with the model's features."""
        model = self.model
        reading = Reading(
            np.float64,
            block_bytes,
            decoder_bytes=decoder_bytes,
            batch_bytes=_TEXT_BLOCKS_HELD * block_bytes + self._batch_bytes,
            index_base=model.index_base,
            n_features=model.n_features,
            ignore_beyond=True,
            needs_label=False,
            reads_weights=self._compared,
            encoding=model.encoding,
            class_names=tuple(model.class_names or ()),
            of_numbers=model.class_names is None,
        )
        return open_source(self._paths, self._roots, "auto", reading, TableOptions())

    def _rows_of_a_group(self, needs: dict[str, int], row_bytes: int, footer_bytes: int) -> int:
        """Return the rows of a group that minimise the memory of group and footers; adds both to `needs`.

        `footer_bytes` is for one group. Rows of text are counted if the most rows that its bytes can hold do not fit. For
        sources that can be read only once the number of rows is unknown: as many as half of the memory can hold.
        """
        if not footer_bytes:
            return _LEAST_ROWS
        if self.dataset is not None:
            n_rows = self.dataset.n_rows
        elif (n_bytes := total_bytes(self._paths)) is None:
            return _LEAST_ROWS + min(_MAX_ROWS - _LEAST_ROWS, self.left // 4 // row_bytes)
        else:
            n_rows = n_bytes // _LEAST_LINE_BYTES
            least = 2 * math.sqrt(n_rows * footer_bytes * row_bytes)
            source = self._source(1 << 16, _LEAST_DECODER_BYTES + self.left // 4)
            if needs["decompression"] or least > self.left // 2 or source.encoding is not None:
                n_rows = sum(source.reader.count(piece).n_rows for piece in source.reader.whole())
        rows = max(_LEAST_ROWS, math.ceil(math.sqrt(n_rows * footer_bytes / row_bytes)))
        needs["decisions"] = rows * row_bytes
        needs["the footer of the predictions"] = -(-n_rows // rows) * footer_bytes
        return rows

    def blocks(self, phase: str) -> Iterator[DecidedRows]:
        """Yield all rows; those of text in order, those of a dataset shuffled."""
        if self._workers > 1:
            found = self._shared_rows(phase)
        elif self.dataset is not None:
            found = self.dataset_rows(phase, range(self.dataset.n_chunks))
        else:
            found = self.text_rows(phase)
        for rows in found:
            if self._compared:
                self._require_labels(rows)
            yield rows
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
                f"{self._path}, row {row:,}: expected a label{column} to compare with, found none; "
                "'streamcd predict' needs none"
            )

    @property
    def n_threads(self) -> int:
        return self._threads.count

    def dataset_rows(self, phase: str, chunks: range) -> Iterator[DecidedRows]:
        """Yield the rows of some chunks."""
        dataset = self.dataset
        assert dataset is not None
        count = self.n_threads
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
        feature = data.feature.astype(np.int64) + self._shift if self._shift else data.feature
        found = self._decide(data.source, data.label, data.weight, data.indptr, feature, data.value)
        return found if self.n_threads == 1 else list(found)

    def text_rows(self, phase: str, part: ByteRange | None = None, *start: int) -> Iterator[DecidedRows]:
        """Yield the rows of all files, or of a part of one that starts at the given row and line."""
        source = self._source(self._text_block, self._decoder_bytes)
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

    def _shared_rows(self, phase: str) -> Iterator[DecidedRows]:
        """Yield all rows, decided by several processes, from whose files they are read in the order of a single process."""
        with scratch_directory(self.scratch, "decisions") as directory:
            self.model.save(directory / "model")
            with Workers(self._workers, self.listener, __name__) as workers:
                tasks, sizes, unit = self._tasks(workers)
                paths = [directory / f"{number:07d}" for number in range(len(tasks))]
                data = (self._path, None) if self.dataset is None else (self.dataset.path, self.dataset.cache)
                shared = data, str(directory), self._share, self.n_threads, self._compared
                tasks = [(*shared, path, *task) for path, task in zip(paths, tasks, strict=True)]
                for ignored, unseen in workers.run(_decide_share, tasks, phase=phase, unit=unit, sizes=sizes):
                    self.n_ignored, self.n_unseen = self.n_ignored + ignored, self.n_unseen + unseen
            for path in paths:
                yield from self._read_rows(path)
                path.unlink()

    def _tasks(self, workers: Workers) -> tuple[list[tuple[Any, ...]], list[int], str]:
        """Return the tasks' arguments, their sizes, and the unit of the sizes."""
        n_tasks = TASKS_PER_WORKER * self._workers
        dataset = self.dataset
        if dataset is not None:
            shares = in_shares(np.diff(dataset.entry_start).tolist(), n_tasks)
            sizes = [int(dataset.row_start[stop] - dataset.row_start[start]) for start, stop in shares]
            return [(range(start, stop),) for start, stop in shares], sizes, "rows"
        decoder_bytes = max(_LEAST_DECODER_BYTES, (self._share - RESERVED_BYTES) // 4)
        source = self._source(BLOCK_BYTES, decoder_bytes)
        pieces = counted_pieces(source, n_tasks, workers)
        sizes = [piece.n_bytes for piece, *_ in pieces]
        return [(piece, *start) for piece, _, start in pieces], sizes, "B"

    def _read_rows(self, path: Path) -> Iterator[DecidedRows]:
        """Yield rows from a worker's file, in blocks of the size used here."""
        n_columns = 3 + self.model.n_vectors
        with open(path, "rb") as file:
            while (records := np.fromfile(file, count=self.block_rows * n_columns)).size:
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
        if self._scaling is not None:
            value = self._scaling.apply(indptr, feature, value, self.model.n_features)
        for start in range(0, label.size, self.block_rows):
            stop = min(label.size, start + self.block_rows)
            decided = self._decide_block(indptr[start : stop + 1], feature, value, threads or Threads())
            yield DecidedRows(source[start:stop], label[start:stop], weight[start:stop], *decided)

    def _decide_block(
        self, indptr: np.ndarray, feature: np.ndarray, value: np.ndarray, threads: Threads
    ) -> tuple[np.ndarray, int]:
        """Return the decisions about rows, divided among threads, and the number of ignored entries."""
        n_parts = threads.parts(int(indptr[-1] - indptr[0]) * self.model.n_vectors)
        bounds = np.linspace(0, indptr.size - 1, n_parts + 1).astype(np.int64).tolist()
        calls = [
            partial(self.model.decisions, indptr[start : stop + 1], feature, value)
            for start, stop in itertools.pairwise(bounds)
        ]
        found = list(Threads(n_parts).in_order(calls))
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
) -> tuple[int, int]:
    """Write the rows of some chunks or of a part of a file, with their decisions; returns ignored entries and categories."""
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
    return decisions.n_ignored, decisions.n_unseen


def cached(
    data: Dataset | str | os.PathLike[str], cache: str | os.PathLike[str] | None, cache_size: int | str | None
) -> Dataset | str | os.PathLike[str]:
    """Open a dataset with a cache, if one is asked for; other data stay as they are."""
    return data if cache is None and cache_size is None else open_cached(data, cache, cache_size)


def is_dataset(data: str | os.PathLike[str]) -> bool:
    """Return whether a path is a dataset; files in other directories are read like a glob."""
    if not isinstance(data, str | os.PathLike):
        raise UsageError(
            f"expected a dataset or the path of one, or of files, found {type(data).__name__}; Model.predict and "
            "Model.decision_function take frames and matrices, and convert makes datasets of them"
        )
    return (location(data) / "manifest.json").exists()


def identify(data: str) -> str:
    """Identify data: a dataset by its fingerprint, files by a digest of their bytes, at URLs of sizes and versions."""
    if is_dataset(data):
        return open_dataset(data, check_files=False).fingerprint
    paths, _ = expand([data])
    found = [
        str(place.status()) if isinstance(place := location(path), Url) else file_checksum(place)
        for path in paths
    ]
    return content_digest({"files": found})[:32]


def reads_once(data: Dataset | str | os.PathLike[str]) -> bool:
    """Tell standard input and pipes, which cannot be read again."""
    if isinstance(data, Dataset) or is_dataset(data):
        return False
    return total_bytes(expand_sources(os.fspath(data))) is None


def _model_bytes(model: Model) -> int:
    """Return the memory of a model, with its own copy of the code matrix, of one byte, and an intermediate one."""
    arrays = model.weights.nbytes + (0 if model.scaling.scales is None else model.scaling.scales.nbytes)
    return arrays + (0 if model.encoding is None else model.encoding.nbytes) + 2 * model.score_code_bytes


def _chunk_bytes(dataset: Dataset, *, scaled: bool) -> int:
    """Return the memory to read the largest chunk: as stored, decoded, and again with 64-bit features or scaled values."""
    n_entries = int(np.diff(dataset.entry_start).max(initial=0))
    n_rows = int(np.diff(dataset.row_start).max(initial=0))
    return n_entries * (2 * dataset.entry_bytes + (16 if scaled else 8)) + n_rows * 2 * 8 * 6


def _missing_scaling(dataset: Dataset, model: Model) -> Scaling | None:
    """Return the scaling that a dataset's values still need for the model; None if scaled like its training data."""
    if dataset.scaling == model.scaling:
        return None
    if dataset.scaling.changes_values:
        same_options = dataset.scaling.options() == model.scaling.options()
        raise ModelError(
            f"{dataset.path}: converted with {dataset.scaling.options()}, the model was trained on data with "
            f"{model.scaling.options()}{', by other scales' if same_options else ''}; "
            "convert it with --like MODEL, or without scaling, which predictions then apply"
        )
    return model.scaling


def _feature_shift(dataset: Dataset, model: Model) -> int:
    """Return the number to add to the dataset's features so that the same index in the text means the same feature."""
    shift = dataset.index_base - model.index_base
    if shift < 0:
        raise ModelError(
            f"{dataset.path}: its text counts features from 0, the model's from {model.index_base}; "
            "convert it with --like MODEL or with the training data's --index-base"
        )
    return shift


def _usable_workers(data: Dataset | str | os.PathLike[str], workers: int, listener: Listener) -> int:
    """The number of workers that can read the data: one, where it can be read but once, or has rows chosen in memory."""
    if isinstance(data, Dataset) and data is not data.whole:
        return 1
    if checked_workers(workers) == 1 or not reads_once(data):
        return workers
    listener.warning(
        "standard input, pipes and servers without ranges are read by one process: continuing with --workers 1"
    )
    return 1

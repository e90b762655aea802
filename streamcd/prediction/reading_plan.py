"""Rows to score, of a dataset or of files, and the shares of the memory in which they are read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..conversion.formats import Files, expand, is_plain, open_source
from ..conversion.options import TableOptions
from ..conversion.sources import LEAST_DECODER_BYTES, Reading, Source, is_files, open_data, total_bytes
from ..core.errors import ModelError
from ..core.memory_budget import RESERVED_BYTES, parse_size, require
from ..core.options import Listener, SharedWork
from ..core.parallel import available_cores, memory_per_worker
from ..core.storage import REMOTE_BYTES, is_url, location
from ..dataset.dataset import Dataset, open_dataset
from ..dataset.source_features import Scaling, indices_of
from ..models.encoding import Encoding
from ..models.model import Model
from ..models.scoring import affordable_threads, chunk_bytes

_LEAST_ROWS, _MAX_ROWS = 256, 1 << 16  # scored at a time
FOOTER_BYTES = 900
"""Bytes that pyarrow keeps for each column of a row group until the file is closed; measured: 860 to 890."""

_TEXT_BLOCK = 4 << 20
_TEXT_BLOCKS_HELD = 14  # the parser's own figure, a copy of the indices, and scaled values

Data = Any
"""A dataset, a path of one or of files, or blocks in memory, as `convert` takes them."""


@dataclass(frozen=True)
class Means:
    """Resources of scoring: bytes of memory, processes, threads of each, and who hears of it."""

    budget: int
    listener: Listener = field(default_factory=Listener)
    workers: int = 1
    threads: int = 1

    @classmethod
    def of(cls, asked: SharedWork) -> Means:
        """Take them from options; processes share the processors."""
        threads = max(available_cores() // max(asked.workers, 1), 1)
        return cls(parse_size(asked.memory), asked.listener or Listener(), asked.workers, threads)


class RowsToScore:
    """Rows of a dataset, of files or in memory, as a model sees them; `scaling` is what their values still need, if any.

    Rows that are `compared` with their labels need one, and have the weights of the table's column, where it is there;
    others need none, and weigh 1.
    """

    def __init__(self, data: Data, model: Model, *, compared: bool = False) -> None:
        self.data, self.model, self.compared = data, model, compared
        self.in_memory = is_in_memory(data)
        self.path = (
            "data in memory" if self.in_memory else str(data.path if isinstance(data, Dataset) else data)
        )
        self._opened: Source | None = None
        self.dataset: Dataset | None = None
        self.paths: list[str] = []
        if isinstance(data, Dataset) or is_dataset(data):
            self.dataset = data if isinstance(data, Dataset) else open_dataset(data)
            self.scaling = _missing_scaling(self.dataset, model)
            _check_labels(self.dataset, model)
            self._indices = indices_of(self.dataset)
            self._numbered_alike = self._indices.equal(model.source_indices)
            _check_base(self.dataset, model)
        else:
            self._files = Files([], {}, {}) if self.in_memory else expand(self.path)
            self.paths = self._files.paths
            self.scaling = model.scaling if model.scaling.changes_values else None

    def features(self, feature: np.ndarray) -> np.ndarray:
        """Return the model's features that have the same indices in the source as those of the dataset, if it has them."""
        if self._numbered_alike:
            return feature
        return self.model.source_indices.features(self._indices.of(feature.astype(np.int64)))

    def needs(self) -> dict[str, int]:
        """Return the memory that reading needs at least."""
        if self.dataset is not None:
            return {
                "the client of the URL": self.dataset.client_bytes,
                "one chunk": chunk_bytes(self.dataset, scales=self.scaling is not None),
                "indices of features": self._indices.nbytes,
            }
        if self.in_memory:
            return {"blocks of rows": _TEXT_BLOCKS_HELD << 16}
        are_plain = all(map(is_plain, self.paths))
        return {
            "the client of the URL": REMOTE_BYTES if any(map(is_url, self.paths)) else 0,
            "text": _TEXT_BLOCKS_HELD << 16,
            "decompression": 0 if are_plain else LEAST_DECODER_BYTES,
            "columns being read": self.source(1 << 16, 0).held_bytes if are_plain else 0,
        }

    def _encoding(self) -> Encoding | None:
        """Return the model's encoding, with the column of identities where predictions are asked for."""
        encoding = self.model.encoding
        if encoding is None:
            return None
        return replace(encoding, id="" if self.compared else encoding.id, fold="")

    def source(self, block_bytes: int, decoder_bytes: int, batch_bytes: int = 0) -> Source:
        """Open the files, or the blocks, which can be read but once, as a source of rows with the model's features."""
        model = self.model
        ends = model.indices is None
        reading = Reading(
            np.float64,
            block_bytes,
            decoder_bytes=decoder_bytes,
            batch_bytes=_TEXT_BLOCKS_HELD * block_bytes + batch_bytes,
            index_base=model.index_base,
            any_width=True,
            n_features=model.n_features if ends else None,
            ignore_beyond=ends,
            needs_label=False,
            reads_weights=self.compared,
            encoding=self._encoding(),
            class_names=tuple(model.class_names or ()),
            of_numbers=model.class_names is None,
            end_label=2.0**53 if self.compared and not model.has_targets else np.inf,
        )
        if not self.in_memory:
            return open_source(self._files, "auto", reading, TableOptions())
        if self._opened is None:
            self._opened = open_data(self.data, reading, TableOptions())
        return self._opened


class ReadingPlan:
    """Shares of the memory in which rows are scored.

    The budget is for the sum of the processes that score, and then for this one, which reads their results; `left` of it
    remains for the caller. Of the Parquet file that the caller writes, of `n_columns` columns in row groups of `block_rows`
    rows, there is room for the footers of `most_groups` groups. As many threads share the work of this process as the memory
    has room for.
    """

    def __init__(self, rows: RowsToScore, means: Means, n_columns: int) -> None:
        model, self._rows, budget = rows.model, rows, means.budget
        needs, footer_bytes = scoring_needs(model, rows.needs()), FOOTER_BYTES * n_columns
        needs |= {"the footer of the predictions": footer_bytes}
        self.left = require(budget, needs, "give a larger --memory, or leave --proba out")
        self.workers = _usable_workers(rows.data, means)
        self.worker_bytes = self._bytes_of_a_worker(budget, needs) if self.workers > 1 else 0
        # groups of rows of a Parquet file take their memory first: the more rows each has, the fewer footers are kept
        self.block_rows, self.most_groups = _LEAST_ROWS, 0
        if footer_bytes:
            self.block_rows += self._take(_row_bytes(model), _MAX_ROWS - _LEAST_ROWS, share=2)
            self.most_groups = 1 + self._take(footer_bytes, share=2)
        self.text_block, self.decoder_bytes, self.batch_bytes = 1 << 16, needs.get("decompression", 0), 0
        if self.decoder_bytes:
            self.decoder_bytes += self._take()
        if rows.dataset is None:
            self.text_block += self._take(_TEXT_BLOCKS_HELD, _TEXT_BLOCK - self.text_block, share=2)
            self.batch_bytes = self._take()  # of tables: a compressed batch of Arrow's is decoded as a whole
        if not footer_bytes:
            self.block_rows += self._take(_row_bytes(model), _MAX_ROWS - _LEAST_ROWS)
        self.threads = self._count_threads(means.threads)

    def _bytes_of_a_worker(self, budget: int, needs: dict[str, int]) -> int:
        """Return the budget of each of several workers; the footer is this process's alone."""
        theirs, own = dict(needs), {"model": needs["the model"]}
        own["footer of the predictions"] = theirs.pop("the footer of the predictions")
        each = sum(theirs.values()) + RESERVED_BYTES
        return each + memory_per_worker(budget, self.workers, theirs, own)

    @property
    def piece_decoder_bytes(self) -> int:
        """Memory to decompress with, of a worker that counts rows."""
        return max(LEAST_DECODER_BYTES, (self.worker_bytes - RESERVED_BYTES) // 4)

    def _take(self, each: int = 1, most: int = 1 << 62, share: int = 4) -> int:
        """Take the memory of up to `most` things of `each` bytes, in one of `share` parts of what is left; returns their
        number."""
        count = max(min(most, self.left // share // each), 0)
        self.left -= count * each
        return count

    def _count_threads(self, threads: int) -> int:
        """Return the number of threads there is memory for, and take it; with a dataset, each reads and scores a chunk."""
        rows = self._rows
        if rows.dataset is None or self.workers > 1:
            return threads
        n_vectors, scales = rows.model.n_vectors, rows.scaling is not None
        count, taken = affordable_threads(rows.dataset, self.left // 4, n_vectors, threads, scales=scales)
        self.left -= taken
        return count


def is_in_memory(data: Data) -> bool:
    """Tell blocks of rows from a dataset and from paths."""
    return not isinstance(data, Dataset) and not is_files(data)


def is_dataset(data: Data) -> bool:
    """Return whether a path is a dataset; files in other directories are read like a glob."""
    return not is_in_memory(data) and (location(data) / "manifest.json").exists()


def reads_once(data: Data) -> bool:
    """Tell blocks, standard input and pipes, which cannot be read again."""
    if isinstance(data, Dataset) or is_dataset(data):
        return False
    return is_in_memory(data) or total_bytes(expand(os.fspath(data)).paths) is None


def scoring_needs(model: Model, reading: Mapping[str, int]) -> dict[str, int]:
    """Return the memory that scoring needs at least, of which `reading` (`RowsToScore.needs`) is a part."""
    return {"the model": _model_bytes(model), **reading, "decisions": _LEAST_ROWS * _row_bytes(model)}


def _row_bytes(model: Model) -> int:
    """Return the bytes of a row's decisions, scores and probabilities, and of the arrays made from them."""
    return 8 * (5 * model.n_vectors + 4 * model.n_classes + 8)


def _model_bytes(model: Model) -> int:
    """Return the memory of a model, with its own copy of the code matrix, of one byte, and an intermediate one."""
    arrays = model.kept_weights.nbytes + (0 if model.scaling.scales is None else model.scaling.scales.nbytes)
    arrays += model.source_indices.nbytes
    return arrays + (0 if model.encoding is None else model.encoding.nbytes) + 2 * model.choice.code_bytes


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


def _check_labels(dataset: Dataset, model: Model) -> None:
    """Refuse targets where the model was trained on classes, and the other way round."""
    if dataset.has_targets != model.has_targets:
        kinds = "classes", "numbers to predict"
        wanted, found = kinds[model.has_targets], kinds[dataset.has_targets]
        raise ModelError(
            f"{dataset.path}: expected rows with {wanted} for a model of {model.loss}, found {found}; convert "
            f"{'with' if model.has_targets else 'without'} --target, or --like the model"
        )


def _check_base(dataset: Dataset, model: Model) -> None:
    """Refuse features that the source counts from 0, where the model's are counted from 1."""
    if dataset.index_base < model.index_base:
        raise ModelError(
            f"{dataset.path}: its text counts features from 0, the model's from {model.index_base}; "
            "convert it with --like MODEL or with the training data's --index-base"
        )


def _usable_workers(data: Data, means: Means) -> int:
    """Return the number of workers that can read the data: one, where it can be read but once."""
    if means.workers == 1 or not reads_once(data):
        return means.workers
    means.listener.warning(
        "blocks, standard input, pipes and servers without ranges are read by one process: continuing with --workers 1"
    )
    return 1

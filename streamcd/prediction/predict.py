"""Predictions of a model, streamed over a dataset, text or tables in bounded memory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from ..conversion.formats import expand
from ..core.errors import UsageError
from ..core.external_partition import MAX_BUCKETS, Layout, PartitionReader, PartitionWriter, Records
from ..core.files import check_output, replacing, scratch_directory
from ..core.memory_budget import format_size, parse_size, require
from ..core.options import takes
from ..core.storage import local_path
from ..dataset.dataset import Dataset
from ..dataset.kept_columns import InOrder, texts_of
from ..dataset.schema import schema
from ..dataset.writer import TableWriter
from ..models.encoding import count_unknown
from ..models.model import Model
from ..models.stored import load_model
from .options import PredictOptions
from .outputs import (
    KINDS,
    Output,
    PredictionColumns,
    is_output,
    output_format,
    positive_scores,
    write_lines,
)
from .reading_plan import FOOTER_BYTES, Means, is_dataset, is_in_memory
from .scored_rows import Scoring


@takes(PredictOptions)
def predict(
    data: Any,
    model: Model | str | os.PathLike[str],
    out: Output | None,
    asked: PredictOptions,
) -> Any:
    """Predict every row, in source order.

    Parameters
    ----------
    data : Dataset, path, or blocks
        A dataset, or whatever `convert` reads: files, directories, globs, a frame, ``(X, y)``, an iterable of such blocks,
        of which one is in memory at a time; arrays may lack `y`. All but scaled datasets are scaled as the model's training
        data was; a table needs the training table's columns. Rows need no label.
    model : Model or path
        A path names a model or a run.
    out : path or text file, optional
        By default an array is returned. A Parquet file with the columns ``source`` (0-based row of the source, as in a
        dataset's table of rows), ``prediction``, ``decision`` (with several classes ``decision_<label>``) and with `proba`
        ``probability_<label>``, behind the column that identifies rows where the table was converted with `id`; a name
        ending in ``.csv`` gets CSV with the same columns; one ending in ``.txt``, or a stream, a line with the label for
        each row.
    {options}

    Returns
    -------
    ndarray, shape (rows,) or (rows, classes)
        Without `out`: labels as in the source, or numbers; with `proba` the probabilities of all classes, with `decision`
        (one of the two) decisions: of two classes one, above 0 for the larger. Refused where it does not fit in `memory`.
    dict
        With it: ``n_rows``, ``n_ignored`` (entries of features that the model does not have), and ``n_unseen`` (categories
        that it has not seen).

    Raises
    ------
    ModelError, DatasetError, DataError, UsageError

    Examples
    --------
    >>> streamcd.predict("reviews/test.txt", "run", "predictions.csv", proba=True)["n_rows"]
    2000
    >>> streamcd.predict("reviews/test.txt", "run").shape
    (2000,)
    """
    if out is None:
        return _predictions(data, model, asked)
    form = output_format(out)
    if isinstance(out, str | os.PathLike):
        of_files = not (isinstance(data, Dataset) or is_dataset(data) or is_in_memory(data))
        inputs = expand(os.fspath(data)).paths if of_files else ()
        place = local_path(out, "predictions")
        check_output(place, KINDS[form], lambda path: is_output(path, form), force=asked.force, inputs=inputs)
    budget = parse_size(asked.memory)
    model = load_model(model, asked.C, l1=asked.l1, memory=budget, deviations=False)
    if asked.proba:
        model.log_probabilities(np.empty((0, model.n_vectors)))  # raises before any work
    scratch = Path(out).parent if isinstance(out, str | os.PathLike) else None
    columns = PredictionColumns(model, asked.decision or form == "parquet", asked.proba)
    n_columns = len(columns.types()) + 1 if form == "parquet" else 0
    scoring = Scoring(data, model, Means.of(asked), scratch=scratch, n_columns=n_columns)
    if not isinstance(out, str | os.PathLike):
        n_rows = _write_lines(out, columns, form, scoring)
        out.flush()
    else:
        with replacing(Path(out)) as (partial,):
            if form == "parquet":
                n_rows = _write_parquet(partial, columns, scoring, budget)
            else:
                with open(partial, "w", encoding="utf-8", newline="") as file:
                    n_rows = _write_lines(file, columns, form, scoring)
    ignored = scoring.ignored
    return {"n_rows": n_rows, "n_ignored": ignored.n_ignored, "n_unseen": count_unknown(ignored.unseen)}


def _predictions(data: Any, model: Any, asked: PredictOptions) -> np.ndarray:
    """Predict all rows into one array, which has to fit in the memory that scoring leaves."""
    if asked.decision and asked.proba:
        raise UsageError("decision and proba exclude each other without out: give one of them")
    model = load_model(model, asked.C, l1=asked.l1, memory=asked.memory)

    def values(decisions: np.ndarray) -> np.ndarray:
        if asked.proba:
            return np.exp(model.log_probabilities(decisions))
        if not asked.decision:
            return model.predicted(decisions)
        return positive_scores(model.choice, decisions) if model.n_classes <= 2 else model.scores(decisions)

    none = values(np.empty((0, model.n_vectors)))  # raises before any work
    scoring = Scoring(data, model, Means.of(asked))
    left, row_bytes = scoring.plan.left, none.itemsize * math.prod(none.shape[1:])

    def check_room(n_rows: int) -> None:
        needs, refusal = (
            {"predictions in an array": n_rows * row_bytes},
            f"--memory leaves {format_size(left)}:",
        )
        require(left, needs, "give a larger --memory, or a file as out", refusal, reserved=0)

    if scoring.dataset is not None:
        check_room(scoring.dataset.n_rows)
        found = np.empty((scoring.dataset.n_rows, *none.shape[1:]), none.dtype)
        for block in scoring.blocks("predict"):
            found[block.source] = values(block.decisions)
        return found
    joined, n_rows = bytearray(), 0
    for block in scoring.blocks("predict"):
        n_rows += block.source.size
        check_room(2 * n_rows)  # it is there twice where it is moved to grow
        joined += values(block.decisions).tobytes()
    return np.frombuffer(joined, none.dtype).reshape(-1, *none.shape[1:])


def _write_lines(file: TextIO, columns: PredictionColumns, form: str, scoring: Scoring) -> int:
    """Write all rows as lines of text or CSV; returns their number."""
    columns, blocks, identities = _opened(columns, scoring, named=form == "csv")
    named = (
        (block, texts_of(identities.take(block.shape[0])) if columns.identity else None) for block in blocks
    )
    return write_lines(file, columns, form, named)


def _write_parquet(path: Path, columns: PredictionColumns, scoring: Scoring, budget: int) -> int:
    """Write all rows to a Parquet file; returns their number. Refused if its footer does not fit in `budget`."""
    columns, blocks, identities = _opened(columns, scoring, named=True)
    n_rows, types, writer = 0, columns.types(), None
    for number, block in enumerate(_row_groups(blocks, scoring)):
        if number == scoring.plan.most_groups:
            room = format_size(scoring.plan.most_groups * FOOTER_BYTES * len(types))
            raise UsageError(
                f"--memory {format_size(budget)} is too small: {room} for the footer of the predictions hold "
                f"{n_rows:,} rows of {len(types):,} columns, and there are more; give a larger --memory"
            )
        identity = {columns.identity: identities.take(block.shape[0])} if columns.identity else {}
        if writer is None:
            kinds = {name: values.type for name, values in identity.items()}
            writer = TableWriter(path, schema(**kinds, **types), "zstd")
        writer.write(identity | columns.values(n_rows, block))
        n_rows += block.shape[0]
    assert writer is not None, "data without rows are refused"
    writer.close()
    return n_rows


def _opened(
    columns: PredictionColumns, scoring: Scoring, *, named: bool
) -> tuple[PredictionColumns, Iterator[np.ndarray], InOrder]:
    """Begin to score: blocks of decisions in the order of the source, and what identifies their rows where they are `named`.

    It is a column of the dataset; of files it comes with their rows, if they have the column: the first rows tell.
    """
    dataset, encoding, name = scoring.dataset, scoring.model.encoding, ""
    if named:
        name = dataset.id_column if dataset is not None else encoding.id if encoding else ""
    identities = InOrder(dataset.read_kept(name) if dataset is not None and name else None)
    blocks = _in_source_order(scoring, identities if name else None)
    if name and dataset is None:
        first = next(blocks, None)
        blocks = chain(() if first is None else (first,), blocks)
        name = name if identities.n_held else ""
    return replace(columns, identity=name), blocks, identities


def _row_groups(blocks: Iterable[np.ndarray], scoring: Scoring) -> Iterator[np.ndarray]:
    """Join blocks, so that all but the last have `block_rows` rows; each is valid until the next one is taken."""
    joined, filled = np.empty((scoring.plan.block_rows, scoring.model.n_vectors)), 0
    for block in blocks:
        start = 0
        while start < block.shape[0]:
            part = block[start : start + scoring.plan.block_rows - filled]
            joined[filled : filled + part.shape[0]] = part
            start, filled = start + part.shape[0], filled + part.shape[0]
            if filled == scoring.plan.block_rows:
                yield joined
                filled = 0
    if filled:
        yield joined[:filled]


def _in_source_order(scoring: Scoring, identities: InOrder | None) -> Iterator[np.ndarray]:
    """Yield blocks of decisions in the order of the source; adds to `identities` those that come with the rows."""
    dataset = scoring.dataset
    if dataset is None:
        for rows in scoring.blocks("predict"):
            if identities is not None and rows.identity is not None:
                identities.add(rows.identity)
            yield rows.decisions
        return
    with scratch_directory(scoring.scratch, "predict") as directory:
        order = SourceOrder(dataset.n_rows, scoring.model.n_vectors, scoring.plan.left, directory)
        for rows in scoring.blocks("predict"):
            order.add(rows.source, rows.decisions)
        yield from order.blocks(scoring.plan.block_rows)


# ---------------------------------------------------------------------------------------------------------------------
# Shuffled rows in the order of their source, in bounded memory

_LEAST_ROWS = 1024
"""Least rows in a bucket, and least rows buffered for writing, whatever the memory."""


class SourceOrder:
    """Sorter of records, one of floats per row, by the row's number in the source.

    Records that do not fit in memory are partitioned into buckets, one per range of source rows, each of which fits.
    Source rows are 0 … n_rows − 1, each of them once; `scratch` is an empty directory, for the buckets.
    """

    def __init__(
        self, n_rows: int, n_columns: int, memory_bytes: int, scratch: str | os.PathLike[str]
    ) -> None:
        self._layout = Layout((np.dtype(np.int64), np.dtype((np.float64, (n_columns,)))))
        # a bucket is sorted while blocks of a quarter of its size are read
        fitting = memory_bytes // (16 * (1 + n_columns))
        self._bucket_rows = max(_LEAST_ROWS, fitting, n_rows // (MAX_BUCKETS - 1))
        self._n_rows, self._n_columns, self._path = n_rows, n_columns, Path(scratch) / "run"
        self._ordered: np.ndarray | None = None
        if n_rows <= self._bucket_rows:
            self._ordered = np.empty((n_rows, n_columns))
        else:
            n_buckets = -(-n_rows // self._bucket_rows)
            waiting = max(2 * memory_bytes // 3, _LEAST_ROWS * self._layout.record_bytes)
            self._writer = PartitionWriter(self._path, self._layout, n_buckets, waiting)

    def add(self, source_row: np.ndarray, records: np.ndarray) -> None:
        """Take rows: their numbers in the source, int64 (rows,), and records, float64 (rows, n_columns)."""
        if self._ordered is not None:
            self._ordered[source_row] = records
        else:
            bucket = (source_row // self._bucket_rows).astype(np.uint16)
            self._writer.append(bucket, Records((source_row, records)))

    def blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Yield all records in order, at most `rows` at a time."""
        for ordered in self._buckets():
            for row in range(0, len(ordered), rows):
                yield ordered[row : row + rows]

    def _buckets(self) -> Iterator[np.ndarray]:
        if self._ordered is not None:
            yield self._ordered
            return
        self._writer.close()
        del self._writer  # its memory
        with PartitionReader([self._path], self._layout) as reader:
            for bucket, start in enumerate(range(0, self._n_rows, self._bucket_rows)):
                ordered = np.empty((min(self._bucket_rows, self._n_rows - start), self._n_columns))
                for block in reader.blocks(bucket, self._bucket_rows * self._layout.record_bytes // 4):
                    source_row, records = block.fields
                    ordered[source_row - start] = records
                yield ordered

"""Predictions of a model, streamed over a dataset, text or tables in bounded memory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.external_partition import MAX_BUCKETS, Layout, PartitionReader, PartitionWriter, Records
from ..core.files import check_output, replacing, scratch_directory
from ..core.memory_budget import format_size, require
from ..core.options import takes
from ..core.storage import local_path
from ..dataset.kept_columns import InOrder
from ..models.model import Model
from ..models.stored import load_model
from .options import PredictOptions
from .outputs import (
    FORMATS,
    Output,
    PredictionColumns,
    is_output,
    output_format,
    write_csv,
    write_parquet,
    write_text,
)
from .scorer import ScoredBlock, Scorer


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
    model = load_model(model, asked.C, l1=asked.l1, memory=asked.memory, deviations=False)
    columns = PredictionColumns(model, asked.decision or form == ".parquet", asked.proba)
    columns.table(0, np.empty((0, model.n_vectors)))  # raises before any work
    scratch = Path(out).parent if isinstance(out, str | os.PathLike) else None
    scorer = Scorer(data, model, asked, scratch=scratch)
    memory = scorer.left
    if form != ".txt":
        columns = replace(columns, identity=scorer.id_column)
    if form == ".parquet" and scorer.dataset is not None:
        memory //= 2
    tables = _tables(scorer, columns, memory)
    labels = model.label_texts() if asked.proba else []
    if not isinstance(out, str | os.PathLike):
        write_text(out, tables, labels)
        out.flush()
    else:
        path = local_path(out, "predictions")
        is_kind = partial(is_output, form=form)
        check_output(path, FORMATS[form], is_kind, force=asked.force, inputs=scorer.files.paths)
        with replacing(path) as (partial_path,):
            if form == ".parquet":
                write_parquet(partial_path, tables, model, memory)
            elif form == ".csv":
                write_csv(partial_path, tables)
            else:
                with open(partial_path, "w", encoding="utf-8", newline="") as file:
                    write_text(file, tables, labels)
    counts = scorer.counts
    n_rows = counts.n_rows if scorer.dataset is None else scorer.dataset.n_rows
    n_unseen = sum(values.n_values for values in counts.unseen.values())
    return {"n_rows": n_rows, "n_ignored": counts.n_ignored, "n_unseen": n_unseen}


def _predictions(data: Any, model: Any, asked: PredictOptions) -> np.ndarray:
    """Predict all rows into one array, which has to fit in the memory that scoring leaves."""
    if asked.decision and asked.proba:
        raise UsageError("decision and proba exclude each other without out: give one of them")
    model = load_model(model, asked.C, l1=asked.l1, memory=asked.memory, deviations=False)

    def values(decisions: np.ndarray) -> np.ndarray:
        if asked.proba:
            return np.exp(model.log_probabilities(decisions))
        if not asked.decision:
            return model.predicted(decisions)
        preferences: np.ndarray = model.decoder.preferences(decisions)
        return preferences[:, 0] if model.n_classes <= 2 else preferences

    none = values(np.empty((0, model.n_vectors)))  # raises before any work
    scorer = Scorer(data, model, asked)
    row_bytes = none.itemsize * math.prod(none.shape[1:])

    def check_room(n_rows: int) -> None:
        needs = {"predictions in an array": n_rows * row_bytes}
        refusal = f"--memory leaves {format_size(scorer.left)}:"
        require(scorer.left, needs, "give a larger --memory, or a file as out", refusal, reserved=0)

    if scorer.dataset is not None:
        check_room(scorer.dataset.n_rows)
        predictions = np.empty((scorer.dataset.n_rows, *none.shape[1:]), none.dtype)
        for block in scorer.blocks("predict"):
            predictions[block.source] = values(block.decisions)
        return predictions
    joined = bytearray()
    n_rows = 0
    for block in scorer.blocks("predict"):
        n_rows += block.source.size
        check_room(2 * n_rows)  # it is there twice where it is moved to grow
        joined += values(block.decisions).tobytes()
    return np.frombuffer(joined, none.dtype).reshape(-1, *none.shape[1:])


def _tables(scorer: Scorer, columns: PredictionColumns, memory: int) -> Iterator[Any]:
    """Yield tables of predictions, in the order of the source, with what identifies the rows."""
    dataset = scorer.dataset
    blocks = scorer.blocks("predict")
    if dataset is None:
        identities = InOrder()
        for block in blocks:
            if columns.identity:
                identities.add(block.identity)
            yield columns.table(int(block.source[0]), block.decisions, identities)
        return
    of_dataset = InOrder(dataset.read_kept(columns.identity)) if columns.identity else None
    n_rows = 0
    for part in in_source_order(blocks, dataset.n_rows, scorer.model.n_vectors, memory, scorer.scratch):
        for start in range(0, len(part), scorer.block_rows):
            decisions = part[start : start + scorer.block_rows]
            yield columns.table(n_rows, decisions, of_dataset)
            n_rows += len(decisions)


# ---------------------------------------------------------------------------------------------------------------------
# Shuffled rows in the order of their source, in bounded memory

_LEAST_ROWS = 1024
"""Least rows in a bucket, and least rows buffered for writing, whatever the memory."""


def in_source_order(
    blocks: Iterable[ScoredBlock], n_rows: int, n_columns: int, memory: int, scratch: Path
) -> Iterator[np.ndarray]:
    """Yield the decisions of all rows, `n_columns` each, in the order of the source, in parts that fit in memory.

    Those that do not fit in memory are partitioned into buckets in a directory in `scratch`, one for each range of source
    rows.
    """
    # a bucket is sorted while blocks of a quarter of its size are read
    bucket_rows = max(_LEAST_ROWS, memory // (16 * (1 + n_columns)), n_rows // (MAX_BUCKETS - 1))
    if n_rows <= bucket_rows:
        ordered = np.empty((n_rows, n_columns))
        for block in blocks:
            ordered[block.source] = block.decisions
        yield ordered
        return
    layout = Layout((np.dtype(np.int64), np.dtype((np.float64, (n_columns,)))))
    waiting = max(2 * memory // 3, _LEAST_ROWS * layout.record_bytes)
    with scratch_directory(scratch, "predict") as directory:
        path = directory / "run"
        with PartitionWriter(path, layout, -(-n_rows // bucket_rows), waiting) as writer:
            for block in blocks:
                bucket = (block.source // bucket_rows).astype(np.uint16)
                writer.append(bucket, Records((block.source, block.decisions)))
        del writer  # its memory
        with PartitionReader([path], layout) as reader:
            for number, start in enumerate(range(0, n_rows, bucket_rows)):
                ordered = np.empty((min(bucket_rows, n_rows - start), n_columns))
                for records in reader.blocks(number, bucket_rows * layout.record_bytes // 4):
                    source, decisions = records.fields
                    ordered[source - start] = decisions
                yield ordered

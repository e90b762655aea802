"""Predictions of a model, streamed over a dataset, text or tables in bounded memory, to an array or a file."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa

from ..core.errors import UsageError
from ..core.external_partition import MAX_BUCKETS, Layout, PartitionReader, PartitionWriter, Records
from ..core.files import begins_with, check_output, replacing, scratch_directory
from ..core.memory_budget import format_size, require
from ..core.options import takes
from ..core.storage import local_path
from ..dataset.arrow_columns import has_column
from ..dataset.kept_columns import InOrder
from ..dataset.writer import TableWriter
from ..models.model import Model
from ..models.stored import load_model
from .options import PredictOptions
from .scorer import ScoredBlock, Scorer, row_bytes

Output = str | os.PathLike[str] | TextIO


@takes(PredictOptions)
def predict(
    data: Any,
    model: Model | str | os.PathLike[str],
    out: Output | None,
    options: PredictOptions,
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
        dataset's table of rows), ``prediction``, of classes ``decision`` (of several ``decision_<label>``) and with `proba`
        ``probability_<label>``, behind the column that identifies rows where the table was converted with `id`; a name
        ending in ``.csv`` gets CSV with these columns, decisions only with `decision`; one ending in ``.txt``, or a stream,
        a line with the label for each row.
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
    if out is None and options.decision and options.proba:
        raise UsageError("decision and proba exclude each other without out: give one of them")
    form = "" if out is None else output_format(out)
    model = load_model(model, options.C, l1=options.l1, memory=options.memory, deviations=False)
    if options.proba:
        model.log_probabilities(np.empty((0, model.n_vectors)))  # raises before any work
    scratch = Path(out).parent if isinstance(out, str | os.PathLike) else None
    scorer = Scorer(data, model, options, scratch=scratch)
    if out is None:
        return _array(scorer, options)
    memory = scorer.left
    if form == ".parquet" and scorer.dataset is not None:
        memory //= 2
    tables = _tables(scorer, options, form, memory)
    labels = model.label_texts() if options.proba else []
    if not isinstance(out, str | os.PathLike):
        write_text(out, tables, labels)
        out.flush()
    else:
        path = local_path(out, "predictions")
        is_kind = partial(is_output, form=form)
        check_output(path, FORMATS[form], is_kind, force=options.force, inputs=scorer.files.paths)
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


def _array(scorer: Scorer, options: PredictOptions) -> np.ndarray:
    """Predict all rows into one array, which has to fit in the memory that scoring leaves."""
    model = scorer.model
    dataset = scorer.dataset

    def values(decisions: np.ndarray) -> np.ndarray:
        if options.proba:
            return np.exp(model.log_probabilities(decisions))
        if not options.decision:
            return model.predicted(decisions)
        preferences: np.ndarray = model.decoder.preferences(decisions)
        return preferences[:, 0] if model.n_classes <= 2 else preferences

    none = values(np.empty((0, model.n_vectors)))
    shape = none.shape[1:]
    predictions = np.empty_like(none)  # which has memory of its own, to grow

    def make_room(n_rows: int, n_copies: int) -> None:
        needs = {"predictions in an array": n_copies * n_rows * predictions.itemsize * math.prod(shape)}
        refusal = f"--memory leaves {format_size(scorer.left)}:"
        require(scorer.left, needs, "give a larger --memory, or a file as out", refusal, reserved=0)
        predictions.resize((n_rows, *shape), refcheck=False)

    if dataset is not None:
        make_room(dataset.n_rows, 1)
    for block in scorer.blocks("predict"):
        if dataset is None:
            make_room(int(block.source[-1]) + 1, 2)  # it is there twice where it is moved to grow
        predictions[block.source] = values(block.decisions)
    return predictions


# ---------------------------------------------------------------------------------------------------------------------
# Tables, and the files that they are written to


FORMATS = {
    ".parquet": "a Parquet file of predictions",
    ".csv": "a CSV file of predictions",
    ".txt": "a text file of predictions",
}
"""Formats, by the endings of names of files, with names for refusals."""

_GROUP_ROWS = 1 << 16
"""Rows of a row group of Parquet, at most."""

_FOOTER_BYTES = 900
"""Bytes that pyarrow keeps for each column of a row group until the file is closed; measured: 860 to 890."""


def output_format(out: Output) -> str:
    """Return one of `FORMATS` by the name of a file; streams get text."""
    if not isinstance(out, str | os.PathLike):
        if not hasattr(out, "write"):
            raise UsageError(f"out: expected a path or a text file, found {type(out).__name__}")
        return ".txt"
    form = Path(out).suffix.lower()
    if form not in FORMATS:
        raise UsageError(
            f"{out}: expected a name in .parquet, .csv or .txt: predictions are written in these formats"
        )
    return form


def is_output(path: Path, form: str) -> bool:
    """Return whether a file begins as the predictions of a format, which may take its place."""
    if form == ".parquet":
        return has_column(path, "prediction")
    csv_header = rb'([^\n]+,)?"?source"?,"?prediction"?[,\n\r]'
    return begins_with(path, csv_header if form == ".csv" else rb"(labels|[-+]?[\d.]\S*)[ \n]")


def _tables(scorer: Scorer, options: PredictOptions, form: str, memory: int) -> Iterator[pa.Table]:
    """Yield tables of predictions for a format, in the order of the source."""
    model = scorer.model
    decision = options.decision or form == ".parquet"
    identity = "" if form == ".txt" else scorer.id_column
    several = model.n_classes > 2
    texts = model.label_texts() if several or options.proba else []
    of_decisions = [f"decision_{label}" for label in texts] if several else ["decision"]
    of_probabilities = [f"probability_{label}" for label in texts]
    labels = pa.array(model.record.labels)
    n_rows = 0
    for decisions, identities in _in_order(scorer, identity, memory):
        columns: dict[str, Any] = {} if identities is None else {identity: identities}
        columns["source"] = np.arange(n_rows, n_rows + len(decisions))
        n_rows += len(decisions)
        if model.has_targets:
            yield pa.table(columns | {"prediction": decisions[:, 0]})
            continue
        columns["prediction"] = labels.take(pa.array(model.decoder.predicted_classes(decisions)))
        if decision:
            columns |= zip(of_decisions, model.decoder.preferences(decisions).T, strict=True)
        if options.proba:
            columns |= zip(of_probabilities, np.exp(model.log_probabilities(decisions)).T, strict=True)
        yield pa.table(columns)


def _in_order(scorer: Scorer, identity: str, memory: int) -> Iterator[tuple[np.ndarray, Any]]:
    """Yield the decisions of all rows in the order of the source, with the column that identifies them, if any."""
    dataset = scorer.dataset
    blocks = scorer.blocks("predict")
    if dataset is None:
        of_files = InOrder()
        for block in blocks:
            if identity:
                of_files.add(block.identity)
            yield block.decisions, of_files.take(block.source.size) if identity else None
        return
    of_dataset = InOrder(dataset.read_kept(identity)) if identity else None
    for part in in_source_order(blocks, dataset.n_rows, scorer.model.n_vectors, memory, scorer.scratch):
        for start in range(0, len(part), scorer.block_rows):
            decisions = part[start : start + scorer.block_rows]
            yield decisions, of_dataset.take(len(decisions)) if of_dataset else None


def write_text(file: TextIO, tables: Iterable[pa.Table], labels: list[str]) -> None:
    """Write lines of the label, and the numbers asked for; those of probabilities begin with a line ``labels …``.

    These are in the order of the columns, as of LIBLINEAR's ``predict -b 1``.
    """
    if labels:
        file.write(" ".join(["labels", *labels]) + "\n")
    for table in tables:
        cells = [map(str, column.to_numpy().tolist()) for column in table.columns[1:]]
        file.write("".join([" ".join(row) + "\n" for row in zip(*cells, strict=True)]))


def write_csv(path: Path, tables: Iterator[pa.Table]) -> None:
    """Write a CSV file: a header, in quotes where it needs them, and all columns as Arrow writes them."""
    from pyarrow.csv import CSVWriter, WriteOptions

    first = next(tables)
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerow(first.column_names)
        file.flush()
        options = WriteOptions(include_header=False)
        with CSVWriter(file.buffer, first.schema, write_options=options) as writer:
            for table in chain([first], tables):
                writer.write(table)


def write_parquet(path: Path, tables: Iterator[pa.Table], model: Model, memory: int) -> None:
    """Write a Parquet file; half of the memory is for a row group, half for the footer, which may not be longer."""
    group_rows = max(min(memory // 2 // row_bytes(model), _GROUP_ROWS), 1)
    first = next(tables)
    writer = TableWriter(path, first.schema, "zstd")
    waiting = first.slice(0, 0)
    n_rows = 0  # written
    for table in chain([first], tables, [None]):
        if table is not None:
            waiting = pa.concat_tables([waiting, table])
        # all groups but the last have so many rows
        while waiting.num_rows >= (group_rows if table is not None else 1):
            group = waiting.slice(0, group_rows)
            waiting = waiting.slice(group_rows)
            footer_bytes = _FOOTER_BYTES * group.num_columns
            if (n_rows // group_rows + 1) * footer_bytes > memory // 2:
                raise UsageError(
                    f"--memory is too small: {format_size(memory // 2)} for the footer of the predictions hold "
                    f"{n_rows:,} rows of {group.num_columns:,} columns, and there are more; give a larger --memory"
                )
            n_rows += group.num_rows
            (batch,) = group.combine_chunks().to_batches()
            writer.write(batch)
    writer.close()


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

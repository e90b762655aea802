"""Parsing: pieces of a source to rows of features with labels and weights, and these to runs, with counts and strings."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from ..core.errors import DataError
from ..core.parallel import Tell, ahead
from ..core.storage import Url, location
from ..dataset.arrow_columns import arrow_strings, dictionary_of, numbers_of, strings_of, type_name
from ..dataset.kept_columns import KeptWriter
from ..dataset.source_features import SourceIndices
from ..kernels import rows as kernels
from ..kernels.strings import UNKNOWN
from ..models.matrix_encoder import MatrixEncoder
from ..solvers.problem import LEAST_WEIGHT
from .external_shuffle import RunFormat, RunWriter
from .feature_statistics import DistinctFeatures, LabelCounts
from .numbering import LABELS, save_strings
from .plan import Plan
from .rows import Counts, RowBatch, Rows, are_weights
from .sources import LIBSVM, Block, Source

if TYPE_CHECKING:
    from ..models.string_table import StringTable

_MISSING = ("None", "nan", "NaT", "<NA>")
"""Texts of missing names in arrays of objects."""


def row_batches(
    source: Source, pieces: Sequence[Any], first_row: int, first_line: int, strings: StringTable | None
) -> Generator[RowBatch, None, None]:
    """Make batches of the rows of pieces; strings are numbered by a table, or by the encoding."""
    encoding, reading = source.encoding, source.reading
    if source.made_from == LIBSVM:
        from .libsvm import iterate_batches  # the parser's kernels: only where there is text

        yield from iterate_batches(pieces, reading, first_row, first_line)
        return
    encoder: Any
    dtype, first_index, ignore = reading.value_dtype, reading.index_base or 0, reading.ignore_beyond
    if encoding is None:
        encoder = MatrixEncoder(dtype, first_index, reading.width_end, ignore)
    else:
        from ..models.table_encoder import TableEncoder

        end = reading.width_end - (0 if reading.encoding is None else reading.encoding.sparse_start)
        encoder = TableEncoder(encoding, dtype, strings if source.grows else None, first_index, end, ignore)
    numbered = _name_numbers(source, strings) if source.names_labels else _numbers
    counts, kept = Counts(), [] if encoding is None else encoding.kept
    blocks = source.reader.blocks(pieces, first_line, source.table_types)
    for block in blocks if source.in_memory else ahead(blocks):
        encoder.message = block.message
        label, weight = _labels(source, block, numbered), _weights(source, block)
        for found in encoder.encode(block.content):
            n_rows, start = found.indptr.size - 1, first_row + counts.n_rows
            mine = slice(found.start, found.start + n_rows)
            counts.n_rows += n_rows
            counts.n_entries += found.feature.size
            state = encoder.state
            counts.n_explicit_zeros, counts.n_underflows = (
                int(state[kernels.ZEROS]),
                int(state[kernels.UNDERFLOWS]),
            )
            counts.n_ignored = int(state[kernels.IGNORED])
            counts.zero_index = counts.zero_index or bool(state[kernels.ZERO_INDEX])
            if (largest := encoder.largest_index) > counts.max_index:
                counts.max_index, counts.max_location = largest, block.message(int(state[kernels.MAX_ROW]))
            if encoding is not None:
                counts.unseen, counts.unindicated = dict(encoder.unseen), encoder.unindicated
                counts.n_missing = encoder.n_missing.copy()
            weights, source_row = None if weight is None else weight[mine], np.arange(start, start + n_rows)
            rows = Rows(source_row, label[mine], weights, found.indptr, found.feature, found.value)
            beside = block.content.select(kept).slice(found.start, n_rows) if kept else None
            yield RowBatch(rows, block.bytes_read, replace(counts), beside)


def _column(block: Block, name: str, given: np.ndarray | None) -> tuple[Any, Callable[[int], str]]:
    """Return the column `name` of a table, None where it lacks, or what is `given`; and a function that names its places."""
    if not name:
        return given, block.message
    column = block.content.column(name) if name in block.content.schema.names else None
    return column, lambda row: f"{block.message(row)}: column {name!r}"


def _numbers(given: Any) -> np.ndarray | None:
    """Return the numbers of an array of Arrow's or numpy's, as float64; None where it holds others."""
    if isinstance(given, pa.Array):
        given = numbers_of(given) if type_name(given.type) in ("number", "nothing") else None
    elif given.dtype.kind not in "biuf":
        given = None
    return None if given is None else given.astype(np.float64) + 0.0  # -0 is 0


def _kind(given: Any) -> str:
    return (
        str(given.type)
        if isinstance(given, pa.Array)
        else f"an array of shape {given.shape} of {given.dtype}"
    )


def _weights(source: Source, block: Block) -> np.ndarray | None:
    if not source.weighted:
        return None
    given, place = _column(block, "" if source.encoding is None else source.encoding.weight, block.weight)
    weight = _numbers(given)
    if weight is None or weight.size != block.content.shape[0]:
        raise DataError(
            f"{place(0)}: expected numbers as weights, one a row, found {_kind(given)}; check --weight-column"
        )
    bad = np.flatnonzero(~are_weights(weight))
    if bad.size:
        raise DataError(
            f"{place(int(bad[0]))}: expected a weight, 0 or from {LEAST_WEIGHT:g} to {1 / LEAST_WEIGHT:g}, found "
            f"{given[int(bad[0])]}; correct the row"
        )
    return weight


def _labels(source: Source, block: Block, numbered: Callable[[Any], np.ndarray | None]) -> np.ndarray:
    """Return the labels of a block's rows as numbers; NaN where they are missing and may be."""
    given, place = _column(block, "" if source.encoding is None else source.encoding.label, block.label)
    n_rows, reading, word = block.content.shape[0], source.reading, source.reading.label_word
    if given is None:
        if reading.needs_label:
            raise DataError(f"{block.message(0)}: expected {word}s, found none; see --{word}")
        return np.full(n_rows, np.nan)
    if len(given) != n_rows or getattr(given, "ndim", 1) != 1:
        raise DataError(
            f"{block.message(0)}: expected a {word} for each of {n_rows:,} rows, found {_kind(given)}"
        )
    label = numbered(given)
    if label is None:
        raise DataError(
            f"{place(0)}: expected numbers as {word}s, found {_kind(given)}; write them as numbers, or name another column"
        )
    bad = np.flatnonzero(~np.isfinite(label) & (np.isinf(label) | reading.needs_label))
    if bad.size:
        row = int(bad[0])
        raise DataError(f"{place(row)}: expected a {word}, found {given[row]}; correct or remove the row")
    return label


def _name_numbers(source: Source, strings: StringTable | None) -> Callable[[Any], np.ndarray]:
    """Make a function that numbers names of classes, by a table where it is given; unknown ones share a number."""
    from ..models.string_table import StringTable

    table, name = strings or StringTable(), source.encoding.label if source.encoding else ""
    if source.reading.class_names:
        table.number(LABELS, strings_of(arrow_strings(source.reading.class_names))[0], True, name)

    def numbers(given: Any) -> np.ndarray:
        if not isinstance(given, pa.Array):
            texts = zip(given.tolist(), given.astype(str).tolist(), strict=True)
            given = arrow_strings(
                [
                    text if isinstance(value, str | bytes) or text not in _MISSING else None
                    for value, text in texts
                ]
            )
        values, places = dictionary_of(given)
        codes = table.number(LABELS, strings_of(values)[0], strings is not None, name or "label")
        label = np.where(codes == UNKNOWN, len(source.reading.class_names), codes).astype(np.float64)
        return np.append(label, np.nan)[places]

    return numbers


# ---------------------------------------------------------------------------------------------------------------------
# Runs of rows


def stamp_of(path: str) -> tuple[Any, ...] | None:
    """Return the bytes of a file or URL, and what changes when its content does; None for no regular file, or none."""
    if isinstance(url := location(path), Url):
        return url.status()
    if not os.path.isfile(path):
        return None
    found = os.stat(path)
    return found.st_size, found.st_dev, found.st_ino, found.st_mtime_ns


class Task(NamedTuple):
    """Pieces of the source that one worker parses."""

    number: int
    pieces: Sequence[Any]
    first_row: int = 0
    first_line: int = 0
    n_rows: int | None = None  # None where they were not counted


class Weights(NamedTuple):
    """Weights of all rows: the file that they came from, and one with numbers of 8 bytes."""

    name: str
    path: Path
    n_weights: int

    def of(self, rows: Rows, task: Task) -> np.ndarray:
        weight = np.fromfile(self.path, count=rows.n_rows, offset=8 * int(rows.source_row[0]))
        if weight.size < rows.n_rows:
            # more rows than were counted, or than weights
            raise self.refusal("more") if task.n_rows is None else changed(task.pieces[0].path)
        return weight

    def refusal(self, n_rows: int | str) -> DataError:
        """Make the error of another number of rows."""
        return DataError(
            f"{self.name}: expected a weight for every row, found {self.n_weights:,} weights and {n_rows} rows; give one "
            "number a line"
        )


@dataclass(frozen=True)
class Parsing:
    """Parameters of parsing that all workers share."""

    form: RunFormat
    plan: Plan
    source: Source
    scale: str
    has_targets: bool  # labels are numbers to predict
    dictionaries: Path | None  # a directory for the strings of each task
    distinct: Path | None  # a directory for the indices that occur in each task
    # of features that are known: entries of others are left out
    indices: SourceIndices | None
    weights: Weights | None
    kept: Path | None  # a directory for the columns of each task that are kept beside the rows
    hold: bool  # all rows in memory if they fit, where there is one task
    tell: Tell | None  # takes the bytes read, if the whole source is one task


class Parsed(NamedTuple):
    """Results of a task, or of all tasks."""

    counts: Counts
    labels: LabelCounts
    held: tuple[Rows, np.ndarray] | None  # all rows in memory, and their final order


def changed(path: str) -> DataError:
    """Make the error of a source that changed while it was read."""
    return DataError(f"{path}: changed while it was read; convert it again")


def parse_task(parsing: Parsing, task: Task) -> Parsed:
    """Write the rows of some ranges as a run; if they are the whole source, keep them in memory if they fit."""
    counts, plan = Counts(), parsing.plan
    labels = LabelCounts(None if parsing.has_targets else {})
    distinct = None if parsing.distinct is None else DistinctFeatures(plan.map_bytes)
    n_unknown = 0
    strings = None
    if parsing.dictionaries is not None:
        from ..models.string_table import StringTable

        strings = StringTable(plan.map_bytes)
    kept = None if parsing.kept is None else KeptWriter(parsing.kept / f"{task.number:07d}.parquet")
    run = RunWriter(parsing.form, task.number, plan.sort_bytes)
    batches = row_batches(parsing.source, task.pieces, task.first_row, task.first_line, strings)
    # a program's own data may have to be read by the thread that made it
    for batch in batches if parsing.source.in_memory else ahead(batches):
        counts, rows = batch.counts, batch.rows
        if parsing.weights is not None:
            rows = replace(rows, weight=parsing.weights.of(rows, task))
        if kept is not None:
            kept.append(batch.kept)
        labels.add(rows.label)
        if distinct is not None:
            distinct.add(rows.index)
        elif parsing.indices is not None:
            n_before, rows = rows.n_entries, rows.with_entries(parsing.indices.features(rows.index) >= 0)
            n_unknown += n_before - rows.n_entries
        run.append(rows, counts.is_wide)
        if parsing.tell is not None:
            parsing.tell(batch.bytes_read)
    # where divisors of features fit beside them
    hold = parsing.scale == "none" or 8 * (counts.max_index + 1) <= plan.statistics_bytes
    held = run.close(hold=parsing.hold and hold)
    if kept is not None:
        kept.close()
    if strings is not None and parsing.dictionaries is not None:
        save_strings(strings, parsing.dictionaries, task.number)
    if distinct is not None and parsing.distinct is not None:
        np.save(parsing.distinct / f"{task.number:07d}.npy", distinct.merge())
    if task.n_rows not in (None, counts.n_rows):
        raise changed(task.pieces[0].path)
    counts = replace(counts, n_entries=counts.n_entries - n_unknown, n_ignored=counts.n_ignored + n_unknown)
    return Parsed(counts, labels, held)


def merge_distinct(directory: Path, n_bytes: int, out: Path) -> int:
    """Write the indices that occur in any task; returns their number."""
    distinct = DistinctFeatures(n_bytes)
    for path in sorted(directory.iterdir()):
        distinct.add(np.load(path))
    merged = distinct.merge()
    np.save(out, merged)
    return int(merged.size)

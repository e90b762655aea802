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
from ..dataset.arrow_columns import RECIPES, arrow_strings, dictionary_of, numbers_of, strings_of, type_name
from ..dataset.kept_columns import KeptWriter
from ..dataset.source_features import SourceIndices
from ..kernels import rows as kernels
from ..kernels.strings import UNKNOWN
from ..models.matrix_encoder import MatrixEncoder
from ..solvers.problem import LEAST_WEIGHT
from .external_shuffle import RunFormat, RunWriter
from .feature_statistics import DistinctFeatures
from .numbering import LABELS, save_strings
from .rows import NARROW, Counts, RowBatch, Rows, are_weights
from .sources import EXACT_LABEL, LIBSVM, NUMBER_ANEW, Block, Piece, Source, Task

if TYPE_CHECKING:
    from ..models.table_encoder import StringTable

_Numbered = Callable[[Any], np.ndarray]
_NUMBERS = ("number", "nothing", *"biuf")
"""Kinds of Arrow's and NumPy's types that are numbers."""

_MISSING = ("None", "nan", "NaT", "<NA>")
"""Texts of missing names in arrays of objects."""


def row_batches(
    source: Source, pieces: Sequence[Any], first_row: int, first_line: int, strings: StringTable | None
) -> Generator[RowBatch, None, None]:
    """Make batches of the rows of pieces; strings are numbered by a table, or by the encoding."""
    encoding = source.encoding
    reading = source.reading
    if source.made_from == LIBSVM:
        yield from source.reader.batches(pieces, first_row, first_line)
        return
    encoder: Any
    dtype = reading.value_dtype
    first_index = reading.index_base or 0
    ignore = reading.ignore_beyond
    if encoding is None:
        encoder = MatrixEncoder(dtype, 0, reading.width_end - first_index, ignore, first_index)
    else:
        from ..models.table_encoder import TableEncoder

        end = reading.width_end - (0 if reading.encoding is None else reading.encoding.sparse_start)
        encoder = TableEncoder(encoding, dtype, strings if source.grows else None, first_index, end, ignore)
    numbered = _name_numbers(source, strings) if source.names_labels else None
    counts = Counts()
    side_columns = [] if encoding is None else encoding.kept
    blocks = source.reader.blocks(Piece(""), source.table_types) if source.in_memory else None
    for block in blocks or ahead(source.blocks(pieces, first_line)):
        if encoding is not None:
            from .table_columns import checked_columns

            columns = checked_columns(block.content, source.table_types, block.place(0))
            block = block._replace(content=columns)
        encoder.message = block.place
        label = _labels(source, block, numbered)
        weight = _weights(source, block) if source.weighted else None
        for row, encoded in encoder.encode(block.content):
            start = first_row + counts.n_rows
            n_rows = encoded.indptr.size - 1
            state = encoder.state
            largest = encoder.largest_index
            location = counts.max_location
            if largest > counts.max_index:
                location = block.place(int(state[kernels.MAX_ROW]))
            counts = Counts(
                n_rows=counts.n_rows + n_rows,
                n_entries=counts.n_entries + encoded.feature.size,
                n_explicit_zeros=int(state[kernels.ZEROS]),
                n_underflows=int(state[kernels.UNDERFLOWS]),
                n_ignored=int(state[kernels.IGNORED]),
                zero_index=bool(state[kernels.ZERO_INDEX]),
                max_index=max(largest, counts.max_index),
                max_location=location,
            )
            if encoding is not None:
                counts.unseen = dict(encoder.unseen)
                counts.odd = dict(encoder.odd)
                counts.unindicated = encoder.unindicated
                counts.n_missing = encoder.n_missing + 0
            span = slice(row, row + n_rows)
            weights = None if weight is None else weight[span]
            source_row = np.arange(start, start + n_rows)
            rows = Rows(source_row, label[span], weights, *encoded)
            beside = block.content.select(side_columns).slice(row, n_rows) if side_columns else None
            yield RowBatch(rows, block.bytes_read, counts, beside)


def _labels(source: Source, block: Block, numbered: _Numbered | None) -> np.ndarray:
    """Return the labels of a block's rows as numbers; NaN where they are missing and may be."""
    reading = source.reading
    word = source.reading.label_word
    name = "" if source.encoding is None else source.encoding.label
    label, refusal = _of_rows(block, name, block.label, word, numbered)
    if label is None:
        if reading.needs_label:
            raise DataError(f"{block.place(0)}: expected {word}s, found none; see --{word}")
        return np.full(block.content.shape[0], np.nan)
    bad = np.flatnonzero(~np.isfinite(label) & (np.isinf(label) | reading.needs_label))
    if bad.size:
        raise refusal(int(bad[0]), f"a {word}")
    large = np.flatnonzero(np.abs(label) >= reading.end_label)
    if large.size:
        remedy = NUMBER_ANEW if reading.needs_label else "correct the data"
        raise refusal(int(large[0]), EXACT_LABEL, remedy=remedy)
    return label


def _weights(source: Source, block: Block) -> np.ndarray:
    name = "" if source.encoding is None else source.encoding.weight
    weight, refusal = _of_rows(block, name, block.weight, "weight")
    if weight is None:
        raise DataError(f"{block.place(0)}: expected weights, found none")
    bad = np.flatnonzero(~are_weights(weight))
    if bad.size:
        raise refusal(int(bad[0]), f"a weight, 0 or from {LEAST_WEIGHT:g} to {1 / LEAST_WEIGHT:g}")
    return weight


def _of_rows(
    block: Block, name: str, given: Any, word: str, numbered: _Numbered | None = None
) -> tuple[np.ndarray | None, Callable[..., DataError]]:
    """Return the numbers of a block's rows, of a table's column `name` or `given` beside a matrix; None where none are.

    Also returns the error of one that is not as expected. Names are `numbered`.
    """
    if name:
        given = block.content.column(name) if name in block.content.schema.names else None

    def refusal(row: int, expected: str, value: Any = None, remedy: str = "correct the data") -> DataError:
        where = block.place(row) + (f": column {name!r}" if name else "")
        value = given[row] if value is None else value
        if isinstance(value, pa.Scalar) and not value.is_valid:
            value = "an empty field"
            remedy = f"fill it in, or leave such rows out before ({RECIPES})"
        return DataError(f"{where}: expected {expected}, found {value}; {remedy}")

    if given is None:
        return None, refusal
    if isinstance(given, pa.Array):
        fits = True
        kind = type_name(given.type)
        type_given = str(given.type)
    else:
        fits = given.shape == (block.content.shape[0],)
        kind = given.dtype.kind
        type_given = f"an array of shape {given.shape} of {given.dtype}"
    if not fits or (numbered is None and kind not in _NUMBERS):
        raise refusal(0, f"numbers as {word}s, one for each of {block.content.shape[0]:,} rows", type_given)
    if numbered is not None:
        return numbered(given), refusal
    numbers = numbers_of(given) if isinstance(given, pa.Array) else given
    return numbers.astype(np.float64) + 0.0, refusal  # -0 is 0


def _name_numbers(source: Source, strings: StringTable | None) -> _Numbered:
    """Make a function that numbers names of classes, by a table where it is given; unknown ones share a number."""
    from ..models.table_encoder import StringTable

    table = strings or StringTable()
    name = source.encoding.label if source.encoding else ""
    known = source.reading.class_names
    if known:
        table.number(LABELS, strings_of(arrow_strings(known))[0], True, name)

    def numbers(given: Any) -> np.ndarray:
        if not isinstance(given, pa.Array):
            texts = zip(given.tolist(), given.astype(str).tolist(), strict=True)
            given = arrow_strings(
                text if isinstance(value, str | bytes) or text not in _MISSING else None
                for value, text in texts
            )
        values, numbers_in_values = dictionary_of(given)
        codes = table.number(LABELS, strings_of(values)[0], strings is not None, name or "label")
        label = np.where(codes == UNKNOWN, len(known), codes).astype(np.float64)
        return np.append(label, np.nan)[numbers_in_values]

    return numbers


# ---------------------------------------------------------------------------------------------------------------------
# Runs of rows


def stamp_of(path: str) -> tuple[Any, ...] | None:
    """Return the bytes of a file or URL, and what changes when its content does; None for no regular file, or none."""
    if isinstance(url := location(path), Url):
        return url.status()
    if not os.path.isfile(path):
        return None
    status = os.stat(path)
    return status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns


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

    work: Path  # with directories for the strings, distinct indices and kept columns of each task
    form: RunFormat
    source: Source
    map_bytes: int  # memory of strings, or of distinct indices
    compact: bool  # the indices that occur are gathered
    # of features that are known: entries of others are left out
    indices: SourceIndices | None
    weights: Weights | None
    hold: bool  # all rows in memory if they fit, where there is one task
    most_features: int | None  # with which rows are held


class Parsed(NamedTuple):
    """Results of a task, or of all tasks."""

    counts: Counts
    held: Rows | None  # all rows, in memory


def changed(path: str) -> DataError:
    """Make the error of a source that changed while it was read."""
    return DataError(f"{path}: changed while it was read; convert it again")


def parse_task(parsing: Parsing, task: Task, tell: Tell | None) -> Parsed:
    """Write the rows of some ranges as a run; if they are the whole source, keep them in memory if they fit."""
    source = parsing.source
    number = f"{task.number:07d}"
    counts = Counts()
    n_unknown = 0
    distinct = DistinctFeatures(parsing.map_bytes) if parsing.compact else None
    strings = side_columns = None
    if source.has_strings:
        from ..models.table_encoder import StringTable

        strings = StringTable(parsing.map_bytes)
    if source.encoding is not None and source.encoding.kept:
        side_columns = KeptWriter(parsing.work / "kept" / f"{number}.parquet")
    run = RunWriter(parsing.form, task.number)
    batches = row_batches(source, task.pieces, task.first_row, task.first_line, strings)
    # a program's own data may have to be read by the thread that made it
    for batch in batches if source.in_memory else ahead(batches):
        counts = batch.counts
        rows = batch.rows
        if parsing.weights is not None:
            rows = replace(rows, weight=parsing.weights.of(rows, task))
        if side_columns is not None:
            side_columns.append(batch.kept)
        if distinct is not None:
            distinct.add(rows.index)
        elif parsing.indices is not None:
            is_known = parsing.indices.features(rows.index) >= 0
            rows = rows.with_entries(is_known)
            n_unknown += int(np.count_nonzero(~is_known))
        run.append(rows, counts.max_index > NARROW)
        if tell is not None:
            tell(batch.bytes_read)
    fits = parsing.most_features is None or counts.max_index < parsing.most_features
    held = run.close(hold=parsing.hold and fits)
    if side_columns is not None:
        side_columns.close()
    if strings is not None:
        save_strings(strings, parsing.work / "dictionaries", task.number)
    if distinct is not None:
        np.save(parsing.work / "distinct" / f"{number}.npy", distinct.merge())
    if task.n_rows not in (None, counts.n_rows):
        raise changed(task.pieces[0].path)
    counts = replace(counts, n_entries=counts.n_entries - n_unknown, n_ignored=counts.n_ignored + n_unknown)
    return Parsed(counts, held)


def merge_distinct(directory: Path, n_bytes: int, out: Path) -> int:
    """Write the indices that occur in any task; returns their number."""
    distinct = DistinctFeatures(n_bytes)
    for path in sorted(directory.iterdir()):
        distinct.add(np.load(path))
    merged = distinct.merge()
    np.save(out, merged)
    return int(merged.size)

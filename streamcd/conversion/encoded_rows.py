"""Rows of sources: blocks of columns, or of entries, encoded as rows of features with labels and weights."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..core.errors import DataError
from ..core.threads import ahead
from ..dataset.arrow_columns import arrow_strings, dictionary_of, numbers_of, strings_of, type_name
from ..kernels import tables as kernels
from ..models.matrix_encoder import MatrixEncoder
from ..solvers.problem import LEAST_WEIGHT
from .numbering import LABELS
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
    if source.class_names:
        table.number(LABELS, strings_of(arrow_strings(source.class_names))[0], True, name)

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
        label = np.where(codes == kernels.UNKNOWN, len(source.class_names), codes).astype(np.float64)
        return np.append(label, np.nan)[places]

    return numbers

"""Rows of tables and matrices: blocks of columns, or of entries, encoded as rows of features with labels and weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ..core.errors import DataError
from ..core.threads import ahead
from ..dataset.arrow_columns import arrow_strings, dictionary_of, numbers_of, strings_of, type_name
from ..kernels import tables as kernels
from ..kernels.sparse_rows import CSR
from ..models.string_table import StringTable
from ..models.table_encoder import BLOCK_CELLS, EncodedRows, RowChecker, TableEncoder, sorted_rows
from ..solvers.problem import LEAST_WEIGHT
from .numbering import LABELS
from .rows import Counts, RowBatch, Rows, are_weights
from .sources import LIBSVM, Block, Reading, Source


def row_batches(
    source: Source, pieces: Sequence[Any], first_row: int, first_line: int, strings: StringTable | None
) -> Iterator[RowBatch]:
    """Make batches of the rows of pieces; strings are numbered by a table, or by the encoding."""
    if source.made_from == LIBSVM:
        from .libsvm import iterate_batches  # the parser's kernels: only where there is text

        yield from iterate_batches(pieces, source.reading, first_row, first_line)
        return
    encoding, reading = source.encoding, source.reading
    encoder: TableEncoder | MatrixEncoder
    if encoding is None:
        encoder = MatrixEncoder(reading)
    else:
        end = reading.width_end - (0 if reading.encoding is None else reading.encoding.sparse_start)
        bounds = reading.index_base or 0, end, reading.ignore_beyond
        encoder = TableEncoder(encoding, reading.value_dtype, strings if source.grows else None, *bounds)
    labels, counts, kept = _Labels(source, strings), Counts(), [] if encoding is None else encoding.kept
    blocks = source.reader.blocks(pieces, first_line, source.table_types)
    for block in blocks if source.in_memory else ahead(blocks):
        encoder.message = block.message
        label, weight = labels.of(block), _weights(source, block)
        if lacking := set(kept).difference(block.content.schema.names if kept else ()):
            raise DataError(
                f"{block.message(0)}: expected the column {min(lacking)!r}, as before, found none"
            )
        for found in encoder.encode(block.content):
            n_rows = found.indptr.size - 1
            mine = slice(found.start, found.start + n_rows)
            source_row = np.arange(first_row + counts.n_rows, first_row + counts.n_rows + n_rows)
            counts.n_rows += n_rows
            counts.n_entries += found.feature.size
            _take_counts(counts, encoder, block)
            weights = None if weight is None else weight[mine]
            rows = Rows(source_row, label[mine], weights, found.indptr, found.feature, found.value)
            beside = block.content.select(kept).slice(found.start, n_rows) if kept else None
            yield RowBatch(rows, block.bytes_read, counts, beside)


def _take_counts(counts: Counts, encoder: TableEncoder | MatrixEncoder, block: Block) -> None:
    state, largest = encoder.state, encoder.largest_index
    counts.n_explicit_zeros, counts.n_underflows = int(state[kernels.ZEROS]), int(state[kernels.UNDERFLOWS])
    counts.n_ignored = int(state[kernels.IGNORED])
    if isinstance(encoder, TableEncoder):
        counts.unseen, counts.unindicated = dict(encoder.unseen), encoder.unindicated
        counts.n_missing = encoder.n_missing.copy()
    counts.zero_index = counts.zero_index or bool(state[kernels.ZERO_INDEX])
    if largest > counts.max_index:
        counts.max_index, counts.max_location = largest, block.message(int(state[kernels.MAX_ROW]))


# ---------------------------------------------------------------------------------------------------------------------
# Labels and weights, as arrays of Arrow's or numpy's


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
    name = "" if source.encoding is None else source.encoding.weight
    given = block.column(name, block.weight)
    weight = _numbers(given)
    if weight is None or weight.size != block.content.shape[0]:
        raise DataError(
            f"{block.place(0, name)}: expected numbers as weights, one a row, found {_kind(given)}; "
            "check --weight-column"
        )
    bad = np.flatnonzero(~are_weights(weight))
    if bad.size:
        raise DataError(
            f"{block.place(int(bad[0]), name)}: expected a weight, 0 or from {LEAST_WEIGHT:g} to "
            f"{1 / LEAST_WEIGHT:g}, found {given[int(bad[0])]}; correct the row"
        )
    return weight


_MISSING = ("None", "nan", "NaT", "<NA>")


class _Labels:
    """Labels of blocks as numbers: as they are, or the codes of names."""

    def __init__(self, source: Source, strings: StringTable | None) -> None:
        self._source = source
        self._name = "" if source.encoding is None else source.encoding.label
        self._table, self._adds = strings or StringTable(), strings is not None
        if source.class_names:
            self._table.number(LABELS, strings_of(arrow_strings(source.class_names))[0], True, self._name)

    def of(self, block: Block) -> np.ndarray:
        """Return the labels of a block's rows; NaN where they are missing and may be."""
        given, reading = block.column(self._name, block.label), self._source.reading
        n_rows = block.content.shape[0]
        word = reading.label_word
        if given is None:
            if reading.needs_label:
                raise DataError(f"{block.message(0)}: expected {word}s, found none; see --{word}")
            return np.full(n_rows, np.nan)
        if len(given) != n_rows or getattr(given, "ndim", 1) != 1:
            raise DataError(
                f"{block.message(0)}: expected a {word} for each of {n_rows:,} rows, found {_kind(given)}"
            )
        label = self._names(given) if self._source.names_labels else _numbers(given)
        if label is None:
            raise DataError(
                f"{block.place(0, self._name)}: expected numbers as {word}s, found {_kind(given)}; write them as numbers, "
                "or name another column"
            )
        bad = np.flatnonzero(~np.isfinite(label) & (np.isinf(label) | reading.needs_label))
        if bad.size:
            row = int(bad[0])
            raise DataError(
                f"{block.place(row, self._name)}: expected a {word}, found {given[row]}; correct or remove the row"
            )
        return label

    def _names(self, given: Any) -> np.ndarray:
        if not isinstance(given, pa.Array):
            # None, NaN, NaT and pandas' NA stand for a missing name in arrays of objects
            texts = zip(given.tolist(), given.astype(str).tolist(), strict=True)
            given = arrow_strings(
                [
                    text if isinstance(value, str | bytes) or text not in _MISSING else None
                    for value, text in texts
                ]
            )
        values, places = dictionary_of(given)
        codes = self._table.number(LABELS, strings_of(values)[0], self._adds, self._name or "label")
        # one number for all unknown ones
        label = np.where(codes == kernels.UNKNOWN, len(self._source.class_names), codes).astype(np.float64)
        return np.append(label, np.nan)[places]


# ---------------------------------------------------------------------------------------------------------------------
# Matrices


class MatrixEncoder(RowChecker):
    """Encoder of matrices, whose columns are indices from the first one on."""

    def __init__(self, reading: Reading) -> None:
        self._first_index = reading.index_base or 0
        super().__init__(reading.value_dtype, 0, reading.width_end - self._first_index, reading.ignore_beyond)
        self._width = 0
        self.message = str
        self.state[kernels.ZERO_INDEX] = not self._first_index

    @property
    def largest_index(self) -> int:
        """Index of the last column, also where it is one of zeros."""
        return max(int(self.state[kernels.MAX_INDEX]), self._width - 1) + self._first_index

    def encode(self, matrix: Any) -> Iterator[EncodedRows]:
        """Make rows of a dense matrix, or of one in CSR, some at a time."""
        self._width = max(self._width, matrix.shape[1])
        n_rows, start = matrix.shape[0], 0
        while start < n_rows:
            if isinstance(matrix, np.ndarray):
                stop = min(start + max(BLOCK_CELLS // max(matrix.shape[1], 1), 1), n_rows)
                block = matrix[start:stop]
                cells = np.nonzero(block)
                starts = np.concatenate([[0], np.cumsum(np.count_nonzero(block, axis=1))])
                entries = cells[1], _native(block[cells])
            else:
                most = matrix.indptr[start] + BLOCK_CELLS
                stop = min(int(np.searchsorted(matrix.indptr, most, side="right")) - 1, start + BLOCK_CELLS)
                stop = min(max(stop, start + 1), n_rows)
                starts = matrix.indptr[start : stop + 1].astype(np.int64)
                mine = slice(int(starts[0]), int(starts[-1]))
                starts -= starts[0]
                entries = sorted_rows(starts, _native(matrix.indices[mine]), _native(matrix.data[mine]))
            rows = self.check(CSR(starts, *entries), lambda row, *_, first=start: self.message(first + row))
            rows.feature[:] += self._first_index
            yield EncodedRows(start, *rows)
            start = stop


def _native(numbers: np.ndarray) -> np.ndarray:
    """Return numbers in a type that kernels take: the processor's order of bytes, floats of 4 or 8 bytes."""
    dtype = numbers.dtype.newbyteorder("=")
    if dtype.kind == "f" and dtype.itemsize not in (4, 8):
        dtype = np.dtype(np.float32 if dtype.itemsize < 4 else np.float64)
    return numbers.astype(dtype, copy=False)

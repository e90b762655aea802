"""libsvm text: a parser over blocks of bytes, and a writer.

A line is ``label index:value index:value …``. Numbers are parsed like Python's ``float()`` (correctly rounded float64)
before they are cast to the dtype asked for. `iterate_batches` documents the text that is accepted, and the errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..core.errors import DataError
from ..core.threads import AHEAD
from ..kernels import libsvm_text as kernels
from ..solvers.problem import LEAST_WEIGHT
from .byte_sources import ByteBlock, Piece, check_rows, expand, read_blocks
from .rows import Counts, RowBatch, Rows, are_weights
from .sources import Counted, Reading, TextReader

# ---------------------------------------------------------------------------------------------------------------------
# Batches of rows


class LibsvmReader(TextReader):
    """Reader of libsvm text."""

    def count(self, piece: Piece) -> Counted:
        n_rows = n_lines = 0
        with closing(read_blocks([piece], *self.reading.of_text)) as blocks:
            for block in blocks:
                rows, lines = kernels.count_lines(block.as_array(), block.start, block.stop)
                n_rows, n_lines = n_rows + rows, n_lines + lines
        return Counted(n_rows, n_lines)


class _Parser:
    """Parser of consecutive blocks of text; holds sets of buffers for rows, used in turn, and the counts so far."""

    def __init__(self, options: Reading, first_row: int, first_line: int) -> None:
        self._options, self._first_row, self._line = options, first_row, first_line
        self._value_dtype = np.dtype(options.value_dtype)
        self._least_index, self._end_index = options.index_base or 0, options.width_end
        self._counts = Counts()
        self._make_room(options.block_bytes)

    def _make_room(self, n_bytes: int) -> None:
        # an entry takes four bytes of text or more; rows that are shorter than 16 make several batches of a text
        n_rows, n_entries = max(n_bytes // 16, 1024), n_bytes // 4 + 1
        self._n_bytes = n_bytes
        self._rooms = [
            kernels.Room(
                np.empty(n_rows),
                np.zeros(n_rows + 1, np.int64),
                np.empty(n_entries, np.int64),
                np.empty(n_entries, self._value_dtype),
            )
            for _ in range(1 + AHEAD)
        ]

    def batches(self, block: ByteBlock) -> Iterator[RowBatch]:
        """The rows of a block of text, in one or more batches."""
        n_bytes = block.stop - block.start
        if n_bytes > self._n_bytes:
            self._make_room(n_bytes)
        text = block.as_array()
        state = np.zeros(kernels.N_STATE, np.int64)
        state[kernels.POSITION], state[kernels.LINE] = block.start, 0 if block.first else self._line
        state[kernels.LAST], state[kernels.KNOWN], state[kernels.MAX_SEEN] = (
            kernels.LINE_START,
            -1,
            self._counts.max_index,
        )
        status = kernels.FULL
        while status == kernels.FULL:
            state[kernels.ROWS], state[kernels.ENTRIES] = 0, 0
            status = self._parse(block, text, state)
            if status not in (kernels.END, kernels.FULL):
                self._refuse(status, block, state)
            n_rows, n_entries = int(state[kernels.ROWS]), int(state[kernels.ENTRIES])
            self._count(state, block.name)
            if n_rows:
                yield RowBatch(self._rows(n_rows, n_entries), block.bytes_read, self._counts)
                self._rooms.append(self._rooms.pop(0))  # a text without rows takes none

    def _rows(self, n_rows: int, n_entries: int) -> Rows:
        end, (label, indptr, index, value) = self._first_row + self._counts.n_rows, self._rooms[0]
        entries = index[:n_entries], value[:n_entries]
        return Rows(np.arange(end - n_rows, end), label[:n_rows], None, indptr[: n_rows + 1], *entries)

    def _parse(self, block: ByteBlock, text: np.ndarray, state: np.ndarray) -> int:
        options = self._options
        indices = (self._least_index, self._end_index, options.ignore_beyond)
        allowed = kernels.Allowed(*indices, options.needs_label)
        known = 0.0
        while True:
            status = kernels.parse_lines(text, block.stop, state, self._rooms[0], allowed, known)
            if status != kernels.FLOAT:
                return int(status)
            known = float(_token(block, int(state[kernels.TOKEN])))
            state[kernels.KNOWN] = state[kernels.TOKEN]

    def _count(self, state: np.ndarray, name: str) -> None:
        counts = self._counts
        counts.add(Counts(*[*state[kernels.COUNTED].tolist(), bool(state[kernels.ZERO_INDEX])]))
        if state[kernels.MAX_SEEN] > counts.max_index:
            counts.max_index = int(state[kernels.MAX_SEEN])
            counts.max_location = f"{name}:{int(state[kernels.MAX_LINE]) + 1}"
        state[kernels.COUNTED] = 0
        self._line = int(state[kernels.LINE])

    def _refuse(self, status: int, block: ByteBlock, state: np.ndarray) -> None:
        token = _token(block, int(state[kernels.TOKEN]))
        location = f"{block.name}:{int(state[kernels.LINE]) + 1}"
        raise DataError(f"{location}: {self._complaint(status, token, int(state[kernels.LAST]))}")

    def _complaint(self, status: int, token: str, last: int) -> str:
        found = f"found {token if len(token) <= 40 else token[:40] + '…'!r}"
        if token.startswith("qid:"):
            return f"expected qid:number, {found}; correct the line"
        number = token.rpartition(":")[2].lower().lstrip("+-")
        if status in (kernels.BAD_LABEL, kernels.BAD_VALUE) and number in ("nan", "inf", "infinity"):
            what = "label" if status == kernels.BAD_LABEL else "value"
            return f"expected a finite {what}, {found}; correct or remove the line"
        if status in (kernels.RANGE, kernels.LABEL_RANGE):
            dtype = self._value_dtype if status == kernels.RANGE else np.dtype(np.float64)
            advice = "convert with --dtype float64" if dtype == np.float32 else "rescale it"
            return f"expected a number that is finite in {dtype}, {found}; {advice}"
        base = self._least_index
        complaints = {
            kernels.BAD_LABEL: f"expected a number as label, {found}; correct the line",
            kernels.BAD_TOKEN: f"expected index:value, {found}; correct the line",
            kernels.BAD_VALUE: f"expected a number after the index, {found}; correct the line",
            kernels.BELOW: f"expected indices from {base} on, {found}; "
            + ("use --index-base 0 or auto" if base and token[0] == "0" else "correct the line"),
            kernels.ORDER: f"expected increasing indices, {found} after index {last}; sort the row by index",
            kernels.REPEATED: f"expected every index once in a row, {found} again; merge the two entries",
            kernels.HUGE: f"expected indices up to 2^62, {found}; renumber the features",
            kernels.BEYOND: f"expected indices up to {self._end_index - 1} (the number of features given), {found}; "
            "give a larger --n-features",
        }
        return complaints[status]


def _token(block: ByteBlock, start: int) -> str:
    """The token at `start`, as text."""
    stop = start
    while block.buffer[stop] > 0x20 and block.buffer[stop] != 0x23:
        stop += 1
    return bytes(memoryview(block.buffer)[start : max(stop, start + 1)]).decode("utf-8", errors="replace")


def iterate_batches(
    ranges: Sequence[Piece],
    options: Reading,
    first_row: int = 0,
    first_line: int = 0,
) -> Iterator[RowBatch]:
    """Parse libsvm text.

    Taken: LF or CRLF; blank lines; comments after ``#``; rows without entries; any number of spaces and tabs; a last
    line without newline; a UTF-8 byte order mark; labels and values as decimal numbers with or without exponent;
    ``qid:n`` (skipped). Entries that are zero, in the text or in the type of the values, are dropped and counted.

    Parameters
    ----------
    ranges : sequence of Piece
        Consecutive files, of which the first may start at an offset.
    options : Reading
    first_row, first_line : int
        Rows of the input, and lines of the first file, before the ranges.

    Yields
    ------
    RowBatch
        Its `counts` and `bytes_read` are those of these ranges alone.

    Raises
    ------
    DataError
        Naming file and line: a malformed token, ``nan`` or infinity, a value out of the dtype's range, an index below
        the base, beyond the width, out of order or repeated in its row; a damaged compressed file.
    """
    parser = _Parser(options, first_row, first_line)
    with closing(read_blocks(ranges, *options.of_text)) as blocks:
        for block in blocks:
            yield from parser.batches(block)


def copy_weights(path: str, out: Path, max_line_bytes: int, decoder_bytes: int) -> int:
    """Copy weights of rows, from text with a number a line to numbers of 8 bytes; returns how many there are."""
    # a line with a number and nothing else is a row of libsvm text that has only a label
    options = Reading(np.float64, 1 << 16, max_line_bytes, decoder_bytes)
    paths, n_weights = expand(path)[0], 0
    with open(out, "wb") as file:
        for batch in iterate_batches([Piece(name) for name in paths], options):
            weight = batch.rows.label
            bad = np.flatnonzero(~are_weights(weight) | (np.diff(batch.rows.indptr) > 0))
            if bad.size:
                raise DataError(
                    f"{path}: expected a weight a line, 0 or from {LEAST_WEIGHT:g} to {1 / LEAST_WEIGHT:g}, "
                    f"found something else at row {int(batch.rows.source_row[bad[0]]) + 1}; correct the line"
                )
            weight.tofile(file)
            n_weights += weight.size
    check_rows(n_weights, paths)
    return n_weights


# ---------------------------------------------------------------------------------------------------------------------
# Writing


def write_rows(
    stream: BinaryIO,
    label: np.ndarray,
    indptr: np.ndarray,
    feature: np.ndarray,
    value: np.ndarray,
    index_base: int = 1,
) -> None:
    """Write rows as libsvm text.

    Parameters
    ----------
    stream : binary file
    label : ndarray of float64, shape (rows,)
    indptr : ndarray of int64, shape (rows + 1,)
    feature : ndarray of integers, shape (entries,)
        0-based.
    value : ndarray of float32 or float64, shape (entries,)
        Written with the fewest digits that parse to the same number in this dtype.
    index_base : {1, 0}
        Added to `feature`.
    """
    # pyarrow makes 8 million entries a second, Python's own formatting less than a million and a half
    import pyarrow as pa
    import pyarrow.compute as pc

    from ..dataset.arrow_columns import arrow_array, arrow_strings

    # made from Python's strings, Arrow's scalars would load pandas
    colon, space = arrow_strings([":", " "]).cast(pa.string())
    indices = pc.cast(arrow_array(feature.astype(np.int64) + index_base, pa.int64()), pa.string())
    values = pc.cast(arrow_array(value, pa.from_numpy_dtype(value.dtype)), pa.string())
    entries = pc.binary_join_element_wise(indices, values, colon)
    joined = pc.binary_join(pa.LargeListArray.from_arrays(arrow_array(indptr, pa.int64()), entries), space)
    labels = pc.cast(arrow_array(label, pa.float64()), pa.string())
    lines = pc.binary_join_element_wise(labels, joined, space)
    if len(lines):
        stream.write("\n".join(lines.to_pylist()).encode("ascii"))
        stream.write(b"\n")

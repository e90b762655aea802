"""libsvm text: a parser over blocks of bytes, and a writer.

A line is ``label index:value index:value …``. Numbers are parsed like Python's ``float()`` (correctly rounded float64)
before they are cast to the dtype asked for. `LibsvmReader.batches` documents the text that is accepted, and the errors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..core.errors import DataError, first_of, shortened
from ..core.parallel import AHEAD, ahead
from ..kernels import libsvm_text as kernels
from ..solvers.problem import LEAST_WEIGHT
from .byte_sources import ByteBlock, TextReader
from .rows import Counts, RowBatch, Rows, are_weights
from .sources import EXACT_LABEL, NUMBER_ANEW, Counted, Piece, Reading, check_rows

# ---------------------------------------------------------------------------------------------------------------------
# Batches of rows


class LibsvmReader(TextReader):
    """Reader of libsvm text."""

    def count_block(self, block: ByteBlock) -> Counted:
        return Counted(*kernels.count_lines(block.text, 0, block.stop))

    def load_kernels(self) -> None:
        """See `Reader.load_kernels`."""
        reading = self.reading
        state = np.zeros(kernels.N_STATE, np.int64)
        allowed = kernels.Allowed(0, 0, reading.ignore_beyond, reading.needs_label, reading.end_label)
        kernels.parse_lines(
            np.zeros(0, np.uint8), 0, state, _room(0, np.dtype(reading.value_dtype)), allowed, 0.0
        )

    def batches(
        self, pieces: Sequence[Piece], first_row: int = 0, first_line: int = 0
    ) -> Generator[RowBatch, None, None]:
        """Parse consecutive pieces, after so many rows of the input, and lines of the first file.

        Taken: LF or CRLF; blank lines; comments after ``#``; rows without entries; any number of spaces and tabs; a last
        line without newline; a UTF-8 byte order mark; labels and values as decimal numbers with or without exponent;
        ``qid:n`` (skipped). Entries that are zero, in the text or in the type of the values, are dropped and counted.
        Refused, by file and line: a malformed token, ``nan`` or infinity, a value out of the dtype's range, an index below
        the base, beyond the width, out of order or repeated in its row; a damaged compressed file.
        """
        counts = Counts()
        line = first_line
        rooms = deque[kernels.Room]()
        reading = self.reading
        value_dtype = np.dtype(self.reading.value_dtype)
        bounds = reading.index_base or 0, reading.width_end, reading.ignore_beyond
        allowed = kernels.Allowed(*bounds, reading.needs_label, reading.end_label)
        with closing(ahead(self.texts(pieces))) as blocks:
            for block in blocks:
                n_bytes = max(block.stop, reading.block_bytes)
                if not rooms or n_bytes > 4 * rooms[0].feature.size:
                    rooms = deque(_room(n_bytes, value_dtype) for _ in range(1 + AHEAD))
                state = np.zeros(kernels.N_STATE, np.int64)
                state[kernels.LINE] = 0 if block.first else line
                state[kernels.LAST] = kernels.LINE_START
                state[kernels.KNOWN] = -1
                state[kernels.MAX_SEEN] = counts.max_index
                status = kernels.FULL
                known = 0.0
                while status in (kernels.FULL, kernels.FLOAT):
                    status = int(kernels.parse_lines(block.text, block.stop, state, rooms[0], allowed, known))
                    if status == kernels.FLOAT:
                        known = float(_token(block, state))
                        state[kernels.KNOWN] = state[kernels.TOKEN]
                        continue
                    if status not in (kernels.END, kernels.FULL):
                        message = _complaint(status, _token(block, state), state, allowed, value_dtype)
                        raise DataError(f"{block.name}:{state[kernels.LINE] + 1}: {message}")
                    n_rows = int(state[kernels.ROWS])
                    n_entries = int(state[kernels.ENTRIES])
                    numbers = np.arange(n_rows) + first_row + counts.n_rows
                    largest = int(state[kernels.MAX_SEEN]), f"{block.name}:{state[kernels.MAX_LINE] + 1}"
                    counted = *state[kernels.COUNTED].tolist(), bool(state[kernels.ZERO_INDEX]), *largest
                    counts.add(Counts(*counted))
                    state[kernels.COUNTED] = 0
                    if n_rows:
                        label, indptr, index, *values = rooms[0]
                        value = next(array for array in values if array.dtype == value_dtype)
                        entries = indptr[: n_rows + 1], index[:n_entries], value[:n_entries]
                        yield RowBatch(
                            Rows(numbers, label[:n_rows], None, *entries), block.bytes_read, replace(counts)
                        )
                        rooms.rotate(-1)  # a text without rows takes none
                line = int(state[kernels.LINE])


def _room(n_bytes: int, value_dtype: np.dtype) -> kernels.Room:
    # an entry takes four bytes of text or more; rows that are shorter than 16 make several batches of a text
    n_rows = max(n_bytes // 16, 1024)
    n_entries = n_bytes // 4 + 1
    return kernels.Room(
        np.empty(n_rows),
        np.zeros(n_rows + 1, np.int64),
        np.empty(n_entries, np.int64),
        np.empty(n_entries if value_dtype == np.float32 else 0, np.float32),
        np.empty(n_entries if value_dtype == np.float64 else 0),
    )


def _complaint(
    status: int, token: str, state: np.ndarray, allowed: kernels.Allowed, value_dtype: np.dtype
) -> str:
    actual = f"found {shortened(token, 41)!r}"
    if token.startswith("qid:"):
        return f"expected qid:number, {actual}; correct the line"
    number = token.rpartition(":")[2].lower().lstrip("+-")
    base = allowed.least_index
    if status in (kernels.BAD_LABEL, kernels.BAD_VALUE) and number in ("nan", "inf", "infinity"):
        what = "label" if status == kernels.BAD_LABEL else "value"
        return f"expected a finite {what}, {actual}; correct or remove the line"
    wide = value_dtype == np.float64
    is_own_base = allowed.needs_label and not allowed.ignore  # not that of a model or another dataset
    return {
        kernels.BAD_LABEL: f"expected a number as label, {actual}; correct the line",
        kernels.LABEL_RANGE: f"expected a number that is finite in float64, {actual}; rescale it"
        if status == kernels.LABEL_RANGE and np.isinf(float(token))
        else f"expected {EXACT_LABEL}, {actual}; {NUMBER_ANEW if allowed.needs_label else 'correct the line'}",
        kernels.RANGE: f"expected a number that is finite in {value_dtype}, {actual}; "
        + ("rescale it" if wide else "convert with --dtype float64"),
        kernels.BAD_TOKEN: f"expected index:value, {actual}; correct the line",
        kernels.BAD_VALUE: f"expected a number after the index, {actual}; correct the line",
        kernels.BELOW: f"expected indices from {base} on, {actual}; "
        + ("use --index-base 0 or auto" if base and token[0] == "0" and is_own_base else "correct the line"),
        kernels.ORDER: f"expected increasing indices, {actual} after index {state[kernels.LAST]}; sort the row by index",
        kernels.REPEATED: f"expected every index once in a row, {actual} again; merge the two entries",
        kernels.HUGE: f"expected indices up to 2^62, {actual}; renumber the features",
        kernels.BEYOND: f"expected indices up to {allowed.end_index - 1} (the number of features given), {actual}; "
        "give a larger --n-features",
    }[status]


def _token(block: ByteBlock, state: np.ndarray) -> str:
    """Return the token that the parser stopped at, as text."""
    start = stop = int(state[kernels.TOKEN])
    while block.text[stop] > 0x20 and block.text[stop] != 0x23:
        stop += 1
    return block.text[start : max(stop, start + 1)].tobytes().decode("utf-8", errors="replace")


def copy_weights(paths: list[str], out: Path, max_line_bytes: int, decoder_bytes: int) -> int:
    """Copy weights of rows, from text with a number a line to numbers of 8 bytes; returns how many there are."""
    # a line with a number and nothing else is a row of libsvm text that has only a label
    reading = Reading(np.float64, 1 << 16, max_line_bytes, decoder_bytes, end_label=np.inf)
    reader = LibsvmReader(paths, reading)
    n_weights = 0
    with open(out, "wb") as file:
        for batch in reader.batches(reader.pieces()):
            weight = batch.rows.label
            bad = np.flatnonzero(~are_weights(weight) | (np.diff(batch.rows.indptr) > 0))
            if bad.size:
                raise DataError(
                    f"{first_of(paths, 3)}: expected a weight a line, 0 or from {LEAST_WEIGHT:g} to {1 / LEAST_WEIGHT:g}, "
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
    """Write rows as libsvm text, values with the fewest digits that parse to the same number in their type.

    `feature` is 0-based; `index_base` is added to it.
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

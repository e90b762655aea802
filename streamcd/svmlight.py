"""libsvm text: a parser over blocks of bytes, and a writer.

A line is ``label index:value index:value …``. Numbers come out as Python's ``float()`` gives them (correctly rounded
float64) before they are cast to the dtype asked for. What the text may hold and what is refused is said by
`iterate_blocks`.
"""

# mypy: allow-untyped-defs, no-check-untyped-defs
# (types of kernels are numba's to infer; everything else here is annotated)

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .compile import kernel
from .decimals import HARD, MALFORMED, OK, digits, load8, number_at, trailing_zeros
from .errors import DataError
from .progress import Listener, Progress
from .sources import ByteBlock, Piece, as_array, display_name, expand_sources, read_blocks, total_bytes

BLOCK_BYTES = 8 << 20
MAX_INDEX = 1 << 62
_INT32_MAX = 2**31 - 1

# ---------------------------------------------------------------------------------------------------------------------
# Lines

# what the kernel returns
(
    _END,
    _FULL,
    _FLOAT,
    _BAD_LABEL,
    _BAD_TOKEN,
    _BAD_VALUE,
    _LABEL_RANGE,
    _RANGE,
    _BELOW,
    _ORDER,
    _REPEATED,
    _HUGE,
    _BEYOND,
) = range(13)
# what it keeps between calls
(
    _POSITION,  # where to go on
    _LINE,  # 0-based line of the source
    _ROWS,  # rows finished in this block
    _ENTRIES,  # entries stored in this block
    _LAST,  # index before `_POSITION` in an unfinished row; -2 at the start of a line
    _TOKEN,  # start of the token that stopped the kernel
    _KNOWN,  # position of a number whose value the caller gives, or -1
    _ZEROS,
    _UNDERFLOWS,
    _IGNORED,
    _QIDS,
    _DECIMAL_LABELS,
    _MAX_SEEN,  # largest index, -1 before any
    _MAX_LINE,  # line of its first occurrence
    _ZERO_INDEX,  # whether index 0 occurs
    _N_STATE,
) = range(16)
_LINE_START = -2


@kernel
def _parse(text, stop, state, label, indptr, index, value, least_index, end_index, ignore, known):
    """Parse the lines of ``text[state[_POSITION]:stop]``; return why it stopped.

    Parameters
    ----------
    text : uint8[:]
        Ends with a newline at ``stop - 1``; `PADDING` bytes behind it can be read.
    state : int64[_N_STATE]
        Changed in place; holds all that is needed to go on after `_FULL`, or after `_FLOAT` once ``known`` is the value
        of the number at ``state[_KNOWN]``.
    label, indptr, index, value
        Filled in place: float64[rows], int64[rows + 1], int64[entries], float[entries]; ``entries`` must be at least a
        quarter of the text's bytes.
    least_index, end_index : int64
        Indices allowed are ``least_index <= index < end_index``; those from ``end_index`` on are passed over where
        ``ignore``.

    Returns
    -------
    int
        `_END`, `_FULL` (no room for the next row), `_FLOAT`, or the error at ``state[_TOKEN]``.
    """
    position, line, row, entry, last = (
        state[_POSITION],
        state[_LINE],
        state[_ROWS],
        state[_ENTRIES],
        state[_LAST],
    )
    zeros, underflows, ignored = 0, 0, 0
    capacity = len(label)
    status = _END
    token = position
    while position < stop:
        if last == _LINE_START:
            while text[position] == 0x20 or text[position] == 0x09:
                position += 1
            if text[position] == 0x23:
                while text[position] != 0x0A:
                    position += 1
            if text[position] == 0x0D and text[position + 1] == 0x0A:
                position += 1
            if text[position] == 0x0A:  # blank, or a comment
                position += 1
                line += 1
                continue
            if row == capacity:
                status = _FULL
                break
            token = position
            if state[_KNOWN] == position:
                number = known
                while text[position] > 0x20 and text[position] != 0x23:
                    position += 1
            else:
                number, end, kind = number_at(text, position)
                c = text[end]
                if kind == MALFORMED or not (c == 0x20 or c == 0x0A or c == 0x09 or c == 0x0D or c == 0x23):
                    status = _BAD_LABEL
                    break
                if kind == HARD:
                    status = _FLOAT
                    break
                position = end
            if np.isinf(number):
                status = _LABEL_RANGE
                break
            label[row] = number + 0.0  # -0 is 0
            if number != np.floor(number) or abs(number) >= 9007199254740992.0:
                state[_DECIMAL_LABELS] += 1
            last = -1
        while True:
            c = text[position]
            while c == 0x20 or c == 0x09:
                position += 1
                c = text[position]
            if c == 0x0A:
                break
            token = position
            if not 0 <= c - 48 <= 9:
                if c == 0x23:
                    while text[position] != 0x0A:
                        position += 1
                    break
                if c == 0x0D and text[position + 1] == 0x0A:
                    position += 1
                    break
                if (
                    c == 0x71
                    and text[position + 1] == 0x69
                    and text[position + 2] == 0x64
                    and text[position + 3] == 0x3A
                ):
                    state[_QIDS] += 1
                    while text[position] > 0x20 and text[position] != 0x23:
                        position += 1
                    continue
                status = _BELOW if c == 0x2D and 0 <= text[position + 1] - 48 <= 9 else _BAD_TOKEN
                break
            whole, end = digits(text, position)
            if text[end] != 0x3A:
                status = _BAD_TOKEN
                break
            if end - position > 18:
                while text[position] == 0x30:
                    position += 1
                if end - position > 19 or whole > np.uint64(MAX_INDEX):
                    status = _HUGE
                    break
                position = token
            i = np.int64(whole)
            if i <= last:
                status = _ORDER if i < last else _REPEATED
                break
            if i < least_index:
                status = _BELOW
                break
            start = end + 1
            if state[_KNOWN] == start:
                number = known
                end = start
                while text[end] > 0x20 and text[end] != 0x23:
                    end += 1
            else:
                if text[start + 1] == 0x20 and 0 <= text[start] - 48 <= 9:  # one digit: all of binary data
                    number, end, kind = np.float64(text[start] - 48), start + 1, OK
                else:
                    number, end, kind = number_at(text, start)
                c = text[end]
                if kind == MALFORMED or not (c == 0x20 or c == 0x0A or c == 0x09 or c == 0x0D or c == 0x23):
                    status = _BAD_VALUE
                    break
                if kind == HARD:
                    token = start
                    status = _FLOAT
                    break
            if i >= end_index:
                if not ignore:
                    status = _BEYOND
                    break
                ignored += number != 0.0
            else:
                value[entry] = number
                index[entry] = i
                if np.isinf(value[entry]):
                    status = _RANGE
                    break
                if value[entry] != 0.0:
                    entry += 1
                elif number == 0.0:
                    zeros += 1
                else:
                    underflows += 1
                if i == 0:
                    state[_ZERO_INDEX] = 1
            last = i
            position = end
        if status != _END:
            break
        # the row ends at a newline
        row += 1
        indptr[row] = entry
        if last > state[_MAX_SEEN]:
            state[_MAX_SEEN] = last
            state[_MAX_LINE] = line
        last = _LINE_START
        position += 1
        line += 1
    state[_POSITION], state[_LINE], state[_ROWS], state[_ENTRIES], state[_LAST] = (
        position,
        line,
        row,
        entry,
        last,
    )
    state[_TOKEN] = token
    state[_ZEROS] += zeros
    state[_UNDERFLOWS] += underflows
    state[_IGNORED] += ignored
    return status


@kernel
def _count(text, start, stop):
    """The rows and the lines of ``text[start:stop]``; blank lines and comments are lines and no rows, as for `_parse`."""
    rows, lines = 0, 0
    position = start
    while position < stop:
        while text[position] == 0x20 or text[position] == 0x09:
            position += 1
        c = text[position]
        if not (c == 0x0A or c == 0x23 or (c == 0x0D and text[position + 1] == 0x0A)):
            rows += 1
        while (
            True
        ):  # to the newline, eight bytes at a time: the lowest zero byte of the word is found exactly
            word = load8(text, position) ^ np.uint64(0x0A0A0A0A0A0A0A0A)
            zeros = (word - np.uint64(0x0101010101010101)) & ~word & np.uint64(0x8080808080808080)
            if zeros != np.uint64(0):
                position += np.int64(trailing_zeros(zeros) >> np.uint64(3)) + 1
                break
            position += 8
        lines += 1
    return rows, lines


# ---------------------------------------------------------------------------------------------------------------------
# Blocks of rows


@dataclass
class Counts:
    """What was met while parsing, over all blocks so far.

    Attributes
    ----------
    n_rows, n_entries : int
        Rows, and entries kept.
    n_explicit_zeros, n_underflows, n_ignored : int
        Entries dropped: written as zero; zero only in the dtype asked for; with an index beyond the width.
    n_query_ids, n_decimal_labels : int
        ``qid:`` tokens skipped, and labels that are no integers.
    zero_index : bool
        Whether an index 0 occurs.
    max_index : int
        The largest index, -1 where there is none; `max_place` is the file and line where it occurs first.
    max_place : str
    """

    n_rows: int = 0
    n_entries: int = 0
    n_explicit_zeros: int = 0
    n_underflows: int = 0
    n_ignored: int = 0
    n_query_ids: int = 0
    n_decimal_labels: int = 0
    zero_index: bool = False
    max_index: int = -1
    max_place: str = ""

    @property
    def label_kind(self) -> str:
        """``"integer"`` where every label is one, however it is written, else ``"decimal"``."""
        return "decimal" if self.n_decimal_labels else "integer"

    @property
    def is_wide(self) -> bool:
        """Whether an index takes more than 32 bits."""
        return self.max_index > _INT32_MAX

    def add(self, later: Counts) -> None:
        """Take in the counts of text that comes later."""
        if later.max_index > self.max_index:
            self.max_index, self.max_place = later.max_index, later.max_place
        self.zero_index = self.zero_index or later.zero_index
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(later, name))

    def messages(self, dtype: np.dtype) -> list[str]:
        """What a user wants to know about entries that are not in the result."""
        said = [
            (self.n_explicit_zeros, "explicit zeros dropped"),
            (self.n_underflows, f"values dropped that are zero in {dtype} (--dtype float64 may keep them)"),
            (self.n_ignored, "entries ignored whose feature is beyond the width in use"),
            (self.n_query_ids, "qid: tokens skipped: query groups have no meaning here"),
        ]
        return [f"{number:,} {text}" for number, text in said if number]


_SUMS = (
    "n_rows",
    "n_entries",
    "n_explicit_zeros",
    "n_underflows",
    "n_ignored",
    "n_query_ids",
    "n_decimal_labels",
)


@dataclass(frozen=True)
class RowBlock:
    """Consecutive rows of the input. The arrays are filled anew when the next block is taken: copy what has to stay.

    Attributes
    ----------
    label : ndarray of float64, shape (rows,)
    indptr : ndarray of int64, shape (rows + 1,)
    index : ndarray of int64, shape (entries,)
        As written in the text: the base is not subtracted.
    value : ndarray of float32 or float64, shape (entries,)
    place0 : int
        0-based place of the first row among the rows of the input.
    bytes_read : int
        Bytes of the sources read so far.
    bytes_total : int or None
        Of all sources, where it can be known.
    counts : Counts
        Of the whole input up to and including this block.
    """

    label: np.ndarray
    indptr: np.ndarray
    index: np.ndarray
    value: np.ndarray
    place0: int
    bytes_read: int
    bytes_total: int | None
    counts: Counts


@dataclass
class _Arrays:
    """Room for the rows of one block."""

    label: np.ndarray
    indptr: np.ndarray
    index: np.ndarray
    value: np.ndarray

    @classmethod
    def for_text(cls, n_bytes: int, value_dtype: np.dtype) -> _Arrays:
        # an entry takes four bytes of text or more; rows that are shorter than 16 make several blocks of a text
        n_rows, n_entries = max(n_bytes // 16, 1024), n_bytes // 4 + 1
        return cls(
            np.empty(n_rows),
            np.zeros(n_rows + 1, np.int64),
            np.empty(n_entries, np.int64),
            np.empty(n_entries, value_dtype),
        )


@dataclass
class _Parser:
    """Parses byte blocks one after the other; holds the arrays and what is known so far."""

    value_dtype: np.dtype
    least_index: int
    end_index: int
    ignore_beyond: bool
    arrays: _Arrays
    bytes_total: int | None
    counts: Counts = field(default_factory=Counts)
    line: int = 0

    def rows(self, block: ByteBlock) -> Iterator[RowBlock]:
        """The rows of a block of text, in one or more blocks of rows."""
        n_bytes = block.stop - block.start
        if n_bytes // 4 + 1 > len(self.arrays.index):
            self.arrays = _Arrays.for_text(n_bytes, self.value_dtype)
        text = as_array(block)
        state = np.zeros(_N_STATE, np.int64)
        state[_POSITION], state[_LINE] = block.start, 0 if block.first else self.line
        state[_LAST], state[_KNOWN], state[_MAX_SEEN] = _LINE_START, -1, self.counts.max_index
        status = _FULL
        while status == _FULL:
            state[_ROWS], state[_ENTRIES] = 0, 0
            status = self._parse(block, text, state)
            if status not in (_END, _FULL):
                self._refuse(status, block, state)
            self._count(state, block.name)
            n_rows, n_entries = int(state[_ROWS]), int(state[_ENTRIES])
            if n_rows:
                arrays = self.arrays
                yield RowBlock(
                    arrays.label[:n_rows],
                    arrays.indptr[: n_rows + 1],
                    arrays.index[:n_entries],
                    arrays.value[:n_entries],
                    self.counts.n_rows - n_rows,
                    block.bytes_read,
                    self.bytes_total,
                    self.counts,
                )

    def _parse(self, block: ByteBlock, text: np.ndarray, state: np.ndarray) -> int:
        arrays, known = self.arrays, 0.0
        while True:
            status = _parse(
                text,
                block.stop,
                state,
                arrays.label,
                arrays.indptr,
                arrays.index,
                arrays.value,
                self.least_index,
                self.end_index,
                self.ignore_beyond,
                known,
            )
            if status != _FLOAT:
                return int(status)
            known = float(_token(block, int(state[_TOKEN])))
            state[_KNOWN] = state[_TOKEN]

    def _count(self, state: np.ndarray, name: str) -> None:
        counts = self.counts
        counts.n_rows += int(state[_ROWS])
        counts.n_entries += int(state[_ENTRIES])
        counts.n_explicit_zeros += int(state[_ZEROS])
        counts.n_underflows += int(state[_UNDERFLOWS])
        counts.n_ignored += int(state[_IGNORED])
        counts.n_query_ids += int(state[_QIDS])
        counts.n_decimal_labels += int(state[_DECIMAL_LABELS])
        counts.zero_index = counts.zero_index or bool(state[_ZERO_INDEX])
        if state[_MAX_SEEN] > counts.max_index:
            counts.max_index = int(state[_MAX_SEEN])
            counts.max_place = f"{name}:{int(state[_MAX_LINE]) + 1}"
        state[[_ZEROS, _UNDERFLOWS, _IGNORED, _QIDS, _DECIMAL_LABELS]] = 0
        self.line = int(state[_LINE])

    def _refuse(self, status: int, block: ByteBlock, state: np.ndarray) -> None:
        token = _token(block, int(state[_TOKEN]))
        place = f"{block.name}:{int(state[_LINE]) + 1}"
        raise DataError(f"{place}: {self._complaint(status, token, int(state[_LAST]))}")

    def _complaint(self, status: int, token: str, last: int) -> str:
        found = f"found {_shortened(token)}"
        number = token.rpartition(":")[2].lower().lstrip("+-")
        if status in (_BAD_LABEL, _BAD_VALUE) and number in ("nan", "inf", "infinity"):
            what = "label" if status == _BAD_LABEL else "value"
            return f"expected a finite {what}, {found}; correct or remove the line"
        if status in (_RANGE, _LABEL_RANGE):
            dtype = self.value_dtype if status == _RANGE else np.dtype(np.float64)
            advice = "convert with --dtype float64" if dtype == np.float32 else "rescale it"
            return f"expected a number that is finite in {dtype}, {found}; {advice}"
        base = self.least_index
        complaints = {
            _BAD_LABEL: f"expected a number as label, {found}; correct the line",
            _BAD_TOKEN: f"expected index:value, {found}; correct the line",
            _BAD_VALUE: f"expected a number after the index, {found}; correct the line",
            _BELOW: f"expected indices from {base} on, {found}; "
            + ("use --index-base 0 or auto" if base and token[0] == "0" else "correct the line"),
            _ORDER: f"expected increasing indices, {found} after index {last}; sort the row by index",
            _REPEATED: f"expected every index once in a row, {found} again; merge the two entries",
            _HUGE: f"expected indices up to 2^62, {found}; renumber the features",
            _BEYOND: f"expected indices up to {self.end_index - 1} (the number of features given), {found}; "
            "give a larger --n-features",
        }
        return complaints[status]


def _token(block: ByteBlock, start: int) -> str:
    """The token at `start`, as text."""
    stop = start
    while block.buffer[stop] > 0x20 and block.buffer[stop] != 0x23:
        stop += 1
    return bytes(memoryview(block.buffer)[start : max(stop, start + 1)]).decode("utf-8", errors="replace")


def _shortened(token: str, limit: int = 40) -> str:
    return repr(token if len(token) <= limit else token[:limit] + "…")


def iterate_blocks(
    sources: str | Path | Sequence[str | Path],
    *,
    value_dtype: Any = np.float32,
    index_base: int | None = None,
    n_features: int | None = None,
    ignore_beyond: bool = False,
    block_bytes: int = BLOCK_BYTES,
    max_line_bytes: int | None = None,
    listener: Listener | None = None,
    phase: str = "parse",
) -> Iterator[RowBlock]:
    """Parse libsvm text.

    Taken: LF or CRLF; blank lines; comments after ``#``; rows without entries; any number of spaces and tabs; a last
    line without newline; a UTF-8 byte order mark; labels and values as decimal numbers with or without exponent;
    ``qid:n`` (skipped). Entries that are zero, in the text or in `value_dtype`, are dropped and counted.

    Parameters
    ----------
    sources : path or sequence of paths
        Files, directories, globs, ``"-"``; plain, gzip, bzip2, xz or Zstandard, by content.
    value_dtype : dtype
        float32 or float64.
    index_base : {0, 1}, optional
        The least index allowed; None allows 0, and `Counts.zero_index` tells whether it occurs.
    n_features : int, optional
        Width: indices must be below ``n_features + index_base`` (with no base given, as if it were 1).
    ignore_beyond : bool
        Pass over entries beyond the width, and count them, rather than refuse them.
    block_bytes : int
        Text parsed at a time. Memory used is about ten times as much.
    max_line_bytes : int, optional
        The longest line for which a block may grow.
    listener : Listener, optional
        Told the bytes read, once a block.
    phase : str
        What to call it then.

    Yields
    ------
    RowBlock

    Raises
    ------
    DataError
        Naming file and line: a malformed token, ``nan`` or infinity, a value out of the dtype's range, an index below
        the base, beyond the width, out of order or repeated in its row; a damaged compressed file; no rows at all.
    """
    paths = expand_sources(sources)
    total = total_bytes(paths)
    parser = _parser(value_dtype, index_base, n_features, ignore_beyond, block_bytes, total)
    blocks = read_blocks(paths, block_bytes=block_bytes, max_line_bytes=max_line_bytes)
    try:
        for block in blocks:
            yield from parser.rows(block)
            if listener is not None:
                listener.progress(Progress(phase, block.bytes_read, total, "B"))
    finally:
        blocks.close()
    check_rows(parser.counts.n_rows, paths)


def _parser(
    value_dtype: Any,
    index_base: int | None,
    n_features: int | None,
    ignore_beyond: bool,
    block_bytes: int,
    bytes_total: int | None,
) -> _Parser:
    dtype = np.dtype(value_dtype)
    width_end = (
        MAX_INDEX + 1 if n_features is None else n_features + (1 if index_base is None else index_base)
    )
    arrays = _Arrays.for_text(block_bytes, dtype)
    return _Parser(dtype, index_base or 0, width_end, ignore_beyond, arrays, bytes_total)


def check_rows(n_rows: int, paths: Sequence[str]) -> None:
    """Refuse sources without a row."""
    if not n_rows:
        names = ", ".join(display_name(path) for path in paths[:3]) + (", …" if len(paths) > 3 else "")
        raise DataError(
            f"{names}: expected rows of libsvm text, found none; check that this is the file meant"
        )


def count_piece(
    piece: Piece, *, block_bytes: int = BLOCK_BYTES, max_line_bytes: int | None = None
) -> tuple[int, int]:
    """Count the rows and the lines of a piece of a source, without reading what they say."""
    n_rows = n_lines = 0
    blocks = read_blocks([piece], block_bytes=block_bytes, max_line_bytes=max_line_bytes)
    try:
        for block in blocks:
            rows, lines = _count(as_array(block), block.start, block.stop)
            n_rows, n_lines = n_rows + rows, n_lines + lines
    finally:
        blocks.close()
    return n_rows, n_lines


def iterate_piece(
    piece: Piece,
    *,
    place0: int,
    line0: int,
    value_dtype: Any = np.float32,
    index_base: int | None = None,
    n_features: int | None = None,
    ignore_beyond: bool = False,
    block_bytes: int = BLOCK_BYTES,
    max_line_bytes: int | None = None,
) -> Iterator[RowBlock]:
    """Parse a piece of a source, as `iterate_blocks` does it all.

    Parameters
    ----------
    piece : Piece
    place0 : int
        Rows of the input before it.
    line0 : int
        Lines of its file before it.

    Yields
    ------
    RowBlock
        Its `counts` and `bytes_read` are those of this piece alone.
    """
    parser = _parser(value_dtype, index_base, n_features, ignore_beyond, block_bytes, None)
    parser.line = line0
    blocks = read_blocks([piece], block_bytes=block_bytes, max_line_bytes=max_line_bytes)
    try:
        for block in blocks:
            for rows in parser.rows(block):
                yield replace(rows, place0=place0 + rows.place0)
    finally:
        blocks.close()


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
        Written with the fewest digits that give the same number again in this dtype.
    index_base : {1, 0}
        What is added to `feature`.
    """
    # pyarrow makes 8 million entries a second, Python's own formatting less than a million and a half
    import pyarrow as pa
    import pyarrow.compute as pc

    indices = pc.cast(pa.array(feature.astype(np.int64) + index_base), pa.string())
    entries = pc.binary_join_element_wise(indices, pc.cast(pa.array(value), pa.string()), ":")
    offsets = pa.array(np.asarray(indptr, dtype=np.int64))
    joined = pc.binary_join(pa.LargeListArray.from_arrays(offsets, entries), " ")
    labels = pc.cast(pa.array(np.asarray(label, dtype=np.float64)), pa.string())
    lines = pc.binary_join_element_wise(labels, joined, " ")
    if len(lines):
        stream.write("\n".join(lines.to_pylist()).encode("ascii"))
        stream.write(b"\n")

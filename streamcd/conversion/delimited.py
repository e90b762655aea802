"""Plain delimited text to Arrow columns, by a parser of our own; text that is not plain is left to Arrow's.

Plain is what most tables consist of: records of one number of cells, decimal numbers without spaces or a plus sign, strings
with quotes around them or none inside, lines that end with LF or CRLF. On that both parsers agree to the bit, and this one
takes a quarter of the time. Everything else, all that is wrong included, is Arrow's to read and to refuse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ..kernels.compile import inlined, kernel
from ..kernels.primitives import load8, store8
from .decimals import OK, number_at, trailing_zeros

_SKIPPED, _NUMBER, _STRING = range(3)

_MAX_NULL_BYTES = 7  # with the length they fit in a word
_MAX_NUMBER_BYTES = 40  # so that no number without an exponent underflows

_LF, _CR, _QUOTE, _MINUS = 0x0A, 0x0D, 0x22, 0x2D

_N_ROWS, _ANY_HIGH, _N_STATE = range(3)


@inlined
def _marks(word, byte):
    """Set the highest bit of bytes that equal `byte`: of the lowest one, and maybe of some above it that do not."""
    x = word ^ (np.uint64(byte) * np.uint64(0x0101010101010101))
    return (x - np.uint64(0x0101010101010101)) & ~x & np.uint64(0x8080808080808080)


@inlined
def _is_null(text, start, stop, nulls):
    """Tell if a cell is one of the words for a missing value."""
    length = stop - start
    if length > _MAX_NULL_BYTES:
        return False
    word = np.uint64(0)
    for k in range(length):
        word |= np.uint64(text[start + k]) << np.uint64(8 * k)
    word |= np.uint64(length) << np.uint64(56)
    found = False
    for null in nulls:
        found |= word == null
    return found


@inlined
def _is_digit(byte):
    return 0x30 <= byte <= 0x39


@kernel
def _parse(text, start, stop, delimiter, kinds, nulls, values, valid, starts, stops, n_null, state):
    """Parse the records of ``text[start:stop]``.

    Parameters
    ----------
    text : uint8[:]
        Ends with a newline at ``stop - 1``; `PADDING` bytes after it can be read.
    delimiter : int
    kinds : int64[columns]
        `_SKIPPED`, `_NUMBER` or `_STRING`; those of one kind have consecutive lines in the arrays that follow.
    nulls : uint64[:]
        Words for missing values, as bytes below their length.
    values, valid : float64[numbers, rows], bool[numbers, rows]
        Filled in place.
    starts, stops : int64[strings, rows]
        String ``r`` of a column is ``text[starts[r]:stops[r]]``; a missing one ends at -1. Filled in place.
    n_null : int64[columns]
        Missing values of each column; changed in place.
    state : int64[_N_STATE]
        Number of rows, and not zero where a string may have a byte above 127; changed in place.

    Returns
    -------
    bool
        False where something is not plain; the arrays are then to be thrown away.
    """
    position, row, last, high = start, 0, kinds.size - 1, np.uint64(0)
    while position < stop:
        number, string = 0, 0
        for column in range(kinds.size):
            kind, first = kinds[column], position
            c = text[position]
            if kind == _NUMBER:
                end = position
                if _is_digit(c) or (c == _MINUS and _is_digit(text[position + 1])):
                    value, end, status = number_at(text, position)
                    if status != OK or end - first > _MAX_NUMBER_BYTES or not _is_digit(text[end - 1]):
                        return False
                    if value == 0.0:
                        for k in range(first, end):
                            if text[k] | 0x20 == 0x65:  # an exponent: it may have underflowed
                                return False
                    elif np.isinf(value):
                        return False
                    values[number, row], valid[number, row] = value, True
                else:
                    while text[end] != delimiter and text[end] != _LF and text[end] != _CR:
                        end += 1
                    if not _is_null(text, first, end, nulls):
                        return False
                    values[number, row], valid[number, row] = 0.0, False
                    n_null[column] += 1
                number += 1
            elif c == _QUOTE:
                first += 1
                end = first
                while True:
                    word = load8(text, end)
                    high |= word
                    found = _marks(word, _QUOTE) | _marks(word, _LF)
                    if found:
                        end += np.int64(trailing_zeros(found) >> np.uint64(3))
                        break
                    end += 8
                if text[end] != _QUOTE:
                    return False
                if kind == _STRING:
                    starts[string, row], stops[string, row] = first, end
                    string += 1
                end += 1
            else:
                end = first
                while True:
                    word = load8(text, end)
                    high |= word
                    found = (
                        _marks(word, delimiter) | _marks(word, _LF) | _marks(word, _CR) | _marks(word, _QUOTE)
                    )
                    if found:
                        end += np.int64(trailing_zeros(found) >> np.uint64(3))
                        break
                    end += 8
                if kind == _STRING:
                    starts[string, row], stops[string, row] = first, end
                    if _is_null(text, first, end, nulls):
                        stops[string, row] = -1
                        n_null[column] += 1
                    string += 1
            c = text[end]
            if column < last:
                if c != delimiter:
                    return False
            else:
                if last == 0 and end == position:  # a line without anything is no record
                    return False
                if c == _CR:
                    end += 1
                    c = text[end]
                if c != _LF:
                    return False
            position = end + 1
        row += 1
    state[_N_ROWS] = row
    state[_ANY_HIGH] = np.int64((high & np.uint64(0x8080808080808080)) != np.uint64(0))
    return True


@kernel
def _measure(starts, stops, offsets):
    """Write the offsets of strings when they follow one another; missing ones are empty."""
    offsets[0] = 0
    for k in range(starts.size):
        offsets[k + 1] = offsets[k] + max(stops[k] - starts[k], 0)


@kernel
def _join(text, starts, offsets, data):
    """Copy strings one after another, as `_measure` numbered them; `data` has room for seven bytes more."""
    for k in range(starts.size):
        ahead = starts[k] - offsets[k]
        for at in range(
            offsets[k], offsets[k + 1], 8
        ):  # what is copied beyond a string, the next one replaces
            store8(data, at, load8(text, at + ahead))


class PlainColumns(NamedTuple):
    """Columns of delimited text, with the types of those wanted; and the words for a missing value."""

    names: Sequence[str]
    wanted: Mapping[str, Any]  # Arrow's types, float64 or large_string
    nulls: Sequence[str]
    delimiter: str

    def read(self, text: np.ndarray, start: int, stop: int, n_lines: int) -> Any:
        """Read ``text[start:stop]``, of at most `n_lines` lines, as an Arrow table; None where it is not plain."""
        kinds = np.array([self._kind(name) for name in self.names], np.int64)
        n_numbers, n_strings = (int((kinds == kind).sum()) for kind in (_NUMBER, _STRING))
        values, valid = np.empty((n_numbers, n_lines)), np.empty((n_numbers, n_lines), np.bool_)
        starts, stops = np.empty((2, n_strings, n_lines), np.int64)
        n_null, state = np.zeros(kinds.size, np.int64), np.zeros(_N_STATE, np.int64)
        arrays = (values, valid, starts, stops, n_null, state)
        if not _parse(text, start, stop, ord(self.delimiter), kinds, self._null_words(), *arrays):
            return None
        n_rows = int(state[_N_ROWS])
        if not n_rows:
            return None
        columns, numbers, strings = {}, iter(range(n_numbers)), iter(range(n_strings))
        for name, kind, missing in zip(self.names, kinds.tolist(), n_null.tolist(), strict=True):
            if kind == _NUMBER:
                line = next(numbers)
                columns[name] = _numbers(values[line, :n_rows], valid[line, :n_rows], missing)
            elif kind == _STRING:
                line = next(strings)
                columns[name] = _strings(text, starts[line, :n_rows], stops[line, :n_rows], missing)
        if state[_ANY_HIGH] and not _are_utf8(columns.values()):
            return None
        chosen = [name for name in self.wanted if name in columns]
        return pa.Table.from_arrays([columns[name] for name in chosen], names=chosen)

    def _kind(self, name: str) -> int:
        if name not in self.wanted:
            return _SKIPPED
        return _NUMBER if self.wanted[name] == pa.float64() else _STRING

    def _null_words(self) -> np.ndarray:
        encoded = [null.encode() for null in self.nulls]
        assert all(len(null) <= _MAX_NULL_BYTES for null in encoded)
        return np.array([int.from_bytes(null, "little") | len(null) << 56 for null in encoded], np.uint64)


def _validity(valid: np.ndarray, n_null: int) -> Any:
    return pa.py_buffer(np.packbits(valid, bitorder="little")) if n_null else None


def _numbers(values: np.ndarray, valid: np.ndarray, n_null: int) -> Any:
    buffers = [_validity(valid, n_null), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.float64(), values.size, buffers, n_null)


def _strings(text: np.ndarray, starts: np.ndarray, stops: np.ndarray, n_null: int) -> Any:
    offsets = np.empty(starts.size + 1, np.int64)
    _measure(starts, stops, offsets)
    data = np.empty(int(offsets[-1]) + 7, np.uint8)
    _join(text, starts, offsets, data)
    buffers = [_validity(stops >= 0, n_null), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_string(), starts.size, buffers, n_null)


def _are_utf8(columns: Any) -> bool:
    try:
        for column in columns:
            column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True

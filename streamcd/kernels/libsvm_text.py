"""Kernels that parse lines of libsvm text, and count them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compile import inlined, kernel
from .decimals import HARD, MALFORMED, OK, digits, number_at
from .primitives import load8, trailing_zeros
from .rows import LARGEST_INDEX

# the kernel's return values: nothing is wrong, or something at `TOKEN`
END, FULL, FLOAT = range(3)
BAD_LABEL, BAD_TOKEN, BAD_VALUE, LABEL_RANGE, RANGE, BELOW, ORDER, REPEATED, HUGE, BEYOND = range(3, 13)
# its state between calls
(
    POSITION,  # where to continue
    LINE,  # 0-based line of the source
    ROWS,  # rows finished in this block
    ENTRIES,  # entries stored in this block
    LAST,  # index before `POSITION` in an unfinished row; -2 at the start of a line
    TOKEN,  # start of the token that stopped the kernel
    KNOWN,  # position of a number whose value the caller gives, or -1
    ZEROS,
    UNDERFLOWS,
    IGNORED,
    QIDS,
    MAX_SEEN,  # largest index, -1 before any
    MAX_LINE,  # line of its first occurrence
    ZERO_INDEX,  # whether index 0 occurs
    N_STATE,
) = range(15)
LINE_START = -2
# the first fields of `rows.Counts`
COUNTED = [ROWS, ENTRIES, ZEROS, UNDERFLOWS, IGNORED, QIDS]


class Allowed(NamedTuple):
    """Bounds and forms of the labels and indices that a row may have."""

    least_index: int  # indices are ``least_index <= index < end_index``
    end_index: int
    ignore: bool  # pass over those from `end_index` on
    needs_label: bool  # else a row may begin with an entry, and its label is NaN
    end_label: float  # labels are of a smaller size


class Room(NamedTuple):
    """Arrays for parsed rows, filled in place; for at least a quarter as many entries as the text has bytes."""

    label: np.ndarray  # (rows,) float64
    indptr: np.ndarray  # (rows + 1,) int64
    feature: np.ndarray  # (entries,) int64: indices
    single: np.ndarray  # (entries,) float32: values, if they are of this type; else empty
    double: np.ndarray  # (entries,) float64: likewise


@inlined
def _number(text, start, known_at, known):
    """Parse a token that is a number, or take the one that is known: return it, its end, and `OK`, `MALFORMED` or `HARD`."""
    if known_at == start:
        end = start
        while text[end] > 0x20 and text[end] != 0x23:
            end += 1
        return known, end, OK
    number, end, kind = number_at(text, start)
    c = text[end]
    if not (c == 0x20 or c == 0x0A or c == 0x09 or c == 0x0D or c == 0x23):
        kind = MALFORMED
    return number, end, kind


@kernel
def parse_lines(text, stop, state, room, allowed, known):
    """Parse the lines of ``text[state[POSITION]:stop]``; return why it stopped.

    Parameters
    ----------
    text : uint8[:]
        Ends with a newline at ``stop - 1``; `PADDING` bytes after it can be read.
    state : int64[N_STATE]
        Changed in place; holds all that is needed to go on after `FULL`, or after `FLOAT` once ``known`` is the value
        of the number at ``state[KNOWN]``.
    room : Room
    allowed : Allowed
    known : float64

    Returns
    -------
    int
        `END`, `FULL` (no room for the next row), `FLOAT`, or the error at ``state[TOKEN]``.
    """
    label, indptr, index, single, double = room
    least_index, end_index, ignore, needs_label, end_label = allowed
    position = state[POSITION]
    line = state[LINE]
    last = state[LAST]
    row = state[ROWS]
    entry = state[ENTRIES]
    zeros = 0
    underflows = 0
    ignored = 0
    capacity = len(label)
    is_single = single.size > 0
    status = END
    token = position
    while position < stop:
        if last == LINE_START:
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
                status = FULL
                break
            token = position
            number, end, kind = _number(text, position, state[KNOWN], known)
            if kind == MALFORMED and not needs_label and text[end] == 0x3A:
                number = np.nan
                end = position
                kind = OK
            if kind != OK:
                status = FLOAT if kind == HARD else BAD_LABEL
                break
            position = end
            if abs(number) >= end_label:
                status = LABEL_RANGE
                break
            label[row] = number + 0.0  # -0 is 0
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
                if load8(text, position) & np.uint64(0xFFFFFFFF) == np.uint64(0x3A646971):  # "qid:"
                    state[QIDS] += 1
                    _, end = digits(text, position + 4)
                    if end > position + 4 and (text[end] <= 0x20 or text[end] == 0x23):
                        position = end
                        continue
                status = BELOW if c == 0x2D and 0 <= text[position + 1] - 48 <= 9 else BAD_TOKEN
                break
            whole, end = digits(text, position)
            if text[end] != 0x3A:
                status = BAD_TOKEN
                break
            if end - position > 18:
                while text[position] == 0x30:
                    position += 1
                if end - position > 19 or whole > np.uint64(LARGEST_INDEX):
                    status = HUGE
                    break
                position = token
            i = np.int64(whole)
            if i <= last:
                status = ORDER if i < last else REPEATED
                break
            if i < least_index:
                status = BELOW
                break
            start = end + 1
            if text[start + 1] == 0x20 and 0 <= text[start] - 48 <= 9:  # one digit: binary data
                number = np.float64(text[start] - 48)
                end = start + 1
                kind = OK
            else:
                number, end, kind = _number(text, start, state[KNOWN], known)
            if kind != OK:
                token, status = (start, FLOAT) if kind == HARD else (token, BAD_VALUE)
                break
            if i >= end_index:
                if not ignore:
                    status = BEYOND
                    break
                ignored += number != 0.0
            else:
                value = number
                if is_single:
                    single[entry] = number
                    value = np.float64(single[entry])
                else:
                    double[entry] = number
                index[entry] = i
                if np.isinf(value):
                    status = RANGE
                    break
                if value != 0.0:
                    entry += 1
                elif number == 0.0:
                    zeros += 1
                else:
                    underflows += 1
                if i == 0:
                    state[ZERO_INDEX] = 1
            last = i
            position = end
        if status != END:
            break
        # the row ends at a newline
        row += 1
        indptr[row] = entry
        if last > state[MAX_SEEN]:
            state[MAX_SEEN] = last
            state[MAX_LINE] = line
        last = LINE_START
        position += 1
        line += 1
    state[POSITION] = position
    state[LINE] = line
    state[LAST] = last
    state[ROWS] = row
    state[ENTRIES] = entry
    state[TOKEN] = token
    state[ZEROS] += zeros
    state[UNDERFLOWS] += underflows
    state[IGNORED] += ignored
    return status


@kernel
def count_lines(text, start, stop):
    """Count the rows and the lines of ``text[start:stop]``; blank lines and comments are lines and no rows."""
    rows = 0
    lines = 0
    position = start
    while position < stop:
        while text[position] == 0x20 or text[position] == 0x09:
            position += 1
        c = text[position]
        if not (c == 0x0A or c == 0x23 or (c == 0x0D and text[position + 1] == 0x0A)):
            rows += 1
        # to the newline, eight bytes at a time: the lowest zero byte of the word is found exactly
        while True:
            word = load8(text, position) ^ np.uint64(0x0A0A0A0A0A0A0A0A)
            zeros = (word - np.uint64(0x0101010101010101)) & ~word & np.uint64(0x8080808080808080)
            if zeros != np.uint64(0):
                position += np.int64(trailing_zeros(zeros) >> np.uint64(3)) + 1
                break
            position += 8
        lines += 1
    return rows, lines

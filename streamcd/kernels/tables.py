"""Kernels that make rows of entries of the columns of tables: strings numbered by a hash table, hashed, rows joined."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compile import inlined, kernel
from .primitives import load8, mix

MISSING, UNKNOWN = -1, -2
"""Codes of a null, and of a string that is not in a dictionary that takes no more."""

NUMBER, CATEGORY, HASHED = range(3)
"""Kinds of columns."""

NO_INDICATOR, REFUSED = -1, -2
"""Instead of an indicator's feature: a missing value has no entry, or is an error."""

OK, NULL_VALUE, INFINITE, OUT_OF_RANGE, NEGATIVE_INDEX, HUGE_INDEX, BEYOND_WIDTH = range(7)
"""Status codes that the kernels return."""

(ROW, COLUMN, ZEROS, UNDERFLOWS, UNSEEN, IGNORED, MAX_INDEX, MAX_ROW, ZERO_INDEX, N_STATE) = range(10)
"""State: where an error is, and counts."""

LARGEST_INDEX = 1 << 62

TAIL_CODES = 1 << 40
"""First code of hashed strings, where features are numbered as they come; a sparse column's indices come after these."""


@inlined
def word_at(data, start, length):
    """Up to eight bytes as one integer; eight are loaded where there are as many."""
    if start + 8 <= data.size:
        return load8(data, start) & (np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - 8 * length))
    word = np.uint64(0)
    for k in range(length):
        word |= np.uint64(data[start + k]) << np.uint64(8 * k)
    return word


@inlined
def string_hash(column, data, start, length):
    """Multiplicative hash of bytes, eight at a time, begun by the number of a column; its bits are mixed at the end."""
    found = np.uint64(length) ^ (np.uint64(column + 1) * np.uint64(0x9E3779B97F4A7C15))
    for k in range(0, length, 8):
        found = (found ^ word_at(data, start + k, min(length - k, 8))) * np.uint64(0xD6E8FEB86659FD93)
        found ^= found >> np.uint64(32)
    return mix(found)


@inlined
def _same_bytes(data, start, arena, first, length):
    k = 0
    while k < length and word_at(data, start + k, min(length - k, 8)) == word_at(
        arena, first + k, min(length - k, 8)
    ):
        k += 8
    return k >= length


FULL = -3
"""Instead of a number: there is no room for the string."""


class HashTable(NamedTuple):
    """Hash table with linear probing, which holds each (column, string) once; changed in place."""

    slots: np.ndarray  # (power of two,) int32: -1 where empty, else a number; half of them at most are taken
    hashes: np.ndarray  # (numbers,) uint64
    columns: np.ndarray  # (numbers,) int32
    ends: np.ndarray  # (numbers + 1,) int64: the bytes of number n are ``arena[ends[n]:ends[n + 1]]``
    arena: np.ndarray  # (bytes,) uint8
    state: np.ndarray  # (3,) int64: numbers and bytes so far, and the bytes of a string without room


@inlined
def number_of(wanted, column, data, first, length, add, table):
    """Number of one string, by its hash `wanted`, in a hash table, to which it may be added; `UNKNOWN` or `FULL`."""
    slots, hashes, columns, ends, arena, state = table
    mask = np.uint64(slots.size - 1)
    slot = wanted & mask
    number = np.int64(slots[slot])
    while number >= 0 and not (
        hashes[number] == wanted
        and columns[number] == column
        and ends[number + 1] - ends[number] == length
        and _same_bytes(data, first, arena, ends[number], length)
    ):
        slot = (slot + np.uint64(1)) & mask
        number = np.int64(slots[slot])
    if number >= 0:
        return number
    if not add:
        return np.int64(UNKNOWN)
    number = state[0]
    if 2 * (number + 1) > slots.size or number >= hashes.size or state[1] + length > arena.size:
        state[2] = length
        return np.int64(FULL)
    for k in range(length):
        arena[state[1] + k] = data[first + k]
    state[1] += length
    hashes[number], columns[number], ends[number + 1] = wanted, column, state[1]
    slots[slot] = number
    state[0] += 1
    return number


@kernel
def number_strings(column, strings, start, add, table, out):
    """Number the strings of a column by a `HashTable`.

    Parameters
    ----------
    column : int
    strings : (bytes,) uint8, (strings + 1,) int64, (strings,) bool
        String ``i`` is ``data[offsets[i]:offsets[i + 1]]``; the last array tells which are not null, and is empty where
        none is.
    start : int
        The first string to number.
    add : bool
        Add those that are not there, and number them on; else they are `UNKNOWN`.
    table : HashTable
    out : (strings,) int64
        Numbers, or `MISSING`, or `UNKNOWN`; filled in place.

    Returns
    -------
    int
        The first string that there is no room for; the number of strings where all are numbered.
    """
    data, offsets, valid = strings
    for i in range(start, offsets.size - 1):
        if valid.size and not valid[i]:
            out[i] = MISSING
            continue
        first, length = offsets[i], offsets[i + 1] - offsets[i]
        number = number_of(string_hash(column, data, first, length), column, data, first, length, add, table)
        if number == FULL:
            return i
        out[i] = number
    return offsets.size - 1


@kernel
def fill_slots(hashes, n_codes, slots):
    """Enter codes, by their hashes, into a table of empty slots."""
    mask = np.uint64(slots.size - 1)
    for code in range(n_codes):
        slot = hashes[code] & mask
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = code


@inlined
def _rotate(word, bits):
    return ((word << np.uint64(bits)) | (word >> np.uint64(32 - bits))) & np.uint64(0xFFFFFFFF)


@inlined
def _times(a, b):
    return (a * b) & np.uint64(0xFFFFFFFF)


@inlined
def murmur(prefix, data, first, length):
    """MurmurHash3 (x86, 32 bits, seed 0) of ``prefix + data[first:first + length]``, as a signed number."""
    head = prefix.size
    length += head
    found, word = np.uint64(0), np.uint64(0)
    for k in range(length):
        byte = np.uint64(prefix[k] if k < head else data[first + k - head])
        word |= byte << np.uint64(8 * (k & 3))
        if k & 3 == 3 or k == length - 1:
            word = _times(_rotate(_times(word, np.uint64(0xCC9E2D51)), np.uint64(15)), np.uint64(0x1B873593))
            found ^= word
            if k & 3 == 3:
                found = _rotate(found, np.uint64(13))
                found = (found * np.uint64(5) + np.uint64(0xE6546B64)) & np.uint64(0xFFFFFFFF)
            word = np.uint64(0)
    found ^= np.uint64(length)
    found = _times(found ^ (found >> np.uint64(16)), np.uint64(0x85EBCA6B))
    found = _times(found ^ (found >> np.uint64(13)), np.uint64(0xC2B2AE35))
    found ^= found >> np.uint64(16)
    signed = np.int64(found)
    return signed - (1 << 32) if signed >= (1 << 31) else signed


@kernel
def murmur_strings(prefix, strings, out):
    """Hash ``prefix + string`` by MurmurHash3 (x86, 32 bits, seed 0), as scikit-learn's FeatureHasher hashes ``name=value``.

    Parameters
    ----------
    prefix : (bytes,) uint8
    strings
        As for `number_strings`.
    out : (strings,) int64
        The hash as a signed 32-bit number, shifted up by 2^31; `MISSING` of null. Filled in place.
    """
    data, offsets, valid = strings
    for i in range(offsets.size - 1):
        if valid.size and not valid[i]:
            out[i] = MISSING
        else:
            out[i] = murmur(prefix, data, offsets[i], offsets[i + 1] - offsets[i]) + (1 << 31)


class Layout(NamedTuple):
    """Every column of a table, hashed ones last, as `table_rows` takes it; each (columns,) int64."""

    kinds: np.ndarray
    lines: np.ndarray  # of the arrays of its kind
    features: np.ndarray  # of a number the entry's code, of a hashed column that of the first bucket
    indicators: np.ndarray  # the code of a missing value's entry, or `NO_INDICATOR`, or `REFUSED`


@kernel
def table_rows(values, codes, layout, bits, rows, state):
    """Join columns to rows of entries, ascending by code within a row; zeros are no entries.

    Parameters
    ----------
    values : (numbers, rows) float64
        Columns of numbers; NaN is missing.
    codes : (strings, rows) int64
        Columns of codes of strings, or of their hashes.
    layout : Layout
    bits : int
        2^bits buckets take hashed strings, an entry 1 or -1 by the hash's sign each; those of one bucket are added up.
    rows : CSR
        Filled in place; there is room for an entry in every cell.
    state : (N_STATE,) int64
        Where an error is, and counts; changed in place.

    Returns
    -------
    int
        `OK`, or `NULL_VALUE`, `INFINITE`, `OUT_OF_RANGE` (of the type of the values).
    """
    kinds, lines, features, indicators = layout
    indptr, index, value = rows
    entry = 0
    for row in range(indptr.size - 1):
        hashed_from = -1
        for column in range(kinds.size):
            kind = kinds[column]
            feature, number = features[column], 1.0
            if kind == NUMBER:
                number = values[lines[column], row]
                if number == 0.0:
                    continue
                missing = np.isnan(number)
            else:
                code = codes[lines[column], row]
                if code == UNKNOWN:
                    state[UNSEEN] += 1
                    continue
                missing = code == MISSING
                if kind == CATEGORY:
                    feature = code
            if missing:
                feature, number, kind = indicators[column], 1.0, NUMBER
                if feature == NO_INDICATOR:
                    continue
                if feature == REFUSED:
                    state[ROW], state[COLUMN] = row, column
                    return NULL_VALUE
            if kind == HASHED:
                signed = code - (1 << 31)
                feature += abs(signed) & ((1 << bits) - 1)
                number = 1.0 if signed >= 0 else -1.0
                if hashed_from < 0:
                    hashed_from = entry
                entry = _insert(feature, number, hashed_from, entry, index, value)
                continue
            index[entry], value[entry] = feature, number
            if np.isinf(value[entry]):
                state[ROW], state[COLUMN] = row, column
                return INFINITE if np.isinf(number) else OUT_OF_RANGE
            if value[entry] != 0.0:
                entry += 1
            else:
                state[UNDERFLOWS] += 1
        if hashed_from >= 0:
            entry = _without_zeros(hashed_from, entry, index, value)
        indptr[row + 1] = entry
    return OK


@inlined
def _insert(feature, number, start, end, index, value):
    """Insert an entry into those from `start` to `end`, ascending; add it to the one that is there. Returns the new end."""
    k = end
    while k > start and index[k - 1] > feature:
        k -= 1
    if k > start and index[k - 1] == feature:
        value[k - 1] += number
        return end
    for j in range(end, k, -1):
        index[j], value[j] = index[j - 1], value[j - 1]
    index[k], value[k] = feature, number
    return end + 1


@inlined
def _without_zeros(start, end, index, value):
    """Close up entries from `start` to `end` that are not zero; returns the new end."""
    kept = start
    for k in range(start, end):
        if value[k] != 0.0:
            index[kept], value[kept] = index[k], value[k]
            kept += 1
    return kept


@kernel
def sparse_rows(given, least, width_end, ignore, rows, state):
    """Copy sparse rows whose indices do not descend: repeated ones are added up, zeros counted and left out.

    Parameters
    ----------
    given : CSR
    least, width_end : int
        Indices allowed are ``least <= index < width_end``; those beyond are skipped and counted if `ignore`.
    rows : CSR
        Filled in place.
    state : (N_STATE,) int64
        Where an error is, and counts; changed in place.

    Returns
    -------
    int
        `OK`, `NULL_VALUE` (NaN), `INFINITE`, `OUT_OF_RANGE`, `NEGATIVE_INDEX` (below `least`), `HUGE_INDEX`, `BEYOND_WIDTH`.
    """
    starts, given_index, given_value = given
    indptr, index, value = rows
    entry = 0
    for row in range(starts.size - 1):
        first, stop = starts[row], starts[row + 1]
        last, total = np.int64(-1), 0.0
        for k in range(first, stop):
            i, number = np.int64(given_index[k]), np.float64(given_value[k])
            state[ROW], state[COLUMN] = row, k
            if i < least:
                return NEGATIVE_INDEX
            if i > LARGEST_INDEX:
                return HUGE_INDEX
            if np.isnan(number):
                return NULL_VALUE
            if i == 0:
                state[ZERO_INDEX] = 1
            if i > state[MAX_INDEX]:
                state[MAX_INDEX], state[MAX_ROW] = i, row
            if i >= width_end:
                if not ignore:
                    return BEYOND_WIDTH
                state[IGNORED] += number != 0.0
                continue
            total = total + number if i == last else number
            last = i
            if k + 1 < stop and given_index[k + 1] == i:
                continue
            index[entry], value[entry] = i, total
            if np.isinf(value[entry]):
                return INFINITE if np.isinf(total) else OUT_OF_RANGE
            if value[entry] != 0.0:
                entry += 1
            elif total == 0.0:
                state[ZEROS] += 1
            else:
                state[UNDERFLOWS] += 1
        indptr[row + 1] = entry
    return OK


class TaskMaps(NamedTuple):
    """Maps from the codes of tasks, each of which numbers strings on its own, to features."""

    first_rows: np.ndarray  # (tasks,) int64: first row of the source of every task, ascending
    starts: np.ndarray  # (tasks + 1,) int64: task t has the map ``features[starts[t]:starts[t + 1]]``
    features: np.ndarray  # (codes of all tasks,) int64
    tail_start: int  # feature of the code `TAIL_CODES`, after which come those of hashed and sparse columns


@inlined
def last_start(starts, first, number):
    """Return the index, `first` or more, of the last of ascending `starts` up to a number; `first` if there is none."""
    found, end = first, starts.size
    while end - found > 1:
        middle = (found + end) >> 1
        if number < starts[middle]:
            end = middle
        else:
            found = middle
    return found


@kernel
def renumber(indptr, index, source_row, maps, out):
    """Turn codes into features.

    Parameters
    ----------
    indptr, index : (rows + 1,) int64, (entries,) integer
        Codes.
    source_row : (rows,) int64
    maps : TaskMaps
    out : (entries,) integer
        Filled in place.
    """
    first_rows, starts, features, tail_start = maps
    for row in range(source_row.size):
        task = last_start(first_rows, 0, source_row[row])
        for entry in range(indptr[row], indptr[row + 1]):
            code = np.int64(index[entry])
            if code >= TAIL_CODES:
                out[entry] = code - TAIL_CODES + tail_start
            else:
                out[entry] = features[starts[task] + code]


@kernel
def last_record_end(text, stop, quote):
    """Return the offset after the last newline of ``text[:stop]`` that is not between quotes; 0 if there is none."""
    n_quotes = 0
    for k in range(stop):  # many bytes at a time
        n_quotes += text[k] == quote
    for k in range(stop - 1, -1, -1):
        if text[k] == quote:
            n_quotes -= 1
        elif text[k] == 0x0A and n_quotes % 2 == 0:
            return k + 1
    return 0


@kernel
def count_records(text, start, stop, quote):
    """Count the records and the lines of delimited text, and tell if it ends between quotes; blank lines are no records."""
    records, lines, record, quoted = 0, 0, start, False
    for k in range(start, stop):
        if text[k] == quote:
            quoted = not quoted
        elif text[k] == 0x0A:
            lines += 1
            if not quoted:
                while text[record] == 0x0D:
                    record += 1
                records += record < k
                record = k + 1
    return records, lines, quoted

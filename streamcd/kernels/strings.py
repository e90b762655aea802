"""Strings of tables: numbered by a hash table, and hashed into buckets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compile import kernel
from .primitives import mix

MISSING = -1
UNKNOWN = -2
"""Codes of a null, and of a string that is not in a dictionary that takes no more."""

TAIL_CODES = 1 << 40
"""First code of hashed strings, where features are numbered as they come; a sparse column's indices come after these."""


class HashTable(NamedTuple):
    """Hash table with linear probing, which holds each (column, string) once; changed in place."""

    slots: np.ndarray  # (power of two,) int32: -1 where empty, else a number; half of them at most are taken
    hashes: np.ndarray  # (numbers,) uint64
    columns: np.ndarray  # (numbers,) int32
    ends: np.ndarray  # (numbers + 1,) int64: the bytes of number n are ``arena[ends[n]:ends[n + 1]]``
    arena: np.ndarray  # (bytes,) uint8


@kernel
def number_strings(column, strings, add, table, n, out):
    """Number the strings of a column by a `HashTable`.

    Parameters
    ----------
    column : int
    strings : (bytes,) uint8, (strings + 1,) int64
        String ``i`` is ``data[offsets[i]:offsets[i + 1]]``.
    add : bool
        Add those that are not there, for which there is room, and number them on; else they are `UNKNOWN`.
    table : HashTable
    n : int
        Strings in the table.
    out : (strings,) int64
        Filled in place.

    Returns
    -------
    int
        The strings in the table now.
    """
    data, offsets = strings
    slots, hashes, columns, ends, arena = table
    mask = np.uint64(slots.size - 1)
    for i in range(out.size):
        first = offsets[i]
        length = offsets[i + 1] - offsets[i]
        hashed = np.uint64(column + 1) * np.uint64(0x9E3779B97F4A7C15)
        for k in range(length):
            hashed = (hashed ^ np.uint64(data[first + k])) * np.uint64(0x100000001B3)
        hashed = mix(hashed)
        slot = hashed & mask
        number = np.int64(slots[slot])
        while number >= 0:
            if (
                hashes[number] == hashed
                and columns[number] == column
                and ends[number + 1] - ends[number] == length
            ):
                k = 0
                while k < length and data[first + k] == arena[ends[number] + k]:
                    k += 1
                if k == length:
                    break
            slot = (slot + np.uint64(1)) & mask
            number = np.int64(slots[slot])
        if number < 0 and add:
            number = n
            ends[n + 1] = ends[n] + length
            hashes[n] = hashed
            columns[n] = column
            slots[slot] = n
            for k in range(length):
                arena[ends[n] + k] = data[first + k]
            n += 1
        out[i] = number if number >= 0 else UNKNOWN
    return n


@kernel
def fill_slots(hashes, n_codes, slots):
    """Enter codes, by their hashes, into a table of empty slots."""
    mask = np.uint64(slots.size - 1)
    for code in range(n_codes):
        slot = hashes[code] & mask
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = code


@kernel
def murmur_strings(strings, out):
    """Hash strings by MurmurHash3 (x86, 32 bits, seed 0), as scikit-learn's FeatureHasher does.

    Parameters
    ----------
    strings
        As for `number_strings`.
    out : (strings,) int64
        Hashes as signed 32-bit numbers, filled in place.
    """
    data, offsets = strings
    low = np.uint64(0xFFFFFFFF)
    for i in range(out.size):
        first = offsets[i]
        length = offsets[i + 1] - offsets[i]
        hashed = np.uint64(0)
        word = np.uint64(0)
        for k in range(length):
            word |= np.uint64(data[first + k]) << np.uint64(8 * (k & 3))
            if k & 3 == 3 or k == length - 1:
                word = (word * np.uint64(0xCC9E2D51)) & low
                word = ((word << np.uint64(15)) | (word >> np.uint64(17))) & low
                hashed ^= (word * np.uint64(0x1B873593)) & low
                if k & 3 == 3:
                    hashed = ((hashed << np.uint64(13)) | (hashed >> np.uint64(19))) & low
                    hashed = (hashed * np.uint64(5) + np.uint64(0xE6546B64)) & low
                word = np.uint64(0)
        hashed ^= np.uint64(length)
        hashed = ((hashed ^ (hashed >> np.uint64(16))) * np.uint64(0x85EBCA6B)) & low
        hashed = ((hashed ^ (hashed >> np.uint64(13))) * np.uint64(0xC2B2AE35)) & low
        out[i] = np.int32(hashed ^ (hashed >> np.uint64(16)))

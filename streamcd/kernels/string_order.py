"""Kernels that sort strings by their bytes: eight bytes as a key for a sort of integers, then the strings of one key."""

from __future__ import annotations

import numpy as np

from .compile import inlined, kernel
from .tables import word_at

_KEY_BYTES = 8
_INSERTED = 12  # strings that are sorted by insertion


@kernel
def first_words(strings, keys):
    """Write the first eight bytes of every string to `keys` as an integer, whose order is that of the bytes.

    Parameters
    ----------
    strings : (bytes,) uint8, (strings + 1,) int64
        String ``i`` is ``data[offsets[i]:offsets[i + 1]]``.
    keys : (strings,) uint64
        Filled in place; what a string is too short for is zero.
    """
    data, offsets = strings
    for i in range(keys.size):
        key = np.uint64(0)
        for k in range(offsets[i], min(offsets[i] + _KEY_BYTES, offsets[i + 1])):
            key |= np.uint64(data[k]) << np.uint64(8 * (_KEY_BYTES - 1 - (k - offsets[i])))
        keys[i] = key


@inlined
def _compared(strings, a, b):
    """Compare two strings of one key; below 0 where the first comes first, 0 where they are equal."""
    data, offsets = strings
    first, second = offsets[a], offsets[b]
    length_a, length_b = offsets[a + 1] - first, offsets[b + 1] - second
    common = min(length_a, length_b)
    k = np.int64(_KEY_BYTES)
    while k < common and word_at(data, first + k, min(common - k, 8)) == word_at(
        data, second + k, min(common - k, 8)
    ):
        k += 8
    while k < common and data[first + k] == data[second + k]:
        k += 1
    if k < common:
        return np.int64(data[first + k]) - np.int64(data[second + k])
    return length_a - length_b


@inlined
def _merge_sort(strings, order, start, stop, scratch):
    """Sort ``order[start:stop]``, strings of one key: short runs by insertion, which are merged."""
    for run in range(start, stop, _INSERTED):
        for k in range(run + 1, min(run + _INSERTED, stop)):
            moved, at = order[k], k
            while at > run and _compared(strings, order[at - 1], moved) > 0:
                order[at] = order[at - 1]
                at -= 1
            order[at] = moved
    width = np.int64(_INSERTED)
    while width < stop - start:
        for run in range(start, stop - width, 2 * width):
            middle, end = run + width, min(run + 2 * width, stop)
            for k in range(run, middle):
                scratch[k - run] = order[k]
            left, right, out = np.int64(0), middle, run
            while left < middle - run:
                if right < end and _compared(strings, scratch[left], order[right]) > 0:
                    order[out] = order[right]
                    right += 1
                else:
                    order[out] = scratch[left]
                    left += 1
                out += 1
        width *= 2


@kernel
def sort_ties(strings, keys, order, scratch, is_new):
    """Sort the strings of one key among themselves, and mark those that differ from the one before.

    Parameters
    ----------
    strings, keys
        As `first_words` takes and makes them.
    order : (strings,) int64
        Places of the strings by ascending keys; changed in place.
    scratch : (strings,) int64
    is_new : (strings,) bool
        In that order; filled in place.
    """
    start = np.int64(0)
    while start < order.size:
        stop = start + 1
        while stop < order.size and keys[order[stop]] == keys[order[start]]:
            stop += 1
        _merge_sort(strings, order, start, stop, scratch)
        is_new[start] = True
        for k in range(start + 1, stop):
            is_new[k] = _compared(strings, order[k - 1], order[k]) != 0
        start = stop

"""Kernels that move records to their buckets: number, order, copy them; and that add up the values of every feature."""

from __future__ import annotations

import numpy as np

from .compile import cached, kernel
from .primitives import prefetch

AHEAD = 8
"""Number of records ahead at which the next ones to copy are prefetched."""

SUMS_WIDTH = 7  # of a feature's sums


@cached
def number_by_ranges(key, ends, first_bucket, shift, start, bucket):
    """Write the range that each key lies in to `bucket`.

    The ranges ascend, the first one from `start`; their `ends` (int64) are exclusive. ``first_bucket[cell]`` is the first
    that overlaps the cell ``(key - start) >> shift``.
    """
    for k in range(key.size):
        b = first_bucket[(np.int64(key[k]) - start) >> shift]
        while key[k] >= ends[b]:
            b += 1
        bucket[k] = b


@cached
def order_by_bucket(bucket, starts, order):
    """Sort records by bucket, keeping their order within each (a counting sort).

    Written: `starts`, (buckets + 1,), and `order`; bucket b holds ``order[starts[b]:starts[b + 1]]``.
    """
    starts[:] = 0
    for k in range(bucket.size):
        starts[bucket[k] + 1] += 1
    for b in range(starts.size - 1):
        starts[b + 1] += starts[b]
    following = starts.copy()
    for k in range(bucket.size):
        order[following[bucket[k]]] = k
        following[bucket[k]] += 1


@cached
def take_words(words, order, out):
    """Copy the rows `order` of `words` (n, w) to `out`; fields are viewed as words so that few types are compiled."""
    if words.shape[1] == 1:
        for k in range(order.size):
            out[k, 0] = words[order[k], 0]
    else:
        for k in range(order.size):
            for j in range(words.shape[1]):
                out[k, j] = words[order[k], j]


@kernel
def take_items(records, indptr, width, words, out):
    """Copy the items of records, one record after another: record r has those from ``indptr[r]`` on, of `width` words each.

    Records are short and come in any order: fetched ahead, they took 9 ns each instead of 58 (11 items, 7 MB in all).
    """
    end, size, last = np.uint64(0), np.uint64(width), records.size - 1
    for i in range(records.size):
        prefetch(indptr, records[min(i + 2 * AHEAD, last)])
        prefetch(words, indptr[records[min(i + AHEAD, last)]] * width)
        first, stop = np.uint64(indptr[records[i]]), np.uint64(indptr[records[i] + 1])
        for k in range(first * size, stop * size):
            out[end] = words[k]
            end += np.uint64(1)


@cached
def sort_entries(entries, numbers, following, ends, out):
    """Write entries (feature, row, value) to their positions in `out` (row, value) among those sorted by feature.

    `numbers` holds `first`, `table` and `occurring`: ``table[i]`` is the number of feature ``first + i`` among those that
    are `occurring` (ascending); empty where their range is too wide for a table. `following` is the position of the next
    entry of each, advanced in place; `ends` the end of its entries. Returns -1, or the number of the first entry that the
    counts do not allow for.
    """
    (feature, row, value), (first, table, occurring), (to_row, to_value) = entries, numbers, out
    for k in range(feature.size):
        if table.size:
            i = np.int64(table[feature[k] - first])
        else:
            i = np.searchsorted(occurring, feature[k])
            if i >= occurring.size or occurring[i] != feature[k]:
                i = -1
        if i < 0 or following[i] >= ends[i]:
            return k
        at = following[i]
        following[i] += 1
        to_row[at], to_value[at] = row[k], value[k]
    return -1


@kernel
def add_entries(position, value, sums):
    """Add entries to the sums of their features, in order.

    Parameters
    ----------
    position : integer[entries]
        Features; those from ``sums.size / 7`` on, and negative ones, are skipped.
    value : float[entries]
    sums : float64[features * 7]
        Number, sum, sum of squares, least, greatest, sum and sum of squares of this shard; changed in place, except for the
        sums of all shards. They are neighbours because fetching a feature's cache line takes most of the time: five arrays
        in turn with `numpy.add.at` took six times as long. Fetched ahead, an entry takes 6.5 ns in place of 18 (300,000
        features).
    """
    last, n_features = position.size - 1, sums.size // SUMS_WIDTH
    for k in range(position.size):
        ahead = np.int64(position[min(k + (2 * AHEAD), last)]) * SUMS_WIDTH
        prefetch(sums, ahead)
        prefetch(sums, ahead + SUMS_WIDTH - 1)
        if 0 <= position[k] < n_features:
            i = np.int64(position[k]) * SUMS_WIDTH
            x = np.float64(value[k])
            sums[i] += 1.0
            sums[i + 5] += x
            sums[i + 6] += x * x
            sums[i + 3] = min(sums[i + 3], x)
            sums[i + 4] = max(sums[i + 4], x)

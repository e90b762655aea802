"""Rows of entries without a solver: checked, placed, scaled and scored; records moved to their buckets; sums of features."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .compile import cached, inlined, kernel
from .primitives import prefetch

AHEAD = 8
"""Number of records ahead at which the next ones to copy are prefetched."""

FITS, WRONG_COUNTS, WRONG_LABEL = range(3)
"""Status codes of `place_rows`."""

OK, NOT_FINITE, OUT_OF_RANGE, NEGATIVE_INDEX, BEYOND_WIDTH = range(5)
"""Status codes of `sparse_rows`."""

ROW, ENTRY, ZEROS, UNDERFLOWS, IGNORED, MAX_INDEX, MAX_ROW, ZERO_INDEX, N_STATE = range(9)
"""Its state: where an error is, and counts."""

LARGEST_INDEX = 1 << 62
"""Largest index of a feature in a source."""

SUMS_WIDTH = 7  # of a feature's sums


class CSR(NamedTuple):
    """Compressed sparse rows: row r has the entries ``indptr[r]:indptr[r + 1]``. Kernels that make rows fill the arrays."""

    indptr: np.ndarray  # (rows + 1,) int64
    feature: np.ndarray  # (entries,) integer: features, indices or codes
    value: np.ndarray  # (entries,) float


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
        `OK`, `NOT_FINITE`, `OUT_OF_RANGE` (of the type of the values), `NEGATIVE_INDEX` (below `least`), `BEYOND_WIDTH`.
    """
    starts, given_index, given_value = given
    indptr, index, value = rows
    entry = 0
    for row in range(starts.size - 1):
        first, stop = starts[row], starts[row + 1]
        last, total = np.int64(-1), 0.0
        for k in range(first, stop):
            i, number = np.int64(given_index[k]), np.float64(given_value[k])
            state[ROW], state[ENTRY] = row, k
            if i < least:
                return NEGATIVE_INDEX
            if not np.isfinite(number):
                return NOT_FINITE
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
                return OUT_OF_RANGE
            if value[entry] != 0.0:
                entry += 1
            elif total == 0.0:
                state[ZEROS] += 1
            else:
                state[UNDERFLOWS] += 1
        indptr[row + 1] = entry
    return OK


@kernel
def place_rows(rows, classes, rank, offsets, arena):
    """Copy a chunk's labels, numbers of entries, weights (none if all are 1) and features to an arena, in one call.

    `offsets` are those of the first row, its first entry, and the end of the last one's in the arena's arrays: starts,
    indices of classes (ascending labels), weights, targets, features. Labels are targets where the arena has room for these;
    else it has none. Features, which are in range, become their `rank`, where there is one. Returns `FITS`, or
    `WRONG_COUNTS` or `WRONG_LABEL` with all starts as before. A start is written once: the last one may be that of a row in
    training.
    """
    (label, n_entries, weight, feature), (indptr, code, out_weight, target, out_feature) = rows, arena
    first, end, stop = offsets
    left = stop - end
    for i in range(label.size):
        left -= n_entries[i]
        if n_entries[i] < 0:
            return WRONG_COUNTS
    if left and label.size:  # safety: stream::does_not_fit_the_dataset
        return WRONG_COUNTS
    for i in range(label.size if target.size == 0 else 0):
        low, high = 0, classes.size - 1
        while low < high:
            middle = (low + high) >> 1
            low, high = (middle + 1, high) if classes[middle] < label[i] else (low, middle)
        if high < 0 or classes[low] != label[i]:  # safety: stream::does_not_fit_the_dataset
            return WRONG_LABEL
        code[first + i] = low
    out = out_feature[end:stop]
    if rank.size:
        for k in range(feature.size):
            out[k] = rank[feature[k]]
    else:
        for k in range(feature.size):
            out[k] = feature[k]
    indptr[first] = end
    for i in range(label.size):
        end += n_entries[i]
        indptr[first + i + 1] = end
        out_weight[first + i] = weight[i] if weight.size else 1.0
        if target.size:
            target[first + i] = label[i]
    return FITS


@inlined
def _row_norm(value, start, stop):
    """Euclidean norm of ``value[start:stop]``; squares that would leave the range of float64 are avoided."""
    squares, largest = 0.0, 0.0
    for k in range(start, stop):
        v = abs(np.float64(value[k]))
        squares += v * v
        largest = max(largest, v)
    if 1e-280 < squares < 1e300 or largest == 0.0:
        return math.sqrt(squares)
    ratios = 0.0
    for k in range(start, stop):
        ratio = np.float64(value[k]) / largest
        ratios += ratio * ratio
    return largest * math.sqrt(ratios)


@kernel
def add_row_norms(indptr, value, sums):
    """Add rows to the statistics of the norms of all rows.

    Changed in place: `sums`, (4,): least norm above 0, greatest norm, sum of the squared norms, rows of norm 0.
    """
    for i in range(indptr.size - 1):
        norm = _row_norm(value, indptr[i], indptr[i + 1])
        if norm > 0.0:
            sums[0] = min(sums[0], norm)
            sums[1] = max(sums[1], norm)
            sums[2] += norm * norm
        else:
            sums[3] += 1.0


@kernel
def scale_rows(rows, scale, n_features, unit_rows, out):
    """Divide every value of `rows` (`CSR`) by its feature's scale, then every row by its norm.

    Features from ``scale.size`` on keep their values; those from `n_features` on become 0, and so do not count in the norm.
    With `unit_rows` rows are divided by their norms, unless that is 0. `out` (float64) is written.
    """
    indptr, feature, value = rows
    for i in range(indptr.size - 1):
        start, stop = indptr[i], indptr[i + 1]
        for k in range(start, stop):
            j = feature[k]
            out[k] = np.float64(value[k])
            if j < 0 or j >= n_features:
                out[k] = 0.0
            elif j < scale.size:
                out[k] /= scale[j]
        norm = _row_norm(out, start, stop) if unit_rows else 0.0
        if norm > 0.0:
            for k in range(start, stop):
                out[k] /= norm


@kernel
def scores(rows, shape, w, intercept, out):
    """Write ``x·w_m + intercept_m`` of every row and weight vector to `out`, (rows, vectors).

    `rows` are the starts and stops of the rows' entries, and features and values of all, each as two read-only arrays, of
    32 and of 64 bits, one of which is empty: else a second kernel would be compiled for text, which is parsed to 64 bits.
    `w` holds all weights, (features, vectors), or as CSR those that are not 0, (weights, 1): then `shape` has where those of
    each feature begin, and their vectors, which else are empty; and the number of features. Returns how many entries were
    left out, whose features are not among these.
    """
    start, stop, narrow, wide, single, double = rows
    indptr, column, n_features = shape
    ignored = 0
    n_vectors = intercept.size
    is_sparse = indptr.size > 0
    is_narrow = narrow.size > 0
    is_single = single.size > 0
    for i in range(start.size):
        for m in range(n_vectors):
            out[i, m] = 0.0
        for k in range(start[i], stop[i]):
            j = np.int64(narrow[k]) if is_narrow else wide[k]
            v = np.float64(single[k]) if is_single else double[k]
            if j < 0 or j >= n_features:
                ignored += 1
                continue
            if is_sparse:
                for p in range(indptr[j], indptr[j + 1]):
                    out[i, column[p]] += w[p, 0] * v
                continue
            row = np.uint64(j)
            for m in range(n_vectors):
                out[i, m] += w[row, m] * v
        for m in range(n_vectors):
            out[i, m] += intercept[m]
    return ignored


# ---------------------------------------------------------------------------------------------------------------------
# Records and entries in an order of their own


@cached
def number_by_ranges(key, ends, first_bucket, shift, bucket):
    """Write the range that each key lies in to `bucket`.

    The ranges ascend, the first one from 0; their `ends` (int64) are exclusive. ``first_bucket[cell]`` is the first that
    overlaps the cell ``key >> shift``.
    """
    for k in range(key.size):
        b = first_bucket[np.int64(key[k]) >> shift]
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


def take_column(records: np.ndarray, indptr: np.ndarray, column: np.ndarray, out: np.ndarray) -> None:
    """Copy records' items of a column by `take_items`, as unsigned words, so that columns of many types have one kernel."""
    item_bytes = column.itemsize * math.prod(column.shape[1:])
    word = next(width for width in (8, 4, 2, 1) if item_bytes % width == 0)
    words, taken = (array.view(np.uint8).reshape(-1).view(f"u{word}") for array in (column, out))
    take_items(records, indptr, item_bytes // word, words, taken)


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

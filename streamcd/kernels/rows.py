"""Rows of entries without a solver: decoded chunks, copies, norms, scaling, and scores."""

from __future__ import annotations

import math

import numpy as np

from .compile import inlined, kernel
from .primitives import prefetch
from .scatter import AHEAD

FITS, WRONG_COUNTS, WRONG_LABEL = range(3)


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
def place_rows(rows, classes, offsets, arena):
    """Copy a chunk's labels, numbers of entries and weights (none if all are 1) to an arena, in one call.

    `offsets` are those of the first row, its first entry, and the end of the last one's in the arena's arrays: starts,
    indices of classes (ascending labels), weights, targets. Labels are targets where the arena has room for these; else it
    has none. Returns `FITS`, or `WRONG_COUNTS` or `WRONG_LABEL` with all starts as
    before. A start is written once: the last one may be that of a row in training.
    """
    (label, n_entries, weight), (indptr, code, out_weight, target) = rows, arena
    first, end, stop = offsets
    left = stop - end
    for i in range(label.size):
        left -= n_entries[i]
        if n_entries[i] < 0:
            return WRONG_COUNTS
    if left and label.size:
        return WRONG_COUNTS
    for i in range(label.size if target.size == 0 else 0):
        low, high = 0, classes.size - 1
        while low < high:
            middle = (low + high) >> 1
            low, high = (middle + 1, high) if classes[middle] < label[i] else (low, middle)
        if high < 0 or classes[low] != label[i]:
            return WRONG_LABEL
        code[first + i] = low
    indptr[first] = end
    for i in range(label.size):
        end += n_entries[i]
        indptr[first + i + 1] = end
        out_weight[first + i] = weight[i] if weight.size else 1.0
        if target.size:
            target[first + i] = label[i]
    return FITS


@kernel
def gather_entries(rows, indptr, index, value, out_index, out_value):
    """Copy the entries of `rows` (int64), one row after another, to `out_index` and `out_value`."""
    end, last = np.uint64(0), rows.size - 1
    for i in range(rows.size):
        prefetch(indptr, rows[min(i + 2 * AHEAD, last)])
        ahead = indptr[rows[min(i + AHEAD, last)]]
        prefetch(index, ahead)
        prefetch(value, ahead)
        start, stop = np.uint64(indptr[rows[i]]), np.uint64(indptr[rows[i] + 1])
        for k in range(start, stop):
            out_index[end + k - start] = index[k]
        for k in range(start, stop):
            out_value[end + k - start] = value[k]
        end += stop - start


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
def scores(rows, kept, w, intercept, out):
    """Write ``x·w_m + intercept_m`` of every row (`SparseRows`) and weight vector to `out`, (rows, vectors).

    `w` holds the weights of all features, (features, vectors), or of some, in order, those of the others being 0: `kept` has
    a bit for each feature, 64 in a uint64, how many are set before each of these (both empty where all are), and the number
    of features. Returns how many entries were left out, whose features are not among them.
    """
    start, stop, feature, value = rows
    bits, before, n_features = kept
    ignored, n_vectors, is_sparse = 0, w.shape[1], bits.size > 0
    for i in range(start.size):
        for m in range(n_vectors):
            out[i, m] = 0.0
        for k in range(start[i], stop[i]):
            j, v = np.int64(feature[k]), np.float64(value[k])
            if j < 0 or j >= n_features:
                ignored += 1
                continue
            row = np.uint64(j)
            if is_sparse:
                word, bit = bits[j >> 6], np.uint64(j & 63)
                if not (word >> bit) & np.uint64(1):
                    continue
                row = np.uint64(before[j >> 6]) + np.uint64(
                    _count_bits(word & ((np.uint64(1) << bit) - np.uint64(1)))
                )
            for m in range(n_vectors):
                out[i, m] += w[row, m] * v
        for m in range(n_vectors):
            out[i, m] += intercept[m]
    return ignored


@inlined
def _count_bits(word):
    """Count the bits that are set in a uint64, by sums of pairs, of fours and of bytes."""
    pairs = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    fours = (pairs & np.uint64(0x3333333333333333)) + (
        (pairs >> np.uint64(2)) & np.uint64(0x3333333333333333)
    )
    eights = (fours + (fours >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((eights * np.uint64(0x0101010101010101)) >> np.uint64(56))


@kernel
def compact_rows(indptr, row, n_rows, following, rank, listed):
    """Number the rows that occur in columns, ascending, and replace the rows by these numbers.

    Parameters
    ----------
    indptr : (columns + 1,) int64
    row : (entries,)
        Changed in place; ascending within a column.
    following : (columns or more,) int64, rank : (rows at a time,) int64
        Scratch.
    listed : (at least as many as occur,) like `row`
        Written: row ``listed[i]`` has the number i.

    Returns
    -------
    int
        Number of rows that occur.

    Notes
    -----
    Works on a range of rows at a time through all columns: two sweeps over the entries, without sorting.
    """
    n, n_columns = 0, indptr.size - 1
    for c in range(n_columns):
        following[c] = indptr[c]
    for first in range(0, n_rows, rank.size):
        end = min(first + rank.size, n_rows)
        rank[:] = -1
        for c in range(n_columns):
            k, stop = following[c], indptr[c + 1]
            while k < stop and row[k] < end:
                rank[row[k] - first] = 0
                k += 1
        for j in range(end - first):
            if rank[j] == 0:
                rank[j] = n
                listed[n] = first + j
                n += 1
        for c in range(n_columns):
            k, stop = following[c], indptr[c + 1]
            while k < stop and row[k] < end:
                row[k] = rank[row[k] - first]
                k += 1
            following[c] = k
    return n

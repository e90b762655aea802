"""Entries scattered by ranges of features: each range is a bucket, its file segments of a length and three columns."""

# mypy: allow-untyped-defs, no-check-untyped-defs
# (types of kernels are numba's to infer; everything else here is annotated)

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numba import njit

from .dataset import Dataset

_TABLE_BITS = 18
"""Of the table from features to buckets: 2^18 cells at most."""

Block = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Feature, row and value of entries."""


@njit(cache=True, nogil=True)
def _partition(
    feature, row, value, ends, first_bucket, shift, start, number, offset, to_feature, to_row, to_value
):
    """Sort entries by bucket, keeping their order within each (a counting sort).

    Parameters
    ----------
    feature, row, value : (n,)
    ends : (buckets,) int64
        The feature behind the last one of each bucket, ascending.
    first_bucket : (cells,) int64, shift : int, start : int
        The first bucket with features ``f`` of which ``(f - start) >> shift`` is the cell.
    number : (n,) uint8
        Scratch.
    offset : (buckets + 1,) int64
        Written: bucket b is ``offset[b]:offset[b + 1]`` of the output.
    to_feature, to_row, to_value : (n,)
        Written.
    """
    offset[:] = 0
    for k in range(feature.size):
        b = first_bucket[(np.int64(feature[k]) - start) >> shift]
        while feature[k] >= ends[b]:
            b += 1
        number[k] = b
        offset[b + 1] += 1
    for b in range(ends.size):
        offset[b + 1] += offset[b]
    place = offset.copy()
    for k in range(feature.size):
        at = place[number[k]]
        place[number[k]] += 1
        to_feature[at], to_row[at], to_value[at] = feature[k], row[k], value[k]


@dataclass
class Bucket:
    """Entries of the features ``start <= feature < stop``, in a file unless they are the whole dataset."""

    start: int
    stop: int
    n_features: int
    n_entries: int
    path: Path | None = None
    n_bytes: int = 0
    shares: Sequence[tuple[Path, int]] = ()
    """The files that the entries are in, one behind the other, and their bytes, where several processes wrote them."""

    def figures(self) -> list[int]:
        """What a checkpoint keeps of it."""
        return [self.start, self.stop, self.n_features, self.n_entries, self.n_bytes]


class Scatter:
    """Gathers entries, and writes them to the files of their buckets when no more fit.

    Parameters
    ----------
    buckets : list of Bucket
        Ascending by features, without gaps; each with a path, and at most 256.
    gather_entries : int
        So many are in memory, twice.
    dataset : Dataset
        Whose entries they are.
    """

    def __init__(self, buckets: list[Bucket], gather_entries: int, dataset: Dataset) -> None:
        self._buckets = buckets
        dtypes = (dataset.index_dtype, dataset.row_dtype, dataset.value_dtype)
        self._gathered = [np.empty(gather_entries, dtype) for dtype in dtypes]
        self._sorted = [np.empty(gather_entries, dtype) for dtype in dtypes]
        self._number = np.empty(gather_entries, np.uint8)
        self._n = 0
        self._start = buckets[0].start
        self._ends = np.array([bucket.stop for bucket in buckets])
        width = int(self._ends[-1]) - self._start
        self._shift = max(width.bit_length() - _TABLE_BITS, 0)
        cells = (np.arange(((width - 1) >> self._shift) + 1) << self._shift) + self._start
        self._first_bucket = np.searchsorted(self._ends, cells, side="right")
        self._offset = np.zeros(len(buckets) + 1, np.int64)

    def has_room(self, n_entries: int) -> bool:
        """Whether so many more can be gathered."""
        return self._n + n_entries <= self._number.size

    def add(self, block: Block) -> None:
        """Gather entries, for which there is room."""
        stop = self._n + block[0].size
        for held, column in zip(self._gathered, block, strict=True):
            held[self._n : stop] = column
        self._n = stop

    def flush(self) -> None:
        """Write what was gathered behind what the buckets' files hold."""
        n = self._n
        place = (self._ends, self._first_bucket, self._shift, self._start, self._number, self._offset)
        _partition(*(column[:n] for column in self._gathered), *place, *self._sorted)
        for bucket, start, stop in zip(
            self._buckets, self._offset[:-1].tolist(), self._offset[1:].tolist(), strict=True
        ):
            if start == stop:
                continue
            assert bucket.path is not None
            with open(bucket.path, "ab") as file:
                file.write(np.int64(stop - start).tobytes())
                for column in self._sorted:
                    file.write(column[start:stop].data.cast("B"))
                bucket.n_bytes = file.tell()
        self._n = 0


def read_bucket(bucket: Bucket, dataset: Dataset, most: int) -> Iterator[Block]:
    """The entries of a bucket file, at most so many at a time, in the order in which they were written."""
    assert bucket.path is not None
    dtypes = (dataset.index_dtype, dataset.row_dtype, dataset.value_dtype)
    position = 0
    with open(bucket.path, "rb", buffering=0) as file:
        while position < bucket.n_bytes:
            n = int(np.fromfile(file, np.int64, 1, offset=0)[0])
            starts = np.cumsum([position + 8, *(n * dtype.itemsize for dtype in dtypes)])
            for first in range(0, n, most):
                count = min(most, n - first)
                block = []
                for dtype, start in zip(dtypes, starts[:-1].tolist(), strict=True):
                    file.seek(start + first * dtype.itemsize)
                    block.append(np.fromfile(file, dtype, count))
                if any(column.size != count for column in block):
                    raise OSError(f"{bucket.path}: a temporary file is shorter than what was written to it")
                yield block[0], block[1], block[2]
            position = int(starts[-1])
            file.seek(position)

"""Encoding of matrices, whose columns are indices: from arrays and SciPy's CSR to checked sparse rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import DataError
from ..kernels import rows as kernels
from ..kernels.rows import CSR

BLOCK_CELLS = 1 << 18
"""Cells encoded at a time: their numbers and entries stay in the processor's cache."""


class EncodedRows(NamedTuple):
    """Consecutive rows of a batch, from its row `start` on, in compressed sparse rows."""

    start: int
    indptr: np.ndarray
    feature: np.ndarray
    value: np.ndarray


class RowChecker:
    """Checks of sparse rows: indices are in ``least:end``, larger ones are counted if `ignore_beyond`, else refused."""

    def __init__(
        self,
        value_dtype: Any,
        least: int = 0,
        end: int = kernels.LARGEST_INDEX + 1,
        ignore_beyond: bool = False,
        first_index: int = 0,
    ) -> None:
        self._dtype, self._bounds = np.dtype(value_dtype), (least, end, ignore_beyond)
        self._first_index = first_index  # of a matrix's first column
        self.state = np.zeros(kernels.N_STATE, np.int64)
        self.state[kernels.MAX_INDEX], self.largest_index = -1, first_index - 1

    def check(self, rows: CSR, message: Callable[[int, int, bool], str]) -> CSR:
        """Return rows without zeros and repeated indices.

        `message` describes a row, by its number, and an entry, by its place and whether it is about its index.
        """
        room = np.empty(rows.feature.size, np.int64), np.empty(rows.feature.size, self._dtype)
        found = CSR(np.zeros(rows.indptr.size, np.int64), *room)
        status = kernels.sparse_rows(rows, *self._bounds, found, self.state)
        if status == kernels.OK:
            return CSR(found.indptr, *(entries[: found.indptr[-1]] for entries in room))
        row, entry = self.state[[kernels.ROW, kernels.ENTRY]].tolist()
        of_index = status >= kernels.NEGATIVE_INDEX
        wrong = (rows.feature if of_index else rows.value)[entry]
        advice = "convert with --dtype float64" if self._dtype == np.float32 else "rescale it"
        least, end, _ = self._bounds
        complaints = {
            kernels.NOT_FINITE: f"expected a finite value, found {wrong}; correct or remove the row",
            kernels.OUT_OF_RANGE: f"expected a number that is finite in {self._dtype}, found {wrong}; {advice}",
            kernels.NEGATIVE_INDEX: f"expected indices from {least} on, found {wrong}; give --index-base",
            kernels.BEYOND_WIDTH: f"expected indices up to {end - 1}, found {wrong}; give a larger --n-features",
        }
        raise DataError(f"{message(row, entry, of_index)}: {complaints[status]}")


class MatrixEncoder(RowChecker):
    """Encoder of matrices, whose columns are indices from the first one on."""

    message: Callable[[int], str]  # describes a row of the matrix
    unseen: Mapping[str, Any] = {}  # as of a table: nothing is missing or unknown in a matrix
    unindicated: Mapping[str, Any] = {}
    n_missing = 0

    def encode(self, matrix: Any) -> Iterator[EncodedRows]:
        """Make rows of a dense matrix, or of one in CSR, some at a time."""
        # the index of the last column, also where it is one of zeros
        self.largest_index = max(self.largest_index, matrix.shape[1] - 1 + self._first_index)
        self.state[kernels.ZERO_INDEX] = not self._first_index
        n_rows, start = matrix.shape[0], 0
        while start < n_rows:
            if isinstance(matrix, np.ndarray):
                stop = min(start + max(BLOCK_CELLS // max(matrix.shape[1], 1), 1), n_rows)
                block = matrix[start:stop]
                cells = np.nonzero(block)
                starts = np.concatenate([[0], np.cumsum(np.count_nonzero(block, axis=1))])
                index, value = cells[1], block[cells]
            else:
                most = matrix.indptr[start] + BLOCK_CELLS
                stop = min(int(np.searchsorted(matrix.indptr, most, side="right")) - 1, start + BLOCK_CELLS)
                stop = min(max(stop, start + 1), n_rows)
                starts = matrix.indptr[start : stop + 1].astype(np.int64)
                mine = slice(int(starts[0]), int(starts[-1]))
                starts -= starts[0]
                index, value = sorted_rows(starts, matrix.indices[mine], matrix.data[mine])
            # in a type that kernels take: the processor's order of bytes, floats of 4 or 8 bytes
            index = index.astype(index.dtype.newbyteorder("="), copy=False)
            dtype = value.dtype.newbyteorder("=")
            if dtype.kind == "f" and dtype.itemsize not in (4, 8):
                dtype = np.dtype(np.float32 if dtype.itemsize < 4 else np.float64)
            rows = self.check(
                CSR(starts, index, value.astype(dtype, copy=False)),
                lambda row, *_, first=start: self.message(first + row),
            )
            rows.feature[:] += self._first_index
            yield EncodedRows(start, *rows)
            start = stop


def sorted_rows(starts: np.ndarray, index: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort the entries of rows ``starts[r]:starts[r + 1]`` by index."""
    descends = np.zeros(index.size + 1, np.bool_)
    np.less(index[1:], index[:-1], out=descends[1:-1])
    descends[starts] = False  # between rows
    if not descends.any():
        return index, value
    row = np.repeat(np.arange(starts.size - 1), np.diff(starts))
    order = np.lexsort((index[: row.size], row))
    return index[order], value[order]

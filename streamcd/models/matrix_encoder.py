"""Matrices, whose columns are indices: checked, and encoded as sparse rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

import numpy as np

from ..core.errors import DataError, ModelError
from ..dataset.chunked_table import starts_of
from ..dataset.schema import row_dtype
from ..kernels import rows as kernels
from ..kernels.rows import CSR

BLOCK_CELLS = 1 << 18
"""Cells encoded at a time: their numbers and entries stay in the processor's cache."""


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
        self._dtype = np.dtype(value_dtype)
        self._bounds = (least, end, ignore_beyond)
        self._first_index = first_index  # of a matrix's first column
        self.state = np.zeros(kernels.N_STATE, np.int64)
        self.state[kernels.MAX_INDEX] = -1
        self.largest_index = first_index - 1

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
            kernels.NEGATIVE_INDEX: f"expected indices from {least} on, found {wrong}; correct the row",
            kernels.BEYOND_WIDTH: f"expected indices up to {end - 1}, found {wrong}; give a larger --n-features",
        }
        raise DataError(f"{message(row, entry, of_index)}: {complaints[status]}")


class MatrixEncoder(RowChecker):
    """Encoder of matrices, whose columns are indices from the first one on."""

    message: Callable[[int], str]  # describes a row of the matrix

    def encode(self, matrix: Any) -> Iterator[tuple[int, CSR]]:
        """Make rows of a dense matrix, or of one in CSR, some at a time, each time with the number of the first."""
        n_rows, n_columns = matrix.shape
        # the index of the last column, also where it is one of zeros
        self.largest_index = max(self.largest_index, n_columns - 1 + self._first_index)
        self.state[kernels.ZERO_INDEX] = not self._first_index
        start = 0
        while start < n_rows:
            if isinstance(matrix, np.ndarray):
                block = matrix[start : start + max(BLOCK_CELLS // max(n_columns, 1), 1)]
                given = CSR(*matrix_rows(block))
            else:
                most = matrix.indptr[start] + BLOCK_CELLS
                stop = min(int(np.searchsorted(matrix.indptr, most, side="right")) - 1, start + BLOCK_CELLS)
                starts = matrix.indptr[start : max(stop, start + 1) + 1].astype(np.int64)
                entries = slice(starts[0], starts[-1])
                starts -= starts[0]
                index, value = sorted_rows(starts, matrix.indices[entries], matrix.data[entries])
                index = index.astype(np.int32 if index.dtype == np.int32 else np.int64, copy=False)
                given = CSR(starts, index, _as_floats(value))
            rows = self.check(given, lambda row, *_, first=start: self.message(first + row))
            rows.feature[:] += self._first_index
            yield start, rows
            start += rows.indptr.size - 1


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


# ---------------------------------------------------------------------------------------------------------------------
# Whole matrices


def number_matrix(X: Any) -> Any:
    """Return a SciPy sparse matrix unchanged, anything else as a two-dimensional array; its numbers have to be finite."""
    X = sound_matrix(X)
    found = X if hasattr(X, "tocsr") else np.asarray(X)
    if found.ndim != 2 or found.dtype.kind not in "biuf":
        raise ModelError(
            f"expected a matrix of numbers, rows by features, found {type(X).__name__} with {found.ndim} dimensions of type "
            f"{found.dtype}"
        )
    if found.dtype.kind == "f" and not np.isfinite(found.sum(dtype=np.float64)):
        raise ModelError("expected finite values, found others; fill them in, or leave their rows out")
    return found


def refuse_mask(array: Any, name: str) -> None:
    """Refuse a masked array: NumPy drops the mask in silence, and the values below it would count."""
    rows = array if isinstance(array, list | tuple) else ()
    if np.ma.isMaskedArray(array) or any(map(np.ma.isMaskedArray, rows)):
        raise DataError(
            f"{name}: expected an array without a mask, found a masked one; give {name}.filled(VALUE), or leave the masked "
            "rows out"
        )


def sound_matrix(X: Any) -> Any:
    """Return a matrix, a SciPy one in a format whose arrays were checked: SciPy follows damaged ones into a crash."""
    refuse_mask(X, "X")
    if not hasattr(X, "tocsr") or X.ndim != 2:
        return X
    if getattr(X, "format", "") not in ("csr", "csc", "bsr", "coo"):
        X = X.tocsr()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # of indices that are no integers
        try:
            if X.format == "coo":
                type(X)((X.data, (X.row, X.col)), shape=X.shape)
            else:
                copy(X).check_format(full_check=True)  # which shortens arrays
        except (ValueError, TypeError, UserWarning) as error:
            fault = str(error).splitlines()[0]
            raise DataError(
                f"X: expected a whole {X.format.upper()} matrix, found a damaged one ({fault}); make the matrix again"
            ) from None
    return X


def matrix_rows(X: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ``indptr``, ``feature`` and ``value`` of the rows of a dense or SciPy sparse matrix of numbers.

    The arrays of a CSR matrix without duplicates are returned themselves, not copied, if their types fit: float32 is kept,
    other numbers become float64; features are int32 if that is wide enough.
    """
    if hasattr(X, "tocsr"):
        X = X.tocsr()
        if not X.has_canonical_format:
            X = X.copy()
            X.sum_duplicates()
        indptr = X.indptr.astype(np.int64, copy=False)
        feature = X.indices[: indptr[-1]]
        value = X.data[: indptr[-1]]
    else:
        X = np.ascontiguousarray(X)
        present = X != 0
        indptr = starts_of(np.count_nonzero(present, axis=1))
        feature = np.nonzero(present)[1]
        value = X[present]
    return indptr, feature.astype(row_dtype(X.shape[1]), copy=False), _as_floats(value)


def _as_floats(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float32 if value.dtype == np.float32 else np.float64, copy=False)

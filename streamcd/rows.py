"""Rows in memory, the room that they are gathered in, and the batches of rows that parsers give."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numba import njit

ROW_BYTES = 72
"""Memory of a row besides its entries: source row, label, weight, offset, key, and its part of the sort."""

_INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class Rows:
    """Consecutive rows; columns as in `streamcd.rowlayout.ChunkData`, `index` as in the text or a feature.

    `weight` is None where the rows have none.
    """

    source_row: np.ndarray
    label: np.ndarray
    weight: np.ndarray | None
    indptr: np.ndarray
    index: np.ndarray
    value: np.ndarray

    @property
    def n_rows(self) -> int:
        return len(self.label)

    @property
    def n_entries(self) -> int:
        return len(self.index)

    def take(self, rows: np.ndarray) -> Rows:
        """Copy the given rows, in the given order."""
        indptr = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(self.indptr[rows + 1] - self.indptr[rows], out=indptr[1:])
        index = np.empty(indptr[-1], self.index.dtype)
        value = np.empty(indptr[-1], self.value.dtype)
        _gather(rows, self.indptr, self.index, self.value, index, value)
        weight = None if self.weight is None else self.weight[rows]
        return Rows(self.source_row[rows], self.label[rows], weight, indptr, index, value)


@njit(cache=True, nogil=True)
def _gather(
    rows: np.ndarray,
    indptr: np.ndarray,
    index: np.ndarray,
    value: np.ndarray,
    out_index: np.ndarray,
    out_value: np.ndarray,
) -> None:
    """Copy the entries of rows, one after the other."""
    end = 0
    for row in rows:
        for entry in range(indptr[row], indptr[row + 1]):
            out_index[end] = index[entry]
            out_value[end] = value[entry]
            end += 1


def concatenate(batches: list[Rows]) -> Rows:
    """Join rows, in order."""
    if len(batches) == 1:
        return batches[0]
    ends = np.cumsum([0, *(rows.n_entries for rows in batches)])
    indptr = [rows.indptr[:-1] + end for rows, end in zip(batches, ends[:-1], strict=True)]
    weights = [rows.weight for rows in batches if rows.weight is not None]
    return Rows(
        np.concatenate([rows.source_row for rows in batches]),
        np.concatenate([rows.label for rows in batches]),
        np.concatenate(weights) if weights else None,
        np.concatenate([*indptr, ends[-1:]]),
        np.concatenate([rows.index for rows in batches]),
        np.concatenate([rows.value for rows in batches]),
    )


class Arena:
    """Room for rows up to a number of bytes. Memory is taken as it is filled, whatever the shares of rows and entries.

    Parameters
    ----------
    n_bytes : int
        `ROW_BYTES` a row and the bytes of its entries are counted.
    index_dtype, value_dtype : dtype
    weighted : bool
    """

    def __init__(self, n_bytes: int, index_dtype: np.dtype, value_dtype: np.dtype, weighted: bool) -> None:
        self._n_bytes = n_bytes
        self.entry_bytes = index_dtype.itemsize + value_dtype.itemsize
        max_rows, max_entries = n_bytes // ROW_BYTES, n_bytes // self.entry_bytes
        self.n_rows = self.n_entries = 0
        # pages of these are taken by the system at their first use only
        self._all = Rows(
            np.empty(max_rows, np.int64),
            np.empty(max_rows),
            np.empty(max_rows) if weighted else None,
            np.empty(max_rows + 1, np.int64),
            np.empty(max_entries, index_dtype),
            np.empty(max_entries, value_dtype),
        )
        self._all.indptr[0] = 0

    @property
    def index_dtype(self) -> np.dtype:
        return self._all.index.dtype

    def has_room(self, n_rows: int, n_entries: int) -> bool:
        """Tell whether this many more can be appended."""
        rows, entries = self.n_rows + n_rows, self.n_entries + n_entries
        return rows * ROW_BYTES + entries * self.entry_bytes <= self._n_bytes

    def reserve(self, n_rows: int, n_entries: int) -> Rows:
        """Take room for rows; the caller fills the arrays, `indptr` (of ``n_rows`` ends) counting from the arena's start."""
        row, entry = self.n_rows, self.n_entries
        self.n_rows, self.n_entries = row + n_rows, entry + n_entries
        assert self.n_rows <= len(self._all.label)
        assert self.n_entries <= len(self._all.index)
        held, stop, entry_stop = self._all, self.n_rows, self.n_entries
        return Rows(
            held.source_row[row:stop],
            held.label[row:stop],
            None if held.weight is None else held.weight[row:stop],
            held.indptr[row + 1 : stop + 1],
            held.index[entry:entry_stop],
            held.value[entry:entry_stop],
        )

    def clear(self) -> None:
        """Forget all rows, keep the memory."""
        self.n_rows = self.n_entries = 0

    def append(self, rows: Rows) -> None:
        """Copy rows to the end."""
        entry = self.n_entries
        room = self.reserve(rows.n_rows, rows.n_entries)
        room.source_row[:], room.label[:] = rows.source_row, rows.label
        room.indptr[:] = rows.indptr[1:] + entry
        room.index[:], room.value[:] = rows.index, rows.value
        if room.weight is not None:
            room.weight[:] = rows.weight

    def rows(self) -> Rows:
        """All rows, without a copy."""
        held, n_rows, n_entries = self._all, self.n_rows, self.n_entries
        return Rows(
            held.source_row[:n_rows],
            held.label[:n_rows],
            None if held.weight is None else held.weight[:n_rows],
            held.indptr[: n_rows + 1],
            held.index[:n_entries],
            held.value[:n_entries],
        )


# ---------------------------------------------------------------------------------------------------------------------
# Batches of rows, as parsers give them


@dataclass
class Counts:
    """Counts of what was met while parsing, over all blocks so far.

    Attributes
    ----------
    n_rows, n_entries : int
        Rows, and entries kept.
    n_explicit_zeros, n_underflows, n_ignored : int
        Entries dropped: written as zero; zero only in the dtype asked for; with an index beyond the width.
    n_query_ids, n_decimal_labels : int
        ``qid:`` tokens skipped, and labels that are no integers.
    zero_index : bool
        True where an index 0 occurs.
    max_index : int
        The largest index, -1 where there is none; `max_location` is the file and line where it occurs first.
    max_location : str
    """

    n_rows: int = 0
    n_entries: int = 0
    n_explicit_zeros: int = 0
    n_underflows: int = 0
    n_ignored: int = 0
    n_query_ids: int = 0
    n_decimal_labels: int = 0
    zero_index: bool = False
    max_index: int = -1
    max_location: str = ""

    @property
    def label_kind(self) -> str:
        """``"integer"`` where every label is one, however it is written, else ``"decimal"``."""
        return "decimal" if self.n_decimal_labels else "integer"

    @property
    def is_wide(self) -> bool:
        """True where an index takes more than 32 bits."""
        return self.max_index > _INT32_MAX

    def add(self, later: Counts) -> None:
        """Take in the counts of text that comes later."""
        if later.max_index > self.max_index:
            self.max_index, self.max_location = later.max_index, later.max_location
        self.zero_index = self.zero_index or later.zero_index
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(later, name))

    def messages(self, dtype: np.dtype) -> list[str]:
        """Tell of entries that are not in the result."""
        said = [
            (self.n_explicit_zeros, "explicit zeros dropped"),
            (self.n_underflows, f"values dropped that are zero in {dtype} (--dtype float64 may keep them)"),
            (self.n_ignored, "entries ignored whose feature is beyond the width in use"),
            (self.n_query_ids, "qid: tokens skipped: query groups have no meaning here"),
        ]
        return [f"{number:,} {text}" for number, text in said if number]


_SUMS = [field.name for field in fields(Counts) if field.name.startswith("n_")]


@dataclass(frozen=True)
class RowBatch:
    """Consecutive rows of the input. The arrays are filled anew when the next batch is taken: copy what has to stay.

    Attributes
    ----------
    rows : Rows
        Without weights; `source_row` counts the rows of the whole input, `index` is as in the source: the base is not
        subtracted.
    bytes_read : int
        Bytes of the sources read so far.
    counts : Counts
        Of this parser's input, up to and including this batch.
    """

    rows: Rows
    bytes_read: int
    counts: Counts

"""Rows in memory, and the batches of rows that parsers give."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from ..kernels.compile import cached

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


@cached
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

"""Rows in memory, and batches of rows from parsers."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from ..kernels.rows import take_column
from ..models.encoding import Unknown, add_unknown, unknown_values
from ..solvers.problem import LEAST_WEIGHT

NARROW = 2**31 - 1
"""The largest index of 32 bits."""


@dataclass(frozen=True)
class Rows:
    """Consecutive rows; columns as in a dataset, `index` as in the text or a feature.

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

    def room(self, n_rows: int, n_entries: int) -> Rows:
        """Make room for rows like these."""
        return Rows(
            np.empty(n_rows, np.int64),
            np.empty(n_rows),
            None if self.weight is None else np.empty(n_rows),
            np.zeros(n_rows + 1, np.int64),
            np.empty(n_entries, self.index.dtype),
            np.empty(n_entries, self.value.dtype),
        )

    def with_entries(self, mask: np.ndarray) -> Rows:
        """Return the rows with the entries that a mask marks."""
        ends = np.concatenate([[0], np.cumsum(mask)])
        return replace(self, indptr=ends[self.indptr], index=self.index[mask], value=self.value[mask])

    def gather(self, rows: np.ndarray, out: Rows, start: int = 0) -> None:
        """Copy the given rows, in the given order, to rows `start` and following of `out`, after those before it."""
        stop = start + len(rows)
        lengths = self.indptr[rows + 1] - self.indptr[rows]
        out.indptr[start + 1 : stop + 1] = out.indptr[start] + np.cumsum(lengths)
        out.source_row[start:stop] = self.source_row[rows]
        out.label[start:stop] = self.label[rows]
        entries = slice(int(out.indptr[start]), int(out.indptr[stop]))
        for column, into in ((self.index, out.index), (self.value, out.value)):
            take_column(rows, self.indptr, column, into[entries])
        if self.weight is not None and out.weight is not None:
            out.weight[start:stop] = self.weight[rows]


def are_weights(numbers: np.ndarray) -> np.ndarray:
    """Mark the numbers that may be row weights: 0, or from `LEAST_WEIGHT` to its reciprocal."""
    return (numbers == 0) | ((numbers >= LEAST_WEIGHT) & (numbers <= 1 / LEAST_WEIGHT))


# ---------------------------------------------------------------------------------------------------------------------
# Batches of rows from parsers


@dataclass
class Counts:
    """Counts of rows, entries and anomalies while parsing, over all blocks so far."""

    n_rows: int = 0
    n_entries: int = 0  # kept
    n_explicit_zeros: int = 0
    n_underflows: int = 0  # zero only in the dtype asked for
    n_ignored: int = 0  # with an index beyond the width
    n_query_ids: int = 0
    zero_index: bool = False
    max_index: int = -1
    max_location: str = ""  # file and line where the largest index occurs first
    # by column, values of categories that the encoding does not have, and missing ones of columns that had none in training
    unseen: dict[str, Unknown] = field(default_factory=dict)
    unindicated: dict[str, Unknown] = field(default_factory=dict)
    # by column and form, strings that are no numbers in columns where nearly all are
    odd: dict[tuple[str, int], Unknown] = field(default_factory=dict)
    n_missing: Any = 0  # values, by column of a table

    def add(self, later: Counts) -> None:
        """Take in the counts of text that comes later."""
        if later.max_index > self.max_index:
            self.max_index = later.max_index
            self.max_location = later.max_location
        self.zero_index = self.zero_index or later.zero_index
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(later, name))
        add_unknown(self.unseen, later.unseen)
        add_unknown(self.unindicated, later.unindicated)
        add_unknown(self.odd, later.odd)

    def messages(self, dtype: np.dtype) -> list[str]:
        """Describe the entries that are not in the result."""
        said = [
            (self.n_explicit_zeros, "explicit zeros dropped"),
            (self.n_underflows, f"values dropped that are zero in {dtype} (--dtype float64 may keep them)"),
            (self.n_ignored, "entries ignored whose feature is beyond the width in use"),
            (self.n_query_ids, QUERY_IDS_SKIPPED),
        ]
        lines = [f"{number:,} {text}" for number, text in said if number]
        if self.unseen or self.unindicated:
            lines += unknown_values(self.unseen, self.unindicated, "the encoding in use does not have")
        return lines


QUERY_IDS_SKIPPED = "qid: tokens skipped: query groups have no meaning here"
_SUMS = [one.name for one in fields(Counts) if one.name.startswith("n_")]


@dataclass(frozen=True)
class RowBatch:
    """Consecutive rows of the input, in arrays that are reused `core.parallel.AHEAD` batches later: copy rows that stay."""

    rows: Rows  # `source_row` counts all of the input, `index` includes the base
    bytes_read: int  # of the sources so far
    counts: Counts  # of this parser's input, up to and including this batch
    kept: Any = None  # a record batch of Arrow's: the columns that are kept beside the rows

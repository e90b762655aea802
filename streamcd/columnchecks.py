"""What is right for the column layout, and the verification of both layouts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from . import kernels
from .columns import AGAIN, FOLDER, Columns, listed_files, open_columns
from .errors import DatasetError
from .progress import Listener
from .row_layout import RowTable
from .rowchecks import row_problems
from .verification import Readings, file_problems, readings


def verify(dataset: RowTable, listener: Listener | None = None, *, workers: int = 1) -> list[str]:
    """Check a dataset and, where there is one, its column layout against it.

    The entries of both layouts are compared by sums of a hash of (row, feature, value) over all of them: equal for the
    same entries in any order, and for others with a chance of 2⁻¹²⁸ only.

    Parameters
    ----------
    dataset : RowTable
    listener : Listener, optional
    workers : int
        Processes that share the work.

    Returns
    -------
    list of str
        What is wrong, a line each, naming the file; empty where all is well.
    """
    with readings(workers, listener, __name__) as ours:
        problems = list(row_problems(dataset, partial(RowTable.open, dataset.path, check_files=False), ours))
        if (dataset.path / FOLDER).exists():
            problems += _column_problems(dataset, ours, compare=not problems)
    return problems


def _column_problems(dataset: RowTable, readings: Readings, *, compare: bool) -> Iterator[str]:
    """Where something is wrong, what comes after is not looked at: it would be wrong for that reason."""
    try:
        columns = open_columns(dataset, check_files=False)
    except DatasetError as error:
        yield str(error)
        return
    listed = list(listed_files(columns.manifest))
    problems = [problem for _, problem in file_problems(columns.path, listed)]
    if not problems:
        files = [(columns.path / name, n_bytes, checksum) for name, n_bytes, checksum in listed]
        problems = [problem for _, problem in readings.changed(files, phase="column checksums")]
    if problems:
        yield from problems
        return
    checked = _Checked()
    reopen = partial(_open_again, dataset.path)
    for share in readings.chunks(
        _check_chunks, columns, reopen, phase="verify columns", unit="entries", starts=columns.entry_start
    ):
        checked.join(share)
        if checked.problem:
            yield checked.problem
            return
    if columns.n_entries != dataset.n_entries or int(columns.entry_start[-1]) != dataset.n_entries:
        yield f"{columns.path}: holds {columns.n_entries} entries, the rows have {dataset.n_entries}"
    elif compare and not np.array_equal(checked.sums, _row_sums(dataset, readings)):
        yield f"{columns.path}: the entries are not those of the rows; {AGAIN}"


def _open_again(path: Path) -> Columns:
    return open_columns(RowTable.open(path, check_files=False), check_files=False)


@dataclass
class _Checked:
    """What was found in consecutive chunks, up to the first thing wrong.

    Attributes
    ----------
    problem : str
        The first thing wrong, or nothing.
    first, last : int or None
        Feature and row of the first and of the last entry, as one number; None where they could not be told.
    place : str
        Of the first chunk.
    sums : ndarray of uint64, shape (2,)
        Of a hash of every entry.
    """

    problem: str = ""
    first: int | None = None
    last: int | None = None
    place: str = ""
    sums: np.ndarray = field(default_factory=lambda: np.zeros(2, dtype=np.uint64))

    def join(self, later: _Checked) -> None:
        """Take in what was found in the chunks that follow."""
        if self.problem:
            return
        if self.last is not None and later.first is not None and later.first <= self.last:
            self.problem = _not_ascending(later.place)
        else:
            self.problem = later.problem
        if self.first is None:
            self.first, self.place = later.first, later.place
        self.last = later.last
        self.sums += later.sums


def _check_chunks(columns: Columns, start: int, stop: int) -> _Checked:
    checked = _Checked()
    for chunk in range(start, stop):
        try:
            checked.join(_check_chunk(columns, chunk))
        except DatasetError as error:
            checked.join(_Checked(str(error)))
        if checked.problem:
            break
    return checked


def _check_chunk(columns: Columns, chunk: int) -> _Checked:
    listed, counts = columns.read_index(chunk)
    feature, row, value = columns.read_entries(chunk, ("feature", "row", "value"))
    place, n_rows = columns.place(chunk), columns.dataset.n_rows
    if not np.array_equal(feature, np.repeat(listed, counts)):
        return _Checked(f"{place}: the index does not list the features of the entries")
    if listed.size and int(listed[0]) != columns.first_feature[chunk]:
        return _Checked(f"{place}: begins with feature {int(listed[0])}, not the chunk table's")
    if not feature.size:
        return _Checked(f"{place}: no entries in it")
    if row.min() < 0 or row.max() >= n_rows:
        return _Checked(f"{place}: a row outside 0 … {n_rows - 1}")
    first, last = (int(feature[at]) * n_rows + int(row[at]) for at in (0, -1))
    checked = _Checked("", first, last, place)
    ascends = (np.diff(feature) > 0) | ((np.diff(feature) == 0) & (np.diff(row) > 0))
    if not ascends.all():
        checked.problem = _not_ascending(place)
    elif not np.isfinite(value).all():
        checked.problem = f"{place}: a value that is not finite"
    else:
        kernels.add_entry_hashes(row, feature, value.astype(np.float64).view(np.uint64), checked.sums)
    return checked


def _not_ascending(place: str) -> str:
    return f"{place}: entries not in ascending order of feature, then row"


def _row_sums(dataset: RowTable, readings: Readings) -> np.ndarray:
    reopen = partial(RowTable.open, dataset.path, check_files=False)
    sums = np.zeros(2, dtype=np.uint64)
    for share in readings.chunks(
        _sum_rows, dataset, reopen, phase="compare with the rows", unit="entries", starts=dataset.entry_start
    ):
        sums += share
    return sums


def _sum_rows(dataset: RowTable, start: int, stop: int) -> np.ndarray:
    sums = np.zeros(2, dtype=np.uint64)
    for chunk in range(start, stop):
        row, feature, value = dataset.read_entries(chunk, ("row", "feature", "value"))
        kernels.add_entry_hashes(row, feature, value.astype(np.float64).view(np.uint64), sums)
    return sums

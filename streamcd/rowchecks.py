"""What is right for the row layout: every chunk of it, and the sums over all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from .errors import DatasetError
from .row_layout import RowTable
from .schema import ChunkData, listed_files
from .verification import Readings, file_problems


def row_problems(dataset: RowTable, reopen: Callable[[], RowTable], readings: Readings) -> Iterator[str]:
    """Check every checksum and invariant of a dataset's row layout.

    Parameters
    ----------
    dataset : RowTable
    reopen : callable
        Opens it in a worker.
    readings : Readings

    Yields
    ------
    str
        What is wrong, a line each, naming the file.
    """
    damaged = set()
    for path, problem in file_problems(dataset.path, listed_files(dataset.manifest)):
        damaged.add(path)
        yield problem
    files = [
        (dataset.path / name, n_bytes, checksum)
        for name, n_bytes, checksum in listed_files(dataset.manifest)
        if dataset.path / name not in damaged
    ]
    for path, problem in readings.changed(files):
        damaged.add(path)
        yield problem
    checked = _Checked()
    check = partial(_check_chunks, damaged=damaged)
    for share in readings.chunks(
        check, dataset, reopen, phase="verify", unit="rows", starts=dataset.row_start
    ):
        checked.join(share)
    yield from checked.problems
    if checked.complete:
        yield from _total_problems(dataset, checked.counts, checked.source_sum)
    if dataset.path / "features.parquet" not in damaged:
        yield from _feature_problems(dataset)


@dataclass
class _Checked:
    """What was found in some chunks, to be joined with what others hold."""

    problems: list[str] = field(default_factory=list)
    counts: dict[float, int] = field(default_factory=dict)
    source_sum: int = 0
    complete: bool = True

    def join(self, other: _Checked) -> None:
        self.problems += other.problems
        self.source_sum += other.source_sum
        self.complete = self.complete and other.complete
        for label, count in other.counts.items():
            self.counts[label] = self.counts.get(label, 0) + count


def _check_chunks(dataset: RowTable, start: int, stop: int, damaged: set[Path]) -> _Checked:
    checked = _Checked()
    for chunk in range(start, stop):
        checked.join(_check_chunk(dataset, chunk, damaged))
    return checked


def _check_chunk(dataset: RowTable, chunk: int, damaged: set[Path]) -> _Checked:
    part = dataset.manifest["parts"][dataset.chunk_part[chunk]]
    if damaged.intersection(dataset.path / part[table] for table in ("rows", "entries")):
        return _Checked(complete=False)
    place = dataset.place(chunk)
    try:
        data = dataset.read(chunk)
        (row,) = dataset.read_entries(chunk, ("row",))
        (numbers,) = dataset.read_rows(chunk, ("row",))
    except DatasetError as error:
        return _Checked([str(error)], complete=False)
    problems = [f"{place}: {problem}" for problem in _chunk_problems(dataset, data, row, numbers)]
    counts = {}
    if dataset.classes is not None:
        labels, n_rows = np.unique(data.label, return_counts=True)
        counts = dict(zip(labels.tolist(), n_rows.tolist(), strict=True))
    return _Checked(problems, counts, _places_sum(data.source))


def _chunk_problems(
    dataset: RowTable, data: ChunkData, row: np.ndarray, numbers: np.ndarray
) -> Iterator[str]:
    n_entries = np.diff(data.indptr)
    if not np.array_equal(numbers, np.arange(data.row0, data.row0 + n_entries.size)):
        yield "the rows table's column 'row' does not count the rows"
    if (n_entries < 0).any() or data.indptr[-1] != data.feature.size:
        yield f"the rows table counts {int(data.indptr[-1])} entries, there are {data.feature.size}"
        return
    expected_row = np.repeat(np.arange(data.row0, data.row0 + n_entries.size), n_entries)
    if not np.array_equal(row, expected_row):
        yield "the entries' column 'row' does not follow the rows table"
        return
    if data.feature.size and (data.feature.min() < 0 or data.feature.max() >= dataset.n_features):
        yield f"a feature outside 0 … {dataset.n_features - 1}"
    same_row = row[1:] == row[:-1]
    if (np.diff(data.feature)[same_row] <= 0).any():
        yield "features not in ascending order within a row"
    if not np.isfinite(data.value).all():
        yield "a value that is not finite"
    if not np.isfinite(data.label).all():
        yield "a label that is not finite"
    if not (np.isfinite(data.weight).all() and (data.weight >= 0).all()):
        yield "a weight that is negative or not finite"
    if data.source.size and (data.source.min() < 0 or data.source.max() >= dataset.n_rows):
        yield f"a source place outside 0 … {dataset.n_rows - 1}"


def _total_problems(dataset: RowTable, counts: Mapping[float, int], source_sum: int) -> Iterator[str]:
    manifest_path = dataset.path / "manifest.json"
    for what, start, expected in (
        ("rows", dataset.row_start, dataset.n_rows),
        ("entries", dataset.entry_start, dataset.n_entries),
    ):
        if int(start[-1]) != expected:
            yield f"{manifest_path}: says {expected} {what}, the chunks hold {int(start[-1])}"
    block = 1 << 18
    starts = range(0, dataset.n_rows, block)
    expected_sum = sum(_places_sum(np.arange(start, min(start + block, dataset.n_rows))) for start in starts)
    if (source_sum - expected_sum) % 2**64:
        yield f"{dataset.path / 'rows'}: the source places are not each of 0 … {dataset.n_rows - 1} once"
    if dataset.classes is not None and dataset.class_counts is not None:
        expected_counts = dict(zip(dataset.classes.tolist(), dataset.class_counts.tolist(), strict=True))
        if {label: count for label, count in expected_counts.items() if count} != dict(counts):
            yield f"{manifest_path}: the counts of the classes differ from the rows'"


def _feature_problems(dataset: RowTable) -> Iterator[str]:
    try:
        n_entries = sum(int(piece["n_entries"].sum()) for piece in dataset.read_features())
    except DatasetError as error:
        yield str(error)
        return
    if n_entries != dataset.n_entries:
        yield f"{dataset.path / 'features.parquet'}: counts {n_entries} entries, the dataset has {dataset.n_entries}"


def _places_sum(places: np.ndarray) -> int:
    """Sum of a 64-bit hash of places: two sets of as many places have the same one by a chance of 2⁻⁶⁴."""
    mixed = places.astype(np.uint64)
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (29, 0xC4CEB9FE1A85EC53)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return int((mixed ^ (mixed >> np.uint64(32))).sum(dtype=np.uint64))

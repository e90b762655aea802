"""Verification of a dataset by one or several processes: the files that its manifests list, and the content of chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from ..core.errors import DatasetError
from ..core.memory_budget import parse_size, require
from ..core.process_pool import (
    TASKS_PER_WORKER,
    Pool,
    checked_workers,
    in_shares,
    memory_per_worker,
)
from ..core.progress import Listener, Progress
from ..core.storage import Location
from ..kernels import primitives
from .chunked_table import ChunkedTable, RowTable, file_problems
from .column_layout import (
    AGAIN,
    FOLDER,
    Columns,
    has_columns,
    open_columns,
)
from .content import RowContent, TableContent, add_entries
from .kept_columns import KEPT_FILE, count_kept
from .manifests import INDICES_FILE, ROW_LAYOUT, manifest_fingerprint
from .parquet import column_values, file_checksum, read_tables
from .schema import FEATURES, INDICES, SCALES, ChunkData

# of an entry or item of a chunk: 24 decoded, as many compressed, copies, differences, hashes
_CHECK_BYTES = 120
_CHUNK_TABLE_BYTES = 200  # of a chunk, in the chunk tables
_SHARES = 1000  # ranges of chunks, after each of which a single process reports progress

Found = TypeVar("Found")
Table = TypeVar("Table", RowTable, Columns)


def verify(
    dataset: RowTable,
    listener: Listener | None = None,
    *,
    workers: int = 1,
    memory: int | str | None = None,
) -> list[str]:
    """Check a dataset and, if there is one, its column layout against it; see `Dataset.verify`.

    The two layouts are compared by the sum of a hash of (row, feature, value) over all entries: equal for the same entries
    in any order, and for different ones with probability 2⁻¹²⁸.
    """
    budget = None if memory is None else parse_size(memory)
    _require_memory(dataset, budget, checked_workers(workers))
    with Pool(workers, listener or Listener(), __name__) as pool:
        tasks = _Tasks(pool, budget)
        problems = list(_row_problems(dataset, tasks))
        if has_columns(dataset) or (dataset.path / FOLDER).exists():
            problems += _column_problems(dataset, tasks, compare=not problems)
    return problems


# ---------------------------------------------------------------------------------------------------------------------
# Checks that read all data


def _require_memory(table: RowTable | Columns, budget: int | None, workers: int) -> None:
    """Refuse a budget too small for the largest chunk, decoded, with the temporary arrays of its checks."""
    size = np.diff(table.entry_start) + np.diff(table.item_start)
    needs = {
        "the largest chunk": _CHECK_BYTES * int(size.max(initial=0)),
        "chunk tables": _CHUNK_TABLE_BYTES * table.n_chunks,
    }
    if budget is not None and workers == 1:
        require(budget, needs)
    elif budget is not None:
        memory_per_worker(budget, workers, needs)


class _Tasks:
    """Runner of the checks that read all data, in a pool."""

    def __init__(self, pool: Pool, budget: int | None) -> None:
        self._pool, self._budget = pool, budget

    def changed_files(
        self, path: Location, files: Sequence[tuple[str, int, str]], phase: str
    ) -> Iterator[tuple[Location, str]]:
        """Find files (name, bytes, checksum) with another checksum; yields the path and a message for each."""
        tasks = [(path / name, checksum) for name, _, checksum in files]
        sizes = [n_bytes for _, n_bytes, _ in files]
        for (file, _), changed in zip(tasks, self._run(_is_changed, tasks, phase, "B", sizes), strict=True):
            if changed:
                yield file, f"{file}: checksum differs from the manifest's, the file was changed or damaged"

    def over_chunks(
        self,
        check: Callable[[Table, int, int], Found],
        table: Table,
        reopen: Callable[[], Table],
        phase: str,
        starts: np.ndarray,
        unit: str = "entries",
    ) -> Iterable[Found]:
        """Run ``check(table, start, stop)`` over ranges of chunks that cover the table, in order.

        Workers open the table by `reopen`. Progress is counted in `unit`, of which ``starts[c]`` precede chunk ``c``.
        """
        _require_memory(table, self._budget, self._pool.n_workers)
        alone = self._pool.n_workers == 1
        n_shares = _SHARES if alone else TASKS_PER_WORKER * self._pool.n_workers
        shares = in_shares(np.diff(table.entry_start).tolist(), n_shares)
        sizes = [int(starts[stop] - starts[start]) for start, stop in shares]
        run = partial(check, table) if alone else partial(_check_reopened, check, reopen)
        return self._run(run, shares, phase, unit, sizes)

    def _run(
        self, function: Callable[..., Any], tasks: Sequence[Any], phase: str, unit: str, sizes: Sequence[int]
    ) -> Iterator[Any]:
        if self._pool.n_workers > 1:
            yield from self._pool.run(function, tasks, phase=phase, unit=unit, sizes=sizes)
            return
        for task, done in zip(tasks, accumulate(sizes), strict=True):
            yield function(*task)
            self._pool.listener.progress(Progress(phase, done, sum(sizes), unit))


def _is_changed(path: Location, checksum: str) -> bool:
    return file_checksum(path) != checksum


def _check_reopened(
    check: Callable[[Any, int, int], Any], reopen: Callable[[], ChunkedTable], start: int, stop: int
) -> Any:
    table = reopen()
    try:
        return check(table, start, stop)
    finally:
        table.close()


def _changed_files(table: ChunkedTable, tasks: _Tasks, phase: str) -> dict[Location, str]:
    """Find files of a table that differ from its manifest; a message for each."""
    listed = list(table.listed_files(table.manifest))
    problems = dict(file_problems(table.path, listed))
    whole = [file for file in listed if table.path / file[0] not in problems]
    return problems | dict(tasks.changed_files(table.path, whole, phase))


# ---------------------------------------------------------------------------------------------------------------------
# Rows


@dataclass
class _RowFindings:
    """Findings in some chunks of rows, which can be joined with those in others."""

    problems: list[str] = field(default_factory=list)
    counts: dict[float, int] = field(default_factory=dict)
    source_sum: int = 0
    least: float = np.inf
    greatest: float = -np.inf
    complete: bool = True
    content: dict[int, RowContent] = field(default_factory=dict)  # of parts

    def join(self, other: _RowFindings) -> None:
        self.problems += other.problems
        for part, content in other.content.items():
            self.content.setdefault(part, RowContent()).add_sums(content.sums)
        self.source_sum += other.source_sum
        self.least, self.greatest = min(self.least, other.least), max(self.greatest, other.greatest)
        self.complete = self.complete and other.complete
        for label, count in other.counts.items():
            self.counts[label] = self.counts.get(label, 0) + count


def _row_problems(dataset: RowTable, tasks: _Tasks) -> Iterator[str]:
    changed = _changed_files(dataset, tasks, "checksums")
    yield from changed.values()
    found = _RowFindings()
    check = partial(_check_rows, damaged=set(changed))
    for share in tasks.over_chunks(check, dataset, _row_opener(dataset), "verify", dataset.row_start, "rows"):
        found.join(share)
    yield from found.problems
    if found.complete:
        yield from _total_problems(dataset, found)
    if found.complete and not found.problems:
        yield from _content_problems(dataset, found)
    of_features = ("features.parquet", "scaling.parquet", INDICES_FILE)
    if not changed.keys() & {file for name in of_features for file in dataset.files(name)}:
        yield from _feature_problems(dataset)
    if dataset.manifest.get("kept") and (path := dataset.file(KEPT_FILE)) not in changed:
        yield from _kept_problems(path, dataset.n_rows)


def _row_opener(dataset: RowTable) -> Callable[[], RowTable]:
    return partial(type(dataset).open, dataset.path, check_files=False)


def _check_rows(dataset: RowTable, start: int, stop: int, damaged: set[Location]) -> _RowFindings:
    found = _RowFindings()
    for chunk in range(start, stop):
        found.join(_check_row_chunk(dataset, chunk, damaged))
    return found


def _check_row_chunk(dataset: RowTable, chunk: int, damaged: set[Location]) -> _RowFindings:
    if damaged.intersection(dataset.files_of(chunk)):
        return _RowFindings(complete=False)
    try:
        data = dataset.read(chunk)
        (row,) = dataset.read_entries(chunk, ("row",))
        (numbers,) = dataset.read_rows(chunk, ("row",))
    except DatasetError as error:
        return _RowFindings([str(error)], complete=False)
    place = dataset.place(chunk)
    problems = [f"{place}: {problem}" for problem in _chunk_problems(dataset, data, row, numbers)]
    counts = {}
    if dataset.classes is not None:
        labels, n_rows = np.unique(data.label, return_counts=True)
        counts = dict(zip(labels.tolist(), n_rows.tolist(), strict=True))
    least, greatest = float(data.label.min(initial=np.inf)), float(data.label.max(initial=-np.inf))
    found = _RowFindings(problems, counts, _hash_sum(data.source), least, greatest)
    if not problems:
        content = found.content[int(dataset.chunk_part[chunk])] = RowContent()
        row0, source0 = dataset.part_starts(int(dataset.chunk_part[chunk]))  # files count within their part
        content.add_rows(numbers - row0, data.source - source0, data.label, data.weight)
        content.add_entries(row - row0, data.feature, data.value)
    return found


def _chunk_problems(
    dataset: RowTable, data: ChunkData, row: np.ndarray, numbers: np.ndarray
) -> Iterator[str]:
    n_entries = np.diff(data.indptr)
    expected = np.arange(data.row0, data.row0 + n_entries.size)
    if not np.array_equal(numbers, expected):
        yield "the rows table's column 'row' does not count the rows"
    if (n_entries < 0).any() or data.indptr[-1] != data.feature.size:
        yield f"the rows table counts {int(data.indptr[-1])} entries, there are {data.feature.size}"
        return
    if not np.array_equal(row, np.repeat(expected, n_entries)):
        yield "the entries' column 'row' does not follow the rows table"
        return
    if _outside(data.feature, dataset.n_features):
        yield f"a feature outside 0 … {dataset.n_features - 1}"
    if (np.diff(data.feature)[row[1:] == row[:-1]] <= 0).any():
        yield "features not in ascending order within a row"
    if not np.isfinite(data.value).all():
        yield "a value that is not finite"
    if not np.isfinite(data.label).all():
        yield "a label that is not finite"
    if not (np.isfinite(data.weight).all() and (data.weight >= 0).all()):
        yield "a weight that is negative or not finite"
    if _outside(data.source, dataset.n_rows):
        yield f"a source place outside 0 … {dataset.n_rows - 1}"


def _outside(numbers: np.ndarray, stop: int) -> bool:
    return bool(numbers.size and (numbers.min() < 0 or numbers.max() >= stop))


def _total_problems(dataset: RowTable, found: _RowFindings) -> Iterator[str]:
    manifest_path = dataset.path / "manifest.json"
    n_rows, block = dataset.n_rows, 1 << 18
    starts = range(0, n_rows, block)
    expected_sum = sum(_hash_sum(np.arange(start, min(start + block, n_rows))) for start in starts)
    if (found.source_sum - expected_sum) % 2**64:
        yield f"{dataset.path / 'rows'}: the source places are not each of 0 … {n_rows - 1} once"
    if dataset.classes is not None and dataset.class_counts is not None:
        expected_counts = dict(zip(dataset.classes.tolist(), dataset.class_counts.tolist(), strict=True))
        if {label: count for label, count in expected_counts.items() if count} != found.counts:
            yield f"{manifest_path}: the counts of the classes differ from the rows'"
    if dataset.targets is not None and dataset.targets != {"min": found.least, "max": found.greatest}:
        yield f"{manifest_path}: the range of the targets differs from the rows'"


def _content_problems(dataset: RowTable, found: _RowFindings) -> Iterator[str]:
    """Compare the content of parts, and the fingerprint, which follows from it, with the manifest's."""
    manifest = dataset.manifest
    for number, part in enumerate(manifest["parts"]):
        if found.content.get(number, RowContent()).text() != part["content"]:
            yield _other_content(dataset.path / part["rows"])
    if manifest_fingerprint(manifest) != dataset.fingerprint:
        yield f"{dataset.path / 'manifest.json'}: the fingerprint is not that of its content; {ROW_LAYOUT.remedy}"


def _other_content(path: Location) -> str:
    return f"{path}: the content is not the manifest's; {ROW_LAYOUT.remedy}"


def _feature_problems(dataset: RowTable) -> Iterator[str]:
    """Compare features, the divisors of their values, and their indices in the source with the manifest."""
    manifest, path = dataset.manifest, dataset.file("features.parquet")
    files = [(path, manifest["features"], FEATURES)]
    n_entries = 0
    if scales := manifest.get("scales"):
        files.append((dataset.file("scaling.parquet"), scales, SCALES))
    if indices := manifest.get("indices"):
        files.append((dataset.file(INDICES_FILE), indices, INDICES))
    for file, record, schema in files:
        content = TableContent(schema.names)
        try:
            for table in read_tables(file):
                content.add(table)
                if schema is FEATURES:
                    n_entries += int(column_values(table.column("n_entries")).sum())
        except DatasetError as error:
            yield str(error)
            return
        if content.text() != record["content"]:
            yield _other_content(file)
    if n_entries != dataset.n_entries:
        yield f"{path}: counts {n_entries} entries, the dataset has {dataset.n_entries}"


def _kept_problems(path: Location, n_rows: int) -> Iterator[str]:
    try:
        n_kept = count_kept(path)
    except DatasetError as error:
        yield str(error)
        return
    if n_kept != n_rows:
        yield f"{path}: has {n_kept} rows, the dataset {n_rows}"


def _hash_sum(numbers: np.ndarray) -> int:
    """Compute the sum of a 64-bit hash of numbers: two different sets of the same size agree with probability 2⁻⁶⁴."""
    return int(primitives.mix.py_func(numbers.astype(np.uint64)).sum(dtype=np.uint64))


# ---------------------------------------------------------------------------------------------------------------------
# Columns


@dataclass
class _ColumnFindings:
    """Findings in consecutive chunks of columns, up to the first problem."""

    problem: str = ""
    # feature and row of the first and of the last entry, as one number; None if unknown
    first: int | None = None
    last: int | None = None
    place: str = ""  # of the first chunk, for messages
    sums: np.ndarray = field(default_factory=lambda: np.zeros(2, dtype=np.uint64))  # of the entries' hashes

    def join(self, later: _ColumnFindings) -> None:
        """Add the findings in the chunks that follow."""
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


def _column_problems(dataset: RowTable, tasks: _Tasks, *, compare: bool) -> Iterator[str]:
    """Find problems step by step, and stop after a step that found some: the next would fail for the same reason."""
    try:
        columns = open_columns(dataset, check_files=False)
    except DatasetError as error:
        yield str(error)
        return
    changed = _changed_files(columns, tasks, "column checksums")
    if changed:
        yield from changed.values()
        return
    found = _ColumnFindings()
    opener = partial(_open_columns_again, dataset.path)
    for share in tasks.over_chunks(_check_columns, columns, opener, "verify columns", columns.entry_start):
        found.join(share)
        if found.problem:
            yield found.problem
            return
    if columns.n_entries != dataset.n_entries or int(columns.entry_start[-1]) != dataset.n_entries:
        yield f"{columns.path}: holds {columns.n_entries} entries, the rows have {dataset.n_entries}"
    elif compare and not np.array_equal(found.sums, _row_sums(dataset, tasks)):
        yield f"{columns.path}: the entries are not those of the rows; {AGAIN}"


def _open_columns_again(path: Location) -> Columns:
    return open_columns(RowTable.open(path, check_files=False), check_files=False)


def _check_columns(columns: Columns, start: int, stop: int) -> _ColumnFindings:
    found = _ColumnFindings()
    for chunk in range(start, stop):
        try:
            found.join(_check_column_chunk(columns, chunk))
        except DatasetError as error:
            found.join(_ColumnFindings(str(error)))
        if found.problem:
            break
    return found


def _check_column_chunk(columns: Columns, chunk: int) -> _ColumnFindings:
    listed, counts = columns.read_index(chunk)
    feature, row, value = columns.read_entries(chunk, ("feature", "row", "value"))
    place, n_rows = columns.place(chunk), columns.dataset.n_rows
    if not np.array_equal(feature, np.repeat(listed, counts)):
        return _ColumnFindings(f"{place}: the index does not list the features of the entries")
    if listed.size and int(listed[0]) != columns.first_feature[chunk]:
        return _ColumnFindings(f"{place}: begins with feature {int(listed[0])}, not the chunk table's")
    if not feature.size:
        return _ColumnFindings(f"{place}: no entries in it")
    if _outside(row, n_rows):
        return _ColumnFindings(f"{place}: a row outside 0 … {n_rows - 1}")
    first, last = (int(feature[at]) * n_rows + int(row[at]) for at in (0, -1))
    found = _ColumnFindings("", first, last, place)
    ascends = (np.diff(feature) > 0) | ((np.diff(feature) == 0) & (np.diff(row) > 0))
    if not ascends.all():
        found.problem = _not_ascending(place)
    elif not np.isfinite(value).all():
        found.problem = f"{place}: a value that is not finite"
    else:
        add_entries(row, feature, value, found.sums)
    return found


def _not_ascending(place: str) -> str:
    return f"{place}: entries not in ascending order of feature, then row"


def _row_sums(dataset: RowTable, tasks: _Tasks) -> np.ndarray:
    shares = tasks.over_chunks(
        _sum_rows, dataset, _row_opener(dataset), "compare with the rows", dataset.entry_start
    )
    return sum(shares, start=np.zeros(2, dtype=np.uint64))


def _sum_rows(dataset: RowTable, start: int, stop: int) -> np.ndarray:
    sums = np.zeros(2, dtype=np.uint64)
    for chunk in range(start, stop):
        row, feature, value = dataset.read_entries(chunk, ("row", "feature", "value"))
        add_entries(row, feature, value, sums)
    return sums

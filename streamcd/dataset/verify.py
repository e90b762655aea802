"""Verification of a dataset by one or several processes, a part at a time: its files, and what they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ..core.errors import DatasetError
from ..core.memory_budget import parse_size, require
from ..core.process_pool import Pool, checked_workers, memory_per_worker
from ..core.progress import Listener, Progress
from ..core.storage import Location
from ..kernels import primitives
from .chunked_table import ChunkedTable, file_problems
from .column_layout import FOLDER, Columns, has_columns, open_columns
from .content import RowContent, TableContent, add_entries
from .kept_columns import KEPT_FILE, count_kept
from .manifests import COLUMN_LAYOUT, INDICES_FILE, ROW_LAYOUT, manifest_fingerprint
from .parquet import column_values, file_checksum, read_tables
from .schema import FEATURES, INDICES, SCALES, ChunkData

Dataset = Any  # `dataset.Dataset`, whose method this is

_CHECK_BYTES = (
    120  # of an entry or item of a chunk: 24 decoded, as many compressed, copies, differences, hashes
)
_CHUNK_TABLE_BYTES = 200  # of a chunk, in the chunk tables


@dataclass
class _Part:
    """Findings in a part: problems, and what has to agree with that of other parts."""

    problems: list[str] = field(default_factory=list)
    read: bool = True  # to its end
    entries: np.ndarray = field(
        default_factory=lambda: np.zeros(2, np.uint64)
    )  # sums of hashes of the entries
    sources: int = 0  # sum of hashes of the rows' numbers in the source
    labels: Counter[float] = field(default_factory=Counter)
    targets: list[float] = field(default_factory=list)  # least and greatest of every chunk
    keys: list[tuple[int, int]] = field(
        default_factory=list
    )  # feature and row of the first and last entry of a chunk


def verify(
    dataset: Dataset,
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
        damaged, parts = _check(dataset, pool, "verify")
        problems = [*damaged.values(), *(problem for part in parts for problem in part.problems)]
        problems += _total_problems(dataset, parts)
        problems += _feature_problems(dataset, damaged)
        if manifest_fingerprint(dataset.manifest) != dataset.fingerprint:
            problems.append(f"{dataset.path / 'manifest.json'}: the fingerprint is not that of its content")
        if not (has_columns(dataset) or (dataset.path / FOLDER).exists()):
            return problems
        try:
            columns = open_columns(dataset, check_files=False)
        except DatasetError as error:
            return [*problems, str(error)]
        _require_memory(columns, budget, workers)
        damaged, pieces = _check(columns, pool, "verify columns")
        found = [*damaged.values(), *(problem for piece in pieces for problem in piece.problems)]
        if not found and any(after.keys[0] <= before.keys[-1] for before, after in pairwise(pieces)):
            found = [f"{columns.path}: parts not in ascending order of feature, then row"]
        if not (found or problems or np.array_equal(_entries(parts), _entries(pieces))):
            found = [f"{columns.path}: the entries are not those of the rows; {COLUMN_LAYOUT.remedy}"]
    return problems + found


def _require_memory(table: Dataset | Columns, budget: int | None, workers: int) -> None:
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


def _entries(parts: Iterable[_Part]) -> np.ndarray:
    return sum((part.entries for part in parts), start=np.zeros(2, np.uint64))


def _check(table: ChunkedTable, pool: Pool, phase: str) -> tuple[dict[Location, str], list[_Part]]:
    """Check the files of a table and the content of its parts; returns a problem by file, and the findings in each part."""
    listed = list(table.listed_files(table.manifest))
    damaged = dict(file_problems(table.path, listed))
    n_single = len(listed) - len(table.TABLES) * table.n_shards
    damaged |= _changed_files(
        table.path, [file for file in listed[:n_single] if table.path / file[0] not in damaged]
    )
    sizes = [sum(n_bytes for _, n_bytes, _ in table.part_files(part)) for part in range(table.n_shards)]
    if pool.n_workers > 1:
        dataset = table.dataset if isinstance(table, Columns) else table
        reopened = type(dataset), dataset.path, table is not dataset
        tasks = [(*reopened, part, set(damaged)) for part in range(table.n_shards)]
        return damaged, pool.run(_check_reopened, tasks, phase=phase, sizes=sizes)
    parts = []
    for part, done in enumerate(accumulate(sizes)):
        parts.append(_check_part(table, part, set(damaged)))
        pool.listener.progress(Progress(phase, done, sum(sizes), "B"))
    table.close()
    return damaged, parts


def _changed_files(path: Location, files: Iterable[tuple[str, int, str]]) -> dict[Location, str]:
    """Find files (name, bytes, checksum) with another checksum; a message by file."""
    changed = [path / name for name, _, checksum in files if file_checksum(path / name) != checksum]
    return {
        file: f"{file}: checksum differs from the manifest's, the file was changed or damaged"
        for file in changed
    }


@lru_cache(2)
def _reopened(kind: Any, path: Location, by_columns: bool) -> ChunkedTable:
    dataset: ChunkedTable = kind.open(path, check_files=False)
    return open_columns(dataset, check_files=False) if by_columns else dataset


def _check_reopened(kind: Any, path: Location, by_columns: bool, part: int, damaged: set[Location]) -> _Part:
    return _check_part(_reopened(kind, path, by_columns), part, damaged)


def _check_part(table: ChunkedTable, part: int, damaged: set[Location]) -> _Part:
    """Check the files of a part, unless some are known to be `damaged`, then its chunks, up to one that cannot be read."""
    files = table.part_files(part)
    if damaged.intersection(table.path / name for name, *_ in files):
        return _Part(read=False)
    if changed := _changed_files(table.path, files):
        return _Part([*changed.values()], read=False)
    found = _Part()
    chunks = np.flatnonzero(table.chunk_part == part).tolist()
    try:
        if isinstance(table, Columns):
            _check_columns(table, chunks, found)
        else:
            _check_rows(table, part, chunks, found)
    except DatasetError as error:
        found.problems.append(str(error))
        found.read = False
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Rows


def _check_rows(dataset: Dataset, part: int, chunks: list[int], found: _Part) -> None:
    content, (row0, source0) = RowContent(), dataset.part_starts(part)  # files count within their part
    for chunk in chunks:
        data = dataset.read(chunk)
        (row,), (numbers,) = dataset.read_entries(chunk, ("row",)), dataset.read_rows(chunk, ("row",))
        found.problems += [
            f"{dataset.place(chunk)}: {one}" for one in _row_problems(dataset, data, row, numbers)
        ]
        if dataset.classes is not None:
            found.labels.update(data.label.tolist())
        found.sources += _hash_sum(data.source)
        found.targets += [data.label.min(initial=np.inf), data.label.max(initial=-np.inf)]
        content.add_rows(numbers - row0, data.source - source0, data.label, data.weight)
        content.add_entries(row - row0, data.feature, data.value)
        add_entries(row, data.feature, data.value, found.entries)
    record = dataset.manifest["parts"][part]
    if not found.problems and content.text() != record["content"]:
        found.problems.append(_other_content(dataset.path / record["rows"]))


def _row_problems(dataset: Dataset, data: ChunkData, row: np.ndarray, numbers: np.ndarray) -> Iterator[str]:
    n_entries = np.diff(data.indptr)
    expected = np.arange(data.row0, data.row0 + n_entries.size)
    if not np.array_equal(numbers, expected):
        yield "the rows table's column 'row' does not count the rows"
    if (n_entries < 0).any() or data.indptr[-1] != data.feature.size:
        yield f"the rows table counts {int(data.indptr[-1])} entries, there are {data.feature.size}"
    elif not np.array_equal(row, np.repeat(expected, n_entries)):
        yield "the entries' column 'row' does not follow the rows table"
    elif (np.diff(data.feature)[row[1:] == row[:-1]] <= 0).any():
        yield "features not in ascending order within a row"
    if _outside(data.feature, dataset.n_features):
        yield f"a feature outside 0 … {dataset.n_features - 1}"
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


def _hash_sum(numbers: np.ndarray) -> int:
    """Compute the sum of a 64-bit hash of numbers: two different sets of the same size agree with probability 2⁻⁶⁴."""
    return int(primitives.mix.py_func(numbers.astype(np.uint64)).sum(dtype=np.uint64))


def _total_problems(dataset: Dataset, parts: list[_Part]) -> Iterator[str]:
    if not all(part.read for part in parts):
        return
    manifest_path = dataset.path / "manifest.json"
    n_rows, block = dataset.n_rows, 1 << 18
    starts = range(0, n_rows, block)
    expected_sum = sum(_hash_sum(np.arange(start, min(start + block, n_rows))) for start in starts)
    if (sum(part.sources for part in parts) - expected_sum) % 2**64:
        yield f"{dataset.path / 'rows'}: the source places are not each of 0 … {n_rows - 1} once"
    if dataset.classes is not None and dataset.class_counts is not None:
        expected = dict(zip(dataset.classes.tolist(), dataset.class_counts.tolist(), strict=True))
        if Counter(expected) != sum((part.labels for part in parts), Counter()):
            yield f"{manifest_path}: the counts of the classes differ from the rows'"
    targets = [end for part in parts for end in part.targets]
    if dataset.targets not in (None, {"min": min(targets, default=0), "max": max(targets, default=0)}):
        yield f"{manifest_path}: the range of the targets differs from the rows'"


def _other_content(path: Location) -> str:
    return f"{path}: the content is not the manifest's; {ROW_LAYOUT.remedy}"


def _feature_problems(dataset: Dataset, damaged: dict[Location, str]) -> Iterator[str]:
    """Compare features, the divisors of their values, their indices in the source, and kept columns with the manifest."""
    manifest, path = dataset.manifest, dataset.file("features.parquet")
    tables = [("features.parquet", "features", FEATURES)]
    tables += [("scaling.parquet", "scales", SCALES), (INDICES_FILE, "indices", INDICES)]
    try:
        for name, key, schema in tables:
            if not manifest.get(key) or dataset.path / name in damaged:
                continue
            content, n_entries = TableContent(schema.names), 0
            for table in read_tables(dataset.file(name)):
                content.add(table)
                if schema is FEATURES:
                    n_entries += int(column_values(table.column("n_entries")).sum())
            if content.text() != manifest[key]["content"]:
                yield _other_content(dataset.path / name)
            if schema is FEATURES and n_entries != dataset.n_entries:
                yield f"{path}: counts {n_entries} entries, the dataset has {dataset.n_entries}"
        if manifest.get("kept") and dataset.path / KEPT_FILE not in damaged:
            n_kept = count_kept(dataset.file(KEPT_FILE))
            if n_kept != dataset.n_rows:
                yield f"{dataset.path / KEPT_FILE}: has {n_kept} rows, the dataset {dataset.n_rows}"
    except DatasetError as error:
        yield str(error)


# ---------------------------------------------------------------------------------------------------------------------
# Columns


def _check_columns(columns: Columns, chunks: list[int], found: _Part) -> None:
    n_rows = columns.dataset.n_rows
    for chunk in chunks:
        listed, counts = columns.read_index(chunk)
        feature, row, value = columns.read_entries(chunk, ("feature", "row", "value"))
        ascends = (np.diff(feature) > 0) | ((np.diff(feature) == 0) & (np.diff(row) > 0))
        problem = ""
        if not feature.size or not np.array_equal(feature, np.repeat(listed, counts)):
            problem = "the index does not list the features of the entries"
        elif int(listed[0]) != columns.first_feature[chunk]:
            problem = f"begins with feature {int(listed[0])}, not the chunk table's"
        elif _outside(row, n_rows):
            problem = f"a row outside 0 … {n_rows - 1}"
        elif not ascends.all() or found.keys[-1:] >= [(feature[0], row[0])]:
            problem = "entries not in ascending order of feature, then row"
        elif not np.isfinite(value).all():
            problem = "a value that is not finite"
        if problem:
            found.problems.append(f"{columns.place(chunk)}: {problem}")
            return
        add_entries(row, feature, value, found.entries)
        found.keys += [(int(feature[0]), int(row[0])), (int(feature[-1]), int(row[-1]))]

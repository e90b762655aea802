"""Verification of a dataset by one or several processes, a part at a time: its files, and what they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from ..core.errors import DatasetError
from ..core.memory_budget import parse_size, require
from ..core.options import Listener, Progress
from ..core.parallel import Pool, checked_workers, memory_per_worker
from ..core.storage import Location
from ..kernels import primitives
from .arrow_columns import column_values, file_checksum, read_tables
from .chunked_table import ChunkedTable, file_problems, starts_of
from .column_layout import FOLDER, Columns, has_columns, open_columns
from .kept_columns import KEPT_FILE, count_kept
from .schema import COLUMN_LAYOUT, FEATURES, INDICES, INDICES_FILE, ROW_LAYOUT, SCALES, manifest_fingerprint
from .writer import RowContent, TableContent, add_entries

Dataset = Any  # `dataset.Dataset`, whose method this is

_CHECK_BYTES = 120
"""Of an entry or item of a chunk: 24 decoded, as many compressed, copies, differences, hashes."""


@dataclass
class _Part:
    """Findings in a part: problems, and what has to agree with that of other parts."""

    problems: list[str] = field(default_factory=list)
    read: bool = True  # to its end
    entries: np.ndarray = field(default_factory=lambda: np.zeros(2, np.uint64))  # sums of their hashes
    sources: int = 0  # sum of hashes of the rows' numbers in the source
    # of targets the least and greatest of every chunk
    labels: Counter[float] = field(default_factory=Counter)
    keys: list[tuple[int, int]] = field(default_factory=list)
    """Feature and row of the first and last entry of every chunk."""


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
    with Pool(checked_workers(workers), listener or Listener(), __name__) as pool:
        damaged, parts = _check(dataset, pool, budget, "verify")
        problems = [*damaged.values(), *(problem for part in parts for problem in part.problems)]
        problems += _total_problems(dataset, parts) if all(part.read for part in parts) else ()
        problems += _feature_problems(dataset, damaged)
        if manifest_fingerprint(dataset.manifest) != dataset.fingerprint:
            problems.append(f"{dataset.path / 'manifest.json'}: the fingerprint is not that of its content")
        if not (has_columns(dataset) or (dataset.path / FOLDER).exists()):
            return problems
        try:
            columns = open_columns(dataset, check_files=False)
        except DatasetError as error:
            return [*problems, str(error)]
        damaged, pieces = _check(columns, pool, budget, "verify columns")
        found = [*damaged.values(), *(problem for piece in pieces for problem in piece.problems)]
        if not found and any(after.keys[0] <= before.keys[-1] for before, after in pairwise(pieces)):
            found = [f"{columns.path}: parts not in ascending order of feature, then row"]
        of_rows, of_columns = (sum(one.entries for one in some) for some in (parts, pieces))
        if not (found or problems or np.array_equal(of_rows, of_columns)):
            found = [f"{columns.path}: the entries are not those of the rows; {COLUMN_LAYOUT.remedy}"]
    return problems + found


def _check(
    table: ChunkedTable, pool: Pool, budget: int | None, phase: str
) -> tuple[dict[Location, str], list[_Part]]:
    """Check single files of a table, and its parts; returns a problem by file, and the findings in each part."""
    size = np.diff(table.entry_start) + np.diff(table.item_start)
    needs = {
        "the largest chunk": _CHECK_BYTES * int(size.max(initial=0)),
        "chunk tables": 2 * _CHECK_BYTES * table.n_chunks,
    }
    if budget is not None and pool.n_workers == 1:
        require(budget, needs)
    elif budget is not None:
        memory_per_worker(budget, pool.n_workers, needs)
    damaged = _damaged_files(table.path, table.listed_files(table.manifest | {"parts": []}))
    sizes = [sum(n_bytes for _, n_bytes, _ in table.part_files(part)) for part in range(table.n_shards)]
    tasks = [(table, part) for part in range(table.n_shards)]
    if pool.n_workers > 1:
        return damaged, pool.run(_check_part, tasks, phase=phase, sizes=sizes)
    parts = []
    for task in tasks:
        parts.append(_check_part(*task))
        pool.listener.progress(Progress(phase, sum(sizes[: len(parts)]), sum(sizes), "B"))
    table.close()
    return damaged, parts


def _damaged_files(path: Location, files: Iterable[tuple[str, int, str]]) -> dict[Location, str]:
    """Find files (name, bytes, checksum) that are missing, or have another size or checksum; a message by file."""
    files = list(files)
    found = dict(file_problems(path, files))
    for name, _, checksum in files:
        if path / name not in found and file_checksum(path / name) != checksum:
            found[path / name] = (
                f"{path / name}: checksum differs from the manifest's, the file was changed or damaged"
            )
    return found


def _check_part(table: Dataset | Columns, part: int) -> _Part:
    """Check the files of a part, and if they are sound its chunks, up to one that cannot be read."""
    found, content = _Part([*_damaged_files(table.path, table.part_files(part)).values()]), RowContent()
    found.read = not found.problems
    try:
        for chunk in () if found.problems else range(*table.shard_start[part : part + 2].tolist()):
            check = _column_problems if isinstance(table, Columns) else _row_problems
            problems = [text for text, is_so in check(table, chunk, found, content) if is_so]
            found.problems += [f"{table.place(chunk)}: {text}" for text in problems]
    except DatasetError as error:
        found.problems.append(str(error))
        found.read = False
    record = table.manifest["parts"][part]
    if not found.problems and content.text() != record.get("content", content.text()):
        found.problems.append(_other_content(table.path / record["rows"]))
    return found


def _other_content(path: Location) -> str:
    return f"{path}: the content is not the manifest's; {ROW_LAYOUT.remedy}"


def _outside(numbers: np.ndarray, stop: int) -> bool:
    return bool(numbers.size and (numbers.min() < 0 or numbers.max() >= stop))


def _hash_sum(numbers: np.ndarray) -> int:
    """Compute the sum of a 64-bit hash of numbers: two different sets of the same size agree with probability 2⁻⁶⁴."""
    return int(primitives.mix.py_func(numbers.astype(np.uint64)).sum(dtype=np.uint64))


def _row_problems(
    dataset: Dataset, chunk: int, found: _Part, content: RowContent
) -> Iterator[tuple[str, Any]]:
    """Check a chunk of rows; yields what may be wrong, and whether it is."""
    number, source, label, weight, n_entries = dataset.read_rows(
        chunk, ("row", "source", "label", "weight", "n_entries")
    )
    row, feature, value = dataset.read_entries(chunk, ("row", "feature", "value"))
    expected = np.arange(dataset.row_start[chunk], dataset.row_start[chunk + 1])
    yield "the rows table's column 'row' does not count the rows", not np.array_equal(number, expected)
    total, counts = int(starts_of(n_entries)[-1]), not (n_entries < 0).any()
    counts = counts and total == feature.size
    yield f"the rows table counts {total} entries, there are {feature.size}", not counts
    follows = counts and np.array_equal(row, np.repeat(expected, n_entries))
    yield "the entries' column 'row' does not follow the rows table", counts and not follows
    descends = np.diff(feature)[row[1:] == row[:-1]] <= 0
    yield "features not in ascending order within a row", follows and descends.any()
    yield f"a feature outside 0 … {dataset.n_features - 1}", _outside(feature, dataset.n_features)
    yield "a value that is not finite", not np.isfinite(value).all()
    yield "a label that is not finite", not np.isfinite(label).all()
    is_weight = np.isfinite(weight).all() and (weight >= 0).all()
    yield "a weight that is negative or not finite", not is_weight
    yield f"a source place outside 0 … {dataset.n_rows - 1}", _outside(source, dataset.n_rows)
    found.sources += _hash_sum(source)
    counted = (
        label.tolist()
        if dataset.classes is not None
        else [label.min(initial=np.inf), label.max(initial=-np.inf)]
    )
    found.labels.update(counted)
    row0, source0 = dataset.part_starts(int(dataset.chunk_part[chunk]))  # files count within their part
    content.add_rows(number - row0, source - source0, label, weight)
    add_entries(row - row0, feature, value, content.sums)
    add_entries(row, feature, value, found.entries)


def _column_problems(columns: Columns, chunk: int, found: _Part, _: RowContent) -> Iterator[tuple[str, Any]]:
    """Check a chunk of columns, as `_row_problems`."""
    listed, counts = columns.read_index(chunk)
    feature, row, value = columns.read_entries(chunk, ("feature", "row", "value"))
    lists = bool(feature.size) and np.array_equal(feature, np.repeat(listed, counts))
    yield "the index does not list the features of the entries", not lists
    if not lists:
        return
    yield "begins with another feature than the chunk table's", listed[0] != columns.first_feature[chunk]
    yield f"a row outside 0 … {columns.dataset.n_rows - 1}", _outside(row, columns.dataset.n_rows)
    ascends = (np.diff(feature) > 0) | ((np.diff(feature) == 0) & (np.diff(row) > 0))
    is_behind = found.keys[-1:] >= [(feature[0], row[0])]
    yield "entries not in ascending order of feature, then row", is_behind or not ascends.all()
    yield "a value that is not finite", not np.isfinite(value).all()
    add_entries(row, feature, value, found.entries)
    found.keys += [(int(feature[0]), int(row[0])), (int(feature[-1]), int(row[-1]))]


def _total_problems(dataset: Dataset, parts: list[_Part]) -> Iterator[str]:
    """Compare what all parts hold together with the manifest."""
    manifest_path, block = dataset.path / "manifest.json", 1 << 18
    starts = range(0, dataset.n_rows, block)
    expected = sum(_hash_sum(np.arange(start, min(start + block, dataset.n_rows))) for start in starts)
    if (sum(part.sources for part in parts) - expected) % 2**64:
        yield f"{dataset.path / 'rows'}: the source places are not each of 0 … {dataset.n_rows - 1} once"
    labels: Counter[float] = sum((part.labels for part in parts), Counter())
    if dataset.classes is not None and dataset.class_counts is not None:
        counts = zip(dataset.classes.tolist(), dataset.class_counts.tolist(), strict=True)
        if Counter(dict(counts)) != labels:
            yield f"{manifest_path}: the counts of the classes differ from the rows'"
    if dataset.targets not in (None, {"min": min(labels, default=0), "max": max(labels, default=0)}):
        yield f"{manifest_path}: the range of the targets differs from the rows'"


def _feature_problems(dataset: Dataset, damaged: dict[Location, str]) -> Iterator[str]:
    """Compare features, the divisors of their values, their indices in the source, and kept columns with the manifest."""
    manifest = dataset.manifest
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
                path = dataset.path / name
                yield f"{path}: counts {n_entries} entries, the dataset has {dataset.n_entries}"
        if manifest.get("kept") and dataset.path / KEPT_FILE not in damaged:
            n_kept = count_kept(dataset.file(KEPT_FILE))
            if n_kept != dataset.n_rows:
                yield f"{dataset.path / KEPT_FILE}: has {n_kept} rows, the dataset {dataset.n_rows}"
    except DatasetError as error:
        yield str(error)

"""Verification of a dataset by one or several processes, a part at a time: its files, and what they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from ..core.errors import DatasetError
from ..core.memory_budget import parse_size
from ..core.options import Listener
from ..core.parallel import Pool, memory_per_worker
from ..kernels import primitives
from . import schema
from .arrow_columns import file_checksum, read_tables
from .chunked_table import ChunkedTable, file_problems, starts_of
from .column_layout import FOLDER, Columns, has_columns, open_columns
from .kept_columns import KEPT_FILE, count_rows
from .writer import add_content, add_entries, content_of, content_text

Dataset = Any  # `dataset.Dataset`, whose method this is

_OTHER = f"the content is not the manifest's; {schema.ROW_LAYOUT.remedy}"

_CHECK_BYTES = 120
"""Of an entry or item of a chunk: 24 decoded, as many compressed, copies, differences, hashes."""


@dataclass
class _Part:
    """Findings in a part: problems, and what has to agree with the manifest, or with that of other parts."""

    problems: list[str]
    # of hashes: of rows and entries, counted within the part; of entries
    sums: np.ndarray = field(default_factory=lambda: np.zeros((2, 2), np.uint64))
    # sum of 64-bit hashes of the rows' numbers in the source, less those of their own: 0 for the same numbers in another
    # order, and for others with probability 2⁻⁶⁴
    sources: int = 0
    labels: Counter[float] = field(default_factory=Counter)  # of targets the ends of every chunk
    keys: list[tuple[int, int]] = field(default_factory=list)  # of the first and last entry of every chunk


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
    with Pool(workers, listener or Listener(), __name__) as pool:
        problems, parts = _check(dataset, pool, budget, "verify")
        if schema.manifest_fingerprint(dataset.manifest) != dataset.fingerprint:
            problems.append(f"{dataset.path / 'manifest.json'}: the fingerprint is not that of its content")
        if not problems:
            problems = [*_whole_problems(dataset, parts)]
        if not (has_columns(dataset) or (dataset.path / FOLDER).exists()):
            return problems
        try:
            columns = open_columns(dataset, check_files=False)
        except DatasetError as error:
            return [*problems, str(error)]
        checked, pieces = _check(columns, pool, budget, "verify columns")
        if not checked and any(after.keys[0] <= before.keys[-1] for before, after in pairwise(pieces)):
            checked = [f"{columns.path}: parts not in ascending order of feature, then row"]
        of_rows, of_columns = (sum(one.sums[1] for one in some) for some in (parts, pieces))
        if not (checked or problems or np.array_equal(of_rows, of_columns)):
            checked = [
                f"{columns.path}: the entries are not those of the rows; {schema.COLUMN_LAYOUT.remedy}"
            ]
    return problems + checked


def _check(table: ChunkedTable, pool: Pool, budget: int | None, phase: str) -> tuple[list[str], list[_Part]]:
    """Check single files of a table, and its parts; returns all problems, and the findings in each part."""
    size = np.diff(table.entry_start) + np.diff(table.item_start)
    needs = {
        "the largest chunk": _CHECK_BYTES * int(size.max(initial=0)),
        "chunk tables": 2 * _CHECK_BYTES * table.n_chunks,
    }
    if budget is not None:
        memory_per_worker(budget, pool.n_workers, needs)  # safety: dataset::verify_refuses
    problems = [*_damaged_files(table, {**table.manifest, "parts": []})]
    sizes = [record["entries_bytes"] for record in table.manifest["parts"]]
    tasks = [(table, part) for part in range(table.n_shards)]
    parts = pool.run(_check_part, tasks, phase=phase, sizes=sizes)
    table.close()
    return [*problems, *(problem for part in parts for problem in part.problems)], parts


def _damaged_files(table: ChunkedTable, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Find files that are missing, or have another size or checksum than listed; yields a message for each."""
    files = list(table.listed_files(manifest))
    problems = dict(file_problems(table.path, files))
    yield from problems.values()
    for name, _, checksum in files:
        path = table.path / name
        if path not in problems and file_checksum(path) != checksum:
            yield (  # safety: dataset::a_flipped_byte[features.parquet]
                f"{path}: checksum differs from the manifest's, the file was changed or damaged"
            )


def _check_part(table: Dataset | Columns, part: int) -> _Part:
    """Check the files of a part, and if they are sound its chunks, up to one that cannot be read."""
    part_found = _Part([*_damaged_files(table, {"parts": [table.manifest["parts"][part]]})])
    chunks = () if part_found.problems else range(*table.shard_start[part : part + 2].tolist())
    check = _column_problems if isinstance(table, Columns) else _row_problems
    try:
        for chunk in chunks:
            problems = [text for text, is_so in check(table, chunk, part_found) if is_so]
            part_found.problems += [f"{table.place(chunk)}: {text}" for text in problems]
    except DatasetError as error:
        part_found.problems.append(str(error))
    return part_found


def _row_problems(dataset: Dataset, chunk: int, sums: _Part) -> Iterator[tuple[str, Any]]:
    """Check a chunk of rows; yields what may be wrong, and whether it is."""
    names = ("row", "source", "label", "weight", "n_entries")
    number, source, label, weight, n_entries = dataset.read_rows(chunk, names)
    row, feature, value = dataset.read_entries(chunk, ("row", "feature", "value"))
    expected = np.arange(dataset.row_start[chunk], dataset.row_start[chunk + 1])
    yield "the rows table's column 'row' does not count the rows", not np.array_equal(number, expected)
    total = int(starts_of(n_entries)[-1])
    counts = not (n_entries < 0).any() and total == feature.size
    yield f"the rows table counts {total} entries, there are {feature.size}", not counts
    follows = counts and np.array_equal(row, np.repeat(expected, n_entries))
    yield "the entries' column 'row' does not follow the rows table", counts and not follows
    descends = np.diff(feature)[row[1:] == row[:-1]] <= 0
    yield "features not in ascending order within a row", follows and descends.any()
    outside = feature.min(initial=0) < 0 or feature.max(initial=-1) >= dataset.n_features
    yield f"a feature outside 0 … {dataset.n_features - 1}", outside
    yield "a value that is not finite", not np.isfinite(value).all()
    yield "a label that is not finite", not np.isfinite(label).all()
    yield "a weight that is negative or not finite", not ((weight >= 0) & np.isfinite(weight)).all()
    for sign, numbers in ((1, source), (-1, expected)):
        sums.sources += sign * int(primitives.mix.py_func(numbers.astype(np.uint64)).sum(dtype=np.uint64))
    ends = [label.min(initial=np.inf), label.max(initial=-np.inf)]
    sums.labels.update(ends if dataset.classes is None else label.tolist())
    # files count within their part
    row0, source0 = (dataset.part_starts[name][dataset.chunk_part[chunk]] for name in ("row", "source"))
    rows = {"row": number - row0, "source": source - source0, "label": label, "weight": weight}
    add_content(rows, {"row": row - row0, "feature": feature, "value": value}, sums.sums[0])
    add_entries(row, feature, value, sums.sums[1])


def _column_problems(columns: Columns, chunk: int, sums: _Part) -> Iterator[tuple[str, Any]]:
    """Check a chunk of columns, as `_row_problems`."""
    listed, counts = columns.read_index(chunk)
    feature, row, value = columns.read_entries(chunk, ("feature", "row", "value"))
    lists = bool(feature.size) and np.array_equal(feature, np.repeat(listed, counts))
    yield "the index does not list the features of the entries", not lists
    if not lists:
        return
    yield "begins with another feature than the chunk table's", listed[0] != columns.first_feature[chunk]
    outside = row.min() < 0 or row.max() >= columns.dataset.n_rows
    yield f"a row outside 0 … {columns.dataset.n_rows - 1}", outside
    ascends = (np.diff(feature) > 0) | ((np.diff(feature) == 0) & (np.diff(row) > 0))
    is_behind = sums.keys[-1:] >= [(feature[0], row[0])]
    yield "entries not in ascending order of feature, then row", is_behind or not ascends.all()
    yield "a value that is not finite", not np.isfinite(value).all()
    add_entries(row, feature, value, sums.sums[1])
    sums.keys += [(int(feature[0]), int(row[0])), (int(feature[-1]), int(row[-1]))]


def _whole_problems(dataset: Dataset, parts: list[_Part]) -> Iterator[str]:
    """Compare what parts hold, each and together, and the tables beside them, with the manifest."""
    for part, record in zip(parts, dataset.manifest["parts"], strict=True):
        if content_text(part.sums[0]) != record["content"]:  # safety: dataset::another_content[entries]
            yield f"{dataset.path / record['rows']}: {_OTHER}"
    if sum(part.sources for part in parts) % 2**64:
        yield f"{dataset.path / 'rows'}: the source places are not each of 0 … {dataset.n_rows - 1} once"
    labels: Counter[float] = sum((part.labels for part in parts), Counter())
    if dataset.classes is not None and dataset.class_counts is not None:
        counts = zip(dataset.classes.tolist(), dataset.class_counts.tolist(), strict=True)
        if Counter(dict(counts)) != labels:
            yield f"{dataset.path / 'manifest.json'}: the counts of the classes differ from the rows'"
    if dataset.targets not in (None, {"min": min(labels, default=0), "max": max(labels, default=0)}):
        yield f"{dataset.path / 'manifest.json'}: the range of the targets differs from the rows'"
    tables = [("features.parquet", schema.FEATURES), (schema.SCALES_FILE, schema.SCALES)]
    try:
        for name, columns in [*tables, (schema.INDICES_FILE, schema.INDICES)]:
            record = dataset.manifest.get(schema.LISTED[name])
            if record and content_of(columns.names, read_tables(dataset.file(name))) != record["content"]:
                yield f"{dataset.path / name}: {_OTHER}"  # safety: dataset::another_content[features]
        n_entries = sum(int(block["n_entries"].sum()) for block in dataset.read_features(["n_entries"]))
        if n_entries != dataset.n_entries:
            yield f"{dataset.path / tables[0][0]}: counts {n_entries} entries, the dataset has {dataset.n_entries}"
        n_kept = count_rows(dataset.file(KEPT_FILE)) if dataset.manifest.get("kept") else dataset.n_rows
        if n_kept != dataset.n_rows:
            yield f"{dataset.path / KEPT_FILE}: has {n_kept} rows, the dataset {dataset.n_rows}"
    except DatasetError as error:
        yield str(error)

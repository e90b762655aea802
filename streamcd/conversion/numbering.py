"""Numbering of features: from the indices of parsed entries, or the codes of strings, to 0-based features.

Each task numbers its strings, categories and names of classes, in order of appearance. After parsing all are sorted, and a
map for each task turns its codes into features when its rows are written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ..core.errors import UsageError
from ..core.memory_budget import format_size
from ..dataset.arrow_columns import Strings, arrow_array, arrow_strings, sorted_distinct_strings, strings_of
from ..dataset.schema import MAX_CLASSES
from ..models.encoding import Encoding
from ..models.table_encoder import Collisions, StringTable
from .number_notation import SAMPLES
from .rows import Rows

_MERGE_FACTOR = 4
"""Bytes that merging takes for each byte of the tasks' strings."""


class TaskDictionary:
    """Strings that a task has met, numbered in order of appearance, after the known class names."""

    def __init__(self, memory_bytes: int, class_names: Sequence[str]) -> None:
        self.categories, self.labels = StringTable(memory_bytes), StringTable(memory_bytes)
        self.collisions: Collisions | None = None  # a source that hashes strings leaves them here
        self.samples: dict[str, list[str]] = {}  # and the first strings of its columns
        if class_names:
            self.labels.number(0, *strings_of(arrow_strings(class_names)), True, "")

    def save(self, directory: Path, number: int) -> None:
        """Write the strings to files of the task `number`."""
        for name, table in (("categories", self.categories), ("labels", self.labels)):
            strings = table.strings()
            for part, array in (("data", strings.data), ("offsets", strings.offsets)):
                np.save(directory / f"{name}-{part}-{number:07d}.npy", array)
            np.save(directory / f"{name}-columns-{number:07d}.npy", table.columns())
        if self.samples and number == 0:
            (directory / SAMPLES).write_text(json.dumps(self.samples))
        if self.collisions is not None:
            np.savez(
                directory / f"collisions-{number:07d}.npz",
                seen=self.collisions.seen,
                collided=self.collisions.collided,
            )


def _saved_strings(directory: Path, name: str) -> list[tuple[Strings, np.ndarray]]:
    """Return the strings of every task, and their columns; read only when used."""
    found = []
    for path in sorted(directory.glob(f"{name}-data-*.npy")):
        parts = [path.with_name(path.name.replace("-data-", f"-{part}-")) for part in ("offsets", "columns")]
        data, offsets, columns = (np.load(part, mmap_mode="r") for part in (path, *parts))
        found.append((Strings(data, offsets), columns))
    return found


class Merged(NamedTuple):
    """Strings of all tasks together: categories of every column, class names; and of hashed ones the collisions."""

    n_categories: list[int]
    class_names: list[str]
    n_collided: int
    n_buckets_used: int


def merge_dictionaries(
    directory: Path,
    encoding: Encoding | None,
    known: Sequence[str],
    memory_bytes: int,
    budget: int,
    workers: int,
) -> Merged:
    """Sort the strings of all tasks; write them, and each task's map, beside them.

    `memory_bytes` is half of what each of `workers` has to spare of `budget`.
    """
    n_categories = []
    if encoding is not None:
        _check_merge(directory, memory_bytes, budget, workers)
        n_categories = _merge_categories(directory, encoding)
    collided, used = _merge_collisions(directory, 0 if encoding is None else encoding.bits)
    return Merged(n_categories, _merge_labels(directory, known), collided, used)


def _check_merge(directory: Path, memory_bytes: int, budget: int, workers: int) -> None:
    """Refuse dictionaries that do not fit in the memory for merging, with the budget that would do."""
    tasks = [strings for strings, _ in _saved_strings(directory, "categories")]
    needed = _MERGE_FACTOR * sum(strings.nbytes for strings in tasks)
    if needed > memory_bytes:
        enough = budget + 2 * workers * (needed - memory_bytes)
        raise UsageError(
            f"the dictionaries of categories, {sum(strings.size for strings in tasks):,} strings, need "
            f"{format_size(needed)} to be sorted, {format_size(memory_bytes)} of --memory are left for it; hash them into "
            f"2^B features with --hash B (20, say), or give about {format_size(enough)}"
        )


def _merge_categories(directory: Path, encoding: Encoding) -> list[int]:
    """Write ``data.npy`` and ``offsets.npy`` of the categories, in the order of columns and bytes, and ``map.npy``."""
    tasks = _saved_strings(directory, "categories")
    n_static = int(encoding.without_counts().first_features()[-1])
    static = encoding.without_counts()
    places = [np.empty(strings.size, np.int64) for strings, _ in tasks]
    counts, datas, lengths = [], [], []
    for number, column in enumerate(static.columns):
        chosen = [np.flatnonzero(columns == number) for _, columns in tasks]
        parts = [_taken(strings, rows) for (strings, _), rows in zip(tasks, chosen, strict=True)]
        distinct, found = sorted_distinct_strings(parts) if column.kind == "category" else (parts[0], [])
        for place, rows, among in zip(places, chosen, found, strict=False):
            place[rows] = among
        counts.append(distinct.size if column.kind == "category" else 0)
        datas.append(distinct.data[distinct.offsets[0] : distinct.offsets[-1]])
        lengths.append(np.diff(distinct.offsets))
    np.save(directory / "data.npy", np.concatenate(datas))
    np.save(directory / "offsets.npy", np.concatenate([[0], np.cumsum(np.concatenate(lengths))]))
    counted = with_counts(encoding, counts, None)
    starts = counted.first_features()
    maps = []
    for (_, columns), place in zip(tasks, places, strict=True):
        maps += [_static_features(counted, n_static), place + starts[columns]]
    np.save(directory / "map.npy", np.concatenate(maps))
    np.save(directory / "starts.npy", np.cumsum([0, *(n_static + place.size for place in places)]))
    return counts


def _taken(strings: Strings, rows: np.ndarray) -> Strings:
    found, _ = strings_of(strings.to_arrow().take(arrow_array(rows, pa.int64())))
    return found


def _static_features(encoding: Encoding, n_static: int) -> np.ndarray:
    """Return the features of the codes of numbers and indicators."""
    features, widths = [], encoding.without_counts().widths()
    for first, column, width in zip(
        encoding.first_features().tolist(), encoding.columns, widths, strict=False
    ):
        skipped = column.n_categories
        features += [first + skipped + k for k in range(width)]
    assert len(features) == n_static
    return np.array(features, np.int64)


def _merge_labels(directory: Path, known: Sequence[str]) -> list[str]:
    """Return the names of the classes: those known, then the others by their bytes; the tasks' maps go to ``labels.npy``."""
    tasks = [strings for strings, _ in _saved_strings(directory, "labels")]
    found = [[strings.text(k) for k in range(strings.size)] for strings in tasks]
    if sum(map(len, found)) > MAX_CLASSES * max(len(tasks), 1):
        raise UsageError(f"the labels take more than {MAX_CLASSES:,} names; is it the right column?")
    new = sorted({name for names in found for name in names} - set(known), key=str.encode)
    names = [*known, *new]
    places = {name: number for number, name in enumerate(names)}
    maps = [np.array([places[name] for name in task], np.int64) for task in found]
    np.save(directory / "labels.npy", np.concatenate(maps) if maps else np.empty(0, np.int64))
    np.save(directory / "label-starts.npy", np.cumsum([0, *(len(task) for task in found)]))
    return names


def _merge_collisions(directory: Path, bits: int) -> tuple[int, int]:
    paths = sorted(directory.glob("collisions-*.npz"))
    if not paths:
        return 0, 0
    merged = Collisions(bits)
    for path in paths:
        with np.load(path) as saved:
            other = Collisions(bits)
            other.seen, other.collided = saved["seen"], saved["collided"]
            merged.merge(other)
    return int(merged.collided.sum()), int((merged.seen >= 0).sum())


def label_maps(directory: Path) -> list[np.ndarray]:
    """Return the class numbers of the names that each task has met, task by task."""
    starts, numbers = np.load(directory / "label-starts.npy"), np.load(directory / "labels.npy")
    return np.split(numbers, starts[1:-1])


def read_merged(directory: Path, encoding: Encoding, merged: Merged) -> Encoding:
    """Return the encoding with its categories, which are read from their file when needed."""
    # plain arrays over the maps: taking an element of a memmap makes another memmap, which takes microseconds
    data, offsets = (
        np.asarray(np.load(directory / f"{name}.npy", mmap_mode="r")) for name in ("data", "offsets")
    )
    return with_counts(encoding, merged.n_categories, Strings(data, offsets))


def with_counts(encoding: Encoding, counts: list[int], categories: Strings | None) -> Encoding:
    columns = [
        type(column)(column.name, column.kind, column.values, count, column.text)
        for column, count in zip(encoding.columns, counts, strict=True)
    ]
    return replace(encoding, columns=tuple(columns), categories=categories)


# ---------------------------------------------------------------------------------------------------------------------
# Rows as they are written


@dataclass(frozen=True)
class Numbering:
    """Description of the maps from indices and labels of parsed rows to features and classes."""

    index_base: int
    original: Path | None = None  # the indices of `compact`, ascending, as in the source
    dictionaries: Path | None = None  # a directory with the maps of tasks
    first_rows: tuple[int, ...] = (0,)  # of the tasks
    maps_features: bool = False
    maps_labels: bool = False
    sparse_start: int = 0  # of a sparse column's features, where those before it are mapped


class Numberer:
    """Map of rows' indices and labels; the maps stay in files, cached by the system."""

    def __init__(self, numbering: Numbering) -> None:
        self._numbering = numbering
        self._first_rows = np.array(numbering.first_rows, np.int64)
        self._original = None if numbering.original is None else np.load(numbering.original, mmap_mode="r")
        if numbering.dictionaries is not None:
            names = ("starts", "map", "label-starts", "labels")
            paths = [numbering.dictionaries / f"{name}.npy" for name in names]
            self._maps = {path.stem: np.load(path, mmap_mode="r") for path in paths if path.exists()}

    def apply(self, rows: Rows, index_dtype: np.dtype) -> Rows:
        """Return rows whose indices are 0-based features, and whose labels are numbers; the given ones are changed."""
        from ..kernels.tables import renumber

        numbering = self._numbering
        if numbering.maps_labels:
            starts, places = self._maps["label-starts"], self._maps["labels"]
            task = np.searchsorted(self._first_rows, rows.source_row, side="right") - 1
            rows = replace(rows, label=places[starts[task] + rows.label.astype(np.int64)].astype(np.float64))
        if numbering.maps_features:
            starts, features = self._maps["starts"], self._maps["map"]
            index = rows.index if rows.index.dtype == index_dtype else np.empty(rows.n_entries, index_dtype)
            arrays = (self._first_rows, starts, features, numbering.sparse_start)
            renumber(rows.indptr, rows.index, rows.source_row, *arrays, index)
        elif self._original is not None:
            index = np.searchsorted(self._original, rows.index)
        else:
            index = rows.index
            index -= numbering.index_base
        return replace(rows, index=index.astype(index_dtype, copy=False))

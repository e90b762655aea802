"""Numbering of features: from the indices of parsed entries, or the codes of strings, to 0-based features.

Each task numbers its strings, categories and names of classes, in order of appearance. After parsing all are sorted, and a
map for each task turns its codes into features when its rows are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ..core.errors import UsageError
from ..core.memory_budget import format_size
from ..dataset.arrow_columns import Strings, arrow_array, joined_arrays, numbers_of, strings_of
from ..dataset.schema import MAX_CLASSES
from ..dataset.source_indices import SourceIndices
from ..kernels.tables import TAIL_CODES
from ..models.encoding import Encoding
from ..models.string_table import StringTable
from .rows import Rows

LABELS = -1
"""In place of a column's number: the names of classes."""

_MERGE_FACTOR = 4
"""Bytes that merging takes for each byte of the tasks' strings."""


def save_strings(table: StringTable, directory: Path, number: int) -> None:
    """Write the strings that the task `number` has met."""
    for name, array in {**table.strings()._asdict(), "columns": table.columns()}.items():
        np.save(directory / f"{name}-{number:07d}.npy", array)


def _saved_strings(directory: Path) -> list[tuple[Strings, np.ndarray]]:
    """Return the strings of every task, and their columns; read only when used."""
    found = []
    for path in sorted(directory.glob("data-*.npy")):
        parts = [path.with_name(f"{name}-{path.stem[5:]}.npy") for name in ("data", "offsets", "columns")]
        data, offsets, columns = (np.load(part, mmap_mode="r") for part in parts)
        found.append((Strings(data, offsets), columns))
    return found


class Merged(NamedTuple):
    """Strings of all tasks together: the number of categories of every column, and the class names."""

    n_categories: list[int]
    class_names: list[str]


def merge_strings(
    directory: Path,
    encoding: Encoding | None,
    n_missing: np.ndarray,
    known: Sequence[str],
    memory_bytes: int,
    budget: int,
    workers: int,
) -> Merged:
    """Sort the strings of all tasks; write the categories of an encoding that grows, if given, and each task's map of codes.

    `n_missing` counts the missing values of its columns. `memory_bytes` is half of what each of `workers` has to spare of
    `budget`.
    """
    tasks = _saved_strings(directory)
    places = [np.empty(strings.size, np.int64) for strings, _ in tasks]  # among those of their column
    names = _merge_labels(tasks, places, known)
    counts, static = [], np.empty(0, np.int64)
    if encoding is not None:
        _check_merge(tasks, encoding, memory_bytes, budget, workers)
        counts = _merge_categories(tasks, places, encoding, directory)
        encoding = encoding.with_counts(counts, n_missing, None)
        starts = encoding.first_features()
        for (_, columns), place in zip(tasks, places, strict=True):
            place += np.where(columns == LABELS, 0, starts[columns])
        static = _static_features(encoding)
    np.save(directory / "map.npy", np.concatenate([part for place in places for part in (static, place)]))
    np.save(directory / "starts.npy", np.cumsum([0, *(static.size + place.size for place in places)]))
    return Merged(counts, names)


def _check_merge(
    tasks: list[tuple[Strings, np.ndarray]], encoding: Encoding, memory_bytes: int, budget: int, workers: int
) -> None:
    """Refuse dictionaries that do not fit in the memory for merging, with the budget that would do."""
    needed = _MERGE_FACTOR * sum(strings.nbytes for strings, _ in tasks)
    if needed > memory_bytes:
        n_bytes = np.zeros(len(encoding.columns) + 1)  # of every column, after those of labels
        for strings, columns in tasks:
            n_bytes += np.bincount(columns - LABELS, np.diff(strings.offsets), n_bytes.size)
        enough = budget + 2 * workers * (needed - memory_bytes)
        raise UsageError(
            f"the dictionaries of categories, {sum(strings.size for strings, _ in tasks):,} strings, need "
            f"{format_size(needed)} to be sorted, {format_size(memory_bytes)} of --memory are left for it, most of them of "
            f"column {encoding.columns[int(n_bytes[1:].argmax())].name!r}; hash them into 2^B features with --hash B (20, "
            f"say), or give about {format_size(enough)}"
        )


def _merge_categories(
    tasks: list[tuple[Strings, np.ndarray]], places: list[np.ndarray], encoding: Encoding, directory: Path
) -> list[int]:
    """Write the bytes and the ends of the categories, in the order of columns and bytes; count each column's."""
    counts, datas, lengths = [], [np.empty(0, np.uint8)], [np.zeros(1, np.int64)]
    for number, column in enumerate(encoding.columns):
        if column.kind != "category":
            counts.append(0)
            continue
        chosen = [np.flatnonzero(columns == number) for _, columns in tasks]
        parts = [strings.take(rows).to_arrow() for (strings, _), rows in zip(tasks, chosen, strict=True)]
        distinct, ranks = _sorted_distinct(joined_arrays(parts))
        for place, rows in zip(places, chosen, strict=True):
            place[rows], ranks = ranks[: rows.size], ranks[rows.size :]
        counts.append(distinct.size)
        datas.append(distinct.data[distinct.offsets[0] : distinct.offsets[-1]])
        lengths.append(np.diff(distinct.offsets))
    np.save(directory / "categories.npy", np.concatenate(datas))
    np.save(directory / "ends.npy", np.cumsum(np.concatenate(lengths)))
    return counts


def _sorted_distinct(strings: Any) -> tuple[Strings, np.ndarray]:
    """Sort the distinct strings of an Arrow array by their bytes; also returns the ranks of all among them."""
    import pyarrow.compute as pc

    order = pc.sort_indices(strings)
    ordered, is_new = strings.take(order), np.ones(len(strings), np.bool_)
    if len(strings):
        is_new[1:] = numbers_of(pc.not_equal(ordered.slice(1), ordered.slice(0, len(ordered) - 1)))
    ranks = np.empty(len(strings), np.int64)
    ranks[numbers_of(order)] = np.cumsum(is_new) - 1
    return strings_of(ordered.take(arrow_array(np.flatnonzero(is_new), pa.int64())))[0], ranks


def _static_features(encoding: Encoding) -> np.ndarray:
    """Return the features of the codes of numbers and indicators."""
    plain = encoding.without_counts()
    codes = plain.indicator_features()
    features = np.zeros(plain.bucket_start, np.int64)
    for column, start, code in zip(
        encoding.columns, encoding.first_features(), plain.first_features(), strict=True
    ):
        if column.kind == "number":
            features[code] = start
    # that of an indicator without a missing value is never looked up
    for number, feature in encoding.indicator_features().items():
        features[codes[number]] = feature
    return features


def _merge_labels(
    tasks: list[tuple[Strings, np.ndarray]], places: list[np.ndarray], known: Sequence[str]
) -> list[str]:
    """Return the names of the classes: those known, then the others by their bytes."""
    rows = [np.flatnonzero(columns == LABELS) for _, columns in tasks]
    found = [[strings.text(k) for k in mine.tolist()] for (strings, _), mine in zip(tasks, rows, strict=True)]
    if sum(map(len, found)) > MAX_CLASSES * max(len(tasks), 1):
        raise UsageError(f"the labels take more than {MAX_CLASSES:,} names; is it the right column?")
    new = sorted({name for names in found for name in names} - set(known), key=str.encode)
    numbers = {name: number for number, name in enumerate([*known, *new])}
    for place, mine, names in zip(places, rows, found, strict=True):
        place[mine] = [numbers[name] for name in names]
    return list(numbers)


def read_merged(directory: Path) -> Strings:
    """Return the merged categories, which are read from their files when needed."""
    # plain arrays over the maps: taking an element of a memmap makes another memmap, which takes microseconds
    return Strings(
        *(np.asarray(np.load(directory / f"{name}.npy", mmap_mode="r")) for name in ("categories", "ends"))
    )


# ---------------------------------------------------------------------------------------------------------------------
# Rows as they are written


@dataclass(frozen=True)
class Numbering:
    """Description of the maps from indices and labels of parsed rows to features and classes."""

    index_base: int
    original: Path | None = None  # the indices of `compact`, by feature, as in the source
    dictionaries: Path | None = None  # a directory with the maps of tasks
    first_rows: tuple[int, ...] = (0,)  # of the tasks
    maps_features: bool = False
    maps_labels: bool = False
    n_static: int = 0  # codes of numbers and indicators, which come before those of strings
    tail_start: int = 0  # of hashed and sparse columns' features, where those before them are mapped

    def indices(self) -> SourceIndices:
        """Return the indices of the features, which stay in their file, cached by the system."""
        kept = None if self.original is None else np.load(self.original, mmap_mode="r")
        return SourceIndices(self.index_base, kept)

    def task_maps(self) -> tuple[np.ndarray, np.ndarray]:
        """Read where the map of every task starts, and the maps, which stay in their file, cached by the system."""
        assert self.dictionaries is not None
        return np.load(self.dictionaries / "starts.npy"), np.load(
            self.dictionaries / "map.npy", mmap_mode="r"
        )

    def classes_of(self, task: int) -> np.ndarray:
        """Return the class numbers of the codes of the names that a task has met."""
        starts, places = self.task_maps()
        return places[starts[task] + self.n_static : starts[task + 1]]


class Numberer:
    """Map of rows' indices and labels."""

    def __init__(self, numbering: Numbering) -> None:
        self._numbering = numbering
        self._first_rows = np.array(numbering.first_rows, np.int64)
        self._indices = numbering.indices()
        if numbering.dictionaries is not None:
            self._starts, places = numbering.task_maps()
            self._places = np.asarray(places)  # elements of a map are maps

    def apply(self, rows: Rows, index_dtype: np.dtype) -> Rows:
        """Return rows whose indices are 0-based features, and whose labels are numbers; the given ones are changed."""
        numbering = self._numbering
        if numbering.maps_labels or numbering.maps_features:
            task = np.searchsorted(self._first_rows, rows.source_row, side="right") - 1
        if numbering.maps_labels:
            codes = self._starts[task] + numbering.n_static + rows.label.astype(np.int64)
            rows = replace(rows, label=self._places[codes].astype(np.float64))
        if numbering.maps_features:
            codes = rows.index.astype(np.int64)
            index, is_tail = codes - (TAIL_CODES - numbering.tail_start), codes >= TAIL_CODES
            codes += np.repeat(self._starts[task], np.diff(rows.indptr))
            index[~is_tail] = self._places[codes[~is_tail]]
        else:
            index = self._indices.features(rows.index)
        index = index.astype(index_dtype, copy=False)
        return replace(rows, index=index)

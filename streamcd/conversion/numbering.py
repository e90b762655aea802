"""Numbering of features and classes by strings.

Each task numbers its strings, categories and names of classes, in order of appearance. After parsing all are sorted, and a
map for each task turns its codes into features when its rows are written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..core.errors import UsageError
from ..core.memory_budget import format_size
from ..dataset.arrow_columns import Strings, arrow_array, arrow_strings, joined_arrays, numbers_of, strings_of
from ..dataset.schema import MAX_CLASSES
from ..kernels.strings import TAIL_CODES
from ..models.encoding import Encoding
from ..models.table_encoder import StringTable
from .rows import Rows

LABELS = -1
"""In place of a column's number: the names of classes."""

_MERGE_FACTOR = 4
"""Bytes that merging takes for each byte of the tasks' strings."""


def save_strings(table: StringTable, directory: Path, number: int) -> None:
    """Write the strings that the task `number` has met."""
    for name, array in {**table.strings()._asdict(), "columns": table.columns()}.items():
        np.save(directory / f"{name}-{number:07d}.npy", array)


def merge_strings(
    directory: Path,
    encoding: Encoding | None,
    n_missing: np.ndarray,
    known: Sequence[str],
    memory_bytes: int,
    budget: int,
    workers: int,
) -> tuple[list[int], list[str]]:
    """Sort the strings of all tasks; write the categories of an encoding that grows, if given, and each task's map of codes.

    Returns the number of categories of every column, and the class names. `n_missing` counts the missing values of columns.
    `memory_bytes` is half of what each of `workers` has to spare of `budget`.
    """
    data, offsets, columns = (
        [np.load(path, mmap_mode="r") for path in sorted(directory.glob(f"{name}-*.npy"))]
        for name in ("data", "offsets", "columns")
    )
    tasks = [Strings(*arrays) for arrays in zip(data, offsets, strict=True)]
    of_column = np.concatenate(columns)
    needed = _MERGE_FACTOR * sum(strings.nbytes for strings in tasks)
    if encoding is not None and needed > memory_bytes:
        lengths = np.concatenate([np.diff(strings.offsets) for strings in tasks])
        largest = np.bincount(of_column - LABELS, lengths, len(encoding.columns) + 1)[1:].argmax()
        raise UsageError(
            f"the dictionaries of categories, {of_column.size:,} strings, need {format_size(needed)} to be sorted, "
            f"{format_size(memory_bytes)} of --memory are left for it, most of them of column "
            f"{encoding.columns[int(largest)].name!r}; hash them into 2^B features with --hash B (20, say), or give about "
            f"{format_size(budget + 2 * workers * (needed - memory_bytes))}"
        )
    texts = joined_arrays([strings.to_arrow() for strings in tasks])
    code = np.empty(of_column.size, np.int64)
    counts = []
    categories = [arrow_strings([])]
    rows = np.flatnonzero(of_column == LABELS)
    if rows.size > MAX_CLASSES * max(len(tasks), 1):
        raise UsageError(f"the labels take more than {MAX_CLASSES:,} names; is it the right column?")
    labels = texts.take(arrow_array(rows, pa.int64())).to_pylist()
    names = [*known, *sorted(set(labels).difference(known), key=str.encode)]
    numbers = {name: number for number, name in enumerate(names)}
    code[rows] = [numbers[name] for name in labels]
    static = np.empty(0, np.int64)
    if encoding is not None:
        for number, column in enumerate(encoding.columns):
            rows = np.flatnonzero(of_column == number) if column.kind == "category" else rows[:0]
            distinct, code[rows] = _sorted_distinct(texts.take(arrow_array(rows, pa.int64())))
            counts.append(len(distinct))
            categories.append(distinct)
        strings, _ = strings_of(joined_arrays(categories))
        np.save(directory / "categories.npy", strings.data[: strings.offsets[-1]])
        np.save(directory / "ends.npy", strings.offsets)
        encoding = encoding.with_counts(counts, n_missing, None)
        code += np.where(of_column == LABELS, 0, encoding.starts[of_column])
        static = np.stack([encoding.starts[:-1], encoding.indicators], axis=1).ravel()
    ends = np.cumsum([strings.size for strings in tasks])
    codes = np.split(code, ends[:-1])
    np.save(directory / "map.npy", np.concatenate([part for of_task in codes for part in (static, of_task)]))
    np.save(directory / "starts.npy", np.cumsum([0, *(static.size + of_task.size for of_task in codes)]))
    return counts, names


def _sorted_distinct(strings: Any) -> tuple[Any, np.ndarray]:
    """Sort the distinct strings of an Arrow array by their bytes; also returns the ranks of all among them."""
    import pyarrow.compute as pc

    order = pc.sort_indices(strings)
    ordered = strings.take(order)
    is_new = np.ones(len(strings), np.bool_)
    if len(strings):
        is_new[1:] = numbers_of(pc.not_equal(ordered.slice(1), ordered.slice(0, len(ordered) - 1)))
    ranks = np.empty(len(strings), np.int64)
    ranks[numbers_of(order)] = np.cumsum(is_new) - 1
    return ordered.take(arrow_array(np.flatnonzero(is_new), pa.int64())), ranks


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
    """Maps of tasks' codes to features and classes."""

    directory: Path  # of the maps
    first_rows: Sequence[int]  # of the tasks
    maps_features: bool
    maps_labels: bool
    n_static: int  # codes of numbers and indicators, which come before those of strings
    tail_start: int  # of hashed and sparse columns' features

    def opened(self) -> Callable[[Rows], Rows]:
        """Make the function that gives rows features and classes for their codes."""
        first_rows = np.asarray(self.first_rows)
        starts = np.load(self.directory / "starts.npy")
        # a plain array, which stays in its file, cached by the system: elements of a map are maps
        codes_of_strings = np.asarray(np.load(self.directory / "map.npy", mmap_mode="r"))

        def numbered(rows: Rows) -> Rows:
            label = rows.label
            index = rows.index
            start = starts[np.searchsorted(first_rows, rows.source_row, side="right") - 1]
            if self.maps_labels:
                label = codes_of_strings[start + self.n_static + label.astype(np.int64)].astype(np.float64)
            if self.maps_features:
                codes = index.astype(np.int64)
                index = codes - (TAIL_CODES - self.tail_start)
                is_tail = codes >= TAIL_CODES
                codes += np.repeat(start, np.diff(rows.indptr))
                index[~is_tail] = codes_of_strings[codes[~is_tail]]
            return replace(rows, label=label, index=index)

        return numbered

"""Folds of a search other than by a hash of rows: whole groups, those that a column names, or every class dealt out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import numpy as np

from ..core.errors import UsageError
from ..core.memory_budget import require
from ..core.randomness import random_key
from ..dataset.dataset import Dataset
from ..dataset.kept_columns import count_values, numbers_of_values
from ..kernels.primitives import mix
from .config import Search
from .problem_options import MAX_FOLDS

_SORTING_BYTES = 40
"""Of a row that is dealt out: its class, key, place in order and fold, with what sorting takes."""

_VALUE_BYTES = 400
"""Of a value of a column: its text, in two dictionaries, its count, hash, fold and place in order."""

Key = TypeVar("Key")


def with_folds(dataset: Dataset, search: Search, seed: int, memory: int) -> tuple[Dataset, Search]:
    """Return the dataset with the folds that a search asks for, and the search with their number."""
    if not search.fold and search.cv > dataset.n_rows:
        raise UsageError(
            f"--cv {search.cv}: expected a row for each fold, found {dataset.n_rows} rows; give a smaller --cv"
        )
    if not (search.groups or search.fold or search.stratify):
        return dataset, search
    folds = np.empty(dataset.n_rows, np.uint8)
    if search.stratify:
        require(memory, {"rows that are dealt out": _SORTING_BYTES * dataset.n_rows})
        _deal(dataset, search.n_cells, seed, folds)
    else:
        column = search.groups or search.fold
        counts = _counts(dataset, column, memory)
        if search.fold:
            fold_of = _named_folds(column, counts)
            search = replace(search, cv=len(fold_of), fold_names=tuple(map(str, fold_of)))
        else:
            fold_of = _fill_folds(counts, search, seed)
            search = replace(search, cells=max(fold_of.values()) + 1 if search.cv_seeds > 1 else 0)
        start = 0
        for numbers in numbers_of_values(dataset.read_kept(column), fold_of):
            folds[start : start + numbers.size] = numbers
            start += numbers.size
    folded = dataset.reopen()
    folded.use_folds(folds)
    return folded, search


def _counts(dataset: Dataset, column: str, memory: int) -> dict[str | None, int]:
    """Count the values of a column, whose dictionary has to fit in the memory."""
    counts: dict[str | None, int] = {}
    for array in dataset.read_kept(column):
        count_values(array, counts)
        values = f"{len(counts):,} values of {column!r} so far"
        require(memory, {"folds of rows": 2 * dataset.n_rows, values: _VALUE_BYTES * len(counts)})
    return counts


def _named_folds(column: str, counts: dict[str | None, int]) -> dict[str | None, int]:
    """Number the values of a column, as text in order."""
    if None in counts:
        raise UsageError(
            f"--fold {column}: expected a fold for every row, found {counts[None]:,} rows without"
        )
    if not 2 <= len(counts) <= MAX_FOLDS:
        raise UsageError(
            f"--fold {column}: expected from 2 to {MAX_FOLDS} different values, found {len(counts):,}; --groups keeps the "
            "rows of a value together in --cv folds"
        )
    return {value: number for number, value in enumerate(sorted(counts, key=str))}


def _fill_folds(counts: dict[str | None, int], search: Search, seed: int) -> dict[str | None, int]:
    """Put every group, the largest first, into the fold with the fewest rows; rows without a group are one."""
    if len(counts) < search.cv:
        raise UsageError(
            f"--groups {search.groups}: expected at least {search.cv} groups for --cv {search.cv}, found "
            f"{len(counts)}; give a smaller --cv"
        )
    texts = np.array([hash_of(value) for value in counts], np.uint64)
    keys = mix.py_func(texts ^ random_key(seed, search.cv)).tolist()
    sizes = np.zeros(min(search.n_cells, len(counts)), np.int64)
    found = {}
    for _, (value, n_rows) in sorted(
        zip(keys, counts.items(), strict=True), key=lambda item: (-item[1][1], item[0])
    ):
        found[value] = int(sizes.argmin())
        sizes[found[value]] += n_rows
    return found


def hash_of(text: str | None) -> int:
    """Hash a text to 64 bits, the same in every process."""
    import hashlib

    digest = hashlib.blake2b(b"" if text is None else b"=" + text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _deal(dataset: Dataset, n_folds: int, seed: int, folds: np.ndarray) -> None:
    """Deal the rows of every class out, in random order, one to each fold in turn."""
    if dataset.has_targets:
        raise UsageError("--stratify is for classes, found numbers to predict; leave it out")
    label, key = np.empty(dataset.n_rows), np.empty(dataset.n_rows, np.uint64)
    for source, labels in _labels(dataset):
        label[source] = labels
        key[source] = mix.py_func(source.astype(np.uint64) ^ random_key(seed, n_folds))
    folds[np.lexsort((key, label))] = np.arange(dataset.n_rows) % n_folds


def _labels(dataset: Dataset) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for chunk in range(dataset.n_chunks):
        source, label = dataset.read_rows(chunk, ("source", "label"))
        yield source, label

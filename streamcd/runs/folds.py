"""Folds of a search other than by a hash of rows: those that a column names."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..core.errors import UsageError
from ..core.memory_budget import require
from ..dataset.dataset import Dataset
from ..dataset.kept_columns import count_values, numbers_of_values
from .config import Search
from .problem_options import MAX_FOLDS

_VALUE_BYTES = 400
"""Of a value of a column: its text, in two dictionaries, its count and its fold."""


def with_folds(dataset: Dataset, search: Search, memory: int) -> tuple[Dataset, Search]:
    """Return the dataset with the folds that a search asks for, and the search with their number."""
    if not search.fold:
        if search.cv > dataset.n_rows:
            raise UsageError(
                f"--cv {search.cv}: expected a row for each fold, found {dataset.n_rows} rows; give a smaller --cv"
            )
        return dataset, search
    counts: dict[str | None, int] = {}
    for array in dataset.read_kept(search.fold):
        count_values(array, counts)
        values = f"{len(counts):,} values of {search.fold!r} so far"
        require(memory, {"folds of rows": 2 * dataset.n_rows, values: _VALUE_BYTES * len(counts)})
    if None in counts:
        raise UsageError(
            f"--fold {search.fold}: expected a fold for every row, found {counts[None]:,} rows without"
        )
    if not 2 <= len(counts) <= MAX_FOLDS:
        raise UsageError(
            f"--fold {search.fold}: expected from 2 to {MAX_FOLDS} different values, found {len(counts):,}"
        )
    fold_of = {value: number for number, value in enumerate(sorted(counts, key=str))}
    numbers = numbers_of_values(dataset.read_kept(search.fold), fold_of)
    folded = dataset.reopen()
    folded.use_folds(np.concatenate([part.astype(np.uint8) for part in numbers]))
    return folded, replace(search, cv=len(fold_of))

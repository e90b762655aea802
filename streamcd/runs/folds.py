"""Folds of a search: by a hash of rows, or by the column of the dataset that tells them."""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

import numpy as np

from ..core.errors import UsageError
from ..core.memory_budget import require
from ..dataset.dataset import Dataset
from ..dataset.kept_columns import count_values, numbers_of_values
from .config import Search

_MOST_FOLDS = 20
"""Largest number of values of a column of folds that are a fold each; more of them are hashed to folds."""


def with_folds(dataset: Dataset, search: Search, memory: int) -> tuple[Dataset, Search]:
    """Return the dataset with the folds of a search, and the search with their number."""
    name = dataset.fold_column
    if not name:
        if search.cv > dataset.n_rows:
            raise UsageError(
                f"--cv {search.cv}: expected a row for each fold, found {dataset.n_rows} rows; give a smaller --cv"
            )
        return dataset, search
    counts: dict[str | None, int] = {}
    for array in dataset.read_kept(name):
        count_values(array, counts)
        values = f"{len(counts):,} values of {name!r} so far"
        require(memory, {"folds of rows": 2 * dataset.n_rows, values: 400 * len(counts)})
    if None in counts or len(counts) < 2:
        found = f"{counts[None]:,} rows without" if None in counts else f"{min(map(repr, counts))} alone"
        raise UsageError(f"{dataset.path}: column {name!r}: expected the folds of the rows, found {found}")
    texts = sorted(map(str, counts))
    n_folds = search.cv if len(texts) > _MOST_FOLDS else len(texts)
    fold_of: dict[str | None, int] = {text: number for number, text in enumerate(texts)}
    if len(texts) > _MOST_FOLDS:
        fold_of = {text: crc32(text.encode()) % n_folds for text in texts}
    numbers = numbers_of_values(dataset.read_kept(name), fold_of)
    folded = dataset.reopen()
    folded.use_folds(np.concatenate([part.astype(np.uint8) for part in numbers]))
    return folded, replace(search, cv=n_folds)

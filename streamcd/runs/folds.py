"""Folds of a search: by a hash of rows, or by the column of the dataset that tells them."""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

import numpy as np

from ..core.errors import UsageError
from ..core.memory_budget import require
from ..dataset.dataset import Dataset
from ..dataset.kept_columns import coded_texts
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
    distinct, n_missing = set[str](), 0
    for array in dataset.read_kept(name):
        texts, places = coded_texts(array)
        distinct.update(texts)
        n_missing += int(np.count_nonzero(places < 0))
        values = f"{len(distinct):,} values of {name!r} so far"
        require(memory, {"folds of rows": 2 * dataset.n_rows, values: 400 * len(distinct)})
    if n_missing or len(distinct) < 2:
        found = f"{n_missing:,} rows without" if n_missing else f"{min(map(repr, distinct))} alone"
        raise UsageError(f"{dataset.path}: column {name!r}: expected the folds of the rows, found {found}")
    n_folds, fold_of = len(distinct), {text: number for number, text in enumerate(sorted(distinct))}
    if n_folds > _MOST_FOLDS:
        n_folds, fold_of = search.cv, {text: crc32(text.encode()) % search.cv for text in distinct}
    parts = (coded_texts(array) for array in dataset.read_kept(name))
    folds = [np.array([fold_of[text] for text in texts], np.uint8)[places] for texts, places in parts]
    folded = dataset.reopen()
    folded.use_folds(np.concatenate(folds))
    return folded, replace(search, cv=n_folds)

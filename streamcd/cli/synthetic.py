"""Synthetic data of any size from a seed, in independent blocks.

Rows come in blocks of `BLOCK_ROWS`; a block is a function of the seed and its number, so several processes can make
parts of one data set.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from ..conversion.libsvm import write_rows

BLOCK_ROWS = 4096


@dataclass(frozen=True)
class RowPiece:
    """Consecutive rows in CSR form."""

    label: np.ndarray  # float64, shape (rows,)
    indptr: np.ndarray  # int64, shape (rows + 1,)
    feature: np.ndarray  # int64, shape (entries,); 0-based, ascending in a row
    value: np.ndarray  # float32, shape (entries,)


def draw_labels(rng: np.random.Generator, n_rows: int, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw true classes, and labels of which some are wrong: -1 and +1 for two classes, else 1 … n."""
    true = rng.integers(0, n_classes, n_rows)
    other = rng.integers(0, n_classes, n_rows)
    given = np.where(rng.random(n_rows) < 0.06, other, true)
    return true, (2.0 * given - 1.0) if n_classes == 2 else given + 1.0


# ---------------------------------------------------------------------------------------------------------------------
# Text


_WORDS_PER_ENTRY = 1.2
"""Words drawn for a distinct one: 1.13 to 1.31 by Zipf's law, for 300 to 2,000,000 features and 20 to 108 entries."""


@lru_cache(maxsize=2)
def _dictionary(n_features: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the features of the words, most frequent first, and the features' weights: minus the log of probability."""
    feature = np.random.default_rng([seed, n_features]).permutation(n_features).astype(np.int32)
    weight = np.empty(n_features, np.float32)
    weight[feature] = -np.log(np.log1p(1 / np.arange(1, n_features + 1)) / np.log(n_features + 1))
    return feature, weight


def text_block(
    number: int, *, n_features: int, entries_per_row: int, seed: int, n_classes: int = 2
) -> RowPiece:
    """Make one block of rows that look like words of text: Zipf's law, unit norm, six decimals.

    A word of frequency rank r is half of a pair (or one of a group, for more classes) each member of which is evidence for
    one class: a share of a row's words are exchanged for the member of the row's own class. A value is
    (1 + log count) · weight, before the row is scaled.
    """
    rng = np.random.default_rng([seed, number, n_features, entries_per_row, n_classes])
    true, label = draw_labels(rng, BLOCK_ROWS, n_classes)
    mean_words = _WORDS_PER_ENTRY * entries_per_row
    n_words = np.maximum(rng.uniform(0.5, 1.5, BLOCK_ROWS) * mean_words, 1).astype(np.int64)
    row = np.repeat(np.arange(BLOCK_ROWS), n_words)
    # a density of 1/x over 1 … n_features + 1
    rank = np.exp(rng.random(row.size, dtype=np.float32) * np.float32(np.log(n_features + 1))) - 1
    rank = np.minimum(rank.astype(np.int64), n_features - 1)
    # evidence for the class of 2 standard deviations: a linear model reaches 90 % on other rows, from some 10,000 on
    forced = np.flatnonzero(rng.random(row.size, dtype=np.float32) < 2.0 / np.sqrt(mean_words))
    rank[forced] = np.minimum(rank[forced] // n_classes * n_classes + true[row[forced]], n_features - 1)
    feature_of, weight = _dictionary(n_features, seed)
    key, count = np.unique(row * n_features + feature_of[rank], return_counts=True)
    row, feature = np.divmod(key, n_features)
    value = (1 + np.log(count.astype(np.float32))) * weight[feature]
    indptr = np.searchsorted(row, np.arange(BLOCK_ROWS + 1))
    norm = np.sqrt(np.add.reduceat(value * value, indptr[:-1]))
    value = np.maximum(np.round(value / norm[row], 6), np.float32(1e-6))
    return RowPiece(label, indptr, feature, value)


# ---------------------------------------------------------------------------------------------------------------------
# Whole data sets


def iterate_rows(make_block: Callable[[int], RowPiece], first_row: int, n_rows: int) -> Iterator[RowPiece]:
    """Make the rows ``first_row`` to ``first_row + n_rows`` of a data set, with the function that makes its blocks."""
    row = first_row
    end = first_row + n_rows
    while row < end:
        number, start = divmod(row, BLOCK_ROWS)
        stop = min(BLOCK_ROWS, end - number * BLOCK_ROWS)
        block = make_block(number)
        entries = slice(block.indptr[start], block.indptr[stop])
        indptr = block.indptr[start : stop + 1] - block.indptr[start]
        yield RowPiece(block.label[start:stop], indptr, block.feature[entries], block.value[entries])
        row = number * BLOCK_ROWS + stop


def write_text_like(
    path: str | os.PathLike[str],
    n_rows: int,
    n_features: int,
    entries_per_row: int,
    seed: int,
    first_row: int = 0,
) -> None:
    """Write synthetic text-like data as libsvm text.

    Parameters
    ----------
    path : path
    n_rows, n_features : int
    entries_per_row : int
        On average.
    seed : int
    first_row : int
        Write the rows from this one on: the parts that several processes write make one data set.
    """
    make_block = partial(text_block, n_features=n_features, entries_per_row=entries_per_row, seed=seed)
    with open(path, "wb", buffering=1 << 20) as file:
        for piece in iterate_rows(make_block, first_row, n_rows):
            write_rows(file, piece.label, piece.indptr, piece.feature, piece.value)

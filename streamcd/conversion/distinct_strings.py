"""The distinct strings of several arrays, sorted by their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ..dataset.arrow_columns import Strings
from ..kernels import string_order


def sorted_distinct_strings(parts: Sequence[Strings]) -> tuple[Strings, list[np.ndarray]]:
    """Sort the distinct strings of `parts` by their bytes; also returns the ranks of each part's strings among them."""
    strings = _joined(parts)
    keys, scratch = np.empty(strings.size, np.uint64), np.empty(strings.size, np.int64)
    is_new, ranks = np.empty(strings.size, np.bool_), np.empty(strings.size, np.int64)
    string_order.first_words(tuple(strings), keys)
    order = np.argsort(keys)
    string_order.sort_ties(tuple(strings), keys, order, scratch, is_new)
    ranks[order] = np.cumsum(is_new, out=scratch) - 1
    ends = np.cumsum([0, *(part.size for part in parts)])
    return strings.take(order[is_new]), [ranks[start:stop] for start, stop in pairwise(ends)]


def _joined(parts: Sequence[Strings]) -> Strings:
    lengths = [np.diff(part.offsets) for part in parts]
    data = [part.data[part.offsets[0] : part.offsets[-1]] for part in parts]
    return Strings(np.concatenate([np.empty(0, np.uint8), *data]), np.cumsum(np.concatenate([[0], *lengths])))

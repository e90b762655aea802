"""Numbers of features in the source: those from a base on, or with ``convert --compact`` any, which are kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.errors import DatasetError
from .manifests import INDICES_FILE

LOOKUP_BYTES = 24
"""Memory of an index that is kept, with that to look it up."""


class SourceIndices:
    """Indices of the source by feature, and features by index.

    Features are numbered from the index `base` on, or have the indices `kept` (int64, ascending).
    """

    def __init__(self, base: int, kept: np.ndarray | None = None) -> None:
        self.base, self.kept = base, kept

    @property
    def nbytes(self) -> int:
        return 0 if self.kept is None else LOOKUP_BYTES * self.kept.size

    def of(self, feature: np.ndarray) -> np.ndarray:
        """Return the indices of features."""
        return feature + self.base if self.kept is None else self.kept[feature]

    def features(self, index: np.ndarray) -> np.ndarray:
        """Return the features of indices; -1 for indices that are not kept."""
        if self.kept is None:
            return index - self.base
        if not self.kept.size:
            return np.full(index.shape, -1)
        place = np.minimum(np.searchsorted(self.kept, index), self.kept.size - 1)
        return np.where(self.kept[place] == index, place, -1)

    def equal(self, other: SourceIndices) -> bool:
        """Check if the features that both have are the same."""
        if self.kept is None or other.kept is None:
            return self.kept is other.kept and self.base == other.base
        return np.array_equal(self.kept, other.kept)


def indices_of(dataset: Any) -> SourceIndices:
    """Read the indices of a dataset's features in the source: 8 bytes for each where ``--compact`` has numbered them."""
    from .parquet import read_groups, reading  # pyarrow: not for a bare import

    if not dataset.manifest.get("compact"):
        return SourceIndices(dataset.index_base)
    path = dataset.file(INDICES_FILE)
    with reading(path):
        blocks = [block["index"] for block in read_groups(path)]
    kept = np.concatenate([np.empty(0, np.int64), *blocks])
    if kept.size != dataset.n_features:
        raise DatasetError(
            f"{dataset.path}: expected the indices of {dataset.n_features:,} features in the source, found {kept.size:,}; "
            f"{dataset.KIND.remedy}"
        )
    return SourceIndices(dataset.index_base, kept)

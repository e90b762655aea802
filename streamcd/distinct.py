"""Distinct labels and distinct features of the input, collected as far as they are few enough."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .errors import UsageError
from .features import sorted_distinct
from .memory import RESERVED_BYTES, format_size
from .schema import MAX_CLASSES


@dataclass
class LabelCounts:
    """Distinct labels and how often they occur, as long as there are not too many."""

    counts: dict[float, int] | None = field(default_factory=dict)

    def add(self, label: np.ndarray) -> None:
        """Take in the labels of rows."""
        if self.counts is None:
            return
        for distinct, count in zip(
            *(part.tolist() for part in np.unique(label, return_counts=True)), strict=True
        ):
            self.counts[distinct] = self.counts.get(distinct, 0) + count
        if len(self.counts) > MAX_CLASSES:
            self.counts = None

    def merge(self, other: LabelCounts) -> None:
        """Take in the labels of other rows."""
        if self.counts is None or other.counts is None:
            self.counts = None
            return
        for label, count in other.counts.items():
            self.counts[label] = self.counts.get(label, 0) + count
        if len(self.counts) > MAX_CLASSES:
            self.counts = None

    def manifest(self, known: np.ndarray | None = None) -> dict[str, Any]:
        """The manifest's ``classes`` and ``class_counts``; classes that are known besides are listed too."""
        if self.counts is None:
            return {"classes": None, "class_counts": None}
        counts = dict(self.counts)
        if known is not None:
            for label in known.tolist():
                counts.setdefault(label, 0)
        classes = sorted(counts)
        return {"classes": classes, "class_counts": [counts[label] for label in classes]}


class DistinctFeatures:
    """The indices that occur, ascending; for ``--compact``.

    Parameters
    ----------
    n_bytes : int
        Memory that their map may take.
    """

    def __init__(self, n_bytes: int) -> None:
        self._n_bytes = n_bytes
        self._sorted = np.empty(0, np.int64)
        self._new: list[np.ndarray] = []
        self._n_new = 0

    def add(self, index: np.ndarray) -> None:
        """Take in indices, in any order."""
        new = sorted_distinct(index)
        self._new.append(new)
        self._n_new += new.size
        # merged only when there are a quarter as many new ones: the work stays in proportion, and the memory small
        if self._n_new > max(self._sorted.size // 4, 1 << 16):
            self.merge()

    def merge(self) -> np.ndarray:
        """All of them so far; `UsageError` where they are too many for the memory."""
        merged = np.concatenate([self._sorted, *self._new])
        self._sorted, self._new, self._n_new = np.empty(0, np.int64), [], 0
        self._sorted = sorted_distinct(merged)
        needed = 24 * self._sorted.size  # the next merge holds the features twice, and a quarter more
        if needed > self._n_bytes:
            raise UsageError(
                f"--compact: {self._sorted.size:,} distinct features so far need {format_size(needed)} for their map, "
                f"{format_size(self._n_bytes)} of --memory are left for it; give about "
                f"{format_size(8 * needed + RESERVED_BYTES)} or convert without --compact"
            )
        return self._sorted

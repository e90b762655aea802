"""Features of the source as a dataset has them: their numbers, and the scaling of their values before they are stored.

Features are those from a base on, or with ``convert --compact`` any, whose indices are kept. Values of features are divided
by scales, rows by their norms: both keep zeros, so the data stays sparse. Centring would fill every row. Nor can the bias
replace it, although ``w·(x - mu) + b = w·x + (b - w·mu)``: the bias is penalised like the weights, so training with the
shifted bias is another problem with another optimum. So ``standard`` divides by the standard deviation and does not
subtract the mean.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..core.errors import DatasetError
from .arrow_columns import read_groups, reading
from .schema import INDICES_FILE

GROUP_FEATURES = 1 << 16
"""Rows of a row group of a dataset's tables of features and categories; fixed, so that bytes do not depend on the memory."""

LOOKUP_BYTES = 24
"""Memory of an index that is kept, with that to look it up."""


@dataclass(frozen=True, eq=False)
class SourceIndices:
    """Indices of the source by feature, and features by index.

    Features are numbered from the index `base` on, or have the indices `kept` (int64, ascending).
    """

    base: int
    kept: np.ndarray | None = None

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
        position = np.minimum(np.searchsorted(self.kept, index), self.kept.size - 1)
        return np.where(self.kept[position] == index, position, -1)

    def equal(self, other: SourceIndices) -> bool:
        """Check if the features that both have are the same."""
        if self.kept is None or other.kept is None:
            return self.kept is other.kept and self.base == other.base
        return np.array_equal(self.kept, other.kept)


def indices_of(dataset: Any) -> SourceIndices:
    """Read the indices of a dataset's features in the source: 8 bytes for each where ``--compact`` has numbered them."""
    if not dataset.manifest.get("compact"):
        return SourceIndices(dataset.index_base)
    path = dataset.file(INDICES_FILE)
    with reading(path):
        blocks = [block["index"] for block in read_groups(path)]
    indices = np.concatenate([np.empty(0, np.int64), *blocks])
    if indices.size != dataset.n_features:
        raise DatasetError(
            f"{dataset.path}: expected the indices of {dataset.n_features:,} features in the source, found "
            f"{indices.size:,}; {dataset.KIND.remedy}"
        )
    return SourceIndices(dataset.index_base, indices)


@dataclass(frozen=True)
class Scaling:
    """A transformation of rows, features first. Two are equal if they transform every row alike."""

    # each value is divided by its feature's largest magnitude, or by its standard deviation
    scale: str = "none"
    # each row is then divided by its Euclidean norm
    normalize: str = "none"
    # the divisors; None if there are none, or they were not read
    scales: np.ndarray | None = field(default=None, compare=False)
    # of the divisors, which it represents in comparisons (see `scales_digest`)
    digest: str = ""

    @property
    def changes_values(self) -> bool:
        """Check if any value may change."""
        return self.scale != "none" or self.normalize != "none"

    def options(self) -> str:
        """Return the options of ``convert`` that request it."""
        given = [f"--scale {self.scale}"] if self.scale != "none" else []
        given += [f"--normalize {self.normalize}"] if self.normalize != "none" else []
        return " ".join(given) or "no scaling"

    def apply(
        self, indptr: np.ndarray, feature: np.ndarray, value: np.ndarray, n_features: int
    ) -> np.ndarray:
        """Transform the values of a block of sparse rows, to float64; those of features from `n_features` on become 0."""
        from ..kernels.rows import CSR, scale_rows  # here, because it imports numba

        scales = np.empty(0) if self.scales is None else self.scales
        out = np.empty(feature.size)
        scale_rows(CSR(indptr, feature, value), scales, n_features, self.normalize == "l2", out)
        return out

    def to_json(self) -> dict[str, str]:
        """Describe it for manifests and models, without the divisors."""
        return {"scale": self.scale, "normalize": self.normalize, "digest": self.digest}

    @classmethod
    def from_json(cls, description: Mapping[str, Any] | None) -> Scaling:
        """Make a scaling, without its divisors, from its description; None means no scaling."""
        if description is None:
            return cls()
        return cls(description["scale"], description["normalize"], digest=description["digest"])


def scale_blocks(scales: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
    """Yield the features, ascending, whose divisor is not 1, and these."""
    for start in range(0, scales.size, GROUP_FEATURES):
        block = scales[start : start + GROUP_FEATURES]
        scaled = np.flatnonzero(block != 1.0)
        if scaled.size:
            yield {"feature": scaled + start, "scale": block[scaled]}


def scales_digest(scales: np.ndarray) -> str:
    """Compute the digest of divisors; those equal to 1 do not count, so the number of features does not either."""
    digest = hashlib.sha256()
    for block in scale_blocks(scales):
        digest.update(block["feature"].astype("<i8").tobytes())
        digest.update(block["scale"].astype("<f8").tobytes())
    return digest.hexdigest()[:32]

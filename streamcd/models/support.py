"""Support of a model with an L1 penalty: how many weights it has left, of how many features, for each vector."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from .model_file import source_labels
from .named_weights import weight_blocks
from .sparse_weights import SparseWeights


class Described(Protocol):
    """Fields that a model and its file have in common: of the penalty, and of the labels."""

    l1: float
    l2: float
    classes: Any
    label_kind: str
    class_names: list[str] | None


def vector_labels(model: Described, n_vectors: int) -> list[Any]:
    """Name the vectors of weights: by the labels that they are for, else by number."""
    labels = source_labels(np.asarray(model.classes).tolist(), model.label_kind, model.class_names)
    if n_vectors == len(labels):
        return labels
    return labels[-1:] * n_vectors if len(labels) == 2 else list(range(n_vectors))


def describe_support(model: Described, weights: np.ndarray | SparseWeights) -> dict[str, Any]:
    """Tell the strengths of an L1 penalty, and how many weights it has left; nothing of a model without one."""
    if not model.l1:
        return {}
    n_features, n_vectors = weights.shape
    n_nonzero = np.zeros(n_vectors, np.int64)
    for _, block in weight_blocks(weights):
        n_nonzero += np.count_nonzero(block, axis=0)
    return {
        "l1": model.l1,
        "l2": model.l2,
        "n_nonzero": int(n_nonzero.sum()),
        "support": [
            {"vector": vector, "n_nonzero": count, "share": count / max(n_features, 1)}
            for vector, count in zip(vector_labels(model, n_vectors), n_nonzero.tolist(), strict=True)
        ],
    }

"""Weights with their names, by class and in the source's units: all of them in blocks of features, or the largest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..core.errors import UsageError
from ..core.memory_budget import BLOCK_WEIGHTS
from ..core.setting import place_of_label
from ..dataset.schema import class_labels
from ..kernels.loss_table import LOSSES, PLANES

if TYPE_CHECKING:
    from .sparse_weights import SparseWeights


def weight_blocks(
    weights: np.ndarray | SparseWeights,
    scales: np.ndarray | None = None,
    columns: np.ndarray | None = None,
    most: int = BLOCK_WEIGHTS,
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield weights in the source's units, some features at a time: the first feature, and an array (features, columns).

    `scales` are the divisors of the features, if there are any; `columns` (vectors, columns) makes columns of the vectors.
    """
    wide = max(weights.shape[1], 1 if columns is None else columns.shape[1], 1)
    rows = max(1, most // wide)
    for start in range(0, weights.shape[0], rows):
        block = np.asarray(weights[start : start + rows])
        if scales is not None:
            block = block / scales[start : start + rows, np.newaxis]
        # + 0.0 turns the -0 of a product into 0
        yield start, block if columns is None else block @ columns + 0.0


class LargestWeights(NamedTuple):
    """Weights of the largest magnitude of every column, by column and descending; `n_nonzero` is of all, by column."""

    column: np.ndarray
    feature: np.ndarray
    weight: np.ndarray
    n_nonzero: np.ndarray


def largest_weights(blocks: Iterable[tuple[int, np.ndarray]], n_columns: int, most: int) -> LargestWeights:
    """Find at most so many weights of every column that are not 0; of equal ones the first features'."""
    column, feature, weight = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
    least, n_nonzero = np.zeros(n_columns), np.zeros(n_columns, np.int64)
    for start, block in blocks:
        n_nonzero += np.count_nonzero(block, axis=0)
        rows, columns = np.nonzero(np.abs(block) > least)
        column = np.concatenate([column, columns])
        feature = np.concatenate([feature, rows + start])
        weight = np.concatenate([weight, block[rows, columns]])
        order = np.lexsort((feature, -np.abs(weight), column))
        first = np.searchsorted(column[order], np.arange(n_columns))
        kept = order[np.arange(order.size) - first[column[order]] < most]
        column, feature, weight = column[kept], feature[kept], weight[kept]
        ends = np.cumsum(np.bincount(column, minlength=n_columns))
        full = (np.diff(ends, prepend=0) == most) & (most > 0)
        least[full] = np.abs(weight[ends[full] - 1])
    return LargestWeights(column, feature, weight, n_nonzero)


def describe_weights(model: Any, top: int = 20, label: str | float | None = None) -> dict[str, Any]:
    """List the weights of the largest magnitude for every class, in the source's units.

    Of scaled features the largest are those of the largest product with the feature's divisor (``convert --scale``): the
    weights that were trained, which can be compared with each other where the source's units differ.

    Parameters
    ----------
    model : Model
    top : int
        Weights of a class, at most.
    label : str, optional
        The class, of several.

    Returns
    -------
    dict
        ``kind`` ("weights"), ``loss``, ``C``, ``n_features``, ``weights_for`` (the values that they are for, in words), and
        ``classes``: for each ``label`` (None where numbers are predicted), ``intercept``, ``n_nonzero`` and ``weights``, a
        list of ``{feature, index (as in the source), name, weight}``, of scaled features with ``scaled_weight``. Weights of
        the smaller of two classes are those of the larger with the other sign.

    Raises
    ------
    UsageError
        If `top` is negative, or the model has no such class.
    """
    if top < 0:
        raise UsageError(f"expected a number of weights from 0 on, found {top}")
    scales, columns = model.scaling.scales, None  # by which classes' weights are made of vectors
    labels: list[Any] = [None] if model.has_targets else list(model.label_numbers())
    if model.is_binary:
        labels = labels[1:]
    elif not (model.has_targets or LOSSES[model.loss].form == PLANES or model.choice.one_vector_per_class):
        columns = model.choice.score_code()
    intercept = model.intercept if columns is None else model.intercept @ columns
    found = largest_weights(weight_blocks(model.kept_weights, columns=columns), len(labels), top)
    divisors = np.ones(found.feature.size) if scales is None else scales[found.feature]
    names, index = model.feature_names(found.feature), model.source_indices.of(found.feature)
    classes = [
        {
            "label": of,
            "intercept": float(intercept[column]),
            "n_nonzero": int(found.n_nonzero[column]),
            "weights": [
                {
                    "feature": int(found.feature[k]),
                    "index": int(index[k]),
                    "name": names[k],
                    "weight": float(found.weight[k] / divisors[k]),
                    **({} if scales is None else {"scaled_weight": float(found.weight[k])}),
                }
                for k in np.flatnonzero(found.column == column).tolist()
            ],
        }
        for column, of in enumerate(labels)
    ]
    return {
        "kind": "weights",
        "loss": model.loss,
        "C": model.C,
        "n_features": model.n_features,
        "weights_for": model.scaling.describe_weights(),
        "classes": classes if label is None else [_of_class(model, classes, label)],
    }


def _of_class(model: Any, classes: list[dict[str, Any]], label: str | float) -> dict[str, Any]:
    """Choose a class; the smaller of two that share a vector has the other's weights with the other sign."""
    if model.has_targets:
        raise UsageError(f"class: expected none, of a model of numbers, found {label!r}")
    place = place_of_label(label, model.label_texts(), "class")
    if not model.is_binary or place == 1:
        return classes[min(place, len(classes) - 1)]
    (larger,) = classes
    return {
        **larger,
        "label": model.label_numbers()[0],
        "intercept": 0.0 - larger["intercept"],
        "weights": [
            of | {key: -of[key] for key in ("weight", "scaled_weight") if key in of}
            for of in larger["weights"]
        ],
    }


# ---------------------------------------------------------------------------------------------------------------------
# What an L1 penalty leaves


def vector_labels(model: Any, n_vectors: int) -> list[Any]:
    """Name the vectors of weights of a model, or of its file: by the labels that they are for, else by number."""
    labels = class_labels(np.asarray(model.classes).tolist(), model.label_kind, model.class_names)
    if n_vectors == len(labels):
        return labels
    return labels[-1:] * n_vectors if len(labels) == 2 else list(range(n_vectors))


def describe_support(model: Any, weights: np.ndarray | SparseWeights) -> dict[str, Any]:
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

"""Weights with their names, by class and in the source's units: all of them in blocks of features, or the largest."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import UsageError, first_of
from ..core.memory_budget import BLOCK_WEIGHTS
from ..core.options import with_known_keywords
from ..kernels.loss_table import LOSSES, PLANES
from .model import Model
from .stored import load_model


def weight_blocks(
    weights: Any,
    scales: np.ndarray | None = None,
    columns: np.ndarray | None = None,
    most: int = BLOCK_WEIGHTS,
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield weights in the source's units, some features at a time: the first feature, and an array (features, columns).

    `weights` are an array or SciPy's CSR. `scales` are the divisors of the features, if there are any; `columns` (vectors,
    columns) makes columns of the vectors.
    """
    wide = max(weights.shape[1], 1 if columns is None else columns.shape[1], 1)
    rows = max(1, most // wide)
    for start in range(0, weights.shape[0], rows):
        block = weights[start : start + rows]
        block = block.toarray() if hasattr(block, "toarray") else np.asarray(block)
        if scales is not None:
            block = block / scales[start : start + rows, np.newaxis]
        # + 0.0 turns the -0 of a product into 0
        yield start, block if columns is None else block @ columns + 0.0


class LargestWeights(NamedTuple):
    """The largest weights of every column, by column and descending; `n_nonzero` is of all, by column."""

    column: np.ndarray
    row: np.ndarray
    weight: np.ndarray
    n_nonzero: np.ndarray


def largest_weights(
    blocks: Iterable[tuple[int, np.ndarray]],
    n_columns: int,
    most: int,
    factors: np.ndarray | None = None,
) -> LargestWeights:
    """Find at most so many weights of every column that are not 0, the largest by size, or by size times their row's factor.

    Of equal ones those of the first rows come first.
    """
    column = np.empty(0, np.int64)
    row = np.empty(0, np.int64)
    weight = np.empty(0)
    size = np.empty(0)
    least = np.full(n_columns, -1.0)
    n_nonzero = np.zeros(n_columns, np.int64)
    for start, block in blocks:
        n_nonzero += np.count_nonzero(block, axis=0)
        sizes = np.abs(block)
        if factors is not None:
            sizes *= factors[start : start + len(block), np.newaxis]
        rows, columns = np.nonzero((block != 0.0) & (sizes > least))
        column = np.concatenate([column, columns])
        row = np.concatenate([row, rows + start])
        weight = np.concatenate([weight, block[rows, columns]])
        size = np.concatenate([size, sizes[rows, columns]])
        order = np.lexsort((row, -size, column))
        first = np.searchsorted(column[order], np.arange(n_columns))
        kept = order[np.arange(order.size) - first[column[order]] < most]
        column = column[kept]
        row = row[kept]
        weight = weight[kept]
        size = size[kept]
        ends = np.cumsum(np.bincount(column, minlength=n_columns))
        full = (np.diff(ends, prepend=0) == most) & (most > 0)
        least[full] = size[ends[full] - 1]
    return LargestWeights(column, row, weight, n_nonzero)


@with_known_keywords
def weights(
    model: Model | str | os.PathLike[str],
    top: int = 20,
    label: str | float | None = None,
    *,
    C: float | None = None,
    l1: float | None = None,
) -> dict[str, Any]:
    """List the largest weights of a model by class, in the source's units, as ``streamcd weights --json`` prints them.

    The largest are those of the largest product with the standard deviation of the feature's values in the training rows:
    how far decisions vary by the feature, whatever its unit. Models without deviations, of LIBLINEAR's text or fitted to
    arrays, have their weights by size.

    Parameters
    ----------
    model : Model or path
    top : int
        Weights of a class, at most.
    label : str, optional
        The class, of several.
    C, l1 : float, optional
        Those of one of several models, as in `load_model`.

    Returns
    -------
    dict
        ``kind`` ("weights"), ``loss``, ``C``, ``n_features``, ``ordered_by`` (in words) and ``classes``: for each ``label``
        (None where numbers are predicted), ``intercept``, ``n_nonzero`` (of the features) and ``weights``, a list of
        ``{feature, index (as in the source), name, weight}``, with ``standardized_weight``, weight × deviation, where this
        is known. Weights of the smaller of two classes are those of the larger with the other sign.

    Raises
    ------
    UsageError
        If `top` is negative, or the model has no such class.

    Examples
    --------
    >>> len(streamcd.weights("run", 3)["classes"][0]["weights"])
    3
    """
    model = load_model(model, C, l1=l1)
    if top < 0:
        raise UsageError(f"expected a number of weights from 0 on, found {top}")
    columns = None  # by which classes' weights are made of vectors
    labels: list[Any] = [None] if model.has_targets else list(model.label_numbers())
    if model.is_binary:
        labels = labels[1:]
    elif not (model.has_targets or LOSSES[model.loss].form == PLANES or model.decoder.one_vector_per_class):
        columns = model.decoder.score_code()
    intercept = model.intercept if columns is None else model.intercept @ columns
    scales = model.scaling.scales
    deviations = model.deviations
    largest = largest_weights(weight_blocks(model.matrix, columns=columns), len(labels), top, deviations)
    feature = largest.row
    source_weight = largest.weight if scales is None else largest.weight / scales[feature]
    fields = {
        "feature": feature.tolist(),
        "index": model.source_indices.of(feature).tolist(),
        "name": model.feature_names(feature),
        "weight": source_weight.tolist(),
    }
    order = "|weight|: the model does not know the standard deviations of its features"
    if deviations is not None:
        order = "|weight × standard deviation of the feature|"
        fields["standardized_weight"] = (largest.weight * deviations[feature] + 0.0).tolist()
    listed = [dict(zip(fields, values, strict=True)) for values in zip(*fields.values(), strict=True)]
    classes = [
        {
            "label": of,
            "intercept": float(intercept[column]),
            "n_nonzero": int(largest.n_nonzero[column]),
            "weights": [listed[k] for k in np.flatnonzero(largest.column == column).tolist()],
        }
        for column, of in enumerate(labels)
    ]
    return {
        "kind": "weights",
        "loss": model.loss,
        "C": model.C,
        "n_features": model.n_features,
        "ordered_by": order + ", of rows divided by their norms" * (model.scaling.normalize != "none"),
        "classes": classes if label is None else [_of_class(model, classes, label)],
    }


def _of_class(model: Any, classes: list[dict[str, Any]], label: str | float) -> dict[str, Any]:
    """Choose a class; the smaller of two that share a vector has the other's weights with the other sign."""
    if model.has_targets:
        raise UsageError(f"class: expected none, of a model of numbers, found {label!r}")
    texts = model.label_texts()
    try:
        # a number may be written +1
        index = (
            texts.index(str(label)) if str(label) in texts else list(map(float, texts)).index(float(label))
        )
    except ValueError:
        raise UsageError(f"class: expected one of {first_of(texts)}, found {label!r}") from None
    if not model.is_binary or index == 1:
        return classes[min(index, len(classes) - 1)]
    (larger,) = classes
    return {
        **larger,
        "label": model.label_numbers()[0],
        "intercept": 0.0 - larger["intercept"],
        "weights": [
            of | {key: 0.0 - of[key] for key in ("weight", "standardized_weight") if key in of}
            for of in larger["weights"]
        ],
    }

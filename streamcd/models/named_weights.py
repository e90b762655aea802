"""Weights with their names, by class and in the source's units: all of them in blocks of features, or the largest."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

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


def largest_weights(
    blocks: Iterable[tuple[int, np.ndarray]],
    n_columns: int,
    most: int,
    factors: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Find at most so many weights of every column that are not 0, the largest by size, or by size times their row's factor.

    Of equal ones those of the first rows come first. Returns column, row, weight and size of each, shape (4, weights), by
    column and descending, and the number of all weights of every column that are not 0.
    """
    largest = np.empty((4, 0))
    least = np.full(n_columns, -1.0)
    n_nonzero = np.zeros(n_columns, np.int64)
    for start, block in blocks:
        n_nonzero += np.count_nonzero(block, axis=0)
        sizes = np.abs(block)
        if factors is not None:
            sizes *= factors[start : start + len(block), np.newaxis]
        rows, columns = np.nonzero((block != 0.0) & (sizes > least))
        more = np.array([columns, rows + start, block[rows, columns], sizes[rows, columns]])
        largest = np.hstack([largest, more])
        largest = largest[:, np.lexsort((largest[1], -largest[3], largest[0]))]
        column = largest[0].astype(np.int64)
        first = np.searchsorted(column, np.arange(n_columns))
        largest = largest[:, np.arange(column.size) - first[column] < most]
        ends = np.cumsum(np.bincount(largest[0].astype(np.int64), minlength=n_columns))
        full = (np.diff(ends, prepend=0) == most) & (most > 0)
        least[full] = largest[3, ends[full] - 1]
    return largest, n_nonzero


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
    labels: list[Any] = [None] if model.has_targets else model.record.labels
    chosen = [1] if model.is_binary else list(range(len(labels)))
    if label is not None:
        chosen = [_class_index(model, label)]
    matrix = model.matrix
    intercept = model.intercept
    columns = None  # by which classes' weights are made of vectors
    if model.is_binary or not (
        model.has_targets or LOSSES[model.loss].form == PLANES or model.decoder.one_vector_per_class
    ):
        columns = model.decoder.score_code()[:, chosen]
        intercept = intercept @ columns + 0.0
    elif label is not None:
        matrix = matrix[:, chosen]
        intercept = intercept[chosen]
    scales = model.scaling.scales
    deviations = model.deviations
    largest, n_nonzero = largest_weights(weight_blocks(matrix, columns=columns), len(chosen), top, deviations)
    order = "|weight|: the model does not know the standard deviations of its features"
    if deviations is not None:
        order = "|weight × standard deviation of the feature|"
    classes = []
    for column, index in enumerate(chosen):
        _, row, weight, _ = largest[:, largest[0] == column]
        feature = row.astype(np.int64)
        fields = {
            "feature": feature.tolist(),
            "index": model.source_indices.of(feature).tolist(),
            "name": model.feature_names(feature),
            "weight": (weight if scales is None else weight / scales[feature]).tolist(),
        }
        if deviations is not None:
            fields["standardized_weight"] = (weight * deviations[feature] + 0.0).tolist()
        classes.append(
            {
                "label": labels[index],
                "intercept": float(intercept[column]),
                "n_nonzero": int(n_nonzero[column]),
                "weights": [dict(zip(fields, of, strict=True)) for of in zip(*fields.values(), strict=True)],
            }
        )
    return {
        "kind": "weights",
        "loss": model.loss,
        "C": model.C,
        "n_features": model.n_features,
        "ordered_by": order + ", of rows divided by their norms" * (model.scaling.normalize != "none"),
        "classes": classes,
    }


def _class_index(model: Model, label: str | float) -> int:
    """Find a class by its label, a number also in another form, such as +1."""
    texts = model.label_texts()
    try:
        if str(label) in texts:
            return texts.index(str(label))
        return [float(text) for text in texts].index(float(label))
    except ValueError:
        expected = "none, of a model of numbers" if model.has_targets else f"one of {first_of(texts)}"
        raise UsageError(f"class: expected {expected}, found {label!r}") from None

"""A model as an ONNX graph, in double precision: from a matrix or a table's columns to labels, probabilities, decisions.

The operators are ONNX's own of opset 17, and of its domain for machine learning one: the encoder of strings. `onnx_text`
tells which more text needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..core.errors import ModelError
from ..kernels.loss_table import CLASSES, PLANES, form_of
from .encoding import Column, Encoding
from .model import Model
from .onnx_builder import Graph
from .onnx_text import token_counts
from .text_encoder import Tokens, tokens_of

_LARGEST = (1 << 31) - (1 << 20)  # bytes of a protobuf message, but for the graph's nodes


def onnx_model(model: Model) -> bytes:
    """Make the ONNX model.

    Its inputs are the matrix ``X`` (rows, n_features) of float32, or for a model with a table's encoding a column (rows, 1)
    each: numbers of float64 (booleans are 0 and 1), also those that are categories, where NaN is missing, and strings, where
    "" is missing unless it is a category; for a column of text it is one without words. Its outputs are ``label`` (rows,),
    where the model has them ``probabilities`` (rows, n_classes), and ``decision``, as by `Model.decision_function`; of a
    model of targets, ``prediction`` (rows,).

    Raises
    ------
    UsageError
        Where the package onnx is not installed.
    ModelError
        If the table has columns other than numbers, categories and text with a vocabulary, or the model is too large for the
        format.
    """
    n_bytes = 8 * model.n_features * model.n_vectors + (
        0 if model.encoding is None else model.encoding.nbytes
    )
    if n_bytes > _LARGEST:
        raise ModelError(
            f"ONNX holds 2 GB at most, the model has {n_bytes:,} bytes; export it to .parquet or .json, or train with "
            "--penalty l1 for fewer weights"
        )
    names = ["X"] if model.encoding is None else model.encoding.names
    graph = Graph(names)
    product, squares = (
        _matrix(graph, model) if model.encoding is None else _columns(graph, model, model.encoding)
    )
    if squares:
        norms = graph.or_one(graph.add("Sqrt", _sum(graph, squares)))
        product = graph.add("Div", product, norms)
    decisions = graph.add("Add", product, graph.constant(model.intercept))
    _outputs(graph, model, decisions)
    return graph.serialised(f"linear model of {model.loss}")


# ---------------------------------------------------------------------------------------------------------------------
# From inputs to decisions


def _matrix(graph: Graph, model: Model) -> tuple[str, list[str]]:
    """Multiply the rows of a matrix with the weights; also returns their sums of squares, where norms are needed."""
    rows = graph.to_double(graph.input("X", np.float32, model.n_features))
    return _product(graph, rows, _Scaled(model), slice(0, model.n_features))


class _Scaled:
    """Weights in the source's units, and what the square of a value counts in its row's norm; none without norms."""

    def __init__(self, model: Model) -> None:
        scales = model.scaling.scales
        self.weights = model.source_weights
        self.squares = None
        if model.scaling.normalize != "none":
            self.squares = np.ones(model.n_features) if scales is None else scales**-2.0


def _product(graph: Graph, values: str, scaled: _Scaled, features: Any) -> tuple[str, list[str]]:
    product = graph.add("MatMul", values, graph.constant(scaled.weights[features]))
    if scaled.squares is None:
        return product, []
    squares = graph.constant(scaled.squares[features][:, np.newaxis])
    return product, [graph.add("MatMul", graph.add("Mul", values, values), squares)]


def _sum(graph: Graph, values: list[str]) -> str:
    total = values[0]
    for value in values[1:]:
        total = graph.add("Add", total, value)
    return total


def _columns(graph: Graph, model: Model, encoding: Encoding) -> tuple[str, list[str]]:
    """Sum up the weights of a table's columns, as `_matrix` does."""
    starts, scaled = encoding.first_features(), _Scaled(model)
    products: list[str] = []
    squares: list[str] = []
    multiplied: list[tuple[str, np.ndarray]] = []
    numbers: list[tuple[str, int, int]] = []
    indicators, before = encoding.indicator_features(), 0
    for number, (column, start) in enumerate(zip(encoding.columns, starts.tolist(), strict=True)):
        if column.kind == "number" and column.form != "seconds":
            numbers.append((graph.input(column.name, np.float64, 1), start, indicators.get(number, -1)))
        elif column.name in {name for name, *_ in numbers}:
            continue  # a missing number's feature, which was added
        elif column.kind == "category" and not column.form:
            places = _category_places(graph, encoding, column, before)
            own = slice(start, start + column.n_features)
            products.append(_gathered(graph, scaled.weights[own], places))
            if scaled.squares is not None:
                squares.append(_gathered(graph, scaled.squares[own, np.newaxis], places))
        elif column.kind == "category" and column.form == "numbers":
            values = _known_numbers(graph, encoding, column, before)
            multiplied.append((values, np.arange(start, start + column.n_features)))
        elif column.kind == "text" and not column.bits:
            if not column.added and (tokens := tokens_of(encoding, number)).texts:
                multiplied.append((_token_values(graph, column, tokens), tokens.features))
        else:
            raise _refused(column)
        before += column.n_categories
    if numbers:
        multiplied += _numbers(graph, encoding, numbers)
    for values, features in multiplied:
        product, of_values = _product(graph, values, scaled, features)
        products.append(product)
        squares += of_values
    return _sum(graph, products), squares


def _refused(column: Column) -> ModelError:
    is_hashed = column.kind == "hashed" or column.bits
    kind = f"hashed {column.kind}" if column.bits else column.form or column.kind
    advice = "convert without --hash, or" if is_hashed else "export to .json or .csv, or"
    return ModelError(
        f"ONNX: expected columns of numbers, categories and text with a vocabulary, found {column.name!r} ({kind}); "
        f"{advice} leave the column out with --drop"
    )


def _token_values(graph: Graph, column: Column, tokens: Tokens) -> str:
    """Make the values of a column of text, as `text_encoder.TokenWeights`."""
    counts = token_counts(graph, graph.input(column.name, np.str_, 1), tokens.texts, column.ngrams[1])
    if tokens.weights is None:
        return counts
    weighed = graph.add("Mul", counts, graph.constant(tokens.weights))
    return graph.add(
        "Div", weighed, graph.or_one(graph.add("ReduceL2", weighed, graph.constant(np.array([1]))))
    )


def _numbers(
    graph: Graph, encoding: Encoding, numbers: list[tuple[str, int, int]]
) -> Iterable[tuple[str, np.ndarray]]:
    """Yield the values of all columns of numbers with their features, and what marks the missing ones."""
    features = np.array([feature for _, feature, _ in numbers])
    values = graph.add("Concat", *(name for name, *_ in numbers), axis=1)
    if encoding.missing == "error":
        yield values, features
        return
    missing = graph.add("IsNaN", values)
    yield graph.add("Where", missing, graph.constant(np.float64(0.0)), values), features
    indicators = np.array([indicator for *_, indicator in numbers])
    indicated = np.flatnonzero(indicators >= 0)
    if indicated.size:
        marks = graph.add("Gather", graph.to_double(missing), graph.constant(indicated), axis=1)
        yield marks, indicators[indicated]


def _category_places(graph: Graph, encoding: Encoding, column: Column, before: int) -> str:
    """Number the strings of a column: a category, missing, or, beyond the column's features, unknown."""
    assert encoding.categories is not None
    texts = [encoding.categories.text(before + k) for k in range(column.n_categories)]
    unknown = column.n_features
    places = {"": len(texts)} | {text: place for place, text in enumerate(texts)}
    return graph.add(
        "LabelEncoder",
        graph.input(column.name, np.str_, 1),
        domain="ai.onnx.ml",
        keys_strings=list(places),
        values_int64s=list(places.values()),
        default_int64=unknown,
    )


def _known_numbers(graph: Graph, encoding: Encoding, column: Column, before: int) -> str:
    """Make the values of a column whose categories are numbers: 1 for the row's own, or where it is missing."""
    assert encoding.categories is not None
    value = graph.input(column.name, np.float64, 1)
    known = [float(encoding.categories.text(before + k)) for k in range(column.n_categories)]
    marks = [graph.add("Equal", value, graph.constant(np.array(known, np.float64)))]
    if column.indicated:
        marks.append(graph.add("IsNaN", value))
    return graph.to_double(graph.add("Concat", *marks, axis=1))


def _gathered(graph: Graph, table: np.ndarray, places: str) -> str:
    """Take rows of a table by the numbers of strings; unknown ones have a row of zeros."""
    rows = graph.constant(np.vstack([table, np.zeros((1, table.shape[1]))]))
    return graph.add("Gather", rows, graph.column(places))


# ---------------------------------------------------------------------------------------------------------------------
# From decisions to outputs


def _outputs(graph: Graph, model: Model, decisions: str) -> None:
    if model.has_targets:
        graph.output("prediction", graph.column(decisions), np.float64, None)
        return
    labels = np.array(model.label_numbers())
    if labels.dtype.kind == "U":
        labels = labels.astype(object)
    kind = np.str_ if labels.dtype == object else labels.dtype
    binary = model.is_binary
    scores = graph.column(decisions) if binary else _scores(graph, model, decisions)
    graph.output("label", _labels(graph, model, scores, labels), kind, None)
    if model.has_probabilities:
        graph.output("probabilities", _probabilities(graph, model, decisions), np.float64, model.n_classes)
    graph.output("decision", scores, np.float64, None if binary else model.n_classes)


def _scores(graph: Graph, model: Model, decisions: str) -> str:
    """Make the scores of classes, as `scoring.ClassChoice.scores`."""
    if form_of(model.loss) == PLANES:
        norms = model.choice.plane_norms
        inverse = np.divide(1.0, norms, out=np.zeros(norms.size), where=norms > 0)
        distances = graph.add("Mul", graph.add("Abs", decisions), graph.constant(inverse))
        far = graph.constant(np.where(norms > 0, 0.0, np.inf))
        return graph.add("Neg", graph.add("Add", distances, far))
    if model.choice.one_vector_per_class:
        return decisions
    return graph.add("MatMul", decisions, graph.constant(model.choice.score_code()))


def _labels(graph: Graph, model: Model, scores: str, labels: np.ndarray) -> str:
    """Choose labels by scores, ties in the model's order."""
    assert model.tie_order is not None
    if model.is_binary:
        above = "GreaterOrEqual" if model.tie_order[0] == 1 else "Greater"
        positive = graph.add(above, scores, graph.constant(np.float64(0.0)))
        place = graph.add("Cast", positive, to=7)  # int64
    else:
        ordered = graph.add("Gather", scores, graph.constant(model.tie_order), axis=1)
        place, labels = graph.add("ArgMax", ordered, axis=1, keepdims=0), labels[model.tie_order]
    return graph.add("Gather", graph.constant(labels), place)


def _probabilities(graph: Graph, model: Model, decisions: str) -> str:
    """Make the probabilities of classes, as `Model.log_probabilities`."""
    if form_of(model.loss) == CLASSES and model.sigmoids is None:
        return graph.add("Softmax", decisions, axis=1)
    slopes, offsets = (-1.0, 0.0) if model.sigmoids is None else model.sigmoids
    scaled = graph.add(
        "Add",
        graph.add("Mul", decisions, graph.constant(np.float64(slopes))),
        graph.constant(np.float64(offsets)),
    )
    if model.is_binary:
        both = graph.add("Concat", graph.add("Neg", scaled), scaled, axis=1)
        return graph.add("Sigmoid", graph.add("Neg", both))
    return graph.add("Softmax", _log_sigmoid(graph, graph.add("Neg", scaled)), axis=1)


def _log_sigmoid(graph: Graph, value: str) -> str:
    """Make ``log(1/(1 + exp(-z)))`` as ``min(z, 0) - log(1 + exp(-|z|))``, which neither overflows nor loses digits."""
    small = graph.add("Exp", graph.add("Neg", graph.add("Abs", value)))
    logarithm = graph.add("Log", graph.add("Add", graph.constant(np.float64(1.0)), small))
    return graph.add("Sub", graph.add("Min", value, graph.constant(np.float64(0.0))), logarithm)

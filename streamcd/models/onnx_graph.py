"""A model as an ONNX graph, in double precision: from a matrix or a table's columns to labels, probabilities, decisions.

The operators are ONNX's own of opset 17, and of its domain for machine learning one: the encoder of strings.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .._version import __version__
from ..core.errors import ModelError, UsageError
from ..kernels.loss_table import CLASSES, PLANES, form_of
from .encoding import Column, Encoding
from .model import Model

_OPSET, _OPSET_OF_LEARNING, _FORMAT = 17, 3, 8  # read by runtimes from 2022 on
_LARGEST = (1 << 31) - (1 << 20)  # bytes of a protobuf message, but for the graph's nodes


def onnx_model(model: Model) -> bytes:
    """Make the ONNX model.

    Its inputs are the matrix ``X`` (rows, n_features) of float32, or for a model with a table's encoding a column (rows, 1)
    each: numbers of float64 (booleans are 0 and 1), where NaN is missing, and strings, where "" is missing unless it is a
    category. Its outputs are ``label`` (rows,), where the model has them ``probabilities`` (rows, n_classes), and
    ``decision``, as by `Model.decision_function`; of a model of targets, ``prediction`` (rows,).

    Raises
    ------
    UsageError
        Where the package onnx is not installed.
    ModelError
        If the table has columns other than numbers and categories, or the model is too large for the format.
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
    graph = _Graph(names)
    product, squares = (
        _matrix(graph, model) if model.encoding is None else _columns(graph, model, model.encoding)
    )
    if squares:
        product = graph.add("Div", product, _norm(graph, squares))
    decisions = graph.add("Add", product, graph.constant(model.intercept))
    _outputs(graph, model, decisions)
    return graph.serialised(f"linear model of {model.loss}")


class _Graph:
    """A graph being made: values have names that no input has."""

    def __init__(self, inputs: Iterable[str]) -> None:
        try:
            import onnx
        except ImportError:
            raise UsageError(
                "an ONNX file needs the package onnx; install it by: pip install 'streamcd[onnx]'"
            ) from None
        self._onnx, self._taken = onnx, set(inputs)
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def _named(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def input(self, name: str, dtype: Any, width: int) -> str:
        if any(known.name == name for known in self._inputs):
            return name
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._inputs.append(self._onnx.helper.make_tensor_value_info(name, kind, ["rows", width]))
        return name

    def constant(self, values: Any) -> str:
        array = np.asarray(values)
        name = self._named(f"constant_{len(self._constants)}")
        self._constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def add(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node, and return its value's name."""
        name = self._named(f"value_{len(self._nodes)}")
        self._nodes.append(self._onnx.helper.make_node(operator, inputs, [name], domain=domain, **attributes))
        return name

    def to_double(self, value: str) -> str:
        return self.add("Cast", value, to=self._onnx.TensorProto.DOUBLE)

    def column(self, value: str) -> str:
        """Make a vector of a matrix of one column."""
        return self.add("Squeeze", value, self.constant(np.array([1])))

    def output(self, name: str, value: str, dtype: Any, width: int | None) -> None:
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        shape: list[str | int | None] = ["rows"] if width is None else ["rows", width]
        name = self._named(name)
        self._nodes.append(self._onnx.helper.make_node("Identity", [value], [name]))
        self._outputs.append(self._onnx.helper.make_tensor_value_info(name, kind, shape))

    def serialised(self, about: str) -> bytes:
        helper = self._onnx.helper
        graph = helper.make_graph(
            self._nodes, "streamcd", self._inputs, self._outputs, self._constants, doc_string=about
        )
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("ai.onnx.ml", _OPSET_OF_LEARNING)]
        made = helper.make_model(
            graph, opset_imports=opsets, producer_name="streamcd", producer_version=__version__
        )
        made.ir_version = _FORMAT
        self._onnx.checker.check_model(made)
        content: bytes = made.SerializeToString()
        return content


# ---------------------------------------------------------------------------------------------------------------------
# From inputs to decisions


def _matrix(graph: _Graph, model: Model) -> tuple[str, list[str]]:
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


def _product(graph: _Graph, values: str, scaled: _Scaled, features: Any) -> tuple[str, list[str]]:
    product = graph.add("MatMul", values, graph.constant(scaled.weights[features]))
    if scaled.squares is None:
        return product, []
    squares = graph.constant(scaled.squares[features][:, np.newaxis])
    return product, [graph.add("MatMul", graph.add("Mul", values, values), squares)]


def _norm(graph: _Graph, squares: list[str]) -> str:
    """Return the norms of rows, 1 of a row of zeros."""
    norm = graph.add("Sqrt", _sum(graph, squares))
    one = graph.constant(np.float64(1.0))
    return graph.add("Where", graph.add("Greater", norm, graph.constant(np.float64(0.0))), norm, one)


def _sum(graph: _Graph, values: list[str]) -> str:
    total = values[0]
    for value in values[1:]:
        total = graph.add("Add", total, value)
    return total


def _columns(graph: _Graph, model: Model, encoding: Encoding) -> tuple[str, list[str]]:
    """Sum up the weights of a table's columns, as `_matrix` does."""
    starts, scaled = encoding.first_features(), _Scaled(model)
    products: list[str] = []
    squares: list[str] = []
    numbers: list[tuple[str, int, bool]] = []
    before = 0
    for column, start in zip(encoding.columns, starts.tolist(), strict=False):
        if column.kind == "number" and column.form != "seconds":
            numbers.append((graph.input(column.name, np.float64, 1), start, column.indicated))
        elif column.kind == "category" and not column.form:
            places = _category_places(graph, encoding, column, before)
            own = slice(start, start + column.n_features)
            products.append(_gathered(graph, scaled.weights[own], places))
            if scaled.squares is not None:
                squares.append(_gathered(graph, scaled.squares[own, np.newaxis], places))
        elif column.kind == "text":
            raise ModelError(
                f"ONNX: expected columns of numbers and categories, found {column.name!r} (text): ONNX's operators cut "
                "words and make lower case by other tables of characters; take Model.to_sklearn, or export to .json"
            )
        else:
            advice = (
                "convert without --hash, or" if column.kind == "hashed" else "export to .json or .csv, or"
            )
            raise ModelError(
                f"ONNX: expected columns of numbers and categories, found {column.name!r} ({column.form or column.kind}); "
                f"{advice} leave the column out with --drop"
            )
        before += column.n_categories
    if numbers:
        for values, features in _numbers(graph, encoding, numbers):
            product, of_values = _product(graph, values, scaled, features)
            products.append(product)
            squares += of_values
    return _sum(graph, products), squares


def _numbers(
    graph: _Graph, encoding: Encoding, numbers: list[tuple[str, int, bool]]
) -> Iterable[tuple[str, np.ndarray]]:
    """Yield the values of all columns of numbers with their features, and what marks the missing ones."""
    features = np.array([feature for _, feature, _ in numbers])
    values = graph.add("Concat", *(name for name, *_ in numbers), axis=1)
    if encoding.missing == "error":
        yield values, features
        return
    missing = graph.add("IsNaN", values)
    yield graph.add("Where", missing, graph.constant(np.float64(0.0)), values), features
    indicated = np.flatnonzero([indicated for *_, indicated in numbers])
    if indicated.size:
        marks = graph.add("Gather", graph.to_double(missing), graph.constant(indicated), axis=1)
        yield marks, features[indicated] + 1


def _category_places(graph: _Graph, encoding: Encoding, column: Column, before: int) -> str:
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


def _gathered(graph: _Graph, table: np.ndarray, places: str) -> str:
    """Take rows of a table by the numbers of strings; unknown ones have a row of zeros."""
    rows = graph.constant(np.vstack([table, np.zeros((1, table.shape[1]))]))
    return graph.add("Gather", rows, graph.column(places))


# ---------------------------------------------------------------------------------------------------------------------
# From decisions to outputs


def _outputs(graph: _Graph, model: Model, decisions: str) -> None:
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


def _scores(graph: _Graph, model: Model, decisions: str) -> str:
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


def _labels(graph: _Graph, model: Model, scores: str, labels: np.ndarray) -> str:
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


def _probabilities(graph: _Graph, model: Model, decisions: str) -> str:
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


def _log_sigmoid(graph: _Graph, value: str) -> str:
    """Make ``log(1/(1 + exp(-z)))`` as ``min(z, 0) - log(1 + exp(-|z|))``, which neither overflows nor loses digits."""
    small = graph.add("Exp", graph.add("Neg", graph.add("Abs", value)))
    logarithm = graph.add("Log", graph.add("Add", graph.constant(np.float64(1.0)), small))
    return graph.add("Sub", graph.add("Min", value, graph.constant(np.float64(0.0))), logarithm)

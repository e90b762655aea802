"""A trained linear model, and its predictions.

Decisions are ``h(x) = x W + intercept``, with a column of ``W`` per vector (lane). The code matrix ``M`` (classes ×
vectors, entries −1, 0, +1) holds the sign of each class for each vector. With two classes there is one vector, positive for
the larger label; with more, the class with the largest ``h(x)·M_r`` is predicted. A twin model has a plane per class, and
predicts the class of the nearest plane: the smallest ``|h_r(x)| / ‖w_r‖``, the norm without the bias's entry.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..core.errors import ModelError
from ..core.files import Count, Kind, Structure, metadata_text, read_metadata, replacing
from ..core.parallel import Threads
from ..core.setting import default_code
from ..core.storage import local_path
from ..dataset.arrow_columns import file_checksum
from ..dataset.dataset import class_labels
from ..dataset.schema import ScalingRecord, check_class_names
from ..dataset.source_features import Scaling, SourceIndices
from ..kernels.loss_table import LOSSES, Loss, row_loss
from .encoding import CATEGORIES_FILE, Encoding
from .matrix_encoder import matrix_rows, number_matrix
from .scoring import ClassDecoder, decisions_of


class ModelFile(Structure, kw_only=True):
    """Content of ``model.json``: all of a model but its large arrays; see `Model`.

    `scaling`, `encoding`, and the checksums of the files beside it are set when these are written.
    """

    loss: str
    C: float | None
    n_features: Count
    intercept: list[float]
    classes: list[float]
    code: list[list[int]] | None = None  # None: that of `default_code`
    tie_order: list[Count] | None = None  # None: ascending
    method: str = "dual"
    bias: float = -1.0
    free_bias: bool = False
    l1: float = 0.0
    l2: float = 1.0
    index_base: Literal[0, 1] = 1
    label_kind: str = "integer"
    class_names: list[str] | None = None
    class_weight: dict[float, float] = {}  # noqa: RUF012
    ridge: float = 1.0
    slack: str = "hinge"
    parameter: float | None = None
    fingerprint: str = ""
    versions: dict[str, str] = {}  # noqa: RUF012
    certificate: dict[str, float | bool | list[int] | None] = {}  # noqa: RUF012
    scaling: ScalingRecord | None = None
    encoding: Encoding | None = None
    checksums: dict[str, str] = {}  # noqa: RUF012

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise ValueError("an unknown loss")
        if not all(map(math.isfinite, (self.bias, self.C or 0.0, *self.intercept, *self.classes))):
            raise ValueError("a number that is not finite")
        if sorted(set(self.classes)) != self.classes:
            raise ValueError("classes that do not ascend")
        if self.tie_order is not None and sorted(self.tie_order) != [*range(len(self.classes))]:
            raise ValueError("an order of other classes")
        if any(len(row) != len(self.intercept) for row in self.code or ()):
            raise ValueError("a code of other vectors than the intercept's")
        if self.class_names is not None:
            check_class_names(self.class_names, self.classes)

    @property
    def labels(self) -> list[Any]:
        """All labels, ascending, in the source's type: integers, decimal numbers or names."""
        return class_labels(self.classes, self.label_kind, self.class_names)

    @property
    def vector_labels(self) -> list[Any]:
        """Names of the vectors of weights: the labels that they are for, else numbers."""
        n_vectors = len(self.intercept)
        if n_vectors == len(self.classes):
            return self.labels
        return self.labels[-1:] * n_vectors if len(self.classes) == 2 else list(range(n_vectors))


SPARSE_FILE = "weights.npz"
"""File of weights few of which are not 0: SciPy's of a matrix in CSC."""

MODEL_FILES = {
    "weights.npy",
    SPARSE_FILE,
    "scaling.npy",
    "indices.npy",
    "deviations.npy",
    CATEGORIES_FILE,
}
"""Files of a model beside ``model.json``, of which any may be absent but for one of the first two."""

MODEL = Kind(
    "streamcd-model",
    5,
    ModelFile,
    ModelError,
    "restore it from a copy, or train again",
)


def stored_code(loss: str, code: np.ndarray) -> list[list[int]] | None:
    """Return a code for a model's file, None for that of `default_code`: with many classes it would fill the file."""
    if len(code) > 2:
        default = default_code(LOSSES[loss].form, len(code))
        # row by row: with many classes these may be views whose full arrays would not fit in memory
        if code.shape == default.shape and all(map(np.array_equal, code, default)):
            return None
    return code.astype(np.int8, copy=False).tolist()


def sparse_weights(blocks: Callable[[], Iterable[np.ndarray]], shape: tuple[int, int]) -> Any:
    """Make SciPy's CSR of weights from blocks of their rows, read twice; None where it takes more than a quarter.

    In memory, where 12 bytes are taken for each that is not 0, that is three quarters at most.
    """
    n_bytes = 8 * shape[0] * shape[1]
    n_nonzero = 0
    if n_bytes < 1 << 16:
        return None
    for block in blocks():
        n_nonzero += int(np.count_nonzero(block))
        if 12 * n_nonzero > n_bytes // 4:
            return None
    import scipy.sparse as sp  # where there are such weights: a training has no memory for it before its end

    parts = [sp.csr_array((0, shape[1]))]
    parts += map(sp.csr_array, blocks())
    return sp.vstack(parts, format="csr")


class Model:
    """A linear classifier.

    Parameters
    ----------
    record : ModelFile
        All but large arrays; its fields are attributes of the model.
    weights : array or SciPy sparse matrix, shape (n_features, n_vectors)
    scaling, encoding, indices, deviations
        As the attributes.

    Attributes
    ----------
    weights : ndarray of float64, shape (n_features, n_vectors)
        Of the values as they were scaled for the training (see `scaling`); `source_weights` are in the source's units. Where
        few are not 0, a model on disk has these alone, and the array is made when it is first asked for.
    intercept : ndarray of float64, shape (n_vectors,)
        Weight of the constant feature times its value, `bias`.
    classes : ndarray of float64, shape (n_classes,)
        Labels, ascending.
    code : ndarray of int8, shape (n_classes, n_vectors)
        Entries −1, 0, +1; ``[[-1], [1]]`` for two classes, the identity for Crammer–Singer.
    loss : {"squared_hinge", "hinge", "log_loss", "crammer_singer", "multinomial", "twin"}
    C : float or None
        None if unknown (LIBLINEAR's format does not hold it).
    method : str
        Method of training; it has no influence on predictions.
    bias : float
        Value of the constant feature; negative for none.
    index_base : int
        First feature index of the source.
    label_kind : {"integer", "decimal"}
    class_weight : dict of float to float
        Factors on the cost of a label's rows.
    ridge, slack : float, str
        Parameters of twin planes: r in ``r/2 ‖w‖²``, and the loss of the rows that a plane keeps at a distance.
    tie_order : ndarray of int64, shape (n_classes,)
        Indices into `classes` in order of preference for equal decisions, for example of an empty row.
    fingerprint : str
        Fingerprint of the training dataset; empty if there was none.
    versions, certificate : dict
        Versions of libraries; gap and objectives at the end of training. For information only.
    free_bias : bool
        Whether the bias's weight was left out of the penalty.
    l1, l2 : float
        Strengths of the penalty ``l1 Σ|w| + l2/2 ‖w‖²``.
    scaling : Scaling
        Transformation of the training values, which predictions apply to theirs.
    class_names : list of str or None
        Names of the classes, which are then numbered from 0; None if labels are numbers.
    encoding : Encoding or None
        Mapping of the training table's columns to features; None if the data did not come from a table.
    parameter : float or None
        Parameter of the loss, if it has one.
    indices : ndarray of int64, shape (n_features,), or None
        Index of every feature in the source, where the training dataset numbers those that occur (``convert --compact``);
        None where they are numbered from `index_base` on.
    deviations : ndarray of float64, shape (n_features,), or None
        Standard deviations of the features over the training rows, as these were scaled; None where they are not known:
        after a fit to arrays, of LIBLINEAR's text. Where few weights are not 0, a model on disk has those of their features.

    Examples
    --------
    >>> model = streamcd.load_model("run")
    >>> model.weights.shape[1], model.label_texts(), model.C
    (1, ['-1', '1'], 1.0)
    """

    def __init__(
        self,
        record: ModelFile,
        weights: Any,
        *,
        scaling: Scaling | None = None,
        encoding: Encoding | None = None,
        indices: np.ndarray | None = None,
        deviations: np.ndarray | None = None,
    ) -> None:
        self.record = record
        self.scaling = scaling or Scaling()
        self.encoding = encoding
        self.indices = indices
        self.source_indices = SourceIndices(record.index_base, indices)
        self.deviations = deviations
        self.is_sparse = hasattr(weights, "tocsr")
        self.matrix: Any  # the weights, or SciPy's CSR of them
        if self.is_sparse:
            self.matrix = weights.tocsr()
            # as kernels take them, also where SciPy has 64 bits for the number of features
            self.matrix.indptr = self.matrix.indptr.astype(np.int32, copy=False)
            self.matrix.indices = self.matrix.indices.astype(np.int32, copy=False)
        else:
            self.matrix = np.ascontiguousarray(weights, dtype=np.float64)
        self.intercept = np.array(record.intercept)
        self.n_vectors = self.intercept.size
        self.classes = np.array(record.classes)
        self.n_classes = self.classes.size
        self.has_targets = LOSSES[record.loss].has_targets
        if record.code is None:
            self.code = default_code(LOSSES[record.loss].form, self.n_classes)
        else:
            self.code = np.array(record.code, dtype=np.int8).reshape(-1, self.n_vectors)
        self.tie_order = np.arange(self.n_classes)
        if record.tie_order is not None:
            self.tie_order = np.array(record.tie_order)
        self.is_binary = self.code.shape == (2, 1)  # a single vector for two classes
        n_features = record.n_features
        shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
            "weights": (self.matrix, (n_features, self.n_vectors)),
            "code": (self.code, (self.n_classes, self.n_vectors)),
            "indices": (indices, (n_features,)),
            "scales": (self.scaling.scales, (n_features,)),
            "deviations": (deviations, (n_features,)),
        }
        wrong = [name for name, (of, shape) in shapes.items() if of is not None and of.shape != shape]
        if wrong:
            raise ModelError(
                f"a model's {' and '.join(wrong)} do not fit together: expected weights (features, vectors), "
                "an intercept per vector, and a code (classes, vectors)"
            )

    def __getattr__(self, name: str) -> Any:
        if name == "record":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.record, name)

    @cached_property
    def decoder(self) -> ClassDecoder:
        """The choice of a class by decisions."""
        return ClassDecoder(self.loss, self.code, self.matrix, self.tie_order)

    @cached_property
    def weights(self) -> np.ndarray:
        """The weights as an array."""
        return self.matrix.toarray() if self.is_sparse else self.matrix

    def __repr__(self) -> str:
        scaled = f", weights for {self.scaling.options()}" if self.scaling.changes_values else ""
        labels = "targets" if self.has_targets else f"{self.n_classes} classes"
        shape = f"{labels}, {self.n_features:,} features"
        return f"<streamcd.Model {self.loss}, C={self.C}: {shape}{scaled}>"

    @cached_property
    def source_weights(self) -> np.ndarray:
        """Weights in the source's units, shape (n_features, n_vectors): `weights` divided by the features' scales.

        ``X @ source_weights + intercept`` are the decision values of the source's rows; where rows were divided by their
        norms (``convert --normalize l2``), of rows so divided after the scaling.
        """
        scales = self.scaling.scales
        return self.weights if scales is None else self.weights / scales[:, np.newaxis]

    @property
    def nbytes(self) -> int:
        """Bytes that predictions take: of the weights, and what makes features of entries and classes of decisions."""
        matrix = self.matrix
        arrays = [matrix.data, matrix.indices, matrix.indptr] if self.is_sparse else [matrix]
        if self.scaling.scales is not None:
            arrays.append(self.scaling.scales)
        # the code matrix in float64, and an intermediate one
        decoder = self.decoder
        needs_code = not (decoder.is_twin or decoder.is_binary or decoder.one_vector_per_class)
        n_bytes = 16 * self.code.size * needs_code
        n_bytes += self.source_indices.nbytes + (0 if self.encoding is None else self.encoding.nbytes)
        return n_bytes + sum(array.nbytes for array in arrays)

    @property
    def row_loss(self) -> Loss:
        """The loss as kernels take it."""
        return row_loss(self.loss, self.slack, self.parameter)

    @property
    def bias_weight(self) -> np.ndarray:
        """Weights of the constant feature, shape (n_vectors,); zero if there is none."""
        return self.intercept / self.bias if self.bias > 0 else np.zeros(self.n_vectors)

    def penalty(self) -> float:
        """Compute the penalty of all vectors, with the bias's weight unless it was not penalised."""
        weights = self.matrix.data[:, np.newaxis] if self.is_sparse else self.matrix
        bias = self.bias_weight * (not self.free_bias)
        squares = np.einsum("ij,ij->", weights, weights) + (bias**2).sum()
        sizes = np.abs(weights).sum() + np.abs(bias).sum() if self.l1 else 0.0
        return float(0.5 * self.l2 * squares + self.l1 * sizes)

    def decisions(self, indptr: np.ndarray, feature: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, int]:
        """Compute ``h(x)`` of sparse rows, shape (rows, n_vectors), and count the entries of unknown features, ignored.

        Row ``r`` has the entries ``indptr[r]:indptr[r + 1]`` of the 0-based `feature` and of `value`.
        """
        return decisions_of((indptr[:-1], indptr[1:], feature, value), self.matrix, self.intercept)

    def matrix_decisions(self, X: Any) -> np.ndarray:
        """Compute ``h(x)`` of the rows of a matrix or a frame, shape (rows, n_vectors); see `predict`."""

        by_columns = self.encoding is not None and hasattr(X, "__arrow_c_stream__")
        X = self.encode(X) if by_columns else number_matrix(X)
        if X.shape[1] != self.n_features:
            raise ModelError(
                f"expected a column for each of the model's {self.n_features} features, found {X.shape[1]} columns"
            )
        if hasattr(X, "tocsr") or self.scaling.changes_values:
            indptr, feature, value = matrix_rows(X)
            value = self.scaling.apply(indptr, feature, value, self.n_features)
            return self.decisions(indptr, feature, value)[0]
        return X @ self.weights + self.intercept

    def encode(self, frame: Any) -> Any:
        """Encode a frame by the columns of the table that the model was trained on.

        Parameters
        ----------
        frame : anything with ``__arrow_c_stream__``

        Returns
        -------
        scipy.sparse.csr_array, shape (rows, n_features)
            In the source's units: neither scaled nor normalised. Unknown categories have no entry.

        Raises
        ------
        ModelError
            For a model that was not trained on a table.
        DataError
            Where the frame lacks one of the table's columns.
        """
        from .table_encoder import encode_frame

        if self.encoding is None:
            raise ModelError("encode: expected a model trained on a table, found one of numbered features")
        return encode_frame(frame, self.encoding, self.source_indices, self.n_features)

    def decision_function(self, X: Any) -> np.ndarray:
        """Compute the decision values of rows.

        Parameters
        ----------
        X : array or SciPy sparse matrix, shape (rows, n_features), or a frame
            Column ``j`` holds feature ``j``, counted from 0. For a model trained on a table, a frame (anything with
            ``__arrow_c_stream__``) has the table's columns, by name; unknown categories are ignored, and a ``UserWarning``
            counts them. Values are transformed like those of the training data (see `scaling`).

        Returns
        -------
        ndarray of float64, shape (rows,) for two classes, else (rows, n_classes)
            Positive, or largest, for the predicted class; for twin planes, minus the distance to each plane.

        Raises
        ------
        ModelError
            If the number of columns differs from that of features, or a column does not hold numbers.
        DataError
            Where a frame lacks one of the table's columns.
        """
        decisions = self.matrix_decisions(X)
        return decisions[:, 0] if self.is_binary or self.has_targets else self.decoder.scores(decisions)

    def predict(self, X: Any) -> np.ndarray:
        """Predict the labels of rows, or their targets; `X` and errors as in `decision_function`."""
        return self.predicted(self.matrix_decisions(X))

    def predicted(self, decisions: np.ndarray) -> np.ndarray:
        """Return the predicted labels, as in the source, or targets; shape (rows,)."""
        if self.has_targets:
            return decisions[:, 0]
        return np.array(self.record.labels)[self.decoder.predicted_classes(decisions)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Compute the classes' probabilities, shape (rows, n_classes); `X` and errors as in `decision_function`.

        For logistic regression; with several classes each ``σ(h)`` is divided by their sum.
        """
        return np.exp(self.log_probabilities(self.matrix_decisions(X)))

    @property
    def has_probabilities(self) -> bool:
        """Check if the model has probabilities: logistic, with a vector per class or one for two classes."""
        one_each = self.is_binary or self.decoder.one_vector_per_class
        return not self.has_targets and one_each and LOSSES[self.loss].probabilities

    def log_probabilities(self, decisions: np.ndarray) -> np.ndarray:
        """Compute the logarithms of the classes' probabilities; shape (rows, n_classes).

        The softmax of the decisions of a multinomial model; else, with several classes, each one's sigmoid is divided by
        their sum, as LIBLINEAR does for logistic regression. Raises ``ModelError`` if the model has no probabilities.
        """
        if not self.has_probabilities:
            found = "another code matrix" if LOSSES[self.loss].probabilities else self.loss
            raise ModelError(
                "probabilities need a model trained with --loss log_loss or multinomial, and one vector per class; this one "
                f"was trained with {found}"
            )
        return self.decoder.log_probabilities(decisions)

    def label_text(self, label: float) -> str:
        """Format a label as in the source: a name, (unknown) for another class, or a number, integers without a point."""
        if self.class_names is not None:
            return self.class_names[int(label)] if label < len(self.class_names) else "(unknown)"
        return str(int(label)) if self.label_kind == "integer" else repr(float(label))

    def label_texts(self) -> list[str]:
        """Format all labels, ascending, as in the source."""
        return [*map(str, self.record.labels)]

    def feature_name(self, feature: int) -> str:
        """Name a 0-based feature."""
        return self.feature_names(np.array([feature]))[0]

    def feature_names(self, features: np.ndarray) -> list[str]:
        """Name 0-based features; without names, "feature" and its index in the source."""
        index = self.source_indices.of(features)
        if self.encoding is None:
            return [f"feature {number}" for number in index.tolist()]
        return self.encoding.feature_names(index - self.index_base)

    def support(self) -> dict[str, Any]:
        """Tell the strengths of an L1 penalty, and how many weights it has left; nothing of a model without one."""
        if not self.l1:
            return {}
        counts = np.bincount(self.matrix.nonzero()[1], minlength=self.n_vectors).tolist()
        return {
            "l1": self.l1,
            "l2": self.l2,
            "n_nonzero": sum(counts),
            "support": [
                {"vector": vector, "n_nonzero": count, "share": count / max(self.n_features, 1)}
                for vector, count in zip(self.record.vector_labels, counts, strict=True)
            ],
        }

    def to_sklearn(self) -> Any:
        """Make a fitted linear estimator of scikit-learn's that predicts the same, on what `encode` gives.

        Returns
        -------
        estimator
            ``LinearSVC``, ``LogisticRegression`` (of log_loss and several classes in a ``OneVsRestClassifier``), ``Ridge``,
            ``ElasticNet``, ``HuberRegressor``, ``QuantileRegressor`` or ``LinearSVR``, with the parameters of the training
            where both have them, for rows in the source's units.

        Raises
        ------
        ModelError
            For twin models, rows of unit norm, and code matrices but one-vs-rest.
        UsageError
            Where scikit-learn is not installed.

        Examples
        --------
        >>> streamcd.load_model("run").to_sklearn().classes_
        array([-1,  1])
        """
        from .sklearn_model import sklearn_estimator

        return sklearn_estimator(self)

    def class_costs(self) -> np.ndarray:
        """Compute ``C`` times the class weights, shape (n_classes,); raises ``ModelError`` if C is unknown."""
        if self.C is None:
            raise ModelError("the model does not say which C it was trained with")
        return self.C * np.array([self.class_weight.get(float(label), 1.0) for label in self.classes])

    def save(
        self,
        path: str | os.PathLike[str],
        rows: Iterable[np.ndarray] | None = None,
    ) -> None:
        """Write the model into a directory: its arrays, and ``model.json`` last, each whole or not at all.

        Of weights few of which are not 0, these are written, and their features.

        Parameters
        ----------
        path : path
            Created if needed; a model in it is replaced.
        rows : iterable of ndarray, optional
            Blocks of rows of the weights, if they do not fit in memory; `weights` then has only their shape.
        """
        matrix = self.matrix
        if rows is None and not self.is_sparse:
            sparse = sparse_weights(lambda: [matrix], matrix.shape)
            matrix = matrix if sparse is None else sparse
        is_sparse = hasattr(matrix, "tocsr")
        deviations = self.deviations
        if is_sparse and deviations is not None:
            deviations = deviations[np.diff(matrix.indptr) > 0]
        encoding = self.encoding
        contents = {
            SPARSE_FILE if is_sparse else "weights.npy": matrix,
            "scaling.npy": self.scaling.scales,
            "indices.npy": self.indices,
            "deviations.npy": deviations,
            CATEGORIES_FILE: encoding if encoding is not None and encoding.has_categories else None,
        }
        contents = {name: content for name, content in contents.items() if content is not None}
        directory = local_path(path, "a model")

        def write(name: str, content: Any, path: Path) -> str:
            if name == CATEGORIES_FILE:
                content.save(path)
            else:
                with open(path, "wb") as file:
                    if name == SPARSE_FILE:
                        import scipy.sparse as sp

                        sp.save_npz(file, content.tocsc(), compressed=False)
                    else:
                        header = {"descr": content.dtype.str, "fortran_order": False, "shape": content.shape}
                        np.lib.format.write_array_header_1_0(file, header)
                        for block in rows if rows is not None and name == "weights.npy" else [content]:
                            np.ascontiguousarray(block, content.dtype).tofile(file)
            return file_checksum(path)

        with replacing(*(directory / name for name in [*contents, "model.json"])) as (*files, description):
            calls = [partial(write, *item, file) for item, file in zip(contents.items(), files, strict=True)]
            record = self.record.but(
                scaling=ScalingRecord(**self.scaling.to_json()) if self.scaling.changes_values else None,
                encoding=encoding and encoding.but(categories=None),
                checksums=dict(zip(contents, Threads(2).in_order(calls), strict=True)),
            )
            description.write_bytes(metadata_text(MODEL, record.record(), allow_nan=False))
        # files of the model that was here before
        for name in MODEL_FILES.difference(contents):
            (directory / name).unlink(missing_ok=True)


def stored_certificate(path: Path) -> dict[str, Any] | None:
    """Read the certificate of the model in a directory; None if there is no complete model."""
    try:
        _, record = read_metadata(path / "model.json", MODEL)
    except (OSError, ModelError):
        return None
    is_whole = record.certificate and all((path / name).exists() for name in record.checksums)
    return record.certificate if is_whole else None

"""A trained linear model: prediction and storage.

Decisions are ``h(x) = x W + intercept``, with a column of ``W`` per vector (lane). The code matrix ``M`` (classes ×
vectors, entries −1, 0, +1) holds the sign of each class for each vector. With two classes there is one vector, positive for
the larger label; with more, the class with the largest ``h(x)·M_r`` is predicted. A twin model has a plane per class, and
predicts the class of the nearest plane: the smallest ``|h_r(x)| / ‖w_r‖``, the norm without the bias's entry.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..core.atomic_files import make_directory, replacing_together
from ..core.classes import default_code
from ..core.errors import ModelError
from ..core.memory_budget import parse_size, require
from ..core.metadata import metadata_text, read_metadata
from ..core.storage import local_path
from ..core.threads import Threads
from ..dataset.scaling import Scaling
from ..kernels.loss_table import PLANES, form_of, has_targets, is_logistic
from .calibration import sigmoid_logarithms
from .encoding import CATEGORIES_FILE, Encoding, read_encoding
from .model_file import MODEL, STORED_FIELDS, ModelFile, check_file, read_array, write_array
from .scoring import ClassChoice, SparseRows, score

UNKNOWN_CLASS = "(unknown)"
"""Name of a class that the model does not know."""

_LOGISTIC = np.array([[-1.0], [0.0]])  # Platt's a and b for the plain logistic function


@dataclass
class Model:
    """A linear classifier.

    Attributes
    ----------
    weights : ndarray of float64, shape (n_features, n_vectors)
        Of the values as they were scaled for the training (see `scaling`); `source_weights` are in the source's units.
    intercept : ndarray of float64, shape (n_vectors,)
        Weight of the constant feature times its value, `bias`.
    classes : ndarray of float64, shape (n_classes,)
        Labels, ascending.
    code : ndarray of int8, shape (n_classes, n_vectors)
        Entries −1, 0, +1; ``[[-1], [1]]`` for two classes, the identity for Crammer–Singer.
    loss : {"squared_hinge", "hinge", "log_loss", "crammer_singer", "twin"}
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
    sigmoids : ndarray of float64, shape (2, n_vectors), or None
        Platt's a and b, which map decisions to probabilities.
    free_bias : bool
        Whether the bias's weight was left out of ``½‖w‖²``.
    scaling : Scaling
        Transformation of the training values, which predictions apply to theirs.
    class_names : list of str or None
        Names of the classes, which are then numbered from 0; None if labels are numbers.
    encoding : Encoding or None
        Mapping of the training table's columns to features; None if the data did not come from a table.

    Examples
    --------
    >>> model = streamcd.load_model("run")
    >>> model.weights.shape[1], model.label_texts(), model.C
    (1, ['-1', '1'], 1.0)
    """

    weights: np.ndarray
    intercept: np.ndarray
    classes: np.ndarray
    code: np.ndarray
    loss: str
    C: float | None
    method: str = "dual"
    bias: float = -1.0
    index_base: int = 1
    label_kind: str = "integer"
    class_weight: dict[float, float] = field(default_factory=dict)
    ridge: float = 1.0
    slack: str = "hinge"
    tie_order: np.ndarray | None = None
    fingerprint: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    certificate: dict[str, Any] = field(default_factory=dict)
    sigmoids: np.ndarray | None = None
    free_bias: bool = False
    scaling: Scaling = field(default_factory=Scaling)
    class_names: list[str] | None = None
    encoding: Encoding | None = None

    def __post_init__(self) -> None:
        self.weights = np.ascontiguousarray(self.weights, dtype=np.float64)
        self.intercept = np.asarray(self.intercept, dtype=np.float64)
        self.classes = np.asarray(self.classes, dtype=np.float64)
        self.code = np.asarray(self.code, dtype=np.int8)
        if self.tie_order is None:
            self.tie_order = np.arange(self.n_classes)
        self.tie_order = np.asarray(self.tie_order, dtype=np.int64)
        if self.sigmoids is not None:
            self.sigmoids = np.asarray(self.sigmoids, dtype=np.float64)
        n_vectors = self.weights.shape[1] if self.weights.ndim == 2 else -1
        expected = {"weights": self.weights.ndim == 2, "intercept": self.intercept.shape == (n_vectors,)}
        expected["sigmoids"] = self.sigmoids is None or self.sigmoids.shape == (2, n_vectors)
        expected["code"] = self.code.shape == (self.n_classes, n_vectors)
        expected["tie_order"] = np.array_equal(np.sort(self.tie_order), np.arange(self.n_classes))
        expected["classes"] = self.classes.ndim == 1 and bool((np.diff(self.classes) > 0).all())
        wrong = [name for name, fits in expected.items() if not fits]
        if wrong:
            raise ModelError(
                f"a model's {' and '.join(wrong)} do not fit together: expected weights (features, vectors), "
                "an intercept per vector, ascending classes, and a code (classes, vectors)"
            )

    def __repr__(self) -> str:
        scaled = f", weights for {self.scaling.options()}" if self.scaling.changes_values else ""
        shape = f"{self.n_classes} classes, {self.n_features:,} features"
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
    def n_features(self) -> int:
        """Number of features."""
        return int(self.weights.shape[0])

    @property
    def n_vectors(self) -> int:
        """Number of weight vectors."""
        return int(self.weights.shape[1])

    @property
    def n_classes(self) -> int:
        """Number of labels."""
        return int(self.classes.size)

    @property
    def has_targets(self) -> bool:
        """Check if the model predicts numbers, rather than classes."""
        return has_targets(self.loss)

    @property
    def is_binary(self) -> bool:
        """Check if the model is a single vector for two classes."""
        return self.n_classes == 2 and self.n_vectors == 1

    @property
    def bias_weight(self) -> np.ndarray:
        """Weights of the constant feature, shape (n_vectors,); zero if there is none."""
        return self.intercept / self.bias if self.bias > 0 else np.zeros(self.n_vectors)

    def squared_norm(self) -> np.ndarray:
        """Compute ``‖w‖²`` of every vector, with the bias's weight unless it was not penalised; shape (n_vectors,)."""
        return np.einsum("ij,ij->j", self.weights, self.weights) + (
            0.0 if self.free_bias else self.bias_weight**2
        )

    def decisions(
        self, indptr: np.ndarray, feature: np.ndarray, value: np.ndarray, threads: Threads | None = None
    ) -> tuple[np.ndarray, int]:
        """Compute ``h(x)`` of sparse rows, shape (rows, n_vectors), and count the entries of unknown features, ignored.

        Row ``r`` has the entries ``indptr[r]:indptr[r + 1]`` of the 0-based `feature` and of `value`; `threads` share them.
        """
        rows = SparseRows(indptr[:-1], indptr[1:], feature, value)
        return score(rows, self.weights, self.intercept, threads)

    def matrix_decisions(self, X: Any) -> np.ndarray:
        """Compute ``h(x)`` of the rows of a matrix or a frame, shape (rows, n_vectors); see `predict`."""
        from ..dataset.in_memory import number_matrix, sparse_rows  # scipy's

        if self.encoding is not None and hasattr(X, "__arrow_c_stream__"):
            return self._frame_decisions(X, self.encoding)
        X = number_matrix(X)
        if X.shape[1] != self.n_features:
            raise ModelError(
                f"expected a column for each of the model's {self.n_features} features, found {X.shape[1]} columns"
            )
        if hasattr(X, "tocsr") or self.scaling.changes_values:
            indptr, feature, value = sparse_rows(X)
            value = self.scaling.apply(indptr, feature, value, self.n_features)
            return self.decisions(indptr, feature, value)[0]
        return X @ self.weights + self.intercept

    def _frame_decisions(self, frame: Any, encoding: Encoding) -> np.ndarray:
        from .table_encoder import encode_frame

        blocks = [np.empty((0, self.n_vectors))]
        for indptr, feature, value in encode_frame(frame, encoding, self.n_features, self.index_base):
            scaled = self.scaling.apply(indptr, feature, value, self.n_features)
            blocks.append(self.decisions(indptr, feature, scaled)[0])
        return np.concatenate(blocks)

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
        return decisions[:, 0] if self.is_binary else self.scores(decisions)

    def predict(self, X: Any) -> np.ndarray:
        """Predict the labels of rows; `X` and errors as in `decision_function`."""
        return np.array(self.label_numbers())[self.places(self.matrix_decisions(X))]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Compute the classes' probabilities, shape (rows, n_classes); `X` and errors as in `decision_function`.

        For logistic regression and calibrated models; with several classes each ``σ(h)`` is divided by their sum.
        """
        return np.exp(self.log_probabilities(self.matrix_decisions(X)))

    def scores(self, decisions: np.ndarray) -> np.ndarray:
        """Compute ``h(x)·M_r`` of every class ``r``, up to a constant common to all classes; shape (rows, n_classes).

        For twin planes, minus the distance to each class's plane.
        """
        return self.choice.scores(decisions)

    def places(self, decisions: np.ndarray) -> np.ndarray:
        """Return the predicted classes, as indices into `classes`; shape (rows,)."""
        return self.choice.places(decisions)

    @cached_property
    def choice(self) -> ClassChoice:
        """Choice of a class by decisions."""
        return ClassChoice(self.loss, self.code, self.weights, self.tie_order)

    def labels(self, decisions: np.ndarray) -> np.ndarray:
        """Return the predicted labels, float64; shape (rows,)."""
        return self.classes[self.places(decisions)]

    @property
    def has_probabilities(self) -> bool:
        """Check if the model has probabilities: logistic or calibrated, with a vector per class or one for two classes."""
        one_each = self.is_binary or self.choice.one_vector_per_class
        return one_each and (is_logistic(self.loss) or self.sigmoids is not None)

    def log_probabilities(self, decisions: np.ndarray) -> np.ndarray:
        """Compute the logarithms of the classes' probabilities; shape (rows, n_classes).

        With several classes each one's sigmoid is divided by their sum, as LIBLINEAR does for logistic regression. Raises
        ``ModelError`` if the model has no probabilities.
        """
        if not is_logistic(self.loss) and self.sigmoids is None:
            raise ModelError(
                "probabilities need a model trained with --loss log_loss, or with --calibrate; "
                f"this one was trained with {self.loss}"
            )
        if not self.has_probabilities:
            raise ModelError(
                "probabilities need one vector per class; this model was trained with another code matrix"
            )
        log_p, log_q = sigmoid_logarithms(_LOGISTIC if self.sigmoids is None else self.sigmoids, decisions)
        if self.is_binary:
            return np.hstack([log_q, log_p])
        return log_p - np.logaddexp.reduce(log_p, axis=1, keepdims=True)

    def label_text(self, label: float) -> str:
        """Format a label as in the source: a name or a number, integers without a decimal point."""
        if self.class_names is not None:
            return self.class_names[int(label)] if label < len(self.class_names) else UNKNOWN_CLASS
        return self._number_text(label)

    def _number_text(self, label: float) -> str:
        return str(int(label)) if self.label_kind == "integer" else repr(float(label))

    def label_texts(self) -> list[str]:
        """Format all labels, ascending, as in the source."""
        return [self.label_text(label) for label in self.classes]

    def label_numbers(self) -> list[int] | list[float] | list[str]:
        """Return all labels, ascending, in the source's type: integers, decimal numbers or names."""
        if self.class_names is not None:
            return self.label_texts()
        return (
            [int(label) for label in self.classes] if self.label_kind == "integer" else self.classes.tolist()
        )

    def feature_name(self, feature: int) -> str:
        """Name a 0-based feature; without names, "feature" and its index in the source."""
        if self.encoding is None:
            return f"feature {feature + self.index_base}"
        return next(iter(self.encoding.feature_names(np.array([feature]))))

    def class_costs(self) -> np.ndarray:
        """Compute ``C`` times the class weights, shape (n_classes,); raises ``ModelError`` if C is unknown."""
        if self.C is None:
            raise ModelError("the model does not say which C it was trained with")
        return self.C * np.array([self.class_weight.get(float(label), 1.0) for label in self.classes])

    def save(self, path: str | os.PathLike[str], rows: Iterable[np.ndarray] | None = None) -> None:
        """Write the model into a directory: its arrays, and ``model.json`` last, each whole or not at all.

        Parameters
        ----------
        path : path
            Created if needed; a model in it is replaced.
        rows : iterable of ndarray, optional
            Blocks of rows of the weights, if they do not fit in memory; `weights` then has only their shape.
        """
        from ..dataset.parquet import file_checksum  # here, because it imports pyarrow

        directory = local_path(path, "a model")
        make_directory(directory)
        description = self._description()
        description["categories_checksum"] = ""
        has_scales, has_categories = (
            self.scaling.scales is not None,
            self.encoding is not None and self.encoding.has_categories,
        )
        names = (
            ["weights.npy"]
            + ["scaling.npy"] * has_scales
            + [CATEGORIES_FILE] * has_categories
            + ["model.json"]
        )
        with replacing_together([directory / name for name in names]) as files:
            new = dict(zip(names, files, strict=True))
            write_array(new["weights.npy"], self.weights.shape, (self.weights,) if rows is None else rows)
            description["weights_checksum"] = file_checksum(new["weights.npy"])
            if self.scaling.scales is not None:
                write_array(new["scaling.npy"], self.scaling.scales.shape, (self.scaling.scales,))
                description["scaling"]["checksum"] = file_checksum(new["scaling.npy"])
            if self.encoding is not None and has_categories:
                self.encoding.save(new[CATEGORIES_FILE])
                description["categories_checksum"] = file_checksum(new[CATEGORIES_FILE])
            new["model.json"].write_bytes(metadata_text(MODEL, description, allow_nan=False))
        # files of the model that was here before
        for name in {"scaling.npy", CATEGORIES_FILE}.difference(names):
            (directory / name).unlink(missing_ok=True)

    def _description(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name in STORED_FIELDS:
            value = getattr(self, name)
            fields[name] = value.tolist() if isinstance(value, np.ndarray) else value
        fields["code"] = None if self._has_default_code else self.code.tolist()
        if form_of(self.loss) != PLANES:
            del fields["ridge"], fields["slack"]
        fields["class_weight"] = {
            self._number_text(label): weight for label, weight in self.class_weight.items()
        }
        fields["encoding"] = None if self.encoding is None else self.encoding.record()
        fields["scaling"] = self.scaling.to_json() if self.scaling.changes_values else None
        return fields

    @property
    def _has_default_code(self) -> bool:
        """Check if the code is that of `default_code`, which is not stored: with many classes it would fill the file."""
        default = default_code(form_of(self.loss), self.n_classes)
        return self.n_classes > 2 and self.choice.one_vector_per_class and self.code[0, -1] == default[0, -1]


def path_directory(model_path: Path, C: float) -> Path:
    """Return the directory, in a run's ``model``, of the model for one C of a path."""
    return model_path / f"C={C!r}"


def models_of_path(path: str | os.PathLike[str]) -> dict[float, Path]:
    """Find the models of a path over C, by C ascending; empty for a run or model without a path."""
    found = {}
    for inside in (Path(path) / "model", Path(path)):
        for directory in inside.glob("C=*"):
            if (directory / "model.json").exists():
                found[float(directory.name.removeprefix("C="))] = directory
    return dict(sorted(found.items()))


def load_model(
    path: str | os.PathLike[str], C: float | None = None, *, memory: int | str | None = None
) -> Model:
    """Read a model, or the model of a run.

    Parameters
    ----------
    path : path
        A directory with ``model.json``, or a run.
    C : float, optional
        C of the wanted model of a path; required if the run has several models and no best one.
    memory : int or str, optional
        Bound on the process's resident memory.

    Returns
    -------
    Model

    Raises
    ------
    ModelError
        If there is no model, or it is damaged.
    UsageError
        If it does not fit in `memory`.

    Examples
    --------
    >>> streamcd.load_model("run").loss
    'log_loss'
    """
    directory = _model_directory(local_path(path, "a model"), C)
    if memory is not None and (directory / "weights.npy").exists():
        files = [directory / name for name in ("weights.npy", "scaling.npy", CATEGORIES_FILE)]
        require(
            parse_size(memory), {"the model": sum(file.stat().st_size for file in files if file.exists())}
        )
    description_path = directory / "model.json"
    try:
        _, description = read_metadata(description_path, MODEL)
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError(_missing(Path(path))) from None
    try:
        checksum, n_features = description.weights_checksum, description.n_features
        weights = read_array(directory / "weights.npy", checksum, n_features, 2)
        scaling = _read_scaling(directory / "scaling.npy", description)
        model = _model_from(description, weights, scaling, _read_encoding(directory, description))
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ModelError(f"{description_path}: damaged ({error})") from None
    if C is not None and model.C != C:
        raise ModelError(f"{path} holds no model for C = {C:g}; its model has C = {model.C}")
    return model


def is_model(path: str | os.PathLike[str]) -> bool:
    """Check for a model in a directory, or for those of a path over C."""
    return (Path(path) / "model.json").exists() or bool(models_of_path(path))


def is_unfinished(path: str | os.PathLike[str]) -> bool:
    """Check if a directory is empty but for files that a killed `Model.save` may leave."""
    arrays = {"weights.npy", "scaling.npy", CATEGORIES_FILE}
    left = arrays | {f"{name}.partial" for name in (*arrays, "model.json")}
    return os.path.isdir(path) and left.issuperset(os.listdir(path))


def verify_model(path: str | os.PathLike[str], *, memory: int | str | None = None) -> list[str]:
    """Check the model in a directory, or those of a path over C; returns the problems, one line each."""
    problems = []
    for directory in models_of_path(path).values() or [_model_directory(path)]:
        try:
            if not np.isfinite(load_model(directory, memory=memory).weights).all():
                problems.append(f"{directory / 'weights.npy'}: a weight that is not finite")
        except ModelError as error:
            problems.append(str(error))
    return problems


def stored_certificate(path: Path) -> dict[str, Any] | None:
    """Read the certificate of the model in a directory; None if there is no complete model."""
    try:
        _, description = read_metadata(path / "model.json", MODEL)
    except (OSError, ModelError):
        return None
    return description.certificate if description.certificate and (path / "weights.npy").exists() else None


def _model_directory(path: str | os.PathLike[str], C: float | None = None) -> Path:
    inside = Path(path) / "model"
    directory = inside if (inside / "model.json").exists() else Path(path)
    single = (directory / "model.json").exists()
    models = models_of_path(path)
    if not models or (C is None and single):
        return directory
    if C in models:
        return models[C]
    known = ", ".join(f"{value:g}" for value in models)
    if C is None:
        raise ModelError(f"{path} holds a model for each C of {known}: name one with -C")
    raise ModelError(f"{path} holds no model for C = {C:g}; it has {known}")


def _missing(path: Path) -> str:
    if (path / "config.json").exists():
        return (
            f"{path}: this run has no model yet; 'streamcd resume {path}' goes on with it, and --checkpoint (in Python "
            "load_checkpoint) takes the model of its last checkpoint"
        )
    if path.is_file():
        return f"{path} is a file; expected a run or a model ('streamcd import {path} MODEL' reads LIBLINEAR's text)"
    found = "no model.json in it" if path.exists() else "nothing there"
    return f"{path}: expected a run or a model, found {found}; 'streamcd train DATASET RUN' makes a run"


def _read_scaling(path: Path, description: ModelFile) -> Scaling:
    found = description.scaling
    if found is None:
        return Scaling()
    scales = None if found.scale == "none" else read_array(path, found.checksum, description.n_features, 1)
    return Scaling(found.scale, found.normalize, scales, found.digest)


def _read_encoding(directory: Path, description: ModelFile) -> Encoding | None:
    if description.encoding is None:
        return None
    if description.categories_checksum:
        check_file(directory / CATEGORIES_FILE, description.categories_checksum)
    return read_encoding(directory / CATEGORIES_FILE, description.encoding)


def _model_from(
    description: ModelFile, weights: np.ndarray, scaling: Scaling, encoding: Encoding | None
) -> Model:
    # fields of the same name in both; `Model` makes the arrays
    same = {name: getattr(description, name) for name in STORED_FIELDS if name != "n_features"}
    code = default_code(form_of(description.loss), len(description.classes))
    if description.code is not None:
        code = np.array(description.code, dtype=np.int8).reshape(-1, weights.shape[1])
    return Model(weights=weights, code=code, scaling=scaling, encoding=encoding, **same)

"""A trained linear model: what it predicts, how it is kept on disk, and LIBLINEAR's text format.

A model decides by ``h(x) = x W + intercept``, one column of ``W`` per vector (lane). A code matrix ``M`` (classes × vectors,
entries −1, 0, +1) says what the vectors tell apart: of two classes there is one vector, positive for the larger class; of
several, the class with the largest ``h(x)·M_r`` is predicted. A twin model has a plane per class, and predicts the class
whose plane is nearest: the smallest ``|h_r(x)| / ‖w_r‖``, the norm without the bias's entry.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from .errors import ModelError
from .memory import parse_size, require
from .progress import Listener
from .scaling import Scaling

FORMAT = "streamcd-model"
FORMAT_VERSION = 1

LIBLINEAR_SOLVERS: dict[str, tuple[str, str]] = {
    "L2R_LR": ("log_loss", "primal"),
    "L2R_L2LOSS_SVC_DUAL": ("squared_hinge", "dual"),
    "L2R_L2LOSS_SVC": ("squared_hinge", "primal"),
    "L2R_L1LOSS_SVC_DUAL": ("hinge", "dual"),
    "MCSVM_CS": ("crammer_singer", "dual"),
    "L2R_LR_DUAL": ("log_loss", "dual"),
}
"""LIBLINEAR's names of the problems solved here, as (loss, method)."""

_EXPORT_BLOCK = 1 << 16  # weights written or read at a time: a few MB of text


@dataclass
class Model:
    """A linear classifier.

    Attributes
    ----------
    weights : ndarray of float64, shape (n_features, n_vectors)
    intercept : ndarray of float64, shape (n_vectors,)
        Weight of the constant feature times its value, `bias`.
    classes : ndarray of float64, shape (n_classes,)
        Labels, ascending.
    code : ndarray of int8, shape (n_classes, n_vectors)
        Entries −1, 0, +1; ``[[-1], [1]]`` for two classes, the identity for Crammer–Singer.
    loss : {"squared_hinge", "hinge", "log_loss", "crammer_singer", "twin"}
    C : float or None
        None where it is not known (LIBLINEAR's text does not hold it).
    method : str
        How the model was trained; it does not change what the model is.
    bias : float
        Value of the constant feature; negative for none.
    index_base : int
        What the indices of the training text started at.
    label_kind : {"integer", "decimal"}
    class_weight : dict of float to float
        Factors on the cost of a label's rows.
    ridge, slack : float, str
        Of twin planes (see `problem`).
    tie_order : ndarray of int64, shape (n_classes,)
        Classes (as places in `classes`) in the order of preference where decisions are equal: an empty row, say.
    fingerprint : str
        Of the dataset trained on; empty where there was none.
    versions, certificate : dict
        Of libraries; gap and objectives at the end of training. Carried along, not interpreted.
    free_bias : bool
        Whether the bias's weight was left out of ``½‖w‖²``.
    scaling : Scaling
        What was done to the values that the model was trained on, and has to be done to those it decides about.
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
    free_bias: bool = False
    scaling: Scaling = field(default_factory=Scaling)

    def __post_init__(self) -> None:
        self.weights = np.ascontiguousarray(self.weights, dtype=np.float64)
        self.intercept = np.asarray(self.intercept, dtype=np.float64)
        self.classes = np.asarray(self.classes, dtype=np.float64)
        self.code = np.asarray(self.code, dtype=np.int8)
        if self.tie_order is None:
            self.tie_order = np.arange(self.n_classes)
        self.tie_order = np.asarray(self.tie_order, dtype=np.int64)
        n_vectors = self.weights.shape[1] if self.weights.ndim == 2 else -1
        expected = {"weights": self.weights.ndim == 2, "intercept": self.intercept.shape == (n_vectors,)}
        expected["code"] = self.code.shape == (self.n_classes, n_vectors)
        expected["tie_order"] = np.array_equal(np.sort(self.tie_order), np.arange(self.n_classes))
        expected["classes"] = self.classes.ndim == 1 and bool((np.diff(self.classes) > 0).all())
        wrong = [name for name, fits in expected.items() if not fits]
        if wrong:
            raise ModelError(
                f"a model's {' and '.join(wrong)} do not fit together: expected weights (features, vectors), "
                "an intercept per vector, ascending classes, and a code (classes, vectors)"
            )

    @property
    def n_features(self) -> int:
        """Width of the model."""
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
    def is_binary(self) -> bool:
        """Whether one vector tells two classes apart."""
        return self.n_classes == 2 and self.n_vectors == 1

    @property
    def bias_weight(self) -> np.ndarray:
        """Weights of the constant feature, shape (n_vectors,); zero where there is none."""
        return self.intercept / self.bias if self.bias > 0 else np.zeros(self.n_vectors)

    def squared_norm(self) -> np.ndarray:
        """``‖w‖²`` of every vector, the constant feature's weight included; shape (n_vectors,)."""
        return np.einsum("ij,ij->j", self.weights, self.weights) + (
            0.0 if self.free_bias else self.bias_weight**2
        )

    def decisions(self, indptr: np.ndarray, feature: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, int]:
        """``h(x)`` of a block of sparse rows.

        Parameters
        ----------
        indptr : ndarray of int64, shape (rows + 1,)
        feature, value : ndarray, shape (entries,)
            Features are 0-based.

        Returns
        -------
        decisions : ndarray of float64, shape (rows, n_vectors)
        n_ignored : int
            Entries of features beyond the model's width.
        """
        from .rows_kernels import margins  # numba: only where rows are met

        out = np.empty((indptr.size - 1, self.n_vectors))
        n_ignored = int(margins(indptr, feature, value, self.weights, out))
        out += self.intercept
        return out, n_ignored

    def scores(self, decisions: np.ndarray) -> np.ndarray:
        """``h(x)·M_r`` of every class ``r``, up to a constant that is the same for all; shape (rows, n_classes).

        Of twin planes, minus the distance to each class's plane.
        """
        if self.loss == "twin":
            return -plane_distances(decisions, self._plane_norms)
        return decisions @ self._score_code()

    def places(self, decisions: np.ndarray) -> np.ndarray:
        """The predicted classes, as places in `classes`; shape (rows,)."""
        assert self.tie_order is not None
        if self.is_binary:
            positive = decisions[:, 0] >= 0 if self.tie_order[0] == 1 else decisions[:, 0] > 0
            return positive.astype(np.int64)
        return self.tie_order[self.scores(decisions)[:, self.tie_order].argmax(axis=1)]

    def labels(self, decisions: np.ndarray) -> np.ndarray:
        """The predicted labels, float64; shape (rows,)."""
        return self.classes[self.places(decisions)]

    @cached_property
    def _plane_norms(self) -> np.ndarray:
        return np.sqrt(np.einsum("ij,ij->j", self.weights, self.weights))

    @property
    def has_probabilities(self) -> bool:
        """Whether decisions are log-odds: logistic regression with one vector per class, or one for two classes."""
        return self.loss == "log_loss" and (self.is_binary or self._one_vector_per_class())

    def log_probabilities(self, decisions: np.ndarray) -> np.ndarray:
        """Logarithms of the classes' probabilities under logistic regression; shape (rows, n_classes).

        Of several classes each one's ``σ(h)`` is divided by their sum, as LIBLINEAR does.

        Raises
        ------
        ModelError
            Where the model has none.
        """
        if self.loss != "log_loss":
            raise ModelError(
                f"probabilities need a model trained with --loss log_loss; this one was trained with {self.loss}"
            )
        if not self.has_probabilities:
            raise ModelError(
                "probabilities need one vector per class; this model was trained with another code matrix"
            )
        if self.is_binary:
            return -np.logaddexp(0.0, decisions * np.array([1.0, -1.0]))
        log_sigmoid = -np.logaddexp(0.0, -decisions)
        return log_sigmoid - np.logaddexp.reduce(log_sigmoid, axis=1, keepdims=True)

    def label_text(self, label: float) -> str:
        """A label as in the source: integers without a point."""
        return str(int(label)) if self.label_kind == "integer" else repr(float(label))

    def label_texts(self) -> list[str]:
        """All labels, ascending, as in the source."""
        return [self.label_text(label) for label in self.classes]

    def label_numbers(self) -> list[int] | list[float]:
        """All labels, ascending; integers where the source had integers."""
        return (
            [int(label) for label in self.classes] if self.label_kind == "integer" else self.classes.tolist()
        )

    def class_costs(self) -> np.ndarray:
        """``C`` times the class weight, shape (n_classes,).

        Raises
        ------
        ModelError
            Where C is not known.
        """
        if self.C is None:
            raise ModelError("the model does not say which C it was trained with")
        return self.C * np.array([self.class_weight.get(float(label), 1.0) for label in self.classes])

    def save(self, path: str | os.PathLike[str], rows: Iterable[np.ndarray] | None = None) -> None:
        """Write the model into a directory: ``weights.npy``, and ``model.json`` last; each is there whole or not at all.

        Parameters
        ----------
        path : path
        rows : iterable of ndarray, optional
            The rows of `weights` in blocks, where they are too many to be in memory; `weights` then gives the shape only.
        """
        # pyarrow: not for a bare import
        from .parquet import file_checksum, sync_directory, write_file_atomically

        directory = Path(path)
        directory.mkdir(parents=True, exist_ok=True)
        partial = directory / "weights.npy.partial"
        with open(partial, "wb") as file:
            header = {"descr": "<f8", "fortran_order": False, "shape": self.weights.shape}
            np.lib.format.write_array_header_1_0(file, header)
            for block in (self.weights,) if rows is None else rows:
                np.ascontiguousarray(block, dtype="<f8").tofile(file)
            file.flush()
            os.fsync(file.fileno())
        scales_checksum = ""
        if self.scaling.scales is not None:
            with open(directory / "scaling.npy.partial", "wb") as file:
                np.save(file, self.scaling.scales.astype("<f8", copy=False), allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
            scales_checksum = file_checksum(directory / "scaling.npy.partial")
        # A kill between the two files must leave no model rather than one whose halves do not belong together.
        (directory / "model.json").unlink(missing_ok=True)
        os.replace(partial, directory / "weights.npy")
        description = self._description() | {"weights_checksum": file_checksum(directory / "weights.npy")}
        if scales_checksum:
            os.replace(directory / "scaling.npy.partial", directory / "scaling.npy")
            description["scaling"] = {**description["scaling"], "checksum": scales_checksum}
        else:
            (directory / "scaling.npy").unlink(missing_ok=True)  # of a model that was here before
        text = json.dumps(description, indent=1, allow_nan=False) + "\n"
        write_file_atomically(directory / "model.json", text.encode())
        sync_directory(directory.parent)

    def _description(self) -> dict[str, Any]:
        assert self.tie_order is not None
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "loss": self.loss,
            "method": self.method,
            "C": self.C,
            "n_features": self.n_features,
            "bias": self.bias,
            "free_bias": self.free_bias,
            "intercept": self.intercept.tolist(),
            "classes": self.classes.tolist(),
            "label_kind": self.label_kind,
            "code": self.code.tolist(),
            "tie_order": self.tie_order.tolist(),
            **({"ridge": self.ridge, "slack": self.slack} if self.loss == "twin" else {}),
            "class_weight": {self.label_text(label): weight for label, weight in self.class_weight.items()},
            "index_base": self.index_base,
            "fingerprint": self.fingerprint,
            "versions": self.versions,
            "certificate": self.certificate,
            "scaling": self.scaling.to_json() if self.scaling.changes_values else None,
        }

    def _score_code(self) -> np.ndarray:
        """The matrix that turns decisions into scores, shape (n_vectors, n_classes)."""
        if self.is_binary:
            return np.array([[-1.0, 1.0]])
        # Adding a constant to a vector's column adds the same to every class's score. (M + 1)/2 makes the one-vs-rest code
        # the identity, and its scores the decisions themselves, to the last bit.
        code = self.code if (self.code == 0).any() else (self.code + 1) // 2
        return code.T.astype(np.float64)

    def _one_vector_per_class(self) -> bool:
        return self.n_classes == self.n_vectors and np.array_equal(self._score_code(), np.eye(self.n_classes))


def plane_distances(h: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """``|h_k| / ‖w_k‖`` of rows and planes; a plane with ``‖w‖ = 0`` is infinitely far."""
    distances = np.full(h.shape, np.inf)
    return np.divide(np.abs(h), norms, out=distances, where=norms > 0)


def path_directory(model_path: Path, C: float) -> Path:
    """Where the model of one C of a path lies inside a run's ``model``."""
    return model_path / f"C={C!r}"


def models_of_path(path: str | os.PathLike[str]) -> dict[float, Path]:
    """The models of a path over C, by C ascending; empty where a run or model has but one."""
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
        Which model of a path over C; needed where the run has several and no best one.
    memory : int or str, optional
        Bound on the process's resident memory, which the weights have to respect.

    Returns
    -------
    Model

    Raises
    ------
    ModelError
        Where there is none, or it is damaged.
    UsageError
        Where it does not fit in `memory`.
    """
    directory = _model_directory(path, C)
    if memory is not None and (directory / "weights.npy").exists():
        files = [directory / name for name in ("weights.npy", "scaling.npy")]
        require(
            parse_size(memory), {"the model": sum(file.stat().st_size for file in files if file.exists())}
        )
    try:
        description = json.loads((directory / "model.json").read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError(_missing(Path(path))) from None
    except ValueError as error:
        raise ModelError(f"{directory / 'model.json'}: damaged ({error})") from None
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise ModelError(f"{directory / 'model.json'}: expected a {FORMAT}, found something else")
    if description.get("format_version") != FORMAT_VERSION:
        raise ModelError(
            f"{directory / 'model.json'}: expected format version {FORMAT_VERSION}, found "
            f"{description.get('format_version')}; use the version of streamcd that wrote it"
        )
    try:
        weights = _read_weights(directory / "weights.npy", description)
        model = _model_from(description, weights, _read_scaling(directory / "scaling.npy", description))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{directory / 'model.json'}: damaged ({error!r})") from None
    if C is not None and model.C != C:
        raise ModelError(f"{path} holds no model for C = {C:g}; its model has C = {model.C}")
    return model


def stored_certificate(path: Path) -> dict[str, Any] | None:
    """What the model in a directory says of the end of its training; None where there is no whole model."""
    try:
        description = json.loads((path / "model.json").read_bytes())
    except (OSError, ValueError):
        return None
    certificate = description.get("certificate")
    return dict(certificate) if certificate and (path / "weights.npy").exists() else None


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
        return f"{path}: this run has no model yet; 'streamcd resume {path}' goes on with it"
    if path.is_file():
        return f"{path} is a file; expected a run or a model ('streamcd import {path} MODEL' reads LIBLINEAR's text)"
    found = "no model.json in it" if path.exists() else "nothing there"
    return f"{path}: expected a run or a model, found {found}"


def _read_weights(path: Path, description: dict[str, Any]) -> np.ndarray:
    from .parquet import file_checksum

    if not path.exists():
        raise ModelError(f"{path}: the file is missing")
    if file_checksum(path) != description["weights_checksum"]:
        raise ModelError(f"{path}: checksum differs from model.json's, the file was changed or damaged")
    weights: np.ndarray = np.load(path, allow_pickle=False)
    if weights.ndim != 2 or weights.shape[0] != description["n_features"]:
        raise ModelError(
            f"{path}: expected {description['n_features']} rows of weights, found shape {weights.shape}"
        )
    return weights


def _read_scaling(path: Path, description: dict[str, Any]) -> Scaling:
    from .parquet import file_checksum

    found = description.get("scaling")
    if found is None or found["scale"] == "none":
        return Scaling.from_json(found)
    if not path.exists():
        raise ModelError(f"{path}: the file is missing")
    if file_checksum(path) != found["checksum"]:
        raise ModelError(f"{path}: checksum differs from model.json's, the file was changed or damaged")
    scales: np.ndarray = np.load(path, allow_pickle=False)
    if scales.shape != (description["n_features"],):
        raise ModelError(f"{path}: expected {description['n_features']} scales, found shape {scales.shape}")
    return Scaling.from_json(found, scales)


def _model_from(description: dict[str, Any], weights: np.ndarray, scaling: Scaling) -> Model:
    return Model(
        weights=weights,
        intercept=np.array(description["intercept"], dtype=np.float64),
        classes=np.array(description["classes"], dtype=np.float64),
        code=np.array(description["code"], dtype=np.int8).reshape(-1, weights.shape[1]),
        loss=description["loss"],
        C=description["C"],
        method=description["method"],
        bias=description["bias"],
        ridge=description.get("ridge", 1.0),
        slack=description.get("slack", "hinge"),
        free_bias=description.get("free_bias", False),
        index_base=description["index_base"],
        label_kind=description["label_kind"],
        class_weight={float(label): weight for label, weight in description["class_weight"].items()},
        tie_order=np.array(description["tie_order"], dtype=np.int64),
        fingerprint=description["fingerprint"],
        versions=description["versions"],
        certificate=description["certificate"],
        scaling=scaling,
    )


# ---------------------------------------------------------------------------------------------------------------------
# LIBLINEAR's text format


def export_liblinear(model: Model, path: str | os.PathLike[str], listener: Listener | None = None) -> None:
    """Write a model as LIBLINEAR's text, 17 digits a weight; LIBLINEAR then predicts the same.

    Of two classes the positive one comes first on the ``label`` line. Codes other than one-vs-rest are folded into
    one vector per class. The file is written block by block under a temporary name.

    Weights are divided by the features' scales, so that the text is right for values as they are in the source. Of rows
    of unit norm the text can hold nothing: without a bias a row's norm does not change its label, but its decision values;
    with one it may change the label.

    Raises
    ------
    ModelError
        Where LIBLINEAR cannot hold the model: labels that are not integers; rows of unit norm and a bias; twin planes.
    """
    if model.loss == "twin":
        raise ModelError(
            "LIBLINEAR's text cannot hold a twin model: LIBLINEAR predicts the largest w·x, a twin model the nearest plane"
        )
    if model.scaling.normalize != "none":
        _check_export_of_unit_rows(model, listener)
    if not (np.array_equal(model.classes, np.rint(model.classes)) and np.abs(model.classes).max() < 2**31):
        raise ModelError(
            f"LIBLINEAR's labels are integers of 32 bits, the model's are {', '.join(model.label_texts()[:5])}"
        )
    if model.index_base == 0 and listener is not None:
        listener.warning(
            "the model's data counts features from 0, LIBLINEAR from 1: add 1 to each index given to LIBLINEAR"
        )
    target = Path(path)
    partial = target.with_name(target.name + ".partial")
    try:
        with open(partial, "w", encoding="ascii", newline="\n") as file:
            _write_liblinear(model, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _check_export_of_unit_rows(model: Model, listener: Listener | None) -> None:
    if model.bias >= 0 and model.intercept.any():
        raise ModelError(
            "the model was trained on rows of unit norm (--normalize l2) and has a bias: for a row of another norm "
            "LIBLINEAR would predict another label; train without --bias, or convert without --normalize l2"
        )
    if listener is not None:
        listener.warning(
            "the model was trained on rows of unit norm (--normalize l2): LIBLINEAR predicts the same labels, but its "
            "decision values and probabilities are those of rows of unit norm only if the rows it is given are so"
        )


def _write_liblinear(model: Model, file: TextIO) -> None:
    assert model.tie_order is not None
    names = {problem: name for name, problem in LIBLINEAR_SOLVERS.items()}
    # Trained by another method, the model still solves the problem that LIBLINEAR's dual solver is named after.
    name = names.get((model.loss, model.method)) or names.get((model.loss, "dual"))
    if name is None:
        raise ModelError(f"LIBLINEAR has no problem with the loss {model.loss}")
    order = model.tie_order
    if model.n_classes == 2:
        # LIBLINEAR predicts the first label where the decision is positive, the second one at zero.
        order = order[::-1]
    if model.is_binary and name != "MCSVM_CS":
        columns = np.array([[1.0 if order[0] == 1 else -1.0]])
    else:
        columns = model._score_code()[:, order]
    file.write(f"solver_type {name}\nnr_class {model.n_classes}\n")
    file.write("label " + " ".join(str(int(model.classes[place])) for place in order) + "\n")
    file.write(f"nr_feature {model.n_features}\nbias {model.bias if model.bias >= 0 else -1:.17g}\nw\n")
    rows = max(1, _EXPORT_BLOCK // max(model.n_vectors, columns.shape[1]))
    for start in range(0, model.n_features, rows):
        weights = model.weights[start : start + rows]
        if model.scaling.scales is not None:
            weights = weights / model.scaling.scales[start : start + rows, np.newaxis]
        _write_weights(file, weights, columns)
    if model.bias >= 0:
        _write_weights(file, model.bias_weight[np.newaxis], columns)


def _write_weights(file: TextIO, weights: np.ndarray, columns: np.ndarray) -> None:
    row_format = "%.17g " * columns.shape[1] + "\n"
    # + 0.0 turns -0 into 0
    file.write("".join([row_format % tuple(row) for row in (weights @ columns + 0.0).tolist()]))


def import_liblinear(path: str | os.PathLike[str]) -> Model:
    """Read a model from LIBLINEAR's text; it then predicts the same as in LIBLINEAR.

    Raises
    ------
    ModelError
        Where the text is malformed, or the problem is none of `LIBLINEAR_SOLVERS`.
    """
    try:
        with open(path, encoding="ascii") as file:
            header = _read_header(file, path)
            loss, method = LIBLINEAR_SOLVERS[header["solver_type"]]
            n_classes, n_features, bias = (
                int(header["nr_class"]),
                int(header["nr_feature"]),
                float(header["bias"]),
            )
            label = [int(text) for text in header["label"].split()]
            if len(set(label)) != n_classes or n_classes < 1 or n_features < 0 or not np.isfinite(bias):
                raise ValueError(
                    f"{n_classes} classes, {len(label)} labels, {n_features} features and bias {bias}"
                )
            n_columns = 1 if n_classes == 2 and loss != "crammer_singer" else n_classes
            table = _read_table(file, n_features + (bias >= 0), n_columns)
    except UnicodeDecodeError as error:
        raise ModelError(
            f"{path}: expected LIBLINEAR's model text, found {error.object[error.start]:#x}"
        ) from None
    except (ValueError, KeyError) as error:
        raise ModelError(f"{path}: malformed model text: {error}") from None
    classes = np.sort(np.array(label, dtype=np.float64))
    place = np.searchsorted(classes, label)
    if n_columns == 1 and n_classes == 2:
        code = np.array([[-1], [1]])
        table = table if place[0] == 1 else -table
    else:
        code = np.eye(n_classes) if loss == "crammer_singer" else 2 * np.eye(n_classes) - 1
        table = table[:, np.argsort(place)]
    return Model(
        weights=table[:n_features],
        intercept=table[n_features] * bias if bias >= 0 else np.zeros(n_columns),
        classes=classes,
        code=code,
        loss=loss,
        C=None,
        method=method,
        bias=bias if bias >= 0 else -1.0,
        tie_order=place[::-1] if n_classes == 2 else place,
    )


def _read_header(file: TextIO, path: str | os.PathLike[str]) -> dict[str, str]:
    header: dict[str, str] = {}
    for line in islice(file, 100):
        key, _, rest = line.strip().partition(" ")
        if key == "w":
            break
        header[key] = rest
    else:
        raise ModelError(f"{path}: expected LIBLINEAR's model text, found no line 'w' after its header")
    for key in ("solver_type", "nr_class", "label", "nr_feature", "bias"):
        if key not in header:
            raise ModelError(f"{path}: the line '{key}' is missing; only models of classifiers can be read")
    if header["solver_type"] not in LIBLINEAR_SOLVERS:
        raise ModelError(
            f"{path}: solver_type {header['solver_type']} is not L2-regularised classification; "
            f"expected one of {', '.join(LIBLINEAR_SOLVERS)}"
        )
    return header


def _read_table(file: Iterable[str], n_rows: int, n_columns: int) -> np.ndarray:
    table = np.empty((n_rows, n_columns))
    lines: Iterator[str] = (line for line in file if not line.isspace())
    rows = max(1, _EXPORT_BLOCK // n_columns)
    for start in range(0, n_rows, rows):
        stop = min(n_rows, start + rows)
        tokens = " ".join(islice(lines, stop - start)).split()
        if len(tokens) != (stop - start) * n_columns:
            raise ValueError(
                f"expected {n_rows} rows of {n_columns} weights, found {len(tokens)} of "
                f"{(stop - start) * n_columns} numbers in the rows from {start} on"
            )
        table[start:stop] = np.array([float(token) for token in tokens]).reshape(-1, n_columns)
    if not np.isfinite(table).all():
        raise ValueError("a weight that is not finite")
    if next(lines, None) is not None:
        raise ValueError(f"expected {n_rows} rows of weights, found more")
    return table

"""Reading and writing of models in LIBLINEAR's text format."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from ..core.atomic_files import begins_with, check_output, refuse_other_ending, replacing
from ..core.errors import ModelError, StreamcdError
from ..core.memory_budget import format_size
from ..core.progress import Listener, counted
from ..kernels.loss_table import CLASSES, LOSSES, PLANES, form_of, has_targets
from .model import Model
from .named_weights import weight_blocks
from .sparse_weights import SparseWeights

_NAMES = {
    0: "L2R_LR",
    1: "L2R_L2LOSS_SVC_DUAL",
    2: "L2R_L2LOSS_SVC",
    3: "L2R_L1LOSS_SVC_DUAL",
    4: "MCSVM_CS",
    7: "L2R_LR_DUAL",
    11: "L2R_L2LOSS_SVR",
    12: "L2R_L2LOSS_SVR_DUAL",
    13: "L2R_L1LOSS_SVR_DUAL",
    21: "ONECLASS_SVM",
}
"""LIBLINEAR's names of its problems, by their numbers."""

LIBLINEAR_SOLVERS: dict[str, tuple[str, str]] = {
    _NAMES[number]: (loss, method)
    for loss, entry in LOSSES.items()
    for method, number in entry.methods.items()
    if number is not None
}
"""Loss and method, by LIBLINEAR's name of the problem."""

_OF_L1 = {"squared_hinge": "L1R_L2LOSS_SVC", "log_loss": "L1R_LR"}
"""LIBLINEAR's names of the problems with the penalty l1, by loss."""

_OF_TARGETS = "L2R_L2LOSS_SVR"
"""The problem by which a model of numbers is written whose loss LIBLINEAR does not have: all predict w·x."""

_EXPORT_BLOCK = 1 << 16  # weights written or read at a time: a few MB of text


def export_liblinear(model: Model, path: Path, listener: Listener, *, force: bool) -> None:
    """Write a model in LIBLINEAR's text format, with 17 digits per weight; LIBLINEAR then predicts the same labels.

    With two classes, the positive one comes first on the ``label`` line. Code matrices other than one-vs-rest are converted
    to one vector per class. Weights are divided by the features'
    scales, so that the model applies to the source's values. Calibrated probabilities are left out, with a warning.

    The format cannot express that rows are scaled to unit norm. Without a bias a row's norm changes its decision values, not
    its label, and a warning says so; with a bias it may change the label, which is an error.

    Raises
    ------
    ModelError
        If the format cannot hold the model: labels that are not integers, rows of unit norm with a bias, twin planes.
    UsageError
        If `path` exists, without `force` or as another kind of file, or ends as files of another format do.
    """
    is_kind = partial(begins_with, pattern=b"solver_type ")
    refuse_other_ending(path, "LIBLINEAR's text")
    check_output(path, "a model of LIBLINEAR's", is_kind, force=force)
    _check_export(model)
    for warning in _lost_in_export(model):
        listener.warning(warning)
    with replacing(path) as new, open(new, "w", encoding="ascii", newline="\n") as file:
        _write_liblinear(model, file)


def _check_export(model: Model) -> None:
    """Refuse a model that the format cannot hold."""
    if form_of(model.loss) == PLANES:
        raise ModelError(
            "LIBLINEAR's text cannot hold a twin model: LIBLINEAR predicts the largest w·x, a twin model the nearest plane"
        )
    if model.scaling.normalize != "none" and model.has_targets:
        raise ModelError(
            "the model was trained on rows of unit norm (--normalize l2): for a row of another norm LIBLINEAR would predict "
            "another number; convert without --normalize l2"
        )
    if model.scaling.normalize != "none" and model.intercept.any():
        raise ModelError(
            "the model was trained on rows of unit norm (--normalize l2) and has a bias: for a row of another norm "
            "LIBLINEAR would predict another label; train with --bias none, or convert without --normalize l2"
        )
    if model.indices is not None and model.indices.max(initial=0) >= 2**31:
        raise ModelError(
            f"LIBLINEAR's indices are integers of 32 bits, the model's are up to {model.indices.max()}; csv, parquet and "
            "json hold its weights"
        )
    largest = np.abs(model.classes).max(initial=0.0)
    if not (np.array_equal(model.classes, np.rint(model.classes)) and largest < 2**31):
        raise ModelError(
            f"LIBLINEAR's labels are integers of 32 bits, the model's are {', '.join(model.label_texts()[:5])}"
        )


def _lost_in_export(model: Model) -> Iterator[str]:
    """Tell what the format leaves out, or says otherwise."""
    if model.has_targets and not any(loss == model.loss for loss, _ in LIBLINEAR_SOLVERS.values()):
        yield f"LIBLINEAR has no loss {model.loss}: the model is written as {_OF_TARGETS}, which predicts the same numbers"
    if model.scaling.normalize != "none":
        yield (
            "the model was trained on rows of unit norm (--normalize l2): LIBLINEAR predicts the same labels, but its "
            "decision values and probabilities are those of rows of unit norm only if the rows it is given are so"
        )
    if model.index_base == 0:
        yield "the model's data counts features from 0, LIBLINEAR from 1: add 1 to each index given to LIBLINEAR"
    if model.class_names is not None:
        numbered = ", ".join(f"{number} = {name}" for number, name in enumerate(model.class_names[:5]))
        more = ", …" if len(model.class_names) > 5 else ""
        yield f"LIBLINEAR's labels are integers: the classes are numbered, {numbered}{more}"


def _write_liblinear(model: Model, file: TextIO) -> None:
    assert model.tie_order is not None
    names = {problem: name for name, problem in LIBLINEAR_SOLVERS.items()}
    # a model trained by another method still solves the problem of LIBLINEAR's dual solver
    name = names.get((model.loss, model.method)) or names.get((model.loss, "dual"))
    if model.l1:
        name = _OF_L1.get(model.loss, name)
    if name is None and model.has_targets:
        name = _OF_TARGETS
    if name is None:
        raise ModelError(f"LIBLINEAR has no problem with the loss {model.loss}")
    # with two classes LIBLINEAR predicts the first label if the decision is positive, the second at zero
    order = model.tie_order[::-1] if model.n_classes == 2 else model.tie_order
    if model.has_targets:
        columns = np.ones((1, 1))
        file.write(f"solver_type {name}\nnr_class 2\n")  # without labels, as LIBLINEAR writes it
    else:
        columns = model.choice.score_code()[:, order]
        if model.is_binary and name != "MCSVM_CS":
            columns = columns[:, :1]
        file.write(f"solver_type {name}\nnr_class {model.n_classes}\n")
        file.write("label " + " ".join(str(int(label)) for label in model.classes[order]) + "\n")
    weights, scales = _by_index(model)
    file.write(f"nr_feature {weights.shape[0]}\nbias {model.bias if model.bias >= 0 else -1:.17g}\n")
    file.write("w\n")
    for _, block in weight_blocks(weights, scales, columns, _EXPORT_BLOCK):
        _write_weights(file, block)
    if model.bias >= 0:
        _write_weights(file, model.bias_weight[np.newaxis] @ columns + 0.0)


def _by_index(model: Model) -> tuple[np.ndarray | SparseWeights, np.ndarray | None]:
    """Return the weights by index in the source, and the divisors of these features, unless they are divided already."""
    if model.indices is None:
        return model.kept_weights, model.scaling.scales
    order = np.argsort(model.indices)
    place = model.indices[order] - model.index_base
    return SparseWeights(place, model.source_weights[order], int(place.max(initial=-1)) + 1), None


def _write_weights(file: TextIO, weights: np.ndarray) -> None:
    row_format = "%.17g " * weights.shape[1] + "\n"
    file.write("".join([row_format % tuple(row) for row in weights.tolist()]))


def import_liblinear(path: str) -> Model:
    """Read a model in LIBLINEAR's text format; it predicts the same labels, or numbers, as in LIBLINEAR.

    Parameters
    ----------
    path : path

    Returns
    -------
    Model

    Raises
    ------
    ModelError
        If the text is malformed, or the model is not of one of the problems solved here (`LIBLINEAR_SOLVERS`).
    """
    try:
        with open(path, encoding="ascii") as file:
            header = _read_header(file, path)
            n_rows = header.n_features + (header.bias >= 0)
            _check_size(file, n_rows, header.n_columns)
            table = _read_table(file, n_rows, header.n_columns)
    except UnicodeDecodeError as error:
        raise ModelError(
            f"{path}: expected LIBLINEAR's model text, found {error.object[error.start]:#x}"
        ) from None
    except StreamcdError:
        raise
    except ValueError as error:
        raise ModelError(f"{path}: malformed model text: {error}") from None
    except MemoryError:
        raise ModelError(
            f"{path}: the {header.n_features:,} features' weights do not fit in this machine's memory; free some of it"
        ) from None
    return _make_model(header, table)


class _Header(NamedTuple):
    """The lines before the weights."""

    loss: str
    method: str
    labels: list[int]
    n_features: int
    bias: float
    by_l1: bool = False

    @property
    def n_columns(self) -> int:
        """Number of weights on a line."""
        n_classes = len(self.labels) or 2
        return 1 if n_classes == 2 and form_of(self.loss) != CLASSES else n_classes


def _make_model(header: _Header, table: np.ndarray) -> Model:
    bias, n_features, n_classes = header.bias, header.n_features, len(header.labels)
    classes = np.sort(np.array(header.labels, dtype=np.float64))
    class_index = np.searchsorted(classes, header.labels)
    if not n_classes:
        code = np.zeros((0, 1))
    elif n_classes == 2 and header.n_columns == 1:
        code = np.array([[-1], [1]])
        table = table if class_index[0] == 1 else -table
    else:
        code = np.eye(n_classes) if form_of(header.loss) == CLASSES else 2 * np.eye(n_classes) - 1
        table = table[:, np.argsort(class_index)]
    return Model(
        weights=table[:n_features],
        intercept=table[n_features] * bias if bias >= 0 else np.zeros(header.n_columns),
        classes=classes,
        code=code,
        loss=header.loss,
        C=None,
        method=header.method,
        bias=bias if bias >= 0 else -1.0,
        l1=1.0 if header.by_l1 else 0.0,
        l2=0.0 if header.by_l1 else 1.0,
        tie_order=class_index[::-1] if n_classes == 2 else class_index,
    )


def _read_header(file: TextIO, path: str) -> _Header:
    lines: dict[str, str] = {}
    for line in islice(file, 100):
        key, _, rest = line.strip().partition(" ")
        if key == "w":
            break
        lines[key] = rest
    else:
        raise ModelError(f"{path}: expected LIBLINEAR's model text, found no line 'w' after its header")
    solver_type = lines.get("solver_type", "")
    loss, method = LIBLINEAR_SOLVERS.get(solver_type, ("", ""))
    by_l1 = {name: loss for loss, name in _OF_L1.items()}
    if solver_type in by_l1:
        loss, method = by_l1[solver_type], "newton"
    own = () if has_targets(loss) else ("label",)
    for key in ("solver_type", "nr_class", *own, "nr_feature", "bias"):
        if key not in lines:
            raise ModelError(
                f"{path}: the line '{key}' is missing; only models of classifiers and of regression can be read"
            )
    if not loss:
        raise ModelError(
            f"{path}: solver_type {solver_type} is no problem of LIBLINEAR's; "
            f"expected one of {', '.join([*LIBLINEAR_SOLVERS, *by_l1])}"
        )
    n_classes, n_features, bias = int(lines["nr_class"]), int(lines["nr_feature"]), float(lines["bias"])
    if has_targets(loss):
        if not (n_classes == 2 and n_features >= 0 and np.isfinite(bias)):
            raise ValueError(f"{n_classes} classes, {n_features} features and bias {bias}")
        return _Header(loss, method, [], n_features, bias)
    labels = [int(text) for text in lines["label"].split()]
    if not (len(set(labels)) == len(labels) == n_classes >= 1 and n_features >= 0 and np.isfinite(bias)):
        raise ValueError(f"{n_classes} classes, {len(labels)} labels, {n_features} features and bias {bias}")
    return _Header(loss, method, labels, n_features, bias, solver_type in by_l1)


def _check_size(file: TextIO, n_rows: int, n_columns: int) -> None:
    """Refuse a header that promises more weights than the file can hold, before room is made for them."""
    status = os.fstat(file.fileno())
    most = (status.st_size + 1) // 2  # a digit and a space each
    if stat.S_ISREG(status.st_mode) and n_rows * n_columns > most:
        raise ValueError(
            f"the header promises {n_rows:,} rows of {counted(n_columns, 'weight')}, the file's "
            f"{format_size(status.st_size)} hold at most {most:,} weights; correct nr_feature, or get the file again"
        )


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

"""Reading and writing of models in LIBLINEAR's text format."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TextIO

import numpy as np

from ..core.errors import ModelError, counted, first_of
from ..core.files import begins_with, check_output, refuse_other_ending, replacing
from ..core.memory_budget import BLOCK_WEIGHTS
from ..core.options import Listener
from ..core.setting import default_code
from ..kernels.loss_table import CLASSES, LIBLINEAR_L1_TYPES, LIBLINEAR_TYPES, LOSSES, PLANES
from .model import Model, ModelFile, stored_code
from .named_weights import weight_blocks

_NAMES = {
    0: "L2R_LR",
    1: "L2R_L2LOSS_SVC_DUAL",
    2: "L2R_L2LOSS_SVC",
    3: "L2R_L1LOSS_SVC_DUAL",
    4: "MCSVM_CS",
    5: "L1R_L2LOSS_SVC",
    6: "L1R_LR",
    7: "L2R_LR_DUAL",
    11: "L2R_L2LOSS_SVR",
    12: "L2R_L2LOSS_SVR_DUAL",
    13: "L2R_L1LOSS_SVR_DUAL",
}
"""LIBLINEAR's names of its problems, by their numbers."""

_PROBLEMS: dict[str, tuple[str, str, bool]] = {
    **{_NAMES[number]: (loss, method, False) for number, (loss, method) in LIBLINEAR_TYPES.items()},
    **{_NAMES[number]: (loss, "newton", True) for number, loss in LIBLINEAR_L1_TYPES.items()},
}
"""Loss, method, and whether the penalty is l1, by LIBLINEAR's name of the problem."""

_OF_TARGETS = "L2R_L2LOSS_SVR"
"""The problem by which a model of numbers is written whose loss LIBLINEAR does not have: all predict w·x."""


def export_liblinear(model: Model, path: Path, listener: Listener, *, force: bool) -> None:
    """Write a model in LIBLINEAR's text format, with 17 digits per weight; LIBLINEAR then predicts the same labels.

    With two classes, the positive one comes first on the ``label`` line. Code matrices other than one-vs-rest are converted
    to one vector per class. Weights are divided by the features' scales, so that the model applies to the source's values.

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
    far = 0 if model.indices is None else int(model.indices.max(initial=0))
    whole = (
        np.array_equal(model.classes, np.rint(model.classes))
        and np.abs(model.classes).max(initial=0.0) < 2**31
    )
    lacking = {
        "a twin model is no linear one: it predicts the nearest plane, LIBLINEAR the largest w·x": LOSSES[
            model.loss
        ].form
        == PLANES,
        "for rows of another norm than those of --normalize l2 LIBLINEAR would predict another label or number: train with "
        "--bias none, or convert without --normalize l2": model.scaling.normalize != "none"
        and (model.has_targets or bool(model.intercept.any())),
        f"LIBLINEAR's indices are integers of 32 bits, the model's are up to {far}; json holds its weights": far
        >= 2**31,
        f"LIBLINEAR's labels are integers of 32 bits, the model's are {', '.join(model.label_texts()[:5])}": not whole,
    }
    for text, is_so in lacking.items():
        if is_so:
            raise ModelError(f"LIBLINEAR's text cannot hold the model: {text}")
    if model.has_targets and not any(loss == model.loss for loss, *_ in _PROBLEMS.values()):
        listener.warning(
            f"LIBLINEAR has no loss {model.loss}: the model is written as {_OF_TARGETS}, which predicts the same numbers"
        )
    if model.scaling.normalize != "none":
        listener.warning(
            "the model was trained on rows of unit norm (--normalize l2): LIBLINEAR predicts the same labels, but its "
            "decision values and probabilities are those of rows of unit norm only if the rows it is given are so"
        )
    if model.index_base == 0:
        listener.warning(
            "the model's data counts features from 0, LIBLINEAR from 1: add 1 to each index given to LIBLINEAR"
        )
    if model.class_names is not None:
        numbered = [f"{number} = {name}" for number, name in enumerate(model.class_names)]
        listener.warning(
            f"LIBLINEAR's labels are integers: the classes are numbered, {first_of(numbered, 5)}"
        )
    with replacing(path) as (new,), open(new, "w", encoding="ascii", newline="\n") as file:
        _write_liblinear(model, file)


def _write_liblinear(model: Model, file: TextIO) -> None:
    names = {problem: name for name, problem in _PROBLEMS.items()}
    # a model trained by another method still solves the problem of LIBLINEAR's dual solver, or of newton with l1
    tried = (
        (model.loss, "newton", bool(model.l1)),
        (model.loss, model.method, False),
        (model.loss, "dual", False),
    )
    name = next((names[problem] for problem in tried[not model.l1 :] if problem in names), None)
    if name is None and not model.has_targets:
        raise ModelError(f"LIBLINEAR has no problem with the loss {model.loss}")
    name = name or _OF_TARGETS
    # with two classes LIBLINEAR predicts the first label if the decision is positive, the second at zero
    order = model.tie_order[::-1] if model.n_classes == 2 else model.tie_order
    file.write(f"solver_type {name}\nnr_class {2 if model.has_targets else model.n_classes}\n")
    if model.has_targets:
        columns = np.ones((1, 1))  # without labels, as LIBLINEAR writes it
    else:
        columns = model.decoder.score_code()[:, order]
        if model.is_binary and name != "MCSVM_CS":
            columns = columns[:, :1]
        file.write("label " + " ".join(str(int(label)) for label in model.classes[order]) + "\n")
    # features in the order of their indices in the source
    end = model.n_features
    if model.indices is not None:
        end = int(model.indices.max(initial=model.index_base - 1)) + 1 - model.index_base
    file.write(f"nr_feature {end}\nbias {model.bias if model.bias >= 0 else -1:.17g}\nw\n")
    if model.indices is None:
        for _, block in weight_blocks(model.matrix, model.scaling.scales, columns):
            _write_weights(file, block)
    else:
        order = np.argsort(model.indices)
        row = model.indices[order] - model.index_base
        rows = max(1, BLOCK_WEIGHTS // columns.shape[1])
        for start in range(0, end, rows):
            first, last = np.searchsorted(row, [start, start + rows])
            block = np.zeros((min(rows, end - start), columns.shape[1]))
            block[row[first:last] - start] = model.source_weights[order[first:last]] @ columns + 0.0
            _write_weights(file, block)
    if model.bias >= 0:
        _write_weights(file, model.bias_weight[np.newaxis] @ columns + 0.0)


def _write_weights(file: TextIO, weights: np.ndarray) -> None:
    row_format = "%.17g " * weights.shape[1] + "\n"
    file.write("".join([row_format % tuple(row) for row in weights.tolist()]))


# ---------------------------------------------------------------------------------------------------------------------
# Reading


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
        If the text is malformed, or the model is not of one of the problems solved here.
    """
    try:
        with open(path, encoding="ascii") as file:
            return _read(file)
    except UnicodeDecodeError as error:
        found = f"expected LIBLINEAR's model text, found {error.object[error.start]:#x}"
    except KeyError as error:
        found = f"the line {error} is missing; only models of classifiers and of regression can be read"
    except ValueError as error:
        found = f"malformed model text: {error}"
    raise ModelError(f"{path}: {found}")


def _read(file: TextIO) -> Model:
    """Read a model; raises ValueError, or KeyError for a line that is missing."""
    lines: dict[str, str] = {}
    for line in islice(file, 100):
        key, _, rest = line.strip().partition(" ")
        lines[key] = rest
        if key == "w":
            break
    else:
        raise ValueError("expected LIBLINEAR's model text, found no line 'w' after its header")
    loss, method, by_l1 = _PROBLEMS.get(lines["solver_type"], ("", "", False))
    if not loss:
        raise ValueError(
            f"solver_type {lines['solver_type']} is no problem of LIBLINEAR's; expected one of {', '.join(_PROBLEMS)}"
        )
    n_classes = int(lines["nr_class"])
    n_features = int(lines["nr_feature"])
    bias = float(lines["bias"])
    labels = [] if LOSSES[loss].has_targets else [int(text) for text in lines["label"].split()]
    n_expected = len(set(labels)) or 2
    if (
        n_classes != n_expected
        or len(labels) not in (0, n_classes)
        or n_features < 0
        or not np.isfinite(bias)
    ):
        raise ValueError(f"{n_classes} classes, {len(labels)} labels, {n_features} features and bias {bias}")
    n_columns = 1 if n_classes == 2 and LOSSES[loss].form != CLASSES else n_classes
    table = _read_table(file, n_features + (bias >= 0), n_columns)
    classes = np.sort(np.array(labels, dtype=np.float64))
    class_index = np.searchsorted(classes, labels)
    code = default_code(LOSSES[loss].form, n_classes) if labels else np.zeros((0, 1))
    if n_classes == 2 and n_columns == 1 and labels:
        table = table if class_index[0] == 1 else -table
    elif labels:
        table = table[:, np.argsort(class_index)]
    record = ModelFile(
        loss=loss,
        C=None,
        n_features=n_features,
        intercept=(table[n_features] * bias if bias >= 0 else np.zeros(n_columns)).tolist(),
        classes=classes.tolist(),
        code=stored_code(loss, code),
        tie_order=(class_index[::-1] if n_classes == 2 else class_index).tolist(),
        method=method,
        bias=bias if bias >= 0 else -1.0,
        l1=float(by_l1),
        l2=float(not by_l1),
    )
    return Model(record, table[:n_features])


def _read_table(file: TextIO, n_rows: int, n_columns: int) -> np.ndarray:
    """Read the weights. Rows that a header only promises take no memory: the system gives it when they are written."""
    try:
        table = np.empty((n_rows, n_columns))
    except MemoryError:
        raise ValueError(
            f"{n_rows:,} rows of {counted(n_columns, 'weight')}, which do not fit in this machine's memory; correct "
            "nr_feature, or free some memory"
        ) from None
    lines: Iterator[str] = (line for line in file if not line.isspace())
    rows = max(1, BLOCK_WEIGHTS // n_columns)
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

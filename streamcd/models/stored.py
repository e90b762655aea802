"""Models on disk: found, read, verified and described."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import ModelError, StreamcdError, first_of
from ..core.files import describe_other_kind, kind_of_directory, read_metadata
from ..core.memory_budget import parse_size, require
from ..core.options import with_known_keywords
from ..core.setting import Setting
from ..core.storage import local_path
from ..dataset.schema import class_labels
from ..dataset.source_features import Scaling
from ..kernels.loss_table import LOSSES
from .encoding import CATEGORIES_FILE, read_encoding
from .model import Model
from .model_file import MODEL, MODEL_FILES, ModelFile, check_file, read_array, read_weights
from .named_weights import describe_support, describe_weights, vector_labels


def path_directory(model_path: Path, setting: Setting) -> Path:
    """Return the directory, in a run's ``model``, of the model for one C and λ of a path."""
    return model_path / setting.name


def models_of_path(path: str | os.PathLike[str]) -> dict[Setting, Path]:
    """Find the models of a path over C or λ, ascending; empty for a run or model without a path."""
    models = {}
    for inside in (Path(path) / "model", Path(path)):
        for directory in inside.glob("C=*"):
            with suppress(ValueError):  # another's name
                if (directory / "model.json").exists():
                    models[Setting.named(directory.name)] = directory
    return dict(sorted(models.items()))


@with_known_keywords
def load_model(
    path: str | os.PathLike[str] | Model,
    C: float | None = None,
    *,
    l1: float | None = None,
    memory: int | str | None = None,
    deviations: bool = True,
) -> Model:
    """Read a model, or the model of a run.

    Parameters
    ----------
    path : path
        A directory with ``model.json``, or a run; a model is returned.
    C : float, optional
        C of the wanted model of a path; required if the run has models of several C and no best one.
    l1 : float, optional
        λ of the wanted model, likewise.
    memory : int or str, optional
        Bound on the process's resident memory.
    deviations : bool
        Read the standard deviations of the features, which predictions do without.

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
    if isinstance(path, Model):
        return path
    path = local_path(path, "a run or a model")
    directory = find_model(path, C, l1)
    description_path = directory / "model.json"
    try:
        _, record = read_metadata(description_path, MODEL)
    except (FileNotFoundError, NotADirectoryError):
        expected = f"{path}: expected a run or a model"
        if kind_of_directory(path) == "a dataset":
            expected = describe_other_kind(path, "a run or a model")
        elif (path / "config.json").exists():
            # of a run on workers, which `resume` has to be given again
            workers = " --workers N" * (b'"rounds": {' in (path / "config.json").read_bytes())
            expected = (
                f"{path}: this run has no model yet; 'streamcd resume {path}{workers}' goes on with it, "
                f"'streamcd resume {path}{workers} --max-passes 1' ends it with the pass begun"
            )
        elif path.is_file():
            expected += f", found a file ('streamcd import {path} MODEL' reads LIBLINEAR's text)"
        else:
            expected += f", found {'no model.json in it' if path.exists() else 'nothing there'}"
        raise ModelError(expected) from None
    if memory is not None:
        require(parse_size(memory), {"the model": _bytes(directory, record, deviations)})
    try:
        model = _read(directory, record, deviations)
    except StreamcdError:
        raise
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ModelError(f"{description_path}: damaged ({error})") from None
    if C not in (None, model.C) or l1 not in (None, model.l1):
        own = f"C = {model.C}" + (f", l1 = {model.l1:g}" if model.l1 else "")
        raise ModelError(f"{path} holds no model for {_wanted(C, l1)}; its model has {own}")
    return model


def is_model(path: str | os.PathLike[str]) -> bool:
    """Check for a model in a directory, or for those of a path over C or λ."""
    return (Path(path) / "model.json").exists() or bool(models_of_path(path))


def is_unfinished(path: str | os.PathLike[str]) -> bool:
    """Check if a directory is empty but for files that a killed `Model.save` may leave."""
    left = MODEL_FILES.union(f"{name}.partial" for name in (*MODEL_FILES, "model.json"))
    return os.path.isdir(path) and left.issuperset(os.listdir(path))


def verify_model(path: Path, *, memory: int | str) -> list[str]:
    """Check the model in a directory, or those of a path over C or λ; returns the problems, one line each."""
    problems = []
    for directory in models_of_path(path).values() or [find_model(path)]:
        try:
            model = load_model(directory, memory=memory)
            if not np.isfinite(model.matrix.data if model.is_sparse else model.matrix).all():
                problems.append(f"{directory / model.weights_file}: a weight that is not finite")
        except ModelError as error:
            problems.append(str(error))
    return problems


def stored_certificate(path: Path) -> dict[str, Any] | None:
    """Read the certificate of the model in a directory; None if there is no complete model."""
    try:
        _, record = read_metadata(path / "model.json", MODEL)
    except (OSError, ModelError):
        return None
    return record.certificate if record.certificate and (path / record.weights_file).exists() else None


def find_model(path: str | os.PathLike[str], C: float | None = None, l1: float | None = None) -> Path:
    """Find the directory of a model, of a run, or of one C and λ of a path."""
    inside = Path(path) / "model"
    directory = inside if (inside / "model.json").exists() else Path(path)
    single = (directory / "model.json").exists()
    models = models_of_path(path)
    if not models or (C is None and l1 is None and single):
        return directory
    return models[choose(list(models), C, l1, f"{path} holds")]


def choose(models: Sequence[Setting], C: float | None, l1: float | None, holder: str) -> Setting:
    """Choose the model that is asked for, the only one that fits; raises `ModelError` if there are others or none.

    `holder` is the beginning of a sentence that goes on with "a model for".
    """
    fitting = [setting for setting in models if setting.fits(C, l1)]
    if len(fitting) == 1:
        return fitting[0]
    found = fitting or models
    listed = first_of([*map(str, found)], between="; ")
    names = {"-C": {setting.C for setting in fitting}, "--l1": {setting.l1 for setting in fitting}}
    several = " and ".join(name for name, values in names.items() if len(values) > 1)
    raise ModelError(
        f"{holder} a model for each of {listed}: name one with {several}"
        if fitting
        else f"{holder} no model for {_wanted(C, l1)}; it has {listed}"
    )


def _bytes(directory: Path, record: ModelFile, deviations: bool) -> int:
    """Return the memory that a model takes while it is read, as its files tell."""
    files = {name: directory / name for name in MODEL_FILES if deviations or name != "deviations.npy"}
    sizes = {name: file.stat().st_size for name, file in files.items() if file.exists()}
    if record.is_sparse:  # by vector on disk and by feature in memory, where deviations are of all features
        sizes["by feature"] = sizes.get(record.weights_file, 0) + 4 * record.n_features
        sizes["deviations.npy"] = 8 * record.n_features * ("deviations.npy" in sizes)
    return sum(sizes.values())


def _read(directory: Path, record: ModelFile, with_deviations: bool) -> Model:
    weights = read_weights(directory, record)
    n_features = record.n_features
    scaling = Scaling()
    if record.scaling is not None:
        scales = None
        if record.scaling.scale != "none":
            scales = read_array(directory / "scaling.npy", record.scaling.checksum, n_features)
        scaling = Scaling(record.scaling.scale, record.scaling.normalize, scales, record.scaling.digest)
    indices = None
    if record.indices_checksum:
        indices = read_array(directory / "indices.npy", record.indices_checksum, n_features)
    if record.categories_checksum:
        check_file(directory / CATEGORIES_FILE, record.categories_checksum)
    encoding = record.encoding
    if encoding is not None:
        encoding = read_encoding(directory / CATEGORIES_FILE, encoding)
    deviations = None
    if with_deviations and record.deviations_checksum:
        path = directory / "deviations.npy"
        deviations = np.zeros(n_features)
        known = np.diff(weights.indptr) > 0 if record.is_sparse else np.ones(n_features, np.bool_)
        deviations[known] = read_array(path, record.deviations_checksum, int(known.sum()))
    return Model(record, weights, scaling=scaling, encoding=encoding, indices=indices, deviations=deviations)


# ---------------------------------------------------------------------------------------------------------------------
# Descriptions


@with_known_keywords
def weights(
    model: Model | str | os.PathLike[str],
    top: int = 20,
    label: str | float | None = None,
    *,
    C: float | None = None,
    l1: float | None = None,
) -> dict[str, Any]:
    """List the largest weights of a model by class, `top` of each at most, as ``streamcd weights --json`` prints them.

    `label` names one class of several; `C` and `l1` one of several models, as in `load_model`.

    Examples
    --------
    >>> len(streamcd.weights("run", 3)["classes"][0]["weights"])
    3
    """
    return describe_weights(load_model(model, C, l1=l1), top, label)


def describe_model(path: str | Path) -> dict[str, Any]:
    """Describe a model without keeping its weights in memory.

    Returns
    -------
    dict
        ``kind`` ("model"), ``loss``, ``method``, ``C``, ``labels``, ``n_features``, ``n_vectors``, ``bias``, ``scale``,
        ``normalize``, ``class_weight``, ``gap`` (None where it is not known), ``certificate``, ``fingerprint``,
        ``versions``; ``parameter``, that of the loss by name, None where LIBLINEAR's text does not tell it; with an L1
        penalty ``l1``, ``l2``, ``n_nonzero``, the number of weights that are not 0, and
        ``support``: for each vector ``{vector, n_nonzero, share (of the features)}``;
        ``intercept``: for each vector ``{vector (its label, or number), weight}``; ``next``, a command.

    Raises
    ------
    ModelError
        If it is not a model, or damaged.
    """
    path = Path(path)
    _, stored = read_metadata(path / "model.json", MODEL)
    weights = _mapped_weights(path, stored)
    labels = class_labels(stored.classes, stored.label_kind, stored.class_names)
    scaling = stored.scaling or Scaling()
    n_vectors = int(weights.shape[1])
    parameter = LOSSES[stored.loss].parameter
    same = ("loss", "method", "C", "n_features", "bias", "certificate", "fingerprint", "versions")
    return {
        "kind": "model",
        **{name: getattr(stored, name) for name in same},
        **({} if parameter is None else {"parameter": {parameter.name: stored.parameter}}),
        "labels": labels,
        "n_vectors": n_vectors,
        **describe_support(stored, weights),
        "scale": scaling.scale,
        "normalize": scaling.normalize,
        "class_weight": {
            str(label): stored.class_weight[of]
            for label, of in zip(labels, stored.classes, strict=True)
            if of in stored.class_weight
        },
        "gap": stored.certificate.get("gap"),
        "intercept": [
            {"vector": vector, "weight": weight}
            for vector, weight in zip(vector_labels(stored, n_vectors), stored.intercept, strict=True)
        ],
        "next": f"streamcd predict FILE {path} -o predictions.parquet",
    }


def describe_path(path: str | Path) -> list[dict[str, Any]]:
    """Describe the models of a path: ``C``, ``l1``, and with an L1 penalty the support, as `describe_model` does."""
    described = []
    for setting, directory in models_of_path(path).items():
        _, stored = read_metadata(directory / "model.json", MODEL)
        support = describe_support(stored, _mapped_weights(directory, stored)) if stored.l1 else {}
        described.append({**setting._asdict(), **support})
    return described


def _mapped_weights(path: Path, stored: ModelFile) -> Any:
    """Map the weights of a model, unless they are few; raises `ModelError` where there is no intercept for each vector."""
    if stored.is_sparse:
        weights = read_weights(path, stored)
    else:
        weights = np.load(path / "weights.npy", mmap_mode="r")
    if weights.shape[1:] != (len(stored.intercept),):
        raise ModelError(
            f"{path / 'model.json'}: damaged ({len(stored.intercept)} intercepts for weights of shape {weights.shape})"
        )
    return weights


def _wanted(C: float | None, l1: float | None) -> str:
    """Describe the values that are wanted."""
    wanted = {"C": C, "l1": l1}
    return ", ".join(f"{name} = {value:g}" for name, value in wanted.items() if value is not None)

"""Models on disk: found, read, verified and described."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import ModelError, StreamcdError, UsageError, first_of
from ..core.files import describe_other_kind, kind_of_directory, read_metadata
from ..core.memory_budget import parse_size, require
from ..core.options import with_known_keywords
from ..core.setting import Setting
from ..core.storage import local_path
from ..dataset.arrow_columns import file_checksum
from ..dataset.source_features import Scaling
from ..kernels.loss_table import LOSSES
from .encoding import CATEGORIES_FILE, read_encoding
from .model import MODEL, MODEL_FILES, SPARSE_FILE, Model, ModelFile


def models_of_path(path: Path) -> dict[Setting, Path]:
    """Find the models of a path over C or λ, ascending; empty for a run or model without a path."""
    models = {}
    for inside in (path / "model", path):
        for directory in inside.glob("C=*"):
            with suppress(ValueError):  # another's name
                if (directory / "model.json").exists():
                    models[Setting.named(directory.name)] = directory
    return dict(sorted(models.items()))


def find_model(path: Path, C: float | None = None, l1: float | None = None) -> Path:
    """Find the directory of a model, of a run, or of one C and λ of a path.

    Raises `ModelError` where several models of a path have what is asked for, or none.
    """
    directory = path / "model" if (path / "model" / "model.json").exists() else path
    if C is None and l1 is None and (directory / "model.json").exists():
        return directory
    models = models_of_path(path)
    fitting = [setting for setting in models if setting.fits(C, l1)]
    if not models:
        return directory
    if not fitting:
        raise _no_model_for(path, C, l1, [*models])
    if len(fitting) > 1:
        names = {"-C": {setting.C for setting in fitting}, "--l1": {setting.l1 for setting in fitting}}
        several = " and ".join(name for name, values in names.items() if len(values) > 1)
        raise ModelError(f"{path} holds a model for each of {_listed(fitting)}: name one with {several}")
    return models[fitting[0]]


def _listed(settings: Sequence[object]) -> str:
    return first_of([*map(str, settings)], between="; ")


def _no_model_for(path: Path, C: float | None, l1: float | None, models: Sequence[object]) -> ModelError:
    """Make the error of values that none of the models has."""
    wanted = {"C": C, "l1": l1}
    values = ", ".join(f"{name} = {value:g}" for name, value in wanted.items() if value is not None)
    return ModelError(f"{path} holds no model for {values}; it has {_listed(models)}")


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
    description = directory / "model.json"
    try:
        _, record = read_metadata(description, MODEL)
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError(_instead_of_a_model(path)) from None
    if C not in (None, record.C) or l1 not in (None, record.l1):
        raise _no_model_for(path, C, l1, [f"C = {record.C}" + (f", l1 = {record.l1:g}" if record.l1 else "")])
    files = [name for name in record.checksums if deviations or name != "deviations.npy"]
    if memory is not None:
        sizes = {file: (directory / file).stat().st_size for file in files if (directory / file).exists()}
        if (
            SPARSE_FILE in sizes
        ):  # by vector on disk and by feature in memory, where deviations are of all features
            sizes["by feature"] = sizes[SPARSE_FILE] + 4 * record.n_features
            sizes["deviations.npy"] = 8 * record.n_features * ("deviations.npy" in sizes)
        require(parse_size(memory), {"the model": sum(sizes.values())})
    try:
        return _read(directory, record, files)
    except StreamcdError:
        raise
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise ModelError(f"{description}: damaged ({error})") from None


def _instead_of_a_model(path: Path) -> str:
    """Describe a path that has no model."""
    expected = f"{path}: expected a run or a model"
    if kind_of_directory(path) == "a dataset":
        return describe_other_kind(path, "a run or a model")
    if (path / "config.json").exists():
        # of a run on workers, which `resume` has to be given again
        workers = " --workers N" * (b'"rounds": {' in (path / "config.json").read_bytes())
        return (
            f"{path}: this run has no model yet; 'streamcd resume {path}{workers}' goes on with it, "
            f"'streamcd resume {path}{workers} --max-passes 1' ends it with the pass begun"
        )
    if path.is_file():
        return f"{expected}, found a file ('streamcd import {path} MODEL' reads LIBLINEAR's text)"
    return f"{expected}, found {'no model.json in it' if path.exists() else 'nothing there'}"


def _read(directory: Path, record: ModelFile, files: Iterable[str]) -> Model:
    """Read some files of a model, and verify their checksums."""
    arrays: dict[str, Any] = {}
    for name in files:
        path = directory / name
        if not path.is_file():
            raise ModelError(f"{path}: the file is missing")
        if file_checksum(path) != record.checksums[name]:  # safety: model::flipped_bit_in_the_weights
            raise ModelError(f"{path}: checksum differs from model.json's, the file was changed or damaged")
        if name == SPARSE_FILE:
            import scipy.sparse as sp

            arrays[name] = sp.csr_array(sp.load_npz(path))
        elif name != CATEGORIES_FILE:
            arrays[name] = np.load(path, allow_pickle=False)
    weights = arrays[SPARSE_FILE if SPARSE_FILE in arrays else "weights.npy"]
    if weights.shape[0] != record.n_features:
        raise ModelError(
            f"{directory}: expected {record.n_features} rows of weights, found shape {weights.shape}"
        )
    deviations = arrays.get("deviations.npy")
    if SPARSE_FILE in arrays and deviations is not None:  # of the features that have weights
        known = deviations
        deviations = np.zeros(record.n_features)
        deviations[np.diff(weights.indptr) > 0] = known
    scaling = Scaling()
    if (of := record.scaling) is not None:
        scaling = Scaling(of.scale, of.normalize, arrays.get("scaling.npy"), of.digest)
    encoding = record.encoding
    if encoding is not None:
        encoding = read_encoding(directory / CATEGORIES_FILE, encoding)
    indices = arrays.get("indices.npy")
    return Model(record, weights, scaling=scaling, encoding=encoding, indices=indices, deviations=deviations)


def is_model(path: Path) -> bool:
    """Check for a model in a directory, or for those of a path over C or λ."""
    return (path / "model.json").exists() or bool(models_of_path(path))


def is_unfinished(path: str) -> bool:
    """Check if a directory is empty but for files that a killed `Model.save` may leave."""
    left = MODEL_FILES.union(f"{name}.partial" for name in (*MODEL_FILES, "model.json"))
    return os.path.isdir(path) and left.issuperset(os.listdir(path))


def verify_model(path: Path, *, memory: int | str) -> list[str]:
    """Check all models of a run, or of a directory; returns the problems, one line each."""
    problems = []
    single = [directory for directory in (path / "model", path) if (directory / "model.json").exists()]
    for directory in [*models_of_path(path).values(), *single[:1]]:
        try:
            model = load_model(directory, memory=memory)
        except UsageError:
            raise  # the memory is too small
        except StreamcdError as error:
            problems.append(str(error))
            continue
        if not np.isfinite(model.matrix.data if model.is_sparse else model.matrix).all():
            problems.append(f"{directory}: a weight that is not finite")
    return problems


# ---------------------------------------------------------------------------------------------------------------------
# Descriptions


def describe_model(path: Path) -> dict[str, Any]:
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
    _, stored = read_metadata(path / "model.json", MODEL)
    scaling = stored.scaling or Scaling()
    parameter = LOSSES[stored.loss].parameter
    same = ("loss", "method", "C", "n_features", "bias", "certificate", "fingerprint", "versions")
    return {
        "kind": "model",
        **{name: getattr(stored, name) for name in same},
        **({} if parameter is None else {"parameter": {parameter.name: stored.parameter}}),
        "labels": stored.labels,
        "n_vectors": len(stored.intercept),
        **(load_model(path, deviations=False).support() if stored.l1 else {}),
        "scale": scaling.scale,
        "normalize": scaling.normalize,
        "class_weight": {
            str(label): stored.class_weight[of]
            for label, of in zip(stored.labels, stored.classes, strict=True)
            if of in stored.class_weight
        },
        "gap": stored.certificate.get("gap"),
        "intercept": [
            {"vector": vector, "weight": weight}
            for vector, weight in zip(stored.vector_labels, stored.intercept, strict=True)
        ],
        "next": f"streamcd predict FILE {path} -o predictions.parquet",
    }


def describe_path(path: Path) -> list[dict[str, Any]]:
    """Describe the models of a path: ``C``, ``l1``, and with an L1 penalty the support, as `describe_model` does."""
    described = []
    for setting, directory in models_of_path(path).items():
        _, stored = read_metadata(directory / "model.json", MODEL)
        support = load_model(directory, deviations=False).support() if stored.l1 else {}
        described.append({**setting._asdict(), **support})
    return described

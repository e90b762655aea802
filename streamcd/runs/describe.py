"""Descriptions of datasets, runs and models without training or reading data, as ``info --json`` prints them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import CheckpointError, DatasetError
from ..core.files import Kind, Structure, read_metadata, release_lock, take_lock
from ..core.storage import Location, local_path, location
from ..dataset.dataset import Dataset, open_dataset
from ..dataset.staging import leftovers
from ..models.stored import describe_model, describe_path, is_model, models_of_path
from ..solvers.protocol import DONE
from ..training import checkpoint
from ..training.stopping import REASONS, relative
from .config import RunConfig, read_config
from .options import DEFAULT_LOSS, DEFAULT_LOSS_OF_TARGETS, ProblemOptions, TrainOptions

_LANE_ARRAYS = (
    *("phase", "converged", "reason", "passes"),
    *("gap", "primal", "estimate", "estimated_primal", "at_zero", "violation"),
)


def describe(path: str) -> dict[str, Any]:
    """Describe a dataset, a run or a model, without reading data; see the functions for each."""
    directory = location(path)
    kind = kind_of_directory(directory)
    if kind == "run":
        return describe_run(local_path(directory, "a run"))
    if kind == "model":
        return describe_model(local_path(directory, "a model"))
    if isinstance(directory, Path) and (models := models_of_path(directory)):
        first = next(iter(models.values()))
        return {"kind": "models", "models": describe_path(directory), "next": f"streamcd info {first}"}
    try:
        return describe_dataset(open_dataset(path))
    except DatasetError as error:
        raise DatasetError("; ".join([str(error), *leftovers(directory)])) from None


def describe_dataset(dataset: Dataset) -> dict[str, Any]:
    """Describe a dataset: as `Dataset.info`, with the names of features, advice, and what a training would choose."""
    from ..dataset.column_layout import has_columns, open_columns
    from ..dataset.diagnostics import advice, feature_rms
    from ..models.encoding import first_feature_names
    from .resolve import BIAS_BY_SOURCE, choose_method, labels_of_a_target

    bias, bias_because = BIAS_BY_SOURCE[dataset.made_from]
    loss = DEFAULT_LOSS_OF_TARGETS if dataset.has_targets else DEFAULT_LOSS
    options = TrainOptions(loss=loss, bias=bias)
    n_labels = 0 if dataset.classes is None else dataset.classes.size
    method = "none"
    method_because = "training needs two classes"
    if n_labels > 1 or dataset.has_targets:
        method, method_because = choose_method(options, options, dataset)
    notes = []
    if n_labels == 1:
        notes.append("one class alone: there is nothing to separate; check the column or file of labels")
    elif numbers := labels_of_a_target(dataset, most=2):
        notes.append(f"the labels are {numbers}")
    elif n_labels > 20 and 2 * n_labels > dataset.n_rows:  # a key, or numbers to predict
        notes.append(
            f"most classes have a row or two: {n_labels:,} classes in {dataset.n_rows:,} rows; check the column or file of "
            "labels (--label), or name numbers to predict by --target"
        )
    notes += advice(dataset, method=method)
    if has_all := has_columns(dataset):
        open_columns(dataset, check_files=False)  # raises where it is damaged
    by_l1 = replace(options, penalty="l1")
    if dataset.has_targets and not has_all and choose_method(by_l1, by_l1, dataset)[0] == "working-set":
        notes.append(
            f"--penalty l1 takes the column layout for this many features: 'streamcd columns {dataset.path}' makes it"
        )
    return {
        **dataset.info(),
        "feature_names": first_feature_names(dataset),
        "feature_rms": feature_rms(dataset),
        "advice": [*notes, *leftovers(dataset.path)],
        "columns": has_all,
        "method": method,
        "method_because": method_because,
        "bias": bias,
        "bias_because": bias_because,
    }


def describe_run(path: str | Path) -> dict[str, Any]:
    """Describe a run, without writing to it or locking it for long.

    Returns
    -------
    dict
        ``kind`` ("run" or "search"), ``dataset``, ``options`` (those that differ from the defaults, and loss, method, C and
        bias), ``bias_because``, ``centred`` (which features and targets), ``memory``, ``stopping``, ``workers``, ``search``
        (its options), ``state`` ("in work", "interrupted", "converged" or "not converged"),
        ``stop_reason``, ``passes``, ``gap`` and ``violation`` (largest certified; None before), ``gap_estimate``,
        ``lanes``, ``open_lanes``, ``seconds``, ``bytes_read``, and for a search ``parts`` with these two of each;
        ``best_C`` and ``best_l1`` of a search that has chosen (else None), with ``scores`` and what else its result
        has of them; ``model`` (as of `describe_model`; None where there is none, or several), ``models`` (of several:
        ``C``, ``l1``, and the support that an L1 penalty leaves, of each); ``next``, a command.

    Raises
    ------
    CheckpointError
        If it is not a run, or damaged.
    """
    path = Path(path)
    config = read_config(path)
    is_search = config.scoring is not None
    parts = {"folds": path / "folds", "training with the best C": path / "best"} if is_search else {"": path}
    has_model = is_model(path / "model")
    states = {name: _describe_state(part, has_model=has_model) for name, part in parts.items()}
    begun = {name: of_part for name, of_part in states.items() if of_part["lanes"]}
    state = [*(begun or states).values()][-1]
    if state["state"] == "unfinished":
        state["state"] = "interrupted"
        with suppress(OSError):
            lock = take_lock(path / "lock")
            if lock is None:
                state["state"] = "in work"
            else:
                release_lock(lock)
    scores = read_scores(path) if is_search else None
    usual = asdict(ProblemOptions())
    models = describe_path(path)
    return {
        "kind": "search" if is_search else "run",
        "dataset": config.dataset,
        "fingerprint": config.fingerprint,
        # those that matter most, and those that differ from their defaults
        "options": {
            name: value
            for name, value in asdict(config.options).items()
            if name in ("loss", "method", "C", "bias") or value != usual[name]
        }
        | ({"seed": config.seed} if config.seed else {}),
        "bias_because": config.bias_because,
        "centred": config.centred,
        "memory": config.memory,
        "stopping": {name: value for name, value in asdict(config.rule).items() if value is not None},
        "workers": config.rounds is not None,
        "search": {"cv": config.folds, "scoring": config.scoring} if is_search else {},
        **state,
        "parts": {
            name: {"seconds": of_part["seconds"], "bytes_read": of_part["bytes_read"]}
            for name, of_part in begun.items()
            if is_search
        },
        **(scores or {"best_C": None, "best_l1": None}),
        "model": describe_model(path / "model") if has_model and not models else None,
        "models": models,
        "next": _next_command(path, config, state),
    }


class _OfFolds(Structure):
    folds: list[float]
    mean: float
    accuracy: float = 0.0
    auc: float = 0.0
    auc_error: float = 0.0


class _Scores(Structure):
    scores: dict[str, _OfFolds]
    best_C: float
    best_l1: float
    scored_by: str


SCORES = Kind(
    "streamcd-scores",
    2,
    _Scores,
    CheckpointError,
    "remove it, and 'streamcd resume RUN' makes it again",
)


def read_scores(path: Path) -> dict[str, Any] | None:
    """Read the scores of a search, ``scores``, ``best_C`` and others as in its result; None before its folds have ended."""
    try:
        content, _ = read_metadata(path / "scores.json", SCORES)
    except FileNotFoundError:
        return None
    return {name: content[name] for name in ("scores", "best_C", "best_l1", "scored_by")}


def _describe_state(folder: Path, *, has_model: bool) -> dict[str, Any]:
    """Sum up the last checkpoints of the groups of lanes in a folder; without one there are no lanes."""
    files = [folder / "state.npz", *sorted(folder.glob("group-*/state.npz"))]
    read = (checkpoint.read_arrays(file, [*_LANE_ARRAYS, "seconds", "bytes_read"]) for file in files)
    states = [state for state in read if state is not None]
    lanes = {
        name: np.concatenate([np.zeros(0, int), *(state[name] for state in states)]) for name in _LANE_ARRAYS
    }
    is_open = lanes["phase"] != DONE
    done = has_model and is_open.size > 0 and not is_open.any()
    ended = "converged" if lanes["converged"].all() else "not converged"
    return {
        "state": ended if done else "unfinished",
        "stop_reason": REASONS[int(lanes["reason"].max())].name if done else None,
        "passes": int(lanes["passes"].max(initial=0)),
        "gap": _largest(relative(lanes)),
        "gap_estimate": _largest(relative(lanes, "estimate", "estimated_primal")),
        "violation": _largest(lanes["violation"]),
        "lanes": is_open.size,
        "open_lanes": int(is_open.sum()),
        "seconds": sum((float(state["seconds"]) for state in states), 0.0),
        "bytes_read": sum(int(state["bytes_read"]) for state in states),
    }


def _largest(figures: np.ndarray) -> float | None:
    """Return the largest figure of a lane; None if one is not known."""
    return float(figures.max()) if figures.size and np.isfinite(figures).all() else None


def _next_command(path: Path, config: RunConfig, state: dict[str, Any]) -> str:
    workers = " --workers N" if config.rounds is not None else ""
    if state["state"] == "converged" or state["stop_reason"] == "rounding":  # which no resuming mends
        chosen = ""
        if config.scoring is None:
            chosen = " -C C" * (len(config.options.C) > 1) + " --l1 λ" * (len(config.options.l1 or ()) > 1)
        return f"streamcd evaluate FILE {path}{chosen}"
    if state["state"] == "not converged":
        return (
            f"streamcd resume {path} --max-passes {2 * max(config.rule.max_passes, state['passes'])}{workers}"
        )
    return "wait" if state["state"] == "in work" else f"streamcd resume {path}{workers}"


def kind_of_directory(path: Location) -> str:
    """Return ``"run"``, ``"model"``, or ``"dataset"`` for anything else."""
    if (path / "config.json").exists():
        return "run"
    return "model" if (path / "model.json").exists() else "dataset"

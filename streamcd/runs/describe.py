"""Descriptions of runs and models without training or reading data: options, progress, next command."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..core.locks import release_lock, take_lock
from ..core.metadata import read_metadata
from ..models.encoding import CATEGORIES_FILE, read_encoding
from ..models.model import MODEL, is_model, models_of_path
from ..solvers.protocol import DONE
from ..training import checkpoint
from ..training.result import worst_reason
from .config import RunConfig, read_config
from .problem_options import ProblemOptions

_N_WEIGHTS = 10
_BLOCK_WEIGHTS = 1 << 20  # read at a time
_LANE_ARRAYS = ("phase", "converged", "reason", "passes", "gap", "primal", "estimate", "estimated_primal")


def describe_run(path: str | Path, *, scaled: bool = False) -> dict[str, Any]:
    """Describe a run, without writing to it or locking it for long.

    Returns
    -------
    dict
        ``kind`` ("run" or "search"), ``dataset``, ``options`` (those that differ from the defaults, and loss, method and C),
        ``memory``, ``stopping``, ``workers``; ``state`` ("in work", "interrupted", "converged" or "not converged"),
        ``stop_reason``, ``passes``, ``gap`` (largest certified; None before), ``gap_estimate``, ``lanes``, ``open_lanes``,
        ``seconds``, ``bytes_read``; ``model`` (as of `describe_model`; None where there is none, or several), ``models``
        (the C of each of several); ``next``, a command.

    Raises
    ------
    CheckpointError
        If it is not a run, or damaged.
    """
    path = Path(path)
    config = read_config(path)
    state = _describe_state(path)
    costs = list(models_of_path(path))
    has_model = is_model(path / "model")
    if state["state"] == "unfinished":
        state["state"] = "in work" if _in_use(path) else "interrupted"
    return {
        "kind": "run" if config.tune is None else "search",
        "dataset": config.dataset,
        "fingerprint": config.fingerprint,
        "options": told_options(config),
        "memory": config.memory,
        "stopping": {name: value for name, value in asdict(config.rule).items() if value is not None},
        "workers": config.rounds is not None,
        **state,
        "model": describe_model(path / "model", scaled=scaled) if has_model and not costs else None,
        "models": costs,
        "next": _next_command(path, config, state),
    }


def told_options(config: RunConfig) -> dict[str, Any]:
    """Return loss, method and C, and the options that differ from their defaults."""
    given, usual = asdict(config.options), asdict(ProblemOptions())
    told = {name: value for name, value in given.items() if value != usual[name]}
    return {name: given[name] for name in ("loss", "method", "C")} | told


def _describe_state(path: Path) -> dict[str, Any]:
    """Sum up the last checkpoints of a run's groups of lanes; of a search, those of its current part."""
    found = [_read_state(file) for file in _state_files(path)]
    if not found:
        return {
            "state": "unfinished", "stop_reason": None, "passes": 0, "gap": None, "gap_estimate": None,
            "lanes": 0, "open_lanes": 0, "seconds": 0.0, "bytes_read": 0,
        }  # fmt: skip
    lanes = {name: np.concatenate([arrays[f"lane_{name}"] for arrays in found]) for name in _LANE_ARRAYS}
    is_open = lanes["phase"] != DONE
    done = not is_open.any() and is_model(path / "model")
    ended = "converged" if lanes["converged"].all() else "not converged"
    return {
        "state": ended if done else "unfinished",
        "stop_reason": worst_reason(lanes["reason"]) if done else None,
        "passes": int(lanes["passes"].max()),
        "gap": largest_ratio(lanes["gap"], lanes["primal"]),
        "gap_estimate": largest_ratio(lanes["estimate"], lanes["estimated_primal"]),
        "lanes": int(is_open.size),
        "open_lanes": int(is_open.sum()),
        "seconds": sum(float(arrays["seconds"]) for arrays in found),
        "bytes_read": sum(int(arrays["bytes_read"]) for arrays in found),
    }


def _state_files(path: Path) -> list[Path]:
    parts = (path / "best", path / "folds", path)
    return next((files for files in map(_states_in, parts) if files), [])


def _states_in(part: Path) -> list[Path]:
    files = [part / "state.npz", *sorted(part.glob("group-*/state.npz"))]
    return [file for file in files if file.exists()]


def spent(path: Path) -> dict[str, tuple[float, int]]:
    """Sum up seconds and bytes read of all sessions of a run; of a search, by its parts."""
    parts = {"training": path, "folds": path / "folds", "training with the best C": path / "best"}
    found = {name: [_read_state(file) for file in _states_in(part)] for name, part in parts.items()}
    return {
        name: (
            sum(float(state["seconds"]) for state in states),
            sum(int(state["bytes_read"]) for state in states),
        )
        for name, states in found.items()
        if states
    }


def _read_state(file: Path) -> dict[str, np.ndarray]:
    arrays = checkpoint.read_arrays(
        file, [f"lane_{name}" for name in _LANE_ARRAYS] + ["seconds", "bytes_read"]
    )
    assert arrays is not None
    return arrays


def largest_ratio(gaps: np.ndarray, primals: np.ndarray) -> float | None:
    """Return the largest relative gap; None if one is not known."""
    primal = np.abs(primals)
    ratios = np.divide(gaps, primal, out=np.zeros_like(primal), where=primal != 0)
    return float(ratios.max()) if np.isfinite(ratios).all() else None


def _in_use(path: Path) -> bool:
    with suppress(OSError):
        lock = take_lock(path / "lock")
        if lock is None:
            return True
        release_lock(lock)
    return False


def _next_command(path: Path, config: RunConfig, state: dict[str, Any]) -> str:
    workers = " --workers N" if config.rounds is not None else ""
    if state["state"] == "converged" or state["stop_reason"] == "validation":
        return f"streamcd evaluate {config.dataset} {path}"
    if state["state"] == "not converged":
        return f"streamcd resume {path} --max-passes {2 * config.rule.max_passes}{workers}"
    return "wait" if state["state"] == "in work" else f"streamcd resume {path}{workers}"


def describe_model(path: str | Path, *, scaled: bool = False) -> dict[str, Any]:
    """Describe a model without keeping its weights in memory.

    Returns
    -------
    dict
        ``kind`` ("model"), ``loss``, ``method``, ``C``, ``labels``, ``n_features``, ``n_vectors``, ``bias``, ``scale``,
        ``normalize``, ``class_weight``, ``gap`` (None where it is not known), ``largest_weights``: list of ``{feature,
        index (as in the source), name (of a table's; else None), vector (its label, or number), weight}``; ``weights_of``,
        "source" if they are for the source's values, "scaled features" with `scaled` for those that the model was trained
        on; ``next``, a command.

    Raises
    ------
    ModelError
        If it is not a model, or damaged.
    """
    path = Path(path)
    _, found = read_metadata(path / "model.json", MODEL)
    weights = np.load(path / "weights.npy", mmap_mode="r", allow_pickle=False)
    integers = found.label_kind == "integer"
    labels: list[Any] = found.class_names or [int(label) if integers else label for label in found.classes]
    encoding = read_encoding(path / CATEGORIES_FILE, found.encoding)
    divided = found.scaling is not None and found.scaling.scale != "none"
    scales = (
        np.load(path / "scaling.npy", mmap_mode="r", allow_pickle=False) if divided and not scaled else None
    )
    one_each = weights.shape[1] == len(labels)
    largest = [
        {
            "feature": feature,
            "index": feature + found.index_base,
            "name": None if encoding is None else next(iter(encoding.feature_names(np.array([feature])))),
            "vector": labels[vector] if one_each else labels[-1] if len(labels) == 2 else vector,
            "weight": weight,
        }
        for feature, vector, weight in largest_weights(weights, _N_WEIGHTS, scales)
    ]
    return {
        "kind": "model",
        "loss": found.loss,
        "method": found.method,
        "C": found.C,
        "labels": labels,
        "n_features": found.n_features,
        "n_vectors": int(weights.shape[1]),
        "bias": found.bias,
        "scale": found.scaling.scale if found.scaling else "none",
        "normalize": found.scaling.normalize if found.scaling else "none",
        "class_weight": {f"{label:g}": weight for label, weight in found.class_weight.items()},
        "gap": found.certificate.get("gap"),
        "largest_weights": largest,
        "weights_of": "scaled features" if divided and scaled else "source",
        "next": f"streamcd predict FILE {path} -o predictions.parquet",
    }


def largest_weights(
    weights: np.ndarray, most: int, scales: np.ndarray | None = None
) -> list[tuple[int, int, float]]:
    """Find the nonzero weights of the largest magnitude, block by block: 0-based features, vectors, values.

    With `scales`, the divisors of the features, they are those for the source's values.
    """
    best: list[tuple[float, int, int, float]] = []
    rows = max(1, _BLOCK_WEIGHTS // weights.shape[1])
    for start in range(0, weights.shape[0], rows):
        block = np.asarray(weights[start : start + rows])
        if scales is not None:
            block = block / scales[start : start + rows, np.newaxis]
        flat = np.abs(block).ravel()
        chosen = np.argsort(-flat, kind="stable")[:most]
        for place in chosen[flat[chosen] > 0].tolist():
            feature, vector = divmod(place, weights.shape[1])
            best.append((-flat[place], start + feature, vector, float(block[feature, vector])))
        best = sorted(best)[:most]
    return [(feature, vector, weight) for _, feature, vector, weight in best]


def kind_of_directory(path: str | os.PathLike[str]) -> str:
    """Return ``"run"``, ``"model"``, or ``"dataset"`` for anything else."""
    if (Path(path) / "config.json").exists():
        return "run"
    return "model" if (Path(path) / "model.json").exists() else "dataset"

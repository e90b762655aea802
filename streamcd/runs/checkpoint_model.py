"""The model of a run's last checkpoint: of a training that was interrupted, or is in work."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import ModelError, counted
from ..core.memory_budget import parse_size, require
from ..core.options import with_known_keywords
from ..core.storage import local_path
from ..models.encoding import encoding_of
from ..models.model import Model
from ..models.stored import choose
from ..solvers.protocol import START
from ..training import checkpoint
from .config import Group, ResolvedRun, read_config, reopen, same_dataset
from .describe import largest_gap
from .models import lanes_of_models, make_model

_LANES = ("phase", "passes", "gap", "primal", "dual", "at_zero", "converged")


@with_known_keywords
def load_checkpoint(
    run: str | os.PathLike[str],
    C: float | None = None,
    *,
    l1: float | None = None,
    memory: int | str | None = None,
) -> Model:
    """Read the model of a run's last checkpoint; the training need not have ended, and is not disturbed.

    `evaluate`, `predict` and others take it as any model. Its ``certificate`` has the passes of each vector, ``converged``,
    and the gap where one was certified. The checkpoint of a run that has ended gives its model.

    Parameters
    ----------
    run : path
        Of `train` or `tune`; its dataset must be where it was.
    C : float, optional
        C of the wanted model of a path; required if the run trains models of several C.
    l1 : float, optional
        λ of the wanted model, likewise.
    memory : int or str, optional
        Bound on the process's resident memory.

    Returns
    -------
    Model

    Raises
    ------
    CheckpointError
        If `run` is not a run, or damaged.
    ModelError
        If there is no checkpoint yet, or none of a model on all rows: a search trains its folds first.
    DatasetError
        If the run's dataset is not there.
    UsageError
        If the checkpoint does not fit in `memory`.

    Examples
    --------
    >>> model = streamcd.load_checkpoint("run")
    >>> model.certificate["converged"], bool((model.weights == streamcd.load_model("run").weights).all())
    (True, True)
    """
    path = local_path(run, "a run")
    config = read_config(path)
    if config.scoring is not None:
        path = path / "best"
        if not (path / "config.json").exists():
            raise ModelError(
                f"{run}: its folds are in training, so no model of all rows has begun; resume it"
            )
        config = read_config(path)
    resolved = reopen(path, config, same_dataset(config))
    models = {
        resolved.problem.lanes[lanes.start].setting: lanes for lanes in lanes_of_models(resolved.problem)
    }
    lanes = models[choose(list(models), C, l1, f"{run} trains")]
    groups = [group for group in resolved.groups if set(group.lanes) & set(lanes)]
    parts = [_read_part(path, group, lanes, resolved, memory) for group in groups]
    state = {name: np.concatenate([part[name] for part in parts]) for name in _LANES}
    w = parts[0]["w"] if len(parts) == 1 else np.hstack([part["w"] for part in parts])
    if resolved.centre is not None:
        w[-1] = resolved.centre.stored_bias(w, resolved.problem.bias)
    certificate, encoding = _certificate(state, resolved.problem.scale), encoding_of(resolved.dataset)
    model = make_model(resolved, lanes, certificate, w[:-1], w[-1], encoding)
    model.deviations = resolved.dataset.read_deviations()
    return model


def describe_checkpoint(run: str | os.PathLike[str], model: Model) -> str:
    """Describe the model of a checkpoint in a line."""
    certificate = model.certificate
    gap = "not certified yet" if certificate["gap"] is None else f"relative gap {certificate['gap']:.2g}"
    state = "converged" if certificate["converged"] else f"not converged, {gap}"
    return f"the last checkpoint of {run}, after {counted(max(certificate['passes']), 'pass', 'passes')} ({state})"


def _read_part(
    path: Path, group: Group, lanes: range, run: ResolvedRun, memory: int | str | None
) -> dict[str, np.ndarray]:
    """Read weights and state of those of a group's lanes that are in `lanes`, all from one checkpoint."""
    own = run.problem.subset([lane for lane in group.lanes if lane in lanes])
    file = path / group.directory / "state.npz"
    position = checkpoint.read_arrays(file, ["position"])
    none_yet = f"{path}: expected a checkpoint of a pass, found none yet; wait, or resume the run"
    if position is None or not position["position"].any():
        raise ModelError(none_yet)
    mine = np.array([lane - group.lanes.start for lane in group.lanes if lane in lanes])
    if memory is not None:
        vectors = (own.n_features + 1) * own.lane_vectors
        needs = {
            "weights of a checkpoint": 2 * 8 * vectors * len(group.lanes),
            "the model": 8 * (vectors * len(lanes) + own.n_features),
        }
        require(parse_size(memory), needs)
    arrays = checkpoint.read_arrays(file, ["w", *(f"lane_{name}" for name in _LANES)])
    assert arrays is not None
    width = arrays["w"].shape[1] // len(group.lanes)
    of_lanes = {name: arrays[f"lane_{name}"][mine] for name in _LANES}
    if (of_lanes["phase"] == START).any():  # a read of what it starts from
        raise ModelError(none_yet)
    columns = (mine[:, np.newaxis] * width + np.arange(width)).ravel()
    return {"w": arrays["w"][:, columns], **of_lanes}


def _certificate(state: dict[str, np.ndarray], scale: float) -> dict[str, Any]:
    gap = largest_gap(state)
    objectives = {
        name: None if gap is None else scale * float(state[name].sum()) for name in ("primal", "dual")
    }
    return {
        "primal_objective": objectives["primal"],
        "dual_objective": objectives["dual"],
        "gap": gap,
        "converged": bool(state["converged"].all()),
        "passes": state["passes"].tolist(),
    }

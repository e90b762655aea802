"""The configuration of a run, ``config.json``: made, and checked against what a directory or a dataset holds."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from . import checkpoint
from .column_layout import open_columns
from .dataset import Dataset, open_dataset
from .errors import CheckpointError, UsageError
from .lane_groups import group_lanes
from .memory import format_size, parse_size
from .plan import Plan, describe_plan
from .primal import PRIMAL_METHODS
from .progress import Listener
from .stopping import StopRule
from .training_options import check_positive, make_lanes


def make_config(
    dataset: Dataset,
    options: dict[str, Any],
    rule: StopRule,
    memory: int | str,
    checkpoint_every: float,
    plan: Plan | None,
    listener: Listener,
    rounds: Mapping[str, Any] | None = None,
    local_workers: int = 0,
) -> dict[str, Any]:
    """The configuration of a run: everything that decides its bits, and the memory plan."""
    check_positive(checkpoint_every=checkpoint_every)
    problem, budget = make_lanes(dataset, options), parse_size(memory)
    n_groups, plan, budget = group_lanes(
        dataset,
        problem,
        options,
        budget,
        plan,
        on_workers=rounds is not None,
        local_workers=local_workers,
    )
    if rounds is None:
        listener.message(describe_plan(plan, dataset, budget))
    else:
        listener.message(f"every worker streams its own shards within {format_size(budget)}")
    if n_groups > 1:
        listener.message(
            f"{problem.n_lanes} lanes of {problem.n_features} features do not fit in {format_size(budget)}: "
            f"they are trained in {n_groups} groups, one after another, each reading the data by itself"
        )
    return {
        "dataset": str(dataset.path.resolve()),
        "fingerprint": dataset.fingerprint,
        "options": options,
        "memory": budget,
        "plan": asdict(plan),
        "n_groups": n_groups,
        "rule": asdict(rule),
        "checkpoint_every": float(checkpoint_every),
        "versions": versions(),
        **({} if rounds is None else {"rounds": dict(rounds)}),
        **({"columns": open_columns(dataset).fingerprint} if options["method"] in PRIMAL_METHODS else {}),
    }


def versions() -> dict[str, str]:
    """Versions and processor, on which the last digits depend."""
    import llvmlite
    import numba
    import pyarrow

    from . import __version__

    return {
        "streamcd": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "llvmlite": llvmlite.__version__,
        "pyarrow": pyarrow.__version__,
        "processor": llvmlite.binding.get_host_cpu_name(),
    }


def refuse_existing(path: Path, config: Mapping[str, Any], force: bool) -> None:
    """Point to `resume` where the directory holds the same training."""
    if force or not (path / "config.json").exists():
        return
    found = checkpoint.read_config(path)
    if all(found.get(key) == config.get(key) for key in ("fingerprint", "options", "tune")):
        raise CheckpointError(
            f"{path} holds a run of the same training: 'streamcd resume {path}' goes on with it, --force starts it anew"
        )
    raise CheckpointError(f"{path} holds another run; name another directory, or give --force to replace it")


def same_dataset(config: Mapping[str, Any]) -> Dataset:
    """Open the dataset of a run; refuse it where it has changed."""
    dataset = open_dataset(config["dataset"])
    if dataset.fingerprint != config["fingerprint"]:
        raise CheckpointError(
            f"{dataset.path}: not the dataset that the run was begun with (fingerprint {dataset.fingerprint}, "
            f"the run has {config['fingerprint']}); restore that one, or train again"
        )
    if "columns" in config and open_columns(dataset).fingerprint != config["columns"]:
        raise CheckpointError(
            f"{dataset.path}: its column layout was made with other options than that which the run was begun with; "
            "make it with the same ones, or train again"
        )
    return dataset


def check_workers(path: Path, config: Mapping[str, Any], client: Any) -> None:
    """Refuse to go on with a run on workers in one process, and the other way round."""
    if client is None and "rounds" in config:
        raise UsageError(
            f"{path} was begun on workers, which keep dual variables in another way: resume it with --scheduler ADDRESS "
            "or --workers N, N >= 1"
        )
    if client is not None and "rounds" not in config:
        raise UsageError(
            f"{path} was begun in one process, which keeps dual variables in another way: resume it without workers, or "
            f"begin a new run on workers with --start-from {path}"
        )

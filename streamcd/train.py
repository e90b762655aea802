"""A training in a run directory: groups of lanes, one after another, and the models at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import checkpoint
from .advice import chosen_method
from .configuration import make_config, refuse_existing
from .dataset import Dataset, open_dataset
from .diagnostics import advice
from .ended_run import EndedRun
from .lane_groups import lane_groups
from .loop import Loop, StopRequested, Task
from .memory import parse_size
from .model import stored_certificate
from .partition import DASK_BYTES
from .plan import Plan
from .problems import Problem
from .progress import Listener
from .result import Outcome, Result, join_outcomes, make_result
from .roundloop import RoundLoop, make_round_loop
from .run_models import planned_models, save_model
from .stopping import StopRule
from .training_options import make_lanes, make_options, make_solver, round_options, stop_rule, warn_of_ridge


def train(
    dataset: Dataset | str | Path,
    run: str | Path,
    *,
    loss: str = "squared_hinge",
    method: str = "auto",
    C: float | Sequence[float] = 1.0,
    bias: float = -1.0,
    unpenalized_bias: bool = False,
    tol: float | None = None,
    eps: float | None = None,
    max_passes: int = 1000,
    class_weight: Mapping[float, float] | str | None = None,
    code: np.ndarray | Sequence[Sequence[int]] | None = None,
    omega: float | str = 1.0,
    ridge: float | None = None,
    slack: str | None = None,
    start_from: str | Path | None = None,
    memory: int | str = "1GB",
    seed: int = 0,
    checkpoint_every: float = 60.0,
    force: bool = False,
    plan: Plan | None = None,
    client: Any = None,
    local_passes: int | None = None,
    worker_timeout: float | None = None,
    local_workers: int = 0,
    listener: Listener | None = None,
    stop_requested: StopRequested | None = None,
) -> Result:
    """Train a model on a dataset, in a run directory that can be resumed.

    Parameters
    ----------
    dataset : Dataset or path
    run : path
        Directory to be made.
    loss : {"squared_hinge", "hinge", "log_loss", "crammer_singer", "twin"}
    method : {"auto", "dual", "primal", "online", "sor"}
        ``"primal"`` and ``"online"`` read the column layout (see `transpose.make_columns`); ``"sor"`` is the classic twin
        SVM, with an inverse of features × features for each plane; ``"auto"`` chooses by `advice.chosen_method`.
    C : float or sequence of float
        Factor of the sum of losses. Several are trained in the same passes, and each keeps its model.
    bias : float
        Value of a constant feature appended to every row; its weight is penalised as the others'. Negative for none.
    unpenalized_bias : bool
        Leave the bias's weight out of ``½‖w‖²``; by primal methods only.
    tol : float, optional
        Relative duality gap at which to stop; 1e-3 where neither this nor `eps` is given.
    eps : float, optional
        Stop by LIBLINEAR's rule on violations instead.
    max_passes : int
    class_weight : mapping of label to factor, or ``"balanced"``, optional
    code : array of -1, 0, +1, shape (classes, vectors), optional
        How several classes are told apart; one-vs-rest by default.
    omega : float or "auto"
        Over-relaxation in (0, 2) of hinge, squared_hinge and twin; 1 is plain coordinate descent, ``"auto"`` tries.
    ridge : float, optional
        Of twin: r in ``r/2 ‖w‖²``, 1 by default.
    slack : {"hinge", "squared_hinge"}, optional
        Of twin: loss of the rows that a plane keeps at a distance.
    start_from : path, optional
        An ended run on the same dataset that differs in C (or is a search over C): its dual variables are the beginning,
        or, of a primal method, its weights. Method sor can start from a run of sor or dual, dual from its own.
    memory : int or str
        Bound on the process's peak resident memory. Lanes that do not fit together are trained in groups.
    seed : int
    checkpoint_every : float
        Seconds between checkpoints.
    force : bool
        Replace an existing run.
    plan : Plan, optional
        How memory is used; follows from `memory` by default.
    client : distributed.Client, optional
        Train on its workers, of which `memory` then bounds each; they must see `dataset` and `run` under these paths.
        Every round is a checkpoint. `engines.Simulation` in its place does the same in this process.
    local_passes : int, optional
        Passes of every worker over its own shards in a round; 3 by default, 1 where there are more features than rows. Needs
        `client`.
    worker_timeout : float, optional
        Seconds without a sign of a worker, after which others take over its shards; needs `client`.
    local_workers : int
        So many workers of `client` are on this machine and share `memory` with this process; 0: it bounds each of them.
    listener : Listener, optional
    stop_requested : callable, optional
        See `loop.StopRequested`.

    Returns
    -------
    Result

    Raises
    ------
    UsageError, DatasetError, CheckpointError, LockError
    Interrupted
        Where `stop_requested` said so; a checkpoint was saved.
    """
    listener = listener or Listener()
    dataset = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    if method == "auto":
        method = (
            "dual"
            if start_from is not None or client is not None
            else chosen_method(dataset, loss, C, unpenalized_bias, listener)
        )
    options = make_options(
        loss, method, C, bias, class_weight, code, seed, omega=omega, ridge=ridge, slack=slack
    )
    options["unpenalized_bias"] = bool(unpenalized_bias)
    warn_of_ridge(options, listener)
    rounds = round_options(client, options, local_passes, worker_timeout, plan)
    if rounds is not None and local_workers:
        rounds["shared_memory"] = parse_size(memory)
    config = make_config(
        dataset,
        options,
        stop_rule(tol, eps, max_passes),
        memory,
        checkpoint_every,
        plan,
        listener,
        rounds,
        local_workers,
    )
    if start_from is not None:
        config["start_from"] = str(Path(start_from).resolve())
        EndedRun(dataset, make_lanes(dataset, options), config)  # refused before anything is made
    path = Path(run)
    refuse_existing(path, config, force)
    with checkpoint.create_run(path, force=force) as directory:
        directory.write_config(config)
        return carry_out(directory, config, dataset, listener, stop_requested, client=client)


def train_groups(
    directory: checkpoint.Run,
    config: Mapping[str, Any],
    dataset: Dataset,
    listener: Listener,
    stop_requested: StopRequested | None,
    *,
    run: str | None = None,
    stage: str = "",
    client: Any = None,
) -> Outcome:
    """Train all lanes of a configuration in a directory, group after group, from where each stands."""
    problem = make_lanes(dataset, config["options"])
    start = EndedRun(dataset, problem, config) if "start_from" in config else None
    outcomes = []
    for group in lane_groups(problem, config):
        part = directory.part(group.directory) if group.directory else directory
        lanes = problem.subset(group.lanes)
        name = (
            f"lanes {group.lanes.start + 1}-{group.lanes.stop} of {problem.n_lanes}, "
            if group.directory
            else ""
        )
        task = Task(
            dataset=dataset,
            problem=lanes,
            solver=make_solver(lanes, config["options"], dataset),
            plan=Plan(**config["plan"]),
            rule=StopRule(**config["rule"]),
            seed=config["options"]["seed"],
            checkpoint_every=config["checkpoint_every"],
            run=run or str(directory.path),
            name=stage + name,
            warm_start=None if start is None else start(lanes, group.lanes),
        )
        if client is None:
            loop: Loop | RoundLoop = Loop(part, task, listener, stop_requested)
        else:
            memory = config["memory"] - DASK_BYTES
            loop = make_round_loop(
                part,
                task,
                client,
                config["rounds"],
                config["options"]["method"],
                memory,
                listener,
                stop_requested,
            )
        outcomes.append(loop.run())
    return join_outcomes(outcomes)


def carry_out(
    directory: checkpoint.Run,
    config: Mapping[str, Any],
    dataset: Dataset,
    listener: Listener,
    stop_requested: StopRequested | None,
    *,
    model_path: Path | None = None,
    client: Any = None,
) -> Result:
    """Train, write the models (into the run, or to `model_path`), and say how it ended."""
    model_path = model_path or directory.model_path
    problem = make_lanes(dataset, config["options"])
    before = _trained_passes(directory.path, problem, config)
    outcome = train_groups(directory, config, dataset, listener, stop_requested, client=client)
    result = make_result(
        str(directory.path), outcome, problem.lanes, dataset.n_features, dataset.n_rows, problem.scale
    )
    if config["options"].get("omega") == "auto":
        _tell_omegas(result, listener)
    models = planned_models(model_path, problem, result)
    # a kill may have come after the last checkpoint and before its models: then those on disk are of an older state
    if any(stored_certificate(path) != certificate for path, _, certificate in models):
        for path, lanes, certificate in models:
            save_model(path, directory.path, config, dataset, problem, lanes, certificate)
    elif before == outcome.lanes["passes"].tolist():
        listener.message(f"this run had ended by {result.stop_reason} and is left alone")
    if not result.converged:
        for line in advice(dataset, max(config["options"]["C"])):
            listener.warning(line)
    return result


def _tell_omegas(result: Result, listener: Listener) -> None:
    """Which omega every lane was trained with, and why."""
    for lane in result.lanes[:20]:
        name = f"omega of the lane {'' if lane['label'] is None else format(lane['label'], 'g') + ', '}C = {lane['C']:g}"
        trial = lane["omega_trial"]
        gains = "too few passes for a trial"
        if trial:
            gains = "the dual's gain per pass was " + ", ".join(f"{trial[o]:.3g} with {o}" for o in trial)
        listener.message(f"{name}: {lane['omega']:g} ({gains})")


def _trained_passes(path: Path, problem: Problem, config: Mapping[str, Any]) -> list[int] | None:
    """Passes of every lane at the last checkpoint; None where a group has none."""
    passes: list[int] = []
    for group in lane_groups(problem, config):
        arrays = checkpoint.read_arrays(path / group.directory / "state.npz", ("lane_passes", "lane_phase"))
        if arrays is None:
            return None
        passes += arrays["lane_passes"].tolist()
    return passes

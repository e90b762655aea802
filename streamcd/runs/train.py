"""A training in a run directory: groups of lanes, one after another, and the models at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..cluster.partition import DASK_BYTES
from ..core.errors import UsageError
from ..core.memory_budget import parse_size, peak_memory_bytes
from ..core.progress import Listener
from ..core.storage import local_path
from ..dataset.dataset import Dataset, open_dataset
from ..dataset.diagnostics import advice
from ..models.model import Model
from ..solvers.registry import SOLVERS, find_solver
from ..stream.memory_plan import Plan
from ..training import checkpoint
from ..training.loop import Loop, Session, StopRequested, Task
from ..training.result import Outcome, Result, join_outcomes, make_result
from .config import (
    WORKER_TIMEOUT,
    Group,
    ProblemOptions,
    ResolvedRun,
    SharedRounds,
    TrainOptions,
    make_rule,
    refuse_existing,
    settle_acceleration,
    write_config,
)
from .interrupts import stops_when_interrupted
from .lane_groups import resolve
from .method_choice import choose_method
from .models import make_models, save_models
from .previous_run import PreviousRun, previous_run


@stops_when_interrupted
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
    class_weight: Mapping[Any, float] | str | None = None,
    code: np.ndarray | Sequence[Sequence[int]] | None = None,
    omega: float | str = 1.0,
    acceleration: float | str = "auto",
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
        SVM, with an inverse of features × features for each plane; ``"auto"`` chooses by `method_choice.choose_method`.
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
    acceleration : "auto", "none" or float
        Train dual methods with an outer proximal point around coordinate descent, which takes fewer passes on all but easy
        problems; a number is its kappa, and ``"auto"`` finds it while training. Plain coordinate descent with `eps`, another
        omega than 1, primal methods and sor, on workers, and where one more array of the weights' size does not fit in
        `memory`.
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
    path = local_path(run, "a run")
    session = Session(listener or Listener(), stop_requested, client)
    listener = session.listener
    dataset = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    if method == "auto" and start_from is None and client is None:
        method, reason = choose_method(unpenalized_bias)
        listener.message(f"method {method}: {reason}")
    problem = ProblemOptions.asked(
        loss=loss,
        method=method,
        C=C,
        bias=bias,
        class_weight=class_weight,
        code=code,
        seed=seed,
        omega=omega,
        acceleration=acceleration,
        ridge=ridge,
        slack=slack,
        unpenalized_bias=bool(unpenalized_bias),
    )
    problem = settle_acceleration(problem, eps, listener)
    _check_rounds(problem, client, plan, local_passes=local_passes, worker_timeout=worker_timeout)
    timeout = WORKER_TIMEOUT if worker_timeout is None else float(worker_timeout)
    shared = parse_size(memory) if local_workers else None
    asked = TrainOptions(
        problem,
        parse_size(memory),
        checkpoint_every,
        make_rule(tol, eps, max_passes),
        plan=plan,
        rounds=None if client is None else SharedRounds(local_passes, timeout, shared),
        local_workers=local_workers,
        start_from=None if start_from is None else str(Path(start_from).resolve()),
    )
    resolved = resolve(dataset, asked, listener)
    previous = previous_run(resolved)  # refused before anything is made
    with begin_run(path, resolved, force=force) as directory:
        return carry_out(directory, resolved, previous, session)


def _check_rounds(problem: ProblemOptions, client: Any, plan: Plan | None, **of_rounds: float | None) -> None:
    """Refuse what does not go with training on workers, or is of such a training only."""
    if client is None:
        for name, value in of_rounds.items():
            if value is not None:
                raise UsageError(
                    f"{name} is for training on workers; give a client (--scheduler or --workers)"
                )
        return
    if problem.omega != 1.0:
        raise UsageError("omega is for one process: on workers a line search decides how far a step goes")
    if not find_solver(problem.loss, problem.method).in_rounds:
        known = ", ".join(str(entry) for entry in SOLVERS if entry.in_rounds)
        raise UsageError(
            f"{problem.loss} by method {problem.method} is not for several workers: rounds are steps of block-diagonal "
            f"dual coordinate descent with a line search along the dual; there are: {known}"
        )
    if plan is not None:
        raise UsageError("plan: workers make their own plans from their memory and their shards")


@contextmanager
def begin_run(path: Path, run: ResolvedRun, *, force: bool) -> Iterator[checkpoint.Run]:
    """Make a run directory with a configuration; one that holds another run is refused, or emptied with `force`."""
    refuse_existing(path, run.config, force)
    with checkpoint.create_run(path, force=force) as directory:
        write_config(directory, run.config)
        yield directory


def train_groups(
    directory: checkpoint.Run,
    run: ResolvedRun,
    previous: PreviousRun | None,
    session: Session,
    *,
    shown_as: str | None = None,
    stage: str = "",
) -> Outcome:
    """Train all lanes of a run in a directory, group after group, from where each stands.

    Parameters
    ----------
    shown_as : str, optional
        The run directory in messages, where it is not `directory`.
    stage : str
        Put before the phase in progress.
    """
    outcomes = []
    for group in run.groups:
        part = directory.part(group.directory) if group.directory else directory
        task = _make_task(group, run, previous, shown_as or str(directory.path), stage)
        outcomes.append(_train_group(part, task, run, session))
    return join_outcomes(outcomes)


def _make_task(
    group: Group, run: ResolvedRun, previous: PreviousRun | None, shown_as: str, stage: str
) -> Task:
    problem, config = run.problem, run.config
    lanes, numbers = problem.subset(group.lanes), group.lanes
    part = f"lanes {numbers.start + 1}-{numbers.stop} of {problem.n_lanes}, " if group.directory else ""
    return Task(
        dataset=run.dataset,
        problem=lanes,
        solver=run.make_solver(lanes),
        plan=config.plan,
        rule=config.rule,
        seed=run.options.seed,
        checkpoint_every=config.checkpoint_every,
        run=shown_as,
        name=stage + part,
        warm_start=None if previous is None else previous.warm_start(lanes, numbers),
    )


def _train_group(part: checkpoint.Run, task: Task, run: ResolvedRun, session: Session) -> Outcome:
    rounds, memory = run.config.rounds, run.config.memory - DASK_BYTES
    if rounds is None:
        return Loop(part, task, session).run()
    from ..cluster.loop import RoundLoop  # only where there are workers

    solver, waits = (run.options.method, run.options.acceleration), rounds.worker_timeout
    return RoundLoop(part, task, session, *solver, memory, rounds.local_passes, waits).run()


def carry_out(
    directory: checkpoint.Run,
    run: ResolvedRun,
    previous: PreviousRun | None,
    session: Session,
    *,
    model_path: Path | None = None,
) -> Result:
    """Train, write the models (into the run, or to `model_path`), and say how it ended."""
    before = _trained_passes(directory.path, run)
    outcome = train_groups(directory, run, previous, session)
    dataset, listener = run.dataset, session.listener
    result = _result_of(directory, outcome, run)
    if run.options.omega == "auto":
        _tell_omegas(result, listener)
    begun = time.monotonic()
    written = save_models(model_path or directory.model_path, directory, run, result)
    if written:
        result.seconds += time.monotonic() - begun
        result.peak_memory_bytes = peak_memory_bytes()
    if not written and before == outcome.lanes["passes"].tolist():
        listener.message(f"this run had ended by {result.stop_reason} and is left alone")
    if not result.converged:
        for line in advice(dataset, max(run.options.C)):
            listener.warning(line)
    return result


def train_in_memory(dataset: Dataset, asked: TrainOptions, session: Session) -> tuple[Result, list[Model]]:
    """Train on a dataset without a run directory; returns the model of every C as well. Nothing can be resumed."""
    run = resolve(dataset, asked, session.listener)
    directory = checkpoint.MemoryRun()
    outcome = train_groups(directory, run, None, session)
    result = _result_of(directory, outcome, run)
    return result, make_models(directory, run, result)


def _result_of(directory: checkpoint.Run, outcome: Outcome, run: ResolvedRun) -> Result:
    problem, dataset = run.problem, run.dataset
    result = make_result(
        str(directory.path), outcome, problem.lanes, dataset.n_features, dataset.n_rows, problem.scale
    )
    if dataset.class_names is not None:
        for lane in result.lanes:
            lane["label"] = None if lane["label"] is None else dataset.class_names[int(lane["label"])]
    return result


def _label_of(lane: Mapping[str, Any]) -> str:
    label = lane["label"]
    return "" if label is None else f"{label if isinstance(label, str) else format(label, 'g')}, "


def _tell_omegas(result: Result, listener: Listener) -> None:
    """Tell which omega every lane was trained with, and why."""
    for lane in result.lanes[:20]:
        name = f"omega of the lane {_label_of(lane)}C = {lane['C']:g}"
        trial = lane["omega_trial"]
        gains = "too few passes for a trial"
        if trial:
            gains = "the dual's gain per pass was " + ", ".join(f"{trial[o]:.3g} with {o}" for o in trial)
        listener.message(f"{name}: {lane['omega']:g} ({gains})")


def _trained_passes(path: Path, run: ResolvedRun) -> list[int] | None:
    """Passes of every lane at the last checkpoint; None where a group has none."""
    passes: list[int] = []
    for group in run.groups:
        arrays = checkpoint.read_arrays(path / group.directory / "state.npz", ("lane_passes", "lane_phase"))
        if arrays is None:
            return None
        passes += arrays["lane_passes"].tolist()
    return passes

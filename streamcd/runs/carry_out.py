"""Execution of a run: groups of lanes, one after another, and the models at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..core.errors import counted
from ..core.memory_budget import RUNNING_BYTES, peak_memory_bytes, require, warn_of_memory
from ..core.options import Listener
from ..dataset.dataset import Dataset
from ..dataset.diagnostics import advice
from ..models.model import Model
from ..solvers.acceleration import TOLD
from ..solvers.registry import find_solver
from ..training import checkpoint
from ..training.loop import Loop, Session, Task
from ..training.result import Outcome, Result, worst_reason
from ..training.stopping import relative
from .choices import settle
from .config import ResolvedRun
from .lane_groups import resolve
from .models import make_models, save_models
from .options import TrainOptions
from .warm_start import WarmStart


def train_groups(
    directory: checkpoint.Run,
    run: ResolvedRun,
    previous: WarmStart | None,
    session: Session,
    *,
    shown_as: str | None = None,
    stage: str = "",
) -> Outcome:
    """Train all lanes of a run in a directory, group after group, from where each stands.

    Parameters
    ----------
    shown_as : str, optional
        The run directory named in messages, if it is not `directory`.
    stage : str
        Prefix of the phase in progress.
    """
    config, problem, outcomes = run.config, run.problem, list[Outcome]()
    for group in run.groups:
        lanes, numbers = problem.subset(group.lanes), group.lanes
        several = (
            f"problems {numbers.start + 1}-{numbers.stop} of {problem.n_lanes}, " if group.directory else ""
        )
        part = directory.part(group.directory) if group.directory else directory
        task = Task(
            dataset=run.dataset,
            problem=lanes,
            solver=run.options.make_solver(lanes, run.dataset, config.plan),
            plan=config.plan,
            memory=config.memory,
            rule=config.rule,
            seed=run.options.seed,
            checkpoint_every=config.checkpoint_every,
            run=shown_as or directory.name,
            name=stage + several,
            warm_start=None if previous is None else previous.subset(lanes, numbers),
        )
        train = Loop(part, task, session).run if config.rounds is None else _rounds(part, task, run, session)
        outcomes.append(train())
    return Outcome(
        {name: np.concatenate([one.lanes[name] for one in outcomes]) for name in outcomes[0].lanes},
        sum(one.seconds for one in outcomes),
        sum(one.bytes_read for one in outcomes),
        sum(one.kernel_seconds for one in outcomes),
    )


def _rounds(part: checkpoint.Run, task: Task, run: ResolvedRun, session: Session) -> Callable[[], Outcome]:
    from ..cluster.loop import DualRounds, SumRounds  # only where there are workers
    from ..cluster.memory import WORKER_BYTES
    from ..cluster.rounds import WorkerSpec

    assert run.config.rounds is not None
    options, dataset = run.options, run.dataset
    spec = WorkerSpec(
        dataset=str(dataset.path.resolve()),
        fingerprint=dataset.fingerprint,
        problem=task.problem,
        method=options.method,
        seed=options.seed,
        memory=run.config.memory - WORKER_BYTES,
        identity=part.identity,
        acceleration=options.acceleration,
        cache=dataset.cache,
    )
    loop = SumRounds if find_solver(options.loss, options.method).rounds == "sums" else DualRounds
    return loop(part, task, session, spec, run.config.rounds.worker_timeout).run


def carry_out(
    directory: checkpoint.Run,
    run: ResolvedRun,
    previous: WarmStart | None,
    session: Session,
    *,
    model_path: Path | None = None,
) -> Result:
    """Train, write the models (into the run, or to `model_path`), and return the result."""
    outcome = train_groups(directory, run, previous, session)
    listener = session.listener
    result = result_of(directory, outcome, run)
    if run.options.omega == "auto":
        for C in run.options.C:
            counts = Counter(lane["omega"] for lane in result.lanes if lane["C"] == C)
            omegas = [f"{omega:g} for {counted(n, 'problem')}" for omega, n in counts.most_common()]
            listener.message(f"omega at C = {C:g}: {', '.join(omegas)}")
    if result.stop_reason == "time":
        return result  # weights that were not certified make no model
    begun = time.monotonic()
    if save_models(model_path or directory.model_path, directory, run, result):
        result.seconds += time.monotonic() - begun
        result.peak_memory_bytes = peak_memory_bytes()
    else:
        listener.message(f"this run has ended (stopped by: {result.stop_reason}) and is left alone")
    advise(run, result)
    return result


def train_in_memory(dataset: Dataset, asked: TrainOptions, session: Session) -> tuple[Result, list[Model]]:
    """Train on a dataset without a run directory, and without resuming; returns the models of every C and λ, too."""
    asked, choices = settle(asked, dataset)
    run = resolve(dataset, asked)
    require(run.config.memory, {})
    for note in (choices, *run.notes):
        session.listener.message(note)
    directory = checkpoint.MemoryRun()
    outcome = train_groups(directory, run, None, session)
    result = result_of(directory, outcome, run)
    return result, make_models(directory, run, result)


def result_of(directory: checkpoint.Run, outcome: Outcome, run: ResolvedRun) -> Result:
    """Sum up the outcome of all lanes of a run, with objectives as the user's (`Problem.scale`)."""
    problem, rule, names = run.problem, run.config.rule, run.dataset.class_names
    kept = outcome.lanes | {name: problem.scale * outcome.lanes[name] for name in ("primal", "dual")}
    gaps = relative(outcome.lanes)
    omegas = kept.get("kept_omega", np.ones(problem.n_lanes))
    tells_omega = (omegas != 1.0) | (kept.get("trial_begin", omegas) > 1)
    return Result(
        run=directory.name,
        primal_objective=float(kept["primal"].sum()),
        dual_objective=float(kept["dual"].sum()),
        gap=float(gaps.max()),
        rounding=float(relative(outcome.lanes, "rounding").max()),
        violation=float(kept["violation"].max()),
        converged=bool(kept["converged"].all()),
        stop_reason=worst_reason(kept["reason"]),
        passes=int(kept["passes"].max()),
        seconds=outcome.seconds,
        kernel_seconds=outcome.kernel_seconds,
        bytes_read=outcome.bytes_read,
        peak_memory_bytes=peak_memory_bytes(),
        n_features=problem.n_features,
        n_rows=run.dataset.n_rows,
        n_lanes=problem.n_lanes,
        more_passes_help=outcome.is_cut_short,
        lanes=[
            {
                "label": lane.label if names is None or lane.label is None else names[int(lane.label)],
                "C": lane.C,
                "l1": lane.l1,
                "fold": None if lane.fold < 0 else lane.fold,
                "n_nonzero": int(kept["n_nonzero"][number]),
                "n_weights": problem.lane_vectors * problem.n_features,
                "primal_objective": float(kept["primal"][number]),
                "dual_objective": float(kept["dual"][number]),
                "gap": float(gaps[number]),
                "passes": int(kept["passes"][number]),
                "converged": bool(kept["converged"][number]),
                **({"omega": float(omegas[number])} if tells_omega[number] else {}),
                **{name: float(kept[name][number]) for name in TOLD if name in kept},
            }
            for number, lane in enumerate(problem.lanes)
        ],
        tol=rule.tol,
        eps=rule.eps,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Advice


def warn_early(run: ResolvedRun, listener: Listener) -> None:
    """Warn of bad scaling, and of a budget that the process cannot keep."""
    config, dataset, options, centred = run.config, run.dataset, run.options, run.centre is not None
    accelerated = options.acceleration != "none"
    for line in advice(
        dataset, max(options.C), accelerated=accelerated, method=options.method, centred=centred
    ):
        listener.warning(line)
    if config.rounds is None:
        # beside the interpreter: the data, if it stays in memory, else all of the budget
        whole = dataset.n_entries * dataset.entry_bytes + 16 * dataset.n_features * run.problem.n_lanes
        planned = whole if config.plan.resident else config.memory - RUNNING_BYTES
        warn_of_memory(config.memory, planned, listener)


def advise(run: ResolvedRun, result: Result) -> None:
    """Tell in a training's result what kept it from its tolerance, if anything, and whether more passes are the way on."""
    if result.converged:
        return
    C, method, centred = max(run.options.C), run.options.method, run.centre is not None
    result.advice = advice(run.dataset, C, method=method, centred=centred)
    more = not advice(run.dataset, C, accelerated=True, method=method, centred=centred)
    result.more_passes_help = more and result.stop_reason != "rounding"

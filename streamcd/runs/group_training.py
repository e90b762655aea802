"""Training of a run's groups of lanes, one after another, in this process or on workers."""

from __future__ import annotations

from ..cluster.partition import DASK_BYTES
from ..training import checkpoint
from ..training.loop import Loop, Session, Task
from ..training.result import Outcome, join_outcomes
from .config import Group, ResolvedRun
from .previous_run import PreviousRun


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

    method = run.options.method
    return RoundLoop(part, task, session, method, memory, rounds.local_passes, rounds.worker_timeout).run()

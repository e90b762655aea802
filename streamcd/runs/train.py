"""Training in a run directory: begun, searched for the best C, and resumed from its last checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core.errors import UsageError
from ..core.memory_budget import require
from ..core.options import Listener, takes
from ..core.parallel import Threads
from ..core.storage import local_path, location
from ..dataset.dataset import Dataset, open_dataset
from ..kernels.loss_table import SOLVERS
from ..solvers.registry import find_solver
from ..training import checkpoint
from ..training.loop import Session, deadline
from ..training.result import Result, TuneResult
from ..training.stopping import make_rule
from .carry_out import carry_out, warn_early
from .choices import settle
from .config import (
    ResolvedRun,
    RunConfig,
    differs,
    is_begun,
    read_config,
    refuse_existing,
    reopen,
    same_dataset,
    write_config,
)
from .interrupts import stops_when_interrupted
from .lane_groups import describe_worker_budget, resolve, share_memory_anew
from .options import ResumeOptions, TrainOptions, TuneOptions
from .warm_start import WarmStart, previous_run, record_data


@stops_when_interrupted
@takes(TrainOptions)
def train(dataset: Dataset | str | Path, run: str | Path | None, asked: TrainOptions) -> Result:
    """Train a model on a dataset, in a run directory that can be resumed.

    Parameters
    ----------
    dataset : Dataset or path
    run : path
        Directory to make; has to be given.
    {options}

    Returns
    -------
    Result

    Raises
    ------
    UsageError, DatasetError, CheckpointError, LockError
    Interrupted
        If `stop_requested` returned a signal; a checkpoint was saved.

    Examples
    --------
    >>> data = streamcd.open("data")
    >>> result = streamcd.train(data, "new-run", loss="hinge", C=0.1, memory="400MB")
    >>> result.converged
    True
    """
    on_workers = Workers.asked(asked.client, asked.workers, asked.scheduler, fewest=2)
    return _begin(dataset, run, asked, on_workers)


@stops_when_interrupted
@takes(TuneOptions)
def tune(dataset: Dataset | str | Path, run: str | Path, asked: TuneOptions) -> TuneResult:
    """Choose C, and λ of the penalty, by cross-validation, and train with them on all rows.

    Parameters
    ----------
    dataset : Dataset or path
    run : path
        Directory to make: ``folds/`` and ``best/`` are runs in it, ``model/`` is the best run's model.
    {options}

    Returns
    -------
    TuneResult

    Raises
    ------
    UsageError, DatasetError, CheckpointError, LockError, Interrupted

    Examples
    --------
    >>> result = streamcd.tune("data", "search", C=[0.1, 1, 10], cv=3)
    >>> result.best_C, sorted(result.scores)
    (0.1, ['0.1', '1', '10'])
    """
    result = _begin(dataset, run, asked, Workers())
    assert isinstance(result, TuneResult)
    return result


@stops_when_interrupted
@takes(ResumeOptions)
def resume(run: str | Path, asked: ResumeOptions) -> Result:
    """Resume a run from its last checkpoint, also one that ended without convergence.

    A run that has converged (by its own rule, or by `tol` if that is given) is not changed, and the listener is told. With
    ``max_passes=1`` one that was interrupted finishes the pass begun, certifies its gap and writes its model.

    Parameters
    ----------
    run : path
    {options}

    Returns
    -------
    Result

    Raises
    ------
    CheckpointError
        Where the run, or the dataset it was made with, is damaged, missing or changed.

    Examples
    --------
    >>> result = streamcd.resume("run", tol=1e-6)
    >>> result.gap <= 1e-6
    True
    """
    on_workers = Workers.asked(asked.client, asked.workers, asked.scheduler, fewest=1)
    session = Session(asked.listener, asked.stop_requested)

    def change(config: RunConfig) -> RunConfig:
        given: dict[str, Any] = {}
        if asked.dataset is not None:
            given["dataset"] = str(location(asked.dataset).resolve())
        if asked.checkpoint_every is not None:
            given["checkpoint_every"] = float(asked.checkpoint_every)
        tol, eps, max_passes = config.rule.tol, config.rule.eps, asked.max_passes
        if asked.tol is not None:
            tol, eps = asked.tol, None if asked.tol else eps
        rule = make_rule(tol, eps, config.rule.max_passes if max_passes is None else max_passes)
        return replace(config, rule=rule, **given)

    return _go_on(local_path(run, "a run"), on_workers, session, change)


def _begin(
    dataset: Dataset | str | Path, run: str | Path | None, asked: TrainOptions, on_workers: Workers
) -> Result:
    """Begin a run; with `resume` go on with it where it was begun."""
    # first: for rows in memory a run is not what is missing
    dataset = open_dataset(dataset, cache=asked.cache)
    path, listener = local_path(run, "a run"), asked.listener
    until = deadline(None if asked.max_seconds is None else float(asked.max_seconds))
    session = Session(listener, asked.stop_requested, threads=Threads(asked.threads), until=until)
    asked = replace(asked, on_workers=bool(on_workers), workers=on_workers.local or None)
    asked, choices = settle(asked, dataset)
    _check_rounds(asked)
    if isinstance(asked, TuneOptions):
        from .held_out import check_scoring  # with the kernels of scoring
        from .search import with_folds

        check_scoring(asked.scoring, asked, dataset)
        dataset, cv = with_folds(dataset, asked.cv, asked.memory_bytes)
        asked = replace(asked, cv=cv)
    require(asked.memory_bytes, {})  # for the start, which takes more than a training of few rows
    resolved = resolve(dataset, asked)
    if asked.resume and is_begun(path, resolved.config):
        new = resolved.config
        free = ("dataset", "cache", "threads", "rule", "checkpoint_every")  # which do not affect the bits
        given = {name: getattr(new, name) for name in free}
        return _go_on(path, on_workers, session, lambda config: replace(config, **given))
    notes = [choices, *resolved.notes]
    previous = previous_run(resolved, notes)  # refused before anything is made
    with ExitStack() as stack:
        if on_workers.scheduler is not None:  # where none answers, no run is made or replaced
            on_workers = Workers(client=stack.enter_context(on_workers.connected(listener)))
        refuse_existing(path, resolved.config, asked.force)
        with checkpoint.create_run(path, force=asked.force) as directory:
            for note in notes:  # now that all options are checked
                listener.message(note)
            warn_early(resolved, listener)
            write_config(directory, resolved.config)
            return _train(directory, resolved, previous, on_workers, session)


def _train(
    directory: checkpoint.Run,
    run: ResolvedRun,
    previous: WarmStart | None,
    on_workers: Workers,
    session: Session,
) -> Result:
    """Train a run of any kind from where it stands; one that stands nowhere yet starts from a previous one."""
    record_data(directory.path, run.dataset, centred=run.centre is not None)
    with on_workers.connected(session.listener, directory.path) as client:
        session = replace(session, client=client)
        if run.config.tune is not None:
            from .search import carry_out_search  # loads kernels that other runs do not need

            return carry_out_search(directory, run, session)
        return carry_out(directory, run, previous, session)


def _go_on(
    path: Path, on_workers: Workers, session: Session, change: Callable[[RunConfig], RunConfig]
) -> Result:
    """Resume a run of any kind with its configuration as changed by `change`."""
    listener = session.listener
    with checkpoint.open_run(path) as directory:
        config = read_config(path)
        if bool(on_workers) == (config.rounds is None):
            begun, way = "on workers", "with --scheduler ADDRESS or --workers N, N >= 1"
            if on_workers:
                begun, way = "in one process", "without workers"
            raise UsageError(
                f"{path} was begun {begun}: resume it {way}, or 'streamcd train DATASET NEW --start-from {path}'"
            )
        config = change(config)
        session = replace(session, threads=Threads(config.threads))
        dataset = same_dataset(config)
        if config.tune is not None:
            from .search import with_folds

            dataset, _ = with_folds(dataset, config.tune.cv, config.memory)
        run = reopen(path, config, dataset)
        if config.rounds is not None:
            config = share_memory_anew(run, on_workers.local)
            run = replace(run, config=config)
        previous = previous_run(run, [])
        if differs(config):
            listener.warning(
                "this machine or its libraries differ from those that the run was begun with: "
                "the optimum is the same by its gap, the last digits may differ"
            )
        if on_workers:
            listener.message(describe_worker_budget(config.memory))
        write_config(directory, config)
        warn_early(run, listener)
        return _train(directory, run, previous, on_workers, session)


def _check_rounds(asked: TrainOptions) -> None:
    """Refuse options that training on workers does not have, or that only it has."""
    if not asked.on_workers:
        if asked.worker_timeout is not None:
            raise UsageError("worker_timeout is for training on workers; give --scheduler or --workers")
        return
    if asked.omega != 1.0:
        raise UsageError("omega is for one process: on workers a line search sets the length of steps")
    if asked.has_l1:
        raise UsageError(f"--penalty {asked.penalty} is for one process, without --workers and --scheduler")
    if not find_solver(asked.loss, asked.method).rounds:
        known = ", ".join(str(entry) for entry in SOLVERS if entry.rounds)
        raise UsageError(
            f"{asked.loss} by method {asked.method} is not for several workers; expected one of {known}"
        )
    if asked.plan is not None:
        raise UsageError("plan: workers make their own plans from their memory and their shards")


# ---------------------------------------------------------------------------------------------------------------------
# Workers


@dataclass(frozen=True)
class Workers:
    """Workers asked for; none if this process trains alone."""

    client: Any = None  # of the caller
    scheduler: str | None = None  # address
    local: int = 0  # processes of this machine, which share the memory: the client's, or to be started

    @classmethod
    def asked(cls, client: Any, workers: int | None, scheduler: str | None, *, fewest: int) -> Workers:
        """Make workers from options; fewer than `fewest` are none."""
        if workers is not None and workers < 1:
            raise UsageError(f"workers: expected at least 1, found {workers}")
        if scheduler is not None and (workers is not None or client is not None):
            raise UsageError(
                "--workers are of this machine, --scheduler uses those of a cluster: give one of them"
            )
        return cls(client, scheduler, 0 if workers is None or workers < fewest else workers)

    def __bool__(self) -> bool:
        return self.client is not None or self.scheduler is not None or self.local > 0

    @contextmanager
    def connected(self, listener: Listener, run: Path | None = None) -> Iterator[Any]:
        """Provide a client of the workers, which are started if necessary, with files in the run; None if there are none."""
        if self.client is not None or not self:
            yield self.client
            return
        from ..cluster.dask_engine import open_client  # only where there are workers

        folder = None if run is None else run / "workers"
        with open_client(self.scheduler, self.local, listener, folder) as client:
            yield client

"""Resumption of a run of any kind from its last checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import UsageError
from ..core.progress import Listener, ends_progress
from ..core.range_cache import asked_cache
from ..core.storage import local_path, location
from ..core.threads import make_threads
from ..training import checkpoint
from ..training.loop import Session, StopRequested, deadline
from ..training.result import Result
from .carry_out import carry_out
from .config import (
    RunConfig,
    absolute_path,
    check_workers,
    differs,
    make_rule,
    read_config,
    reopen,
    same_dataset,
    same_validation,
    write_config,
)
from .early_warnings import warn_early
from .interrupts import stops_when_interrupted
from .lane_groups import describe_worker_budget, share_memory_anew
from .previous_run import previous_run
from .workers import Workers


@stops_when_interrupted
@ends_progress
def resume(
    run: str | Path,
    *,
    max_passes: int | None = None,
    tol: float | None = None,
    checkpoint_every: float | None = None,
    max_seconds: float | None = None,
    dataset: str | Path | None = None,
    validation: str | Path | None = None,
    early_stop: bool | None = None,
    cache: str | Path | None = None,
    cache_size: int | str | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    client: Any = None,
    threads: int | None = None,
    listener: Listener | None = None,
    stop_requested: StopRequested | None = None,
) -> Result:
    """Resume a run from its last checkpoint, also one that ended without convergence.

    A run that has converged (by its own rule, or by `tol` if that is given) is not changed, and the listener is told.

    Parameters
    ----------
    run : path
    max_passes, tol, checkpoint_every : optional
        Instead of the run's own.
    max_seconds : float, optional
        As in `train`, of this call.
    dataset : path, optional
        The dataset's new path, if it was moved; it has to be the same dataset.
    validation : path, optional
        The validation set's new path, if it was moved.
    early_stop : bool, optional
        As in `train`, instead of the run's own; False goes on where the validation set has ended a training.
    cache, cache_size : optional
        As in `train`, instead of the run's own.
    workers, scheduler, client : optional
        As in `train`, except that ``workers=1`` starts a worker too. Needed for a run begun on workers; scheduler and
        number may differ. If the run was begun with workers of one machine, the memory given for all is divided anew;
        otherwise every worker has as much as before.
    threads, listener, stop_requested : optional
        As in `train`.

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
    path = local_path(run, "a run")
    threading = make_threads(threads)
    session = Session(listener or Listener(), stop_requested, threads=threading, until=deadline(max_seconds))
    on_workers = Workers.asked(client, workers, scheduler, fewest=1)

    def change(config: RunConfig) -> RunConfig:
        place = config.dataset if dataset is None else str(location(dataset).resolve())
        directory = cache or (cache_size and config.cache and config.cache.directory) or None
        found = asked_cache(directory, cache_size, place) or config.cache
        config = _with_validation(replace(config, dataset=place, cache=found), validation, early_stop)
        return _changed(config, max_passes, tol, checkpoint_every)

    return go_on(path, on_workers, session, change)


def go_on(
    path: Path, on_workers: Workers, session: Session, change: Callable[[RunConfig], RunConfig]
) -> Result:
    """Resume a run of any kind with its configuration as changed by `change`."""
    listener = session.listener
    with checkpoint.open_run(path) as directory:
        config = read_config(path)
        if checkpoint.read_identity(path) is None:
            listener.warning(
                f"{path} was written before runs had an identity, by which files of another run are told; it gets one now"
            )
        check_workers(path, config, on_workers=bool(on_workers))
        config = change(config)
        data = same_dataset(config)
        same_validation(config)
        if differs(config):
            listener.warning(
                "this machine or its libraries differ from those that the run was begun with: "
                "the optimum is the same by its gap, the last digits may differ"
            )
        found = reopen(path, config, data)
        if on_workers.local and config.rounds is not None and config.rounds.shared_memory is not None:
            config = replace(config, memory=share_memory_anew(found, on_workers.local))
            found = replace(found, config=config)
        if on_workers:
            listener.message(describe_worker_budget(config.memory))
        write_config(directory, config)
        warn_early(found, listener)
        with on_workers.connected(listener) as connected:
            session = replace(session, client=connected)
            if config.tune is not None:
                from .search import carry_out_search  # loads kernels that other runs do not need

                return carry_out_search(directory, found, session)
            return carry_out(directory, found, previous_run(found), session)


def _with_validation(config: RunConfig, validation: str | Path | None, early_stop: bool | None) -> RunConfig:
    """Return the configuration with another place of its validation set, and stopping by it or not."""
    if config.validation is None and (validation is not None or early_stop):
        raise UsageError(
            "this run has no validation set, nor memory for one; begin another with --validation and --start-from"
        )
    place = config.validation if validation is None else absolute_path(validation)
    stops = config.rule.early_stop if early_stop is None else bool(early_stop)
    return replace(config, validation=place, rule=replace(config.rule, early_stop=stops))


def _changed(
    config: RunConfig, max_passes: int | None, tol: float | None, checkpoint_every: float | None
) -> RunConfig:
    """Return the configuration with the options given in place of its own."""
    old = config.rule
    tolerance, eps = (old.tol, old.eps) if tol is None else (tol, None if tol else old.eps)
    rule = make_rule(tolerance, eps, max_passes or old.max_passes, early_stop=old.early_stop)
    every = config.checkpoint_every if checkpoint_every is None else float(checkpoint_every)
    return replace(config, rule=rule, checkpoint_every=every)

"""Resumption of a run of any kind from its last checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..core.errors import UsageError
from ..core.options import takes
from ..core.progress import ends_progress
from ..core.storage import local_path, location
from ..dataset.range_cache import asked_cache
from ..training import checkpoint
from ..training.loop import Session
from ..training.result import Result
from ..training.stopping import make_rule
from .carry_out import carry_out, new_session
from .config import (
    RunConfig,
    absolute_path,
    check_workers,
    differs,
    read_config,
    reopen,
    same_dataset,
    same_validation,
    write_config,
)
from .early_warnings import warn_early
from .interrupts import stops_when_interrupted
from .lane_groups import describe_worker_budget, share_memory_anew
from .options import ResumeOptions
from .previous_run import previous_run
from .workers import Workers


@stops_when_interrupted
@ends_progress
@takes(ResumeOptions)
def resume(run: str | Path, asked: ResumeOptions) -> Result:
    """Resume a run from its last checkpoint, also one that ended without convergence.

    A run that has converged (by its own rule, or by `tol` if that is given) is not changed, and the listener is told.

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
    path = local_path(run, "a run")
    on_workers = Workers.asked(asked.client, asked.workers, asked.scheduler, fewest=1)
    return go_on(path, on_workers, new_session(asked), lambda config: _changed(config, asked))


def go_on(
    path: Path, on_workers: Workers, session: Session, change: Callable[[RunConfig], RunConfig]
) -> Result:
    """Resume a run of any kind with its configuration as changed by `change`."""
    listener = session.listener
    with checkpoint.open_run(path) as directory:
        config = read_config(path)
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


def _changed(config: RunConfig, asked: ResumeOptions) -> RunConfig:
    """Return the configuration with the options given in place of its own."""
    if config.validation is None and (asked.validation is not None or asked.early_stop):
        raise UsageError(
            "this run has no validation set, nor memory for one; begin another with --validation and --start-from"
        )
    place = config.dataset if asked.dataset is None else str(location(asked.dataset).resolve())
    directory = asked.cache or (asked.cache_size and config.cache and config.cache.directory) or None
    old, tol = config.rule, asked.tol
    tolerance, eps = (old.tol, old.eps) if tol is None else (tol, None if tol else old.eps)
    stops = old.early_stop if asked.early_stop is None else asked.early_stop
    every = asked.checkpoint_every
    return replace(
        config,
        dataset=place,
        cache=asked_cache(directory, asked.cache_size, place) or config.cache,
        validation=config.validation if asked.validation is None else absolute_path(asked.validation),
        rule=make_rule(tolerance, eps, asked.max_passes or old.max_passes, early_stop=stops),
        checkpoint_every=config.checkpoint_every if every is None else float(every),
    )

"""Going on with a run of any kind, from its last checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.progress import Listener
from ..core.storage import local_path
from ..training import checkpoint
from ..training.loop import Session, StopRequested
from ..training.result import Result
from .config import (
    RunConfig,
    check_workers,
    make_rule,
    read_config,
    reopen,
    same_dataset,
    versions,
    write_config,
)
from .interrupts import stops_when_interrupted
from .lane_groups import describe_worker_budget, share_memory_anew
from .previous_run import previous_run
from .train import carry_out


@stops_when_interrupted
def resume(
    run: str | Path,
    *,
    max_passes: int | None = None,
    tol: float | None = None,
    checkpoint_every: float | None = None,
    client: Any = None,
    local_workers: int = 0,
    listener: Listener | None = None,
    stop_requested: StopRequested | None = None,
) -> Result:
    """Go on from the last checkpoint of a run, also where it ended without convergence.

    A run that has converged (by its own rule, or by `tol` where that is given) is left alone, and the listener is told.

    Parameters
    ----------
    run : path
    max_passes, tol, checkpoint_every : optional
        Instead of the run's own.
    client : distributed.Client, optional
        Needed where the run was begun on workers; another scheduler and another number of workers will do.
    local_workers : int
        So many workers of `client` are on this machine. Where the run was begun with such workers, the memory that it was
        given for all is shared out anew; else every worker has what each had before.
    listener, stop_requested : optional
        As in `train`.

    Returns
    -------
    Result

    Raises
    ------
    CheckpointError
        Where the run, or the dataset it was made with, is damaged, missing or changed.
    """
    session = Session(listener or Listener(), stop_requested, client)
    path = local_path(run, "a run")
    with checkpoint.open_run(path) as directory:
        config = read_config(path)
        if checkpoint.read_identity(path) is None:
            session.listener.warning(
                f"{path} was written before runs had an identity, by which files of another run are told; it gets one now"
            )
        check_workers(path, config, client)
        dataset = same_dataset(config)
        config = _changed(config, max_passes, tol, checkpoint_every)
        if config.versions != versions():
            session.listener.warning(
                "this machine or its libraries differ from those that the run was begun with: "
                "the optimum is the same by its gap, the last digits may differ"
            )
        found = reopen(path, config, dataset)
        if local_workers and config.rounds is not None and config.rounds.shared_memory is not None:
            config = replace(config, memory=share_memory_anew(found, local_workers))
            found = replace(found, config=config)
        if client is not None:
            session.listener.message(describe_worker_budget(config.memory))
        write_config(directory, config)
        if config.tune is not None:
            from .tune import carry_out_search  # with the kernels of scoring, which other runs do not need

            return carry_out_search(directory, found, session)
        return carry_out(directory, found, previous_run(found), session)


def _changed(
    config: RunConfig, max_passes: int | None, tol: float | None, checkpoint_every: float | None
) -> RunConfig:
    """Return the configuration with what is asked for instead."""
    old = config.rule
    rule = make_rule(old.tol if tol is None else tol, None if tol else old.eps, max_passes or old.max_passes)
    every = config.checkpoint_every if checkpoint_every is None else float(checkpoint_every)
    return replace(config, rule=rule, checkpoint_every=every)

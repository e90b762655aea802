"""Going on with a run of any kind, from its last checkpoint."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import checkpoint
from .configuration import check_workers, same_dataset, versions
from .lane_groups import shared_out_anew
from .loop import StopRequested
from .memory import format_size
from .progress import Listener
from .result import Result
from .stopping import StopRule
from .train import carry_out
from .training_options import check_positive, stop_rule
from .tune import carry_out_search


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
    listener = listener or Listener()
    path = Path(run)
    with checkpoint.open_run(path) as directory:
        config = checkpoint.read_config(path)
        check_workers(path, config, client)
        dataset = same_dataset(config)
        old = StopRule(**config["rule"])
        rule = stop_rule(
            old.tol if tol is None else tol, None if tol else old.eps, max_passes or old.max_passes
        )
        config["rule"] = asdict(rule)
        if checkpoint_every is not None:
            check_positive(checkpoint_every=checkpoint_every)
            config["checkpoint_every"] = float(checkpoint_every)
        if config["versions"] != versions():
            listener.warning(
                "this machine or its libraries differ from those that the run was begun with: "
                "the optimum is the same by its gap, the last digits may differ"
            )
        if local_workers and "shared_memory" in config.get("rounds", {}):
            config["memory"] = shared_out_anew(config, dataset, local_workers)
        if client is not None:
            listener.message(f"every worker streams its own shards within {format_size(config['memory'])}")
        directory.write_config(config)
        if "tune" in config:
            return carry_out_search(directory, config, dataset, listener, stop_requested)
        return carry_out(directory, config, dataset, listener, stop_requested, client=client)

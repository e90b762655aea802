"""Training in a run directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..core.errors import UsageError
from ..core.options import takes
from ..core.progress import Listener, ends_progress
from ..core.storage import local_path
from ..dataset.dataset import Dataset, open_cached
from ..solvers.registry import SOLVERS, find_solver
from ..training.result import Result
from .bias_choice import choose_bias
from .carry_out import begin_run, carry_out, new_session
from .config import absolute_path, changed_by, is_begun
from .early_warnings import warn_early
from .interrupts import stops_when_interrupted
from .lane_groups import resolve
from .options import TrainOptions
from .previous_run import previous_run
from .workers import Workers


@stops_when_interrupted
@ends_progress
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
    listener = asked.listener or Listener()
    on_workers = Workers.asked(asked.client, asked.workers, asked.scheduler, fewest=2)
    session = new_session(asked)
    # first: for rows in memory a run is not what is missing
    dataset = open_cached(dataset, asked.cache, asked.cache_size)
    path = local_path(run, "a run")
    asked = asked.by_method(listener, choose=asked.start_from is None and not on_workers).settled(listener)
    bias, because = choose_bias(asked.bias, dataset, listener, asked.start_from)
    _check_rounds(asked, on_workers)
    asked = replace(
        asked,
        bias=bias,
        bias_because=because,
        validation=_validation_path(asked, on_workers),
        workers=on_workers.local or None,
        on_workers=bool(on_workers),
    )
    if asked.calibrate:
        from .calibration import check_calibration

        check_calibration(asked, on_workers=bool(on_workers))
    resolved = resolve(dataset, asked, listener)
    if asked.resume and is_begun(path, resolved.config):
        from .resume import go_on

        return go_on(path, on_workers, session, lambda config: changed_by(config, resolved.config))
    warn_early(resolved, listener)
    previous = previous_run(resolved)  # refused before anything is made
    with (
        on_workers.reached(listener) as reached,
        begin_run(path, resolved, force=asked.force) as directory,
        reached.connected(listener) as client,
    ):
        return carry_out(directory, resolved, previous, replace(session, client=client))


def _validation_path(asked: TrainOptions, workers: Workers) -> str | None:
    """Return the whole path of a validation set, for the record of the run; one that will not do is refused."""
    validation = asked.validation
    if validation is None:
        if asked.early_stop:
            raise UsageError("early_stop: it goes by a validation set; give --validation as well")
        return None
    if isinstance(validation, Dataset) and validation is not validation.whole:
        raise UsageError(
            f"validation: expected a whole dataset, found {validation.n_rows} rows of {validation.path}, which a resumed "
            "run would not find again; convert these rows by themselves"
        )
    from .validation import check_validation  # with the kernels of decisions

    path = absolute_path(str(validation.path) if isinstance(validation, Dataset) else validation)
    check_validation(path, on_workers=bool(workers))
    return path


def _check_rounds(asked: TrainOptions, workers: Workers) -> None:
    """Refuse options that training on workers does not have, or that only it has."""
    if not workers:
        for name in ("local_passes", "worker_timeout"):
            if getattr(asked, name) is not None:
                raise UsageError(f"{name} is for training on workers; give --scheduler or --workers")
        return
    if asked.omega != 1.0:
        raise UsageError("omega is for one process: on workers a line search sets the length of steps")
    if not find_solver(asked.loss, asked.method).in_rounds:
        known = ", ".join(str(entry) for entry in SOLVERS if entry.in_rounds)
        raise UsageError(
            f"{asked.loss} by method {asked.method} is not for several workers: rounds are steps of block-diagonal "
            f"dual coordinate descent with a line search along the dual; there are: {known}"
        )
    if asked.plan is not None:
        raise UsageError("plan: workers make their own plans from their memory and their shards")

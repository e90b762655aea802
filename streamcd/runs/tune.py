"""Search over C by cross-validation: the options of Python and of the command line, checked and carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.memory_budget import parse_size
from ..core.progress import Listener, ends_progress
from ..core.storage import local_path
from ..core.threads import make_threads
from ..dataset.dataset import Dataset, open_cached
from ..training.loop import Session, StopRequested, deadline
from ..training.result import TuneResult
from .bias_choice import choose_bias
from .carry_out import begin_run
from .config import (
    MAX_FOLDS,
    ProblemOptions,
    TrainOptions,
    changed_by,
    is_begun,
    make_rule,
    settle_acceleration,
)
from .early_warnings import warn_early
from .interrupts import stops_when_interrupted
from .lane_groups import resolve
from .workers import Workers


@stops_when_interrupted
@ends_progress
def tune(
    dataset: Dataset | str | Path,
    run: str | Path,
    *,
    C: Sequence[float],
    cv: int = 5,
    loss: str = "squared_hinge",
    method: str = "auto",
    bias: float | str = "auto",
    tol: float | None = None,
    eps: float | None = None,
    max_passes: int = 1000,
    class_weight: Mapping[Any, float] | str | None = None,
    code: np.ndarray | Sequence[Sequence[int]] | None = None,
    omega: float | str = 1.0,
    acceleration: float | str = "auto",
    ridge: float | None = None,
    slack: str | None = None,
    cache: str | Path | None = None,
    cache_size: int | str | None = None,
    memory: int | str = "1GB",
    seed: int = 0,
    checkpoint_every: float = 60.0,
    max_seconds: float | None = None,
    resume: bool = False,
    force: bool = False,
    threads: int | None = None,
    listener: Listener | None = None,
    stop_requested: StopRequested | None = None,
) -> TuneResult:
    """Choose C by cross-validation, and train with it on all rows.

    Parameters
    ----------
    dataset : Dataset or path
    run : path
        Directory to make: ``folds/`` and ``best/`` are runs in it, ``model/`` is the best run's model.
    C : sequence of float
        The values to try.
    cv : int
        Number of folds, to which rows are assigned by a hash of (seed, source row).
    loss, method, bias, tol, eps, max_passes, class_weight, code, omega, acceleration
        As in `train`.
    ridge, slack, cache, cache_size, memory, seed, checkpoint_every, max_seconds, resume, force
        As in `train`.
    threads, listener, stop_requested
        As in `train`.

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
    if not 2 <= cv <= MAX_FOLDS:
        raise UsageError(f"cv: expected from 2 to {MAX_FOLDS} folds, found {cv}")
    path = local_path(run, "a run")
    threading = make_threads(threads)
    session = Session(listener or Listener(), stop_requested, threads=threading, until=deadline(max_seconds))
    dataset = open_cached(dataset, cache, cache_size)
    bias, bias_because = choose_bias(bias, dataset, session.listener)
    problem = ProblemOptions.asked(
        loss=loss,
        method=method,
        C=np.unique(np.asarray(C, dtype=np.float64)).tolist(),
        bias=bias,
        class_weight=class_weight,
        code=code,
        seed=seed,
        folds=int(cv),
        omega=omega,
        acceleration=acceleration,
        ridge=ridge,
        slack=slack,
    )
    problem = settle_acceleration(problem, eps, session.listener)
    asked = TrainOptions(
        problem,
        parse_size(memory),
        checkpoint_every,
        make_rule(tol, eps, max_passes),
        search=True,
        cache=dataset.cache,
        bias_because=bias_because,
    )
    search = resolve(dataset, asked, session.listener)
    if resume and is_begun(path, search.config):
        from .resume import go_on

        found = go_on(path, Workers(), session, lambda config: changed_by(config, search.config))
        assert isinstance(found, TuneResult)
        return found
    warn_early(search, session.listener)
    from .search import carry_out_search  # loads the kernels of scoring

    with begin_run(path, search, force=force) as directory:
        return carry_out_search(directory, search, session)

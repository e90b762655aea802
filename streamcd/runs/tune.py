"""Search over C by cross-validation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..core.options import takes
from ..core.progress import ends_progress
from ..core.storage import local_path
from ..dataset.dataset import Dataset, open_cached
from ..training.result import TuneResult
from .bias_choice import choose_bias
from .carry_out import begin_run, new_session
from .config import changed_by, is_begun
from .early_warnings import warn_early
from .interrupts import stops_when_interrupted
from .lane_groups import resolve
from .options import TuneOptions
from .workers import Workers


@stops_when_interrupted
@ends_progress
@takes(TuneOptions)
def tune(dataset: Dataset | str | Path, run: str | Path, asked: TuneOptions) -> TuneResult:
    """Choose C by cross-validation, and train with it on all rows.

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
    path = local_path(run, "a run")
    session = new_session(asked)
    dataset = open_cached(dataset, asked.cache, asked.cache_size)
    asked = asked.by_method(session.listener, choose=False).settled(session.listener)
    bias, because = choose_bias(asked.bias, dataset, session.listener)
    search = resolve(dataset, replace(asked, bias=bias, bias_because=because), session.listener)
    if asked.resume and is_begun(path, search.config):
        from .resume import go_on

        result = go_on(path, Workers(), session, lambda config: changed_by(config, search.config))
        assert isinstance(result, TuneResult)
        return result
    warn_early(search, session.listener)
    from .search import carry_out_search  # loads the kernels of scoring

    with begin_run(path, search, force=asked.force) as directory:
        return carry_out_search(directory, search, session)

"""An earlier run from which another starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.progress import Listener
from ..core.storage import local_path
from ..dataset.chunked_table import UnknownStateError
from ..dataset.dataset import Dataset
from ..solvers.problem import Problem
from ..solvers.registry import is_proximal, keeps_alpha
from ..stream.arenas import RowLayout
from ..training import checkpoint
from ..training.correspondence import class_ratios, combination
from ..training.warm_start import Source, WarmStart
from .config import Group, ResolvedRun, RunConfig, read_config, reopen


class PreviousRun:
    """Lanes of an earlier run, whose groups ended in `states`, from which those of a new run start.

    `row_start` is that of its chunks where the new run has more rows behind them, else None.
    """

    def __init__(
        self,
        states: Sequence[checkpoint.SavedState],
        run: ResolvedRun,
        new: ResolvedRun,
        *,
        row_start: np.ndarray | None = None,
    ) -> None:
        self._states, self._run = states, run
        dual, grown = _needs_alpha(new), row_start is not None
        self._matrix = combination(run.problem, new.problem, dual=dual, grown=grown)
        self._known: dict[str, Any] = {"row_start": row_start, "centres": (run.centre, new.centre)}
        if dual and grown:
            self._known["ratios"] = class_ratios(run.problem, new.problem)

    def warm_start(self, dataset: Dataset, lanes: Problem, numbers: range) -> WarmStart:
        """Return the start of some of the new run's lanes, whose indices among all are `numbers`."""
        run, options, width = self._run, self._run.options, lanes.lane_vectors
        accelerated = is_proximal(run.problem, options.acceleration) and keeps_alpha(options.method)
        parts = _sources(zip(self._states, run.groups, strict=True), run, accelerated=accelerated)
        matrix = self._matrix[:, numbers.start * width : numbers.stop * width]
        return WarmStart(dataset, lanes, matrix, parts, run.problem.bias, **self._known)


def stored_states(path: Path, groups: Sequence[Group]) -> list[checkpoint.StoredState]:
    """Find the states of groups of lanes of a run in the directory `path`."""
    identity = checkpoint.read_identity(path)
    parts = [group.directory for group in groups]
    return [checkpoint.StoredState(path / part, identity.part(part)) for part in parts]


def _sources(
    parts: Iterable[tuple[checkpoint.SavedState, Group]], run: ResolvedRun, *, accelerated: bool
) -> list[Source]:
    """Describe groups of lanes of a run by their states."""
    options, problem = run.options, run.problem
    sources = []
    for state, group in parts:
        lanes = problem.subset(group.lanes)
        layout = options.solver_memory(lanes, run.dataset).layout
        if run.config.rounds is not None and isinstance(state, checkpoint.StoredState):
            from ..cluster.stored_rounds import StoredRounds  # only where there were workers

            assert isinstance(layout, RowLayout)
            state = StoredRounds(state.path, state.identity, lanes, layout)
        sources.append(Source(state, layout, accelerated, group.lanes, problem.lane_vectors))
    return sources


def previous_run(new: ResolvedRun, listener: Listener) -> PreviousRun | None:
    """Open the run that a run starts from, if any; refused if it cannot."""
    source = new.config.start_from
    if source is None:
        return None
    path = local_path(source, "a run")
    config = read_config(path)
    if config.tune is not None:
        path = path / ("best" if (path / "best" / "state.npz").exists() else "folds")
        config = read_config(path)
    dataset = new.dataset
    try:
        before = dataset
        if config.fingerprint != dataset.fingerprint:
            before = Dataset.open(dataset.path, fingerprint=config.fingerprint)
            before.use_cache(dataset.cache)
    except UnknownStateError:
        raise UsageError(
            f"start_from: expected a run on {dataset.path}, found {source}, a run on other rows; name another, or train "
            "from nothing"
        ) from None
    _check(source, config, new)
    run = reopen(path, config, before)
    states = stored_states(path, run.groups)
    if before is dataset:
        return PreviousRun(states, run, new)
    own = "dual variables" if _needs_alpha(new) else "weights"
    listener.message(
        f"starts from the {own} of {source}, which had the first {before.n_rows:,} of {dataset.n_rows:,} rows"
    )
    return PreviousRun(states, run, new, row_start=before.row_start)


def _needs_alpha(new: ResolvedRun) -> bool:
    return keeps_alpha(new.options.method)


def _check(source: str, config: RunConfig, new: ResolvedRun) -> None:
    """Refuse a run on the same rows whose dual variables or weights the new run cannot start from."""
    method, wanted = config.options.method, new.options.method
    if _needs_alpha(new) and not keeps_alpha(method):
        raise UsageError(
            f"{source} was not trained by a dual method; there are no dual variables to start from"
        )
    if method == "sor" and wanted == "dual":
        raise UsageError(
            f"{source} was trained by --method sor, which keeps no dual variables of a plane's own rows: only "
            f"--method sor can start from it, found {wanted}"
        )

"""An earlier run from which another starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.progress import counted
from ..core.storage import local_path
from ..dataset.chunked_table import UnknownStateError
from ..dataset.dataset import Dataset
from ..solvers.problem import Problem
from ..solvers.registry import is_proximal, keeps_alpha
from ..stream.arenas import RowLayout
from ..training import checkpoint
from ..training.correspondence import Features, class_ratios, combination, nearest_lanes, places_of
from ..training.warm_start import Source, WarmStart
from .config import Group, ResolvedRun, RunConfig, read_config, reopen


class PreviousRun:
    """Lanes of an earlier run, whose groups ended in `states`, from which those of a new run start.

    `row_start` is that of its chunks where the new run has more rows behind them, else None, and `classes` has the places
    of its classes, None where they are the same. `matched` tells what was found in the new
    run.
    """

    def __init__(
        self,
        states: Sequence[checkpoint.SavedState],
        run: ResolvedRun,
        new: ResolvedRun,
        *,
        row_start: np.ndarray | None = None,
        features: Features | None = None,
        classes: np.ndarray | None = None,
        matched: str = "",
    ) -> None:
        self._states, self._run, self.matched = states, run, matched
        self._new_centre = new.centre
        self._known = {"features": features, "row_start": row_start}
        dual, grown = _needs_alpha(new), row_start is not None
        self._matrix = combination(run.problem, new.problem, classes, dual=dual, grown=grown)
        if dual and grown:
            self._known["ratios"] = class_ratios(run.problem, new.problem, classes)
        if not self._matrix.any():
            raise UsageError(
                f"{states[0].path}: no class of that run is one of this dataset; there is nothing to start from"
            )

    def warm_start(self, dataset: Dataset, lanes: Problem, numbers: range) -> WarmStart:
        """Return the start of some of the new run's lanes, whose indices among all are `numbers`."""
        run, options, width = self._run, self._run.options, lanes.lane_vectors
        accelerated = is_proximal(run.problem, options.acceleration) and keeps_alpha(options.method)
        parts = _sources(zip(self._states, run.groups, strict=True), run, accelerated=accelerated)
        matrix = self._matrix[:, numbers.start * width : numbers.stop * width]
        known: dict[str, Any] = {**self._known, "centres": (run.centre, self._new_centre)}
        return WarmStart(dataset, lanes, matrix, parts, run.problem.bias, **known)


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
        sources.append(Source(state, layout, accelerated, problem.l2, group.lanes, problem.lane_vectors))
    return sources


def groups_follow(directory: checkpoint.Run, run: ResolvedRun) -> bool:
    """Tell whether each group of lanes starts from the ones before it: on a path over λ, the largest first."""
    return directory.has_files and len(set(run.problem.l1)) > 1 and not _needs_alpha(run)


def start_of_group(directory: checkpoint.Run, run: ResolvedRun, number: int) -> WarmStart | None:
    """Return the start of a group at the weights of the groups before it; None where there is none."""
    lanes, problem = run.groups[number].lanes, run.problem
    matrix = nearest_lanes(problem, range(lanes.start), lanes)
    earlier = [group for group in run.groups[:number] if matrix[list(group.lanes)].any()]
    if not earlier:
        return None
    parts = zip(stored_states(directory.path, earlier), earlier, strict=True)
    sources = _sources(parts, run, accelerated=False)
    centres = run.centre, run.centre
    return WarmStart(run.dataset, problem.subset(lanes), matrix, sources, problem.bias, centres=centres)


def previous_run(new: ResolvedRun) -> PreviousRun | None:
    """Open the run that a run starts from, if any; refused if it cannot."""
    source = new.config.start_from
    if source is None:
        return None
    path = local_path(source, "a run")
    config = read_config(path)
    if config.tune is not None:
        path = path / ("best" if (path / "best" / "state.npz").exists() else "folds")
        config = read_config(path)
    before = _as_of(new.dataset, config.fingerprint)
    if before is None:
        raise UsageError(
            f"start_from: expected a run on {new.dataset.path}, found {source}, a run on other rows; name another, or train "
            "from nothing"
        )
    _check(source, config, new)
    run = reopen(path, config, before)
    states = stored_states(path, run.groups)
    return (
        PreviousRun(states, run, new) if before is new.dataset else _of_first_rows(source, states, run, new)
    )


def _as_of(dataset: Dataset, fingerprint: str) -> Dataset | None:
    """Open a dataset as it was with a fingerprint; None if it never was, or rows of it were dropped."""
    try:
        return dataset.as_of(fingerprint)
    except UnknownStateError:
        return None


def _of_first_rows(
    source: str, states: Sequence[checkpoint.SavedState], run: ResolvedRun, new: ResolvedRun
) -> PreviousRun:
    """Open a run on a dataset before rows were appended."""
    before, dataset = run.dataset, new.dataset
    own = "dual variables" if _needs_alpha(new) else "weights"
    text = (
        f"starts from the {own} of {source}, which had the first {before.n_rows:,} of {dataset.n_rows:,} rows"
    )
    classes = None
    if not new.problem.has_targets:
        classes = places_of(before.info()["classes"], dataset.info()["classes"])
    added = {
        "feature": dataset.n_features - before.n_features,
        "class": new.problem.model_code.shape[0] - run.problem.model_code.shape[0],
    }
    more = [
        counted(n, f"new {name}", f"new {name}{'es' if name == 'class' else 's'}")
        for name, n in added.items()
        if n
    ]
    return PreviousRun(
        states,
        run,
        new,
        row_start=before.row_start,
        features=Features(before.n_features),
        classes=classes,
        matched=text + (f"; {' and '.join(more)} at 0" if more else ""),
    )


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

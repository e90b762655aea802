"""An earlier run from which another starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..core.errors import UsageError
from ..core.storage import local_path
from ..solvers.problem import Problem
from ..solvers.registry import is_proximal, keeps_alpha
from ..training import checkpoint
from ..training.warm_start import Source, WarmStart, combination, nearest_lanes
from .config import Group, ResolvedRun, RunConfig, read_config, reopen


class PreviousRun:
    """Lanes of an earlier run, in the directory `path`, from which those of a new run start."""

    def __init__(self, path: Path, run: ResolvedRun, new: ResolvedRun) -> None:
        self._path, self._run = path, run
        self._matrix = combination(run.problem, new.problem, dual=_needs_alpha(new))

    def warm_start(self, lanes: Problem, numbers: range) -> WarmStart:
        """Return the start of some of the new run's lanes, whose indices among all are `numbers`."""
        run, options = self._run, self._run.options
        accelerated = is_proximal(run.problem, options.acceleration) and keeps_alpha(options.method)
        parts = _sources(self._path, run, run.groups, accelerated=accelerated)
        return WarmStart(run.dataset, lanes, self._matrix[:, list(numbers)], parts, run.problem.bias)


def _sources(path: Path, run: ResolvedRun, groups: Sequence[Group], *, accelerated: bool) -> list[Source]:
    """Open groups of lanes of a run in the directory `path`."""
    identity, options = checkpoint.read_identity(path), run.options
    sources = []
    for group in groups:
        layout = options.solver_memory(run.problem.subset(group.lanes), run.dataset).layout
        place = path / group.directory, identity.part(group.directory)
        sources.append(Source(*place, layout, accelerated, run.problem.l2, group.lanes))
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
    sources = _sources(directory.path, run, earlier, accelerated=False)
    return WarmStart(run.dataset, problem.subset(lanes), matrix, sources, problem.bias)


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
    _check(source, config, new)
    return PreviousRun(path, reopen(path, config, new.dataset), new)


def _needs_alpha(new: ResolvedRun) -> bool:
    return keeps_alpha(new.options.method)


def _check(source: str, config: RunConfig, new: ResolvedRun) -> None:
    """Refuse a run whose dual variables or weights the new run cannot start from."""
    if config.fingerprint != new.dataset.fingerprint:
        raise UsageError(
            f"{source} was trained on another dataset (fingerprint {config.fingerprint}, this one has "
            f"{new.dataset.fingerprint}); dual variables belong to rows, so a warm start needs the same dataset"
        )
    if config.rounds is not None:
        raise UsageError(
            f"{source} was trained on workers, which keep dual variables in another way; start from a run of one process"
        )
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

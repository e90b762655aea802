"""An earlier run from which another begins."""

from __future__ import annotations

from pathlib import Path

from .config import ResolvedRun, RunConfig, read_config, reopen
from .errors import UsageError
from .primal import PRIMAL_METHODS
from .problems import Problem
from .warmstart import WarmStart, combination


class PreviousRun:
    """The lanes of an earlier run, as the beginning of a new one's; refused where they cannot be."""

    def __init__(self, source: str, new: ResolvedRun) -> None:
        self._path = Path(source)
        config = read_config(self._path)
        if config.tune is not None:
            inside = "best" if (self._path / "best" / "state.npz").exists() else "folds"
            self._path = self._path / inside
            config = read_config(self._path)
        dual = new.options.method not in PRIMAL_METHODS
        _check(source, config, new, dual=dual)
        self._run = reopen(config, new.dataset, new.solver_factory)
        self._matrix = combination(self._run.problem, new.problem, dual=dual)

    def warm_start(self, lanes: Problem, numbers: range) -> WarmStart:
        """The beginning of some of the new run's lanes, of which `numbers` are the places among all."""
        run = self._run
        solvers = [run.make_solver(run.problem.subset(group.lanes)) for group in run.groups]
        parts = [
            (self._path / group.directory, solver, list(group.lanes))
            for group, solver in zip(run.groups, solvers, strict=True)
        ]
        return WarmStart(run.dataset, lanes, self._matrix[:, list(numbers)], parts)


def previous_run(new: ResolvedRun) -> PreviousRun | None:
    """The run that a run begins from, if any."""
    return None if new.config.start_from is None else PreviousRun(new.config.start_from, new)


def _check(source: str, config: RunConfig, new: ResolvedRun, *, dual: bool) -> None:
    """Refuse a run whose dual variables or weights are no beginning of the new one's."""
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
    if dual and method not in ("dual", "sor"):
        raise UsageError(
            f"{source} was not trained by a dual method; there are no dual variables to start from"
        )
    if method == "sor" and wanted == "dual":
        raise UsageError(
            f"{source} was trained by --method sor, which keeps no dual variables of a plane's own rows: only "
            f"--method sor can start from it, found {wanted}"
        )

"""What a run directory records, ``config.json``, and the run that follows from it and its dataset."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from . import checkpoint
from .columns import open_columns
from .dataset import Dataset, open_dataset
from .errors import CheckpointError, UsageError
from .lane_groups import Group, MemoryBudget, group_lanes, split_lanes, worker_memory
from .memory import format_size
from .options import ProblemOptions, SharedRounds, TrainOptions
from .partition import model_bytes
from .plan import Plan, describe_plan
from .primal import PRIMAL_METHODS, PRIMAL_SOLVERS
from .problems import Problem
from .progress import Listener
from .solvers import SOLVERS, Solver
from .stopping import StopRule


@dataclass(frozen=True)
class Search:
    """A search over C by cross-validation with `cv` folds."""

    cv: int


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The content of ``config.json``: everything that decides a run's bits, and the memory plan.

    Attributes
    ----------
    dataset, fingerprint : str
        Path of the dataset, and what it must hold.
    options : ProblemOptions
    memory : int
        Budget of this process, or of a worker; bytes.
    plan : Plan
    n_groups : int
        Groups of lanes that are trained one after another.
    rule : StopRule
    checkpoint_every : float
    versions : dict of str to str
        See `versions`.
    rounds : SharedRounds or None
        Of a run on workers.
    columns : str or None
        Fingerprint of the column layout, where that is read.
    start_from : str or None
        Path of the run that this one begins from.
    tune : Search or None
        Of a search over C.
    """

    dataset: str
    fingerprint: str
    options: ProblemOptions
    memory: int
    plan: Plan
    n_groups: int
    rule: StopRule
    checkpoint_every: float
    versions: dict[str, str]
    rounds: SharedRounds | None = None
    columns: str | None = None
    start_from: str | None = None
    tune: Search | None = None


def read_config(path: Path) -> RunConfig:
    """Read the configuration of a run directory.

    Raises
    ------
    CheckpointError
        Where it is not a run, or its configuration is damaged.
    """
    try:
        return msgspec.convert(checkpoint.read_config(path), RunConfig)
    except msgspec.ValidationError as error:
        raise CheckpointError(
            f"{path / 'config.json'}: damaged ({error}); restore it, or train again with --force"
        ) from None


def write_config(directory: checkpoint.Run, config: RunConfig) -> None:
    """Write ``config.json``, whole."""
    content = {name: value for name, value in msgspec.to_builtins(config).items() if value is not None}
    if config.rounds is not None and config.rounds.shared_memory is None:
        del content["rounds"]["shared_memory"]
    directory.write_config(content)


@dataclass(frozen=True)
class ResolvedRun:
    """A run's configuration with what follows from it, made once and passed down.

    Attributes
    ----------
    config : RunConfig
    dataset : Dataset
    problem : Problem
        All lanes.
    """

    config: RunConfig
    dataset: Dataset
    problem: Problem

    @property
    def options(self) -> ProblemOptions:
        return self.config.options

    @cached_property
    def groups(self) -> list[Group]:
        """Groups of lanes that are trained one after another."""
        return split_lanes(self.problem, self.config.n_groups)

    def make_solver(self, lanes: Problem) -> Solver:
        """Make the solver of some of the problem's lanes."""
        return make_solver(lanes, self.options, self.dataset)

    def share_memory_anew(self, n_workers: int) -> int:
        """Return what each of other workers of this machine may take of the budget that the run was begun with."""
        assert self.config.rounds is not None
        assert self.config.rounds.shared_memory is not None
        return worker_memory(
            self.config.rounds.shared_memory,
            n_workers,
            model_bytes(self.make_solver(self.problem.subset(self.groups[0].lanes))),
            "the run was begun with it: resume with fewer --workers, or with --scheduler on other machines",
        )


def make_solver(lanes: Problem, options: ProblemOptions, dataset: Dataset) -> Solver:
    """Make the solver of a problem, by the method of the options."""
    method = options.method
    if lanes.free_bias and method not in PRIMAL_METHODS:
        raise UsageError(
            f"--unpenalized-bias is for --method {' and '.join(PRIMAL_METHODS)}, found {method}; "
            "or give --bias a larger value, which is penalised less"
        )
    if (lanes.loss, method) in PRIMAL_SOLVERS:
        return PRIMAL_SOLVERS[lanes.loss, method](lanes, dataset, options.seed)
    try:
        make = SOLVERS[lanes.loss, method]
    except KeyError:
        known = ", ".join(f"{loss} by {way}" for loss, way in {**SOLVERS, **PRIMAL_SOLVERS})
        raise UsageError(f"no solver for {lanes.loss} by method {method}; there are: {known}") from None
    return make(lanes) if options.omega == 1.0 else make(lanes, omega=options.omega)


def resolve(dataset: Dataset, asked: TrainOptions, listener: Listener) -> ResolvedRun:
    """Plan a new run, and tell the listener how its memory is used.

    Raises
    ------
    UsageError
        Where the options do not go together, or the budget is too small.
    """
    options = asked.problem
    problem = options.make_problem(dataset)
    n_groups, plan, memory = group_lanes(
        dataset,
        problem,
        lambda lanes: make_solver(lanes, options, dataset),
        MemoryBudget(asked.memory, asked.rounds is not None, asked.local_workers),
        asked.plan,
    )
    listener.message(
        describe_plan(plan, dataset, memory) if asked.rounds is None else describe_worker_budget(memory)
    )
    if n_groups > 1:
        listener.message(
            f"{problem.n_lanes} lanes of {problem.n_features} features do not fit in {format_size(memory)}: "
            f"they are trained in {n_groups} groups, one after another, each reading the data by itself"
        )
    config = RunConfig(
        dataset=str(dataset.path.resolve()),
        fingerprint=dataset.fingerprint,
        options=options,
        memory=memory,
        plan=plan,
        n_groups=n_groups,
        rule=asked.rule,
        checkpoint_every=float(asked.checkpoint_every),
        versions=versions(),
        rounds=asked.rounds,
        columns=open_columns(dataset).fingerprint if options.method in PRIMAL_METHODS else None,
        start_from=asked.start_from,
        tune=Search(options.folds) if asked.search else None,
    )
    return ResolvedRun(config, dataset, problem)


def reopen(config: RunConfig, dataset: Dataset) -> ResolvedRun:
    """Make the run that a configuration records."""
    return ResolvedRun(config, dataset, config.options.make_problem(dataset))


def describe_worker_budget(n_bytes: int) -> str:
    """One line for the user: the budget of every worker."""
    return f"every worker streams its own shards within {format_size(n_bytes)}"


def versions() -> dict[str, str]:
    """Versions and processor, on which the last digits depend."""
    import llvmlite
    import numba
    import pyarrow

    from . import __version__

    return {
        "streamcd": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "llvmlite": llvmlite.__version__,
        "pyarrow": pyarrow.__version__,
        "processor": llvmlite.binding.get_host_cpu_name(),
    }


def refuse_existing(path: Path, config: RunConfig, force: bool) -> None:
    """Point to `resume` where the directory holds the same training."""
    if force or not (path / "config.json").exists():
        return
    found = read_config(path)
    if all(getattr(found, name) == getattr(config, name) for name in ("fingerprint", "options", "tune")):
        raise CheckpointError(
            f"{path} holds a run of the same training: 'streamcd resume {path}' goes on with it, --force starts it anew"
        )
    raise CheckpointError(f"{path} holds another run; name another directory, or give --force to replace it")


def same_dataset(config: RunConfig) -> Dataset:
    """Open the dataset of a run; refuse it where it has changed."""
    dataset = open_dataset(config.dataset)
    if dataset.fingerprint != config.fingerprint:
        raise CheckpointError(
            f"{dataset.path}: not the dataset that the run was begun with (fingerprint {dataset.fingerprint}, "
            f"the run has {config.fingerprint}); restore that one, or train again"
        )
    if config.columns is not None and open_columns(dataset).fingerprint != config.columns:
        raise CheckpointError(
            f"{dataset.path}: its column layout was made with other options than that which the run was begun with; "
            "make it with the same ones, or train again"
        )
    return dataset


def check_workers(path: Path, config: RunConfig, client: Any) -> None:
    """Refuse to go on with a run on workers in one process, and the other way round."""
    if client is None and config.rounds is not None:
        raise UsageError(
            f"{path} was begun on workers, which keep dual variables in another way: resume it with --scheduler ADDRESS "
            "or --workers N, N >= 1"
        )
    if client is not None and config.rounds is None:
        raise UsageError(
            f"{path} was begun in one process, which keeps dual variables in another way: resume it without workers, or "
            f"begin a new run on workers with --start-from {path}"
        )

"""The record of a run, ``config.json``, and the resolved run."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from ..core.errors import CheckpointError, DatasetError, UsageError
from ..core.files import Positive
from ..core.storage import is_url
from ..dataset.centring import Centre
from ..dataset.dataset import Dataset
from ..solvers.problem import Problem
from ..stream.memory_plan import Plan
from ..training import checkpoint
from ..training.stopping import StopRule
from .problem_options import MAX_FOLDS, ProblemOptions, SharedRounds, check_positive


@dataclass(frozen=True)
class Search:
    """A search over C by cross-validation with `cv` folds."""

    cv: int
    scoring: str = ""  # the criterion; by the loss where empty


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Content of ``config.json``: everything that determines a run's bits, and the memory plan."""

    dataset: str  # its path
    fingerprint: str
    options: ProblemOptions
    memory: Positive  # of this process, or of a worker; bytes
    plan: Plan
    n_groups: Positive
    rule: StopRule
    checkpoint_every: float
    versions: dict[str, str]
    rounds: SharedRounds | None = None
    columns: str | None = None  # fingerprint of the column layout, if it is read
    start_from: str | None = None
    tune: Search | None = None
    cache: str | None = None  # directory, of data at a URL; no bit depends on it
    threads: int | None = None  # one for each processor
    bias_because: str = ""
    centred: str = ""  # what is, see `ResolvedRun.centre`

    def __post_init__(self) -> None:
        check_positive(checkpoint_every=self.checkpoint_every)
        folds = self.options.folds
        paths = self.dataset, self.start_from, self.cache
        if folds not in (0, *range(2, MAX_FOLDS + 1)):
            raise UsageError(f"options.folds: expected 0, or 2 to {MAX_FOLDS}, found {folds}")
        if (self.rule.tol is None) == (self.rule.eps is None):
            raise UsageError("rule: expected one of tol and eps")
        if self.tune is not None and self.tune.cv != folds:
            raise UsageError(f"tune.cv: expected options.folds, {folds}, found {self.tune.cv}")
        if any("\0" in (path or "") for path in paths):
            raise UsageError(f"dataset, start_from and cache: expected paths, found {paths}")


def read_config(path: Path) -> RunConfig:
    """Read the configuration of a run directory; refused if it is not one, or damaged."""
    try:
        return msgspec.convert(checkpoint.read_config(path), RunConfig)
    except (msgspec.ValidationError, UnicodeError, UsageError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path / 'config.json'}: damaged ({error}); {checkpoint.RUN.remedy}")


def write_config(directory: checkpoint.Run, config: RunConfig) -> None:
    content = {name: value for name, value in asdict(config).items() if value is not None}
    if config.rounds is not None and config.rounds.shared_memory is None:
        del content["rounds"]["shared_memory"]
    directory.write_config(content)


@dataclass(frozen=True)
class Group:
    """Lanes that are trained together."""

    directory: str  # inside the run; empty for the run itself
    lanes: range  # among all lanes of the run


def lanes_together(problem: Problem) -> int:
    """Return the number of lanes that must stay in one group: those of a fold are scored together."""
    return problem.block_lanes if problem.n_folds else 1


@dataclass(frozen=True)
class ResolvedRun:
    """A run's configuration, and the dataset and problem that follow from it; made once and passed down."""

    config: RunConfig
    dataset: Dataset
    problem: Problem  # all lanes
    notes: Sequence[str] = ()  # on what was planned

    @property
    def options(self) -> ProblemOptions:
        return self.config.options

    @cached_property
    def groups(self) -> list[Group]:
        """Return the groups of lanes that are trained one after another."""
        n_groups, n_lanes = self.config.n_groups, self.problem.n_lanes
        if n_groups == 1:
            return [Group("", range(n_lanes))]
        together = lanes_together(self.problem)
        size = -(-(n_lanes // together) // n_groups) * together
        return [
            Group(f"group-{number:02d}", range(start, min(start + size, n_lanes)))
            for number, start in enumerate(range(0, n_lanes, size))
        ]

    @property
    def most_groups(self) -> int:
        """Largest number of groups: one for each set of lanes that have to stay together."""
        return self.problem.n_lanes // lanes_together(self.problem)

    @cached_property
    def centre(self) -> Centre | None:
        """Shifts of features and targets as they are read, None without any; the states' weights are for what is left."""
        memory = self.options.solver_memory(self.problem.subset(self.groups[0].lanes), self.dataset)
        return self.dataset.centre if memory.layout.centred else None


def reopen(path: Path, config: RunConfig, dataset: Dataset) -> ResolvedRun:
    """Make the run that the configuration of a directory records; refused if it does not fit the dataset."""
    try:
        memory = config.memory if config.rounds is None else None  # with workers it is each worker's
        run = ResolvedRun(config, dataset, config.options.make_problem(dataset, memory))
        if config.n_groups > run.most_groups:
            raise UsageError(f"n_groups: expected at most {run.most_groups}, found {config.n_groups}")
        config.options.solver_memory(run.problem.subset(run.groups[0].lanes), dataset)
    except UsageError as error:
        raise _damaged(path, error) from None
    return run


def versions() -> dict[str, str]:
    """Return versions and processor, on which the last digits depend."""
    import llvmlite
    import numba
    import pyarrow

    from .._version import __version__

    return {
        "streamcd": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "llvmlite": llvmlite.__version__,
        "pyarrow": pyarrow.__version__,
        "processor": llvmlite.binding.get_host_cpu_name(),
    }


def is_begun(path: Path, config: RunConfig) -> bool:
    """Return whether a directory holds a run of the same training; a different run is refused."""
    if not (path / "config.json").exists():
        return False
    begun = read_config(path)
    if any(getattr(begun, name) != getattr(config, name) for name in ("fingerprint", "options", "tune")):
        raise CheckpointError(
            f"{path} holds another run; name another directory, or give --force to replace it"
        )
    return True


def differs(config: RunConfig) -> bool:
    """Return whether a run was begun with other versions, or on another kind of processor."""
    now = versions()
    return {name: config.versions.get(name) for name in now} != now


def refuse_existing(path: Path, config: RunConfig, force: bool) -> None:
    """Point to `resume` if the directory holds the same training; never empty one that holds the run's inputs."""
    for source in (config.dataset, config.start_from):
        if source and not is_url(source) and Path(source).resolve().is_relative_to(path.resolve()):
            raise UsageError(  # safety: files_of_others::run_does_not_empty
                f"{path} holds {source}, which the run reads; name another directory"
            )
    if not force and is_begun(path, config):  # safety: resume::points_to_resume
        workers = " --workers N" if config.rounds else ""
        raise CheckpointError(
            f"{path} holds a run of the same training: 'streamcd resume {path}{workers}' goes on with it, --force starts it "
            "anew"
        )


def same_dataset(config: RunConfig) -> Dataset:
    """Open the dataset of a run, refused if it has changed."""
    try:
        dataset = Dataset.open(config.dataset, fingerprint=config.fingerprint)
        dataset.use_cache(config.cache)
    except DatasetError as error:
        if os.path.exists(config.dataset):
            raise
        raise DatasetError(
            f"{error}; or, if it was moved, name its new path: 'streamcd resume RUN --dataset PATH'"
        ) from None
    if config.columns is not None and dataset.open_columns().fingerprint != config.columns:
        raise CheckpointError(  # safety: primal::layout_made_anew
            f"{dataset.path}: its column layout was made with other options than when the run was begun; "
            "make it with the same ones, or train again"
        )
    return dataset

"""What a run directory records, ``config.json``, and the run that follows from it and its dataset."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..core.errors import CheckpointError, UsageError
from ..dataset.column_layout import open_columns
from ..dataset.dataset import Dataset, open_dataset
from ..solvers.problem import Problem
from ..solvers.protocol import Solver
from ..stream.memory_plan import Plan
from ..training import checkpoint
from ..training.stopping import StopRule
from .options import ProblemOptions, SharedRounds


@dataclass(frozen=True)
class Search:
    """A search over C by cross-validation with `cv` folds."""

    cv: int


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The content of ``config.json``: everything that decides a run's bits, and the memory plan."""

    dataset: str  # its path
    fingerprint: str
    options: ProblemOptions
    memory: int  # of this process, or of a worker; bytes
    plan: Plan
    n_groups: int
    rule: StopRule
    checkpoint_every: float
    versions: dict[str, str]
    rounds: SharedRounds | None = None
    columns: str | None = None  # fingerprint of the column layout, where that is read
    start_from: str | None = None
    tune: Search | None = None


def read_config(path: Path) -> RunConfig:
    """Read the configuration of a run directory; refuse what is not one, or is damaged."""
    try:
        return msgspec.convert(checkpoint.read_config(path), RunConfig)
    except msgspec.ValidationError as error:
        raise CheckpointError(
            f"{path / 'config.json'}: damaged ({error}); restore it, or train again with --force"
        ) from None


def write_config(directory: checkpoint.Run, config: RunConfig) -> None:
    """Write ``config.json``, whole."""
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
    """Lanes that no group may part: those of a fold are scored together."""
    return problem.block_lanes if problem.n_folds else 1


@dataclass(frozen=True)
class ResolvedRun:
    """A run's configuration with what follows from it, made once and passed down."""

    config: RunConfig
    dataset: Dataset
    problem: Problem  # all lanes

    @property
    def options(self) -> ProblemOptions:
        return self.config.options

    @cached_property
    def groups(self) -> list[Group]:
        """Groups of lanes that are trained one after another."""
        n_groups, n_lanes = self.config.n_groups, self.problem.n_lanes
        if n_groups == 1:
            return [Group("", range(n_lanes))]
        together = lanes_together(self.problem)
        size = -(-(n_lanes // together) // n_groups) * together
        return [
            Group(f"group-{number:02d}", range(start, min(start + size, n_lanes)))
            for number, start in enumerate(range(0, n_lanes, size))
        ]

    def make_solver(self, lanes: Problem) -> Solver:
        """Make the solver of some of the problem's lanes."""
        return self.options.make_solver(lanes, self.dataset)


def reopen(config: RunConfig, dataset: Dataset) -> ResolvedRun:
    """Make the run that a configuration records."""
    return ResolvedRun(config, dataset, config.options.make_problem(dataset))


def versions() -> dict[str, str]:
    """Versions and processor, on which the last digits depend."""
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

"""The record of a run, ``config.json``; and the run that it means on its dataset."""

from __future__ import annotations

import math
import os
import platform
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from ..core.errors import CheckpointError, DatasetError, UsageError, first_of
from ..core.files import Positive, Seconds
from ..dataset.dataset import Dataset
from ..kernels.loss_table import LOSSES
from ..solvers.problem import Problem, make_problem
from ..solvers.protocol import SolverOptions
from ..training import checkpoint
from ..training.lane_groups import LaneGroups
from ..training.loop import LoopConfig
from .options import DEFAULT_SLACK, DEFAULT_STRENGTH, MAX_FOLDS, ProblemOptions

_LOSSES_TO_BIAS = 100.0  # least square of a free bias's feature, times C and the rows


DATA = "data"
"""Folder of a run with the manifest and the chunk table of its dataset, by which a later run knows its shards."""

PathText = Annotated[str, msgspec.Meta(pattern=r"^[^\0]*\Z")]


@dataclass(frozen=True)
class SharedRounds:
    """Configuration of a training in rounds on workers, the ``rounds`` of ``config.json``."""

    worker_timeout: Seconds  # without a response of a worker, after which its shards go to others
    # bytes that workers of this machine share with this process, and that each of a cluster has, where they are not `memory`
    shared_memory: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class RunConfig(LoopConfig):
    """Content of ``config.json``: everything that determines a run's bits, resolved, and the memory plan.

    A search has the criterion `scoring`, and two runs in folders: one with the same folds, and one without any.
    """

    dataset: PathText
    fingerprint: str
    options: ProblemOptions
    n_groups: Positive
    versions: dict[str, str]
    folds: Annotated[int, msgspec.Meta(ge=0, le=MAX_FOLDS)] = 0  # of a cross-validation
    scoring: str | None = None
    rounds: SharedRounds | None = None
    columns: str | None = None  # fingerprint of the column layout, if it is read
    start_from: PathText | None = None
    cache: PathText | None = None  # directory, of data at a URL; no bit depends on it
    threads: int | None = None  # one for each processor
    bias_because: str = ""  # why the bias is as it is
    centred: str = ""  # what is, see `LaneGroups`

    def __post_init__(self) -> None:
        if self.folds == 1:
            raise UsageError(f"folds: expected 0, or 2 to {MAX_FOLDS}, found 1")


def read_config(path: Path) -> RunConfig:
    """Read the configuration of a run directory; refused if it is not one, or damaged."""
    try:
        return msgspec.convert(checkpoint.read_config(path), RunConfig)
    except (msgspec.ValidationError, UnicodeError, UsageError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path / 'config.json'}: damaged ({error}); {checkpoint.RUN.remedy}")


@cache
def versions() -> dict[str, str]:
    """Return versions and processor, on which the last digits depend."""
    from llvmlite.binding import get_host_cpu_name

    from .._version import __version__

    return {
        "streamcd": __version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("numpy", "numba", "llvmlite", "pyarrow")},
        "processor": get_host_cpu_name(),
    }


def is_begun(path: Path, config: RunConfig) -> bool:
    """Return whether a directory holds a run of the same training; a different run is refused."""
    if not (path / "config.json").exists():
        return False
    begun = read_config(path)
    names = "fingerprint", "options", "seed", "folds", "scoring"
    if any(getattr(begun, name) != getattr(config, name) for name in names):
        raise CheckpointError(
            f"{path} holds another run; name another directory, or give --force to replace it"
        )
    return True


def refuse_existing(path: Path, config: RunConfig, force: bool) -> None:
    """Point to `resume` if the directory holds the same training; never empty one that holds the run's inputs."""
    for source in (config.dataset, config.start_from):
        # what does not exist is a URL
        if source and os.path.exists(source) and Path(source).resolve().is_relative_to(path.resolve()):
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


# ---------------------------------------------------------------------------------------------------------------------
# The problem that options mean on a dataset


def problem_of(
    options: ProblemOptions, dataset: Dataset, *, folds: int = 0, memory: int | None = None
) -> Problem:
    """Lay out all lanes of options that are resolved; refused if they do not fit in the budget `memory`."""
    l1 = (0.0,) if options.penalty == "l2" else options.l1 or (DEFAULT_STRENGTH,)
    l2 = 0.0 if options.penalty == "l1" else options.l2 or DEFAULT_STRENGTH
    parameter = LOSSES[options.loss].parameter
    bias = float(options.bias)
    if options.unpenalized_bias and bias > 0.0 and options.method == "dual":
        # the optimum does not depend on the feature: half of the rows' root mean square norm, with which the dual method
        # takes the fewest passes, 10 times fewer than with 1 on rows of norm 10 that lean to one side; but larger where C
        # and the rows are so few, beside l2, that the losses would hardly move the bias in a pass
        mean_square = (dataset.centre or dataset).mean_square or 0.0
        if 0.0 < mean_square < math.inf:
            least = _LOSSES_TO_BIAS / (min(options.C) * max(dataset.n_rows, 1))
            bias = math.sqrt(max(0.25 * mean_square, least))
    return make_problem(
        loss=options.loss,
        classes=dataset.classes,
        n_features=dataset.n_features,
        C=options.C,
        bias=bias,
        factors=None if options.class_weight is None else class_factors(options.class_weight, dataset),
        code=None if options.code is None else np.array(options.code, dtype=np.int8),
        n_folds=folds,
        free_bias=options.unpenalized_bias,
        l1=l1,
        l2=l2,
        ridge=options.ridge or DEFAULT_STRENGTH,
        slack=options.slack or DEFAULT_SLACK,
        parameter=None if parameter is None else getattr(options, parameter.name),
        memory=memory,
    )


def class_factors(weights: Any, dataset: Dataset) -> np.ndarray:
    """Return the factor of C for each class: "balanced" (rows / (k · rows of the class)), or as pairs tell."""
    if dataset.classes is None or dataset.class_counts is None:
        raise UsageError("class weights are for classes, not for numbers to predict; give rows weights")
    labels: list[Any] = dataset.classes.tolist()
    if weights == "balanced":
        counts = dataset.class_counts
        return np.asarray(counts.sum() / (len(labels) * np.maximum(counts, 1)))
    if dataset.class_names is not None:
        labels = [dataset.class_names[int(number)] for number in labels]
        weights = [(label if isinstance(label, str) else f"{label:g}", factor) for label, factor in weights]
    factors = np.ones(len(labels))
    for label, factor in weights:
        if label not in labels:
            name, *names = (one if isinstance(one, str) else f"{one:g}" for one in (label, *labels))
            raise UsageError(
                f"class weight for label {name}: no such label; the data has the labels {first_of(names)}"
            )
        factors[labels.index(label)] = factor
    return factors


@dataclass(frozen=True)
class ResolvedRun(LaneGroups):
    """The run of a directory: its configuration, and what follows from it on its dataset; made once, by `reopen`."""

    config: RunConfig


def reopen(path: Path, config: RunConfig, dataset: Dataset) -> ResolvedRun:
    """Make the run that the configuration of a directory records; refused if it does not fit the dataset."""
    try:
        memory = config.memory if config.rounds is None else None  # with workers it is each worker's
        problem = problem_of(config.options, dataset, folds=config.folds, memory=memory)
        block = problem.block_lanes if problem.n_folds else 1  # lanes of a fold are scored together
        n_blocks = problem.n_lanes // block
        if config.n_groups > n_blocks:
            raise UsageError(f"n_groups: expected at most {n_blocks}, found {config.n_groups}")
        lanes = range(problem.n_lanes)
        size = -(-n_blocks // config.n_groups) * block
        groups = {"": lanes}
        if config.n_groups > 1:
            groups = {f"group-{start // size:02d}": lanes[start : start + size] for start in lanes[::size]}
    except UsageError as error:
        raise _damaged(path, error) from None
    options = config.options
    solver = SolverOptions(options.method, config.seed, options.omega, options.acceleration, config.plan)
    centre = dataset.centre if config.centred else None
    return ResolvedRun(path, dataset, problem, groups, solver, centre, config)

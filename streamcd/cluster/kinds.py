"""The kinds of rounds: a worker's part and the assignment of shards, by the method of a run."""

from __future__ import annotations

import numpy as np

from ..dataset.dataset import Dataset
from ..solvers.registry import find_solver
from .assignment import Assignment
from .partition import Partition
from .rounds import WorkerSpec
from .sum_partition import SumPartition

Part = Partition | SumPartition


def make_part(spec: WorkerSpec, shards: list[int]) -> Part:
    """Make a worker's part of a run."""
    return SumPartition(spec, shards) if _sums(spec) else Partition(spec, shards)


def make_assignment(spec: WorkerSpec, dataset: Dataset) -> Assignment:
    """Make the assignment of a dataset's shards to the workers of a run."""
    sizes = np.diff(dataset.entry_start)
    entries = np.bincount(dataset.chunk_part, weights=sizes, minlength=dataset.n_shards).astype(np.int64)
    return Assignment(entries, spec.seed, exchanges=not _sums(spec))


def _sums(spec: WorkerSpec) -> bool:
    return find_solver(spec.problem.loss, spec.method).in_rounds == "sums"

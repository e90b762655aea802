"""Some shards of a dataset, as a worker reads them round after round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..dataset.dataset import Dataset
from ..solvers.problem import Problem
from ..solvers.registry import make_solver
from ..stream.memory_plan import make_plan, plan_shards
from ..stream.stream import Stream
from .memory import model_bytes, paired_layout
from .rounds import WorkerSpec

Report = Callable[[int], None]
"""Callback that takes the number of entries of each window visited."""


def open_same(spec: WorkerSpec) -> Dataset:
    """Open the dataset of a run in this process; refused if it is missing, or has another fingerprint."""
    dataset = Dataset.open(spec.dataset, fingerprint=spec.fingerprint)
    dataset.use_cache(spec.cache)
    return dataset


class ShardReader:
    """Some shards of a dataset, ascending, in a stream within a worker's memory, and the solver of their rows."""

    def __init__(self, spec: WorkerSpec, n_shards: int, **options: Any) -> None:
        self.dataset = dataset = open_same(spec)
        self.spec, self._folder = spec, Path(spec.folder)
        self._problem = _writable(spec.problem)
        self._solver: Any = make_solver(self._problem, spec.method, dataset, **options)
        self._layout = paired_layout(self._solver.layout)
        weights = {"weights": model_bytes(self._problem, self._solver.memory)}
        kept = plan_shards(dataset, spec.memory, self._layout, weights)
        self._n_kept = kept[1] if kept else 0
        # where too few shards fit in memory, any number is streamed
        self.plan, self._room = (
            kept
            if kept and n_shards <= self._n_kept
            else (make_plan(dataset, spec.memory, self._layout, weights), dataset.n_shards)
        )
        n_cells = self._problem.n_folds
        self._stream = Stream(
            dataset, self.plan, self._layout, spec.seed, n_folds=n_cells, n_shards=self._room
        )
        self._order = np.empty(self._stream.largest_window_items + 1, dtype=np.int64)

    def has_room_for(self, shards: list[int]) -> bool:
        """Return whether these shards can be assigned without opening another partition.

        Whether shards are kept or streamed follows from their number, not from those that were read before: windows, and
        with them the bits of a result, depend on it.
        """
        return (len(shards) <= self._n_kept) == self.plan.resident

    def _take(self, shards: list[int]) -> np.ndarray:
        """Read these shards from now on; returns the chunks that lost their place in memory."""
        self.shards = shards
        self._own, lost = self._stream.restrict(np.array(shards))
        return lost


def _writable(problem: Problem) -> Problem:
    """Copy arrays received over the network: they may be read-only, and for those kernels would be compiled again."""
    arrays: dict[str, Any] = {
        field.name: np.array(getattr(problem, field.name))
        for field in fields(problem)
        if isinstance(getattr(problem, field.name), np.ndarray)
    }
    return replace(problem, **arrays)

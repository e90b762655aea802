"""Rounds of sums at fixed weights: workers read, this process moves the weights to where the next read is made.

The sums of blocks of shards are joined in an order that the dataset fixes (`solvers.block_sums`), so any number of workers
ends with the bits of one process.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np

from ..core.randomness import random_key
from ..kernels.primitives import Rows
from ..solvers.dual import rows_of
from ..solvers.newton import NewtonSolver
from ..solvers.protocol import CERTIFY, START, TRAIN
from ..stream.memory_plan import Plan
from ..stream.stream import Stream
from .loop import RoundLoop
from .rounds import RoundRequest, SumResponse


class SumRounds(RoundLoop):
    """Rounds that are a read each, by Newton's method."""

    def __init__(self, *loop: Any) -> None:
        super().__init__(*loop)
        assert isinstance(self.task.solver, NewtonSolver)
        self.solver = self.task.solver
        self._restore_checkpoint()

    def _prepare(self) -> None:
        with closing(_Sample(self)) as sample:
            self.solver.begin_read(self.state, sample.rows)

    def _weights(self) -> np.ndarray:
        return self.solver.to_send(self.state)

    def _conclude_round(self, request: RoundRequest, result: SumResponse, step: None) -> dict[str, Any]:
        trained, certified = request.phase(TRAIN), request.phase(START, CERTIFY)
        (sums,) = result.nodes.values()
        self.solver.take_sums(self.state, sums, result.kept, np.union1d(trained, certified))
        self._conclude_read(trained, certified)
        self._begin_next(1)
        self.round += 1
        return self._record(request, result)

    def _begin(self) -> None:
        start = self.task.warm_start
        if start is not None:
            start.begin(self.state, self.solver)
        self._commit()


class _Sample:
    """The rows from which the sample of a start is drawn, read by this process where they are wanted."""

    def __init__(self, loop: SumRounds) -> None:
        self._loop = loop
        self._stream: Stream | None = None

    def rows(self) -> tuple[Rows, np.ndarray]:
        """Read the first chunks; returns their rows, and these in random order."""
        task, loop = self._loop.task, self._loop
        dataset, layout = task.dataset.reopen(), task.solver.layout
        n_rows, n_entries = (
            int(start[layout.fewest_chunks]) for start in (dataset.row_start, dataset.entry_start)
        )
        plan = Plan(max(n_entries, 1), n_rows, resident=False)
        self._stream = Stream(dataset, plan, layout, task.seed, n_folds=task.problem.n_folds)
        window = next(self._stream.windows(0))
        order = np.empty(self._stream.largest_window_items + 1, dtype=np.int64)
        key = random_key(task.seed, loop.state.read, 0)
        return rows_of(window), loop.solver.sample_of(window, order, key)

    def close(self) -> None:
        """Close the files."""
        if self._stream is not None:
            self._stream.close()

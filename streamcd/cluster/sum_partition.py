"""One worker's part of a round of sums: a read of its shards at fixed weights, by the same code as in one process."""

from __future__ import annotations

import time

import numpy as np

from ..solvers.protocol import State
from .rounds import RoundRequest, SumResponse, WorkerSpec
from .shards import Report, ShardReader


class SumPartition(ShardReader):
    """Some shards, and their sums at the weights of every round."""

    def __init__(self, spec: WorkerSpec, shards: list[int]) -> None:
        super().__init__(spec, len(shards))
        self._state: State = self._solver.new_state()
        self.assign(shards)

    def assign(self, shards: list[int]) -> None:
        """Take these shards from now on; those read before stay in memory as long as there is room."""
        self._take(shards)

    def run(
        self, request: RoundRequest, w: np.ndarray, report: Report | None = None, worker: str = ""
    ) -> SumResponse:
        """Sum up this worker's rows at `w`, `NewtonSolver.to_send`; `worker` is the name of this one."""
        started, before = time.monotonic(), self._stream.bytes_read
        state, solver = self._state, self._solver
        state.lanes = {name: np.array(array) for name, array in request.lanes.items()}
        solver.begin_part(state, w)
        for window in self._stream.windows(request.read):
            solver.add_window(window, state, self._order)
            if report is not None:
                report(window.n_entries)
        return SumResponse(
            sums=solver.sums(state),
            seconds={worker: time.monotonic() - started},
            bytes_read=self._stream.bytes_read - before,
        )

    def close(self) -> None:
        """Stop reading, and close all files."""
        self._stream.close()

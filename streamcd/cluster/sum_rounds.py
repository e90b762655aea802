"""Rounds of sums at fixed weights: workers read, this process moves the weights to where the next read is made."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..solvers.newton import NewtonSolver
from ..solvers.protocol import CERTIFY, START, TRAIN
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
        self.solver.begin_read(self.state)

    def _weights(self) -> np.ndarray:
        return self.solver.to_send(self.state)

    def _conclude_round(self, request: RoundRequest, result: SumResponse, step: None) -> dict[str, Any]:
        trained, certified = request.phase(TRAIN), request.phase(START, CERTIFY)
        self.solver.take_sums(self.state, result.sums, np.union1d(trained, certified))
        self._conclude_read(trained, certified)
        self._begin_next(1)
        self.round += 1
        return self._record(request, result)

    def _begin(self) -> None:
        start = self.task.warm_start
        if start is not None:
            start.begin(self.state, self.solver)
        self._commit()

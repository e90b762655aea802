"""The multiclass SVM of Crammer and Singer by a sequential dual method (`kernels/crammer_singer`).

Source: Keerthi et al., KDD 2008. A lane has a weight vector, a dual variable of each row and an active flag per class.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..kernels import crammer_singer as crammer_singer_kernels
from ..kernels.crammer_singer import ClassScratch, LaneColumns
from ..stream.window import Window
from .acceleration import Acceleration
from .dual import RowSolver, rows_of, shuffled_active_rows, variables_of
from .gap_bounds import violation
from .memory import class_memory
from .problem import Problem
from .protocol import CERTIFY, START, TRAIN, State, all_rows


class CrammerSingerSolver(RowSolver):
    """Sequential dual method: each row's problem over its classes is solved exactly."""

    kernels: tuple[Any, Any] = (
        crammer_singer_kernels.crammer_singer_visit,
        crammer_singer_kernels.crammer_singer_certify,
    )

    def __init__(self, problem: Problem, acceleration: Acceleration | None = None) -> None:
        memory = class_memory(problem, accelerated=acceleration is not None)
        super().__init__(problem, memory, acceleration)
        n_classes, together = problem.classes.size, memory.layout.n_orders
        self._scratch = [ClassScratch(*np.empty((3, n_classes))) for _ in range(together)]

    def new_state(self) -> State:
        """Return the state before the first read."""
        return self.start_state({"shrink_tolerance": np.ones(self.problem.n_lanes)}, TRAIN)

    def _visit_nothing(self, window: Window, state: State) -> None:
        """See `RowSolver`: a lane without rows."""
        self._certify(window, state, window.chunks, 0, [0])
        self._train(window, state, window.chunks, np.uint64(0), 0, [0])

    def visit(self, window: Window, state: State, order: np.ndarray, key: np.uint64) -> None:
        """Certify lanes at their fixed w, then train the others; threads take lanes, which have nothing in common."""
        certifying = state.phase(START, CERTIFY)
        if certifying.size:
            rows = all_rows(window, order)
            self._divide(window, certifying, partial(self._certify, window, state, rows))
        training = state.phase(TRAIN)
        self.begin_pass(state, training)
        self._divide(window, training, partial(self._train, window, state, order, key))

    def _divide(self, window: Window, lanes: np.ndarray, visit: Callable[[int, list[int]], None]) -> None:
        """Divide lanes among threads; `visit` takes the number of the part and its lanes."""
        most = min(lanes.size, len(self._scratch))
        n_parts = max(min(self.threads.parts(window.n_entries * lanes.size), most), 1)
        self.threads.run([partial(visit, part, lanes[part::n_parts].tolist()) for part in range(n_parts)])

    def _certify(self, window: Window, state: State, rows: np.ndarray, part: int, lanes: list[int]) -> None:
        arguments = (rows_of(window), self.costs, variables_of(window, state))
        sums = (state.w_alpha.reshape(-1), state.totals)
        for lane in lanes:
            columns = LaneColumns(lane, self.columns(lane).start, self.n_vectors, self._scratch[part])
            self.kernels[1](rows, *arguments, columns, *sums)

    def _train(
        self, window: Window, state: State, order: np.ndarray, key: np.uint64, part: int, lanes: list[int]
    ) -> None:
        arguments = (rows_of(window), self.costs, variables_of(window, state))
        inverse_mu, uncounted = self.acceleration_numbers(state)
        # the first part has the caller's order
        room = order if part == 0 else np.empty_like(order)
        for lane in lanes:
            own = self.columns(lane)
            numbers = (float(inverse_mu[lane]), float(uncounted[lane]))
            columns = LaneColumns(lane, own.start, self.n_vectors, self._scratch[part], *numbers)
            chosen = shuffled_active_rows(window, self.flags(lane), room, key)
            self.kernels[0](chosen, *arguments, columns, state.totals)

    def flags(self, lane: int) -> np.ndarray:
        """Return the columns of the lane's flags."""
        own = self.columns(lane)
        return np.arange(own.start, own.stop)

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Restore shrunk rows of lanes whose active ones are solved to the shrink tolerance, which is then halved."""
        kept = state.lanes
        seen = violation(state.totals)
        for lane in trained:
            # not a lane that is certified next: a read at fixed w does not write the states of rows back
            open_lane = kept["phase"][lane] == TRAIN and kept["shrunk"][lane] and not kept["restore"][lane]
            if open_lane and seen[lane] < kept["shrink_tolerance"][lane]:
                kept["restore"][lane] = True
                kept["shrunk"][lane] = False
                kept["shrink_tolerance"][lane] *= 0.5
        if self.acceleration:
            self.acceleration.update_kappa(state, trained)
            self.acceleration.recall_rows(state, trained)

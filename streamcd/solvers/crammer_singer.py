"""The multiclass SVM of Crammer and Singer by a sequential dual method (`kernels/crammer_singer`).

Source: Keerthi et al., KDD 2008. A lane has a weight vector, a dual variable of each row and an active flag per class.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..kernels import crammer_singer as crammer_singer_kernels
from ..kernels.crammer_singer import ClassScratch, LaneColumns
from ..stream.window import Window
from .acceleration import Acceleration
from .certificate import violation
from .dual import RowSolver, rows_of, shuffled_active_rows, variables_of
from .memory import class_memory
from .problem import Problem
from .protocol import TRAIN, State


class CrammerSingerSolver(RowSolver):
    """Sequential dual method: each row's problem over its classes is solved exactly."""

    kernels: tuple[Any, Any, Any] = (
        crammer_singer_kernels.crammer_singer_visit,
        crammer_singer_kernels.crammer_singer_certify,
        crammer_singer_kernels.add_alpha_classes,
    )

    def __init__(self, problem: Problem, acceleration: Acceleration | None = None) -> None:
        memory = class_memory(problem, accelerated=acceleration is not None)
        super().__init__(problem, memory, acceleration)
        self._most_parts = memory.layout.n_orders

    def new_state(self) -> State:
        """Return the state before the first read."""
        return self.start_state({"shrink_tolerance": np.ones(self.problem.n_lanes)}, TRAIN)

    def _visit_nothing(self, window: Window, state: State) -> None:
        """See `RowSolver`: a lane without rows."""
        only = np.zeros(1, dtype=np.int64)
        self.certify(window, state, window.chunks, only)
        self.sum_alpha(window, state, window.chunks, only, self.v(state))
        self._train(window, state, window.chunks, np.uint64(0), 0, [0])

    def visit(self, window: Window, state: State, order: np.ndarray, key: np.uint64) -> None:
        """Certify lanes at their fixed w, then train the others; threads take lanes, which have nothing in common."""
        self.visit_at_fixed_w(window, state, order)
        training = state.phase(TRAIN)
        self.begin_pass(state, training)
        most = min(training.size, self._most_parts)
        n_parts = max(min(self.threads.parts(window.n_entries * training.size), most), 1)
        parts = [(part, training[part::n_parts].tolist()) for part in range(n_parts)]
        self.threads.run([partial(self._train, window, state, order, key, *part) for part in parts])

    def lane_columns(self, lane: int, *numbers: float) -> LaneColumns:
        """Return a lane's columns, with scratch and the numbers of its steps."""
        scratch = ClassScratch(*np.empty((3, self.problem.lane_vectors)))
        return LaneColumns(lane, self.columns(lane).start, self.n_vectors, scratch, *numbers)

    def certify_rows(
        self, window: Window, state: State, lanes: np.ndarray, order: np.ndarray, totals: np.ndarray
    ) -> None:
        """See `RowSolver`."""
        rows = (order, rows_of(window), self.costs, variables_of(window, state))
        for lane in lanes.tolist():
            self.kernels[1](*rows, self.lane_columns(lane), totals)

    def sum_alpha(
        self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray, v: np.ndarray
    ) -> None:
        """See `RowSolver`."""
        rows = (order, rows_of(window), self.costs, variables_of(window, state))
        for lane in lanes.tolist():
            self.kernels[2](*rows, self.lane_columns(lane), v.reshape(-1))

    def _train(
        self, window: Window, state: State, order: np.ndarray, key: np.uint64, part: int, lanes: list[int]
    ) -> None:
        arguments = (rows_of(window), self.costs, variables_of(window, state))
        inverse_mu, uncounted = self.acceleration_numbers(state)
        # the first part has the caller's order
        room = order if part == 0 else np.empty_like(order)
        for lane in lanes:
            columns = self.lane_columns(lane, float(inverse_mu[lane]), float(uncounted[lane]))
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

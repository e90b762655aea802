"""Losses of all classes of a row at once, Crammer and Singer's and the multinomial, by dual methods (`kernels/classes`).

A lane has a weight vector and a dual variable of each row per class, and for Crammer and Singer's an active flag per class.
No row leaves by the multinomial loss, as every variable is positive at the optimum.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ..kernels import classes as kernels
from ..kernels.classes import ClassScratch, LaneColumns
from ..kernels.loss_table import MULTINOMIAL
from ..stream.arenas import RowArena, Window
from .acceleration import Acceleration
from .certificate import violation
from .dual import RowSolver, shuffled_active_rows
from .memory import dual_memory
from .problem import Problem
from .protocol import TRAIN, State


class ClassSolver(RowSolver):
    """Sequential dual method: each row's problem over its classes is solved exactly."""

    def __init__(self, problem: Problem, acceleration: Acceleration | None = None) -> None:
        memory = dual_memory(problem, accelerated=acceleration is not None)
        super().__init__(problem, memory, acceleration)

    def new_state(self) -> State:
        """Return the state before the first read."""
        state = super().new_state()
        state.lanes |= {"shrink_tolerance": np.ones(self.problem.n_lanes)}
        return state

    def new_rows(self, arena: RowArena, start: int, stop: int) -> None:
        """Set the variables to 0, for the multinomial loss that of a row's own class to C_i: then ``w(alpha) = 0``."""
        super().new_rows(arena, start, stop)
        if self.problem.row_loss.kind == MULTINOMIAL:
            rows = slice(start, stop)
            cost = self.problem.row_costs(arena.code[rows], arena.weight[rows], arena.fold[rows])
            for lane in range(self.problem.n_lanes):
                own = lane * self.problem.lane_vectors + arena.code[rows]
                arena.alpha[np.arange(start, stop), own] = cost[:, lane]

    def train(
        self, window: Window, state: State, order: np.ndarray, key: np.uint64, lanes: np.ndarray
    ) -> None:
        """See `RowSolver`; threads take lanes, which have nothing in common."""
        most = min(lanes.size, self.layout.n_orders)
        n_parts = max(min(self.threads.parts(window.n_entries * lanes.size), most), 1)
        steering, arguments = self.steering(state), self.arguments(window, state)

        def train_lanes(part: int) -> None:
            room = order if part == 0 else np.empty_like(order)
            for lane in lanes[part::n_parts].tolist():
                numbers = float(steering.inverse_mu[lane]), float(steering.uncounted[lane])
                chosen = shuffled_active_rows(window, self.flags(np.array([lane])), room, key)
                kernels.class_visit(chosen, *arguments, self.lane_columns(lane, *numbers), state.totals, True)

        self.threads.run([partial(train_lanes, part) for part in range(n_parts)])

    def lane_columns(self, lane: int, *numbers: float) -> LaneColumns:
        """Return a lane's columns, with scratch and the numbers of its steps."""
        width = self.problem.lane_vectors
        return LaneColumns(lane, lane * width, self.n_vectors, ClassScratch(*np.empty((3, width))), *numbers)

    def certify_rows(
        self, window: Window, state: State, lanes: np.ndarray, order: np.ndarray, totals: np.ndarray
    ) -> None:
        """See `RowSolver`."""
        for lane in lanes.tolist():
            kernels.class_visit(order, *self.arguments(window, state), self.lane_columns(lane), totals, False)

    def sum_alpha(
        self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray, v: np.ndarray
    ) -> None:
        """See `RowSolver`."""
        for lane in lanes.tolist():
            columns = self.lane_columns(lane)
            kernels.add_alpha_classes(order, *self.arguments(window, state), columns, v.reshape(-1))

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Restore shrunk rows of lanes whose active ones are solved to the shrink tolerance, which is then halved."""
        kept = state.lanes
        # not of a lane that is certified next: a read at fixed w does not write the states of rows back
        due = (kept["phase"] == TRAIN) & kept["shrunk"] & ~kept["restore"]
        due &= violation(state.totals) < kept["shrink_tolerance"]
        due = trained[due[trained]]
        kept["restore"][due], kept["shrunk"][due] = True, False
        kept["shrink_tolerance"][due] *= 0.5
        super().end_read(state, trained)

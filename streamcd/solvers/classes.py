"""Losses of all classes of a row at once, Crammer and Singer's and the multinomial, by dual methods (`kernels/classes`).

A lane has a weight vector and a dual variable of each row per class, and for Crammer and Singer's an active flag per class.
No row leaves by the multinomial loss, as every variable is positive at the optimum.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ..dataset.dataset import Dataset
from ..kernels import classes as kernels
from ..kernels.classes import ClassScratch, LaneColumns
from ..kernels.loss_table import MULTINOMIAL
from ..kernels.primitives import Total
from ..stream.arenas import RowArena, Window
from ..stream.memory_plan import SolverMemory
from .problem import Problem
from .protocol import CERTIFY, LANES_TOGETHER, START, TRAIN, Array, SolverOptions, State, violation
from .row_solver import Data, RowSolver, penalised_blocks, row_memory

ARRAYS = (Array("shrink_tolerance", "violation of active rows below which the others return", initial=1.0),)
"""State of `ClassSolver`."""

FREE_BIAS_ARRAYS = (
    Array("has_sums", "`class_sums` are those of all rows", bool),
    Array("gap_of_shares", "gap of the dual variables that a certificate mixes in"),
)
"""State of `FreeBiasClassSolver` beside it."""


class ClassSolver(RowSolver):
    """Sequential dual method for losses of all classes.

    Problem: the dual over ``a_im`` of every row i and class m (`kernels/classes`), by one row after another, whose problem
    over its classes is solved exactly. Solution: ``w_m``, the sum of rows by these, kept at every step. Source: Keerthi et
    al., KDD 2008; for the multinomial loss Yu, Huang, Lin, Machine Learning 85 (2011).
    """

    arrays: tuple[Array, ...] = ARRAYS

    @staticmethod
    def memory_of(problem: Problem, dataset: Dataset, options: SolverOptions) -> SolverMemory:
        """Count a variable of every row and class in a lane, and flags of those that leave."""
        n_lanes = problem.n_lanes
        n_vectors = problem.n_vectors
        n_flags = n_lanes if problem.row_loss.kind == MULTINOMIAL else n_vectors
        return row_memory(problem, options, n_vectors, n_flags, min(n_lanes, LANES_TOGETHER))

    def begin_inside(self, arena: RowArena, start: int, stop: int) -> None:
        """Set the variable of a row's own class to C_i: then ``w(alpha) = 0``."""
        rows = slice(start, stop)
        cost = self.problem.row_costs(arena.code[rows], arena.weight[rows], arena.fold[rows])
        for lane in range(self.problem.n_lanes):
            of_class = lane * self.problem.lane_vectors + arena.code[rows]
            arena.alpha[np.arange(start, stop), of_class] = cost[:, lane]

    def train(
        self, window: Window, data: Data, state: State, order: np.ndarray, key: np.uint64, lanes: np.ndarray
    ) -> None:
        """See `RowSolver`; threads take lanes, which have nothing in common."""
        most = min(lanes.size, self.layout.n_orders)
        n_parts = max(min(self.threads.parts(window.n_entries * lanes.size), most), 1)
        steering = self.steering(state)
        flags = np.arange(self.layout.n_flags).reshape(self.problem.n_lanes, -1)

        def train_lanes(part: int) -> None:
            room = order if part == 0 else np.empty_like(order)
            for lane in lanes[part::n_parts].tolist():
                numbers = float(steering.inverse_mu[lane]), float(steering.uncounted[lane])
                chosen = self.shuffled_rows(window, flags[lane], room, key)
                kernels.class_visit(chosen, *data, self.lane_columns(lane, *numbers), state.totals, True)

        self.threads.run([partial(train_lanes, part) for part in range(n_parts)])

    def lane_columns(self, lane: int, *numbers: float) -> LaneColumns:
        """Return a lane's columns, with scratch and the numbers of its steps."""
        width = self.problem.lane_vectors
        return LaneColumns(
            lane, lane * width, self.problem.n_vectors, ClassScratch(*np.empty((3, width))), *numbers
        )

    def certify_rows(
        self, data: Data, state: State, lanes: np.ndarray, order: np.ndarray, totals: np.ndarray
    ) -> None:
        """See `RowSolver`."""
        for lane in lanes.tolist():
            kernels.class_visit(order, *data, self.lane_columns(lane), totals, False)

    def sum_alpha(
        self, data: Data, state: State, order: np.ndarray, lanes: np.ndarray, v: np.ndarray
    ) -> None:
        """See `RowSolver`."""
        for lane in lanes.tolist():
            kernels.add_alpha_classes(order, *data, self.lane_columns(lane), v.reshape(-1))

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Restore shrunk rows of lanes whose active ones are solved to the shrink tolerance, which is then halved."""
        # not of a lane that is certified next: a read at fixed w does not write the states of rows back
        due = (state.phase == TRAIN) & state.shrunk & ~state.restore
        due &= violation(state.totals) < state.shrink_tolerance
        due = trained[due[trained]]
        state.restore[due] = True
        state.shrunk[due] = False
        state.shrink_tolerance[due] *= 0.5
        super().end_read(state, trained)


class FreeBiasClassSolver(ClassSolver):
    """`ClassSolver` for biases of the classes that are not penalised; ``class_sums`` are ``Σ C_i x_i`` of each class.

    Each has a proximal point of its own (`free_bias`). The dual then asks for ``Σ_i beta_im = 0`` in every class, where
    ``beta_im = C_i [m = y_i] - p_im``, ``p_im >= 0``, ``Σ_m p_im = C_i``: p is Crammer–Singer's ``C_i [m = y_i] -
    a_im``, or the multinomial's variables. A certificate brings it about by mixing: ``p' = (1 - t) p + t C rho``, where
    rho, the same for all rows, makes up for the sums, and t <= 1 is the smallest for which rho >= 0. The dual is
    concave and the terms of the gap are convex in p (linear for Crammer–Singer), so both are bounded by the mixtures of
    their values.
    """

    arrays = (*ARRAYS, *FREE_BIAS_ARRAYS)
    always_sums = True  # the mixture asks for the sums of a read

    sums = (
        Array(
            "class_sums",
            "Σ C_i x_i of each class, which the first certificate makes",
            axes=("features", "vectors"),
        ),
    )

    def sum_alpha(
        self, data: Data, state: State, order: np.ndarray, lanes: np.ndarray, v: np.ndarray
    ) -> None:
        """Sum the classes' rows, too; see `RowSolver.sum_alpha`."""
        super().sum_alpha(data, state, order, lanes, v)
        sums = state.class_sums.reshape(-1)
        for lane in lanes:
            if not state.has_sums[lane]:
                columns = self.lane_columns(lane)
                kernels.add_class_rows(order, *data[:2], columns, self.problem.lane_vectors, sums)

    def feasible_sums(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """Return those of the mixture; see `RowSolver`."""
        totals = state.totals.copy()
        lanes = state.lanes_in(CERTIFY)
        t = np.zeros(self.problem.n_lanes)
        rho = np.zeros(self.problem.n_vectors)
        for lane in lanes.tolist():
            columns = self._columns(lane)
            t[lane], rho[columns] = mixture(
                state.class_sums[-1, columns], state.centre_or_w_alpha[-1, columns]
            )
        dots = state.w[-1] * self._of_shares(state, slice(-1, None), rho)[0]
        penalties = np.zeros((3, self.problem.n_vectors))
        t_of_vectors = np.repeat(t, self.problem.lane_vectors)
        for rows in penalised_blocks(self.problem):
            of_shares = self._of_shares(state, rows, rho)
            dots += np.einsum("ij,ij->j", state.w[rows], of_shares)
            v = (1.0 - t_of_vectors) * state.centre_or_w_alpha[rows] + t_of_vectors * of_shares
            penalties += self.penalty_terms(state.w[rows], v, lanes)
        for lane in lanes.tolist():
            self._mix(state, lane, t[lane], rho, dots, totals[lane])
        return totals, penalties

    def certificate(self, state: State) -> dict[str, np.ndarray]:
        """Note which lanes have the classes' sums, too; see `RowSolver`."""
        proof = super().certificate(state)
        lanes = state.lanes_in(CERTIFY)
        first = lanes[~state.has_sums[lanes]]
        state.has_sums[state.lanes_in(START, CERTIFY)] = True
        # the estimate could not know the cost of the mixture
        state.estimate[first] = proof["gap"][first]
        return proof

    def _columns(self, lane: int) -> slice:
        width = self.problem.lane_vectors
        return slice(lane * width, (lane + 1) * width)

    def _of_shares(self, state: State, rows: slice, rho: np.ndarray) -> np.ndarray:
        """Return rows of w(alpha) for ``a = C rho``, shape (rows, vectors)."""
        sums = state.class_sums[rows]
        of_lanes = sums.reshape(sums.shape[0], -1, self.problem.lane_vectors).sum(axis=2)
        return sums - np.repeat(of_lanes, self.problem.lane_vectors, axis=1) * rho

    def _mix(
        self, state: State, lane: int, t: float, rho: np.ndarray, dots: np.ndarray, totals: np.ndarray
    ) -> None:
        """Change a lane's sums over the rows to those of the mixture, in place; `dots` are ``w·w(C rho)`` of vectors."""
        columns = self._columns(lane)
        cost = state.class_sums[-1, columns] / self.problem.bias
        of_w = float(dots[columns].sum())
        shares = rho[columns]
        if self.problem.row_loss.kind == MULTINOMIAL:
            dual = -float(cost.sum() * np.sum(shares * np.log(np.maximum(shares, 1e-300))))
        else:
            dual = float(cost @ (1.0 - shares))
        gap = max(of_w + totals[Total.LOSS] - dual, 0.0)
        state.gap_of_shares[lane] = gap
        for name, bound in ((Total.GAP, gap), (Total.DUAL, dual)):
            totals[name] = (1.0 - t) * totals[name] + t * bound

    def cost_of_feasibility(self, state: State, trained: np.ndarray) -> np.ndarray:
        """Return what the mixture is expected to cost; unknown before the first certificate. See `RowSolver`."""
        cost = np.zeros(trained.size)
        for number, lane in enumerate(trained.tolist()):
            if state.has_sums[lane]:
                columns = self._columns(lane)
                t, _ = mixture(state.class_sums[-1, columns], state.centre_or_w_alpha[-1, columns])
                cost[number] = t * state.gap_of_shares[lane]
        return cost


def mixture(cost: np.ndarray, surplus: np.ndarray) -> tuple[float, np.ndarray]:
    """Return t and rho, (classes,), from the sums of C_i and of beta in each class, both in one unit."""
    shares = cost / cost.sum()
    some = shares > 0.0
    most = np.divide(-surplus, cost, out=np.zeros_like(cost), where=some).max(initial=0.0)  # t / (1 - t)
    if not most > 0.0:
        return 0.0, shares
    rho = np.maximum(shares + surplus / (most * cost.sum()), 0.0)
    return float(most / (1.0 + most)), rho / rho.sum()

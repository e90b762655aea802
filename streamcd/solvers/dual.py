"""Dual coordinate descent over rows, for hinge, squared hinge, logistic loss, numbers to predict, and twin planes.

The mathematics of a visit is in `kernels/dual`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..core.memory_budget import BLOCK_WEIGHTS
from ..core.parallel import Threads
from ..dataset.dataset import Dataset
from ..kernels import dual as dual_kernels
from ..kernels import weights as weight_kernels
from ..kernels.loss_table import LOG_LOSS
from ..kernels.primitives import Costs, Lanes, Rows, Steering, Total, Variables
from ..stream.arenas import RowArena, Window
from ..stream.memory_plan import SolverMemory
from . import over_relaxation
from .problem import Problem
from .protocol import NO_ROWS, Array, Estimates, SolverOptions, State, join_totals
from .row_solver import MOST_COPIED, Data, RowSolver, row_memory

_LINE = 8  # numbers in a cache line: no two threads should share one that they write to
_FEW_FEATURES = 1 << 14  # in whose lines of weights threads often meet
_SHARE_IN_PARTS = 0.9  # of a round's rows
_ROUNDS = 4  # of a window at most, and of a read at least: with fewer each part overshoots by a large share of all rows
_ENTRIES_PER_WEIGHT = 10  # in a round, for which w and its copies are swept over eight times
_OPPOSITE = -0.6  # cosine of successive movements below which a gap that rises tells of an error that grows
_LEAST_ALPHA = 1e-24  # over C: the sum over 10^8 rows is below the rounding of w

ARRAYS = (
    Array("inner_tolerance", "of Newton's method for a row, the logistic loss", initial=1e-2),
    Array("passes_in_one", "passes before which rows are not visited in two parts again", int),
)
"""State of `DualSolver`."""


class DualSolver(RowSolver):
    """Dual coordinate descent for losses of margins and of targets.

    Problem: ``max_a -½‖Σ s_i a_i x_i‖² - Σ psi_i(a_i)`` of every lane, by one a_i after another, exactly but for omega
    (`over_relaxation`) and the logistic loss (Newton's method to `inner_tolerance`). Solution: ``w = Σ s_i a_i x_i``, kept
    at every step. Source: Hsieh et al., ICML 2008; for the logistic loss Yu, Huang, Lin, Machine Learning 85 (2011).
    """

    arrays = (*ARRAYS, *over_relaxation.ARRAYS)

    def __init__(self, problem: Problem, dataset: Dataset, options: SolverOptions) -> None:
        super().__init__(problem, dataset, options)
        adapts = self.acceleration is not None and self.acceleration.adapts
        self._steps_apart = adapts and problem.n_lanes == 1 and problem.n_features < MOST_COPIED
        # weights of two threads, which take no memory until then
        self._copies = np.empty((2, problem.n_features + 1 if self._steps_apart else 0))

    @staticmethod
    def memory_of(problem: Problem, dataset: Dataset, options: SolverOptions) -> SolverMemory:
        """Count alpha of every row and lane; of the logistic loss ``C - alpha`` too, as a subtraction loses its digits."""
        n_variables = 2 if problem.row_loss.kind == LOG_LOSS else 1
        return row_memory(problem, options, n_variables * problem.n_lanes, problem.n_lanes)

    def begin_inside(self, arena: RowArena, start: int, stop: int) -> None:
        """Set alpha, which the logistic loss has positive, so small that w(alpha) = 0 up to rounding."""
        n_lanes = self.problem.n_lanes
        step = max(BLOCK_WEIGHTS // n_lanes, 1)
        for first in range(start, stop, step):
            rows = slice(first, min(first + step, stop))
            cost = self.problem.row_costs(arena.code[rows], arena.weight[rows], arena.fold[rows])
            arena.alpha[rows, :n_lanes] = _LEAST_ALPHA * cost
            arena.alpha[rows, n_lanes : 2 * n_lanes] = cost - _LEAST_ALPHA * cost

    # -- training

    def train(
        self, window: Window, data: Data, state: State, order: np.ndarray, key: np.uint64, lanes: np.ndarray
    ) -> None:
        """Train in stretches, after all of which but the last kappa and centre are set anew; mostly there is one."""
        rows = self.shuffled_rows(window, lanes, order, key)
        ends = lanes[:0]
        if self.acceleration and window.number == 0:
            of_pass = window.n_entries * window.count
            ends = self.acceleration.first_stretches(state, lanes, rows.size, of_pass)
        stretches = np.split(rows, ends)
        for number, stretch in enumerate(stretches):
            before = state.totals[:, Total.GAP].copy()
            arguments = (stretch, *data, self.steering(state))
            n_rounds = 0
            if self._steps_apart:
                # of the dataset's mean: the entries of a row in a window depend on where it was read from
                n_entries = stretch.size * (self.dataset.n_entries / max(self.dataset.n_rows, 1))
                n_rounds = count_rounds(n_entries, window.count, state, self.threads)
            if n_rounds:
                sums = state.totals, self._copies
                visit_in_parts(arguments, n_rounds, *sums, self.threads)
            elif self.problem.n_lanes > 1:
                self._divide_lanes(window, state, arguments, lanes)
            else:
                dual_kernels.dual_visit(*arguments, state.totals)
            if number + 1 < len(stretches):
                gap = rows.size * window.count / stretch.size * (state.totals[:, Total.GAP] - before)
                assert self.acceleration
                self.acceleration.end_pass(state, lanes, self.threads)
                state.totals[:, [Total.ALPHA, Total.ALPHA_CURVATURE, Total.ALPHA_SQUARE]] = 0.0
                self.acceleration.set_kappa(state, lanes, gap)
                state.moves[lanes] = 0  # the pass goes on
                self.acceleration.begin_pass(state, lanes, self.threads)

    def _divide_lanes(
        self, window: Window, state: State, arguments: tuple[Any, ...], lanes: np.ndarray
    ) -> None:
        """Divide lanes among threads; each lane has its own columns or rows of variables, weights and sums.

        Every thread has a copy of the sums: they change with every row, and no two threads may share a cache line of them.
        Nor should they share lines of weights, each of eight lanes, where they often meet: forty lanes on rows of 14 entries
        with 120 features took 1,200 ns a row by one thread, 700 by four with ten lanes each, 500 with eight or sixteen.
        """
        in_lines = lanes.size > _LINE or self.problem.n_features < _FEW_FEATURES
        groups = lanes // (_LINE if in_lines else 2)
        all_groups = np.unique(groups)
        n_parts = min(self.threads.parts(window.n_entries * lanes.size), all_groups.size)
        parts = [lanes[np.isin(groups, part)] for part in np.array_split(all_groups, n_parts)]
        totals = [state.totals, *(state.totals.copy() for _ in parts[1:])]
        each = zip(totals, parts, strict=True)
        visit = partial(dual_kernels.dual_visit_lanes, *arguments)
        self.threads.run([partial(visit, sums, new_scratch(state, part)) for sums, part in each])
        for part, sums in zip(parts[1:], totals[1:], strict=True):
            state.totals[part] = sums[part]

    # -- reads at fixed w

    def certify_rows(
        self, data: Data, state: State, lanes: np.ndarray, order: np.ndarray, totals: np.ndarray
    ) -> None:
        """See `RowSolver`."""
        dual_kernels.dual_certify(order, *data, totals, new_scratch(state, lanes))

    def sum_alpha(
        self, data: Data, state: State, order: np.ndarray, lanes: np.ndarray, v: np.ndarray
    ) -> None:
        """See `RowSolver`."""
        dual_kernels.add_alpha_rows(order, *data, new_scratch(state, lanes), v.reshape(-1))

    # -- the end of a read

    def estimate(self, state: State, trained: np.ndarray) -> Estimates:
        """Go back to one part, for as many passes as were made, after one in which an error of common directions grew.

        The estimate of the gap rose then, and w moved back on its way, in long steps; see `RowSolver`.
        """
        estimates = super().estimate(state, trained)
        if self._steps_apart:
            harmed = trained[((estimates.gap > state.estimate) & (state.cosine < _OPPOSITE))[trained]]
            state.passes_in_one[harmed] = 2 * state.passes[harmed]
        return estimates

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Set the inner tolerance of Newton's method and omega, too; see `RowSolver`."""
        totals = state.totals
        exact = trained[totals[trained, Total.N_STEPS] <= 0.1 * totals[trained, Total.N_VISITED]]
        state.inner_tolerance[exact] = np.maximum(0.1 * state.inner_tolerance[exact], 1e-12)
        if self.options.omega == "auto":
            over_relaxation.update_omega(state, state.w[self.problem.penalised], trained)
        super().end_read(state, trained)


def new_scratch(state: State, lanes: np.ndarray) -> Lanes:
    """Return scratch for these lanes, longer than needed by a cache line, which no two threads share."""
    n_lanes = state.phase.size
    fetched, live = (np.zeros(n_lanes + _LINE, dtype=np.int64) for _ in range(2))
    dots, steps = (np.zeros(n_lanes + _LINE) for _ in range(2))
    return Lanes(lanes, fetched, dots[:n_lanes], live, steps[:n_lanes])


# ---------------------------------------------------------------------------------------------------------------------
# Visits of a single lane by two threads: parts of a window's rows, each of which steps on weights of its own
#
# The rows of a window, in their random order, make rounds. In a round both parts start from the same w and step at the same
# time, each as if it were alone; then the changes of w are added up. That is right along the directions of rare features.
# But along those that rows of both parts have in common each part goes all the way to the optimum: together they go twice as
# far, and leave as large an error on the other side. Some more rows, in one part, take it away: the round's last stretch. So
# no such error grows, and passes are hardly more than those of one part.
#
# The rule of acceleration sees whether parts do harm (`DualSolver.estimate`), so they are for lanes whose kappa it chooses.
#
# Sources: Ma et al., ICML 2015 (CoCoA+), for changes added up; Ioannou et al., NeurIPS 2019 (SySCD), for rows that change
# their part from pass to pass.


def count_rounds(n_entries: float, n_windows: int, state: State, threads: Threads) -> int:
    """Count the rounds of a window's rows, with about so many entries; 0 where one part is faster, or did less harm."""
    if state.passes[0] < state.passes_in_one[0]:
        return 0
    n_rounds = min(int(n_entries / (_ENTRIES_PER_WEIGHT * state.w.size)), _ROUNDS)
    pays = n_rounds * n_windows >= _ROUNDS and threads.parts(int(n_entries) // n_rounds) > 1
    return n_rounds if pays else 0


def visit_in_parts(
    arguments: tuple[np.ndarray, Rows, Costs, Variables, Steering],
    n_rounds: int,
    totals: np.ndarray,
    copies: np.ndarray,
    threads: Threads,
) -> None:
    """Visit rows in rounds: ``dual_visit(*arguments, totals)``, but for the order of the steps.

    Changed in place: `totals`, the variables, and `copies` (2, weights), which may hold anything.
    """
    order, rows, costs, variables, steering = arguments
    w = variables.w

    for chosen in np.array_split(order, n_rounds):
        n = int(_SHARE_IN_PARTS * chosen.size)
        # one lane more, so that none share a cache line
        sums = np.tile(NO_ROWS, (2, totals.shape[0] + 1, 1))[:, :-1]
        threads.run([partial(np.copyto, copy, w) for copy in copies])
        each = zip(np.array_split(chosen[:n], 2), copies, sums, strict=True)
        threads.run(
            [
                partial(
                    dual_kernels.dual_visit,
                    *(part, rows, costs, variables._replace(w=copy), steering, totals_of_part),
                )
                for part, copy, totals_of_part in each
            ]
        )
        n_parts = threads.parts(3 * w.size)
        joined = zip(*(np.array_split(weights, n_parts) for weights in (*copies, w)), strict=True)
        threads.run([partial(weight_kernels.add_changes, *part) for part in joined])
        for of_part in sums:
            join_totals(totals, of_part)
        dual_kernels.dual_visit(chosen[n:], rows, costs, variables, steering, totals)

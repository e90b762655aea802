"""Working sets of columns, for L1 and elastic net: each read is a certificate, and finds the columns to solve for in memory.

A read at fixed w sums ``v_j = Σ_i s_i a_i x_ij`` of every column, a_i being minus the slope of the loss at the row's score;
a times the largest factor that makes it feasible is the dual point of the certificate. The columns that come nearest to
``|v_j| = l1`` are held in memory. After the read, coordinate descent on quadratic models solves for their weights, until
their own gap is a part of the certified one.

A checkpoint inside a read is that of its beginning: a resumed run visits the read's windows again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from ..dataset.dataset import Dataset
from ..kernels import newton as newton_kernels
from ..kernels import primal as primal_kernels
from ..kernels import working_set as kernels
from ..kernels.primal import LOSS_SUM, N_SUMS, PHI, ColumnCosts, Scores
from ..kernels.primitives import Total
from ..stream.arenas import ColumnLayout, Window
from ..stream.memory_plan import SolverMemory
from .held_columns import HeldColumns
from .held_solution import NARROW, HeldSolution
from .primal import (
    RowConstants,
    columns_of,
    constant_bytes,
    new_constants,
    read_constants,
    set_pulls,
    signed_costs,
    signed_costs_bytes,
)
from .problem import Problem
from .protocol import (
    CERTIFY,
    LANES_TOGETHER,
    NO_ROWS,
    ROUNDING,
    START_NORM,
    TRAIN,
    Array,
    Solver,
    SolverOptions,
    Start,
    State,
    all_rows,
    certificate,
)
from .quadratic_model import Penalty, slope_norms

_SOLVED = 0.05
_RESIDENT_SOLVED = 3e-4
"""Parts of the gap of held columns, to which they are solved, where others may be needed and where all are held: there a
further read would find what a solution knows."""

_OF_WANTED = 0.3
"""Part of the gap that is wanted, to which all columns are solved where they are held: a read sums up anew, and rounds."""

_STEPS_WITHIN, _STEPS_BETWEEN = 8, 100  # of a solution at most: within a read, between two

ARRAYS = (
    Array("score", "w·x of every row", axes=("lanes", "rows")),
    START_NORM,
)
"""State of `WorkingSetSolver`: w and the scores of the last read's beginning, as a resumed run visits its windows again."""


@dataclass
class Read:
    """Sums of a read at fixed w; arrays have the lane first."""

    pull: np.ndarray  # (lanes, n)
    fresh: np.ndarray  # (lanes, n): w·x, summed up anew
    score: np.ndarray  # (lanes, n): of `moved`; empty if all columns are held
    moved: np.ndarray  # (lanes, features + 1): w, moved on by solutions for held columns
    v: np.ndarray  # (lanes, features + 1)
    norm: np.ndarray  # (features + 1,): of columns, summed by the first read
    n_solved: int = 0  # times that held columns were solved for


class WorkingSetSolver(Solver):
    """Working sets for smooth losses of margins and targets, with L1, elastic net or L2.

    Problem: ``min_w g(w) + Σ C_i loss_i(s_i w·x_i)`` of every lane, g being L2, L1 or both. A read at w finds the columns
    that come nearest to being useful, and between reads the problem is solved in the weights of those alone. Solution: the w
    of a read whose certificate is good enough. Source: Massias, Gramfort, Salmon, ICML 2018; within a set newGLMNET
    (`held_solution`).
    """

    warm_start: Start = "w"

    arrays = ARRAYS

    def __init__(self, problem: Problem, dataset: Dataset, options: SolverOptions) -> None:
        super().__init__(problem, dataset, options)
        self._plan = options.plan
        self._is_resident = options.plan is None or options.plan.resident
        self._read: Read | None = None
        self._held: HeldColumns | None = None  # if not all columns are resident
        self._resident: tuple[Any, list[np.ndarray]] = None, []  # else the arena, and its columns' offsets

    @staticmethod
    def memory_of(problem: Problem, dataset: Dataset, options: SolverOptions) -> SolverMemory:
        """Count the scores of every row and lane, and the sums of every feature and lane.

        A row has its score, that of moved weights, that summed up anew and a dual variable in every lane, and four numbers
        in lanes that are solved for at a time; a feature has its weight twice and its sum in every lane, and a norm. A held
        column has its start, feature and nearness, and in those lanes the vectors of a working set.
        """
        together = min(problem.n_lanes, LANES_TOGETHER)
        size = problem.n_features + 1
        narrow = min(NARROW + 1, size)
        matrices = 24 * (narrow + newton_kernels.BLOCK) * narrow * together
        row_bytes = 32 * problem.n_lanes + 32 * together + 2 * constant_bytes(problem, dataset)
        return SolverMemory(
            ColumnLayout(item_bytes=64 + 112 * together, centred=problem.free_bias),
            size * (24 * problem.n_lanes + 8) + matrices + signed_costs_bytes(problem),
            dataset.n_rows * row_bytes,
            advice="give a larger --memory: this method keeps numbers of every row in memory",
            held_bytes=72 + 104 * together,
        )

    @cached_property
    def _constants(self) -> RowConstants:
        return read_constants(self.dataset, self.problem, self.options.seed)

    @cached_property
    def _costs(self) -> list[ColumnCosts]:
        problem = self.problem
        signed = signed_costs(self.problem)
        return [
            ColumnCosts(
                np.ascontiguousarray(lane[:, None]), problem.row_loss, problem.bias, problem.free_bias
            )
            for lane in signed.T
        ]

    def load_kernels(self, dataset: Dataset, state: State) -> None:
        """Compile the kernels by visiting no columns of no rows, before windows are allocated."""
        columns = columns_of(self.layout.new_arena(self.layout.open(dataset), 2, 0))
        none = np.zeros(0, dtype=np.int64)
        numbers = np.zeros(0)
        weights = np.zeros(1)
        scores = Scores(numbers, numbers, *new_constants(dataset, self.problem, 0))
        costs = self._costs[0]
        set_pulls(scores, costs._replace(free_bias=True), np.zeros(1, dtype=np.int64))
        primal_kernels.add_row_terms(scores, costs, none, np.zeros((1, N_SUMS)))
        newton_kernels.slope_norm(numbers, numbers, *Penalty(0.0, 1.0, free_bias=False))
        if not self._is_resident:
            kernels.hold(none, columns, columns, 0)
        parts = scores, costs, Penalty.of_lane(self.problem, 0), columns, none, weights, weights, (0,)
        HeldSolution(*parts).load_kernels()

    # -- a read

    def visit(self, window: Window, state: State, order: np.ndarray, key: np.uint64) -> None:
        """Sum up a window's columns, and hold those that are near.

        Given: w and `score` of the read's beginning. Changed in place: the totals, and what is not of the state: the sums of
        the read (`Read`) and the held columns, which are solved for where they have no room. `order` is room for columns.
        """
        lanes = state.lanes_in(TRAIN, CERTIFY)
        if window.number == 0:
            self._begin_read(window, state, lanes)
        if window.sweep is not None:
            self._visit_long(window, state, lanes)
            return
        read = self._sums
        columns = columns_of(window.arena)
        offsets = all_rows(window, order)
        features = columns.feature[offsets]
        v = np.empty((lanes.size, offsets.size))
        unknown = offsets[np.isnan(read.norm[features])]
        squares = np.empty(unknown.size)
        calls = [partial(kernels.sum_squares, unknown, columns, 0.0, v[0, :0], squares)]
        parts = max(1, min(4 * self.threads.count, offsets.size))
        for n, lane in enumerate(lanes):
            for some, out in zip(np.array_split(offsets, parts), np.array_split(v[n], parts), strict=True):
                calls.append(partial(kernels.sum_columns, some, columns, 0.0, read.pull[lane], out))
        for lane in lanes:
            in_support = np.flatnonzero(state.w[features, lane])
            weights = state.w[features[in_support], lane], read.fresh[lane]
            calls.append(partial(kernels.add_columns, offsets[in_support], columns, 0.0, *weights))
        n_entries = int((columns.indptr[offsets + 1] - columns.indptr[offsets]).sum())
        self.threads.run(calls, n_entries * lanes.size)
        read.v[np.ix_(lanes, features)] = v
        read.norm[columns.feature[unknown]] = np.sqrt(squares)
        state.totals[lanes, Total.N_ACTIVE] += offsets.size
        state.totals[lanes, Total.N_VISITED] += offsets.size
        if self._held:
            self._held.offer(
                window.arena, offsets, self._nearness(lanes, features), self._solve_within(state)
            )
        else:
            self._resident = window.arena, [*self._resident[1], offsets.copy()]

    def _visit_long(self, window: Window, state: State, lanes: np.ndarray) -> None:
        """Sum up a column that comes in segments; it is read once more to be held."""
        read = self._sums
        arena = window.arena
        sums = np.zeros(lanes.size + 1)
        feature = arena.feature[:1]
        first = np.zeros(1, dtype=np.int64)
        part = np.empty(1)
        n_entries = 0
        assert window.sweep is not None
        assert self._held is not None
        for size in window.sweep():
            columns = columns_of(arena)._replace(indptr=np.array([0, size]))
            for n, lane in enumerate(lanes):
                kernels.sum_columns(first, columns, 0.0, read.pull[lane], part)
                sums[n] += part[0]
                kernels.add_columns(first, columns, 0.0, state.w[feature, lane], read.fresh[lane])
            kernels.sum_squares(first, columns, 0.0, sums[:0], part)
            sums[-1] += part[0]
            n_entries += size
        read.v[lanes, feature] = sums[:-1]
        read.norm[feature] = np.sqrt(sums[-1])
        state.totals[lanes, Total.N_ACTIVE] += 1
        long = window.sweep(), n_entries, self._nearness(lanes, feature)
        self._held.offer_long(arena, *long, self._solve_within(state))

    @property
    def _sums(self) -> Read:
        assert self._read is not None
        return self._read

    def _begin_read(self, window: Window, state: State, lanes: np.ndarray) -> None:
        """Set sums to those over no columns but the bias."""
        problem = self.problem
        n_rows = self.dataset.n_rows
        n_lanes = self.problem.n_lanes
        if self._read is None:
            size = problem.n_features + 1
            moving = 0 if self._is_resident else n_rows
            (pull, fresh) = np.zeros((2, n_lanes, n_rows))
            (moved, v) = np.zeros((2, n_lanes, size))
            norm = np.full(size, np.nan)
            norm[-1] = problem.bias * np.sqrt(n_rows)
            self._read = Read(pull, fresh, np.zeros((n_lanes, moving)), moved, v, norm)
            if not self._is_resident:
                assert self._plan is not None
                dtypes = window.arena.row.dtype, window.arena.value.dtype
                self._held = HeldColumns(dtypes, self._plan.held_columns, self._plan.held_entries)
        read = self._read
        self._resident = (None, [])
        if self._held:
            self._held.clear()
        state.totals[:] = NO_ROWS
        read.n_solved = 0

        def begin(lane: int) -> None:
            read.moved[lane] = state.w[:, lane]
            read.v[lane] = 0.0
            read.fresh[lane] = state.w[-1, lane] * problem.bias
            read.pull[lane] = state.score[lane]
            if read.score.size:
                read.score[lane] = read.pull[lane]
            scores = Scores(read.pull[lane], read.fresh[lane], *self._constants)
            set_pulls(scores, self._costs[lane], np.zeros(1, dtype=np.int64))
            read.v[lane, -1] = problem.bias * read.pull[lane].sum()

        self.threads.run([partial(begin, int(lane)) for lane in lanes])

    def _nearness(self, lanes: np.ndarray, features: np.ndarray) -> np.ndarray:
        """Return the least over lanes of ``(l1 - |v_j|)/‖x_j‖``; -inf where the weight is not 0, which stays."""
        read = self._sums
        nearness = self.problem.l1[lanes, None] - np.abs(read.v[np.ix_(lanes, features)])
        nearness /= np.maximum(read.norm[features], 1e-100)
        nearness[read.moved[np.ix_(lanes, features)] != 0.0] = -np.inf
        return np.asarray(nearness.min(axis=0))

    def _solve_within(self, state: State) -> Callable[[], None] | None:
        """Return how held columns are solved for before a read's end; None in the first, whose scores may not be w's."""
        lanes = state.lanes_in(TRAIN)
        if not (lanes.size and state.read):
            return None
        return partial(self._solve, state, lanes, self._sums.score, _STEPS_WITHIN)

    def add_at_zero(self, window: Window, state: State) -> None:
        """Add those of all rows with the first window; see `Solver`."""
        if window.read == window.number == 0:
            total = state.totals[:, Total.AT_ZERO]
            self.problem.add_losses_at_zero(total, *self._constants, self.shift)

    # -- the end of a read

    def certificate(self, state: State) -> dict[str, np.ndarray]:
        """Compute the certificate of every lane at the feasible dual point, and continue from the scores of the read."""
        problem = self.problem
        read = self._sums
        primal, gap = np.full((2, problem.n_lanes), np.nan)
        penalties = problem.penalty(state.w)
        n = problem.n_features + (not problem.free_bias)

        def certify(lane: int) -> None:
            l1, l2, _ = Penalty.of_lane(self.problem, lane)
            pull = read.pull[lane]
            v = read.v[lane, :n]
            sums = np.zeros((1, N_SUMS))
            share = 1.0
            if l2 == 0.0:  # L1 alone asks for |v_j| <= l1
                error = ROUNDING * (np.nanmax(read.norm) * np.sqrt(np.einsum("i,i->", pull, pull)))
                share = min(1.0, l1 / max(float(max(v.max(), -v.min()) + error), l1))
            scores = Scores(share * pull, read.fresh[lane], *self._constants)
            primal_kernels.add_row_terms(scores, self._costs[lane], np.zeros(1, dtype=np.int64), sums)
            w = np.ascontiguousarray(state.w[:n, lane])
            bracket = newton_kernels.penalty_terms(w, v, share, l1, l2)[0]
            primal[lane] = penalties[lane] + sums[0, LOSS_SUM]
            gap[lane] = sums[0, PHI] + bracket

        with np.errstate(all="ignore"):  # the loop says what is wrong
            self.threads.run([partial(certify, lane) for lane in range(problem.n_lanes)])
        norms = self._slope_norms(state.w), self._slope_norms(np.zeros_like(state.w))
        violation = self.relative_violation(state, *norms)
        proof = certificate(primal, gap, violation, float(max(self.dataset.n_rows, n)) + 100.0)
        state.totals[:, Total.GAP] = proof["gap"]
        state.totals[:, Total.LOSS] = primal
        return proof

    def _slope_norms(self, w: np.ndarray) -> np.ndarray:
        return slope_norms(self.problem, np.ascontiguousarray(w.T), self._sums.v)

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Solve for the held columns, lane by lane."""
        read = self._sums
        norm = state.start_norm
        if np.isnan(norm).any():  # the first read: all its scores were 0
            norm[:] = self._slope_norms(np.zeros_like(state.w))
        lanes = trained[state.phase[trained] == TRAIN]
        state.score[:] = read.fresh
        if read.n_solved:
            state.score[lanes] = read.score[lanes]
        self._solve(state, lanes, state.score, _STEPS_BETWEEN)
        state.w[:, lanes] = read.moved[lanes].T

    def _solve(self, state: State, lanes: np.ndarray, score: np.ndarray, most_steps: int) -> None:
        """Move weights and scores of some lanes to the solution for held columns."""
        read = self._sums
        if self._held:
            columns = self._held.columns
            offsets = self._held.offsets
        else:
            columns = columns_of(self._resident[0])
            offsets = np.concatenate(self._resident[1])

        def solve(lane: int) -> None:
            scores = Scores(score[lane], read.fresh[lane], *self._constants)
            held = Penalty.of_lane(self.problem, lane), columns, offsets, read.moved[lane], read.norm
            key = self.options.seed, state.read, lane, read.n_solved
            solution = HeldSolution(scores, self._costs[lane], *held, key)
            if self._held:
                solution.solve(_SOLVED, 0.0, most_steps)
            else:
                wanted = _OF_WANTED * self.tol * abs(float(state.primal[lane]))
                solution.solve(_RESIDENT_SOLVED, wanted, most_steps)

        calls = [partial(solve, int(lane)) for lane in lanes]
        for first in range(0, len(calls), LANES_TOGETHER):
            self.threads.run(calls[first : first + LANES_TOGETHER])
        read.n_solved += 1

"""Dual coordinate descent over rows: ``w = w(alpha)`` is kept in memory, alpha on disk, chunk by chunk.

`RowSolver` is the base of all dual solvers; `DualSolver` trains hinge, squared hinge, logistic loss and twin planes. The
mathematics of a visit is in `kernels/dual`; this module has the start, the shrinking thresholds and the certificate.
Sources: Hsieh et al., ICML 2008; Yu, Huang, Lin, Machine Learning 85 (2011).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..core.memory_budget import BLOCK_WEIGHTS
from ..dataset.dataset import Dataset
from ..kernels import dual as dual_kernels
from ..kernels import primitives
from ..kernels import weights as weight_kernels
from ..kernels.loss_table import LOG_LOSS
from ..kernels.primitives import Lanes, Rows, Steering, Total, Variables
from ..stream.arenas import RowArena, Window, empty_window
from ..stream.memory_plan import SolverMemory
from . import over_relaxation, row_parts
from .acceleration import ARRAYS as ACCELERATION_ARRAYS
from .acceleration import Acceleration
from .memory import MOST_COPIED, dual_memory
from .problem import Problem
from .protocol import (
    CERTIFY,
    DONE,
    START,
    TRAIN,
    Array,
    Estimates,
    Solver,
    Start,
    State,
    all_rows,
    certificate,
    deviation,
    error_terms,
    join_totals,
    new_totals,
    violation,
)

_LINE = 8  # numbers in a cache line: no two threads should share one that they write to
_FEW_FEATURES = 1 << 14  # in whose lines of weights threads often meet
_SUMMED_SHARE = 0.01  # of an estimated gap: a larger doubt about w(alpha) makes a certificate sum it up anew
_LEAST_ALPHA = 1e-24  # over C: the sum over 10^8 rows is below the rounding of w

ROW_ARRAYS = (Array("v_error", "bound on the norm of the error of w(alpha)"),)
"""State of `RowSolver`."""

ARRAYS = (
    Array("inner_tolerance", "of Newton's method for a row, the logistic loss", initial=1e-2),
    Array("passes_in_one", "passes before which rows are not visited in two parts again", int),
)
"""State of `DualSolver`."""


class RowSolver(Solver):
    """Base of the solvers over rows: the certificate, and what a read's beginning and end do."""

    warm_start: Start = "alpha and w"
    always_sums = False  # up w(alpha), in every read at fixed w
    sums: tuple[
        Array, ...
    ] = ()  # of such reads, beside w(alpha) and the totals; those of workers are added up

    # what a subclass adds, a function of a window and the state
    train: Any  # (…, order, key, lanes): visit active rows once in some lanes, in an order drawn by key; `order` is room

    def __init__(
        self, problem: Problem, memory: SolverMemory, acceleration: Acceleration | None = None
    ) -> None:
        self.problem, self.acceleration = problem, acceleration
        self.memory, self.layout = memory, memory.layout
        self.n_vectors = problem.n_lanes * problem.lane_vectors

    @property
    def arrays(self) -> tuple[Array, ...]:
        """See `protocol.Solver`."""
        return (*ROW_ARRAYS, *self.sums, *(ACCELERATION_ARRAYS if self.acceleration else ()))

    def new_state(self, loop: tuple[Array, ...] = ()) -> State:
        """Return the state before the first read: w = 0."""
        state = super().new_state(loop)
        if self.acceleration:
            self.acceleration.begin(state)
        return state

    def new_rows(self, arena: RowArena, start: int, stop: int) -> None:
        """Set alpha = 0."""
        arena.alpha[start:stop] = 0.0
        arena.active[start:stop] = 1

    def restore_rows(self, state: State, arena: RowArena, start: int, stop: int) -> None:
        """See `protocol.Solver`."""
        flags = self.flags(np.flatnonzero(state.restore))
        # with acceleration a row that is still eligible leaves at its next visit
        flag = np.uint8(primitives.PATIENCE if self.acceleration else 1)
        for column in flags.tolist():
            own = arena.active[start:stop, column]
            own[own == 0] = flag

    def load_kernels(self, dataset: Dataset, state: State) -> None:
        """Load the kernels, before windows are allocated, by all that a lane does, with one feature and without rows."""
        self.layout.decoder(dataset, 0, 0)
        small, n_lanes = copy.copy(self), self.problem.n_lanes
        small.problem = replace(self.problem, n_features=1)
        window, one = empty_window(self.layout.new_arena(dataset, 2, 0)), np.zeros(1, dtype=np.int64)
        state = state.resized(features=2)
        if self.acceleration:
            state.in_pass[:] = False
        for phase in (START, CERTIFY, TRAIN):
            state.phase[:] = np.where(np.arange(n_lanes) == 0, phase, DONE)
            small.visit(window, state, window.chunks, np.uint64(0))
            if phase != TRAIN:
                small.certificate(state)
        small.restore_rows(state, window.arena, 0, 2)
        small.estimate(state, one)

    # -- a read

    def visit(self, window: Window, state: State, order: np.ndarray, key: np.uint64) -> None:
        """Certify lanes at their fixed w, and sum up w(alpha) where it is not known; then train the others."""
        certifying, training = state.lanes_in(START, CERTIFY), state.lanes_in(TRAIN)
        if certifying.size:
            rows, summing, v = all_rows(window, order), self.summing(state), self.v(state)
            if window.number == 0:
                v[:, self.problem.columns(summing)] = 0.0
            self.certify(window, state, rows, certifying, state.totals)
            if summing.size:
                self.sum_alpha(window, state, rows, summing, v)
        if training.size:
            if self.acceleration:
                self.acceleration.begin_pass(state, training, self.threads)
            self.train(window, state, order, key, training)

    def v(self, state: State) -> np.ndarray:
        """Return the array that holds w(alpha) between reads, and its sum in those that sum it up."""
        return state.centre_or_w_alpha if self.acceleration else state.w

    def summing(self, state: State) -> np.ndarray:
        """Return the lanes of which the read at fixed w sums up w(alpha): where it is not known, or not well enough."""
        lanes = state.lanes_in(START, CERTIFY)
        doubtful = (state.phase == START) | self.always_sums
        if self.acceleration:
            doubt = error_terms(np.sqrt(2.0 * state.distance), state.v_error)
            doubtful |= doubt > _SUMMED_SHARE * state.estimate
        return lanes[doubtful[lanes]]

    def certify(
        self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray, totals: np.ndarray
    ) -> None:
        """Add the terms of a window's rows in some lanes to `totals`, in the given order of rows, which threads divide."""
        n_parts = self.threads.parts(window.n_entries * lanes.size)
        sums = [new_totals(totals.shape[0] + 1)[:-1] for _ in range(n_parts)]  # none share a cache line
        each = zip(np.array_split(order, n_parts), sums, strict=True)
        self.threads.run([partial(self.certify_rows, window, state, lanes, *part) for part in each])
        for part in sums:
            join_totals(totals, part)

    def certify_rows(
        self, window: Window, state: State, lanes: np.ndarray, order: np.ndarray, totals: np.ndarray
    ) -> None:
        """Add the terms of some rows to `totals`."""
        dual_kernels.dual_certify(order, *self.arguments(window, state), totals, self.new_scratch(lanes))

    def sum_alpha(
        self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray, v: np.ndarray
    ) -> None:
        """Add ``s_i alpha_i x_i`` of some rows to `v`, of the shape of w."""
        rows = (order, *self.arguments(window, state))
        dual_kernels.add_alpha_rows(*rows, self.new_scratch(lanes), v.reshape(-1))

    def estimate(self, state: State, trained: np.ndarray) -> Estimates:
        """Estimate the gap by the rows' terms and the distance; the dual objective, which is known exactly, has the rest."""
        gap = np.abs(state.totals[:, Total.GAP])  # negative only by rounding
        at_end = np.zeros(gap.size)
        if self.acceleration:
            self.acceleration.end_pass(state, trained, self.threads)
            state.distance[trained] += self.cost_of_feasibility(state, trained)
            at_end = state.distance
            gap[trained] += at_end[trained]
            square = state.w_alpha_square
        else:
            square = self._penalty_terms(state.w, state.w, trained)[2]
            square = square.reshape(-1, self.problem.lane_vectors).sum(axis=1)
            state.v_error += deviation(np.sqrt(state.totals[:, Total.N_VISITED] * square))
        return Estimates(gap, state.dual_sum - 0.5 * square + gap, violation(state.totals), at_end)

    def cost_of_feasibility(self, state: State, trained: np.ndarray) -> np.ndarray:
        """Estimate the part of the gap of which the rows' terms do not tell, that of a feasible alpha; (trained,)."""
        return np.zeros(trained.size)

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Set the shrinking thresholds of the next read, from the projected gradients met while training; and kappa."""
        some = trained[~state.restore[trained]]
        largest = state.totals[some, Total.VIOLATION_MAX]
        smallest = state.totals[some, Total.VIOLATION_MIN]
        state.high[some] = np.where(largest > 0.0, largest, np.inf)
        state.low[some] = np.where(smallest < 0.0, smallest, -np.inf)
        if self.acceleration:
            self.acceleration.end_read(state, trained)

    # -- the certificate

    def certificate(self, state: State) -> dict[str, np.ndarray]:
        """Compute the certificate of every lane after a read at fixed w; see `protocol.Solver`.

        With ``v = w(alpha)``, primal(w) - dual(alpha) is ``Σ phi_i(w) + ½‖w - v‖²``, even if `w` has drifted from `v`.
        """
        terms = self._penalty_terms(state.w, self.v(state), state.lanes_in(CERTIFY))
        return self.proof(state, state.totals, terms)

    def proof(self, state: State, totals: np.ndarray, sums: np.ndarray) -> dict[str, np.ndarray]:
        """Compute the certificate from the rows' sums and the weights' (`_penalty_terms`), and bound the error of v.

        With n rows, q_i = ‖x_i‖², p passes, and slope_i the change of a row's term with its margin::

            primal = g(w) + Σ C_i loss_i
            gap    = Σ phi_i + bracket,  bracket = g(w) + g*(v) - w·v = ½ ‖w - v‖²
            error  of v: deviation(√(n ‖v‖²) + √(Σ a² q)) where this read summed v up; else `v_error`, to which a pass
                   that does not accelerate adds deviation(√(Σ a² q))
            more   = (‖w - v‖ + ½ error) error + deviation(‖w‖ Σ slope_i)
        """
        # losses of all classes have all their vectors in one lane
        penalty, bracket, v_square = sums.reshape(3, -1, self.problem.lane_vectors).sum(axis=2)
        summed = self.summing(state)
        n_rows = totals[:, Total.N_VISITED]
        size = np.sqrt(totals[:, Total.ALPHA_SQUARE])
        error = state.v_error + (0.0 if self.acceleration else deviation(state.passes * size))
        error[summed] = deviation(np.sqrt(n_rows * v_square) + size)[summed]
        state.v_error[summed] = error[summed]
        norm = np.sqrt(2.0 * penalty)
        if self.problem.free_bias:
            norm += np.abs(state.w[-1]).reshape(norm.size, -1).sum(axis=1)
        more = error_terms(np.sqrt(2.0 * bracket), error) + deviation(norm * totals[:, Total.SLOPE])
        n_terms = n_rows + self.problem.n_features / weight_kernels.BLOCK + 100.0
        primal = penalty + totals[:, Total.LOSS]
        return certificate(primal, totals[:, Total.GAP] + bracket, violation(totals), n_terms, more)

    def _penalty_terms(self, w: np.ndarray, v: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        """Sum `weights.add_penalty_terms` of lanes' vectors, (3, all vectors); 0 of others."""
        sums, columns = np.zeros((3, w.shape[1])), self.problem.columns(lanes)
        n_parts = max(min(self.threads.parts(w.shape[0] * columns.size), columns.size), 1)
        parts = np.array_split(columns, n_parts)
        self.threads.run([partial(weight_kernels.add_penalty_terms, w, v, part, sums) for part in parts])
        return sums

    def penalised_blocks(self) -> Iterator[slice]:
        """Iterate over blocks of the rows of w without the bias's, small enough for temporary arrays of all vectors."""
        n_features, step = self.problem.n_features, max(BLOCK_WEIGHTS // self.n_vectors, 1)
        return (slice(start, min(start + step, n_features)) for start in range(0, n_features, step))

    # -- arguments of the kernels

    def arguments(self, window: Window, state: State) -> tuple[Rows, Any, Variables]:
        """Return the rows of a window, the problem, and the variables."""
        arena = window.arena
        return rows_of(window), self.problem.costs, Variables(arena.alpha, arena.active, state.w.reshape(-1))

    def steering(self, state: State) -> Steering:
        """Return the parameters of the steps of a pass."""
        lanes = state.lanes
        nothing = np.zeros(self.problem.n_lanes)
        uncounted = (state.moves == 0).astype(np.float64) if self.acceleration else nothing
        inverse_mu = 1.0 / (1.0 + lanes.get("kappa", nothing))
        tolerance = lanes.get("inner_tolerance", nothing)
        omega = lanes.get("omega", nothing)
        return Steering(state.high, state.low, tolerance, omega, inverse_mu, uncounted)

    def new_scratch(self, lanes: np.ndarray) -> Lanes:
        """Return scratch for these lanes, longer than needed by a cache line, which no two threads share."""
        n_lanes = self.problem.n_lanes
        fetched, live = (np.zeros(n_lanes + _LINE, dtype=np.int64) for _ in range(2))
        dots, steps = (np.zeros(n_lanes + _LINE) for _ in range(2))
        return Lanes(lanes, fetched, dots[:n_lanes], live, steps[:n_lanes])

    def flags(self, lanes: np.ndarray) -> np.ndarray:
        """Return the columns of some lanes' active flags, ascending."""
        width = self.layout.n_flags // self.problem.n_lanes
        return (lanes[:, None] * width + np.arange(width)).reshape(-1)


class DualSolver(RowSolver):
    """Dual coordinate descent for hinge, squared hinge, logistic loss and twin planes (`kernels/dual.dual_visit`).

    `omega` is the over-relaxation of the closed-form steps, or "auto" (see `over_relaxation`).
    """

    def __init__(
        self, problem: Problem, omega: float | str = 1.0, acceleration: Acceleration | None = None
    ) -> None:
        memory = dual_memory(problem, accelerated=acceleration is not None)
        super().__init__(problem, memory, acceleration)
        self.omega = omega
        self._steps_apart = acceleration is not None and acceleration.adapts and problem.n_lanes == 1
        self._steps_apart &= problem.n_features < MOST_COPIED
        self._copies = np.zeros((2, 0))  # of w, for two threads
        self._mean_entries = 0.0  # of a row: those in a window depend on where it was read from

    @property
    def arrays(self) -> tuple[Array, ...]:
        """See `protocol.Solver`."""
        return (*super().arrays, *ARRAYS, *over_relaxation.ARRAYS)

    def new_state(self, loop: tuple[Array, ...] = ()) -> State:
        """Return the state before the first read: w = 0."""
        state = super().new_state(loop)
        over_relaxation.begin(state, self.omega)
        return state

    def load_kernels(self, dataset: Dataset, state: State) -> None:
        """Load the sums of the parts' copies, too; see `RowSolver.load_kernels`."""
        self._mean_entries = dataset.n_entries / max(dataset.n_rows, 1)
        if self._steps_apart:
            weight_kernels.add_changes(*np.zeros((2, 1)), state.w.reshape(-1), 0, 0)
        super().load_kernels(dataset, state)

    def new_rows(self, arena: RowArena, start: int, stop: int) -> None:
        """Set alpha = 0; for the logistic loss, whose alpha is positive, so small that w(alpha) = 0 up to rounding."""
        super().new_rows(arena, start, stop)
        if self.problem.row_loss.kind != LOG_LOSS:
            return
        n_lanes = self.problem.n_lanes
        step = max(BLOCK_WEIGHTS // n_lanes, 1)
        for first in range(start, stop, step):
            rows = slice(first, min(first + step, stop))
            cost = self.problem.row_costs(arena.code[rows], arena.weight[rows], arena.fold[rows])
            arena.alpha[rows, :n_lanes] = _LEAST_ALPHA * cost
            arena.alpha[rows, n_lanes : 2 * n_lanes] = cost - _LEAST_ALPHA * cost

    def train(
        self, window: Window, state: State, order: np.ndarray, key: np.uint64, lanes: np.ndarray
    ) -> None:
        """Train in stretches, after all of which but the last kappa and centre are set anew; mostly there is one."""
        rows, ends = shuffled_active_rows(window, lanes, order, key), lanes[:0]
        if self.acceleration and window.number == 0:
            n_entries = window.n_entries * window.count
            ends = self.acceleration.first_stretches(state, lanes, rows.size, n_entries)
        *first, rest = np.split(rows, ends)
        for stretch in first:
            gap = state.totals[:, Total.GAP].copy()
            self._train_stretch(window, state, stretch, lanes)
            whole = rows.size * window.count / stretch.size
            gap = whole * (state.totals[:, Total.GAP] - gap)
            self.acceleration.end_stretch(state, lanes, gap, self.threads)  # type: ignore[union-attr]
        self._train_stretch(window, state, rest, lanes)

    def _train_stretch(self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray) -> None:
        rows, n_rounds = (order, *self.arguments(window, state), self.steering(state)), 0
        if self.problem.n_lanes > 1:
            self._divide_lanes(window, state, rows, lanes)
            return
        if self._steps_apart:
            sizes = order.size * self._mean_entries, window.count
            n_rounds = row_parts.count_rounds(*sizes, state, self.threads)
        if not n_rounds:
            dual_kernels.dual_visit(*rows, state.totals)
            return
        if self._copies.shape[1] != state.w.size:
            self._copies = np.empty((2, state.w.size))
        sums = state.totals, self._copies
        row_parts.visit_in_parts(dual_kernels.dual_visit, rows, n_rounds, *sums, self.threads)

    def _divide_lanes(
        self, window: Window, state: State, arguments: tuple[Any, ...], lanes: np.ndarray
    ) -> None:
        """Divide lanes among threads; each lane has its own columns or rows of variables, weights and sums.

        Every thread has a copy of the sums: they change with every row, and no two threads may share a cache line of them.
        Nor should they share lines of weights, each of eight lanes, where they often meet: forty lanes on rows of 14 entries
        with 120 features took 1,200 ns a row by one thread, 700 by four with ten lanes each, 500 with eight or sixteen.
        """
        in_lines = lanes.size > _LINE or self.problem.n_features < _FEW_FEATURES
        units = lanes // (_LINE if in_lines else 2)
        found = np.unique(units)
        n_parts = min(self.threads.parts(window.n_entries * lanes.size), found.size)
        parts = [lanes[np.isin(units, part)] for part in np.array_split(found, n_parts)]
        totals = [state.totals, *(state.totals.copy() for _ in parts[1:])]
        each = zip(totals, parts, strict=True)
        visit = partial(dual_kernels.dual_visit_lanes, *arguments)
        self.threads.run([partial(visit, sums, self.new_scratch(part)) for sums, part in each])
        for part, sums in zip(parts[1:], totals[1:], strict=True):
            state.totals[part] = sums[part]

    def estimate(self, state: State, trained: np.ndarray) -> Estimates:
        """See `RowSolver`; a gap that rose may tell of rows that were visited in parts."""
        estimates = super().estimate(state, trained)
        if self._steps_apart:
            row_parts.see_harm(state, estimates.gap, trained)
        return estimates

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Set the inner tolerance of Newton's method and omega, too; see `RowSolver`."""
        totals = state.totals
        exact = trained[totals[trained, Total.N_STEPS] <= 0.1 * totals[trained, Total.N_VISITED]]
        state.inner_tolerance[exact] = np.maximum(0.1 * state.inner_tolerance[exact], 1e-12)
        over_relaxation.update_omega(state, state.w[self.problem.penalised], trained)
        super().end_read(state, trained)


def rows_of(window: Window) -> Rows:
    """Return the rows of a window's arena."""
    arena, feature = window.arena, primitives.unsigned(window.arena.feature)
    return Rows(arena.indptr, feature, arena.value, arena.code, arena.weight, arena.fold, arena.target)


def shuffled_active_rows(window: Window, flags: np.ndarray, order: np.ndarray, key: np.uint64) -> np.ndarray:
    """Write the rows with any of these flags to the front of `order`, in a random order that is a function of `key`."""
    n = primitives.active_rows(window.start, window.stop, window.arena.active, flags, order)
    primitives.shuffle(order[:n], key)
    return order[:n]

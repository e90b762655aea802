"""Dual coordinate descent over rows: ``w = w(alpha)`` is kept in memory, alpha on disk, chunk by chunk.

`RowSolver` is the base of all dual solvers; `DualSolver` trains hinge, squared hinge, logistic loss and twin planes. The
mathematics of a visit is in `kernels/dual`; this module has the start, the shrinking thresholds and the certificate.
Sources: Hsieh et al., ICML 2008; Yu, Huang, Lin, Machine Learning 85 (2011).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..dataset.dataset import Dataset
from ..kernels import dual as dual_kernels
from ..kernels import primitives
from ..kernels import weights as weight_kernels
from ..kernels.compile import return_free_memory
from ..kernels.loss_table import LOG_LOSS
from ..kernels.primitives import (
    ALPHA_SQUARE,
    GAP,
    LOSS,
    N_STEPS,
    N_VISITED,
    SLOPE,
    VIOLATION_MAX,
    VIOLATION_MIN,
    Costs,
    Lanes,
    Rows,
    Steering,
    Variables,
)
from ..stream.memory_plan import SolverMemory
from ..stream.window import RowArena, Window, aligned_zeros, empty_window
from . import over_relaxation, row_parts
from .acceleration import Acceleration
from .certificate import certificate, deviation, error_terms, violation
from .memory import MOST_COPIED, dual_memory
from .problem import Problem
from .protocol import (
    CERTIFY,
    START,
    TRAIN,
    Estimates,
    Solver,
    Start,
    State,
    all_rows,
    join_totals,
    new_lanes,
    new_totals,
)

_MIN_LANES = 2  # per thread: each thread fetches all entries of the rows for its lanes
_LINE = 8  # numbers in a cache line: no two threads should share one that they write to
_FEW_FEATURES = 1 << 14  # in whose lines of weights threads often meet
_SUMMED_SHARE = 0.01  # of an estimated gap: a larger doubt about w(alpha) makes a certificate sum it up anew
_BLOCK_WEIGHTS = 1 << 16  # 0.5 MB
_NEW_VALUES = 1 << 15  # dual variables initialised at a time, by each thread
_LEAST_ALPHA = 1e-24  # over C: the sum over 10^8 rows is below the rounding of w


class RowSolver(Solver):
    """Base of the solvers over rows."""

    warm_start: Start = "alpha and w"

    def __init__(
        self, problem: Problem, memory: SolverMemory, acceleration: Acceleration | None = None
    ) -> None:
        self.problem, self.acceleration = problem, acceleration
        self.memory, self.layout = memory, memory.layout
        self.n_vectors = problem.n_lanes * problem.lane_vectors

    def new_rows(self, arena: RowArena, start: int, stop: int) -> None:
        """Set alpha = 0."""
        arena.alpha[start:stop] = 0.0
        arena.active[start:stop] = 1

    def restore_rows(self, state: State, arena: RowArena, start: int, stop: int) -> None:
        """See `protocol.Solver`."""
        columns = self.columns_of(np.flatnonzero(state.lanes["restore"]))
        # with acceleration a row that is still eligible leaves at its next visit
        flag = np.uint8(primitives.PATIENCE if self.acceleration else 1)
        primitives.restore_flags(arena.active[start:stop], columns, flag)

    def load_kernels(self, dataset: Dataset, state: State) -> None:
        """Compile the kernels by visiting no rows, before windows are allocated: a small budget has no room for both."""
        window = empty_window(self.layout.new_arena(dataset, 2, 0))
        self._visit_nothing(window, replace(state, totals=state.totals.copy()))
        shuffled_active_rows(window, window.chunks, window.chunks, np.uint64(0))
        self.restore_rows(state, window.arena, 0, 2)  # of fewer rows the flags would have another type
        self._penalty_terms(state.w[:0], state.w[:0], window.chunks)
        if self.acceleration:
            self.acceleration.load_kernels(state)
        return_free_memory()

    def _visit_nothing(self, window: Window, state: State) -> None:
        self.certify(window, state, window.chunks, window.chunks)
        self.sum_alpha(window, state, window.chunks, window.chunks, self.v(state))
        self.train(window, state, window.chunks, window.chunks)

    def visit(self, window: Window, state: State, order: np.ndarray, key: np.uint64) -> None:
        """Certify lanes at their fixed w, then train the others."""
        self.visit_at_fixed_w(window, state, order)
        training = state.phase(TRAIN)
        if training.size:
            self.begin_pass(state, training)
            rows = shuffled_active_rows(window, training, order, key)
            *first, rest = self._stretches(window, state, rows, training)
            for stretch in first:
                gap = state.totals[:, GAP].copy()
                self.train(window, state, stretch, training)
                whole = rows.size * window.count / stretch.size
                gap = whole * (state.totals[:, GAP] - gap)
                self.acceleration.end_stretch(state, training, gap, self.threads)  # type: ignore[union-attr]
            self.train(window, state, rest, training)

    def visit_at_fixed_w(self, window: Window, state: State, order: np.ndarray) -> None:
        """Sum the certificate's terms of lanes in phase CERTIFY and, where it is not known, w(alpha)."""
        certifying = state.phase(START, CERTIFY)
        if certifying.size:
            rows, summing, v = all_rows(window, order), self.summing(state), self.v(state)
            if window.number == 0:
                v[:, self.columns_of(summing)] = 0.0
            self.certify(window, state, rows, certifying)
            if summing.size:
                self.sum_alpha(window, state, rows, summing, v)

    def v(self, state: State) -> np.ndarray:
        """Return the array that holds w(alpha) between reads, and its sum in those that sum it up."""
        return state.matrices["centre_or_w_alpha"] if self.acceleration else state.w

    def summing(self, state: State) -> np.ndarray:
        """Return the lanes of which the read at fixed w sums up w(alpha): where it is not known, or not well enough."""
        lanes = state.phase(START, CERTIFY)
        doubtful = state.lanes["phase"] == START
        if self.acceleration:
            with np.errstate(all="ignore"):
                doubt = error_terms(np.sqrt(2.0 * state.lanes["distance"]), state.lanes["v_error"])
                doubtful |= doubt > _SUMMED_SHARE * state.lanes["estimate"]
        return lanes[doubtful[lanes]]

    def _stretches(
        self, window: Window, state: State, rows: np.ndarray, lanes: np.ndarray
    ) -> list[np.ndarray]:
        """Divide the rows of a visit into stretches, after all of which but the last kappa and centre are set anew.

        It is a single one but for the first window of the first pass, or where kappa is fixed.
        """
        if not (self.acceleration and window.number == 0):
            return [rows]
        n_entries = window.n_entries * window.count
        return np.split(rows, self.acceleration.first_stretches(state, lanes, rows.size, n_entries))

    def begin_pass(self, state: State, lanes: np.ndarray) -> None:
        """Move the centres of accelerated lanes, before the first window of a training read."""
        if self.acceleration:
            self.acceleration.begin_pass(state, lanes, self.threads)

    def estimate(self, state: State, trained: np.ndarray) -> Estimates:
        """Estimate the gap by the rows' terms and the distance; the dual objective, which is known exactly, has the rest."""
        gap = np.abs(state.totals[:, GAP])  # negative only by rounding
        if self.acceleration:
            self.acceleration.end_pass(state, trained, self.threads)
            gap[trained] += state.lanes["distance"][trained] + self.cost_of_feasibility(state, trained)
            square = state.lanes["w_alpha_square"]
        else:
            sums = self._penalty_terms(state.w, state.w, trained)[2]
            square = sums.reshape(-1, self.problem.lane_vectors).sum(axis=1)
            with np.errstate(all="ignore"):
                state.lanes["v_error"] += deviation(np.sqrt(state.totals[:, N_VISITED] * square))
        return Estimates(gap, state.lanes["dual_sum"] - 0.5 * square + gap, violation(state.totals))

    def cost_of_feasibility(self, state: State, trained: np.ndarray) -> np.ndarray:
        """Estimate the part of the gap of which the rows' terms do not tell, that of a feasible alpha; (trained,)."""
        return np.zeros(trained.size)

    def new_sums(self) -> dict[str, np.ndarray]:
        """Return zeros for the sums that reads at fixed w make beside w(alpha) and the totals, in `State.matrices`.

        Those of several partitions of the rows are added up.
        """
        return {}

    def certify(self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray) -> None:
        """Sum the terms of a window's rows in some lanes, in the given order of rows, which threads divide."""
        n_parts = self.threads.parts(window.n_entries * lanes.size)
        sums = [new_totals(state.totals.shape[0] + 1)[:-1] for _ in range(n_parts)]  # none share a cache line
        each = zip(np.array_split(order, n_parts), sums, strict=True)
        self.threads.run([partial(self.certify_rows, window, state, lanes, *part) for part in each])
        for part in sums:
            join_totals(state.totals, part)

    def certify_rows(
        self, window: Window, state: State, lanes: np.ndarray, order: np.ndarray, totals: np.ndarray
    ) -> None:
        """Add the terms of some rows to `totals`."""
        raise NotImplementedError

    def sum_alpha(
        self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray, v: np.ndarray
    ) -> None:
        """Add ``s_i alpha_i x_i`` of a window's rows in some lanes to `v`, of the shape of w."""
        raise NotImplementedError

    def train(self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray) -> None:
        """Visit rows of a window once in some lanes, in the given order of rows."""
        raise NotImplementedError

    def certificate(self, state: State) -> dict[str, np.ndarray]:
        """Compute the certificate of every lane after a read at fixed w; see `protocol.Solver`.

        With ``v = w(alpha)``, primal(w) - dual(alpha) is ``Σ phi_i(w) + ½‖w - v‖²``, even if `w` has drifted from `v`.
        """
        return self.proof(
            state, state.totals, self._penalty_terms(state.w, self.v(state), state.phase(CERTIFY))
        )

    def proof(self, state: State, totals: np.ndarray, sums: np.ndarray) -> dict[str, np.ndarray]:
        """Compute the certificate from the rows' sums and the weights' (`_penalty_terms`), and bound the error of v."""
        # Crammer–Singer has all its vectors in one lane
        penalty, bracket, square = sums.reshape(3, -1, self.problem.lane_vectors).sum(axis=2)
        kept, n_rows, summed = state.lanes, totals[:, N_VISITED], self.summing(state)
        with np.errstate(all="ignore"):  # the loop says what is not finite
            size, norm = np.sqrt(totals[:, ALPHA_SQUARE]), np.sqrt(2.0 * penalty)
            if self.problem.free_bias:
                norm += np.abs(state.w[-1]).reshape(norm.size, -1).sum(axis=1)
            error = kept["v_error"] + (0.0 if self.acceleration else deviation(kept["passes"] * size))
            error[summed] = deviation(np.sqrt(n_rows * square) + size)[summed]
            more = error_terms(np.sqrt(2.0 * bracket), error) + deviation(norm * totals[:, SLOPE])
            n_terms = n_rows + self.problem.n_features / weight_kernels.BLOCK + 100.0
            primal, gap = penalty + totals[:, LOSS], totals[:, GAP] + bracket
        kept["v_error"][summed] = error[summed]
        return certificate(primal, gap, violation(totals), n_terms, more)

    def columns(self, lane: int) -> slice:
        """Return the weight vectors of a lane."""
        width = self.problem.lane_vectors
        return slice(lane * width, (lane + 1) * width)

    def _penalty_terms(self, w: np.ndarray, v: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        """Sum `weights.add_penalty_terms` of lanes' vectors, (3, all vectors); 0 of others."""
        sums, columns = np.zeros((3, w.shape[1])), self.columns_of(lanes)
        parts = np.array_split(
            columns, max(min(self.threads.parts(w.shape[0] * columns.size), columns.size), 1)
        )
        self.threads.run([partial(weight_kernels.add_penalty_terms, w, v, part, sums) for part in parts])
        return sums

    def penalised_blocks(self) -> Iterator[slice]:
        """Iterate over blocks of the rows of w without the bias's, small enough for temporary arrays of all vectors."""
        n_features, step = self.problem.n_features, max(_BLOCK_WEIGHTS // self.n_vectors, 1)
        return (slice(start, min(start + step, n_features)) for start in range(0, n_features, step))

    def columns_of(self, lanes: np.ndarray) -> np.ndarray:
        """Return the weight vectors of some lanes, ascending."""
        width = self.problem.lane_vectors
        return (lanes[:, None] * width + np.arange(width)).reshape(-1)

    def mu(self, state: State) -> np.ndarray:
        """Return 1 + kappa of every lane; 1 without acceleration."""
        return np.asarray(1.0 + state.lanes["kappa"] if self.acceleration else np.ones(self.problem.n_lanes))

    def acceleration_numbers(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """Return 1/mu and `uncounted` of every lane (see `Steering`)."""
        uncounted = state.lanes["moves"] == 0 if self.acceleration else np.zeros(self.problem.n_lanes, bool)
        return 1.0 / self.mu(state), uncounted.astype(np.float64)

    def steering(self, state: State, tolerance: np.ndarray) -> Steering:
        """Return the parameters of the steps of a pass."""
        kept, numbers = state.lanes, self.acceleration_numbers(state)
        return Steering(kept["high"], kept["low"], tolerance, kept["omega"], *numbers)

    @property
    def costs(self) -> Costs:
        """Problem as an argument of kernels."""
        problem = self.problem
        return Costs(problem.row_loss, problem.bias, problem.sign, problem.cost, *problem.left_out)

    def start_state(self, lanes: Mapping[str, np.ndarray], phase: int) -> State:
        """Return a state of zeros, with `lanes` in addition to the arrays that every solver keeps per lane."""
        shape, n_lanes = (self.problem.n_features + 1, self.n_vectors), self.problem.n_lanes
        kept = new_lanes(n_lanes, phase) | {"v_error": np.zeros(n_lanes)} | dict(lanes)
        w = aligned_zeros(math.prod(shape), np.dtype(np.float64)).reshape(shape)
        state = State(w, new_totals(n_lanes), kept, matrices=self.new_sums())
        if self.acceleration:
            self.acceleration.add_to(state)
        return state


class DualSolver(RowSolver):
    """Dual coordinate descent for hinge, squared hinge, logistic loss and twin planes (`kernels/dual.dual_visit`).

    `omega` is the over-relaxation of the closed-form steps, or "auto" (see `over_relaxation`).
    """

    def __init__(
        self, problem: Problem, omega: float | str = 1.0, acceleration: Acceleration | None = None
    ) -> None:
        memory = dual_memory(problem, accelerated=acceleration is not None)
        super().__init__(problem, memory, acceleration)
        self._logistic = problem.row_loss.kind == LOG_LOSS
        self.omega = omega
        self._copies = np.zeros((0, 0))
        self._in_parts = (problem.n_features + 1) * self.n_vectors <= MOST_COPIED
        adapts = acceleration is not None and acceleration.adapts
        self._steps_apart = adapts and self._in_parts and problem.n_lanes == 1
        self._mean_entries = 0.0  # of a row: those in a window depend on where it was read from

    def new_state(self) -> State:
        """Return the state before the first read: w = 0."""
        n_lanes = self.problem.n_lanes
        lanes = {"inner_tolerance": np.full(n_lanes, 1e-2)}
        lanes |= over_relaxation.new_lane_arrays(n_lanes, self.omega)
        if self._steps_apart:
            lanes |= row_parts.new_lane_arrays(n_lanes)
        return self.start_state(lanes, TRAIN)

    def load_kernels(self, dataset: Dataset, state: State) -> None:
        """Load the sums of the parts' copies, too; see `RowSolver.load_kernels`."""
        self._mean_entries = dataset.n_entries / max(dataset.n_rows, 1)
        if self._in_parts:
            weight_kernels.add_changes(*np.zeros((2, 1)), state.w.reshape(-1), 0, 0)
        super().load_kernels(dataset, state)

    def new_rows(self, arena: RowArena, start: int, stop: int) -> None:
        """Set alpha = 0; for the logistic loss, whose alpha is positive, so small that w(alpha) = 0 up to rounding."""
        super().new_rows(arena, start, stop)
        if not self._logistic:
            return
        n_lanes = self.problem.n_lanes
        step = max(_NEW_VALUES // n_lanes, 1)
        for first in range(start, stop, step):
            rows = slice(first, min(first + step, stop))
            cost = self.problem.row_costs(arena.code[rows], arena.weight[rows], arena.fold[rows])
            alpha = _LEAST_ALPHA * cost
            arena.alpha[rows, :n_lanes] = alpha
            arena.alpha[rows, n_lanes : 2 * n_lanes] = cost - alpha

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Set the shrinking thresholds of the next read, the inner tolerance of Newton's method, and omega."""
        kept, totals = state.lanes, state.totals
        set_thresholds(state, trained)
        for lane in trained:
            if totals[lane, N_STEPS] <= 0.1 * totals[lane, N_VISITED]:
                kept["inner_tolerance"][lane] = max(0.1 * kept["inner_tolerance"][lane], 1e-12)
        over_relaxation.update_omega(kept, state.w[self.problem.penalised], trained)
        if self.acceleration:
            self.acceleration.update_kappa(state, trained)
            self.acceleration.recall_rows(state, trained)
            for lane in trained.tolist() if self._steps_apart else ():
                row_parts.look_back(kept, lane, float(totals[lane, GAP] + kept["distance"][lane]))

    def train(self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray) -> None:
        steering = self.steering(state, state.lanes["inner_tolerance"])
        rows = (order, rows_of(window), self.costs, variables_of(window, state), steering)
        sizes = order.size * self._mean_entries, window.count
        n_rounds = row_parts.count_rounds(*sizes, state) if self._steps_apart else 0
        if self.problem.n_lanes > 1:
            self._divide_lanes(window, state, dual_kernels.dual_visit_lanes, rows, lanes)
        elif n_rounds:
            sums = state.totals, self._weight_copies(state.w.size)
            row_parts.visit_in_parts(dual_kernels.dual_visit, rows, n_rounds, *sums, self.threads)
        else:
            dual_kernels.dual_visit(*rows, state.totals)

    def _weight_copies(self, n_weights: int) -> np.ndarray:
        """Return room for the parts' copies of the weights."""
        if not self._copies.size:
            self._copies = np.empty((row_parts.ROW_PARTS, n_weights))
        return self._copies

    def certify_rows(
        self, window: Window, state: State, lanes: np.ndarray, order: np.ndarray, totals: np.ndarray
    ) -> None:
        rows = (order, rows_of(window), self.costs, variables_of(window, state), totals)
        if self.problem.n_lanes > 1:
            dual_kernels.dual_certify_lanes(*rows, self._new_scratch(lanes))
        else:
            dual_kernels.dual_certify(*rows)

    def sum_alpha(
        self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray, v: np.ndarray
    ) -> None:
        rows = (order, rows_of(window), self.costs, variables_of(window, state))
        dual_kernels.add_alpha_rows(*rows, self._new_scratch(lanes), v.reshape(-1))

    def _divide_lanes(
        self, window: Window, state: State, visit: Any, arguments: tuple[Any, ...], lanes: np.ndarray
    ) -> None:
        """Divide lanes among threads; each lane has its own columns or rows of variables, weights and sums.

        Every thread has a copy of the sums: they change with every row, and no two threads may share a cache line of them.
        Nor should they share lines of weights, each of eight lanes, where they often meet: forty lanes on rows of 14 entries
        with 120 features took 1,200 ns a row by one thread, 700 by four with ten lanes each, 500 with eight or sixteen.
        """
        n_parts = self.threads.parts(window.n_entries * lanes.size)
        in_lines = lanes.size > _LINE or self.problem.n_features < _FEW_FEATURES
        units = lanes // (_LINE if in_lines else _MIN_LANES)
        found = np.unique(units)
        parts = [lanes[np.isin(units, part)] for part in np.array_split(found, min(n_parts, found.size) or 1)]
        totals = [state.totals, *(state.totals.copy() for _ in parts[1:])]
        each = zip(totals, parts, strict=True)
        self.threads.run([partial(visit, *arguments, sums, self._new_scratch(part)) for sums, part in each])
        for part, sums in zip(parts[1:], totals[1:], strict=True):
            state.totals[part] = sums[part]

    def _new_scratch(self, lanes: np.ndarray) -> Lanes:
        """Return scratch for these lanes, longer than needed by a cache line, which no two threads share."""
        n_lanes = self.problem.n_lanes
        fetched, live = (np.zeros(n_lanes + _LINE, dtype=np.int64) for _ in range(2))
        dots, steps = (np.zeros(n_lanes + _LINE) for _ in range(2))
        return Lanes(lanes, fetched, dots[:n_lanes], live, steps[:n_lanes])


# ---------------------------------------------------------------------------------------------------------------------
# Arguments of the kernels


def rows_of(window: Window) -> Rows:
    """Return the rows of a window's arena."""
    arena, feature = window.arena, primitives.unsigned(window.arena.feature)
    return Rows(arena.indptr, feature, arena.value, arena.code, arena.weight, arena.fold, arena.target)


def variables_of(window: Window, state: State) -> Variables:
    """Return the dual variables of a window's arena, and w."""
    return Variables(window.arena.alpha, window.arena.active, state.w.reshape(-1))


def shuffled_active_rows(window: Window, flags: np.ndarray, order: np.ndarray, key: np.uint64) -> np.ndarray:
    """Write the rows with any of these flags to the front of `order`, in a random order that is a function of `key`."""
    n = primitives.active_rows(window.start, window.stop, window.arena.active, flags, order)
    primitives.shuffle(order[:n], key)
    return order[:n]


# ---------------------------------------------------------------------------------------------------------------------
# Thresholds from the sums of a read


def set_thresholds(state: State, trained: np.ndarray) -> None:
    """Set the shrinking thresholds of the next read, from the projected gradients that lanes met while training."""
    kept, totals = state.lanes, state.totals
    for lane in trained[~kept["restore"][trained]]:
        largest, smallest = totals[lane, VIOLATION_MAX], totals[lane, VIOLATION_MIN]
        kept["high"][lane] = largest if largest > 0 else np.inf
        kept["low"][lane] = smallest if smallest < 0 else -np.inf

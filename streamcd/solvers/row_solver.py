"""Reads of the dual methods over rows, whose w is w(alpha) = Σ s_i alpha_i x_i, with alpha on disk, chunk by chunk.

A read certifies lanes at their fixed w, and trains the others. A method adds the steps of a pass and the sums over its rows;
what is here are the shrinking thresholds, the estimate of the gap and the certificate.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from ..core.memory_budget import BLOCK_WEIGHTS
from ..dataset.dataset import Dataset
from ..dataset.feature_order import MOST_UNRANKED
from ..kernels import primitives
from ..kernels import weights as weight_kernels
from ..kernels.loss_table import LOSSES
from ..kernels.primitives import Costs, Rows, Steering, Total, Variables
from ..stream.arenas import RowArena, RowLayout, Window, empty_window
from ..stream.memory_plan import SolverMemory
from .acceleration import ARRAYS as ACCELERATION_ARRAYS
from .acceleration import RECALL_EVERY, Acceleration
from .over_relaxation import BEGIN
from .problem import Problem
from .protocol import (
    CERTIFY,
    DONE,
    NO_ROWS,
    ROUNDING,
    START,
    TRAIN,
    Array,
    Estimates,
    Solver,
    SolverOptions,
    Start,
    State,
    all_rows,
    certificate,
    join_totals,
    violation,
)

MOST_COPIED = 1 << 19
"""Largest number of weights with which two threads visit the rows of a lane, each with a copy of w."""

_SUMMED_SHARE = 0.01  # of an estimated gap: a larger doubt about w(alpha) makes a certificate sum it up anew

_NEIGHBOURS = 8
"""Rows that stand together and are visited one after another: their entries come from memory in a stream, not row by row."""

_FAR_ENTRIES = 1 << 20
"""Entries of a window from which on its rows do not stay in a second-level cache; below, neighbours save no time."""

Data = tuple[Rows, Costs, Variables]
"""Arguments of the kernels: the rows of a window, the problem, and the variables."""

ARRAYS = (Array("v_error", "bound on the norm of the error of w(alpha)"),)
"""State of `RowSolver`."""


class RowSolver(Solver):
    """A dual method over rows; `visit` says what a method adds."""

    warm_start: Start = "alpha and w"
    w_alpha = "w"  # array of the state that has w(alpha) between reads, and its sum in those that sum it up
    always_sums = False  # up w(alpha), in every read at fixed w
    sums: tuple[
        Array, ...
    ] = ()  # of such reads, beside w(alpha) and the totals; those of workers are added up

    def __init__(self, problem: Problem, dataset: Dataset, options: SolverOptions) -> None:
        super().__init__(problem, dataset, options)
        begin = BEGIN if options.omega == "auto" else 0
        omega = 1.0 if begin else options.omega
        self.initial = {"omega": omega, "kept_omega": omega, "trial_begin": begin}
        self.arrays = (*ARRAYS, *self.arrays, *self.sums)
        self.acceleration: Acceleration | None = None
        if problem.free_bias or options.acceleration != "none":
            # with kappa 0 it moves the centre of a free bias alone
            kappa = 0.0 if options.acceleration == "none" else options.acceleration
            self.acceleration = Acceleration(problem, kappa, dataset)
            self.w_alpha = "centre_or_w_alpha"
            self.arrays += ACCELERATION_ARRAYS
            self.initial |= {"kappa": self.acceleration.first_kappa, "theta": self.acceleration.adapts}
        declared = {array.name for array in self.arrays}
        self.initial = {name: values for name, values in self.initial.items() if name in declared}

    def new_rows(self, arena: RowArena, start: int, stop: int) -> None:
        """Set alpha = 0, or where ``w(alpha) = 0`` inside the domain of the dual."""
        arena.alpha[start:stop] = 0.0
        arena.active[start:stop] = 1
        if LOSSES[self.problem.loss].probabilities:
            self.begin_inside(arena, start, stop)

    def begin_inside(self, arena: RowArena, start: int, stop: int) -> None:
        """Set alpha of new rows inside a domain whose bounds it never reaches."""
        raise NotImplementedError

    def restore_rows(self, state: State, arena: RowArena, start: int, stop: int) -> None:
        """See `protocol.Solver`."""
        # with acceleration a row that is still eligible leaves at its next visit
        flag = np.uint8(primitives.PATIENCE if self.acceleration else 1)
        width = self.layout.n_flags // self.problem.n_lanes
        for column in np.flatnonzero(np.repeat(state.restore, width)).tolist():
            flags = arena.active[start:stop, column]
            flags[flags == 0] = flag

    def load_kernels(self, dataset: Dataset, state: State) -> None:
        """Load the kernels, before windows are allocated, by all that a lane does, with one feature and without rows."""
        # a thread makes the rank meanwhile
        replace(self.layout, ranked=False).decoder(dataset, 0, 0)
        small = copy.copy(self)
        small.problem = replace(self.problem, n_features=1)
        window = empty_window(self.layout.new_arena(dataset, 2, 0))
        state = State(state.declared.values(), state.sizes | {"features": 2})
        if self.problem.n_lanes == 1:  # by which weights of two threads are joined
            weight_kernels.add_changes(*np.zeros((3, 0)))
        for phase in (START, CERTIFY, TRAIN):
            state.phase[:] = DONE
            state.phase[0] = phase
            small.visit(window, state, window.chunks, np.uint64(0))
            if phase != TRAIN:
                small.certificate(state)
        small.restore_rows(state, window.arena, 0, 2)
        small.estimate(state, np.zeros(1, dtype=np.int64))

    # -- a read

    def visit(self, window: Window, state: State, order: np.ndarray, key: np.uint64) -> None:
        """Visit a window's rows once.

        Given: lanes at fixed w (START, CERTIFY) and lanes that train. Changed in place: of the former the totals (`certify`)
        and, where it is not known, w(alpha) (`sum_alpha`); of the latter w, the totals, and the dual variables and flags of
        active rows (`train`). `order` is room for the window's rows.
        """
        certifying = state.lanes_in(START, CERTIFY)
        training = state.lanes_in(TRAIN)
        arena = window.arena
        data = arena.rows, self.problem.costs, Variables(arena.alpha, arena.active, state.w.reshape(-1))
        if certifying.size:
            rows = all_rows(window, order)
            summing = self.summing(state)
            v = getattr(state, self.w_alpha)
            if window.number == 0:
                v[:, self.problem.vectors[summing].reshape(-1)] = 0.0
            self.certify(data, window.n_entries, state, rows, certifying, state.totals)
            if summing.size:
                self.sum_alpha(data, state, rows, summing, v)
        if training.size:
            if self.acceleration:
                self.acceleration.begin_pass(state, training, self.threads)
            self.train(window, data, state, order, key, training)

    def shuffled_rows(
        self, window: Window, flags: np.ndarray, order: np.ndarray, key: np.uint64
    ) -> np.ndarray:
        """Write the rows with any of these flags to the front of `order`, in a random order that is a function of `key`."""
        n = primitives.active_rows(window.start, window.stop, window.arena.active, flags, order)
        # by the dataset's mean: the entries of a window depend on where it was read from
        mean = self.dataset.n_entries / max(self.dataset.n_rows, 1)
        is_far = self.dataset.is_shuffled and mean * (window.stop - window.start).sum() >= _FAR_ENTRIES
        primitives.shuffle(order[:n], key, _NEIGHBOURS if is_far else 1)
        return order[:n]

    @abstractmethod
    def train(
        self, window: Window, data: Data, state: State, order: np.ndarray, key: np.uint64, lanes: np.ndarray
    ) -> None:
        """Visit the active rows once in some lanes, in a random order that is a function of `key`."""

    @abstractmethod
    def certify_rows(
        self, data: Data, state: State, lanes: np.ndarray, order: np.ndarray, totals: np.ndarray
    ) -> None:
        """Add the terms of some rows to `totals`."""

    @abstractmethod
    def sum_alpha(
        self, data: Data, state: State, order: np.ndarray, lanes: np.ndarray, v: np.ndarray
    ) -> None:
        """Add ``s_i alpha_i x_i`` of some rows to `v`, of the shape of w."""

    def certify(
        self,
        data: Data,
        n_entries: int,
        state: State,
        order: np.ndarray,
        lanes: np.ndarray,
        totals: np.ndarray,
    ) -> None:
        """Add the terms of rows of a window with so many entries to `totals`, in the given order, which threads divide."""
        n_parts = self.threads.parts(n_entries * lanes.size)
        # one lane more, so that none share a cache line
        sums = np.tile(NO_ROWS, (n_parts, totals.shape[0] + 1, 1))[:, :-1]
        each = zip(np.array_split(order, n_parts), sums, strict=True)
        self.threads.run([partial(self.certify_rows, data, state, lanes, *part) for part in each])
        for part in sums:
            join_totals(totals, part)

    def summing(self, state: State) -> np.ndarray:
        """Return the lanes of which the read at fixed w sums up w(alpha): where it is not known, or not well enough."""
        lanes = state.lanes_in(START, CERTIFY)
        doubtful = (state.phase == START) | self.always_sums
        if self.acceleration:
            doubt = (np.sqrt(2.0 * state.distance) + 0.5 * state.v_error) * state.v_error
            doubtful |= doubt > _SUMMED_SHARE * state.estimate
        return lanes[doubtful[lanes]]

    # -- the end of a read

    def estimate(self, state: State, trained: np.ndarray) -> Estimates:
        """Estimate the gap by the rows' terms and the distance; the dual objective, which is known exactly, has the rest."""
        gap = np.abs(state.totals[:, Total.GAP])  # negative only by rounding
        at_end = np.zeros(gap.size)
        if self.acceleration:
            self.acceleration.end_pass(state, trained, self.threads)
            if self.problem.free_bias:
                state.distance[trained] += self.cost_of_feasibility(state, trained)
            at_end = state.distance
            gap[trained] += at_end[trained]
            square = state.w_alpha_square
        else:
            square = self.penalty_terms(state.w, state.w, trained)[2]
            square = square.reshape(-1, self.problem.lane_vectors).sum(axis=1)
            state.v_error += ROUNDING * np.sqrt(state.totals[:, Total.N_VISITED] * square)
        return Estimates(gap, state.dual_sum - 0.5 * square + gap, violation(state.totals), at_end)

    def cost_of_feasibility(self, state: State, trained: np.ndarray) -> np.ndarray:
        """Estimate what the gap of dual variables exceeds the rows' terms by, once they are made feasible; (trained,)."""
        raise NotImplementedError

    def feasible_sums(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """Return the totals, and `penalty_terms`, of the dual variables that a free bias makes feasible."""
        raise NotImplementedError

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Set the shrinking thresholds of the next read, from the projected gradients met while training; and kappa.

        Every few accelerated passes all rows return, but not in lanes certified next: that read does not write rows' states.
        """
        some = trained[~state.restore[trained]]
        largest = state.totals[some, Total.VIOLATION_MAX]
        smallest = state.totals[some, Total.VIOLATION_MIN]
        state.high[some] = np.where(largest > 0.0, largest, np.inf)
        state.low[some] = np.where(smallest < 0.0, smallest, -np.inf)
        if self.acceleration:
            if self.acceleration.adapts:
                self.acceleration.set_kappa(state, trained, state.totals[:, Total.GAP])
            due = (state.passes[trained] % RECALL_EVERY == 0) & (state.phase[trained] == TRAIN)
            due &= state.kappa[trained] > 0.0
            state.restore[trained[due]] = True
            state.shrunk[trained[due]] = False

    def certificate(self, state: State) -> dict[str, np.ndarray]:
        """Compute the certificate of every lane after a read at fixed w, and bound the error of v; see `protocol.Solver`.

        With ``v = w(alpha)``, from which w may have drifted, n rows, q_i = ‖x_i‖², p passes, and slope_i the change of a
        row's term with its margin::

            primal = g(w) + Σ C_i loss_i
            gap    = Σ phi_i + bracket,  bracket = g(w) + g*(v) - w·v = ½ ‖w - v‖²
            error  of v: ROUNDING (√(n ‖v‖²) + √(Σ a² q)) where this read summed v up; else `v_error`, to which a pass
                   that does not accelerate adds ROUNDING √(Σ a² q)
            more   = (‖w - v‖ + ½ error) error + ROUNDING ‖w‖ Σ slope_i
        """
        if self.problem.free_bias:
            totals, terms = self.feasible_sums(state)
        else:
            totals = state.totals
            terms = self.penalty_terms(state.w, getattr(state, self.w_alpha), state.lanes_in(CERTIFY))
        # losses of all classes have all their vectors in one lane
        penalty, bracket, v_square = terms.reshape(3, -1, self.problem.lane_vectors).sum(axis=2)
        summed = self.summing(state)
        n_rows = totals[:, Total.N_VISITED]
        size = np.sqrt(totals[:, Total.ALPHA_SQUARE])
        error = state.v_error + (0.0 if self.acceleration else ROUNDING * (state.passes * size))
        error[summed] = (ROUNDING * (np.sqrt(n_rows * v_square) + size))[summed]
        state.v_error[summed] = error[summed]
        norm = np.sqrt(2.0 * penalty)
        if self.problem.free_bias:
            norm += np.abs(state.w[-1]).reshape(norm.size, -1).sum(axis=1)
        more = (np.sqrt(2.0 * bracket) + 0.5 * error) * error + ROUNDING * (norm * totals[:, Total.SLOPE])
        n_terms = n_rows + self.problem.n_features / weight_kernels.BLOCK + 100.0
        primal = penalty + totals[:, Total.LOSS]
        return certificate(primal, totals[:, Total.GAP] + bracket, violation(totals), n_terms, more)

    def penalty_terms(self, w: np.ndarray, v: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        """Sum `weights.add_penalty_terms` of lanes' vectors, (3, all vectors); 0 of others."""
        sums = np.zeros((3, w.shape[1]))
        columns = self.problem.vectors[lanes].reshape(-1)
        n_parts = max(min(self.threads.parts(w.shape[0] * columns.size), columns.size), 1)
        parts = np.array_split(columns, n_parts)
        self.threads.run([partial(weight_kernels.add_penalty_terms, w, v, part, sums) for part in parts])
        return sums

    def steering(self, state: State) -> Steering:
        """Return the parameters of the steps of a pass."""
        nothing = np.zeros(self.problem.n_lanes)
        return Steering(
            high=state.high,
            low=state.low,
            tolerance=getattr(state, "inner_tolerance", nothing),
            omega=getattr(state, "omega", nothing),
            inverse_mu=1.0 / (1.0 + getattr(state, "kappa", nothing)),
            uncounted=(state.moves == 0).astype(np.float64) if self.acceleration else nothing,
        )


def row_memory(
    problem: Problem, options: SolverOptions, alpha_width: int, n_flags: int, n_orders: int = 1
) -> SolverMemory:
    """Count w and acceleration's, copies of w for two threads, the rank, and what a row has: dual variables and flags."""
    n_features = problem.n_features
    n_lanes = problem.n_lanes
    layout = RowLayout(
        alpha_width,
        n_flags,
        has_targets=problem.has_targets,
        n_orders=n_orders,
        centred=problem.free_bias,
        ranked=MOST_UNRANKED < n_features < 1 << 32,  # ranks are uint32
    )
    n_weights = (n_features + 1) * problem.n_vectors
    copies = 1 + (problem.free_bias or options.acceleration != "none") + problem.free_bias
    if n_lanes == 1 and n_weights <= MOST_COPIED:
        copies += 2
    sketches = 16 * weight_kernels.N_BUCKETS * n_lanes
    rank_bytes = 4 * layout.ranked * (n_features + 1)
    more = sketches + rank_bytes
    return SolverMemory(
        layout, 8 * n_weights * copies + more, message=8 * n_weights * (1 + problem.free_bias)
    )


def penalised_blocks(problem: Problem) -> Iterator[slice]:
    """Iterate over blocks of the rows of w without the bias's, small enough for temporary arrays of all vectors."""
    step = max(BLOCK_WEIGHTS // problem.n_vectors, 1)
    return (
        slice(start, min(start + step, problem.n_features)) for start in range(0, problem.n_features, step)
    )

"""The classic twin SVM: each plane by SOR on a dual in which the rows it hugs are an inverse matrix.

The first read sums up ``H = I + Σ C_i x_i x_iᵀ`` over the rows that a plane hugs; its inverse is kept, and the visits
change the dual variables of the other rows alone. It is the problem that `solvers.DualSolver` solves for twin planes, with
half of the variables eliminated: it converges well where that one does not (a small ridge), for features × features numbers
a plane.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from . import kernels, relaxation
from .errors import UsageError
from .kernels import DUAL, VIOLATION_MAX, VIOLATION_MIN
from .problems import Problem
from .solvers import (
    CERTIFY,
    START,
    TRAIN,
    State,
    all_rows,
    new_lanes,
    new_totals,
    row_arrays,
    set_thresholds,
    shuffled_active_rows,
)
from .stream import Arena, RowLayout, Window

_SCIPY_BYTES = 60_000_000  # scipy.linalg and its buffers, which no other training loads: 45 MB were seen


class TwinSorSolver:
    """Twin planes by SOR with the inverse of a matrix of features × features (`kernels.twin_sor_visit`).

    Parameters
    ----------
    problem : Problem
    omega : float or "auto"
    """

    def __init__(self, problem: Problem, omega: float | str = 1.0) -> None:
        self.problem, self.omega, self.loss = problem, omega, problem.loss_code
        n_lanes, self.size = problem.n_lanes, problem.n_features + 1
        self.layout = RowLayout(alpha_width=n_lanes, n_flags=n_lanes)
        self.state_bytes = 3 * 8 * self.size * n_lanes
        matrices = f"{n_lanes} {'matrix' if n_lanes == 1 else 'matrices'} of {self.size:,} x {self.size:,}"
        self.more_memory = {
            "needs": {matrices: 8 * self.size**2 * n_lanes, "scipy": _SCIPY_BYTES},
            "advice": "give a larger --memory, or take --method dual, which needs no matrix",
        }
        self._column = np.empty(self.size)

    def new_state(self) -> State:
        """State before the first read, which sums up the matrices."""
        n_lanes = self.problem.n_lanes
        shape = (self.size, n_lanes)
        lanes = new_lanes(n_lanes, START) | relaxation.new_lane_arrays(n_lanes, self.omega)
        lanes["seen_phase"] = np.full(n_lanes, START, dtype=np.int64)
        # zeros that are never touched take no memory: on resume they are replaced
        matrices = {"inverse": np.zeros((n_lanes, self.size, self.size)), "pulled": np.zeros(shape)}
        return State(np.zeros(shape), np.zeros(shape), new_totals(n_lanes), lanes, matrices=matrices)

    def new_rows(self, arena: Arena, start: int, stop: int) -> None:
        """alpha = 0."""
        arena.alpha[start:stop] = 0.0
        arena.active[start:stop] = 1

    def restore_rows(self, state: State, arena: Arena, start: int, stop: int) -> None:
        """All rows active again, for lanes whose `restore` mark is set during this read."""
        lanes = np.flatnonzero(state.lanes["restore"])
        if lanes.size:
            arena.active[start:stop, lanes] = 1

    def visit(self, window: Window, state: State, order: np.ndarray, key: np.uint64) -> None:
        """Sum up matrices, certify, or train: each lane what its phase says."""
        state.lanes["seen_phase"][:] = state.lanes["phase"]
        starting, certifying, training = (state.phase(phase) for phase in (START, CERTIFY, TRAIN))
        if starting.size:
            self._sum_up(window, state, all_rows(window, order), starting)
        if certifying.size:
            rows = (all_rows(window, order), *row_arrays(window.arena), window.arena.alpha)
            sums = (state.w_alpha.reshape(-1), state.totals, certifying, state.matrices["pulled"])
            kernels.twin_sor_certify(*rows, state.w.reshape(-1), *self._costs(), self.loss, *sums)
        if training.size:
            self._train(window, state, shuffled_active_rows(window, training, order, key), training)

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Invert what was summed up; renew w from alpha where a certificate was made; thresholds, omega."""
        seen, pulled = state.lanes["seen_phase"], state.matrices["pulled"]
        for lane in np.flatnonzero(seen == START):
            _invert(state.matrices["inverse"][lane], self.problem.ridge)
        for lane in np.flatnonzero(seen == CERTIFY):
            # not w(alpha) as the certificate has it: there a rounding error of w is multiplied by H
            state.w[:, lane] = state.matrices["inverse"][lane] @ pulled[:, lane]
            pulled[:, lane] = 0.0
        set_thresholds(state, trained)
        relaxation.go_on(state.lanes, state.w, trained)

    def _sum_up(self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray) -> None:
        n_parts = min(4, os.cpu_count() or 1)
        rows = (order, *row_arrays(window.arena), *self._costs(), lanes)

        def part(number: int) -> None:
            kernels.gram_visit(*rows, number, n_parts, state.matrices["inverse"])

        with ThreadPoolExecutor(n_parts) as pool:
            list(pool.map(part, range(n_parts)))
        state.totals[lanes, VIOLATION_MAX] = state.totals[lanes, VIOLATION_MIN] = 0.0

    def _train(self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray) -> None:
        arena, kept = window.arena, state.lanes
        before = _half_squares(state.w)
        rows = (order, *row_arrays(arena), arena.alpha, arena.active, state.w.reshape(-1), *self._costs())
        steering = (self.loss, kept["high"], kept["low"], kept["omega"], state.totals, lanes)
        kernels.twin_sor_visit(*rows, *steering, state.matrices["inverse"], self._column)
        # `stopping` takes ½‖w‖² off the sum of DUAL; here the quadratic term is in that sum already
        state.totals[lanes, DUAL] += (_half_squares(state.w) - before)[lanes]

    def _costs(self) -> tuple[Any, ...]:
        problem = self.problem
        return problem.bias, problem.sign, problem.cost, problem.lane_fold


def _half_squares(w: np.ndarray) -> np.ndarray:
    return 0.5 * np.einsum("ij,ij->j", w, w)


def _invert(matrix: np.ndarray, ridge: float) -> None:
    """Replace a Gram matrix G by ``(I + G)⁻¹``, in place."""
    from scipy.linalg import lapack  # tens of MB that no other training needs

    matrix[np.diag_indices_from(matrix)] += 1.0
    # LAPACK sees the transpose, whose columns are contiguous: its upper triangle is the lower one here
    _, failed = lapack.dpotrf(matrix.T, lower=0, clean=0, overwrite_a=1)
    if not failed:
        _, failed = lapack.dpotri(matrix.T, lower=0, overwrite_c=1)
    if failed:
        raise UsageError(
            f"ridge {ridge:g} is too small for these rows: their matrix is singular in double precision; give a larger one"
        )
    kernels.mirror(matrix)

"""Each algorithm: the state it needs, one visit of a window, and what the end of a read means to it.

A solver never loops over windows, prints, stops or saves: `train` does. Its state is named arrays, complete whenever a
window is done. A new algorithm is a kernel, a class like these, and a line in `SOLVERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from . import kernels
from .kernels import DUAL, GAP, LOSS, N_STEPS, N_TOTALS, N_VISITED, VIOLATION_MAX, VIOLATION_MIN
from .problems import Problem
from .stream import Arena, RowLayout, Window

START, TRAIN, CERTIFY, DONE = range(4)
"""What a lane does during a read: sum up ``w(alpha)`` of its initial alpha, train, be certified at a fixed w, or rest."""


@dataclass
class State:
    """All that a run is, beside the rows' dual variables.

    Attributes
    ----------
    w : ndarray of float64, shape (n_features + 1, vectors)
        Weights; the last row is the bias's.
    w_alpha : ndarray like `w`
        ``w(alpha)`` as far as the current read has summed it up, for lanes in phase `START` or `CERTIFY`.
    totals : ndarray of float64, shape (lanes, N_TOTALS)
        Sums of the unfinished read (see `kernels`).
    lanes : dict of str to ndarray, each of shape (lanes,)
        What is kept per lane: phase, thresholds, sums, the last certificate.
    read, window : int
        The next window to visit.
    """

    w: np.ndarray
    w_alpha: np.ndarray
    totals: np.ndarray
    lanes: dict[str, np.ndarray] = field(default_factory=dict)
    read: int = 0
    window: int = 0

    def phase(self, *phases: int) -> np.ndarray:
        """Lanes in one of these phases, as ndarray of int64."""
        return np.flatnonzero(np.isin(self.lanes["phase"], phases))

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Named arrays that hold all of it."""
        arrays = {"w": self.w, "totals": self.totals, "position": np.array([self.read, self.window])}
        if self.window and self.phase(START, CERTIFY).size:  # else the sums are not in use
            arrays["w_alpha"] = self.w_alpha
        return arrays | {f"lane_{name}": array for name, array in self.lanes.items()}

    def take(self, arrays: dict[str, np.ndarray]) -> None:
        """Become what `to_arrays` gave, in place."""
        self.w[:] = arrays["w"]
        self.w_alpha[:] = arrays.get("w_alpha", 0.0)
        self.totals[:] = arrays["totals"]
        self.read, self.window = (int(number) for number in arrays["position"])
        self.lanes = {
            name.removeprefix("lane_"): array for name, array in arrays.items() if name.startswith("lane_")
        }


def new_totals(n_lanes: int) -> np.ndarray:
    """Sums before the first row."""
    totals = np.zeros((n_lanes, N_TOTALS))
    totals[:, VIOLATION_MAX], totals[:, VIOLATION_MIN] = -np.inf, np.inf
    return totals


def new_lanes(n_lanes: int, phase: int) -> dict[str, np.ndarray]:
    """What every row-wise dual solver keeps per lane: the phase, the shrinking thresholds, the sum of the dual's terms."""
    return {
        "phase": np.full(n_lanes, phase, dtype=np.int64),
        "high": np.full(n_lanes, np.inf),
        "low": np.full(n_lanes, -np.inf),
        "restore": np.zeros(n_lanes, dtype=bool),
        "dual_sum": np.zeros(n_lanes),
    }


class Solver(Protocol):
    """What `train` asks of an algorithm."""

    layout: RowLayout
    state_bytes: int

    def new_state(self) -> State:
        """State before the first read."""
        ...

    def new_rows(self, arena: Arena, start: int, stop: int) -> None:
        """Initial values of the dual variables of rows that were never visited."""
        ...

    def restore_rows(self, state: State, arena: Arena, start: int, stop: int) -> None:
        """Take back into the active set what shrinking removed, for lanes marked so."""
        ...

    def visit(self, window: Window, state: State, order: np.ndarray, key: np.uint64) -> None:
        """Visit the rows of a window once, in a random order that is a function of `key`."""
        ...

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Draw the algorithm's own conclusions from `state.totals`: thresholds, inner tolerances; for lanes that trained."""
        ...


class DualSolver:
    """Dual coordinate descent for hinge, squared hinge and logistic loss (`kernels.dual_visit`)."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.loss = problem.loss_code
        n_lanes = problem.n_lanes
        values = (
            2 if problem.loss == "log_loss" else 1
        )  # C - alpha is kept beside alpha: subtracting would lose digits
        self.layout = RowLayout(alpha_width=values * n_lanes, n_flags=n_lanes)
        self.state_bytes = 2 * 8 * (problem.n_features + 1) * n_lanes
        self._dots, self._live = np.empty(n_lanes), np.empty(n_lanes, dtype=np.int64)

    def new_state(self) -> State:
        """State before the first read; the logistic loss starts from alpha > 0, whose w is summed up first."""
        n_lanes = self.problem.n_lanes
        shape = (self.problem.n_features + 1, n_lanes)
        lanes = new_lanes(n_lanes, START if self.problem.loss == "log_loss" else TRAIN)
        lanes["inner_tolerance"] = np.full(n_lanes, 1e-2)
        return State(np.zeros(shape), np.zeros(shape), new_totals(n_lanes), lanes)

    def new_rows(self, arena: Arena, start: int, stop: int) -> None:
        """alpha = 0, or as close to it as the logistic loss may start."""
        arena.active[start:stop] = 1
        if self.problem.loss != "log_loss":
            arena.alpha[start:stop] = 0.0
            return
        n_lanes = self.problem.n_lanes
        cost = self.problem.cost[arena.code[start:stop]] * arena.weight[start:stop, None]
        cost[arena.fold[start:stop, None] == self.problem.lane_fold] = 0.0
        alpha = np.minimum(1e-3 * cost, 1e-8)
        arena.alpha[start:stop, :n_lanes] = alpha
        arena.alpha[start:stop, n_lanes : 2 * n_lanes] = cost - alpha

    def restore_rows(self, state: State, arena: Arena, start: int, stop: int) -> None:
        """All rows active again, for lanes whose `restore` mark is set during this read."""
        lanes = np.flatnonzero(state.lanes["restore"])
        if lanes.size:
            arena.active[start:stop, lanes] = 1

    def visit(self, window: Window, state: State, order: np.ndarray, key: np.uint64) -> None:
        """Certify lanes at their fixed w, then train the others."""
        certifying = state.phase(START, CERTIFY)
        if certifying.size:
            self._certify(window, state, all_rows(window, order), certifying)
        training = state.phase(TRAIN)
        if training.size:
            self._train(window, state, shuffled_active_rows(window, training, order, key), training)

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Shrinking thresholds for the next read, and the inner tolerance of Newton's method."""
        kept, totals = state.lanes, state.totals
        for lane in trained[~kept["restore"][trained]]:
            largest, smallest = totals[lane, VIOLATION_MAX], totals[lane, VIOLATION_MIN]
            kept["high"][lane] = largest if largest > 0 else np.inf
            kept["low"][lane] = smallest if smallest < 0 else -np.inf
        for lane in trained:
            if totals[lane, N_STEPS] <= 0.1 * totals[lane, N_VISITED]:
                kept["inner_tolerance"][lane] = max(0.1 * kept["inner_tolerance"][lane], 1e-12)

    def _train(self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray) -> None:
        arena, kept = window.arena, state.lanes
        rows = (order, *_row_arrays(arena), arena.alpha, arena.active, state.w.reshape(-1), *self._costs())
        steering = (kept["high"], kept["low"], kept["inner_tolerance"], state.totals)
        if self.problem.n_lanes == 1:
            kernels.dual_visit(*rows, self.loss, *steering)
        else:
            kernels.dual_visit_lanes(*rows, self.loss, *steering, lanes, self._dots, self._live)

    def _certify(self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray) -> None:
        arena = window.arena
        rows = (order, *_row_arrays(arena), arena.alpha, state.w.reshape(-1), *self._costs())
        sums = (state.w_alpha.reshape(-1), state.totals)
        if self.problem.n_lanes == 1:
            kernels.dual_certify(*rows, self.loss, *sums)
        else:
            kernels.dual_certify_lanes(*rows, self.loss, *sums, lanes, self._dots, self._live)

    def _costs(self) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
        problem = self.problem
        return problem.bias, problem.sign, problem.cost, problem.lane_fold


class CrammerSingerSolver:
    """Sequential dual method for the multiclass SVM of Crammer and Singer (`kernels.crammer_singer_visit`)."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        n_classes = problem.classes.size
        self.n_columns = n_classes * problem.n_lanes
        self.layout = RowLayout(alpha_width=self.n_columns, n_flags=self.n_columns)
        self.state_bytes = 2 * 8 * (problem.n_features + 1) * self.n_columns
        self._margin, self._target, self._step = (np.empty(n_classes) for _ in range(3))

    def new_state(self) -> State:
        """State before the first read."""
        n_lanes = self.problem.n_lanes
        shape = (self.problem.n_features + 1, self.n_columns)
        lanes = new_lanes(n_lanes, TRAIN) | {"shrink_tolerance": np.ones(n_lanes)}
        return State(np.zeros(shape), np.zeros(shape), new_totals(n_lanes), lanes)

    def new_rows(self, arena: Arena, start: int, stop: int) -> None:
        """alpha = 0."""
        arena.alpha[start:stop] = 0.0
        arena.active[start:stop] = 1

    def restore_rows(self, state: State, arena: Arena, start: int, stop: int) -> None:
        """All classes of all rows active again, for lanes whose `restore` mark is set during this read."""
        for lane in np.flatnonzero(state.lanes["restore"]).tolist():
            arena.active[start:stop, self._columns(lane)] = 1

    def visit(self, window: Window, state: State, order: np.ndarray, key: np.uint64) -> None:
        """Certify lanes at their fixed w, then train the others, one lane after another."""
        arena, problem = window.arena, self.problem
        costs = (problem.bias, problem.cost, problem.lane_fold)
        for lane in state.phase(START, CERTIFY).tolist():
            rows = (all_rows(window, order), *_row_arrays(arena), arena.alpha, state.w.reshape(-1), *costs)
            place = (lane, self._columns(lane).start, self.n_columns)
            kernels.crammer_singer_certify(
                *rows, *place, state.w_alpha.reshape(-1), state.totals, self._margin
            )
        for lane in state.phase(TRAIN).tolist():
            columns = self._columns(lane)
            chosen = shuffled_active_rows(window, np.arange(columns.start, columns.stop), order, key)
            rows = (chosen, *_row_arrays(arena), arena.alpha, arena.active, state.w.reshape(-1), *costs)
            place = (lane, columns.start, self.n_columns)
            kernels.crammer_singer_visit(*rows, *place, state.totals, self._margin, self._target, self._step)

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Restore what was shrunk where the rest is solved to the shrink tolerance, which is then halved."""
        kept = state.lanes
        seen = violation(state.totals)
        for lane in trained:
            # a lane that goes on to a certificate is left as it is: a read at fixed w does not write rows' states back
            open_lane = kept["phase"][lane] == TRAIN and kept["shrunk"][lane] and not kept["restore"][lane]
            if open_lane and seen[lane] < kept["shrink_tolerance"][lane]:
                kept["restore"][lane] = True
                kept["shrunk"][lane] = False
                kept["shrink_tolerance"][lane] *= 0.5

    def _columns(self, lane: int) -> slice:
        n_classes = self.problem.classes.size
        return slice(lane * n_classes, (lane + 1) * n_classes)


def _row_arrays(arena: Arena) -> tuple[np.ndarray, ...]:
    """The arrays with which every row kernel begins, after the order."""
    return arena.indptr, arena.feature, arena.value, arena.code, arena.weight, arena.fold


def all_rows(window: Window, order: np.ndarray) -> np.ndarray:
    """Places of all rows of a window as they lie, in the front of `order`."""
    n = 0
    for _, start, stop in window.pieces():
        order[n : n + stop - start] = np.arange(start, stop)
        n += stop - start
    return order[:n]


def shuffled_active_rows(window: Window, flags: np.ndarray, order: np.ndarray, key: np.uint64) -> np.ndarray:
    """Places of the rows with any of these flags, in a random order that is a function of `key`, in the front of `order`."""
    n = kernels.active_rows(window.row_start, window.row_stop, window.arena.active, flags, order)
    kernels.shuffle(order[:n], key)
    return order[:n]


SOLVERS: dict[tuple[str, str], Callable[[Problem], Solver]] = {
    ("squared_hinge", "dual"): DualSolver,
    ("hinge", "dual"): DualSolver,
    ("log_loss", "dual"): DualSolver,
    ("crammer_singer", "dual"): CrammerSingerSolver,
}
"""Solver of each (loss, method)."""


def certificate(state: State) -> dict[str, np.ndarray]:
    """Objectives and gap of every lane at the end of a read at fixed w (phase `CERTIFY`).

    With ``w`` as it stands and ``v = w(alpha)``, primal(w) - dual(alpha) is ``Σ phi_i(w) + ½‖w - v‖²``: exact even where
    `w` has drifted from `v`.
    """
    totals = state.totals
    squared = np.einsum("ij,ij->j", state.w, state.w)
    squared_alpha = np.einsum("ij,ij->j", state.w_alpha, state.w_alpha)
    drift = np.array(
        [_squared_distance(state.w[:, lane], state.w_alpha[:, lane]) for lane in range(state.w.shape[1])]
    )
    per_lane = state.w.shape[1] // totals.shape[0]  # Crammer–Singer has all its vectors in one lane
    squared, squared_alpha, drift = (
        x.reshape(-1, per_lane).sum(axis=1) for x in (squared, squared_alpha, drift)
    )
    return {
        "primal": 0.5 * squared + totals[:, LOSS],
        "dual": totals[:, DUAL] - 0.5 * squared_alpha,
        "gap": np.maximum(totals[:, GAP], 0.0) + 0.5 * drift,
        "violation": violation(totals),
    }


def _squared_distance(u: np.ndarray, v: np.ndarray) -> float:
    """‖u - v‖², in pieces so that no array of the size of `u` is made."""
    total = 0.0
    for start in range(0, u.size, 1 << 16):
        difference = u[start : start + (1 << 16)] - v[start : start + (1 << 16)]
        total += float(difference @ difference)
    return total


def violation(totals: np.ndarray) -> np.ndarray:
    """LIBLINEAR's measure per lane: the largest of M - m, |M| and |m|; 0 where no row was visited."""
    largest, smallest = totals[:, VIOLATION_MAX], totals[:, VIOLATION_MIN]
    seen = np.isfinite(largest) & np.isfinite(smallest)
    largest, smallest = np.where(seen, largest, 0.0), np.where(seen, smallest, 0.0)
    return np.maximum.reduce([largest - smallest, np.abs(largest), np.abs(smallest)])

"""Each algorithm: the state it needs, one visit of a window, and what the end of a read means to it.

A solver never loops over windows, prints, stops or saves: `loop.Loop` does. Its state is named arrays, complete whenever a
window is done. A new algorithm is a kernel, a class like these, and a line in `SOLVERS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

import numpy as np

from . import crammer_singer_kernels, dual_kernels, kernels, relaxation, twin_kernels
from .arenas import RowArena, RowLayout
from .errors import UsageError
from .kernels import DUAL, GAP, LOSS, N_STEPS, N_TOTALS, N_VISITED, VIOLATION_MAX, VIOLATION_MIN
from .memory_plan import Paging
from .problems import Problem
from .stream import Window

START, TRAIN, CERTIFY, DONE = range(4)
"""What a lane does during a read: sum up ``w(alpha)`` of its initial alpha, train, be certified at a fixed w, or rest."""

Start = Literal["alpha", "alpha and w", "w"]
"""What a warm start brings: alpha, from which the first read makes w; alpha and the w that belongs to it; or w alone."""


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
    rows : dict of str to ndarray
        What a solver over columns keeps per row.
    read, window : int
        The next window to visit.
    matrices : dict of str to ndarray
        What else an algorithm keeps.
    """

    w: np.ndarray
    w_alpha: np.ndarray
    totals: np.ndarray
    lanes: dict[str, np.ndarray] = field(default_factory=dict)
    rows: dict[str, np.ndarray] = field(default_factory=dict)
    read: int = 0
    window: int = 0
    matrices: dict[str, np.ndarray] = field(default_factory=dict)

    def phase(self, *phases: int) -> np.ndarray:
        """Lanes in one of these phases, as ndarray of int64."""
        return np.flatnonzero(np.isin(self.lanes["phase"], phases))

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Named arrays that hold all of it."""
        arrays = {"w": self.w, "totals": self.totals, "position": np.array([self.read, self.window])}
        if self.window and self.phase(START, CERTIFY).size:  # else the sums are not in use
            arrays["w_alpha"] = self.w_alpha
        arrays |= {f"row_{name}": array for name, array in self.rows.items()}
        arrays |= {f"matrix_{name}": array for name, array in self.matrices.items()}
        return arrays | {f"lane_{name}": array for name, array in self.lanes.items()}

    def load_arrays(self, arrays: dict[str, np.ndarray]) -> None:
        """Become what `to_arrays` gave, in place; `KeyError` where some of it is missing."""
        kept = {f"lane_{name}" for name in self.lanes} | {f"row_{name}" for name in self.rows}
        if missing := kept.difference(arrays):
            raise KeyError(min(missing))
        self.w[:] = arrays["w"]
        self.w_alpha[:] = arrays.get("w_alpha", 0.0)
        self.totals[:] = arrays["totals"]
        self.read, self.window = (int(number) for number in arrays["position"])
        # taken over, not copied: they may be most of the memory there is
        self.matrices = {name: arrays[f"matrix_{name}"] for name in self.matrices}
        self.lanes = {
            name.removeprefix("lane_"): array for name, array in arrays.items() if name.startswith("lane_")
        }
        # not copied: there may not be room for them twice
        self.rows = {
            name.removeprefix("row_"): array for name, array in arrays.items() if name.startswith("row_")
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
    """What `loop.Loop` asks of an algorithm."""

    @property
    def layout(self) -> Any:
        """A `memory_plan.Layout`: what is read, and what is kept of every row."""
        ...

    @property
    def state_bytes(self) -> int:
        """What the state takes in memory, but for what is kept of rows."""
        ...

    @property
    def rows_bytes(self) -> int:
        """What is kept in memory of all rows."""
        ...

    @property
    def more_memory(self) -> Mapping[str, Any]:
        """What else it takes, as ``needs`` and ``advice`` of `memory_plan.make_plan`."""
        ...

    @property
    def paging(self) -> Paging | None:
        """What it takes to keep in a file what is kept of all rows; None where that is nothing."""
        ...

    @property
    def warm_start(self) -> Start:
        """What it begins with after another run."""
        ...

    def page_rows(self, folder: Path, page_rows: int) -> Any:
        """Keep what is kept of all rows in pages of so many in a file, from before `new_state` on.

        Returns
        -------
        row_scores.PagedRows or None
            None where `page_rows` is 0: in memory, or nothing is kept.
        """
        ...

    def new_state(self) -> State:
        """State before the first read."""
        ...

    def new_rows(self, arena: RowArena, start: int, stop: int) -> None:
        """Initial values of the dual variables of rows that were never visited."""
        ...

    def restore_rows(self, state: State, arena: RowArena, start: int, stop: int) -> None:
        """Take back into the active set what shrinking removed, for lanes marked so."""
        ...

    def visit(self, window: Window, state: State, order: np.ndarray, key: np.uint64) -> None:
        """Visit the rows of a window once, in a random order that is a function of `key`."""
        ...

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Draw the algorithm's own conclusions from `state.totals`: thresholds, inner tolerances; for lanes that trained."""
        ...

    def certificate(self, state: State) -> dict[str, np.ndarray]:
        """Objectives, gap and violation of every lane at the end of a read at fixed w (phase `CERTIFY`)."""
        ...

    def violation(self, state: State) -> np.ndarray:
        """LIBLINEAR's measure of how far each lane is from the optimum, from the sums of a read that ends."""
        ...

    def adopt_certified_w(self, state: State, lane: int) -> None:
        """Replace what drifts while a lane trains by what the read at fixed w has summed up."""
        ...

    def estimated_primal(self, state: State, lane: int, estimate: float) -> float:
        """The primal objective after a training read, as well as it is known, given the estimate of the gap."""
        ...


class _RowSolver:
    """What solvers over rows have in common: w is ``w(alpha)``, and alpha is on disk."""

    rows_bytes = 0
    more_memory: Mapping[str, Any] = MappingProxyType({})
    paging = None
    warm_start: Start = "alpha and w"

    def page_rows(self, folder: Path, page_rows: int) -> None:
        """Nothing is kept of all rows."""

    def certificate(self, state: State) -> dict[str, np.ndarray]:
        """See `certificate`."""
        return certificate(state)

    def violation(self, state: State) -> np.ndarray:
        """See `violation`."""
        return violation(state.totals)

    def adopt_certified_w(self, state: State, lane: int) -> None:
        """Go on from the w that alpha gives."""
        width = state.w.shape[1] // state.lanes["phase"].size
        columns = slice(lane * width, (lane + 1) * width)
        state.w[:, columns] = state.w_alpha[:, columns]
        state.w_alpha[:, columns] = 0.0

    def estimated_primal(self, state: State, lane: int, estimate: float) -> float:
        """The dual objective, which is known exactly, and the estimate of the gap."""
        width = state.w.shape[1] // state.lanes["phase"].size
        w = state.w[:, lane * width : (lane + 1) * width]
        dual = state.lanes["dual_sum"][lane] - 0.5 * float(np.einsum("ij,ij->", w, w))
        return float(dual + estimate)


class DualSolver(_RowSolver):
    """Dual coordinate descent for hinge, squared hinge, logistic loss and twin planes (`dual_kernels.dual_visit`).

    Parameters
    ----------
    problem : Problem
    omega : float or "auto"
        Over-relaxation of the closed-form steps (see `relaxation`).
    """

    def __init__(self, problem: Problem, omega: float | str = 1.0) -> None:
        self.problem, self.omega = problem, omega
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
        lanes |= relaxation.new_lane_arrays(n_lanes, self.omega)
        return State(np.zeros(shape), np.zeros(shape), new_totals(n_lanes), lanes)

    def new_rows(self, arena: RowArena, start: int, stop: int) -> None:
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

    def restore_rows(self, state: State, arena: RowArena, start: int, stop: int) -> None:
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
        set_thresholds(state, trained)
        for lane in trained:
            if totals[lane, N_STEPS] <= 0.1 * totals[lane, N_VISITED]:
                kept["inner_tolerance"][lane] = max(0.1 * kept["inner_tolerance"][lane], 1e-12)
        relaxation.go_on(kept, state.w, trained)

    def _train(self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray) -> None:
        arena, kept = window.arena, state.lanes
        rows = (order, *row_arrays(arena), arena.alpha, arena.active, state.w.reshape(-1), *self._costs())
        steering = (kept["high"], kept["low"], kept["inner_tolerance"], kept["omega"], state.totals)
        if self.problem.n_lanes == 1:
            dual_kernels.dual_visit(*rows, self.loss, *steering)
        else:
            dual_kernels.dual_visit_lanes(*rows, self.loss, *steering, lanes, self._dots, self._live)

    def _certify(self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray) -> None:
        arena = window.arena
        rows = (order, *row_arrays(arena), arena.alpha, state.w.reshape(-1), *self._costs())
        sums = (state.w_alpha.reshape(-1), state.totals)
        if self.problem.n_lanes == 1:
            dual_kernels.dual_certify(*rows, self.loss, *sums)
        else:
            dual_kernels.dual_certify_lanes(*rows, self.loss, *sums, lanes, self._dots, self._live)

    def _costs(self) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
        problem = self.problem
        return problem.bias, problem.sign, problem.cost, problem.lane_fold


class CrammerSingerSolver(_RowSolver):
    """Sequential dual method for the multiclass SVM of Crammer and Singer (`crammer_singer_kernels`)."""

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

    def new_rows(self, arena: RowArena, start: int, stop: int) -> None:
        """alpha = 0."""
        arena.alpha[start:stop] = 0.0
        arena.active[start:stop] = 1

    def restore_rows(self, state: State, arena: RowArena, start: int, stop: int) -> None:
        """All classes of all rows active again, for lanes whose `restore` mark is set during this read."""
        for lane in np.flatnonzero(state.lanes["restore"]).tolist():
            arena.active[start:stop, self._columns(lane)] = 1

    def visit(self, window: Window, state: State, order: np.ndarray, key: np.uint64) -> None:
        """Certify lanes at their fixed w, then train the others, one lane after another."""
        arena, problem = window.arena, self.problem
        costs = (problem.bias, problem.cost, problem.lane_fold)
        for lane in state.phase(START, CERTIFY).tolist():
            rows = (all_rows(window, order), *row_arrays(arena), arena.alpha, state.w.reshape(-1), *costs)
            place = (lane, self._columns(lane).start, self.n_columns)
            crammer_singer_kernels.crammer_singer_certify(
                *rows, *place, state.w_alpha.reshape(-1), state.totals, self._margin
            )
        for lane in state.phase(TRAIN).tolist():
            columns = self._columns(lane)
            chosen = shuffled_active_rows(window, np.arange(columns.start, columns.stop), order, key)
            rows = (chosen, *row_arrays(arena), arena.alpha, arena.active, state.w.reshape(-1), *costs)
            place = (lane, columns.start, self.n_columns)
            crammer_singer_kernels.crammer_singer_visit(
                *rows, *place, state.totals, self._margin, self._target, self._step
            )

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


_SCIPY_BYTES = 60_000_000  # scipy.linalg and its buffers, which no other solver loads: 45 MB were seen


class TwinSorSolver(_RowSolver):
    """Twin planes by SOR with the inverse of a matrix of features × features (`twin_kernels.twin_sor_visit`).

    The first read sums up ``H = I + Σ C_i x_i x_iᵀ`` over the rows that a plane hugs, and Bᵀa of the dual variables that a
    warm start brings. The inverse of H is kept, and the visits change the dual variables of the other rows alone. It is
    the problem that `DualSolver` solves for twin planes, with half of the variables eliminated: it converges well where
    that one does not (a small ridge).

    Parameters
    ----------
    problem : Problem
    omega : float or "auto"
    """

    warm_start: Start = "alpha"

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

    def new_rows(self, arena: RowArena, start: int, stop: int) -> None:
        """alpha = 0."""
        arena.alpha[start:stop] = 0.0
        arena.active[start:stop] = 1

    def restore_rows(self, state: State, arena: RowArena, start: int, stop: int) -> None:
        """All rows active again, for lanes whose `restore` mark is set during this read."""
        lanes = np.flatnonzero(state.lanes["restore"])
        if lanes.size:
            arena.active[start:stop, lanes] = 1

    def visit(self, window: Window, state: State, order: np.ndarray, key: np.uint64) -> None:
        """Sum up matrices, certify, or train: each lane what its phase says."""
        state.lanes["seen_phase"][:] = state.lanes["phase"]
        starting, certifying, training = (state.phase(phase) for phase in (START, CERTIFY, TRAIN))
        if starting.size:
            self._certify(window, state, all_rows(window, order), starting)  # at w = 0, for `pulled` and DUAL
            self._sum_up(window, state, all_rows(window, order), starting)
        if certifying.size:
            self._certify(window, state, all_rows(window, order), certifying)
        if training.size:
            self._train(window, state, shuffled_active_rows(window, training, order, key), training)

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Invert what was summed up; renew w from alpha where a certificate was made; thresholds, omega."""
        seen, pulled = state.lanes["seen_phase"], state.matrices["pulled"]
        for lane in np.flatnonzero(seen == START):
            _invert(state.matrices["inverse"][lane], self.problem.ridge)
        for lane in np.flatnonzero((seen == START) | (seen == CERTIFY)):
            # not w(alpha) as the certificate has it: there a rounding error of w is multiplied by H
            w = state.w[:, lane] = state.matrices["inverse"][lane] @ pulled[:, lane]
            if seen[lane] == START:
                # `stopping` takes ½‖w‖² off this sum, and the quadratic term is ½ aᵀBH⁻¹Bᵀa
                state.lanes["dual_sum"][lane] += 0.5 * float(w @ w - w @ pulled[:, lane])
            pulled[:, lane] = 0.0
        set_thresholds(state, trained)
        relaxation.go_on(state.lanes, state.w, trained)

    def _certify(self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray) -> None:
        rows = (order, *row_arrays(window.arena), window.arena.alpha)
        sums = (state.w_alpha.reshape(-1), state.totals, lanes, state.matrices["pulled"])
        twin_kernels.twin_sor_certify(*rows, state.w.reshape(-1), *self._costs(), self.loss, *sums)

    def _sum_up(self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray) -> None:
        n_parts = min(4, os.cpu_count() or 1)
        rows = (order, *row_arrays(window.arena), *self._costs(), lanes)

        def part(number: int) -> None:
            twin_kernels.gram_visit(*rows, number, n_parts, state.matrices["inverse"])

        with ThreadPoolExecutor(n_parts) as pool:
            list(pool.map(part, range(n_parts)))
        state.totals[lanes, VIOLATION_MAX] = state.totals[lanes, VIOLATION_MIN] = 0.0

    def _train(self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray) -> None:
        arena, kept = window.arena, state.lanes
        before = _half_squares(state.w)
        rows = (order, *row_arrays(arena), arena.alpha, arena.active, state.w.reshape(-1), *self._costs())
        steering = (self.loss, kept["high"], kept["low"], kept["omega"], state.totals, lanes)
        twin_kernels.twin_sor_visit(*rows, *steering, state.matrices["inverse"], self._column)
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
    twin_kernels.mirror(matrix)


def set_thresholds(state: State, trained: np.ndarray) -> None:
    """Shrinking thresholds for the next read, from the projected gradients that lanes met while training."""
    kept, totals = state.lanes, state.totals
    for lane in trained[~kept["restore"][trained]]:
        largest, smallest = totals[lane, VIOLATION_MAX], totals[lane, VIOLATION_MIN]
        kept["high"][lane] = largest if largest > 0 else np.inf
        kept["low"][lane] = smallest if smallest < 0 else -np.inf


def row_arrays(arena: RowArena) -> tuple[np.ndarray, ...]:
    """The arrays with which every row kernel begins, after the order."""
    return arena.indptr, kernels.unsigned(arena.feature), arena.value, arena.code, arena.weight, arena.fold


def all_rows(window: Window, order: np.ndarray) -> np.ndarray:
    """Places of all rows of a window as they lie, in the front of `order`."""
    n = 0
    for _, start, stop in window.chunk_ranges():
        order[n : n + stop - start] = np.arange(start, stop)
        n += stop - start
    return order[:n]


def shuffled_active_rows(window: Window, flags: np.ndarray, order: np.ndarray, key: np.uint64) -> np.ndarray:
    """Places of the rows with any of these flags, in a random order that is a function of `key`, in the front of `order`."""
    n = kernels.active_rows(window.start, window.stop, window.arena.active, flags, order)
    kernels.shuffle(order[:n], key)
    return order[:n]


SOLVERS: dict[tuple[str, str], Callable[..., Solver]] = {
    ("squared_hinge", "dual"): DualSolver,
    ("hinge", "dual"): DualSolver,
    ("log_loss", "dual"): DualSolver,
    ("crammer_singer", "dual"): CrammerSingerSolver,
    ("twin", "dual"): DualSolver,
    ("twin", "sor"): TwinSorSolver,
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
        with np.errstate(all="ignore"):  # the loop says what is wrong
            difference = u[start : start + (1 << 16)] - v[start : start + (1 << 16)]
            total += float(difference @ difference)
    return total


def violation(totals: np.ndarray) -> np.ndarray:
    """LIBLINEAR's measure per lane: the largest of M - m, |M| and |m|; 0 where no row was visited."""
    largest, smallest = totals[:, VIOLATION_MAX], totals[:, VIOLATION_MIN]
    seen = np.isfinite(largest) & np.isfinite(smallest)
    largest, smallest = np.where(seen, largest, 0.0), np.where(seen, smallest, 0.0)
    return np.maximum.reduce([largest - smallest, np.abs(largest), np.abs(smallest)])

"""Newton's method for narrow data: one read at fixed w gives objective, gradient, Hessian and certificate.

The quadratic model is minimised in memory, and the next read is made where that leads. The read also evaluates the
objective at other lengths of the step it was led by, so that a step which was too long costs one read. With a_i minus the
slope of the loss at the row's margin every row's term of the gap is 0, and the penalty's is the gap: ``½‖w - v‖²``, where
``v = Σ s_i a_i x_i``.

Sums are made in parts that do not depend on the number of threads. There are no dual variables on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from ..dataset.dataset import Dataset
from ..kernels import newton as kernels
from ..kernels.newton import AT_POINT, FAR, LENGTHS, N_LINE, NEAR, Point, Scratch, Sums
from ..kernels.primitives import UNIT, Total
from ..stream.arenas import RowLayout, Window, empty_window
from ..stream.memory_plan import SolverMemory
from .problem import Problem
from .protocol import (
    CERTIFY,
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
from .quadratic_model import MatrixModel, Penalty, minimise, slope_norms, solve_positive

_PARTS = 4  # of a window that are summed up
_MOST_IN_PARTS = 1 << 23  # elements of all lanes' Hessians, of which every part of a window sums up its own
_ENOUGH = 0.5  # of the decrease at the best length, with which a step is accepted
_LONG = 2.0  # best length of a step from which on the next is twice Newton's: logistic loss with a large C
_CLOSE = 1e-2  # relative gap from which on reads no longer evaluate other lengths
_LINE_FALL, _LEAST_LINE = 0.1, 1e-3  # of the curvature of rows on a straight piece: by a step, at least
_TOO_LONG = 1e-3  # length tried next where all that were evaluated were too long

ARRAYS = (
    Array("v", "Σ s_i a_i x_i over s_i a_i >= 0, and over others", axes=("lanes", 2, "features")),
    Array("hessian", "lower triangle of Σ C_i l'' x_i x_iᵀ", axes=("lanes", "features", "features")),
    Array("line", "losses at lengths of the step, and terms of dual variables", axes=("lanes", N_LINE)),
    Array("start", "Σ s_i a_i x_i at w = 0", axes=("lanes", "features")),
    Array("step", "step that led to w", axes=("lanes", "features")),
    START_NORM,
    Array("base_primal", "objective where the step begins", initial=np.nan),
    Array("begun", "the sums are those of a read at w", bool),
    Array("searches", "a read evaluates other lengths of the step", bool, True),
    Array("line_share", "share of the curvature of rows on a straight piece", initial=1.0),
)
"""State of `NewtonSolver`: sums of a read (`kernels.newton.Sums`, with the totals), and the steps."""


class NewtonSolver(Solver):
    """Newton's method for smooth losses of margins and targets, for data with few features.

    Problem: ``min_w g(w) + Σ C_i loss_i(s_i w·x_i)`` of every lane, g being L2, L1 or both. A read at w gives the objective,
    its gradient and its Hessian, and the next read is made at the minimum of that model, or nearer where it led too far.
    Solution: the w of a read whose certificate is good enough. Source: Yuan, Ho, Lin, JMLR 13 (2012), newGLMNET, for L1.
    """

    warm_start: Start = "w"
    arrays = ARRAYS

    def __init__(self, problem: Problem, dataset: Dataset, options: SolverOptions) -> None:
        super().__init__(problem, dataset, options)
        self._size = problem.n_features + 1
        self._n_penalised = self._size - problem.free_bias
        self._parts: list[Sums] = []
        self._scratch: list[Scratch] = []

    @staticmethod
    def memory_of(problem: Problem, dataset: Dataset, options: SolverOptions) -> SolverMemory:
        """Count the Hessian of every lane, in each of the sums made at a time, those of a solution, and some vectors."""
        n_lanes = problem.n_lanes
        size = problem.n_features + 1
        n_parts = _count_parts(problem)
        matrices = 8 * n_lanes * size**2
        vectors = 8 * size * n_lanes
        sums = matrices + 3 * vectors + 8 * 64 * n_lanes
        of_model = 8 * size**2 if problem.l1.any() else 0  # of the support
        blocks = 8 * size * (_PARTS * kernels.BLOCK + 3 * LENGTHS.size)
        l1_way = "--method working-set with the column layout ('streamcd columns DATASET' makes it)"
        way = l1_way if problem.l1.any() else "--method dual"
        return SolverMemory(
            RowLayout(0, 0, has_targets=problem.has_targets, centred=problem.free_bias),
            matrices + 16 * vectors + (sums * n_parts if n_parts > 1 else 0) + of_model + blocks,
            message=sums,
            advice=f"give a larger --memory, or take {way}, which needs no matrix",
        )

    def _sums_of(self, state: State) -> Sums:
        return Sums(*(getattr(state, name) for name in Sums._fields))

    def load_kernels(self, dataset: Dataset, state: State) -> None:
        """Compile the kernels by visiting no rows, before windows are allocated."""
        self.layout.decoder(dataset, 0, 0)
        window = empty_window(self.layout.new_arena(dataset, 2, 0))
        self.add_window(window, state, window.chunks)
        minimise(MatrixModel(np.eye(1), np.ones(1)), np.zeros(1), Penalty.of_lane(self.problem, 0))
        solve_positive(np.eye(1), np.ones(1))
        self.certificate(state)

    # -- a read

    def visit(self, window: Window, state: State, order: np.ndarray, key: np.uint64) -> None:
        """Add a window's rows to the sums of its read.

        Given: w, `step`, which led to it, and `line_share`. Changed in place: `v`, `hessian`, `line`, `start`, the totals;
        with the first window of lanes that train again after their end also w and `step`. `order` is room for the rows.
        """
        if window.number == 0:
            self.begin_read(state)
        self.add_window(window, state, order)

    def begin_read(self, state: State) -> None:
        """Clear the sums; lanes that train again after their end are moved first."""
        lanes = state.lanes_in(TRAIN, CERTIFY)
        self._move_lanes(state, state.lanes_in(TRAIN))
        for array in self._sums_of(state):
            array[lanes] = 0.0
        state.step[state.lanes_in(CERTIFY)] = 0.0
        state.begun[lanes] = True

    def add_window(self, window: Window, state: State, order: np.ndarray) -> None:
        """Add a window's rows to the sums, in parts: of the rows, or of the Hessian's rows where that is large."""
        rows = window.arena.rows
        order = all_rows(window, order)
        lanes = state.lanes_in(TRAIN, CERTIFY)
        problem = self.problem
        size = self._size
        step = state.step
        searches = state.searches & step.any(axis=1)
        point = Point(_by_lane(state.w), step, state.line_share, searches, np.isnan(state.start_norm))
        sums = self._sums_of(state)
        n_parts = _count_parts(problem)
        while len(self._scratch) < _PARTS:
            block = kernels.BLOCK
            self._scratch.append(Scratch(np.zeros(block, np.int64), np.zeros(block), np.zeros((block, size))))
            if n_parts > 1:
                self._parts.append(Sums(*map(np.zeros_like, sums)))
        if self._parts:
            whole = np.array([0, size])
            each = list(zip(np.array_split(order, n_parts), [whole] * n_parts, self._parts, strict=True))
        else:  # tiles of about the same area, each with all rows of the data
            ends = np.rint(size * np.sqrt(np.arange(_PARTS + 1) / _PARTS)).astype(np.int64)
            each = [(order, ends[k : k + 2].copy(), sums) for k in range(_PARTS)]
        self.threads.run(
            [
                partial(kernels.newton_visit, some, rows, problem.costs, lanes, point, tile, of_part, scratch)
                for (some, tile, of_part), scratch in zip(each, self._scratch, strict=True)
            ]
        )
        for part in self._parts:
            for added, total in zip(part, sums, strict=True):
                for lane in lanes.tolist():
                    total[lane] += added[lane]
                    added[lane] = 0.0

    # -- a read by several workers

    def to_send(self, state: State) -> np.ndarray:
        """Return the weights of the read, and the steps that led there, as columns."""
        return np.hstack([state.w, state.step.T])

    def begin_part(self, state: State, sent: np.ndarray) -> None:
        """Take what `to_send` returned, in a worker's new state."""
        n = state.w.shape[1]
        state.w[:] = sent[:, :n]
        state.step[:] = sent[:, n:].T
        state.totals[:] = 0.0

    def sums(self, state: State) -> dict[str, np.ndarray]:
        """Return copies of the sums of a read."""
        return {name: array.copy() for name, array in self._sums_of(state)._asdict().items()}

    def take_sums(self, state: State, sums: Mapping[str, np.ndarray], lanes: np.ndarray) -> None:
        """Take the workers' sums over all rows."""
        for name, array in self._sums_of(state)._asdict().items():
            array[lanes] = sums[name][lanes]

    # -- the end of a read

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Store ``‖∇f(0)‖``, which the first read has summed, and move w of lanes that go on to where the next is made."""
        norm = state.start_norm
        norm[:] = np.where(np.isnan(norm) & state.begun, self._start_norm(state), norm)
        self._move_lanes(state, trained[state.phase[trained] == TRAIN])

    def certificate(self, state: State) -> dict[str, np.ndarray]:
        """Compute the certificate of every lane by dual variables made of the read's; see `protocol.certificate`."""
        w = _by_lane(state.w)
        totals = state.totals
        curve = 0.5 / self.problem.l2 if self.problem.l2 else 0.0
        with np.errstate(all="ignore"):  # the loop says what is wrong
            primal = self.problem.penalty(state.w) + totals[:, Total.LOSS]
            norm = np.sqrt(np.einsum("ij,ij->i", w, w))
            size = np.sqrt(totals[:, Total.N_VISITED]) * norm + np.sqrt(totals[:, Total.ALPHA_SQUARE])
            error = ROUNDING * size
            gap, v = self._dual_point(state, error)
            more = ROUNDING * (norm * totals[:, Total.SLOPE])
            for lane in range(self.problem.n_lanes):
                l1, l2, free_bias = Penalty.of_lane(self.problem, lane)
                n = self._size - free_bias
                bracket, slope = kernels.penalty_terms(w[lane, :n], v[lane, :n], 1.0, l1, l2)
                gap[lane] += bracket
                more[lane] += (slope + curve * error[lane]) * error[lane]
        return certificate(primal, gap, self._violation(state), totals[:, Total.N_VISITED] + 100.0, more)

    def _dual_point(self, state: State, error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows' terms of the gap, (lanes,), and v, (lanes, D), of dual variables that prove it.

        They are the a_i times r of their side: 1, but for a bias that is not penalised, which asks for Σ s_i a_i = 0, so
        the heavier side is scaled down. L1 alone asks for ``|v_j| <= l1``, so both are; `error` bounds that of v.
        """
        sides = state.v
        line = state.line
        shares = np.ones((self.problem.n_lanes, 2))
        if self.problem.free_bias:
            sizes = np.abs(sides[:, :, -1])
            np.divide(sizes.min(axis=1, keepdims=True), sizes, out=shares, where=sizes > 0)
        if not self.problem.l2:
            v = np.einsum("lsj,ls->lj", sides, shares)[:, : self._n_penalised]
            l1 = self.problem.l1
            shares *= np.minimum(l1 / np.maximum(np.abs(v).max(axis=1) + error, l1), 1.0)[:, None]
        short = 1.0 - shares
        near = line[:, NEAR : NEAR + 2]
        far = line[:, FAR : FAR + 2]
        return (short * far + short * short * near).sum(axis=1), np.einsum("lsj,ls->lj", sides, shares)

    def _violation(self, state: State) -> np.ndarray:
        """Return `relative_violation`; with l1 of the 1-norm of the smallest subgradient."""
        norm = slope_norms(self.problem, _by_lane(state.w), state.v.sum(axis=1))
        return self.relative_violation(state, norm, self._start_norm(state))

    def _start_norm(self, state: State) -> np.ndarray:
        start = state.start
        return slope_norms(self.problem, np.zeros_like(start), start)

    # -- steps

    def _move_lanes(self, state: State, lanes: np.ndarray) -> None:
        """Move those of some lanes whose sums are of their w."""
        begun = state.begun
        for lane in lanes[begun[lanes]].tolist():
            self._move(state, lane)
            begun[lane] = False

    def _move(self, state: State, lane: int) -> None:
        """Move w of a lane to where the next read is made: along the last step, if it was too long, or by a new one."""
        step = state.step[lane]
        objectives = self._objectives(state, lane)
        here = objectives[AT_POINT]
        best = int(np.argmin(objectives))
        left = here - objectives[best]
        whole = objectives[0] - objectives[best]
        if step.any() and left > max((1.0 - _ENOUGH) * whole, self.dataset.n_rows * UNIT * here):
            length = LENGTHS[best] if best else _TOO_LONG
            state.w[:, lane] += (length - 1.0) * step
            step *= length
            state.searches[lane] = True
            state.line_share[lane] = 1.0
            state.estimate[lane] = left
            state.estimated_primal[lane] = here
            return
        state.base_primal[lane] = here
        state.line_share[lane] = max(_LINE_FALL * state.line_share[lane], _LEAST_LINE)
        state.searches[lane] = not state.gap[lane] <= _CLOSE * here  # nan before the first
        # Newton's decrement estimates the gap of early weights, which their dual variables do not bound
        state.estimate[lane] = self._solve(state, lane, step)
        state.estimated_primal[lane] = here
        if LENGTHS[best] >= _LONG and not self.problem.l1[lane]:  # which would leave the zeros
            step *= 2.0
        state.w[:, lane] += step

    def _objectives(self, state: State, lane: int) -> np.ndarray:
        """Return the objective at all lengths of the step; infinite where it was not evaluated."""
        losses = state.line[lane, : LENGTHS.size]
        step = state.step[lane]
        at = state.w[:, lane] + (LENGTHS - 1.0)[:, None] * step
        penalised = at[:, : self._n_penalised]
        l1 = self.problem.l1[lane]
        penalties = 0.5 * self.problem.l2 * np.einsum("ij,ij->i", penalised, penalised) + l1 * np.abs(
            penalised
        ).sum(axis=1)
        objectives = penalties + losses
        if not (state.searches[lane] and step.any()):
            objectives[np.arange(LENGTHS.size) != AT_POINT] = np.inf
            objectives[0] = state.base_primal[lane] if step.any() else np.inf
        return np.asarray(objectives)

    def _solve(self, state: State, lane: int, step: np.ndarray) -> float:
        """Set `step` to that which minimises the quadratic model; returns by how much. Uses up the Hessian."""
        hessian = state.hessian[lane]
        v = state.v[lane].sum(axis=0)
        w = state.w[:, lane].copy()
        n = self._n_penalised
        penalty = Penalty.of_lane(self.problem, lane)
        model = MatrixModel(hessian, v)
        if penalty.l1:
            moved = w.copy()
            pull = v.copy()
            minimise(model, moved, penalty)
            step[:] = moved - w
            return 0.5 * float(np.einsum("i,i->", step, pull + v)) - penalty.change(w, step)
        v[:n] -= penalty.l2 * w[:n]
        np.einsum("ii->i", hessian)[:n] += penalty.l2
        step[:] = solve_positive(hessian, v)
        return 0.5 * float(np.einsum("i,i->", step, v))


def _by_lane(w: np.ndarray) -> np.ndarray:
    """Return weights as kernels of this method have them, (lanes, D)."""
    return np.ascontiguousarray(w.T)


def _count_parts(problem: Problem) -> int:
    """Count the sums of the Hessians that are made at a time; with one, the parts are rows of the Hessians."""
    return _PARTS if problem.n_lanes * (problem.n_features + 1) ** 2 * _PARTS <= _MOST_IN_PARTS else 1

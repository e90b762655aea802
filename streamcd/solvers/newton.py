"""Newton's method for narrow data: one read at fixed w gives objective, gradient, Hessian and certificate.

The quadratic model is minimised in memory, and the next read is made where that leads. The read also evaluates the objective
at other lengths of the step it was led by, so that a step which was too long costs one read. With a_i minus the slope of the
loss at the row's margin every row's term of the gap is 0, and the gap is ``½‖w - v‖²``, ``v = Σ s_i a_i x_i``.
The dual variables that the last model expected at w are another certificate, often a better one.

Sums are made in parts of a window that do not depend on the number of threads. There are no dual variables on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..core.threads import Threads
from ..dataset.dataset import Dataset
from ..kernels import newton as newton_kernels
from ..kernels.compile import return_free_memory
from ..kernels.newton import AT_POINT, FAR, LENGTHS, N_LINE, NEAR, Point, Scratch, Sums
from ..kernels.primitives import (
    GAP,
    LOSS,
    LOSS_SLOPE,
    N_TOTALS,
    N_VISITED,
    ROUNDING,
    SLOPE,
    UNIT,
    W_ALPHA,
    Costs,
    Rows,
    shuffle,
)
from ..stream.memory_plan import Plan
from ..stream.window import Window
from . import quadratic_model
from .block_sums import Blocks, BlockSums, Cut, cut, cut_chunks
from .dual import primal_rounding, proven_gap, rows_of
from .memory import PARTS, newton_blocks, newton_memory, newton_parts
from .problem import Problem, smaller_side
from .protocol import (
    CERTIFY,
    TRAIN,
    AllRows,
    Estimate,
    Start,
    State,
    all_rows,
    new_lanes,
    new_totals,
)

_SAMPLE = 0.1  # of the rows, on which lanes start; as many more choose among its iterates
_LEAST_SAMPLE = 50  # rows
_ROWS_PER_FEATURE = 5  # of a first sample, a tenth of the other one
_MOST_STEPS = 12  # on a sample
_WORSE = 2  # iterates in a row that are worse than the best one on the other rows, after which it is taken
_SAMPLE_SOLVED = (
    1e-3  # relative decrease that the model of a sample expects, below which the sample is solved
)
_ENOUGH = 0.5  # of the decrease at the best length, with which a step is accepted
_LONG = 2.0  # best length of a step from which on the next is twice Newton's: logistic loss with a large C
_CLOSE = 1e-2  # relative gap from which on reads no longer evaluate other lengths
_LINE_FALL, _LEAST_LINE = 0.1, 1e-3  # of the curvature of rows on a straight piece: by a step, at least
_TOO_LONG = 0.25  # length tried next where others were not evaluated
_FAR_TOO_LONG = 1e-3  # where all of them were too long


class NewtonSolver(AllRows):
    """Newton's method for smooth losses of margins, for data with few features."""

    threads = Threads()
    warm_start: Start = "w"
    estimate: Estimate = "exact"
    _visit_rows = staticmethod(newton_kernels.newton_visit)

    def __init__(self, problem: Problem, dataset: Dataset, seed: int) -> None:
        self.problem, self._n_rows, self._seed = problem, dataset.n_rows, seed
        self._class_counts = dataset.class_counts
        self.memory = newton_memory(problem, dataset)
        self.layout = self.memory.layout
        self._size, self._n_vectors = problem.n_features + 1, problem.lane_vectors
        self._width, n_parts = self._size * self._n_vectors, newton_parts(problem)
        self.sums = self._make_sums(newton_blocks(problem, dataset), n_parts if n_parts > 1 else 0)
        self._scratch: list[Any] = []
        self._n_cuts = self.sums.n_parts or 1
        self._n_penalised = self._size - problem.free_bias
        ridge = np.append(np.full(self._size - 1, problem.l2), 0.0 if problem.free_bias else problem.l2)
        self._ridge = np.tile(ridge, self._n_vectors)

    def _make_sums(self, blocks: Blocks, n_parts: int) -> BlockSums:
        n_lanes, size = self.problem.n_lanes, self._size
        vectors, totals = (n_lanes, size), (n_lanes, N_TOTALS)
        shapes = (
            (n_lanes, 2, size),
            (n_lanes, size, size),
            (n_lanes, N_LINE),
            vectors,
            vectors,
            totals,
            totals,
        )
        return BlockSums(Sums, dict(zip(Sums._fields, shapes, strict=True)), blocks, n_parts)

    def use_plan(self, folder: Path, plan: Plan) -> None:
        """Do nothing: no scores of rows are kept."""

    def new_state(self) -> State:
        """Return the state before the first read: w = 0."""
        n_lanes, size = self.problem.n_lanes, self._size
        lanes = new_lanes(n_lanes, TRAIN)
        lanes |= {name: np.full(n_lanes, np.nan) for name in ("start_norm", "base_primal")}
        lanes["line_share"] = np.ones(n_lanes)
        lanes |= {"begun": np.zeros(n_lanes, dtype=bool), "searches": np.ones(n_lanes, dtype=bool)}
        n_columns = n_lanes * self._n_vectors
        state = State(np.zeros((size, n_columns)), np.zeros((0, n_columns)), new_totals(n_lanes), lanes)
        state.matrices = self.sums.new() | {"step": np.zeros((n_lanes, self._width))}
        state.partial = self.sums.new_partial()
        return state

    def load_kernels(self, dataset: Dataset, state: State) -> None:
        """Compile the kernels by visiting no rows, before windows are allocated."""
        none = np.zeros(0, dtype=np.int64)
        window = Window(0, 0, 1, none, self.layout.new_arena(dataset, 2, 0), none, none, 0)
        self._sum_up(rows_of(window), cut(none, self._n_cuts), state, none, self._costs(1.0))
        newton_kernels.fold(np.zeros((0, 0)))
        vectors = [np.zeros(0) for _ in range(3)]
        newton_kernels.solve_positive(np.zeros((0, 0)), *vectors[:2], np.zeros((0, 0)))
        newton_kernels.sweep_model(np.zeros((0, 0)), *vectors[:2], *self._penalty(0), 0.0, 1)
        newton_kernels.penalty_terms(*vectors[:2], *self._penalty(0)[:2], 0)
        newton_kernels.slope_norm(*vectors[:2], *self._penalty(0)[:2], 0)
        shuffle(none, np.uint64(0))
        return_free_memory()

    # -- a read

    def visit(self, window: Window, state: State, order: np.ndarray, key: np.uint64) -> None:
        """Add a window's rows to the sums; before the first window, move w to where the read is made."""
        if window.number == 0:
            self.begin_read(state, lambda: (rows_of(window), self.sample_of(window, order, key)))
        self.add_window(window, state)

    def begin_read(self, state: State, sample: Callable[[], tuple[Rows, np.ndarray]]) -> None:
        """Move w to where the read is made; `sample` draws rows for lanes that have not begun, in random order."""
        lanes, training = state.phase(TRAIN, CERTIFY), state.phase(TRAIN)
        begun = state.lanes["begun"]
        self._advance(state, training[begun[training]])
        self.sums.clear(state, lanes)
        state.matrices["step"][state.phase(CERTIFY)] = 0.0
        fresh = training[~begun[training]]
        begun[lanes] = True
        if fresh.size:
            self._start_on_sample(*sample(), state, fresh)

    def sample_of(self, window: Window, order: np.ndarray, key: np.uint64) -> np.ndarray:
        """Write the rows of the dataset's first chunks, in random order, to the front of `order`."""
        n = self.layout.fewest_chunks
        first = replace(window, chunks=window.chunks[:n], start=window.start[:n], stop=window.stop[:n])
        rows = all_rows(first, order)
        shuffle(rows, key)
        return rows

    def add_window(self, window: Window, state: State) -> None:
        """Add a window's rows to the sums of their blocks, and join those of blocks that end there."""
        lanes, rows, costs = state.phase(TRAIN, CERTIFY), rows_of(window), self._costs(1.0)
        for block, chunks, ends in self.sums.blocks.pieces(window.chunks):
            cuts = cut_chunks(window.start[chunks], window.stop[chunks], self._n_cuts)
            self._sum_up(rows, cuts, state, lanes, costs)
            if ends and self.sums.end_block(state, lanes, block):
                self._complete(state, lanes)

    def _complete(self, state: State, lanes: np.ndarray) -> None:
        """Take the totals of the read from the sums of all rows."""
        state.totals[lanes] += state.matrices["totals"][lanes]

    def _sum_up(
        self,
        rows: Rows,
        cuts: Sequence[Cut],
        state: State,
        lanes: np.ndarray,
        costs: Costs,
        *,
        hessian: bool = True,
    ) -> None:
        """Add rows to the parts' sums of some lanes, or where there are none to the sums themselves."""
        while len(self._scratch) < PARTS:
            self._scratch.append(self._new_scratch())
        point = self._point(state, hessian)
        if self.sums.n_parts:
            each = [
                (cut, [0, self._width if hessian else 0], self.sums.part(state, k))
                for k, cut in enumerate(cuts)
            ]
        else:  # each part has some rows of the Hessian, of about the same area, and all rows of the data
            ends = np.rint(self._width * np.sqrt(np.arange(PARTS + 1) / PARTS)).astype(np.int64)
            tiles = np.stack([ends[:-1], ends[1:]], axis=1) if hessian else np.zeros((1, 2), np.int64)
            each = [(cuts[0], tile, self.sums.of(state)) for tile in tiles.tolist()]
        self.threads.run(
            [
                partial(self._visit_rows, *cut, rows, costs, lanes, point, np.array(tile), sums, scratch)
                for (cut, tile, sums), scratch in zip(each, self._scratch, strict=False)
            ]
        )

    def _point(self, state: State, hessian: bool) -> Point:
        kept = state.lanes
        # another penalty, or a bias that has none, would ask for a scaling of its own
        stepped, is_plain = state.matrices["step"].any(axis=1), self.problem.is_plain
        compares = np.logical_and(stepped, hessian and is_plain and not self.problem.free_bias)
        flags = kept["line_share"], kept["searches"], np.isnan(kept["start_norm"]), compares
        return Point(self._flat(state), state.matrices["step"], *flags)

    def _new_scratch(self) -> Any:
        block = newton_kernels.BLOCK
        return Scratch(np.zeros(block, dtype=np.int64), np.zeros(block), np.zeros((block, self._size)))

    # -- weights as kernels of this method have them: lane by lane, vector by vector

    def _columns(self, lanes: np.ndarray) -> np.ndarray:
        return np.asarray((lanes[:, None] * self._n_vectors + np.arange(self._n_vectors)).reshape(-1))

    def _flat(self, state: State) -> np.ndarray:
        """Return the weights of all lanes, (lanes, vectors · D)."""
        return np.ascontiguousarray(state.w.T).reshape(self.problem.n_lanes, self._width)

    def _weights(self, state: State, lane: int) -> np.ndarray:
        """Return a lane's weights, (vectors · D,)."""
        return state.w[:, self._columns(np.array([lane]))].T.reshape(-1)

    def _shift(self, state: State, lane: int, change: np.ndarray) -> None:
        """Add to a lane's weights."""
        state.w[:, self._columns(np.array([lane]))] += change.reshape(self._n_vectors, self._size).T

    # -- a read by several workers

    def to_send(self, state: State) -> np.ndarray:
        """Return the weights of the read, and the steps that led there, as columns."""
        return np.hstack([state.w, state.matrices["step"].reshape(-1, self._size).T])

    def begin_part(self, state: State, sent: np.ndarray) -> None:
        """Take what `to_send` returned, on a worker, and clear all sums."""
        n = state.w.shape[1]
        state.w[:], state.matrices["step"][:] = sent[:, :n], sent[:, n:].T.reshape(-1, self._width)
        self.sums.begin_part(state)

    def take_sums(self, state: State, sums: Mapping[str, np.ndarray], lanes: np.ndarray) -> None:
        """Take the workers' sums over all rows."""
        for name, array in sums.items():
            state.matrices[name][lanes] = array[lanes]
        self._complete(state, lanes)

    # -- steps

    def _advance(self, state: State, lanes: np.ndarray) -> None:
        """Move w of some lanes to where the next read is made, from the sums of the last one."""
        calls = [partial(self._move, state, int(lane)) for lane in lanes]
        # with l1 a lane takes a second matrix, for which the plan has memory once
        self.threads.run(calls, 0 if self.problem.l1.any() else 1 << 62)

    def _move(self, state: State, lane: int) -> float:
        """Move w of a lane; returns the decrease that the model expects, infinite where the length alone changes."""
        kept, step = state.lanes, state.matrices["step"][lane]
        objectives = self._objectives(state, lane)
        best = int(np.argmin(objectives))
        if step.any() and not self._is_enough(objectives, best, self._n_rows * UNIT * objectives[AT_POINT]):
            length = LENGTHS[best]
            if best == 0 and not np.isnan(kept["base_primal"][lane]):
                length = _FAR_TOO_LONG if kept["searches"][lane] else _TOO_LONG
            self._shift(state, lane, (length - 1.0) * step)
            step *= length
            kept["searches"][lane], kept["line_share"][lane] = True, 1.0
            return np.inf
        kept["base_primal"][lane] = objectives[AT_POINT]
        kept["line_share"][lane] = max(_LINE_FALL * kept["line_share"][lane], _LEAST_LINE)
        kept["searches"][lane] = (
            not kept["gap"][lane] <= _CLOSE * objectives[AT_POINT] if "gap" in kept else True
        )
        decrease = self._solve(state, lane, step)
        if LENGTHS[best] >= _LONG and not self.problem.l1[lane]:  # which would leave the zeros
            step *= 2.0
        self._shift(state, lane, step)
        return decrease

    def _is_enough(self, objectives: np.ndarray, best: int, rounding: float) -> bool:
        """Tell whether a step leads far enough down: as far as most of the way at the best length."""
        left, whole = objectives[AT_POINT] - objectives[best], objectives[0] - objectives[best]
        return bool(left <= (1.0 - _ENOUGH) * whole or left <= rounding)

    def _objectives(self, state: State, lane: int) -> np.ndarray:
        """Return the objective at all lengths of the step; infinite where it was not evaluated."""
        losses, step = state.matrices["line"][lane, : LENGTHS.size], state.matrices["step"][lane]
        at = self._weights(state, lane) + (LENGTHS - 1.0)[:, None] * step
        objectives = 0.5 * np.einsum("ij,ij,j->i", at, at, self._ridge) + losses
        if l1 := self.problem.l1[lane]:
            objectives += l1 * np.abs(at[:, : self._n_penalised]).sum(axis=1)
        if not state.lanes["searches"][lane]:
            objectives[np.arange(LENGTHS.size) != AT_POINT] = np.inf
            objectives[0] = state.lanes["base_primal"][lane]
        return np.asarray(objectives)

    def _solve(self, state: State, lane: int, step: np.ndarray) -> float:
        """Minimise the quadratic model: set `step`, and return the decrease that is expected of it. Uses up the Hessian."""
        hessian = state.matrices["hessian"][lane]
        newton_kernels.fold(hessian)
        diagonal = np.einsum("ii->i", hessian)
        if self.problem.l1[lane]:
            return self._solve_by_descent(hessian, diagonal, state, lane, step)
        step[:] = state.matrices["v"][lane].sum(axis=0) - self._ridge * self._weights(state, lane)
        slope = step.copy()
        diagonal += self._ridge
        panel = np.empty((newton_kernels.PANEL, self._width))
        newton_kernels.solve_positive(hessian, step, 1e-14 * diagonal, panel)
        return 0.5 * float(np.einsum("i,i->", slope, step))

    def _solve_by_descent(
        self, hessian: np.ndarray, diagonal: np.ndarray, state: State, lane: int, step: np.ndarray
    ) -> float:
        """Minimise the quadratic model with soft thresholds."""
        diagonal += quadratic_model.DAMPING * diagonal.max()
        w, v = state.w[:, lane].copy(), state.matrices["v"][lane].sum(axis=0)
        u, pull = w.copy(), v.copy()
        quadratic_model.minimise(hessian, pull, u, self._penalty(lane))
        step[:] = u - w
        both = self.problem.penalty(np.stack([w, u], axis=1), [lane, lane])
        # pull is v - Hs
        return float(both[0] - both[1] + 0.5 * np.einsum("i,i->", v + pull, step))

    def _penalty(self, lane: int) -> tuple[float, float, int]:
        """Return the penalty of a lane as kernels take it."""
        return float(self.problem.l1[lane]), self.problem.l2, self._n_penalised

    # -- the start

    def _start_on_sample(self, rows: Rows, drawn: np.ndarray, state: State, lanes: np.ndarray) -> None:
        """Lead the first read to the solution of a sample of the rows `drawn`, with costs in proportion.

        Of the sample's iterates that one is taken which is best on as many other rows: the solution of a separable sample
        is far away. The read evaluates the objective at w = 0 too, so a bad start costs one read.
        """
        n = min(int(_SAMPLE * self._n_rows), drawn.size // 2)
        if n < _LEAST_SAMPLE:
            return
        searches = state.lanes["searches"].copy()
        state.lanes["searches"][:] = True
        base = self._flat(state)[lanes]
        first = n // 10
        for size in [first, n] if first >= _ROWS_PER_FEATURE * self._width else [n]:
            self._solve_sample(rows, state, (drawn[:size], drawn[n : 2 * n]), lanes)
        state.matrices["step"][lanes] = self._flat(state)[lanes] - base
        state.lanes["base_primal"][lanes] = np.nan
        state.lanes["searches"][:] = searches

    def _solve_sample(
        self, rows: Rows, state: State, samples: Sequence[np.ndarray], lanes: np.ndarray
    ) -> None:
        """Move w of some lanes to the best iterate on a sample, as judged by other rows."""
        costs, held_costs = (self._costs(self._n_rows / sample.size) for sample in samples)
        held_out = partial(self._held_out, rows, cut(samples[1], self._n_cuts), held_costs, state)
        least = held_out(lanes)
        best, since = state.w.copy(), np.zeros(self.problem.n_lanes, dtype=np.int64)
        state.matrices["step"][lanes] = 0.0
        open_lanes = lanes
        for _ in range(_MOST_STEPS):
            self._sum_up(rows, cut(samples[0], self._n_cuts), state, open_lanes, costs)
            self.sums.join_parts(state, open_lanes)
            expected = np.array([self._move(state, int(lane)) for lane in open_lanes])
            self.sums.clear(state, open_lanes)
            values = held_out(open_lanes)
            better = open_lanes[values[open_lanes] < least[open_lanes]]
            since[open_lanes] += 1
            since[better] = 0
            columns, least[better] = self._columns(better), values[better]
            best[:, columns] = state.w[:, columns]
            going = (since[open_lanes] < _WORSE) & (expected > _SAMPLE_SOLVED * values[open_lanes])
            open_lanes = open_lanes[going]
            if not open_lanes.size:
                break
        columns = self._columns(lanes)
        state.w[:, columns] = best[:, columns]

    def _held_out(
        self, rows: Rows, cuts: Sequence[Cut], costs: Costs, state: State, lanes: np.ndarray
    ) -> np.ndarray:
        """Compute the objective on some rows, of every lane."""
        kept = state.lanes["searches"].copy()
        state.lanes["searches"][:] = False
        self._sum_up(rows, cuts, state, lanes, costs, hessian=False)
        self.sums.join_parts(state, lanes)
        values = self.problem.lane_penalties(state.w) + state.matrices["line"][:, AT_POINT]
        self.sums.clear(state, lanes)
        state.lanes["searches"][:] = kept
        return np.asarray(values)

    # -- the end of a read

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Store ``‖∇f(0)‖``, which the first read has summed."""
        norm = state.lanes["start_norm"]
        norm[:] = np.where(np.isnan(norm) & state.lanes["begun"], self._start_norm(state), norm)

    def certificate(self, state: State) -> dict[str, np.ndarray]:
        """Compute the certificate of every lane, as `dual.RowSolver.certificate`, with a_i times r of its side.

        r is 1, but for a bias that is not penalised: it asks for Σ s_i a_i = 0, so the heavier side is scaled down. L1 alone
        asks for ``|v_j| <= l1``, so both are. Where the penalty is not ``½‖w‖²`` its term of the gap takes the place of
        ``½‖w - v‖²``.
        """
        totals, line, w = state.totals, state.matrices["line"], state.w
        n = totals[:, N_VISITED] + 100.0
        error = n * UNIT * totals[:, W_ALPHA]  # of v
        shares = self._side_shares(state, error)
        v = np.einsum("lsj,ls->jl", state.matrices["v"], shares)
        short = 1.0 - shares
        near, far = line[:, NEAR : NEAR + 2], line[:, FAR : FAR + 2]
        totals[:, GAP] = (short * far + short * short * near).sum(axis=1)
        totals[:, SLOPE] = short.max(axis=1) * totals[:, LOSS_SLOPE]
        if self.problem.free_bias:  # the sides are equal up to rounding
            totals[:, ROUNDING] = 2.0 * n * totals[:, LOSS]
        rows, penalty = self.problem.penalised, self.problem.penalty(w)
        with np.errstate(all="ignore"):  # the loop says what is wrong
            drift, norm = (np.sqrt(np.einsum("ij,ij->j", x, x)) for x in (w[rows] - v[rows], w))
            if not self.problem.is_plain:
                self._add_penalty_terms(totals, w, v, error)
                drift[:] = 0.0
            primal = penalty + totals[:, LOSS]
            gap, rounding, _ = proven_gap(totals, norm, drift, np.zeros_like(norm))
            gap, rounding = self._least_gap(state, norm, gap, rounding)
            gap = np.fmin(gap, primal)  # that of a = 0
            return {
                "primal": primal,
                "dual": primal - gap,
                "gap": gap,
                "violation": self.violation(state),
                "rounding": np.fmin(rounding, gap),
                "primal_rounding": primal_rounding(totals, norm, np.zeros_like(norm)) + n * UNIT * penalty,
            }

    def _least_gap(
        self, state: State, norm: np.ndarray, gap: np.ndarray, rounding: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the gap and its rounding, or those at the dual variables that the last model expected, if less."""
        totals, v = state.matrices["expected_totals"], state.matrices["expected"]
        apart = state.w - v.T
        drift = np.sqrt(np.einsum("ij,ij->j", apart, apart))
        expected, of_expected, _ = proven_gap(totals, norm, drift, np.zeros_like(norm))
        less = (totals[:, N_VISITED] > 0) & (expected < gap)
        return np.where(less, expected, gap), np.where(less, of_expected, rounding)

    def _add_penalty_terms(self, totals: np.ndarray, w: np.ndarray, v: np.ndarray, error: np.ndarray) -> None:
        """Add the penalty's terms to the gap, and what an error of v changes in them to the rounding."""
        for lane in range(self.problem.n_lanes):
            own, of_v = (np.ascontiguousarray(x[:, lane]) for x in (w, v))
            gap, slope = newton_kernels.penalty_terms(own, of_v, *self._penalty(lane))
            totals[lane, GAP] += gap
            curve = 0.5 / self.problem.l2 if self.problem.l2 else 0.0
            totals[lane, ROUNDING] += (slope + curve * error[lane]) * error[lane] / UNIT

    def _side_shares(self, state: State, error: np.ndarray) -> np.ndarray:
        """Return the factors on the dual variables of each side, (lanes, 2)."""
        shares = np.ones((self.problem.n_lanes, 2))
        if self.problem.free_bias:
            sides = np.abs(state.matrices["v"][:, :, -1])
            least = sides.min(axis=1, keepdims=True)
            np.divide(least, sides, out=shares, where=sides > 0)
        if not self.problem.l2:
            v = np.einsum("lsj,ls->lj", state.matrices["v"][:, :, : self._n_penalised], shares)
            largest = np.abs(v).max(axis=1) + error
            l1 = self.problem.l1
            shares *= np.minimum(l1 / np.maximum(largest, l1), 1.0)[:, None]
        return shares

    def violation(self, state: State) -> np.ndarray:
        """Compute ``‖∇f(w)‖ / ‖∇f(0)‖ · n / min(n₊, n₋)``, which LIBLINEAR's primal solvers compare with eps.

        With l1 it is the 1-norm of the smallest subgradient.
        """
        v = state.matrices["v"].sum(axis=1)
        norm = self._slope_norms(self._flat(state), v)
        start = np.where(
            np.isnan(state.lanes["start_norm"]), self._start_norm(state), state.lanes["start_norm"]
        )
        with np.errstate(all="ignore"):  # the loop says what is wrong
            scale = start * self._smaller_share()
            return np.divide(norm, scale, out=np.zeros_like(norm), where=scale > 0)

    def _smaller_share(self) -> np.ndarray:
        return smaller_side(self.problem, self._class_counts)

    def _start_norm(self, state: State) -> np.ndarray:
        start = state.matrices["start"]
        return self._slope_norms(np.zeros_like(start), start)

    def _slope_norms(self, w: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Return `slope_norm` of every lane, from arrays (lanes, D)."""
        norm, lanes = newton_kernels.slope_norm, range(self.problem.n_lanes)
        return np.array([norm(np.ascontiguousarray(w[k]), v[k], *self._penalty(k)) for k in lanes])

    def adopt_certified_w(self, state: State, lanes: np.ndarray) -> None:
        """Do nothing: every read is made at a w of its own."""

    def conclude_pass(self, state: State, trained: np.ndarray) -> np.ndarray:
        """Return nothing of use: passes are certificates."""
        return np.full(self.problem.n_lanes, np.nan)

    def estimated_primals(self, state: State, estimates: np.ndarray) -> np.ndarray:
        """Return nothing of use: passes are certificates."""
        return estimates

    def _costs(self, factor: float) -> Costs:
        """Return the problem as an argument of kernels, with costs times a factor."""
        problem = self.problem
        cost = problem.cost if factor == 1.0 else factor * problem.cost
        return Costs(problem.row_loss, problem.bias, problem.sign, cost, *problem.left_out)

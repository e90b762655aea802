"""Steps of Newton's method: sums over rows at a w, and the minimum of the model that they make.

A model is quadratic, but for the rows that are kept of a read: it has their losses themselves, and is minimised by Newton's
steps of its own, each of which visits these rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..core.threads import Threads
from ..dataset.dataset import Dataset
from ..kernels import newton as newton_kernels
from ..kernels import triangle
from ..kernels.newton import AT_POINT, LENGTHS, N_LINE, Point, Scratch, Sums
from ..kernels.primitives import N_TOTALS, UNIT, Costs, Rows
from . import quadratic_model
from .block_sums import Blocks, BlockSums, Cut, cut
from .memory import PARTS, kept_rows, newton_blocks, newton_memory, newton_parts
from .problem import Problem
from .protocol import CertifiedReads, State

_ENOUGH = 0.5  # of the decrease at the best length, with which a step is accepted
_LONG = 2.0  # best length of a step from which on the next is twice Newton's: logistic loss with a large C
_CLOSE = 1e-2  # relative gap from which on reads no longer evaluate other lengths
_LINE_FALL, _LEAST_LINE = 0.1, 1e-3  # of the curvature of rows on a straight piece: by a step, at least
_TOO_LONG = 0.25  # length tried next where others were not evaluated
_FAR_TOO_LONG = 1e-3  # where all of them were too long
_MOST_KEPT_STEPS = 60  # for a model with losses of rows
_DAMPING = 1e-8  # of its curvatures at the read, added: those of kept rows may vanish on the way
_KEPT_SOLVED = 1e-3  # decrease that its last step expects, over that of the first


class Rest(NamedTuple):
    """A quadratic model of some rows' losses."""

    w: np.ndarray  # (D,): where it was made
    loss: float  # there
    v: np.ndarray  # (D,): minus the gradient
    matrix: np.ndarray  # (D (D + 1) / 2,): the triangle of the second derivatives

    def product(self, x: np.ndarray) -> np.ndarray:
        """Return the product of second derivatives and a vector."""
        matrix = np.zeros((x.size, x.size))
        matrix[np.tri(x.size, dtype=bool)] = self.matrix
        lower, upper = np.einsum("ij,j->i", matrix, x), np.einsum("ij,i->j", matrix, x)
        return np.asarray(lower + upper - np.einsum("ii->i", matrix) * x)


class NewtonSteps(CertifiedReads):
    """Sums over rows and steps of the lanes of a problem; `newton.NewtonSolver` reads, starts and proves."""

    threads = Threads()
    _visit_rows = staticmethod(newton_kernels.newton_visit)

    def __init__(self, problem: Problem, dataset: Dataset, seed: int, *, keeps_rows: bool = False) -> None:
        self.problem, self._n_rows, self._seed = problem, dataset.n_rows, seed
        self._class_counts, self._weighted = dataset.class_counts, dataset.weighted
        self.memory = newton_memory(problem, dataset, keeps_rows=keeps_rows)
        self.layout = self.memory.layout
        self._size, self._n_vectors = problem.n_features + 1, problem.lane_vectors
        self._width, n_parts = self._size * self._n_vectors, newton_parts(problem)
        self.sums = self._make_sums(newton_blocks(problem, dataset), n_parts if n_parts > 1 else 0)
        self.kept = kept_rows(problem, dataset, keeps_rows=keeps_rows)
        self._arena = self.layout.new_arena(dataset, *self.kept.sizes)
        self._row_start = dataset.row_start
        self._scratch: list[Any] = []
        self._no_distances = np.zeros((problem.n_lanes, 0), dtype=np.float32)
        self._distances = self._no_distances
        self._n_cuts = self.sums.n_parts or 1
        of_bias = np.arange(self._width) % self._size == self._size - 1
        self._penalised, free = (
            np.flatnonzero(~of_bias | (not problem.free_bias)),
            of_bias & problem.free_bias,
        )
        self._diagonal = triangle.diagonal_places(self._width)
        self._free_last = np.concatenate([self._penalised, np.flatnonzero(free)])
        self._ridge = np.where(free, 0.0, problem.l2)

    def _make_sums(self, blocks: Blocks, n_parts: int) -> BlockSums:
        n_lanes, size = self.problem.n_lanes, self._size
        vectors, totals = (n_lanes, size), (n_lanes, N_TOTALS)
        shapes = (
            (n_lanes, 4, size),
            (n_lanes, triangle.triangle_size(size)),
            (n_lanes, N_LINE),
            vectors,
            vectors,
            totals,
            totals,
        )
        return BlockSums(Sums, dict(zip(Sums._fields, shapes, strict=True)), blocks, n_parts)

    def _sum_up(
        self,
        rows: Rows,
        cuts: Sequence[Cut],
        state: State,
        lanes: np.ndarray,
        costs: Costs,
        *,
        hessian: bool = True,
        distances: np.ndarray | None = None,
    ) -> None:
        """Add rows to the parts' sums of some lanes, or where there are none to the sums themselves.

        `distances`, (lanes, rows), are written in a read, and not where rows of a model are visited.
        """
        while len(self._scratch) < PARTS:
            self._scratch.append(self._new_scratch())
        point = self._point(state, hessian and distances is not None)
        own = self._no_distances if distances is None else distances
        scratches = [self._with_distances(scratch, own) for scratch in self._scratch]
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
                for (cut, tile, sums), scratch in zip(each, scratches, strict=False)
            ]
        )

    def _point(self, state: State, reads: bool) -> Point:
        kept = state.lanes
        # another penalty, or a bias that has none, would ask for a scaling of its own
        stepped, is_plain = state.matrices["step"].any(axis=1), self.problem.is_plain
        compares = np.logical_and(stepped, reads and is_plain and not self.problem.free_bias)
        flags = kept["line_share"], kept["searches"], np.isnan(kept["start_norm"]), compares
        return Point(self._flat(state), state.matrices["step"], *flags, kept["exact_within"])

    def _new_scratch(self) -> Any:
        block = newton_kernels.BLOCK
        arrays = np.zeros(block, dtype=np.int64), np.zeros(block), np.zeros((block, self._size))
        return Scratch(*arrays, self._no_distances)

    def _with_distances(self, scratch: Any, distances: np.ndarray) -> Any:
        return scratch._replace(distance=distances)

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

    # -- steps

    def _advance(self, state: State, lanes: np.ndarray) -> None:
        """Move w of some lanes to where the next read is made, from the sums of the last one."""
        going = [int(lane) for lane in lanes if not self._shortens(state, int(lane))]
        rest = {lane: self._rest_of(state, lane) for lane in going if self.kept.count(state.matrices, lane)}
        expected = self._by_lanes(self._take_step, state, going)
        state.lanes["exact_within"][going] = -1.0
        if rest:
            self._refine(state, rest, expected)

    def _by_lanes(
        self, move: Callable[[State, int], float], state: State, lanes: Sequence[int]
    ) -> dict[int, float]:
        """Move w of some lanes by threads; returns the decreases that are expected."""
        expected = dict.fromkeys(lanes, np.inf)

        def call(lane: int) -> None:
            expected[lane] = move(state, lane)

        # with l1 a lane takes a second matrix, for which the plan has memory once
        self.threads.run([partial(call, lane) for lane in lanes], 0 if self.problem.l1.any() else 1 << 62)
        return expected

    def _rest_of(self, state: State, lane: int) -> Rest:
        """Return the quadratic model of the rows that are not kept, at the w of the read, from the sums of all rows."""
        lanes, w, size = np.array([lane]), self._weights(state, lane), self._width
        hessian = state.matrices["hessian"][lane]
        damping, matrix = _DAMPING * hessian[self._diagonal], np.zeros(hessian.size)
        if not state.matrices["kept_cut"][lane]:
            matrix[self._diagonal] = damping
            return Rest(w, 0.0, np.zeros(size), matrix)
        sums = {name: state.matrices[name][lane] for name in Sums._fields}
        whole = {name: array.copy() for name, array in sums.items()}
        self.sums.clear(state, lanes)
        self._visit_kept(state, lane)
        np.subtract(whole["hessian"], sums["hessian"], out=matrix)
        matrix[self._diagonal] += damping
        loss = float(whole["line"][AT_POINT] - sums["line"][AT_POINT])
        rest = Rest(w, loss, (whole["v"] - sums["v"]).sum(axis=0), matrix)
        for name, array in sums.items():
            array[:] = whole[name]
        return rest

    def _visit_kept(self, state: State, lane: int) -> None:
        """Make the sums over the kept rows of a lane, at its w."""
        rows, order = self.kept.load(state.matrices, lane, self._arena)
        lanes = np.array([lane])
        self._sum_up(rows, cut(order, self._n_cuts), state, lanes, self._costs(1.0))
        self.sums.join_parts(state, lanes)

    def _refine(self, state: State, rest: Mapping[int, Rest], expected: Mapping[int, float]) -> None:
        """Minimise models that have the losses of kept rows themselves, beginning with Newton's steps."""
        kept, lanes = state.lanes, np.array(list(rest))
        names = "base_primal", "searches", "line_share"
        before = {name: kept[name][lanes] for name in names}
        going = list(rest)
        for _ in range(_MOST_KEPT_STEPS):
            kept["searches"][going] = True
            self.sums.clear(state, np.array(going))
            for lane in going:
                self._visit_kept(state, lane)
                self._add_rest(state, lane, rest[lane])
            further = self._by_lanes(self._move, state, going)
            going = [lane for lane in going if further[lane] > _KEPT_SOLVED * expected[lane]]
            if not going:
                break
        for name, own in before.items():
            kept[name][lanes] = own
        for lane in rest:
            state.matrices["step"][lane] = self._weights(state, lane) - rest[lane].w
            kept["exact_within"][lane] = self.kept.within(state.matrices, lane)

    def _add_rest(self, state: State, lane: int, rest: Rest) -> None:
        """Add to the sums over kept rows the model of the others."""
        step = state.matrices["step"][lane]
        s = self._weights(state, lane) - rest.w
        of_s, of_step = (rest.product(x) for x in (s, step))
        state.matrices["v"][lane, 0] += rest.v - of_s
        state.matrices["hessian"][lane] += rest.matrix
        q = LENGTHS - 1.0
        dot = partial(np.einsum, "j,j->")
        change = -dot(rest.v, s) - q * dot(rest.v, step)
        curved = 0.5 * dot(s, of_s) + q * dot(s, of_step) + 0.5 * q * q * dot(step, of_step)
        state.matrices["line"][lane, : LENGTHS.size] += rest.loss + change + curved

    def _move(self, state: State, lane: int) -> float:
        """Move w of a lane; returns the decrease that the model expects, infinite where the length alone changes."""
        if self._shortens(state, lane):
            return np.inf
        return self._take_step(state, lane)

    def _shortens(self, state: State, lane: int) -> bool:
        """Change the length of the last step of a lane, if it did not lead far enough down; tells whether it has."""
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
            return True
        return False

    def _take_step(self, state: State, lane: int) -> float:
        """Take the step of a lane's model; returns the decrease that it expects."""
        kept, step = state.lanes, state.matrices["step"][lane]
        objectives = self._objectives(state, lane)
        best = int(np.argmin(objectives))
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
        objectives = self._penalties(lane, at) + losses
        if not state.lanes["searches"][lane]:
            objectives[np.arange(LENGTHS.size) != AT_POINT] = np.inf
            objectives[0] = state.lanes["base_primal"][lane]
        return np.asarray(objectives)

    def _penalties(self, lane: int, at: np.ndarray) -> np.ndarray:
        """Compute the penalty at several weights of a lane, (n, vectors · D)."""
        penalties = 0.5 * np.einsum("ij,ij,j->i", at, at, self._ridge)
        if l1 := self.problem.l1[lane]:
            penalties += l1 * np.abs(at[:, self._penalised]).sum(axis=1)
        return np.asarray(penalties)

    def _solve(self, state: State, lane: int, step: np.ndarray) -> float:
        """Minimise the quadratic model: set `step`, and return the decrease that is expected of it. Uses up the Hessian."""
        hessian = state.matrices["hessian"][lane]
        if self.problem.l1[lane]:
            return self._solve_by_descent(hessian, state, lane, step)
        step[:] = state.matrices["v"][lane].sum(axis=0) - self._ridge * self._weights(state, lane)
        slope = step.copy()
        hessian[self._diagonal] += self._ridge
        panel = np.empty((triangle.PANEL, self._width))
        triangle.solve_positive(hessian, step, 1e-14 * hessian[self._diagonal], panel)
        return 0.5 * float(np.einsum("i,i->", slope, step))

    def _solve_by_descent(self, hessian: np.ndarray, state: State, lane: int, step: np.ndarray) -> float:
        """Minimise the quadratic model with soft thresholds."""
        hessian[self._diagonal] += quadratic_model.DAMPING * hessian[self._diagonal].max()
        w, order = self._weights(state, lane), self._free_last
        matrix = np.empty((self._width, self._width))
        triangle.unfold(hessian, order, matrix)
        u, pull = w[order], state.matrices["v"][lane].sum(axis=0)[order]
        v = pull.copy()
        quadratic_model.minimise(matrix, pull, u, self._penalty(lane))
        step[order] = u - w[order]
        both = self._penalties(lane, np.stack([w, w + step]))
        # pull is v - Hs
        return float(both[0] - both[1] + 0.5 * np.einsum("i,i->", v + pull, step[order]))

    def _penalty(self, lane: int) -> tuple[float, float, int]:
        """Return the penalty of a lane as kernels take it, for weights of which those that are free come last."""
        return float(self.problem.l1[lane]), self.problem.l2, self._penalised.size

    def _costs(self, factor: float) -> Costs:
        """Return the problem as an argument of kernels, with costs times a factor."""
        problem = self.problem
        cost = problem.cost if factor == 1.0 else factor * problem.cost
        return Costs(problem.row_loss, problem.bias, problem.sign, cost, *problem.left_out)

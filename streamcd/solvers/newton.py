"""Newton's method for narrow data: one read at fixed w gives objective, gradient, Hessian and certificate.

The quadratic model is minimised in memory, and the next read is made where that leads. The read also evaluates the objective
at other lengths of the step it was led by, so that a step which was too long costs one read. With a_i minus the slope of the
loss at the row's margin every row's term of the gap is 0, and the gap is ``½‖w - v‖²``, ``v = Σ s_i a_i x_i``.
The dual variables that the last model expected at w are another certificate, often a better one.

The rows nearest to where their loss bends are kept from a read, as many as there is room for, and the model has their losses
themselves: it is minimised by Newton's steps of its own, each of which visits these rows.

Sums are made in parts of a window that do not depend on the number of threads. There are no dual variables on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ..dataset.dataset import Dataset
from ..kernels import newton as newton_kernels
from ..kernels import triangle
from ..kernels.compile import return_free_memory
from ..kernels.newton import AT_POINT, FAR, NEAR
from ..kernels.primitives import (
    GAP,
    LOSS,
    LOSS_SLOPE,
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
from ..stream.window import Window, empty_window
from .block_sums import Cut, cut, cut_chunks
from .dual import rows_of
from .gap_bounds import primal_rounding, proven_gap
from .newton_steps import NewtonSteps
from .problem import smaller_side
from .protocol import (
    CERTIFY,
    TRAIN,
    Estimate,
    Start,
    State,
    all_rows,
    certificate_of,
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


class NewtonSolver(NewtonSteps):
    """Newton's method for smooth losses of margins, for data with few features."""

    warm_start: Start = "w"
    estimate: Estimate = "exact"

    def use_plan(self, folder: Path, plan: Plan) -> None:
        """Do nothing: no scores of rows are kept."""

    def new_state(self) -> State:
        """Return the state before the first read: w = 0."""
        n_lanes, size = self.problem.n_lanes, self._size
        lanes = new_lanes(n_lanes, TRAIN)
        lanes |= {name: np.full(n_lanes, np.nan) for name in ("start_norm", "base_primal")}
        lanes["line_share"], lanes["exact_within"] = np.ones(n_lanes), np.full(n_lanes, -1.0)
        lanes |= {"begun": np.zeros(n_lanes, dtype=bool), "searches": np.ones(n_lanes, dtype=bool)}
        n_columns = n_lanes * self._n_vectors
        state = State(np.zeros((size, n_columns)), np.zeros((0, n_columns)), new_totals(n_lanes), lanes)
        state.matrices = self.sums.new() | {"step": np.zeros((n_lanes, self._width))} | self.kept.new()
        state.partial = self.sums.new_partial()
        return state

    def load_kernels(self, dataset: Dataset, state: State) -> None:
        """Compile the kernels by visiting no rows, before windows are allocated."""
        window = empty_window(self.layout.new_arena(dataset, 2, 0))
        none = window.chunks
        self._sum_up(rows_of(window), cut(none, self._n_cuts), state, none, self._costs(1.0))
        vectors, matrix = [np.zeros(0) for _ in range(3)], np.zeros((0, 0))
        triangle.solve_positive(*vectors, matrix)
        if self.problem.l1.any():
            triangle.unfold(vectors[0], none, matrix)
            triangle.fold(matrix, none, vectors[0])
        newton_kernels.sweep_model(matrix, *vectors[:2], *self._penalty(0), 0.0, 1)
        newton_kernels.penalty_terms(*vectors[:2], *self._penalty(0)[:2], 0)
        newton_kernels.slope_norm(*vectors[:2], *self._penalty(0)[:2], 0)
        if self.kept:
            self.kept.load_kernels()
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
        self.kept.clear(state.matrices, lanes)
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
        n_rows = rows.code.size
        if self.kept and self._distances.shape[1] < n_rows:
            self._distances = np.empty((self.problem.n_lanes, n_rows), dtype=np.float32)
        for block, chunks, ends in self.sums.blocks.pieces(window.chunks):
            cuts = cut_chunks(window.start[chunks], window.stop[chunks], self._n_cuts)
            self._sum_up(rows, cuts, state, lanes, costs, distances=self._distances)
            if ends and self.sums.end_block(state, lanes, block):
                self._complete(state, lanes)
        if self.kept:
            self._keep(window, rows, state, lanes)

    def _keep(self, window: Window, rows: Rows, state: State, lanes: np.ndarray) -> None:
        """Keep the nearest rows of a window."""
        held: list[tuple[np.ndarray, np.ndarray]] = []
        n_held, at_a_time = 0, self.kept.n_offered
        for chunk, start, stop in window.chunk_ranges():
            for first in range(start, stop, at_a_time):
                offsets = np.arange(first, min(first + at_a_time, stop))
                held.append((offsets, self._row_start[chunk] - start + offsets))
                n_held += offsets.size
                if n_held >= at_a_time:
                    self._offer(held, rows, state, lanes)
                    held, n_held = [], 0
        if held:
            self._offer(held, rows, state, lanes)

    def _offer(
        self, held: list[tuple[np.ndarray, np.ndarray]], rows: Rows, state: State, lanes: np.ndarray
    ) -> None:
        offsets, numbers = (np.concatenate(parts) for parts in zip(*held, strict=True))
        for lane in lanes.tolist():
            near = self._distances[lane, offsets]
            self.kept.offer(state.matrices, lane, rows, (offsets, numbers, near))

    def _complete(self, state: State, lanes: np.ndarray) -> None:
        """Take the totals of the read from the sums of all rows."""
        state.totals[lanes] += state.matrices["totals"][lanes]

    # -- a read by several workers

    def to_send(self, state: State) -> np.ndarray:
        """Return the weights of the read, and the steps that led there, as columns."""
        return np.hstack([state.w, state.matrices["step"].reshape(-1, self._size).T])

    def begin_part(self, state: State, sent: np.ndarray) -> None:
        """Take what `to_send` returned, on a worker, and clear all sums."""
        n = state.w.shape[1]
        state.w[:], state.matrices["step"][:] = sent[:, :n], sent[:, n:].T.reshape(-1, self._width)
        self.sums.begin_part(state)
        self.kept.clear(state.matrices)

    def take_sums(
        self,
        state: State,
        sums: Mapping[str, np.ndarray],
        kept: Mapping[str, np.ndarray],
        lanes: np.ndarray,
    ) -> None:
        """Take the workers' sums over all rows, and the rows that they have kept."""
        for name, array in {**kept, **sums}.items():
            state.matrices[name][lanes] = array[lanes]
        self._complete(state, lanes)

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
        """Compute the certificate of every lane, as `dual.RowSolver.certificate`, by dual variables made of the read's.

        Where the penalty is not ``½‖w‖²`` its term of the gap takes the place of ``½‖w - v‖²``.
        """
        w, penalty = self._flat(state), self.problem.lane_penalties(state.w)
        totals, norm = state.totals, np.sqrt(np.einsum("ij,ij->i", w, w))
        with np.errstate(all="ignore"):  # the loop says what is wrong
            primal = penalty + totals[:, LOSS]
            gap, rounding = self._gap(state, w, norm, _error_bound(totals))
            # what v may be wrong by is taken off the dual variables, and adds to the gap
            if self.problem.l1.any() and not self.problem.l2:
                rounding += gap - self._gap(state, w, norm, np.zeros_like(norm))[0]
            gap, rounding = self._least_gap(state, norm, gap, rounding)
            gap = np.fmin(gap, primal)  # that of a = 0
            of_primal = primal_rounding(totals, norm, np.zeros_like(norm))
            of_primal += (totals[:, N_VISITED] + 100.0) * UNIT * penalty
            return certificate_of(primal, gap, self.violation(state), rounding, of_primal)

    def _gap(
        self, state: State, w: np.ndarray, norm: np.ndarray, share: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the gap of every lane and its rounding; v is wrong by at most `share` of the sizes of its terms."""
        totals = state.totals.copy()
        n = totals[:, N_VISITED] + 100.0
        v, sizes = self._dual_point(state, totals, w, share)
        error = share * sizes
        if self.problem.free_bias:  # the sums that it asks to be 0 are, up to rounding
            totals[:, ROUNDING] += 2.0 * n * totals[:, LOSS]
        apart = (w - v)[:, self._penalised]
        drift = np.sqrt(np.einsum("ij,ij->i", apart, apart))
        totals[:, W_ALPHA] = error / (n * UNIT)
        if not self.problem.is_plain:
            self._add_penalty_terms(totals, w, v, error)
            drift[:] = totals[:, W_ALPHA] = 0.0
        gap, rounding, _ = proven_gap(totals, norm, drift, np.zeros_like(norm))
        return gap, rounding

    def _dual_point(
        self, state: State, totals: np.ndarray, w: np.ndarray, share: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return v of dual variables that prove a gap, (lanes, D), and the sizes of its terms; sets the gap's in `totals`.

        They are the a_i times r of their side: 1, but for a bias that is not penalised, which asks for Σ s_i a_i = 0, so
        the heavier side is scaled down. L1 alone asks for ``|v_j| <= l1``, so both are.
        """
        sides, line = state.matrices["v"][:, :2] + state.matrices["v"][:, 2:], state.matrices["line"]
        shares = np.ones((self.problem.n_lanes, 2))
        if self.problem.free_bias:
            sizes = np.abs(sides[:, :, -1])
            np.divide(sizes.min(axis=1, keepdims=True), sizes, out=shares, where=sizes > 0)
        v = np.einsum("lsj,ls->lj", sides, shares)
        sizes = totals[:, W_ALPHA].copy()
        shares *= self._feasible_share(v, share * sizes)[:, None]
        short = 1.0 - shares
        near, far = line[:, NEAR : NEAR + 2], line[:, FAR : FAR + 2]
        totals[:, GAP] = (short * far + short * short * near).sum(axis=1)
        totals[:, SLOPE] = short.max(axis=1) * totals[:, LOSS_SLOPE]
        return np.einsum("lsj,ls->lj", sides, shares), sizes

    def _feasible_share(self, v: np.ndarray, error: np.ndarray) -> np.ndarray:
        """Return the factors on v, (lanes,), that keep it within the bounds of the dual problem."""
        if self.problem.l2:
            return np.ones(self.problem.n_lanes)
        largest, l1 = np.abs(v[:, self._penalised]).max(axis=1) + error, self.problem.l1
        return np.asarray(np.minimum(l1 / np.maximum(largest, l1), 1.0))

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
            own, of_v = w[lane, self._penalised], v[lane, self._penalised]
            gap, slope = newton_kernels.penalty_terms(own, of_v, *self._penalty(lane))
            totals[lane, GAP] += gap
            curve = 0.5 / self.problem.l2 if self.problem.l2 else 0.0
            totals[lane, ROUNDING] += (slope + curve * error[lane]) * error[lane] / UNIT

    def violation(self, state: State) -> np.ndarray:
        """Compute ``‖∇f(w)‖ / ‖∇f(0)‖ · n / min(n₊, n₋)``, which LIBLINEAR's primal solvers compare with eps.

        With l1 it is the 1-norm of the smallest subgradient.
        """
        v = state.matrices["v"].sum(axis=1)
        norm = self._slope_norms(self._flat(state), v)
        return self.relative_to_start(state, norm, self._start_norm(state), self._smaller_share())

    def _smaller_share(self) -> np.ndarray:
        return smaller_side(self.problem, self._class_counts)

    def _start_norm(self, state: State) -> np.ndarray:
        start = state.matrices["start"]
        return self._slope_norms(np.zeros_like(start), start)

    def _slope_norms(self, w: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Return `slope_norm` of every lane, from arrays (lanes, D)."""
        norm, lanes, order = newton_kernels.slope_norm, range(self.problem.n_lanes), self._free_last
        return np.array([norm(w[k, order], v[k, order], *self._penalty(k)) for k in lanes])

    def adopt_certified_w(self, state: State, lanes: np.ndarray) -> None:
        """Do nothing: every read is made at a w of its own."""


def _error_bound(totals: np.ndarray) -> np.ndarray:
    """Bound the error of sums over the rows by `add_exactly`, as a share of the sizes of their terms.

    Joins of parts and blocks, and factors, add a few units.
    """
    n = totals[:, N_VISITED]
    return np.asarray((64.0 + n * n * UNIT) * UNIT)

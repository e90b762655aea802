"""Primal coordinate descent over the column layout: Algorithms 1 and 3 of Chang, Hsieh, Lin (2008), and CDN.

The state is w and the score ``z = w·x`` of every row and lane, updated with every step. alpha = ``-C ξ'`` at the rows'
margins is a point of the dual, so ``½‖∇f(w)‖²`` is the duality gap: summed while a pass visits the coordinates it is an
estimate; in a read at fixed w, which recomputes the scores, it is the certificate.

Acceleration extrapolates the points where passes end. If a pass ends at x_k, the next one begins at ``x_k + beta (x_k -
x_{k-1})``. The scores there are the same combination of the scores at both points, so beta comes from a line search that
reads no data: one Newton step for the objective along the line, and beta is 0 after a pass that did not lower it.
Objective, certificate, gap and violation are those at x_k: between reads, and while a lane is certified, w and the scores
are those. With beta = 0 this is plain coordinate descent, bit for bit.

Where plain descent takes 40 passes or more, this takes a half to a quarter of them; Nesterov's momentum with restarts
gains as much by primal, and less by online, whose visits are noisy. Minimising over the last three points gains a fifth
more, and needs one more array of each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from ..core.setting import random_key
from ..dataset.dataset import Dataset
from ..kernels import primal as primal_kernels
from ..kernels import primitives
from ..kernels import weights as weight_kernels
from ..kernels.primal import LOSS_SUM, N_SUMS, PHI, ColumnCosts, ColumnData, Columns, Scores, Span
from ..kernels.primitives import Total
from ..stream.arenas import ColumnArena, Window, empty_window
from ..stream.memory_plan import Plan
from .memory import primal_memory
from .problem import Problem
from .protocol import (
    CERTIFY,
    TRAIN,
    Estimates,
    Solver,
    Start,
    State,
    all_rows,
    certificate,
    new_lanes,
    new_totals,
    relative_violation,
)
from .row_scores import PagedRows, Rows, count_before, new_rows, read_rows

_MAX_FACTOR = 1.0  # of extrapolation: with 2 it took up to 2.5 times the passes, and rounding errors of scores would grow
_BIAS = -1  # stands for the bias in an order of columns
_BIAS_WINDOW = 2**32 - 2  # in place of the window in the random key that chooses the window of the bias


class PrimalSolver(Solver):
    """Primal coordinate descent for losses with a curvature: every coordinate once a pass, in random order.

    Or, `with_replacement`, as many coordinates drawn uniformly at random (Algorithm 3): a window makes as many draws as it
    holds features, so each feature has one expected visit per pass, whatever the chunks.
    """

    warm_start: Start = "w and scores"

    def __init__(
        self,
        problem: Problem,
        dataset: Dataset,
        seed: int,
        plan: Plan | None,
        folder: Path | None,
        *,
        with_replacement: bool,
        extrapolates: bool,
    ) -> None:
        self.problem, self._dataset, self._seed = problem, dataset, seed
        self._with_replacement, self._extrapolates = with_replacement, extrapolates
        self.memory = primal_memory(
            problem, dataset, with_replacement=with_replacement, extrapolates=extrapolates
        )
        self.layout = self.memory.layout
        self.paged: PagedRows | None = None
        if plan is not None and folder is not None and plan.page_rows:
            pages = folder, dataset, problem, seed, plan.page_rows
            self.paged = PagedRows(*pages, extrapolates=extrapolates)

    @cached_property
    def _costs(self) -> ColumnCosts:
        """Problem as an argument of kernels; made after the plan, which counts its memory."""
        problem = self.problem
        return ColumnCosts(signed_costs(problem), problem.row_loss, problem.bias, problem.free_bias)

    @cached_property
    def _constants(self) -> list[np.ndarray]:
        return all_constants(self._dataset, self.problem, self._seed)

    def new_state(self) -> State:
        """Return the state before the first read: w and the scores are 0."""
        return self._new_state(self.problem.n_features + 1, 0 if self.paged else self._dataset.n_rows)

    def _new_state(self, size: int, n_rows: int) -> State:
        n_lanes = self.problem.n_lanes
        lanes = new_lanes(n_lanes, TRAIN) | {"start_norm": np.full(n_lanes, np.nan)}
        state = State(np.zeros((size, n_lanes)), new_totals(n_lanes), lanes)
        if n_rows or not self.paged:
            state.rows["score"] = np.zeros((n_rows, n_lanes))
        if self._extrapolates:  # from where the pass before the last ended
            state.matrices["previous"] = np.zeros(state.w.shape)
            if "score" in state.rows:  # else they are in pages
                state.rows["previous"] = np.zeros(state.rows["score"].shape)
            state.lanes |= {"extrapolation": np.zeros(n_lanes), "objective": np.full(n_lanes, np.inf)}
        return state

    def load_kernels(self, dataset: Dataset, state: State) -> None:
        """Compile the kernels by passes over no columns of no rows, before windows are allocated."""
        nothing, window = copy(self), empty_window(self.layout.new_arena(self.layout.open(dataset), 2, 0))
        rows, lanes, order = new_rows(self.problem, dataset), np.arange(1), np.zeros(1, dtype=np.int64)
        nothing.paged, nothing._constants = None, [rows.kind, rows.weight, rows.target]
        state = nothing._new_state(1, 0)
        for phase in (CERTIFY, TRAIN):
            state.lanes["phase"][:] = phase
            nothing.visit(window, state, order, np.uint64(0))
            nothing._visit_segments(window, state, _BIAS, lanes, lanes < 0, phase == CERTIFY)
            nothing.certificate(state)
        nothing.estimate(state, lanes)
        if self.paged:
            with self.paged.loaded(window, "score"):
                pass

    def visit(self, window: Window, state: State, order: np.ndarray, key: np.uint64) -> None:
        """Certify lanes at their fixed w, then train the others."""
        certifying, training = state.phase(CERTIFY), state.phase(TRAIN)
        if certifying.size:
            if window.number == 0:
                self._begin_certificates(state, certifying)
            self._visit_columns(window, state, self.columns(window, order), certifying, certifies=True)
        if training.size:
            if self._extrapolates and window.number == 0:
                factor = state.lanes["extrapolation"]
                weight_kernels.extrapolate(state.w, state.matrices["previous"], training, factor)
                for block in self._rows(state).iter_blocks(saved=("score", "previous")):
                    weight_kernels.extrapolate(block.score, block.previous, training, factor)
            self._visit_columns(window, state, self.visits(window, order, key), training)

    def _visit_columns(
        self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray, *, certifies: bool = False
    ) -> None:
        """Visit columns in order; a column too long for memory, or the bias whose rows are paged, in segments."""
        rows, changed = self._rows(state), "fresh" if certifies else "score"
        begins, w = np.isnan(state.lanes["start_norm"]), state.w.reshape(-1)
        alone = np.arange(order.size) if window.sweep else np.flatnonzero((order == _BIAS) & bool(self.paged))
        start = 0
        for stop in [*alone.tolist(), order.size]:
            if stop > start or not order.size:
                with rows.loaded(window, changed) as held:
                    data = ColumnData(columns_of(window.arena), held.arrays, self._costs)
                    if certifies:
                        primal_kernels.primal_certify(order[start:stop], data, w, lanes, state.totals)
                    else:
                        primal_kernels.primal_visit(order[start:stop], data, w, begins, lanes, state.totals)
            if stop < order.size:
                self._visit_segments(window, state, int(order[stop]), lanes, begins, certifies)
            start = stop + 1

    def _visit_segments(
        self,
        window: Window,
        state: State,
        offset: int,
        lanes: np.ndarray,
        begins: np.ndarray,
        certifies: bool,
    ) -> None:
        """Visit a column segment by segment: to certify in one sweep over it, to train in two."""
        is_bias = offset == _BIAS
        w = state.w[-1 if is_bias else window.arena.feature[offset]]
        ridge = 0.0 if is_bias and self.problem.free_bias else 1.0
        segments = partial(self._segments, window, self._rows(state), is_bias)
        if certifies:
            v = np.zeros(w.size)
            for data, span in segments(saved=("fresh",)):
                primal_kernels.segment_products(span, data, lanes, v)
                primal_kernels.move_segment(span, data, lanes, w, data.scores.fresh)
            primal_kernels.add_gap_terms(w, v, ridge, lanes, state.totals)
            return
        sums, steps = np.zeros((w.size, 4)), np.zeros(w.size)
        for data, span in segments():
            primal_kernels.segment_slopes(span, data, begins, lanes, sums)
        primal_kernels.choose_steps(sums, w, ridge, self._costs.loss, lanes, state.totals, steps)
        for data, span in segments(saved=("score",)) if steps.any() else ():
            primal_kernels.move_segment(span, data, lanes, steps, data.scores.score)

    def _segments(
        self, window: Window, kept: Rows | PagedRows, is_bias: bool, *, saved: Sequence[str] = ()
    ) -> Iterator[tuple[ColumnData, Span]]:
        """Iterate over the segments of a column, each with its rows, whose arrays named in `saved` are stored afterwards."""

        def data(rows: Rows) -> ColumnData:
            return ColumnData(columns_of(window.arena), rows.arrays, self._costs)

        if is_bias:
            for rows in kept.iter_blocks(saved=saved):
                yield data(rows), Span(0, rows.score.shape[0], True)
            return
        row = window.arena.row
        assert window.sweep is not None
        for n in window.sweep():
            start = 0
            for rows in kept.iter_blocks(int(row[0]), int(row[n - 1]) + 1, saved=saved):
                stop = start + count_before(row[start:n], rows.first + rows.score.shape[0])
                row[start:stop] -= rows.first  # the next sweep decodes them again
                yield data(rows), Span(start, stop, False)
                start = stop

    def columns(self, window: Window, order: np.ndarray) -> np.ndarray:
        """Write the offsets of a window's columns, and of the bias in one window per read, to the front of `order`."""
        chosen = all_rows(window, order)
        if self.problem.bias and self._bias_window(window) == window.number:
            order[chosen.size] = _BIAS
            return order[: chosen.size + 1]
        return chosen

    def visits(self, window: Window, order: np.ndarray, key: np.uint64) -> np.ndarray:
        """Write the offsets of the columns in visiting order, a function of `key`, to the front of `order`."""
        chosen = self.columns(window, order)
        if self._with_replacement:
            primitives.draw(chosen.copy(), key, chosen)
        else:
            primitives.shuffle(chosen, key)
        return chosen

    def constants(self, window: Window, state: State) -> Iterator[tuple[np.ndarray, ...]]:
        """Iterate over those of all rows, with the first window."""
        for rows in self._rows(state).iter_blocks() if window.number == 0 else ():
            yield rows.kind, rows.weight, rows.target

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Store ``‖∇f(0)‖``, which the first pass has summed, and drop the scores of a read at fixed w."""
        state.rows.pop("fresh", None)  # which keeps checkpoints small
        norm = state.lanes["start_norm"]
        norm[trained] = np.where(np.isnan(norm[trained]), _start_norm(state)[trained], norm[trained])

    def certificate(self, state: State) -> dict[str, np.ndarray]:
        """Compute ``½‖w - v‖² + Σ phi``, ``v = w(alpha)``, with alpha from the kept scores and margins from the fresh ones.

        Training goes on with these.
        """
        lanes = state.phase(CERTIFY)
        sums = np.zeros((self.problem.n_lanes, N_SUMS))
        for rows in self._rows(state).iter_blocks(more=("fresh",), saved=("score",)) if lanes.size else ():
            primal_kernels.add_row_terms(rows.arrays, self._costs, lanes, sums)
        primal = self.problem.penalty(state.w) + sums[:, LOSS_SUM]
        gap = state.totals[:, Total.GAP] + sums[:, PHI]
        n_terms = float(max(self._dataset.n_rows, self.problem.n_features + 1)) + 100.0
        return certificate(primal, gap, self._violation(state), n_terms)

    def _violation(self, state: State) -> np.ndarray:
        norm = np.sqrt(2.0 * np.maximum(state.totals[:, Total.GAP], 0.0))
        seen = np.isfinite(state.totals[:, Total.VIOLATION_MAX])
        counts = self._dataset.class_counts
        return np.where(seen, relative_violation(self.problem, counts, state, norm, _start_norm(state)), 0.0)

    def estimate(self, state: State, trained: np.ndarray) -> Estimates:
        """Estimate the gaps by the columns' terms; the objectives are the scores', exact but for their drift.

        With acceleration the next pass begins at the extrapolation that is found on the way.
        """
        sums, penalised, kept = np.zeros((self.problem.n_lanes, 3)), self.problem.penalised, state.lanes
        if self._extrapolates:
            points = state.w[penalised], state.matrices["previous"][penalised]
            weight_kernels.add_line_products(*points, trained, sums)
        else:
            sums[:, 0] = self.problem.penalty(state.w)
        for block in self._rows(state).iter_blocks(more=("previous",) if self._extrapolates else ()):
            previous = block.previous.reshape(-1)
            primal_kernels.add_line_terms(block.arrays, previous, self._costs, trained, sums)
        primal, slope, curve = sums.T
        if self._extrapolates:
            falls = (curve > 0.0) & (primal <= kept["objective"])  # else the last extrapolation was too long
            factor = np.divide(-slope, curve, out=np.zeros_like(slope), where=falls)
            kept["extrapolation"][trained] = np.clip(factor, 0.0, _MAX_FACTOR)[trained]
            kept["objective"][trained] = primal[trained]
        gap = np.abs(state.totals[:, Total.GAP])  # negative only by rounding
        return Estimates(gap, primal, self._violation(state))

    # -- inside

    def _bias_window(self, window: Window) -> int:
        return int(random_key(self._seed, window.read, _BIAS_WINDOW)) % window.count

    def _begin_certificates(self, state: State, lanes: np.ndarray) -> None:
        """Put pulls in the place of scores, and scores at w = 0 in that of the fresh ones."""
        if not self.paged:
            state.rows.setdefault("fresh", np.zeros_like(state.rows["score"]))

        def blocks() -> Iterator[Scores]:
            for rows in self._rows(state).iter_blocks(saved=("score", "fresh")):
                rows.fresh[:, lanes] = 0.0
                yield rows.arrays

        set_pulls(blocks, self._costs, lanes)

    def _rows(self, state: State) -> Rows | PagedRows:
        if self.paged is not None:
            return self.paged
        score, (kind, weight, target) = state.rows["score"], self._constants
        fresh, previous = (state.rows.get(name, score[:0]) for name in ("fresh", "previous"))
        return Rows(0, score, fresh, kind, weight, target, previous)


def columns_of(arena: ColumnArena) -> Columns:
    """Return an arena as an argument of kernels."""
    return Columns(arena.indptr, arena.feature, primitives.unsigned(arena.row), arena.value)


def _start_norm(state: State) -> np.ndarray:
    return np.sqrt(np.maximum(state.totals[:, Total.DUAL], 0.0))


def all_constants(dataset: Dataset, problem: Problem, seed: int) -> list[np.ndarray]:
    """Read kind, weight and target of all rows; see `read_rows`."""
    return [np.concatenate(column) for column in zip(*read_rows(dataset, problem, seed), strict=True)]


def set_pulls(blocks: Callable[[], Iterable[Scores]], costs: ColumnCosts, lanes: np.ndarray) -> None:
    """Replace the scores of blocks of rows by pulls; for a free bias, whose dual asks for Σ pull = 0, by feasible ones."""
    n_lanes = costs.signed.shape[1]
    sums = np.zeros((2, n_lanes))
    for scores in blocks():
        primal_kernels.set_pull(scores, costs, lanes, sums)
    if costs.free_bias:  # the heavier side is scaled down to the lighter one
        sides = np.abs(sums)
        below, above = np.divide(sides.min(axis=0), sides, out=np.ones_like(sides), where=sides > 0)
        for scores in blocks():
            pulls = scores.score.reshape(-1, n_lanes)
            for first in range(0, len(pulls), 1 << 14):
                some = pulls[first : first + (1 << 14)]
                some *= np.where(some > 0.0, above, below)


def signed_costs(problem: Problem) -> np.ndarray:
    """Compute y C of a row by ``class * cells + cell`` and lane; 0 if the lane leaves the row out."""
    costs = problem.sign * problem.cost
    if problem.n_folds:
        kept = np.arange(problem.n_folds)[:, None] != problem.lane_fold
        costs = (costs[:, None, :] * kept).reshape(-1, problem.n_lanes)
    return np.ascontiguousarray(costs)

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

from copy import copy
from dataclasses import replace
from functools import cached_property

import numpy as np

from ..core.setting import random_key
from ..dataset.dataset import Dataset
from ..kernels import primal as primal_kernels
from ..kernels import primitives
from ..kernels import weights as weight_kernels
from ..kernels.primal import LOSS_SUM, N_SUMS, PHI, ColumnCosts, ColumnData, Columns, Scores
from ..kernels.primitives import Total
from ..stream.arenas import (
    RESIDENT_WINDOW_ENTRIES,
    ColumnArena,
    ColumnLayout,
    Window,
    class_codes,
    empty_window,
)
from ..stream.memory_plan import SolverMemory
from .problem import Problem
from .protocol import (
    CERTIFY,
    START_NORM,
    TRAIN,
    Array,
    Estimates,
    Solver,
    SolverOptions,
    Start,
    State,
    all_rows,
    certificate,
)

_MAX_FACTOR = 1.0  # of extrapolation: with 2 it took up to 2.5 times the passes, and rounding errors of scores would grow
_BIAS = -1  # stands for the bias in an order of columns
_BIAS_WINDOW = 2**32 - 2  # in place of the window in the random key that chooses the window of the bias

RowConstants = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Kind, weight and target of rows, see `Scores`."""

ARRAYS = (
    Array("score", "w·x of every row", axes=("rows", "lanes")),
    Array("fresh", "scores summed up anew, in a read at fixed w", axes=("rows", "lanes"), temporary=True),
    START_NORM,
)
"""State of `PrimalSolver`."""

EXTRAPOLATION_ARRAYS = (
    Array("previous", "w where the pass before the last ended", axes=("features", "vectors")),
    Array("previous_score", "scores there", axes=("rows", "lanes")),
    Array("extrapolation", "beta, factor on the last movement"),
    Array("objective", "where the last pass ended", initial=np.inf),
)
"""State of extrapolation."""


class PrimalSolver(Solver):
    """Primal coordinate descent for losses with a curvature.

    Problem: ``min_w ½‖w‖² + Σ C_i loss_i(w·x_i)`` of every lane, by one w_j after another: a Newton step, shortened until
    the objective falls enough. Primal visits every coordinate once a pass, in random order. Online draws as many uniformly
    at random (Algorithm 3): a window makes as many draws as it holds features, so each has one expected visit per pass,
    whatever the chunks. Solution: w, with the score of every row, kept at every step. Source: Chang, Hsieh, Lin, JMLR 9
    (2008).
    """

    warm_start: Start = "w and scores"

    def __init__(self, problem: Problem, dataset: Dataset, options: SolverOptions) -> None:
        super().__init__(problem, dataset, options)
        self._with_replacement = options.method == "online"
        self._extrapolates = options.acceleration != "none"
        self.arrays = (*ARRAYS, *(EXTRAPOLATION_ARRAYS if self._extrapolates else ()))

    @staticmethod
    def memory_of(problem: Problem, dataset: Dataset, options: SolverOptions) -> SolverMemory:
        """Count two arrays of the size of w, and as many scores of every row and lane; with extrapolation three.

        Where the scores take most, the dual method is named: its dual variables are on disk.
        """
        # with all columns in one window, independent draws are exactly Algorithm 3
        window = max(dataset.n_entries, 1) if options.method == "online" else RESIDENT_WINDOW_ENTRIES
        points = 3 if options.acceleration != "none" else 2
        layout = ColumnLayout(window, centred=problem.free_bias)
        weights = points * 8 * (problem.n_features + 1) * problem.n_lanes + signed_costs_bytes(problem)
        rows = dataset.n_rows * (points * 8 * problem.n_lanes + constant_bytes(problem, dataset))
        if rows <= weights:
            return SolverMemory(layout, weights, rows)
        advice = "give a larger --memory, or take --method dual, which keeps no scores of rows in memory"
        return SolverMemory(layout, weights, rows, advice=advice)

    @cached_property
    def _costs(self) -> ColumnCosts:
        """Problem as an argument of kernels; made after the plan, which counts its memory."""
        problem = self.problem
        return ColumnCosts(signed_costs(problem), problem.row_loss, problem.bias, problem.free_bias)

    @cached_property
    def _constants(self) -> RowConstants:
        return read_constants(self.dataset, self.problem, self.options.seed)

    def load_kernels(self, dataset: Dataset, state: State) -> None:
        """Compile the kernels by passes over no columns of no rows, before windows are allocated."""
        nothing = copy(self)
        window = empty_window(self.layout.new_arena(self.layout.open(dataset), 2, 0))
        lanes = np.arange(1)
        order = np.zeros(1, dtype=np.int64)
        nothing._constants = new_constants(dataset, self.problem, 0)
        state = State(state.declared.values(), state.sizes | {"features": 1, "rows": 0})
        window.arena.feature[:] = 0
        long = replace(window, sweep=lambda: iter([0]))
        for phase in (CERTIFY, TRAIN):
            state.phase[:] = phase
            nothing.visit(window, state, order, np.uint64(0))
            nothing._visit_long(long, nothing._data(window, state), state, lanes, certifies=phase == CERTIFY)
            nothing.certificate(state)
        nothing.estimate(state, lanes)

    def visit(self, window: Window, state: State, order: np.ndarray, key: np.uint64) -> None:
        """Visit a window's columns once.

        Given: lanes at fixed w (CERTIFY) and lanes that train. Changed in place: of the former the totals, `fresh` and, with
        the first window, `score`, which becomes the rows' pull; of the latter w, `score` and the totals, with the first
        window also `previous` and `previous_score`. `order` is room for the window's columns and the bias.
        """
        certifying = state.lanes_in(CERTIFY)
        training = state.lanes_in(TRAIN)
        if certifying.size:
            if window.number == 0:
                state.make("fresh")
                set_pulls(self._scores(state), self._costs, certifying)
            self._visit_columns(window, state, self._columns(window, order), certifying, certifies=True)
        if training.size:
            if self._extrapolates and window.number == 0:
                factor = state.extrapolation
                weight_kernels.extrapolate(state.w, state.previous, training, factor)
                weight_kernels.extrapolate(state.score, state.previous_score, training, factor)
            columns = self._columns(window, order)
            if self._with_replacement:
                primitives.draw(columns.copy(), key, columns)
            else:
                primitives.shuffle(columns, key, 1)
            self._visit_columns(window, state, columns, training, certifies=False)

    def _columns(self, window: Window, order: np.ndarray) -> np.ndarray:
        """Write the offsets of a window's columns, and of the bias in one window per read, to the front of `order`."""
        chosen = all_rows(window, order)
        bias_window = int(random_key(self.options.seed, window.read, _BIAS_WINDOW)) % window.count
        if self.problem.bias and window.number == bias_window:
            order[chosen.size] = _BIAS
            return order[: chosen.size + 1]
        return chosen

    def _visit_columns(
        self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray, *, certifies: bool
    ) -> None:
        """Visit columns in order; one too long for memory, which has a window of its own, in segments."""
        data = self._data(window, state)
        w = state.w.reshape(-1)
        begins = np.isnan(state.start_norm)
        for some in [order] if window.sweep is None else order[:, None]:
            if window.sweep is not None and some[0] != _BIAS:
                self._visit_long(window, data, state, lanes, certifies=certifies)
            elif certifies:
                primal_kernels.primal_certify(some, data, w, lanes, state.totals)
            else:
                primal_kernels.primal_visit(some, data, w, begins, lanes, state.totals)

    def _visit_long(
        self, window: Window, data: ColumnData, state: State, lanes: np.ndarray, *, certifies: bool
    ) -> None:
        """Visit a column segment by segment: to certify in one sweep over it, to train in two."""
        sweep = window.sweep
        scores = data.scores
        w = state.w[window.arena.feature[0]]
        assert sweep is not None
        if certifies:
            v = np.zeros(w.size)
            for size in sweep():
                primal_kernels.segment_products(size, data, lanes, v)
                primal_kernels.move_segment(size, data, lanes, w, scores.fresh)
            primal_kernels.add_gap_terms(w, v, lanes, state.totals)
            return
        sums = np.zeros((w.size, 4))
        steps = np.zeros(w.size)
        begins = np.isnan(state.start_norm)
        for size in sweep():
            primal_kernels.segment_slopes(size, data, begins, lanes, sums)
        primal_kernels.choose_steps(sums, w, self._costs.loss, lanes, state.totals, steps)
        for size in sweep() if steps.any() else ():
            primal_kernels.move_segment(size, data, lanes, steps, scores.score)

    def add_at_zero(self, window: Window, state: State) -> None:
        """Add those of all rows with the first window; see `Solver`."""
        if window.read == window.number == 0:
            total = state.totals[:, Total.AT_ZERO]
            self.problem.add_losses_at_zero(total, *self._constants, self.shift)

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Store ``‖∇f(0)‖``, which the first pass has summed, and drop the scores of a read at fixed w."""
        state.drop("fresh")  # which keeps checkpoints small
        norm = state.start_norm
        begun = trained[np.isnan(norm[trained])]
        norm[begun] = np.sqrt(state.totals[begun, Total.DUAL])

    def certificate(self, state: State) -> dict[str, np.ndarray]:
        """Compute ``½‖w - v‖² + Σ phi``, ``v = w(alpha)``, with alpha from the kept scores and margins from the fresh ones.

        Training goes on with these.
        """
        sums = np.zeros((self.problem.n_lanes, N_SUMS))
        primal_kernels.add_row_terms(self._scores(state), self._costs, state.lanes_in(CERTIFY), sums)
        primal = self.problem.penalty(state.w) + sums[:, LOSS_SUM]
        gap = state.totals[:, Total.GAP] + sums[:, PHI]
        n_terms = float(max(self.dataset.n_rows, self.problem.n_features + 1)) + 100.0
        return certificate(primal, gap, self._violation(state), n_terms)

    def _violation(self, state: State) -> np.ndarray:
        norm = np.sqrt(2.0 * state.totals[:, Total.GAP])
        start = np.sqrt(state.totals[:, Total.DUAL])
        return self.relative_violation(state, norm, start)

    def estimate(self, state: State, trained: np.ndarray) -> Estimates:
        """Estimate the gaps by the columns' terms; the objectives are the scores', exact but for their drift.

        With acceleration the next pass begins at the extrapolation that is found on the way.
        """
        sums = np.zeros((self.problem.n_lanes, 3))
        penalised = self.problem.penalised
        if self._extrapolates:
            points = state.w[penalised], state.previous[penalised]
            weight_kernels.add_line_products(*points, trained, sums)
        else:
            sums[:, 0] = self.problem.penalty(state.w)
        previous = (state.previous_score if self._extrapolates else state.score[:0]).reshape(-1)
        primal_kernels.add_line_terms(self._scores(state), previous, self._costs, trained, sums)
        primal, slope, curve = sums.T
        if self._extrapolates:
            falls = (curve > 0.0) & (primal <= state.objective)  # else the last extrapolation was too long
            factor = np.divide(-slope, curve, out=np.zeros_like(slope), where=falls)
            state.extrapolation[trained] = np.clip(factor, 0.0, _MAX_FACTOR)[trained]
            state.objective[trained] = primal[trained]
        gap = state.totals[:, Total.GAP]
        return Estimates(gap, primal, self._violation(state), np.zeros(gap.size))

    def _scores(self, state: State) -> Scores:
        score = state.score
        fresh = getattr(state, "fresh", score[:0])
        return Scores(score.reshape(-1), fresh.reshape(-1), *self._constants)

    def _data(self, window: Window, state: State) -> ColumnData:
        return ColumnData(columns_of(window.arena), self._scores(state), self._costs)


def columns_of(arena: ColumnArena) -> Columns:
    """Return an arena as an argument of kernels."""
    return Columns(arena.indptr, arena.feature, primitives.unsigned(arena.row), arena.value)


def new_constants(dataset: Dataset, problem: Problem, n_rows: int) -> RowConstants:
    """Make arrays for kind, weight and target of rows, as in `Scores`."""
    kind = np.empty(n_rows, kind_dtype(problem.n_kinds, problem.n_folds))
    weight, target = (np.empty(n_rows if has else 0) for has in (dataset.weighted, problem.has_targets))
    return kind, weight, target


def read_constants(dataset: Dataset, problem: Problem, seed: int) -> RowConstants:
    """Read kind, weight and target of all rows; `seed` is that of the folds.

    Raises `DatasetError` if the manifest does not list a label.
    """
    kind, weight, target = constants = new_constants(dataset, problem, dataset.n_rows)
    n_folds = problem.n_folds
    shift = dataset.centre.target if problem.free_bias and dataset.centre is not None else 0.0
    for chunk in range(dataset.n_chunks):
        rows = slice(*dataset.row_start[chunk : chunk + 2])
        label, weights, source = dataset.read_rows(chunk, ("label", "weight", "source"))
        code = class_codes(dataset, chunk, label)
        kind[rows] = code * n_folds + dataset.folds_of(source, seed, n_folds) if n_folds else code
        if dataset.weighted:
            weight[rows] = weights
        if problem.has_targets:
            target[rows] = label - shift
    return constants


def set_pulls(scores: Scores, costs: ColumnCosts, lanes: np.ndarray) -> None:
    """Replace the scores of rows by pulls; for a free bias, whose dual asks for Σ pull = 0, by feasible ones."""
    n_lanes = costs.signed.shape[1]
    sums = np.zeros((2, n_lanes))
    primal_kernels.set_pull(scores, costs, lanes, sums)
    if costs.free_bias:  # the heavier side is scaled down to the lighter one
        sides = np.abs(sums)
        below, above = np.divide(sides.min(axis=0), sides, out=np.ones_like(sides), where=sides > 0)
        pulls = scores.score.reshape(-1, n_lanes)
        for first in range(0, len(pulls), 1 << 14):
            some = pulls[first : first + (1 << 14)]
            some *= np.where(some > 0.0, above, below)


def signed_costs(problem: Problem) -> np.ndarray:
    """Compute y C of a row by ``class * cells + cell`` and lane; 0 if the lane leaves the row out."""
    costs = problem.sign * problem.cost
    if problem.n_folds:
        counted = np.arange(problem.n_folds)[:, None] != problem.lane_fold
        costs = (costs[:, None, :] * counted).reshape(-1, problem.n_lanes)
    return np.ascontiguousarray(costs)


def signed_costs_bytes(problem: Problem) -> int:
    """Count the bytes of signed costs, and of temporary tables for them and for the smaller side of a row."""
    return 3 * max(problem.n_folds, 1) * problem.full_table_bytes


def kind_dtype(n_classes: int, n_cells: int) -> np.dtype:
    """Choose the integer type of ``class * cells + cell``."""
    return np.dtype(np.uint16 if n_classes * max(n_cells, 1) <= 1 << 16 else np.uint32)


def constant_bytes(problem: Problem, dataset: Dataset) -> int:
    """Compute the bytes of a row's kind, weight and target."""
    kind = kind_dtype(problem.n_kinds, problem.n_folds)
    return kind.itemsize + 8 * dataset.weighted + 8 * problem.has_targets

"""Primal coordinate descent over the column layout: Algorithms 1 and 3 of Chang, Hsieh, Lin (2008), and CDN.

The state is w and the score ``z = w·x`` of every row and lane, updated with every step. alpha = ``-C ξ'`` at the rows'
margins is a point of the dual, so ``½‖∇f(w)‖²`` is the duality gap: summed while a pass visits the coordinates it is an
estimate; in a read at fixed w, which recomputes the scores, it is the certificate.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from ..core.randomness import random_key
from ..core.threads import Threads
from ..dataset.dataset import Dataset
from ..kernels import primal as primal_kernels
from ..kernels import primitives
from ..kernels.columns import ColumnCosts, ColumnData, Columns
from ..kernels.compile import return_free_memory
from ..kernels.loss_table import LOG_LOSS, Loss
from ..kernels.losses import numbers_of
from ..kernels.primal import (
    LARGEST_COST,
    LINEAR_SUM,
    LOSS_SUM,
    N_SUMS,
    OVER_COST_SUM,
    PHI,
    ROUNDING_SUM,
    SLOPES_SUM,
    SQUARES_SUM,
)
from ..kernels.primitives import CURVE, DUAL, GAP, ROUNDING, UNIT, VIOLATION_MAX, W_ALPHA
from ..stream.memory_plan import Plan, long_units
from ..stream.window import Window, empty_window
from . import long_columns
from .extrapolation import Extrapolation, sum_up_objective
from .gap_bounds import NEGLIGIBLE
from .memory import primal_memory
from .problem import Problem, smaller_side
from .protocol import (
    CERTIFY,
    TRAIN,
    AllRows,
    Estimates,
    Start,
    State,
    all_rows,
    certificate_of,
    new_lanes,
    new_totals,
)
from .row_scores import PagedRows, RowsInMemory, no_rows, read_rows

_BIAS = -1  # stands for the bias in an order of columns
_BIAS_WINDOW = 2**32 - 2  # in place of the window in the random key that chooses the window of the bias


class PrimalSolver(AllRows):
    """Primal coordinate descent for losses with a curvature: every coordinate once a pass, in random order."""

    threads = Threads()

    with_replacement = False
    warm_start: Start = "w and scores"

    def __init__(self, problem: Problem, dataset: Dataset, seed: int, *, extrapolates: bool = False) -> None:
        self.problem, self._dataset, self._seed = problem, dataset, seed
        self._extrapolation = Extrapolation(problem) if extrapolates else None
        self.memory = primal_memory(
            problem, dataset, with_replacement=self.with_replacement, extrapolates=extrapolates
        )
        self.layout = self.memory.layout
        self._plan: Plan | None = None
        self._paged: PagedRows | None = None
        self._constants: list[np.ndarray] | None = None

    @cached_property
    def _costs(self) -> ColumnCosts:
        """Problem as an argument of kernels; made after the plan, which counts its memory."""
        problem = self.problem
        return ColumnCosts(signed_costs(problem), problem.row_loss, problem.bias, problem.free_bias)

    def use_plan(self, folder: Path, plan: Plan) -> PagedRows | None:
        """Keep the scores in a file if the plan has pages of rows."""
        self._plan = plan
        if not plan.page_rows:
            return None
        extrapolates = self._extrapolation is not None
        arguments = (folder, self._dataset, self.problem, self._seed, plan.page_rows)
        self._paged = PagedRows(*arguments, extrapolates=extrapolates)
        return self._paged

    def new_state(self) -> State:
        """Return the state before the first read: w and the scores are 0."""
        n_lanes = self.problem.n_lanes
        lanes = new_lanes(n_lanes, TRAIN) | {"start_norm": np.full(n_lanes, np.nan)}
        lanes |= {"side_minus": np.ones(n_lanes), "side_plus": np.ones(n_lanes)}
        state = State(
            np.zeros((self.problem.n_features + 1, n_lanes)),
            np.zeros((0, n_lanes)),
            new_totals(n_lanes),
            lanes,
        )
        if self._paged is None:
            state.rows["score"] = np.zeros((self._dataset.n_rows, n_lanes))
        if self._extrapolation:
            self._extrapolation.add_to(state)
        return state

    def load_kernels(self, dataset: Dataset, state: State) -> None:
        """Compile the kernels by visiting no columns of no rows, before windows are allocated."""
        table = self.layout.open(dataset)
        window, rows = empty_window(self.layout.new_arena(table, 2, 0)), no_rows(self.problem, dataset)
        none, n_lanes = window.chunks, self.problem.n_lanes
        begins, side = np.isnan(state.lanes["start_norm"]), _sides(state)
        data, w = ColumnData(columns_of(window), rows.arrays, self._costs), state.w.reshape(-1)
        if self.with_replacement:
            primitives.draw(none, np.uint64(0), none)
        primal_kernels.primal_visit(none, data, w, begins, none, state.totals)
        primal_kernels.primal_certify(none, data, w, side, none, state.totals)
        primal_kernels.side_sums(rows.arrays, self._costs, none, np.zeros((2, n_lanes)))
        primal_kernels.add_row_terms(rows.arrays, self._costs, side, none, np.zeros((n_lanes, N_SUMS)))
        primal_kernels.add_losses(rows.arrays, self._costs, none, np.zeros(n_lanes))
        _diagonal_of_a_cone(self.problem.row_loss)
        if self._extrapolation:
            self._extrapolation.load_kernels(state, rows, self._costs)
        if self._paged is not None:
            self._paged.load_kernels(window.arena)
        if self._plan is not None and (self._paged is not None or long_units(table, self._plan).any()):
            long_columns.load_kernels(self._long_column(window, state, _BIAS), rows, begins, side)
        return_free_memory()

    def visit(self, window: Window, state: State, order: np.ndarray, key: np.uint64) -> None:
        """Certify lanes at their fixed w, then train the others."""
        certifying, training = state.phase(CERTIFY), state.phase(TRAIN)
        if certifying.size:
            if window.number == 0:
                self._begin_certificates(state, certifying)
            self._sweep(window, state, self.columns(window, order), "fresh", _sides(state), certifying)
        if training.size:
            if self._extrapolation:
                self._extrapolation.begin_pass(state, training, self._rows(state), self._costs)
            begins = np.isnan(state.lanes["start_norm"])
            self._sweep(window, state, self.visits(window, order, key), "score", begins, training)

    def _sweep(
        self, window: Window, state: State, order: np.ndarray, changed: str, *of_lanes: np.ndarray
    ) -> None:
        """Visit columns in order, with the kernels that change the scores `changed`: certify, or train."""
        certifies = changed == "fresh"
        visit = primal_kernels.primal_certify if certifies else primal_kernels.primal_visit
        for columns, column in self._columns(window, state, order, changed):
            if column is not None:
                (long_columns.certify if certifies else long_columns.train)(column, *of_lanes)
            else:
                visit(*columns, *of_lanes, state.totals)
        self._rows(state).store((changed,))

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
        if self.with_replacement:
            primitives.draw(chosen.copy(), key, chosen)
        else:
            primitives.shuffle(chosen, key)
        return chosen

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Store ``‖∇f(0)‖``, which the first pass has summed, and drop the scores of a read at fixed w."""
        self._rows(state).end_read()
        norm = state.lanes["start_norm"]
        norm[trained] = np.where(np.isnan(norm[trained]), _start_norm(state)[trained], norm[trained])

    def certificate(self, state: State) -> dict[str, np.ndarray]:
        """Compute ``½‖w - v‖² + Σ phi``, ``v = w(alpha)``, with alpha from the kept scores and margins from the fresh ones.

        Where bounds allow it alpha is scaled to the best point on its ray, at no cost. The gap is at most the primal,
        because alpha = 0 is dual feasible. Rounding is included as in `dual.RowSolver.certificate`.
        """
        lanes = state.phase(CERTIFY)
        sums = np.zeros((self.problem.n_lanes, N_SUMS))
        for rows in self._rows(state).iter_blocks(more=("fresh",)) if lanes.size else ():
            primal_kernels.add_row_terms(rows.arrays, self._costs, _sides(state), lanes, sums)
        totals = state.totals
        primal = self.problem.penalty(state.w) + sums[:, LOSS_SUM]
        gap = totals[:, GAP] + sums[:, PHI]
        margins = self._margin_rounding(state, sums)
        rounding = self._rounding(state, sums, margins)
        # a sum over targets has terms of both signs, and no small relative error
        if diagonal := 0.0 if self.problem.has_targets else _diagonal_of_a_cone(self.problem.row_loss):
            squares = -2.0 * totals[:, DUAL]  # ‖v‖²
            curvature = diagonal * sums[:, OVER_COST_SUM] + squares
            error = UNIT * np.sqrt(sums[:, SQUARES_SUM] * totals[:, W_ALPHA])  # of v
            error = (2.0 * np.sqrt(squares) + error) * error + self._n_terms * UNIT * curvature
            gap, more = _gap_on_the_ray(
                primal, gap, sums[:, LINEAR_SUM], curvature, error, self._n_terms * UNIT
            )
            rounding += more
        bound = gap + rounding
        gap = np.fmin(np.where(rounding <= NEGLIGIBLE * gap, gap, bound), primal)
        of_primal = self._primal_rounding(primal, margins, sums)
        for rows in self._rows(state).iter_blocks(more=("fresh",), saved=("score",)) if lanes.size else ():
            rows.score[:, lanes] = rows.fresh[:, lanes]
        return certificate_of(primal, gap, self._violation(state), rounding, of_primal)

    @property
    def _n_terms(self) -> float:
        """Number of terms of the longest sum over rows or features."""
        return float(max(self._dataset.n_rows, self.problem.n_features + 1)) + 100.0

    def _margin_rounding(self, state: State, sums: np.ndarray) -> np.ndarray:
        """Bound the square root of ``Σ C_j e_j²``, e_j the margins' errors: u n ‖w‖ ‖x_j‖ in rows of n entries at most."""
        n = min(self.problem.n_features, self._dataset.n_entries) + 8.0
        with np.errstate(all="ignore"):  # the loop says what is wrong
            norm = np.sqrt(np.einsum("ij,ij->j", state.w, state.w))
            return np.asarray(UNIT * n * norm * np.sqrt(sums[:, LARGEST_COST] * state.totals[:, CURVE]))

    def _primal_rounding(self, primal: np.ndarray, margins: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """Bound the error of the primal objective by rounding: a loss changes by at most its slope times e_j, plus C e_j².

        `SLOPES_SUM` has the difference of slopes and alpha.
        """
        slopes = np.sqrt(sums[:, OVER_COST_SUM]) + np.sqrt(sums[:, SLOPES_SUM])
        return np.asarray((slopes + margins) * margins + (self._n_terms + 64.0) * UNIT * primal)

    def _rounding(self, state: State, sums: np.ndarray, margins: np.ndarray) -> np.ndarray:
        """Bound the rounding of ``½‖w - v‖² + Σ phi``.

        A term changes by at most ``slope e + C e²``; the sum is bounded by the Cauchy–Schwarz inequality.
        """
        totals = state.totals
        with np.errstate(all="ignore"):  # the loop says what is wrong
            alpha = UNIT * np.sqrt(sums[:, SQUARES_SUM])
            rounding = (
                UNIT * sums[:, ROUNDING_SUM] + (totals[:, ROUNDING] + alpha * totals[:, W_ALPHA]) * alpha
            )
            rounding += (np.sqrt(sums[:, SLOPES_SUM]) + margins) * margins
            return np.asarray(
                rounding + self._n_terms * UNIT * (totals[:, GAP] + np.abs(sums[:, PHI]) + rounding)
            )

    def _violation(self, state: State) -> np.ndarray:
        """Compute ``‖∇f(w)‖ / ‖∇f(0)‖ · n / min(n₊, n₋)``, which LIBLINEAR's primal solvers compare with eps."""
        norm = np.sqrt(2.0 * np.maximum(state.totals[:, GAP], 0.0))
        seen = np.isfinite(state.totals[:, VIOLATION_MAX])
        smaller = smaller_side(self.problem, self._dataset.class_counts)
        return np.where(seen, self.relative_to_start(state, norm, _start_norm(state), smaller), 0.0)

    def estimate(self, state: State, trained: np.ndarray) -> Estimates:
        """Estimate the gaps by the columns' terms; the objectives are the scores', exact but for their drift.

        With acceleration the next pass begins at the extrapolation that is found on the way.
        """
        end_pass = (
            self._extrapolation.end_pass if self._extrapolation else partial(sum_up_objective, self.problem)
        )
        primal = end_pass(state, trained, self._rows(state), self._costs)
        gap = np.abs(state.totals[:, GAP])  # negative only by rounding
        return Estimates(gap, primal, self._violation(state))

    # -- inside

    def _bias_window(self, window: Window) -> int:
        return int(random_key(self._seed, window.read, _BIAS_WINDOW)) % window.count

    def _begin_certificates(self, state: State, lanes: np.ndarray) -> None:
        kept = self._rows(state)
        kept.begin_certificates()
        sums = np.zeros((2, self.problem.n_lanes))
        for rows in kept.iter_blocks(saved=("fresh",)):
            rows.fresh[:, lanes] = 0.0
            primal_kernels.side_sums(rows.arrays, self._costs, lanes, sums)
        if not self.problem.free_bias:
            return
        # a free bias requires Σ s alpha = 0: the heavier side is scaled down to the lighter one
        least = sums.min(axis=0)
        for name, side in (("side_minus", sums[0]), ("side_plus", sums[1])):
            factor = np.divide(least, side, out=np.ones_like(least), where=side > 0)
            state.lanes[name][lanes] = factor[lanes]

    def _columns(
        self, window: Window, state: State, order: np.ndarray, changed: str
    ) -> Iterator[tuple[Any, long_columns.LongColumn | None]]:
        """Yield kernel arguments for runs of columns, or a single column that has to be visited in segments.

        `changed` names the scores that visits change: loaded rows are stored before a column of the second kind.
        """
        rows = self._rows(state)
        alone = (
            np.flatnonzero((order == _BIAS) & rows.paged) if window.sweep is None else np.arange(order.size)
        )
        start = 0
        for stop in [*alone.tolist(), order.size]:
            if stop > start:
                held = rows.load(window, fresh=changed == "fresh")
                data = ColumnData(columns_of(window), held.arrays, self._costs)
                yield (order[start:stop], data, state.w.reshape(-1)), None
            if stop < order.size:
                rows.store((changed,))
                yield None, self._long_column(window, state, int(order[stop]))
            start = stop + 1

    def _long_column(self, window: Window, state: State, offset: int) -> long_columns.LongColumn:
        is_bias = offset == _BIAS
        return long_columns.LongColumn(
            arena=window.arena,
            sweep=None if is_bias else window.sweep,
            rows=self._rows(state),
            costs=self._costs,
            ridge=0.0 if is_bias and self.problem.free_bias else 1.0,
            w=state.w[-1 if is_bias else window.arena.feature[offset]],
            totals=state.totals,
        )

    def _rows(self, state: State) -> RowsInMemory | PagedRows:
        if self._paged is not None:
            return self._paged
        if self._constants is None:
            chunks = read_rows(self._dataset, self.problem, self._seed)
            self._constants = [np.concatenate(column) for column in zip(*chunks, strict=True)]
        return RowsInMemory(state.rows, self._constants)


class OnlineSolver(PrimalSolver):
    """Coordinates drawn uniformly at random with replacement, a pass being one draw per feature (Algorithm 3).

    A window makes as many draws as it holds features, so each feature has one expected visit per pass, whatever the chunks.
    """

    with_replacement = True


def _diagonal_of_a_cone(loss: Loss) -> float:
    """Return D of a row of cost 1 if every multiple of its alpha is feasible, else 0."""
    if loss.kind == LOG_LOSS:
        return 0.0
    _, _, diagonal, low, high, _ = numbers_of(loss, 1.0, 1.0)
    return diagonal if {low, high} <= {0.0, -np.inf, np.inf} else 0.0


def _gap_on_the_ray(
    primal: np.ndarray,
    gap: np.ndarray,
    alpha_sum: np.ndarray,
    curvature: np.ndarray,
    error: np.ndarray,
    unit: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Scale alpha to the best point on its ray; returns the gap there and a bound of its rounding.

    `gap` is that of alpha, `alpha_sum` is the linear part of the dual, Σ alpha, and `curvature` is ``‖v‖² + Σ D alpha²``,
    wrong by up to `error`; `unit` is the relative error of all sums.
    """
    some = curvature > 0
    slope = alpha_sum - curvature
    ratio = np.divide(alpha_sum, curvature, out=np.zeros_like(slope), where=some)
    gain = 0.5 * slope * np.divide(slope, curvature, out=np.zeros_like(slope), where=some)
    best = 0.5 * alpha_sum * ratio
    # far from the optimum gap and gain cancel completely: their difference was 0 for data of size 1e7
    far = gap > primal
    of_sum = np.where(far, ratio, np.abs(ratio - 1.0) * some)  # factor on an error of Σ alpha
    of_curvature = np.where(far, ratio * ratio, np.abs(ratio * ratio - 1.0) * some)
    rounding = 2.0 * of_sum * unit * alpha_sum + of_curvature * error
    rounding += unit * np.where(far, primal + best, gap + gain)
    return np.where(far, primal - best, gap - gain), rounding


def columns_of(window: Window) -> Columns:
    arena = window.arena
    return Columns(arena.indptr, arena.feature, primitives.unsigned(arena.row), arena.value)


def _sides(state: State) -> np.ndarray:
    return np.array([state.lanes["side_minus"], state.lanes["side_plus"]])


def _start_norm(state: State) -> np.ndarray:
    return np.sqrt(np.maximum(state.totals[:, DUAL], 0.0))


def signed_costs(problem: Problem) -> np.ndarray:
    """Compute y C of a row by ``class * cells + cell`` and lane; 0 if the lane leaves the row out."""
    return costs_of_kinds(problem, problem.sign * problem.cost)


def costs_of_kinds(problem: Problem, costs: np.ndarray) -> np.ndarray:
    """Compute from costs by class and lane those by ``class * cells + cell``; 0 if the lane leaves the row out."""
    if not problem.n_folds:
        return np.ascontiguousarray(costs)
    kept = np.arange(problem.n_folds)[:, None] != problem.lane_fold
    return np.ascontiguousarray((costs[:, None, :] * kept).reshape(-1, problem.n_lanes))

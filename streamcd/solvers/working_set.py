"""Working sets of columns, for L1 and elastic net: each read is a certificate, and finds the columns to solve for in memory.

A read at fixed w sums ``v_j = Σ_i s_i a_i x_ij`` of every column, a_i being minus the slope of the loss at the row's score;
a times the largest factor that makes it feasible is the dual point of the certificate. The columns that come nearest to
``|v_j| = l1`` are held in memory. After the read, coordinate descent on quadratic models solves for their weights, until
their own gap is a part of the certified one. Columns that a ball around the dual point proves to be 0 are left out of later
reads.

A checkpoint inside a read is that of its beginning: a resumed run visits the read's windows again (`Holding`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..dataset.dataset import Dataset
from ..kernels import newton as newton_kernels
from ..kernels import primal as primal_kernels
from ..kernels import working_set as kernels
from ..kernels.columns import ColumnCosts, Columns, Scores
from ..kernels.compile import return_free_memory
from ..kernels.loss_table import LOG_LOSS
from ..kernels.losses import numbers_of
from ..kernels.primal import LOSS_SUM, N_SUMS, PHI
from ..kernels.primitives import GAP, LOSS, N_ACTIVE, N_VISITED, UNIT
from ..stream.memory_plan import Plan, long_units
from ..stream.window import Window
from .certificate import certificate
from .held_columns import NearestColumns, ResidentColumns, columns_of
from .held_solution import HeldProblem, HeldSolution
from .memory import LANES_TOGETHER, NARROW, working_set_memory
from .primal import signed_costs
from .problem import Problem
from .protocol import (
    CERTIFY,
    TRAIN,
    Solver,
    Start,
    State,
    all_rows,
    new_lanes,
    new_totals,
    relative_violation,
)
from .quadratic_model import Penalty
from .row_scores import new_rows, read_rows

_STAYS = 0.5
"""Share of the room for held columns that the longest ones keep where others have no room: the gap depends on the steepest
derivative, and theirs are. With random ones in their place it falls several times more slowly."""

_SOLVED, _RESIDENT_SOLVED = 0.1, 3e-4
"""Parts of the gap of held columns, to which they are solved, where others may be needed and where all are held: there a
further read would find what a solution knows."""

_SWEPT_WITHIN, _SWEPT_BETWEEN = (
    30,
    400,
)  # times the held entries that a solution reads at most: within a read, between two


Held = tuple[Columns, np.ndarray]
"""Columns in memory, and the offsets of those to solve for."""

Until = tuple[tuple[int, ...], float, float]
"""Key of the random order of sweeps, the part of the gap to which columns are solved, and the most that are swept."""


@dataclass
class Read:
    """Sums of a read at fixed w; arrays have the lane first."""

    pull: np.ndarray  # (lanes, n)
    fresh: np.ndarray  # (lanes, n): w·x, summed up anew
    score: np.ndarray  # (lanes, n): of `moved`; empty if all columns are held
    moved: np.ndarray  # (lanes, features + 1): w, moved on by solutions for held columns
    v: np.ndarray  # (lanes, features + 1)
    norm: np.ndarray  # (features + 1,)
    count: np.ndarray  # (features + 1,)
    side: np.ndarray  # (lanes, 2): factors on pull < 0 and > 0
    share: np.ndarray  # (lanes,): of the dual variables, by which they are feasible
    size: np.ndarray  # (lanes,): ‖pull‖
    most: np.ndarray  # (lanes,): largest cost
    n_solved: int  # times that held columns were solved for


class WorkingSetSolver(Solver):
    """Working sets for smooth losses of margins and targets, with L1, elastic net or L2."""

    warm_start: Start = "w"

    def __init__(self, problem: Problem, dataset: Dataset, seed: int, plan: Plan | None) -> None:
        self.problem, self._dataset, self._seed = problem, dataset, seed
        self._class_counts = dataset.class_counts
        self.memory = working_set_memory(problem, dataset)
        self.layout = self.memory.layout
        self._plan = plan
        self._held: ResidentColumns | NearestColumns = ResidentColumns()
        self._constants: list[np.ndarray] | None = None
        self._read: Read | None = None
        self._costs: list[Any] = []

    def new_state(self) -> State:
        """Return the state before the first read: w and the scores are 0."""
        problem, n_lanes = self.problem, self.problem.n_lanes
        lanes = new_lanes(n_lanes, TRAIN) | {"start_norm": np.full(n_lanes, np.nan)}
        lanes["begun"] = np.zeros(n_lanes, dtype=bool)
        w = np.zeros((problem.n_features + 1, n_lanes))
        state = State(w, new_totals(n_lanes), lanes)
        state.rows["score"] = np.zeros((n_lanes, self._dataset.n_rows))
        state.matrices["screened"] = np.zeros((n_lanes, problem.n_features + 1), dtype=bool)
        return state

    def load_kernels(self, dataset: Dataset, state: State) -> None:
        """Compile the kernels by visiting no columns of no rows, before windows are allocated."""
        table = self.layout.open(dataset)
        columns = columns_of(self.layout.new_arena(table, 2, 0))
        none, numbers, rows = np.zeros(0, dtype=np.int64), np.zeros(0), new_rows(self.problem, dataset)
        scores = Scores(numbers, numbers, rows.kind, rows.weight, rows.target)
        l1, l2, _ = self._penalty(0)
        costs = self._load_row_kernels(scores, columns)
        kernels.sum_columns(none, columns, *[numbers] * 4)
        kernels.add_scores(none, columns, 0.0, numbers, numbers)
        if self._plan is not None and long_units(table, self._plan).any():
            kernels.add_column(columns, 0, 0, numbers, 0.0, 0.0)
            kernels.add_segment(columns, 0, 0, 0.0, numbers)
        if not self._is_resident:
            kernels.hold(none, columns, columns, 0, 0)
            kernels.close_gaps(none, columns)
        kernels.largest_sum(*[numbers] * 3, 0.0)
        kernels.penalty_terms(numbers, numbers, 1.0, l1, l2)
        newton_kernels.slope_norm(numbers, numbers, l1, l2, 0)
        kernels.screen(*[numbers] * 2, 1.0, *[numbers] * 2, 0.0, 0.0, l1, np.zeros(0, dtype=bool))
        weights = np.zeros(1)  # of the bias
        problem = scores, costs, self._penalty(0), columns, none, weights, weights, weights, (0,), 0.0, 0
        HeldSolution(HeldProblem(*problem)).load_kernels(wide=self.problem.n_features > NARROW)
        return_free_memory()

    def _load_row_kernels(self, scores: Scores, columns: Columns) -> ColumnCosts:
        """Load the kernels of a read over rows, given none; returns costs as columns are solved for with."""
        costs, side = self._new_costs()[0], np.ones(2)
        kernels.set_pull(scores, costs, side, scores.score)
        primal_kernels.add_row_terms(scores, costs, np.zeros(0, dtype=np.int64), np.zeros((1, N_SUMS)))
        self._steepest()
        return costs

    # -- a read

    def visit(self, window: Window, state: State, order: np.ndarray, key: np.uint64) -> None:
        """Sum up a window's columns, and hold those that are near."""
        lanes = state.phase(TRAIN, CERTIFY)
        if window.number == 0:
            self._begin_read(window, state, lanes)
        if window.sweep is not None:
            self._visit_long(window, state, lanes)
            state.totals[lanes, N_ACTIVE] += 1
            return
        read, columns = self._of_read, columns_of(window.arena)
        offsets = all_rows(window, order)
        features = columns.feature[offsets]
        offsets = offsets[~state.matrices["screened"][lanes][:, features].all(axis=0)]
        features = columns.feature[offsets]
        calls = []
        n_entries = int((columns.indptr[offsets + 1] - columns.indptr[offsets]).sum())
        for n in lanes:
            for part in np.array_split(offsets, max(1, min(4 * self.threads.count, offsets.size))):
                sums = (part, columns, read.pull[n], read.v[n], read.norm, read.count)
                calls.append(partial(kernels.sum_columns, *sums))
        for n in lanes:
            in_support = np.flatnonzero(state.w[features, n])
            weights = state.w[features[in_support], n]
            scores = (offsets[in_support], columns, 0.0, weights, read.fresh[n])
            calls.append(partial(kernels.add_scores, *scores))
        self.threads.run(calls, n_entries * lanes.size)
        state.totals[lanes, N_ACTIVE] += offsets.size
        state.totals[lanes, N_VISITED] += offsets.size
        held = self._held
        if isinstance(held, ResidentColumns):
            held.offer(window.arena, offsets)
            return
        nearness = self._nearness(lanes, features)
        sizes = (columns.indptr[offsets + 1] - columns.indptr[offsets]) * (nearness < 0.0)
        for fitting in self._parts(held, state, sizes):
            held.offer(window.arena, offsets[fitting], nearness[fitting])

    def _visit_long(self, window: Window, state: State, lanes: np.ndarray) -> None:
        """Sum up a column that comes in segments; it is read once more to be held."""
        read, arena = self._of_read, window.arena
        assert window.sweep is not None
        feature, sums, n_entries = int(arena.feature[0]), np.zeros((self.problem.n_lanes, 2)), 0
        for n in window.sweep():
            columns = columns_of(arena)
            for lane in lanes:
                sums[lane] = kernels.add_column(columns, 0, n, read.pull[lane], *sums[lane])
                if state.w[feature, lane] != 0.0:
                    kernels.add_segment(columns, 0, n, state.w[feature, lane], read.fresh[lane])
            n_entries += n
        read.v[lanes, feature] = sums[lanes, 0]
        read.norm[feature], read.count[feature] = np.sqrt(sums[lanes[0], 1]), n_entries
        held = self._held
        assert isinstance(held, NearestColumns)
        nearness = self._nearness(lanes, np.array([feature]))[0]
        for _ in self._parts(held, state, np.array([n_entries * (nearness < 0.0)])):
            held.offer_long(arena, window.sweep(), n_entries, float(nearness))

    @property
    def _of_read(self) -> Read:
        assert self._read is not None
        return self._read

    def _begin_read(self, window: Window, state: State, lanes: np.ndarray) -> None:
        n_rows, size = self._dataset.n_rows, self.problem.n_features + 1
        if self._read is None:
            self._make_room(window)
            self._read = _new_read(self.problem, n_rows, size, moves=not self._is_resident)
        read = self._read
        state.totals[:] = new_totals(self.problem.n_lanes)
        self._held.clear()
        read.n_solved = 0
        for n in lanes:
            read.moved[n] = state.w[:, n]
            read.fresh[n] = state.w[-1, n] * self.problem.bias
            read.v[n] = 0.0
            if read.score.size:
                read.score[n] = state.rows["score"][n]
        read.norm[-1], read.count[-1] = self.problem.bias * np.sqrt(n_rows), n_rows
        self.threads.run([partial(self._begin_lane, state, int(lane), read) for lane in lanes])

    def _begin_lane(self, state: State, lane: int, read: Read) -> None:
        """Set the lane's `pull`, its `size`, the v of the bias and the largest cost."""
        problem = self.problem
        scores, costs, bias = self._scores(state, lane), self._costs[lane], self.problem.bias
        read.side[lane] = 1.0
        total, squares, most = kernels.set_pull(scores, costs, read.side[lane], read.pull[lane])
        if problem.free_bias:
            sizes = np.array(
                [-np.minimum(read.pull[lane], 0.0).sum(), np.maximum(read.pull[lane], 0.0).sum()]
            )
            np.divide(sizes.min(), sizes, out=read.side[lane], where=sizes > 0.0)
            total, squares, most = kernels.set_pull(scores, costs, read.side[lane], read.pull[lane])
        read.size[lane], read.most[lane] = np.sqrt(squares), most
        read.v[lane, -1] = bias * total

    def _make_room(self, window: Window) -> None:
        plan, arena = self._plan, window.arena
        assert plan is not None
        if not self._is_resident:
            dtypes = arena.row.dtype, arena.value.dtype
            self._held = NearestColumns(dtypes, plan.held_columns, plan.held_entries)
        chunks = read_rows(self._dataset, self.problem, self._seed)
        self._constants = [np.concatenate(column) for column in zip(*chunks, strict=True)]
        self._costs = self._new_costs()

    def _new_costs(self) -> list[Any]:
        signed, problem = signed_costs(self.problem), self.problem
        return [
            ColumnCosts(
                np.ascontiguousarray(signed[:, [lane]]), problem.row_loss, problem.bias, problem.free_bias
            )
            for lane in range(problem.n_lanes)
        ]

    @property
    def _is_resident(self) -> bool:
        return self._plan is None or self._plan.resident

    def _scores(self, state: State, lane: int) -> Scores:
        assert self._constants is not None
        return Scores(state.rows["score"][lane], self._of_read.fresh[lane], *self._constants)

    def _nearness(self, lanes: np.ndarray, features: np.ndarray) -> np.ndarray:
        """Return the least over lanes of ``(l1 - |v_j|)/‖x_j‖``; -inf where the weight is not 0, which stays."""
        read, nearest = self._of_read, np.full(features.size, np.inf)
        norm = np.maximum(read.norm[features], 1e-100)
        for n in lanes:
            nearness = (self._penalty(n)[0] - np.abs(read.v[n, features])) / norm
            nearness[read.moved[n, features] != 0.0] = -np.inf
            np.minimum(nearest, nearness, out=nearest)
        return nearest

    def _parts(self, held: NearestColumns, state: State, sizes: np.ndarray) -> Iterator[slice]:
        """Cut columns into parts for which there is room; `sizes` are those of columns that are wanted, others have 0.

        Before a part for which there is none the held columns are solved for, and dropped but for some, or all.
        """
        lanes = state.phase(TRAIN)
        lanes, start = lanes[state.lanes["begun"][lanes]], 0
        if not sizes.size:  # a window all of whose columns are left out
            yield slice(0)
        while start < sizes.size:
            n = held.count_fitting(sizes[start:]) if lanes.size else sizes.size - start
            if n:
                yield slice(start, start + n)
                start += n
                continue
            self._solve(state, lanes, self._of_read.score, _SWEPT_WITHIN)
            held.keep(_STAYS)
            if not held.count_fitting(sizes[start:]):
                held.keep(0.0)

    def _penalty(self, lane: int) -> Penalty:
        return Penalty(float(self.problem.l1[lane]), self.problem.l2, self.problem.free_bias)

    # -- the end of a read

    def certificate(self, state: State) -> dict[str, np.ndarray]:
        """Compute the certificate of every lane at the feasible dual point, and continue from the scores of the read."""
        primal, gap = np.full((2, self.problem.n_lanes), np.nan)
        lanes, penalties = np.flatnonzero(self._of_read.size >= 0.0), self.problem.lane_penalties(state.w)

        def certify(lane: int) -> None:
            with np.errstate(all="ignore"):  # the loop says what is wrong
                sums = self._row_terms(state, lane)
                primal[lane], gap[lane] = (
                    penalties[lane] + sums[LOSS_SUM],
                    self._bracket(state, lane) + sums[PHI],
                )

        self.threads.run([partial(certify, int(lane)) for lane in lanes])
        n_terms = float(max(self._dataset.n_rows, self._n_penalised)) + 100.0
        proof = certificate(primal, gap, self._violation(state), n_terms)
        state.totals[:, GAP], state.totals[:, LOSS] = proof["gap"], primal
        certified = state.phase(CERTIFY)
        state.rows["score"][certified] = self._of_read.fresh[certified]
        return proof

    def _row_terms(self, state: State, lane: int) -> np.ndarray:
        """Sum the rows' terms at the feasible dual point of a lane, (N_SUMS,)."""
        read, sums = self._of_read, np.zeros((1, N_SUMS))
        read.share[lane] = self._feasible_share(lane)
        scores = self._scores(state, lane)._replace(score=read.share[lane] * read.pull[lane])
        primal_kernels.add_row_terms(scores, self._costs[lane], np.zeros(1, dtype=np.int64), sums)
        return np.asarray(sums[0])

    @property
    def _n_penalised(self) -> int:
        return self.problem.n_features + (0 if self.problem.free_bias else 1)

    def _feasible_share(self, lane: int) -> float:
        """Return the share of the dual variables by which ``|v_j| <= l1``, which L1 alone asks for."""
        read, n = self._of_read, self._n_penalised
        l1, l2, _ = self._penalty(lane)
        if l2 > 0.0:
            return 1.0
        of_columns = read.v[lane, :n], read.norm[:n], read.count[:n]
        return min(1.0, l1 / max(kernels.largest_sum(*of_columns, UNIT * float(read.size[lane])), l1))

    def _bracket(self, state: State, lane: int) -> float:
        """Return the penalty's terms of the gap."""
        read, n = self._of_read, self._n_penalised
        l1, l2, _ = self._penalty(lane)
        w, share = np.ascontiguousarray(state.w[:n, lane]), float(read.share[lane])
        return float(kernels.penalty_terms(w, read.v[lane, :n], share, l1, l2))

    def _violation(self, state: State) -> np.ndarray:
        """Compute the norm of the smallest subgradient, as `newton.NewtonSolver.violation`."""
        norm, start = self._slope_norms(state, state.w), state.lanes["start_norm"]
        if np.isnan(start).any():
            start = self._slope_norms(state, np.zeros_like(state.w))
        return relative_violation(self.problem, self._class_counts, state, norm, start)

    def _slope_norms(self, state: State, w: np.ndarray) -> np.ndarray:
        problem, n = self.problem, self._n_penalised
        own, v = np.ascontiguousarray(w.T), self._of_read.v
        norm, lanes = newton_kernels.slope_norm, range(problem.n_lanes)
        return np.array([norm(own[k], v[k], float(problem.l1[k]), problem.l2, n) for k in lanes])

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Leave out columns that are 0 at the optimum, and solve for the held ones, lane by lane."""
        norm, stale = state.lanes["start_norm"], ~state.lanes["begun"]
        if np.isnan(norm).any() or stale.any():
            is_zero = ~state.w.any(axis=0)
            first = np.isnan(norm) & is_zero
            norm[first] = self._slope_norms(state, state.w)[first]
            stale &= ~is_zero  # weights of another run: the read was for their scores
        state.lanes["begun"][trained] = True
        open_lanes = trained[~stale[trained] & (state.lanes["phase"][trained] == TRAIN)]
        read = self._of_read
        if read.n_solved:
            state.rows["score"][open_lanes] = read.score[open_lanes]
        for lane in open_lanes:
            self._screen(state, int(lane))
        self._solve(state, open_lanes, state.rows["score"], _SWEPT_BETWEEN)
        state.w[:, open_lanes] = read.moved[open_lanes].T
        return_free_memory()

    def _screen(self, state: State, lane: int) -> None:
        """Mark columns that are 0 at the optimum, and where the read began."""
        read, gap, n = self._of_read, float(state.lanes["gap"][lane]), self.problem.n_features
        radius = float(np.sqrt(2.0 * gap * self._steepest() * read.most[lane]))
        of_columns = float(read.share[lane]), read.norm[:n], read.count[:n], UNIT * float(read.size[lane])
        screened = state.matrices["screened"][lane, :n]
        l1 = float(self.problem.l1[lane])
        kernels.screen(read.moved[lane, :n], read.v[lane, :n], *of_columns, radius, l1, screened)

    def _steepest(self) -> float:
        """Return the largest curvature of the loss of a row of cost 1."""
        loss = self.problem.row_loss
        return 0.25 if loss.kind == LOG_LOSS else float(numbers_of(loss, 1.0, 1.0)[5])

    def _solve(self, state: State, lanes: np.ndarray, score: np.ndarray, most_swept: int) -> None:
        """Move weights and scores of some lanes to the solution for held columns."""
        columns, offsets, read = self._held.columns, self._held.offsets, self._of_read
        features = columns.feature[offsets]

        def solve(lane: int) -> None:
            chosen = columns, offsets[~state.matrices["screened"][lane, features]]
            solved = _RESIDENT_SOLVED if self._is_resident else _SOLVED
            key = (self._seed, state.read, lane, read.n_solved)
            self._solve_lane(lane, read, score[lane], chosen, (key, solved, most_swept))

        calls = [partial(solve, int(lane)) for lane in lanes]
        for first in range(0, len(calls), LANES_TOGETHER):
            self.threads.run(calls[first : first + LANES_TOGETHER])
        read.n_solved += 1

    def _solve_lane(self, lane: int, read: Read, score: np.ndarray, held: Held, until: Until) -> None:
        """Move `score`, (rows,), and the lane's weights to the solution for held columns, by their offsets."""
        assert self._constants is not None
        scores = Scores(score, read.fresh[lane], *self._constants)
        parts, (key, solved, most) = (scores, self._costs[lane], self._penalty(lane)), until
        w, v = read.moved[lane], None if read.n_solved else read.v[lane]
        HeldSolution(HeldProblem(*parts, *held, w, read.norm, v, key, solved, most)).solve()


def _new_read(problem: Problem, n_rows: int, size: int, *, moves: bool) -> Read:
    n_lanes = problem.n_lanes
    return Read(
        pull=np.zeros((n_lanes, n_rows)),
        fresh=np.zeros((n_lanes, n_rows)),
        score=np.zeros((n_lanes, n_rows if moves else 0)),
        moved=np.zeros((n_lanes, size)),
        v=np.zeros((n_lanes, size)),
        norm=np.zeros(size),
        count=np.zeros(size),
        side=np.ones((n_lanes, 2)),
        share=np.ones(n_lanes),
        size=np.zeros(n_lanes),
        most=np.zeros(n_lanes),
        n_solved=0,
    )

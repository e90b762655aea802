"""Solution of a lane for columns in memory: working sets among them, solved by quadratic models of the loss.

A model is minimised with the penalty (`set_model`), and the step to where that leads is shortened until the objective
falls enough. Source: Yuan, Ho, Lin, JMLR 13 (2012), newGLMNET; sets as in Massias, Gramfort, Salmon, ICML 2018.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..kernels import newton as newton_kernels
from ..kernels import primal as primal_kernels
from ..kernels import working_set as kernels
from ..kernels.columns import ColumnCosts, Columns, Scores
from ..kernels.loss_table import LOG_LOSS
from ..kernels.primal import N_SUMS, PHI
from .set_model import SetModel, penalty_change

_SOLVED = 0.1  # of the gap of all held columns, to which they are solved
_SET_SOLVED = 0.3  # of the gap of all held columns, to which a set is solved
_LEAST = 100  # columns of a set
_MOST_SETS, _MOST_STEPS = 30, 50  # of a solution, of a set
_SUFFICIENT = 0.01  # part of the decrease that the slope predicts
_LEAST_LENGTH = 0.5**30  # of a step
_SHORT = 0.2  # length of a step, after a shorter one the next model is closer to a parabola above the loss
_FIRST_SHARE, _SHARE_GROWS = 0.01, 10.0  # of what the curvature lacks of that of the parabola


@dataclass
class HeldProblem:
    """One lane's problem in the weights of columns in memory; `w` and the scores are changed in place."""

    scores: Scores
    costs: ColumnCosts
    penalty: tuple[float, float, bool]  # l1, l2, whether the bias is free of them
    columns: Columns
    offsets: np.ndarray  # of held columns
    w: np.ndarray  # (features + 1,)
    norm: np.ndarray  # (features + 1,)
    key: tuple[int, ...]  # of the random order of sweeps
    most_swept: int  # times the held entries that the solution may read


class HeldSolution:
    """Solver of a `HeldProblem`."""

    def __init__(self, problem: HeldProblem) -> None:
        self._problem = problem
        n_rows = problem.scores.score.size
        self._model, self._moved, self._common = np.empty(2 * n_rows), np.empty(n_rows), np.empty(n_rows)
        self._features = problem.columns.feature[problem.offsets]
        n = self._features.size + (1 if problem.costs.bias else 0)
        self._v, self._unused = np.empty(n), np.empty((2, n))  # of the held columns, and of the bias
        self._share = 0.0  # of `kernels.model_rows`
        self._n_swept = 0  # entries
        self._n_steps = 0

    def solve(self) -> None:
        """Solve until the gap of the held columns is a part of what it was; weights of others stay what they are.

        A set has twice the entries of the one before, at least: the first columns are the longest where data is sparse.
        """
        problem, size, entries = self._problem, _LEAST, 0
        gap = self._gap_of_all()
        goal = _SOLVED * gap
        most = problem.most_swept * (self._entries_of(problem.offsets) + problem.scores.score.size)
        for _ in range(_MOST_SETS):
            chosen = self._choose(size, 2 * entries)
            entries = self._entries_of(problem.offsets[chosen])
            is_whole = chosen.size == self._features.size
            self._solve_set(chosen, goal if is_whole else max(_SET_SOLVED * gap, 0.5 * goal), most)
            if is_whole or self._n_swept > most:
                return
            gap = self._gap_of_all()
            if gap <= goal:
                return
            size = 2 * chosen.size

    def _entries_of(self, offsets: np.ndarray) -> int:
        indptr = self._problem.columns.indptr
        return int((indptr[offsets + 1] - indptr[offsets]).sum())

    def _choose(self, size: int, entries: int) -> np.ndarray:
        """Choose so many of the held columns, and entries, nearest to the support; twice as many as are in it, at least."""
        problem, features = self._problem, self._features
        l1, v, norm = problem.penalty[0], np.abs(self._v[: features.size]), problem.norm[features]
        share = min(1.0, l1 / max(float(v.max(initial=0.0)), 1e-300))
        in_support = problem.w[features] != 0.0
        nearness = np.where(in_support, -np.inf, (l1 - share * v) / np.maximum(norm, 1e-100))
        size = max(size, 2 * int(in_support.sum()))
        while size < features.size and l1 > 0.0:
            chosen = np.argpartition(nearness, size - 1)[:size]
            if self._entries_of(problem.offsets[chosen]) >= entries:
                return np.sort(chosen)
            size *= 2
        return np.arange(features.size)

    def _gap_of_all(self) -> float:
        """Sum v of all held columns; returns the gap."""
        problem = self._problem
        kernels.model_rows(problem.scores, problem.costs, 0.0, self._model)
        order, features = problem.offsets, self._features
        if problem.costs.bias:
            order, features = np.append(order, -1), np.append(features, -1)
        kernels.model_columns(order, problem.columns, problem.costs.bias, self._model, self._v, *self._unused)
        self._n_swept += self._entries_of(problem.offsets)
        return self._gap(problem.w[features], self._v)

    def _gap(self, w: np.ndarray, v: np.ndarray) -> float:
        """Return the gap of some weights, the bias last if there is one, where the model stands; not bounds on rounding."""
        problem, (l1, l2, is_free) = self._problem, self._problem.penalty
        side = np.ones((2, 1))
        if is_free:  # it asks for Σ pull = 0: the heavier side is scaled down
            w, v = w[:-1], v[:-1]
            pull = self._model[::2]
            sizes = np.array([-np.minimum(pull, 0.0).sum(), np.maximum(pull, 0.0).sum()])
            np.divide(sizes.min(), sizes, out=side[:, 0], where=sizes > 0.0)
        largest = float(np.abs(v).max(initial=0.0))
        share = 1.0 if l2 > 0.0 else min(1.0, l1 / max(largest, 1e-300))
        sums = np.zeros((1, N_SUMS))
        side *= share
        scores = problem.scores._replace(fresh=problem.scores.score)
        primal_kernels.add_row_terms(scores, problem.costs, side, np.zeros(1, np.int64), sums)
        terms, _ = newton_kernels.penalty_terms(w, share * v, l1, l2, w.size)
        return float(terms + sums[0, PHI])

    # -- a set

    def _solve_set(self, chosen: np.ndarray, goal: float, most: int) -> None:
        problem, bias = self._problem, self._problem.costs.bias
        order, features = problem.offsets[chosen], self._features[chosen]
        if bias:
            order, features = np.append(order, -1), np.append(features, -1)
        w, v = problem.w[features], np.empty(order.size)
        parts = problem.columns, bias, problem.penalty
        model = SetModel(order, parts, self._model, self._moved, self._common)
        for _ in range(_MOST_STEPS):
            kernels.model_rows(problem.scores, problem.costs, self._share, self._model)
            model.take_rows(v)
            gap = self._gap(w, v)
            if gap <= goal or self._n_swept + model.n_swept > most:
                break
            u = model.minimise(w, (*problem.key, self._n_steps))
            self._n_steps += 1
            length, share = self._search(order, w, u, v), self._share
            self._trust(length)
            if length == 0.0 and self._share == share:
                break
            w = u if length == 1.0 else w + length * (u - w)
            problem.w[features] = w
        self._n_swept += model.n_swept

    def _trust(self, length: float) -> None:
        """Choose the next model by the length of a step; a step to the minimum of one above the loss descends."""
        if length < _SHORT and self._problem.costs.loss.kind == LOG_LOSS:
            self._share = min(max(_SHARE_GROWS * self._share, _FIRST_SHARE), 1.0)
        elif length == 1.0:
            self._share = self._share / _SHARE_GROWS if self._share > _FIRST_SHARE else 0.0

    def _search(self, order: np.ndarray, w: np.ndarray, u: np.ndarray, v: np.ndarray) -> float:
        """Move the scores towards u as far as the objective falls enough; returns how far."""
        problem, step = self._problem, u - w
        if not step.any():
            return 0.0
        self._moved[:] = 0.0
        kernels.add_scores(order, problem.columns, problem.costs.bias, step, self._moved)
        slope = penalty_change(w, step, order, problem.penalty) - float(np.einsum("i,i->", v, step))
        length = 1.0
        while length > _LEAST_LENGTH:
            change = kernels.change_on_line(problem.scores, self._moved, length, problem.costs)
            if (
                change + penalty_change(w, length * step, order, problem.penalty)
                <= _SUFFICIENT * length * slope
            ):
                problem.scores.score[:] += length * self._moved
                return length
            length *= 0.5
        return 0.0

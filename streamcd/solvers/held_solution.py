"""Solution of a lane for columns in memory: working sets among them, solved by coordinate descent on quadratic models.

A quadratic model of the loss is minimised, with the penalty, by sweeps over the set's columns, or over its matrix if they
are few, and the step to where that leads is shortened until the objective falls enough. Source: Yuan, Ho, Lin, JMLR 13
(2012), newGLMNET; sets as in Massias, Gramfort, Salmon, ICML 2018.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.randomness import random_key
from ..kernels import newton as newton_kernels
from ..kernels import primal as primal_kernels
from ..kernels import working_set as kernels
from ..kernels.columns import ColumnCosts, Columns, Scores
from ..kernels.loss_table import LOG_LOSS
from ..kernels.primal import N_SUMS, PHI
from ..kernels.primitives import shuffle
from . import quadratic_model
from .memory import NARROW

_SOLVED = 0.1  # of the gap of all held columns, to which they are solved
_SET_SOLVED = 0.3  # of the gap of all held columns, to which a set is solved
_LEAST = 100  # columns of a set
_MOST_SETS, _MOST_STEPS, _MOST_SWEEPS = 30, 50, 60  # of a solution, of a set, of a model
_SWEEPS = 5  # before conjugate gradients
_MOST_PRODUCTS, _CG_SOLVED = 50, 0.01  # of conjugate gradients; of the residual's norm
_MOST_LEAVE = 20  # steps on the support
_MODEL_SOLVED = 0.1  # of the sum of slopes in a model's first sweep
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
        self._model, self._moved = np.empty(2 * n_rows), np.empty(n_rows)
        self._features = problem.columns.feature[problem.offsets]
        n = self._features.size + (1 if problem.costs.bias else 0)
        self._v, self._curve = np.empty(n), np.empty(n)  # of the held columns, and of the bias
        self._room: kernels.Room | None = None
        self._share = 0.0  # of `kernels.model_rows`
        self._n_swept = 0  # entries
        self._n_sweeps = 0

    def solve(self) -> None:
        """Solve until the gap of the held columns is a part of what it was; weights of others stay what they are."""
        problem, size = self._problem, _LEAST
        gap = self._gap_of_all()
        goal = _SOLVED * gap
        most = problem.most_swept * (self._entries_of(problem.offsets) + problem.scores.score.size)
        for _ in range(_MOST_SETS):
            chosen = self._choose(size)
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

    def _choose(self, size: int) -> np.ndarray:
        """Choose the held columns nearest to the support, which is among them; twice as many as these at least."""
        problem, features = self._problem, self._features
        l1, v, norm = problem.penalty[0], np.abs(self._v[: features.size]), problem.norm[features]
        share = min(1.0, l1 / max(float(v.max(initial=0.0)), 1e-300))
        in_support = problem.w[features] != 0.0
        nearness = np.where(in_support, -np.inf, (l1 - share * v) / np.maximum(norm, 1e-100))
        size = max(size, 2 * int(in_support.sum()))
        if size >= features.size or l1 == 0.0:
            return np.arange(features.size)
        return np.sort(np.argpartition(nearness, size - 1)[:size])

    def _gap_of_all(self) -> float:
        """Sum v of all held columns; returns the gap."""
        problem = self._problem
        kernels.model_rows(problem.scores, problem.costs, 0.0, self._model)
        order, features = problem.offsets, self._features
        if problem.costs.bias:
            order, features = np.append(order, -1), np.append(features, -1)
        kernels.model_columns(order, problem.columns, problem.costs.bias, self._model, self._v, self._curve)
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
        n = order.size
        if bias:
            order, features = np.append(order, -1), np.append(features, -1)
        w, v, curve = problem.w[features], np.empty(order.size), np.empty(order.size)
        entries = self._entries_of(order[:n]) + (order.size - n) * problem.scores.score.size
        for _ in range(_MOST_STEPS):
            kernels.model_rows(problem.scores, problem.costs, self._share, self._model)
            kernels.model_columns(order, problem.columns, bias, self._model, v, curve)
            self._n_swept += entries
            gap = self._gap(w, v)
            if gap <= goal or self._n_swept > most:
                return
            if n <= NARROW:
                u = self._minimise_matrix(order, n, w, v)
            else:
                u = self._minimise_model(order, curve, w, entries)
            length, share = self._search(order, w, u, v), self._share
            self._trust(length)
            if length == 0.0 and self._share == share:
                return
            w = u if length == 1.0 else w + length * (u - w)
            problem.w[features] = w

    def _trust(self, length: float) -> None:
        """Choose the next model by the length of a step; a step to the minimum of one above the loss descends."""
        if length < _SHORT and self._problem.costs.loss.kind == LOG_LOSS:
            self._share = min(max(_SHARE_GROWS * self._share, _FIRST_SHARE), 1.0)
        elif length == 1.0:
            self._share = self._share / _SHARE_GROWS if self._share > _FIRST_SHARE else 0.0

    def _minimise_matrix(self, order: np.ndarray, n: int, w: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Return the weights that minimise the model of n columns, and perhaps the bias."""
        problem, (l1, l2, is_free) = self._problem, self._problem.penalty
        if self._room is None or self._room.cursor.size != n:
            self._room = kernels.new_room(n)
        matrix, pull, u = np.zeros((n + 1, n + 1)), np.zeros(n + 1), np.zeros(n + 1)
        pull[: order.size], u[: order.size] = v, w
        kernels.add_matrix(order[:n], problem.columns, problem.costs.bias, self._model, self._room, matrix)
        newton_kernels.fold(matrix)
        diagonal = np.einsum("ii->i", matrix)
        diagonal += quadratic_model.DAMPING * diagonal.max()
        quadratic_model.minimise(matrix, pull, u, (l1, l2, n if is_free else n + 1))
        self._n_swept += self._entries_of(order[:n]) + matrix.size
        return u[: order.size]

    def _minimise_model(
        self, order: np.ndarray, curve: np.ndarray, w: np.ndarray, entries: int
    ) -> np.ndarray:
        """Return the weights that minimise the model: sweeps find the support, conjugate gradients solve for its weights."""
        problem, u, visits = self._problem, w.copy(), np.arange(order.size)
        arguments = (order, problem.columns, problem.costs.bias, curve, problem.penalty, u, self._model)
        goal = 0.0
        for sweep in range(_MOST_SWEEPS):
            shuffle(visits, random_key(*problem.key, self._n_sweeps))
            self._n_sweeps += 1
            self._n_swept += entries
            slopes = kernels.descend(visits, *arguments)
            if sweep == 0:
                goal = _MODEL_SOLVED * slopes
            elif slopes <= goal:
                break
            if sweep % _SWEEPS == _SWEEPS - 1:
                self._step_on_support(order, curve, u)
        return u

    def _step_on_support(self, order: np.ndarray, curve: np.ndarray, u: np.ndarray) -> None:
        """Solve the model for the weights that are not 0, whose signs stay; those that would change it become 0."""
        l1, l2, is_free = self._problem.penalty
        free = (order < 0) & is_free
        for _ in range(_MOST_LEAVE):
            support = np.flatnonzero(((u != 0.0) | free) & (curve > 0.0))
            if not support.size:
                return
            chosen, own, signs = order[support], u[support], np.sign(u[support]) * ~free[support]
            pull, diagonal = np.empty(support.size), np.empty(support.size)
            columns, bias = self._problem.columns, self._problem.costs.bias
            kernels.model_columns(chosen, columns, bias, self._model, pull, diagonal)
            ridge = l2 * ~free[support]
            residual = pull - l1 * signs - ridge * own
            step, last = self._conjugate_gradients(chosen, (own, signs), residual, diagonal + ridge, ridge)
            turns = signs * (own + step + last) < 0.0
            clipped = np.where(turns, -own, step + last)
            if not self._take_if_lower(chosen, pull, own, clipped):
                # to where the first of them becomes 0
                lengths = np.divide(-(own + step), last, out=np.ones_like(own), where=turns)
                first = int(np.argmin(lengths))
                clipped = step + lengths[first] * last
                clipped[first] = -own[first] if turns.any() else clipped[first]
                if not self._take_if_lower(chosen, pull, own, clipped):
                    return
            u[support] = own + clipped
            if not turns.any():
                return

    def _conjugate_gradients(
        self,
        order: np.ndarray,
        start: tuple[np.ndarray, np.ndarray],
        residual: np.ndarray,
        diagonal: np.ndarray,
        ridge: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Solve for the step of weights, `start`, until one would leave its sign; returns the step, and that to come.

        The diagonal is the preconditioner.
        """
        (own, signs), problem, bias = start, self._problem, self._problem.costs.bias
        entries = self._entries_of(order[order >= 0])
        step, product = np.zeros(order.size), np.empty(order.size)
        scaled = residual / diagonal
        along, size = scaled.copy(), float(np.einsum("i,i->", residual, scaled))
        goal, last = _CG_SOLVED**2 * size, np.zeros(order.size)
        for _ in range(_MOST_PRODUCTS):
            self._moved[:] = 0.0
            kernels.add_scores(order, problem.columns, bias, along, self._moved)
            kernels.curved_products(order, problem.columns, bias, self._moved, self._model, product)
            self._n_swept += 2 * entries
            product += ridge * along
            curvature = float(np.einsum("i,i->", along, product))
            if curvature <= 0.0:
                break
            length = size / curvature
            last = length * along
            if (signs * (own + step + last) < 0.0).any():
                return step, last
            step += last
            residual = residual - length * product
            scaled = residual / diagonal
            before, size = size, float(np.einsum("i,i->", residual, scaled))
            if size <= goal:
                break
            along = scaled + size / before * along
        return step, np.zeros(order.size)

    def _take_if_lower(self, order: np.ndarray, pull: np.ndarray, own: np.ndarray, step: np.ndarray) -> bool:
        """Move the model by a step of some weights if that lowers it, with the penalty."""
        problem = self._problem
        self._moved[:] = 0.0
        kernels.add_scores(order, problem.columns, problem.costs.bias, step, self._moved)
        change = 0.5 * kernels.curve_along(self._moved, self._model) - float(np.einsum("i,i->", pull, step))
        change += self._penalty_change(own, step, order)
        if change >= 0.0:
            return False
        kernels.move_model(self._moved, self._model)
        return True

    def _search(self, order: np.ndarray, w: np.ndarray, u: np.ndarray, v: np.ndarray) -> float:
        """Move the scores towards u as far as the objective falls enough; returns how far."""
        problem, step = self._problem, u - w
        if not step.any():
            return 0.0
        self._moved[:] = 0.0
        kernels.add_scores(order, problem.columns, problem.costs.bias, step, self._moved)
        slope = self._penalty_change(w, step, order) - float(np.einsum("i,i->", v, step))
        length = 1.0
        while length > _LEAST_LENGTH:
            change = kernels.change_on_line(problem.scores, self._moved, length, problem.costs)
            if change + self._penalty_change(w, length * step, order) <= _SUFFICIENT * length * slope:
                problem.scores.score[:] += length * self._moved
                return length
            length *= 0.5
        return 0.0

    def _penalty_change(self, w: np.ndarray, step: np.ndarray, order: np.ndarray) -> float:
        l1, l2, is_free = self._problem.penalty
        change = l1 * (np.abs(w + step) - np.abs(w)) + l2 * step * (w + 0.5 * step)
        return float(change[order >= 0].sum() if is_free else change.sum())

"""Solution of a lane for columns in memory: working sets among them, solved by quadratic models of the loss.

A model is minimised with the penalty, by its matrix where columns are few, and the step to where that leads is shortened
until the objective falls enough. Source: Yuan, Ho, Lin, JMLR 13 (2012), newGLMNET; sets as in Massias, Gramfort, Salmon,
ICML 2018.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..kernels import newton as newton_kernels
from ..kernels import working_set as kernels
from ..kernels.columns import ColumnCosts, Columns, Scores
from ..kernels.loss_table import LOG_LOSS
from .memory import NARROW
from .quadratic_model import ColumnsModel, MatrixModel, Penalty, minimise, solve_positive

_SOLVED, _MATRIX_SOLVED = 0.03, 1e-6  # slopes of a model's solution, over those of the first sweep
_SET_SOLVED = 0.3  # of the gap of all held columns, to which a set is solved
_LEAST = 100  # columns of a set
_SETTLED = 0.3  # of a set's decrease, by which a step misses its model's: about what further ones would gain
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
    penalty: Penalty
    columns: Columns
    offsets: np.ndarray  # of held columns
    w: np.ndarray  # (features + 1,)
    norm: np.ndarray  # (features + 1,)
    v: np.ndarray | None  # (features + 1,): sums of columns at these weights, if they are known
    key: tuple[int, ...]  # of the random order of sweeps
    solved: float  # of the gap of all held columns, to which they are solved
    most_swept: float  # times the held entries that the solution may read


class HeldSolution:
    """Solver of a `HeldProblem`."""

    def __init__(self, problem: HeldProblem) -> None:
        self._problem = problem
        n_rows = problem.scores.score.size
        self._model, self._moved = np.empty(2 * n_rows), np.empty(n_rows)
        self._features = problem.columns.feature[problem.offsets]
        n = self._features.size + (1 if problem.costs.bias else 0)
        self._v, self._curve = np.empty((2, n))  # of the held columns, and of the bias
        self._share = 0.0  # of `kernels.model_rows`
        self._shares = np.zeros((2, 2))  # what it returns: `near` and `far`, by the sign of the pull
        self._room: kernels.Room | None = None
        self._n_swept = 0  # entries
        self._n_steps = 0

    def load_kernels(self, *, wide: bool) -> None:
        """Load the kernels by a problem without rows; with `wide` also those for columns that have no matrix."""
        problem, none, step = self._problem, np.zeros(0, dtype=np.int64), np.zeros(0)
        self._gap_of_all()
        parts = none, problem.columns, problem.costs.bias
        room = kernels.new_room(0)
        kernels.add_matrix(none, *parts[1:], self._model, room, np.zeros((1, 1)))
        minimise(MatrixModel(np.eye(1), np.ones(1)), np.zeros(1), problem.penalty, 1.0)
        solve_positive(np.eye(1), np.ones(1))
        kernels.move_model(self._moved, self._model)
        kernels.add_scores(*parts, step, self._moved)
        if wide:
            kernels.descend(none, *parts, step, problem.penalty, step, self._model)
            kernels.curved_products(*parts, self._moved, self._model, step)
        kernels.model_along(self._moved, self._model)
        kernels.change_on_line(problem.scores, self._moved, 1.0, problem.costs)

    def solve(self) -> tuple[float, float]:
        """Solve until the gap of the held columns is a part of what it was; weights of others stay what they are.

        Returns that gap at the start, and how many times the held entries were read.
        """
        gap = self._gap_of_all(self._problem.v)
        swept = self._entries_of(self._problem.offsets) + self._problem.scores.score.size
        self._solve_sets(gap, self._problem.most_swept * swept)
        return gap, self._n_swept / max(swept, 1)

    def _solve_sets(self, gap: float, most: float) -> None:
        problem, entries, goal = self._problem, 0, self._problem.solved * gap
        for _ in range(_MOST_SETS):
            chosen = self._choose(2 * entries)
            entries = self._entries_of(problem.offsets[chosen])
            is_whole = chosen.size == self._features.size
            of_set = goal if is_whole else max(_SET_SOLVED * gap, 0.5 * goal)
            if not self._solve_set(chosen, of_set, most) or is_whole or self._n_swept > most:
                return
            gap = self._gap_of_all()
            if gap <= goal:
                return

    def _sizes_of(self, offsets: np.ndarray) -> np.ndarray:
        indptr = self._problem.columns.indptr
        return np.asarray(indptr[offsets + 1] - indptr[offsets])

    def _entries_of(self, offsets: np.ndarray) -> int:
        return int(self._sizes_of(offsets).sum())

    def _choose(self, entries: int) -> np.ndarray:
        """Choose held columns, nearest to the support first: twice as many as are in it, or more, up to so many entries.

        No more than twice as many as are in the support or beyond its bound; all if they are few.
        """
        problem, features = self._problem, self._features
        (l1, l2, _), v, norm = problem.penalty, np.abs(self._v[: features.size]), problem.norm[features]
        in_support = problem.w[features] != 0.0
        # that have a part of the gap, where it is a sum over columns
        n_apart = int((in_support | (v > l1)).sum())
        share = 1.0 if l2 > 0.0 else min(1.0, l1 / max(float(v.max(initial=0.0)), 1e-300))
        nearness = np.where(in_support, -np.inf, (l1 - share * v) / np.maximum(norm, 1e-100))
        size, most = max(_LEAST, 2 * int(in_support.sum()), n_apart if l2 > 0.0 else 0), 2 * n_apart
        while NARROW < features.size > size and l1 > 0.0:
            chosen = np.argpartition(nearness, size - 1)[:size]
            if size >= most or self._entries_of(problem.offsets[chosen]) >= entries:
                return np.sort(chosen)
            size *= 2
        return np.arange(features.size)

    def _gap_of_all(self, v: np.ndarray | None = None) -> float:
        """Sum v of all held columns, if it is not given; returns the gap."""
        problem, order, features = self._problem, self._problem.offsets, self._features
        self._model_rows()
        if problem.costs.bias:
            order, features = np.append(order, -1), np.append(features, -1)
        if v is None:
            model = problem.costs.bias, self._model
            kernels.model_columns(order, problem.columns, *model, self._v, self._curve)
            self._n_swept += self._entries_of(problem.offsets)
        else:
            self._v[:] = v[features]
        return self._gap(problem.w[features], self._v)

    def _model_rows(self) -> None:
        shares = kernels.model_rows(self._problem.scores, self._problem.costs, self._share, self._model)
        self._shares = np.reshape(shares, (2, 2))

    def _gap(self, w: np.ndarray, v: np.ndarray) -> float:
        """Return about the gap of some weights, the bias last if there is one, where the model stands."""
        l1, l2, is_free = self._problem.penalty
        side = np.ones(2)
        if is_free:  # it asks for Σ pull = 0: the heavier side is scaled down
            w, v = w[:-1], v[:-1]
            pull = self._model[::2]
            sizes = np.array([-np.minimum(pull, 0.0).sum(), np.maximum(pull, 0.0).sum()])
            np.divide(sizes.min(), sizes, out=side, where=sizes > 0.0)
        largest = float(np.abs(v).max(initial=0.0))
        share = 1.0 if l2 > 0.0 else min(1.0, l1 / max(largest, 1e-300))
        lacking = 1.0 - share * side
        of_rows = float((self._shares * (lacking**2, lacking)).sum())
        return of_rows + float(newton_kernels.penalty_terms(w, share * v, l1, l2, w.size)[0])

    # -- a set

    def _solve_set(self, chosen: np.ndarray, goal: float, most: float) -> bool:
        """Solve for chosen columns to a gap, or until a further step would gain little; returns whether the objective fell.

        The gap is that of scaled dual variables, at first far above what there is to gain; it alone counts where all held
        columns are chosen.
        """
        is_whole = chosen.size == self._features.size
        problem, bias = self._problem, self._problem.costs.bias
        order, features = problem.offsets[chosen], self._features[chosen]
        if bias:
            order, features = np.append(order, -1), np.append(features, -1)
        sizes = np.where(order < 0, self._moved.size, self._sizes_of(order))
        w, (v, curve) = problem.w[features], np.empty((2, order.size))
        decrease = 0.0
        for _ in range(_MOST_STEPS):
            self._model_rows()
            kernels.model_columns(order, problem.columns, bias, self._model, v, curve)
            self._n_swept += int(sizes.sum())
            if self._gap(w, v) <= goal or self._n_swept > most:
                break
            u = self._minimise(order, sizes, w, v, curve)
            self._n_steps += 1
            share, (length, change, expected) = self._share, self._search(order, w, u, v)
            self._trust(length)
            if length == 0.0 and self._share == share:
                break
            w = u if length == 1.0 else w + length * (u - w)
            problem.w[features] = w
            decrease -= change
            if not is_whole and abs(change - expected) <= _SETTLED * decrease:
                break
        return decrease > 0.0

    def _minimise(
        self, order: np.ndarray, sizes: np.ndarray, w: np.ndarray, v: np.ndarray, curve: np.ndarray
    ) -> np.ndarray:
        """Return the weights that minimise the model of the rows with the penalty."""
        problem, n = self._problem, int((order >= 0).sum())
        u, columns = w.copy(), (problem.columns, problem.costs.bias)
        if n > NARROW:
            parts = (order, *columns), sizes, self._model, self._moved, curve, (*problem.key, self._n_steps)
            wide = ColumnsModel(*parts)
            minimise(wide, u, problem.penalty, _SOLVED)
            self._n_swept += wide.n_swept
            return u
        self._room = kernels.new_room(n)
        matrix, (pull, moved) = np.zeros((n + 1, n + 1)), np.zeros((2, n + 1))  # the bias last
        kernels.add_matrix(order[:n], *columns, self._model, self._room, matrix)
        pull[: v.size], moved[: v.size] = v, w
        minimise(MatrixModel(matrix, pull), moved, problem.penalty, _MATRIX_SOLVED)
        self._n_swept += int(sizes.sum()) + matrix.size
        return moved[: w.size]

    def _trust(self, length: float) -> None:
        """Choose the next model by the length of a step; a step to the minimum of one above the loss descends."""
        if length < _SHORT and self._problem.costs.loss.kind == LOG_LOSS:
            self._share = min(max(_SHARE_GROWS * self._share, _FIRST_SHARE), 1.0)
        elif length == 1.0:
            self._share = self._share / _SHARE_GROWS if self._share > _FIRST_SHARE else 0.0

    def _search(
        self, order: np.ndarray, w: np.ndarray, u: np.ndarray, v: np.ndarray
    ) -> tuple[float, float, float]:
        """Move the scores towards u as far as the objective falls enough; returns how far, its change, and the model's."""
        problem, step = self._problem, u - w
        if not step.any():
            return 0.0, 0.0, 0.0
        self._moved[:] = 0.0
        kernels.add_scores(order, problem.columns, problem.costs.bias, step, self._moved)
        slope = problem.penalty.change(w, step) - float(np.einsum("i,i->", v, step))
        expected = slope + 0.5 * kernels.model_along(self._moved, self._model)[1]
        length = 1.0
        while length > _LEAST_LENGTH:
            change = kernels.change_on_line(problem.scores, self._moved, length, problem.costs)
            change += problem.penalty.change(w, length * step)
            if change <= _SUFFICIENT * length * slope:
                problem.scores.score[:] += length * self._moved
                return length, change, expected
            length *= 0.5
        return 0.0, 0.0, expected

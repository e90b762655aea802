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
from ..kernels.loss_table import LOG_LOSS
from ..kernels.primal import ColumnCosts, Columns, Scores
from .quadratic_model import ColumnsModel, MatrixModel, Penalty, minimise, solve_positive

NARROW = 512
"""Largest number of columns of a working set that is solved for by its matrix."""

_SET_SOLVED = 0.3
"""Part of the gap of all held columns to which a set is solved, and part of a set's decrease by which a step misses its
model's, about what further ones would gain, where it is left."""

_LEAST = 100  # columns of a set
_SUFFICIENT = 0.01  # part of the decrease that the slope predicts
_LEAST_LENGTH = 0.5**30  # of a step
_SHORT = 0.2  # length of a step, after a shorter one the next model has a parabola above the loss


@dataclass
class HeldSolution:
    """Solver of one lane's problem in the weights of columns in memory; `w` and the scores are changed in place."""

    scores: Scores
    costs: ColumnCosts
    penalty: Penalty
    columns: Columns
    offsets: np.ndarray  # of held columns
    w: np.ndarray  # (features + 1,)
    norm: np.ndarray  # (features + 1,)
    key: tuple[int, ...]  # of the random order of sweeps

    def __post_init__(self) -> None:
        bias = self.costs.bias
        self._columns = (self.columns, bias)
        last = [-1] if bias else []
        self._order = np.append(self.offsets, last).astype(np.int64)
        self._features = np.append(self.columns.feature[self.offsets], last).astype(np.int64)
        self._pull, self._curvature, self._moved = np.empty((3, self.scores.score.size))
        self._share = 0.0  # of `kernels.model_rows`
        self._shares = np.zeros((2, 2))  # what it returns: `near` and `far`, by the sign of the pull
        self._n_steps = 0

    def load_kernels(self) -> None:
        """Load the kernels by a problem without rows and columns."""
        none = self._order[:0]
        step = np.zeros(0)
        penalty = Penalty(1.0, 0.0, free_bias=False)
        self._gap(none, self._take_rows(none))
        self._search(none, step, step)
        kernels.change_on_line(self.scores, self._moved, 1.0, self.costs)
        minimise(
            MatrixModel(kernels.matrix_of(none, *self._columns, self._curvature), np.ones(1)),
            np.zeros(1),
            penalty,
        )
        solve_positive(np.eye(1), np.ones(1))
        rows = self._pull, self._curvature
        ColumnsModel(none, self._columns, rows, (0,)).minimise(step, penalty)
        kernels.line_of_model(*rows, self._moved)
        kernels.extrapolate(*rows, 0.0)

    def solve(self, solved: float, wanted: float, most_steps: int) -> None:
        """Solve until the gap of the held columns is `wanted`, or a part of what it was; other weights stay as they are."""
        every = np.arange(self._order.size)
        size = 0
        v = self._take_rows(every)
        gap = self._gap(every, v)
        goal = max(solved * gap, wanted)
        while gap > goal and self._n_steps < most_steps:
            chosen = self._choose(v, 2 * size)
            size = chosen.size
            is_whole = chosen.size == every.size
            of_set = goal if is_whole else max(_SET_SOLVED * gap, 0.5 * goal)
            if not self._solve_set(chosen, v[chosen], of_set, most_steps, is_whole=is_whole) or is_whole:
                return
            v = self._take_rows(every)
            gap = self._gap(every, v)

    def _choose(self, v: np.ndarray, size: int) -> np.ndarray:
        """Choose held columns, nearest to the support first, and the bias: so many, or twice as many as are in the support.

        No more than twice as many as are in it or beyond its bound; all if they are few.
        """
        n = self.offsets.size
        penalty = self.penalty
        v = np.abs(v[:n])
        features = self._features[:n]
        in_support = self.w[features] != 0.0
        n_support = int(in_support.sum())
        n_apart = int((in_support | (v > penalty.l1)).sum())
        # with L2 the gap is a sum over those apart
        size = max(_LEAST, 2 * n_support, n_apart if penalty.l2 > 0.0 else min(size, 2 * n_apart))
        if n <= max(size, NARROW) or penalty.l1 == 0.0:
            return np.arange(self._order.size)
        share = 1.0 if penalty.l2 > 0.0 else min(1.0, penalty.l1 / max(float(v.max()), 1e-300))
        nearness = (penalty.l1 - share * v) / np.maximum(self.norm[features], 1e-100)
        nearness[in_support] = -np.inf
        chosen = np.sort(np.argpartition(nearness, size - 1)[:size])
        return np.append(chosen, np.arange(n, self._order.size))

    def _take_rows(self, chosen: np.ndarray) -> np.ndarray:
        """Make the model of the rows at their scores; returns v of some columns."""
        rows = (self._pull, self._curvature)
        v = np.empty(chosen.size)
        shares = kernels.model_rows(self.scores, self.costs, self._share, *rows)
        self._shares = np.reshape(shares, (2, 2))
        kernels.sum_columns(self._order[chosen], *self._columns, self._pull, v)
        return v

    def _gap(self, chosen: np.ndarray, v: np.ndarray) -> float:
        """Bound the gap of chosen columns alone."""
        side = np.ones(2)
        (l1, l2, free_bias) = self.penalty
        w = self.w[self._features[chosen]]
        if free_bias:  # it asks for Σ pull = 0: the heavier side is scaled down
            w = w[:-1]
            v = v[:-1]
            sizes = np.array([-np.minimum(self._pull, 0.0).sum(), np.maximum(self._pull, 0.0).sum()])
            np.divide(sizes.min(), sizes, out=side, where=sizes > 0.0)
        share = 1.0 if l2 > 0.0 else min(1.0, l1 / max(float(np.abs(v).max(initial=0.0)), 1e-300))
        lacking = 1.0 - share * side
        of_rows = float((self._shares * (lacking**2, lacking)).sum())
        return of_rows + float(newton_kernels.penalty_terms(w, v, share, l1, l2)[0])

    # -- a set

    def _solve_set(
        self, chosen: np.ndarray, v: np.ndarray, goal: float, most_steps: int, *, is_whole: bool
    ) -> bool:
        """Solve for chosen columns to a gap, or until a further step would gain little; returns whether the objective fell.

        The gap is that of scaled dual variables, at first far above what there is to gain; it alone counts where all held
        columns are chosen.
        """
        features = self._features[chosen]
        w = self.w
        decrease = 0.0
        while self._n_steps < most_steps and self._gap(chosen, v) > goal:
            step = self._minimise(chosen, w[features], v) - w[features]
            self._n_steps += 1
            (length, change, expected) = self._search(chosen, step, v)
            share = self._share
            if length < _SHORT and self.costs.loss.kind == LOG_LOSS:
                self._share = 1.0  # a step to the minimum of such a model descends
            elif length == 1.0:
                self._share = 0.0
            if length == 0.0 and self._share == share:
                break
            w[features] += length * step
            decrease -= change
            if not is_whole and abs(change - expected) <= _SET_SOLVED * decrease:
                break
            v = self._take_rows(chosen)
        return decrease > 0.0

    def _minimise(self, chosen: np.ndarray, w: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Return the weights that minimise the model of the rows with the penalty."""
        order = self._order[chosen]
        key = (*self.key, self._n_steps)
        n = int((order >= 0).sum())
        if n > NARROW:
            rows = self._pull, self._curvature
            ColumnsModel(order, self._columns, rows, key).minimise(w, self.penalty)
            return w
        pull, moved = np.zeros((2, n + 1))  # the bias last
        pull[: v.size] = v
        moved[: v.size] = w
        matrix = kernels.matrix_of(order[:n], *self._columns, self._curvature)
        minimise(MatrixModel(matrix, pull), moved, self.penalty)
        return moved[: w.size]

    def _search(self, chosen: np.ndarray, step: np.ndarray, v: np.ndarray) -> tuple[float, float, float]:
        """Move the scores along a step until the objective falls enough; returns how far, its change, and the model's."""
        w = self.w[self._features[chosen]]
        score = self.scores.score
        moved = self._moved
        moved[:] = 0.0
        kernels.add_columns(self._order[chosen], *self._columns, step, moved)
        slope = self.penalty.change(w, step) - float(np.einsum("i,i->", v, step))
        expected = slope + 0.5 * float(np.einsum("i,i,i->", moved, self._curvature, moved))
        length = 1.0 if step.any() else 0.0
        while length > _LEAST_LENGTH:
            change = kernels.change_on_line(self.scores, moved, length, self.costs)
            change += self.penalty.change(w, length * step)
            if change <= _SUFFICIENT * length * slope:
                score += length * moved
                return length, change, expected
            length *= 0.5
        return 0.0, 0.0, expected

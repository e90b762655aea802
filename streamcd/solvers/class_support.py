"""Newton steps in the weights of all classes that are not 0, for multinomial logistic regression by columns.

Where classes take turns, what several of them have in common moves little at a time. A step by conjugate gradients on the
quadratic model of all classes moves it at once; weights that would change their signs become 0, and the step is shortened
until the objective falls enough. Source: Andrew and Gao, ICML 2007 (the orthant of a step); Bertsekas, SIAM J. Control
Optim. 20 (1982).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..kernels import class_columns as kernels
from ..kernels import working_set as column_kernels
from ..kernels.class_columns import ClassRows
from ..kernels.columns import Columns
from .set_model import penalty_change

_MOST_PRODUCTS, _SOLVED = 50, 0.05  # of conjugate gradients; of the residual's norm
_SUFFICIENT = 0.01  # part of the decrease that the slope predicts
_LEAST_LENGTH = 0.5**12  # of a step


class ClassProblem(NamedTuple):
    """A lane's problem in the weights of columns in memory; scores and weights are changed in place."""

    score: np.ndarray  # (classes, rows)
    rows: ClassRows
    columns: Columns
    offsets: np.ndarray  # of held columns
    w: np.ndarray  # (classes, features + 1)
    bias: float
    penalty: tuple[float, float, bool]  # l1, l2, whether the bias is free of them


class SupportStep:
    """Steps of a `ClassProblem` on its support."""

    def __init__(self, problem: ClassProblem) -> None:
        self._problem = problem
        self._share, self._moved = np.empty((2, *problem.score.shape))
        self._model, self._scratch = np.empty(2 * problem.score.shape[1]), np.empty((3, len(problem.score)))
        self._n_swept = 0  # entries read

    def load_kernels(self) -> None:
        """Load the kernels by a problem without rows."""
        none, numbers = np.zeros(0, dtype=np.int64), np.zeros(0)
        self._shares()
        self._model_of(0, none)
        self._set_moved([none] * len(self._moved), numbers)
        self._multiply([none] * len(self._moved), numbers)
        kernels.class_loss_change(self._problem.score, self._moved, self._problem.rows, self._scratch)

    def move(self) -> float:
        """Move weights and scores by a step, if the objective falls.

        Returns how many times the held entries of every class are read.
        """
        self._n_swept = 0
        self._move()
        n_entries = self._entries_of(self._problem.offsets)
        return self._n_swept / max(len(self._moved) * (n_entries + self._moved.shape[1]), 1)

    def _move(self) -> None:
        problem, (l1, l2, is_free) = self._problem, self._problem.penalty
        orders = [self._support_of(m) for m in range(len(problem.w))]
        order = np.concatenate(orders)
        if not order.size:
            return
        self._shares()
        pull, diagonal = np.concatenate([self._model_of(m, own) for m, own in enumerate(orders)], axis=1)
        own = np.concatenate([problem.w[m][self._places(of_class)] for m, of_class in enumerate(orders)])
        penalised = ~((order < 0) & is_free)
        residual, ridge = pull - (l1 * np.sign(own) + l2 * own) * penalised, l2 * penalised
        step = self._solve(orders, residual, diagonal + ridge, ridge)
        self._search(orders, own, step, pull)

    def _support_of(self, m: int) -> np.ndarray:
        """Return the columns with weights in a class, -1 being the bias."""
        problem, (l1, _, is_free) = self._problem, self._problem.penalty
        w, offsets = problem.w[m], problem.offsets
        chosen = offsets if l1 == 0.0 else offsets[w[problem.columns.feature[offsets]] != 0.0]
        if problem.bias and (is_free or l1 == 0.0 or w[-1] != 0.0):
            chosen = np.append(chosen, -1)
        return chosen

    def _places(self, order: np.ndarray) -> np.ndarray:
        """Return where the weights of columns are."""
        features = self._problem.columns.feature
        return np.where(order < 0, -1, features[order] if features.size else -1)

    def _shares(self) -> None:
        kernels.set_shares(self._problem.score, self._share, self._scratch)

    def _model_of(self, m: int, order: np.ndarray) -> np.ndarray:
        """Return v and the curvatures of columns in a class, (2, columns)."""
        problem, sums = self._problem, np.empty((3, order.size))
        kernels.set_class_model(self._share, problem.rows, m, self._model)
        column_kernels.model_columns(order, problem.columns, problem.bias, self._model, *sums)
        self._n_swept += self._entries_of(order)
        return sums[:2]

    def _entries_of(self, order: np.ndarray) -> int:
        indptr, order = self._problem.columns.indptr, order[order >= 0]
        return int((indptr[order + 1] - indptr[order]).sum())

    def _set_moved(self, orders: list[np.ndarray], step: np.ndarray) -> None:
        """Set `moved` to the changes of the scores by a step."""
        problem, self._moved[:] = self._problem, 0.0
        for order, of_class, moved in zip(orders, _by_class(orders, step), self._moved, strict=True):
            column_kernels.add_scores(order, problem.columns, problem.bias, of_class, moved)
            self._n_swept += self._entries_of(order)

    def _multiply(self, orders: list[np.ndarray], step: np.ndarray) -> np.ndarray:
        """Multiply the Hessian of the losses by a step."""
        problem, product = self._problem, np.zeros_like(step)
        self._set_moved(orders, step)
        kernels.curve_scores(self._share, problem.rows, self._moved)
        for order, sums, moved in zip(orders, _by_class(orders, product), self._moved, strict=True):
            kernels.add_column_sums(order, problem.columns, problem.bias, moved, sums)
            self._n_swept += self._entries_of(order)
        return product

    def _solve(
        self, orders: list[np.ndarray], residual: np.ndarray, diagonal: np.ndarray, ridge: np.ndarray
    ) -> np.ndarray:
        """Minimise the model on the support by conjugate gradients; the diagonal is the preconditioner."""
        step, flat = np.zeros_like(residual), ~(diagonal > 0.0)
        inverse = np.divide(1.0, diagonal, out=np.zeros_like(diagonal), where=~flat)
        along = inverse * residual
        size = float(np.einsum("i,i->", residual, along))
        goal = _SOLVED**2 * size
        for _ in range(_MOST_PRODUCTS):
            product = self._multiply(orders, along) + ridge * along
            curvature = float(np.einsum("i,i->", along, product))
            if not curvature > 0.0:
                break
            step += size / curvature * along
            residual = residual - size / curvature * product
            scaled = inverse * residual
            before, size = size, float(np.einsum("i,i->", residual, scaled))
            if size <= goal:
                break
            along = scaled + size / before * along
        return step

    def _search(self, orders: list[np.ndarray], own: np.ndarray, step: np.ndarray, pull: np.ndarray) -> None:
        """Move along a step as far as the objective falls enough; weights that would change their signs become 0."""
        problem, order = self._problem, np.concatenate(orders)
        l1, length = problem.penalty[0], 1.0
        stays = (own != 0.0) & (order >= 0 if problem.penalty[2] else True) & (l1 > 0.0)
        while length > _LEAST_LENGTH:
            part = length * step
            part = np.where(stays & (own * (own + part) < 0.0), -own, part)
            of_penalty = penalty_change(own, part, order, problem.penalty)
            expected = of_penalty - float(np.einsum("i,i->", pull, part))
            self._set_moved(orders, part)
            args = problem.score, self._moved, problem.rows, self._scratch
            change = kernels.class_loss_change(*args) + of_penalty
            if expected < 0.0 and change <= _SUFFICIENT * expected:
                problem.score[:] += self._moved
                for w, of_class, moved in zip(problem.w, orders, _by_class(orders, own + part), strict=True):
                    w[self._places(of_class)] = moved
                return
            length *= 0.5


def _by_class(orders: list[np.ndarray], array: np.ndarray) -> list[np.ndarray]:
    """Return the parts of an array for the columns of each class."""
    return np.split(array, np.cumsum([order.size for order in orders])[:-1])

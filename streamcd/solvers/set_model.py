"""Quadratic model of the loss on a set of columns in memory, and its minimum with the penalty.

Long columns, which overlap in many rows, are moved together: the model is minimised by its matrix over them. Sweeps of
coordinate descent move the others, in random order. A step that each of these would make alone hardly moves what they have
in common, a change of all scores at once; so that is a direction of its own, which long columns follow. Conjugate gradients
on the support take what sweeps still leave.
"""

from __future__ import annotations

import numpy as np

from ..core.randomness import random_key
from ..kernels import working_set as kernels
from ..kernels.columns import Columns
from ..kernels.primitives import shuffle
from . import quadratic_model
from .memory import NARROW

_LONG = 0.15  # of the rows, of which a long column has entries
_LONG_SOLVED = 1e-3  # largest change of a derivative, over that of the first sweep, where sweeps follow
_MOST_SWEEPS, _SWEEPS = 60, 8  # of a model; before conjugate gradients
_MOST_PRODUCTS, _CG_SOLVED = 50, 0.01  # of conjugate gradients; of the residual's norm
_MOST_LEAVE = 5  # steps on the support
_SOLVED = 0.1  # of the sum of slopes in the first sweep


class SetModel:
    """The model of a set of columns, and perhaps the bias.

    `rows` is the model of the rows, changed in place; `moved` and `common` are scratch, a number a row.
    """

    def __init__(
        self,
        order: np.ndarray,
        problem: tuple[Columns, float, tuple[float, float, bool]],
        rows: np.ndarray,
        moved: np.ndarray,
        common: np.ndarray,
    ) -> None:
        columns, bias, self._penalty = problem
        self._order, self._columns, self._model = order, (columns, bias), rows
        self._moved, self._common = moved, common
        self._penalised = ~((order < 0) & self._penalty[2])
        self._curve, self._lean = np.empty(order.size), np.empty(order.size)
        self._sizes = np.where(order < 0, moved.size, columns.indptr[order + 1] - columns.indptr[order])
        self._long = self._find_long()
        self._room: kernels.Room | None = None
        self._v = np.empty(0)  # of the columns, before a step
        self.n_swept = 0  # entries read

    def load_kernels(self, *, wide: bool) -> None:
        """Load the kernels by a model without columns; with `wide` also those for columns that have no matrix."""
        none, numbers = self._order, np.zeros(0)
        self.take_rows(numbers)
        matrix = self._matrix()
        quadratic_model.minimise(matrix[:0, :0], numbers, numbers, (0.0, 0.0, 0))
        kernels.move_model(self._moved, self._model)
        quadratic_model.solve_positive(matrix[:0, :0], numbers)
        if wide:
            kernels.descend(none, none, *self._columns, numbers, self._penalty, numbers, self._model)
            kernels.curved_products(none, *self._columns, self._moved, self._model, numbers)

    def _find_long(self) -> np.ndarray:
        """Return which columns are moved by their matrix: all if they are few."""
        if self._order.size <= NARROW + 1:
            return np.arange(self._order.size)
        most = np.partition(self._sizes, -NARROW)[-NARROW]
        return np.flatnonzero((self._sizes > max(_LONG * self._moved.size, float(most))) | (self._order < 0))

    def _entries_of(self, order: np.ndarray) -> int:
        indptr, order = self._columns[0].indptr, order[order >= 0]
        return int((indptr[order + 1] - indptr[order]).sum())

    def take_rows(self, v: np.ndarray) -> None:
        """Take the rows as they are, before a step; computes v of the columns, in `v`."""
        self._v = v
        kernels.model_columns(self._order, *self._columns, self._model, v, self._curve, self._lean)
        self.n_swept += int(self._sizes.sum())

    def minimise(self, w: np.ndarray, key: tuple[int, ...]) -> np.ndarray:
        """Return the weights that minimise the model with the penalty."""
        u, visits = w.copy(), np.delete(np.arange(w.size), self._long)
        arguments = (self._order, *self._columns, self._curve, self._penalty, u, self._model)
        matrix, direction, goal = self._matrix(), np.zeros(0), 0.0
        self._move_long(matrix, u, self._v[self._long])
        for sweep in range(_MOST_SWEEPS if visits.size else 0):
            shuffle(visits, random_key(*key, sweep))
            slopes = kernels.descend(visits, *arguments)
            self.n_swept += int(self._sizes[visits].sum())
            self._move_long(matrix, u, self._sums_of(self._order[self._long])[0])
            if sweep == 0:
                goal, direction = _SOLVED * slopes, self._common_direction(matrix, u)
            elif slopes <= goal:
                break
            self._move_along(direction, u)
            if sweep % _SWEEPS == _SWEEPS - 1:
                self._step_on_support(u)
        return u

    # -- long columns

    def _matrix(self) -> np.ndarray:
        """Return the matrix of the long columns, the bias last."""
        order = self._order[self._long]
        n = int((order >= 0).sum())
        if self._room is None:
            self._room = kernels.new_room(n)
        matrix = np.zeros((n + 1, n + 1))
        kernels.add_matrix(order[:n], *self._columns, self._model, self._room, matrix)
        diagonal = np.einsum("ii->i", matrix)
        diagonal += quadratic_model.DAMPING * diagonal.max()
        self.n_swept += self._entries_of(order) + matrix.size
        return matrix

    def _move_long(self, matrix: np.ndarray, u: np.ndarray, v: np.ndarray) -> None:
        """Move the weights of long columns, with these sums v, to where they minimise the model."""
        if not self._long.size:
            return
        (l1, l2, is_free), size, order = self._penalty, self._long.size, self._order[self._long]
        pull, own = np.zeros(len(matrix)), np.zeros(len(matrix))
        pull[:size], own[:size] = v, u[self._long]
        n_penalised = len(matrix) - (1 if is_free else 0)
        solved = quadratic_model.SOLVED if size == u.size else _LONG_SOLVED
        quadratic_model.minimise(matrix, pull, own, (l1, l2, n_penalised), solved)
        self._set_moved(order, own[:size] - u[self._long])
        kernels.move_model(self._moved, self._model)
        u[self._long] = own[:size]

    def _sums_of(self, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute v and the curvatures of columns."""
        v, curve, lean = np.empty((3, order.size))
        kernels.model_columns(order, *self._columns, self._model, v, curve, lean)
        self.n_swept += self._entries_of(order)
        return v, curve

    def _set_moved(self, order: np.ndarray, step: np.ndarray) -> None:
        """Set `moved` to the change of the scores by a step."""
        self._moved[:] = 0.0
        kernels.add_scores(order, *self._columns, step, self._moved)
        self.n_swept += self._entries_of(order[step != 0.0])

    # -- what the others have in common

    def _common_direction(self, matrix: np.ndarray, u: np.ndarray) -> np.ndarray:
        """Return the step of weights that are not 0 towards equal changes of all scores, and where it moves long columns."""
        moves = (u != 0.0) & (self._curve > 0.0)
        direction = np.divide(self._lean, self._curve, out=np.zeros_like(u), where=moves)
        direction[self._long] = 0.0
        self._set_moved(self._order, direction)
        support = np.flatnonzero(moves[self._long])
        if support.size:
            order, step = self._order[self._long[support]], np.empty(support.size)
            kernels.curved_products(order, *self._columns, self._moved, self._model, step)
            step = quadratic_model.solve_positive(matrix[np.ix_(support, support)], step)
            kernels.add_scores(order, *self._columns, -step, self._moved)
            direction[self._long[support]] = -step
            self.n_swept += 2 * self._entries_of(order)
        self._common[:] = self._moved
        return direction

    def _move_along(self, direction: np.ndarray, u: np.ndarray) -> None:
        """Move weights along the direction to where the model is least; those that would change their signs become 0."""
        l1, l2, _ = self._penalty
        step = np.where((u != 0.0) | ~self._penalised, direction, 0.0)
        self._moved[:] = self._common
        kernels.add_scores(self._order, *self._columns, step - direction, self._moved)
        slope, curvature = kernels.model_along(self._moved, self._model)
        of_penalty = (l1 * np.sign(u) + l2 * u)[self._penalised], step[self._penalised]
        slope -= float(np.einsum("i,i->", *of_penalty))
        curvature += l2 * float(np.einsum("i,i->", of_penalty[1], of_penalty[1]))
        if not curvature > 0.0:
            return
        step *= slope / curvature
        self._moved *= slope / curvature
        turned = np.where(self._penalised & (np.sign(u) * (u + step) < 0.0), -(u + step), 0.0)
        kernels.add_scores(self._order, *self._columns, turned, self._moved)
        if self._move_if_lower(self._order, u, step + turned):
            u += step + turned

    # -- the support

    def _step_on_support(self, u: np.ndarray) -> None:
        """Solve the model for the weights that are not 0, whose signs stay; those that would change it become 0."""
        l1, l2, _ = self._penalty
        order, curve, free = self._order, self._curve, ~self._penalised
        for _ in range(_MOST_LEAVE):
            support = np.flatnonzero(((u != 0.0) | free) & (curve > 0.0))
            if not support.size:
                return
            chosen, own, signs = order[support], u[support], np.sign(u[support]) * ~free[support]
            pull, diagonal = self._sums_of(chosen)
            ridge = l2 * ~free[support]
            residual = pull - l1 * signs - ridge * own
            step, last = self._conjugate_gradients(chosen, (own, signs), residual, diagonal + ridge, ridge)
            turns = signs * (own + step + last) < 0.0
            clipped = np.where(turns, -own, step + last)
            if not self._take_if_lower(chosen, own, clipped):
                # to where the first of them becomes 0
                lengths = np.divide(-(own + step), last, out=np.ones_like(own), where=turns)
                first = int(np.argmin(lengths))
                clipped = step + lengths[first] * last
                clipped[first] = -own[first] if turns.any() else clipped[first]
                if not self._take_if_lower(chosen, own, clipped):
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
        own, signs = start
        step, product = np.zeros(order.size), np.empty(order.size)
        scaled = residual / diagonal
        along, size = scaled.copy(), float(np.einsum("i,i->", residual, scaled))
        goal, last = _CG_SOLVED**2 * size, np.zeros(order.size)
        for _ in range(_MOST_PRODUCTS):
            self._set_moved(order, along)
            kernels.curved_products(order, *self._columns, self._moved, self._model, product)
            self.n_swept += self._entries_of(order)
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

    def _take_if_lower(self, order: np.ndarray, own: np.ndarray, step: np.ndarray) -> bool:
        """Move the model by a step of some weights if that lowers it, with the penalty."""
        self._set_moved(order, step)
        return self._move_if_lower(order, own, step)

    def _move_if_lower(self, order: np.ndarray, own: np.ndarray, step: np.ndarray) -> bool:
        slope, curvature = kernels.model_along(self._moved, self._model)
        if not 0.5 * curvature - slope + penalty_change(own, step, order, self._penalty) < 0.0:
            return False
        kernels.move_model(self._moved, self._model)
        return True


def penalty_change(
    w: np.ndarray, step: np.ndarray, order: np.ndarray, penalty: tuple[float, float, bool]
) -> float:
    """Return the change of the penalty of columns, the bias among them if it is -1 in their order."""
    l1, l2, is_free = penalty
    change = l1 * (np.abs(w + step) - np.abs(w)) + l2 * step * (w + 0.5 * step)
    return float(change[order >= 0].sum() if is_free else change.sum())

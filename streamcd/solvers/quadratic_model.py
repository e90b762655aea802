"""Minimum of a quadratic model of the loss with L1 or an elastic net.

Sweeps of coordinate descent find the weights that are not 0, and Newton's steps solve for these: by Cholesky's method where
the model's matrix is in memory, else by conjugate gradients over its columns. Source: Friedman, Hastie, Tibshirani, J. Stat.
Software 33 (2010); Yuan, Ho, Lin, JMLR 13 (2012), newGLMNET.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from ..core.randomness import random_key
from ..kernels import newton as newton_kernels
from ..kernels import working_set as kernels
from ..kernels.columns import Columns
from ..kernels.primitives import shuffle

_SWEEPS, _STEPS = 16, 20  # before steps on the support; the most of these, until no sign changes
_MOST_ROUNDS = 5  # of both
_MOST_PRODUCTS, _CG_SOLVED = 20, 0.1  # of conjugate gradients; of the residual's norm
_DAMPING = 1e-11  # of a curvature, added to it: more than what rounding leaves of it


class Penalty(NamedTuple):
    """``g(w) = Σ l1 |w_j| + ½ l2 w_j²``, over all weights but a free bias, which comes last."""

    l1: float
    l2: float
    free_bias: bool

    def counts(self, size: int) -> np.ndarray:
        """Mark the weights in g, of as many."""
        counted = np.ones(size, dtype=bool)
        counted[size - 1 :] = not self.free_bias
        return counted

    def change(self, w: np.ndarray, step: np.ndarray) -> float:
        """Return the change of g by a step from w."""
        n = w.size - self.free_bias
        own, moved = w[:n], step[:n]
        return float(
            (self.l1 * (np.abs(own + moved) - np.abs(own)) + self.l2 * moved * (own + 0.5 * moved)).sum()
        )


class Model(Protocol):
    """``½ sᵀHs - v·s`` of a step s, where the steps made so far have led."""

    curve: np.ndarray  # the diagonal of H

    def sweep(self, u: np.ndarray, penalty: Penalty) -> float:
        """Minimise along each weight; returns the sum of the slopes before."""

    def pull(self, some: np.ndarray) -> np.ndarray:
        """Return v of some weights."""

    def solve(self, some: np.ndarray, residual: np.ndarray, ridge: np.ndarray) -> np.ndarray:
        """Return about ``(H + ridge)⁻¹ residual`` over some weights."""

    def curvature(self, some: np.ndarray, step: np.ndarray) -> float:
        """Return ``sᵀHs`` of a step of some weights, which `move` makes a part of."""

    def move(self, length: float) -> None:
        """Move by a part of that step."""


def minimise(model: Model, u: np.ndarray, penalty: Penalty, solved: float) -> None:
    """Lower ``½ sᵀHs - v·s + g(u + s)``, u becoming ``u + s``, until slopes are a part of those of the first sweep."""
    goal = -1.0
    for _ in range(_MOST_ROUNDS):
        for _ in range(_SWEEPS):
            slopes = model.sweep(u, penalty)
            if slopes <= goal or slopes == 0.0:
                return
            goal = solved * slopes if goal < 0.0 else goal
        for _ in range(_STEPS):
            if not _step_on_support(model, u, penalty):
                break


def _step_on_support(model: Model, u: np.ndarray, penalty: Penalty) -> bool:
    """Move the weights that are not 0 towards their solution with these signs, to where the model is least on the way.

    Returns whether signs have changed: the solution is another one then.
    """
    counted = penalty.counts(u.size)
    support = np.flatnonzero(((u != 0.0) | ~counted) & (model.curve > 0.0))
    if not support.size:
        return False
    own, ridge, signs = u[support], penalty.l2 * counted[support], np.sign(u[support]) * counted[support]
    residual = model.pull(support) - penalty.l1 * signs - ridge * own
    step = model.solve(support, residual, ridge)
    slope = float(np.einsum("i,i->", residual, step))
    curvature = model.curvature(support, step) + float(np.einsum("i,i,i->", ridge, step, step))
    if not (slope > 0.0 and curvature > 0.0):
        return False
    length, last = _length(own, step, slope, curvature, penalty.l1 * np.abs(signs))
    model.move(length)
    u[support] = own + length * step
    if last >= 0:
        u[support[last]] = 0.0
    return last >= 0 or bool((signs * u[support] < 0.0).any())


def _length(
    own: np.ndarray, step: np.ndarray, slope: float, curvature: float, kinks: np.ndarray
) -> tuple[float, int]:
    """Return the length at which a model with ``Σ kinks |w|`` is least along a step, and the weight that is 0 there, or -1.

    The model falls with this slope first, and without kinks to the length ``slope / curvature``.
    """
    turning = np.flatnonzero((kinks > 0.0) & (own * step < 0.0))
    lengths = -own[turning] / step[turning]
    order = np.argsort(lengths, kind="stable")
    turning, lengths = turning[order], lengths[order]
    # the slope grows by twice its own at each weight that turns
    rises = np.cumsum(2.0 * kinks[turning] * np.abs(step[turning]))
    beyond = np.flatnonzero(rises >= slope - curvature * lengths)
    n_turned = int(beyond[0]) if beyond.size else turning.size
    length = (slope - (rises[n_turned - 1] if n_turned else 0.0)) / curvature
    if n_turned < turning.size and length >= lengths[n_turned]:
        return float(lengths[n_turned]), int(turning[n_turned])
    return float(length), -1


class MatrixModel:
    """A model whose matrix is in memory; `pull`, v, is changed in place."""

    def __init__(self, matrix: np.ndarray, pull: np.ndarray) -> None:
        for j in range(pull.size):  # from the lower triangle
            matrix[:j, j] = matrix[j, :j]
        np.einsum("ii->i", matrix)[:] *= 1.0 + _DAMPING
        self._matrix, self._pull, self._product = matrix, pull, np.zeros(pull.size)
        self.curve = np.diagonal(matrix)

    def sweep(self, u: np.ndarray, penalty: Penalty) -> float:
        """Minimise along each weight, in order."""
        return float(newton_kernels.sweep_model(self._matrix, self._pull, u, *penalty))

    def pull(self, some: np.ndarray) -> np.ndarray:
        """Return v of some weights."""
        return self._pull[some]

    def solve(self, some: np.ndarray, residual: np.ndarray, ridge: np.ndarray) -> np.ndarray:
        """Solve by Cholesky's method."""
        matrix = self._matrix[np.ix_(some, some)]
        np.einsum("ii->i", matrix)[:] += ridge
        return solve_positive(matrix, residual)

    def curvature(self, some: np.ndarray, step: np.ndarray) -> float:
        """Keep the product with the step, and return its curvature."""
        whole = np.zeros(self._pull.size)
        whole[some] = step
        self._product = np.einsum("ij,j->i", self._matrix, whole)
        return float(np.einsum("i,i->", whole, self._product))

    def move(self, length: float) -> None:
        """Move v."""
        self._pull -= length * self._product


class ColumnsModel:
    """A model over columns in memory, the last of which may be the bias, -1.

    Parameters
    ----------
    order, columns, bias, rows
        As kernels take them; `rows`, the model of the rows, is changed in place.
    sizes : ndarray of int64
        Entries of the columns.
    moved : ndarray of float64
        Scratch, a number a row.
    key : tuple of int
        Of the random order of sweeps.
    """

    def __init__(
        self,
        columns: tuple[np.ndarray, Columns, float],
        sizes: np.ndarray,
        rows: np.ndarray,
        moved: np.ndarray,
        curve: np.ndarray,
        key: tuple[int, ...],
    ) -> None:
        self._columns, self._sizes, self._rows, self._moved = columns, sizes, rows, moved
        self.curve, self._key, self._visits = curve, key, np.arange(curve.size)
        self.n_swept = 0  # entries read

    def sweep(self, u: np.ndarray, penalty: Penalty) -> float:
        """Minimise along each weight, in random order."""
        shuffle(self._visits, random_key(*self._key, self.n_swept))
        self.n_swept += int(self._sizes.sum())
        return float(kernels.descend(self._visits, *self._columns, self.curve, penalty, u, self._rows))

    def pull(self, some: np.ndarray) -> np.ndarray:
        """Sum up v of some weights."""
        v, curve = np.empty((2, some.size))
        kernels.model_columns(*self._of(some), self._rows, v, curve)
        return v

    def solve(self, some: np.ndarray, residual: np.ndarray, ridge: np.ndarray) -> np.ndarray:
        """Solve by conjugate gradients, with the diagonal as preconditioner."""
        diagonal, step, product = self.curve[some] + ridge, np.zeros(some.size), np.empty(some.size)
        scaled = residual / diagonal
        along, size = scaled.copy(), float(np.einsum("i,i->", residual, scaled))
        goal = _CG_SOLVED**2 * size
        for _ in range(_MOST_PRODUCTS):
            curvature = self.curvature(some, along) + float(np.einsum("i,i,i->", ridge, along, along))
            if not curvature > 0.0:
                break
            kernels.curved_products(*self._of(some), self._moved, self._rows, product)
            product += ridge * along
            length = size / curvature
            step += length * along
            residual = residual - length * product
            scaled = residual / diagonal
            before, size = size, float(np.einsum("i,i->", residual, scaled))
            if size <= goal:
                break
            along = scaled + size / before * along
        return step

    def curvature(self, some: np.ndarray, step: np.ndarray) -> float:
        """Keep the change of the scores by the step, and return its curvature."""
        self._moved[:] = 0.0
        kernels.add_scores(*self._of(some), step, self._moved)
        return float(kernels.model_along(self._moved, self._rows)[1])

    def move(self, length: float) -> None:
        """Move the rows."""
        self._moved *= length
        kernels.move_model(self._moved, self._rows)

    def _of(self, some: np.ndarray) -> tuple[np.ndarray, Columns, float]:
        self.n_swept += int(self._sizes[some].sum())
        order, columns, bias = self._columns
        return order[some], columns, bias


def solve_positive(matrix: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Solve ``A y = v`` for a positive semidefinite A in its lower triangle, which is used up.

    BLAS has threads that wait in loops: on processors with other work they took up to 20 times as long.
    """
    solution, least = v.copy(), 1e-14 * np.diagonal(matrix)
    newton_kernels.solve_positive(matrix, solution, least, np.empty((newton_kernels.PANEL, v.size)))
    return solution

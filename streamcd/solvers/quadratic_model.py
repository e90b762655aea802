"""Minimum of a quadratic model of the loss with L1 or an elastic net.

Sweeps of coordinate descent find the weights that are not 0. Newton's steps solve for these, by Cholesky's method, where the
model's matrix is in memory; over columns further sweeps do, each extrapolated from the last. Source: Friedman, Hastie,
Tibshirani, J. Stat. Software 33 (2010); Yuan, Ho, Lin, JMLR 13 (2012), newGLMNET.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.setting import random_key
from ..kernels import newton as newton_kernels
from ..kernels import working_set as kernels
from ..kernels.primal import Columns
from ..kernels.primitives import shuffle
from .problem import Problem

_SOLVED, _MOST_SWEEPS = 0.1, 40
"""Part of a model's first slopes to which the model of columns is solved, and sweeps at most: the next is nearer to the
loss (`docs/measurements.md`, "L1")."""

# a matrix once made, these cost little
_MATRIX_SOLVED = 1e-6
_MATRIX_ROUNDS, _MATRIX_SWEEPS, _MATRIX_STEPS = 5, 16, 20

_DAMPING = 1e-11  # of a curvature, added to it: more than what rounding leaves of it


class Penalty(NamedTuple):
    """``g(w) = Σ l1 |w_j| + ½ l2 w_j²``, over all weights but a free bias, which comes last."""

    l1: float
    l2: float
    free_bias: bool

    @classmethod
    def of_lane(cls, problem: Problem, lane: int) -> Penalty:
        """Return the penalty of a lane."""
        return cls(float(problem.l1[lane]), problem.l2, problem.free_bias)

    def change(self, w: np.ndarray, step: np.ndarray) -> float:
        """Return the change of g by a step from w."""
        own, moved = w[: w.size - self.free_bias], step[: w.size - self.free_bias]
        changes = self.l1 * (np.abs(own + moved) - np.abs(own)) + self.l2 * moved * (own + 0.5 * moved)
        return float(changes.sum())


def slope_norms(problem: Problem, w: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return `kernels.newton.slope_norm` of every lane, from arrays (lanes, features + 1)."""
    norm, lanes = newton_kernels.slope_norm, range(problem.n_lanes)
    return np.array([norm(w[k], v[k], *Penalty.of_lane(problem, k)) for k in lanes])


class MatrixModel:
    """``½ sᵀHs - v·s`` by H, of which `matrix` has the lower triangle; `pull`, v, is that where the steps made have led."""

    def __init__(self, matrix: np.ndarray, pull: np.ndarray) -> None:
        for j in range(pull.size):
            matrix[:j, j] = matrix[j, :j]
        self.squares = np.einsum("ii->i", matrix)
        self.squares *= 1.0 + _DAMPING
        self._matrix, self._pull, self._product = matrix, pull, np.zeros(pull.size)

    def sweep(self, u: np.ndarray, penalty: Penalty) -> float:
        """Minimise along each weight; returns the sum of the slopes before."""
        return float(newton_kernels.sweep_model(self._matrix, self._pull, u, *penalty))

    def pull(self, some: np.ndarray) -> np.ndarray:
        """Return v of some weights."""
        return self._pull[some]

    def solve(self, some: np.ndarray, residual: np.ndarray, ridge: np.ndarray) -> np.ndarray:
        """Return about ``(H + ridge)⁻¹ residual`` over some weights."""
        matrix = self._matrix[np.ix_(some, some)]
        np.einsum("ii->i", matrix)[:] += ridge
        return solve_positive(matrix, residual)

    def curvature(self, some: np.ndarray, step: np.ndarray) -> float:
        """Return ``sᵀHs`` of a step of some weights, which `move` makes a part of."""
        whole = np.zeros(self._pull.size)
        whole[some] = step
        self._product = np.einsum("ij,j->i", self._matrix, whole)
        return float(np.einsum("i,i->", whole, self._product))

    def move(self, length: float) -> None:
        """Move by a part of that step."""
        self._pull -= length * self._product


class ColumnsModel:
    """The same by columns in memory, the last of which may be the bias; see `kernels.working_set`.

    `rows` are `pull`, which is changed in place, and `curvature`; `key` is that of the random order of sweeps.
    """

    def __init__(
        self,
        order: np.ndarray,
        columns: tuple[Columns, float],
        rows: tuple[np.ndarray, np.ndarray],
        key: tuple[int, ...],
    ) -> None:
        self._order, self._columns, self._rows, self._key = order, columns, rows, key
        self._last = np.empty(rows[0].size)
        self._squares = np.empty(order.size)
        kernels.sum_squares(order, *columns, rows[1], self._squares)

    def minimise(self, u: np.ndarray, penalty: Penalty) -> None:
        """Lower the model plus the penalty, u being the weights: a sweep over all, then some over those that are not 0."""
        pull, curvature = self._rows
        visits = support = np.arange(u.size)
        last = u
        goal = 0.0
        for n in range(_MOST_SWEEPS):
            shuffle(visits, random_key(*self._key, n), 1)
            model = self._order, *self._columns, self._squares, penalty
            slopes = float(kernels.descend(visits, *model, u, pull, curvature))
            if n == 0:
                goal = _SOLVED * slopes
                support = np.flatnonzero((u != 0.0) | (self._order < 0))
                visits = support.copy()
                last = u[support]
                self._last[:] = pull
            elif slopes <= goal:
                return
            else:
                last = self._extrapolate(support, u, last, penalty)

    def _extrapolate(self, some: np.ndarray, u: np.ndarray, last: np.ndarray, penalty: Penalty) -> np.ndarray:
        """Go on along the step of some weights from `last`, the end of the sweep before, to where the model is least.

        Returns them as they were.
        """
        rows = self._rows[0], self._last
        slope, curvature = kernels.line_of_model(*rows, self._rows[1])
        own = u[some]
        step = own - last
        counted = (self._order[some] >= 0) | (not penalty.free_bias)
        kinks = penalty.l1 * counted
        ridge = penalty.l2 * counted
        signs = np.where(own != 0.0, np.sign(own), np.sign(step))
        slope -= float(((kinks * signs + ridge * own) * step).sum())
        curvature += float((ridge * step * step).sum())
        length, stopping = 0.0, -1
        if slope > 0.0 and curvature > 0.0:
            length, stopping = _length(own, step, slope, curvature, kinks)
        kernels.extrapolate(*rows, length)
        u[some] = own + length * step
        if stopping >= 0:
            u[some[stopping]] = 0.0
        return own


def minimise(model: MatrixModel, u: np.ndarray, penalty: Penalty) -> None:
    """Lower ``½ sᵀHs - v·s + g(u + s)``, u becoming ``u + s``: rounds of sweeps, then of steps on the support."""
    goal = -1.0
    for _ in range(_MATRIX_ROUNDS):
        for _ in range(_MATRIX_SWEEPS):
            slopes = model.sweep(u, penalty)
            if slopes <= goal or slopes == 0.0:
                return
            goal = _MATRIX_SOLVED * slopes if goal < 0.0 else goal
        for _ in range(_MATRIX_STEPS):
            if not _step_on_support(model, u, penalty):
                break


def _step_on_support(model: MatrixModel, u: np.ndarray, penalty: Penalty) -> bool:
    """Move the weights that are not 0 towards their solution with these signs, to where the model is least on the way.

    Returns whether signs have changed: the solution is another one then.
    """
    counted = np.arange(u.size) < u.size - penalty.free_bias
    support = np.flatnonzero(((u != 0.0) | ~counted) & (model.squares > 0.0))
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


def solve_positive(matrix: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Solve ``A y = v`` for a positive semidefinite A in its upper triangle, which is used up.

    BLAS has threads that wait in loops: on processors with other work they took up to 20 times as long.
    """
    solution = v.copy()
    newton_kernels.solve_positive(matrix, solution, 1e-14 * np.diagonal(matrix))
    return solution

"""Solution of a quadratic model with soft thresholds, where its matrix is in memory."""

from __future__ import annotations

from functools import partial

import numpy as np

from ..kernels import newton as newton_kernels

_SWEEPS, _MOST_ROUNDS = 10, 200  # over a model, before a step on its support; of both
SOLVED = 1e-10  # largest change of the last sweep over that of the first
DAMPING = 1e-10  # of a model's largest curvature, added to all


def minimise(
    matrix: np.ndarray,
    pull: np.ndarray,
    u: np.ndarray,
    penalty: tuple[float, float, int],
    solved: float = SOLVED,
) -> None:
    """Lower ``½ sᵀHs - v·s + g(w + s)`` to its minimum: sweeps find the support, Newton's steps solve for its weights.

    Parameters
    ----------
    matrix : ndarray of float64, shape (D, D)
        H, symmetric.
    pull, u : ndarray of float64, shape (D,)
        v and w; become ``v - Hs`` and ``w + s``.
    penalty : tuple of (float, float, int)
        l1, l2, and the number of features in the elastic net g: the first ones.
    solved : float
        Largest change of a derivative in the last sweep, over that in the first.
    """
    sweep = partial(newton_kernels.sweep_model, matrix, pull, u, *penalty)
    goal = solved * sweep(0.0, 1)[0]
    for _ in range(_MOST_ROUNDS):
        if sweep(goal, _SWEEPS)[1] <= goal:
            return
        _step_on_support(matrix, pull, u, penalty)


def _step_on_support(
    matrix: np.ndarray, pull: np.ndarray, u: np.ndarray, penalty: tuple[float, float, int]
) -> None:
    """Solve for the weights that are not 0, as far as the first of them that changes its sign."""
    l1, l2, n_penalised = penalty
    penalised = np.arange(u.size) < n_penalised
    support = np.flatnonzero((u != 0.0) | (~penalised & (np.diagonal(matrix) > 0.0)))
    if not support.size:
        return
    ridge, signs = l2 * penalised[support], np.sign(u[support]) * penalised[support]
    step = pull[support] - l1 * signs - ridge * u[support]
    of_support = matrix[np.ix_(support, support)]
    diagonal = np.einsum("ii->i", of_support)
    diagonal += ridge
    panel = np.empty((newton_kernels.PANEL, support.size))
    newton_kernels.solve_positive(of_support, step, 1e-14 * diagonal, panel)
    turns = (signs != 0.0) & (signs * step < -np.abs(u[support]))
    lengths = np.divide(-u[support], step, out=np.ones_like(step), where=turns)
    shortest = int(np.argmin(lengths))
    moved = u[support] + lengths[shortest] * step
    if turns.any():
        moved[shortest] = 0.0
    pull -= np.einsum("ij,j->i", matrix[:, support], moved - u[support])
    u[support] = moved

"""Solution of a quadratic model with soft thresholds, where its matrix is in memory."""

from __future__ import annotations

from functools import partial

import numpy as np

from ..kernels import newton as newton_kernels

_SWEEPS, _MOST_ROUNDS = 10, 200  # over a model, before steps on its support; of both
_MOST_STEPS = 100  # on a support, until no sign changes
ROWS = 512  # of a matrix that are multiplied at a time
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
        for _ in range(_MOST_STEPS):
            if not _step_on_support(matrix, pull, u, penalty):
                break


def _step_on_support(
    matrix: np.ndarray, pull: np.ndarray, u: np.ndarray, penalty: tuple[float, float, int]
) -> bool:
    """Move the weights that are not 0 towards their solution with these signs, to where the model is least on the way.

    Returns whether signs have changed: the solution is another one then.
    """
    l1, l2, n_penalised = penalty
    penalised = np.arange(u.size) < n_penalised
    support = np.flatnonzero((u != 0.0) | (~penalised & (np.diagonal(matrix) > 0.0)))
    if not support.size:
        return False
    own, ridge, signs = u[support], l2 * penalised[support], np.sign(u[support]) * penalised[support]
    residual = pull[support] - l1 * signs - ridge * own
    of_support = matrix[np.ix_(support, support)]
    np.einsum("ii->i", of_support)[:] += ridge
    step = solve_positive(of_support, residual)
    length, last = _length(own, step, float(np.einsum("i,i->", residual, step)), l1 * np.abs(signs))
    moved = own + length * step
    if last >= 0:
        moved[last] = 0.0
    for first in range(0, u.size, ROWS):  # of which the columns are copied
        some = slice(first, first + ROWS)
        pull[some] -= np.einsum("ij,j->i", matrix[some][:, support], moved - own)
    u[support] = moved
    return last >= 0 or bool((l1 * signs * moved < 0.0).any())


def _length(own: np.ndarray, step: np.ndarray, slope: float, kinks: np.ndarray) -> tuple[float, int]:
    """Return the length at which a model with ``Σ kinks |w|`` is least along a step, and the weight that is 0 there, or -1.

    The model falls with this slope first, and without kinks to the length 1.
    """
    turning = np.flatnonzero((kinks > 0.0) & (own * step < 0.0))
    lengths = -own[turning] / step[turning]
    order = np.argsort(lengths, kind="stable")
    turning, lengths = turning[order], lengths[order]
    # the slope grows by twice its own at each weight that turns
    rises = np.cumsum(2.0 * kinks[turning] * np.abs(step[turning]))
    beyond = np.flatnonzero(rises >= slope * (1.0 - lengths))
    n_turned = int(beyond[0]) if beyond.size else turning.size
    length = 1.0 - (rises[n_turned - 1] / slope if n_turned else 0.0)
    if n_turned < turning.size and length >= lengths[n_turned]:
        return float(lengths[n_turned]), int(turning[n_turned])
    return float(length), -1


def solve_positive(matrix: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Solve ``A y = v`` for a positive semidefinite A in its lower triangle, which is used up.

    BLAS has threads that wait in loops: on processors with other work they took up to 20 times as long.
    """
    solution, least = v.copy(), 1e-14 * np.diagonal(matrix)
    newton_kernels.solve_positive(matrix, solution, least, np.empty((newton_kernels.PANEL, v.size)))
    return solution

"""Platt's sigmoid: probabilities from decisions, fitted to rows that the decisions were not trained on.

Of every vector, ``p = 1/(1 + exp(a h + b))`` with the a, b that minimise the cross entropy to softened targets. Sources:
Platt, Probabilistic outputs for support vector machines (1999); the numerically safe Newton method is that of Lin, Lin &
Weng, Machine Learning 68 (2007), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from ..core.errors import UsageError
from ..kernels.loss_table import CLASSES, form_of

_MAX_STEPS, _LEAST_STEP, _ARMIJO = 100, 1e-10, 1e-4
_SMALLEST_GRADIENT = 1e-5  # per vector, as in the paper
_RIDGE = 1e-12  # on the Hessian's diagonal

Blocks = Callable[[], Iterable[tuple[np.ndarray, np.ndarray]]]
"""Gives, as often as it is called, blocks of decisions and of what is true, both of shape (rows, n_vectors)."""


class _Sums(NamedTuple):
    """Sums over all rows, an entry per vector."""

    loss: np.ndarray
    gradient: np.ndarray  # of a, b; shape (2, n_vectors)
    hessian: np.ndarray  # of aa, ab, bb; shape (3, n_vectors)


def fit_sigmoids(blocks: Blocks, n_vectors: int) -> np.ndarray:
    """Fit a sigmoid to the decisions of every vector, in a read of all blocks for each step of Newton's method.

    Returns
    -------
    ndarray of float64, shape (2, n_vectors)
        a and b.

    Raises
    ------
    UsageError
        Where a vector's rows are all positive, or all negative.
    """
    counts = _count(blocks, n_vectors)
    if (counts == 0).any():
        raise UsageError(
            "calibration: expected rows of both sides for every class, found none of one of them"
        )
    negatives, positives = counts
    targets = np.array([1.0 / (negatives + 2.0), (positives + 1.0) / (positives + 2.0)])
    point = np.array([np.zeros(n_vectors), np.log((negatives + 1.0) / (positives + 1.0))])
    sums, moves = _sum(blocks, point, targets), np.ones(n_vectors, dtype=bool)
    for _ in range(_MAX_STEPS):
        moves &= np.abs(sums.gradient).max(axis=0) >= _SMALLEST_GRADIENT
        if not moves.any():
            break
        direction = np.where(moves, _newton_direction(sums), 0.0)
        step, sums = _line_search(blocks, point, direction, targets, sums)
        point = point + step * direction
        moves &= step > 0.0
    return point


def _line_search(
    blocks: Blocks, point: np.ndarray, direction: np.ndarray, targets: np.ndarray, before: _Sums
) -> tuple[np.ndarray, _Sums]:
    """Halve the steps of vectors whose loss does not fall enough, to 0 where it does not at all; sums are at the end."""
    slope = (before.gradient * direction).sum(axis=0)
    step = np.ones(slope.size)
    while True:
        sums = _sum(blocks, point + step * direction, targets)
        too_long = (sums.loss > before.loss + _ARMIJO * step * slope) & (step > 0.0)
        if not too_long.any():
            return step, sums
        step[too_long] /= 2.0
        step[step < _LEAST_STEP] = 0.0


def sigmoid_logarithms(sigmoids: np.ndarray, decisions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``log p`` and ``log(1 - p)`` of decisions, shape (rows, n_vectors)."""
    scaled = sigmoids[0] * decisions + sigmoids[1]
    return -np.logaddexp(0.0, scaled), -np.logaddexp(0.0, -scaled)


_LOGISTIC = np.array([[-1.0], [0.0]])  # a and b of the plain logistic function


def class_log_probabilities(
    loss: str, decisions: np.ndarray, sigmoids: np.ndarray | None, *, is_binary: bool
) -> np.ndarray:
    """Return the logarithms of the classes' probabilities by decisions of one vector for two classes, or one for each.

    The softmax of multinomial decisions; else the sigmoid of each, by default the logistic one, divided by their sum.
    """
    if form_of(loss) == CLASSES and sigmoids is None:
        return np.asarray(decisions - np.logaddexp.reduce(decisions, axis=1, keepdims=True))
    log_p, log_q = sigmoid_logarithms(_LOGISTIC if sigmoids is None else sigmoids, decisions)
    if is_binary:
        return np.hstack([log_q, log_p])
    return np.asarray(log_p - np.logaddexp.reduce(log_p, axis=1, keepdims=True))


def label_log_probabilities(decisions: np.ndarray, sigmoids: np.ndarray | None) -> np.ndarray:
    """Return the logarithms of the labels' probabilities, each by its own decision; a row may have any number of labels."""
    return sigmoid_logarithms(_LOGISTIC if sigmoids is None else sigmoids, decisions)[0]


def _count(blocks: Blocks, n_vectors: int) -> np.ndarray:
    counts = np.zeros((2, n_vectors))
    for _, truth in blocks():
        positive = truth.sum(axis=0)
        counts += [truth.shape[0] - positive, positive]
    return counts


def _sum(blocks: Blocks, point: np.ndarray, targets: np.ndarray) -> _Sums:
    n_vectors = point.shape[1]
    loss, gradient, hessian = np.zeros(n_vectors), np.zeros((2, n_vectors)), np.zeros((3, n_vectors))
    for decisions, truth in blocks():
        target = np.where(truth, targets[1], targets[0])
        log_p, log_q = sigmoid_logarithms(point, decisions)
        p = np.exp(log_p)
        loss -= (target * log_p + (1.0 - target) * log_q).sum(axis=0)
        error, curvature = target - p, p * np.exp(log_q)
        gradient += [(decisions * error).sum(axis=0), error.sum(axis=0)]
        weighted = decisions * curvature
        hessian += [(decisions * weighted).sum(axis=0), weighted.sum(axis=0), curvature.sum(axis=0)]
    return _Sums(loss, gradient, hessian)


def _newton_direction(sums: _Sums) -> np.ndarray:
    (aa, ab, bb), (a, b) = sums.hessian, sums.gradient
    aa, bb = aa + _RIDGE, bb + _RIDGE
    determinant = aa * bb - ab * ab
    return np.array([-(bb * a - ab * b), -(aa * b - ab * a)]) / determinant

"""Decisions of rows, ``x W + intercept``, and the classes that they choose.

Predictions, evaluations, held-out folds and estimators all have theirs from here.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from ..core.parallel import Threads
from ..kernels.loss_table import CLASSES, LOSSES, PLANES

SparseRows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Starts and stops of rows, among the 0-based features and the values of entries."""


def decisions_of(
    rows: SparseRows, weights: Any, intercept: np.ndarray, threads: Threads | None = None
) -> tuple[np.ndarray, int]:
    """Compute ``x W + intercept`` of rows, shape (rows, vectors), and count the entries of unknown features, ignored.

    `weights` is an array (features, vectors) or SciPy's CSR; `threads` share the rows, if there are some.
    """
    from ..kernels import rows as kernels  # here, because it imports numba

    start, stop, feature, value = rows
    out = np.empty((start.size, intercept.size))
    indptr = column = np.zeros(0, np.int32)
    values = weights
    if not isinstance(weights, np.ndarray):
        indptr = weights.indptr
        column = weights.indices
        values = weights.data[:, np.newaxis]
    shape = indptr, column, weights.shape[0]
    # in one of two types each, and none in the other, as kernels take them
    entries: list[np.ndarray] = []
    for array, dtypes in ((feature, (np.int32, np.int64)), (value, (np.float32, np.float64))):
        for dtype in map(np.dtype, dtypes):
            view = array.view(dtype) if array.itemsize == dtype.itemsize else np.zeros(0, dtype)
            view.flags.writeable = False
            entries.append(view)
    if threads is None:
        return out, kernels.scores((start, stop, *entries), shape, values, intercept, out)
    n_ignored: list[int] = []

    def score_share(share: slice) -> None:
        rows = start[share], stop[share], *entries
        n_ignored.append(kernels.scores(rows, shape, values, intercept, out[share]))

    threads.share(score_share, start.size, int((stop - start).sum()) * out.shape[1])
    return out, sum(n_ignored)


# ---------------------------------------------------------------------------------------------------------------------
# Classes


class ClassDecoder:
    """Choice of a class by the decisions of a classifier's vectors, the columns of `weights`.

    `weights` are an array or SciPy's CSR; `code` (classes, vectors) has the sign of each class for each vector. With two
    classes and one vector, positive decisions are the larger class's. With more, the class with the largest ``h(x)·M_r`` is
    chosen; of twin planes the nearest one's. `order`, indices of classes in order of preference, settles ties.
    """

    def __init__(self, loss: str, code: np.ndarray, weights: Any, order: np.ndarray | None = None) -> None:
        self.is_twin = LOSSES[loss].form == PLANES
        self.code = code
        self._weights = weights
        self._loss = loss
        self._order = np.arange(len(code)) if order is None else order
        self.is_binary = code.shape == (2, 1)

    def scores(self, decisions: np.ndarray) -> np.ndarray:
        """Compute ``h(x)·M_r`` of every class ``r``, up to a constant common to all classes; shape (rows, classes).

        For twin planes, minus the distance to each class's plane, infinite where its ``‖w‖`` is 0.
        """
        if self.is_twin:
            distances = np.full(decisions.shape, np.inf)
            norms = self.plane_norms
            return -np.divide(np.abs(decisions), norms, out=distances, where=norms > 0)
        return decisions if self.one_vector_per_class else decisions @ self.score_code()

    def predicted_classes(self, decisions: np.ndarray) -> np.ndarray:
        """Return the indices of the chosen classes; shape (rows,)."""
        if self.is_binary:
            positive = decisions[:, 0] >= 0 if self._order[0] == 1 else decisions[:, 0] > 0
            return positive.astype(np.int64)
        return self._order[self.scores(decisions)[:, self._order].argmax(axis=1)]

    def preferences(self, decisions: np.ndarray) -> np.ndarray:
        """Return the scores of several classes, or the preference for the larger of two, shape (rows, 1)."""
        if len(self.code) > 2:
            return self.scores(decisions)
        if decisions.shape[1] == 1:
            return decisions
        scores = self.scores(decisions)
        with np.errstate(invalid="ignore"):
            larger = scores[:, 1:] - scores[:, :1]
        # of two twin planes with zero weights neither is nearer
        return np.where(np.isnan(larger), 0.0, larger)

    def log_probabilities(self, decisions: np.ndarray) -> np.ndarray:
        """Return the logarithms of the classes' probabilities by decisions of one vector for two classes, or one for each.

        The softmax of multinomial decisions; else the logistic function of each, with several classes divided by their sum.
        """
        if self.is_binary:
            return np.hstack([-np.logaddexp(0.0, decisions), -np.logaddexp(0.0, -decisions)])
        is_softmax = LOSSES[self._loss].form == CLASSES
        log_p = decisions if is_softmax else -np.logaddexp(0.0, -decisions)
        return np.asarray(log_p - np.logaddexp.reduce(log_p, axis=1, keepdims=True))

    @cached_property
    def one_vector_per_class(self) -> bool:
        """Check if the decisions are the classes' scores: the code has 1 on the diagonal, one smaller number elsewhere."""
        n = len(self.code)
        if self.code.shape != (n, n):
            return False
        rest = min(self.code[0, -1], 0)
        # row by row: with many classes the code may be a view whose full array would not fit in memory
        return all(row[r] == 1 and np.count_nonzero(row == rest) == n - 1 for r, row in enumerate(self.code))

    @cached_property
    def plane_norms(self) -> np.ndarray:
        w = self._weights
        if isinstance(w, np.ndarray):
            return np.sqrt(np.einsum("ij,ij->j", w, w))
        return np.sqrt(np.bincount(w.indices, w.data**2, w.shape[1]))

    def score_code(self) -> np.ndarray:
        """Make the matrix that maps decisions to scores, shape (vectors, classes)."""
        if self.is_binary:
            return np.array([[-1.0, 1.0]])
        # adding a constant to a vector's column adds the same to every class's score; (M + 1)/2 turns the one-vs-rest code
        # into the identity, so that scores are the decisions themselves, to the last bit
        code = self.code if (self.code == 0).any() else (self.code + 1) // 2
        return code.T.astype(np.float64)

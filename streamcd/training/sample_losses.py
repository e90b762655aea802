"""Losses of a sample of a dataset's rows at given weights, before a training begins."""

from __future__ import annotations

import numpy as np

from ..dataset.dataset import Dataset
from ..kernels.loss_table import CLASSES
from ..kernels.sparse_rows import SparseRows
from ..models.scoring import score
from ..solvers.problem import Problem, class_losses, losses_of
from ..stream.arenas import class_codes

_CHUNKS, _SCORES = 8, 1 << 18  # of the sample, at most; and scores of a chunk's rows at a time


def mean_losses(dataset: Dataset, problem: Problem, w: np.ndarray) -> np.ndarray:
    """Compute the mean of ``C_i loss_i`` over rows of some chunks, by their weights, in every lane, shape (lanes,).

    `w` is (n_features + 1, vectors). Chunks hold rows in random order, but where a dataset was not shuffled.
    """
    total, losses = 0.0, np.zeros(problem.n_lanes)
    for chunk in np.unique(np.linspace(0, dataset.n_chunks - 1, _CHUNKS).astype(int)).tolist():
        label, weight, n_entries = dataset.read_rows(chunk, ("label", "weight", "n_entries"))
        feature, value = dataset.read_entries(chunk)
        few = slice(0, max(_SCORES // w.shape[1], 1))
        stop = np.cumsum(n_entries, dtype=np.int64)
        rows = SparseRows((stop - n_entries)[few], stop[few], feature, value)
        scores, _ = score(rows, w[:-1], w[-1] * problem.bias)
        losses += _losses(problem, class_codes(dataset, chunk, label[few]), label[few], weight[few], scores)
        total += float(weight[few].sum())
    return losses / max(total, 1e-300)


def _losses(
    problem: Problem, code: np.ndarray, label: np.ndarray, weight: np.ndarray, scores: np.ndarray
) -> np.ndarray:
    """Sum ``C_i loss_i`` over rows with these scores, in every lane."""
    cost = problem.cost[code] * weight[:, None]
    if problem.form == CLASSES:
        by_lane = np.split(scores, problem.n_lanes, axis=1)
        return np.array(
            [cost[:, lane] @ class_losses(problem.loss, own, code) for lane, own in enumerate(by_lane)]
        )
    y = problem.row_labels(code, label)
    margins = scores if problem.has_targets else y * scores
    return np.asarray(losses_of(problem.row_loss, y, margins, cost).sum(axis=0))

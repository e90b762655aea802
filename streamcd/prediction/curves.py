"""Distributions of scores by class, gathered in one read: for ROC curves, calibration and histograms of decisions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.classes import class_indices
from ..models.model import Model
from .outputs import class_scores
from .scored_rows import ScoredRows

N_BINS = 1 << 16
"""Bins of scores: by sign, exponent and seven bits of the fraction, so that neighbours differ by less than 1 %."""

CALIBRATION_BINS = 20
MAX_CLASSES = 128
"""Largest number of classes with curves: a table for 128 takes 134 MB."""

_MOST_RESIDUALS = 4096


class Calibration(NamedTuple):
    """Rows in equal bins of predicted probability; all arrays have shape (CALIBRATION_BINS,)."""

    weight: np.ndarray  # of the rows: their number, if none weighs other than 1
    predicted: np.ndarray  # weighted sum of the probabilities
    hits: np.ndarray  # weight of the rows that were of the class


class ScoreCurves:
    """Tables of the rows' weights by score, class and truth, filled block by block.

    For two classes the scores are those of the positive one; for several, each class's against all others, and the
    probabilities are those of the predicted class. Rows with labels that the model does not know are left out.
    """

    def __init__(self, model: Model, positive: int | None = None) -> None:
        self.model = model
        self.is_binary = model.n_classes == 2 and not model.multilabel
        self.positive = 1 if positive is None else positive
        self.classes = [self.positive] if self.is_binary else list(range(model.n_classes))
        self.counts = np.zeros((len(self.classes), 2, N_BINS))
        zeros = np.zeros(CALIBRATION_BINS)
        calibrated = model.has_probabilities and not model.multilabel
        self.calibration = Calibration(zeros, zeros.copy(), zeros.copy()) if calibrated else None

    @staticmethod
    def table_bytes(model: Model) -> int:
        """Return the memory of the tables."""
        return (1 if model.n_classes == 2 else model.n_classes) * 2 * N_BINS * 8

    def add(self, rows: ScoredRows) -> None:
        model = self.model
        if rows.has_labels is not None:
            self._add_scores(rows.decisions, rows.has_labels, rows.weight)
            return
        place, known = class_indices(model.classes, rows.label)
        place, decisions, weight = place[known], rows.decisions[known], rows.weight[known]
        scores = (
            class_scores(model.choice, decisions, self.positive)[:, None]
            if self.is_binary
            else model.scores(decisions)
        )
        self._add_scores(scores, place[:, None] == np.array(self.classes), weight)
        if self.calibration is not None:
            self._add_probabilities(np.exp(model.log_probabilities(decisions)), place, weight)

    def _add_scores(self, scores: np.ndarray, truth: np.ndarray, weight: np.ndarray) -> None:
        for number in range(len(self.classes)):
            cell = truth[:, number] * N_BINS + _bins(scores[:, number])
            self.counts[number] += np.bincount(cell, weight, 2 * N_BINS).reshape(2, N_BINS)

    def _add_probabilities(self, probabilities: np.ndarray, place: np.ndarray, weight: np.ndarray) -> None:
        which = np.full(place.size, self.positive)
        if self.model.n_classes > 2:
            which = probabilities.argmax(axis=1)
        assert self.calibration is not None
        predicted = probabilities[np.arange(place.size), which]
        cell = np.minimum((predicted * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
        for total, factor in zip(self.calibration, (1.0, predicted, place == which), strict=True):
            total += np.bincount(cell, weight * factor, CALIBRATION_BINS)

    def roc(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return false and true positive rates of the class `number` of `classes`, from (0, 0) to (1, 1)."""
        above = self.counts[number][:, ::-1].cumsum(axis=1)
        changed = np.flatnonzero(np.diff(above.sum(axis=0), prepend=0))
        rates = above[:, changed] / _divisor(above[:, -1:])
        false, true = (np.concatenate([[0.0], rate]) for rate in rates)
        return false, true

    def histogram(self, number: int, n_bins: int = 60) -> tuple[np.ndarray, np.ndarray]:
        """Return bins' edges, without the outermost 1 % of scores, and the shares of the others' and the class's rows."""
        counts = self.counts[number]
        values = _bin_values()
        share = counts.sum(axis=0).cumsum() / _divisor(counts.sum())
        least, most = values[np.searchsorted(share, [0.005, 0.995]).clip(max=N_BINS - 1)]
        edges = np.linspace(least, most if most > least else least + 1.0, n_bins + 1)
        shares = [np.histogram(values, edges, weights=count)[0] / _divisor(count.sum()) for count in counts]
        return edges, np.array(shares)


def _divisor(weight: np.ndarray) -> np.ndarray:
    """Return weights to divide by, with 1 for 0."""
    return np.where(weight > 0, weight, 1.0)


def _bins(scores: np.ndarray) -> np.ndarray:
    """Number scores so that larger ones are in later bins: by the upper half of a single-precision number."""
    bits = scores.astype(np.float32).view(np.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    numbers: np.ndarray = (ordered >> 16).astype(np.int64) + N_BINS // 2
    return numbers


def bin_edges() -> np.ndarray:
    """Return the least score of every bin; 0 for those whose scores are below 1e-38 in size."""
    edges = _bin_values(0)
    return np.where(np.abs(edges) < np.finfo(np.float32).tiny, 0.0, edges)


def _bin_values(above: int = 1 << 15) -> np.ndarray:
    """Return the score in the middle of every bin, with 0 the least; the largest at the ends, which no score reaches."""
    ordered = ((np.arange(N_BINS) - N_BINS // 2).astype(np.int32) << 16) + above
    with np.errstate(invalid="ignore"):  # some bins are for NaN
        values = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(np.float32).astype(np.float64)
    largest = float(np.finfo(np.float32).max)
    return np.nan_to_num(values, nan=largest, posinf=largest, neginf=-largest)


class Residuals:
    """Predictions and errors of an even sample of the rows: every one, every second, every fourth, … as they come."""

    def __init__(self) -> None:
        self._stride, self._n_rows = 1, 0
        self._kept = np.zeros((0, 2))

    def add(self, rows: ScoredRows) -> None:
        first = -self._n_rows % self._stride
        predicted = rows.decisions[first :: self._stride, 0]
        own = np.column_stack([predicted, rows.label[first :: self._stride] - predicted])
        self._kept = np.concatenate([self._kept, own])
        self._n_rows += rows.label.size
        while len(self._kept) > _MOST_RESIDUALS:
            self._kept, self._stride = self._kept[::2], 2 * self._stride

    @property
    def predicted(self) -> np.ndarray:
        return self._kept[:, 0]

    @property
    def errors(self) -> np.ndarray:
        """Targets minus predictions."""
        return self._kept[:, 1]

"""Thresholds of a decision between two classes, with the quality of the predictions that each of them gives."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .curves import N_BINS, ScoreCurves, bin_edges

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)
RECALLS = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Shares of the rows, and recalls, for which thresholds are listed: the highest that reach them."""

_ROUNDING = 1e-12  # relative, of sums of weights: a share that is missed by this alone is reached


class Threshold(NamedTuple):
    """Predictions of a class for all rows whose score for it is at least `score`; figures are weighted as the rows are."""

    score: float
    probability: float | None  # that belongs to the score, where the model tells it
    precision: float
    recall: float
    f1: float
    share: float  # of the rows, predicted to be of the class
    why: str  # empty where it is one of `SHARES`


def list_thresholds(curves: ScoreCurves) -> list[Threshold]:
    """List thresholds of the positive one of two classes, descending; none without rows of both.

    They are the model's own, that of best F1, and those for `SHARES` and `RECALLS`, at the edges of the curves' bins: the
    figures are exact, but for scores that single precision rounds to an edge.
    """
    others, own = curves.counts[0]
    if not (curves.is_binary and others.any() and own.any()):
        return []
    hits, said = own[::-1].cumsum()[::-1], (own + others)[::-1].cumsum()[::-1]
    recall, share = hits / hits[0], said / said[0]
    f1 = 2.0 * hits / (hits[0] + said)
    edges = np.flatnonzero(own + others)[::-1]
    # the model's own is 0, at which it predicts the smaller label; where scores are for that one, their 0 is -0
    why = [(N_BINS // 2 + (1 if curves.positive else -1), "the model's")]
    why += [(int(edges[f1[edges].argmax()]), "best F1")]
    why += [(_highest(edges, recall, least), f"recall {least:g}") for least in RECALLS]
    why += [(_highest(edges, share, least), "") for least in SHARES]
    places = np.unique([place for place, _ in why])[::-1]
    scores = bin_edges()[places]
    reasons = [", ".join(text for place, text in why if text and place == one) for one in places]
    precision = np.divide(hits, said, out=np.zeros(N_BINS), where=said > 0)
    figures = (figure[places].tolist() for figure in (precision, recall, f1, share))
    columns = scores.tolist(), _probabilities_at(curves, scores), *figures, reasons
    return [Threshold(*row) for row in zip(*columns, strict=True)]


def _highest(edges: np.ndarray, reached: np.ndarray, least: float) -> int:
    """Return the highest of some bins, which descend, at which a figure reaches a bound."""
    return int(edges[np.searchsorted(reached[edges], least * (1.0 - _ROUNDING))])


def _probabilities_at(curves: ScoreCurves, scores: np.ndarray) -> list[float] | list[None]:
    """Return the positive class's probability at each score; None where it takes more than that."""
    model = curves.model
    if not model.has_probabilities or model.n_vectors > 1:
        return [None] * scores.size
    decisions = scores[:, np.newaxis] * (1.0 if curves.positive else -1.0)
    found: list[float] = np.exp(model.log_probabilities(decisions)[:, curves.positive]).tolist()
    return found

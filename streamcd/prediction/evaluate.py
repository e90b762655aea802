"""Comparison of a model's predictions with the labels of the data, streamed like predictions."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ..core.classes import class_indices
from ..core.memory_budget import parse_size
from ..core.progress import Listener, ends_progress
from ..dataset.dataset import Dataset
from ..models.model import Model, load_model
from ..solvers.problem import Problem, crammer_singer_losses, row_loss, twin_losses
from .curves import MAX_CLASSES, ScoreCurves
from .outputs import positive_scores
from .reading_plan import Data, cached
from .roc_auc import RocArea
from .scored_rows import ScoredRows, Scoring, threads_of_each
from .sums import ExactSum

MAX_CONFUSION_LABELS = 1000
"""Largest number of labels with a confusion matrix."""


class _Evaluation:
    """Sums over the rows seen so far."""

    def __init__(self, model: Model, roc: RocArea) -> None:
        self.model, self.roc = model, roc
        self.n_rows = self.n_correct = self.n_unknown = 0
        # exact, so that they do not depend on the blocks of rows
        self.loss, self.log_loss, self.brier = ExactSum(), ExactSum(), ExactSum()
        self.costs = None if model.C is None else model.class_costs()
        k = model.n_classes
        self.confusion = np.zeros((k, k), dtype=np.int64) if k <= MAX_CONFUSION_LABELS else None
        self.unknown: dict[float, np.ndarray] = {}

    def add(self, rows: ScoredRows) -> None:
        model, decisions, label = self.model, rows.decisions, rows.label
        predicted = model.places(decisions)
        place, known = class_indices(model.classes, label)
        self.n_rows += label.size
        self.n_correct += int((known & (place == predicted)).sum())
        if not known.all():
            self._add_unknown(label[~known], predicted[~known])
            place, predicted, decisions = place[known], predicted[known], decisions[known]
        weight = rows.weight[known]
        if self.confusion is not None:
            k = model.n_classes
            self.confusion += np.bincount(place * k + predicted, minlength=k * k).reshape(k, k)
        if self.costs is not None:
            self.loss.add(row_terms(model, place, decisions, self.costs[place] * weight, weight))
        if model.has_probabilities:
            log_probabilities = model.log_probabilities(decisions)
            self.log_loss.add(-log_probabilities[np.arange(place.size), place])
            self.brier.add(_brier_terms(np.exp(log_probabilities), place))
        if model.n_classes == 2:
            self.roc.add(positive_scores(model, decisions), place == 1)

    def _add_unknown(self, label: np.ndarray, predicted: np.ndarray) -> None:
        self.n_unknown += label.size
        if self.confusion is None:
            return
        for value in np.unique(label):
            counts = np.bincount(predicted[label == value], minlength=self.model.n_classes)
            self.unknown[float(value)] = self.unknown.get(float(value), 0) + counts
            if len(self.unknown) + self.model.n_classes > MAX_CONFUSION_LABELS:
                self.confusion = None
                return

    def result(self) -> dict[str, Any]:
        model = self.model
        objective = None
        if self.costs is not None and not self.n_unknown:
            ridge = model.ridge if model.loss == "twin" else 1.0
            objective = 0.5 * ridge * float(model.squared_norm().sum()) + self.loss.value()
        result: dict[str, Any] = {
            "n_rows": self.n_rows,
            "accuracy": self.n_correct / self.n_rows,
            "primal_objective": objective,
        }
        areas = self.roc.areas()
        if areas is not None:
            result["auc"], result["average_precision"] = areas.roc, areas.average_precision
            if areas.roc_error or areas.average_precision_error:
                result["auc_error"] = areas.roc_error
                result["average_precision_error"] = areas.average_precision_error
        n_known = self.n_rows - self.n_unknown
        if model.has_probabilities and n_known:
            result["log_loss"] = self.log_loss.value() / n_known
            result["brier_score"] = self.brier.value() / n_known
        if self.confusion is not None:
            result |= self._confusion(self.confusion)
        return result

    def _confusion(self, counts_of_known: np.ndarray) -> dict[str, Any]:
        model = self.model
        labels = np.union1d(model.classes, np.array(list(self.unknown)))
        table = np.zeros((labels.size, labels.size), dtype=np.int64)
        known = np.searchsorted(labels, model.classes)
        table[np.ix_(known, known)] = counts_of_known
        for label, counts in self.unknown.items():
            table[np.searchsorted(labels, label), known] = counts
        listed = [_listed_label(model, float(label)) for label in labels]
        return {
            "labels": listed,
            "confusion": table.tolist(),
            "per_class": _per_class(listed, table),
        }


def _listed_label(model: Model, label: float) -> int | float | str:
    if model.class_names is not None:
        return model.label_text(label)
    return int(label) if model.label_kind == "integer" and label == int(label) else label


def _per_class(labels: list[Any], table: np.ndarray) -> list[dict[str, Any]]:
    """Compute precision, recall and F1 of every label from the confusion matrix; None where the divisor is 0."""
    hits, n_true, n_predicted = np.diag(table), table.sum(axis=1), table.sum(axis=0)
    return [
        {
            "label": label,
            "n_rows": int(n_true[k]),
            "precision": int(hits[k]) / int(n_predicted[k]) if n_predicted[k] else None,
            "recall": int(hits[k]) / int(n_true[k]) if n_true[k] else None,
            "f1": 2 * int(hits[k]) / int(n_true[k] + n_predicted[k]) if n_true[k] + n_predicted[k] else None,
        }
        for k, label in enumerate(labels)
    ]


def _brier_terms(probabilities: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Return the squared distance of a row's probabilities from its class; with two classes, of the larger one's alone."""
    if probabilities.shape[1] == 2:
        terms: np.ndarray = (probabilities[:, 1] - (place == 1)) ** 2
        return terms
    probabilities[np.arange(place.size), place] -= 1.0
    return np.einsum("ij,ij->i", probabilities, probabilities)


def row_terms(
    model: Model | Problem, place: np.ndarray, decisions: np.ndarray, cost: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    """Return ``cost_i loss_i`` of every row, over its vectors; `place` is each row's class index."""
    if model.loss == "twin":
        return twin_losses(decisions, place, cost, weight, model.slack)
    if model.loss == "crammer_singer":
        return cost * crammer_singer_losses(decisions, place)
    sign = model.code[place].astype(np.float64)
    losses: np.ndarray = (row_loss(model.loss, sign * decisions) * (sign != 0)).sum(axis=1)
    return cost * losses


@ends_progress
def evaluate(
    data: Dataset | str | os.PathLike[str],
    model: Model | str | os.PathLike[str],
    *,
    C: float | None = None,
    memory: int | str = "1GB",
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | str | None = None,
    workers: int = 1,
    threads: int | None = None,
    listener: Listener | None = None,
) -> dict[str, Any]:
    """Compare a model's predictions with the labels of the data.

    Parameters
    ----------
    data : Dataset or path
        As for `predict`. Rows with a label that the model does not know count as errors. Weights, of a dataset or of a
        table's column, if it is there, count in the objective alone.
    model : Model or path
        A path names a model or a run.
    C : float, optional
        The model with this C, of a run that was trained with several.
    memory : int or str
        Bound on the process's resident memory; with several workers, on the sum of all.
    cache, cache_size : optional
        As for `train`, of a dataset at a URL.
    workers : int
        Processes that score rows. The result does not depend on their number.
    threads : int, optional
        Threads of each process, as for `predict`.
    listener : Listener, optional

    Returns
    -------
    dict
        ``n_rows``, ``accuracy``, ``primal_objective`` (of the model's own problem on this data; None if the model does not
        know its C, or not all labels); for two classes ``auc`` and ``average_precision`` (of the larger label), exact, or
        with ``auc_error`` and ``average_precision_error``, their largest errors, where the scores do not fit; for the
        logistic loss ``log_loss`` and ``brier_score`` (means over the rows; of two classes the squared error of the larger
        label's probability, of several the sum over the classes); ``labels``, ``confusion`` (rows true, columns predicted)
        and ``per_class``: for each label ``n_rows``, ``precision``, ``recall``, ``f1``.

    Raises
    ------
    ModelError, DatasetError, DataError, UsageError

    Examples
    --------
    >>> found = streamcd.evaluate("reviews/test.txt", "run")
    >>> found["n_rows"], found["accuracy"] > 0.9, found["labels"]
    (2000, True, [-1, 1])
    """
    data = cached(data, cache, cache_size)
    model = model if isinstance(model, Model) else load_model(model, C, memory=parse_size(memory))
    result, _ = evaluate_model(
        data, model, memory=memory, workers=workers, threads=threads, listener=listener, curves=False
    )
    return result


def evaluate_model(
    data: Data,
    model: Model,
    *,
    memory: int | str = "1GB",
    workers: int = 1,
    threads: int | None = None,
    listener: Listener | None = None,
    curves: bool = True,
) -> tuple[dict[str, Any], ScoreCurves | None]:
    """Return the result of `evaluate`, and the distributions of scores for curves; None for more than `MAX_CLASSES`."""
    budget, listener, found = parse_size(memory), listener or Listener(), None
    if curves and model.n_classes <= MAX_CLASSES:
        found, budget = ScoreCurves(model), budget - ScoreCurves.table_bytes(model)
    each = threads_of_each(threads, workers)
    scoring = Scoring(data, model, budget, listener, workers, threads=each, compared=True)
    evaluation = _Evaluation(model, RocArea(scoring.plan.left))
    for rows in scoring.blocks("evaluate"):
        evaluation.add(rows)
        if found is not None:
            found.add(rows)
    if evaluation.n_unknown:
        listener.warning(
            f"{evaluation.n_unknown:,} rows have labels that the model does not know "
            f"({', '.join(model.label_texts()[:5])}{', …' if model.n_classes > 5 else ''}); they count as errors"
        )
    return evaluation.result(), found

"""Comparison of a model's predictions with the labels or targets of the data, streamed like predictions."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np

from ..core.classes import class_indices
from ..core.memory_budget import parse_size
from ..core.options import takes
from ..core.progress import Listener, ends_progress
from ..kernels.loss_table import LOSSES, PLANES, form_of
from ..models.model import Model
from ..models.stored import load_model
from ..solvers.problem import losses_of, row_losses
from .options import EvaluateOptions
from .outputs import class_scores
from .reading_plan import Means
from .roc_auc import RocArea
from .scored_rows import ScoredRows, Scoring
from .sums import Accuracy, ExactSum, RSquared, figures_by_label, some_weight

MAX_CONFUSION_LABELS = 1000
"""Largest number of labels with a confusion matrix."""


class _Evaluation:
    """Sums over the rows seen so far."""

    def __init__(self, model: Model, roc: RocArea) -> None:
        self.model, self.roc = model, roc
        self.n_rows = self.n_unknown = 0
        self.weighted = False  # a row weighs other than 1
        # exact, so that they do not depend on the blocks of rows
        self.loss, self.log_loss = ExactSum(), ExactSum()
        self.known_weight, self.accuracy = ExactSum(), Accuracy()
        self.costs = None if model.C is None else model.class_costs()
        k = model.n_classes
        self.confusion = np.zeros((k, k)) if k <= MAX_CONFUSION_LABELS else None
        self.class_rows = np.zeros(k, dtype=np.int64)
        self.unknown: dict[float, tuple[int, np.ndarray]] = {}

    def add(self, rows: ScoredRows) -> None:
        model, decisions, label, weight = self.model, rows.decisions, rows.label, rows.weight
        predicted = model.places(decisions)
        place, known = class_indices(model.classes, label)
        self.n_rows += label.size
        self.weighted = self.weighted or bool((weight != 1.0).any())
        self.accuracy.add(weight, np.where(known, place, -1), predicted)
        if not known.all():
            self._add_unknown(label[~known], predicted[~known], weight[~known])
            place, predicted, decisions, weight = (
                array[known] for array in (place, predicted, decisions, weight)
            )
        self.known_weight.add(weight)
        self.class_rows += np.bincount(place, minlength=model.n_classes)
        if self.confusion is not None:
            np.add.at(self.confusion, (place, predicted), weight)  # row by row, whatever the blocks
        if self.costs is not None:
            self.loss.add(row_losses(model, place, decisions, self.costs[place] * weight, weight))
        if model.has_probabilities:
            log_probabilities = model.log_probabilities(decisions)
            self.log_loss.add(-log_probabilities[np.arange(place.size), place] * weight)
        if model.n_classes == 2:
            self.roc.add(class_scores(model.choice, decisions, 1), place == 1, weight)

    def _add_unknown(self, label: np.ndarray, predicted: np.ndarray, weight: np.ndarray) -> None:
        self.n_unknown += label.size
        if self.confusion is None:
            return
        for value in np.unique(label):
            same = label == value
            n_rows, weights = self.unknown.setdefault(float(value), (0, np.zeros(self.model.n_classes)))
            np.add.at(weights, predicted[same], weight[same])
            self.unknown[float(value)] = n_rows + int(same.sum()), weights
            if len(self.unknown) + self.model.n_classes > MAX_CONFUSION_LABELS:
                self.confusion = None
                return

    def result(self) -> dict[str, Any]:
        model, total, known = self.model, some_weight(self.accuracy.weight), self.known_weight.value()
        objective = None
        if self.costs is not None and not self.n_unknown:
            ridge = model.ridge if form_of(model.loss) == PLANES else 1.0
            objective = ridge * model.penalty() + self.loss.value()
        result: dict[str, Any] = {
            "n_rows": self.n_rows,
            **({"weighted": True, "sum_of_weights": total} if self.weighted else {}),
            "accuracy": self.accuracy.value(),
            "primal_objective": objective,
        }
        if (area := self.roc.area()) is not None:
            result["auc"], result["auc_error"] = area
        if model.has_probabilities and known:
            result["log_loss"] = self.log_loss.value() / known
        if self.confusion is not None:
            result |= self._confusion(self.confusion)
        return result

    def _confusion(self, weights_of_known: np.ndarray) -> dict[str, Any]:
        model = self.model
        labels = np.union1d(model.classes, np.array(list(self.unknown)))
        table, n_rows = np.zeros((labels.size, labels.size)), np.zeros(labels.size, dtype=np.int64)
        known = np.searchsorted(labels, model.classes)
        table[np.ix_(known, known)], n_rows[known] = weights_of_known, self.class_rows
        for label, (count, weights) in self.unknown.items():
            place = np.searchsorted(labels, label)
            table[place, known], n_rows[place] = weights, count
        if not self.weighted:
            table = table.astype(np.int64)
        listed = [_listed_label(model, float(label)) for label in labels]
        return {
            "labels": listed,
            "confusion": table.tolist(),
            "per_class": figures_by_label(
                listed,
                n_rows,
                (table.sum(axis=1), table.sum(axis=0), np.diag(table)),
                weighted=self.weighted,
            ),
        }


class _Errors:
    """Sums over the rows seen so far, of a model that predicts numbers."""

    n_unknown = 0  # every target is one

    def __init__(self, model: Model) -> None:
        self.model, self.n_rows, self.weighted = model, 0, False
        self.loss, self.absolute, self.fit = ExactSum(), ExactSum(), RSquared()

    def add(self, rows: ScoredRows) -> None:
        weight, predicted = rows.weight, rows.decisions[:, 0]
        self.n_rows += weight.size
        self.weighted = self.weighted or bool((weight != 1.0).any())
        self.absolute.add(weight * np.abs(rows.label - predicted))
        self.fit.add(weight, rows.label, predicted)
        self.loss.add(losses_of(self.model.row_loss, rows.label, predicted, weight))

    def result(self) -> dict[str, Any]:
        model, total, loss = self.model, some_weight(self.fit.weight), self.loss.value()
        objective, known = None, model.parameter is not None or LOSSES[model.loss].parameter is None
        if model.C is not None:
            objective = model.penalty() + model.C * loss
        return {
            "n_rows": self.n_rows,
            **({"weighted": True, "sum_of_weights": total} if self.weighted else {}),
            "mae": self.absolute.value() / total,
            "mse": self.fit.squared_errors.value() / total,
            "r2": self.fit.value(),
            "loss": loss / total if known else None,  # LIBLINEAR's text does not tell epsilon
            "primal_objective": objective,
        }


def _listed_label(model: Model, label: float) -> int | float | str:
    if model.class_names is not None:
        return model.label_text(label)
    return int(label) if model.label_kind == "integer" and label == int(label) else label


@ends_progress
@takes(EvaluateOptions)
def evaluate(data: Any, model: Model | str | os.PathLike[str], asked: EvaluateOptions) -> dict[str, Any]:
    """Compare a model's predictions with the labels of the data.

    Parameters
    ----------
    data : Dataset, path, or blocks
        As for `predict`. Rows with a label that the model does not know count as errors. Rows have the weights of a dataset,
        or of a table's column, if it is there.
    model : Model or path
        A path names a model or a run.
    {options}

    Returns
    -------
    dict
        ``n_rows``, ``accuracy``, ``primal_objective`` (of the model's own problem on this data; None if the model does not
        know its C, or not all labels); for two classes ``auc``, the area under the ROC curve of the larger one, with
        ``auc_error``, a bound on its error, 0 where the scores fit in memory; with probabilities ``log_loss``, a mean over
        the rows; ``labels``, ``confusion`` (rows true, columns predicted) and ``per_class``: for each label ``n_rows``,
        ``precision``, ``recall``, ``f1``. Where rows weigh other than 1, all these are weighted but for the two ``n_rows``,
        beside which ``sum_of_weights`` is the rows' weight, and ``weighted`` is True. Of a model that predicts numbers
        ``n_rows``, ``mae`` and ``mse`` (mean absolute and squared error), ``r2`` (None where all targets are the same),
        ``loss`` (the mean of its own) and ``primal_objective``.

    Raises
    ------
    ModelError, DatasetError, DataError, UsageError

    Examples
    --------
    >>> found = streamcd.evaluate("reviews/test.txt", "run")
    >>> found["n_rows"], found["accuracy"] > 0.9, found["labels"]
    (2000, True, [-1, 1])
    """
    model = (
        model
        if isinstance(model, Model)
        else load_model(model, asked.C, l1=asked.l1, memory=parse_size(asked.memory))
    )
    listener = asked.listener or Listener()
    scoring = Scoring(data, model, Means.of(asked), compared=True)
    evaluation = _Errors(model) if model.has_targets else _Evaluation(model, RocArea(scoring.plan.left))
    for rows in scoring.blocks("evaluate"):
        if asked.unweighted:
            rows = replace(rows, weight=np.ones(rows.weight.size))
        evaluation.add(rows)
    if evaluation.n_unknown:
        listener.warning(
            f"{evaluation.n_unknown:,} rows have labels that the model does not know; they count as errors "
            f"(it knows {', '.join(model.label_texts()[:5])}{', …' if model.n_classes > 5 else ''})"
        )
    return evaluation.result()

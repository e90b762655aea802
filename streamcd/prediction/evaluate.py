"""Comparison of a model's predictions with the labels or targets of the data, streamed like predictions."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np

from ..core.errors import DataError, first_of
from ..core.options import takes
from ..core.setting import class_indices
from ..kernels.loss_table import LOSSES, PLANES
from ..models.model import Model
from ..models.stored import load_model
from ..solvers.problem import row_losses
from .options import EvaluateOptions
from .scorer import ScoredBlock, Scorer
from .sums import RocArea, WeightedMeans

MAX_CONFUSION_LABELS = 1000
"""Largest number of labels with a confusion matrix."""


class _Evaluation:
    """Sums over the rows seen so far."""

    def __init__(self, model: Model, roc: RocArea) -> None:
        self.model = model
        self.roc = roc
        self.n_rows = self.n_unknown = 0
        self.weighted = False  # a row weighs other than 1
        self.all = WeightedMeans()
        self.known = WeightedMeans()  # of the rows whose label the model knows
        self.loss = 0.0  # of classes, times their costs
        self.costs = None if model.C is None or model.has_targets else model.class_costs()
        # by label, of rows: their weights by predicted class, and their number; None of too many labels
        self.confusion: dict[float, np.ndarray] | None = None
        if model.n_classes <= MAX_CONFUSION_LABELS:
            self.confusion = {label: np.zeros(model.n_classes + 1) for label in model.classes.tolist()}

    def add(self, rows: ScoredBlock) -> None:
        self.n_rows += rows.label.size
        self.weighted = self.weighted or bool((rows.weight != 1.0).any())
        if not self.model.has_targets:
            self._add_classes(rows)
            return
        self.all.add_targets(rows.weight, rows.label, rows.decisions[:, 0], self.model.row_loss)

    def _add_classes(self, rows: ScoredBlock) -> None:
        model = self.model
        decisions = rows.decisions
        weight = rows.weight
        predicted = model.decoder.predicted_classes(decisions)
        index, known = class_indices(model.classes, rows.label)
        self.all.add(weight, accuracy=known & (index == predicted))
        if self.confusion is not None:
            labels, of_label = np.unique(rows.label, return_inverse=True)
            table = np.zeros((labels.size, model.n_classes + 1))
            np.add.at(table, (of_label, predicted), weight)
            table[:, -1] = np.bincount(of_label)
            for label, sums in zip(labels.tolist(), table, strict=True):
                self.confusion[label] = self.confusion.get(label, 0.0) + sums
            if len(self.confusion) > MAX_CONFUSION_LABELS:
                self.confusion = None
        if not known.all():
            self.n_unknown += int((~known).sum())
            index = index[known]
            decisions = decisions[known]
            weight = weight[known]
        if model.has_probabilities:
            logarithms = model.log_probabilities(decisions)[np.arange(index.size), index]
            self.known.add(weight, log_loss=-logarithms)
        if self.costs is not None:
            self.loss += float(row_losses(model, index, decisions, self.costs[index] * weight, weight).sum())
        if model.n_classes == 2:
            self.roc.add(model.decoder.preferences(decisions)[:, 0], index == 1, weight)

    def result(self) -> dict[str, Any]:
        model = self.model
        total = self.all.weight
        if not total:
            raise DataError(
                "expected a row whose weight is above 0, found none; --unweighted counts rows alike"
            )
        result: dict[str, Any] = {"n_rows": self.n_rows}
        if self.weighted:
            result |= {"weighted": True, "sum_of_weights": total}
        if model.has_targets:
            known = model.parameter is not None or LOSSES[model.loss].parameter is None
            loss = self.all["loss"]
            return result | {
                "mae": self.all["mae"],
                "mse": self.all["mse"],
                "r2": None if np.isnan(r2 := self.all["r2"]) else r2,
                "loss": loss if known else None,  # LIBLINEAR's text does not tell epsilon
                "primal_objective": None if model.C is None else model.penalty() + model.C * total * loss,
            }
        result |= {"accuracy": self.all["accuracy"], "primal_objective": None}
        if self.costs is not None and not self.n_unknown:
            ridge = model.ridge if LOSSES[model.loss].form == PLANES else 1.0
            result["primal_objective"] = ridge * model.penalty() + self.loss
        if (area := self.roc.area()) is not None:
            result["auc"], result["auc_error"] = area
        if self.known.weight:
            result["log_loss"] = self.known["log_loss"]
        return result if self.confusion is None else result | self._by_label(self.confusion)

    def _by_label(self, confusion: dict[float, np.ndarray]) -> dict[str, Any]:
        """Return the confusion, and precision, recall and F1 of every label; None where the divisor is 0."""
        numbers = sorted(confusion)
        rows = np.stack([confusion[number] for number in numbers])
        table = np.zeros((len(numbers), len(numbers)))
        table[:, np.searchsorted(numbers, self.model.classes)] = rows[:, :-1]
        if not self.weighted:
            table = table.astype(np.int64)
        labels: list[Any] = [self.model.label_text(number) for number in numbers]
        if self.model.class_names is None:
            are_whole = self.model.label_kind == "integer"
            labels = [int(n) if are_whole and n == int(n) else n for n in numbers]
        sums = rows[:, -1].astype(np.int64), table.sum(axis=1), table.sum(axis=0), np.diag(table)
        by_label = [
            {
                "label": label,
                "n_rows": n_rows,
                **({"sum_of_weights": true} if self.weighted else {}),
                "precision": hit / said if said else None,
                "recall": hit / true if true else None,
                "f1": 2 * hit / (true + said) if true + said else None,
            }
            for label, n_rows, true, said, hit in zip(labels, *(of.tolist() for of in sums), strict=True)
        ]
        return {"labels": labels, "confusion": table.tolist(), "per_class": by_label}


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
    model = load_model(model, asked.C, l1=asked.l1, memory=asked.memory, deviations=False)
    scorer = Scorer(data, model, asked, compared=True)
    evaluation = _Evaluation(model, RocArea(scorer.left))
    for rows in scorer.blocks("evaluate"):
        missing = np.flatnonzero(np.isnan(rows.label))
        if missing.size:
            row = int(rows.source[missing[0]]) + 1
            column = "" if model.encoding is None else f" in the column {model.encoding.label!r}"
            raise DataError(
                f"{data if scorer.files.paths else 'data in memory'}, row {row:,}: expected a label{column} to compare "
                "with, found none; predict needs none"
            )
        if asked.unweighted:
            rows = replace(rows, weight=np.ones(rows.weight.size))
        evaluation.add(rows)
    if evaluation.n_unknown:
        scorer.listener.warning(
            f"{evaluation.n_unknown:,} rows have labels that the model does not know; they count as errors "
            f"(it knows {first_of(model.label_texts(), 5)})"
        )
    return evaluation.result()

"""Comparison of predicted labels with those of the rows, where a row has any number of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..models.model import Model
from ..solvers.problem import losses_of
from .scored_rows import ScoredRows
from .sums import Accuracy, ExactSum, figures_by_label, some_weight


class LabelSums:
    """Weights of the rows by label: of those that have it, are predicted to, and both; row by row, whatever the blocks."""

    def __init__(self, n_labels: int) -> None:
        self.true, self.predicted, self.hits = np.zeros((3, n_labels))
        self.others = 0.0  # weight of labels that are not among these

    def add(self, weight: np.ndarray, has: np.ndarray, predicted: np.ndarray) -> None:
        """Take rows; `has` and `predicted` are (rows, labels) bool."""
        for sums, marks in ((self.true, has), (self.predicted, predicted), (self.hits, has & predicted)):
            row, label = np.nonzero(marks)
            np.add.at(sums, label, weight[row])

    def f1_of_each(self) -> np.ndarray:
        """Return F1 of every label; 0 of one that no row has and none is predicted to."""
        total = self.true + self.predicted
        return np.divide(2.0 * self.hits, total, out=np.zeros(total.size), where=total > 0)

    def f1_macro(self) -> float:
        """Return the mean of F1 over the labels."""
        return float(self.f1_of_each().mean())

    def f1_micro(self) -> float:
        """Return F1 of all labels together."""
        total = float((self.true + self.predicted).sum()) + self.others
        return 2.0 * float(self.hits.sum()) / total if total else 0.0

    def differing(self) -> float:
        """Return the weight of the labels that are predicted and not there, or the other way round."""
        return float((self.true + self.predicted - 2.0 * self.hits).sum())


class LabelSetEvaluation:
    """Sums over the rows seen so far, of a model that predicts any number of labels; as `evaluate._Evaluation`."""

    def __init__(self, model: Model) -> None:
        self.model, self.sums = model, LabelSums(model.n_classes)
        self.n_rows = self.n_unknown = 0
        self.weighted = False
        self.accuracy, self.loss = Accuracy(), ExactSum()
        self.label_rows = np.zeros(model.n_classes, np.int64)

    def add(self, rows: ScoredRows) -> None:
        assert rows.has_labels is not None
        assert rows.n_others is not None
        has, weight, predicted = rows.has_labels, rows.weight, self.model.has_labels(rows.decisions)
        self.n_rows += weight.size
        self.n_unknown += int(np.count_nonzero(rows.n_others))
        self.weighted = self.weighted or bool((weight != 1.0).any())
        self.label_rows += np.count_nonzero(has, axis=0)
        right = (has == predicted).all(axis=1) & (rows.n_others == 0)
        self.accuracy.add(weight, np.ones(weight.size, np.bool_), right)
        self.sums.add(weight, has, predicted)
        self.sums.others += float((weight * rows.n_others).sum())
        sign = np.where(has, 1.0, -1.0)
        self.loss.add(
            losses_of(self.model.row_loss, sign, sign * rows.decisions, weight[:, None]).sum(axis=1)
        )

    def result(self) -> dict[str, Any]:
        model, sums, total = self.model, self.sums, some_weight(self.accuracy.weight)
        known = model.C is not None and not model.class_weight and not self.n_unknown
        labels = model.label_texts()
        return {
            "n_rows": self.n_rows,
            **({"weighted": True, "sum_of_weights": total} if self.weighted else {}),
            "f1_micro": sums.f1_micro(),
            "f1_macro": sums.f1_macro(),
            "subset_accuracy": self.accuracy.value(),
            "hamming_loss": sums.differing() / (total * model.n_classes),
            "primal_objective": model.penalty() + (model.C or 0.0) * self.loss.value() if known else None,
            "labels": labels,
            "per_class": figures_by_label(
                labels, self.label_rows, (sums.true, sums.predicted, sums.hits), weighted=self.weighted
            ),
        }

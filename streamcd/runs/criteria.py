"""Criteria of a search, computed over held-out rows: which losses have them, what they need of rows, and their sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..core.classes import place_of_label
from ..core.errors import UsageError
from ..dataset.dataset import Dataset
from ..kernels.loss_table import Loss, gives_probabilities
from ..models.model_file import source_labels
from ..models.scoring import class_log_probabilities
from ..prediction.label_sets import LabelSums
from ..prediction.outputs import class_scores
from ..prediction.roc_auc import LEAST_BYTES, Areas, RocArea
from ..prediction.sums import Accuracy, ExactSum, RSquared
from ..solvers.problem import Problem, losses_of
from .config import Search
from .held_out import HeldOut
from .problem_options import ProblemOptions

OF_ONE_CLASS = ("auc", "average_precision", "f1")
OF_CLASSES = (*OF_ONE_CLASS, "accuracy", "log_loss", "balanced_accuracy")
OF_LABEL_SETS = ("f1_micro", "f1_macro", "subset_accuracy")
OF_TARGETS = ("r2", "mae", "mse")
"""Criteria that can be asked for; of targets, the mean of the loss itself is one besides."""


def check_scoring(search: Search, problem: ProblemOptions, dataset: Dataset) -> None:
    """Refuse a criterion that the loss does not have, and a class that the criterion is not of."""
    scoring = search.scoring
    known = OF_LABEL_SETS if dataset.multilabel else OF_CLASSES
    known = OF_TARGETS if dataset.has_targets else known
    if scoring and scoring not in known:
        of = "sets of labels" if dataset.multilabel else "classes"
        of = "numbers to predict" if dataset.has_targets else of
        raise UsageError(f"scoring: expected one of {', '.join(known)} for {of}, found {scoring!r}")
    if scoring == "log_loss" and (problem.code is not None or not gives_probabilities(problem.loss)):
        raise UsageError(
            f"scoring log_loss needs probabilities, which {problem.loss} has not; take --loss log_loss or multinomial, or "
            "--scoring auc"
        )
    if search.positive and scoring not in OF_ONE_CLASS:
        raise UsageError(
            f"positive: expected one of {', '.join(OF_ONE_CLASS)} as scoring, found {scoring or 'the default'}"
        )
    if search.positive:
        assert dataset.classes is not None
        labels = source_labels(dataset.classes.tolist(), dataset.label_kind, dataset.class_names)
        place_of_label(search.positive, labels, "positive")


class _MeanLoss:
    """Mean of the loss of rows, by weight."""

    def __init__(self, losses: Callable[..., np.ndarray]) -> None:
        self._losses, self._loss, self._weight = losses, ExactSum(), ExactSum()

    def add(self, weight: np.ndarray, target: np.ndarray, predicted: np.ndarray) -> None:
        """Take rows: their weights, targets and predicted numbers."""
        self._loss.add(self._losses(target, predicted, weight))
        self._weight.add(weight)

    def value(self) -> float:
        """Return the mean; 0 without rows."""
        return self._loss.value() / (self._weight.value() or 1.0)


def _of_loss(loss: Loss, target: np.ndarray, predicted: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return np.asarray(losses_of(loss, target, predicted, weight))


def _of_power(power: int, target: np.ndarray, predicted: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return np.asarray(weight * np.abs(target - predicted) ** power)


def _of_class(code: np.ndarray, log_probability: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return np.asarray(-weight * log_probability[np.arange(code.size), code])


class _Confused:
    """Weights of rows by their class and the predicted one, from which `measure` makes a figure."""

    def __init__(self, n_classes: int, measure: Callable[[np.ndarray], float]) -> None:
        self._measure, self._sums = measure, np.zeros((n_classes, n_classes))

    def add(self, weight: np.ndarray, code: np.ndarray, place: np.ndarray) -> None:
        n = len(self._sums)
        self._sums += np.bincount(code * n + place, weight, n * n).reshape(n, n)

    def value(self) -> float:
        return self._measure(self._sums)


def _mean_recall(sums: np.ndarray) -> float:
    """Return the mean recall of the classes that occur."""
    of_class = sums.sum(axis=1)
    occurs = of_class > 0
    return float((np.diag(sums)[occurs] / of_class[occurs]).mean()) if occurs.any() else 0.0


def _f1(positive: int | None, sums: np.ndarray) -> float:
    """Return F1 of the class `positive`; for None, the mean of the classes that occur or are predicted."""
    twice, total = 2.0 * np.diag(sums), sums.sum(axis=0) + sums.sum(axis=1)
    each = np.divide(twice, total, out=np.zeros(len(sums)), where=total > 0)
    if positive is not None:
        return float(each[positive])
    return float(each[total > 0].mean()) if (total > 0).any() else 0.0


class _OfLabels:
    """A measure of the weights of rows by label."""

    def __init__(self, n_labels: int, measure: Callable[[LabelSums], float]) -> None:
        self._sums, self._measure = LabelSums(n_labels), measure

    def add(self, weight: np.ndarray, has: np.ndarray, predicted: np.ndarray) -> None:
        self._sums.add(weight, has, predicted)

    def value(self) -> float:
        return self._measure(self._sums)


class _Area:
    """Area under the curve of a `kind` (a field of `Areas`): the mean of each of some classes against the rest."""

    def __init__(self, kind: str, classes: Sequence[int], memory: int) -> None:
        self._kind, self._classes = kind, classes
        self._areas = [RocArea(memory // len(classes)) for _ in classes]

    def add(self, weight: np.ndarray, code: np.ndarray, scores: np.ndarray) -> None:
        for number, area in enumerate(self._areas):
            area.add(scores[:, number], code == self._classes[number], weight)

    def value(self) -> float | None:
        """Return the area; None where there is none."""
        found = [getattr(areas, self._kind) for areas in self._found()]
        return float(np.mean(found)) if found else None

    def error(self) -> float:
        """Return the bound on the error of the area: 0 where all scores were held."""
        return float(np.mean([getattr(areas, f"{self._kind}_error") for areas in self._found()] or [0.0]))

    def _found(self) -> list[Areas]:
        return [areas for area in self._areas if (areas := area.areas()) is not None]


class Criterion(NamedTuple):
    """A criterion: what it takes of held-out rows besides weights, and a receiver of that, which may have an error."""

    take: Callable[[HeldOut], tuple[np.ndarray, np.ndarray]]
    new: Callable[[], Any]
    error: Callable[[Any], float] = lambda _: 0.0


def least_bytes(name: str, problem: Problem) -> int:
    """Return the memory that a receiver takes at least for scores."""
    return LEAST_BYTES * int(problem.classes.size) if name in ("auc", "average_precision") else 0


def make_criterion(name: str, problem: Problem, memory: int, positive: int | None) -> Criterion:
    """Make a criterion of a problem's models; each of its receivers has so many bytes for scores.

    Those of one class are of that at the place `positive`; for None of all.
    """
    n_classes = int(problem.classes.size)
    confused, classes = partial(_Confused, n_classes), [*range(n_classes)] if positive is None else [positive]
    kinds: dict[str, Criterion] = {
        "accuracy": Criterion(_places, Accuracy),
        "balanced_accuracy": Criterion(_places, partial(confused, _mean_recall)),
        "f1": Criterion(_places, partial(confused, partial(_f1, positive))),
        "auc": Criterion(partial(_scores, classes), partial(_Area, "roc", classes, memory), _Area.error),
        "average_precision": Criterion(
            partial(_scores, classes), partial(_Area, "average_precision", classes, memory), _Area.error
        ),
        "log_loss": Criterion(partial(_log_probabilities, problem.loss), partial(_MeanLoss, _of_class)),
        "f1_micro": Criterion(_labels, partial(_OfLabels, problem.block_lanes, LabelSums.f1_micro)),
        "f1_macro": Criterion(_labels, partial(_OfLabels, problem.block_lanes, LabelSums.f1_macro)),
        "subset_accuracy": Criterion(_subsets, Accuracy),
        "r2": Criterion(_numbers, RSquared),
        "mae": Criterion(_numbers, partial(_MeanLoss, partial(_of_power, 1))),
        "mse": Criterion(_numbers, partial(_MeanLoss, partial(_of_power, 2))),
        "loss": Criterion(_numbers, partial(_MeanLoss, partial(_of_loss, problem.row_loss))),
    }
    return kinds[name]


def _numbers(rows: HeldOut) -> tuple[np.ndarray, np.ndarray]:
    return rows.label, rows.decisions[:, 0]


def _labels(rows: HeldOut) -> tuple[np.ndarray, np.ndarray]:
    return rows.choice.code[rows.code] > 0, rows.decisions > 0.0


def _subsets(rows: HeldOut) -> tuple[np.ndarray, np.ndarray]:
    true, predicted = _labels(rows)
    return np.ones(rows.code.size, np.bool_), (true == predicted).all(axis=1)


def _places(rows: HeldOut) -> tuple[np.ndarray, np.ndarray]:
    return rows.code, rows.choice.places(rows.decisions)


def _scores(classes: list[int], rows: HeldOut) -> tuple[np.ndarray, np.ndarray]:
    if len(classes) == 1:
        return rows.code, class_scores(rows.choice, rows.decisions, classes[0])[:, np.newaxis]
    return rows.code, rows.choice.scores(rows.decisions)


def _log_probabilities(loss: str, rows: HeldOut) -> tuple[np.ndarray, np.ndarray]:
    return rows.code, class_log_probabilities(loss, rows.decisions, is_binary=rows.choice.is_binary)

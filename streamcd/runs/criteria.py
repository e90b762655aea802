"""Criteria of a search, computed over held-out rows: which losses have them, what they need of rows, and their sums."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import UsageError
from ..dataset.dataset import Dataset
from ..kernels.loss_table import gives_probabilities
from ..models.scoring import class_log_probabilities
from ..prediction.outputs import class_scores
from ..prediction.roc_auc import LEAST_BYTES, RocArea
from ..prediction.sums import Accuracy, ExactSum, RSquared
from ..solvers.problem import Problem, losses_of
from .config import Search
from .held_out import HeldOut
from .problem_options import ProblemOptions

OF_CLASSES = ("accuracy", "auc", "log_loss")
OF_TARGETS = ("r2", "loss")


def check_scoring(search: Search, problem: ProblemOptions, dataset: Dataset) -> None:
    """Refuse a criterion that the loss does not have."""
    scoring, known = search.scoring, OF_TARGETS if dataset.has_targets else OF_CLASSES
    if scoring and scoring not in known:
        of = "numbers to predict" if dataset.has_targets else "classes"
        raise UsageError(f"scoring: expected one of {', '.join(known)} for {of}, found {scoring!r}")
    if scoring == "log_loss" and (problem.code is not None or not gives_probabilities(problem.loss)):
        raise UsageError(
            f"scoring log_loss needs probabilities, which {problem.loss} has not; take --loss log_loss or multinomial, or "
            "--scoring auc"
        )


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


def _of_class(code: np.ndarray, log_probability: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return np.asarray(-weight * log_probability[np.arange(code.size), code])


class _Area:
    """Area under the ROC curve: of the larger of two classes, of several the mean of each against the rest."""

    def __init__(self, n_classes: int, memory: int) -> None:
        self._classes = [1] if n_classes == 2 else list(range(n_classes))
        self._areas = [RocArea(memory // len(self._classes)) for _ in self._classes]

    def add(self, weight: np.ndarray, code: np.ndarray, scores: np.ndarray) -> None:
        for number, area in enumerate(self._areas):
            area.add(scores[:, number], code == self._classes[number], weight)

    def value(self) -> float | None:
        """Return the area; None where there is none."""
        found = [area for area, _ in self._found()]
        return float(np.mean(found)) if found else None

    def error(self) -> float:
        """Return the bound on the error of the area: 0 where all scores were held."""
        return float(np.mean([error for _, error in self._found()] or [0.0]))

    def _found(self) -> list[tuple[float, float]]:
        return [found for area in self._areas if (found := area.area()) is not None]


class Criterion(NamedTuple):
    """A criterion: what it takes of held-out rows besides weights, and a receiver of that, which may have an error."""

    take: Callable[[HeldOut], tuple[np.ndarray, np.ndarray]]
    new: Callable[[], Any]
    error: Callable[[Any], float] = lambda _: 0.0


def least_bytes(name: str, problem: Problem) -> int:
    """Return the memory that a receiver takes at least for scores."""
    return LEAST_BYTES * int(problem.classes.size) if name == "auc" else 0


def make_criterion(name: str, problem: Problem, memory: int) -> Criterion:
    """Make a criterion of a problem's models; each of its receivers has so many bytes for scores."""
    kinds: dict[str, Criterion] = {
        "accuracy": Criterion(_places, Accuracy),
        "auc": Criterion(_scores, partial(_Area, int(problem.classes.size), memory), _Area.error),
        "log_loss": Criterion(partial(_log_probabilities, problem.loss), partial(_MeanLoss, _of_class)),
        "r2": Criterion(_numbers, RSquared),
        "loss": Criterion(_numbers, partial(_MeanLoss, partial(losses_of, problem.row_loss))),
    }
    return kinds[name]


def _numbers(rows: HeldOut) -> tuple[np.ndarray, np.ndarray]:
    return rows.label, rows.decisions[:, 0]


def _places(rows: HeldOut) -> tuple[np.ndarray, np.ndarray]:
    return rows.code, rows.choice.places(rows.decisions)


def _scores(rows: HeldOut) -> tuple[np.ndarray, np.ndarray]:
    if rows.choice.is_binary:
        return rows.code, class_scores(rows.choice, rows.decisions, 1)[:, np.newaxis]
    return rows.code, rows.choice.scores(rows.decisions)


def _log_probabilities(loss: str, rows: HeldOut) -> tuple[np.ndarray, np.ndarray]:
    return rows.code, class_log_probabilities(loss, rows.decisions, is_binary=rows.choice.is_binary)

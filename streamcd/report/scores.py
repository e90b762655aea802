"""Scores by which models are looked at and chosen: their names, their forms, and those of a search."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..core.setting import Setting

SCORES = {"accuracy": "accuracy", "r2": "R²"}
"""Scores by their names in results, with those for people: of classes, and of numbers to predict."""


class Scores(NamedTuple):
    """Scores of the models of a C and λ in a search."""

    setting: Setting
    folds: Sequence[float]
    mean: float

    @property
    def standard_error(self) -> float:
        """Standard error of the mean over folds."""
        return statistics.stdev(self.folds) / math.sqrt(len(self.folds))


def scores_of(search: Mapping[str, Any]) -> list[Scores]:
    """Read the scores in the result of a search, ascending."""
    read = {
        Setting.named(name) if "=" in name else Setting(float(name), search["best_l1"]): found
        for name, found in search["scores"].items()
    }
    return [Scores(setting, read[setting]["folds"], read[setting]["mean"]) for setting in sorted(read)]


class Criterion(NamedTuple):
    """Criterion by which a search chooses among its scores."""

    text: str  # for people
    sign: int  # 1 where the largest mean is best, -1 where the least is
    form: str  # of a score

    def best(self, scores: Sequence[Scores], *, by_error: bool = False) -> Scores:
        """Choose: of equal means the smallest C, and the largest λ.

        With `by_error` it is the smallest C, and the largest λ, whose mean is within a standard error of the best one's.
        """
        best = max(scores, key=lambda of: (self.sign * of.mean, -of.setting.C, of.setting.l1))
        if not by_error:
            return best
        enough = self.sign * best.mean - best.standard_error
        near = [of for of in scores if self.sign * of.mean >= enough]
        return min(near, key=lambda of: (of.setting.C, -of.setting.l1))


CRITERIA = {
    **{name: Criterion(text, 1, ".4f") for name, text in SCORES.items()},
    "auc": Criterion("area under the ROC curve", 1, ".4f"),
    "average_precision": Criterion("average precision", 1, ".4f"),
    "balanced_accuracy": Criterion("balanced accuracy", 1, ".4f"),
    "f1": Criterion("F1", 1, ".4f"),
    "f1_micro": Criterion("micro F1", 1, ".4f"),
    "f1_macro": Criterion("macro F1", 1, ".4f"),
    "subset_accuracy": Criterion("subset accuracy", 1, ".4f"),
    "log_loss": Criterion("log loss", -1, ".4g"),
    "mae": Criterion("mean absolute error", -1, ".6g"),
    "mse": Criterion("mean squared error", -1, ".6g"),
    "loss": Criterion("loss", -1, ".4g"),
}
"""Criteria by their names in results."""


def score_text(search: Mapping[str, Any]) -> str:
    """Name the criterion of a search, with the class that it is of."""
    text = CRITERIA[search["scored_by"]].text
    return text if search.get("scored_of") is None else f"{text} of {search['scored_of']}"

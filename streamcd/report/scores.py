"""Scores by which models are looked at and chosen: their names, their forms, and those of a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ..core.setting import Setting


class Scores(NamedTuple):
    """Scores of the models of a C and λ in a search."""

    setting: Setting
    folds: Sequence[float]
    mean: float


def scores_of(search: Mapping[str, Any]) -> list[Scores]:
    """Read the scores in the result of a search, ascending."""
    from ..core.setting import Setting  # loads numpy, which --help does without

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

    def best(self, scores: Sequence[Scores]) -> Scores:
        """Choose: of equal means the smallest C, and the largest λ."""
        return max(scores, key=lambda of: (self.sign * of.mean, -of.setting.C, of.setting.l1))


CRITERIA = {
    "accuracy": Criterion("accuracy", 1, ".4f"),
    "auc": Criterion("area under the ROC curve", 1, ".4f"),
    "log_loss": Criterion("log loss", -1, ".4g"),
    "r2": Criterion("R²", 1, ".4f"),
    "loss": Criterion("loss", -1, ".4g"),
}
"""Criteria by their names in results."""


def score_text(search: Mapping[str, Any]) -> str:
    """Name the criterion of a search."""
    return CRITERIA[search["scored_by"]].text

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
    figures: Mapping[str, Any]  # these two, and means by other criteria


def scores_of(search: Mapping[str, Any]) -> list[Scores]:
    """Read the scores in the result of a search, ascending."""
    from ..core.setting import Setting  # loads numpy, which --help does without

    scores = []
    for name, figures in search["scores"].items():
        setting = Setting.named(name) if "=" in name else Setting(float(name), search["best_l1"])
        scores.append(Scores(setting, figures["folds"], figures["mean"], figures))
    return sorted(scores, key=lambda of: of.setting)


class Criterion(NamedTuple):
    """Criterion by which a search chooses among its scores."""

    sign: int  # 1 where the largest mean is best, -1 where the least is
    form: str  # of a score


CRITERIA = {
    "accuracy": Criterion(1, ".4f"),
    "auc": Criterion(1, ".4f"),
    "log_loss": Criterion(-1, ".4g"),
    "r2": Criterion(1, ".4f"),
    "loss": Criterion(-1, ".4g"),
}
"""Criteria by their names, as `scoring` has them."""


def best_of(search: Mapping[str, Any]) -> Scores:
    """Choose by the means of a search: of equal ones the smallest C, and the largest λ."""
    sign = CRITERIA[search["scored_by"]].sign
    return max(scores_of(search), key=lambda of: (sign * of.mean, -of.setting.C, of.setting.l1))


def best_text(search: Mapping[str, Any]) -> str:
    """Name the best C and λ of a search, and which of them are the smallest or the largest tried."""
    best = best_of(search).setting
    ends = []
    for name, value, *tried in zip(
        best._fields, best, *(of.setting for of in scores_of(search)), strict=True
    ):
        if min(tried) < max(tried) and value in (min(tried), max(tried)):
            ends.append(f"{'smallest' if value == min(tried) else 'largest'} {name}")
    return f"{best} ({', '.join(ends)} tried)" if ends else str(best)

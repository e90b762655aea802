"""Scores by which models are looked at and chosen: their names, their forms, and those of a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ..core.setting import Setting


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


def scores_of(search: Mapping[str, Any]) -> dict[Setting, Mapping[str, Any]]:
    """Read the scores in the result of a search, ascending: by C and λ the ``folds``, their ``mean``, and other means."""
    from ..core.setting import Setting  # loads numpy, which --help does without

    return {
        Setting.named(name) if "=" in name else Setting(float(name), search["best_l1"]): scores
        for name, scores in search["scores"].items()
    }


def best_of(search: Mapping[str, Any]) -> Setting:
    """Return the best C and λ of a search."""
    from ..core.setting import Setting

    return Setting(search["best_C"], search["best_l1"])


def best_text(search: Mapping[str, Any]) -> str:
    """Name the best C and λ of a search, and which of them are the smallest or the largest tried."""
    best = best_of(search)
    ends = []
    for name, value, *tried in zip(best._fields, best, *scores_of(search), strict=True):
        if min(tried) < max(tried) and value in (min(tried), max(tried)):
            ends.append(f"{'smallest' if value == min(tried) else 'largest'} {name}")
    return f"{best} ({', '.join(ends)} tried)" if ends else str(best)

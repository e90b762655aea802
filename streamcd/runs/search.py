"""Folds of a search over C and λ, and their scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from ..core.errors import UsageError
from ..core.memory_budget import require
from ..dataset.dataset import Dataset
from ..dataset.kept_columns import coded_texts
from ..report.scores import best_of
from ..training.loop import Session
from .config import ResolvedRun
from .held_out import score_folds


def score(path: Path, search: ResolvedRun, criterion: str, session: Session) -> dict[str, Any]:
    """Score every C and λ on each fold by the models trained without it, weighted as in `evaluate`.

    Returns ``scores``, by C, or by C and λ (`Setting.name`) where there are several of these, and the fields beside them.
    """
    settings = sorted({lane.setting for lane in search.problem.lanes})
    listener = session.listener
    measured = score_folds(path, search, session, criterion)
    if error := max((measured[key][1] for key in measured if key[-1] == criterion), default=0.0):
        listener.message(
            f"{criterion} of each fold to ±{error:.1g}: the scores beyond the memory were counted in bins; exact with a "
            "larger --memory"
        )
    several = len({setting.l1 for setting in settings}) > 1
    folds = range(search.problem.n_folds)
    scores = dict[str, Any]()
    lacking = set[int]()
    for setting in settings:
        figures = dict[str, Any]()
        for name in dict.fromkeys(key[-1] for key in measured):
            of_folds = [measured.get((setting, fold, name), (None, 0.0)) for fold in folds]
            known = [score for score, _ in of_folds if score is not None]
            if name == criterion:
                lacking |= {fold + 1 for fold in folds if of_folds[fold][0] is None}
                by_fold = [score or 0.0 for score, _ in of_folds]
                figures |= {"folds": by_fold, "mean": float(np.mean(by_fold))}
            elif known:
                figures[name] = float(np.mean(known))
            if name == "auc":
                figures["auc_error"] = float(np.mean([error for _, error in of_folds]))
        short = f"{setting.C:g}"
        name_of_cost = short if float(short) == setting.C else repr(setting.C)
        scores[setting.name if several else name_of_cost] = figures
    if lacking:
        listener.warning(
            f"fold {', '.join(map(str, sorted(lacking)))}: no rows, or not of all classes, as {criterion} needs: its score "
            "counts as 0; give a smaller --cv"
        )
    scored = {"scores": scores, "best_l1": settings[0].l1, "scored_by": criterion}
    best = best_of(scored).setting
    return scored | {"best_C": best.C, "best_l1": best.l1}


# ---------------------------------------------------------------------------------------------------------------------
# Folds


_MOST_FOLDS = 20
"""Largest number of values of a column of folds that are a fold each; more of them are hashed to folds."""


def with_folds(dataset: Dataset, cv: int, memory: int) -> tuple[Dataset, int]:
    """Return the dataset with the folds of a search, `cv` unless a column of the dataset tells, and their number."""
    name = dataset.fold_column
    if not name:
        if cv > dataset.n_rows:
            raise UsageError(
                f"--cv {cv}: expected a row for each fold, found {dataset.n_rows} rows; give a smaller --cv"
            )
        return dataset, cv
    distinct = set[str]()
    n_missing = 0
    for array in dataset.read_kept(name):
        texts, codes = coded_texts(array)
        distinct.update(texts)
        n_missing += int(np.count_nonzero(codes < 0))
        values = f"{len(distinct):,} values of {name!r} so far"
        require(memory, {"folds of rows": 2 * dataset.n_rows, values: 400 * len(distinct)})
    if n_missing or len(distinct) < 2:
        wrong = f"{n_missing:,} rows without" if n_missing else f"{min(map(repr, distinct))} alone"
        raise UsageError(f"{dataset.path}: column {name!r}: expected the folds of the rows, found {wrong}")
    n_folds = len(distinct)
    fold_of = {text: number for number, text in enumerate(sorted(distinct))}
    if n_folds > _MOST_FOLDS:
        n_folds = cv
        fold_of = {text: crc32(text.encode()) % cv for text in distinct}
    parts = (coded_texts(array) for array in dataset.read_kept(name))
    folds = [np.array([fold_of[text] for text in texts], np.uint8)[codes] for texts, codes in parts]
    folded = dataset.reopen()
    folded.use_folds(np.concatenate(folds))
    return folded, n_folds

"""Execution of a search over C and λ: all their folds as lanes of one run, scored in one read, then a training on all rows.

The training on all rows starts from the folds' solutions (`warm_start`).
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from ..core.errors import UsageError
from ..core.files import write_metadata
from ..core.memory_budget import require
from ..core.setting import Setting, cost_name
from ..dataset.dataset import Dataset
from ..dataset.kept_columns import coded_texts
from ..report.scores import CRITERIA, best_of, best_text
from ..training import checkpoint
from ..training.loop import Session
from ..training.result import Result, TuneResult
from ..training.stopping import relative
from .carry_out import advise, carry_out, result_of, train_groups
from .config import ResolvedRun, read_config, reopen, write_config
from .describe import SCORES
from .held_out import score_folds
from .lane_groups import resolve
from .options import TrainOptions
from .warm_start import start_from


def carry_out_search(directory: checkpoint.Run, search: ResolvedRun, session: Session) -> TuneResult:
    """Train the folds, score them, train on all rows: each from its last checkpoint."""
    folds = directory.part("folds")
    write_config(folds, replace(search.config, tune=None))
    assert search.config.tune is not None
    criterion = search.config.tune.scoring or "accuracy"
    if search.problem.has_targets and not search.config.tune.scoring:  # R² where it ranks as the loss
        criterion = "r2" if search.problem.loss == "squared_error" else "loss"
    outcome = train_groups(folds, search, None, session, shown_as=directory.name, stage="folds: ")
    scored: dict[str, Any] = {
        "scores": {},
        "best_C": float("nan"),
        "best_l1": float("nan"),
        "scored_by": criterion,
    }
    result = result_of(directory, outcome, search)
    if not outcome.is_cut_short:
        advise(search, result)
        if n_open := sum(not lane["converged"] for lane in result.lanes):
            open_folds = f"{n_open} of {result.n_lanes} models of folds are {result.describe_shortfall()}"
            more = ["their scores may change with a larger --max-passes"]
            more = more if result.more_passes_help else result.advice
            session.listener.warning("; ".join([open_folds, *more]))
        scored = _score(folds.path, search, criterion, session)
        write_metadata(directory.path / "scores.json", SCORES, scored)
        best = best_of(scored)
        mean = format(best.mean, CRITERIA[criterion].form)
        session.listener.message(f"best {best_text(scored)}, mean {criterion} {mean}; training on all rows")
        result = _train_best(directory, search, best.setting, session)
    figures = asdict(result) | {"run": directory.name}
    lanes = outcome.lanes
    summary = {
        "n_lanes": int(lanes["passes"].size),
        "passes": int(lanes["passes"].max()),
        "gap": float(relative(lanes).max()),
        "converged": bool(lanes["converged"].all()),
        "bytes_read": outcome.bytes_read,
        "seconds": outcome.seconds,
    }
    return TuneResult(**figures, **scored, folds=summary)


def _train_best(directory: checkpoint.Run, search: ResolvedRun, best: Setting, session: Session) -> Result:
    """Train on all rows with the best C and λ, from the folds' solutions, or go on with it if it was begun."""
    part, folds, config = directory.part("best"), directory.path / "folds", search.config
    if (part.path / "config.json").exists():
        begun = replace(read_config(part.path), rule=config.rule, dataset=config.dataset)
        run = reopen(part.path, begun, search.dataset)
    else:
        options = TrainOptions(
            **vars(replace(config.options, C=(best.C,), l1=best.l1 or None, folds=0)),
            **vars(config.rule),
            memory=config.memory,
            checkpoint_every=config.checkpoint_every,
            start_from=folds,
        )
        run = resolve(search.dataset, options)
    write_config(part, run.config)
    return carry_out(part, run, start_from(folds, search, run), session, model_path=directory.model_path)


def _score(path: Path, search: ResolvedRun, criterion: str, session: Session) -> dict[str, Any]:
    """Score every C and λ on each fold by the models trained without it, weighted as in `evaluate`.

    Returns ``scores``, by C, or by C and λ (`Setting.name`) where there are several of these, and the fields beside them.
    """
    settings = sorted({lane.setting for lane in search.problem.lanes})
    found, listener = score_folds(path, search, session, criterion), session.listener
    if error := max((found[key][1] for key in found if key[-1] == criterion), default=0.0):
        listener.message(
            f"{criterion} of each fold to ±{error:.1g}: the scores beyond the memory were counted in bins; exact with a "
            "larger --memory"
        )
    several = len({setting.l1 for setting in settings}) > 1
    folds, scores, lacking = range(search.problem.n_folds), dict[str, Any](), set[int]()
    for setting in settings:
        figures = dict[str, Any]()
        for name in dict.fromkeys(key[-1] for key in found):
            of_folds = [found.get((setting, fold, name), (None, 0.0)) for fold in folds]
            known = [score for score, _ in of_folds if score is not None]
            if name == criterion:
                lacking |= {fold + 1 for fold in folds if of_folds[fold][0] is None}
                by_fold = [score or 0.0 for score, _ in of_folds]
                figures |= {"folds": by_fold, "mean": float(np.mean(by_fold))}
            elif known:
                figures[name] = float(np.mean(known))
            if name == "auc":
                figures["auc_error"] = float(np.mean([error for _, error in of_folds]))
        scores[setting.name if several else cost_name(setting.C)] = figures
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
    distinct, n_missing = set[str](), 0
    for array in dataset.read_kept(name):
        texts, places = coded_texts(array)
        distinct.update(texts)
        n_missing += int(np.count_nonzero(places < 0))
        values = f"{len(distinct):,} values of {name!r} so far"
        require(memory, {"folds of rows": 2 * dataset.n_rows, values: 400 * len(distinct)})
    if n_missing or len(distinct) < 2:
        found = f"{n_missing:,} rows without" if n_missing else f"{min(map(repr, distinct))} alone"
        raise UsageError(f"{dataset.path}: column {name!r}: expected the folds of the rows, found {found}")
    n_folds, fold_of = len(distinct), {text: number for number, text in enumerate(sorted(distinct))}
    if n_folds > _MOST_FOLDS:
        n_folds, fold_of = cv, {text: crc32(text.encode()) % cv for text in distinct}
    parts = (coded_texts(array) for array in dataset.read_kept(name))
    folds = [np.array([fold_of[text] for text in texts], np.uint8)[places] for texts, places in parts]
    folded = dataset.reopen()
    folded.use_folds(np.concatenate(folds))
    return folded, n_folds

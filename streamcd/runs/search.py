"""Execution of a search over C and λ: all their folds as lanes of one run, scored in one read, then a training on all rows.

The training on all rows starts from the folds' solutions (`warm_start`).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..core.metadata import write_metadata
from ..core.progress import Listener
from ..core.setting import Setting, cost_name
from ..report.scores import CRITERIA, Scores, score_text, scores_of
from ..training import checkpoint
from ..training.loop import Session
from ..training.result import Outcome, Result, TuneResult, relative_gaps
from .carry_out import carry_out, result_of, train_groups
from .config import ResolvedRun, Search, write_config
from .criteria import least_bytes, make_criterion
from .describe import SCORES
from .early_warnings import advise
from .held_out import HeldOut, held_out_rows
from .lane_groups import resolve_part
from .previous_run import PreviousRun, stored_states


def carry_out_search(directory: checkpoint.Run, search: ResolvedRun, session: Session) -> TuneResult:
    """Train the folds, score them, train on all rows: each from its last checkpoint."""
    folds = directory.part("folds")
    write_config(folds, replace(search.config, tune=None))
    outcome = train_groups(folds, search, None, session, shown_as=directory.name, stage="folds: ")
    scored: dict[str, Any] = {
        "scores": {},
        "best_C": float("nan"),
        "best_l1": float("nan"),
        "scored_by": _criterion(search),
    }
    result = result_of(directory, outcome, search)
    if not outcome.is_cut_short:
        advise(search, result)
        _warn_of_open_folds(result, session.listener)
        scored |= _score(folds.path, search, session)
        write_metadata(directory.path / "scores.json", SCORES, scored)
        best = Setting(scored["best_C"], scored["best_l1"])
        criterion = CRITERIA[scored["scored_by"]]
        mean = next(of.mean for of in scores_of(scored) if of.setting == best)
        told = f"mean {score_text(scored)} {mean:{criterion.form}}"
        session.listener.message(f"best {best}, {told}; training on all rows")
        result = _train_best(directory, search, best, session)
    figures = asdict(result) | {"run": directory.name}
    return TuneResult(**figures, **scored, folds=_summary(outcome))


def _warn_of_open_folds(folds: Result, listener: Listener) -> None:
    n_open = sum(not lane["converged"] for lane in folds.lanes)
    if n_open:
        told = f"{n_open} of {folds.n_lanes} models of folds are {folds.describe_shortfall()}"
        more = ["their scores may change with a larger --max-passes"]
        listener.warning("; ".join([told, *(more if folds.more_passes_help else folds.advice)]))


def _train_best(directory: checkpoint.Run, search: ResolvedRun, best: Setting, session: Session) -> Result:
    """Train on all rows with the best C and λ, from the folds' solutions."""
    part, folds = directory.part("best"), directory.path / "folds"
    options = replace(search.options, C=(best.C,), l1=best.l1 or None, folds=0)
    run = resolve_part(part, search, options, start_from=str(folds.resolve()))
    previous = PreviousRun(stored_states(folds, search.groups), search, run)
    return carry_out(part, run, previous, session, model_path=directory.model_path)


def _summary(outcome: Outcome) -> dict[str, Any]:
    lanes = outcome.lanes
    return {
        "n_lanes": int(lanes["passes"].size),
        "passes": int(lanes["passes"].max()),
        "gap": float(relative_gaps(lanes).max()),
        "converged": bool(lanes["converged"].all()),
        "bytes_read": outcome.bytes_read,
        "seconds": outcome.seconds,
    }


# ---------------------------------------------------------------------------------------------------------------------
# Scores


_SCORES_SHARE = 0.25
"""Share of the budget for scores of held-out rows, of which areas under curves are computed."""


def _criterion(search: ResolvedRun) -> str:
    """Return the criterion asked for, else that of the problem."""
    return _tuned(search).scoring or search.problem.criterion


def _tuned(search: ResolvedRun) -> Search:
    assert search.config.tune is not None
    return search.config.tune


def _score(path: Path, search: ResolvedRun, session: Session) -> dict[str, Any]:
    """Score every C and λ on each fold by the models trained without it, weighted as in `evaluate`.

    Returns ``scores``, by C, or by C and λ (`Setting.name`) where there are several of these, ``best_C`` and ``best_l1``.
    """
    problem = search.problem
    settings = sorted({lane.setting for lane in problem.lanes})
    name, n_models = _criterion(search), len(settings) * problem.n_folds
    least = n_models * least_bytes(name, problem)
    memory = max(int(_SCORES_SHARE * search.config.memory), least) if least else 0
    criterion = make_criterion(name, problem, memory // n_models)
    sums: defaultdict[tuple[Setting, int], Any] = defaultdict(criterion.new)

    def compare(rows: HeldOut) -> tuple[tuple[Setting, int], np.ndarray, np.ndarray, np.ndarray]:
        return (rows.setting, rows.fold), rows.weight, *criterion.take(rows)

    for model, weight, *compared in held_out_rows(path, search, session, compare, memory):
        if weight.size:
            sums[model].add(weight, *compared)
    if error := max(map(criterion.error, sums.values()), default=0.0):
        session.listener.message(
            f"{name} of each fold to ±{error:.1g}: the scores beyond the memory were counted in bins; exact with a larger "
            "--memory"
        )
    keys = itertools.product(settings, range(problem.n_folds))
    scores, found = [], {key: sums[key].value() if key in sums else None for key in keys}
    if lacking := sorted({fold + 1 for (_, fold), score in found.items() if score is None}):
        session.listener.warning(
            f"fold {', '.join(map(str, lacking))}: no rows, or not of all classes, as {name} needs: its score counts as 0; "
            "give a smaller --cv"
        )
    for setting in settings:
        folds = [found[setting, fold] or 0.0 for fold in range(problem.n_folds)]
        scores.append(Scores(setting, folds, float(np.mean(folds))))
    best = CRITERIA[name].best(scores).setting
    several = len({of.setting.l1 for of in scores}) > 1
    return {
        "scores": {
            of.setting.name if several else cost_name(of.setting.C): {"folds": of.folds, "mean": of.mean}
            for of in scores
        },
        "best_C": best.C,
        "best_l1": best.l1,
    }

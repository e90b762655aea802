"""Execution of a search over C: all folds of all C as lanes of one run, scored in one read, then a training on all rows.

The training on all rows starts from the folds' solutions (`warm_start`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..core.atomic_files import write_file
from ..core.progress import Listener
from ..prediction.sums import Accuracy, RSquared
from ..report.tables import SCORES, score_of
from ..training import checkpoint
from ..training.loop import Session
from ..training.result import Outcome, Result, TuneResult, relative_gaps
from .carry_out import carry_out, result_of, train_groups
from .config import ResolvedRun, write_config
from .held_out import HeldOut, held_out_rows
from .lane_groups import resolve_part
from .previous_run import PreviousRun


def carry_out_search(directory: checkpoint.Run, search: ResolvedRun, session: Session) -> TuneResult:
    """Train the folds, score them, train on all rows: each from its last checkpoint."""
    folds = directory.part("folds")
    write_config(folds, replace(search.config, tune=None))
    outcome = train_groups(folds, search, None, session, shown_as=str(directory.path), stage="folds: ")
    scored: dict[str, Any] = {
        "scores": {},
        "best_C": float("nan"),
        "scored_by": score_of(has_targets=search.problem.has_targets),
    }
    result = result_of(directory, outcome, search)
    if not outcome.is_cut_short:
        _warn_of_open_folds(result, session.listener)
        scored |= _score(folds.path, search, session)
        write_file(directory.path / "scores.json", (json.dumps(scored, indent=1) + "\n").encode())
        best = scored["best_C"]
        mean = f"mean {SCORES[scored['scored_by']]} {scored['scores'][f'{best:g}']['mean']:.4f}"
        session.listener.message(f"best C = {best:g}, {mean}; training on all rows")
        result = _train_best(directory, search, best, session)
    figures = asdict(result) | {"run": str(directory.path)}
    return TuneResult(**figures, **scored, folds=_summary(outcome))


def _warn_of_open_folds(folds: Result, listener: Listener) -> None:
    n_open = sum(not lane["converged"] for lane in folds.lanes)
    if n_open:
        listener.warning(
            f"{n_open} of {folds.n_lanes} models of folds are not converged after {folds.passes} passes: their scores may "
            "change with a larger --max-passes"
        )


def _train_best(directory: checkpoint.Run, search: ResolvedRun, best: float, session: Session) -> Result:
    """Train on all rows with the best C, from the folds' solutions."""
    part, folds = directory.part("best"), directory.path / "folds"
    options = replace(search.options, C=(best,), folds=0)
    run = resolve_part(part, search, options, start_from=str(folds.resolve()))
    previous = PreviousRun(folds, search, run)
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


def _score(path: Path, search: ResolvedRun, session: Session) -> dict[str, Any]:
    """Score every C on each fold by the models trained without it: accuracy or R², weighted as in `evaluate`.

    Returns ``scores``, by C, and ``best_C``: the smallest of the highest mean.
    """
    problem = search.problem
    sums: defaultdict[tuple[float, int], Any] = defaultdict(RSquared if problem.has_targets else Accuracy)

    def compare(rows: HeldOut) -> tuple[tuple[float, int], np.ndarray, np.ndarray, np.ndarray]:
        predicted = rows.decisions[:, 0] if problem.has_targets else rows.choice.places(rows.decisions)
        return (rows.C, rows.fold), rows.weight, rows.label if problem.has_targets else rows.code, predicted

    for model, *compared in held_out_rows(path, search, session, compare, "score the folds"):
        sums[model].add(*compared)
    scores = {
        C: [sums[C, fold].value() or 0.0 for fold in range(problem.n_folds)]
        for C in sorted({lane.C for lane in problem.lanes})
    }
    best = max(scores, key=lambda C: (np.mean(scores[C]), -C))
    of_costs = {f"{C:g}": {"folds": folds, "mean": float(np.mean(folds))} for C, folds in scores.items()}
    return {"scores": of_costs, "best_C": best}

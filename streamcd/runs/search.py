"""Execution of a search over C: all folds of all C as lanes of one run, scored in one read, then a training on all rows.

The training on all rows starts from the folds' solutions (`warm_start`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..core.atomic_files import write_file
from ..core.progress import Listener
from ..prediction.sums import ExactSum, Spread
from ..report.tables import SCORES, score_of
from ..training import checkpoint
from ..training.loop import Session
from ..training.result import Outcome, Result, TuneResult, relative_gaps
from .carry_out import carry_out, result_of, train_groups
from .config import ResolvedRun, write_config
from .held_out import HeldOut, held_out_rows
from .lane_groups import resolve_part
from .previous_run import PreviousRun

Sums = defaultdict[tuple[float, int], ExactSum]
"""Sums for each C and fold."""


def carry_out_search(directory: checkpoint.Run, search: ResolvedRun, session: Session) -> TuneResult:
    """Train the folds, score them, train on all rows: each from its last checkpoint."""
    listener, run = session.listener, str(directory.path)
    folds = directory.part("folds")
    write_config(folds, replace(search.config, tune=None))
    scored_by = score_of(has_targets=search.problem.has_targets)
    outcome = train_groups(folds, search, None, session, shown_as=run, stage="folds: ")
    if outcome.is_cut_short:
        result = replace(result_of(directory, outcome, search), run=run)
        figures: dict[str, Any] = {
            "scores": {},
            "best_C": float("nan"),
            "folds": _summary(outcome),
            "scored_by": scored_by,
        }
        return TuneResult(**asdict(result), **figures)
    _warn_of_open_folds(outcome, listener)
    scores = _score(folds.path, search, session)
    best = max(scores, key=lambda C: (np.mean(scores[C]), -C))
    content = json.dumps({"scores": _as_json(scores), "best_C": best, "scored_by": scored_by}, indent=1)
    write_file(directory.path / "scores.json", (content + "\n").encode())
    listener.message(
        f"best C = {best:g}, mean {SCORES[scored_by]} {np.mean(scores[best]):.4f}; training on all rows"
    )
    result = _train_best(directory, search, best, session)
    return TuneResult(
        **{**asdict(result), "run": run},
        scores=_as_json(scores),
        best_C=best,
        folds=_summary(outcome),
        scored_by=scored_by,
    )


def _warn_of_open_folds(outcome: Outcome, listener: Listener) -> None:
    converged = outcome.lanes["converged"]
    n_open = int((~converged).sum())
    if n_open:
        listener.warning(
            f"{n_open} of {converged.size} models of folds are not converged after {int(outcome.lanes['passes'].max())} "
            "passes: their scores may change with a larger --max-passes"
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


def _as_json(scores: Mapping[float, Sequence[float]]) -> dict[str, dict[str, Any]]:
    return {f"{C:g}": {"folds": list(folds), "mean": float(np.mean(folds))} for C, folds in scores.items()}


# ---------------------------------------------------------------------------------------------------------------------
# Scores


def _score(path: Path, search: ResolvedRun, session: Session) -> dict[float, list[float]]:
    """Return accuracy or R² of every C on each fold, weighted as in `evaluate`, by the models trained without it."""
    problem = search.problem
    sums: defaultdict[tuple[float, int], Any] = defaultdict(_Errors if problem.has_targets else _Hits)

    def compare(rows: HeldOut) -> tuple[tuple[float, int], np.ndarray, np.ndarray, np.ndarray]:
        found = rows.decisions[:, 0] if problem.has_targets else rows.choice.places(rows.decisions)
        return (rows.C, rows.fold), rows.weight, rows.label if problem.has_targets else rows.code, found

    for model, *found in held_out_rows(path, search, session, compare, "score the folds"):
        sums[model].add(*found)
    values = sorted({lane.C for lane in problem.lanes})
    return {C: [sums[C, fold].score() for fold in range(problem.n_folds)] for C in values}


class _Hits:
    """Weights of the rows whose class was predicted, and of all; exact, so that they do not depend on the blocks of rows."""

    def __init__(self) -> None:
        self._weight, self._correct = ExactSum(), ExactSum()

    def add(self, weight: np.ndarray, code: np.ndarray, predicted: np.ndarray) -> None:
        self._weight.add(weight)
        self._correct.add(weight[predicted == code])

    def score(self) -> float:
        return self._correct.value() / (self._weight.value() or 1.0)


class _Errors:
    """Squared errors of targets, and their spread; exact, too."""

    def __init__(self) -> None:
        self._squares, self._spread = ExactSum(), Spread()

    def add(self, weight: np.ndarray, target: np.ndarray, predicted: np.ndarray) -> None:
        self._squares.add(weight * (target - predicted) ** 2)
        self._spread.add(target, weight)

    def score(self) -> float:
        return self._spread.r2(self._squares.value()) or 0.0

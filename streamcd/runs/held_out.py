"""Folds of a search over C and λ, and their scores: criteria over held-out rows, those of every fold by the lanes trained
without it, in one read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..core.memory_budget import RUNNING_BYTES, make_room, require
from ..core.parallel import Threads
from ..core.setting import Setting, class_indices
from ..dataset.schema import ChunkData
from ..models.scoring import ClassDecoder, decisions_of
from ..prediction.scorer import affordable_threads, chunk_bytes, scored_chunks
from ..prediction.sums import LEAST_BYTES, RocArea, WeightedMeans
from ..report.scores import CRITERIA
from ..solvers.problem import Lane, Problem
from ..training import checkpoint
from ..training.loop import Session
from .config import ResolvedRun


def score_search(search: ResolvedRun, criterion: str, session: Session) -> dict[str, Any]:
    """Score every C and λ on each fold by the models trained without it, weighted as in `evaluate`.

    Returns ``scores``, by C, or by C and λ (`Setting.name`) where there are several of these, and the fields beside them.
    """
    folds = defaultdict[Setting, list[dict[str, float]]](list)
    for setting, figures in _score_folds(search, session, criterion):
        folds[setting].append(figures)
    several = len({setting.l1 for setting in folds}) > 1
    scores = dict[str, Any]()
    means = dict[Setting, float]()
    lacking = set[int]()
    error = 0.0
    for setting, of_folds in sorted(folds.items()):
        by_name = {name: np.array([figures[name] for figures in of_folds]) for name in of_folds[0]}
        if criterion == "auc":
            error = max(error, by_name["auc_error"].max())
        by_fold = by_name.pop(criterion)
        lacking.update(np.flatnonzero(np.isnan(by_fold)) + 1)
        by_fold = np.nan_to_num(by_fold)
        means[setting] = float(by_fold.mean())
        name = setting.name if several else repr(setting.C).removesuffix(".0")
        scores[name] = {"folds": by_fold.tolist(), "mean": means[setting]}
        scores[name] |= {
            other: float(np.nanmean(of)) for other, of in by_name.items() if not np.isnan(of).all()
        }
    if error:
        session.listener.message(
            f"{criterion} of each fold to ±{error:.1g}: the scores beyond the memory were counted in bins; exact with a "
            "larger --memory"
        )
    if lacking:
        session.listener.warning(
            f"fold {', '.join(map(str, sorted(lacking)))}: no rows, or not of all classes, as {criterion} needs: its score "
            "counts as 0; give a smaller --cv"
        )
    # of equal means the smallest C, and the largest λ
    sign = CRITERIA[criterion].sign
    best = max(means, key=lambda setting: (sign * means[setting], -setting.C, setting.l1))
    return {"scores": scores, "best_C": best.C, "best_l1": best.l1, "scored_by": criterion}


# ---------------------------------------------------------------------------------------------------------------------
# Criteria


_BYTES = 1 << 22  # of decisions at a time
_AREAS_SHARE = 0.25  # of the budget, for scores of which areas under curves are computed


class _Model:
    """The classifier of a C and λ that was trained without a fold, and its scores on the fold's rows seen so far.

    `memory` is for the scores of areas under ROC curves: of two classes that of the larger one, of several the mean of each
    against the rest.
    """

    def __init__(
        self, problem: Problem, lane: Lane, weights: np.ndarray, criteria: Sequence[str], memory: int
    ) -> None:
        self.setting = Setting(lane.C, lane.l1)
        self._row_loss = problem.row_loss
        self._decoder = ClassDecoder(problem.loss, problem.code, weights)
        self._criteria = criteria
        self._means = WeightedMeans()
        n_classes = problem.classes.size
        classes = [] if "auc" not in criteria else [1] if n_classes == 2 else range(n_classes)
        self._areas = {number: RocArea(memory // len(classes)) for number in classes}

    def add(
        self, decisions: np.ndarray, label: np.ndarray, code: np.ndarray | None, weight: np.ndarray
    ) -> None:
        """Take rows: their decisions, labels, indices of classes, None for targets, and weights."""
        if code is None:
            self._means.add_targets(weight, label, decisions[:, 0], self._row_loss)
            return
        figures = {"accuracy": self._decoder.predicted_classes(decisions) == code}
        if "log_loss" in self._criteria:
            logarithms = self._decoder.log_probabilities(decisions)
            figures["log_loss"] = -logarithms[np.arange(code.size), code]
        self._means.add(weight, **figures)
        if self._areas:
            scores = self._decoder.preferences(decisions).T
            for (number, area), score in zip(self._areas.items(), scores, strict=True):
                area.add(score, code == number, weight)

    def figures(self) -> dict[str, float]:
        """Return the scores, nan where there is none, and ``auc_error``, the bound on the error of an area."""
        figures = {name: self._means[name] for name in self._criteria}
        if self._areas:
            areas = [area for each in self._areas.values() if (area := each.area()) is not None]
            figures["auc"], figures["auc_error"] = np.mean(areas or [(np.nan, 0.0)], axis=0).tolist()
        return figures


Fold = tuple[int, list[_Model], np.ndarray]
"""A fold, and the models of a group of lanes that were trained without it, with their w side by side."""


def _score_folds(
    search: ResolvedRun, session: Session, criterion: str
) -> Iterator[tuple[Setting, dict[str, float]]]:
    """Score all rows by the states of a run of folds; one read for each group of lanes. Threads score blocks of rows.

    Yields the `figures` of each C and λ, by the fold that was held out; of two classes AUC too, if its scores fit in memory,
    or accuracy beside AUC.
    """
    dataset = search.dataset
    problem = search.problem
    memory = search.config.memory
    n_models = problem.n_lanes // problem.block_lanes
    n_classes = problem.classes.size
    criteria = [criterion]
    if n_classes == 2:
        criteria.append("accuracy" if criterion == "auc" else "auc")
    least = n_models * n_classes * LEAST_BYTES
    n_vectors = max(map(len, search.groups.values())) * problem.lane_vectors
    needs = {
        "the client of the URL": dataset.client_bytes,
        "weights": 2 * 8 * problem.n_features * n_vectors,
        "one chunk": chunk_bytes(dataset),
        "decisions": 2 * _BYTES,
        "folds of rows": dataset.n_rows if dataset.fold_column else 0,
        "kernels": 25_000_000,  # and the library that loads them, which the first chunk does
    }
    left = require(memory, needs, reserved=RUNNING_BYTES)
    if least > left and criterion != "auc" in criteria:
        session.listener.message(f"no auc: the scores of {n_models:,} models do not fit in the memory")
        criteria = [criterion]
    if "auc" in criteria:
        needs["scores"] = max(least, min(int(_AREAS_SHARE * memory), left))
        left = require(memory, needs, reserved=RUNNING_BYTES)
    make_room(memory, sum(needs.values()))
    areas_bytes = needs.get("scores", 0) // n_models
    for group in search.groups:
        yield from _score_group(search, session, group, criteria, areas_bytes, left)


def _read_folds(search: ResolvedRun, group: str, criteria: Sequence[str], areas_bytes: int) -> list[Fold]:
    """Read the models of a group of lanes, sorted by fold; `areas_bytes` are for the scores of each."""
    problem = search.problem
    lanes = search.groups[group]
    first_lanes = problem.lanes[lanes.start : lanes.stop : problem.block_lanes]
    arrays = checkpoint.read_arrays(search.path / group / "state.npz", ("w",))
    assert arrays is not None
    weights = arrays["w"]
    if search.centre is not None:
        *_, weights[-1:] = search.centre.leave([weights], problem.bias)
    weights = weights.reshape(len(weights), len(first_lanes), -1)
    folds = []
    for number in sorted({lane.fold for lane in first_lanes}):
        chosen = [k for k, lane in enumerate(first_lanes) if lane.fold == number]
        w = weights.take(chosen, axis=1)
        models = [
            _Model(problem, first_lanes[lane], w[:-1, k], criteria, areas_bytes)
            for k, lane in enumerate(chosen)
        ]
        folds.append((number, models, w.reshape(len(w), -1)))
    return folds


def _score_group(
    search: ResolvedRun, session: Session, group: str, criteria: Sequence[str], areas_bytes: int, left: int
) -> list[tuple[Setting, dict[str, float]]]:
    """Return setting and figures of each model of a group, by fold; its weights are gone before the next group's are read.

    A model's areas take `areas_bytes`, threads the bytes that are `left`.
    """
    folds = _read_folds(search, group, criteria, areas_bytes)
    dataset = search.dataset
    problem = search.problem
    n_columns = max(w.shape[1] for _, _, w in folds)
    block_rows = max(1, _BYTES // (8 * n_columns))

    def score_chunk(data: ChunkData) -> Iterator[tuple[Any, ...]]:
        fold_of = dataset.folds_of(data.source, search.config.seed, problem.n_folds)
        for first in range(0, data.label.size, block_rows):
            for fold, models, w in folds:
                row = first + np.flatnonzero(fold_of[first : first + block_rows] == fold)
                if row.size:
                    rows = data.indptr[row], data.indptr[row + 1], data.feature, data.value
                    decisions, _ = decisions_of(rows, w[:-1], problem.bias * w[-1])
                    label = data.label[row]
                    code = None if problem.has_targets else class_indices(problem.classes, label)[0]
                    yield models, decisions, label, code, data.weight[row]

    n_threads, _ = affordable_threads(dataset, left, n_columns, Threads(session.n_threads).count)
    blocks = scored_chunks(dataset, None, score_chunk, n_threads, session.listener, "score the folds")
    for models, decisions, *rows in blocks:
        for model, of_model in zip(models, np.split(decisions, len(models), axis=1), strict=True):
            model.add(of_model, *rows)
    return [(model.setting, model.figures()) for _, models, _ in folds for model in models]

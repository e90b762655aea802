"""Folds of a search over C and λ, and their scores: criteria over held-out rows, those of every fold by the lanes trained
without it, in one read.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from ..core.errors import UsageError
from ..core.memory_budget import RUNNING_BYTES, make_room, require
from ..core.parallel import Threads
from ..core.setting import Setting, class_indices
from ..dataset.centring import Centre
from ..dataset.dataset import Dataset
from ..dataset.kept_columns import coded_texts
from ..dataset.schema import ChunkData
from ..models import scoring
from ..models.scoring import ClassDecoder
from ..prediction.scorer import ScoredBlock, affordable_threads, chunk_bytes, scored_chunks
from ..prediction.sums import LEAST_BYTES, RocArea, WeightedMeans
from ..report.scores import best_of
from ..solvers.problem import Problem, losses_of
from ..training import checkpoint
from ..training.loop import Session
from .config import ResolvedRun


def score_search(search: ResolvedRun, criterion: str, session: Session) -> dict[str, Any]:
    """Score every C and λ on each fold by the models trained without it, weighted as in `evaluate`.

    Returns ``scores``, by C, or by C and λ (`Setting.name`) where there are several of these, and the fields beside them.
    """
    settings = sorted({Setting(lane.C, lane.l1) for lane in search.problem.lanes})
    listener = session.listener
    measured = score_folds(search, session, criterion)
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
# Criteria


_BYTES = 1 << 22  # of decisions at a time
_AREAS_SHARE = 0.25  # of the budget, for scores of which areas under curves are computed

Scored = tuple[Setting, int, str]
"""The model of a C and λ that was trained without a fold, and a criterion."""


class _Measure:
    """A criterion of a model over the rows seen so far; `memory` is for the scores of areas under ROC curves.

    The area is that of the larger of two classes, of several the mean of each against the rest.
    """

    def __init__(self, criterion: str, problem: Problem, memory: int) -> None:
        self._criterion = criterion
        self._row_loss = problem.row_loss
        self._means = WeightedMeans()
        n_classes = problem.classes.size
        classes = [] if criterion != "auc" else [1] if n_classes == 2 else range(n_classes)
        self._areas = {number: RocArea(memory // len(classes)) for number in classes}

    def add(
        self,
        decoder: ClassDecoder,
        label: np.ndarray,
        code: np.ndarray,
        weight: np.ndarray,
        decisions: np.ndarray,
    ) -> None:
        """Take rows: their labels, class indices, weights and decisions."""
        if self._criterion == "r2":
            self._means.add_targets(weight, label, decisions[:, 0])
        elif self._criterion == "loss":
            self._means.add(weight, loss=losses_of(self._row_loss, label, decisions[:, 0], np.ones(1)))
        elif self._criterion == "accuracy":
            self._means.add(weight, accuracy=decoder.predicted_classes(decisions) == code)
        elif self._criterion == "log_loss":
            logarithms = decoder.log_probabilities(decisions)
            self._means.add(weight, log_loss=-logarithms[np.arange(code.size), code])
        else:
            scores = decoder.preferences(decisions).T
            for (number, area), score in zip(self._areas.items(), scores, strict=True):
                area.add(score, code == number, weight)

    def value(self) -> tuple[float | None, float]:
        """Return the score, None where it has none, and a bound on its error."""
        if not self._areas:
            return self._means.r2() if self._criterion == "r2" else self._means[self._criterion], 0.0
        areas = [area for each in self._areas.values() if (area := each.area()) is not None]
        if not areas:
            return None, 0.0
        score, error = np.mean(areas, axis=0).tolist()
        return score, error


class _Fold(NamedTuple):
    """The classifiers of all C and λ that were trained without a fold, their vectors side by side."""

    number: int
    settings: list[Setting]
    decoders: list[ClassDecoder]
    weights: np.ndarray  # shape (features, vectors)
    intercept: np.ndarray


def score_folds(
    folds: ResolvedRun, session: Session, criterion: str
) -> dict[Scored, tuple[float | None, float]]:
    """Score all rows by the states of a run of folds in a directory; one read for each group of lanes.

    Returns the scores of the models that rows were held out of, with bounds on their errors; of two classes by AUC too, if
    its scores fit in memory, or by accuracy beside AUC. Threads score blocks of rows.
    """
    dataset = folds.dataset
    problem = folds.problem
    memory = folds.config.memory
    n_models = problem.n_lanes // problem.block_lanes
    n_classes = max(int(problem.classes.size), 1)
    criteria = [criterion]
    if n_classes == 2:
        criteria.append("accuracy" if criterion == "auc" else "auc")
    groups = [problem.subset(lanes) for lanes in folds.groups.values()]
    n_vectors = max(lanes.n_lanes for lanes in groups) * problem.lane_vectors
    least = n_models * n_classes * LEAST_BYTES if "auc" in criteria else 0
    needs = {
        "the client of the URL": dataset.client_bytes,
        "weights": 2 * 8 * problem.n_features * n_vectors,
        "one chunk": chunk_bytes(dataset),
        "decisions": 2 * _BYTES,
        "scores": least if criterion == "auc" else 0,
        "folds of rows": dataset.held_bytes,
        "kernels": 25_000_000,  # and the library that loads them, which the first chunk does
    }
    left = require(memory, needs, reserved=RUNNING_BYTES) + needs["scores"]
    areas_bytes = min(max(int(_AREAS_SHARE * memory), least), left) if least else 0
    if areas_bytes < least:
        session.listener.message(f"no auc: the scores of {n_models:,} models do not fit in the memory")
        criteria = [criterion]
        areas_bytes = 0
    left -= areas_bytes
    make_room(memory, sum(needs.values()) + areas_bytes)
    measures: dict[Scored, _Measure] = {}
    for group, lanes in zip(folds.groups, groups, strict=True):
        by_fold = _by_fold(lanes, folds.path / group / "state.npz", folds.centre)
        n_columns = max(fold.intercept.size for fold in by_fold)
        n_threads, _ = affordable_threads(dataset, left, n_columns, Threads(session.n_threads).count)
        score_chunk = partial(_score_chunk, folds, by_fold, max(1, _BYTES // (8 * n_columns)))
        blocks = scored_chunks(dataset, None, score_chunk, n_threads, session.listener, "score the folds")
        for fold, rows in blocks:
            code = rows.label
            if not problem.has_targets:
                code, _ = class_indices(problem.classes, rows.label)
            of_each = np.split(rows.decisions, len(fold.settings), axis=1)
            for setting, decoder, decisions in zip(fold.settings, fold.decoders, of_each, strict=True):
                for name in criteria:
                    key = setting, fold.number, name
                    if key not in measures:
                        measures[key] = _Measure(name, problem, areas_bytes // n_models)
                    measures[key].add(decoder, rows.label, code, rows.weight, decisions)
    return {key: measure.value() for key, measure in measures.items()}


def _by_fold(lanes: Problem, state: Path, centre: Centre | None) -> list[_Fold]:
    """Sort the classifiers of a state by the fold that they were trained without."""
    arrays = checkpoint.read_arrays(state, ("w",))
    assert arrays is not None
    n_rows = lanes.n_features + 1
    folds = []
    first_lanes = lanes.lanes[:: lanes.block_lanes]
    weights = arrays.pop("w")
    if centre is not None:
        weights[-1] = centre.stored_bias(weights, lanes.bias)
    weights = weights.reshape(n_rows, len(first_lanes), -1)
    for fold in sorted({lane.fold for lane in first_lanes}):
        numbers = [number for number, lane in enumerate(first_lanes) if lane.fold == fold]
        w = weights.take(numbers, axis=1)
        decoders = [ClassDecoder(lanes.loss, lanes.code, w[:-1, k]) for k in range(len(numbers))]
        settings = [Setting(first_lanes[number].C, first_lanes[number].l1) for number in numbers]
        w = w.reshape(n_rows, -1)
        folds.append(_Fold(fold, settings, decoders, w[:-1], lanes.bias * w[-1]))
    return folds


def _score_chunk(
    folds: ResolvedRun, by_fold: list[_Fold], block_rows: int, data: ChunkData
) -> Iterator[tuple[_Fold, ScoredBlock]]:
    """Score the rows of a chunk, block by block, each by the classifiers trained without its fold."""
    number = folds.dataset.folds_of(data.source, folds.config.seed, folds.problem.n_folds)
    for first in range(0, data.label.size, block_rows):
        for fold in by_fold:
            row = first + np.flatnonzero(number[first : first + block_rows] == fold.number)
            if row.size:
                rows = data.indptr[row], data.indptr[row + 1], data.feature, data.value
                scored = scoring.decisions_of(rows, fold.weights, fold.intercept)
                yield fold, ScoredBlock(data.source[row], data.label[row], data.weight[row], *scored)


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
    folded = copy(dataset)
    folded.use_folds(np.concatenate(folds))
    return folded, n_folds

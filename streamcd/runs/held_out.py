"""Scores of a search: criteria over held-out rows, those of every fold by the lanes trained without it, in one read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..core.memory_budget import RUNNING_BYTES, make_room, require
from ..core.setting import Setting, class_indices
from ..dataset.centring import Centre
from ..dataset.schema import ChunkData
from ..models.scoring import ClassDecoder, score
from ..prediction.scorer import ScoredBlock, affordable_threads, chunk_bytes, scored_chunks
from ..prediction.sums import LEAST_BYTES, RocArea, WeightedMeans
from ..solvers.problem import Problem, losses_of
from ..training import checkpoint
from ..training.loop import Session
from .config import ResolvedRun

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
    path: Path, folds: ResolvedRun, session: Session, criterion: str
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
    groups = [problem.subset(group.lanes) for group in folds.groups]
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
        by_fold = _by_fold(lanes, path / group.directory / "state.npz", folds.centre)
        n_columns = max(fold.intercept.size for fold in by_fold)
        n_threads, _ = affordable_threads(dataset, left, n_columns, session.threads.count)
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
        settings = [first_lanes[number].setting for number in numbers]
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
                scored = score(rows, fold.weights, fold.intercept)
                yield fold, ScoredBlock(data.source[row], data.label[row], data.weight[row], *scored)

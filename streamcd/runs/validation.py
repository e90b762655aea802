"""A validation set: held-out rows, scored by the weights of a group of lanes while these are trained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..core.classes import class_indices
from ..core.errors import DataError, UsageError
from ..core.memory_budget import RESERVED_BYTES
from ..core.progress import Listener
from ..dataset.dataset import Dataset, open_dataset
from ..models.model import Model
from ..models.scoring import ClassChoice
from ..prediction.evaluate import row_terms
from ..prediction.reading_plan import is_dataset, reads_once
from ..prediction.scored_rows import ScoredRows, Scoring
from ..prediction.sums import ExactSum
from ..solvers.problem import Problem
from .models import new_model

_MORE_BYTES = 16_000_000  # beside the least: larger blocks of rows, and the kernels of parsing


def check_validation(path: str, *, on_workers: bool) -> None:
    """Refuse data that cannot be read again and again, and a training on workers."""
    if on_workers:
        raise UsageError(
            "validation: one process trains and looks at it; leave --workers and --scheduler out"
        )
    if reads_once(path):
        raise UsageError(f"validation: {path} can be read only once; write it to a file, or convert it")


class Validation:
    """A validation set for some lanes: called with their weights, it returns mean loss and accuracy for the C of each.

    The loss is that of the objective without C (of twin planes with it): ``Σ loss`` with the weights of rows and classes,
    divided by the sum of the rows' weights. Rows of a class that was not trained count as errors, and have no loss.
    """

    def __init__(self, path: str, dataset: Dataset, lanes: Problem, listener: Listener) -> None:
        self._data: Dataset | str = open_dataset(path) if is_dataset(path) else path
        if isinstance(self._data, Dataset):
            self._data.use_cache(dataset.cache)
        self._path, self._lanes, self._listener = path, lanes, listener
        self._model = _without_weights(dataset, lanes)
        # all that is read of a look, but for the weights, which the training has anyway
        least = Scoring(self._data, self._model, 1 << 62, Listener()).plan.least_bytes
        code_bytes = 2 * ClassChoice(lanes.loss, lanes.code, self._model.weights).code_bytes
        self.n_bytes = least - self._model.weights.nbytes + code_bytes + _MORE_BYTES
        self._budget = RESERVED_BYTES + least + _MORE_BYTES

    def __call__(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return loss and accuracy, shape (lanes,) each; `w` is (n_features + 1, vectors)."""
        lanes = self._lanes
        model = replace(self._model, weights=w[:-1], intercept=lanes.bias * w[-1])
        scoring = Scoring(self._data, model, self._budget, self._listener, compared=True)
        width = lanes.block_lanes * lanes.lane_vectors
        sums = [
            _Sums(lanes, range(first, first + lanes.block_lanes), w[:, number * width : (number + 1) * width])
            for number, first in enumerate(range(0, lanes.n_lanes, lanes.block_lanes))
        ]
        for rows in scoring.blocks("validate"):
            for number, of_cost in enumerate(sums):
                of_cost.add(rows, rows.decisions[:, number * width : (number + 1) * width])
        if not sums[0].weight.value():
            raise DataError(f"validation: no row of {self._path} has a label of the training data")
        self._listener = Listener()  # has been told of what is ignored
        figures = np.array([of_cost.figures() for of_cost in sums])
        loss, accuracy = np.repeat(figures, lanes.block_lanes, axis=0).T
        return loss, accuracy


class _Sums:
    """Sums over the rows seen so far, for the lanes of one C."""

    def __init__(self, problem: Problem, lanes: range, w: np.ndarray) -> None:
        self._problem, self._choice = problem, ClassChoice(problem.loss, problem.code, w[:-1])
        self._costs = problem.class_factors(lanes)
        if problem.loss == "twin":
            self._costs = self._costs * problem.lanes[lanes.start].C
        # exact, so that they do not depend on the blocks in which rows come
        self._loss, self.weight = ExactSum(), ExactSum()
        self._n_rows = self._n_correct = 0

    def add(self, rows: ScoredRows, decisions: np.ndarray) -> None:
        place, known = class_indices(self._problem.classes, rows.label)
        predicted = self._choice.places(decisions)
        self._n_rows += place.size
        self._n_correct += int((known & (predicted == place)).sum())
        place, weight = place[known], rows.weight[known]
        costs = self._costs[place] * weight
        self._loss.add(row_terms(self._problem, place, decisions[known], costs, weight))
        self.weight.add(weight)

    def figures(self) -> tuple[float, float]:
        """Return the mean loss and the accuracy."""
        return self._loss.value() / self.weight.value(), self._n_correct / self._n_rows


def _without_weights(dataset: Dataset, lanes: Problem) -> Model:
    """Describe the model of all lanes side by side, by which rows are read and scored; its weights are untouched."""
    n_vectors = lanes.n_lanes * lanes.lane_vectors
    code = np.tile(lanes.code, lanes.n_lanes // lanes.block_lanes)
    weights, intercept = np.zeros((lanes.n_features, n_vectors)), np.zeros(n_vectors)
    return new_model(dataset, lanes, weights=weights, intercept=intercept, code=code, C=None)

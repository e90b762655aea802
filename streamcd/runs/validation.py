"""A validation set: held-out rows, scored by the weights of a group of lanes while these are trained."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, islice, repeat

import numpy as np

from ..core.classes import class_indices
from ..core.errors import DataError, UsageError
from ..core.memory_budget import RESERVED_BYTES
from ..core.progress import Listener
from ..dataset.centring import Centre
from ..dataset.dataset import Dataset, open_dataset
from ..kernels.loss_table import PLANES
from ..models.encoding import encoding_of
from ..models.model import Model
from ..models.scoring import ClassChoice
from ..prediction.reading_plan import Means, RowsToScore, is_dataset, reads_once, scoring_needs
from ..prediction.scored_rows import ScoredRows, Scoring
from ..prediction.sums import Accuracy, ExactSum, RSquared
from ..solvers.problem import Problem, losses_of, row_losses
from ..training.validation import Validate
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


class ValidationSet:
    """A validation set, open for the trainings on a dataset; `as_of` is its fingerprint if that is another by now.

    With `centre` the trainings' weights are for centred rows.
    """

    def __init__(
        self,
        path: str,
        dataset: Dataset,
        problem: Problem,
        as_of: str | None = None,
        centre: Centre | None = None,
    ) -> None:
        self._centre = centre
        self.path, self._data = path, open_dataset(path, as_of=as_of) if is_dataset(path) else path
        w, code = _untouched(problem), np.tile(problem.model_code, problem.n_lanes // problem.block_lanes)
        own = {"intercept": w[-1], "code": code, "C": None, "encoding": encoding_of(dataset)}
        self._model = new_model(dataset, problem, weights=w[:-1], **own)
        self._needs = RowsToScore(self._data, self._model, compared=True).needs()

    def n_bytes(self, lanes: Problem) -> int:
        """Compute the bytes of a look, without the weights, which the training has anyway."""
        model = self._model_of(lanes, _untouched(lanes))
        code_bytes = 2 * ClassChoice(lanes.loss, lanes.code, model.weights).code_bytes
        return self._least_bytes(model) - model.kept_weights.nbytes + code_bytes

    def _least_bytes(self, model: Model) -> int:
        return sum(scoring_needs(model, self._needs).values()) + _MORE_BYTES

    def _model_of(self, lanes: Problem, w: np.ndarray) -> Model:
        """Describe the model of all lanes side by side; `w` is (n_features + 1, vectors)."""
        code = np.tile(lanes.model_code, lanes.n_lanes // lanes.block_lanes)
        return replace(self._model, weights=w[:-1], intercept=lanes.bias * w[-1], code=code)

    def scorer(self, lanes: Problem, listener: Listener) -> Validate:
        """Make the function that a training of lanes calls with their weights.

        It returns mean loss and score, accuracy or R², of the C of each lane, shape (lanes,) each. The loss is that of the
        objective without C (of twin planes with it): ``Σ loss`` with the weights of rows and classes, divided by the sum of
        the rows' weights. Rows of a class that was not trained count as errors, and have no loss. The score is weighted as
        in `evaluate`.
        """
        # its kernels are loaded before windows take memory
        self._sum_up(lanes, _untouched(lanes), _Unheard(), 1)
        listeners = chain([listener], repeat(_Unheard()))  # the first look tells what is ignored

        def look(w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            sums = self._sum_up(lanes, w, next(listeners))
            if not sums[0].weight.value():
                raise DataError(f"validation: no row of {self.path} has a label of the training data")
            figures = np.array([of_cost.figures() for of_cost in sums])
            loss, score = np.repeat(figures, lanes.block_lanes, axis=0).T
            return loss, score

        return look

    def _sum_up(
        self, lanes: Problem, w: np.ndarray, listener: Listener, n_blocks: int | None = None
    ) -> list[_Sums | _LabelSums | _Errors]:
        """Sum up the errors of weights, by C; of the first blocks of rows, if their number is given."""
        model = self._model_of(lanes, w)
        if self._centre is not None:
            model.intercept = lanes.bias * self._centre.stored_bias(w, lanes.bias)
        means = Means(RESERVED_BYTES + self._least_bytes(model), listener)
        width = lanes.block_lanes * lanes.lane_vectors
        kind = _Errors if lanes.has_targets else _LabelSums if lanes.multilabel else _Sums
        sums = [
            kind(lanes, range(first, first + lanes.block_lanes), w[:, number * width : (number + 1) * width])
            for number, first in enumerate(range(0, lanes.n_lanes, lanes.block_lanes))
        ]
        for rows in islice(Scoring(self._data, model, means, compared=True).blocks("validate"), n_blocks):
            for number, of_cost in enumerate(sums):
                of_cost.add(rows, rows.decisions[:, number * width : (number + 1) * width])
        return sums


class _Unheard(Listener):
    """Listener that drops what it hears: the one of the package logs it."""

    def message(self, text: str) -> None:
        pass

    warning = message


class _Sums:
    """Sums over the rows seen so far, for the lanes of one C."""

    def __init__(self, problem: Problem, lanes: range, w: np.ndarray) -> None:
        self._problem, self._choice = problem, ClassChoice(problem.loss, problem.code, w[:-1])
        self._costs = problem.class_factors(lanes)
        if problem.form == PLANES:
            self._costs = self._costs * problem.lanes[lanes.start].C
        # exact, so that they do not depend on the blocks in which rows come
        self._loss, self.weight = ExactSum(), ExactSum()  # weights of the rows of known classes
        self._accuracy = Accuracy()

    def add(self, rows: ScoredRows, decisions: np.ndarray) -> None:
        place, known = class_indices(self._problem.classes, rows.label)
        self._accuracy.add(rows.weight, np.where(known, place, -1), self._choice.places(decisions))
        place, weight = place[known], rows.weight[known]
        costs = self._costs[place] * weight
        self._loss.add(row_losses(self._problem, place, decisions[known], costs, weight))
        self.weight.add(weight)

    def figures(self) -> tuple[float, float]:
        """Return the mean loss and the accuracy."""
        return self._loss.value() / self.weight.value(), self._accuracy.value()


class _LabelSums:
    """As `_Sums`, of sets of labels: the score is the share of the rows all of whose labels are right."""

    def __init__(self, problem: Problem, lanes: range, w: np.ndarray) -> None:
        self._row_loss, self._factors = problem.row_loss, problem.class_factors(lanes)
        self._loss, self._accuracy = ExactSum(), Accuracy()
        self.weight = self._accuracy.weight

    def add(self, rows: ScoredRows, decisions: np.ndarray) -> None:
        assert rows.has_labels is not None
        assert rows.n_others is not None
        has, cost = rows.has_labels, np.where(rows.has_labels, self._factors, 1.0) * rows.weight[:, None]
        right = (has == (decisions > 0.0)).all(axis=1) & (rows.n_others == 0)
        self._accuracy.add(rows.weight, np.ones(right.size, np.bool_), right)
        sign = np.where(has, 1.0, -1.0)
        self._loss.add(losses_of(self._row_loss, sign, sign * decisions, cost).sum(axis=1))

    def figures(self) -> tuple[float, float]:
        """Return the mean loss, summed over the labels, and the score."""
        return self._loss.value() / self.weight.value(), self._accuracy.value()


class _Errors:
    """As `_Sums`, of numbers to predict."""

    def __init__(self, problem: Problem, lanes: range, w: np.ndarray) -> None:
        self._row_loss = problem.row_loss
        self._loss, self._fit = ExactSum(), RSquared()
        self.weight = self._fit.weight

    def add(self, rows: ScoredRows, decisions: np.ndarray) -> None:
        self._loss.add(losses_of(self._row_loss, rows.label, decisions[:, 0], rows.weight))
        self._fit.add(rows.weight, rows.label, decisions[:, 0])

    def figures(self) -> tuple[float, float]:
        """Return the mean loss and R²; 0 where all targets are the same."""
        return self._loss.value() / self.weight.value(), self._fit.value() or 0.0


def _untouched(lanes: Problem) -> np.ndarray:
    """Make weights that are never written, and so take no memory."""
    return np.zeros((lanes.n_features + 1, lanes.n_lanes * lanes.lane_vectors))

"""Values of λ of a path: from the least one at which every weight is 0, falling geometrically.

At weights of 0, and the best bias where it is not penalised, rows have dual variables ``a_i`` that do not depend on the
penalty, and the least λ is ``max_j |Σ_i s_i a_i x_ij|``. Where the loss has a kink there, the variables of its rows are
those on its two sides, mixed so that ``Σ s_i a_i = 0``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from ..core.classes import class_indices
from ..core.errors import Interrupted, UsageError
from ..core.memory_budget import require
from ..core.progress import Progress
from ..core.threads import Threads
from ..dataset.dataset import Dataset
from ..dataset.schema import ChunkData
from ..kernels.loss_table import CLASSES, LOSSES, form_of
from ..models.scoring import chunk_bytes, score_chunks
from ..solvers.problem import Problem, slopes_of
from ..training.loop import Session
from .config import read_config
from .options import TrainOptions

LEAST_SHARE = 1e-3
"""The last λ of a path over the first."""

_SAFE = 1.0 + 1e-9  # times the least λ: rounding leaves no weight
_POINTS = 33  # at which the sum of slopes is evaluated in a read of the targets
_STRAIGHT = 1e-12  # distance of sums of slopes from a line, relative to the largest
_LANES = 64  # whose sums are made at a time
_FARTHEST, _HALVINGS = 1e3, 200  # for the best bias of classes

Asked = TypeVar("Asked", bound=TrainOptions)


def with_path(asked: Asked, dataset: Dataset, session: Session) -> Asked:
    """Put the values of λ in the place of their number, which takes a read of the data."""
    number = asked.l1_path
    if number is None:
        return asked
    if (
        form_of(asked.loss) == CLASSES and not LOSSES[asked.loss].smooth
    ):  # at weights of 0 all other classes tie
        raise UsageError(
            f"--l1-path: expected a loss whose first value is known beforehand, found {asked.loss}; give the values by --l1"
        )
    options = replace(asked.problem, l1=1.0, l1_path=None, folds=0)
    problem = options.make_problem(dataset, asked.memory_bytes)
    options.solver_memory(problem, dataset)  # refuses what has no such penalty
    largest = _SAFE * least_without_weights(dataset, problem, asked.memory_bytes, session)
    if not largest > 0.0:
        raise UsageError("l1_path: every weight is 0 whatever l1 is; there is no path")
    values = largest * np.geomspace(1.0, LEAST_SHARE, number)
    session.listener.message(
        f"{number} values of l1, from {largest:.6g}, where all weights are 0, to {values[-1]:.6g}"
    )
    return replace(asked, l1=values.tolist(), l1_path=None)


def path_of(run: Path, number: int) -> list[float] | None:
    """Return the path of so many values that a run was begun with, which then takes no read; None where there is none."""
    if not (run / "config.json").exists():
        return None
    values = np.array(read_config(run).options.strengths[0])
    is_path = np.array_equal(values, values[0] * np.geomspace(1.0, LEAST_SHARE, number))
    return values.tolist() if is_path else None


def least_without_weights(dataset: Dataset, problem: Problem, memory: int, session: Session) -> float:
    """Return the least λ at which all weights of all lanes are 0.

    Raises `UsageError` where the sums do not fit in `memory`, and `Interrupted` where a signal asks to stop.
    """
    shape = dataset.n_features + 1, problem.n_kinds
    needs = {
        f"sums of {shape[0]:,} features x {shape[1]:,} classes": 8
        * (shape[0] * shape[1] + shape[0] * _LANES),
        "one chunk": chunk_bytes(dataset) + 32 * int(np.diff(dataset.entry_start).max(initial=0)),
    }
    require(memory, needs)
    mix = _target_mix(dataset, problem) if problem.has_targets else None
    sums = np.zeros(shape)
    for data in _chunks(dataset, session):
        _add_rows(data, problem, mix, sums)
    slopes = np.array([[1.0]]) if mix is not None else _class_slopes(problem, sums[-1])
    if problem.free_bias:
        sums[-1] = 0.0
    else:
        sums[-1] *= problem.bias
    largest = 0.0
    for first in range(0, slopes.shape[1], _LANES):
        largest = max(largest, float(np.abs(sums @ slopes[:, first : first + _LANES]).max()))
    return largest if mix is None else largest * float(problem.cost.max())


def _chunks(dataset: Dataset, session: Session) -> Iterator[ChunkData]:
    chunks = range(dataset.n_chunks)
    for chunk, (data,) in score_chunks(dataset, chunks, lambda data: iter([data]), Threads(1)):
        yield data
        done = int(dataset.row_start[chunk + 1])
        session.listener.progress(Progress("find the largest l1", done, dataset.n_rows, "rows"))
        signum = session.stop_requested() if session.stop_requested else None
        if signum is not None:
            raise Interrupted(
                "stopped by a signal before the training began; give the same command again", signum
            )


class _Mix(NamedTuple):
    """Dual variables of rows with targets: those at a score of `low`, with this share, and those at `high`."""

    low: float
    high: float
    share: float

    def slopes(self, problem: Problem, label: np.ndarray, weight: np.ndarray) -> np.ndarray:
        low, high = (slopes_of(problem.row_loss, label, np.full_like(label, z), weight) for z in self[:2])
        return self.share * low + (1.0 - self.share) * high


def _add_rows(data: ChunkData, problem: Problem, mix: _Mix | None, sums: np.ndarray) -> None:
    """Add the rows of a chunk to the sums of their classes, with their weights, or of targets with their dual variables."""
    column, factor = np.zeros(data.label.size, dtype=np.int64), data.weight
    if mix is not None:
        factor = mix.slopes(problem, data.label, data.weight)
    else:
        column, _ = class_indices(problem.classes, data.label)
    lengths = np.diff(data.indptr)
    place = data.feature * np.int64(sums.shape[1]) + np.repeat(column, lengths)
    np.add.at(sums.reshape(-1), place, data.value * np.repeat(factor, lengths))
    np.add.at(sums[-1], column, factor)


def _class_slopes(problem: Problem, weight: np.ndarray) -> np.ndarray:
    """Return ``s a`` of a row of every class, of weight 1, in every lane; (classes, lanes or vectors)."""
    if problem.form == CLASSES:
        total = problem.cost * weight[:, None]
        shares = total / total.sum(axis=0) if problem.free_bias else np.full_like(total, 1.0 / weight.size)
        of_classes = [
            problem.cost[:, [lane]] * (np.eye(weight.size) - shares[:, lane])
            for lane in range(problem.n_lanes)
        ]
        return np.hstack(of_classes)
    low = high = np.zeros(problem.n_lanes)
    if problem.free_bias:
        low, high = low - _FARTHEST, high + _FARTHEST
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            rises = (weight @ _slopes_at(problem, middle)) >= 0.0
            low, high = np.where(rises, middle, low), np.where(rises, high, middle)
    share = _shares(weight @ _slopes_at(problem, low), weight @ _slopes_at(problem, high))
    return share * _slopes_at(problem, low) + (1.0 - share) * _slopes_at(problem, high)


def _slopes_at(problem: Problem, z: np.ndarray) -> np.ndarray:
    """Return ``s a`` of a row of every class at scores z of the lanes, (classes, lanes)."""
    return problem.sign * slopes_of(problem.row_loss, problem.sign, problem.sign * z, problem.cost)


def _shares(at_low: np.ndarray, at_high: np.ndarray) -> np.ndarray:
    """Return the share of the lower end with which the two sums, >= 0 and <= 0, make 0."""
    apart = at_low - at_high
    return np.divide(-at_high, apart, out=np.ones_like(apart), where=apart > 0.0)


def _target_mix(dataset: Dataset, problem: Problem) -> _Mix:
    """Find the best bias between two numbers, in reads of the targets alone; 0 without a free bias.

    The sum of slopes falls with the bias. It is a line between the ends where no row has a kink, and always for the squared
    error, whose dual variables, mixed, are then those at the best bias.
    """
    if not problem.free_bias or dataset.targets is None:
        return _Mix(0.0, 0.0, 1.0)
    low, high = dataset.targets["min"], dataset.targets["max"]
    while True:
        z = np.linspace(low, high, _POINTS)
        sums = np.zeros(_POINTS)
        for chunk in range(dataset.n_chunks):
            label, weight = (
                np.asarray(column, np.float64) for column in dataset.read_rows(chunk, ("label", "weight"))
            )
            sums += [slopes_of(problem.row_loss, label, np.full_like(label, at), weight).sum() for at in z]
        line = np.linspace(sums[0], sums[-1], _POINTS)
        straight = np.abs(sums - line).max() <= _STRAIGHT * np.abs(sums).max()
        if straight or not (np.diff(z) > 0.0).all():
            return _Mix(low, high, float(_shares(sums[:1], sums[-1:])[0]))
        cell = min(int(np.flatnonzero(sums >= 0.0)[-1]), _POINTS - 2)
        low, high = float(z[cell]), float(z[cell + 1])

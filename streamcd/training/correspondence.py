"""Correspondence of two runs: the lanes, classes and features of an earlier one from which those of a new one start."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from ..core.errors import UsageError
from ..kernels.loss_table import MARGINS, PLANES
from ..solvers.problem import Lane, Problem


class Features(NamedTuple):
    """Places of an earlier run's features in a new one."""

    n_old: int

    def add(self, rows: np.ndarray, start: int, w: np.ndarray) -> None:
        """Add rows of an earlier w, from row `start` on, to those of the same features in `w`, in place.

        The last row of both is the bias's.
        """
        if start + rows.shape[0] > self.n_old:
            w[-1] += rows[-1]
            rows = rows[:-1]
        there = w[:-1][start : start + rows.shape[0]]
        there += rows[: there.shape[0]]


def combination(
    old: Problem,
    new: Problem,
    classes: np.ndarray | None = None,
    *,
    dual: bool = True,
    grown: bool = False,
) -> np.ndarray:
    """Return the matrix of the linear combinations, shape (old vectors, new vectors); without `dual`, for w alone.

    `classes` has the place of each old class (or label, where rows have several) among the new ones, -1 for none; None: they
    are the same. Raises `UsageError` if the problems differ in more than C, folds and classes. Where rows have `grown`,
    weights of classes may differ too; but for planes and several labels a row, where they change some lanes alone.
    """
    scales = grown and old.form != PLANES and not old.multilabel
    _check(old, new, same_weights=not dual or scales or class_ratios(old, new, classes) is None, dual=dual)
    if new.n_folds:
        raise UsageError(
            "a warm start cannot begin the training of folds; start from another run, or from nothing"
        )
    n_trained = old.n_folds - 1  # folds that a row is not in
    width_old, width_new = old.block_lanes, new.block_lanes
    blocks = np.zeros((old.n_lanes // width_old, new.n_lanes // width_new))
    for number, target in enumerate(new.lanes[::width_new]):
        nearest = min(old.lanes, key=partial(_distance, target))
        for block, source in enumerate(old.lanes[::width_old]):
            if source.setting == nearest.setting:
                ratio = target.C / source.C / max(n_trained, 1)
                blocks[block, number] = ratio if dual else 1.0 / max(old.n_folds, 1)
    return np.kron(blocks, _signs(old, new, classes))


def nearest_lanes(problem: Problem, known: Sequence[int], wanted: Sequence[int]) -> np.ndarray:
    """Return which of the vectors of the lanes `known` those of `wanted` start from, shape (all, wanted), for w alone.

    It is the one nearest in C and λ of the same class and fold; none, where there is none.
    """
    matrix = np.zeros((problem.n_lanes, len(wanted)))
    for column, lane in enumerate(wanted):
        target = problem.lanes[lane]
        same = [
            number
            for number in known
            if number % problem.block_lanes == lane % problem.block_lanes
            and problem.lanes[number].fold == target.fold
        ]
        if same:
            matrix[min(same, key=lambda number: _distance(target, problem.lanes[number])), column] = 1.0
    return np.kron(matrix, np.eye(problem.lane_vectors))


def places_of(old: Sequence[object], new: Sequence[object]) -> np.ndarray | None:
    """Return the place of each old class among the new ones, -1 for none; None if they are the same."""
    if list(old) == list(new):
        return None
    numbers = {label: number for number, label in enumerate(new)}
    return np.array([numbers.get(label, -1) for label in old], dtype=np.int64)


def _distance(target: Lane, source: Lane) -> tuple[float, float]:
    """Return how far a lane is from another, by C first and then by λ."""
    of_l1 = abs(math.log(source.l1 / target.l1)) if source.l1 and target.l1 else float(source.l1 != target.l1)
    return abs(math.log(source.C / target.C)), of_l1


def class_ratios(old: Problem, new: Problem, classes: np.ndarray | None) -> np.ndarray | None:
    """Return the ratio of every new class's factor on C to what it was, (new classes,), 1 for a new class.

    None where all are 1: balanced weights change with the rows.
    """
    if old.has_targets:
        return None
    before, now = (problem.class_factors(range(problem.block_lanes)) for problem in (old, new))
    places = np.arange(before.size) if classes is None else classes
    ratios = np.ones(now.size)
    ratios[places] = np.divide(now[places], before, out=np.zeros(before.size), where=before > 0.0)
    return None if np.allclose(ratios, 1.0, rtol=1e-12) else ratios


def _check(old: Problem, new: Problem, *, same_weights: bool, dual: bool) -> None:
    """Refuse problems that differ in more than C, folds and classes; dual variables fit the same bias and code alone."""
    told: dict[str, tuple[object, object]] = {  # of the old problem and the new one
        "loss": (old.loss, new.loss),
        # the feature of a free bias may differ: it depends on C, the optimum does not depend on it
        "bias": (old.bias or "none", new.bias or "none")
        if dual and not (old.free_bias and new.free_bias)
        else (0, 0),
        "ridge" if new.loss == "twin" else "l2": (old.scale, new.scale),
        "slack": (old.slack, new.slack),
        "parameter of the loss": (old.parameter, new.parameter),
    }
    same = {
        "code matrix": not dual or old.n_kinds != new.n_kinds or np.array_equal(old.code, new.code),
        "class weights": same_weights,
    }
    different = [f"{name} {was}, found {now}" for name, (was, now) in told.items() if was != now]
    different += [name for name, equal in same.items() if not equal]
    if different:
        raise UsageError(
            f"a warm start needs the run's {', '.join(different)}; give its options, only C may differ"
        )


def _signs(old: Problem, new: Problem, classes: np.ndarray | None) -> np.ndarray:
    """Return the sign with which each vector of one C starts from each old one, shape (old vectors, new vectors).

    A vector starts from the one that has the same sign for every class that both runs have, or from minus the one that has
    the other sign; from none, where there is none.
    """
    if classes is None and np.array_equal(old.model_code, new.model_code):
        return np.eye(old.block_lanes * old.lane_vectors)
    known = np.arange(len(old.model_code)) if classes is None else np.flatnonzero(classes >= 0)
    places = known if classes is None else classes[known]
    first, second = old.model_code[known].astype(np.float64), new.model_code[places].astype(np.float64)
    squares = (first**2).sum(axis=0)[:, None] + (second**2).sum(axis=0)
    products = first.T @ second
    tells = (
        np.maximum(first, 0.0).sum(axis=0)[:, None] > 0.0
    )  # a vector of none of these classes tells nothing
    equals: list[np.ndarray] = [tells & (squares == sign * 2.0 * products) for sign in (1.0, -1.0)]
    same, opposite = equals
    signs = np.zeros(products.shape)
    for column in range(products.shape[1]):
        found = np.flatnonzero(same[:, column])
        if found.size:
            signs[found[0], column] = 1.0
        elif new.form == MARGINS and (found := np.flatnonzero(opposite[:, column])).size:
            signs[found[0], column] = -1.0
    return signs

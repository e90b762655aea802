"""Correspondence of two runs: the lanes of an earlier one from which those of a new one start."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from ..core.errors import UsageError
from ..kernels.loss_table import PLANES
from ..solvers.problem import Lane, Problem


def combination(old: Problem, new: Problem, *, dual: bool) -> np.ndarray:
    """Return the matrix of the linear combinations of dual variables, shape (old vectors, new vectors).

    Raises `UsageError` if the problems differ in more than C, weights of classes and folds. `dual` variables fit the same
    bias alone, and weights of classes change some lanes of planes alone.
    """
    told: dict[str, tuple[object, object]] = {  # of the old problem and the new one
        "loss": (old.loss, new.loss),
        "ridge" if new.loss == "twin" else "l2": (old.scale, new.scale),
        "slack": (old.slack, new.slack),
        "parameter of the loss": (old.parameter, new.parameter),
    }
    # the feature of a free bias may differ: it depends on C, the optimum does not depend on it
    if dual and not (old.free_bias and new.free_bias):
        told["bias"] = old.bias or "none", new.bias or "none"
    different = [f"{name} {was}, found {now}" for name, (was, now) in told.items() if was != now]
    different += ["code matrix"] * (not np.array_equal(old.code, new.code))
    different += ["class weights"] * (
        dual and old.form == new.form == PLANES and class_ratios(old, new) is not None
    )
    if different:
        raise UsageError(f"a warm start needs the run's {', '.join(different)}")
    if new.n_folds:
        raise UsageError("a warm start cannot begin the training of folds")
    n_trained = old.n_folds - 1  # folds that a row is not in
    width = old.block_lanes
    blocks = np.zeros((old.n_lanes // width, new.n_lanes // width))
    for number, target in enumerate(new.lanes[::width]):
        nearest = min(old.lanes, key=partial(_distance, target))
        for block, source in enumerate(old.lanes[::width]):
            if source.setting == nearest.setting:
                blocks[block, number] = target.C / source.C / max(n_trained, 1)
    return np.kron(blocks, np.eye(width * old.lane_vectors))


def _distance(target: Lane, source: Lane) -> tuple[float, float]:
    """Return how far a lane is from another, by C first and then by λ."""
    of_l1 = abs(math.log(source.l1 / target.l1)) if source.l1 and target.l1 else float(source.l1 != target.l1)
    return abs(math.log(source.C / target.C)), of_l1


def class_ratios(old: Problem, new: Problem) -> np.ndarray | None:
    """Return the ratio of every class's factor on C to what it was, (classes,); None where all are 1.

    Balanced weights change with the rows.
    """
    if old.has_targets:
        return None
    before, now = (problem.class_factors(range(problem.block_lanes)) for problem in (old, new))
    ratios = np.divide(now, before, out=np.zeros(before.size), where=before > 0.0)
    return None if np.allclose(ratios, 1.0, rtol=1e-12) else ratios

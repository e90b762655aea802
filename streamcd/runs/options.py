"""Options of a training as objects, checked once, when they are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.progress import Listener
from ..dataset.dataset import Dataset
from ..solvers.acceleration import check_acceleration
from ..solvers.problem import Problem, make_problem
from ..solvers.protocol import Solver
from ..solvers.registry import check_omega, find_solver, make_solver
from ..stream.memory_plan import Plan

ClassWeight = str | tuple[tuple[float, float], ...] | None
"""``"balanced"``, or pairs of a label and the factor of its rows."""


@dataclass(frozen=True)
class ProblemOptions:
    """Options that decide the problem and the order of visits, the ``options`` of a run's ``config.json``."""

    loss: str = "squared_hinge"
    method: str = "dual"
    C: tuple[float, ...] = (1.0,)
    bias: float = -1.0  # negative for none
    class_weight: ClassWeight = None
    code: list[list[int | float]] | None = None
    seed: int = 0
    folds: int = 0  # of a cross-validation; 0 for none
    omega: float | str = 1.0
    ridge: float = 1.0
    slack: str = "hinge"
    unpenalized_bias: bool = False
    acceleration: float | str = "none"  # a fixed kappa, or auto; runs begun before there was any have none

    def __post_init__(self) -> None:
        object.__setattr__(self, "omega", check_omega(self.omega, self.loss, self.method))
        object.__setattr__(self, "acceleration", check_acceleration(self.acceleration))

    @classmethod
    def asked(
        cls,
        *,
        loss: str,
        method: str,
        C: float | Sequence[float],
        class_weight: Mapping[float, float] | str | None,
        code: np.ndarray | Sequence[Sequence[int]] | None,
        ridge: float | None,
        slack: str | None,
        **others: Any,
    ) -> ProblemOptions:
        """Take the options of `train.train` as they come; others stay as they are."""
        if loss != "twin" and (ridge is not None or slack is not None):
            raise UsageError(f"ridge and slack are of the loss twin; they do not apply to {loss}")
        pairs: ClassWeight = None
        if isinstance(class_weight, str):
            pairs = class_weight
        elif class_weight is not None:
            pairs = tuple((float(label), float(weight)) for label, weight in class_weight.items())
        return cls(
            loss=loss,
            method="dual" if method == "auto" else method,
            C=tuple(float(c) for c in np.atleast_1d(np.asarray(C, dtype=np.float64))),
            class_weight=pairs,
            code=None if code is None else np.asarray(code).astype(np.int64).tolist(),
            ridge=1.0 if ridge is None else float(ridge),
            slack=slack or "hinge",
            **others,
        )

    def make_problem(self, dataset: Dataset) -> Problem:
        """Lay out all lanes that the options ask for."""
        if dataset.classes is None or dataset.class_counts is None:
            raise UsageError(
                f"{dataset.path}: the labels take too many values to be classes; nothing to train on"
            )
        weights = self.class_weight
        return make_problem(
            loss=self.loss,
            classes=dataset.classes,
            class_counts=dataset.class_counts,
            n_features=dataset.n_features,
            C=self.C,
            bias=self.bias,
            class_weight=dict(weights) if isinstance(weights, tuple) else weights,
            code=None if self.code is None else np.array(self.code, dtype=np.int8),
            folds=self.folds,
            free_bias=self.unpenalized_bias,
            ridge=self.ridge,
            slack=self.slack,
        )

    def make_solver(self, lanes: Problem, dataset: Dataset) -> Solver:
        """Make the solver of some lanes."""
        numbers = {"omega": self.omega, "acceleration": self.acceleration}
        return make_solver(lanes, self.method, dataset, seed=self.seed, **numbers)


@dataclass(frozen=True)
class SharedRounds:
    """Options of a training in rounds on workers, the ``rounds`` of a run's ``config.json``."""

    local_passes: int | None  # None lets the shape of the data decide
    worker_timeout: float  # seconds
    shared_memory: int | None = None  # bytes that workers of this machine share with this process

    def __post_init__(self) -> None:
        if self.local_passes is not None and self.local_passes < 1:
            raise UsageError(f"local_passes: expected at least 1, found {self.local_passes}")
        check_positive(worker_timeout=self.worker_timeout)


@dataclass(frozen=True)
class TrainOptions:
    """What a person asks of a run; `lane_groups.resolve` makes a run of it."""

    problem: ProblemOptions
    memory: int  # bytes; bounds this process, or each worker, or all together where there are `local_workers`
    checkpoint_every: float  # seconds
    tol: float | None = None
    eps: float | None = None
    max_passes: int = 1000
    plan: Plan | None = None  # None lets `memory` decide
    rounds: SharedRounds | None = None
    local_workers: int = 0
    start_from: str | None = None
    search: bool = False  # for the best C, by cross-validation

    def __post_init__(self) -> None:
        check_positive(checkpoint_every=self.checkpoint_every)
        numbers = stopping_numbers(self.tol, self.eps, self.max_passes)
        for name, number in zip(("tol", "eps", "max_passes"), numbers, strict=True):
            object.__setattr__(self, name, number)


def check_positive(**numbers: float) -> None:
    """Refuse a number that is not above 0, by its name."""
    for name, number in numbers.items():
        if not number > 0:
            raise UsageError(f"{name}: expected a number > 0, found {number}")


def settle_acceleration(
    options: ProblemOptions, eps: float | None, listener: Listener, *, on_workers: bool = False
) -> ProblemOptions:
    """Train plainly where acceleration does not apply: said where it was left to us, refused where a kappa was asked for."""
    reason = None
    if not find_solver(options.loss, options.method).accelerates:
        reason = f"{options.loss} by method {options.method} has none"
    elif options.omega != 1.0:
        reason = f"it does not go with omega {options.omega}"
    elif eps is not None:
        reason = "LIBLINEAR's rule (eps) is about plain coordinate descent"
    elif on_workers:
        reason = "it is for one process"
    if options.acceleration == 0.0:  # plain coordinate descent by another name
        return replace(options, acceleration="none")
    if reason is None or options.acceleration == "none":
        return options
    if options.acceleration != "auto":
        raise UsageError(f"acceleration {options.acceleration:g}: {reason}; leave it at auto or none")
    if find_solver(options.loss, options.method).accelerates:
        listener.message(f"trained without acceleration: {reason}")
    return replace(options, acceleration="none")


def warn_of_ridge(options: ProblemOptions, listener: Listener) -> None:
    """Warn of small ridges, with which twin planes by coordinate descent are slow."""
    if options.loss == "twin" and options.method == "dual" and 0 < options.ridge < 1:
        listener.warning(
            f"ridge {options.ridge:g}: below 1 twin planes converge slowly (0.01: not within 1,000 passes on real sets); "
            "--method sor does not, where a matrix of features x features fits in memory"
        )


def stopping_numbers(
    tol: float | None, eps: float | None, max_passes: int
) -> tuple[float | None, float | None, int]:
    """Check the numbers of a `stopping.StopRule`; a relative gap of 1e-3 where neither rule is given."""
    if tol is not None and eps is not None:
        raise UsageError(
            "expected one stopping rule, found both: give the relative gap (tol) or LIBLINEAR's eps"
        )
    if tol is None and eps is None:
        tol = 1e-3
    for name, number in (("tol", tol), ("eps", eps)):
        if number is not None and not (np.isfinite(number) and number >= 0):
            raise UsageError(f"{name}: expected a number >= 0, found {number}")
    if max_passes < 1:
        raise UsageError(f"max_passes: expected at least 1, found {max_passes}")
    return None if tol is None else float(tol), None if eps is None else float(eps), int(max_passes)


def read_code(path: str | Path) -> list[list[int]]:
    """Read a code matrix: a line per class (ascending labels) of -1, 0 and +1, separated by blanks or commas."""
    rows: list[list[int]] = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            tokens = line.replace(",", " ").split()
            if not tokens:
                continue
            width = len(rows[0]) if rows else len(tokens)
            if len(tokens) != width or not set(tokens) <= {"-1", "0", "1", "+1"}:
                raise UsageError(
                    f"{path}, line {number}: expected {width} entries of -1, 0, +1 (a line per class), "
                    f"found {line.strip()[:60]!r}"
                )
            rows.append([int(token) for token in tokens])
    if not rows:
        raise UsageError(f"{path}: expected a line of -1, 0, +1 per class, found none")
    return rows

"""Every combination of loss, method, penalty and bias ends at an optimum that is exact, with certificates true in 50 digits.

The combinations are the registry's: what is added there is judged here. The optimum of each small problem is found by
`exact_optimum`, which has nothing from the package. Each is judged twice, after two reads and at its end, in small
windows: the primal objective that it reports is that of its weights, within the rounding that it states, and the gap is not
below the true one.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.sparse as sp
from exact_optimum import Model, exact_objective, least_objective, least_of_many, model
from mpmath import mp, mpf, nstr
from reference import OF_CLASSES, augmented, run_weights, signs_of
from scipy.optimize import linprog
from small_datasets import windows_of, write_dataset

import streamcd
from streamcd import ConvergenceWarning, Dataset, make_columns, resume, train
from streamcd.kernels.loss_table import INLIERS, LOSSES, PLANES
from streamcd.solvers.registry import SOLVERS, SolverEntry
from tools.methods_table import trains

TOL, DIGITS = 3e-9, 50
REACHED = 1e-8  # of the optimum
OF_PROGRAMS = (
    1e-4  # L1 with a loss without curvature, a linear program: most reach TOL too, some not in 20,000 passes
)

PENALTIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "l2": {"penalty": "l2", "l2": 2.5},
    "l1": {"penalty": "l1", "l1": 0.3},
    "elasticnet": {"penalty": "elasticnet", "l1": 0.3, "l2": 0.5},
    "none": {"penalty": "none"},
}
BIASES: dict[str, dict[str, Any]] = {
    "none": {"bias": -1.0},
    "bias": {"bias": 1.0},
    "free": {"bias": 1.0, "unpenalized_bias": True},
}

# ---------------------------------------------------------------------------------------------------------------------
# Ten small problems


@dataclass(frozen=True)
class Small:
    """Rows with classes and with targets."""

    x: np.ndarray
    y: np.ndarray
    target: np.ndarray
    C: float = 1.0
    weight: np.ndarray | None = None
    class_weight: dict[float, float] | None = None


def _rows(seed: int, n: int, d: int, density: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, two noisy classes, and noisy linear targets."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d)) * (rng.random((n, d)) < density)
    score = x @ rng.standard_normal(d) + 0.7 * rng.standard_normal(n)
    y = np.where(score > 0, 1.0, -1.0)
    y[:2] = 1.0, -1.0
    return x, y, score


def _few_rows() -> Small:
    x, _, target = _rows(3, 4, 6)
    return Small(x, np.array([1.0, -1.0, 1.0, 1.0]), target)


def _sparse_wide() -> Small:
    return Small(*_rows(2, 25, 60, 0.1), C=3.0)


def _duplicated_features() -> Small:
    x, y, target = _rows(4, 40, 4)
    return Small(np.hstack([x, x[:, :1], -x[:, 1:2], 2 * x[:, 2:3]]), y, target, C=0.5)


def _weighted() -> Small:
    weight = np.random.default_rng(5).choice([0.0, 0.5, 1.0, 3.0], 40)
    weight[:2] = 1.0
    return Small(*_rows(5, 40, 6), C=0.7, weight=weight)


def _unbalanced() -> Small:
    x, _, _ = _rows(6, 50, 5)
    rare = np.arange(50) % 25 == 0
    return Small(x, np.where(rare, 1.0, -1.0), np.where(rare, 4.0, 0.0), class_weight={1.0: 5.0, -1.0: 0.5})


def _three_classes() -> Small:
    """And targets some of which are far away from all others."""
    x, _, target = _rows(7, 45, 5)
    rng = np.random.default_rng(7)
    y = (x @ rng.standard_normal((5, 3)) + 0.5 * rng.standard_normal((45, 3))).argmax(axis=1)
    return Small(x, 2.0 * y, target + 0.3 * rng.standard_t(1.2, 45), C=0.4)


def _offset() -> Small:
    x, y, target = _rows(8, 40, 4)
    return Small(x + 1.5, y, target + 20.0, C=0.2)


def _equal_rows() -> Small:
    _, y, target = _rows(9, 20, 3)
    return Small(np.tile([[1.0, -2.0, 0.5]], (20, 1)), y, target + 3.0)


def _empty_rows_and_columns() -> Small:
    x, y, target = _rows(10, 40, 8, 0.5)
    x[[0, 1, 7, 39]] = 0.0
    x[:, [0, 3, 7]] = 0.0
    return Small(x, y, target, C=2.0)


def _unscaled() -> Small:
    x, y, target = _rows(11, 40, 4)
    return Small(x * np.array([0.05, 1.0, 1.0, 5.0]), y, target, C=0.3)


def _many_columns() -> Small:
    """Far more columns than rows, most of which are beyond their bound at first where there is an l1."""
    rng = np.random.default_rng(12)
    x = np.round(sp.random_array((100, 3200), density=0.01, rng=rng, format="csr").toarray(), 3)
    target = x[:, :80].sum(axis=1)
    target += 0.1 * rng.standard_normal(100) - np.median(target)
    return Small(x, np.where(target > 0, 1.0, -1.0), target)


SMALL: dict[str, Callable[[], Small]] = {
    "few_rows": _few_rows,
    "sparse_wide": _sparse_wide,
    "duplicated_features": _duplicated_features,
    "weighted": _weighted,
    "unbalanced": _unbalanced,
    "three_classes": _three_classes,
    "offset": _offset,
    "equal_rows": _equal_rows,
    "empty_rows_and_columns": _empty_rows_and_columns,
    "unscaled": _unscaled,
}
MANY = "many_columns"
small = functools.cache(lambda name: _many_columns() if name == MANY else SMALL[name]())


# ---------------------------------------------------------------------------------------------------------------------
# Combinations


class Combination(NamedTuple):
    """What is trained; `slack` is of twin planes."""

    entry: SolverEntry
    penalty: str
    bias: str
    slack: str = ""

    @property
    def is_linear(self) -> bool:
        return self.penalty == "l1" and not LOSSES[self.entry.loss].smooth

    def __str__(self) -> str:
        loss, method = self.entry.loss, self.entry.method
        return "-".join(filter(None, (loss, self.slack, method, self.penalty, self.bias)))


def _numbers(strengths: dict[str, Any]) -> dict[str, float]:
    """λ and r of a penalty."""
    if strengths.get("penalty") == "none":
        return {"l1": 0.0, "l2": 0.0}
    return {"l1": strengths.get("l1", 0.0), "l2": strengths.get("l2", 0.0 if "l1" in strengths else 1.0)}


def _combinations() -> list[Combination]:
    made = []
    for entry in SOLVERS:
        form = LOSSES[entry.loss].form
        penalties = [name for name, strengths in PENALTIES.items() if trains(entry, **_numbers(strengths))]
        biases = (
            ["none"]
            if form == INLIERS
            else ["none", "bias", "free"]
            if entry.frees_bias
            else ["none", "bias"]
        )
        slacks = ["hinge", "squared_hinge"] if form == PLANES else [""]
        made += [Combination(entry, p, b, s) for p in penalties for b in biases for s in slacks]
    return made


COMBINATIONS = _combinations()


@functools.cache
def optimum_of(
    loss: str, penalty: str, bias: str, slack: str, name: str
) -> tuple[tuple[Model, Any, Any], ...]:
    """Every lane's problem, least objective, and the error of that."""
    least = least_of_many if name == MANY else least_objective
    return tuple((given, *least(given)) for given in models_of(loss, penalty, bias, slack, small(name)))


def models_of(loss: str, penalty: str, bias: str, slack: str, given: Small) -> list[Model]:
    """The problem of every lane, as `exact_optimum` takes it."""
    weight = np.ones(given.y.size) if given.weight is None else given.weight
    if loss == "one_class":
        x, nu = np.hstack([np.abs(given.x), np.ones((given.y.size, 1))]), LOSSES[loss].parameter.default
        return [model(loss, x, given.y, weight, free=True, parameter=nu)]
    x, cost = augmented(sp.csr_array(given.x), BIASES[bias]["bias"]), given.C * weight
    parameter = LOSSES[loss].parameter
    options: dict[str, Any] = {
        **_numbers(PENALTIES[penalty]),
        "free": bias == "free",
        "parameter": 0.0 if parameter is None else parameter.default,
    }
    if LOSSES[loss].of_targets:
        return [model(loss, x, given.target, cost, **options)]
    classes, place = np.unique(given.y, return_inverse=True)
    factors = given.class_weight or {}
    cost = cost * np.array([factors.get(label, 1.0) for label in classes])[place]
    if loss in OF_CLASSES:
        return [model(loss, x, place, cost, **options)]
    if LOSSES[loss].form == PLANES:  # margins of the other classes' rows are positive
        own = [place == k for k in range(classes.size)]
        return [
            model(slack, x, 1.0 - 0.0 * place, np.where(rows, 0.0, cost), own=weight * rows, **options)
            for rows in own
        ]
    return [model(loss, x, sign, cost, **options) for sign in signs_of(given.y, classes).T]


def _names_for(combination: Combination) -> list[str]:
    """Name the problems that have an optimum; without a penalty some have none, or one of 0."""
    if combination.penalty != "none":
        return list(SMALL)
    return [name for name in SMALL if _bounds_weights(combination, small(name))]


def _bounds_weights(combination: Combination, given: Small) -> bool:
    """Tell whether no direction lowers the losses for ever, by linear programs, and targets are not all met."""
    lanes = models_of(combination.entry.loss, "none", combination.bias, "", given)
    for lane in lanes:
        x, y = lane.x[lane.cost > 0], lane.y[lane.cost > 0]
        if lane.loss == "squared_error":
            if np.linalg.matrix_rank(np.column_stack([x, y])) == np.linalg.matrix_rank(x):
                return False
            continue
        if lane.loss == "multinomial":
            eye = np.eye(int(y.max()) + 1)
            pairs = [(row, int(k), m) for row, k in zip(x, y, strict=True) for m in range(eye.shape[0])]
            margins = np.array([np.kron(eye[k] - eye[m], row) for row, k, m in pairs if m != k])
        else:
            margins = y[:, None] * x
        ahead = linprog(-margins.sum(axis=0), A_ub=-margins, b_ub=np.zeros(len(margins)), bounds=(-1, 1))
        if ahead.fun < -1e-9:
            return False
    return True


ALL = [(one, name) for one in COMBINATIONS for name in _names_for(one)]
# by the methods for many columns, of one vector; L1 alone takes rows thousands of passes
ALL += [
    (one, MANY)
    for one in COMBINATIONS
    if one.entry.loss not in OF_CLASSES
    and (one.entry.method, one.penalty)
    in {("working-set", "l1"), ("working-set", "elasticnet"), ("dual", "elasticnet")}
]
FEW = [
    (one, names[3 * k % len(names)])
    for k, (one, names) in enumerate((one, _names_for(one)) for one in COMBINATIONS)
    if k % 5 == 0
]
"""For the fast tests: every fifth combination, on one problem after the other."""


@pytest.fixture(scope="module")
def dataset_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, SolverEntry], Dataset]:
    """``dataset_of(name, entry)``, with both layouts; a single class lies to one side of the origin."""

    @functools.cache
    def make(name: str, of_targets: bool, one_class: bool) -> Dataset:
        given, path = small(name), tmp_path_factory.mktemp(name) / "data"
        fields: dict[str, Any] = {}
        if of_targets:
            targets = {"min": float(given.target.min()), "max": float(given.target.max())}
            fields = {"classes": None, "class_counts": None, "label_kind": "decimal", "targets": targets}
        x = sp.csr_array(np.abs(given.x) if one_class else given.x)
        rows = x, given.target if of_targets else given.y
        dataset = write_dataset(
            path, rows, n_chunks=min(3, given.y.size), weight=given.weight, value_dtype=np.float64, **fields
        )
        size = 20 if name == MANY else 1
        make_columns(dataset, chunk_size=200 * size, shard_size=1500 * size)
        return streamcd.open(path)

    return lambda name, entry: make(name, entry.of_targets, LOSSES[entry.loss].form == INLIERS)


def judge(run: Path, result: Any, combination: Combination, name: str) -> None:
    """Compare what is reported with the weights in fifty digits, and with the optimum."""
    entry, penalty, bias, slack = combination
    lanes = optimum_of(entry.loss, penalty, bias, slack, name)
    free, reached = entry.loss == "one_class", OF_PROGRAMS if combination.is_linear else REACHED
    w = run_weights(run, 1.0 if free else BIASES[bias]["bias"])
    with np.load(run / "state.npz") as archive:
        told = {key: archive[f"lane_{key}"] for key in ("primal", "gap", "primal_rounding", "converged")}
    vectors = np.split(w, w.shape[1] if w.shape[1] == len(lanes) else 1, axis=1)
    with mp.workdps(DIGITS):
        for lane, ((given, least, error), own) in enumerate(zip(lanes, vectors, strict=True)):
            primal, gap = (mpf(float(told[key][lane])) for key in ("primal", "gap"))
            exact = exact_objective(given, own)
            rounded = mpf(10) ** -14 * abs(least)  # the program's numbers are products in float64
            assert error <= rounded, "the reference is not exact"
            assert exact >= least - rounded
            assert abs(primal - exact) <= mpf(float(told["primal_rounding"][lane])), (
                "beyond the stated rounding"
            )
            true_gap = exact - least
            assert gap * (1 + mpf(2) ** -25) + rounded >= true_gap, (
                f"{nstr(gap, 5)} is reported, {nstr(true_gap, 5)} is true"
            )
            assert result.lanes[lane]["dual_objective"] <= least + rounded
            if told["converged"][lane]:
                assert true_gap <= reached * abs(least), f"{nstr(true_gap / abs(least), 3)} above the optimum"


def assert_exact(combination: Combination, name: str, dataset: Dataset, run: Path) -> None:
    """Train two reads, judge, resume to the end, judge again."""
    entry, given = combination.entry, small(name)
    asked: dict[str, Any] = PENALTIES[combination.penalty] | BIASES[combination.bias]
    if LOSSES[entry.loss].form != INLIERS:
        asked["C"] = given.C
        if not entry.of_targets:
            asked["class_weight"] = given.class_weight
    if combination.slack:
        asked["slack"] = combination.slack
    asked |= {"loss": entry.loss, "method": entry.method, "memory": "1GB", "max_passes": 2}
    asked["tol"] = OF_PROGRAMS if combination.is_linear else TOL
    plan = windows_of(dataset, 2) if entry.layout == "rows" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = train(dataset, run, plan=plan, **asked)
        judge(run, result, combination, name)
        if not result.converged:
            result = resume(run, max_passes=20_000)
    judge(run, result, combination, name)
    assert result.converged, f"a gap of {result.gap:.3g} after {result.passes} passes: {result.stop_reason}"


@pytest.mark.parametrize(("combination", "name"), FEW, ids=str)
def test_ends_at_the_exact_optimum_with_true_certificates(
    tmp_path: Path, dataset_of: Callable[[str, SolverEntry], Dataset], combination: Combination, name: str
) -> None:
    assert_exact(combination, name, dataset_of(name, combination.entry), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize(("combination", "name"), ALL, ids=str)
def test_every_combination_ends_at_the_exact_optimum_with_true_certificates(
    tmp_path: Path, dataset_of: Callable[[str, SolverEntry], Dataset], combination: Combination, name: str
) -> None:
    assert_exact(combination, name, dataset_of(name, combination.entry), tmp_path / "run")

"""Proof from outside: for each loss, method and bias the gap that is reported is at least the true one.

The optimum of each small problem is found in fifty digits by `exact_optimum`, which has nothing from the package. Every
training is judged twice, after two passes and at its end: the primal objective reported is that of the model's weights, and
what it is above the optimum is at most the gap reported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import exact_optimum
import numpy as np
import pytest
from mpmath import mp, mpf, nstr

import streamcd

TOL = 1e-7
ROUNDED = mpf(10) ** -13  # of the optimum: the problem's numbers are products in float64
BIASES: dict[str, dict[str, Any]] = {
    "no bias": {"bias": "none"},
    "penalised": {"bias": 1.0},
    "unpenalised": {"bias": 1.0, "unpenalized_bias": True},
}
PENALTIES: dict[str, dict[str, Any]] = {
    "l2": {},
    "l1": {"penalty": "l1", "l1": 0.3},
    "elasticnet": {"penalty": "elasticnet", "l1": 0.3, "l2": 0.5},
}
SMOOTH = ("newton", "working-set")
METHODS = {
    "squared_hinge": ("dual", "primal", "online", *SMOOTH),
    "hinge": ("dual",),
    "log_loss": ("dual", "primal", "online", *SMOOTH),
    "crammer_singer": ("dual",),
    "multinomial": ("dual",),
    "twin": ("dual", "sor"),
    "squared_error": ("dual", "primal", *SMOOTH),
    "epsilon_insensitive": ("dual",),
    "squared_epsilon_insensitive": ("dual", "primal", *SMOOTH),
    "huber": ("dual", "primal", *SMOOTH),
    "quantile": ("dual",),
}
PARAMETERS = {
    "epsilon_insensitive": {"epsilon": 0.25},
    "squared_epsilon_insensitive": {"epsilon": 0.25},
    "huber": {"delta": 0.5},
    "quantile": {"quantile": 0.7},
}
OF_CLASSES = ("crammer_singer", "multinomial", "twin")
OF_TARGETS = ("squared_error", *PARAMETERS)


class Case(NamedTuple):
    """A training; `rows` are "classes", "targets" or "large targets"."""

    loss: str
    method: str
    bias: str
    penalty: str = "l2"
    rows: str = "classes"
    slack: str = ""

    def __str__(self) -> str:
        return ", ".join(filter(None, self))


def cases() -> list[Case]:
    """Every loss by each of its methods, with each bias and penalty that they take."""
    made = []
    for loss, methods in METHODS.items():
        sorts = ("targets", "large targets") if loss in OF_TARGETS else ("classes",)
        for method in methods:
            penalties = tuple(PENALTIES) if method in SMOOTH else ("l2",)
            slacks = ("hinge", "squared_hinge") if loss == "twin" else ("",)
            for bias in [*BIASES][: 2 if loss == "twin" else 3]:
                made += [Case(loss, method, bias, *at) for at in _products(penalties, sorts, slacks)]
    return made


def _products(*lists: tuple[str, ...]) -> list[tuple[str, ...]]:
    return functools.reduce(lambda made, list_: [(*one, it) for one in made for it in list_], lists, [()])


@functools.cache
def rows(sort: str, n_classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels or targets, and weights: noisy, no plane separates them, and the means are not 0.

    Targets are such that those less epsilon are exact, as `exact_optimum` takes them.
    """
    rng = np.random.default_rng(3)
    x = rng.standard_normal((30, 4)) * [1.0, 2.0, 0.5, 1.0] + [0.0, 1.0, 0.0, 0.5]
    scores = x @ rng.standard_normal((4, 3)) + rng.standard_normal((30, 3)) * 2.0
    if sort == "classes":
        y = scores.argmax(axis=1) if n_classes == 3 else np.where(scores[:, 0] > 0.5, 1, -1)
    else:
        y = np.round(2**10 * scores[:, 0]) / 2**10 + (1e6 if sort == "large targets" else 2.0)
    return x, y.astype(np.float64), rng.choice([0.5, 1.0, 2.0], 30)


def n_classes_of(loss: str) -> int:
    return 3 if loss in OF_CLASSES else 2


@functools.cache
def optima(loss: str, bias: str, penalty: str, sort: str, slack: str) -> list[tuple[Any, Any]]:
    """The problem of every lane, and its least objective."""
    x, y, weight = rows(sort, n_classes_of(loss))
    strengths = PENALTIES[penalty]
    given: dict[str, Any] = {
        "l1": strengths.get("l1", 0.0),
        "l2": strengths.get("l2", 0.0 if penalty == "l1" else 1.0),
        "free": bias == "unpenalised",
        "parameter": next(iter(PARAMETERS.get(loss, {}).values()), 0.0),
    }
    if bias != "no bias":
        x = np.hstack([x, np.ones((y.size, 1))])
    make = exact_optimum.model
    if loss == "twin":  # rows of the other classes are on the positive side
        own = [y == label for label in range(3)]
        lanes = [
            make(slack, x, np.ones(y.size), np.where(o, 0.0, weight), own=weight * o, **given) for o in own
        ]
    else:
        lanes = [make(loss, x, y, weight, **given)]
    found = []
    for lane in lanes:
        least, error = exact_optimum.least_objective(lane)
        assert error <= ROUNDED * abs(least) / 10, "the reference is not exact"
        found.append((lane, least))
    return found


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Any]:
    """``dataset(sort, n_classes)`` has rows and columns."""

    @functools.cache
    def make(sort: str, n_classes: int) -> Any:
        path = tmp_path_factory.mktemp("proof") / "data"
        of_targets = {"target": True} if sort != "classes" else {}
        data = streamcd.convert(rows(sort, n_classes), path, dtype="float64", **of_targets)
        streamcd.make_columns(data)
        return streamcd.open(path)

    return make


def judge(run: Path, result: Any, case: Case) -> None:
    """Compare what is reported with the model's weights in fifty digits, and with the optimum."""
    model = streamcd.load_model(run)
    w = model.weights if case.bias == "no bias" else np.vstack([model.weights, model.intercept])
    lanes = optima(case.loss, case.bias, *case[3:])
    vectors = np.split(w, w.shape[1], axis=1) if case.loss == "twin" else [w]
    assert len(result.lanes) == len(lanes)
    with mp.workdps(50):
        for told, (given, least), own in zip(result.lanes, lanes, vectors, strict=True):
            primal, exact = mpf(told["primal_objective"]), exact_optimum.exact_objective(given, own)
            assert abs(primal - exact) <= 1e-9 * abs(exact), f"{nstr(primal, 12)} for {nstr(exact, 12)}"
            size = max(abs(primal), mpf("1e-9") * exact_optimum.exact_objective(given, np.zeros_like(own)))
            gap, true = mpf(told["gap"]) * size, exact - least
            rounded = ROUNDED * abs(least)
            assert true >= -rounded
            assert gap * (1 + mpf(10) ** -8) + rounded >= true, (
                f"{nstr(gap, 5)} is told, {nstr(true, 5)} true"
            )
            assert told["dual_objective"] <= least + rounded + mpf(10) ** -15 * abs(primal)
            if told["converged"]:
                assert true <= TOL * size + rounded


@pytest.mark.filterwarnings("ignore::streamcd.ConvergenceWarning")
@pytest.mark.parametrize("case", cases(), ids=str)
def test_the_gap_is_at_least_the_true_one(tmp_path: Path, dataset: Callable[..., Any], case: Case) -> None:
    asked = BIASES[case.bias] | PENALTIES[case.penalty] | PARAMETERS.get(case.loss, {})
    if case.slack:
        asked["slack"] = case.slack
    if case.rows == "large targets" and case.method == "dual":  # see below
        asked["acceleration"] = "none"
    run = tmp_path / "run"
    data = dataset(case.rows, n_classes_of(case.loss))
    result = streamcd.train(data, run, loss=case.loss, method=case.method, tol=TOL, max_passes=2, **asked)
    judge(run, result, case)
    if not result.converged:
        result = streamcd.resume(run, max_passes=20_000)
        judge(run, result, case)
    assert result.converged, f"a gap of {result.gap:.3g} after {result.passes} passes: {result.stop_reason}"


@pytest.mark.filterwarnings("ignore::streamcd.ConvergenceWarning")
def test_targets_of_another_scale_take_no_more_passes(tmp_path: Path) -> None:
    x, y, weight = rows("targets", 2)
    passes = []
    for scale in (1.0, 1e6):
        data = streamcd.convert((x, scale * y, weight), tmp_path / f"{scale}", target=True, dtype="float64")
        run = tmp_path / f"run {scale}"
        result = streamcd.train(data, run, loss="squared_error", method="dual", tol=TOL, max_passes=400)
        passes.append(result.passes)
    assert passes[1] < 2 * passes[0]

"""Twin planes by both routes: the same planes, a QP solver's objective, certificates, kills, the nearest plane's class."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from exact_optimum import model, nearly_least
from made_models import model_of
from reference import augmented, loss_values, run_weights
from small_datasets import (
    multiclass,
    random_rows,
    write_dataset,
)

import streamcd
from streamcd import Model, Result, load_model, train, tune
from streamcd.core.errors import ModelError, UsageError
from streamcd.kernels.loss_table import TWIN_SQUARED_HINGE
from streamcd.solvers.problem import make_problem

METHODS = ["dual", "sor"]
SLACKS = ["hinge", "squared_hinge"]
TOL = 1e-5
FIT = {"loss": "twin", "tol": TOL, "max_passes": 20_000}


def primal(
    x: np.ndarray, y: np.ndarray, w: np.ndarray, *, C: float | np.ndarray = 1.0, ridge: float = 1.0,
    slack: str = "hinge", weight: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Objective of every plane, from the formula."""
    weight = np.ones(y.size) if weight is None else weight
    objectives = []
    for label, plane in zip(np.unique(y), w.T, strict=True):
        h, own = x @ plane, y == label
        hugged = 0.5 * float(weight[own] @ h[own] ** 2)
        kept_off = float((weight * C)[~own] @ loss_values(slack, h[~own]))
        objectives.append(hugged + 0.5 * ridge * float(plane @ plane) + kept_off)
    return np.array(objectives)


def optimum(
    x: np.ndarray, y: np.ndarray, *, C: float = 1.0, ridge: float = 1.0, slack: str = "hinge"
) -> np.ndarray:
    """Objective of every plane at the optimum."""
    best = []
    for label in np.unique(y):
        own = 1.0 * (y == label)
        plane = model(slack, x, np.ones(y.size), C * (1.0 - own), l2=ridge, own=own)
        best.append(nearly_least(plane))
    return np.array(best)


# ---------------------------------------------------------------------------------------------------------------------
# The optimum


def test_a_small_ridge_is_slow_by_one_route_and_not_by_the_other(
    fit: Callable[..., Result], tmp_path: Path
) -> None:
    dataset = write_dataset(tmp_path / "data", random_rows())
    dual, classic = (
        fit(dataset, method=method, ridge=0.01, max_passes=300, acceleration="none") for method in METHODS
    )
    assert not dual.converged
    assert classic.converged
    assert classic.passes < 100
    # certificates by different ways agree about where the optimum can be
    assert max(dual.dual_objective, classic.dual_objective) <= min(
        dual.primal_objective, classic.primal_objective
    )


# ---------------------------------------------------------------------------------------------------------------------
# Weights


@pytest.mark.parametrize("method", METHODS)
def test_class_weights_make_C_differ_by_plane(
    fit: Callable[..., Result], tmp_path: Path, method: str
) -> None:
    """They are factors of C for the rows of a label, which stand on the far side of the other plane."""
    rows = random_rows(80, 6, seed=32)
    dataset = write_dataset(tmp_path / "data", rows)
    result = fit(
        dataset, method=method, C=0.5, class_weight={-1.0: 4.0}, windows=None, tol=1e-8, max_passes=5000
    )
    plain = [fit(dataset, method=method, C=C, windows=None, tol=1e-8, max_passes=5000) for C in (0.5, 2.0)]
    # plane -1 keeps the rows of +1 off, whose C is 0.5; plane +1 those of -1, whose C is 4 times that
    for number in (0, 1):
        lane = plain[number].lanes[number]
        assert result.lanes[number]["primal_objective"] == pytest.approx(lane["primal_objective"], rel=1e-7)
    cost = np.where(rows[1] < 0, 2.0, 0.5)
    found = primal(augmented(rows[0], -1), rows[1], result.model.weights, C=cost)
    assert found.sum() == pytest.approx(result.primal_objective, rel=1e-9)
    assert streamcd.evaluate(dataset, result.model)["primal_objective"] == pytest.approx(
        found.sum(), rel=1e-9
    )
    assert result.model.class_weight == {-1.0: 4.0}


# ---------------------------------------------------------------------------------------------------------------------
# The nearest plane


def planes(weights: list[list[float]], intercept: list[float], **changed: Any) -> Model:
    n = len(intercept)
    fields: dict[str, Any] = {
        "weights": np.array(weights, dtype=float).T,
        "intercept": np.array(intercept, dtype=float),
        "classes": np.arange(n) * 10.0,
        "code": np.eye(n),
        "loss": "twin",
        "C": 1.0,
        "bias": 1.0,
    }
    return model_of(**(fields | changed))


def decide(model: Model, x: list[list[float]]) -> list[float]:
    rows = sp.csr_array(np.array(x, dtype=float))
    decisions, _ = model.decisions(rows.indptr.astype(np.int64), rows.indices, rows.data)
    return model.predicted(decisions).tolist()


def test_predicts_the_nearest_plane() -> None:
    """The distance is |w·x + b| / ‖w‖, the norm without the bias's entry."""
    model = planes([[1.0, 0.0], [0.0, 10.0]], [-1.0, 0.0])  # the lines x = 1 and y = 0
    assert decide(model, [[1.0, 5.0], [5.0, 1.0], [1.5, 0.4], [1.5, 0.6]]) == [0.0, 10.0, 10.0, 0.0]
    # were the bias's entry part of the norm, the first line would seem nearer by a factor of √2
    assert decide(model, [[2.0, 0.9]]) == [10.0]


def test_a_plane_without_weights_is_infinitely_far() -> None:
    model = planes([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [0.0, 0.0, 0.0])
    assert decide(model, [[0.0, 0.0], [1.0, 7.0]]) == [10.0, 20.0]
    assert np.isneginf(model.decoder.scores(np.ones((1, 3)))[0, 0])
    both = planes([[0.0, 0.0], [0.0, 0.0]], [0.0, 0.0])
    assert decide(both, [[1.0, 1.0]]) == [0.0]


def test_evaluate_and_predict_are_by_distance(fit: Callable[..., Result], tmp_path: Path) -> None:
    rows = multiclass()
    dataset = write_dataset(tmp_path / "data", rows)
    result = fit(dataset, bias=1.0, ridge=2.0, C=0.3, slack="squared_hinge")
    w = run_weights(Path(result.run), 1.0)
    distance = np.abs(augmented(rows[0], 1.0) @ w) / np.linalg.norm(w[:-1], axis=0)
    labels = np.unique(rows[1])[distance.argmin(axis=1)]
    evaluation = streamcd.evaluate(dataset, result.run)
    assert evaluation["accuracy"] == np.mean(labels == rows[1])
    assert evaluation["accuracy"] > 0.6
    assert evaluation["primal_objective"] == pytest.approx(result.primal_objective, rel=1e-9)
    streamcd.predict(dataset, result.run, tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["prediction"].to_pylist() == labels.tolist()
    np.testing.assert_allclose(table["decision_-4"].to_numpy(), -distance[:, 0], rtol=1e-9)


def test_the_decision_of_two_classes_is_a_difference_of_distances(
    fit: Callable[..., Result], tmp_path: Path
) -> None:
    x, y = random_rows()
    dataset = write_dataset(tmp_path / "data", (x, y))
    result = fit(dataset, C=0.3)
    streamcd.predict(dataset, result.run, tmp_path / "out.parquet")
    decision = pq.read_table(tmp_path / "out.parquet")["decision"].to_numpy()
    w = result.model.weights
    distance = np.abs(x @ w) / np.linalg.norm(w, axis=0)
    np.testing.assert_allclose(decision, distance[:, 0] - distance[:, 1], rtol=1e-8, atol=1e-12)
    assert 0.5 < streamcd.evaluate(dataset, result.run)["auc"] <= 1.0


def test_a_model_keeps_what_it_is(fit: Callable[..., Result], tmp_path: Path) -> None:
    result = fit(write_dataset(tmp_path / "data", random_rows()), ridge=3.0, slack="squared_hinge", tol=1e-2)
    model = load_model(result.run)
    assert (model.loss, model.ridge, model.slack, model.method) == ("twin", 3.0, "squared_hinge", "dual")
    assert not model.has_probabilities
    with pytest.raises(ModelError, match="nearest plane"):
        streamcd.export(model, tmp_path / "model.txt")
    assert not (tmp_path / "model.txt").exists()


# ---------------------------------------------------------------------------------------------------------------------
# Paths, warm starts, search


@pytest.mark.parametrize(("source", "method"), [("dual", "dual"), ("dual", "sor"), ("sor", "sor")])
@pytest.mark.parametrize("slack", SLACKS)
def test_a_warm_start_begins_at_a_certified_point(
    fit: Callable[..., Result], tmp_path: Path, slack: str, source: str, method: str
) -> None:
    dataset = write_dataset(tmp_path / "data", multiclass())
    options = {"ridge": 2.0, "slack": slack, "bias": 1.0}
    first = fit(dataset, C=1.0, method=source, **options)
    cold = fit(dataset, C=1.1, method=method, **options)
    warm = fit(dataset, C=1.1, method=method, start_from=first.run, **options)
    assert warm.converged
    assert warm.primal_objective == pytest.approx(cold.primal_objective, rel=3 * TOL)
    if slack == "squared_hinge":  # with hinge the last digits take most of the passes, from anywhere
        assert warm.passes < cold.passes
    other = {"ridge": 1.0, "slack": SLACKS[1 - SLACKS.index(slack)]}
    for name, value in other.items():
        with pytest.raises(UsageError, match=f"the run's {name}"):
            fit(dataset, C=1.1, method=method, start_from=first.run, **(options | {name: value}))


def test_a_start_from_the_optimum_is_certified_at_once(fit: Callable[..., Result], tmp_path: Path) -> None:
    """So w is that of the dual variables, and their objective is known before the first step: an estimate says the gap."""
    dataset = write_dataset(tmp_path / "data", multiclass())
    options = {"ridge": 2.0, "C": 0.7, "bias": 1.0}
    for source in METHODS:
        first = fit(dataset, method=source, tol=1e-8, **options)
        again = fit(dataset, method="sor", tol=1e-4, start_from=first.run, **options)
        assert again.passes == 1
        assert again.converged
        np.testing.assert_allclose(again.model.weights, first.model.weights, atol=1e-4)
        log = (Path(again.run) / "log.jsonl").read_text().splitlines()
        primal = json.loads(log[1])["objective_estimate"]
        assert primal == pytest.approx(first.primal_objective, rel=1e-4)


def test_what_a_run_by_sor_does_not_keep_is_not_started_from(
    fit: Callable[..., Result], tmp_path: Path
) -> None:
    dataset = write_dataset(tmp_path / "data", random_rows())
    first = fit(dataset, method="sor", tol=1e-2)
    with pytest.raises(UsageError, match="trained by sor"):
        fit(dataset, method="dual", start_from=first.run)


@pytest.mark.parametrize("method", METHODS)
def test_a_search_scores_by_distance(tmp_path: Path, method: str) -> None:
    rng = np.random.default_rng(3)
    y = rng.integers(0, 3, 240).astype(float)
    centre = np.array([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]])[y.astype(int)]
    x = (centre + 0.3 * rng.standard_normal((240, 3))).astype(np.float32).astype(float)
    dataset = write_dataset(tmp_path / "data", (sp.csr_array(x), y))
    asked: dict[str, Any] = {"loss": "twin", "method": method, "bias": 1.0, "tol": 1e-2}
    result = tune(dataset, tmp_path / "tuned", C=[0.1, 1.0], cv=3, **asked)
    assert result.folds["n_lanes"] == 2 * 3 * 3
    assert result.scores[f"{result.best_C:g}"]["mean"] > 0.9
    assert streamcd.evaluate(dataset, result.run)["accuracy"] > 0.9


# ---------------------------------------------------------------------------------------------------------------------
# What is refused, and said


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"ridge": 0.0}, "ridge: expected a number > 0 .*found 0"),
    ({"ridge": np.inf}, "ridge"),
    ({"slack": "log_loss"}, "slack: expected one of hinge, squared_hinge, found 'log_loss'"),
    ({"code": [[1, -1], [-1, 1]]}, "does not apply"),
    ({"loss": "hinge", "ridge": 1.0}, "ridge and slack are options of the loss twin"),
    ({"loss": "hinge", "slack": "hinge"}, "ridge and slack are options of the loss twin"),
    ({"loss": "hinge", "method": "sor"}, "no solver for hinge by method sor"),
]


@pytest.mark.parametrize(("wrong", "message"), REFUSED)
def test_what_is_wrong_is_refused(tmp_path: Path, wrong: dict[str, Any], message: str) -> None:
    dataset = write_dataset(tmp_path / "data", random_rows())
    with pytest.raises(UsageError, match=message):
        train(dataset, tmp_path / "run", **({"loss": "twin"} | wrong))
    assert not (tmp_path / "run").exists()


def test_a_matrix_that_does_not_fit_is_refused_with_the_arithmetic(tmp_path: Path) -> None:
    x, y = random_rows(50, 9)
    x = sp.csr_array((x.data, x.indices, x.indptr), shape=(50, 20_000))
    dataset = write_dataset(tmp_path / "data", (x, y))
    with pytest.raises(UsageError, match=r"GB weights .* method=\"dual\""):
        train(dataset, tmp_path / "run", loss="twin", method="sor", memory="2GB")
    assert train(dataset, tmp_path / "run", loss="twin", memory="2GB", tol=1e-2).converged


@pytest.mark.slow
def test_planes_are_trained_in_groups_where_their_matrices_do_not_fit_together(tmp_path: Path) -> None:
    x, y = multiclass()
    x = sp.csr_array((x.data, x.indices, x.indptr), shape=(y.size, 3000))
    dataset = write_dataset(tmp_path / "data", (x, y))
    asked: dict[str, Any] = {"loss": "twin", "method": "sor", "tol": 1e-9}
    together, apart = (
        train(dataset, tmp_path / memory, memory=memory, **asked) for memory in ("900MB", "400MB")
    )
    assert not (tmp_path / "900MB" / "group-00").exists()
    assert (tmp_path / "400MB" / "group-01").exists()
    assert apart.primal_objective == pytest.approx(together.primal_objective, rel=1e-8)
    assert len(apart.lanes) == 4


def test_problem_of_twin_planes_in_its_common_form() -> None:
    problem = make_problem(
        loss="twin", classes=np.array([1.0, 2.0, 3.0]), n_features=2, C=[2.0],
        ridge=4.0, factors=np.array([1.0, 3.0, 1.0]), slack="squared_hinge",
    )  # fmt: skip
    np.testing.assert_array_equal(problem.sign, 1.0 - 2.0 * np.eye(3))
    np.testing.assert_allclose(problem.cost, [[0.25, 0.5, 0.5], [1.5, 0.25, 1.5], [0.5, 0.5, 0.25]])
    np.testing.assert_allclose(problem.class_factors(range(3)), [1.0, 3.0, 1.0])
    assert problem.scale == 4.0
    assert problem.row_loss.kind == TWIN_SQUARED_HINGE

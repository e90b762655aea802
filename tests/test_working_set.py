"""Working sets of columns: optima of others, the same bits, budgets, and columns that do not fit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from exact_optimum import model, nearly_least
from interrupted import log
from reference import augmented, run_weights
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from small_datasets import Rows, columns_of, random_rows, unequal_columns
from test_penalties import PENALTIES
from test_penalties import fit as fit_penalised

from streamcd import train
from streamcd.core.errors import UsageError
from streamcd.kernels.loss_table import row_loss
from streamcd.kernels.primal import ColumnCosts, Columns, Scores
from streamcd.solvers.held_solution import HeldSolution
from streamcd.solvers.quadratic_model import MatrixModel, Penalty, minimise
from streamcd.stream.memory_plan import Plan

LOSSES = ("squared_hinge", "log_loss")


fit = partial(fit_penalised, method="working-set", max_passes=300)


def leaning(n_rows: int = 300, n_features: int = 12) -> Rows:
    """Rows that lean to one class."""
    x, y = random_rows(n_rows, n_features, seed=8)
    return x, np.where(np.arange(n_rows) % 6 == 0, 1.0, y)


def wide() -> Rows:
    """More features than rows, a few of which tell the classes apart, and some that no row has."""
    rng = np.random.default_rng(4)
    dense = rng.standard_normal((150, 600)) * (rng.random((150, 600)) < 0.15)
    dense[:, ::50] = 0.0
    y = np.where(dense[:, 3] - dense[:, 7] + dense[:, 11] + 0.3 * rng.standard_normal(150) > 0, 1.0, -1.0)
    return sp.csr_array(dense.astype(np.float32)).astype(np.float64), y


def held(entries: int, columns: int, window: int = 400) -> Plan:
    """A plan with windows of so many entries, and room for as many entries and columns between reads."""
    return Plan(window, 1000, resident=False, held_entries=entries, held_columns=columns)


@pytest.mark.parametrize("loss", LOSSES)
def test_wide_data_have_the_weights_of_liblinear(tmp_path: Path, loss: str) -> None:
    x, y = wide()
    data = columns_of(tmp_path / "data", (x, y))
    fit(data, tmp_path / "run", loss=loss, l1=1.0, C=2.0, tol=1e-10)
    if loss == "log_loss":
        other: Any = LogisticRegression(
            penalty="l1", solver="liblinear", C=2.0, fit_intercept=False, tol=1e-10
        )
    else:
        other = LinearSVC(penalty="l1", dual=False, C=2.0, fit_intercept=False, tol=1e-10, max_iter=100_000)
    expected = other.fit(x.toarray(), y).coef_[0]
    found = run_weights(tmp_path / "run")[:, 0]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert np.array_equal(found == 0.0, np.abs(expected) < 1e-7)
    assert 0 < np.count_nonzero(found) < 200


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    ("plan", "tol"), [(held(4000, 200), 1e-8), (held(1100, 50), 1e-2)], ids=["most", "few"]
)
def test_columns_that_do_not_fit_in_memory_change_nothing_of_the_optimum(
    tmp_path: Path, loss: str, plan: Plan, tol: float
) -> None:
    """Room for all of the support, and for less than it."""
    data = columns_of(tmp_path / "data", wide())
    asked: dict[str, Any] = {"loss": loss, "C": 0.5, "l1": 1.0}
    best = fit(data, tmp_path / "all", **asked).primal_objective
    result = fit(data, tmp_path / "some", plan=plan, **asked | {"tol": tol})
    assert best * (1 - 1e-9) <= result.primal_objective <= best * (1 + tol)
    assert result.gap <= tol


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("penalty", ["l1", "elasticnet"])
def test_a_feature_longer_than_a_window_is_trained_like_others(
    tmp_path: Path, loss: str, penalty: str
) -> None:
    data = columns_of(tmp_path / "data", unequal_columns())
    asked: dict[str, Any] = {"loss": loss, "C": 4.0, "l1": 0.3, "tol": 1e-9}
    best = fit(data, tmp_path / "all", penalty, **asked).primal_objective
    result = fit(data, tmp_path / "some", penalty, plan=held(400, 95, 60), **asked)
    assert result.primal_objective == pytest.approx(best, rel=1e-8)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_certificate_on_the_way_is_below_the_optimum(tmp_path: Path, loss: str) -> None:
    data = columns_of(tmp_path / "data", wide())
    asked: dict[str, Any] = {"loss": loss, "C": 4.0, "bias": 1.0, "l1": 0.7}
    best = fit(data, tmp_path / "best", tol=1e-10, **asked).primal_objective
    fit(data, tmp_path / "run", plan=held(4000, 200), **asked | {"tol": 1e-8})
    lines = log(tmp_path / "run")
    assert len(lines) > 3
    for line in lines:
        assert line["dual"] <= best * (1 + 1e-12) <= line["primal"] * (1 + 1e-9)


def test_a_plan_without_room_for_the_longest_column_is_refused(tmp_path: Path) -> None:
    """It read for ever."""
    dataset = columns_of(tmp_path / "data", random_rows())
    for plan in (Plan(500, 50, resident=False), held(1, 10), held(500, 0)):
        with pytest.raises(UsageError, match="longest column"):
            train(dataset, tmp_path / "run", method="working-set", penalty="l1", plan=plan)
    assert not (tmp_path / "run").exists()


def test_a_start_from_another_run_ends_at_the_same_optimum(tmp_path: Path) -> None:
    rows = leaning()
    data = columns_of(tmp_path / "data", rows)
    asked: dict[str, Any] = {"loss": "log_loss", "bias": 1.0}
    fit(data, tmp_path / "first", C=0.5, **asked)
    result = fit(data, tmp_path / "second", C=1.0, start_from=tmp_path / "first", **asked)
    least = nearly_least(model("log_loss", augmented(rows[0], 1.0), rows[1], l1=PENALTIES["l1"][0], l2=0.0))
    assert result.primal_objective == pytest.approx(least, rel=1e-8)


@pytest.mark.parametrize("n_columns", [60, 700], ids=["few columns", "many columns"])
def test_rows_far_on_the_wrong_side_do_not_stop_the_descent(n_columns: int) -> None:
    """The logistic loss is all but a line there: its own curvature asked for steps of 1e38."""
    rng = np.random.default_rng(2)
    x = sp.csc_array(sp.random_array((200, n_columns), density=0.2, rng=rng, dtype=np.float32)) * 30.0
    w = np.append(rng.standard_normal(n_columns), 0.0) * 30.0
    score = x @ w[:-1]
    kind, none = (score > 0.0).astype(np.uint16), np.zeros(0)  # signs that w has wrong, all of them
    scores = Scores(score, np.zeros_like(score), kind, none, none)
    costs = ColumnCosts(np.array([[1.0], [-1.0]]), row_loss("log_loss"), 0.0, False)
    columns = Columns(x.indptr.astype(np.int64), np.arange(n_columns), x.indices.astype(np.uint32), x.data)
    norm = np.append(np.sqrt(x.multiply(x).sum(axis=0)), 0.0)
    held = HeldSolution(
        scores,
        costs,
        Penalty(1.0, 0.0, free_bias=False),
        columns,
        np.arange(n_columns),
        w,
        norm,
        (0,),
    )

    def objective() -> float:
        margin = np.where(kind, -1.0, 1.0) * (x @ w[:-1])
        return float(np.abs(w).sum() + np.logaddexp(0.0, -margin).sum())

    before = objective()
    held.solve(0.1, 0.0, 100)
    assert objective() < 0.2 * before
    np.testing.assert_allclose(scores.score, x @ w[:-1], atol=1e-6)


def test_a_model_is_solved_where_the_penalty_alone_tells_weights_apart() -> None:
    """Columns of each of several groups add up to 1, so that many weights have the same loss."""
    rng, n_rows, groups, each = np.random.default_rng(6), 400, 12, 9
    chosen = rng.integers(0, each, (n_rows, groups)) + each * np.arange(groups)
    x = np.zeros((n_rows, groups * each))
    np.put_along_axis(x, chosen, 1.0, axis=1)
    target = x @ (3.0 * rng.standard_normal(groups * each)) + rng.standard_normal(n_rows)
    pull, w = x.T @ target, np.zeros(groups * each)
    minimise(MatrixModel(x.T @ x, pull), w, Penalty(1.0, 0.0, free_bias=False))
    support = w != 0.0
    assert 50 < support.sum() < w.size
    np.testing.assert_allclose(pull[support], np.sign(w[support]), atol=1e-6)
    assert np.abs(pull).max() < 1.0 + 1e-6


@pytest.mark.parametrize("loss", LOSSES)
def test_columns_in_memory_are_solved_for_before_a_further_read(tmp_path: Path, loss: str) -> None:
    data = columns_of(tmp_path / "data", wide())
    assert fit(data, tmp_path / "run", loss=loss, l1=1.0, C=0.5, tol=1e-3).passes == 2

"""Working sets of columns for multinomial logistic regression: optima of newton and of scikit-learn, bits, and budgets."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp
from interrupted import ended, train_by_turns
from reference import run_weights
from sklearn.linear_model import LogisticRegression
from small_datasets import Rows, columns_of
from test_penalties import fit as fit_penalised

from streamcd.solvers.working_set_classes import common_part
from streamcd.stream.memory_plan import Plan

K = 4

BIASES: tuple[dict[str, Any], ...] = (
    {"bias": -1.0},
    {"bias": 1.0},
    {"bias": 1.0, "unpenalized_bias": True},
)


def fit(*args: Any, **options: Any) -> Any:
    """Train by working sets, with the defaults of these tests."""
    return fit_penalised(
        *args, **{"method": "working-set", "loss": "multinomial", "max_passes": 100} | options
    )


def rows_of_classes(n_rows: int = 200, n_features: int = 30, share: float = 0.3, seed: int = 0) -> Rows:
    """Rows of four classes that some features tell apart."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n_rows, n_features)) * (rng.random((n_rows, n_features)) < share)
    w = rng.standard_normal((n_features, K)) * (rng.random((n_features, K)) < 0.3)
    y = np.argmax(x @ w + 0.5 * rng.gumbel(size=(n_rows, K)), axis=1)
    return sp.csr_array(x.astype(np.float32)).astype(np.float64), y.astype(np.float64)


@pytest.mark.parametrize("bias", BIASES, ids=["no bias", "bias", "free bias"])
@pytest.mark.parametrize(
    ("penalty", "strengths"),
    [("l1", {"l1": 1.0}), ("elasticnet", {"l1": 0.5, "l2": 0.5}), ("l2", {})],
)
def test_the_optimum_is_that_of_newton(
    tmp_path: Path, penalty: str, strengths: dict[str, float], bias: dict[str, Any]
) -> None:
    data = columns_of(tmp_path / "data", rows_of_classes())
    asked = {"C": 3.0, "tol": 1e-9} | strengths | bias
    best = fit(data, tmp_path / "newton", penalty, method="newton", **asked).primal_objective
    result = fit(data, tmp_path / "run", penalty, **asked)
    assert result.converged
    assert result.primal_objective == pytest.approx(best, rel=2e-9)


@pytest.mark.parametrize("penalty", ["l1", "elasticnet"])
def test_wide_data_have_the_weights_of_scikit_learn(tmp_path: Path, penalty: str) -> None:
    x, y = rows_of_classes(120, 900, 0.1, seed=3)
    data = columns_of(tmp_path / "data", (x, y))
    fit(data, tmp_path / "run", penalty, C=1.0, tol=1e-9, **_halves(penalty))
    asked: dict[str, Any] = {"solver": "saga", "tol": 1e-8, "max_iter": 20_000, "fit_intercept": False}
    share = 1.0 if penalty == "l1" else 0.5
    other = LogisticRegression(penalty="elasticnet", l1_ratio=share, C=1.0, **asked).fit(x, y)
    found = run_weights(tmp_path / "run").T
    scores = [x @ np.asarray(w).T for w in (found, other.coef_)]
    np.testing.assert_allclose(_softmax(scores[0]), _softmax(scores[1]), atol=1e-4)
    assert 0 < np.count_nonzero(found) < 0.5 * found.size


def _halves(penalty: str) -> dict[str, float]:
    return {"l1": 1.0} if penalty == "l1" else {"l1": 0.5, "l2": 0.5}


def _softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def windows(entries: int, columns: int, window: int) -> Plan:
    return Plan(window, 1000, resident=False, held_entries=entries, held_columns=columns)


@pytest.mark.parametrize("penalty", ["l1", "elasticnet"])
@pytest.mark.parametrize("plan", [windows(9000, 500, 3000), windows(1500, 60, 400)], ids=["most", "few"])
def test_columns_that_do_not_fit_in_memory_change_nothing_of_the_optimum(
    tmp_path: Path, penalty: str, plan: Plan
) -> None:
    data = columns_of(tmp_path / "data", rows_of_classes(150, 600, 0.15))
    tol = 1e-8 if plan.held_columns > 100 else 1e-2
    asked = _halves(penalty) | {"C": 0.5}
    best = fit(data, tmp_path / "all", penalty, tol=1e-9, **asked).primal_objective
    result = fit(data, tmp_path / "some", penalty, tol=tol, plan=plan, **asked)
    assert result.gap <= tol
    assert best * (1 - 1e-8) <= result.primal_objective <= best * (1 + tol)


@pytest.mark.parametrize("plan", [None, windows(9000, 500, 3000)], ids=["in memory", "streamed"])
def test_threads_and_interruptions_change_no_bit(tmp_path: Path, plan: Plan | None) -> None:
    data = columns_of(tmp_path / "data", rows_of_classes(150, 600, 0.15))
    train = partial(fit, C=[0.5, 5.0], bias=1.0, unpenalized_bias=True, l1=1.0, plan=plan)
    train(data, tmp_path / "one", threads=1)
    train(data, tmp_path / "five", threads=5)
    train_by_turns(train, data, tmp_path / "stopped", 2, (2, 3))
    assert ended(tmp_path / "one") == ended(tmp_path / "five") == ended(tmp_path / "stopped")


@pytest.mark.parametrize(("l1", "l2"), [(0.0, 1.0), (1.0, 0.0), (0.7, 0.3), (0.01, 2.0)])
@pytest.mark.parametrize("k", [2, 3, 6])
def test_the_common_part_makes_the_penalty_least(l1: float, l2: float, k: int) -> None:
    w = np.random.default_rng(k).standard_normal((k, 20))
    w[0, ::3] = 0.0
    found = common_part(w, l1, l2)
    for column, t in zip(w.T, found, strict=True):

        def penalty(t: float, column: np.ndarray = column) -> float:
            return float((l1 * np.abs(column - t) + 0.5 * l2 * (column - t) ** 2).sum())

        best = scipy.optimize.minimize_scalar(penalty, bracket=(-3.0, 3.0), tol=1e-12)
        assert penalty(float(t)) <= best.fun * (1 + 1e-9)

"""The page on other tools: their objectives with its options, at their optimum."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.optimize
import sklearn.linear_model
import sklearn.svm

import streamcd

STRENGTH, SHARE, N = 0.03, 0.4, 120
"""Another tool's strength of the penalty, its share of L1, and the rows."""


def rows(of_targets: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 5))
    y = 3.0 * (x @ [1.0, -0.5, 0.2, 0.0, 0.0] + 0.4 + rng.normal(size=N))
    return x, y if of_targets else np.where(y > 0, 1.0, -1.0)


def logistic(y: np.ndarray, z: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, -y * z)


def half_square(y: np.ndarray, z: np.ndarray) -> np.ndarray:
    return 0.5 * (y - z) ** 2


def by_mean(loss: Callable[..., np.ndarray], share: float) -> Callable[..., float]:
    """The mean loss plus ``STRENGTH (share ‖w‖₁ + (1 - share)/2 ‖w‖²)``: glmnet's, Spark's and XGBoost's."""

    def objective(w: np.ndarray, b: float, x: np.ndarray, y: np.ndarray) -> float:
        penalty = share * np.abs(w).sum() + 0.5 * (1.0 - share) * w @ w
        return float(loss(y, x @ w + b).mean() + STRENGTH * penalty)

    return objective


def gaussian(w: np.ndarray, b: float, x: np.ndarray, y: np.ndarray) -> float:
    """glmnet's for ``family="gaussian"``: of targets divided by their standard deviation, as are lambda and the weights."""
    s = y.std()
    penalty = SHARE * np.abs(w / s).sum() + 0.5 * (1.0 - SHARE) * (w / s) @ (w / s)
    return float(half_square(y / s, (x @ w + b) / s).mean() + STRENGTH / s * penalty)


def smallest(objective: Callable[..., float], x: np.ndarray, y: np.ndarray) -> float:
    """Minimise over ``w = u - v`` with u, v >= 0: a weight is 0 where both are at their bound."""
    d = x.shape[1]

    def of(p: np.ndarray) -> float:
        w, b = p[:d] - p[d : 2 * d], p[-1]
        return objective(w, b, x, y)

    bounds = [(0.0, None)] * (2 * d) + [(None, None)]
    start = np.zeros(2 * d + 1)
    for method in ("Powell", "L-BFGS-B"):
        options = {"xtol": 1e-12, "ftol": 1e-15, "maxiter": 10**5} if method == "Powell" else {"ftol": 1e-16}
        found = scipy.optimize.minimize(of, start, method=method, bounds=bounds, options=options)
        start = found.x
    return float(found.fun)


class Case(NamedTuple):
    """Another tool's objective, and the options that the page gives."""

    objective: Callable[..., float]
    options: Callable[[float], dict[str, Any]]  # of the standard deviation of the targets
    of_targets: bool = False


ELASTIC = {"penalty": "elasticnet", "l1": STRENGTH * SHARE, "l2": STRENGTH * (1.0 - SHARE)}
CASES = {
    "glmnet and Spark, binomial": Case(by_mean(logistic, SHARE), lambda s: {**ELASTIC, "C": 1.0 / N}),
    "glmnet and Spark, binomial, alpha=1": Case(
        by_mean(logistic, 1.0), lambda s: {"penalty": "l1", "l1": STRENGTH, "C": 1.0 / N}
    ),
    "glmnet and Spark, binomial, alpha=0": Case(
        by_mean(logistic, 0.0), lambda s: {"C": 1.0 / (N * STRENGTH)}
    ),
    "glmnet and Spark, gaussian": Case(
        gaussian, lambda s: {**ELASTIC, "l2": STRENGTH * (1.0 - SHARE) / s, "C": 0.5 / N}, of_targets=True
    ),
    "XGBoost, squared error": Case(
        by_mean(half_square, SHARE), lambda s: {**ELASTIC, "C": 0.5 / N}, of_targets=True
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_options_for_another_tools_objective_lead_to_its_optimum(name: str, tmp_path: Path) -> None:
    objective, options, of_targets = CASES[name]
    x, y = rows(of_targets)
    data = streamcd.convert((x, y), tmp_path / "data", target=of_targets, dtype="float64")
    loss = "squared_error" if of_targets else "log_loss"
    free: dict[str, Any] = {"loss": loss, "bias": 1.0, "unpenalized_bias": True, "tol": 1e-11}
    model = streamcd.train(data, tmp_path / "run", **free, **options(float(y.std()))).model
    found = objective(model.weights[:, 0], float(model.intercept[0]), x, y)
    assert found == pytest.approx(smallest(objective, x, y), rel=1e-8)


@pytest.mark.parametrize(
    ("theirs", "options"),
    [
        (sklearn.svm.LinearSVC(penalty="l1", C=0.1, dual=False), {"penalty": "l1", "C": 0.1}),
        (
            sklearn.linear_model.LogisticRegression(l1_ratio=1.0, C=0.1, solver="saga"),
            {"loss": "log_loss", "penalty": "l1", "C": 0.1},
        ),
        (
            sklearn.linear_model.LogisticRegression(l1_ratio=0.3, C=0.1, solver="saga"),
            {"loss": "log_loss", "penalty": "elasticnet", "l1": 0.3, "l2": 0.7, "C": 0.1},
        ),
        (sklearn.linear_model.Ridge(alpha=2.0), {"loss": "squared_error", "C": 1.0 / (2.0 * 2.0)}),
        (
            sklearn.linear_model.Lasso(alpha=0.2),
            {"loss": "squared_error", "penalty": "l1", "l1": 0.2, "C": 1.0 / (2 * N)},
        ),
        (
            sklearn.linear_model.ElasticNet(alpha=0.2, l1_ratio=0.3),
            {"loss": "squared_error", "penalty": "elasticnet", "l1": 0.06, "l2": 0.14, "C": 1.0 / (2 * N)},
        ),
        (
            sklearn.svm.LinearSVR(epsilon=0.2, C=0.05),
            {"loss": "epsilon_insensitive", "epsilon": 0.2, "C": 0.05},
        ),
    ],
    ids=lambda given: type(given).__name__ if not isinstance(given, dict) else "",
)
def test_the_options_for_an_estimator_lead_to_its_weights(
    theirs: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    of_targets = options.get("loss", "log_loss") in ("squared_error", "epsilon_insensitive")
    x, y = rows(of_targets)
    theirs.set_params(tol=1e-10, max_iter=1_000_000).fit(x, y)
    data = streamcd.convert((x, y), tmp_path / "data", target=of_targets, dtype="float64")
    free = not type(theirs).__name__.startswith("LinearSV")
    asked: dict[str, Any] = {"bias": 1.0, "unpenalized_bias": free, "tol": 1e-9, "max_passes": 20_000}
    model = streamcd.train(data, tmp_path / "run", **asked, **options).model
    assert np.allclose(model.weights[:, 0], np.ravel(theirs.coef_), atol=1e-3)
    assert np.allclose(model.intercept, theirs.intercept_, atol=1e-3)

"""Regressors with scikit-learn's names: its checks, and the factors between its parameters and ours."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import scipy.sparse as sp
import sklearn.linear_model
import sklearn.svm
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.utils.estimator_checks import parametrize_with_checks

import streamcd
from streamcd import ElasticNet, HuberRegressor, Lasso, LinearSVR, Ridge
from streamcd.core.errors import UsageError


def failing(estimator: Any) -> dict[str, str]:
    """The checks that fail, with the reason."""
    if type(estimator) is not LinearSVR:
        return {}
    reason = "two fits to one optimum agree to the tolerance, and the check asks for seven digits"
    return dict.fromkeys(
        (
            "check_sample_weight_equivalence_on_dense_data",
            "check_sample_weight_equivalence_on_sparse_data",
        ),
        reason,
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [
        Ridge(),
        Lasso(alpha=0.1),
        ElasticNet(alpha=0.1),
        HuberRegressor(alpha=0.1),
        LinearSVR(),
    ],
    expected_failed_checks=failing,
)
def test_scikit_learn_finds_nothing_wrong(estimator: Any, check: Any) -> None:
    check(estimator)


def diabetes() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X, y = load_diabetes(return_X_y=True)
    return 10.0 * X, y / 50.0, np.random.default_rng(0).choice([0.5, 1.0, 2.0], y.size)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("method", ["newton", "dual"])
def test_ridge_is_scikit_learns(intercept: bool, method: str) -> None:
    X, y, weight = diabetes()
    ours = Ridge(alpha=3.0, fit_intercept=intercept, method=method, tol=1e-12).fit(X, y, weight)
    theirs = sklearn.linear_model.Ridge(alpha=3.0, fit_intercept=intercept).fit(X, y, weight)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=2e-4)
    assert ours.intercept_ == pytest.approx(float(theirs.intercept_), abs=2e-4)
    assert ours.score(X, y, weight) == pytest.approx(theirs.score(X, y, weight), rel=1e-7)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("l1_ratio", [0.0, 0.4, 1.0])
def test_the_elastic_net_is_scikit_learns(l1_ratio: float, intercept: bool, weighted: bool) -> None:
    X, y, weight = diabetes()
    weight = weight if weighted else None
    given = {"alpha": 0.02, "fit_intercept": intercept}
    ours = ElasticNet(l1_ratio=l1_ratio, tol=1e-12, **given).fit(X, y, weight)
    of_theirs = {"tol": 1e-12, "max_iter": 100_000, **given}
    if l1_ratio:
        theirs = sklearn.linear_model.ElasticNet(l1_ratio=l1_ratio, **of_theirs).fit(X, y, weight)
    else:  # which their coordinate descent does not solve
        given["alpha"] *= y.size if weight is None else weight.sum()
        theirs = sklearn.linear_model.Ridge(**given).fit(X, y, weight)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=2e-5)
    assert ours.intercept_ == pytest.approx(float(theirs.intercept_), abs=2e-5)
    assert np.array_equal(ours.coef_ == 0.0, theirs.coef_ == 0.0)
    assert (ours.coef_ == 0.0).any() or l1_ratio < 1.0


def test_lasso_of_more_features_than_rows_is_scikit_learns() -> None:
    """The dual method, which does not train L1 alone, was chosen from some 1,700 features on."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 2000))
    y = X[:, 0] + rng.normal(size=100)
    theirs = sklearn.linear_model.Lasso(alpha=0.2, tol=1e-9, max_iter=10_000).fit(X, y)
    assert np.allclose(Lasso(alpha=0.2, tol=1e-8).fit(X, y).coef_, theirs.coef_, atol=1e-5)


def test_the_certified_objective_of_the_elastic_net_is_the_stated_one() -> None:
    X, y, weight = diabetes()
    ours = ElasticNet(alpha=0.05, l1_ratio=0.7, tol=1e-10).fit(X, y, weight)
    stated = 0.5 * np.average((y - ours.predict(X)) ** 2, weights=weight)
    stated += 0.05 * (0.7 * np.abs(ours.coef_).sum() + 0.15 * ours.coef_ @ ours.coef_)
    assert ours.model_.certificate["primal_objective"] == pytest.approx(stated, rel=1e-12)


def test_lasso_is_the_elastic_net_of_one_whatever_the_form_of_the_matrix() -> None:
    X, y, _ = diabetes()
    X[np.abs(X) < 0.2] = 0.0
    lasso, net = Lasso(alpha=0.05), ElasticNet(alpha=0.05, l1_ratio=1.0)
    coef = net.fit(X, y).coef_
    for form in (X, sp.csr_array(X), sp.csc_matrix(X), np.asfortranarray(X)):
        assert np.array_equal(lasso.fit(form, y).coef_, coef)
    frame = pd.DataFrame(X, columns=[f"column {j}" for j in range(X.shape[1])])
    assert lasso.fit(frame, y).feature_names_in_.tolist() == list(frame)
    copied = pickle.loads(pickle.dumps(lasso))
    assert np.array_equal(copied.predict(frame), lasso.predict(frame))
    assert clone(lasso).get_params() == lasso.get_params()


@pytest.mark.parametrize("loss", ["epsilon_insensitive", "squared_epsilon_insensitive"])
def test_linear_svr_is_at_most_scikit_learns_objective(loss: str) -> None:
    X, y, weight = diabetes()
    options = {"epsilon": 0.1, "C": 0.5, "loss": loss, "max_iter": 50_000}
    theirs = sklearn.svm.LinearSVR(tol=1e-6, random_state=0, **options).fit(X, y, weight)

    def objective(model: Any) -> float:
        beyond = np.maximum(np.abs(y - model.predict(X)) - 0.1, 0.0)
        norm = model.coef_ @ model.coef_ + float(np.squeeze(model.intercept_)) ** 2
        power = 2 if loss.startswith("squared") else 1
        return float(0.5 * norm + 0.5 * weight @ beyond**power)

    ours = objective(LinearSVR(tol=1e-6, **options).fit(X, y, weight))
    assert ours <= objective(theirs) * (1 + 1e-6)
    assert ours == pytest.approx(objective(theirs), rel=1e-3)


def test_huber_minimises_scikit_learns_objective_at_a_scale_of_one() -> None:
    X, y, weight = diabetes()
    ours = HuberRegressor(epsilon=0.7, alpha=0.5, tol=1e-10).fit(X, y, weight)

    def objective(w: np.ndarray) -> float:
        e = np.abs(y - X @ w[:-1] - w[-1])
        return float(weight @ np.where(e <= 0.7, e * e, 1.4 * e - 0.49) + 0.5 * w[:-1] @ w[:-1])

    best = scipy.optimize.minimize(objective, np.zeros(X.shape[1] + 1), method="BFGS", options={"gtol": 1e-9})
    assert objective(np.append(ours.coef_, ours.intercept_)) == pytest.approx(best.fun, rel=1e-8)


@pytest.mark.parametrize(
    "made",
    [
        Ridge(),
        Lasso(alpha=0.01),
        ElasticNet(alpha=0.01),
        LinearSVR(),
    ],
)
def test_a_dataset_is_fitted_predicted_and_scored_like_its_arrays(made: Any, tmp_path: Path) -> None:
    X, y, weight = diabetes()
    data = streamcd.convert((X, y, weight), tmp_path / "data", target=True, dtype="float64")
    of_data = made.fit(data)
    predicted, score = of_data.predict(data), of_data.score(data)
    of_arrays = made.fit(X, y, weight)
    np.testing.assert_allclose(of_arrays.predict(X), predicted, atol=0.05)
    assert of_arrays.score(X, y, weight) == pytest.approx(score, abs=1e-2)


@pytest.mark.parametrize(
    ("estimator", "said"),
    [
        (Ridge(alpha=-1.0), "Ridge: expected a number > 0 as alpha, found -1.0"),
        (Ridge(alpha="x"), "Ridge: expected a number > 0 as alpha, found 'x'"),
        (Ridge(alpha=np.inf), "Ridge: expected a number > 0 as alpha, found inf"),
        (Ridge(positive=True), "Ridge: expected positive=False, found True"),
        (Lasso(l1_ratio=0.5), "Lasso: expected l1_ratio=1.0, found 0.5; ElasticNet has others"),
        (Lasso(warm_start=True), "Lasso: expected warm_start=False"),
        (ElasticNet(l1_ratio=1.5), "ElasticNet: expected a number >= 0 and <= 1 as l1_ratio, found 1.5"),
        (ElasticNet(max_iter=0), "ElasticNet: expected a number of passes from 1 on as max_iter"),
        (HuberRegressor(epsilon=None), "HuberRegressor: expected a number > 0 as epsilon, found None"),
        (LinearSVR(C="1"), "LinearSVR: expected a number > 0 as C, found '1'"),
        (LinearSVR(tol=-1.0), "LinearSVR: expected a number >= 0 as tol, found -1.0"),
    ],
)
def test_a_parameter_that_will_not_do_is_refused_by_name(estimator: Any, said: str) -> None:
    X, y, _ = diabetes()
    with pytest.raises(UsageError, match=re.escape(said)):
        estimator.fit(X, y)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_intercepts_of_support_vector_regression_have_the_shape_of_scikit_learn(fit_intercept: bool) -> None:
    X, y = np.eye(3), [1.0, 2.0, 3.0]
    ours, theirs = (of(fit_intercept=fit_intercept).fit(X, y) for of in (LinearSVR, sklearn.svm.LinearSVR))
    assert np.shape(ours.intercept_) == np.shape(theirs.intercept_)

"""Regressors with scikit-learn's names: its checks, and the factors between its parameters and ours."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn.linear_model
import sklearn.svm
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.utils.estimator_checks import parametrize_with_checks

from streamcd import ElasticNet, HuberRegressor, Lasso, LinearSVR, Ridge


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


@pytest.mark.parametrize("size", [1e5, 1e6, 1e9])
@pytest.mark.parametrize(
    "estimator",
    [Ridge(), ElasticNet(), Lasso(), HuberRegressor(tol=0.01), LinearSVR(tol=0.01)],
    ids=lambda estimator: type(estimator).__name__,
)
def test_a_gap_means_something_where_large_targets_are_met_exactly(estimator: Any, size: float) -> None:
    """It was 1, without a warning."""
    X = size * np.random.default_rng(0).standard_normal((60, 4))
    ours = clone(estimator).fit(X, X[:, 0])
    assert ours.dual_gap_ <= ours.tol
    assert ours.score(X, X[:, 0]) > 0.999


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


@pytest.mark.parametrize(
    ("estimator", "said"),
    [
        (Ridge(alpha=-1.0), "'alpha' parameter of Ridge"),
        (Ridge(alpha="x"), "'alpha' parameter of Ridge"),
        (Ridge(alpha=np.inf), "'alpha' parameter of Ridge"),
        (Ridge(positive=True), "'positive' parameter of Ridge"),
        (Lasso(l1_ratio=0.5), "'l1_ratio' parameter of Lasso"),
        (Lasso(warm_start=True), "'warm_start' parameter of Lasso"),
        (ElasticNet(l1_ratio=1.5), "'l1_ratio' parameter of ElasticNet"),
        (ElasticNet(max_iter=0), "'max_iter' parameter of ElasticNet"),
        (HuberRegressor(epsilon=None), "'epsilon' parameter of HuberRegressor"),
        (LinearSVR(C="1"), "'C' parameter of LinearSVR"),
        (LinearSVR(tol=-1.0), "'tol' parameter of LinearSVR"),
    ],
)
def test_a_parameter_that_will_not_do_is_refused_by_name(estimator: Any, said: str) -> None:
    X, y, _ = diabetes()
    with pytest.raises(ValueError, match=re.escape(said)):
        estimator.fit(X, y)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_intercepts_of_support_vector_regression_have_the_shape_of_scikit_learn(fit_intercept: bool) -> None:
    X, y = np.eye(3), [1.0, 2.0, 3.0]
    ours, theirs = (of(fit_intercept=fit_intercept).fit(X, y) for of in (LinearSVR, sklearn.svm.LinearSVR))
    assert np.shape(ours.intercept_) == np.shape(theirs.intercept_)

"""Estimators from outside: the optimum of scikit-learn's of the same name, copies, datasets, searches.

Objectives are the same but for
* `TwinSVC`, which scikit-learn has not;
* `HuberRegressor`: scikit-learn estimates the scale of errors, which is 1 here, so scipy's minimum is the judge;
* `LogisticRegression(multi_class="ovr")`, whose problems are those of two classes each;
* `LinearSVC(class_weight=...)` with three classes: scikit-learn weights a class in its own problem only.
"""

from __future__ import annotations

import functools
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import scipy.sparse as sp
import sklearn.linear_model
import sklearn.svm
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

import streamcd

LOGISTIC, SVC, SVR = sklearn.linear_model.LogisticRegression, sklearn.svm.LinearSVC, sklearn.svm.LinearSVR
LINEAR = sklearn.linear_model


def given(kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """120 rows of five features with labels of two or three classes, or targets, and weights."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((120, 5)) * [1.0, 2.0, 1.0, 0.5, 1.0] + [0.0, 1.0, 0.0, 0.0, -0.5]
    scores = x @ rng.standard_normal((5, 3)) + rng.standard_normal((120, 3)) * 1.5
    if kind == "targets":
        y = scores[:, 0] + 3.0
    else:
        y = np.array(["a", "b", "c"])[scores[:, : int(kind[0])].argmax(axis=1)]
    return x, y, rng.choice([0.5, 1.0, 2.0], 120)


# Ours, parameters of both, parameters of ours alone, scikit-learn's with its own, rows, and how far coefficients are apart.
SAME: dict[str, tuple[str, dict[str, Any], dict[str, Any], Callable[..., Any], dict[str, Any], str, float]] = {
    "squared hinge": ("LinearSVC", {"C": 0.5}, {"tol": 1e-9}, SVC, {"tol": 1e-10}, "2 classes", 1e-4),
    "squared hinge, three classes": ("LinearSVC", {"C": 0.5}, {"tol": 1e-9}, SVC, {"tol": 1e-10}, "3 classes", 1e-4),
    "hinge": ("LinearSVC", {"C": 0.5, "loss": "hinge"}, {"tol": 1e-8}, SVC, {"tol": 1e-9}, "2 classes", 2e-3),
    "Crammer–Singer": (
        "LinearSVC", {"C": 0.5, "multi_class": "crammer_singer"}, {"tol": 1e-8}, SVC, {"tol": 1e-9}, "3 classes", 2e-3,
    ),
    "squared hinge, L1": (
        "LinearSVC", {"C": 0.1, "penalty": "l1", "dual": False}, {"tol": 1e-11}, SVC, {"tol": 1e-11}, "2 classes", 1e-4,
    ),
    "balanced classes": (
        "LinearSVC", {"C": 0.5, "class_weight": "balanced"}, {"tol": 1e-9}, SVC, {"tol": 1e-10}, "2 classes", 1e-4,
    ),
    "log loss": ("LogisticRegression", {"C": 0.5}, {"tol": 1e-9}, LOGISTIC, {"tol": 1e-9}, "2 classes", 1e-3),
    "multinomial": ("LogisticRegression", {"C": 0.5}, {"tol": 1e-9}, LOGISTIC, {"tol": 1e-9}, "3 classes", 1e-3),
    "log loss, L1": (
        "LogisticRegression", {"C": 0.2, "l1_ratio": 1.0}, {"tol": 1e-11}, LOGISTIC, {"tol": 1e-9, "solver": "saga"},
        "2 classes", 1e-4,
    ),
    "log loss, elastic net": (
        "LogisticRegression", {"C": 0.2, "l1_ratio": 0.4}, {"tol": 1e-11}, LOGISTIC, {"tol": 1e-9, "solver": "saga"},
        "2 classes", 1e-4,
    ),
    "epsilon-insensitive": ("LinearSVR", {"C": 0.5, "epsilon": 0.3}, {"tol": 1e-8}, SVR, {"tol": 1e-9}, "targets", 3e-3),
    "squared epsilon-insensitive": (
        "LinearSVR", {"C": 0.5, "epsilon": 0.3, "loss": "squared_epsilon_insensitive"}, {"tol": 1e-10}, SVR, {"tol": 1e-10},
        "targets", 1e-4,
    ),
    "ridge": ("Ridge", {"alpha": 2.0}, {"tol": 1e-12}, LINEAR.Ridge, {}, "targets", 1e-4),
    "lasso": ("Lasso", {"alpha": 0.2}, {"tol": 1e-11}, LINEAR.Lasso, {"tol": 1e-12}, "targets", 1e-4),
    "elastic net": (
        "ElasticNet", {"alpha": 0.2, "l1_ratio": 0.3}, {"tol": 1e-11}, LINEAR.ElasticNet, {"tol": 1e-12}, "targets", 1e-4,
    ),
}  # fmt: skip


@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("intercept", [True, False], ids=["intercept", "none"])
@pytest.mark.parametrize("name", SAME)
def test_the_optimum_is_that_of_scikit_learn(name: str, intercept: bool, weighted: bool) -> None:
    of_ours, both, own, of_theirs, others, kind, apart = SAME[name]
    x, y, weight = given(kind)
    weights = {"sample_weight": weight} if weighted else {}
    if weighted and "multi_class" in both:
        weights = {}  # scikit-learn's Crammer–Singer takes none
    both = both | {"fit_intercept": intercept}
    many = {} if of_theirs is LINEAR.Ridge else {"max_iter": 1_000_000}
    ours = getattr(streamcd, of_ours)(**both, **own, max_iter=20_000).fit(x, y, **weights)
    theirs = of_theirs(**both, **others, **many, **({"random_state": 0} if of_theirs in (SVC, SVR) else {}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        theirs.fit(x, y, **weights)
    assert ours.dual_gap_ <= own["tol"]
    assert ours.coef_.shape == theirs.coef_.shape
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=apart)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=apart)
    if "L1" in name or name in ("lasso", "elastic net"):
        np.testing.assert_array_equal(ours.coef_ == 0.0, np.abs(theirs.coef_) < 1e-9)
    if is_classifier(ours):
        assert ours.classes_.tolist() == theirs.classes_.tolist()
        decisions = theirs.decision_function(x)
        np.testing.assert_allclose(ours.decision_function(x), decisions, atol=20 * apart)
        clear = (
            np.abs(decisions) if decisions.ndim == 1 else np.diff(np.sort(decisions, axis=1)[:, -2:])[:, 0]
        )
        agree = ours.predict(x) == theirs.predict(x)
        assert agree[clear > 40 * apart].all()
    else:
        np.testing.assert_allclose(ours.predict(x), theirs.predict(x), atol=20 * apart)
        assert ours.score(x, y, **weights) == pytest.approx(theirs.score(x, y, **weights), abs=1e-3)
    if of_theirs is LOGISTIC:
        np.testing.assert_allclose(ours.predict_proba(x), theirs.predict_proba(x), atol=apart)


@pytest.mark.parametrize("intercept", [True, False])
def test_huber_regression_has_the_least_objective(intercept: bool) -> None:
    x, y, weight = given("targets")

    def objective(w: np.ndarray) -> float:
        e = np.abs(y - x @ w[:5] - (w[5] if intercept else 0.0))
        return float(weight @ np.where(e <= 0.7, e * e, 1.4 * e - 0.49) + 0.5 * w[:5] @ w[:5])

    ours = streamcd.HuberRegressor(epsilon=0.7, alpha=0.5, tol=1e-10, fit_intercept=intercept).fit(
        x, y, weight
    )
    best = scipy.optimize.minimize(objective, np.zeros(6), method="BFGS", options={"gtol": 1e-9}).fun
    assert objective(np.append(ours.coef_, ours.intercept_)) == pytest.approx(best, rel=1e-8)


@pytest.mark.parametrize("slack", ["hinge", "squared_hinge"])
def test_planes_are_near_their_own_class_and_away_from_the_others(slack: str) -> None:
    """By definition: ½‖w‖² r + ½ Σ own (w·x)² + C Σ others max(0, 1 - w·x), which scipy minimises where it is smooth."""
    x, y, _ = given("3 classes")
    ours = streamcd.TwinSVC(C=0.5, ridge=2.0, slack=slack, tol=1e-8, max_iter=20_000).fit(x, y)
    extended, power = np.hstack([x, np.ones((120, 1))]), 1 + (slack == "squared_hinge")
    for label, plane, constant in zip(ours.classes_, ours.coef_, ours.intercept_, strict=True):
        own, others = extended[y == label], extended[y != label]

        def objective(w: np.ndarray, own: np.ndarray = own, others: np.ndarray = others) -> float:
            slacks = np.maximum(0.0, 1.0 - others @ w) ** power
            return float(w @ w + 0.5 * np.square(own @ w).sum() + 0.5 * slacks.sum())

        w = np.append(plane, constant)
        start = objective(w)
        best = scipy.optimize.minimize(objective, w, method="Powell", options={"ftol": 1e-12}).fun
        assert best >= start * (1 - 1e-7)
    assert ours.score(x, y) > 0.6


ESTIMATORS: dict[str, Callable[[], Any]] = {
    "LinearSVC": lambda: streamcd.LinearSVC(tol=1e-8),
    "LogisticRegression": lambda: streamcd.LogisticRegression(tol=1e-9),
    "TwinSVC": lambda: streamcd.TwinSVC(tol=1e-8),
    "LinearSVR": lambda: streamcd.LinearSVR(epsilon=0.2, tol=1e-8, max_iter=20_000),
    "Ridge": lambda: streamcd.Ridge(tol=1e-11),
    "Lasso": lambda: streamcd.Lasso(alpha=0.1, tol=1e-11),
    "ElasticNet": lambda: streamcd.ElasticNet(alpha=0.1, tol=1e-11),
    "HuberRegressor": lambda: streamcd.HuberRegressor(alpha=0.1, tol=1e-11),
}


def rows_for(estimator: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return given("3 classes" if is_classifier(estimator) else "targets")


@functools.cache
def fitted(name: str) -> Any:
    estimator = ESTIMATORS[name]()
    return estimator.fit(*rows_for(estimator))


def decisions(estimator: Any, x: Any) -> np.ndarray:
    return np.asarray(estimator.decision_function(x) if is_classifier(estimator) else estimator.predict(x))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_copies_predict_the_same_and_are_fitted(name: str) -> None:
    found = fitted(name)
    x, y, weight = rows_for(found)
    again = pickle.loads(pickle.dumps(found))
    check_is_fitted(again)
    np.testing.assert_array_equal(decisions(again, x), decisions(found, x))
    np.testing.assert_array_equal(again.predict(x), found.predict(x))
    fresh = clone(found)
    assert fresh.get_params() == found.get_params()
    with pytest.raises(NotFittedError):
        check_is_fitted(fresh)
    with pytest.raises(NotFittedError):
        fresh.predict(x)
    np.testing.assert_array_equal(fresh.fit(x, y, weight).coef_, found.coef_)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_dataset_or_its_path_is_fitted_like_the_arrays(tmp_path: Path, name: str) -> None:
    of_arrays = fitted(name)
    x, y, weight = rows_for(of_arrays)
    options = {} if is_classifier(of_arrays) else {"target": True}
    data = streamcd.convert((x, y, weight), tmp_path / "data", dtype="float64", **options)
    for form in (data, str(data.path)):
        found = ESTIMATORS[name]().fit(form)
        np.testing.assert_allclose(found.coef_, of_arrays.coef_, atol=2e-3)
        np.testing.assert_allclose(found.intercept_, of_arrays.intercept_, atol=2e-3)
        np.testing.assert_allclose(decisions(found, form), decisions(found, x), rtol=1e-12)
        assert found.score(form) == pytest.approx(found.score(x, y, weight), rel=1e-12)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_form_of_the_matrix_changes_nothing(name: str) -> None:
    found = fitted(name)
    x, y, weight = rows_for(found)
    frame = pd.DataFrame(x, columns=list("abcde"))
    for form in (sp.csr_matrix(x), sp.csc_array(x), np.asfortranarray(x), x.tolist(), frame):
        again = clone(found).fit(form, y, weight)
        np.testing.assert_array_equal(again.coef_, found.coef_)
        close = {"rtol": 1e-12, "atol": 1e-12}
        np.testing.assert_allclose(decisions(again, form), decisions(found, x), **close)
    assert again.feature_names_in_.tolist() == list("abcde")


@pytest.mark.parametrize("name", ESTIMATORS)
def test_searches_take_every_estimator_in_a_pipeline(name: str) -> None:
    estimator = ESTIMATORS[name]().set_params(tol=1e-4)
    x, y, _ = rows_for(estimator)
    strength = "C" if "C" in estimator.get_params() else "alpha"
    grid = {f"{name.lower()}__{strength}": [0.01, 1.0]}
    found = GridSearchCV(make_pipeline(StandardScaler(), estimator), grid, cv=3).fit(x, y)
    assert np.isfinite(found.cv_results_["mean_test_score"]).all()
    assert found.score(x, y) > 0.4
    alone = cross_val_score(found.best_estimator_, x, y, cv=3)
    assert alone.mean() == pytest.approx(found.best_score_, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("LinearSVC", {"C": 0.0}),
        ("Ridge", {"alpha": -1.0}),
        ("LinearSVR", {"loss": "x"}),
        ("TwinSVC", {"C": "1"}),
    ],
)
def test_a_parameter_that_will_not_do_is_a_value_error_in_one_line(
    name: str, parameters: dict[str, Any]
) -> None:
    estimator = ESTIMATORS[name]().set_params(**parameters)
    with pytest.raises(ValueError, match=name) as refused:
        estimator.fit(*rows_for(estimator))
    assert "\n" not in str(refused.value)


def test_a_training_out_of_passes_warns_and_has_its_model() -> None:
    x, y, _ = given("2 classes")
    with pytest.warns(streamcd.ConvergenceWarning):
        found = streamcd.LinearSVC(tol=1e-12, max_iter=1).fit(x, y)
    assert found.dual_gap_ > 1e-12
    assert found.score(x, y) > 0.5

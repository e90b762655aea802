"""Parameters of scikit-learn's estimators, as `get_params` has them, are taken by the estimators of the same name."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import sklearn.linear_model
import sklearn.svm

import streamcd
from streamcd.kernels.loss_table import methods_for

LOSSES_OF = {
    "Ridge": ["squared_error"],
    "Lasso": ["squared_error"],
    "ElasticNet": ["squared_error"],
    "HuberRegressor": ["huber"],
    "LinearSVR": ["epsilon_insensitive", "squared_epsilon_insensitive"],
    "LinearSVC": ["squared_hinge", "hinge"],
    "LogisticRegression": ["log_loss"],
}
OF_CLASSES = ("LinearSVC", "LogisticRegression")


def theirs(name: str) -> Any:
    return getattr(sklearn.linear_model, name, None) or getattr(sklearn.svm, name)


def fit(name: str, **parameters: Any) -> Any:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4))
    z = x @ [1.0, -2.0, 0.0, 0.5] + 0.3 * rng.normal(size=120)
    return getattr(streamcd, name)(**parameters).fit(x, z > 0 if name in OF_CLASSES else z)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", LOSSES_OF)
def test_parameters_of_the_installed_version_are_taken(name: str) -> None:
    assert np.isfinite(fit(name, **theirs(name)().get_params()).coef_).all()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Ridge", {"max_iter": None}),
        ("LogisticRegression", {"multi_class": "deprecated", "penalty": "l2", "l1_ratio": None}),
        ("LinearSVC", {"dual": "warn"}),
        ("LinearSVR", {"dual": "warn"}),
    ],
)
def test_defaults_of_other_versions_mean_our_defaults(name: str, parameters: dict[str, Any]) -> None:
    ours = {"alpha": 0.1} if "alpha" in parameters else {}
    assert np.array_equal(fit(name, **parameters).coef_, fit(name, **ours).coef_)


@pytest.mark.parametrize("name", LOSSES_OF)
def test_a_docstring_that_lists_methods_lists_all(name: str) -> None:
    listed = re.search(r"^    method : \{(.*)\}$", getattr(streamcd, name).__doc__, re.MULTILINE)
    if listed:
        methods = {method for loss in LOSSES_OF[name] for method in methods_for(loss)}
        assert set(re.findall(r'"(.+?)"', listed[1])) == {"auto", *methods}

"""`partial_fit`: every call ends at the optimum for all rows so far, from the present solution, by scikit-learn's rules."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from small_datasets import multiclass, random_rows

from streamcd import (
    ElasticNet,
    HuberRegressor,
    Lasso,
    LinearSVC,
    LinearSVR,
    LogisticRegression,
    LogisticRegressionCV,
    OneClassSVM,
    QuantileRegressor,
    Ridge,
    TwinSVC,
)
from streamcd.core.errors import UsageError
from streamcd.dataset import in_memory

CLASSIFIERS = [
    LinearSVC(),
    LinearSVC(loss="hinge", class_weight={-1.0: 2.0, 2.0: 0.5}),
    LinearSVC(class_weight="balanced"),
    LinearSVC(multi_class="crammer_singer"),
    LinearSVC(penalty="l1"),
    LogisticRegression(),
    LogisticRegression(multi_class="ovr"),
    LogisticRegression(method="primal", multi_class="ovr"),
    TwinSVC(),
]
REGRESSORS = [
    Ridge(),
    Ridge(method="dual"),
    Lasso(alpha=0.01),
    ElasticNet(alpha=0.01, method="dual"),
    HuberRegressor(alpha=0.1),
    LinearSVR(),
    QuantileRegressor(alpha=0.01, penalty="l2"),
]
STRICT = {"tol": 1e-6, "max_iter": 5000}


def parts(n_rows: int) -> Iterator[slice]:
    """Most rows, then few more, with and without others between."""
    yield from (slice(0, n_rows - 45), slice(n_rows - 45, n_rows - 40), slice(n_rows - 40, n_rows))


def objective(model: Any) -> float:
    return float(model.model_.certificate["primal_objective"])


def weights_of(n_rows: int) -> np.ndarray:
    """Weights of rows, some of which are 0."""
    return np.arange(n_rows) % 5 / 2.0


@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=str)
def test_classifiers_have_the_optimum_of_a_fit_at_every_call(estimator: Any, weighted: bool) -> None:
    x, y = multiclass(n_rows=300)
    weight = weights_of(y.size) if weighted else None
    growing = type(estimator)(**{**estimator.get_params(), **STRICT})
    if growing.class_weight not in (None, "balanced"):
        growing.class_weight = {-4.0: 2.0, 2.0: 0.5}
    for part in parts(y.size):
        of_part = None if weight is None else weight[part]
        assert growing.partial_fit(x[part], y[part], np.unique(y), of_part) is growing
        whole = type(growing)(**growing.get_params())
        whole.fit(x[: part.stop], y[: part.stop], None if weight is None else weight[: part.stop])
        assert growing.dual_gap_ <= STRICT["tol"]
        assert objective(growing) == pytest.approx(objective(whole), rel=3 * STRICT["tol"])
        np.testing.assert_allclose(growing.decision_function(x), whole.decision_function(x), atol=0.02)


@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("estimator", [*REGRESSORS, OneClassSVM(nu=0.2)], ids=str)
def test_regressors_have_the_optimum_of_a_fit_at_every_call(estimator: Any, weighted: bool) -> None:
    x, _ = random_rows(300, 8, density=0.9)
    y = x @ np.arange(8.0) + 3.0 + 0.3 * np.random.default_rng(1).standard_normal(300)
    if isinstance(estimator, OneClassSVM):
        x = np.abs(x)
    weight = weights_of(y.size) if weighted else None
    growing = type(estimator)(**{**estimator.get_params(), **STRICT})
    for part in parts(y.size):
        of_part = None if weight is None else weight[part]
        growing.partial_fit(x[part], y[part], sample_weight=of_part)
        whole = type(growing)(**growing.get_params())
        whole.fit(x[: part.stop], y[: part.stop], None if weight is None else weight[: part.stop])
        assert growing.dual_gap_ <= STRICT["tol"]
        assert objective(growing) == pytest.approx(objective(whole), rel=3 * STRICT["tol"])
        np.testing.assert_allclose(growing.coef_, whole.coef_, atol=0.01)


@pytest.mark.parametrize(
    "estimator", [LinearSVC(C=10.0), LinearSVC(loss="hinge", C=0.1), LogisticRegression()], ids=str
)
def test_a_few_more_rows_take_a_third_of_the_passes(estimator: Any) -> None:
    x, y = random_rows(4000, 40)
    estimator.tol = 1e-3
    estimator.partial_fit(x[:3960], y[:3960], np.unique(y)).partial_fit(x[3960:], y[3960:])
    cold = type(estimator)(**estimator.get_params()).fit(x, y)
    assert np.max(estimator.n_iter_) <= max(2, np.max(cold.n_iter_) / 3)


def test_it_goes_on_over_chunks_that_the_new_rows_divide_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last chunk of the rows before is not a whole one: its dual variables are a part of a longer one's."""
    monkeypatch.setattr(in_memory, "CHUNK_BYTES", 3_000)
    x, y = random_rows(500, 20)
    growing = LogisticRegression(tol=1e-7)
    for stop in range(100, 501, 50):
        rows = slice(0 if stop == 100 else stop - 50, stop)
        growing.partial_fit(x[rows], y[rows], np.unique(y))
    assert growing._grown.training.run.dataset.n_chunks > 5
    whole = LogisticRegression(tol=1e-7).fit(x, y)
    assert objective(growing) == pytest.approx(objective(whole), rel=3e-7)
    assert growing.n_iter_[0] < whole.n_iter_[0]


def test_a_parameter_that_changes_between_calls_counts_from_then_on() -> None:
    x, y = random_rows(300, 10)
    growing = LinearSVC(tol=1e-7).partial_fit(x[:250], y[:250], np.unique(y))
    for changed in (
        {"C": 3.0},
        {"loss": "hinge"},
        {"fit_intercept": False},
        {"method": "primal", "loss": "squared_hinge"},
    ):
        growing.set_params(**changed).partial_fit(x[250:251], y[250:251])
        n_times = growing._grown.label.size - 250
        whole = LinearSVC(**growing.get_params())
        whole.fit(sp.vstack([x[:250], *[x[250:251]] * n_times]), np.append(y[:250], [y[250]] * n_times))
        assert objective(growing) == pytest.approx(objective(whole), rel=3e-7)


def test_classes_are_those_of_the_first_call() -> None:
    x, y = random_rows(100, 5)
    svc = LinearSVC()
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        svc.partial_fit(x, y)
    with pytest.raises(ValueError, match=r"expected labels among classes, 1\.0, 5\.0, found -1\.0"):
        svc.partial_fit(x, y, [1.0, 5.0])
    assert not hasattr(svc, "classes_")
    svc.partial_fit(x, y, [5.0, 1.0, -1.0])
    assert svc.classes_.tolist() == [-1.0, 1.0, 5.0]
    assert svc.coef_.shape == (3, 5)
    assert set(svc.predict(x)) <= {-1.0, 1.0}
    with pytest.raises(ValueError, match="not the same as on the first call"):
        svc.partial_fit(x, y, [1.0, -1.0])
    svc.partial_fit(x[:2], np.full(2, 5.0), [1.0, -1.0, 5.0])
    with pytest.raises(ValueError, match="12 features"):
        svc.partial_fit(np.ones((2, 12)), y[:2])
    with pytest.raises(ValueError, match=r"no.* optimum|row of every class"):
        LogisticRegression().partial_fit(x, y, [1.0, -1.0, 5.0])
    assert LogisticRegression(fit_intercept=False).partial_fit(x, y, [1.0, -1.0, 5.0]).predict_proba(
        x
    ).shape == (100, 3)


def test_a_call_that_fails_leaves_everything_as_it_was() -> None:
    x, y = random_rows(100, 5)
    svc = LinearSVC().partial_fit(x, y, [-1.0, 1.0])
    before = svc.coef_.copy()
    svc.C = -1.0
    with pytest.raises(UsageError, match="C"):
        svc.partial_fit(x, y)
    svc.C = 1.0
    np.testing.assert_array_equal(svc.coef_, before)
    assert svc.partial_fit(x, y)._grown.label.size == 200


def test_a_pickle_goes_on_where_it_was_and_a_fit_begins_anew() -> None:
    x, y = random_rows(200, 5)
    svc = LinearSVC().partial_fit(x[:150], y[:150], [-1.0, 1.0])
    other = pickle.loads(pickle.dumps(svc))
    np.testing.assert_array_equal(
        svc.partial_fit(x[150:], y[150:]).coef_, other.partial_fit(x[150:], y[150:]).coef_
    )
    svc.fit(x[:50], y[:50]).partial_fit(x[50:100], y[50:100], [-1.0, 1.0])
    np.testing.assert_allclose(svc.coef_, LinearSVC().fit(x[50:100], y[50:100]).coef_, atol=1e-3)
    assert not hasattr(LogisticRegressionCV(), "partial_fit")

"""`LogisticRegressionCV`: scikit-learn's choices and scores, on arrays and on datasets."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn.linear_model
from sklearn.base import clone
from sklearn.model_selection import KFold, ShuffleSplit, StratifiedKFold
from sklearn.utils.estimator_checks import parametrize_with_checks
from small_datasets import multiclass, random_rows

import streamcd
from streamcd import LogisticRegression, LogisticRegressionCV
from streamcd.core.errors import UsageError
from streamcd.core.randomness import assign_folds, rows_in_folds

CS = [0.01, 0.1, 1.0]


def failing(estimator: Any) -> dict[str, str]:
    reason = "two fits to one optimum agree to the tolerance, and the check asks for seven digits"
    return {f"check_sample_weight_equivalence_on_{kind}_data": reason for kind in ("dense", "sparse")}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.slow
@parametrize_with_checks([LogisticRegressionCV(Cs=3, cv=3)], expected_failed_checks=failing)
def test_scikit_learn_finds_nothing_wrong(estimator: Any, check: Any) -> None:
    check(estimator)


def rows(n_classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    x, y = random_rows(200, 6, density=1.0) if n_classes == 2 else multiclass(n_classes)
    return x.toarray(), y


def theirs(**parameters: Any) -> Any:
    """scikit-learn's search, to the optimum."""
    given = {"l1_ratios": [0.0], "scoring": None, "use_legacy_attributes": False} | parameters
    solver = "saga" if max(given["l1_ratios"]) > 0 else "lbfgs"
    return sklearn.linear_model.LogisticRegressionCV(
        Cs=CS, tol=1e-10, max_iter=50_000, solver=solver, random_state=0, **given
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("n_classes", "parameters"),
    [
        (2, {"cv": 4}),
        (2, {"scoring": "neg_log_loss", "fit_intercept": False}),
        (2, {"cv": KFold(3, shuffle=True, random_state=1), "class_weight": "balanced"}),
        (2, {"cv": 3, "l1_ratios": [0.0, 0.5, 1.0], "scoring": "neg_log_loss"}),
        (3, {"cv": StratifiedKFold(3), "scoring": "neg_log_loss"}),
    ],
)
def test_choice_scores_and_optimum_are_scikit_learns(
    n_classes: int, parameters: dict[str, Any], weighted: bool
) -> None:
    x, y = rows(n_classes)
    weight = 0.5 + np.arange(y.size) % 3 if weighted else None
    expected = theirs(**parameters).fit(x, y, sample_weight=weight)
    found = LogisticRegressionCV(Cs=CS, tol=1e-8, **parameters).fit(x, y, weight)
    assert (found.C_, found.l1_ratio_) == (expected.C_, expected.l1_ratio_)
    assert found.scores_.shape == expected.scores_.shape
    by_saga = "l1_ratios" in parameters  # whose intercepts are off where all weights are 0
    assert np.allclose(found.scores_, expected.scores_, atol=5e-3 if by_saga else 1e-5)
    assert np.allclose(found.coef_, expected.coef_, atol=1e-4)
    assert np.allclose(found.intercept_, expected.intercept_, atol=1e-4)
    assert np.array_equal(found.Cs_, expected.Cs_)
    assert found.dual_gap_ <= 1e-8
    assert found.score(x, y, weight) == pytest.approx(expected.score(x, y, sample_weight=weight), abs=1e-5)


def test_attributes_have_the_shapes_of_earlier_versions_where_asked() -> None:
    x, y = rows(3)
    asked = {"cv": 3, "use_legacy_attributes": True}
    expected = theirs(**asked).fit(x, y)
    found = LogisticRegressionCV(Cs=CS, l1_ratios=[0.0], **asked).fit(x, y)
    assert found.scores_.keys() == expected.scores_.keys()
    assert all(found.scores_[label].shape == expected.scores_[label].shape for label in found.classes_)
    assert np.array_equal(found.C_, expected.C_)
    assert np.array_equal(found.l1_ratio_, expected.l1_ratio_)


def test_penalties_are_spelled_in_both_ways() -> None:
    x, y = rows()
    by_penalty = LogisticRegressionCV(Cs=CS, cv=3, penalty="l1").fit(x, y)
    by_ratio = LogisticRegressionCV(Cs=CS, cv=3, l1_ratios=(1.0,)).fit(x, y)
    assert np.array_equal(by_penalty.coef_, by_ratio.coef_)
    assert by_penalty.l1_ratio_ == 1.0
    assert np.array_equal(LogisticRegressionCV(Cs=2).fit(x, y).Cs_, [1e-4, 1e4])


@pytest.mark.parametrize("weighted", [False, True])
def test_a_dataset_is_searched_like_its_rows(weighted: bool, tmp_path: Path) -> None:
    x, y = rows()
    weight = 0.5 + np.arange(y.size) % 3 if weighted else None
    source = (x, y) if weight is None else (x, y, weight)
    data = streamcd.convert(source, tmp_path / "data", dtype="float64")
    asked = {"Cs": CS, "cv": 4, "tol": 1e-9}
    whole = LogisticRegressionCV(**asked, workdir=tmp_path / "work").fit(data)
    fold = assign_folds(np.arange(y.size), 0, 4)
    splits = [(np.flatnonzero(fold != number), np.flatnonzero(fold == number)) for number in range(4)]
    of_arrays = LogisticRegressionCV(**asked | {"cv": splits}).fit(x, y, weight)
    chosen = LogisticRegressionCV(**asked).fit(data[:])
    for found in (whole, LogisticRegressionCV(**asked, workdir=tmp_path / "work").fit(data.path), chosen):
        assert np.allclose(found.scores_, of_arrays.scores_, atol=1e-12)
        assert found.C_ == of_arrays.C_
        assert np.allclose(found.coef_, of_arrays.coef_, atol=1e-4)
        assert found.score(data) == pytest.approx(of_arrays.score(x, y, weight), abs=1e-12)
    assert len(list((tmp_path / "work").iterdir())) == 1  # the second fit takes up the first one's run
    for scoring in ("neg_log_loss", "roc_auc", "balanced_accuracy"):
        given = asked | {"scoring": scoring}
        whole, chosen = (LogisticRegressionCV(**given).fit(form) for form in (data, data[:]))
        of_arrays = LogisticRegressionCV(**given | {"cv": splits}).fit(x, y, weight)
        assert np.allclose(whole.scores_, of_arrays.scores_, atol=1e-6)
        assert weight is not None or np.allclose(chosen.scores_, of_arrays.scores_, atol=1e-6)


def test_a_search_is_cloned_pickled_and_takes_frames_and_sparse_rows() -> None:
    x, y = rows()
    frame = pd.DataFrame(x, columns=[f"column {j}" for j in range(x.shape[1])])
    found = LogisticRegressionCV(Cs=CS, cv=3).fit(frame, y)
    assert found.feature_names_in_.tolist() == list(frame)
    assert "C" not in found.get_params()
    assert "l1_ratio" not in found.get_params()
    copied = pickle.loads(pickle.dumps(found))
    assert np.array_equal(copied.predict_proba(frame), found.predict_proba(frame))
    again = clone(found).fit(sp.csr_array(x), y)
    assert np.array_equal(again.scores_, found.scores_)
    assert np.array_equal(again.coef_, found.coef_)
    best = LogisticRegression(C=found.C_).fit(x, y)
    assert np.array_equal(best.coef_, found.coef_)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"refit": False}, "expected refit=True, found False"),
        ({"penalty": None}, "found None; None is no penalty, which a search over C does not have"),
        ({"Cs": "x"}, "expected numbers as Cs, found 'x'"),
        ({"Cs": [1.0, -1.0]}, "a number > 0 as C"),
        ({"l1_ratios": [2.0]}, "a number >= 0 and <= 1 as l1_ratio"),
        ({"cv": ShuffleSplit(3)}, "of which every row is held out by one"),
    ],
)
def test_parameters_that_are_not_offered_are_refused_by_name(parameters: dict[str, Any], said: str) -> None:
    x, y = rows()
    with pytest.raises(UsageError, match=re.escape(said)):
        LogisticRegressionCV(**parameters).fit(x, y)


def test_what_a_dataset_cannot_give_is_refused_with_the_way_out(tmp_path: Path) -> None:
    data = streamcd.convert(rows(), tmp_path / "data", dtype="float64")
    for parameters, said in (
        ({"scoring": "f1_macro"}, r"give dataset\[:\]"),
        ({"cv": KFold(3)}, "number of folds"),
    ):
        with pytest.raises(UsageError, match=said):
            LogisticRegressionCV(Cs=CS, **parameters).fit(data)


@pytest.mark.parametrize("n_folds", [2, 7, 100])
def test_numbers_of_rows_fall_into_the_folds_given(n_folds: int) -> None:
    fold = np.random.default_rng(0).integers(n_folds, size=500).astype(np.uint8)
    numbers = rows_in_folds(fold, 3, n_folds)
    assert np.array_equal(assign_folds(numbers, 3, n_folds), fold)
    assert np.unique(numbers).size == fold.size


@pytest.mark.parametrize("acceleration", ["auto", "none"])
def test_another_C_of_a_free_bias_is_a_start_though_its_feature_differs(
    acceleration: str, tmp_path: Path
) -> None:
    """It was refused, also by `tune`: the feature is as large as the least C asks for."""
    data = streamcd.convert(rows(), tmp_path / "data", dtype="float64")
    asked: dict[str, Any] = {"loss": "log_loss", "bias": 1.0, "unpenalized_bias": True, "method": "dual"}
    asked |= {"acceleration": acceleration, "tol": 1e-8}
    streamcd.train(data, tmp_path / "first", C=0.01, **asked)
    cold = streamcd.train(data, tmp_path / "cold", C=0.0102, **asked)
    warm = streamcd.train(data, tmp_path / "warm", C=0.0102, start_from=tmp_path / "first", **asked)
    assert warm.primal_objective == pytest.approx(cold.primal_objective, rel=1e-7)
    assert warm.passes < cold.passes

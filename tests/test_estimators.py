"""The estimators: scikit-learn's checks, its optima, its scripts; and datasets in place of arrays."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp
import sklearn.linear_model
import sklearn.svm
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning as TheirWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks
from small_datasets import multiclass, random_rows, write_dataset

import streamcd
from streamcd import LinearSVC, LogisticRegression, TwinSVC
from streamcd.core.errors import DataError, UsageError

TO_TOLERANCE = "two fits to one optimum agree to the tolerance, and the check asks for seven digits"
NOT_OFFERED = {
    (estimator, f"check_sample_weight_equivalence_on_{kind}_data"): TO_TOLERANCE
    for estimator in ("LinearSVC", "LogisticRegression", "TwinSVC")
    for kind in ("dense", "sparse")
}
"""The checks that fail, each with the reason."""


def failing(estimator: Any) -> dict[str, str]:
    name = type(estimator).__name__
    return {check: reason for (owner, check), reason in NOT_OFFERED.items() if owner == name}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [
        LinearSVC(C=0.1),
        LogisticRegression(C=0.1),
        TwinSVC(C=0.1),
    ],
    expected_failed_checks=failing,
)
def test_scikit_learn_finds_nothing_wrong(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "estimator",
    [LinearSVC(tol=0.0, max_iter=500), LogisticRegression(tol=0.0, max_iter=300), TwinSVC(tol=1e-10)],
)
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_the_checks_that_fail_at_the_tolerance_pass_at_the_optimum(estimator: Any, kind: str) -> None:
    check = getattr(estimator_checks, f"check_sample_weight_equivalence_on_{kind}_data")
    check(type(estimator).__name__, estimator)


def dense_rows(n_classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    x, y = random_rows(200, 8, density=1.0) if n_classes == 2 else multiclass(n_classes)
    return x.toarray(), y


def test_penalties_of_every_version_of_scikit_learn_mean_the_same() -> None:
    x, y = dense_rows()
    for same in (
        [
            {},
            {"penalty": "l2"},
            {"penalty": "l2", "l1_ratio": None},
            {"penalty": "elasticnet", "l1_ratio": 0.0},
        ],
        [{"penalty": "l1"}, {"l1_ratio": 1.0}, {"penalty": "elasticnet", "l1_ratio": 1}],
    ):
        found = [LogisticRegression(C=0.1, **parameters).fit(x, y).coef_ for parameters in same]
        assert all(np.array_equal(coef, found[0]) for coef in found)


@pytest.mark.parametrize("penalty", ["l1", "l2"])
@pytest.mark.parametrize("kind", ["svc", "logistic"])
def test_liblinears_problems_penalise_the_intercept(kind: str, penalty: str) -> None:
    x, y = dense_rows()
    shared = {"C": 0.05, "intercept_scaling": 2.0, "random_state": 0}
    if kind == "svc":
        theirs = sklearn.svm.LinearSVC(penalty=penalty, dual=False, tol=1e-12, max_iter=100_000, **shared)
        ours = LinearSVC(penalty=penalty, dual=False, tol=1e-12, **shared)
    else:
        share = float(penalty == "l1")
        shared |= {"solver": "liblinear", "l1_ratio": share}
        theirs = sklearn.linear_model.LogisticRegression(tol=1e-9, max_iter=100_000, **shared)
        ours = LogisticRegression(tol=1e-12, **shared)
    theirs.fit(x, y)
    ours.fit(x, y)
    assert np.allclose(ours.coef_, theirs.coef_, atol=1e-5)
    assert np.allclose(ours.intercept_, theirs.intercept_, atol=1e-5)
    assert np.array_equal(ours.coef_ == 0.0, np.abs(theirs.coef_) < 1e-9)


@pytest.mark.parametrize("estimator", [LinearSVC(), LogisticRegression(), TwinSVC()])
def test_rows_of_weight_zero_are_left_out(estimator: Any) -> None:
    x, y = dense_rows()
    kept = np.arange(y.size) % 4 > 0
    weighted = clone(estimator).fit(x, y, kept.astype(float))
    assert np.array_equal(weighted.coef_, clone(estimator).fit(x[kept], y[kept], np.ones(kept.sum())).coef_)


def test_labels_are_what_they_were() -> None:
    x, y = dense_rows(3)
    names = np.array(["blue", "green", "red"])[np.unique(y, return_inverse=True)[1]]
    for estimator in (LinearSVC(), LinearSVC(multi_class="crammer_singer"), TwinSVC()):
        found = estimator.fit(x, names)
        assert found.classes_.tolist() == ["blue", "green", "red"]
        assert set(found.predict(x)) <= set(names)
        assert found.score(x, names) > 0.6


def test_two_classes_of_crammer_singer_have_one_vector() -> None:
    x, y = dense_rows()
    ours = LinearSVC(multi_class="crammer_singer", tol=1e-8).fit(x, y)
    theirs = sklearn.svm.LinearSVC(multi_class="crammer_singer", tol=1e-8, max_iter=100_000).fit(x, y)
    assert np.allclose(ours.coef_, theirs.coef_, atol=1e-3)
    assert np.array_equal(ours.decision_function(x) > 0, ours.predict(x) == 1)


def test_frames_leave_their_names() -> None:
    x, y = dense_rows()
    frame = pd.DataFrame(x, columns=[f"column {j}" for j in range(x.shape[1])])
    found = LinearSVC().fit(frame, y)
    assert found.feature_names_in_.tolist() == list(frame.columns)
    with pytest.raises(ValueError, match="feature names"):
        found.predict(frame[frame.columns[::-1]])


@pytest.mark.parametrize(
    ("estimator", "said"),
    [
        (LinearSVC(penalty="l1", loss="hinge"), 'no method trains hinge with penalty="l1"'),
        (LinearSVC(penalty="l1", multi_class="crammer_singer"), "no method trains crammer_singer"),
        (LinearSVC(penalty="elasticnet"), "'penalty' parameter of LinearSVC"),
        (LinearSVC(C="1"), "'C' parameter of LinearSVC"),
        (LinearSVC(intercept_scaling=0.0), "'intercept_scaling' parameter"),
        (LinearSVC(memory="200MB"), "memory"),
        (LogisticRegression(C=0.0), "'C' parameter"),
        (LogisticRegression(l1_ratio=-0.1), "'l1_ratio' parameter"),
        (LogisticRegression(dual="x"), "'dual' parameter"),
        (LogisticRegression(n_jobs="x"), "'n_jobs' parameter"),
        (LogisticRegression(penalty=None), "'penalty' parameter"),
    ],
)
def test_parameters_that_are_not_offered_are_refused_by_name(estimator: Any, said: str) -> None:
    x, y = dense_rows()
    with pytest.raises(ValueError, match=re.escape(said)):
        estimator.fit(x, y)


@pytest.mark.parametrize(
    ("kind", "accepted"),
    [
        (LinearSVC, [{"dual": True}, {"dual": False}]),
        (LogisticRegression, [{"solver": name} for name in ("newton-cg", "newton-cholesky", "sag", "saga")]),
        (
            lambda **more: LogisticRegression(fit_intercept=False, **more),
            [{"solver": "liblinear", "dual": True}, {"dual": True}],
        ),
    ],
    ids=["LinearSVC", "LogisticRegression", "without intercept"],
)
def test_ways_to_the_same_optimum_are_accepted_without_effect(
    kind: Any, accepted: list[dict[str, Any]]
) -> None:
    x, y = dense_rows()
    expected = kind().fit(x, y)
    for parameters in accepted:
        found = kind(**parameters).fit(x, y)
        assert np.array_equal(found.coef_, expected.coef_)
        assert np.array_equal(found.intercept_, expected.intercept_)


def _damage(matrix: Any, fault: str) -> Any:
    """Damage one number of a matrix's arrays."""
    if matrix.format == "coo":
        if fault == "an index too large":
            matrix.col[2] = matrix.shape[1]
        else:
            matrix.row[2] = -1
        return matrix
    if fault == "descends":
        matrix.indptr[5] = 10**8
    elif fault == "too long":
        matrix.indptr[-1] = 10**8
    elif fault == "an index too large":
        matrix.indices[2] = 10**6
    elif fault == "begins late":
        matrix.indptr[0] = -(10**6)
    else:
        matrix.indices[2] = -1
    return matrix


_OF_INDICES = ("an index too large", "a negative index")
_FAULTS = {
    form: ("descends", "too long", "begins late", *_OF_INDICES) for form in ("csr", "csc", "bsr")
} | dict.fromkeys(("coo", "lil"), _OF_INDICES)


@pytest.mark.parametrize(("form", "fault"), [(form, fault) for form in _FAULTS for fault in _FAULTS[form]])
def test_damaged_sparse_matrices_are_refused_wherever_arrays_are_taken(
    form: str, fault: str, tmp_path: Path
) -> None:
    """SciPy followed them into a segmentation fault; indices out of range were dropped where rows are decided."""
    x, y = dense_rows()
    fitted = LinearSVC().fit(x, y)
    matrix = getattr(sp, f"{form}_array")(x)
    if form == "lil":
        matrix.rows[1][-1] = -1 if fault == "a negative index" else 10**6
    else:
        _damage(matrix, fault)
    for take in (
        lambda: LinearSVC().fit(matrix, y),
        lambda: fitted.decision_function(matrix),
        lambda: fitted.predict(matrix),
        lambda: fitted.model_.predict(matrix),
        lambda: fitted.model_.decision_function(matrix),
        lambda: streamcd.convert((matrix, y), tmp_path / "data"),
    ):
        with pytest.raises(DataError, match="X: expected a whole"):
            take()


def test_room_behind_the_entries_of_a_matrix_is_no_fault() -> None:
    x, y = dense_rows()
    matrix, expected = sp.csr_array(x), LinearSVC().fit(sp.csr_array(x), y)
    matrix.indices = np.append(matrix.indices, [10**6, -1]).astype(matrix.indices.dtype)
    matrix.data = np.append(matrix.data, [1.0, 1.0])
    assert np.array_equal(LinearSVC().fit(matrix, y).coef_, expected.coef_)
    assert np.array_equal(expected.model_.predict(matrix), expected.model_.predict(x))


def test_masked_arrays_are_refused_wherever_arrays_are_taken(tmp_path: Path) -> None:
    """Their masks were lost: what lay below counted."""
    x, y = dense_rows()
    fitted = LinearSVC().fit(x, y)
    mask = np.zeros(x.shape, bool)
    mask[3, 1] = True
    masked_x, masked_y = np.ma.array(x, mask=mask), np.ma.array(y, mask=mask[:, 1])
    weight = np.ma.array(np.ones(y.size), mask=mask[:, 1])
    for name, take in (
        ("X", lambda: LinearSVC().fit(masked_x, y)),
        ("X", lambda: LinearSVC().fit(list(masked_x), y)),
        ("y", lambda: fitted.score(x, masked_y)),
        ("y", lambda: LinearSVC().fit(x, masked_y)),
        ("sample_weight", lambda: LinearSVC().fit(x, y, weight)),
        ("X", lambda: fitted.decision_function(masked_x)),
        ("X", lambda: fitted.model_.predict(masked_x)),
        ("X", lambda: streamcd.convert((masked_x, y), tmp_path / "data")),
        ("y", lambda: streamcd.convert((x, masked_y), tmp_path / "data")),
        ("weights", lambda: streamcd.convert((x, y, weight), tmp_path / "data")),
    ):
        with pytest.raises(DataError, match=f"^{name}: expected an array without a mask"):
            take()


def test_both_warnings_are_given_where_it_has_not_converged() -> None:
    x, y = dense_rows()
    with pytest.warns(streamcd.ConvergenceWarning, match="gap is .* tol=1e-12"):
        LinearSVC(tol=1e-12, max_iter=1).fit(x, y)
    with pytest.warns(TheirWarning):
        LogisticRegression(tol=1e-12, max_iter=1).fit(x, y)


def test_a_stop_by_rounding_is_told_as_one() -> None:
    """It was "not converged after max_iter=1000", after 7 passes."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 4))
    y = (x[:, 0] + 0.5 * rng.standard_normal(60) > 0) * 1
    with pytest.warns(
        streamcd.ConvergenceWarning, match=r"rounding keeps it .* after \d+ pass.*a larger tol$"
    ) as said:
        svc = LinearSVC().fit(1e15 * x, y)
    assert svc.n_iter_ < 1000
    assert f"after {svc.n_iter_} passes" in str(said[0].message)
    assert "max_iter" not in str(said[0].message)


def test_arrays_that_cannot_be_written_to_are_taken(tmp_path: Path) -> None:
    x, y = random_rows()
    for name, array in (("x", x.toarray()), ("data", x.data)):
        np.save(tmp_path / f"{name}.npy", array)
    dense = np.load(tmp_path / "x.npy", mmap_mode="r")
    sparse = sp.csr_array((np.load(tmp_path / "data.npy", mmap_mode="r"), x.indices, x.indptr), shape=x.shape)
    expected = LinearSVC().fit(x, y)
    for form in (dense, sparse):
        assert np.array_equal(LinearSVC().fit(form, y).predict(form), expected.predict(x))


def script(LinearSVC: Any) -> GridSearchCV:
    """A script of scikit-learn's users."""
    x, y = dense_rows()
    pipeline = Pipeline([("scale", StandardScaler()), ("svc", LinearSVC(random_state=0, max_iter=10_000))])
    grid = GridSearchCV(pipeline, {"svc__C": [0.01, 0.1, 1.0], "svc__loss": ["hinge", "squared_hinge"]}, cv=3)
    return grid.fit(x, y)


def test_a_script_runs_unchanged_but_for_the_import() -> None:
    theirs, ours = script(sklearn.svm.LinearSVC), script(LinearSVC)
    assert ours.best_params_ == theirs.best_params_
    scores = [grid.cv_results_["mean_test_score"] for grid in (ours, theirs)]
    assert np.allclose(*scores, atol=0.011)  # two rows of 200
    coef = [grid.best_estimator_["svc"].coef_ for grid in (ours, theirs)]
    assert np.allclose(*coef, atol=0.02 * np.abs(coef[1]).max())


def test_a_workdir_keeps_runs_and_goes_on_with_them(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", random_rows())
    first = LinearSVC(workdir=tmp_path / "work", max_iter=2)
    with pytest.warns(TheirWarning):
        first.fit(tmp_path / "data")
    second = clone(first).set_params(max_iter=1000).fit(tmp_path / "data")
    (run,) = (tmp_path / "work").iterdir()
    assert streamcd.load_model(run).certificate["passes"] == [second.n_iter_]
    assert second.dual_gap_ <= 1e-4
    clone(first).set_params(max_iter=1000, C=3.0).fit(tmp_path / "data")
    assert len(list((tmp_path / "work").iterdir())) == 2


def test_a_dataset_takes_no_labels_but_its_own(tmp_path: Path) -> None:
    x, y = random_rows()
    write_dataset(tmp_path / "data", (x, y))
    expected = LinearSVC().fit(tmp_path / "data")
    assert np.array_equal(LinearSVC().fit(tmp_path / "data", y).coef_, expected.coef_)
    for others in ({"y": -y}, {"y": y[:-1]}, {"sample_weight": np.ones(y.size)}):
        with pytest.raises(UsageError, match="brings its labels"):
            LinearSVC().fit(tmp_path / "data", **others)


def shuffled_dataset(path: Path, rows: Any, weight: np.ndarray | None = None) -> streamcd.Dataset:
    """A dataset whose rows do not lie in the order of their source."""
    x, y = rows
    source = np.random.default_rng(0).permutation(y.size)
    arrays = (sp.csr_array(x[source]), y[source])
    weight = None if weight is None else weight[source]
    return write_dataset(path, arrays, source=source, weight=weight, value_dtype=np.float64)


@pytest.mark.parametrize("least", [0, 1])
def test_frames_of_lists_are_decided_like_their_dataset(least: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    index = [(np.sort(rng.choice(9, 3, replace=False)) + least).tolist() for _ in range(90)]
    table = pa.table({"i": index, "v": rng.normal(size=(90, 3)).tolist(), "y": np.arange(90) % 2})
    options = {"label": "y", "features": "i:v", "index_base": least, "dtype": "float64"}
    dataset = streamcd.convert(table, tmp_path / "data", **options)
    found = LinearSVC().fit(dataset)
    assert not hasattr(found, "feature_names_in_")
    assert np.array_equal(found.decision_function(table), found.decision_function(dataset))
    beyond = table.set_column(0, "i", pa.array([[500, 501, 502]] * 90))
    assert np.array_equal(found.decision_function(beyond), np.repeat(found.intercept_, 90))


def test_a_dataset_without_scaling_is_scaled_like_the_training_data(tmp_path: Path) -> None:
    text = "".join(f"{i % 2} 1:{100 * i} 2:{i % 3 + 1} 3:0.01\n" for i in range(60))
    (tmp_path / "rows.txt").write_text(text)
    scaled, plain = (
        streamcd.convert(tmp_path / "rows.txt", tmp_path / scale, scale=scale, dtype="float64")
        for scale in ("maxabs", "none")
    )
    fitted = LinearSVC().fit(scaled)
    assert fitted.decision_function(plain) == pytest.approx(fitted.decision_function(scaled), rel=1e-12)
    with pytest.raises(streamcd.StreamcdError, match="like MODEL"):
        LinearSVC(tol=0.99).fit(plain).predict(scaled)


def test_without_scikit_learn_the_error_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "sklearn.py").write_text("raise ImportError('none here')\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport streamcd\nstreamcd.LinearSVC"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith("ImportError: streamcd.LinearSVC")
    assert "pip install 'streamcd[sklearn]'" in done.stderr


def test_intercepts_of_several_classes_sum_to_0() -> None:
    X, y = multiclass(3, 120)
    fitted = LogisticRegression(C=0.3, tol=1e-8).fit(X, y)
    assert abs(fitted.intercept_.sum()) < 1e-12
    theirs = sklearn.linear_model.LogisticRegression(C=0.3, tol=1e-10, max_iter=5000).fit(X, y)
    np.testing.assert_allclose(fitted.intercept_, theirs.intercept_, atol=1e-3)

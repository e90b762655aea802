"""Problems without a penalty: scikit-learn's optimum, gaps that are true, and a model where there is no optimum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pytest
import sklearn.linear_model as theirs
from heard import Heard
from mpmath import mp, mpf
from small_datasets import write_dataset

import streamcd
from streamcd import LogisticRegression, Ridge
from streamcd.core.errors import UsageError
from streamcd.report.tables import description_tables, result_tables
from streamcd.solvers.unpenalised import Known, bounds

SCALES = np.array([1.0, 30.0, 0.1, 1.0])


def rows(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Features of several scales and means, and a noisy score."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((n, 4)) * SCALES + np.array([0.0, 50.0, 1.0, -2.0])
    return x, (x / SCALES) @ rng.standard_normal(4) - 4.0 + 2.0 * rng.logistic(size=n)


def labels(kind: str, score: np.ndarray) -> np.ndarray:
    if kind == "squared_error":
        return score
    ends = [np.median(score)] if kind == "log_loss" else np.quantile(score, [0.3, 0.7])
    return np.digitize(score, ends).astype(np.float64)


def least(kind: str, x: np.ndarray, y: np.ndarray) -> float:
    if kind == "squared_error":
        found = theirs.LinearRegression().fit(x, y)
        return float(np.square(found.predict(x) - y).sum())
    asked: dict[str, Any] = {"solver": "newton-cholesky", "C": np.inf, "tol": 1e-12, "max_iter": 1000}
    found = theirs.LogisticRegression(**asked).fit(x, y)
    return float(-found.predict_log_proba(x)[np.arange(y.size), y.astype(int)].sum())


@pytest.mark.filterwarnings("ignore::FutureWarning")  # C=inf, before scikit-learn 1.8
@pytest.mark.filterwarnings("ignore::streamcd.ConvergenceWarning")
@pytest.mark.parametrize("kind", ["log_loss", "multinomial", "squared_error"])
def test_every_read_has_a_gap_that_is_true_and_the_last_one_is_small(tmp_path: Path, kind: str) -> None:
    x, score = rows()
    y = labels(kind, score)
    data = streamcd.convert((x, y), tmp_path / "data", target=kind == "squared_error", dtype="float64")
    best, asked = least(kind, x, y), {"loss": kind, "penalty": "none", "bias": 1.0, "memory": "1GB"}
    for passes in range(1, 8):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("streamcd.solvers.newton._SAMPLE", 0.0)  # begin far from the optimum
            result = streamcd.train(data, tmp_path / str(passes), max_passes=passes, tol=1e-10, **asked)
        objective = result.primal_objective
        assert result.gap * objective >= objective - best - 1e-12 * best
    assert result.converged, result.gap
    assert objective == pytest.approx(best, rel=1e-10)


def known(x: np.ndarray, v: np.ndarray, error: float = 0.0, w: np.ndarray | None = None) -> Known:
    squares = np.einsum("ij,ij->j", x, x)
    return Known(
        (x.T @ x)[np.tril_indices(v.size)],
        v,
        np.full(v.size, error),
        squares,
        1.0,
        x.shape[0],
        np.zeros(v.size) if w is None else w,
        1.0,
    )


@pytest.mark.parametrize("spread", [0.0, 3.0, 7.0])
def test_the_bound_is_above_the_exact_number_and_not_far(spread: float) -> None:
    rng = np.random.default_rng(5)
    q, _ = np.linalg.qr(rng.standard_normal((8, 8)))
    x = rng.standard_normal((50, 8)) @ (q * 10.0 ** np.linspace(-spread, 0.0, 8)) @ q.T
    v = rng.standard_normal(8)
    with mp.workdps(60):
        exact = mp.matrix(x.tolist()).T * mp.matrix(x.tolist())
        d = mp.lu_solve(exact, mp.matrix(v.tolist()))
        square = sum(mpf(float(a)) * b for a, b in zip(v, d, strict=True))
        largest = float(max(abs(sum(mpf(float(a)) * b for a, b in zip(row, d, strict=True))) for row in x))
    root, beyond = bounds(known(x, v), np.inf)
    assert mp.sqrt(square) <= root if spread <= 3.0 else beyond > 0.0
    assert root <= 1.5 * mp.sqrt(square) or spread > 3.0
    assert (
        bounds(known(x, v), 0.99 * largest).beyond > 0.0 or bounds(known(x, v), 0.99 * largest).root == np.inf
    )


def test_errors_of_v_make_the_bound_larger() -> None:
    x = np.random.default_rng(1).standard_normal((30, 3))
    exact, wrong = (bounds(known(x, np.ones(3), error), np.inf).root for error in (0.0, 0.1))
    assert wrong > exact


@pytest.mark.parametrize("n_classes", [1, 2, 3])
def test_weights_within_the_distance_are_not_better_by_more_than_the_bound(n_classes: int) -> None:
    """Of the squared error, whose columns are combinations of others, also where these are not so to the last digits."""
    rng = np.random.default_rng(n_classes)
    for apart in (0.0, 1e-14, 1e-9, 1e-5, 1e-2):
        x = np.hstack([y := rng.standard_normal((40, 3)), y[:, :2].sum(axis=1, keepdims=True)])
        x[:, 3] += apart * rng.standard_normal(40)
        target, w = x @ rng.standard_normal(4) + rng.standard_normal(40), rng.standard_normal(4)
        v = x.T @ (target - x @ w)
        primal = 0.5 * float(np.square(target - x @ w).sum())
        of = known(x, v, 1e-12, w)._replace(primal=primal)
        root, beyond = bounds(of, np.inf)
        for size in (0.0, 1e-2, 1.0, 1e2, 9e2):
            direction = rng.standard_normal((200, 4)) * [1, 1, 1, 1]
            direction[:100] = [1.0, 1.0, 0.0, -1.0] if apart else 0.0
            direction /= np.maximum(
                np.linalg.norm(direction * np.sqrt(of.squares), axis=1, keepdims=True), 1e-9
            )
            best = np.linalg.lstsq(x, target - x @ w, rcond=1e-8)[0]
            others = w + best + size * np.linalg.norm(np.sqrt(of.squares) * w) * direction
            losses = 0.5 * np.square(target[:, None] - x @ others.T).sum(axis=0)
            assert primal - losses.min() <= 0.5 * root**2 + beyond


ASKED: dict[str, Any] = {"penalty": "none", "bias": 1.0, "memory": "1GB"}


def beside(x: np.ndarray, kind: str) -> np.ndarray:
    """Add features that are combinations of others."""
    if kind == "categories":  # all of a column, beside the intercept
        return np.hstack([x, np.eye(3)[np.digitize(x[:, 0], [-0.5, 0.5])]])
    if kind == "scaled":
        return np.hstack([x, x[:, 1:2] / 3.0 + 0.1, x[:, :2].sum(axis=1, keepdims=True) * 0.7])
    return np.hstack([x, x[:, 1:2], 2.0 * x[:, 1:2]])


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("loss", ["log_loss", "multinomial", "squared_error"])
@pytest.mark.parametrize("kind", ["categories", "scaled", "twice"])
def test_features_that_are_combinations_of_others_are_certified(tmp_path: Path, loss: str, kind: str) -> None:
    x, score = rows()
    y = labels(loss, score)
    whole = beside(x, kind)
    independent = np.hstack([x, whole[:, 4:6]]) if kind == "categories" else x
    best = least(loss, independent, y)
    # rounded, sums are no combinations, and larger weights fit their errors
    for dtype in ("float64", *["float32"] * (kind != "scaled")):
        data = streamcd.convert(
            (whole, y), tmp_path / f"data {dtype}", target=loss == "squared_error", dtype=dtype
        )
        result = streamcd.train(data, tmp_path / f"run {dtype}", loss=loss, tol=1e-7, **ASKED)
        assert (result.converged, result.stop_reason) == (True, "gap")
        if dtype == "float64":
            assert 0.0 <= result.primal_objective - best + 1e-10 * best <= (result.gap + 1e-10) * best


def test_results_and_info_say_where_a_gap_is_proven_for_weights_within_a_distance(tmp_path: Path) -> None:
    x, score = rows()
    within = "relative gap {}, for all weights within 1,000 times the size of those found"
    for name, whole in (("independent", x), ("combined", beside(x, "twice"))):
        data = streamcd.convert((whole, score), tmp_path / name, target=True, dtype="float64")
        run = tmp_path / f"run {name}"
        result = streamcd.train(data, run, loss="squared_error", **ASKED)
        told = within.format(f"{result.gap:.2g}")
        assert (told in str(result)) == (name == "combined")
        described = description_tables("run", command_line.run_json("info", run))
        for shown in (result_tables(result.to_json()), described):
            text = " ".join(line[1] for table in shown for line in table.rows)
            assert ("within 1,000 times" in text) == (name == "combined")


@pytest.mark.filterwarnings("ignore::streamcd.ConvergenceWarning")
@pytest.mark.parametrize("loss", ["log_loss", "multinomial", "squared_error"])
def test_features_that_nearly_are_combinations_end_with_a_model_and_what_helps(
    tmp_path: Path, loss: str
) -> None:
    """Rounded to float32, sums are none; weights that would fit the rounding are too far away for a proof."""
    x, score = rows()
    whole = np.hstack([x, 0.7 * (x[:, :1] + x[:, 1:2])])
    data = streamcd.convert((whole, labels(loss, score)), tmp_path / "data", target=loss == "squared_error")
    asked: dict[str, Any] = {"loss": loss, "tol": 1e-7, "max_passes": 60, **ASKED}
    result = streamcd.train(data, tmp_path / "run", **asked)
    assert (result.converged, result.more_passes_help) == (False, False)
    assert result.gap < 1e-2
    assert result.advice[0].startswith("features nearly are combinations of others")
    assert "a plane separates" not in result.describe_shortfall()
    assert result.model.predict(whole).shape == score.shape
    penalty = {"penalty": "l2", "C": 1e4, "method": "newton", "bias": 1.0}
    assert streamcd.train(data, tmp_path / "penalised", loss=loss, tol=1e-7, **penalty).converged


def test_rows_that_a_plane_separates_from_others_are_certified(tmp_path: Path) -> None:
    """Some of the rows of a class alone have a feature, whose weight grows without end."""
    x, score = rows()
    y = labels("log_loss", score)
    x = np.hstack([x, ((y == 1.0) & (np.arange(y.size) % 3 == 0))[:, None].astype(float)])
    left = x[:, 4] == 0.0
    data = streamcd.convert((x, y), tmp_path / "data", dtype="float64")
    result = streamcd.train(data, tmp_path / "run", loss="log_loss", tol=1e-4, **ASKED)
    best = least("log_loss", x[left, :4], y[left])
    assert result.converged
    assert -1e-9 * best <= result.primal_objective - best <= result.gap * best


@pytest.mark.filterwarnings("ignore::streamcd.ConvergenceWarning")
@pytest.mark.parametrize("loss", ["log_loss", "multinomial"])
def test_classes_that_planes_separate_end_with_a_model_and_a_warning(tmp_path: Path, loss: str) -> None:
    x, score = rows()
    y = labels(loss, score)
    x[:, 0] = y * 3.0 + np.abs(np.sin(x[:, 0]))
    data, heard = write_dataset(tmp_path / "data", (x, y), value_dtype=np.float64), Heard()
    result = streamcd.train(data, tmp_path / "run", loss=loss, listener=heard, **ASKED)
    assert (result.converged, result.stop_reason, result.fell_short) == (False, "slope", True)
    assert result.passes < 60
    assert result.gap == pytest.approx(1.0)
    assert (result.model.predict(x) == y).all()
    assert "take a small one (l2 with a large C)" in result.describe_shortfall()
    again = streamcd.resume(tmp_path / "run", max_passes=2000)
    assert (again.passes, again.stop_reason) == (result.passes, "slope")
    with pytest.warns(streamcd.ConvergenceWarning, match="no pass gains more"):
        ours = LogisticRegression(penalty=None).fit(x, y)
    assert (ours.predict(x) == y).all()


def test_what_has_no_certificate_without_a_penalty_is_refused(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", (rows()[0], labels("log_loss", rows()[1])))
    with pytest.raises(UsageError, match=r"--penalty none is for log_loss, .* found hinge by newton"):
        streamcd.train(data, tmp_path / "hinge", loss="hinge", penalty="none")
    with pytest.raises(UsageError, match="l2 is of --penalty l2 or elasticnet, found --penalty none"):
        streamcd.train(data, tmp_path / "l2", loss="log_loss", penalty="none", l2=0.1)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["log_loss", "multinomial"])
def test_estimators_without_a_penalty_are_scikit_learns(kind: str) -> None:
    x, score = rows()
    y = labels(kind, score)
    best = theirs.LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12).fit(x, y)
    for ours in (LogisticRegression(penalty=None, tol=1e-10), LogisticRegression(C=np.inf, tol=1e-10)):
        np.testing.assert_allclose(ours.fit(x, y).predict_proba(x), best.predict_proba(x), atol=2e-5)
    line, ridge = theirs.LinearRegression().fit(x, score), Ridge(alpha=0.0, tol=1e-10).fit(x, score)
    np.testing.assert_allclose(ridge.coef_, line.coef_, rtol=1e-6)
    np.testing.assert_allclose(ridge.intercept_, line.intercept_, rtol=1e-6)

"""Problems without a penalty: scikit-learn's optimum, gaps that are true, and refusals where there is nothing to prove."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.linear_model as theirs
from mpmath import mp, mpf
from small_datasets import write_dataset

import streamcd
from streamcd import LogisticRegression, Ridge
from streamcd.core.errors import UsageError
from streamcd.solvers.unpenalised import bounds

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


@pytest.mark.parametrize("spread", [0.0, 3.0, 7.0])
def test_the_bound_is_above_the_exact_number_and_not_far(spread: float) -> None:
    rng = np.random.default_rng(5)
    q, _ = np.linalg.qr(rng.standard_normal((8, 8)))
    x = rng.standard_normal((50, 8)) @ (q * 10.0 ** np.linspace(-spread, 0.0, 8)) @ q.T
    matrix, v = x.T @ x, rng.standard_normal(8)
    root, step = bounds(matrix, v, 0.0, np.einsum("ij,ij->j", x, x), 50)
    with mp.workdps(60):
        exact = mp.matrix(x.tolist()).T * mp.matrix(x.tolist())
        d = mp.lu_solve(exact, mp.matrix(v.tolist()))
        square = sum(mpf(float(a)) * b for a, b in zip(v, d, strict=True))
        largest = max(abs(sum(mpf(float(a)) * b for a, b in zip(row, d, strict=True))) for row in x)
    assert mp.sqrt(square) <= root
    assert root <= 1.5 * mp.sqrt(square) or spread > 3.0
    assert largest <= step


def test_a_singular_matrix_and_errors_of_v_leave_no_proof_or_a_larger_bound() -> None:
    x = np.random.default_rng(1).standard_normal((30, 3))
    twice = np.hstack([x, x[:, :1] + x[:, 1:2]])
    v, squares = np.ones(4), np.einsum("ij,ij->j", twice, twice)
    assert bounds(twice.T @ twice, v, 0.0, squares, 30) == (np.inf, np.inf)
    exact, wrong = (bounds(x.T @ x, v[:3], error, squares[:3], 30)[0] for error in (0.0, 0.1))
    assert wrong > exact


@pytest.mark.parametrize("why", ["separable", "combination"])
def test_what_has_no_optimum_to_be_proven_is_refused(tmp_path: Path, why: str) -> None:
    x, score = rows()
    y = np.where(score > 0.0, 1.0, -1.0)
    if why == "separable":
        x[:, 0] = y * (1.0 + np.abs(x[:, 0]))
    else:
        x[:, 0] = x[:, 1] + 2.0
    data = write_dataset(tmp_path / "data", (x, y), value_dtype=np.float64)
    with pytest.raises(UsageError, match="no single optimum here that can be proven"):
        streamcd.train(data, tmp_path / "run", loss="log_loss", penalty="none", bias=1.0, memory="1GB")
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

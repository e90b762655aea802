"""Multinomial logistic regression beyond what every dual solver is tested for: steps, probabilities, neighbours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from reference import augmented, exact_optimum, kernel_rows, run_weights
from scipy.special import log_softmax, softmax
from sklearn.linear_model import LogisticRegression
from small_datasets import multiclass, random_rows, write_dataset

import streamcd
from streamcd.kernels import primitives
from streamcd.kernels.crammer_singer import ClassScratch, LaneColumns
from streamcd.kernels.multinomial import multinomial_visit
from streamcd.solvers.problem import row_loss


@pytest.mark.parametrize("mu", [1.0, 7.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_visit_solves_the_problem_of_each_row(scale: float, mu: float) -> None:
    """At the new variables ``log a_m - w_m·x`` is the same number for all classes, and their sum is C."""
    rng = np.random.default_rng(3)
    k, d, c = 4, 6, 2.5
    x, w = scale * rng.standard_normal((1, d)), rng.standard_normal((d + 1) * k)
    w.reshape(-1, k)[-1] = 0.0
    start = rng.dirichlet(np.ones(k)) * c
    alpha = start[None, :].copy()
    rows = kernel_rows(sp.csr_array(x), np.array([2]), value_dtype=np.float64)
    table = np.full((k, 1), c)
    costs = primitives.Costs(
        row_loss("multinomial"), 0.0, np.ones((k, 1)), table, np.array([-1]), np.zeros((1, 256), bool)
    )
    variables = primitives.Variables(alpha, np.ones((1, 1), np.uint8), w)
    totals, before = np.zeros((1, primitives.N_TOTALS)), w.copy()
    columns = LaneColumns(0, 0, k, ClassScratch(*np.empty((3, k))), 1.0 / mu, 0.0)
    multinomial_visit(np.array([0]), rows, costs, variables, columns, totals)
    assert alpha.sum() == pytest.approx(c, rel=1e-15)
    moved = (w - before).reshape(-1, k)[:-1]
    np.testing.assert_allclose(moved, x.T * (start - alpha[0]) / mu, rtol=1e-6, atol=1e-12 * scale)
    used = alpha[0] > 1e-300
    level = np.log(alpha[0][used]) - (x @ w.reshape(-1, k)[:-1])[0][used]
    assert np.ptp(level) <= 1e-4 * max(1.0, np.abs(level).max())


def test_probabilities_are_the_softmax_and_those_of_the_exact_optimum(tmp_path: Path) -> None:
    rows = multiclass()
    data = write_dataset(tmp_path / "data", rows)
    run = tmp_path / "run"
    streamcd.train(data, run, loss="multinomial", C=0.7, bias=1.0, tol=1e-10)
    x, model = augmented(rows[0], 1.0), streamcd.load_model(run)
    shares = model.predict_proba(rows[0])
    np.testing.assert_allclose(shares, softmax(x @ run_weights(run, 1.0), axis=1), rtol=1e-12)
    best = exact_optimum("multinomial", x, rows[1], 0.7)[0]
    np.testing.assert_allclose(shares, softmax(x @ best, axis=1), atol=1e-4)
    place = np.searchsorted(np.unique(rows[1]), rows[1])
    evaluation = streamcd.evaluate(data, run)
    own = log_softmax(x @ run_weights(run, 1.0), axis=1)[np.arange(place.size), place]
    assert evaluation["log_loss"] == pytest.approx(-own.mean(), rel=1e-12)


def test_two_classes_are_half_of_logistic_regression(tmp_path: Path) -> None:
    """With v = w_1 - w_0 the two problems are the same, at twice the C and half the objective."""
    rows = random_rows()
    result = streamcd.train(
        write_dataset(tmp_path / "data", rows), tmp_path / "run", loss="multinomial", C=0.5, bias=-1, tol=1e-9
    )
    best = exact_optimum("log_loss", augmented(rows[0], -1), rows[1], 1.0)[1][0]
    assert result.primal_objective == pytest.approx(0.5 * best, rel=1e-8)


def test_a_search_over_folds_ends_at_the_optimum_of_all_rows(tmp_path: Path) -> None:
    rows = multiclass()
    data = write_dataset(tmp_path / "data", rows, weight=np.linspace(0.5, 2.0, rows[1].size))
    found = streamcd.tune(data, tmp_path / "run", loss="multinomial", C=[0.1, 1.0], cv=3, bias=-1, tol=1e-9)
    cost = np.linspace(0.5, 2.0, rows[1].size).astype(np.float32) * found.best_C
    best = exact_optimum("multinomial", augmented(rows[0], -1), rows[1], cost)[1]
    assert found.primal_objective == pytest.approx(best.sum(), rel=1e-8)


@pytest.mark.parametrize("acceleration", ["auto", "none"])
def test_free_biases_end_at_the_optimum_and_the_certificate_holds(tmp_path: Path, acceleration: str) -> None:
    x, y = multiclass()
    dense = x.toarray() + 0.7
    weight = np.linspace(0.5, 2.0, y.size).astype(np.float32).astype(np.float64)
    data = streamcd.convert((dense, y, weight), tmp_path / "data", dtype="float64")
    peer = LogisticRegression(C=0.5, tol=1e-12, max_iter=10_000, solver="newton-cholesky")
    peer.fit(dense, y, sample_weight=weight)
    best = free_objective(dense, y, 0.5 * weight, peer.coef_.T, peer.intercept_)
    for tol in (1e-2, 1e-8):
        result = streamcd.train(
            data, tmp_path / "run", loss="multinomial", C=0.5, bias=1.0, unpenalized_bias=True, tol=tol,
            max_passes=3000, acceleration=acceleration, force=True,
        )  # fmt: skip
        model = streamcd.load_model(tmp_path / "run")
        ours = free_objective(dense, y, 0.5 * weight, model.weights, model.intercept)
        assert result.converged
        assert ours == pytest.approx(result.primal_objective, rel=1e-10)
        assert ours <= best * (1 + tol)
        assert result.dual_objective <= best * (1 + 1e-11)
        assert best - 1e-11 * best >= ours - result.gap * ours


def free_objective(
    x: np.ndarray, y: np.ndarray, cost: np.ndarray, w: np.ndarray, intercept: np.ndarray
) -> float:
    place = np.searchsorted(np.unique(y), y)
    log_p = log_softmax(x @ w + intercept, axis=1)[np.arange(y.size), place]
    return float(0.5 * np.sum(w * w) - cost @ log_p)


def test_the_estimator_is_scikit_learns_with_intercepts() -> None:
    x, y = multiclass()
    dense = x.toarray() + 0.7
    ours = streamcd.LogisticRegression(C=0.5, tol=1e-9, max_iter=3000).fit(dense, y)
    peer = LogisticRegression(C=0.5, tol=1e-12, max_iter=10_000, solver="newton-cholesky").fit(dense, y)
    np.testing.assert_allclose(ours.predict_proba(dense), peer.predict_proba(dense), atol=1e-4)
    np.testing.assert_allclose(ours.coef_, peer.coef_, atol=1e-3)
    one_vs_rest = streamcd.LogisticRegression(C=0.5, multi_class="ovr").fit(dense, y)
    assert one_vs_rest.model_.loss == "log_loss"
    assert streamcd.LogisticRegression().fit(dense, y > 0).coef_.shape == (1, dense.shape[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dna.scale", "letter.scale", "news20"])
def test_no_more_passes_than_crammer_singer(
    real_data: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    data = streamcd.convert(real_data(name), tmp_path / "data")
    passes = {}
    for loss in ("multinomial", "crammer_singer"):
        result = streamcd.train(data, tmp_path / loss, loss=loss, bias=-1, tol=1e-3)
        assert result.converged
        passes[loss] = result.passes
    assert passes["multinomial"] <= passes["crammer_singer"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dna.scale", "letter.scale"])
def test_probabilities_are_scikit_learns_on_real_sets(
    real_data: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    data = streamcd.convert(real_data(name), tmp_path / "data")
    streamcd.train(data, tmp_path / "run", loss="multinomial", bias=-1, tol=1e-9)
    x, y = data.to_scipy()
    x = x.astype(np.float64)
    peer = LogisticRegression(fit_intercept=False, tol=1e-10, max_iter=10_000).fit(x, y)
    ours = streamcd.load_model(tmp_path / "run").predict_proba(x)
    np.testing.assert_allclose(ours, peer.predict_proba(x), atol=1e-4)

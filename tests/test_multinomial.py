"""Multinomial logistic regression beyond what every dual solver is tested for: steps, probabilities, neighbours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from reference import augmented, exact_optimum, kernel_rows, run_weights
from scipy.special import log_softmax, softmax
from small_datasets import multiclass, random_rows, write_dataset

import streamcd
from streamcd.kernels import primitives
from streamcd.kernels.classes import ClassScratch, LaneColumns, class_visit
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
    class_visit(np.array([0]), rows, costs, variables, columns, totals, True)
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

"""L1 and elastic net: the optimum of others, certificates that hold, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pytest
from heard import Heard
from interrupted import ended, train_by_turns
from reference import OF_CLASSES, augmented, run_weights
from sklearn.linear_model import ElasticNet, Lasso
from sklearn.svm import LinearSVC
from small_datasets import multiclass, random_rows, windows_of, write_dataset

import streamcd
from streamcd import Result, evaluate, load_model, train

PENALTIES = {"l1": (1.5, 0.0), "elasticnet": (1.5, 0.3), "l2": (0.0, 2.5)}


BOTH = [(penalty, method) for method in ("newton", "dual") for penalty in ("l1", "elasticnet")]


def fit(data: Any, run: Path, penalty: str = "l1", **options: Any) -> Result:
    l1, l2 = PENALTIES[penalty]
    strengths = {name: value for name, value in (("l1", l1), ("l2", l2)) if value}
    asked = {"method": "newton", "tol": 1e-9, "max_passes": 3000, "memory": "1GB"} | strengths | options
    return train(data, run, penalty=penalty, **asked)


def test_an_l1_svm_has_the_weights_of_liblinear(tmp_path: Path) -> None:
    """Zeros at the same places, with the bias penalised like every weight."""
    x, y = random_rows(400, 15, seed=3)
    data = write_dataset(tmp_path / "data", (x, y))
    result = train(data, tmp_path / "run", penalty="l1", C=0.1, bias=1.0, method="newton", tol=1e-10)
    other = LinearSVC(penalty="l1", dual=False, C=0.1, fit_intercept=False, tol=1e-10, max_iter=100_000)
    expected = other.fit(augmented(x, 1.0), y).coef_[0]
    found = run_weights(tmp_path / "run", 1.0)[:, 0]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.array_equal(found == 0.0, np.abs(expected) < 1e-9)
    assert 0 < np.count_nonzero(found) < found.size
    assert (result.lanes[0]["l1"], result.lanes[0]["n_nonzero"]) == (1.0, np.count_nonzero(found[:-1]))


@pytest.mark.parametrize("ratio", [1.0, 0.6])
def test_a_regression_has_the_weights_of_scikit_learns_lasso_and_elastic_net(
    tmp_path: Path, ratio: float
) -> None:
    x, _ = random_rows(300, 12, seed=5)
    y = x.toarray() @ np.where(np.arange(12) % 3, 0.0, 2.0) + np.random.default_rng(0).standard_normal(300)
    data = streamcd.convert((x, y), tmp_path / "data", target=True)
    alpha = 0.05
    options: dict[str, Any] = {"l1": alpha * ratio, "penalty": "l1"}
    if ratio < 1.0:
        options |= {"penalty": "elasticnet", "l2": alpha * (1.0 - ratio)}
    other = Lasso if ratio == 1.0 else lambda **o: ElasticNet(l1_ratio=ratio, **o)
    expected = other(alpha=alpha, tol=1e-13, max_iter=100_000).fit(x.toarray(), y)
    asked = {
        "loss": "squared_error",
        "method": "newton",
        "C": 0.5 / 300,
        "bias": 1.0,
        "unpenalized_bias": True,
    }
    train(data, tmp_path / "run", tol=1e-11, **asked, **options)
    found = run_weights(tmp_path / "run", 1.0)[:, 0]
    np.testing.assert_allclose(found, np.append(expected.coef_, expected.intercept_), atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "penalty", "method"),
    [
        *(("log_loss", *both) for both in BOTH),
        *((loss, penalty, "dual") for loss in OF_CLASSES for penalty in ("l1", "elasticnet")),
    ],
)
def test_the_number_of_threads_and_interruptions_change_no_bit(
    tmp_path: Path, loss: str, penalty: str, method: str
) -> None:
    data = write_dataset(tmp_path / "data", multiclass(3, 600), n_chunks=8)
    asked: dict[str, Any] = {"C": [0.5, 5.0], "bias": 1.0, "loss": loss, "method": method, "tol": 1e-6}
    if method == "dual":
        asked["plan"] = windows_of(data, 3)
    if loss in OF_CLASSES:
        asked |= {"tol": 1e-3, "unpenalized_bias": True}
    fit(data, tmp_path / "one", penalty, threads=1, **asked)
    fit(data, tmp_path / "five", penalty, threads=5, **asked)
    train_by_turns(fit, data, tmp_path / "stopped", 2, (1, 3), penalty=penalty, **asked)
    assert ended(tmp_path / "one") == ended(tmp_path / "five") == ended(tmp_path / "stopped")


def test_the_objective_of_an_evaluation_is_that_of_the_training(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", random_rows(200, 9))
    for penalty in PENALTIES:
        result = fit(data, tmp_path / penalty, penalty, C=0.3, bias=1.0)
        found = evaluate(data, tmp_path / penalty)["primal_objective"]
        assert found == pytest.approx(result.primal_objective, rel=1e-9)
        assert (load_model(tmp_path / penalty).l1, load_model(tmp_path / penalty).l2) == PENALTIES[penalty]


@pytest.mark.parametrize(("penalty", "method"), BOTH)
def test_another_strength_starts_from_a_run(tmp_path: Path, penalty: str, method: str) -> None:
    data = write_dataset(tmp_path / "data", random_rows(400, 12))
    fit(data, tmp_path / "first", penalty, method=method)
    cold = fit(data, tmp_path / "cold", penalty, l1=1.4, method=method)
    warm = fit(data, tmp_path / "warm", penalty, l1=1.4, method=method, start_from=tmp_path / "first")
    assert warm.primal_objective == pytest.approx(cold.primal_objective, rel=1e-8)
    assert warm.passes <= cold.passes


@pytest.mark.parametrize(
    ("loss", "number", "name"), [("squared_hinge", 5, "L1R_L2LOSS_SVC"), ("log_loss", 6, "L1R_LR")]
)
def test_liblinears_numbers_and_models_are_read_and_written(
    tmp_path: Path, loss: str, number: int, name: str
) -> None:
    data = write_dataset(tmp_path / "data", random_rows())
    run, text = tmp_path / "run", tmp_path / "model.txt"
    asked = [str(data.path), str(run), "-s", str(number), "-c", "0.3", "--tol", "1e-6", "--quiet"]
    assert command_line.run("train", *asked).returncode == 0
    model = load_model(run)
    assert (model.loss, model.l1, model.l2) == (loss, 1.0, 0.0)
    assert command_line.run("export", run, text).returncode == 0
    assert text.read_text().startswith(f"solver_type {name}\n")
    assert command_line.run("import", text, tmp_path / "again").returncode == 0
    again = load_model(tmp_path / "again")
    assert (again.loss, again.l1, again.l2) == (loss, 1.0, 0.0)
    np.testing.assert_array_equal(again.weights, model.weights)
    info = command_line.run_json("info", run / "model")
    assert info["n_nonzero"] == np.count_nonzero(model.weights) < model.weights.size


def test_the_support_is_told_of_all_vectors(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", multiclass(3, 90))
    done = command_line.run(
        "train", data.path, tmp_path / "run", "--loss", "crammer_singer", "--penalty", "l1"
    )
    (line,) = (line for line in done.stdout.splitlines() if "weights not 0" in line)
    assert line.endswith(f" of {3 * data.n_features:,}")


def test_the_violation_is_no_rule_for_l1_by_rows_which_is_said(tmp_path: Path) -> None:
    data, heard = write_dataset(tmp_path / "data", random_rows()), Heard()
    result = train(data, tmp_path / "run", penalty="l1", method="dual", eps=0.1, listener=heard)
    assert any(text.startswith("--eps is about plain coordinate descent") for text in heard.messages)
    assert result.stop_reason == "gap"

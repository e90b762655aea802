"""L1 and elastic net: the optimum of others, certificates that hold, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pytest
from reference import augmented, run_weights
from sklearn.svm import LinearSVC
from small_datasets import random_rows, write_dataset

from streamcd import Result, load_model, train

PENALTIES = {"l1": (1.5, 0.0), "elasticnet": (1.5, 0.3), "l2": (0.0, 2.5)}


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

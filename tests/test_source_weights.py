"""Weights of a model trained on scaled features: in the source's units where they are shown, and said so."""

from __future__ import annotations

import html
from dataclasses import replace
from pathlib import Path

import command_line
import numpy as np
import pytest

import streamcd
from streamcd.dataset.scaling import Scaling


@pytest.fixture(scope="module")
def trained_on_scaled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A run on features divided by their deviations, of which two are in small and large units, and the rows."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(120, 4)) * np.array([1.0, 1e-3, 1e3, 10.0])
    y = np.where(x @ np.array([1.0, 2e3, 1e-3, 0.02]) > 0, 1, -1)
    folder = tmp_path_factory.mktemp("scaled")
    data = streamcd.convert((x, y), folder / "data", scale="standard", dtype="float64")
    streamcd.train(data, folder / "run", bias=1.0, tol=1e-6)
    return folder / "run", x


def test_weights_in_the_sources_units_decide_about_its_rows(
    trained_on_scaled: tuple[Path, np.ndarray],
) -> None:
    run, x = trained_on_scaled
    model = streamcd.load_model(run)
    decisions = x @ model.source_weights[:, 0] + model.intercept
    np.testing.assert_allclose(decisions, model.decision_function(x), rtol=1e-12, atol=1e-12)
    assert not np.allclose(model.weights, model.source_weights)
    assert "--scale standard" in repr(model)
    plain = replace(model, scaling=Scaling())
    assert plain.source_weights is plain.weights
    assert "--scale" not in repr(plain)


def test_tables_and_reports_say_of_what_the_weights_are(
    trained_on_scaled: tuple[Path, np.ndarray], tmp_path: Path
) -> None:
    run, _ = trained_on_scaled
    said = "in the source's units, ordered by those of the scaled features (--scale standard)"
    assert said in command_line.run("weights", run).stdout
    streamcd.write_report(run, tmp_path / "report.html")
    assert html.escape(said) in (tmp_path / "report.html").read_text()
    assert Scaling("none", "l2").describe_weights() == "for values of rows divided by their norms"
    assert Scaling().describe_weights() == ""


def test_coefficients_of_an_estimator_are_for_the_sources_values(
    trained_on_scaled: tuple[Path, np.ndarray],
) -> None:
    run, x = trained_on_scaled
    fitted = streamcd.LinearSVC().fit(str(run.parent / "data"))
    decisions = x @ fitted.coef_[0] + fitted.intercept_
    np.testing.assert_allclose(decisions, fitted.decision_function(x), rtol=1e-9, atol=1e-9)

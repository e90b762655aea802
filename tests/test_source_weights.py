"""Weights of a model trained on scaled features: in the source's units where they are shown, and said so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import streamcd


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


def test_coefficients_of_an_estimator_are_for_the_sources_values(
    trained_on_scaled: tuple[Path, np.ndarray],
) -> None:
    run, x = trained_on_scaled
    fitted = streamcd.LinearSVC().fit(str(run.parent / "data"))
    decisions = x @ fitted.coef_[0] + fitted.intercept_
    np.testing.assert_allclose(decisions, fitted.decision_function(x), rtol=1e-9, atol=1e-9)

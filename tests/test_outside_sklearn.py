"""Models as estimators of scikit-learn's, from outside: they predict the same, and refuse what has no linear estimator."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import streamcd

CLASSES = {
    "hinge": {"loss": "hinge"},
    "squared hinge, no bias": {"loss": "squared_hinge", "bias": -1.0},
    "log loss": {"loss": "log_loss"},
    "multinomial": {"loss": "multinomial"},
    "Crammer-Singer": {"loss": "crammer_singer"},
    "L1": {"loss": "log_loss", "penalty": "l1", "l1": 2.0, "method": "newton"},
}
TARGETS = {
    "squared_error": {},
    "epsilon_insensitive": {},
    "squared_epsilon_insensitive": {},
    "huber": {},
    "quantile": {"quantile": 0.3},
    "elastic net": {
        "loss": "squared_error",
        "penalty": "elasticnet",
        "l1": 3.0,
        "l2": 2.0,
        "method": "newton",
    },
}


def rows(n_classes: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n_classes)
    X = rng.normal(size=(150, 6))
    scores = X @ rng.normal(size=(6, max(n_classes, 1))) + rng.normal(size=(150, max(n_classes, 1)))
    if n_classes == 2:
        return X, (scores[:, 0] > 0) + 1.0
    return X, scores.argmax(axis=1) + 3.0 if n_classes else scores[:, 0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scale", ["none", "standard"])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("name", CLASSES)
def test_classifiers_predict_as_the_model_does(name: str, n_classes: int, scale: str, tmp_path: Path) -> None:
    X, y = rows(n_classes)
    data = streamcd.convert((X, y), tmp_path / "data", scale=scale)
    model = streamcd.train(data, tmp_path / "run", C=0.1, tol=1e-2, **{"bias": 1.0, **CLASSES[name]}).model
    theirs = pickle.loads(pickle.dumps(model.to_sklearn()))
    assert (theirs.predict(X) == model.predict(X)).all()
    decisions = model.decision_function(X)
    if decisions.shape == (150, 2):
        decisions = decisions[:, 1] - decisions[:, 0]
    np.testing.assert_allclose(theirs.decision_function(X), decisions, rtol=1e-9, atol=1e-12)
    if model.has_probabilities:
        np.testing.assert_allclose(theirs.predict_proba(X), model.predict_proba(X), rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TARGETS)
def test_regressors_predict_as_the_model_does(name: str, tmp_path: Path) -> None:
    X, y = rows()
    data = streamcd.convert((X, y), tmp_path / "data", target=True)
    options: dict[str, Any] = {"loss": name, "bias": 1.0, **TARGETS[name]}
    model = streamcd.train(data, tmp_path / "run", C=0.1, tol=1e-2, **options).model
    np.testing.assert_allclose(model.to_sklearn().predict(X), model.predict(X), rtol=1e-9, atol=1e-12)


def test_a_model_of_a_table_predicts_what_encode_gives(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"x": rng.normal(size=90), "kind": rng.choice(["a", "b", "c"], 90)})
    labels = np.where(frame.x + (frame.kind == "a") > 0.4, "yes", "no")
    data = streamcd.convert(frame.assign(y=labels), tmp_path / "data", label="y")
    model = streamcd.train(data, tmp_path / "run", loss="log_loss").model
    theirs = model.to_sklearn()
    assert theirs.predict(model.encode(frame)).tolist() == list(model.predict(frame))


@pytest.mark.parametrize(
    ("conversion", "training", "said"),
    [({"normalize": "l2"}, {}, "normalize"), ({}, {"loss": "twin"}, "twin")],
)
def test_models_without_a_linear_estimator_are_refused(
    conversion: dict[str, Any], training: dict[str, Any], said: str, tmp_path: Path
) -> None:
    X, y = rows(2)
    data = streamcd.convert((X, y), tmp_path / "data", **conversion)
    model = streamcd.train(data, tmp_path / "run", **training).model
    with pytest.raises(ValueError, match=said):
        model.to_sklearn()

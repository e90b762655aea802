"""Choosing by cross-validation: every criterion is scikit-learn's on the rows held out, folds are what was asked for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pyarrow as pa
import pytest
from heard import Heard
from sklearn import metrics
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier

import streamcd
from streamcd import StreamcdError
from streamcd import convert as convert_table
from streamcd.core.files import SEAL, WRITER, write_metadata
from streamcd.report.scores import CRITERIA
from streamcd.runs.describe import SCORES

N_ROWS, N_FEATURES = 240, 5
COSTS = [0.05, 2.0]


def table(kind: str) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """Rows with a class of two or three, or a number, and their columns of groups and folds."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(N_ROWS, N_FEATURES))
    z = x @ np.array([1.0, -2.0, 0.5, 0.0, 1.0]) + rng.normal(size=N_ROWS)
    y: Any = {"two": np.where(z > 0.8, 1, -1), "three": np.digitize(z, [-1.5, 1.5]), "numbers": z}[kind]
    columns = {f"x{k}": x[:, k] for k in range(N_FEATURES)}
    site = [f"s{k * k % 23}" if k % 50 else None for k in range(N_ROWS)]
    folds = [["north", "south", "west"][k % 3] for k in rng.integers(0, 3, N_ROWS)]
    weight = rng.choice([0.5, 1.0, 2.0], N_ROWS)
    made = pa.table({**columns, "y": y, "w": weight, "site": pa.array(site), "part": folds})
    return made, x, np.asarray(y)


def convert(kind: str, path: Path) -> streamcd.Dataset:
    of = {"target": "y"} if kind == "numbers" else {"label": "y"}
    made = table(kind)[0]
    return streamcd.convert(made, path, fold="part", drop="site", weight_column="w", dtype="float64", **of)


def auc(y: np.ndarray, h: np.ndarray, predicted: np.ndarray, w: np.ndarray) -> float:
    if h.ndim == 1:
        return metrics.roc_auc_score(y, h, sample_weight=w)
    return np.mean([metrics.roc_auc_score(y == k, h[:, k], sample_weight=w) for k in range(3)])


def log_loss(y: np.ndarray, h: np.ndarray, predicted: np.ndarray, w: np.ndarray) -> float:
    p = 1 / (1 + np.exp(-(np.c_[-h, h] if h.ndim == 1 else h)))
    return metrics.log_loss(y, p / p.sum(axis=1, keepdims=True), sample_weight=w)


THEIRS: dict[str, Any] = {
    "accuracy": lambda y, h, predicted, w: metrics.accuracy_score(y, predicted, sample_weight=w),
    "auc": auc,
    "log_loss": log_loss,
    "r2": lambda y, h, predicted, w: metrics.r2_score(y, predicted, sample_weight=w),
}


def optimum(kind: str, C: float) -> Any:
    if kind == "numbers":
        return Ridge(alpha=0.5 / C, fit_intercept=False)
    logistic = LogisticRegression(C=C, fit_intercept=False, tol=1e-12, solver="newton-cholesky")
    return logistic if kind == "two" else OneVsRestClassifier(logistic)


@pytest.mark.parametrize(
    ("kind", "scoring"),
    [
        *((kind, scoring) for kind in ("two", "three") for scoring in ("accuracy", "auc", "log_loss")),
        ("numbers", "r2"),
    ],
)
def test_scores_are_scikit_learns_of_exact_optima_on_the_rows_held_out(
    kind: str, scoring: str, tmp_path: Path
) -> None:
    made, x, y = table(kind)
    weight, part = np.array(made["w"]), np.array(made["part"])
    result = streamcd.tune(
        convert(kind, tmp_path / "data"),
        tmp_path / "run",
        loss="squared_error" if kind == "numbers" else "log_loss",
        C=COSTS,
        scoring=scoring,
        bias=-1,
        tol=1e-10,
    )
    theirs = THEIRS[scoring]
    assert result.scored_by == scoring
    means = []
    for C in COSTS:
        expected = []
        for name in ("north", "south", "west"):
            own = part == name
            # the loss of a row costs C times its weight; scikit-learn's one-vs-rest hands weights on by fitting each
            fitted = fit(optimum(kind, C), x[~own], y[~own], weight[~own])
            h = fitted.predict(x[own]) if kind == "numbers" else fitted.decision_function(x[own])
            expected.append(theirs(y[own], h, fitted.predict(x[own]), weight[own]))
        found = result.scores[f"{C:g}"]
        np.testing.assert_allclose(found["folds"], expected, rtol=1e-4)
        assert found["mean"] == pytest.approx(np.mean(expected), rel=1e-4)
        means.append(np.mean(expected) * CRITERIA[scoring].sign)
    assert result.best_C == COSTS[int(np.argmax(means))]


def test_a_search_without_costs_tries_four_and_names_its_criterion_with_auc_beside_accuracy(tmp_path) -> None:
    data = convert("two", tmp_path / "data")
    shown = command_line.run("tune", data.path, tmp_path / "run", "--loss", "log_loss").stdout
    result = streamcd.tune(data, tmp_path / "again", loss="log_loss")
    assert [*result.scores] == ["0.01", "0.1", "1", "10"]
    title, header, *rows = shown[shown.index("accuracy on 3 folds") :].splitlines()
    assert " ".join(header.split()) == "C mean accuracy mean auc fold 1 fold 2 fold 3"
    for row, (C, of) in zip(rows, result.scores.items(), strict=True):
        assert row.split()[:3] == [C, f"{of['mean']:.4f}", f"{of['auc']:.4f}"]
        assert of["auc_error"] == 0.0
    ends = {0.01: " (smallest C tried)", 10.0: " (largest C tried)"}
    assert title.startswith(f"accuracy on 3 folds, best C = {result.best_C:g}{ends.get(result.best_C, '')}; ")
    assert command_line.run_json("info", tmp_path / "run")["scores"] == result.scores
    by_auc = streamcd.tune(data, tmp_path / "auc", loss="log_loss", scoring="auc")
    for C, of in result.scores.items():
        assert by_auc.scores[C]["mean"] == pytest.approx(of["auc"], rel=1e-12)
        assert by_auc.scores[C]["accuracy"] == pytest.approx(of["mean"], rel=1e-12)


@pytest.mark.parametrize("kind", ["three", "numbers"])
def test_auc_is_beside_the_criterion_of_two_classes_alone(kind: str, tmp_path: Path) -> None:
    result = streamcd.tune(convert(kind, tmp_path / "data"), tmp_path / "run", C=[1.0])
    assert [*result.scores["1"]] == ["folds", "mean"]


def test_auc_is_left_out_where_its_scores_do_not_fit_beside_accuracy(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("streamcd.runs.held_out.LEAST_BYTES", 10**9)
    data, heard = convert("two", tmp_path / "data"), Heard()
    result = streamcd.tune(data, tmp_path / "run", C=[1.0], listener=heard)
    assert [*result.scores["1"]] == ["folds", "mean"]
    assert "no auc: the scores of 3 models do not fit in the memory" in heard.messages
    with pytest.raises(StreamcdError, match="scores"):
        streamcd.tune(data, tmp_path / "auc", C=[1.0], scoring="auc")


def fit(model: Any, x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> Any:
    if not isinstance(model, OneVsRestClassifier):
        return model.fit(x, y, sample_weight=weight)
    model.fit(x, y)
    for k, one in enumerate(model.estimators_):
        one.fit(x, (y == k).astype(int), sample_weight=weight)
    return model


def test_areas_of_scores_beyond_the_memory_are_told_with_the_bound_on_their_error(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, x, y = table("two")
    dataset, heard = convert_table((x, y), tmp_path / "data"), Heard()
    options: dict[str, Any] = {"C": [1.0], "cv": 2, "scoring": "auc"}
    exact = streamcd.tune(dataset, tmp_path / "exact", listener=heard, **options).scores["1"]["folds"]
    assert not any("in bins" in message for message in heard.messages)
    monkeypatch.setattr("streamcd.prediction.sums._LEAST_SCORES", 30)
    monkeypatch.setattr("streamcd.runs.held_out.LEAST_BYTES", 30 * 110)
    monkeypatch.setattr("streamcd.runs.held_out._AREAS_SHARE", 1e-9)
    binned = streamcd.tune(dataset, tmp_path / "binned", listener=heard, **options).scores["1"]["folds"]
    (told,) = (message for message in heard.messages if "in bins" in message)
    bound = float(re.search(r"±(\S+):", told)[1])  # type: ignore[index]
    assert exact != binned
    assert np.abs(np.subtract(exact, binned)).max() <= 1.05 * bound < 0.05
    shown = command_line.run("info", tmp_path / "binned").stdout
    assert re.search(r"\n +1 +0\.\d{4} ± 0\.0\d+ ", shown)


def test_values_of_C_that_agree_in_six_digits_have_scores_of_their_own(tmp_path) -> None:
    costs = [0.02682695795, 0.02682695801, 1.0]
    found = streamcd.tune(convert("two", tmp_path / "data"), tmp_path / "run", C=costs, cv=2)
    assert list(found.scores) == ["0.02682695795", "0.02682695801", "1"]
    assert found.best_C in costs


def test_folds_without_rows_are_refused_or_told(tmp_path: Path) -> None:
    few = convert_table((np.eye(7), np.array([0, 1, 0, 1, 0, 1, 1])), tmp_path / "few")
    with pytest.raises(StreamcdError, match="cv 8: expected a row for each fold, found 7 rows"):
        streamcd.tune(few, tmp_path / "search", C=[0.1, 1.0], cv=8)
    heard = Heard()
    streamcd.tune(few, tmp_path / "search", C=[0.1, 1.0], cv=7, listener=heard)
    assert any("its score counts as 0" in text for text in heard.warnings)


@pytest.mark.parametrize("change", [{"best_C": None}, {"scores": 3}, {"scored_by": None}])
def test_scores_with_a_seal_but_without_what_they_tell_are_refused_in_one_line(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    streamcd.tune(convert("two", tmp_path / "data"), tmp_path / "run", C=COSTS, max_passes=20)
    path = tmp_path / "run" / "scores.json"
    of_file = ("format", "format_version", SEAL, WRITER)
    fields = {name: value for name, value in json.loads(path.read_text()).items() if name not in of_file}
    changed = {name: value for name, value in (fields | change).items() if value is not None}
    write_metadata(path, SCORES, changed)
    found = command_line.run("info", tmp_path / "run")
    assert found.returncode == 2
    assert "scores.json: damaged" in found.stderr

"""Choosing by cross-validation: every criterion is scikit-learn's on the rows held out, folds are what was asked for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pyarrow as pa
import pytest
from heard import Heard
from interrupted import stopping_after
from sklearn import metrics
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier

import streamcd
from streamcd import StreamcdError
from streamcd import convert as convert_table
from streamcd.core.errors import Interrupted
from streamcd.core.randomness import assign_folds, count_cells, split_cells
from streamcd.core.setting import Setting
from streamcd.report.scores import CRITERIA, Scores
from streamcd.report.tables import score_table
from streamcd.runs.config import Search
from streamcd.runs.folds import with_folds

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
    return streamcd.convert(made, path, keep="site,part", weight_column="w", dtype="float64", **of)


def f1(kind: str) -> Any:
    def score(y: np.ndarray, h: np.ndarray, predicted: np.ndarray, w: np.ndarray) -> float:
        return metrics.f1_score(y, predicted, sample_weight=w, average="binary" if kind == "two" else "macro")

    return score


def auc(y: np.ndarray, h: np.ndarray, predicted: np.ndarray, w: np.ndarray) -> float:
    if h.ndim == 1:
        return metrics.roc_auc_score(y, h, sample_weight=w)
    return np.mean([metrics.roc_auc_score(y == k, h[:, k], sample_weight=w) for k in range(3)])


def average_precision(y: np.ndarray, h: np.ndarray, predicted: np.ndarray, w: np.ndarray) -> float:
    if h.ndim == 1:
        return metrics.average_precision_score(y, h, sample_weight=w)
    return np.mean([metrics.average_precision_score(y == k, h[:, k], sample_weight=w) for k in range(3)])


def log_loss(y: np.ndarray, h: np.ndarray, predicted: np.ndarray, w: np.ndarray) -> float:
    p = 1 / (1 + np.exp(-(np.c_[-h, h] if h.ndim == 1 else h)))
    return metrics.log_loss(y, p / p.sum(axis=1, keepdims=True), sample_weight=w)


THEIRS: dict[str, Any] = {
    "accuracy": lambda y, h, predicted, w: metrics.accuracy_score(y, predicted, sample_weight=w),
    "balanced_accuracy": lambda y, h, predicted, w: metrics.balanced_accuracy_score(
        y, predicted, sample_weight=w
    ),
    "auc": auc,
    "average_precision": average_precision,
    "log_loss": log_loss,
    "r2": lambda y, h, predicted, w: metrics.r2_score(y, predicted, sample_weight=w),
    "mae": lambda y, h, predicted, w: metrics.mean_absolute_error(y, predicted, sample_weight=w),
    "mse": lambda y, h, predicted, w: metrics.mean_squared_error(y, predicted, sample_weight=w),
}


OF_CLASS: dict[str, Any] = {
    "f1": lambda own, h, said, w: metrics.f1_score(own, said, sample_weight=w),
    "auc": lambda own, h, said, w: metrics.roc_auc_score(own, h, sample_weight=w),
    "average_precision": lambda own, h, said, w: metrics.average_precision_score(own, h, sample_weight=w),
}
"""Measures of one class, by which rows are of it, their scores for it, and which are predicted to be."""


def of_class(kind: str, scoring: str, positive: int) -> Any:
    def score(y: np.ndarray, h: np.ndarray, predicted: np.ndarray, w: np.ndarray) -> float:
        scores = (h if positive == 1 else -h) if kind == "two" else h[:, positive]
        return OF_CLASS[scoring](y == positive, scores, predicted == positive, w)

    return score


def optimum(kind: str, C: float) -> Any:
    if kind == "numbers":
        return Ridge(alpha=0.5 / C, fit_intercept=False)
    logistic = LogisticRegression(C=C, fit_intercept=False, tol=1e-12, solver="newton-cholesky")
    return logistic if kind == "two" else OneVsRestClassifier(logistic)


@pytest.mark.parametrize(
    ("kind", "scoring", "positive"),
    [
        (k, s, None)
        for k in ("two", "three")
        for s in ("accuracy", "auc", "average_precision", "log_loss", "balanced_accuracy", "f1")
    ]
    + [("numbers", s, None) for s in ("r2", "mae", "mse")]
    + [(k, s, p) for k, p in (("two", -1), ("three", 2)) for s in ("auc", "average_precision", "f1")],
)
def test_scores_are_scikit_learns_of_exact_optima_on_the_rows_held_out(
    kind, scoring, positive, tmp_path
) -> None:
    made, x, y = table(kind)
    weight, part = np.array(made["w"]), np.array(made["part"])
    result = streamcd.tune(
        convert(kind, tmp_path / "data"),
        tmp_path / "run",
        loss="squared_error" if kind == "numbers" else "log_loss",
        C=COSTS,
        fold="part",
        scoring=scoring,
        positive=positive,
        bias=-1,
        tol=1e-10,
    )
    theirs = f1(kind) if scoring == "f1" else THEIRS[scoring]
    theirs = theirs if positive is None else of_class(kind, scoring, positive)
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


def fit(model: Any, x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> Any:
    if not isinstance(model, OneVsRestClassifier):
        return model.fit(x, y, sample_weight=weight)
    model.fit(x, y)
    for k, one in enumerate(model.estimators_):
        one.fit(x, (y == k).astype(int), sample_weight=weight)
    return model


def folds_of(dataset: streamcd.Dataset, search: Search) -> np.ndarray:
    folded, found = with_folds(dataset, search, 7, 10**9)
    folds = folded.folds_of(np.arange(dataset.n_rows), 7, found.cv)
    assert set(folds.tolist()) == set(range(found.cv))
    return folds


def test_groups_stay_together_in_folds_of_about_one_size(tmp_path) -> None:
    dataset = convert("two", tmp_path / "data")
    folds = folds_of(dataset, Search(4, groups="site"))
    site = np.array([str(value) for value in table("two")[0]["site"].to_pylist()])
    assert all(len(set(folds[site == name].tolist())) == 1 for name in set(site))
    largest = max(np.unique(site, return_counts=True)[1])
    sizes = np.bincount(folds)
    assert sizes.size == 4
    assert sizes.max() - sizes.min() <= largest
    again = folds_of(streamcd.open(tmp_path / "data"), Search(4, groups="site"))
    assert again.tolist() == folds.tolist()


def test_strata_differ_by_a_row_at_most(tmp_path) -> None:
    dataset = convert("three", tmp_path / "data")
    folds, y = folds_of(dataset, Search(7, stratify=True)), table("three")[2]
    for label in range(3):
        assert np.ptp(np.bincount(folds[y == label], minlength=7)) <= 1
    assert np.ptp(np.bincount(folds)) <= 1
    # not by their order in the source
    assert not np.array_equal(np.sort(folds[:70]), np.repeat(np.arange(7), 10))


def test_a_dataset_is_given_back_as_it_was(tmp_path) -> None:
    dataset = convert("two", tmp_path / "data")
    before = dataset.folds_of(np.arange(N_ROWS), 0, 5).tolist()
    streamcd.tune(dataset, tmp_path / "run", C=[1.0, 2.0], groups="site", cv=3)
    assert dataset.folds_of(np.arange(N_ROWS), 0, 5).tolist() == before


@pytest.mark.parametrize("method", ["dual", "newton"])
def test_a_search_by_groups_that_was_stopped_goes_on_to_the_same_bits(method, tmp_path) -> None:
    dataset = convert("two", tmp_path / "data")
    options: dict[str, Any] = {"C": COSTS, "groups": "site", "cv": 3, "scoring": "auc", "method": method}
    whole = streamcd.tune(dataset, tmp_path / "whole", **options)
    with pytest.raises(Interrupted):
        streamcd.tune(dataset, tmp_path / "stopped", **options, stop_requested=stopping_after(1))
    result = streamcd.resume(tmp_path / "stopped")
    assert (result.scores, result.best_C) == (whole.scores, whole.best_C)
    model, other = (streamcd.load_model(tmp_path / name) for name in ("stopped", "whole"))
    assert model.weights.tobytes() == other.weights.tobytes()


def test_within_a_standard_error_the_strongest_penalty_is_chosen() -> None:
    def of(C: float, *folds: float) -> Scores:
        return Scores(Setting(C, 0.0), folds, float(np.mean(folds)))

    scores = [of(0.1, 0.5, 0.6), of(1.0, 0.7, 0.8), of(10.0, 0.74, 0.84), of(100.0, 0.7, 0.7)]
    by_mean, by_error = (CRITERIA["accuracy"].best(scores, by_error=error) for error in (False, True))
    assert (by_mean.setting.C, by_error.setting.C) == (10.0, 1.0)
    losses = [of(C, *(1 - fold for fold in folds)) for (C, _), folds, _ in scores]
    by_mean, by_error = (CRITERIA["log_loss"].best(losses, by_error=error) for error in (False, True))
    assert (by_mean.setting.C, by_error.setting.C) == (10.0, 1.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scoring": "r2"}, "expected one of auc, .* for classes, found 'r2'"),
        ({"scoring": "log_loss", "loss": "hinge"}, "log_loss needs probabilities, which hinge has not"),
        (
            {"groups": "none"},
            "expected a column 'none' kept beside the rows, it has site, part; .* --keep none",
        ),
        ({"groups": "site", "stratify": True}, "groups and stratify exclude each other"),
        ({"fold": "site"}, "expected a fold for every row, found 5 rows without"),
        ({"groups": "part", "cv": 4}, "expected at least 4 groups for --cv 4, found 3"),
    ],
)
def test_what_cannot_be_chosen_by_is_refused_in_a_line(options, said, tmp_path) -> None:
    dataset = convert("two", tmp_path / "data")
    with pytest.raises(StreamcdError, match=said):
        streamcd.tune(dataset, tmp_path / "run", **{"loss": "log_loss", "C": [1.0, 2.0], **options})
    assert not (tmp_path / "run").exists()


def test_areas_of_scores_beyond_the_memory_are_told_with_the_bound_on_their_error(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, heard = convert("two", tmp_path / "data"), Heard()
    options: dict[str, Any] = {"C": [1.0], "cv": 2, "scoring": "auc"}
    exact = streamcd.tune(dataset, tmp_path / "exact", listener=heard, **options).scores["1"]["folds"]
    assert not any("in bins" in message for message in heard.messages)
    monkeypatch.setattr("streamcd.prediction.roc_auc._LEAST_SCORES", 30)
    monkeypatch.setattr("streamcd.runs.criteria.LEAST_BYTES", 30 * 110)
    monkeypatch.setattr("streamcd.runs.search._SCORES_SHARE", 1e-9)
    binned = streamcd.tune(dataset, tmp_path / "binned", listener=heard, **options).scores["1"]["folds"]
    (told,) = (message for message in heard.messages if "in bins" in message)
    bound = float(re.search(r"±(\S+):", told)[1])  # type: ignore[index]
    assert exact != binned
    assert np.abs(np.subtract(exact, binned)).max() <= 1.05 * bound < 0.05


def test_groups_whose_dictionary_does_not_fit_are_refused_with_the_arithmetic(tmp_path) -> None:
    n_rows = 50_000
    made = pa.table(
        {"x": np.arange(n_rows) % 7, "y": np.arange(n_rows) % 2, "g": [f"g{k}" for k in range(n_rows)]}
    )
    dataset = streamcd.convert(made, tmp_path / "data", label="y", keep="g")
    with pytest.raises(StreamcdError, match=r"MB [0-9,]+ values of 'g' so far = .* needed"):
        streamcd.tune(dataset, tmp_path / "run", C=[1.0], groups="g", memory="225MB")


def test_the_command_takes_the_options_and_its_report_draws_the_scores(tmp_path) -> None:
    convert("two", tmp_path / "data")
    arguments = ("-C", "0.1,1", "--scoring", "auc", "--stratify", "--cv", "4", "--one-standard-error")
    found = command_line.run_json("tune", tmp_path / "data", tmp_path / "run", *arguments)
    assert found["scored_by"] == "auc"
    assert [len(of["folds"]) for of in found["scores"].values()] == [4, 4]
    pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")
    assert command_line.run("report", tmp_path / "run", "-o", tmp_path / "r.html").returncode == 0
    page = (tmp_path / "r.html").read_text()
    assert "Area under the ROC curve of the models trained without a fold" in page
    assert "<th>fold 1</th><th>fold 2</th><th>fold 3</th><th>fold 4</th>" in page
    for C, of in found["scores"].items():
        assert re.search(
            f"<td>{C}</td><td>{of['mean']:.4f}</td><td>[0-9.]+</td>{cells(of['folds'])}</tr>", page
        )


def cells(scores: list[float]) -> str:
    return "".join(f"<td>{score:.4f}</td>" for score in scores)


def test_the_table_of_scores_names_the_folds_of_a_column_and_of_several_seeds(tmp_path) -> None:
    data = convert("two", tmp_path / "data")
    found = streamcd.tune(data, tmp_path / "run", C=COSTS, fold="part")
    assert score_table(found.to_json()).header == ["C", "mean", "standard error", "north", "south", "west"]
    found = streamcd.tune(data, tmp_path / "seeds", C=COSTS, cv=2, cv_seeds=2)
    assert found.fold_names == ["seed 1, fold 1", "seed 1, fold 2", "seed 2, fold 1", "seed 2, fold 2"]
    assert score_table(found.to_json(), most_folds=3).header == ["C", "mean", "standard error"]
    assert score_table(found.to_json()).rows[0][3:] == [f"{s:.4f}" for s in found.scores["0.05"]["folds"]]


def test_of_very_many_settings_the_table_of_scores_has_the_best_and_the_chosen_one() -> None:
    costs = range(1, 101)
    scores = {f"{C}": {"folds": [C / 200, C / 100], "mean": 0.75 * C / 100} for C in costs}
    search = {"scores": scores, "best_C": 2.0, "best_l1": 0.0, "scored_by": "auc", "fold_names": ["a", "b"]}
    table = score_table(search)
    assert [row[0] for row in table.rows] == ["2", *map(str, range(72, 101))]
    assert table.title.endswith("on 2 folds, best C = 2; the 30 best settings, 70 left out")


def test_values_of_C_that_agree_in_six_digits_have_scores_of_their_own(tmp_path) -> None:
    costs = [0.02682695795, 0.02682695801, 1.0]
    found = streamcd.tune(convert("two", tmp_path / "data"), tmp_path / "run", C=costs, cv=2)
    assert list(found.scores) == ["0.02682695795", "0.02682695801", "1"]
    assert found.best_C in costs


@pytest.mark.parametrize("method", ["dual", "newton"])
def test_folds_by_several_seeds_are_scored_by_models_that_have_not_seen_them(method, tmp_path) -> None:
    _, x, y = table("two")
    weight = np.array(table("two")[0]["w"])
    data, problem = convert("two", tmp_path / "data"), {"loss": "log_loss", "bias": -1, "tol": 1e-10}
    result = streamcd.tune(
        data, tmp_path / "run", C=[0.5], cv=3, cv_seeds=2, scoring="log_loss", method=method, **problem
    )
    scores = result.scores["0.5"]
    cells = assign_folds(np.arange(N_ROWS), 0, count_cells(3, 2))
    held = split_cells(count_cells(3, 2), 3, 2, 0)[:, cells]
    assert held[:3].sum(axis=0).tolist() == held[3:].sum(axis=0).tolist() == [1] * N_ROWS
    assert not np.array_equal(held[:3], held[3:])
    for own, score in zip(held, scores["folds"], strict=True):
        model = optimum("two", 0.5).fit(x[~own], y[~own], weight[~own])
        assert score == pytest.approx(
            log_loss(y[own], model.decision_function(x[own]), y[own], weight[own]), rel=1e-4
        )
    assert scores["mean"] == pytest.approx(np.mean(scores["folds"]))


def test_several_seeds_share_the_reads_and_resume_to_the_same_scores(tmp_path) -> None:
    data = convert("two", tmp_path / "data")
    options: dict[str, Any] = {"C": COSTS, "cv": 3, "loss": "log_loss", "groups": "site"}
    one = streamcd.tune(data, tmp_path / "one", **options)
    whole = streamcd.tune(data, tmp_path / "whole", cv_seeds=4, **options)
    assert len(whole.scores["2"]["folds"]) == 12
    assert whole.folds["bytes_read"] <= 1.5 * one.folds["bytes_read"]
    with pytest.raises(Interrupted):
        streamcd.tune(data, tmp_path / "cut", cv_seeds=4, stop_requested=stopping_after(1), **options)
    assert streamcd.resume(tmp_path / "cut").scores == whole.scores


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"cv": 5, "cv_seeds": 21}, "expected from 1 to 20 seeds for 5 folds"),
        ({"cv_seeds": 0}, "expected from 1 to"),
        ({"cv_seeds": 2, "fold": "part"}, "fold and cv_seeds exclude each other"),
    ],
)
def test_seeds_that_do_not_fit_the_folds_are_refused(options, complaint, tmp_path) -> None:
    with pytest.raises(StreamcdError, match=complaint):
        streamcd.tune(convert("two", tmp_path / "data"), tmp_path / "run", C=COSTS, **options)


@pytest.mark.parametrize("kind", ["two", "three"])
def test_an_evaluation_measures_the_class_asked_for(kind, tmp_path) -> None:
    """Of the smallest label, which is never the one by default."""
    data, x, y = convert(kind, tmp_path / "data"), *table(kind)[1:]
    result = streamcd.train(data, tmp_path / "run", loss="log_loss")
    decisions, predicted = result.model.decision_function(x), result.model.predict(x)
    h, positive = (-decisions, -1) if kind == "two" else (decisions[:, 0], 0)
    found = streamcd.evaluate(data, result.model, positive=positive, unweighted=True)
    own, said = y == positive, predicted == positive
    assert found["positive"] == positive
    assert found["precision"] == pytest.approx(metrics.precision_score(own, said))
    assert found["recall"] == pytest.approx(metrics.recall_score(own, said))
    for name, measure in OF_CLASS.items():
        assert found[name] == pytest.approx(measure(own, h, said, None)), name


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"scoring": "f1", "positive": "yes"}, "positive: expected one of -1, 1, found 'yes'"),
        (
            {"positive": 1},
            "positive: expected one of auc, average_precision, f1 as scoring, found the default",
        ),
    ],
)
def test_a_positive_class_that_cannot_be_measured_is_refused(options, complaint, tmp_path) -> None:
    data = convert("two", tmp_path / "data")
    with pytest.raises(StreamcdError, match=complaint):
        streamcd.tune(data, tmp_path / "run", C=COSTS, **options)
    streamcd.train(data, tmp_path / "run")
    with pytest.raises(StreamcdError, match="positive: expected one of -1, 1, found 3"):
        streamcd.evaluate(data, tmp_path / "run", positive=3)


def test_measures_of_one_class_tell_which_and_warn_where_it_is_not_the_rare_one(tmp_path) -> None:
    rng = np.random.default_rng(0)
    rare = rng.random(400) < 0.1
    made = pa.table({"x": rng.normal(size=400) + rare, "kind": np.where(rare, "fraud", "ok")})
    convert_table(made, tmp_path / "data", label="kind")
    done = command_line.run(
        "tune", tmp_path / "data", tmp_path / "run", "-C", "1", "--scoring", "f1", "--cv", 2
    )
    told = done.stdout + done.stderr
    assert f"F1 is of ok, the class of {np.mean(~rare):.0%} of the rows" in told
    assert "mean F1 of ok " in told
    assert (
        "average precision of ok " in command_line.run("evaluate", tmp_path / "data", tmp_path / "run").stdout
    )


def test_folds_without_rows_are_refused_or_told(tmp_path: Path) -> None:
    few = convert_table((np.eye(7), np.array([0, 1, 0, 1, 0, 1, 1])), tmp_path / "few")
    with pytest.raises(StreamcdError, match="--cv 8: expected a row for each fold, found 7 rows"):
        streamcd.tune(few, tmp_path / "search", C=[0.1, 1.0], cv=8)
    heard = Heard()
    streamcd.tune(few, tmp_path / "search", C=[0.1, 1.0], cv=7, listener=heard)
    assert any("its score counts as 0" in text for text in heard.warnings)

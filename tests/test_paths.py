"""Paths over λ: every model at its own optimum, picked by its values, searched by cross-validation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pytest
from interrupted import train_by_turns
from sklearn.linear_model import LogisticRegression, lasso_path
from small_datasets import multiclass, random_rows, write_dataset

import streamcd
from streamcd import evaluate, load_model, train, tune
from streamcd.core.errors import ModelError
from streamcd.runs import resolve

STRENGTHS = [8.0, 3.0, 1.0, 0.3]


def regression(n_rows: int = 300, n_features: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Rows of noisy linear targets, of which a third of the features matter."""
    x = random_rows(n_rows, n_features, seed=5)[0].toarray()
    true = np.where(np.arange(n_features) % 3, 0.0, 2.0)
    return x, x @ true + np.random.default_rng(0).standard_normal(n_rows)


def test_a_path_has_the_solutions_of_scikit_learns_lasso_path(tmp_path: Path) -> None:
    x, y = regression()
    y = y - y.mean()
    x = x - x.mean(axis=0)
    data = streamcd.convert((x, y), tmp_path / "data", target=True, dtype="float64")
    alphas = np.geomspace(1.0, 1e-3, 12) * np.abs(x.T @ y).max() / y.size
    _, expected, _ = lasso_path(x, y, alphas=alphas, tol=1e-12, max_iter=100_000)
    asked: dict[str, Any] = {"loss": "squared_error", "method": "newton", "C": 0.5 / 300, "bias": "none"}
    result = train(data, tmp_path / "run", penalty="l1", l1=alphas, tol=1e-10, **asked)
    assert [lane["l1"] for lane in result.lanes] == sorted(alphas, reverse=True)
    for lane, weights in zip(result.lanes, expected.T, strict=True):
        model = load_model(tmp_path / "run", l1=lane["l1"])
        least = lane["l1"] * np.abs(weights).sum() + 0.5 / 300 * ((y - x @ weights) ** 2).sum()
        assert lane["primal_objective"] == pytest.approx(least, rel=1e-8)
        assert lane["n_nonzero"] == np.count_nonzero(model.weights)
        np.testing.assert_allclose(model.weights[:, 0], weights, atol=1e-5)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of the keyword penalty, which older versions need
def test_a_grid_of_c_and_l1_has_the_objectives_of_scikit_learn(tmp_path: Path) -> None:
    x, y = random_rows(250, 8, seed=4)
    data = write_dataset(tmp_path / "data", (x, y))
    asked: dict[str, Any] = {"loss": "log_loss", "method": "newton", "bias": "none", "penalty": "elasticnet"}
    result = train(data, tmp_path / "run", l1=STRENGTHS, l2=0.5, C=[0.2, 2.0], tol=1e-10, **asked)
    assert [(lane["C"], lane["l1"]) for lane in result.lanes] == [
        (C, l1) for C in (0.2, 2.0) for l1 in STRENGTHS
    ]
    signs = np.where(y > 0, 1.0, -1.0)
    for lane in result.lanes:
        C, l1 = lane["C"], lane["l1"]
        other = LogisticRegression(
            l1_ratio=l1 / (l1 + 0.5),
            C=C / (l1 + 0.5),
            solver="saga",
            penalty="elasticnet",
            fit_intercept=False,
            tol=1e-12,
            max_iter=100_000,
        )
        w = other.fit(x, y).coef_[0]
        least = l1 * np.abs(w).sum() + 0.25 * w @ w + C * np.logaddexp(0.0, -signs * (x @ w)).sum()
        assert lane["primal_objective"] == pytest.approx(least, rel=1e-8)


def groups_of(run: Path) -> list[tuple[bytes, list[int]]]:
    """Weights and passes of each group of a run."""
    states = map(np.load, sorted(run.glob("group-*/state.npz")))
    return [(state["w"].tobytes(), state["passes"].tolist()) for state in states]


def test_groups_of_a_path_are_resumed_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After interruptions, and where the time was up in a group."""
    training_memory = resolve.training_memory

    def memory_of_few(options: Any, problem: Any, lanes: Any, dataset: Any) -> Any:
        memory = training_memory(options, problem, lanes, dataset)
        return memory if lanes.n_lanes <= 3 else replace(memory, weights=1 << 50)

    monkeypatch.setattr(resolve, "training_memory", memory_of_few)
    data = write_dataset(tmp_path / "data", multiclass(3, 500), n_chunks=8)
    asked: dict[str, Any] = {
        "penalty": "l1",
        "method": "newton",
        "tol": 1e-9,
        "l1": STRENGTHS,
        "loss": "log_loss",
    }
    whole = train(data, tmp_path / "whole", **asked)
    assert len(groups_of(tmp_path / "whole")) == 4
    for l1 in STRENGTHS:
        own = train(data, tmp_path / f"own-{l1}", **asked | {"l1": l1})
        mine = [lane for lane in whole.lanes if lane["l1"] == l1]
        for lane, other in zip(mine, own.lanes, strict=True):
            assert lane["primal_objective"] == pytest.approx(other["primal_objective"], rel=2e-9)
    train_by_turns(train, data, tmp_path / "stopped", 11, (7,), **asked)
    late = train(data, tmp_path / "late", max_seconds=1e-9, **asked)
    assert late.stop_reason == "time"
    resumed = streamcd.resume(tmp_path / "late")
    assert resumed.converged
    for run in ("stopped", "late"):
        assert groups_of(tmp_path / run) == groups_of(tmp_path / "whole")


def test_a_lane_of_a_path_ends_where_its_own_run_ends(tmp_path: Path) -> None:
    """For several classes too."""
    data = write_dataset(tmp_path / "data", multiclass(3, 400))
    asked: dict[str, Any] = {"penalty": "l1", "method": "newton", "tol": 1e-9, "bias": 1.0}
    path = train(data, tmp_path / "path", l1=STRENGTHS, **asked)
    for l1 in STRENGTHS:
        own = train(data, tmp_path / f"own-{l1}", l1=l1, **asked)
        mine = [lane for lane in path.lanes if lane["l1"] == l1]
        for lane, other in zip(mine, own.lanes, strict=True):
            assert lane["primal_objective"] == pytest.approx(other["primal_objective"], rel=2e-9)
            assert (lane["label"], lane["n_nonzero"]) == (other["label"], other["n_nonzero"])


def test_every_command_picks_a_model_by_its_c_and_l1(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", random_rows(300, 10))
    run = tmp_path / "run"
    trained = command_line.run_json(
        "train", data.path, run, "--penalty", "l1", "--l1", "0.3,3", "-C", "0.2,2", "--tol", "1e-8"
    )
    assert [(lane["C"], lane["l1"]) for lane in trained["lanes"]] == [
        (0.2, 3.0),
        (0.2, 0.3),
        (2.0, 3.0),
        (2.0, 0.3),
    ]
    for lane in trained["lanes"]:
        picked = ["-C", lane["C"], "--l1", lane["l1"]]
        found = command_line.run_json("evaluate", data.path, run, *picked)
        assert found["primal_objective"] == pytest.approx(lane["primal_objective"], rel=1e-9)
        command_line.run_json("predict", data.path, run, *picked, "-o", tmp_path / "out.csv", "--force")
        command_line.run_json("export", run, tmp_path / "model.txt", *picked, "--force")
        assert (load_model(run, lane["C"], l1=lane["l1"]).l1) == lane["l1"]
    command_line.run_json("report", run, "-o", tmp_path / "page.html", *picked)
    described = command_line.run_json("info", run)
    settings = [(C, l1) for C in (0.2, 2.0) for l1 in (0.3, 3.0)]
    assert [(of["C"], of["l1"]) for of in described["models"]] == settings
    counts = [np.count_nonzero(load_model(run, C, l1=l1).weights) for C, l1 in settings]
    assert [of["n_nonzero"] for of in described["models"]] == counts
    inside = command_line.run_json("info", run / "model")
    assert inside["models"] == described["models"]
    assert inside["next"] == f"streamcd info {run / 'model' / 'C=0.2,l1=0.3'}"
    for place in (run, run / "model"):
        shown = command_line.run("info", place).stdout
        assert "convert" not in shown
        lines = [line.split() for line in shown.splitlines()]
        for (C, l1), count in zip(settings, counts, strict=True):
            assert [f"{C:g}", f"{l1:g}", str(count)] in lines
    with pytest.raises(
        ModelError, match=r"a model for each of C = 0.2, l1 = 0.3; .*: name one with C and l1"
    ):
        load_model(run)
    with pytest.raises(ModelError, match="name one with l1"):
        load_model(run, 2.0)
    with pytest.raises(ModelError, match=r"no model for C = 2, l1 = 1; it has C = 0.2, l1 = 0.3"):
        load_model(run, 2.0, l1=1.0)
    assert command_line.run_json("verify", run)["ok"]


def test_a_search_takes_the_c_and_l1_of_the_best_mean(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", random_rows(400, 10))
    asked: dict[str, Any] = {"penalty": "elasticnet", "loss": "log_loss", "tol": 1e-6}
    found = tune(data, tmp_path / "search", C=[0.05, 1.0], l1=STRENGTHS, cv=3, **asked)
    means = {(C, l1): found.scores[f"C={C},l1={l1}"]["mean"] for C in (0.05, 1.0) for l1 in STRENGTHS}
    assert len(means) == len(found.scores)
    best = max(means, key=lambda one: (means[one], -one[0], one[1]))
    assert (found.best_C, found.best_l1) == best
    assert [(lane["C"], lane["l1"]) for lane in found.lanes] == [best]
    alone = train(data, tmp_path / "alone", C=best[0], l1=best[1], **asked)
    assert found.primal_objective == pytest.approx(alone.primal_objective, rel=1e-6)


def test_a_search_over_l1_alone_needs_no_c(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", random_rows(300, 10))
    found = command_line.run_json(
        "tune", data.path, tmp_path / "run", "--penalty", "l1", "--l1", "0.1,1,10", "--cv", 3
    )
    assert found["best_C"] == 1.0
    assert found["best_l1"] in (0.1, 1.0, 10.0)
    assert command_line.run_json("info", tmp_path / "run")["best_l1"] == found["best_l1"]
    command_line.run_json("report", tmp_path / "run", "-o", tmp_path / "page.html")
    shown = command_line.run("info", tmp_path / "run").stdout
    ends = {0.1: " (smallest l1 tried)", 1.0: "", 10.0: " (largest l1 tried)"}[found["best_l1"]]
    assert f"best C = 1, l1 = {found['best_l1']:g}{ends}\n" in shown


@pytest.mark.parametrize(
    ("loss", "options", "criterion"),
    [
        ("squared_error", {}, "r2"),
        ("quantile", {"quantile": 0.9}, "loss"),
        ("huber", {"delta": 0.5}, "loss"),
        ("epsilon_insensitive", {}, "loss"),
    ],
)
def test_a_search_on_targets_chooses_by_the_loss(
    tmp_path: Path, loss: str, options: dict[str, Any], criterion: str
) -> None:
    """By R² a model of the 90th percentile would be chosen for how near it is to the mean."""
    x, y = regression()
    y = y + np.random.default_rng(1).exponential(3.0, y.size)
    data = streamcd.convert((x, y), tmp_path / "data", target=True)
    costs = [1e-4, 0.01, 1.0]
    found = tune(data, tmp_path / "run", C=costs, cv=3, loss=loss, tol=1e-5, bias=1.0, **options)
    assert found.scored_by == criterion
    means = {float(C): each["mean"] for C, each in found.scores.items()}
    choose = max if criterion == "r2" else min
    assert found.best_C == choose(means, key=lambda C: means[C])
    if criterion == "loss":
        whole = evaluate(data, tmp_path / "run")["loss"]
        assert whole == pytest.approx(means[found.best_C], rel=0.2)
    if loss in ("squared_error", "quantile"):  # a report of each criterion
        page = tmp_path / "page.html"
        streamcd.write_report(tmp_path / "run", page)
        assert "best C" in page.read_text()

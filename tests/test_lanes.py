"""Several problems in one visit of a row: paths over C, code matrices, folds, groups, and beginnings from other runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from small_datasets import columns_of, multiclass, random_rows, write_dataset

import streamcd
from streamcd import Dataset, load_model, train, tune
from streamcd.core.errors import ModelError, UsageError
from streamcd.dataset.dataset import assign_folds
from streamcd.runs.config import problem_of, reopen
from streamcd.runs.options import ProblemOptions, TrainOptions
from streamcd.runs.resolve import resolve, share_memory_anew, training_memory
from streamcd.solvers.problem import make_problem

LOSSES = ["hinge", "squared_hinge", "log_loss", "crammer_singer"]


def lanes_of(result: Any) -> dict[tuple[Any, float], dict[str, Any]]:
    return {(lane["label"], lane["C"]): lane for lane in result.lanes}


@pytest.mark.parametrize("loss", [*LOSSES, "twin"])
def test_every_C_of_a_path_ends_where_its_own_run_ends(tmp_path: Path, loss: str) -> None:
    data = write_dataset(tmp_path / "data", multiclass(n_rows=60))
    path = train(data, tmp_path / "path", loss=loss, C=[0.1, 1.0, 3.0], tol=1e-5, max_passes=20_000)
    assert path.converged
    for C in (0.1, 1.0, 3.0):
        single = train(data, tmp_path / f"single-{C}", loss=loss, C=C, tol=1e-5, max_passes=20_000)
        for key, lane in lanes_of(single).items():
            together = lanes_of(path)[key]
            allowed = 1e-5 * (lane["primal_objective"] + together["primal_objective"])
            assert abs(lane["primal_objective"] - together["primal_objective"]) <= allowed
        model = streamcd.load_model(path.run, C=C)
        assert model.C == C
        np.testing.assert_allclose(model.weights, single.model.weights, atol=0.02)


def test_a_path_without_a_best_C_asks_which(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", random_rows())
    result = train(data, tmp_path / "run", C=[0.1, 1.0])
    with pytest.raises(ModelError, match="name one with C"):
        streamcd.load_model(result.run)
    with pytest.raises(ModelError, match=r"no model for C = 0\.5; it has C = 0\.1; C = 1"):
        streamcd.load_model(result.run, C=0.5)


def test_lanes_that_do_not_fit_the_memory_go_in_groups_and_a_lane_that_does_not_is_refused(
    tmp_path: Path,
) -> None:
    rows = multiclass(n_classes=6)
    wide = sp.csr_array((rows[0].data, rows[0].indices, rows[0].indptr), shape=(rows[0].shape[0], 2_500_000))
    data = write_dataset(tmp_path / "data", (wide, rows[1]))
    result = train(data, tmp_path / "run", memory="212MB", max_passes=3, acceleration="none")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["n_groups"] == 2
    assert (result.n_lanes, result.model.weights.shape) == (6, (2_500_000, 6))
    assert np.array_equal(load_model(tmp_path / "run").weights, result.model.weights)
    wider = sp.csr_array((wide.data, wide.indices, wide.indptr), shape=(wide.shape[0], 20_000_000))
    with pytest.raises(UsageError, match=r"weights .* needed"):
        train(write_dataset(tmp_path / "wider", (wider, rows[1])), tmp_path / "small", memory="235MB")


def test_a_code_matrix_trains_the_classes_that_it_names(tmp_path: Path) -> None:
    x, y = multiclass(n_classes=3)
    data = write_dataset(tmp_path / "data", (x, y))
    classes = np.unique(y)
    one_vs_one = [[1, 1, 0], [-1, 0, 1], [0, -1, -1]]
    result = train(data, tmp_path / "run", code=one_vs_one, tol=1e-6, max_passes=20_000)
    for lane, (positive, negative) in enumerate([(0, 1), (0, 2), (1, 2)]):
        mine = np.isin(y, classes[[positive, negative]])
        pair = write_dataset(
            tmp_path / f"pair-{lane}", (sp.csr_array(x[mine]), (y[mine] == classes[positive]) * 1.0)
        )
        alone = train(pair, tmp_path / f"alone-{lane}", tol=1e-6, max_passes=20_000)
        assert result.lanes[lane]["primal_objective"] == pytest.approx(alone.primal_objective, rel=1e-5)
    accuracy = streamcd.evaluate(tmp_path / "data", result.model)["accuracy"]
    assert accuracy > 0.6


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ([[1, 1], [-1, 1]], "column 2 .* one side only"),
        ([[1], [-1], [0]], "row for each of 2 classes"),
        ([[1, -1], [-1, 1], [0, 0]], "row 3 .* all zeros"),
    ],
)
def test_a_code_matrix_that_cannot_work_is_refused(code: list[list[int]], message: str) -> None:
    classes = np.arange(3.0) if message.startswith("row 3") else np.arange(2.0)
    with pytest.raises(UsageError, match=message):
        make_problem(
            loss="hinge",
            classes=classes,
            n_features=2,
            code=np.array(code),
        )


def test_a_code_file_is_read_or_its_row_named(tmp_path: Path) -> None:
    path = tmp_path / "code.txt"
    path.write_text("+1 -1\n-1, 1\n")
    assert ProblemOptions(code=path).code == [[1, -1], [-1, 1]]
    path.write_text("1 -1\n-1 2\n")
    with pytest.raises(UsageError, match=r"row 2: expected 2 entries of -1, 0, \+1 .*found"):
        ProblemOptions(code=path)
    path.write_text("1 -1\n\n-1\n")
    with pytest.raises(UsageError, match="row 2"):
        ProblemOptions(code=path)
    path.write_bytes(b"\x1f\x8b\xff\n")
    with pytest.raises(UsageError, match="row 1"):
        ProblemOptions(code=path)


# ---------------------------------------------------------------------------------------------------------------------
# Beginnings


@pytest.mark.parametrize("loss", LOSSES)
def test_a_warm_start_begins_with_w_of_alpha_and_saves_passes(tmp_path: Path, loss: str) -> None:
    data = write_dataset(tmp_path / "data", multiclass(n_rows=60), n_chunks=4)
    first = train(data, tmp_path / "first", loss=loss, C=1.0, tol=1e-7, max_passes=50_000)
    again = train(
        data, tmp_path / "again", loss=loss, C=1.0, tol=1e-5, start_from=first.run, max_passes=50_000
    )
    cold = train(data, tmp_path / "cold", loss=loss, C=1.0, tol=1e-5, max_passes=50_000)
    assert again.passes <= 2 < cold.passes
    other = train(
        data, tmp_path / "other", loss=loss, C=1.3, tol=1e-5, start_from=first.run, max_passes=50_000
    )
    plain = train(data, tmp_path / "plain", loss=loss, C=1.3, tol=1e-5, max_passes=50_000)
    assert other.primal_objective == pytest.approx(plain.primal_objective, rel=2e-5)
    log = [json.loads(line) for line in (tmp_path / "again" / "log.jsonl").read_text().splitlines()]
    # the sum of the dual's terms was right from the start, else the first estimate of the primal would be off
    assert log[0]["objective_estimate"] == pytest.approx(first.primal_objective, rel=1e-4)


def test_a_warm_start_refuses_what_it_cannot_continue(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", random_rows())
    train(data, tmp_path / "run", loss="hinge")
    for options, message in (
        ({"loss": "squared_hinge"}, "the run.s loss hinge, found squared_hinge"),
        ({"loss": "hinge", "bias": 1.0}, "the run.s bias none, found 1"),
    ):
        with pytest.raises(UsageError, match=message):
            train(data, tmp_path / "new", start_from=tmp_path / "run", **options)
    assert not (tmp_path / "new").exists()


def test_a_warm_start_may_weigh_classes_otherwise(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", random_rows())
    options: dict[str, Any] = {"loss": "hinge", "tol": 1e-6, "max_passes": 50_000}
    train(data, tmp_path / "run", **options)
    options["class_weight"] = {1.0: 2.0}
    warm = train(data, tmp_path / "warm", start_from=tmp_path / "run", **options)
    cold = train(data, tmp_path / "cold", **options)
    assert warm.converged
    assert warm.primal_objective == pytest.approx(cold.primal_objective, rel=2e-6)


# ---------------------------------------------------------------------------------------------------------------------
# Cross-validation


def test_folds_are_dealt_by_the_place_in_the_source_evenly() -> None:
    fold = assign_folds(np.arange(100_000), 0, 5)
    assert np.bincount(fold, minlength=5) == pytest.approx(20_000, rel=0.03)
    assert (assign_folds(np.arange(100_000), 1, 5) != fold).mean() > 0.7
    shuffled = np.random.default_rng(0).permutation(100_000)
    np.testing.assert_array_equal(assign_folds(shuffled, 0, 5), fold[shuffled])


@pytest.mark.parametrize(
    ("loss", "make"),
    [
        ("hinge", random_rows),
        ("squared_hinge", multiclass),
        ("log_loss", random_rows),
        ("crammer_singer", multiclass),
    ],
)
def test_tune_agrees_with_separate_runs_on_the_same_folds(tmp_path: Path, loss: str, make: Any) -> None:
    x, y = make(n_rows=40)
    weight = 1.0 + np.arange(y.size) % 3 if make is multiclass else None
    data = write_dataset(tmp_path / "data", (x, y), n_chunks=3, weight=weight)
    result = tune(
        data, tmp_path / "tune", C=[0.05, 1.0], cv=3, loss=loss, tol=1e-5, max_passes=50_000, seed=3
    )
    fold = assign_folds(np.arange(y.size), 3, 3)
    folds = json.loads((tmp_path / "tune" / "folds" / "log.jsonl").read_text().splitlines()[-1])
    assert folds["open_lanes"] == 0
    for C in (0.05, 1.0):
        for number in range(3):
            rest = write_dataset(
                tmp_path / f"{C}-{number}",
                (sp.csr_array(x[fold != number]), y[fold != number]),
                weight=None if weight is None else weight[fold != number],
            )
            single = train(rest, tmp_path / f"run-{C}-{number}", loss=loss, C=C, tol=1e-5, max_passes=50_000)
            held_out = sp.csr_array(x[fold == number])
            decisions = held_out @ single.model.weights
            of_fold = np.ones(held_out.shape[0]) if weight is None else weight[fold == number]
            close = of_fold[(np.abs(decisions) < 1e-3).any(axis=1)].sum()
            hits = of_fold[single.model.predict(held_out) == y[fold == number]].sum()
            score = result.scores[f"{C:g}"]["folds"][number] * of_fold.sum()
            assert abs(score - hits) <= close + 1e-9
    assert result.best_C == max((0.05, 1.0), key=lambda C: (result.scores[f"{C:g}"]["mean"], -C))
    final = train(data, tmp_path / "final", loss=loss, C=result.best_C, tol=1e-5, max_passes=50_000)
    assert result.primal_objective == pytest.approx(final.primal_objective, rel=2e-5)
    np.testing.assert_allclose(streamcd.load_model(result.run).weights, final.model.weights, atol=0.02)


# ---------------------------------------------------------------------------------------------------------------------
# Many classes


def many_classes(path: Path) -> Dataset:
    label = np.repeat(np.arange(600.0), 2)
    rows = sp.csr_array(np.ones((1200, 2))), label
    return columns_of(path, rows)


def test_tables_that_do_not_fit_are_refused_before_they_are_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dataset = many_classes(tmp_path / "data")
    monkeypatch.setattr(np, "tile", lambda *arguments: pytest.fail("a table was made"))
    with pytest.raises(UsageError, match=r"needed"):
        train(dataset, tmp_path / "run", C=(1.0, 2.0), class_weight={3.0: 2.0}, memory="220MB")


def test_workers_have_the_same_memory_when_a_run_of_many_classes_is_resumed(tmp_path: Path) -> None:
    """The tables of classes and lanes were left out, so that windows, and bits, were others."""
    dataset = many_classes(tmp_path / "data")
    options = TrainOptions(workers=2, memory="2GB", C=(1.0, 2.0), class_weight={3.0: 2.0}, method="dual")
    config, _ = resolve(options, dataset)
    assert share_memory_anew(reopen(tmp_path / "run", config, dataset), 2) == config


def test_signed_costs_of_primal_methods_are_in_the_plan_before_they_are_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dataset = many_classes(tmp_path / "data")
    options = ProblemOptions(loss="squared_hinge", method="primal", acceleration="none", bias="none")
    problem = problem_of(options, dataset)
    monkeypatch.setattr(
        "streamcd.solvers.primal.PrimalSolver.__init__", lambda *asked, **more: pytest.fail("made")
    )
    memory = training_memory(options, problem, problem, dataset)
    assert memory.weights > 3 * 8 * 600 * 600

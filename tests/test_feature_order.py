"""Weights that stand in the order of their features' use: the same models, to the same bits after any stop."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from crashing import killed
from interrupted import ended, resume_by_turns, stopping_after, weights
from small_datasets import Rows, windows_of, write_dataset

import streamcd
from streamcd.core.errors import Interrupted
from streamcd.dataset.feature_order import SourceRows, make_rank
from streamcd.solvers import row_solver
from streamcd.stream.arenas import RowLayout
from streamcd.stream.stream import Stream
from tools.simulated_cluster import Simulation

pytestmark = pytest.mark.filterwarnings("ignore::streamcd.ConvergenceWarning")

N_FEATURES = 4200
FREE = {"bias": 1.0, "unpenalized_bias": True}
KINDS: dict[str, dict[str, Any]] = {
    "squared hinge": {"loss": "squared_hinge", "bias": 1.0},
    "hinge, plain, path": {"loss": "hinge", "C": [0.02, 0.1], "acceleration": "none"},
    "logistic, classes": {"loss": "log_loss"},
    "hinge, free bias": {"loss": "hinge", **FREE},
    "Crammer-Singer": {"loss": "crammer_singer"},
    "multinomial, free bias": {"loss": "multinomial", **FREE},
    "twin": {"loss": "twin", "bias": 1.0},
    "squared error, free bias": {"loss": "squared_error", **FREE},
}


def wide_rows(loss: str, n_rows: int = 240) -> Rows:
    """Frequent features here and there among many that hardly occur or do not, and one in every row, far from 0."""
    rng = np.random.default_rng(5)
    place = rng.permutation(N_FEATURES)
    drawn = np.minimum(rng.zipf(1.3, (n_rows, 25)) - 1, N_FEATURES // 2)
    x = sp.lil_array((n_rows, N_FEATURES))
    for row, features in enumerate(place[drawn]):
        x[row, features] = rng.integers(1, 9, features.size) / 8.0
    x[:, place[0]] = 3.0 + rng.integers(-8, 9, (n_rows, 1)) / 64.0
    score = x @ rng.standard_normal(N_FEATURES)
    score -= np.median(score)
    if loss == "squared_error":
        return sp.csr_array(x), score
    if loss in ("log_loss", "crammer_singer", "multinomial", "twin"):
        return sp.csr_array(x), np.digitize(score, np.quantile(score, [0.3, 0.7])).astype(np.float64)
    return sp.csr_array(x), np.where(score > 0, 1.0, -1.0)


def training(kind: str, folder: Path, *, resident: bool = False, **changed: Any) -> dict[str, Any]:
    asked = {"C": 0.5, "tol": 1e-5, "max_passes": 400, "seed": 3} | KINDS[kind] | changed
    rows = wide_rows(asked["loss"])
    if asked["loss"] == "squared_error":
        data = streamcd.convert(rows, folder / "data", target=True, chunk_size=6000, shard_size=20000)
    else:
        data = write_dataset(folder / "data", rows, n_chunks=8, n_shards=3)
    return {"dataset": data, "plan": windows_of(data, 2, resident=resident), **asked}


@pytest.fixture
def in_source_order(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Call a function with weights as in the source."""

    def call(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(row_solver, "MOST_UNRANKED", 1 << 32)
            return function(*arguments, **options)

    return call


def test_ranks_descend_by_entries_and_features_of_one_count_stand_as_in_the_source() -> None:
    counts = np.array([2, 0, 7, 65_535, 2, 0, 65_535, 9], np.uint16)
    assert make_rank(counts).tolist() == [4, 6, 3, 0, 5, 7, 1, 2, 8]
    assert make_rank(counts[:0]).tolist() == [0]


def test_an_arena_has_ranks_for_features_and_all_else_as_it_was(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", wide_rows("hinge"), n_chunks=4)
    counts = np.bincount(sp.csr_array(wide_rows("hinge")[0]).indices, minlength=N_FEATURES)
    features = np.argsort(-counts, kind="stable")  # by rank
    arenas = []
    for ranked in (False, True):
        with Stream(data, windows_of(data, None), RowLayout(1, 1, ranked=ranked), 0) as stream:
            (window,) = stream.windows(0, goes_on=False)
            arenas.append(window.arena)
    plain, ranked_arena = arenas
    np.testing.assert_array_equal(features[ranked_arena.feature], plain.feature)
    for name in ("value", "indptr", "code", "weight"):
        np.testing.assert_array_equal(getattr(ranked_arena, name), getattr(plain, name))
    assert data.feature_rank[-1] == N_FEATURES


def test_blocks_of_the_source_are_got_and_set() -> None:
    rank = make_rank(np.random.default_rng(0).integers(0, 9, 70_000).astype(np.uint16))
    stored = np.arange(140_002.0).reshape(-1, 2)
    rows = SourceRows(np.zeros(stored.shape), rank)
    for block in rows.blocks():
        rows[block] = stored[block]
    assert np.array_equal(rows.array[rank], stored)
    assert np.array_equal(np.concatenate([rows[block] for block in rows.blocks()]), stored)
    assert sum(1 for _ in rows.blocks()) > 2


@pytest.mark.parametrize("kind", KINDS)
def test_models_are_those_of_weights_in_the_order_of_the_source(
    tmp_path: Path, kind: str, in_source_order: Callable[..., Any]
) -> None:
    asked = training(kind, tmp_path, tol=1e-6, max_passes=1000)
    ranked = streamcd.train(run=tmp_path / "ranked", **asked)
    plain = in_source_order(streamcd.train, run=tmp_path / "plain", **asked)
    assert ranked.converged
    assert ranked.primal_objective == pytest.approx(plain.primal_objective, rel=2e-6)
    np.testing.assert_allclose(weights(tmp_path / "ranked"), weights(tmp_path / "plain"), atol=3e-2)
    assert ended(tmp_path / "ranked") != ended(tmp_path / "plain")  # sums have other roundings


@pytest.mark.parametrize(
    ("kind", "resident"), [*((kind, False) for kind in KINDS), ("logistic, classes", True)]
)
def test_stopped_anywhere_and_resumed_a_run_ends_with_the_same_bits(
    tmp_path: Path, kind: str, resident: bool
) -> None:
    asked = training(kind, tmp_path, resident=resident, max_passes=12)
    streamcd.train(run=tmp_path / "whole", **asked)
    with pytest.raises(Interrupted):
        streamcd.train(run=tmp_path / "run", stop_requested=stopping_after(2), **asked)
    resume_by_turns(tmp_path / "run", (0, 3, 1, 6, 13))
    assert ended(tmp_path / "run") == ended(tmp_path / "whole")


@pytest.mark.parametrize("kind", ["squared hinge", "multinomial, free bias"])
def test_killed_anywhere_and_resumed_a_run_ends_with_the_same_bits(tmp_path: Path, kind: str) -> None:
    asked = training(kind, tmp_path, max_passes=4)
    run, often = tmp_path / "run", {"checkpoint_every": 1e-9}
    n_operations = killed(streamcd.train, run=run, **often, **asked)
    assert n_operations is not None
    expected = ended(run)
    for at in np.linspace(n_operations // 2, n_operations, 4).astype(int).tolist():
        shutil.rmtree(run)
        assert killed(streamcd.train, run=run, at=at, half=True, **often, **asked) is None
        streamcd.resume(run)
        assert ended(run) == expected


@pytest.mark.parametrize("kind", ["squared hinge", "Crammer-Singer", "squared error, free bias"])
def test_two_workers_reach_the_optimum_and_resume_to_the_same_bits(tmp_path: Path, kind: str) -> None:
    asked = training(kind, tmp_path, tol=1e-4)
    del asked["plan"]
    one = streamcd.train(run=tmp_path / "one", **asked)
    options = {"client": Simulation(2), "memory": "1GB"}
    two = streamcd.train(run=tmp_path / "two", **asked, **options)
    assert two.primal_objective == pytest.approx(one.primal_objective, rel=2e-4)
    with pytest.raises(Interrupted):
        streamcd.train(run=tmp_path / "turns", stop_requested=stopping_after(20), **asked, **options)
    streamcd.resume(tmp_path / "turns", client=Simulation(2))
    assert np.array_equal(weights(tmp_path / "turns"), weights(tmp_path / "two"))


STARTS = [
    ("squared hinge", "merged"),
    ("hinge, free bias", "merged"),
    ("multinomial, free bias", "merged"),
    ("logistic, classes", "other C"),
    ("squared hinge", "primal, converted anew"),
]


@pytest.mark.parametrize(("kind", "begins"), STARTS)
def test_a_start_begins_where_a_run_of_other_counts_ended(
    tmp_path: Path, kind: str, begins: str, in_source_order: Callable[..., Any]
) -> None:
    """The features of the runs stand in different orders."""
    asked: dict[str, Any] = {"C": 0.5, "tol": 1e-5, "max_passes": 1000, "method": "dual"} | KINDS[kind]
    x, y = wide_rows(asked["loss"])
    cut: dict[str, Any] = {"chunk_size": 6000, "index_base": 0}
    data = old = streamcd.convert((x, y), tmp_path / "old data", **cut)
    streamcd.train(old, tmp_path / "old", **asked)
    if begins == "merged":
        ones = sp.lil_array((6, N_FEATURES))
        ones[:, -300:] = 0.125  # the most frequent features but a few
        more = streamcd.convert((sp.csr_array(x[:6] + ones), y[:6]), tmp_path / "more", **cut)
        data = streamcd.merge([old, more], tmp_path / "data")
    elif begins == "other C":
        asked["C"] = 0.6
    else:
        asked["method"] = "primal"
        data = streamcd.convert((x[20:], y[20:]), tmp_path / "data", **cut, seed=1)
        streamcd.make_columns(data)
    assert begins == "other C" or not np.array_equal(data.feature_rank, old.feature_rank)
    asked["start_from"] = tmp_path / "old"
    ranked = streamcd.train(data, tmp_path / "ranked", **asked)
    plain = in_source_order(streamcd.train, data, tmp_path / "plain", **asked)
    assert ranked.primal_objective == pytest.approx(plain.primal_objective, rel=3e-5)
    assert ranked.passes == pytest.approx(plain.passes, rel=0.2, abs=1)


def test_the_model_of_a_run_that_ends_with_the_pass_begun_has_the_features_of_the_source(
    tmp_path: Path,
) -> None:
    asked = training("logistic, classes", tmp_path)
    with pytest.raises(Interrupted):
        streamcd.train(run=tmp_path / "run", stop_requested=stopping_after(9), **asked)
    whole = streamcd.train(run=tmp_path / "whole", **asked)
    found = streamcd.resume(tmp_path / "run", max_passes=1).model
    assert np.abs(found.weights - whole.model.weights).max() < 0.2 * np.abs(whole.model.weights).max()
    assert np.array_equal(found.weights, weights(tmp_path / "run")[:-1])
    accuracy = [streamcd.evaluate(asked["dataset"], model)["accuracy"] for model in (found, whole.model)]
    assert accuracy[0] > accuracy[1] - 0.1


def test_a_search_scores_and_ends_as_with_weights_in_the_order_of_the_source(
    tmp_path: Path, in_source_order: Callable[..., Any]
) -> None:
    data = write_dataset(tmp_path / "data", wide_rows("hinge"), n_chunks=8)
    asked = {"C": [0.1, 1.0], "cv": 3, "tol": 1e-6, "method": "dual", "loss": "log_loss"}
    ranked = streamcd.tune(data, tmp_path / "ranked", **asked)
    plain = in_source_order(streamcd.tune, data, tmp_path / "plain", **asked)
    for C, scores in plain.scores.items():
        assert ranked.scores[C]["folds"] == pytest.approx(scores["folds"], abs=0.02)
    assert ranked.primal_objective == pytest.approx(plain.primal_objective, rel=3e-6)


@pytest.mark.parametrize("sparse", [True, False])
def test_an_estimator_on_arrays_has_the_coefficients_of_the_source(
    sparse: bool, in_source_order: Callable[..., Any]
) -> None:
    x, y = wide_rows("hinge")
    rows = x if sparse else x.toarray()
    for made in (streamcd.LinearSVC(tol=1e-7), streamcd.LogisticRegression(tol=1e-7, max_iter=500)):
        ranked = made.fit(rows, y).coef_.copy()
        plain = in_source_order(made.fit, rows, y).coef_
        np.testing.assert_allclose(ranked, plain, atol=3e-3)
        assert not np.array_equal(ranked, plain)


@pytest.mark.slow
def test_newton_keeps_the_order_of_the_source(tmp_path: Path) -> None:
    """Its kernels take a row's features as ascending."""
    x, y = wide_rows("hinge")
    data = write_dataset(tmp_path / "data", (x, y), n_chunks=4)
    asked: dict[str, Any] = {"loss": "log_loss", "bias": 1.0, "C": 0.5, "tol": 1e-6}
    newton = streamcd.train(data, tmp_path / "newton", method="newton", **asked)
    dual = streamcd.train(data, tmp_path / "dual", method="dual", max_passes=1000, **asked)
    assert newton.primal_objective == pytest.approx(dual.primal_objective, rel=2e-6)
    np.testing.assert_allclose(newton.model.weights, dual.model.weights, atol=3e-3)

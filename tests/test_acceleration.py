"""Acceleration: the optimum in fewer passes, certificates of the original problem, plain descent where kappa is 0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from heard import Heard
from reference import (
    augmented,
    exact_optimum,
    primal_objectives,
    run_weights,
)
from small_datasets import Rows, columns_of, multiclass, random_rows, write_dataset

from streamcd import Dataset, Result, resume, train
from streamcd.core.errors import UsageError
from streamcd.kernels.loss_table import SOLVERS
from streamcd.runs.options import TrainOptions
from streamcd.runs.resolve import resolve
from streamcd.training.checkpoint import read_arrays, read_config
from tools.simulated_cluster import Simulation

LOSSES = [
    entry.loss
    for entry in SOLVERS.values()
    if entry.accelerates and entry.layout == "rows" and not entry.has_targets
]
BINARY = ["hinge", "squared_hinge", "log_loss"]


def badly_conditioned(n_rows: int = 400) -> Rows:
    """Rows of one category out of each of six fields, and noisy labels: C times the mean of ``‖x‖²`` is 6 C."""
    rng = np.random.default_rng(11)
    sizes = (2, 3, 5, 7, 11, 40)
    columns = [rng.integers(0, size, n_rows) + sum(sizes[:field]) for field, size in enumerate(sizes)]
    index = np.stack(columns, axis=1).astype(np.int32)
    x = sp.csr_array((np.ones(index.size), index.reshape(-1), np.arange(n_rows + 1) * len(sizes)))
    score = x @ rng.standard_normal(x.shape[1]) + 0.8 * rng.standard_normal(n_rows)
    return x, np.where(score > 0, 1.0, -1.0)


def state_of(run: Path) -> dict[str, np.ndarray]:
    arrays = read_arrays(run / "state.npz")
    assert arrays is not None
    return arrays


# ---------------------------------------------------------------------------------------------------------------------
# Passes and optima


@pytest.mark.parametrize("loss", BINARY)
def test_badly_conditioned_rows_take_a_fraction_of_the_passes(tmp_path: Path, loss: str) -> None:
    data = write_dataset(tmp_path / "data", badly_conditioned(), n_chunks=12)
    asked: dict[str, Any] = {"loss": loss, "C": 20.0, "tol": 1e-3, "method": "dual"}
    fast = train(data, tmp_path / "fast", max_passes=3000, **asked)
    plain = train(data, tmp_path / "plain", acceleration="none", max_passes=4 * fast.passes - 1, **asked)
    assert fast.converged
    assert not plain.converged
    assert plain.dual_objective <= fast.primal_objective <= plain.primal_objective * (1 + 1e-3)


@pytest.mark.parametrize(("loss", "method"), [("squared_hinge", "online"), ("log_loss", "primal")])
def test_extrapolated_passes_over_columns_are_a_fraction(tmp_path: Path, loss: str, method: str) -> None:
    data = columns_of(tmp_path / "data", badly_conditioned())
    asked: dict[str, Any] = {"loss": loss, "method": method, "C": 20.0, "tol": 1e-5}
    fast = train(data, tmp_path / "fast", max_passes=3000, **asked)
    plain = train(data, tmp_path / "plain", acceleration="none", max_passes=2 * fast.passes - 1, **asked)
    assert fast.converged
    assert not plain.converged
    assert plain.dual_objective <= fast.primal_objective <= plain.primal_objective * (1 + 1e-5)


@pytest.mark.parametrize("kappa", [0.01, 1.0, 300.0])
def test_any_fixed_kappa_ends_at_the_optimum(tmp_path: Path, kappa: float) -> None:
    x, y = random_rows()
    data = write_dataset(tmp_path / "data", (x, y), n_chunks=6)
    result = train(data, tmp_path / "run", loss="hinge", acceleration=kappa, tol=1e-4, max_passes=20_000)
    least = exact_optimum("hinge", augmented(x, -1.0), y, 1.0)[1][0]
    assert result.converged
    assert least * (1 - 1e-9) <= result.primal_objective <= least * (1 + 1.1e-4)
    assert result.lanes[0]["kappa"] == kappa


@pytest.mark.parametrize(
    ("loss", "C", "n_workers"),
    [("hinge", 3.0, 2), ("squared_hinge", 3.0, 4), ("log_loss", 30.0, 2), ("crammer_singer", 3.0, 2)],
)
def test_workers_take_a_fraction_of_the_rounds_too(
    tmp_path: Path, loss: str, C: float, n_workers: int
) -> None:
    """And what is certified are the weights that the run ends with."""
    x, y = badly_conditioned()
    data = write_dataset(tmp_path / "data", (x, y), n_chunks=8, n_shards=8)
    asked: dict[str, Any] = {"loss": loss, "C": C, "tol": 1e-2, "client": Simulation(n_workers)}
    fast = train(data, tmp_path / "run", max_passes=300, **asked)
    plain = train(data, tmp_path / "plain", max_passes=3 * fast.passes // 2, acceleration="none", **asked)
    assert fast.converged
    assert not plain.converged
    if loss != "crammer_singer":
        primal = primal_objectives(loss, augmented(x, -1.0), y, run_weights(tmp_path / "run", -1.0), C)
        assert primal[0] == pytest.approx(fast.primal_objective, rel=1e-9)


# ---------------------------------------------------------------------------------------------------------------------
# Plain descent


@pytest.mark.parametrize("options", [{"omega": 1.5}, {"eps": 0.1}, {"loss": "twin", "method": "sor"}])
def test_where_it_does_not_apply_training_is_plain(tmp_path: Path, options: dict[str, Any]) -> None:
    """Said where it was left to auto, refused where a kappa was asked for."""
    data, notes = write_dataset(tmp_path / "data", random_rows()), Heard()
    train(data, tmp_path / "run", max_passes=5, listener=notes, **options)
    assert read_config(tmp_path / "run")["options"]["acceleration"] == "none"
    assert "method" in options or any("without acceleration" in line for line in notes.messages)
    with pytest.raises(UsageError, match="acceleration 2"):
        train(data, tmp_path / "other", acceleration=2.0, **options)


@pytest.mark.parametrize("method", ["primal", "online"])
def test_primal_methods_have_no_kappa(tmp_path: Path, method: str) -> None:
    with pytest.raises(
        UsageError, match=r"acceleration 2: the strength of that of method .* cannot be given"
    ):
        train(columns_of(tmp_path / "data", random_rows()), tmp_path / "run", method=method, acceleration=2.0)


@pytest.mark.parametrize("value", ["sometimes", -1.0, float("nan"), float("inf")])
def test_a_kappa_that_cannot_be_is_refused(tmp_path: Path, value: Any) -> None:
    data = write_dataset(tmp_path / "data", random_rows())
    with pytest.raises(UsageError, match="acceleration: expected auto, none or a strength"):
        train(data, tmp_path / "run", acceleration=value)


def test_without_room_for_the_array_training_is_plain_and_says_so(tmp_path: Path) -> None:
    rows = random_rows()
    wide = sp.csr_array((rows[0].data, rows[0].indices, rows[0].indptr), shape=(rows[0].shape[0], 10_000_000))
    data, notes = write_dataset(tmp_path / "data", (wide, rows[1])), Heard()
    for memory, expected in (("330MB", "auto"), ("280MB", "none")):
        train(data, tmp_path / memory, memory=memory, max_passes=2, listener=notes)
        assert read_config(tmp_path / memory)["options"]["acceleration"] == expected
    assert sum("without acceleration" in line for line in notes.messages) == 1


def test_without_room_for_scores_twice_primal_training_is_plain_and_says_so(tmp_path: Path) -> None:
    """26 bytes a row with one lane, 18 without."""
    data, notes = columns_of(tmp_path / "data", random_rows()), list[str]()
    data.n_rows = 10**9
    for memory, expected in ((27, "auto"), (22, "none")):
        asked = TrainOptions(method="primal", memory=memory * 10**9)
        config, more = resolve(asked, data)
        notes += more
        assert config.options.acceleration == expected
    assert sum("without acceleration" in line and "scores" in line for line in notes) == 1


def test_by_the_primal_method_the_violation_is_that_of_the_weights(tmp_path: Path) -> None:
    """LIBLINEAR's rule with acceleration: ``‖∇f(w)‖ <= eps min(n+, n-)/n ‖∇f(0)‖`` at the weights of the model."""
    x, y = badly_conditioned()
    data = columns_of(tmp_path / "data", (x, y))
    result = train(data, tmp_path / "run", method="primal", C=20.0, eps=1e-3)
    assert read_config(tmp_path / "run")["options"]["acceleration"] == "auto"
    assert result.stop_reason == "violation"
    dense, w = augmented(x, -1.0), run_weights(tmp_path / "run", -1.0)[:, 0]
    slopes = 2 * 20.0 * np.maximum(1 - y * (dense @ w), 0.0) * y
    start = np.linalg.norm(dense.T @ (2 * 20.0 * y))
    violation = np.linalg.norm(w - dense.T @ slopes) / start * y.size / min((y > 0).sum(), (y < 0).sum())
    assert result.violation == pytest.approx(violation, rel=1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# States


@pytest.mark.parametrize("loss", LOSSES)
def test_a_run_that_ended_goes_on_and_starts_others(tmp_path: Path, loss: str) -> None:
    """A lower gap by `resume`; another C from its alpha and w(alpha), whose certificate holds."""
    x, y = badly_conditioned()
    data = write_dataset(tmp_path / "data", (x, y), n_chunks=8)
    asked: dict[str, Any] = {"loss": loss, "method": "dual", "max_passes": 3000}
    first = train(data, tmp_path / "run", C=5.0, tol=1e-2, **asked)
    more = resume(tmp_path / "run", tol=1e-4)
    assert more.converged
    assert more.passes > first.passes
    cold = train(data, tmp_path / "cold", C=6.0, tol=1e-4, **asked)
    warm = train(data, tmp_path / "warm", C=6.0, tol=1e-4, start_from=tmp_path / "run", **asked)
    assert warm.passes <= {"crammer_singer": 1.3, "hinge": 1.15}.get(loss, 1.0) * cold.passes
    w, beside = state_of(tmp_path / "warm")["w"], state_of(tmp_path / "warm")["centre_or_w_alpha"]
    for lane, one in enumerate(warm.lanes):
        assert one["primal_objective"] == pytest.approx(cold.lanes[lane]["primal_objective"], rel=2.1e-4)
    # w and w(alpha) meet at the optimum
    assert np.linalg.norm(w - beside) <= 0.3 * np.linalg.norm(w)


def test_kappa_is_in_the_log_and_in_the_result(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", multiclass())
    result: Result = train(data, tmp_path / "run", method="dual", max_passes=6, tol=0.0)
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert all(0 < line["kappa"][0] <= line["kappa"][1] for line in lines)
    assert lines[-1]["kappa"][1] == max(lane["kappa"] for lane in result.lanes)
    data = columns_of(tmp_path / "columns", multiclass())
    result = train(data, tmp_path / "primal", method="primal", max_passes=6, tol=0.0)
    lines = [json.loads(line) for line in (tmp_path / "primal" / "log.jsonl").read_text().splitlines()]
    assert all(0 <= line["extrapolation"][0] <= line["extrapolation"][1] <= 1 for line in lines)
    assert lines[-1]["extrapolation"][1] == max(lane["extrapolation"] for lane in result.lanes) > 0


def test_shrinking_keeps_its_gain(tmp_path: Path) -> None:
    """Far fewer row visits than rows times passes, with hinge."""
    data: Dataset = write_dataset(tmp_path / "data", random_rows(2000, 12, seed=3), n_chunks=8)
    train(data, tmp_path / "run", loss="hinge", tol=1e-4, max_passes=500)
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    active = [line["active_rows"] for line in lines if line["kind"] == "train"]
    assert np.mean(active) < 0.7 * data.n_rows

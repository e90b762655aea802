"""Starts from runs before rows were appended: dual variables go on, new rows begin at 0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from heard import Heard
from interrupted import ended, resume_by_turns, stopping_after
from small_datasets import Rows, multiclass, random_rows, windows_of
from test_real_sets import rows_of

from streamcd import Dataset, Result, convert, make_columns, resume, train
from streamcd.core.errors import Interrupted
from streamcd.kernels.loss_table import LOSSES
from streamcd.solvers.registry import SOLVERS, SolverEntry
from tools.simulated_cluster import Simulation


def targets(rows: Rows) -> Rows:
    """Numbers to predict in place of the classes."""
    x, _ = rows
    rng = np.random.default_rng(3)
    return x, np.asarray(x @ rng.standard_normal(x.shape[1])) + 0.1 * rng.standard_normal(x.shape[0])


OF_CLASSES = ("squared_hinge", "hinge", "log_loss", "multinomial", "crammer_singer")


OF_TARGETS = ("squared_error", "huber", "epsilon_insensitive", "squared_epsilon_insensitive", "quantile")


def shuffled(path: Path, *, targets: bool) -> Rows:
    """Rows of a real set in random order, with numbers to predict in place of its classes if asked for."""
    x, y = rows_of(path)
    order = np.random.default_rng(0).permutation(y.size)
    x, y = sp.csr_array(x)[order], y[order]
    if targets:
        y = np.asarray(x @ np.random.default_rng(3).standard_normal(x.shape[1]))
        y = y / y.std() + 0.3 * np.random.default_rng(4).standard_normal(y.size)
    return x, y


STRICT: dict[str, Any] = {"tol": 1e-6, "max_passes": 20_000}


def begin(path: Path, rows: Rows, n_rows: int, **options: Any) -> Dataset:
    """Convert the first rows, to small chunks."""
    x, y = rows
    given: dict[str, Any] = {"target": True} if np.unique(y).size > 30 else {}
    return convert((x[:n_rows], y[:n_rows]), path, **({"chunk_size": "4kB"} | given | options))


def append(path: Path, rows: Rows, first: int) -> Dataset:
    """Append the rows from `first` on."""
    return convert((rows[0][first:], rows[1][first:]), path, append=True)


def grown_runs(
    folder: Path, rows: Rows, n_old: int, *, listener: Heard | None = None, **asked: Any
) -> tuple[Result, Result]:
    """Train on the first rows and then, from there and from nothing, on all of them."""
    columns = asked.get("method") in ("primal", "online", "working-set")
    begin(folder / "data", rows, n_old)
    if columns:
        make_columns(folder / "data")
    train(folder / "data", folder / "old", **asked)
    append(folder / "data", rows, n_old)
    if columns:
        make_columns(folder / "data", force=True)
    warm = train(folder / "data", folder / "warm", start_from=folder / "old", listener=listener, **asked)
    return warm, train(folder / "data", folder / "cold", **asked)


def same_optimum(warm: Result, cold: Result, tol: float = 1e-6) -> bool:
    assert warm.converged
    return abs(warm.primal_objective - cold.primal_objective) <= 3 * tol * abs(cold.primal_objective)


def rows_for(entry: SolverEntry, n_rows: int = 600) -> Rows:
    if entry.of_targets:
        return targets(random_rows(n_rows, 12))
    if LOSSES[entry.loss].form == "inliers":
        x, y = random_rows(n_rows, 12)
        return sp.csr_array(abs(x)), y
    return random_rows(n_rows, 12) if entry.method in ("sor", "online") else multiclass(n_rows=n_rows)


@pytest.mark.parametrize("entry", SOLVERS, ids=str)
def test_every_method_ends_at_the_optimum_of_all_rows(tmp_path: Path, entry: SolverEntry) -> None:
    asked: dict[str, Any] = {"loss": entry.loss, "method": entry.method, "tol": 1e-4, "max_passes": 5000}
    asked |= {"penalty": "elasticnet"} if entry.method == "working-set" else {}
    asked |= {"bias": 1.0}
    told = Heard()
    warm, cold = grown_runs(tmp_path, rows_for(entry), 594, listener=told, **asked)
    assert same_optimum(warm, cold, 1e-4)
    kept = "dual variables" if entry.keeps_alpha else "weights"
    assert any(
        f"starts from the {kept} of" in text and "the first 594 of 600 rows" in text for text in told.messages
    )


@pytest.mark.parametrize("loss", ["hinge", "log_loss", "crammer_singer", "multinomial"])
@pytest.mark.parametrize("free", [False, True], ids=["", "free bias"])
def test_balanced_weights_of_classes_change_with_the_rows(tmp_path: Path, loss: str, free: bool) -> None:
    asked = {
        "loss": loss,
        "method": "dual",
        "bias": 1.0,
        "unpenalized_bias": free,
        "class_weight": "balanced",
    }
    warm, cold = grown_runs(tmp_path, multiclass(n_rows=500), 450, **asked, **STRICT)
    assert same_optimum(warm, cold)
    (tmp_path / "plain").mkdir()
    warm, cold = grown_runs(
        tmp_path / "plain", random_rows(300), 250, acceleration="none", class_weight="balanced"
    )
    assert same_optimum(warm, cold, 1e-3)


@pytest.mark.parametrize("seed", [0, 2])
def test_a_hundredth_more_rows_take_a_third_of_the_passes(tmp_path: Path, seed: int) -> None:
    """Half of the passes, where new rows are among all others in the first of them; data in memory."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((4000, 20)).astype(np.float32)
    y = np.where(x @ rng.standard_normal(20) + 3.0 * rng.standard_normal(4000) > 0, 1.0, -1.0)
    warm, cold = grown_runs(tmp_path, (sp.csr_array(x), y), 3960, loss="hinge", method="dual")
    assert same_optimum(warm, cold, 1e-3)
    assert warm.passes <= cold.passes / 3


def test_a_start_on_grown_rows_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    """Windows of two chunks, dual variables in pages on disk, two values of C, a bias that is not penalised."""
    rows = multiclass(n_rows=600)
    begin(tmp_path / "data", rows, 560)
    asked: dict[str, Any] = {
        "loss": "log_loss",
        "C": [0.1, 1.0],
        "bias": 1.0,
        "unpenalized_bias": True,
        "tol": 1e-5,
    }
    train(tmp_path / "data", tmp_path / "old", **asked)
    grown = append(tmp_path / "data", rows, 560)
    asked |= {"plan": windows_of(grown, 2), "start_from": tmp_path / "old", "checkpoint_every": 1e-9}
    whole = train(grown, tmp_path / "whole", **asked)
    with pytest.raises(Interrupted):
        train(grown, tmp_path / "turns", **asked, stop_requested=stopping_after(3))
    append(tmp_path / "data", rows, 590)  # the run goes on with the rows that it began with
    resume_by_turns(tmp_path / "turns", [5, 2])
    assert ended(tmp_path / "turns") == ended(tmp_path / "whole")
    assert whole.converged
    assert resume(tmp_path / "turns").passes == whole.passes


@pytest.mark.parametrize("loss", ["hinge", "log_loss", "multinomial"])
def test_workers_start_from_a_run_of_one_process_before_rows_were_appended(tmp_path: Path, loss: str) -> None:
    rows = multiclass(n_rows=500)
    begin(tmp_path / "data", rows, 480, shard_size="20kB")
    asked = {"loss": loss, "method": "dual", "tol": 1e-5, "max_passes": 3000}
    train(tmp_path / "data", tmp_path / "old", **asked)
    append(tmp_path / "data", rows, 480)
    on_workers = {"client": Simulation(2), "memory": "1GB", "start_from": tmp_path / "old"}
    warm = train(tmp_path / "data", tmp_path / "warm", **asked, **on_workers)
    assert same_optimum(warm, train(tmp_path / "data", tmp_path / "cold", **asked), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a9a", "ijcnn1", "kdd99_10pct"])
@pytest.mark.parametrize("loss", OF_CLASSES + OF_TARGETS)
def test_a_hundredth_more_rows_of_real_sets_take_a_third_of_the_passes(
    real_data: Callable[[str], Path], tmp_path: Path, name: str, loss: str
) -> None:
    """Passes to 1e-3, from nothing and from the rows before: with -s these are the figures of the page.

    The rows do not fit in memory together: windows hold a tenth of them, and dual variables are in pages on disk.
    """
    x, y = shuffled(real_data(name), targets=loss in OF_TARGETS)
    if name == "kdd99_10pct" and loss in ("multinomial", "crammer_singer"):
        y = y + 2.0 * (np.asarray(x.sum(axis=1)) > np.median(np.asarray(x.sum(axis=1))))
    n_old = y.size - y.size // 100
    before = begin(tmp_path / "data", (x, y), n_old, chunk_size="100kB")
    few = windows_of(before, max(before.n_chunks // 10, 1))
    asked: dict[str, Any] = {"loss": loss, "method": "dual", "bias": 1.0, "plan": few}
    train(before, tmp_path / "old", **asked)
    grown = append(tmp_path / "data", (x, y), n_old)
    warm = train(grown, tmp_path / "warm", start_from=tmp_path / "old", **asked)
    cold = train(grown, tmp_path / "cold", **asked)
    print(f"| {name} | {loss} | {cold.passes} | {warm.passes} |")
    assert same_optimum(warm, cold, 1e-3)
    assert warm.passes <= cold.passes / 3 + 2

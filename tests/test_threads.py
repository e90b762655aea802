"""Threads of one process: no bit of a result depends on their number."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference import kernel_rows
from small_datasets import multiclass, random_rows, windows_of, write_dataset
from threadpoolctl import threadpool_limits

import streamcd
from streamcd.core.errors import UsageError
from streamcd.core.threads import Threads
from streamcd.kernels.dual import add_alpha_rows
from streamcd.kernels.primitives import Costs, Variables
from streamcd.runs.tune import tune
from streamcd.training.checkpoint import read_arrays


@pytest.fixture(autouse=True)
def small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamcd.core.threads._LEAST_OPERATIONS", 1)
    monkeypatch.setattr("streamcd.solvers.dual._BLOCK_ENTRIES", 2000)


def state_of(run: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(run.rglob("state.npz")):
        arrays = read_arrays(path) or {}
        found |= {
            f"{path.relative_to(run)} {name}": array.tobytes()
            for name, array in arrays.items()
            if name not in ("seconds", "identity", "bytes_read", "log_bytes")
        }
    return found


@pytest.mark.parametrize("loss", ["hinge", "log_loss"])
@pytest.mark.parametrize("n_classes", [2, 7])
def test_the_number_of_threads_changes_no_bit_of_a_run(tmp_path: Path, loss: str, n_classes: int) -> None:
    rows = random_rows(1000, 50) if n_classes == 2 else multiclass(n_classes, 700)
    data = write_dataset(tmp_path / "data", rows, n_chunks=9)
    for resident in (False, True):
        plan = replace(windows_of(data, 4, resident=resident), readers=3)
        states = []
        for threads in (1, 2, 5):
            run = tmp_path / f"{resident}-{threads}"
            streamcd.train(
                data,
                run,
                loss=loss,
                C=[0.5, 1.0] if n_classes > 2 else 1.0,
                bias=1.0,
                plan=plan,
                threads=threads,
            )
            states.append(state_of(run))
        assert states[0] == states[1] == states[2]


def test_neither_our_threads_nor_those_of_blas_change_a_bit_of_a_training_by_sor(tmp_path: Path) -> None:
    """LAPACK's inverse had other last digits with one thread of BLAS than with two, and a resumed run other bits."""
    data = write_dataset(tmp_path / "data", random_rows(300, 40), n_chunks=4)
    asked: dict[str, Any] = {"loss": "twin", "tol": 1e-3, "max_passes": 1000}
    states = []
    for ours, of_blas in ((1, 1), (3, 1), (1, 4)):
        run = tmp_path / f"{ours}-{of_blas}"
        with threadpool_limits(of_blas, user_api="blas"):
            found = streamcd.train(data, run, method="sor", threads=ours, **asked)
        states.append(state_of(run))
    assert states[0] == states[1] == states[2]
    other = streamcd.train(data, tmp_path / "dual", method="dual", **asked)
    assert found.primal_objective == pytest.approx(other.primal_objective, rel=2e-3)


def test_the_number_of_threads_changes_no_bit_of_a_search(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", random_rows(400, 20), n_chunks=4)
    for threads in (1, 3):
        tune(data, tmp_path / f"{threads}", C=[0.1, 1.0], cv=3, threads=threads)
    assert state_of(tmp_path / "1") == state_of(tmp_path / "3")


def test_a_number_of_threads_below_one_is_refused(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", random_rows(20, 5))
    with pytest.raises(UsageError, match="threads: expected at least 1, found 0"):
        streamcd.train(data, tmp_path / "run", threads=0)


def test_ranges_of_features_add_up_what_all_features_do() -> None:
    x, y = random_rows(60, 13, seed=5)
    rows, none = kernel_rows(x, (y > 0).astype(int)), np.array([-1], dtype=np.int64)
    costs = Costs(0, 0.5, np.array([[-1.0], [1.0]]), np.ones((2, 1)), none)
    alpha = np.random.default_rng(0).random((60, 1)) * (np.arange(60)[:, None] % 3 > 0)
    variables = Variables(alpha, np.ones((60, 1), dtype=np.uint8), np.zeros(14))
    whole, parts = np.zeros(14), np.zeros(14)
    add_alpha_rows(np.arange(60), rows, costs, variables, 0, 14, whole)
    for first, stop in [(0, 4), (4, 4), (4, 11), (11, 14)]:
        add_alpha_rows(np.arange(60), rows, costs, variables, first, stop, parts)
    np.testing.assert_array_equal(parts, whole)
    signed = alpha[:, 0] * np.where(y > 0, 1.0, -1.0)
    np.testing.assert_allclose(whole, [*(x.T @ signed), 0.5 * signed.sum()], atol=1e-6)


def test_all_calls_end_before_an_error_is_raised() -> None:
    done: list[int] = []

    def fail() -> None:
        raise UsageError("one of them")

    threads = Threads(2)
    with pytest.raises(UsageError, match="one of them"):
        threads.run([fail, *(lambda number=number: done.append(number) for number in range(4))])  # type: ignore[misc]
    assert sorted(done) == [0, 1, 2, 3]
    threads.close()

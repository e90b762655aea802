"""Visits of one lane in parts of a window's rows: the same bits by any number of threads, and the optimum of one part."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from interrupted import ended, train_by_turns
from small_datasets import random_rows, windows_of, write_dataset

import streamcd
from streamcd import Dataset
from streamcd.core.parallel import Threads
from streamcd.solvers import dual

KINDS: dict[str, dict[str, Any]] = {
    "squared_hinge": {},
    "hinge": {"C": 0.01},
    "log_loss": {},
    "free bias": {"loss": "squared_hinge", "bias": 1.0, "unpenalized_bias": True},
}


class Rounds:
    """Counts the rounds of visits; `least` is the least number of operations of a part."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, least: int) -> None:
        self.n, count = 0, dual.count_rounds

        def counted(*arguments: Any) -> int:
            n_rounds = count(*arguments)
            self.n += n_rounds
            return n_rounds

        monkeypatch.setattr(dual, "count_rounds", counted)
        monkeypatch.setattr(dual, "_ROUNDS", 1)
        monkeypatch.setattr("streamcd.core.parallel._LEAST_OPERATIONS", least)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    return Rounds(monkeypatch, 1)


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    return write_dataset(tmp_path / "data", random_rows(1500, 30), n_chunks=9)


def options(kind: str) -> dict[str, Any]:
    return {"loss": kind, "method": "dual", "C": 1.0, **KINDS[kind]}


@pytest.mark.parametrize("kind", KINDS)
def test_parts_end_at_the_optimum_of_one_part(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    found = []
    for least in (1 << 60, 1):
        rounds = Rounds(monkeypatch, least)
        found.append(streamcd.train(data, tmp_path / f"{least}", tol=1e-8, threads=2, **options(kind)))
        assert (rounds.n > 0) == (least == 1)
    assert all(result.converged for result in found)
    assert found[1].primal_objective == pytest.approx(found[0].primal_objective, rel=1e-8)


@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("kind", ["squared_hinge", "log_loss"])
def test_a_run_in_parts_that_is_stopped_and_resumed_ends_with_the_same_bits(
    data: Dataset, tmp_path: Path, rounds: Rounds, kind: str, resident: bool
) -> None:
    asked = options(kind) | {"plan": windows_of(data, 4, resident=resident), "tol": 1e-6, "threads": 2}
    streamcd.train(data, tmp_path / "whole", **asked)
    train_by_turns(streamcd.train, data, tmp_path / "stopped", 4, [3, 5, 1], **asked)
    assert rounds.n > 0
    assert ended(tmp_path / "whole") == ended(tmp_path / "stopped")


def test_parts_that_would_be_joined_a_few_times_a_read_are_one() -> None:
    state: Any = SimpleNamespace(w=np.zeros(300_000), passes=[0], passes_in_one=[0])
    assert dual.count_rounds(4.3e6, 1, state, Threads(2)) == 0
    assert dual.count_rounds(4.3e6, 16, state, Threads(2)) == 1
    assert dual.count_rounds(4.3e6, 16, state, Threads(1)) == 0


def test_few_entries_and_lanes_without_a_moving_kappa_are_visited_in_one_part(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rounds_of(n_least: int, **changed: Any) -> int:
        with monkeypatch.context() as patched:
            rounds = Rounds(patched, n_least)
            asked = options("hinge") | {"acceleration": "auto", "threads": 2} | changed
            streamcd.train(data, tmp_path / "run", tol=0.1, force=True, **asked)
        return rounds.n

    half = data.n_entries // 2
    assert rounds_of(half // 2) > 0
    assert rounds_of(half + 1) == rounds_of(half // 2, threads=1) == 0
    assert rounds_of(half // 2, acceleration="none") == rounds_of(half // 2, acceleration=5.0) == 0
    assert rounds_of(half // 2, C=[0.01, 0.1]) == 0
    monkeypatch.setattr(dual, "_ENTRIES_PER_WEIGHT", data.n_entries // 31 + 1)
    assert rounds_of(half // 2) == 0


def test_a_gap_that_rises_while_w_swings_takes_the_next_passes_in_one_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    solver: Any = object.__new__(dual.DualSolver)
    solver._steps_apart = True

    def passes_in_one(before: float, cosine: float, gap: float) -> int:
        numbers = {"estimate": before, "cosine": cosine, "passes": 3, "passes_in_one": 0}
        state: Any = SimpleNamespace(**{name: np.array([number]) for name, number in numbers.items()})
        estimates = SimpleNamespace(gap=np.array([gap]))
        monkeypatch.setattr(dual.RowSolver, "estimate", lambda *_: estimates)
        assert solver.estimate(state, np.array([0])) is estimates
        return int(state.passes_in_one[0])

    # a fall; a rise on a straight way; and no gap is known before the first pass
    assert passes_in_one(1.0, -0.9, 0.9) == passes_in_one(1.0, -0.3, 1.1) == 0
    assert passes_in_one(np.nan, -0.9, 1.1) == 0
    assert passes_in_one(1.0, -0.9, 1.1) == 6


def test_swings_of_a_single_round_end_by_passes_in_one_part(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one round in a window, and few rows in one part, errors of common directions grow from pass to pass."""
    monkeypatch.setattr(dual, "_SHARE_IN_PARTS", 0.99)
    rounds = Rounds(monkeypatch, 1)
    result = streamcd.train(
        data, tmp_path / "run", C=10.0, method="dual", tol=1e-4, max_passes=200, threads=2
    )
    assert result.converged
    assert 0 < rounds.n < result.passes

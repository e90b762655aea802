"""Half of the time goes to rounds of all workers and half to passes of one, once a certificate has failed."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from interrupted import ended, stopping_after
from small_datasets import random_rows, write_dataset

import streamcd
from streamcd.cluster.engines import Simulation
from streamcd.cluster.schedule import ROUNDS_BEFORE_SOLO, RoundSchedule
from streamcd.core.errors import Interrupted
from streamcd.runs.resume import resume


def turns_of(n_workers: int, local_passes: int, n_rounds: int, failure: int | None = None) -> list[int]:
    """Rounds of every turn, all workers' first, where the certificate after round number `failure` fails."""
    schedule, taken = RoundSchedule(), []
    for number in range(n_rounds):
        schedule = RoundSchedule.from_array(schedule.to_array())
        taken.append(schedule.alone)
        schedule.trained(1 if schedule.alone else n_workers, local_passes)
        if number + 1 == failure:
            schedule.certificate_failed(local_passes)
    return [len(list(rounds)) for _, rounds in itertools.groupby(taken)]


def test_turns_grow_and_share_the_time_equally() -> None:
    assert turns_of(4, 1, 16 + 35, failure=16) == [16, 1, 4, 2, 8, 4, 16]
    # three passes a round take three quarters of what a pass of one of four workers takes
    assert turns_of(4, 3, 20 + 11, failure=20)[:5] == [20, 1, 2, 2, 3]


def test_the_first_turn_of_one_worker_is_short_beside_what_went_before() -> None:
    """A pass of one of 256 takes the time of 86 rounds of three: 342 have to have been made."""
    assert turns_of(256, 3, 400, failure=5)[0] == 342
    assert turns_of(4, 1, 100, failure=5)[0] == 16
    assert turns_of(4, 1, 100, failure=40)[0] == 40
    assert turns_of(4, 1, 200)[0] == ROUNDS_BEFORE_SOLO
    assert turns_of(256, 3, 400)[0] == 342


def test_a_worker_without_others_has_no_turns() -> None:
    assert turns_of(1, 1, 200, failure=20) == [200]


def log_of(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "identity"} for line in lines]


@pytest.fixture
def slow_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, Any]]:
    """What rounds of four workers are slow at, and little patience."""
    monkeypatch.setattr("streamcd.cluster.schedule.ROUNDS_BEFORE_SOLO", 64)
    data = write_dataset(tmp_path / "data", random_rows(200, 100, seed=5), n_chunks=4, n_shards=8)
    return data.path, {"loss": "hinge", "tol": 1e-4, "max_passes": 3000, "seed": 1}


def test_workers_that_are_slow_together_are_helped_by_one(
    slow_together: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured: 905 passes against 1,515."""
    data, options = slow_together
    found = streamcd.train(data, tmp_path / "run", client=Simulation(4), **options)
    alone = streamcd.train(data, tmp_path / "alone", method="dual", **options)
    assert found.converged
    assert found.primal_objective == pytest.approx(alone.primal_objective, rel=1e-4)
    log = log_of(tmp_path / "run")
    first_turn = next(n for n, line in enumerate(log) if line["workers"] == 1)
    assert 0 < first_turn <= 64 + 1
    assert {line["workers"] for line in log if line["kind"] == "certify"} == {4}
    monkeypatch.setattr(
        "streamcd.cluster.schedule.RoundSchedule.trained", lambda schedule, n_workers, local_passes: None
    )
    together = streamcd.train(data, tmp_path / "together", client=Simulation(4), **options)
    assert 3 * found.passes < 2 * together.passes


def test_a_run_with_turns_is_resumed_to_the_same_bits(
    slow_together: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    data, options = slow_together
    options["max_passes"] = 250
    streamcd.train(data, tmp_path / "whole", client=Simulation(4), **options)
    log = log_of(tmp_path / "whole")
    assert {line["workers"] for line in log} == {1, 4}
    with pytest.raises(Interrupted):
        streamcd.train(
            data, tmp_path / "run", client=Simulation(4), stop_requested=stopping_after(5), **options
        )
    for _ in range(len(log)):
        try:
            resume(tmp_path / "run", client=Simulation(4), stop_requested=stopping_after(150))
            break
        except Interrupted:
            pass
    assert ended(tmp_path / "run") == ended(tmp_path / "whole")

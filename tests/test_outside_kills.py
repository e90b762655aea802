"""Trainings killed by SIGKILL and resumed, from outside: the weights are bit for bit those of an uninterrupted run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run, run_json
from forking import DEVNULL, Forked, start_endless_training

import streamcd

N_KILLS = 5


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Datasets of rows that are slow to train: two classes, three, and numbers; the first two with a column layout."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(3)
    X = (rng.random((6000, 25)) < 0.4) * rng.normal(size=(6000, 25))
    scores = X @ rng.normal(size=(25, 3)) + 2 * rng.normal(size=(6000, 3))
    labels = {"two": (scores[:, 0] > 0) * 1.0, "three": scores.argmax(axis=1) + 1.0, "numbers": scores[:, 0]}
    for name, y in labels.items():
        made = streamcd.convert((X, y), folder / name, target=name == "numbers", chunk_size="16kB")
        streamcd.make_columns(made, chunk_size="16kB")
    return lambda name: folder / name


LONG = "--tol 0 --max-passes 150 --bias 1"
KILLED = {
    "dual": f"two --loss squared_hinge --method dual {LONG}",
    "dual, plain": f"two --loss hinge --method dual --acceleration none {LONG}",
    "dual, logistic, a path": f"two --loss log_loss --method dual -C 0.1,1 {LONG}",
    "dual, free bias": f"numbers --loss squared_error --method dual --unpenalized-bias {LONG}",
    "primal": f"two --loss squared_hinge --method primal {LONG}",
    "online": f"three --loss log_loss --method online {LONG}",
    "Crammer-Singer": f"three --loss crammer_singer --method dual {LONG}",
    "multinomial": f"three --loss multinomial --method dual {LONG}",
    "twin": f"two --loss twin --method dual {LONG}",
    "twin by sor": f"two --loss twin --method sor --omega 1.2 {LONG}",
    "newton": "two --loss squared_hinge --method newton --tol 0 --max-passes 12 --bias 1",
    "newton, L1": "numbers --loss squared_error --method newton --tol 0 --max-passes 30 --penalty l1 --l1 50 --bias 1",
    "working-set": "two --loss log_loss --method working-set --tol 0 --max-passes 30 --penalty l1 --l1 2 --bias 1",
}


def weights_of(path: Path) -> bytes:
    """The weights of all models of a run."""
    files = sorted(path.rglob("weights.npy"))
    assert files
    return b"".join(file.read_bytes() for file in files)


def lines_of(path: Path) -> int:
    """Count the lines of a run's logs."""
    return sum(file.read_bytes().count(b"\n") for file in path.rglob("log.jsonl"))


def die_after(command: list[Any], path: Path, n_lines: int) -> bool:
    """Kill a command once the logs of its run have grown by so many lines; False where it ended before."""
    before, process = lines_of(path), Forked(["-m", "streamcd", *command], stdout=DEVNULL, stderr=DEVNULL)
    while process.poll() is None and lines_of(path) < before + n_lines:
        time.sleep(0.001)
    alive = process.poll() is None
    process.kill()
    process.wait()
    return alive


@pytest.mark.parametrize("name", KILLED)
def test_a_run_killed_five_times_has_the_weights_of_one_that_was_not(
    name: str, data: Callable[[str], Path], tmp_path: Path
) -> None:
    dataset, options = KILLED[name].split(" ", 1)
    command = ["train", data(dataset), tmp_path / "killed", *options.split(), "--checkpoint-every", "0.02s"]
    command += ["--threads", "1"]
    whole = run_json("train", data(dataset), tmp_path / "whole", *options.split(), "--threads", "1")
    step = max(1, whole["passes"] // (N_KILLS + 2))
    n_killed = 0
    for _ in range(N_KILLS):
        n_killed += die_after(command, tmp_path / "killed", step)
        command = ["resume", tmp_path / "killed"]
    assert n_killed
    resumed = run_json("resume", tmp_path / "killed")
    assert resumed["primal_objective"] == whole["primal_objective"]
    assert resumed["passes"] == whole["passes"]
    assert weights_of(tmp_path / "killed" / "model") == weights_of(tmp_path / "whole" / "model")


def test_a_search_killed_and_resumed_chooses_the_same(data: Callable[[str], Path], tmp_path: Path) -> None:
    options = [
        "-C",
        "0.01,1",
        "--cv",
        "3",
        "--tol",
        "1e-9",
        "--bias",
        "1",
        "--loss",
        "log_loss",
        "--threads",
        "1",
    ]
    whole = run_json("tune", data("two"), tmp_path / "whole", *options)
    command = ["tune", data("two"), tmp_path / "killed", *options, "--checkpoint-every", "0.02s"]
    n_killed = 0
    for _ in range(N_KILLS):
        n_killed += die_after(command, tmp_path / "killed", 5)
        if (tmp_path / "killed" / "config.json").exists():
            command = ["resume", tmp_path / "killed"]
    assert n_killed
    resumed = run_json("resume", tmp_path / "killed")
    assert resumed["scores"] == whole["scores"]
    assert weights_of(tmp_path / "killed" / "model") == weights_of(tmp_path / "whole" / "model")


# ---------------------------------------------------------------------------------------------------------------------
# Workers


def by_workers(*command: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "streamcd", *map(str, command), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def descendants(pid: int) -> list[int]:
    """Processes below one, the nearest first."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found = [int(child) for child in children.read_text().split()] if children.exists() else []
    return found + [below for child in found for below in descendants(child)]


WORKERS = ["--workers", "2", "--memory", "1GB", "--bias", "1", "--loss", "hinge", "-C", "0.1"]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A dataset in several shards, so that two workers have some."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(3000, 20))
    y = (X @ rng.normal(size=20) + rng.normal(size=3000) > 0) * 1.0
    return streamcd.convert((X, y), tmp_path / "shards", shard_size="100kB", chunk_size="8kB").path


def test_two_workers_killed_and_resumed_have_the_bits_of_two_that_were_not(
    shards: Path, tmp_path: Path
) -> None:
    options = [*WORKERS, "--tol", "0", "--max-passes", "60"]
    whole = by_workers("train", shards, tmp_path / "whole", *options)
    killed = by_workers("train", shards, tmp_path / "killed", *options)
    while killed.poll() is None and lines_of(tmp_path / "killed") < 4:
        time.sleep(0.005)
    killed.kill()
    killed.wait()
    assert whole.wait() == 0, whole.communicate()[1]
    resumed = by_workers("resume", tmp_path / "killed", "--workers", "2")
    assert resumed.wait() == 0, resumed.communicate()[1]
    assert weights_of(tmp_path / "killed" / "model") == weights_of(tmp_path / "whole" / "model")


def test_a_run_of_which_a_worker_dies_reaches_the_optimum(shards: Path, tmp_path: Path) -> None:
    alone = run_json(
        "train", shards, tmp_path / "alone", "--bias", "1", "--loss", "hinge", "-C", "0.1", "--tol", "1e-4"
    )
    options = [*WORKERS, "--tol", "1e-4", "--max-passes", "5000", "--worker-timeout", "5s"]
    training = by_workers("train", shards, tmp_path / "run", *options)
    while training.poll() is None and lines_of(tmp_path / "run") < 2:
        time.sleep(0.005)
    deepest = [pid for pid in descendants(training.pid) if not descendants(pid)]
    os.kill(deepest[-1], signal.SIGKILL)
    out, said = training.communicate()
    if training.returncode != 0:  # it may end instead, in one line, and be resumed
        assert training.returncode == 1
        assert "Traceback" not in said
        resumed = by_workers("resume", tmp_path / "run", "--workers", "2")
        out, said = resumed.communicate()
        assert resumed.returncode == 0, said
    primal = json.loads(out)["primal_objective"]
    assert primal == pytest.approx(alone["primal_objective"], rel=2e-4)


# ---------------------------------------------------------------------------------------------------------------------
# Signals, locks, time


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_a_checkpoint(
    signum: int, status: int, data: Callable[[str], Path], tmp_path: Path
) -> None:
    process = start_endless_training(data("two"), tmp_path / "run")
    time.sleep(0.1)
    process.send_signal(signum)
    _, said = process.communicate(timeout=60)
    assert process.wait() == status
    assert "streamcd resume" in said
    assert "Traceback" not in said
    told = run_json("info", tmp_path / "run")
    assert told["state"] == "interrupted"
    assert told["passes"] > 0


def test_a_second_signal_ends_at_once(data: Callable[[str], Path], tmp_path: Path) -> None:
    process = start_endless_training(data("two"), tmp_path / "run")
    for _ in range(2):
        process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.wait() in (130, -signal.SIGINT)
    assert "Traceback" not in said
    resumed = run_json("resume", tmp_path / "run", "--max-passes", "1", "--tol", "1")
    assert resumed["passes"] >= 0


def test_a_run_in_work_is_locked(data: Callable[[str], Path], tmp_path: Path) -> None:
    process = start_endless_training(data("two"), tmp_path / "run")
    done = run("resume", tmp_path / "run")
    assert run_json("info", tmp_path / "run")["state"] == "in work"
    process.kill()
    process.communicate()
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_training_that_has_no_time_left_is_resumed(data: Callable[[str], Path], tmp_path: Path) -> None:
    stopped = run_json("train", data("two"), tmp_path / "run", *LONG.split(), "--max-seconds", "0.02")
    assert (stopped["converged"], stopped["stop_reason"]) == (False, "time")
    resumed = run_json("resume", tmp_path / "run")
    assert resumed["stop_reason"] != "time"
    run_json("train", data("two"), tmp_path / "whole", *LONG.split())
    assert weights_of(tmp_path / "run" / "model") == weights_of(tmp_path / "whole" / "model")


def test_a_run_is_resumed_with_other_tolerances_passes_and_a_dataset_that_moved(
    data: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copytree(data("two"), tmp_path / "data")
    path, options = tmp_path / "run", ["--loss", "log_loss", "--method", "dual", "--bias", "1"]
    first = run_json("train", tmp_path / "data", path, *options, "--max-passes", "2", "--tol", "1e-9")
    assert not first["converged"]
    assert run_json("resume", path, "--tol", "0.9")["converged"]
    (tmp_path / "data").rename(tmp_path / "moved")
    assert run("resume", path, "--tol", "1e-6", "--max-passes", "500").returncode == 2
    tight = run_json("resume", path, "--tol", "1e-6", "--max-passes", "500", "--dataset", tmp_path / "moved")
    assert tight["converged"]
    assert tight["gap"] <= 1e-6
    whole = run_json("train", tmp_path / "moved", tmp_path / "whole", *options, "--tol", "1e-6")
    assert tight["primal_objective"] == pytest.approx(whole["primal_objective"], rel=2e-6)

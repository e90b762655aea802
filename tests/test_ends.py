"""Ends of work: Ctrl-C from Python and twice, trainings that do not converge, full disks."""

from __future__ import annotations

import io
import math
import os
import signal
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pytest
from forking import DEVNULL, PIPE, Forked, start_endless_training
from small_datasets import random_rows, write_dataset

import streamcd
from streamcd import Listener
from streamcd.training import checkpoint
from streamcd.training.loop import Session
from tools.simulated_cluster import Simulation

ENDLESS = {"tol": 0.0, "max_passes": 10**9}


@pytest.fixture
def data(tmp_path) -> Path:
    return Path(write_dataset(tmp_path / "data", random_rows()).path)


class SignalsInPass(Listener):
    """Sends this process a signal once some passes are done."""

    def __init__(self, signum: int = signal.SIGINT, after: int = 5) -> None:
        self.signum, self.after, self.sent = signum, after, 0

    def progress(self, progress) -> None:
        if (
            progress.phase.startswith("pass")
            and int(progress.phase.split()[1]) > self.after
            and not self.sent
        ):
            self.sent += 1
            os.kill(os.getpid(), self.signum)


def test_ctrl_c_from_python_saves_the_passes_done(data, tmp_path):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="resume"):
        streamcd.train(data, tmp_path / "run", listener=SignalsInPass(), **ENDLESS)
    assert signal.getsignal(signal.SIGINT) is before
    assert np.load(tmp_path / "run" / "state.npz")["passes"].max() >= 5
    with pytest.raises(KeyboardInterrupt, match="resume"):
        streamcd.resume(tmp_path / "run", listener=SignalsInPass(after=20))
    assert np.load(tmp_path / "run" / "state.npz")["passes"].max() >= 20
    with pytest.raises(KeyboardInterrupt, match="resume"):
        streamcd.tune(data, tmp_path / "search", C=[0.1, 1], listener=SignalsInFolds(), **ENDLESS)
    assert np.load(tmp_path / "search" / "folds" / "state.npz")["passes"].max() >= 5


class SignalsInFolds(SignalsInPass):
    def progress(self, progress) -> None:
        if progress.phase.startswith("folds: pass 7") and not self.sent:
            self.sent += 1
            os.kill(os.getpid(), self.signum)


def test_other_signals_from_python_do_what_they_did_after_saving(data, tmp_path):
    received = []
    before = signal.signal(signal.SIGTERM, lambda signum, frame: received.append(signum))
    try:
        with pytest.raises(streamcd.StreamcdError, match="resume"):
            streamcd.train(data, tmp_path / "run", listener=SignalsInPass(signal.SIGTERM), **ENDLESS)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM]
    assert np.load(tmp_path / "run" / "state.npz")["passes"].max() >= 5


def test_training_in_another_thread_leaves_signals_alone(data, tmp_path):
    results = []
    thread = threading.Thread(target=lambda: results.append(streamcd.train(data, tmp_path / "run")))
    thread.start()
    thread.join()
    assert results[0].converged


def test_an_unconverged_training_warns_from_python(data, tmp_path):
    with pytest.warns(
        streamcd.ConvergenceWarning, match=r"3 passes.*relative gap is .*resume.*max_passes"
    ) as found:
        streamcd.train(data, tmp_path / "run", tol=1e-12, max_passes=3)
    assert found[0].filename == __file__
    with pytest.warns(streamcd.ConvergenceWarning, match="4 passes"):
        streamcd.resume(tmp_path / "run", max_passes=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        streamcd.train(data, tmp_path / "converged")
        line = ["train", str(data), str(tmp_path / "told"), "--tol", "1e-12", "--max-passes", "3"]
        told = command_line.run(*line)
    assert told.returncode == 0
    assert told.stderr.count("not converged") == 1


# ---------------------------------------------------------------------------------------------------------------------
# The command line


def start(*arguments: object, **options) -> Forked:
    return Forked(["-m", "streamcd", *arguments], stderr=PIPE, **{"stdout": DEVNULL, **options})


@pytest.mark.parametrize("pause", [0.0, 0.01, 0.05, 0.2])
def test_a_second_ctrl_c_changes_nothing(data, tmp_path, pause):
    process = start_endless_training(data, tmp_path / "run", stdout=DEVNULL)
    process.send_signal(signal.SIGINT)
    while process.poll() is None:
        time.sleep(pause)
        process.send_signal(signal.SIGINT)
    errors = process.stderr.read()
    assert "Traceback" not in errors
    assert "streamcd resume" in errors
    assert process.returncode == 130


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
@pytest.mark.parametrize(
    "command",
    ["columns data --force", "train data run --force -C 2 --json", "verify data --json", "evaluate data run"],
)
def test_a_full_standard_output_is_one_line(data, tmp_path, command):
    streamcd.train(data, tmp_path / "run")
    with open("/dev/full", "w") as full:
        process = start(*command.split(), "--quiet", stdout=full, cwd=tmp_path)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.splitlines()[-1].startswith("streamcd: error: standard output: No space left on device")
    assert "Traceback" not in errors
    assert "Exception ignored" not in errors


def test_a_full_disk_is_told_with_the_file_and_how_to_go_on(data, tmp_path, monkeypatch):
    streamcd.train(data, tmp_path / "run", max_passes=2, tol=0)

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "_write_archive", fail)
    for line in (["resume", "run", "--max-passes", "9"], ["train", "data", "new"]):
        monkeypatch.chdir(tmp_path)
        found = command_line.run(*line)
        assert found.returncode == 1
        last = found.stderr.splitlines()[-1]
        assert "state.npz" in last
        assert "No space left on device" in last
        assert ("'streamcd resume run' goes on" in last) == (line[0] == "resume")
        assert "free" in last


@pytest.mark.parametrize("train", ["train data run -C 1 --method dual", "tune data run -C 0.1,1 --cv 2"])
@pytest.mark.parametrize(
    ("file", "call"), [("log.jsonl", "write"), ("dual/part-", "pwritev"), ("dual/part-", "fsync")]
)
def test_a_disk_that_fills_up_in_training_is_told_with_the_file_and_the_way_on(
    data, tmp_path, monkeypatch, train, file, call
):
    """No failure of a write says by itself to which file."""
    monkeypatch.chdir(tmp_path)
    real = {name: getattr(os, name) for name in ("pwritev", "fsync")}

    def fail_on(descriptor: int, *arguments):
        if f"/{file}" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(28, "No space left on device")
        return real[call](descriptor, *arguments)

    class FullLog(io.BytesIO):
        def write(self, _) -> int:
            raise OSError(28, "No space left on device")

    def opened(path, mode="r", *arguments, **named):
        return (
            FullLog() if mode == "ab" and file in str(path) and cut else open(path, mode, *arguments, **named)
        )

    cut: list[int] = []
    with monkeypatch.context() as full:
        if call == "write":
            append = checkpoint.Run.append_log
            full.setattr(checkpoint.Run, "append_log", lambda *given: cut.append(1) or append(*given))
            full.setattr(checkpoint, "open", opened, raising=False)
        else:
            full.setattr(os, call, fail_on)
        line = [*train.split(), "--tol", "1e-9", "--checkpoint-every", "0.001", "--max-passes", "5"]
        found = command_line.run(*line)
    assert found.returncode == 1
    last = found.stderr.splitlines()[-1]
    assert last.startswith("streamcd: error: run/")
    assert f"{file}" in last
    assert "No space left on device; free some space there" in last
    assert "'streamcd resume run' goes on from the" in last
    assert command_line.run("resume", "run").returncode == 0


# ---------------------------------------------------------------------------------------------------------------------
# Batch queues


class PassesOfAJob:
    """A clock by which the time is up after some looks at it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        monkeypatch.setattr("streamcd.runs.run.Session", self.session)

    def session(self, *given: Any) -> Session:
        session = Session(*given)
        self.left = 10**9 if session.until == math.inf else round(session.until - time.monotonic())
        return replace(session, until=self)

    def __le__(self, now: float) -> bool:  # `now >= until`
        self.left -= 1
        return self.left < 0


def test_jobs_of_a_queue_end_with_the_bits_of_one_training(data, tmp_path, monkeypatch):
    """The same command again and again, each stopped by its time with status 0."""
    PassesOfAJob(monkeypatch)
    options = ["--method", "dual", "--tol", "1e-6"]
    command_line.run_json("train", data, tmp_path / "whole", *options)
    command = ["train", data, tmp_path / "run", *options, "--max-seconds", "6", "--resume"]
    found, n_jobs = command_line.run_json(*command), 1
    assert found["stop_reason"] == "time"
    assert found["converged"] is False
    assert not (tmp_path / "run" / "model").exists()
    while found["stop_reason"] == "time":
        found, n_jobs = command_line.run_json(*command), n_jobs + 1
        assert n_jobs < 50
    assert found["converged"] is True
    assert n_jobs > 2
    np.testing.assert_array_equal(
        streamcd.load_model(tmp_path / "run").weights, streamcd.load_model(tmp_path / "whole").weights
    )
    assert command_line.run_json(*command)["passes"] == found["passes"]  # a job too many changes nothing


def test_a_search_is_stopped_by_its_time_and_goes_on(data, tmp_path, monkeypatch):
    PassesOfAJob(monkeypatch)
    command = ["tune", data, tmp_path / "run", "-C", "0.1,1", "--max-seconds", "8", "--resume"]
    found, reasons = command_line.run_json(*command), []
    assert found["best_C"] is None
    while found["stop_reason"] == "time":
        reasons.append(found["scores"])
        found = command_line.run_json(*command)
    assert found["best_C"] in (0.1, 1)
    assert reasons[0] == {}


def test_another_training_is_not_gone_on_with(data, tmp_path):
    command_line.run_json("train", data, tmp_path / "run")
    done = command_line.run("train", data, tmp_path / "run", "-C", "3", "--resume")
    assert done.returncode == 2
    assert "holds another run" in done.stderr


def test_time_that_is_up_is_told_with_the_way_on(data, tmp_path):
    done = command_line.run("train", data, tmp_path / "run", "--max-seconds", "1ms", "--tol", "1e-9")
    assert done.returncode == 0
    assert f"'streamcd resume {tmp_path / 'run'}' goes on from here" in done.stderr
    assert "not certified yet" in done.stdout
    with pytest.warns(
        streamcd.ConvergenceWarning, match=r"the time was up after 0 passes; streamcd\.resume\('[^']*'\)"
    ):
        assert streamcd.train(data, tmp_path / "other", max_seconds=1e-3).stop_reason == "time"
    for wrong in ({"max_seconds": 0}, {"checkpoint_every": "0s"}):
        (name,) = wrong
        with pytest.raises(streamcd.StreamcdError, match=f"{name}: expected a time"):
            streamcd.train(data, tmp_path / "third", **wrong)
    for name, wrong in (
        ("checkpoint_every", "1 fortnight"),
        ("max_seconds", "x"),
        ("worker_timeout", "soon"),
    ):
        with pytest.raises(streamcd.StreamcdError, match=f"{name}: expected a time such as 60s, 5m"):
            streamcd.train(data, tmp_path / "third", **{name: wrong})
    with pytest.raises(streamcd.StreamcdError, match="checkpoint_every: expected a time"):
        streamcd.resume(tmp_path / "other", checkpoint_every="x")
    assert streamcd.resume(tmp_path / "other", checkpoint_every="1ms").converged
    assert not (tmp_path / "third").exists()
    info = command_line.run("info", tmp_path / "run").stdout
    assert "interrupted" in info


def test_workers_are_stopped_by_their_time_too(data, tmp_path):
    options = {"client": Simulation(2), "loss": "log_loss", "tol": 1e-9}
    with pytest.warns(streamcd.ConvergenceWarning, match="time was up"):
        result = streamcd.train(data, tmp_path / "run", max_seconds=1e-3, **options)
    assert result.stop_reason == "time"
    assert streamcd.resume(tmp_path / "run", client=Simulation(2), tol=1e-3).converged

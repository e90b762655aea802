"""Progress of long work: rate and time left, lines and bars, notebooks, and what is compiled."""

from __future__ import annotations

import importlib.util
import io

import numpy as np
import pytest
from heard import Heard
from small_datasets import multiclass, random_rows, write_dataset

import streamcd
from streamcd import LinearSVC
from streamcd.cli import console
from streamcd.cli.console import Console
from streamcd.core.errors import Interrupted
from streamcd.core.options import COMPILING, Progress, TrainingStatus


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def dataset(tmp_path):
    return write_dataset(tmp_path / "data", random_rows(60, 8, seed=3), n_chunks=3)


# ---------------------------------------------------------------------------------------------------------------------
# What is shown


STATUS = TrainingStatus("", 3, "gap", 0.1, 1e-3)


def shown(clock: list[float], steps: list[tuple[float, int]], training: TrainingStatus | None) -> list[str]:
    """The lines without a terminal, of a phase of 1,000 rows of which so many are done after so many seconds."""
    stream = io.StringIO()
    console = Console(stream=stream)
    for seconds, done in steps:
        clock[0] += seconds
        console.progress(Progress("pass 4", done, 1000, "rows", "gap about 1.0e-01", training))
    return stream.getvalue().splitlines()


def test_the_time_left_is_by_the_rate_of_the_last_seconds(clock):
    """A mean since the beginning told twice the time where the first half had waited for a disk."""
    steps = [(1.0, 0), (500.0, 500), *((1.0, 500 + 10 * k) for k in range(1, 21))]
    first, *_, last = shown(clock, steps, None)
    assert first == "streamcd: pass 4: 50 % of 1 k rows, 1 rows/s, 8 min 20 s left, gap about 1.0e-01"
    assert last == "streamcd: pass 4: 70 % of 1 k rows, 10 rows/s, 30 s left, gap about 1.0e-01"


def test_of_a_training_no_time_left_is_told(clock):
    """It ends by its gap: a forecast was wrong by factors, and the time of a pass was taken for that of all."""
    lines = shown(clock, [(11.0, 100 * k) for k in range(10)], STATUS)
    assert lines[-1] == "streamcd: pass 4: 90 % of 1 k rows, 9.09 rows/s, gap about 1.0e-01"
    assert not any("left" in line for line in lines)


def test_on_a_terminal_a_bar_tells_the_time_left(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    with Console(stream=stream) as console:
        for done in range(13):
            clock[0] += 1.0
            console.progress(Progress("parse", done, 100, "rows", "two files"))
    for text in ("parse", "12 % of 100 rows", "1 rows/s", "1 min 28 s left", "two files"):
        assert text in stream.getvalue()


def test_a_training_tells_its_status_by_c(tmp_path):
    seen: list[TrainingStatus] = []

    class Watcher(streamcd.Listener):
        closed = 0

        def progress(self, progress) -> None:
            if progress.training is not None:
                seen.append(progress.training)

        def close(self) -> None:
            self.closed += 1

    watcher = Watcher()
    data = write_dataset(tmp_path / "data", multiclass())
    result = streamcd.train(data, tmp_path / "run", C=[0.01, 1.0], listener=watcher)
    passes = [found.passes for found in seen]
    assert passes == sorted(passes)
    assert passes[-1] <= result.passes
    assert seen[-1].now < seen[len(seen) // 2].now
    assert watcher.closed == 1
    eps = streamcd.train(data, tmp_path / "eps", eps=0.1, listener=watcher)
    assert (seen[-1].measure, seen[-1].wanted) == ("violation", 0.1)
    assert eps.converged


def test_an_interruption_tells_pass_gap_and_command(tmp_path):
    data, calls = write_dataset(tmp_path / "data", random_rows()), []

    def stop() -> int | None:
        calls.append(1)
        return 2 if len(calls) == 5 else None

    with pytest.raises(
        Interrupted, match=r"after pass \d+, gap about [\d.e-]+, wanted 1.0e-09; streamcd\.resume\('.*run'\)"
    ):
        streamcd.train(data, tmp_path / "run", tol=1e-9, stop_requested=stop)


def test_a_listener_is_told_of_the_end_where_a_call_fails(tmp_path):
    class Watcher(streamcd.Listener):
        closed = False

        def close(self) -> None:
            self.closed = True

    watcher = Watcher()
    with pytest.raises(streamcd.StreamcdError):
        streamcd.convert(tmp_path / "nowhere", tmp_path / "data", listener=watcher)
    assert watcher.closed


# ---------------------------------------------------------------------------------------------------------------------
# Compilation


class CalledTwice(list):
    def append(self, tell):
        tell(0, 9)
        tell(3, 9)
        super().append(tell)


def test_a_compilation_is_counted_and_told_once_by_estimators(dataset, tmp_path, monkeypatch, caplog):
    """A first fit said nothing for ten seconds, and a first training how many there were so far, but not of how many."""
    monkeypatch.setattr("streamcd.kernels.compiler.on_compile", CalledTwice())
    monkeypatch.setattr("streamcd.core.options._warned", set())
    stream = io.StringIO()
    monkeypatch.setattr(console, "PLAIN_INTERVAL", 0.0)
    streamcd.train(dataset, tmp_path / "run", listener=streamcd.ProgressBar(stream=stream))
    lines = stream.getvalue()
    assert "compiling kernels (once for this machine): 3 of 9\n" in lines
    x, y = np.array([[0.0], [1.0], [2.0], [3.0]]), [0, 0, 1, 1]
    with caplog.at_level("WARNING", "streamcd"):
        LinearSVC().fit(x, y)
    assert [record.getMessage() for record in caplog.records].count(COMPILING) == 1


def test_a_compilation_is_told_of_by_every_function_with_a_listener(tmp_path, monkeypatch):
    """A first conversion said nothing for ten seconds."""
    monkeypatch.setattr("streamcd.kernels.compiler.on_compile", CalledTwice())
    heard = Heard()
    (tmp_path / "a.txt").write_text("1 1:2\n-1 2:1\n")
    data = streamcd.convert(tmp_path / "a.txt", tmp_path / "data", listener=heard)
    streamcd.train(data, tmp_path / "run", listener=heard)
    counts = [(seen.done, seen.total) for seen in heard.seen if seen.phase == COMPILING]
    assert counts == 2 * [(0, 9), (3, 9)]


def test_what_the_cache_does_not_have_is_told_before_it_is_compiled(tmp_path, monkeypatch):
    written = [str(tmp_path)], str(tmp_path)  # a common one may have a kernel of the same name
    monkeypatch.setattr("streamcd.kernels.compile.folders", lambda: written)
    path = tmp_path / "made.py"
    path.write_text(
        "from streamcd.kernels.compile import kernel\n\n@kernel\ndef twice(x):\n    return 2 * x\n"
    )
    compiled: list[str] = []
    monkeypatch.setattr("streamcd.kernels.compiler.on_compile", [lambda *_: compiled.append(name)])
    for name, expected in (("first", ["first"]), ("again", [])):
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        compiled.clear()
        assert module.twice(2) == 4
        assert compiled == expected

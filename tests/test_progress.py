"""Progress of long work: the forecast of a training's end, lines and bars, notebooks, and what is compiled."""

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
from streamcd.cli.console import Console, Course
from streamcd.core.errors import Interrupted
from streamcd.core.options import COMPILING, Progress, TrainingStatus


def status(passes: int, now: float, *, wanted: float = 1e-3, max_passes: int = 1000) -> TrainingStatus:
    return TrainingStatus("", passes, 1, max_passes, "gap", now, wanted)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def dataset(tmp_path):
    return write_dataset(tmp_path / "data", random_rows(60, 8, seed=3), n_chunks=3)


# ---------------------------------------------------------------------------------------------------------------------
# How long still


def test_a_gap_that_falls_by_a_factor_a_pass_is_forecast_exactly():
    course = Course(status(0, np.nan), 0.0)
    assert course.passes_left(status(0, np.nan), 0) is None
    for passes in range(1, 6):
        course.learn(status(passes, 10.0 ** (1 - passes)), passes)
    # from 1e-4 · 10 at pass 5: nothing is left but the certificate; from 0.5 passes before, half a pass more
    left = Course(status(0, np.nan), 0.0)
    for passes in range(1, 4):
        left.learn(status(passes, 10.0 ** -(passes / 4)), passes)
    assert left.passes_left(status(3, 10**-0.75), 3) == pytest.approx(9 + 1)
    assert left.passes_left(status(3, 10**-0.75), 3.5) == pytest.approx(8.5 + 1)
    assert course.passes_left(status(5, 1e-4), 5) == pytest.approx(1)


def test_passes_left_are_no_more_than_allowed():
    course = Course(status(0, np.nan), 0.0)
    for passes, gap in enumerate([1.0, 0.1, 0.02, 0.019, 0.018, 0.0179], start=1):
        course.learn(status(passes, gap, max_passes=50), passes)
        left = course.passes_left(status(passes, gap, max_passes=50), passes)
        assert left is None or left <= 51 - passes


def test_the_pace_leaves_out_the_first_pass():
    """Which loads kernels, and files that are not cached yet."""
    course = Course(status(0, np.nan), 0.0)
    for passes, now in [(1, 100.0), (2, 101.0), (3, 102.0)]:
        course.learn(status(passes, 10.0 ** -(passes / 4)), now)
    progress = Progress("pass 4", 0, 10, "rows", "", status(3, 10**-0.75))
    assert course.time_left(progress, 102.0) == ["about 10 s left"]


# ---------------------------------------------------------------------------------------------------------------------
# What is shown


def test_on_a_terminal_a_bar_tells_the_time_left(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    with Console(stream=stream) as console:
        for passes in range(13):
            clock[0] += 1.0
            now = status(passes, 10.0 ** -(passes / 5) if passes else np.nan)
            console.progress(Progress(f"pass {passes + 1}", 50, 100, "entries", "gap 1.0e-01", now))
    for text in ("pass 13", "50 % of 100 entries", "gap 1.0e-01", "about 3.3 s left"):
        assert text in stream.getvalue()


def test_without_a_terminal_lines_tell_the_time_left(clock):
    stream = io.StringIO()
    console = Console(stream=stream)
    for passes in range(10):
        clock[0] += 6.0
        now = status(passes, 10.0 ** -(passes / 5) if passes else np.nan)
        console.progress(Progress(f"pass {passes + 1}", 50, 100, "entries", "", now))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5
    assert all(line.startswith("streamcd: pass ") for line in lines)
    assert lines[-1].endswith("left")


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
        Interrupted, match=r"after pass \d+, gap about [\d.e-]+, wanted 1.0e-09; 'streamcd resume .*run'"
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
    written = (str(tmp_path),), str(tmp_path)  # a common one may have a kernel of the same name
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

"""The bars of the benchmark, from made records of races."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tools.peers.race import Training
from tools.peers.tables import Race, append
from tools.speed import BARS, Speed, main, read_records

COLD = Race("text-158m-wide", "squared_hinge", 1.0, 2, "390MB", True)


def record(path: Path, race: Race, **seconds: float) -> None:
    """Record a training to 1e-3 of each contestant, loaded in a second."""
    for name, spent in seconds.items():
        figures = {
            "seconds": spent,
            "processor_seconds": spent,
            "peak_memory_bytes": 1,
            "passes": 6,
            "certificates": 2,
        }
        append(path, race, Training(name, 0, 1e-3, 1e-4, None, 1.0, figures))


def lines_of(records: Path, *groups: str) -> dict[str, list[str]]:
    """What the command says of each bar: at least, reached, held."""
    asked = [word for group in groups for word in ("--only", group)]
    done = CliRunner().invoke(main, ["--records", str(records), *asked])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()[2:]
    rows = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines]
    return {what: rest for what, *rest in rows}


def line(found: dict[str, list[str]], beginning: str) -> list[str]:
    [one] = [rest for what, rest in found.items() if what.startswith(beginning)]
    return one


@pytest.mark.parametrize(("two_threads", "verdict"), [(1.6, "held"), (1.4, "**not held**")])
def test_text_is_compared_with_the_better_of_one_thread_and_two(
    tmp_path: Path, two_threads: float, verdict: str
) -> None:
    for loss in ("squared_hinge", "hinge", "log_loss"):
        one = Race("text-65m", loss, 1.0, 1, "8GB", False)
        record(tmp_path / "r", one, streamcd=1.5, snapml=3.0)
        record(tmp_path / "r", replace(one, threads=2), streamcd=1.0, snapml=two_threads)
    found = lines_of(tmp_path / "r", "races")
    shown = f"{two_threads}, {two_threads}, {two_threads}"
    assert line(found, "text-65m, two threads against Snap ML's") == ["1.5 × each", shown, verdict]
    assert line(found, "the best peer in memory, one thread, text") == ["1 × each", "2, 2, 2", "held"]
    median = (2 + two_threads) / 2
    assert line(found, "the best peer in memory, every race")[1:] == [
        f"{two_threads:.2f}; {median:.2f} (6 races)",
        "held",
    ]
    reached = f"least {1 + two_threads:.2f}, median {(8 / 3 + 1 + two_threads) / 2:.2f}"
    assert line(found, "the same with the peers' load")[1:] == [reached, "**not held**"]
    assert "no record of imdb, squared_hinge" in line(found, "the best peer in memory, one thread, imdb")[1]


def test_a_budget_is_compared_with_liblinear_and_with_all_in_memory(tmp_path: Path) -> None:
    """Of the same C alone; whichever race of the problem has LIBLINEAR; a certificate more than one has failed."""
    record(tmp_path / "r", COLD, streamcd=10.0)
    record(tmp_path / "r", replace(COLD, memory="8GB"), streamcd=7.0, liblinear=12.0)
    record(tmp_path / "r", replace(COLD, C=0.1), streamcd=1.0, liblinear=1.0)
    found = lines_of(tmp_path / "r", "memory")
    start = "text-158m-wide cold, squared_hinge, C = 1, within 390MB"
    assert line(found, f"{start}, 2 threads against") == ["1.2 ×", "1.20 × (10.0 s, 12.0 s)", "held"]
    assert line(found, f"{start}, two threads") == [
        "at most 1.3 ×",
        "1.43 × the time (10.0 s, 7.0 s)",
        "**not held**",
    ]
    assert line(found, f"{start}: passes")[1:] == ["6; 1 (tolerance 0.001)", "held"]
    assert line(found, "text-158m cold, squared_hinge, C = 0.1, within 400MB, 2")[1].startswith(
        "not measured"
    )


def test_threads_and_lanes_are_records_of_the_same_race(tmp_path: Path) -> None:
    for data, ours in (("text-65m", 2.0), ("clicks-400k", 3.0), ("kdd99_10pct", 4.0)):
        one = Race(data, "squared_hinge", 1.0, 1, "8GB", False)
        record(tmp_path / "r", one, streamcd=ours)
        record(tmp_path / "r", replace(one, threads=2), streamcd=ours / 2)
        record(tmp_path / "r", replace(one, threads=4), streamcd=2.0)
    found = lines_of(tmp_path / "r", "threads")
    assert line(found, "one lane, squared_hinge, 4 threads") == ["2, 1.5, 1.3 ×", "1, 1.5, 2", "**not held**"]
    assert line(found, "one lane, squared_hinge, 2 threads") == ["", "2, 2, 2", ""]


def test_classes_are_compared_with_liblinear_by_one_thread_and_by_all(
    tmp_path: Path, monkeypatch: Any
) -> None:
    one = Race("classes-105", "squared_hinge", 1.0, 1, "8GB", False)
    record(tmp_path / "r", one, streamcd=2.0, liblinear=3.0)
    record(tmp_path / "r", replace(one, threads=2), streamcd=1.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    found = [
        bar.measure(Speed(read_records(tmp_path / "r"), tmp_path))
        for bar in BARS
        if "one-vs-rest" in bar.what
    ]
    assert found == [("1.5, 3 (2 cores)", True)]


def test_a_part_replaces_its_own_lines(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("| a | b |\n<!-- begin: python -m tools.speed -->\n<!-- end -->\nafter\n")
    for group in ("workers", "threads", "threads"):
        done = CliRunner().invoke(
            main, ["--records", str(tmp_path / "r"), "--only", group, "--docs", str(page)]
        )
        assert done.exit_code == 0, done.output
    text = page.read_text()
    assert text.count("each on a host") == 3
    assert text.count("one lane") == 2
    assert text.startswith("| a | b |\n<!-- begin")
    assert text.endswith("<!-- end -->\nafter\n")

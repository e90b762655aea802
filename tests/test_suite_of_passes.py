"""A short run of the suite of accelerated trainings, and its bars on records made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tools.acceleration_suite.__main__ import main
from tools.acceleration_suite.cells import Cell, all_cells
from tools.acceleration_suite.runs import Limits, Record, Records, gap_curve
from tools.acceleration_suite.tables import bars, pairs, report

HEART = Cell("heart_scale", "hinge", 1.0)


@pytest.fixture
def folder(tmp_path: Path, real_data, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STREAMCD_DATA", str(real_data("heart_scale").parent))
    return tmp_path


def record(cell: Cell, acceleration: str, made: int, **passes: int) -> Record:
    named = {{"coarse": "0.001", "fine": f"{cell.fine:g}"}[name]: count for name, count in passes.items()}
    return Record(cell, acceleration, named, 1, made, 0, acceleration == "auto", "gap", 1.0)


def done(*records: Record) -> dict[tuple[Cell, str], Record]:
    return {(each.cell, each.acceleration): each for each in records}


def test_a_cell_is_trained_plain_and_accelerated_once_and_shown(folder: Path) -> None:
    docs = folder / "note.md"
    docs.write_text("before\n<!-- begin: python -m tools.acceleration_suite -->\n<!-- end -->\nafter\n")
    options = [str(folder / "data"), "--set", "heart_scale", "--loss", "hinge", "-C", "1", "--jobs", "1"]
    options += ["--records", str(folder / "records"), "--docs", str(docs)]
    first = CliRunner().invoke(main, options)
    assert first.exit_code == 0, first.output
    assert "2 of 2: heart_scale hinge C=1 dual, acceleration none" in first.output
    [coarse, fine] = pairs(Records(folder / "records").done)
    assert coarse.gain > 3
    assert fine.plain > coarse.plain > 40
    assert f"| heart_scale | {coarse} |" in docs.read_text()
    again = CliRunner().invoke(main, options)
    assert " of " not in again.output.partition("|")[0]
    assert docs.read_text().startswith("before")
    assert docs.read_text().endswith("after\n")

    points = list(gap_curve(HEART, "auto", folder / "data", Limits()))
    assert points[-1][1] <= HEART.fine < points[0][1]


def test_a_run_that_was_stopped_is_made_again_with_a_higher_limit_only(tmp_path: Path) -> None:
    records = Records(tmp_path / "records")
    stopped = record(HEART, "none", 100)
    stopped.stopped = "max_passes"
    for each in (record(HEART, "auto", 20, coarse=20), stopped):
        records.add(each)
    read = Records(tmp_path / "records")
    assert read.missing([HEART], Limits(100)) == []
    assert read.missing([HEART], Limits(1000)) == [(HEART, "none")]
    read.forget_accelerated([HEART])
    assert Records(tmp_path / "records").missing([HEART], Limits(100)) == [(HEART, "auto")]


def test_bars_count_what_did_not_arrive_with_its_limit_and_leave_out_what_neither_reached() -> None:
    clicks = Cell("clicks", "squared_hinge", 1.0)
    found = done(
        record(HEART, "auto", 50, coarse=25),
        record(HEART, "none", 1000),
        record(clicks, "auto", 200, coarse=90, fine=200),
        record(clicks, "none", 130, coarse=60, fine=130),
    )
    by_name = {bar.what: bar for bar in bars(found)}
    hinge = by_name["mean gain, plain 40 passes or more: hinge, to 1e-3"]
    assert (hinge.found, hinge.holds) == ("40.0 × over 1 cells", True)
    assert by_name["any cell and gap"].found == "2 of 3 are worse"
    assert by_name["clicks squared_hinge C = 1, to 1e-3"].holds is False
    assert by_name["a9a hinge C = 1, to 1e-3"].holds is None
    text = report(found)
    assert "| heart_scale | > 1000 → 25 |" in text
    assert "Neither arrived within the passes: heart_scale hinge C = 1 (dual) to 1e-4." in text
    assert "* clicks squared_hinge C = 1 (dual), to 1e-6: 130 → 200" in text


def test_a_run_that_time_has_stopped_is_shown_and_not_counted() -> None:
    slow = record(HEART, "none", 60)
    slow.stopped = "time"
    found = done(record(HEART, "auto", 90, coarse=80), slow)
    by_name = {bar.what: bar for bar in bars(found)}
    assert by_name["mean gain, plain 40 passes or more: hinge, to 1e-3"].holds is None
    assert by_name["any cell and gap"].found == "0 of 0 are worse"
    assert "| heart_scale | > 60 → 80 |" in report(found)


def test_the_suite_has_every_cell_once() -> None:
    cells = list(all_cells())
    assert len(cells) == len(set(cells)) == 11 * 5 * 4 + 4 * 4 + 7 * 2 * 4 * 2 + 4

"""Names of columns, classes and files are shown as they are, but for what a terminal would obey."""

from __future__ import annotations

import csv
import json
import logging
import os
import pty
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import command_line
import pytest

import streamcd as package
from streamcd import Listener
from streamcd.cli import console
from streamcd.cli.console import Console
from streamcd.core.errors import DataError, escaped
from streamcd.core.options import Progress
from streamcd.report.page import render_page
from streamcd.report.tables import Table

RED, TURN = "\x1b[31mred\x1b[0m", "\u202egnp.exe"
CLASSES = [f"yes {RED}", f"no {TURN}", "$5_$6"]
HOSTILE = f"a{RED}\x07b\x9bc\r{TURN}\u2066\ndone"


def is_plain(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table whose columns, categories and classes have such names, as the folder and the file have."""
    path = tmp_path_factory.mktemp("hostile") / f"f{RED}" / f"t{TURN}.csv"
    path.parent.mkdir()
    with open(path, "w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow([f"x{RED}", f"price{TURN}", "y"])
        for row in range(60):
            price = ["$10_$20", "$20_$30", f"free {RED}"][row * 7 % 3]
            lines.writerow([row % 7 - row % 3, price, CLASSES[row % 3]])
    return path


@pytest.fixture(scope="module")
def trained(table: Path) -> dict[str, str]:
    """The output of each command, on both streams."""
    data, run = table.with_name("data"), table.with_name("run")
    commands: dict[str, list[Any]] = {
        "convert": [table, data, "--label", "y"],
        "train": [data, run, "--max-passes", "3"],
        "evaluate": [table, run],
        "report": [run, "-o", table.with_name("r.html"), "--data", table],
        "info": [run],
        "verify": [data],
        "predict": [table, run, "-o", table.with_name("p.csv")],
        "export": [run, table.with_name("m.txt")],
    }
    shown = {}
    for command, arguments in commands.items():
        done = command_line.run(command, *arguments)
        assert done.returncode == 0, done.stderr
        shown[command] = done.stdout + done.stderr
    return shown


def test_only_what_a_terminal_obeys_is_escaped_and_once() -> None:
    assert escaped(HOSTILE) == r"a\x1b[31mred\x1b[0m\x07b\x9bc\r\u202egnp.exe\u2066\ndone"
    assert escaped(escaped(HOSTILE)) == escaped(HOSTILE)
    for name in ("prix en €", "naïve", "名前　欄", "Ελλάδα", "بيانات", "1 000", "C:\\new", "👍"):
        assert escaped(name) == name


def test_no_command_prints_a_name_raw(trained: dict[str, str]) -> None:
    for command, shown in trained.items():
        assert is_plain(shown), command
    for command in ("convert", "evaluate", "info", "export"):
        assert r"\x1b[31mred\x1b[0m" in trained[command], command
        assert r"\u202egnp.exe" in trained[command], command


def test_errors_of_names_are_escaped_and_json_has_them_whole(table: Path, trained) -> None:
    for arguments in (
        ["convert", table, table.with_name("other"), "--label", f"no{RED}"],
        ["info", table.with_name(f"none{RED}")],
        ["predict", table.with_name(f"none{RED}"), table.with_name("run"), "-o", "x.csv"],
        ["train", table.with_name("data"), table.with_name("bad"), f"--no{RED}"],
        [f"cmd{RED}"],
    ):
        done = command_line.run(*arguments)
        assert done.returncode == 2
        assert is_plain(done.stderr), arguments
        assert r"\x1b[31mred" in done.stderr
    found = json.loads(command_line.run("info", table.with_name("data"), "--json").stdout)
    assert sorted(found["classes"]) == sorted(CLASSES)
    assert f"x{RED}" in found["feature_names"]


def test_a_terminal_gets_tables_and_lines_of_predictions_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdout", terminal)
    console.print_table(HOSTILE, [[HOSTILE, "1"]], [HOSTILE, "n"])
    console.lines_output().write(f"{RED}\nb\n")
    shown = terminal.getvalue()
    assert "\x1b[31m" not in shown
    assert TURN[0] not in shown
    assert shown.endswith("\\x1b[31mred\\x1b[0m\nb\n")


def test_a_file_gets_the_lines_of_predictions_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    console.lines_output().write(f"{RED}\n")
    assert capsys.readouterr().out == f"{RED}\n"


def test_progress_messages_and_warnings_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "PLAIN_INTERVAL", -1.0)
    stream = StringIO()
    with Console(stream=stream) as listener:
        listener.message(HOSTILE)
        listener.warning(HOSTILE)
        listener.progress(Progress(f"read {RED}", 1, 2, "rows", note=TURN))
    assert is_plain(stream.getvalue())
    assert stream.getvalue().count(r"\x1b[31m") == 3


def test_bars_are_drawn_with_names_escaped() -> None:
    main, side = pty.openpty()
    with os.fdopen(side, "w") as stream, Console(stream=stream) as listener:
        listener.progress(Progress(f"read {RED}", 1, 2, "rows", note=TURN))
    written = b""
    with suppress(OSError):  # at the end
        while block := os.read(main, 100_000):
            written += block
    os.close(main)
    shown = written.decode()
    assert "\x1b[31mred" not in shown
    assert TURN[0] not in shown
    assert r"\x1b[31mred" in shown


def test_python_gets_errors_logs_and_descriptions_escaped(table: Path, trained, caplog) -> None:
    assert is_plain(str(DataError(HOSTILE)))
    with caplog.at_level(logging.INFO):
        Listener().message(HOSTILE)
        Listener().warning(HOSTILE)
    assert all(is_plain(record.getMessage()) for record in caplog.records)
    data = package.open(table.with_name("data"))
    assert is_plain(repr(data))


def test_a_report_has_names_escaped(table: Path, trained) -> None:
    assert is_plain(table.with_name("r.html").read_text())
    assert is_plain(render_page(HOSTILE, HOSTILE, {HOSTILE: [HOSTILE, Table(HOSTILE, [(HOSTILE,)])]}))

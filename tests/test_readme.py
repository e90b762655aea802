"""The README: what it shows is run, what it lists is there."""

from __future__ import annotations

import re
import shlex

import command_line
import pytest
from conftest import ROOT

import streamcd

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture
def run_examples(tmp_path, monkeypatch, capsys):
    """``run_examples()`` gives all that the example's commands and its Python print, run in the test's directory."""
    monkeypatch.chdir(tmp_path)

    def run() -> str:
        printed = ""
        for line in blocks("sh")[0].splitlines():
            program, *arguments = shlex.split(line)
            assert program == "streamcd"
            done = command_line.run(*arguments)
            assert done.returncode == 0, (line, done.stderr)
            printed += done.stdout
        exec(blocks("python")[0], {})
        return printed + capsys.readouterr().out

    return run


def test_the_example_prints_what_the_readme_shows(run_examples):
    printed = run_examples()
    for shown in blocks("text"):
        assert shown in printed


def test_the_pages_that_are_linked_are_there():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)[#)]", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_no_room_bears_the_name_of_a_public_function():
    rooms = {path.parent.name for path in (ROOT / "streamcd").glob("*/__init__.py")}
    assert not rooms & set(streamcd.__all__)

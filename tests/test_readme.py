"""What the README shows is run; what it lists is there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest
from conftest import ROOT, SUBPROCESS_ENVIRONMENT, libsvm_text

import streamcd

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture
def run_examples(tmp_path, monkeypatch, streamcd, capsys):
    """``run_examples()`` gives all that the example's commands and its Python print, run in the test's directory."""
    monkeypatch.chdir(tmp_path)

    def run() -> str:
        printed = ""
        for line in blocks("sh")[0].splitlines():
            program, *arguments = shlex.split(line)
            assert program == "streamcd"
            done = streamcd(*arguments)
            assert done.returncode == 0, (line, done.stderr)
            printed += done.stdout
        exec(blocks("python")[0], {})
        return printed + capsys.readouterr().out

    return run


def test_the_example_prints_what_the_readme_shows(run_examples, real_data, tmp_path):
    for name in ("a9a", "a9a.t"):
        (tmp_path / f"{name}.xz").symlink_to(real_data(name).resolve())
    printed = run_examples()
    for shown in blocks("text"):
        assert shown in printed


def test_the_example_runs_on_made_data(run_examples, small_problem, tmp_path):
    for name in ("a9a", "a9a.t"):  # not compressed: the content tells
        (tmp_path / f"{name}.xz").write_text(libsvm_text(*small_problem("random")))
    assert "accuracy" in run_examples()


def test_every_file_has_its_line():
    listed = set(re.findall(r"(\w+\.py)", README.split("## Files")[1].split("\n## ")[0]))
    present = {path.name for folder in ("streamcd", "tools") for path in (ROOT / folder).glob("*.py")}
    assert listed == present


def test_the_checks_run_the_readmes_test_command():
    command = re.search(r"pip install '\.\[test\]' && (.*)", README)
    assert command is not None
    assert command.group(1) == ".venv/bin/pytest"
    script = (ROOT / ".ci" / "run").read_text()
    assert '\n"$bin/pytest" "$@"\n' in script


@pytest.mark.parametrize("name", streamcd.__all__)
def test_public_names_are_there(name):
    assert getattr(streamcd, name) is not None


def test_functions_are_not_hidden_by_the_modules_of_their_names():
    code = (
        "import streamcd, streamcd.train, streamcd.convert, streamcd.predict\n"
        "print(*(callable(function) for function in (streamcd.train, streamcd.convert, streamcd.predict)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=SUBPROCESS_ENVIRONMENT, check=True
    )
    assert done.stdout.split() == ["True", "True", "True"]

"""The documentation: every command and example in it is run, and the site builds without a warning."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec

import command_line
import pytest
from conftest import ROOT

from tools.methods_table import COMMAND, PAGE, table

NOT_HERE = {"cluster.md"}
"""A page that needs more: `test_cluster` runs it with a scheduler."""
AT_URLS = "At URLs"
"""A section that needs more: `test_remote` runs it with a server."""

PAGES = sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def examples(page: str, section: str = "") -> list[tuple[str, str]]:
    """Language and text of a page's shell and Python blocks, in order: those of one section, or all but those at URLs."""
    sections = re.split(r"^## ", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE)
    text = "".join(each for each in sections if each.startswith(section or AT_URLS) == bool(section))
    return re.findall(r"^```(sh|python)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in PAGES if page not in NOT_HERE and examples(page)])
def test_the_examples_of_a_page_run_in_their_order(page, tmp_path, monkeypatch):
    """That of ONNX where skl2onnx is installed."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for language, text in examples(page):
        if language == "python":
            if "skl2onnx" not in text or find_spec("skl2onnx"):
                exec(text, names)
            continue
        for line in text.replace("\\\n", " ").splitlines():
            program, *arguments = shlex.split(line, comments=True) or ["streamcd", "--version"]
            assert program == "streamcd", line
            done = command_line.run(*arguments)
            assert done.returncode == 0, (line, done.stderr)


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="the extra 'docs' is not installed")
    pytest.importorskip("mkdocstrings", reason="the extra 'docs' is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_table_of_methods_is_what_the_registry_accepts():
    assert table() in PAGE.read_text(), f"run {COMMAND}"

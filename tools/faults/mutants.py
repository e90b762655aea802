"""Lines of safety removed one at a time, in a copy of the tree: the test that guards each must notice.

A line on which safety rests ends with a comment ``# safety: file::name``: the test in ``tests/test_file.py`` whose name has
``name`` in it, with the parameters ``[...]`` where it has some; of several tests each must notice. The line is removed: a
statement does nothing, a condition is never true, and of a statement in several lines an argument or an operand is gone.
"""

from __future__ import annotations

import ast
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .commands import TIMEOUT_SECONDS
from .trials import Finding

ROOT = Path(__file__).resolve().parent.parent.parent
_DATA_BYTES = 4_000_000_000  # for guards of lines that bound what is read
_COPIED = ("streamcd", "tests", "tools", "pyproject.toml")
_KERNELS = re.compile(r"^from (numba|\.[.\w]*compile) import", re.MULTILINE)
_MARK = re.compile(r"  # safety: (.*)$")
_GUARD = re.compile(r"(\w+)::(\w+)(\[.*?\])?")
_PYTEST = ("-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-o", "addopts=", "-x", "-q")


@dataclass(frozen=True)
class SafetyLine:
    """A line of a module of the package, numbered from 1, and a test, below ``tests``, that fails without it."""

    file: str
    number: int
    text: str
    guard: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number}: {self.text}"


class Mutants:
    """Trial k removes the line that the seed has put in place k; its guard has to pass before, and to fail then."""

    def __init__(self, lines: Sequence[SafetyLine] | None = None) -> None:
        self.lines = safety_lines() if lines is None else list(lines)
        self.default_count = len(self.lines)

    def prepare(self, place: Path) -> None:
        pass

    def shuffle(self, rng: random.Random) -> None:
        rng.shuffle(self.lines)

    def attempt(self, number: int, rng: random.Random, place: Path) -> list[Finding]:
        line = self.lines[number]
        copy = _copy_tree(place / "tree")
        status, said = _run_guard(copy, line.guard, place / "before")
        if status != 0:
            return [Finding("unnoticed", f"{line}: its guard fails without the mutation: {said}")]
        source = copy / "streamcd" / line.file
        text = source.read_text(encoding="utf-8")
        source.write_text(mutated(text, line.number), encoding="utf-8")
        for compiled in source.parent.glob(f"__pycache__/{source.stem}.*.pyc"):
            compiled.unlink()
        # kernels of a changed package are compiled, and not kept for others
        cache = place / "kernels" if _KERNELS.search(text) else None
        status, said = _run_guard(copy, line.guard, place / "after", cache)
        if status == 0:
            return [Finding("unnoticed", f"{line}: removed, and {line.guard} passed")]
        if status != 1:
            return [Finding("ugly", f"{line}: its guard could not run (exit {status}): {said}")]
        return []


def safety_lines(root: Path = ROOT) -> list[SafetyLine]:
    """List the marked lines of the package, once for each test; raises ValueError for a mark that is not of one test."""
    lines = []
    for path in sorted((root / "streamcd").rglob("*.py")):
        source = path.read_text(encoding="utf-8").splitlines()
        for number, text in enumerate(source, 1):
            if mark := _MARK.search(text):
                file = path.relative_to(root / "streamcd").as_posix()
                code = text[: mark.start()].strip()
                lines += [SafetyLine(file, number, code, guard) for guard in _guards(root, mark[1])]
    return lines


def _guards(root: Path, mark: str) -> Iterator[str]:
    """Name the tests of a mark as pytest does."""
    guards = list(_GUARD.finditer(mark))
    if " ".join(guard[0] for guard in guards) != mark:
        raise ValueError(f"# safety: {mark}: expected file::name")
    for guard in guards:
        module, name, parameters = guard.groups(default="")
        path = root / "tests" / f"test_{module}.py"
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        tests = re.findall(rf"^def (test_\w*{name}\w*)\(", text, re.MULTILINE)
        if len(tests) != 1:
            raise ValueError(f"# safety: {guard[0]}: expected one test, found {len(tests)}")
        yield f"{path.name}::{tests[0]}{parameters}"


def mutated(text: str, number: int) -> str:
    """Remove a line of a module."""
    lines = text.splitlines()
    first, last = _statement(ast.parse(text), number)
    if first < number < last:
        del lines[number - 1]
    else:
        word = lines[first - 1].split()[0]
        indent = " " * (len(lines[first - 1]) - len(lines[first - 1].lstrip()))
        lines[first - 1 : last] = [indent + (f"{word} False:" if word in ("if", "elif") else "pass")]
    return "\n".join(lines) + "\n"


def _statement(module: ast.Module, number: int) -> tuple[int, int]:
    """Return the first and the last line of the statement that a line is of, without the body where it has one."""
    for node in ast.walk(module):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            if node.lineno <= number <= last:
                return node.lineno, last
    raise ValueError(f"line {number} is of no statement")


def _copy_tree(copy: Path) -> Path:
    copy.mkdir()
    # bytecode that a process beside this one is writing has such a name for a moment
    being_written = shutil.ignore_patterns("*.pyc.*")
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=being_written)
        else:
            shutil.copy2(source, copy / name)
    return copy


def _bound_memory() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (_DATA_BYTES, _DATA_BYTES))


def _run_guard(copy: Path, guard: str, place: Path, cache: Path | None = None) -> tuple[int, str]:
    """Run a test of a copy; pytest's exit status (1 also after a hang), and the last line that it said."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(copy)} | ({} if cache is None else {"NUMBA_CACHE_DIR": str(cache)})
    command = [sys.executable, *_PYTEST, f"--basetemp={place}", f"tests/{guard}"]
    process = subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, preexec_fn=_bound_memory,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return 1, "a hang"
    return process.returncode, (said.strip().splitlines() or ["(nothing said)"])[-1]

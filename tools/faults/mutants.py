"""Lines of safety removed one at a time, in a copy of the tree: the test that guards each must notice."""

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
from collections.abc import Iterable, Sequence
from pathlib import Path

from .commands import TIMEOUT_SECONDS
from .safety_lines import LINES, SafetyLine
from .trials import Finding

ROOT = Path(__file__).resolve().parent.parent.parent
_DATA_BYTES = 4_000_000_000  # for guards of lines that bound what is read
_COPIED = ("streamcd", "tests", "tools", "pyproject.toml")
_KERNELS = re.compile(r"^from (numba|\.[.\w]*compile) import", re.MULTILINE)
_NAMED = (ast.FunctionDef, ast.ClassDef)
_PYTEST = ("-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-o", "addopts=", "-x", "-q")


class Mutants:
    """Trial k removes the line that the seed has put in place k; its guard has to pass before, and to fail then."""

    def __init__(self, lines: Sequence[SafetyLine] = LINES) -> None:
        self.lines, self.default_count = list(lines), len(lines)

    def prepare(self, place: Path) -> None:
        check_lines(self.lines)

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
        source.write_text(mutated(text, line), encoding="utf-8")
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


def check_lines(lines: Iterable[SafetyLine], package: Path = ROOT / "streamcd") -> None:
    """Refuse lines that are not found exactly once, that leave no code, or whose guard does not exist."""
    wrong = []
    for line in lines:
        try:
            text = (package / line.file).read_text(encoding="utf-8")
            compile(mutated(text, line), line.file, "exec")
        except (OSError, SyntaxError, ValueError) as error:
            wrong.append(f"{line}: {error}")
        module, _, test = line.guard.partition("::")
        path = package.parent / "tests" / module
        if not path.is_file() or f"\ndef {test.partition('[')[0]}(" not in path.read_text("utf-8"):
            wrong.append(f"{line}: no test {line.guard}")
    if wrong:
        raise ValueError("tools/faults/safety_lines.py:\n" + "\n".join(wrong))


def mutated(text: str, line: SafetyLine) -> str:
    """Replace a line of a module; raises ValueError unless it is found exactly once."""
    lines = text.splitlines()
    places = [n for n in _block(text, line.within) if lines[n].strip() == line.text]
    if len(places) != 1:
        raise ValueError(f"found {len(places)} times, expected once")
    old = lines[places[0]]
    lines[places[0]] = old[: len(old) - len(old.lstrip())] + line.instead
    return "\n".join(lines) + "\n"


def _block(text: str, name: str) -> range:
    """Return the lines of a function or class, or of a method (``Class.method``); all of them where the name is empty."""
    body: list[ast.stmt] = ast.parse(text).body
    lines = range(len(text.splitlines()))
    for part in filter(None, name.split(".")):
        found = [node for node in body if isinstance(node, _NAMED) and node.name == part]
        if len(found) != 1:
            raise ValueError(f"{part!r} is defined {len(found)} times, expected once")
        body, lines = found[0].body, range(found[0].lineno - 1, found[0].end_lineno or 0)
    return lines


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

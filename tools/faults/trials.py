"""Trials of a kind of attack: their findings, run by several processes, and the table of them."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol, runtime_checkable

COLUMNS = {
    "lost": "what was complete before is gone, or cannot be made any more",
    "wrong": "a false result without an error",
    "beyond": "memory beyond the budget",
    "ugly": "a traceback, a hang, an unknown exit status",
    "left": "temporary files that stay when the command is repeated",
    "unnoticed": "a line of safety that no test misses",
}


@dataclass(frozen=True)
class Finding:
    """One failure: its column of the table, and what happened."""

    column: str
    what: str


class Attack(Protocol):
    """A kind of attack."""

    default_count: int

    def prepare(self, place: Path) -> None:
        """Make once what all trials begin with."""

    def attempt(self, number: int, rng: random.Random, place: Path) -> list[Finding]:
        """Make one trial in an empty directory."""


@runtime_checkable
class ListedAttack(Attack, Protocol):
    """A kind whose trials are a list of `default_count`, and no more are made, in an order drawn by the seed."""

    def shuffle(self, rng: random.Random) -> None:
        """Bring the list into this order."""


@dataclass
class Row:
    """A kind's row of the table."""

    kind: str
    tried: int = 0
    seconds: float = 0.0
    failures: list[tuple[int, Finding]] = field(default_factory=list)

    def count(self, column: str) -> int:
        """Trials with a finding of this column."""
        return len({number for number, finding in self.failures if finding.column == column})


_current: tuple[Attack, str, int, Path]


def run_attack(attack: Attack, kind: str, *, seed: int, first: int, count: int, jobs: int) -> Row:
    """Make trials `first` to `first + count`, each a function of the seed and its number; failures are printed."""
    global _current
    begin = time.monotonic()
    row = Row(kind)
    with tempfile.TemporaryDirectory(prefix=f"faults-{kind}-") as folder:
        place = Path(folder)
        attack.prepare(place)
        _current = (attack, kind, seed, place)
        numbers = range(first, first + count)
        if isinstance(attack, ListedAttack):
            attack.shuffle(random.Random(f"{kind} {seed}"))
            numbers = numbers[: max(0, attack.default_count - first)]
        for number, findings in _outcomes(numbers, jobs):
            row.tried += 1
            for finding in findings:
                row.failures.append((number, finding))
                again = f"python -m tools.faults --kind {kind} --seed {seed} --first {number} --count 1"
                print(
                    f"{finding.column}: {finding.what}\n    seed {seed}; again: {again}",
                    file=sys.stderr,
                    flush=True,
                )
    row.seconds = time.monotonic() - begin
    return row


def _outcomes(numbers: range, jobs: int) -> Iterator[tuple[int, list[Finding]]]:
    if jobs == 1:
        yield from map(_attempt, numbers)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        yield from pool.map(_attempt, numbers)


def _attempt(number: int) -> tuple[int, list[Finding]]:
    attack, kind, seed, place = _current
    work = place / f"trial-{number}"
    work.mkdir()
    try:
        return number, attack.attempt(number, random.Random(f"{kind} {seed} {number}"), work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def table(rows: list[Row]) -> str:
    """Make the table in Markdown."""
    lines = [
        "| kind | tried | " + " | ".join(COLUMNS) + " | seconds |",
        "| --- |" + " ---: |" * (len(COLUMNS) + 2),
    ]
    for row in rows:
        counts = " | ".join(str(row.count(column)) for column in COLUMNS)
        lines.append(f"| {row.kind} | {row.tried} | {counts} | {row.seconds:.0f} |")
    return "\n".join(lines) + "\n"

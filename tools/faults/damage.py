"""Damaged files of datasets, runs and models: found, or without effect."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from .commands import Ended, contents, files_of, run_command
from .trials import Finding
from .workspace import make_workspace, must_run

DAMAGES = ("cut", "emptied", "bit", "bytes", "zeros", "longer", "gone")


@dataclass(frozen=True)
class Use:
    """A directory, those it needs beside it, and a command that uses it, with its output."""

    target: str
    beside: tuple[str, ...]
    command: str
    output: str

    @property
    def name(self) -> str:
        return self.command.split()[0]


USES = (
    Use("a", (), "train a out --method dual --max-passes 3 --tol 1e-12", "out"),
    Use("a", (), "train a out --method primal --max-passes 2 --tol 1e-12", "out"),
    Use("a", ("b.done",), "predict a b.done -o out.csv", "out.csv"),
    Use("a.run", ("a",), "resume a.run --max-passes 6", "a.run"),
    Use("a.primal", ("a",), "resume a.primal --max-passes 4", "a.primal"),
    Use("a.done/model", ("a",), "predict a a.done -o out.csv", "out.csv"),
    Use("a.table.done/model", ("a.csv",), "predict a.csv a.table.done --proba -o out.csv", "out.csv"),
    Use("a", (), "train a out --method newton --penalty elasticnet --max-passes 2 --tol 1e-12", "out"),
    Use("a.sets", ("a",), "resume a.sets --max-passes 4", "a.sets"),
    Use("a.softmax", ("a",), "resume a.softmax --max-passes 6", "a.softmax"),
    Use("a.newton", ("a.numbers",), "resume a.newton --max-passes 3", "a.newton"),
    Use("a.numbers", (), "train a.numbers out --loss quantile --max-passes 3 --tol 1e-12", "out"),
    Use("a.table", (), "train a.table out --method dual --max-passes 3 --tol 1e-12", "out"),
)

DATASETS = ("a", "a.numbers", "a.table")


class Damage:
    """Trial k damages a drawn file of use k modulo their number; the use must fail in a line or give the same bits."""

    default_count = 500

    def prepare(self, place: Path) -> None:
        self.workspace = make_workspace(place)
        self.expected = []
        for number, use in enumerate(USES):
            work = place / f"use-{number}"
            work.mkdir()
            self.begin(use, work)
            must_run(work, use.command)
            self.expected.append(contents(work / use.output))

    def begin(self, use: Use, place: Path) -> None:
        """Copy the inputs of a use."""
        self.workspace.copy(place, *{use.target.split("/")[0], *use.beside})

    def attempt(self, number: int, rng: random.Random, place: Path) -> list[Finding]:
        use = USES[number % len(USES)]
        self.begin(use, place)
        file = rng.choice(list(files_of(place / use.target)))
        how = rng.choice(DAMAGES)
        what = f"{how} {file.relative_to(place)} ({damage(file, how, rng)})"
        findings = verify_findings(place, use.target, what) if use.target in DATASETS else []
        ended = run_command(place, *use.command.split())
        return [*findings, *self.judge(number % len(USES), ended, place, what)]

    def judge(self, number: int, ended: Ended, place: Path, what: str) -> list[Finding]:
        """Refused in a line, or the same bits."""
        use = USES[number]
        if ended.is_ugly:
            return [Finding("ugly", f"{what}: {use.name}: {ended}")]
        if ended.status == 0 and contents(place / use.output) != self.expected[number]:
            return [Finding("wrong", f"{what}: {use.name} is done with another result")]
        return []


def verify_findings(place: Path, target: str, what: str) -> list[Finding]:
    """Check that ``verify`` finds what was done to the dataset, in a line."""
    verified = run_command(place, "verify", target)
    if verified.status == 0:
        return [Finding("wrong", f"{what}: verify finds nothing")]
    return [Finding("ugly", f"{what}: verify: {verified}")] if verified.is_ugly else []


def damage(file: Path, how: str, rng: random.Random) -> str:
    """Damage a file; returns where."""
    data = bytearray(file.read_bytes())
    place = rng.randrange(max(len(data), 1))
    if how == "gone":
        file.unlink()
        return "removed"
    if how == "longer":
        data += rng.randbytes(rng.randint(1, 64))
    elif how in ("cut", "emptied") or not data:
        del data[place if how == "cut" else 0 :]
    elif how == "bit":
        data[place] ^= 1 << rng.randrange(8)
    else:
        stop = min(place + rng.randint(1, 64), len(data))
        before = data[place:stop]
        data[place:stop] = bytes(stop - place) if how == "zeros" else rng.randbytes(stop - place)
        if data[place:stop] == before:
            data[place] ^= 1  # zeros in place of zeros are no damage
    file.write_bytes(data)
    return f"at byte {place} of {len(data)}"

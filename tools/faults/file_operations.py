"""Faults at single file operations of every command that writes, each followed by what a user would do next."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .commands import Ended, contents, files_of, run_command
from .injection import HOWS, FaultyFiles
from .trials import Finding
from .workspace import Workspace, make_workspace

TRAIN = "train a out --tol 1e-12 --checkpoint-every 0.000001s"
_CONVERT = "convert a.txt out --chunk-size 400B --shard-size 2kB"

Command = tuple[str, ...]


@dataclass(frozen=True)
class Scenario:
    """A command, its inputs, its output, and the commands tried after a fault until the output is there."""

    name: str
    inputs: tuple[str, ...]
    command: Command
    recoveries: tuple[Command, ...]
    output: str = "out"
    renamed: tuple[str, str] | None = None
    before: Command = ()  # a command that makes what else there is
    n_operations: int = 0
    expected: tuple[object, ...] | None = None
    former: tuple[object, ...] | None = None


def scenario_of(name: str, inputs: str, command: str, *recoveries: str, **fields: Any) -> Scenario:
    """Make a scenario of commands as text; without recoveries the command is repeated, in the end with ``--force``."""
    commands = recoveries or (command, f"{command} --force")
    tried = tuple(tuple(recovery.split()) for recovery in commands)
    return Scenario(name, tuple(inputs.split()), tuple(command.split()), tried, **fields)


def training(name: str, options: str, inputs: str = "a") -> Scenario:
    """Make a scenario of a training on the first of the inputs, which is resumed or begun anew."""
    command = f"{TRAIN.replace(' a ', f' {inputs.split()[0]} ')} {options}"
    return scenario_of(name, inputs, command, "resume out", command)


SCENARIOS = (
    scenario_of("convert", "a.txt", _CONVERT),
    scenario_of("convert scaled", "a.txt", f"{_CONVERT} --scale standard"),
    scenario_of("convert over another", "a.txt b", f"{_CONVERT} --force", renamed=("b", "out")),
    scenario_of("columns", "bare", "columns bare", output="bare"),
    training("train dual", "--method dual --max-passes 3"),
    training("train primal", "--method primal --max-passes 2"),
    training("train log_loss path", "--loss log_loss --method dual -C 0.5,1 --max-passes 2"),
    scenario_of(
        "train over another", "a b.run", *[f"{TRAIN} --method dual --max-passes 2 --force"] * 2,
        renamed=("b.run", "out"),
    ),
    scenario_of("resume", "a a.run", *["resume a.run --max-passes 6"] * 2, output="a.run"),
    scenario_of(
        "tune", "a", "tune a out -C 0.5,1 --cv 2 --max-passes 3",
        "resume out", "tune a out -C 0.5,1 --cv 2 --max-passes 3",
    ),
    scenario_of("predict", "a a.done", "predict a a.done -o out.csv", output="out.csv"),
    scenario_of("predict parquet", "a a.done", "predict a a.done -o out.parquet", output="out.parquet"),
    scenario_of("export model", "a.done", "export a.done out --format liblinear"),
    scenario_of("export dataset", "a", "export a out --format libsvm"),
    scenario_of(
        "convert table", "a.csv",
        "convert a.csv out --label kind --missing zero --chunk-size 400B --shard-size 1kB",
    ),
    scenario_of("convert, two workers", "a.txt", f"{_CONVERT} --workers 2"),
    scenario_of("columns, two workers", "bare", "columns bare --workers 2", output="bare"),
    scenario_of(
        "predict table", "a.csv a.table.done", "predict a.csv a.table.done --proba -o out.csv", output="out.csv"
    ),
    training("train online", "--method online --max-passes 2"),
    training("train newton, path of l1", "--method newton --penalty l1 --l1 2,1 --max-passes 2"),
    training("train numbers", "--loss huber --method dual --bias 1 --unpenalized-bias --max-passes 2", "a.numbers"),
    scenario_of("report", "a a.done", "report a.done -o out.html", output="out.html"),
    scenario_of("import", "a.model", "import a.model out"),
    scenario_of("merge", "a b bare", "merge a b bare out"),
)  # fmt: skip


class FileOperations:
    """Trial k attacks scenario k modulo their number, at a drawn operation, in a drawn way."""

    default_count = 2000

    def prepare(self, place: Path) -> None:
        self.workspace = make_workspace(place)
        self.scenarios = [measured(self.workspace, scenario, place / "measured") for scenario in SCENARIOS]

    def attempt(self, number: int, rng: random.Random, place: Path) -> list[Finding]:
        return attack_operation(self.workspace, self.scenarios[number % len(self.scenarios)], rng, place)


def measured(workspace: Workspace, scenario: Scenario, place: Path) -> Scenario:
    """Carry out a scenario without a fault: how many operations it makes, and its result."""
    place.mkdir()
    begin(workspace, scenario, place)
    former = contents(place / scenario.output)
    ended = run_command(place, *scenario.command, faults=FaultyFiles(whole_group=True))
    expected = contents(place / scenario.output)
    if ended.status != 0 or expected is None:
        raise RuntimeError(f"{scenario.name} fails without a fault: {ended}\n{ended.stderr}")
    shutil.rmtree(place)
    return replace(scenario, n_operations=ended.operations, expected=expected, former=former)


def attack_operation(
    workspace: Workspace, scenario: Scenario, rng: random.Random, place: Path
) -> list[Finding]:
    """Let a drawn operation of a measured scenario fail in a drawn way."""
    at, how = rng.randint(1, scenario.n_operations), rng.choice(HOWS)
    begin(workspace, scenario, place)
    before = set(files_of(place))
    faults = FaultyFiles(at, how, whole_group=True)
    ended = run_command(place, *scenario.command, faults=faults)
    label = f"{scenario.name}, {how} at operation {at} of {scenario.n_operations}"
    return [
        replace(finding, what=f"{label}: {finding.what}")
        for finding in judge(scenario, ended, place, before, is_kill=how in ("before", "half", "after"))
    ]


def begin(workspace: Workspace, scenario: Scenario, place: Path) -> None:
    """Copy the inputs of the command."""
    workspace.copy(place, *scenario.inputs)
    if scenario.renamed is not None:
        (place / scenario.renamed[0]).rename(place / scenario.renamed[1])
    if scenario.before:
        run_command(place, *scenario.before)


def judge(
    scenario: Scenario, ended: Ended, place: Path, before: set[Path], *, is_kill: bool
) -> list[Finding]:
    """Inspect what a fault has left, and do what a user would do next."""
    findings = []
    output = place / scenario.output
    if ended.is_ugly and not (is_kill and ended.status == -9):
        findings.append(Finding("ugly", str(ended)))
    if ended.status == 0 and contents(output) != scenario.expected:
        findings.append(Finding("wrong", "done, and the result is another"))
    failures = []
    for recovery in scenario.recoveries:
        if contents(output) == scenario.expected and (ended.status == 0 or recovery[0] != "resume"):
            break
        ended = run_command(place, *recovery)
        if ended.is_ugly:
            findings.append(Finding("ugly", f"{recovery[0]} after it: {ended}"))
        if ended.status == 0:
            break
        failures.append(f"{recovery[0]}: {ended}")
    found = contents(output)
    if found != scenario.expected:
        is_done = ended.status == 0
        what = "the result after it is another" if is_done else "; ".join(failures)
        findings.append(Finding("wrong" if is_done else "lost", what))
    missing = sorted(str(path.relative_to(place)) for path in before if not path.exists())
    inputs = [name for name in missing if not name.startswith(scenario.output)]
    if inputs:
        findings.append(Finding("lost", f"inputs are gone: {inputs}"))
    left = _temporaries(place)
    if left:
        ended = run_command(place, *scenario.recoveries[-1])
        left = _temporaries(place)
        if ended.is_ugly or contents(output) != scenario.expected:
            findings.append(
                Finding("lost", f"{ended}, repeated where there was {left or 'something temporary'}")
            )
    if left:
        findings.append(Finding("left", ", ".join(left[:4])))
    return findings


def _temporaries(place: Path) -> list[str]:
    """List files and directories that are for work in progress only."""
    endings = (".partial", ".replaced", ".shared", ".tmp")
    found = [path for path in place.rglob("*") if path.name.endswith(endings) or ".streamcd-" in path.name]
    return sorted(str(path.relative_to(place)) for path in found)

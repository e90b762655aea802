"""Power cuts: what a command did to its files, up to a moment, with what was not synced lost, zeroed or out of order."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from streamcd.core.files import metadata_text
from streamcd.training.checkpoint import RUN

from .commands import Ended, contents, run_command
from .disk import CONTENTS, NAMES, Disk, Tree
from .file_operations import SCENARIOS as OPERATIONS
from .file_operations import TRAIN, Scenario, begin, judge, scenario_of, training
from .recording import Event, Recorder, make_tree, tree_of
from .trials import Finding
from .workspace import Workspace, make_workspace

_CUT = Ended(-9, "", "")
_IN_PLACE = ("convert", "columns", "predict", "export")
"""Commands whose output has at every moment its former content, if it had any, or the new one."""

_ROUNDS = f"{TRAIN} --workers 2 --max-passes 3 --memory 3GB"

SCENARIOS = (
    *OPERATIONS,
    scenario_of("columns over others", "a", "columns a --force --chunk-size 300B", output="a"),
    scenario_of(
        "predict over another", "a b a.done", "predict a a.done -o out.csv --force", output="out.csv",
        before=("predict", "b", "a.done", "-o", "out.csv"),
    ),
    scenario_of(
        "export over another", "a.done b.done", "export a.done out --format liblinear --force",
        before=("export", "b.done", "out", "--format", "liblinear"),
    ),
    scenario_of(
        "import over another", "a.model b.model", "import a.model out --force",
        before=("import", "b.model", "out"),
    ),
    training("train primal log_loss", "--loss log_loss --method primal --max-passes 2"),
    training("train crammer_singer", "--loss crammer_singer --method dual --max-passes 2"),
    training("train multinomial", "--loss multinomial --method dual --max-passes 2"),
    training("train twin planes", "--loss twin --method sor --max-passes 2"),
    scenario_of("train in rounds", "a", _ROUNDS, "resume out --workers 2", _ROUNDS),
    scenario_of("resume primal", "a a.primal", *["resume a.primal --max-passes 4"] * 2, output="a.primal"),
)  # fmt: skip


@dataclass(frozen=True)
class Recorded:
    """A scenario with the files that it begins with, all that was done to them, and the inputs' bytes."""

    scenario: Scenario
    place: Path
    begun: Tree
    events: list[Event]

    def moved(self, place: Path) -> list[Event]:
        """Return the events as they would have been in another directory, which a run's configuration names."""

        def move(event: Event) -> Event:
            if not event.path.endswith(("config.json", "config.json.partial")) or not event.data:
                return event
            text = event.data.replace(str(self.place).encode(), str(place).encode())
            return event._replace(data=metadata_text(RUN, json.loads(text)))

        return [move(event) for event in self.events]


class Power:
    """Trial k cuts the power of scenario k modulo their number, at a drawn moment, and loses what is drawn.

    In the first trial of each the command has ended, and everything that it has not synced is lost.
    """

    default_count = 960

    def prepare(self, place: Path) -> None:
        self.workspace = make_workspace(place)
        self.recorded = [record(self.workspace, scenario, place) for scenario in SCENARIOS]

    def attempt(self, number: int, rng: random.Random, place: Path) -> list[Finding]:
        recorded = self.recorded[number % len(self.recorded)]
        return cut_power(recorded, rng, place, at_end=number < len(self.recorded))


def cut_power(recorded: Recorded, rng: random.Random, place: Path, *, at_end: bool = False) -> list[Finding]:
    """Cut the power at a drawn moment, and lose what is drawn; or `at_end`, and lose all that was not synced."""
    scenario, events = recorded.scenario, recorded.moved(place)
    at, names, bytes_ = rng.randint(0, len(events)), rng.choice(NAMES), rng.choice(CONTENTS)
    if at_end:
        at, names, bytes_ = len(events), "lost", "lost"
    disk = Disk(recorded.begun)
    for event in events[:at]:
        disk.apply(event)
    tree = disk.cut(rng, names, bytes_)
    make_tree(place, tree)
    label = f"{scenario.name}, cut after {at} of {len(events)} changes, names {names}, contents {bytes_}"
    findings = lost_at_once(recorded, place)
    if at == len(events) and (gone := not_durable(scenario, disk, tree)):
        findings.append(Finding("lost", f"the command had ended, and of its result are gone: {gone[:4]}"))
    findings += judge(scenario, _CUT, place, {place / name for name in recorded.begun}, is_kill=True)
    findings += damaged(recorded, place)
    return [replace(finding, what=f"{label}: {finding.what}") for finding in findings]


def record(workspace: Workspace, scenario: Scenario, parent: Path) -> Recorded:
    """Carry out a scenario, and record it; what was recorded has to lead to the files that are there."""
    place, log = parent / "recorded", parent / "log"
    place.mkdir()
    begin(workspace, scenario, place)
    begun, former = tree_of(place), contents(place / scenario.output)
    recorder = Recorder(place, log)
    ended = run_command(place, *scenario.command, faults=recorder)
    if ended.status != 0:
        raise RuntimeError(f"{scenario.name} fails without a fault: {ended}\n{ended.stderr}")
    events, after = recorder.events(), tree_of(place)
    disk = Disk(begun)
    for event in events:
        disk.apply(event)
    if set(disk.now) != set(after):
        raise RuntimeError(f"{scenario.name}: not recorded: {sorted(set(disk.now) ^ set(after))}")
    # written after the last call that was seen, by `open`, and not synced
    events += [
        Event("content", name, data=content)
        for name, content in after.items()
        if content is not None and disk.now[name] != content
    ]
    expected = contents(place / scenario.output)
    shutil.rmtree(place)
    log.unlink()
    return Recorded(replace(scenario, expected=expected, former=former), place, begun, events)


def lost_at_once(recorded: Recorded, place: Path) -> list[Finding]:
    """Look, before anything is done, for a former output, where the new one is not there yet."""
    scenario = recorded.scenario
    is_kept = scenario.former is not None and scenario.command[0] in _IN_PLACE
    if is_kept and contents(place / scenario.output) not in (scenario.former, scenario.expected):
        return [Finding("lost", "neither the former output nor the new one is there")]
    return []


def not_durable(scenario: Scenario, disk: Disk, tree: Tree) -> list[str]:
    """List the files of an output that a cut after the end of the command has changed, but for locks and work."""
    return sorted(
        name
        for name, content in disk.now.items()
        if name.split("/")[0] == scenario.output
        and not name.endswith("lock")
        and ".partial" not in name
        and tree.get(name, b"not there") != content
    )


def damaged(recorded: Recorded, place: Path) -> list[Finding]:
    """Look, in the end, for inputs that have changed, and verify the output."""
    output = place / recorded.scenario.output
    changed = [
        name
        for name, content in recorded.begun.items()
        if content is not None and not name.startswith(recorded.scenario.output) and not name.endswith("lock")
        and (place / name).exists() and (place / name).read_bytes() != content
    ]  # fmt: skip
    findings = [Finding("lost", f"inputs have changed: {changed}")] if changed else []
    if output.is_dir():
        verified = run_command(place, "verify", recorded.scenario.output)
        if verified.status != 0:
            findings.append(Finding("wrong", f"after all, verify says {verified}"))
    return findings

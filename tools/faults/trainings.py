"""Faults in trainings by every solver, with each penalty and bias that it takes, alone and by the rounds of two workers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from streamcd.runs import resolve
from streamcd.stream.memory_plan import Plan

from .certificates import RUNS, Run
from .file_operations import TRAIN, Scenario, attack_operation, measured, scenario_of
from .power import cut_power, record
from .trials import Finding
from .workspace import Workspace, load_kernels, make_text, must_run

_ROUNDS = " --workers 2 --memory 3GB"
_make_plan = resolve.make_plan


def _dataset_of(run: Run) -> str:
    return "numbers" if run.entry.has_targets else "classes"


def _scenarios() -> Iterator[Scenario]:
    for run in RUNS:
        options = " ".join(map(str, run.options(1.0, 0.5)))
        command = f"{TRAIN.replace(' a ', f' {_dataset_of(run)} ')} {options} --max-passes 3"
        yield scenario_of(str(run), _dataset_of(run), command, "resume out", command)
        if run.entry.rounds and not run.penalty:
            by_two, resumed = command + _ROUNDS, "resume out --workers 2"
            yield scenario_of(f"{run} in rounds", _dataset_of(run), by_two, resumed, by_two)


@dataclass
class Trainings:
    """Trial k attacks training k modulo their number: one of its file operations fails, or the power is cut.

    Rows or columns are read in three windows or more, or are all in memory, as is drawn.
    """

    scenarios: tuple[Scenario, ...] = tuple(_scenarios())
    default_count: int = 4 * len(scenarios)

    def prepare(self, place: Path) -> None:
        load_kernels()
        made = place / "made"
        made.mkdir()
        make_text(made / "a.txt", 0)
        form = "--columns --chunk-size 400B --shard-size 2kB"
        must_run(made, f"convert a.txt classes {form}")
        must_run(made, f"convert a.txt numbers --target {form}")
        self.workspace = Workspace(made)

    def attempt(self, number: int, rng: random.Random, place: Path) -> list[Finding]:
        scenario = self.scenarios[number % len(self.scenarios)]
        in_windows, with_power = rng.random() < 0.5, rng.random() < 0.5
        trial = place / "trial"
        trial.mkdir()
        with mock.patch.object(resolve, "make_plan", _in_windows) if in_windows else nullcontext():
            if with_power:
                found = cut_power(record(self.workspace, scenario, place), rng, trial)
            else:
                whole = measured(self.workspace, scenario, place / "measured")
                found = attack_operation(self.workspace, whole, rng, trial)
        where = "in windows" if in_windows else "in memory"
        return [replace(finding, what=f"{where}: {finding.what}") for finding in found]


def _in_windows(dataset: Any, budget: int, memory: Any, **more: Any) -> Plan:
    """Plan windows of a third of data that would fit in memory."""
    plan, table = _make_plan(dataset, budget, memory, **more), memory.layout.open(dataset)
    longest = int(np.diff(table.entry_start[table.unit_start]).max())
    window = {"window_entries": table.n_entries // 3 + 1, "window_rows": table.n_items // 3 + 1}
    held = {"held_entries": longest + table.n_entries // 2, "held_columns": 1 + table.n_items // 2}
    return replace(plan, resident=False, **window, **(held if memory.held_bytes else {}))

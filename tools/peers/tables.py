"""Records of races, their table and their plot."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamcd.core.memory_budget import format_size

from .contestants import Task
from .race import LEVELS, Training


@dataclass(frozen=True)
class Race:
    """Data, problem and conditions of a race: a row of the table."""

    data: str
    loss: str
    C: float
    threads: int
    memory: str
    cold: bool

    def __str__(self) -> str:
        remarks = [f"C = {self.C:g}", f"{self.threads} threads" if self.threads > 1 else "1 thread"]
        remarks += [f"within {self.memory}"] if self.memory != Task.memory else []
        remarks += ["cold"] if self.cold else []
        return f"{self.data}, {self.loss}, {', '.join(remarks)}"


def race_of(task: Task, cold: bool) -> Race:
    """The row that a task belongs to."""
    return Race(task.dataset.name, task.loss, task.C, task.threads, task.memory, cold)


def append(path: Path, race: Race, training: Training) -> None:
    """Keep a training, as a line of JSON."""
    with open(path, "a") as stream:
        stream.write(json.dumps({"race": vars(race), **training.to_json()}) + "\n")


def read(path: Path) -> dict[Race, list[Training]]:
    """Read what was kept."""
    races: dict[Race, list[Training]] = {}
    for line in path.read_text().splitlines():
        fields = json.loads(line)
        races.setdefault(Race(**fields.pop("race")), []).append(Training(**fields))
    return races


@dataclass(frozen=True)
class Standing:
    """A contestant's medians."""

    name: str
    load_seconds: float
    seconds: dict[float, float]  # by level; missing where it was not reached
    processor_seconds: dict[float, float]
    peak_memory_bytes: int
    accuracy: float | None
    figures: dict[str, Any]  # of the training to the middle level, where it tells more


def standings(trainings: Sequence[Training], levels: Sequence[float] = LEVELS) -> list[Standing]:
    """Sum up a race: for each contestant and level the setting with the smallest median."""
    found = []
    for name in dict.fromkeys(each.contestant for each in trainings):
        own = [each for each in trainings if each.contestant == name]
        # a race that was ended early has a first round only of some
        found.append(_standing(name, [each for each in own if each.round > 0] or own, levels))
    return found


def _standing(name: str, trainings: list[Training], levels: Sequence[float]) -> Standing:
    by_setting = _by_setting(trainings)
    best: dict[float, list[Training]] = {}
    for level in levels:
        within = [group for group in by_setting.values() if max(each.relative for each in group) <= level]
        if within:
            best[level] = min(within, key=lambda group: _median(group, "seconds"))
    closest = best[min(best)][0] if best else None
    middle = best.get(levels[len(levels) // 2])
    return Standing(
        name,
        statistics.median(each.load_seconds for each in trainings),
        {level: _median(group, "seconds") for level, group in best.items()},
        {level: _median(group, "processor_seconds") for level, group in best.items()},
        max(int(each.figures["peak_memory_bytes"]) for each in trainings),
        None if closest is None else closest.accuracy,
        middle[0].figures if middle else {},
    )


def _without_first(trainings: list[Training]) -> list[Training]:
    """Leave out the first training of every process of later rounds, which is there to warm it up."""
    kept: list[Training] = []
    seen: set[int] = set()
    for each in trainings:
        if each.round == 0 or each.round in seen:
            kept.append(each)
        seen.add(each.round)
    return kept


def _median(group: Iterable[Training], name: str) -> float:
    return statistics.median(each.figures[name] for each in group)


def table(races: dict[Race, list[Training]], levels: Sequence[float] = LEVELS) -> str:
    """Medians in Markdown of streamcd and its fastest peer: seconds to every level, and of processors in brackets."""
    to, middle = [f"to {level:g}" for level in levels], levels[len(levels) // 2]
    lines = [
        f"| | load, s | {', s | '.join(to)}, s | accuracy | peak memory |",
        "| --- " * (len(levels) + 4) + "|",
    ]
    for race, trainings in races.items():
        lines.append(f"| **{race}** |" + " |" * (len(levels) + 3))
        found = standings(trainings, levels)
        best = ratio(found, middle)
        shown = [
            each for each in found if each.name.startswith("streamcd") or (best and each.name == best.peer)
        ]
        lines += [_row(standing, levels) for standing in shown]
    return "\n".join([*lines, "", *_comparisons(races, middle)])


@dataclass(frozen=True)
class Ratio:
    """How many times as fast as the best peer streamcd is; by each measure another peer may be the best."""

    seconds: float
    processor_seconds: float
    with_load: float  # the peer's load from its fastest file counted
    peer: str  # the best by seconds


def ratio(standing: Sequence[Standing], level: float) -> Ratio | None:
    """Compare streamcd's times to a level with its peers'; None where one of the two did not reach it."""
    ours = next((each for each in standing if each.name == "streamcd" and level in each.seconds), None)
    peers = [each for each in standing if not each.name.startswith("streamcd") and level in each.seconds]
    if ours is None or not peers:
        return None
    best = min(peers, key=lambda each: each.seconds[level])
    return Ratio(
        best.seconds[level] / ours.seconds[level],
        min(each.processor_seconds[level] for each in peers) / ours.processor_seconds[level],
        min(each.seconds[level] + each.load_seconds for each in peers) / ours.seconds[level],
        best.name,
    )


def _comparisons(races: dict[Race, list[Training]], level: float) -> list[str]:
    """Tabulate how many times as fast as the best peer streamcd is, race by race, and the least and the median of them."""
    found = {race: ratio(standings(trainings), level) for race, trainings in races.items()}
    ratios = {race: each for race, each in found.items() if each is not None}
    lines = [
        f"| to {level:g}, times as fast as the best peer | by seconds | by processor seconds | its load counted |",
        "| --- | --- | --- | --- |",
    ]
    lines += [f"| {race}: {each.peer} | {_three(each)} |" for race, each in ratios.items()]
    warm = [each for race, each in ratios.items() if not race.cold]
    for name, summary in (("least", min), ("median", statistics.median)) if warm else ():
        lines.append(f"| **{name} of {len(warm)} in memory** | {_three(_summed_up(warm, summary))} |")
    return lines


def _summed_up(ratios: Sequence[Ratio], summary: Callable[[list[float]], float]) -> Ratio:
    return Ratio(
        summary([each.seconds for each in ratios]),
        summary([each.processor_seconds for each in ratios]),
        summary([each.with_load for each in ratios]),
        "",
    )


def _three(each: Ratio) -> str:
    return f"{each.seconds:.2f} | {each.processor_seconds:.2f} | {each.with_load:.2f}"


def _row(standing: Standing, levels: Sequence[float]) -> str:
    spent = [
        f"{standing.seconds[level]:.2f} ({standing.processor_seconds[level]:.2f})"
        if level in standing.seconds
        else "–"
        for level in levels
    ]
    accuracy = "" if standing.accuracy is None else f"{100 * standing.accuracy:.2f} %"
    load = "in training" if standing.name.startswith("streamcd") else f"{standing.load_seconds:.2f}"
    cells = [standing.name, load, *spent, accuracy, format_size(standing.peak_memory_bytes)]
    return "| " + " | ".join(cells) + " |"


def plot(races: dict[Race, list[Training]], out: Path) -> None:
    """Draw the distance from the optimum that each contestant has reached by then, a panel for each race."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(2, len(races))
    n_rows = -(-len(races) // columns)
    figure, axes = plt.subplots(n_rows, columns, figsize=(5.2 * columns, 3.2 * n_rows), squeeze=False)
    names = list(dict.fromkeys(each.contestant for trainings in races.values() for each in trainings))
    colours = {name: plt.get_cmap("tab20")(number) for number, name in enumerate(names)}
    for axis, (race, trainings) in zip(axes.flat, races.items(), strict=False):
        for name, colour in colours.items():
            points = _reached([each for each in trainings if each.contestant == name])
            if points:
                style = {"drawstyle": "steps-post", "markersize": 3, "color": colour, "label": name}
                axis.loglog(*zip(*points, strict=True), "o-", **style)
        axis.set_title(str(race), fontsize=8)
        axis.set_ylim(1e-6, 1.0)
        axis.xaxis.set_minor_formatter("")
        axis.legend(fontsize=6, frameon=False)
    for axis in list(axes.flat)[len(races) :]:
        axis.remove()
    figure.supxlabel("seconds of processors", fontsize=9)
    figure.supylabel("objective / best − 1", fontsize=9)
    figure.tight_layout()
    figure.savefig(out, dpi=90)


def _reached(trainings: list[Training]) -> list[tuple[float, float]]:
    """Median seconds of processors and distance of every setting that comes nearer than all quicker ones."""
    points: list[tuple[float, float]] = []
    for seconds, relative in sorted(
        (_median(group, "processor_seconds"), max(each.relative for each in group))
        for group in _by_setting(trainings).values()
    ):
        if relative < min((reached for _, reached in points), default=1.0):
            points.append((seconds, max(relative, 1e-6)))
    return points


def _by_setting(trainings: list[Training]) -> dict[float, list[Training]]:
    groups: dict[float, list[Training]] = {}
    for each in _without_first(trainings):
        groups.setdefault(each.setting, []).append(each)
    return groups

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
        remarks = [] if self.C == 1.0 else [f"C = {self.C:g}"]
        remarks += [f"{self.threads} threads"] if self.threads > 1 else []
        remarks += [f"within {self.memory}"] if self.memory != Task.memory else []
        remarks += ["cold"] if self.cold else []
        return ", ".join([self.data, self.loss, *remarks])


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
    """Medians in Markdown, a line for each race: seconds of streamcd and of its fastest peer to every level, and ratios."""
    to, middle = ", ".join(f"{level:g}" for level in levels), levels[len(levels) // 2]
    lines = [
        f"| seconds to {to} | streamcd | fastest peer, with its load | × | × processors | × with load | memory |",
        "| --- | --- | --- | --: | --: | --: | --- |",
    ]
    warm = []
    for race, trainings in races.items():
        found = standings(trainings, levels)
        ratios = ratio(found, middle)
        ours = next(each for each in found if each.name == "streamcd")
        peer = next((each for each in found if ratios is not None and each.name == ratios.peer), None)
        memory = ", ".join(format_size(each.peak_memory_bytes) for each in (ours, peer) if each is not None)
        theirs = "" if peer is None else f"{peer.name} {peer.load_seconds:.2f} + {_spent(peer, levels)}"
        compared = "| |" if ratios is None else _three(ratios)
        lines.append(f"| {race} | {_spent(ours, levels)} | {theirs} | {compared} | {memory} |")
        warm += [ratios] if ratios is not None and not race.cold else []
    for name, summary in (("least", min), ("median", statistics.median)) if warm else ():
        lines.append(f"| **{name} of {len(warm)} in memory** | | | {_three(_summed_up(warm, summary))} | |")
    return "\n".join(lines)


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


def _summed_up(ratios: Sequence[Ratio], summary: Callable[[list[float]], float]) -> Ratio:
    return Ratio(
        summary([each.seconds for each in ratios]),
        summary([each.processor_seconds for each in ratios]),
        summary([each.with_load for each in ratios]),
        "",
    )


def _three(each: Ratio) -> str:
    return f"{each.seconds:.2f} | {each.processor_seconds:.2f} | {each.with_load:.2f}"


def _spent(standing: Standing, levels: Sequence[float]) -> str:
    """Seconds to each level, – where it was not reached."""
    return ", ".join(
        f"{standing.seconds[level]:.2f}" if level in standing.seconds else "–" for level in levels
    )


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

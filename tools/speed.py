"""Measure how fast training is, and how well it uses memory, threads and workers; writes the bars of docs/benchmark.md.

    python -m tools.speed --records races.jsonl --docs docs/benchmark.md            all: twenty minutes
    python -m tools.speed --records races.jsonl --docs docs/benchmark.md --only races --only memory        from records

Groups: races, memory and threads, and one-vs-rest of lanes, are records of `python -m tools.peers`, by the commands on the
page; workers are the table of docs/cluster.md (`python -m tools.worker_times`). The rest is measured, on datasets that are
made or converted where `--work` does not have them. Times are medians to within 1e-3 of the best objective known.
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click

import streamcd
from streamcd import StreamcdError
from streamcd.core.memory_budget import parse_size
from tools import worker_times
from tools.bar_table import Bar, bar_options, listed, need_processors, show
from tools.bench_conversion import Converting, contestants
from tools.make_data import SHAPES, Shape, write_dataset
from tools.marked_section import read_section
from tools.peers.contestants import CONTESTANTS, Task
from tools.peers.race import LEVELS, Training
from tools.peers.tables import Race, Standing, ratio, read, standings

COMMAND = "python -m tools.speed"
_LEVEL = LEVELS[1]
_ROUNDS = 3
_WIDE = "text-158m-wide"
_SHAPES = SHAPES | {
    "tall": Shape("dense", rows=1_000_000, features=30),
    "text-158m": Shape("text", rows=1_475_000, features=300_000, entries=107),
    _WIDE: Shape("text", rows=1_475_000, features=3_100_000, entries=107),
}
_CLUSTER = Path(__file__).resolve().parent.parent / "docs" / "cluster.md"


class Speed(NamedTuple):
    """What bars are measured from: records of races, and a folder with datasets."""

    races: dict[Race, list[Training]]
    work: Path

    def standings(self, race: Race) -> list[Standing]:
        """Sum up the record of a race."""
        if race not in self.races:
            need_processors(race.threads)
            raise StreamcdError(f"no record of {race}")
        return standings(self.races[race])

    def seconds(self, race: Race, *names: str) -> float:
        """Seconds of the quickest of some contestants; infinite where none came near enough."""
        found = [each for each in self.standings(race) if each.name in (names or ("streamcd",))]
        return min((each.seconds.get(_LEVEL, math.inf) for each in found), default=math.inf)

    def liblinear(self, race: Race) -> float:
        """Seconds of LIBLINEAR, which has no threads and no budget, in any race of the problem."""
        same = [
            each for each in self.races if (each.data, each.loss, each.C) == (race.data, race.loss, race.C)
        ]
        found = min((self.seconds(each, "liblinear", "liblinear-primal") for each in same), default=math.inf)
        if found == math.inf:
            raise StreamcdError(f"no record of LIBLINEAR on {race.data}, {race.loss}, C = {race.C:g}")
        return found

    def dataset(self, name: str, *, columns: bool = False) -> Path:
        """Find a dataset, or make it."""
        path = self.work / name
        if not path.exists() and name in _SHAPES:
            write_dataset(_SHAPES[name], path)
        elif not path.exists():
            streamcd.convert(Path(os.environ.get("STREAMCD_DATA", "../shared/data")) / f"{name}.xz", path)
        if columns and not (path / "columns").exists():
            streamcd.make_columns(path)
        return path


def on(data: str, loss: str = "squared_hinge", C: float = 1.0, threads: int = 1) -> Race:
    """The race in memory."""
    return Race(data, loss, C, threads, Task.memory, cold=False)


def times(theirs: float, ours: float) -> float:
    """How many times as fast ours is; 0 where it did not come near enough."""
    return 0.0 if ours == math.inf else round(theirs / ours, 2)


# ---------------------------------------------------------------------------------------------------------------------
# Records of races

_LOSSES = ("squared_hinge", "hinge", "log_loss")


def best_peer(data: str, *losses: str) -> Bar:
    def measure(speed: Speed) -> tuple[str, bool]:
        peers = set(CONTESTANTS) - {"streamcd", "streamcd-plain"}
        races = [on(data, loss) for loss in losses]
        found = [times(speed.seconds(race, *peers), speed.seconds(race)) for race in races]
        return listed(found), min(found) >= 1

    what = f"the best peer in memory, one thread, {data}: {', '.join(losses)}"
    return Bar("races", what, "1 × each" if len(losses) > 1 else "1 ×", measure)


def all_races(speed: Speed, *, load: bool) -> list[float]:
    """Times as fast as the best peer, of every race in memory that has a peer."""
    warm = [standings(found) for race, found in speed.races.items() if not race.cold]
    ratios = [each for each in (ratio(found, _LEVEL) for found in warm) if each is not None]
    if not ratios:
        raise StreamcdError("no record")
    return [each.with_load if load else each.seconds for each in ratios]


def every_row(speed: Speed) -> tuple[str, bool]:
    found = all_races(speed, load=False)
    least, median = min(found), statistics.median(found)
    return f"{least:.2f}; {median:.2f} ({len(found)} races)", least >= 1 and median >= 1.5


def with_load(speed: Speed) -> tuple[str, bool]:
    found = all_races(speed, load=True)
    return f"least {min(found):.2f}, median {statistics.median(found):.2f}", min(found) >= 3


def snapml(speed: Speed) -> tuple[str, bool]:
    found = []
    for loss in _LOSSES:
        theirs = min(speed.seconds(on("text-65m", loss, threads=n), "snapml") for n in (1, 2))
        found.append(times(theirs, speed.seconds(on("text-65m", loss, threads=2))))
    return listed(found), min(found) >= 1.5


def within(data: str, C: float, memory: str, against: tuple[float, float], own: float) -> list[Bar]:
    """Bars of a training from a cold disk within a budget."""

    def race(threads: int, budget: str = memory) -> Race:
        return Race(data, "squared_hinge", C, threads, budget, cold=True)

    def liblinear(threads: int, least: float) -> Bar:
        def measure(speed: Speed) -> tuple[str, bool]:
            ours, theirs = speed.seconds(race(threads)), speed.liblinear(race(threads))
            return f"{times(theirs, ours):.2f} × ({ours:.1f} s, {theirs:.1f} s)", times(theirs, ours) >= least

        what = f"{title}, {threads} threads against LIBLINEAR in memory"
        return Bar("memory", what, f"{least:g} ×", measure)

    def in_memory(speed: Speed) -> tuple[str, bool]:
        ours, other = speed.seconds(race(2)), speed.seconds(race(2, Task.memory))
        more = math.inf if math.inf in (ours, other) else round(ours / other, 2)
        return f"{more:.2f} × the time ({ours:.1f} s, {other:.1f} s)", more <= own

    title = f"{data} cold, squared_hinge, C = {C:g}, within {memory}"
    bars = [liblinear(threads, least) for threads, least in zip((2, 4), against, strict=True)]
    what = f"{title}, two threads against all in memory, read from the cold disk too"
    return [*bars, Bar("memory", what, f"at most {own:g} ×", in_memory)]


def passes(speed: Speed) -> tuple[str, bool]:
    """Passes and certificates that failed, of the training whose tolerance is nearest to 1e-3."""
    race = Race(_WIDE, "squared_hinge", 1.0, 2, "390MB", cold=True)
    speed.standings(race)
    ours = [each for each in speed.races[race] if each.contestant == "streamcd"]
    training = min(ours, key=lambda each: abs(math.log(each.setting / 1e-3)))
    made, failed = training.figures["passes"], training.figures["certificates"] - 1
    reached = f"{made}; {failed} (tolerance {training.setting:g})"
    return reached, training.setting <= 1e-3 and made <= 8 and failed <= 1


def one_lane(threads: int, *least: float) -> Bar:
    sets = ("text-65m", "clicks-400k", "kdd99_10pct")

    def measure(speed: Speed) -> tuple[str, bool | None]:
        spent = [[speed.seconds(on(data, threads=n)) for n in (threads, 1)] for data in sets]
        found = [times(one, several) for several, one in spent]
        return listed(found), all(map(float.__ge__, found, least)) if least else None

    what = f"one lane, squared_hinge, {threads} threads against 1: {', '.join(sets)}"
    return Bar("threads", what, f"{listed(least)} ×" if least else "", measure)


def many_classes(speed: Speed) -> tuple[str, bool]:
    n = len(os.sched_getaffinity(0))
    races = [on("classes-105", threads=threads) for threads in (1, n)]
    found = [times(speed.liblinear(race), speed.seconds(race)) for race in races]
    return f"{listed(found)} ({n} cores)", found[0] >= 1.5 and found[1] >= 3


# ---------------------------------------------------------------------------------------------------------------------
# Measurements


def command(*words: Any) -> dict[str, Any]:
    """Run a command of streamcd in a process of its own, and return what it prints."""
    asked = [sys.executable, "-m", "streamcd", *map(str, words), "--force", "--json", "--quiet"]
    done = subprocess.run(asked, check=False, stdout=subprocess.PIPE, text=True)
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise StreamcdError(f"streamcd {words[0]} failed with status {done.returncode}") from None


def forty_lanes(threads: int, least: float) -> Bar:
    """Seconds of the folds, of trainings that take turns."""

    def measure(speed: Speed) -> tuple[str, bool]:
        need_processors(threads)
        data, run = speed.dataset("kdd99_10pct"), speed.work / "lanes"
        asked = ["tune", data, run, "-C", "0.01,0.03,0.1,0.3,1,3,10,30", "--cv", 5]
        asked += ["--max-passes", 15, "--memory", "4GB", "--threads"]
        spent: dict[int, list[float]] = {1: [], threads: []}
        for _ in range(_ROUNDS):
            for n, seconds in spent.items():
                seconds.append(command(*asked, n)["folds"]["seconds"])
        one, several = map(statistics.median, spent.values())
        return f"{one / several:.2f} × ({one:.1f} s, {several:.1f} s)", one / several >= least

    what = f"forty lanes, kdd99_10pct, 8 C × 5 folds, {threads} threads against 1"
    return Bar("lanes", what, f"{least:g} ×", measure)


def slack(what: str, data: str, memory: str, *options: str) -> Bar:
    """Peak memory of five passes below the budget: as the process that trains reports it."""

    def measure(speed: Speed) -> tuple[str, bool]:
        path = speed.dataset(data, columns={"primal", "working-set"} & set(options) != set())
        asked = [path, speed.work / "slack", "--memory", memory, "--max-passes", 5, *options]
        peak, budget = command("train", *asked)["peak_memory_bytes"], parse_size(memory)
        most = 10e6 + 0.05 * budget
        reached = f"{(budget - peak) / 1e6:.1f} MB of {most / 1e6:.1f}"
        return reached, 0 <= budget - peak <= most

    title = f"peak memory below the budget of {memory}, {data}, {what}"
    return Bar("slack", title, "by at most 10 MB + 5 %", measure)


def conversion(workers: int, least: float) -> Bar:
    def measure(speed: Speed) -> tuple[str, bool]:
        need_processors(workers)
        source = str(_table_as_text(speed.work))
        spent: dict[str, list[float]] = {}
        with tempfile.TemporaryDirectory(dir=speed.work) as scratch:
            converting = Converting(Path(scratch), (), parse_size("400MB"))
            for _ in range(_ROUNDS):
                for (kind, *_), read_once in contestants([source], [workers], converting, False).items():
                    spent.setdefault(kind, []).append(read_once().seconds)
        ours, theirs = (statistics.median(spent[kind]) for kind in ("convert", "load_svmlight_file"))
        return f"{theirs / ours:.1f} × ({ours:.1f} s, {theirs:.1f} s)", theirs / ours >= least

    what = f"conversion of libsvm text, {workers} workers against scikit-learn's loader"
    return Bar("conversion", what, f"{least:g} ×", measure)


def _table_as_text(work: Path) -> Path:
    """Find the made table of 7.5 million rows as libsvm text, or make it."""
    text = work / "mixed.txt"
    if not text.exists():
        table = work / "mixed.parquet"
        asked = [sys.executable, "-m", "tools.make_table", "--rows", "7500000", str(table)]
        subprocess.run(asked, check=True)
        command("convert", table, work / "mixed", "--label", "outcome", "--memory", "400MB")
        command("export", work / "mixed", text)
    return text


def workers(data: str) -> Bar:
    """The lines of a set in the table of docs/cluster.md."""

    def measure(speed: Speed) -> tuple[str, bool]:
        lines = read_section(_CLUSTER, worker_times.COMMAND).splitlines()
        own = {line.split(" | ")[1]: line for line in lines if line.startswith(f"| {data},")}
        if set(own) != set(_LOSSES):
            raise StreamcdError(f"no record of {data} in docs/cluster.md")
        found = [[float(each) for each in re.findall(r"\*\*([\d.]+) ×", own[loss])] for loss in _LOSSES]
        held = all(two >= 1.5 and four >= 2.5 for two, four in found)
        return ", ".join(listed(pair, " / ") for pair in found), held

    what = f"2 / 4 workers, each on a host with a disk of its own, {data}: {', '.join(_LOSSES)}"
    return Bar("workers", what, "1.5 / 2.5 × each", measure)


BARS = [
    Bar("races", "the best peer in memory, every race below: least; median", "1; 1.5 ×", every_row),
    Bar("races", "the same with the peers' load from their fastest file counted", "3 ×", with_load),
    best_peer("a9a", *_LOSSES),
    best_peer("short-rows", "squared_hinge", "log_loss"),
    best_peer("imdb", "squared_hinge"),
    best_peer("kdd99_10pct", *_LOSSES),
    best_peer("clicks-400k", "squared_hinge", "log_loss"),
    best_peer("text-65m", *_LOSSES),
    Bar(
        "races",
        f"text-65m, two threads against Snap ML's one or two: {', '.join(_LOSSES)}",
        "1.5 × each",
        snapml,
    ),
    *within("text-158m", 0.1, "400MB", (1.5, 2.0), 1.1),
    Bar(
        "memory",
        f"{_WIDE} cold, squared_hinge, C = 1, within 390MB: passes; certificates that failed",
        "at most 8; 1",
        passes,
    ),
    *within(_WIDE, 1.0, "390MB", (1.2, 1.6), 1.3),
    one_lane(2),
    one_lane(4, 2.0, 1.5, 1.3),
    Bar("lanes", "classes-105, one-vs-rest against LIBLINEAR: one core, all", "1.5, 3 ×", many_classes),
    forty_lanes(2, 1.6),
    forty_lanes(4, 2.5),
    slack("accelerated", "text-65m", "330MB"),
    slack("plain", "text-65m", "330MB", "--acceleration", "none"),
    slack("accelerated", "text-158m", "400MB"),
    slack("accelerated", _WIDE, "390MB"),
    slack("primal", "text-65m", "330MB", "--method", "primal"),
    slack("working sets", "text-65m", "400MB", "--method", "working-set", "--penalty", "l1"),
    slack("newton", "tall", "240MB", "--method", "newton"),
    conversion(2, 10),
    conversion(4, 15),
    workers("text"),
    workers("imdb"),
    workers("kdd99"),
]


def read_records(path: Path) -> dict[Race, list[Training]]:
    """Read races by the words of their sets before a dot: imdb, as docs and `imdb.bigram.tfidf`."""
    races = read(path) if path.exists() else {}
    return {replace(race, data=race.data.partition(".")[0]): found for race, found in races.items()}


@click.command()
@bar_options(BARS)
@click.option("--records", default="races.jsonl", show_default=True, type=click.Path(path_type=Path))
def main(only: tuple[str, ...], records: Path, work: Path | None, docs: Path | None) -> None:
    """Measure and print the table of bars; on a page, a part replaces its own lines."""
    with tempfile.TemporaryDirectory() as folder:
        place = work or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        show(BARS, Speed(read_records(records), place), COMMAND, only, docs)


if __name__ == "__main__":
    main()

"""Seconds of trainings by one process and by several workers, each with a disk, and memory for an eighth of the data.

    python -m tools.worker_times --docs docs/cluster.md

Workers are simulated one after another in this process (`simulated_cluster`), and the bytes of every round counted: a
round takes as long as the worker that reads most, and sending weights, changes and dual variables. Processor time is not
counted: it passes while a disk is waited for.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click

import streamcd
from streamcd import Dataset, Listener
from streamcd.core.errors import UsageError
from streamcd.runs.choices import settle
from streamcd.runs.lane_groups import resolve
from streamcd.runs.options import TrainOptions
from tools.make_data import SHAPES, write_dataset
from tools.marked_section import replace_section
from tools.simulated_cluster import Simulation

COMMAND = "python -m tools.worker_times --docs docs/cluster.md"
DISK = 500e6  # bytes a second
LINK = 1.25e9  # bytes a second: 10 Gb/s
WORKERS = (2, 4)
_WINDOW = 1 / 16  # of the data: two of them are in memory
_N_SHARDS = 16
_LOSSES = ("log_loss", "squared_hinge", "hinge")
_MADE = {"text, 20 M entries": replace(SHAPES["text"], rows=200_000, features=200_000, entries=100)}
_REAL = {"imdb, word pairs, 9 M entries": "imdb.bigram.tfidf", "kdd99, 6 M entries": "kdd99_10pct"}


class Course(NamedTuple):
    """Seconds, and times that all rows were read, certificates included."""

    seconds: float
    reads: float


def made_sets(work: Path, names: Sequence[str]) -> Iterator[tuple[str, Dataset]]:
    """Make or convert the sets, in so many shards."""
    for name, shape in _MADE.items():
        if any(word in name for word in names) or not names:
            n_bytes = 8 * shape.rows * shape.entries
            path = work / name.partition(",")[0]
            if not path.exists():
                write_dataset(shape, path, shard_size=n_bytes // _N_SHARDS, chunk_size="250kB")
            yield name, streamcd.open(path)
    for name, file in _REAL.items():
        if any(word in name for word in names) or not names:
            source = Path(os.environ.get("STREAMCD_DATA", "../shared/data")) / f"{file}.xz"
            path = work / file
            if not path.exists():
                whole = streamcd.convert(source, work / "whole", force=True)
                size = 8 * whole.n_entries // _N_SHARDS
                streamcd.convert(source, path, shard_size=size, chunk_size="250kB")
            yield name, streamcd.open(path)


def memory_for(data: Dataset, **options: Any) -> int:
    """Find the budget in which a process, or a worker, has windows of a share of the data."""
    low, high = 1e6, 4e9
    while high - low > 1e5:
        memory = (low + high) / 2
        asked = settle(TrainOptions(memory=int(memory), method="dual", **options), data, Listener())
        try:
            plan = resolve(data, asked, Listener()).config.plan
            enough = plan.resident or plan.window_entries >= _WINDOW * data.n_entries
        except UsageError:
            enough = False
        low, high = (low, memory) if enough else (memory, high)
    return int(high)


def course_of(data: Dataset, run: Path, n_workers: int, loss: str, tol: float) -> Course:
    """Train, by one process or by `n_workers`, and add up its rounds."""
    options: dict[str, Any] = {"loss": loss, "method": "dual", "tol": tol, "max_passes": 200}
    memory = memory_for(data, loss=loss, on_workers=n_workers > 1)
    client = Simulation(n_workers) if n_workers > 1 else None
    streamcd.train(data, run, memory=memory, client=client, force=True, **options)
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    row_bytes = 33 if loss == "log_loss" else 17
    entry_bytes = data.n_entries * data.entry_bytes
    most = client.most_bytes if client else [record["bytes_read"] for record in log]
    seconds = sum(most) / DISK
    for record in log if client else ():
        # weights and changes go along a tree; dual variables, half of which change hands, through one process
        moved = record["bytes_sent"] / n_workers * math.ceil(math.log2(n_workers) + 1)
        moved += 1.5 * row_bytes * data.n_rows * (record["kind"] == "train")
        seconds += moved / LINK
    reads = sum(record["bytes_read"] for record in log) / entry_bytes
    return Course(seconds, reads)


def lines_of(name: str, data: Dataset, work: Path, tol: float) -> Iterator[str]:
    """Measure a set, by every loss, and write a line of the table for each."""
    for loss in _LOSSES:
        courses = [course_of(data, work / "run", n, loss, tol) for n in (1, *WORKERS)]
        one = courses[0]
        cells = [name, loss, f"{one.seconds:.2f} s, {one.reads:.1f}"]
        cells += [
            f"{c.seconds:.2f} s, {c.reads:.1f}: **{one.seconds / c.seconds:.1f} ×**" for c in courses[1:]
        ]
        line = "| " + " | ".join(cells) + " |"
        click.echo(line, err=True)
        yield line


@click.command()
@click.option("--docs", type=click.Path(path_type=Path, exists=True), help="Page whose section is replaced.")
@click.option("--work", type=click.Path(path_type=Path), help="Directory for datasets, kept.")
@click.option("--tol", default=1e-3, show_default=True)
@click.argument("names", nargs=-1)
def main(docs: Path | None, work: Path | None, tol: float, names: tuple[str, ...]) -> None:
    """Measure and print the table; NAMES are words of the sets' names, all by default."""
    heads = ["", "loss", "one process", *(f"{n} workers" for n in WORKERS)]
    lines = ["| " + " | ".join(heads) + " |", "| --- | --- " + "| --: " * (len(heads) - 2) + "|"]
    with tempfile.TemporaryDirectory() as folder:
        place = work or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        for name, data in made_sets(place, names):
            lines += lines_of(name, data, place, tol)
    click.echo("\n".join(lines))
    if docs is not None:
        replace_section(docs, COMMAND, "\n".join(lines))


if __name__ == "__main__":
    main()

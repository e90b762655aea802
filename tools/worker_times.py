"""Seconds of trainings by one host and by several, each with a disk, and memory for an eighth of the data.

    python -m tools.worker_times --docs docs/cluster.md                  as root: twenty minutes

The hosts are on this machine (`tools.hosts`), at a tenth of the rates of `DISK`, `LINK` and `PROCESSORS`, so that five of
them take no more than one of its processors and a part of its disk. One trains alone; or a dask worker is in each of
several, and another one has the scheduler and the process that trains, whose run the workers do not see. All read the
dataset from the same folder, at the rate of their own disks. A first training by each loss loads libraries and kernels,
without limits; then the dataset leaves the page cache, and the second one is measured.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import click

import streamcd
from streamcd import Dataset, StreamcdError
from streamcd.core.errors import EnvironmentFailure, UsageError
from streamcd.core.memory_budget import RESERVED_BYTES, RUNNING_BYTES
from streamcd.runs.options import TrainOptions
from streamcd.runs.resolve import resolve
from streamcd.stream.memory_plan import Plan
from tools.control_groups import Limits
from tools.hosts import Host, check, made_hosts
from tools.make_data import SHAPES, write_dataset
from tools.marked_section import read_section, replace_section
from tools.peers.arrays import drop_from_page_cache

COMMAND = "python -m tools.worker_times --docs docs/cluster.md"
DISK = 500e6  # bytes a second
LINK = 1.25e9  # bytes a second: 10 Gb/s
PROCESSORS = 2
SLOWER = 10
"""Time passes so many times as slowly in the hosts: five of them with two processors each take one of this machine's."""
WORKERS = (2, 4)
_WINDOW = 1 / 16  # of the data: two of them are in memory
_N_SHARDS = 16
_RUNS = "runs"  # folder that workers do not see
_LOSSES = ("log_loss", "squared_hinge", "hinge")
_MADE = {"text-65m": SHAPES["text-65m"]}
_REAL = {"imdb": "imdb.bigram.tfidf", "kdd99": "kdd99_10pct"}
_SEEN = 0.9  # of the bytes of all reads: so much has to come from disk


class Course(NamedTuple):
    """Seconds, and times that the data came from disk, certificates included."""

    seconds: float
    reads: float


def made_sets(work: Path, names: Sequence[str]) -> Iterator[tuple[str, Dataset]]:
    """Make or convert the sets, in so many shards."""
    for name, shape in _MADE.items():
        if any(word in name for word in names) or not names:
            n_bytes = 8 * shape.rows * shape.entries
            path = work / name
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


def memory_for(data: Dataset, workers: int | None = None, **options: Any) -> tuple[int, Plan]:
    """Find the budget in which a process, or a worker, has windows of a share of the data, and the plan of a process."""
    low, high = 1e6, 4e9
    while high - low > 1e5:
        memory = (low + high) / 2
        try:
            plan = _plan(data, memory, workers, options)
            enough = plan.resident or plan.window_entries >= _WINDOW * data.n_entries
        except UsageError:
            enough = False
        low, high = (low, memory) if enough else (memory, high)
    return int(high), _plan(data, high, workers, options)


def _plan(data: Dataset, memory: float, workers: int | None, options: dict[str, Any]) -> Plan:
    scheduler = None if workers is None else "tcp://none"
    asked = TrainOptions(memory=int(memory), method="dual", scheduler=scheduler, **options)
    return resolve(asked, data)[0].plan


@dataclass
class Site:
    """Hosts, and a process in one of them that trains: alone, or on the workers that are in the others."""

    work: Path
    trainer: Host
    server: Any
    workers: list[Host]

    def ask(self, **options: Any) -> dict[str, Any]:
        """Have the process train, and return its figures."""
        print(json.dumps(options), file=self.server.stdin, flush=True)
        answer = self.server.stdout.readline()
        if not answer:
            said = (self.work / "trainer.log").read_text().splitlines() or ["it said nothing"]
            raise EnvironmentFailure(f"the process that trains has ended: {said[-1]}")
        figures: dict[str, Any] = json.loads(answer)
        return figures

    def limit(self, memory: int) -> None:
        """Bound what the hosts take, and the memory of those that read data."""
        rates = Limits(int(DISK / SLOWER), PROCESSORS / SLOWER)
        self.trainer.limit(rates)
        for host in self.readers:
            host.limit(replace(rates, memory=memory))

    @property
    def readers(self) -> list[Host]:
        """Return the hosts that read data."""
        return self.workers or [self.trainer]

    def bytes_read(self) -> int:
        """Count the bytes that have come from the disks."""
        return sum(host.group.bytes_read() for host in self.readers)


@contextmanager
def opened_site(work: Path, n_workers: int) -> Iterator[Site]:
    """Make hosts, and start a process that trains, on so many workers if there are several."""
    n_others = n_workers if n_workers > 1 else 0
    with made_hosts(1 + n_others, LINK / SLOWER, work) as (trainer, *others):
        cluster = [_start_workers(work, trainer, others), str(n_others)] if others else []
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        server = _start(work, "trainer", trainer, "tools.training_server", *cluster, **pipes)
        site = Site(work, trainer, server, others)
        site.ask()
        yield site


def _start_workers(work: Path, trainer: Host, others: list[Host]) -> str:
    """Start a scheduler beside the process that trains, and workers, which do not see the run; returns its address."""
    hidden, address = work / _RUNS, f"tcp://{trainer.address}:8786"
    hidden.mkdir(exist_ok=True)
    _start(work, "scheduler", trainer, "dask", "scheduler", "--host", trainer.address, "--no-dashboard")
    settings = ["--nthreads", "1", "--memory-limit", "0", "--no-nanny", "--no-dashboard"]
    for number, host in enumerate(others):
        name = f"worker{number}"
        own = ["--host", host.address, "--local-directory", str(work / name)]
        _start(work, name, host, "dask", "worker", address, *own, *settings, hidden=hidden)
    return address


def _start(work: Path, name: str, host: Host, *command: str, **options: Any) -> Any:
    """Start a module of Python in a host, with a log."""
    with open(work / f"{name}.log", "w") as log:
        return host.start([sys.executable, "-m", *command], **{"stdout": log, "stderr": log, **options})


def course_of(data: Dataset, work: Path, n_workers: int, loss: str, tol: float) -> Course:
    """Train twice, first to load what is needed, and return the seconds and reads of the second time."""
    memory, plan = memory_for(data, 0 if n_workers > 1 else None, loss=loss)
    run = work / _RUNS / "run"
    options: dict[str, Any] = {"loss": loss, "method": "dual", "memory": memory, "tol": tol}
    if n_workers > 1:  # a worker's budget has the pages of libraries, which are the machine's here
        room = memory - (RESERVED_BYTES - RUNNING_BYTES)
    else:  # of a process alone, a budget is at least what libraries take to start
        options |= {"memory": max(memory, RESERVED_BYTES), "plan": asdict(plan)}
        room = memory
    options |= {"data": str(data.path), "run": str(run)}
    with opened_site(work, n_workers) as site:
        site.ask(**options, max_passes=2)
        drop_from_page_cache(Path(str(data.path)))
        site.limit(room)
        before = site.bytes_read()
        figures = site.ask(**options, max_passes=200)
        from_disk = site.bytes_read() - before
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return Course(figures["seconds"], reads_of(data, log, from_disk))


def reads_of(data: Dataset, log: list[dict[str, Any]], from_disk: int) -> float:
    """Return how many times the data came from disk; refuse a training that had some from the page cache.

    Of a process alone those reads count that are of all rows: copies of the rows that stay active are in memory.
    """
    n_bytes = sum(map(data.chunk_bytes, range(data.n_chunks)))
    on_workers = "round" in log[-1]
    whole = log[-1]["read"] if on_workers else sum(record["bytes_read"] >= n_bytes for record in log)
    if from_disk < _SEEN * whole * n_bytes:
        raise EnvironmentFailure(
            f"{data.path}: expected {whole} reads of {n_bytes} bytes from disk, found {from_disk} bytes"
        )
    return from_disk / n_bytes


def lines_of(name: str, data: Dataset, work: Path, tol: float) -> Iterator[str]:
    """Measure a set, by every loss, and write a line of the table for each."""
    for loss in _LOSSES:
        courses = [course_of(data, work, n, loss, tol) for n in (1, *WORKERS)]
        one = courses[0]
        cells = [name, loss, f"{one.seconds:.1f}, {one.reads:.1f}"]
        cells += [f"{c.seconds:.1f}, {c.reads:.1f}, **{one.seconds / c.seconds:.1f}**" for c in courses[1:]]
        line = "| " + " | ".join(cells) + " |"
        click.echo(line, err=True)
        yield line


def _end(signum: int, _: Any) -> None:
    """End by way of what cleans up."""
    sys.exit(128 + signum)


@click.command()
@click.option("--docs", type=click.Path(path_type=Path, exists=True), help="Page whose section is replaced.")
@click.option("--work", type=click.Path(path_type=Path), help="Directory for datasets, kept.")
@click.option("--tol", default=1e-3, show_default=True)
@click.argument("names", nargs=-1)
def main(docs: Path | None, work: Path | None, tol: float, names: tuple[str, ...]) -> None:
    """Measure and print the table; NAMES are words of the sets' names, all by default: lines of others stay on the page."""
    signal.signal(signal.SIGTERM, _end)
    heads = ["", "loss", "one process", *(f"{n} workers" for n in WORKERS)]
    before = read_section(docs, COMMAND).splitlines()[2:] if docs is not None and names else []
    lines = {_case(line): line for line in before}
    try:
        check()
        with tempfile.TemporaryDirectory() as folder:
            place = (work or Path(folder)).resolve()
            place.mkdir(parents=True, exist_ok=True)
            for name, data in made_sets(place, names):
                lines |= {_case(line): line for line in lines_of(name, data, place, tol)}
    except StreamcdError as error:
        click.echo(f"worker_times: {error}", err=True)
        sys.exit(error.exit_status)
    table = [
        "| " + " | ".join(heads) + " |",
        "| --- | --- " + "| --: " * (len(heads) - 2) + "|",
        *lines.values(),
    ]
    click.echo("\n".join(table))
    if docs is not None:
        replace_section(docs, COMMAND, "\n".join(table))


def _case(line: str) -> tuple[str, ...]:
    """Return the set and the loss of a line of the table."""
    return tuple(line.split(" | ")[:2])


if __name__ == "__main__":
    main()

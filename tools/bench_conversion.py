"""Rates of conversions, beside those of other readers of the same files.

    python tools/make_table.py --rows 15000000 mixed.csv mixed.parquet
    streamcd convert mixed.parquet mixed --label outcome --memory 400MB
    streamcd export mixed mixed.txt
    python -m tools.bench_conversion mixed.csv mixed.parquet mixed.txt --label outcome --workers 1,2,4

CSV is compared with `pyarrow.csv.open_csv`, which reads all batches with as many threads and drops them; libsvm text with
scikit-learn's `load_svmlight_file`; Parquet with libsvm text of the same rows, by entries a second. Each runs in a process
of its own, one after the other, round after round; medians count. One worker has ``--memory``; several have that much each,
and 200 MB for the process that hands out the work. Seconds of conversions are those of the whole command, seconds of the
others leave out the start. Processor seconds leave out other load on the machine. All conversions of a file must give one
fingerprint; the first one of a version compiles kernels, so convert something small before. With ``--at-once`` as many
conversions by one process each run side by side: the machine's own limit.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from streamcd.core.memory_budget import format_size, parse_size

_COORDINATOR_BYTES = 200_000_000

_OPEN_CSV = """
import sys, time
import pyarrow, pyarrow.csv
pyarrow.set_cpu_count(int(sys.argv[2]))
started = time.perf_counter()
for batch in pyarrow.csv.open_csv(sys.argv[1], pyarrow.csv.ReadOptions(use_threads=int(sys.argv[2]) > 1)):
    del batch
print(time.perf_counter() - started)
"""

_LOAD_SVMLIGHT = """
import sys, time
from sklearn.datasets import load_svmlight_file
started = time.perf_counter()
load_svmlight_file(sys.argv[1])
print(time.perf_counter() - started)
"""


class Measured(NamedTuple):
    """Cost of reading a file once."""

    seconds: float
    processor_seconds: float
    peak_bytes: int  # of the largest process
    fingerprint: str = ""
    n_entries: int = 0


class Converting(NamedTuple):
    """Options of all conversions."""

    scratch: Path
    options: tuple[str, ...]  # of tables
    worker_bytes: int

    def run(self, source: str, workers: int, n_processes: int = 1) -> Measured:
        """Convert a file with `workers` workers, or several times at once."""
        own = _COORDINATOR_BYTES if workers > 1 else 0
        command = [sys.executable, "-m", "streamcd", "convert", source, "", "--force", "--quiet", "--json"]
        command += ["--workers", str(workers), "--memory", str(workers * self.worker_bytes + own)]
        command += [] if source.endswith(".txt") else self.options
        commands = [
            [str(self.scratch / f"data-{k}") if word == "" else word for word in command]
            for k in range(n_processes)
        ]
        seconds, measured, texts = _run(commands)
        said = [json.loads(text) for text in texts]
        return Measured(seconds, *measured, said[0]["fingerprint"], said[0]["n_entries"])


def _run(commands: list[list[str]]) -> tuple[float, tuple[float, int], list[str]]:
    """Run commands side by side: seconds, processor seconds and largest peak, and what each printed."""
    started = time.perf_counter()
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    processor, peak, texts = 0.0, 0, []
    for process, command in zip(running, commands, strict=True):
        assert process.stdout is not None
        texts.append(process.stdout.read())
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise click.ClickException(f"failed: {' '.join(command)}")
        processor += usage.ru_utime + usage.ru_stime
        peak = max(peak, 1024 * usage.ru_maxrss)
    return time.perf_counter() - started, (processor, peak), texts


def read_by(program: str, source: str, threads: int = 1) -> Measured:
    """Read a file by a program of Python, which prints its seconds."""
    _, measured, texts = _run([[sys.executable, "-c", program, source, str(threads)]])
    return Measured(float(texts[0]), *measured)


def contestants(
    sources: list[str], workers: list[int], converting: Converting, at_once: bool
) -> dict[tuple[str, str, int], Callable[[], Measured]]:
    """List what is measured, by kind, file and number of workers."""
    found: dict[tuple[str, str, int], Callable[[], Measured]] = {}
    for source in sources:
        for number in workers:
            found["convert", source, number] = partial(converting.run, source, number)
            if at_once:
                found["at once", source, number] = partial(converting.run, source, 1, number)
            if source.endswith(".csv"):
                found["open_csv", source, number] = partial(read_by, _OPEN_CSV, source, number)
        if source.endswith(".txt"):
            found["load_svmlight_file", source, 1] = partial(read_by, _LOAD_SVMLIGHT, source)
    return found


def ratios(medians: dict[tuple[str, str, int], float]) -> list[str]:
    """Compare conversions with the other readers."""
    lines = []
    converted = [(source, number) for kind, source, number in medians if kind == "convert"]
    texts = [source for kind, source, _ in medians if kind == "convert" and source.endswith(".txt")]
    for source, number in converted:
        others = {("open_csv", source, number): f"open_csv with {number} threads"}
        others["load_svmlight_file", source, 1] = "load_svmlight_file"
        if source.endswith(".parquet") and texts:
            others["convert", texts[0], number] = f"libsvm text with {number} workers"
        for other, name in others.items():
            if other in medians:
                ratio = medians[other] / medians["convert", source, number]
                lines.append(f"{Path(source).name}, {number} workers: {ratio:.2f} times the rate of {name}")
    return lines


@click.command(help=__doc__.split("\n")[0])
@click.argument("sources", nargs=-1, required=True)
@click.option("--workers", default="1,2", show_default=True, metavar="N,N")
@click.option("--memory", default="400MB", show_default=True, help="Of a worker.")
@click.option("--label", default="")
@click.option("--missing", default="indicator", show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--alone", is_flag=True, help="Leave the other readers out.")
@click.option("--at-once", is_flag=True, help="Run as many conversions side by side too.")
@click.option("--records", type=click.Path(path_type=Path), help="Append the measurements as JSON lines.")
def main(
    sources: tuple[str, ...],
    workers: str,
    memory: str,
    label: str,
    missing: str,
    rounds: int,
    alone: bool,
    at_once: bool,
    records: Path | None,
) -> None:
    options = ("--label", label, "--missing", missing) if label else ()
    with tempfile.TemporaryDirectory(dir=Path(sources[0]).resolve().parent) as scratch:
        converting = Converting(Path(scratch), options, parse_size(memory))
        measured: dict[tuple[str, str, int], list[Measured]] = {}
        for _ in range(rounds):
            for what, measure in contestants(
                list(sources), [int(number) for number in workers.split(",")], converting, at_once
            ).items():
                if alone and what[0] not in ("convert", "at once"):
                    continue
                measured.setdefault(what, []).append(measure())
                if records is not None:
                    with records.open("a") as file:
                        print(json.dumps([*what, *measured[what][-1]]), file=file)
    _show(measured)


def _check(measured: dict[tuple[str, str, int], list[Measured]]) -> None:
    """Refuse conversions of a file that differ."""
    fingerprints: dict[str, set[str]] = {}
    for (_, source, _), figures in measured.items():
        fingerprints.setdefault(source, set()).update(f.fingerprint for f in figures if f.fingerprint)
    for source, found in fingerprints.items():
        if len(found) > 1:
            raise click.ClickException(f"{source}: the fingerprints differ: {sorted(found)}")


def _show(measured: dict[tuple[str, str, int], list[Measured]]) -> None:
    _check(measured)
    for (kind, source, number), figures in measured.items():
        median: dict[str, Any] = {
            name: statistics.median(getattr(figure, name) for figure in figures)
            for name in ("seconds", "processor_seconds", "n_entries")
        }
        n_bytes = os.path.getsize(source) * (number if kind == "at once" else 1)
        shown = f"{median['seconds']:7.2f} s, {n_bytes / median['seconds'] / 1e6:5.0f} MB/s"
        shown += f", {median['processor_seconds']:6.2f} s of processors"
        if median["n_entries"]:
            shown += f", {median['n_entries'] / median['seconds'] / 1e6:5.1f} M entries/s"
        peak = format_size(max(figure.peak_bytes for figure in figures))
        click.echo(f"{Path(source).name}, {kind}, {number}: {shown}, peak of a process {peak}")
    for name, of in (
        ("seconds", "seconds"),
        ("processor_seconds", "seconds of processors, of whole processes"),
    ):
        medians = {
            what: statistics.median(getattr(figure, name) for figure in figures)
            for what, figures in measured.items()
        }
        for line in ratios(medians):
            click.echo(f"{line}, by {of}")


if __name__ == "__main__":
    main()

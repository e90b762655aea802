"""A training at scale, from text to a certified gap within a budget, killed on the way.

    python -m tools.scale FOLDER --rows 264000,2640000,26400000 --docs docs/benchmark.md

Rows are those of ``make_data.py clicks``: 38 entries each, so the command above has 10, 100 and 1,000 million of them. For
each size the text is made (and kept in FOLDER), converted, and trained by the command line. The last size is trained to
``--tol`` and killed with SIGKILL ``--kills`` times, each time in the middle of a read, and resumed; the others make a few
passes only, for their entries a second. Peak memory is the largest resident set that the operating system counted of any
of the processes.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from streamcd.core.memory_budget import format_size
from tools.marked_section import replace_section

N_FIELDS = 38
READS_BETWEEN_KILLS = 2
_POLL_SECONDS = 0.02
_PART_ROWS = 6_600_000


@dataclass
class Cost:
    """Cost of a step: of all its processes, those that were killed included."""

    seconds: float = 0.0
    processor_seconds: float = 0.0
    peak_bytes: int = 0
    answer: dict[str, Any] = field(default_factory=dict)  # of the last process, from its --json


def run(cost: Cost, *words: str | Path, killed_at: tuple[Path, int] | None = None) -> None:
    """Run a command of streamcd, and kill it in the read after the log at ``killed_at[0]`` has ``killed_at[1]`` lines."""
    started = time.monotonic()
    command = [sys.executable, "-m", "streamcd", *map(str, words), "--json", "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    if killed_at is not None:
        _kill_in_the_middle(process, *killed_at)
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    cost.seconds += time.monotonic() - started
    cost.processor_seconds += usage.ru_utime + usage.ru_stime
    cost.peak_bytes = max(cost.peak_bytes, usage.ru_maxrss * 1024)
    if process.returncode not in (0, -9 if killed_at else 0):
        raise click.ClickException(f"{' '.join(command)}: exit status {process.returncode}")
    if printed:
        cost.answer = json.loads(printed)


def _kill_in_the_middle(process: subprocess.Popen[bytes], log: Path, n_lines: int) -> None:
    # WNOWAIT leaves the status, and the usage, of a process that has ended to wait4
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        reads = log_lines(log)
        if len(reads) >= n_lines:
            time.sleep(reads[-1]["seconds"]["total"] / 2)
            process.kill()
            return
        time.sleep(_POLL_SECONDS)


def log_lines(log: Path) -> list[dict[str, Any]]:
    """List the reads of a log; a line that is still being written is left out."""
    text = log.read_text() if log.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def make_text(folder: Path, n_rows: int) -> list[Path]:
    """Make the text in parts, where it is not there."""
    parts = []
    for first in range(0, n_rows, _PART_ROWS):
        here = min(_PART_ROWS, n_rows - first)
        part = folder / f"clicks-{first}-{here}.txt"
        if not part.exists():
            made = part.with_suffix(".part")
            maker = Path(__file__).with_name("make_data.py")
            shape = ["clicks", "--rows", str(here), "--first-row", str(first), "--as", "text"]
            subprocess.run([sys.executable, maker, *shape, made], check=True)
            made.rename(part)
        parts.append(part)
    return parts


@dataclass
class Size:
    """What was found for a number of rows."""

    n_rows: int
    text_bytes: int
    convert: Cost
    train: Cost
    reads: list[dict[str, Any]]
    n_kills: int

    @property
    def n_entries(self) -> int:
        """Entries of the data set."""
        return self.n_rows * N_FIELDS

    @property
    def entries_a_second(self) -> float:
        """Entries a second of a training pass, from its second read on, before rows are shrunk."""
        reads = [read for read in self.reads if read["kind"] == "train"][1:5]
        return self.n_entries / statistics.median(read["seconds"]["total"] for read in reads)


def measure(
    folder: Path, n_rows: int, memory: str, loss: str, tol: float, n_kills: int, max_passes: int | None
) -> Size:
    """Make, convert and train the rows; where `max_passes` is given, that many passes only."""
    parts = make_text(folder, n_rows)
    dataset, trained = folder / f"{n_rows}.dataset", folder / f"{n_rows}.run"
    for place in (dataset, trained):
        shutil.rmtree(place, ignore_errors=True)
    convert, train = Cost(), Cost()
    run(convert, "convert", *parts, dataset, "--memory", memory)
    options = ["--loss", loss, "--memory", memory, "--tol", f"{tol:g}"]
    options += ["--max-passes", str(max_passes)] if max_passes else []
    begin: list[str | Path] = ["train", dataset, trained, *options]
    for kill in range(1, n_kills + 1):
        run(train, *begin, killed_at=(trained / "log.jsonl", kill * READS_BETWEEN_KILLS))
        begin = ["resume", trained]
    run(train, *begin)
    text_bytes = sum(part.stat().st_size for part in parts)
    return Size(n_rows, text_bytes, convert, train, log_lines(trained / "log.jsonl"), n_kills)


def table(found: list[Size], memory: str, loss: str, tol: float) -> str:
    """Write what was found as Markdown."""
    last = found[-1]
    result, reads = last.train.answer, last.reads
    lines = [
        f"{last.n_entries / 1e6:,.0f} million entries ({last.n_rows:,} rows, {result['n_features']:,} features; "
        f"{format_size(last.text_bytes)} of text), {loss}, C = 1, `--memory {memory}`, killed "
        f"{last.n_kills} times: gap {result['gap']:.2g} after {result['passes']} passes, certified.",
        "",
        "| | seconds | processor seconds | bytes | peak memory |",
        "| --- | --: | --: | --: | --: |",
        _row("convert", last.convert, format_size(last.convert.answer["bytes"]) + " written"),
        _row("train", last.train, format_size(sum(read["bytes_read"] for read in reads)) + " read"),
    ]
    kinds = {"train": "training passes", "certify": "certifying reads"}
    for kind, name in kinds.items():
        chosen = [read for read in reads if read["kind"] == kind]
        stages = {
            key: sum(read["seconds"][key] for read in chosen) for key in ("total", "train", "wait", "state")
        }
        lines.append(
            f"| of it, {len(chosen)} {name} | {stages['total']:,.0f} (solver {stages['train']:,.0f}, waiting for "
            f"entries {stages['wait']:,.0f}, dual variables {stages['state']:,.0f}) | | "
            f"{format_size(sum(read['bytes_read'] for read in chosen))} read | |"
        )
    lines += [
        "",
        "| entries | entries/s of a pass | of it in the solver | convert, entries/s |",
        "| --: | --: | --: | --: |",
    ]
    for size in found:
        solver = statistics.median(
            size.n_entries / read["seconds"]["train"] for read in size.reads if read["kind"] == "train"
        )
        lines.append(
            f"| {size.n_entries / 1e6:,.0f} M | {size.entries_a_second / 1e6:,.0f} M | {solver / 1e6:,.0f} M | "
            f"{size.n_entries / size.convert.seconds / 1e6:,.1f} M |"
        )
    return "\n".join(lines)


def _row(name: str, cost: Cost, n_bytes: str) -> str:
    return (
        f"| {name} | {cost.seconds:,.0f} | {cost.processor_seconds:,.0f} | {n_bytes} | "
        f"{format_size(cost.peak_bytes)} |"
    )


@click.command(help=__doc__.split("\n")[0] if __doc__ else None)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--rows", default="264000,2640000,26400000", show_default=True, help="Sizes, smallest first.")
@click.option("--loss", default="squared_hinge", show_default=True)
@click.option("--memory", default="400MB", show_default=True)
@click.option("--tol", default=1e-3, show_default=True)
@click.option("--kills", default=3, show_default=True, help="Of the last size.")
@click.option("--passes", default=6, show_default=True, help="Of the other sizes.")
@click.option(
    "--docs", type=click.Path(path_type=Path), help="A Markdown page with a marked section to replace."
)
def main(
    folder: Path, rows: str, loss: str, memory: str, tol: float, kills: int, passes: int, docs: Path | None
) -> None:
    """Measure every size, and print the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = [int(number) for number in rows.split(",")]
    found = []
    for n_rows in sizes:
        last = n_rows == sizes[-1]
        found.append(
            measure(folder, n_rows, memory, loss, tol, kills if last else 0, None if last else passes)
        )
        click.echo(f"{n_rows:,} rows: {found[-1].entries_a_second / 1e6:,.0f} M entries/s", err=True)
    text = table(found, memory, loss, tol)
    click.echo(text)
    if docs is not None:
        replace_section(docs, "python -m tools.scale", text)


if __name__ == "__main__":
    main()

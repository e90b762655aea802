"""Seconds a pass: streamcd in memory, streamcd out of core from a cold disk under a cap of memory, and LIBLINEAR.

For comparison, the seconds that the disk alone takes for the bytes of a pass, which no cold pass can beat.

The contestants take turns, round after round, so that a machine whose speed drifts treats them alike; medians and ratios
are printed. Out of core, the page cache is dropped before every round, and the process is put into a control group whose
limit is the memory budget (both need root; otherwise the table says that the disk was warm and the cap not enforced).

    python tools/bench.py DATASET --memory 400MB --rounds 3

Against LIBLINEAR, scikit-learn, Snap ML, Cyanure and Vowpal Wabbit, to levels of the optimum: ``python -m tools.peers``.
Conversions: ``python -m tools.bench_conversion``.
"""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from streamcd.core.memory_budget import format_size, parse_size
from streamcd.dataset.dataset import Dataset, open_dataset
from streamcd.dataset.read_ahead import Ring

_PIECE = 1 << 20
_RESIDENT = "streamcd, in memory"
_STREAMED = "streamcd, out of core"
_LIBLINEAR = "LIBLINEAR, in memory"
_DISK = "the disk alone"


@click.command()
@click.argument("dataset")
@click.option("--loss", type=click.Choice(["squared_hinge", "hinge", "log_loss"]), default="squared_hinge")
@click.option("-C", "cost", type=float, default=1.0, show_default=True)
@click.option("--memory", default="400MB", show_default=True, help="Budget and cap of the run out of core.")
@click.option(
    "--passes", type=int, help="Training passes to time; by default as many as LIBLINEAR makes, or 8."
)
@click.option("--rounds", type=int, default=3, show_default=True)
@click.option("--no-liblinear", is_flag=True, help="Leave LIBLINEAR out.")
@click.option("--json", "as_json", is_flag=True)
def main(
    dataset: str,
    loss: str,
    cost: float,
    memory: str,
    passes: int | None,
    rounds: int,
    no_liblinear: bool,
    as_json: bool,
) -> None:
    """Time passes over DATASET."""
    data = open_dataset(dataset)
    plenty = str(4_000_000_000 + 3 * data.n_entries * data.entry_bytes)
    seconds: dict[str, list[float]] = {_RESIDENT: [], _STREAMED: [], _DISK: []}
    if not no_liblinear:
        seconds[_LIBLINEAR] = []
    _train(dataset, loss, cost, plenty, 1)  # compiles the kernels, so that no round does
    if passes is None:  # the same number for both, because shrinking makes later passes shorter
        passes = 8 if no_liblinear else _liblinear(dataset, loss, cost)[1]
    remarks = {f"{passes} passes"}
    for _ in range(rounds):
        seconds[_RESIDENT].append(_train(dataset, loss, cost, plenty, passes)["seconds_a_pass"])
        with _memory_cap(parse_size(memory)) as group:
            remarks.add("disk cold" if _drop_page_cache() else "disk warm (not root)")
            remarks.add("cap enforced" if group else "cap not enforced (no control group)")
            outcome = _train(dataset, loss, cost, memory, passes, group)
        seconds[_STREAMED].append(outcome["seconds_a_pass"])
        seconds[_DISK].append(_disk_alone(data))
        if not no_liblinear:
            seconds[_LIBLINEAR].append(_liblinear(dataset, loss, cost)[0])
    _show(data, memory, seconds, sorted(remarks), outcome, as_json)


def _show(
    data: Dataset,
    memory: str,
    seconds: dict[str, list[float]],
    remarks: list[str],
    streamed: Any,
    as_json: bool,
) -> None:
    medians = {name: statistics.median(figures) for name, figures in seconds.items()}
    if as_json:
        click.echo(json.dumps({"seconds_a_pass": seconds, "median": medians, "remarks": remarks, **streamed}))
        return
    size = format_size(data.n_entries * data.entry_bytes)
    click.echo(
        f"{data.path.name}: {data.n_rows:,} rows, {data.n_features:,} features, {data.n_entries:,} entries, {size}"
    )
    click.echo(f"out of core: budget {memory}, peak {format_size(streamed['peak'])}, {', '.join(remarks)}")
    peer = next(name for name in (_LIBLINEAR, _DISK, _STREAMED) if name in medians)
    for name, figures in seconds.items():
        shown = ", ".join(f"{figure:.3f}" for figure in figures)
        rate = data.n_entries / medians[name] / 1e6
        click.echo(
            f"  {name:24} {medians[name]:7.3f} s a pass ({shown}), {rate:4.0f} M entries/s, "
            f"{medians[name] / medians[peer]:.2f} of {peer.split(',')[0]}'s time"
        )


def _train(
    dataset: str, loss: str, cost: float, memory: str, passes: int, group: Path | None = None
) -> dict[str, float]:
    """Seconds a training pass, without the first (which loads, or warms up), and the peak memory."""
    with tempfile.TemporaryDirectory(dir=Path(dataset).resolve().parent) as scratch:
        run = Path(scratch) / "run"
        command = [sys.executable, "-m", "streamcd", "train", dataset, str(run), "--json", "--quiet"]
        command += [
            "--loss",
            loss,
            "-C",
            str(cost),
            "--memory",
            memory,
            "--tol",
            "0",
            "--max-passes",
            str(passes),
        ]
        join = None if group is None else (lambda: (group / "cgroup.procs").write_text(str(os.getpid())))
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, preexec_fn=join)
        log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
        figures = [line["seconds"]["total"] for line in log if line["kind"] == "train"]
        result = json.loads(done.stdout)
    return {
        "seconds_a_pass": statistics.mean(figures[1:] or figures),
        "peak": result["peak_memory_bytes"],
        "bytes_read": result["bytes_read"],
    }


def _disk_alone(data: Dataset) -> float:
    """Seconds to read the entries' files past the page cache, in pieces of a megabyte, in random order."""
    pieces = [
        (path, start, min(_PIECE, path.stat().st_size - start))
        for path in sorted(Path(data.path, "entries").iterdir())
        for start in range(0, path.stat().st_size, _PIECE)
    ]
    random.Random(len(pieces)).shuffle(pieces)
    started = time.perf_counter()
    ahead = Ring()
    for piece in pieces:
        ahead.announce(*piece)
    for path, start, _ in pieces:
        if ahead.take(path, start) is None:
            raise click.ClickException(f"{path}: the file system does not read past the page cache")
    ahead.close()
    return time.perf_counter() - started


def _drop_page_cache() -> bool:
    try:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


@contextmanager
def _memory_cap(n_bytes: int) -> Iterator[Path | None]:
    """Control group with this memory limit, page cache included; None where it cannot be made."""
    group: Path | None = None
    for root, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        candidate = root / f"streamcd-bench-{os.getpid()}"
        try:
            candidate.mkdir()
            (candidate / limit).write_text(str(n_bytes))
            group = candidate
            break
        except OSError:
            if candidate.exists():
                candidate.rmdir()
    try:
        yield group
    finally:
        if group is not None:
            group.rmdir()


_LIBLINEAR_PROGRAM = """
import sys, time
import numpy as np, scipy.sparse as sp
from liblinear.liblinearutil import parameter, problem, train
from streamcd.dataset.dataset import open_dataset

data = open_dataset(sys.argv[1])
feature = np.empty(data.n_entries, dtype=np.int32)
value = np.empty(data.n_entries, dtype=np.float64)
label = np.empty(data.n_rows)
count = np.empty(data.n_rows, dtype=np.int64)
for chunk in range(data.n_chunks):
    rows = slice(data.row_start[chunk], data.row_start[chunk + 1])
    entries = slice(data.entry_start[chunk], data.entry_start[chunk + 1])
    label[rows], count[rows] = data.read_rows(chunk, ("label", "n_entries"))
    feature[entries], value[entries] = data.read_entries(chunk)
indptr = np.concatenate([[0], np.cumsum(count)])
matrix = sp.csr_matrix((value, feature, indptr), shape=(data.n_rows, data.n_features))
prepared = problem(label, matrix)
del feature, value, matrix
started = time.perf_counter()
train(prepared, parameter(sys.argv[2]))
print("seconds", time.perf_counter() - started)
"""


def _liblinear(dataset: str, loss: str, cost: float) -> tuple[float, int]:
    """Seconds an iteration of LIBLINEAR's dual solver at its default tolerance, and the iterations it made."""
    solver = {"squared_hinge": 1, "hinge": 3, "log_loss": 7}[loss]
    command = [sys.executable, "-c", _LIBLINEAR_PROGRAM, dataset, f"-s {solver} -c {cost}"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    iterations = [int(found) for found in re.findall(r"#iter = (\d+)", output)]
    found = re.search(r"^seconds (\S+)", output, re.MULTILINE)
    if not iterations or found is None:
        raise click.ClickException(f"LIBLINEAR printed no count of iterations:\n{output}")
    return float(found.group(1)) / sum(iterations), max(iterations)


if __name__ == "__main__":
    main()

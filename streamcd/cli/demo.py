"""``streamcd demo``: data larger than the memory allowed, a training that is killed and resumed, and the proof in a table.

Every step is a command in a process of its own, as a user would run it, so users get the figures measured.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..core.errors import EnvironmentFailure, StreamcdError, UsageError, file_named, format_seconds
from ..core.memory_budget import format_size, parse_size
from ..core.options import Listener
from ..core.parallel import Pool
from .synthetic import BLOCK_ROWS, write_text_like


@dataclass(frozen=True)
class DemoSize:
    """Size of the synthetic data, and options of its training."""

    train_blocks: int = 276  # of `BLOCK_ROWS` rows
    test_blocks: int = 4
    n_features: int = 100_000
    entries_per_row: int = 75
    memory: str = "335MB"  # budget of every step
    tol: float = 1e-3  # relative gap to reach
    checkpoint_every: float = 0.5  # seconds


def result_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return names and values of a demo's result for the table."""
    seconds = {name: format_seconds(value) for name, value in result["seconds"].items()}
    names = ("text", "dataset", "decoded", "budget", "peak_memory")
    text, dataset, decoded, budget, peak = (format_size(result[f"{name}_bytes"]) for name in names)
    within = "within" if result["peak_memory_bytes"] <= result["budget_bytes"] else "ABOVE"
    shape = f"{result['n_rows']:,} rows × {result['n_features']:,} features, {result['n_entries']:,} entries"
    whole = f"{result['passes']} passes in {seconds['train']}, {format_size(result['bytes_read'])} read"
    return [
        ("data", shape),
        ("text", f"{text}, made in {seconds['make']}"),
        ("dataset", f"{dataset}, converted in {seconds['convert']}; entries decoded: {decoded}"),
        ("memory budget", budget),
        ("peak memory of training", f"{peak}, {within} the budget"),
        ("uninterrupted training", f"{whole}; relative gap {result['gap']:.2g}"),
        (
            "second training",
            f"killed with SIGKILL in pass {result['killed_in_pass']}, after {seconds['killed']}",
        ),
        ("resumed", f"to pass {result['passes_after_resume']}, in {seconds['resume']}"),
        ("weights of the two", "equal, bit for bit" if result["weights_equal"] else "DIFFERENT"),
        ("accuracy", f"{100 * result['accuracy']:.2f} % on {result['test_rows']:,} rows held out"),
        ("all in all", seconds["total"]),
    ]


def write_example(folder: str, listener: Listener) -> dict[str, Any]:
    """Write two small files of synthetic, text-like libsvm data to a new directory, for first steps."""
    path = Path(folder)
    if path.exists():
        raise UsageError(f"{path} exists; name another directory")
    path.mkdir()
    made = {"n_features": 5_000, "entries_per_row": 40, "seed": 0}
    try:
        for name, first_row, n_rows in (("train.txt", 0, 8_000), ("test.txt", 8_000, 2_000)):
            with file_named(path / name):
                write_text_like(path / name, first_row=first_row, n_rows=n_rows, **made)
            listener.message(f"{path / name}: {n_rows:,} rows")
    except BaseException:  # Ctrl-C, for one
        shutil.rmtree(path, ignore_errors=True)
        raise
    return {"train": str(path / "train.txt"), "test": str(path / "test.txt")}


def run_demo(keep: str | None, listener: Listener, size: DemoSize) -> dict[str, Any]:
    """Make data, convert, train, kill, resume, compare, evaluate; always clean up. Returns the command's JSON object.

    Files are made, and kept, in the directory `keep`, which must be empty; by default in a temporary one that is removed.
    """
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="streamcd-demo-", ignore_cleanup_errors=True) as directory:
            return _Demo(Path(directory), size, listener).run()
    path = Path(keep)
    path.mkdir(parents=True, exist_ok=True)
    if any(path.iterdir()):
        raise UsageError(f"{path} holds files already; name an empty directory with --keep")
    return _Demo(path, size, listener).run()


class _Demo:
    """Steps of the demo in order, and their results."""

    def __init__(self, directory: Path, size: DemoSize, listener: Listener) -> None:
        self.directory = directory
        self.size = size
        self.listener = listener
        self.seconds: dict[str, float] = {}

    def run(self) -> dict[str, Any]:
        """Go through all steps; the run that is killed half-way does not end."""
        size = self.size
        memory = size.memory
        budgeted = ("--memory", memory)
        train = ("--tol", str(size.tol), "--checkpoint-every", f"{size.checkpoint_every}s", *budgeted)
        with self._step("total"):
            with self._step("make"):
                text_bytes = self._make_text()
            message = f"converts it within {memory}"
            dataset = self._command("convert", message, "train", "data", *budgeted)
            message = f"trains within {memory}, uninterrupted"
            whole = self._command("train", message, "data", "run-whole", *train)
            with self._step("killed"):
                killed_in_pass = self._train_and_kill(whole["passes"], "data", "run-killed", *train)
            resumed = self._command("resume", "resumes it", "run-killed")
            message = "evaluates on rows held out"
            evaluation = self._command("evaluate", message, "test.libsvm", "run-killed", *budgeted)
        budget = parse_size(memory)
        peak = max(whole["peak_memory_bytes"], resumed["peak_memory_bytes"])
        models = (self.directory / name / "model" for name in ("run-whole", "run-killed"))
        weights_equal = len({next(model.glob("weights.np?")).read_bytes() for model in models}) == 1
        converged = whole["converged"] and resumed["converged"]
        return {
            "ok": weights_equal and converged and peak <= budget,
            **{name: dataset[name] for name in ("n_rows", "n_features", "n_entries")},
            "text_bytes": text_bytes,
            "dataset_bytes": dataset["bytes"],
            "decoded_bytes": dataset["n_entries"] * 8,
            "budget_bytes": budget,
            "peak_memory_bytes": peak,
            **{name: whole[name] for name in ("passes", "gap", "bytes_read")},
            "converged": converged,
            "killed_in_pass": killed_in_pass,
            "passes_after_resume": resumed["passes"],
            "weights_equal": weights_equal,
            "test_rows": evaluation["n_rows"],
            "accuracy": evaluation["accuracy"],
            "seconds": self.seconds,
        }

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        """Record the seconds of a step."""
        started = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - started

    def _command(self, command: str, message: str, *arguments: str) -> dict[str, Any]:
        """Carry out a command, and return its JSON object."""
        self.listener.message(f"demo: {message}")
        with self._step(command), self._process(command, *arguments) as process:
            output, _ = process.communicate()
        if process.returncode:
            raise EnvironmentFailure(f"demo: 'streamcd {command}' ended with status {process.returncode}")
        return json.loads(output)

    def _make_text(self) -> int:
        """Write training text in parallel parts, and the test text; returns the bytes of the first."""
        size = self.size
        n_parts = max(1, min(os.cpu_count() or 1, 8, size.train_blocks))
        self.listener.message(f"demo: makes text, {n_parts} processes")
        (self.directory / "train").mkdir()
        bounds = [size.train_blocks * part // n_parts for part in range(n_parts + 1)]
        paths = [self.directory / "train" / f"part-{part}.libsvm" for part in range(n_parts)]
        bounds.append(size.train_blocks + size.test_blocks)
        jobs = [
            (path, (stop - start) * BLOCK_ROWS, size.n_features, size.entries_per_row, 0, start * BLOCK_ROWS)
            for path, (start, stop) in zip(
                [*paths, self.directory / "test.libsvm"], pairwise(bounds), strict=True
            )
        ]
        with Pool(n_parts, self.listener, __name__) as workers:
            workers.run(write_text_like, jobs, phase="make", unit="parts")
        return sum(path.stat().st_size for path in paths)

    def _train_and_kill(self, n_passes: int, *arguments: str) -> int:
        """Begin the same training again, and kill it half-way; returns the pass in which it was killed."""
        self.listener.message("demo: trains once more, to be killed half-way")
        log = self.directory / arguments[1] / "log.jsonl"  # it begins with the first checkpoint
        with self._process("train", *arguments) as process:
            while process.poll() is None:
                time.sleep(0.02)
                n_done = log.read_text().count('"kind": "train"') if log.exists() else 0
                if n_done and n_done >= n_passes // 2:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    killed_in = min(n_done + 1, n_passes)  # it may already have been writing its model
                    self.listener.message(f"demo: killed in pass {killed_in}")
                    return killed_in
        raise StreamcdError("demo: the training that was to be killed ended before half of its passes")

    @contextmanager
    def _process(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, "-m", "streamcd", *arguments, "--json", "--quiet"]
        # the running package, installed or not
        paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
        process = subprocess.Popen(
            command, cwd=self.directory, stdout=subprocess.PIPE, text=True, env=environment
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

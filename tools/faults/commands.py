"""Commands of streamcd in forked processes, and what is on disk after them."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .injection import FaultyFiles
from .recording import Recorder

STATUSES = (0, 1, 2, 130, 143)
TRACEBACK = 70
TIMEOUT_SECONDS = 300.0
"""A hang, also where much other work goes on: 60 s were too few for half a second of work on a machine with a load of 45."""


@dataclass(frozen=True)
class Ended:
    """End of a command: its exit status, negative for a signal, None where it had to be stopped."""

    status: int | None
    stdout: str
    stderr: str
    operations: int = 0

    @property
    def is_ugly(self) -> bool:
        """True for a traceback, an unexpected signal, an unknown status, or a hang."""
        return self.status not in STATUSES or "Traceback" in self.stderr

    @property
    def answer(self) -> dict[str, Any]:
        return dict(json.loads(self.stdout)) if self.stdout.strip() else {}

    def __str__(self) -> str:
        lines = self.stderr.strip().splitlines() or ["(nothing said)"]
        return f"exit {self.status}: {lines[-1][:160]}"


def run_command(place: Path, *arguments: object, faults: FaultyFiles | Recorder | None = None) -> Ended:
    """Run a command of streamcd in a directory, in a process group of its own."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)  # not a session, whose share of the processors is its own, whatever `nice`
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            os._exit(_carry_out(place, [str(argument) for argument in arguments], faults))
        status = _wait(child)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return Ended(status, texts[0], texts[1], faults.count if faults else 0)


def _carry_out(place: Path, arguments: list[str], faults: FaultyFiles | Recorder | None) -> int:
    from streamcd.cli.commands import cli

    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", errors="backslashreplace")
    os.chdir(place)
    if arguments[0] in ("train", "resume") and "--workers" in arguments:
        _simulate_workers()
    status = 0
    try:
        if faults is not None:
            faults.install()
        cli.main(arguments)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        status = TRACEBACK
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return status


def _simulate_workers() -> None:
    """Let this process make the rounds of workers, to the same bits: those of dask take seconds to start."""
    from streamcd.cluster import dask_engine

    from ..simulated_cluster import Simulation

    dask_engine.open_client = lambda _, n_workers, *__: nullcontext(Simulation(n_workers))  # type: ignore[assignment]


def _wait(child: int) -> int | None:
    until, pause = time.monotonic() + TIMEOUT_SECONDS, 0.001
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(0.02, 1.3 * pause)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def files_of(path: Path) -> Iterator[Path]:
    """Files of a directory, or the file itself, in order; locks left out."""
    paths = [path] if path.is_file() else sorted(path.rglob("*"))
    return (found for found in paths if found.is_file() and not found.name.endswith("lock"))


def contents(path: Path) -> tuple[object, ...] | None:
    """Return what must not change, to the bit, in a dataset, column layout, run, model or file; None where it is missing."""
    if path.is_file():
        return (path.read_bytes(),)
    manifest = path / "manifest.json"
    if manifest.exists():
        columns = path / "columns" / "manifest.json"
        return tuple(
            json.loads(file.read_bytes())["fingerprint"] for file in (manifest, columns) if file.exists()
        )
    weights = [file for file in files_of(path) if file.stem == "weights"] if path.is_dir() else []
    weights = [file for file in weights if file.with_name("model.json").exists()]  # written last
    return tuple(file.read_bytes() for file in weights) or None

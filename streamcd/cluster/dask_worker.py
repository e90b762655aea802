"""Rounds on dask workers, on the worker's side: a worker keeps a partition between rounds, which can be made again."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .._version import __version__
from ..core.errors import UsageError
from ..core.memory_budget import format_size
from ..stream.slot_store import shard_file
from .kinds import Part, make_part
from .memory import WORKER_BYTES
from .partition import Partition
from .records import Piece, Place, read_batch, write_batch
from .rounds import RoundRequest, WorkersLost, WorkerSpec
from .shards import open_same

_REPORT_SECONDS = 0.2  # between a worker's reports of progress


class Seat:
    """A worker's part of a training between its rounds: one partition.

    A result of dask's, which lives on the worker as long as the client wants it. A copy is empty. `folder` is the worker's
    own, for dual variables; without one they are in the run's.
    """

    def __init__(self, spec: WorkerSpec, folder: str = "") -> None:
        self.spec, self.folder, self.lock = spec, folder, threading.Lock()
        if folder:
            self.spec = replace(spec, folder=folder)
        self.partition: Part | None = None
        self.carried_out: tuple[str, list[list[int]]] = "", []  # shards of the parts of a round

    def __reduce__(self) -> tuple[Any, ...]:
        return Seat, (self.spec, self.folder)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.clear()
            if self.folder:
                shutil.rmtree(self.folder, ignore_errors=True)

    def take(self, shards: list[int]) -> Part:
        """Return the partition, which is made anew where it has no room for these shards."""
        if self.partition is None or not self.partition.has_room_for(shards):
            self.clear()  # its memory is needed for the new one
            self.partition = make_part(self.spec, shards)
        elif shards != self.partition.shards:
            self.partition.assign(shards)
        return self.partition

    def run(self, shards: list[int], request: RoundRequest, w: np.ndarray, *reporting: Any) -> Any:
        """Carry out a part of a round: `Partition.run` or `SumPartition.run`."""
        self._check_folder(request, shards)
        result = self.take(shards).run(request, w, *reporting)
        if self.carried_out[0] != request.token:
            self.carried_out = request.token, []
        self.carried_out[1].append(shards)
        return result

    def _check_folder(self, request: RoundRequest, shards: list[int]) -> None:
        """Remove the dual variables of other rounds; those that this one begins with have to be there."""
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)  # of a copy, it went with the first one
        for entry in folder.iterdir():
            if entry.name not in (request.committed, request.token):
                shutil.rmtree(entry, ignore_errors=True)
        committed = folder / request.committed
        if request.committed and not all(shard_file(committed, shard).exists() for shard in shards):
            raise WorkersLost("a worker had lost the dual variables of its shards")

    def clear(self) -> None:
        if self.partition is not None:
            self.partition.close()
        self.partition = None


def open_seat(version: str, spec: bytes) -> Seat:
    """Make a worker's seat from a pickled `WorkerSpec`; an error says why the worker cannot take part."""
    from distributed import get_worker

    if __version__ != version:
        raise UsageError(f"it has streamcd {__version__}, the coordinating process {version}")
    given = pickle.loads(spec)
    open_same(given).close()
    _check_memory(given.memory + WORKER_BYTES)
    folder = Path(get_worker().local_directory) / f"streamcd-{os.urandom(8).hex()}"
    folder.mkdir(parents=True)
    return Seat(given, str(folder))


def _check_memory(budget: int) -> None:
    """Compare the budget with dask's memory limit, near which it gives up results, pauses and then kills a worker."""
    from distributed import get_worker

    memory = getattr(get_worker(), "memory_manager", None)
    limit, share = (
        getattr(memory, "memory_limit", None),
        getattr(memory, "memory_spill_fraction", None) or 1.0,
    )
    if limit and budget > limit * share:
        raise UsageError(
            f"dask limits it to {format_size(limit)} and empties it at {100 * share:.0f} % of that, --memory is "
            f"{format_size(budget)}; start it with 'dask worker --memory-limit 0', or give a smaller --memory"
        )


def run_round(
    seat: Seat,
    shards: list[int],
    request: RoundRequest,
    w: np.ndarray,
    topic: str,
) -> Any:
    """Carry out a worker's part of a round, and report its progress to a topic."""
    from distributed import get_worker

    with seat.lock:  # an abandoned attempt may still be at work
        try:
            report = _reporter(topic, request.token)
            w = np.array(w)  # what is received may be read-only, for which kernels would be compiled again
            return seat.run(shards, request, w, report, get_worker().address)
        except BaseException:
            seat.clear()  # its rows may be half updated
            raise


def _reporter(topic: str, token: str) -> Callable[[int], None]:
    """Make a function that reports visited entries to the coordinating process, and so that the worker is alive.

    It ends a task that is no longer wanted: its round was abandoned, or its client is gone.
    """
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()
    waiting, last = 0, time.monotonic()
    worker.log_event(topic, {"worker": worker.address, "token": token, "entries": 0})

    def report(n_entries: int) -> None:
        nonlocal waiting, last
        task = worker.state.tasks.get(key)
        if task is None or task.state not in ("executing", "long-running"):
            raise WorkersLost("the round was abandoned")
        waiting += n_entries
        if time.monotonic() - last >= _REPORT_SECONDS:
            worker.log_event(topic, {"worker": worker.address, "token": token, "entries": waiting})
            waiting, last = 0, time.monotonic()

    return report


def slopes(seat: Seat, shards: list[int], request: RoundRequest, eta: np.ndarray) -> np.ndarray:
    """Return `Partition.slopes` after `run_round`."""
    with seat.lock:
        token, parts = seat.carried_out
        if token != request.token or shards not in parts:
            raise WorkersLost("a worker had lost its partition")
        part = seat.take(shards)
        assert isinstance(part, Partition)
        return part.slopes(request, eta)


def read_records(
    seat: Seat, token: str, shards: Sequence[int], place: Place
) -> tuple[list[Piece], Place | None]:
    """Read pieces of the dual variables that a worker has of a round, `records.read_batch`."""
    with seat.lock:
        try:
            return read_batch(Path(seat.folder, token), shards, place)
        except FileNotFoundError:
            raise WorkersLost("a worker had lost the dual variables of its shards") from None


def write_records(seat: Seat, token: str, pieces: Sequence[Piece]) -> None:
    """Write pieces of the dual variables with which a worker begins a round."""
    with seat.lock:
        write_batch(Path(seat.folder, token), pieces)


def pass_on(w: np.ndarray) -> np.ndarray:
    """Return `w`: as a task of its own, this moves it from worker to worker."""
    return w

"""Rounds on dask workers, on the worker's side: a worker keeps its part between rounds, which can be made again."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .._version import __version__
from ..core.errors import UsageError
from ..core.memory_budget import format_size
from .memory import WORKER_BYTES
from .partition import SumPartition, make_part, open_same
from .rounds import Response, RoundRequest, WorkersLost, WorkerSpec

_REPORT_SECONDS = 0.2  # between a worker's reports of progress


class Seat:
    """A worker's part of a training between its rounds, with files in a folder of its own in the worker's.

    A result of dask's, which lives on the worker as long as the client wants it. A copy is empty.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self._lock = threading.Lock()
        self._part: SumPartition | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Seat, (self.spec,)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._clear()

    @contextmanager
    def taken(self) -> Iterator[Any]:
        """Provide the part, to one task at a time: an abandoned attempt may still be at work."""
        from distributed import get_worker

        with self._lock:
            if self._part is None:
                folder = Path(get_worker().local_directory) / f"streamcd-{os.urandom(8).hex()}"
                self._part = make_part(self.spec, folder)
            try:
                yield self._part
            except BaseException:
                self._clear()  # its rows may be half updated
                raise

    def _clear(self) -> None:
        if self._part is not None:
            self._part.close()
            shutil.rmtree(self._part.folder, ignore_errors=True)
        self._part = None


def open_seat(version: str, spec: bytes) -> Seat:
    """Make a worker's seat from a pickled `WorkerSpec`; an error says why the worker cannot take part."""
    if __version__ != version:
        raise UsageError(f"it has streamcd {__version__}, the coordinating process {version}")
    given = pickle.loads(spec)
    open_same(given).close()
    # near its own limit dask gives up results, pauses and then kills a worker
    from distributed import get_worker

    budget = given.memory + WORKER_BYTES
    memory = getattr(get_worker(), "memory_manager", None)
    limit = getattr(memory, "memory_limit", None)
    share = getattr(memory, "memory_spill_fraction", None) or 1.0
    if limit and budget > limit * share:
        raise UsageError(
            f"dask limits it to {format_size(limit)} and empties it at {100 * share:.0f} % of that, --memory is "
            f"{format_size(budget)}; start it with 'dask worker --memory-limit 0', or give a smaller --memory"
        )
    return Seat(given)


def run_round(seat: Seat, shards: list[int], request: RoundRequest, w: np.ndarray, topic: str) -> Response:
    """Carry out a worker's part of a round, and report its progress to a topic."""
    from distributed import get_worker

    with seat.taken() as part:
        report = _reporter(topic, request.token)
        # what is received may be read-only, for which kernels would be compiled again
        response: Response = part.run(shards, request, np.array(w), report, get_worker().address)
        return response


def _reporter(topic: str, token: str) -> Callable[[int], None]:
    """Make a function that reports visited entries to the coordinating process, and so that the worker is alive.

    It ends a task that is no longer wanted: its round was abandoned, or its client is gone.
    """
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()
    waiting = 0
    last = time.monotonic()
    worker.log_event(topic, {"worker": worker.address, "token": token, "entries": 0})

    def report(n_entries: int) -> None:
        nonlocal waiting, last
        task = worker.state.tasks.get(key)
        if task is None or task.state not in ("executing", "long-running"):
            raise WorkersLost("the round was abandoned")
        waiting += n_entries
        if time.monotonic() - last >= _REPORT_SECONDS:
            worker.log_event(topic, {"worker": worker.address, "token": token, "entries": waiting})
            waiting = 0
            last = time.monotonic()

    return report


def call_part(seat: Seat, method: str, *arguments: Any) -> Any:
    """Call `receive` of a worker's part before `run_round`, or `slopes` and `step` after it."""
    with seat.taken() as part:
        return getattr(part, method)(*arguments)

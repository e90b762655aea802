"""Rounds on dask workers, on the worker's side: a worker keeps a partition and w between rounds; both can be made again."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._version import __version__
from ..core.errors import UsageError
from ..core.memory_budget import format_size
from .kinds import Part, make_part
from .memory import DASK_BYTES
from .partition import Partition
from .rounds import Change, RoundRequest, WorkersLost, WorkerSpec
from .shards import open_same

_REPORT_SECONDS = 0.2  # between a worker's reports of progress


@dataclass
class SharedWeights:
    """Weights of a round, sent to the workers: all of w, or the rows that differ from a w that every worker holds."""

    version: str  # name of this w
    base: str  # of the w that it changes; empty where it is whole
    change: Change


class Seat:
    """A worker's part of a training between its rounds: one partition, and w.

    A result of dask's, which lives on the worker as long as the client wants it. A copy is empty.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec, self.lock = spec, threading.Lock()
        self.partition: Part | None = None
        self._version, self._w = "", np.empty(0)

    def __reduce__(self) -> tuple[Any, ...]:
        return Seat, (self.spec,)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.clear()

    def take(self, shards: list[int]) -> Part:
        """Return the partition, which is made anew where it has no room for these shards."""
        if self.partition is None or not self.partition.has_room_for(shards):
            self.clear()  # its memory is needed for the new one
            self.partition = make_part(self.spec, shards)
        elif shards != self.partition.shards:
            self.partition.assign(shards)
        return self.partition

    def update_w(self, weights: SharedWeights) -> np.ndarray:
        if not weights.base:
            self._w = np.array(weights.change.values)
        else:
            if self._version not in (weights.base, weights.version):
                raise WorkersLost("a worker had lost the weights of the last round")
            self._w[weights.change.index] = weights.change.values
        self._version = weights.version
        return self._w

    def clear(self) -> None:
        if self.partition is not None:
            self.partition.close()
        self.partition = None


def open_seat(version: str, spec: bytes) -> Seat:
    """Make a worker's seat from a pickled `WorkerSpec`; an error says why the worker cannot take part."""
    if __version__ != version:
        raise UsageError(f"it has streamcd {__version__}, the coordinating process {version}")
    seat = Seat(pickle.loads(spec))
    open_same(seat.spec).close()
    probe = os.path.join(seat.spec.folder, f"probe-{os.urandom(8).hex()}")
    os.mkdir(probe)
    os.rmdir(probe)
    _check_memory(seat.spec.memory + DASK_BYTES)
    return seat


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
    seat: Seat, shards: list[int], request: RoundRequest, weights: SharedWeights, topic: str
) -> Any:
    """Carry out a worker's part of a round, and report its progress to a topic."""
    from distributed import get_worker

    with seat.lock:  # an abandoned attempt may still be at work
        try:
            report = _reporter(topic, request.token)
            w = seat.update_w(weights)
            return seat.take(shards).run(request, w, report, get_worker().address)
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
        if not isinstance(seat.partition, Partition) or seat.partition.shards != shards:
            raise WorkersLost("a worker had lost its partition")
        return seat.partition.slopes(request, eta)


def pass_on(weights: SharedWeights) -> SharedWeights:
    """Return `weights`: as a task of its own, this moves them from worker to worker."""
    return weights

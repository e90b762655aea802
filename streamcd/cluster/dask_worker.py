"""Rounds on dask workers, on the worker's side: a worker caches a partition and w between rounds; both can be made again."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from ..core.errors import StreamcdError
from ..core.memory_budget import format_size
from .block_steps import Change, add_changes
from .engines import WorkersLost
from .memory import DASK_BYTES
from .partition import Partition, RoundRequest, RoundResponse, WorkerSpec, open_same

_ABANDONED_SECONDS = 600.0  # a session silent for longer counts as abandoned
_REPORT_SECONDS = 0.2  # between a worker's reports of progress


@dataclass
class SharedWeights:
    """Weights of a round, sent to the workers: all of w, or the rows that differ from a w that every worker holds."""

    version: str  # name of this w
    base: str  # of the w that it changes; empty where it is whole
    change: Change


@dataclass
class PartialSums:
    """Responses of some workers, in their order, without the changes of w, and the sum of these, which is large."""

    responses: list[RoundResponse]
    change: Change


@dataclass
class _WorkerSession:
    """State of a session between its rounds: one partition, and w."""

    folder: str
    lock: threading.Lock = field(default_factory=threading.Lock)
    partition: Partition | None = None
    version: str = ""
    w: np.ndarray | None = None
    used: float = field(default_factory=time.monotonic)

    def open_partition(self, spec: WorkerSpec, shards: list[int]) -> Partition:
        found = self.partition
        if found is not None and found.shards == shards:
            return found
        same_run = found is not None and found.spec.folder == spec.folder
        if found is not None and same_run and found.has_room_for(shards):
            found.assign(shards)
            return found
        whole = found.whole if found is not None and same_run else None
        del found
        self.clear_partition()  # its memory is needed for the new one
        self.partition = Partition(spec, shards, whole)
        return self.partition

    def update_w(self, weights: SharedWeights) -> np.ndarray:
        if not weights.base:
            self.w = np.array(weights.change.values)
        else:
            if self.w is None or self.version not in (weights.base, weights.version):
                raise WorkersLost("a worker had lost the weights of the last round")
            self.w[weights.change.index] = weights.change.values
        self.version = weights.version
        return self.w

    def clear_partition(self) -> None:
        if self.partition is not None:
            self.partition.close()
        self.partition = None


_sessions_lock = threading.Lock()


def _session(name: str, folder: str) -> _WorkerSession:
    """Return a session by name; several can use a worker at the same time.

    A session that was abandoned, because its client was killed, is closed by the next session of the same run, or by any
    other after `_ABANDONED_SECONDS`.
    """
    with _sessions_lock:
        sessions = _sessions()
        for other in [found for found in sessions if found != name]:
            session = sessions[other]
            abandoned = session.folder == folder or time.monotonic() - session.used > _ABANDONED_SECONDS
            if abandoned and session.partition is not None:
                session.partition.wanted = ""  # a round of it that still runs stops at the next window
            if abandoned and session.lock.acquire(blocking=False):
                session.clear_partition()
                del sessions[other]
        return sessions.setdefault(name, _WorkerSession(folder))


def _sessions() -> dict[str, _WorkerSession]:
    from distributed import get_worker

    sessions: dict[str, _WorkerSession] = get_worker().__dict__.setdefault("_streamcd_sessions", {})
    return sessions


def run_round(
    spec: WorkerSpec, shards: list[int], request: RoundRequest, weights: SharedWeights, topic: str
) -> PartialSums:
    """Carry out a worker's part of a round; `topic` names the session."""
    session = _session(topic, spec.folder)
    if session.partition is not None:
        session.partition.wanted = request.token  # an abandoned attempt stops at its next window
    with session.lock:
        partition = session.open_partition(spec, shards)
        partition.wanted = request.token
        try:
            response = partition.run(request, session.update_w(weights), _reporter(topic, request.token))
        except BaseException:
            session.clear_partition()  # its rows may be half updated
            raise
        finally:
            session.used = time.monotonic()
    change = response.change
    none = Change(None, change.values[:0], change.n_rows)
    return PartialSums([replace(response, change=none)], change)


def add_sums(a: PartialSums, b: PartialSums) -> PartialSums:
    """Add the results of workers that follow those of `a`, and have to be sent to its worker."""
    return PartialSums(a.responses + b.responses, add_changes(a.change, b.change))


def _reporter(topic: str, token: str) -> Callable[[int], None]:
    """Make a function that reports visited entries to the coordinating process, and so that the worker is alive."""
    from distributed import get_worker

    worker = get_worker()
    waiting, last = 0, time.monotonic()
    worker.log_event(topic, {"worker": worker.address, "token": token, "entries": 0})

    def report(n_entries: int) -> None:
        nonlocal waiting, last
        waiting += n_entries
        if time.monotonic() - last >= _REPORT_SECONDS:
            worker.log_event(topic, {"worker": worker.address, "token": token, "entries": waiting})
            waiting, last = 0, time.monotonic()

    return report


def slopes(topic: str, folder: str, shards: list[int], request: RoundRequest, eta: np.ndarray) -> np.ndarray:
    """Return `Partition.slopes` after `run_round`."""
    session = _session(topic, folder)
    with session.lock:
        partition = session.partition
        if partition is None or partition.shards != shards:
            raise WorkersLost("a worker had lost its partition")
        return partition.slopes(request, eta)


def pass_on(weights: SharedWeights) -> SharedWeights:
    """Return `weights`: as a task of its own, this moves them from worker to worker."""
    return weights


def admit(spec: WorkerSpec, version: str) -> str:
    """Return why this worker cannot take part; empty where it can."""
    from .._version import __version__

    if __version__ != version:
        return f"it has streamcd {__version__}, the coordinating process {version}"
    try:
        open_same(spec).close()
        probe = os.path.join(spec.folder, f"probe-{os.urandom(8).hex()}")
        os.mkdir(probe)
        os.rmdir(probe)
    except (StreamcdError, OSError) as error:
        return str(error)
    return _too_little_memory(spec.memory + DASK_BYTES)


def _too_little_memory(budget: int) -> str:
    """Compare the budget with dask's memory limit, near which it pauses and then kills a worker."""
    from distributed import get_worker

    memory = getattr(get_worker(), "memory_manager", None)
    limit, share = getattr(memory, "memory_limit", None), getattr(memory, "memory_pause_fraction", None)
    if not limit or budget <= limit * (share or 1.0):
        return ""
    return (
        f"dask limits it to {format_size(limit)} and pauses it at {100 * (share or 1.0):.0f} % of that, --memory is "
        f"{format_size(budget)}; start it with 'dask worker --memory-limit 0', or give a smaller --memory"
    )


def leave(topic: str) -> None:
    """Close the partition of a session that has ended."""
    with _sessions_lock:
        session = _sessions().pop(topic, None)
    if session is not None and session.lock.acquire(timeout=5.0):
        session.clear_partition()

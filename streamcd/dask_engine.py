"""Rounds on dask workers: who works on which shards, how w goes out and its changes come back, and what happens to losses.

The engine is dask.distributed; nothing of the algorithm is here. Every round is a handful of tasks pinned to workers: `w`
(or the features of it that changed) is passed on from worker to worker in a tree, each works on its own shards, the changes
are added in a tree, and the coordinating process fetches one sum. A worker keeps its partition open between rounds, but
nothing that could not be made again: all state is in the run directory, which every worker must see under the same path.

A round is given up and repeated where a worker goes away, or has not visited a window for as long as the time limit says;
its shards go to the others. Nothing here waits without a limit.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import re
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .block_steps import Change, add_changes, deal_shards
from .engines import Joint, WorkersLost, join_answers
from .errors import EnvironmentFailure, StreamcdError, UsageError
from .memory import format_size
from .partition import DASK_BYTES, Answer, Assignment, Order, Partition, Superseded, open_same
from .progress import Listener

_POLL_SECONDS = 0.2
_LOOK_SECONDS = 1.0  # between looks at which workers the scheduler knows
_ANSWER_SECONDS = 30.0  # for the scheduler to answer
_DASHBOARD_SECONDS = 5.0  # for its page
_LEFT_SECONDS = 600.0  # after which a session that is silent counts as ended
_REPORT_SECONDS = 0.5  # between a worker's words on its progress


# ---------------------------------------------------------------------------------------------------------------------
# In the worker


@dataclass
class Common:
    """The w of a round on its way out: whole, or the rows that changed since another that all workers hold.

    Attributes
    ----------
    version, base : str
        What this w is called, and the one it changes; empty where it is whole.
    index : ndarray of int64 or None
    values : ndarray of float64
    """

    version: str
    base: str
    index: np.ndarray | None
    values: np.ndarray

    @property
    def n_bytes(self) -> int:
        return int(self.values.nbytes + (0 if self.index is None else self.index.nbytes))


@dataclass
class _Desk:
    """What a worker keeps between the rounds of a session: one partition, and w."""

    folder: str
    lock: threading.Lock = field(default_factory=threading.Lock)
    partition: Partition | None = None
    version: str = ""
    w: np.ndarray | None = None
    used: float = field(default_factory=time.monotonic)

    def sit_down(self, assignment: Assignment, parts: list[int]) -> Partition:
        found = self.partition
        if found is not None and found.parts == parts:
            return found
        same_run = found is not None and found.assignment.folder == assignment.folder
        whole = found.whole if found is not None and same_run else None
        del found
        self.clear_partition()  # the other's memory first
        self.partition = Partition(assignment, parts, whole)
        return self.partition

    def take(self, common: Common) -> np.ndarray:
        if not common.base:
            self.w = np.array(common.values)
        else:
            if self.w is None or self.version not in (common.base, common.version):
                raise WorkersLost("a worker had lost the weights of the last round")
            self.w[common.index] = common.values
        self.version = common.version
        return self.w

    def clear_partition(self) -> None:
        if self.partition is not None:
            self.partition.close()
        self.partition = None


_desks_lock = threading.Lock()


def _desk(session: str, folder: str) -> _Desk:
    """The desk of a session: several can use a worker at the same time, and each has its own.

    One that was left without a word, because its client was killed, is cleared by the next session of the same run, or
    by any other after a while.
    """
    with _desks_lock:
        desks = _desks()
        for other in [name for name in desks if name != session]:
            desk = desks[other]
            left = desk.folder == folder or time.monotonic() - desk.used > _LEFT_SECONDS
            if left and desk.partition is not None:
                desk.partition.wanted = ""  # what it may be at work on stops at the next window
            if left and desk.lock.acquire(blocking=False):
                desk.clear_partition()
                del desks[other]
        return desks.setdefault(session, _Desk(folder))


def _desks() -> dict[str, _Desk]:
    from distributed import get_worker

    desks: dict[str, _Desk] = get_worker().__dict__.setdefault("_streamcd_desks", {})
    return desks


def _work(assignment: Assignment, parts: list[int], order: Order, common: Common, topic: str) -> Answer:
    """A worker's share of a round."""
    desk = _desk(topic, assignment.folder)
    if desk.partition is not None:
        desk.partition.wanted = order.token  # an attempt that was given up stops at its next window
    with desk.lock:
        partition = desk.sit_down(assignment, parts)
        partition.wanted = order.token
        try:
            return partition.run(order, desk.take(common), _reporter(topic, order.token))
        except BaseException:
            desk.clear_partition()  # its rows may be half-way
            raise
        finally:
            desk.used = time.monotonic()


def _reporter(topic: str, token: str) -> Callable[[int], None]:
    """Tells the coordinating process how many entries were visited, now and then; a sign of life as well."""
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


def _slopes(session: str, folder: str, parts: list[int], order: Order, eta: np.ndarray) -> np.ndarray:
    desk = _desk(session, folder)
    with desk.lock:
        partition = desk.partition
        if partition is None or partition.parts != parts:
            raise WorkersLost("a worker had lost its partition")
        return partition.slopes(order, eta)


def _pass_on(common: Common) -> Common:
    return common


def _change_of(answer: Answer) -> Change:
    return answer.change


def _without_change(answer: Answer) -> Answer:
    change = answer.change
    return replace(answer, change=Change(None, change.values[:0], change.n_rows))


def _admit(assignment: Assignment, version: str) -> str:
    """Why this worker cannot take part; empty where it can."""
    from . import __version__

    if __version__ != version:
        return f"it has streamcd {__version__}, the coordinating process {version}"
    try:
        open_same(assignment).close()
        probe = os.path.join(assignment.folder, f"probe-{os.urandom(8).hex()}")
        os.mkdir(probe)
        os.rmdir(probe)
    except (StreamcdError, OSError) as error:
        return str(error)
    return _too_little_memory(assignment.memory + DASK_BYTES)


def _too_little_memory(budget: int) -> str:
    """Dask stops giving work to a worker, and ends it, when its own limit comes near: better not to begin."""
    from distributed import get_worker

    memory = getattr(get_worker(), "memory_manager", None)
    limit, share = getattr(memory, "memory_limit", None), getattr(memory, "memory_pause_fraction", None)
    if not limit or budget <= limit * (share or 1.0):
        return ""
    return (
        f"dask limits it to {format_size(limit)} and pauses it at {100 * (share or 1.0):.0f} % of that, --memory is "
        f"{format_size(budget)}; start it with 'dask worker --memory-limit 0', or give a smaller --memory"
    )


def _leave(session: str) -> None:
    """Close the partition of a session that has ended."""
    with _desks_lock:
        desk = _desks().pop(session, None)
    if desk is not None and desk.lock.acquire(timeout=5.0):
        desk.clear_partition()


# ---------------------------------------------------------------------------------------------------------------------
# In the coordinating process


class DaskEngine:
    """Carries rounds out on the workers of a dask client; see `engines.Engine`.

    Parameters
    ----------
    client : distributed.Client
        Not an asynchronous one. Workers may come and go.
    assignment : Assignment
    shard_entries : ndarray of int64, shape (shards,)
    listener : Listener
    timeout : float
        Seconds without a sign of a worker, or without any worker, that are too many.
    run : str
        For messages.
    """

    def __init__(
        self,
        client: Any,
        assignment: Assignment,
        shard_entries: np.ndarray,
        listener: Listener,
        timeout: float,
        run: str,
    ) -> None:
        if getattr(client, "asynchronous", False):
            raise UsageError("expected a client that waits for its results, found an asynchronous one")
        self.client, self.assignment, self.listener = client, assignment, listener
        self.shard_entries, self.timeout, self.run = shard_entries, timeout, run
        self.topic = f"streamcd-{os.urandom(8).hex()}"
        self._events: deque[tuple[float, dict[str, Any]]] = deque()
        self._admissions: dict[str, Any] = {}
        self._refused: dict[str, str] = {}
        self._accepted: set[str] = set()
        self._asked: set[str] = set()  # those that have streamcd, and were asked what they see
        self._owners: dict[str, list[int]] = {}
        self._told: list[str] = []  # who had shards when that was last told
        self._sent: tuple[str, np.ndarray, set[str]] | None = None  # version, w, who has it
        self._started = False
        client.subscribe_topic(self.topic, self._hear)

    def round(self, order: Order, w: np.ndarray, progress: Callable[[int], None]) -> Joint:
        """Let every worker work on its shards; raises `WorkersLost` where one cannot be had."""
        owners = self._deal(order, progress)
        names = list(owners)
        common = self._pack(order.token, w, names)
        self._sent = None  # until all have it
        futures: list[Any] = []
        try:
            with self._losses():
                answers, root = self._submit(order, common, owners, futures)
                self._wait([*answers, root], names, progress, order.token)
                *found, last = self._bounded(lambda: self.client.gather([*answers, root]), names)
                change = last.change if root is answers[0] else last
        finally:
            with contextlib.suppress(Exception):
                self._bounded(lambda: self.client.cancel(futures), (), _ANSWER_SECONDS)
        self._sent = (order.token, w.copy(), set(names))
        return join_answers(names, found, change, common.n_bytes * len(names))

    def slopes(self, order: Order, eta: np.ndarray) -> np.ndarray:
        """Sum of `Partition.slopes`; small."""
        with self._losses():
            futures = [
                self._on(name, _slopes, self.topic, self.assignment.folder, parts, order, eta)
                for name, parts in self._owners.items()
            ]
            self._wait(futures, list(self._owners), lambda n_entries: None, order.token)
            found = self._bounded(lambda: self.client.gather(futures), list(self._owners))
            total: np.ndarray = np.sum(found, axis=0)
        return total

    def close(self) -> None:
        """Let the workers close their files; best effort."""
        with contextlib.suppress(Exception):
            self.client.unsubscribe_topic(self.topic)
        if self.client.status != "running":
            return
        with contextlib.suppress(Exception):
            from distributed import wait

            live = self._live()
            leaving = [
                self._on(name, _leave, self.topic)
                for name in self._admissions
                if name in live and name not in self._refused
            ]
            with self.client.as_current():
                wait(leaving, timeout=10)

    # -- a round ------------------------------------------------------------------------------------------------------

    def _submit(
        self, order: Order, common: Common, owners: dict[str, list[int]], futures: list[Any]
    ) -> tuple[list[Any], Any]:
        """The tasks of a round: answers without changes, and the sum of the changes (one partition: its whole answer)."""
        names = list(owners)
        first = names[0]

        def send() -> Any:
            return self.client.scatter(common, workers=[first], hash=False, timeout=_ANSWER_SECONDS)

        copies = [self._bounded(send, names)]
        futures += copies
        for place, name in enumerate(names[1:], start=1):
            copies.append(self._on(name, _pass_on, copies[(place - 1) // 2]))
        works = [
            self._on(name, _work, self.assignment, parts, order, copy, self.topic)
            for (name, parts), copy in zip(owners.items(), copies, strict=True)
        ]
        futures += copies[1:] + works
        if len(works) == 1:
            return works, works[0]
        answers = [self._on(name, _without_change, work) for name, work in zip(names, works, strict=True)]
        level = [(name, self._on(name, _change_of, work)) for name, work in zip(names, works, strict=True)]
        futures += answers + [change for _, change in level]
        while len(level) > 1:
            sums = []
            for place in range(0, len(level) - 1, 2):
                name, mine = level[place]
                sums.append((name, self._on(name, add_changes, mine, level[place + 1][1])))
            futures += [total for _, total in sums]
            level = sums + level[2 * len(sums) :]
        return answers, level[0][1]

    def _on(self, worker: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """A task for one worker and no other."""
        return self.client.submit(
            function, *arguments, workers=[worker], allow_other_workers=False, pure=False
        )

    def _pack(self, version: str, w: np.ndarray, names: Sequence[str]) -> Common:
        """w, or the rows of it that changed where all workers hold what it was, and that is less to send."""
        if self._sent is not None and set(names) <= self._sent[2]:
            index = np.flatnonzero((w != self._sent[1]).any(axis=1))
            common = Common(version, self._sent[0], index, w[index])
            if 2 * common.n_bytes < w.nbytes:
                return common
        return Common(version, "", None, w)

    def _wait(
        self, futures: list[Any], names: Sequence[str], progress: Callable[[int], None], token: str
    ) -> None:
        """Until all futures are done, an error has come, or workers are lost."""
        from distributed import wait

        begun = time.monotonic()
        heard = dict.fromkeys(names, begun)
        looked = begun
        while True:
            self._check_scheduler()
            try:
                with self.client.as_current():
                    wait(futures, timeout=_POLL_SECONDS)
                done = True
            except TimeoutError:
                done = False
            now = time.monotonic()
            progress(self._visited(heard, token))
            if done or any(future.status == "error" for future in futures):
                return
            if any(future.status in ("cancelled", "lost") for future in futures):
                raise WorkersLost("results were lost with a worker")
            if now - looked >= _LOOK_SECONDS:
                looked = now
                gone = sorted(set(names) - self._live())
                if gone:
                    raise WorkersLost(f"worker {gone[0]} is gone")
                self._give_up_silent(futures, names, heard, now)

    def _bounded(
        self, function: Callable[[], Any], names: Sequence[str], seconds: float | None = None
    ) -> Any:
        """A call of dask that may wait for ever: until one of `names` is gone, or for so long."""
        outcome: list[tuple[bool, Any]] = []

        def call() -> None:
            try:
                outcome.append((True, function()))
            except BaseException as error:
                outcome.append((False, error))

        thread = threading.Thread(target=call, name="streamcd-dask", daemon=True)
        begun = time.monotonic()
        thread.start()
        while True:
            thread.join(_LOOK_SECONDS)
            if outcome:
                break
            gone = sorted(set(names) - self._live())
            if gone:
                raise WorkersLost(f"worker {gone[0]} is gone")
            if time.monotonic() - begun > (seconds or self.timeout):
                raise WorkersLost("results did not arrive")
        succeeded, value = outcome[0]
        if not succeeded:
            raise value
        return value

    def _give_up_silent(
        self, futures: list[Any], names: Sequence[str], heard: dict[str, float], now: float
    ) -> None:
        for name, future in zip(names, futures, strict=False):
            silent = now - heard[name]
            if not future.done() and silent > self.timeout:
                self._refused[name] = f"no sign of it for {silent:.0f} s"
                raise WorkersLost(f"worker {name} has given no sign for {silent:.0f} s and is used no longer")

    def _hear(self, event: tuple[float, dict[str, Any]]) -> None:
        self._events.append((time.monotonic(), event[1]))

    def _visited(self, heard: dict[str, float], token: str) -> int:
        """Entries visited since the last look, by what workers have told."""
        total = 0
        while self._events:
            moment, event = self._events.popleft()
            if event["worker"] in heard:
                heard[event["worker"]] = moment
            if event["token"] == token:
                total += int(event["entries"])
        return total

    # -- workers ------------------------------------------------------------------------------------------------------

    def _deal(self, order: Order, progress: Callable[[int], None]) -> dict[str, list[int]]:
        """Shards of every worker that takes part in the next round."""
        begun = time.monotonic()
        while True:
            progress(0)
            admitted, pending = self._admitted()
            waited = time.monotonic() - begun
            if admitted and (self._started or not pending or waited > self.timeout):
                break
            if not admitted and not pending and self._refused:
                name, reason = next(iter(self._refused.items()))
                raise EnvironmentFailure(f"no worker can take part; {name}: {reason}")
            if waited > self.timeout:
                raise EnvironmentFailure(
                    f"no worker for {waited:.0f} s; start some with 'dask worker', then 'streamcd resume {self.run}'"
                )
            time.sleep(_POLL_SECONDS)
        self._started = True
        self._owners = deal_shards(self.shard_entries, sorted(admitted)[: order.n_workers], order.deal)
        if order.n_workers is None and set(self._told) != set(self._owners):
            self._told = list(self._owners)
            self._tell(len(admitted))
        return self._owners

    def _tell(self, n_workers: int) -> None:
        n_shards, n_owners = self.shard_entries.size, len(self._owners)
        shards = f"{n_shards:,} {_plural('shard', n_shards)} on {n_owners} {_plural('worker', n_owners)}"
        idle = n_workers - len(self._owners)
        if idle:
            self.listener.warning(
                f"{shards}: nothing to do for {idle} more; 'streamcd convert' with a smaller --shard-size makes more shards"
            )
        else:
            self.listener.message(shards)
        if len(self._owners) > 1 and self.shard_entries.size < 2 * len(self._owners):
            self.listener.warning(
                f"{shards}: with fewer than two for each they cannot be dealt anew, which is what keeps rounds few; "
                "'streamcd convert' with a smaller --shard-size makes more"
            )

    def _admitted(self) -> tuple[list[str], list[str]]:
        """Workers that may take part, and those that have not answered yet; newcomers are asked."""
        from . import __version__

        live = self._live()
        for name in [name for name in self._admissions if name not in live]:
            del self._admissions[name]
        self._refused = {name: reason for name, reason in self._refused.items() if name in live}
        self._accepted &= live
        self._asked &= live
        for name in live - set(self._admissions):
            with self._losses():
                # a worker that has no streamcd ends at the first thing of ours that it is sent
                self._admissions[name] = self._on(name, importlib.import_module, __name__)
        for name, future in self._admissions.items():
            if name not in self._asked and future.status == "finished":
                self._asked.add(name)
                with self._losses():
                    self._admissions[name] = self._on(name, _admit, self.assignment, __version__)
        admitted, pending = [], []
        for name, future in self._admissions.items():
            if name in self._refused:
                continue
            if name in self._accepted:
                admitted.append(name)
                continue
            if future.status == "pending":
                pending.append(name)
                continue
            try:
                reason = self._bounded(functools.partial(_reason, future), [name])
            except WorkersLost:
                continue  # it went while it was being asked
            if reason:
                self._refused[name] = reason
                self.listener.warning(f"worker {name} cannot take part: {reason}")
            else:
                self._accepted.add(name)
                admitted.append(name)
        return admitted, pending

    def _live(self) -> set[str]:
        """Addresses of the workers that the scheduler knows."""
        self._check_scheduler()
        try:
            return set(self.client.sync(self.client.scheduler.ncores, callback_timeout=_ANSWER_SECONDS))
        except (OSError, TimeoutError):
            raise self._scheduler_lost() from None

    def _check_scheduler(self) -> None:
        if self.client.status != "running":
            raise self._scheduler_lost()

    def _scheduler_lost(self) -> EnvironmentFailure:
        return EnvironmentFailure(
            f"the dask scheduler is gone; 'streamcd resume {self.run} --scheduler ADDRESS' (or --workers N) goes on from "
            "the last committed round"
        )

    @contextlib.contextmanager
    def _losses(self) -> Iterator[None]:
        """Tells what a loss of workers or of the scheduler raises from what is wrong with data or disk."""
        from asyncio import CancelledError
        from concurrent.futures import CancelledError as FuturesCancelled

        from distributed import KilledWorker
        from distributed.comm import CommClosedError

        try:
            yield
        except (StreamcdError, WorkersLost):
            raise
        except (
            CancelledError,
            FuturesCancelled,
            KilledWorker,
            CommClosedError,
            Superseded,
            TimeoutError,
        ) as error:
            self._check_scheduler()
            raise WorkersLost(f"a worker was lost ({type(error).__name__})") from None
        except Exception as error:  # whatever dask makes of a worker that has just gone
            if set(self._owners) - self._live():
                raise WorkersLost(f"a worker is gone ({type(error).__name__})") from None
            if isinstance(error, OSError):
                where = error.filename or self.assignment.folder
                raise EnvironmentFailure(
                    f"a worker failed at {where}: {error.strerror or error}; the last committed round is kept, once that is "
                    f"mended 'streamcd resume {self.run} --scheduler ADDRESS' (or --workers N) goes on from there"
                ) from None
            raise


def _plural(word: str, number: int) -> str:
    return word if number == 1 else word + "s"


def _reason(future: Any) -> str:
    """Why a worker cannot take part, from the future of `_admit`."""
    if future.status == "finished":
        return str(future.result())
    if future.status != "error":
        return f"its first task was {future.status}"
    error = future.exception()
    return f"{type(error).__name__}: {error}"


# ---------------------------------------------------------------------------------------------------------------------
# Clients


@contextlib.contextmanager
def open_client(scheduler: str | None, workers: int, listener: Listener | None = None) -> Iterator[Any]:
    """A client of a scheduler, or of `workers` processes on this machine that end with it.

    Raises
    ------
    UsageError
        Where the address is none.
    EnvironmentFailure
        Where no scheduler answers.
    """
    from distributed import Client, LocalCluster
    from distributed.versions import VersionMismatchWarning

    listener = listener or Listener()
    # what dask has to say about lost connections is said in one line by us
    for name in ("distributed", "distributed.client", "tornado", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with contextlib.ExitStack() as stack:
        if scheduler is None:
            target: Any = stack.enter_context(
                LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=True,
                    memory_limit=0,  # we keep to our own budget
                    dashboard_address=":0",  # without bokeh too: else the port of another's scheduler is taken for ours
                    silence_logs=logging.CRITICAL,
                )
            )
        else:
            target = _checked_address(scheduler)
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                client = stack.enter_context(Client(target, timeout=_ANSWER_SECONDS, set_as_default=False))
        except (OSError, TimeoutError, ValueError) as error:
            raise EnvironmentFailure(
                f"no dask scheduler answers at {scheduler} ({str(error).splitlines()[0]}); expected an address such as "
                "tcp://host:8786, where 'dask scheduler' runs"
            ) from None
        if any(isinstance(warning.message, VersionMismatchWarning) for warning in said):
            listener.warning(
                "client, scheduler and workers have different versions of dask, Python or what dask needs: install the "
                "same ones everywhere; client.get_versions(check=True) lists them"
            )
        listener.message(_dashboard(client))
        yield client


def _checked_address(address: str) -> str:
    """Dask says what is wrong with an address, and then does not end."""
    if (
        re.fullmatch(r"((tcp|tls|ucx|ws|wss|inproc)://)?(\[[^\]]+\]|[^\s:/]+)(:[0-9]{1,5}|/\S+)", address)
        is None
    ):
        raise UsageError(
            f"expected the address of a dask scheduler such as tcp://host:8786, found {address!r}"
        )
    return address


def _dashboard(client: Any) -> str:
    """Where the dashboard is, or why there is none; asked of the scheduler's own web server."""
    import urllib.error
    import urllib.request

    try:
        link = client.dashboard_link
    except (KeyError, OSError):  # a scheduler without a web server
        link = None
    if not link:
        return "dask dashboard: none, it needs bokeh ('pip install bokeh')"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(link, timeout=_DASHBOARD_SECONDS) as page:
            missing = b"Dask needs bokeh" in page.read()
    except urllib.error.HTTPError:
        return "dask dashboard: none, the scheduler was started without it"
    except OSError:
        return f"dask dashboard: {link} (no answer from there yet)"
    if missing:
        return "dask dashboard: none, it needs bokeh where the scheduler runs ('pip install bokeh')"
    return f"dask dashboard: {link}"

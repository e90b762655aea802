"""Rounds on dask workers, in the coordinating process: assignment of shards, exchange of w and its changes, lost workers.

The engine is dask.distributed; the algorithm is elsewhere (`block_steps`, `loop`). Every round is a handful of tasks
pinned to workers: `w` (or the features of it that changed) is passed along a tree of workers, each works on its own
shards, the changes are added in a tree, and the coordinating process fetches one sum. All state is in the run directory,
which every worker must see under the same path.

A round is abandoned and repeated when a worker disappears, or has not visited a window within the time limit; its shards go
to the others. Every wait has a limit.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import re
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from typing import Any

import numpy as np

from ..core.errors import EnvironmentFailure, StreamcdError, UsageError
from ..core.progress import Listener
from . import dask_worker
from .assignment import Assignment
from .block_steps import Change, add_in_tree
from .dask_worker import SharedWeights
from .engines import RoundResult, WorkersLost, join_responses
from .partition import RoundRequest, Superseded, WorkerSpec

_LOOPBACK = "127.0.0.1"
_POLL_SECONDS = 0.2
_LOOK_SECONDS = 1.0  # between queries of the scheduler's list of workers
_ANSWER_SECONDS = 30.0  # for the scheduler to answer
_DASHBOARD_SECONDS = 5.0  # for its web page to answer
_MORE_SHARDS = (
    "'streamcd convert' with a smaller --shard-size makes more, as many as there are chunks (--chunk-size)"
)


class DaskEngine:
    """Engine that carries out rounds on the workers of a dask client, which may come and go; see `engines.Engine`.

    `timeout` limits, in seconds, the time a worker may take to respond, and the time without any worker.
    """

    def __init__(
        self,
        client: Any,
        spec: WorkerSpec,
        shard_entries: np.ndarray,
        listener: Listener,
        timeout: float,
        run: str,
    ) -> None:
        if getattr(client, "asynchronous", False):
            raise UsageError("expected a client that waits for its results, found an asynchronous one")
        self.client, self.spec, self.listener = client, spec, listener
        self.n_shards, self.timeout, self.run = shard_entries.size, timeout, run
        self._assignment = Assignment(shard_entries, spec.seed)
        self.topic = f"streamcd-{os.urandom(8).hex()}"
        self._events: deque[tuple[float, dict[str, Any]]] = deque()
        self._admissions: dict[str, Any] = {}
        self._refused: dict[str, str] = {}
        self._accepted: set[str] = set()
        self._asked: set[str] = set()  # those that can import streamcd, and have been asked what they see
        self._owners: dict[str, list[int]] = {}
        self._announced: list[str] = []  # the owners of shards that were last announced
        self._sent: tuple[str, np.ndarray, set[str]] | None = None  # version, w, who has it
        self._started = False
        client.subscribe_topic(self.topic, self._receive_event)

    def round(self, request: RoundRequest, w: np.ndarray, progress: Callable[[int], None]) -> RoundResult:
        """Have every worker work on its shards; raises `WorkersLost` when a partition's result is lost."""
        owners = self._assign(request, progress)
        names = list(owners)
        weights = self._pack(request.token, w, names)
        self._sent = None  # until every worker has it
        futures: list[Any] = []
        try:
            with self._losses():
                works, root = self._submit(request, weights, owners, futures)
                self._wait([*works, root], names, progress, request.token)
                (sums,) = self._bounded(lambda: self.client.gather([root]), names)
        finally:
            with contextlib.suppress(Exception):
                self._bounded(lambda: self.client.cancel(futures), (), _ANSWER_SECONDS)
        self._sent = (request.token, w.copy(), set(names))
        return join_responses(names, sums.responses, sums.change, weights.change.n_bytes * len(names))

    def slopes(self, request: RoundRequest, eta: np.ndarray) -> np.ndarray:
        """Sum `Partition.slopes` over the workers."""
        with self._losses():
            futures = [
                self._on(name, dask_worker.slopes, self.topic, self.spec.folder, shards, request, eta)
                for name, shards in self._owners.items()
            ]
            self._wait(futures, list(self._owners), lambda n_entries: None, request.token)
            found = self._bounded(lambda: self.client.gather(futures), list(self._owners))
            total: np.ndarray = np.sum(found, axis=0)
        return total

    def close(self) -> None:
        """Ask the workers to close their files, and wait briefly."""
        with contextlib.suppress(Exception):
            self.client.unsubscribe_topic(self.topic)
        if self.client.status != "running":
            return
        with contextlib.suppress(Exception):
            from distributed import wait

            live = self._live()
            leaving = [
                self._on(name, dask_worker.leave, self.topic)
                for name in self._admissions
                if name in live and name not in self._refused
            ]
            with self.client.as_current():
                wait(leaving, timeout=10)

    # -- a round ------------------------------------------------------------------------------------------------------

    def _submit(
        self, request: RoundRequest, weights: SharedWeights, owners: dict[str, list[int]], futures: list[Any]
    ) -> tuple[list[Any], Any]:
        """Submit the tasks of a round; returns every worker's own, and the one whose result is their sum.

        All tasks are added to `futures`. They are few, because each is two messages to and from the scheduler.
        """
        names = list(owners)
        first = names[0]

        def send() -> Any:
            return self.client.scatter(weights, workers=[first], hash=False, timeout=_ANSWER_SECONDS)

        copies = [self._bounded(send, names)]
        futures += copies
        for number, name in enumerate(names[1:], start=1):
            copy = copies[(number - 1) // 2]
            if 2 * number + 1 < len(names):  # others fetch it from there
                copy = self._on(name, dask_worker.pass_on, copy)
                futures.append(copy)
            copies.append(copy)
        works = [
            self._on(name, dask_worker.run_round, self.spec, shards, request, copy, self.topic)
            for (name, shards), copy in zip(owners.items(), copies, strict=True)
        ]
        futures += works

        def add(first: tuple[str, Any], second: tuple[str, Any]) -> tuple[str, Any]:
            name, own = first
            futures.append(self._on(name, dask_worker.add_sums, own, second[1]))
            return name, futures[-1]

        _, root = add_in_tree(list(zip(names, works, strict=True)), add)
        return works, root

    def _on(self, worker: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Submit a task pinned to one worker."""
        pinned = {"workers": [worker], "allow_other_workers": False}
        return self.client.submit(function, *arguments, **pinned, pure=False)

    def _pack(self, version: str, w: np.ndarray, names: Sequence[str]) -> SharedWeights:
        """Pack w, or only the rows that changed if all workers hold the old w and that is less to send."""
        if self._sent is not None and set(names) <= self._sent[2]:
            index = np.flatnonzero((w != self._sent[1]).any(axis=1))
            change = Change(index, w[index], w.shape[0])
            if 2 * change.n_bytes < w.nbytes:
                return SharedWeights(version, self._sent[0], change)
        return SharedWeights(version, "", Change(None, w, w.shape[0]))

    def _wait(
        self, futures: list[Any], names: Sequence[str], progress: Callable[[int], None], token: str
    ) -> None:
        """Wait until all futures are done or one has failed; raises `WorkersLost` where workers are lost."""
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
            progress(self._reported_entries(heard, token))
            if done or any(future.status == "error" for future in futures):
                return
            if any(future.status in ("cancelled", "lost") for future in futures):
                raise WorkersLost("results were lost with a worker")
            if now - looked >= _LOOK_SECONDS:
                looked = now
                self._check_live(names)
                self._give_up_silent(futures, names, heard, now)

    def _bounded(
        self, function: Callable[[], Any], names: Sequence[str], seconds: float | None = None
    ) -> Any:
        """Call a function of dask that may block indefinitely; give up when one of `names` is gone, or after `seconds`."""
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
            self._check_live(names)
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
                self._refused[name] = f"did not respond for {silent:.0f} s"
                raise WorkersLost(f"worker {name} did not respond for {silent:.0f} s; excluded")

    def _receive_event(self, event: tuple[float, dict[str, Any]]) -> None:
        self._events.append((time.monotonic(), event[1]))

    def _reported_entries(self, heard: dict[str, float], token: str) -> int:
        """Sum the entries that workers have reported since the last call."""
        total = 0
        while self._events:
            moment, event = self._events.popleft()
            if event["worker"] in heard:
                heard[event["worker"]] = moment
            if event["token"] == token:
                total += int(event["entries"])
        return total

    # -- workers ------------------------------------------------------------------------------------------------------

    def _assign(self, request: RoundRequest, progress: Callable[[int], None]) -> dict[str, list[int]]:
        """Assign shards to the workers that take part in the next round; waits for a worker where there is none."""
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
        self._owners = self._assignment.of_round(request.assigned, sorted(admitted))
        if set(self._announced) != set(self._owners):
            self._announced = list(self._owners)
            self._announce(len(admitted))
        return self._owners

    def _announce(self, n_workers: int) -> None:
        n_shards, n_owners = self.n_shards, len(self._owners)
        shards = f"{n_shards:,} shard{'s' * (n_shards != 1)} on {n_owners} worker{'s' * (n_owners != 1)}"
        idle = n_workers - len(self._owners)
        if idle:
            self.listener.warning(f"{shards}: nothing to do for {idle} more; {_MORE_SHARDS}")
        else:
            self.listener.message(shards)
        if len(self._owners) > 1 and self.n_shards < 2 * len(self._owners):
            self.listener.warning(
                f"{shards}: with fewer than two for each they cannot be reassigned, and rounds are many; {_MORE_SHARDS}"
            )

    def _admitted(self) -> tuple[list[str], list[str]]:
        """Return the workers that may take part, and those that have not answered yet; newcomers are asked."""
        self._ask_newcomers()
        admitted, pending = [], []
        for name, future in self._admissions.items():
            if name in self._refused:
                continue
            if name in self._accepted:
                admitted.append(name)
            elif future.status == "pending" or (name not in self._asked and future.status == "finished"):
                pending.append(name)  # its import may have ended since newcomers were asked: no answer yet
            elif self._accept(name, future):
                admitted.append(name)
        return admitted, pending

    def _ask_newcomers(self) -> None:
        from .._version import __version__

        live = self._live()
        for name in [name for name in self._admissions if name not in live]:
            del self._admissions[name]
        self._refused = {name: reason for name, reason in self._refused.items() if name in live}
        self._accepted &= live
        self._asked &= live
        for name in live - set(self._admissions):
            with self._losses():
                # a worker without streamcd dies on receiving one of our functions
                self._admissions[name] = self._on(name, importlib.import_module, dask_worker.__name__)
        for name, future in self._admissions.items():
            if name not in self._asked and future.status == "finished":
                self._asked.add(name)
                with self._losses():
                    self._admissions[name] = self._on(name, dask_worker.admit, self.spec, __version__)

    def _accept(self, name: str, future: Any) -> bool:
        """Accept or refuse a worker by its answer; neither where it went away in the meantime."""
        try:
            reason = self._bounded(functools.partial(_reason, future), [name])
        except WorkersLost:
            return False
        if reason:
            self._refused[name] = reason
            self.listener.warning(f"worker {name} cannot take part: {reason}")
            return False
        self._accepted.add(name)
        return True

    def _live(self) -> set[str]:
        """Return the addresses of the workers that the scheduler knows."""
        self._check_scheduler()
        try:
            return set(self.client.sync(self.client.scheduler.ncores, callback_timeout=_ANSWER_SECONDS))
        except (OSError, TimeoutError):
            raise self._scheduler_lost() from None

    def _check_live(self, names: Sequence[str]) -> None:
        if gone := sorted(set(names) - self._live()):
            raise WorkersLost(f"worker {gone[0]} is gone")

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
        """Turn any error that the loss of a worker raises into `WorkersLost`; errors of data and disk pass."""
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
        except Exception as error:  # dask raises many kinds when a worker has just gone
            if set(self._owners) - self._live():
                raise WorkersLost(f"a worker is gone ({type(error).__name__})") from None
            if isinstance(error, OSError):
                where = error.filename or self.spec.folder
                raise EnvironmentFailure(
                    f"a worker failed at {where}: {error.strerror or error}; the last committed round is kept: once this is "
                    f"fixed, 'streamcd resume {self.run} --scheduler ADDRESS' (or --workers N) goes on from there"
                ) from None
            raise


def _reason(future: Any) -> str:
    """Return why a worker cannot take part, from the future of `dask_worker.admit`."""
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
    """Open a client of a scheduler, or of `workers` processes on this machine that end with it."""
    from distributed import Client
    from distributed.versions import VersionMismatchWarning

    listener = listener or Listener()
    # we report lost connections in one line ourselves
    for name in ("distributed", "distributed.client", "tornado", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with contextlib.ExitStack() as stack:
        if scheduler is None:
            target: Any = stack.enter_context(_local_cluster(workers))
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
        if scheduler is not None:
            listener.message(_dashboard(client))
        yield client


@contextlib.contextmanager
def _local_cluster(workers: int) -> Iterator[Any]:
    """Start worker processes that only this machine can reach, and that leave Ctrl-C to this process.

    They are forked from a process that has imported what they need: 4 workers began to work after 2 s in place of 3.3 s, and
    ended 0.7 s sooner.

    The terminal sends SIGINT to all of them. What starts while the signal is blocked here inherits the block: dask's
    threads, and the processes that these start, now and in place of lost ones.
    """
    import dask.config
    from distributed import LocalCluster
    from distributed.utils import get_mp_context

    resource_tracker.ensure_running()  # its start would unblock the signal in a thread of dask's
    settings: dict[str, Any] = {f"distributed.{who}.http.routes": [] for who in ("scheduler", "worker")}
    settings["distributed.worker.multiprocessing-method"] = "forkserver"
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with contextlib.ExitStack() as stack:
        try:
            with dask.config.set(settings):
                get_mp_context().set_forkserver_preload(["distributed", dask_worker.__name__])
                with _start_reported(workers):
                    cluster: Any = LocalCluster(
                        n_workers=workers,
                        threads_per_worker=1,
                        processes=True,
                        host=_LOOPBACK,
                        memory_limit=0,  # the budget is kept by streamcd itself
                        dashboard_address=f"{_LOOPBACK}:0",
                        scheduler_kwargs={"dashboard": False},
                        silence_logs=logging.CRITICAL,
                    )
            stack.enter_context(cluster)
            for service in cluster.scheduler.services.values():
                cluster.loop.add_callback(service.stop)  # the web server, which is not needed
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield cluster


@contextlib.contextmanager
def _start_reported(workers: int) -> Iterator[None]:
    """Turn the errors of many kinds that dask raises where a process died while it started into one line."""
    try:
        yield
    except Exception as error:
        raise EnvironmentFailure(
            f"{workers} worker processes of this machine could not be started ({type(error).__name__}: {error}); the system "
            "may have ended one for lack of memory: give a smaller --memory or fewer --workers, or go on with 'streamcd "
            "resume RUN --workers N'; a script has to ask for workers under 'if __name__ == \"__main__\":'"
        ) from None


def _checked_address(address: str) -> str:
    """Check an address: given a bad one, dask reports the error and then never returns."""
    if not re.fullmatch(r"((tcp|tls|ucx|ws|wss|inproc)://)?(\[[^\]]+\]|[^\s:/]+)(:[0-9]{1,5}|/\S+)", address):
        raise UsageError(
            f"expected the address of a dask scheduler such as tcp://host:8786, found {address!r}"
        )
    return address


def _dashboard(client: Any) -> str:
    """Describe where the dashboard is, or why there is none, by asking the scheduler's own web server."""
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

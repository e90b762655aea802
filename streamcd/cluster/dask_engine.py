"""Rounds on dask workers, in the coordinating process: assignment of shards, sums of responses, lost workers.

The engine is dask.distributed; the algorithm is elsewhere (`block_steps`, `loop`). Every round is a handful of tasks
pinned to workers: `w` is passed along a tree of workers, each works on its own shards, the responses are added in a tree,
and the coordinating process fetches one sum. All state is in the run directory; dual variables come and go as `records`.

A round is abandoned and repeated when a worker disappears, or has not visited a window within the time limit; its part goes
to another. Every wait has a limit.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import operator
import os
import pickle
import re
import shutil
import signal
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np

from .._version import __version__
from ..core.atomic_files import sync_together
from ..core.errors import EnvironmentFailure, StreamcdError, UsageError
from ..core.progress import Listener, counted
from ..dataset.dataset import Dataset
from ..stream.slot_store import shard_file
from . import dask_worker
from .kinds import make_assignment
from .placement import Placement
from .records import Place, read_batch, write_batch
from .rounds import RoundRequest, WorkersLost, WorkerSpec, add_in_tree

_LOOPBACK = "127.0.0.1"
_POLL_SECONDS = 0.2
_LOOK_SECONDS = 1.0  # between queries of the scheduler's list of workers
_ANSWER_SECONDS = 30.0  # for the scheduler to answer
_MORE_SHARDS = (
    "'streamcd convert' with a smaller --shard-size makes more, as many as there are chunks (--chunk-size)"
)


class DaskEngine:
    """Engine that carries out rounds on the workers of a dask client, which may come and go; see `rounds.Engine`.

    `timeout` limits, in seconds, the time a worker may take to respond, and the time without any worker.
    """

    def __init__(
        self, client: Any, spec: WorkerSpec, dataset: Dataset, listener: Listener, timeout: float, run: str
    ) -> None:
        if getattr(client, "asynchronous", False):
            raise UsageError("expected a client that waits for its results, found an asynchronous one")
        self.client, self.spec, self.listener = client, spec, listener
        self.n_shards, self.timeout, self.run = dataset.n_shards, timeout, run
        self._assignment, self._placement = make_assignment(spec, dataset), Placement()
        self.topic = f"streamcd-{os.urandom(8).hex()}"
        self._folder = Path(spec.folder)
        self._reports = reports = deque[tuple[float, dict[str, Any]]]()
        self._seats: dict[str, Any] = {}  # futures of `dask_worker.Seat`, by worker
        self._refused: dict[str, str] = {}
        self._held: dict[str, tuple[str, set[int]]] = {}  # round and shards whose dual variables a worker has
        self._parts: list[tuple[str, list[int]]] = []  # worker and shards of every part
        client.subscribe_topic(self.topic, lambda event: reports.append((time.monotonic(), event[1])))

    def round(self, request: RoundRequest, w: np.ndarray, progress: Callable[[int], None]) -> Any:
        """Have every worker work on its shards; raises `WorkersLost` when a response is lost."""
        names = self._assign(request, progress)
        held, self._held = self._held, {}
        futures: list[Any] = []
        try:
            with self._losses():
                held = self._lend(request, held)
                works, root = self._submit(request, w, futures)
                (result,) = self._results([root], works, progress, request.token)
                self._held = self._collect(request) or held
        finally:
            with contextlib.suppress(Exception):
                self._within(_ANSWER_SECONDS, self.client.cancel, futures)
        result.bytes_sent = w.nbytes * len(names) + result.n_parts * result.n_bytes
        return result

    def slopes(self, request: RoundRequest, eta: np.ndarray) -> np.ndarray:
        """Sum `Partition.slopes` over the workers."""
        with self._losses():
            works = [
                (name, self._on(name, dask_worker.slopes, self._seats[name], shards, request, eta))
                for name, shards in self._parts
            ]
            futures = [future for _, future in works]
            found = self._results(futures, works, lambda n_entries: None, request.token)
        total: np.ndarray = np.sum(found, axis=0)
        return total

    def close(self) -> None:
        """Give up the workers' seats, which closes their files."""
        with contextlib.suppress(Exception):
            self.client.unsubscribe_topic(self.topic)
        for seat in self._seats.values():
            seat.release()

    # -- a round ------------------------------------------------------------------------------------------------------

    def _submit(
        self, request: RoundRequest, w: np.ndarray, futures: list[Any]
    ) -> tuple[list[tuple[str, Any]], Any]:
        """Submit the tasks of a round; returns that of every part with its worker, and the one whose result is their sum.

        All tasks are added to `futures`. They are few, because each is two messages to and from the scheduler.
        """

        def on(worker: str, function: Callable[..., Any], *arguments: Any) -> Any:
            futures.append(self._on(worker, function, *arguments))
            return futures[-1]

        names = self._workers()
        copies = [self._within(self.timeout, self.client.scatter, w, workers=names[:1], hash=False)]
        futures += copies
        for number, name in enumerate(names[1:], start=1):
            copy = copies[(number - 1) // 2]
            others_fetch_it = 2 * number + 1 < len(names)
            copies.append(on(name, dask_worker.pass_on, copy) if others_fetch_it else copy)
        copy_of = dict(zip(names, copies, strict=True))
        works = []
        for name, shards in self._parts:
            asked = self._seats[name], shards, request, copy_of[name], self.topic
            works.append((name, on(name, dask_worker.run_round, *asked)))

        def add(first: tuple[str, Any], second: tuple[str, Any]) -> tuple[str, Any]:
            return first[0], on(first[0], operator.add, first[1], second[1])

        return works, add_in_tree(works, add)[1]

    def _workers(self) -> list[str]:
        """Return the workers of the round's parts, each once."""
        return list(dict.fromkeys(name for name, _ in self._parts))

    def _on(self, worker: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Submit a task pinned to one worker."""
        pinned = {"workers": [worker], "allow_other_workers": False}
        return self.client.submit(function, *arguments, **pinned, pure=False)

    def _within(self, seconds: float, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Make a call of the client that may block indefinitely; raises TimeoutError after some seconds."""
        begun = functools.partial(call, *arguments, **options, asynchronous=True)
        return self.client.sync(begun, callback_timeout=seconds)

    def _results(
        self,
        futures: list[Any],
        works: Sequence[tuple[str, Any]],
        progress: Callable[[int], None],
        token: str,
    ) -> list[Any]:
        """Fetch the results of futures once all are done; raises `WorkersLost` where one of the workers is lost."""
        from distributed import wait

        looked = time.monotonic()
        heard = dict.fromkeys((name for name, _ in works), looked)
        while any(one.status == "pending" for one in futures) and all(
            one.status != "error" for one in futures
        ):
            self._check_scheduler()
            with contextlib.suppress(TimeoutError), self.client.as_current():
                wait(futures, timeout=_POLL_SECONDS)
            progress(self._reported_entries(heard, token))
            if time.monotonic() - looked >= _LOOK_SECONDS:
                looked = time.monotonic()
                self._check_workers(works, heard)
        found: list[Any] = self._within(self.timeout, self.client.gather, futures)
        return found

    def _check_workers(self, works: Sequence[tuple[str, Any]], heard: dict[str, float]) -> None:
        """Raise `WorkersLost` where a worker is gone, or silent for too long, which ends its part in the training."""
        if gone := sorted(heard.keys() - self._live()):
            raise WorkersLost(f"worker {gone[0]} is gone")
        for name, future in works:
            silent = time.monotonic() - heard[name]
            if not future.done() and silent > self.timeout:
                self._refused[name] = f"did not respond for {silent:.0f} s"
                raise WorkersLost(f"worker {name} did not respond for {silent:.0f} s; excluded")

    def _reported_entries(self, heard: dict[str, float], token: str) -> int:
        """Sum the entries that workers have reported since the last call."""
        total = 0
        while self._reports:
            moment, report = self._reports.popleft()
            if report["worker"] in heard:
                heard[report["worker"]] = moment
            if report["token"] == token:
                total += int(report["entries"])
        return total

    # -- workers ------------------------------------------------------------------------------------------------------

    def _assign(self, request: RoundRequest, progress: Callable[[int], None]) -> list[str]:
        """Assign shards to the workers that take part in the next round; waits for a worker where there is none."""
        begun, before = time.monotonic(), set(self._workers())
        while True:
            progress(0)
            admitted, pending = self._admitted()
            waited = time.monotonic() - begun
            if admitted and (before or not pending or waited > self.timeout):
                break
            if not admitted and not pending and self._refused:
                name, reason = next(iter(self._refused.items()))
                raise EnvironmentFailure(f"no worker can take part; {name}: {reason}")
            if waited > self.timeout:
                raise EnvironmentFailure(
                    f"no worker for {waited:.0f} s; start some with 'dask worker', then 'streamcd resume {self.run}'"
                )
            time.sleep(_POLL_SECONDS)
        placed = self._placement.place(admitted, self.n_shards)
        shares = self._assignment.shares(request.assigned, len(placed))
        self._parts = [(name, shards) for name, shards in zip(placed, shares, strict=True) if shards]
        names = self._workers()
        if before != set(names):
            self._announce(names, len(admitted) - len(names))
        return names

    def _announce(self, names: Sequence[str], n_idle: int) -> None:
        """Tell who takes part, and on what; `n_idle` workers have nothing to do."""
        n_owners = len(names)
        shards = f"{counted(self.n_shards, 'shard')} on {counted(n_owners, 'worker')}"
        if len(self._parts) > n_owners:
            shards += (
                f", in {len(self._parts)} parts as before: the bits stay those of {len(self._parts)} workers"
            )
        if n_idle:
            self.listener.warning(f"{shards}: nothing to do for {n_idle} more; {_MORE_SHARDS}")
        else:
            self.listener.message(shards)
        if self._assignment.exchanges and n_owners > 1 and self.n_shards < 2 * n_owners:
            self.listener.warning(
                f"{shards}: with fewer than two for each they cannot be reassigned, and rounds are many; {_MORE_SHARDS}"
            )

    # -- dual variables -----------------------------------------------------------------------------------------------

    def _lend(
        self, request: RoundRequest, held: dict[str, tuple[str, set[int]]]
    ) -> dict[str, tuple[str, set[int]]]:
        """Send workers the dual variables of the shards that they did not have; returns what each has now."""
        lent: dict[str, tuple[str, set[int]]] = {}
        for name, shards in self._shards().items() if request.committed else ():
            token, had = held.get(name, ("", set()))
            had = had if token == request.committed else set()
            folder, missing = self._folder / request.committed, sorted(set(shards) - had)
            place: Place | None = (0, 0)
            while missing and place is not None:
                pieces, place = read_batch(folder, missing, place)
                sent = self._within(self.timeout, self.client.scatter, [pieces], workers=[name], hash=False)
                written = self._on(
                    name, dask_worker.write_records, self._seats[name], request.committed, sent[0]
                )
                self._within(self.timeout, self.client.gather, written)
            lent[name] = request.committed, had | set(missing)
        return lent

    def _collect(self, request: RoundRequest) -> dict[str, tuple[str, set[int]]]:
        """Write the dual variables with which workers ended a round into its folder; returns what each has."""
        folder, held, parts = self._folder / request.token, {}, self._shards()
        if not folder.exists():  # none were changed
            return {}
        # a worker reads its next batch while those of others are fetched and written
        asked = deque((name, self._ask_records(name, request.token, parts[name], (0, 0))) for name in parts)
        while asked:
            name, future = asked.popleft()
            pieces, place = self._within(self.timeout, self.client.gather, future)
            if place is not None:
                asked.append((name, self._ask_records(name, request.token, parts[name], place)))
            write_batch(folder, pieces)
        for name, shards in parts.items():
            sync_together([*(shard_file(folder, shard) for shard in shards), folder])
            held[name] = request.token, set(shards)
        return held

    def _ask_records(self, name: str, token: str, shards: list[int], place: Place) -> Any:
        """Ask a worker for pieces of its dual variables."""
        return self._on(name, dask_worker.read_records, self._seats[name], token, shards, place)

    def _shards(self) -> dict[str, list[int]]:
        """Return the shards of all parts of every worker."""
        found: dict[str, list[int]] = {}
        for name, shards in self._parts:
            found[name] = sorted([*found.get(name, []), *shards])
        return found

    # -- who is there -------------------------------------------------------------------------------------------------

    def _admitted(self) -> tuple[list[str], list[str]]:
        """Return the workers that may take part, and those that have not answered yet; newcomers are asked."""
        live = self._live()
        self._refused = {name: reason for name, reason in self._refused.items() if name in live}
        self._seats = {
            name: seat for name, seat in self._seats.items() if name in live and seat.status != "cancelled"
        }
        if newcomers := live - set(self._seats):
            spec = pickle.dumps(self.spec)
            with self._losses():
                self._seats |= {name: self._on(name, _seat_opener(), __version__, spec) for name in newcomers}
        for name, seat in self._seats.items():
            if seat.status == "error" and name not in self._refused:
                self._refused[name] = _reason(seat.exception(timeout=_ANSWER_SECONDS))
                self.listener.warning(f"worker {name} cannot take part: {self._refused[name]}")
        status = {name: seat.status for name, seat in self._seats.items() if name not in self._refused}
        admitted = [name for name, found in status.items() if found == "finished"]
        return admitted, [name for name, found in status.items() if found == "pending"]

    def _live(self) -> set[str]:
        """Return the addresses of the workers that the scheduler knows."""
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
        """Turn any error that the loss of a worker raises into `WorkersLost`; errors of data and disk pass."""
        from asyncio import CancelledError
        from concurrent.futures import CancelledError as FuturesCancelled

        from distributed import KilledWorker
        from distributed.comm import CommClosedError

        try:
            yield
        except (StreamcdError, WorkersLost):
            raise
        except (CancelledError, FuturesCancelled, KilledWorker, CommClosedError, TimeoutError) as error:
            self._check_scheduler()
            raise WorkersLost(f"a worker was lost ({type(error).__name__})") from None
        except Exception as error:  # dask raises many kinds when a worker has just gone
            if set(self._workers()) - self._live():
                raise WorkersLost(f"a worker is gone ({type(error).__name__})") from None
            if isinstance(error, OSError):
                where = error.filename or self.spec.folder
                raise EnvironmentFailure(
                    f"a worker failed at {where}: {error.strerror or error}; the last committed round is kept: once this is "
                    f"fixed, 'streamcd resume {self.run} --scheduler ADDRESS' (or --workers N) goes on from there"
                ) from None
            raise


def _seat_opener() -> Callable[..., Any]:
    """Make a function that is sent as its code: a worker without streamcd ends on receiving one that it has to import."""

    def open_seat(*arguments: Any) -> Any:
        import importlib

        return importlib.import_module("streamcd.cluster.dask_worker").open_seat(*arguments)

    return open_seat


def _reason(error: BaseException) -> str:
    """Describe why a worker cannot take part."""
    return str(error) if isinstance(error, StreamcdError | OSError) else f"{type(error).__name__}: {error}"


# ---------------------------------------------------------------------------------------------------------------------
# Clients


@contextlib.contextmanager
def open_client(
    scheduler: str | None, workers: int, listener: Listener | None = None, folder: Path | None = None
) -> Iterator[Any]:
    """Open a client of a scheduler, or of `workers` processes of this machine, with files in `folder`, which end with it."""
    from distributed import Client
    from distributed.versions import VersionMismatchWarning

    listener = listener or Listener()
    # we report lost connections in one line ourselves
    for name in ("distributed", "distributed.client", "tornado", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with contextlib.ExitStack() as stack:
        if scheduler is None:
            target: Any = stack.enter_context(_local_cluster(workers, folder))
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
        yield client


@contextlib.contextmanager
def _local_cluster(workers: int, folder: Path | None) -> Iterator[Any]:
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
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)  # of processes that were killed
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
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
                        local_directory=None if folder is None else str(folder),
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

"""Rounds on dask workers, in the coordinating process: assignment of shards, sums of responses, lost workers.

The engine is dask.distributed; the algorithm is elsewhere (`block_steps`, `loop`). Every round is a handful of tasks
pinned to workers. All state is in the run directory: dual variables go to the workers that do not have them, and come back.

A round is abandoned and repeated when a worker disappears, or has not visited a window within the time limit; its shards go
to others. Every wait has a limit.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
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
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np

from .._version import __version__
from ..core.errors import EnvironmentFailure, StreamcdError, UsageError, counted
from ..core.options import Listener
from ..dataset.dataset import Dataset
from ..solvers.protocol import TRAIN
from . import dask_worker
from .assignment import make_assignment
from .partition import makes_sums
from .rounds import HomeRows, Response, RoundRequest, WorkersLost, WorkerSpec

_LOOPBACK = "127.0.0.1"
_POLL_SECONDS = 0.2
_LOOK_SECONDS = 1.0  # between queries of the scheduler's list of workers
_ANSWER_SECONDS = 30.0  # for the scheduler to answer
_ADDRESS = r"((tcp|tls|ucx|ws|wss|inproc)://)?(\[[^\]]+\]|[^\s:/]+)(:[0-9]{1,5}|/\S+)"
_MORE_SHARDS = "converting with a smaller --shard-size makes more, as many as there are chunks (--chunk-size)"


class DaskEngine:
    """Engine that carries out rounds on the workers of a dask client, which may come and go.

    Each of `round`, `slopes` and `collect` raises `WorkersLost` at the loss of a worker.

    `timeout` limits, in seconds, the time a worker may take to respond, and the time without any worker.
    """

    def __init__(
        self,
        client: Any,
        spec: WorkerSpec,
        dataset: Dataset,
        home: HomeRows,
        listener: Listener,
        timeout: float,
        run: str,
    ) -> None:
        if getattr(client, "asynchronous", False):
            raise UsageError("expected a client that waits for its results, found an asynchronous one")
        self.client = client
        self.spec = spec
        self.listener = listener
        self.n_shards = dataset.n_shards
        self.home = home
        self.timeout = timeout
        self.run = run
        self._assignment = make_assignment(dataset, spec.seed, exchanges=not makes_sums(spec))
        self.topic = f"streamcd-{os.urandom(8).hex()}"
        self._reports = reports = deque[tuple[float, dict[str, Any]]]()
        self._seats: dict[str, Any] = {}  # futures of `dask_worker.Seat`, by worker
        self._refused: dict[str, str] = {}
        self._held: dict[str, set[int]] = {}  # shards whose committed dual variables a worker has
        self._shards: dict[str, list[int]] = {}  # of every worker in the last round
        client.subscribe_topic(self.topic, lambda event: reports.append((time.monotonic(), event[1])))

    def round(self, request: RoundRequest, w: np.ndarray, progress: Callable[[int], None]) -> Response:
        """Have every worker work on its shards; raises `WorkersLost` when a response is lost."""
        self._assign(request, progress)
        held = self._held
        self._held = {}
        with self._losses():
            self._send_rows(request, held)
            (copy,) = self._within(
                self.timeout, self.client.scatter, [w], workers=[*self._shards][:1], hash=False
            )
            arguments = {name: (shards, request, copy, self.topic) for name, shards in self._shards.items()}
            result: Response = self._sum(dask_worker.run_round, arguments, progress, request.token)
        if not request.lanes_in(TRAIN).size:
            self._held = {name: held.get(name, set()) | set(shards) for name, shards in self._shards.items()}
        n_bytes = sum(array.nbytes for array in result.sums.values())
        return replace(result, bytes_sent=len(self._shards) * (w.nbytes + n_bytes))

    def slopes(self, request: RoundRequest, eta: np.ndarray) -> np.ndarray:
        """Sum `Partition.slopes` over the workers."""
        arguments = {name: ("slopes", request, eta) for name in self._shards}
        with self._losses():
            total: np.ndarray = self._sum(dask_worker.call_part, arguments, lambda _: None, request.token)
        return total

    def collect(self, request: RoundRequest, eta: np.ndarray) -> None:
        """Have every worker make the step, and write the dual variables into the run."""
        batches = {name: self.home.batches(shards) for name, shards in self._shards.items()}
        requests = deque[tuple[str, Any]]()

        def ask(name: str) -> None:
            for chunks in itertools.islice(batches[name], 1):
                step = dask_worker.call_part, self._seats[name], "step", request, eta, chunks
                requests.append((name, self._on(name, *step)))

        with self._losses():
            for name in batches:
                ask(name)
        while requests:
            name, future = requests.popleft()
            with self._losses():
                rows = self._within(self.timeout, self.client.gather, future)
                ask(name)  # a worker is at its next batch while those of others are fetched and written
            self.home.save(rows)
        self._held = {name: set(shards) for name, shards in self._shards.items()}

    def close(self) -> None:
        """Give up the workers' seats, which closes their files."""
        with contextlib.suppress(Exception):
            self.client.unsubscribe_topic(self.topic)
        for seat in self._seats.values():
            seat.release()

    # -- a round ------------------------------------------------------------------------------------------------------

    def _send_rows(self, request: RoundRequest, held: dict[str, set[int]]) -> None:
        """Send workers the dual variables of the shards that they do not have."""
        for name, shards in self._shards.items():
            for chunks in self.home.batches([shard for shard in shards if shard not in held.get(name, ())]):
                (rows,) = self._within(
                    self.timeout, self.client.scatter, [self.home.load(chunks)], workers=[name], hash=False
                )
                receive = dask_worker.call_part, self._seats[name], "receive", request.committed, rows
                self._within(self.timeout, self.client.gather, self._on(name, *receive))

    def _on(self, worker: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Submit a task pinned to one worker."""
        pinned = {"workers": [worker], "allow_other_workers": False}
        return self.client.submit(function, *arguments, **pinned, pure=False)

    def _within(self, seconds: float, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Make a call of the client that may block indefinitely; raises TimeoutError after some seconds."""
        begun = functools.partial(call, *arguments, **options, asynchronous=True)
        return self.client.sync(begun, callback_timeout=seconds)

    def _sum(
        self,
        function: Callable[..., Any],
        arguments: dict[str, Any],
        progress: Callable[[int], None],
        token: str,
    ) -> Any:
        """Add the results of a function of every worker's seat; raises `WorkersLost` where one of the workers is lost."""
        from distributed import wait

        works = {name: self._on(name, function, self._seats[name], *each) for name, each in arguments.items()}
        looked = time.monotonic()
        heard = dict.fromkeys(works, looked)
        try:
            while any(one.status == "pending" for one in works.values()) and all(
                one.status != "error" for one in works.values()
            ):
                self._check_scheduler()
                with contextlib.suppress(TimeoutError), self.client.as_current():
                    wait([*works.values()], timeout=_POLL_SECONDS)
                progress(self._reported_entries(heard, token))
                if time.monotonic() - looked >= _LOOK_SECONDS:
                    looked = time.monotonic()
                    self._check_workers(works, heard)
            # errors first; and results one after another, as there may not be memory for all
            ended = sorted(works.values(), key=lambda work: work.status != "error")
            responses = (self._within(self.timeout, self.client.gather, work) for work in ended)
            return functools.reduce(operator.add, responses)
        finally:
            with contextlib.suppress(Exception):
                self._within(_ANSWER_SECONDS, self.client.cancel, [*works.values()])

    def _check_workers(self, works: dict[str, Any], heard: dict[str, float]) -> None:
        """Raise `WorkersLost` where a worker is gone, or silent for too long, which ends its part in the training."""
        if gone := sorted(heard.keys() - self._live()):
            raise WorkersLost(f"worker {gone[0]} is gone")
        for name, future in works.items():
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

    def _assign(self, request: RoundRequest, progress: Callable[[int], None]) -> None:
        """Assign shards to the workers that take part in the next round; waits for a worker where there is none."""
        begun = time.monotonic()
        before = list(self._shards)
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
                    f"no worker for {waited:.0f} s; start some with 'dask worker', then "
                    f"'streamcd resume {self.run} --scheduler ADDRESS'"
                )
            time.sleep(_POLL_SECONDS)
        names = [name for name in before if name in admitted]
        names += sorted(set(admitted) - set(names))
        shares = self._assignment.shares(request.assigned, min(len(names), self.n_shards))
        self._shards = dict(zip(names, shares, strict=False))
        if set(before) != set(self._shards):
            self._announce(len(self._shards), len(admitted) - len(self._shards))

    def _announce(self, n_workers: int, n_idle: int) -> None:
        """Tell how many take part, and on what; `n_idle` workers have nothing to do."""
        shards = f"{counted(self.n_shards, 'shard')} on {counted(n_workers, 'worker')}"
        if n_idle:
            self.listener.warning(f"{shards}: nothing to do for {n_idle} more; {_MORE_SHARDS}")
        else:
            self.listener.message(shards)
        if self._assignment.exchanges and n_workers > 1 and self.n_shards < 2 * n_workers:
            self.listener.warning(
                f"{shards}: with fewer than two for each they cannot be reassigned, and rounds are many; {_MORE_SHARDS}"
            )

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
        admitted = [name for name, state in status.items() if state == "finished"]
        return admitted, [name for name, state in status.items() if state == "pending"]

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
            if self._shards.keys() - self._live():
                raise WorkersLost(f"a worker is gone ({type(error).__name__})") from None
            if isinstance(error, OSError):
                where = error.filename or "its disk"
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
            # given a bad one, dask reports the error and then never returns
            if not re.fullmatch(_ADDRESS, scheduler):
                raise UsageError(
                    f"expected the address of a dask scheduler such as tcp://host:8786, found {scheduler!r}"
                )
            target = scheduler
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
                try:
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
                except Exception as error:  # of many kinds, where a process died while it started
                    raise EnvironmentFailure(
                        f"{workers} worker processes of this machine could not be started ({_reason(error)}); the system "
                        "may have ended one for lack of memory: give a smaller --memory or fewer --workers, or go on with "
                        "'streamcd resume RUN --workers N'; a script has to ask for workers under "
                        "'if __name__ == \"__main__\":'"
                    ) from None
            stack.enter_context(cluster)
            for service in cluster.scheduler.services.values():
                cluster.loop.add_callback(service.stop)  # the web server, which is not needed
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield cluster

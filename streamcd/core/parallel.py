"""Threads that share one computation, and worker processes on this machine.

Kernels release the interpreter's lock, so that threads run in parallel. No result depends on the number of threads: a sum is
computed within one part, or over parts in an order set by the data.

A task of a worker is a plain function of another module; this module starts the processes, hands out tasks in order, reports
their progress, and ends them whatever happens. A killed process ends the work at once.

On Linux, a process with a single thread is forked, with all modules loaded, which saves a second of start-up per worker. A
process with more threads is not, because locks that they hold are never released in the child: its workers are spawned, and
a script must then be importable, as always with Python's multiprocessing: under ``if __name__ == "__main__":``.
"""

from __future__ import annotations

import importlib
import itertools
import multiprocessing
import multiprocessing.connection
import os
import queue
import signal
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from .errors import EnvironmentFailure, StreamcdError, UsageError
from .files import HeldLocks, kept_by_copies
from .memory_budget import RESERVED_BYTES, require, return_heap
from .options import Listener, Progress

_LEAST_OPERATIONS = 100_000  # in a part, of a nanosecond each; handing over a part costs about 50,000


Item = TypeVar("Item")


class Threads:
    """`count` threads, including the caller's, None for one per processor; the others are started when first needed."""

    def __init__(self, count: int | None = 1) -> None:
        count = available_cores() if count is None else count
        if count < 1:
            raise UsageError(f"threads: expected at least 1, found {count}")
        self.count = count
        self._pool: ThreadPoolExecutor | None = None

    def parts(self, n_operations: int) -> int:
        """Return the number of parts to divide work into, none so small that handing it over takes longer than doing it."""
        return max(min(self.count, n_operations // _LEAST_OPERATIONS), 1)

    def share(self, work: Callable[[slice], object], n_items: int, n_operations: int) -> None:
        """Divide a range of items, which take so many operations in all, among threads, and call `work` with each share."""
        n_parts = self.parts(n_operations)
        ends = [n_items * part // n_parts for part in range(n_parts + 1)]
        self.run([partial(work, slice(start, stop)) for start, stop in itertools.pairwise(ends)])

    def run(self, calls: Sequence[Callable[[], object]], n_operations: int | None = None) -> None:
        """Make calls, at most `count` at a time, and return when all are done; raises one of their errors.

        Each thread, the caller's among them, takes the next call as soon as it is free; there is one for each of `parts`.
        """
        n_threads = min(self.count if n_operations is None else self.parts(n_operations), len(calls))
        if n_threads < 2:
            for call in calls:
                call()
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.count - 1, thread_name_prefix="streamcd-work")
        remaining = iter(list(calls))  # which gives each call to one thread

        def work() -> None:
            for call in remaining:
                call()

        others = [self._pool.submit(work) for _ in range(n_threads - 1)]
        try:
            work()
        finally:
            wait(others)
        for other in others:
            other.result()

    def in_order(self, calls: Iterable[Callable[[], Item]]) -> Iterator[Item]:
        """Make calls, at most `count` at a time, and yield their results in order; raises the first call's error.

        The caller's thread makes none, unless it is the only one: it uses the results meanwhile. At most `count` calls are
        made, or their results kept, beside the one that it uses.
        """
        if self.count == 1:
            yield from (call() for call in calls)
            return
        pending: deque[Future[Item]] = deque()
        with ThreadPoolExecutor(self.count, thread_name_prefix="streamcd-work") as pool:
            for call in calls:
                if len(pending) == self.count:
                    yield pending.popleft().result()
                pending.append(pool.submit(call))
            while pending:
                yield pending.popleft().result()

    def close(self) -> None:
        """Stop the threads; they are restarted when needed."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def available_cores() -> int:
    """Count the processors that this process may use."""
    return len(os.sched_getaffinity(0))


# ---------------------------------------------------------------------------------------------------------------------
# Stages of a pipeline


AHEAD = 2
"""Items that are made ahead: with one, a stage of a pipeline often waits for the other's thread to be woken."""

_SILENCE_SECONDS = 10.0
"""The time after which a thread that is not needed any more, such as one that waits for a server, is left alone."""


class _Current(threading.local):
    """Events of which any tells the current thread, one of `ahead`, that nobody takes its items any more."""

    stops: tuple[threading.Event, ...] = ()


_current = _Current()


def ahead(items: Generator[Item, None, None], n: int = AHEAD) -> Generator[Item, None, None]:
    """Yield the items of a generator; while one is in use, a thread makes the next `n`.

    ``1 + n`` items exist at a time, so memory of the generator's own may be used again for the item after them. An error
    of the generator is raised here. On closing, the thread ends after the item that it is making, and is waited for: in
    Arrow's code it would abort a process that ends. Waiting for input, a generator asks `is_abandoned`.
    """
    requests: queue.SimpleQueue[bool] = queue.SimpleQueue()  # False ends the thread
    made: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
    stopped = threading.Event()
    stops = (stopped, *_current.stops)  # those of the thread that takes the items, too

    def make() -> None:
        _current.stops = stops
        try:
            while requests.get() and not stopped.is_set():
                made.put((next(items), None))
        except BaseException as error:  # StopIteration too: raised in the thread that takes the items
            made.put((None, error))
        finally:
            items.close()

    thread = threading.Thread(target=make, name="streamcd-ahead", daemon=True)
    thread.start()
    try:
        for _ in range(n):
            requests.put(True)
        while True:
            item, error = made.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            requests.put(True)
            yield item
            del item  # before the next one is waited for
    finally:
        stopped.set()
        requests.put(False)
        thread.join(_SILENCE_SECONDS)


def is_abandoned() -> bool:
    """Tell a thread of `ahead` if nobody takes its items any more."""
    return any(stopped.is_set() for stopped in _current.stops)


# ---------------------------------------------------------------------------------------------------------------------
# Worker processes


COORDINATOR_BYTES = 200_000_000
"""Memory of the coordinator, the process that hands out the work, and of Python's resource tracker.

Measured on Linux x86-64: at most 142 MB for the first, with numba and pyarrow loaded and nothing compiled, and 10 MB for the
other; the rest is for tables.
"""

TASKS_PER_WORKER = 8
"""Tasks that divisible work is cut into, per worker, so that all workers finish at about the same time."""

Tell = Callable[[int], None]
"""Report of the amount of work done."""


def memory_per_worker(
    budget: int,
    workers: int,
    needs: Mapping[str, int],
    own: Mapping[str, int] | None = None,
    advice: str = "",
    *,
    apart: bool = False,
) -> int:
    """Divide a budget for all processes together: return the bytes that each worker has besides its needs.

    `needs` (bytes by purpose) are those of each worker, `own` those of the coordinator; a single worker is this process
    unless it is `apart`. The reserves for interpreters are added here. Raises `BudgetError` with the arithmetic if the sum
    exceeds the budget.
    """
    advice = advice or "give a larger --memory" + (" or fewer --workers" if workers > 1 else "")
    if workers == 1 and not apart:
        return require(budget, needs, advice)
    each = {"interpreter and libraries": RESERVED_BYTES, **needs}
    parts = {f"{what} ({workers} times)": workers * n_bytes for what, n_bytes in each.items()}
    parts |= {"to hand out the work": COORDINATOR_BYTES, **(own or {})}
    return require(budget, parts, advice, reserved=0) // workers


class Pool:
    """Pool of worker processes, or of this one alone; a context manager, on whose exit all others have ended.

    They import `module`, that of the tasks, in the background.
    """

    def __init__(self, n_workers: int, listener: Listener, module: str = __name__) -> None:
        if n_workers < 1:
            raise UsageError(f"workers: expected 1 or more, found {n_workers}")
        self.n_workers = n_workers
        self.listener = listener
        self._workers: dict[Connection, BaseProcess] = {}
        try:
            if n_workers > 1:
                self._start(module)
        except BaseException:  # Ctrl-C, for one
            self.__exit__()  # there is no context yet whose exit would end the workers
            raise

    def _start(self, module: str) -> None:
        if multiprocessing.current_process().daemon:
            raise UsageError(
                "workers: expected 1 in a process of a multiprocessing pool, which may not start others, "
                f"found {self.n_workers}"
            )
        context: ForkContext | SpawnContext = SpawnContext()
        # no other Python threads; libraries take care of their own across a fork
        if threading.active_count() == 1:
            importlib.import_module(module)
            context = ForkContext()
        with kept_by_copies(), warnings.catch_warnings():
            # Python 3.12 and later warn of threads, including those of libraries
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
            # Left to itself, Linux let two workers take turns on one processor for seconds on end: each wakes its read-ahead
            # thread about a hundred times a second, and the scheduler tends to keep such threads on one processor.
            cores = sorted(os.sched_getaffinity(0))
            ends = [len(cores) * number // self.n_workers for number in range(self.n_workers + 1)]
            for start, stop in itertools.pairwise(ends):
                share = cores[start:stop] if self.n_workers <= len(cores) else []
                ours, theirs = multiprocessing.Pipe()
                self._workers[ours] = context.Process(
                    target=_serve, args=(theirs, module, share, HeldLocks()), daemon=True
                )
                self._workers[ours].start()
                theirs.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        # they have no unfinished work unless something went wrong
        started = [process for process in self._workers.values() if process.pid is not None]
        for process in started:
            process.kill()
        for process in started:
            process.join(timeout=5.0)

    def run(
        self,
        function: Callable[..., Any],
        tasks: Sequence[tuple[Any, ...]],
        *,
        phase: str = "",
        unit: str = "B",
        sizes: Sequence[int] = (),
        tells: bool = False,
    ) -> list[Any]:
        """Carry out ``function(*arguments)`` for every task, begun in order; returns the results in that order.

        `function` belongs to a module, so that workers can import it. `sizes` are the tasks' shares of the progress, in
        `unit`; without them none is reported. With `tells` a last argument takes the amount done, or is None where the end
        of each task is reported. Raises the error of the first failed task, in order, and `EnvironmentFailure` if a worker
        died.
        """
        total = sum(sizes) or None

        def tell(done: int) -> None:
            self.listener.progress(Progress(phase, done, total, unit))

        done = dict[int, Any]()
        errors = dict[int, Exception]()
        for number, arguments in enumerate(() if self._workers else tasks):
            done[number] = function(*arguments, *([tell] if tells else []))
            if sizes and not tells:
                tell(sum(sizes[: number + 1]))
        waiting = deque(enumerate(tasks if self._workers else ()))
        idle = list(self._workers)
        # with few tasks some workers end early, and the threads of the others can use their processors
        at_work = dict[Connection, int]()
        apart = len(tasks) >= 2 * self.n_workers
        while at_work or waiting:
            while waiting and idle:
                number, arguments = waiting.popleft()
                at_work[worker := idle.pop()] = number
                with self._answering(worker):
                    worker.send((function, (*arguments, None) if tells else arguments, apart))
            ready = multiprocessing.connection.wait(at_work)
            for worker in [one for one in self._workers if one in ready]:
                with self._answering(worker):
                    result, error = worker.recv()
                idle.append(worker)
                if error is not None:
                    errors[at_work.pop(worker)] = error
                    waiting.clear()  # all before it have begun
                    continue
                done[at_work.pop(worker)] = result
                if sizes:
                    tell(sum(sizes[number] for number in done))
        if errors:
            raise errors[min(errors)]
        return_heap()
        return [done[number] for number in range(len(tasks))]

    @contextmanager
    def _answering(self, worker: Connection) -> Iterator[None]:
        """Tell how a worker ended that is found to have."""
        try:
            yield
        except (EOFError, ConnectionError):
            process = self._workers[worker]
            process.join(timeout=5.0)
            code = process.exitcode or 0
            how = "ended before its work was done; a script that asks for workers has to do so under "
            how += "'if __name__ == \"__main__\":'"
            if code < 0:
                how = f"was killed by {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                how += ", perhaps for lack of memory: give a smaller --memory or fewer --workers"
            raise EnvironmentFailure(f"one of {self.n_workers} worker processes {how}") from None


def _serve(tasks: Connection, module: str, processors: Sequence[int], _: HeldLocks) -> None:
    """Carry out tasks as they come, in a worker."""
    # Ctrl-C reaches every process of a terminal; the coordinator ends the others
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # used by the coordinator, whose handler a fork inherits
    threading.Thread(target=_end_with_parent, daemon=True).start()
    importlib.import_module(module)
    whole = os.sched_getaffinity(0) if processors else set[int]()
    with suppress(EOFError):
        while True:
            _answer(tasks, processors, whole)
            return_heap()


def _answer(tasks: Connection, processors: Collection[int], whole: Collection[int]) -> None:
    function, arguments, apart = tasks.recv()
    if processors:
        os.sched_setaffinity(0, processors if apart else whole)
    result = None
    failure = None
    try:
        result = function(*arguments)
    except Exception as error:
        if not isinstance(error, StreamcdError | OSError):  # a mistake of ours
            error.add_note(traceback.format_exc())
        failure = error
    tasks.send((result, failure))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def in_shares(sizes: Sequence[int], n_shares: int) -> list[tuple[int, int]]:
    """Cut a sequence into at most `n_shares` ranges of about equal sums, as (start, stop)."""
    total = sum(sizes)
    n_items = len(sizes)
    ends = [0]
    for stop, before in enumerate(itertools.accumulate(sizes), start=1):
        if stop == n_items or before * n_shares >= total * len(ends):
            ends.append(stop)
    return list(itertools.pairwise(ends))

"""Work shared out to processes of this machine, by dask's local scheduler of processes.

A task is a plain function elsewhere; this module starts the processes, hands out tasks in order, tells
how far they are, and ends them whatever happens. Dask's local scheduler and not a cluster: no ports, no serialised data,
a tenth of the memory, and a process that is killed ends the work at once instead of being started again.

A process with no other thread is copied (on Linux), with all that it has loaded: a second's work less for every worker. One
with threads is not, because in a copy the locks that they hold are never released: its workers are spawned, and a script
must then be importable, as always with Python's processes: its work goes under ``if __name__ == "__main__":``.
"""

from __future__ import annotations

import importlib
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from .errors import EnvironmentFailure, StreamcdError, UsageError
from .locks import HeldLocks, kept_by_copies
from .memory_budget import RESERVED_BYTES, format_size
from .progress import Listener, Progress

COORDINATOR_BYTES = 200_000_000
"""Memory of the process that hands out the work, and of the one that Python starts to look after semaphores.

Measured on Linux x86-64: 142 MB with numba, pyarrow and dask loaded, which compiles nothing; 10 MB; the rest for tables.
"""

TASKS_PER_WORKER = 8
"""Into how many tasks work is cut where it can be: the last ones then end at about the same time."""

_EXIT_SECONDS = 5.0

Tell = Callable[[int], None]
"""Told how much is done."""


def checked_workers(workers: int) -> int:
    """The number of workers, if it is one."""
    if workers < 1:
        raise UsageError(f"expected --workers 1 or more, found {workers}")
    return workers


def memory_per_worker(
    budget: int,
    workers: int,
    needs: Mapping[str, int],
    own: Mapping[str, int] | None = None,
    advice: str = "give a larger --memory or fewer --workers",
) -> int:
    """Share out a budget for the sum of all processes: return the bytes that each worker has besides its needs.

    `needs` (bytes by purpose) are those of every worker, `own` those of the process that hands out the work; the reserves
    for interpreters are added here. A sum beyond the budget is refused with the arithmetic.
    """
    each = {"interpreter and libraries": RESERVED_BYTES, **needs}
    coordinator = COORDINATOR_BYTES + sum((own or {}).values())
    total = coordinator + workers * sum(each.values())
    if total > budget:
        arithmetic = " + ".join(f"{format_size(n_bytes)} {what}" for what, n_bytes in each.items() if n_bytes)
        raise UsageError(
            f"--memory {format_size(budget)} is too small for {workers} workers: {format_size(coordinator)} to hand out "
            f"the work + {workers} × ({arithmetic}) = {format_size(total)} needed; {advice}"
        )
    return (budget - total) // workers


# ---------------------------------------------------------------------------------------------------------------------
# In a worker

_first_failed: Any = None  # the least number of a task that failed, shared by all workers
_processors: list[set[int]] = []  # all, and this worker's share of them; empty where they are not shared out


def _begin(first_failed: Any, n_begun: Any, shares: Sequence[Sequence[int]], _: HeldLocks) -> None:
    global _first_failed
    _first_failed = first_failed
    with n_begun.get_lock():
        number = n_begun.value
        n_begun.value += 1
    if number < len(shares):
        _processors.extend([os.sched_getaffinity(0), set(shares[number])])
    # Ctrl-C reaches every process of a terminal; the one that hands out the work ends the others
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by which it may do so; a copy has its handler
    threading.Thread(target=_end_with_parent, daemon=True).start()


def processor_shares(processors: Sequence[int], n_workers: int) -> list[list[int]]:
    """Processors for every worker to keep to, neighbours together; none where there are more workers than processors.

    Left to itself the system had both of two workers take turns on one processor for seconds on end: each wakes its thread
    that reads ahead some hundred times a second, and the scheduler likes to keep those together.
    """
    if n_workers > len(processors):
        return []
    ends = [len(processors) * number // n_workers for number in range(n_workers + 1)]
    return [list(processors[start:stop]) for start, stop in itertools.pairwise(ends)]


def _load(module: str) -> None:
    import dask.multiprocessing  # noqa: F401 - what carries tasks is loaded ahead too

    importlib.import_module(module)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class _Failure(NamedTuple):
    """An error that a task ended with, on its way to the process that asked."""

    error: Exception


def _carry_out(function: Callable[..., Any], number: int, arguments: tuple[Any, ...], apart: bool) -> Any:
    """Do a task; one that comes after a task that failed is not begun."""
    if _first_failed.value < number:
        return None
    if _processors:
        os.sched_setaffinity(0, _processors[apart])
    try:
        return function(*arguments)
    except (StreamcdError, OSError, MemoryError) as error:
        with _first_failed.get_lock():
            _first_failed.value = min(_first_failed.value, number)
        return _Failure(error)


# ---------------------------------------------------------------------------------------------------------------------
# In the process that hands out the work


class _Remembering:
    """Remembers the processes that a context of multiprocessing starts."""

    def __init__(self) -> None:
        super().__init__()
        self.processes: list[BaseProcess] = []

    def Process(self, *arguments: Any, **options: Any) -> BaseProcess:
        process: BaseProcess = super().Process(*arguments, **options)  # type: ignore[misc]
        self.processes.append(process)
        return process


class _Spawning(_Remembering, SpawnContext):  # type: ignore[misc]
    """Starts processes from nothing."""


class _Copying(_Remembering, ForkContext):  # type: ignore[misc]
    """Starts processes as copies of this one."""


@contextmanager
def _signals_later() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back: an exception in the midst of starting or ending processes can get lost there."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals do not come here
        return
    received: list[int] = []
    handlers = {
        signum: signal.signal(signum, lambda number, _: received.append(number))
        for signum in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler if handler is not None else signal.SIG_DFL)
    if received:
        signal.raise_signal(received[0])


class InProcess:
    """Carries out tasks in this process, with nothing in between; a context as `Workers` is."""

    n_workers = 1

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], **_: Any) -> list[Any]:
        """Carry out ``function(*arguments)`` for every task; tasks tell themselves how far they are."""
        return [function(*arguments) for arguments in tasks]

    def tell_within(self, phase: str, unit: str, total: int | None) -> Tell | None:
        """Give a function by which a task tells how far it is; None where the end of each task is told for it."""
        return lambda done: self.listener.progress(Progress(phase, done, total, unit))


class Workers:
    """Processes that carry out tasks; a context, at whose end they have ended.

    They load `module`, that of the tasks, while other things are done.
    """

    def __init__(self, n_workers: int, listener: Listener, module: str) -> None:
        self.n_workers, self.listener, self._module = n_workers, listener, module
        with _signals_later(), warnings.catch_warnings():
            # Python 3.12 and later warn of threads, which those of libraries are too
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
            self._start(module)

    def _start(self, module: str) -> None:
        if multiprocessing.current_process().daemon:
            raise UsageError(
                "workers: expected 1 in a process of a multiprocessing pool, which may not start others, "
                f"found {self.n_workers}"
            )
        self._context: _Copying | _Spawning = _Spawning()
        # one thread of Python's at most; those of libraries look after themselves
        if sys.platform == "linux" and threading.active_count() == 1:
            _load(module)
            self._context = _Copying()
        self._first_failed = self._context.Value("q", 0)
        shares = processor_shares(sorted(os.sched_getaffinity(0)), self.n_workers)
        self._pool = ProcessPoolExecutor(
            self.n_workers,
            mp_context=self._context,
            initializer=_begin,
            initargs=(self._first_failed, self._context.Value("q", 0), shares, HeldLocks()),
        )
        # a worker that dies so early is met again, and told of, by `run`
        with kept_by_copies(), suppress(BrokenProcessPool):
            for _ in range(self.n_workers):
                self._pool.submit(_load, module)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exception: object) -> None:
        with _signals_later():
            self._end()

    def _end(self) -> None:
        # nothing of theirs is unfinished unless something went wrong; to let them end by themselves takes seconds
        for process in self._context.processes:
            with suppress(
                ValueError, AttributeError, ProcessLookupError
            ):  # it was never started, or has ended
                process.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for process in self._context.processes:
            with suppress(ValueError, AssertionError):
                process.join(timeout=_EXIT_SECONDS)

    def tell_within(self, phase: str, unit: str, total: int | None) -> Tell | None:
        """None: the end of each task is told for it."""
        return None

    def run(
        self,
        function: Callable[..., Any],
        tasks: Sequence[tuple[Any, ...]],
        *,
        phase: str = "",
        unit: str = "B",
        sizes: Sequence[int] | None = None,
    ) -> list[Any]:
        """Carry out ``function(*arguments)`` for every task, begun in order; returns the results in that order.

        `function` is of a module, so that workers can import it. `sizes` are the tasks' parts in the progress, in `unit`;
        without them nothing is told. Raises the error of the first task, in order, that failed, and `EnvironmentFailure`
        where a worker died.
        """
        # dask takes tens of megabytes and most of a second; who works alone does not load it
        with _signals_later():
            import dask
            import dask.multiprocessing
            from dask.callbacks import Callback

        self._first_failed.value = len(tasks)
        numbers = {f"task-{number:09d}": number for number in range(len(tasks))}
        done = 0

        def tell(key: Any, *_: Any) -> None:
            nonlocal done
            if sizes is not None:
                done += sizes[numbers[key]]
                self.listener.progress(Progress(phase, done, sum(sizes), unit))

        # of few tasks some end early, and the threads of the others can use the processors that they leave
        apart = len(tasks) >= 2 * self.n_workers
        carry_out = dask.delayed(_carry_out, pure=False, traverse=False)
        delayed = [
            carry_out(function, number, arguments, apart, dask_key_name=name)
            for (name, number), arguments in zip(numbers.items(), tasks, strict=True)
        ]
        try:
            with Callback(posttask=tell):
                # one task at a time to a worker: six of them, as is usual, would leave others without work
                results = dask.compute(
                    *delayed,
                    scheduler=dask.multiprocessing.get,
                    pool=self._pool,
                    chunksize=1,
                    optimize_graph=False,
                )
        except BrokenProcessPool:
            raise EnvironmentFailure(self._describe_worker_exit()) from None
        for result in results:
            if isinstance(result, _Failure):
                raise result.error
        return list(results)

    def _describe_worker_exit(self) -> str:
        found = [_exit_code(process) for process in self._context.processes]
        codes = [code for code in found if code is not None]
        # the pool ends the others with SIGTERM when one has died
        by_signal = [-code for code in codes if code < 0 and -code != signal.SIGTERM]
        if codes and all(code == -signal.SIGTERM for code in codes):
            how, advice = "was ended by SIGTERM", "run it again"
        elif by_signal:
            how = f"was killed by {signal.Signals(by_signal[0]).name}"
            advice = (
                "the system may have run out of memory: give a smaller --memory or fewer --workers"
                if by_signal[0] == signal.SIGKILL
                else "run it again"
            )
        else:
            how = "ended before its work"
            advice = (
                "a script that asks for workers has to do so under 'if __name__ == \"__main__\":'; "
                "--workers 1 needs no other process"
            )
        return f"one of {self.n_workers} worker processes {how}; what it had begun was undone; {advice}"


Pool = InProcess | Workers


def open_pool(n_workers: int, listener: Listener, module: str) -> Pool:
    """Open what carries out tasks: this process, or several others (see `Workers`)."""
    return InProcess(listener) if n_workers == 1 else Workers(n_workers, listener, module)


def _exit_code(process: BaseProcess) -> int | None:
    process.join(timeout=_EXIT_SECONDS)
    deadline = time.monotonic() + 1.0
    # a thread of the pool's may have it from the system, and not have noted it yet
    while process.exitcode is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return process.exitcode


def in_shares(sizes: Sequence[int], n_shares: int) -> list[tuple[int, int]]:
    """Cut a sequence into at most `n_shares` ranges of about the same sum, as (start, stop)."""
    total, n_items = sum(sizes), len(sizes)
    ends = [0]
    for stop, before in enumerate(itertools.accumulate(sizes), start=1):
        if stop == n_items or before * n_shares >= total * len(ends):
            ends.append(stop)
    return list(itertools.pairwise(ends))

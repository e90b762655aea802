"""Threads that share one computation: kernels release the interpreter's lock, so that they run in parallel.

No result depends on the number of threads: a sum is computed within one part, or over parts in an order set by the data.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, TypeVar

from .errors import UsageError

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

    def run(self, calls: Sequence[Callable[[], object]], n_operations: int = 1 << 62) -> None:
        """Make calls, at most `count` at a time, and return when all are done; raises one of their errors.

        Each thread, the caller's among them, takes the next call as soon as it is free; there is one for each of `parts`.
        """
        n_threads = min(self.parts(n_operations), len(calls))
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
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# ---------------------------------------------------------------------------------------------------------------------
# Stages of a pipeline


AHEAD = 2
"""Items that are made ahead: with one, a stage of a pipeline often waits for the other's thread to be woken."""


def ahead(items: Generator[Item, None, None], n: int = AHEAD) -> Generator[Item, None, None]:
    """Yield the items of a generator; while one is in use, a thread makes the next `n`.

    ``1 + n`` items exist at a time, so memory of the generator's own may be used again for the item after them. An error
    of the generator is raised here. On closing, the thread ends after the item that it is making; one that waits for input
    is left waiting, as nothing can wake it.
    """
    asked: queue.SimpleQueue[bool] = queue.SimpleQueue()  # False ends the thread
    made: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
    stopped = threading.Event()

    def make() -> None:
        try:
            while asked.get() and not stopped.is_set():
                made.put((next(items), None))
        except BaseException as error:  # StopIteration too: raised in the thread that takes the items
            made.put((None, error))
        finally:
            items.close()

    thread = threading.Thread(target=make, name="streamcd-ahead", daemon=True)
    thread.start()
    try:
        for _ in range(n):
            asked.put(True)
        while True:
            item, error = made.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            asked.put(True)
            yield item
            del item  # before the next one is waited for
    finally:
        stopped.set()
        asked.put(False)
        thread.join(timeout=1.0)

"""Threads that share one computation: kernels release the interpreter's lock, so that they run in parallel.

No result depends on the number of threads: a sum is computed within one part, or over parts in an order set by the data.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from .errors import UsageError

T = TypeVar("T")

_LEAST_OPERATIONS = 100_000  # in a part, of a nanosecond each; handing over a part costs about 50,000


class Threads:
    """A number of threads, including the caller's; the others are started when first needed.

    Parameters
    ----------
    count : int
    """

    def __init__(self, count: int = 1) -> None:
        if count < 1:
            raise UsageError(f"threads: expected at least 1, found {count}")
        self.count = count
        self._pool: ThreadPoolExecutor | None = None

    def parts(self, n_operations: int) -> int:
        """Return the number of parts to divide work into, none so small that handing it over takes longer than doing it."""
        return max(min(self.count, n_operations // _LEAST_OPERATIONS), 1)

    def run(self, calls: Sequence[Callable[[], object]]) -> None:
        """Make calls, at most `count` at a time, and return when all are done; raises one of their errors.

        Each thread, the caller's among them, takes the next call as soon as it is free.
        """
        if self.count == 1 or len(calls) < 2:
            for call in calls:
                call()
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.count - 1, thread_name_prefix="streamcd-work")
        remaining = iter(list(calls))  # which gives each call to one thread

        def work() -> None:
            for call in remaining:
                call()

        others = [self._pool.submit(work) for _ in range(min(self.count, len(calls)) - 1)]
        try:
            work()
        finally:
            wait(others)
        for other in others:
            other.result()

    def in_order(self, calls: Iterable[Callable[[], T]]) -> Iterator[T]:
        """Make calls, at most `count` at a time, and yield their results in order; raises the first call's error.

        The caller's thread makes none, unless it is the only one: it uses the results meanwhile. At most `count` calls are
        made, or their results kept, beside the one that it uses.
        """
        if self.count == 1:
            yield from (call() for call in calls)
            return
        pending: deque[Future[T]] = deque()
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


def make_threads(count: int | None) -> Threads:
    """Make `count` threads; by default one per available processor."""
    return Threads(available_cores() if count is None else count)

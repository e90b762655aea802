"""Locks that keep two processes from writing the same directory; they end with the last process that holds them.

A copy of a process shares its locks, and would hold them beyond its end: copies let go of theirs at once. Workers keep them:
whatever has ended the process that hands out the work, its place is free only when nobody writes there any more.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import reduction
from pathlib import Path
from typing import Any

_held: set[int] = set()
_copies_keep = False


def take_lock(path: Path, flags: int = os.O_RDONLY) -> int | None:
    """Open a file or a directory and lock it for this process alone.

    Returns the descriptor that holds the lock; None where another process has it.
    """
    descriptor = os.open(path, flags, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    _held.add(descriptor)
    return descriptor


def release_lock(descriptor: int) -> None:
    """Let go of a lock."""
    _held.discard(descriptor)
    os.close(descriptor)


@contextmanager
def kept_by_copies() -> Iterator[None]:
    """Let copies of this process that are made meanwhile hold its locks too."""
    global _copies_keep
    _copies_keep = True
    try:
        yield
    finally:
        _copies_keep = False


class HeldLocks:
    """All locks of this process, for the arguments of one that is spawned: it holds them from when it unpacks these."""

    def __reduce__(self) -> tuple[Callable[..., HeldLocks], tuple[Any, ...]]:
        return _hold, tuple(reduction.DupFd(descriptor) for descriptor in _held)


def _hold(*received: Any) -> HeldLocks:
    _held.update(descriptor.detach() for descriptor in received)
    return HeldLocks()


def _let_go() -> None:
    if not _copies_keep:
        for descriptor in tuple(_held):
            release_lock(descriptor)


os.register_at_fork(after_in_child=_let_go)

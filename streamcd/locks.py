"""Locks that keep two processes from writing the same directory; they end with the process that took them, however it ends.

A copy of a process shares its locks, and would hold them beyond its end: copies let go of theirs at once.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

_held: set[int] = set()


def take_lock(path: Path, flags: int = os.O_RDONLY) -> int | None:
    """Open a file or a directory and lock it for this process alone.

    Parameters
    ----------
    path : Path
    flags : int
        How to open it.

    Returns
    -------
    int or None
        The descriptor that holds the lock; None where another process has it.
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


def _let_go() -> None:
    for descriptor in tuple(_held):
        release_lock(descriptor)


os.register_at_fork(after_in_child=_let_go)

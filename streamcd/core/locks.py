"""Locks that keep two processes from writing the same directory; they end with the last process that holds them.

A forked child inherits its parent's locks, and would hold them after the parent's end, so children release them at once.
Only workers keep them: however the coordinator ended, its directory is free only when no worker writes there any more.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import reduction
from pathlib import Path
from typing import Any

_held: set[int] = set()
_copies_keep = False
_DYING_SECONDS = 5.0
"""The time in which the workers of a killed process, which hold its locks, end on a busy machine."""


def take_lock(path: Path, flags: int = os.O_RDONLY) -> int | None:
    """Open a file or a directory and lock it for this process alone.

    Returns the descriptor that holds the lock; None if another process has it. Where that one has ended, its workers are
    ending: they are waited for.
    """
    descriptor = os.open(path, flags, 0o644)
    until = time.monotonic() + _DYING_SECONDS
    while True:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _held.add(descriptor)
            return descriptor
        if _is_of_a_living_process(descriptor) or time.monotonic() > until:
            os.close(descriptor)
            return None
        time.sleep(0.02)


def _is_of_a_living_process(descriptor: int) -> bool:
    """Check if the process that took the lock of a file still lives; the system lists who took which."""
    number = os.fstat(descriptor).st_ino
    with suppress(OSError), open("/proc/locks", encoding="ascii") as lines:
        for (
            line
        ) in lines:  # "1: FLOCK  ADVISORY  WRITE 4242 08:01:1234567 0 EOF", in its own namespace of processes
            _, kind, _, _, process, file, *_ = line.split()
            if kind == "FLOCK" and file.endswith(f":{number}") and os.path.exists(f"/proc/{process}"):
                return True
        return False
    return True  # no list: macOS


def release_lock(descriptor: int) -> None:
    _held.discard(descriptor)
    os.close(descriptor)


@contextmanager
def scratch_directory(parent: Path, purpose: str) -> Iterator[Path]:
    """Make a directory in `parent` for temporary files, removed at the end.

    Directories left there by killed processes for the same purpose are removed first: nobody holds their locks.
    """
    prefix = f".streamcd-{purpose}-"
    for old in parent.glob(f"{prefix}*"):
        if old.is_dir() and not old.is_symlink() and old.stat().st_uid == os.geteuid():
            _remove_unlocked(old)
    path, lock = _locked_directory(parent, prefix)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        release_lock(lock)


def _remove_unlocked(path: Path) -> None:
    with suppress(OSError):  # another process may remove it too
        lock = take_lock(path)
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            release_lock(lock)


def _locked_directory(parent: Path, prefix: str) -> tuple[Path, int]:
    """Make a directory and lock it; start over if another process removed it before it was locked."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with suppress(FileNotFoundError):
            lock = take_lock(path)
            if lock is not None and path.exists():
                return path, lock


@contextmanager
def kept_by_copies() -> Iterator[None]:
    """Let processes forked within the block keep this process's locks."""
    global _copies_keep
    _copies_keep = True
    try:
        yield
    finally:
        _copies_keep = False


class HeldLocks:
    """All locks of this process, as an argument for a spawned one, which holds them once it has unpickled this."""

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

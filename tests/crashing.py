"""Trainings that are killed at a chosen moment, in copies of this process."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.faults.injection import FaultyFiles


def killed(
    call: Callable[..., object],
    *,
    run: Path,
    at: int = 0,
    half: bool = False,
    after: float | None = None,
    **arguments: Any,
) -> int | None:
    """Train or resume in a process that dies; returns None, or how many operations on files it made where it has lived.

    It kills itself `at` its n-th operation (a write to a slot, a sync, a rename), with `half` after writing only half of it.
    Or it is killed so many seconds `after` its first window.
    """
    files = FaultyFiles(at, "half" if half else "before", ("pwritev", "fsync", "replace"))
    begun_out, begun_in = os.pipe()

    def tell_begun() -> None:
        os.write(begun_in, b"x")

    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            try:
                files.install()
                call(run=run, stop_requested=tell_begun, **arguments)
                status = 0
            except BaseException:
                traceback.print_exc()
        os._exit(status)
    os.close(begun_in)
    if after is not None:
        os.read(begun_out, 1)
        time.sleep(after)
        os.kill(child, signal.SIGKILL)  # it may have ended, but is waited for below
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(begun_out)
    assert status in (0, -signal.SIGKILL)
    return files.count if status == 0 else None

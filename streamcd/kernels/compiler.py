"""A process that compiles kernels for this one, so that the compiler's memory is never part of a memory budget.

It writes to the compile cache, from which this process loads. A process that compiled held up to 306 MB afterwards, one that
only loads 180 MB.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from typing import Any

told: list[Callable[[], None]] = []
"""Functions that are called before each compilation of a kernel that is not cached."""

_IDLE_SECONDS = 1.0  # without a request, after which the process ends
_DONE = b"1"
_PROGRAM = f"import sys; sys.path[:] = sys.argv[2:]; from {__name__} import main; main(int(sys.argv[1]))"


class _Compiler:
    """The process, started with the first kernel."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        # A copy of this process has one of its own. Descriptors kept by the copy, closed later, may be those of other files.
        os.register_at_fork(after_in_child=self._close)

    def compile(self, request: bytes) -> bool:
        """Have a kernel compiled; return whether it was."""
        for fresh in (False, True):  # the one that ran may have just ended
            with suppress(OSError, ValueError, EOFError):
                pipe = self._running(fresh)
                pipe.send_bytes(request)
                return pipe.recv_bytes() == _DONE
        return False

    def _running(self, fresh: bool) -> Connection:
        if fresh and self._process is not None:
            self._process.wait()  # which has closed the pipe, so it is about to end
        if fresh or self._pipe is None or self._process is None or self._process.poll() is not None:
            self._close()
            own, its = Pipe()
            with its:
                command = [sys.executable, "-c", _PROGRAM, str(its.fileno()), *sys.path]
                none, passed = subprocess.DEVNULL, [its.fileno()]
                self._process = subprocess.Popen(
                    command, stdin=none, stdout=none, stderr=none, pass_fds=passed
                )
            self._pipe = own
        return self._pipe

    def _close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None


_compiler = _Compiler()


def compile_elsewhere(function: Any, signature: Any) -> bool:
    """Have a kernel compiled by another process, which writes it to the compile cache; return whether it was."""
    if "<locals>" in function.__qualname__ or _is_compiler:
        return False
    try:
        request = pickle.dumps((function.__module__, function.__qualname__, signature))
    except (pickle.PicklingError, AttributeError, TypeError):  # a type that has no name outside this process
        return False
    return _compiler.compile(request)


_is_compiler = False


def main(descriptor: int) -> None:
    """Compile what is asked for through a pipe, until there is nothing for a while."""
    global _is_compiler
    _is_compiler = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who asks decides
    pipe = Connection(descriptor)
    with suppress(EOFError):
        while pipe.poll(_IDLE_SECONDS):
            module, name, signature = pickle.loads(pipe.recv_bytes())
            compiled = getattr(import_module(module), name)
            with ExitStack() as held:
                # Two processes that add signatures of one kernel may give them the same file of the cache. Where there is
                # no writing or no locking, it is as with numba alone.
                with suppress(OSError, TypeError):
                    folder = compiled.stats.cache_path
                    os.makedirs(folder, exist_ok=True)
                    fcntl.flock(held.enter_context(open(os.path.join(folder, "lock"), "w")), fcntl.LOCK_EX)
                compiled.compile(signature)  # which looks into the cache first
            pipe.send_bytes(_DONE)

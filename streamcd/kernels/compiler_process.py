"""A process that compiles kernels for this one, so that the compiler's memory is never part of a memory budget.

It writes to the compile cache, from which this process loads. A process that compiled held up to 306 MB afterwards, one that
only loads 180 MB.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from typing import Any

_IDLE_SECONDS = 1.0  # without a request, after which the process ends
_DONE = b"1"
_PROGRAM = f"import sys; sys.path[:] = sys.argv[1:]; from {__name__} import main; main()"


class _Compiler:
    """The process, started with the first kernel."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        # A copy of this process has one of its own. Descriptors kept by the copy, closed later, may be those of other files.
        os.register_at_fork(after_in_child=self._close)

    def compile(self, request: bytes) -> bool:
        """Have a kernel compiled; return whether it was."""
        for fresh in (False, True):  # the one that ran may have just ended
            process = self._running(fresh)
            if process is None or process.stdin is None or process.stdout is None:
                return False
            with suppress(OSError):
                rest = len(request).to_bytes(8, "little") + request
                while rest:
                    rest = rest[process.stdin.write(rest) :]
                answer = process.stdout.read(1)
                if answer:
                    return answer == _DONE
        return False

    def _running(self, fresh: bool) -> subprocess.Popen[bytes] | None:
        if fresh or self._process is None or self._process.poll() is not None:
            self._close()
            with suppress(OSError, ValueError):
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, *sys.path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    bufsize=0,  # buffers have locks, which a copy of this process might wait for in vain
                )
        return self._process

    def _close(self) -> None:
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                with suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]
            self._process = None


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


def main() -> None:
    """Compile what is asked for on standard input, until there is nothing for a while."""
    global _is_compiler
    _is_compiler = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who asks decides
    asked, answers = sys.stdin.buffer, sys.stdout.buffer
    while select.select([asked], [], [], _IDLE_SECONDS)[0]:
        size = int.from_bytes(_read(asked, 8), "little")
        if not size:
            return
        module, name, signature = pickle.loads(_read(asked, size))
        compiled = getattr(import_module(module), name)
        with _alone(compiled.stats.cache_path):
            compiled.compile(signature)  # which looks into the cache first
        answers.write(_DONE)
        answers.flush()


@contextmanager
def _alone(cache: str | None) -> Iterator[None]:
    """Lock a folder of the cache: two processes that add signatures of one kernel may give them the same file."""
    with ExitStack() as held:
        with suppress(OSError, TypeError):  # where there is no writing or no locking, as with numba alone
            os.makedirs(str(cache), exist_ok=True)
            fcntl.flock(held.enter_context(open(os.path.join(str(cache), "lock"), "w")), fcntl.LOCK_EX)
        yield


def _read(file: Any, size: int) -> bytes:
    parts = []
    while size and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)

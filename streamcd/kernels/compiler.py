"""Processes that compile kernels for this one, so that the compiler's memory is never part of a memory budget.

They write to the compile cache, from which this process loads. A process that compiled held up to 306 MB afterwards, one
that only loads 180 MB. One process is started, which has imported the compiler; of several kernels it has copies of itself
compile each one after the other, whichever no other process compiles at the moment.
"""

from __future__ import annotations

import fcntl
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from typing import Any

on_compile: list[Callable[[int, int], None]] = []
"""Functions that are called while kernels are compiled that are not cached, with the number of those done and of all."""

n_compiled = 0
"""Number of kernels that were compiled for this process."""

_IDLE_SECONDS = 1.0  # without a request, after which the process ends
_MOST_PROCESSES = 8
_DONE = b"done"
_PROGRAM = f"import sys; sys.path[:] = sys.argv[2:]; from {__name__} import main; main(int(sys.argv[1]))"


class _Compiler:
    """The process, started with the first kernel."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._lock = threading.Lock()
        # A copy of this process has one of its own. Descriptors kept by the copy, closed later, may be those of other files.
        os.register_at_fork(after_in_child=self._begin_anew)

    def compile(self, request: bytes, on_done: Callable[[int], None], end: bool) -> None:
        """Have kernels compiled, and be told of the number of each; `end` the process then."""
        with self._lock:
            for fresh in (False, True):  # the one that ran may have just ended
                try:
                    pipe = self._running(fresh)
                    pipe.send_bytes(request)
                    while (answer := pipe.recv_bytes()) != _DONE:
                        on_done(int(answer))
                    break
                except (OSError, ValueError, EOFError):
                    self._close()
                except (
                    BaseException
                ):  # such as Ctrl-C: what comes through the pipe is not for the next request
                    self._close()
                    raise
            if end and self._process is not None:
                process = self._process
                self._close()
                process.wait()

    def _running(self, fresh: bool) -> Connection:
        if fresh and self._process is not None:
            self._process.wait()  # which has closed the pipe, so it is about to end
        if fresh or self._pipe is None or self._process is None or self._process.poll() is not None:
            self._close()
            ours, its = Pipe()
            with its:
                command = [sys.executable, "-c", _PROGRAM, str(its.fileno()), *sys.path]
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[its.fileno()],
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # it forks
                )
            self._pipe = ours
        return self._pipe

    def _close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._close()


_compiler = _Compiler()
_is_compiler = False


def compile_elsewhere(kernels: Sequence[tuple[Any, Any]], folder: str | None, *, end: bool = False) -> None:
    """Have functions compiled, each for a signature, by other processes, which write them to the folder.

    All are left to numba where there is none, or where one has no name outside this process. With `end` the processes have
    ended then; else one waits for more.
    """
    global n_compiled
    if _is_compiler:
        return
    n_compiled += len(kernels)
    requests = [(function.__module__, function.__qualname__, signature) for function, signature in kernels]
    done = set[int]()

    def tell() -> None:
        for call in list(on_compile):
            call(len(done), len(requests))

    def on_done(number: int) -> None:
        if number not in done:
            done.add(number)
            tell()

    tell()
    if folder is None or any("<locals>" in name for _, name, _ in requests):
        return
    try:
        pickled = pickle.dumps(requests)
    except (pickle.PicklingError, AttributeError, TypeError):  # a type that has no name outside this process
        return
    _compiler.compile(pickled, on_done, end)


def main(descriptor: int) -> None:
    """Compile what is asked for through a pipe, until there is nothing for a while."""
    global _is_compiler
    _is_compiler = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who asks decides
    gc.disable()  # it would look at the compiler's many objects again and again, a tenth of the time
    pipe = Connection(descriptor)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while pipe.poll(_IDLE_SECONDS):
            requests = pickle.loads(pipe.recv_bytes())
            kernels = [
                (getattr(import_module(module), name), signature) for module, name, signature in requests
            ]
            n_processes = min(len(kernels), len(os.sched_getaffinity(0)), _MOST_PROCESSES)
            if n_processes == 1:
                _compile_all(kernels, pipe)
            else:
                kernels[0][0].targetctx.refresh()  # once for all copies
                kernels[0][0].typingctx.refresh()
                copies = [_start_copy(kernels, pipe) for _ in range(n_processes)]
                for copy in copies:
                    os.waitpid(copy, 0)
            pipe.send_bytes(_DONE)


def _start_copy(kernels: Sequence[tuple[Any, Any]], pipe: Connection) -> int:
    process = os.fork()
    if process == 0:
        try:
            _compile_all(kernels, pipe)
        finally:
            os._exit(0)
    return process


def _compile_all(kernels: Sequence[tuple[Any, Any]], pipe: Connection) -> None:
    """Compile the kernels that no other process has begun; then wait for those, and compile what is still missing."""
    later = list[int]()
    for wait, numbers in ((False, range(len(kernels))), (True, later)):
        for number in numbers:
            if _compile(*kernels[number], wait=wait):
                pipe.send_bytes(str(number).encode())
            else:
                later.append(number)


def _compile(compiled: Any, signature: Any, *, wait: bool) -> bool:
    """Compile a kernel if it is not cached, and return True; False if another process is at it and `wait` is not set."""
    cache = compiled._cache
    with open(os.path.join(cache.folder, "lock"), "a") as file:
        try:
            # a byte for each kernel, whose signatures share an index
            fcntl.lockf(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB, 1, cache.number)
        except (BlockingIOError, PermissionError):
            return False
        except OSError:  # no locking: it may be compiled twice
            pass
        if cache.read(signature, compiled.targetctx) is None:
            with suppress(Exception):  # the one who asks meets it as well, and raises it
                compiled.compile(signature)
    return True

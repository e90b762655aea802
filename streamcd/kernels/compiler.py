"""Processes that compile kernels for this one, so that the compiler's memory is never part of a memory budget.

They write to the compile cache, from which this process loads. A process that compiled held up to 306 MB afterwards, one
that only loads 180 MB. One process is started, which imports the compiler; then there are copies of it, one for each core.
"""

from __future__ import annotations

import fcntl
import gc
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

on_compile: list[Callable[[int, int], None]] = []
"""Functions that are called while kernels are compiled that are not cached, with the number of those done and of all."""

_MOST_PROCESSES = 8
_PROGRAM = f"import sys; sys.path[:] = sys.argv[1:]; from {__name__} import main; main()"

_is_compiler = False


def compile_elsewhere(kernels: Sequence[tuple[Any, Any]]) -> None:
    """Have functions, each with a signature, compiled by other processes, which write them to the cache and have ended then.

    What they cannot do is left to numba: a function may have no name outside this process.
    """
    if _is_compiler:
        return
    for call in on_compile:
        call(0, len(kernels))
    names = [(function.__module__, function.__qualname__, signature) for function, signature in kernels]
    with (
        suppress(OSError),
        subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # it forks
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(pickle.dumps(names))
            process.stdin.close()
            for done, _ in enumerate(process.stdout, start=1):
                for call in on_compile:
                    call(done, len(kernels))
        finally:  # Ctrl-C, for one: its copies end when nobody reads what they tell
            process.kill()


def main() -> None:
    """Compile the kernels that are named on standard input, and write a line for each."""
    global _is_compiler
    _is_compiler = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who asks decides
    gc.disable()  # it would look at the compiler's many objects again and again, a tenth of the time
    kernels = [
        (getattr(import_module(module), name), signature)
        for module, name, signature in pickle.load(sys.stdin.buffer)
    ]
    kernels[0][0].targetctx.refresh()  # once for all copies
    kernels[0][0].typingctx.refresh()
    numbers, into = os.pipe()  # a byte for each kernel, which the copies take
    os.write(into, bytes(range(len(kernels))))
    os.close(into)
    for _ in range(1, min(len(kernels), len(os.sched_getaffinity(0)), _MOST_PROCESSES)):
        if os.fork() == 0:
            break
    while number := os.read(numbers, 1):
        _compile(*kernels[number[0]])
        os.write(1, b"\n")
    os._exit(0)  # quickly


def _compile(compiled: Any, signature: Any) -> None:
    """Compile a kernel if it is not cached; wait for another process that is at it."""
    path = compiled._cache.path(signature, compiled.targetctx)
    with open(f"{path}.lock", "a") as file:
        with suppress(OSError):  # no locking: it may be compiled twice
            fcntl.flock(file, fcntl.LOCK_EX)
        if compiled._cache.read(signature, compiled.targetctx) is None:
            with suppress(Exception):  # the one who asks meets it as well, and raises it
                compiled.compile(signature)

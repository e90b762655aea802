"""Changes to Python, imported by every process of the tests, that alter no result, only how long it takes to come.

No test cuts the power, so no process waits for a disk; the tests of what a power cut leaves (`crashing`) watch the calls.

A kernel is compiled by one process, where several would compile it at the same time: the others wait and load it.
numba by itself may even confuse them: two processes that add signatures of one function to its cache at the same moment
can give both the same file.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


def _sync_nothing(descriptor: Any) -> None:
    os.fstat(descriptor if isinstance(descriptor, int) else descriptor.fileno())  # refuses what is not open


@contextmanager
def _locked(path: str) -> Iterator[None]:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # for a copy of this process too, which has the file open


def _compile_once(dispatchers: ModuleType) -> None:
    """Let one process at a time look for a function in the cache and compile it."""
    from numba.core.compiler_lock import global_compiler_lock

    compile_alone = dispatchers.Dispatcher.compile

    @functools.wraps(compile_alone)
    def compile_once(self: Any, sig: Any) -> Any:
        cache_file = getattr(self._cache, "_cache_file", None)
        if cache_file is None:
            return compile_alone(self, sig)
        self._cache._impl.locator.ensure_cache_path()
        # numba's lock first, in the same order for all threads; callees are locked after callers
        with global_compiler_lock, _locked(cache_file._index_path + ".lock"):
            return compile_alone(self, sig)

    dispatchers.Dispatcher.compile = compile_once


class _AfterNumba(importlib.abc.MetaPathFinder):
    """Calls `_compile_once` where numba is loaded; loading it for that would slow down all that do without it."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != "numba.core.dispatcher":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            _compile_once(module)

        spec.loader.exec_module = execute_and_change
        return spec


os.fsync = _sync_nothing
if "numba.core.dispatcher" in sys.modules:
    _compile_once(sys.modules["numba.core.dispatcher"])
else:
    sys.meta_path.insert(0, _AfterNumba())

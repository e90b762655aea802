"""Compilation of kernels, and a compile cache keyed by the contents of all kernel files.

A compiled kernel includes its callees and the constants that it reads, but numba recompiles it only if the kernel's own file
changes, so that the cached caller of an edited callee gave stale results. Here the stamp of the cache is a digest of all
files of this folder. It does not depend on their paths and times, so a copied or freshly checked-out tree uses kernels
compiled earlier, in its ``__pycache__`` or under ``NUMBA_CACHE_DIR``.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from llvmlite.binding import add_symbol
from numba import config, njit
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.runtime._nrt_python import c_helpers

_FILES = hashlib.sha256()
for _path in sorted(Path(__file__).parent.glob("*.py")):
    _FILES.update(f"{_path.name} {_path.stat().st_size}\n".encode() + _path.read_bytes())
_STAMP = _FILES.hexdigest()


class _ByContents:
    """A cache locator of numba's whose stamp is the digest; under ``NUMBA_CACHE_DIR`` all trees with it share a folder."""

    def get_source_stamp(self) -> str:
        return _STAMP

    def get_cache_path(self) -> str:
        path: str = super().get_cache_path()  # type: ignore[misc]
        given = config.CACHE_DIR and os.path.dirname(path) == config.CACHE_DIR.rstrip(os.sep)
        return os.path.join(config.CACHE_DIR, f"streamcd_{_STAMP[:16]}") if given else path


class _CacheImpl(CompileResultCacheImpl):
    _locator_classes = tuple(
        type(locator.__name__, (_ByContents, locator), {})
        for locator in CompileResultCacheImpl._locator_classes
    )


class _Cache(FunctionCache):
    """A cache of numba's, which has another process compile what it lacks."""

    _impl_class = _CacheImpl

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Look up a compiled kernel, have it compiled, or return None: numba compiles it next.

        numba would first import its versions of Python's and numpy's functions, 0.2 s: a compiled kernel has them in it.
        """
        global _used
        _used = True
        _add_symbols()
        found = self._load_overload(signature, target_context)
        if found is None:
            from .compiler import compile_elsewhere, told  # most processes compile nothing

            for tell in told:
                tell()
            if compile_elsewhere(self._py_func, signature):
                found = self._load_overload(signature, target_context)
        if found is None:
            target_context.refresh()
        return found


@functools.cache
def _add_symbols() -> None:
    """Name the functions of numba's runtime that compiled code calls; all of it would be compiled first, 0.03 s."""
    for name, address in c_helpers.items():
        add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


_used = False  # kernels were compiled or loaded since memory was last returned


def return_free_memory() -> None:
    """Return freed memory of the compiler, if it was used, to the system: 40 to 50 MB that the heap would keep.

    A second training in a process has use for freed memory: to get it from the system anew takes milliseconds.
    """
    global _used
    if not _used:
        return
    _used = False
    with suppress(AttributeError, OSError):  # not the C library of GNU
        ctypes.CDLL(None).malloc_trim(0)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a kernel that releases the interpreter's lock and allocates nothing, without reference counting of arrays.

    With reference counting, a visit of several lanes took 1.14 times as long (rows of 14 entries, 5 lanes).
    """
    return _with_cache(njit(nogil=True, _nrt=False)(function))


def cached(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a function that may allocate."""
    return _with_cache(njit(nogil=True, **options)(function))


def _with_cache(compiled: Any) -> Any:
    if not config.DISABLE_JIT:
        # numba has no public way to say what else a kernel is made of; where it changes inside, a test fails (test_compile)
        compiled._cache = _Cache(compiled.py_func)
    return compiled


inlined = njit(forceinline=True, nogil=True, _nrt=False)
"""Compile a part of kernels, which LLVM inlines into each caller.

With ``inline="always"`` numba itself would inline it, and type it anew for every call: the first training with several lanes
then took 343 MB instead of 304, with the same bits and speed.
"""

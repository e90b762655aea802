"""Compilation of kernels, and a compile cache keyed by the contents of all kernel files.

A compiled kernel includes its callees and the constants that it reads, but numba recompiles it only if the kernel's own file
changes, so that the cached caller of an edited callee gave stale results. Here the stamp of the cache is a digest of all
files with kernels. It does not depend on their paths and times, so a copied or freshly checked-out tree uses kernels
compiled earlier, in its ``__pycache__`` or under ``NUMBA_CACHE_DIR``.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import importlib
import os
import re
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from llvmlite.binding import add_symbol
from numba import config, njit
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime._nrt_python import c_helpers

_HAS_KERNELS = re.compile(rb"^from (numba|\.[.\w]*compile) import", re.MULTILINE)
_WORDS = b"compile import", b"numba import"  # of which it has one; they are found faster


def _digest(package: Path) -> str:
    """Digest of the contents of all files below `package` that have kernels, or constants of kernels."""
    found = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        text = path.read_bytes()
        of_kernels = path.parent.name == "kernels"
        if of_kernels or (any(word in text for word in _WORDS) and _HAS_KERNELS.search(text)):
            found.update(f"{path.relative_to(package).as_posix()} {len(text)}\n".encode() + text)
    return found.hexdigest()


_STAMP = _digest(Path(__file__).parent.parent)


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


class _OwnFileCache(FunctionCache):
    """A cache of numba's that loads compiled kernels without what only a compilation needs."""

    _impl_class = CompileResultCacheImpl

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Look up a compiled kernel; if there is none, numba compiles it next.

        numba would first import its versions of Python's and numpy's functions, 0.2 s: a compiled kernel has them in it.
        """
        _add_symbols()
        with self._guard_against_spurious_io_errors():
            found = self._load_overload(signature, target_context)
        if found is None:
            from .compilation import tell_compilation  # most processes compile nothing
            from .compiler_process import compile_elsewhere

            tell_compilation()

            if compile_elsewhere(self._py_func, signature):
                with self._guard_against_spurious_io_errors():
                    found = self._load_overload(signature, target_context)
        if found is None:
            _load_numba_without_scipy()
            target_context.refresh()
        return found


class _Cache(_OwnFileCache):
    _impl_class = _CacheImpl


@functools.cache
def _add_symbols() -> None:
    """Name the functions of numba's runtime that compiled code calls; all of it would be compiled first, 0.03 s."""
    for name, address in c_helpers.items():
        add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


@functools.cache
def _load_numba_without_scipy() -> None:
    """Import the part of numba that imports scipy.linalg, without it: a quarter of a second and 20 MB.

    Numba only checks that it exists. No kernel here needs it; others that do import it when they are compiled.
    """
    with suppress(AttributeError, ImportError):  # another version of numba, which loads it in its own way
        linalg: Any = importlib.import_module("numba.np.linalg")
        seen = linalg.ensure_blas
        linalg.ensure_blas = lambda: None
        try:
            importlib.import_module("numba.np.arraymath")
        finally:
            linalg.ensure_blas = seen


def _compile_alone(compile_kernel: Callable[[Any], Any], cache_file: Any, signature: Any) -> Any:
    """Look up a kernel in the cache, or compile it, under a lock, so that other processes find it in the cache.

    numba writes index and data files without a lock: two processes that add signatures of one function at the same time may
    use the same data file for both.
    """
    _compiled.add(cache_file)
    # numba's lock first, in the same order for all threads; callees are locked after callers
    with global_compiler_lock, ExitStack() as held:
        with suppress(OSError):  # where there is no writing or no locking, as with numba alone
            file = held.enter_context(open(cache_file._index_path + ".lock", "w"))
            fcntl.flock(file, fcntl.LOCK_EX)
            held.callback(
                fcntl.flock, file, fcntl.LOCK_UN
            )  # for a copy of this process too, which has the file open
        return compile_kernel(signature)


_compiled: set[Any] = set()  # cache files of kernels compiled or loaded since memory was last returned


def return_free_memory() -> None:
    """Return freed memory of the compiler, if it was used, to the system: 40 to 50 MB that the heap would keep.

    A second training in a process has use for freed memory: to get it from the system anew takes milliseconds.
    """
    if not _compiled:
        return
    _compiled.clear()
    with suppress(AttributeError, OSError):  # not the C library of GNU
        ctypes.CDLL(None).malloc_trim(0)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a kernel that releases the interpreter's lock and allocates nothing, without reference counting of arrays.

    With reference counting, a visit of several lanes took 1.14 times as long (rows of 14 entries, 5 lanes).
    """
    return _with_cache(njit(nogil=True, _nrt=False)(function), _Cache)


def cached(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a function that uses no kernel or constant of another file; it may allocate."""
    return _with_cache(njit(nogil=True, **options)(function), _OwnFileCache)


def _with_cache(compiled: Any, kind: type[FunctionCache]) -> Any:
    if not config.DISABLE_JIT:
        # numba has no public way to say what else a kernel is made of; where it changes inside, a test fails (test_compile)
        compiled._cache = kind(compiled.py_func)
        compiled.compile_unlocked = compiled.compile
        compiled.compile = partial(_compile_alone, compiled.compile, compiled._cache._cache_file)
    return compiled


inlined = njit(forceinline=True, nogil=True, _nrt=False)
"""Compile a part of kernels, which LLVM inlines into each caller.

With ``inline="always"`` numba itself would inline it, and type it anew for every call: the first training with several lanes
then took 343 MB instead of 304, with the same bits and speed.
"""

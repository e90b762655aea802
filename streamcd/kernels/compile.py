"""Compilation of kernels, and a compile cache keyed by the contents of all kernel files.

A compiled kernel includes its callees and the constants that it reads, but numba recompiles it only if the kernel's own file
changes, so that the cached caller of an edited callee gave stale results; and it looks for it beside that file, which a new
installation does not have. Here a folder of the user's cache is named by a digest of all files of this folder and the
versions of what compiles them, whatever their paths and times.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import platform
import re
import shutil
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import llvmlite
import numba
import numpy as np
from llvmlite.binding import add_symbol
from numba import config, njit, types
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, _CacheLocator
from numba.core.runtime._nrt_python import c_helpers
from numba.core.typing import signature as numba_signature

_CONTENTS = hashlib.sha256()
_CONTENTS.update(
    f"{platform.python_version()} {numba.__version__} {llvmlite.__version__} {np.__version__}\n".encode()
)
for _path in sorted(Path(__file__).parent.glob("*.py")):
    _CONTENTS.update(f"{_path.name} {_path.stat().st_size}\n".encode() + _path.read_bytes())
_DIGEST = _CONTENTS.hexdigest()[:16]

_DAY = 86400.0
_UNUSED_SECONDS = 30 * _DAY  # after which a folder of the user's cache is removed

# ---------------------------------------------------------------------------------------------------------------------
# The folders of the cache


@functools.cache
def folders() -> tuple[tuple[str, ...], str | None]:
    """Return the folders that are read, in order, and the one that is written to, if any.

    The first that can be written to is the last that is read: a folder of an image, or of another user, comes before it.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    user = home if os.path.isabs(home) else os.path.expanduser("~/.cache")
    read = list[str]()
    for root in (config.CACHE_DIR, user, os.path.join(os.path.dirname(__file__), "__pycache__")):
        folder = os.path.join(root, "streamcd", _DIGEST)
        if not root or (root == user and not os.path.isabs(root)):  # a user without a home
            continue
        with suppress(OSError):
            os.makedirs(folder, exist_ok=True)
        if not os.path.isdir(folder):
            continue
        with suppress(OSError):
            _hold(folder)
        with suppress(OSError):
            if time.time() - os.stat(folder).st_mtime > _DAY:
                os.utime(folder)
            if root == user:
                _remove_unused(os.path.dirname(folder))
        read.append(folder)
        if os.access(folder, os.W_OK | os.X_OK):
            return tuple(read), folder
    return tuple(read), None


def _hold(folder: str) -> None:
    """Keep a shared lock on a folder until the process ends, so that no other one removes it."""
    while True:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if os.path.isdir(folder) and os.path.samestat(os.fstat(descriptor), os.stat(folder)):
            return
        os.close(descriptor)
        os.makedirs(folder, exist_ok=True)  # it was being removed


def _remove_unused(parent: str) -> None:
    """Remove folders of other digests that no process has used for a month, or uses."""
    for entry in os.scandir(parent):
        old = re.fullmatch("[0-9a-f]{16}", entry.name) and entry.is_dir(follow_symlinks=False)
        if not old or time.time() - entry.stat().st_mtime < _UNUSED_SECONDS:
            continue
        descriptor = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(entry.path, ignore_errors=True)
        os.close(descriptor)


class _Locator(_CacheLocator):
    """What numba asks of a kernel's cache besides the folder."""

    def __init__(self, py_func: Any, py_file: str) -> None:
        self._py_file = py_file
        self._line = py_func.__code__.co_firstlineno

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _Locator:
        return cls(py_func, py_file)

    def get_cache_path(self) -> str:
        return ""

    def get_source_stamp(self) -> str:
        return _DIGEST

    def get_disambiguator(self) -> str:
        return str(self._line)


class _CacheImpl(CompileResultCacheImpl):
    _locator_classes = (_Locator,)


class _Cache(FunctionCache):
    """A cache of numba's, which has another process compile what it lacks."""

    _impl_class = _CacheImpl

    def __init__(self, function: Any, strided: str) -> None:
        super().__init__(function)
        self._strided = strided  # the parameter that is taken with any strides

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Look up a compiled kernel, have it compiled, or return None: numba compiles it next.

        numba would first import its versions of Python's and numpy's functions, 0.2 s: a compiled kernel has them in it.
        """
        global _used
        _used = True
        _add_symbols()
        general = tuple(
            _any_strides(kind) if name == self._strided else kind
            for name, kind in zip(self._py_func.__code__.co_varnames, signature, strict=False)
        )
        stored = self.read(general, target_context)
        if stored is None and _missing.kernels is not None:
            if (self._py_func, general) not in _missing.kernels:
                _missing.kernels.append((self._py_func, general))
            raise _MissingKernelError
        if stored is None:
            from .compiler import compile_elsewhere  # most processes compile nothing

            compile_elsewhere([(self._py_func, general)], self.folder)
            stored = self.read(general, target_context)
        if stored is None:
            target_context.refresh()
            return None
        loaded.add((self._name, general))
        compiled = self._impl.rebuild(target_context, stored)
        return compiled._replace(signature=numba_signature(compiled.signature.return_type, *signature))

    def read(self, signature: Any, target_context: Any) -> Any:
        """Read a compiled kernel, which is None where there is none or it is damaged."""
        key = self._index_key(signature, target_context.codegen())
        for folder in folders()[0]:
            with suppress(OSError, EOFError, UnpicklingError):
                stored = self._file(folder).load(key)
                if stored is not None:
                    return stored
        return None

    def save_overload(self, signature: Any, data: Any) -> None:
        """Write a compiled kernel, if there is a folder and room in it."""
        if self.folder is None or not self._impl.check_cachable(data):
            return
        file, entry = (
            self._file(self.folder),
            (self._index_key(signature, data.codegen), self._impl.reduce(data)),
        )
        with suppress(OSError):
            try:
                file.save(*entry)
            except (EOFError, UnpicklingError):  # the index is damaged
                file.flush()
                file.save(*entry)

    @property
    def folder(self) -> str | None:
        """The folder that is written to, if any."""
        return folders()[1]

    @property
    def number(self) -> int:
        """The kernel's byte in the file of locks."""
        return zlib.crc32(self._impl.filename_base.encode())

    def _file(self, folder: str) -> Any:
        return IndexDataCacheFile(folder, self._impl.filename_base, _DIGEST)


def _any_strides(kind: Any) -> Any:
    """Return the type of an array, or of a tuple of some, with any strides for a contiguous matrix."""
    if isinstance(kind, types.BaseTuple):
        return types.BaseTuple.from_types([_any_strides(one) for one in kind.types], kind.instance_class)
    return kind.copy(layout="A") if isinstance(kind, types.Array) and kind.ndim > 1 else kind


@functools.cache
def _add_symbols() -> None:
    """Name the functions of numba's runtime that compiled code calls; all of it would be compiled first, 0.03 s."""
    for name, address in c_helpers.items():
        add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


loaded = set[tuple[str, Any]]()
"""Names and types of the kernels that this process has from the cache, also if they were compiled for it."""

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


# ---------------------------------------------------------------------------------------------------------------------
# Kernels that are missing, together


class _MissingKernelError(Exception):
    pass


class _Missing(threading.local):
    """In a thread that lists missing kernels, those found so far."""

    kernels: list[tuple[Any, Any]] | None = None


_missing = _Missing()


def load_together(load: Callable[[], object]) -> None:
    """Call `load`, which calls kernels over nothing, and have those that are missing compiled together.

    While they are listed, a missing kernel returns `nothing`, and the call is made again afterwards.
    """
    if folders()[1] is None or _missing.kernels is not None:
        load()
        return
    _missing.kernels = []
    try:
        load()
        kernels = _missing.kernels
    finally:
        _missing.kernels = None
    if kernels:
        from .compiler import compile_elsewhere

        compile_elsewhere(kernels, folders()[1], end=True)
        load()


def kernel(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a kernel that releases the interpreter's lock and allocates nothing, without reference counting of arrays.

    With reference counting, a visit of several lanes took 1.14 times as long (rows of 14 entries, 5 lanes).
    """
    return cached(function, _nrt=False, **options)


def cached(function: Callable[..., Any], strided: str = "", nothing: Any = 0, **options: Any) -> Any:
    """Compile a function that may allocate, and that returns `nothing` over no items, where it returns anything.

    One compiled function takes contiguous matrices in the parameter `strided`, and columns of records, as arenas have them
    for one lane.
    """
    compiled = njit(nogil=True, no_cfunc_wrapper=True, **options)(function)
    if config.DISABLE_JIT:
        return compiled
    # numba has no public way to say what else a kernel is made of; where it changes inside, a test fails (test_compile)
    compiled._cache = _Cache(function, strided)
    compile_for = compiled._compile_for_args

    def compile_or_list(*arguments: Any) -> Any:
        try:
            return compile_for(*arguments)
        except _MissingKernelError:
            return lambda *_: nothing

    compiled._compile_for_args = compile_or_list
    return compiled


part = functools.partial(njit, nogil=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Compile a part of kernels. Without wrappers, by which Python and C would call it, it takes half of the time."""

inlined = part(forceinline=True)
"""Compile a part of kernels, which LLVM inlines into each caller.

With ``inline="always"`` numba itself would inline it, and type it anew for every call: the first training with several lanes
then took 343 MB instead of 304, with the same bits and speed.
"""

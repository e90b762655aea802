"""Compilation of kernels, and a compile cache keyed by the contents of all kernel files.

A compiled kernel includes its callees and the constants that it reads, but numba recompiles it only if the kernel's own file
changes, so that the cached caller of an edited callee gave stale results; and it looks for it beside that file, which a new
installation does not have. Here a folder of the user's cache is named by a digest of all files of this folder and the
versions of what compiles them, whatever their paths and times.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import pickle
import platform
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from llvmlite.binding import add_symbol
from numba import config, njit, types
from numba.core.compiler import CompileResult
from numba.core.runtime._nrt_python import c_helpers
from numba.core.serialize import dumps
from numba.core.typing import signature as numba_signature

from .compiler import compile_elsewhere

_CONTENTS = hashlib.sha256()
_CONTENTS.update(
    f"{platform.python_version()} {numba.__version__} {llvmlite.__version__} {np.__version__}\n".encode()
)
for _path in sorted(Path(__file__).parent.glob("*.py")):
    _CONTENTS.update(f"{_path.name} {_path.stat().st_size}\n".encode() + _path.read_bytes())
_DIGEST = _CONTENTS.hexdigest()[:16]

_UNUSED_SECONDS = 30 * 86400.0  # after which a folder of the user's cache is removed

# ---------------------------------------------------------------------------------------------------------------------
# The folders of the cache


@functools.cache
def folders() -> tuple[list[str], str | None]:
    """Return the folders that are read, in order, and the one that is written to, if any.

    The first that can be written to is the last that is read: a folder of an image, or of another user, comes before it.
    Each has a shared lock until the process ends, so that no other one removes it.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    user = home if os.path.isabs(home) else os.path.expanduser("~/.cache")
    read = list[str]()
    for root in (config.CACHE_DIR, user, os.path.join(os.path.dirname(__file__), "__pycache__")):
        if not root or root.startswith("~"):  # a user without a home
            continue
        folder = os.path.join(root, "streamcd", _DIGEST)
        with suppress(OSError):
            os.makedirs(folder, exist_ok=True)
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            read.append(folder)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            os.makedirs(folder, exist_ok=True)  # it may have been removed meanwhile
            os.utime(folder)
            if root == user:
                _remove_unused(os.path.dirname(folder))
        if os.access(folder, os.W_OK | os.X_OK):
            return read, folder
    return read, None


def _remove_unused(parent: str) -> None:
    """Remove folders of other digests that no process has used for a month, or uses."""
    for entry in os.scandir(parent):
        is_ours = re.fullmatch("[0-9a-f]{16}", entry.name) and entry.is_dir(follow_symlinks=False)
        if is_ours and time.time() - entry.stat().st_mtime > _UNUSED_SECONDS:
            descriptor = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path, ignore_errors=True)
            os.close(descriptor)


# ---------------------------------------------------------------------------------------------------------------------
# Kernels in the cache

used = dict[tuple[str, Any], bool]()
"""Names and types of the kernels that this process has from the cache, and whether they were compiled for it."""

_missing: ContextVar[dict[tuple[Any, Any], None] | None] = ContextVar("_missing", default=None)
"""Functions and types that the cache lacks, while a thread lists them."""


class _MissingKernelError(Exception):
    pass


class _Cache:
    """The files of a kernel, one for each signature, in place of numba's cache; another process compiles what is missing."""

    def __init__(self, function: Any, strided: str) -> None:
        self.function = function
        self._strided = strided  # the parameter that is taken with any strides

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Look up a compiled kernel, have it compiled, or return None: numba compiles it next.

        numba would first import its versions of Python's and numpy's functions, 0.2 s: a compiled kernel has them in it.
        """
        _add_symbols()
        general = tuple(
            _any_strides(kind) if name == self._strided else kind
            for name, kind in zip(self.function.__code__.co_varnames, signature, strict=False)
        )
        stored = self.read(general, target_context)
        used.setdefault((self.function.__qualname__, general), stored is None)
        if stored is None and folders()[1] is not None:
            missing = _missing.get()
            if missing is not None:
                missing[self.function, general] = None
                raise _MissingKernelError
            compile_elsewhere([(self.function, general)])
            stored = self.read(general, target_context)
        if stored is None:
            target_context.refresh()
            return None
        compiled = CompileResult._rebuild(target_context, *stored)
        return compiled._replace(signature=numba_signature(compiled.signature.return_type, *signature))

    def read(self, signature: Any, target_context: Any) -> Any:
        """Read a compiled kernel, which is None where there is none or it is damaged."""
        for folder in folders()[0]:
            with suppress(OSError, EOFError, pickle.UnpicklingError):
                return pickle.loads(Path(self.path(signature, target_context, folder)).read_bytes())
        return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Write a compiled kernel, if there is a folder and room in it."""
        if folders()[1] is None:
            return
        path = self.path(signature, compiled.target_context)
        partial = f"{path}.{os.getpid()}"
        with suppress(OSError):
            Path(partial).write_bytes(dumps(compiled._reduce()))
            os.replace(partial, path)

    def path(self, signature: Any, target_context: Any, folder: str | None = None) -> str:
        """Return the file of a kernel for a signature and this processor, by default where it is written."""
        code = self.function.__code__
        key = repr((signature, target_context.codegen().magic_tuple())).encode()
        name = f"{Path(code.co_filename).stem}.{code.co_qualname}-{hashlib.sha256(key).hexdigest()[:16]}.nbc"
        return os.path.join(folder or folders()[1] or "", name)


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


def load_together(*loads: Callable[[], object]) -> bool:
    """Make calls, which call kernels over nothing, and have those that are missing compiled together.

    While they are listed, a missing kernel returns `nothing`, and the calls are made again afterwards. Returns whether there
    were some that this process had not loaded.
    """
    n_used = len(used)
    missing = dict[tuple[Any, Any], None]()
    listing = _missing.set(missing)
    try:
        for load in loads:
            load()
    finally:
        _missing.reset(listing)
    if missing:
        compile_elsewhere(list(missing))
        for load in loads:
            load()
    return len(used) > n_used


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

"""Compilation of kernels, and a compile cache that goes by the contents of all kernel files.

A compiled kernel has those it calls inside, and the constants it reads, but numba compiles it anew only after an edit of the
kernel's own file. Stale results were seen: the cached caller of an edited callee. Here the stamp of the cache is a digest of
all files with kernels. Where they lie and when they were written is no part of it, so a copied or freshly checked-out tree
finds what was compiled before, in its ``__pycache__`` or under ``NUMBA_CACHE_DIR``.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import config, njit
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    InTreeCacheLocator,
    UserProvidedCacheLocator,
    UserWideCacheLocator,
)

_HAS_KERNELS = re.compile(rb"^from (numba|\.[.\w]*compile) import", re.MULTILINE)


def _digest(package: Path) -> str:
    """Digest of the contents of all files below `package` that have kernels."""
    found = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        text = path.read_bytes()
        if _HAS_KERNELS.search(text):
            found.update(f"{path.relative_to(package).as_posix()} {len(text)}\n".encode() + text)
    return found.hexdigest()


_STAMP = _digest(Path(__file__).parent)


class _ByContents:
    """A locator's stamp that is the digest."""

    def get_source_stamp(self) -> str:
        return _STAMP


class _InTree(_ByContents, InTreeCacheLocator):
    """``__pycache__`` beside the kernel's file."""


class _UserWide(_ByContents, UserWideCacheLocator):
    """The user's cache directory, where ``__pycache__`` cannot be written."""


class _UserProvided(_ByContents, UserProvidedCacheLocator):
    """A folder of ``NUMBA_CACHE_DIR`` that all trees with these contents share."""

    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        super().__init__(py_func, py_file)
        self._cache_path = os.path.join(config.CACHE_DIR, f"streamcd_{_STAMP[:16]}")


class _CacheImpl(CompileResultCacheImpl):
    _locator_classes = (_UserProvided, _InTree, _UserWide)


class _Cache(FunctionCache):
    _impl_class = _CacheImpl


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a kernel, which holds no lock and allocates nothing: without counts of references to its arrays it is faster.

    With counts, a visit of several lanes took 1.14 times as long (rows of 14 entries, 5 lanes).
    """
    compiled = njit(nogil=True, _nrt=False)(function)
    if not config.DISABLE_JIT:
        # numba has no public way to say what else a kernel is made of; where it changes inside, a test fails (test_compile)
        compiled._cache = _Cache(function)
    return compiled


inlined = njit(inline="always")
"""Compile a part of kernels into each that calls it."""

"""numba's compile cache, made to notice edits of kernels in other files.

A compiled kernel has those it calls inside, and the constants it reads, but numba compiles it anew only after an edit of the
kernel's own file. Stale results were seen: the cached caller of an edited callee.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit


def _stamp() -> tuple[tuple[str, int, int], ...]:
    """Time and size of all files that others' kernels take from: an edit compiles all marked by `kernel` once more."""
    here = Path(__file__).parent
    files = [*sorted(here.glob("*kernels.py")), here / "decimals.py"]
    return tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)


_STAMP = _stamp()


def kernel(function: Callable[..., Any]) -> Any:
    """Compile as ``njit(cache=True, nogil=True)`` does, for a kernel that needs functions or constants of other files."""
    compiled = njit(cache=True, nogil=True)(function)
    # numba has no public way to say what else a kernel is made of; where it changes inside, a test fails (test_compiling)
    index = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if index is not None:
        index._source_stamp = (index._source_stamp, _STAMP)
    return compiled

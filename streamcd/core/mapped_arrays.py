"""Arrays in files that are mapped into memory, of which little stays there."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np


def forget(array: np.ndarray) -> None:
    """Let go of the memory that a mapped file's pages take; an array of its own stays as it is."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)

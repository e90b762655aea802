"""Arrays in files that are mapped into memory, of which little stays there."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

_WINDOW_BYTES = 2 << 20
_FEW_WINDOWS = 1 << 16


def take_mapped(array: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Copy the elements of an array at some places; a mapped one has at most 2 MiB of its file in memory at a time."""
    if not isinstance(array, np.memmap) or array.nbytes <= _WINDOW_BYTES:
        return np.asarray(array)[places]
    file = array._mmap  # type: ignore[attr-defined]
    windows = places // (_WINDOW_BYTES // array.itemsize)
    ends = np.cumsum(np.bincount(windows))
    if ends.size <= _FEW_WINDOWS:  # which numpy sorts by their digits
        windows = windows.astype(np.uint16)
    order = np.argsort(windows, kind="stable")
    taken, plain, start = np.empty(places.size, array.dtype), np.asarray(array), 0
    for stop in np.unique(ends).tolist():
        mine = order[start:stop]
        taken[mine] = plain[places[mine]]
        file.madvise(mmap.MADV_DONTNEED)
        start = stop
    return taken


def forget(array: np.ndarray) -> None:
    """Let go of the memory that a mapped file's pages take; an array of its own stays as it is."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)

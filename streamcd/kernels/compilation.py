"""Announcement of compilations: a function is called before each kernel that is not cached; imports no compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_told: list[Callable[[int], None]] = []
_n_compiled = 0


@contextmanager
def compilation_told(tell: Callable[[int], None]) -> Iterator[None]:
    """Call a function before each compilation of a kernel that is not cached, with the number of earlier ones.

    Within another such context, that one's function alone is called.
    """
    global _n_compiled
    if _told:
        yield
        return
    _n_compiled = 0
    _told.append(tell)
    try:
        yield
    finally:
        _told.remove(tell)


def tell_compilation() -> None:
    """Call the function that waits for compilations, if any."""
    global _n_compiled
    for tell in _told:
        tell(_n_compiled)
    _n_compiled += 1

"""Handlers of signals, set for a while or until the process ends."""

from __future__ import annotations

import atexit
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def signal_handler(
    handler: Callable[[int, FrameType | None], None], *signums: signal.Signals
) -> Iterator[None]:
    """Handle signals within the context; a signal that is ignored by `ignore` meanwhile stays ignored."""
    before = {signum: signal.signal(signum, handler) for signum in signums}
    try:
        yield
    finally:
        for signum, old in before.items():
            if signal.getsignal(signum) is handler:
                signal.signal(signum, old)


def ignore(*signums: signal.Signals) -> None:
    """Ignore signals until their handlers are set again, or else until the process has ended.

    SIG_IGN in place of a handler has Python print a traceback if a signal comes in that instant, as a second Ctrl-C
    does. A handler that does nothing has none of this, but ends with the interpreter; so SIG_IGN is left to the end,
    where such tracebacks are not printed.
    """
    for signum in signums:
        signal.signal(signum, _do_nothing)
    atexit.register(_ignore_at_end, signums)


def _do_nothing(signum: int, frame: FrameType | None) -> None:
    pass


def _ignore_at_end(signums: tuple[signal.Signals, ...]) -> None:
    for signum in signums:
        if signal.getsignal(signum) is _do_nothing:
            sys.unraisablehook = lambda _: None
            signal.signal(signum, signal.SIG_IGN)

"""Signals that stop a training, which then saves a checkpoint; and the warning of a training that has not converged."""

from __future__ import annotations

import atexit
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from ..core.errors import ConvergenceWarning, Interrupted, escaped, in_command, in_words_of_caller

if TYPE_CHECKING:
    from ..training.result import Result
    from .options import SessionOptions


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None], *signums: signal.Signals) -> Iterator[None]:
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


@contextmanager
def stopped_by_signals(options: SessionOptions) -> Iterator[Callable[[], int | None] | None]:
    """Provide `stop_requested`; where no caller gave one, a training saves a checkpoint at Ctrl-C and SIGTERM.

    Signals belong to the main thread. After the first one Ctrl-C is ignored, so that the checkpoint is completed. After that
    a command ends with `Interrupted`; in Python Ctrl-C raises KeyboardInterrupt, and SIGTERM has its previous effect.
    """
    if options.stop_requested is not None or threading.current_thread() is not threading.main_thread():
        yield options.stop_requested
        return
    received: list[int] = []

    def note(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        if in_command.is_set():  # until its end
            ignore(signal.SIGINT)

    try:
        with handled(note, signal.SIGINT, signal.SIGTERM):
            yield lambda: received[0] if received else None
    except Interrupted as error:
        if in_command.is_set():
            raise
        if error.signum == signal.SIGINT:
            raise KeyboardInterrupt(str(error)) from None
        signal.raise_signal(error.signum)
        raise


def warn_unconverged(result: Result, options: SessionOptions) -> None:
    """Warn the caller of a public function, which calls this, if its training has not converged."""
    if result.converged:
        return
    more = "" if result.stop_reason == "time" else ", max_passes=N"
    given = {"scheduler": options.scheduler, "workers": options.workers}
    more += "".join(f", {name}={value!r}" for name, value in given.items() if value not in (None, 1))
    way = [f"streamcd.resume({result.run!r}{more}) goes on"] if result.more_passes_help else []
    text = "; ".join([result.describe_shortfall(), *way, *result.advice])
    warnings.warn(escaped(in_words_of_caller(text)), ConvergenceWarning, stacklevel=4)

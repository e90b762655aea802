"""Signals that stop a training, which then saves a checkpoint; and the warning of a training that has not converged."""

from __future__ import annotations

import functools
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from ..core.errors import ConvergenceWarning, Interrupted, escaped, in_words_of_caller

Options = ParamSpec("Options")
Found = TypeVar("Found", bound=Any)


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None], *signums: signal.Signals) -> Iterator[None]:
    """Handle signals within the context; a signal that the handler set to be ignored stays ignored."""
    before = {signum: signal.signal(signum, handler) for signum in signums}
    try:
        yield
    finally:
        for signum, old in before.items():
            if signal.getsignal(signum) is handler:
                signal.signal(signum, old)


@contextmanager
def stop_requests() -> Iterator[Callable[[], int | None]]:
    """Provide a function that training calls between windows: the number of the signal that came, or None.

    After the first signal Ctrl-C is ignored, so that the checkpoint is completed.
    """
    received: list[int] = []

    def note(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    with handled(note, signal.SIGINT, signal.SIGTERM):
        yield lambda: received[0] if received else None


def stops_when_interrupted(function: Callable[Options, Found]) -> Callable[Options, Found]:
    """Make a training called from Python save a checkpoint at Ctrl-C, and warn if it has not converged.

    Signals belong to the main thread; with `stop_requested` the caller handles them. After the checkpoint Ctrl-C raises
    KeyboardInterrupt, and SIGTERM has its previous effect.
    """

    @functools.wraps(function)
    def run(*args: Options.args, **options: Options.kwargs) -> Found:
        if (
            options.get("stop_requested") is not None
            or threading.current_thread() is not threading.main_thread()
        ):
            result = function(*args, **options)
        else:
            before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
            try:
                with stop_requests() as options["stop_requested"]:
                    result = function(*args, **options)
            except Interrupted as error:
                if error.signum == signal.SIGINT:
                    raise KeyboardInterrupt(str(error)) from None
                signal.signal(error.signum, before[signal.SIGTERM])
                signal.raise_signal(error.signum)
                raise
            finally:
                for signum, handler in before.items():
                    signal.signal(signum, handler)
        if not result.converged:
            more = "" if result.stop_reason == "time" else ", max_passes=N"
            on_workers = (name for name in ("scheduler", "workers") if options.get(name) not in (None, 1))
            more += "".join(f", {name}={options[name]!r}" for name in on_workers)
            way = f"streamcd.resume({result.run!r}{more}) goes on"
            ways = [way] if result.more_passes_help else []
            text = "; ".join([result.describe_shortfall(), *ways, *result.advice])
            warnings.warn(escaped(in_words_of_caller(text)), ConvergenceWarning, stacklevel=2)
        return result

    return run

"""Errors and signals of the command line: one line each, and an exit status."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

from ..core.errors import Interrupted
from . import console

_HELP_WANTED: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""A command without any argument; click before 8.2 prints the help itself."""


class Program(click.Group):
    """Turns whatever goes wrong into one line and an exit status."""

    def main(self, args: Any = None, prog_name: str | None = None, **extra: Any) -> Any:  # type: ignore[override]
        arguments = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        try:
            with _termination_as_exception():
                status = super().main(arguments, prog_name or "streamcd", **extra)
        except BrokenPipeError:
            _forget_output()
            sys.exit(1)
        except (Exception, KeyboardInterrupt) as error:
            sys.exit(_report(error, "--json" in arguments))
        sys.exit(status if isinstance(status, int) else 0)


def _report(error: BaseException, as_json: bool) -> int:
    # click's for Ctrl-C, and for an end of file wherever it was met
    if isinstance(error, click.exceptions.Abort):
        error = error.__cause__ if isinstance(error.__cause__, EOFError) else KeyboardInterrupt()
    if isinstance(error, _HELP_WANTED):
        error.show()
        return 2
    if isinstance(error, click.ClickException):
        command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "streamcd"
        found: tuple[str, int] | None = (f"{error.format_message()} See '{command} --help'.", 2)
    else:
        found = console.explain(error)
    if found is None:
        raise error
    text, status = found
    console.print_error(text)
    if as_json:
        try:
            console.print_json({"error": text, "exit_status": status})
        except BrokenPipeError:
            _forget_output()
    return status


def _forget_output() -> None:
    """The reader of our output has gone; what is left in the buffer must not fail once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


@contextmanager
def _termination_as_exception() -> Iterator[None]:
    """Let SIGTERM unwind the stack like Ctrl-C does, so that temporary files go."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise Interrupted("terminated", signum)

    with _signal_handler(stop, signal.SIGTERM):
        yield


@contextmanager
def _signal_handler(
    handler: Callable[[int, FrameType | None], None], *signums: signal.Signals
) -> Iterator[None]:
    before = {signum: signal.signal(signum, handler) for signum in signums}
    try:
        yield
    finally:
        for signum, old in before.items():
            signal.signal(signum, old)


@contextmanager
def stop_requests() -> Iterator[Callable[[], int | None]]:
    """Ctrl-C and SIGTERM as a question that training asks between windows: which signal came, if any."""
    received: list[int] = []
    with _signal_handler(lambda signum, frame: received.append(signum), signal.SIGINT, signal.SIGTERM):
        yield lambda: received[0] if received else None

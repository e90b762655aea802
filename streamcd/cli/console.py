"""Output of the command line: results, progress, warnings, and errors in one line."""

from __future__ import annotations

import errno
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TextIO

from ..core.errors import StreamcdError, file_named
from ..core.memory_budget import format_size
from ..core.progress import Listener, Progress

PLAIN_INTERVAL = 10.0
"""Seconds between lines of progress where there is no terminal."""

_BAR_INTERVAL = 0.1


class Console(Listener):
    """Progress and messages on standard error: a bar on a terminal, else a line now and then; `quiet`: warnings only."""

    def __init__(self, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._quiet = quiet
        self._stream = stream or sys.stderr
        self._bar = None if quiet or not self._stream.isatty() else _Bar(self._stream)
        self._phase = ""
        self._started = self._shown = time.monotonic()

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def progress(self, progress: Progress) -> None:
        """Show how far the work is, unless that was done a moment ago."""
        if self._quiet:
            return
        now = time.monotonic()
        if progress.phase != self._phase:
            self._phase, self._started = progress.phase, now
        if now - self._shown < (_BAR_INTERVAL if self._bar else PLAIN_INTERVAL):
            return
        self._shown = now
        text = describe_progress(progress, now - self._started)
        if self._bar is not None:
            self._bar.show(progress, text)
        else:
            self._print(f"{progress.phase}: {text}")

    def message(self, text: str) -> None:
        """Print what is worth knowing once."""
        if not self._quiet:
            self._print(text)

    def warning(self, text: str) -> None:
        """Print what probably wants a change."""
        self._print(f"warning: {text}")

    def _print(self, text: str) -> None:
        if self._bar is not None:
            self._bar.clear()
        print(f"streamcd: {text}", file=self._stream, flush=True)


class _Bar:
    """One line at the bottom of the terminal, drawn anew in place; rich is loaded when it is first shown."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live: Any = None

    def show(self, progress: Progress, text: str) -> None:
        from rich.console import Console as RichConsole
        from rich.live import Live
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        if self._live is None:
            # without a thread of its own: it is drawn when there is news
            self._live = Live(console=RichConsole(file=self._stream), auto_refresh=False, transient=True)
            self._live.start()
        line = Table.grid(padding=(0, 1))
        line.add_row(progress.phase, ProgressBar(progress.total, progress.done, width=30), text)
        self._live.update(line, refresh=True)

    def clear(self) -> None:
        """Take the bar away; it comes back with the next progress."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    close = clear


def describe_progress(progress: Progress, seconds: float) -> str:
    """Share done, rate and time left of a phase that has taken `seconds`, in words."""
    parts = []
    if progress.total:
        share = 100 * progress.done / progress.total
        parts.append(f"{share:.0f} % of {_amount(progress.total, progress.unit)}")
    else:
        parts.append(_amount(progress.done, progress.unit))
    if seconds > 0.2 and progress.done:
        rate = progress.done / seconds
        parts.append(f"{_amount(rate, progress.unit)}/s")
        if progress.total:
            parts.append(f"{format_seconds((progress.total - progress.done) / rate)} left")
    if progress.note:
        parts.append(progress.note)
    return ", ".join(parts)


def _amount(number: float, unit: str) -> str:
    if unit == "B":
        return format_size(number)
    for scale, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= scale:
            return f"{number / scale:.3g}{letter} {unit}"
    return f"{number:.3g} {unit}"


def format_seconds(seconds: float) -> str:
    """``"0.42 s"``, ``"42 s"``, ``"4 min 2 s"``, ``"3 h 2 min"``."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"


# ---------------------------------------------------------------------------------------------------------------------
# Results


def print_json(result: Mapping[str, Any]) -> None:
    """Print the command's one JSON object on standard output; what is not a finite number becomes null."""
    print(json.dumps(_finite(result), allow_nan=False), flush=True)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


def show(result: Mapping[str, Any], as_json: bool, print_text: Callable[[], None]) -> None:
    """Print a result: its JSON object, or what people read."""
    with file_named("standard output"):
        if as_json:
            print_json(result)
        else:
            print_text()


def print_table(title: str, rows: Iterable[Sequence[str]], header: Sequence[str] | None = None) -> None:
    """Print a table on standard output, drawn on a terminal, plain elsewhere; under a header cells stand to the right."""
    rows = [list(row) for row in rows]
    if sys.stdout.isatty():
        _print_rich(title, header, rows)
        return
    lines = rows if header is None else [list(header), *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print(title)
    for line in lines:
        cells = [
            f"{cell:{'<' if header is None else '>'}{width}}"
            for cell, width in zip(line, widths, strict=True)
        ]
        print("  " + "  ".join(cells).rstrip())
    sys.stdout.flush()


def _print_rich(title: str, header: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console as RichConsole
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=header is not None)
    for name in header or ("", ""):
        table.add_column(Text(name), justify="left" if header is None else "right")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    terminal = RichConsole(file=sys.stdout)
    # as the table's own title it would be wrapped to the table's width
    terminal.print(Text(title, style="bold"))
    terminal.print(table)


# ---------------------------------------------------------------------------------------------------------------------
# Errors


def print_error(text: str) -> None:
    """Print an error in one line on standard error."""
    print("streamcd: error: " + " ".join(text.split()), file=sys.stderr, flush=True)


def explain(error: BaseException) -> tuple[str, int] | None:
    """Describe an error for the user, with the exit status; None for a mistake of ours, which wants a traceback."""
    if isinstance(error, StreamcdError):
        return str(error), error.exit_status
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    if isinstance(error, MemoryError):
        detail = f" ({error})" if str(error) else ""
        return f"out of memory{detail}; give a smaller --memory, or free some of the machine's", 1
    if isinstance(error, OSError):
        reason = error.strerror or str(error) or type(error).__name__
        where = f"{os.fspath(error.filename)}: " if isinstance(error.filename, str | os.PathLike) else ""
        advice = getattr(error, "__notes__", [])
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            advice = ["free some space there, or name another disk", *advice]
        return "; ".join([f"{where}{reason}", *advice]), 1
    return None

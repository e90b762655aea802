"""Output of the command line: results, progress, warnings, and errors in one line."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO, cast

from ..core.errors import StreamcdError, escaped, file_named, format_seconds
from ..core.memory_budget import format_size
from ..core.options import COMPILING, Listener, Progress
from ..report.tables import Table

PLAIN_INTERVAL = 10.0
"""Seconds between lines of progress where there is no terminal."""

_RATE_SECONDS = 10.0
"""Time of which the rate is the mean: a line without a terminal tells of what has passed since the last one."""


class Console(Listener):
    """Progress and messages on standard error: a bar on a terminal, else a line now and then; `quiet`: warnings only."""

    def __init__(self, quiet: bool = False, stream: TextIO | None = None, *, is_json: bool = False) -> None:
        self._quiet = quiet
        self.is_json = is_json
        self.notes = list[
            str
        ]()  # of the command line, told before the first message: once all options are checked
        self._stream = stream or sys.stderr
        self._has_bar = not quiet and self._stream.isatty()
        self._bar: Any = None
        self._phase = ""
        self._shown = time.monotonic()
        self._recent = deque[tuple[float, int]]()  # times of the last seconds, and what was done by then

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the bar; it comes back with the next progress."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def progress(self, progress: Progress) -> None:
        """Show progress, unless it was shown a moment ago."""
        if self._quiet:
            return
        now = time.monotonic()
        is_new = progress.phase != self._phase
        if is_new:
            self._phase = progress.phase
            self._recent.clear()
        if is_new or now - self._recent[-1][0] > 0.1:
            self._recent.append((now, progress.done))
        while now - self._recent[0][0] > _RATE_SECONDS and len(self._recent) > 2:
            self._recent.popleft()
        at_once = is_new and (self._has_bar or progress.phase == COMPILING)
        interval = 0.0 if at_once else 0.1 if self._has_bar else PLAIN_INTERVAL
        if now - self._shown < interval:
            return
        self._shown = now
        begun, before = self._recent[0]
        text = describe_progress(progress, (progress.done - before) / max(now - begun, 0.2))
        if self._has_bar:
            self._draw(progress, escaped(text))
        else:
            self._print(f"{progress.phase}: {text}")

    def _draw(self, progress: Progress, text: str) -> None:
        """Draw a bar at the bottom of the terminal, in place; rich is loaded when the first is shown."""
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        if self._bar is None:
            from rich.console import Console as RichConsole

            # without a thread of its own: drawn when progress is reported
            self._bar = RichProgress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=30),
                TextColumn("{task.fields[text]}", markup=False),
                console=RichConsole(file=self._stream),
                auto_refresh=False,
                transient=True,
            )
            self._row = self._bar.add_task("", text="")
            self._bar.start()
        about: dict[str, Any] = {"completed": progress.done, "total": progress.total, "text": text}
        self._bar.update(self._row, description=escaped(progress.phase), **about)
        self._bar.refresh()

    def message(self, text: str) -> None:
        """Print a message."""
        if not self._quiet:
            for line in (*self.notes, text):
                self._print(line)
            self.notes.clear()

    def warning(self, text: str) -> None:
        """Print a warning."""
        self._print(f"warning: {text}")

    def _print(self, text: str) -> None:
        self.close()
        print(f"streamcd: {escaped(text)}", file=self._stream, flush=True)


class ProgressBar(Console):
    """Progress of long calls from Python: a bar on a terminal, otherwise a line every ten seconds.

    Pass it as ``listener=``; the bar is removed when the call ends. Messages and warnings go to standard error.

    Parameters
    ----------
    quiet : bool
        Show warnings only.
    stream : text file, optional
        Instead of standard error.

    Examples
    --------
    >>> data = streamcd.convert("reviews/train.txt", "shown", listener=streamcd.ProgressBar(quiet=True))
    """


# ---------------------------------------------------------------------------------------------------------------------
# Results


def print_json(result: Mapping[str, Any]) -> None:
    """Print the command's one JSON object on standard output; infinities and NaN become null."""
    print(json.dumps(_finite(result), allow_nan=False), flush=True)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


class Problem(str):
    """A line of a result that goes to standard error."""


Shown = tuple[Any, ...]
"""The result of a command, an object for ``--json``, and what people are shown in its place: tables and lines."""


def show(result: Mapping[str, Any], as_json: bool, *shown: Table | str) -> None:
    """Print a result: its JSON object, or for people tables and lines; problems, and what follows them, as errors."""
    with file_named("standard output"):
        if as_json:
            print_json(result)
            return
        out = sys.stdout
        for part in shown:
            if isinstance(part, Table):
                print_table(*part)
            elif isinstance(part, Problem):
                print_error(part)
                out = sys.stderr
            else:
                print(escaped(part), file=out, flush=True)


class _EscapedLines(io.TextIOBase):
    """Standard output, where names in the lines are escaped."""

    def write(self, text: str) -> int:
        return sys.stdout.write("\n".join(map(escaped, text.split("\n"))))


def lines_output() -> TextIO:
    """Return standard output for lines of data; a terminal gets them escaped."""
    return cast(TextIO, _EscapedLines()) if sys.stdout.isatty() else sys.stdout


def print_table(
    title: str, rows: Iterable[Sequence[str]], header: Sequence[str] | None = None, n_texts: int = 0
) -> None:
    """Print a table on standard output; below a header cells are right-aligned but for the first `n_texts` columns."""
    title = escaped(title)
    header = header and [*map(escaped, header)]
    rows = [[*map(escaped, row)] for row in rows]
    lines = rows if header is None else [list(header), *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print(title)
    for line in lines:
        cells = [
            f"{cell:{'<' if header is None or number < n_texts else '>'}{width}}"
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  " + "  ".join(cells).rstrip())
    sys.stdout.flush()


# ---------------------------------------------------------------------------------------------------------------------
# Errors


def print_error(text: str) -> None:
    print(f"streamcd: error: {escaped(' '.join(text.split()))}", file=sys.stderr, flush=True)


def explain(error: BaseException, *, takes_memory: bool = True) -> tuple[str, int] | None:
    """Describe an error for the user, with the exit status; None for a bug, which needs a traceback.

    `takes_memory` says whether the command has the option --memory.
    """
    if isinstance(error, StreamcdError):
        return str(error), error.exit_status
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    if isinstance(error, MemoryError):
        detail = f" ({error})" if str(error) else ""
        smaller = "give a smaller --memory, or " if takes_memory else ""
        return f"out of memory{detail}; {smaller}free some of the machine's", 1
    if isinstance(error, OSError):
        reason = error.strerror or str(error) or type(error).__name__
        where = f"{os.fspath(error.filename)}: " if isinstance(error.filename, str | os.PathLike) else ""
        advice = getattr(error, "__notes__", [])
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            advice = ["free some space there, or name another disk", *advice]
        elif where and (folder := _unwritable_folder(error)):
            where = f"{folder}: "
            advice = ["make this directory writable, or name another place", *advice]
        return "; ".join([f"{where}{reason}", *advice]), 1
    return None


def _unwritable_folder(error: OSError) -> str | None:
    """Return the directory in which a file could not be made, if that is why; its temporary name would say nothing."""
    if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS) or os.path.exists(error.filename):
        return None
    folder = os.path.dirname(os.path.abspath(os.fspath(error.filename)))
    return None if os.access(folder, os.W_OK) else folder


# ---------------------------------------------------------------------------------------------------------------------
# Progress as text


def describe_progress(progress: Progress, rate: float) -> str:
    """Describe share done, rate a second and time left of a phase; the end of a training is not known."""
    if progress.phase == COMPILING:
        return f"{progress.done} of {progress.total}"
    parts = []
    if progress.total:
        share = 100 * progress.done / progress.total
        parts.append(f"{share:.0f} % of {_amount(progress.total, progress.unit)}")
    elif progress.done or not progress.note:
        parts.append(_amount(progress.done, progress.unit))
    if rate > 0:
        parts.append(f"{_amount(rate, progress.unit)}/s")
        if progress.total and progress.training is None:
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

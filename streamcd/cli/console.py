"""Output of the command line: results, progress, warnings, and errors in one line."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO, cast

from ..core.errors import StreamcdError, escaped, file_named, format_seconds
from ..core.memory_budget import format_size
from ..core.options import COMPILING, Listener, Progress, TrainingStatus
from ..report.tables import Table

PLAIN_INTERVAL = 10.0
"""Seconds between lines of progress where there is no terminal."""


class Console(Listener):
    """Progress and messages on standard error: a bar on a terminal, else a line now and then; `quiet`: warnings only."""

    def __init__(self, quiet: bool = False, stream: TextIO | None = None, *, is_json: bool = False) -> None:
        self._quiet, self.is_json = quiet, is_json
        self._stream = stream or sys.stderr
        self._has_bar = not quiet and self._stream.isatty()
        self._bar: Any = None
        self._phase = ""
        self._started = self._shown = time.monotonic()
        self._course: Course | None = None

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
        now, status = time.monotonic(), progress.training
        is_new = progress.phase != self._phase
        if is_new:
            self._phase, self._started = progress.phase, now
        if status is not None:
            if self._course is None or not self._course.continues(status):
                self._course = Course(status, now)
            self._course.learn(status, now)
        at_once = is_new and (self._has_bar or progress.phase == COMPILING)
        interval = 0.0 if at_once else 0.1 if self._has_bar else PLAIN_INTERVAL
        if now - self._shown < interval:
            return
        self._shown = now
        left = [] if status is None or self._course is None else self._course.time_left(progress, now)
        text = "; ".join([describe_progress(progress, now - self._started), *left])
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
            self._print(text)

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
    title, header = escaped(title), header and [*map(escaped, header)]
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
            where, advice = f"{folder}: ", ["make this directory writable, or name another place", *advice]
        return "; ".join([f"{where}{reason}", *advice]), 1
    return None


def _unwritable_folder(error: OSError) -> str | None:
    """Return the directory in which a file could not be made, if that is why; its temporary name would say nothing."""
    if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS) or os.path.exists(error.filename):
        return None
    folder = os.path.dirname(os.path.abspath(os.fspath(error.filename)))
    return None if os.access(folder, os.W_OK) else folder


# ---------------------------------------------------------------------------------------------------------------------
# Progress as text, and the time that a training still takes


class Course:
    """Course of one training: times of its passes, and the fall of the gap (or violation), by which its end is forecast.

    A line is fitted to the logarithm of the gap over the last half of the passes: in the first ones it falls faster.
    """

    def __init__(self, status: TrainingStatus, now: float) -> None:
        self._task, self._first, self._last = status.task, status.passes, status.passes
        self._paced_from = (float(status.passes), now)  # passes and time from which the pace is taken
        self._points: list[tuple[int, float]] = []  # passes, logarithm of the measure over its target

    def continues(self, status: TrainingStatus) -> bool:
        """Return whether this is the same training."""
        return status.task == self._task and status.passes >= self._last

    def learn(self, status: TrainingStatus, now: float) -> None:
        """Record the status after a read."""
        if (
            self._last == self._first < status.passes
        ):  # the first pass loads kernels, and files that are not cached
            self._paced_from = (float(status.passes), now)
        self._last = status.passes
        if status.now > 0 and status.wanted > 0 and math.isfinite(status.now):
            if self._points and self._points[-1][0] >= status.passes:
                self._points.pop()
            self._points.append((status.passes, math.log(status.now / status.wanted)))

    def passes_left(self, status: TrainingStatus, passes: float) -> float | None:
        """Return the passes left after `passes`, with one for the certificate; None while no line can be fitted."""
        if len(self._points) < 2:
            return None
        slope, at_end = _line(self._points[-max(3, math.ceil(len(self._points) / 2)) :])
        if slope >= 0 and at_end > 0:
            return None
        end = self._points[-1][0] - (at_end / slope if at_end > 0 else 0.0)
        return 1.0 + max(min(end, status.max_passes) - passes, 0.0)

    def time_left(self, progress: Progress, now: float) -> list[str]:
        """Describe the time left, by the passes so far; an empty list where it is not known."""
        status = progress.training
        assert status is not None
        passes = status.passes + status.passes_ahead * progress.done / max(progress.total or 1, 1)
        left, (start, begun) = self.passes_left(status, passes), self._paced_from
        if left is None or passes <= start:
            return []
        return [f"about {format_seconds(left * (now - begun) / (passes - start))} left"]


def _line(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Return the slope of the least-squares line, and its value at the last point, or the last value itself if smaller."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return slope, min(mean_y + slope * (points[-1][0] - mean_x), points[-1][1])


def describe_progress(progress: Progress, seconds: float) -> str:
    """Describe share done, rate and time left of a phase that has taken `seconds`."""
    if progress.phase == COMPILING:
        return f"{progress.done} of {progress.total}"
    parts = []
    if progress.total:
        share = 100 * progress.done / progress.total
        parts.append(f"{share:.0f} % of {_amount(progress.total, progress.unit)}")
    elif progress.done or not progress.note:
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

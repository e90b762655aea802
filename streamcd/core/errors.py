"""Every error that streamcd raises on purpose, the exit status each one means, and words of text for people.

A message is one line: what was expected, what was found, where, what to do. In Python wrong arguments and bad data are
`ValueError`, failures of the machine `OSError`. Messages are written with the options of the command line; outside a command
they are shown with the keywords of Python (`in_words_of_caller`).
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_SPACES = "\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{IDEOGRAPHIC SPACE}"  # of ordinary names


def escaped(text: str) -> str:
    r"""Write control characters, line ends, and marks that turn the direction of text as ``repr`` does: ``\x1b``.

    A name from data or of a file may hold such characters, which a terminal obeys. What is escaped stays as it is.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in _SPACES else repr(char)[1:-1] for char in text)


class StreamcdError(Exception):
    """Base of all errors raised on purpose.

    Examples
    --------
    >>> try:
    ...     streamcd.open("nowhere")
    ... except streamcd.StreamcdError as error:
    ...     print(type(error).__name__, error.exit_status)
    DatasetError 2
    """

    # of the command line: 1 if the environment failed, 2 if the request or the data is wrong
    exit_status = 2

    def __str__(self) -> str:
        return escaped(in_words_of_caller(super().__str__()))


class UsageError(StreamcdError, ValueError):
    """The request cannot be carried out as it was made: options, sizes, a budget that is too small."""


class KeywordError(UsageError, TypeError):
    """An argument that the function does not take, or lacks."""


class BudgetError(UsageError):
    """The memory budget is too small for what is asked."""


class DataError(StreamcdError, ValueError):
    """Input data that cannot be used: a malformed token, indices out of order, a value out of range."""


class DatasetError(StreamcdError, ValueError):
    """A dataset directory that is missing, damaged, or not the one a run was made with."""


class CheckpointError(StreamcdError, ValueError):
    """A run directory that is damaged, or does not fit what is asked of it."""


class ModelError(StreamcdError, ValueError):
    """A model that is missing, damaged, or does not fit the data."""


class EnvironmentFailure(StreamcdError, OSError):
    """The machine failed, not the user: disk full, input/output error, a lock held by another process."""

    exit_status = 1


class LockError(EnvironmentFailure):
    """Another process holds the directory."""


class Interrupted(StreamcdError):
    """A signal stopped the work, after a checkpoint was saved; the message says how to continue."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.signum = signum
        self.exit_status = 128 + signum


class ConvergenceWarning(UserWarning):
    """A training ended before its stopping rule was met.

    Examples
    --------
    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     result = streamcd.train("data", "too-short", max_passes=1)
    >>> caught[0].category.__name__, result.converged
    ('ConvergenceWarning', False)
    """


@contextmanager
def file_named(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add the file's name to an `OSError`: calls that take a descriptor do not name it."""
    try:
        yield
    except OSError as error:
        # numpy's words for a short write
        if error.errno is None and "requested and" in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path)) from error
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


# ---------------------------------------------------------------------------------------------------------------------
# Options in messages: written as those of the command line, shown to Python as keywords

in_command = threading.Event()
"""Set while a command of the command line runs."""

_FUNCTIONS = {"columns": "make_columns", "report": "write_report"}  # others have the command's name
_SWITCHES = ("compact", "force", "proba", "unpenalized_bias", "unweighted")
_WORDED = ("dtype", "loss", "method", "normalize", "penalty", "scale")  # take a word
_NAMES = re.compile(
    r"'streamcd (columns|convert|evaluate|merge|predict|report|resume|train|tune|weights)\b([^']*)'"
    r"|'(?:streamcd|dask) [^']*'"  # other commands stay as they are
    r"|(?<![\w'/-])(?:-(?=[Ce]\b)|--(?=[a-z]))([A-Za-z][a-z\d-]*)(?![\w'/-])(?: (?!-)([\w.-]+))?"
)


def in_words_of_caller(text: str) -> str:
    """Name options as a command does, or outside of commands as Python: keywords for flags, functions for commands."""
    return text if in_command.is_set() else _NAMES.sub(_in_python, text)


def _in_python(match: re.Match[str]) -> str:
    command, rest, option, word = match.groups()
    if command:
        arguments = [
            (name and name.replace("-", "_") + "=")
            + (value if re.fullmatch(r"[A-Z]+|[\d.]+", value) else repr(value or True))
            for name, value in re.findall(r" (?:--?([\w-]+))?(?: ?((?!-)\S+))?", rest)
        ]
        return f"streamcd.{_FUNCTIONS.get(command, command)}({', '.join(arguments)})"
    if not option:
        return match[0]
    name = {"e": "eps"}.get(option, option.replace("-", "_"))
    if name in _WORDED and word not in (None, "and", "is", "or"):
        return f'{name}="{word}"'
    return name + "=True" * (name in _SWITCHES) + (f" {word}" if word else "")


# ---------------------------------------------------------------------------------------------------------------------
# Words of messages


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def first_of(texts: Sequence[str], most: int = 10, between: str = ", ") -> str:
    """Join the first texts, `most` at most, and tell the number of all where others follow."""
    more = [f"… ({len(texts):,} in all)"] if len(texts) > most else []
    return between.join([*texts[:most], *more])


def shortened(text: str, most: int) -> str:
    """Return the first characters of a text, `most` at most, with a mark where others follow."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def format_seconds(seconds: float) -> str:
    """Format a time as ``"0.42 s"``, ``"42 s"``, ``"4 min 2 s"`` or ``"3 h 2 min"``."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"

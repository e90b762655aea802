"""Progress and messages of long-running functions: the library reports them, the command line prints them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from .errors import escaped

Options = ParamSpec("Options")
Found = TypeVar("Found")

_logger = logging.getLogger("streamcd")
_warned: set[str] = set()

COMPILING = "compiling kernels"
"""Phase in which kernels are compiled that are not cached yet."""


def compiling_for(task: str) -> str:
    """Say that a task needs kernels that are not cached; each task, and each kind of it, has some of its own."""
    return f"compiling kernels for {task}, some ten seconds: the cache does not have them yet, and keeps them for later"


@dataclass(frozen=True)
class TrainingStatus:
    """State of a training after its latest read."""

    task: str  # name if there are several, such as "folds: "
    passes: int  # done
    passes_ahead: int  # that the read or round in progress adds
    max_passes: int
    measure: str  # the stopping rule's: "gap" (relative) or "violation"
    now: float  # its largest estimate among open lanes; nan if there is none yet
    wanted: float


@dataclass(frozen=True)
class Progress:
    """State of a task in progress."""

    phase: str  # name, such as "parse" or "pass 12"
    done: int
    total: int | None  # None if unknown
    unit: str  # "B", "rows" or "entries"
    note: str = ""  # further information, such as the current gap
    training: TrainingStatus | None = None  # None for other tasks


def warn_once(text: str) -> None:
    """Log a warning, once per process."""
    if text not in _warned:
        _warned.add(text)
        _logger.warning(escaped(text))


def ends_progress(function: Callable[Options, Found]) -> Callable[Options, Found]:
    """Decorate a public function to have a `listener` by default, which hears of compilations, and is closed at the end."""

    @functools.wraps(function)
    def run(*args: Options.args, **options: Options.kwargs) -> Found:
        listener = options.get("listener")
        if listener is None:
            listener = options["listener"] = Listener()
        try:
            with telling_of_compilation(listener, function.__name__):
                return function(*args, **options)
        finally:
            if isinstance(listener, Listener):
                listener.close()

    return run


def telling_of_compilation(listener: object, task: str) -> AbstractContextManager[None]:
    """Tell a listener of compilations for a task, unless another is told of them."""
    from ..kernels.compilation import compilation_told  # here, for a shorter chain of imports

    return compilation_told(functools.partial(_tell_compilation, listener, task))


def _tell_compilation(listener: object, task: str, n_compiled: int) -> None:
    if not isinstance(listener, Listener):  # refused by the function
        return
    if n_compiled == 0:
        listener.message(compiling_for(task))
    listener.progress(Progress(COMPILING, 0, None, "", note=f"kernel {n_compiled + 1}"))


class Listener:
    """Receiver of progress and messages; this one ignores progress and logs the rest.

    A subclass overrides the methods that it needs; pass it as ``listener=`` to any long-running function.

    Examples
    --------
    >>> class Phases(streamcd.Listener):
    ...     seen = set()
    ...     def progress(self, progress):
    ...         self.seen.add(progress.phase)
    >>> listener = Phases()
    >>> result = streamcd.train("data", "watched", listener=listener)
    >>> "pass 1" in listener.seen
    True
    """

    def progress(self, progress: Progress) -> None:
        """Receive progress; called about once per block or window, so it must be cheap."""

    def message(self, text: str) -> None:
        """Receive information for the user."""
        _logger.info(escaped(text))

    def warning(self, text: str) -> None:
        """Receive a warning: the user should probably change something."""
        _logger.warning(escaped(text))

    def close(self) -> None:
        """Receive the end of a function; another one may follow."""


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

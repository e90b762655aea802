"""Progress and messages of long work: the library reports them, the command line prints them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

Options = ParamSpec("Options")
Found = TypeVar("Found")

_logger = logging.getLogger("streamcd")
_warned: set[str] = set()


@dataclass(frozen=True)
class CostStatus:
    """State of the lanes of one C."""

    C: float
    n_lanes: int
    n_open: int  # still in training
    now: float  # the largest of an open lane; nan where none is open, or nothing is known


@dataclass(frozen=True)
class TrainingStatus:
    """State of a training at the last end of a read."""

    task: str  # name where there are several, such as "folds: "
    passes: int  # done
    passes_ahead: int  # that the read or round in work adds
    max_passes: int
    measure: str  # decides about the end: "gap" (relative) or "violation"
    now: float  # its largest estimate of an open lane; nan where there is none yet
    wanted: float
    costs: tuple[CostStatus, ...]  # by C


@dataclass(frozen=True)
class Progress:
    """State of a task in work."""

    phase: str  # name, such as "parse" or "pass 12"
    done: int
    total: int | None  # None where it cannot be known
    unit: str  # "B", "rows" or "entries"
    note: str = ""  # further information, such as the current gap
    training: TrainingStatus | None = None  # where that is what is in work


def warn_once(text: str) -> None:
    """Log a warning, once in this process."""
    if text not in _warned:
        _warned.add(text)
        _logger.warning(text)


def ends_progress(function: Callable[Options, Found]) -> Callable[Options, Found]:
    """Tell the listener, an option of a public function, when its work has ended, also where it failed."""

    @functools.wraps(function)
    def run(*args: Options.args, **options: Options.kwargs) -> Found:
        try:
            return function(*args, **options)
        finally:
            listener = options.get("listener")
            if isinstance(listener, Listener):
                listener.close()

    return run


class Listener:
    """Receiver of progress and messages; this one ignores progress and logs the rest.

    A subclass overrides what it wants to know, and is given as ``listener=`` to any function that takes long.

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
        """Receive progress; called about once a block or window, so it must be cheap."""

    def message(self, text: str) -> None:
        """Receive information for the user."""
        _logger.info(text)

    def warning(self, text: str) -> None:
        """Receive a warning: the user probably should change something."""
        _logger.warning(text)

    def close(self) -> None:
        """Take note that a function has ended; another one may follow."""

"""Progress and messages of long work: the library reports them, the command line prints them."""

from __future__ import annotations

import logging
from dataclasses import dataclass

_logger = logging.getLogger("streamcd")
_warned: set[str] = set()


@dataclass(frozen=True)
class Progress:
    """State of a task in work."""

    phase: str  # name, such as "parse" or "pass 12"
    done: int
    total: int | None  # None where it cannot be known
    unit: str  # "B", "rows" or "entries"
    note: str = ""  # further information, such as the current gap


def warn_once(text: str) -> None:
    """Log a warning, once in this process."""
    if text not in _warned:
        _warned.add(text)
        _logger.warning(text)


class Listener:
    """Receiver of progress and messages; this one ignores progress and logs the rest."""

    def progress(self, progress: Progress) -> None:
        """Receive progress; called about once a block or window, so it must be cheap."""

    def message(self, text: str) -> None:
        """Receive information for the user."""
        _logger.info(text)

    def warning(self, text: str) -> None:
        """Receive a warning: the user probably should change something."""
        _logger.warning(text)

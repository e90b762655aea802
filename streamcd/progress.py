"""The words in which long work tells how far it is; the library speaks them, the command line prints them."""

from __future__ import annotations

import logging
from dataclasses import dataclass

_logger = logging.getLogger("streamcd")


@dataclass(frozen=True)
class Progress:
    """How far a piece of work is.

    Attributes
    ----------
    phase : str
        What is being done, such as ``"parse"`` or ``"pass 12"``.
    done, total : int
        In `unit`; total is None where it cannot be known.
    unit : str
        ``"B"``, ``"rows"`` or ``"entries"``.
    note : str
        What else is worth a glance, such as the current gap.
    """

    phase: str
    done: int
    total: int | None
    unit: str
    note: str = ""


class Listener:
    """Receives progress and messages; this one keeps silent about progress and logs the rest."""

    def progress(self, progress: Progress) -> None:
        """Take notice of progress; called about once a block or window, so it must be cheap."""

    def message(self, text: str) -> None:
        """Tell the user something worth knowing once."""
        _logger.info(text)

    def warning(self, text: str) -> None:
        """Tell the user something that probably wants a change."""
        _logger.warning(text)

"""A listener that remembers what it is told."""

from __future__ import annotations

from streamcd import Listener
from streamcd.core.options import Progress


class Heard(Listener):
    """Messages, warnings and states of progress, in their order."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.warnings: list[str] = []
        self.seen: list[Progress] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def warning(self, text: str) -> None:
        self.warnings.append(text)

    def progress(self, progress: Progress) -> None:
        self.seen.append(progress)

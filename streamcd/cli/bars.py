"""Progress bars: on a terminal, drawn by rich."""

from __future__ import annotations

from typing import Any, TextIO

from ..core.errors import escaped
from ..core.progress import Progress


class Bars:
    """Progress lines at the bottom of the terminal, redrawn in place; rich is loaded when they are first shown.

    The first is for the whole training, if there is one; the last for the current phase.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live: Any = None

    def show(self, progress: Progress, text: str, whole: tuple[float, str] | None) -> None:
        """Draw the phase with its `text`, and above it the share of the `whole` training with a description."""
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        if self._live is None:
            from rich.console import Console as RichConsole

            # without a thread of its own: drawn when progress is reported
            self._live = RichProgress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=30),
                TextColumn("{task.fields[text]}", markup=False),
                console=RichConsole(file=self._stream),
                auto_refresh=False,
                transient=True,
            )
            self._rows = [self._live.add_task("", visible=False, text="") for _ in range(2)]
            self._live.start()
        share, description = whole or (0.0, "")
        self._live.update(
            self._rows[0],
            description="training",
            completed=share,
            total=1.0,
            text=description,
            visible=whole is not None,
        )
        self._live.update(
            self._rows[1],
            description=escaped(progress.phase),
            completed=progress.done,
            total=progress.total,
            text=text,
            visible=True,
        )
        self._live.refresh()

    def clear(self) -> None:
        """Remove the lines; they come back with the next progress."""
        if self._live is not None:
            self._live.stop()
            self._live = None

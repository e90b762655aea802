"""A training as a command carries it out: signals stop it, an error says how to go on, the result is printed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..core.errors import ConvergenceWarning
from ..report.tables import result_tables
from ..runs.interrupts import stop_requests
from . import console


@contextmanager
def _way_on(run: str) -> Iterator[None]:
    """Add to an error of the operating system how to resume the run."""
    try:
        yield
    except OSError as error:
        if os.path.exists(os.path.join(run, "config.json")):
            begun = next(Path(run).rglob("state.npz"), None)  # of a search or a group in a folder
            where = "from the last checkpoint" if begun else "from the beginning"
            error.add_note(f"'streamcd resume {run}' goes on {where}")
        raise


def carry_out(
    work: Callable[..., Any], run: str, quiet: bool, as_json: bool, notes: Sequence[str] = ()
) -> None:
    """Run a training that signals can stop, and print the result."""
    with console.Console(quiet) as listener, stop_requests() as stop_requested:
        for note in notes:
            listener.message(note)
        with warnings.catch_warnings(), _way_on(run):
            warnings.simplefilter("ignore", ConvergenceWarning)  # reported below, in the command's own words
            result = work(listener=listener, stop_requested=stop_requested)
        if result.fell_short and result.stop_reason != "time":  # which the training has reported
            way_on = f"'streamcd resume {result.run} --max-passes N' goes on"
            listener.warning(f"{result.describe_shortfall()}; {way_on}")
    content = result.to_json()
    console.show(content, as_json, *result_tables(content))

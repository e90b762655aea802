"""A command around its call of the library: a listener before, the result printed after; trainings that signals stop."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import ConvergenceWarning, StreamcdError
from ..report.tables import result_tables
from .console import Console, Shown, show
from .options import Decorator, json_option, quiet_option


def carry_out(work: Callable[..., Any], run: str, listener: Console, notes: Sequence[str] = ()) -> Shown:
    """Run a training that signals can stop; returns its result."""
    listener.notes += notes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # told below, in the command's own words
        try:
            result = work(listener=listener)
        except OSError as error:
            # of the operating system: how to resume the run
            if not isinstance(error, StreamcdError) and (Path(run) / "config.json").exists():
                begun = next(Path(run).rglob("state.npz"), None)  # of a search or a group in a folder
                where = "from the last checkpoint" if begun else "from the beginning"
                error.add_note(f"'streamcd resume {run}' goes on {where}")
            raise
    # that the time was up, and a checkpoint saved, the training has told
    if not result.converged and result.stop_reason != "time":
        from ..runs.describe import describe_run  # loads numpy, which --help does without

        ways = [f"'{describe_run(run)['next']}' goes on"]
        listener.warning(
            "; ".join([result.describe_shortfall(), *(ways if result.more_passes_help else result.advice)])
        )
    content = result.to_json()
    return content, *result_tables(content)


def talks(*, quietly: bool = False, failure: int = 0) -> Decorator:
    """Give a command a listener, with ``--quiet`` and ``--json``, and print the result and the tables that it returns.

    Parameters
    ----------
    quietly : bool
        It reports no progress, and has no ``--quiet``.
    failure : int
        The exit status where the result has ``ok: false``.
    """

    def decorate(command: Callable[..., Shown]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(as_json: bool, quiet: bool = True, **arguments: Any) -> None:
            with Console(quiet, is_json=as_json) as listener:
                result, *shown = command(listener, **arguments)
            show(result, as_json, *shown)
            if failure and result.get("ok") is False:
                sys.exit(failure)

        return json_option(run) if quietly else quiet_option(json_option(run))

    return decorate

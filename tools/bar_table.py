"""A table of bars on a page: what is to be reached, what was, and if it holds; a part replaces its own lines."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from streamcd import StreamcdError
from tools.marked_section import read_section, replace_section

_ROUNDS = 3


class Bar(NamedTuple):
    """A measurement and its bar: what was reached, and if that holds; None where nothing is asked."""

    group: str
    what: str
    bar: str
    measure: Callable[[Any], tuple[str, bool | None]]  # of the data that all measurements share


def bar_options(bars: Sequence[Bar]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the options ``--only``, ``--work`` and ``--docs``."""
    groups = click.Choice(sorted({bar.group for bar in bars}))
    place, page = click.Path(path_type=Path), click.Path(path_type=Path, exists=True)
    options = [
        click.option("--only", multiple=True, type=groups, help="A part."),
        click.option("--work", type=place, help="Folder for datasets; by default a temporary one."),
        click.option("--docs", type=page, help="Page with the section to replace."),
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def show(bars: Sequence[Bar], data: Any, command: str, only: Sequence[str], docs: Path | None) -> None:
    """Measure and print; on a page, the lines of other groups than `only` stay."""
    table = {} if docs is None else _kept_lines(docs, command)
    for bar in bars:
        if only and bar.group not in only:
            continue
        try:
            reached, held = bar.measure(data)
        except (StreamcdError, ImportError) as error:
            reached, held = f"not measured: {error}".splitlines()[0][:120], False if bar.bar else None
        verdict = {True: "held", False: "**not held**", None: ""}[held]
        table[bar.what] = f"| {bar.what} | {bar.bar} | {reached} | {verdict} |"
        click.echo(table[bar.what], err=True)
    lines = ["| what | at least | reached | |", "| --- | --- | --- | --- |"]
    lines += [table[bar.what] for bar in bars if bar.what in table]
    click.echo("\n".join(lines))
    if docs is not None:
        replace_section(docs, command, "\n".join(lines))


def _kept_lines(page: Path, command: str) -> dict[str, str]:
    """Return the lines of the page's table by what they are about."""
    lines = [line for line in read_section(page, command).splitlines() if line.startswith("| ")]
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines}


def need_processors(n: int) -> None:
    """Refuse to measure what needs more processors than there are."""
    found = len(os.sched_getaffinity(0))
    if found < n:
        raise StreamcdError(f"{found} processors")


def listed(numbers: Any, between: str = ", ") -> str:
    """Numbers in a row, and a dash for what was not reached."""
    return between.join("–" if number == float("inf") else f"{number:g}" for number in numbers)


def in_turns(*calls: Callable[[], Any]) -> Iterator[float]:
    """Median seconds of calls that take turns; the first of each is not counted."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(_ROUNDS + 1):
        for call, own in zip(calls, seconds, strict=True):
            started = time.perf_counter()
            call()
            own.append(time.perf_counter() - started)
    return (statistics.median(own[1:]) for own in seconds)

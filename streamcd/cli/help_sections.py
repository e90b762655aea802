"""Options by section in the help of a command: a section is declared with its option."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ..core.options import Section

_LEAST_OPTIONS = 10  # of a command with sections; fewer are one list


class Option(click.Option):
    """Option with the section of the help in which it is listed."""

    def __init__(self, *arguments: Any, section: str = Section.MOST_USED, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.section = Section(section)


def option(
    *names: str, section: str = Section.MOST_USED, **attributes: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare an option as `click.option` does, with its section."""
    return click.option(*names, cls=Option, section=section, **attributes)


class Command(click.Command):
    """Command whose help lists options by section, if it has many."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options that are not hidden."""
        by_section: dict[str, list[tuple[str, str]]] = {title: [] for title in Section}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                by_section[getattr(parameter, "section", Section.OUTPUT)].append(record)
        if sum(map(len, by_section.values())) < _LEAST_OPTIONS:
            by_section = {"Options": [record for records in by_section.values() for record in records]}
        for title, records in by_section.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

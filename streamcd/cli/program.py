"""Errors and signals of the command line: one line each, and an exit status."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

from ..core.errors import Interrupted, StreamcdError, in_command
from ..core.options import Section
from ..core.signals import ignore, signal_handler
from . import console

_HELP_WANTED: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""Error of a command without arguments; click before 8.2 prints the help itself."""


SECTIONS = {
    "Data": ("convert", "merge", "columns", "info", "verify"),
    "Training": ("train", "tune", "resume"),
    "Models": ("evaluate", "predict", "weights", "report", "export", "import"),
    "First steps": ("demo", "compile"),
}
"""Commands by task, as ``--help`` lists them."""


_SCREEN = 45
"""Lines of a help that are seen at once."""

_MOST_FLAGS = 28
"""Columns of the names of options, at most, beside which their texts stand; longer names stand above."""

_WHOLE = "streamcd.help_all"
"""Entry of a context's ``meta``: whether its help lists all options."""


def _show_all(ctx: click.Context, parameter: click.Parameter, is_given: bool) -> None:
    if is_given:
        ctx.meta[_WHOLE] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def _help_all() -> click.Option:
    about: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False}
    text = "Show all options, and all about them."
    return click.Option(["--help-all"], callback=_show_all, help=text, **about)


class Command(click.Command):
    """Command whose ``--help`` is a screen, with the options that most people need; ``--help-all`` has all, by section."""

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.params.append(_help_all())

    def get_help(self, ctx: click.Context) -> str:
        """Return the help: whole where that is asked for, or fits a screen."""
        text = super().get_help(ctx)
        if ctx.meta.get(_WHOLE) or text.count("\n") < _SCREEN:
            return text
        ctx.meta[_WHOLE] = False
        return super().get_help(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options: all, by section if they are many, or the common ones, by the first sentence on each."""
        by_section: dict[str, list[tuple[str, str]]] = {title: [] for title in Section}
        is_whole = ctx.meta.get(_WHOLE, True)
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or isinstance(parameter, click.Argument):
                continue
            if not is_whole:
                if not getattr(parameter, "is_common", True):
                    continue
                text, bracket, values = record[1].partition("  [")
                record = record[0], _first_sentence(text) + bracket + values
            by_section[getattr(parameter, "section", Section.OUTPUT)].append(record)
        if not is_whole or sum(map(len, by_section.values())) < 10:
            title = "Options" if is_whole else "Options that most people need"
            by_section = {title: [record for records in by_section.values() for record in records]}
        for title, records in by_section.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records, col_max=_MOST_FLAGS)


class Program(click.Group):
    """Group of commands that turns every error into one line and an exit status."""

    command_class = Command

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.params.append(_help_all())

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by task, each with the first sentence of its help, whole."""
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name, _first_sentence(self.commands[name].help or "")) for name in names]
                )

    def main(self, args: Any = None, prog_name: str | None = None, **extra: Any) -> Any:  # type: ignore[override]
        arguments = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        with signal_handler(_stop, signal.SIGINT, signal.SIGTERM), _as_command():
            try:
                status = super().main(arguments, prog_name or "streamcd", **extra)
            except BrokenPipeError:
                _forget_output()
                sys.exit(1)
            except (Exception, KeyboardInterrupt) as error:
                command = self.commands.get(arguments[0]) if arguments else None
                sys.exit(_report(error, command, arguments))
        sys.exit(status if isinstance(status, int) else 0)


def _typed(option: click.Option, arguments: list[str]) -> str | None:
    """Return the flag by which an option was given."""
    for argument in arguments:
        for flag in option.opts:
            if argument.split("=")[0] == flag or (flag[1] != "-" and argument.startswith(flag)):
                return flag
    return None


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    return paragraph.split(". ")[0].rstrip(".") + "."


class _WarningLines(logging.Handler):
    """Handler that prints logged warnings, which reach no listener, like the command line's own."""

    def emit(self, record: logging.LogRecord) -> None:
        console.Console(quiet=True).warning(record.getMessage())


@contextmanager
def _as_command() -> Iterator[None]:
    """Name options in messages by their flags, and print the warnings that are logged."""
    logger = logging.getLogger("streamcd")
    lines = _WarningLines(logging.WARNING)
    logger.addHandler(lines)
    in_command.set()
    try:
        yield
    finally:
        in_command.clear()
        logger.removeHandler(lines)


def _stop(signum: int, frame: FrameType | None) -> None:
    """Unwind the stack at SIGTERM as at Ctrl-C, so that temporary files are removed; later signals are ignored."""
    ignore(signal.SIGINT, signal.SIGTERM)
    if signum == signal.SIGINT:
        raise KeyboardInterrupt
    raise Interrupted("terminated", signum)


def _report(error: BaseException, command: click.Command | None, arguments: list[str]) -> int:
    options = [] if command is None else [one for one in command.params if isinstance(one, click.Option)]
    # click's own, for Ctrl-C and for an unexpected end of file
    if isinstance(error, click.exceptions.Abort):
        error = error.__cause__ if isinstance(error.__cause__, EOFError) else KeyboardInterrupt()
    if isinstance(error, _HELP_WANTED):
        error.show()
        return 2
    if isinstance(error, click.ClickException):
        path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "streamcd"
        text, example = _missing_arguments(error) or (error.format_message(), "")
        explained: tuple[str, int] | None = (f"{text} See '{path} --help'.{example}", 2)
    else:
        explained = console.explain(error, takes_memory=any(option.name == "memory" for option in options))
    if explained is None:
        raise error
    text, status = explained
    if isinstance(error, StreamcdError):  # which begins with Python's name of an option where it is about one
        typed = {option.name or "": flag for option in options if (flag := _typed(option, arguments))}
        text = re.sub(r"\A\w+(?=: | is )", lambda name: typed.get(name.group(), name.group()), text)
    console.print_error(text)
    try:
        if "--json" in arguments:
            console.print_json({"error": text, "exit_status": status})
        sys.stdout.flush()
    except OSError:
        _forget_output()
    return status


def _missing_arguments(error: click.ClickException) -> tuple[str, str] | None:
    """Describe an argument that was left out by all that the command takes, and its first example."""
    if not isinstance(error, click.MissingParameter) or not isinstance(error.param, click.Argument):
        return None
    assert error.ctx is not None
    command = error.ctx.command
    taken = [piece for piece in command.collect_usage_pieces(error.ctx) if piece != command.options_metavar]
    example = (command.help or "").partition("Example:")[2].strip().split("\n")[0]
    return f"expected {' '.join(taken)}, found fewer arguments.", f" Example: {example}"


def _forget_output() -> None:
    """Drop output that could not be written: left in the buffer, it would fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

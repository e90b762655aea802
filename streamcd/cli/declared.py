"""Options of commands, made from their declarations (`core/options`)."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ..core.options import Declared, declared
from .help_sections import option
from .option_types import Parsed
from .options import Option, together


def options_of(declaration: type) -> Option:
    """Make the options of a command from those that a dataclass declares."""
    taken = declared(declaration)
    return together(*(_made(one, taken) for one in taken.values() if one.flags))


def _made(one: Declared, others: Mapping[str, Declared]) -> Option:
    kind = _type(one)
    told = f"  [default: {one.option.default_is}]" if one.option.default_is else ""
    default = {} if one.is_needed else {"default": one.default}
    if one.option.bare is not None:
        default["flag_value"] = one.option.bare
    return option(
        *one.flags,
        one.name,
        section=one.option.section,
        type=kind,
        is_flag=kind is bool,
        required=one.is_needed,
        show_default=one.default is not None and not one.is_needed and kind is not bool,
        **default,
        metavar=one.option.metavar or None,
        help=_as_flags(one.option.help, others) + told,
    )


def _type(one: Declared) -> Any:
    """Return the type of an option for click: of text and numbers, text."""
    if one.option.choices:
        return click.Choice(one.option.choices)
    if one.option.text is not None:
        return Parsed(one.name, *one.option.text)
    union = isinstance(one.type, types.UnionType)
    kinds = set(typing.get_args(one.type)) - {types.NoneType} if union else {one.type}
    if Path in kinds:
        return click.Path()
    kind = kinds.pop() if len(kinds) == 1 else str
    return kind if kind in (int, float, bool) else str


def _as_flags(text: str, options: Mapping[str, Declared]) -> str:
    """Name the options in a help text as the command line does."""

    def flag(match: re.Match[str]) -> str:
        one = options.get(match.group(1))
        return match.group(1) if one is None or not one.flags else one.flags[-1]

    return re.sub(r"`(\w+)`", flag, text)

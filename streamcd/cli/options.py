"""Options of commands: made from their declarations (`core/options`), and those that the command line alone has."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import click

from ..core.errors import UsageError
from ..core.options import Option, Section, declared
from ..kernels.loss_table import LIBLINEAR_L1_TYPES, LIBLINEAR_TYPES, SOLVERS
from ..runs.options import costs

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Adds options to a command."""


class SectionedOption(click.Option):
    """Option with the section of the help in which it is listed; `is_common` if the first screen has it."""

    def __init__(
        self,
        *arguments: Any,
        section: str = Section.MOST_USED,
        is_common: bool = False,
        **attributes: Any,
    ) -> None:
        super().__init__(*arguments, **attributes)
        self.section = Section(section)
        self.is_common = is_common or self.section in (Section.MOST_USED, Section.OUTPUT)


def option(*names: str, section: str = Section.MOST_USED, **attributes: Any) -> Decorator:
    """Declare an option as `click.option` does, with its section."""
    return click.option(*names, cls=SectionedOption, section=section, **attributes)


def together(*options: Decorator) -> Decorator:
    """Make one decorator of several options, in this order in ``--help``."""
    return lambda command: reduce(lambda done, option: option(done), reversed(options), command)


class Costs(click.ParamType):
    """Type of values of C: text, looked at before a mistake of LIBLINEAR's users makes an argument of what follows."""

    name = "costs"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse what is no number."""
        costs(value)
        return value


def options_of(declaration: type) -> Decorator:
    """Make the options of a command from those that a dataclass declares."""
    taken = declared(declaration)
    return together(*(_made(one, taken) for one in taken.values() if one.names))


def _made(one: Option, others: Mapping[str, Option]) -> Decorator:
    kind = _type(one)
    shown_default = f"  [default: {one.default_is}]" if one.default_is else ""
    default = {} if one.is_needed else {"default": one.default}
    if one.bare is not None:
        default["flag_value"] = one.bare
    return option(
        *one.names,
        one.name,
        section=one.section,
        is_common=one.is_common,
        type=kind,
        is_flag=kind is bool,
        required=one.is_needed,
        show_default=one.default is not None and not one.is_needed and kind is not bool,
        **default,
        metavar=one.metavar or None,
        help=_as_flags(one.help, others) + shown_default,
    )


def _type(one: Option) -> Any:
    """Return the type of an option for click: of text and numbers, text."""
    if one.choices:
        return click.Choice(one.choices)
    if one.name == "C" and one.type is Any:
        return Costs()
    union = isinstance(one.type, types.UnionType)
    kinds = set(typing.get_args(one.type)) - {types.NoneType} if union else {one.type}
    if Path in kinds:
        return click.Path()
    kind = kinds.pop() if len(kinds) == 1 else str
    return kind if kind in (int, float, bool) else str


def _as_flags(text: str, options: Mapping[str, Option]) -> str:
    """Name the options in a help text as the command line does."""

    def flag(match: re.Match[str]) -> str:
        one = options.get(match.group(1))
        return match.group(1) if one is None or not one.names else one.names[-1]

    return re.sub(r"`(\w+)`", flag, text)


# ---------------------------------------------------------------------------------------------------------------------
# Options of the command line alone


def force_option(what: str) -> Decorator:
    """Make ``--force`` for a command that replaces `what`."""
    return option("--force", section="Output", is_flag=True, help=f"Replace an existing {what}.")


json_option = option(
    "--json",
    "as_json",
    section="Output",
    is_flag=True,
    help="Print one JSON object. All else goes to standard error.",
)

quiet_option = option(
    "-q",
    "--quiet",
    "quiet",
    section="Output",
    is_flag=True,
    help="Results, warnings and errors only.",
)

LIBLINEAR_WEIGHTS = (
    "with three classes and more -w multiplies C for all rows of the label in every one-vs-rest problem; LIBLINEAR does so "
    "on the positive side only"
)

liblinear_options = together(
    option(
        "-s",
        "solver_type",
        section="LIBLINEAR's flags",
        type=int,
        metavar="N",
        help="LIBLINEAR's number for a loss and a method: "
        + ", ".join(f"{number} {loss} {method}" for number, (loss, method) in sorted(LIBLINEAR_TYPES.items()))
        + "".join(f", {number} {loss} with --penalty l1" for number, loss in LIBLINEAR_L1_TYPES.items())
        + ". Those of primal train by --method auto where there is no column layout.",
    ),
    option(
        "-w",
        "label_weights",
        section="LIBLINEAR's flags",
        type=(str, float),
        multiple=True,
        metavar="LABEL WEIGHT",
        help="LIBLINEAR's -wLABEL WEIGHT, for each label: --class-weight LABEL=WEIGHT,...",
    ),
)


def training_keywords(
    dataset: str,
    *,
    solver_type: int | None,
    class_weight: Any,
    label_weights: tuple[tuple[str, float], ...],
    **others: Any,
) -> tuple[dict[str, Any], list[str]]:
    """Make the library's options of those of the command line, and notes on flags of LIBLINEAR's that say other things."""
    notes = []
    if label_weights:
        if class_weight is not None:
            raise UsageError("-wLABEL and --class-weight say the same: give one of them")
        class_weight = ",".join(f"{label}={weight!r}" for label, weight in label_weights)
        notes.append(LIBLINEAR_WEIGHTS)
    if solver_type is not None:
        others |= _problem_of_type(solver_type)
        if _lacks_columns(dataset, others["loss"], others["method"]):
            others["method"] = "auto"
            notes.append(
                f"-s {solver_type} without a column layout: the same problem, to the same optimum, by --method auto; "
                f"'streamcd columns {dataset}' makes the layout, for primal"
            )
    return {"class_weight": class_weight, **others}, notes


def _lacks_columns(dataset: str, loss: str, method: str) -> bool:
    """Tell whether a method reads a column layout that a dataset does not have."""
    if method == "auto" or SOLVERS[loss, method].layout == "rows":
        return False
    from ..dataset.column_layout import has_columns
    from ..dataset.dataset import open_dataset

    return not has_columns(open_dataset(dataset))


def _problem_of_type(solver_type: int) -> dict[str, str]:
    given = click.get_current_context().get_parameter_source
    names = ("loss", "penalty") if solver_type in LIBLINEAR_L1_TYPES else ("loss", "method", "penalty")
    if click.core.ParameterSource.COMMANDLINE in map(given, names):
        said = f"{', '.join(names[:-1])} and {names[-1]}"
        raise UsageError(
            f"-s {solver_type} names {said} by LIBLINEAR's number: give it, or --{' and --'.join(names)}, not both"
        )
    if solver_type in LIBLINEAR_TYPES:
        loss, method = LIBLINEAR_TYPES[solver_type]
        return {"loss": loss, "method": method}
    if solver_type in LIBLINEAR_L1_TYPES:
        return {"loss": LIBLINEAR_L1_TYPES[solver_type], "penalty": "l1"}
    known = ", ".join(str(number) for number in sorted([*LIBLINEAR_TYPES, *LIBLINEAR_L1_TYPES]))
    raise UsageError(f"-s {solver_type} is unknown to LIBLINEAR; streamcd trains: {known}")

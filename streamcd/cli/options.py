"""Options shared by several commands, and their allowed combinations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import click

from ..core.errors import UsageError
from ..core.progress import Listener
from ..runs.problem_options import class_weights
from ..solvers.registry import SOLVERS
from .help_sections import option

LIBLINEAR_TYPES = {
    entry.liblinear: (entry.loss, entry.method) for entry in SOLVERS if entry.liblinear is not None
}
"""LIBLINEAR's ``-s`` numbers as (loss, method)."""

LIBLINEAR_WEIGHTS = (
    "-w multiplies C for all rows of the label in every one-vs-rest problem; with three classes and more LIBLINEAR does so "
    "on the positive side only"
)

Option = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Decorates a command."""


def together(*options: Option) -> Option:
    """Make one decorator of several options, in this order in ``--help``."""
    return lambda command: reduce(lambda done, option: option(done), reversed(options), command)


def refused_option(name: str, advice: str) -> Option:
    """Make an option that is refused with advice, because other commands have it."""

    def refuse(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is not None:
            raise UsageError(f"{name} is not for {context.command.name}: {advice}")

    return click.option(name, hidden=True, expose_value=False, callback=refuse, help=f"Refused: {advice}.")


def force_option(what: str) -> Option:
    """Make ``--force`` for a command that replaces `what`."""
    return option("--force", section="Output", is_flag=True, help=f"Replace an existing {what}.")


json_option = option(
    "--json",
    "as_json",
    section="Output",
    is_flag=True,
    help="Print one JSON object on standard output, and all else on standard error.",
)

output_options = together(
    option(
        "-q",
        "--quiet",
        "quiet",
        section="Output",
        is_flag=True,
        help="No progress and no messages; results, warnings and errors only.",
    ),
    json_option,
)

memory_option = option(
    "--memory",
    default="1GB",
    metavar="SIZE",
    help="Bound on the process's peak resident memory, interpreter and all: 400MB, 2GiB.",
)

no_scheduler = refused_option(
    "--scheduler",
    "--workers N divides the work among processes of this machine; a dask scheduler is for train and resume",
)

checkpoint_option = option(
    "--checkpoint",
    is_flag=True,
    help="The model of a run's last checkpoint: of a training that was interrupted, or is in work.",
)

liblinear_options = together(
    option(
        "-s",
        "solver_type",
        section="LIBLINEAR's flags",
        type=int,
        metavar="N",
        help="LIBLINEAR's number for a loss and a method: 1 squared_hinge dual, 3 hinge dual, 7 log_loss dual, "
        "4 crammer_singer, 2 squared_hinge primal, 0 log_loss primal.",
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
    refused_option("-p", "it is for regression, and streamcd trains classifiers"),
    refused_option("-n", "it is for one-class SVMs, and streamcd trains classifiers"),
    refused_option("-m", "the number of threads is --threads"),
)


def weight_notes(options: Mapping[str, Any]) -> list[str]:
    """Note where weights given by LIBLINEAR's flag mean something else than in LIBLINEAR."""
    return [LIBLINEAR_WEIGHTS] if options["label_weights"] else []


def training_keywords(
    *,
    solver_type: int | None,
    class_weight: Any,
    label_weights: tuple[tuple[str, float], ...],
    **others: Any,
) -> dict[str, Any]:
    """Make the library's options of those of the command line: LIBLINEAR's flags are translated."""
    if label_weights:
        if class_weight is not None:
            raise UsageError("-wLABEL and --class-weight say the same: give one of them")
        class_weight = class_weights(",".join(f"{label}={weight!r}" for label, weight in label_weights))
    if solver_type is not None:
        others["loss"], others["method"] = _loss_and_method(solver_type)
    return {"class_weight": class_weight, **others}


def _loss_and_method(solver_type: int) -> tuple[str, str]:
    given = click.get_current_context().get_parameter_source
    if click.core.ParameterSource.COMMANDLINE in (given("loss"), given("method")):
        raise UsageError(
            "-s names loss and method by LIBLINEAR's number: give it, or --loss and --method, not both"
        )
    if solver_type in LIBLINEAR_TYPES:
        return LIBLINEAR_TYPES[solver_type]
    reasons = {5: "L1-regularised", 6: "L1-regularised", 11: "regression", 12: "regression", 13: "regression"}
    reason = reasons.get(solver_type, "one-class" if solver_type == 21 else "unknown to LIBLINEAR")
    known = ", ".join(str(number) for number in sorted(LIBLINEAR_TYPES))
    raise UsageError(f"-s {solver_type} is {reason}; streamcd trains L2-regularised classifiers: {known}")


def asked_model(
    run: str, checkpoint: bool, C: float | None, memory: str, listener: Listener
) -> tuple[Any, str, dict[str, Any]]:
    """Return the model to use, its name, and what ``--json`` adds: of a checkpoint, or the path."""
    if not checkpoint:
        return run, run, {}
    from ..runs.checkpoint_model import describe_checkpoint, load_checkpoint

    model = load_checkpoint(run, C, memory=memory)
    name = describe_checkpoint(run, model)
    listener.message(f"the model is that of {name}")
    return model, name, {"checkpoint": model.certificate}

"""Options shared by several commands, and their allowed combinations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import click

from ..core.errors import UsageError
from ..core.options import Section
from ..core.progress import Listener
from ..runs.problem_options import class_weights
from ..solvers.registry import SOLVERS
from .help_sections import option
from .option_types import PathOrUrl

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


def _choice(name: str, values: str, text: str, section: str = Section.MOST_USED) -> Option:
    """Make an option with a choice of values, of which the first is the default."""
    choice = click.Choice(values.split())
    return option(name, section=section, type=choice, default=values.split()[0], help=text)


def cut_options(shard: str, chunk: str) -> Option:
    """Make ``--shard-size`` and ``--chunk-size``; `shard` and `chunk` name the units in their help."""
    return together(
        option(
            "--shard-size",
            section="Dataset",
            default="256MB",
            metavar="SIZE",
            help=f"Decoded size of {shard}.",
        ),
        option(
            "--chunk-size", section="Dataset", default="1MB", metavar="SIZE", help=f"Decoded size of {chunk}."
        ),
    )


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

workers_option = together(
    option(
        "--workers",
        section="Processors, workers, cache",
        type=int,
        default=1,
        help="Processes that share the work; --memory bounds their sum, of which each needs 330 MB and the one that hands "
        "out the work 200 MB. The result does not depend on their number.",
    ),
    refused_option(
        "--scheduler",
        "--workers N divides the work among processes of this machine; a dask scheduler is for train and resume",
    ),
)

model_options = together(
    option(
        "-C",
        "-c",
        "--C",
        "C",
        type=float,
        help="The model with this C, of a run that was trained with several.",
    ),
    memory_option,
)

scaled_option = option(
    "--scaled",
    is_flag=True,
    help="Weights for features as they were scaled for the training (convert --scale), in place of those for the source's "
    "values.",
)

checkpoint_option = option(
    "--checkpoint",
    is_flag=True,
    help="The model of a run's last checkpoint: of a training that was interrupted, or is in work.",
)

convert_options = together(
    _choice(
        "--format",
        "auto libsvm csv parquet arrow npz npy",
        "Format of SRC; auto recognises it by content. csv: text with a line of names and any delimiter.",
        section="Source",
    ),
    option("--label", metavar="COL", help="Column of labels, numbers or strings; required for tables."),
    option("--weight-column", section="Columns of tables", metavar="COL", help="Column of row weights."),
    option(
        "--features",
        metavar="COL,…",
        help="Columns that become features; all others by default. INDICES:VALUES are two columns of lists: sparse rows.",
    ),
    option("--drop", section="Columns of tables", metavar="COL,…", help="Columns to leave out."),
    option(
        "--hash",
        section="Columns of tables",
        type=int,
        metavar="BITS",
        help="Hash strings into 2^BITS features (MurmurHash3, signed) in place of a feature for each category.",
    ),
    _choice(
        "--missing",
        "error zero indicator",
        "Missing values: an error, zero, or 1 in an indicator feature of their own.",
    ),
    option(
        "--number",
        section="Columns of tables",
        metavar="COL,…",
        help="Columns whose strings are numbers, such as 1 000, 1,000 and 12% (0.12), rather than categories.",
    ),
    _choice(
        "--decimal",
        ". ,",
        "Decimal mark of numbers in delimited text, and in columns of --number.",
        section="Columns of tables",
    ),
    memory_option,
    workers_option,
    option("--seed", section="Dataset", type=int, default=0, help="Seed of the random order of rows."),
    _choice(
        "--dtype",
        "float32 float64",
        "Type of the values on disk and in training; weights are float64 in any case.",
        section="Values",
    ),
    _choice(
        "--index-base",
        "auto 0 1",
        "First feature index. auto: 0 if an index 0 occurs anywhere in SRC, else 1.",
        section="Source",
    ),
    option(
        "--n-features",
        section="Source",
        type=int,
        metavar="D",
        help="Number of features; by default the largest index decides.",
    ),
    option(
        "--weights",
        section="Source",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="Weights of the rows, one number per line in the order of SRC. A row of weight 2 counts twice.",
    ),
    option(
        "--like",
        type=PathOrUrl(exists=True),
        metavar="DATASET|MODEL",
        help="Take index base, number of features, labels, columns and scaling from there; use it for test data.",
    ),
    _choice(
        "--scale",
        "none maxabs standard",
        "Divide each feature by its largest absolute value (maxabs), or by its standard deviation (standard; the "
        "mean is not subtracted, which would make the data dense). Models keep the divisors and apply them to unscaled "
        "data.",
    ),
    _choice(
        "--normalize",
        "none l2",
        "Divide each row by its Euclidean norm, after --scale; for counts and other rows of very different lengths.",
        section="Values",
    ),
    option(
        "--compact",
        section="Source",
        is_flag=True,
        help="Number only the features that occur, for indices such as 2^50.",
    ),
    option(
        "--no-shuffle",
        "shuffle",
        section="Dataset",
        is_flag=True,
        callback=lambda context, parameter, value: not value,
        help="Keep the order of SRC, which should then be random: data sorted by label trains badly.",
    ),
    cut_options(
        "a Parquet file of the dataset, the unit of distribution", "a row group, the unit of reading"
    ),
    option(
        "--columns",
        section="Dataset",
        is_flag=True,
        help="Make the column layout as well, for --method primal and online.",
    ),
    force_option("dataset"),
)

threads_option = option(
    "--threads",
    section="Processors, workers, cache",
    type=click.IntRange(min=1),
    metavar="N",
    help="Threads that share the work of a process; no bit of a result depends on it.  [default: one a core]",
)

cache_options = together(
    option(
        "--cache",
        section="Processors, workers, cache",
        type=click.Path(file_okay=False),
        metavar="DIR",
        help="Keep what is read of a DATASET at a URL in this directory, and read it there the next time.",
    ),
    option(
        "--cache-size",
        section="Processors, workers, cache",
        metavar="SIZE",
        help="Largest size of that directory.  [default: 10GB]",
    ),
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

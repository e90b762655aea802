"""Options shared by several commands, and their allowed combinations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import click

from ..core.errors import UsageError
from ..solvers.registry import LOSS_ALIASES, LOSSES, METHODS, SOLVERS
from .help_sections import MOST_USED, option
from .option_types import ACCELERATION, BIAS, CLASS_WEIGHT, CODE, COSTS, OMEGA, SECONDS, PathOrUrl

LIBLINEAR_TYPES = {
    entry.liblinear: (entry.loss, entry.method) for entry in SOLVERS if entry.liblinear is not None
}
"""LIBLINEAR's ``-s`` numbers as (loss, method)."""

LIBLINEAR_WEIGHTS = (
    "-w multiplies C for all rows of the label in every one-vs-rest problem; with three classes and more LIBLINEAR does so "
    "on the positive side only"
)

SLACKS = ("hinge", "squared_hinge")

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


def costs_option(text: str, **more: Any) -> Option:
    """Make ``-C`` for a command that takes a list of values."""
    return option("-C", "-c", "--C", "C", type=COSTS, help=text, **more)


def _choice(name: str, values: str, text: str, section: str = MOST_USED) -> Option:
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

max_seconds_option = option(
    "--max-seconds",
    section="Stopping and validation",
    type=SECONDS,
    metavar="TIME",
    help="Stop after this time with a checkpoint and exit status 0 (stop_reason time), for batch queues; checked "
    "between windows.",
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

training_options = together(
    option(
        "--loss",
        type=click.Choice((*LOSSES, *LOSS_ALIASES)),
        help="Loss of a row with margin t = y w·x: squared_hinge max(0, 1-t)^2 (the default), hinge max(0, 1-t), "
        "log_loss log(1 + exp(-t)), crammer_singer max over m of w_m·x - w_y·x + [m != y]. twin: a plane per class, fitted "
        "to its own rows, ½ Σ (w·x)^2, and kept away from the others (--slack); the nearest plane's class is predicted. "
        "logistic and log are log_loss.",
    ),
    option(
        "--method",
        section="Method",
        type=click.Choice(("auto", *METHODS)),
        help="dual: coordinate descent on the dual variables, row by row. primal: on the weights, feature by feature, in a "
        "new random order each pass; online: likewise, with features drawn at random with replacement. Both are for "
        "squared_hinge and log_loss, and need 'streamcd columns'. sor: for the loss twin, with the inverse of a matrix of "
        "features x features for each plane. auto (the default) chooses, and says why.",
    ),
    option(
        "--omega",
        section="Method",
        type=OMEGA,
        default="1.0",
        metavar="NUMBER|auto",
        help="Over-relaxation (SOR) of the dual steps of hinge, squared_hinge and twin: each is this number, above 0 and "
        "below 2, times coordinate descent's. auto tries two values during training, and says which it keeps.",
    ),
    option(
        "--acceleration",
        section="Method",
        type=ACCELERATION,
        default="auto",
        show_default=True,
        metavar="auto|none|KAPPA",
        help="For --method dual, an outer proximal point around the passes: badly conditioned problems (large C, long rows) "
        "take a tenth of the passes or fewer. It needs one more array of the weights' size, and is left out if that does "
        "not fit in --memory. auto finds its strength kappa while training. For primal and online, an extrapolation after "
        "each pass by a line search; it needs one more array of rows' scores too, and has no KAPPA. Training is plain by "
        "dual with -e or an --omega other than 1, and by sor.",
    ),
    option(
        "--ridge",
        section="Problem",
        type=float,
        help="r in a twin plane's r/2 ‖w‖^2; with a small r the method dual converges slowly.  [default: 1]",
    ),
    option(
        "--slack",
        section="Problem",
        type=click.Choice(SLACKS),
        help="Loss of the other classes' rows for a twin plane, max(0, 1 - w·x) or its square.  [default: hinge]",
    ),
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
        "-B",
        "--bias",
        "bias",
        type=BIAS,
        default="auto",
        metavar="auto|none|NUMBER",
        help="Append a constant feature of this value to every row, for an intercept; its weight is penalised like the "
        "others. none, or a negative number: no intercept. auto: 1 for a DATASET made from tables, frames or dense arrays, "
        "none for libsvm text and sparse matrices, as LIBLINEAR; with --start-from as in that run.",
    ),
    option(
        "--tol",
        type=float,
        help="Stop at this relative duality gap, (primal - dual) / primal.  [default: 1e-3]",
    ),
    option(
        "-e",
        "eps",
        section="Stopping and validation",
        type=float,
        metavar="EPS",
        help="Stop by LIBLINEAR's rule instead: over all rows the projected gradients PG of the dual satisfy "
        "max PG - min PG, |max PG|, |min PG| <= EPS; by a primal method the gradient at w satisfies "
        "‖grad f(w)‖ <= EPS · min(n+, n-)/n · ‖grad f(0)‖, w being the end of a pass. Turns "
        "acceleration off for dual.",
    ),
    option(
        "--max-passes",
        section="Stopping and validation",
        type=int,
        default=1000,
        help="Maximum number of passes over the data.",
    ),
    option(
        "--class-weight",
        type=CLASS_WEIGHT,
        metavar="balanced|LABEL=W,...",
        help="Factors of C for the rows of a label, in every one-vs-rest problem (LIBLINEAR's -wi weights the "
        "positive side only, where there are more than two classes). balanced: rows / (classes · rows of the class). "
        "For twin planes too they change C alone: they weight the rows that a plane keeps away from, not those it is fitted "
        "to.",
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
    option(
        "--code",
        section="Problem",
        type=CODE,
        metavar="FILE",
        help="Code matrix for several classes, instead of one-vs-rest: a line per class, labels ascending; a column per "
        "binary problem, 1 for its positive classes, -1 for its negative ones, 0 for those it leaves out.",
    ),
    memory_option,
    cache_options,
    option("--seed", section="Method", type=int, default=0, help="Seed of the random order of visits."),
    option(
        "--checkpoint-every",
        section="Run",
        type=SECONDS,
        default="60s",
        help="Time between checkpoints, from which 'resume' continues.",
    ),
    max_seconds_option,
    option(
        "--resume",
        section="Run",
        is_flag=True,
        help="Continue RUN if it holds this training already, otherwise begin it: the same command for every job of a "
        "queue.",
    ),
    threads_option,
    force_option("run"),
)

start_options = together(
    option(
        "--start-from",
        section="Method",
        type=click.Path(exists=True, file_okay=False),
        metavar="RUN",
        help="Start from the dual variables of a finished run on the same dataset, scaled from its C to this one; takes no "
        "extra read. Method sor can start from a run by dual or sor; a primal method starts from the weights of a run by "
        "any method, which takes a read.",
    ),
    option(
        "--calibrate",
        section="Problem",
        is_flag=True,
        help="Give the model probabilities (predict --proba): sigmoids fitted to decisions on five held-out folds, which "
        "are trained after the model, in reads of their own. For the losses hinge and squared_hinge.",
    ),
)

validation_options = together(
    option(
        "--validation",
        section="Stopping and validation",
        type=click.Path(),
        metavar="DATASET|FILE",
        help="Held-out rows, whose mean loss and accuracy are told after passes 1 to 8, 10, 12, 15, ... and at the end, for "
        "each C; in log, progress and report. They stop nothing but by --early-stop.",
    ),
    option(
        "--early-stop",
        section="Stopping and validation",
        is_flag=True,
        help="End the training of a C when five looks in a row at --validation have not found a smaller loss (stop_reason "
        "validation); the model is that of the last pass.",
    ),
)

moved_validation_options = together(
    option(
        "--validation",
        section="Stopping and validation",
        type=click.Path(),
        metavar="PATH",
        help="The validation set, if it was moved after the run began.",
    ),
    option(
        "--early-stop/--no-early-stop",
        section="Stopping and validation",
        default=None,
        help="Let the validation set end the training, or go on where it has.",
    ),
)

worker_options = together(
    option(
        "--workers",
        section="Processors, workers, cache",
        type=click.IntRange(min=1),
        metavar="N",
        help="Train on N processes of this machine, which share --memory (at least 385 MB each, and 200 MB for this one). "
        "Several need more passes than one: worth it if a pass takes long.  [default: this process alone]",
    ),
    option(
        "--scheduler",
        section="Processors, workers, cache",
        metavar="ADDRESS",
        help="Train on the workers of this dask scheduler, such as tcp://host:8786. They must see RUN, and "
        "a DATASET that is no URL, under the same paths; --memory then bounds each of them.",
    ),
)

round_options = together(
    option(
        "--local-passes",
        section="Processors, workers, cache",
        type=int,
        metavar="N",
        help="With workers: passes of each over its own rows in a round, without communication.  [default: 3; 1 with "
        "more features than rows, or 34 M entries or more]",
    ),
    option(
        "--worker-timeout",
        section="Processors, workers, cache",
        type=SECONDS,
        metavar="TIME",
        help="With workers: exclude one that has not responded for this time; others take over.  [default: 300s]",
    ),
)


def weight_notes(options: Mapping[str, Any]) -> list[str]:
    """Note where weights given by LIBLINEAR's flag mean something else than in LIBLINEAR."""
    return [LIBLINEAR_WEIGHTS] if options["label_weights"] else []


def checked_training_options(
    *,
    loss: str | None,
    method: str | None,
    solver_type: int | None,
    tol: float | None,
    eps: float | None,
    class_weight: str | dict[float, float] | None,
    label_weights: tuple[tuple[str, float], ...],
    **others: Any,
) -> dict[str, Any]:
    """Make the library's options: resolve loss and method, refuse contradictions."""
    if label_weights:
        if class_weight is not None:
            raise UsageError("-wLABEL and --class-weight say the same: give one of them")
        class_weight = CLASS_WEIGHT.convert(
            ",".join(f"{label}={weight!r}" for label, weight in label_weights), None, None
        )
    if tol is not None and eps is not None:
        raise UsageError("--tol and -e exclude each other: stop by the relative gap, or by LIBLINEAR's rule")
    loss, method = _loss_and_method(loss, method, solver_type)
    return {"loss": loss, "method": method, "tol": tol, "eps": eps, "class_weight": class_weight, **others}


def _loss_and_method(loss: str | None, method: str | None, solver_type: int | None) -> tuple[str, str]:
    if solver_type is None:
        return loss or "squared_hinge", method or "auto"
    if loss is not None or method is not None:
        raise UsageError(
            "-s names loss and method by LIBLINEAR's number: give it, or --loss and --method, not both"
        )
    if solver_type in LIBLINEAR_TYPES:
        return LIBLINEAR_TYPES[solver_type]
    reasons = {5: "L1-regularised", 6: "L1-regularised", 11: "regression", 12: "regression", 13: "regression"}
    reason = reasons.get(solver_type, "one-class" if solver_type == 21 else "unknown to LIBLINEAR")
    known = ", ".join(str(number) for number in sorted(LIBLINEAR_TYPES))
    raise UsageError(f"-s {solver_type} is {reason}; streamcd trains L2-regularised classifiers: {known}")

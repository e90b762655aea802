"""The command line: arguments, one call of the library, output.

Everything beyond click is imported where it is used: ``--help`` is fast, and a training process holds only what it needs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from . import __version__, console
from .errors import DatasetError, Interrupted, UsageError
from .memory import format_size
from .options import (
    Costs,
    Seconds,
    checked_training_options,
    checked_workers,
    cost_option,
    free_bias_option,
    json_option,
    memory_option,
    quiet_option,
    refused_option,
    round_options,
    training_options,
    worker_options,
    workers_option,
)

if TYPE_CHECKING:
    from .dataset import Dataset


_HELP_WANTED: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""A command without any argument; click before 8.2 prints the help itself."""


class _Program(click.Group):
    """Turns whatever goes wrong into one line and an exit status."""

    def main(self, args: Any = None, prog_name: str | None = None, **extra: Any) -> Any:  # type: ignore[override]
        arguments = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        try:
            with _termination_as_exception():
                status = super().main(arguments, prog_name or "streamcd", **extra)
        except BrokenPipeError:
            _forget_output()
            sys.exit(1)
        except (Exception, KeyboardInterrupt) as error:
            sys.exit(_report(error, "--json" in arguments))
        sys.exit(status if isinstance(status, int) else 0)


def _report(error: BaseException, as_json: bool) -> int:
    # click's for Ctrl-C, and for an end of file wherever it was met
    if isinstance(error, click.exceptions.Abort):
        error = error.__cause__ if isinstance(error.__cause__, EOFError) else KeyboardInterrupt()
    if isinstance(error, _HELP_WANTED):
        error.show()
        return 2
    if isinstance(error, click.ClickException):
        command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "streamcd"
        found: tuple[str, int] | None = (f"{error.format_message()} See '{command} --help'.", 2)
    else:
        found = console.explain(error)
    if found is None:
        raise error
    text, status = found
    console.print_error(text)
    if as_json:
        try:
            console.print_json({"error": text, "exit_status": status})
        except BrokenPipeError:
            _forget_output()
    return status


def _forget_output() -> None:
    """The reader of our output has gone; what is left in the buffer must not fail once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


@contextmanager
def _termination_as_exception() -> Iterator[None]:
    """Let SIGTERM unwind the stack like Ctrl-C does, so that temporary files go."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise Interrupted("terminated", signum)

    with _signal_handler(stop, signal.SIGTERM):
        yield


@contextmanager
def _signal_handler(
    handler: Callable[[int, FrameType | None], None], *signums: signal.Signals
) -> Iterator[None]:
    before = {signum: signal.signal(signum, handler) for signum in signums}
    try:
        yield
    finally:
        for signum, old in before.items():
            signal.signal(signum, old)


@contextmanager
def _stop_requests() -> Iterator[Callable[[], int | None]]:
    """Ctrl-C and SIGTERM as a question that training asks between windows: which signal came, if any."""
    received: list[int] = []
    with _signal_handler(lambda signum, frame: received.append(signum), signal.SIGINT, signal.SIGTERM):
        yield lambda: received[0] if received else None


# ---------------------------------------------------------------------------------------------------------------------


@click.group(cls=_Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, message="streamcd %(version)s")
def cli() -> None:
    """Train linear models on data larger than memory, by coordinate descent, to a certified optimum.

    \b
    Example:
      streamcd convert train.libsvm.gz data
      streamcd train data run --memory 1GB
      streamcd evaluate test.libsvm.gz run
    """


@cli.command()
@click.argument("sources", metavar="SRC...", nargs=-1, required=True)
@click.argument("dataset", metavar="DATASET")
@click.option(
    "--format",
    "source_format",
    type=click.Choice(["auto", "libsvm"]),
    default="auto",
    show_default=True,
    help="What SRC holds.",
)
@memory_option
@workers_option
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random order of the rows.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64"]),
    default="float32",
    show_default=True,
    help="Type of the values on disk and in training; weights are float64 in any case.",
)
@click.option(
    "--index-base",
    type=click.Choice(["auto", "0", "1"]),
    default="auto",
    show_default=True,
    help="What feature indices start at. auto: 0 if an index 0 occurs anywhere in SRC, else 1.",
)
@click.option(
    "--n-features", type=int, metavar="D", help="Number of features; by default the largest index decides."
)
@click.option(
    "--weights",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Weights of the rows, one number a line in the order of SRC. Weight 2 counts a row twice.",
)
@click.option(
    "--like",
    type=click.Path(exists=True),
    metavar="DATASET|MODEL",
    help="Take index base, number of features, labels and scaling from there; use it for test data.",
)
@click.option(
    "--scale",
    type=click.Choice(["none", "maxabs", "standard"]),
    default="none",
    show_default=True,
    help="Divide each feature by its largest absolute value (maxabs), or by its standard deviation (standard; the mean is "
    "not subtracted, which would make the data dense). Models keep the divisors and apply them to unscaled data.",
)
@click.option(
    "--normalize",
    type=click.Choice(["none", "l2"]),
    default="none",
    show_default=True,
    help="Divide each row by its Euclidean norm, after --scale; for counts and other rows of very different lengths.",
)
@click.option(
    "--compact", is_flag=True, help="Number only the features that occur, for indices such as 2^50."
)
@click.option(
    "--no-shuffle",
    is_flag=True,
    help="Keep the order of SRC. Data sorted by label then trains badly: shuffle unless it is shuffled.",
)
@click.option(
    "--shard-size",
    default="256MB",
    show_default=True,
    metavar="SIZE",
    help="Decoded size of a Parquet file of the dataset, the unit of distribution.",
)
@click.option(
    "--chunk-size",
    default="1MB",
    show_default=True,
    metavar="SIZE",
    help="Decoded size of a row group, the unit of reading.",
)
@click.option(
    "--columns", is_flag=True, help="Make the column layout as well, for --method primal and online."
)
@click.option("--force", is_flag=True, help="Replace an existing dataset.")
@quiet_option
@json_option
def convert(
    sources: tuple[str, ...],
    dataset: str,
    source_format: str,
    no_shuffle: bool,
    columns: bool,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Convert libsvm text to a dataset: a directory of Parquet files in random row order.

    SRC are files, directories, globs, or - for standard input; gzip, bzip2, xz and Zstandard are recognised by content.

    \b
    Example:
      streamcd convert 'day_*.txt.gz' data --memory 2GB
      streamcd convert counts.txt data --normalize l2
      streamcd convert test.txt test --like data
    """
    from .convert import convert as convert_text

    with console.Console(quiet) as listener:
        made = convert_text(list(sources), dataset, shuffle=not no_shuffle, listener=listener, **options)
        if columns:
            from .transpose import make_columns

            sizes = {name: options[name] for name in ("memory", "chunk_size", "shard_size", "workers")}
            make_columns(made, listener=listener, **sizes)
        result = _described(made)
    if as_json:
        console.print_json(result)
    else:
        console.print_table(f"dataset {dataset}", _dataset_rows(result))


@cli.command()
@click.argument("dataset")
@memory_option
@workers_option
@click.option(
    "--shard-size",
    default="256MB",
    show_default=True,
    metavar="SIZE",
    help="Decoded size of a Parquet file of the layout.",
)
@click.option(
    "--chunk-size", default="1MB", show_default=True, metavar="SIZE", help="Decoded size of a row group."
)
@click.option("--force", is_flag=True, help="Replace an existing column layout.")
@quiet_option
@json_option
def columns(dataset: str, quiet: bool, as_json: bool, **options: Any) -> None:
    """Make the column layout of a dataset: its entries once more, sorted by feature, for --method primal and online.

    It needs as much disk again, and twice that while it is made. Interrupted, it goes on where it stopped.

    \b
    Example:
      streamcd columns data --memory 2GB
    """
    from .transpose import make_columns

    with console.Console(quiet) as listener:
        made = make_columns(dataset, listener=listener, **options)
    result = made.info()
    if as_json:
        console.print_json(result)
    else:
        rows = [
            ("features", f"{result['n_features']:,} that occur"),
            ("entries", f"{result['n_entries']:,}"),
            (
                "on disk",
                f"{format_size(result['bytes'])} in {result['n_shards']:,} shards, {result['n_chunks']:,} chunks",
            ),
            ("fingerprint", result["fingerprint"]),
        ]
        console.print_table(f"column layout of {dataset}", rows)


@cli.command()
@click.argument("dataset")
@json_option
def info(dataset: str, as_json: bool) -> None:
    """Say what a dataset holds, without reading the data.

    \b
    Example:
      streamcd info data
    """
    from .dataset import open_dataset

    result = _described(open_dataset(dataset))
    if as_json:
        console.print_json(result)
    else:
        console.print_table(f"dataset {dataset}", _dataset_rows(result))


def _described(dataset: Dataset) -> dict[str, Any]:
    from .advice import advise_method
    from .column_layout import has_columns
    from .diagnostics import advice, feature_rms

    method, reason = advise_method(dataset, "squared_hinge", 1.0)
    return {
        **dataset.info(),
        "feature_rms": feature_rms(dataset),
        "advice": advice(dataset),
        "columns": has_columns(dataset),
        "method": method,
        "method_because": reason,
    }


def _dataset_rows(info: dict[str, Any]) -> list[tuple[str, str]]:
    classes = "more than can be listed"
    if info["classes"] is not None:
        pairs = [
            f"{label} ({count:,})" for label, count in zip(info["classes"], info["class_counts"], strict=True)
        ]
        classes = ", ".join(pairs[:10]) + (f", … {len(pairs)} in all" if len(pairs) > 10 else "")
    return [
        ("rows", f"{info['n_rows']:,}"),
        ("features", f"{info['n_features']:,} (indices from {info['index_base']} on)"),
        ("entries", f"{info['n_entries']:,} (density {info['density']:.3g})"),
        ("classes", classes),
        (
            "on disk",
            f"{format_size(info['bytes'])} in {info['n_shards']:,} shards, {info['n_chunks']:,} chunks",
        ),
        ("decoded", f"{format_size(info['bytes_decoded'])} ({info['index_dtype']}, {info['value_dtype']})"),
        *_scaling_rows(info),
        ("fingerprint", info["fingerprint"]),
        ("column layout", "yes" if info["columns"] else "no"),
        ("method", f"{info['method']} for squared_hinge, C = 1: {info['method_because']}"),
    ]


def _scaling_rows(info: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    given = [f"{name} {info[name]}" for name in ("scale", "normalize") if info[name] != "none"]
    if given:
        rows.append(("scaled by", ", ".join(given)))
    rms, norms = info["feature_rms"], info["row_norms"]
    if rms is not None:
        text = f"root mean squares from {rms['min']:.3g} to {rms['max']:.3g}"
        rows.append(("feature values", text))
    if norms is not None and norms["min"] is not None:
        mean_square = norms["mean_square"]
        middle = "" if mean_square is None else f", root mean square {mean_square**0.5:.3g}"
        rows.append(
            (
                "row norms",
                f"from {norms['min']:.3g} to {norms['max']:.3g}{middle}; {norms['n_empty']:,} empty rows",
            )
        )
    return rows + [("note", line) for line in info["advice"]]


@cli.command()
@click.argument("dataset")
@click.option("--workers", type=int, default=1, show_default=True, help="Processes that share the work.")
@quiet_option
@json_option
def verify(dataset: str, workers: int, quiet: bool, as_json: bool) -> None:
    """Check every checksum and invariant of a dataset; exit status 2 where something is wrong.

    \b
    Example:
      streamcd verify data
    """
    from .dataset import open_dataset

    with console.Console(quiet) as listener:
        try:
            # files that are missing are problems to list, not a reason to stop
            problems = open_dataset(dataset, check_files=False).verify(listener, workers=workers)
        except DatasetError as error:
            if not os.path.exists(dataset):
                raise
            problems = [str(error)]
    if as_json:
        console.print_json({"ok": not problems, "problems": problems})
    else:
        for problem in problems:
            console.print_error(problem)
        if problems:
            click.echo(
                f"{len(problems)} found: restore the files that are named from a copy, convert the data again, or make the "
                "column layout again ('streamcd columns --force') where only its files are named",
                err=True,
            )
        else:
            click.echo(f"{dataset}: all checksums and invariants hold")
    if problems:
        sys.exit(2)


# ---------------------------------------------------------------------------------------------------------------------
# Training


@contextmanager
def _client(scheduler: str | None, n_local: int, listener: Any) -> Iterator[Any]:
    """A dask client where workers are wanted, else None, and then nothing of dask is loaded."""
    if scheduler is None and not n_local:
        yield None
        return
    from .cluster import open_client

    with open_client(scheduler, n_local, listener) as client:
        yield client


@cli.command()
@click.argument("dataset")
@click.argument("run")
@training_options
@free_bias_option
@click.option(
    "-C",
    "--C",
    "C",
    type=Costs(),
    default="1.0",
    show_default=True,
    help="Cost: the factor of the sum of losses in ½‖w‖² + C Σ loss. Several, with commas between, are trained in the "
    "same passes, and each keeps its model.",
)
@click.option(
    "--start-from",
    type=click.Path(exists=True, file_okay=False),
    metavar="RUN",
    help="Begin at the dual variables of an ended run on the same dataset, scaled from its C to this one; needs no "
    "read of its own. Method sor can start from a run of dual or sor; a primal method begins at the weights of a run of "
    "any method, which takes a read.",
)
@worker_options
@round_options
@quiet_option
@json_option
def train(
    dataset: str,
    run: str,
    workers: int | None,
    scheduler: str | None,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train a linear classifier on a dataset, in a run directory that can be resumed.

    Minimises ½‖w‖² + C Σ loss over the rows, and stops when the duality gap certifies the result. Ctrl-C and SIGTERM save a
    checkpoint first; 'streamcd resume RUN' goes on, to the same weights bit for bit.

    \b
    Example:
      streamcd train data run --loss hinge -C 0.1 --memory 1GB
      streamcd train data run -s 1 -e 0.1          # as LIBLINEAR does
      streamcd train /shared/data /shared/run --scheduler tcp://host:8786
    """
    options = checked_training_options(options)
    n_local = checked_workers(workers, scheduler, fewest=2)
    from .train import train as train_model

    with (
        console.Console(quiet) as listener,
        _stop_requests() as stop_requested,
        _client(scheduler, n_local, listener) as client,
    ):
        result = train_model(
            dataset,
            run,
            listener=listener,
            stop_requested=stop_requested,
            client=client,
            local_workers=n_local,
            **options,
        )
        _warn_unconverged(listener, result)
    _print_result(result, as_json)


_TUNE_ALONE = (
    "one process trains the folds of all C in the same reads of the data; 'train -C' with a list takes workers, and "
    "'evaluate' compares its models on other data"
)


@cli.command()
@click.argument("dataset")
@click.argument("run")
@training_options
@click.option(
    "-C",
    "--C",
    "C",
    type=Costs(),
    required=True,
    help="The costs to try, with commas between: 0.01,0.1,1,10.",
)
@click.option(
    "--cv", type=int, default=5, show_default=True, metavar="K", help="Folds of the cross-validation."
)
@refused_option("--scheduler", _TUNE_ALONE)
@refused_option("--workers", _TUNE_ALONE)
@quiet_option
@json_option
def tune(dataset: str, run: str, quiet: bool, as_json: bool, **options: Any) -> None:
    """Choose C by cross-validation, and train with the best on all rows.

    All folds of all C are trained in the same passes over the data; the last training begins where they ended.

    \b
    Example:
      streamcd tune data run --loss log_loss -C 0.01,0.1,1,10 --cv 5
    """
    options = checked_training_options(options)
    from .tune import tune as tune_model

    with console.Console(quiet) as listener, _stop_requests() as stop_requested:
        result = tune_model(dataset, run, listener=listener, stop_requested=stop_requested, **options)
        _warn_unconverged(listener, result)
    _print_result(result, as_json)


@cli.command()
@click.argument("run")
@click.option(
    "--max-passes", type=int, metavar="N", help="Passes over the data at most, from the start of the run."
)
@click.option("--tol", type=float, help="Stop at this relative duality gap instead of by the run's own rule.")
@click.option("--checkpoint-every", type=Seconds(), help="Time between checkpoints.")
@worker_options
@quiet_option
@json_option
def resume(
    run: str, workers: int | None, scheduler: str | None, quiet: bool, as_json: bool, **options: Any
) -> None:
    """Go on with a run from its last checkpoint, also where it ended without convergence.

    A run that has converged is left alone.

    \b
    Example:
      streamcd resume run
      streamcd resume run --max-passes 5000
      streamcd resume /shared/run --scheduler tcp://host:8786
    """
    n_local = checked_workers(workers, scheduler, fewest=1)
    from .resume import resume as resume_run

    with (
        console.Console(quiet) as listener,
        _stop_requests() as stop_requested,
        _client(scheduler, n_local, listener) as client,
    ):
        result = resume_run(
            run,
            listener=listener,
            stop_requested=stop_requested,
            client=client,
            local_workers=n_local,
            **options,
        )
        _warn_unconverged(listener, result)
    _print_result(result, as_json)


def _warn_unconverged(listener: console.Console, result: Any) -> None:
    if not result.converged:
        listener.warning(
            f"not converged after {result.passes} passes: the relative gap is {result.gap:.2g}; "
            f"'streamcd resume {result.run} --max-passes N' goes on"
        )


def _print_result(result: Any, as_json: bool) -> None:
    if as_json:
        console.print_json(result.to_json())
        return
    rows = [
        ("converged", "yes" if result.converged else "no"),
        ("stopped by", result.stop_reason.replace("_", " ")),
        ("passes", f"{result.passes:,}"),
        ("primal objective", f"{result.primal_objective:.10g}"),
        ("dual objective", f"{result.dual_objective:.10g}"),
        ("relative gap", f"{result.gap:.3g}"),
        ("violation", f"{result.violation:.3g}"),
        ("time", console.format_seconds(result.seconds)),
        ("read", format_size(result.bytes_read)),
        ("peak memory", format_size(result.peak_memory_bytes)),
        ("model", os.path.join(result.run, "model")),
    ]
    console.print_table(f"run {result.run}: {result.n_rows:,} rows, {result.n_features:,} features", rows)
    if hasattr(result, "scores"):
        _print_scores(result)
    elif len({lane["C"] for lane in result.lanes}) > 1:
        header = ["C", "label", "primal objective", "relative gap", "passes"]
        console.print_grid("models", header, [_lane_cells(lane) for lane in result.lanes])


def _print_scores(result: Any) -> None:
    rows = []
    for C, score in result.scores.items():
        folds = score["folds"]
        rows.append([C, f"{score['mean']:.4f}", f"{min(folds):.4f}", f"{max(folds):.4f}"])
    title = f"accuracy on {len(folds)} folds, best C = {result.best_C:g}"
    console.print_grid(title, ["C", "mean", "worst", "best"], rows)


def _lane_cells(lane: dict[str, Any]) -> list[str]:
    label = "" if lane["label"] is None else f"{lane['label']:.17g}"
    return [
        f"{lane['C']:g}",
        label,
        f"{lane['primal_objective']:.8g}",
        f"{lane['gap']:.2g}",
        f"{lane['passes']:,}",
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Models


@cli.command()
@click.argument("data", metavar="DATASET|FILE")
@click.argument("model", metavar="RUN|MODEL")
@cost_option
@memory_option
@workers_option
@quiet_option
@json_option
def evaluate(data: str, model: str, quiet: bool, as_json: bool, **options: Any) -> None:
    """Compare a model's predictions with the labels of a dataset or of libsvm text.

    \b
    Example:
      streamcd evaluate test.libsvm.gz run
    """
    from .predict import evaluate as evaluate_model

    with console.Console(quiet) as listener:
        result = evaluate_model(data, model, listener=listener, **options)
    if as_json:
        console.print_json(result)
        return
    rows = [("rows", f"{result['n_rows']:,}"), ("accuracy", f"{100 * result['accuracy']:.4f} %")]
    names = {
        "primal_objective": "primal objective",
        "auc": "area under ROC curve",
        "log_loss": "mean log loss",
    }
    rows += [(name, f"{result[key]:.10g}") for key, name in names.items() if result.get(key) is not None]
    console.print_table(f"{model} on {data}", rows)
    if 1 < len(result.get("labels", [])) <= 10:
        header = ["true \\ predicted", *map(str, result["labels"])]
        counts = [
            [str(label), *map(str, row)]
            for label, row in zip(result["labels"], result["confusion"], strict=True)
        ]
        console.print_grid("confusion", header, counts)


@cli.command()
@click.argument("data", metavar="DATASET|FILE")
@click.argument("model", metavar="RUN|MODEL")
@click.option(
    "-o",
    "out",
    required=True,
    metavar="OUT.parquet|-",
    help="A Parquet file: row, prediction, decision. Or - for the labels on standard output, one a line.",
)
@click.option(
    "--proba", is_flag=True, help="Add the probability of each class; for models trained with log_loss."
)
@cost_option
@memory_option
@workers_option
@quiet_option
@json_option
def predict(data: str, model: str, quiet: bool, as_json: bool, out: str, **options: Any) -> None:
    """Predict the rows of a dataset or of libsvm text, in the order of the source.

    \b
    Example:
      streamcd predict new.libsvm run -o predictions.parquet
      streamcd predict new.libsvm run -o - > labels.txt
    """
    if out == "-" and as_json:
        raise UsageError(
            "-o - prints labels on standard output, where --json prints its object; name a file with -o"
        )
    from .predict import predict as predict_rows

    with console.Console(quiet) as listener:
        if out.endswith((".csv", ".tsv", ".txt", ".json")):
            listener.warning(f"{out}: is written as Parquet, whatever its name; -o - prints labels as text")
        target = sys.stdout if out == "-" else out
        result = predict_rows(data, model, target, listener=listener, **options)
    if as_json:
        console.print_json({**result, "out": out})
    elif out != "-":
        click.echo(f"{result['n_rows']:,} predictions in {out}")


@cli.command()
@click.argument("source", metavar="RUN|MODEL|DATASET")
@click.argument("file")
@click.option(
    "--format",
    "target_format",
    type=click.Choice(["liblinear", "libsvm"]),
    help="liblinear: a model as the text that LIBLINEAR's predict loads. libsvm: a dataset as text, in the order of its "
    "source. By default what fits.",
)
@cost_option
@memory_option
@quiet_option
@json_option
def export(
    source: str,
    file: str,
    target_format: str | None,
    C: float | None,
    memory: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write a model in LIBLINEAR's text format (LIBLINEAR then predicts the same), or a dataset as libsvm text.

    Scales of features (convert --scale) are folded into the weights, for data as it is in the source. A model of rows of
    unit norm (convert --normalize l2) keeps its labels, not its decision values; with a bias it is refused.

    \b
    Example:
      streamcd export run model.txt --format liblinear
      streamcd export data data.libsvm --format libsvm
    """
    found = target_format or (
        "libsvm" if os.path.exists(os.path.join(source, "manifest.json")) else "liblinear"
    )
    with console.Console(quiet) as listener:
        if found == "libsvm":
            if C is not None:
                raise UsageError(
                    "-C picks a model, and --format libsvm writes a dataset: leave one of them out"
                )
            from .dataset import open_dataset
            from .export import export_libsvm

            export_libsvm(open_dataset(source), file, memory=memory, listener=listener)
        else:
            from .liblinear import export_liblinear
            from .model import load_model

            export_liblinear(load_model(source, C, memory=memory), file, listener)
    n_bytes = os.path.getsize(file)
    if as_json:
        console.print_json({"file": file, "format": found, "bytes": n_bytes})
    else:
        click.echo(f"{file}: {found} text, {format_size(n_bytes)}")


@cli.command(name="import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.argument("model")
@json_option
def import_model(file: str, model: str, as_json: bool) -> None:
    """Read a model from LIBLINEAR's text format into a model directory.

    \b
    Example:
      streamcd import liblinear.model model
    """
    from .liblinear import import_liblinear

    if os.path.exists(model) and (not os.path.isdir(model) or os.listdir(model)):
        raise UsageError(f"{model} exists; name a directory that is not there yet")
    found = import_liblinear(file)
    found.save(model)
    if as_json:
        console.print_json(
            {
                "model": model,
                "loss": found.loss,
                "n_features": found.n_features,
                "labels": found.label_numbers(),
            }
        )
    else:
        click.echo(f"{model}: {found.loss}, {found.n_features:,} features, {found.n_classes} classes")


@cli.command()
@click.option(
    "--keep",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Work in this directory, and leave all files there.",
)
@quiet_option
@json_option
def demo(keep: str | None, quiet: bool, as_json: bool) -> None:
    """Show it at work, in under three minutes: data twice as large as the memory allowed, a kill, a resume.

    Makes a text-like libsvm file, converts it, trains on it within a memory budget of half its size, kills that training
    with SIGKILL half-way, resumes it, and compares the weights with those of an uninterrupted training, bit for bit.

    \b
    Example:
      streamcd demo
    """
    from .demo import run_demo

    with console.Console(quiet) as listener:
        result = run_demo(keep, listener)
    if as_json:
        console.print_json(result.to_json())
    else:
        console.print_table("streamcd demo", result.rows())
    if not result.ok:
        sys.exit(1)


def main() -> None:
    """Entry point of the console script."""
    cli.main()

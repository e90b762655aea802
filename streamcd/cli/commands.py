"""The command line: arguments, one call of the library, output.

Heavy imports are inside the functions that use them, so that ``--help`` is fast and a training process holds only what it
needs.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from .._version import __version__
from ..conversion.options import ColumnsOptions, ConvertOptions
from ..core.atomic_files import describe_set_aside
from ..core.errors import UsageError
from ..core.memory_budget import format_size
from ..core.options import SharedWork
from ..core.storage import is_url, local_path, location
from ..prediction.options import ModelOptions, PlotOptions, PredictOptions
from ..report.tables import Table, column_tables, dataset_tables, description_tables, evaluation_tables
from ..runs.options import DescribeOptions, ReportOptions, ResumeOptions, TrainOptions, TuneOptions
from . import console
from .declared import options_of
from .help_sections import option
from .option_types import BIT
from .options import (
    asked_model,
    checkpoint_option,
    force_option,
    json_option,
    liblinear_options,
    no_scheduler,
    output_options,
    refused_option,
    training_keywords,
    weight_notes,
)
from .program import Program
from .session import carry_out
from .verification import find_problems, told

_HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True}


@click.group(cls=Program, context_settings=_HELP)
@click.version_option(__version__, message="streamcd %(version)s")
def cli() -> None:
    """Train linear models on data larger than memory, by coordinate descent, to a certified optimum.

    \b
    Example:
      streamcd convert train.libsvm.gz data
      streamcd train data run --memory 1GB
      streamcd evaluate test.libsvm.gz run

    Completion in bash (zsh and fish likewise):

    \b
      eval "$(_STREAMCD_COMPLETE=bash_source streamcd)"
    """


@cli.command()
@click.argument("sources", metavar="SRC...", nargs=-1, required=True, type=click.Path())
@click.argument("dataset", metavar="DATASET", type=click.Path())
@options_of(ConvertOptions)
@option(
    "--columns",
    section="Dataset",
    is_flag=True,
    help="Make the column layout as well, for --method primal and online.",
)
@no_scheduler
@output_options
def convert(
    sources: tuple[str, ...], dataset: str, columns: bool, quiet: bool, as_json: bool, **options: Any
) -> None:
    """Convert libsvm text, CSV, Parquet, Arrow or matrices to a dataset: a directory of Parquet files in random row order.

    SRC are files, directories, globs, or - for standard input; formats, and gzip, bzip2, xz and Zstandard of text, are
    recognised by content.

    \b
    Example:
      streamcd convert 'day_*.txt.gz' data --memory 2GB
      streamcd convert counts.txt data --normalize l2
      streamcd convert people.csv data --label income --drop id --missing indicator
      streamcd convert test.txt test --like data
    """
    from ..conversion.convert import convert as convert_text
    from ..runs.describe import describe_dataset

    with console.Console(quiet) as listener:
        made = convert_text(list(sources), dataset, listener=listener, **options)
        if columns:
            from ..conversion.transpose import make_columns

            sizes = {name: options[name] for name in ("memory", "workers", "shard_size", "chunk_size")}
            make_columns(made, listener=listener, **sizes)
        result = describe_dataset(made)
    console.show(result, as_json, *dataset_tables(dataset, result))


@cli.command()
@click.argument("dataset", type=click.Path())
@options_of(ColumnsOptions)
@no_scheduler
@output_options
def columns(dataset: str, quiet: bool, as_json: bool, **options: Any) -> None:
    """Make the column layout of a dataset: its entries once more, sorted by feature, for --method primal and online.

    It takes as much disk space as the dataset, and twice that while it is made. If interrupted, it goes on where it stopped.

    \b
    Example:
      streamcd columns data --memory 2GB
    """
    from ..conversion.transpose import make_columns

    with console.Console(quiet) as listener:
        made = make_columns(dataset, listener=listener, **options)
    console.show(made.info(), as_json, *column_tables(dataset, made.info()))


@cli.command()
@click.argument("path", metavar="DATASET|RUN|MODEL", type=click.Path())
@options_of(DescribeOptions)
@json_option
def info(path: str, scaled: bool, as_json: bool) -> None:
    """Describe a dataset, a run or a model, without reading data.

    Of a run: its options, its progress, the last gap, the largest weights, and the next command.

    \b
    Example:
      streamcd info data
      streamcd info run
    """
    from ..runs.describe import describe

    if not is_url(path) and not os.path.exists(path):
        made = "; 'streamcd convert SRC DATASET' makes a dataset, 'streamcd train DATASET RUN' a run"
        raise UsageError(f"{path} does not exist{describe_set_aside(Path(path)) or made}")
    described = describe(path, scaled=scaled)
    tables = description_tables if "kind" in described else dataset_tables
    console.show(described, as_json, *tables(path, described))


@cli.command()
@click.argument("path", metavar="DATASET|RUN|MODEL", type=click.Path())
@options_of(SharedWork)
@output_options
def verify(path: str, quiet: bool, as_json: bool, **options: Any) -> None:
    """Check every checksum and invariant of a dataset, a run or a model; exit status 2 if something is wrong.

    Runs and models are read by one process, a slot or a model at a time.

    \b
    Example:
      streamcd verify data
    """
    with console.Console(quiet) as listener:
        problems, advice = find_problems(path, listener, **options)
    result = {"ok": not problems, "problems": problems}
    console.show(result, as_json, *([] if as_json else told(path, problems, advice)))
    if problems:
        sys.exit(2)


# ---------------------------------------------------------------------------------------------------------------------
# Training


@cli.command()
@click.argument("dataset", type=click.Path())
@click.argument("run", type=click.Path())
@options_of(TrainOptions)
@liblinear_options
@option("-v", "folds", type=int, hidden=True, help="LIBLINEAR's cross-validation: refused, 'tune' does it.")
@output_options
def train(dataset: str, run: str, quiet: bool, as_json: bool, folds: int | None, **options: Any) -> None:
    """Train a linear classifier on a dataset, in a run directory that can be resumed.

    Minimises ½‖w‖² + C Σ loss over the rows, and stops when the duality gap certifies the result. Ctrl-C and SIGTERM save a
    checkpoint first; 'streamcd resume RUN' goes on, to the same weights bit for bit.

    \b
    Example:
      streamcd train data run --loss hinge -C 0.1 --memory 1GB
      streamcd train data run -s 1 -e 0.1          # as LIBLINEAR does
      streamcd train /shared/data /shared/run --scheduler tcp://host:8786
      streamcd train data run --resume --max-seconds 55m    # in a batch job, again and again
    """
    if folds is not None:
        costs = ",".join(f"{cost:g}" for cost in options["C"])
        raise UsageError(
            f"-v is not for train: 'streamcd tune {dataset} {run} -C {costs} --cv {folds}' cross-validates; "
            "give it the other options too"
        )
    notes = weight_notes(options)
    options = training_keywords(**options)
    from ..runs.train import train as train_model

    carry_out(partial(train_model, dataset, run, **options), run, quiet, as_json, notes)


_TUNE_ALONE = (
    "one process trains the folds of all C in the same reads of the data; 'train -C' with a list takes workers, and "
    "'evaluate' scores its models on other data"
)


@cli.command()
@click.argument("dataset", type=click.Path())
@click.argument("run", type=click.Path())
@options_of(TuneOptions)
@liblinear_options
@refused_option("--scheduler", _TUNE_ALONE)
@refused_option("--workers", _TUNE_ALONE)
@output_options
def tune(dataset: str, run: str, quiet: bool, as_json: bool, **options: Any) -> None:
    """Choose C by cross-validation, and train with the best on all rows.

    All folds of all C are trained in the same passes over the data; the final training starts from their solutions.

    \b
    Example:
      streamcd tune data run --loss log_loss -C 0.01,0.1,1,10 --cv 5
    """
    notes = weight_notes(options)
    options = training_keywords(**options)
    from ..runs.train import tune as tune_model

    carry_out(partial(tune_model, dataset, run, **options), run, quiet, as_json, notes)


@cli.command()
@click.argument("run", type=click.Path())
@options_of(ResumeOptions)
@output_options
def resume(run: str, quiet: bool, as_json: bool, **options: Any) -> None:
    """Continue a run from its last checkpoint, even one that ended without convergence.

    A run that has converged is not changed.

    \b
    Example:
      streamcd resume run
      streamcd resume run --max-passes 5000
      streamcd resume run --dataset /new/disk/data
      streamcd resume /shared/run --scheduler tcp://host:8786
    """
    from ..runs.train import resume as resume_run

    carry_out(partial(resume_run, run, **options), run, quiet, as_json)


# ---------------------------------------------------------------------------------------------------------------------
# Models


@cli.command()
@click.argument("data", metavar="DATASET|FILE", type=click.Path())
@click.argument("model", metavar="RUN|MODEL", type=click.Path())
@options_of(PlotOptions)
@no_scheduler
@option(
    "--plot",
    metavar="FILE",
    help="Draw confusion matrix, ROC curves and calibration into a .png, .svg or .pdf file; needs the extra 'plot'.",
)
@checkpoint_option
@output_options
def evaluate(
    data: str,
    model: str,
    plot: str | None,
    checkpoint: bool,
    force: bool,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare a model's predictions with the labels of a dataset, of a table or of libsvm text.

    \b
    Example:
      streamcd evaluate test.libsvm.gz run
      streamcd evaluate test.libsvm.gz run --plot test.png
    """
    with console.Console(quiet) as listener:
        used, name, said = asked_model(model, checkpoint, options["C"], options["memory"], listener)
        if plot is None:
            from ..prediction.evaluate import evaluate as evaluate_model

            result = evaluate_model(data, used, listener=listener, **options)
        else:
            from ..runs.report import plot_evaluation

            result = plot_evaluation(data, used, plot, force=force, listener=listener, **options)
    result |= said
    console.show(result, as_json, *evaluation_tables(f"{name} on {data}", result))


@cli.command()
@click.argument("run", type=click.Path())
@option("-o", "out", required=True, metavar="OUT.html", help="The HTML page; its pictures are embedded.")
@options_of(ReportOptions)
@output_options
def report(run: str, out: str, quiet: bool, as_json: bool, **options: Any) -> None:
    """Write a report on a run: gap, objective, κ, time, largest weights, configuration; needs the extra 'plot'.

    \b
    Example:
      streamcd report run -o report.html --data test.libsvm.gz
    """
    from ..runs.report import write_report

    with console.Console(quiet) as listener:
        write_report(run, out, listener=listener, **options)
    console.show({"report": out}, as_json, f"{out}: open it in a browser")


@cli.command()
@click.argument("data", metavar="DATASET|FILE", type=click.Path())
@click.argument("model", metavar="RUN|MODEL", type=click.Path())
@option(
    "-o",
    "out",
    required=True,
    metavar="OUT.parquet|OUT.csv|OUT.txt|-",
    help="A Parquet file: source (0-based row of DATASET's source, or of FILE), prediction, decision (of several classes "
    "decision_LABEL). A name ending in .csv gets CSV: source, prediction. One ending in .txt gets a line with the "
    "label of each row, and - the same on standard output.",
)
@options_of(PredictOptions)
@option(
    "-b",
    "liblinear_proba",
    section="LIBLINEAR's flags",
    type=BIT,
    metavar="0|1",
    help="LIBLINEAR's: -b 1 is --proba.",
)
@no_scheduler
@checkpoint_option
@output_options
def predict(
    data: str,
    model: str,
    quiet: bool,
    as_json: bool,
    out: str,
    proba: bool,
    liblinear_proba: bool | None,
    checkpoint: bool,
    **options: Any,
) -> None:
    """Predict the rows of a dataset, of a table or of libsvm text, in the order of the source.

    \b
    Example:
      streamcd predict new.libsvm run -o predictions.parquet
      streamcd predict new.libsvm run -o probabilities.csv --proba
      streamcd predict new.libsvm run -o - > labels.txt
    """
    if out == "-" and as_json:
        raise UsageError(
            "-o - prints predictions on standard output, where --json prints its object; name a file with -o"
        )
    from ..prediction.predict import predict as predict_rows

    with console.Console(quiet) as listener:
        target = console.lines_output() if out == "-" else out
        proba = proba or bool(liblinear_proba)
        used, name, said = asked_model(model, checkpoint, options["C"], options["memory"], listener)
        result = predict_rows(data, used, target, proba=proba, listener=listener, **options)
    text = f"{result['n_rows']:,} predictions in {out}" + (f", by {name}" if checkpoint else "")
    console.show({**result, **said, "out": out}, as_json, *([] if out == "-" else [text]))


@cli.command()
@click.argument("source", metavar="RUN|MODEL|DATASET", type=click.Path())
@click.argument("file", type=click.Path())
@option(
    "--format",
    "target_format",
    type=click.Choice(["liblinear", "libsvm"]),
    help="liblinear: a model as the text that LIBLINEAR's predict loads. libsvm: a dataset as text, in the order of its "
    "source. By default, whichever fits the source.",
)
@options_of(ModelOptions)
@checkpoint_option
@force_option("file of the same format")
@output_options
def export(
    source: str,
    file: str,
    target_format: str | None,
    C: float | None,
    memory: str,
    checkpoint: bool,
    force: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write a model in LIBLINEAR's text format (LIBLINEAR then predicts the same), or a dataset as libsvm text.

    The divisors of features (convert --scale) are folded into the weights, for data as it is in the source. A model
    trained on rows of unit norm (convert --normalize l2) predicts the same labels, with other decision values; with a bias
    it is refused.

    \b
    Example:
      streamcd export run model.txt --format liblinear
      streamcd export data data.libsvm --format libsvm
    """
    found = target_format or ("libsvm" if (location(source) / "manifest.json").exists() else "liblinear")
    of = ""
    said: dict[str, Any] = {}
    with console.Console(quiet) as listener:
        if found == "libsvm":
            if C is not None or checkpoint:
                raise UsageError(
                    "-C and --checkpoint pick a model, --format libsvm writes a dataset: leave one of them out"
                )
            from ..conversion.export_libsvm import export_libsvm
            from ..dataset.dataset import open_dataset

            export_libsvm(open_dataset(source), file, memory=memory, force=force, listener=listener)
        else:
            from ..models.liblinear import export_liblinear
            from ..models.stored import load_model

            used, name, said = asked_model(source, checkpoint, C, memory, listener)
            model = used if checkpoint else load_model(source, C, memory=memory)
            export_liblinear(model, file, listener, force=force)
            of = f", of {name}" if checkpoint else ""
    n_bytes = os.path.getsize(file)
    written = {"file": file, "format": found, "bytes": n_bytes} | said
    console.show(written, as_json, f"{file}: {found} text, {format_size(n_bytes)}{of}")


@cli.command(name="import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.argument("model", type=click.Path())
@force_option("model")
@json_option
def import_model(file: str, model: str, force: bool, as_json: bool) -> None:
    """Read a model from LIBLINEAR's text format into a model directory.

    \b
    Example:
      streamcd import liblinear.model model
    """
    from ..core.atomic_files import check_output
    from ..models.liblinear import import_liblinear
    from ..models.stored import is_unfinished

    if not is_unfinished(model):
        check_output(
            local_path(model, "a model"), "a model", lambda path: (path / "model.json").is_file(), force=force
        )
    found = import_liblinear(file)
    found.save(model)
    labels = found.label_numbers()
    read = {"model": model, "loss": found.loss, "n_features": found.n_features, "labels": labels}
    text = f"{model}: {found.loss}, {found.n_features:,} features, {found.n_classes} classes"
    console.show(read, as_json, text)


@cli.command()
@option(
    "--keep",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Work in this directory, and keep all files.",
)
@option(
    "--example",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Only write two small files of synthetic data, train.txt and test.txt, to a new directory: for first steps.",
)
@output_options
def demo(keep: str | None, example: str | None, quiet: bool, as_json: bool) -> None:
    """Demonstrate streamcd in about three minutes: data twice as large as the memory allowed, a kill, a resume.

    Makes a text-like libsvm file, converts it, trains on it within a memory budget of half its size, kills that training
    with SIGKILL half-way, resumes it, and compares the weights with those of an uninterrupted training, bit for bit.

    \b
    Example:
      streamcd demo
      streamcd demo --example reviews
    """
    from .demo import result_rows, run_demo, write_example

    with console.Console(quiet) as listener:
        if example is not None:
            written = write_example(example, listener)
            console.show(written, as_json)
            return
        result = run_demo(keep, listener)
    console.show(result, as_json, Table("streamcd demo", result_rows(result)))
    if not result["ok"]:
        sys.exit(1)


def main() -> None:
    """Entry point of the console script."""
    cli.main()

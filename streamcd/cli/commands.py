"""The command line: arguments, one call of the library, output.

Heavy imports are inside the functions that use them, so that ``--help`` is fast and a training process holds only what it
needs.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import click

from .._version import __version__
from ..conversion.options import ColumnsOptions, ConvertOptions
from ..core.errors import UsageError
from ..core.memory_budget import format_size
from ..core.options import ModelOptions, SharedWork
from ..core.storage import local_path, location
from ..prediction.options import EvaluateOptions, PredictOptions
from ..report.tables import (
    Table,
    class_weights_tables,
    column_tables,
    dataset_tables,
    description_tables,
    evaluation_tables,
    support_rows,
)
from ..runs.options import ReportOptions, ResumeOptions, TrainOptions, TuneOptions
from . import console
from .console import Console, Problem, Shown
from .options import (
    Decorator,
    force_option,
    liblinear_options,
    option,
    options_of,
    training_keywords,
)
from .program import Program
from .session import carry_out, talks

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


def path_argument(name: str, **attributes: Any) -> Decorator:
    """Declare an argument that is a path or a URL."""
    return click.argument(name, type=click.Path(), **attributes)


@cli.command()
@path_argument("sources", metavar="SRC...", nargs=-1, required=True)
@path_argument("dataset")
@options_of(ConvertOptions)
@option(
    "--columns",
    section="Dataset",
    is_flag=True,
    help="Make the column layout as well, for --method primal, online and working-set.",
)
@talks()
def convert(
    listener: Console, sources: tuple[str, ...], dataset: str, columns: bool, **options: Any
) -> Shown:
    """Convert libsvm text, CSV, Parquet, Arrow or matrices to a dataset.

    It is a directory of Parquet files in random row order. SRC are files, directories, globs, or - for standard input;
    formats, and gzip, bzip2, xz and Zstandard of text, are recognised by content.

    \b
    Example:
      streamcd convert 'day_*.txt.gz' data --memory 2GB
      streamcd convert counts.txt data --normalize l2
      streamcd convert people.csv data --label income --drop id
      streamcd convert test.txt test --like data
    """
    from ..conversion.convert import convert as convert_text
    from ..runs.describe import describe_dataset

    made = convert_text(list(sources), dataset, listener=listener, **options)
    if columns:
        from ..conversion.transpose import make_columns

        sizes = {name: options[name] for name in ("memory", "workers", "shard_size", "chunk_size")}
        make_columns(made, listener=listener, **sizes)
    described = describe_dataset(made)
    return described, *dataset_tables(dataset, described, "evaluate" if options["like"] else "train")


@cli.command()
@path_argument("datasets", metavar="DATASET...", nargs=-1, required=True)
@path_argument("dest")
@force_option("dataset")
@talks()
def merge(listener: Console, datasets: tuple[str, ...], dest: str, force: bool) -> Shown:
    """Merge datasets encoded alike, in seconds.

    They are the first and others converted --like it. The shards of the new one are theirs, by hard links where the file
    system has them. 'train DEST RUN2 --start-from RUN1' goes on from a run on one of them.

    \b
    Example:
      streamcd convert tuesday.csv tue --like mon
      streamcd merge mon tue all
      streamcd train all run2 --start-from run
    """
    from ..runs.describe import describe_dataset
    from ..runs.merge import merge as merge_datasets

    made = describe_dataset(merge_datasets(list(datasets), dest, force=force, listener=listener))
    return made, *dataset_tables(dest, made, "train")


@cli.command()
@path_argument("dataset")
@options_of(ColumnsOptions)
@talks()
def columns(listener: Console, dataset: str, **options: Any) -> Shown:
    """Make the column layout of a dataset: its entries by feature. It is for --method primal, online and working-set.

    It takes as much disk space as the dataset, and twice that while it is made. If interrupted, it is begun anew.

    \b
    Example:
      streamcd columns data --memory 2GB
    """
    from ..conversion.transpose import make_columns

    made = make_columns(dataset, listener=listener, **options).info()
    return made, *column_tables(dataset, made)


@cli.command()
@path_argument("path", metavar="DATASET|RUN|MODEL")
@talks(quietly=True)
def info(listener: Console, path: str) -> Shown:
    """Describe a dataset, a run or a model, without reading data.

    Of a run: its options, its progress, the last gap, and the next command.

    \b
    Example:
      streamcd info data
      streamcd info run
    """
    from ..runs.describe import describe

    described = describe(path)
    tables = description_tables if "kind" in described else dataset_tables
    return described, *tables(path, described)


@cli.command()
@path_argument("path", metavar="DATASET|RUN|MODEL")
@options_of(SharedWork)
@talks(failure=2)
def verify(listener: Console, path: str, **options: Any) -> Shown:
    """Check every checksum and invariant of a dataset, a run or a model.

    The exit status is 2 if something is wrong. --workers divides the work on a dataset; a run or a model is read by one
    process.

    \b
    Example:
      streamcd verify data
    """
    from ..runs.verify import find_problems

    work = SharedWork(**options)
    problems, advice = find_problems(path, listener, memory=work.memory, workers=work.workers)
    text = f"{path}: all checksums and invariants hold"
    if problems:
        text = f"{len(problems)} found: restore the files named above from a copy, {advice}"
    return {"ok": not problems, "problems": problems}, *map(Problem, problems), text


# ---------------------------------------------------------------------------------------------------------------------
# Training


@cli.command()
@path_argument("dataset")
@path_argument("run")
@options_of(TrainOptions)
@liblinear_options
@talks()
def train(listener: Console, dataset: str, run: str, **options: Any) -> Shown:
    """Train a linear model, in a run directory that can be resumed.

    Minimises ½‖w‖² + C Σ loss over the rows, and stops when the duality gap certifies the result. Ctrl-C and SIGTERM save a
    checkpoint first; 'streamcd resume RUN' goes on, to the same weights bit for bit.

    \b
    Example:
      streamcd train data run --loss hinge -C 0.1 --memory 1GB
      streamcd train data run -s 1 -e 0.1          # as LIBLINEAR does
      streamcd train /shared/data /shared/run --scheduler tcp://host:8786
      streamcd train data run --resume --max-seconds 55m    # in batch jobs
    """
    options, notes = training_keywords(dataset, **options)
    from ..runs.run import train as train_model

    return carry_out(partial(train_model, dataset, run, **options), run, listener, notes)


@cli.command()
@path_argument("dataset")
@path_argument("run")
@options_of(TuneOptions)
@liblinear_options
@talks()
def tune(listener: Console, dataset: str, run: str, **options: Any) -> Shown:
    """Choose C, and λ of the penalty, by cross-validation. The best are those of a training on all rows.

    All folds of all C and λ are trained in the same passes over the data; the final training starts from their solutions.

    \b
    Example:
      streamcd tune data run --loss log_loss -C 0.01,0.1,1,10 --cv 5
      streamcd tune data run --penalty l1 --l1 10,5,2
    """
    options, notes = training_keywords(dataset, **options)
    from ..runs.run import tune as tune_model

    return carry_out(partial(tune_model, dataset, run, **options), run, listener, notes)


@cli.command()
@path_argument("run")
@options_of(ResumeOptions)
@talks()
def resume(listener: Console, run: str, **options: Any) -> Shown:
    """Continue a run from its last checkpoint. One that ended without convergence goes on, too.

    A run that has converged is not changed, unless --tol asks for a smaller gap. With --max-passes 1 an interrupted one
    finishes the pass begun, certifies its gap and writes its model.

    \b
    Example:
      streamcd resume run
      streamcd resume run --max-passes 1
      streamcd resume run --max-passes 5000
      streamcd resume run --dataset /new/disk/data
      streamcd resume /shared/run --scheduler tcp://host:8786
    """
    from ..runs.run import resume as resume_run

    return carry_out(partial(resume_run, run, **options), run, listener)


# ---------------------------------------------------------------------------------------------------------------------
# Models


@cli.command()
@path_argument("data", metavar="DATASET|FILE")
@path_argument("model", metavar="RUN|MODEL")
@options_of(EvaluateOptions)
@talks()
def evaluate(listener: Console, data: str, model: str, **options: Any) -> Shown:
    """Compare predictions with the labels of a dataset or a file.

    \b
    Example:
      streamcd evaluate test.libsvm.gz run
    """
    from ..prediction.evaluate import evaluate as evaluate_model

    result = evaluate_model(data, model, listener=listener, **options)
    return result, *evaluation_tables(f"{model} on {data}", result)


@cli.command()
@path_argument("run")
@option("-o", "out", required=True, metavar="OUT.html", help="The HTML page; its pictures are embedded.")
@options_of(ReportOptions)
@talks()
def report(listener: Console, run: str, out: str, **options: Any) -> Shown:
    """Write a report on a run: quality, weights, convergence, options. It needs the extra 'plot'.

    \b
    Example:
      streamcd report run -o report.html --data test.libsvm.gz
    """
    from ..runs.report import write_report

    write_report(run, out, listener=listener, **options)
    return {"report": out}, f"{out}: open it in a browser"


@cli.command()
@path_argument("data", metavar="DATASET|FILE")
@path_argument("model", metavar="RUN|MODEL")
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
    type=bool,
    metavar="0|1",
    help="LIBLINEAR's: -b 1 is --proba.",
)
@talks()
def predict(
    listener: Console,
    data: str,
    model: str,
    out: str,
    proba: bool,
    liblinear_proba: bool | None,
    **options: Any,
) -> Shown:
    """Predict the rows of a dataset or a file, in their order.

    \b
    Example:
      streamcd predict new.libsvm run -o predictions.parquet
      streamcd predict new.libsvm run -o probabilities.csv --proba
      streamcd predict new.libsvm run -o - > labels.txt
    """
    if out == "-" and listener.is_json:
        raise UsageError(
            "-o - prints predictions on standard output, where --json prints its object; name a file with -o"
        )
    from ..prediction.predict import predict as predict_rows

    target = console.lines_output() if out == "-" else out
    proba = proba or bool(liblinear_proba)
    result = predict_rows(data, model, target, proba=proba, listener=listener, **options)
    text = f"{result['n_rows']:,} predictions in {out}"
    return {**result, "out": out}, *([] if out == "-" else [text])


@cli.command()
@path_argument("model", metavar="RUN|MODEL")
@option("--top", type=int, default=20, metavar="N", help="Weights of a class, at most: the largest.")
@option("--class", "label", metavar="L", help="Of this class alone.  [default: all]")
@options_of(ModelOptions)
@talks(quietly=True)
def weights(listener: Console, model: str, top: int, label: str | None, **options: Any) -> Shown:
    """List the largest weights of a model by class, with their features. They are in the source's units.

    A positive weight is evidence for the class. Of two classes the larger one is listed; --class with the other one turns
    the signs. They are ordered by their product with the standard deviation of the feature in the training rows, whatever
    its unit; it stands beside them.

    \b
    Example:
      streamcd weights run --top 10
      streamcd weights run --class spam
    """
    from ..models.named_weights import weights as list_weights

    result = list_weights(model, top, label, **options)
    return result, *class_weights_tables(f"weights of {model}", result)


@cli.command()
@path_argument("source", metavar="RUN|MODEL|DATASET")
@path_argument("file")
@option(
    "--format",
    "target_format",
    type=click.Choice(["liblinear", "json", "libsvm"]),
    help="liblinear: a model as the text that LIBLINEAR's predict loads. json: all that a prediction needs. libsvm: a "
    "dataset as text, in the order of its source.  [default: by FILE's ending, of a dataset libsvm]",
)
@options_of(ModelOptions)
@force_option("file of the same format")
@talks()
def export(
    listener: Console,
    source: str,
    file: str,
    target_format: str | None,
    force: bool,
    **options: Any,
) -> Shown:
    """Write a model in LIBLINEAR's format or JSON, a dataset as libsvm.

    The divisors of features (convert --scale) are folded into the weights, for data as it is in the source. In LIBLINEAR's
    text a model trained on rows of unit norm (convert --normalize l2) predicts the same labels, with other decision values;
    with a bias it is refused.

    \b
    Example:
      streamcd export run model.txt --format liblinear
      streamcd export run model.json
      streamcd export data data.libsvm --format libsvm
    """
    is_dataset = target_format is None and (location(source) / "manifest.json").exists()
    support: dict[str, Any] = {}
    if is_dataset or target_format == "libsvm":
        if (options["C"], options["l1"]) != (None, None):
            raise UsageError(
                "-C and --l1 pick a model, --format libsvm writes a dataset: leave one of them out"
            )
        from ..conversion.export_libsvm import export_libsvm
        from ..dataset.dataset import open_dataset

        form = "libsvm"
        export_libsvm(open_dataset(source), file, force=force, listener=listener)
    else:
        from ..models.export import export as export_model
        from ..models.stored import load_model

        model = load_model(source, **options)
        form = export_model(model, file, target_format, force=force, listener=listener)
        support = model.support()
    n_bytes = os.path.getsize(file)
    kind = f"{form} text" if form.startswith("lib") else form
    more = "".join(f"; {what}: {text}" for what, text in support_rows(support))
    text = f"{file}: {kind}, {format_size(n_bytes)}{more}"
    return {"file": file, "format": form, "bytes": n_bytes} | support, text


@cli.command(name="import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@path_argument("model")
@force_option("model")
@talks(quietly=True)
def import_model(listener: Console, file: str, model: str, force: bool) -> Shown:
    """Read a model from LIBLINEAR's text format into a model directory.

    \b
    Example:
      streamcd import liblinear.model model
    """
    from ..core.files import check_output
    from ..models.liblinear import import_liblinear
    from ..models.stored import is_unfinished

    if not is_unfinished(model):
        check_output(
            local_path(model, "a model"), "a model", lambda path: (path / "model.json").is_file(), force=force
        )
    read = import_liblinear(file)
    read.save(model)
    facts = {"model": model, "loss": read.loss, "n_features": read.n_features, "labels": read.record.labels}
    kind = f"{read.n_classes} classes" if read.n_classes else "numbers to predict"
    return facts, f"{model}: {read.loss}, {read.n_features:,} features, {kind}"


@cli.command(name="compile")
@talks()
def compile_kernels(listener: Console) -> Shown:
    """Compile the kernels that most commands need, for images and clusters: commands then compile nothing.

    They are those of convert, train (by dual and newton, all losses of classes, and squared_error), tune, evaluate and
    predict. The cache is in NUMBA_CACHE_DIR, if that is set, else in the user's cache; it serves those who can only read it.

    \b
    Example:
      NUMBA_CACHE_DIR=/opt/kernels streamcd compile
    """
    from .rehearsal import compile_all

    result = compile_all(listener)
    return result, f"{result['folder']}: {result['compiled']} kernels compiled, {result['cached']} were there"


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
@talks(failure=1)
def demo(listener: Console, keep: str | None, example: str | None) -> Shown:
    """Demonstrate streamcd: a memory budget, a kill, a resume. It takes about three minutes.

    Makes a text-like libsvm file, converts it, trains on it within a memory budget of half its size, kills that training
    with SIGKILL half-way, resumes it, and compares the weights with those of an uninterrupted training, bit for bit.

    \b
    Example:
      streamcd demo
      streamcd demo --example reviews
    """
    from .demo import DemoSize, result_rows, run_demo, write_example

    if example is not None:
        return (write_example(example, listener),)
    result = run_demo(keep, listener, DemoSize())
    return result, Table("streamcd demo", result_rows(result))


def main() -> None:
    """Entry point of the console script."""
    cli.main()

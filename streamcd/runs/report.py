"""Reports: a page of tables and pictures on a run, and a picture of an evaluation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..core.atomic_files import begins_with, check_output, replacing, write_file
from ..core.errors import CheckpointError, StreamcdError
from ..core.memory_budget import format_size
from ..core.metadata import parse_json
from ..core.options import takes
from ..core.progress import counted, ends_progress
from ..core.storage import local_path
from ..dataset.dataset import Dataset
from ..models.model import Model, load_model, models_of_path
from ..prediction.curves import ScoreCurves
from ..prediction.evaluate import evaluate_model
from ..prediction.options import EvaluateOptions, PlotOptions
from ..prediction.reading_plan import cached
from ..report.drawing import image, image_format
from ..report.evaluation_figures import Curve, Decisions, Reliability, evaluation_figure, weights_figure
from ..report.page import Picture, Section, render_page
from ..report.training_figures import (
    Histories,
    gap_figure,
    objective_figure,
    search_figure,
    validation_figure,
    work_figure,
)
from ..training.history import read_history
from .config import RunConfig, read_config
from .describe import largest_weights, spent, told_options
from .options import ReportOptions

MAX_LOGS = 10
"""Largest number of logs (of groups of lanes) that are drawn; if there are more, the first ones."""

_MAX_LANES = 40  # in the table
_N_WEIGHTS = 20
_NAMES = {
    "gap": "relative gap",
    "n_rows": "rows",
    "auc": "area under ROC curve",
    "log_loss": "mean log loss",
    "brier_score": "Brier score",
}
_PAGE = rb"<!doctype html>"
_IMAGES = {"png": rb"\x89PNG", "svg": rb"<\?xml", "pdf": rb"%PDF"}


@ends_progress
@takes(ReportOptions)
def write_report(run: str | os.PathLike[str], out: str | os.PathLike[str], asked: ReportOptions) -> None:
    """Write a report on a run as one self-contained page.

    Parameters
    ----------
    run : path
        Of `train` or `tune`, finished or not.
    out : path
        Of the page, HTML with embedded pictures.
    {options}

    Raises
    ------
    CheckpointError
        If `run` is not a run.
    UsageError
        If matplotlib is not installed, or `out` exists and `force` is not given.

    Examples
    --------
    >>> streamcd.write_report("run", "report.html", data="reviews/test.txt")
    """
    run, page_path = local_path(run, "a run"), local_path(out, "a report")
    check_output(page_path, "a page", lambda path: begins_with(path, _PAGE), force=asked.force)
    config, histories = read_config(run), dict(list(read_history(run).items())[:MAX_LOGS])
    search = _search(run)  # what is damaged is refused before anything is drawn
    sections = [_configuration(config), _training(run, histories, config), *search]
    model, data = _model(run, asked.C), asked.data
    if model is None:
        sections.append(Section("Model", "There is none yet: training has not ended."))
    else:
        if data is None and config.validation is not None and os.path.exists(config.validation):
            data = config.validation
        if data is not None:
            sections.append(_evaluation(data, model, asked))
        sections += [_lanes(model), _weights(model, asked.scaled), _provenance(model)]
    pictures = [picture for section in sections for picture in section.pictures]
    lead = f"{config.options.loss} by the {config.options.method} method, on {config.dataset}"
    write_file(page_path, render_page(f"streamcd run {run.name}", lead, sections).encode())
    if asked.images is not None:
        _write_images(Path(asked.images), pictures)


@takes(PlotOptions)
def plot_evaluation(
    data: Dataset | str | os.PathLike[str],
    model: Model | str | os.PathLike[str],
    out: str | os.PathLike[str],
    asked: PlotOptions,
) -> dict[str, Any]:
    """Evaluate as `evaluate` does, returning the same, and draw confusion, ROC curves and calibration into a file.

    The end of its name, .png, .svg or .pdf, gives the format. Parameters and errors: see `evaluate`, `write_report`.
    """
    path = local_path(out, "a picture")
    form = image_format(path)
    check_output(
        path, f"a picture ({form})", lambda found: begins_with(found, _IMAGES[form]), force=asked.force
    )
    loaded = model if isinstance(model, Model) else load_model(model, asked.C)
    result, curves = evaluate_model(cached(data, asked), loaded, asked)
    write_file(path, image(_evaluation_figure(loaded, result, curves), form))
    return result


def _model(run: Path, C: float | None) -> Model | None:
    """Load the run's model; of a path over C without `C`, that of the largest."""
    try:
        path = models_of_path(run)
        return load_model(run, C if C is not None or not path else max(path))
    except StreamcdError:
        if C is not None:
            raise
        return None


def _write_images(directory: Path, pictures: list[Picture]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        with replacing(directory / f"{picture.name}.png") as partial:
            partial.write_bytes(picture.png)


# ---------------------------------------------------------------------------------------------------------------------
# Sections


def _configuration(config: RunConfig) -> Section:
    rows = [("dataset", config.dataset), ("fingerprint", config.fingerprint)]
    asked = {**told_options(config), "memory": format_size(config.memory), **_rule(config)}
    rows += [(_words(name), _text(value)) for name, value in asked.items() if value is not False]
    return Section("Configuration", tables=[[("option", "value"), *rows]])


def _rule(config: RunConfig) -> dict[str, Any]:
    return {name: value for name, value in asdict(config.rule).items() if value is not None}


def _words(name: str) -> str:
    """Name a figure as a person would."""
    return _NAMES.get(name, name.replace("_", " "))


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        f"{value:.10g}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )


def _training(run: Path, histories: Histories, config: RunConfig) -> Section:
    begun = {name: records for name, records in histories.items() if records}
    if not begun:
        return Section("Training", "No read of the data has ended yet.")
    last = [records[-1] for records in begun.values()]
    gaps = [
        record["gap"] / record["primal"] for record in last if record["gap"] is not None and record["primal"]
    ]
    rows = [
        ("passes", f"{max(record['passes'] for record in last):,}"),
        ("lanes still open", f"{sum(record['open_lanes'] for record in last):,}"),
        ("relative gap, last certificate", f"{max(gaps):.3g}" if gaps else "none yet"),
        *(
            row
            for part, (seconds, n_bytes) in spent(run).items()
            for row in (
                (f"seconds of {part}, without writing the model", f"{seconds:.4g}"),
                (f"read by {part}", format_size(n_bytes)),
            )
        ),
    ]
    pictures = [
        Picture(
            "gap",
            image(gap_figure(begun, _rule(config).get("tol"))),
            "The certified and estimated duality gap.",
        ),
        Picture(
            "objective",
            image(objective_figure(begun)),
            "The objective with its certified bounds, and κ or β, from the smallest to the largest over lanes.",
        ),
        Picture("work", image(work_figure(begun)), "Active rows, bytes read, and seconds by stage."),
    ]
    if config.validation is not None and any(
        record.get("validation") for log in begun.values() for record in log
    ):
        text = f"Loss and accuracy on {config.validation} while training."
        pictures.insert(1, Picture("validation", image(validation_figure(begun)), text))
    return Section("Training", tables=[[("figure", "value"), *rows]], pictures=pictures)


def _search(run: Path) -> list[Section]:
    """Describe the scores of a search over C; none where the run is no search, or its folds have not ended."""
    path = run / "scores.json"
    if not path.exists():
        return []
    try:
        found = parse_json(path.read_bytes())["scores"]
        scores = {float(C): [float(score) for score in of_C["folds"]] for C, of_C in found.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise CheckpointError(f"{path}: damaged; without it, the report leaves the scores out") from None
    rows = [
        (f"{C:g}", *(f"{score:.4f}" for score in (np.mean(folds), min(folds), max(folds))))
        for C, folds in scores.items()
    ]
    picture = Picture(
        "search", image(search_figure(scores)), "Accuracy of the models trained without a fold on its rows."
    )
    return [
        Section(
            "Search", tables=[[("C", "mean accuracy", "worst fold", "best fold"), *rows]], pictures=[picture]
        )
    ]


def _lanes(model: Model) -> Section:
    found = model.certificate
    passes = found.get("passes", [])
    rows = [
        (_words(name), f"{value:.3g}" if name == "gap" and value else _text(value))
        for name, value in found.items()
        if name != "passes"
    ]
    if passes:
        rows.append(
            (
                "passes" if len(passes) == 1 else "passes of each vector",
                _text(passes[:_MAX_LANES]) + (", …" if len(passes) > _MAX_LANES else ""),
            )
        )
    return Section("Certificate of the model", tables=[[("figure", "value"), *rows]])


def _weights(model: Model, scaled: bool) -> Section:
    largest = largest_weights(model.weights, _N_WEIGHTS, None if scaled else model.scaling.scales)
    of = model.scaling.describe_weights(scaled=scaled)
    labels = model.label_texts()
    vectors = (
        labels if model.n_vectors == model.n_classes else [f"vector {k}" for k in range(model.n_vectors)]
    )
    named = [
        model.feature_name(feature) + ("" if model.is_binary else f" ({vectors[vector]})")
        for feature, vector, _ in largest
    ]
    positive = f"Positive weights are evidence for {labels[-1]}." if model.is_binary else ""
    text = f"{counted(model.n_features, 'feature')}, {counted(model.n_vectors, 'weight vector')}. {positive}"
    if of:
        text += f" Weights are {of}."
    picture = Picture(
        "weights",
        image(weights_figure(named, [weight for *_, weight in largest])),
        f"Weights of the largest magnitude{of and ', ' + of}.",
    )
    return Section("Largest weights", text, pictures=[picture])


def _provenance(model: Model) -> Section:
    versions = [(_words(name), _text(version)) for name, version in model.versions.items()]
    rows = [("dataset's fingerprint", model.fingerprint), *versions]
    return Section("Provenance", tables=[[("made of", "version"), *rows]])


# ---------------------------------------------------------------------------------------------------------------------
# Evaluation


def _evaluation(data: Dataset | str | os.PathLike[str], model: Model, asked: ReportOptions) -> Section:
    options = EvaluateOptions(memory=asked.memory, listener=asked.listener)
    result, curves = evaluate_model(data, model, options)
    name = data.path if isinstance(data, Dataset) else data
    rows = [(_words(name), _text(value)) for name, value in result.items() if isinstance(value, int | float)]
    picture = Picture(
        "evaluation", image(_evaluation_figure(model, result, curves)), f"Predictions on {name}."
    )
    return Section(f"Evaluation on {name}", tables=[[("figure", "value"), *rows]], pictures=[picture])


def _evaluation_figure(model: Model, result: Mapping[str, Any], curves: ScoreCurves | None) -> Any:
    labels = model.label_texts()
    drawn, decisions, reliability = [], None, None
    if curves is not None:
        own = [labels[which] for which in curves.classes]
        drawn = [Curve(label, *curves.roc(number)) for number, label in enumerate(own)]
        if model.n_classes == 2:
            edges, (others, mine) = curves.histogram(0)
            other = next(label for label in labels if label != own[0])
            decisions = Decisions(own[0], other, edges, others, mine)
        if curves.calibration is not None:
            filled = curves.calibration.weight > 0
            count, predicted, hits = (total[filled] for total in curves.calibration)
            reliability = Reliability(predicted / count, hits / count, count)
    confusion = result.get("confusion")
    table = None if confusion is None else np.array(confusion)
    return evaluation_figure(result.get("labels", labels), table, drawn, reliability, decisions)

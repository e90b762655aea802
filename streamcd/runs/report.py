"""Reports: a page of tables and pictures on a run, and a picture of an evaluation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..core.atomic_files import begins_with, check_output, replacing, write_file
from ..core.folder_copies import copied
from ..core.options import takes
from ..core.progress import ends_progress
from ..core.setting import Setting
from ..core.storage import local_path
from ..dataset.dataset import Dataset
from ..models.model import Model
from ..models.named_weights import largest_weights, weight_blocks
from ..models.stored import describe_model, find_model, is_model, load_model, models_of_path
from ..prediction.curves import Residuals, ScoreCurves
from ..prediction.evaluate import evaluate_model
from ..prediction.options import EvaluateOptions, PlotOptions
from ..prediction.reading_plan import cached
from ..prediction.thresholds import list_thresholds
from ..report.drawing import image, image_format, require_matplotlib
from ..report.evaluation_figures import (
    Curve,
    Decisions,
    Reliability,
    evaluation_figure,
    residuals_figure,
    weights_figure,
)
from ..report.evaluation_tables import evaluation_tables, threshold_table
from ..report.page import Picture, Section, render_page
from ..report.scores import score_text, scores_of
from ..report.tables import Table, gap_rows, model_table, run_table, score_table
from ..report.training_figures import (
    Histories,
    gap_figure,
    objective_figure,
    path_figure,
    reads_on,
    search_figure,
    work_figure,
)
from ..training.history import read_history
from .describe import describe_run, read_scores
from .options import ModelOptions, ReportOptions

MAX_LOGS = 10
"""Largest number of logs (of groups of lanes) that are drawn; if there are more, the first ones."""

_N_WEIGHTS, _N_CURVES = 20, 8
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
    require_matplotlib()
    page_path = local_path(out, "a report")
    check_output(page_path, "a page", lambda path: begins_with(path, _PAGE), force=asked.force)
    with copied(run, "a run") as folder:
        _write_report(folder, page_path, asked)


def _write_report(run: Path, page_path: Path, asked: ReportOptions) -> None:
    facts, scores = describe_run(run), read_scores(run)  # what is damaged is refused before anything is drawn
    histories = dict(list(read_history(run).items())[:MAX_LOGS])
    place = _model_place(run, asked)
    model = None if place is None else describe_model(place, scaled=True, n_weights=_N_WEIGHTS)
    sections = [
        *([] if place is None else [_evaluation(asked.data, place, asked)]),
        *([] if model is None else [_weights(model)]),
        *([] if scores is None else [_search(scores)]),
        *_path(run),
        _training(histories, facts),
        Section("Run", tables=[run_table("", facts)]),
        *_model(model),
    ]
    options, gaps = facts["options"], [f"{name} {text}" for name, text in gap_rows(facts)]
    state = ", ".join([facts["state"], *gaps])
    lead = f"{options['loss']} by the {options['method']} method, on {facts['dataset']}: {state}"
    write_file(page_path, render_page(f"streamcd run {run.name}", lead, sections).encode())
    if asked.images is not None:
        _write_images(Path(asked.images), [picture for section in sections for picture in section.pictures])


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
    require_matplotlib()
    path = local_path(out, "a picture")
    form = image_format(path)
    check_output(
        path, f"a picture ({form})", lambda file: begins_with(file, _IMAGES[form]), force=asked.force
    )
    loaded = model if isinstance(model, Model) else load_model(model, asked.C, l1=asked.l1)
    result, curves = evaluate_model(cached(data, asked), loaded, asked)
    write_file(path, image(_evaluation_figure(loaded, result, curves), form))
    return result


def _model_place(run: Path, asked: ModelOptions) -> Path | None:
    """Find the run's model; of several that fit, that of the largest C and the smallest λ."""
    models = models_of_path(run)
    fitting = [setting for setting in models if setting.fits(asked.C, asked.l1)]
    if fitting:
        return models[max(fitting, key=lambda setting: (setting.C, -setting.l1))]
    if (asked.C, asked.l1) != (None, None):
        return find_model(run, asked.C, asked.l1)
    return run / "model" if is_model(run / "model") else None


def _write_images(directory: Path, pictures: list[Picture]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        with replacing(directory / f"{picture.name}.png") as partial:
            partial.write_bytes(picture.png)


# ---------------------------------------------------------------------------------------------------------------------
# Sections


def _training(histories: Histories, run: Mapping[str, Any]) -> Section:
    begun = {name: records for name, records in histories.items() if records}
    if not begun:
        return Section("Training", "No read of the data has ended yet.")
    work = "Active rows, bytes read, and seconds by stage."
    if not reads_on(begun):
        work = "Active rows, and seconds by stage; the data stayed in memory after the first read."
    drawn = [
        ("gap", gap_figure(begun, run["stopping"].get("tol")), "The certified and estimated duality gap."),
        (
            "objective",
            objective_figure(begun),
            "The objective with its certified bounds, and the strength of acceleration (--acceleration), as a range where "
            "several problems (of classes, C or folds) are trained together.",
        ),
        ("work", work_figure(begun), work),
    ]
    return Section("Training", pictures=[Picture(name, image(figure), text) for name, figure, text in drawn])


def _search(scored: Mapping[str, Any]) -> Section:
    score = score_text(scored)
    text = f"{score[0].upper()}{score[1:]} of the models trained without a fold on its rows."
    scores = scores_of(scored)
    best = next(of for of in scores if of.setting == Setting(scored["best_C"], scored["best_l1"]))
    picture = Picture("search", image(search_figure(scores, best, score)), text)
    return Section("Search", tables=[score_table(scored)], pictures=[picture])


def _path(run: Path) -> list[Section]:
    """Show the models of a path over λ, of the largest C: weights, support and objective."""
    models = models_of_path(run)
    most = max((setting.C for setting in models), default=0.0)
    loaded = [(setting, load_model(models[setting])) for setting in models if most == setting.C]
    if len(loaded) < 2:
        return []
    largest = [
        largest_weights(weight_blocks(model.kept_weights), model.n_vectors, _N_CURVES) for _, model in loaded
    ]
    sizes: dict[tuple[int, int], float] = {}
    for found in largest:
        for feature, column, weight in zip(found.feature, found.column, found.weight, strict=True):
            place = int(feature), int(column)
            sizes[place] = max(sizes.get(place, 0.0), abs(float(weight)))
    drawn = sorted(sizes, key=lambda place: (-sizes[place], place))[:_N_CURVES]
    first = loaded[0][1]
    curves = {
        first.feature_name(feature) + (f", {column + 1}" if first.n_vectors > 1 else ""): [
            float(model.kept_weights[feature : feature + 1][0, column]) for _, model in loaded
        ]
        for feature, column in drawn
    }
    below = "Objective", [model.certificate["primal_objective"] for _, model in loaded]
    support = [int(found.n_nonzero.sum()) for found in largest]
    figure = path_figure([setting.l1 for setting, _ in loaded], curves, support, below)
    text = f"Models of the path over l1 at C = {most:g}."
    return [Section("Path", pictures=[Picture("path", image(figure), text)])]


def _weights(model: Mapping[str, Any]) -> Section:
    """Show the largest weights of a model."""
    two = len(model["labels"]) == 2 and model["n_vectors"] == 1
    names = [
        (weight["name"] or f"feature {weight['index']}") + ("" if two else f" ({weight['vector']})")
        for weight in model["largest_weights"]
    ]
    weights = [weight["weight"] for weight in model["largest_weights"]]
    of = model["weights_for"]
    positive = f" Positive weights are evidence for {model['labels'][-1]}." if two else ""
    caption = f"Weights of the largest magnitude{of and ', ' + of}.{positive}"
    return Section(
        "Largest weights", pictures=[Picture("weights", image(weights_figure(names, weights)), caption)]
    )


def _model(model: Mapping[str, Any] | None) -> list[Section]:
    """Show certificate and provenance of a model."""
    if model is None:
        return [Section("Model", "There is none yet: training has not ended.")]
    made_of = [("dataset's fingerprint", model["fingerprint"]), *model["versions"].items()]
    return [
        Section("Model", tables=[model_table("", model)]),
        Section("Provenance", tables=[Table("", made_of)]),
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Evaluation


def _evaluation(data: Dataset | str | os.PathLike[str] | None, place: Path, asked: ReportOptions) -> Section:
    if data is None:
        return Section("Evaluation", "None: --data names rows with labels to evaluate the model on.")
    model = load_model(place)
    options = EvaluateOptions(memory=asked.memory, listener=asked.listener, positive=asked.positive)
    result, curves = evaluate_model(data, model, options)
    name = data.path if isinstance(data, Dataset) else data
    drawn = image(_evaluation_figure(model, result, curves))
    told = f"{'Residuals of predictions' if model.has_targets else 'Predictions'} on {name}."
    picture, tables = Picture("evaluation", drawn, told), evaluation_tables("", result)
    if isinstance(curves, ScoreCurves) and (thresholds := list_thresholds(curves)):
        label = model.label_texts()[curves.positive]
        found = [of._asdict() for of in thresholds]
        tables.append(threshold_table(label, found, weighted=result.get("weighted", False)))
    return Section(f"Evaluation on {name}", tables=tables, pictures=[picture])


def _evaluation_figure(
    model: Model, result: Mapping[str, Any], curves: ScoreCurves | Residuals | None
) -> Any:
    if isinstance(curves, Residuals):
        return residuals_figure(curves.predicted, curves.errors)
    labels = model.label_texts()
    drawn, decisions, reliability = [], None, None
    if curves is not None:
        own = [labels[which] for which in curves.classes]
        drawn = [Curve(label, *curves.roc(number)) for number, label in enumerate(own)]
        if curves.is_binary:
            edges, (others, mine) = curves.histogram(0)
            other = next(label for label in labels if label != own[0])
            decisions = Decisions(own[0], other, edges, others, mine)
        if curves.calibration is not None:
            filled = curves.calibration.weight > 0
            count, predicted, hits = (total[filled] for total in curves.calibration)
            reliability = Reliability(predicted / count, hits / count, count)
    confusion = result.get("confusion")
    table = None if confusion is None else np.array(confusion)
    counted = "weight" if result.get("weighted") else "rows"
    return evaluation_figure(result.get("labels", labels), table, drawn, reliability, decisions, counted)

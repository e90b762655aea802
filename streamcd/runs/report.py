"""Reports: a page of tables and pictures on a run, and a picture of an evaluation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..core.atomic_files import begins_with, check_output, write_file
from ..core.options import takes
from ..core.progress import ends_progress
from ..core.setting import Setting
from ..core.storage import local_path
from ..dataset.dataset import Dataset
from ..models.stored import describe_model, find_model, is_model, models_of_path
from ..prediction.evaluate import evaluate
from ..report.drawing import image, require_matplotlib
from ..report.evaluation_figures import confusion_figure, weights_figure
from ..report.evaluation_tables import evaluation_tables
from ..report.page import Picture, Section, render_page
from ..report.scores import score_text, scores_of
from ..report.tables import Table, gap_rows, model_table, run_table, score_table
from ..report.training_figures import (
    Histories,
    gap_figure,
    objective_figure,
    search_figure,
)
from ..training.history import read_history
from .describe import describe_run, read_scores
from .options import ModelOptions, ReportOptions

MAX_LOGS = 10
"""Largest number of logs (of groups of lanes) that are drawn; if there are more, the first ones."""

_N_WEIGHTS = 20
_PAGE = rb"<!doctype html>"


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
    run = local_path(run, "a run")
    facts, scores = describe_run(run), read_scores(run)  # what is damaged is refused before anything is drawn
    histories = dict(list(read_history(run).items())[:MAX_LOGS])
    place = _model_place(run, asked)
    model = None if place is None else describe_model(place, scaled=True, n_weights=_N_WEIGHTS)
    sections = [
        *([] if place is None else [_evaluation(asked.data, place, asked)]),
        *([] if model is None else [_weights(model)]),
        *([] if scores is None else [_search(scores)]),
        _training(histories, facts),
        Section("Run", tables=[run_table("", facts)]),
        *_model(model),
    ]
    options, gaps = facts["options"], [f"{name} {text}" for name, text in gap_rows(facts)]
    state = ", ".join([facts["state"], *gaps])
    lead = f"{options['loss']} by the {options['method']} method, on {facts['dataset']}: {state}"
    write_file(page_path, render_page(f"streamcd run {run.name}", lead, sections).encode())


def _model_place(run: Path, asked: ModelOptions) -> Path | None:
    """Find the run's model; of several that fit, that of the largest C and the smallest λ."""
    models = models_of_path(run)
    fitting = [setting for setting in models if setting.fits(asked.C, asked.l1)]
    if fitting:
        return models[max(fitting, key=lambda setting: (setting.C, -setting.l1))]
    if (asked.C, asked.l1) != (None, None):
        return find_model(run, asked.C, asked.l1)
    return run / "model" if is_model(run / "model") else None


# ---------------------------------------------------------------------------------------------------------------------
# Sections


def _training(histories: Histories, run: Mapping[str, Any]) -> Section:
    begun = {name: records for name, records in histories.items() if records}
    if not begun:
        return Section("Training", "No read of the data has ended yet.")
    drawn = [
        ("gap", gap_figure(begun, run["stopping"].get("tol")), "The certified and estimated duality gap."),
        (
            "objective",
            objective_figure(begun),
            "The objective with its certified bounds, and the strength of acceleration (--acceleration), as a range where "
            "several problems (of classes, C or folds) are trained together.",
        ),
    ]
    return Section("Training", pictures=[Picture(name, image(figure), text) for name, figure, text in drawn])


def _search(scored: Mapping[str, Any]) -> Section:
    score = score_text(scored)
    text = f"{score[0].upper()}{score[1:]} of the models trained without a fold on its rows."
    scores = scores_of(scored)
    best = next(of for of in scores if of.setting == Setting(scored["best_C"], scored["best_l1"]))
    picture = Picture("search", image(search_figure(scores, best, score)), text)
    return Section("Search", tables=[score_table(scored)], pictures=[picture])


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
    result = evaluate(data, place, memory=asked.memory, listener=asked.listener)
    name = data.path if isinstance(data, Dataset) else data
    pictures = []
    if result.get("confusion") is not None:
        drawn = confusion_figure(
            result["labels"], np.array(result["confusion"]), "weight" if result.get("weighted") else "rows"
        )
        pictures = [Picture("evaluation", image(drawn), f"Predictions on {name}.")]
    return Section(f"Evaluation on {name}", tables=evaluation_tables("", result), pictures=pictures)

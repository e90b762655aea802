"""Report on a run: a page of tables and pictures."""

from __future__ import annotations

import os
from pathlib import Path

from ..core.files import begins_with, check_output, replacing
from ..core.options import ModelOptions, takes
from ..core.storage import local_path
from ..models.named_weights import weights
from ..models.stored import describe_model, find_model, is_model, models_of_path
from ..prediction.evaluate import evaluate
from ..report.figures import gap_figure, require_matplotlib, search_figure
from ..report.page import render_page
from ..report.tables import (
    Table,
    class_weights_tables,
    evaluation_tables,
    gap_rows,
    model_table,
    run_table,
    score_table,
)
from ..training.result import read_history
from .describe import describe_run
from .options import ReportOptions

_PAGE = rb"<!doctype html>"


@takes(ReportOptions)
def write_report(run: str | os.PathLike[str], out: str | os.PathLike[str], options: ReportOptions) -> None:
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
    check_output(page_path, "a page", lambda path: begins_with(path, _PAGE), force=options.force)
    run = local_path(run, "a run")
    facts = describe_run(run)  # what is damaged is refused before anything is drawn
    histories = {name: records for name, records in list(read_history(run).items())[:10] if records}
    model_path = _chosen_model(run, options)
    sections: dict[str, list[str | Table | bytes]] = {}
    if model_path is not None and options.data is None:
        sections["Evaluation"] = ["None: --data names rows with labels to evaluate the model on."]
    elif model_path is not None:
        result = evaluate(options.data, model_path, listener=options.listener)
        name = getattr(options.data, "path", options.data)
        sections[f"Evaluation on {name}"] = [*evaluation_tables("", result)]
    if "scores" in facts:
        text = f"By {facts['scored_by']} of the models trained without a fold on its rows."
        sections["Search"] = [text, score_table(facts), search_figure(facts)]
    sections["Training"] = ["No read of the data has ended yet."]
    if histories:
        sections["Training"] = [gap_figure(histories, facts["stopping"].get("tol"))]
    sections["Run"] = [run_table("", facts)]
    sections["Model"] = ["There is none yet: training has not ended."]
    if model_path is not None:
        model = describe_model(model_path)
        made_of = [("dataset's fingerprint", model["fingerprint"]), *model["versions"].items()]
        sections["Model"] = [model_table("", model), Table("made of", made_of)]
        sections["Largest weights"] = [*class_weights_tables("weights", weights(model_path))]
    state = ", ".join([facts["state"], *map(" ".join, gap_rows(facts))])
    options_of_run = facts["options"]
    lead = (
        f"{options_of_run['loss']} by the {options_of_run['method']} method, on {facts['dataset']}: {state}"
    )
    with replacing(page_path) as (partial,):
        partial.write_bytes(render_page(f"streamcd run {run.name}", lead, sections).encode())


def _chosen_model(run: Path, options: ModelOptions) -> Path | None:
    """Find the run's model; of several that fit, that of the largest C and the smallest λ."""
    models = models_of_path(run)
    fitting = [setting for setting in models if setting.fits(options.C, options.l1)]
    if fitting:
        return models[max(fitting, key=lambda setting: (setting.C, -setting.l1))]
    if options.C is None and options.l1 is None and not is_model(run / "model"):
        return None
    return find_model(run, options.C, options.l1)

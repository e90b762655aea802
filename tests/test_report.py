"""Reports and pictures of runs and evaluations."""

from __future__ import annotations

import dataclasses
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import command_line
import numpy as np
import pytest
from sklearn import metrics
from small_datasets import multiclass, random_rows, write_dataset

from streamcd import StreamcdError, evaluate, load_model, resume, train, tune, write_report
from streamcd.core.memory_budget import format_size
from streamcd.prediction.curves import ScoreCurves
from streamcd.prediction.evaluate import evaluate_model
from streamcd.prediction.options import EvaluateOptions
from streamcd.prediction.thresholds import RECALLS, list_thresholds
from streamcd.report.evaluation_tables import evaluation_tables
from streamcd.report.page import Section, render_page
from streamcd.report.tables import Table
from streamcd.report.training_figures import objective_figure, work_figure
from streamcd.training.history import read_history


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    data = write_dataset(folder / "data", random_rows(300, 12, seed=3))
    train(data, folder / "run", loss="log_loss", tol=1e-4)
    return folder / "run"


@pytest.fixture(scope="module")
def page(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with pictures of an evaluation too, and its pictures in files beside it."""
    folder = tmp_path_factory.mktemp("page")
    write_report(run, folder / "r.html", data=run.parent / "data", images=folder / "png")
    return folder / "r.html"


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_has_all_pictures_inside_and_asks_nothing_of_the_network(page: Path) -> None:
    text, tags = page.read_text(), _Tags()
    tags.feed(text)
    assert not tags.open
    assert len(tags.sources) == 5
    assert all(source.startswith("data:image/png;base64,") for source in tags.sources)
    assert sorted(path.name for path in page.with_name("png").iterdir()) == [
        f"{name}.png" for name in ("evaluation", "gap", "objective", "weights", "work")
    ]
    assert "area under ROC curve" in text
    assert re.search(r"converged</td><td>yes", text)
    assert "omega" not in text  # an option that was not given


def test_a_report_names_the_strength_of_acceleration_by_its_option(run: Path, page: Path) -> None:
    """They stood there as the kappa and beta of the literature, which no option and no message explains."""
    figure = objective_figure(read_history(run))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["Objective", "Strength of acceleration"]
    shown = re.sub("<[^>]*>", "", page.read_text())
    assert "the strength of acceleration (--acceleration)" in shown
    for word in ("κ", "β", "λ", "kappa", "lane"):
        assert word not in shown
    assert "kappa" not in command_line.run("train", "--help").stdout.lower()


def test_bytes_read_are_drawn_where_there_is_more_than_the_first_read(run: Path, page: Path) -> None:
    """A search in memory had a panel of flat lines."""
    history = read_history(run)
    (records,) = history.values()
    assert [record["bytes_read"] > 0 for record in records[:2]] == [True, False]
    assert "the data stayed in memory after the first read" in page.read_text()
    streamed = {"": [record | {"bytes_read": 1000} for record in records]}
    for histories, shown in ((history, []), (streamed, ["Read so far, MB"])):
        titles = [axes.get_title(loc="left") for axes in work_figure(histories).axes]
        assert titles == ["Active rows", *shown, "Seconds by stage"]


def test_a_missing_matplotlib_is_told_of_before_rows_are_scored(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command scored all rows, and then stopped; data that are not there are looked for later."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(StreamcdError, match=r"plots need matplotlib; .*streamcd\[plot\].*'\.\[plot\]'"):
        write_report(run, tmp_path / "r.html", data=tmp_path / "nothing")


def test_a_page_is_replaced_with_force_alone_and_the_same_run_gives_the_same(run: Path, page: Path) -> None:
    written = page.read_bytes()
    with pytest.raises(StreamcdError, match="--force"):
        write_report(run, page)
    page.write_bytes(written[:100])
    write_report(run, page, data=run.parent / "data", force=True)
    assert page.read_bytes() == written


def test_a_search_is_drawn_with_its_folds(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", random_rows(80, 8, seed=1))
    found = tune(data, tmp_path / "run", C=[0.1, 1.0], cv=2, max_passes=30)
    write_report(tmp_path / "run", tmp_path / "r.html", images=tmp_path / "png")
    page = (tmp_path / "r.html").read_text()
    assert "Largest weights" in page
    for C, scores in found.scores.items():
        assert f"<td>{C}</td><td>{scores['mean']:.4f}</td>" in page
    assert (tmp_path / "png" / "search.png").exists()
    (tmp_path / "run" / "scores.json").write_text('{"scores": [0.1]}')
    with pytest.raises(StreamcdError, match=r"scores\.json: damaged"):
        write_report(tmp_path / "run", tmp_path / "r.html", force=True)


def test_text_of_others_is_escaped() -> None:
    page = render_page("<script>", "&", [Section("<b>", tables=[Table("<h>", [("a", "<i>")])])])
    assert "<script>" not in page
    assert "<i>" not in page
    assert "&lt;i&gt;" in page


def test_a_file_that_is_no_page_is_kept(run: Path, tmp_path: Path) -> None:
    (tmp_path / "precious.html").write_text("mine")
    with pytest.raises(StreamcdError, match="is not a page"):
        write_report(run, tmp_path / "precious.html", force=True)
    assert (tmp_path / "precious.html").read_text() == "mine"


@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
def test_an_evaluation_is_drawn_in_the_format_of_the_name(run: Path, tmp_path: Path, form: str) -> None:
    out = tmp_path / f"e.{form}"
    data = run.parent / "data"
    assert command_line.run_json("evaluate", data, run, "--plot", out) == evaluate(data, run)
    assert {"png": b"PNG", "svg": b"<svg", "pdf": b"%PDF"}[form] in out.read_bytes()[:1000]
    refused = command_line.run("evaluate", data, run, "--plot", tmp_path / "e.gif")
    assert "ends in .png, .svg or .pdf" in refused.stderr


def test_the_area_under_a_curve_is_the_exact_one_but_for_its_bins(run: Path) -> None:
    result, curves = evaluate_model(run.parent / "data", load_model(run), EvaluateOptions())
    assert curves is not None
    false, true = curves.roc(0)
    assert np.trapezoid(true, false) == pytest.approx(result["auc"], abs=2e-3)
    assert (false[0], true[0], false[-1], true[-1]) == (0.0, 0.0, 1.0, 1.0)
    assert (np.diff(false) >= 0).all()
    assert (np.diff(true) >= 0).all()


@pytest.mark.parametrize("positive", [1, -1])
def test_thresholds_say_what_predictions_from_there_on_are_worth(
    run: Path, tmp_path: Path, positive: int
) -> None:
    """By scikit-learn, on decisions; the model's own has the figures of its predictions, some with a decision of 0."""
    x, y = random_rows(400, 12, seed=5)
    x[:40] = 0.0
    data = write_dataset(tmp_path / "data", (x, y))
    model = dataclasses.replace(load_model(run), bias=-1.0, intercept=np.zeros(1))
    result, curves = evaluate_model(data, model, EvaluateOptions(positive=positive))
    assert isinstance(curves, ScoreCurves)
    found = list_thresholds(curves)
    scores, own = positive * model.decision_function(x).astype(np.float32), y == positive
    for of in found:
        if of.why != "the model's":
            said = scores >= of.score
            assert of.precision == pytest.approx(metrics.precision_score(own, said))
            assert of.recall == pytest.approx(metrics.recall_score(own, said))
            assert of.f1 == pytest.approx(metrics.f1_score(own, said))
            assert of.share == pytest.approx(said.mean())
        assert of.probability == pytest.approx(1.0 / (1.0 + np.exp(-of.score)))
    (models,) = (of for of in found if "the model's" in of.why)
    assert (models.score, models.probability) == (0.0, 0.5)
    measured = [models.precision, models.recall, models.f1]
    assert measured == pytest.approx([result[name] for name in ("precision", "recall", "f1")])
    precision, recall, _ = metrics.precision_recall_curve(own, scores)
    best = np.nanmax(2 * precision * recall / (precision + recall))
    assert max(of.f1 for of in found) == pytest.approx(best, rel=0.02)
    for least in RECALLS:
        assert any(of.recall >= least and f"recall {least:g}" in of.why for of in found)
    assert [of.score for of in found] == sorted((of.score for of in found), reverse=True)


def test_a_report_begins_with_what_the_model_is_worth(run: Path, page: Path, tmp_path: Path) -> None:
    """A reader looked for it below three pictures of the convergence."""
    evaluation, *others = re.findall("<h2>(.*?)</h2>", page.read_text())
    assert evaluation == f"Evaluation on {run.parent / 'data'}"
    assert others == ["Largest weights", "Training", "Run", "Model", "Provenance"]
    assert "thresholds: rows from there on are predicted 1" in page.read_text()
    write_report(run, tmp_path / "r.html")
    assert "--data names rows with labels to evaluate the model on" in (tmp_path / "r.html").read_text()


def test_a_page_says_where_figures_are_of_weights_rather_than_rows(run: Path, tmp_path: Path) -> None:
    x, y = random_rows(300, 12, seed=3)
    data = write_dataset(tmp_path / "data", (x, y), weight=np.full(y.size, 2.5))
    texts = []
    for rows in (data, run.parent / "data"):
        write_report(run, tmp_path / "r.html", data=rows, force=True)
        texts.append((tmp_path / "r.html").read_text())
    of_weights = ["by class, weighted", "their weight", "confusion, in sums of weights", "share of weight"]
    assert [[name in text for name in of_weights] for text in texts] == [[True] * 4, [False] * 4]
    assert ["share of rows" in text for text in texts] == [False, True]


def test_several_classes_get_a_curve_each(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", multiclass())
    train(data, tmp_path / "run", max_passes=30)
    model = load_model(tmp_path / "run")
    _, curves = evaluate_model(data, model, EvaluateOptions())
    assert curves is not None
    assert len(curves.classes) == model.n_classes
    assert ScoreCurves.table_bytes(model) == curves.counts.nbytes


def test_a_result_draws_its_gaps(run: Path) -> None:
    from streamcd import resume

    figure = resume(run).plot()
    assert len(figure.axes) == 2


def test_time_and_bytes_are_those_of_the_run_after_a_kill_too(run: Path, tmp_path: Path) -> None:
    """The log has neither what was read after the last checkpoint before a kill, nor the time between reads."""
    data = run.parent / "data"
    train(data, tmp_path / "run", max_passes=2, tol=1e-9)
    result = resume(tmp_path / "run", max_passes=5)
    state = dict(np.load(tmp_path / "run" / "state.npz"))
    state["seconds"], state["bytes_read"] = np.float64(39.0), np.int64(6_010_000_000)
    np.savez(tmp_path / "run" / "state.npz", **state)
    assert result.bytes_read != 6_010_000_000
    write_report(tmp_path / "run", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "<td>time</td><td>39 s</td>" in page
    assert "<td>read</td><td>6.01 GB</td>" in page


def test_a_report_has_ten_digits_of_objectives(run: Path, page: Path) -> None:
    text, found = page.read_text(), load_model(run).certificate
    for name in ("primal_objective", "dual_objective"):
        assert f"<td>{name.replace('_', ' ')}</td><td>{found[name]:.10g}</td>" in text
    assert f"<td>relative gap</td><td>{found['gap']:.3g}</td>" in text


def test_a_report_on_a_search_tells_the_time_of_its_parts(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", random_rows(80, 8, seed=1))
    found = tune(data, tmp_path / "run", C=[0.1, 1.0], cv=2, max_passes=30)
    write_report(tmp_path / "run", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert f"<td>read by folds</td><td>{format_size(found.folds['bytes_read'])}</td>" in page
    assert f"<td>read by training with the best C</td><td>{format_size(found.bytes_read)}</td>" in page


def test_an_evaluation_shows_four_decimals_of_shares_and_all_digits_of_none_but_the_objective() -> None:
    """Of 5,000 rows an accuracy of 89.9800 % and an area of 0.9736482776 stood there, whose third digit is a chance's."""
    facts = {
        "n_rows": 5000,
        "positive": "yes",
        "labels": ["no", "yes"],
        "accuracy": 0.8998,
        "auc": 0.9736482776,
    }
    facts |= {"average_precision": 0.639281539, "brier_score": 0.000321234, "primal_objective": 1157.8502561}
    facts |= {"confusion": [[4330, 489], [12, 169]], "per_class": []}
    quality, _, confusion = evaluation_tables("", facts)
    assert dict(quality.rows) == {
        "rows": "5,000",
        "accuracy": "89.98 %",
        "primal objective": "1157.850256",
        "area under ROC curve": "0.9736",
        "average precision of yes": "0.6393",
        "Brier score": "0.0003212",
    }
    assert confusion.rows[0] == ["no", "4,330", "489"]
    errors = dict(evaluation_tables("", {"n_rows": 3, "mae": 52_345.6789, "r2": 0.5})[0].rows)
    assert errors == {"rows": "3", "mean absolute error": "52345.7", "R²": "0.5000"}

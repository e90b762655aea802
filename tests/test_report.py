"""Reports and pictures of runs and evaluations."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from small_datasets import random_rows, write_dataset

from streamcd import StreamcdError, load_model, resume, train, tune, write_report
from streamcd.core.memory_budget import format_size
from streamcd.report.figures import gap_figure
from streamcd.report.page import render_page
from streamcd.report.tables import Table
from streamcd.training.result import read_history


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    data = write_dataset(folder / "data", random_rows(300, 12, seed=3))
    train(data, folder / "run", loss="log_loss", tol=1e-4)
    return folder / "run"


@pytest.fixture(scope="module")
def page(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with a picture of an evaluation too."""
    folder = tmp_path_factory.mktemp("page")
    write_report(run, folder / "r.html", data=run.parent / "data")
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
    assert len(tags.sources) == 1
    assert all(source.startswith("data:image/png;base64,") for source in tags.sources)
    assert "area under ROC curve" in text
    assert re.search(r"converged</td><td>yes", text)
    assert "omega" not in text  # an option that was not given


def test_a_missing_matplotlib_is_told_of_before_rows_are_scored(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command scored all rows, and then stopped; data that are not there are looked for later."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(StreamcdError, match=r"plots need matplotlib; .*streamcd\[plot\].*'\.\[plot\]'"):
        write_report(run, tmp_path / "r.html", data=tmp_path / "nothing")


def test_a_page_is_replaced_with_force_alone_and_the_same_run_gives_the_same(run: Path, page: Path) -> None:
    written = page.read_bytes()
    with pytest.raises(StreamcdError, match="force=True"):
        write_report(run, page)
    page.write_bytes(written[:100])
    write_report(run, page, data=run.parent / "data", force=True)
    assert page.read_bytes() == written


def test_a_search_is_drawn_with_its_folds(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", random_rows(80, 8, seed=1))
    found = tune(data, tmp_path / "run", C=[0.1, 1.0], cv=2, max_passes=30)
    write_report(tmp_path / "run", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "Largest weights" in page
    assert page.count("data:image/png") == 2
    for C, scores in found.scores.items():
        assert f"<td>{C}</td><td>{scores['mean']:.4f}</td>" in page
    (tmp_path / "run" / "scores.json").write_text('{"scores": [0.1]}')
    with pytest.raises(StreamcdError, match=r"scores\.json: expected"):
        write_report(tmp_path / "run", tmp_path / "r.html", force=True)


@pytest.mark.parametrize("penalty", [{}, {"penalty": "elasticnet", "l1": 2.0}], ids=["l2", "elasticnet"])
def test_newtons_estimate_falls_from_the_first_read_and_the_certificate_is_a_dot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, penalty: dict[str, Any]
) -> None:
    """The certificate of early weights is void: the line was flat at 1, and fell off a cliff."""
    data, drawn, plot = write_dataset(tmp_path / "data", random_rows(300, 12, seed=3)), {}, Axes.plot

    def noted(axes: Axes, x: list[float], y: list[float], *form: Any, **options: Any) -> Any:
        drawn.setdefault(options["label"], (x, y))  # against passes first
        return plot(axes, x, y, *form, **options)

    monkeypatch.setattr(Axes, "plot", noted)
    result = train(data, tmp_path / "run", loss="log_loss", method="newton", C=100.0, tol=1e-4, **penalty)
    gap_figure(read_history(tmp_path / "run"), 1e-4)
    passes, estimates = drawn["estimate"]
    assert passes == [*range(1, result.passes + 1)]
    assert max(estimates) < 0.9
    assert min(estimates[:-1]) < 0.01 * estimates[0]
    assert drawn["certificate (proven)"] == ([result.passes], [result.gap])


def test_text_of_others_is_escaped() -> None:
    page = render_page("<script>", "&", {"<b>": [Table("<h>", [("a", "<i>")])]})
    assert "<script>" not in page
    assert "<i>" not in page
    assert "&lt;i&gt;" in page


def test_a_file_that_is_no_page_is_kept(run: Path, tmp_path: Path) -> None:
    (tmp_path / "precious.html").write_text("mine")
    with pytest.raises(StreamcdError, match="is not a page"):
        write_report(run, tmp_path / "precious.html", force=True)
    assert (tmp_path / "precious.html").read_text() == "mine"


def test_a_report_begins_with_what_the_model_is_worth(run: Path, page: Path, tmp_path: Path) -> None:
    """A reader looked for it below three pictures of the convergence."""
    evaluation, *others = re.findall("<h2>(.*?)</h2>", page.read_text())
    assert evaluation == f"Evaluation on {run.parent / 'data'}"
    assert others == ["Training", "Run", "Model", "Largest weights"]
    write_report(run, tmp_path / "r.html")
    assert "--data names rows with labels to evaluate the model on" in (tmp_path / "r.html").read_text()


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

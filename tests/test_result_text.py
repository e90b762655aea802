"""What a result and a dataset say of themselves: a few lines, in the user's words."""

import command_line
import numpy as np
import pytest

import streamcd
from streamcd.report.tables import run_table


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = tmp_path_factory.mktemp("text")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 4))
    data = streamcd.convert((X, np.digitize(X[:, 0], [-0.5, 0.5])), place / "data")
    result = streamcd.train(data, place / "run", validation=place / "data")
    search = streamcd.tune(data, place / "search", C=[0.1, 1.0], cv=3)
    return data, result, search


def test_a_result_a_search_and_a_dataset_take_eight_lines_at_most(trained):
    for said in map(repr, trained):
        assert len(said.splitlines()) <= 8
        assert all(len(line) < 160 for line in said.splitlines())
        for word in ("lane", "kappa", "κ", "slot", "arena"):
            assert word not in said


def test_they_say_what_came_out(trained):
    data, result, search = trained
    assert f"converged after {result.passes} pass" in repr(result)
    assert f"{result.primal_objective:.6g}, sum of 3 problems" in repr(result)
    assert "validation loss" in repr(result)
    assert f"best: C = {search.best_C:g}, by accuracy, of 2 tried" in repr(search)
    assert "rows: 90" in repr(data)
    assert str(result) == repr(result)


def test_a_result_that_fell_short_says_so(trained, tmp_path):
    data, *_ = trained
    with pytest.warns(streamcd.ConvergenceWarning):
        result = streamcd.train(data, tmp_path / "run", max_passes=1, tol=1e-12)
    assert "not converged after 1 pass: the relative gap is" in repr(result)


@pytest.mark.parametrize(
    ("certified", "shown"),
    [(2e-4, ("certified gap", "0.0002")), (None, ("estimated gap", "0.0001, not certified yet"))],
)
def test_a_run_shows_one_gap_and_the_estimate_only_before_a_certificate(trained, certified, shown):
    """Both stood there, often alike, and a reader asked which of them counts."""
    facts = command_line.run_json("info", trained[1].run) | {"gap": certified, "gap_estimate": 1e-4}
    assert [row for row in run_table("", facts).rows if "gap" in row[0]] == [shown]

"""The real sets, whole: objectives beside LIBLINEAR's, accuracies on held-out rows, a hundred million entries in 400 MB."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference import liblinear, primal_objectives
from sklearn.datasets import load_svmlight_file
from sklearn.preprocessing import normalize

import streamcd
from streamcd import StreamcdError, make_columns

pytestmark = pytest.mark.slow

BINARY = ["heart_scale", "a9a", "mushrooms", "ijcnn1", "kdd99_10pct", "imdb.bigram.tfidf"]
MULTICLASS = ["dna.scale", "letter.scale", "news20"]
LOSSES = ["hinge", "squared_hinge", "log_loss", "crammer_singer"]
BADLY_SCALED = {"news20", "dna.scale"}
ROOT = Path(__file__).resolve().parent.parent


def rows_of(path: Path) -> tuple[Any, np.ndarray]:
    import lzma

    with lzma.open(path) as file:
        x, y = load_svmlight_file(file, zero_based=False)
    return x, y


def converted(path: Path, tmp_path: Path) -> Path:
    streamcd.convert(path, tmp_path / "data")
    return tmp_path / "data"


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
@pytest.mark.parametrize("name", BINARY)
def test_binary_sets_reach_liblinears_objective(
    real_data: Callable[[str], Path], tmp_path: Path, name: str, loss: str
) -> None:
    path = real_data(name)
    result = streamcd.train(converted(path, tmp_path), tmp_path / "run", loss=loss, tol=1e-4, max_passes=3000)
    assert result.converged
    x, y = rows_of(path)
    best = primal_objectives(loss, x, y, liblinear(loss, x, y, eps=1e-4), np.ones(y.size)).sum()
    assert result.primal_objective <= best * (1 + 1e-4)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", BINARY + MULTICLASS)
def test_every_loss_reaches_liblinears_objective_or_says_how_far_it_is(
    real_data: Callable[[str], Path], tmp_path: Path, name: str, loss: str
) -> None:
    path = real_data(name)
    told: list[str] = []

    class Ear(streamcd.Listener):
        def warning(self, text: str) -> None:
            told.append(text)

    result = streamcd.train(converted(path, tmp_path), tmp_path / "run", loss=loss, tol=1e-3, listener=Ear())
    if not result.converged:
        assert name in BADLY_SCALED
        assert result.gap > 1e-3
        assert any("normalize" in text for text in told)
        return
    x, y = rows_of(path)
    best = primal_objectives(loss, x, y, liblinear(loss, x, y, eps=1e-3), np.ones(y.size)).sum()
    assert result.primal_objective <= best * (1 + 1e-3)


@pytest.mark.parametrize(
    "name", ["a9a", "ijcnn1", "kdd99_10pct", "imdb.bigram.tfidf", "dna.scale", "letter.scale"]
)
def test_accuracies_on_held_out_rows_are_liblinears(
    real_data: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    expected = {
        "a9a": 84.96,
        "ijcnn1": 91.79,
        "kdd99_10pct": 92.23,
        "imdb.bigram.tfidf": 90.24,
        "dna.scale": 94.44,
        "letter.scale": 66.34,
    }
    result = streamcd.train(converted(real_data(name), tmp_path), tmp_path / "run", tol=1e-3)
    accuracy = streamcd.evaluate(real_data(f"{name}.t"), result.model)["accuracy"]
    assert 100 * accuracy == pytest.approx(expected[name], abs=0.3)


@pytest.mark.parametrize("loss", ["squared_hinge", "log_loss"])
@pytest.mark.parametrize("name", BINARY + MULTICLASS)
def test_primal_online_and_dual_agree_with_liblinears_primal_solvers(
    real_data: Callable[[str], Path], tmp_path: Path, name: str, loss: str
) -> None:
    """``-s 2`` and ``-s 0`` at a tight tolerance: no certificate excludes their objective, what converges is near it."""
    options: dict[str, Any] = {"normalize": "l2"} if name == "news20" else {}
    dataset = streamcd.convert(real_data(name), tmp_path / "data", **options)
    make_columns(dataset)
    x, y = rows_of(real_data(name))
    x = normalize(x) if options else x
    solver = {"squared_hinge": "-s 2", "log_loss": "-s 0"}[loss]
    theirs = primal_objectives(loss, x, y, liblinear(loss, x, y, eps=1e-6, options=solver), np.ones(y.size))
    max_passes = 40 if name == "kdd99_10pct" else 400
    found = {
        method: streamcd.train(dataset, tmp_path / method, loss=loss, method=method, max_passes=max_passes)
        for method in ("dual", "primal", "online")
    }
    for result in found.values():
        for lane, best in zip(result.lanes, theirs, strict=True):
            assert lane["dual_objective"] <= best * (1 + 1e-6)
            assert best <= lane["primal_objective"] * (1 + 1e-6)
        if result.converged:
            assert result.primal_objective == pytest.approx(theirs.sum(), rel=1e-3)
    assert found["dual"].converged or name == "kdd99_10pct"


@pytest.mark.parametrize("slack", ["hinge", "squared_hinge"])
def test_both_twin_routes_agree_to_a_millionth_on_a_small_set(
    real_data: Callable[[str], Path], tmp_path: Path, slack: str
) -> None:
    dataset = streamcd.convert(real_data("heart_scale"), tmp_path / "data")
    dual, classic = (
        streamcd.train(
            dataset, tmp_path / method, loss="twin", method=method, slack=slack, tol=1e-7, max_passes=10_000
        )
        for method in ("dual", "sor")
    )
    assert dual.converged
    assert classic.converged
    for one, other in zip(dual.lanes, classic.lanes, strict=True):
        assert one["primal_objective"] == pytest.approx(other["primal_objective"], rel=1e-6)


def test_twin_planes_of_a_million_features_are_refused_by_sor_and_trained_by_dual(
    real_data: Callable[[str], Path], tmp_path: Path
) -> None:
    dataset = streamcd.convert(real_data("imdb.bigram.tfidf"), tmp_path / "data")
    with pytest.raises(StreamcdError, match=r"TB 1 matrix of 1,520,267 x 1,520,267 .* method=\"dual\""):
        streamcd.train(dataset, tmp_path / "sor", loss="twin", method="sor")
    assert streamcd.train(dataset, tmp_path / "dual", loss="twin", method="dual").converged


@pytest.mark.parametrize(
    ("name", "method"),
    [("a9a", "dual"), ("a9a", "sor"), ("ijcnn1", "dual"), ("ijcnn1", "sor"), ("kdd99_10pct", "sor"),
     ("imdb.bigram.tfidf", "dual")],
)  # fmt: skip
def test_twin_planes_predict_held_out_rows_about_as_well_as_the_linear_svm(
    real_data: Callable[[str], Path], tmp_path: Path, name: str, method: str
) -> None:
    dataset = streamcd.convert(real_data(name), tmp_path / "data")
    accuracy = {}
    for loss, asked in (("squared_hinge", "dual"), ("twin", method)):
        result = streamcd.train(dataset, tmp_path / loss, loss=loss, method=asked)
        assert result.converged
        accuracy[loss] = streamcd.evaluate(real_data(f"{name}.t"), result.model)["accuracy"]
    assert accuracy["twin"] == pytest.approx(accuracy["squared_hinge"], abs=0.02)


def test_a_hundred_million_entries_train_in_400_megabytes_to_the_same_objective(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make = [sys.executable, str(ROOT / "tools" / "make_data.py"), "text", str(data), "--rows", "1000000"]
    subprocess.run([*make, "--features", "300000", "--entries", "100"], check=True)
    objectives = {}
    for memory in ("400MB", "4GB"):
        command = [
            sys.executable,
            "-m",
            "streamcd",
            "train",
            str(data),
            str(tmp_path / memory),
            "--memory",
            memory,
        ]
        # GNU time is not everywhere: the shell's child is asked for its own peak by the kernel's account
        code = (
            "import resource, subprocess, sys\n"
            "subprocess.run(sys.argv[1:], check=True)\n"
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, *command, "--json", "--quiet"],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        outcome, peak = done.stdout.splitlines()
        result = json.loads(outcome)
        assert result["converged"]
        objectives[memory] = result["primal_objective"]
        if memory == "400MB":
            assert int(peak) <= 400_000_000
    assert objectives["400MB"] == pytest.approx(objectives["4GB"], rel=1e-3)


def test_a_search_reads_hardly_more_than_its_slowest_lane(
    real_data: Callable[[str], Path], tmp_path: Path
) -> None:
    data = streamcd.open(converted(real_data("a9a"), tmp_path))
    values = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
    try:
        result = streamcd.tune(data, tmp_path / "run", C=values, cv=5, loss="log_loss", memory="1GB")
    except StreamcdError as error:  # pragma: no cover - tells more than a traceback
        pytest.fail(str(error))
    log = [json.loads(line) for line in (tmp_path / "run" / "folds" / "log.jsonl").read_text().splitlines()]
    assert result.folds["n_lanes"] == 40
    # reads of the data: the first, which sums up the initial w, the passes of the slowest lane, its certificate
    assert len(log) <= 1.2 * result.folds["passes"] + 2

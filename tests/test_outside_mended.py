"""Wrong answers that were given once, from outside: by the command line, public names and files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from command_line import run, run_json

import streamcd


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of five features with numbers to predict, made from ``prices.csv`` beside it."""
    folder = tmp_path_factory.mktemp("prices")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 5))
    y = X @ rng.normal(size=5) + rng.normal(size=300)
    lines = [",".join(f"{value:.3f}" for value in (*row, target)) for row, target in zip(X, y, strict=True)]
    (folder / "prices.csv").write_text("a,b,c,d,e,price\n" + "\n".join(lines) + "\n")
    run_json("convert", folder / "prices.csv", folder / "data", "--target", "price")
    return folder / "data"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A file of libsvm text with two classes."""
    rng = np.random.default_rng(1)
    rows = [f"{i % 2} 1:{rng.normal() + i % 2:.3f} 2:{rng.normal():.3f}" for i in range(80)]
    (tmp_path / "rows.txt").write_text("\n".join(rows) + "\n")
    return tmp_path / "rows.txt"


def test_l1_with_a_free_bias_trains_on_a_narrow_table(prices: Path, tmp_path: Path) -> None:
    """The bias was still open when the method was chosen, and the refusal was told as a lack of memory."""
    options = ["--loss", "squared_error", "--penalty", "l1", "--l1", "10", "--unpenalized-bias"]
    result = run_json("train", prices, tmp_path / "run", *options)
    assert result["converged"]


def test_a_refusal_in_the_choice_of_a_method_is_told_as_itself(prices: Path, tmp_path: Path) -> None:
    done = run("train", prices, tmp_path / "run", "--loss", "hinge", "--penalty", "l1")
    assert done.returncode == 2
    assert "--penalty l2" in done.stderr
    assert "fit" not in done.stderr


def test_training_on_targets_takes_squared_error_by_default(prices: Path, tmp_path: Path) -> None:
    result = run_json("train", prices, tmp_path / "run")
    by_name = run_json("train", prices, tmp_path / "named", "--loss", "squared_error")
    assert result["primal_objective"] == by_name["primal_objective"]
    assert run("train", prices, tmp_path / "hinge", "--loss", "squared_hinge").returncode == 2


def test_the_end_of_a_run_is_one_record(prices: Path, tmp_path: Path) -> None:
    """A looser tolerance let the run converge, and `info` went on to say that it had not."""
    path = tmp_path / "run"
    assert not run_json("train", prices, path, "--max-passes", "3", "--tol", "1e-12")["converged"]
    ended = run_json("resume", path, "--tol", "0.5")
    assert (ended["converged"], ended["stop_reason"]) == (True, "gap")
    told = run_json("info", path)
    assert (told["state"], told["stop_reason"]) == ("converged", "gap")
    assert run_json("info", path / "model")["certificate"]["converged"]
    again = run_json("resume", path)
    assert (again["converged"], again["stop_reason"]) == (True, "gap")


def test_the_memory_that_a_refusal_names_suffices(text: Path, tmp_path: Path) -> None:
    run_json("convert", text, tmp_path / "data")
    needed = set()
    for memory in ("20MB", "100MB", "135MB"):
        done = run("train", tmp_path / "data", tmp_path / "run", "--memory", memory)
        assert done.returncode == 2
        needed.add(done.stderr.rpartition(" needed")[0].rpartition("= ")[2])
    (named,) = needed
    assert run_json("train", tmp_path / "data", tmp_path / "run", "--memory", named.replace(" ", ""))[
        "converged"
    ]


def _damaged() -> Any:
    X = sp.csr_matrix(np.eye(6))
    X.indptr[3] = 10**6
    return X


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda folder: streamcd.convert((_damaged(), np.arange(6) % 2), folder / "new"), ValueError),
        (lambda folder: streamcd.LinearSVC().fit(_damaged(), np.arange(6) % 2), ValueError),
        (lambda folder: streamcd.open(folder / "nowhere"), ValueError),
        (lambda folder: streamcd.load_model(folder), ValueError),
        (lambda folder: streamcd.resume(folder), ValueError),
        (lambda folder: streamcd.train("data", folder / "run", loss="none such"), ValueError),
        (lambda folder: streamcd.train("data", folder / "run", memory="a lot"), ValueError),
    ],
)
def test_wrong_arguments_and_bad_data_are_value_errors(call: Any, kind: type, tmp_path: Path) -> None:
    with pytest.raises(kind) as caught:
        call(tmp_path)
    assert isinstance(caught.value, streamcd.StreamcdError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_failures_of_the_machine_are_os_errors() -> None:
    failures = [kind for kind in _kinds(streamcd.StreamcdError) if getattr(kind, "exit_status", 2) == 1]
    assert failures
    assert all(issubclass(kind, OSError) for kind in failures)


def _kinds(base: type) -> set[type]:
    return {base}.union(*map(_kinds, base.__subclasses__()))


def test_a_power_cut_at_the_end_of_columns_leaves_nothing_for_good(text: Path, tmp_path: Path) -> None:
    """The rename of the finished layout was durable, the removal of its old name was not."""
    data = tmp_path / "data"
    run_json("convert", text, data)
    run_json("columns", data)
    left = data / ".columns.partial"
    left.mkdir()
    (left / "lock").write_text("streamcd works here\n")
    for file in (data / "columns").rglob("*"):
        (left / file.relative_to(data)).parent.mkdir(parents=True, exist_ok=True)
        (left / file.relative_to(data)).write_bytes(file.read_bytes())
    assert run("columns", data).returncode == 2  # it is there
    assert not left.exists()


def test_evaluate_counts_labels_that_the_model_does_not_know(text: Path, tmp_path: Path) -> None:
    """The warning listed, as if these were the unknown ones, those that it does know."""
    run_json("convert", text, tmp_path / "data")
    run_json("train", tmp_path / "data", tmp_path / "run")
    (tmp_path / "other.txt").write_text("7 1:1\n0 1:2\n")
    done = run("evaluate", tmp_path / "other.txt", tmp_path / "run", "--json")
    assert done.returncode == 0
    (warning,) = [line for line in done.stderr.splitlines() if "does not know" in line]
    assert "1 row" in warning
    assert "(0, 1)" not in warning


@pytest.mark.parametrize("name", ["x.xlsx", "x.json", "x.feather", "x"])
def test_predictions_in_an_unknown_format_are_refused(name: str, text: Path, tmp_path: Path) -> None:
    run_json("convert", text, tmp_path / "data")
    run_json("train", tmp_path / "data", tmp_path / "run")
    done = run("predict", text, tmp_path / "run", "-o", tmp_path / name)
    assert done.returncode == 2
    assert not (tmp_path / name).exists()


def test_converting_fractions_as_classes_names_target(prices: Path, tmp_path: Path) -> None:
    done = run("convert", prices.parent / "prices.csv", tmp_path / "data", "--label", "price")
    assert done.returncode == 0
    assert "--target" in done.stdout + done.stderr

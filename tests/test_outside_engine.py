"""Trainings from outside: groups of lanes, shrinking out of core, files of others, one JSON object a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run, run_json

import streamcd


def rows(n_rows: int = 400, n_features: int = 12, seed: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Make rows with noisy scores for three classes."""
    rng = np.random.default_rng(seed)
    X = (rng.random((n_rows, n_features)) < 0.5) * rng.integers(-400, 400, (n_rows, n_features)) / 128
    return X, X @ rng.normal(size=(n_features, 3)) + rng.normal(size=(n_rows, 3))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, np.ndarray, np.ndarray]]:
    """Datasets by what they predict, each with its rows and labels."""
    folder, (X, scores) = tmp_path_factory.mktemp("made"), rows()
    labels = {"two": (scores[:, 0] > 0) * 1.0, "three": scores.argmax(axis=1) + 1.0, "numbers": scores[:, 0]}
    found = {}
    for name, y in labels.items():
        dataset = streamcd.convert((X, y), folder / name, target=name == "numbers", dtype="float64")
        streamcd.make_columns(dataset)
        found[name] = dataset.path, X, y
    return found


def test_the_violation_rule_of_liblinear_ends_a_training(made: Any, tmp_path: Path) -> None:
    path = made["two"][0]
    found = run_json("train", path, tmp_path / "run", "-s", "3", "-c", "0.1", "-e", "0.01")
    assert (found["converged"], found["stop_reason"]) == (True, "violation")
    assert found["violation"] <= 0.01
    assert run("train", path, tmp_path / "both", "-e", "0.01", "--tol", "0.1").returncode == 2


def test_values_of_c_that_do_not_fit_together_end_where_each_alone_ends(tmp_path: Path) -> None:
    X, scores = rows()
    (tmp_path / "text").write_text(
        "".join(
            f"{int(score > 0)} " + " ".join(f"{j + 1}:{row[j]}" for j in np.flatnonzero(row)) + "\n"
            for row, score in zip(X, scores[:, 0], strict=True)
        )
    )
    run_json("convert", tmp_path / "text", tmp_path / "data", "--n-features", "7000000")
    options = ["--loss", "log_loss", "--acceleration", "none", "--tol", "1e-5", "--memory", "300MB"]
    both = run_json("train", tmp_path / "data", tmp_path / "both", *options, "-C", "0.01,0.1")
    assert both["peak_memory_bytes"] > 0
    for lane in both["lanes"]:
        alone = run_json("train", tmp_path / "data", tmp_path / "alone", *options, "-C", lane["C"], "--force")
        assert lane["primal_objective"] == pytest.approx(alone["primal_objective"], rel=2e-5)


def test_shrinking_out_of_core_reads_less_and_ends_at_the_optimum(tmp_path: Path) -> None:
    X, scores = rows(3000, 10)
    data = streamcd.convert((X, (scores[:, 0] > 0) * 1.0), tmp_path / "data", chunk_size="4kB")
    options: dict[str, Any] = {
        "loss": "hinge",
        "C": 0.5,
        "acceleration": "none",
        "max_passes": 5000,
        "bias": 1.0,
    }
    streamed = streamcd.train(data, tmp_path / "streamed", plan=(3000, 600), tol=1e-4, **options)
    in_memory = streamcd.train(data, tmp_path / "memory", tol=1e-4, **options)
    assert streamed.converged
    assert streamed.primal_objective == pytest.approx(in_memory.primal_objective, rel=2e-4)
    read = [line for line in streamed.history.to_pylist() if line["kind"] == "train"]
    assert min(line["bytes_read"] for line in read) < 0.8 * read[0]["bytes_read"]


# ---------------------------------------------------------------------------------------------------------------------
# Files of others


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A folder with a source, a dataset, a run and LIBLINEAR's model."""
    X, scores = rows(60)
    lines = [
        "a,b,y",
        *(f"{row[0]},{row[1]},{int(score > 0)}" for row, score in zip(X, scores[:, 0], strict=True)),
    ]
    (tmp_path / "source.csv").write_text("\n".join(lines) + "\n")
    run_json("convert", tmp_path / "source.csv", tmp_path / "data", "--label", "y")
    run_json("train", tmp_path / "data", tmp_path / "run", "--loss", "log_loss")
    run_json("export", tmp_path / "run", tmp_path / "text.model")
    return tmp_path


OUTPUTS = {
    "predict onto its source": "predict source.csv run -o source.csv",
    "convert onto its source": "convert source.csv source.csv --label y",
    "convert into a folder of others": "convert source.csv . --label y",
    "train into the dataset": "train data data",
    "export onto the run": "export run run",
    "export onto a file of another kind": "export run source.csv --format liblinear",
    "import onto its source": "import text.model text.model",
    "report onto a file of another kind": "report run -o source.csv",
    "predict behind a link": "predict source.csv run -o link.csv",
    "export behind a link": "export run link.model",
}


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("force", [False, True])
def test_an_output_replaces_no_input_and_no_file_of_another_kind(
    name: str, force: bool, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained)
    (trained / "link.csv").symlink_to("source.csv")
    (trained / "link.model").symlink_to("text.model")
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    done = run(*OUTPUTS[name].split(), *(["--force"] if force else []))
    if done.returncode == 0:  # a link is replaced itself, and not what is behind it
        assert "link" in name
    else:
        assert done.returncode == 2
        assert len([line for line in done.stderr.splitlines() if "error:" in line]) == 1
    links = {trained / "link.csv", trained / "link.model"}
    after = {path: path.read_bytes() for path in before if path not in links}
    assert after == {path: content for path, content in before.items() if path not in links}


COMMANDS = [
    *(
        "convert source.csv new --label y",
        "columns data",
        "info data",
        "info run",
        "info run/model",
        "verify data",
    ),
    *(
        "verify run",
        "train data other --max-passes 2 --tol 0",
        "resume run",
        "tune data search -C 0.1,1 --cv 2",
    ),
    *(
        "weights run",
        "evaluate source.csv run",
        "predict source.csv run -o out.parquet --proba",
        "export run m.json",
    ),
    *("export data out.txt --format libsvm", "import text.model imported", "report run -o report.html"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_prints_one_json_object(
    command: str, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained)
    done = run(*command.split(), "--json")
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict)
    failed = run(*command.split()[:1], "nowhere", "nothing", "--json")
    assert failed.returncode == 2
    assert json.loads(failed.stdout)["exit_status"] == 2

"""The bias of a training that names none: by what the dataset was made from, told, recorded, the same in every method."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
from heard import Heard
from test_tables import write_table

import streamcd
from streamcd import Dataset
from streamcd.core.errors import UsageError

N_ROWS = 600


def options_of(run: Path) -> dict[str, Any]:
    """What a run records of its options."""
    return json.loads((run / "config.json").read_text())["options"]


def of_bias(heard: Heard) -> list[str]:
    """What was said of the bias."""
    return [text[text.index("bias ") :] for text in heard.messages if "bias " in text]


def unbalanced_rows() -> tuple[np.ndarray, np.ndarray]:
    """Three Gaussian columns, whose means are far from the origin; 7 % of the rows are positive."""
    rng = np.random.default_rng(0)
    y = np.where(np.arange(N_ROWS) % 14 == 0, 1, -1)
    x = rng.standard_normal((N_ROWS, 3)) + np.where(y[:, None] > 0, 1.0, 0.0)
    return x.astype(np.float32).astype(np.float64), y


def table() -> pa.Table:
    x, y = unbalanced_rows()
    return pa.table({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "label": y})


def _libsvm_file(path: Path) -> Path:
    x, y = unbalanced_rows()
    lines = [
        f"{label} " + " ".join(f"{j + 1}:{v!r}" for j, v in enumerate(row))
        for label, row in zip(y, x.tolist(), strict=True)
    ]
    path.with_suffix(".txt").write_text("\n".join(lines) + "\n")
    return path.with_suffix(".txt")


def _npz_file(path: Path) -> Path:
    x, y = unbalanced_rows()
    found = sp.csr_array(x)
    np.savez(
        path, format="csr", shape=x.shape, data=found.data, indices=found.indices, indptr=found.indptr, y=y
    )
    return path.with_suffix(".npz")


def _npy_file(path: Path) -> Path:
    np.save(path.with_suffix(".npy"), np.column_stack([unbalanced_rows()[0], unbalanced_rows()[1]]))
    return path.with_suffix(".npy")


SOURCES: dict[str, tuple[Callable[[Path], Any], dict[str, str], str]] = {
    "csv": (lambda path: write_table(table(), path.with_suffix(".csv")), {"label": "label"}, "table"),
    "parquet": (lambda path: write_table(table(), path.with_suffix(".parquet")), {"label": "label"}, "table"),
    "frame": (lambda path: table(), {"label": "label"}, "table"),
    "batches of frames": (lambda path: iter([table(), table()]), {"label": "label"}, "table"),
    "npy": (_npy_file, {"label": "-1"}, "dense array"),
    "array": (lambda path: unbalanced_rows(), {}, "dense array"),
    "npz": (_npz_file, {}, "sparse matrix"),
    "csr": (lambda path: (sp.csr_array(unbalanced_rows()[0]), unbalanced_rows()[1]), {}, "sparse matrix"),
    "libsvm": (_libsvm_file, {}, "libsvm text"),
}


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Made from an array, so that its trainings have a bias of 1."""
    return streamcd.convert(unbalanced_rows(), tmp_path_factory.mktemp("bias") / "dense", dtype="float64")


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The same rows, made from a sparse matrix: trainings have no bias."""
    x, y = unbalanced_rows()
    return streamcd.convert((sp.csr_array(x), y), tmp_path_factory.mktemp("bias") / "sparse", dtype="float64")


@pytest.mark.parametrize("name", SOURCES)
def test_the_default_bias_is_1_for_tables_and_dense_arrays_and_none_for_sparse_rows(
    tmp_path: Path, name: str
) -> None:
    make, options, made_from = SOURCES[name]
    dataset = streamcd.convert(make(tmp_path / "source"), tmp_path / "data", **options)  # type: ignore[arg-type]
    told, bias = Heard(), 1.0 if made_from in ("table", "dense array") else -1.0
    result = streamcd.train(dataset, tmp_path / "run", listener=told)
    assert dataset.made_from == streamcd.open(tmp_path / "data").info()["made_from"] == made_from
    assert result.model.bias == options_of(tmp_path / "run")["bias"] == bias
    assert len(of_bias(told)) == 1
    assert f"bias {'1' if bias > 0 else 'none'}: made from" in of_bias(told)[0]
    assert made_from in of_bias(told)[0]


def test_what_a_dataset_was_made_from_does_not_change_its_fingerprint(
    dense: Dataset, sparse: Dataset
) -> None:
    assert dense.fingerprint == sparse.fingerprint
    assert dense.verify() == sparse.verify() == []


def test_an_unbalanced_table_is_learned_by_default(tmp_path: Path, dense: Dataset) -> None:
    """A plane through the origin is hardly better than a coin."""
    by_default, without = (
        streamcd.evaluate(dense, streamcd.train(dense, tmp_path / name, loss="log_loss", bias=bias).model)
        for name, bias in (("default", "auto"), ("none", "none"))
    )
    assert by_default["accuracy"] > 0.92 > 0.7 > without["accuracy"]
    assert by_default["log_loss"] < 0.25 < 0.6 < without["log_loss"]


def test_tune_chooses_the_bias_likewise(tmp_path: Path, dense: Dataset, sparse: Dataset) -> None:
    for dataset, bias in ((dense, 1.0), (sparse, -1.0)):
        told = Heard()
        path = tmp_path / f"{bias}"
        result = streamcd.tune(dataset, path, C=[0.1, 1.0], cv=2, listener=told)
        assert result.model.bias == bias
        assert len(of_bias(told)) == 1
        assert {options_of(path / part)["bias"] for part in (".", "folds", "best")} == {bias}


@pytest.mark.parametrize(("asked", "bias"), [("none", -1.0), (-1, -1.0), (0.5, 0.5), (1.0, 1.0)])
def test_a_bias_that_is_given_is_taken(tmp_path: Path, dense: Dataset, asked: Any, bias: float) -> None:
    told = Heard()
    assert streamcd.train(dense, tmp_path / "run", bias=asked, listener=told).model.bias == bias
    assert of_bias(told) == [f"bias {'none' if bias < 0 else f'{bias:g}'}: as asked"]


def test_no_bias_by_default_has_the_bits_of_no_bias_as_asked(tmp_path: Path, sparse: Dataset) -> None:
    by_default, asked = (
        streamcd.train(sparse, tmp_path / f"{bias}", bias=bias).model.weights for bias in ("auto", -1.0)
    )
    np.testing.assert_array_equal(by_default, asked)


def test_a_bias_that_is_no_number_is_refused(tmp_path: Path, dense: Dataset) -> None:
    with pytest.raises(UsageError, match=r"bias: expected auto, none or a number .*found 'some'"):
        streamcd.train(dense, tmp_path / "run", bias="some")
    with pytest.raises(UsageError, match="needs a bias > 0"):
        streamcd.train(dense, tmp_path / "run", bias="none", unpenalized_bias=True, method="primal")
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------------------------------------------------------
# Methods: the bias by default is a column of ones


def test_a_model_with_the_default_bias_goes_to_liblinear_and_back(tmp_path: Path, dense: Dataset) -> None:
    model = streamcd.train(dense, tmp_path / "run").model
    streamcd.export(model, tmp_path / "model.txt")
    lines = (tmp_path / "model.txt").read_text().splitlines()
    assert "bias 1" in lines
    assert len(lines) == lines.index("w") + 1 + dense.n_features + 1
    back, x = command_line.imported(tmp_path / "model.txt"), unbalanced_rows()[0]
    np.testing.assert_array_equal(back.decision_function(x), model.decision_function(x))


# ---------------------------------------------------------------------------------------------------------------------
# Runs that go on, or start from others


def test_a_run_records_its_bias_and_resumes_with_it(tmp_path: Path, dense: Dataset) -> None:
    with pytest.warns(streamcd.ConvergenceWarning):
        streamcd.train(dense, tmp_path / "run", max_passes=2, tol=1e-9)
    assert options_of(tmp_path / "run")["bias"] == 1.0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["bias_because"].startswith("made from a dense array")
    resumed = streamcd.resume(tmp_path / "run", max_passes=2000)
    whole = streamcd.train(dense, tmp_path / "whole", tol=1e-9, max_passes=2000)
    assert resumed.model.bias == 1.0
    assert resumed.primal_objective == pytest.approx(whole.primal_objective, rel=2e-9)
    # the same command again, of a batch queue
    again = streamcd.train(dense, tmp_path / "whole", tol=1e-9, max_passes=2000, resume=True)
    np.testing.assert_array_equal(again.model.weights, whole.model.weights)


@pytest.mark.parametrize("bias", [-1.0, 1.0, 2.0])
def test_a_training_that_starts_from_a_run_has_its_bias(
    tmp_path: Path, dense: Dataset, sparse: Dataset, bias: float
) -> None:
    for name, dataset in (("dense", dense), ("sparse", sparse)):
        first, told = tmp_path / name, Heard()
        streamcd.train(dataset, first, bias=bias)
        found = streamcd.train(dataset, tmp_path / f"{name}-2", C=2.0, start_from=first, listener=told)
        assert found.model.bias == bias
        assert found.converged
        assert of_bias(told)[0].startswith(
            f"bias {'none' if bias < 0 else f'{bias:g}'}: that of the run it starts from"
        )


# ---------------------------------------------------------------------------------------------------------------------
# What is said


def test_info_says_which_bias_and_why(tmp_path: Path, dense: Dataset, sparse: Dataset) -> None:
    for dataset, bias, text in ((dense, 1.0, "1"), (sparse, -1.0, "none")):
        run = tmp_path / text
        command_line.run("train", dataset.path, run)
        of_data, of_run = command_line.run_json("info", dataset.path), command_line.run_json("info", run)
        because = f"made from a {dataset.made_from}"
        assert (of_data["bias"], of_run["options"]["bias"], of_run["model"]["bias"]) == (bias, bias, bias)
        assert of_data["bias_because"] == of_run["bias_because"]
        assert of_run["bias_because"].startswith(because)
        for path in (dataset.path, run):
            lines = command_line.run("info", path).stdout.splitlines()
            assert sum(line.split()[:3] == ["bias", f"{text}:", "made"] for line in lines) == 1

"""Datasets of numbers to predict: the same whatever they are made from, said everywhere, refused where classes are meant."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

import streamcd
from streamcd import Dataset, StreamcdError

N_ROWS = 300


def made_rows() -> tuple[np.ndarray, np.ndarray]:
    """Dense rows, and targets that float32 does not hold."""
    rng = np.random.default_rng(0)
    X = np.where(rng.random((N_ROWS, 4)) < 0.7, rng.normal(size=(N_ROWS, 4)), 0.0).astype(np.float32)
    X[0] = 1.0
    return X.astype(np.float64), X @ np.arange(1.0, 5.0) / 3 + rng.normal(size=N_ROWS) * 1e-9


def convert(source: Any, *arguments: Any, **options: Any) -> Dataset:
    made: Dataset = streamcd.convert(source, *arguments, **options)
    return made


def text_of(X: np.ndarray, y: np.ndarray, path: Path) -> Path:
    rows = (" ".join(f"{j + 1}:{v!r}" for j, v in enumerate(row) if v) for row in X.tolist())
    path.write_text("".join(f"{target!r} {row}\n" for target, row in zip(y.tolist(), rows, strict=True)))
    return path


def frame_of(X: np.ndarray, y: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({**{f"x{j}": X[:, j] for j in range(X.shape[1])}, "y": y})


def csv_of(X: np.ndarray, y: np.ndarray, path: Path) -> Path:
    frame_of(X, y).to_csv(path, index=False)
    return path


def parquet_of(X: np.ndarray, y: np.ndarray, path: Path) -> Path:
    pq.write_table(pa.table(frame_of(X, y)), path)
    return path


def npy_of(X: np.ndarray, y: np.ndarray, path: Path) -> Path:
    np.save(path.with_suffix(".npy"), np.column_stack([X, y]))
    return path.with_suffix(".npy")


def npz_of(X: np.ndarray, y: np.ndarray, path: Path) -> Path:
    matrix = sp.csr_array(X)
    arrays = {"indptr": matrix.indptr, "indices": matrix.indices, "data": matrix.data, "shape": matrix.shape}
    np.savez(path.with_suffix(".npz"), format="csr", target=y, **arrays)
    return path.with_suffix(".npz")


SOURCES: dict[str, tuple[Callable[[np.ndarray, np.ndarray, Path], Any], dict[str, Any]]] = {
    "libsvm": (text_of, {"target": True}),
    "csv": (csv_of, {"target": "y"}),
    "parquet": (parquet_of, {"target": "y"}),
    "npy": (npy_of, {"target": "-1"}),
    "npz": (npz_of, {"target": True}),
    "arrays": (lambda X, y, path: (X, y), {"target": True}),
    "sparse": (lambda X, y, path: (sp.csr_array(X), y), {"target": True}),
    "frame": (lambda X, y, path: frame_of(X, y), {"target": "y"}),
    "frame and series": (lambda X, y, path: (frame_of(X, y).drop(columns="y"), pd.Series(y)), {"target": True}),
}  # fmt: skip


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_the_same_targets_to_the_bit(kind: str, tmp_path: Path) -> None:
    X, y = made_rows()
    make, options = SOURCES[kind]
    dataset = convert(make(X, y, tmp_path / "source"), tmp_path / "data", **options)
    assert dataset.labels().tobytes() == y.tobytes()
    assert dataset.classes is None
    assert dataset.class_counts is None
    assert dataset.targets == {"min": y.min(), "max": y.max()} == dataset.info()["targets"]
    assert f"targets from {y.min():.6g} to {y.max():.6g}" in repr(dataset)
    assert dataset.verify() == []


def test_text_of_integers_holds_targets_where_they_are_asked_for_and_another_fingerprint(
    tmp_path: Path,
) -> None:
    X, y = made_rows()
    source = text_of(X, np.rint(y) + 0.0, tmp_path / "source")
    classes, targets = (
        convert(source, tmp_path / "classes"),
        convert(source, tmp_path / "targets", target=True),
    )
    assert classes.classes is not None
    assert targets.classes is None
    assert classes.fingerprint != targets.fingerprint
    assert classes.info()["data_digest"] == targets.info()["data_digest"]


def test_no_table_of_classes_is_made_for_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise AssertionError("targets are not counted")

    monkeypatch.setattr("streamcd.conversion.feature_statistics.np.unique", refuse)
    convert(made_rows(), tmp_path / "data", target=True)


@pytest.mark.usefixtures("lend")
def test_workers_do_not_change_a_dataset_of_targets(tmp_path: Path) -> None:
    X, y = made_rows()
    source = csv_of(X, y, tmp_path / "source")
    alone = convert(source, tmp_path / "alone", target="y", chunk_size="2KB", shard_size="4KB")
    shared = convert(
        source, tmp_path / "shared", target="y", chunk_size="2KB", shard_size="4KB", workers=2, memory="2GB"
    )
    assert shared.fingerprint == alone.fingerprint
    assert shared.targets == alone.targets


def test_a_manifest_with_another_range_of_targets_is_found(tmp_path: Path) -> None:
    from streamcd.core.files import write_metadata
    from streamcd.dataset.schema import ROW_LAYOUT

    convert(made_rows(), tmp_path / "data", target=True)
    path = tmp_path / "data" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["targets"]["max"] += 1.0
    write_metadata(path, ROW_LAYOUT, manifest)
    assert [problem.rpartition(": ")[2] for problem in streamcd.open(tmp_path / "data").verify()] == [
        "the range of the targets differs from the rows'"
    ]


@pytest.mark.parametrize(
    ("lines", "options", "said"),
    [
        (["1,0.5", "2,word"], {"target": "y"}, "expected a number"),
        (["1,0.5", "2,inf"], {"target": "y"}, "expected a target, found inf"),
        (["1,0.5", "2,"], {"target": "y"}, "expected a target, found an empty field"),
        (["1,0.5"], {"target": True}, "give target, one of x, y"),
        (["1,0.5"], {"target": "z"}, "column 'z': expected one of the table (target)"),
        (["1,0.5"], {"target": "y", "label": "x"}, "label x and target y exclude each other"),
        (["1,a", "2,b"], {"target": "y"}, "expected a number"),
    ],
)
def test_what_is_no_target_is_refused_in_one_line(
    lines: list[str], options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("\n".join(["x,y", *lines]) + "\n")
    with pytest.raises(StreamcdError) as raised:
        convert(tmp_path / "a.csv", tmp_path / "data", **options)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "data").exists()


def test_strings_are_no_targets(tmp_path: Path) -> None:
    X, y = made_rows()
    for source, target in ((frame_of(X, y.astype(str)), "y"), ((X, y.astype(str)), True)):
        with pytest.raises(StreamcdError, match="expected numbers as targets, one"):
            convert(source, tmp_path / "data", target=target)


def test_a_classifier_on_targets_is_refused_with_the_way_out(tmp_path: Path) -> None:
    X, y = made_rows()
    targets = convert((X, y), tmp_path / "targets", target=True)
    with pytest.raises(StreamcdError, match="expected classes for the loss hinge, found numbers to predict"):
        streamcd.train(targets, tmp_path / "run", loss="hinge")
    classes = convert((X, np.where(y > 0, 1, -1)), tmp_path / "classes")
    run = streamcd.train(classes, tmp_path / "run", tol=0.5)
    for use in (streamcd.evaluate, lambda data, model: streamcd.predict(data, model, tmp_path / "out.csv")):
        with pytest.raises(StreamcdError, match=r"expected rows with classes .* convert without target"):
            use(targets, run.run)
    with pytest.raises(StreamcdError, match="target and like"):
        convert((X, y), tmp_path / "more", target=True, like=tmp_path / "classes")


def test_many_labels_with_fractions_are_told_and_refused_as_classes(tmp_path: Path) -> None:
    X, y = made_rows()
    real = text_of(X, y, tmp_path / "a.txt")
    way_out = (
        "convert with --target to predict numbers; if they are classes, write them as whole numbers or names"
    )
    assert way_out in " ".join(command_line.run("convert", real, tmp_path / "data").stdout.split())
    said = rf"expected classes for the loss squared_hinge, found 300 different numbers such as \S+; {way_out}"
    for command in (("train",), ("tune", "-C", "1,2")):
        done = command_line.run(command[0], tmp_path / "data", tmp_path / "run", *command[1:])
        assert done.returncode == 2
        assert re.search(said, done.stderr)
    with pytest.raises(StreamcdError, match=said.replace("--target", "target")):
        streamcd.LinearSVC().fit(tmp_path / "data")


@pytest.mark.parametrize("labels", [np.arange(40.0), np.arange(1.0, 5.5, 0.5)])
def test_whole_numbers_and_a_few_with_fractions_are_classes(tmp_path: Path, labels: np.ndarray) -> None:
    X, _ = made_rows()
    data = convert((X, np.resize(labels, N_ROWS)), tmp_path / "data")
    assert streamcd.train(data, tmp_path / "run", tol=0.5).converged


def test_the_command_line_takes_targets_with_and_without_a_column(tmp_path: Path) -> None:
    X, y = made_rows()
    text, csv = text_of(X, y, tmp_path / "a.txt"), csv_of(X, y, tmp_path / "a.csv")
    for source, target in ((text, ["--target"]), (csv, ["--target", "y"])):
        found = command_line.run_json("convert", source, tmp_path / "data", "--force", *target)
        assert found["classes"] is None
        assert found["targets"] == {"min": y.min(), "max": y.max()}

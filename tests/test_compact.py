"""Datasets of the features that occur: models speak the source's indices; rows are appended as elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pandas as pd
import pytest
from heard import Heard

import streamcd
from streamcd import Dataset
from streamcd.core.errors import DatasetError, ModelError
from streamcd.dataset.source_features import indices_of

FAR = 2**40


def write_text(path: Path, n_rows: int, *, seed: int, least: int = 0, far: bool = True) -> Path:
    """Write libsvm text with indices far apart, from the square of `least` on, half of them beyond 2^40."""
    random = np.random.default_rng(seed)
    choice = 7 + np.arange(least, least + 20) ** 2
    choice = np.concatenate([choice, FAR + choice]) if far else choice
    lines = []
    for row in range(n_rows):
        index = np.union1d(random.choice(choice, 4, replace=False), choice[row % choice.size])
        value = random.normal(size=index.size)
        label = 1 if (value * np.cos(index % 97)).sum() > 0 else -1
        lines.append(f"{label} " + " ".join(f"{i}:{v:.4f}" for i, v in zip(index, value, strict=True)))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def base(tmp_path: Path) -> Dataset:
    return streamcd.convert(
        write_text(tmp_path / "a.txt", 300, seed=0),
        tmp_path / "data",
        compact=True,
        chunk_size=4000,
        dtype="float64",
    )


def train(dataset: Dataset, run: Path, **options: Any) -> streamcd.Model:
    streamcd.train(dataset, run, tol=1e-10, method="dual", **options)
    return streamcd.load_model(run)


def by_index(model: streamcd.Model) -> dict[int, float]:
    """The weights that are not 0, by index in the source."""
    index = model.source_indices.of(np.arange(model.n_features))
    weights = dict(zip(index.tolist(), model.source_weights[:, 0].tolist(), strict=True))
    return {number: weight for number, weight in weights.items() if weight}


def predictions(data: Any, run: Path) -> np.ndarray:
    out = run.parent / "predictions.parquet"
    streamcd.predict(data, run, out, force=True)
    return pd.read_parquet(out)["decision"].to_numpy()


@pytest.mark.usefixtures("lend")
def test_files_and_datasets_are_predicted_by_the_indices_of_the_source(tmp_path: Path, base: Dataset) -> None:
    train(base, tmp_path / "run")
    decisions = predictions(base, tmp_path / "run")
    assert np.array_equal(predictions(tmp_path / "a.txt", tmp_path / "run"), decisions)
    others = write_text(tmp_path / "b.txt", 90, seed=1, least=10)
    expected, heard = predictions(others, tmp_path / "run"), Heard()
    assert np.ptp(expected) > 0
    own = streamcd.convert(others, tmp_path / "own", compact=True, dtype="float64")
    assert np.array_equal(predictions(own, tmp_path / "run"), expected)
    like = streamcd.convert(others, tmp_path / "like", like=base.path, dtype="float64")
    assert like.n_features == base.n_features
    assert np.array_equal(predictions(like, tmp_path / "run"), expected)
    streamcd.predict(others, tmp_path / "run", tmp_path / "out.csv", workers=2, listener=heard)
    assert any("of features that are not among the model's 40" in text for text in heard.warnings)


def test_weights_and_exports_are_those_of_the_indices_of_the_source(tmp_path: Path) -> None:
    text, heard = write_text(tmp_path / "a.txt", 200, seed=0, far=False), Heard()
    models = []
    for name, compact in (("compact", True), ("plain", False)):
        data = streamcd.convert(text, tmp_path / f"data {name}", compact=compact, scale="maxabs")
        models.append(train(data, tmp_path / name))
        streamcd.export(models[-1], tmp_path / f"{name}.txt", listener=heard)
    assert by_index(models[0]) == by_index(models[1])
    assert (tmp_path / "compact.txt").read_text() == (tmp_path / "plain.txt").read_text()
    (largest,) = command_line.run_json("weights", tmp_path / "compact", "--top", 1)["classes"][0]["weights"]
    assert largest["name"] == f"feature {largest['index']}"
    assert largest["index"] in by_index(models[1])
    models[0].save(tmp_path / "copy")
    assert by_index(streamcd.load_model(tmp_path / "copy")) == by_index(models[0])


def test_indices_that_liblinear_cannot_hold_are_refused(tmp_path: Path, base: Dataset) -> None:
    model = train(base, tmp_path / "run")
    with pytest.raises(ModelError, match="LIBLINEAR's indices are integers of 32 bits"):
        streamcd.export(model, tmp_path / "model.txt")


def test_frames_of_lists_are_predicted_by_their_indices(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = [np.sort(random.choice(30, 3, replace=False)) ** 5 for _ in range(80)]
    frame = pd.DataFrame(
        {"i": rows, "v": list(random.normal(size=(80, 3))), "y": [int(row[0] > 2000) for row in rows]}
    )
    data = streamcd.convert(
        frame, tmp_path / "data", label="y", features="i:v", compact=True, dtype="float64"
    )
    model = train(data, tmp_path / "run")
    found = model.decision_function(frame)
    assert np.allclose(found, model.decision_function(data.to_scipy()[0]))
    assert model.feature_names(np.arange(3)) == [f"i[{k**5}]" for k in range(3)]
    assert sorted(by_index(model)) == sorted({int(index) for row in rows for index in row})


@pytest.mark.usefixtures("lend")
@pytest.mark.parametrize("workers", [1, 2])
def test_rows_of_tomorrow_are_merged_without_features_that_are_new(
    tmp_path: Path, base: Dataset, workers: int
) -> None:
    more, heard = write_text(tmp_path / "b.txt", 90, seed=1, least=10), Heard()
    later = streamcd.convert(
        more, tmp_path / "later", like=base.path, dtype="float64", listener=heard, workers=workers
    )
    lines = [line.split()[1:] for line in more.read_text().splitlines()]
    known = {7 + k * k for k in range(20)} | {FAR + 7 + k * k for k in range(20)}
    n_new = sum(int(entry.split(":")[0]) not in known for line in lines for entry in line)
    assert any(f"{n_new} entries ignored" in text for text in heard.messages)
    found = streamcd.merge([base, later], tmp_path / "all")
    assert (found.n_features, found.n_rows, found.verify()) == (40, 390, [])
    assert np.array_equal(indices_of(found).kept, indices_of(base).kept)
    train(found, tmp_path / "run")
    assert np.allclose(
        predictions(more, tmp_path / "run"), predictions(found, tmp_path / "run")[300:], rtol=1e-5
    )


def test_damaged_indices_are_named(base: Dataset) -> None:
    path = base.path / "indices.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    assert any("indices.parquet" in problem for problem in base.verify())
    path.unlink()
    with pytest.raises(DatasetError, match=r"indices\.parquet: the file is missing"):
        streamcd.open(base.path)

"""Rows that are appended to a dataset, what it has then, and what runs on it before see."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pandas as pd
import pytest
from heard import Heard

import streamcd
from streamcd import Dataset
from streamcd.conversion import staging
from streamcd.conversion.growing import Base, growing
from streamcd.conversion.plan import load_like
from streamcd.core.errors import DataError, DatasetError, EnvironmentFailure, UsageError


def write_text(
    path: Path, n_rows: int, *, seed: int, width: int = 40, labels: Sequence[int] = (-1, 1)
) -> Path:
    """Write libsvm text with features of 1 … `width`, all of which occur."""
    random = np.random.default_rng(seed)
    lines = []
    for row in range(n_rows):
        indices = np.union1d(random.choice(width, 5, replace=False), [row % width]) + 1
        entries = " ".join(f"{index}:{random.normal():.6f}" for index in indices)
        lines.append(f"{labels[random.integers(len(labels))]} {entries}\n")
    path.write_text("".join(lines))
    return path


@pytest.fixture
def base(tmp_path: Path) -> Dataset:
    return streamcd.convert(write_text(tmp_path / "a.txt", 600, seed=0), tmp_path / "data", chunk_size=8000)


def same_rows(dataset: Dataset, sources: Sequence[Path]) -> bool:
    """Compare a dataset's rows, in the order of the source, with those of files converted together."""
    together = streamcd.convert(sources, dataset.path.parent / "together", force=True)
    (X, y), (found, labels) = together.to_scipy(), dataset.to_scipy()
    return X.shape == found.shape and (found != X).nnz == 0 and np.array_equal(y, labels)


def test_appended_rows_come_behind_those_of_the_dataset(tmp_path: Path, base: Dataset) -> None:
    more = write_text(tmp_path / "b.txt", 50, seed=1)
    grown = streamcd.convert(more, base.path, append=True)
    assert same_rows(grown, [tmp_path / "a.txt", more])
    assert grown.verify() == []
    assert [batch["n_rows"] for batch in grown.batches] == [600, 50]


@pytest.mark.usefixtures("lend")
def test_equal_histories_have_equal_fingerprints_and_others_other_ones(tmp_path: Path, base: Dataset) -> None:
    first, second = (write_text(tmp_path / f"{seed}.txt", 30 + seed, seed=seed) for seed in (1, 2))
    other = streamcd.convert(tmp_path / "a.txt", tmp_path / "other", chunk_size=8000)
    for place, workers in ((base.path, 1), (other.path, 2)):
        streamcd.convert(first, place, append=True, workers=workers)
        streamcd.convert(second, place, append=True, workers=workers)
    assert streamcd.open(base.path).fingerprint == streamcd.open(other.path).fingerprint
    turned = streamcd.convert(tmp_path / "a.txt", tmp_path / "turned", chunk_size=8000)
    for more in (second, first):
        turned = streamcd.convert(more, turned.path, append=True)
    assert turned.fingerprint != streamcd.open(base.path).fingerprint


def test_a_run_goes_on_with_the_rows_that_it_began_with(tmp_path: Path, base: Dataset) -> None:
    options = {"max_passes": 2, "tol": 1e-9}
    for name in ("grown", "whole"):
        with pytest.warns(streamcd.ConvergenceWarning):
            streamcd.train(base.path, tmp_path / name, **options)
    with pytest.warns(streamcd.ConvergenceWarning):
        streamcd.resume(tmp_path / "whole", max_passes=4)
    streamcd.convert(write_text(tmp_path / "b.txt", 50, seed=1), base.path, append=True)
    with pytest.warns(streamcd.ConvergenceWarning):
        streamcd.resume(tmp_path / "grown", max_passes=4)
    weights = [streamcd.load_model(tmp_path / name).weights for name in ("grown", "whole")]
    assert np.array_equal(*weights)


def test_the_dataset_before_is_opened_by_its_fingerprint(tmp_path: Path, base: Dataset) -> None:
    more = write_text(tmp_path / "b.txt", 50, seed=1)
    once = streamcd.convert(more, base.path, append=True)
    twice = streamcd.convert(more, base.path, append=True)
    for before in (base, once):
        found = Dataset.open(twice.path, fingerprint=before.fingerprint)
        assert (found.fingerprint, found.info()) == (before.fingerprint, before.info())
        assert found.verify() == []
    with pytest.raises(DatasetError, match="another dataset"):
        Dataset.open(twice.path, fingerprint="0" * 32)


def test_features_and_labels_that_are_new_are_left_out_and_counted(tmp_path: Path, base: Dataset) -> None:
    more = write_text(tmp_path / "b.txt", 90, seed=1, width=45, labels=(-1, 1, 3))
    heard = Heard()
    grown = streamcd.convert(more, base.path, append=True, listener=heard)
    assert (grown.n_features, grown.classes.tolist()) == (40, [-1, 1])
    (said,) = [text for text in heard.messages if "left out" in text]
    assert "entries of features" in said
    assert f"{600 + 90 - grown.n_rows} rows of labels" in said
    assert grown.verify() == []


def test_nothing_appended_leaves_the_dataset_as_it_is(tmp_path: Path, base: Dataset) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    assert streamcd.convert(empty, base.path, append=True).fingerprint == base.fingerprint
    assert streamcd.convert(iter([]), base.path, append=True).fingerprint == base.fingerprint


def test_arrays_are_appended_from_python(tmp_path: Path) -> None:
    X, y = np.random.default_rng(0).normal(size=(200, 6)), np.arange(200) % 2
    grown = streamcd.convert((X[:150], y[:150]), tmp_path / "data")
    grown = streamcd.convert([(X[150:170], y[150:170]), (X[170:], y[170:])], grown.path, append=True)
    found, labels = grown.to_scipy()
    assert np.array_equal(found.toarray(), X.astype(np.float32))
    assert np.array_equal(labels, y)


def test_statistics_of_features_are_those_of_all_rows(tmp_path: Path, base: Dataset) -> None:
    more = write_text(tmp_path / "b.txt", 20, seed=1, width=30)
    grown = streamcd.convert(more, base.path, append=True)
    together = streamcd.convert([tmp_path / "a.txt", more], tmp_path / "together")
    found, expected = (
        {name: np.concatenate([block[name] for block in dataset.read_features()]) for name in columns}
        for dataset in (grown, together)
        for columns in [("feature", "n_entries", "min", "max", "mean", "mean_square", "index")]
    )
    for name, column in expected.items():
        np.testing.assert_allclose(found[name], column, rtol=1e-12, atol=1e-15)


def test_a_column_layout_is_for_runs_on_the_rows_before(tmp_path: Path, base: Dataset) -> None:
    streamcd.make_columns(base.path)
    with pytest.warns(streamcd.ConvergenceWarning):
        streamcd.train(base.path, tmp_path / "run", method="primal", max_passes=1, tol=1e-9)
    grown = streamcd.convert(write_text(tmp_path / "b.txt", 50, seed=1), base.path, append=True)
    assert grown.verify() == []
    with pytest.warns(streamcd.ConvergenceWarning):
        assert streamcd.resume(tmp_path / "run", max_passes=3).passes == 3
    with pytest.raises(DatasetError, match="rows that were appended since its column layout was made"):
        streamcd.train(base.path, tmp_path / "new", method="primal")
    streamcd.make_columns(base.path, force=True)
    assert grown.verify() == []


def test_a_flipped_byte_in_the_manifest_before_is_named(tmp_path: Path, base: Dataset) -> None:
    grown = streamcd.convert(write_text(tmp_path / "b.txt", 50, seed=1), base.path, append=True)
    earlier = base.path / "added-0001" / "earlier.json"
    content = json.loads(earlier.read_text())
    earlier.write_text(json.dumps({**content, "n_rows": 599}))
    assert any("earlier.json" in problem for problem in grown.verify())
    with pytest.raises(DatasetError, match=r"earlier\.json"):
        Dataset.open(base.path, fingerprint=base.fingerprint)


# ---------------------------------------------------------------------------------------------------------------------
# Tables


def people(n_rows: int, *, seed: int, names: Sequence[str], years: Sequence[int], first: int) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    dates = zip(random.choice(years, n_rows), random.integers(1, 9, n_rows), strict=True)
    days = [f"{year}-0{month}-01" for year, month in dates]
    return pd.DataFrame(
        {
            "key": [f"r{first + row}" for row in range(n_rows)],
            "number": random.normal(size=n_rows).round(3),
            "name": random.choice(names, n_rows),
            "hashed": random.choice(["p", "q"], n_rows),
            "born": pd.to_datetime(days),
            "group": random.integers(0, 4, n_rows),
            "label": random.choice(["no", "yes"], n_rows),
        }
    )


OPTIONS: dict[str, Any] = {
    "label": "label",
    "id": "key",
    "category": "name",
    "hash": 4,
}


@pytest.fixture
def table() -> pd.DataFrame:
    return people(200, seed=0, names=["a", "m", "z"], years=[2020], first=0)


@pytest.fixture
def later() -> pd.DataFrame:
    return people(50, seed=1, names=["b", "m", "q"], years=[2020, 2021], first=200)


def test_missing_values_of_the_summary_are_those_of_all_rows(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1.0, None, 3.0, 4.0], "city": ["a", None, None, "b"], "y": [0, 1, 0, 1]})
    data = streamcd.convert(frame, tmp_path / "data", label="y")
    for _ in range(2):
        data = streamcd.convert(frame[1:], data.path, append=True)
    table = {use["column"]: use["missing"] for use in data.info()["table"]}
    assert table == {"x": 3, "city": 6, "y": 0}


def test_the_command_shows_what_was_appended(tmp_path: Path, base: Dataset) -> None:
    more = write_text(tmp_path / "b.txt", 50, seed=1)
    shown = command_line.run("convert", more, base.path, "--append").stdout
    assert re.search(r"rows +650", shown)
    assert re.search(r" 50 +600 +1 ", shown)


def test_categories_that_are_new_are_left_out_and_counted(
    tmp_path: Path, table: pd.DataFrame, later: pd.DataFrame
) -> None:
    base, heard = streamcd.convert(table, tmp_path / "data", **OPTIONS), Heard()
    grown = streamcd.convert(later, base.path, append=True, listener=heard)
    assert grown.n_features == base.n_features
    (said,) = [text for text in heard.messages if "values of categories" in text]
    assert re.search(r"values of categories, \d+ in name \(such as", said)


def test_a_model_of_grown_data_predicts_the_table_as_the_dataset(
    tmp_path: Path, table: pd.DataFrame, later: pd.DataFrame
) -> None:
    base = streamcd.convert(table, tmp_path / "data", **OPTIONS)
    grown = streamcd.convert(later, base.path, append=True)
    assert sum(use["features"] for use in grown.info()["table"]) == grown.n_features == base.n_features
    streamcd.train(grown, tmp_path / "run")
    pd.concat([table, later]).to_parquet(tmp_path / "all.parquet", index=False)
    for data in (grown, tmp_path / "all.parquet"):
        streamcd.predict(data, tmp_path / "run", tmp_path / f"{isinstance(data, Dataset)}.csv")
    assert (tmp_path / "True.csv").read_text() == (tmp_path / "False.csv").read_text()


def test_what_the_rows_of_a_dataset_have_must_be_there(
    tmp_path: Path, table: pd.DataFrame, later: pd.DataFrame
) -> None:
    base = streamcd.convert(table, tmp_path / "data", **OPTIONS)
    with pytest.raises(DataError, match="expected the column 'key', which it keeps beside the rows"):
        streamcd.convert(later.drop(columns="key"), base.path, append=True)
    with pytest.raises(UsageError, match="expected a table with the strings"):
        streamcd.convert(write_text(tmp_path / "a.txt", 5, seed=0), base.path, append=True, format="libsvm")
    with pytest.raises(UsageError, match="--seed, --label and --append exclude each other"):
        streamcd.convert(later, base.path, append=True, label="label", seed=1)
    with pytest.raises(DatasetError, match="does not exist"):
        streamcd.convert(later, tmp_path / "nowhere", append=True)


def test_rows_without_weights_are_not_appended_to_rows_with_weights(tmp_path: Path) -> None:
    X, y = np.eye(6), np.arange(6) % 2
    base = streamcd.convert((X, y, np.full(6, 2.0)), tmp_path / "data")
    with pytest.raises(UsageError, match="expected weights, which its rows have, found none"):
        streamcd.convert((X, y), base.path, append=True)
    assert streamcd.convert((X, y, np.ones(6)), base.path, append=True).verify() == []


def test_scaling_is_that_of_the_dataset(tmp_path: Path) -> None:
    X, y = np.random.default_rng(0).normal(size=(90, 5)) + 1, np.arange(90) % 2
    base = streamcd.convert(
        (X[:60], y[:60]), tmp_path / "data", scale="standard", normalize="l2", dtype="float64"
    )
    grown = streamcd.convert((np.hstack([X[60:], X[60:, :1]]), y[60:]), base.path, append=True)
    like = streamcd.convert((X[60:], y[60:]), tmp_path / "like", like=base.path, dtype="float64")
    assert grown.scaling == base.scaling
    assert grown.n_features == 5
    found, expected = (data.to_scipy()[0][-30:].toarray() for data in (grown, like))
    np.testing.assert_array_equal(found, expected)


# ---------------------------------------------------------------------------------------------------------------------
# One step


def test_what_an_interrupted_call_has_left_goes_with_the_next(tmp_path: Path, base: Dataset) -> None:
    streamcd.convert(write_text(tmp_path / "b.txt", 50, seed=1), base.path, append=True)
    left = base.path / "added-0002"
    shutil.copytree(base.path / "added-0001", left)
    (left / "left").touch()
    (base.path / "notes.txt").write_text("not ours")
    (advice,) = staging.leftovers(base.path)
    assert str(left) in advice
    streamcd.convert(tmp_path / "b.txt", base.path, append=True)
    assert not (left / "left").exists()
    assert (base.path / "notes.txt").exists()
    assert streamcd.open(base.path).verify() == []


def test_an_append_after_which_another_came_is_refused(tmp_path: Path, base: Dataset) -> None:
    grown = streamcd.convert(write_text(tmp_path / "b.txt", 50, seed=1), base.path, append=True)
    with (
        pytest.raises(UsageError, match="another call has changed it"),
        growing(Base(base, load_like(base.path))),
    ):
        raise AssertionError("not reached")
    assert streamcd.open(base.path).fingerprint == grown.fingerprint


def test_a_failure_at_the_manifest_leaves_the_dataset_as_it_was(
    tmp_path: Path, base: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    more = write_text(tmp_path / "b.txt", 50, seed=1)
    before = sorted(path.relative_to(base.path) for path in base.path.rglob("*"))
    monkeypatch.setattr("streamcd.conversion.growing.write_metadata", full)
    with pytest.raises(EnvironmentFailure, match="the disk is full"):
        streamcd.convert(more, base.path, append=True)
    assert sorted(path.relative_to(base.path) for path in base.path.rglob("*")) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt", "data"]
    assert streamcd.open(base.path).verify() == []


def test_nothing_is_appended_through_a_symbolic_link(tmp_path: Path, base: Dataset) -> None:
    (tmp_path / "link").symlink_to(base.path)
    with pytest.raises(UsageError, match="a symbolic link, through which nothing is written"):
        streamcd.convert(tmp_path / "a.txt", tmp_path / "link", append=True)


def test_columns_that_come_later_are_told(tmp_path: Path) -> None:
    rows = {"x": [1.0, 2.0], "town": ["Rome", "Oslo"], "y": [0, 1]}
    base = streamcd.convert(pd.DataFrame(rows | {"left": [1, 2]}), tmp_path / "data", label="y", drop="left")
    heard = Heard()
    streamcd.convert(pd.DataFrame(rows | {"left": [3, 4]}), base.path, append=True, listener=heard)
    assert not any("not used" in text for text in heard.messages)
    more = pd.DataFrame(rows | {"extra": [5, 6]})
    assert streamcd.convert(more, base.path, append=True, listener=heard).n_rows == 6
    assert any(text.endswith("1 column (extra)") for text in heard.messages)

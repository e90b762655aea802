"""Rows that are appended to a dataset, and those that are dropped: what it has then, and what runs on it before see."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from heard import Heard

import streamcd
from streamcd import Dataset
from streamcd.core.errors import DataError, DatasetError


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
        found = twice.as_of(before.fingerprint)
        assert (found.fingerprint, found.info()) == (before.fingerprint, before.info())
        assert found.verify() == []
    with pytest.raises(DatasetError, match="another dataset"):
        twice.as_of("0" * 32)


def test_features_and_labels_that_are_new_are_counted_added_or_refused(tmp_path: Path, base: Dataset) -> None:
    more = write_text(tmp_path / "b.txt", 90, seed=1, width=45, labels=(-1, 1, 3))
    heard = Heard()
    counted = streamcd.convert(more, base.path, append=True, listener=heard)
    assert (counted.n_features, counted.classes.tolist()) == (40, [-1, 1])
    (said,) = [text for text in heard.messages if "--new-names add" in text]
    assert "entries of features" in said
    assert f"{600 + 90 - counted.n_rows} rows of labels" in said
    before = counted.fingerprint
    with pytest.raises(DataError, match="--new-names add adds them"):
        streamcd.convert(more, base.path, append=True, new_names="error")
    assert streamcd.open(base.path).fingerprint == before
    added = streamcd.convert(more, base.path, append=True, new_names="add")
    assert (added.n_features, added.classes.tolist(), added.n_rows) == (45, [-1, 1, 3], counted.n_rows + 90)
    assert added.verify() == []


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
        streamcd.open(base.path, as_of=base.fingerprint)

"""Rows that are appended to a dataset, and those that are dropped: what it has then, and what runs on it before see."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pandas as pd
import pytest
from heard import Heard

import streamcd
from streamcd import Dataset, Listener
from streamcd.conversion import staging
from streamcd.conversion.growing import changing
from streamcd.core.errors import CheckpointError, DataError, DatasetError, EnvironmentFailure, UsageError
from streamcd.dataset.source_indices import indices_of
from streamcd.models.encoding import encoding_of


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


def test_the_compression_told_is_that_of_all_batches(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    more = rng.random((300, 4)), rng.integers(0, 2, 300)
    data = streamcd.convert(more, tmp_path / "data", compression="none")
    before = data.info()["compression"]
    assert before == dict.fromkeys(before, "none")
    grown = streamcd.convert(more, tmp_path / "data", append=True, compression="lz4")
    assert grown.info()["compression"] == dict.fromkeys(before, "lz4 or none")
    again = streamcd.convert(more, tmp_path / "data", append=True, compression="none")
    assert again.info()["compression"] == dict.fromkeys(before, "lz4 or none")
    assert again.verify() == []


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
    "keep": "group",
    "category": "name",
    "hash": 4,
    "date": "born:parts",
}


@pytest.fixture
def table() -> pd.DataFrame:
    return people(200, seed=0, names=["a", "m", "z"], years=[2020], first=0)


@pytest.fixture
def later() -> pd.DataFrame:
    return people(50, seed=1, names=["b", "m", "q"], years=[2020, 2021], first=200)


def named_rows(dataset: Dataset) -> list[dict[str, float]]:
    """The values of every row by the names of their features."""
    X, _ = dataset.to_scipy()
    encoding = encoding_of(dataset)
    assert encoding is not None
    names = np.array(list(encoding.feature_names(np.arange(dataset.n_features))))
    rows = (slice(*X.indptr[row : row + 2]) for row in range(X.shape[0]))
    return [dict(zip(names[X.indices[row]].tolist(), X.data[row].tolist(), strict=True)) for row in rows]


@pytest.mark.usefixtures("lend")
@pytest.mark.parametrize("form", ["frame", "csv", "parquet"])
def test_categories_that_are_new_come_behind_all_features(
    tmp_path: Path, table: pd.DataFrame, later: pd.DataFrame, form: str
) -> None:
    def source(frame: pd.DataFrame, name: str) -> Any:
        path = tmp_path / f"{name}.{form}"
        if form == "csv":
            frame.to_csv(path, index=False)
        elif form == "parquet":
            frame.to_parquet(path, index=False)
        return frame if form == "frame" else path

    base = streamcd.convert(source(table, "a"), tmp_path / "data", **OPTIONS)
    grown = streamcd.convert(source(later, "b"), base.path, append=True, new_names="add")
    assert grown.verify() == []
    rows = named_rows(grown)
    assert rows[:200] == named_rows(base)
    together = pd.concat([table, later], ignore_index=True)
    assert rows == named_rows(streamcd.convert(source(together, "c"), tmp_path / "together", **OPTIONS))
    kept = [value for values in grown.read_kept("key") for value in values.to_pylist()]
    assert kept == together["key"].tolist()
    again = streamcd.convert(together[:200], tmp_path / "again", **OPTIONS)
    heard = Heard()
    again = streamcd.convert(later, again.path, append=True, new_names="add", workers=2, listener=heard)
    assert again.fingerprint == grown.fingerprint
    (said,) = [text for text in heard.messages if "added to" in text]
    n_new = again.n_features - base.n_features
    assert f"{n_new} features (" in said
    assert "2 in name" in said


def test_missing_values_of_the_summary_are_those_of_all_rows(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1.0, None, 3.0, 4.0], "city": ["a", None, None, "b"], "y": [0, 1, 0, 1]})
    data = streamcd.convert(frame, tmp_path / "data", label="y")
    for new_names in ("count", "add"):
        data = streamcd.convert(frame[1:], data.path, append=True, new_names=new_names)
    table = {use["column"]: use["missing"] for use in data.info()["table"]}
    assert table == {"x": 3, "city": 6, "y": 0}


def test_missing_values_of_the_summary_are_those_of_the_rows_that_are_left(tmp_path: Path) -> None:
    """In the batch that is cut, text has no feature for them: their number is not known, unless there was none."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "x": np.where(random.random(90) < 0.3, np.nan, 1.0 + np.arange(90)),
            "late": np.where(np.arange(90) < 31, 1.0, np.where(random.random(90) < 0.5, np.nan, 2.0)),
            "city": [None if k % 7 == 2 else "ab"[k % 2] for k in range(90)],
            "body": [None if k % 5 == 2 and k < 60 else "some words" for k in range(90)],
            "y": np.arange(90) % 2,
        }
    )
    data = streamcd.convert(frame[:30], tmp_path / "data", label="y", text="body")
    for start, new_names in ((30, "count"), (60, "add")):
        data = streamcd.convert(frame[start : start + 30], data.path, append=True, new_names=new_names)
    fingerprint = data.fingerprint
    assert streamcd.open(data.path).fingerprint == fingerprint
    for first_row in (10, 30, 47, 60, 65):
        left = streamcd.convert(None, data.path, drop_before=first_row)
        table = {use["column"]: use["missing"] for use in left.info()["table"]}
        expected = frame[first_row:].isna().sum().to_dict()
        known = {name: expected[name] for name, count in table.items() if count is not None}
        unknown = {10: {"body"}, 47: {"body", "late"}}.get(first_row, set())
        assert table == known | dict.fromkeys(unknown)
        assert left.verify() == []


@pytest.mark.parametrize("text", [False, True])
def test_missing_values_in_columns_that_had_none_get_features_behind_all_others(
    tmp_path: Path, text: bool
) -> None:
    random = np.random.default_rng(0)
    names = ["number", "flag", "city", "born"]
    frame = pd.DataFrame(
        {
            "number": random.normal(size=90),
            "flag": random.random(90) < 0.5,
            "city": random.choice(["a", "b"], 90),
            "born": pd.to_datetime(random.choice(["2020-01-01", "2021-02-03"], 90)),
            "label": random.choice(["no", "yes"], 90),
        }
    ).astype({"flag": object, "city": object})
    frame.loc[70:75, ["number", "city"]] = None
    frame.loc[78, "city"] = "c"
    frame.loc[82:84, names] = None

    def source(rows: pd.DataFrame, name: str) -> Any:
        if not text:
            return rows
        rows.to_csv(tmp_path / name, index=False)
        return tmp_path / name

    options = {"label": "label", "date": "born:parts"}
    data = streamcd.convert(source(frame[:70], "a.csv"), tmp_path / "data", **options)
    base, heard = data.n_features, Heard()
    data = streamcd.convert(
        source(frame[70:80], "b.csv"), data.path, append=True, new_names="add", listener=heard
    )
    assert data.n_features == base + 3
    assert not any("taken for zero" in message for message in heard.messages)
    data = streamcd.convert(source(frame[80:], "c.csv"), data.path, append=True, new_names="add")
    assert data.n_features == base + 5
    assert data.verify() == []
    together = streamcd.convert(source(frame, "all.csv"), tmp_path / "together", **options)
    assert named_rows(data) == named_rows(together)
    table = {use["column"]: (use["features"], use["missing"]) for use in data.info()["table"]}
    assert table == {use["column"]: (use["features"], use["missing"]) for use in together.info()["table"]}
    streamcd.train(data, tmp_path / "run")
    model, rows = streamcd.load_model(tmp_path / "run"), frame.drop(columns="label")
    streamcd.predict(data, tmp_path / "run", tmp_path / "out.csv", decision=True)
    known = pd.read_csv(tmp_path / "out.csv")["decision"]
    np.testing.assert_allclose(model.decision_function(rows), known, atol=1e-5)


def letters(n_rows: int, *, seed: int, words: Sequence[str], towns: Sequence[str]) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    bodies = [
        None if row % 9 == 4 else " ".join(random.choice(words, random.integers(1, 7)))
        for row in range(n_rows)
    ]
    return pd.DataFrame(
        {
            "body": bodies,
            "title": [" ".join(random.choice(words[::2], 2)) for _ in range(n_rows)],
            "town": random.choice(towns, n_rows),
            "number": random.normal(size=n_rows).round(2),
            "label": random.choice(["no", "yes"], n_rows),
        }
    )


OLD, NEW, LAST = (
    ["cat", "dog", "the", "und"],
    ["ant", "dog", "eel", "the", "zoo"],
    ["zoo", "ape", "the", "émeu"],
)


@pytest.fixture
def mail() -> list[pd.DataFrame]:
    return [
        letters(80, seed=0, words=OLD, towns=["Oslo", "Rome"]),
        letters(40, seed=1, words=NEW, towns=["Lima", "Oslo"]),
        letters(40, seed=2, words=LAST, towns=["Turin", "Rome"]),
    ]


@pytest.mark.parametrize("options", [{}, {"ngrams": "1-2", "id": "number"}], ids=str)
def test_words_that_are_new_come_behind_all_features(
    tmp_path: Path, mail: list[pd.DataFrame], options: dict[str, Any]
) -> None:
    given = {"label": "label", "text": "body,title", "dtype": "float64", **options}
    grown, rows = streamcd.convert(mail[0], tmp_path / "data", **given), []
    again = streamcd.convert(mail[0], tmp_path / "again", **given)
    for number, frame in enumerate(mail[1:]):
        rows = named_rows(grown)
        grown = streamcd.convert(frame, grown.path, append=True, new_names="add")
        frame.to_csv(tmp_path / f"{number}.csv", index=False)
        again = streamcd.convert(
            tmp_path / f"{number}.csv", again.path, append=True, new_names="add", workers=1 + number
        )
        assert named_rows(grown)[: len(rows)] == rows
    assert grown.fingerprint == again.fingerprint
    assert grown.verify() == []
    together = streamcd.convert(pd.concat(mail, ignore_index=True), tmp_path / "together", **given)
    assert named_rows(grown) == named_rows(together)
    table = {use["column"]: (use["features"], use["missing"]) for use in grown.info()["table"]}
    assert table == {use["column"]: (use["features"], use["missing"]) for use in together.info()["table"]}


def test_new_words_weigh_as_if_all_rows_so_far_were_counted_and_old_ones_as_before(
    tmp_path: Path, mail: list[pd.DataFrame]
) -> None:
    given = {"label": "label", "text": "body", "tf_idf": True, "min_count": 3, "dtype": "float64"}
    grown = streamcd.convert(mail[0], tmp_path / "data", **given)
    for frame in mail[1:]:
        grown = streamcd.convert(frame, grown.path, append=True, new_names="add")
    words = [frame["body"].fillna("").map(lambda text: set(text.split())) for frame in mail]
    weights: dict[str, float] = {}
    n = 0
    for documents in words:
        n += len(documents)
        for word in sorted(set().union(*documents) - set(weights)):
            count = sum(word in document for document in documents)
            if count >= 3:
                weights[word] = np.log((1 + n) / (1 + count)) + 1
    bodies = pd.concat(mail)["body"].fillna("")
    for found, text in zip(named_rows(grown), bodies, strict=True):
        counts = {word: text.split().count(word) * weights[word] for word in set(text.split()) & set(weights)}
        norm = np.sqrt(sum(value**2 for value in counts.values()))
        tokens = {name: value for name, value in found.items() if name.startswith("body:")}
        assert tokens == pytest.approx({f"body:{word}": value / norm for word, value in counts.items()})


def test_words_that_are_not_added_are_counted_and_never_refused(
    tmp_path: Path, mail: list[pd.DataFrame]
) -> None:
    base, heard = streamcd.convert(mail[0], tmp_path / "data", label="label", text="body,title"), Heard()
    more = mail[1].assign(town="Oslo")
    n_new = sum(text.split().count(word) for text in more["body"].dropna() for word in ("ant", "eel", "zoo"))
    n_new += sum(text.split().count(word) for text in more["title"] for word in ("ant", "eel", "zoo"))
    grown = streamcd.convert(more, base.path, append=True, listener=heard)
    assert grown.n_features == base.n_features
    assert any(f"{n_new} words of text; --new-names add adds them" in text for text in heard.messages)
    assert streamcd.convert(more, base.path, append=True, new_names="error").n_rows == 160


def test_the_command_shows_what_was_appended(tmp_path: Path, base: Dataset) -> None:
    more = write_text(tmp_path / "b.txt", 50, seed=1)
    shown = command_line.run("convert", more, base.path, "--append").stdout
    assert f"added to {base.path}" in shown
    assert "50, numbered from 600 on, in 1 shard" in shown
    assert "650 rows, 40 features" in shown
    assert "classes" not in shown
    (tmp_path / "none.txt").write_text("")
    assert "added to" not in command_line.run("convert", tmp_path / "none.txt", base.path, "--append").stdout


def test_categories_that_are_new_are_counted_where_they_are_not_added(
    tmp_path: Path, table: pd.DataFrame, later: pd.DataFrame
) -> None:
    base, heard = streamcd.convert(table, tmp_path / "data", **OPTIONS), Heard()
    grown = streamcd.convert(later, base.path, append=True, listener=heard)
    assert grown.n_features == base.n_features
    (said,) = [text for text in heard.messages if "values of categories" in text]
    assert re.search(r"values of categories, \d+ in name \(such as .*; --new-names add adds them$", said)
    with pytest.raises(DataError, match=r"values of categories, \d+ in name .*, which it has not"):
        streamcd.convert(later, base.path, append=True, new_names="error")


def test_a_model_of_grown_data_predicts_the_table_as_the_dataset(
    tmp_path: Path, table: pd.DataFrame, later: pd.DataFrame
) -> None:
    base = streamcd.convert(table, tmp_path / "data", **OPTIONS)
    grown = streamcd.convert(later, base.path, append=True, new_names="add")
    assert sum(use["features"] for use in grown.info()["table"]) == grown.n_features > base.n_features
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
    grown = streamcd.convert(
        (np.hstack([X[60:], X[60:, :1]]), y[60:]), base.path, append=True, new_names="add"
    )
    like = streamcd.convert((X[60:], y[60:]), tmp_path / "like", like=base.path, dtype="float64")
    assert grown.scaling == base.scaling
    assert (grown.n_features, grown.read_scaling().scales[-1]) == (6, 1.0)
    found, expected = grown.to_scipy()[0][60:, :5].toarray(), like.to_scipy()[0].toarray()[:, :5]
    np.testing.assert_allclose(found / np.linalg.norm(found, axis=1)[:, None], expected, rtol=1e-12)


# ---------------------------------------------------------------------------------------------------------------------
# Rows that are dropped


@pytest.mark.parametrize("first_row", [30, 200, 230])
def test_the_rows_before_a_number_are_dropped(
    tmp_path: Path, table: pd.DataFrame, later: pd.DataFrame, first_row: int
) -> None:
    base = streamcd.convert(table, tmp_path / "data", chunk_size=1000, shard_size=4000, **OPTIONS)
    grown = streamcd.convert(later, base.path, append=True, new_names="add")
    rows, labels = named_rows(grown), grown.labels()
    left = streamcd.convert(None, base.path, drop_before=first_row)
    assert left.verify() == []
    assert named_rows(left) == rows[first_row:]
    assert np.array_equal(left.labels(), labels[first_row:])
    assert left.to_arrow()["source"].to_pylist() == list(range(first_row, 250))
    assert [key for keys in left.read_kept("key") for key in keys.to_pylist()] == [
        f"r{row}" for row in range(first_row, 250)
    ]
    assert left.class_counts.tolist() == [(labels[first_row:] == name).sum() for name in ("no", "yes")]
    assert staging.leftovers(left.path) == []
    again = streamcd.convert(later, left.path, append=True)
    assert (again.n_rows, again.verify()) == (300 - first_row, [])
    assert again.as_of(left.fingerprint).n_rows == 250 - first_row


def _texts(tmp_path: Path, labels: Sequence[str]) -> list[Path]:
    """Write three texts, each with features that those before have not, and others that they alone have."""
    random, paths = np.random.default_rng(0), []
    for number, n_rows in enumerate((60, 40, 50)):
        choice = np.arange(3 + 5 * number, 60) ** 3
        lines = [
            f"{labels[random.integers(len(labels))]} "
            + " ".join(
                f"{index}:{random.integers(1, 9)}" for index in sorted(random.choice(choice, 4, False))
            )
            for _ in range(n_rows)
        ]
        lines[0] += f" {10**6 * (4 - number)}:1"
        paths.append(tmp_path / f"{number}.txt")
        paths[-1].write_text("\n".join(lines) + "\n")
    return paths


def _tables(**kinds: Any) -> list[pd.DataFrame]:
    of = {"n_rows": (60, 40, 50), "seed": (0, 1, 2), "first": (0, 60, 100)}
    names, years = (["a", "m"], ["b", "m", "q"], ["z", "a", "c"]), ([2020], [2020, 2021], [2021])
    own = [{name: values[number] for name, values in of.items()} for number in range(3)]
    return [people(names=n, years=y, **one) for n, y, one in zip(names, years, own, strict=True)]


HISTORIES: dict[str, tuple[Callable[[Path], Sequence[Any]], dict[str, Any]]] = {
    "text": (lambda place: _texts(place, ["-1", "1"]), {}),
    "compact": (lambda place: _texts(place, ["-1", "1"]), {"compact": True}),
    "compact, scaled": (lambda place: _texts(place, ["-1", "1"]), {"compact": True, "scale": "maxabs"}),
    "sets of labels": (lambda place: _texts(place, ["1", "2,3", "1,3"]), {"multilabel": ","}),
    "table": (lambda _: _tables(), OPTIONS),
    "hashed": (lambda _: _tables(), {"label": "label", "hash": 3, "id": "key"}),
    "words": (lambda _: _letters(), {"label": "label", "text": "body,title", "tf_idf": True}),
}


def _letters() -> list[pd.DataFrame]:
    words = (OLD, NEW, LAST)
    return [
        letters(n, seed=n, words=w, towns=["Oslo", w[0]]) for n, w in zip((60, 40, 50), words, strict=True)
    ]


@pytest.mark.parametrize("kind", HISTORIES)
def test_rows_that_are_dropped_and_appended_in_turn_leave_the_others(tmp_path: Path, kind: str) -> None:
    """Beside it a dataset that keeps all rows."""
    make, options = HISTORIES[kind]
    first, *more = make(tmp_path)
    cut = {"chunk_size": 500, "shard_size": 2000, **options}
    data, twin = (streamcd.convert(first, tmp_path / name, **cut) for name in ("data", "twin"))
    drops = iter([10, 25, 70, 90, 100, 140])
    for batch in (None, *more):
        if batch is not None:
            data, twin = (
                streamcd.convert(batch, one.path, append=True, new_names="add") for one in (data, twin)
            )
        for first_row in (next(drops), next(drops)):
            data = streamcd.convert(None, data.path, drop_before=first_row)
            assert data.verify() == []
            X, expected = data.to_scipy()[0], twin.to_scipy()[0][first_row:]
            assert (X.shape, (expected != X).nnz) == (expected.shape, 0)
            assert np.array_equal(data.labels(), twin.labels()[first_row:])
            counts = np.bincount(X.indices, minlength=data.n_features)
            for block in data.read_features(("feature", "n_entries", "index")):
                assert np.array_equal(counts[block["feature"]], block["n_entries"])
                indices = indices_of(data).of(block["feature"])
                assert np.array_equal(indices, indices_of(twin).of(block["feature"]))
                assert np.array_equal(indices, block["index"])
            assert data.manifest.get("encoding") == twin.manifest.get("encoding")
            for column in data.kept:
                found, kept = ([v for part in one.read_kept(column) for v in part] for one in (data, twin))
                assert found == kept[first_row:]
    assert data.manifest["dropped"]


def test_batches_before_are_not_read_to_be_dropped(tmp_path: Path, base: Dataset) -> None:
    streamcd.convert(write_text(tmp_path / "b.txt", 50, seed=1), base.path, append=True)
    for path in (*base.path.glob("entries/*"), *base.path.glob("rows/*")):
        content = bytearray(path.read_bytes())
        content[: len(content) // 2] = bytes(len(content) // 2)
        path.write_bytes(content)
    left = streamcd.convert(None, base.path, drop_before=600)
    assert (left.n_rows, left.verify()) == (50, [])
    assert not list(base.path.glob("entries/*"))


def test_a_run_on_rows_that_were_dropped_says_so(tmp_path: Path, base: Dataset) -> None:
    with pytest.warns(streamcd.ConvergenceWarning):
        streamcd.train(base.path, tmp_path / "run", max_passes=1, tol=1e-9)
    streamcd.convert(write_text(tmp_path / "b.txt", 50, seed=1), base.path, append=True, drop_before=600)
    with pytest.raises(CheckpointError, match="those before row 600 were dropped; train again"):
        streamcd.resume(tmp_path / "run")


def test_predictions_count_on_from_the_first_row_that_is_left(tmp_path: Path, base: Dataset) -> None:
    streamcd.train(base.path, tmp_path / "run")
    streamcd.predict(base, tmp_path / "run", tmp_path / "all.csv")
    left = streamcd.convert(None, base.path, drop_before=400)
    streamcd.predict(left, tmp_path / "run", tmp_path / "left.csv")
    header, *lines = (tmp_path / "all.csv").read_text().splitlines()
    assert (tmp_path / "left.csv").read_text().splitlines() == [header, *lines[400:]]


def test_what_cannot_be_dropped_is_refused(tmp_path: Path, base: Dataset) -> None:
    heard = Heard()
    streamcd.convert(None, base.path, drop_before=0, listener=heard)
    assert heard.messages == [f"nothing was dropped: {base.path} begins with row 0"]
    with pytest.raises(UsageError, match="none would be left"):
        streamcd.convert(None, base.path, drop_before=600)
    with pytest.raises(UsageError, match="give --append with it"):
        streamcd.convert(tmp_path / "a.txt", base.path, drop_before=5)
    assert streamcd.open(base.path).fingerprint == base.fingerprint


# ---------------------------------------------------------------------------------------------------------------------
# One step


def test_what_an_interrupted_call_has_left_goes_with_the_next(tmp_path: Path, base: Dataset) -> None:
    streamcd.convert(write_text(tmp_path / "b.txt", 50, seed=1), base.path, append=True)
    left = base.path / "added-0002"
    shutil.copytree(base.path / "added-0001", left)
    (base.path / "notes.txt").write_text("not ours")
    (advice,) = staging.leftovers(base.path)
    assert str(left) in advice
    streamcd.convert(None, base.path, drop_before=0)
    assert not left.exists()
    assert (base.path / "notes.txt").exists()
    assert streamcd.open(base.path).verify() == []


def test_an_append_after_which_another_came_is_refused(tmp_path: Path, base: Dataset) -> None:
    grown = streamcd.convert(write_text(tmp_path / "b.txt", 50, seed=1), base.path, append=True)
    with pytest.raises(UsageError, match="another call has changed it"), changing(base, Listener()):
        raise AssertionError("not reached")
    assert streamcd.open(base.path).fingerprint == grown.fingerprint


@pytest.mark.parametrize("writes", ["append", "drop"])
def test_a_failure_at_the_manifest_leaves_the_dataset_as_it_was(
    tmp_path: Path, base: Dataset, monkeypatch: pytest.MonkeyPatch, writes: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    more = write_text(tmp_path / "b.txt", 50, seed=1)
    before = sorted(path.relative_to(base.path) for path in base.path.rglob("*"))
    monkeypatch.setattr("streamcd.conversion.growing.write_metadata", full)
    with pytest.raises(EnvironmentFailure, match="the disk is full"):
        streamcd.convert(
            more if writes == "append" else None,
            base.path,
            append=writes == "append",
            **({} if writes == "append" else {"drop_before": 100}),
        )
    assert sorted(path.relative_to(base.path) for path in base.path.rglob("*")) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt", "data"]
    assert streamcd.open(base.path).verify() == []


def test_a_column_layout_of_dropped_rows_is_none(tmp_path: Path, base: Dataset) -> None:
    streamcd.make_columns(base.path)
    shutil.copytree(base.path / "columns", tmp_path / "columns")
    streamcd.convert(None, base.path, drop_before=100)
    assert not (base.path / "columns").exists()
    shutil.copytree(tmp_path / "columns", base.path / "columns")  # as if the call had been killed in between
    left = streamcd.open(base.path)
    assert left.verify() == []
    streamcd.make_columns(left.path)
    assert left.verify() == []
    assert streamcd.train(left.path, tmp_path / "run", method="primal").converged


def test_nothing_is_appended_through_a_symbolic_link(tmp_path: Path, base: Dataset) -> None:
    (tmp_path / "link").symlink_to(base.path)
    for options in ({"append": True}, {"drop_before": 5}):
        sources = tmp_path / "a.txt" if "append" in options else None
        with pytest.raises(UsageError, match="a symbolic link, through which nothing is written"):
            streamcd.convert(sources, tmp_path / "link", **options)


def test_columns_that_come_later_are_told_or_refused(tmp_path: Path) -> None:
    rows = {"x": [1.0, 2.0], "town": ["Rome", "Oslo"], "y": [0, 1]}
    base = streamcd.convert(pd.DataFrame(rows | {"left": [1, 2]}), tmp_path / "data", label="y", drop="left")
    heard = Heard()
    streamcd.convert(pd.DataFrame(rows | {"left": [3, 4]}), base.path, append=True, listener=heard)
    assert not any("not used" in text for text in heard.messages)
    more = pd.DataFrame(rows | {"extra": [5, 6]})
    with pytest.raises(DataError, match="expected the columns that it has, found extra besides"):
        streamcd.convert(more, base.path, append=True, new_names="error")
    assert streamcd.convert(more, base.path, append=True, listener=heard).n_rows == 6
    assert any(text.endswith("1 column (extra)") for text in heard.messages)

"""The encoding of a table goes with its models: new tables in other formats, categories never seen, columns that lack."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from heard import Heard
from test_tables import make_table, write_table

import streamcd
from streamcd import StreamcdError
from streamcd.core.files import SEAL, content_digest
from streamcd.dataset.arrow_columns import arrow_strings, strings_of
from streamcd.dataset.kept_columns import StoredStrings, write_categories

COLUMN = 4  # of the labels


def named_table() -> pa.Table:
    """A table whose labels are names."""
    table = make_table()
    names = pa.array(np.where(table["bought"].to_numpy() > 0, "yes", "no"))
    return table.set_column(COLUMN, "bought", names)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a table, its dataset, scaled, and a run."""
    path = tmp_path_factory.mktemp("trained")
    write_table(named_table(), path / "t.csv")
    streamcd.convert(
        path / "t.csv", path / "data", label="bought", drop="id,w", scale="standard", dtype="float64"
    )
    streamcd.train(path / "data", path / "run", loss="log_loss", tol=1e-6)
    return path


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.usefixtures("lend")
def test_columns_of_categories_never_seen_are_named_with_most_values_first(
    tmp_path: Path, workers: int
) -> None:
    names, n_rows = ["shop", "city", "day", "kind", "colour"], 400
    known = pa.table({name: ["a", "b"] * (n_rows // 2) for name in [*names, "y"]} | {"n": [1.5] * n_rows})
    streamcd.convert(write_table(known, tmp_path / "t.csv"), tmp_path / "data", label="y")
    streamcd.train(tmp_path / "data", tmp_path / "run")
    # new are 300 values of shop, 301 of city, then 302, ...; one number is missing
    new = {name: ["a"] * (100 - k) + [f"new {name}"] * (300 + k) for k, name in enumerate(names)}
    table = pa.table(new | {"y": ["a"] * n_rows, "n": [None] + [1.5] * (n_rows - 1)})
    path, listener = write_table(table, tmp_path / "new.csv"), Heard()
    found = streamcd.predict(path, tmp_path / "run", tmp_path / "p.csv", workers=workers, listener=listener)
    assert found["n_unseen"] == 1510
    values = "304 in colour (such as 'new colour'), 303 in kind (such as 'new kind'), 302 in day (such as 'new day')"
    assert listener.warnings == [
        f"1,510 values ignored, of categories that the model has not seen in training: {values}, … (5 in all)",
        "1 missing value taken for zero, in columns that had none in the data trained on: 1 in n",
    ]


def test_predicting_a_frame_warns_once_of_categories_never_seen(trained: Path) -> None:
    table = pa.table(
        {"age": np.ones(1000), "city": [f"town {k}" for k in range(1000)], "visits": np.zeros(1000)}
    )
    model = streamcd.load_model(trained / "run")
    with pytest.warns(UserWarning, match="1,000 values ignored, of categories") as caught:
        model.predict(table)
    assert [(warning.filename, str(warning.message)) for warning in caught] == [
        (
            __file__,
            "1,000 values ignored, of categories that the model has not seen in training: 1,000 in city (such as "
            "'town 0')",
        )
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(named_table())


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_value_that_is_no_number_or_time_is_refused_without_options_of_the_conversion(
    tmp_path: Path, ending: str
) -> None:
    days = pa.array(["2020-03-31"] * 4).cast(pa.date32())
    values = {"n": [1.5] * 4, "day": days, "y": ["a", "b"] * 2}
    data = streamcd.convert(
        write_table(pa.table(values), tmp_path / f"t.{ending}"), tmp_path / "data", label="y"
    )
    streamcd.train(data, tmp_path / "run")
    for name in ("n", "day"):
        wrong = write_table(pa.table(values | {name: ["many"] * 4}), tmp_path / f"{name}.{ending}")
        with pytest.raises(StreamcdError, match=f"column '{name}': expected (?!.*drop)"):
            streamcd.predict(wrong, tmp_path / "run", tmp_path / "p.csv")


def test_a_missing_column_is_named(trained: Path, tmp_path: Path) -> None:
    path = write_table(named_table().drop_columns(["city"]), tmp_path / "new.parquet")
    with pytest.raises(StreamcdError, match="expected the columns of the data trained on, found no 'city'"):
        streamcd.predict(path, trained / "run", tmp_path / "p.parquet")


def test_rows_without_a_label_are_predicted_and_not_evaluated(trained: Path, tmp_path: Path) -> None:
    path = write_table(named_table().drop_columns(["bought"]), tmp_path / "new.csv")
    assert streamcd.predict(path, trained / "run", tmp_path / "p.parquet")["n_rows"] == 400
    with pytest.raises(StreamcdError, match=r"new\.csv, row 1: expected a label in the column 'bought'"):
        streamcd.evaluate(path, trained / "run")


@pytest.mark.usefixtures("lend")
def test_weights_in_a_table_count_in_evaluations(tmp_path: Path) -> None:
    table = named_table().drop_columns(["w"]).append_column("w", pa.array(1.0 + np.arange(400) % 3))
    path = write_table(table, tmp_path / "t.csv")
    options = {"label": "bought", "weight_column": "w", "drop": "id", "missing": "zero", "dtype": "float64"}
    dataset = streamcd.convert(path, tmp_path / "data", **options)
    streamcd.train(dataset, tmp_path / "run", max_passes=30)
    found = [
        streamcd.evaluate(data, tmp_path / "run", workers=workers)["primal_objective"]
        for data, workers in ((dataset, 1), (path, 1), (path, 2))
    ]
    assert found == pytest.approx([found[0]] * 3)
    unweighted = write_table(table.drop_columns(["w"]), tmp_path / "unweighted.csv")
    assert streamcd.evaluate(unweighted, tmp_path / "run")["primal_objective"] < 0.8 * found[0]
    bad = table.set_column(table.schema.get_field_index("w"), "w", pa.array(["x"] * 400))
    path = write_table(bad, tmp_path / "bad.parquet")
    assert (
        streamcd.predict(path, tmp_path / "run", tmp_path / "p.csv")["n_rows"] == 400
    )  # weights are not read
    with pytest.raises(StreamcdError, match="column 'w': expected numbers as weights"):
        streamcd.evaluate(path, tmp_path / "run")


def test_libsvm_rows_without_a_label_are_predicted(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("1 1:1 3:2\n-1 2:1\n1 1:2\n-1 2:3 3:1\n")
    (tmp_path / "new.txt").write_text("1:1 3:2\n2:1\n1:2\n2:3 3:1\n")
    streamcd.convert(tmp_path / "t.txt", tmp_path / "data")
    streamcd.train(tmp_path / "data", tmp_path / "run")
    found = []
    for name in ("t.txt", "new.txt"):
        streamcd.predict(tmp_path / name, tmp_path / "run", tmp_path / f"{name}.parquet")
        found.append(pa.parquet.read_table(tmp_path / f"{name}.parquet"))
    assert found[0].equals(found[1])
    with pytest.raises(StreamcdError, match="expected a number as label, found '1:1'"):
        streamcd.convert(tmp_path / "new.txt", tmp_path / "refused")


def test_text_without_strings_is_refused_by_a_model_of_strings(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "new.txt").write_text("1 1:2 2:1\n")
    with pytest.raises(
        StreamcdError, match=r"new\.txt: expected a table with the strings of the training data"
    ):
        streamcd.predict(tmp_path / "new.txt", trained / "run", tmp_path / "p.parquet")


def test_a_table_needs_a_model_of_a_table(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("1 1:1 3:2\n-1 2:1\n")
    streamcd.convert(tmp_path / "t.txt", tmp_path / "data")
    streamcd.train(tmp_path / "data", tmp_path / "run")
    with pytest.raises(StreamcdError, match="found a table: the model's data came from none"):
        streamcd.predict(write_table(make_table(), tmp_path / "n.csv"), tmp_path / "run", tmp_path / "p.csv")


def test_like_takes_columns_and_classes(trained: Path, tmp_path: Path) -> None:
    for like in ("data", "run"):
        test = streamcd.convert(
            write_table(named_table(), tmp_path / "test.parquet"),
            tmp_path / f"of-{like}",
            like=trained / like,
        )
        dataset = streamcd.open(trained / "data")
        assert test.n_features == dataset.n_features
        assert test.info()["classes"] == ["no", "yes"]
        found, expected = (streamcd.evaluate(part, trained / "run")["confusion"] for part in (test, dataset))
        assert found == expected


def test_class_weights_go_by_names(trained: Path, tmp_path: Path) -> None:
    result = streamcd.train(trained / "data", tmp_path / "run", class_weight={"yes": 3.0})
    assert streamcd.load_model(tmp_path / "run").class_weight == {1.0: 3.0}
    assert result.converged
    with pytest.raises(
        StreamcdError, match="class weight for label maybe: no such label; the data has the labels no"
    ):
        streamcd.train(trained / "data", tmp_path / "other", class_weight={"maybe": 3.0})


def test_a_damaged_encoding_is_refused(trained: Path, tmp_path: Path) -> None:
    model = streamcd.load_model(trained / "run")
    model.save(tmp_path / "model")
    (tmp_path / "model" / "categories.parquet").write_bytes(b"PAR1")
    with pytest.raises(StreamcdError, match=r"categories\.parquet: checksum differs"):
        streamcd.load_model(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "model.json").read_text())["class_names"] == ["no", "yes"]


def test_categories_that_are_not_as_many_as_recorded_and_classes_of_one_name_are_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "t.csv").write_text("c,y\na,yes\nb,no\na,yes\n")
    streamcd.convert(tmp_path / "t.csv", tmp_path / "data", label="y")
    streamcd.train(tmp_path / "data", tmp_path / "run", max_passes=2)
    model = tmp_path / "run" / "model" / "model.json"
    whole = json.loads(model.read_bytes())
    for change, message in (
        ({"encoding": {**whole["encoding"], "columns": [{**whole["encoding"]["columns"][0], "n_categories": 2**31}]}},
         "expected 2,147,483,648 categories, found 2"),
        ({"class_names": ["yes", "yes"]}, "two classes of one name"),
    ):  # fmt: skip
        changed = {**whole, **change}
        model.write_text(json.dumps({**changed, SEAL: content_digest(changed)}))
        with pytest.raises(StreamcdError, match=message):
            streamcd.load_model(tmp_path / "run")


def test_names_are_read_without_the_rest_of_a_large_vocabulary(tmp_path: Path) -> None:
    texts = [f"{number:06d}" for number in range(1 << 17)]
    file, ends = tmp_path / "categories.parquet", np.array([100_000, len(texts)])
    write_categories(file, strings_of(arrow_strings(texts))[0], ends)
    stored = StoredStrings(file)
    places = [0, 65_535, 65_536, 99_999, 100_000, 131_071, 5]
    assert [stored.text(place) for place in places] == [texts[place] for place in places]
    write_categories(tmp_path / "again.parquet", stored, ends)
    assert (tmp_path / "again.parquet").read_bytes() == file.read_bytes()

"""Columns beside the rows: what identifies them stands in predictions under its own name; what was left out is told."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import command_line
import pyarrow as pa
import pytest
from heard import Heard
from test_tables import make_table, write_table

import streamcd
from streamcd import StreamcdError
from streamcd.dataset import kept_columns

N_ROWS = 400
IDS: dict[str, Any] = {
    "strings": [f"{k:05d}" if k % 7 else 'Zoë, née "Z"' for k in range(N_ROWS)],
    "whole numbers": [10**15 + k for k in range(N_ROWS)],
    "missing": [None if k % 3 == 0 else f"k{k}" for k in range(N_ROWS)],
}


def table_of(ids: Any, n_rows: int = N_ROWS) -> pa.Table:
    return make_table(n_rows).drop_columns(["id", "w"]).append_column("key", pa.array(ids))


def kept(dataset: streamcd.Dataset, name: str) -> list[Any]:
    return [value for array in dataset.read_kept(name) for value in array.to_pylist()]


@pytest.mark.usefixtures("lend")
@pytest.mark.parametrize("ids", IDS)
def test_an_id_is_kept_with_its_type_or_as_the_text_that_it_is(ids, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(kept_columns, "_GROUP_ROWS", 64)
    table = table_of(IDS[ids])
    made = {"": [streamcd.convert(table, tmp_path / "frame", label="bought", id="key", fold="visits")]}
    for name, workers in (("t.csv", 1), ("t.parquet", 1), ("t.parquet", 2), ("t.csv", 2), ("t.arrow", 2)):
        source, dest = write_table(table, tmp_path / name), tmp_path / f"{name}-{workers}"
        dataset = streamcd.convert(source, dest, label="bought", id="key", fold="visits", workers=workers)
        made.setdefault("text" * (name == "t.csv"), []).append(dataset)
    for form, datasets in made.items():
        for dataset in datasets:
            assert (dataset.id_column, dataset.kept) == ("key", ["key", "visits"])
            for column in dataset.kept:
                values = table[column].to_pylist()
                texts = [None if value is None else str(value) for value in values]
                assert kept(dataset, column) == (texts if form else values)
            assert dataset.verify() == []
        assert len({dataset.fingerprint for dataset in datasets}) == 1
        assert "key" not in str(datasets[0].read_features(["name"]))


def test_ids_of_text_are_not_changed_by_what_the_first_ones_look_like(tmp_path) -> None:
    ids = [f"{k:05d}" for k in range(N_ROWS - 1)] + ["x"]
    source = write_table(table_of(ids), tmp_path / "t.csv")
    assert kept(streamcd.convert(source, tmp_path / "data", label="bought", id="key"), "key") == ids


def test_times_and_booleans_are_kept_from_formats_with_types(tmp_path) -> None:
    times = [
        datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(k) for k in range(N_ROWS)
    ]
    table = table_of(times).append_column("member", pa.array([k % 2 == 0 for k in range(N_ROWS)]))
    source = write_table(table, tmp_path / "t.parquet")
    dataset = streamcd.convert(source, tmp_path / "data", label="bought", id="key", fold="member")
    assert kept(dataset, "key") == times
    assert kept(dataset, "member") == table["member"].to_pylist()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained")
    write_table(table_of(IDS["strings"]), path / "t.csv")
    streamcd.convert(path / "t.csv", path / "data", label="bought", id="key", fold="visits")
    streamcd.train(path / "data", path / "run", loss="log_loss", tol=1e-2)
    return path


@pytest.mark.usefixtures("lend")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("source", ["data", "t.csv"])
def test_predictions_have_the_id_under_its_own_name(trained, tmp_path, source, workers, monkeypatch) -> None:
    monkeypatch.setattr(kept_columns, "_GROUP_ROWS", 37)
    monkeypatch.setattr("streamcd.prediction.scorer._BLOCK_BYTES", 16 * 8 * 21)
    monkeypatch.setattr("streamcd.prediction.predict._GROUP_ROWS", 50)
    for name in ("p.parquet", "p.csv", "p.txt"):
        streamcd.predict(trained / source, trained / "run", tmp_path / name, workers=workers)
    found = pa.parquet.read_table(tmp_path / "p.parquet")
    assert found.column_names == ["key", "source", "prediction", "decision"]
    assert found["key"].to_pylist() == IDS["strings"]
    assert found["source"].to_pylist() == list(range(N_ROWS))
    model = streamcd.load_model(trained / "run")
    expected = model.predict(table_of(IDS["strings"])).tolist()
    assert found["prediction"].to_pylist() == expected
    of_csv = pa.csv.read_csv(
        tmp_path / "p.csv", convert_options=pa.csv.ConvertOptions(column_types={"key": pa.string()})
    )
    assert of_csv.column_names == ["key", "source", "prediction"]
    assert of_csv["key"].to_pylist() == IDS["strings"]
    assert (tmp_path / "p.txt").read_text().split() == [str(label) for label in expected]


def test_new_rows_have_ids_of_their_own_or_none(trained, tmp_path) -> None:
    new = table_of(list(range(N_ROWS))).slice(0, 5)
    streamcd.predict(write_table(new, tmp_path / "n.parquet"), trained / "run", tmp_path / "p.parquet")
    assert pa.parquet.read_table(tmp_path / "p.parquet")["key"].to_pylist() == [0, 1, 2, 3, 4]
    without = write_table(new.drop_columns("key"), tmp_path / "without.csv")
    streamcd.predict(without, trained / "run", tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text().startswith("source,prediction\n")
    assert streamcd.evaluate(without, trained / "run")["n_rows"] == 5


def test_ids_leave_the_rows_and_the_training_as_they_are(trained, tmp_path) -> None:
    table = table_of(IDS["strings"]).drop_columns(["key", "visits"])
    without = streamcd.convert(table, tmp_path / "without", label="bought")
    assert without.manifest["data_digest"] == streamcd.open(trained / "data").manifest["data_digest"]
    assert without.kept == []
    with pytest.raises(StreamcdError, match="convert it with id or fold"):
        without.read_kept("key")


def test_a_damaged_file_of_kept_columns_is_found(trained, tmp_path) -> None:
    dataset = streamcd.convert(trained / "t.csv", tmp_path / "data", label="bought", id="key")
    file = tmp_path / "data" / "kept.parquet"
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 1
    file.write_bytes(content)
    assert any("kept.parquet: checksum differs" in problem for problem in dataset.verify())
    file.unlink()
    with pytest.raises(StreamcdError, match=r"kept\.parquet"):
        streamcd.open(tmp_path / "data")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"id": "bought"}, "column 'bought': expected one use of it, found two"),
        ({"id": "key", "fold": "key"}, "column 'key': expected one use of it, found two"),
        ({"id": "none"}, r"column 'none': expected one of the table \(id\)"),
        ({"fold": "gone"}, r"column 'gone': expected one of the table \(fold\)"),
        ({"id": "source"}, "column 'source': expected another name"),
        ({"fold": "lists"}, "column 'lists': expected numbers, strings, booleans or times to keep"),
    ],
)
def test_columns_that_cannot_be_kept_are_refused_in_a_line(options, said, tmp_path) -> None:
    table = table_of(IDS["strings"]).append_column("source", pa.array(range(N_ROWS)))
    table = table.append_column("lists", pa.array([[1]] * N_ROWS))
    with pytest.raises(StreamcdError, match=said):
        streamcd.convert(table, tmp_path / "data", label="bought", **options)


def test_text_of_libsvm_has_no_columns_to_keep(tmp_path) -> None:
    (tmp_path / "t").write_text("1 1:1\n-1 1:2\n")
    with pytest.raises(StreamcdError, match="id: expected a table with named columns"):
        streamcd.convert(tmp_path / "t", tmp_path / "data", id="key")


# ---------------------------------------------------------------------------------------------------------------------
# Columns left out by themselves


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.arrow", "frame"])
def test_strings_that_are_nearly_all_different_are_left_out_and_told(name, tmp_path) -> None:
    names = [f"name {k if k % 100 else 0}" for k in range(3000)]
    table = table_of(names, 3000)
    source = table if name == "frame" else write_table(table, tmp_path / name)
    heard = Heard()
    dataset = streamcd.convert(source, tmp_path / "data", label="bought", listener=heard)
    reason = "1,981 of its first 2,000 strings are different; --category takes them, --id keeps them for predictions"
    (said,) = [line for line in heard.messages if "not used" in line]
    assert said == f"column 'key' is not used: {reason.replace('--', '')}"
    (fact,) = [
        fact for fact in command_line.run_json("info", tmp_path / "data")["table"] if fact["column"] == "key"
    ]
    assert (fact["use"], fact["note"]) == ("not used", reason)
    assert dataset.n_features == 2 + 4
    asked = streamcd.convert(source, tmp_path / "asked", label="bought", features="age,key")
    assert asked.n_features == 1 + len(set(names))


@pytest.mark.parametrize(
    ("n_rows", "ids"),
    [
        (900, [f"k{n}" for n in range(900)]),  # too few to tell
        (3000, [f"k{n // 2}" for n in range(3000)]),  # each twice
    ],
)
def test_other_strings_become_categories(n_rows, ids, tmp_path) -> None:
    dataset = streamcd.convert(table_of(ids, n_rows), tmp_path / "data", label="bought", listener=Heard())
    assert dataset.n_features == 2 + 4 + len(set(ids))
    assert not any(fact["use"] == "not used" for fact in dataset.info()["table"])

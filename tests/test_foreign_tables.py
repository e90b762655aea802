"""Tables as other programs write them: an index of pandas, bytes that are text, names that stand twice, encryption."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from heard import Heard
from test_tables import names_of

import streamcd

WRITTEN = pd.DataFrame(
    {
        "x": [k / 4 for k in range(40)],
        "n": range(40),
        "city": ["Lima", "Oslo", "Rome", "Turin"] * 10,
        "flag": [k % 3 == 0 for k in range(40)],
        "day": [datetime.date(2024, 1, 1) + datetime.timedelta(k) for k in range(40)],
        "gap": [None if k % 7 == 0 else k / 2 for k in range(40)],
        "y": ["no", "yes"] * 20,
    }
)
FRAME = pd.DataFrame({"x": [float(k % 5) for k in range(40)], "z": range(40), "y": ["no", "yes"] * 20})


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        (FRAME[FRAME.z != 3], []),
        (FRAME.assign(key=[7 * k % 40 for k in range(40)]).set_index("key"), ["key"]),
        (FRAME.assign(a=1, b=range(40)).set_index(["a", "b"]), ["a", "b"]),
        (FRAME, []),
    ],
    ids=["filtered", "named", "two levels", "none"],
)
@pytest.mark.parametrize("form", ["parquet", "feather", "table"])
def test_the_index_of_pandas_is_no_feature_and_is_named_if_it_has_a_name(
    tmp_path: Path, frame: pd.DataFrame, told: list[str], form: str
) -> None:
    source: Any = tmp_path / f"t.{form}"
    if form == "parquet":
        frame.to_parquet(source)
    elif form == "feather":
        pa.feather.write_feather(pa.Table.from_pandas(frame), source)
    else:
        source = pa.Table.from_pandas(frame)
    heard = Heard()
    data = streamcd.convert(source, tmp_path / "data", label="y", listener=heard)
    assert list(names_of(data).values()) == ["x", "z"]
    assert [text for text in heard.messages if "is not used" in text] == [
        f"column {name!r} is not used: it is the table's index" for name in told
    ]
    if told:
        kept = streamcd.convert(source, tmp_path / "kept", label="y", id=told[-1])
        assert kept.id_column == told[-1]
        asked = streamcd.convert(source, tmp_path / "asked", label="y", features=f"x,{told[0]}")
        assert list(names_of(asked).values()) == ["x", told[0]]


@pytest.mark.parametrize("form", ["parquet", "arrow", "table"])
def test_bytes_that_are_text_are_strings_and_others_are_left_out(tmp_path: Path, form: str) -> None:
    table = pa.table(
        {
            "colour": pa.array([b"red", "grün".encode()] * 20, pa.binary()),
            "raw": pa.array([bytes([255, k]) for k in range(40)], pa.binary()),
            "y": pa.array([b"no", b"yes"] * 20, pa.binary()),
        }
    )
    source: Any = table
    if form == "parquet":
        pq.write_table(table, source := tmp_path / "t.parquet")
    elif form == "arrow":
        with pa.ipc.new_file(source := tmp_path / "t.arrow", table.schema) as file:
            file.write_table(table)
    data = streamcd.convert(source, tmp_path / "data", label="y")
    assert list(names_of(data).values()) == ["colour=grün", "colour=red"]
    assert data.class_names == ["no", "yes"]
    assert [use["column"] for use in data.info()["table"] if use["use"] == "not used"] == ["raw"]
    streamcd.train(data, tmp_path / "run")
    streamcd.predict(source, tmp_path / "run", tmp_path / "p.txt")
    assert (tmp_path / "p.txt").read_text().split() == ["no", "yes"] * 20


def test_names_that_stand_twice_get_a_number_and_empty_ones_their_place(tmp_path: Path) -> None:
    rows = "".join(f"{k},{k % 3},{k % 2},{k % 5},{'no' if k % 2 else 'yes'}\n" for k in range(20))
    (tmp_path / "t.csv").write_text("a,a,,a.1,y\n" + rows)
    heard = Heard()
    data = streamcd.convert(tmp_path / "t.csv", tmp_path / "data", label="y", listener=heard)
    assert list(names_of(data).values()) == ["a", "a.2", "column 3", "a.1"]
    assert [text for text in heard.messages if "is named so" in text] == [
        "column 'a.2' is named so: the header has 'a' twice",
        "column 'column 3' is named so: the header has no name for it",
    ]
    streamcd.train(data, tmp_path / "run")
    assert streamcd.evaluate(tmp_path / "t.csv", tmp_path / "run")["n_rows"] == 20


def test_encrypted_columns_are_refused_in_a_line(tmp_path: Path) -> None:
    """They aborted the process."""
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):
        def __init__(self, config: Any) -> None:
            super().__init__()

        def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
            return key_bytes.hex().encode()

        def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
            return bytes.fromhex(wrapped_key.decode())

    for number, plain in enumerate((True, False)):
        properties = encryption.CryptoFactory(Keys).file_encryption_properties(
            encryption.KmsConnectionConfig(),
            encryption.EncryptionConfiguration(
                footer_key="footer", column_keys={"column": ["x"]}, plaintext_footer=plain
            ),
        )
        table, path = pa.Table.from_pandas(FRAME), tmp_path / f"{number}.parquet"
        with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
            writer.write_table(table)
        refused = command_line.run("convert", path, tmp_path / "data", "--label", "y")
        assert (refused.returncode, "encrypted" in refused.stderr) == (2, True)
        assert len(refused.stderr.strip().splitlines()) == 1


def test_nested_columns_are_left_out_and_fields_of_structs_are_columns(tmp_path: Path) -> None:
    table = pa.table(
        {
            "list": pa.array([[1], None] * 20, pa.list_(pa.int32())),
            "struct": pa.array([{"n": k, "deep": {"m": k / 2}} for k in range(40)]),
            "map": pa.array([[("a", 1)], None] * 20, pa.map_(pa.string(), pa.int32())),
            "y": ["no", "yes"] * 20,
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    data = streamcd.convert(tmp_path / "t.parquet", tmp_path / "data", label="y")
    assert list(names_of(data).values()) == ["struct.n", "struct.deep.m"]
    assert {use["column"] for use in data.info()["table"] if use["use"] == "not used"} == {"list", "map"}


def test_a_column_without_a_name_is_a_feature(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((40, 2))
    table = pa.table([values[:, 0], values[:, 1], values[:, 1] > 0], names=["x", "", "y"])
    pq.write_table(table, tmp_path / "t.parquet")
    data = streamcd.convert(tmp_path / "t.parquet", tmp_path / "data", label="y")
    assert data.n_features == 2
    streamcd.train(data, tmp_path / "run", C=100.0)
    assert streamcd.evaluate(tmp_path / "t.parquet", tmp_path / "run")["accuracy"] == 1.0


def written_by(program: str) -> dict[str, Any]:
    """Give the writers of a program, by the kinds of files that they write."""
    if program == "pandas":
        return {
            "csv": lambda path: WRITTEN.to_csv(path, index=False),
            "parquet": WRITTEN.to_parquet,
            "feather": WRITTEN.to_feather,
        }
    if program == "polars":
        table = pytest.importorskip("polars").from_pandas(WRITTEN)
        return {
            "csv": table.write_csv,
            "parquet": table.write_parquet,
            "ipc": table.write_ipc,
            "compressed ipc": lambda path: table.write_ipc(path, compression="zstd"),
        }
    if program == "duckdb":
        query = pytest.importorskip("duckdb").from_arrow(pa.Table.from_pandas(WRITTEN))
        return {
            "csv": lambda path: query.write_csv(str(path)),
            "parquet": lambda path: query.write_parquet(str(path)),
            "partitions": lambda path: query.write_parquet(str(path), partition_by=["city"]),
        }
    builder = pytest.importorskip("pyspark.sql").SparkSession.builder.master("local[1]")
    table = builder.config("spark.ui.enabled", "false").getOrCreate().createDataFrame(WRITTEN)
    return {
        "csv": lambda path: table.write.csv(str(path), header=True),
        "parquet": lambda path: table.write.parquet(str(path)),
        "partitions": lambda path: table.write.partitionBy("city").parquet(str(path)),
    }


@pytest.mark.parametrize("program", ["pandas", "polars", "duckdb", "pyspark"])
def test_files_of_a_program_convert_at_the_first_try(tmp_path: Path, program: str) -> None:
    expected = streamcd.convert(WRITTEN, tmp_path / "expected", label="y")
    for kind, write in written_by(program).items():
        write(tmp_path / kind)
        data = streamcd.convert(tmp_path / kind, tmp_path / f"data of {kind}", label="y")
        assert set(names_of(data).values()) == set(names_of(expected).values()), kind
        assert (data.n_rows, data.class_names) == (40, ["no", "yes"])
        if kind != "partitions":  # they put the rows in another order
            assert data.info()["data_digest"] == expected.info()["data_digest"], kind

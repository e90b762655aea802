"""Tables as sources: every format gives the same dataset; kinds of columns; hostile tables get one clear line."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path
from typing import Any

import forking
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

import streamcd
from streamcd.conversion.tables import ParquetReader
from streamcd.core.errors import StreamcdError
from streamcd.dataset.arrow_columns import arrow_strings

N_ROWS = 400


def make_table(n_rows: int = N_ROWS) -> pa.Table:
    """Numbers with zeros, integers, categories, labels, weights."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=n_rows).astype(np.float32).astype(np.float64)
    return pa.table(
        {
            "id": np.arange(n_rows),
            "age": np.where(rng.random(n_rows) < 0.3, 0.0, x),
            "city": rng.choice(["Rome", "Oslo", "Paris, France", 'the "Hague"'], n_rows),
            "visits": rng.integers(0, 4, n_rows),
            "bought": rng.choice([-1, 1], n_rows),
            "w": rng.choice([0.5, 1.0, 2.0], n_rows),
        }
    )


def write_table(table: pa.Table, path: Path) -> Path:
    """Write a table in the format of its name."""
    if path.suffix == ".parquet":
        pa.parquet.write_table(table, path, row_group_size=90)
    elif path.suffix == ".arrow":
        pa.feather.write_feather(table, path, chunksize=70)
    elif path.suffix == ".stream":
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=70)
    else:
        delimiter = "\t" if ".tsv" in path.name else ","
        pa.csv.write_csv(table, path, pa.csv.WriteOptions(delimiter=delimiter))
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(path.read_bytes()))
    return path


def convert(source: Any, dest: Path, **options: Any) -> streamcd.Dataset:
    return streamcd.convert(source, dest, **{"label": "bought", "drop": "id", **options})


def entries_by_row(dataset: streamcd.Dataset) -> dict[int, dict[int, float]]:
    """The entries of every row of the source."""
    found = {}
    for chunk in range(dataset.n_chunks):
        data = dataset.read(chunk)
        for row, (start, stop) in enumerate(zip(data.indptr[:-1], data.indptr[1:], strict=True)):
            entries = zip(data.feature[start:stop].tolist(), data.value[start:stop].tolist(), strict=True)
            found[int(data.source[row])] = dict(entries)
    return found


def names_of(dataset: streamcd.Dataset) -> dict[int, str]:
    table = pa.parquet.read_table(dataset.path / "features.parquet").to_pydict()
    return dict(zip(table["feature"], table["name"], strict=True))


def test_every_format_of_a_table_gives_the_same_dataset(tmp_path: Path) -> None:
    table = make_table()
    made = [
        convert(write_table(table, tmp_path / name), tmp_path / f"of-{name}", weight_column="w")
        for name in ("t.csv", "t.tsv", "t.csv.gz", "t.parquet", "t.arrow", "t.stream")
    ]
    assert len({dataset.fingerprint for dataset in made}) == 1
    assert made[0].verify() == []


def test_the_rows_are_those_of_the_table(tmp_path: Path) -> None:
    table = make_table()
    dataset = convert(write_table(table, tmp_path / "t.parquet"), tmp_path / "out", weight_column="w")
    features = {name: feature for feature, name in names_of(dataset).items()}
    assert list(features) == [
        "age",
        "city=Oslo",
        "city=Paris, France",
        "city=Rome",
        'city=the "Hague"',
        "visits",
    ]
    rows = table.to_pylist()
    found = entries_by_row(dataset)
    for number, row in enumerate(rows):
        expected = {features["age"]: row["age"], features["visits"]: float(row["visits"])}
        expected = {feature: value for feature, value in expected.items() if value}
        assert found[number] == expected | {features[f"city={row['city']}"]: 1.0}
    data = dataset.read(0)
    assert data.label.tolist() == [rows[source]["bought"] for source in data.source]
    assert data.weight.tolist() == [rows[source]["w"] for source in data.source]
    assert dataset.manifest["n_explicit_zeros"] == 0


@pytest.mark.usefixtures("lend")
@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.arrow"])
def test_several_workers_give_the_same_bits(tmp_path: Path, name: str) -> None:
    table = make_table(3000)
    path = write_table(table, tmp_path / name)
    alone = convert(path, tmp_path / "alone", chunk_size="4KB", shard_size="20KB")
    together = convert(path, tmp_path / "together", chunk_size="4KB", shard_size="20KB", workers=2)
    assert together.fingerprint == alone.fingerprint


def test_tables_and_libsvm_text_give_the_same_rows_and_entries(tmp_path: Path) -> None:
    table = make_table().select(["age", "visits", "bought"])
    lines = [
        f"{row['bought']} "
        + " ".join(f"{i}:{row[c]!r}" for i, c in enumerate(("age", "visits"), 1) if row[c])
        for row in table.to_pylist()
    ]
    (tmp_path / "t.txt").write_text("\n".join(lines) + "\n")
    text = streamcd.convert(tmp_path / "t.txt", tmp_path / "of-text")
    made = convert(write_table(table, tmp_path / "t.csv"), tmp_path / "of-table", drop=None)
    assert made.info()["data_digest"] == text.info()["data_digest"] is not None
    assert made.fingerprint != text.fingerprint  # which covers base and names


def test_names_of_classes_are_kept(tmp_path: Path) -> None:
    table = make_table()
    names = pa.array(np.where(table["bought"].to_numpy() > 0, "yes", "no"))
    table = table.set_column(4, "bought", names)
    for number, part in enumerate((table, table.set_column(4, "bought", names.dictionary_encode()))):
        dataset = convert(write_table(part, tmp_path / f"{number}.parquet"), tmp_path / f"out{number}")
        assert dataset.info()["classes"] == ["no", "yes"]
        data = dataset.read(0)
        assert [["no", "yes"][int(label)] for label in data.label] == names.take(data.source).to_pylist()


@pytest.mark.usefixtures("lend")
def test_newlines_between_quotes_are_part_of_a_value(tmp_path: Path) -> None:
    lines = ["y,text,x"] + [f'{k % 2},"one\ntwo, ""{k % 3}""",{k}' for k in range(1, 5001)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    options = {"label": "y", "drop": None, "memory": "330MB"}
    alone = convert(tmp_path / "t.csv", tmp_path / "alone", **options)
    assert alone.n_rows == 5000
    assert names_of(alone)[0] == 'text=one\ntwo, "0"'
    assert convert(tmp_path / "t.csv", tmp_path / "two", workers=2, label="y", drop=None).fingerprint == (
        alone.fingerprint
    )


@pytest.mark.parametrize("compressed", [False, True])
def test_a_table_comes_through_standard_input(tmp_path: Path, compressed: bool) -> None:
    rows = 60_000  # more than the megabyte by which formats and types are told
    text = "y,x,word\n" + "".join(f"{k % 2},{k}.5,of length {k % 7}\n" for k in range(rows))
    (tmp_path / "t.csv").write_text(text)
    data = gzip.compress(text.encode()) if compressed else text.encode()
    forking.run(["-m", "streamcd", "convert", "-", tmp_path / "piped", "--label", "y"], input=data)
    expected = streamcd.convert(tmp_path / "t.csv", tmp_path / "out", label="y")
    assert streamcd.open(tmp_path / "piped").fingerprint == expected.fingerprint


def test_partitions_are_columns(tmp_path: Path) -> None:
    table = make_table()
    for day in ("mon", "tue"):
        folder = tmp_path / "t" / f"day={day}" / "year=2024"
        folder.mkdir(parents=True)
        write_table(table, folder / "part.parquet")
    dataset = convert(tmp_path / "t", tmp_path / "out")
    assert dataset.n_rows == 2 * N_ROWS
    assert list(names_of(dataset).values())[-3:] == ["day=mon", "day=tue", "year"]


@pytest.mark.parametrize("missing", ["zero", "indicator"])
def test_missing_values(tmp_path: Path, missing: str) -> None:
    table = pa.table({"x": [1.0, None, 0.0, float("nan")], "c": ["a", None, "b", "a"], "y": [0, 1, 0, 1]})
    for name in ("t.csv", "t.parquet"):
        path = write_table(table, tmp_path / name)
        with pytest.raises(
            StreamcdError, match="column 'x': expected a value, found none; give --missing zero"
        ):
            streamcd.convert(path, tmp_path / "refused", label="y")
        dataset = streamcd.convert(path, tmp_path / "out", label="y", missing=missing, force=True)
        names = names_of(dataset)
        found = {
            row: {names[feature] for feature in entries} for row, entries in entries_by_row(dataset).items()
        }
        if missing == "zero":
            assert found == {0: {"x", "c=a"}, 1: set(), 2: {"c=b"}, 3: {"c=a"}}
        else:
            gone = {"x is missing"}
            assert found == {0: {"x", "c=a"}, 1: {"c is missing"} | gone, 2: {"c=b"}, 3: {"c=a"} | gone}


def test_hashed_strings_are_those_of_feature_hasher(tmp_path: Path) -> None:
    sklearn = pytest.importorskip("sklearn.feature_extraction")
    rng = np.random.default_rng(3)
    table = pa.table(
        {
            "c": [f"k{k}" for k in rng.integers(0, 300, 200)],
            "é": [f"größe {k}" for k in rng.integers(0, 9, 200)],
            "y": rng.integers(0, 2, 200),
        }
    )
    dataset = streamcd.convert(write_table(table, tmp_path / "t.csv"), tmp_path / "out", label="y", hash=5)
    rows = [{"c": row["c"], "é": row["é"]} for row in table.to_pylist()]
    expected = sklearn.FeatureHasher(32).transform(rows).tocsr()
    found = entries_by_row(dataset)
    for row in range(200):
        mine = expected[row]
        wanted = dict(zip(mine.indices.tolist(), mine.data.tolist(), strict=True))
        assert found[row] == {feature: value for feature, value in wanted.items() if value}


def test_lists_are_sparse_rows(tmp_path: Path) -> None:
    table = pa.table(
        {
            "i": pa.array([[3, 1], [], [2]], pa.list_(pa.int32())),
            "v": pa.array([[0.5, 2.0], [], [0.0]], pa.list_(pa.float32())),
            "y": [1, -1, 1],
        }
    )
    (tmp_path / "t.txt").write_text("1 1:2 3:0.5\n-1\n1 2:0\n")
    text = streamcd.convert(tmp_path / "t.txt", tmp_path / "of-text")
    made = streamcd.convert(
        write_table(table, tmp_path / "t.parquet"), tmp_path / "of-table", label="y", features="i:v"
    )
    assert made.info()["data_digest"] == text.info()["data_digest"]
    assert (made.index_base, made.n_features, made.manifest["n_explicit_zeros"]) == (1, 3, 1)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b\n1,2\n3\n", {"label": "a"}, r"t\.csv:3: expected 2 columns, found 1: '3'; correct the line"),
        ("a,b\n1,2\n", {}, r"t\.csv: expected the name of the column of labels, found none; give --label, one of a, b"),
        ("a,b\n1,2\n", {"label": "c"}, r"expected a column 'c' \(--label\), found a, b; check the name"),
        ("a,a,y\n1,2,3\n", {"label": "y"}, r"t\.csv:1: expected every column's name once, found 'a' twice; rename one"),
        ("a,y\ntrue,1\n", {"label": "y"}, "column 'a': expected numbers or strings, found boolean; make it 0 and 1"),
        ("a,y\n2020-01-01,1\n", {"label": "y"}, "column 'a': expected numbers or strings, found time; make numbers"),
        ("1,0.5,2\n0,1,2\n", {"label": "y"}, r"t\.csv:1: expected the names of the columns, found numbers"),
        ("a,y\n1,\n", {"label": "y"}, r"t\.csv:2: column 'y': expected a label, found None; correct"),
        ("a,y\ninf,1\n", {"label": "y"}, "column 'a': expected a finite value, found inf"),
        ("a,y\n", {"label": "y"}, r"t\.csv: expected rows, found none"),
        ("y\n1\n", {"label": "y"}, "expected columns of features, found none besides 'y'"),
        ("a,y\n1,1\n", {"label": "y", "n_features": 3}, "--n-features is for features numbered by indices"),
        ("a,y\n1,1\n", {"label": "y", "hash": 40}, "expected --hash from 1 to 30 bits, found 40"),
        ("1 1:2\n", {"missing": "zero"}, "--missing: expected a table with named columns, found libsvm text"),
    ],
)  # fmt: skip
def test_a_hostile_table_gets_one_clear_line(
    tmp_path: Path, text: str, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(StreamcdError, match=message) as raised:
        streamcd.convert(tmp_path / "t.csv", tmp_path / "out", **options)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("lend")
def test_a_wrong_type_far_down_is_named_with_its_line(tmp_path: Path) -> None:
    lines = ["x,y", *(f"{k},{k % 2}" for k in range(300_000)), "abc,1"]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    for workers in (1, 2):
        with pytest.raises(StreamcdError, match=r"t\.csv:300002: column 'x': expected a number.*found 'abc'"):
            streamcd.convert(tmp_path / "t.csv", tmp_path / "out", label="y", workers=workers)


def test_a_dictionary_beyond_the_budget_names_the_ways_out(tmp_path: Path) -> None:
    n = 400_000
    table = pa.table({"c": [f"a category of some length {k}" for k in range(n)], "y": np.arange(n) % 2})
    path = write_table(table, tmp_path / "t.parquet")
    with pytest.raises(StreamcdError, match=r"categories.*hash them into 2\^B features with --hash"):
        streamcd.convert(path, tmp_path / "out", label="y", memory="335MB")
    assert streamcd.convert(path, tmp_path / "out", label="y", memory="335MB", hash=12).n_features == 4096


def test_a_column_chunk_that_explodes_is_refused(tmp_path: Path) -> None:
    n = 20_000_000
    table = pa.table({"x": pa.repeat(pa.scalar(3.25), n), "y": pa.repeat(pa.scalar(1), n)})
    path = tmp_path / "bomb.parquet"
    pa.parquet.write_table(table, path, use_dictionary=False, compression="zstd", row_group_size=n)
    with pytest.raises(StreamcdError, match=r"column 'x': expected at most .* to decompress at a time"):
        streamcd.convert(path, tmp_path / "out", label="y", memory="340MB")


def test_the_size_of_rows_is_not_that_of_their_dictionaries(tmp_path: Path) -> None:
    # rows taken for an eighth of what they are made buckets that were too large, each of them read eight times
    path = tmp_path / "t.parquet"
    table = pa.table({name: ["a long name", "another long name"] * 5_000 for name in "abcd"})
    pyarrow.parquet.write_table(table, path)
    reader = ParquetReader([str(path)], 1 << 20)
    cells = table.num_rows * table.num_columns
    assert pyarrow.parquet.read_metadata(path).row_group(0).total_byte_size < cells
    assert (reader.expected_bytes(reader.whole()) or 0) >= 8 * cells


def test_a_conversion_does_not_load_pandas(tmp_path: Path) -> None:
    # Arrow's own ways from numpy's arrays and Python's lists load it where it is installed, which takes 0.2 s and 30 MB
    pyarrow.parquet.write_table(
        pa.table({"y": [0, 1], "a": [1.0, 2.0], "b": ["x", "z"]}), tmp_path / "t.parquet"
    )
    code = "import sys, streamcd; streamcd.convert('t.parquet', 'data', label='y'); sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0


def test_null_strings_stay_null() -> None:
    texts = [None, "a", "é", "", None, *"bcdefgh", None]
    assert arrow_strings(texts).to_pylist() == texts
    assert len(arrow_strings([])) == 0


def test_formats_that_are_not_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "t.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    with pytest.raises(StreamcdError, match=r"found HDF5; write it as one of these"):
        streamcd.convert(tmp_path / "t.h5", tmp_path / "out")
    (tmp_path / "t.parquet").write_bytes(b"PAR1" + bytes(50))
    with pytest.raises(StreamcdError, match="expected a whole file of its format, found a damaged one"):
        streamcd.convert(tmp_path / "t.parquet", tmp_path / "out", label="y")

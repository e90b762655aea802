"""Tables as sources: every format gives the same dataset; kinds of columns; hostile tables get one clear line."""

from __future__ import annotations

import gzip
import pickle
import threading
import weakref
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

import streamcd
from streamcd import StreamcdError
from streamcd.conversion.delimited import CsvReader, record_starts
from streamcd.conversion.sources import Reading
from streamcd.core.memory_budget import peak_memory_bytes
from streamcd.dataset.arrow_columns import arrow_strings
from streamcd.dataset.diagnostics import advice

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


@pytest.mark.usefixtures("lend")
@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.arrow", "t.stream"])
def test_several_workers_give_the_same_bits(tmp_path: Path, name: str) -> None:
    table = make_table(3000)
    path = write_table(table, tmp_path / name)
    alone = convert(path, tmp_path / "alone", chunk_size="4KB", shard_size="20KB")
    together = convert(path, tmp_path / "together", chunk_size="4KB", shard_size="20KB", workers=2)
    assert together.fingerprint == alone.fingerprint


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


@pytest.mark.parametrize("last", [[], [3]])
def test_lists_beside_categories_may_all_be_empty(tmp_path: Path, last: list[int]) -> None:
    """The dataset had 2^40 features."""
    lists = [*([[]] * 9), last]
    index, value = pa.array(lists, pa.list_(pa.int64())), pa.array(lists, pa.list_(pa.float64()))
    table = pa.table({"y": [0, 1] * 5, "c": list("abcab") * 2, "i": index, "v": value, "x": [1.5] * 10})
    path = write_table(table, tmp_path / "t.parquet")
    data = streamcd.convert(path, tmp_path / "out", label="y", features="c,i:v,x")
    assert (data.n_features, data.n_entries) == (4 + 4 * len(last), 20 + len(last))


def test_list_views_are_lists(tmp_path: Path) -> None:
    # pyarrow casts the empty one to nonsense
    index = pa.array([[9], [1, 2], [], [3]], pa.list_view(pa.int32()))[1:]
    value = pa.array([[9.0], [1.0, 2.0], [], [3.0]], pa.list_view(pa.float64()))[1:]
    table = pa.table({"i": index, "v": value, "y": [0, 1, 0]})
    made = streamcd.convert(table, tmp_path / "out", label="y", features="i:v", index_base=0)
    assert entries_by_row(made) == {0: {1: 1.0, 2: 2.0}, 1: {}, 2: {3: 3.0}}


def test_labels_that_are_measurements_are_no_classes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = pa.table({"x": rng.random(70_000), "y": rng.random(70_000)})
    data = streamcd.convert(write_table(table, tmp_path / "t.parquet"), tmp_path / "out", label="y")
    with pytest.raises(StreamcdError, match=r"found more than .* target"):
        streamcd.train(data, tmp_path / "run")


def test_no_thread_of_arrow_lets_go_of_memory_of_python(tmp_path: Path) -> None:
    """One that did while the process ended aborted it: three of 1,000 refusals ended by SIGABRT, after their line."""
    content = b"a,b,y\n" + b"1,2,0\n3,4,1\n" * 500
    (tmp_path / "t.csv").write_bytes(content)
    reader = CsvReader([str(tmp_path / "t.csv")], Reading(threaded=True), (), ())
    freed = []
    for _ in range(300):
        text = np.frombuffer(content[6:], np.uint8).copy()
        weakref.finalize(text, lambda: freed.append(threading.get_ident()))
        assert reader._read(text, reader.paths[0], ["a", "y"], {}, 1).content.num_rows == 1000
        del text
    assert freed == [threading.get_ident()] * 300


def test_one_class_alone_is_named_by_info_and_training(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y\n1,yes\n2,yes\n")
    dataset = streamcd.convert(tmp_path / "t.csv", tmp_path / "data", label="y")
    assert command_line.run_json("info", dataset.path)["advice"][0].startswith("one class alone")
    with pytest.raises(StreamcdError, match="found 'yes' alone"):
        streamcd.train(dataset, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_unscaled_columns_are_told_of_their_scaling(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y\n100,1\n2,0\n")
    for scale, remedy in (("none", "--scale maxabs"), ("standard", "--normalize l2")):
        made = streamcd.convert(tmp_path / "t.csv", tmp_path / scale, label="y", scale=scale)
        found = advice(made, C=100.0)[-1]
        assert remedy in found


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b\n1,2\n3\n", {"label": "a"}, r"t\.csv:3: expected 2 columns, found 1: '3'; correct the line"),
        ("a,b\n1,2\n", {}, r"t\.csv: expected the name of the column of labels, found none; give label, one of a, b"),
        ("a,b\n1,2\n", {"label": "c"}, r"column 'c': expected one of the table \(label\), found a, b; check the name"),
        ("a,y\n" + "true,1\n" * 200_000 + "maybe,1\n", {"label": "y"}, r"'a': expected true or false, .* found 'maybe'"),
        ("a,y\n1,1\n", {"label": "y", "category": "b"}, r"column 'b': expected one of the table \(category\), found a, y"),
        ("a,y\n1,0\n", {"label": "y", "features": "a,y"}, "column 'y': expected one use of it, found two"),
        ("a,y\n1,0\n", {"label": "y", "weight_column": "y"}, "column 'y': expected one use of it, found two"),
        ("a,w\n1,0\n", {"label": "a", "weight_column": "w", "features": "w"}, "column .w.: expected one use of it"),
        ("a,y\n\xe9,1\n", {"label": "y"}, r"none besides 'y'; 'a' is left out: it holds bytes that are no text in UTF-8"),
        ("1,0.5,2\n0,1,2\n", {"label": "y"}, r"t\.csv:1: expected the names of the columns, found numbers"),
        ("a,y\n1,\n", {"label": "y"}, r"t\.csv:2: column 'y': expected a label, found an empty field; fill it in"),
        ("a,y\ninf,1\n", {"label": "y"}, "column 'a': expected a finite value, found inf"),
        ("a,y\n", {"label": "y"}, r"t\.csv: expected rows, found none"),
        ("y\n1\n", {"label": "y"}, "expected columns of features, found none besides 'y'"),
        ("a,y\n1,1\n", {"label": "y", "n_features": 3}, "n_features is for features numbered by indices"),
        ("a,y\n1,1\n", {"label": "y", "hash": 40}, "expected hash from 1 to 30 bits, found 40"),
        ("1 1:2\n", {"missing": "zero"}, "missing: expected a table with named columns, found libsvm text"),
    ],
)  # fmt: skip
def test_a_hostile_table_gets_one_clear_line(
    tmp_path: Path, text: str, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "t.csv").write_text(text, "latin-1")
    with pytest.raises(StreamcdError, match=message) as raised:
        streamcd.convert(tmp_path / "t.csv", tmp_path / "out", **options)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            b"a,y\xff\n1,2\n",
            r"t\.csv:1: expected the names of the columns in UTF-8, with closed quotes, found b'a,y",
        ),
        (
            b'a,"y\n1,2\n',
            r"t\.csv:1: expected the names of the columns in UTF-8, with closed quotes, found b'a,\"y",
        ),
        (b"a,y\n1,2\n\xff\n", r"t\.csv:3: expected 2 columns, found 1: "),
        (
            b'a,y\n1,2\n1",2\n3,4\n5\n',
            r"t\.csv:\d: expected 2 columns, found 1: ",
        ),  # a quote within a cell joins lines
    ],
)
def test_bytes_that_are_no_text_are_refused_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: bytes, message: str
) -> None:
    (tmp_path / "t.csv").write_bytes(text)
    with pytest.raises(StreamcdError, match=message):
        streamcd.convert(tmp_path / "t.csv", tmp_path / "out", label="y")
    assert "Traceback" not in capfd.readouterr().err


def test_offsets_out_of_a_damaged_arrow_file_are_refused_and_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "t.feather"
    table = pa.table({"c": ["first", "second", "third"], "y": [1, 2, 1]})
    pyarrow.feather.write_feather(table, path, compression="uncompressed")
    offsets = np.array([0, 5, 11, 16], np.int32).tobytes()
    broken = np.array([0, 5, 2**30, 16], np.int32).tobytes()
    assert offsets in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(offsets, broken))
    with pytest.raises(StreamcdError, match=r"t\.feather: expected a whole file.*Offset invariant failure"):
        streamcd.convert(path, tmp_path / "out", label="y")


def test_strings_that_are_no_utf_8_are_refused_in_a_parquet_file(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = pa.table({"c": ["first", "second", "third"], "y": [1, 2, 1]})
    pyarrow.parquet.write_table(table, path, compression="none", use_dictionary=False, write_statistics=False)
    path.write_bytes(path.read_bytes().replace(b"second", b"sec\xffnd"))
    with pytest.raises(StreamcdError, match=r"t\.parquet: expected a whole file of its format.*UTF8"):
        streamcd.convert(path, tmp_path / "out", label="y")


def test_wide_text_is_read_some_columns_at_a_time(tmp_path: Path) -> None:
    # all 10,000 at a time took 510 MB of 400
    table = pa.table(
        {f"c{k}": [1.0, 2.0] for k in range(2100)} | {"s": ["a", 'with "quotes"'], "y": ["no", "yes"]}
    )
    made = [
        streamcd.convert(write_table(table, tmp_path / name), tmp_path / f"of-{name}", label="y")
        for name in ("t.csv", "t.parquet")
    ]
    assert made[0].fingerprint == made[1].fingerprint


@pytest.mark.usefixtures("lend")
def test_a_wrong_type_far_down_is_named_with_its_line(tmp_path: Path) -> None:
    # the label comes first: it was called the wrong column, since it is the last of those that are read
    lines = ["y,x", *(f"{k % 2},{k}" for k in range(300_000)), "1,abc"]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    for workers in (1, 2):
        with pytest.raises(StreamcdError, match=r"t\.csv:300002: column 'x': expected a number.*found 'abc'"):
            streamcd.convert(tmp_path / "t.csv", tmp_path / "out", label="y", workers=workers)


def test_a_dictionary_beyond_the_budget_names_the_ways_out(tmp_path: Path) -> None:
    n = 180_000
    table = pa.table({"c": [f"a category of some length {k}" for k in range(n)], "y": np.arange(n) % 2})
    pa.parquet.write_table(table, path := tmp_path / "t.parquet", row_group_size=9000)
    with pytest.raises(StreamcdError, match=r"categories.*hash them into 2\^B features with hash"):
        streamcd.convert(path, tmp_path / "out", label="y", category="c", memory="245MB")
    assert streamcd.convert(path, tmp_path / "out", label="y", memory="245MB", hash=12).n_features == 4096


def test_dictionaries_that_cannot_be_sorted_name_the_largest_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamcd.conversion.numbering._MERGE_FACTOR", 10**6)
    words = [f"some words of row {k % 300}" for k in range(1000)]
    table = pa.table({"city": ["Oslo", "Rome"] * 500, "note": words, "y": ["a", "b"] * 500})
    with pytest.raises(
        StreamcdError, match=r"most of them of column 'note'; hash .* hash B.* about [\d.]+ GB"
    ):
        streamcd.convert(table, tmp_path / "out", label="y")


def test_the_first_rows_of_many_columns_are_read_by_parts(tmp_path: Path) -> None:
    """With little memory; what they tell of the columns is the same."""
    columns: dict[str, Any] = {f"x{k}": np.arange(50) * (0.5 if k % 2 else 1) for k in range(60)}
    table = pa.table({**columns, "s": [f"word {k % 3}" for k in range(50)], "y": np.arange(50) % 2})
    path = write_table(table, tmp_path / "t.parquet")
    made = [
        streamcd.convert(path, tmp_path / memory, label="y", memory=memory) for memory in ("300MB", "2GB")
    ]
    assert made[0].fingerprint == made[1].fingerprint


def test_a_column_chunk_that_explodes_is_refused(tmp_path: Path) -> None:
    n = 8_000_000
    table = pa.table({"x": pa.repeat(pa.scalar(3.25), n), "y": pa.repeat(pa.scalar(1), n)})
    path = tmp_path / "bomb.parquet"
    pa.parquet.write_table(table, path, use_dictionary=False, compression="zstd", row_group_size=n)
    with pytest.raises(StreamcdError, match=r"column 'x': expected at most .* to decode at a time"):
        streamcd.convert(path, tmp_path / "out", label="y", memory="250MB")


@pytest.mark.parametrize("n_rows", [3, 50_000])  # one row has nearly all elements, of few or of many rows
def test_lists_that_explode_are_refused(tmp_path: Path, n_rows: int) -> None:
    # 400 bytes became 960 MB: dictionary pages of runs are as small decompressed
    elements, path = 4_000_000, tmp_path / "bomb.parquet"
    ends = np.concatenate([[0], np.arange(elements, elements + n_rows)]).astype(np.int32)
    index, value = (pa.array(np.ones(ends[-1], kind)) for kind in (np.int32, np.float32))
    lists = {"i": pa.ListArray.from_arrays(ends, index), "v": pa.ListArray.from_arrays(ends, value)}
    pa.parquet.write_table(pa.table({"y": np.arange(n_rows) % 2, **lists}), path, compression="zstd")
    with pytest.raises(StreamcdError, match=r"column 'i.list.element': expected at most .* that become 3"):
        streamcd.convert(path, tmp_path / "out", label="y", features="i:v", memory="250MB")


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_strings_of_newer_encodings_are_read(tmp_path: Path, encoding: str) -> None:
    # pyarrow cannot read these as dictionaries: the files were called damaged
    table = pa.table({"c": [f"category {k % 50}" for k in range(1000)], "y": np.arange(1000) % 2})
    write_table(table, tmp_path / "usual.parquet")
    encodings = {"c": encoding, "y": "PLAIN"}
    pa.parquet.write_table(table, tmp_path / "new.parquet", use_dictionary=False, column_encoding=encodings)
    made = [
        streamcd.convert(tmp_path / f"{name}.parquet", tmp_path / name, label="y")
        for name in ("usual", "new")
    ]
    assert made[0].fingerprint == made[1].fingerprint


def test_long_strings_of_one_prefix_are_refused(tmp_path: Path) -> None:
    n, path = 100, tmp_path / "bomb.parquet"
    table = pa.table({"c": [f"{'x' * 500_000}{k}" for k in range(n)], "y": np.arange(n) % 2})
    encodings = {"c": "DELTA_BYTE_ARRAY", "y": "PLAIN"}
    pa.parquet.write_table(table, path, compression="none", use_dictionary=False, column_encoding=encodings)
    assert path.stat().st_size < 2_000_000
    with pytest.raises(
        StreamcdError, match=r"expected at most .* to decode at a time .*, found rows of 500 kB each, decoded"
    ):
        streamcd.convert(path, tmp_path / "out", label="y", memory="250MB")


def test_the_open_pages_of_many_columns_are_counted(tmp_path: Path) -> None:
    # 200 columns took 736 MB of 400: a page of each is open, compressed and not, beside its dictionary
    n, path = 100_000, tmp_path / "wide.parquet"
    columns = {f"c{k}": np.random.default_rng(k).random(n) for k in range(50)}
    pa.parquet.write_table(pa.table({**columns, "y": np.arange(n) % 2}), path)
    with pytest.raises(StreamcdError, match=r"\+ 118 MB columns being read = 35. MB needed"):
        streamcd.convert(path, tmp_path / "out", label="y", memory="310MB")
    data = streamcd.convert(path, tmp_path / "out", label="y", features="c0,c1", memory="310MB")
    run = streamcd.train(data, tmp_path / "run", memory="310MB", tol=0.1)
    assert streamcd.predict(path, run.model, tmp_path / "p.parquet", memory="310MB")["n_rows"] == n


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("make", [pa.ipc.new_file, pa.ipc.new_stream])
def test_a_record_batch_that_inflates_is_refused_after_one_column(
    tmp_path: Path, make: Any, compression: str
) -> None:
    n = 3_000_000
    columns = {f"x{k}": pa.repeat(pa.scalar(0.0), n) for k in range(40)}
    table = pa.table({**columns, "y": pa.repeat(pa.scalar(0, pa.int8()), n)})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with make(tmp_path / "bomb.arrow", table.schema, options=options) as writer:
        writer.write_table(table)
    del columns, table
    used = peak_memory_bytes()
    with pytest.raises(
        StreamcdError, match=r"bomb\.arrow: record batch 1: .*expected at most .* found 963 MB"
    ):
        streamcd.convert(tmp_path / "bomb.arrow", tmp_path / "out", label="y", memory="250MB")
    assert peak_memory_bytes() - used < 100 << 20


def test_a_large_record_batch_that_is_not_compressed_is_read_in_parts(tmp_path: Path) -> None:
    n = 300_000
    table = pa.table({"x": np.arange(n) % 7.0, "y": np.arange(n) % 2})
    for name, compression in (("plain", None), ("packed", "zstd")):
        with pa.ipc.new_file(
            tmp_path / name, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
        ) as writer:
            writer.write_table(table, max_chunksize=n if name == "plain" else 50_000)
    digests = [
        streamcd.convert(tmp_path / name, tmp_path / f"of-{name}", label="y", memory=memory).fingerprint
        for name, memory in (("plain", "250MB"), ("packed", "1GB"))
    ]
    assert digests[0] == digests[1]


def test_strings_are_told_apart_by_every_byte_and_by_their_column(tmp_path: Path) -> None:
    texts = [letter * length + last for length in range(20) for letter in "ab" for last in ("", "x", "\0")]
    texts = list(dict.fromkeys(texts))
    table = pa.table({"b": texts * 2, "c": texts * 2, "y": [0, 1] * len(texts)})
    made = streamcd.convert(table, tmp_path / "out", label="y")
    names = names_of(made)
    assert sorted(names.values()) == sorted(f"{column}={text}" for column in "bc" for text in texts)
    for row, entries in entries_by_row(made).items():
        assert [names[feature] for feature in entries] == [f"{column}={(texts * 2)[row]}" for column in "bc"]


def test_a_record_ends_where_quotes_are_closed() -> None:
    """A quote opens a cell where it is its first byte; within quotes two stand for one; elsewhere it is text."""
    rng = np.random.default_rng(0)
    for _ in range(1000):
        text = rng.choice(np.frombuffer(b'a",\n', np.uint8), rng.integers(0, 12))
        ends, state = [0], "start"
        for k, byte in enumerate(text.tolist()):
            quoted = {"start": "quoted", "quoted": "closed", "closed": "quoted", "text": "text"}
            if byte == ord('"'):
                state = quoted[state]
            elif state != "quoted":
                state = "start" if byte in b",\n" else "text"
                ends += [k + 1] if byte == ord("\n") else []
        assert record_starts(text, ",")[2] == ends[-1]


def test_null_strings_stay_null() -> None:
    texts = [None, "a", "é", "", None, *"bcdefgh", None]
    assert arrow_strings(texts).to_pylist() == texts
    assert len(arrow_strings([])) == 0


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "binary data of another kind"),
        (pickle.dumps([1, 2]), "binary data of another kind"),
        ("a,y\n1,2\n".encode("utf-16"), "text in UTF-16"),
        (b'[{"a": 1, "y": 2}]', "JSON"),
        (b'{"a": 1, "y": 2}\n', "JSON"),
        (b"@RELATION r\n@ATTRIBUTE a NUMERIC\n@DATA\n1,2\n", "ARFF"),
        (b"<!doctype html><table>", "HTML or XML"),
        (
            b"PK\x03\x04" + bytes(22) + b"\x0f\0\0\0xl/workbook.xml" + bytes(99),
            "a ZIP archive, as Excel's workbooks are",
        ),
    ],
)
def test_formats_that_are_not_read_are_named(tmp_path: Path, content: bytes, name: str) -> None:
    (tmp_path / "data").write_bytes(content)
    with pytest.raises(StreamcdError, match=rf"found {name}; write it as one of these"):
        streamcd.convert(tmp_path / "data", tmp_path / "out", label="y")


def test_damaged_and_compressed_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1" + bytes(50))
    with pytest.raises(StreamcdError, match="expected a whole file of its format, found a damaged one"):
        streamcd.convert(tmp_path / "t.parquet", tmp_path / "out", label="y")

    (tmp_path / "t.parquet.gz").write_bytes(gzip.compress(b"PAR1" + bytes(50)))
    with pytest.raises(StreamcdError, match=r"expected a plain file where it holds parquet.* decompress"):
        streamcd.convert(tmp_path / "t.parquet.gz", tmp_path / "out", label="y")


def test_a_file_in_place_of_a_dataset_is_told_its_conversion(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y\n1,1\n")
    with pytest.raises(
        StreamcdError, match=r"not a dataset .*streamcd\.convert\('.*/t\.csv', DATASET\) makes one"
    ):
        streamcd.train(tmp_path / "t.csv", tmp_path / "run")


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow"])
@pytest.mark.parametrize("columns", [["x", "y"], ["none", "of", "these"]])
def test_a_file_that_lacks_a_column_of_the_first_is_refused_by_its_name(
    tmp_path: Path, kind: str, columns: list[str]
) -> None:
    first, order = ["x", "town", "y"], ["new", "y", "town", "x"]
    tables = {
        name: pa.table({column: [str(number % 2) for number in range(40)] for column in names})
        for name, names in (("first", first), ("other", columns), ("moved", order))
    }
    files = {name: write_table(table, tmp_path / f"{name}.{kind}") for name, table in tables.items()}
    with pytest.raises(
        StreamcdError,
        match=rf"other\.{kind}.* expected the column '.*', as in the first rows, found ('|none)",
    ):
        streamcd.convert([files["first"], files["other"]], tmp_path / "data", label="y")
    assert not (tmp_path / "data").exists()
    made = streamcd.convert([files["first"], files["moved"]], tmp_path / "data", label="y")
    assert made.n_rows == 80

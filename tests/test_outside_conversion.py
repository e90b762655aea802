"""Conversion from outside: by the command line, public names and files."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import lzma
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command_line
import forking
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

import streamcd

Row = tuple[Any, dict[Any, float]]
"""Label, and entries by the name of their feature, else by its index in the source."""


def rows_of(data: Path) -> list[Row]:
    """Read rows in the order of the source."""
    assert command_line.problems(data) == []
    x, y = streamcd.open(data).to_scipy()
    table = pq.read_table(data / "features.parquet").to_pydict()
    keys = zip(table["feature"], table["name"], table["index"], strict=True)
    names = {feature: index if name is None else name for feature, name, index in keys}
    return [
        (
            label,
            {names[k]: float(x.data[e]) for e in range(x.indptr[i], x.indptr[i + 1]) for k in [x.indices[e]]},
        )
        for i, label in enumerate(y.tolist())
    ]


def stored(data: Path) -> pa.Table:
    """Read rows as they are stored: source, label, weight, entries."""
    found = streamcd.open(data)
    return found.head(found.n_rows).combine_chunks()


def in_order(data: Path) -> pa.Table:
    return stored(data).sort_by("source")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def convert(words: str) -> dict[str, Any]:
    return command_line.run_json("convert", *words.split())


def refused(words: str) -> str:
    """The one line of a command that fails for its arguments or data, and leaves nothing behind."""
    before = sorted(Path().rglob("*"))
    done = command_line.run(*words.split())
    assert done.returncode == 2, done.stderr
    assert sorted(Path().rglob("*")) == before
    [line] = [line for line in done.stderr.splitlines() if "error:" in line]
    assert "Traceback" not in done.stderr
    return line.removeprefix("streamcd: error: ")


# ---------------------------------------------------------------------------------------------------------------------
# Text


ROWS: list[Row] = [(1, {1: 2.0, 3: 0.5}), (-1, {2: 1.0})]
TEXT = b"1 1:2 3:0.5\n-1 2:1\n"
TABLE_ROWS: list[Row] = [("no", {"a": 1.0, "b=x": 1.0}), ("yes", {"a": 2.0, "b=y": 1.0})]
TABLE = b"y,a,b\nno,1,x\nyes,2,y\n"
FORMS = {
    "CRLF": (b"1 1:2 3:0.5\r\n-1 2:1\r\n", ROWS),
    "byte order mark": (b"\xef\xbb\xbf" + TEXT, ROWS),
    "comments": (b"# head\n1 1:2 3:0.5 # 2:9\n\n-1 2:1\n# end", ROWS),
    "query ids": (b"1 qid:1 1:2 3:0.5\n-1 qid:2 2:1\n", ROWS),
    "no last newline": (b"+1 1:2 3:5e-1\n-1 2:1", ROWS),
    "blanks": (b"1\t1:2 \t3:.5\n-1 2:1 \n", ROWS),
    "table, CRLF": (TABLE.replace(b"\n", b"\r\n"), TABLE_ROWS),
    "table, byte order mark": (b"\xef\xbb\xbf" + TABLE, TABLE_ROWS),
    "table, semicolons": (TABLE.replace(b",", b";"), TABLE_ROWS),
    "table, tabs": (TABLE.replace(b",", b"\t"), TABLE_ROWS),
    "table, quoted": (b'y,a,b\n"no",1,"x"\nyes,2,"y"\n', TABLE_ROWS),
    "table, newlines and quotes": (
        b'y,a,b\nno,1,"x\ny, ""z"""\nyes,2,"\r\n"\n',
        [("no", {"a": 1.0, 'b=x\ny, "z"': 1.0}), ("yes", {"a": 2.0, "b=\r\n": 1.0})],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_text_is_read_however_it_is_written(form: str) -> None:
    content, rows = FORMS[form]
    Path("source").write_bytes(content)
    convert("source data" + " --label y" * ("table" in form))
    assert rows_of(Path("data")) == rows


def _zstd(content: bytes) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        stream.write(content)
    return out.getvalue().to_pybytes()


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gz": gzip.compress,
    "two of gz": lambda content: gzip.compress(content[:7]) + gzip.compress(content[7:]),
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": _zstd,
}


@pytest.mark.parametrize("how", PACKED)
def test_compressed_text_is_told_by_its_content(how: str) -> None:
    for content, options, rows in ((TEXT, "", ROWS), (TABLE, "--label y", TABLE_ROWS)):
        packed = PACKED[how](content)
        Path("source.txt").write_bytes(packed)
        convert(f"source.txt data --force {options}")
        assert rows_of(Path("data")) == rows
        words = ["-m", "streamcd", "convert", "-", "piped", "--force", *options.split()]
        assert forking.run(words, input=packed).returncode == 0
        assert stored(Path("piped")).equals(stored(Path("data")))


BAD = {
    "number": ("1 1:2\n-1 5:x\n", "", 2),
    "order": ("1 1:2\n\n# a comment\n-1 3:1 1:1\n", "", 4),
    "twice": ("-1 3:1 3:1\n", "", 1),
    "not finite": ("1 1:2\n-1 2:nan\n", "", 2),
    "label": ("1 1:2\nx 2:1\n", "", 2),
    "negative index": ("1 -1:2\n", "", 1),
    "index beyond the width": ("1 1:2\n-1 7:2\n", "--n-features 6", 2),
    "index 0": ("1 1:2\n-1 0:2\n", "--index-base 1", 2),
    "index beyond 64 bits": (f"1 1:2\n-1 {2**64}:2\n", "", 2),
    "column too many": ("y,a\n1,2\n0,3,4\n", "--label y", 3),
    "column too few": ("y,a,b\n1,2,x\n0,3\n", "--label y", 3),
    "below a newline between quotes": ('y,a,b\n1,2,"3\n4"\n0,3\n', "--label y", 4),
    "no number far down": ("y,a\n" + "1,2\n" * 300_000 + "0,x\n", "--label y", 300_002),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_line_is_named_by_file_and_line_and_nothing_is_left(what: str) -> None:
    content, options, line = BAD[what]
    Path("bad").write_text(content)
    Path("bad.gz").write_bytes(gzip.compress(content.encode()))
    for name in ("bad", "bad.gz"):
        assert refused(f"convert {name} data {options}").startswith(f"{name}:{line}: ")
        Path("good").write_text("1 1:1\n" if not options.startswith("--label") else "y,a\n1,2\n0,3\n")
        assert refused(f"convert good {name} data {options}").startswith(f"{name}:{line}: ")


def test_indices_of_any_size_are_numbered_anew_and_kept() -> None:
    Path("wide").write_text(f"1 1:2 {2**50}:0.5\n-1 5:1\n")
    assert convert("wide data --compact")["n_features"] == 3
    assert rows_of(Path("data")) == [(1, {1: 2.0, 2**50: 0.5}), (-1, {5: 1.0})]
    command_line.run_json("train", "data", "run")
    [of] = command_line.run_json("weights", "run")["classes"]
    assert {weight["index"] for weight in of["weights"]} == {1, 5, 2**50}
    command_line.run_json("export", "data", "back.txt")
    convert("back.txt again --compact")
    assert stored(Path("again")).equals(stored(Path("data")))


@pytest.mark.parametrize(
    ("content", "options", "indices"),
    [("1 0:1 2:1\n", "", {0, 2}), ("1 1:1 2:1\n", "", {1, 2}), ("1 1:1 2:1\n", "--index-base 0", {1, 2})],
)
def test_the_index_base_is_that_of_the_source_and_a_width_is_taken(
    content: str, options: str, indices: set[int]
) -> None:
    Path("text").write_text(content)
    assert convert(f"text data --n-features 9 {options}")["n_features"] == 9
    assert set(rows_of(Path("data"))[0][1]) == indices
    x, _ = streamcd.open("data").to_scipy()
    assert x.indices.tolist() == sorted(index - ("0" not in content + options) for index in indices)


# ---------------------------------------------------------------------------------------------------------------------
# Tables


def people(n_rows: int = 400) -> pa.Table:
    """Numbers, strings, labels by name, weights."""
    rng = np.random.default_rng(7)
    cities = ["Rome", "Oslo", "Paris, France", 'the "Hague"', "two\nlines"]
    return pa.table(
        {
            "id": np.arange(n_rows) * 7,
            "age": np.where(rng.random(n_rows) < 0.3, 0.0, rng.integers(0, 800, n_rows) / 8),
            "city": rng.choice(cities, n_rows),
            "visits": rng.integers(0, 4, n_rows),
            "bought": rng.choice(["no", "yes"], n_rows),
            "w": rng.choice([0.5, 1.0, 2.0], n_rows),
        }
    )


def write(table: pa.Table, name: str) -> str:
    """Write a table in the format of a file's name."""
    if name.endswith("parquet"):
        pq.write_table(table, name, row_group_size=90)
    elif name.endswith("arrow"):
        pyarrow.feather.write_feather(table, name, chunksize=70)
    elif name.endswith("stream"):
        with pa.ipc.new_stream(name, table.schema) as writer:
            writer.write_table(table, max_chunksize=70)
    else:
        pyarrow.csv.write_csv(table, name)
    return name


PEOPLE = "--label bought --weight-column w --id id"


def test_every_format_gives_the_same_rows() -> None:
    table = people()
    convert(f"{write(table, 'people.csv')} data {PEOPLE}")
    expected = [
        (
            row["bought"],
            {k: v for k, v in row.items() if k in ("age", "visits") and v} | {f"city={row['city']}": 1.0},
        )
        for row in table.to_pylist()
    ]
    assert rows_of(Path("data")) == expected
    assert in_order(Path("data"))["weight"].to_pylist() == table["w"].to_pylist()
    for name in ("people.parquet", "people.arrow", "people.stream"):
        convert(f"{write(table, name)} data-of-{name} {PEOPLE}")
        assert stored(Path(f"data-of-{name}")).equals(stored(Path("data"))), name
    streamcd.convert(table, "frame", label="bought", weight_column="w", id="id")
    assert stored(Path("frame")).equals(stored(Path("data")))
    dictionary = table.set_column(2, "city", table["city"].dictionary_encode())
    convert(f"{write(dictionary, 'coded.parquet')} coded {PEOPLE}")
    assert stored(Path("coded")).equals(stored(Path("data")))


def test_matrices_and_lists_give_the_rows_of_text() -> None:
    x = sp.csr_array(np.array([[2, 0, 0.5], [0, 1, 0], [0, 0, 0], [0, 0, 3.0]]))
    y = np.array([1, -1, 1, -1])
    Path("text").write_text("1 1:2 3:0.5\n-1 2:1\n1\n-1 3:3\n")
    convert("text data")
    sp.save_npz("x.npz", sp.csr_matrix(x))
    np.save("y.npy", y)
    np.save("xy.npy", np.column_stack([x.toarray(), y]))
    lists = [np.split(part, x.indptr[1:-1]) for part in (x.indices, x.data)]
    write(pa.table({"i": lists[0], "v": lists[1], "y": y}), "lists.parquet")
    streamcd.convert((x, y), "of arrays")
    for source in (
        "x.npz --label y.npy",
        "xy.npy --label -1",
        "lists.parquet --label y --features i:v --index-base 0",
    ):
        convert(f"{source.split(' ')[0]} of-it --force {source.partition(' ')[2]}")
        assert stored(Path("of-it")).equals(stored(Path("data"))), source
    assert stored(Path("of arrays")).equals(stored(Path("data")))


COLUMNS = {
    "--drop city,w,id": {"age", "visits"},
    "--features age,visits": {"age", "visits"},
    "--features visits --category visits": {"visits=0", "visits=1", "visits=2", "visits=3"},
    "--drop city --weight-column w --id id": {"age", "visits"},
    "--features city --hash 3": None,
}


@pytest.mark.parametrize("options", COLUMNS)
def test_columns_are_chosen_left_out_and_made_categories(options: str) -> None:
    found = convert(f"{write(people(), 'people.csv')} data --label bought {options}")
    if "--hash" in options:
        assert found["n_features"] == 8
    else:
        assert {name for _, row in rows_of(Path("data")) for name in row} == COLUMNS[options]


MISSING: dict[str, list[Row]] = {
    "zero": [(0, {"x": 1, "c=a": 1, "t": 1}), (1, {}), (0, {"c=b": 1}), (1, {"c=a": 1, "t": 1})],
    "indicator": [
        (0, {"x": 1, "c=a": 1, "t": 1}),
        (1, {"x is missing": 1, "c is missing": 1}),
        (0, {"c=b": 1, "t is missing": 1}),
        (1, {"x is missing": 1, "c=a": 1, "t": 1}),
    ],
}


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.arrow"])
def test_missing_values_of_numbers_categories_and_booleans(name: str) -> None:
    columns = {
        "x": [1.0, None, 0.0, np.nan],
        "c": ["a", None, "b", "a"],
        "t": [True, False, None, True],
        "y": [0, 1, 0, 1],
    }
    table = pa.table(columns)
    if name != "t.csv":
        table = table.set_column(1, "c", table["c"].dictionary_encode())
    write(table, name)
    for missing, rows in MISSING.items():
        convert(f"{name} data-{missing} --label y --missing {missing}")
        assert rows_of(Path(f"data-{missing}")) == rows
    assert name in refused(f"convert {name} data --label y --missing error")


def test_folders_named_by_key_and_value_are_columns() -> None:
    for day, year in (("mon", 2024), ("tue", 2025)):
        Path(f"days/day={day}/year={year}").mkdir(parents=True)
        write(pa.table({"y": [0, 1], "x": [1.0, 2.0]}), f"days/day={day}/year={year}/part.parquet")
    convert("days data --label y")
    rows = [
        (y, {"x": y + 1.0, f"day={d}": 1.0, "year": t})
        for d, t in (("mon", 2024), ("tue", 2025))
        for y in (0, 1)
    ]
    assert rows_of(Path("data")) == rows


TABLES = ("part.parquet", "part.csv", "part.feather")


def _save(k: int, folder: str, name: str) -> None:
    """Write two rows whose only entry is `k`."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder, name)
    if name in TABLES:
        write(pa.table({"x": [k, k], "y": [0, 1]}), str(path))
    elif path.suffix == ".txt":
        path.write_text(f"0 1:{k}\n1 1:{k}\n")
    elif path.suffix == ".npy":
        np.save(path, np.array([[k, 0], [k, 1.0]]))
    else:
        matrix = sp.csr_matrix([[float(k)], [k]])
        np.savez(
            path,
            format=b"csr",
            y=[0, 1],
            **{at: getattr(matrix, at) for at in ("data", "indices", "indptr", "shape")},
        )


@pytest.mark.parametrize("source", ["top", "top/*"])
@pytest.mark.parametrize("name", [*TABLES, "part.txt", "part.npz", "part.npy"])
def test_all_files_of_a_folder_are_read_at_any_depth(name: str, source: str) -> None:
    """Those below were left out without a word where there were some at the top."""
    for k, folder in enumerate(("top", "top/a", "top/k=1.5", "top/k=34359738368/b"), 1):
        _save(k, folder, name)
    _save(9, "top/a/_temporary", name)
    _save(9, "top/.trash", name)
    for empty in ("_SUCCESS", "a/empty"):
        Path("top", empty).touch()
    Path("top/packed").write_bytes(gzip.compress(b""))
    label = f"--label {'y' if name in TABLES else -1} " * (not name.endswith(("txt", "npz")))
    done = command_line.run(*f"convert {source} data {label}".split())
    assert done.returncode == 0, done.stderr
    assert "reading 4 files of 4 folders" in done.stderr
    passed_over = [line for line in done.stderr.splitlines() if "passed over" in line]
    for name_of in (
        "top/_SUCCESS",
        "top/.trash (hidden)",
        "top/a/empty (empty)",
        "top/a/_temporary (hidden)",
        "top/packed (empty)",
    ):
        assert name_of in passed_over[0]
    x = [found.get("x", found.get(1, found.get(0))) for _, found in rows_of(Path("data"))]
    assert sorted(x) == [1, 1, 2, 2, 3, 3, 4, 4]
    keys = [
        (found["x"], found.get("k"), found.get("k is missing"))
        for _, found in rows_of(Path("data"))
        if "x" in found
    ]
    if name in TABLES:
        assert sorted(set(keys)) == [(1, None, 1), (2, None, 1), (3, 1.5, None), (4, 34359738368, None)]
    else:
        assert "keys of folders (k) are not read" in done.stderr
    if name == "part.npy":  # whose last column would be a feature
        return
    command_line.run_json("train", "data", "run")
    for words in (f"convert {source} test --like run", f"predict {source} run -o out.csv"):
        done = command_line.run(*words.split())
        assert (done.returncode, "reading 4 files" in done.stderr) == (0, True), done.stderr
    assert rows_of(Path("test")) == rows_of(Path("data"))
    assert len(Path("out.csv").read_text().splitlines()) == 9
    assert command_line.run_json("evaluate", source, "run")["n_rows"] == 8


@pytest.mark.parametrize("name", TABLES)
def test_a_key_of_a_folder_is_the_column_of_its_name(name: str) -> None:
    """A column of that name in the file was taken for Parquet, and the key was dropped for CSV."""
    for key in ("8", "08", "a%20b", "__HIVE_DEFAULT_PARTITION__"):
        Path(f"top/c={key}").mkdir(parents=True)
        write(pa.table({"c": [5, 6], "y": [0, 1]}), f"top/c={key}/{name}")
    done = command_line.run("convert", "top", "data", "--label", "y")
    assert "columns by the names of folders: c (in place of the files' own)" in done.stderr
    of = [next(iter(row)) for _, row in rows_of(Path("data"))]
    assert of == ["c=08", "c=08", "c=8", "c=8", "c is missing", "c is missing", "c=a b", "c=a b"]
    for key in "uv":
        _save(1, f"labels/c={key}", name)
    convert("labels one --label c --features y")
    assert rows_of(Path("one")) == [("u", {}), ("u", {"y": 1.0}), ("v", {}), ("v", {"y": 1.0})]
    assert "single files" in command_line.run(*f"convert top/c=8/{name} alone --label y".split()).stderr
    assert "c is missing" not in {next(iter(row)) for _, row in rows_of(Path("alone"))}


def test_refusals_end_by_their_status_however_many() -> None:
    """Some of CSV ended by SIGABRT after their line, beside others."""
    for name in (*TABLES, "part.npz", "part.txt"):
        _save(1, name.partition(".")[2], name)
    Path("txt/part.txt").write_text("1 1:1\n" * 20_000 + "no\n")
    words = {
        folder: f"-m streamcd convert {folder} {{}} --label nowhere"
        for folder in ("csv", "parquet", "feather", "npz")
    }
    words["txt"] = "-m streamcd convert txt {}"
    started = [
        forking.Forked(command.format(f"{folder}-{k}").split(), stderr=forking.PIPE)
        for k in range(8)
        for folder, command in words.items()
    ]
    for process in started:
        _, said = process.communicate()
        assert process.wait() == 2, said
        assert [line for line in said.splitlines() if "error:" in line] == said.splitlines()[-1:]


def test_empty_files_alone_are_said_to_be_empty() -> None:
    Path("empty").touch()
    Path("blank").write_text("\n \n")
    for words in (
        "empty data --label y",
        "empty data",
        "blank data --format csv --label y",
        "empty data --format parquet --label y",
    ):
        assert "expected rows, found an empty file" in refused(f"convert {words}")
    assert "empty, blank: expected rows, found empty files" in refused("convert empty blank data")


def test_what_is_no_source_is_told_by_its_kind() -> None:
    """A search was told as text whose names of columns are b''."""
    Path("t.csv").write_text("a,y\n1,0\n2,1\n3,0\n4,1\n")
    convert("t.csv data --label y")
    command_line.run_json("tune", "data", "search", "--cv", "2", "-C", "1,2")
    kinds = {"data": "a dataset", "search": "a run", "search/model": "a model"}
    takers = {
        "files of data": ("convert {} out --label y", "evaluate {} search", "predict {} search -o -"),
        "a dataset": ("merge data {} out", "columns {}", "train {} out"),
        "a run": ("resume {}", "train data out --start-from {}", "report {} -o out"),
        "a run or a model": (
            "weights {}",
            "evaluate data {}",
            "predict t.csv {} -o -",
            "export {} out --format json",
        ),
    }
    for directory, kind in kinds.items():
        for expected, commands in takers.items():
            for command in commands:
                takes_datasets = kind == "a dataset" and not command.startswith("convert")
                if kind in expected or (expected == "files of data" and takes_datasets):
                    continue
                assert f"{directory} is {kind}, expected {expected}" in refused(command.format(directory))
    # what is beside files is passed over
    done = command_line.run("convert", ".", "out", "--label", "y")
    assert "passed over: data (a dataset), search (a run)" in done.stderr
    assert len(rows_of(Path("out"))) == 4


@pytest.mark.parametrize("label", ["1", "yes"])
@pytest.mark.parametrize("value", ["0.001", "1000"])
def test_rows_of_one_class_are_a_dataset_that_is_not_for_training(value: str, label: str) -> None:
    """It ended with 2, and left the dataset, where newton would have been the method."""
    Path("t.csv").write_text("a,y\n" + f"{value},{label}\n" * 3)
    done = command_line.run("convert", "t.csv", "data", "--label", "y")
    assert done.returncode == 0, done.stderr
    assert "warning: all rows have the same label: training needs two classes" in done.stderr
    assert "streamcd train" not in done.stdout
    done = command_line.run("convert", "t.csv", "test", "--like", "data")
    assert (done.returncode, "warning" in done.stderr) == (0, False)
    assert "streamcd evaluate test" in done.stdout


# ---------------------------------------------------------------------------------------------------------------------
# Rows that were not there in training


@pytest.fixture
def trained() -> dict[str, float]:
    """A dataset of a table, a run on it, and its weights by name."""
    lines = [
        f"{20 + i % 7},{('Oslo', 'Rome', 'Lima')[i % 3]},{('no', 'yes')[i * i % 5 > 2]}" for i in range(40)
    ]
    Path("t.csv").write_text("\n".join(["age,city,y", *lines, ""]))
    convert("t.csv data --label y --scale standard")
    command_line.run_json("train", "data", "run", "--loss", "log_loss")
    [of] = command_line.run_json("weights", "run")["classes"]
    return {"": of["intercept"]} | {weight["name"]: weight["weight"] for weight in of["weights"]}


def test_categories_never_seen_and_missing_values_have_no_entry_and_are_counted(
    trained: dict[str, float],
) -> None:
    Path("new.csv").write_text("city,more,age,y\nOslo,1,30,yes\nBern,2,31,no\nBern,2,40,yes\n,1,1,no\n")
    done = command_line.run("predict", "new.csv", "run", "-o", "out.parquet", "--json")
    assert json.loads(done.stdout)["n_unseen"] == 2
    assert "2 in city (such as 'Bern')" in done.stderr
    assert "1 in city" in done.stderr.partition("missing value")[2]
    found = pq.read_table("out.parquet")
    decisions = [trained[""] + age * trained["age"] for age in (30, 31, 40, 1)]
    decisions[0] += trained["city=Oslo"]
    assert found["decision"].to_pylist() == pytest.approx(decisions)
    assert found["prediction"].to_pylist() == [("no", "yes")[decision > 0] for decision in decisions]
    done = command_line.run("evaluate", "new.csv", "run", "--json")
    assert (json.loads(done.stdout)["labels"], "2 in city" in done.stderr) == (["no", "yes"], True)
    done = command_line.run("convert", "new.csv", "new", "--like", "data", "--json")
    assert "2 in city" in done.stderr
    kept = [set(row) - {"age"} for _, row in rows_of(Path("new"))]
    assert kept == [{"city=Oslo"}, set(), set(), set()]
    again = command_line.run_json("predict", "new", "run", "-o", "again.parquet")
    assert again["n_rows"] == 4
    assert pq.read_table("again.parquet")["decision"].to_pylist() == pytest.approx(decisions, rel=1e-5)


@pytest.mark.parametrize("like", ["data", "run", "run/model"])
def test_rows_like_others_take_their_width_base_and_labels(like: str) -> None:
    Path("text").write_text("2 1:1 9:2\n5 2:3\n")
    for words in ("convert text data", "train data run"):
        command_line.run_json(*words.split())
    Path("wider").write_text("2 1:1 9:2\n5 2:3 30:1\n2 30:1\n")
    Path("narrower").write_text("5 1:1\n5 2:1\n")
    done = command_line.run("convert", "wider", "wide", "--like", like, "--json")
    assert json.loads(done.stdout)["n_features"] == 9
    assert "2 entries ignored" in done.stderr
    assert rows_of(Path("wide")) == [(2, {1: 1.0, 9: 2.0}), (5, {2: 3.0}), (2, {})]
    found = convert(f"narrower narrow --like {like}")
    assert (found["n_features"], found["index_base"], found["classes"]) == (9, 1, [2, 5])
    assert rows_of(Path("narrow")) == [(5, {1: 1.0}), (5, {2: 1.0})]
    done = command_line.run("evaluate", "wider", "run", "--json")
    assert (json.loads(done.stdout)["n_rows"], "2 entries ignored" in done.stderr) == (3, True)
    Path("other").write_text("2 0:1\n")
    assert refused(f"convert other out --like {like}").startswith("other:1: ")
    assert refused("evaluate other run").startswith("other:1: ")


# ---------------------------------------------------------------------------------------------------------------------
# Scales and weights


@pytest.mark.parametrize(
    "options", ["", "--scale maxabs", "--scale standard", "--normalize l2", "--scale maxabs --normalize l2"]
)
def test_weights_are_for_the_values_of_the_source(options: str) -> None:
    rng = np.random.default_rng(3)
    x = np.round(rng.normal(size=(60, 3)) * [1, 50, 0.02], 4)
    y = np.where(x @ [1, 0.02, 50] + rng.normal(size=60) > 0, "yes", "no")
    table = pa.table({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "y": y})
    convert(f"{write(table, 't.csv')} data --label y --dtype float64 {options}")
    command_line.run_json("train", "data", "run", "--tol", "1e-6")
    [of] = command_line.run_json("weights", "run")["classes"]
    weights = {weight["name"]: weight["weight"] for weight in of["weights"]}
    scores = x * [weights[name] for name in "abc"]
    if "l2" in options:
        scale = np.abs(x).max(axis=0) if "maxabs" in options else 1
        scores = scores / np.linalg.norm(x / scale, axis=1, keepdims=True)
    command_line.run_json("predict", "t.csv", "run", "-o", "out.parquet")
    command_line.run_json("predict", "data", "run", "-o", "of-data.parquet")
    for out in ("out.parquet", "of-data.parquet"):
        found = pq.read_table(out)
        assert found["decision"].to_pylist() == pytest.approx(
            list(scores.sum(axis=1) + of["intercept"]), abs=1e-9
        )
        assert found["source"].to_pylist() == list(range(60))
    of_file, of_data = (command_line.run_json("evaluate", source, "run") for source in ("t.csv", "data"))
    assert (
        of_file["accuracy"]
        == of_data["accuracy"]
        == (np.where(scores.sum(axis=1) + of["intercept"] > 0, "yes", "no") == y).mean()
    )


def test_a_weight_counts_as_so_many_rows() -> None:
    rng = np.random.default_rng(4)
    lines = [f"{rng.choice([-1, 1])} 1:{a:.3f} 2:{b:.3f}\n" for a, b in rng.normal(size=(30, 2))]
    times = rng.integers(1, 4, 30)
    Path("once").write_text("".join(lines))
    Path("weights").write_text("".join(f"{n}\n" for n in times))
    Path("often").write_text("".join(line * n for line, n in zip(lines, times, strict=True)))
    convert("once weighted --weights weights")
    convert("often repeated")
    assert in_order(Path("weighted"))["weight"].to_pylist() == times.tolist()
    first, second = (
        command_line.run_json("train", data, f"run-{data}", "--tol", "1e-7")
        for data in ("weighted", "repeated")
    )
    assert first["primal_objective"] == pytest.approx(second["primal_objective"], rel=1e-6)
    found = [command_line.run_json("evaluate", data, "run-weighted") for data in ("weighted", "repeated")]
    assert found[0]["accuracy"] == pytest.approx(found[1]["accuracy"])


# ---------------------------------------------------------------------------------------------------------------------
# What does not depend on how


def test_neither_cut_nor_compression_nor_seed_changes_rows() -> None:
    convert(f"{write(people(), 'people.csv')} data {PEOPLE}")
    for number, options in enumerate(
        (
            "--chunk-size 1kB --shard-size 4kB",
            "--compression none",
            "--compression zstd",
            "--memory 300MB",
            "--columns",
        )
    ):
        found = convert(f"people.csv data{number} {PEOPLE} {options}")
        assert stored(Path(f"data{number}")).equals(stored(Path("data"))), options
        assert found["n_shards"] > 1 or "--shard-size" not in options
        assert command_line.problems(Path(f"data{number}")) == []
    convert(f"people.csv other {PEOPLE} --seed 3")
    assert in_order(Path("other")).equals(in_order(Path("data")))
    assert not stored(Path("other")).equals(stored(Path("data")))


def test_exported_text_comes_back() -> None:
    rng = np.random.default_rng(5)
    x = sp.random_array((50, 9), density=0.3, rng=rng, format="csr")
    streamcd.convert((x, rng.integers(2, 5, 50)), "data", dtype="float64")
    command_line.run_json("export", "data", "out.txt")
    convert("out.txt again --dtype float64 --n-features 9")
    assert stored(Path("again")).equals(stored(Path("data")))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV and text of some ranges' length."""
    folder = tmp_path_factory.mktemp("large")
    with contextlib.chdir(folder):
        write(people(60_000), "people.csv")
        rng = np.random.default_rng(6)
        values = rng.normal(size=(60_000, 6)).round(4).tolist()
        lines = (
            " ".join([str(i % 2), *(f"{k}:{v}" for k, v in enumerate(row, 1))])
            for i, row in enumerate(values)
        )
        Path("text").write_text("\n".join(lines))
    return folder


LARGE = {"text": "--chunk-size 100kB --shard-size 1MB", "people.csv": f"{PEOPLE} --chunk-size 100kB"}


@pytest.mark.parametrize("name", LARGE)
def test_workers_change_no_row_and_a_killed_conversion_leaves_nothing(
    name: str, large: Path, here: Path
) -> None:
    """Two processes parse parts of one file; killed at some moments, and begun again."""
    begin = ["-m", "streamcd", "convert", large / name]
    options = LARGE[name].split()
    seconds = []
    for place, words in (("alone", []), ("two", ["--workers", "2", "--memory", "800MB"])):
        started = time.monotonic()
        assert forking.run([*begin, place, *words, *options]).returncode == 0
        seconds.append(time.monotonic() - started)
    expected = stored(here / "alone")
    assert expected.num_rows == 60_000
    assert stored(here / "two").equals(expected)
    n_killed = 0
    for number, share in enumerate((0.0, 0.25, 0.5, 0.75)):
        (here / str(number)).mkdir()
        words = [
            *begin,
            here / str(number) / "data",
            *options,
            "--workers",
            str(1 + number % 2),
            "--memory",
            "800MB",
        ]
        process = forking.Forked(words, stderr=forking.DEVNULL, stdout=forking.DEVNULL)
        while process.poll() is None and not any((here / str(number)).iterdir()):
            time.sleep(0.005)
        time.sleep(share * seconds[number % 2])
        process.kill()
        n_killed += process.wait() == -9
        done = forking.run([*words, *["--force"] * (here / str(number) / "data").exists()])
        assert done.returncode == 0, done.stderr
        assert [path.name for path in (here / str(number)).iterdir()] == ["data"]
        assert stored(here / str(number) / "data").equals(expected)
    assert n_killed >= 2


def test_a_dataset_that_is_replaced_is_there_until_the_new_one_is(large: Path, here: Path) -> None:
    """Whenever the conversion is killed: the old rows, or those of the same command run again."""
    Path("small").write_bytes(TEXT)
    convert("small data")
    words = ["-m", "streamcd", "convert", large / "text", here / "data", "--force"]
    for seconds in (0.0, 0.05):
        process = forking.Forked(words, stderr=forking.DEVNULL, stdout=forking.DEVNULL)
        while process.poll() is None and len(list(here.iterdir())) < 3:
            time.sleep(0.005)
        time.sleep(seconds)
        process.kill()
        assert process.wait() == -9
        found = rows_of(here / "data")
        assert found == ROWS or len(found) == 60_000
    assert forking.run(words).returncode == 0
    assert streamcd.open("data").n_rows == 60_000
    assert {path.name for path in here.iterdir()} == {"small", "data"}


# ---------------------------------------------------------------------------------------------------------------------
# Files of others


def _letter(path: str) -> None:
    Path(path).mkdir()
    (Path(path) / "letter").write_text("Dear all\n")


OTHERS: dict[str, tuple[Callable[[], Any], str]] = {
    "a file": (lambda: Path("dest").write_text("Dear all\n"), "dest"),
    "another folder": (lambda: _letter("dest"), "dest"),
    "a run": (lambda: command_line.run_json("train", "data", "dest"), "dest"),
    "a link to a folder": (lambda: (_letter("real"), Path("dest").symlink_to("real")), "dest"),
    "a link to nowhere": (lambda: Path("dest").symlink_to("nowhere"), "dest"),
    "the folder of work": (lambda: (_letter("real"), Path(".dest.partial").symlink_to("real")), "dest"),
    "the source": (lambda: None, "text"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_is_no_dataset_is_never_replaced_nor_written_through(what: str) -> None:
    Path("text").write_bytes(TEXT)
    convert("text data")
    make, dest = OTHERS[what]
    make()
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    for force in ("", " --force"):
        refused(f"convert text {dest}{force}")
        assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_a_dataset_is_replaced_by_force_alone_and_not_where_its_source_is_in_it() -> None:
    Path("text").write_bytes(TEXT)
    Path("more").write_text("3 1:1\n2 2:1\n")
    convert("text data")
    assert "--force" in refused("convert more data")
    assert rows_of(Path("data")) == ROWS
    convert("more data --force")
    assert rows_of(Path("data")) == [(3, {1: 1.0}), (2, {2: 1.0})]
    Path("data/own").write_bytes(TEXT)
    refused("convert data/own data --force")
    assert Path("data/own").read_bytes() == TEXT
    # a run in the dataset's folder vanished with the rows that it was trained on
    Path("data/run").mkdir()
    assert "data holds run" in refused("convert text data --force")

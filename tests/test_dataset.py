"""The dataset on disk: what is written is read, damage is named, and nothing hostile gets past the door."""

from __future__ import annotations

import gc
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from small_datasets import (
    NAMED,
    checksum,
    feature_statistics,
    multiclass,
    random_rows,
    record_chunk_checksums,
    windows_of,
    write_dataset,
)

from streamcd import Dataset, StreamcdError, convert, train
from streamcd import open as open_dataset
from streamcd.core.errors import DatasetError, UsageError
from streamcd.core.files import write_metadata
from streamcd.dataset.schema import ROW_LAYOUT
from tools.chunk_writer import ChunkWriter


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Two shards, six chunks, shuffled sources."""
    x, y = random_rows(120, 8, seed=41)
    source = np.random.default_rng(0).permutation(y.size)
    return write_dataset(tmp_path / "data", (x, y), n_chunks=6, n_shards=2, source=source)


def files_of(dataset: Dataset) -> list[str]:
    return sorted(str(path.relative_to(dataset.path)) for path in dataset.path.rglob("*") if path.is_file())


# ---------------------------------------------------------------------------------------------------------------------
# Writing and reading


@pytest.mark.parametrize("compression", ["lz4", "none"])
def test_what_was_read_stays_when_more_is_read(tmp_path: Path, compression: str) -> None:
    rows = random_rows(120, 8, seed=41)
    dataset = convert(rows, tmp_path / "data", chunk_size="1kB", compression=compression)
    assert dataset.n_chunks > 2
    first = dataset.read_entries(0)
    kept = [array.copy() for array in first]
    for chunk in range(1, dataset.n_chunks):
        dataset.read_entries(chunk)
    assert all(np.array_equal(*pair) for pair in zip(first, kept, strict=True))


@pytest.fixture(scope="module")
def noisy_rows() -> tuple[sp.csr_array, np.ndarray]:
    """Features that LZ4 shrinks, and values of which it gains nothing: their first byte alone is often the same."""
    rng = np.random.default_rng(12)
    x = sp.random_array((2_000, 400), density=0.1, format="csr", rng=rng)
    x.data = 1.0 + rng.random(x.nnz)
    return x, rng.integers(0, 2, 2_000)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_auto_compresses_the_columns_that_it_shrinks(
    tmp_path: Path, noisy_rows: tuple[sp.csr_array, np.ndarray], dtype: str
) -> None:
    made = {
        name: convert(noisy_rows, tmp_path / name, compression=name, dtype=dtype)
        for name in ("auto", "lz4", "none")
    }
    expected = {"auto": ["LZ4", "LZ4", "UNCOMPRESSED"], "lz4": ["LZ4"] * 3, "none": ["UNCOMPRESSED"] * 3}
    for name, dataset in made.items():
        assert dataset.info()["compression"] == name
        group = pq.read_metadata(dataset.path / "entries" / "part-00000.parquet").row_group(0)
        assert [group.column(number).compression for number in range(3)] == expected[name]
    sizes = {name: dataset.info()["bytes"] for name, dataset in made.items()}
    assert sizes["auto"] < sizes["none"]
    assert sizes["lz4"] < sizes["none"]


def _table(**changes: Any) -> pa.Table:
    columns = {
        "y": ["a", "b"] * 6,
        "x": list(map(float, range(12))),
        "z": ["u", "v", "w"] * 4,
        "k": [1.0] * 12,
    }
    return pa.table({name: changes.get(name, column) for name, column in columns.items()})


def test_the_fingerprint_is_of_every_value_label_weight_and_name(tmp_path: Path) -> None:
    """Of a table, from a file and from memory; that of data with anything else in it differs."""
    options = {"label": "y", "weight_column": "k"}
    pq.write_table(_table(), tmp_path / "table.parquet")
    same = [
        convert(_table(), tmp_path / name, compression=name, **options) for name in ("lz4", "zstd", "none")
    ]
    same.append(convert(tmp_path / "table.parquet", tmp_path / "file", workers=2, **options))
    assert len({dataset.fingerprint for dataset in same}) == 1
    value, weight = [*range(11), 11.5], [*[1.0] * 11, 2.0]
    names = ["y", "x2", "z", "k"]
    others = [
        _table(x=value),
        _table(x=list(map(float, reversed(range(12))))),
        _table(y=["b", "a"] * 6),
        _table(y=["a", "c"] * 6),
        _table(z=["u", "v", "q"] * 4),
        _table(k=weight),
        _table().rename_columns(names),
    ]
    made = [convert(table, tmp_path / str(number), **options) for number, table in enumerate(others)]
    assert len({dataset.fingerprint for dataset in (same[0], *made)}) == 1 + len(others)
    assert [dataset.verify() for dataset in (*same, *made)] == [[]] * (len(same) + len(made))


@pytest.mark.parametrize("value_dtype", [np.float32, np.float64])
@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("name", NAMED)
def test_what_is_written_is_read(tmp_path: Path, name: str, index_dtype: type, value_dtype: type) -> None:
    x, y = NAMED[name]()
    source = np.random.default_rng(1).permutation(y.size)
    dataset = write_dataset(
        tmp_path / "data", (x, y), n_chunks=4, n_shards=2, index_dtype=index_dtype, value_dtype=value_dtype,
        source=source, weight=np.linspace(0, 1, y.size),
    )  # fmt: skip
    assert (dataset.n_rows, dataset.n_features, dataset.n_entries) == (*x.shape, x.nnz)
    assert dataset.n_chunks == 4
    pieces = [dataset.read(chunk) for chunk in range(4)]
    assert [piece.label.size for piece in pieces] == np.diff(dataset.row_start).tolist()
    np.testing.assert_array_equal(np.concatenate([piece.label for piece in pieces]), y)
    np.testing.assert_array_equal(np.concatenate([piece.source for piece in pieces]), source)
    np.testing.assert_array_equal(
        np.concatenate([piece.weight for piece in pieces]), np.linspace(0, 1, y.size)
    )
    n_columns = x.shape[1]
    rows = sp.vstack(
        [sp.csr_array((p.value, p.feature, p.indptr), shape=(p.label.size, n_columns)) for p in pieces]
    )
    np.testing.assert_array_equal(rows.toarray(), x.toarray())
    assert pieces[0].feature.dtype == index_dtype
    assert pieces[0].value.dtype == value_dtype
    assert dataset.verify() == []


def test_any_reader_of_parquet_can_read_it(dataset: Dataset) -> None:
    """One table in one sort order: plain types, no nulls, no dictionaries, row groups that correspond."""
    tables = {}
    for table in ("rows", "entries"):
        files = [pq.ParquetFile(dataset.path / part[table]) for part in dataset.manifest["parts"]]
        tables[table] = pa.concat_tables([file.read() for file in files])
        assert all(not field.nullable for file in files for field in file.schema_arrow)
        assert sum(file.num_row_groups for file in files) == dataset.n_chunks
        encodings = {
            encoding for file in files for encoding in file.metadata.row_group(0).column(0).encodings
        }
        assert not any("DICTIONARY" in encoding for encoding in encodings)
    assert tables["rows"].column_names == ["row", "source", "label", "weight", "n_entries"]
    assert tables["entries"].column_names == ["row", "feature", "value"]
    row = tables["entries"]["row"].to_numpy()
    numbers = np.concatenate([np.arange(part["n_rows"]) for part in dataset.manifest["parts"]])
    np.testing.assert_array_equal(tables["rows"]["row"].to_numpy(), numbers)
    np.testing.assert_array_equal(row, np.repeat(numbers, tables["rows"]["n_entries"].to_numpy()))


def test_readers_can_skip_chunks_by_their_row_and_label(dataset: Dataset) -> None:
    """Least and greatest of a row group are those of its chunk; training needs none, so entries have only those of `row`."""
    for part in dataset.manifest["parts"]:
        for table, columns in (
            ("rows", {"row", "source", "label", "weight", "n_entries"}),
            ("entries", {"row"}),
        ):
            file = pq.ParquetFile(dataset.path / part[table])
            for group in range(file.num_row_groups):
                found = file.metadata.row_group(group)
                held = file.read_row_group(group)
                chunks = [found.column(k) for k in range(found.num_columns)]
                told = {c.path_in_schema: c.statistics for c in chunks if c.statistics is not None}
                assert set(told) == columns
                for name, statistics in told.items():
                    values = held[name].to_numpy()
                    assert (statistics.min, statistics.max) == (values.min(), values.max())


def test_info_says_what_there_is(dataset: Dataset) -> None:
    info = dataset.info()
    x, y = random_rows(120, 8, seed=41)
    assert info["n_rows"] == 120
    assert info["n_features"] == 8
    assert info["n_entries"] == x.nnz
    assert info["classes"] == [-1, 1]
    assert info["class_counts"] == [int((y < 0).sum()), int((y > 0).sum())]
    assert info["density"] == pytest.approx(x.nnz / (120 * 8))
    assert info["n_chunks"] == 6
    assert info["n_shards"] == 2
    assert info["bytes_decoded"] == 8 * x.nnz
    on_disk = sum(
        (dataset.path / name).stat().st_size for name in files_of(dataset) if name != "manifest.json"
    )
    assert info["bytes"] == on_disk
    assert info["fingerprint"] == dataset.fingerprint


def test_fingerprint_is_of_the_data_and_the_cut_not_of_the_place(tmp_path: Path) -> None:
    rows = random_rows(60, 5, seed=42)
    first = write_dataset(tmp_path / "a", rows)
    assert write_dataset(tmp_path / "b", rows).fingerprint == first.fingerprint
    moved = shutil.copytree(first.path, tmp_path / "elsewhere" / "c")
    assert open_dataset(moved).fingerprint == first.fingerprint
    x, y = rows
    x = x.copy()
    x.data[7] *= 2
    others = [
        write_dataset(tmp_path / "d", (x, y)),
        write_dataset(tmp_path / "e", (rows[0], -y)),
        write_dataset(tmp_path / "f", rows, n_chunks=4),
        write_dataset(tmp_path / "g", rows, value_dtype=np.float64),
    ]
    assert len({first.fingerprint, *(other.fingerprint for other in others)}) == 5


def test_without_a_manifest_there_is_no_dataset(tmp_path: Path) -> None:
    """It is written last: what an interrupted writer leaves is not taken for a dataset."""
    x, y = random_rows(20, 4)
    writer = ChunkWriter(tmp_path / "half", index_dtype=np.int32, value_dtype=np.float32)
    writer.write_chunk(np.arange(20), y, None, x.indptr.astype(np.int64), x.indices, x.data)
    writer.write_features([feature_statistics(x)])
    with pytest.raises(DatasetError, match=r"manifest\.json"):
        open_dataset(tmp_path / "half")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n_rows", 121),
        ("n_features", 7),
        ("classes", [0, 1]),
        ("value_dtype", "float64"),
        ("format_version", 99),
    ],
)
def test_an_edited_manifest_is_refused_by_name(dataset: Dataset, key: str, value: Any) -> None:
    path = dataset.path / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {key: value}))
    with pytest.raises(DatasetError, match=r"manifest\.json"):
        open_dataset(dataset.path)


# ---------------------------------------------------------------------------------------------------------------------
# Damage


def trained(path: Path, run: Path) -> bytes:
    """Weights after a few passes over a dataset opened by its path, streamed."""
    dataset = open_dataset(path)
    train(dataset, run, plan=windows_of(dataset, 2), max_passes=4, tol=1e-9, force=True)
    return (run / "model" / "weights.npy").read_bytes()


FILES = [
    "chunks.parquet",
    "features.parquet",
    "rows/part-00000.parquet",
    "rows/part-00001.parquet",
    "entries/part-00000.parquet",
    "entries/part-00001.parquet",
]


def test_a_dataset_that_is_let_go_leaves_no_file_open(dataset: Dataset) -> None:
    """One that was not closed kept a file of each layout open for as long as the process lived."""
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert open_dataset(dataset.path).verify() == []
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_these_are_all_files(dataset: Dataset) -> None:
    assert files_of(dataset) == sorted([*FILES, "manifest.json"])


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_byte_is_named_by_verify_and_never_trained_on(
    dataset: Dataset, tmp_path: Path, name: str
) -> None:
    """In every part of every file. Training refuses it by name, or it was in what training does not read."""
    expected = trained(dataset.path, tmp_path / "run")
    path = dataset.path / name
    original = path.read_bytes()
    size = len(original)
    refused = 0
    for number, place in enumerate(np.linspace(0, size - 1, 9).astype(int).tolist()):
        data = bytearray(original)
        data[place] ^= 1 << number % 8
        path.write_bytes(data)
        if name == "chunks.parquet":  # small, read whole and checked when a dataset is opened
            with pytest.raises(DatasetError, match=str(path)):
                open_dataset(dataset.path)
            refused += 1
            continue
        problems = open_dataset(dataset.path).verify()
        assert any(str(path) in problem for problem in problems), f"byte {place} of {size} went unnoticed"
        message = ""
        try:
            weights = trained(dataset.path, tmp_path / "run")
        except StreamcdError as error:
            message = str(error)
        if message:
            assert str(path) in message
            assert "\n" not in message
            refused += 1
        else:
            assert weights == expected, f"byte {place} of {size}: damage was trained on"
    if name != "features.parquet":
        assert refused > 2
    path.write_bytes(original)
    assert open_dataset(dataset.path).verify() == []


@pytest.mark.parametrize("table", ["rows", "entries"])
def test_a_data_file_replaced_by_another_of_its_size_is_never_trained_on(
    dataset: Dataset, tmp_path: Path, table: str
) -> None:
    """Its pages are sound, so their checksums are; it used to be trained on."""
    x, y = random_rows(120, 8, seed=41)
    x = sp.csr_array(x)
    x.data = np.roll(x.data, 1)
    source = np.random.default_rng(0).permutation(y.size)
    other = write_dataset(tmp_path / "other", (x, -y), n_chunks=6, n_shards=2, source=source)
    name = dataset.manifest["parts"][1][table]
    assert (other.path / name).stat().st_size == (dataset.path / name).stat().st_size
    shutil.copy(other.path / name, dataset.path / name)
    with pytest.raises(DatasetError, match=rf"{name}, chunk .: .*replaced"):
        train(dataset.path, tmp_path / "run", max_passes=3, plan=windows_of(dataset, 2))


@pytest.mark.parametrize("columns", [("label", "n_entries", "source"), ("source", "label"), ("n_entries",)])
def test_damage_is_noticed_whichever_columns_are_read(dataset: Dataset, columns: tuple[str, ...]) -> None:
    """The checksum of a chunk begins at the label; of columns before it the pages' own are checked."""
    expected = [dataset.read_rows(chunk, columns) for chunk in range(dataset.n_chunks)]
    path = dataset.path / dataset.manifest["parts"][0]["rows"]
    original = path.read_bytes()
    noticed = 0
    for place in range(0, 1500, 3):
        data = bytearray(original)
        data[place] ^= 1
        path.write_bytes(data)
        dataset.close()
        try:
            found = dataset.read_rows(0, columns)
        except DatasetError:
            noticed += 1
        else:
            assert [column.tolist() for column in found] == [column.tolist() for column in expected[0]]
    assert noticed


@pytest.mark.parametrize(
    "name", ["../outside.parquet", "/outside.parquet", "rows/../../outside.parquet", "rows\0", "", ".", ".."]
)
def test_names_of_files_that_leave_the_directory_are_refused(dataset: Dataset, name: str) -> None:
    manifest = json.loads((dataset.path / "manifest.json").read_text())
    shutil.copy(dataset.path / manifest["parts"][0]["rows"], dataset.path.parent / "outside.parquet")
    manifest["parts"][0]["rows"] = name.replace("\0", "\0")
    with pytest.raises(DatasetError, match=r"manifest\.json: damaged"):
        with_manifest(dataset.path, manifest)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["device", "pipe", "directory"])
def test_what_is_no_file_is_named_and_not_read(dataset: Dataset, name: str, kind: str) -> None:
    """A part that was a link to ``/dev/zero`` had `verify` read for ever."""
    path = dataset.path / name
    path.unlink()
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(DatasetError, match="expected a file"):
        open_dataset(dataset.path)
    assert any("expected a file" in problem for problem in dataset.verify())


@pytest.mark.parametrize("kind", ["/dev/zero", "rows"])
def test_a_manifest_that_is_no_file_is_refused(dataset: Dataset, kind: str) -> None:
    (dataset.path / "manifest.json").unlink()
    (dataset.path / "manifest.json").symlink_to(kind)
    with pytest.raises(DatasetError, match="expected a file"):
        open_dataset(dataset.path)


def test_a_part_with_too_few_row_groups_is_named(dataset: Dataset, tmp_path: Path) -> None:
    """It used to end in a traceback while chunks were announced."""
    for table in ("rows", "entries"):
        path = dataset.path / dataset.manifest["parts"][1][table]
        groups = pq.read_table(path)
        pq.write_table(groups, path)
        manifest = json.loads((dataset.path / "manifest.json").read_text())
        manifest["parts"][1] |= {
            f"{table}_bytes": path.stat().st_size,
            f"{table}_checksum": checksum(path),
        }
        short = with_manifest(dataset.path, manifest)
        with pytest.raises(DatasetError, match=path.name):
            train(dataset.path, tmp_path / "run", force=True, max_passes=2)
        with pytest.raises(DatasetError, match=path.name):
            short.chunk_bytes(short.n_chunks - 1)
        if table == "entries":
            with pytest.raises(DatasetError, match=path.name):
                short.announce([short.n_chunks - 1])
        assert any(path.name in problem for problem in short.verify())


@pytest.mark.parametrize("name", FILES)
def test_truncated_or_missing_files_are_named_by_verify_and_train(
    dataset: Dataset, tmp_path: Path, name: str
) -> None:
    path = dataset.path / name
    size = path.stat().st_size
    for damage, word in (
        (lambda: os.truncate(path, size - 1), "truncated"),
        (lambda: os.truncate(path, 0), "truncated"),
        (path.unlink, "missing"),
    ):
        damage()
        assert any(str(path) in problem and word in problem for problem in dataset.verify())
        for attempt in (
            lambda: open_dataset(dataset.path),
            lambda: train(dataset.path, tmp_path / "run", force=True),
        ):
            with pytest.raises(DatasetError, match=f"{path}: .*{word}"):
                attempt()


def test_verify_names_a_missing_file_whatever_the_directory_is_called(
    dataset: Dataset, tmp_path: Path
) -> None:
    """The file's name used to be cut out of the line about it, at the first colon: that of the directory."""
    (tmp_path / "data").rename(tmp_path / "a: b")
    path = tmp_path / "a: b" / "entries/part-00001.parquet"
    path.unlink()
    assert open_dataset(tmp_path / "a: b", check_files=False).verify() == [f"{path}: the file is missing"]


def test_a_file_lost_while_training_is_named(dataset: Dataset, tmp_path: Path) -> None:
    """After the dataset was opened, before the file was."""
    path = dataset.path / "entries/part-00001.parquet"
    path.unlink()
    with pytest.raises(DatasetError, match=f"{path}.*missing"):
        train(dataset, tmp_path / "run", plan=windows_of(dataset, 1))


def test_verify_refuses_a_budget_that_is_too_small(tmp_path: Path) -> None:
    """By the largest chunk, of rows or of columns, and by all workers."""
    dataset = write_dataset(tmp_path / "data", random_rows(4000, 400, density=0.3), n_chunks=1)
    assert dataset.verify(memory="280MB") == []
    with pytest.raises(UsageError, match=r"58.* MB the largest chunk.*needed"):
        dataset.verify(memory="260MB")
    with pytest.raises(UsageError, match="2 times"):
        dataset.verify(memory="620MB", workers=2)


# ---------------------------------------------------------------------------------------------------------------------
# Files whose checksums are right and whose content is not


Change = Callable[[dict[str, np.ndarray]], None]


def forge(dataset: Dataset, table: str, change: Change, *, part: int = 0, group: int = 1) -> Dataset:
    """Change one row group of a part, with checksums, sizes and fingerprint made to agree; opens the result."""
    entry = dataset.manifest["parts"][part]
    path = dataset.path / entry[table]
    file = pq.ParquetFile(path)
    groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
    columns = {name: groups[group][name].to_numpy().copy() for name in groups[group].column_names}
    change(columns)
    groups[group] = pa.table(list(columns.values()), schema=groups[group].schema)
    with pq.ParquetWriter(
        path,
        groups[0].schema,
        compression="lz4",
        use_dictionary=False,
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        for rows in groups:
            writer.write_table(rows, row_group_size=max(1, rows.num_rows))
    manifest = json.loads((dataset.path / "manifest.json").read_text())
    manifest["parts"][part] |= {
        f"{table}_bytes": path.stat().st_size,
        f"{table}_checksum": checksum(path),
    }
    manifest["chunks"] |= record_chunk_checksums(dataset.path, manifest["parts"])
    return with_manifest(dataset.path, manifest)


def with_manifest(path: Path, manifest: dict[str, Any]) -> Dataset:
    write_metadata(path / "manifest.json", ROW_LAYOUT, manifest)
    return open_dataset(path)


def setting(column: str, place: Any, value: Any) -> Change:
    def change(columns: dict[str, np.ndarray]) -> None:
        columns[column][place] = value

    return change


def swapping(column: str, i: int, j: int) -> Change:
    def change(columns: dict[str, np.ndarray]) -> None:
        columns[column][[i, j]] = columns[column][[j, i]]

    return change


def moving_an_entry(columns: dict[str, np.ndarray]) -> None:
    columns["n_entries"][0] += 1
    columns["n_entries"][1] -= 1


def colliding_sources(columns: dict[str, np.ndarray]) -> None:
    """Two places go, two come twice, and their sum stays."""
    source = columns["source"]
    first, second = np.sort(source)[5], np.sort(source)[9]
    columns["source"][source == first] = first + 1
    columns["source"][source == second] = second - 1


def test_forging_nothing_leaves_a_dataset_that_verifies(dataset: Dataset) -> None:
    for table in ("rows", "entries"):
        assert forge(dataset, table, lambda columns: None).verify() == []


BROKEN = [
    ("entries", setting("feature", 3, 8), "a feature outside"),
    ("entries", setting("feature", 3, -1), "a feature outside"),
    ("entries", setting("feature", 3, 2**31 - 1), "a feature outside"),
    ("entries", swapping("feature", 0, 1), "ascending order"),
    ("entries", setting("feature", slice(0, 2), 3), "ascending order"),
    ("entries", setting("value", 5, np.nan), "not finite"),
    ("entries", setting("value", 5, np.inf), "not finite"),
    ("entries", setting("row", 0, 0), "does not follow"),
    ("rows", setting("label", 2, np.nan), "label"),
    ("rows", setting("label", 2, 7.0), "class"),
    ("rows", setting("weight", 2, -1.0), "weight"),
    ("rows", setting("weight", 2, np.nan), "weight"),
    ("rows", setting("source", 2, -5), "source"),
    ("rows", setting("source", 2, 120), "source"),
    ("rows", setting("source", 2, 0), "source"),
    ("rows", colliding_sources, "source"),
    ("rows", setting("row", 2, 0), "row"),
    ("rows", setting("n_entries", 2, -1), "entries"),
    ("rows", setting("n_entries", 2, 99), "entries"),
    ("rows", moving_an_entry, "entries"),
]


@pytest.mark.parametrize(("table", "change", "word"), BROKEN)
def test_every_invariant_of_verify_can_fail(dataset: Dataset, table: str, change: Change, word: str) -> None:
    problems = forge(dataset, table, change).verify()
    assert any(word in problem for problem in problems), problems
    assert all(str(dataset.path) in problem for problem in problems)


@pytest.mark.parametrize("table", ["rows", "entries", "features"])
def test_another_content_than_the_manifest_records_is_found(dataset: Dataset, table: str) -> None:
    """Of numbers that may be, in files whose checksums are the manifest's."""
    if table == "features":
        content = {"features": dataset.manifest["features"] | {"content": "0" * 32}}
        forged = with_manifest(dataset.path, dataset.manifest | content)
    else:
        forged = forge(dataset, table, setting("weight" if table == "rows" else "value", 2, 3.5))
    named = "features.parquet" if table == "features" else "rows/part-00000.parquet"
    assert forged.verify() == [
        f"{dataset.path / named}: the content is not the manifest's; restore the file or convert the data again"
    ]


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("class_counts", [60, 60], "classes"),
        ("classes", [-1, 3], "classes"),
    ],
)
def test_totals_of_the_manifest_are_verified(dataset: Dataset, key: str, value: Any, word: str) -> None:
    manifest = json.loads((dataset.path / "manifest.json").read_text())
    problems = with_manifest(dataset.path, manifest | {key: value}).verify()
    assert any(word in problem for problem in problems), problems


def test_counts_of_features_are_verified(tmp_path: Path) -> None:
    x, y = random_rows(30, 5)
    writer = ChunkWriter(tmp_path / "data", index_dtype=np.int32, value_dtype=np.float32)
    writer.write_chunk(np.arange(30), y, None, x.indptr.astype(np.int64), x.indices, x.data)
    statistics = feature_statistics(x)
    statistics["n_entries"][0] += 1
    writer.write_features([statistics])
    writer.close(
        n_features=5, index_base=1, classes=[-1, 1], class_counts=[int((y < 0).sum()), int((y > 0).sum())],
        label_kind="integer", seed=0, source=[],
    )  # fmt: skip
    (problem,) = open_dataset(tmp_path / "data").verify()
    assert "features.parquet" in problem


HOSTILE = [
    ("entries", setting("feature", 3, 8)),
    ("entries", setting("feature", 3, -1)),
    ("entries", setting("feature", slice(None), 2**31 - 1)),
    ("entries", setting("feature", slice(None), -(2**31))),
    ("entries", lambda columns: columns.update({name: column[:-1] for name, column in columns.items()})),
    ("entries", lambda columns: columns.update({name: np.append(c, c[-1]) for name, c in columns.items()})),
    ("rows", lambda columns: columns.update({name: column[:-1] for name, column in columns.items()})),
    ("rows", lambda columns: columns.update({name: np.append(c, c[-1]) for name, c in columns.items()})),
    ("rows", setting("n_entries", 2, -1)),
    ("rows", setting("n_entries", 2, 2**31 - 1)),
    ("rows", setting("n_entries", 0, -(2**31))),
    ("rows", setting("label", 2, 7.0)),
    ("rows", setting("label", 2, np.nan)),
]


def test_a_chunk_of_a_part_that_there_is_not_is_refused(dataset: Dataset) -> None:
    path = dataset.path / "chunks.parquet"
    table = pq.read_table(path)
    part = table["part"].to_numpy().copy()
    part[-1] = 2
    pq.write_table(table.set_column(0, table.schema.field("part"), pa.array(part)), path)
    manifest = json.loads((dataset.path / "manifest.json").read_text())
    manifest["chunks"] = {"bytes": path.stat().st_size, "checksum": checksum(path)}
    with pytest.raises(DatasetError, match=r"chunks\.parquet: a part that the manifest does not list"):
        with_manifest(dataset.path, manifest)


@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize(("table", "change"), HOSTILE)
def test_hostile_content_with_right_checksums_is_refused_not_run(
    dataset: Dataset, tmp_path: Path, table: str, change: Change, resident: bool
) -> None:
    """The kernels check no bounds: a feature or a count out of range would write anywhere in the process."""
    forged = forge(dataset, table, change)
    with pytest.raises(DatasetError, match=str(dataset.path)):
        train(forged, tmp_path / "run", plan=windows_of(forged, 2, resident=resident), max_passes=2)


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("entries", setting("value", 5, np.nan)),
        ("entries", setting("value", 5, np.inf)),
        ("rows", setting("weight", 2, np.nan)),
        ("rows", setting("weight", 2, -np.inf)),
    ],
)
def test_numbers_that_are_none_are_refused_or_left_out(tmp_path: Path, table: str, change: Change) -> None:
    """They never end up in a model that says it converged."""
    rows = multiclass()
    dataset = write_dataset(tmp_path / "data", rows, n_chunks=6, n_shards=2, weight=np.ones(rows[1].size))
    forged = forge(dataset, table, change)
    run, refusal = tmp_path / "run", ""
    try:
        result = train(forged, run, plan=windows_of(forged, 2), max_passes=5)
    except StreamcdError as error:
        refusal = str(error)
    if refusal:
        assert str(dataset.path) in refusal
    else:
        assert np.isfinite(np.load(run / "model" / "weights.npy")).all()
        assert np.isfinite(result.primal_objective)

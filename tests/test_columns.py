"""The column layout: the same entries in another order, whatever the memory, the chunks, or the kills in between."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import command_line
import forking
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from small_datasets import (
    NAMED,
    checksum,
    column_of,
    feature_statistics,
    random_rows,
    record_chunk_checksums,
    write_dataset,
)

from streamcd import Dataset, make_columns
from streamcd import open as open_dataset
from streamcd.conversion import transpose
from streamcd.core.errors import DatasetError, LockError, UsageError
from streamcd.core.files import write_metadata
from streamcd.dataset import staging
from streamcd.dataset.schema import COLUMN_LAYOUT

SMALL = {"chunk_size": 200, "shard_size": 1500}
FORM = (200, 1500, "auto")


def entries_of(columns: Any) -> sp.csc_array:
    """All entries, chunk by chunk, as a matrix; they come in the order that the format promises."""
    feature, row, value = [], [], []
    for chunk in range(columns.n_chunks):
        parts = columns.read_entries(chunk, ("feature", "row", "value"))
        for column, part in zip((feature, row, value), parts, strict=True):
            column.append(part)
    place = np.concatenate(feature), np.concatenate(row)
    key = place[0].astype(np.int64) * columns.dataset.n_rows + place[1]
    assert (np.diff(key) > 0).all()
    shape = (columns.dataset.n_rows, columns.dataset.n_features)
    return sp.csc_array((np.concatenate(value), (place[1], place[0])), shape=shape)


def wide_rows() -> tuple[sp.csr_array, np.ndarray]:
    """Few dense features, many rare ones, in a space that is mostly empty."""
    rng = np.random.default_rng(3)
    dense = np.zeros((150, 4000))
    dense[:, 5] = 1.0
    dense[:, 2000] = rng.random(150) < 0.6
    for _ in range(500):
        dense[rng.integers(150), rng.integers(3000)] = float(np.float32(rng.random()))
    return sp.csr_array(dense), np.where(rng.random(150) < 0.5, 1.0, -1.0)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return write_dataset(tmp_path / "data", wide_rows(), n_chunks=7, n_shards=3)


def files_of(columns: Any) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(columns.path.iterdir())}


@pytest.mark.parametrize("name", [*NAMED, "wide"])
def test_columns_hold_the_entries_of_the_rows(tmp_path: Path, name: str) -> None:
    x, y = wide_rows() if name == "wide" else NAMED[name]()
    dataset = write_dataset(tmp_path / "data", (x, y), n_chunks=4)
    before = (dataset.path / "manifest.json").read_bytes()
    columns = make_columns(dataset, **SMALL)
    assert (entries_of(columns) != sp.csc_array(x.astype(np.float32))).nnz == 0
    assert dataset.verify() == []
    assert columns.n_items == np.count_nonzero(np.diff(sp.csc_array(x).indptr))
    assert (dataset.path / "manifest.json").read_bytes() == before
    assert open_dataset(dataset.path).fingerprint == dataset.fingerprint


def test_chunks_hold_whole_features_but_for_large_ones(dataset: Dataset) -> None:
    columns = make_columns(dataset, **SMALL)
    assert columns.n_shards > 2
    sizes = np.diff(columns.entry_start)
    assert sizes.max() <= 200 // 8
    units = np.diff(columns.unit_start)
    assert (units > 1).sum() == 2, "two features are larger than a chunk"
    seen: set[int] = set()
    for unit in range(units.size):
        listed = [columns.read_index(c)[0] for c in range(*columns.unit_start[unit : unit + 2])]
        assert units[unit] == 1 or all(part.tolist() == listed[0].tolist() for part in listed)
        assert not seen & set(listed[0].tolist())
        seen |= set(listed[0].tolist())


def test_index_finds_every_feature(dataset: Dataset) -> None:
    x = sp.csc_array(wide_rows()[0])
    columns = make_columns(dataset, **SMALL)
    for feature in [0, 1, 4, 5, 6, 1999, 2000, 2001, 3999, *np.flatnonzero(np.diff(x.indptr))[::7].tolist()]:
        row, value = column_of(columns, feature)
        column = x[:, [feature]].toarray()[:, 0]
        assert row.tolist() == np.flatnonzero(column).tolist()
        assert value.tolist() == column[row].astype(np.float32).tolist()


@pytest.mark.parametrize(
    ("gather", "sort_bytes"), [(1, 500), (5_000, 4_000), (3_000, 20_000), (10**6, 10**7)]
)
def test_result_does_not_depend_on_the_memory(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gather: int, sort_bytes: int
) -> None:
    """Down to buckets of a feature each."""
    expected = files_of(make_columns(dataset, **SMALL))
    monkeypatch.setattr(transpose, "_make_plan", lambda *_: transpose.Plan(gather, sort_bytes, *FORM))
    other = write_dataset(tmp_path / "other", wide_rows(), n_chunks=7, n_shards=3)
    assert files_of(make_columns(other, **SMALL)) == expected


@pytest.mark.usefixtures("lend")
@pytest.mark.parametrize(("gather", "sort_bytes"), [(3_000, 900), (10**6, 10**7)])
def test_result_does_not_depend_on_the_workers(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gather: int, sort_bytes: int
) -> None:
    expected = files_of(make_columns(dataset, **SMALL))
    monkeypatch.setattr(transpose, "_make_plan", lambda *_: transpose.Plan(gather, sort_bytes, *FORM))
    other = write_dataset(tmp_path / "other", wide_rows(), n_chunks=7, n_shards=3)
    assert files_of(make_columns(other, workers=2, **SMALL)) == expected
    assert other.verify() == []
    assert [name for name in os.listdir(other.path) if name.startswith(".")] == []


def test_kill_leaves_no_half_layout(dataset: Dataset) -> None:
    """SIGKILL in the middle: no layout; asked again, it is there, the same."""
    expected_path = write_dataset(dataset.path.with_name("other"), wide_rows(), n_chunks=7, n_shards=3)
    expected = files_of(make_columns(expected_path, **SMALL))
    code = (
        "import sys, time\n"
        "from streamcd.conversion import transpose\n"
        "from streamcd.core.options import Listener\n"
        "transpose._make_plan = lambda *_: transpose.Plan(2_500, 3_000, 200, 1500, 'auto')\n"
        "class Slow(Listener):\n"
        "    def progress(self, progress):\n"
        "        print(progress.phase, flush=True)\n"
        "        time.sleep(0.02 if progress.phase == 'scatter' else 5)\n"
        f"transpose.make_columns({str(dataset.path)!r}, listener=Slow(), chunk_size=200, shard_size=1500)\n"
    )
    process = forking.Forked(["-c", code], stdout=forking.PIPE)
    assert process.stdout is not None
    assert "sort\n" in process.stdout  # read so far, not to the end
    with pytest.raises(LockError, match="another process"):
        make_columns(dataset, **SMALL)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with pytest.raises(DatasetError, match="no column layout"):
        dataset.open_columns()
    assert files_of(make_columns(dataset, **SMALL)) == expected


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_kill_in_the_last_cleaning_up_leaves_a_whole_layout_and_no_obstacle(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(transpose, "_make_plan", lambda *_: transpose.Plan(2_500, 3_000, *FORM))
    expected = files_of(make_columns(dataset, **SMALL))
    left = after

    def remove(*given: object, **named: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        unlink(*given, **named)

    unlink, put = os.unlink, staging.put_directory

    def put_and_patch(*given: Path, force: bool) -> None:
        put(*given, force=force)
        patched.setattr(os, "unlink", remove)

    with monkeypatch.context() as patched:
        patched.setattr(staging, "put_directory", put_and_patch)
        with pytest.raises(KeyboardInterrupt):
            make_columns(dataset, force=True, **SMALL)
    assert (dataset.path / ".columns.partial").exists()
    assert dataset.verify() == []
    assert files_of(dataset.open_columns()) == expected
    assert files_of(make_columns(dataset, force=True, **SMALL)) == expected
    assert [name for name in os.listdir(dataset.path) if name.startswith(".")] == []


def test_layout_of_another_dataset_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    make_columns(dataset, **SMALL)
    other = write_dataset(tmp_path / "other", random_rows(), n_chunks=3)
    os.rename(dataset.path / "columns", other.path / "columns")
    with pytest.raises(DatasetError, match="fingerprint"):
        other.open_columns()
    assert any("fingerprint" in problem for problem in other.verify())


def test_existing_layout_is_kept_without_force(dataset: Dataset) -> None:
    before = files_of(make_columns(dataset, **SMALL))
    with pytest.raises(UsageError, match="force=True"):
        make_columns(dataset, chunk_size=400)
    assert files_of(dataset.open_columns()) == before
    assert files_of(make_columns(dataset, chunk_size=400, force=True)) != before


def test_too_little_memory_is_refused_with_the_arithmetic(dataset: Dataset) -> None:
    with pytest.raises(UsageError, match=r"chunks being read.* = .* needed"):
        make_columns(dataset, memory="211MB")


def test_a_layout_that_counts_other_entries_is_refused_by_name(dataset: Dataset) -> None:
    columns = make_columns(dataset)
    manifest = json.loads((columns.path / "manifest.json").read_text()) | {"n_entries": 0}
    write_metadata(columns.path / "manifest.json", COLUMN_LAYOUT, manifest)  # with a digest that agrees
    with pytest.raises(DatasetError, match=r"manifest.json: damaged"):
        dataset.open_columns()


@pytest.mark.usefixtures("lend")
def test_verify_names_damage(dataset: Dataset) -> None:
    """`Dataset.verify` used to say nothing of the columns; only the command looked at them."""
    columns = make_columns(dataset, **SMALL)
    path = columns.path / columns.manifest["parts"][1]["entries"]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    for found in (dataset.verify(), dataset.verify(workers=2)):
        assert any(path.name in problem for problem in found)


def test_verify_finds_entries_that_are_not_those_of_the_rows(dataset: Dataset, tmp_path: Path) -> None:
    """A layout that is sound in itself, of other values: only the comparison can tell."""
    x, y = wide_rows()
    x.data[17] += 0.5
    make_columns(dataset, **SMALL)
    other = write_dataset(tmp_path / "other", (x, y), n_chunks=7, n_shards=3)
    columns = make_columns(other, **SMALL)
    manifest = {**columns.manifest, "dataset": dataset.fingerprint}
    write_metadata(columns.path / "manifest.json", COLUMN_LAYOUT, manifest)
    os.rename(dataset.path / "columns", tmp_path / "away")
    os.rename(other.path / "columns", dataset.path / "columns")
    assert any("not those of the rows" in problem for problem in dataset.verify())


@pytest.mark.usefixtures("lend")
@pytest.mark.parametrize(
    ("column", "word"), [("row", "ascending"), ("value", "finite"), ("feature", "index")]
)
def test_verify_finds_what_is_wrong_in_a_sound_file(dataset: Dataset, column: str, word: str) -> None:
    """In a piece that goes on with the feature of the chunk before."""
    columns = make_columns(dataset, **SMALL)
    bad = int(np.flatnonzero(np.diff(columns.item_start) == 0)[-1])
    part = columns.manifest["parts"][columns.chunk_part[bad]]
    path = columns.path / part["entries"]
    with pq.ParquetFile(path) as file:
        groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
    with pq.ParquetWriter(path, groups[0].schema, use_dictionary=False, write_page_checksum=True) as writer:
        for number, group in enumerate(groups):
            if number == columns.chunk_group[bad]:
                place = group.column_names.index(column)
                changed = np.full(group.num_rows, np.nan if column == "value" else 0)
                group = group.set_column(
                    place, group.schema.field(place), pa.array(changed).cast(group.schema.types[place])
                )
            writer.write_table(group)
    part |= {"entries_bytes": path.stat().st_size, "entries_checksum": checksum(path)}
    manifest = {
        **columns.manifest,
        "chunks": columns.manifest["chunks"]
        | record_chunk_checksums(columns.path, columns.manifest["parts"]),
    }
    write_metadata(columns.path / "manifest.json", COLUMN_LAYOUT, manifest)
    for workers in (1, 2):
        assert [columns.place(bad) in line and word in line for line in dataset.verify(workers=workers)] == [
            True
        ]


def test_a_wrong_count_of_a_feature_is_an_error_not_a_wrong_layout(tmp_path: Path) -> None:
    x, y = random_rows()
    statistics = feature_statistics(x)
    statistics["n_entries"][[2, 3]] += [1, -1]
    dataset = write_dataset(tmp_path / "data", (x, y), n_chunks=3, statistics=statistics)
    with pytest.raises(DatasetError, match=r"features\.parquet"):
        make_columns(dataset)


def test_command_line_makes_the_layout(dataset: Dataset) -> None:
    made = command_line.run_json("columns", dataset.path)
    assert made["n_entries"] == dataset.n_entries
    assert command_line.run_json("info", dataset.path)["columns"] is True
    assert command_line.run_json("verify", dataset.path) == {"ok": True, "problems": []}
    again = command_line.run("columns", dataset.path)
    assert again.returncode == 2
    assert "--force" in again.stderr

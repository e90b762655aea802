"""Conversion: the same dataset whatever the memory, complete or absent, within the budget."""

from __future__ import annotations

import errno
import itertools
import lzma
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forking
import numpy as np
import pytest
import scipy.sparse as sp
from forking import Forked
from small_datasets import feature_statistics

from streamcd import Dataset, convert, make_columns
from streamcd import open as open_dataset
from streamcd.cli.synthetic import write_text_like
from streamcd.conversion.pipeline import Plan
from streamcd.core.errors import DataError, EnvironmentFailure, UsageError
from streamcd.core.memory_budget import RESERVED_BYTES
from streamcd.dataset import staging

ROOT = Path(__file__).resolve().parent.parent


def all_rows(dataset: Dataset) -> tuple[sp.csr_array, np.ndarray, np.ndarray]:
    """Rows, labels and weights in the order of the source."""
    table = dataset.head(dataset.n_rows).sort_by("source")
    assert table["source"].to_pylist() == list(range(dataset.n_rows))
    return dataset.to_scipy()[0], dataset.labels(), table["weight"].to_numpy()


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    """Some 3,000 rows of made text, sorted by class."""
    path = tmp_path / "text.libsvm"
    write_text_like(path, n_rows=3000, n_features=2000, entries_per_row=20, seed=1)
    lines = sorted(path.read_bytes().splitlines(keepends=True), key=lambda line: line.split()[0])
    path.write_bytes(b"".join(lines))
    return path


@pytest.fixture
def with_plan(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``with_plan(sort_bytes=20_000)`` makes conversions work with less memory than any real budget leaves."""

    def set_plan(**changes: int) -> None:
        plan = {
            "block_bytes": 4096,
            "max_line_bytes": 1 << 20,
            "sort_bytes": 1 << 22,
            "statistics_bytes": 1 << 20,
        }
        monkeypatch.setattr(
            sys.modules["streamcd.conversion.convert"],
            "make_plan",
            lambda *_: Plan(**{**plan, "map_bytes": 1 << 20, **changes}),
        )

    return set_plan


# ---------------------------------------------------------------------------------------------------------------------
# What is in it


@pytest.mark.parametrize("name", ["heart_scale", "a9a", "dna.scale"])
def test_real_sets_have_the_rows_that_scikit_learn_loads(
    name: str, real_data: Callable[[str], Path], tmp_path: Path
) -> None:
    from sklearn.datasets import load_svmlight_file

    with lzma.open(real_data(name)) as file:
        x, y = load_svmlight_file(file, zero_based=False, dtype=np.float64)
    x.eliminate_zeros()
    dataset = convert(real_data(name), tmp_path / "data")
    found, label, weight = all_rows(dataset)
    assert dataset.verify() == []
    assert (found != sp.csr_array(x.astype(np.float32))).nnz == 0
    assert np.array_equal(label, y)
    assert np.all(weight == 1)
    assert dataset.classes is not None
    assert np.array_equal(dataset.classes, np.unique(y))


def test_float64_keeps_all_digits(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("1 1:0.1 2:1e300\n")
    x, _, _ = all_rows(convert(tmp_path / "in", tmp_path / "out", dtype="float64"))
    assert x.toarray().tolist() == [[0.1, 1e300]]


def test_sorted_by_class_input_is_shuffled(text_file: Path, tmp_path: Path) -> None:
    dataset = convert(text_file, tmp_path / "data", chunk_size="20kB")
    shares = [float(np.mean(dataset.read(chunk).label > 0)) for chunk in range(dataset.n_chunks)]
    assert dataset.n_chunks > 10
    assert all(0.3 < share < 0.7 for share in shares[:-1])
    source = np.concatenate([dataset.read(chunk).source for chunk in range(dataset.n_chunks)])
    assert abs(np.corrcoef(source, np.arange(source.size))[0, 1]) < 0.1


def test_chunks_are_cut_by_size_and_a_large_row_is_a_chunk_of_its_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 60, 400)
    lengths[[3, 200]] = 2000
    (tmp_path / "in").write_text(
        "".join("1 " + " ".join(f"{i}:1" for i in range(1, length + 1)) + "\n" for length in lengths)
    )
    dataset = convert(tmp_path / "in", tmp_path / "out", chunk_size=4000, shard_size=20_000)
    assert dataset.n_shards > 3
    sizes = 8 * np.diff(dataset.entry_start) + 16 * np.diff(dataset.row_start)
    alone = np.diff(dataset.row_start) == 1
    assert np.all(sizes[~alone] <= 4000)
    assert (sizes > 4000).sum() == 2
    first_of_next = np.array([8 * (dataset.read(c).indptr[1]) + 16 for c in range(1, dataset.n_chunks)])
    assert np.all(sizes[:-1] + first_of_next > 4000)  # greedy: the next row would not have fitted


def test_nearly_empty_rows_do_not_make_endless_chunks(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("1\n-1\n" * 2000)
    dataset = convert(tmp_path / "in", tmp_path / "out", chunk_size=16_000)
    assert np.diff(dataset.row_start).max() == 1000
    assert dataset.n_features == 0
    assert dataset.verify() == []


# ---------------------------------------------------------------------------------------------------------------------
# The same dataset whatever the circumstances


def test_same_fingerprint_whatever_the_memory(
    text_file: Path, tmp_path: Path, with_plan: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = convert(text_file, tmp_path / "whole", chunk_size="20kB", shard_size="100kB")
    # the lengths of all rows of a range of buckets were one array: 20 bytes a row in the process that hands out work
    monkeypatch.setattr("streamcd.conversion.external_shuffle._LENGTHS_AT_A_TIME", 7)
    plans = [
        {
            "sort_bytes": 40_000,
            "statistics_bytes": 5000,
            "block_bytes": 2000,
        },  # splits buckets; looks for features
        {"sort_bytes": 100_000, "statistics_bytes": 30_000},  # ranges of features
        {"sort_bytes": 300_000, "block_bytes": 1 << 16},
    ]
    for number, plan in enumerate(plans):
        with_plan(**plan)
        dataset = convert(text_file, tmp_path / f"{number}", chunk_size="20kB", shard_size="100kB")
        assert dataset.fingerprint == expected.fingerprint
        assert dataset.verify() == []


def test_a_bucket_that_is_too_large_is_scattered_again(
    text_file: Path, tmp_path: Path, with_plan: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = convert(text_file, tmp_path / "whole")
    monkeypatch.setattr("streamcd.conversion.pipeline.MAX_BITS", 1)  # two buckets at a time
    with_plan(sort_bytes=120_000)
    assert convert(text_file, tmp_path / "split").fingerprint == expected.fingerprint


def test_rows_that_get_wide_indices_late_are_sorted_with_the_others(
    tmp_path: Path, with_plan: Callable[..., None]
) -> None:
    lines = [f"1 {i + 1}:{i + 1} {2**20 + i}:2\n" for i in range(1000)] + [
        f"-1 {2**40 + i}:1\n" for i in range(1000)
    ]
    (tmp_path / "in").write_text("".join(lines))
    expected = convert(tmp_path / "in", tmp_path / "whole")
    with_plan(sort_bytes=30_000, statistics_bytes=10_000, block_bytes=1000)
    dataset = convert(tmp_path / "in", tmp_path / "out")
    assert dataset.index_dtype == np.int64
    assert dataset.n_features == 2**40 + 999
    assert dataset.fingerprint == expected.fingerprint
    assert dataset.verify() == []


# ---------------------------------------------------------------------------------------------------------------------
# Base, width, labels


def test_an_index_beyond_the_width_is_refused_by_line_also_where_the_base_is_known_late(
    tmp_path: Path,
) -> None:
    (tmp_path / "in").write_text("1 1:1\n1 6:1\n")
    with pytest.raises(DataError, match="in:2: expected indices up to 5 "):
        convert(tmp_path / "in", tmp_path / "out", n_features=5)
    (tmp_path / "in").write_text("1 1:1\n1 5:1\n1 0:1\n")
    with pytest.raises(DataError, match="in:2: expected indices up to 4 "):
        convert(tmp_path / "in", tmp_path / "out", n_features=5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_compact_renumbers_and_keeps_the_map(tmp_path: Path, with_plan: Callable[..., None]) -> None:
    (tmp_path / "in").write_text(f"1 7:1 {2**50}:2\n-1 9:3 {2**50}:4 {2**62}:5\n")
    dataset = convert(tmp_path / "in", tmp_path / "out", compact=True)
    assert dataset.n_features == 4
    assert dataset.index_dtype == np.int32
    assert all_rows(dataset)[0].toarray().tolist() == [[1, 0, 2, 0], [0, 3, 4, 5]]
    (features,) = dataset.read_features()
    assert features["index"].tolist() == [7, 9, 2**50, 2**62]
    assert dataset.verify() == []
    with_plan(map_bytes=10)
    with pytest.raises(UsageError, match="compact=True: 4 distinct features so far need 96 B"):
        convert(tmp_path / "in", tmp_path / "out2", compact=True)


def test_labels_are_counted_and_their_kind_is_kept(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("1.0 1:1\n-0\n2e0\n1\n0\n")
    dataset = convert(tmp_path / "in", tmp_path / "out")
    assert dataset.label_kind == "integer"
    assert dataset.info()["classes"] == [0, 1, 2]
    assert dataset.info()["class_counts"] == [2, 2, 1]
    (tmp_path / "in").write_text("1.5 1:1\n-1\n")
    assert convert(tmp_path / "in", tmp_path / "decimal").info()["classes"] == [-1, 1.5]


def test_weights_stay_with_their_rows(
    text_file: Path, tmp_path: Path, with_plan: Callable[..., None]
) -> None:
    (tmp_path / "weights").write_text("".join(f"{row}.5\n" for row in range(3000)))
    with_plan(sort_bytes=100_000)
    dataset = convert(text_file, tmp_path / "out", weights=tmp_path / "weights")
    assert dataset.weighted
    assert np.array_equal(all_rows(dataset)[2], np.arange(3000) + 0.5)
    for text, message in (
        ("1\n2\n", "found 2 weights and more rows"),
        ("1\n" * 3001, "found 3,001 weights and 3000 rows"),
        ("-1\n" * 3000, "row 1"),
    ):
        (tmp_path / "weights").write_text(text)
        with pytest.raises(DataError, match=message):
            convert(text_file, tmp_path / "bad", weights=tmp_path / "weights")


# ---------------------------------------------------------------------------------------------------------------------
# Statistics of features


def test_feature_statistics_are_over_all_rows_zeros_included(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    x = sp.csr_array(sp.random(50, 30, density=0.2, random_state=rng, data_rvs=rng.standard_normal))
    x = sp.csr_array(np.hstack([x.toarray(), np.full((50, 1), -2.0), np.full((50, 1), 3.0)]))
    lines = [
        f"1 {' '.join(f'{i + 1}:{v!r}' for i, v in enumerate(row) if v)}\n" for row in x.toarray().tolist()
    ]
    (tmp_path / "in").write_text("".join(lines))
    dataset = convert(tmp_path / "in", tmp_path / "out", dtype="float64")
    (found,) = dataset.read_features()
    for name, column in feature_statistics(x).items():
        np.testing.assert_allclose(found[name], column, rtol=1e-12, atol=1e-15, err_msg=name)


# ---------------------------------------------------------------------------------------------------------------------
# All or nothing


def test_work_goes_to_no_directory_of_others_and_through_no_link(text_file: Path, tmp_path: Path) -> None:
    """What a symbolic link led to was emptied, and so was a directory that somebody had made for himself."""
    mine, work = tmp_path / "mine", tmp_path / ".data.partial"
    mine.mkdir()
    (mine / "letter").write_text("keep me")
    for link, target in ((True, mine), (True, text_file), (True, tmp_path / "nowhere"), (False, mine)):
        work.symlink_to(target) if link else shutil.copytree(target, work)
        with pytest.raises(UsageError, match=r"\.data\.partial: expected nothing, .* move it away"):
            convert(text_file, tmp_path / "data")
        assert (mine / "letter").read_text() == "keep me"
        assert link or (work / "letter").read_text() == "keep me"
        work.unlink() if link else shutil.rmtree(work)
    work.mkdir()
    (work / "lock").symlink_to(mine / "letter")
    with pytest.raises((UsageError, OSError)):
        convert(text_file, tmp_path / "data")
    assert (mine / "letter").read_text() == "keep me"


def test_a_column_layout_is_made_through_no_link(text_file: Path, tmp_path: Path) -> None:
    dataset = convert(text_file, tmp_path / "data")
    (tmp_path / "mine").mkdir()
    (dataset.path / ".columns.partial").symlink_to(tmp_path / "mine")
    with pytest.raises(UsageError, match="expected nothing"):
        make_columns(dataset)
    assert not any((tmp_path / "mine").iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": "200MB"}, r"memory 200 MB is too small: \d+ MB interpreter and libraries \+ .* needed"),
        ({"dtype": "int8"}, "dtype: expected one of float32, float64, found 'int8'"),
        ({"index_base": 2}, "index_base: expected one of auto, 0, 1, found '2'"),
        ({"n_features": 0}, "expected n_features from 1"),
        ({"compact": True, "n_features": 3}, "exclude each other"),
        ({"compression": "gzip"}, "compression: expected one of auto, none, lz4, zstd"),
        ({"workers": 0}, "workers: expected 1 or more, found 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: dict[str, Any], message: str, text_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        convert(text_file, tmp_path / "data", **options)
    assert not (tmp_path / "data").exists()


def test_a_full_disk_is_one_line_and_leaves_nothing(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_plan: Callable[..., None]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for target in (
        "streamcd.dataset.writer.PartWriter.write_chunk",
        "streamcd.core.external_partition.PartitionWriter._write",
    ):
        with monkeypatch.context() as patched:
            patched.setattr(target, full)
            with_plan(sort_bytes=50_000)
            with pytest.raises(EnvironmentFailure, match="the disk is full"):
                convert(text_file, tmp_path / "data")
        assert [path.name for path in tmp_path.iterdir()] == ["text.libsvm"]


SLOW_CONVERSION = """
import sys, time
import streamcd
class Slow(streamcd.Listener):
    def progress(self, progress):
        if progress.phase == "write":
            print("at work", flush=True)
            time.sleep(20)
streamcd.convert(sys.argv[1], sys.argv[2], chunk_size="20kB", force=True, listener=Slow())
"""


@pytest.fixture
def conversion_in_progress(text_file: Path, tmp_path: Path) -> Any:
    """A process that writes its first chunk."""
    process = Forked(["-c", SLOW_CONVERSION, text_file, tmp_path / "data"], stdout=forking.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "at work\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_second_conversion_to_the_same_place_is_refused(
    conversion_in_progress: Forked, text_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(EnvironmentFailure, match="another process writes there"):
        convert(text_file, tmp_path / "data")
    assert conversion_in_progress.poll() is None


def test_an_interrupted_conversion_cleans_up(conversion_in_progress: Forked, tmp_path: Path) -> None:
    conversion_in_progress.send_signal(signal.SIGINT)
    conversion_in_progress.wait(60)
    assert [path.name for path in tmp_path.iterdir()] == ["text.libsvm"]


def test_a_dataset_is_replaced_only_where_two_directories_can_change_places(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried before any work: after the work there would be two moves, and for a moment no dataset of that name."""

    def refused(path: Path, other: Path) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    old = convert(text_file, tmp_path / "data")
    monkeypatch.setattr(staging, "exchange", refused)
    monkeypatch.setattr(staging, "put_directory", None)
    with pytest.raises(UsageError, match=r"data: its file system replaces no .*; remove it first"):
        convert(text_file, tmp_path / "data", force=True)
    assert open_dataset(tmp_path / "data").fingerprint == old.fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", text_file.name]


@pytest.mark.parametrize("mark", [b"", bytes(len(staging._MARK))])
def test_a_mark_that_a_power_cut_has_emptied_is_no_obstacle(
    text_file: Path, tmp_path: Path, mark: bytes
) -> None:
    """It was never synced, and what a cut had left of a conversion was told to be another's, for good."""
    work = tmp_path / ".data.partial"
    (work / "dataset").mkdir(parents=True)
    (work / "lock").write_bytes(mark)
    (work / "letter").write_text("keep me")
    with pytest.raises(UsageError, match=r"expected nothing, .* move it away"):
        convert(text_file, tmp_path / "data")
    assert (work / "letter").read_text() == "keep me"
    (work / "letter").unlink()
    assert convert(text_file, tmp_path / "data").verify() == []
    assert not work.exists()


def test_a_refused_conversion_clears_what_an_interrupted_one_has_left(
    text_file: Path, tmp_path: Path
) -> None:
    convert(text_file, tmp_path / "data")
    work = tmp_path / ".data.partial"
    (work / "runs").mkdir(parents=True)
    (work / "lock").write_bytes(staging._MARK)
    with pytest.raises(UsageError, match="exists; name another place"):
        convert(text_file, tmp_path / "data")
    assert not work.exists()


class Killed(BaseException):
    """Where a process ends without a word."""


@contextmanager
def removals_end(monkeypatch: pytest.MonkeyPatch, place: Path, after: int) -> Iterator[None]:
    """Stop at the removal of one more file or directory than `after`, once `place` is there."""
    left = after
    with monkeypatch.context() as patch:
        for name in ("unlink", "rmdir"):
            real = getattr(os, name)

            def remove(*given: Any, real: Callable[..., None] = real, **named: Any) -> None:
                nonlocal left
                left -= place.exists()
                if left < 0:
                    raise Killed
                real(*given, **named)

            patch.setattr(os, name, remove)
        yield


def test_a_kill_at_any_moment_of_the_last_cleaning_up_leaves_a_whole_dataset_and_no_obstacle(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, expected = tmp_path / "data", convert(text_file, tmp_path / "expected").fingerprint
    for after in itertools.count():
        try:
            with removals_end(monkeypatch, data, after):
                convert(text_file, data)
            break
        except Killed:
            pass
        assert (tmp_path / ".data.partial").exists()
        assert open_dataset(data).verify() == []
        assert open_dataset(data).fingerprint == expected
        assert convert(text_file, data, force=True).fingerprint == expected
        assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "expected", "text.libsvm"]
        shutil.rmtree(data)
    assert after >= 2


# ---------------------------------------------------------------------------------------------------------------------
# Memory

CONVERT_AND_MEASURE = """
import sys
from streamcd import convert
from streamcd.core.memory_budget import peak_memory_bytes
dataset = convert(sys.argv[1], sys.argv[2], memory=sys.argv[3])
print(peak_memory_bytes(), dataset.fingerprint)
"""


def converted_in_a_process(
    source: Path, dest: Path, memory: str, cache: Path | None = None
) -> tuple[int, str]:
    """Peak resident bytes by the kernel's account, and fingerprint; in an empty `cache` the parser is compiled first."""
    environment = os.environ if cache is None else {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", CONVERT_AND_MEASURE, str(source), str(dest), memory],
        stdout=subprocess.PIPE, check=True, cwd=ROOT, env=environment, timeout=600,
    )  # fmt: skip
    peak, fingerprint = done.stdout.decode().split()
    return int(peak), fingerprint


@pytest.mark.parametrize(
    "cache", [None, pytest.param("cache", marks=pytest.mark.slow)], ids=["compiled", "to be compiled"]
)
def test_a_conversion_of_a_megabyte_stays_under_the_least_budget(
    cache: str | None, text_file: Path, tmp_path: Path
) -> None:
    least = RESERVED_BYTES + 29_000_000
    peak, _ = converted_in_a_process(
        text_file, tmp_path / "data", str(least), None if cache is None else tmp_path / cache
    )
    assert peak < least


def test_weights_without_end_stay_under_the_budget(text_file: Path, tmp_path: Path) -> None:
    """A line of weights could grow to 1 GB: /dev/zero took 2,278 MB of the 400 allowed."""
    program = CONVERT_AND_MEASURE.replace("convert(sys.argv[1], sys.argv[2], memory=sys.argv[3])", "None")
    program = program.replace("dataset.fingerprint", "said")
    refused = "try: convert(*sys.argv[1:3], memory=sys.argv[3], weights='/dev/zero')\nexcept Exception as e: said = str(e)\n"
    done = subprocess.run(
        [sys.executable, "-c", program.replace("dataset = None\n", refused), text_file, tmp_path / "data", "400MB"],
        stdout=subprocess.PIPE, check=True, cwd=ROOT, timeout=300, text=True,
    )  # fmt: skip
    peak, said = done.stdout.split(maxsplit=1)
    assert int(peak) < 400e6
    assert said.startswith("/dev/zero: expected lines of at most")


def test_scales_of_the_training_side_stay_under_the_budget(text_file: Path, tmp_path: Path) -> None:
    """They are in memory twice, for the coordinator and for the work, and were counted once."""
    (tmp_path / "wide").write_text("1 1:1 10000000:2\n-1 2:1\n")
    trained = convert(tmp_path / "wide", tmp_path / "trained", scale="maxabs").path
    with pytest.raises(UsageError, match="160 MB scales of the features"):
        convert(text_file, tmp_path / "refused", memory="320MB", like=trained)
    done = subprocess.run(
        [sys.executable, "-c", CONVERT_AND_MEASURE.replace("argv[3])", "argv[3], like=sys.argv[4])"),
         str(text_file), str(tmp_path / "data"), "405MB", str(trained)],
        capture_output=True, text=True, cwd=ROOT, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert 160e6 < int(done.stdout.split()[0]) < 405e6


@pytest.mark.slow
def test_peak_memory_stays_under_the_budget_on_text_twice_as_large(tmp_path: Path) -> None:
    write_text_like(tmp_path / "large", n_rows=500_000, n_features=1_000_000, entries_per_row=90, seed=0)
    assert (tmp_path / "large").stat().st_size > 600e6
    fingerprints = set()
    for memory, budget in (("240MB", 240e6), ("300MB", 300e6), ("1GB", 1e9)):
        peak, fingerprint = converted_in_a_process(
            tmp_path / "large", tmp_path / memory, memory, tmp_path / f"cache {memory}"
        )
        fingerprints.add(fingerprint)
        assert peak < budget
    assert len(fingerprints) == 1


def test_a_dataset_is_no_source(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("1 1:1\n-1 2:1\n")
    made = convert(tmp_path / "t.txt", tmp_path / "data")
    with pytest.raises(UsageError, match="data is a dataset, expected files of data; 'streamcd export"):
        convert(made.path, tmp_path / "again")

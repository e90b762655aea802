"""Records dealt out to buckets on disk come back bucket by bucket, in the order in which they were written."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from streamcd.core.external_partition import (
    Layout,
    PartitionReader,
    PartitionWriter,
    Ranges,
    Records,
    index_path,
)
from streamcd.kernels import scatter

FLAT = Layout((np.dtype(np.int64), np.dtype((np.float64, (3,)))))
RAGGED = Layout((np.dtype(np.int64), np.dtype(np.float32)), (np.dtype(np.int32), np.dtype(np.uint8)))
N_BUCKETS = 7


def made_records(n: int, layout: Layout, seed: int = 0) -> tuple[np.ndarray, Records]:
    """Buckets and records, numbered in the first field; one of them has many items."""
    rng = np.random.default_rng(seed)
    bucket = rng.choice([0, 1, 2, 4, 5, 6], n).astype(np.uint16)
    fields = [
        np.arange(n),
        *(rng.random((n, *dtype.shape)).astype(dtype.base) for dtype in layout.fields[1:]),
    ]
    if not layout.items:
        return bucket, Records(fields)
    lengths = rng.integers(0, 5, n)
    lengths[n // 2] = 500
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return bucket, Records(
        fields, indptr, [rng.integers(0, 200, indptr[-1]).astype(dtype) for dtype in layout.items]
    )


def write(path: Path, layout: Layout, bucket: np.ndarray, records: Records, memory_bytes: int) -> Path:
    with PartitionWriter(path, layout, N_BUCKETS, memory_bytes) as writer:
        for start, stop in pairwise([0, 3, 3, 90, bucket.size]):
            writer.append(bucket[start:stop], records.slice(start, stop))
    return path


def assert_same(found: Records, expected: Records) -> None:
    for one, other in zip([*found.fields, *found.items], [*expected.fields, *expected.items], strict=True):
        np.testing.assert_array_equal(one, other)
    assert (found.indptr is None) == (expected.indptr is None)
    if found.indptr is not None:
        np.testing.assert_array_equal(found.indptr, expected.indptr)


@pytest.mark.parametrize("layout", [FLAT, RAGGED])
@pytest.mark.parametrize("memory_bytes", [1, 700, 10**7])
def test_buckets_come_back_in_the_order_of_writing(tmp_path: Path, layout: Layout, memory_bytes: int) -> None:
    """From two runs, whatever the memory; down to a record at a time, and records larger than the memory."""
    bucket, records = made_records(300, layout)
    cut = 110
    first = write(tmp_path / "a", layout, bucket[:cut], records.slice(0, cut), memory_bytes)
    second = write(tmp_path / "b", layout, bucket[cut:], records.slice(cut, 300), memory_bytes)
    with PartitionReader([first, second], layout) as reader:
        for number in range(N_BUCKETS):
            expected = records.take(np.flatnonzero(bucket == number))
            assert_same(reader.read(number), expected)
            assert reader.size(number) == (expected.size, len(expected.items[0]) if expected.items else 0)
            blocks = list(reader.blocks(number, max(memory_bytes, 50)))
            assert [k for block in blocks for k in block.fields[0]] == expected.fields[0].tolist()
            if layout.items:
                assert reader.read(number, items=False).indptr.tolist() == expected.indptr.tolist()


def test_runs_of_other_widths_are_read_as_one(tmp_path: Path) -> None:
    bucket, records = made_records(200, RAGGED)
    wide = Layout(RAGGED.fields, (np.dtype(np.int64), RAGGED.items[1]))
    paths = [
        write(tmp_path / name, layout, bucket, records, 2000) for name, layout in (("a", RAGGED), ("b", wide))
    ]
    with PartitionReader(paths, wide) as reader:
        found = reader.read(4)
    expected = records.take(np.flatnonzero(bucket == 4))
    assert found.items[0].dtype == np.int64
    assert found.items[0].tolist() == 2 * expected.items[0].tolist()


def test_a_bucket_is_dealt_out_again(tmp_path: Path) -> None:
    bucket, records = made_records(400, RAGGED)
    path = write(tmp_path / "whole", RAGGED, bucket, records, 1000)
    ranges = Ranges(0, [100, 101, 350, 400])
    writer = PartitionWriter(tmp_path / "parts", RAGGED, 4, 600)
    with PartitionReader([path], RAGGED) as reader, writer:
        for block in reader.blocks(5, 300):
            writer.append(ranges.number(block.fields[0]), block)
    with PartitionReader([tmp_path / "parts"], RAGGED) as reader:
        for number, (start, stop) in enumerate(pairwise([0, 100, 101, 350, 400])):
            source = np.arange(400)
            chosen = np.flatnonzero((bucket == 5) & (source >= start) & (source < stop))
            assert_same(reader.read(number), records.take(chosen))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
def test_ranges_number_keys(dtype: type) -> None:
    rng = np.random.default_rng(1)
    for width in (1, 2, 1000, 2**31 - 20):
        ends = np.unique(np.append(rng.integers(1, width + 1, 40), width)) + 10
        key = rng.integers(10, 10 + width, 1000).astype(dtype)
        expected = np.searchsorted(ends, key, side="right")
        assert Ranges(10, ends).number(key).tolist() == expected.tolist()


def test_a_run_is_complete_when_its_index_is_there(tmp_path: Path) -> None:
    """An error leaves no index, a durable run is there as a whole; a run that lost bytes is told of."""
    bucket, records = made_records(200, FLAT)
    with (
        pytest.raises(ValueError, match="shape"),
        PartitionWriter(tmp_path / "run", FLAT, N_BUCKETS, 2000) as writer,
    ):
        writer.append(bucket, records._replace(fields=[records.fields[0], np.zeros((1, 2))]))
    assert not index_path(tmp_path / "run").exists()
    with PartitionWriter(tmp_path / "run", FLAT, N_BUCKETS, 2000, durable=True) as writer:
        writer.append(bucket, records)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.index"]
    with open(tmp_path / "run", "r+b") as file:
        file.truncate(3000)
    with PartitionReader([tmp_path / "run"], FLAT) as reader, pytest.raises(OSError, match="shorter"):
        reader.read(6)


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
@pytest.mark.parametrize("top", [2**64, 2**20, 1001])
def test_keys_are_sorted(n: int, top: int) -> None:
    keys = np.random.default_rng(n).choice(np.arange(1001), n, replace=False).astype(np.uint64)
    keys *= np.uint64((top - 1) // 1000)
    order = np.empty(n, np.int64)
    scatter.sort_keys(keys, np.empty((1 << n.bit_length()) + 1, np.int64), order)
    assert np.array_equal(order, np.argsort(keys))

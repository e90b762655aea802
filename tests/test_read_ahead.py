"""Reading past the page cache: the same bytes in any order of taking, within a bound; where it cannot be done, as before."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from small_datasets import random_rows, windows_of, write_dataset

from streamcd import open as open_dataset
from streamcd.core.errors import DatasetError
from streamcd.dataset import read_ahead
from streamcd.dataset.read_ahead import Ring
from streamcd.stream import stream
from streamcd.stream.arenas import RowLayout
from streamcd.stream.stream import Stream

SIZE = 3_000_001


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "bytes"
    path.write_bytes(np.random.default_rng(7).integers(0, 256, SIZE, dtype=np.uint8).tobytes())
    return path


@pytest.fixture
def ahead() -> Ring:
    return Ring()


def ranges(seed: int, n: int) -> list[tuple[int, int]]:
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, SIZE - 1, n)
    return [(int(start), int(rng.integers(1, min(200_000, SIZE - start) + 1))) for start in starts]


def test_any_range_comes_back_as_it_is(file: Path, ahead: Ring) -> None:
    """Whatever the alignment, to the last byte of the file; more is announced than may be held."""
    data = file.read_bytes()
    wanted = [*ranges(1, 200), (SIZE - 1, 1), (0, SIZE), (4096, 4096)]
    for offset, length in wanted:
        ahead.announce(file, offset, length)
    for offset, length in wanted:
        taken = ahead.take(file, offset)
        assert taken is not None
        assert bytes(taken) == data[offset : offset + length]
    ahead.close()


def test_what_is_held_stays_within_the_bound(file: Path) -> None:
    ahead, most = Ring(500_000), 0
    wanted = ranges(2, 150)
    for offset, length in wanted:
        ahead.announce(file, offset, length)
    for offset, length in wanted:
        taken = ahead.take(file, offset)
        assert taken is not None
        assert len(taken) == length
        most = max(most, ahead._held + sum(map(len, ahead._free)))
    assert 200_000 < most <= 500_000
    ahead.close()


def test_ranges_left_out_are_given_up_and_unknown_ones_are_the_callers(file: Path, ahead: Ring) -> None:
    data = file.read_bytes()
    wanted = ranges(3, 120)
    for offset, length in wanted:
        ahead.announce(file, offset, length)
    for offset, length in wanted[::7]:
        assert ahead.take(file, SIZE + 5) is None
        taken = ahead.take(file, offset)
        assert taken is not None
        assert bytes(taken) == data[offset : offset + length]
    assert ahead.take(file, wanted[1][0]) is None  # was given up
    ahead.close()


def test_a_file_that_is_short_or_gone_is_left_to_the_caller(file: Path, ahead: Ring) -> None:
    ahead.announce(file, SIZE - 10, 11)
    ahead.announce(file.with_name("none"), 0, 10)
    ahead.announce(file, 5, 10)
    assert ahead.take(file, SIZE - 10) is None
    assert ahead.take(file.with_name("none"), 0) is None
    assert ahead.take(file, 5) is not None
    assert ahead.possible
    ahead.close()


def test_closing_ends_the_threads_whatever_is_still_to_come(file: Path) -> None:
    before = threading.active_count()
    ahead = Ring()
    for offset, length in ranges(4, 300):
        ahead.announce(file, offset, length)
    ahead.close()
    assert threading.active_count() == before


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Makes every stream read past the page cache; for each read of entries, whether its bytes had been read ahead."""
    handed: list[bool] = []
    take = Ring.take

    def noting(ahead: Ring, path: Path, offset: int) -> memoryview | None:
        taken = take(ahead, path, offset)
        if path.parent.name == "entries":
            handed.append(taken is not None)
        return taken

    monkeypatch.setattr(stream, "available_memory", lambda held: 0)
    monkeypatch.setattr(Ring, "take", noting)
    return handed


LAYOUT = RowLayout(alpha_width=1, n_flags=1)


def contents(path: Path, n_chunks: int, reads: int = 3) -> list[tuple[bytes, ...]]:
    """Entries of all windows of some reads, the first of which breaks off half-way."""
    dataset = open_dataset(path)
    found = []
    with Stream(dataset, windows_of(dataset, n_chunks), LAYOUT, 1) as windows:
        for read in range(reads):
            for window in windows.windows(read):
                arena, n = window.arena, window.n_entries
                found.append((arena.feature[:n].tobytes(), arena.value[:n].tobytes(), arena.code.tobytes()))
                if read == 0 and window.number > window.count // 2:
                    break
    return found


def test_windows_are_the_same_as_through_the_page_cache(tmp_path: Path, direct: list[bool]) -> None:
    path = write_dataset(tmp_path / "data", random_rows(400, 30, seed=3), n_chunks=40, n_shards=3).path
    past = contents(path, 5)
    assert sum(direct) > 0.9 * len(direct)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "available_memory", lambda held: 2**62)
        assert contents(path, 5) == past


def test_a_file_system_without_direct_reads_serves_as_well(
    tmp_path: Path, direct: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    path = write_dataset(tmp_path / "data", random_rows(200, 20, seed=3), n_chunks=20, n_shards=2).path
    past = contents(path, 4)
    direct.clear()
    monkeypatch.setattr(read_ahead, "_read_blocks", refuse)
    assert contents(path, 4) == past
    assert not any(direct)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing"])
def test_damage_is_named(tmp_path: Path, direct: list[bool], damage: str) -> None:
    path = write_dataset(tmp_path / "data", random_rows(200, 20, seed=3), n_chunks=20, n_shards=2).path
    victim = path / "entries" / "part-00001.parquet"
    data = bytearray(victim.read_bytes())
    if damage == "missing":
        victim.unlink()
    elif damage == "truncated":
        victim.write_bytes(data[: len(data) // 3])
    else:
        column = pq.read_metadata(victim).row_group(0).column(2)
        data[column.data_page_offset + column.total_compressed_size - 1] ^= 1  # a value
        victim.write_bytes(data)
    with pytest.raises(DatasetError, match="part-00001"):
        contents(path, 4, reads=2)


def test_both_tables_of_a_chunk_are_announced_to_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only entries were: a cold read waited for the disk once a chunk, for a few kB of labels."""
    write_dataset(tmp_path / "data", random_rows())
    dataset = open_dataset(tmp_path / "data")
    announced = set()
    monkeypatch.setattr(os, "posix_fadvise", lambda _, offset, n_bytes, advice: announced.add(offset))
    dataset.announce([0])
    for table, column in (("rows", 2), ("entries", 1)):
        group = pq.read_metadata(dataset.path / dataset.manifest["parts"][0][table]).row_group(0)
        assert group.column(column).data_page_offset in announced

"""Reads of a shrunken training: copies of the active rows take the place of the dataset, to the same bits."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from heard import Heard
from interrupted import ended
from small_datasets import random_rows, write_dataset
from test_memory import assert_within, peak_of_training, write_large

from streamcd import Dataset, train
from streamcd import open as open_dataset
from streamcd.core.memory_budget import RUNNING_BYTES
from streamcd.solvers import row_solver
from streamcd.stream.arenas import RowLayout, Window
from streamcd.stream.memory_plan import Plan
from streamcd.stream.stream import Stream

LAYOUT = RowLayout(alpha_width=1, n_flags=1)


def log_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def plan_of(dataset: Dataset, n_chunks: int) -> Plan:
    """A plan whose windows hold so many average chunks, and whose arenas hold no more than that."""
    rows, entries = (int(1.1 * n_chunks * n / dataset.n_chunks) for n in (dataset.n_rows, dataset.n_entries))
    return Plan(entries, rows, resident=False)


# ---------------------------------------------------------------------------------------------------------------------
# Windows


class ShrinkingReads:
    """Reads of a dataset whose rows shrink and return at random; every window is compared with the dataset."""

    def __init__(self, dataset: Dataset, stream: Stream, seed: int) -> None:
        self.dataset, self.stream = dataset, stream
        self.rng = np.random.default_rng(seed)
        self.active = np.ones(dataset.n_rows, dtype=np.uint8)
        self.from_copies = 0

    def read(self, number: int) -> int:
        """Carry out a read; returns the bytes read."""
        rng, before = self.rng, self.stream.bytes_read
        rows_return, all_rows = rng.random() < 0.1, rng.random() < 0.15
        if rows_return:
            self.active[:] = 1
        keeps = not all_rows and rng.random() < 0.8
        self.stream.begin_read(all_rows=all_rows, rows_return=rows_return)
        for window in self.stream.windows(number):
            self.check(window, all_rows)
            if keeps:
                self.shrink(window, float(rng.uniform(0.3, 1.0)))
                assert self.stream.keep_active(window, np.array([True])) == ""
        return self.stream.bytes_read - before

    def shrink(self, window: Window, share: float) -> None:
        for chunk, start, stop in window.chunk_ranges():
            rows = slice(*self.dataset.row_start[chunk : chunk + 2])
            self.active[rows] &= self.rng.random(stop - start) < share
            window.arena.active[start:stop, 0] = self.active[rows]

    def check(self, window: Window, all_rows: bool) -> None:
        """Every row that may be visited is there with all of its entries."""
        arena = window.arena
        assert self.dataset.classes is not None
        for chunk, start, stop in window.chunk_ranges():
            expected = self.dataset.read(chunk)
            wanted = self.active[slice(*self.dataset.row_start[chunk : chunk + 2])]
            rows = np.flatnonzero(wanted | all_rows)
            assert (self.dataset.classes[arena.code[start + rows]] == expected.label[rows]).all()
            assert (arena.weight[start + rows] == expected.weight[rows]).all()
            for row in rows.tolist():
                here, there = (slice(*x.tolist()) for x in (
                    arena.indptr[start + row : start + row + 2], expected.indptr[row : row + 2],
                ))  # fmt: skip
                assert (arena.feature[here] == expected.feature[there]).all()
                assert (arena.value[here] == expected.value[there]).all()
            self.from_copies += int(arena.indptr[stop] - arena.indptr[start] < expected.feature.size)


@pytest.mark.parametrize(("n_chunks", "wide"), [(1, False), (3, True), (8, False)])
def test_windows_from_copies_hold_what_the_dataset_holds(tmp_path: Path, n_chunks: int, wide: bool) -> None:
    """Rows leave and return, reads need all rows or not."""
    rows = random_rows(260, 15, seed=8)
    types: dict[str, Any] = {"value_dtype": np.float64, "index_dtype": np.int64} if wide else {}
    dataset = write_dataset(
        tmp_path / "data", rows, n_chunks=16, n_shards=3, weight=np.linspace(0.5, 2, 260), **types
    )
    plan = plan_of(dataset, n_chunks)
    with Stream(open_dataset(dataset.path), plan, LAYOUT, 1, folder=tmp_path) as stream:
        reads = ShrinkingReads(dataset, stream, seed=n_chunks)
        n_bytes = [reads.read(number) for number in range(36)]
        whole = sum(map(dataset.chunk_bytes, range(16)))
        assert reads.from_copies > 36
        assert min(n_bytes) < 0.5 * whole
        assert sum(n_bytes) < 36 * whole
    assert not list(tmp_path.glob("tmp*")), "a file with a name"


# ---------------------------------------------------------------------------------------------------------------------
# Trainings


def options(loss: str, acceleration: str, **changed: Any) -> dict[str, Any]:
    return {"loss": loss, "acceleration": acceleration, "C": 1.0, "tol": 1e-5, "max_passes": 40} | changed


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Two classes apart: few rows are near the plane."""
    x, _ = random_rows(1000, 30, seed=3, density=0.6)
    y = np.where(x @ np.linspace(-1, 1, 30) > 0, 1.0, -1.0)
    return write_dataset(tmp_path / "data", (x, y), n_chunks=20, n_shards=3)


def full_disk(*_: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_said_once_and_changes_no_bit(
    tmp_path: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    # rows are visited with their neighbours where a window is large, wherever it was read from
    monkeypatch.setattr(row_solver, "_FAR_ENTRIES", dataset.n_entries // 4)
    asked = options("hinge", "none", plan=plan_of(dataset, 9))
    train(dataset, tmp_path / "run", **asked)
    monkeypatch.setattr(os, "fstatvfs", full_disk)
    listener = Heard()
    train(dataset, tmp_path / "full", listener=listener, **asked)
    assert ended(tmp_path / "full") == ended(tmp_path / "run")
    assert len([text for text in listener.messages if "not copied to disk" in text]) == 1
    assert all(line["scratch_bytes"] == 0 for line in log_of(tmp_path / "full"))


def test_no_more_than_half_of_the_space_left_is_taken(
    tmp_path: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = 2_000

    class Disk:
        f_bavail, f_frsize = space, 1

    monkeypatch.setattr(os, "fstatvfs", lambda _: Disk)
    listener = Heard()
    train(dataset, tmp_path / "run", listener=listener, **options("hinge", "none", plan=plan_of(dataset, 2)))
    assert any("No space left" in text for text in listener.messages)
    assert all(line["scratch_bytes"] <= space for line in log_of(tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize("acceleration", ["none", "auto"])
def test_copies_stay_within_the_budget(tmp_path: Path, acceleration: str) -> None:
    """354 MB of entries with 105 MB left over beside the interpreter."""
    write_large(tmp_path / "data", 360)
    budget = RUNNING_BYTES + 105_000_000
    asked = {"loss": "hinge", "C": 1e-3, "max_passes": 12, "tol": 1e-9, "acceleration": acceleration}
    peak, _ = peak_of_training(tmp_path / "data", tmp_path / "run", memory=budget, **asked)
    assert_within(peak, budget)
    log = log_of(tmp_path / "run")
    assert max(line["scratch_bytes"] for line in log) > 30_000_000

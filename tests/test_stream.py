"""Which chunk when: the order is a function of (seed, read), windows fit their plan, and what they hold is the data."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from small_datasets import column_of, columns_of, random_rows, unequal_columns, windows_of, write_dataset

from streamcd import Dataset
from streamcd import open as open_dataset
from streamcd.core.errors import DatasetError, UsageError
from streamcd.core.memory_budget import RUNNING_BYTES
from streamcd.core.setting import random_key
from streamcd.stream.arenas import ColumnLayout, RowLayout, Window
from streamcd.stream.memory_plan import Plan, SolverMemory, make_plan
from streamcd.stream.stream import Stream, chunk_order, cut_windows

LAYOUT = RowLayout(alpha_width=1, n_flags=1)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Twelve chunks of unequal sizes, in four shards, with weights."""
    x, y = random_rows(130, 9, seed=31)
    return write_dataset(
        tmp_path / "data", (x, y), n_chunks=12, n_shards=4, weight=np.linspace(0.5, 2, y.size)
    )


def opened(dataset: Dataset, plan: Plan, seed: int = 1, **options: Any) -> Stream:
    return Stream(open_dataset(dataset.path), plan, LAYOUT, seed, **options)


@pytest.fixture(params=[1, 2], ids=["one reader", "two readers"])
def readers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode resident data by so many threads; little data is decoded by the caller otherwise."""
    monkeypatch.setattr("streamcd.stream.stream._FEW_ENTRIES", 0)
    monkeypatch.setattr("streamcd.stream.stream.available_cores", lambda: request.param)


def chunks_of(dataset: Dataset, plan: Plan, reads: range, seed: int = 1) -> list[list[list[int]]]:
    with opened(dataset, plan, seed) as stream:
        return [[window.chunks.tolist() for window in stream.windows(read)] for read in reads]


def test_order_is_a_function_of_seed_and_read(dataset: Dataset) -> None:
    """Not of what was read before, of residence, or of where one begins."""
    plan = windows_of(dataset, 3)
    whole = chunks_of(dataset, plan, range(5))
    assert chunks_of(dataset, plan, range(5)) == whole
    assert chunks_of(dataset, plan, range(3, 5)) == whole[3:]
    assert chunks_of(dataset, windows_of(dataset, 3, resident=True), range(5)) == whole
    assert chunks_of(dataset, plan, range(5), seed=2) != whole
    assert len({str(read) for read in whole}) == 5


def test_the_first_read_begins_with_chosen_chunks(dataset: Dataset) -> None:
    """In a window of their own where all would be in one; later reads have their own order."""
    new = np.array([3, 10, 11])
    for n_chunks in (5, None):
        plan = windows_of(dataset, n_chunks, resident=n_chunks is None)
        with opened(dataset, plan) as stream:
            stream.begin_with(new)
            first, second = ([window.chunks.tolist() for window in stream.windows(read)] for read in range(2))
        assert sorted(itertools.chain(*first)) == list(range(12))
        assert sorted(list(itertools.chain(*first))[:3]) == new.tolist()
        assert len(first) == 3 if n_chunks else len(first[0]) == 3
        assert second == chunks_of(dataset, plan, range(1, 2))[0]


def test_every_chunk_once_in_a_read(dataset: Dataset) -> None:
    for n_chunks in (1, 2, 5, None):
        for read in chunks_of(dataset, windows_of(dataset, n_chunks), range(3)):
            assert sorted(itertools.chain(*read)) == list(range(12))


def test_chunks_meet_all_others_in_time(dataset: Dataset) -> None:
    """Over 300 reads every pair shares a window about as often as chance has it: no chunk is bound to its neighbours."""
    plan = windows_of(dataset, 3)
    together = np.zeros((12, 12))
    for read in range(300):
        for window in cut_windows(dataset, chunk_order(dataset, np.arange(12), 7, read), plan):
            together[np.ix_(window, window)] += 1
    pairs = together[np.triu_indices(12, 1)]
    assert pairs.min() > 0.4 * pairs.mean()
    assert pairs.max() < 1.6 * pairs.mean()


def test_windows_fit_the_plan_but_for_a_single_chunk(dataset: Dataset) -> None:
    entries, rows = np.diff(dataset.entry_start), np.diff(dataset.row_start)
    for limit_entries, limit_rows in ((80, 10_000), (10_000, 25), (100, 25), (1, 1)):
        plan = Plan(limit_entries, limit_rows, resident=False)
        windows = cut_windows(dataset, chunk_order(dataset, np.arange(12), 0, 0), plan)
        assert sorted(np.concatenate(windows).tolist()) == list(range(12))
        for window in windows:
            fits = entries[window].sum() <= limit_entries and rows[window].sum() <= limit_rows
            assert fits or window.size == 1
        # and none could have taken the next one's first chunk as well
        for window, following in itertools.pairwise(windows):
            more = np.append(window, following[0])
            assert entries[more].sum() > limit_entries or rows[more].sum() > limit_rows


def assert_holds_the_data(window: Window, dataset: Dataset) -> None:
    arena = window.arena
    assert dataset.classes is not None
    for chunk, start, stop in window.chunk_ranges():
        expected = dataset.read(chunk)
        np.testing.assert_array_equal(dataset.classes[arena.code[start:stop]], expected.label)
        np.testing.assert_array_equal(arena.weight[start:stop], expected.weight)
        counts = np.diff(expected.indptr)
        np.testing.assert_array_equal(arena.indptr[start + 1 : stop + 1] - arena.indptr[start:stop], counts)
        first, last = arena.indptr[start], arena.indptr[stop]
        np.testing.assert_array_equal(arena.feature[first:last], expected.feature)
        np.testing.assert_array_equal(arena.value[first:last], expected.value)


@pytest.mark.usefixtures("readers")
@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("n_chunks", [1, 4, None])
def test_windows_hold_what_the_dataset_holds(dataset: Dataset, n_chunks: int | None, resident: bool) -> None:
    """While the next window is already being decoded."""
    other = open_dataset(dataset.path)
    with opened(dataset, windows_of(dataset, n_chunks, resident=resident)) as stream:
        for read in range(3):
            for window in stream.windows(read):
                assert_holds_the_data(window, other)


@pytest.mark.usefixtures("readers")
@pytest.mark.parametrize("resident", [False, True])
def test_a_read_can_be_left_and_begun_anywhere(dataset: Dataset, resident: bool) -> None:
    """What was read ahead for another place is dropped, and never handed out as something else."""
    other, plan = open_dataset(dataset.path), windows_of(dataset, 2, resident=resident)
    expected = chunks_of(dataset, plan, range(10))
    rng = np.random.default_rng(0)
    with opened(dataset, plan) as stream:
        for _ in range(60):
            read, first = int(rng.integers(10)), int(rng.integers(6))
            windows = stream.windows(read, first)
            for number in range(first, min(6, first + int(rng.integers(1, 4)))):
                window = next(windows)
                assert (window.read, window.number) == (read, number)
                assert window.chunks.tolist() == expected[read][number]
                assert_holds_the_data(window, other)


def test_a_chunk_larger_than_the_plan_is_a_window_of_its_own(tmp_path: Path) -> None:
    x, _ = random_rows(40, 9, seed=32)
    x = sp.csr_array(np.vstack([x.toarray(), np.ones((1, 9))] * 2).astype(np.float32).astype(float))
    dataset = write_dataset(tmp_path / "data", (x, np.tile([1.0, -1.0], 41)), n_chunks=4)
    other = open_dataset(dataset.path)
    with opened(dataset, Plan(1, 1, resident=False)) as stream:
        windows = [
            window.chunks.size for window in stream.windows(0) if not assert_holds_the_data(window, other)
        ]  # type: ignore[func-returns-value]
    assert windows == [1, 1, 1, 1]


def test_a_few_files_at_a_time_where_there_are_many(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts come in random groups, new in every read; inside a group their chunks are mixed."""
    monkeypatch.setattr("streamcd.stream.stream.MAX_OPEN_PARTS", 2)
    groups_seen, switches = set(), []
    for read in range(20):
        order = chunk_order(dataset, np.arange(12), 3, read)
        assert sorted(order.tolist()) == list(range(12))
        parts = dataset.chunk_part[order]
        changes = [frozenset(group) for group in _groups_of_two(parts.tolist())]
        assert len(changes) == 2
        assert changes[0].isdisjoint(changes[1])
        groups_seen.add(changes[0])
        switches.append(np.count_nonzero(np.diff(parts)))
    assert len(groups_seen) > 2
    assert np.mean(switches) > 5  # 3 where each part was read through before the next
    monkeypatch.undo()
    assert len(set(dataset.chunk_part[chunk_order(dataset, np.arange(12), 3, 0)[:6]].tolist())) > 2


def _groups_of_two(parts: list[int]) -> list[set[int]]:
    groups: list[set[int]] = [set()]
    for part in parts:
        if part not in groups[-1] and len(groups[-1]) == 2:
            groups.append(set())
        groups[-1].add(part)
    return groups


def test_random_keys_differ() -> None:
    keys = {
        int(random_key(seed, read, window))
        for seed in range(20)
        for read in range(20)
        for window in range(20)
    }
    assert len(keys) == 8000


@pytest.mark.usefixtures("readers")
@pytest.mark.parametrize("resident", [False, True])
def test_damage_met_by_the_reading_thread_reaches_the_caller(dataset: Dataset, resident: bool) -> None:
    stream = opened(dataset, windows_of(dataset, 2, resident=resident))
    name = dataset.path / dataset.manifest["parts"][1]["entries"]
    data = bytearray(name.read_bytes())
    data[len(data) // 3 : len(data) // 3 + 40] = bytes(40)
    name.write_bytes(data)
    with pytest.raises(DatasetError, match=str(name)):
        for _ in stream.windows(0):
            pass
    stream.close()
    assert not any(thread.is_alive() for thread in stream._thread._threads)


@pytest.mark.parametrize(
    ("table", "column", "change", "message"),
    [
        ("read_rows", 0, lambda label: label + 5.0, "a label that the manifest does not list"),
        ("read_rows", 0, lambda label: label * np.nan, "a label that the manifest does not list"),
        ("read_rows", 1, lambda counts: counts + 1, "counts of entries do not fit"),
        ("read_rows", 1, lambda counts: counts * np.int32(-1), "counts of entries do not fit"),
        ("read_entries", 0, lambda feature: feature + 9, "a feature outside 0 … 8"),
        ("read_entries", 0, lambda feature: feature - 9, "a feature outside 0 … 8"),
    ],
)
def test_a_chunk_that_does_not_fit_the_dataset_is_refused(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, table: str, column: int, change: Any, message: str
) -> None:
    def read(chunk: int, *arguments: Any, **options: Any) -> list[np.ndarray]:
        arrays = getattr(Dataset, table)(dataset, chunk, *arguments, **options)
        return [change(array) if number == column else array for number, array in enumerate(arrays)]

    monkeypatch.setattr(dataset, table, read)
    decode = LAYOUT.decoder(dataset, 0, 0)
    with pytest.raises(DatasetError, match=message):
        decode(LAYOUT.new_arena(dataset, dataset.n_rows, dataset.n_entries), 3, 0, 0, True)


def test_labels_that_are_no_classes_are_refused(dataset: Dataset) -> None:
    dataset.classes = None
    with pytest.raises(UsageError, match="too many values"):
        Stream(dataset, windows_of(dataset, 2), LAYOUT, 0)


def test_a_sweep_brings_all_entries_of_a_large_feature_in_order(tmp_path: Path) -> None:
    """As often as it is asked, while the next window is read into the other arena."""
    dataset = columns_of(tmp_path / "data", unequal_columns())
    columns = dataset.open_columns()
    row, value = column_of(columns, 0)
    with Stream(dataset, Plan(60, 90, resident=False), ColumnLayout(), 5) as stream:
        for read in range(3):
            seen = 0
            for window in stream.windows(read):
                if window.sweep is None:
                    assert window.n_entries <= 60
                    assert 0 not in window.arena.feature[: window.stop.max()]
                    continue
                seen += 1
                assert window.arena.feature[0] == 0
                assert window.n_entries == 120
                for _ in range(3):
                    pieces = [
                        (window.arena.row[:n].copy(), window.arena.value[:n].copy()) for n in window.sweep()
                    ]
                    assert 2 <= len(pieces) < 5
                    np.testing.assert_array_equal(np.concatenate([piece[0] for piece in pieces]), row)
                    np.testing.assert_array_equal(np.concatenate([piece[1] for piece in pieces]), value)
            assert seen == 1


# ---------------------------------------------------------------------------------------------------------------------
# The memory plan


def arena_bytes(dataset: Dataset, plan: Plan, n_orders: int) -> int:
    """Of the arrays that a stream holds under a plan, and orders of a window's rows."""
    row_bytes = LAYOUT.item_bytes
    if plan.resident:
        return dataset.n_entries * dataset.entry_bytes + dataset.n_rows * (row_bytes + 8 * n_orders)
    chunk_rows = max(plan.window_rows, int(np.diff(dataset.row_start).max()))
    chunk_entries = max(plan.window_entries, int(np.diff(dataset.entry_start).max()))
    return 2 * (chunk_entries * dataset.entry_bytes + chunk_rows * row_bytes) + 8 * n_orders * chunk_rows


@pytest.fixture
def larger(tmp_path: Path) -> Dataset:
    """240 kB of entries in 40 chunks."""
    return write_dataset(tmp_path / "larger", random_rows(3000, 20, density=0.5), n_chunks=40)


@pytest.mark.parametrize("n_orders", [1, 4])
def test_a_plan_keeps_within_the_budget_and_uses_it(larger: Dataset, n_orders: int) -> None:
    """From the least budget that will do to one that holds everything; more memory never makes smaller windows."""
    plans: list[Plan] = []
    layout, least = replace(LAYOUT, n_orders=n_orders), 0
    for room in range(0, 1_500_000, 10_000):
        try:
            plan = make_plan(larger, RUNNING_BYTES + room, SolverMemory(layout, weights=10_000))
        except UsageError:
            assert not plans, "refused, though less memory was enough"
            continue
        needed = arena_bytes(larger, plan, n_orders) + 10_000
        assert needed <= room
        if plans and not plan.resident:
            # of what was added since the least budget, all goes into the windows
            growth = needed - 10_000 - arena_bytes(larger, plans[0], n_orders)
            assert 0.9 * (room - least) - 1000 < growth < room - least + 1000
        elif not plans:
            least = room
        plans.append(plan)
    resident = [plan.resident for plan in plans]
    assert resident == sorted(resident)
    assert {True, False} == set(resident)
    sizes = [plan.window_entries for plan in plans if not plan.resident]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) > 10


def test_a_budget_that_cannot_do_is_refused_with_the_arithmetic(larger: Dataset) -> None:
    with pytest.raises(UsageError) as refusal:
        make_plan(larger, RUNNING_BYTES + 1000, SolverMemory(LAYOUT, weights=5_000_000))
    message = str(refusal.value)
    assert "\n" not in message
    for piece in ("5 MB weights", "needed", "memory", "interpreter and libraries"):
        assert piece in message

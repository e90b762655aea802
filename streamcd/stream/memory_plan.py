"""The memory plan: the size of windows, and whether all data stays in memory.

It is the same for both layouts: an item is a row of the row layout or a feature of the column layout, and a `Layout` knows
the size of an item and the decoding of chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import numpy as np

from ..core.errors import UsageError
from ..core.memory_budget import RESERVED_BYTES, RUNNING_BYTES, format_size, require
from ..core.metadata import Count, Positive
from ..dataset.chunked_table import MAX_OPEN_PARTS
from ..dataset.read_ahead import AHEAD_BYTES, SHARED_AHEAD_BYTES

_FOOTER_BYTES = 200_000  # of an open Parquet file with a few hundred row groups
_ORDER_BYTES = 8  # of an item's number in the order of visits
_MAX_READERS = 4  # each with its own descriptors
_ALLOCATOR_BYTES = 2_000_000
"""What allocators keep for a thread that reads: with chunks of 1 MB, readers take 2.5 to 6.3 MB beside read-ahead."""

ADVICE = "give a larger --memory, or convert with a smaller --chunk-size"


class Table(Protocol):
    """Interface that `Dataset` and `Columns` share: chunks of entries, in shards; every entry belongs to one item."""

    @property
    def n_items(self) -> int: ...
    @property
    def entry_bytes(self) -> int: ...
    @property
    def item_start(self) -> np.ndarray: ...  # (chunks + 1,): first item that begins in a chunk
    @property
    def unit_start(
        self,
    ) -> np.ndarray | None: ...  # first chunks of inseparable units; None: every chunk is one

    n_chunks: int
    n_shards: int
    n_entries: int
    chunk_part: np.ndarray  # the shard of every chunk
    entry_start: np.ndarray  # (chunks + 1,)

    @property
    def client_bytes(self) -> int: ...  # of reading from a URL
    def open_parts(self, chunks: Iterable[int]) -> None: ...
    def expect(self, chunk: int) -> None: ...
    def reopen(self) -> Self: ...
    def read_directly(self, ahead_bytes: int) -> None: ...
    def chunk_bytes(self, chunk: int) -> int: ...
    def bytes_on_disk(self) -> int: ...
    def close(self) -> None: ...


Decoder = Callable[[Any, int, int, int, bool], None]
"""Decoder of a chunk: arguments are the arena, the chunk, the offsets of its items and entries in the arena, and whether
checksums are verified. Refuses indices out of range, which the kernels do not check."""


class Layout(Protocol):
    """Row or column layout, as a solver reads it."""

    @property
    def state_bytes(self) -> int: ...  # of an item between visits, on disk; 0 for none
    @property
    def item_bytes(self) -> int: ...  # of an item in an arena, besides its entries
    @property
    def resident_window(self) -> int: ...  # entries of a window if all data is in memory
    @property
    def n_orders(self) -> int: ...  # orders of a window's items that the solver holds at a time
    @property
    def centred(self) -> bool: ...  # features and targets are, see `dataset.centring`

    def open(self, dataset: Any) -> Any:
        """Open the table that holds the chunks."""
        ...

    def new_arena(self, table: Any, n_items: int, n_entries: int) -> Any: ...
    def decoder(self, table: Any, seed: int, n_folds: int) -> Decoder: ...


@dataclass(frozen=True)
class Plan:
    """Use of memory by a run; part of its configuration, so that a resumed run visits the same rows in the same order.

    A window holds no more entries and items than this, unless a single chunk does. If the data is not resident, a feature of
    several chunks with more than `window_entries` is a window of its own, read in segments.
    """

    window_entries: Positive
    window_rows: Count  # features for a column layout
    resident: bool  # all chunks stay in memory; does not change the order
    page_rows: Count = 0  # rows of a page, if the scores of all rows are in a file; 0 if they are in memory
    readers: Positive = 1  # largest number of threads that read and decode
    held_entries: Count = (
        0  # of columns that a solver holds in memory between reads, if the data is not resident
    )
    held_columns: Count = 0


@dataclass(frozen=True)
class Paging:
    """Memory needed to keep the scores of all rows in a file."""

    entry_bytes: int  # for each entry of a window
    item_bytes: int  # for each item of a window
    fixed_bytes: int  # in addition
    page_rows: int


@dataclass(frozen=True)
class Holding:
    """Memory needed to hold items between reads: all that a budget has room for, and one unit at least."""

    item_bytes: int  # of an item, besides its entries
    share: float  # of what the least windows leave


@dataclass(frozen=True)
class SolverMemory:
    """Bytes that a solver takes besides windows, and the layout of the data that it reads."""

    layout: Layout
    state: int  # in memory, without per-row arrays
    rows: int = 0  # per-row arrays kept in memory
    more: Mapping[str, int] = field(default_factory=dict)  # by name
    paging: Paging | None = None  # to keep the per-row arrays in a file; None if there are none
    advice: str | None = None  # where it does not fit
    holding: Holding | None = None  # to hold items between reads, where the data is not resident
    joined: int = 0  # of sums over rows, in a worker that sends them
    running: int = RUNNING_BYTES  # of interpreter, libraries and the solver's kernels, in one process


def make_plan(
    dataset: Table,
    budget: int,
    layout: Layout,
    needs: Mapping[str, int],
    *,
    advice: str = ADVICE,
    paging: Paging | None = None,
    holding: Holding | None = None,
    refusal: str | None = None,
    running: int = RUNNING_BYTES,
) -> Plan:
    """Divide the memory budget, the bound on peak resident memory in bytes.

    `needs` are the bytes that the solver takes besides the windows, by name: weights, scores of all rows and the like; with
    `paging` it keeps the scores in a file, with `holding` it holds items
    between reads. Raises `UsageError` with the arithmetic (`advice` and `refusal` as in
    `memory_budget.require`) if the model and two windows of one chunk do not fit.
    """
    table = layout.open(dataset)
    overhead = _overhead(table, budget, needs)
    readers = _count_readers(table, budget)
    if paging:
        overhead["pages of scores"] = paging.fixed_bytes
    elif running + sum(overhead.values()) + _resident_bytes(table, layout) <= budget:
        return _resident_plan(table, layout, readers)
    # two windows, one being read and one being visited; the order of visits, and the paged rows of one window
    each_entry = 2 * table.entry_bytes + (paging.entry_bytes if paging else 0)
    each_item = 2 * layout.item_bytes + _ORDER_BYTES * layout.n_orders + (paging.item_bytes if paging else 0)
    least_entries, least_items = _largest_chunk(table)
    smallest = least_entries * each_entry + least_items * each_item
    needs = {**overhead, "two parts of the data of 1 chunk": smallest}
    if holding:
        needs["one column held"] = _longest_unit(table) * table.entry_bytes + holding.item_bytes
    if budget < RESERVED_BYTES:  # a process takes that much to start: the figure that is named has to suffice
        running = max(running, RESERVED_BYTES - sum(needs.values()))
    left = require(budget, needs, advice, refusal, running)
    # the rest is divided between entries and items as in an average chunk
    entries = max(table.n_entries, 1)
    held_entries = held_items = 0
    if holding:
        room, left = int(holding.share * left), int((1.0 - holding.share) * left)
        more = int(room / (table.entry_bytes + table.n_items / entries * holding.item_bytes))
        held_entries, held_items = _longest_unit(table) + more, 1 + int(more * table.n_items / entries)
    more_entries = int(left / (each_entry + table.n_items / entries * each_item))
    return Plan(
        least_entries + more_entries,
        least_items + int(more_entries * table.n_items / entries),
        resident=False,
        page_rows=paging.page_rows if paging else 0,
        readers=readers,
        held_entries=held_entries,
        held_columns=held_items,
    )


def plan_shards(
    table: Table, budget: int, layout: Layout, needs: Mapping[str, int]
) -> tuple[Plan, int] | None:
    """Plan to keep some shards in memory; also returns how many fit, None if none does."""
    overhead, n_shards = sum(_overhead(table, budget, needs).values()), table.n_shards
    left = budget - RUNNING_BYTES - overhead
    if _resident_bytes(table, layout) > left:
        items, entries = slot_size(table)
        a_shard = entries * table.entry_bytes + items * (layout.item_bytes + _ORDER_BYTES * layout.n_orders)
        n_shards = min(left // max(a_shard, 1), table.n_shards - 1)
    if n_shards < 1:
        return None
    return _resident_plan(table, layout, _count_readers(table, budget)), n_shards


def _overhead(table: Table, budget: int, needs: Mapping[str, int]) -> dict[str, int]:
    readers = _count_readers(table, budget)
    return {
        **needs,
        "reading": _reading_bytes(table, readers),
        "chunk table": 100 * table.n_chunks,  # with the tables of slots and of copies
    }


def _resident_bytes(table: Table, layout: Layout) -> int:
    return table.n_entries * table.entry_bytes + table.n_items * (
        layout.item_bytes + _ORDER_BYTES * layout.n_orders
    )


def _resident_plan(table: Table, layout: Layout, readers: int) -> Plan:
    entries = min(max(layout.resident_window, _longest_unit(table)), max(table.n_entries, 1))
    return Plan(entries, table.n_items, resident=True, readers=readers)


def check_holding(plan: Plan, dataset: Table, memory: SolverMemory) -> None:
    """Refuse a plan without room for the longest item, where a solver holds items between reads: it would never end."""
    if plan.resident or not memory.holding:
        return
    least = _longest_unit(memory.layout.open(dataset))
    if plan.held_columns < 1 or plan.held_entries < least:
        raise UsageError(
            f"plan: expected room to hold the longest column, held_columns >= 1 and held_entries >= {least}, found "
            f"{plan.held_columns} and {plan.held_entries}; give larger ones, or --memory in place of a plan"
        )


def planned_bytes(plan: Plan, dataset: Table, budget: int, memory: SolverMemory) -> int:
    """Return the bytes that a training in this process takes beside interpreter and libraries."""
    if not plan.resident:
        return budget - memory.running
    table = memory.layout.open(dataset)
    overhead = _overhead(table, budget, {"weights": memory.state, **memory.more})
    return memory.rows + sum(overhead.values()) + _resident_bytes(table, memory.layout)


def describe_plan(plan: Plan, dataset: Table, budget: int) -> str:
    """Describe a plan in one line."""
    entries = format_size(dataset.n_entries * dataset.entry_bytes)
    if plan.resident:
        return f"{entries} of entries fit in {format_size(budget)}: kept in memory"
    share = plan.window_entries / max(dataset.n_entries, 1)
    where = "; what is kept of all rows does not fit and is paged from a file" if plan.page_rows else ""
    return (
        f"{entries} of entries are streamed within {format_size(budget)}: "
        f"{format_size(plan.window_entries * dataset.entry_bytes)} ({share:.0%} of the data) at a time, the next in advance"
        f"{where}"
    )


def unit_start(table: Table) -> np.ndarray:
    """Return the first chunk of every unit; int64, shape (units + 1,)."""
    return np.arange(table.n_chunks + 1) if table.unit_start is None else table.unit_start


def _longest_unit(table: Table) -> int:
    """Count the entries of the longest unit."""
    return int(np.diff(table.entry_start[unit_start(table)]).max(initial=1))


def _largest_chunk(table: Table) -> tuple[int, int]:
    """Count the entries and items of the largest chunk."""
    return int(np.diff(table.entry_start).max(initial=1)), int(np.diff(table.item_start).max(initial=1))


def long_units(table: Table, plan: Plan) -> np.ndarray:
    """Mark the units that do not fit in a window and are read in segments; bool, shape (units,)."""
    start = unit_start(table)
    if plan.resident:
        return np.zeros(start.size - 1, dtype=bool)
    return (np.diff(start) > 1) & (np.diff(table.entry_start[start]) > plan.window_entries)


def window_size(table: Table, plan: Plan) -> tuple[int, int]:
    """Count the items and entries of the largest window, or segment of a window that is read in segments."""
    items, entries = (np.diff(start[unit_start(table)]) for start in (table.item_start, table.entry_start))
    whole = ~long_units(table, plan)
    chunk_entries, chunk_items = _largest_chunk(table)
    # no more than the table has, whatever the plan says
    return (
        max(min(plan.window_rows, table.n_items), int(items[whole].max(initial=chunk_items))),
        max(min(plan.window_entries, table.n_entries), int(entries[whole].max(initial=chunk_entries))),
    )


def _count_readers(table: Table, budget: int) -> int:
    """Count the threads that may read: those beside the first take at most a sixteenth of the budget together.

    The number of processors is ignored: windows, and with them the bits of a result, would depend on it. On a machine with
    fewer, what is counted for the other readers is not used.
    """
    left = max(budget - RUNNING_BYTES - table.client_bytes, 0)
    return 1 + min(_MAX_READERS - 1, left // 16 // _reader_bytes(table, SHARED_AHEAD_BYTES))


def _reader_bytes(table: Table, ahead_bytes: int) -> int:
    """Estimate the memory of a reader: a chunk encoded and decoded, Arrow's copies of both, read-ahead, and what
    allocators keep.
    """
    entries, items = _largest_chunk(table)
    more = min(ahead_bytes + _ALLOCATOR_BYTES, table.n_entries * table.entry_bytes)
    return 4 * (entries * table.entry_bytes + items * 40) + more


def _reading_bytes(table: Table, readers: int) -> int:
    """Estimate the memory of all readers, with the footers and the client of a URL."""
    footers = _FOOTER_BYTES * min(2 * MAX_OPEN_PARTS, 2 * table.n_shards)
    each = max(AHEAD_BYTES // readers, SHARED_AHEAD_BYTES)  # a reader alone has it all
    return readers * _reader_bytes(table, each) + footers + table.client_bytes


def shard_bounds(table: Table) -> np.ndarray:
    """Return the first chunk of every shard, and the number of chunks; int64, shape (shards + 1,)."""
    return np.searchsorted(table.chunk_part, np.arange(table.n_shards + 1))


def slot_size(table: Table) -> tuple[int, int]:
    """Count the items and entries of a place for any shard."""
    bounds = shard_bounds(table)
    items, entries = (
        np.diff(start[bounds]).max(initial=0) for start in (table.item_start, table.entry_start)
    )
    return int(items) + 1, int(entries)

"""The memory plan: the size of windows, and whether all data stays in memory.

It is the same for both layouts: an item is a row of the row layout or a feature of the column layout, and a layout
(`arenas`) knows the size of an item and the decoding of chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..core.errors import UsageError
from ..core.files import Count, Positive
from ..core.memory_budget import RUNNING_BYTES, format_size, require
from ..dataset.chunked_table import MAX_OPEN_PARTS, ChunkedTable
from ..dataset.read_ahead import AHEAD_BYTES

if TYPE_CHECKING:  # with kernels, which plans are read without
    from ..dataset.dataset import Dataset
    from .arenas import ColumnLayout, RowLayout

_FOOTER_BYTES = 200_000  # of an open Parquet file with a few hundred row groups
_HELD_SHARE = 0.9  # of what the least windows leave, for columns that are held

RESIDENT_READERS = 2
"""Threads that decode what stays in memory: one takes longer than the first pass over it."""


@dataclass(frozen=True)
class Plan:
    """Use of memory by a run; part of its configuration, so that a resumed run visits the same rows in the same order.

    A window holds no more entries and items than this, unless a single chunk does. If the data is not resident, a feature of
    several chunks with more than `window_entries` is a window of its own, read in segments.
    """

    window_entries: Positive
    window_rows: Count  # items: features for a column layout
    resident: bool  # all chunks stay in memory; does not change the order
    held_entries: Count = 0  # of columns that a solver holds between reads, if the data is not resident
    held_columns: Count = 0


@dataclass(frozen=True)
class SolverMemory:
    """Bytes that a solver takes besides windows, and the layout of the data that it reads."""

    layout: RowLayout | ColumnLayout
    weights: int  # w and its copies, and what else does not grow with the rows
    rows: int = 0  # arrays of all rows
    held_bytes: int = 0  # of a column held between reads, besides its entries; 0 if none are
    message: int = 0  # of sums over rows, which a worker sends in place of w
    refusal: str | None = None  # as in `memory_budget.require`
    advice: str = "give a larger --memory, or convert with a smaller --chunk-size"


def make_plan(dataset: Dataset, budget: int, memory: SolverMemory) -> Plan:
    """Divide the memory budget, the bound on peak resident memory in bytes: weights, rows, and what windows may take.

    Raises `BudgetError` with the arithmetic if weights, rows and two windows of one chunk do not fit.
    """
    layout = memory.layout
    table = layout.open(dataset)
    if RUNNING_BYTES + resident_bytes(table, memory) <= budget:
        return _resident_plan(table, layout)
    each_entry, each_item = window_rates(table, layout, 2)  # one that is read and one that is visited
    entries, items, unit = _largest(table)
    needs = {
        "weights and their copies": memory.weights,
        "rows": memory.rows,
        "windows of a chunk": _reading_bytes(table) + entries * each_entry + items * each_item,
    }
    if memory.held_bytes:
        needs["a column held"] = unit * table.entry_bytes + memory.held_bytes
    left = require(budget, needs, memory.advice, memory.refusal, RUNNING_BYTES)
    # the rest is divided between entries and items as in an average chunk
    items_per_entry = table.n_items / max(table.n_entries, 1)
    held_entries = held_items = 0
    if memory.held_bytes:
        more = int(_HELD_SHARE * left / (table.entry_bytes + items_per_entry * memory.held_bytes))
        held_entries = unit + more
        held_items = 1 + int(more * items_per_entry)
        left = int((1.0 - _HELD_SHARE) * left)
    more = int(left / (each_entry + items_per_entry * each_item))
    return Plan(
        entries + more,
        items + int(more * items_per_entry),
        resident=False,
        held_entries=held_entries,
        held_columns=held_items,
    )


def plan_shards(table: ChunkedTable, budget: int, memory: SolverMemory) -> tuple[Plan, int] | None:
    """Plan to keep some shards in memory; also returns how many fit, None if none does."""
    n_shards = table.n_shards
    if RUNNING_BYTES + resident_bytes(table, memory) > budget:
        without = resident_bytes(table, memory, (0, 0))
        slot_bytes = resident_bytes(table, memory, slot_size(table)) - without
        n_shards = min((budget - RUNNING_BYTES - without) // slot_bytes, table.n_shards - 1)
    return (_resident_plan(table, memory.layout), n_shards) if n_shards > 0 else None


def resident_bytes(table: ChunkedTable, memory: SolverMemory, size: tuple[int, int] | None = None) -> int:
    """Return the bytes of a training that keeps data in memory, beside interpreter and libraries.

    `size` is that of the data in items and entries, by default all.
    """
    n_items, n_entries = size or (table.n_items, table.n_entries)
    each_entry, each_item = window_rates(table, memory.layout, 1)
    decoded = 1 + n_entries * each_entry + n_items * each_item
    return memory.weights + memory.rows + _reading_bytes(table, RESIDENT_READERS) + decoded


def window_rates(table: ChunkedTable, layout: RowLayout | ColumnLayout, n_windows: int) -> tuple[int, int]:
    """Return the bytes of an entry and of an item in windows: in an arena for each, and in one order of visits for all."""
    return n_windows * table.entry_bytes, n_windows * layout.item_bytes + 8 * layout.n_orders


def _resident_plan(table: ChunkedTable, layout: RowLayout | ColumnLayout) -> Plan:
    entries = min(max(layout.resident_window, _largest(table)[2]), max(table.n_entries, 1))
    return Plan(entries, table.n_items, resident=True)


def check_holding(plan: Plan, dataset: Dataset, memory: SolverMemory) -> None:
    """Refuse a plan without room for the longest item, where a solver holds items between reads: it would never end."""
    least = _largest(memory.layout.open(dataset))[2] if memory.held_bytes and not plan.resident else 0
    if least and (plan.held_columns < 1 or plan.held_entries < least):
        raise UsageError(
            f"plan: expected held_columns >= 1 and held_entries >= {least}, the longest column, found "
            f"{plan.held_columns} and {plan.held_entries}"
        )


def describe_plan(plan: Plan, dataset: ChunkedTable, budget: int) -> str:
    """Describe in one line how data that does not fit is read."""
    entries = format_size(dataset.n_entries * dataset.entry_bytes)
    share = plan.window_entries / max(dataset.n_entries, 1)
    return (
        f"{entries} of entries are streamed within {format_size(budget)}: "
        f"{format_size(plan.window_entries * dataset.entry_bytes)} ({share:.0%} of the data) at a time, the next in advance"
    )


def _largest(table: ChunkedTable) -> tuple[int, int, int]:
    """Count entries and items of the largest chunk, and entries of the longest unit: a chunk of rows, or a feature."""
    sizes = table.entry_start, table.item_start, table.entry_start[table.unit_start]
    entries, items, unit = (int(np.diff(start).max(initial=1)) for start in sizes)
    return entries, items, unit


def long_units(table: ChunkedTable, plan: Plan) -> np.ndarray:
    """Mark the units that do not fit in a window and are read in segments; bool, shape (units,)."""
    start = table.unit_start
    if plan.resident:
        return np.zeros(start.size - 1, dtype=bool)
    return (np.diff(start) > 1) & (np.diff(table.entry_start[start]) > plan.window_entries)


def window_size(table: ChunkedTable, plan: Plan) -> tuple[int, int]:
    """Count the items and entries of the largest window, or segment of a window that is read in segments."""
    entries, items, _ = _largest(table)
    # no more than the table has, whatever the plan says
    return max(min(plan.window_rows, table.n_items), items), max(
        min(plan.window_entries, table.n_entries), entries
    )


def _reading_bytes(table: ChunkedTable, n_readers: int = 1) -> int:
    """Estimate the memory of reading: a chunk encoded and decoded, Arrow's copies of both, read-ahead, what allocators keep,
    footers, and the table of chunks with those of slots and of copies.
    """
    entries, items, _ = _largest(table)
    ahead = min(2 * AHEAD_BYTES, table.n_entries * table.entry_bytes)
    tables = _FOOTER_BYTES * min(2 * MAX_OPEN_PARTS, 2 * table.n_shards) + 100 * table.n_chunks
    return 4 * n_readers * (entries * table.entry_bytes + items * 40) + ahead + tables + table.client_bytes


def slot_size(table: ChunkedTable) -> tuple[int, int]:
    """Count the items and entries of a place for any shard."""
    starts = table.item_start[table.shard_start], table.entry_start[table.shard_start]
    items, entries = (int(np.diff(start).max(initial=0)) for start in starts)
    return items + 1, entries

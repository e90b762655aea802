"""The memory plan: how large the windows of a read may be, and whether all of the data stays in memory.

The same for both layouts: an item is a row of the row layout or a feature of the column layout, and a `Layout` says what one
takes and how its chunks are decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .chunked_table import MAX_OPEN_PARTS
from .dataset import Dataset
from .memory import RESERVED_BYTES, format_size, require
from .read_ahead import AHEAD_BYTES

_FOOTER_BYTES = 200_000  # of an open Parquet file with some hundred row groups
_ORDER_BYTES = 8  # of an item's place in the order of visit
_ADVICE = "give a larger --memory, or convert with a smaller --chunk-size"


class Table(Protocol):
    """What `Dataset` and `Columns` have in common: chunks of entries, in parts, each entry of one item.

    Attributes
    ----------
    n_chunks, n_shards, n_items, n_entries, entry_bytes : int
    chunk_part : ndarray of int32, shape (n_chunks,)
    item_start, entry_start : ndarray of int64, shape (n_chunks + 1,)
        The items that a chunk begins, and its entries.
    unit_start : ndarray of int64, shape (units + 1,), or None
        Chunks that belong together and travel together; None where every chunk is a unit.
    """

    @property
    def n_items(self) -> int: ...
    @property
    def entry_bytes(self) -> int: ...
    @property
    def item_start(self) -> np.ndarray: ...
    @property
    def unit_start(self) -> np.ndarray | None: ...

    n_chunks: int
    n_shards: int
    n_entries: int
    chunk_part: np.ndarray
    entry_start: np.ndarray

    def expect(self, chunk: int) -> None: ...
    def read_directly(self) -> None: ...
    def chunk_bytes(self, chunk: int) -> int: ...
    def bytes_on_disk(self) -> int: ...
    def close(self) -> None: ...


Decoder = Callable[[Any, int, int, int, bool], None]
"""Decodes to an arena: a chunk, to the places of its first item and entry, verified or not. Checks that no index can lead a
kernel astray."""


class Layout(Protocol):
    """One of the two sort orders, as a solver wants it.

    Attributes
    ----------
    state_bytes : int
        Bytes that an item keeps between visits, on disk; 0 for none.
    item_bytes : int
        Bytes of an item in an arena, beside its entries.
    resident_window : int
        Entries of a window where all of them are in memory.
    """

    @property
    def state_bytes(self) -> int: ...
    @property
    def item_bytes(self) -> int: ...
    @property
    def resident_window(self) -> int: ...

    def open(self, dataset: Dataset) -> Any:
        """The table of chunks to read."""
        ...

    def new_arena(self, table: Any, n_items: int, n_entries: int) -> Any: ...
    def decoder(self, table: Any, seed: int, n_folds: int) -> Decoder: ...


@dataclass(frozen=True)
class Plan:
    """How a run uses memory; part of its configuration, so that resuming elsewhere visits the same rows in the same order.

    Attributes
    ----------
    window_entries, window_rows : int
        No window holds more, but for a single chunk that does; of a column layout, features for rows. Unless all is
        resident, a feature of several chunks and more entries is a window by itself, and is read piece by piece.
    resident : bool
        Whether all chunks are kept in memory; does not change the order.
    page_rows : int
        Rows of a page, where what a solver keeps of all rows is in a file; 0 where it is in memory.
    """

    window_entries: int
    window_rows: int
    resident: bool
    page_rows: int = 0


@dataclass(frozen=True)
class Paging:
    """What it takes to keep in a file what a solver keeps of all rows.

    Attributes
    ----------
    entry_bytes, item_bytes : int
        Memory for each entry and item of a window.
    fixed_bytes : int
        Memory beside.
    page_rows : int
    """

    entry_bytes: int
    item_bytes: int
    fixed_bytes: int
    page_rows: int


def make_plan(
    dataset: Dataset,
    budget: int,
    model_bytes: int,
    layout: Layout,
    *,
    needs: Mapping[str, int] | None = None,
    advice: str = _ADVICE,
    rows_bytes: int = 0,
    paging: Paging | None = None,
    refusal: str | None = None,
) -> Plan:
    """Divide the memory budget.

    Parameters
    ----------
    dataset : Dataset
    budget : int
        Bound on peak resident memory, bytes.
    model_bytes : int
        What the solver's state takes (weights and their like).
    layout : Layout
    needs : mapping of str to int, optional
        What else the solver takes, and how many bytes.
    advice : str
        What the user can do where it does not fit.
    rows_bytes : int
        What the solver keeps in memory of all rows.
    paging : Paging, optional
        Plan for the solver to keep that in a file instead.
    refusal : str, optional
        See `memory.require`.

    Raises
    ------
    UsageError
        Where the model and two windows of one chunk do not fit; with the arithmetic.
    """
    table = layout.open(dataset)
    item_bytes = layout.item_bytes + _ORDER_BYTES
    overhead = {
        "weights": model_bytes,
        "scores of all rows": 0 if paging else rows_bytes,
        "pages of scores": paging.fixed_bytes if paging else 0,
        **(needs or {}),
        "reading": _reading_bytes(table),
        "chunk table": 40 * table.n_chunks,
    }
    whole = table.n_entries * table.entry_bytes + table.n_items * item_bytes
    if not paging and RESERVED_BYTES + sum(overhead.values()) + whole <= budget:
        entries = min(max(layout.resident_window, _largest_unit(table)[0]), max(table.n_entries, 1))
        return Plan(entries, table.n_items, resident=True)
    # two windows, one being read and one in work; the order, and what the rows of one take that are not in memory
    each_entry = 2 * table.entry_bytes + (paging.entry_bytes if paging else 0)
    each_item = 2 * layout.item_bytes + _ORDER_BYTES + (paging.item_bytes if paging else 0)
    chunk_entries, chunk_items = _largest_chunk(table)
    smallest = chunk_entries * each_entry + chunk_items * each_item
    left = require(budget, {**overhead, "two windows of one chunk": smallest}, advice, refusal)
    # what is left over beside the smallest windows is shared in the proportion of an average chunk
    entries = max(table.n_entries, 1)
    more_entries = int(left / (each_entry + table.n_items / entries * each_item))
    return Plan(
        chunk_entries + more_entries,
        chunk_items + int(more_entries * table.n_items / entries),
        resident=False,
        page_rows=paging.page_rows if paging else 0,
    )


def describe_plan(plan: Plan, dataset: Dataset, budget: int) -> str:
    """One line for the user: what the budget was turned into."""
    entries = format_size(dataset.n_entries * dataset.entry_bytes)
    if plan.resident:
        return f"{entries} of entries fit in {format_size(budget)}: kept in memory"
    share = plan.window_entries / max(dataset.n_entries, 1)
    where = "; what is kept of all rows does not fit and is paged from a file" if plan.page_rows else ""
    return (
        f"{entries} of entries are streamed within {format_size(budget)}: "
        f"windows of {format_size(plan.window_entries * dataset.entry_bytes)} ({share:.0%} of the data), two at a time"
        f"{where}"
    )


def unit_start(table: Table) -> np.ndarray:
    """Where units of chunks begin: of every chunk, where none belong together; int64, shape (units + 1,)."""
    return np.arange(table.n_chunks + 1) if table.unit_start is None else table.unit_start


def _largest_unit(table: Table) -> tuple[int, int]:
    """Entries and items that the largest unit of chunks holds."""
    if table.n_chunks == 0:
        return 1, 1
    start = unit_start(table)
    return (
        max(1, int(np.diff(table.entry_start[start]).max())),
        max(1, int(np.diff(table.item_start[start]).max())),
    )


def _largest_chunk(table: Table) -> tuple[int, int]:
    """Entries and items that the largest chunk holds."""
    return (
        max(1, int(np.diff(table.entry_start).max(initial=1))),
        max(1, int(np.diff(table.item_start).max(initial=1))),
    )


def long_units(table: Table, plan: Plan) -> np.ndarray:
    """Which units are not in memory as a whole, but read piece by piece; bool, shape (units,)."""
    start = unit_start(table)
    if plan.resident:
        return np.zeros(start.size - 1, dtype=bool)
    return (np.diff(start) > 1) & (np.diff(table.entry_start[start]) > plan.window_entries)


def window_size(table: Table, plan: Plan) -> tuple[int, int]:
    """Items and entries of the largest window, or of what is read at a time of one that is read piece by piece."""
    items, entries = (np.diff(start[unit_start(table)]) for start in (table.item_start, table.entry_start))
    whole = ~long_units(table, plan)
    chunk_entries, chunk_items = _largest_chunk(table)
    return (
        max(plan.window_rows, int(items[whole].max(initial=chunk_items))),
        max(plan.window_entries, int(entries[whole].max(initial=chunk_entries))),
    )


def _reading_bytes(table: Table) -> int:
    """Decoding a chunk holds it on disk and decoded; Arrow's allocator keeps as much again; others have been read ahead."""
    footers = _FOOTER_BYTES * min(2 * MAX_OPEN_PARTS, 2 * table.n_shards)
    entries, items = _largest_chunk(table)
    ahead = min(AHEAD_BYTES, table.n_entries * table.entry_bytes)
    return 4 * (entries * table.entry_bytes + items * 40) + ahead + footers

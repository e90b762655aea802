"""Which chunk when: the order of a read, its windows, the memory plan, and reading ahead into reused arenas.

The same for both layouts: an item is a row of the row layout or a feature of the column layout, and a `Layout` says how its
chunks are decoded. The order is a pure function of (seed, read): all chunks in a fresh random order, cut into windows of
many small chunks, inside which the items of all chunks are mixed. Measured on real text, this converges as a full random
permutation of the rows does (blocks of neighbouring rows do not), and costs no random access to the disk.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .columns import Columns, open_columns
from .dataset import MAX_OPEN_PARTS, Dataset
from .errors import DatasetError, UsageError
from .kernels import shuffle
from .memory import RESERVED_BYTES, format_size, page_cache_room, require
from .randomness import deal_folds, random_key
from .readahead import AHEAD_BYTES

RESIDENT_WINDOW_ENTRIES = 4_000_000
"""Entries of a window where the whole dataset is in memory: 32 MB, so that a window's rows are found in the processor's
last cache. Mixing more rows gains nothing in convergence and costs speed: 180 against 310 M entries/s with 32 M entries."""

NO_FOLD = 255  # fold of every row where no folds are dealt

_FOOTER_BYTES = 200_000  # of an open Parquet file with some hundred row groups
_ORDER_OF_CHUNKS = 2**32 - 1  # stands for the window where a key belongs to the order of a whole read


# ---------------------------------------------------------------------------------------------------------------------
# The memory plan


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
class RowLayout:
    """The row layout: an item is a row, which brings its label and what a solver keeps of it.

    Attributes
    ----------
    alpha_width : int
        Dual variables (float64) of a row.
    n_flags : int
        Active flags (uint8) of a row.
    """

    alpha_width: int
    n_flags: int
    resident_window: int = RESIDENT_WINDOW_ENTRIES

    @property
    def state_bytes(self) -> int:
        """Bytes of what a row keeps between visits: alpha, active."""
        return 8 * self.alpha_width + self.n_flags

    @property
    def item_bytes(self) -> int:
        """Bytes of a row: indptr, code, weight, fold, alpha, active."""
        return 8 + 4 + 8 + 1 + self.state_bytes

    def open(self, dataset: Dataset) -> Dataset:
        """The dataset itself."""
        return dataset

    def new_arena(self, table: Dataset, n_items: int, n_entries: int) -> RowArena:
        """Room for rows."""
        return RowArena(table, n_items, n_entries, self)

    def decoder(self, table: Dataset, seed: int, n_folds: int) -> Decoder:
        """Entries by row, classes, weights, folds."""
        return _RowDecoder(table, seed, n_folds)


@dataclass(frozen=True)
class ColumnLayout:
    """The column layout: an item is a feature; what is kept for rows is the solver's own business.

    Attributes
    ----------
    resident_window : int
        Entries of a window where all of them are in memory.
    """

    resident_window: int = RESIDENT_WINDOW_ENTRIES
    state_bytes: int = 0
    item_bytes: int = 8 + 8
    """indptr, feature."""

    def open(self, dataset: Dataset) -> Columns:
        """The dataset's column layout; `DatasetError` where there is none."""
        return open_columns(dataset)

    def new_arena(self, table: Columns, n_items: int, n_entries: int) -> ColumnArena:
        """Room for columns."""
        return ColumnArena(table, n_items, n_entries)

    def decoder(self, table: Columns, seed: int, n_folds: int) -> Decoder:
        """Entries by feature."""
        return _ColumnDecoder(table)


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


_ORDER_BYTES = 8


_ADVICE = "give a larger --memory, or convert with a smaller --chunk-size"


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
    left = require(budget, {**overhead, "two windows of one chunk": smallest}, advice)
    # what is left over beside the smallest windows is shared in the proportion of an average chunk
    entries = max(table.n_entries, 1)
    more_entries = int(left / (each_entry + table.n_items / entries * each_item))
    return Plan(
        chunk_entries + more_entries,
        chunk_items + int(more_entries * table.n_items / entries),
        resident=False,
        page_rows=paging.page_rows if paging else 0,
    )


def _unit_start(table: Table) -> np.ndarray:
    return np.arange(table.n_chunks + 1) if table.unit_start is None else table.unit_start


def _largest_unit(table: Table) -> tuple[int, int]:
    """Entries and items that the largest unit of chunks holds."""
    if table.n_chunks == 0:
        return 1, 1
    start = _unit_start(table)
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


def _long_units(table: Table, plan: Plan) -> np.ndarray:
    """Which units are not in memory as a whole, but read piece by piece; bool, shape (units,)."""
    start = _unit_start(table)
    if plan.resident:
        return np.zeros(start.size - 1, dtype=bool)
    return (np.diff(start) > 1) & (np.diff(table.entry_start[start]) > plan.window_entries)


def _reading_bytes(table: Table) -> int:
    """Decoding a chunk holds it on disk and decoded; Arrow's allocator keeps as much again; others have been read ahead."""
    footers = _FOOTER_BYTES * min(2 * MAX_OPEN_PARTS, 2 * table.n_shards)
    entries, items = _largest_chunk(table)
    ahead = min(AHEAD_BYTES, table.n_entries * table.entry_bytes)
    return 4 * (entries * table.entry_bytes + items * 40) + ahead + footers


# ---------------------------------------------------------------------------------------------------------------------
# The order of a read


def chunk_order(table: Table, units: np.ndarray, seed: int, read: int) -> np.ndarray:
    """A random order of units (chunks, or chunks that belong together) as a function of (seed, read).

    Where parts outnumber the footers kept open, random groups of parts come one after another, and the units of a group
    are mixed; the groups are new in every read.
    """
    key = random_key(seed, read, _ORDER_OF_CHUNKS)
    if table.n_shards <= MAX_OPEN_PARTS:
        order = units.copy()
        shuffle(order, key)
        return order
    parts = np.arange(table.n_shards)
    shuffle(parts, key)
    rank = np.empty_like(parts)
    rank[parts] = np.arange(parts.size)
    group = rank[table.chunk_part[_unit_start(table)[units]]] // MAX_OPEN_PARTS
    pieces = []
    for number in range(int(group.max(initial=-1)) + 1):
        piece = units[group == number]
        shuffle(piece, random_key(seed, read, _ORDER_OF_CHUNKS, number))
        pieces.append(piece)
    return np.concatenate(pieces)


def cut_windows(table: Table, order: np.ndarray, plan: Plan) -> list[np.ndarray]:
    """Cut an order of units into windows that the plan's arenas can hold; gives their chunks."""
    unit_start = _unit_start(table)
    first, behind = unit_start[order], unit_start[order + 1]
    entry_sum = np.cumsum(table.entry_start[behind] - table.entry_start[first])
    item_sum = np.cumsum(table.item_start[behind] - table.item_start[first])
    windows = []
    start = 0
    while start < order.size:
        entry_limit = (entry_sum[start - 1] if start else 0) + plan.window_entries
        item_limit = (item_sum[start - 1] if start else 0) + plan.window_rows
        stop = min(
            int(np.searchsorted(entry_sum, entry_limit, "right")),
            int(np.searchsorted(item_sum, item_limit, "right")),
        )
        stop = max(stop, start + 1)
        if table.unit_start is None:
            windows.append(order[start:stop])
        else:
            pieces = zip(first[start:stop].tolist(), behind[start:stop].tolist(), strict=True)
            windows.append(np.concatenate([np.arange(*piece) for piece in pieces]))
        start = stop
    return windows or [order]  # a window without chunks, where the bias is all there is to train


# ---------------------------------------------------------------------------------------------------------------------
# Arenas and windows


class RowArena:
    """Preallocated arrays into which chunks of rows are decoded, and the state of the rows beside them."""

    def __init__(self, dataset: Dataset, n_rows: int, n_entries: int, layout: RowLayout) -> None:
        self.indptr = np.zeros(n_rows + 1, dtype=np.int64)
        self.feature = np.empty(n_entries, dtype=dataset.index_dtype)
        self.value = np.empty(n_entries, dtype=dataset.value_dtype)
        self.code = np.empty(n_rows, dtype=np.int32)
        self.weight = np.empty(n_rows, dtype=np.float64)
        self.fold = np.full(n_rows, NO_FOLD, dtype=np.uint8)
        self.alpha = np.empty((n_rows, layout.alpha_width), dtype=np.float64)
        self.active = np.empty((n_rows, layout.n_flags), dtype=np.uint8)


class ColumnArena:
    """Preallocated arrays into which chunks of columns are decoded; the pieces of a feature lie one behind the other.

    Attributes
    ----------
    indptr : ndarray of int64, shape (n_columns + 1,)
        Column ``c`` has the entries ``indptr[c]:indptr[c + 1]``.
    feature : ndarray of int64, shape (n_columns,)
    row, value : ndarray, shape (n_entries,)
    """

    def __init__(self, columns: Columns, n_columns: int, n_entries: int) -> None:
        self.indptr = np.zeros(n_columns + 1, dtype=np.int64)
        self.feature = np.empty(n_columns, dtype=np.int64)
        self.row = np.empty(n_entries, dtype=columns.row_dtype)
        self.value = np.empty(n_entries, dtype=columns.value_dtype)


@dataclass(frozen=True)
class Window:
    """Chunks that are in memory at one time.

    Attributes
    ----------
    read, number, count : int
        The read it belongs to, its place in it, and of how many.
    chunks : ndarray of int64
    arena : RowArena or ColumnArena
    start, stop : ndarray of int64, shape (chunks,)
        Where in the arena each chunk's items are.
    n_entries : int
    sweep : callable, or None
        Of a window that holds one feature with more entries than the arena, and none of them yet: brings all of them, in
        order, so many at a time to the front of the arena, and yields how many these are.
    """

    read: int
    number: int
    count: int
    chunks: np.ndarray
    arena: Any
    start: np.ndarray
    stop: np.ndarray
    n_entries: int
    sweep: Callable[[], Iterator[int]] | None = None

    def pieces(self) -> Iterator[tuple[int, int, int]]:
        """Each chunk with the start and stop of its items in the arena."""
        return zip(self.chunks.tolist(), self.start.tolist(), self.stop.tolist(), strict=True)


class Stream:
    """Windows of a dataset, read after read, the next one decoded by another thread while one is trained on.

    Parameters
    ----------
    dataset : Dataset
        Used by the reading thread alone from now on, until `close`.
    plan : Plan
    layout : Layout
    seed : int
    n_folds : int
        Deal the rows to so many folds (`deal_folds`); 0 for none.

    Attributes
    ----------
    bytes_read : int
        Bytes asked of the dataset's files so far.
    """

    def __init__(
        self,
        dataset: Dataset,
        plan: Plan,
        layout: Layout,
        seed: int,
        *,
        n_folds: int = 0,
    ) -> None:
        if dataset.classes is None:
            raise UsageError(f"{dataset.path}: the labels take too many values to be classes")
        self.plan, self.seed = plan, seed
        self.table: Table = layout.open(dataset)
        self._units = np.arange(_unit_start(self.table).size - 1)
        self._is_long = np.repeat(_long_units(self.table, plan), np.diff(_unit_start(self.table)))
        self._loader = _Loader(self.table, layout.decoder(self.table, seed, n_folds))
        self._arenas = _make_arenas(self.table, plan, layout)
        self._resident = _ResidentMap(self.table) if plan.resident else None
        self._hinted: np.ndarray | None = None
        self._order_cache: tuple[int, list[np.ndarray]] | None = None
        self._ahead: tuple[tuple[int, int, bool], queue.SimpleQueue[Any]] | None = None
        self._next_arena = 0
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="streamcd-read", daemon=True)
        self._thread.start()

    @property
    def bytes_read(self) -> int:
        return self._loader.bytes_read

    @property
    def read_seconds(self) -> float:
        """Seconds that the reading thread was at work."""
        return self._loader.seconds

    @property
    def largest_window_items(self) -> int:
        """Items that a window may hold."""
        return self.table.n_items if self.plan.resident else _window_size(self.table, self.plan)[0]

    def n_windows(self, read: int) -> int:
        """Number of windows of a read."""
        return len(self._windows(read))

    def windows(self, read: int, first: int = 0, *, verify: bool = False) -> Iterator[Window]:
        """The windows of one read, from number `first` on; what one holds is overwritten once the next has been taken.

        Parameters
        ----------
        read : int
            Number of the read; the order is a function of (seed, read).
        first : int
            Window to begin with.
        verify : bool
            Check the checksums of all pages; else those of chunks that this process has not read before.
        """
        count = self.n_windows(read)
        for number in range(first, count):
            window = self._take(read, number, verify)
            following = (read, number + 1) if number + 1 < count else (read + 1, 0)
            self._request(*following, verify)
            yield window

    def close(self) -> None:
        """Stop the reading thread and close the dataset's files."""
        self._tasks.put(None)
        self._thread.join()
        self.table.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _windows(self, read: int) -> list[np.ndarray]:
        if self._order_cache is None or self._order_cache[0] != read:
            order = chunk_order(self.table, self._units, self.seed, read)
            self._order_cache = (read, cut_windows(self.table, order, self.plan))
        return self._order_cache[1]

    def _request(self, read: int, number: int, verify: bool) -> None:
        windows = self._windows(read)
        if not windows:
            return
        reply: queue.SimpleQueue[Any] = queue.SimpleQueue()
        chunks = windows[number]
        hint = windows[number + 1] if number + 1 < len(windows) else chunks[:0]
        if hint.size and self._is_long[hint[0]]:
            hint = hint[:0]
        arena = self._arenas[self._next_arena]
        self._next_arena = (self._next_arena + 1) % len(self._arenas)
        self._ahead = ((read, number, verify), reply)

        def load() -> Window:
            return self._load_window(read, number, len(windows), chunks, hint, arena, verify)

        self._tasks.put((load, reply))

    def _take(self, read: int, number: int, verify: bool) -> Window:
        if self._ahead is None or self._ahead[0][:2] != (read, number):
            self._drop_ahead()
            self._request(read, number, verify)
        assert self._ahead is not None
        result = self._ahead[1].get()
        self._ahead = None
        if isinstance(result, BaseException):
            raise result
        return result

    def _drop_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead[1].get()
            self._ahead = None
            # its arena is free again; the other one may still be in the caller's hands
            self._next_arena = (self._next_arena - 1) % len(self._arenas)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            load, reply = task
            try:
                reply.put(load())
            except BaseException as error:
                reply.put(error)

    def _load_window(
        self,
        read: int,
        number: int,
        count: int,
        chunks: np.ndarray,
        hint: np.ndarray,
        arena: Any,
        verify: bool,
    ) -> Window:
        items = np.diff(self.table.item_start)[chunks]
        if not (chunks.size and self._is_long[chunks[0]]):
            starts, n_entries = self._load(arena, chunks, hint, verify)
            return Window(read, number, count, chunks, arena, starts, starts + items, n_entries)
        starts = np.cumsum(items) - items
        n_entries = int(np.diff(self.table.entry_start)[chunks].sum())
        assert isinstance(self.table, Columns)
        arena.feature[0], arena.indptr[:2] = self.table.first_feature[chunks[0]], 0

        def sweep() -> Iterator[int]:
            return self._sweep(arena, chunks, verify)

        return Window(read, number, count, chunks, arena, starts, starts + items, n_entries, sweep)

    def _sweep(self, arena: Any, chunks: np.ndarray, verify: bool) -> Iterator[int]:
        """See `Window.sweep`. The reading thread does it, behind the window that it reads ahead into the other arena."""
        entries = np.diff(self.table.entry_start)[chunks]
        start = 0
        while start < chunks.size:
            room = np.searchsorted(np.cumsum(entries[start:]), arena.row.size, side="right")
            stop = start + int(room)
            reply: queue.SimpleQueue[Any] = queue.SimpleQueue()

            def load(part: slice = slice(start, stop)) -> int:
                self._loader.expect(chunks[part.start : 2 * part.stop - part.start])
                places = np.cumsum(entries[part]) - entries[part]
                for chunk, place in zip(chunks[part].tolist(), places.tolist(), strict=True):
                    self._loader.load(arena, chunk, 0, place, verify)
                return int(entries[part].sum())

            self._tasks.put((load, reply))
            n_entries = reply.get()
            if isinstance(n_entries, BaseException):
                raise n_entries
            yield n_entries
            start = stop

    def _load(self, arena: Any, chunks: np.ndarray, hint: np.ndarray, verify: bool) -> tuple[np.ndarray, int]:
        entries = np.diff(self.table.entry_start)[chunks]
        if self._resident is not None:
            item_starts, entry_starts, missing = self._resident.places(chunks)
            hint = hint[self._resident.places(hint)[2]]
        else:
            items = np.diff(self.table.item_start)[chunks]
            item_starts, entry_starts = np.cumsum(items) - items, np.cumsum(entries) - entries
            missing = np.ones(chunks.size, dtype=bool)
        if chunks is not self._hinted:  # the first window of a read
            self._loader.expect(chunks[missing])
        self._loader.expect(hint)
        self._hinted = hint
        for place in np.flatnonzero(missing).tolist():
            self._loader.load(
                arena, int(chunks[place]), int(item_starts[place]), int(entry_starts[place]), verify
            )
        if self._resident is not None:
            self._resident.mark(chunks)
        return item_starts, int(entries.sum())


def _make_arenas(table: Table, plan: Plan, layout: Layout) -> list[Any]:
    if plan.resident:
        return [layout.new_arena(table, table.n_items, table.n_entries)]
    return [layout.new_arena(table, *_window_size(table, plan)) for _ in range(2)]


def _window_size(table: Table, plan: Plan) -> tuple[int, int]:
    """Items and entries of the largest window, or of what is read at a time of one that is read piece by piece."""
    items, entries = (np.diff(start[_unit_start(table)]) for start in (table.item_start, table.entry_start))
    whole = ~_long_units(table, plan)
    chunk_entries, chunk_items = _largest_chunk(table)
    return (
        max(plan.window_rows, int(items[whole].max(initial=chunk_items))),
        max(plan.window_entries, int(entries[whole].max(initial=chunk_entries))),
    )


class _ResidentMap:
    """Where each chunk lives in the one arena of resident data, and which are there already."""

    def __init__(self, table: Table) -> None:
        self._item_start, self._entry_start = table.item_start, table.entry_start
        self._loaded = np.zeros(table.n_chunks, dtype=bool)

    def places(self, chunks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self._item_start[chunks], self._entry_start[chunks], ~self._loaded[chunks]

    def mark(self, chunks: np.ndarray) -> None:
        self._loaded[chunks] = True


class _Loader:
    """Decodes chunks into an arena, those to come being read ahead.

    Where the page cache can hold the data, ahead means into the page cache, and later reads cost no disk; measured twice as
    fast as plain reads where the disk is cold. Where it cannot, ahead means past it (`readahead`): waiting for the disk fell
    from 0.25-0.53 to 0.06-0.28 s of passes of 1.1-1.5 s (100 M entries, a cap of 400 MB, alternate runs).
    """

    def __init__(self, table: Table, decode: Decoder) -> None:
        self._table, self._decode = table, decode
        self.bytes_read = 0
        self.seconds = 0.0
        self._seen = np.zeros(table.n_chunks, dtype=bool)
        if _page_cache_too_small(table):
            table.read_directly()

    def expect(self, chunks: Sequence[int] | np.ndarray) -> None:
        """Say which chunks will be loaded, in this order."""
        for chunk in chunks:
            self._table.expect(int(chunk))

    def load(self, arena: Any, chunk: int, item_start: int, entry_start: int, verify: bool) -> None:
        """Decode a chunk to its place in the arena."""
        started = time.monotonic()
        self._decode(arena, chunk, item_start, entry_start, verify or not self._seen[chunk])
        self._seen[chunk] = True
        self.bytes_read += self._table.chunk_bytes(chunk)
        self.seconds += time.monotonic() - started


class _RowDecoder:
    """Chunks of the row layout into a `RowArena`."""

    def __init__(self, dataset: Dataset, seed: int, n_folds: int) -> None:
        self.dataset, self.seed, self.n_folds = dataset, seed, n_folds
        self._columns = ["label", "n_entries"]
        self._columns += ["weight"] if dataset.weighted else []
        self._columns += ["source"] if n_folds else []

    def __call__(self, arena: RowArena, chunk: int, row_start: int, entry_start: int, verify: bool) -> None:
        dataset = self.dataset
        arrays = dataset.read_rows(chunk, self._columns, verify=verify)
        rows = dict(zip(self._columns, arrays, strict=True))
        feature, value = dataset.read_entries(chunk, verify=verify)
        self._copy_rows(arena, chunk, row_start, entry_start, rows)
        self._copy_entries(arena, chunk, entry_start, feature, value)

    def _copy_rows(
        self, arena: RowArena, chunk: int, row_start: int, entry_start: int, rows: Mapping[str, np.ndarray]
    ) -> None:
        label, n_entries = rows["label"], rows["n_entries"]
        row_stop = row_start + label.size
        ends = _ends(n_entries, entry_start)
        if label.size and (n_entries.min() < 0 or ends[-1] != entry_start + self._n_entries(chunk)):
            raise DatasetError(
                f"{self.dataset.place(chunk)}: the rows' counts of entries do not fit the entries"
            )
        arena.indptr[row_start] = entry_start
        arena.indptr[row_start + 1 : row_stop + 1] = ends
        classes = self.dataset.classes
        assert classes is not None
        code = np.minimum(np.searchsorted(classes, label), classes.size - 1)
        if not np.array_equal(classes[code], label):
            raise DatasetError(f"{self.dataset.place(chunk)}: a label that the manifest does not list")
        arena.code[row_start:row_stop] = code
        arena.weight[row_start:row_stop] = rows.get("weight", 1.0)
        if self.n_folds:
            arena.fold[row_start:row_stop] = deal_folds(rows["source"], self.seed, self.n_folds)

    def _copy_entries(
        self, arena: RowArena, chunk: int, entry_start: int, feature: np.ndarray, value: np.ndarray
    ) -> None:
        # the kernels do not check bounds: a feature out of range would write outside the weights
        if feature.size and (feature.min() < 0 or feature.max() >= self.dataset.n_features):
            raise DatasetError(
                f"{self.dataset.place(chunk)}: a feature outside 0 … {self.dataset.n_features - 1}"
            )
        arena.feature[entry_start : entry_start + feature.size] = feature
        arena.value[entry_start : entry_start + value.size] = value

    def _n_entries(self, chunk: int) -> int:
        return int(self.dataset.entry_start[chunk + 1] - self.dataset.entry_start[chunk])


def _ends(n_entries: np.ndarray, start: int) -> np.ndarray:
    """Where items end in an arena.

    Written there at one stroke: of resident data the last end is the start of the next chunk's first item as well, which
    may be in training at this moment.
    """
    ends = np.cumsum(n_entries, dtype=np.int64)
    ends += start
    return ends


class _ColumnDecoder:
    """Chunks of the column layout into a `ColumnArena`."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def __call__(self, arena: ColumnArena, chunk: int, start: int, entry_start: int, verify: bool) -> None:
        columns = self._columns
        listed, n_entries = columns.read_index(chunk, verify=verify)
        row, value = columns.read_entries(chunk, verify=verify)
        # the kernels do not check bounds: a row out of range would write outside the rows' scores
        if row.size and (row.min() < 0 or row.max() >= columns.dataset.n_rows):
            raise DatasetError(f"{columns.place(chunk)}: a row outside 0 … {columns.dataset.n_rows - 1}")
        if listed.size and (listed.min() < 0 or listed.max() >= columns.dataset.n_features):
            raise DatasetError(
                f"{columns.place(chunk)}: a feature outside 0 … {columns.dataset.n_features - 1}"
            )
        arena.row[entry_start : entry_start + row.size] = row
        arena.value[entry_start : entry_start + value.size] = value
        if columns.item_start[chunk + 1] == columns.item_start[chunk]:
            return  # a further piece: where its feature ends was said with the first
        stop = start + listed.size
        ends = _ends(n_entries, entry_start)
        ends[-1] = entry_start + self._rest_of_unit(chunk)
        arena.feature[start:stop] = listed
        arena.indptr[start] = entry_start
        arena.indptr[start + 1 : stop + 1] = ends

    def _rest_of_unit(self, chunk: int) -> int:
        """Entries from the chunk's first one to the end of the last chunk that belongs to it."""
        columns = self._columns
        behind = columns.unit_start[np.searchsorted(columns.unit_start, chunk, side="right")]
        return int(columns.entry_start[behind] - columns.entry_start[chunk])


def _page_cache_too_small(table: Table) -> bool:
    """Whether the page cache cannot hold the data; changes speed alone, never results."""
    return table.bytes_on_disk() > 0.6 * page_cache_room()


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

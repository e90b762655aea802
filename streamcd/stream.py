"""Windows of a dataset, read after read, the next one read ahead into reused arenas while one is trained on.

The order of a read is a pure function of (seed, read). A window holds many small chunks, and the items of all of them are
mixed inside it: measured on real text, this converges as a full random permutation of the rows does (blocks of neighbouring
rows do not), and costs no random access to the disk.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .columns import Columns
from .dataset import MAX_OPEN_PARTS, Dataset
from .errors import UsageError
from .kernels import shuffle
from .memory import page_cache_room
from .memory_plan import Decoder, Layout, Plan, Table, long_units, unit_start, window_size
from .randomness import random_key

_ORDER_OF_CHUNKS = 2**32 - 1  # stands for the window where a key belongs to the order of a whole read


@dataclass(frozen=True)
class Window:
    """Chunks in memory at one time.

    Attributes
    ----------
    read, number, count : int
        The read it belongs to, its number there, and the number of windows of the read.
    chunks : ndarray of int64
    arena : RowArena or ColumnArena
    start, stop : ndarray of int64, shape (chunks,)
        Each chunk's items in the arena.
    n_entries : int
    sweep : callable, or None
        Of a window of one feature with more entries than the arena, which holds none of them yet: loads all of them, in
        order, a part at a time, to the front of the arena, and yields the number of each part.
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

    def chunk_ranges(self) -> Iterator[tuple[int, int, int]]:
        """Iterate over the chunks, each with the start and stop of its items in the arena."""
        return zip(self.chunks.tolist(), self.start.tolist(), self.stop.tolist(), strict=True)


class Stream:
    """Reader of windows, which decodes the next one in another thread while one is trained on.

    Parameters
    ----------
    dataset : Dataset
        Used by the reading thread alone from now on, until `close`.
    plan : Plan
    layout : Layout
    seed : int
    n_folds : int
        Folds to which the rows are assigned (`assign_folds`); 0 for none.

    Attributes
    ----------
    bytes_read : int
        Bytes read from the dataset's files so far.
    """

    def __init__(self, dataset: Dataset, plan: Plan, layout: Layout, seed: int, *, n_folds: int = 0) -> None:
        if dataset.classes is None:
            raise UsageError(f"{dataset.path}: the labels take too many values to be classes")
        self.plan, self.seed = plan, seed
        self.table: Table = layout.open(dataset)
        self._units = np.arange(unit_start(self.table).size - 1)
        self._is_long = np.repeat(long_units(self.table, plan), np.diff(unit_start(self.table)))
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
        """Working time of the reading thread."""
        return self._loader.seconds

    @property
    def largest_window_items(self) -> int:
        """Largest number of items in a window."""
        return self.table.n_items if self.plan.resident else window_size(self.table, self.plan)[0]

    def n_windows(self, read: int) -> int:
        """Count the windows of a read."""
        return len(self._windows(read))

    def windows(self, read: int, first: int = 0, *, verify: bool = False) -> Iterator[Window]:
        """Iterate over the windows of one read from number `first` on; taking one may overwrite the one before.

        Parameters
        ----------
        read : int
            The order is a function of (seed, read).
        first : int
        verify : bool
            Check the checksums of all pages; by default only those of chunks that this process has not read before.
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
            # its arena is free again; the caller may still use the other one
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
        """See `Window.sweep`; by the reading thread, after the window that it reads ahead into the other arena."""
        entries = np.diff(self.table.entry_start)[chunks]
        start = 0
        while start < chunks.size:
            room = np.searchsorted(np.cumsum(entries[start:]), arena.row.size, side="right")
            stop = start + int(room)
            reply: queue.SimpleQueue[Any] = queue.SimpleQueue()

            def load(part: slice = slice(start, stop)) -> int:
                self._loader.expect(chunks[part.start : 2 * part.stop - part.start])
                offsets = np.cumsum(entries[part]) - entries[part]
                for chunk, offset in zip(chunks[part].tolist(), offsets.tolist(), strict=True):
                    self._loader.load(arena, chunk, 0, offset, verify)
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
            item_starts, entry_starts, missing = self._resident.find(chunks)
            hint = hint[self._resident.find(hint)[2]]
        else:
            items = np.diff(self.table.item_start)[chunks]
            item_starts, entry_starts = np.cumsum(items) - items, np.cumsum(entries) - entries
            missing = np.ones(chunks.size, dtype=bool)
        if chunks is not self._hinted:  # the first window of a read
            self._loader.expect(chunks[missing])
        self._loader.expect(hint)
        self._hinted = hint
        for i in np.flatnonzero(missing).tolist():
            self._loader.load(arena, int(chunks[i]), int(item_starts[i]), int(entry_starts[i]), verify)
        if self._resident is not None:
            self._resident.mark(chunks)
        return item_starts, int(entries.sum())


def _make_arenas(table: Table, plan: Plan, layout: Layout) -> list[Any]:
    if plan.resident:
        return [layout.new_arena(table, table.n_items, table.n_entries)]
    return [layout.new_arena(table, *window_size(table, plan)) for _ in range(2)]


class _ResidentMap:
    """Map of the one arena of resident data: offsets of the chunks, and which are loaded."""

    def __init__(self, table: Table) -> None:
        self._item_start, self._entry_start = table.item_start, table.entry_start
        self._loaded = np.zeros(table.n_chunks, dtype=bool)

    def find(self, chunks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self._item_start[chunks], self._entry_start[chunks], ~self._loaded[chunks]

    def mark(self, chunks: np.ndarray) -> None:
        self._loaded[chunks] = True


class _Loader:
    """Decoder of chunks into an arena, which reads ahead those to come.

    Where the page cache can hold the data, they are read into it, and later reads cost no disk; measured twice as fast as
    plain reads where the disk is cold. Where it cannot, they are read past it (`readahead`): waiting for the disk fell from
    0.25-0.53 to 0.06-0.28 s of passes of 1.1-1.5 s (100 M entries, a cap of 400 MB, alternate runs).
    """

    def __init__(self, table: Table, decode: Decoder) -> None:
        self._table, self._decode = table, decode
        self.bytes_read = 0
        self.seconds = 0.0
        self._seen = np.zeros(table.n_chunks, dtype=bool)
        if _page_cache_too_small(table):
            table.read_directly()

    def expect(self, chunks: Sequence[int] | np.ndarray) -> None:
        """Announce the chunks that will be loaded, in this order."""
        for chunk in chunks:
            self._table.expect(int(chunk))

    def load(self, arena: Any, chunk: int, item_start: int, entry_start: int, verify: bool) -> None:
        """Decode a chunk into the arena, its items and entries from these offsets on."""
        started = time.monotonic()
        self._decode(arena, chunk, item_start, entry_start, verify or not self._seen[chunk])
        self._seen[chunk] = True
        self.bytes_read += self._table.chunk_bytes(chunk)
        self.seconds += time.monotonic() - started


def _page_cache_too_small(table: Table) -> bool:
    """Return whether the page cache cannot hold the data; affects speed alone, never results."""
    return table.bytes_on_disk() > 0.6 * page_cache_room()


# ---------------------------------------------------------------------------------------------------------------------
# The order of a read


def chunk_order(table: Table, units: np.ndarray, seed: int, read: int) -> np.ndarray:
    """Draw a random order of units (chunks, or chunks that belong together) as a function of (seed, read).

    Where shards outnumber the footers kept open, random groups of shards follow one another, and the units of a group are
    mixed; the groups are new in every read.
    """
    key = random_key(seed, read, _ORDER_OF_CHUNKS)
    if table.n_shards <= MAX_OPEN_PARTS:
        order = units.copy()
        shuffle(order, key)
        return order
    shards = np.arange(table.n_shards)
    shuffle(shards, key)
    rank = np.empty_like(shards)
    rank[shards] = np.arange(shards.size)
    group = rank[table.chunk_part[unit_start(table)[units]]] // MAX_OPEN_PARTS
    groups = [units[group == number] for number in range(int(group.max(initial=-1)) + 1)]
    for number, members in enumerate(groups):
        shuffle(members, random_key(seed, read, _ORDER_OF_CHUNKS, number))
    return np.concatenate(groups)


def cut_windows(table: Table, order: np.ndarray, plan: Plan) -> list[np.ndarray]:
    """Cut an order of units into windows that the plan's arenas can hold; returns the chunks of each."""
    starts = unit_start(table)
    first, last = starts[order], starts[order + 1]
    entry_sum = np.cumsum(table.entry_start[last] - table.entry_start[first])
    item_sum = np.cumsum(table.item_start[last] - table.item_start[first])
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
            bounds = zip(first[start:stop].tolist(), last[start:stop].tolist(), strict=True)
            windows.append(np.concatenate([np.arange(*unit) for unit in bounds]))
        start = stop
    return windows or [order]  # a window without chunks, where the bias is all there is to train

"""Streaming of a dataset in windows, read after read: while one is visited, the next is loaded into the other of two arenas.

The order of a read is a pure function of (seed, read). A window holds many small chunks in random order, and their items are
shuffled together. On real text this converges like a random permutation of all rows, unlike blocks of neighbouring rows, and
needs no random access to the disk.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.memory_budget import RESERVED_BYTES, available_memory
from ..core.parallel import Threads, available_cores
from ..core.setting import random_key
from ..dataset.chunked_table import MAX_OPEN_PARTS, ChunkedTable
from ..dataset.column_layout import Columns
from ..dataset.dataset import Dataset
from ..kernels.primitives import shuffle
from .active_rows import ActiveRows
from .arenas import ColumnLayout, Decoder, RowLayout, Window
from .memory_plan import RESIDENT_READERS, Plan, long_units, slot_size, window_size

_FEW_ENTRIES = 1 << 20
"""Resident entries that are read within some ms, in the only window: a thread of their own takes longer to wake up."""

_ORDER_OF_CHUNKS = 2**32 - 1  # in place of the window in the random key of a read's order

Loading = tuple[Window, Future[int] | None]
"""A window, and the task that loads it, whose result is the bytes read; None where there is nothing to wait for."""


class Stream:
    """Reader of windows; while the caller works on one, another thread decodes the next, two where the data are resident.

    Until `close`, only these threads may use `dataset`, which assigns rows to `n_folds` folds, 0 for none. If the data are
    resident, `n_shards` is the number of shards that have room (`restrict` says which), all if omitted. `folder` is a
    directory for copies of active rows (`keep_active`), which are not made without one. No window has more than
    `largest_window_items`.
    """

    def __init__(
        self,
        dataset: Dataset,
        plan: Plan,
        layout: RowLayout | ColumnLayout,
        seed: int,
        *,
        n_folds: int = 0,
        n_shards: int | None = None,
        folder: Path | None = None,
    ) -> None:
        if dataset.classes is None and not dataset.has_targets:
            raise UsageError(f"{dataset.path}: the labels take too many values to be classes")
        self.plan = plan
        self.seed = seed
        self.table: ChunkedTable = layout.open(dataset)
        self._units = np.arange(self.table.unit_start.size - 1)
        self._first = self._units[:0]  # of the first read
        self._n_items = np.diff(self.table.item_start)
        self._n_entries = np.diff(self.table.entry_start)
        self._is_long = np.repeat(long_units(self.table, plan), np.diff(self.table.unit_start))
        n_bytes = self.table.bytes_on_disk()
        self._at_once = not n_bytes or (plan.resident and self.table.n_entries <= _FEW_ENTRIES)
        self._seen = np.zeros(self.table.n_chunks, dtype=bool)
        self.bytes_read = 0  # from the dataset's files, for windows that were taken or dropped
        self.read_seconds = 0.0
        # past the page cache where it cannot hold the data; else later reads need no disk
        cache_room = available_memory(RESERVED_BYTES)  # beside this process
        past_cache = n_bytes > 0 and (self.table.client_bytes > 0 or n_bytes > 0.6 * cache_room)
        if past_cache:
            self.table.read_ahead()
        self._slots = ShardSlots(self.table, self.table.n_shards if n_shards is None else n_shards)
        size = (
            (self._slots.n_items, self._slots.n_entries) if plan.resident else window_size(self.table, plan)
        )
        self.largest_window_items = size[0]
        self._arenas = [layout.new_arena(self.table, *size) for _ in range(1 if plan.resident else 2)]
        self._active: ActiveRows | None = None
        self._copied = np.zeros(
            self.table.n_chunks, dtype=bool
        )  # chunks of which this read takes the active rows
        if isinstance(layout, RowLayout) and not plan.resident and n_bytes and folder:
            self._active = ActiveRows(dataset, self._arenas[0], folder)
        self._tables = [self.table]
        if plan.resident and not self._at_once and not past_cache:
            n_readers = min(RESIDENT_READERS, available_cores())
            self._tables += [copy(self.table) for _ in range(1, n_readers)]
        self._decoders = [layout.decoder(table, seed, n_folds) for table in self._tables]  # type: ignore[arg-type]
        self._readers = Threads(len(self._tables))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="streamcd-read")
        self._hinted = np.zeros(0, dtype=np.int64)
        shuffle(self._first, np.uint64(0), 1)  # its kernel is loaded before windows take memory
        self._windows_of_read: tuple[int, list[np.ndarray]] = -1, []  # the windows of a read
        self._ahead: Loading | None = None
        self._turn = 0  # of the arenas, which windows take by turns

    @property
    def scratch_bytes(self) -> int:
        """Size of the file with copies of active rows, in bytes."""
        return self._active.disk_bytes if self._active else 0

    def windows(self, read: int, first: int = 0, *, goes_on: bool = True) -> Iterator[Window]:
        """Iterate over the windows of one read from number `first` on; each may overwrite the one before.

        The order is a function of (seed, read). The checksums of chunks are checked when they are read for the first time.
        The first window of the next read is read ahead, unless that is to be of other shards: then it does not go on.
        """
        count = len(self._windows(read))
        for number in range(first, count):
            if self._ahead is not None and (self._ahead[0].read, self._ahead[0].number) != (read, number):
                self._drop()
            window, load = self._ahead or self._request(read, number)
            self._ahead = None
            self.bytes_read += load.result() if load else 0
            if number + 1 < count:
                self._ahead = self._request(read, number + 1)
            elif goes_on and not (self._active and self._active.exist):
                self._ahead = self._request(read + 1, 0)
            yield window

    def begin_with(self, chunks: np.ndarray) -> None:
        """Have the first read begin with these chunks; where all fit in one window, in a window of their own."""
        self._first = chunks

    def begin_read(self, *, all_rows: bool, rows_return: bool) -> None:
        """Choose the source of a read's windows, before `windows`; without this call it is the dataset.

        Unless the read needs `all_rows`, only the active ones have their entries: those with a flag in all calls of
        `keep_active` since rows last returned.
        """
        if self._active is not None:
            self._wait()  # its chunks come from where the read before has them
            self._copied = self._active.begin_read(all_rows, rows_return)

    def keep_active(self, window: Window, columns: np.ndarray) -> str:
        """Copy a visited window's rows with one of these flags for later reads; returns why not any more, once."""
        if self._active is None:
            return ""
        try:
            self._active.keep(window, columns)
        except OSError as error:
            self._wait()
            self._active.give_up()
            self._copied[:] = False
            return str(error)
        return ""

    def set_shards(self, shards: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read only these shards of rows from now on; call it between reads.

        Returns their chunks, ascending, and the chunks that lost their place in the resident arena.
        """
        chunks = np.flatnonzero(np.isin(self.table.chunk_part, shards))
        lost = self._units[:0]
        if not np.array_equal(chunks, self._units):
            self._drop()
            if self.plan.resident:
                lost = self._slots.hold(shards)
                self._seen[lost] = False
            self._units = chunks
            self._windows_of_read = (-1, [])
        return chunks, lost

    def resident_start(self, chunk: int) -> int:
        """Return the offset of a chunk's items in the resident arena."""
        return int(self._slots.item_start[chunk])

    def close(self, *_: object) -> None:
        """Stop the reading thread and close the dataset's files."""
        self._thread.shutdown(cancel_futures=True)
        self._readers.close()
        for table in self._tables:
            table.close()
        if self._active is not None:
            self._active.close()

    def __enter__(self) -> Stream:
        return self

    __exit__ = close

    def _windows(self, read: int) -> list[np.ndarray]:
        """Return the chunks of each window of a read."""
        if self._windows_of_read[0] != read:
            order = chunk_order(self.table, self._units, self.seed, read)
            first = order[np.isin(order, self._first)] if read == 0 else order[:0]
            order = np.concatenate([first, order[~np.isin(order, first)]])
            windows = cut_windows(self.table, order, self.plan)
            if first.size and len(windows) == 1:
                windows = np.split(order, [first.size])
            self._windows_of_read = read, windows
        return self._windows_of_read[1]

    def _request(self, read: int, number: int) -> Loading:
        """Lay out a window in an arena, and begin to load it."""
        windows = self._windows(read)
        chunks = windows[number]
        arena = self._arenas[self._turn % len(self._arenas)]
        self._turn += 1
        items = self._n_items[chunks]
        entries = self._n_entries[chunks]
        if self._active is not None:
            entries = np.where(self._copied[chunks], self._active.n_entries[chunks], entries)
        starts = np.cumsum(items) - items
        entry_starts = np.cumsum(entries) - entries
        sweep = None
        is_there = self.plan.resident and bool(self._seen[chunks].all())
        if chunks.size and self._is_long[chunks[0]]:
            assert isinstance(self.table, Columns)
            arena.feature[0] = self.table.first_feature[chunks[0]]
            arena.indptr[:2] = 0
            sweep = functools.partial(self._sweep, arena, chunks)
        elif self.plan.resident:
            starts = self._slots.item_start[chunks]
            entry_starts = self._slots.entry_start[chunks]
        n_entries = int(entries.sum())
        window = Window(read, number, len(windows), chunks, arena, starts, starts + items, n_entries, sweep)
        if sweep is not None or is_there:
            return window, None
        hint = windows[number + 1] if number + 1 < len(windows) else chunks[:0]
        if hint.size and self._is_long[hint[0]]:
            hint = hint[:0]
        if not self._at_once:
            return window, self._thread.submit(self._load, arena, chunks, starts, entry_starts, hint)
        self.bytes_read += self._load(arena, chunks, starts, entry_starts, hint)  # faster for little data
        return window, None

    def _drop(self) -> None:
        """Give up what was read ahead."""
        if self._ahead is not None:
            load = self._ahead[1]
            if load and not load.cancel() and load.exception() is None:
                self.bytes_read += load.result()
            self._turn -= 1  # reuse its arena: the caller may still use the other one
            self._ahead = None

    def _wait(self) -> None:
        """Wait until what is read ahead is there."""
        if self._ahead is not None and self._ahead[1] is not None:
            wait([self._ahead[1]])

    def _sweep(self, arena: Any, chunks: np.ndarray) -> Iterator[int]:
        """Implement `Window.sweep`; each segment is loaded after the window being read ahead into the other arena."""
        entries = self._n_entries[chunks]
        start = 0
        while start < chunks.size:
            stop = start + int(np.searchsorted(np.cumsum(entries[start:]), arena.row.size, side="right"))
            group = chunks[start:stop]
            hint = chunks[stop : 2 * stop - start]
            ends = np.cumsum(entries[start:stop])
            offsets = group, np.zeros_like(group), ends - entries[start:stop]
            self.bytes_read += self._thread.submit(self._load, arena, *offsets, hint).result()
            yield int(ends[-1])
            start = stop

    def _load(
        self, arena: Any, chunks: np.ndarray, items: np.ndarray, entries: np.ndarray, hint: np.ndarray
    ) -> int:
        """Load chunks, in the thread, to offsets of items and entries in the arena; returns the bytes read.

        Chunks of `hint` are to follow: they are announced. Each reader takes the next chunk as soon as it is free.
        """
        started = time.monotonic()
        if self.plan.resident:
            missing = ~self._seen[chunks]
            chunks = chunks[missing]
            items = items[missing]
            entries = entries[missing]
            hint = hint[~self._seen[hint]]
        # else they were announced with the window before
        for some in (hint,) if np.array_equal(chunks, self._hinted) else (chunks, hint):
            self.table.announce(some[~self._copied[some]].tolist())
        self._hinted = hint
        remaining = iter(list(zip(chunks.tolist(), items.tolist(), entries.tolist(), strict=True)))
        n_bytes = list[int]()

        def read(decode: Decoder) -> None:
            for chunk, item, entry in remaining:
                if self._active is not None and self._copied[chunk]:
                    n_bytes.append(self._active.load(arena, chunk, item, entry))
                    continue
                decode(arena, chunk, item, entry, not self._seen[chunk])
                self._seen[chunk] = True
                n_bytes.append(self.table.chunk_bytes(chunk))

        self._readers.run([functools.partial(read, decode) for decode in self._decoders])
        self.read_seconds += time.monotonic() - started
        return sum(n_bytes)


# ---------------------------------------------------------------------------------------------------------------------
# The order of a read


def chunk_order(table: ChunkedTable, units: np.ndarray, seed: int, read: int) -> np.ndarray:
    """Draw a random order of units (`ChunkedTable.unit_start`) as a function of (seed, read).

    If there are more shards than footers kept open, each read divides the shards into random groups, which are read one
    after another, the units of each in random order.
    """
    key = random_key(seed, read, _ORDER_OF_CHUNKS)
    if table.n_shards <= MAX_OPEN_PARTS:
        order = units.copy()
        shuffle(order, key, 1)
        return order
    shards = np.arange(table.n_shards)
    shuffle(shards, key, 1)
    rank = np.empty_like(shards)
    rank[shards] = np.arange(shards.size)
    group = rank[table.chunk_part[table.unit_start[units]]] // MAX_OPEN_PARTS
    groups = [units[group == number] for number in range(int(group.max(initial=-1)) + 1)]
    for number, members in enumerate(groups):
        shuffle(members, random_key(seed, read, _ORDER_OF_CHUNKS, number), 1)
    return np.concatenate(groups)


def cut_windows(table: ChunkedTable, order: np.ndarray, plan: Plan) -> list[np.ndarray]:
    """Cut an order of units into windows that the plan's arenas can hold; returns the chunks of each."""
    starts = table.unit_start
    first = starts[order]
    last = starts[order + 1]
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
        if table.unit_start.size > table.n_chunks:  # every chunk is one
            windows.append(order[start:stop])
        else:
            bounds = zip(first[start:stop].tolist(), last[start:stop].tolist(), strict=True)
            windows.append(np.concatenate([np.arange(*unit) for unit in bounds]))
        start = stop
    return windows or [order]  # a window without chunks, if there is only the bias to train


# ---------------------------------------------------------------------------------------------------------------------
# Places in a resident arena


class ShardSlots:
    """Places of shards in an arena, as many as fit; a shard keeps its place until another one needs it.

    Where all shards fit, each has its place for good. Otherwise the places are of equal size, with an item to spare, because
    an item's end is the next one's start. The arena has `n_items` and `n_entries`; `item_start` and `entry_start` are the
    offsets of every chunk in it, undefined without a place.
    """

    def __init__(self, table: ChunkedTable, n_slots: int) -> None:
        self._first = table.shard_start
        self._starts = (table.item_start, table.entry_start)
        self._in_slot = np.arange(table.n_shards)  # -1: empty
        self.item_start, self.entry_start = (start[:-1] for start in self._starts)
        self.n_items = table.n_items
        self.n_entries = table.n_entries
        if n_slots < table.n_shards:
            self._in_slot = np.full(n_slots, -1)
            self.item_start = self.item_start.copy()
            self.entry_start = self.entry_start.copy()
            self._sizes = slot_size(table)
            self.n_items, self.n_entries = (n_slots * size for size in self._sizes)

    def hold(self, shards: np.ndarray) -> np.ndarray:
        """Give these shards places, at most as many as there are; returns the chunks that lost theirs."""
        arriving = np.setdiff1d(shards, self._in_slot)
        free = np.flatnonzero(~np.isin(self._in_slot, shards))[: arriving.size]
        leaving = self._in_slot[free]
        for slot, shard in zip(free.tolist(), arriving.tolist(), strict=True):
            chunks = slice(self._first[shard], self._first[shard + 1])
            placed = zip(self._starts, (self.item_start, self.entry_start), self._sizes, strict=True)
            for start, offset, size in placed:
                offset[chunks] = start[:-1][chunks] - start[chunks.start] + slot * size
        self._in_slot[free] = arriving
        lost = [np.arange(*self._first[shard : shard + 2]) for shard in leaving.tolist() if shard >= 0]
        return np.concatenate([np.zeros(0, np.int64), *lost])

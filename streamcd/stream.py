"""Windows of a dataset, read after read, the next one read ahead into reused arenas while one is trained on."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .column_layout import Columns
from .dataset import Dataset
from .errors import UsageError
from .memory import page_cache_room
from .plan import Decoder, Layout, Plan, Table, long_units, unit_start, window_size
from .read_order import chunk_order, cut_windows


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
        """Seconds that the reading thread was at work."""
        return self._loader.seconds

    @property
    def largest_window_items(self) -> int:
        """Items that a window may hold."""
        return self.table.n_items if self.plan.resident else window_size(self.table, self.plan)[0]

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
    return [layout.new_arena(table, *window_size(table, plan)) for _ in range(2)]


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
    fast as plain reads where the disk is cold. Where it cannot, ahead means past it (`read_ahead`): waiting for it fell
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


def _page_cache_too_small(table: Table) -> bool:
    """Whether the page cache cannot hold the data; changes speed alone, never results."""
    return table.bytes_on_disk() > 0.6 * page_cache_room()

"""Windows of a dataset, read after read; while one is trained on, the next is loaded into the other of two arenas.

The order of a read is a pure function of (seed, read). A window holds many small chunks, and the items of all of them are
mixed inside it: measured on real text, this converges like a random permutation of all rows, which blocks of
neighbouring rows do not, and needs no random access to the disk.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.memory_budget import page_cache_room
from ..core.randomness import random_key
from ..dataset.chunked_table import MAX_OPEN_PARTS
from ..dataset.column_layout import Columns
from ..dataset.dataset import Dataset
from ..kernels.primitives import shuffle
from .memory_plan import Decoder, Layout, Plan, Table, long_units, unit_start, window_size
from .window import Window

_ORDER_OF_CHUNKS = 2**32 - 1  # takes the place of the window in the key of a whole read's order


class Stream:
    """Reader of windows, which decodes the next one in another thread while one is trained on.

    Until `close`, nothing but the reading thread may use `dataset`. `n_folds` is the number of folds to which the rows
    are assigned (`assign_folds`); 0 for none.
    """

    def __init__(self, dataset: Dataset, plan: Plan, layout: Layout, seed: int, *, n_folds: int = 0) -> None:
        if dataset.classes is None:
            raise UsageError(f"{dataset.path}: the labels take too many values to be classes")
        self.plan, self.seed = plan, seed
        self.table: Table = layout.open(dataset)
        self._units = np.arange(unit_start(self.table).size - 1)
        self._is_long = np.repeat(long_units(self.table, plan), np.diff(unit_start(self.table)))
        self._loader = _Loader(self.table, layout.decoder(self.table, seed, n_folds))
        size = (self.table.n_items, self.table.n_entries) if plan.resident else window_size(self.table, plan)
        self._arenas = [layout.new_arena(self.table, *size) for _ in range(1 if plan.resident else 2)]
        self._hinted: np.ndarray | None = None
        self._order_cache: tuple[int, list[np.ndarray]] | None = None
        self._ahead: tuple[tuple[int, int], Future[Window]] | None = None
        self._next_arena = 0
        self._in_memory = self.table.bytes_on_disk() == 0

    @functools.cached_property
    def _reader(self) -> ThreadPoolExecutor:
        """The reading thread, started where there is something to read."""
        return ThreadPoolExecutor(1, thread_name_prefix="streamcd-read")

    @property
    def bytes_read(self) -> int:
        """Bytes read from the dataset's files so far."""
        return self._loader.bytes_read

    @property
    def read_seconds(self) -> float:
        """Seconds that the reading thread has spent loading chunks."""
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

        The order is a function of (seed, read). With `verify` the checksums of all chunks are checked, not only those of
        chunks that this process reads for the first time.
        """
        count = self.n_windows(read)
        for number in range(first, count):
            window = self._take(read, number, verify)
            following = (read, number + 1) if number + 1 < count else (read + 1, 0)
            self._request(*following, verify)
            yield window

    def restrict(self, units: np.ndarray) -> None:
        """Read these units (chunks, or chunks that belong together) from now on, ascending; between reads only."""
        if self._ahead is not None:
            self._ahead[1].exception()  # waits
        self._units, self._order_cache, self._ahead = units, None, None

    def close(self) -> None:
        """Stop the reading thread and close the dataset's files."""
        if "_reader" in vars(self):
            self._reader.shutdown(cancel_futures=True)
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
        chunks, arena = windows[number], self._arenas[self._next_arena]
        hint = windows[number + 1] if number + 1 < len(windows) else chunks[:0]
        if hint.size and self._is_long[hint[0]]:
            hint = hint[:0]
        self._next_arena = (self._next_arena + 1) % len(self._arenas)
        arguments = ((read, number, len(windows)), chunks, hint, arena, verify)
        loaded: Future[Window]
        if self._in_memory or (
            self.plan.resident and self._loader.seen[chunks].all()
        ):  # a thread would take longer
            loaded = Future()
            loaded.set_result(self._load_window(*arguments))
        else:
            loaded = self._reader.submit(self._load_window, *arguments)
        self._ahead = ((read, number), loaded)

    def _take(self, read: int, number: int, verify: bool) -> Window:
        if self._ahead is None or self._ahead[0] != (read, number):
            if self._ahead is not None:
                self._ahead[1].exception()  # waits
                # its arena is free again; the caller may still use the other one
                self._next_arena = (self._next_arena - 1) % len(self._arenas)
            self._request(read, number, verify)
        assert self._ahead is not None
        (_, window), self._ahead = self._ahead, None
        return window.result()

    def _sweep(self, arena: Any, chunks: np.ndarray, verify: bool) -> Iterator[int]:
        """Implement `Window.sweep`; each part is loaded after the window being read ahead into the other arena."""
        entries = np.diff(self.table.entry_start)[chunks]
        start = 0
        while start < chunks.size:
            room = np.searchsorted(np.cumsum(entries[start:]), arena.row.size, side="right")
            stop = start + int(room)

            def load(part: slice = slice(start, stop)) -> int:
                self._loader.expect(chunks[part.start : 2 * part.stop - part.start])
                offsets = np.cumsum(entries[part]) - entries[part]
                for chunk, offset in zip(chunks[part].tolist(), offsets.tolist(), strict=True):
                    self._loader.load(arena, chunk, 0, offset, verify)
                return int(entries[part].sum())

            yield self._reader.submit(load).result()
            start = stop

    # -- in the reading thread ----------------------------------------------------------------------------------------

    def _load_window(
        self, position: tuple[int, int, int], chunks: np.ndarray, hint: np.ndarray, arena: Any, verify: bool
    ) -> Window:
        items, entries = (np.diff(start)[chunks] for start in (self.table.item_start, self.table.entry_start))
        sweep = None
        if chunks.size and self._is_long[chunks[0]]:
            assert isinstance(self.table, Columns)
            starts = np.cumsum(items) - items
            arena.feature[0], arena.indptr[:2] = self.table.first_feature[chunks[0]], 0
            sweep = functools.partial(self._sweep, arena, chunks, verify)
        elif self.plan.resident:
            starts = self.table.item_start[chunks]
            missing = ~self._loader.seen[chunks]
            entry_starts = self.table.entry_start[chunks[missing]]
            hint = hint[~self._loader.seen[hint]]
            self._load(arena, chunks[missing], starts[missing], entry_starts, hint, verify)
        else:
            starts = np.cumsum(items) - items
            self._load(arena, chunks, starts, np.cumsum(entries) - entries, hint, verify)
        return Window(*position, chunks, arena, starts, starts + items, int(entries.sum()), sweep)

    def _load(
        self,
        arena: Any,
        chunks: np.ndarray,
        item_starts: np.ndarray,
        entry_starts: np.ndarray,
        hint: np.ndarray,
        verify: bool,
    ) -> None:
        if chunks is not self._hinted:  # otherwise they were announced with the window before
            self._loader.expect(chunks)
        self._loader.expect(hint)
        self._hinted = hint
        starts = zip(item_starts.tolist(), entry_starts.tolist(), strict=True)
        for chunk, (item_start, entry_start) in zip(chunks.tolist(), starts, strict=True):
            self._loader.load(arena, chunk, item_start, entry_start, verify)


class _Loader:
    """Loader of chunks into an arena, which reads ahead the chunks announced to it.

    If the page cache can hold the data, chunks are read into it and later reads need no disk: measured twice as fast as
    plain reads from a cold disk. If not, they are read past it (`read_ahead`): of passes of 1.1-1.5 s, the time spent
    waiting for the disk fell from 0.25-0.53 s to 0.06-0.28 s (100 M entries, a cap of 400 MB, runs in turn).
    """

    def __init__(self, table: Table, decode: Decoder) -> None:
        self._table, self._decode = table, decode
        self.bytes_read = 0
        self.seconds = 0.0
        self.seen = np.zeros(table.n_chunks, dtype=bool)
        n_bytes = table.bytes_on_disk()
        if n_bytes and n_bytes > 0.6 * page_cache_room():  # affects speed alone, never results
            table.read_directly()

    def expect(self, chunks: Sequence[int] | np.ndarray) -> None:
        """Announce the chunks that will be loaded, in this order."""
        for chunk in chunks:
            self._table.expect(int(chunk))

    def load(self, arena: Any, chunk: int, item_start: int, entry_start: int, verify: bool) -> None:
        """Decode a chunk into the arena, its items and entries from these offsets on."""
        started = time.monotonic()
        self._decode(arena, chunk, item_start, entry_start, verify or not self.seen[chunk])
        self.seen[chunk] = True
        self.bytes_read += self._table.chunk_bytes(chunk)
        self.seconds += time.monotonic() - started


# ---------------------------------------------------------------------------------------------------------------------
# The order of a read


def chunk_order(table: Table, units: np.ndarray, seed: int, read: int) -> np.ndarray:
    """Draw a random order of units (chunks, or chunks that belong together) as a function of (seed, read).

    Where there are more shards than footers kept open, the shards are divided into random groups, new in every read; the
    groups follow one another, and the units of each are shuffled.
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
    return windows or [order]  # a window without chunks, for when there is only the bias to train

"""Which chunk when: the order of a read, its windows, the memory plan, and reading ahead into reused arenas.

The order is a pure function of (seed, read): all chunks in a fresh random order, cut into windows of many small chunks,
inside which the rows of all chunks are mixed. Measured on real text, this converges as a full random permutation does
(blocks of neighbouring rows do not), and costs no random access to the disk.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .dataset import MAX_OPEN_PARTS, Dataset
from .errors import DatasetError, UsageError
from .kernels import shuffle
from .memory import RESERVED_BYTES, format_size, require

RESIDENT_WINDOW_ENTRIES = 4_000_000
"""Entries of a window where the whole dataset is in memory: 32 MB, so that a window's rows are found in the processor's
last cache. Mixing more rows gains nothing in convergence and costs speed: 180 against 310 M entries/s with 32 M entries."""

NO_FOLD = 255  # fold of every row where no folds are dealt

_FOOTER_BYTES = 200_000  # of an open Parquet file with some hundred row groups
_ORDER_OF_CHUNKS = 2**32 - 1  # stands for the window where a key belongs to the order of a whole read
_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 2**64 - 1


def random_key(*parts: int) -> np.uint64:
    """A 64-bit key for `shuffle` as a function of integers such as (seed, read, window)."""
    key = 0
    for part in parts:
        key = (key ^ (part & _WORD)) * _GOLDEN & _WORD
        key ^= key >> 32
        key = key * 0xD6E8FEB86659FD93 & _WORD
        key ^= key >> 29
    return np.uint64(key)


# ---------------------------------------------------------------------------------------------------------------------
# The memory plan


@dataclass(frozen=True)
class RowLayout:
    """What a row takes in an arena, beside its entries.

    Attributes
    ----------
    alpha_width : int
        Dual variables (float64) of a row.
    n_flags : int
        Active flags (uint8) of a row.
    """

    alpha_width: int
    n_flags: int

    @property
    def state_bytes(self) -> int:
        """Bytes of what a row keeps between visits: alpha, active."""
        return 8 * self.alpha_width + self.n_flags

    @property
    def row_bytes(self) -> int:
        """Bytes of a row: indptr, code, weight, fold, alpha, active."""
        return 8 + 4 + 8 + 1 + self.state_bytes


@dataclass(frozen=True)
class Plan:
    """How a run uses memory; part of its configuration, so that resuming elsewhere visits the same rows in the same order.

    Attributes
    ----------
    window_entries, window_rows : int
        No window holds more, but for a single chunk that does.
    resident : bool
        Whether all chunks are kept in memory; does not change the order.
    """

    window_entries: int
    window_rows: int
    resident: bool


_ORDER_BYTES = 8


_ADVICE = "give a larger --memory, or convert with a smaller --chunk-size"


def make_plan(
    dataset: Dataset,
    budget: int,
    model_bytes: int,
    layout: RowLayout,
    *,
    needs: Mapping[str, int] | None = None,
    advice: str = _ADVICE,
) -> Plan:
    """Divide the memory budget.

    Parameters
    ----------
    dataset : Dataset
    budget : int
        Bound on peak resident memory, bytes.
    model_bytes : int
        What the solver's state takes (weights and their like).
    layout : RowLayout
    needs : mapping of str to int, optional
        What else the solver takes, and how many bytes.
    advice : str
        What the user can do where it does not fit.

    Raises
    ------
    UsageError
        Where the model and two windows of one chunk do not fit; with the arithmetic.
    """
    chunk_entries, chunk_rows = _largest_chunk(dataset)
    row_bytes = layout.row_bytes + _ORDER_BYTES
    overhead = {
        "weights": model_bytes,
        **(needs or {}),
        "reading": _reading_bytes(dataset, chunk_entries, chunk_rows),
        "chunk table": 40 * dataset.n_chunks,
    }
    whole = dataset.n_entries * dataset.entry_bytes + dataset.n_rows * row_bytes
    if RESERVED_BYTES + sum(overhead.values()) + whole <= budget:
        entries = min(max(RESIDENT_WINDOW_ENTRIES, chunk_entries), max(dataset.n_entries, 1))
        return Plan(entries, dataset.n_rows, resident=True)
    smallest = 2 * chunk_entries * dataset.entry_bytes + chunk_rows * (2 * layout.row_bytes + _ORDER_BYTES)
    left = require(
        budget,
        {**overhead, "two windows of one chunk": smallest},
        advice,
    )
    # what is left over beside the smallest windows is shared in the proportion of an average chunk
    entries = max(dataset.n_entries, 1)
    average = 2 * dataset.entry_bytes + dataset.n_rows / entries * (2 * layout.row_bytes + _ORDER_BYTES)
    more_entries = int(left / average)
    return Plan(
        chunk_entries + more_entries,
        chunk_rows + int(more_entries * dataset.n_rows / entries),
        resident=False,
    )


def _largest_chunk(dataset: Dataset) -> tuple[int, int]:
    if dataset.n_chunks == 0:
        return 1, 1
    return max(1, int(np.diff(dataset.entry_start).max())), max(1, int(np.diff(dataset.row_start).max()))


def _reading_bytes(dataset: Dataset, chunk_entries: int, chunk_rows: int) -> int:
    """Decoding a chunk holds it on disk and decoded; Arrow's allocator keeps as much again."""
    footers = _FOOTER_BYTES * min(2 * MAX_OPEN_PARTS, 2 * dataset.n_shards)
    return 4 * (chunk_entries * dataset.entry_bytes + chunk_rows * 40) + footers


# ---------------------------------------------------------------------------------------------------------------------
# The order of a read


def chunk_order(dataset: Dataset, chunks: np.ndarray, seed: int, read: int) -> np.ndarray:
    """A random order of chunks as a function of (seed, read).

    Where parts outnumber the footers kept open, random groups of parts come one after another, and the chunks of a group
    are mixed; the groups are new in every read.
    """
    key = random_key(seed, read, _ORDER_OF_CHUNKS)
    if dataset.n_shards <= MAX_OPEN_PARTS:
        order = chunks.copy()
        shuffle(order, key)
        return order
    parts = np.arange(dataset.n_shards)
    shuffle(parts, key)
    rank = np.empty_like(parts)
    rank[parts] = np.arange(parts.size)
    group = rank[dataset.chunk_part[chunks]] // MAX_OPEN_PARTS
    pieces = []
    for number in range(int(group.max(initial=-1)) + 1):
        piece = chunks[group == number]
        shuffle(piece, random_key(seed, read, _ORDER_OF_CHUNKS, number))
        pieces.append(piece)
    return np.concatenate(pieces)


def cut_windows(dataset: Dataset, order: np.ndarray, plan: Plan) -> list[np.ndarray]:
    """Cut an order of chunks into windows that the plan's arenas can hold."""
    entries = np.diff(dataset.entry_start)[order]
    rows = np.diff(dataset.row_start)[order]
    entry_sum, row_sum = np.cumsum(entries), np.cumsum(rows)
    windows = []
    start = 0
    while start < order.size:
        entry_limit = (entry_sum[start - 1] if start else 0) + plan.window_entries
        row_limit = (row_sum[start - 1] if start else 0) + plan.window_rows
        stop = min(
            int(np.searchsorted(entry_sum, entry_limit, "right")),
            int(np.searchsorted(row_sum, row_limit, "right")),
        )
        stop = max(stop, start + 1)
        windows.append(order[start:stop])
        start = stop
    return windows


# ---------------------------------------------------------------------------------------------------------------------
# Arenas and windows


class Arena:
    """Preallocated arrays into which chunks are decoded, and the state of their rows beside them."""

    def __init__(self, dataset: Dataset, n_rows: int, n_entries: int, layout: RowLayout) -> None:
        self.indptr = np.zeros(n_rows + 1, dtype=np.int64)
        self.feature = np.empty(n_entries, dtype=dataset.index_dtype)
        self.value = np.empty(n_entries, dtype=dataset.value_dtype)
        self.code = np.empty(n_rows, dtype=np.int32)
        self.weight = np.empty(n_rows, dtype=np.float64)
        self.fold = np.full(n_rows, NO_FOLD, dtype=np.uint8)
        self.alpha = np.empty((n_rows, layout.alpha_width), dtype=np.float64)
        self.active = np.empty((n_rows, layout.n_flags), dtype=np.uint8)


@dataclass(frozen=True)
class Window:
    """Chunks that are in memory at one time.

    Attributes
    ----------
    read, number : int
        The read it belongs to, and its place in it.
    chunks : ndarray of int64
    arena : Arena
    row_start, row_stop : ndarray of int64, shape (chunks,)
        Where in the arena each chunk's rows are.
    n_entries : int
    """

    read: int
    number: int
    chunks: np.ndarray
    arena: Arena
    row_start: np.ndarray
    row_stop: np.ndarray
    n_entries: int

    def pieces(self) -> Iterator[tuple[int, int, int]]:
        """Each chunk with the start and stop of its rows in the arena."""
        return zip(self.chunks.tolist(), self.row_start.tolist(), self.row_stop.tolist(), strict=True)


class Stream:
    """Windows of a dataset, read after read, the next one decoded by another thread while one is trained on.

    Parameters
    ----------
    dataset : Dataset
        Used by the reading thread alone from now on, until `close`.
    plan : Plan
    layout : RowLayout
    seed : int
    n_folds : int
        Deal the rows to so many folds (`deal_folds`); 0 for none.
    chunks : ndarray of int64, optional
        The chunks to read, all by default.

    Attributes
    ----------
    bytes_read : int
        Bytes asked of the dataset's files so far.
    """

    def __init__(
        self,
        dataset: Dataset,
        plan: Plan,
        layout: RowLayout,
        seed: int,
        *,
        n_folds: int = 0,
        chunks: np.ndarray | None = None,
    ) -> None:
        if dataset.classes is None:
            raise UsageError(f"{dataset.path}: the labels take too many values to be classes")
        self.dataset, self.plan, self.seed = dataset, plan, seed
        self.chunks = np.arange(dataset.n_chunks) if chunks is None else np.asarray(chunks, dtype=np.int64)
        self._loader = _Loader(dataset, seed, n_folds)
        self._arenas = _make_arenas(dataset, plan, layout)
        self._resident = _ResidentMap(dataset, self.chunks) if plan.resident else None
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
        self.dataset.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _windows(self, read: int) -> list[np.ndarray]:
        if self._order_cache is None or self._order_cache[0] != read:
            order = chunk_order(self.dataset, self.chunks, self.seed, read)
            self._order_cache = (read, cut_windows(self.dataset, order, self.plan))
        return self._order_cache[1]

    def _request(self, read: int, number: int, verify: bool) -> None:
        windows = self._windows(read)
        if not windows:
            return
        reply: queue.SimpleQueue[Any] = queue.SimpleQueue()
        chunks = windows[number]
        hint = windows[number + 1] if number + 1 < len(windows) else chunks[:0]
        arena = self._arenas[self._next_arena]
        self._next_arena = (self._next_arena + 1) % len(self._arenas)
        self._ahead = ((read, number, verify), reply)
        self._tasks.put((read, number, chunks, hint, arena, verify, reply))

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
            read, number, chunks, hint, arena, verify, reply = task
            try:
                starts, n_entries = self._load(arena, chunks, hint, verify)
                rows = np.diff(self.dataset.row_start)[chunks]
                reply.put(Window(read, number, chunks, arena, starts, starts + rows, n_entries))
            except BaseException as error:
                reply.put(error)

    def _load(
        self, arena: Arena, chunks: np.ndarray, hint: np.ndarray, verify: bool
    ) -> tuple[np.ndarray, int]:
        entries = np.diff(self.dataset.entry_start)[chunks]
        if self._resident is not None:
            row_starts, entry_starts, missing = self._resident.places(chunks)
            hint = hint[self._resident.places(hint)[2]]
        else:
            rows = np.diff(self.dataset.row_start)[chunks]
            row_starts, entry_starts = np.cumsum(rows) - rows, np.cumsum(entries) - entries
            missing = np.ones(chunks.size, dtype=bool)
        if chunks is not self._hinted:  # the first window of a read
            self._loader.expect(chunks[missing])
        self._loader.expect(hint)
        self._hinted = hint
        for place in np.flatnonzero(missing).tolist():
            self._loader.load(
                arena, int(chunks[place]), int(row_starts[place]), int(entry_starts[place]), verify
            )
        if self._resident is not None:
            self._resident.mark(chunks)
        return row_starts, int(entries.sum())


def _make_arenas(dataset: Dataset, plan: Plan, layout: RowLayout) -> list[Arena]:
    if plan.resident:
        return [Arena(dataset, dataset.n_rows, dataset.n_entries, layout)]
    chunk_entries, chunk_rows = _largest_chunk(dataset)
    n_rows, n_entries = max(plan.window_rows, chunk_rows), max(plan.window_entries, chunk_entries)
    return [Arena(dataset, n_rows, n_entries, layout) for _ in range(2)]


def deal_folds(source: np.ndarray, seed: int, n_folds: int) -> np.ndarray:
    """The fold of rows, by a hash of the seed and their place in the source; uint8."""
    key = source.astype(np.uint64) ^ random_key(seed, n_folds)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        key = (key ^ (key >> np.uint64(shift))) * np.uint64(factor)
    return ((key >> np.uint64(32)) * np.uint64(n_folds) >> np.uint64(32)).astype(np.uint8)


class _ResidentMap:
    """Where each chunk lives in the one arena of a resident dataset, and which are there already."""

    def __init__(self, dataset: Dataset, chunks: np.ndarray) -> None:
        self._row_start, self._entry_start = dataset.row_start, dataset.entry_start
        self._loaded = np.zeros(dataset.n_chunks, dtype=bool)

    def places(self, chunks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self._row_start[chunks], self._entry_start[chunks], ~self._loaded[chunks]

    def mark(self, chunks: np.ndarray) -> None:
        self._loaded[chunks] = True


class _Loader:
    """Decodes chunks into an arena; gives the kernel hints about what comes next and what is done with."""

    def __init__(self, dataset: Dataset, seed: int, n_folds: int) -> None:
        self.dataset, self.seed, self.n_folds = dataset, seed, n_folds
        self._columns = ["label", "n_entries"]
        self._columns += ["weight"] if dataset.weighted else []
        self._columns += ["source"] if n_folds else []
        self.bytes_read = 0
        self.seconds = 0.0
        self._seen = np.zeros(dataset.n_chunks, dtype=bool)
        self._drop = _page_cache_too_small(dataset)

    def expect(self, chunks: Sequence[int] | np.ndarray) -> None:
        """Start reading chunks into the page cache: measured twice as fast as plain reads where the disk is cold."""
        for chunk in chunks:
            self.dataset.advise(int(chunk), os.POSIX_FADV_WILLNEED)

    def load(self, arena: Arena, chunk: int, row_start: int, entry_start: int, verify: bool) -> None:
        """Decode a chunk to its place in the arena."""
        started, dataset = time.monotonic(), self.dataset
        check = verify or not self._seen[chunk]
        arrays = dataset.read_rows(chunk, self._columns, verify=check)
        rows = dict(zip(self._columns, arrays, strict=True))
        feature, value = dataset.read_entries(chunk, verify=check)
        self._copy_rows(arena, chunk, row_start, entry_start, rows)
        self._copy_entries(arena, chunk, entry_start, feature, value)
        self._seen[chunk] = True
        self.bytes_read += dataset.chunk_bytes(chunk)
        if self._drop:
            dataset.advise(chunk, os.POSIX_FADV_DONTNEED)
        self.seconds += time.monotonic() - started

    def _copy_rows(
        self, arena: Arena, chunk: int, row_start: int, entry_start: int, rows: Mapping[str, np.ndarray]
    ) -> None:
        label, n_entries = rows["label"], rows["n_entries"]
        row_stop = row_start + label.size
        ends = arena.indptr[row_start + 1 : row_stop + 1]
        np.cumsum(n_entries, out=ends)
        if label.size and (n_entries.min() < 0 or ends[-1] != self._n_entries(chunk)):
            raise DatasetError(
                f"{self.dataset.place(chunk)}: the rows' counts of entries do not fit the entries"
            )
        ends += entry_start
        arena.indptr[row_start] = entry_start
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
        self, arena: Arena, chunk: int, entry_start: int, feature: np.ndarray, value: np.ndarray
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


def _page_cache_too_small(dataset: Dataset) -> bool:
    """Whether the page cache cannot hold the dataset, so that pages read are better given back at once.

    Where it can, the kernel keeps them and later reads cost no disk. Changes speed alone, never results.
    """
    on_disk = sum(part["rows_bytes"] + part["entries_bytes"] for part in dataset.manifest["parts"])
    return on_disk > 0.6 * _page_cache_room()


def _page_cache_room() -> float:
    room = float("inf")
    try:
        with open("/proc/meminfo", encoding="ascii") as meminfo:
            for line in meminfo:
                if line.startswith("MemAvailable:"):
                    room = int(line.split()[1]) * 1024
    except OSError:
        pass
    return min(room, _cgroup_limit() - RESERVED_BYTES)


def _cgroup_limit() -> float:
    """The memory limit of this process's control group; infinite where there is none."""
    limit = float("inf")
    try:
        with open("/proc/self/cgroup", encoding="ascii") as groups:
            lines = [line.strip().split(":", 2) for line in groups]
    except OSError:
        return limit
    for _, controllers, path in lines:
        if controllers == "":
            name = f"/sys/fs/cgroup{path}/memory.max"
        elif "memory" in controllers.split(","):
            name = f"/sys/fs/cgroup/memory{path}/memory.limit_in_bytes"
        else:
            continue
        try:
            with open(name, encoding="ascii") as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            limit = min(limit, int(text))
    return limit


def describe_plan(plan: Plan, dataset: Dataset, budget: int) -> str:
    """One line for the user: what the budget was turned into."""
    entries = format_size(dataset.n_entries * dataset.entry_bytes)
    if plan.resident:
        return f"{entries} of entries fit in {format_size(budget)}: kept in memory"
    share = plan.window_entries / max(dataset.n_entries, 1)
    return (
        f"{entries} of entries are streamed within {format_size(budget)}: "
        f"windows of {format_size(plan.window_entries * dataset.entry_bytes)} ({share:.0%} of the data), two at a time"
    )

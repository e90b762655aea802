"""Row layout to column layout, in bounded memory: entries are scattered by ranges of features, then sorted range by range.

How many entries every feature has is known from ``features.parquet``, so ranges are cut to fit in memory beforehand, and
sorting a range is one step: every entry goes straight to its place. Rows are read in their order and written behind each
other, so a feature's entries come out ascending by row by themselves. The result is a function of the dataset and of the
options of the format, not of the memory. What was done is kept in checkpoints: begun again, it goes on from the last one.
"""

# mypy: allow-untyped-defs, no-check-untyped-defs
# (types of kernels are numba's to infer; everything else here is annotated)

from __future__ import annotations

import errno
import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from .atomic_files import put_directory, restore_directory, sync, write_file
from .buckets import Block, Bucket, Scatter, read_bucket
from .column_layout import FOLDER, Columns, ColumnsWriter, has_columns, open_columns
from .dataset import Dataset, open_dataset
from .errors import DatasetError, EnvironmentFailure, LockError, UsageError
from .locks import release_lock, take_lock
from .memory import parse_size, require
from .metadata import parse_json
from .parallel import Workers, checked_workers, memory_per_worker
from .progress import Listener, Progress

_MAX_BUCKETS = 256
_FEATURE_BYTES = 48
"""What a feature takes while its range is sorted: number, count, places, and a table of at most four times as many."""
_LEAST_BYTES = 16_000_000
_CHECKPOINT_SECONDS = 30.0


# ---------------------------------------------------------------------------------------------------------------------
# Kernels


@njit(cache=True, nogil=True)
def _place(feature, row, value, start, table, listed, following, ends, to_row, to_value):
    """Put entries at their places among those sorted by feature.

    Parameters
    ----------
    start : int, table : (features of the range,) int32
        Number of feature ``start + i`` among those that occur; empty where the range is too wide for a table.
    listed : (features,) int64
        The features that occur, ascending.
    following, ends : (features,) int64
        Where the next entry of each goes, moved on in place; where its entries end.

    Returns
    -------
    int
        -1, or the place of the first entry that the counts do not allow for.
    """
    for k in range(feature.size):
        if table.size:
            i = np.int64(table[feature[k] - start])
        else:
            i = np.searchsorted(listed, feature[k])
            if i >= listed.size or listed[i] != feature[k]:
                i = -1
        if i < 0 or following[i] >= ends[i]:
            return k
        at = following[i]
        following[i] += 1
        to_row[at], to_value[at] = row[k], value[k]
    return -1


# ---------------------------------------------------------------------------------------------------------------------
# The public function


def make_columns(
    dataset: Dataset | str | Path,
    *,
    memory: int | str = "1GB",
    chunk_size: int | str = "1MB",
    shard_size: int | str = "256MB",
    compression: str = "lz4",
    force: bool = False,
    workers: int = 1,
    listener: Listener | None = None,
) -> Columns:
    """Make the column layout of a dataset, beside its row layout; what an interrupted call has done is not done again.

    Parameters
    ----------
    dataset : Dataset or path
    memory : size
        Bound of the process's peak resident memory. The result does not depend on it.
    chunk_size, shard_size : size
        Decoded bytes of entries in a chunk and in a shard.
    compression : {"lz4", "zstd", "none"}
    force : bool
        Replace an existing layout, once the new one is complete.
    workers : int
        Processes that share the work (`parallel_transpose`); the result does not depend on it.
    listener : Listener, optional

    Returns
    -------
    Columns

    Raises
    ------
    UsageError
        Where the layout exists, or the memory is too small.
    DatasetError
        Where the dataset is damaged.
    LockError, EnvironmentFailure
        Where another process makes it; where the disk is full.
    """
    if compression not in ("lz4", "zstd", "none"):
        raise UsageError(f"expected compression lz4, zstd or none, found {compression!r}")
    dataset = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    if has_columns(dataset) and not force:
        raise UsageError(f"{dataset.path / FOLDER} exists; replace it with --force")
    options = Options(parse_size(chunk_size), parse_size(shard_size), compression)
    plan = _make_plan(dataset, parse_size(memory), options, checked_workers(workers))
    listener = listener or Listener()
    # another number of workers goes on with what it finds of its own kind
    folders = {
        many: dataset.path / f".{FOLDER}.{name}" for many, name in ((False, "partial"), (True, "shared"))
    }
    work, other = folders[workers > 1], folders[workers == 1]
    with _locked(dataset.path), _disk_full(dataset.path):
        if other.exists():
            restore_directory(dataset.path / FOLDER, other / "replaced")
            shutil.rmtree(other)
        if workers == 1:
            Transposition(dataset, options, plan, work, listener).run()
        else:
            with Workers(workers, listener, f"{__package__}.parallel_transpose") as processes:
                processes.module.transpose(dataset, options, plan, work, processes)
        put_directory(work / FOLDER, dataset.path / FOLDER, work / "replaced")
        shutil.rmtree(work)
    dataset.close()
    return open_columns(dataset)


@dataclass(frozen=True)
class Options:
    """What was asked for of the layout."""

    chunk_bytes: int
    shard_bytes: int
    compression: str

    def task(self, dataset: Dataset) -> dict[str, Any]:
        """What is to be done, for a checkpoint to be known by."""
        return {"dataset": dataset.fingerprint, **asdict(self)}


@dataclass(frozen=True)
class Plan:
    """How the memory is shared out: entries gathered before they are scattered, and entries sorted at a time."""

    gather_entries: int
    sort_bytes: int


def _make_plan(dataset: Dataset, budget: int, options: Options, workers: int = 1) -> Plan:
    largest = int(np.diff(dataset.entry_start).max(initial=1))
    needs = {
        # copied, cast, encoded, compressed
        "chunks being written": 8 * options.chunk_bytes,
        "chunks being read": 5 * largest * _record_bytes(dataset),
        "chunk tables": 40 * dataset.n_chunks + 200 * (dataset.n_entries * 8 // options.chunk_bytes + 1),
        "entries being sorted": _LEAST_BYTES,
    }
    if workers == 1:
        left = require(budget, needs, "give a larger --memory") + _LEAST_BYTES
    else:
        own = {"chunk tables": needs["chunk tables"]}
        left = memory_per_worker(budget, workers, needs, own) + _LEAST_BYTES
    # gathered and scattered: two copies and a byte an entry; a bucket is sorted while a part of it is being read
    gather = max(left // 4 // (2 * _record_bytes(dataset) + 1), largest)
    return Plan(gather_entries=gather, sort_bytes=left // 2)


def _record_bytes(dataset: Dataset) -> int:
    return dataset.index_dtype.itemsize + dataset.row_dtype.itemsize + dataset.value_dtype.itemsize


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = take_lock(path)
    if lock is None:
        raise LockError(f"{path}: another process makes its column layout; wait for it to end or stop it")
    try:
        yield
    finally:
        release_lock(lock)


@contextmanager
def _disk_full(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
            raise EnvironmentFailure(
                f"{path}: the disk is full; make room (about three times the size of the decoded entries) and run it "
                "again: it goes on where it stopped"
            ) from error
        raise


def read_begun(work: Path, task: dict[str, Any], path: Path, listener: Listener) -> dict[str, Any] | None:
    """The state that an earlier call of the same task left in `work`; None where there is none, in a new directory."""
    try:
        state = parse_json((work / "state.json").read_bytes())
        if state["task"] == task:
            listener.message("going on with a column layout that was begun earlier")
            return dict(state)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    if work.exists():
        restore_directory(path / FOLDER, work / "replaced")
        shutil.rmtree(work)
    work.mkdir()
    return None


# ---------------------------------------------------------------------------------------------------------------------
# The work


class FeatureCounts:
    """Which features occur and how often, read from ``features.parquet`` in pieces."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._first: list[int] = []  # feature of each piece, as far as they have been read

    def pieces(self, start: int, stop: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Features in a range, ascending, and their numbers of entries."""
        group = max(int(np.searchsorted(self._first, start, side="right")) - 1, 0)
        for piece in self._dataset.read_features(("feature", "n_entries"), first_group=group):
            feature, count = piece["feature"], piece["n_entries"]
            if group == len(self._first):
                self._first.append(int(feature[0]))
            group += 1
            if feature[0] >= stop:
                return
            chosen = (feature >= start) & (feature < stop) & (count > 0)
            if chosen.any():
                yield feature[chosen].astype(np.int64), count[chosen].astype(np.int64)


class Transposition:
    """One transposition, from the last checkpoint in its directory to the end."""

    def __init__(
        self, dataset: Dataset, options: Options, plan: Plan, work: Path, listener: Listener
    ) -> None:
        self._dataset, self._options, self._plan, self._work = dataset, options, plan, work
        self._listener = listener
        self._counts = FeatureCounts(dataset)
        self._entry_bytes = dataset.row_dtype.itemsize + dataset.value_dtype.itemsize
        self._task = options.task(dataset)
        self._behind = (-1, 0)  # what is written already
        self._saved = time.monotonic()
        self._n_placed = 0

    def run(self) -> None:
        """Do all that is left."""
        state = self._read_state()
        buckets = [
            Bucket(start, stop, n_features, n_entries, self._work / f"bucket-{number:03d}", n_bytes)
            for number, (start, stop, n_features, n_entries, n_bytes) in enumerate(state["buckets"])
        ]
        if state["next_chunk"] == 0:
            whole = Bucket(0, self._dataset.n_features, *self._totals())
            if self._fits(whole):
                buckets = [whole]
            else:
                buckets = self._cut(whole, "bucket")
        if buckets[0].path is not None and state["next_chunk"] < self._dataset.n_chunks:
            self._scatter_rows(buckets, state["next_chunk"])
        finished = state["finished"]
        writer = ColumnsWriter(
            self._work / FOLDER,
            self._dataset,
            chunk_bytes=self._options.chunk_bytes,
            shard_bytes=self._options.shard_bytes,
            compression=self._options.compression,
            finished=finished,
        )
        if finished:
            self._behind = (finished["feature"], finished["piece"])
        for bucket in buckets:
            if bucket.stop > self._behind[0] and bucket.n_entries:
                self.sort(bucket, writer)
            else:
                self._n_placed += bucket.n_entries
            if bucket.path is not None:
                self._save_now_and_then(buckets, self._dataset.n_chunks, writer)
        writer.close()

    # -- checkpoints

    def _read_state(self) -> dict[str, Any]:
        state = read_begun(self._work, self._task, self._dataset.path, self._listener)
        return state or {"buckets": [], "next_chunk": 0, "finished": None}

    def _save_now_and_then(
        self, buckets: list[Bucket], next_chunk: int, writer: ColumnsWriter | None
    ) -> None:
        if time.monotonic() - self._saved >= _CHECKPOINT_SECONDS:
            self._save(buckets, next_chunk, writer)

    def _save(self, buckets: list[Bucket], next_chunk: int, writer: ColumnsWriter | None) -> None:
        if writer is None:
            for bucket in buckets:
                if bucket.path is not None and bucket.n_bytes:
                    sync(bucket.path)
        state = {
            "task": self._task,
            "buckets": [bucket.figures() for bucket in buckets],
            "next_chunk": next_chunk,
            "finished": writer.finished() if writer else None,
        }
        write_file(self._work / "state.json", json.dumps(state).encode())
        self._saved = time.monotonic()

    # -- buckets

    def _totals(self) -> tuple[int, int]:
        n_features = n_entries = 0
        for feature, count in self._counts.pieces(0, self._dataset.n_features):
            n_features += feature.size
            n_entries += int(count.sum())
        if n_entries != self._dataset.n_entries:
            raise miscounted(self._dataset)
        return n_features, n_entries

    def _fits(self, bucket: Bucket) -> bool:
        needed = bucket.n_entries * self._entry_bytes + bucket.n_features * _FEATURE_BYTES
        return needed <= self._plan.sort_bytes

    def _cut(self, bucket: Bucket, name: str) -> list[Bucket]:
        """Cut a range into buckets that fit in memory, or into as many as can be written at a time."""
        needed = bucket.n_entries * self._entry_bytes + bucket.n_features * _FEATURE_BYTES
        limit = max(self._plan.sort_bytes, -(-needed // (_MAX_BUCKETS // 2)))
        parts: list[Bucket] = []
        held = 0
        for feature, count in self._counts.pieces(bucket.start, bucket.stop):
            size = np.cumsum(count * self._entry_bytes + _FEATURE_BYTES)
            entries = np.cumsum(count)
            start = 0
            while start < feature.size:
                before = int(size[start - 1]) if start else 0
                stop = int(np.searchsorted(size, before + limit - held, side="right"))
                if stop <= start and held:
                    held = 0
                    parts[-1].stop = int(feature[start])
                    parts.append(Bucket(int(feature[start]), bucket.stop, 0, 0))
                    continue
                stop = max(stop, start + 1)
                if not parts:
                    parts.append(Bucket(bucket.start, bucket.stop, 0, 0))
                parts[-1].n_features += stop - start
                parts[-1].n_entries += int(entries[stop - 1]) - (int(entries[start - 1]) if start else 0)
                held += int(size[stop - 1]) - before
                start = stop
        for number, part in enumerate(parts):
            part.path = self._work / f"{name}-{number:03d}"
        return parts

    # -- scattering

    def _scatter_rows(self, buckets: list[Bucket], next_chunk: int) -> None:
        dataset = self._dataset
        for bucket in buckets:  # what was written behind the last checkpoint is written again
            assert bucket.path is not None
            with open(bucket.path, "ab") as file:
                file.truncate(bucket.n_bytes)
        scatter = Scatter(buckets, self._plan.gather_entries, dataset)
        for chunk, block in _read_ahead(dataset, next_chunk):
            if not scatter.has_room(block[0].size):
                scatter.flush()
                self._save_now_and_then(buckets, chunk, None)
            scatter.add(block)
            self._listener.progress(
                Progress("scatter", int(dataset.entry_start[chunk + 1]), dataset.n_entries, "entries")
            )
        scatter.flush()
        self._save(buckets, dataset.n_chunks, None)

    def _split(self, bucket: Bucket, writer: ColumnsWriter) -> None:
        """Scatter a bucket that does not fit over narrower ones."""
        assert bucket.path is not None
        parts = self._cut(bucket, bucket.path.name)
        for part in parts:
            assert part.path is not None
            part.path.unlink(missing_ok=True)
        scatter = Scatter(parts, self._plan.gather_entries // 2, self._dataset)
        for block in self._blocks(bucket, self._plan.gather_entries // 2):
            if not scatter.has_room(block[0].size):
                scatter.flush()
            scatter.add(block)
        scatter.flush()
        del scatter
        for part in parts:
            if part.stop > self._behind[0]:
                self.sort(part, writer)
            else:
                self._n_placed += part.n_entries
            assert part.path is not None
            part.path.unlink(missing_ok=True)

    # -- sorting

    def _blocks(self, bucket: Bucket, most: int | None = None) -> Iterator[Block]:
        most = most or self._plan.gather_entries
        if bucket.shares:
            for path, n_bytes in bucket.shares:
                share = replace(bucket, path=path, n_bytes=n_bytes, shares=())
                yield from read_bucket(share, self._dataset, most)
        elif bucket.path is None:
            for _, block in _read_ahead(self._dataset, 0):
                yield block
        else:
            yield from read_bucket(bucket, self._dataset, most)

    def sort(self, bucket: Bucket, writer: ColumnsWriter) -> None:
        """Sort a bucket and hand it to the writer."""
        if bucket.n_features == 1:
            self._copy_feature(bucket, writer)
        elif self._fits(bucket):
            self._sort_in_memory(bucket, writer)
        else:
            self._split(bucket, writer)

    def _copy_feature(self, bucket: Bucket, writer: ColumnsWriter) -> None:
        """A bucket of one feature is in order as it is."""
        (feature, count) = next(self._counts.pieces(bucket.start, bucket.stop))
        large = int(count[0]) > writer.piece_entries
        skip = self._behind[1] * writer.piece_entries if feature[0] == self._behind[0] else 0
        if large:
            writer.begin_feature(self._behind[1] if skip else 0)
        held: list[Block] = []
        n_entries = 0
        for block in self._blocks(bucket):
            n_entries += block[0].size
            self._tell(block[0].size)
            dropped = min(skip, block[0].size)
            skip -= dropped
            if large:
                writer.add_pieces(int(feature[0]), block[1][dropped:], block[2][dropped:])
            else:
                held.append((block[0].copy(), block[1].copy(), block[2].copy()))
        if n_entries != count[0]:
            raise miscounted(self._dataset)
        if large:
            writer.end_feature(int(feature[0]))
        else:
            writer.add(
                feature, count, np.concatenate([b[1] for b in held]), np.concatenate([b[2] for b in held])
            )

    def _sort_in_memory(self, bucket: Bucket, writer: ColumnsWriter) -> None:
        pieces = list(self._counts.pieces(bucket.start, bucket.stop))
        feature = np.concatenate([piece[0] for piece in pieces])
        count = np.concatenate([piece[1] for piece in pieces])
        ends = np.cumsum(count)
        following = ends - count
        first, width = int(feature[0]), int(feature[-1] - feature[0]) + 1
        table = np.empty(0, dtype=np.int32)
        if width <= 4 * feature.size + 1024:
            table = np.full(width, -1, dtype=np.int32)
            table[feature - first] = np.arange(feature.size, dtype=np.int32)
        row = np.empty(bucket.n_entries, dtype=self._dataset.row_dtype)
        value = np.empty(bucket.n_entries, dtype=self._dataset.value_dtype)
        for block in self._blocks(bucket):
            if block[0].size and (block[0].min() < first or block[0].max() > feature[-1]):
                raise miscounted(self._dataset)
            if _place(*block, first, table, feature, following, ends, row, value) >= 0:
                raise miscounted(self._dataset)
            self._tell(block[0].size)
        if not np.array_equal(following, ends):
            raise miscounted(self._dataset)
        del table
        self._write(writer, feature, count, row, value)

    def _write(
        self,
        writer: ColumnsWriter,
        feature: np.ndarray,
        count: np.ndarray,
        row: np.ndarray,
        value: np.ndarray,
    ) -> None:
        """Hand features to the writer, those behind what it has already."""
        behind, piece = self._behind
        start = int(np.searchsorted(feature, behind))
        entry = int(count[:start].sum())
        if piece and start < feature.size and feature[start] == behind:
            stop, entry = entry + int(count[start]), entry + piece * writer.piece_entries
            writer.begin_feature(piece)
            writer.add_pieces(behind, row[entry:stop], value[entry:stop])
            writer.end_feature(behind)
            start, entry = start + 1, stop
        writer.add(feature[start:], count[start:], row[entry:], value[entry:])

    def _tell(self, n_entries: int) -> None:
        self._n_placed += n_entries
        self._listener.progress(Progress("sort", self._n_placed, self._dataset.n_entries, "entries"))


def miscounted(dataset: Dataset) -> DatasetError:
    """The error where the features' numbers of entries are not those of the entries."""
    return DatasetError(
        f"{dataset.path / 'features.parquet'}: does not count the entries of {dataset.path / 'entries'}; "
        "run 'streamcd verify', or convert the data again"
    )


def _read_ahead(dataset: Dataset, first: int) -> Iterator[tuple[int, Block]]:
    """All chunks of the row layout from `first` on, the next one read while one is worked on."""

    def read(chunk: int) -> Block:
        feature, row, value = dataset.read_entries(chunk, ("feature", "row", "value"))
        if feature.size and (feature.min() < 0 or feature.max() >= dataset.n_features):
            raise DatasetError(f"{dataset.place(chunk)}: a feature outside 0 … {dataset.n_features - 1}")
        return feature, row, value

    with ThreadPoolExecutor(1) as reader:
        ahead: Future[Block] | None = None
        for chunk in range(first, dataset.n_chunks):
            current = ahead or reader.submit(read, chunk)
            ahead = reader.submit(read, chunk + 1) if chunk + 1 < dataset.n_chunks else None
            yield chunk, current.result()

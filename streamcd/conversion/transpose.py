"""Row layout to column layout, in bounded memory: entries are partitioned by ranges of features, then sorted.

The number of entries of every feature is known from ``features.parquet``. It determines the layout's shards, of which
jobs are made, and the buckets, each of which fits in memory. Every share of the row chunks is partitioned into these
buckets, in a run; then every job reads its buckets from all runs. Rows are read in their order, so sorting is a single
step: each entry is written to its final position, and a feature's entries ascend by row.

The result is a function of the dataset and of the options of the format, not of the memory or the workers. Runs and jobs
that are complete are marked by files, and are not repeated by a later call.

On two cores a second worker gains little: of 99.5 M entries, within 1 GB, one made the layout in 9.6 s and two in 8.1 s
(medians of six in turn). With more cores it has not been measured.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..core.atomic_files import SET_ASIDE, put_directory, restore_directory, sync, write_file
from ..core.errors import DatasetError, LockError, UsageError
from ..core.external_partition import Layout, PartitionReader, PartitionWriter, Ranges, Records, index_path
from ..core.locks import locked
from ..core.memory_budget import parse_size, require
from ..core.options import takes
from ..core.process_pool import (
    TASKS_PER_WORKER,
    Pool,
    Tell,
    checked_workers,
    in_shares,
    memory_per_worker,
)
from ..core.progress import Listener, ends_progress
from ..core.storage import local_path
from ..core.threads import ahead
from ..dataset.column_layout import (
    FOLDER,
    Columns,
    ColumnsOutline,
    ColumnsWriter,
    has_columns,
    open_columns,
)
from ..dataset.dataset import Dataset, open_dataset
from ..kernels import scatter
from .options import ColumnsOptions
from .staging import check_own, disk_full_means, remove_work

_MAX_BUCKETS = 256
"""Half of them are for the borders between jobs, which cut ranges that would fit."""
_MAX_TASKS = 128
_TASK_ENTRIES = 1 << 26
"""Entries of a task, which a kill undoes: about ten seconds' work; more if the dataset has over 8 billion."""
_FEATURE_BYTES = 48
"""Memory of a feature while its range is sorted: number, count, offsets, and a table of at most four times as many."""
_LEAST_BYTES = 16_000_000
_BLOCK_BYTES = 8_000_000
"""Of a bucket, read at a time: the allocator keeps blocks of this size, larger ones it takes from the system anew."""


@ends_progress
@takes(ColumnsOptions)
def make_columns(dataset: Dataset | str | Path, asked: ColumnsOptions) -> Columns:
    """Make the column layout of a dataset, beside its row layout; continues what an interrupted call has begun.

    It depends neither on `memory` nor on `workers`.

    Parameters
    ----------
    dataset : Dataset or path
    {options}

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

    Examples
    --------
    >>> columns = streamcd.make_columns("data")
    >>> streamcd.train("data", "by-features", method="primal").converged
    True
    """
    dataset = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    path = local_path(dataset.path, "a dataset that gets a column layout")
    _clear_finished(path)
    if has_columns(dataset) and not asked.force:
        raise UsageError(f"{dataset.path / FOLDER} exists; replace it with --force")
    form: dict[str, Any] = {
        "chunk_bytes": parse_size(asked.chunk_size),
        "shard_bytes": parse_size(asked.shard_size),
        "compression": asked.compression,
    }
    workers, listener = checked_workers(asked.workers), asked.listener or Listener()
    plan = _make_plan(dataset, parse_size(asked.memory), form["chunk_bytes"], workers)
    with _workplace(path) as work:
        _begin_or_go_on(dataset, form, plan, work, workers, listener)
        with Pool(workers, listener, __name__) as pool:
            Transposition(dataset, plan, work).run(pool)
        _put_in_place(work, path / FOLDER)
    dataset.close()
    return open_columns(dataset)


_BUSY = "another process makes its column layout; wait for it to end or stop it"


@contextmanager
def _workplace(dataset: Path) -> Iterator[Path]:
    """A directory for work in progress beside a dataset, which stays there, to be gone on with."""
    disk_full = (
        f"{dataset}: the disk is full; make room (about three times the size of the decoded entries) and run it "
        "again: it goes on where it stopped"
    )
    with locked(dataset, _BUSY), disk_full_means(disk_full):
        yield dataset / f".{FOLDER}.partial"


def _put_in_place(work: Path, layout: Path) -> None:
    if layout.exists():  # it may change places with the new one
        _forget_task(work)
    put_directory(work / FOLDER, layout, work / SET_ASIDE)
    remove_work(work)


def _forget_task(work: Path) -> None:
    """Durably remove the state of a task: whatever is left in `work` after it, nothing goes on from there."""
    (work / "state.json").unlink(missing_ok=True)
    sync(work)


def _clear_finished(dataset: Path) -> None:
    """Remove what a call has left that was interrupted after its layout was in place, unless one works there now."""
    with suppress(LockError), locked(dataset, _BUSY):
        for begun in dataset.glob(f".{FOLDER}.*"):
            check_own(begun)
            restore_directory(dataset / FOLDER, begun / SET_ASIDE)
            under_way = (begun / "state.json").exists() and (begun / FOLDER).exists()
            # a cut of power may undo the removal of the old name alone
            if not under_way or _same_manifests(begun / FOLDER, dataset / FOLDER):
                remove_work(begun)


def _same_manifests(a: Path, b: Path) -> bool:
    manifests = [layout / "manifest.json" for layout in (a, b)]
    return all(path.exists() for path in manifests) and len({path.read_bytes() for path in manifests}) == 1


@dataclass(frozen=True)
class Plan:
    """Shares of the memory: for entries that wait to be written, and for entries sorted at a time."""

    gather_bytes: int
    sort_bytes: int


def _make_plan(dataset: Dataset, budget: int, chunk_bytes: int, workers: int) -> Plan:
    largest = int(np.diff(dataset.entry_start).max(initial=1))
    needs = {
        # copied, cast, encoded, compressed
        "chunks being written": 8 * chunk_bytes,
        "chunks being read": 5 * largest * _record_bytes(dataset),
        "chunk tables": 40 * dataset.n_chunks + 200 * (dataset.n_entries * 8 // chunk_bytes + 1),
        "entries being sorted": _LEAST_BYTES,
    }
    if workers == 1:
        left = require(budget, needs, "give a larger --memory") + _LEAST_BYTES
    else:
        own = {"chunk tables": needs["chunk tables"]}
        left = memory_per_worker(budget, workers, needs, own) + _LEAST_BYTES
    # a bucket is sorted while a part of it is being read
    return Plan(gather_bytes=max(left // 4, 2 * largest * _record_bytes(dataset)), sort_bytes=left // 2)


def _record_bytes(dataset: Dataset) -> int:
    return dataset.index_dtype.itemsize + dataset.row_dtype.itemsize + dataset.value_dtype.itemsize


def _miscounted(dataset: Dataset) -> DatasetError:
    """Make the error for features whose numbers of entries are not those of the entries."""
    return DatasetError(
        f"{dataset.file('features.parquet')}: does not count the entries of {dataset.path / 'entries'}; "
        "run 'streamcd verify', or convert the data again"
    )


# ---------------------------------------------------------------------------------------------------------------------
# Dividing the work


Blocks = Iterator[Records]
"""Entries: feature, row, value."""


class Bucket(NamedTuple):
    """Entries of the features ``start <= feature < stop``, and the numbers of both."""

    start: int
    stop: int
    n_features: int
    n_entries: int


class Job(NamedTuple):
    """Whole shards of the layout: the first one's number, and their buckets."""

    shard: int
    start: int
    stop: int


class FeatureCounts:
    """Reader of the features that occur and their numbers of entries, from ``features.parquet`` by row groups."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._entry_bytes = dataset.row_dtype.itemsize + dataset.value_dtype.itemsize

    def pieces(self, start: int, stop: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Iterate over the features in a range, ascending, and their numbers of entries."""
        for piece in self._dataset.read_features(("feature", "n_entries"), start=start):
            feature, count = piece["feature"], piece["n_entries"]
            if feature[0] >= stop:
                return
            chosen = (feature >= start) & (feature < stop) & (count > 0)
            if chosen.any():
                yield feature[chosen].astype(np.int64), count[chosen].astype(np.int64)

    def sort_bytes(self, bucket: Bucket) -> int:
        return bucket.n_entries * self._entry_bytes + bucket.n_features * _FEATURE_BYTES

    def cut(self, whole: Bucket, limit: int, borders: Sequence[int] = ()) -> list[Bucket]:
        """Cut a range at `borders`, and into buckets that fit in `limit` bytes, or as many as can be written at a time."""
        limit = max(limit, -(-self.sort_bytes(whole) // (_MAX_BUCKETS // 2)))
        buckets = [Bucket(whole.start, whole.stop, 0, 0)]
        for feature, count in self.pieces(whole.start, whole.stop):
            inner = np.searchsorted(feature, borders).tolist()
            for start, stop in pairwise(sorted({0, *inner, feature.size})):
                if feature[start] in borders:
                    _begin_bucket(buckets, int(feature[start]))
                self._extend(buckets, feature[start:stop], count[start:stop], limit)
        return buckets

    def _extend(self, buckets: list[Bucket], feature: np.ndarray, count: np.ndarray, limit: int) -> None:
        size = count * self._entry_bytes + _FEATURE_BYTES
        start = 0
        while start < feature.size:
            last = buckets[-1]
            n = int(np.searchsorted(np.cumsum(size[start:]), limit - self.sort_bytes(last), side="right"))
            if n or not last.n_features:
                stop = start + max(n, 1)
                n_entries = last.n_entries + int(count[start:stop].sum())
                buckets[-1] = last._replace(n_features=last.n_features + stop - start, n_entries=n_entries)
                start = stop
            else:
                _begin_bucket(buckets, int(feature[start]))


def _begin_bucket(buckets: list[Bucket], feature: int) -> None:
    last = buckets[-1]
    if last.n_features:
        buckets[-1] = last._replace(stop=feature)
        buckets.append(Bucket(feature, last.stop, 0, 0))


def _divide(dataset: Dataset, form: Mapping[str, Any], plan: Plan, n_workers: int) -> dict[str, Any]:
    """Divide the work into buckets, jobs (of buckets), and shares of the row chunks, each of which becomes a run."""
    n_tasks = TASKS_PER_WORKER * n_workers if n_workers > 1 else 1
    n_tasks = min(max(n_tasks, dataset.n_entries // _TASK_ENTRIES), _MAX_TASKS)
    counts = FeatureCounts(dataset)
    whole, shards = _outline(dataset, form, counts)
    if not whole.n_entries or (n_workers == 1 and counts.sort_bytes(whole) <= plan.sort_bytes):
        return {"buckets": [whole], "jobs": [Job(0, 0, 1)], "shares": []}
    first = np.array([feature for _, feature in shards])
    sizes = np.zeros(first.size)
    for feature, count in counts.pieces(0, dataset.n_features):
        sizes += np.bincount(np.searchsorted(first, feature, side="right") - 1, count, first.size)
    begun = [shards[start] for start, _ in in_shares(sizes.astype(np.int64).tolist(), n_tasks)]
    borders = [feature for _, feature in begun]
    buckets = counts.cut(whole, plan.sort_bytes, borders)
    starts = np.searchsorted([bucket.start for bucket in buckets], borders).tolist()
    starts[0] = 0  # the first bucket begins with features that do not occur
    ends = [*starts[1:], len(buckets)]
    return {
        "buckets": buckets,
        "jobs": [Job(shard, *ends) for (shard, _), *ends in zip(begun, starts, ends, strict=True)],
        "shares": in_shares(np.diff(dataset.entry_start).tolist(), n_tasks),
    }


def _outline(
    dataset: Dataset, form: Mapping[str, Any], counts: FeatureCounts
) -> tuple[Bucket, list[tuple[int, int]]]:
    """Count all entries; list the layout's shards that begin with a feature, and that feature."""
    outline = ColumnsOutline(dataset, **form)
    n_features = n_entries = 0
    for feature, count in counts.pieces(0, dataset.n_features):
        outline.add_counts(feature, count)
        n_features += feature.size
        n_entries += int(count.sum())
    outline.close_parts()
    if n_entries != dataset.n_entries:
        raise _miscounted(dataset)
    # a shard that begins within a feature goes with the one before
    shards = [(shard, feature) for shard, (feature, piece) in enumerate(outline.starts) if piece == 0]
    return Bucket(0, dataset.n_features, n_features, n_entries), shards


def _begin_or_go_on(
    dataset: Dataset,
    form: Mapping[str, Any],
    plan: Plan,
    work: Path,
    n_workers: int,
    listener: Listener,
) -> None:
    """Prepare ``work / "state.json"``, or keep that of an earlier call of the same task, whatever its workers."""
    task = {"dataset": dataset.fingerprint, **form}  # by which its state is recognised
    for begun in (work, *work.parent.glob(f".{FOLDER}.*")):
        check_own(begun)
    try:
        if json.loads((work / "state.json").read_bytes())["task"] == task and (work / FOLDER).exists():
            listener.message("going on with a column layout that was begun earlier")
            return
    except (OSError, ValueError, KeyError):
        pass
    for begun in work.parent.glob(f".{FOLDER}.*"):
        _forget_task(begun)
        shutil.rmtree(begun)
    (work / FOLDER).mkdir(parents=True)
    state = {"task": task, **_divide(dataset, form, plan, n_workers)}
    write_file(work / "state.json", json.dumps(state).encode())


# ---------------------------------------------------------------------------------------------------------------------
# The work


class Transposition:
    """One transposition, as ``state.json`` in `work` describes it; runs, marks and the layout lie beside it."""

    def __init__(self, dataset: Dataset, plan: Plan, work: Path) -> None:
        self._dataset, self._plan, self._work = dataset, plan, work
        state = json.loads((work / "state.json").read_bytes())
        self._form = {name: value for name, value in state["task"].items() if name != "dataset"}
        self._buckets = [Bucket(*bucket) for bucket in state["buckets"]]
        self._jobs = [Job(*job) for job in state["jobs"]]
        self._shares: list[tuple[int, int]] = state["shares"]
        self._runs = [work / f"run-{number:03d}" for number in range(len(self._shares))]
        self._marks = [work / f"sort-{number:03d}.json" for number in range(len(self._jobs))]
        self._counts = FeatureCounts(dataset)
        self._layout = Layout((dataset.index_dtype, dataset.row_dtype, dataset.value_dtype))

    def run(self, pool: Pool) -> None:
        """Run all tasks that are left, and write the layout."""
        self._run(pool, "scatter", [index_path(run) for run in self._runs], self._share_entries)
        self._run(pool, "sort", self._marks, self._job_entries)
        results = [json.loads(mark.read_bytes()) for mark in self._marks]
        joined = {name: [one for result in results for one in result[name]] for name in ("parts", "chunks")}
        self._writer(joined).close()

    def _run(
        self, pool: Pool, phase: str, marks: list[Path], entries: Callable[[int], tuple[int, int]]
    ) -> None:
        """Run the tasks of a phase that have no mark yet."""
        tell = pool.tell_within(phase, "entries", self._dataset.n_entries)
        dataset = (self._dataset.path, self._dataset.fingerprint) if tell is None else self._dataset
        undone = [number for number, mark in enumerate(marks) if not mark.exists()]
        tasks = [(dataset, self._plan, self._work, phase, number, tell) for number in undone]
        sizes = [stop - start for start, stop in map(entries, undone)]
        pool.run(_do_task, tasks, phase=phase, unit="entries", sizes=sizes)

    def _share_entries(self, number: int) -> tuple[int, int]:
        start, stop = self._dataset.entry_start[self._shares[number]].tolist()
        return start, stop

    def _job_entries(self, number: int) -> tuple[int, int]:
        ends = np.cumsum([0, *(bucket.n_entries for bucket in self._buckets)])
        start, stop = ends[list(self._jobs[number][1:])].tolist()
        return start, stop

    def _writer(self, finished: dict[str, Any]) -> ColumnsWriter:
        return ColumnsWriter(self._work / FOLDER, self._dataset, **self._form, finished=finished)

    # -- scattering

    def scatter(self, number: int, tell: Tell | None) -> None:
        """Partition the entries of a share of the row chunks into the buckets."""
        done, _ = self._share_entries(number)
        ranges = Ranges(0, [bucket.stop for bucket in self._buckets])
        with self._partition(self._runs[number], self._buckets, durable=True) as run:
            for entries in _told(ahead(_entries(self._dataset, *self._shares[number]), 1), done, tell):
                run.append(ranges.number(entries.fields[0]), entries)

    def _partition(self, path: Path, buckets: list[Bucket], *, durable: bool) -> PartitionWriter:
        return PartitionWriter(path, self._layout, len(buckets), self._plan.gather_bytes, durable=durable)

    # -- sorting

    def sort(self, number: int, tell: Tell | None) -> None:
        """Sort the buckets of a job and write its shards."""
        shard, start, stop = self._jobs[number]
        done, _ = self._job_entries(number)
        writer = self._writer({"parts": [{}] * shard, "chunks": []})
        again = self._work / f"again-{number:03d}"
        with PartitionReader(self._runs, self._layout) as reader:
            for bucket in range(start, stop):
                blocks = reader.blocks(bucket, _BLOCK_BYTES)
                if not self._runs:  # all entries fit in memory
                    blocks = ahead(_entries(self._dataset, 0, self._dataset.n_chunks), 1)
                self._sort_bucket(self._buckets[bucket], _told(blocks, done, tell), again, writer)
                done += self._buckets[bucket].n_entries
        finished = writer.close_parts()
        result = {"parts": finished["parts"][shard:], "chunks": finished["chunks"]}
        sync(self._work / FOLDER)
        write_file(self._marks[number], json.dumps(result).encode())

    def _sort_bucket(self, bucket: Bucket, blocks: Blocks, path: Path, writer: ColumnsWriter) -> None:
        if not bucket.n_entries:
            return
        alone = bucket.n_features == 1
        if self._counts.sort_bytes(bucket) <= self._plan.sort_bytes or (
            alone and bucket.n_entries <= writer.piece_entries
        ):
            self._sort_in_memory(bucket, blocks, writer)
        elif alone:
            self._copy_feature(bucket, blocks, writer)
        else:
            self._split(bucket, blocks, path, writer)

    def _split(self, bucket: Bucket, blocks: Blocks, path: Path, writer: ColumnsWriter) -> None:
        """Partition a bucket that does not fit into narrower ones."""
        parts = self._counts.cut(bucket, self._plan.sort_bytes)
        ranges = Ranges(bucket.start, [part.stop for part in parts])
        with self._partition(path, parts, durable=False) as run:
            for entries in blocks:
                run.append(ranges.number(entries.fields[0]), entries)
        with PartitionReader([path], self._layout) as reader:
            for number, part in enumerate(parts):
                again = path.with_name(path.name + "-again")
                self._sort_bucket(part, reader.blocks(number, _BLOCK_BYTES), again, writer)
        path.unlink()
        index_path(path).unlink()

    def _copy_feature(self, bucket: Bucket, blocks: Blocks, writer: ColumnsWriter) -> None:
        """Write a bucket of one feature, whose entries are in order already."""
        feature = int(next(self._counts.pieces(bucket.start, bucket.stop))[0][0])
        writer.begin_feature()
        n_entries = 0
        for entries in blocks:
            n_entries += entries.size
            writer.add_pieces(feature, *entries.fields[1:])
        if n_entries != bucket.n_entries:
            raise _miscounted(self._dataset)
        writer.end_feature()

    def _sort_in_memory(self, bucket: Bucket, blocks: Blocks, writer: ColumnsWriter) -> None:
        pieces = list(self._counts.pieces(bucket.start, bucket.stop))
        feature, count = (np.concatenate([piece[k] for piece in pieces]) for k in range(2))
        ends = np.cumsum(count)
        following = ends - count
        first, width = int(feature[0]), int(feature[-1] - feature[0]) + 1
        table = np.empty(0, dtype=np.int32)
        if width <= 4 * feature.size + 1024:
            table = np.full(width, -1, dtype=np.int32)
            table[feature - first] = np.arange(feature.size, dtype=np.int32)
        row = np.empty(bucket.n_entries, dtype=self._dataset.row_dtype)
        value = np.empty(bucket.n_entries, dtype=self._dataset.value_dtype)
        numbers = (first, table, feature)
        for entries in blocks:
            found = entries.fields[0]
            if found.size and (found.min() < first or found.max() > feature[-1]):
                raise _miscounted(self._dataset)
            if scatter.sort_entries(tuple(entries.fields), numbers, following, ends, (row, value)) >= 0:
                raise _miscounted(self._dataset)
        if not np.array_equal(following, ends):
            raise _miscounted(self._dataset)
        del table, numbers
        writer.add(feature, count, row, value)


def _do_task(
    dataset: Dataset | tuple[Path, str],
    plan: Plan,
    work: Path,
    phase: str,
    number: int,
    tell: Tell | None,
) -> None:
    """Scatter a share or sort a job, in this process or a worker."""
    opened = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset[0], fingerprint=dataset[1])
    transposition = Transposition(opened, plan, work)
    (transposition.scatter if phase == "scatter" else transposition.sort)(number, tell)
    if opened is not dataset:
        opened.close()


def _told(blocks: Blocks, done: int, tell: Tell | None) -> Blocks:
    """Report entries, in addition to those done before, after each block has been processed."""
    for entries in blocks:
        yield entries
        done += entries.size
        if tell is not None:
            tell(done)


def _entries(dataset: Dataset, start: int, stop: int) -> Generator[Records, None, None]:
    """Read the entries of row chunks."""
    for chunk in range(start, stop):
        feature, row, value = dataset.read_entries(chunk, ("feature", "row", "value"))
        if feature.size and (feature.min() < 0 or feature.max() >= dataset.n_features):
            raise DatasetError(f"{dataset.place(chunk)}: a feature outside 0 … {dataset.n_features - 1}")
        yield Records((feature, row, value))

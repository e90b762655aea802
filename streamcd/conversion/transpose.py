"""Row layout to column layout, in bounded memory: entries are partitioned by ranges of features, then sorted.

The number of entries of every feature is known from ``features.parquet``. It determines the layout's shards, of which
jobs are made, and the buckets, each of which fits in memory. Every share of the row chunks is partitioned into these
buckets, in a run; then every job reads its buckets from all runs. Rows are read in their order, so sorting is a single
step: each entry is written to its final position, and a feature's entries ascend by row.

The result is a function of the dataset and of the options of the format, not of the memory or the workers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..core.errors import DatasetError, UsageError
from ..core.external_partition import MAX_BUCKETS, Layout, PartitionReader, PartitionWriter, Ranges, Records
from ..core.options import takes
from ..core.parallel import TASKS_PER_WORKER, Pool, Tell, ahead, in_shares, memory_per_worker
from ..core.storage import local_path
from ..dataset.column_layout import FOLDER, Columns, ColumnsWriter, has_columns, open_columns, write_columns
from ..dataset.dataset import Dataset, open_dataset
from ..dataset.staging import clear_interrupted, dataset_workplace
from ..dataset.writer import Part
from ..kernels.rows import sort_entries
from .options import ColumnsOptions

_MAX_TASKS = 128
_FEATURE_BYTES = 48
"""Memory of a feature while its range is sorted: number, count, offsets, and a table of at most four times as many."""
_LEAST_BYTES = 16_000_000
_BLOCK_BYTES = 8_000_000
"""Of a bucket, read at a time: the allocator keeps blocks of this size, larger ones it takes from the system anew."""


@takes(ColumnsOptions)
def make_columns(dataset: Dataset | str | Path, options: ColumnsOptions) -> Columns:
    """Make the column layout of a dataset, beside its row layout. It depends neither on `memory` nor on `workers`.

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
    EnvironmentFailure
        Where another process makes it; where the disk is full.

    Examples
    --------
    >>> columns = streamcd.make_columns("data")
    >>> streamcd.train("data", "by-features", method="primal").converged
    True
    """
    dataset = open_dataset(dataset)
    layout = local_path(dataset.path, "a dataset that gets a column layout") / FOLDER
    clear_interrupted(layout)
    if has_columns(dataset) and not options.force:
        raise UsageError(f"{layout} exists; replace it with --force")
    workers = options.workers
    listener = options.listener
    plan = _make_plan(dataset, options, workers)
    with dataset_workplace(layout, force=options.force) as work, Pool(workers, listener, __name__) as pool:
        _transpose(dataset, plan, work, pool)
    dataset.close()
    return open_columns(dataset)


class Plan(NamedTuple):
    """Shares of the memory, for entries that wait to be written and for entries sorted at a time; form of the layout."""

    gather_bytes: int
    sort_bytes: int
    chunk_bytes: int
    shard_bytes: int
    compression: str


def _make_plan(dataset: Dataset, options: ColumnsOptions, workers: int) -> Plan:
    largest = int(np.diff(dataset.entry_start).max(initial=1)) * sum(
        dtype.itemsize for dtype in _layout(dataset).fields
    )
    chunk_bytes = int(options.chunk_size)
    tables = 40 * dataset.n_chunks + 200 * (dataset.n_entries * 8 // chunk_bytes + 1)
    needs = {
        # copied, cast, encoded, compressed
        "chunks being written": 8 * chunk_bytes,
        "chunks being read": 5 * largest,
        "chunk tables": tables,
        "entries being sorted": _LEAST_BYTES,
    }
    budget = int(options.memory)
    left = memory_per_worker(budget, workers, needs, {"chunk tables": tables}) + _LEAST_BYTES
    # a bucket is sorted while a part of it is being read
    form = chunk_bytes, int(options.shard_size), options.compression
    return Plan(max(left // 4, 2 * largest), left // 2, *form)


def _layout(dataset: Dataset) -> Layout:
    return Layout((dataset.index_dtype, dataset.row_dtype, dataset.value_dtype))


def _miscounted(dataset: Dataset) -> DatasetError:
    """Make the error for features whose numbers of entries are not those of the entries."""
    return DatasetError(
        f"{dataset.file('features.parquet')}: does not count the entries of {dataset.path / 'entries'}; "
        f"run 'streamcd verify {dataset.path}', or convert the data again"
    )


# ---------------------------------------------------------------------------------------------------------------------
# Dividing the work


class Bucket(NamedTuple):
    """Entries of the features ``start <= feature < stop``, and the numbers of both."""

    start: int
    stop: int
    n_features: int
    n_entries: int


def _count(dataset: Dataset, start: int, stop: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Read the features in a range that occur, ascending, and their numbers of entries, piece by piece."""
    for piece in dataset.read_features(("feature", "n_entries"), start=start):
        feature = piece["feature"]
        count = piece["n_entries"]
        if feature[0] >= stop:
            return
        chosen = (feature >= start) & (feature < stop) & (count > 0)
        if chosen.any():
            yield feature[chosen].astype(np.int64), count[chosen].astype(np.int64)


def _cut(dataset: Dataset, limit: int, borders: Sequence[int] = ()) -> list[Bucket]:
    """Cut all features at `borders`, and into buckets of up to `limit` bytes, or of one feature that takes more."""
    entry_bytes = dataset.row_dtype.itemsize + dataset.value_dtype.itemsize
    buckets: list[list[int]] = []  # first feature, features, entries
    held = limit  # nothing fits: a bucket begins
    for feature, count in _count(dataset, 0, dataset.n_features):
        size = count * entry_bytes + _FEATURE_BYTES
        begins = np.flatnonzero(np.isin(feature, borders)).tolist()
        for start, stop in pairwise(sorted({0, *begins, feature.size})):
            held = limit if start in begins else held
            while start < stop:
                ends = np.cumsum(size[start:stop])
                n = int(np.searchsorted(ends, limit - held, side="right"))
                if not n:
                    buckets.append([int(feature[start]), 0, 0])
                    held = 0
                    n = max(int(np.searchsorted(ends, limit, side="right")), 1)
                held += int(ends[n - 1])
                buckets[-1][1] += n
                buckets[-1][2] += int(count[start : start + n].sum())
                start += n
    starts = [0, *(first for first, _, _ in buckets[1:]), dataset.n_features]
    return [Bucket(*ends, *sizes) for ends, (_, *sizes) in zip(pairwise(starts), buckets, strict=False)]


class Work(NamedTuple):
    """A transposition, as its tasks share it: each scatters a share of the row chunks, or makes the shards of a job."""

    dataset: Path
    fingerprint: str
    layout: Layout  # of an entry: feature, row, value
    folder: Path
    plan: Plan
    shards: list[Bucket]
    jobs: list[tuple[int, int]]  # ranges of shards
    buckets: list[Bucket]
    shares: list[tuple[int, int]]  # ranges of row chunks; none where all entries are sorted at once

    @property
    def runs(self) -> list[Path]:
        return [self.folder / "runs" / f"run-{number:03d}" for number in range(len(self.shares))]

    def opened(self) -> closing[Dataset]:
        return closing(Dataset.open(self.dataset, fingerprint=self.fingerprint))


def _transpose(dataset: Dataset, plan: Plan, folder: Path, pool: Pool) -> None:
    """Write the layout to ``folder / "dataset"``."""
    shards = _cut(dataset, plan.shard_bytes)
    if sum(shard.n_entries for shard in shards) != dataset.n_entries:
        raise _miscounted(dataset)
    n_tasks = min(TASKS_PER_WORKER * pool.n_workers, _MAX_TASKS) if pool.n_workers > 1 else 1
    jobs = in_shares([shard.n_entries for shard in shards], n_tasks)
    shares = in_shares(np.diff(dataset.entry_start).tolist(), n_tasks)
    buckets = _cut(dataset, plan.sort_bytes, [shards[start].start for start, _ in jobs[1:]])
    if len(buckets) > MAX_BUCKETS:
        raise UsageError(
            f"{dataset.path}: its {dataset.n_entries:,} entries would be sorted in {len(buckets):,} parts, expected "
            f"{MAX_BUCKETS:,} at most; give a larger --memory"
        )
    if pool.n_workers == 1 and len(buckets) == 1:
        shares = []
    origin = Path(str(dataset.path)), dataset.fingerprint, _layout(dataset)
    work = Work(*origin, folder, plan, shards, jobs, buckets, shares)
    for name in ("runs", "dataset"):
        (folder / name).mkdir()
    starts = dataset.entry_start
    parts: list[Part] = []
    for task, phase, sizes in (
        (_scatter, "scatter", [int(starts[stop] - starts[start]) for start, stop in shares]),
        (_sort, "sort", [sum(shard.n_entries for shard in shards[start:stop]) for start, stop in jobs]),
    ):
        tasks = [(work, number) for number in range(len(sizes))]
        for made in pool.run(task, tasks, phase=phase, unit="entries", sizes=sizes, tells=True):
            parts += made
    write_columns(folder / "dataset", dataset, parts, plan.chunk_bytes, plan.shard_bytes, plan.compression)


# ---------------------------------------------------------------------------------------------------------------------
# The work

Blocks = Iterator[Records]
"""Entries: feature, row, value."""


def _scatter(work: Work, number: int, tell: Tell | None) -> list[Part]:
    """Partition the entries of a share of the row chunks into the buckets; there are no parts yet."""
    ranges = Ranges([bucket.stop for bucket in work.buckets])
    run = PartitionWriter(work.runs[number], work.layout, len(work.buckets), work.plan.gather_bytes)
    with work.opened() as dataset, run:
        for entries in _reported(ahead(_entries(dataset, *work.shares[number]), 1), 0, tell):
            run.append(ranges.number(entries.fields[0]), entries)
    return []


def _sort(work: Work, number: int, tell: Tell | None) -> list[Part]:
    """Sort the buckets of a job and write its shards."""
    plan = work.plan
    shard, stop = work.jobs[number]
    done = 0
    starts = [one.start for one in work.shards[shard:stop]]
    end = work.shards[stop - 1].stop
    with work.opened() as dataset, PartitionReader(work.runs, work.layout) as reader:
        form = shard, starts, plan.chunk_bytes, plan.compression
        writer = ColumnsWriter(work.folder / "dataset", dataset, *form)
        for position, bucket in enumerate(work.buckets):
            if not starts[0] <= bucket.start < end:
                continue
            if work.runs:
                blocks = reader.blocks(position, _BLOCK_BYTES)
            else:
                blocks = ahead(_entries(dataset, 0, dataset.n_chunks), 1)
            blocks = _reported(blocks, done, tell)
            pieces = zip(*_count(dataset, bucket.start, bucket.stop), strict=True)
            feature, count = map(np.concatenate, pieces)
            if bucket.n_features == 1 and bucket.n_entries > writer.piece_entries:  # in order already
                n_entries = writer.add_large(int(feature[0]), (entries.fields[1:] for entries in blocks))
                if n_entries != bucket.n_entries:
                    raise _miscounted(dataset)
            else:
                writer.add(feature, count, *_sorted(dataset, feature, count, blocks))
            done += bucket.n_entries
        return writer.close()


def _sorted(
    dataset: Dataset, feature: np.ndarray, count: np.ndarray, blocks: Blocks
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and values of the entries of features, in their order."""
    ends = np.cumsum(count)
    following = ends - count
    first = int(feature[0])
    width = int(feature[-1] - feature[0]) + 1
    table = np.empty(0, dtype=np.int32)
    if width <= 4 * feature.size + 1024:
        table = np.full(width, -1, dtype=np.int32)
        table[feature - first] = np.arange(feature.size, dtype=np.int32)
    row = np.empty(ends[-1], dtype=dataset.row_dtype)
    value = np.empty(ends[-1], dtype=dataset.value_dtype)
    for entries in blocks:
        feature_numbers = entries.fields[0]
        outside = feature_numbers.size and (
            feature_numbers.min() < first or feature_numbers.max() > feature[-1]
        )
        numbers = (first, table, feature)
        if outside or sort_entries(tuple(entries.fields), numbers, following, ends, (row, value)) >= 0:
            raise _miscounted(dataset)
    if not np.array_equal(following, ends):
        raise _miscounted(dataset)
    return row, value


def _reported(blocks: Blocks, done: int, tell: Tell | None) -> Blocks:
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

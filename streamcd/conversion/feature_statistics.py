"""Statistics of every feature in bounded memory, to the same bits whatever the memory; distinct labels.

The entries of a shard are summed in their order, and the sums of shards are added in theirs, so that shards can be summed
separately. Where the sums of all features fit in memory they are made while the shards are written; else the shards are
read again, once for each range of features that fits, and where features are few in a wide space of indices (hashes,
say), their entries are sorted into files of ranges first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.external_partition import Layout, PartitionReader, PartitionWriter, Records
from ..core.memory_budget import RESERVED_BYTES, format_size
from ..dataset.parquet import read_groups
from ..dataset.schema import MAX_CLASSES
from ..kernels.feature_sums import add_entries, fold_shard

STATISTICS_BYTES = 56
"""Memory of a feature while its statistics are made."""

_GROUP_FEATURES = 1 << 16
"""Features in a row group of ``features.parquet``; fixed, so that its bytes do not depend on the memory."""

_N_RANGES = 256
_BLOCK_BYTES = 1 << 20  # of entries read at a time

Entries = Iterable[tuple[int, np.ndarray, np.ndarray]]
"""Blocks of entries (shard, feature, value), in the order of the dataset."""

FeatureColumns = Iterable[Mapping[str, np.ndarray]]
"""Columns of ``features.parquet``, some features at a time, ascending: ``feature``, ``n_entries``; ``min``, ``max``,
``mean``, ``mean_square`` over all rows, absent entries counting as zeros."""

_SAVED_SUMS = np.dtype([("feature", np.int64), ("sums", np.float64, (5,))])
"""A feature, and its number of entries, sum, sum of squares, least and greatest."""

_LAYOUT = Layout((np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.int32)))
"""Of an entry that is scattered: feature, value, shard."""


class RangeStatistics:
    """Statistics of the features ``start <= feature < stop``."""

    def __init__(self, start: int, stop: int) -> None:
        self._start = start
        self._sums = np.zeros((stop - start, 7))
        self._sums[:, 3], self._sums[:, 4] = np.inf, -np.inf
        self._shard = 0

    def add(self, shard: int, feature: np.ndarray, value: np.ndarray) -> None:
        """Add the next entries of the dataset, from this shard; those of features outside the range are skipped."""
        if shard != self._shard:
            self._end_shard()
            self._shard = shard
        add_entries(feature - self._start if self._start else feature, value, self._sums.reshape(-1))

    def _end_shard(self) -> None:
        fold_shard(self._sums)

    def save(self, path: Path) -> None:
        """Write the sums so far, for `add_saved`."""
        self._end_shard()
        with open(path, "wb") as file:
            for start in range(0, len(self._sums), _GROUP_FEATURES):
                occurs = start + np.flatnonzero(self._sums[start : start + _GROUP_FEATURES, 0])
                found = np.empty(occurs.size, _SAVED_SUMS)
                found["feature"], found["sums"] = occurs + self._start, self._sums[occurs, :5]
                found.tofile(file)

    def add_saved(self, path: Path) -> None:
        """Add saved sums of the next shards, for features in the range, instead of their entries."""
        if not path.stat().st_size:
            return
        saved = np.memmap(path, _SAVED_SUMS, mode="r")
        ends = self._start, self._start + len(self._sums)
        low, high = np.searchsorted(saved["feature"], ends).tolist()
        for start in range(low, high, _GROUP_FEATURES):
            found = saved[start : min(start + _GROUP_FEATURES, high)]
            feature, sums = found["feature"] - self._start, found["sums"]
            mine = self._sums[feature]
            mine[:, :3] += sums[:, :3]
            np.minimum(mine[:, 3], sums[:, 3], out=mine[:, 3])
            np.maximum(mine[:, 4], sums[:, 4], out=mine[:, 4])
            self._sums[feature] = mine

    def columns(self, n_rows: int, feature: np.ndarray | None = None) -> Iterator[dict[str, np.ndarray]]:
        """Yield columns of ``features.parquet`` for the features that occur; `feature` has their numbers, if given."""
        self._end_shard()
        for first in range(0, len(self._sums), _GROUP_FEATURES):
            occurs = first + np.flatnonzero(self._sums[first : first + _GROUP_FEATURES, 0])
            number, total, squares, least, greatest = self._sums[occurs, :5].T
            absent = np.where(number < n_rows, 0.0, np.nan)  # zeros of rows without an entry
            yield {
                "feature": occurs + self._start if feature is None else feature[occurs],
                "n_entries": number.astype(np.int64),
                "min": np.fmin(least, absent),
                "max": np.fmax(greatest, absent),
                "mean": total / n_rows,
                "mean_square": squares / n_rows,
            }


# ---------------------------------------------------------------------------------------------------------------------
# Statistics of a dataset, as tasks: their columns go to files


def read_entries(dataset: Path, means: Path | None = None) -> Entries:
    """Iterate over the entries of the shards just written, chunk by chunk; minus their features' `means`, if given."""
    mean = None if means is None else np.load(means)
    for shard, path in enumerate(sorted((dataset / "entries").iterdir(), key=_by_number)):
        for entries in read_groups(path, ("feature", "value"), verify=False):
            feature, value = entries["feature"], entries["value"]
            yield shard, feature, value if mean is None else value - mean[feature]


def _by_number(path: Path) -> tuple[int, str]:
    """Return a sort key of numbered files, also for numbers of more digits than usual."""
    return len(path.name), path.name


def join_statistics(sums: list[Path], start: int, stop: int, n_rows: int, out: Path) -> None:
    """Make the statistics of a range of features from saved sums."""
    statistics = RangeStatistics(start, stop)
    for path in sums:
        statistics.add_saved(path)
    save_columns(statistics.columns(n_rows), out)


def read_statistics(read: Callable[[], Entries], start: int, stop: int, n_rows: int, out: Path) -> None:
    statistics = RangeStatistics(start, stop)
    for entries in read():
        statistics.add(*entries)
    save_columns(statistics.columns(n_rows), out)


def scatter_statistics(
    read: Callable[[], Entries], n_rows: int, memory_bytes: int, run: Path, out: Path
) -> None:
    """Make the statistics of few features in a wide space: entries are first partitioned by ranges of features."""
    save_columns(_scattered_statistics(read, n_rows, memory_bytes, run), out)


def _scattered_statistics(
    read: Callable[[], Entries], n_rows: int, memory_bytes: int, run: Path
) -> Iterator[Mapping[str, np.ndarray]]:
    ends = _range_ends(read())
    with PartitionWriter(run, _LAYOUT, len(ends) + 1, memory_bytes // 2) as writer:
        for shard, feature, value in read():
            shards = np.full(len(feature), shard, np.int32)
            writer.append(np.searchsorted(ends, feature), Records([feature, value, shards]))
    with PartitionReader([run], _LAYOUT) as reader:
        for number in range(len(ends) + 1):
            entries = partial(_partitioned_entries, reader, number)
            yield from _occurring_statistics(entries, n_rows, memory_bytes)


def _partitioned_entries(reader: PartitionReader, number: int) -> Entries:
    for block in reader.blocks(number, _BLOCK_BYTES):
        feature, value, shard = block.fields
        borders = [0, *(1 + np.flatnonzero(np.diff(shard))).tolist(), block.size]
        for start, stop in pairwise(borders):
            yield int(shard[start]), feature[start:stop], value[start:stop]


def save_columns(batches: FeatureColumns, path: Path) -> None:
    with open(path, "wb") as file:
        for batch in batches:
            np.save(file, np.array(len(batch)))
            for name, column in batch.items():
                np.save(file, np.array(name))
                np.save(file, column)


def saved_columns(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """Read columns that `save_columns` wrote."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        while file.tell() < size:
            n_columns = int(np.load(file))
            yield {str(np.load(file)): np.load(file) for _ in range(n_columns)}


def _occurring_statistics(
    read_entries: Callable[[], Entries], n_rows: int, memory_bytes: int
) -> Iterator[Mapping[str, np.ndarray]]:
    # looking for features holds their list, the same merged with a chunk's features, and a sorted copy
    width = max(memory_bytes // (STATISTICS_BYTES + 32), 1)
    last = -1
    while (features := _next_features(read_entries(), last, width)).size:
        statistics = RangeStatistics(0, features.size)
        for shard, feature, value in read_entries():
            position = np.minimum(np.searchsorted(features, feature), features.size - 1)
            statistics.add(shard, np.where(features[position] == feature, position, -1), value)
        yield from statistics.columns(n_rows, features)
        last = int(features[-1])
        if features.size < width:
            break


def sorted_distinct(*parts: np.ndarray) -> np.ndarray:
    """Return the distinct integers in some arrays, sorted, as int64; `numpy.unique` hashes, which took ten times as long."""
    merged = parts[0] if len(parts) == 1 else np.concatenate(parts)
    merged = np.sort(merged.astype(np.int64, copy=False))
    first = np.ones(merged.size, np.bool_)
    np.not_equal(merged[1:], merged[:-1], out=first[1:])
    return merged[first]


def _next_features(entries: Entries, last: int, count: int) -> np.ndarray:
    """Find the `count` smallest distinct features above `last`."""
    smallest = np.empty(0, np.int64)
    for _, feature, _ in entries:
        limit = smallest[-1] if smallest.size == count else np.iinfo(np.int64).max
        new = feature[(feature > last) & (feature <= limit)]
        if new.size:
            smallest = sorted_distinct(smallest, sorted_distinct(new))[:count].copy()
    return smallest


def _range_ends(entries: Entries) -> np.ndarray:
    """Find the last features of ranges of about equally many distinct features, from a sample of the entries."""
    limit = 1 << 14  # 64 a range
    sample, step = np.empty(0, np.int64), 1
    for _, feature, _ in entries:
        sample = sorted_distinct(sample, feature[::step])
        while sample.size > limit:  # halve the sample, and the rate from here on
            sample, step = sample[::2].copy(), 2 * step
    return (
        sample[np.linspace(0, sample.size - 1, _N_RANGES).astype(np.int64)[1:-1]] if sample.size else sample
    )


def in_groups(batches: FeatureColumns) -> Iterator[dict[str, np.ndarray]]:
    """Cut columns anew, into groups of `_GROUP_FEATURES` features and a last one."""
    held: dict[str, np.ndarray] = {}
    for batch in batches:
        held = {
            name: np.concatenate([held[name], column]) if held else column for name, column in batch.items()
        }
        while len(held["feature"]) >= _GROUP_FEATURES:
            yield {name: column[:_GROUP_FEATURES] for name, column in held.items()}
            held = {name: column[_GROUP_FEATURES:] for name, column in held.items()}
    if held:
        yield held


# ---------------------------------------------------------------------------------------------------------------------
# Distinct labels and features, as far as they are few enough


@dataclass
class LabelCounts:
    """Range of labels; their distinct values and how often they occur, as long as there are not too many.

    `counts` is None where there are too many, or they are targets, which are not counted.
    """

    counts: dict[float, int] | None = field(default_factory=dict)
    least: float = np.inf
    greatest: float = -np.inf

    def add(self, label: np.ndarray) -> None:
        self.least = float(label.min(initial=self.least))
        self.greatest = float(label.max(initial=self.greatest))
        if self.counts is not None:
            distinct, count = (part.tolist() for part in _counted(label))
            self.merge(LabelCounts(dict(zip(distinct, count, strict=True))))

    def merge(self, other: LabelCounts) -> None:
        self.least, self.greatest = min(self.least, other.least), max(self.greatest, other.greatest)
        if self.counts is None or other.counts is None:
            self.counts = None
            return
        for label, count in other.counts.items():
            self.counts[label] = self.counts.get(label, 0) + count
        if len(self.counts) > MAX_CLASSES:
            self.counts = None

    def renumbered(self, numbers: np.ndarray) -> LabelCounts:
        """Return the same counts, of labels that are codes, by the numbers of these codes."""
        if self.counts is None:
            return self
        return LabelCounts({float(numbers[int(code)]): count for code, count in self.counts.items()})

    def target_range(self) -> dict[str, Any]:
        """Return the manifest's ``targets``; there are no classes."""
        targets = {"min": self.least, "max": self.greatest}
        return {"classes": None, "class_counts": None, "label_kind": "decimal", "targets": targets}

    def manifest(self, known: np.ndarray | None = None) -> dict[str, Any]:
        """Return the manifest's ``classes`` and ``class_counts``; includes `known` classes that do not occur."""
        if self.counts is None:
            return {"classes": None, "class_counts": None}
        counts = dict(self.counts)
        if known is not None:
            for label in known.tolist():
                counts.setdefault(label, 0)
        classes = sorted(counts)
        return {"classes": classes, "class_counts": [counts[label] for label in classes]}


def _counted(label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct labels, ascending, and how often each occurs; small integers are counted without sorting."""
    least, greatest = label.min(initial=np.inf), label.max(initial=-np.inf)
    if greatest - least < MAX_CLASSES:  # not where one is no number
        offset = (label - least).astype(np.int64)
        if np.array_equal(offset + least, label):
            count = np.bincount(offset)
            found = np.flatnonzero(count)
            return found + least, count[found]
    return np.unique(label, return_counts=True)


class DistinctFeatures:
    """The indices that occur, ascending; for ``--compact``. Their map may take `n_bytes`."""

    def __init__(self, n_bytes: int) -> None:
        self._n_bytes = n_bytes
        self._sorted = np.empty(0, np.int64)
        self._new: list[np.ndarray] = []
        self._n_new = 0

    def add(self, index: np.ndarray) -> None:
        """Add indices, in any order."""
        new = sorted_distinct(index)
        self._new.append(new)
        self._n_new += new.size
        # merged once a quarter are new: the work stays proportional, and the memory small
        if self._n_new > max(self._sorted.size // 4, 1 << 16):
            self.merge()

    def merge(self) -> np.ndarray:
        """Return all indices so far; raises `UsageError` if they are too many for the memory."""
        merged = np.concatenate([self._sorted, *self._new])
        self._sorted, self._new, self._n_new = np.empty(0, np.int64), [], 0
        self._sorted = sorted_distinct(merged)
        needed = 24 * self._sorted.size  # the next merge holds the features twice, and a quarter more
        if needed > self._n_bytes:
            raise UsageError(
                f"--compact: {self._sorted.size:,} distinct features so far need {format_size(needed)} for their map, "
                f"{format_size(self._n_bytes)} of --memory are left for it; give about "
                f"{format_size(8 * needed + RESERVED_BYTES)} or convert without --compact"
            )
        return self._sorted

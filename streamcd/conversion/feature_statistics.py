"""Statistics of every feature in bounded memory, to the same bits whatever the memory; distinct labels and features.

The entries of a shard are summed in their order, and the sums of shards are added in theirs, so that shards can be summed
separately. Where the sums of all features do not fit in memory, entries go to files by ranges of features instead, which
are cut into narrower ones until the sums of a range fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.external_partition import Layout, PartitionReader, PartitionWriter, Records
from ..core.memory_budget import RESERVED_BYTES, format_size
from ..dataset.schema import MAX_CLASSES
from ..dataset.source_features import GROUP_FEATURES, scales_digest
from ..kernels.rows import SUMS_WIDTH, add_entries

_FEATURE_BYTES = 8 * SUMS_WIDTH  # in memory, while it is summed up
_MAX_RANGES = 1 << 12  # into which entries are partitioned at a time
_BLOCK_BYTES = 1 << 20  # of entries read at a time

SUMS = np.dtype([("feature", np.int64), ("sums", np.float64, (5,))])
"""A feature, and its number of entries, sum, sum of squares, least and greatest."""

_LAYOUT = Layout((np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.int32)))
"""Of an entry in a file: feature, value, shard."""


class FeatureSums:
    """Sums of the features ``start <= feature < stop``, of entries or of other sums; saved in `path` by `close`."""

    def __init__(self, start: int, stop: int, path: Path = Path()) -> None:
        self._start = start
        self._path = path
        self._shard = 0
        self._sums = np.zeros((stop - start, SUMS_WIDTH))
        self._sums[:, 3] = np.inf
        self._sums[:, 4] = -np.inf

    def add(self, shard: int, feature: np.ndarray, value: np.ndarray) -> None:
        """Add the next entries of the dataset, from this shard, all of features in the range."""
        if shard != self._shard:
            self._sums[:, 1:3] += self._sums[:, 5:]  # those of the shard to those of all before it
            self._sums[:, 5:] = 0.0
            self._shard = shard
        add_entries(feature - self._start if self._start else feature, value, self._sums.reshape(-1))

    def add_sums(self, added: np.ndarray) -> None:
        """Add sums (`SUMS`) of later rows, all of features in the range, once each."""
        position = added["feature"] - self._start
        sums = added["sums"]
        held = self._sums[position]
        held[:, :3] += sums[:, :3]
        np.minimum(held[:, 3], sums[:, 3], out=held[:, 3])
        np.maximum(held[:, 4], sums[:, 4], out=held[:, 4])
        self._sums[position] = held

    def groups(self) -> Iterator[np.ndarray]:
        """Yield the sums (`SUMS`) of the features that occur, ascending."""
        for first in range(0, len(self._sums), GROUP_FEATURES):
            occurs = first + np.flatnonzero(self._sums[first : first + GROUP_FEATURES, 0])
            of_features = self._sums[occurs]
            group = np.empty(occurs.size, SUMS)
            of_features[:, 1:3] += of_features[:, 5:]
            group["sums"] = of_features[:, :5]
            group["feature"] = occurs + self._start
            yield group

    def close(self) -> None:
        with open(self._path, "wb") as file:
            for group in self.groups():
                group.tofile(file)


def read_sums(path: Path) -> Iterator[np.ndarray]:
    """Yield saved sums (`SUMS`), of a fixed number of features at a time."""
    with open(path, "rb") as file:
        while (group := np.fromfile(file, SUMS, GROUP_FEATURES)).size:
            yield group


def statistics_of(group: np.ndarray, n_rows: int) -> dict[str, np.ndarray]:
    """Return the columns of ``features.parquet`` from sums over `n_rows` rows, where absent entries count as zeros."""
    number, total, squares, least, greatest = group["sums"].T
    absent = np.where(number < n_rows, 0.0, np.nan)
    return {
        "feature": group["feature"],
        "n_entries": number.astype(np.int64),
        "min": np.fmin(least, absent),
        "max": np.fmax(greatest, absent),
        "mean": total / n_rows,
        "mean_square": squares / n_rows,
    }


def sums_of(columns: Mapping[str, np.ndarray], n_rows: int) -> np.ndarray:
    """Return the sums (`SUMS`) from statistics over `n_rows` rows."""
    group = np.empty(columns["feature"].size, SUMS)
    group["feature"] = columns["feature"]
    totals = columns["mean"] * n_rows, columns["mean_square"] * n_rows
    group["sums"] = np.stack([columns["n_entries"], *totals, columns["min"], columns["max"]], axis=1)
    return group


# ---------------------------------------------------------------------------------------------------------------------
# Sums of all shards, some of them by each task


@dataclass(frozen=True)
class Summing:
    """Folder in which tasks leave their sums of the features, and the memory that each has for it."""

    directory: Path
    n_features: int
    memory_bytes: int

    def begin(self, name: str, start: int, stop: int) -> FeatureSums | _EntriesByRange:
        """Begin the sums of some features in some shards."""
        path = self.directory / name
        width = self._width(start, stop)
        if width >= stop - start:
            return FeatureSums(start, stop, path)
        return _EntriesByRange(path, start, stop, width, self.memory_bytes // 2)

    def _width(self, start: int, stop: int) -> int:
        """Return the number of features that are summed at a time: all if their sums fit, else those of a range."""
        most = self.memory_bytes // _FEATURE_BYTES
        return most if most >= stop - start else max(most // 8, -(-(stop - start) // _MAX_RANGES), 1)

    def join(self, out: Path) -> None:
        """Write the sums over all shards."""
        paths = sorted(self.directory.iterdir())
        if self._width(0, self.n_features) >= self.n_features:
            whole = FeatureSums(0, self.n_features, out)
            for path in paths:
                for group in read_sums(path):
                    whole.add_sums(group)
            whole.close()
            return
        with open(out, "wb") as file:
            for group in self._by_ranges(paths, 0, self.n_features):
                group.tofile(file)

    def _by_ranges(self, paths: Sequence[Path], start: int, stop: int) -> Iterator[np.ndarray]:
        """Sum up entries in files, one range of features after the other."""
        again = self.directory / f"{start}-{stop}"
        width = self._width(start, stop)
        with PartitionReader(paths, _LAYOUT) as reader:
            for number, first in enumerate(range(start, stop, width)):
                end = min(first + width, stop)
                if not reader.size(number)[0]:
                    continue
                sums = self.begin(again.name, first, end)
                for block in reader.blocks(number, _BLOCK_BYTES):
                    feature, value, shard = block.fields
                    borders = [0, *(1 + np.flatnonzero(np.diff(shard))).tolist(), block.size]
                    for at, until in pairwise(borders):
                        sums.add(int(shard[at]), feature[at:until], value[at:until])
                if isinstance(sums, FeatureSums):
                    yield from sums.groups()
                else:
                    sums.close()
                    yield from self._by_ranges([again], first, end)


class _EntriesByRange:
    """Entries written to a file by ranges of features."""

    def __init__(self, path: Path, start: int, stop: int, width: int, memory_bytes: int) -> None:
        self._start = start
        self._width = width
        self._writer = PartitionWriter(path, _LAYOUT, -(-(stop - start) // width), max(memory_bytes, 1))

    def add(self, shard: int, feature: np.ndarray, value: np.ndarray) -> None:
        feature = feature.astype(np.int64, copy=False)
        fields = [feature, value.astype(np.float64, copy=False), np.full(feature.size, shard, np.int32)]
        self._writer.append(((feature - self._start) // self._width).astype(np.uint16), Records(fields))

    def close(self) -> None:
        self._writer.close()


# ---------------------------------------------------------------------------------------------------------------------
# Divisors of the features, from their statistics


def save_means(sums: Path, n_rows: int, n_features: int, out: Path) -> None:
    """Write the mean of every feature; NaN for features with a single value, whose deviation is 0."""
    means = np.zeros(n_features)
    for group in read_sums(sums):
        piece = statistics_of(group, n_rows)
        means[piece["feature"]] = np.where(piece["min"] < piece["max"], piece["mean"], np.nan)
    np.save(out, means)


def save_scales(sums: Path, n_rows: int, n_features: int, means: Path | None, out: Path) -> str:
    """Write the divisors of the features, 1 for those of a single value or of zeros; returns their digest.

    They are the largest magnitudes, or with `means` the standard deviations over all rows, absent entries as zeros:
    `sums` are then those of the entries minus the means of their features. The difference of mean square and squared
    mean would lose all digits if the mean is large.
    """
    scales = np.ones(n_features)
    mean = None if means is None else np.load(means)
    for group in read_sums(sums):
        piece = statistics_of(group, n_rows)
        feature = piece["feature"]
        if mean is None:
            size = np.maximum(np.abs(piece["min"]), np.abs(piece["max"]))
        else:
            absent = 1.0 - piece["n_entries"] / n_rows
            size = np.sqrt(piece["mean_square"] + absent * mean[feature] ** 2)
        scales[feature] = np.where(size > 0, size, 1.0)  # false for NaN too
    np.save(out, scales)
    return scales_digest(scales)


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
            distinct, count = (part.tolist() for part in np.unique(label, return_counts=True))
            self.merge(LabelCounts(dict(zip(distinct, count, strict=True))))

    def merge(self, other: LabelCounts) -> None:
        self.least = min(self.least, other.least)
        self.greatest = max(self.greatest, other.greatest)
        if self.counts is None or other.counts is None:
            self.counts = None
            return
        for label, count in other.counts.items():
            self.counts[label] = self.counts.get(label, 0) + count
        if len(self.counts) > MAX_CLASSES:
            self.counts = None

    def manifest(self, known: np.ndarray | None, *, targets: bool) -> dict[str, Any]:
        """Return the manifest's fields of classes, with `known` ones that do not occur, or of `targets`."""
        if self.counts is None:
            least = self.least
            greatest = self.greatest
            ends = {"targets": {"min": least, "max": greatest}} if targets else {}
            return {"classes": None, "class_counts": None, "label_kind": "decimal", **ends}
        counts = dict.fromkeys([] if known is None else known.tolist(), 0) | self.counts
        classes = sorted(counts)
        whole = all(label.is_integer() and abs(label) < 2.0**53 for label in classes)
        return {
            "classes": classes,
            "class_counts": [counts[label] for label in classes],
            "label_kind": "integer" if whole else "decimal",
        }


def sorted_distinct(numbers: np.ndarray) -> np.ndarray:
    """Return the distinct integers of an array, sorted, as int64; `numpy.unique` hashes, which took ten times as long."""
    numbers = np.sort(numbers.astype(np.int64, copy=False))
    first = np.ones(numbers.size, np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=first[1:])
    return numbers[first]


class DistinctFeatures:
    """The indices that occur, ascending; for ``--compact``. Their map may take `n_bytes`."""

    def __init__(self, n_bytes: int) -> None:
        self._n_bytes = n_bytes
        self._parts = [np.empty(0, np.int64)]  # the first is sorted, and the others are new
        self._n_new = 0

    def add(self, index: np.ndarray) -> None:
        """Add indices, in any order."""
        self._parts.append(sorted_distinct(index))
        self._n_new += self._parts[-1].size
        # merged once a quarter are new: the work stays proportional, and the memory small
        if self._n_new > max(self._parts[0].size // 4, 1 << 16):
            self.merge()

    def merge(self) -> np.ndarray:
        """Return all indices so far; raises `UsageError` if they are too many for the memory."""
        merged = np.concatenate(self._parts)
        self._parts = []
        self._n_new = 0
        merged = sorted_distinct(merged)
        self._parts = [merged]
        needed = 24 * merged.size  # the next merge holds the features twice, and a quarter more
        if needed > self._n_bytes:
            raise UsageError(
                f"--compact: {merged.size:,} distinct features so far need {format_size(needed)} for their map, "
                f"{format_size(self._n_bytes)} of --memory are left for it; give about "
                f"{format_size(8 * needed + RESERVED_BYTES)} or convert without --compact"
            )
        return merged

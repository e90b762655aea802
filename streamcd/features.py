"""Statistics of every feature, in bounded memory and with the same bits however little memory there is.

Sums run over the entries of a shard in their order, and those of the shards are added in theirs, so that whole shards can be
summed apart. Where the sums of all features fit in memory they are made while the shards are written; else the shards are
read again, once for each range of features that fits, and where features are few in a wide space of indices (hashes,
say), their entries are sorted into files of ranges first.
"""

# mypy: allow-untyped-defs, no-check-untyped-defs
# (types of kernels are numba's to infer; everything else here is annotated)

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
from numba import njit

STATISTICS_BYTES = 56
"""What a feature takes while its statistics are made."""

_PIECE_FEATURES = 1 << 16
"""Features in a row group of ``features.parquet``; fixed, so that its bytes do not depend on the memory."""

MAX_RANGES = 8
"""Above so many passes for ranges of a fixed width, entries are scattered to files first."""

_N_RANGES = 256

Entries = Iterable[tuple[int, np.ndarray, np.ndarray]]
"""(shard, feature, value) of some entries after the other, in the order of the dataset."""

_SHARD_SUMS = np.dtype([("feature", np.int64), ("sums", np.float64, (5,))])
"""Of one shard: a feature, and its number of entries, sum, sum of squares, least and greatest."""

_RECORD = np.dtype([("feature", np.int64), ("value", np.float64), ("shard", np.int32)])


@njit(cache=True, nogil=True)
def _accumulate(position, value, sums):
    """Add entries to the sums of their features, one after the other.

    Parameters
    ----------
    position : integer[entries]
        Rows of `sums`; those outside it are passed over.
    value : float[entries]
    sums : float64[features, 7]
        Number, sum, sum of squares, least, greatest, sum and sum of squares of this shard; changed in place, the sums of
        all shards aside. Side by side, since a feature's line of memory is what takes the time: five arrays one after
        the other with `numpy.add.at` took six times as long.
    """
    for k in range(len(position)):
        i = position[k]
        if 0 <= i < len(sums):
            x = np.float64(value[k])
            sums[i, 0] += 1.0
            sums[i, 5] += x
            sums[i, 6] += x * x
            sums[i, 3] = min(sums[i, 3], x)
            sums[i, 4] = max(sums[i, 4], x)


@njit(cache=True, nogil=True)
def _fold(sums):
    """Add the sums of a shard to those of all before it, in place; see `_accumulate`."""
    for i in range(len(sums)):
        sums[i, 1] += sums[i, 5]
        sums[i, 2] += sums[i, 6]
        sums[i, 5] = sums[i, 6] = 0.0


class RangeStatistics:
    """Statistics of the features ``start <= feature < stop``.

    Parameters
    ----------
    start, stop : int
    """

    def __init__(self, start: int, stop: int) -> None:
        self._start = start
        self._sums = np.zeros((stop - start, 7))
        self._sums[:, 3], self._sums[:, 4] = np.inf, -np.inf
        self._shard = 0

    def add(self, shard: int, feature: np.ndarray, value: np.ndarray) -> None:
        """Take the next entries of the dataset, of this shard; those of other features are passed over."""
        if shard != self._shard:
            self._end_shard()
            self._shard = shard
        _accumulate(feature - self._start if self._start else feature, value, self._sums)

    def _end_shard(self) -> None:
        _fold(self._sums)

    def save_shard(self, path: Path) -> None:
        """Write what `add_saved_shard` takes, where all entries were of one shard."""
        self._end_shard()
        with open(path, "wb") as file:
            for start in range(0, len(self._sums), _PIECE_FEATURES):
                occurs = start + np.flatnonzero(self._sums[start : start + _PIECE_FEATURES, 0])
                found = np.empty(occurs.size, _SHARD_SUMS)
                found["feature"], found["sums"] = occurs + self._start, self._sums[occurs, :5]
                found.tofile(file)

    def add_saved_shard(self, path: Path) -> None:
        """Take the sums of the next shard, those of features in the range, instead of its entries."""
        if not path.stat().st_size:
            return
        saved = np.memmap(path, _SHARD_SUMS, mode="r")
        ends = self._start, self._start + len(self._sums)
        low, high = np.searchsorted(saved["feature"], ends).tolist()
        for start in range(low, high, _PIECE_FEATURES):
            found = saved[start : min(start + _PIECE_FEATURES, high)]
            place, sums = found["feature"] - self._start, found["sums"]
            mine = self._sums[place]
            mine[:, :3] += sums[:, :3]
            np.minimum(mine[:, 3], sums[:, 3], out=mine[:, 3])
            np.maximum(mine[:, 4], sums[:, 4], out=mine[:, 4])
            self._sums[place] = mine

    def columns(self, n_rows: int, feature: np.ndarray | None = None) -> Iterator[dict[str, np.ndarray]]:
        """Columns of ``features.parquet`` in pieces, for the features that occur; `feature` names them if given."""
        self._end_shard()
        for piece in range(0, len(self._sums), _PIECE_FEATURES):
            occurs = piece + np.flatnonzero(self._sums[piece : piece + _PIECE_FEATURES, 0])
            number, total, squares, least, greatest = self._sums[occurs, :5].T
            absent = np.where(number < n_rows, 0.0, np.nan)  # the zeros of rows without an entry
            yield {
                "feature": occurs + self._start if feature is None else feature[occurs],
                "n_entries": number.astype(np.int64),
                "min": np.fmin(least, absent),
                "max": np.fmax(greatest, absent),
                "mean": total / n_rows,
                "mean_square": squares / n_rows,
            }


def feature_statistics(
    read_entries: Callable[[], Entries], *, n_features: int, n_rows: int, memory_bytes: int, scratch: Path
) -> Iterator[Mapping[str, np.ndarray]]:
    """Statistics by reading the entries again, as often as the memory makes it necessary.

    Parameters
    ----------
    read_entries : callable
        Gives (shard, feature, value) of all entries, chunk by chunk, in the dataset's order.
    n_features, n_rows : int
    memory_bytes : int
    scratch : Path
        A directory for temporary files, made where they are needed.

    Yields
    ------
    mapping of str to ndarray
        Pieces of columns, ascending by feature: ``feature``, ``n_entries``; ``min``, ``max``, ``mean``,
        ``mean_square`` over all rows, absent entries counting as zeros.
    """
    width = max(memory_bytes // STATISTICS_BYTES, 1)
    if n_features <= width * MAX_RANGES:
        for start in range(0, n_features, width):
            statistics = RangeStatistics(start, min(start + width, n_features))
            for entries in read_entries():
                statistics.add(*entries)
            yield from statistics.columns(n_rows)
        return
    # a wide space with few features in it: ranges of about as many features each, and in them those that occur
    ends = _range_ends(read_entries())
    for path in _scatter(read_entries(), ends, scratch):
        yield from _occurring_statistics(partial(_read_records, path), n_rows, memory_bytes)
        path.unlink()


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
    """The distinct integers in some arrays, ascending, as int64.

    By sorting: `numpy.unique` hashes, which took ten times as long.
    """
    merged = parts[0] if len(parts) == 1 else np.concatenate(parts)
    merged = np.sort(merged.astype(np.int64, copy=False))
    first = np.ones(merged.size, np.bool_)
    np.not_equal(merged[1:], merged[:-1], out=first[1:])
    return merged[first]


def _next_features(entries: Entries, last: int, count: int) -> np.ndarray:
    """The `count` smallest distinct features above `last`."""
    smallest = np.empty(0, np.int64)
    for _, feature, _ in entries:
        limit = smallest[-1] if smallest.size == count else np.iinfo(np.int64).max
        new = feature[(feature > last) & (feature <= limit)]
        if new.size:
            smallest = sorted_distinct(smallest, sorted_distinct(new))[:count].copy()
    return smallest


def _range_ends(entries: Entries) -> np.ndarray:
    """Last features of ranges that hold about as many distinct features each, by a sample of the entries."""
    limit = 1 << 14  # 64 a range
    sample, step = np.empty(0, np.int64), 1
    for _, feature, _ in entries:
        sample = sorted_distinct(sample, feature[::step])
        while sample.size > limit:  # thinner from here on, and so is what there is
            sample, step = sample[::2].copy(), 2 * step
    return (
        sample[np.linspace(0, sample.size - 1, _N_RANGES).astype(np.int64)[1:-1]] if sample.size else sample
    )


def _scatter(entries: Entries, ends: np.ndarray, scratch: Path) -> list[Path]:
    """Write entries to a file for each range of features, each in the order in which they come."""
    scratch.mkdir(parents=True, exist_ok=True)
    paths = [scratch / f"range-{number:03x}" for number in range(len(ends) + 1)]
    with ExitStack() as stack:
        files = [stack.enter_context(open(path, "wb")) for path in paths]
        for shard, feature, value in entries:
            number = np.searchsorted(ends, feature)
            order = np.argsort(number, kind="stable")
            records = np.empty(len(feature), _RECORD)
            records["feature"], records["value"], records["shard"] = feature[order], value[order], shard
            stops = np.searchsorted(number[order], np.arange(len(paths)), side="right")
            for file, start, stop in zip(files, np.append(0, stops[:-1]), stops, strict=True):
                if stop > start:
                    file.write(records[start:stop].data.cast("B"))
    return paths


def _read_records(path: Path) -> Entries:
    with open(path, "rb") as file:
        while (records := np.fromfile(file, _RECORD, 1 << 16)).size:
            for same in np.split(records, 1 + np.flatnonzero(np.diff(records["shard"]))):
                yield int(same["shard"][0]), same["feature"].copy(), same["value"].copy()


def in_groups(pieces: Iterable[Mapping[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
    """Cut pieces of columns anew, into groups of `_PIECE_FEATURES` features and a last one."""
    held: dict[str, np.ndarray] = {}
    for piece in pieces:
        held = {
            name: np.concatenate([held[name], column]) if held else column for name, column in piece.items()
        }
        while len(held["feature"]) >= _PIECE_FEATURES:
            yield {name: column[:_PIECE_FEATURES] for name, column in held.items()}
            held = {name: column[_PIECE_FEATURES:] for name, column in held.items()}
    if held:
        yield held

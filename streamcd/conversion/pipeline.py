"""The stages of a conversion, by one process or several, to the same dataset, bit for bit.

Ranges of the source are parsed into runs sorted by leading key bits; the rows' lengths in final order tell where chunks and
shards begin; then whole shards are written. Statistics are made by ranges of features, every feature's in the order of the
rows. None of it depends on which worker does what. One worker alone takes all of the source as one task, and all shards as
another, and keeps the rows in memory if they fit. For several, the rows of every range are counted first, so that each knows
how many come before its own.

A source is a list of byte ranges and a function that makes batches of rows of some of them (`Parsing.parse`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import DataError, UsageError
from ..core.memory_budget import RESERVED_BYTES, format_size
from ..core.process_pool import TASKS_PER_WORKER, Pool, Tell, in_shares
from ..dataset.scaling import Scaling
from ..dataset.writer import DatasetWriter, PartWriter
from .byte_sources import ByteRange, display_name, expected_text_bytes, range_starts, share_out, total_bytes
from .chunking import cut_chunks, cut_shards
from .external_shuffle import MAX_BITS, HeldRows, RunFormat, RunReader, RunWriter
from .feature_statistics import (
    STATISTICS_BYTES,
    DistinctFeatures,
    FeatureColumns,
    LabelCounts,
    in_groups,
    join_statistics,
    read_entries,
    read_statistics,
    saved_columns,
    scatter_statistics,
)
from .libsvm import LibsvmFormat, check_rows, copy_weights, count_rows, iterate_batches
from .rows import Counts, RowBatch, Rows
from .shard_writing import (
    Shape,
    Shard,
    Writing,
    Written,
    plan_buckets,
    rescale_shards,
    save_means,
    save_scales,
    write_shards,
)

_UNKNOWN_BITS = 10  # of keys, that make buckets where the size of the source is not known
_LEAST_DECODER_BYTES = 10 << 20
_MAX_RANGES = 8
"""Above this number of passes for ranges of a fixed width, entries are scattered to files first."""


class Stamp(NamedTuple):
    """Properties of a file that tell when it was changed."""

    device: int
    inode: int
    n_bytes: int
    modified: int

    @classmethod
    def of(cls, path: str) -> Stamp | None:
        """None for what is no plain file, or not there."""
        if not os.path.isfile(path):
            return None
        found = os.stat(path)
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


@dataclass(frozen=True)
class Like:
    """Properties of the training side that a conversion takes over."""

    name: str
    index_base: int
    n_features: int
    classes: np.ndarray | None
    label_kind: str
    scaling: Scaling


@dataclass(frozen=True)
class Options:
    """Options of a conversion, checked."""

    paths: list[str]
    stamps: list[Stamp | None]  # of each, before it is read; None for what is no plain file
    dest: Path
    memory_bytes: int
    seed: int
    value_dtype: np.dtype
    index_base: int | None
    n_features: int | None
    like: Like | None
    shuffle: bool
    shard_bytes: int
    chunk_bytes: int
    compact: bool
    compression: str
    force: bool
    weights: str | None
    scale: str
    normalize: str
    workers: int

    @property
    def scaling(self) -> Scaling:
        """The scaling asked for; without the divisors, unless they are given."""
        return self.like.scaling if self.like else Scaling(self.scale, self.normalize)


@dataclass(frozen=True)
class Plan:
    """Shares of the memory of a worker."""

    block_bytes: int
    max_line_bytes: int
    sort_bytes: int
    statistics_bytes: int
    map_bytes: int

    @property
    def decoder_bytes(self) -> int:
        """Memory to decompress with: that of the statistics, which are made later; at least what xz -6 takes."""
        return max(self.statistics_bytes, _LEAST_DECODER_BYTES)

    def check_scales(self, n_features: int) -> None:
        """Refuse divisors that do not fit in the memory of the rows, which are sorted by then."""
        needed = 8 * n_features
        if needed > self.sort_bytes:
            raise UsageError(
                f"--scale: the scales of {n_features:,} features need {format_size(needed)}, {format_size(self.sort_bytes)} "
                f"of --memory are left for them; give about {format_size(3 * needed + RESERVED_BYTES)}, use --normalize l2 "
                "instead, or --compact where few of the features occur"
            )

    def sums_bytes(self, rows_held: bool) -> int:
        """Memory for the sums of features while shards are written: no text is read any more, and less is sorted."""
        return self.statistics_bytes if rows_held else 3 * self.statistics_bytes - self.map_bytes

    def rows_bytes(self, with_sums: bool) -> int:
        """Memory for rows then; buckets are a quarter of `sort_bytes` at most, unless the keys' hash is very uneven."""
        return self.sort_bytes // 4 if with_sums else self.sort_bytes


# ---------------------------------------------------------------------------------------------------------------------
# Tasks: parsing


class _Task(NamedTuple):
    number: int
    ranges: Sequence[ByteRange]
    first_row: int = 0
    first_line: int = 0
    n_rows: int | None = None  # None where they were not counted


class Weights(NamedTuple):
    """Weights of all rows: the file that they came from, and one with numbers of 8 bytes."""

    name: str
    path: Path
    n_weights: int

    def of(self, rows: Rows, task: _Task) -> np.ndarray:
        """The weights of some rows."""
        weight = np.fromfile(self.path, count=rows.n_rows, offset=8 * int(rows.source_row[0]))
        if weight.size < rows.n_rows and task.n_rows is not None:  # more rows than were counted
            raise _changed(task.ranges[0].path)
        self.check(int(rows.source_row[0]) + rows.n_rows)
        return weight

    def check(self, n_rows: int) -> None:
        """Refuse fewer weights than rows."""
        if self.n_weights < n_rows:
            raise DataError(
                f"{self.name}: expected a weight for every row, found {self.n_weights:,}, fewer "
                "than the source has rows; give one number a line"
            )

    def check_end(self, n_rows: int) -> None:
        """Refuse weights that are left over."""
        if self.n_weights > n_rows:
            raise DataError(
                f"{self.name}: expected {n_rows:,} weights, one a row, found more; is it the right file?"
            )


@dataclass(frozen=True)
class Parsing:
    """Knowledge that workers share to parse."""

    form: RunFormat
    plan: Plan
    parse: Callable[..., Iterator[RowBatch]]  # ``parse(ranges, first_row=, first_line=)``
    weights: Weights | None
    distinct: Path | None  # a directory for the indices that occur in each task
    tell: Tell | None  # told the bytes read, where all of the source is one task


class _Parsed(NamedTuple):
    counts: Counts
    labels: LabelCounts
    held: HeldRows | None


def _changed(path: str) -> DataError:
    return DataError(f"{path}: changed while it was read; convert it again")


def _parse(parsing: Parsing, task: _Task) -> _Parsed:
    """Write the rows of some ranges as a run; all of the source together is kept in memory if it fits."""
    counts, labels = Counts(), LabelCounts()
    distinct = None if parsing.distinct is None else DistinctFeatures(parsing.plan.map_bytes)
    run = RunWriter(parsing.form, task.number, parsing.plan.sort_bytes)
    for batch in parsing.parse(task.ranges, first_row=task.first_row, first_line=task.first_line):
        counts, rows = batch.counts, batch.rows
        labels.add(rows.label)
        if distinct is not None:
            distinct.add(rows.index)
        if parsing.weights is not None:
            rows = replace(rows, weight=parsing.weights.of(rows, task))
        run.append(rows, counts.is_wide)
        if parsing.tell is not None:
            parsing.tell(batch.bytes_read)
    held = run.close(hold=task.n_rows is None)
    if distinct is not None and parsing.distinct is not None:
        np.save(parsing.distinct / f"{task.number:07d}.npy", distinct.merge())
    if task.n_rows not in (None, counts.n_rows):
        raise _changed(task.ranges[0].path)
    return _Parsed(counts, labels, held)


def _merge_distinct(directory: Path, n_bytes: int, out: Path) -> int:
    """Write the indices that occur in any task; returns their number."""
    distinct = DistinctFeatures(n_bytes)
    for path in sorted(directory.iterdir()):
        distinct.add(np.load(path))
    merged = distinct.merge()
    np.save(out, merged)
    return int(merged.size)


# ---------------------------------------------------------------------------------------------------------------------
# Handing out


@dataclass
class Conversion:
    """One conversion; `plan` is a worker's."""

    options: Options
    plan: Plan
    work: Path
    pool: Pool

    def run(self) -> None:
        """Write the dataset to ``work / "dataset"``."""
        tasks = self._tasks()
        form = self._form(tasks)
        parsed = self._parse(tasks, form)
        counts = parsed.counts
        base, n_features = self._base_and_width(counts)
        original: Path | None = None
        if self.options.compact:
            original = self.work / "original.npy"
            merging = (self.work / "distinct", self.plan.map_bytes, original)
            (n_features,) = self.pool.run(_merge_distinct, [merging])
        shape = Shape(counts.n_rows, n_features, base)
        sums = self._sums("dataset", shape, parsed.held)
        rows_bytes = self.plan.rows_bytes(sums is not None)
        writing = Writing(
            partial(RunReader, form, rows_bytes, counts.is_wide, parsed.held),
            partial(PartWriter, self.work / "dataset", **self._table_format(shape)),
            shape,
            original,
            self.work / "dataset",
            replace(self.options.scaling, scales=None),
            self._given_scales(),
            sums,
            encode_ahead=self.pool.n_workers > 1,
        )
        self._write(writing, self._manifest(parsed, shape), parsed.held)
        size = f"{counts.n_rows:,} rows, {n_features:,} features, {counts.n_entries:,} entries"
        for message in [*counts.messages(self.options.value_dtype), size]:
            self.pool.listener.message(message)

    # -- reading

    def _tasks(self) -> list[_Task]:
        """All of the source for one worker; for several, ranges of it, of which the rows are counted."""
        paths = self.options.paths
        if self.pool.n_workers == 1:
            return [_Task(0, [ByteRange(path) for path in paths])]
        ranges = share_out(paths, TASKS_PER_WORKER * self.pool.n_workers)
        counting = [(part, self._libsvm_format()) for part in ranges]
        sizes = [part.n_bytes for part in ranges]
        counted = self.pool.run(count_rows, counting, phase="count", sizes=sizes)
        check_rows(sum(n_rows for n_rows, _ in counted), paths)
        starts = range_starts(ranges, counted)
        return [
            _Task(number, [part], *starts[number], counted[number][0]) for number, part in enumerate(ranges)
        ]

    def _form(self, tasks: Sequence[_Task]) -> RunFormat:
        options = self.options
        (self.work / "runs").mkdir()
        expected = expected_text_bytes(part for task in tasks for part in task.ranges)
        bits = _UNKNOWN_BITS
        if expected is not None:  # buckets too small cost less than buckets too large
            bits = min(int(np.ceil(np.log2(max(4 * expected / self.plan.sort_bytes, 2)))), MAX_BITS)
        seed = options.seed if options.shuffle else None
        return RunFormat(self.work / "runs", seed, bits, options.value_dtype, options.weights is not None)

    def _libsvm_format(self) -> LibsvmFormat:
        options, like = self.options, self.options.like
        return LibsvmFormat(
            options.value_dtype,
            like.index_base if like else options.index_base,
            like.n_features if like else options.n_features,
            like is not None,
            self.plan.block_bytes,
            self.plan.max_line_bytes,
            self.plan.decoder_bytes,
        )

    def _weights(self, tasks: Sequence[_Task]) -> Weights | None:
        name, path = self.options.weights, self.work / "weights"
        if name is None:
            return None
        copying = (name, path, self.plan.max_line_bytes, self.plan.decoder_bytes)
        (n_weights,) = self.pool.run(copy_weights, [copying])
        weights = Weights(name, path, n_weights)
        weights.check(sum(task.n_rows or 0 for task in tasks))
        return weights

    def _parse(self, tasks: Sequence[_Task], form: RunFormat) -> _Parsed:
        distinct = self.work / "distinct" if self.options.compact else None
        if distinct is not None:
            distinct.mkdir()
        weights = self._weights(tasks)
        tell = self.pool.tell_within("parse", "B", total_bytes(self.options.paths))
        parse = partial(iterate_batches, form=self._libsvm_format())
        parsing = Parsing(form, self.plan, parse, weights, distinct, tell)
        counts, labels, held = Counts(), LabelCounts(), None
        sizes = [sum(part.n_bytes for part in task.ranges) for task in tasks] if tell is None else None
        for parsed in self.pool.run(_parse, [(parsing, task) for task in tasks], phase="parse", sizes=sizes):
            counts.add(parsed.counts)
            labels.merge(parsed.labels)
            held = parsed.held
        check_rows(counts.n_rows, self.options.paths)
        if weights is not None:
            weights.check_end(counts.n_rows)
        return _Parsed(counts, labels, held)

    def _base_and_width(self, counts: Counts) -> tuple[int, int]:
        options, like = self.options, self.options.like
        if like is not None:
            return like.index_base, like.n_features
        base = options.index_base
        if base is None:
            base = 0 if counts.zero_index else 1
            why = "an index 0 occurs" if counts.zero_index else "no index 0 occurs"
            self.pool.listener.message(f"indices start at {base}: {why}")
        found = max(counts.max_index - base + 1, 0)
        if options.n_features is None:
            return base, found
        if found > options.n_features:  # only where an index 0 moved the base
            raise DataError(
                f"{counts.max_location}: expected indices up to {options.n_features - 1} "
                f"(--n-features {options.n_features}, index 0 occurs), found {counts.max_index}; give a larger --n-features"
            )
        return base, options.n_features

    def _manifest(self, parsed: _Parsed, shape: Shape) -> dict[str, Any]:
        options, like, counts = self.options, self.options.like, parsed.counts
        kind = counts.label_kind if like is None or counts.label_kind == "decimal" else like.label_kind
        return {
            "n_features": shape.n_features,
            "index_base": shape.index_base,
            "compact": options.compact,
            **parsed.labels.manifest(like.classes if like else None),
            "label_kind": kind,
            "seed": options.seed,
            "shuffle": options.shuffle,
            "chunk_bytes": options.chunk_bytes,
            "shard_bytes": options.shard_bytes,
            "n_explicit_zeros": counts.n_explicit_zeros,
            "n_underflows": counts.n_underflows,
            "n_ignored": counts.n_ignored,
            "source": self._unchanged_sources(),
        }

    def _unchanged_sources(self) -> list[dict[str, Any]]:
        """Name the sources; of one that was changed while it was read, nobody knows what is in the dataset."""
        sources = []
        for path, before in zip(self.options.paths, self.options.stamps, strict=True):
            if Stamp.of(path) != before:
                raise _changed(path)
            sources.append({"name": display_name(path), "bytes": None if before is None else before.n_bytes})
        return sources

    # -- writing

    def _table_format(self, shape: Shape) -> dict[str, Any]:
        return {
            "index_dtype": shape.index_dtype,
            "value_dtype": self.options.value_dtype,
            "row_dtype": shape.row_dtype,
            "compression": self.options.compression,
        }

    def _given_scales(self) -> Path | None:
        if self.options.scaling.scales is not None:
            np.save(self.work / "scales.npy", self.options.scaling.scales)
            return self.work / "scales.npy"
        return None

    def _write(self, writing: Writing, manifest: dict[str, Any], held: HeldRows | None) -> None:
        """Write the dataset; where features are scaled, one without scaling first."""
        shards = self._shards(writing)
        if self.options.scale == "none":
            self._write_parts(write_shards, writing, shards, manifest, held)
            return
        # the divisors are known when all rows have been seen: in their final order, so that the bits follow from it
        self.plan.check_scales(writing.shape.n_features)
        unscaled = self.work / "unscaled"
        plain = replace(
            writing,
            dataset=unscaled,
            part=partial(PartWriter, unscaled, **self._table_format(writing.shape)),
            scaling=Scaling(),
            scales=None,
            sums=self._sums("unscaled", writing.shape, held),
        )
        self._write_parts(write_shards, plain, shards, manifest, held)
        scaled = self._scaled(writing, unscaled)
        self._write_parts(partial(rescale_shards, unscaled=unscaled), scaled, shards, manifest, None)

    def _write_parts(
        self,
        function: Callable[..., list[Written]],
        writing: Writing,
        shards: Sequence[Shard],
        manifest: dict[str, Any],
        held: HeldRows | None,
    ) -> None:
        writer = DatasetWriter(
            writing.dataset,
            weighted=self.options.weights is not None,
            shard_bytes=self.options.shard_bytes,
            **self._table_format(writing.shape),
        )
        phase = "write" if writing.dataset.name == "dataset" else "write unscaled"
        tell = self.pool.tell_within(phase, "rows", writing.shape.n_rows)
        groups = [shards] if self.pool.n_workers == 1 else [[shard] for shard in shards]
        tasks = [(replace(writing, tell=tell), group) for group in groups]
        sizes = [sum(shard.n_rows for shard in group) for group in groups]
        for parts in self.pool.run(function, tasks, phase=phase, unit="rows", sizes=sizes):
            for written in parts:
                writer.add_part(*written)
        if held is not None:
            held.release()  # statistics may need the memory
        if writing.scaling.changes_values:
            writer.write_scaling(writing.whole_scaling())
        self._write_features(writer, writing)
        writer.close(**manifest)

    def _write_features(self, writer: DatasetWriter, writing: Writing) -> None:
        columns: FeatureColumns = (
            batch for path in self._statistics(writing) for batch in saved_columns(path)
        )
        if writing.original is not None:
            original = np.load(writing.original, mmap_mode="r")
            columns = ({**batch, "original": original[batch["feature"]]} for batch in columns)
        writer.write_features(in_groups(columns), compact=self.options.compact)

    def _statistics(self, writing: Writing) -> list[Path]:
        """Files with the statistics of features, from sums where there are any."""
        if writing.sums is None:
            return self._statistics_files(writing.dataset, None, writing.shape)
        saved = sorted(writing.sums.iterdir())
        if self.pool.n_workers == 1:  # made by the only task
            return saved
        join = partial(join_statistics, saved)
        return self._by_ranges(join, writing.sums / "joined", self.pool.n_workers, writing.shape)

    def _scaled(self, writing: Writing, unscaled: Path) -> Writing:
        """The same shards, with divisors made from a dataset without scaling."""
        means, statistics, out = None, [], self.work / "scales.npy"
        if self.options.scale == "standard":
            means = self.work / "means.npy"
            self.pool.run(save_means, [(unscaled, means)])
            statistics = self._statistics_files(unscaled, means, writing.shape)
        (digest,) = self.pool.run(save_scales, [(unscaled, means, statistics, out)])
        return replace(writing, scaling=replace(writing.scaling, digest=digest), scales=out)

    def _shards(self, writing: Writing) -> list[Shard]:
        """Cut the final order into chunks and shards, by the lengths of all rows."""
        with writing.reader() as reader:
            n_buckets = reader.n_buckets
        ranges = in_shares([1] * n_buckets, TASKS_PER_WORKER * self.pool.n_workers)
        lengths = [self.work / "runs" / f"lengths-{start:07d}" for start, _ in ranges]
        tasks = [(writing, *ends, path) for ends, path in zip(ranges, lengths, strict=True)]
        sizes = [stop - start for start, stop in ranges]
        cells = self.pool.run(plan_buckets, tasks, phase="sort", unit="buckets", sizes=sizes)
        entry_bytes = writing.shape.index_dtype.itemsize + self.options.value_dtype.itemsize
        chunk_rows, chunk_entries = cut_chunks(lengths, self.options.chunk_bytes, entry_bytes)
        row_start = np.concatenate([[0], np.cumsum(chunk_rows)])
        flat = [cell for bucket in cells for cell in bucket]
        cell_start = np.cumsum([0, *(cell.n_rows for cell in flat)])
        shards: list[Shard] = []
        for first, stop in cut_shards(chunk_entries * entry_bytes, self.options.shard_bytes):
            row0, row_end = int(row_start[first]), int(row_start[stop])
            low = int(np.searchsorted(cell_start, row0, side="right")) - 1
            high = int(np.searchsorted(cell_start, row_end, side="left"))
            held = [(int(cell_start[i]), flat[i]) for i in range(low, high)]
            shards.append(Shard(len(shards), row0, chunk_rows[first:stop], held))
        return shards

    def _sums(self, name: str, shape: Shape, held: HeldRows | None) -> Path | None:
        """A directory for the sums of features, where those of all fit in a worker beside the rows."""
        each = STATISTICS_BYTES + (0 if self.options.scale == "none" else 8)
        if shape.n_features * each > self.plan.sums_bytes(held is not None):
            return None
        directory = self.work / f"sums-{name}"
        directory.mkdir()
        return directory

    def _by_ranges(
        self, function: Callable[..., None], directory: Path, n_ranges: int, shape: Shape
    ) -> list[Path]:
        """Files with the statistics of ranges of features, ascending."""
        directory.mkdir(exist_ok=True)
        ends = np.linspace(0, shape.n_features, n_ranges + 1).astype(np.int64).tolist()
        paths = [directory / f"range-{number:05d}" for number in range(n_ranges)]
        tasks = [
            (start, stop, shape.n_rows, path)
            for start, stop, path in zip(ends[:-1], ends[1:], paths, strict=True)
        ]
        sizes = np.diff(ends).tolist()
        self.pool.run(function, tasks, phase="statistics", unit="features", sizes=sizes)
        return paths

    def _statistics_files(self, dataset: Path, means: Path | None, shape: Shape) -> list[Path]:
        """Files with the statistics of features, by reading the shards again."""
        directory = self.work / f"statistics-{dataset.name}{'' if means is None else '-deviations'}"
        directory.mkdir()
        memory_bytes = self.plan.statistics_bytes + self.plan.sort_bytes  # no rows are in memory any more
        if self.options.scale != "none":
            memory_bytes -= 8 * shape.n_features
        width = max(memory_bytes // STATISTICS_BYTES, 1)
        read = partial(read_entries, dataset, means)
        if shape.n_features > width * _MAX_RANGES * self.pool.n_workers:
            out = directory / "all"
            self.pool.run(scatter_statistics, [(read, shape.n_rows, memory_bytes, directory / "run", out)])
            return [out]
        n_ranges = max(-(-shape.n_features // width), self.pool.n_workers)
        return self._by_ranges(partial(read_statistics, read), directory, n_ranges, shape)

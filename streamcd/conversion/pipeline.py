"""Stages of a conversion, by one process or several, to the same dataset, bit for bit.

Ranges of the source are parsed into runs sorted by leading key bits; the rows' lengths in final order determine where
chunks and shards begin; then whole shards are written. Statistics are made by ranges of features, each feature's in the
order of the rows. None of it depends on the assignment of tasks to workers. One worker alone takes all of the source as
one task, and all shards as another, and keeps the rows in memory if they fit. For several, the rows of every range are
counted first, so that each worker knows the number of rows before its own.

A source (`sources.Source`) provides pieces of itself, and batches of the rows of pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import DataError
from ..core.process_pool import TASKS_PER_WORKER, InProcess, Pool, in_shares
from ..dataset.scaling import Scaling
from ..dataset.writer import DatasetWriter, PartWriter
from ..kernels.tables import SPARSE_CODES
from .byte_sources import check_rows, display_name
from .chunking import cut_chunks, cut_shards
from .external_shuffle import MAX_BITS, HeldRows, RunFormat, RunReader
from .feature_statistics import (
    STATISTICS_BYTES,
    FeatureColumns,
    LabelCounts,
    in_groups,
    join_statistics,
    read_entries,
    read_statistics,
    saved_columns,
    scatter_statistics,
)
from .libsvm import copy_weights
from .number_notation import notation_warnings
from .numbering import Merged, Numbering, label_maps, merge_dictionaries, read_merged
from .parsing import Parsed, Parsing, Task, Weights, changed, merge_distinct, parse_task
from .plan import Options, Plan, Stamp
from .publication import Publication
from .rows import Counts
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
from .sources import Source, counted_pieces

_UNKNOWN_BITS = 10  # of keys, that make buckets where the size of the source is not known
_MAX_RANGES = 8
"""Above this number of passes for ranges of a fixed width, entries are scattered to files first."""


def _told_collisions(merged: Merged) -> list[str]:
    if not merged.n_buckets_used:
        return []
    return [f"{merged.n_collided:,} of {merged.n_buckets_used:,} hash buckets in use hold several categories"]


# ---------------------------------------------------------------------------------------------------------------------
# Tasks


@dataclass
class Conversion:
    """One conversion; `plan` is a worker's."""

    options: Options
    plan: Plan
    source: Source
    work: Path
    pool: Pool
    publication: Publication | None = None  # of the dataset in a bucket

    def __post_init__(self) -> None:
        self.stamps = [Stamp.of(path) for path in self.source.reader.paths]
        self.encoding = self.source.encoding

    def run(self) -> None:
        """Write the dataset to ``work / "dataset"``."""
        tasks = self._tasks()
        form = self._form(tasks)
        found = self._parse(tasks, form)
        merged = self._merge_strings()
        parsed = self._join(found)
        counts = parsed.counts
        base, n_features = self._base_and_width(counts)
        numbering = self._numbering(tasks, base)
        if self.options.compact:
            numbering = replace(numbering, original=self.work / "original.npy")
            merging = (self.work / "distinct", self.plan.map_bytes, numbering.original)
            (n_features,) = self.pool.run(merge_distinct, [merging])
        shape = Shape(counts.n_rows, n_features, base)
        sums = self._sums("dataset", shape, parsed.held)
        rows_bytes = self.plan.rows_bytes(sums is not None)
        writing = Writing(
            partial(RunReader, form, rows_bytes, counts.is_wide, parsed.held),
            partial(PartWriter, self.work / "dataset", **self._table_format(shape)),
            shape,
            numbering,
            self.work / "dataset",
            replace(self.options.scaling, scales=None),
            self._given_scales(),
            sums,
            publication=None if sums is None else self.publication,  # else they are read once more
        )
        self._write(writing, self._manifest(parsed, shape, merged.class_names), parsed.held)
        size = f"{counts.n_rows:,} rows, {n_features:,} features, {counts.n_entries:,} entries"
        for message in [*counts.messages(self.options.value_dtype), *_told_collisions(merged), size]:
            self.pool.listener.message(message)

    # -- reading

    def _tasks(self) -> list[Task]:
        """Return the whole source as one task for one worker; for several, pieces of it with their rows counted."""
        source = self.source
        if self.pool.n_workers == 1 or source.in_memory:
            return [Task(0, source.reader.whole())]
        pieces = counted_pieces(source, TASKS_PER_WORKER * self.pool.n_workers, self.pool)
        return [
            Task(number, [piece], *start, counted.n_rows)
            for number, (piece, counted, start) in enumerate(pieces)
        ]

    def _form(self, tasks: Sequence[Task]) -> RunFormat:
        options = self.options
        (self.work / "runs").mkdir()
        expected = self.source.reader.expected_bytes([piece for task in tasks for piece in task.pieces])
        bits = _UNKNOWN_BITS
        if expected is not None:
            # a bucket has to fit in a quarter of the memory: records take up to three times the bytes of dense rows' text.
            # Buckets too small cost less than buckets too large, which are cut, and read again for every part
            bits = min(int(np.ceil(np.log2(max(12 * expected / self.plan.sort_bytes, 2)))), MAX_BITS)
        seed = options.seed if options.shuffle else None
        return RunFormat(self.work / "runs", seed, bits, options.value_dtype, self._weighted)

    @property
    def _weighted(self) -> bool:
        return self.options.weights is not None or self.source.weighted

    def _weights(self, tasks: Sequence[Task]) -> Weights | None:
        if self.options.weights is None:
            return None
        name, path = str(self.options.weights), self.work / "weights"
        copying = (name, path, self.plan.max_line_bytes, self.plan.decoder_bytes)
        (n_weights,) = self.pool.run(copy_weights, [copying])
        weights = Weights(name, path, n_weights)
        weights.check(sum(task.n_rows or 0 for task in tasks))
        return weights

    def _parse(self, tasks: Sequence[Task], form: RunFormat) -> list[Parsed]:
        source = self.source
        pool = InProcess(self.pool.listener) if source.in_memory else self.pool
        tell = pool.tell_within("parse", "B", source.reader.total_bytes)
        weights = self._weights(tasks)
        parsing = Parsing(
            form,
            self.plan,
            source,
            self._directory("dictionaries") if self._has_strings else None,
            self.pool.n_workers == 1,
            weights,
            self._directory("distinct") if self.options.compact else None,
            tell,
            self.options.has_targets,
        )
        sizes = [sum(piece.n_bytes for piece in task.pieces) for task in tasks] if tell is None else None
        found: list[Parsed] = pool.run(
            parse_task, [(parsing, task) for task in tasks], phase="parse", sizes=sizes
        )
        n_rows = sum(parsed.counts.n_rows for parsed in found)
        check_rows(n_rows, source.reader.paths, source.what)
        if weights is not None:
            weights.check_end(n_rows)
        return found

    def _join(self, found: Sequence[Parsed]) -> Parsed:
        """Join the results of all tasks; names of classes already have their final numbers."""
        counts, labels = Counts(), LabelCounts(None if self.options.has_targets else {})
        maps = label_maps(self.work / "dictionaries") if self.source.names_labels else None
        for number, parsed in enumerate(found):
            counts.add(parsed.counts)
            labels.merge(parsed.labels if maps is None else parsed.labels.renumbered(maps[number]))
        return Parsed(counts, labels, found[-1].held)

    def _directory(self, name: str) -> Path:
        directory = self.work / name
        directory.mkdir()
        return directory

    # -- numbering

    @property
    def _has_strings(self) -> bool:
        encoding = self.source.encoding
        return self.source.names_labels or (encoding is not None and bool(encoding.names))

    def _merge_strings(self) -> Merged:
        """Sort the strings of all tasks."""
        if not self._has_strings:
            return Merged([], [], 0, 0)
        directory, source = self.work / "dictionaries", self.source
        budget = (self.plan.merge_bytes, self.options.memory_bytes, self.options.workers)
        merged: Merged
        (merged,) = self.pool.run(
            merge_dictionaries, [(directory, source.encoding, source.class_names, *budget)]
        )
        if source.grows and source.encoding is not None:
            self.encoding = read_merged(directory, source.encoding, merged)
            for warning in notation_warnings(directory, self.encoding):
                self.pool.listener.warning(warning)
        return merged

    def _numbering(self, tasks: Sequence[Task], base: int) -> Numbering:
        encoding, source = self.encoding, self.source
        return Numbering(
            base,
            dictionaries=self.work / "dictionaries" if self._has_strings else None,
            first_rows=tuple(task.first_row for task in tasks),
            maps_features=source.grows and encoding is not None and encoding.has_categories,
            maps_labels=source.names_labels,
            sparse_start=0 if encoding is None else encoding.sparse_start,
        )

    def _base_and_width(self, counts: Counts) -> tuple[int, int]:
        options, like, encoding = self.options, self.options.training, self.encoding
        if like is not None:
            return like.index_base, like.n_features
        if encoding is not None and not self.source.of_indices:
            if encoding.sparse is None:
                return 0, encoding.sparse_start
            mapped = counts.max_index >= SPARSE_CODES
            return 0, counts.max_index + 1 + (encoding.sparse_start - SPARSE_CODES if mapped else 0)
        base = options.first_index
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

    def _manifest(self, parsed: Parsed, shape: Shape, class_names: list[str]) -> dict[str, Any]:
        options, like, counts = self.options, self.options.training, parsed.counts
        kind = counts.label_kind if like is None or counts.label_kind == "decimal" else like.label_kind
        classes = {**parsed.labels.manifest(like.classes if like else None), "label_kind": kind}
        return {
            "n_features": shape.n_features,
            "index_base": shape.index_base,
            "compact": options.compact,
            **(parsed.labels.target_range() if options.has_targets else classes),
            **({"class_names": class_names} if self.source.names_labels else {}),
            "seed": options.seed,
            "shuffle": options.shuffle,
            "chunk_bytes": options.chunk_bytes,
            "shard_bytes": options.shard_bytes,
            "n_explicit_zeros": counts.n_explicit_zeros,
            "n_underflows": counts.n_underflows,
            "n_ignored": counts.n_ignored,
            "made_from": self.source.made_from,
            "source": self._unchanged_sources(),
        }

    def _unchanged_sources(self) -> list[dict[str, Any]]:
        """Describe the sources; refused if one changed while it was read: the dataset's contents are then unknown."""
        sources = []
        for path, before in zip(self.source.reader.paths, self.stamps, strict=True):
            if Stamp.of(path) != before:
                raise changed(path)
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
        # divisors are computed over all rows in final order, which fixes their bits
        self.plan.check_scales(writing.shape.n_features, self.options)
        unscaled = self.work / "unscaled"
        plain = replace(
            writing,
            dataset=unscaled,
            part=partial(PartWriter, unscaled, **self._table_format(writing.shape)),
            scaling=Scaling(),
            scales=None,
            sums=self._sums("unscaled", writing.shape, held),
            publication=None,
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
            index_dtype=writing.shape.index_dtype,
            value_dtype=self.options.value_dtype,
            weighted=self._weighted,
            compression=self.options.compression,
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
        if self.encoding is not None:
            writer.write_encoding(self.encoding)
        writer.close(**manifest)

    def _write_features(self, writer: DatasetWriter, writing: Writing) -> None:
        columns: FeatureColumns = (
            batch for path in self._statistics(writing) for batch in saved_columns(path)
        )
        numbering, names = writing.numbering, None
        if self.encoding is not None:
            names = self.encoding.feature_names
        if numbering.original is not None:
            original = np.load(numbering.original, mmap_mode="r")
            columns = ({**batch, "index": original[batch["feature"]]} for batch in columns)
        else:
            base = numbering.index_base
            columns = ({**batch, "index": batch["feature"] + base} for batch in columns)
        writer.write_features(in_groups(columns), names)

    def _statistics(self, writing: Writing) -> list[Path]:
        """Write files with the statistics of features, from sums if there are any."""
        if writing.sums is None:
            return self._statistics_files(writing.dataset, None, writing.shape)
        saved = sorted(writing.sums.iterdir())
        if self.pool.n_workers == 1:  # made by the only task
            return saved
        join = partial(join_statistics, saved)
        return self._by_ranges(join, writing.sums / "joined", self.pool.n_workers, writing.shape)

    def _scaled(self, writing: Writing, unscaled: Path) -> Writing:
        """Return the parameters of the same shards with divisors, computed from a dataset without scaling."""
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
            shards.append(Shard(len(shards), row0, chunk_rows[first:stop], chunk_entries[first:stop], held))
        return shards

    def _sums(self, name: str, shape: Shape, held: HeldRows | None) -> Path | None:
        """Make a directory for the sums of features; None if those of all do not fit in a worker beside the rows."""
        each = STATISTICS_BYTES + (0 if self.options.scale == "none" else 8)
        if shape.n_features * each > self.plan.sums_bytes(held is not None):
            return None
        directory = self.work / f"sums-{name}"
        directory.mkdir()
        return directory

    def _by_ranges(
        self, function: Callable[..., None], directory: Path, n_ranges: int, shape: Shape
    ) -> list[Path]:
        """Write files with the statistics of ranges of features, ascending."""
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
        """Write files with the statistics of features, by reading the shards again."""
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

"""Stages of a conversion, by one process or several, to the same dataset, bit for bit.

Ranges of the source are parsed into runs sorted by leading key bits; the rows' lengths in final order determine where
chunks and shards begin; then whole shards are gathered, to sum up their features where these are scaled, and to be
written. None of it depends on the assignment of tasks to workers. One worker alone takes all of the source as one task,
and all shards as another, and keeps the rows in memory if they fit. For several, the rows of every range are counted
first, so that each worker knows the number of rows before its own.

A source (`sources.Source`) provides pieces of itself, and batches of the rows of pieces.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import DataError, UsageError
from ..core.memory_budget import format_size
from ..core.parallel import TASKS_PER_WORKER, Pool
from ..dataset.arrow_columns import MOST_ODD, WORD
from ..dataset.kept_columns import KEPT_FILE, join_kept
from ..dataset.schema import FEATURES, INDICES, INDICES_FILE, SCALES, SCALES_FILE, row_dtype
from ..dataset.source_features import GROUP_FEATURES, Scaling, SourceIndices, scale_blocks
from ..dataset.writer import (
    Part,
    PartWriter,
    add_entries,
    file_record,
    named_features,
    write_dataset,
    write_table,
)
from ..kernels.compile import load_together
from ..kernels.rows import add_row_norms
from ..kernels.strings import TAIL_CODES
from ..models.encoding import CATEGORIES_FILE, Encoding
from .external_shuffle import (
    MAX_BITS,
    RunFormat,
    RunReader,
    Shape,
    Shard,
    ShardPass,
    cut_shards,
    pass_over,
)
from .feature_statistics import (
    FeatureSums,
    LabelCounts,
    Summing,
    read_sums,
    save_means,
    save_scales,
    statistics_of,
)
from .formats import expand
from .libsvm import copy_weights
from .numbering import Numbering, merge_strings, read_merged
from .options import ConvertOptions
from .parsing import Parsed, Parsing, Weights, changed, merge_distinct, parse_task, stamp_of
from .rows import NARROW, Counts, Rows
from .sources import Source, Task, check_rows, counted_tasks, display_name
from .table_columns import describe_uses

_UNKNOWN_BITS = 10  # of keys, that make buckets where the size of the source is not known
_EXPANSION = 4  # of compressed text, or columns


class Reference(NamedTuple):
    """Properties of the training side that a conversion takes over."""

    indices: SourceIndices
    n_features: int
    classes: np.ndarray | None
    scaling: Scaling
    encoding: Encoding | None
    class_names: tuple[str, ...]
    has_targets: bool


class Plan(NamedTuple):
    """Shares of the memory of a worker, in bytes."""

    block_bytes: int  # of text, parsed at a time
    max_line_bytes: int
    sort_bytes: int  # rows
    statistics_bytes: int  # of features, while no text is read
    map_bytes: int  # of strings or indices


@dataclass(frozen=True)
class Conversion:
    """One conversion to ``work / "dataset"``; `plan` is a worker's."""

    options: ConvertOptions
    like: Reference | None
    plan: Plan
    source: Source
    work: Path
    pool: Pool

    def _load_kernels(self) -> None:
        """Call the kernels that all conversions have over nothing."""
        offsets = np.zeros(1, np.int64)
        number = np.zeros(0)
        none = offsets[:0]
        index = np.zeros(0, np.int32)
        value = np.zeros(0, self.options.dtype)
        self.source.reader.load_kernels()
        rows = Rows(none, number, None, offsets, index, value)
        rows.gather(none, rows)
        FeatureSums(0, 1).add(0, index, value)
        add_row_norms(offsets, value, np.zeros(3))
        add_entries(index, index, value, np.zeros(2, np.uint64))

    def run(self) -> None:
        """Parse all rows, number their features, cut them into shards, sum up features to be scaled, and write."""
        source = self.source
        options = self.options
        plan = self.plan
        pool = self.pool
        load_together(self._load_kernels)
        encoding = source.encoding
        for name in ("runs", "dictionaries", "distinct", "kept", "dataset"):
            (self.work / name).mkdir()
        stamps = [(path, stamp_of(path)) for path in source.reader.paths]
        tasks = [Task(0, source.reader.pieces())]
        if pool.n_workers > 1 and not source.in_memory:
            tasks = counted_tasks(source, TASKS_PER_WORKER * pool.n_workers, pool)
        form, parsed = self._parse(tasks)
        for path, before in stamps:
            if stamp_of(path) != before:  # the dataset's contents are then unknown
                raise changed(path)
        counts = Counts()
        for one in parsed:
            counts.add(one.counts)
        names = list[str]()
        table = list[dict[str, Any]]()
        if source.has_strings:
            encoding, names, table = self._merge_strings(counts.n_missing)
        for (name, _), odd in counts.odd.items():
            n_words = counts.odd[name, WORD].n_values if (name, WORD) in counts.odd else 0
            if n_words <= MOST_ODD * counts.n_rows and name not in options.category:
                pool.listener.warning(odd.example)
        numbering, shape = self._number(counts, encoding, [task.first_row for task in tasks])
        reader = RunReader(form, counts.max_index > NARROW, parsed[-1].held)
        entry_bytes = shape.index_dtype.itemsize + form.value_dtype.itemsize
        cuts = entry_bytes, int(options.chunk_size), int(options.shard_size)
        shards = cut_shards(reader, pool, self.work / "runs", *cuts)
        # while no text is read, and less is sorted
        room = plan.statistics_bytes if reader.held else 3 * plan.statistics_bytes - plan.map_bytes
        room -= 0 if options.scale == "none" else 8 * shape.n_features
        summing = Summing(self.work / "sums", shape.n_features, max(room, plan.statistics_bytes // 4))
        scaling = self.like.scaling if self.like else Scaling(options.scale, options.normalize)
        scaling = replace(scaling, scales=None)
        work = ShardPass(reader, shape, numbering, summing, options.target, scaling)
        if scaling.scale != "none":
            work = self._scaled(work, shards)
        manifest = {
            **({"class_names": names} if source.names_labels else {}),
            "weighted": form.weighted,
            "seed": options.seed,
            "chunk_bytes": options.chunk_size,
            "shard_bytes": options.shard_size,
            "n_explicit_zeros": counts.n_explicit_zeros,
            "n_underflows": counts.n_underflows,
            "n_ignored": counts.n_ignored,
            "made_from": source.made_from,
            "source": [
                {"name": display_name(path), "bytes": None if stamp is None else stamp[0]}
                for path, stamp in stamps
            ],
            **({"table": table} if table else {}),
        }
        n_entries = self._write(work, shards, encoding, manifest)
        size = f"{shape.n_rows:,} rows, {shape.n_features:,} features, {n_entries:,} entries"
        for message in (*counts.messages(form.value_dtype), size):
            pool.listener.message(message)

    # -- reading

    def _parse(self, tasks: Sequence[Task]) -> tuple[RunFormat, list[Parsed]]:
        source = self.source
        options = self.options
        plan = self.plan
        work = self.work
        weights = None
        if options.weights is not None:
            name = str(options.weights)
            path = work / "weights"
            reading = source.reading
            copying = (expand(name).paths, path, reading.max_line_bytes, reading.decoder_bytes)
            weights = Weights(name, path, *self.pool.run(copy_weights, [copying]))
            counted = sum(task.n_rows or 0 for task in tasks)  # 0 of one task alone
            if counted not in (0, weights.n_weights):
                raise weights.refusal(counted)
        bits = _UNKNOWN_BITS
        if source.total_bytes is not None:
            # a bucket has to fit in a quarter of the memory: records take up to three times the bytes of dense rows' text.
            # Buckets too small cost less than buckets too large, which are cut, and written again
            expected = 12 * _EXPANSION * source.total_bytes
            bits = min(int(np.ceil(np.log2(max(expected / plan.sort_bytes, 2)))), MAX_BITS)
        form = RunFormat(
            work / "runs",
            options.seed,
            bits,
            source.reading.value_dtype,
            options.weights is not None or source.weighted,
            plan.sort_bytes,
        )
        known = self.like.indices if self.like and self.like.indices.kept is not None else None
        # rows stay in memory where divisors of features fit beside them
        most_features = None if options.scale == "none" else plan.statistics_bytes // 8
        pool = Pool(1, self.pool.listener) if source.in_memory else self.pool
        parsing = Parsing(
            work,
            form,
            source,
            plan.map_bytes,
            compact=options.compact and known is None,
            indices=known,
            weights=weights,
            hold=self.pool.n_workers == 1,
            most_features=most_features,
        )
        sizes = [sum(piece.n_bytes for piece in task.pieces) for task in tasks]
        if len(tasks) == 1:
            sizes = [source.total_bytes or 0]
        parsing_tasks = [(parsing, task) for task in tasks]
        parsed: list[Parsed] = pool.run(parse_task, parsing_tasks, phase="parse", sizes=sizes, tells=True)
        n_rows = sum(one.counts.n_rows for one in parsed)
        check_rows(n_rows, source.reader.paths)
        if weights is not None and weights.n_weights != n_rows:
            raise weights.refusal(n_rows)
        return form, parsed

    # -- numbering

    def _merge_strings(self, n_missing: Any) -> tuple[Encoding | None, list[str], list[dict[str, Any]]]:
        """Sort the strings of all tasks: return the encoding with them, names of classes, and the use of each column."""
        source = self.source
        encoding = self.source.encoding
        options = self.options
        directory = self.work / "dictionaries"
        grown = encoding if source.grows else None
        # no text is read now, and few rows are in memory
        budget = self.plan.map_bytes + self.plan.statistics_bytes, options.memory, options.workers
        merging = (directory, grown, n_missing, source.reading.class_names, *budget)
        ((n_categories, class_names),) = self.pool.run(merge_strings, [merging])
        if grown is not None:
            encoding = grown.with_counts(n_categories, n_missing, read_merged(directory))
        if encoding is None:
            return None, class_names, []
        notes = dict.fromkeys(options.drop, "--drop") | source.unused
        uses = describe_uses(source.columns, encoding, n_missing, notes, source.reading.label_word)
        return encoding, class_names, uses

    def _number(
        self, counts: Counts, encoding: Encoding | None, first_rows: Sequence[int]
    ) -> tuple[Numbering | None, Shape]:
        """Find the first index and the width, and with ``compact`` the indices that occur."""
        source = self.source
        numbering = None
        indices = None
        base, n_features = self._base_and_width(counts, encoding)
        if source.has_strings:
            grown = encoding if source.grows else None
            numbering = Numbering(
                self.work / "dictionaries",
                first_rows,
                maps_features=grown is not None and grown.numbers_late,
                maps_labels=source.names_labels,
                n_static=0 if grown is None else grown.n_static,
                tail_start=0 if encoding is None else encoding.bucket_start,
            )
        if self.options.compact:
            indices = self.work / "original.npy"
            if self.like is not None:
                np.save(indices, np.asarray(self.like.indices.kept))
            else:
                (n_features,) = self.pool.run(
                    merge_distinct, [(self.work / "distinct", self.plan.map_bytes, indices)]
                )
        index_dtype = np.dtype(np.int32 if n_features <= 2**31 else np.int64)
        return numbering, Shape(counts.n_rows, n_features, base, index_dtype, indices)

    def _base_and_width(self, counts: Counts, encoding: Encoding | None) -> tuple[int, int]:
        options = self.options
        base = self.source.reading.index_base
        if self.like is not None:
            return self.like.indices.base, self.like.n_features
        if encoding is not None and not self.source.of_indices:
            if encoding.sparse is None:
                return 0, encoding.sparse_start
            # the last feature before the tail, which may be empty
            mapped = counts.max_index >= TAIL_CODES - 1
            return 0, counts.max_index + 1 + (encoding.bucket_start - TAIL_CODES if mapped else 0)
        if base is None:
            base = 0 if counts.zero_index else 1
            why = "an index 0 occurs" if counts.zero_index else "no index 0 occurs"
            self.pool.listener.message(f"indices start at {base}: {why}")
        width = max(counts.max_index - base + 1, 0)
        if options.n_features is None:
            return base, width
        if width > options.n_features:  # only where an index 0 moved the base
            raise DataError(
                f"{counts.max_location}: expected indices up to {options.n_features - 1} "
                f"(--n-features {options.n_features}, index 0 occurs), found {counts.max_index}; give a larger --n-features"
            )
        return base, options.n_features

    # -- writing

    def _scaled(self, work: ShardPass, shards: Sequence[Shard]) -> ShardPass:
        """Return a pass with divisors of the features: known ones, or those of all rows in final order, which fixes bits."""
        options = self.options
        plan = self.plan
        shape = work.shape
        scaling = work.scaling
        path = self.work / "scales.npy"
        means = None
        if self.like is not None:
            np.save(path, np.asarray(self.like.scaling.scales))
            return replace(work, scales=path)
        needed = 8 * shape.n_features
        if needed > plan.sort_bytes:
            # of what a worker has to spare, a half is for sorting, with a map three eighths
            enough = int(options.memory) + options.workers * 3 * (needed - plan.sort_bytes)
            raise UsageError(
                f"--scale: the scales of {shape.n_features:,} features need {format_size(needed)}, "
                f"{format_size(plan.sort_bytes)} of --memory are left for them; give about {format_size(enough)}, use "
                "--normalize l2 instead, or --compact where few of them occur"
            )
        unscaled = replace(work, scaling=Scaling())
        *_, sums = self._pass(unscaled, shards, "sum up")
        if scaling.scale == "standard":
            means = self.work / "means.npy"
            self.pool.run(save_means, [(sums, shape.n_rows, shape.n_features, means)])
            *_, sums = self._pass(replace(unscaled, means=means), shards, "sum up")
        saving = (sums, shape.n_rows, shape.n_features, means, path)
        (digest,) = self.pool.run(save_scales, [saving])
        return replace(work, scaling=replace(scaling, digest=digest), scales=path)

    def _pass(
        self, work: ShardPass, shards: Sequence[Shard], phase: str
    ) -> tuple[list[Part], LabelCounts, Path]:
        """Pass over all shards; returns their parts and labels, where they are written, and a file of features' sums."""
        out = self.work / "statistics"
        shutil.rmtree(work.summing.directory, ignore_errors=True)
        work.summing.directory.mkdir()
        groups = [shards] if self.pool.n_workers == 1 else [[shard] for shard in shards]
        tasks = [(work, group) for group in groups]
        sizes = [sum(shard.n_rows for shard in group) for group in groups]
        results = self.pool.run(pass_over, tasks, phase=phase, unit="rows", sizes=sizes, tells=True)
        labels = LabelCounts(None if self.options.target else {})
        for _, of_task in results:
            labels.merge(of_task)
        joining = [(work.summing, out)]
        n_features = [work.shape.n_features]
        self.pool.run(Summing.join, joining, phase="statistics", unit="features", sizes=n_features)
        return [part for parts, _ in results for part in parts], labels, out

    def _write(
        self, work: ShardPass, shards: Sequence[Shard], encoding: Encoding | None, manifest: dict[str, Any]
    ) -> int:
        """Write the dataset, whose `manifest` has what was read; returns the number of its entries."""
        folder = self.work / "dataset"
        compression = self.options.compression
        shape = work.shape
        form: dict[str, Any] = {
            "index_dtype": shape.index_dtype,
            "value_dtype": self.source.reading.value_dtype,
        }
        rows = row_dtype(shape.n_rows)
        part = partial(PartWriter, folder, row_dtype=rows, compression=compression, **form)
        parts, labels, sums = self._pass(replace(work, part=part), shards, "write")
        indices = shape.indices()
        figures = (statistics_of(group, shape.n_rows) for group in read_sums(sums))
        features = named_features(figures, indices, encoding)
        fields = {
            **{name: dtype.name for name, dtype in form.items()},
            "n_features": shape.n_features,
            "index_base": shape.index_base,
            "compact": self.options.compact,
            **labels.manifest(self.like.classes if self.like else None, targets=self.options.target),
            **manifest,
            "features": write_table(
                folder / "features.parquet", FEATURES, features, compression, ascending=("feature", "index")
            ),
        }
        if work.scaling.changes_values:
            fields["scaling"] = work.scaling.to_json()
        if work.scales is not None:
            blocks = scale_blocks(np.load(work.scales))
            fields["scales"] = write_table(folder / SCALES_FILE, SCALES, blocks, compression)
        if (kept := indices.kept) is not None:
            groups = range(0, kept.size, GROUP_FEATURES)
            blocks = ({"index": kept[start : start + GROUP_FEATURES]} for start in groups)
            fields["indices"] = write_table(folder / INDICES_FILE, INDICES, blocks, compression)
        if encoding is not None:
            fields["encoding"] = encoding.but(categories=None).record()
            if encoding.has_categories:
                encoding.save(folder / CATEGORIES_FILE)
                fields["categories"] = file_record(folder / CATEGORIES_FILE)
            if encoding.kept:
                join_kept(sorted((self.work / "kept").iterdir()), folder / KEPT_FILE)
                fields["kept"] = file_record(folder / KEPT_FILE)
        return int(write_dataset(folder, parts, fields, compression)["n_entries"])

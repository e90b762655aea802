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
from typing import Any

import numpy as np

from ..core.errors import DataError
from ..core.parallel import TASKS_PER_WORKER, Pool, in_shares
from ..dataset.kept_columns import KEPT_FILE, join_kept
from ..dataset.schema import FEATURES, INDICES, INDICES_FILE, SCALES, SCALES_FILE, row_dtype
from ..dataset.source_features import GROUP_FEATURES, scale_blocks
from ..dataset.writer import Part, PartWriter, file_record, named_features, write_dataset, write_table
from ..kernels.strings import TAIL_CODES
from ..models.encoding import CATEGORIES_FILE
from .external_shuffle import (
    MAX_BITS,
    RunFormat,
    RunReader,
    Shape,
    Shard,
    ShardPass,
    cut_chunks,
    cut_shards,
    pass_over,
    plan_buckets,
)
from .feature_statistics import LabelCounts, Summing, read_sums, save_means, save_scales, statistics_of
from .libsvm import copy_weights
from .numbering import Merged, Numbering, merge_strings, read_merged
from .parsing import Parsed, Parsing, Task, Weights, changed, merge_distinct, parse_task, stamp_of
from .plan import Options, Plan
from .rows import Counts
from .sources import Source, check_rows, counted_pieces, display_name
from .table_columns import describe_uses

_UNKNOWN_BITS = 10  # of keys, that make buckets where the size of the source is not known


@dataclass
class Conversion:
    """One conversion to ``work / "dataset"``; `plan` is a worker's."""

    options: Options
    plan: Plan
    source: Source
    work: Path
    pool: Pool

    def run(self) -> None:
        source, options, pool = self.source, self.options, self.pool
        stamps = [stamp_of(path) for path in source.reader.paths]
        self.encoding = encoding = source.encoding
        self._weighted = options.weights is not None or source.weighted
        self._keeps = encoding is not None and bool(encoding.kept)
        self._has_strings = source.names_labels or (encoding is not None and bool(encoding.names))
        tasks = [Task(0, source.reader.pieces())]
        if pool.n_workers > 1 and not source.in_memory:
            pieces = counted_pieces(source, TASKS_PER_WORKER * pool.n_workers, pool)
            tasks = [
                Task(number, [piece], *start, counted.n_rows)
                for number, (piece, counted, start) in enumerate(pieces)
            ]
        form = self._form(tasks)
        found = self._parse(tasks, form)
        counts = Counts()
        for one in found:
            counts.add(one.counts)
        merged, table = Merged([], []), list[dict[str, Any]]()
        if self._has_strings:
            merged, table = self._merge_strings(counts.n_missing)
        numbering, shape = self._number(counts, [task.first_row for task in tasks])
        labels = LabelCounts(None if options.has_targets else {})
        for number, one in enumerate(found):
            if numbering.maps_labels:  # names of classes get their final numbers
                labels.merge(one.labels.renumbered(numbering.classes_of(number)))
            else:
                labels.merge(one.labels)
        held = found[-1].held
        # of a cell: what a bucket takes at most, if keys are even
        reader = RunReader(form, self.plan.sort_bytes // 4, counts.is_wide, held)
        shards = self._shards(reader, shape)
        scales_bytes = 0 if options.scale == "none" else 8 * shape.n_features
        summing = Summing(
            self.work / "sums", shape.n_features, self.plan.sums_bytes(held is not None, scales_bytes)
        )
        work = self._scaled(ShardPass(reader, shape, numbering, summing), shards)
        manifest = self._manifest(counts, labels, shape, merged.class_names, table)
        for path, before in zip(source.reader.paths, stamps, strict=True):
            if stamp_of(path) != before:  # the dataset's contents are then unknown
                raise changed(path)
            size = None if before is None else before[0]
            manifest["source"].append({"name": display_name(path), "bytes": size})
        n_entries = self._write(work, shards, manifest)
        messages = [
            *counts.messages(options.value_dtype),
            *(
                f"column {name!r} is not used: {reason}"
                for name, reason in source.unused.items()
                if not name.startswith("__index_level_")  # as pandas names an index without a name
            ),
            *(f"column {name!r} is named so: {reason}" for name, reason in source.renamed.items()),
            f"{shape.n_rows:,} rows, {shape.n_features:,} features, {n_entries:,} entries",
        ]
        for message in messages:
            pool.listener.message(message)

    def _directory(self, name: str) -> Path:
        directory = self.work / name
        directory.mkdir()
        return directory

    # -- reading

    def _form(self, tasks: Sequence[Task]) -> RunFormat:
        options, bits = self.options, _UNKNOWN_BITS
        if self.source.total_bytes is not None:
            pieces = [piece for task in tasks for piece in task.pieces]
            expected = self.source.reader.expected_bytes(pieces)
            # a bucket has to fit in a quarter of the memory: records take up to three times the bytes of dense rows' text.
            # Buckets too small cost less than buckets too large, which are cut, and written again
            bits = min(int(np.ceil(np.log2(max(12 * expected / self.plan.sort_bytes, 2)))), MAX_BITS)
        seed = options.seed if options.shuffle else None
        return RunFormat(self._directory("runs"), seed, bits, options.value_dtype, self._weighted)

    def _parse(self, tasks: Sequence[Task], form: RunFormat) -> list[Parsed]:
        source, options, weights = self.source, self.options, None
        if options.weights is not None:
            name, path = str(options.weights), self.work / "weights"
            copying = (name, path, self.plan.max_line_bytes, self.plan.decoder_bytes)
            weights = Weights(name, path, *self.pool.run(copy_weights, [copying]))
        counted = sum(task.n_rows or 0 for task in tasks)  # 0 of one task alone
        if weights is not None and counted not in (0, weights.n_weights):
            raise weights.refusal(counted)
        pool = Pool(1, self.pool.listener) if source.in_memory else self.pool
        tell = pool.tell_within("parse", "B", source.total_bytes)
        parsing = Parsing(
            form,
            self.plan,
            source,
            options.scale,
            options.has_targets,
            dictionaries=self._directory("dictionaries") if self._has_strings else None,
            distinct=self._directory("distinct")
            if options.compact and options.known_indices is None
            else None,
            indices=options.known_indices,
            weights=weights,
            kept=self._directory("kept") if self._keeps else None,
            hold=self.pool.n_workers == 1,
            tell=tell,
        )
        sizes = [sum(piece.n_bytes for piece in task.pieces) for task in tasks] if tell is None else None
        found: list[Parsed] = pool.run(
            parse_task, [(parsing, task) for task in tasks], phase="parse", sizes=sizes
        )
        n_rows = sum(parsed.counts.n_rows for parsed in found)
        check_rows(n_rows, source.reader.paths, source.what)
        if weights is not None and weights.n_weights != n_rows:
            raise weights.refusal(n_rows)
        return found

    # -- numbering

    def _merge_strings(self, n_missing: Any) -> tuple[Merged, list[dict[str, Any]]]:
        """Sort the strings of all tasks; also returns how each column of a table was used."""
        directory, source, encoding = self.work / "dictionaries", self.source, self.source.encoding
        budget = (self.plan.merge_bytes, self.options.memory, self.options.workers)
        grown = encoding if source.grows else None
        merged: Merged
        (merged,) = self.pool.run(
            merge_strings, [(directory, grown, n_missing, source.reading.class_names, *budget)]
        )
        if grown is not None:
            self.encoding = encoding = grown.with_counts(
                merged.n_categories, n_missing, read_merged(directory)
            )
        if encoding is None:
            return merged, []
        word = "target" if self.options.has_targets else "label"
        notes = dict.fromkeys(self.options.drop, "--drop") | source.unused
        return merged, describe_uses(source.columns, encoding, n_missing, notes, word)

    def _number(self, counts: Counts, first_rows: Sequence[int]) -> tuple[Numbering, Shape]:
        """Find the first index and the width, and with ``compact`` the indices that occur."""
        encoding, source, options = self.encoding, self.source, self.options
        base, n_features = self._base_and_width(counts)
        numbering = Numbering(
            base,
            original=self.work / "original.npy" if options.compact else None,
            dictionaries=self.work / "dictionaries" if self._has_strings else None,
            first_rows=tuple(first_rows),
            maps_features=source.grows and encoding is not None and encoding.numbers_late,
            maps_labels=source.names_labels,
            n_static=encoding.n_static if encoding is not None and source.grows else 0,
            tail_start=0 if encoding is None else encoding.bucket_start,
        )
        if numbering.original is not None:
            if options.known_indices is None:
                merging = (self.work / "distinct", self.plan.map_bytes, numbering.original)
                (n_features,) = self.pool.run(merge_distinct, [merging])
            else:
                np.save(numbering.original, np.asarray(options.known_indices.kept))
        index_dtype = np.dtype(np.int32 if n_features <= 2**31 else np.int64)
        return numbering, Shape(counts.n_rows, n_features, base, index_dtype)

    def _base_and_width(self, counts: Counts) -> tuple[int, int]:
        options, like, encoding = self.options, self.options.training, self.encoding
        if like is not None:
            return like.indices.base, like.n_features
        if encoding is not None and not self.source.of_indices:
            if encoding.sparse is None:
                return 0, encoding.sparse_start
            # the last feature before the tail, which may be empty
            mapped = counts.max_index >= TAIL_CODES - 1
            return 0, counts.max_index + 1 + (encoding.bucket_start - TAIL_CODES if mapped else 0)
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

    def _manifest(
        self,
        counts: Counts,
        labels: LabelCounts,
        shape: Shape,
        class_names: list[str],
        table: list[dict[str, Any]],
    ) -> dict[str, Any]:
        options, like = self.options, self.options.training
        return {
            "n_features": shape.n_features,
            "index_base": shape.index_base,
            "compact": options.compact,
            **labels.manifest(like.classes if like else None, targets=options.has_targets),
            **({"class_names": class_names} if self.source.names_labels else {}),
            "weighted": self._weighted,
            "seed": options.seed,
            "shuffle": options.shuffle,
            "chunk_bytes": options.chunk_size,
            "shard_bytes": options.shard_size,
            "n_explicit_zeros": counts.n_explicit_zeros,
            "n_underflows": counts.n_underflows,
            "n_ignored": counts.n_ignored,
            "made_from": self.source.made_from,
            "source": [],
            **({"table": table} if table else {}),
        }

    # -- writing

    def _shards(self, reader: RunReader, shape: Shape) -> list[Shard]:
        """Cut the final order into chunks and shards, by the lengths of all rows."""
        ranges = in_shares([1] * reader.n_buckets, TASKS_PER_WORKER * self.pool.n_workers)
        lengths = [self.work / "runs" / f"lengths-{start:07d}" for start, _ in ranges]
        tasks = [(reader, *ends, path) for ends, path in zip(ranges, lengths, strict=True)]
        sizes = [stop - start for start, stop in ranges]
        found = self.pool.run(plan_buckets, tasks, phase="sort", unit="buckets", sizes=sizes)
        cells = [cell for bucket in found for cell in bucket]
        entry_bytes = shape.index_dtype.itemsize + self.options.value_dtype.itemsize
        chunk_rows, chunk_entries = cut_chunks(lengths, self.options.chunk_size, entry_bytes)
        row_start = np.concatenate([[0], np.cumsum(chunk_rows)])
        cell_start = np.cumsum([0, *(cell.n_rows for cell in cells)])
        shards: list[Shard] = []
        for first, stop in cut_shards(chunk_entries * entry_bytes, self.options.shard_size):
            row0, row_end = int(row_start[first]), int(row_start[stop])
            low = int(np.searchsorted(cell_start, row0, side="right")) - 1
            high = int(np.searchsorted(cell_start, row_end, side="left"))
            held = [(int(cell_start[i]), cells[i]) for i in range(low, high)]
            chunks = chunk_rows[first:stop], chunk_entries[first:stop]
            shards.append(Shard(len(shards), row0, row_end - row0, *chunks, held))
        return shards

    def _scaled(self, work: ShardPass, shards: Sequence[Shard]) -> ShardPass:
        """Return a pass with its scaling; divisors are computed over all rows in final order, which fixes their bits."""
        scaling, shape, path = self.options.scaling, work.shape, self.work / "scales.npy"
        if scaling.scales is not None:
            np.save(path, scaling.scales)
            return replace(work, scaling=replace(scaling, scales=None), scales=path)
        if scaling.scale == "none":
            return replace(work, scaling=scaling)
        self.plan.check_scales(shape.n_features, self.options)
        _, sums = self._pass(work, shards, "sum up")
        means = None
        if scaling.scale == "standard":
            means = self.work / "means.npy"
            self.pool.run(save_means, [(sums, shape.n_rows, shape.n_features, means)])
            _, sums = self._pass(replace(work, means=means), shards, "sum up")
        saving = (sums, shape.n_rows, shape.n_features, means, path)
        (digest,) = self.pool.run(save_scales, [saving])
        return replace(work, scaling=replace(scaling, digest=digest), scales=path)

    def _pass(self, work: ShardPass, shards: Sequence[Shard], phase: str) -> tuple[list[Part], Path]:
        """Pass over all shards; returns their parts, where they are written, and a file of the features' sums."""
        n_rows, out = work.shape.n_rows, self.work / "statistics"
        shutil.rmtree(work.summing.directory, ignore_errors=True)
        work.summing.directory.mkdir()
        tell = self.pool.tell_within(phase, "rows", n_rows)
        groups = [shards] if self.pool.n_workers == 1 else [[shard] for shard in shards]
        tasks = [(replace(work, tell=tell), group) for group in groups]
        sizes = [sum(shard.n_rows for shard in group) for group in groups]
        parts = self.pool.run(pass_over, tasks, phase=phase, unit="rows", sizes=sizes)
        joining, n_features = [(work.summing, out)], [work.shape.n_features]
        self.pool.run(Summing.join, joining, phase="statistics", unit="features", sizes=n_features)
        return [part for group in parts for part in group], out

    def _write(self, work: ShardPass, shards: Sequence[Shard], manifest: dict[str, Any]) -> int:
        """Write the dataset; returns the number of its entries."""
        options, folder, encoding = self.options, self.work / "dataset", self.encoding
        form: dict[str, Any] = {"index_dtype": work.shape.index_dtype, "value_dtype": options.value_dtype}
        rows, compression = row_dtype(work.shape.n_rows), options.compression
        part = partial(PartWriter, folder, row_dtype=rows, compression=compression, **form)
        folder.mkdir()
        parts, sums = self._pass(replace(work, part=part), shards, "write")
        indices = work.numbering.indices()
        figures = (statistics_of(found, work.shape.n_rows) for found in read_sums(sums))
        features = named_features(figures, indices, encoding)
        fields = {
            **{name: dtype.name for name, dtype in form.items()},
            **manifest,
            "features": write_table(
                folder / "features.parquet", FEATURES, features, compression, ascending=("feature", "index")
            ),
        }
        if work.scaling.changes_values:
            scaling = work.whole_scaling()
            fields["scaling"] = scaling.to_json()
            if scaling.scales is not None:
                blocks = scale_blocks(scaling.scales)
                fields["scales"] = write_table(folder / SCALES_FILE, SCALES, blocks, compression)
        if (kept := indices.kept) is not None:
            groups = range(0, kept.size, GROUP_FEATURES)
            blocks = ({"index": kept[start : start + GROUP_FEATURES]} for start in groups)
            fields["indices"] = write_table(folder / INDICES_FILE, INDICES, blocks, compression)
        if encoding is not None:
            fields["encoding"] = encoding.record()
            if encoding.has_categories:
                encoding.save(folder / CATEGORIES_FILE)
                fields["categories"] = file_record(folder / CATEGORIES_FILE)
        if self._keeps:
            join_kept(sorted((self.work / "kept").iterdir()), folder / KEPT_FILE)
            fields["kept"] = file_record(folder / KEPT_FILE)
        return int(write_dataset(folder, parts, fields, compression)["n_entries"])

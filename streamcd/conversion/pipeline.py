"""Stages of a conversion, by one process or several, to the same dataset, bit for bit.

Ranges of the source are parsed into runs sorted by leading key bits; the rows' lengths in final order determine where
chunks and shards begin; then whole shards are gathered, to sum up their features where these are scaled, and to be
written. None of it depends on the assignment of tasks to workers. One worker alone takes all of the source as one task,
and all shards as another, and keeps the rows in memory if they fit. For several, the rows of every range are counted
first, so that each worker knows the number of rows before its own.

A source (`sources.Source`) provides pieces of itself, and batches of the rows of pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import DataError
from ..core.process_pool import TASKS_PER_WORKER, Pool, in_shares
from ..dataset.kept_columns import KEPT_FILE, join_kept
from ..dataset.manifests import INDICES_FILE, SCALES_FILE
from ..dataset.scaling import GROUP_FEATURES, scale_blocks
from ..dataset.schema import INDICES, SCALES
from ..dataset.writer import Part, PartWriter, file_record, write_dataset, write_features, write_table
from ..kernels.tables import TAIL_CODES
from ..models.encoding import CATEGORIES_FILE
from .byte_sources import check_rows, display_name
from .external_shuffle import MAX_BITS, RunFormat, RunReader
from .feature_statistics import LabelCounts, Summing, read_statistics, save_means, save_scales
from .libsvm import copy_weights
from .numbering import Merged, Numbering, merge_strings, read_merged
from .parsing import Parsed, Parsing, Task, Weights, changed, merge_distinct, parse_task, stamp_of
from .plan import Options, Plan
from .rows import Counts
from .shard_writing import Shape, Shard, ShardPass, cut_chunks, cut_shards, pass_over, plan_buckets
from .sources import Source, counted_pieces
from .table_columns import describe_uses

_UNKNOWN_BITS = 10  # of keys, that make buckets where the size of the source is not known


@dataclass
class Conversion:
    """One conversion; `plan` is a worker's."""

    options: Options
    plan: Plan
    source: Source
    work: Path
    pool: Pool

    def __post_init__(self) -> None:
        self.stamps = [stamp_of(path) for path in self.source.reader.paths]
        self.encoding = encoding = self.source.encoding
        self._weighted = self.options.weights is not None or self.source.weighted
        self._keeps = encoding is not None and bool(encoding.kept)
        self._has_strings = self.source.names_labels or (encoding is not None and bool(encoding.names))
        self.columns: list[dict[str, Any]] = []  # of a table, and how each was used

    def run(self) -> None:
        """Write the dataset to ``work / "dataset"``."""
        tasks = self._tasks()
        form = self._form(tasks)
        found = self._parse(tasks, form)
        counts = Counts()
        for one in found:
            counts.add(one.counts)
        merged = self._merge_strings(counts.n_missing)
        numbering = self._numbering(tasks)
        parsed = Parsed(counts, self._labels(found, numbering), found[-1].held)
        messages = parsed.counts.messages(self.options.value_dtype)
        numbering, shape = self._number(numbering, parsed)
        reader = partial(RunReader, form, self.plan.rows_bytes, parsed.counts.is_wide, parsed.held)
        shards = self._shards(reader, shape)
        summing = self._summing("values", shape, parsed)
        plain = ShardPass(reader, shape, numbering, summing)
        scaling = self._scaling(plain, shards, parsed)
        manifest = self._manifest(parsed, shape, merged.class_names)
        n_entries = self._write(replace(plain, **scaling), shards, manifest)
        messages += [
            f"column {name!r} is not used: {reason}"
            for name, reason in self.source.unused.items()
            if not name.startswith("__index_level_")  # as pandas names an index without a name
        ]
        messages += [f"column {name!r} is named so: {reason}" for name, reason in self.source.renamed.items()]
        size = f"{shape.n_rows:,} rows, {shape.n_features:,} features, {n_entries:,} entries"
        for message in [*messages, size]:
            self.pool.listener.message(message)

    # -- reading

    def _tasks(self) -> list[Task]:
        """Return the whole source as one task for one worker; for several, pieces of it with their rows counted."""
        source = self.source
        if self.pool.n_workers == 1 or source.in_memory:
            return [Task(0, source.reader.pieces())]
        pieces = counted_pieces(source, TASKS_PER_WORKER * self.pool.n_workers, self.pool)
        return [
            Task(number, [piece], *start, counted.n_rows)
            for number, (piece, counted, start) in enumerate(pieces)
        ]

    def _form(self, tasks: Sequence[Task]) -> RunFormat:
        options = self.options
        expected = self.source.reader.expected_bytes([piece for task in tasks for piece in task.pieces])
        bits = _UNKNOWN_BITS
        if expected is not None:
            # a bucket has to fit in a quarter of the memory: records take up to three times the bytes of dense rows' text.
            # Buckets too small cost less than buckets too large, which are cut, and written again
            bits = min(int(np.ceil(np.log2(max(12 * expected / self.plan.sort_bytes, 2)))), MAX_BITS)
        seed = options.seed if options.shuffle else None
        return RunFormat(self._directory("runs"), seed, bits, options.value_dtype, self._weighted)

    def _directory(self, name: str) -> Path:
        directory = self.work / name
        directory.mkdir()
        return directory

    def _weights(self, tasks: Sequence[Task]) -> Weights | None:
        if self.options.weights is None:
            return None
        name, path = str(self.options.weights), self.work / "weights"
        copying = (name, path, self.plan.max_line_bytes, self.plan.decoder_bytes)
        (n_weights,) = self.pool.run(copy_weights, [copying])
        weights = Weights(name, path, n_weights)
        counted = sum(task.n_rows or 0 for task in tasks)  # 0 of one task alone
        if counted not in (0, n_weights):
            raise weights.refusal(counted)
        return weights

    def _parse(self, tasks: Sequence[Task], form: RunFormat) -> list[Parsed]:
        source = self.source
        pool = Pool(1, self.pool.listener) if source.in_memory else self.pool
        tell = pool.tell_within("parse", "B", source.reader.total_bytes)
        weights = self._weights(tasks)
        parsing = Parsing(
            form,
            self.plan,
            source,
            self.options.scale,
            self.options.has_targets,
            dictionaries=self._directory("dictionaries") if self._has_strings else None,
            distinct=self._directory("distinct")
            if self.options.compact and self.options.known_indices is None
            else None,
            indices=self.options.known_indices,
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

    def _labels(self, found: Sequence[Parsed], numbering: Numbering) -> LabelCounts:
        """Join the labels of all tasks; names of classes already have their final numbers."""
        labels = LabelCounts(None if self.options.has_targets else {})
        for number, parsed in enumerate(found):
            own = parsed.labels
            labels.merge(own.renumbered(numbering.classes_of(number)) if numbering.maps_labels else own)
        return labels

    # -- numbering

    def _merge_strings(self, n_missing: Any) -> Merged:
        """Sort the strings of all tasks."""
        if not self._has_strings:
            return Merged([], [])
        directory, source, encoding = self.work / "dictionaries", self.source, self.source.encoding
        budget = (self.plan.merge_bytes, self.options.memory, self.options.workers)
        grown = encoding if source.grows else None
        merged: Merged
        (merged,) = self.pool.run(merge_strings, [(directory, grown, n_missing, source.class_names, *budget)])
        if grown is not None:
            self.encoding = grown.with_counts(merged.n_categories, n_missing, read_merged(directory))
        if self.encoding is not None:
            word = "target" if self.options.has_targets else "label"
            notes = dict.fromkeys(self.options.drop, "--drop") | source.unused
            self.columns = describe_uses(source.columns, self.encoding, n_missing, notes, word)
        return merged

    def _numbering(self, tasks: Sequence[Task]) -> Numbering:
        encoding, source = self.encoding, self.source
        return Numbering(
            0,
            dictionaries=self.work / "dictionaries" if self._has_strings else None,
            first_rows=tuple(task.first_row for task in tasks),
            maps_features=source.grows and encoding is not None and encoding.numbers_late,
            maps_labels=source.names_labels,
            n_static=encoding.n_static if encoding is not None and source.grows else 0,
            tail_start=0 if encoding is None else encoding.bucket_start,
        )

    def _number(self, numbering: Numbering, parsed: Parsed) -> tuple[Numbering, Shape]:
        """Find the first index and the width, and with ``compact`` the indices that occur."""
        base, n_features = self._base_and_width(parsed.counts)
        numbering = replace(numbering, index_base=base)
        if self.options.compact:
            numbering = replace(numbering, original=self.work / "original.npy")
            known = self.options.known_indices
            if known is None:
                merging = (self.work / "distinct", self.plan.map_bytes, numbering.original)
                (n_features,) = self.pool.run(merge_distinct, [merging])
            else:
                np.save(self.work / "original.npy", np.asarray(known.kept))
        return numbering, Shape(parsed.counts.n_rows, n_features, base)

    def _base_and_width(self, counts: Counts) -> tuple[int, int]:
        options, like, encoding = self.options, self.options.training, self.encoding
        if like is not None:
            return like.indices.base, like.n_features
        if encoding is not None and not self.source.of_indices:
            if encoding.sparse is None:
                return 0, encoding.sparse_start
            mapped = (
                counts.max_index >= TAIL_CODES - 1
            )  # the last feature before the tail, which may be empty
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
            "chunk_bytes": options.chunk_size,
            "shard_bytes": options.shard_size,
            "n_explicit_zeros": counts.n_explicit_zeros,
            "n_underflows": counts.n_underflows,
            "n_ignored": counts.n_ignored,
            "made_from": self.source.made_from,
            "source": self._unchanged_sources(),
            **({"table": self.columns} if self.columns else {}),
        }

    def _unchanged_sources(self) -> list[dict[str, Any]]:
        """Describe the sources; refused if one changed while it was read: the dataset's contents are then unknown."""
        sources = []
        for path, before in zip(self.source.reader.paths, self.stamps, strict=True):
            if stamp_of(path) != before:
                raise changed(path)
            sources.append({"name": display_name(path), "bytes": None if before is None else before[0]})
        return sources

    # -- writing

    def _shards(self, reader: partial[RunReader], shape: Shape) -> list[Shard]:
        """Cut the final order into chunks and shards, by the lengths of all rows."""
        with reader() as opened:
            n_buckets = opened.n_buckets
        ranges = in_shares([1] * n_buckets, TASKS_PER_WORKER * self.pool.n_workers)
        lengths = [self.work / "runs" / f"lengths-{start:07d}" for start, _ in ranges]
        tasks = [(reader, *ends, path) for ends, path in zip(ranges, lengths, strict=True)]
        sizes = [stop - start for start, stop in ranges]
        cells = self.pool.run(plan_buckets, tasks, phase="sort", unit="buckets", sizes=sizes)
        entry_bytes = shape.index_dtype.itemsize + self.options.value_dtype.itemsize
        chunk_rows, chunk_entries = cut_chunks(lengths, self.options.chunk_size, entry_bytes)
        row_start = np.concatenate([[0], np.cumsum(chunk_rows)])
        flat = [cell for bucket in cells for cell in bucket]
        cell_start = np.cumsum([0, *(cell.n_rows for cell in flat)])
        shards: list[Shard] = []
        for first, stop in cut_shards(chunk_entries * entry_bytes, self.options.shard_size):
            row0, row_end = int(row_start[first]), int(row_start[stop])
            low = int(np.searchsorted(cell_start, row0, side="right")) - 1
            high = int(np.searchsorted(cell_start, row_end, side="left"))
            held = [(int(cell_start[i]), flat[i]) for i in range(low, high)]
            shards.append(Shard(len(shards), row0, chunk_rows[first:stop], chunk_entries[first:stop], held))
        return shards

    def _summing(self, name: str, shape: Shape, parsed: Parsed) -> Summing:
        scales_bytes = 0 if self.options.scale == "none" else 8 * shape.n_features
        room = self.plan.sums_bytes(parsed.held is not None, scales_bytes)
        return Summing(self._directory(f"sums-{name}"), shape.n_features, room)

    def _scaling(self, plain: ShardPass, shards: Sequence[Shard], parsed: Parsed) -> dict[str, Any]:
        """Return the scaling of a pass; divisors are computed over all rows in final order, which fixes their bits."""
        scaling, shape = self.options.scaling, plain.shape
        path = self.work / "scales.npy"
        if scaling.scales is not None:
            np.save(path, scaling.scales)
            return {"scaling": replace(scaling, scales=None), "scales": path}
        if self.options.scale == "none":
            return {"scaling": scaling}
        self.plan.check_scales(shape.n_features, self.options)
        statistics, means = self._sum_up(plain, shards), None
        if self.options.scale == "standard":
            means = self.work / "means.npy"
            self.pool.run(save_means, [(statistics, shape.n_features, means)])
            summing = self._summing("deviations", shape, parsed)
            statistics = self._sum_up(replace(plain, means=means, summing=summing), shards)
        saving = (statistics, shape.n_features, shape.n_rows, means, path)
        (digest,) = self.pool.run(save_scales, [saving])
        summing = self._summing("scaled", shape, parsed)
        return {"scaling": replace(scaling, digest=digest), "scales": path, "summing": summing}

    def _sum_up(self, work: ShardPass, shards: Sequence[Shard]) -> Path:
        """Return the file of the statistics of the features, from a pass that writes no rows."""
        self._pass(work, shards, "sum up")
        return self._statistics(work)

    def _pass(self, work: ShardPass, shards: Sequence[Shard], phase: str) -> Iterator[Part]:
        tell = self.pool.tell_within(phase, "rows", work.shape.n_rows)
        groups = [shards] if self.pool.n_workers == 1 else [[shard] for shard in shards]
        tasks = [(replace(work, tell=tell), group) for group in groups]
        sizes = [sum(shard.n_rows for shard in group) for group in groups]
        parts = self.pool.run(pass_over, tasks, phase=phase, unit="rows", sizes=sizes)
        return (written for group in parts for written in group)

    def _statistics(self, work: ShardPass) -> Path:
        out = work.summing.directory / "statistics.all"
        joining = [(work.summing, work.shape.n_rows, out)]
        self.pool.run(
            Summing.join, joining, phase="statistics", unit="features", sizes=[work.shape.n_features]
        )
        return out

    def _write(self, work: ShardPass, shards: Sequence[Shard], manifest: dict[str, Any]) -> int:
        """Write the dataset; returns the number of its entries."""
        options, folder, encoding = self.options, self.work / "dataset", self.encoding
        form: dict[str, Any] = {"index_dtype": work.shape.index_dtype, "value_dtype": options.value_dtype}
        part = partial(
            PartWriter, folder, row_dtype=work.shape.row_dtype, compression=options.compression, **form
        )
        folder.mkdir()
        parts = list(self._pass(replace(work, part=part), shards, "write"))
        indices, statistics = work.numbering.indices(), read_statistics(self._statistics(work))
        fields = {
            **{name: dtype.name for name, dtype in form.items()},
            "weighted": self._weighted,
            **manifest,
            "features": write_features(folder, statistics, indices, encoding, options.compression),
        }
        if work.scaling.changes_values:
            scaling = work.whole_scaling()
            fields["scaling"] = scaling.to_json()
            if scaling.scales is not None:
                blocks = scale_blocks(scaling.scales)
                fields["scales"] = write_table(folder / SCALES_FILE, SCALES, blocks, options.compression)
        if (kept := indices.kept) is not None:
            groups = range(0, kept.size, GROUP_FEATURES)
            blocks = ({"index": kept[start : start + GROUP_FEATURES]} for start in groups)
            fields["indices"] = write_table(folder / INDICES_FILE, INDICES, blocks, options.compression)
        if encoding is not None:
            fields["encoding"] = encoding.record()
            if encoding.has_categories:
                encoding.save(folder / CATEGORIES_FILE)
                fields["categories"] = file_record(folder / CATEGORIES_FILE)
        if self._keeps:
            join_kept(sorted((self.work / "kept").iterdir()), folder / KEPT_FILE)
            fields["kept"] = file_record(folder / KEPT_FILE)
        return int(write_dataset(folder, parts, fields, options.compression)["n_entries"])

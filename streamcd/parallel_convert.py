"""Conversion by several processes, to the same dataset, bit for bit, as by one.

Pieces of the source are counted, so that every row's place is known; parsed, into runs sorted by leading key bits; then
the rows' lengths in final order tell where chunks and shards begin, and whole shards are written, each by one worker.
Statistics are made by ranges of features, every feature's in the order of the rows. None of it depends on which worker
does what.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from . import sources
from .chunking import ChunkRule
from .convert import Conversion, Pieces, Plan, Shape, read_entries, stored_chunks, stored_values
from .dataset import open_dataset
from .distinct import DistinctFeatures, LabelCounts
from .errors import DataError
from .features import MAX_RANGES, STATISTICS_BYTES, Entries, RangeStatistics, feature_statistics
from .parallel import TASKS_PER_WORKER, Workers, in_shares
from .rowweights import RowWeights
from .runs import MAX_BITS, Cell, RunFormat, RunReader, RunWriter
from .scaling import Scaling, feature_means, max_abs_scales, scales_digest, standard_scales
from .shuffle import Rows, concatenate
from .sources import Piece, cut_into_pieces, piece_starts
from .svmlight import Counts, check_rows, count_piece, iterate_piece
from .writer import PartWriter, shard_is_full

_BLOCK_BYTES = (
    1 << 20
)  # of text; what a piece needs in memory is taken anew for every piece, and should be little
_WEIGHTS_AT_A_TIME = _LENGTHS_AT_A_TIME = 1 << 16


@dataclass(frozen=True)
class _Text:
    """What workers have to know to parse."""

    form: RunFormat
    plan: Plan
    index_base: int | None
    n_features: int | None
    ignore_beyond: bool
    weights: Path | None
    distinct: Path | None


@dataclass(frozen=True)
class _Shards:
    """What workers have to know to write shards."""

    form: RunFormat
    n_runs: int
    sort_bytes: int
    shape: Shape  # without the indices of `compact`, which `original` names
    original: Path | None
    wide: bool
    dataset: Path
    compression: str
    scaling: Scaling  # without the divisors, which `scales` names
    scales: Path | None
    sums: (
        Path | None
    )  # where the sums of every shard's features go; None where those of all do not fit in memory

    def whole_scaling(self) -> Scaling:
        """The scaling, with its divisors."""
        return self.scaling if self.scales is None else replace(self.scaling, scales=np.load(self.scales))

    def reader(self) -> RunReader:
        """What reads the runs."""
        return RunReader(self.form, self.n_runs, self.sort_bytes, self.wide)

    def part(self, number: int, row0: int) -> PartWriter:
        """What writes a shard."""
        return PartWriter(
            self.dataset,
            number,
            row0,
            index_dtype=self.shape.index_dtype,
            value_dtype=self.form.value_dtype,
            row_dtype=self.shape.row_dtype,
            compression=self.compression,
        )


def _sums_bytes(plan: Plan) -> int:
    """Memory for the sums of a shard's features while it is written: no text is read any more, and less is sorted."""
    return 3 * plan.statistics_bytes - plan.map_bytes


def _rows_beside_sums(plan: Plan) -> int:
    """Memory for rows then; buckets are a quarter of `sort_bytes` at most, unless the keys' hash is very uneven."""
    return plan.sort_bytes // 4


@dataclass(frozen=True)
class _Shard:
    """One shard: its chunks, and the cells with their first rows that hold its rows."""

    number: int
    row0: int
    chunk_rows: np.ndarray
    cells: list[tuple[int, Cell]]

    @property
    def n_rows(self) -> int:
        return int(self.chunk_rows.sum())


# ---------------------------------------------------------------------------------------------------------------------
# Tasks


def _count(plan: Plan, piece: Piece) -> tuple[int, int]:
    return count_piece(piece, block_bytes=_block_bytes(plan), max_line_bytes=plan.max_line_bytes)


def _block_bytes(plan: Plan) -> int:
    return min(plan.block_bytes, _BLOCK_BYTES)


def _copy_weights(path: str, n_rows: int, out: Path) -> None:
    """Weights as numbers of 8 bytes, so that every worker can read those of its rows."""
    weights = RowWeights(path)
    with open(out, "wb") as file:
        for start in range(0, n_rows, _WEIGHTS_AT_A_TIME):
            weights.take(min(_WEIGHTS_AT_A_TIME, n_rows - start)).tofile(file)
    weights.check_end(n_rows)


def _parse(text: _Text, number: int, piece: Piece, place0: int, line0: int) -> tuple[Counts, LabelCounts]:
    """Write the rows of a piece as a run."""
    counts, labels = Counts(), LabelCounts()
    distinct = DistinctFeatures(text.plan.map_bytes) if text.distinct is not None else None
    run = RunWriter(text.form, number, text.plan.sort_bytes)
    for block in iterate_piece(
        piece,
        place0=place0,
        line0=line0,
        value_dtype=text.form.value_dtype,
        index_base=text.index_base,
        n_features=text.n_features,
        ignore_beyond=text.ignore_beyond,
        block_bytes=_block_bytes(text.plan),
        max_line_bytes=text.plan.max_line_bytes,
    ):
        counts = block.counts
        n_rows = len(block.label)
        labels.add(block.label)
        if distinct is not None:
            distinct.add(block.index)
        place = np.arange(block.place0, block.place0 + n_rows)
        weight = None
        if text.weights is not None:
            weight = np.fromfile(text.weights, count=n_rows, offset=8 * block.place0)
            if weight.size < n_rows:  # more rows than were counted
                raise DataError(f"{piece.path}: changed while it was read; convert it again")
        run.append(
            Rows(place, block.label, weight, block.indptr, block.index, block.value),
            counts.is_wide,
        )
    run.close()
    if distinct is not None and text.distinct is not None:
        np.save(text.distinct / f"{number:07d}.npy", distinct.merge())
    return counts, labels


def _merge_distinct(directory: Path, n_pieces: int, n_bytes: int, out: Path) -> int:
    """Write the indices that occur in any piece; returns their number."""
    distinct = DistinctFeatures(n_bytes)
    for number in range(n_pieces):
        distinct.add(np.load(directory / f"{number:07d}.npy"))
    merged = distinct.merge()
    np.save(out, merged)
    return int(merged.size)


def _plan_buckets(shards: _Shards, start: int, stop: int, lengths: Path) -> list[Cell]:
    """Cut buckets into cells, and write the entries of their rows in final order."""
    with shards.reader() as reader, open(lengths, "wb") as file:
        cells = [cell for bucket in range(start, stop) for cell in reader.cells(bucket)]
        for cell in cells:
            reader.lengths(cell).tofile(file)
    return cells


_Written = tuple[dict[str, Any], "array[int]", np.ndarray]
"""What `DatasetWriter.add_part` takes."""


def _write_shard(shards: _Shards, shard: _Shard) -> _Written:
    """Write a shard from the runs."""
    shape = shards.shape
    if shards.original is not None:
        shape = replace(shape, original=np.load(shards.original, mmap_mode="r"))
    with shards.reader() as reader:
        chunks = (shape.numbered(chunk) for chunk in _chunks(reader, shard))
        return _encode(shards, shard.number, shards.part(shard.number, shard.row0), chunks)


def _rescale_shard(shards: _Shards, unscaled: Path, number: int) -> _Written:
    """Write a shard of a dataset that is there without scaling once more, scaled."""
    dataset = open_dataset(unscaled)
    held = np.flatnonzero(dataset.chunk_part == number)
    chunks = stored_chunks(dataset, held.tolist())
    written = _encode(shards, number, shards.part(number, int(dataset.row_start[held[0]])), chunks)
    dataset.close()
    return written


def _encode(shards: _Shards, number: int, part: PartWriter, chunks: Iterator[Rows]) -> _Written:
    scaling, n_features = shards.whole_scaling(), shards.shape.n_features
    statistics = None if shards.sums is None else RangeStatistics(0, n_features)
    # one thread gathers, the other encodes: where there are fewer shards left than processors, none of these is idle
    with ThreadPoolExecutor(1) as encoder:
        written: Future[None] | None = None
        for chunk in chunks:
            value = chunk.value
            if scaling.changes_values:
                value = stored_values(
                    scaling.apply(chunk.indptr, chunk.index, value, n_features), value.dtype
                )
            if written is not None:
                written.result()
            written = encoder.submit(
                part.write_chunk, chunk.place, chunk.label, chunk.weight, chunk.indptr, chunk.index, value
            )
            if statistics is not None:
                statistics.add(number, chunk.index, value)
        if written is not None:
            written.result()
    if shards.sums is not None and statistics is not None:
        statistics.save_shard(_sums_path(shards.sums, number))
    return part.close(), part.chunk_table, part.row_norms


def _chunks(reader: RunReader, shard: _Shard) -> Iterator[Rows]:
    """The chunks of a shard, gathered from its cells."""
    sizes = iter(shard.chunk_rows.tolist())
    missing = next(sizes)
    pending: list[Rows] = []
    for row0, cell in shard.cells:
        start = max(shard.row0 - row0, 0)
        end = min(shard.row0 + shard.n_rows - row0, cell.n_rows)
        rows, order = reader.load(cell)
        while start < end:
            stop = min(start + missing, end)
            pending.append(rows.take(order[start:stop]))
            missing -= stop - start
            start = stop
            if not missing:
                yield concatenate(pending)
                pending, missing = [], next(sizes, 0)


def _entries(dataset: Path, means: Path | None) -> Entries:
    """All entries, less their features' means where these are given."""
    if means is None:
        return read_entries(dataset)
    mean = np.load(means)
    return ((shard, feature, value - mean[feature]) for shard, feature, value in read_entries(dataset))


def _sums_path(directory: Path, shard: int) -> Path:
    return directory / f"shard-{shard:07d}"


def _joined_statistics(sums: list[Path], start: int, stop: int, n_rows: int, out: Path) -> None:
    """Statistics of a range of features, from the sums of every shard."""
    statistics = RangeStatistics(start, stop)
    for path in sums:
        statistics.add_saved_shard(path)
    _save_pieces(statistics.columns(n_rows), out)


def _range_statistics(
    dataset: Path, means: Path | None, start: int, stop: int, n_rows: int, out: Path
) -> None:
    """Statistics of a range of features, by reading all entries."""
    statistics = RangeStatistics(start, stop)
    for entries in _entries(dataset, means):
        statistics.add(*entries)
    _save_pieces(statistics.columns(n_rows), out)


def _all_statistics(
    dataset: Path,
    means: Path | None,
    n_features: int,
    n_rows: int,
    memory_bytes: int,
    scratch: Path,
    out: Path,
) -> None:
    """Statistics of few features in a wide space, by one worker."""
    pieces = feature_statistics(
        partial(_entries, dataset, means),
        n_features=n_features,
        n_rows=n_rows,
        memory_bytes=memory_bytes,
        scratch=scratch,
    )
    _save_pieces(pieces, out)


def _save_means(unscaled: Path, out: Path) -> None:
    dataset = open_dataset(unscaled)
    np.save(out, feature_means(dataset.read_features(), dataset.n_features))


def _save_scales(unscaled: Path, means: Path | None, statistics: Sequence[Path], out: Path) -> str:
    """Write the divisors of the features; returns their digest."""
    dataset = open_dataset(unscaled)
    if means is None:
        scales = max_abs_scales(dataset.read_features(), dataset.n_features)
    else:
        deviations = (piece for path in statistics for piece in _saved_pieces(path))
        scales = standard_scales(deviations, np.load(means), dataset.n_rows)
    np.save(out, scales)
    return scales_digest(scales)


def _save_pieces(pieces: Pieces, path: Path) -> None:
    with open(path, "wb") as file:
        for piece in pieces:
            np.save(file, np.array(len(piece)))
            for name, column in piece.items():
                np.save(file, np.array(name))
                np.save(file, column)


def _saved_pieces(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    size = path.stat().st_size
    with open(path, "rb") as file:
        while file.tell() < size:
            n_columns = int(np.load(file))
            yield {str(np.load(file)): np.load(file) for _ in range(n_columns)}


# ---------------------------------------------------------------------------------------------------------------------
# Handing out


@dataclass
class ParallelConversion(Conversion):
    """One conversion by several processes; `plan` is a worker's."""

    workers: Workers

    def run(self) -> None:
        options = self.options
        pieces = self._cut()
        self._places(pieces)
        form = self._form(pieces)
        counts, labels = self._parse_pieces(pieces, form)
        base, n_features = self._base_and_width(counts)
        original: Path | None = None
        if options.compact:
            original = self.work / "original.npy"
            tasks = [(self.work / "distinct", len(pieces), self.plan.map_bytes, original)]
            (n_features,) = self.workers.run(_merge_distinct, tasks)
        shape = Shape(counts.n_rows, n_features, base, None)
        sums = self._sums("dataset", shape)
        shards = _Shards(
            form,
            len(pieces),
            self.plan.sort_bytes if sums is None else _rows_beside_sums(self.plan),
            shape,
            original,
            counts.is_wide,
            self.work / "dataset",
            options.compression,
            replace(self._scaling(), scales=None),
            self._given_scales(),
            sums,
        )
        self._write_dataset(shards, self._manifest(counts, labels, shape))
        self._tell(counts, n_features)

    # -- reading

    def _cut(self) -> list[Piece]:
        paths = self.options.paths
        total = sum(Piece(path).n_bytes for path in paths)
        size = total // (TASKS_PER_WORKER * self.workers.n_workers)
        return cut_into_pieces(paths, min(max(size, sources.LEAST_PIECE_BYTES), sources.MOST_PIECE_BYTES))

    def _places(self, pieces: Sequence[Piece]) -> None:
        """Count rows and lines before every piece."""
        sizes = [piece.n_bytes for piece in pieces]
        tasks = [(self.plan, piece) for piece in pieces]
        found = self.workers.run(_count, tasks, phase="count", sizes=sizes)
        self._starts = piece_starts(pieces, found)
        self._n_rows = sum(n_rows for n_rows, _ in found)
        check_rows(self._n_rows, self.options.paths)

    def _form(self, pieces: Sequence[Piece]) -> RunFormat:
        options = self.options
        (self.work / "runs").mkdir()
        # text that is compressed may grow tenfold; buckets too small cost less than buckets too large
        expected = sum((1 if piece.stop is not None else 8) * piece.n_bytes for piece in pieces)
        bits = int(np.ceil(np.log2(max(4 * expected / self.plan.sort_bytes, 2))))
        seed = options.seed if options.shuffle else None
        return RunFormat(
            self.work / "runs", seed, min(bits, MAX_BITS), options.value_dtype, options.weights is not None
        )

    def _parse_pieces(self, pieces: Sequence[Piece], form: RunFormat) -> tuple[Counts, LabelCounts]:
        options, like = self.options, self.options.like
        text = _Text(
            form,
            self.plan,
            like.index_base if like else options.index_base,
            like.n_features if like else options.n_features,
            like is not None,
            None if options.weights is None else self.work / "weights",
            self.work / "distinct" if options.compact else None,
        )
        if text.weights is not None:
            self.workers.run(_copy_weights, [(options.weights, self._n_rows, text.weights)])
        if text.distinct is not None:
            text.distinct.mkdir()
        tasks = [(text, number, piece, *self._starts[number]) for number, piece in enumerate(pieces)]
        sizes = [piece.n_bytes for piece in pieces]
        ends = [*(row for row, _ in self._starts[1:]), self._n_rows]
        counts, labels = Counts(), LabelCounts()
        for number, (later, more_labels) in enumerate(
            self.workers.run(_parse, tasks, phase="parse", sizes=sizes)
        ):
            counts.add(later)
            labels.merge(more_labels)
            if counts.n_rows != ends[number]:
                raise DataError(f"{pieces[number].path}: changed while it was read; convert it again")
        return counts, labels

    # -- writing

    def _given_scales(self) -> Path | None:
        like = self.options.like
        if like is None or like.scaling.scales is None:
            return None
        np.save(self.work / "scales.npy", like.scaling.scales)
        return self.work / "scales.npy"

    def _write_dataset(self, shards: _Shards, manifest: dict[str, Any]) -> None:
        plan = self._shards(shards)
        sizes = [shard.n_rows for shard in plan]
        if self.options.scale == "none":
            tasks = [(shards, shard) for shard in plan]
            self._write_parts(_write_shard, tasks, sizes, shards, manifest)
            return
        # the divisors are known when all rows have been seen: in their final order, so that the bits follow from it
        self.plan.scales_bytes(shards.shape.n_features)
        unscaled = replace(
            shards,
            dataset=self.work / "unscaled",
            scaling=Scaling(),
            scales=None,
            sums=self._sums("unscaled", shards.shape),
        )
        self._write_parts(_write_shard, [(unscaled, shard) for shard in plan], sizes, unscaled, manifest)
        scaled = self._scaled(shards, unscaled.dataset)
        tasks_again = [(scaled, unscaled.dataset, shard.number) for shard in plan]
        self._write_parts(_rescale_shard, tasks_again, sizes, scaled, manifest)

    def _write_parts(
        self,
        function: Callable[..., _Written],
        tasks: Sequence[tuple[Any, ...]],
        sizes: Sequence[int],
        shards: _Shards,
        manifest: dict[str, Any],
    ) -> None:
        shape, name = shards.shape, shards.dataset.name
        writer = self._writer(name, shape)
        phase = "write" if name == "dataset" else "write unscaled"
        for written in self.workers.run(function, tasks, phase=phase, unit="rows", sizes=sizes):
            writer.add_part(*written)
        if shards.scaling.changes_values:
            writer.write_scaling(shards.whole_scaling())
        if shards.sums is None:
            statistics = self._statistics_files(shards.dataset, None, shape)
        else:
            statistics = self._joined_statistics(shards.sums, len(tasks), shape)
        pieces: Pieces = (piece for path in statistics for piece in _saved_pieces(path))
        if shards.original is not None:
            shape = replace(shape, original=np.load(shards.original, mmap_mode="r"))
        self._write_features(writer, pieces, shape)
        writer.close(**manifest)

    def _scaled(self, shards: _Shards, unscaled: Path) -> _Shards:
        """The same shards, with divisors made from a dataset without scaling."""
        means, statistics, out = None, [], self.work / "scales.npy"
        if self.options.scale == "standard":
            means = self.work / "means.npy"
            self.workers.run(_save_means, [(unscaled, means)])
            statistics = self._statistics_files(unscaled, means, shards.shape)
        (digest,) = self.workers.run(_save_scales, [(unscaled, means, statistics, out)])
        return replace(shards, scaling=replace(shards.scaling, digest=digest), scales=out)

    def _shards(self, shards: _Shards) -> list[_Shard]:
        """Cut the final order into chunks and shards, by the lengths of all rows."""
        n_buckets = shards.form.n_buckets if shards.form.seed is not None else shards.n_runs
        ranges = in_shares([1] * n_buckets, TASKS_PER_WORKER * self.workers.n_workers)
        lengths = [self.work / "runs" / f"lengths-{start:07d}" for start, _ in ranges]
        tasks = [(shards, *ends, path) for ends, path in zip(ranges, lengths, strict=True)]
        sizes = [stop - start for start, stop in ranges]
        cells = self.workers.run(_plan_buckets, tasks, phase="sort", unit="buckets", sizes=sizes)
        entry_bytes = shards.shape.index_dtype.itemsize + self.options.value_dtype.itemsize
        chunk_rows, chunk_entries = _cut_chunks(lengths, self.options.chunk_bytes, entry_bytes)
        row_start = np.concatenate([[0], np.cumsum(chunk_rows)])
        flat = [cell for bucket in cells for cell in bucket]
        cell_start = np.cumsum([0, *(cell.n_rows for cell in flat)])
        plan: list[_Shard] = []
        for first, stop in _cut_shards(chunk_entries * entry_bytes, self.options.shard_bytes):
            row0, row_end = int(row_start[first]), int(row_start[stop])
            low = int(np.searchsorted(cell_start, row0, side="right")) - 1
            high = int(np.searchsorted(cell_start, row_end, side="left"))
            held = [(int(cell_start[i]), flat[i]) for i in range(low, high)]
            plan.append(_Shard(len(plan), row0, chunk_rows[first:stop], held))
        return plan

    def _sums(self, name: str, shape: Shape) -> Path | None:
        """A directory for the sums of every shard, where those of all features fit in a worker beside the rows."""
        each = STATISTICS_BYTES + (0 if self.options.scale == "none" else 8)
        if shape.n_features * each > _sums_bytes(self.plan):
            return None
        directory = self.work / f"sums-{name}"
        directory.mkdir()
        return directory

    def _joined_statistics(self, sums: Path, n_shards: int, shape: Shape) -> list[Path]:
        """Files with the statistics of ranges of features, ascending, from the sums of every shard."""
        paths = [_sums_path(sums, number) for number in range(n_shards)]
        return self._by_ranges(
            _joined_statistics, (paths,), sums.with_name(f"joined-{sums.name}"), self.workers.n_workers, shape
        )

    def _by_ranges(
        self,
        function: Callable[..., None],
        arguments: tuple[Any, ...],
        directory: Path,
        n_ranges: int,
        shape: Shape,
    ) -> list[Path]:
        directory.mkdir(exist_ok=True)
        ends = np.linspace(0, shape.n_features, n_ranges + 1).astype(np.int64).tolist()
        paths = [directory / f"range-{number:05d}" for number in range(n_ranges)]
        tasks = [
            (*arguments, start, stop, shape.n_rows, path)
            for start, stop, path in zip(ends[:-1], ends[1:], paths, strict=True)
        ]
        sizes = np.diff(ends).tolist()
        self.workers.run(function, tasks, phase="statistics", unit="features", sizes=sizes)
        return paths

    def _statistics_files(self, dataset: Path, means: Path | None, shape: Shape) -> list[Path]:
        """Files with the statistics of ranges of features, ascending."""
        directory = self.work / f"statistics-{dataset.name}{'' if means is None else '-deviations'}"
        directory.mkdir()
        memory_bytes = self.plan.statistics_bytes + self.plan.sort_bytes  # no rows are in memory any more
        if self.options.scale != "none":
            memory_bytes -= 8 * shape.n_features
        width = max(memory_bytes // STATISTICS_BYTES, 1)
        if shape.n_features > width * MAX_RANGES * self.workers.n_workers:
            out = directory / "all"
            task = (dataset, means, shape.n_features, shape.n_rows, memory_bytes, directory / "scratch", out)
            self.workers.run(_all_statistics, [task])
            return [out]
        n_ranges = max(-(-shape.n_features // width), self.workers.n_workers)
        return self._by_ranges(_range_statistics, (dataset, means), directory, n_ranges, shape)


def _cut_chunks(lengths: Sequence[Path], chunk_bytes: int, entry_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and entries of every chunk, from files with the entries of all rows in final order."""
    rule = ChunkRule(chunk_bytes, entry_bytes)
    n_rows, n_entries = [0], [0]
    for counts in _blocks_of_lengths(lengths):
        before = np.concatenate([[0], np.cumsum(counts)])
        start = 0
        for end in rule.ends(counts):
            n_rows[-1] += end - start
            n_entries[-1] += int(before[end] - before[start])
            n_rows.append(0)
            n_entries.append(0)
            start = end
        n_rows[-1] += len(counts) - start
        n_entries[-1] += int(before[-1] - before[start])
    return np.array(n_rows), np.array(n_entries)


def _blocks_of_lengths(lengths: Sequence[Path]) -> Iterator[np.ndarray]:
    """So many at a time that their number does not count, whatever the number of rows."""
    for path in lengths:
        with open(path, "rb") as file:
            while (counts := np.fromfile(file, np.int64, _LENGTHS_AT_A_TIME)).size:
                yield counts


def _cut_shards(chunk_bytes: np.ndarray, shard_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of chunks that make a shard, as `DatasetWriter` makes them."""
    start, held = 0, 0
    for chunk, n_bytes in enumerate(chunk_bytes.tolist()):
        if chunk > start and shard_is_full(held, shard_bytes):
            yield start, chunk
            start, held = chunk, 0
        held += n_bytes
    if start < len(chunk_bytes):
        yield start, len(chunk_bytes)

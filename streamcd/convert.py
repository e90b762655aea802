"""libsvm text to a dataset, shuffled, in bounded memory.

Two stages: parse the source and let `shuffle.Sorter` take its rows; then write them in their final order, cut into
chunks. The result is a function of the source, the seed and the options of the format: neither of memory nor of how the
source is spread over files of the same order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .chunking import ChunkCutter
from .dataset import Dataset, open_dataset
from .distinct import DistinctFeatures, LabelCounts
from .errors import DataError, UsageError
from .features import (
    STATISTICS_BYTES,
    Entries,
    RangeStatistics,
    feature_statistics,
    in_groups,
)
from .memory import RESERVED_BYTES, format_size, parse_size, require
from .parallel import Workers, checked_workers, memory_per_worker
from .parquet import read_groups
from .progress import Listener, Progress
from .rowweights import RowWeights
from .scaling import Scaling, checked_names, feature_means, max_abs_scales, standard_scales
from .schema import row_dtype
from .shuffle import Rows, Sorter
from .sources import STANDARD_INPUT, display_name, expand_sources, total_bytes
from .svmlight import BLOCK_BYTES, Counts, RowBlock, iterate_blocks
from .workplace import workplace
from .writer import DatasetWriter

MAX_FEATURES = 1 << 62
_INT32_MAX = 2**31 - 1
_LEAST_BYTES = 16_000_000

Pieces = Iterable[Mapping[str, np.ndarray]]
"""Columns of ``features.parquet``, some features at a time."""


class _Stamp(NamedTuple):
    """What tells that a file was changed."""

    device: int
    inode: int
    n_bytes: int
    modified: int


@dataclass(frozen=True)
class Options:
    """What a conversion was asked for, checked."""

    paths: list[str]
    stamps: list[_Stamp | None]  # of each, before it is read; None for what is no plain file
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
    workers: int = 1


@dataclass(frozen=True)
class Like:
    """What is taken from the training side."""

    name: str
    index_base: int
    n_features: int
    classes: np.ndarray | None
    label_kind: str
    scaling: Scaling


@dataclass(frozen=True)
class Plan:
    """How the memory is shared out."""

    block_bytes: int
    max_line_bytes: int
    sort_bytes: int
    statistics_bytes: int
    map_bytes: int

    def scales_bytes(self, n_features: int) -> int:
        """Bytes of a divisor for every feature; they take the place of rows, which are sorted by then."""
        needed = 8 * n_features
        if needed > self.sort_bytes:
            raise UsageError(
                f"--scale: the scales of {n_features:,} features need {format_size(needed)}, {format_size(self.sort_bytes)} "
                f"of --memory are left for them; give about {format_size(3 * needed + RESERVED_BYTES)}, use --normalize l2 "
                "instead, or --compact where few of the features occur"
            )
        return needed


def convert(
    sources: str | Path | Sequence[str | Path],
    dest: str | Path,
    *,
    memory: str | int = "1GB",
    seed: int = 0,
    dtype: str | np.dtype | type = "float32",
    index_base: str | int = "auto",
    n_features: int | None = None,
    like: str | Path | None = None,
    shuffle: bool = True,
    shard_size: str | int = "256MB",
    chunk_size: str | int = "1MB",
    compact: bool = False,
    compression: str = "lz4",
    weights: str | Path | None = None,
    scale: str = "none",
    normalize: str = "none",
    force: bool = False,
    workers: int = 1,
    listener: Listener | None = None,
) -> Dataset:
    """Convert libsvm text to a dataset.

    Parameters
    ----------
    sources : path or sequence of paths
        Files, directories, globs, ``"-"`` for standard input; plain or compressed (see `svmlight.iterate_blocks`).
    dest : path
        The dataset's directory. It appears when it is complete.
    memory : size
        Bound of the process's peak resident memory. The result does not depend on it.
    seed : int
        Of the order of rows.
    dtype : {"float32", "float64"}
        Of the values.
    index_base : {"auto", 0, 1}
        What indices start at; ``"auto"``: 0 if an index 0 occurs anywhere, else 1.
    n_features : int, optional
        Width; by default the largest index decides.
    like : path, optional
        A dataset, run or model from which base, width, labels and scaling are taken; features beyond are ignored and
        counted.
    shuffle : bool
        False keeps the order of the source.
    shard_size, chunk_size : size
        Decoded bytes of entries in a shard and in a chunk.
    compact : bool
        Renumber the features that occur; ``features.parquet`` keeps the original ones.
    compression : {"lz4", "zstd", "none"}
    weights : path, optional
        A text file with one weight a line, in the order of the source's rows.
    scale : {"none", "maxabs", "standard"}
        Divide every feature by its greatest magnitude, or by its standard deviation (over all rows, absent entries as
        zeros, weights aside). Nothing is centred: that would make the data dense. Models carry the divisors along.
    normalize : {"none", "l2"}
        Divide every row by its Euclidean norm, after `scale`.
    force : bool
        Replace an existing dataset, once the new one is complete.
    workers : int
        Processes that convert; the result does not depend on their number. `memory` bounds their sum.
    listener : Listener, optional

    Returns
    -------
    Dataset

    Raises
    ------
    UsageError
        Where the options make no sense, `dest` exists, or the memory is too small.
    DataError
        Where the source cannot be used; names file and line.
    EnvironmentFailure
        Where the disk is full, or another conversion writes the same dataset.
    """
    scale, normalize = checked_names(scale, normalize)
    paths = expand_sources(sources)
    options = Options(
        paths=paths,
        stamps=[_stamp(path) for path in paths],
        dest=Path(dest),
        memory_bytes=parse_size(memory),
        seed=int(seed),
        value_dtype=_value_dtype(dtype),
        index_base=_index_base(index_base),
        n_features=_width(n_features),
        like=None if like is None else _load_like(Path(like)),
        shuffle=shuffle,
        shard_bytes=parse_size(shard_size),
        chunk_bytes=parse_size(chunk_size),
        compact=compact,
        compression=compression,
        force=force,
        weights=None if weights is None else os.fspath(weights),
        scale=scale,
        normalize=normalize,
        workers=checked_workers(workers),
    )
    _check(options)
    listener = listener or Listener()
    if options.workers > 1 and total_bytes(options.paths) is None:
        listener.warning("standard input and pipes are read by one process: converting with --workers 1")
        options = replace(options, workers=1)
    plan = _plan(options)
    with workplace(options.dest, options.force) as work:
        if options.workers == 1:
            Conversion(options, plan, work, listener).run()
        else:
            with Workers(options.workers, listener, f"{__package__}.parallel_convert") as processes:
                processes.module.ParallelConversion(options, plan, work, listener, processes).run()
    return open_dataset(options.dest)


# ---------------------------------------------------------------------------------------------------------------------
# Options


def _value_dtype(dtype: Any) -> np.dtype:
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = np.dtype(np.void)
    if found not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise UsageError(f"expected --dtype float32 or float64, found {dtype!r}")
    return found


def _index_base(index_base: str | int) -> int | None:
    bases: dict[str, int | None] = {"auto": None, "0": 0, "1": 1}
    if str(index_base) not in bases:
        raise UsageError(f"expected --index-base auto, 0 or 1, found {index_base!r}")
    return bases[str(index_base)]


def _width(n_features: int | None) -> int | None:
    if n_features is not None and not 1 <= n_features <= MAX_FEATURES:
        raise UsageError(f"expected --n-features from 1 to 2^62, found {n_features}")
    return n_features


def _load_like(path: Path) -> Like:
    if (path / "manifest.json").exists():
        dataset = open_dataset(path)
        if dataset.manifest.get("compact"):
            raise UsageError(
                f"--like {path}: a compacted dataset's features are renumbered; convert both without --compact"
            )
        scaling = dataset.read_scaling()
        return Like(
            str(path), dataset.index_base, dataset.n_features, dataset.classes, dataset.label_kind, scaling
        )
    from .model import load_model  # model.py is needed for this only

    model = load_model(path)
    return Like(str(path), model.index_base, model.n_features, model.classes, model.label_kind, model.scaling)


def _check(options: Options) -> None:
    if options.compression not in ("lz4", "zstd", "none"):
        raise UsageError(f"expected --compression lz4, zstd or none, found {options.compression!r}")
    if options.like is not None:
        given = {
            "--index-base": options.index_base is not None,
            "--n-features": options.n_features is not None,
            "--compact": options.compact,
        }
        for name in (name for name, is_given in given.items() if is_given):
            raise UsageError(f"{name} and --like exclude each other: --like takes base and width from there")
        for name, given_name in (("--scale", options.scale), ("--normalize", options.normalize)):
            if given_name != "none":
                raise UsageError(
                    f"{name} and --like exclude each other: --like takes the scaling from there "
                    f"({options.like.name}: {options.like.scaling.options()})"
                )
    if options.compact and options.n_features is not None:
        raise UsageError(
            "--n-features and --compact exclude each other: --compact counts the features that occur"
        )
    if options.dest.exists() and not options.force:
        raise UsageError(f"{options.dest} exists; name another place or replace it with --force")
    if options.dest.exists() and not (options.dest / "manifest.json").exists() and _has_content(options.dest):
        raise UsageError(
            f"{options.dest} exists and is not a dataset; --force replaces datasets only: name another place"
        )
    if not options.dest.absolute().parent.is_dir():
        raise UsageError(f"no such directory: {options.dest.absolute().parent}; make it first")


def _has_content(path: Path) -> bool:
    """Whether the path is a file, or a directory with something in it."""
    return not path.is_dir() or any(path.iterdir())


def _plan(options: Options) -> Plan:
    """Share out the memory; the shares are fractions of what the interpreter and the writer leave."""
    needs = {
        # copied from the sorted rows, cast, encoded, compressed; and scaled
        "chunks being written": (12 if _is_scaled(options) else 10) * options.chunk_bytes,
        "blocks being read": _LEAST_BYTES,
        "scales of the features": _scales_in_memory(options.like),
    }
    if options.workers == 1:
        left = require(options.memory_bytes, needs) + _LEAST_BYTES
    else:
        needs["chunks being made"] = 3 * options.chunk_bytes  # while others are written
        own = {"scales of the features": _scales_in_memory(options.like)}
        left = memory_per_worker(options.memory_bytes, options.workers, needs, own) + _LEAST_BYTES
    # a block takes three buffers of text and up to six times as much for its rows
    block_bytes = min(max(left // 80, 1 << 16), BLOCK_BYTES)
    in_map = left // 4 if options.compact else 0
    return Plan(
        block_bytes=block_bytes,
        max_line_bytes=max(left // 24, block_bytes),
        sort_bytes=left // 2 - in_map // 2,
        statistics_bytes=left // 4,
        map_bytes=in_map,
    )


def _is_scaled(options: Options) -> bool:
    like = options.like is not None and options.like.scaling.changes_values
    return like or options.scale != "none" or options.normalize != "none"


def _scales_in_memory(like: Like | None) -> int:
    return 0 if like is None or like.scaling.scales is None else like.scaling.scales.nbytes


# ---------------------------------------------------------------------------------------------------------------------
# The conversion


@dataclass
class Conversion:
    """One conversion: its two stages share what is here."""

    options: Options
    plan: Plan
    work: Path
    listener: Listener

    def run(self) -> None:
        options = self.options
        labels = LabelCounts()
        distinct = DistinctFeatures(self.plan.map_bytes) if options.compact else None
        sorter = Sorter(
            self.work / "sort",
            seed=options.seed if options.shuffle else None,
            memory_bytes=self.plan.sort_bytes,
            value_dtype=options.value_dtype,
            weighted=options.weights is not None,
        )
        try:
            counts = self._parse(sorter, labels, distinct)
            base, n_features = self._base_and_width(counts)
            original = None
            if distinct is not None:
                original = distinct.merge()
                n_features = original.size
            shape = Shape(counts.n_rows, n_features, base, original)
            self._write(sorter, shape, self._manifest(counts, labels, shape))
        finally:
            sorter.close()
        self._tell(counts, n_features)

    def _tell(self, counts: Counts, n_features: int) -> None:
        for message in counts.messages(self.options.value_dtype):
            self.listener.message(message)
        self.listener.message(
            f"{counts.n_rows:,} rows, {n_features:,} features, {counts.n_entries:,} entries"
        )

    # -- stage 1

    def _blocks(self) -> Iterator[RowBlock]:
        options, like = self.options, self.options.like
        return iterate_blocks(
            options.paths,
            value_dtype=options.value_dtype,
            index_base=like.index_base if like else options.index_base,
            n_features=like.n_features if like else options.n_features,
            ignore_beyond=like is not None,
            block_bytes=self.plan.block_bytes,
            max_line_bytes=self.plan.max_line_bytes,
            listener=self.listener,
        )

    def _parse(self, sorter: Sorter, labels: LabelCounts, distinct: DistinctFeatures | None) -> Counts:
        weights = RowWeights(self.options.weights) if self.options.weights is not None else None
        counts = Counts()
        for block in self._blocks():
            counts = block.counts
            n_rows = len(block.label)
            labels.add(block.label)
            if distinct is not None:
                distinct.add(block.index)
            rows = Rows(
                np.arange(block.place0, block.place0 + n_rows),
                block.label,
                None if weights is None else weights.take(n_rows),
                block.indptr,
                block.index,
                block.value,
            )
            share_read = block.bytes_read / block.bytes_total if block.bytes_total else None
            sorter.append(rows, wide=counts.is_wide, share_read=share_read)
        if weights is not None:
            weights.check_end(counts.n_rows)
        sorter.finish()
        return counts

    def _base_and_width(self, counts: Counts) -> tuple[int, int]:
        options, like = self.options, self.options.like
        if like is not None:
            return like.index_base, like.n_features
        base = options.index_base
        if base is None:
            base = 0 if counts.zero_index else 1
            why = "an index 0 occurs" if counts.zero_index else "no index 0 occurs"
            self.listener.message(f"indices start at {base}: {why}")
        found = max(counts.max_index - base + 1, 0)
        if options.n_features is None:
            return base, found
        if found > options.n_features:  # only where an index 0 moved the base
            raise DataError(
                f"{counts.max_place}: expected indices up to {options.n_features - 1} (--n-features {options.n_features}, "
                f"index 0 occurs), found {counts.max_index}; give a larger --n-features"
            )
        return base, options.n_features

    # -- stage 2

    def _manifest(self, counts: Counts, labels: LabelCounts, shape: Shape) -> dict[str, Any]:
        options, like = self.options, self.options.like
        kind = counts.label_kind if like is None or counts.label_kind == "decimal" else like.label_kind
        return {
            "n_features": shape.n_features,
            "index_base": shape.index_base,
            "compact": options.compact,
            **labels.manifest(like.classes if like else None),
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
        """What the sources were; of one that was changed while it was read, nobody knows what is in the dataset."""
        sources = []
        for path, before in zip(self.options.paths, self.options.stamps, strict=True):
            if _stamp(path) != before:
                raise DataError(f"{path}: changed while it was read; convert it again")
            sources.append({"name": display_name(path), "bytes": None if before is None else before.n_bytes})
        return sources

    def _write(self, sorter: Sorter, shape: Shape, manifest: dict[str, Any]) -> None:
        options = self.options
        scaling = self._scaling()
        chunks = self._chunks(sorter, shape)
        if options.scale != "none":
            # the divisors are known when all rows have been seen: in their final order, so that the bits follow from it
            self.plan.scales_bytes(shape.n_features)
            unscaled = self._write_unscaled(chunks, shape, manifest)
            scaling = replace(scaling, scales=self._scales(unscaled))
            chunks = stored_chunks(unscaled)
        writer = self._writer("dataset", shape)
        pieces = self._write_chunks(writer, chunks, shape, scaling)
        if scaling.changes_values:
            writer.write_scaling(scaling)
        self._write_features(writer, pieces, shape)
        writer.close(**manifest)

    def _scaling(self) -> Scaling:
        """What is asked for; without the divisors, unless they are given."""
        like, options = self.options.like, self.options
        return like.scaling if like else Scaling(options.scale, options.normalize)

    def _writer(self, name: str, shape: Shape) -> DatasetWriter:
        options = self.options
        return DatasetWriter(
            self.work / name,
            index_dtype=shape.index_dtype,
            value_dtype=options.value_dtype,
            row_dtype=shape.row_dtype,
            weighted=options.weights is not None,
            shard_bytes=options.shard_bytes,
            compression=options.compression,
        )

    def _write_chunks(
        self, writer: DatasetWriter, chunks: Iterable[Rows], shape: Shape, scaling: Scaling
    ) -> Pieces:
        """Write all rows; gives the statistics of the features."""
        statistics = None
        if shape.n_features * STATISTICS_BYTES <= self.plan.statistics_bytes:
            statistics = RangeStatistics(0, shape.n_features)
        for chunk in chunks:
            value = chunk.value
            if scaling.changes_values:
                value = stored_values(
                    scaling.apply(chunk.indptr, chunk.index, value, shape.n_features), value.dtype
                )
            writer.write_chunk(chunk.place, chunk.label, chunk.weight, chunk.indptr, chunk.index, value)
            if statistics is not None:
                statistics.add(writer.n_parts - 1, chunk.index, value)
            phase = "write" if writer.path.name == "dataset" else "write unscaled"
            self.listener.progress(Progress(phase, writer.n_rows, shape.n_rows, "rows"))
        writer.finish_parts()
        if statistics is not None:
            return statistics.columns(shape.n_rows)
        return self._statistics(lambda: read_entries(writer.path), shape.n_features, shape.n_rows)

    def _statistics(self, read_entries: Callable[[], Entries], n_features: int, n_rows: int) -> Pieces:
        """Statistics of the features by reading entries again; no rows are in memory any more."""
        scales_bytes = 8 * n_features if self.options.scale != "none" else 0
        return feature_statistics(
            read_entries,
            n_features=n_features,
            n_rows=n_rows,
            memory_bytes=self.plan.statistics_bytes + self.plan.sort_bytes - scales_bytes,
            scratch=self.work / "features",
        )

    def _write_features(self, writer: DatasetWriter, pieces: Pieces, shape: Shape) -> None:
        if shape.original is not None:
            original = shape.original
            pieces = ({**piece, "original": original[piece["feature"]]} for piece in pieces)
        writer.write_features(in_groups(pieces), compact=shape.original is not None)

    # -- between the stages, where features are scaled

    def _write_unscaled(self, chunks: Iterable[Rows], shape: Shape, manifest: dict[str, Any]) -> Dataset:
        writer = self._writer("unscaled", shape)
        self._write_features(writer, self._write_chunks(writer, chunks, shape, Scaling()), shape)
        writer.close(**manifest)
        return open_dataset(writer.path)

    def _scales(self, unscaled: Dataset) -> np.ndarray:
        """The divisors of the features."""
        pieces = unscaled.read_features()
        n_features, n_rows = unscaled.n_features, unscaled.n_rows
        if self.options.scale == "maxabs":
            return max_abs_scales(pieces, n_features)
        means = feature_means(pieces, n_features)

        def deviations() -> Entries:
            for shard, feature, value in read_entries(unscaled.path):
                yield shard, feature, value - means[feature]

        return standard_scales(self._statistics(deviations, n_features, n_rows), means, n_rows)

    def _chunks(self, sorter: Sorter, shape: Shape) -> Iterator[Rows]:
        cutter = ChunkCutter(
            self.options.chunk_bytes, shape.index_dtype.itemsize + self.options.value_dtype.itemsize
        )
        for rows, order in sorter.sorted_rows():
            yield from (shape.numbered(chunk) for chunk in cutter.cut(rows, order))
        if cutter.has_rest:
            yield shape.numbered(cutter.rest())


@dataclass(frozen=True)
class Shape:
    """What is known after the first stage."""

    n_rows: int
    n_features: int
    index_base: int
    original: np.ndarray | None  # for `compact`: the indices that occur, ascending, as in the text

    @property
    def index_dtype(self) -> np.dtype:
        return np.dtype(np.int32 if self.n_features <= _INT32_MAX + 1 else np.int64)

    @property
    def row_dtype(self) -> np.dtype:
        return row_dtype(self.n_rows)

    def feature(self, index: np.ndarray) -> np.ndarray:
        """0-based features of indices of the text."""
        if self.original is not None:
            return np.searchsorted(self.original, index).astype(self.index_dtype)
        return (index - self.index_base).astype(self.index_dtype, copy=False)

    def numbered(self, rows: Rows) -> Rows:
        """Rows whose indices are 0-based features."""
        return replace(rows, index=self.feature(rows.index))


def stored_values(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Scaled values in the type in which they are stored."""
    with np.errstate(over="ignore", under="ignore"):
        stored = value.astype(dtype)
    if not np.isfinite(stored).all():
        raise DataError(
            f"a scaled value is too large for {stored.dtype}: a feature's scale is tiny beside its values; "
            "use --scale maxabs or --dtype float64"
        )
    return stored


def _stamp(path: str) -> _Stamp | None:
    """None for what is no plain file, or not there."""
    if path == STANDARD_INPUT or not os.path.isfile(path):
        return None
    found = os.stat(path)
    return _Stamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def stored_chunks(dataset: Dataset, chunks: Iterable[int] | None = None) -> Iterator[Rows]:
    """Chunks (all by default) of a dataset that was just written, as rows to be written again."""
    for chunk in range(dataset.n_chunks) if chunks is None else chunks:
        data = dataset.read(chunk, verify=False)
        yield Rows(data.source, data.label, data.weight, data.indptr, data.feature, data.value)


def read_entries(directory: Path) -> Entries:
    """All entries of the shards just written, chunk by chunk."""
    for shard, path in enumerate(sorted((directory / "entries").iterdir(), key=_by_number)):
        for piece in read_groups(path, ("feature", "value"), verify=False):
            yield shard, piece["feature"], piece["value"]


def _by_number(path: Path) -> tuple[int, str]:
    """Sorts numbered files also where there are more than their digits foresee."""
    return len(path.name), path.name

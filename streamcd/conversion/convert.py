"""Text, tables and matrices to a dataset, shuffled, in bounded memory.

The result depends on the source, the seed and the format options alone: not on the memory, nor on how the source is split
into files, as long as these come in the same order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.memory_budget import parse_size, require
from ..core.process_pool import checked_workers, memory_per_worker, open_pool
from ..core.progress import Listener, ends_progress
from ..core.storage import (
    REMOTE_BYTES,
    UPLOADING_BYTES,
    Location,
    Url,
    is_url,
    local_path,
    location,
    writable,
)
from ..dataset.chunked_table import RowTable
from ..dataset.dataset import Dataset, open_dataset
from ..dataset.scaling import checked_names
from ..models.encoding import encoding_of
from .byte_sources import BLOCK_BYTES, total_bytes
from .conversion_options import Like, Options, Plan
from .formats import expand, open_source
from .in_memory import is_files, open_data
from .pipeline import Conversion
from .publication import Publication, publishing
from .sources import Reading, Source
from .staging import clear_interrupted, staging_directory
from .table_rows import checked_options

MAX_FEATURES = 1 << 62
_LEAST_BYTES = 16_000_000
_HELD_ADVICE = (
    "give a larger --memory, or write a Parquet file with smaller row groups, a .npz without compression"
)
_BLOCK_BYTES_OF_SEVERAL = 1 << 20
"""Bytes of text that one of several processes parses at a time: every range allocates its buffers anew."""


@ends_progress
def convert(
    sources: Any,
    dest: str | Path,
    *,
    format: str = "auto",
    label: str | None = None,
    weight_column: str | None = None,
    features: str | Sequence[str] | None = None,
    drop: str | Sequence[str] | None = None,
    hash: int | None = None,
    missing: str = "error",
    number: str | Sequence[str] | None = None,
    decimal: str = ".",
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
    """Convert text, tables or arrays to a dataset.

    Parameters
    ----------
    sources : path, sequence of paths, or data
        Files, directories, globs, ``"-"`` for standard input; text plain or compressed. Or ``(X, y)`` or ``(X, y, weights)``
        of NumPy arrays, SciPy matrices or dask arrays; a frame, which is anything with ``__arrow_c_stream__`` (pandas,
        Polars, DuckDB, Arrow) or one of dask's; ``(frame, y)``; an iterable of such batches, or a function that returns one.
    dest : path
        The dataset's directory, or its URL in a bucket. It appears when it is complete.
    format : {"auto", "libsvm", "csv", "parquet", "arrow", "npz", "npy"}
        What the sources hold; ``"auto"`` tells by their content.
    label : str, optional
        The table's column of labels, numbers or strings; tables need it.
    weight_column : str, optional
        The table's column of weights of rows.
    features : str or sequence of str, optional
        Columns that become features, as ``"a,b"`` or in a list; by default all others. ``"INDICES:VALUES"`` names two
        columns of lists, which are rows of sparse entries.
    drop : str or sequence of str, optional
        Columns that are left out.
    hash : int, optional
        Hash strings into 2^hash features, as scikit-learn's FeatureHasher does, in place of a feature for each category.
    missing : {"error", "zero", "indicator"}
        Missing values are refused, have no entry, or have an entry 1 of a feature of their own.
    number : str or sequence of str, optional
        Columns whose strings are numbers, as ``"a,b"`` or in a list: thousands may be parted (``1 000``, ``1,000``), and
        ``12%`` is 0.12. Other strings in them are refused.
    decimal : {".", ","}
        Decimal mark of numbers in delimited text, and in the columns of `number`.
    memory : size
        Bound on the process's peak resident memory. The result does not depend on it.
    seed : int
        Seed of the random order of the rows.
    dtype : {"float32", "float64"}
        Type of the stored values.
    index_base : {"auto", 0, 1}
        The number that indices start at; ``"auto"``: 0 if an index 0 occurs anywhere, else 1.
    n_features : int, optional
        Number of features; by default, given by the largest index.
    like : path, optional
        A dataset, run or model from which index base, number of features, labels and scaling are taken; features beyond
        that number are ignored and counted.
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
        Divide every feature by its greatest magnitude, or by its standard deviation (over all rows, unweighted, absent
        entries counting as zeros). Nothing is centred: that would make the data dense. Models keep the divisors.
    normalize : {"none", "l2"}
        Divide every row by its Euclidean norm, after `scale`.
    force : bool
        Replace an existing dataset, once the new one is complete.
    workers : int
        Processes that convert; the result does not depend on their number. `memory` bounds their total.
    listener : Listener, optional

    Returns
    -------
    Dataset

    Raises
    ------
    UsageError
        If options are invalid or contradict each other, `dest` exists (in a bucket it is looked for at the end, too), or the
        memory is too small.
    DataError
        If the source cannot be used; the message names file and line.
    EnvironmentFailure
        If the disk is full, or another conversion writes the same dataset.

    Examples
    --------
    >>> data = streamcd.convert("reviews/train.txt", "converted", normalize="l2")
    >>> data.n_rows
    8000
    """
    scale, normalize = checked_names(scale, normalize)
    from_files = is_files(sources)
    paths, roots = expand(sources) if from_files else ([], {})
    options = Options(
        columns=checked_options(label, weight_column, features, drop, hash, missing, number, decimal),
        in_memory=not from_files,
        dest=writable(dest, "a dataset to be written"),
        memory_bytes=parse_size(memory),
        seed=int(seed),
        value_dtype=_value_dtype(dtype),
        index_base=_index_base(index_base),
        n_features=_width(n_features),
        like=None if like is None else _load_like(location(like)),
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
    _check(options, paths)
    listener = listener or Listener()
    if from_files and options.workers > 1 and total_bytes(paths) is None:
        listener.warning(
            "standard input, pipes and servers without ranges are read by one process: converting with --workers 1"
        )
        options = replace(options, workers=1)
    urls = any(map(is_url, paths))
    plan = _plan(options, urls)

    def opened(plan: Plan) -> Source:
        reading = _reading(options, plan)
        if from_files:
            return open_source(paths, roots, format, reading, options.columns)
        return open_data(sources, reading, options.columns)

    source = opened(plan)
    _check_source(options, source)
    if source.held_bytes:
        plan = _plan(options, urls, source.held_bytes)
        source = opened(plan)
    with (
        _workplace(options) as (work, publication),
        open_pool(options.workers, listener, Conversion.__module__) as pool,
    ):
        Conversion(options, plan, source, work, pool, publication).run()
        if publication is not None:
            publication.finish(work / "dataset", listener)
    return open_dataset(options.dest)


@contextmanager
def _workplace(options: Options) -> Iterator[tuple[Path, Publication | None]]:
    """A directory for work in progress: the dataset written there is put in its place at the end, or published."""
    if isinstance(options.dest, Url):
        with publishing(options.dest, RowTable, force=options.force) as found:
            yield found
    else:
        with staging_directory(options.dest, options.force) as work:
            yield work, None


# ---------------------------------------------------------------------------------------------------------------------
# Options


def _value_dtype(dtype: Any) -> np.dtype:
    for known in (np.float32, np.float64):
        with suppress(TypeError):  # not a type that numpy knows
            if np.dtype(dtype) == known:
                return np.dtype(known)
    raise UsageError(f"expected --dtype float32 or float64, found {dtype!r}")


def _index_base(index_base: str | int) -> int | None:
    bases: dict[str, int | None] = {"auto": None, "0": 0, "1": 1}
    if str(index_base) not in bases:
        raise UsageError(f"expected --index-base auto, 0 or 1, found {index_base!r}")
    return bases[str(index_base)]


def _width(n_features: int | None) -> int | None:
    if n_features is not None and not 1 <= n_features <= MAX_FEATURES:
        raise UsageError(f"expected --n-features from 1 to 2^62, found {n_features}")
    return n_features


def _load_like(path: Location) -> Like:
    if (path / "manifest.json").exists():
        dataset = open_dataset(path)
        if dataset.manifest.get("compact"):
            raise UsageError(
                f"--like {path}: a compacted dataset's features are renumbered; convert both without --compact"
            )
        found: Any = dataset
        scaling, encoding = dataset.read_scaling(), encoding_of(dataset)
    else:
        from ..models.model import load_model  # needed for this only

        found = load_model(local_path(str(path), "a model"))
        scaling, encoding = found.scaling, found.encoding
    names = tuple(found.class_names or ())
    return Like(
        str(path),
        found.index_base,
        found.n_features,
        found.classes,
        found.label_kind,
        scaling,
        encoding,
        names,
    )


def _reading(options: Options, plan: Plan) -> Reading:
    like = options.like
    return Reading(
        options.value_dtype,
        plan.block_bytes,
        plan.max_line_bytes,
        plan.decoder_bytes,
        batch_bytes=plan.statistics_bytes // 2,  # those are made later
        index_base=like.index_base if like else options.index_base,
        n_features=like.n_features if like else options.n_features,
        ignore_beyond=like is not None,
        encoding=like.encoding if like else None,
        class_names=like.class_names if like else (),
        of_numbers=like is not None and not like.class_names,
        threaded=options.workers == 1,
    )


def _check_source(options: Options, source: Source) -> None:
    if options.like is not None and source.encoding is not None:
        if options.like.encoding is None:
            raise UsageError(
                f"--like {options.like.name}: its data came from no table; convert its own table first, or give --label here"
            )
        if options.columns.given:
            raise UsageError(
                f"{', '.join(options.columns.given)} and --like exclude each other: --like takes the columns from there"
            )
    if source.weighted and options.weights is not None:
        raise UsageError("--weights and --weight-column exclude each other: give the weights once")
    if options.like is None and not source.of_indices:
        for name in options.index_options:
            raise UsageError(
                f"{name} is for features numbered by indices: those of a table are its columns; leave it out"
            )


def _check(options: Options, paths: list[str]) -> None:
    if options.compression not in ("lz4", "zstd", "none"):
        raise UsageError(f"expected --compression lz4, zstd or none, found {options.compression!r}")
    if options.like is not None:
        for name in options.index_options:
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
    if isinstance(options.dest, Path):
        _check_place(options, options.dest, paths)
        if not options.dest.absolute().parent.is_dir():
            raise UsageError(f"no such directory: {options.dest.absolute().parent}; make it first")


def _check_place(options: Options, dest: Path, paths: list[str]) -> None:
    """Refuse to replace anything but a dataset, and to replace a dataset without `force`."""
    clear_interrupted(dest)
    if not os.path.lexists(dest):
        return
    if (not dest.is_dir() or any(dest.iterdir())) and not (dest / "manifest.json").exists():
        raise UsageError(f"{dest} exists and is not a dataset; name another place")
    inputs = [*paths, options.weights, None if options.like is None else options.like.name]
    for path in inputs:
        if path is not None and dest.resolve() in (real := Path(path).resolve(), *real.parents):
            raise UsageError(f"{dest} holds the input {path}; name another place")
    if not options.force:
        raise UsageError(f"{dest} exists; name another place or replace it with --force")


def _plan(options: Options, reads_urls: bool, held_bytes: int = 0) -> Plan:
    """Divide the memory: each share is a fraction of what is left after the interpreter and the writer."""
    uploads = isinstance(options.dest, Url)
    client = {
        "the client of URLs": REMOTE_BYTES if reads_urls or uploads else 0,
        "files being uploaded": UPLOADING_BYTES if uploads else 0,
    }
    needs = {
        # copied from the sorted rows, cast, encoded, compressed; and scaled
        "chunks being written": (12 if _is_scaled(options) else 10) * options.chunk_bytes,
        "chunks being made": 3 * options.chunk_bytes,  # while others are written
        "blocks being read": _LEAST_BYTES,
        "columns being read": held_bytes,
        **client,
        "scales of the features": 2 * _scales_in_memory(options.like),  # as stored, and as used
    }
    if options.workers == 1:
        advice = _HELD_ADVICE if held_bytes else "give a larger --memory"
        left = require(options.memory_bytes, needs, advice) + _LEAST_BYTES
    else:
        own = {"scales of the features": _scales_in_memory(options.like), **(client if uploads else {})}
        left = memory_per_worker(options.memory_bytes, options.workers, needs, own) + _LEAST_BYTES
    # a block takes three buffers of text and up to six times as much for its rows
    most = BLOCK_BYTES if options.workers == 1 else _BLOCK_BYTES_OF_SEVERAL
    block_bytes = min(max(left // 80, 1 << 16), most)
    in_map = left // 4 if options.has_map else 0
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

"""Text, tables and matrices to a dataset, shuffled, in bounded memory.

The result depends on the source, the seed and the format options alone: not on the memory, nor on how the source is split
into files, as long as these come in the same order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.atomic_files import describe_set_aside
from ..core.errors import UsageError
from ..core.memory_budget import require
from ..core.options import takes
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
from ..models.encoding import encoding_of
from .byte_sources import BLOCK_BYTES, total_bytes
from .formats import expand, open_source
from .in_memory import is_files, open_data
from .options import ConvertOptions
from .pipeline import Conversion
from .plan import Like, Options, Plan
from .publication import Publication, publishing
from .sources import Reading, Source
from .staging import clear_interrupted, staging_directory

_LEAST_BYTES = 16_000_000
_HELD_ADVICE = (
    "give a larger --memory, or write a Parquet file with smaller row groups, a .npz without compression"
)
_BLOCK_BYTES_OF_SEVERAL = 1 << 20
"""Bytes of text that one of several processes parses at a time: every range allocates its buffers anew."""


@ends_progress
@takes(ConvertOptions)
def convert(sources: Any, dest: str | Path, asked: ConvertOptions) -> Dataset:
    """Convert text, tables or arrays to a dataset, which depends neither on `memory` nor on `workers`.

    Parameters
    ----------
    sources : path, sequence of paths, or data
        Files, directories, globs, ``"-"`` for standard input; text plain or compressed. Or ``(X, y)`` or ``(X, y, weights)``
        of NumPy arrays, SciPy matrices or dask arrays; a frame, which is anything with ``__arrow_c_stream__`` (pandas,
        Polars, DuckDB, Arrow) or one of dask's; ``(frame, y)``; an iterable of such batches, or a function that returns one.
    dest : path
        The dataset's directory, or its URL in a bucket. It appears when it is complete.
    {options}

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
    from_files = is_files(sources)
    paths, roots = expand(sources) if from_files else ([], {})
    options = Options(
        **vars(asked),
        place=writable(dest, "a dataset to be written"),
        in_memory=not from_files,
        training=None if asked.like is None else _load_like(location(asked.like)),
    )
    checked_workers(options.workers)
    _check(options, paths)
    listener = asked.listener or Listener()
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
            return open_source(paths, roots, options.format, reading, options)
        return open_data(sources, reading, options)

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
    return open_dataset(options.place)


@contextmanager
def _workplace(options: Options) -> Iterator[tuple[Path, Publication | None]]:
    """A directory for work in progress: the dataset written there is put in its place at the end, or published."""
    if isinstance(options.place, Url):
        with publishing(options.place, RowTable, force=options.force) as found:
            yield found
    else:
        with staging_directory(options.place, options.force) as work:
            yield work, None


# ---------------------------------------------------------------------------------------------------------------------
# Options


def _load_like(path: Location) -> Like:
    if isinstance(path, Path) and not path.exists():
        raise UsageError(f"--like {path} does not exist{describe_set_aside(path)}")
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
        found.has_targets,
    )


def _reading(options: Options, plan: Plan) -> Reading:
    like = options.training
    return Reading(
        options.value_dtype,
        plan.block_bytes,
        plan.max_line_bytes,
        plan.decoder_bytes,
        batch_bytes=plan.statistics_bytes // 2,  # those are made later
        index_base=like.index_base if like else options.first_index,
        n_features=like.n_features if like else options.n_features,
        ignore_beyond=like is not None,
        encoding=like.encoding if like else None,
        class_names=like.class_names if like else (),
        of_numbers=options.has_targets or (like is not None and not like.class_names),
        label_word="target" if options.has_targets else "label",
        threaded=options.workers == 1,
    )


def _check_source(options: Options, source: Source) -> None:
    if options.training is not None and source.encoding is not None:
        if options.training.encoding is None:
            raise UsageError(
                f"--like {options.like}: its data came from no table; convert its own table first, or give --label here"
            )
        if options.given:
            raise UsageError(
                f"{', '.join(options.given)} and --like exclude each other: --like takes the columns from there"
            )
    if source.weighted and options.weights is not None:
        raise UsageError("--weights and --weight-column exclude each other: give the weights once")
    if options.training is None and not source.of_indices:
        for name in options.index_options:
            raise UsageError(
                f"{name} is for features numbered by indices: those of a table are its columns; leave it out"
            )


def _check(options: Options, paths: list[str]) -> None:
    if options.training is not None:
        if options.target and not options.training.has_targets:
            raise UsageError(
                f"--target and --like {options.like}, which has classes, exclude each other; leave one of them out"
            )
        for name in options.index_options:
            raise UsageError(f"{name} and --like exclude each other: --like takes base and width from there")
        for name, given_name in (("--scale", options.scale), ("--normalize", options.normalize)):
            if given_name != "none":
                raise UsageError(
                    f"{name} and --like exclude each other: --like takes the scaling from there "
                    f"({options.like}: {options.training.scaling.options()})"
                )
    if options.compact and options.n_features is not None:
        raise UsageError(
            "--n-features and --compact exclude each other: --compact counts the features that occur"
        )
    if isinstance(options.place, Path):
        _check_place(options, options.place, paths)
        if not options.place.absolute().parent.is_dir():
            raise UsageError(f"no such directory: {options.place.absolute().parent}; make it first")


def _check_place(options: Options, dest: Path, paths: list[str]) -> None:
    """Refuse to replace anything but a dataset, and to replace a dataset without `force`."""
    clear_interrupted(dest)
    if not os.path.lexists(dest):
        return
    if (not dest.is_dir() or any(dest.iterdir())) and not (dest / "manifest.json").exists():
        raise UsageError(f"{dest} exists and is not a dataset; name another place")
    inputs = [*paths, options.weights, options.like]
    for path in inputs:
        if path is not None and dest.resolve() in (real := Path(path).resolve(), *real.parents):
            raise UsageError(f"{dest} holds the input {path}; name another place")
    if not options.force:
        raise UsageError(f"{dest} exists; name another place or replace it with --force")


def _plan(options: Options, reads_urls: bool, held_bytes: int = 0) -> Plan:
    """Divide the memory: each share is a fraction of what is left after the interpreter and the writer."""
    uploads = isinstance(options.place, Url)
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
        "scales of the features": 2 * _scales_in_memory(options.training),  # as stored, and as used
    }
    if options.workers == 1:
        advice = _HELD_ADVICE if held_bytes else "give a larger --memory"
        left = require(options.memory_bytes, needs, advice) + _LEAST_BYTES
    else:
        own = {"scales of the features": _scales_in_memory(options.training), **(client if uploads else {})}
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
    like = options.training is not None and options.training.scaling.changes_values
    return like or options.scale != "none" or options.normalize != "none"


def _scales_in_memory(like: Like | None) -> int:
    return 0 if like is None or like.scaling.scales is None else like.scaling.scales.nbytes

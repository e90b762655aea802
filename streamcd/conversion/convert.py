"""Text, tables and matrices to a dataset, shuffled, in bounded memory.

The result depends on the source, the seed and the format options alone: not on the memory, nor on how the source is split
into files, as long as these come in the same order.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.options import takes
from ..core.parallel import Pool, memory_per_worker
from ..core.storage import REMOTE_BYTES, Location, is_url, local_path, location
from ..dataset.dataset import Dataset, open_dataset
from ..dataset.source_features import indices_of
from ..dataset.staging import check_place, dataset_workplace
from ..models.encoding import encoding_of
from .formats import Files, expand, open_source
from .options import ConvertOptions
from .pipeline import Conversion, Plan, Reference
from .sources import BLOCK_BYTES, LEAST_DECODER_BYTES, Reading, Source, is_files, open_data, total_bytes

_LEAST_BYTES = 16_000_000
_HELD_ADVICE = (
    "give a larger --memory, or write a Parquet file with smaller row groups, a .npz without compression"
)
_BLOCK_BYTES_OF_SEVERAL = 1 << 20
"""Bytes of text that one of several processes parses at a time: every range allocates its buffers anew."""


@takes(ConvertOptions)
def convert(sources: Any, dest: str | Path, given: ConvertOptions) -> Dataset:
    """Convert text, tables or arrays to a dataset, which depends neither on `memory` nor on `workers`.

    Parameters
    ----------
    sources : path, sequence of paths, or data
        Files, directories, globs, ``"-"`` for standard input; text plain or compressed. Or ``(X, y)`` or ``(X, y, weights)``
        of NumPy arrays or SciPy matrices; a frame, which is anything with ``__arrow_c_stream__`` (pandas, Polars, DuckDB,
        Arrow); ``(frame, y)``; an iterable of such batches, or a function that returns one.
    dest : path
        The dataset's directory. It appears when it is complete.
    {options}

    Returns
    -------
    Dataset

    Raises
    ------
    UsageError
        If options are invalid or contradict each other, `dest` exists, or the
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
    dest = local_path(dest, "a dataset to be written")
    listener = given.listener
    from_files = is_files(sources)
    files = expand(sources) if from_files else Files([], {}, {})
    paths = files.paths
    if isinstance(given.like, Dataset):
        given = replace(given, like=str(given.like.path))
    like = None if given.like is None else load_like(location(given.like))
    workers = given.workers
    named = [str(location(path)) for path in (given.weights, given.like) if path is not None]
    check_place(dest, [*paths, *named], force=given.force)
    if from_files and workers > 1 and total_bytes(paths) is None:
        listener.warning(
            "standard input, pipes and servers without ranges are read by one process: converting with --workers 1"
        )
        workers = 1
    options = replace(given, workers=workers)
    if like is not None:  # features are numbered as there
        compact = like.indices.kept is not None
        target = like.has_targets
        options = replace(options, compact=given.compact or compact, target=given.target or target)
    needs = 0, not from_files or bool(options.label)
    # what reading holds all the time, and whether there are strings, is known of an opened source
    for _ in range(2):
        plan = make_plan(options, like, any(map(is_url, paths)), *needs)
        reading = _reading(options, like, plan)
        if from_files:
            source = open_source(files, options.format, reading, options)
        else:
            source = open_data(sources, reading, options)
        found = source.held_bytes, needs[1] or source.has_strings
        if found == needs:
            break
        needs = found
    _check(given, like, source)
    for message in source.messages:
        listener.message(message)
    with (
        dataset_workplace(dest, force=options.force) as work,
        Pool(workers, listener, Conversion.__module__) as pool,
    ):
        Conversion(options, like, plan, source, work, pool).run()
    made = Dataset.open(dest)
    if like is None and made.classes is not None and made.classes.size == 1:
        listener.warning("all rows have the same label: training needs two classes")
    return made


def load_like(path: Location) -> Reference:
    """Read what is taken over of a dataset, run or model."""
    if isinstance(path, Path) and not path.exists():
        raise UsageError(f"--like {path} does not exist")
    if (path / "manifest.json").exists():
        model: Any = open_dataset(path)
        scaling = model.read_scaling()
        encoding = encoding_of(model)
        indices = indices_of(model)
    else:
        from ..models.stored import load_model, models_of_path  # needed for this only

        # of a path over C, whose models are encoded alike
        place = local_path(path, "a run or a model")
        model = load_model(next(iter(models_of_path(place).values()), place), deviations=False)
        scaling = model.scaling
        encoding = model.encoding
        indices = model.source_indices
    names = tuple(model.class_names or ())
    return Reference(indices, model.n_features, model.classes, scaling, encoding, names, model.has_targets)


def make_plan(
    options: ConvertOptions, like: Reference | None, reads_urls: bool, held_bytes: int, numbers_strings: bool
) -> Plan:
    """Divide the memory: each share is a fraction of what is left after the interpreter and the writer.

    `held_bytes` are those of the source, which may have strings to be numbered.
    """
    memory = int(options.memory)
    chunk_bytes = int(options.chunk_size)
    known = {}
    scales_bytes = 0
    changes_values = (options.scale, options.normalize) != ("none", "none")
    if like is not None:
        changes_values = like.scaling.changes_values
        scales_bytes = 0 if like.scaling.scales is None else like.scaling.scales.nbytes
        known = {
            "categories that are known": like.encoding.nbytes if like.encoding else 0,
            "indices of the features that are known": like.indices.nbytes,
        }
    needs = {
        # copied from the sorted rows, cast, encoded, compressed; and scaled
        "chunks being written": (12 if changes_values else 10) * chunk_bytes,
        "chunks being made": 3 * chunk_bytes,  # while others are written
        "blocks being read": _LEAST_BYTES,
        "columns being read": held_bytes,
        "the client of URLs": REMOTE_BYTES if reads_urls else 0,
        **known,
        "scales of the features": 2 * scales_bytes,  # as stored, and as used
    }
    shared = {"scales of the features": scales_bytes, **known}
    left = memory_per_worker(memory, options.workers, needs, shared, _HELD_ADVICE if held_bytes else "")
    left += _LEAST_BYTES
    # a block takes three buffers of text and up to six times as much for its rows
    most = BLOCK_BYTES if options.workers == 1 else _BLOCK_BYTES_OF_SEVERAL
    block_bytes = min(max(left // 80, 1 << 16), most)
    # strings or indices may have to be numbered anew
    has_map = numbers_strings or options.compact or like is not None
    in_map = left // 4 if has_map else 0
    return Plan(
        block_bytes=block_bytes,
        max_line_bytes=max(left // 24, block_bytes),
        sort_bytes=left // 2 - in_map // 2,
        statistics_bytes=left // 4,
        map_bytes=in_map,
    )


def _reading(options: ConvertOptions, like: Reference | None, plan: Plan) -> Reading:
    widens = like is not None and like.indices.kept is not None
    index_base = None if options.index_base == "auto" else int(options.index_base)
    return Reading(
        np.dtype(options.dtype),
        plan.block_bytes,
        plan.max_line_bytes,
        # statistics are made later
        decoder_bytes=max(plan.statistics_bytes, LEAST_DECODER_BYTES),
        batch_bytes=plan.statistics_bytes // 2,
        index_base=like.indices.base if like else index_base,
        any_width=options.compact or options.n_features is not None or like is not None,
        n_features=like.n_features if like and not widens else options.n_features,
        ignore_beyond=like is not None and not widens,
        encoding=like.encoding if like else None,
        class_names=like.class_names if like else (),
        of_numbers=options.target or (like is not None and not like.class_names),
        label_word="target" if options.target else "label",
        end_label=np.inf if options.target else 2.0**53,
        threaded=options.workers == 1,
    )


def _check(options: ConvertOptions, like: Reference | None, source: Source) -> None:
    """Refuse options that exclude each other, or are not for such a source."""
    given = {
        "--index-base": options.index_base != "auto",
        "--n-features": options.n_features is not None,
        "--compact": options.compact and (like is None or like.indices.kept is None),
    }
    of_indices = ", ".join(name for name, is_given in given.items() if is_given)
    if like is not None:
        of_table = source.encoding is not None
        given |= {
            "--target": options.target and not like.has_targets,
            "--scale": options.scale != "none",
            "--normalize": options.normalize != "none",
            **dict.fromkeys(options.given, of_table),
        }
        taken = ", ".join(name for name, is_given in given.items() if is_given)
        if of_table and like.encoding is None:
            raise UsageError(
                f"--like {options.like}: its data came from no table; convert its own table first, or give --label here"
            )
        if taken:
            raise UsageError(
                f"{taken} and --like exclude each other: --like takes labels, columns, indices and scaling from "
                f"{options.like} ({like.scaling.options()})"
            )
    if options.compact and options.n_features is not None:
        raise UsageError(
            "--n-features and --compact exclude each other: --compact counts the features that occur"
        )
    if source.weighted and options.weights is not None:
        raise UsageError("--weights and --weight-column exclude each other: give the weights once")
    if like is None and not source.of_indices and of_indices:
        raise UsageError(
            f"{of_indices} is for features numbered by indices: those of a table are its columns"
        )

"""Text, tables and matrices to a dataset, shuffled, in bounded memory.

The result depends on the source, the seed and the format options alone: not on the memory, nor on how the source is split
into files, as long as these come in the same order.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import UsageError, refuse
from ..core.options import Listener, takes
from ..core.parallel import Pool, checked_workers
from ..core.storage import is_url, local_path, location
from ..dataset.dataset import Dataset, open_dataset
from .byte_sources import expand
from .formats import open_source
from .options import ConvertOptions
from .pipeline import Conversion
from .plan import Options, Plan, load_like, make_plan
from .sources import Reading, Source, is_files, open_data, total_bytes
from .staging import check_place, dataset_workplace


@takes(ConvertOptions)
def convert(sources: Any, dest: str | Path, asked: ConvertOptions) -> Dataset:
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
    dest, listener = local_path(dest, "a dataset to be written"), asked.listener or Listener()
    from_files = is_files(sources)
    paths, roots = expand(sources) if from_files else ([], {})
    if isinstance(asked.like, Dataset):
        asked = replace(asked, like=str(asked.like.path))
    like = None if asked.like is None else load_like(location(asked.like))
    if like is not None:  # features are numbered as there
        asked = replace(asked, compact=asked.compact or like.indices.kept is not None)
    options = Options(**vars(asked), in_memory=not from_files, training=like)
    checked_workers(options.workers)
    _check(options)
    named = (path for path in (options.weights, options.like) if path is not None)
    check_place(dest, [*paths, *named], force=options.force)
    if from_files and options.workers > 1 and total_bytes(paths) is None:
        listener.warning(
            "standard input, pipes and servers without ranges are read by one process: converting with --workers 1"
        )
        options = replace(options, workers=1)
    held_bytes, has_strings = 0, False
    for _ in range(2):  # what reading holds all the time is known of an opened source
        plan = make_plan(options, any(map(is_url, paths)), held_bytes, has_strings)
        reading = _reading(options, plan)
        if from_files:
            source = open_source(paths, roots, options.format, reading, options)
        else:
            source = open_data(sources, reading, options)
        held_bytes, has_strings = source.held_bytes, source.names_labels or source.encoding is not None
        if not held_bytes:
            break
    _check_source(options, source)
    with (
        dataset_workplace(dest, force=options.force) as work,
        Pool(options.workers, listener, Conversion.__module__) as pool,
    ):
        Conversion(options, plan, source, work, pool).run()
    return open_dataset(dest)


def _reading(options: Options, plan: Plan) -> Reading:
    like, widens = options.training, options.known_indices is not None
    return Reading(
        options.value_dtype,
        plan.block_bytes,
        plan.max_line_bytes,
        plan.decoder_bytes,
        batch_bytes=plan.statistics_bytes // 2,  # those are made later
        index_base=like.indices.base if like else options.first_index,
        n_features=like.n_features if like and not widens else options.n_features,
        ignore_beyond=like is not None and not widens,
        encoding=like.encoding if like else None,
        class_names=like.class_names if like else (),
        of_numbers=options.has_targets or (like is not None and not like.class_names),
        label_word="target" if options.has_targets else "label",
        threaded=options.workers == 1,
    )


def _check(options: Options) -> None:
    """Refuse options that exclude each other."""
    like = options.training
    taken = {
        "--target": options.target and like is not None and not like.has_targets,
        **dict.fromkeys(options.index_options, True),
        "--scale": options.scale != "none",
        "--normalize": options.normalize != "none",
    }
    refused = [name for name, is_given in taken.items() if is_given and like is not None]
    taken_over = "" if like is None else f"scaling from {options.like} ({like.scaling.options()})"
    refuse(
        UsageError,
        (
            refused,
            f"{', '.join(refused)} and --like exclude each other: --like takes labels, indices and {taken_over}",
        ),
        (
            options.compact and options.n_features is not None,
            "--n-features and --compact exclude each other: --compact counts the features that occur",
        ),
    )


def _check_source(options: Options, source: Source) -> None:
    """Refuse options that are not for such a source."""
    like, of_table = options.training, source.encoding is not None
    given, of_indices = ", ".join(options.given), ", ".join(options.index_options)
    refuse(
        UsageError,
        (
            like is not None and of_table and like.encoding is None,
            f"--like {options.like}: its data came from no table; convert its own table first, or give --label here",
        ),
        (
            like is not None and of_table and given,
            f"{given} and --like exclude each other: --like takes the columns from there",
        ),
        (
            source.weighted and options.weights is not None,
            "--weights and --weight-column exclude each other: give the weights once",
        ),
        (
            like is None and not source.of_indices and of_indices,
            f"{of_indices} is for features numbered by indices: those of a table are its columns",
        ),
    )

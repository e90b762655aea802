"""Plan of a conversion: what its options name, and the shares of the memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UsageError, refuse
from ..core.files import describe_set_aside
from ..core.memory_budget import format_size, require
from ..core.parallel import memory_per_worker
from ..core.storage import REMOTE_BYTES, Location
from ..dataset.dataset import open_dataset
from ..dataset.source_features import Scaling, SourceIndices, indices_of
from ..models.encoding import Encoding, encoding_of
from .options import ConvertOptions
from .sources import BLOCK_BYTES

_LEAST_BYTES = 16_000_000
LEAST_DECODER_BYTES = 10 << 20
"""Memory of xz -6."""
_HELD_ADVICE = (
    "give a larger --memory, or write a Parquet file with smaller row groups, a .npz without compression"
)
_BLOCK_BYTES_OF_SEVERAL = 1 << 20
"""Bytes of text that one of several processes parses at a time: every range allocates its buffers anew."""


@dataclass(frozen=True)
class Like:
    """Properties of the training side that a conversion takes over."""

    indices: SourceIndices
    n_features: int
    classes: np.ndarray | None
    scaling: Scaling
    encoding: Encoding | None
    class_names: tuple[str, ...]
    has_targets: bool


def load_like(path: Location) -> Like:
    """Read what is taken over of a dataset, run or model."""
    if isinstance(path, Path) and not path.exists():
        raise UsageError(f"--like {path} does not exist{describe_set_aside(path)}")
    if (path / "manifest.json").exists():
        dataset = open_dataset(path)
        found: Any = dataset
        scaling, encoding = dataset.read_scaling(), encoding_of(dataset)
        indices = indices_of(dataset)
    else:
        from ..models.stored import load_model  # needed for this only

        found = load_model(path)
        scaling, encoding, indices = found.scaling, found.encoding, found.source_indices
    names = tuple(found.class_names or ())
    taken = (indices, found.n_features, found.classes)
    return Like(*taken, scaling, encoding, names, found.has_targets)


@dataclass(frozen=True, kw_only=True)
class Options(ConvertOptions):
    """Options of a conversion, with what they name."""

    memory: int
    chunk_size: int
    shard_size: int
    in_memory: bool  # the source is
    training: Like | None  # what `like` names
    value_dtype: np.dtype = field(init=False)
    first_index: int | None = field(init=False)  # of a feature; None where the indices that occur decide
    # indices of the training side's features, where these are not successive
    known_indices: SourceIndices | None = field(init=False)
    # options given that are about the indices of features, by their names on the command line
    index_options: list[str] = field(init=False)
    has_targets: bool = field(init=False)  # labels are numbers to predict
    scaling: Scaling = field(init=False)  # without the divisors, unless they are given

    def __post_init__(self) -> None:
        super().__post_init__()
        like, first = self.training, None if self.index_base == "auto" else int(self.index_base)
        known = None if like is None or like.indices.kept is None else like.indices
        given = {
            "--index-base": first is not None,
            "--n-features": self.n_features is not None,
            "--compact": self.compact and known is None,
        }
        self._set(
            value_dtype=np.dtype(self.dtype),
            first_index=first,
            known_indices=known,
            index_options=[name for name, is_given in given.items() if is_given],
            has_targets=self.target or (like is not None and like.has_targets),
            scaling=like.scaling if like else Scaling(self.scale, self.normalize),
        )


@dataclass(frozen=True)
class Plan:
    """Shares of the memory of a worker."""

    block_bytes: int
    max_line_bytes: int
    sort_bytes: int
    statistics_bytes: int
    map_bytes: int

    @property
    def decoder_bytes(self) -> int:
        """Memory to decompress with: that of the statistics, which are made later; at least what xz -6 takes."""
        return max(self.statistics_bytes, LEAST_DECODER_BYTES)

    @property
    def merge_bytes(self) -> int:
        """Memory to sort the strings of all tasks: no text is read then, and few rows are in memory."""
        return self.map_bytes + self.statistics_bytes

    def sums_bytes(self, rows_held: bool, scales_bytes: int) -> int:
        """Memory for the sums of features while shards are written, when no text is read and less is sorted."""
        whole = self.statistics_bytes if rows_held else 3 * self.statistics_bytes - self.map_bytes
        return max(whole - scales_bytes, self.statistics_bytes // 4)

    def check_scales(self, n_features: int, options: Options) -> None:
        """Refuse divisors that do not fit in the memory of the rows, which are sorted by then."""
        needed, room = 8 * n_features, self.sort_bytes
        # of what a worker has to spare, a half is for sorting, with a map three eighths
        enough = format_size(options.memory + options.workers * 3 * max(needed - room, 0))
        message = (
            f"--scale: the scales of {n_features:,} features need {format_size(needed)}, {format_size(room)} of --memory "
            f"are left for them; give about {enough}, use --normalize l2 instead, or --compact where few of them occur"
        )
        refuse(UsageError, (needed > room, message))


def make_plan(
    options: Options,
    reads_urls: bool,
    held_bytes: int = 0,
    numbers_strings: bool = False,
) -> Plan:
    """Divide the memory: each share is a fraction of what is left after the interpreter and the writer.

    `held_bytes` are those of the source, which may be known to number strings.
    """
    like, changes_values = options.training, options.scaling.changes_values
    scales_bytes = 0 if like is None or like.scaling.scales is None else like.scaling.scales.nbytes
    known = {
        "categories that are known": like.encoding.nbytes if like is not None and like.encoding else 0,
        "indices of the features that are known": 0 if like is None else like.indices.nbytes,
    }
    needs = {
        # copied from the sorted rows, cast, encoded, compressed; and scaled
        "chunks being written": (12 if changes_values else 10) * options.chunk_size,
        "chunks being made": 3 * options.chunk_size,  # while others are written
        "blocks being read": _LEAST_BYTES,
        "columns being read": held_bytes,
        "the client of URLs": REMOTE_BYTES if reads_urls else 0,
        **known,
        "scales of the features": 2 * scales_bytes,  # as stored, and as used
    }
    if options.workers == 1:
        advice = _HELD_ADVICE if held_bytes else "give a larger --memory"
        left = require(options.memory, needs, advice) + _LEAST_BYTES
    else:
        own = {"scales of the features": scales_bytes, **known}
        left = memory_per_worker(options.memory, options.workers, needs, own) + _LEAST_BYTES
    # a block takes three buffers of text and up to six times as much for its rows
    most = BLOCK_BYTES if options.workers == 1 else _BLOCK_BYTES_OF_SEVERAL
    block_bytes = min(max(left // 80, 1 << 16), most)
    # strings or indices may have to be numbered anew
    has_map = numbers_strings or options.compact or options.label or like is not None or options.in_memory
    in_map = left // 4 if has_map else 0
    return Plan(
        block_bytes=block_bytes,
        max_line_bytes=max(left // 24, block_bytes),
        sort_bytes=left // 2 - in_map // 2,
        statistics_bytes=left // 4,
        map_bytes=in_map,
    )

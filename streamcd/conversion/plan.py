"""Plan of a conversion: the files and properties that its options name, and the shares of the memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..core.errors import UsageError
from ..core.memory_budget import format_size, parse_size
from ..core.storage import Location, Url, location
from ..dataset.scaling import Scaling
from ..models.encoding import Encoding
from .options import ConvertOptions

_LEAST_DECODER_BYTES = 10 << 20


class Stamp(NamedTuple):
    """Properties of a file, or a server's version of a URL, that change when its content does."""

    device: int
    inode: int
    n_bytes: int | None
    modified: int
    version: str = ""

    @classmethod
    def of(cls, path: str) -> Stamp | None:
        """Return the stamp of a file or URL; None for what is no regular file, or missing."""
        if isinstance(url := location(path), Url):
            size, version = url.status()
            return cls(0, 0, size, 0, version)
        if not os.path.isfile(path):
            return None
        found = os.stat(path)
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


@dataclass(frozen=True)
class Like:
    """Properties of the training side that a conversion takes over."""

    name: str
    index_base: int
    n_features: int
    classes: np.ndarray | None
    label_kind: str
    scaling: Scaling
    encoding: Encoding | None = None
    class_names: tuple[str, ...] = ()
    has_targets: bool = False


@dataclass(frozen=True, kw_only=True)
class Options(ConvertOptions):
    """Options of a conversion, with what they name."""

    place: Location  # of the dataset
    in_memory: bool  # the source is
    training: Like | None  # what `like` names

    @property
    def memory_bytes(self) -> int:
        return parse_size(self.memory)

    @property
    def shard_bytes(self) -> int:
        return parse_size(self.shard_size)

    @property
    def chunk_bytes(self) -> int:
        return parse_size(self.chunk_size)

    @property
    def value_dtype(self) -> np.dtype:
        return np.dtype(self.dtype)

    @property
    def first_index(self) -> int | None:
        """The first index of a feature; None where the indices that occur decide."""
        return None if self.index_base == "auto" else int(self.index_base)

    @property
    def index_options(self) -> list[str]:
        """Options given that are about the indices of features, by their names on the command line."""
        given = (self.first_index is not None, self.n_features is not None, self.compact)
        names = ("--index-base", "--n-features", "--compact")
        return [name for name, is_given in zip(names, given, strict=True) if is_given]

    @property
    def has_targets(self) -> bool:
        """True where labels are numbers to predict."""
        return self.target or (self.training is not None and self.training.has_targets)

    @property
    def has_map(self) -> bool:
        """True where strings or indices may have to be numbered anew."""
        return self.compact or bool(self.label) or self.training is not None or self.in_memory

    @property
    def scaling(self) -> Scaling:
        """The scaling asked for; without the divisors, unless they are given."""
        return self.training.scaling if self.training else Scaling(self.scale, self.normalize)


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
        return max(self.statistics_bytes, _LEAST_DECODER_BYTES)

    @property
    def merge_bytes(self) -> int:
        """Memory to sort the strings of all tasks: no text is read then, and few rows are in memory."""
        return self.map_bytes + self.statistics_bytes

    def check_scales(self, n_features: int, options: Options) -> None:
        """Refuse divisors that do not fit in the memory of the rows, which are sorted by then."""
        needed = 8 * n_features
        if needed > self.sort_bytes:
            # of what a worker has to spare, a half is for sorting, with a map three eighths
            more = options.workers * 3 * (needed - self.sort_bytes)
            raise UsageError(
                f"--scale: the scales of {n_features:,} features need {format_size(needed)}, {format_size(self.sort_bytes)} "
                f"of --memory are left for them; give about {format_size(options.memory_bytes + more)}, use --normalize l2 "
                "instead, or --compact where few of the features occur"
            )

    def sums_bytes(self, rows_held: bool) -> int:
        """Memory for the sums of features while shards are written, when no text is read and less is sorted."""
        return self.statistics_bytes if rows_held else 3 * self.statistics_bytes - self.map_bytes

    def rows_bytes(self, with_sums: bool) -> int:
        """Memory for rows while shards are written; a bucket takes at most a quarter of `sort_bytes`, if keys are even."""
        return self.sort_bytes // 4 if with_sums else self.sort_bytes

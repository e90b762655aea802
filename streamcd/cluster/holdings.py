"""Shards on the workers' own disks: which directory has which, and which worker carries out which part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..core.errors import DatasetError
from ..core.metadata import Count, Kind, Positive, Structure, read_metadata
from ..core.storage import Location, file_sizes
from ..dataset.chunked_table import RowTable
from ..dataset.dataset import Dataset
from ..dataset.manifests import stored_name
from .placement import MOST_PARTS

VARIABLE = "STREAMCD_DATASET_AT"
"""Environment variable that tells a worker its directory of shards."""

FILE = "distribution.json"


class Distribution(Structure):
    """``distribution.json``: the shards of every part of a dataset, and the `number` of the directory that it is in."""

    dataset: str  # its fingerprint
    parts: list[list[Count]]
    copies: Positive
    number: Count
    places: list[str]  # of all directories, as they were named

    def shards(self) -> list[int]:
        """Return the shards that the directory has: its own part, and those before it of which it has copies."""
        n_parts = len(self.parts)
        return sorted(
            shard for back in range(self.copies) for shard in self.parts[(self.number - back) % n_parts]
        )


DISTRIBUTION = Kind(
    "streamcd-distribution",
    1,
    Distribution,
    DatasetError,
    "distribute the dataset again into an empty directory",
)


@dataclass(frozen=True)
class Holding:
    """The shards that a worker has in a directory of its own."""

    distribution: Distribution
    shards: frozenset[int]


def read_holding(place: Location, fingerprint: str, dataset: Dataset) -> Holding:
    """Find the shards of a dataset in a directory; refused where they are those of another."""
    try:
        distribution = read_metadata(place / FILE, DISTRIBUTION)[1]
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetError(
            f"{place}: expected shards from 'streamcd distribute', found no {FILE}; set {VARIABLE} to a directory "
            "that has one"
        ) from None
    if distribution.dataset != fingerprint:
        raise DatasetError(
            f"{place}: expected shards of the dataset {fingerprint}, found those of {distribution.dataset}; distribute it "
            "again into an empty directory"
        )
    missing = missing_files(place, dataset, distribution.shards())
    if missing:
        raise DatasetError(
            f"{place / missing[0]}: missing or cut short; 'streamcd distribute' again goes on there"
        )
    return Holding(distribution, frozenset(distribution.shards()))


def missing_files(place: Location, dataset: RowTable, shards: Sequence[int]) -> list[str]:
    """Return the files of shards that are not there in full."""
    files = {name: n_bytes for shard in shards for name, n_bytes, _ in files_of(dataset, shard)}
    sizes = file_sizes(place, list(files))
    return [name for (name, n_bytes), found in zip(files.items(), sizes, strict=True) if found != n_bytes]


def files_of(dataset: RowTable, shard: int) -> list[tuple[str, int, str]]:
    """Return name, bytes and checksum of the files of a shard."""
    part = dataset.manifest["parts"][shard]
    names = {
        table: stored_name(part[table], dataset.manifest, part.get("folder", "")) for table in dataset.TABLES
    }
    return [(name, part[f"{table}_bytes"], part[f"{table}_checksum"]) for table, name in names.items()]


def place_parts(parts: Sequence[Sequence[int]], holdings: Mapping[str, Holding | None]) -> list[str]:
    """Return the worker of every part: its own if it is there, else one with a copy; empty where nobody has its shards.

    A worker without a holding sees all shards.
    """
    load, placed = Counter[str](), []
    for number, shards in enumerate(parts):
        able = [
            name
            for name, held in sorted(holdings.items())
            if load[name] < MOST_PARTS and (held is None or held.shards.issuperset(shards))
        ]
        own = {name for name in able if (held := holdings[name]) and held.distribution.number == number}
        placed.append(min(able, key=lambda name: (load[name], name not in own), default=""))
        load[placed[-1]] += 1
    return placed

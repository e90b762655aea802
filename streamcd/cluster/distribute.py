"""Dealing of a dataset's shards to directories of workers that share no disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..core.atomic_files import make_directory, replacing, write_file
from ..core.errors import DatasetError, UsageError
from ..core.locks import locked
from ..core.metadata import metadata_text, read_metadata
from ..core.progress import Listener, Progress, ends_progress
from ..core.storage import Location, Url, file_sizes, writable
from ..dataset.dataset import Dataset, open_dataset
from ..dataset.parquet import file_checksum
from ..solvers.block_sums import Blocks
from .assignment import BlockAssignment
from .holdings import DISTRIBUTION, FILE, Distribution, files_of
from .rounds import shard_entries

_MANIFEST = "manifest.json"
_BLOCK = 1 << 22
# of which trainings have no use
_LEFT_OUT = ("kept.parquet", "categories.parquet", "indices.parquet", "scaling.parquet")

File = tuple[str, int, str]
"""Name, bytes and checksum."""


@ends_progress
def distribute(
    dataset: str | os.PathLike[str],
    places: Sequence[str | os.PathLike[str]],
    *,
    copies: int = 1,
    listener: Listener | None = None,
) -> list[dict[str, Any]]:
    """Deal the shards of a dataset on disk to directories, or folders of buckets, of workers; goes on where one stopped.

    Every directory gets the manifest, the tables of chunks and features, and its own shards: neighbouring ones, and about as
    many entries as the others. The manifest comes last, so that a directory without one is not taken for complete.

    Parameters
    ----------
    dataset : str or Path
    places : list of str or Path
        One for each worker.
    copies : int
        Number of directories that have each shard.
    listener : Listener, optional

    Returns
    -------
    list of dict
        ``place``, ``shards``, ``bytes`` of them and bytes ``copied`` now, of each directory.

    Raises
    ------
    UsageError
        If there are fewer shards than directories, or one of them holds something else.
    DatasetError
        If a file is not what the manifest lists.

    Examples
    --------
    >>> made = streamcd.distribute("data", ["worker-0"])
    >>> made[0]["place"], made[0]["shards"]
    ('worker-0', [0])
    """
    source, listener = open_dataset(dataset), listener or Listener()
    if isinstance(source.path, Url):
        raise UsageError(
            f"{source.path}: expected a dataset on disk, found a URL; workers read it there as it is"
        )
    targets = [writable(place, "shards of a dataset") for place in places]
    plan = _plan(source, targets, copies)
    records = [plan.but(number=number) for number in range(len(targets))]
    work = [_listed(source, record) for record in records]
    for target, record in zip(targets, records, strict=True):
        _check_target(target, record)
    made, done, total = [], 0, sum(n_bytes for files in work for _, n_bytes, _ in files)
    for target, record, files in zip(targets, records, work, strict=True):
        copied = 0
        for n_bytes, new in _fill(target, source, record, files):
            done, copied = done + n_bytes, copied + new
            listener.progress(Progress("distribute", done, total, "B"))
        size = sum(n_bytes for _, n_bytes, _ in files)
        found = {"place": str(target), "shards": record.shards(), "bytes": size, "copied": copied}
        made.append(found)
    return made


def _plan(source: Dataset, targets: Sequence[Location], copies: int) -> Distribution:
    names = [str(target) for target in targets]
    if not 1 <= copies <= len(names):
        raise UsageError(
            f"--copies: expected 1 to {len(names)}, one for each directory at most, found {copies}"
        )
    if len(set(names)) < len(names):
        raise UsageError(f"{names}: expected a directory for each worker, found one twice")
    if source.n_shards < len(names):
        raise UsageError(
            f"{source.path}: expected a shard for each of {len(names)} directories, found {source.n_shards}; 'streamcd "
            "convert' with a smaller --shard-size makes more"
        )
    entries = shard_entries(source)
    blocks = Blocks(source, source.n_features**2)  # of which newton wants each in one place
    if blocks.tree.n_blocks < len(names):
        blocks = Blocks(source, 1)
    dealt = BlockAssignment(entries, blocks.of_shard).of_round(0, names)
    return Distribution(source.fingerprint, [dealt.get(name, []) for name in names], copies, 0, names)


def _listed(source: Dataset, record: Distribution) -> list[File]:
    """Return the files of a directory, without the manifest: small ones, then those of its shards."""
    of_shards = {file for shard in range(source.n_shards) for file in files_of(source, shard)}
    small = [
        file
        for file in source.listed_files(source.manifest)
        if file not in of_shards and Path(file[0]).name not in _LEFT_OUT
    ]
    return small + [file for shard in record.shards() for file in files_of(source, shard)]


def _check_target(target: Location, record: Distribution) -> None:
    """Refuse a directory with anything else in it than a part of this distribution."""
    try:
        found = read_metadata(target / FILE, DISTRIBUTION)[1]
    except (FileNotFoundError, NotADirectoryError):
        there = target.find() if isinstance(target, Url) else [*target.iterdir()] if target.is_dir() else []
        if there or (isinstance(target, Path) and target.exists() and not target.is_dir()):
            raise UsageError(
                f"{target}: expected an empty directory, found other files; name another one"
            ) from None
        return
    if found != record:
        raise UsageError(
            f"{target}: expected an empty directory, or one of this distribution, found shards of another one; remove "
            "it, or name another"
        )


def _fill(
    target: Location, source: Dataset, record: Distribution, files: Sequence[File]
) -> Iterator[tuple[int, int]]:
    """Copy the files that are not there in full; yields the bytes of each, and those copied now."""
    folder = source.path
    assert isinstance(folder, Path)
    with _alone(target):
        _write(target / FILE, metadata_text(DISTRIBUTION, record.record()))
        sizes = list(file_sizes(target, [name for name, *_ in files]))
        for (name, n_bytes, checksum), found in zip(files, sizes, strict=True):
            if found != n_bytes:
                _copy(folder / name, target / name, checksum)
            yield n_bytes, 0 if found == n_bytes else n_bytes
        _write(target / _MANIFEST, (folder / _MANIFEST).read_bytes())


@contextmanager
def _alone(target: Location) -> Iterator[None]:
    """Make a directory, and keep other processes from writing there."""
    if isinstance(target, Url):
        yield
        return
    make_directory(target)
    with locked(target, "another process writes there; wait for it, or name another directory"):
        yield


def _write(path: Location, data: bytes) -> None:
    if isinstance(path, Url):
        path.put(data, path.version())
    else:
        write_file(path, data)


def _copy(path: Path, target: Location, checksum: str) -> None:
    """Copy a file, which appears whole; refused where it is not what the manifest lists."""
    if isinstance(target, Url):
        _check(path, file_checksum(path), checksum)
        target.upload(path)
        return
    make_directory(target.parent)
    digest = hashlib.sha256()
    with replacing(target) as partial:
        with open(path, "rb") as file, open(partial, "wb") as copy:
            while block := file.read(_BLOCK):
                digest.update(block)
                copy.write(block)
        _check(path, f"sha256:{digest.hexdigest()}", checksum)


def _check(path: Path, found: str, checksum: str) -> None:
    if found != checksum:
        raise DatasetError(
            f"{path}: checksum differs from the manifest's; restore the file or convert the data again"
        )

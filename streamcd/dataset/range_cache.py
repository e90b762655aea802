"""A bounded cache on local disk of ranges of a dataset's files at a URL, for passes after the first.

A directory is one dataset's, and keeps the first shards that fit, for good: every pass visits all ranges, so that a cache
that gave up some for others would find no more. Which those are follows from the sizes of the files alone: processes that
share a directory need neither locks nor counts.

A range is a file, in a folder named by the seal of its table's manifest, with the CRC-32 of the bytes after them: one
that was cut short or changed counts as missing.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..core.atomic_files import write_file
from ..core.errors import UsageError
from ..core.memory_budget import parse_size
from ..core.options import Place, Section, Size, option
from ..core.progress import warn_once
from ..core.storage import Ranges, Url, is_url, local_path

DEFAULT_SIZE = "10GB"

_MARK = "streamcd-cache"
"""Name of the file with the seal of the manifest and the URL of the dataset; a directory with other content, and without it,
is not ours."""
_CRC_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """Options of what reads datasets at URLs."""

    cache: Place = option(
        None,
        "Keep what is read of a dataset at a URL in this directory (of every worker), and read it there the next time.",
        kind="path",
        metavar="DIR",
        section=Section.PROCESSORS,
    )
    cache_size: Size | None = option(
        None,
        "Largest size of that directory.",
        metavar="SIZE",
        default_is=DEFAULT_SIZE,
        section=Section.PROCESSORS,
    )


class CachedFile(NamedTuple):
    """A file worth keeping: its folder and name, its size, and the number of ranges in which it is read."""

    name: str
    n_bytes: int
    n_ranges: int


@dataclass(frozen=True)
class Cache:
    """A directory for a cache, and the largest number of bytes in it."""

    directory: str
    n_bytes: int

    def open(self, dataset: str, url: str, table: str, files: Iterable[CachedFile]) -> CachedRanges:
        """Open it for a table of a dataset, both by the seals of their manifests, whose `files` are kept in this order.

        Raises `UsageError` where the directory is another dataset's.
        """
        directory = Path(self.directory)
        _claim(directory, dataset, url)
        left = self.n_bytes - sum(
            _folder_bytes(path) for path in directory.iterdir() if path.is_dir() and path.name != table
        )
        limits = {}
        for name, n_bytes, n_ranges in files:
            overhead = _CRC_BYTES * n_ranges
            limits[name] = min(n_bytes, max(left - overhead, 0))
            left -= n_bytes + overhead
        return CachedRanges(directory / table, limits)


def asked_cache(
    directory: str | os.PathLike[str] | None, size: int | str | None, data: str | os.PathLike[str]
) -> Cache | None:
    """Return the cache that is asked for; refused for data on disk, and where something else is in its place."""
    if directory is None:
        if size is not None:
            raise UsageError("cache_size: it is the bound of a cache; give --cache DIR as well")
        return None
    if not is_url(data):
        raise UsageError(f"cache: it is for a dataset at a URL, found {data} on disk; leave --cache out")
    path = local_path(directory, "a cache").absolute()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    is_cache = (path / _MARK).is_file() or not any(path.iterdir())
    if path.stat().st_uid != os.geteuid() or not is_cache:
        raise UsageError(
            f"{path}: expected an empty directory of yours, or a cache, found something else; name another place"
        )
    return Cache(str(path), parse_size(DEFAULT_SIZE if size is None else size))


def _claim(directory: Path, seal: str, url: str) -> None:
    """Mark a directory as a dataset's; refused where it is another's."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    mark = directory / _MARK
    if not mark.exists():
        write_file(mark, f"{seal}\n{url}\n".encode())
    found, _, name = mark.read_text(errors="replace").partition("\n")
    if found != seal:
        raise UsageError(
            f"{directory}: expected a cache of {url} as it is (files {seal}), found one of {name.strip()} (files {found}); "
            "a cache is for one dataset: name another directory, or remove this one"
        )


def _folder_bytes(folder: Path) -> int:
    n_bytes = 0
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):  # damaged, and removed by another process
            n_bytes += entry.stat().st_size
    return n_bytes


class CachedRanges(Ranges):
    """Ranges of the files of one table, kept up to a `limit` in each file; may be used by several threads."""

    def __init__(self, folder: Path, limits: dict[str, int]) -> None:
        self._folder, self._limits = folder, limits
        folder.mkdir(mode=0o700, exist_ok=True)
        for path in folder.glob("*.partial"):  # of a process that was killed, or will not mind
            path.unlink(missing_ok=True)

    def read(self, url: Url, offset: int, n_bytes: int) -> bytes:
        """Read a range from the cache, or from its URL into the cache."""
        folder, name = url.text.split("/")[-2:]
        path = self._path(url, offset, n_bytes)
        found = self._load(path, n_bytes)
        if found is None:
            found = url.read(offset, n_bytes)
            if len(found) == n_bytes and offset + n_bytes <= self._limits.get(f"{folder}/{name}", 0):
                self._store(path, found)
        return found

    def forget(self, url: Url, offset: int, n_bytes: int) -> None:
        """Remove a range that is not what the table says: it came so from its URL, and may come right the next time."""
        self._path(url, offset, n_bytes).unlink(missing_ok=True)

    def _path(self, url: Url, offset: int, n_bytes: int) -> Path:
        *_, folder, name = url.text.split("/")
        return self._folder / f"{folder}-{name}-{offset}-{n_bytes}"

    def _load(self, path: Path, n_bytes: int) -> bytes | None:
        try:
            content = path.read_bytes()
        except OSError:  # not there, or on a disk that fails
            return None
        found, crc = content[:-_CRC_BYTES], content[-_CRC_BYTES:]
        if len(found) == n_bytes and zlib.crc32(found).to_bytes(_CRC_BYTES, "little") == crc:
            return found
        path.unlink(missing_ok=True)
        return None

    def _store(self, path: Path, data: bytes) -> None:
        partial = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.partial")
        try:
            with open(partial, "xb") as file:
                file.write(data)
                file.write(zlib.crc32(data).to_bytes(_CRC_BYTES, "little"))
            with suppress(FileNotFoundError):  # another process has just opened the cache
                os.replace(partial, path)
        except OSError as error:
            self._limits = {}
            partial.unlink(missing_ok=True)
            warn_once(f"{self._folder.parent}: nothing more is cached there: {error.strerror}")

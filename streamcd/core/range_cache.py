"""A bounded cache on local disk of ranges of files at URLs, for passes after the first.

A range is a file, in a folder named by the fingerprint of its table, with the CRC-32 of the bytes after them: one that was
cut short or changed counts as missing. A full cache takes no more. Every pass visits all ranges: a cache that gave up what
was read longest ago would find nothing, one that keeps what it has finds the same share in each. Only the folders of tables
that nobody reads make room, the one used longest ago first.

Processes may share a directory. The file that counts its bytes is locked for each change, and counted anew at opening; the
lock of a folder tells that it is in use.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from .errors import UsageError
from .locks import release_lock, share_lock, take_lock
from .memory_budget import parse_size
from .options import Option, Section
from .progress import warn_once
from .storage import Ranges, Url, is_url, local_path

DEFAULT_SIZE = "10GB"

CacheDirectory = Annotated[
    str | Path | None,
    Option(
        "Keep what is read of a dataset at a URL in this directory (of every worker), and read it there the next time.",
        kind="path",
        metavar="DIR",
        section=Section.PROCESSORS,
    ),
]
CacheSize = Annotated[
    int | str | None,
    Option(
        "Largest size of that directory.", metavar="SIZE", default_is=DEFAULT_SIZE, section=Section.PROCESSORS
    ),
]

_COUNT = "streamcd-cache"
"""Name of the file that counts bytes; a directory with other content, and without it, is not ours."""
_FOLDER = re.compile(r"[0-9a-f]{32}")
_CRC_BYTES = 4


@dataclass(frozen=True)
class Cache:
    """A directory for a cache, and the largest number of bytes in it."""

    directory: str
    n_bytes: int

    def open(self, fingerprint: str) -> CachedRanges:
        """Open it for the table of this fingerprint."""
        return CachedRanges(self, fingerprint)


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
    with _counted(path):
        return Cache(str(path), parse_size(DEFAULT_SIZE if size is None else size))


@contextmanager
def _counted(directory: Path) -> Iterator[int]:
    """Hold the file that counts the bytes, in a directory that is made where it is not there; yields a descriptor."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    is_cache = (directory / _COUNT).is_file() or not any(directory.iterdir())
    if directory.stat().st_uid != os.geteuid() or not is_cache:
        raise UsageError(
            f"{directory}: expected an empty directory of yours, or a cache, found something else; name another place"
        )
    descriptor = os.open(directory / _COUNT, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # for a copy of this process too, which has the file open
        os.close(descriptor)


def _folder_bytes(folder: Path) -> int:
    n_bytes = 0
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):  # damaged, and removed by another process
            n_bytes += entry.stat().st_size
    return n_bytes


def _release(lock: int, owner: int) -> None:
    """Release a table's lock in the process that took it; its copies have let go of theirs."""
    if os.getpid() == owner:
        release_lock(lock)


class CachedRanges(Ranges):
    """Ranges of the files of one table, in use until `close` or until it is let go; may be used by several threads."""

    def __init__(self, cache: Cache, fingerprint: str) -> None:
        self._cache, self._fingerprint = cache, fingerprint
        self._directory = Path(cache.directory)
        self._folder = self._directory / fingerprint
        self._is_full = False
        with _counted(self._directory) as count:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._remove_unfinished()
            lock = share_lock(self._folder / "lock")
            self.close = weakref.finalize(self, _release, lock, os.getpid())
            os.utime(self._folder / "lock")
            self._set(count, sum(map(_folder_bytes, self._folders())))

    def read(self, url: Url, offset: int, n_bytes: int) -> bytes:
        """Read a range from the cache, or from its URL into the cache."""
        path = self._path(url, offset, n_bytes)
        found = self._load(path, n_bytes)
        if found is None:
            found = url.read(offset, n_bytes)
            if len(found) == n_bytes and not self._is_full:
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
        partial = path.with_name(path.name + ".partial")
        try:
            if self._make_place(partial, len(data) + _CRC_BYTES):
                with open(partial, "r+b") as file:
                    file.write(data)
                    file.write(zlib.crc32(data).to_bytes(_CRC_BYTES, "little"))
                with _counted(self._directory):
                    os.replace(partial, path)
        except OSError as error:
            self._is_full = True
            partial.unlink(missing_ok=True)
            warn_once(f"{self._cache.directory}: nothing more is cached there: {error.strerror}")

    def _make_place(self, partial: Path, n_bytes: int) -> bool:
        """Make a file of this size, counted; false where there is no room, or another process writes it."""
        with _counted(self._directory) as count:
            used = int(os.pread(count, 32, 0) or b"0")
            if used + n_bytes > self._cache.n_bytes:
                used -= self._make_room(used + n_bytes - self._cache.n_bytes)
            if used + n_bytes > self._cache.n_bytes:
                self._is_full = True
                self._set(count, used)
                return False
            try:
                os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            except FileExistsError:
                return False
            os.truncate(partial, n_bytes)
            self._set(count, used + n_bytes)
            return True

    def _set(self, count: int, n_bytes: int) -> None:
        os.pwrite(count, f"{n_bytes:<31}\n".encode(), 0)

    def _folders(self) -> list[Path]:
        return [path for path in self._directory.iterdir() if _FOLDER.fullmatch(path.name) and path.is_dir()]

    def _make_room(self, n_bytes: int) -> int:
        """Remove the folders of other tables that nobody reads, until there is room; returns the bytes removed."""
        removed = 0
        others = [path for path in self._folders() if path != self._folder and (path / "lock").is_file()]
        for folder in sorted(others, key=lambda path: (path / "lock").stat().st_mtime):
            if removed < n_bytes and (lock := take_lock(folder / "lock")) is not None:
                removed += _folder_bytes(folder)
                shutil.rmtree(folder, ignore_errors=True)
                release_lock(lock)
        return removed

    def _remove_unfinished(self) -> None:
        """Remove what killed processes were writing, where nobody reads the table now."""
        with suppress(FileNotFoundError):
            lock = take_lock(self._folder / "lock")
            if lock is not None:
                for path in self._folder.glob("*.partial"):
                    path.unlink(missing_ok=True)
                release_lock(lock)

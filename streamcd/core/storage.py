"""Files on disk or at a URL: the one door to fsspec, which is loaded where a URL is met.

A URL is s3://, gs:// or https://; http:// is for this machine only, and file:// is a path. Credentials come from where the
scheme's own library looks for them, the environment and its files, and from nowhere else; it also asks again what fails for
a moment. Failures are the system's errors: what is missing, not permitted, or not to be had. URLs are read, never written.
"""

from __future__ import annotations

import errno
import glob
import io
import os
import re
import stat
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from .errors import UsageError

REQUESTS_AT_A_TIME = 16
"""Chunks requested ahead; with 50 ms a request, a training of 100 MB in windows took 1.5 to 1.7 times as long as without."""

NO_FILE = -1
"""In place of a size."""

_BLOCK_BYTES = 4 << 20
_BLOCKS_HELD = 3
REMOTE_BYTES = 100_000_000 + 2 * _BLOCKS_HELD * _BLOCK_BYTES
"""Memory of whoever reads URLs: fsspec, s3fs, botocore and aiohttp (39 MB after the first request, on Linux x86-64), and the
blocks of a file with their copies on the way."""

AHEAD_BYTES = 24_000_000
"""Bytes of a dataset that are read ahead by all readers: as much as the requests under way bring."""

DATASET_BYTES = REMOTE_BYTES + 2 * AHEAD_BYTES
"""Memory of whoever reads a dataset at a URL: ranges are there twice as they come."""

_LIBRARIES = {"s3": "s3fs", "gs": "gcsfs", "https": "aiohttp", "http": "aiohttp"}
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_NO_BUCKET = re.compile(r"NoSuchBucket|bucket does not exist")
_LISTED = ("s3", "gs")  # have folders and patterns
_LASTING = (errno.EINVAL, errno.EPERM, errno.EACCES, errno.ENOENT, errno.ENOSYS, errno.EISDIR, errno.ENOTDIR)
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {
        "use_listings_cache": False,
        # one attempt: s3fs repeats them
        "config_kwargs": {
            "max_pool_connections": REQUESTS_AT_A_TIME,
            "retries": {"total_max_attempts": 1, "mode": "standard"},
        },
    },
    "gs": {"use_listings_cache": False},
}


class Status(NamedTuple):
    """Description of a file by its server: `size` is None where it can only be read from its beginning to its end."""

    size: int | None
    version: str


@dataclass(frozen=True)
class Url(os.PathLike[str]):
    """An object in a bucket, or a file on a server; as far as they go, the methods are those of `pathlib.Path`."""

    text: str
    known_size: int | None = field(default=None, compare=False)
    """Bytes of the file, where a manifest lists them: nobody asks the server then."""

    def __post_init__(self) -> None:
        if self.scheme not in _LIBRARIES:
            raise UsageError(
                f"{self.text}: expected s3://, gs://, https:// or file://, found {self.scheme}://; name another place"
            )
        if self.scheme == "http" and urlsplit(self.text).hostname not in _LOOPBACK:
            raise UsageError(
                f"{self.text}: expected https://, found http://, by which anybody on the way can change the data; "
                "use https://, or download it first"
            )

    @property
    def scheme(self) -> str:
        return self.text.partition("://")[0].lower()

    @property
    def is_bucket(self) -> bool:
        """True where there are folders and patterns."""
        return self.scheme in _LISTED

    @property
    def name(self) -> str:
        return self.text.rstrip("/").rpartition("/")[2]

    def __truediv__(self, name: str | Path) -> Url:
        return Url(f"{self.text.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.text

    def __fspath__(self) -> str:
        return self.text

    def resolve(self) -> Url:
        return self

    def status(self) -> Status:
        """Ask for size and version: one request."""
        with self.failing_as_system():
            if self.is_bucket:
                facts = self._files().info(self.text)
                if facts["type"] != "file":
                    raise FileNotFoundError(self.text)
                version = facts.get("ETag") or facts.get("etag") or facts.get("LastModified")
                return Status(facts["size"], str(version))
            # the answer to a request for the first byte tells whether ranges are served; `info` does not
            with self._files().open(self.text, block_size=0, headers={"Range": "bytes=0-0"}) as file:
                headers = file.r.headers
                size = headers.get("Content-Range", "").rpartition("/")[2] if file.r.status == 206 else ""
                version = headers.get("ETag") or headers.get("Last-Modified", "")
                return Status(int(size) if size.isdigit() else None, version)

    def size(self) -> int:
        """Bytes of a file that can be read at any place; others are refused."""
        n_bytes = self.status().size
        if n_bytes is None:
            raise UsageError(
                f"{self.text}: expected a server that gives ranges of bytes, found one that does not; "
                "download the data first"
            )
        return n_bytes

    def exists(self) -> bool:
        """True for a file; what may not be looked at is not there, as S3 says where it may not be listed either."""
        try:
            self.status()
        except (FileNotFoundError, PermissionError):
            return False
        return True

    is_file = exists

    def read_bytes(self) -> bytes:
        """Read a small file."""
        with self.failing_as_system():
            return self._files().cat_file(self.text)

    def read(self, offset: int, n_bytes: int) -> bytes:
        """Read a range, or as much of it as there is; one request."""
        if n_bytes <= 0:
            return b""
        with self.failing_as_system():
            content = self._files().cat_file(self.text, start=offset, end=offset + n_bytes)
            if len(content) > n_bytes:
                raise OSError(errno.ENOSYS, "the server gives no ranges of bytes; download it first")
            return content

    def open(self, size: int | None) -> Any:
        """Open a file of known size in blocks, of which the next one is read ahead; another in pieces as they come."""
        how: dict[str, Any] = {"block_size": 0}
        if size is not None:
            cache = {"cache_type": "background", "cache_options": {"maxblocks": _BLOCKS_HELD}}
            how = {"block_size": _BLOCK_BYTES, "size": size, **cache}
        with self.failing_as_system():
            return self._files().open(self.text, **how)

    def expand(self) -> list[Url]:
        """List the files that are meant: this one, or those in this folder, or in those that match, and below."""
        if not self.is_bucket:
            return [self] if self.exists() else []
        listed = {self.text: {"type": "directory"}}
        with self.failing_as_system():
            files = self._files()
            if glob.has_magic(self.text):
                listed = files.glob(self.text, detail=True)
            for folder in [name for name, about in listed.items() if about["type"] == "directory"]:
                listed |= files.find(folder, detail=True)
        # an object whose name ends so stands for a folder
        names = [name for name, about in listed.items() if about["type"] == "file" and not name.endswith("/")]
        return [Url(f"{self.scheme}://{name}") for name in sorted(names)]

    def download(self, path: Path) -> None:
        """Copy the file to disk, in blocks."""
        with self.failing_as_system():
            self._files().get_file(self.text, os.fspath(path))

    def find(self) -> dict[str, int]:
        """List the files below, in whatever depth: the size of each by its name from here on."""
        with self.failing_as_system():
            files = self._files().find(self.text, detail=True)
        start = len(self.text.partition("://")[2].rstrip("/")) + 1
        return {name[start:]: entry["size"] for name, entry in files.items()}

    # -- requests -----------------------------------------------------------------------------------------------------

    def _files(self) -> Any:
        """The library's file system; it keeps its connections itself."""
        try:
            import fsspec  # a URL is met

            return fsspec.filesystem(self.scheme, **_OPTIONS.get(self.scheme, {}))
        except ImportError as error:
            library = _LIBRARIES[self.scheme]
            raise UsageError(
                f"{self.text}: expected fsspec and {library} to be installed, found that they are not ({error}); "
                f"pip install 'streamcd[{'gcs' if library == 'gcsfs' else 'remote'}]'"
            ) from None

    @contextmanager
    def failing_as_system(self) -> Iterator[None]:
        """Turn errors of the library into the system's, with the name of the file."""
        try:
            yield
        except UsageError:
            raise
        except Exception as error:
            raise _system_error(error, self.text) from error


Location = Path | Url


def is_url(path: str | os.PathLike[str]) -> bool:
    """Tell a URL from a path; file:// is a path."""
    text = os.fspath(path)
    return "://" in text and text.partition("://")[0].isalnum() and not text.lower().startswith("file://")


def location(path: str | os.PathLike[str] | None, what: str = "a path") -> Location:
    """The path or URL that is meant, which a refusal describes as `what`."""
    if isinstance(path, Path | Url):
        return path
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"expected {what}, found {'none' if path is None else type(path).__name__}")
    text = os.fsdecode(path)
    if is_url(text):
        return Url(text)
    return Path(unquote(urlsplit(text).path)) if text.lower().startswith("file://") else Path(text)


def local_path(path: str | os.PathLike[str] | None, what: str) -> Path:
    """The path of what is written, replaced and locked, which a URL cannot be."""
    place_of = location(path, f"the path of {what}")
    if isinstance(place_of, Url):
        raise UsageError(
            f"{path}: expected {what} on a disk, found a URL; URLs are read, what is written is on a disk"
        )
    return place_of


def local_copy(url: Url, directory: Path) -> Path:
    """The copy of a file of known size in a directory, made where it is not there; processes may share the directory."""
    path = directory / url.name
    if not path.is_file() or path.stat().st_size != url.known_size:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.partial")
        try:
            url.download(partial)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    return path


def _system_error(error: Exception, name: str) -> OSError:
    """The system's error for a library's, EIO where another attempt may help."""
    text = " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__
    status = getattr(error, "status", None) or 0  # aiohttp's
    number = error.errno if isinstance(error, OSError) and error.errno in _LASTING else errno.EIO
    if isinstance(error, FileNotFoundError):
        number = errno.ENOENT
        text = "no such bucket" if _NO_BUCKET.search(text) else "no such object"
    elif isinstance(error, PermissionError) or status in (401, 403):
        number = errno.EACCES
        text = f"no permission ({text}); check the credentials"
    elif "Credentials" in type(error).__name__ or type(error).__name__ == "ProfileNotFound":
        number = errno.EACCES
        text = f"{text}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    elif 400 <= status < 500 and status != 429:
        number = errno.EINVAL
    return OSError(number, text, name)


# ---------------------------------------------------------------------------------------------------------------------
# Files


def file_size(path: str | Location) -> int | None:
    """Bytes of a file that can be read at any place; None for a pipe, and for what a server gives as a whole only."""
    place_of = location(path)
    if isinstance(place_of, Url):
        return place_of.status().size
    return os.path.getsize(place_of) if os.path.isfile(place_of) else None


def file_sizes(folder: Location, names: Iterable[str]) -> Iterable[int | None]:
    """Bytes of files in a folder: None for what is missing, `NO_FILE` for a device, a pipe or a directory."""
    if not isinstance(folder, Url):
        return (_size_there(folder / name) for name in names)
    if folder.is_bucket:
        with suppress(PermissionError):  # to list; then file by file
            return list(map(folder.find().get, names))
    with ThreadPoolExecutor(REQUESTS_AT_A_TIME) as threads:
        return list(threads.map(lambda name: _size_there(folder / name), names))


def _size_there(path: Location) -> int | None:
    try:
        if isinstance(path, Url):
            return path.size()
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else NO_FILE


def open_bytes(path: str | Location) -> io.RawIOBase:
    """Open a file for reading, without a buffer of Python's."""
    place_of = location(path)
    if not isinstance(place_of, Url):
        return open(place_of, "rb", buffering=0)
    size = place_of.status().size if place_of.known_size is None else place_of.known_size
    return _RemoteFile(place_of, size)


class _RemoteFile(io.RawIOBase):
    """A file of fsspec's, with failures as the system's errors; of unknown size where it can only be read to its end."""

    def __init__(self, url: Url, size: int | None) -> None:
        self._url = url
        self._size = size
        self._file = url.open(size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._size is not None

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        with self._url.failing_as_system():
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()

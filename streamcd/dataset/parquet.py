"""Reading of Parquet files, a row group at a time, and checksums of files."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import weakref
import zlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..core import storage
from ..core.errors import DatasetError, EnvironmentFailure, StreamcdError
from ..core.storage import Location, Url, local_copy, open_bytes, with_size
from .arrow_columns import numbers_of
from .read_ahead import AHEAD_BYTES, ReadAhead

# Arrow's default allocator, mimalloc, fragments with chunks of unequal sizes: reading the 916 chunks of a column layout in
# random order it grew from 148 to 240 MB, jemalloc from 142 to 155; and jemalloc decoded 300 M entries/s, mimalloc 200.
if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ and "jemalloc" in pa.supported_memory_backends():
    pa.set_memory_pool(pa.jemalloc_memory_pool())

NO_CRC = -1
"""In place of a checksum if none was recorded."""

_COPY_BYTES = 1 << 22

_ENVIRONMENT = (errno.EIO, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.ENOSYS)
"""Errors that do not mean that the file's content is damaged."""


def file_checksum(path: Location) -> str:
    """Compute the SHA-256 of a file, as ``"sha256:<hex>"``."""
    digest = hashlib.sha256()
    with open_bytes(path) as file:
        while block := file.read(_COPY_BYTES):
            digest.update(block)
    return "sha256:" + digest.hexdigest()


@contextlib.contextmanager
def reading(path: Location, where: str = "") -> Iterator[None]:
    """Turn the errors that pyarrow raises for a damaged file into a `DatasetError` that names the file, in one line."""
    location = f"{path}, {where}" if where else str(path)
    try:
        yield
    except FileNotFoundError:
        raise DatasetError(f"{location}: the file is missing; restore it or convert the data again") from None
    except StreamcdError:
        raise
    except (OSError, pa.ArrowException, KeyError, ValueError, IndexError) as error:
        if isinstance(error, OSError) and error.errno in _ENVIRONMENT:
            raise EnvironmentFailure(f"{location}: {error.strerror}") from None
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DatasetError(
            f"{location}: damaged ({reason}); run 'streamcd verify', restore the file or convert the data again"
        ) from None


def column_values(column: pa.ChunkedArray) -> np.ndarray:
    """Return the numbers of a column without nulls; the array is read-only."""
    if column.num_chunks == 1:
        return numbers_of(column.chunk(0))
    arrays = [numbers_of(array) for array in column.chunks]
    return np.concatenate(arrays) if arrays else np.empty(0, column.type.to_pandas_dtype())


def parquet_file(path: Location, **options: Any) -> pq.ParquetFile:
    if isinstance(path, Url):
        return pq.ParquetFile(pa.PythonFile(io.BufferedReader(open_bytes(path)), mode="r"), **options)
    return pq.ParquetFile(path, **options)


def read_table(path: Location, checksum: str, remedy: str) -> dict[str, np.ndarray]:
    """Read all columns of a small file at once, verifying its checksums; `remedy` is the advice where they differ."""
    with reading(path):
        content = path.read_bytes()
        if "sha256:" + hashlib.sha256(content).hexdigest() != checksum:
            raise DatasetError(f"{path}: checksum differs from the manifest's; {remedy}")
        file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        table = file.read(use_threads=False)
        return {name: column_values(table.column(name)) for name in table.column_names}


def make_table(columns: Mapping[str, list[Any]]) -> pa.Table:
    """Make an in-memory table of numbers, strings, lists of numbers or lists of (string, number); None is null."""
    arrays = {}
    for name, values in columns.items():
        first = next((value for value in values if value is not None), 0.0)
        pairs = isinstance(first, list) and bool(first) and isinstance(first[0], tuple)
        kind = pa.map_(pa.string(), pa.float64()) if pairs else None
        array = pa.array(values, kind)
        arrays[name] = array.cast(pa.float64()) if pa.types.is_null(array.type) else array
    return pa.table(arrays)


def has_column(path: Path, name: str) -> bool:
    """Check if a path is a Parquet file with a given column."""
    try:
        return path.is_file() and name in pq.read_schema(path).names
    except (OSError, pa.ArrowException):
        return False


def read_groups(
    path: Location, columns: Sequence[str] | None = None, *, first: tuple[str, int] | None = None
) -> Iterator[dict[str, np.ndarray]]:
    """Read columns of numbers (by default all columns) of a file; otherwise as `read_tables`."""
    for table in read_tables(path, columns, first=first):
        yield {name: column_values(table.column(name)) for name in table.column_names}


def read_tables(
    path: Location, columns: Sequence[str] | None = None, *, first: tuple[str, int] | None = None
) -> Iterator[pa.Table]:
    """Read columns (by default all) of a file, one row group at a time.

    With `first`, a column that ascends and a number in it, row groups that hold smaller numbers alone are passed over.
    """
    # pre-buffering would copy once more what is in the page cache
    with reading(path), parquet_file(path, page_checksum_verification=True, pre_buffer=False) as reader:
        for group in range(0 if first is None else _group_of(reader, *first), reader.num_row_groups):
            yield reader.read_row_group(group, columns=columns, use_threads=False)


def _group_of(reader: pq.ParquetFile, column: str, number: int) -> int:
    """Return the first row group with a number in a column, which ascends, that is no smaller than `number`."""
    place = reader.schema_arrow.names.index(column)
    groups = range(reader.num_row_groups)
    return bisect_left(
        groups, number, key=lambda group: reader.metadata.row_group(group).column(place).statistics.max
    )


class _Source:
    """File object for Arrow, of a file on disk or at a URL; some of its bytes may have been read ahead."""

    closed = False

    def __init__(self, path: Location) -> None:
        self._offset = 0
        self.ahead: tuple[int, memoryview] | None = None  # offset and bytes; served without a copy
        self._path, self._descriptor = path, -1
        if isinstance(path, Url):
            self._size = path.size() if path.known_size is None else path.known_size
        else:
            self._descriptor = os.open(path, os.O_RDONLY)
            self._close = weakref.finalize(self, os.close, self._descriptor)
            self._size = os.fstat(self._descriptor).st_size

    def fetch(self, offset: int, n_bytes: int) -> bytes:
        """Read raw bytes, or as much of them as there is."""
        if isinstance(self._path, Url):
            return self._path.read(offset, min(n_bytes, self._size - offset))
        return os.pread(self._descriptor, n_bytes, offset)

    def expect(self, offset: int, n_bytes: int) -> None:
        """Have the kernel read ahead a file on disk; if the footer is too damaged for that, the read to come reports it."""
        if self._descriptor >= 0 and hasattr(os, "posix_fadvise"):  # not on macOS
            with contextlib.suppress(OSError, OverflowError):
                os.posix_fadvise(self._descriptor, offset, n_bytes, os.POSIX_FADV_WILLNEED)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._offset = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._offset, os.SEEK_END: self._size}[whence]
        return self._offset

    def tell(self) -> int:
        return self._offset

    def read_buffer(self, n_bytes: int) -> memoryview | bytes:
        if self.ahead is not None:
            start = self._offset - self.ahead[0]
            if start >= 0 and start + n_bytes <= len(self.ahead[1]):
                self._offset += n_bytes
                return self.ahead[1][start : start + n_bytes]
        data = self.fetch(self._offset, n_bytes)
        self._offset += len(data)
        return data

    def close(self) -> None:
        self.closed = True
        if self._descriptor >= 0:
            self._close()


def extent_of(metadata: pq.FileMetaData, group: int, first_column: int) -> tuple[int, int]:
    """Return offset and length in the file of a row group's columns from `first_column` on."""
    row_group = metadata.row_group(group)
    start = row_group.column(first_column).data_page_offset
    last = row_group.column(row_group.num_columns - 1)
    return start, last.data_page_offset + last.total_compressed_size - start


class PartReader:
    """One open Parquet file of a part, for reads of row groups with or without verification, and hints to the kernel."""

    def __init__(self, path: Location, footer: pq.FileMetaData | None = None) -> None:
        self.path = path
        self.bytes = _Source(path)
        self._source = pa.PythonFile(self.bytes, mode="r")
        self._reader = self._open() if footer is None else self._open(metadata=footer)
        self._verifying: pq.ParquetFile | None = None
        self._index = {name: number for number, name in enumerate(self._reader.schema_arrow.names)}
        self._extents: dict[tuple[int, int], tuple[int, int]] = {}

    @property
    def footer(self) -> pq.FileMetaData:
        """Footer, which several readers can share."""
        return self._reader.metadata

    def read(self, group: int, columns: Sequence[str], verify: bool) -> list[np.ndarray]:
        """Read columns of a row group; after `set_read_ahead`, valid only as long as the bytes given there."""
        reader = self._reader
        if verify:
            if self._verifying is None:
                self._verifying = self._open(metadata=self._reader.metadata, page_checksum_verification=True)
            reader = self._verifying
        table = reader.read_row_group(group, columns=list(columns), use_threads=False)
        return [column_values(table.column(name)) for name in columns]

    def _open(self, **options: Any) -> pq.ParquetFile:
        # with pre_buffer, Arrow's threads would call `bytes`: one still running when Python ends aborts the process
        return pq.ParquetFile(self._source, pre_buffer=False, **options)

    def set_read_ahead(self, ahead: tuple[int, memoryview] | None) -> None:
        """Set the bytes of the file that were read ahead, with their offset; None for none."""
        self.bytes.ahead = ahead

    def extent(self, group: int, first_column: str) -> tuple[int, int]:
        """Return offset and length of a row group's columns from `first_column` on, see `extent_of`."""
        number = self._index[first_column]
        extent = self._extents.get((group, number))
        if extent is None:
            extent = self._extents[group, number] = extent_of(self._reader.metadata, group, number)
        return extent

    def begins_before(self, columns: Sequence[str]) -> bool:
        """Check if one of these columns lies before the first one of them in the file."""
        return min(self._index[name] for name in columns) < self._index[columns[0]]

    def close(self) -> None:
        self._source.close()
        self.bytes.close()


class OpenParts:
    """Least-recently-used cache of the open parts of a directory, at most `limit`, with their footers in memory.

    Parts at a URL are copied as a whole to the directory `copies`, where that is given.
    """

    def __init__(
        self, path: Location, limit: int, sizes: Mapping[str, int], copies: Path | None = None
    ) -> None:
        self._path, self._limit, self._sizes, self.copies = path, limit, sizes, copies
        self._parts: OrderedDict[str, PartReader] = OrderedDict()
        self._footers: weakref.WeakValueDictionary[str, pq.FileMetaData] = weakref.WeakValueDictionary()
        self._ahead: ReadAhead | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the directory alone: another process opens files of its own."""
        return OpenParts, (self._path, self._limit, self._sizes, self.copies)

    def reopen(self) -> OpenParts:
        """Return a second cache of the same parts for another thread; the footers are shared."""
        other = OpenParts(self._path, self._limit, self._sizes, self.copies)
        other._footers = self._footers
        return other

    @property
    def remote(self) -> bool:
        """True where reads are requests."""
        return isinstance(self._path, Url) and self.copies is None

    def read_directly(self, ahead_bytes: int) -> None:
        """Read expected ranges past the page cache, if the file system supports it, from now until `close`."""
        if self._ahead is not None:
            return
        if self.remote:
            most = storage.AHEAD_BYTES if ahead_bytes == AHEAD_BYTES else storage.SHARED_AHEAD_BYTES
            self._ahead = ReadAhead(most, Url.read, storage.REQUESTS_AT_A_TIME)
        else:
            self._ahead = ReadAhead(ahead_bytes)

    def __getitem__(self, name: str) -> PartReader:
        part = self._parts.pop(name, None)
        if part is None:
            while len(self._parts) >= self._limit:
                self._parts.popitem(last=False)[1].close()
            part = self._open(name)
        self._parts[name] = part
        return part

    def _open(self, name: str) -> PartReader:
        with reading(self._path / name):
            path = with_size(self._path / name, self._sizes.get(name))
            if isinstance(path, Url) and self.copies is not None:
                path = local_copy(path, (self.copies / name).parent)
            part = PartReader(path, self._footers.get(name))
            self._footers[name] = part.footer
            return part

    def open_together(self, names: Iterable[str]) -> None:
        """Open parts that will be read, all at once, so that their footers take the time of one."""
        closed = [name for name in dict.fromkeys(names) if name not in self._parts][: self._limit]
        if closed:
            with ThreadPoolExecutor(storage.REQUESTS_AT_A_TIME) as threads:
                for name, part in zip(closed, threads.map(self._open, closed), strict=True):
                    while len(self._parts) >= self._limit:
                        self._parts.popitem(last=False)[1].close()
                    self._parts[name] = part

    def read(
        self, name: str, group: int, columns: Sequence[str], verify: bool, crc: int = NO_CRC
    ) -> list[np.ndarray]:
        """Read columns of a row group of a part; raises `DatasetError`, which names the part, if it is damaged.

        If given, `crc` is the checksum of the bytes from the first of these columns to the end of the row group, and
        `verify` checks it in place of the pages' own checksums, which would not notice a part replaced by another.
        """
        part = self[name]
        with reading(part.path, f"chunk {group}"):
            offset, n_bytes = part.extent(group, columns[0])
            data: memoryview | bytes | None = self._ahead.take(part.path, offset) if self._ahead else None
            if verify and crc != NO_CRC:
                data = part.bytes.fetch(offset, n_bytes) if data is None else data
                if zlib.crc32(data) != crc:
                    if self.copies is not None and isinstance(part.path, Path):
                        part.path.unlink(missing_ok=True)  # a copy, which may come right the next time
                    raise ValueError("not the bytes that the chunk table records: replaced or changed")
                verify = part.begins_before(columns)
            part.set_read_ahead(None if data is None else (offset, memoryview(data)))
            try:
                return part.read(group, columns, verify)
            finally:
                part.set_read_ahead(None)

    def extent(self, name: str, group: int, first_column: str) -> tuple[int, int]:
        """Return offset and length in a part's file of a row group's columns from `first_column` on."""
        part = self[name]
        with reading(part.path, f"chunk {group}"):
            return part.extent(group, first_column)

    def expect(self, name: str, group: int, first_column: str) -> None:
        """Announce a read of a row group's columns from `first_column` on; reads must follow in the order announced."""
        if self.remote:
            self.read_directly(AHEAD_BYTES)
        if self._ahead is None or not self._ahead.possible:
            self.hint(name, group, first_column)
        else:
            self._ahead.expect(self[name].path, *self.extent(name, group, first_column))

    def hint(self, name: str, group: int, first_column: str) -> None:
        """Have the kernel read a row group's columns from `first_column` on into the page cache."""
        self[name].bytes.expect(*self.extent(name, group, first_column))

    def close(self) -> None:
        """Close all files; they are reopened when needed."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
        while self._parts:
            self._parts.popitem()[1].close()

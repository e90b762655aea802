"""Parquet files read a row group at a time, and the checksums of files."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..core.errors import DatasetError, EnvironmentFailure
from .read_ahead import ReadAhead

# Arrow's own choice, mimalloc, keeps what chunks of unequal sizes leave behind: reading the 916 chunks of a column layout at
# random it grew from 148 to 240 MB, jemalloc from 142 to 155; and jemalloc decoded 300 M entries/s where mimalloc did 200.
if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ and "jemalloc" in pa.supported_memory_backends():
    pa.set_memory_pool(pa.jemalloc_memory_pool())

NO_CRC = -1
"""In place of a checksum where none was recorded."""

_COPY_BYTES = 1 << 22

_ENVIRONMENT = (errno.EIO, errno.EMFILE, errno.ENFILE, errno.EACCES)
"""Failures that say nothing of the file's content."""


def file_checksum(path: Path) -> str:
    """SHA-256 of a file as ``"sha256:<hex>"``."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_COPY_BYTES):
            digest.update(block)
    return "sha256:" + digest.hexdigest()


@contextlib.contextmanager
def reading(path: Path, where: str = "") -> Iterator[None]:
    """Turn the errors that pyarrow raises over a damaged file into one line that names the file."""
    location = f"{path}, {where}" if where else str(path)
    try:
        yield
    except FileNotFoundError:
        raise DatasetError(f"{location}: the file is missing; restore it or convert the data again") from None
    except (OSError, pa.ArrowException, KeyError, ValueError, IndexError) as error:
        if isinstance(error, OSError) and error.errno in _ENVIRONMENT:
            raise EnvironmentFailure(f"{location}: {error.strerror}") from None
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DatasetError(
            f"{location}: damaged ({reason}); run 'streamcd verify', restore the file or convert the data again"
        ) from None


def column_values(column: pa.ChunkedArray) -> np.ndarray:
    """The numbers of a column without nulls, not writable.

    Arrow's own `to_numpy` loads pandas where it is installed, which would cost a training 30 MB of its budget.
    """
    dtype = np.dtype(column.type.to_pandas_dtype())
    arrays = [
        np.frombuffer(array.buffers()[1], dtype=dtype, count=len(array), offset=array.offset * dtype.itemsize)
        for array in column.chunks
        if len(array)
    ]
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.empty(0, dtype=dtype)


def read_table(path: Path) -> dict[str, np.ndarray]:
    """Read all columns of a small file, its checksums verified."""
    with reading(path):
        table = pq.ParquetFile(path, page_checksum_verification=True).read(use_threads=False)
        return {name: column_values(table.column(name)) for name in table.column_names}


def make_table(columns: Mapping[str, list[Any]]) -> pa.Table:
    """Make a table in memory of numbers, texts, lists of numbers, and lists of (text, number); None for nothing."""
    arrays = {}
    for name, values in columns.items():
        first = next((value for value in values if value is not None), 0.0)
        pairs = isinstance(first, list) and bool(first) and isinstance(first[0], tuple)
        kind = pa.map_(pa.string(), pa.float64()) if pairs else None
        array = pa.array(values, kind)
        arrays[name] = array.cast(pa.float64()) if pa.types.is_null(array.type) else array
    return pa.table(arrays)


def has_column(path: Path, name: str) -> bool:
    """Tell whether this is a Parquet file with such a column."""
    try:
        return path.is_file() and name in pq.read_schema(path).names
    except (OSError, pa.ArrowException):
        return False


def read_groups(
    path: Path, columns: Sequence[str] | None = None, *, first_group: int = 0, verify: bool = True
) -> Iterator[dict[str, np.ndarray]]:
    """Read columns (of numbers all, by default) of a file's row groups, one after another; checksums are verified or not."""
    # without pre-buffering, a copy less of what is in the page cache
    with reading(path), pq.ParquetFile(path, page_checksum_verification=verify, pre_buffer=False) as reader:
        if columns is None:
            columns = [field.name for field in reader.schema_arrow if pa.types.is_primitive(field.type)]
        for group in range(first_group, reader.num_row_groups):
            table = reader.read_row_group(group, columns=columns, use_threads=False)
            yield {name: column_values(table.column(name)) for name in table.column_names}


class _Source:
    """A file as Arrow reads it, some of whose bytes may have been read already."""

    closed = False

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._offset = descriptor, 0
        self._size = os.fstat(descriptor).st_size
        self.ahead: tuple[int, memoryview] | None = None  # offset, and bytes handed out without a copy

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
        data = os.pread(self._descriptor, n_bytes, self._offset)
        self._offset += len(data)
        return data

    def close(self) -> None:
        self.closed = True


def extent_of(metadata: pq.FileMetaData, group: int, first_column: int) -> tuple[int, int]:
    """Offset and length in the file of a row group's columns from `first_column` on."""
    row_group = metadata.row_group(group)
    start = row_group.column(first_column).data_page_offset
    last = row_group.column(row_group.num_columns - 1)
    return start, last.data_page_offset + last.total_compressed_size - start


class PartReader:
    """One open Parquet file: its footer, a descriptor for hints to the kernel, and reads that verify checksums or not."""

    def __init__(self, path: Path, footer: pq.FileMetaData | None = None) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY)
        self._bytes = _Source(self._descriptor)
        self._source = pa.PythonFile(self._bytes, mode="r")
        self._reader = self._open() if footer is None else self._open(metadata=footer)
        self._verifying: pq.ParquetFile | None = None
        self._index = {name: number for number, name in enumerate(self._reader.schema_arrow.names)}
        self._extents: dict[tuple[int, int], tuple[int, int]] = {}

    @property
    def footer(self) -> pq.FileMetaData:
        """The footer, which may be shared."""
        return self._reader.metadata

    def read(self, group: int, columns: Sequence[str], verify: bool) -> list[np.ndarray]:
        """Columns of a row group; with `hand_in`, valid until the bytes handed in change."""
        reader = self._reader
        if verify:
            if self._verifying is None:
                self._verifying = self._open(metadata=self._reader.metadata, page_checksum_verification=True)
            reader = self._verifying
        table = reader.read_row_group(group, columns=list(columns), use_threads=False)
        return [column_values(table.column(name)) for name in columns]

    def _open(self, **options: Any) -> pq.ParquetFile:
        # pre_buffer would have threads of Arrow's call `_bytes`: one still at it when Python ends aborts the process
        return pq.ParquetFile(self._source, pre_buffer=False, **options)

    def hand_in(self, ahead: tuple[int, memoryview] | None) -> None:
        """Bytes of the file that were read already, and their offset; None to forget them."""
        self._bytes.ahead = ahead

    def extent(self, group: int, first_column: str) -> tuple[int, int]:
        """See `extent_of`."""
        number = self._index[first_column]
        extent = self._extents.get((group, number))
        if extent is None:
            extent = self._extents[group, number] = extent_of(self._reader.metadata, group, number)
        return extent

    def begins_before(self, columns: Sequence[str]) -> bool:
        """True where the file holds a column before the first one of these."""
        return min(self._index[name] for name in columns) < self._index[columns[0]]

    def fetch(self, offset: int, n_bytes: int) -> bytes:
        """Read bytes of the file as they are."""
        return os.pread(self._descriptor, n_bytes, offset)

    def expect(self, offset: int, n_bytes: int) -> None:
        """Have the kernel read ahead; a footer so damaged that it objects is named by the read to come."""
        if hasattr(os, "posix_fadvise"):  # not on macOS
            with contextlib.suppress(OSError, OverflowError):
                os.posix_fadvise(self._descriptor, offset, n_bytes, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        self._source.close()
        os.close(self._descriptor)


class OpenParts:
    """Open parts of a directory, the latest ones used: at most `limit`, whose footers are in memory."""

    def __init__(self, path: Path, limit: int) -> None:
        self._path, self._limit = path, limit
        self._parts: OrderedDict[str, PartReader] = OrderedDict()
        self._footers: WeakValueDictionary[str, pq.FileMetaData] = WeakValueDictionary()
        self._ahead: ReadAhead | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the directory alone: another process opens files of its own."""
        return OpenParts, (self._path, self._limit)

    def another(self) -> OpenParts:
        """Return another one for the same parts, to be used by another thread; footers are in memory once."""
        other = OpenParts(self._path, self._limit)
        other._footers = self._footers
        return other

    def read_directly(self, ahead_bytes: int) -> None:
        """From now until `close`, what is expected is read past the page cache, where the file system can do so."""
        if self._ahead is None:
            self._ahead = ReadAhead(ahead_bytes)

    def __getitem__(self, name: str) -> PartReader:
        part = self._parts.pop(name, None)
        if part is None:
            while len(self._parts) >= self._limit:
                self._parts.popitem(last=False)[1].close()
            with reading(self._path / name):
                part = PartReader(self._path / name, self._footers.get(name))
                self._footers[name] = part.footer
        self._parts[name] = part
        return part

    def read(
        self, name: str, group: int, columns: Sequence[str], verify: bool, crc: int = NO_CRC
    ) -> list[np.ndarray]:
        """Columns of a row group of a part; `DatasetError` names the part where it is damaged.

        With `crc`, that of the bytes from the first of these columns to the end of the row group, `verify` compares this one
        instead of the pages' own: a part that was replaced by another is as sound as this one was.
        """
        part = self[name]
        with reading(part.path, f"chunk {group}"):
            offset, n_bytes = part.extent(group, columns[0])
            data: memoryview | bytes | None = self._ahead.take(part.path, offset) if self._ahead else None
            if verify and crc != NO_CRC:
                data = part.fetch(offset, n_bytes) if data is None else data
                if zlib.crc32(data) != crc:
                    raise ValueError("not the bytes that the chunk table records: replaced or changed")
                verify = part.begins_before(columns)
            part.hand_in(None if data is None else (offset, memoryview(data)))
            try:
                return part.read(group, columns, verify)
            finally:
                part.hand_in(None)

    def extent(self, name: str, group: int, first_column: str) -> tuple[int, int]:
        """Offset and length in a part's file of a row group's columns from `first_column` on."""
        part = self[name]
        with reading(part.path, f"chunk {group}"):
            return part.extent(group, first_column)

    def expect(self, name: str, group: int, first_column: str) -> None:
        """Announce that a row group's columns from `first_column` on will be read, in the order of such calls."""
        offset, n_bytes = self.extent(name, group, first_column)
        if self._ahead is None or not self._ahead.possible:
            self[name].expect(offset, n_bytes)
        else:
            self._ahead.expect(self._path / name, offset, n_bytes)

    def close(self) -> None:
        """Close all; the next use opens them again."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
        while self._parts:
            self._parts.popitem()[1].close()

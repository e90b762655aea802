"""Parquet files: row groups read one at a time, and tables written with checksums."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import Schema as Schema  # for those who describe tables: the door to pyarrow is here

from ..core.errors import DatasetError, EnvironmentFailure
from .direct_writer import DirectWriter
from .read_ahead import ReadAhead

# Arrow's own choice, mimalloc, keeps what chunks of unequal sizes leave behind: reading the 916 chunks of a column layout at
# random it grew from 148 to 240 MB, jemalloc from 142 to 155; and jemalloc decoded 300 M entries/s where mimalloc did 200.
if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ and "jemalloc" in pa.supported_memory_backends():
    pa.set_memory_pool(pa.jemalloc_memory_pool())

_PAGE_BYTES = 1 << 20
_COPY_BYTES = 1 << 22


def schema(**columns: Any) -> Schema:
    """Describe columns without nulls by their names and numpy types."""
    return pa.schema(
        [pa.field(name, pa.from_numpy_dtype(dtype), nullable=False) for name, dtype in columns.items()]
    )


class ChecksumFile(DirectWriter):
    """A file being written, with the checksum of its bytes; what pyarrow asks of a file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        self._digest.update(data)
        return super().write(data)

    def flush(self) -> None:
        pass

    def tell(self) -> int:
        return self.n_bytes

    @property
    def checksum(self) -> str:
        return "sha256:" + self._digest.hexdigest()


def file_checksum(path: Path) -> str:
    """SHA-256 of a file as ``"sha256:<hex>"``."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_COPY_BYTES):
            digest.update(block)
    return "sha256:" + digest.hexdigest()


class reading:
    """Turns the errors that pyarrow raises over a damaged file into one line that names the file."""

    def __init__(self, path: Path, where: str = "") -> None:
        self._location = f"{path}, {where}" if where else str(path)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FileNotFoundError):
            raise DatasetError(
                f"{self._location}: the file is missing; restore it or convert the data again"
            ) from None
        if isinstance(error, OSError) and error.errno in (
            errno.EIO,
            errno.EMFILE,
            errno.ENFILE,
            errno.EACCES,
        ):
            raise EnvironmentFailure(f"{self._location}: {error.strerror}") from None
        if isinstance(error, (OSError, pa.ArrowException, KeyError, ValueError, IndexError)):
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DatasetError(
                f"{self._location}: damaged ({reason}); run 'streamcd verify', restore the file or convert the data again"
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


def has_column(path: Path, name: str) -> bool:
    """Tell whether this is a Parquet file with such a column."""
    try:
        return path.is_file() and name in pq.read_schema(path).names
    except (OSError, pa.ArrowException):
        return False


def read_groups(
    path: Path, columns: Sequence[str] | None = None, *, first_group: int = 0, verify: bool = True
) -> Iterator[dict[str, np.ndarray]]:
    """Read columns (all by default) of a file's row groups, one after another, their checksums verified or not."""
    # without pre-buffering, a copy less of what is in the page cache
    with reading(path), pq.ParquetFile(path, page_checksum_verification=verify, pre_buffer=False) as reader:
        for group in range(first_group, reader.num_row_groups):
            table = reader.read_row_group(group, columns=columns, use_threads=False)
            yield {name: column_values(table.column(name)) for name in table.column_names}


class _Source:
    """A file as Arrow reads it, some of whose bytes may have been read already.

    Attributes
    ----------
    ahead : (int, memoryview) or None
        Bytes in memory and their offset in the file; handed out without a copy.
    """

    closed = False

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._offset = descriptor, 0
        self._size = os.fstat(descriptor).st_size
        self.ahead: tuple[int, memoryview] | None = None

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


class PartReader:
    """One open Parquet file: its footer, a descriptor for hints to the kernel, and reads that verify checksums or not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY)
        self._bytes = _Source(self._descriptor)
        self._source = pa.PythonFile(self._bytes, mode="r")
        self._reader = self._open()
        self._verifying: pq.ParquetFile | None = None
        self._index = {name: number for number, name in enumerate(self._reader.schema_arrow.names)}
        self._extents: dict[tuple[int, int], tuple[int, int]] = {}

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

    def extent(self, group: int, first_column: int | str) -> tuple[int, int]:
        """Offset and length in the file of a row group's columns from `first_column` on."""
        number = self._index[first_column] if isinstance(first_column, str) else first_column
        extent = self._extents.get((group, number))
        if extent is None:
            metadata = self._reader.metadata.row_group(group)
            start = metadata.column(number).data_page_offset
            last = metadata.column(metadata.num_columns - 1)
            extent = start, last.data_page_offset + last.total_compressed_size - start
            self._extents[group, number] = extent
        return extent

    def expect(self, group: int, first_column: int) -> None:
        """Have the kernel read ahead; a footer so damaged that it objects is named by the read to come."""
        if hasattr(os, "posix_fadvise"):  # not on macOS
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._descriptor, *self.extent(group, first_column), os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        self._source.close()
        os.close(self._descriptor)


class OpenParts:
    """The parts of a directory that are open, the latest ones used, up to a number.

    Parameters
    ----------
    path : Path
        The directory.
    limit : int
        Footers kept in memory at most.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self._path, self._limit = path, limit
        self._parts: OrderedDict[str, PartReader] = OrderedDict()
        self._ahead: ReadAhead | None = None

    def read_directly(self) -> None:
        """From now until `close`, what is expected is read past the page cache, where the file system can do so."""
        if self._ahead is None:
            self._ahead = ReadAhead()

    def __getitem__(self, name: str) -> PartReader:
        part = self._parts.pop(name, None)
        if part is None:
            while len(self._parts) >= self._limit:
                self._parts.popitem(last=False)[1].close()
            with reading(self._path / name):
                part = PartReader(self._path / name)
        self._parts[name] = part
        return part

    def read(self, name: str, group: int, columns: Sequence[str], verify: bool) -> list[np.ndarray]:
        """Columns of a row group of a part; `DatasetError` names the part where it is damaged."""
        part = self[name]
        with reading(part.path, f"chunk {group}"):
            if self._ahead is None:
                return part.read(group, columns, verify)
            offset, _ = part.extent(group, columns[0])
            ahead = self._ahead.take(part.path, offset)
            part.hand_in(None if ahead is None else (offset, ahead))
            try:
                return part.read(group, columns, verify)
            finally:
                part.hand_in(None)

    def expect(self, name: str, group: int, first_column: int) -> None:
        """Announce that a row group's columns from `first_column` on will be read, in the order of such calls."""
        part = self[name]
        if self._ahead is None or not self._ahead.possible:
            part.expect(group, first_column)
        else:
            self._ahead.expect(part.path, *part.extent(group, first_column))

    def close(self) -> None:
        """Close all; the next use opens them again."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
        while self._parts:
            self._parts.popitem()[1].close()


class TableWriter:
    """One Parquet file being written, a row group a call."""

    def __init__(self, path: Path, schema: pa.Schema, compression: str) -> None:
        self.schema = schema
        self.file = ChecksumFile(path)
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self.file, mode="w"),
            schema,
            compression=compression,
            use_dictionary=False,
            write_statistics=False,
            write_page_checksum=True,
            data_page_size=_PAGE_BYTES,
            store_schema=False,
        )

    def write(self, **columns: np.ndarray) -> None:
        arrays = [pa.array(columns[field.name], type=field.type) for field in self.schema]
        table = pa.table(arrays, schema=self.schema)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def close(self) -> dict[str, Any]:
        self._writer.close()
        self.file.close()
        return {"bytes": self.file.n_bytes, "checksum": self.file.checksum}

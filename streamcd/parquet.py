"""Parquet files: row groups read one at a time, tables written with checksums, and files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .errors import DatasetError, EnvironmentFailure

# Arrow's own choice, mimalloc, keeps what chunks of unequal sizes leave behind: reading the 916 chunks of a column layout at
# random it grew from 148 to 240 MB, jemalloc from 142 to 155; and jemalloc decoded 300 M entries/s where mimalloc did 200.
if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ and "jemalloc" in pa.supported_memory_backends():
    pa.set_memory_pool(pa.jemalloc_memory_pool())

_PAGE_BYTES = 1 << 20
_COPY_BYTES = 1 << 22


def schema(**columns: Any) -> pa.Schema:
    """A schema of columns without nulls, named with their numpy types."""
    return pa.schema(
        [pa.field(name, pa.from_numpy_dtype(dtype), nullable=False) for name, dtype in columns.items()]
    )


class ChecksumFile:
    """A file being written that knows the checksum and the number of its bytes."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - closed in close()
        self._digest = hashlib.sha256()
        self.n_bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        self._file.write(data)
        self._digest.update(data)
        self.n_bytes += len(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()

    def tell(self) -> int:
        return self.n_bytes

    def close(self) -> None:
        if not self.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self.closed = True

    @property
    def checksum(self) -> str:
        return "sha256:" + self._digest.hexdigest()


def file_checksum(path: Path) -> str:
    """SHA-256 of a file, read in pieces, as ``"sha256:<hex>"``."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(_COPY_BYTES):
            digest.update(piece)
    return "sha256:" + digest.hexdigest()


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file_atomically(path: Path, data: bytes) -> None:
    """Write a small file whole or not at all: temporary name, sync, replace."""
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync_directory(path.parent)


class reading:
    """Turns whatever a damaged file makes pyarrow raise into one line that names the file."""

    def __init__(self, path: Path, where: str = "") -> None:
        self._place = f"{path}, {where}" if where else str(path)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FileNotFoundError):
            raise DatasetError(
                f"{self._place}: the file is missing; restore it or convert the data again"
            ) from None
        if isinstance(error, OSError) and error.errno in (
            errno.EIO,
            errno.EMFILE,
            errno.ENFILE,
            errno.EACCES,
        ):
            raise EnvironmentFailure(f"{self._place}: {error.strerror}") from None
        if isinstance(error, (OSError, pa.ArrowException, KeyError, ValueError, IndexError)):
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DatasetError(
                f"{self._place}: damaged ({reason}); run 'streamcd verify', restore the file or convert the data again"
            ) from None


def column_values(column: pa.ChunkedArray) -> np.ndarray:
    """The numbers of a column without nulls, not writable.

    Arrow's own `to_numpy` loads pandas where it is installed, which would cost a training 30 MB of its budget.
    """
    dtype = np.dtype(column.type.to_pandas_dtype())
    pieces = [
        np.frombuffer(piece.buffers()[1], dtype=dtype, count=len(piece), offset=piece.offset * dtype.itemsize)
        for piece in column.chunks
        if len(piece)
    ]
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=dtype)


def read_table(path: Path) -> dict[str, np.ndarray]:
    """All columns of a small file, its checksums verified."""
    with reading(path):
        table = pq.ParquetFile(path, page_checksum_verification=True).read(use_threads=False)
        return {name: column_values(table.column(name)) for name in table.column_names}


class PartReader:
    """One open Parquet file: its footer, a descriptor for hints to the kernel, and reads that verify checksums or not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._source = pa.OSFile(str(path), "rb")
        self._descriptor = os.open(path, os.O_RDONLY)
        self._reader = pq.ParquetFile(self._source)
        self._verifying: pq.ParquetFile | None = None

    def read(self, group: int, columns: Sequence[str], verify: bool) -> list[np.ndarray]:
        reader = self._reader
        if verify:
            if self._verifying is None:
                self._verifying = pq.ParquetFile(
                    self._source, metadata=self._reader.metadata, page_checksum_verification=True
                )
            reader = self._verifying
        table = reader.read_row_group(group, columns=list(columns), use_threads=False)
        return [column_values(table.column(name)) for name in columns]

    def extent(self, group: int, first_column: int) -> tuple[int, int]:
        """Offset and length in the file of a row group's columns from `first_column` on."""
        metadata = self._reader.metadata.row_group(group)
        first = metadata.column(first_column)
        last = metadata.column(metadata.num_columns - 1)
        return (
            first.data_page_offset,
            last.data_page_offset + last.total_compressed_size - first.data_page_offset,
        )

    def advise(self, group: int, first_column: int, advice: int) -> None:
        """Hint to the kernel about a row group; a footer so damaged that the kernel objects is named by the read to come."""
        if hasattr(os, "posix_fadvise"):  # not on macOS
            offset, length = self.extent(group, first_column)
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._descriptor, offset, length, advice)

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
            return part.read(group, columns, verify)

    def close(self) -> None:
        """Close all; the next use opens them again."""
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

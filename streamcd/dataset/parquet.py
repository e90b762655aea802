"""Reading of Parquet files, a row group at a time, and checksums of files."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..core.errors import DatasetError, EnvironmentFailure, StreamcdError
from ..core.storage import Location, Url, open_bytes

# Arrow's default allocator, mimalloc, fragments with chunks of unequal sizes: reading the 916 chunks of a column layout in
# random order it grew from 148 to 240 MB, jemalloc from 142 to 155; and jemalloc decoded 300 M entries/s, mimalloc 200.
if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ and "jemalloc" in pa.supported_memory_backends():
    pa.set_memory_pool(pa.jemalloc_memory_pool())

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
    """Return the numbers of a column without nulls; the array is read-only. Arrow's `to_numpy` would load pandas."""
    if column.num_chunks == 1:
        return np.from_dlpack(column.chunk(0))
    arrays = [np.from_dlpack(array) for array in column.chunks]
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
        for group in range(reader.num_row_groups):
            if first is not None:
                column = reader.metadata.row_group(group).column(reader.schema_arrow.names.index(first[0]))
                if column.statistics.max < first[1]:
                    continue
            yield reader.read_row_group(group, columns=columns, use_threads=False)

"""An open Parquet file of a part of a dataset: row groups as arrays."""

from __future__ import annotations

import io
import os
import weakref
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..core.storage import Location, Url
from .parquet import column_values

_FOOTER_BYTES = 1 << 16  # read at once from the end of a file; a longer footer is read again, whole


class _Range(io.RawIOBase):
    """A range of a file that is in memory, at its place in the file, as a file object for Arrow."""

    def __init__(self, size: int, offset: int, data: memoryview) -> None:
        self._size, self._offset, self._data, self._place = size, offset, data, 0

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        return self._place

    def read_buffer(self, n_bytes: int) -> memoryview:
        start = self._place - self._offset
        data = self._data[start : start + n_bytes] if start >= 0 else self._data[:0]
        self._place += len(data)
        return data


class Part:
    """One open file of a part; `footer` is that which another reader of the file has read."""

    def __init__(self, path: Location, footer: pq.FileMetaData | None = None) -> None:
        self.path, self.descriptor = path, -1
        if isinstance(path, Url):
            self._size = path.size() if path.known_size is None else path.known_size
        else:
            self.descriptor = os.open(path, os.O_RDONLY)
            weakref.finalize(self, os.close, self.descriptor)
            self._size = os.fstat(self.descriptor).st_size
        if footer is None:
            n_bytes = min(_FOOTER_BYTES, self._size)
            end = self.fetch(self._size - n_bytes, n_bytes)
            needed = int.from_bytes(end[-8:-4], "little") + 8
            if n_bytes < needed <= self._size:
                end = self.fetch(self._size - needed, needed)
            footer = pq.read_metadata(pa.PythonFile(_Range(self._size, self._size - len(end), end), mode="r"))
        self.footer = footer
        self.columns: list[str] = footer.schema.names

    def fetch(self, offset: int, n_bytes: int) -> memoryview:
        """Read bytes of the file, or as many of them as there are."""
        n_bytes = min(n_bytes, self._size - offset)
        if isinstance(self.path, Url):
            return memoryview(self.path.read(offset, n_bytes))
        return memoryview(os.pread(self.descriptor, n_bytes, offset))

    def read(
        self, group: int, columns: Sequence[str], offset: int, data: memoryview, verify: bool
    ) -> list[np.ndarray]:
        """Read columns of a row group from bytes of the file, `data`, at their offset; with `verify`, pages are checked."""
        source = pa.PythonFile(_Range(self._size, offset, data), mode="r")
        # with pre_buffer, Arrow's threads would call it: one still running when Python ends aborts the process
        options = {"pre_buffer": False, "page_checksum_verification": verify}
        reader = pq.ParquetFile(source, metadata=self.footer, **options)
        table = reader.read_row_group(group, columns=list(columns), use_threads=False)
        return [column_values(table.column(name)) for name in columns]


def extent_of(metadata: pq.FileMetaData, group: int, first: str) -> tuple[int, int]:
    """Return offset and length in a file of a row group's columns from `first` on."""
    row_group = metadata.row_group(group)
    start = row_group.column(metadata.schema.names.index(first)).data_page_offset
    last = row_group.column(row_group.num_columns - 1)
    return start, last.data_page_offset + last.total_compressed_size - start

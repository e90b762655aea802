"""The files of a dataset's parts: row groups as arrays, checked, with read-ahead; at most some files are open at a time."""

from __future__ import annotations

import contextlib
import copy
import os
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..core import storage
from ..core.storage import Location, Url, local_copy, with_size
from .parquet import NO_CRC, column_values, extent_of, reading
from .read_ahead import AHEAD_BYTES, Ring

MAX_OPEN_PARTS = 64
"""Parts whose footers are kept; if there are more shards, a pass visits them in groups (`stream.chunk_order`)."""


class _File:
    """File object for Arrow, of a file on disk or at a URL, of which a range is in memory."""

    closed = False

    def __init__(self, path: Location) -> None:
        self._path, self._descriptor, self._offset = path, -1, 0
        if isinstance(path, Url):
            self.size = path.size() if path.known_size is None else path.known_size
        else:
            self._descriptor = os.open(path, os.O_RDONLY)
            self._close = weakref.finalize(self, os.close, self._descriptor)
            self.size = os.fstat(self._descriptor).st_size
        self.held: tuple[int, memoryview | bytes] = 0, b""  # offset and bytes

    def fetch(self, offset: int, n_bytes: int) -> memoryview | bytes:
        """Read bytes, or as much of them as there is."""
        start = offset - self.held[0]
        if start >= 0 and start + n_bytes <= len(self.held[1]):
            return self.held[1][start : start + n_bytes]
        n_bytes = min(n_bytes, self.size - offset)
        if isinstance(self._path, Url):
            return self._path.read(offset, n_bytes)
        return os.pread(self._descriptor, n_bytes, offset)

    def hint(self, offset: int, n_bytes: int) -> None:
        """Have the kernel read ahead a file on disk; if the footer is too damaged for that, the read to come reports it."""
        if self._descriptor >= 0 and hasattr(os, "posix_fadvise"):  # not on macOS
            with contextlib.suppress(OSError, OverflowError):
                os.posix_fadvise(self._descriptor, offset, n_bytes, os.POSIX_FADV_WILLNEED)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._offset = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._offset, os.SEEK_END: self.size}[whence]
        return self._offset

    def tell(self) -> int:
        return self._offset

    def read_buffer(self, n_bytes: int) -> memoryview | bytes:
        data = self.fetch(self._offset, n_bytes)
        self._offset += len(data)
        return data

    def close(self) -> None:
        self.closed = True
        if self._descriptor >= 0:
            self._close()


class Part:
    """One open Parquet file of a part; `footer` is that which another reader of the file has read."""

    def __init__(self, path: Location, footer: pq.FileMetaData | None = None) -> None:
        self.path, self.file = path, _File(path)
        self._source = pa.PythonFile(self.file, mode="r")
        self.footer = pq.read_metadata(self._source) if footer is None else footer
        self._columns = self.footer.schema.names
        self._readers: dict[bool, pq.ParquetFile] = {}  # by whether they verify checksums of pages
        self._extents: dict[tuple[int, str], tuple[int, int]] = {}

    def extent(self, group: int, first: str) -> tuple[int, int]:
        """Return offset and length in the file of a row group's columns from `first` on."""
        if (group, first) not in self._extents:
            self._extents[group, first] = extent_of(self.footer, group, self._columns.index(first))
        return self._extents[group, first]

    def first_of(self, columns: Sequence[str]) -> str:
        """Return the column that is stored before the others."""
        return min(columns, key=self._columns.index)

    def read(
        self, group: int, columns: Sequence[str], held: tuple[int, memoryview | bytes], verify: bool
    ) -> list[np.ndarray]:
        """Read columns of a row group from bytes of the file, `held`, and their offset; with `verify`, pages are checked."""
        if verify not in self._readers:
            # with pre_buffer, Arrow's threads would call `file`: one still running when Python ends aborts the process
            options = {"pre_buffer": False, "page_checksum_verification": verify}
            self._readers[verify] = pq.ParquetFile(self._source, metadata=self.footer, **options)
        self.file.held = held
        try:
            table = self._readers[verify].read_row_group(group, columns=list(columns), use_threads=False)
        finally:
            self.file.held = 0, b""
        return [column_values(table.column(name)) for name in columns]

    def close(self) -> None:
        self._source.close()
        self.file.close()


class FileChunks:
    """Chunks in files: row group ``group[chunk]`` of the tables of part ``part[chunk]``, below a directory or a URL.

    `tables` names the first column that training reads of each table; ``crcs[table]`` has the checksum of a chunk's bytes
    from that column on. Parts at a URL are copied as a whole to the directory `copies`, where that is set. Not thread-safe.
    """

    def __init__(
        self,
        path: Location,
        parts: Sequence[Mapping[str, Any]],
        tables: Mapping[str, str],
        place: tuple[np.ndarray, np.ndarray],
        crcs: Mapping[str, np.ndarray],
    ) -> None:
        self._path, self._records, self._tables, self._crcs = path, parts, tables, crcs
        self._part_of, self._group_of = place
        self.copies: Path | None = None
        self._bytes = np.full(place[0].size, -1)  # of a chunk, once they are known
        self._forget()

    def _forget(self) -> None:
        self._open: OrderedDict[str, Part] = OrderedDict()  # the latest used is the last
        self._footers: weakref.WeakValueDictionary[str, pq.FileMetaData] = weakref.WeakValueDictionary()
        self._ring: Ring | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave open files out: another process opens files of its own."""
        own = "_open", "_footers", "_ring"
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def reopen(self) -> Self:
        """Return the same chunks with files of their own, for another thread; the footers are shared."""
        other = copy.copy(self)
        other._footers = self._footers
        return other

    def at(self, path: Location, parts: Sequence[Mapping[str, Any]]) -> Self:
        """Return the same chunks in other files."""
        other = copy.copy(self)
        other._path, other._records = path, parts
        return other

    @property
    def _by_request(self) -> bool:
        return isinstance(self._path, Url) and self.copies is None

    def _name(self, table: str, chunk: int) -> str:
        name: str = self._records[self._part_of[chunk]][table]
        return name

    def place(self, table: str, chunk: int) -> str:
        """Describe where a chunk is, for messages: the file and the number of the chunk in it."""
        return f"{self._path / self._name(table, chunk)}, chunk {self._group_of[chunk]}"

    def _load(self, table: str, chunk: int) -> Part:
        name = self._name(table, chunk)
        with reading(self._path / name):
            size = self._records[self._part_of[chunk]][f"{table}_bytes"]
            path = with_size(self._path / name, size)
            if isinstance(path, Url) and self.copies is not None:
                path = local_copy(path, (self.copies / name).parent)
            part = Part(path, self._footers.get(name))
        self._footers[name] = part.footer
        return part

    def _part(self, table: str, chunk: int) -> Part:
        name = self._name(table, chunk)
        part = self._open.pop(name, None) or self._load(table, chunk)
        self._keep(name, part)
        return part

    def _keep(self, name: str, part: Part) -> None:
        while len(self._open) >= 2 * MAX_OPEN_PARTS:
            self._open.popitem(last=False)[1].close()
        self._open[name] = part

    def read(self, table: str, chunk: int, columns: Sequence[str], *, verify: bool) -> list[np.ndarray]:
        """Read columns of a chunk; raises `DatasetError`, which names the file, if it is missing or damaged.

        `verify` checks the chunk's checksum. The pages' own checksums are for columns before those that it covers, and where
        none was recorded: they would not notice a part replaced by another.
        """
        part, group, crc = self._part(table, chunk), int(self._group_of[chunk]), int(self._crcs[table][chunk])
        with reading(part.path, f"chunk {group}"):
            covered = self._tables[table]
            first = part.first_of((covered, *columns))
            offset, n_bytes = part.extent(group, first)
            ahead = None if self._ring is None else self._ring.take(part.path, offset)
            data = part.file.fetch(offset, n_bytes) if ahead is None else ahead
            if verify and crc != NO_CRC:
                if zlib.crc32(data[part.extent(group, covered)[0] - offset :]) != crc:
                    if self.copies is not None and isinstance(part.path, Path):
                        part.path.unlink(missing_ok=True)  # a copy, which may come right the next time
                    raise ValueError("not the bytes that the chunk table records: replaced or changed")
                verify = first != covered
            return part.read(group, columns, (offset, data), verify)

    def announce(self, chunks: Sequence[int], first: Mapping[str, str] | None = None) -> None:
        """Announce reads of chunks, table by table in the order of `first`, from the column on that it names.

        By default these are training's. Reads have to follow in that order.
        """
        if isinstance(self._path, Url):
            self._open_together(chunks)
        if self._by_request:
            self.read_ahead()
        for chunk in chunks:
            for table, column in (first or self._tables).items():
                part, group = self._part(table, chunk), int(self._group_of[chunk])
                with reading(part.path, f"chunk {group}"):
                    extent = part.extent(group, column)
                # tables besides entries are small: of those on disk the page cache keeps them
                if (
                    self._ring is not None
                    and self._ring.possible
                    and (self._by_request or table == "entries")
                ):
                    self._ring.announce(part.path, *extent)
                else:
                    part.file.hint(*extent)

    def _open_together(self, chunks: Iterable[int]) -> None:
        """Open files at a URL all at once, so that their footers take the time of one."""
        found = {self._name(table, chunk): (table, chunk) for chunk in chunks for table in self._tables}
        missing = [name for name in found if name not in self._open][: 2 * MAX_OPEN_PARTS]
        if missing:
            with ThreadPoolExecutor(storage.REQUESTS_AT_A_TIME) as threads:
                opened = threads.map(lambda name: self._load(*found[name]), missing)
                for name, part in zip(missing, opened, strict=True):
                    self._keep(name, part)

    def read_ahead(self) -> None:
        """Read announced entries past the page cache, or by several requests at a time, from now until `close`."""
        if self._ring is None:
            most = storage.AHEAD_BYTES if self._by_request else AHEAD_BYTES
            self._ring = Ring(most, remote=self._by_request)

    def chunk_bytes(self, chunk: int) -> int:
        """Return the bytes on disk that training reads of a chunk."""
        if self._bytes[chunk] < 0:
            found = 0
            for table, first in self._tables.items():
                part, group = self._part(table, chunk), int(self._group_of[chunk])
                with reading(part.path, f"chunk {group}"):
                    found += part.extent(group, first)[1]
            self._bytes[chunk] = found
        return int(self._bytes[chunk])

    def close(self) -> None:
        """Close all files; they are reopened when needed."""
        if self._ring is not None:
            self._ring.close()
            self._ring = None
        while self._open:
            self._open.popitem()[1].close()

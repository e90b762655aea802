"""The common form of both layouts of a dataset, open for reading: parts, chunks, checksums.

Entries are stored in parts, each with a second table that counts them by row or by feature. A row group of a part's two
files is a chunk, the unit of reading. ``chunks.parquet`` lists the chunks; ``manifest.json``, written last, lists all files
with their sizes and checksums.
"""

from __future__ import annotations

import contextlib
import io
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from isal.isal_zlib import crc32

from ..core import storage
from ..core.errors import DatasetError
from ..core.files import Kind
from ..core.storage import DATASET_BYTES, NO_FILE, Location, Url, file_sizes, local_copy
from .arrow_columns import column_values, extent_of, read_table, reading
from .read_ahead import Ring
from .schema import LISTED

MAX_OPEN_PARTS = 64
"""Parts whose files are kept open; if there are more shards, a pass visits them in groups (`stream.chunk_order`)."""

_FOOTER_BYTES = 1 << 16  # read at once from the end of a file; a longer footer is read again, whole


class _Range(io.RawIOBase):
    """A range of a file that is in memory, at its place in the file, as a file object for Arrow."""

    size = 0  # of the file
    offset = 0
    data = memoryview(b"")
    _position = 0

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self.size)[whence]
        return self._position

    def read_buffer(self, n_bytes: int) -> memoryview:
        start = self._position - self.offset
        data = self.data[start : start + n_bytes] if start >= 0 else self.data[:0]
        self._position += len(data)
        return data


class OpenPart:
    """One open file of a part, at most one of whose row groups is in memory, while it is read. Not thread-safe.

    `footer` is that which another reader of the file has read. A file in the cache, `is_copy`, is removed where it is
    damaged: it may come right the next time.
    """

    def __init__(self, path: Location, footer: pq.FileMetaData | None = None, is_copy: bool = False) -> None:
        self.path = path
        self.descriptor = -1
        self._is_copy = is_copy
        self._range = _Range()
        if isinstance(path, Url):
            self._range.size = path.size() if path.known_size is None else path.known_size
        else:
            self.descriptor = os.open(path, os.O_RDONLY)
            weakref.finalize(self, os.close, self.descriptor)
            self._range.size = os.fstat(self.descriptor).st_size
        self._source = pa.PythonFile(self._range, mode="r")
        if footer is None:
            needed = min(_FOOTER_BYTES, self._range.size)
            self.fetch(self._range.size - needed, needed)
            longer = int.from_bytes(self._range.data[-8:-4], "little") + 8
            if needed < longer <= self._range.size:
                self.fetch(self._range.size - longer, longer)
            footer = pq.read_metadata(self._source)
        self.footer = footer
        self.columns: list[str] = footer.schema.names
        # with pre_buffer, Arrow's threads would call it: one still running when Python ends aborts the process
        self._reader = pq.ParquetFile(self._source, metadata=footer, pre_buffer=False)

    def fetch(self, offset: int, n_bytes: int) -> None:
        """Hold bytes of the file, or as many of them as there are, to be read from."""
        n_bytes = min(n_bytes, self._range.size - offset)
        self._range.offset = offset
        if isinstance(self.path, Url):
            self._range.data = memoryview(self.path.read(offset, n_bytes))
        else:
            self._range.data = memoryview(os.pread(self.descriptor, n_bytes, offset))

    def read(
        self, group: int, columns: Sequence[str], covered: str, crc: int | None, ring: Ring | None
    ) -> list[np.ndarray]:
        """Read columns of a row group, from what `ring` has read ahead of it, or from the file.

        `crc` is the checksum of its bytes from the column `covered` on: raises `ValueError` where they have another. With
        it pages of columns before that one are checked by their own. None checks nothing.
        """
        first = min((covered, *columns), key=self.columns.index)
        offset, n_bytes = extent_of(self.footer, group, first)
        data = None if ring is None else ring.take(self.path, offset)
        if data is None:
            self.fetch(offset, n_bytes)
        else:
            self._range.offset = offset
            self._range.data = data
        reader = self._reader
        if crc is not None:
            checked = self._range.data[extent_of(self.footer, group, covered)[0] - offset :]
            if crc32(checked) != crc:  # safety: dataset::another_of_its_size[entries]
                if self._is_copy:
                    Path(self.path).unlink(missing_ok=True)
                raise ValueError("not the bytes that the chunk table records: replaced or changed")
            if first != covered:
                reader = pq.ParquetFile(
                    self._source,
                    metadata=self.footer,
                    pre_buffer=False,
                    page_checksum_verification=True,  # safety: dataset::damage_is_noticed[columns0]
                )
        table = reader.read_row_group(group, columns=list(columns), use_threads=False)
        self._range.data = memoryview(b"")
        return [column_values(table.column(name)) for name in columns]


class ChunkedTable:
    """A chunked table, open for reading. Not thread-safe."""

    KIND: ClassVar[Kind[Any]]
    """Kind of its manifest."""
    TABLES: ClassVar[Mapping[str, str]]
    """First column that training reads, by table of a part, in the order in which they are read."""
    entry_bytes: int
    unit_start: np.ndarray  # first chunks of inseparable units: chunks, or all pieces of a feature

    def __init__(
        self,
        path: Location,
        manifest: dict[str, Any],
        chunk_table: Mapping[str, np.ndarray],
        items: str,
        n_begun: np.ndarray,
    ) -> None:
        """Take the columns of ``chunks.parquet``; `items`, rows or features, are counted by the second table.

        `n_begun` is the number of them that begin in each chunk; every entry belongs to one.
        """
        self.path = path
        self.manifest = manifest
        self.client_bytes = DATASET_BYTES if isinstance(path, Url) else 0  # that reading takes at a URL
        self.fingerprint: str = manifest["fingerprint"]
        self.n_items: int = manifest[items]
        self.n_entries: int = manifest["n_entries"]
        self.n_shards = len(manifest["parts"])
        self.index_dtype = np.dtype(manifest["index_dtype"])
        self.value_dtype = np.dtype(manifest["value_dtype"])
        # every chunk's part, and its row group in that part
        self.chunk_part = chunk_table["part"].astype(np.int32)
        self.n_chunks = self.chunk_part.size
        # chunks shard_start[s]:shard_start[s + 1] are those of part s
        self.shard_start = np.searchsorted(self.chunk_part, np.arange(self.n_shards + 1))
        self.chunk_group = (np.arange(self.n_chunks) - self.shard_start[self.chunk_part]).astype(np.int32)
        # items item_start[c]:item_start[c + 1] begin in chunk c
        self.item_start = starts_of(n_begun)
        self.entry_start = starts_of(chunk_table["n_entries"])
        for key, starts in ((items, self.item_start), ("n_entries", self.entry_start)):
            if manifest[key] != starts[-1]:
                raise DatasetError(
                    f"{path / 'manifest.json'}: damaged ({key} is {manifest[key]}, the chunk table has {starts[-1]}); "
                    f"{self.KIND.remedy}"
                )
        # rows starts[table][c]:starts[table][c + 1] of a table are those of chunk c
        self.starts = {
            table: self.entry_start if table == "entries" else starts_of(chunk_table[items])
            for table in self.TABLES
        }
        # of columns whose numbers count within the files of a part: what is added to those of each part
        self.part_starts: dict[str, np.ndarray] = {}
        self._crcs = {table: chunk_table.get(f"{table}_crc") for table in self.TABLES}  # of arrays None
        self._open: dict[str, OpenPart] = {}  # the latest used is the last
        self._footers: dict[str, pq.FileMetaData] = {}  # of open files, here and in copies
        self._ring: Ring | None = None
        self.cache: str | None = None

    @classmethod
    def read_chunk_table(
        cls, path: Location, manifest: Mapping[str, Any], check_files: bool
    ) -> dict[str, np.ndarray]:
        """Read ``chunks.parquet``; raises `DatasetError` if it, or with `check_files` any file, is not as listed."""
        name = "chunks.parquet"
        listed = [file for file in cls.listed_files(manifest) if check_files or file[0] == name]
        for _, problem in file_problems(path, listed):
            raise DatasetError(f"{problem}; {cls.KIND.remedy}")
        table = read_table(path / name, manifest["chunks"]["checksum"], cls.KIND.remedy)
        if table["part"].max(initial=-1) >= len(manifest["parts"]):  # safety: dataset::part_that_there_is_not
            raise DatasetError(f"{path / name}: a part that the manifest does not list; {cls.KIND.remedy}")
        if not {f"{one}_crc" for one in cls.TABLES} <= table.keys():
            raise DatasetError(f"{path / name}: no checksums of chunks; {cls.KIND.remedy}")
        return table

    @classmethod
    def listed_files(cls, manifest: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
        """Iterate over the files that a manifest lists: name as stored, bytes and checksum of each."""
        for name, key in LISTED.items():
            if (record := manifest.get(key)) is not None:
                yield name, record["bytes"], record["checksum"]
        for part in manifest["parts"]:
            for table in cls.TABLES:
                if table in part:  # arrays are no files
                    yield part[table], part[f"{table}_bytes"], part[f"{table}_checksum"]

    def file(self, name: str, n_bytes: int | None = None) -> Location:
        """Return where a file of the table is stored; its size is `n_bytes`, or that which the manifest lists."""
        path = self.path / name
        if not isinstance(path, Url):
            return path
        record = self.manifest.get(LISTED.get(name, "")) or {}
        return replace(path, known_size=n_bytes or record.get("bytes"))

    def bytes_on_disk(self) -> int:
        """Return the size of all files except the manifest, in bytes."""
        return sum(n_bytes for _, n_bytes, _ in self.listed_files(self.manifest))

    # -- chunks -------------------------------------------------------------------------------------------------------

    def _read(self, table: str, chunk: int, columns: Sequence[str], verify: bool) -> list[np.ndarray]:
        """Read columns of a chunk of a table, read-only; raises `DatasetError`, which names a missing or damaged file.

        `verify` checks the chunk's checksum, and the pages' own of columns before those that it covers.
        """
        part = self._part(table, chunk)
        group = int(self.chunk_group[chunk])
        crcs = self._crcs[table]
        assert crcs is not None, "arrays are read elsewhere"
        n_rows = int(self.starts[table][chunk + 1] - self.starts[table][chunk])
        with reading(part.path, f"chunk {group}"):
            arrays = part.read(
                group, columns, self.TABLES[table], crcs[chunk] if verify else None, self._ring
            )
        for number, array in enumerate(arrays):
            if array.size != n_rows:
                raise DatasetError(
                    f"{self.place(chunk, table)}: holds {array.size} rows, the chunk table says {n_rows}; "
                    f"{self.KIND.remedy}"
                )
            if (starts := self.part_starts.get(columns[number])) is not None:
                start = starts[self.chunk_part[chunk]]
                array = array.astype(starts.dtype, copy=False)
                arrays[number] = array + start if start else array
        return arrays

    def announce(self, chunks: Sequence[int], first: Mapping[str, str] | None = None) -> None:
        """Announce reads of chunks, of each table from the column on that `first` names, by default training's.

        Reads have to follow in that order.
        """
        by_request = isinstance(self.path, Url) and self.cache is None
        if isinstance(self.path, Url):
            # opened all at once, so that their footers take the time of one
            parts = {int(self.chunk_part[chunk]): chunk for chunk in chunks}.values()
            files = [(table, chunk) for chunk in parts for table in self.TABLES][: 2 * MAX_OPEN_PARTS]
            with ThreadPoolExecutor(storage.REQUESTS_AT_A_TIME) as threads:
                list(threads.map(lambda file: self._part(*file), files))
        if by_request:
            self.read_ahead()
        for chunk in chunks:
            for table, column in (first or self.TABLES).items():
                part = self._part(table, chunk)
                group = int(self.chunk_group[chunk])
                with reading(part.path, f"chunk {group}"):
                    offset, n_bytes = extent_of(part.footer, group, column)
                # tables besides entries are small: of those on disk the page cache keeps them
                if self._ring and self._ring.possible and (by_request or table == "entries"):
                    self._ring.announce(part.path, offset, n_bytes)
                elif part.descriptor >= 0:
                    # if the footer is too damaged for that, the read to come reports it
                    with contextlib.suppress(OSError, OverflowError):
                        os.posix_fadvise(part.descriptor, offset, n_bytes, os.POSIX_FADV_WILLNEED)

    def read_ahead(self) -> None:
        """Read announced entries past the page cache, or by several requests at a time, from now until `close`."""
        if self._ring is None:
            self._ring = Ring(remote=isinstance(self.path, Url) and self.cache is None)

    def chunk_bytes(self, chunk: int) -> int:
        """Return the bytes on disk that training reads of a chunk."""
        group = int(self.chunk_group[chunk])
        n_bytes = 0
        for table, first in self.TABLES.items():
            part = self._part(table, chunk)
            with reading(part.path, f"chunk {group}"):
                n_bytes += extent_of(part.footer, group, first)[1]
        return n_bytes

    def place(self, chunk: int, table: str = "entries") -> str:
        """Describe where a chunk is, for messages: the file and the number of the chunk in it."""
        name = self.manifest["parts"][self.chunk_part[chunk]][table]
        return f"{self.path / name}, chunk {self.chunk_group[chunk]}"

    def _part(self, table: str, chunk: int) -> OpenPart:
        """Open the file of a chunk of a table, or find it open."""
        record = self.manifest["parts"][self.chunk_part[chunk]]
        name = record[table]
        part = self._open.pop(name, None)
        if part is None:
            for oldest in list(self._open)[: 1 - 2 * MAX_OPEN_PARTS]:  # several threads may be here
                self._open.pop(oldest, None)
                self._footers.pop(oldest, None)
            with reading(self.path / name):
                path = self.file(name, record[f"{table}_bytes"])
                if isinstance(path, Url) and self.cache is not None:
                    # what the files hold is part of the name: another dataset in their place has copies of its own
                    copies = Path(self.cache) / self.manifest["seal"]
                    path = local_copy(path, (copies / name).parent)
                part = OpenPart(path, self._footers.get(name), is_copy=self.cache is not None)
            self._footers[name] = part.footer
        self._open[name] = part
        return part

    def use_cache(self, directory: str | None) -> None:
        """Copy parts at a URL to a directory, of each as a whole, when they are opened from now on."""
        self.cache = directory if isinstance(self.path, Url) else None

    def __getstate__(self) -> dict[str, Any]:
        """Leave open files out: a copy, in another thread or process, opens files of its own; threads share footers."""
        return self.__dict__ | {"_open": {}, "_ring": None}

    def close(self) -> None:
        """Close all files; the next read reopens them."""
        if self._ring is not None:
            self._ring.close()
            self._ring = None
        self._open.clear()
        self._footers.clear()


def starts_of(counts: np.ndarray) -> np.ndarray:
    """Return 0 and the cumulative sums, int64: item ``i`` of `counts` spans ``starts[i]:starts[i + 1]``."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def file_problems(path: Location, files: Iterable[tuple[str, int, str]]) -> Iterator[tuple[Location, str]]:
    """Find files (name, bytes, checksum) that are missing or have another size; yields the path and a message for each."""
    files = list(files)
    sizes = file_sizes(path, [name for name, *_ in files])
    for (name, n_bytes, _), size in zip(files, sizes, strict=True):
        if size is None:
            yield path / name, f"{path / name}: the file is missing"
        elif size == NO_FILE:  # safety: dataset::what_is_no_file[pipe-features.parquet]
            yield path / name, f"{path / name}: expected a file, found a device, a pipe or a directory"
        elif size != n_bytes:  # safety: dataset::truncated_or_missing[features.parquet]
            kind = "truncated" if size < n_bytes else "too long"
            yield path / name, f"{path / name}: {kind}, expected {n_bytes} bytes, found {size}"

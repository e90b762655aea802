"""The common form of both layouts of a dataset, open for reading: parts, chunks, checksums.

Entries are stored in parts, each with a second table that counts them by row or by feature. A row group of a part's two
files is a chunk, the unit of reading. ``chunks.parquet`` lists the chunks; ``manifest.json``, written last, lists all files
with their sizes and checksums.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from ..core.errors import DatasetError
from ..core.metadata import Kind
from ..core.storage import DATASET_BYTES, NO_FILE, Location, Url, file_sizes, with_size
from .manifests import LISTED
from .parquet import read_table
from .parts import MAX_OPEN_PARTS as MAX_OPEN_PARTS
from .parts import FileChunks


class Chunks(Protocol):
    """Chunks of the tables of a layout: those of files (`parts.FileChunks`), or of arrays."""

    def read(self, table: str, chunk: int, columns: Sequence[str], *, verify: bool) -> list[np.ndarray]: ...
    def announce(self, chunks: Sequence[int], first: Mapping[str, str] | None = None) -> None: ...
    def read_ahead(self) -> None: ...
    def chunk_bytes(self, chunk: int) -> int: ...
    def place(self, table: str, chunk: int) -> str: ...
    def reopen(self) -> Self: ...
    def close(self) -> None: ...


class ChunkedTable:
    """A chunked table, open for reading. Not thread-safe."""

    KIND: ClassVar[Kind[Any]]
    """Kind of its manifest."""
    TABLES: ClassVar[Mapping[str, str]]
    """First column that training reads, by table of a part, in the order in which they are read."""
    n_items: int  # rows, or features; every entry belongs to one
    entry_bytes: int
    item_start: np.ndarray  # (chunks + 1,): first item that begins in a chunk
    unit_start: np.ndarray  # first chunks of inseparable units: chunks, or all pieces of a feature

    def __init__(
        self,
        path: Location,
        manifest: dict[str, Any],
        chunk_table: Mapping[str, np.ndarray],
        chunks: Chunks | None = None,
    ) -> None:
        """Take the columns of ``chunks.parquet``, and `chunks`, by default those of the files that the manifest lists."""
        self.path, self.manifest = path, manifest
        self.fingerprint: str = manifest["fingerprint"]
        self.n_entries: int = manifest["n_entries"]
        self.n_shards = len(manifest["parts"])
        self.index_dtype = np.dtype(manifest["index_dtype"])
        self.value_dtype = np.dtype(manifest["value_dtype"])
        # every chunk's part, and its row group in that part
        self.chunk_part = chunk_table["part"].astype(np.int32)
        self.n_chunks = self.chunk_part.size
        first_of_part = np.searchsorted(self.chunk_part, np.arange(self.n_shards))
        self.chunk_group = (np.arange(self.n_chunks) - first_of_part[self.chunk_part]).astype(np.int32)
        self.entry_start = starts_of(chunk_table["n_entries"])
        self._check_count("n_entries", self.entry_start)
        if chunks is None:
            crcs = {table: chunk_table[f"{table}_crc"] for table in self.TABLES}
            place = self.chunk_part, self.chunk_group
            chunks = FileChunks(path, manifest["parts"], self.TABLES, place, crcs)
        self._chunks = chunks
        self.cache: str | None = None

    def _check_count(self, key: str, starts: np.ndarray) -> None:
        """Refuse a manifest that counts others than the chunk table."""
        if self.manifest[key] != starts[-1]:
            raise DatasetError(
                f"{self.path / 'manifest.json'}: damaged ({key} is {self.manifest[key]}, the chunk table has "
                f"{starts[-1]}); {self.KIND.remedy}"
            )

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
        if table["part"].max(initial=-1) >= len(manifest["parts"]):
            raise DatasetError(f"{path / name}: a part that the manifest does not list; {cls.KIND.remedy}")
        for one in cls.TABLES:
            if f"{one}_crc" not in table:
                raise DatasetError(f"{path / name}: no checksums of chunks of {one}; {cls.KIND.remedy}")
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

    def part_files(self, part: int) -> list[tuple[str, int, str]]:
        """Return name, bytes and checksum of a part's files, as `listed_files`."""
        return list(self.listed_files({"parts": [self.manifest["parts"][part]]}))

    def file(self, name: str) -> Location:
        """Return where a file of the table is stored."""
        record = self.manifest.get(LISTED.get(name, "")) or {}
        return with_size(self.path / name, record.get("bytes"))

    def files(self, name: str) -> list[Location]:
        """Return where a file is stored, if the manifest lists it."""
        return [self.file(name)] if self.manifest.get(LISTED[name]) else []

    def _read(
        self, table: str, chunk: int, columns: Sequence[str], n_rows: int, verify: bool
    ) -> list[np.ndarray]:
        """Read columns of a chunk's `n_rows` rows of a table."""
        arrays = self._chunks.read(table, chunk, columns, verify=verify)
        for array in arrays:
            if array.size != n_rows:
                raise DatasetError(
                    f"{self.place(chunk, table)}: holds {array.size} rows, the chunk table says {n_rows}; "
                    f"{self.KIND.remedy}"
                )
        return arrays

    def _read_entries(self, chunk: int, columns: Sequence[str], verify: bool) -> list[np.ndarray]:
        n_entries = int(self.entry_start[chunk + 1] - self.entry_start[chunk])
        return self._read("entries", chunk, columns, n_entries, verify)

    def announce(self, chunks: Sequence[int], first: Mapping[str, str] | None = None) -> None:
        """Announce reads of chunks, of each table from the column on that `first` names, by default training's.

        Reads of entries must follow in the order announced.
        """
        self._chunks.announce(chunks, first)

    def use_cache(self, directory: str | None) -> None:
        """Copy parts at a URL to a directory, of each as a whole, when they are opened from now on."""
        if isinstance(self._chunks, FileChunks) and isinstance(self.path, Url) and directory is not None:
            self.cache = directory
            # what the files hold is part of the name: another dataset in their place has copies of its own
            self._chunks.copies = Path(directory) / self.manifest["seal"]

    @property
    def client_bytes(self) -> int:
        """Memory that reading takes where the table is at a URL."""
        return DATASET_BYTES if isinstance(self.path, Url) else 0

    def reopen(self) -> Self:
        """Return the same table with its own open files, for another thread."""
        other = copy.copy(self)
        other._chunks = self._chunks.reopen()
        return other

    def read_ahead(self) -> None:
        """Read announced entries past the page cache from now until `close`."""
        self._chunks.read_ahead()

    def chunk_bytes(self, chunk: int) -> int:
        """Return the bytes on disk that training reads of a chunk."""
        return self._chunks.chunk_bytes(chunk)

    def place(self, chunk: int, table: str = "entries") -> str:
        """Describe where a chunk is, for messages."""
        return self._chunks.place(table, chunk)

    def bytes_on_disk(self) -> int:
        """Return the size of all files except the manifest, in bytes."""
        return sum(n_bytes for _, n_bytes, _ in self.listed_files(self.manifest))

    def close(self) -> None:
        """Close all files; the next read reopens them."""
        self._chunks.close()


def starts_of(counts: np.ndarray) -> np.ndarray:
    """Return 0 and the cumulative sums, int64: item ``i`` of `counts` spans ``starts[i]:starts[i + 1]``."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def file_problems(path: Location, files: Iterable[tuple[str, int, str]]) -> Iterator[tuple[Location, str]]:
    """Find files (name, bytes, checksum) that are missing or have another size; yields the path and a message for each."""
    files = list(files)
    sizes = file_sizes(path, [name for name, *_ in files])
    for (name, n_bytes, _), found in zip(files, sizes, strict=True):
        if found is None:
            yield path / name, f"{path / name}: the file is missing"
        elif found == NO_FILE:  # it would be read for ever
            yield path / name, f"{path / name}: expected a file, found a device, a pipe or a directory"
        elif found != n_bytes:
            kind = "truncated" if found < n_bytes else "too long"
            yield path / name, f"{path / name}: {kind}, expected {n_bytes} bytes, found {found}"

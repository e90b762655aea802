"""A chunked table on disk, which both layouts of a dataset are: its parts, chunks and checksums; opening, reading, writing.

Entries lie in parts, each with a second table that counts them by row or by feature. A row group of a part's two files is a
chunk, the unit of reading. ``chunks.parquet`` lists the chunks; ``manifest.json``, written last, lists all files with their
bytes and checksums.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..core.atomic_files import sync
from ..core.errors import DatasetError
from ..core.metadata import Kind, write_metadata
from .parquet import OpenParts, Schema, TableWriter, file_checksum, read_table, reading

MAX_OPEN_PARTS = 64
"""Footers kept open; where shards outnumber it the order of a pass visits them in groups (`read_order.chunk_order`)."""

_LISTED = {"chunks.parquet": "chunks", "features.parquet": "features", "scaling.parquet": "scales"}


# ---------------------------------------------------------------------------------------------------------------------
# Reading


class ChunkedTable:
    """A chunked table, open for reading. Not for use by several threads at a time.

    Attributes
    ----------
    path : Path
    manifest : dict
    fingerprint : str
    n_entries, n_chunks, n_shards : int
    index_dtype, value_dtype : dtype
    chunk_part, chunk_group : ndarray of int32, shape (n_chunks,)
        The part and the row group in it that hold a chunk.
    entry_start : ndarray of int64, shape (n_chunks + 1,)
        Chunk ``c`` holds the entries ``entry_start[c]:entry_start[c + 1]``.
    """

    KIND: ClassVar[Kind[Any]]
    """Kind of its manifest."""
    TABLES: ClassVar[Mapping[str, int]]
    """Tables of a part, each with the first column that training reads."""

    def __init__(self, path: Path, manifest: dict[str, Any], chunk_table: Mapping[str, np.ndarray]) -> None:
        self.path = path
        self.manifest = manifest
        self.fingerprint: str = manifest["fingerprint"]
        self.n_entries: int = manifest["n_entries"]
        self.n_shards = len(manifest["parts"])
        self.index_dtype = np.dtype(manifest["index_dtype"])
        self.value_dtype = np.dtype(manifest["value_dtype"])
        self.chunk_part = chunk_table["part"].astype(np.int32)
        self.n_chunks = self.chunk_part.size
        first_of_part = np.searchsorted(self.chunk_part, np.arange(self.n_shards))
        self.chunk_group = (np.arange(self.n_chunks) - first_of_part[self.chunk_part]).astype(np.int32)
        self.entry_start = starts_of(chunk_table["n_entries"])
        self._parts = OpenParts(self.path, 2 * MAX_OPEN_PARTS)
        self._chunk_bytes = np.full(self.n_chunks, -1, dtype=np.int64)

    @classmethod
    def read_chunk_table(
        cls, path: Path, manifest: Mapping[str, Any], check_files: bool
    ) -> dict[str, np.ndarray]:
        """Read ``chunks.parquet``; refuse it, or any file with `check_files`, where it is not as listed."""
        if check_files:
            for _, problem in file_problems(path, cls.listed_files(manifest)):
                raise DatasetError(f"{problem}; {cls.KIND.remedy}")
        chunks_path = path / "chunks.parquet"
        with reading(chunks_path):
            if file_checksum(chunks_path) != manifest["chunks"]["checksum"]:
                raise DatasetError(f"{chunks_path}: checksum differs from the manifest's; {cls.KIND.remedy}")
        table = read_table(chunks_path)
        if table["part"].max(initial=-1) >= len(manifest["parts"]):
            raise DatasetError(f"{chunks_path}: a part that the manifest does not list; {cls.KIND.remedy}")
        return table

    @classmethod
    def listed_files(cls, manifest: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
        """Name, bytes and checksum of every file that a manifest lists."""
        for name, key in _LISTED.items():
            if manifest.get(key) is not None:
                yield name, manifest[key]["bytes"], manifest[key]["checksum"]
        for part in manifest["parts"]:
            for table in cls.TABLES:
                yield part[table], part[f"{table}_bytes"], part[f"{table}_checksum"]

    def _file(self, table: str, chunk: int) -> tuple[str, int]:
        """Name of the file that holds a chunk of a table, and the row group in it."""
        return self.manifest["parts"][self.chunk_part[chunk]][table], int(self.chunk_group[chunk])

    def _read(
        self, table: str, chunk: int, columns: Sequence[str], n_rows: int, verify: bool
    ) -> list[np.ndarray]:
        """Read columns of a chunk of a table, of which `n_rows` rows are expected."""
        arrays = self._parts.read(*self._file(table, chunk), columns, verify)
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

    def expect(self, chunk: int) -> None:
        """Announce that a chunk's entries will be read for training, in the order of such calls."""
        self._parts.expect(*self._file("entries", chunk), self.TABLES["entries"])

    def read_directly(self) -> None:
        """From now until `close`, chunks that are expected are read past the page cache."""
        self._parts.read_directly()

    def chunk_bytes(self, chunk: int) -> int:
        """Bytes on disk that reading a chunk for training asks for."""
        if self._chunk_bytes[chunk] < 0:
            extents = [self._extent(table, chunk, first) for table, first in self.TABLES.items()]
            self._chunk_bytes[chunk] = sum(n_bytes for _, n_bytes in extents)
        return int(self._chunk_bytes[chunk])

    def _extent(self, table: str, chunk: int, first_column: int) -> tuple[int, int]:
        name, group = self._file(table, chunk)
        return self._parts[name].extent(group, first_column)

    def place(self, chunk: int, table: str = "entries") -> str:
        """Location of a chunk for messages: the file and the number of the chunk in it."""
        name, group = self._file(table, chunk)
        return f"{self.path / name}, chunk {group}"

    def bytes_on_disk(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(n_bytes for _, n_bytes, _ in self.listed_files(self.manifest))

    def close(self) -> None:
        """Close all files; the next read opens them again."""
        self._parts.close()


def starts_of(counts: np.ndarray) -> np.ndarray:
    """0 and the cumulative sums, int64: chunk ``c`` holds ``starts[c]:starts[c + 1]``."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def file_problems(path: Path, files: Iterable[tuple[str, int, str]]) -> Iterator[tuple[Path, str]]:
    """Find files in a directory that are missing or have other bytes than listed, each with a line that says so.

    Parameters
    ----------
    path : Path
    files : iterable of (str, int, str)
        Name, bytes and checksum of each.
    """
    for name, n_bytes, _ in files:
        try:
            found = os.stat(path / name).st_size
        except FileNotFoundError:
            yield path / name, f"{path / name}: the file is missing"
            continue
        if found != n_bytes:
            kind = "truncated" if found < n_bytes else "too long"
            yield path / name, f"{path / name}: {kind}, expected {n_bytes} bytes, found {found}"


# ---------------------------------------------------------------------------------------------------------------------
# Writing


class PartFiles:
    """The files of one part being written, a row group each for a chunk.

    Parameters
    ----------
    path : Path
    names : mapping of str to str
        Name of each table's file.
    schemas : mapping of str to Schema
    compression : {"lz4", "zstd", "none"}
    """

    def __init__(
        self, path: Path, names: Mapping[str, str], schemas: Mapping[str, Schema], compression: str
    ) -> None:
        self.names = names
        self._writers = {
            table: TableWriter(path / name, schemas[table], compression) for table, name in names.items()
        }

    def write(self, table: str, **columns: np.ndarray) -> None:
        """Write the chunk's row group of one table."""
        self._writers[table].write(**columns)

    def close(self) -> dict[str, Any]:
        """End the files; returns their bytes and checksums, by the manifest's keys."""
        figures = {table: writer.close() for table, writer in self._writers.items()}
        return {f"{table}_{key}": value for table, found in figures.items() for key, value in found.items()}


def write_chunk_table(path: Path, schema: Schema, table: np.ndarray, compression: str) -> dict[str, Any]:
    """Write ``chunks.parquet``, a row per chunk; returns its bytes and checksum."""
    writer = TableWriter(path / "chunks.parquet", schema, compression)
    writer.write(**{name: table[:, k] for k, name in enumerate(schema.names)})
    return writer.close()


def write_manifest(
    path: Path, kind: Kind[Any], fields: Mapping[str, Any], folders: Sequence[str] = ()
) -> dict[str, Any]:
    """Make the files in `path` and its folders durable and write the manifest, which is returned."""
    for folder in (*folders, ""):
        sync(path / folder)
    return write_metadata(path / "manifest.json", kind, fields)

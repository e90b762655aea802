"""Reading of chunked tables, the common form of both layouts of a dataset (parts, chunks, checksums), and the row layout.

Entries are stored in parts, each with a second table that counts them by row or by feature. A row group of a part's two
files is a chunk, the unit of reading. ``chunks.parquet`` lists the chunks; ``manifest.json``, written last, lists all files
with their sizes and checksums. The row layout has a row per sample in ``rows/`` and its non-zeros, sorted by row, in
``entries/``. Rows are numbered within their part, so that parts of several datasets can stand together.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from ..core.atomic_files import describe_set_aside
from ..core.errors import DatasetError
from ..core.metadata import Kind, read_metadata
from ..core.storage import DATASET_BYTES, NO_FILE, Location, Url, file_sizes, location, with_size
from .manifests import LISTED, ROW_LAYOUT
from .parquet import NO_CRC, OpenParts, read_table
from .schema import FIRST_OF_ROWS, ChunkData, row_dtype

MAX_OPEN_PARTS = 64
"""Parts whose footers are kept; if there are more shards, a pass visits them in groups (`stream.chunk_order`)."""


class ChunkedTable:
    """A chunked table, open for reading. Not thread-safe."""

    KIND: ClassVar[Kind[Any]]
    """Kind of its manifest."""
    TABLES: ClassVar[Mapping[str, str]]
    """First column that training reads, by table of a part."""

    def __init__(
        self, path: Location, manifest: dict[str, Any], chunk_table: Mapping[str, np.ndarray]
    ) -> None:
        self.path = path
        self.manifest = manifest
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
        self._n_stored = chunk_table["n_entries"]  # entries in the files; a selection leaves some out
        self.entry_start = starts_of(self._n_stored)
        self._check_count("n_entries", self.entry_start)
        self.chunk_crc = {table: chunk_table[f"{table}_crc"] for table in self.TABLES}
        listed = self.listed_files(manifest) if isinstance(path, Url) else ()
        self._sizes = {name: n_bytes for name, n_bytes, _ in listed}
        self._parts = OpenParts(self.path, 2 * MAX_OPEN_PARTS, self._sizes)
        self.cache: str | None = None
        self._chunk_bytes = np.full(self.n_chunks, -1, dtype=np.int64)

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
                yield part[table], part[f"{table}_bytes"], part[f"{table}_checksum"]

    def part_files(self, part: int) -> list[tuple[str, int, str]]:
        """Return name, bytes and checksum of a part's files, as `listed_files`."""
        return list(self.listed_files({"parts": [self.manifest["parts"][part]]}))

    def file(self, name: str) -> Location:
        """Return where a file of the table is stored."""
        return with_size(self.path / name, self._sizes.get(name))

    def files(self, name: str) -> list[Location]:
        """Return where a file is stored, if the manifest lists it."""
        return [self.file(name)] if self.manifest.get(LISTED[name]) else []

    def _file(self, table: str, chunk: int) -> tuple[str, int]:
        """Return the name of the file that holds a chunk of a table, and the row group in that file."""
        part = self.manifest["parts"][self.chunk_part[chunk]]
        return part[table], int(self.chunk_group[chunk])

    def _read(
        self, table: str, chunk: int, columns: Sequence[str], n_rows: int, verify: bool
    ) -> list[np.ndarray]:
        """Read columns of a chunk's `n_rows` rows of a table."""
        crc = int(self.chunk_crc[table][chunk]) if columns[0] == self.TABLES[table] else NO_CRC
        arrays = self._parts.read(*self._file(table, chunk), columns, verify, crc)
        for array in arrays:
            if array.size != n_rows:
                raise DatasetError(
                    f"{self.place(chunk, table)}: holds {array.size} rows, the chunk table says {n_rows}; "
                    f"{self.KIND.remedy}"
                )
        return arrays

    def _read_entries(self, chunk: int, columns: Sequence[str], verify: bool) -> list[np.ndarray]:
        return self._read("entries", chunk, columns, int(self._n_stored[chunk]), verify)

    def open_parts(self, chunks: Iterable[int]) -> None:
        """Open the files of chunks that will be read, where that takes a request each."""
        if isinstance(self.path, Url):
            self._parts.open_together(
                self._file(table, chunk)[0] for chunk in chunks for table in self.TABLES
            )

    def expect(self, chunk: int, first: Mapping[str, str] | None = None) -> None:
        """Announce a read of a chunk's entries; reads must follow in the order announced.

        They are read from the column that `first` names, by default training's. The other table, which is small, comes
        first; of one on disk the page cache keeps it, and each read of it that was not announced waits for the disk.
        """
        first = first or self.TABLES
        by_request = isinstance(self.path, Url) and self.cache is None
        announce = self._parts.expect if by_request else self._parts.hint
        for table in first.keys() - {"entries"}:
            announce(*self._file(table, chunk), first[table])
        self._parts.expect(*self._file("entries", chunk), first["entries"])

    def use_cache(self, directory: str | None) -> None:
        """Copy parts at a URL to a directory, of each as a whole, when they are opened from now on."""
        if isinstance(self.path, Url) and directory is not None:
            self.cache = directory
            # what the files hold is part of the name: another dataset in their place has copies of its own
            self._parts.copies = Path(directory) / self.manifest["seal"].removeprefix("sha256:")[:32]

    def at(self, path: Location, manifest: dict[str, Any]) -> Self:
        """Return the table with its files in another place, as a manifest of the same chunks names them."""
        other = copy.copy(self)
        other.path, other.manifest = path, manifest
        other._parts = OpenParts(path, 2 * MAX_OPEN_PARTS, {})
        return other

    @property
    def client_bytes(self) -> int:
        """Memory that reading takes where the table is at a URL."""
        return DATASET_BYTES if isinstance(self.path, Url) else 0

    def reopen(self) -> Self:
        """Return the same table with its own open files, for another thread."""
        other = copy.copy(self)
        other._parts = self._parts.reopen()
        return other

    def read_directly(self, ahead_bytes: int) -> None:
        """Read expected chunks past the page cache, `ahead_bytes` ahead, from now until `close`."""
        self._parts.read_directly(ahead_bytes)

    def chunk_bytes(self, chunk: int) -> int:
        """Return the bytes on disk that training reads of a chunk."""
        if self._chunk_bytes[chunk] < 0:
            located = [(self._file(table, chunk), first) for table, first in self.TABLES.items()]
            extents = [self._parts.extent(name, group, first) for (name, group), first in located]
            self._chunk_bytes[chunk] = sum(n_bytes for _, n_bytes in extents)
        return int(self._chunk_bytes[chunk])

    def place(self, chunk: int, table: str = "entries") -> str:
        """Describe where a chunk is, for messages: the file and the number of the chunk in it."""
        name, group = self._file(table, chunk)
        return f"{self.path / name}, chunk {group}"

    def bytes_on_disk(self) -> int:
        """Return the size of all files except the manifest, in bytes."""
        return sum(n_bytes for _, n_bytes, _ in self.listed_files(self.manifest))

    def close(self) -> None:
        """Close all files; the next read reopens them."""
        self._parts.close()


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


class RowTable(ChunkedTable):
    """The row layout of a dataset, open for reading; its attributes are those of `dataset.Dataset`."""

    KIND = ROW_LAYOUT
    TABLES: ClassVar = FIRST_OF_ROWS

    def __init__(
        self, path: Location, manifest: dict[str, Any], chunk_table: Mapping[str, np.ndarray]
    ) -> None:
        super().__init__(path, manifest, chunk_table)
        self.n_rows: int = manifest["n_rows"]
        self.n_features: int = manifest["n_features"]
        classes = manifest["classes"]
        self.classes = None if classes is None else np.array(classes, dtype=np.float64)
        self.class_counts = None if classes is None else np.array(manifest["class_counts"], dtype=np.int64)
        targets = manifest.get("targets")
        self.targets = None if targets is None else {end: float(targets[end]) for end in ("min", "max")}
        self.row_dtype = row_dtype(self.n_rows)
        self.entry_bytes = self.index_dtype.itemsize + self.value_dtype.itemsize
        self._rows_stored = chunk_table["n_rows"]  # as `_n_stored`
        self.row_start = starts_of(self._rows_stored)
        self._check_count("n_rows", self.row_start)
        # items are rows, and every chunk is a unit of its own (see `memory_plan.Table`)
        self.n_items, self.item_start, self.unit_start = self.n_rows, self.row_start, None

    @property
    def mean_square(self) -> float | None:
        """Mean square of the rows' norms; None where it is not recorded."""
        square: float | None = (self.manifest.get("row_norms") or {}).get("mean_square")
        return square

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, check_files: bool = True, fingerprint: str | None = None
    ) -> Self:
        """Open the row layout in a directory, refused where it should have a `fingerprint` and has another."""
        place = location(path)
        try:
            manifest, _ = read_metadata(place / "manifest.json", cls.KIND)
        except (FileNotFoundError, NotADirectoryError):
            raise DatasetError(_describe_absence(place)) from None
        if fingerprint not in (None, manifest["fingerprint"]):
            raise OtherDatasetError(place, fingerprint, manifest["fingerprint"])
        return cls(place, manifest, cls.read_chunk_table(place, manifest, check_files))

    def read_rows(
        self, chunk: int, columns: Sequence[str] = ("label", "n_entries"), *, verify: bool = True
    ) -> list[np.ndarray]:
        """Read columns of a chunk's rows: among ``row``, ``source``, ``label``, ``weight``, ``n_entries``.

        The arrays are read-only. `verify` checks checksums; raises `DatasetError`, which names the file, if one is missing
        or damaged.
        """
        return self._numbered(
            chunk, columns, self._read("rows", chunk, columns, int(self._rows_stored[chunk]), verify)
        )

    def read_entries(
        self, chunk: int, columns: Sequence[str] = ("feature", "value"), *, verify: bool = True
    ) -> list[np.ndarray]:
        """Read columns of a chunk's entries: among ``row``, ``feature``, ``value``; otherwise as `read_rows`."""
        return self._numbered(chunk, columns, self._read_entries(chunk, columns, verify))

    def _numbered(self, chunk: int, columns: Sequence[str], arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Return numbers of rows, here and in the source, as those of all rows: files count within their part."""
        if "row" in columns or "source" in columns:
            row, source = self.part_starts(int(self.chunk_part[chunk]))
            shifts = {"row": (row, self.row_dtype), "source": (source, np.dtype(np.int64))}
            for place, name in enumerate(columns):
                if name in shifts:
                    shift, dtype = shifts[name]
                    arrays[place] = arrays[place].astype(dtype, copy=False)
                    arrays[place] = arrays[place] + dtype.type(shift) if shift else arrays[place]
        return arrays

    def part_starts(self, part: int) -> tuple[int, int]:
        """Return what is added to the numbers of a part's rows, here and in the source."""
        first = int(np.searchsorted(self.chunk_part, part))
        return int(self.row_start[first]), self.manifest["parts"][part].get("source", 0)

    def read(self, chunk: int, *, verify: bool = True) -> ChunkData:
        source, label, weight, n_entries = self.read_rows(
            chunk, ("source", "label", "weight", "n_entries"), verify=verify
        )
        feature, value = self.read_entries(chunk, verify=verify)
        return ChunkData(
            int(self.row_start[chunk]), source, label, weight, starts_of(n_entries), feature, value
        )


class OtherDatasetError(DatasetError):
    """Another dataset than expected: `found` is its fingerprint."""

    def __init__(self, path: Location, expected: str | None, found: str) -> None:
        super().__init__(f"{path}: expected the fingerprint {expected}, found {found}: another dataset")
        self.found = found


def _describe_absence(path: Location) -> str:
    if (path / "config.json").exists():
        return f"{path} is a run, not a dataset; 'streamcd evaluate DATASET {path}' and 'resume {path}' take runs"
    found = "is not a dataset (no manifest.json in it)" if path.exists() else "does not exist"
    if isinstance(path, Path) and (aside := describe_set_aside(path)):
        return f"{path} {found}{aside}"
    source, made = (path, "DATASET") if isinstance(path, Path) and path.is_file() else ("SRC", path)
    return f"{path} {found}; 'streamcd convert {source} {made}' makes one"

"""Tables in files of Parquet and of Arrow's IPC formats; read in batches, pieces of them by several processes."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ..core.errors import DataError
from ..core.memory_budget import format_size
from ..core.parallel import in_shares
from ..core.storage import location, open_bytes
from ..dataset.arrow_columns import (
    flat_columns,
    one_batch,
    parquet_file,
)
from .sources import MOST_BATCH_ROWS, Block, Counted, Piece, TableReader, no_values, refusing_damage
from .table_columns import FIRST_ROWS, column_types

_LEAST_BATCH_ROWS = 1 << 8
_BUFFER_BYTES = 1 << 18  # by which column chunks of Parquet are read
_PAGE_BYTES = 1 << 20  # of writers' pages, by default
_PARSED = 16  # bytes in memory for a byte of metadata
_PREFIXED_ROWS = 64  # at a time of strings that share prefixes: no figure of the file tells how long they are
_MOST_EXPANSION = 100  # of a column chunk of Parquet that is larger than the memory for it
_CELL_BYTES = 8  # of text, about, that a cell of a table would be
_SMALLER_BATCHES = "write the file with smaller record batches, or uncompressed, or "

_refusing_damage = partial(
    refusing_damage,
    (pa.ArrowException, ValueError, OverflowError),
    "expected a whole file of its format, found a damaged one",
)


@dataclass(frozen=True)
class FileReader(TableReader):
    """Base of readers of tables in files that have types; `memory_bytes` are for what is decoded at a time."""

    paths: list[str]
    memory_bytes: int

    def sizes(self, path: str) -> list[int]:
        """Return the bytes of the row groups or record batches of a file; none of one that is read from its beginning."""
        raise NotImplementedError

    def pieces(self, n_tasks: int = 1) -> list[Piece]:
        if n_tasks == 1:
            return super().pieces()
        sizes = {path: self.sizes(path) for path in self.paths}
        most = max(sum(map(sum, sizes.values())) // n_tasks, 1 << 20)
        found: list[Piece] = []
        for path, group_sizes in sizes.items():
            shares = in_shares(group_sizes, -(-sum(group_sizes) // most))
            found += [Piece(path, *share, sum(group_sizes[slice(*share)])) for share in shares] or [
                Piece(path)
            ]
        return found

    def first_blocks(self, names: Sequence[str]) -> Iterator[Block]:
        # as many columns at a time as have pages that fit in the memory, before it is known whether all do
        n = max(1, 4 * self.memory_bytes // (9 * _PAGE_BYTES))
        for k in range(0, len(names), n):
            group = names[k : k + n]
            first = dict[str, Block]()
            for path in self.paths:
                types = column_types(self.schema(path), path)
                typed = [
                    name for name in group if name not in first and types.get(name, "nothing") != "nothing"
                ]
                batches: list[pa.RecordBatch] = []
                for block in self.blocks(Piece(path), dict.fromkeys(typed, "string")) if typed else ():
                    batches.append(block.content)
                    if sum(batch.num_rows for batch in batches) >= FIRST_ROWS:
                        break
                if batches:
                    rows = one_batch(pa.Table.from_batches(batches))
                    first |= dict.fromkeys(typed, Block(path, 0, rows))
                if len(first) == len(group):
                    break
            yield from (first[name] if name in first else no_values(name) for name in group)

    def rows_at_a_time(self, where: str, row_bytes: float) -> int:
        """Return the rows to decode at a time; refuses rows that do not fit in the memory."""
        self.check_fits(where, row_bytes, f"rows of {format_size(row_bytes)} each, decoded")
        least = min(_LEAST_BATCH_ROWS, max(self.memory_bytes / row_bytes, 1))
        return int(min(max(self.memory_bytes / 8 / row_bytes, least), MOST_BATCH_ROWS))

    def check_fits(self, where: str, n_bytes: float, description: str, advice: str = "") -> None:
        """Refuse what is decoded as a whole, and does not fit in the memory."""
        if n_bytes > self.memory_bytes:
            raise DataError(
                f"{where}: expected at most {format_size(self.memory_bytes)} to decode at a time under this memory budget, "
                f"found {description}; {advice}give a larger --memory"
            )


# ---------------------------------------------------------------------------------------------------------------------
# Parquet


class _File(NamedTuple):
    """Schema of a file, and rows and bytes of its row groups."""

    schema: pa.Schema
    n_rows: np.ndarray
    n_bytes: np.ndarray


@dataclass(frozen=True)
class ParquetReader(FileReader):
    """Parquet files."""

    _read: dict[str, Any] = field(default_factory=dict)  # metadata of the file that was last asked for

    def _metadata(self, path: str) -> Any:
        """Read a file's metadata, which may take much memory: of one file at a time."""
        if metadata := self._read.get(path):
            return metadata
        self._read.clear()
        with _refusing_damage(path):
            metadata = parquet_file(location(path)).metadata
        with open_bytes(location(path)) as file:
            file.seek(-8, os.SEEK_END)
            # a signature, without which columns are not encrypted, makes the footer longer; pyarrow aborts at these
            if int.from_bytes(file.read(4), "little") != metadata.serialized_size:
                raise DataError(
                    f"{path}: expected plain columns, found encrypted ones; decrypt the file first"
                )
        self._read[path] = metadata
        return metadata

    @cached_property
    def _files(self) -> dict[str, _File]:
        files: dict[str, _File] = {}
        for path in self.paths:
            metadata = self._metadata(path)
            with _refusing_damage(path):
                schema = metadata.schema.to_arrow_schema()
            first = next(iter(files.values())).schema if files else schema
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            files[path] = _File(
                first if schema.equals(first, check_metadata=True) else schema,
                np.array([group.num_rows for group in groups], np.int64),
                np.array([group.total_byte_size for group in groups], np.int64),
            )
        return files

    def sizes(self, path: str) -> list[int]:
        return self._files[path].n_bytes.tolist()

    def count(self, piece: Piece) -> Counted:
        n_rows = int(self._files[piece.path].n_rows[piece.start : piece.stop].sum())
        return Counted(n_rows, n_rows)

    def held_bytes(self, types: Mapping[str, str]) -> int:
        """Bytes of metadata, and of the pages that are open: of every column one, compressed and not, and its dictionary."""
        sizes = [0]
        for path, file in self._files.items():
            if file.n_bytes.size:
                metadata = self._metadata(path)
                chunks = _chunks(metadata, int(file.n_bytes.argmax()), _leaves(metadata, types))
                pages = (min(chunk.total_uncompressed_size, 3 * _PAGE_BYTES // 4) for chunk in chunks)
                sizes.append(_PARSED * metadata.serialized_size + 3 * sum(pages))
        return max(sizes)

    def schema(self, path: str) -> pa.Schema:
        return self._files[path].schema

    def blocks(self, piece: Piece, types: Mapping[str, str], first_line: int = 0) -> Iterator[Block]:
        path = piece.path
        table_file = self._files[piece.path]
        present = column_types(table_file.schema, path)
        before = int(table_file.n_rows[: piece.start].sum())
        metadata = self._metadata(path)
        groups = range(table_file.n_rows.size)[piece.start : piece.stop]
        leaves = _leaves(metadata, types)
        names = [name for name in types if name in present]
        # pyarrow does not read pages of prefixes or lengths as dictionaries
        strings = {name for name, kind in types.items() if present.get(name) == kind == "string"}
        plain = {
            chunk.path_in_schema
            for number in groups
            for chunk in _chunks(metadata, number, leaves if strings else [])
            if "DELTA" in str(chunk.encodings)
        }
        options = {"metadata": metadata, "buffer_size": _BUFFER_BYTES, "pre_buffer": False}
        with (
            _refusing_damage(path),
            parquet_file(location(path), read_dictionary=sorted(strings - plain), **options) as file,
        ):
            for number in groups:
                chunks = _chunks(metadata, number, leaves)
                row_bytes = 16.0
                for chunk in chunks:
                    stored = chunk.total_compressed_size
                    size = chunk.total_uncompressed_size
                    # runs and dictionaries may take next to none in the file
                    decoded = max(size, _CELL_BYTES * chunk.num_values)
                    row_bytes += 2 * decoded / max(int(table_file.n_rows[number]), 1)
                    if chunk.path_in_schema not in types:  # of a list, of which one row may have all elements
                        size = decoded
                    self.check_fits(
                        f"{path}, row group {number}: column {chunk.path_in_schema!r}",
                        size if size > _MOST_EXPANSION * stored else 0,
                        f"{format_size(stored)} that become {format_size(size)}",
                        "write it with smaller row groups, or ",
                    )
                rows = self.rows_at_a_time(f"{path}, row group {number}", row_bytes)
                if any("DELTA_BYTE_ARRAY" in chunk.encodings for chunk in chunks):
                    rows = min(rows, _PREFIXED_ROWS)
                for batch in file.iter_batches(rows, row_groups=[number], columns=names, use_threads=False):
                    row_bytes = batch.nbytes / batch.num_rows
                    self.check_fits(path, batch.nbytes, f"rows of {format_size(row_bytes)} each, decoded")
                    batch.validate(full=True)
                    yield Block(path, before, flat_columns(batch))
                    before += batch.num_rows


def _leaves(metadata: Any, types: Mapping[str, str]) -> list[int]:
    """Return the numbers of the columns of a file that belong to those of `types`, whose names may have dots."""
    paths = [metadata.schema.column(number).path.split(".") for number in range(metadata.num_columns)]
    return [
        number
        for number, parts in enumerate(paths)
        if any(".".join(parts[:n]) in types for n in range(1, len(parts) + 1))
    ]


def _chunks(metadata: Any, number: int, leaves: Sequence[int]) -> list[Any]:
    """Return the chunks of columns in a row group."""
    return [*map(metadata.row_group(number).column, leaves)]


# ---------------------------------------------------------------------------------------------------------------------
# Arrow's formats


@dataclass(frozen=True)
class ArrowReader(FileReader):
    """Files of Arrow's IPC formats (Feather is one), mapped into memory; what was read is given back to the system."""

    def sizes(self, path: str) -> list[int]:
        mapped, reader = _open_mapped(path)
        n_batches = getattr(reader, "num_record_batches", 0)  # a stream has no list of them
        return [len(mapped) // max(n_batches, 1)] * n_batches

    def count(self, piece: Piece) -> Counted:
        n_rows = sum(batch.num_rows for batch in _batches(_open_mapped(piece.path, [0])[1], piece))
        return Counted(n_rows, n_rows)

    def schema(self, path: str) -> pa.Schema:
        return _open_mapped(path)[1].schema

    def blocks(self, piece: Piece, types: Mapping[str, str], first_line: int = 0) -> Iterator[Block]:
        before = first_line
        for mapped, batch in self._checked(piece):
            rows = self.rows_at_a_time(piece.path, max(batch.nbytes / max(batch.num_rows, 1), 8.0))
            for start in range(0, batch.num_rows, rows):
                copied: dict[str, pa.Array] = {}
                for column_field, column in zip(batch.schema, batch.slice(start, rows).columns, strict=True):
                    if column_field.name in types or pa.types.is_struct(column_field.type):
                        # pyarrow follows offsets out of a damaged file into a crash
                        with _refusing_damage(piece.path):
                            column.validate(full=True)
                        copied[column_field.name] = pa.concat_arrays([column])
                        # pages count as resident until they are released, of each column up to some megabytes
                        mapped.madvise(mmap.MADV_DONTNEED)
                columns = flat_columns(pa.RecordBatch.from_arrays([*copied.values()], [*copied]))
                columns = columns.select([name for name in types if name in columns.schema.names])
                yield Block(piece.path, before + start, columns)
            before += batch.num_rows

    def _checked(self, piece: Piece) -> Iterator[tuple[mmap.mmap, pa.RecordBatch]]:
        """Read record batches; those that become larger than the memory when decompressed are refused.

        Of a batch, a narrow column is read first: it tells the rows, and so the size of all columns of known width.
        """
        mapped, reader = _open_mapped(piece.path)
        widths = [_width(field.type) for field in reader.schema]
        narrow = min(range(len(widths)), key=lambda k: widths[k] or math.inf)
        batches, samples = (
            _batches(opened, piece) for opened in (reader, _open_mapped(piece.path, [narrow])[1])
        )
        for number, sample in enumerate(samples, piece.start + 1):
            where = f"{piece.path}: record batch {number}"
            known = sum(widths) * sample.num_rows if _inflated(sample) else 0
            self.check_fits(where, known, format_size(known), _SMALLER_BATCHES)
            batch = next(batches)
            size = _inflated(batch)
            self.check_fits(where, size, format_size(size), _SMALLER_BATCHES)
            with _refusing_damage(piece.path):
                batch.validate()
            yield mapped, batch


def _open_mapped(path: str, fields: Sequence[int] = ()) -> tuple[mmap.mmap, Any]:
    """Map a file into memory, and open it to read some columns, by default all."""
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    opened = pa.ipc.open_file if mapped[:6] == b"ARROW1" else pa.ipc.open_stream
    options = pa.ipc.IpcReadOptions(included_fields=list(fields), use_threads=False)
    with _refusing_damage(path):
        return mapped, opened(pa.py_buffer(mapped), options=options)


def _batches(reader: Any, piece: Piece) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a part of a file."""
    with _refusing_damage(piece.path):
        if not hasattr(reader, "num_record_batches"):
            yield from reader
            return
        for number in range(piece.start, reader.num_record_batches if piece.stop is None else piece.stop):
            yield reader.get_batch(number)


def _inflated(batch: pa.RecordBatch) -> int:
    """Bytes of a record batch that were decompressed; others are parts of the file, or of a copy of it."""
    buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None]
    return sum(buffer.size for buffer in buffers if buffer.parent is None)


def _width(type_: pa.DataType) -> int:
    """Bytes of an element of known width, else 0."""
    try:
        return -(-type_.bit_width // 8)
    except ValueError:
        return 0

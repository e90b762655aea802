"""Tables in files of Parquet and of Arrow's IPC formats; read in batches, pieces of them by several processes."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice, pairwise
from typing import Any, NoReturn
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from ..core.errors import DataError
from ..core.memory_budget import format_size
from ..core.storage import file_size, location, open_bytes
from ..dataset.arrow_columns import flat_columns, one_batch
from ..dataset.parquet import parquet_file
from .sources import Block, Counted, FilePart, Reader, locator, refusing_damage
from .table_columns import FIRST_ROWS, column_types, index_of, text_columns

_LEAST_BATCH_ROWS, _MOST_BATCH_ROWS = 1 << 8, 1 << 16
_BUFFER_BYTES = 1 << 18  # by which column chunks of Parquet are read
_PAGE_BYTES = 1 << 20  # of writers' pages, by default
_PREFIXED_ROWS = 64  # at a time of strings that share prefixes: no figure of the file tells how long they are
_MOST_EXPANSION = 100  # of a column chunk of Parquet that is larger than the memory for it
_CELL_BYTES = 8  # of text, about, that a cell of a table would be
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


# ---------------------------------------------------------------------------------------------------------------------
# Parquet


def _rows_at_a_time(memory_bytes: int, row_bytes: float) -> int:
    least = min(_LEAST_BATCH_ROWS, max(memory_bytes / row_bytes, 1))
    return int(min(max(memory_bytes / 8 / row_bytes, least), _MOST_BATCH_ROWS))


def _decoded_bytes(chunk: Any) -> int:
    """Bytes of a column chunk of Parquet when decoded: runs and dictionaries may take next to none in the file."""
    return int(max(chunk.total_uncompressed_size, _CELL_BYTES * chunk.num_values))


_refusing_damage = partial(
    refusing_damage,
    (pa.ArrowException, ValueError, OverflowError),
    "expected a whole file of its format, found a damaged one",
)


@dataclass(frozen=True)
class _WholeFiles(Reader):
    paths: list[str]
    memory_bytes: int

    def whole(self) -> list[FilePart]:
        return [FilePart(path, n_bytes=file_size(path) or 0) for path in self.paths]

    def names_in(self, path: str) -> list[str]:
        """Return the names of the columns of a file."""
        return list(self._types_in(path))

    def types(self) -> dict[str, str]:
        """Return the types of the columns of the first file."""
        return self._types_in(self.paths[0])

    def _types_in(self, path: str) -> dict[str, str]:
        return column_types(self._schema(path), path)

    def index_columns(self) -> list[str]:
        return index_of(self._schema(self.paths[0]))

    def _schema(self, path: str) -> Any:
        raise NotImplementedError

    def first_rows(self, types: Mapping[str, str]) -> Any:
        """Return the first rows of the columns of `types`."""
        found: list[Any] = []
        with closing(self.blocks(self.whole()[:1], 0, dict(types))) as blocks:
            for block in blocks:
                found.append(block.content)
                if sum(batch.num_rows for batch in found) >= FIRST_ROWS:
                    break
        return one_batch(pa.Table.from_batches(found).slice(0, FIRST_ROWS)) if found else None

    def blocks(
        self, pieces: Sequence[FilePart], first_line: int, types: dict[str, str]
    ) -> Generator[Block, None, None]:
        """Read the columns of `types` of some pieces, a block at a time."""
        raise NotImplementedError


@dataclass(frozen=True)
class ParquetReader(_WholeFiles):
    """Parquet files; folders named ``key=value`` (hive partitions) are columns too."""

    partitions: dict[str, dict[str, str | None]] = field(default_factory=dict)  # of every path

    @cached_property
    def _metadata(self) -> dict[str, Any]:
        found = {}
        for path in self.paths:
            with _refusing_damage(path):
                found[path] = parquet_file(location(path)).metadata
            _refuse_encryption(path, found[path].serialized_size)
        return found

    def expected_bytes(self, pieces: Sequence[FilePart]) -> int | None:
        groups = [
            self._metadata[piece.path].row_group(group) for piece in pieces for group in self._groups(piece)
        ]
        # what is encoded by a dictionary is larger decoded
        return sum(
            max(group.total_byte_size, _CELL_BYTES * group.num_rows * group.num_columns) for group in groups
        )

    def _groups(self, piece: FilePart) -> range:
        n_groups = self._metadata[piece.path].num_row_groups
        return range(piece.start, n_groups if piece.stop is None else piece.stop)

    def pieces(self, n_tasks: int) -> list[FilePart]:
        sizes = [
            (path, group, self._metadata[path].row_group(group).total_byte_size)
            for path in self.paths
            for group in range(self._metadata[path].num_row_groups)
        ]
        most = max(sum(size for *_, size in sizes) // n_tasks, 1 << 20)
        found: list[FilePart] = []
        for path, group, size in sizes:
            last = found[-1] if found else None
            if last is not None and last.path == path and last.n_bytes + size <= most:
                found[-1] = FilePart(path, last.start, group + 1, last.n_bytes + size)
            else:
                found.append(FilePart(path, group, group + 1, size))
        return found

    def count(self, piece: FilePart) -> Counted:
        n_rows = sum(self._metadata[piece.path].row_group(group).num_rows for group in self._groups(piece))
        return Counted(n_rows, n_rows)

    def held_bytes(self, types: Mapping[str, str]) -> int:
        """Bytes of the pages that are open at a time: of every column one, compressed and not, and its dictionary."""
        most = 0
        for metadata in self._metadata.values():
            groups = map(metadata.row_group, range(metadata.num_row_groups))
            largest = max(groups, key=lambda group: group.total_byte_size, default=None)
            sizes = [chunk.total_uncompressed_size for chunk in _chunks(largest, types)] if largest else []
            most = max(most, sum(3 * min(size, 3 * _PAGE_BYTES // 4) for size in sizes))  # as measured
        return most

    def _schema(self, path: str) -> Any:
        with _refusing_damage(path):
            return parquet_file(location(path)).schema_arrow

    def _types_in(self, path: str) -> dict[str, str]:
        types = super()._types_in(path)
        for key in self.partitions.get(path, ()):
            numeric = all(_is_number(values.get(key)) for values in self.partitions.values())
            types.setdefault(key, "number" if numeric else "string")
        return types

    def blocks(
        self, pieces: Sequence[FilePart], first_line: int, types: dict[str, str]
    ) -> Generator[Block, None, None]:
        read_before = 0
        for piece in pieces:
            metadata = self._metadata[piece.path]
            groups = self._groups(piece)
            before = sum(metadata.row_group(group).num_rows for group in range(groups.start))
            for columns in self._read(piece.path, groups, types):
                columns = self._with_partitions(piece.path, columns, types)
                yield Block(locator(piece.path, before), columns, read_before)
                before += columns.num_rows
            read_before += piece.n_bytes

    def _read(self, path: str, groups: range, types: dict[str, str]) -> Iterator[Any]:
        metadata = self._metadata[path]
        present = column_types(self._schema(path), path)
        names = [name for name in types if name in present]
        batch_rows = self._batch_rows(path, metadata, groups, types)
        texts = _dictionary_encoded(
            metadata, groups, {name for name in names if types[name] == present[name] == "string"}
        )
        with (
            _refusing_damage(path),
            parquet_file(
                location(path), read_dictionary=texts, buffer_size=_BUFFER_BYTES, pre_buffer=False
            ) as file,
        ):
            for batch in file.iter_batches(
                batch_size=batch_rows, row_groups=list(groups), columns=names, use_threads=False
            ):
                if batch.nbytes > self.memory_bytes:
                    self._refuse_rows(path, batch.nbytes / batch.num_rows)
                batch.validate(full=True)
                yield text_columns(flat_columns(batch), types, path)

    def _refuse_rows(self, path: str, row_bytes: float) -> NoReturn:
        raise DataError(
            f"{path}: expected rows that fit in {format_size(self.memory_bytes)} under this memory budget, found some of "
            f"{format_size(row_bytes)} each, decoded; give a larger --memory"
        )

    def _batch_rows(self, path: str, metadata: Any, groups: range, types: dict[str, str]) -> int:
        """Rows to read at a time; refuses row groups that would be decompressed beyond the memory."""
        row_bytes, prefixed = 16.0, False
        for group in groups:
            found = metadata.row_group(group)
            chunks = _chunks(found, types)
            lists = [chunk for chunk in chunks if chunk.path_in_schema not in types]
            for chunk in chunks:
                self._check_expansion(path, group, [chunk], chunk.total_uncompressed_size)
            # all elements may be those of one row
            self._check_expansion(path, group, lists, sum(map(_decoded_bytes, lists)))
            decoded = sum(map(_decoded_bytes, chunks))
            row_bytes = max(row_bytes, 2 * decoded / max(found.num_rows, 1))
            prefixed |= any("DELTA_BYTE_ARRAY" in chunk.encodings for chunk in chunks)
        if row_bytes > self.memory_bytes:
            self._refuse_rows(path, row_bytes / 2)
        rows = _rows_at_a_time(self.memory_bytes, row_bytes)
        return min(rows, _PREFIXED_ROWS) if prefixed else rows

    def _check_expansion(self, path: str, group: int, chunks: list[Any], size: int) -> None:
        """Refuse chunks that expand beyond the memory, to `size` bytes, from much less."""
        compressed = sum(chunk.total_compressed_size for chunk in chunks)
        if size > max(self.memory_bytes, _MOST_EXPANSION * compressed):
            names = " and ".join(repr(chunk.path_in_schema) for chunk in chunks)
            raise DataError(
                f"{path}, row group {group}: column {names}: expected at most {format_size(self.memory_bytes)} to "
                f"decompress at a time under this memory budget, found {format_size(compressed)} that become "
                f"{format_size(size)}; write it with smaller row groups, or give a larger --memory"
            )

    def _with_partitions(self, path: str, batch: Any, types: dict[str, str]) -> Any:
        for key, value in self.partitions.get(path, {}).items():
            if key in types and key not in batch.schema.names:
                number = types[key] == "number"
                scalar = pa.scalar(
                    None if value is None else float(value) if number else value,
                    pa.float64() if number else pa.large_string(),
                )
                batch = batch.append_column(key, pa.repeat(scalar, batch.num_rows))
        return batch


def _refuse_encryption(path: str, n_bytes: int) -> None:
    """Refuse encrypted columns, at which pyarrow aborts: a signature makes the footer longer than its content."""
    with open_bytes(location(path)) as file:
        file.seek(-8, os.SEEK_END)
        if int.from_bytes(file.read(4), "little") != n_bytes:
            raise DataError(f"{path}: expected plain columns, found encrypted ones; decrypt the file first")


def _chunks(group: Any, types: Mapping[str, str]) -> list[Any]:
    """Return the column chunks of a row group that belong to the columns of `types`."""
    chunks = map(group.column, range(group.num_columns))
    return [chunk for chunk in chunks if not types.keys().isdisjoint(_prefixes(chunk.path_in_schema))]


def _prefixes(path: str) -> list[str]:
    """Return the paths above a leaf, itself included; names may have dots."""
    parts = path.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts) + 1)]


def _dictionary_encoded(metadata: Any, groups: range, names: set[str]) -> list[str]:
    """Return the columns that pyarrow can read as dictionaries: not those that have pages of prefixes or lengths."""
    types = dict.fromkeys(names, "string")
    chunks = [chunk for group in groups for chunk in _chunks(metadata.row_group(group), types)]
    delta = {"DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"}
    return sorted(names - {chunk.path_in_schema for chunk in chunks if delta.intersection(chunk.encodings)})


def _is_number(text: str | None) -> bool:
    with suppress(ValueError):
        return text is None or np.isfinite(float(text))
    return False


def partitions_of(path: str, root: str) -> dict[str, str | None]:
    """Return the columns that the folders between `root` and a file name, as ``key=value``."""
    found: dict[str, str | None] = {}
    for folder in os.path.relpath(path, root).split(os.sep)[:-1]:
        key, equals, value = folder.partition("=")
        if equals:
            found[unquote(key)] = None if value == _NULL_PARTITION else unquote(value)
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Arrow's formats


@dataclass(frozen=True)
class ArrowReader(_WholeFiles):
    """Files of Arrow's IPC formats (Feather is one), mapped into memory; what was read is given back to the system."""

    def pieces(self, n_tasks: int) -> list[FilePart]:
        found = []
        for piece in self.whole():
            n_batches = getattr(_open_mapped(piece.path)[1], "num_record_batches", None)
            if n_batches is None:  # a stream is read from its beginning
                found.append(piece)
                continue
            ends = np.linspace(0, n_batches, min(n_tasks, max(n_batches, 1)) + 1).astype(int).tolist()
            n_bytes = piece.n_bytes // (len(ends) - 1)
            found += [FilePart(piece.path, start, stop, n_bytes) for start, stop in pairwise(ends)]
        return found

    def count(self, piece: FilePart) -> Counted:
        n_rows = sum(batch.num_rows for batch in _batches(_open_mapped(piece.path, [0])[1], piece))
        return Counted(n_rows, n_rows)

    def _schema(self, path: str) -> Any:
        return _open_mapped(path)[1].schema

    def blocks(
        self, pieces: Sequence[FilePart], first_line: int, types: dict[str, str]
    ) -> Generator[Block, None, None]:
        read_before = 0
        for piece in pieces:
            before = first_line if piece is pieces[0] else 0
            mapped = _open_mapped(piece.path)[0]
            for batch in self._read(piece):
                columns = flat_columns(batch)
                columns = columns.select([name for name in types if name in columns.schema.names])
                columns = text_columns(columns, types, piece.path)
                rows = _rows_at_a_time(self.memory_bytes, max(batch.nbytes / max(batch.num_rows, 1), 8.0))
                for start in range(0, columns.num_rows, rows):
                    part = columns.slice(start, rows)
                    with _refusing_damage(piece.path):
                        part.validate(full=True)  # pyarrow follows offsets out of a damaged file into a crash
                    yield Block(locator(piece.path, before + start), part, read_before)
                    mapped.madvise(mmap.MADV_DONTNEED)  # pages count as resident until they are released
                before += batch.num_rows
            read_before += piece.n_bytes

    def _read(self, piece: FilePart) -> Iterator[Any]:
        """Read record batches; those that become larger than the memory when decompressed are refused.

        Of a batch, a narrow column is read first: it tells the rows, and so the size of all columns of known width.
        """
        mapped, reader = _open_mapped(piece.path)
        widths = [_width(field.type) for field in reader.schema]
        narrow = min(range(len(widths)), key=lambda k: widths[k] or math.inf)
        _, sampled = _open_mapped(piece.path, [narrow])
        batches = _batches(reader, piece)
        samples = enumerate(_batches(sampled, piece), piece.start)
        for (number, sample), batch_bytes in zip(samples, _stored_bytes(mapped, piece), strict=True):
            known = sum(widths) * sample.num_rows
            self._check_inflated(piece.path, number, known if known > batch_bytes else 0)
            batch = next(batches)
            self._check_inflated(piece.path, number, _inflated(batch, mapped))
            with _refusing_damage(piece.path):
                batch.validate()
            yield batch

    def _check_inflated(self, path: str, number: int, n_bytes: int) -> None:
        if n_bytes > self.memory_bytes:
            raise DataError(
                f"{path}: record batch {number + 1}: expected at most {format_size(self.memory_bytes)} to decompress at a "
                f"time under this memory budget, found {format_size(n_bytes)}; write the file with smaller record batches, "
                "or uncompressed, or give a larger --memory"
            )


def _open_mapped(path: str, fields: Sequence[int] = ()) -> tuple[mmap.mmap, Any]:
    """Map a file into memory, and open it to read some columns, by default all."""
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    opened = pa.ipc.open_file if mapped[:6] == b"ARROW1" else pa.ipc.open_stream
    options = pa.ipc.IpcReadOptions(included_fields=list(fields), use_threads=False)
    with _refusing_damage(path):
        return mapped, opened(pa.py_buffer(mapped), options=options)


def _batches(reader: Any, piece: FilePart) -> Iterator[Any]:
    """Yield the record batches of a part of a file."""
    with _refusing_damage(piece.path):
        if not hasattr(reader, "num_record_batches"):
            yield from reader
            return
        for number in range(piece.start, reader.num_record_batches if piece.stop is None else piece.stop):
            yield reader.get_batch(number)


def _stored_bytes(mapped: mmap.mmap, piece: FilePart) -> Iterator[int]:
    """Yield the bytes in the file of the record batches of a part; a file holds a stream after eight bytes."""
    stream = pa.py_buffer(mapped)[8 if mapped[:6] == b"ARROW1" else 0 :]
    with _refusing_damage(piece.path):
        messages = pa.ipc.MessageReader.open_stream(stream)
        sizes = (
            message.body.size if message.body else 0 for message in messages if message.type == "record batch"
        )
        yield from islice(sizes, piece.start, piece.stop)


def _inflated(batch: Any, mapped: mmap.mmap) -> int:
    """Bytes of a record batch that are not those of the file, but decompressed."""
    whole = pa.py_buffer(mapped)
    buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None]
    return sum(buffer.size for buffer in buffers if not 0 <= buffer.address - whole.address < whole.size)


def _width(type_: Any) -> int:
    """Bytes of an element of known width, else 0."""
    try:
        return -(-type_.bit_width // 8)
    except ValueError:
        return 0

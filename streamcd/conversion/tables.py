"""Tables in files of Parquet and of Arrow's IPC formats; read in batches, pieces of them by several processes."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, compress
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from ..core.errors import DataError
from ..core.memory_budget import format_size
from ..core.parallel import in_shares
from ..core.storage import location, open_bytes
from ..dataset.arrow_columns import flat_columns, one_batch, parquet_file, type_name
from .byte_sources import Piece
from .sources import Block, Counted, Reader, locator, refusing_damage
from .table_columns import FIRST_ROWS, column_types, index_of, text_columns

_LEAST_BATCH_ROWS, _MOST_BATCH_ROWS = 1 << 8, 1 << 16
_BUFFER_BYTES = 1 << 18  # by which column chunks of Parquet are read
_PAGE_BYTES = 1 << 20  # of writers' pages, by default
_PREFIXED_ROWS = 64  # at a time of strings that share prefixes: no figure of the file tells how long they are
_MOST_EXPANSION = 100  # of a column chunk of Parquet that is larger than the memory for it
_CELL_BYTES = 8  # of text, about, that a cell of a table would be
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"

_refusing_damage = partial(
    refusing_damage,
    (pa.ArrowException, ValueError, OverflowError),
    "expected a whole file of its format, found a damaged one",
)


@dataclass(frozen=True)
class TableReader(Reader):
    """Base of readers of tables in files that have types; `memory_bytes` are for what is decoded at a time."""

    paths: list[str]
    memory_bytes: int

    def pieces(self, n_tasks: int = 1) -> list[Piece]:
        if n_tasks == 1:
            return [Piece.whole(path) for path in self.paths]
        sizes = {path: self.sizes_in(path) for path in self.paths}
        most = max(sum(map(sum, sizes.values())) // n_tasks, 1 << 20)
        found: list[Piece] = []
        for path, own in sizes.items():
            shares = in_shares(own, -(-sum(own) // most))
            found += [Piece(path, *share, sum(own[slice(*share)])) for share in shares] or [Piece.whole(path)]
        return found

    def sizes_in(self, path: str) -> list[int]:
        """Return the bytes of the row groups or record batches of a file; none of one that is read from its beginning."""
        raise NotImplementedError

    def types_in(self, path: str) -> dict[str, str]:
        """Return the columns of a file with their types."""
        return column_types(self.schema(path), path)

    def schema(self, path: str) -> Any:
        raise NotImplementedError

    def index_columns(self) -> list[str]:
        return index_of(self.schema(self.paths[0]))

    def first_rows(self, types: Mapping[str, str]) -> Any:
        """Return the first rows of the columns of `types`."""
        found: list[Any] = []
        with closing(self.blocks(self.pieces()[:1], 0, dict(types))) as blocks:
            for block in blocks:
                found.append(block.content)
                if sum(batch.num_rows for batch in found) >= FIRST_ROWS:
                    break
        return one_batch(pa.Table.from_batches(found).slice(0, FIRST_ROWS)) if found else None

    def blocks(
        self, pieces: Sequence[Piece], first_line: int, types: dict[str, str]
    ) -> Generator[Block, None, None]:
        """Read the columns of `types` of some pieces, a block at a time."""
        raise NotImplementedError

    def rows_at_a_time(self, where: str, row_bytes: float, n_bytes: float = 0) -> int:
        """Return the rows to decode at a time; refuses rows, or `n_bytes` of them, that do not fit in the memory."""
        if max(row_bytes, n_bytes) > self.memory_bytes:
            raise DataError(
                f"{where}: expected rows that fit in {format_size(self.memory_bytes)} under this memory budget, found some "
                f"of {format_size(row_bytes)} each, decoded; give a larger --memory"
            )
        least = min(_LEAST_BATCH_ROWS, max(self.memory_bytes / row_bytes, 1))
        return int(min(max(self.memory_bytes / 8 / row_bytes, least), _MOST_BATCH_ROWS))

    def check_expansion(self, where: str, n_bytes: int, remedy: str) -> None:
        """Refuse what is decompressed as a whole, and does not fit in the memory."""
        if n_bytes > self.memory_bytes:
            raise DataError(
                f"{where}: expected at most {format_size(self.memory_bytes)} to decompress at a time under this memory "
                f"budget, found {remedy}, or give a larger --memory"
            )


# ---------------------------------------------------------------------------------------------------------------------
# Parquet


@dataclass(frozen=True)
class ParquetReader(TableReader):
    """Parquet files; folders named ``key=value`` (hive partitions) are columns too."""

    partitions: dict[str, dict[str, Any]] = field(default_factory=dict)  # of every path, as Arrow's scalars

    @cached_property
    def _metadata(self) -> dict[str, Any]:
        found = {}
        for path in self.paths:
            with _refusing_damage(path):
                found[path] = parquet_file(location(path)).metadata
            with open_bytes(location(path)) as file:
                file.seek(-8, os.SEEK_END)
                # a signature, without which columns are not encrypted, makes the footer longer; pyarrow aborts at these
                if int.from_bytes(file.read(4), "little") != found[path].serialized_size:
                    raise DataError(
                        f"{path}: expected plain columns, found encrypted ones; decrypt the file first"
                    )
        return found

    def _groups(self, piece: Piece) -> list[Any]:
        """Return the metadata of the row groups of a piece."""
        metadata = self._metadata[piece.path]
        stop = metadata.num_row_groups if piece.stop is None else piece.stop
        return [metadata.row_group(group) for group in range(piece.start, stop)]

    def expected_bytes(self, pieces: Sequence[Piece]) -> int | None:
        groups = [group for piece in pieces for group in self._groups(piece)]
        # what is encoded by a dictionary is larger decoded
        return sum(
            max(group.total_byte_size, _CELL_BYTES * group.num_rows * group.num_columns) for group in groups
        )

    def sizes_in(self, path: str) -> list[int]:
        return [group.total_byte_size for group in self._groups(Piece(path))]

    def count(self, piece: Piece) -> Counted:
        n_rows = sum(group.num_rows for group in self._groups(piece))
        return Counted(n_rows, n_rows)

    def held_bytes(self, types: Mapping[str, str]) -> int:
        """Bytes of the pages that are open at a time: of every column one, compressed and not, and its dictionary."""
        groups = [
            max(found, key=lambda group: group.total_byte_size)
            for piece in self.pieces()
            if (found := self._groups(piece))
        ]
        sizes = [[chunk.total_uncompressed_size for chunk in _chunks(group, types)] for group in groups]
        return max(
            (sum(3 * min(size, 3 * _PAGE_BYTES // 4) for size in of_group) for of_group in sizes), default=0
        )

    def schema(self, path: str) -> Any:
        with _refusing_damage(path):
            return parquet_file(location(path)).schema_arrow

    def types_in(self, path: str) -> dict[str, str]:
        partitions = self.partitions.get(path, {})
        return {name: type_name(value.type) for name, value in partitions.items()} | super().types_in(path)

    def first_rows(self, types: Mapping[str, str]) -> Any:
        """Read so many columns at a time that their pages fit in the memory, before it is known whether all do."""
        piece, names, n = self.pieces()[0], [*types], max(1, 4 * self.memory_bytes // (9 * _PAGE_BYTES))
        for group in self._groups(piece)[:1]:  # what is refused together is refused before
            self._batch_rows(piece.path, piece.start, group.num_rows, _chunks(group, types), types)
        parts = [{name: types[name] for name in names[k : k + n]} for k in range(0, len(names), n)]
        found = [
            batch for part in parts if (batch := super(ParquetReader, self).first_rows(part)) is not None
        ]
        columns = {name: batch.column(name) for batch in found for name in batch.schema.names}
        return pa.RecordBatch.from_pydict(columns) if found else None

    def blocks(
        self, pieces: Sequence[Piece], first_line: int, types: dict[str, str]
    ) -> Generator[Block, None, None]:
        read_before = 0
        for piece in pieces:
            before = sum(group.num_rows for group in self._groups(Piece(piece.path, 0, piece.start)))
            for batch in self._read(piece, types):
                for name, value in self.partitions.get(piece.path, {}).items():
                    if name in types and name not in batch.schema.names:
                        batch = batch.append_column(name, pa.repeat(value, batch.num_rows))
                yield Block(locator(piece.path, before), batch, read_before)
                before += batch.num_rows
            read_before += piece.n_bytes

    def _read(self, piece: Piece, types: dict[str, str]) -> Iterator[Any]:
        path, groups = piece.path, self._groups(piece)
        present = column_types(self.schema(path), path)
        chunks = [_chunks(group, types) for group in groups]
        # pyarrow does not read pages of prefixes or lengths as dictionaries
        texts = {name for name, kind in types.items() if present.get(name) == kind == "string"}
        texts -= {chunk.path_in_schema for chunk in chain(*chunks) if "DELTA" in str(chunk.encodings)}
        with (
            _refusing_damage(path),
            parquet_file(
                location(path), read_dictionary=sorted(texts), buffer_size=_BUFFER_BYTES, pre_buffer=False
            ) as file,
        ):
            for number, (group, of_group) in enumerate(zip(groups, chunks, strict=True), piece.start):
                for batch in file.iter_batches(
                    self._batch_rows(path, number, group.num_rows, of_group, types),
                    row_groups=[number],
                    columns=[name for name in types if name in present],
                    use_threads=False,
                ):
                    self.rows_at_a_time(path, batch.nbytes / batch.num_rows, batch.nbytes)
                    batch.validate(full=True)
                    yield text_columns(flat_columns(batch), types, path)

    def _batch_rows(
        self, path: str, number: int, n_rows: int, chunks: list[Any], types: Mapping[str, str]
    ) -> int:
        """Return the rows of a row group to read at a time; refuses columns that would be decompressed beyond the memory."""
        # runs and dictionaries may take next to none in the file
        decoded = [max(chunk.total_uncompressed_size, _CELL_BYTES * chunk.num_values) for chunk in chunks]
        parts = [([chunk], chunk.total_uncompressed_size) for chunk in chunks]
        # one row may have all elements of lists
        lists = [chunk.path_in_schema not in types for chunk in chunks]
        parts.append(([*compress(chunks, lists)], sum(compress(decoded, lists))))
        for part, size in parts:
            stored = sum(chunk.total_compressed_size for chunk in part)
            names = " and ".join(repr(chunk.path_in_schema) for chunk in part)
            self.check_expansion(
                f"{path}, row group {number}: column {names}",
                size if size > _MOST_EXPANSION * stored else 0,
                f"{format_size(stored)} that become {format_size(size)}; write it with smaller row groups",
            )
        rows = self.rows_at_a_time(path, max(16.0, 2 * sum(decoded) / max(n_rows, 1)))
        prefixed = any("DELTA_BYTE_ARRAY" in chunk.encodings for chunk in chunks)
        return min(rows, _PREFIXED_ROWS) if prefixed else rows


def _chunks(group: Any, types: Mapping[str, str]) -> list[Any]:
    """Return the column chunks of a row group that belong to the columns of `types`."""
    chunks = map(group.column, range(group.num_columns))
    return [chunk for chunk in chunks if not types.keys().isdisjoint(_prefixes(chunk.path_in_schema))]


def _prefixes(path: str) -> Iterator[str]:
    """Yield the paths above a leaf, itself included; names may have dots."""
    parts = path.split(".")
    return (".".join(parts[:n]) for n in range(1, len(parts) + 1))


def partitions_of(roots: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the columns that folders named ``key=value`` are, between each file and its root; numbers where all are."""
    texts: dict[str, dict[str, str | None]] = {}
    for path, root in roots.items():
        pairs = [folder.partition("=") for folder in os.path.relpath(path, root).split(os.sep)[:-1]]
        texts[path] = {
            unquote(key): None if value == _NULL_PARTITION else unquote(value)
            for key, equals, value in pairs
            if equals
        }
    keys = {key for values in texts.values() for key in values}
    numeric = {key for key in keys if all(_is_number(values.get(key)) for values in texts.values())}
    kinds = {key: (float, pa.float64()) if key in numeric else (str, pa.large_string()) for key in keys}
    return {
        path: {
            key: pa.scalar(None if value is None else kinds[key][0](value), kinds[key][1])
            for key, value in values.items()
        }
        for path, values in texts.items()
    }


def _is_number(text: str | None) -> bool:
    with suppress(ValueError):
        return text is None or math.isfinite(float(text))
    return False


# ---------------------------------------------------------------------------------------------------------------------
# Arrow's formats


@dataclass(frozen=True)
class ArrowReader(TableReader):
    """Files of Arrow's IPC formats (Feather is one), mapped into memory; what was read is given back to the system."""

    def sizes_in(self, path: str) -> list[int]:
        mapped, reader = _open_mapped(path)
        n_batches = getattr(reader, "num_record_batches", 0)  # a stream has no list of them
        return [len(mapped) // max(n_batches, 1)] * n_batches

    def count(self, piece: Piece) -> Counted:
        n_rows = sum(batch.num_rows for batch in _batches(_open_mapped(piece.path, [0])[1], piece))
        return Counted(n_rows, n_rows)

    def schema(self, path: str) -> Any:
        return _open_mapped(path)[1].schema

    def blocks(
        self, pieces: Sequence[Piece], first_line: int, types: dict[str, str]
    ) -> Generator[Block, None, None]:
        read_before = 0
        for piece in pieces:
            before = first_line if piece is pieces[0] else 0
            for mapped, batch in self._read(piece):
                rows = self.rows_at_a_time(piece.path, max(batch.nbytes / max(batch.num_rows, 1), 8.0))
                for start in range(0, batch.num_rows, rows):
                    part = batch.slice(start, rows)
                    with _refusing_damage(piece.path):
                        part.validate(full=True)  # pyarrow follows offsets out of a damaged file into a crash
                    columns = flat_columns(part)
                    columns = columns.select([name for name in types if name in columns.schema.names])
                    yield Block(
                        locator(piece.path, before + start),
                        text_columns(columns, types, piece.path),
                        read_before,
                    )
                    mapped.madvise(mmap.MADV_DONTNEED)  # pages count as resident until they are released
                before += batch.num_rows
            read_before += piece.n_bytes

    def _read(self, piece: Piece) -> Iterator[tuple[mmap.mmap, Any]]:
        """Read record batches; those that become larger than the memory when decompressed are refused.

        Of a batch, a narrow column is read first: it tells the rows, and so the size of all columns of known width.
        """
        mapped, reader = _open_mapped(piece.path)
        widths = [_width(field.type) for field in reader.schema]
        narrow = min(range(len(widths)), key=lambda k: widths[k] or math.inf)
        sampled, sampler = _open_mapped(piece.path, [narrow])
        batches = _batches(reader, piece)
        for number, sample in enumerate(_batches(sampler, piece), piece.start + 1):
            known = sum(widths) * sample.num_rows
            is_compressed = known > len(mapped) or _inflated(sample, sampled) > 0
            self._check_inflated(piece.path, number, known if is_compressed else 0)
            batch = next(batches)
            self._check_inflated(piece.path, number, _inflated(batch, mapped))
            with _refusing_damage(piece.path):
                batch.validate()
            yield mapped, batch

    def _check_inflated(self, path: str, number: int, n_bytes: int) -> None:
        remedy = f"{format_size(n_bytes)}; write the file with smaller record batches, or uncompressed"
        self.check_expansion(f"{path}: record batch {number}", n_bytes, remedy)


def _open_mapped(path: str, fields: Sequence[int] = ()) -> tuple[mmap.mmap, Any]:
    """Map a file into memory, and open it to read some columns, by default all."""
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    opened = pa.ipc.open_file if mapped[:6] == b"ARROW1" else pa.ipc.open_stream
    options = pa.ipc.IpcReadOptions(included_fields=list(fields), use_threads=False)
    with _refusing_damage(path):
        return mapped, opened(pa.py_buffer(mapped), options=options)


def _batches(reader: Any, piece: Piece) -> Iterator[Any]:
    """Yield the record batches of a part of a file."""
    with _refusing_damage(piece.path):
        if not hasattr(reader, "num_record_batches"):
            yield from reader
            return
        for number in range(piece.start, reader.num_record_batches if piece.stop is None else piece.stop):
            yield reader.get_batch(number)


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

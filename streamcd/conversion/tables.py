"""Tables in files: delimited text, Parquet, Arrow's IPC formats; read in batches, pieces of them by several processes."""

from __future__ import annotations

import io
import mmap
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

from ..core.errors import DataError
from ..core.memory_budget import format_size
from ..core.storage import file_size, location
from ..dataset.parquet import parquet_file
from ..kernels import tables as kernels
from .byte_sources import (
    DECODER_BYTES,
    ByteBlock,
    ByteRange,
    display_name,
    read_blocks,
    read_head,
)
from .sources import Counted, FilePart, FileReader, TextReader, locator
from .table_rows import TableBatch, column_types, distinct_names

SAMPLE_BYTES = 1 << 20
"""First bytes of delimited text, by which the columns' types are told."""

_QUOTE = ord('"')
_NULLS = ["", "NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL", "None"]
_LEAST_BATCH_ROWS, _MOST_BATCH_ROWS = 1 << 8, 1 << 16
_BUFFER_BYTES = 1 << 18  # by which column chunks of Parquet are read
_MOST_EXPANSION = 100  # of a column chunk of Parquet that is larger than the memory for it
_CELL_BYTES = 8  # of text, about, that a cell of a table would be
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


# ---------------------------------------------------------------------------------------------------------------------
# Delimited text


def _last_record_end(buffer: bytearray, size: int) -> int:
    return int(kernels.last_record_end(np.frombuffer(buffer, np.uint8), size, _QUOTE))


@dataclass(frozen=True)
class CsvReader(TextReader):
    """Delimited text with a line of names; a newline between quotes is part of a value."""

    delimiter: str = ","
    block_bytes: int = 1 << 20
    max_line_bytes: int | None = None
    decoder_bytes: int = DECODER_BYTES

    def count(self, piece: ByteRange) -> Counted:
        n_rows, n_lines, quoted = 0, 0, False
        blocks = read_blocks([piece], self.block_bytes, self.max_line_bytes, self.decoder_bytes)
        with closing(blocks):
            for block in blocks:
                # a newline between quotes ends a block too: a quote more changes what is a record from there on
                rows, lines, odd = kernels.count_records(block.as_array(), block.start, block.stop, _QUOTE)
                n_rows, n_lines, quoted = n_rows + rows, n_lines + lines, quoted or odd
        return Counted(max(n_rows - (piece.start == 0), 0), n_lines, not quoted)

    def types(self) -> dict[str, str]:
        sample, text = read_head(self.all_of(self.paths[0]), SAMPLE_BYTES, self.decoder_bytes)
        is_cut = max(len(sample), len(text)) >= SAMPLE_BYTES
        end = _last_record_end(bytearray(text), len(text)) if is_cut else len(text)
        names, start = self._header(self.paths[0])
        if not text[start : end or len(text)].strip():
            return dict.fromkeys(names, "nothing")
        buffer = pa.py_buffer(text[start : end or len(text)])
        table = self._read(buffer, names, _convert_options(), _at_lines(display_name(self.paths[0]), 1))
        return column_types(table.schema, "")

    def _header(self, path: str) -> tuple[list[str], int]:
        """The names in the first line, and where it ends."""
        _, text = read_head(self.all_of(path), SAMPLE_BYTES, self.decoder_bytes)
        first = 3 if text.startswith(b"\xef\xbb\xbf") else 0
        while text[first : first + 1] in (b"\n", b"\r"):
            first += 1
        end, quoted = first, False
        while end < len(text) and (quoted or text[end] != 0x0A):
            quoted ^= text[end] == _QUOTE
            end += 1
        name = display_name(path)
        if end == first:
            raise DataError(
                f"{name}: expected a line of column names, found none; check that this is the file meant"
            )
        names = csv.read_csv(
            io.BytesIO(text[first:end] + b"\n"),
            csv.ReadOptions(use_threads=False, autogenerate_column_names=True),
            csv.ParseOptions(delimiter=self.delimiter),
            csv.ConvertOptions(column_types={f"f{k}": pa.string() for k in range(1 << 12)}),
        )
        found = [str(value).strip() for column in names.columns for value in column.to_pylist()]
        if all(re.fullmatch(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?", text) for text in found):
            raise DataError(
                f"{name}:1: expected the names of the columns, found numbers; add a first line of names"
            )
        return distinct_names(found, f"{name}:1"), min(end + 1, len(text))

    def batches(
        self, pieces: Sequence[ByteRange], first_line: int, types: dict[str, str]
    ) -> Iterator[TableBatch]:
        read_before = 0
        for piece in pieces:
            names, header_end = self._header(piece.path)
            arrow = {"number": pa.float64(), "nothing": pa.float64()}
            wanted = {name: arrow.get(kind, pa.large_string()) for name, kind in types.items()}
            chosen = [name for name in wanted if name in names]
            options = _convert_options(column_types=wanted, include_columns=chosen)
            line = first_line if piece is pieces[0] else 0
            blocks = read_blocks(
                [piece], self.block_bytes, self.max_line_bytes, self.decoder_bytes, _last_record_end
            )
            with closing(blocks):
                for block in blocks:
                    start = max(header_end, block.start) if block.first else block.start
                    skipped = block.first and 1
                    message = _at_lines(block.name, line + skipped)
                    if table := self._block(block, start, names, options, message):
                        for batch in table.to_batches(max_chunksize=_MOST_BATCH_ROWS):
                            yield TableBatch(batch, read_before + block.bytes_read, message)
                            message = _at_lines(block.name, line + skipped + batch.num_rows)
                    n_lines = int(np.count_nonzero(block.as_array()[block.start : block.stop] == 0x0A))
                    line += n_lines
            read_before += piece.n_bytes if piece.path != "-" else 0

    def _block(self, block: ByteBlock, start: int, names: list[str], options: Any, message: Any) -> Any:
        view = memoryview(block.buffer)[start : block.stop]
        if len(view) < 3 and not bytes(view).strip():
            return None
        return self._read(pa.py_buffer(view), names, options, message)

    def _read(self, buffer: Any, names: list[str], options: Any, message: Any) -> Any:
        """Read a table from text without its line of names."""
        ragged: list[Any] = []

        def refuse(row: Any) -> str:
            ragged.append(row)
            return "error"

        read = csv.ReadOptions(
            use_threads=False, column_names=names, block_size=min(buffer.size + 1, 2**31 - 1)
        )
        parse = csv.ParseOptions(delimiter=self.delimiter, invalid_row_handler=refuse)
        try:
            return csv.read_csv(pa.BufferReader(buffer), read, parse, options)
        except pa.ArrowInvalid as error:
            if ragged:
                row = ragged[0]
                raise DataError(
                    f"{message((row.number or 1) - 1)}: expected {row.expected_columns} columns, found "
                    f"{row.actual_columns}: {row.text[:60]!r}; correct the line"
                ) from None
            raise DataError(_conversion_complaint(str(error), options, message)) from None


def _convert_options(**more: Any) -> Any:
    return csv.ConvertOptions(
        null_values=_NULLS, strings_can_be_null=True, quoted_strings_can_be_null=False, **more
    )


def _at_lines(name: str, line: int) -> Any:
    return lambda row: f"{name}:{line + row + 1}"


def _conversion_complaint(error: str, options: Any, message: Any) -> str:
    found = re.search(r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to (\w+): (.*)", error)
    if not found:
        return f"{message(0)}: expected delimited text, found something else ({error.splitlines()[0]}); correct it"
    column, row, type_, what = found.groups()
    names = list(options.include_columns or options.column_types)
    name = names[int(column)] if int(column) < len(names) else column
    expected = "a number, as in its first rows" if type_ == "double" else "text in UTF-8"
    value = what.removeprefix("invalid value ").strip("'")[:40]
    return (
        f"{message(int(row or 1) - 1)}: column {name!r}: expected {expected}, found {value!r}; "
        "correct the line, or leave the column out with --drop"
    )


# ---------------------------------------------------------------------------------------------------------------------
# Parquet


def _rows_at_a_time(memory_bytes: int, row_bytes: float) -> int:
    return int(min(max(memory_bytes / 8 / row_bytes, _LEAST_BATCH_ROWS), _MOST_BATCH_ROWS))


class _Refusing:
    """Turns the errors that pyarrow raises over a file into one line; a context."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, _: Any) -> None:
        if isinstance(error, OSError) and error.errno is not None:
            return
        if isinstance(error, pa.ArrowException | OSError | ValueError | OverflowError):
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DataError(
                f"{self._path}: expected a whole file of its format, found a damaged one ({reason}); get it again"
            ) from None


@dataclass(frozen=True)
class _WholeFiles(FileReader):
    memory_bytes: int

    def whole(self) -> list[FilePart]:
        return [FilePart(path, n_bytes=file_size(path) or 0) for path in self.paths]


@dataclass(frozen=True)
class ParquetReader(_WholeFiles):
    """Parquet files; folders named ``key=value`` (hive partitions) are columns too."""

    partitions: dict[str, dict[str, str | None]] = field(default_factory=dict)  # of every path

    @cached_property
    def _metadata(self) -> dict[str, Any]:
        found = {}
        for path in self.paths:
            with _Refusing(path):
                found[path] = parquet_file(location(path)).metadata
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

    def types(self) -> dict[str, str]:
        path = self.paths[0]
        with _Refusing(path):
            schema = parquet_file(location(path)).schema_arrow
        types = column_types(schema, path)
        keys = dict.fromkeys(key for values in self.partitions.values() for key in values)
        for key in keys:
            numeric = all(_is_number(values.get(key)) for values in self.partitions.values())
            types.setdefault(key, "number" if numeric else "string")
        return types

    def batches(
        self, pieces: Sequence[FilePart], first_line: int, types: dict[str, str]
    ) -> Iterator[TableBatch]:
        read_before = 0
        for piece in pieces:
            metadata = self._metadata[piece.path]
            groups = self._groups(piece)
            before = sum(metadata.row_group(group).num_rows for group in range(groups.start))
            for columns in self._read(piece.path, groups, types):
                columns = self._with_partitions(piece.path, columns, types)
                yield TableBatch(columns, read_before, locator(piece.path, before))
                before += columns.num_rows
            read_before += piece.n_bytes

    def _read(self, path: str, groups: range, types: dict[str, str]) -> Iterator[Any]:
        metadata = self._metadata[path]
        with _Refusing(path):
            schema = parquet_file(location(path)).schema_arrow
        distinct_names(schema.names, path)
        names = [name for name in types if name in schema.names]
        texts = [name for name in names if types[name] == "string"]
        batch_rows = self._batch_rows(path, metadata, groups, names)
        with (
            _Refusing(path),
            parquet_file(
                location(path), read_dictionary=texts, buffer_size=_BUFFER_BYTES, pre_buffer=False
            ) as file,
        ):
            yield from file.iter_batches(
                batch_size=batch_rows, row_groups=list(groups), columns=names, use_threads=False
            )

    def _batch_rows(self, path: str, metadata: Any, groups: range, names: list[str]) -> int:
        """Rows to read at a time; refuses column chunks that would be decompressed beyond the memory."""
        row_bytes = 16.0 * max(len(names), 1)
        for group in groups:
            found = metadata.row_group(group)
            wanted = [
                found.column(k)
                for k in range(found.num_columns)
                if found.column(k).path_in_schema.split(".")[0] in names
            ]
            for chunk in wanted:
                large = chunk.total_uncompressed_size > self.memory_bytes
                if large and chunk.total_uncompressed_size > _MOST_EXPANSION * chunk.total_compressed_size:
                    raise DataError(
                        f"{path}, row group {group}: column {chunk.path_in_schema!r}: expected at most "
                        f"{format_size(self.memory_bytes)} to decompress at a time under this memory budget, found "
                        f"{format_size(chunk.total_compressed_size)} that become "
                        f"{format_size(chunk.total_uncompressed_size)}; write it with smaller row groups, or give a larger "
                        "--memory"
                    )
            n_bytes = sum(chunk.total_uncompressed_size for chunk in wanted)
            row_bytes = max(row_bytes, 2 * n_bytes / max(found.num_rows, 1))
        return _rows_at_a_time(self.memory_bytes, row_bytes)

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


def _is_number(text: str | None) -> bool:
    with suppress(ValueError):
        return text is None or np.isfinite(float(text))
    return False


def partitions_of(path: str, root: str) -> dict[str, str | None]:
    """The columns that the folders between `root` and a file name, as ``key=value``."""
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

    def expected_bytes(self, pieces: Sequence[FilePart]) -> int | None:
        return 2 * sum(piece.n_bytes for piece in pieces)

    def pieces(self, n_tasks: int) -> list[FilePart]:
        found = []
        for path in self.paths:
            size = os.path.getsize(path)
            with _Mapped(path) as file, _Refusing(path):
                n_batches = file.n_batches
            if n_batches is None:  # a stream is read from its beginning
                found.append(FilePart(path, n_bytes=size))
                continue
            n_ranges = min(n_tasks, max(n_batches, 1))
            ends = [n_batches * k // n_ranges for k in range(n_ranges + 1)]
            found += [FilePart(path, start, stop, size // n_ranges) for start, stop in pairwise(ends)]
        return found

    def count(self, piece: FilePart) -> Counted:
        n_rows = sum(batch.num_rows for batch in self._read(piece))
        return Counted(n_rows, n_rows)

    def _read(self, piece: FilePart) -> Iterator[Any]:
        with _Mapped(piece.path) as file, _Refusing(piece.path):
            yield from file.batches(piece.start, piece.stop)

    def types(self) -> dict[str, str]:
        path = self.paths[0]
        with _Mapped(path) as file, _Refusing(path):
            schema = file.schema
        return column_types(schema, path)

    def batches(
        self, pieces: Sequence[FilePart], first_line: int, types: dict[str, str]
    ) -> Iterator[TableBatch]:
        read_before = 0
        for piece in pieces:
            before = first_line if piece is pieces[0] else 0
            with _Mapped(piece.path) as file, _Refusing(piece.path):
                for batch in file.batches(piece.start, piece.stop):
                    names = [name for name in types if name in batch.schema.names]
                    columns = batch.select(names)
                    row_bytes = max(batch.nbytes / max(batch.num_rows, 1), 8.0)
                    rows = _rows_at_a_time(self.memory_bytes, row_bytes)
                    for start in range(0, columns.num_rows, rows):
                        part = columns.slice(start, rows)
                        yield TableBatch(part, read_before, locator(piece.path, before + start))
                        file.forget()
                    before += batch.num_rows
            read_before += piece.n_bytes


class _Mapped:
    """A file of Arrow's, file or stream format, mapped into memory; a context."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> _Mapped:
        with open(self._path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        buffer = pa.py_buffer(self._map)
        is_file = self._map[:6] == b"ARROW1"
        with _Refusing(self._path):
            self._reader = pa.ipc.open_file(buffer) if is_file else pa.ipc.open_stream(buffer)
        self.schema = self._reader.schema
        self.n_batches: int | None = self._reader.num_record_batches if is_file else None
        return self

    def __exit__(self, *_: object) -> None:
        self._reader = None

    def batches(self, start: int, stop: int | None) -> Iterator[Any]:
        """Record batches, in order."""
        if self.n_batches is None:
            yield from self._reader
            return
        for number in range(start, self.n_batches if stop is None else stop):
            yield self._reader.get_batch(number)

    def forget(self) -> None:
        """Give the pages back that were read: they count as resident until then."""
        self._map.madvise(mmap.MADV_DONTNEED)

"""Delimited text: tables with a line of names, read by Arrow a block of whole records at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from csv import Error as RecordError
from csv import reader as csv_reader
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

from ..core.errors import DataError, refuse
from ..core.parallel import ahead
from ..dataset.arrow_columns import one_batch
from .byte_sources import HEAD_BYTES, ByteBlock, TextReader, delimiter_of, read_head
from .sources import FIRST_ROWS, MOST_BATCH_ROWS, Block, Counted, Piece, TableReader, display_name

_COLUMNS_AT_A_TIME = 1000  # each takes Arrow 15 kB
NULLS = ["", "NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL", "None"]
"""Texts that stand for a missing value."""


def record_starts(text: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Return where the records and the ends of lines of a text are, and the end of the last whole record.

    A newline between quotes is part of a record; blank lines are none.
    """
    newlines, quotes = (np.flatnonzero(text == byte) for byte in b'\n"')
    ends = newlines[np.searchsorted(quotes, newlines) % 2 == 0] if quotes.size else newlines
    starts = np.concatenate([[0], ends + 1])
    sizes = np.diff(starts)
    blank = (sizes == 1) | ((sizes == 2) & (text[starts[:-1]] == ord("\r")))
    return starts[:-1][~blank], newlines, int(starts[-1])


@dataclass(frozen=True)
class CsvReader(TextReader, TableReader):
    """Delimited text with a line of names."""

    is_text = True

    def last_end(self, buffer: bytearray, size: int) -> int:
        if buffer.find(b'"', 0, size) < 0:
            return super().last_end(buffer, size)
        return record_starts(np.frombuffer(buffer, np.uint8, size))[2]

    def count_block(self, block: ByteBlock) -> Counted:
        starts, newlines, end = record_starts(block.text[: block.stop])
        return Counted(max(starts.size - block.first, 0), newlines.size, end == block.stop)

    def renamed(self) -> dict[str, str]:
        return {
            name: f"the header has {found!r} twice" if found else "the header has no name for it"
            for name, found in self._headers[self.paths[0]][0].items()
            if name != found
        }

    def schema(self, path: str) -> pa.Schema:
        return self._first_table.schema

    def names(self, path: str) -> list[str]:
        return [*self._headers[path][0]]

    def first_rows(self) -> pa.RecordBatch:
        return one_batch(self._first_table.slice(0, FIRST_ROWS))

    @cached_property
    def _first_table(self) -> pa.Table:
        """The first megabyte, with the types that it suggests."""
        path = self.paths[0]
        (names, start), text = self._headers[path], self._sample(path)
        end = record_starts(np.frombuffer(text, np.uint8))[2] if len(text) == HEAD_BYTES else len(text)
        rows, line = np.frombuffer(text[start:end] + b"\n", np.uint8), text.count(b"\n", 0, start)
        return self._read(rows, path, list(names), {}, line)[0]

    def _sample(self, path: str) -> bytes:
        return read_head(path, self.reading.decoder_bytes)

    @cached_property
    def _delimiter(self) -> str:
        return delimiter_of(self._sample(self.paths[0])) or ","

    @cached_property
    def _headers(self) -> dict[str, tuple[dict[str, str], int]]:
        """The names of each file's columns, with their texts in the first line, and its end."""
        return {path: self._header(path) for path in self.paths}

    def _header(self, path: str) -> tuple[dict[str, str], int]:
        text, found = self._sample(path), list[str]()
        starts = record_starts(np.frombuffer(text + b"\n", np.uint8))[0].tolist() or [0]
        first, stop = [*starts, len(text)][:2]
        line = text[first:stop]
        with suppress(UnicodeDecodeError, RecordError, StopIteration):
            found = next(csv_reader([line.decode().rstrip("\r\n")], delimiter=self._delimiter, strict=True))
        refuse(
            DataError,
            (
                not found,
                f"{display_name(path)}:1: expected the names of the columns in UTF-8, with closed quotes, found "
                f"{line[:60]!r}; correct the line",
            ),
            (
                all(re.fullmatch(r"\s*[-+]?[0-9.]+([eE][-+]?[0-9]+)?\s*", name) for name in found),
                f"{display_name(path)}:1: expected the names of the columns, found numbers; add a first line of names",
            ),
        )
        return _numbered([name.strip() for name in found]), stop

    def blocks(self, piece: Piece, types: Mapping[str, str], first_line: int = 0) -> Iterator[Block]:
        numbers = {"number": pa.float64(), "nothing": pa.float64(), "boolean": pa.bool_()}
        names, header_end = self._headers[piece.path]
        arrow = {
            name: self._time_type(name) if kind == "time" else numbers.get(kind, pa.large_string())
            for name, kind in types.items()
            if name in names
        }
        line = first_line
        with closing(ahead(self.texts([piece]))) as texts:
            for text in texts:
                start, row = header_end if text.first else 0, 0
                line += int(np.count_nonzero(text.text[:start] == 0x0A))
                records = text.text[start : text.stop]
                table, lines, n_lines = self._read(records, piece.path, [*arrow], arrow, line)
                batches = table.to_batches(MOST_BATCH_ROWS) or [one_batch(table)]
                for batch in batches if lines.size else []:
                    yield Block(text.name, 0, batch, text.bytes_read, lines=lines[min(row, lines.size - 1) :])
                    row += batch.num_rows
                line += n_lines

    def _time_type(self, name: str) -> pa.DataType:
        """Return the type by which a column of times is read: the first rows' but of a finer unit."""
        schema = self._first_table.schema
        first = schema.field(name).type if name in schema.names else pa.null()
        if pa.types.is_time(first):
            return pa.time64("us")
        if pa.types.is_timestamp(first):
            return pa.timestamp("ns" if first.unit == "ns" else "us", first.tz)
        return pa.timestamp("us")

    def _read(
        self, text: np.ndarray, path: str, chosen: list[str], types: Mapping[str, pa.DataType], line: int
    ) -> tuple[pa.Table, np.ndarray, int]:
        """Read columns from text of a file, without its line of names, after so many lines of it.

        Also returns the lines of the rows, and the number of all lines.
        """
        starts, newlines, _ = record_starts(text)
        if not starts.size:
            return pa.table({name: pa.nulls(0) for name in chosen}), starts, newlines.size
        lines = line + 1 + np.searchsorted(newlines, starts)
        place = Block(display_name(path), 0, None, lines=lines).place
        # memory of Arrow's own: its threads may let go of it late, and would abort a process that ends if it were Python's
        buffer = pa.allocate_buffer(text.size)
        np.frombuffer(buffer, np.uint8)[:] = text
        columns, names = list[Any](), [*self._headers[path][0]]
        parse = csv.ParseOptions(delimiter=self._delimiter)
        for k in range(0, len(chosen), _COLUMNS_AT_A_TIME):
            convert = csv.ConvertOptions(
                null_values=NULLS,
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                column_types=types,
                include_columns=chosen[k : k + _COLUMNS_AT_A_TIME],
            )
            # Arrow's threads do not tell the row of an error
            for threads in dict.fromkeys([self.reading.threaded, False]):
                read = csv.ReadOptions(
                    use_threads=threads, column_names=names, block_size=min(buffer.size + 1, 2**31 - 1)
                )
                try:
                    columns += csv.read_csv(pa.BufferReader(buffer), read, parse, convert).columns
                    break
                except pa.ArrowInvalid as error:
                    if not threads:
                        new = self.reading.encoding is None
                        raise DataError(_complaint(str(error), names, place, new)) from None
        return pa.Table.from_arrays(columns, chosen), lines, newlines.size


def _numbered(header: Sequence[str]) -> dict[str, str]:
    """Number the names that stand twice, from the second on, and name the columns without one by their place."""
    taken, names = set(header), dict[str, str]()
    for place, text in enumerate(header, 1):
        name, number = text or f"column {place}", 0
        while name in names or (name != text and name in taken):
            number += 1
            name = f"{text}.{number}"
        names[name] = text
    return names


def _complaint(error: str, names: list[str], place: Callable[[int], str], new: bool) -> str:
    """Describe a refusal by Arrow; columns of a table that is not `new` are those of the data trained on."""
    ragged = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+): (.*)", error, re.DOTALL)
    if ragged:
        row, expected, found, text = ragged.groups()
        return f"{place(int(row) - 1)}: expected {expected} columns, found {found}: {text[:60]!r}; correct the line"
    bad = re.search(r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to (\w+)\S*: (.*)", error)
    if not bad:
        return f"{place(0)}: expected delimited text, found something else ({error.splitlines()[0]})"
    column, row, type_, what = bad.groups()
    name = names[int(column)] if int(column) < len(names) else column
    kinds = {"double": "a number", "bool": "true or false", "timestamp": "a time", "time64": "a time of day"}
    like = "as in its first rows" if new else "as in the data trained on"
    value = what.removeprefix("invalid value ").strip("'")[:40]
    otherwise = f", leave the column out with --drop, or take it as text, as a category: --category {name}"
    return (
        f"{place(int(row or 1) - 1)}: column {name!r}: expected "
        f"{f'{kinds[type_]}, {like}' if type_ in kinds else 'text in UTF-8'}, found {value!r}; "
        f"correct the line{otherwise if new else ''}"
    )

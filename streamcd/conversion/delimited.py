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
from .byte_sources import ByteBlock, TextReader, read_blocks, read_head
from .sources import (
    FIRST_ROWS,
    MOST_BATCH_ROWS,
    Block,
    Counted,
    Piece,
    TableReader,
    display_name,
)

SAMPLE_BYTES = 1 << 20
"""First bytes, from which the columns' types are inferred."""

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


def _last_record_end(buffer: bytearray, size: int) -> int:
    if buffer.find(b'"', 0, size) < 0:
        return buffer.rfind(b"\n", 0, size) + 1
    return record_starts(np.frombuffer(buffer, np.uint8, size))[2]


@dataclass(frozen=True)
class CsvReader(TextReader, TableReader):
    """Delimited text with a line of names."""

    delimiter: str = ","

    is_text = True
    last_end = staticmethod(_last_record_end)

    def count_lines(self, block: ByteBlock) -> Counted:
        starts, newlines, end = record_starts(block.text[block.start : block.stop])
        return Counted(max(starts.size - block.first, 0), newlines.size, end == block.stop - block.start)

    def renamed(self) -> dict[str, str]:
        names, header, _ = self._header(self.paths[0])
        return {
            name: f"the header has {found!r} twice" if found else "the header has no name for it"
            for name, found in zip(names, header, strict=True)
            if name != found
        }

    def schema(self, path: str) -> pa.Schema:
        return self._first_table.schema

    def first_rows(self) -> pa.RecordBatch:
        return one_batch(self._first_table.slice(0, FIRST_ROWS))

    @cached_property
    def _first_table(self) -> pa.Table:
        """The first megabyte, with the types that it suggests."""
        path = self.paths[0]
        (names, _, start), text = self._header(path), self._sample(path)
        end = record_starts(np.frombuffer(text, np.uint8))[2] if len(text) == SAMPLE_BYTES else 0
        rows = text[start : end or len(text)] + b"\n"
        found, newlines, _ = record_starts(np.frombuffer(rows, np.uint8))
        if not found.size:
            return pa.table({name: pa.nulls(0) for name in names})
        lines = text.count(b"\n", 0, start) + 1 + np.searchsorted(newlines, found)
        return self._read(rows, names, names, {}, Block(display_name(path), 0, None, lines=lines))

    def _sample(self, path: str) -> bytes:
        return read_head(path, SAMPLE_BYTES, self.reading.decoder_bytes)

    @cached_property
    def _headers(self) -> dict[str, tuple[list[str], list[str], int]]:
        return {}

    def _header(self, path: str) -> tuple[list[str], list[str], int]:
        """Return the names of the columns, those in the first line, and its end."""
        if path in self._headers:
            return self._headers[path]
        text = self._sample(path)
        starts = record_starts(np.frombuffer(text + b"\n", np.uint8))[0].tolist() or [0]
        first, stop = [*starts, len(text)][:2]
        line = text[first:stop].removeprefix(b"\xef\xbb\xbf")
        found: list[str] = []
        with suppress(UnicodeDecodeError, RecordError, StopIteration):
            found = next(csv_reader([line.decode().rstrip("\r\n")], delimiter=self.delimiter, strict=True))
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
        names = [name.strip() for name in found]
        self._headers[path] = [*_numbered(names)], names, stop
        return self._headers[path]

    def blocks(self, piece: Piece, types: Mapping[str, str], first_line: int = 0) -> Iterator[Block]:
        numbers = {"number": pa.float64(), "nothing": pa.float64(), "boolean": pa.bool_()}
        arrow = {
            name: self._time_type(name) if kind == "time" else numbers.get(kind, pa.large_string())
            for name, kind in types.items()
        }
        names, _, header_end = self._header(piece.path)
        known, line = set(names), first_line
        chosen = [name for name in arrow if name in known]
        with closing(ahead(read_blocks([piece], self.reading, self.last_end))) as texts:
            for text in texts:
                start = header_end if text.first else text.start
                records = text.text[start : text.stop]
                line += int(np.count_nonzero(text.text[text.start : start] == 0x0A))
                starts, newlines, _ = record_starts(records)
                if starts.size:
                    lines, row = line + 1 + np.searchsorted(newlines, starts), 0
                    block = Block(text.name, 0, None, text.bytes_read, lines=lines)
                    table = self._read(records, names, chosen, arrow, block)
                    for batch in table.to_batches(MOST_BATCH_ROWS) or [one_batch(table)]:
                        yield block._replace(content=batch, lines=lines[min(row, lines.size - 1) :])
                        row += batch.num_rows
                line += newlines.size

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
        self, text: Any, names: list[str], chosen: list[str], types: Mapping[str, pa.DataType], block: Block
    ) -> pa.Table:
        """Read the columns `chosen` from text without its line of names, that of `block`."""
        buffer, columns = pa.py_buffer(text), list[Any]()
        parse = csv.ParseOptions(delimiter=self.delimiter)
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
                        raise DataError(_complaint(str(error), names, block.place, new)) from None
        return pa.Table.from_arrays(columns, chosen)


def _numbered(names: Sequence[str]) -> Iterator[str]:
    """Number the names that stand twice, from the second on, and name the columns without one by their place."""
    taken = set(names)
    seen: set[str] = set()
    for place, name in enumerate(names, 1):
        found, number = name or f"column {place}", 0
        while found in seen or (found != name and found in taken):
            number += 1
            found = f"{name}.{number}"
        seen.add(found)
        yield found


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

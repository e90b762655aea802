"""Delimited text: tables with a line of names, read by Arrow a block of whole records at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from csv import Error as RecordError
from csv import reader as csv_reader
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

from ..core.errors import DataError
from ..core.parallel import ahead
from ..dataset.arrow_columns import (
    COMMA,
    RECIPES,
    arrow_strings,
    forms_of,
    one_batch,
    strings_of,
)
from .byte_sources import HEAD_BYTES, ByteBlock, TextReader, delimiter_of, read_head
from .sources import (
    MOST_BATCH_ROWS,
    STANDARD_INPUT,
    Block,
    Counted,
    Piece,
    TableReader,
    display_name,
    is_typed,
)

_COLUMNS_AT_A_TIME = 1000  # each takes Arrow 15 kB
_MOST_AHEAD_BYTES = 64 << 20  # of text, in which a column's first value is looked for: a second of reading
NULLS = ["", "NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL", "None"]
"""Texts that stand for a missing value."""


def record_starts(text: np.ndarray, delimiter: str) -> tuple[np.ndarray, np.ndarray, int]:
    """Return where the records and the ends of lines of a text are, and the end of the last whole record.

    A newline between quotes is part of a record; blank lines are none. The last record may lack a quote that closes it. As
    for Arrow, quotes within a cell that does not begin with one are text.
    """
    newlines, quotes = (np.flatnonzero(text == byte) for byte in b'\n"')
    begins_cell = (quotes == 0) | np.isin(text[quotes - 1], [*b"\r\n", ord(delimiter)])
    if not (begins_cell | (np.diff(quotes, prepend=-2) == 1))[::2].all():
        special = list[int]()
        for quote, begins in zip(quotes.tolist(), begins_cell.tolist(), strict=True):
            # it opens a cell, closes it, or is doubled
            if begins or len(special) % 2 or special[-1:] == [quote - 1]:
                special.append(quote)
        quotes = np.array(special, np.int64)
    ends = newlines[np.searchsorted(quotes, newlines) % 2 == 0] if quotes.size else newlines
    starts = np.concatenate([[0], ends + 1])
    end = int(starts[-1])
    sizes = np.diff(starts, append=text.size)
    starts = starts[sizes > 1]
    sizes = sizes[sizes > 1]
    is_blank = (sizes == 2) & (text[starts] == ord("\r"))
    return starts[~is_blank], newlines, end


@dataclass(frozen=True)
class CsvReader(TextReader, TableReader):
    """Delimited text with a line of names."""

    beside: tuple[str, ...]  # columns that are no features: of labels and weights
    named: tuple[str, ...]  # columns that --features names
    is_text = True

    def last_end(self, buffer: bytearray, size: int) -> int:
        if buffer.find(b'"', 0, size) < 0:
            return super().last_end(buffer, size)
        return record_starts(np.frombuffer(buffer, np.uint8, size), self._delimiter)[2]

    def count_block(self, block: ByteBlock) -> Counted:
        starts, newlines, end = record_starts(block.text[: block.stop], self._delimiter)
        return Counted(max(starts.size - block.first, 0), newlines.size, end == block.stop)

    def renamed(self) -> dict[str, str]:
        return {
            name: f"the header has {written!r} twice" if written else "the header has no name for it"
            for name, written in self._headers[self.paths[0]][0].items()
            if name != written
        }

    def schema(self, path: str) -> pa.Schema:
        return self._first.content.schema

    def names(self, path: str) -> list[str]:
        return [*self._headers[path][0]]

    def first_blocks(self, names: Sequence[str]) -> Iterator[Block]:
        return (self._later.get(name, self._first) for name in names)

    @cached_property
    def _later(self) -> dict[str, Block]:
        """Later rows, by column, of those that have no value in the first megabyte."""
        typed = dict[str, Block]()
        first = self._first.content
        lacking = {name for name in first.schema.names if not is_typed(first, name)}
        blocks = (
            block
            for path in self.paths
            if lacking and path != STANDARD_INPUT
            for block in self._blocks(Piece(path), [n for n in self.names(path) if n in lacking], {}, 0)
        )
        for block in islice(blocks, _MOST_AHEAD_BYTES // self.reading.block_bytes):
            typed |= {name: block for name in lacking if is_typed(block.content, name)}
            lacking -= typed.keys()
            if not lacking:
                break
        return typed

    @cached_property
    def _first(self) -> Block:
        """The first megabyte, with the types that it suggests."""
        path = self.paths[0]
        names, start = self._headers[path]
        text = self._sample(path)
        end = self.last_end(bytearray(text), len(text)) if len(text) == HEAD_BYTES else len(text)
        rows = np.frombuffer(text[start:end] + b"\n", np.uint8)
        line = text.count(b"\n", 0, start)
        block = self._read(rows, path, list(names), {}, line)
        if not re.search(rb"0[xX]", text):
            return block
        # hexadecimal, of which Arrow makes whole numbers here alone
        whole = [field.name for field in block.content.schema if pa.types.is_integer(field.type)]
        texts = self._read(rows, path, whole, dict.fromkeys(whole, pa.large_string()), line).content
        types = {
            name: pa.large_string()
            for name in whole
            if np.isin(strings_of(texts.column(name))[0].data, [*b"xX"]).any()
        }
        return self._read(rows, path, list(names), types, line)

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
        text = self._sample(path)
        names = list[str]()
        starts = record_starts(np.frombuffer(text + b"\n", np.uint8), self._delimiter)[0].tolist() or [0]
        first, stop = [*starts, len(text)][:2]
        line = text[first:stop]
        with suppress(UnicodeDecodeError, RecordError, StopIteration):
            names = next(csv_reader([line.decode().rstrip("\r\n")], delimiter=self._delimiter, strict=True))
        if not names:
            raise DataError(
                f"{display_name(path)}:1: expected the names of the columns in UTF-8, with closed quotes, found "
                f"{line[:60]!r}; correct the line"
            )
        if all(re.fullmatch(r"\s*[-+]?[0-9.]+([eE][-+]?[0-9]+)?\s*", name) for name in names):
            raise DataError(
                f"{display_name(path)}:1: expected the names of the columns, found numbers; add a first line of names"
            )
        return _numbered([name.strip() for name in names]), stop

    def blocks(self, piece: Piece, types: Mapping[str, str], first_line: int = 0) -> Iterator[Block]:
        numbers = {"number": pa.float64(), "nothing": pa.float64(), "boolean": pa.bool_()}
        arrow = {
            name: self._time_type(name) if kind == "time" else numbers.get(kind, pa.large_string())
            for name, kind in types.items()
            if name in self._headers[piece.path][0]
        }
        for block in self._blocks(piece, [*arrow], arrow, first_line):
            for start in range(0, block.content.num_rows or block.lines.size, MOST_BATCH_ROWS):
                yield block._replace(before=start, content=block.content.slice(start, MOST_BATCH_ROWS))

    def _blocks(
        self, piece: Piece, chosen: list[str], types: Mapping[str, pa.DataType], line: int
    ) -> Iterator[Block]:
        """Read columns of a piece, which begins after so many lines."""
        with closing(ahead(self.texts([piece]))) as texts:
            for text in texts:
                start = self._headers[piece.path][1] if text.first else 0
                before = line + int(np.count_nonzero(text.text[:start] == 0x0A))
                block = self._read(text.text[start : text.stop], piece.path, chosen, types, before)
                yield block._replace(bytes_read=text.bytes_read)
                line += int(np.count_nonzero(text.text[: text.stop] == 0x0A))

    def _time_type(self, name: str) -> pa.DataType:
        """Return the type by which a column of times is read: the first rows' but of a finer unit."""
        known = name in self.schema("").names
        first = next(self.first_blocks([name])).content.column(name).type if known else pa.null()
        if pa.types.is_time(first):
            return pa.time64("us")
        if pa.types.is_timestamp(first):
            return pa.timestamp("ns" if first.unit == "ns" else "us", first.tz)
        return pa.timestamp("us")

    def _read(
        self, text: np.ndarray, path: str, chosen: list[str], types: Mapping[str, pa.DataType], line: int
    ) -> Block:
        """Read columns from text of a file, without its line of names, after so many lines of it."""
        starts, newlines, end = record_starts(text, self._delimiter)
        block = Block(display_name(path), 0, None, lines=line + 1 + np.searchsorted(newlines, starts))
        if not starts.size:
            return block._replace(content=one_batch(pa.table({name: pa.nulls(0) for name in chosen})))
        if end < text.size:
            quoted = bytes(text[end : end + 60]).split(b"\n")[0].decode(errors="replace")
            raise DataError(
                f"{block.place(-1)}: expected closed quotes, found one that is not closed: {quoted!r}; close it"
            )
        # memory of Arrow's own: its threads may let go of it late, and would abort a process that ends if it were Python's
        buffer = pa.allocate_buffer(text.size)
        np.frombuffer(buffer, np.uint8)[:] = text
        columns = list[Any]()
        names = [*self._headers[path][0]]
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
                        raise DataError(self._complaint(str(error), names, block.place)) from None
        return block._replace(content=one_batch(pa.Table.from_arrays(columns, chosen)))

    def _complaint(self, error: str, names: list[str], describe: Callable[[int], str]) -> str:
        """Describe a refusal by Arrow."""
        ragged = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+): (.*)", error, re.DOTALL)
        if ragged:
            row, expected, actual, text = ragged.groups()
            return f"{describe(int(row) - 1)}: expected {expected} columns, found {actual}: {text[:60]!r}; correct the line"
        bad = re.search(
            r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to (\w+)(?:\[.*?\])?: (.*)",
            error,
            re.DOTALL,
        )
        if not bad:
            return f"{describe(0)}: expected delimited text, found something else ({error.splitlines()[0]})"
        column, row, type_, what = bad.groups()
        name = names[int(column)] if int(column) < len(names) else column
        kinds = {
            "double": "a number",
            "bool": "true or false",
            "timestamp": "a time",
            "time64": "a time of day",
        }
        zone = re.match(r"expected (?:a|(no)) zone offset in '(.*?)'(?:\.|$)", what)
        value = zone[2] if zone else what.removeprefix("invalid value ").strip("'")
        expected = kinds.get(type_, "text in UTF-8")
        remedy = "correct the line"
        if zone:
            expected += f" with{'out' * bool(zone[1])} a zone"
        if type_ in kinds:
            expected += (
                ", as in its first rows" if self.reading.encoding is None else ", as in the data trained on"
            )
        if self.reading.encoding is None and name not in self.beside:
            out = "" if name in self.named else ", leave the column out with --drop"
            remedy += f"{out}, or take it as text, as a category: --category {name}"
        if type_ == "double" and forms_of(arrow_strings([value]))[0] == COMMA:
            remedy = f"turn its decimal comma into a point before ({RECIPES})"
        return f"{describe(int(row or 1) - 1)}: column {name!r}: expected {expected}, found {value[:40]!r}; {remedy}"


def _numbered(header: Sequence[str]) -> dict[str, str]:
    """Number the names that stand twice, from the second on, and name the columns without one by their place."""
    taken = set(header)
    names = dict[str, str]()
    for position, text in enumerate(header, 1):
        name = text or f"column {position}"
        number = 0
        while name in names or (name != text and name in taken):
            number += 1
            name = f"{text}.{number}"
        names[name] = text
    return names

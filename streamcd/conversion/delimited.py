"""Delimited text: tables with a line of names, read by Arrow a block of whole records at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from csv import Error as RecordError
from csv import reader as records
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

from ..core.errors import DataError
from ..dataset.arrow_columns import one_batch
from ..kernels import tables as kernels
from .byte_sources import STANDARD_INPUT, ByteRange, display_name, read_blocks, read_head
from .sources import Block, Counted, TextReader
from .table_columns import FIRST_ROWS, column_types

SAMPLE_BYTES = 1 << 20
"""First bytes, from which the columns' types are inferred."""

_MOST_BATCH_ROWS = 1 << 16
_COLUMNS_AT_A_TIME = 1000
_QUOTE = ord('"')
NULLS = ["", "NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL", "None"]
"""Texts that stand for a missing value."""


def _last_record_end(buffer: bytearray, size: int) -> int:
    return int(kernels.last_record_end(np.frombuffer(buffer, np.uint8), size, _QUOTE))


@dataclass(frozen=True)
class CsvReader(TextReader):
    """Delimited text with a line of names; a newline between quotes is part of a value."""

    delimiter: str = ","

    def count(self, piece: ByteRange) -> Counted:
        n_rows, n_lines, quoted = 0, 0, False
        with closing(read_blocks([piece], *self.reading.of_text)) as blocks:
            for block in blocks:
                # a newline between quotes ends a block too: a quote more changes what is a record from there on
                rows, lines, odd = kernels.count_records(block.as_array(), block.start, block.stop, _QUOTE)
                n_rows, n_lines, quoted = n_rows + rows, n_lines + lines, quoted or odd
        return Counted(max(n_rows - (piece.start == 0), 0), n_lines, not quoted)

    def names_in(self, path: str) -> list[str]:
        """Return the names of the columns of a file."""
        return [*_numbered(self._header(path)[0])]

    def renamed(self) -> dict[str, str]:
        header = self._header(self.paths[0])[0]
        return {
            name: f"the header has {found!r} twice" if found else "the header has no name for it"
            for name, found in zip(_numbered(header), header, strict=True)
            if name != found
        }

    def types(self) -> dict[str, str]:
        types = column_types(self._first_table.schema, "")
        return {name: "text not in UTF-8" if kind == "binary" else kind for name, kind in types.items()}

    def first_rows(self, types: Mapping[str, str]) -> Any:
        texts = [name for name, kind in types.items() if kind == "string"]
        return one_batch(self._read_first(dict.fromkeys(texts, pa.large_string())).slice(0, FIRST_ROWS))

    @cached_property
    def _first_table(self) -> Any:
        """The first megabyte, with the types that it suggests."""
        return self._read_first({})

    def _read_first(self, types: dict[str, Any]) -> Any:
        """Read the first megabyte."""
        path = self.paths[0]
        names, (_, start) = self.names_in(path), self._header(path)
        text, is_cut = self._sample(path)
        end = _last_record_end(bytearray(text), len(text)) if is_cut else len(text)
        rows = text[start : end or len(text)]
        if not rows.strip():
            return pa.table({name: pa.nulls(0) for name in names})
        message = _at_lines(display_name(path), text[:start].count(b"\n"), rows)
        return self._read(pa.py_buffer(rows), names, names, types, message)

    def _sample(self, path: str) -> tuple[bytes, bool]:
        """Read the first bytes of text; tells if there are more."""
        sample, text = read_head(self.all_of(path), SAMPLE_BYTES, self.reading.decoder_bytes)
        return text, max(len(sample), len(text)) >= SAMPLE_BYTES

    def _header(self, path: str) -> tuple[list[str], int]:
        """Return the names in the first line, and its end."""
        text, _ = self._sample(path)
        first = 3 if text.startswith(b"\xef\xbb\xbf") else 0
        while text[first : first + 1] in (b"\n", b"\r"):
            first += 1
        end, quoted = first, False
        while end < len(text) and (quoted or text[end] != 0x0A):
            quoted ^= text[end] == _QUOTE
            end += 1
        name = display_name(path)
        try:
            line = text[first:end].decode().rstrip("\r\n")
            found = [name.strip() for name in next(records([line], delimiter=self.delimiter, strict=True))]
        except (UnicodeDecodeError, RecordError, StopIteration):
            raise DataError(
                f"{name}:1: expected the names of the columns in UTF-8, with closed quotes, found "
                f"{text[first : min(end, first + 60)]!r}; correct the line"
            ) from None
        if all(re.fullmatch(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?", text) for text in found):
            raise DataError(
                f"{name}:1: expected the names of the columns, found numbers; add a first line of names"
            )
        return found, min(end + 1, len(text))

    def blocks(
        self, pieces: Sequence[ByteRange], first_line: int, types: dict[str, str]
    ) -> Generator[Block, None, None]:
        numbers = {"number": pa.float64(), "nothing": pa.float64(), "boolean": pa.bool_()}
        arrow = {
            name: self._time_type(name) if kind == "time" else numbers.get(kind, pa.large_string())
            for name, kind in types.items()
        }
        read_before = 0
        for piece in pieces:
            names, (_, header_end) = self.names_in(piece.path), self._header(piece.path)
            chosen = [name for name in arrow if name in set(names)]
            line = first_line if piece is pieces[0] else 0
            with closing(read_blocks([piece], *self.reading.of_text, _last_record_end)) as texts:
                for text in texts:
                    start = max(header_end, text.start) if text.first else text.start
                    found, view = text.as_array(), memoryview(text.buffer)[start : text.stop]
                    of_header = np.count_nonzero(found[text.start : start] == 0x0A)
                    message, row = _at_lines(text.name, line + int(of_header), view), 0
                    if len(view) > 2 or bytes(view).strip():
                        table = self._read(pa.py_buffer(view), names, chosen, arrow, message)
                        for batch in table.to_batches(max_chunksize=_MOST_BATCH_ROWS):
                            read = read_before + text.bytes_read
                            yield Block(partial(_later, message, row), batch, read)
                            row += batch.num_rows
                    line += int(np.count_nonzero(found[text.start : text.stop] == 0x0A))
            read_before += piece.n_bytes if piece.path != STANDARD_INPUT else 0

    def _time_type(self, name: str) -> Any:
        """Return the type by which a column of times is read: the first rows' but of a finer unit."""
        schema = self._first_table.schema
        first = schema.field(name).type if name in schema.names else pa.null()
        if pa.types.is_time(first):
            return pa.time64("us")
        if pa.types.is_timestamp(first):
            return pa.timestamp("ns" if first.unit == "ns" else "us", first.tz)
        return pa.timestamp("us")

    def _read(
        self, buffer: Any, names: list[str], chosen: list[str], types: dict[str, Any], message: Any
    ) -> Any:
        """Read the columns `chosen` from text without its line of names, some at a time: each takes Arrow 15 kB."""
        read = csv.ReadOptions(
            use_threads=self.reading.threaded, column_names=names, block_size=min(buffer.size + 1, 2**31 - 1)
        )
        parse = csv.ParseOptions(delimiter=self.delimiter)
        columns: list[Any] = []
        try:
            for k in range(0, len(chosen), _COLUMNS_AT_A_TIME):
                part = chosen[k : k + _COLUMNS_AT_A_TIME]
                convert = csv.ConvertOptions(
                    null_values=NULLS,
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                    column_types=types,
                    include_columns=part,
                )
                columns += csv.read_csv(pa.BufferReader(buffer), read, parse, convert).columns
        except pa.ArrowInvalid as error:
            if self.reading.threaded:  # Arrow's threads do not tell the row
                alone = replace(self, reading=replace(self.reading, threaded=False))
                return alone._read(buffer, names, chosen, types, message)
            raise DataError(
                _csv_complaint(str(error), names, message, self.reading.encoding is None)
            ) from None
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


def _at_lines(name: str, line: int, text: bytes | memoryview) -> Callable[[int], str]:
    """Make a function that describes a record of a text by its line, `line` of which come before.

    Where newlines between quotes, or blank lines, make other lines than records, the text is looked through.
    """
    found = np.frombuffer(text, np.uint8)
    n_records, n_lines, _ = kernels.count_records(np.append(found, np.uint8(0x0A)), 0, found.size, _QUOTE)
    kept = None if n_records == n_lines else bytes(text)
    return lambda row: f"{name}:{line + 1 + (row if kept is None else _lines_before(kept, row))}"


def _later(message: Callable[[int], str], first: int, row: int) -> str:
    return message(first + row)


def _lines_before(text: bytes, record: int) -> int:
    """Count the newlines before a record; those between quotes are part of one, and blank lines are none."""
    n_lines, n_records, quoted, begun = 0, 0, False, False
    for byte in text:
        if byte == 0x0A:
            n_lines += 1
            if begun and not quoted:
                n_records, begun = n_records + 1, False
        elif byte != 0x0D and not begun:
            if n_records == record:
                break
            begun = True
        quoted ^= byte == _QUOTE
    return n_lines


def _csv_complaint(error: str, names: list[str], message: Any, new: bool) -> str:
    """Describe a refusal by Arrow; columns of a table that is not `new` are those of the data trained on."""
    ragged = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+): (.*)", error, re.DOTALL)
    if ragged:
        row, expected, found, text = ragged.groups()
        return f"{message(int(row) - 1)}: expected {expected} columns, found {found}: {text[:60]!r}; correct the line"
    bad = re.search(r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to (\w+)\S*: (.*)", error)
    if not bad:
        return f"{message(0)}: expected delimited text, found something else ({error.splitlines()[0]})"
    column, row, type_, what = bad.groups()
    name = names[int(column)] if int(column) < len(names) else column
    kinds = {"double": "a number", "bool": "true or false", "timestamp": "a time", "time64": "a time of day"}
    like = "as in its first rows" if new else "as in the data trained on"
    expected = f"{kinds[type_]}, {like}" if type_ in kinds else "text in UTF-8"
    value = what.removeprefix("invalid value ").strip("'")[:40]
    otherwise = f", leave the column out with --drop, or take it as text, as a category: --category {name}"
    return (
        f"{message(int(row or 1) - 1)}: column {name!r}: expected {expected}, found {value!r}; "
        f"correct the line{otherwise if new else ''}"
    )

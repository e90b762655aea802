"""Delimited text: tables with a line of names, read by Arrow a block of whole records at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from csv import Error as RecordError
from csv import reader as records
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

from ..core.errors import DataError, refuse
from ..dataset.arrow_columns import one_batch
from .byte_sources import STANDARD_INPUT, Piece, display_name, read_blocks, read_head
from .sources import Block, Counted, TextReader
from .table_columns import FIRST_ROWS, column_types

SAMPLE_BYTES = 1 << 20
"""First bytes, from which the columns' types are inferred."""

_MOST_BATCH_ROWS = 1 << 16
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
class CsvReader(TextReader):
    """Delimited text with a line of names."""

    delimiter: str = ","

    def count(self, piece: Piece) -> Counted:
        n_rows, n_lines, whole = -(piece.start == 0), 0, True
        with closing(read_blocks([piece], *self.reading.of_text, _last_record_end)) as blocks:
            for block in blocks:
                text = block.as_array()[block.start : block.stop]
                starts, newlines, end = record_starts(text)
                n_rows, n_lines, whole = n_rows + starts.size, n_lines + newlines.size, end == text.size
        return Counted(max(n_rows, 0), n_lines, whole)

    def renamed(self) -> dict[str, str]:
        names, header, _ = self._header(self.paths[0])
        return {
            name: f"the header has {found!r} twice" if found else "the header has no name for it"
            for name, found in zip(names, header, strict=True)
            if name != found
        }

    def types_in(self, path: str) -> dict[str, str]:
        """Return the columns of a file with their types, those of the first file."""
        if path != self.paths[0]:
            return dict.fromkeys(self._header(path)[0], "string")
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
        (names, _, start), (text, is_cut) = self._header(path), self._sample(path)
        end = record_starts(np.frombuffer(text, np.uint8))[2] if is_cut else 0
        rows = text[start : end or len(text)] + b"\n"
        found, newlines, _ = record_starts(np.frombuffer(rows, np.uint8))
        if not found.size:
            return pa.table({name: pa.nulls(0) for name in names})
        lines = text.count(b"\n", 0, start) + 1 + np.searchsorted(newlines, found)
        return self._read(pa.py_buffer(rows), names, names, types, _at_lines(display_name(path), lines))

    def _sample(self, path: str) -> tuple[bytes, bool]:
        """Read the first bytes of text; tells if there are more."""
        part = Piece(path, head=self.head if path == STANDARD_INPUT else b"")
        sample, text = read_head(part, SAMPLE_BYTES, self.reading.decoder_bytes)
        return text, max(len(sample), len(text)) >= SAMPLE_BYTES

    def _header(self, path: str) -> tuple[list[str], list[str], int]:
        """Return the names of the columns, those in the first line, and its end."""
        text, _ = self._sample(path)
        starts, _, end = record_starts(np.frombuffer(text + b"\n", np.uint8))
        end = min(end, len(text)) or len(text)
        first, stop = (int(starts[k]) if starts.size > k else other for k, other in enumerate((0, end)))
        line = text[first:stop].removeprefix(b"\xef\xbb\xbf")
        found: list[str] = []
        with suppress(UnicodeDecodeError, RecordError, StopIteration):
            found = next(records([line.decode().rstrip("\r\n")], delimiter=self.delimiter, strict=True))
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
        return [*_numbered(names)], names, stop

    def blocks(
        self, pieces: Sequence[Piece], first_line: int, types: dict[str, str]
    ) -> Generator[Block, None, None]:
        numbers = {"number": pa.float64(), "nothing": pa.float64(), "boolean": pa.bool_()}
        arrow = {
            name: self._time_type(name) if kind == "time" else numbers.get(kind, pa.large_string())
            for name, kind in types.items()
        }
        read_before = 0
        for piece in pieces:
            names, _, header_end = self._header(piece.path)
            chosen = [name for name in arrow if name in set(names)]
            line = first_line if piece is pieces[0] else 0
            with closing(read_blocks([piece], *self.reading.of_text, _last_record_end)) as texts:
                for text in texts:
                    start = header_end if text.first else text.start
                    view = memoryview(text.buffer)[start : text.stop]
                    line += int(np.count_nonzero(text.as_array()[text.start : start] == 0x0A))
                    starts, newlines, _ = record_starts(np.frombuffer(view, np.uint8))
                    if starts.size:
                        lines, row = line + 1 + np.searchsorted(newlines, starts), 0
                        table = self._read(
                            pa.py_buffer(view), names, chosen, arrow, _at_lines(text.name, lines)
                        )
                        for batch in table.to_batches(max_chunksize=_MOST_BATCH_ROWS):
                            yield Block(
                                _at_lines(text.name, lines, row), batch, read_before + text.bytes_read
                            )
                            row += batch.num_rows
                    line += newlines.size
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
        self,
        buffer: Any,
        names: list[str],
        chosen: list[str],
        types: dict[str, Any],
        message: Callable[[int], str],
    ) -> Any:
        """Read the columns `chosen` from text without its line of names."""
        parse = csv.ParseOptions(delimiter=self.delimiter)
        columns: list[Any] = []
        for k in range(0, len(chosen), _COLUMNS_AT_A_TIME):
            convert = csv.ConvertOptions(
                null_values=NULLS,
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                column_types=types,
                include_columns=chosen[k : k + _COLUMNS_AT_A_TIME],
            )
            for threads in dict.fromkeys(
                [self.reading.threaded, False]
            ):  # Arrow's threads do not tell the row
                read = csv.ReadOptions(
                    use_threads=threads, column_names=names, block_size=min(buffer.size + 1, 2**31 - 1)
                )
                try:
                    columns += csv.read_csv(pa.BufferReader(buffer), read, parse, convert).columns
                    break
                except pa.ArrowInvalid as error:
                    if not threads:
                        new = self.reading.encoding is None
                        raise DataError(_csv_complaint(str(error), names, message, new)) from None
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


def _at_lines(name: str, lines: np.ndarray, first: int = 0) -> Callable[[int], str]:
    """Make a function that describes a record by its line; after a quote within a cell Arrow sees more records than we."""
    return lambda row: f"{name}:{lines[min(first + row, lines.size - 1)]}"


def _csv_complaint(error: str, names: list[str], message: Callable[[int], str], new: bool) -> str:
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
    value = what.removeprefix("invalid value ").strip("'")[:40]
    otherwise = f", leave the column out with --drop, or take it as text, as a category: --category {name}"
    return (
        f"{message(int(row or 1) - 1)}: column {name!r}: expected "
        f"{f'{kinds[type_]}, {like}' if type_ in kinds else 'text in UTF-8'}, found {value!r}; "
        f"correct the line{otherwise if new else ''}"
    )

"""Encoding of tables: from batches of Arrow columns to sparse rows, as an `Encoding` describes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..core.errors import DataError, UsageError
from ..core.memory_budget import format_size
from ..dataset.arrow_columns import (
    COMMA,
    MOST_ODD,
    NUMBER,
    WORD,
    Strings,
    arrow_strings,
    dictionary_of,
    flat_columns,
    flat_fields,
    forms_of,
    frame_reader,
    joined_arrays,
    lists_of,
    names_of_numbers,
    numbers_of,
    odd_value,
    prefixed_strings,
    seconds_of,
    strings_of,
    type_name,
)
from ..kernels.rows import CSR, MAX_INDEX, UNDERFLOWS
from ..kernels.strings import (
    MISSING,
    TAIL_CODES,
    UNKNOWN,
    HashTable,
    fill_slots,
    murmur_strings,
    number_strings,
)
from .encoding import Column, Encoding, Unknown, add_unknown, check_columns, unknown_values
from .matrix_encoder import BLOCK_CELLS, EncodedRows, RowChecker, sorted_rows

_ASKED_BY = 5  # frames up from `encode_frame`: the caller of a method of `Model`


class TableEncoder:
    """Encoder of batches of a table.

    With `table`, which numbers categories in order of appearance, codes are provisional: those of numbers and indicators
    come first, then the categories. Without it categories are those of the encoding, codes are features, and unknown
    categories are counted in `unseen`. `bounds` are those of the indices of a sparse column (see `RowChecker`).
    """

    def __init__(
        self,
        encoding: Encoding,
        value_dtype: Any,
        table: StringTable | None = None,
        *bounds: Any,
        message: Callable[[int], str] = lambda row: f"row {row + 1}",
    ) -> None:
        self.encoding = encoding
        self.message = message
        self._grows = table is not None
        self._dictionaries: dict[str, tuple[Any, np.ndarray, np.ndarray, np.ndarray]] = {}
        self._features = np.empty(0, np.int64)
        self._table = StringTable() if table is None else table
        if table is None and encoding.categories is not None:
            found = [np.empty(0, np.int64)]
            for number, first, categories in encoding.categories_of_columns():
                self._table.number(number, categories, True, "")
                found.append(first + np.arange(categories.size))
            self._features = np.concatenate(found)
        # codes of numbers and indicators, while categories are provisional
        self._n_static = encoding.n_static
        own = encoding.without_counts() if self._grows else encoding
        self._starts = own.first_features()
        self._indicators = own.indicator_features()
        columns = [(k, column) for k, column in enumerate(encoding.columns) if column.kind != "sparse"]
        self._columns = sorted(columns, key=lambda item: item[1].kind == "hashed")
        self._cells = RowChecker(value_dtype)
        self._lists = RowChecker(value_dtype, *bounds)
        self.unseen: dict[str, Unknown] = {}  # values of unknown categories, by column
        # by column and form, strings that are no numbers, in columns where nearly all are
        self.odd: dict[tuple[str, int], Unknown] = {}
        self._may_be_numbers = {*encoding.string_columns} if self._grows else set[str]()
        self._n_rows = 0
        self.n_missing = np.zeros(len(encoding.columns), np.int64)  # values, by column
        n_cells = max(len(self._columns), 1)
        # of wide tables a few rows more, since each block calls Python once a column
        self._block_rows = max(BLOCK_CELLS // n_cells, min(64, 8 * BLOCK_CELLS // n_cells), 1)

    @property
    def state(self) -> np.ndarray:
        """Counts of `kernels.rows`: those of lists, with the cells that are zero in the type of the values."""
        state = self._lists.state.copy()
        state[UNDERFLOWS] += self._cells.state[UNDERFLOWS]
        return state

    @property
    def unindicated(self) -> dict[str, Unknown]:
        """Missing values so far in columns that had none in training, and so have no indicator."""
        numbers = [] if self._grows else self.encoding.unindicated(self.n_missing)
        return {self.encoding.columns[k].name: Unknown(int(self.n_missing[k]), "") for k in numbers}

    @property
    def largest_index(self) -> int:
        """The largest code so far."""
        if self.encoding.sparse is not None:
            return int(self._lists.state[MAX_INDEX]) + self.sparse_start
        if self._grows and not self.encoding.n_buckets:
            return self._n_static + self._table.size - 1
        return self.sparse_start - 1

    @property
    def sparse_start(self) -> int:
        """Code of a sparse column's index 0."""
        return self._tail_start + self.encoding.n_buckets

    @property
    def _tail_start(self) -> int:
        """Code of the first bucket of hashed strings."""
        if not self._grows:
            return self.encoding.bucket_start
        return TAIL_CODES if self.encoding.numbers_late else self._n_static

    def encode(self, batch: Any) -> Iterator[EncodedRows]:
        """Encode an Arrow record batch that has the encoding's columns, a block of rows at a time."""
        for start in range(0, batch.num_rows, self._block_rows):
            block = batch.slice(start, self._block_rows)
            sparse = self.encoding.sparse
            parts = [self._table_rows(block, start)] if self._columns else []
            parts += [] if sparse is None else [self._sparse_rows(block, sparse, start)]
            yield EncodedRows(start, *(parts[0] if len(parts) == 1 else _joined(*parts)))

    def _table_rows(self, block: Any, start: int) -> CSR:
        shape = block.num_rows, len(self._columns)
        features = np.empty(shape, np.int64)
        values = np.ones(shape)
        features[:] = [self._starts[number] for number, _ in self._columns]
        for at, (number, column) in enumerate(self._columns):
            if column.kind == "number":
                values[:, at] = self._numbers(block, column)
                missing = np.isnan(values[:, at])
            else:
                (_, codes, signs, forms), places = self._codes(block, number, column)
                features[:, at] = codes[places]
                missing = places < 0
                if column.name in self._may_be_numbers:
                    self._count_odd(block, column.name, forms[places], start)
                if column.kind == "hashed":
                    values[:, at] = signs[places]
                elif not self._grows:
                    self._count_unseen(block, column.name, features[:, at] == UNKNOWN)
            if not missing.any():
                continue
            self.n_missing[number] += np.count_nonzero(missing)
            if self.encoding.missing == "error":
                place = self._place(start + int(missing.argmax()), column.name)
                way = "give --missing zero (or indicator), or " if self._grows else ""
                raise DataError(f"{place}: expected a value, found none; {way}correct the row")
            if column.kind != "hashed":
                features[missing, at] = self._indicators.get(number, MISSING)
                values[missing, at] = 1.0
        n_hashed = sum(column.kind == "hashed" for _, column in self._columns)
        if n_hashed:  # ascending, so that those of one bucket are added up
            order = np.argsort(features[:, -n_hashed:], axis=1)
            for part in (features[:, -n_hashed:], values[:, -n_hashed:]):
                part[:] = np.take_along_axis(part, order, 1)
        self._n_rows += block.num_rows
        kept = (values != 0.0) & (features >= 0)
        starts = np.concatenate([[0], np.cumsum(np.count_nonzero(kept, axis=1))])
        # most blocks of dense tables have no zeros
        rows = CSR(
            starts, *(array.reshape(-1) if kept.all() else array[kept] for array in (features, values))
        )
        names = {int(self._starts[number]): column.name for number, column in self._columns}
        return self._cells.check(
            rows, lambda row, entry, _: self._place(start + row, names.get(int(rows.feature[entry]), ""))
        )

    def _place(self, row: int, name: str) -> str:
        return f"{self.message(row)}: column {name!r}"

    def _count_unseen(self, block: Any, name: str, unseen: np.ndarray) -> None:
        """Count the values of a column that have no code."""
        if unseen.any():
            example = str(block.column(name)[int(unseen.argmax())].as_py())
            add_unknown(self.unseen, {name: Unknown(int(np.count_nonzero(unseen)), example)})

    def _count_odd(self, block: Any, name: str, forms: np.ndarray, start: int) -> None:
        """Count the strings of a column that are no numbers, as long as nearly all are."""
        for form in (COMMA, WORD):
            if not (n := np.count_nonzero(forms == form)):
                continue
            row = int((forms == form).argmax())
            message = odd_value(self._place(start + row, name), block.column(name)[row], form)
            add_unknown(self.odd, {(name, form): Unknown(int(n), message)})
            if form == WORD and self.odd[name, form].n_values > MOST_ODD * (self._n_rows + block.num_rows):
                self._may_be_numbers.remove(name)
                self.odd[name, form] = Unknown(sys.maxsize, "")  # also where many numbers follow

    def _numbers(self, block: Any, column: Column) -> np.ndarray:
        """Return the numbers of a column: NaN where they are missing."""
        if column.form == "seconds":
            return seconds_of(self._column(block, column.name, "time"), column.origin)
        return numbers_of(self._column(block, column.name, column.form or "number"))

    def _column(self, block: Any, name: str, *kinds: str) -> Any:
        array = block.column(name)
        if type_name(array.type) not in (*kinds, "nothing"):
            raise DataError(
                f"{self._place(0, name)}: expected {' or '.join(f'{kind}s' for kind in kinds)}, found {array.type}; give "
                "the column one type in all of the data"
            )
        return array

    def _codes(
        self, block: Any, number: int, column: Column
    ) -> tuple[tuple[Any, np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
        """Return the different strings, or numbers, of a column with codes, signs and forms, and the place of each row's.

        The last code is that of a missing value, whose place is -1.
        """
        array = self._column(block, column.name, "string", "number")
        values, places = (
            names_of_numbers(array) if type_name(array.type) == "number" else dictionary_of(array)
        )
        known = self._dictionaries.get(column.name)
        if known is None or not known[0].equals(values):
            coded = self._hashed if column.kind == "hashed" else self._numbered
            forms = np.empty(0, np.int8)
            if column.name in self._may_be_numbers:
                forms = np.append(forms_of(values), np.int8(NUMBER))
            known = self._dictionaries[column.name] = (values, *coded(number, column, values), forms)
        return known, places

    def _numbered(self, number: int, column: Column, values: Any) -> tuple[np.ndarray, np.ndarray]:
        codes = self._table.number(number, strings_of(values)[0], self._grows, column.name)
        known = codes >= 0
        codes[known] = codes[known] + self._n_static if self._grows else self._features[codes[known]]
        return np.append(codes, MISSING), np.empty(0)

    def _hashed(self, number: int, column: Column, values: Any) -> tuple[np.ndarray, np.ndarray]:
        texts = prefixed_strings(f"{column.name}=", strings_of(values)[0], np.arange(len(values)))
        hashes = np.empty(len(values) + 1, np.int64)
        missing = arrow_strings([f"{column.name} is missing"])
        murmur_strings(strings_of(joined_arrays([texts, missing]))[0], hashes)
        codes = self._tail_start + (np.abs(hashes) & (self.encoding.n_buckets - 1))
        if self.encoding.missing != "indicator":
            codes[-1] = MISSING
        return codes, np.where(hashes < 0, -1.0, 1.0)

    def _sparse_rows(self, block: Any, column: Column, start: int) -> CSR:
        starts, index = self._list(block, column.name)
        ends, value = self._list(block, column.values)
        if not np.array_equal(starts, ends):
            row = int(np.flatnonzero(np.diff(starts) != np.diff(ends))[0])
            raise DataError(
                f"{self.message(start + row)}: expected lists of one length in {column.name!r} and {column.values!r}, "
                f"found {int(np.diff(starts)[row])} and {int(np.diff(ends)[row])} elements; correct the row"
            )
        rows = self._lists.check(
            CSR(starts, *sorted_rows(starts, index, value)),
            lambda row, _, of_index: self._place(start + row, column.name if of_index else column.values),
        )
        rows.feature[:] += self.sparse_start
        return rows

    def _list(self, block: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
        array = block.column(name)
        if type_name(array.type) != "list" or type_name(array.type.value_type) not in ("number", "nothing"):
            way = "; --features INDICES:VALUES names two columns of lists" if self._grows else ""
            raise DataError(f"{self._place(0, name)}: expected lists of numbers, found {array.type}{way}")
        try:
            starts, elements = lists_of(array, name)
        except ValueError as error:
            raise DataError(f"{self.message(0)}: {error}") from None
        return starts, numbers_of(elements)


def _joined(rows: CSR, more: CSR) -> CSR:
    """Join the entries of every row of two tables, the second one's after the first one's."""
    row = [np.repeat(np.arange(part.indptr.size - 1), np.diff(part.indptr)) for part in (rows, more)]
    order = np.argsort(np.concatenate(row), kind="stable")
    feature = np.append(rows.feature, more.feature)
    value = np.append(rows.value, more.value)
    return CSR(rows.indptr + more.indptr, feature[order], value[order])


def encode_frame(
    frame: Any, encoding: Encoding, end: int, index_base: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Encode a frame (anything with ``__arrow_c_stream__``) as a known encoding says, some rows at a time.

    Yields ``indptr``, ``index``, from `index_base` on, and ``value``, valid until the next ones are taken. Unknown
    categories, of which a warning tells at the end, and indices from `end` on, of a sparse column, have no entry.

    Raises
    ------
    DataError
        Where the frame lacks a column, or holds what is refused in training too.
    """
    end -= encoding.sparse_start
    encoder = TableEncoder(encoding, np.float64, None, index_base, end, True)
    before = 0
    with frame_reader(frame) as reader:
        names = [field.name for field in flat_fields(reader.schema)]
        check_columns(encoding, names, False, "the frame")
        for batch in map(flat_columns, reader):
            encoder.message = lambda row, first=before: f"row {first + row + 1}"  # type: ignore[misc]
            for rows in encoder.encode(batch.select(encoding.names)):
                yield rows.indptr, rows.feature, rows.value
            before += batch.num_rows
    for warning in unknown_values(encoder.unseen, encoder.unindicated):
        warnings.warn(warning, stacklevel=_ASKED_BY)


# ---------------------------------------------------------------------------------------------------------------------
# Strings by number


class StringTable:
    """Hash table of the strings of several columns, numbered in order of appearance, within `memory_bytes`."""

    def __init__(self, memory_bytes: int | None = None) -> None:
        self._memory_bytes = memory_bytes
        self.size = 0
        """Number of strings so far."""
        self._arrays = HashTable(
            np.full(1 << 10, -1, np.int32),
            np.empty(1 << 9, np.uint64),
            np.empty(1 << 9, np.int32),
            np.zeros((1 << 9) + 1, np.int64),
            np.empty(1 << 13, np.uint8),
        )

    def number(self, column: int, strings: Strings, add: bool, name: str) -> np.ndarray:
        """Number different strings of a column; see `kernels.strings.number_strings`. `name` is for messages."""
        out = np.empty(strings.size, np.int64)
        if add:
            self._make_room(strings.size, int(strings.offsets[-1] - strings.offsets[0]), name)
        self.size = int(number_strings(column, strings, add, self._arrays, self.size, out))
        return out

    def _make_room(self, n_more: int, more_bytes: int, name: str) -> None:
        n = self.size
        (slots, hashes, columns, ends, arena) = self._arrays
        room = n + n_more
        n_bytes = int(ends[n]) + more_bytes
        if room > hashes.size:
            size = max(room, 3 * hashes.size // 2)
            hashes = enlarged(hashes, size)
            columns = enlarged(columns, size)
            ends = enlarged(ends, size + 1)
        if 2 * room > slots.size:
            slots = np.full(1 << (2 * room).bit_length(), -1, np.int32)
            fill_slots(hashes, n, slots)
        if n_bytes > arena.size:
            arena = enlarged(arena, max(n_bytes, 3 * arena.size // 2))
        self._arrays = HashTable(slots, hashes, columns, ends, arena)
        # an array exists twice when it is enlarged
        needed = 1.5 * sum(array.nbytes for array in self._arrays)
        if self._memory_bytes is not None and needed > self._memory_bytes:
            raise UsageError(
                f"column {name!r}: the dictionary of its categories takes more than the "
                f"{format_size(self._memory_bytes)} of --memory that are left for it, after {n:,} categories; hash them "
                "into 2^B features with --hash B (20, say), leave it out with --drop, or give a larger --memory"
            )

    def strings(self) -> Strings:
        """Return all strings, by number."""
        return Strings(self._arrays.arena[: self._arrays.ends[self.size]], self._arrays.ends[: self.size + 1])

    def columns(self) -> np.ndarray:
        """Return the column of every string, by number."""
        return self._arrays.columns[: self.size]


def enlarged(array: np.ndarray, size: int) -> np.ndarray:
    larger = np.empty(size, array.dtype)
    larger[: array.size] = array
    return larger

"""Encoding of tables: from batches of Arrow columns to sparse rows, as an `Encoding` describes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

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
from ..dataset.chunked_table import starts_of
from ..dataset.source_features import SourceIndices
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
from .matrix_encoder import BLOCK_CELLS, RowChecker, sorted_rows

_ASKED_BY = 5  # frames up from `encode_frame`: the caller of a method of `Model`


class _Dictionary(NamedTuple):
    """The different values of a column; codes, signs and forms end with those of a missing value."""

    values: Any
    codes: np.ndarray
    signs: np.ndarray  # of hashed strings
    forms: np.ndarray  # of strings, while they may be numbers


class TableEncoder:
    """Encoder of batches of a table.

    With `table`, which numbers categories in order of appearance, codes are provisional where features are known late: two
    for each column, of its numbers and of missing values, then the categories, then, from `TAIL_CODES` on, buckets and a
    sparse column's indices. Else codes are features. Without a table categories are those of the encoding, and unknown ones
    are counted in `unseen`. `bounds` are those of the indices of a sparse column (see `RowChecker`).
    """

    message: Callable[[int], str]  # describes a row of the batch

    def __init__(
        self,
        encoding: Encoding,
        value_dtype: Any,
        table: StringTable | None = None,
        *bounds: Any,
    ) -> None:
        self.encoding = encoding
        self._grows = table is not None
        self._starts = encoding.starts[:-1]
        self._indicators = encoding.indicators
        self._tail_start = encoding.bucket_start
        if table is not None:
            self._table = table
            if encoding.numbers_late:
                self._starts = np.arange(0, encoding.n_static, 2)
                self._indicators = np.where(encoding.may_indicate, self._starts + 1, MISSING)
                self._tail_start = TAIL_CODES
        else:
            self._table = StringTable()
            self._features = np.arange(encoding.category_starts[-1])
            for number, (first, stop) in enumerate(pairwise(encoding.category_starts)):
                self._table.number(number, encoding.categories.slice(first, stop), True, "")
                self._features[first:stop] += encoding.starts[number] - first
        self.sparse_start = self._tail_start + encoding.n_buckets
        """Code of a sparse column's index 0."""
        columns = [(k, column) for k, column in enumerate(encoding.columns) if column.kind != "sparse"]
        self._columns = sorted(columns, key=lambda item: item[1].kind == "hashed")
        self._n_hashed = sum(column.kind == "hashed" for column in encoding.columns)
        self._dictionaries: dict[int, _Dictionary] = {}
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
        lacking = self.encoding.may_indicate & (self._indicators == MISSING) & (self.n_missing > 0)
        numbers = np.flatnonzero(lacking).tolist()
        return {self.encoding.columns[k].name: Unknown(int(self.n_missing[k]), "") for k in numbers}

    @property
    def largest_index(self) -> int:
        """The largest code so far."""
        if self.encoding.sparse is not None:
            return int(self._lists.state[MAX_INDEX]) + self.sparse_start
        if self._tail_start == self.sparse_start == TAIL_CODES:
            return self.encoding.n_static + self._table.size - 1
        return self.sparse_start - 1

    def encode(self, batch: Any) -> Iterator[tuple[int, CSR]]:
        """Encode an Arrow record batch with the encoding's columns, some rows at a time, with the number of the first."""
        sparse = self.encoding.sparse
        for start in range(0, batch.num_rows, self._block_rows):
            block = batch.slice(start, self._block_rows)
            parts = [self._table_rows(block, start)] if self._columns else []
            parts += [] if sparse is None else [self._sparse_rows(block, sparse, start)]
            yield start, parts[0] if len(parts) == 1 else _joined(*parts)

    def _place(self, row: int, name: str) -> str:
        return f"{self.message(row)}: column {name!r}"

    def _column(self, block: Any, name: str, *kinds: str) -> Any:
        array = block.column(name)
        if type_name(array.type) not in (*kinds, "nothing"):
            raise DataError(
                f"{self._place(0, name)}: expected {' or '.join(f'{kind}s' for kind in kinds)}, found {array.type}; give "
                "the column one type in all of the data"
            )
        return array

    # -- columns of one value a row

    def _table_rows(self, block: Any, start: int) -> CSR:
        shape = block.num_rows, len(self._columns)
        features = np.empty(shape, np.int64)
        values = np.ones(shape)
        self._n_rows += block.num_rows
        for at, (number, column) in enumerate(self._columns):
            if column.kind == "number":
                features[:, at] = self._starts[number]
                values[:, at] = self._numbers(block, column)
                missing = np.isnan(values[:, at])
            else:
                missing = self._strings(block, number, column, start, features[:, at], values[:, at])
            if not missing.any():
                continue
            self.n_missing[number] += np.count_nonzero(missing)
            if self.encoding.missing == "error":
                place = self._place(start + int(missing.argmax()), column.name)
                way = "give --missing zero (or indicator), or " if self._grows else ""
                raise DataError(f"{place}: expected a value, found none; {way}correct the row")
            if column.kind != "hashed":
                features[missing, at] = self._indicators[number]
                values[missing, at] = 1.0
        if self._n_hashed:  # ascending, so that those of one bucket are added up
            order = np.argsort(features[:, -self._n_hashed :], axis=1)
            for part in (features[:, -self._n_hashed :], values[:, -self._n_hashed :]):
                part[:] = np.take_along_axis(part, order, 1)
        kept = (values != 0.0) & (features >= 0)
        starts = starts_of(np.count_nonzero(kept, axis=1))
        # most blocks of dense tables have no zeros
        rows = CSR(
            starts, *(array.reshape(-1) if kept.all() else array[kept] for array in (features, values))
        )
        names = {int(self._starts[number]): column.name for number, column in self._columns}
        return self._cells.check(
            rows, lambda row, entry, _: self._place(start + row, names.get(int(rows.feature[entry]), ""))
        )

    def _numbers(self, block: Any, column: Column) -> np.ndarray:
        """Return the numbers of a column: NaN where they are missing."""
        if column.form == "seconds":
            return seconds_of(self._column(block, column.name, "time"), column.origin)
        return numbers_of(self._column(block, column.name, column.form or "number"))

    def _strings(
        self, block: Any, number: int, column: Column, start: int, features: np.ndarray, signs: np.ndarray
    ) -> np.ndarray:
        """Fill in the codes of a column's strings, and the signs of hashed ones; returns the rows that have none."""
        array = self._column(block, column.name, "string", "number")
        is_number = type_name(array.type) == "number"
        values, rows = names_of_numbers(array) if is_number else dictionary_of(array)
        known = self._dictionaries.get(number)
        if known is None or not known.values.equals(values):
            known = self._dictionaries[number] = self._coded(number, column, values)
        features[:] = known.codes[rows]
        if column.name in self._may_be_numbers:
            self._count_odd(array, column.name, known.forms[rows], start)
        if column.kind == "hashed":
            signs[:] = known.signs[rows]
        elif (unseen := features == UNKNOWN).any():
            example = str(array[int(unseen.argmax())].as_py())
            add_unknown(self.unseen, {column.name: Unknown(int(np.count_nonzero(unseen)), example)})
        return rows < 0

    def _coded(self, number: int, column: Column, values: Any) -> _Dictionary:
        """Give the different values of a column their codes."""
        signs = forms = np.empty(0, np.int8)
        if column.name in self._may_be_numbers:
            forms = np.append(forms_of(values), np.int8(NUMBER))
        strings, _ = strings_of(values)
        if column.kind == "hashed":
            texts = prefixed_strings(f"{column.name}=", strings, np.arange(len(values)))
            missing = arrow_strings([f"{column.name} is missing"])
            hashes = np.empty(len(values) + 1, np.int64)
            murmur_strings(strings_of(joined_arrays([texts, missing]))[0], hashes)
            codes = self._tail_start + (np.abs(hashes) & (self.encoding.n_buckets - 1))
            signs = np.where(hashes < 0, -1.0, 1.0)
            if self.encoding.missing != "indicator":
                codes[-1] = MISSING
            return _Dictionary(values, codes, signs, forms)
        codes = self._table.number(number, strings, self._grows, column.name)
        known = codes >= 0
        codes[known] = codes[known] + self.encoding.n_static if self._grows else self._features[codes[known]]
        return _Dictionary(values, np.append(codes, MISSING), signs, forms)

    def _count_odd(self, array: Any, name: str, forms: np.ndarray, start: int) -> None:
        """Count the strings of a column that are no numbers, as long as nearly all are."""
        for form in (COMMA, WORD):
            odd = forms == form
            if not odd.any():
                continue
            row = int(odd.argmax())
            message = odd_value(self._place(start + row, name), array[row], form)
            add_unknown(self.odd, {(name, form): Unknown(int(np.count_nonzero(odd)), message)})
            if form == WORD and self.odd[name, form].n_values > MOST_ODD * self._n_rows:
                self._may_be_numbers.remove(name)
                self.odd[name, form] = Unknown(sys.maxsize, "")  # also where many numbers follow

    # -- a column of lists

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
            raise DataError(f"{self._place(0, name)}: expected lists of numbers, found {array.type}")
        try:
            starts, elements = lists_of(array, name)
        except ValueError as error:
            raise DataError(f"{self.message(0)}: {error}") from None
        return starts, numbers_of(elements)


def _joined(rows: CSR, more: CSR) -> CSR:
    """Join the entries of every row of two tables, the second one's after the first one's."""
    ends = np.repeat(rows.indptr[1:], np.diff(more.indptr))
    feature = np.insert(rows.feature, ends, more.feature)
    return CSR(rows.indptr + more.indptr, feature, np.insert(rows.value, ends, more.value))


def encode_frame(frame: Any, encoding: Encoding, indices: SourceIndices, n_features: int) -> Any:
    """Encode a frame (anything with ``__arrow_c_stream__``) as a known encoding says, in SciPy's CSR; see `Model.encode`.

    Unknown categories, of which a warning tells, and indices that are none of the features have no entry.
    """
    import scipy.sparse as sp

    end = n_features + indices.base if indices.kept is None else int(indices.kept.max(initial=0)) + 1
    encoder = TableEncoder(encoding, np.float64, None, indices.base, end - encoding.sparse_start, True)
    parts = [sp.csr_array((0, n_features))]
    before = 0
    with frame_reader(frame) as reader:
        check_columns(encoding, [field.name for field in flat_fields(reader.schema)], False, "the frame")
        for batch in map(flat_columns, reader):
            encoder.message = lambda row, first=before: f"row {first + row + 1}"  # type: ignore[misc]
            for _, rows in encoder.encode(batch.select(encoding.names)):
                feature = indices.features(rows.feature)
                known = feature >= 0
                entries = rows.value[known], feature[known], starts_of(known)[rows.indptr]
                parts.append(sp.csr_array(entries, shape=(rows.indptr.size - 1, n_features)))
            before += batch.num_rows
    for warning in unknown_values(encoder.unseen, encoder.unindicated):
        warnings.warn(warning, stacklevel=_ASKED_BY)
    return sp.vstack(parts, format="csr")


# ---------------------------------------------------------------------------------------------------------------------
# Strings by number


class StringTable:
    """Hash table of the strings of several columns, numbered in order of appearance, within `memory_bytes`."""

    def __init__(self, memory_bytes: int | None = None) -> None:
        self._memory_bytes = memory_bytes
        self.size = 0
        """Number of strings so far."""
        self._arrays = HashTable(
            np.full(1, -1, np.int32),
            np.empty(0, np.uint64),
            np.empty(0, np.int32),
            np.zeros(1, np.int64),
            np.empty(0, np.uint8),
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
        hashes = _enlarged(hashes, room)
        columns = _enlarged(columns, room)
        arena = _enlarged(arena, int(ends[n]) + more_bytes)
        ends = _enlarged(ends, room + 1)
        if 2 * room > slots.size:
            slots = np.full(1 << (2 * room).bit_length(), -1, np.int32)
            fill_slots(hashes, n, slots)
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


def _enlarged(array: np.ndarray, size: int) -> np.ndarray:
    """Return an array of at least this size, half as large again as it was if it is too small."""
    if size <= array.size:
        return array
    larger = np.empty(max(size, 3 * array.size // 2), array.dtype)
    larger[: array.size] = array
    return larger

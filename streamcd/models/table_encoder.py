"""Encoding of tables: from batches of Arrow columns to sparse rows, as an `Encoding` describes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import DataError
from ..dataset.arrow_columns import (
    Strings,
    arrow_strings,
    dictionary_of,
    flat_columns,
    flat_fields,
    frame_reader,
    lists_of,
    numbers_of,
    strings_of,
    type_name,
)
from ..dataset.derived_columns import names_of_numbers, seconds_of
from ..kernels import tables as kernels
from ..kernels.sparse_rows import CSR
from .encoding import Column, Encoding, check_columns
from .string_table import StringTable
from .unknown_values import Unknown, add_unknown, unknown_values

BLOCK_CELLS = 1 << 18
"""Cells of a table encoded at a time: their numbers and entries stay in the processor's cache."""

_ASKED_BY = 5  # frames up from `encode_frame`: the caller of a method of `Model`
_KINDS = {"number": kernels.NUMBER, "category": kernels.CATEGORY, "hashed": kernels.HASHED}


class EncodedRows(NamedTuple):
    """Consecutive rows of a batch, from its row `start` on, in compressed sparse rows."""

    start: int
    indptr: np.ndarray
    feature: np.ndarray
    value: np.ndarray


class TableEncoder:
    """Encoder of batches of a table.

    With `table`, which numbers categories in order of appearance, codes are provisional: those of numbers and indicators
    come first, then the categories. Without it categories are those of the encoding, codes are features, and unknown
    categories are counted in `unseen`. Indices of a sparse column must be in ``sparse_least:sparse_end``; larger ones are
    counted if `ignore_beyond`, else refused.
    """

    def __init__(
        self,
        encoding: Encoding,
        value_dtype: Any,
        table: StringTable | None = None,
        sparse_least: int = 0,
        sparse_end: int = kernels.LARGEST_INDEX + 1,
        ignore_beyond: bool = False,
        message: Callable[[int], str] = lambda row: f"row {row + 1}",
    ) -> None:
        self.encoding, self.message = encoding, message
        self._value_dtype, self._grows = np.dtype(value_dtype), table is not None
        self._sparse = (sparse_least, sparse_end, ignore_beyond)
        self._dictionaries: dict[str, tuple[Any, np.ndarray]] = {}
        self._features = np.empty(0, np.int64)
        self._table = StringTable() if table is None else table
        if table is None and encoding.categories is not None:
            found = [np.empty(0, np.int64)]
            for number, first, categories in encoding.categories_of_columns():
                self._table.number(number, categories, np.empty(0, np.bool_), True, "")
                found.append(first + np.arange(categories.size))
            self._features = np.concatenate(found)
        # codes of numbers and indicators, while categories are provisional
        self._n_static = encoding.n_static
        self._columns, self._layout = self._make_layout()
        self.state = np.zeros(kernels.N_STATE, np.int64)
        self.state[kernels.MAX_INDEX] = -1
        self.unseen: dict[str, Unknown] = {}  # values of unknown categories, by column
        self.n_missing = np.zeros(len(encoding.columns), np.int64)  # values, by column
        n_cells = max(len(self._columns), 1)
        # of wide tables a few rows more, since each block calls Python once a column
        self._block_rows = max(BLOCK_CELLS // n_cells, min(64, 8 * BLOCK_CELLS // n_cells), 1)

    @property
    def unindicated(self) -> dict[str, Unknown]:
        """Missing values so far in columns that had none in training, and so have no indicator."""
        numbers = [] if self._grows else self.encoding.unindicated(self.n_missing)
        return {self.encoding.columns[k].name: Unknown(int(self.n_missing[k]), "") for k in numbers}

    @property
    def largest_index(self) -> int:
        """The largest code so far."""
        if self.encoding.sparse is not None:
            return int(self.state[kernels.MAX_INDEX]) + self.sparse_start
        if self._grows and self.encoding.n_buckets:
            return self.sparse_start - 1
        if self._grows:
            return self._n_static + self._table.size - 1
        return self.encoding.sparse_start - 1

    @property
    def sparse_start(self) -> int:
        """Code of a sparse column's index 0."""
        return self._tail_start + self.encoding.n_buckets

    @property
    def _tail_start(self) -> int:
        """Code of the first bucket of hashed strings."""
        if not self._grows:
            return self.encoding.bucket_start
        return kernels.TAIL_CODES if self.encoding.numbers_late else self._n_static

    def _make_layout(self) -> tuple[list[tuple[int, Column]], kernels.Layout]:
        """Number the columns but those of sparse rows, the hashed ones last."""
        encoding = self.encoding.without_counts() if self._grows else self.encoding
        starts = encoding.first_features()
        chosen = [(k, column) for k, column in enumerate(encoding.columns) if column.kind != "sparse"]
        chosen.sort(key=lambda item: item[1].kind == "hashed")
        known = encoding.indicator_features()  # while the encoding grows, codes for all that may have one
        otherwise = kernels.REFUSED if encoding.missing == "error" else kernels.NO_INDICATOR
        is_number = np.array([column.kind == "number" for _, column in chosen], np.bool_)
        tail = self._tail_start
        features = [tail if column.kind == "hashed" else starts[k] for k, column in chosen]
        return chosen, kernels.Layout(
            np.array([_KINDS[column.kind] for _, column in chosen], np.int64),
            np.where(is_number, np.cumsum(is_number), np.cumsum(~is_number)) - 1,
            np.array(features, np.int64),
            np.array([known.get(k, otherwise) for k, _ in chosen], np.int64),
        )

    def encode(self, batch: Any) -> Iterator[EncodedRows]:
        """Encode an Arrow record batch that has the encoding's columns, a block of rows at a time."""
        for start in range(0, batch.num_rows, self._block_rows):
            yield self._encode(batch.slice(start, self._block_rows), start)

    def _encode(self, block: Any, start: int) -> EncodedRows:
        found = self._table_rows(block, start) if self._columns else None
        sparse = self.encoding.sparse
        if sparse is None:
            assert found is not None
            return EncodedRows(start, *found)
        listed = self._sparse_rows(block, sparse, start)
        return EncodedRows(start, *(listed if found is None else _joined(found, listed)))

    def _table_rows(self, block: Any, start: int) -> CSR:
        layout, n_rows = self._layout, block.num_rows
        n_numbers = int((layout.kinds == kernels.NUMBER).sum())
        values = np.empty((n_numbers, n_rows))
        codes = np.empty((len(self._columns) - n_numbers, n_rows), np.int64)
        for (number, column), line in zip(self._columns, layout.lines.tolist(), strict=True):
            if column.kind == "number":
                values[line] = self._numbers(block, column)
                self.n_missing[number] += np.count_nonzero(np.isnan(values[line]))
            else:
                missing = self._codes(block, number, column, codes[line])
                self.n_missing[number] += missing
        room = CSR.room(n_rows, n_rows * len(self._columns), self._value_dtype)
        n_unseen = int(self.state[kernels.UNSEEN])
        status = kernels.table_rows(values, codes, layout, self.encoding.bits, room, self.state)
        if status != kernels.OK:
            row, at = int(self.state[kernels.ROW]), int(self.state[kernels.COLUMN])
            name = self._columns[at][1].name
            self._refuse(status, start + row, name, block.column(name)[row].as_py())
        if self.state[kernels.UNSEEN] > n_unseen:
            self._count_unseen(block, codes)
        return room.cut()

    def _count_unseen(self, block: Any, codes: np.ndarray) -> None:
        """Count the values of a block that have no code, by column."""
        of_strings = [column for _, column in self._columns if column.kind != "number"]
        for column, mine in zip(of_strings, codes, strict=True):
            rows = np.flatnonzero(mine == kernels.UNKNOWN)
            if rows.size:
                example = str(block.column(column.name)[int(rows[0])].as_py())
                add_unknown(self.unseen, {column.name: Unknown(rows.size, example)})

    def _numbers(self, block: Any, column: Column) -> np.ndarray:
        """Return the numbers of a column: NaN where they are missing."""
        if column.form == "seconds":
            return seconds_of(self._column(block, column.name, "time"), column.origin)
        return numbers_of(self._column(block, column.name, column.form or "number"))

    def _column(self, block: Any, name: str, *kinds: str) -> Any:
        array = block.column(name)
        if type_name(array.type) not in (*kinds, "nothing"):
            raise DataError(
                f"{self.message(0)}: column {name!r}: expected {' or '.join(f'{kind}s' for kind in kinds)}, found "
                f"{array.type}; give the column the type that it has elsewhere"
            )
        return array

    def _codes(self, block: Any, number: int, column: Column, out: np.ndarray) -> int:
        """Write the codes of a block's strings, or numbers, to `out`; returns how many are missing."""
        array = self._column(block, column.name, "string", "number")
        found = names_of_numbers(array) if type_name(array.type) == "number" else dictionary_of(array)
        if found is None:
            out[:] = self._string_codes(number, column, *strings_of(array))
            return int(array.null_count)
        out[:] = self._dictionary_codes(number, column, found[0])[found[1]]  # -1 is null's
        return int(np.count_nonzero(found[1] < 0))

    def _dictionary_codes(self, number: int, column: Column, values: Any) -> np.ndarray:
        """Return the codes of a dictionary's values and, last, of null; cached while the dictionary stays the same."""
        known = self._dictionaries.get(column.name)
        if known is None or not (known[0] is values or known[0].equals(values)):
            null = np.array([self._missing_code(column)])
            codes = np.concatenate([self._string_codes(number, column, *strings_of(values)), null])
            known = self._dictionaries[column.name] = (values, codes)
        return known[1]

    def _missing_code(self, column: Column) -> int:
        if column.kind == "hashed" and self.encoding.missing == "indicator":
            strings, valid = strings_of(arrow_strings([""]))
            return int(self._hashes(f"{column.name} is missing".encode(), strings, valid)[0])
        return kernels.MISSING

    def _string_codes(self, number: int, column: Column, strings: Strings, valid: np.ndarray) -> np.ndarray:
        if column.kind == "hashed":
            codes = self._hashes(f"{column.name}=".encode(), strings, valid)
            if self.encoding.missing == "indicator" and valid.size:
                codes[~valid] = self._missing_code(column)
            return codes
        if self._grows:
            codes = self._table.number(number, strings, valid, True, column.name)
            return np.add(codes, self._n_static, out=codes, where=codes >= 0)
        codes = self._table.number(number, strings, valid, False, column.name)
        known = codes >= 0
        codes[known] = self._features[codes[known]]
        return codes

    def _hashes(self, prefix: bytes, strings: Strings, valid: np.ndarray) -> np.ndarray:
        hashes = np.empty(strings.size, np.int64)
        kernels.murmur_strings(np.frombuffer(prefix, np.uint8), (*strings, valid), hashes)
        return hashes

    def _sparse_rows(self, block: Any, column: Column, start: int) -> CSR:
        starts, index = self._list(block, column.name)
        ends, value = self._list(block, column.values)
        if not np.array_equal(starts, ends):
            row = int(np.flatnonzero(np.diff(starts) != np.diff(ends))[0])
            raise DataError(
                f"{self.message(start + row)}: expected lists of one length in {column.name!r} and {column.values!r}, "
                f"found {int(np.diff(starts)[row])} and {int(np.diff(ends)[row])} elements; correct the row"
            )
        index, value = sorted_rows(starts, index, value)
        room = CSR.room(block.num_rows, index.size, self._value_dtype)
        status = kernels.sparse_rows(CSR(starts, index, value), *self._sparse, room, self.state)
        if status != kernels.OK:
            row, at = int(self.state[kernels.ROW]), int(self.state[kernels.COLUMN])
            of_index = status >= kernels.NEGATIVE_INDEX
            name, found = (column.name, index[at]) if of_index else (column.values, value[at])
            self._refuse(status, start + row, name, found)
        room = room.cut()
        room.feature[:] += self.sparse_start
        return room

    def _list(self, block: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
        array = block.column(name)
        if type_name(array.type) != "list" or type_name(array.type.value_type) not in ("number", "nothing"):
            raise DataError(
                f"{self.message(0)}: column {name!r}: expected lists of numbers, found {array.type}; "
                "--features INDICES:VALUES names two columns of lists"
            )
        try:
            starts, elements = lists_of(array, name)
        except ValueError as error:
            raise DataError(f"{self.message(0)}: {error}") from None
        return starts, numbers_of(elements)

    def _refuse(self, status: int, row: int, name: str, found: Any) -> None:
        raise DataError(
            f"{self.message(row)}: column {name!r}: "
            + describe_refusal(status, found, self._value_dtype, *self._sparse[:2])
        )


def _joined(rows: CSR, more: CSR) -> CSR:
    """Join the entries of every row of two tables, the second one's after the first one's."""
    out = CSR.room(rows.indptr.size - 1, rows.feature.size + more.feature.size, rows.value.dtype)
    np.add(rows.indptr, more.indptr, out=out.indptr)
    places = (
        np.repeat(more.indptr[:-1], np.diff(rows.indptr)) + np.arange(rows.feature.size),
        np.repeat(rows.indptr[1:], np.diff(more.indptr)) + np.arange(more.feature.size),
    )
    for part, place in zip((rows, more), places, strict=True):
        out.feature[place], out.value[place] = part.feature, part.value
    return out


def sorted_rows(starts: np.ndarray, index: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort the entries of rows ``starts[r]:starts[r + 1]`` by index."""
    descends = np.zeros(index.size + 1, np.bool_)
    np.less(index[1:], index[:-1], out=descends[1:-1])
    descends[starts] = False  # between rows
    if not descends.any():
        return index, value
    row = np.repeat(np.arange(starts.size - 1), np.diff(starts))
    order = np.lexsort((index[: row.size], row))
    return index[order], value[order]


def describe_refusal(status: int, found: Any, value_dtype: np.dtype, least: int = 0, end: int = 0) -> str:
    """Describe a refusal by a kernel of `kernels.tables`, with advice."""
    smaller = value_dtype == np.float32
    advice = "convert with --dtype float64" if smaller else "rescale it"
    complaints = {
        kernels.NULL_VALUE: "expected a value, found none; give --missing zero (or indicator), or correct the row",
        kernels.INFINITE: f"expected a finite value, found {found}; correct or remove the row",
        kernels.OUT_OF_RANGE: f"expected a number that is finite in {value_dtype}, found {found}; {advice}",
        kernels.NEGATIVE_INDEX: f"expected indices from {least} on, found {found}; give --index-base, or correct the row",
        kernels.HUGE_INDEX: f"expected indices up to 2^62, found {found}; renumber the features",
        kernels.BEYOND_WIDTH: f"expected indices up to {end - 1} (the number of features given), found {found}; "
        "give a larger --n-features",
    }
    return complaints[status]


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
    encoder = TableEncoder(encoding, np.float64, None, index_base, end, ignore_beyond=True)
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

"""Columns kept beside the rows of a dataset, with their types, in the order of its source: a Parquet file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..core.errors import DataError
from ..core.storage import Location
from .arrow_columns import numbers_of, parquet_file, reading

KEPT_FILE = "kept.parquet"
"""File of the kept columns, in a dataset."""

_GROUP_ROWS = 1 << 14
"""Rows in a row group; fixed, so that a file's bytes follow from its content."""


def _plain(array: Any) -> Any:
    """Return an array without a dictionary, strings in one type; where there are only nulls, they are strings."""
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    is_text = (pa.types.is_string, pa.types.is_string_view, pa.types.is_null)
    return array.cast(pa.large_string()) if any(is_it(array.type) for is_it in is_text) else array


class KeptWriter:
    """Writer of kept columns, batch by batch; the first one decides their types."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: Any = None
        self._waiting: list[Any] = []
        self._n_waiting = 0

    def append(self, batch: Any) -> None:
        """Take the columns of an Arrow record batch."""
        table = pa.table([_plain(column) for column in batch.columns], names=batch.schema.names)
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._path, table.schema, compression="zstd", write_page_checksum=True
            )
        self._waiting.append(self._in_schema(table))
        self._n_waiting += table.num_rows
        while self._n_waiting >= _GROUP_ROWS:
            self._write()

    def _in_schema(self, table: Any) -> Any:
        schema = self._writer.schema
        try:
            return table.cast(schema)
        except (pa.ArrowException, ValueError):
            found = zip(schema, table.schema, strict=True)
            first, other = next(pair for pair in found if pair[0].type != pair[1].type)
            raise DataError(
                f"column {first.name!r}: expected {first.type}, as in the first rows, found {other.type}; give the "
                "column one type"
            ) from None

    def _write(self) -> None:
        waiting = pa.concat_tables(self._waiting)
        self._writer.write_table(waiting.slice(0, _GROUP_ROWS), _GROUP_ROWS)
        self._waiting = [waiting.slice(_GROUP_ROWS)]
        self._n_waiting = self._waiting[0].num_rows

    def close(self) -> None:
        """Write what waits, and close the file; without rows there is none."""
        if self._writer is not None:
            if self._n_waiting:
                self._write()
            self._writer.close()


def join_kept(parts: Iterable[Location], out: Path) -> None:
    """Write the rows of several files one after the other."""
    writer = KeptWriter(out)
    for part in parts:
        for batch in _batches(part, None):
            writer.append(batch)
    writer.close()


def _batches(path: Location, names: Sequence[str] | None) -> Iterator[Any]:
    with reading(path), parquet_file(path, pre_buffer=False, page_checksum_verification=True) as file:
        yield from file.iter_batches(_GROUP_ROWS, columns=names, use_threads=False)


def kept_values(path: Location, name: str) -> Iterator[Any]:
    """Yield a kept column of a dataset, in the order of its source, as Arrow arrays."""
    for batch in _batches(path, [name]):
        yield batch.column(0)


def count_kept(path: Location) -> int:
    """Return the number of rows of the file."""
    with reading(path), parquet_file(path) as file:
        return int(file.metadata.num_rows)


def rows_of(batch: Any, start: int, stop: int) -> Any:
    """Copy some rows of a batch; a slice would be sent to another process with all of them."""
    part = batch.slice(start, stop - start)
    return part.take(pa.array(range(part.num_rows), pa.int64()))


def count_values(array: Any, counts: dict[str | None, int]) -> None:
    """Add the different values of a part of a column, by their text, to their counts; None for missing ones."""
    for pair in array.cast(pa.large_string()).value_counts():
        value = pair["values"].as_py()
        counts[value] = counts.get(value, 0) + pair["counts"].as_py()


def numbers_of_values(arrays: Iterable[Any], numbers: Mapping[str | None, int]) -> Iterator[np.ndarray]:
    """Yield the numbers of a column's values, by their text."""
    for array in arrays:
        coded = array.cast(pa.large_string()).dictionary_encode("encode")
        own = np.array([numbers[value] for value in coded.dictionary.to_pylist()], np.int64)
        yield own[numbers_of(coded.indices)]


class InOrder:
    """Values of a column that come in blocks, taken in their order by other numbers; `more` has those not added."""

    def __init__(self, more: Iterator[Any] | None = None) -> None:
        self._more, self._held = more or iter(()), list[Any]()
        self.n_held = 0

    def add(self, values: Any) -> None:
        self._held.append(_plain(values))
        self.n_held += len(values)

    def take(self, n: int) -> Any:
        """Return the next values, as one Arrow array."""
        while self.n_held < n:
            self.add(next(self._more))
        values = self._held[0]
        if len(self._held) > 1:
            try:
                values = pa.concat_arrays([array.cast(values.type) for array in self._held])
            except pa.ArrowException:
                found = next(array.type for array in self._held if array.type != values.type)
                raise DataError(
                    f"column of ids: expected {values.type}, as in the first rows, found {found}; give the column one type"
                ) from None
        self._held, self.n_held = [values.slice(n)], self.n_held - n
        return values.slice(0, n)


def texts_of(values: Any) -> list[str]:
    """Format values as text, missing ones as nothing."""
    return [text or "" for text in values.cast(pa.large_string()).to_pylist()]

"""Columns kept beside the rows of a dataset, with their types, in the order of its source; strings of categories.

Both are Parquet files whose row groups have a fixed number of rows, so that a file's bytes follow from its content.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..core.errors import DataError
from ..core.memory_budget import forget
from ..core.storage import Location
from .arrow_columns import (
    Strings,
    dictionary_of,
    joined_arrays,
    no_strings,
    parquet_file,
    read_tables,
    reading,
    strings_of,
)
from .source_features import GROUP_FEATURES
from .writer import write_table

KEPT_FILE = "kept.parquet"
"""File of the kept columns, in a dataset."""

_GROUP_ROWS = 1 << 14

_CATEGORIES = pa.schema(
    [pa.field("column", pa.int32(), nullable=False), pa.field("category", pa.large_string(), nullable=False)]
)


def count_rows(path: Location) -> int:
    """Return the number of rows of a file."""
    with reading(path), parquet_file(path, pre_buffer=False) as file:
        return int(file.metadata.num_rows)


# ---------------------------------------------------------------------------------------------------------------------
# Kept columns


def _plain(array: Any) -> Any:
    """Return an array without a dictionary, strings in one type; where there are only nulls, they are strings."""
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    is_text = (pa.types.is_string, pa.types.is_string_view, pa.types.is_null)
    return array.cast(pa.large_string()) if any(is_it(array.type) for is_it in is_text) else array


def _as_first(array: Any, type_: pa.DataType, name: str) -> Any:
    """Return an array in the type of the first rows."""
    try:
        return array.cast(type_)
    except (pa.ArrowException, ValueError):
        raise DataError(
            f"column {name}: expected {type_}, as in the first rows, found {array.type}; give the column one type"
        ) from None


class KeptWriter:
    """Writer of kept columns, batch by batch; the first one decides their types."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: Any = None
        self._waiting: Any = None

    def append(self, batch: Any) -> None:
        """Take the columns of an Arrow record batch."""
        table = pa.table([_plain(column) for column in batch.columns], names=batch.schema.names)
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._path, table.schema, compression="zstd", write_page_checksum=True
            )
            self._waiting = table.slice(0, 0)
        fields = zip(table.columns, self._writer.schema, strict=True)
        columns = [_as_first(column, field.type, repr(field.name)) for column, field in fields]
        waiting = pa.concat_tables([self._waiting, pa.table(columns, schema=self._writer.schema)])
        n_rows = waiting.num_rows - waiting.num_rows % _GROUP_ROWS
        if n_rows:
            self._writer.write_table(waiting.slice(0, n_rows), _GROUP_ROWS)
        self._waiting = waiting.slice(n_rows)

    def close(self) -> None:
        """Write what waits, and close the file; without rows there is none."""
        if self._writer is not None:
            if self._waiting.num_rows:
                self._writer.write_table(self._waiting, _GROUP_ROWS)
            self._writer.close()


def join_kept(parts: Iterable[Location], out: Path) -> None:
    """Write the rows of several files one after the other."""
    writer = KeptWriter(out)
    for part in parts:
        for batch in kept_batches(part):
            writer.append(batch)
    writer.close()


def kept_batches(path: Location, names: Sequence[str] | None = None) -> Iterator[Any]:
    """Yield kept columns, in the order of the source, as record batches."""
    with reading(path), parquet_file(path, pre_buffer=False, page_checksum_verification=True) as file:
        yield from file.iter_batches(_GROUP_ROWS, columns=names, use_threads=False)


def rows_of(batch: Any, start: int, stop: int) -> Any:
    """Copy some rows of a batch; a slice would be sent to another process with all of them."""
    part = batch.slice(start, stop - start)
    return part.take(pa.array(range(part.num_rows), pa.int64()))


def coded_texts(array: Any) -> tuple[list[str], np.ndarray]:
    """Return the different values of a part of a column, as text, and the place of each row's among them; -1 for missing."""
    texts, codes = dictionary_of(array.cast(pa.large_string()))
    return texts.to_pylist(), codes


class InOrder:
    """Values of a column that come in blocks, taken in their order by other numbers; `more` has those not added."""

    def __init__(self, more: Iterator[Any] | None = None) -> None:
        self._more = more or iter(())
        self._held = list[Any]()
        self.n_held = 0

    def add(self, values: Any) -> None:
        self._held.append(_plain(values))
        self.n_held += len(values)

    def take(self, n: int) -> Any:
        """Return the next values, as one Arrow array."""
        while self.n_held < n:
            self.add(next(self._more))
        first = self._held[0].type
        values = joined_arrays([_as_first(array, first, "of ids") for array in self._held])
        self.n_held -= n
        self._held = [values.slice(n)]
        return values.slice(0, n)


# ---------------------------------------------------------------------------------------------------------------------
# Categories


class StoredStrings:
    """Strings in a file that `write_categories` wrote, of which a row group is in memory at a time."""

    def __init__(self, path: Location) -> None:
        self._path = path
        self.size = count_rows(path)
        self._group = -1
        self._strings = no_strings()

    def slice(self, start: int, stop: int) -> Strings:
        """Return the strings ``start:stop``, all of one row group."""
        group, first = divmod(start, GROUP_FEATURES)
        if group != self._group:
            options = {"pre_buffer": False, "page_checksum_verification": True}
            with reading(self._path), parquet_file(self._path, **options) as file:
                column = file.read_row_group(group, columns=["category"], use_threads=False).column(0)
                self._group = group
                self._strings = strings_of(joined_arrays(column.chunks))[0]
        return self._strings.slice(first, first + stop - start)

    def text(self, number: int) -> str:
        """Read a string by its number."""
        return self.slice(number, number + 1).text(0)

    def read(self) -> Strings:
        """Read all of them."""
        chunks = [
            chunk for table in read_tables(self._path, ["category"]) for chunk in table.column(0).chunks
        ]
        return strings_of(joined_arrays(chunks))[0] if chunks else no_strings()


def write_categories(path: Path, categories: Strings | StoredStrings, ends: np.ndarray) -> dict[str, Any]:
    """Write the categories of columns, of which each has those up to its number in `ends`.

    What they take in mapped files is let go. Returns what a manifest says of the file.
    """

    def blocks() -> Iterator[dict[str, Any]]:
        for start in range(0, categories.size, GROUP_FEATURES):
            stop = min(start + GROUP_FEATURES, categories.size)
            strings = categories.slice(start, stop)
            column = np.searchsorted(ends, np.arange(start, stop), "right")
            yield {"column": column, "category": strings.to_arrow()}
            for array in strings:
                forget(array)

    return write_table(path, _CATEGORIES, blocks(), "zstd")

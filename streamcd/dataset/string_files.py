"""Columns of strings in Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..core.errors import DataError
from ..core.mapped_arrays import forget
from ..core.storage import Location
from .arrow_columns import Strings, arrow_array, joined_arrays, no_strings, strings_of
from .parquet import parquet_file, reading

_GROUP_STRINGS = 1 << 16
"""Strings in a row group; fixed, so that a file's bytes follow from its content."""


def write_strings(
    path: Path, name: str, strings: Strings, columns_of: Callable[[slice], dict[str, np.ndarray]]
) -> None:
    """Write a Parquet file of a column of strings after columns of numbers, which `columns_of` returns for some rows.

    What strings take in mapped files is let go.
    """
    fields = [
        pa.field(key, pa.from_numpy_dtype(column.dtype), False)
        for key, column in columns_of(slice(0, 0)).items()
    ]
    schema = pa.schema([*fields, pa.field(name, pa.large_string(), False)])
    with (
        open(path, "wb") as file,
        pq.ParquetWriter(file, schema, compression="zstd", store_schema=False) as writer,
    ):
        for start in range(0, max(strings.size, 1), _GROUP_STRINGS):
            stop = min(start + _GROUP_STRINGS, strings.size)
            columns = columns_of(slice(start, stop))
            arrays = [arrow_array(columns[field.name], field.type) for field in fields]
            arrays.append(strings.slice(start, stop).to_arrow())
            writer.write_table(pa.table(arrays, schema=schema))
            for column in (*strings, *columns.values()):
                forget(column)


def join_files(paths: Sequence[Location], joined: Path) -> None:
    """Join files that `write_strings` wrote into one, a row group at a time."""
    with ExitStack() as stack:
        file, writer, rest = stack.enter_context(open(joined, "wb")), None, None
        for _, table in _tables(paths):
            rest = table if rest is None else pa.concat_tables([rest, table])
            if writer is None:
                writer = stack.enter_context(
                    pq.ParquetWriter(file, rest.schema, compression="zstd", store_schema=False)
                )
            while rest.num_rows >= _GROUP_STRINGS:
                writer.write_table(rest.slice(0, _GROUP_STRINGS))
                rest = rest.slice(_GROUP_STRINGS)
        if writer is not None and rest is not None and rest.num_rows:
            writer.write_table(rest)


def read_strings(paths: Sequence[Location], name: str) -> Strings:
    """Read a column of strings from files that `write_strings` wrote, one after the other."""
    parts = [strings_of(chunk)[0] for chunk in _chunks(paths, name)]
    ends, data, total = [np.zeros(1, np.int64)], [], 0
    for part in parts:
        first, stop = int(part.offsets[0]), int(part.offsets[-1])
        data.append(part.data[first:stop])
        ends.append(part.offsets[1:] - first + total)
        total += stop - first
    return Strings(np.concatenate(data) if data else np.empty(0, np.uint8), np.concatenate(ends))


class StoredStrings:
    """A column of strings in files that `write_strings` wrote, of which a row group is in memory at a time."""

    def __init__(self, paths: Sequence[Location], name: str) -> None:
        self._paths, self._name = paths, name
        self._start, self._strings = 0, no_strings()

    def text(self, number: int) -> str:
        """Read a string by its number."""
        if not 0 <= number - self._start < self._strings.size:
            self._find(number)
        return self._strings.text(number - self._start)

    def _find(self, number: int) -> None:
        for start, table in _tables(self._paths, [self._name], number):
            self._start = start
            self._strings, _ = strings_of(joined_arrays(table.column(self._name).chunks))
            return
        raise DataError(
            f"{self._paths[-1]}: expected more than {number:,} strings, found {count_strings(self._paths):,}; convert the "
            "data again"
        )


def count_strings(paths: Sequence[Location]) -> int:
    """Count the strings in files that `write_strings` wrote."""
    n_strings = 0
    for path in paths:
        with reading(path), parquet_file(path, pre_buffer=False) as reader:
            n_strings += reader.metadata.num_rows
    return n_strings


def _chunks(paths: Sequence[Location], name: str) -> Iterator[Any]:
    for _, table in _tables(paths, [name]):
        yield from table.column(name).chunks


def _tables(
    paths: Sequence[Location], columns: list[str] | None = None, place: int | None = None
) -> Iterator[tuple[int, pa.Table]]:
    """Yield the row groups of files, or that alone which has the string `place`, after the number of its first string."""
    start = 0
    for path in paths:
        with reading(path), parquet_file(path, pre_buffer=False) as reader:
            for group in range(reader.num_row_groups):
                stop = start + reader.metadata.row_group(group).num_rows
                if place is None or start <= place < stop:
                    yield start, reader.read_row_group(group, columns=columns, use_threads=False)
                start = stop

"""Columns of strings in Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..core.errors import DataError
from ..core.memory_budget import forget
from ..core.storage import Location
from .arrow_columns import Strings, joined_arrays, no_strings, parquet_file, read_tables, reading, strings_of
from .writer import write_table

_GROUP_STRINGS = 1 << 16
"""Strings in a row group; fixed, so that a file's bytes follow from its content."""


def write_strings(
    path: Path, name: str, strings: Strings, columns_of: Callable[[slice], dict[str, np.ndarray]]
) -> dict[str, Any]:
    """Write a file of a column of strings after columns of numbers, which `columns_of` returns for some rows.

    What strings take in mapped files is let go. Returns what a manifest says of the file.
    """
    numbers = columns_of(slice(0, 0)).items()
    fields = [pa.field(key, pa.from_numpy_dtype(column.dtype), False) for key, column in numbers]
    schema = pa.schema([*fields, pa.field(name, pa.large_string(), False)])

    def blocks() -> Iterator[dict[str, Any]]:
        for start in range(0, strings.size, _GROUP_STRINGS):
            stop = min(start + _GROUP_STRINGS, strings.size)
            columns = columns_of(slice(start, stop))
            yield {**columns, name: strings.slice(start, stop).to_arrow()}
            for column in (*strings, *columns.values()):
                forget(column)

    return write_table(path, schema, blocks(), "zstd")


def join_files(paths: Sequence[Location], joined: Path) -> dict[str, Any]:
    """Join files that `write_strings` wrote into one, a row group at a time."""
    with reading(paths[0]), parquet_file(paths[0]) as reader:
        schema = reader.schema_arrow
    tables = (table for path in paths for table in read_tables(path))
    blocks = ({name: joined_arrays(table.column(name).chunks) for name in schema.names} for table in tables)
    return write_table(joined, schema, blocks, "zstd")


def read_strings(paths: Sequence[Location], name: str) -> Strings:
    """Read a column of strings from files that `write_strings` wrote, one after the other."""
    tables = [table for path in paths for table in read_tables(path, [name])]
    chunks = [chunk for table in tables for chunk in table.column(name).chunks]
    return strings_of(joined_arrays(chunks))[0] if chunks else no_strings()


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
        start = 0
        for path in self._paths:
            with reading(path), parquet_file(path, pre_buffer=False) as reader:
                for group in range(reader.num_row_groups):
                    stop = start + reader.metadata.row_group(group).num_rows
                    if start <= number < stop:
                        table = reader.read_row_group(group, columns=[self._name], use_threads=False)
                        self._start = start
                        self._strings, _ = strings_of(joined_arrays(table.column(self._name).chunks))
                        return
                    start = stop
        raise DataError(
            f"{self._paths[-1]}: expected more than {number:,} strings, found {start:,}; convert the data again"
        )


def count_strings(paths: Sequence[Location]) -> int:
    """Count the strings in files that `write_strings` wrote."""
    n_strings = 0
    for path in paths:
        with reading(path), parquet_file(path, pre_buffer=False) as reader:
            n_strings += reader.metadata.num_rows
    return n_strings

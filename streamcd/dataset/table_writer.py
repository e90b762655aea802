"""Writing of Parquet tables with checksums: single files, the files of a part, chunk table and manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..core.atomic_files import sync
from ..core.metadata import Kind, write_metadata
from .arrow_columns import arrow_array
from .content import TableContent
from .direct_writer import DirectWriter
from .parquet import NO_CRC, extent_of
from .schema import Schema

_PAGE_BYTES = 1 << 20
_BATCH_ROWS = 1 << 16  # encoded at a time: with 2^10, Arrow's default, chunks take a tenth longer

_SAMPLE_ROWS, _FEW_ROWS = 1 << 17, 1 << 15  # of the first row group; of fewer rows nothing is to be gained
_LEAST_GAIN = 0.2
"""Least share of the bytes of plain numbers for which "auto" compresses them: plain pages are decoded in two fifths of the
time, so bytes have to be worth more than a processor where they were not asked for."""


class TableWriter:
    """One Parquet file being written, a row group per call.

    If `first_column` is given, the CRC-32 of each row group's bytes from that column on is recorded: those are the bytes
    that training reads at once, which can so be verified before they are decoded. Every row group's least and greatest
    number is recorded of the columns named by `statistics`, by default all. With "auto" the first row group decides
    about the compression of each column. Integers that ascend, by name, are stored as differences, which take hardly a
    byte and are decoded three times as fast. Rows are added to `content`, whose digest is recorded then.
    """

    def __init__(
        self,
        path: Path,
        schema: Schema,
        compression: str,
        content: TableContent | None = None,
        first_column: str = "",
        statistics: list[str] | bool = True,
        ascending: Sequence[str] = (),
    ) -> None:
        self.schema, self._first_column, self._statistics = schema, first_column, statistics
        self._ascending = ascending
        self._content = content
        self.file, self._compression = DirectWriter(path), compression
        self._opened: pq.ParquetWriter | None = None

    def write(self, **columns: Any) -> None:
        arrays = [arrow_array(columns[field.name], field.type) for field in self.schema]
        table = pa.table(arrays, schema=self.schema)
        self._writer(table).write_table(table, row_group_size=max(1, table.num_rows))
        if self._content is not None:
            self._content.add(table)

    def _writer(self, first: pa.Table) -> pq.ParquetWriter:
        if self._opened is None:
            file = pa.PythonFile(self.file, mode="w")
            codec = choose_codecs(first) if self._compression == "auto" else self._compression
            self._opened = _parquet_writer(file, self.schema, codec, self._statistics, self._ascending)
        return self._opened

    def close(self) -> dict[str, Any]:
        writer = self._opened or self._writer(self.schema.empty_table())
        writer.close()
        self.file.close()
        found = {"bytes": self.file.n_bytes, "checksum": self.file.checksum}
        if self._content is not None:
            found["content"] = self._content.text()
        if self._first_column:
            metadata, first = writer.writer.metadata, self.schema.names.index(self._first_column)
            groups = range(metadata.num_row_groups)
            found["crcs"] = self.file.crcs(extent_of(metadata, group, first) for group in groups)
        return found


def _parquet_writer(
    file: Any,
    schema: Schema,
    codec: str | dict[str, str],
    statistics: list[str] | bool,
    ascending: Sequence[str] = (),
) -> pq.ParquetWriter:
    encodings = dict.fromkeys(schema.names, "PLAIN") | dict.fromkeys(ascending, "DELTA_BINARY_PACKED")
    return pq.ParquetWriter(
        file,
        schema,
        compression=codec,
        column_encoding=encodings if ascending else None,
        use_dictionary=False,
        write_statistics=statistics,
        write_page_checksum=True,
        data_page_size=_PAGE_BYTES,
        write_batch_size=_BATCH_ROWS,
        store_schema=False,
    )


def choose_codecs(table: pa.Table) -> str | dict[str, str]:
    """Choose the compression of the columns of a table: LZ4 where a sample of the numbers shrinks by a fifth, else none."""
    if table.num_rows < _FEW_ROWS or not all(map(pa.types.is_primitive, table.schema.types)):
        return "lz4"  # by name it would miss the items of lists
    sample = table.slice(0, _SAMPLE_ROWS)
    with _parquet_writer(pa.BufferOutputStream(), table.schema, "lz4", False) as writer:
        writer.write_table(sample, row_group_size=sample.num_rows)
    group = writer.writer.metadata.row_group(0)
    sizes = {
        name: group.column(number).total_compressed_size for number, name in enumerate(table.schema.names)
    }
    return {
        name: "lz4" if n_bytes <= (1.0 - _LEAST_GAIN) * sample[name].nbytes else "none"
        for name, n_bytes in sizes.items()
    }


class PartFiles:
    """The files of one part being written, by table: a row group in each for every chunk."""

    def __init__(
        self,
        path: Path,
        names: Mapping[str, str],
        schemas: Mapping[str, Schema],
        compression: str,
        first_columns: Mapping[str, str],
    ) -> None:
        self.names = names
        # those of entries cost time: only where they tell more than those of rows do, in the column they are sorted by
        sorted_by = {"entries": [schemas["entries"].names[0]]}
        self._writers = {
            table: TableWriter(
                path / name,
                schemas[table],
                compression,
                first_column=first_columns[table],
                statistics=sorted_by.get(table, True),
            )
            for table, name in names.items()
        }

    def write(self, table: str, **columns: np.ndarray) -> None:
        """Write a chunk's row group of one table."""
        self._writers[table].write(**columns)

    def close(self) -> dict[str, Any]:
        """Close the files; returns bytes and checksums by the manifest's keys, and the CRCs of the chunks as ``…_crcs``."""
        figures = {table: writer.close() for table, writer in self._writers.items()}
        return {f"{table}_{key}": value for table, found in figures.items() for key, value in found.items()}


def chunk_records(
    path: Path, schema: Schema, table: np.ndarray, parts: list[dict[str, Any]], compression: str
) -> dict[str, Any]:
    """Write ``chunks.parquet``, a row per chunk; returns the manifest's ``parts``, ``chunks`` and ``compression``.

    The first columns are those of `table`; the others are the chunks' checksums, which are moved here out of `parts`.
    """
    columns = dict(zip(schema.names, table.T, strict=False))
    for name in schema.names[table.shape[1] :]:
        crcs = [crc for part in parts for crc in part.pop(f"{name}s", [NO_CRC] * part["n_chunks"])]
        columns[name] = np.array(crcs, dtype=np.int64)
    content = TableContent(schema.names[: table.shape[1]])
    writer = TableWriter(path / "chunks.parquet", schema, compression, content)
    writer.write(**columns)
    return {"parts": parts, "chunks": writer.close(), "compression": compression}


def write_manifest(
    path: Path, kind: Kind[Any], fields: Mapping[str, Any], folders: Sequence[str] = ()
) -> dict[str, Any]:
    """Make the files in `path` and its folders durable and write the manifest, which is returned."""
    for folder in (*folders, ""):
        sync(path / folder)
    return write_metadata(path / "manifest.json", kind, fields)

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
_LEAST_GAIN = {"auto": 0.2, "split": 0.05}
"""Least share of the bytes of plain numbers for which they are compressed, or split besides: plain pages are decoded in two
fifths of the time, so bytes have to be worth more than a processor where they were not asked for."""

Forms = dict[str, str]
"""Compression of columns, by name: ``lz4``, ``zstd``, ``none``, or ``split``, LZ4 of the numbers' bytes place by place."""


class TableWriter:
    """One Parquet file being written, a row group per call.

    If `first_column` is given, the CRC-32 of each row group's bytes from that column on is recorded: those are the bytes
    that training reads at once, which can so be verified before they are decoded. Every row group's least and greatest
    number is recorded of the columns named by `statistics`, by default all. With "auto" or "split" the first row group
    decides the compression of each column. Integers that ascend, by name, are stored as differences, which take hardly a
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
        self.file, self.forms, self._compression = DirectWriter(path), Forms(), compression
        self._opened: pq.ParquetWriter | None = None

    def write(self, **columns: Any) -> None:
        arrays = [arrow_array(columns[field.name], field.type) for field in self.schema]
        table = pa.table(arrays, schema=self.schema)
        self._writer(table).write_table(table, row_group_size=max(1, table.num_rows))
        if self._content is not None:
            self._content.add(table)

    def _writer(self, first: pa.Table) -> pq.ParquetWriter:
        if self._opened is None:
            self.forms = choose_forms(first, self._compression)
            file = pa.PythonFile(self.file, mode="w")
            self._opened = _parquet_writer(file, self.schema, self.forms, self._statistics, self._ascending)
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
    file: Any, schema: Schema, forms: Forms, statistics: list[str] | bool, ascending: Sequence[str] = ()
) -> pq.ParquetWriter:
    codecs = {name: "lz4" if form == "split" else form for name, form in forms.items()}
    same, plain = len(set(codecs.values())) == 1, not ascending and "split" not in forms.values()
    encodings = {name: "BYTE_STREAM_SPLIT" if form == "split" else "PLAIN" for name, form in forms.items()}
    encodings |= dict.fromkeys(ascending, "DELTA_BINARY_PACKED")
    return pq.ParquetWriter(
        file,
        schema,
        compression=codecs[schema.names[0]] if same else codecs,  # by name it would miss the items of lists
        column_encoding=None if plain else encodings,
        use_dictionary=False,
        write_statistics=statistics,
        write_page_checksum=True,
        data_page_size=_PAGE_BYTES,
        write_batch_size=_BATCH_ROWS,
        store_schema=False,
    )


def choose_forms(table: pa.Table, compression: str) -> Forms:
    """Choose the compression of the columns of a table; one asked for is that of all.

    With "auto" and "split" it goes by the bytes that a sample takes, and so is a function of the numbers alone: LZ4 where it
    gains a fifth, with "split" a twentieth, plain pages where it does not; and with "split" bytes place by place where that
    gains another.
    """
    names = table.schema.names
    if compression not in ("auto", "split"):
        return dict.fromkeys(names, compression)
    if table.num_rows < _FEW_ROWS or not all(map(pa.types.is_primitive, table.schema.types)):
        return dict.fromkeys(names, "lz4")
    sample, forms = table.slice(0, _SAMPLE_ROWS), dict.fromkeys(names, "none")
    least = {name: sample[name].nbytes for name in names}
    for form in ("lz4", "split") if compression == "split" else ("lz4",):
        for name, n_bytes in zip(names, _sizes(sample, dict.fromkeys(names, form)), strict=True):
            if least[name] - n_bytes >= _LEAST_GAIN[compression] * sample[name].nbytes:
                forms[name], least[name] = form, n_bytes
    return forms


def _sizes(table: pa.Table, forms: Forms) -> list[int]:
    """Measure the bytes that the columns of a table take."""
    with _parquet_writer(pa.BufferOutputStream(), table.schema, forms, False) as writer:
        writer.write_table(table, row_group_size=table.num_rows)
    group = writer.writer.metadata.row_group(0)
    return [group.column(number).total_compressed_size for number in range(group.num_columns)]


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
        """Close the files; returns bytes and checksums by the manifest's keys, and what `chunk_records` moves from there.

        These are the CRCs of the chunks as ``…_crcs``, and the compression of entries as ``forms``.
        """
        figures = {table: writer.close() for table, writer in self._writers.items()}
        own = {f"{table}_{key}": value for table, found in figures.items() for key, value in found.items()}
        return own | {"forms": self._writers["entries"].forms}


def chunk_records(
    path: Path, schema: Schema, table: np.ndarray, parts: list[dict[str, Any]], compression: str
) -> dict[str, Any]:
    """Write ``chunks.parquet``, a row per chunk; returns the manifest's ``parts``, ``chunks`` and ``compression``.

    The first columns are those of `table`; the others are the chunks' checksums, which are moved here out of `parts`.
    """
    forms = [part.pop("forms") for part in parts]
    columns = dict(zip(schema.names, table.T, strict=False))
    for name in schema.names[table.shape[1] :]:
        crcs = [crc for part in parts for crc in part.pop(f"{name}s", [NO_CRC] * part["n_chunks"])]
        columns[name] = np.array(crcs, dtype=np.int64)
    content = TableContent(schema.names[: table.shape[1]])
    writer = TableWriter(path / "chunks.parquet", schema, compression, content)
    writer.write(**columns)
    return {"parts": parts, "chunks": writer.close(), "compression": common_forms(forms)}


def common_forms(forms: Sequence[Forms]) -> dict[str, str]:
    """Describe the compression of the columns of all parts, or batches of them; where they differ each that occurs."""
    found: dict[str, set[str]] = {}
    for part in forms:
        for name, form in part.items():
            found.setdefault(name, set()).update(form.split(" or "))
    return {name: " or ".join(sorted(each)) for name, each in found.items()}


def write_manifest(
    path: Path, kind: Kind[Any], fields: Mapping[str, Any], folders: Sequence[str] = ()
) -> dict[str, Any]:
    """Make the files in `path` and its folders durable and write the manifest, which is returned."""
    for folder in (*folders, ""):
        sync(path / folder)
    return write_metadata(path / "manifest.json", kind, fields)

"""Parquet tables written with checksums: single files, the files of a part, and what closes a chunked table."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..core.atomic_files import sync
from ..core.metadata import Kind, write_metadata
from .direct_writer import DirectWriter
from .schema import Schema

_PAGE_BYTES = 1 << 20


class ChecksumFile(DirectWriter):
    """A file being written, with the checksum of its bytes; what pyarrow asks of a file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        self._digest.update(data)
        return super().write(data)

    def flush(self) -> None:
        pass

    def tell(self) -> int:
        return self.n_bytes

    @property
    def checksum(self) -> str:
        return "sha256:" + self._digest.hexdigest()


class TableWriter:
    """One Parquet file being written, a row group a call."""

    def __init__(self, path: Path, schema: Schema, compression: str) -> None:
        self.schema = schema
        self.file = ChecksumFile(path)
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self.file, mode="w"),
            schema,
            compression=compression,
            use_dictionary=False,
            write_statistics=False,
            write_page_checksum=True,
            data_page_size=_PAGE_BYTES,
            store_schema=False,
        )

    def write(self, **columns: np.ndarray) -> None:
        arrays = [pa.array(columns[field.name], type=field.type) for field in self.schema]
        table = pa.table(arrays, schema=self.schema)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def close(self) -> dict[str, Any]:
        self._writer.close()
        self.file.close()
        return {"bytes": self.file.n_bytes, "checksum": self.file.checksum}


class PartFiles:
    """The files of one part being written, named by table: a row group each for a chunk."""

    def __init__(
        self, path: Path, names: Mapping[str, str], schemas: Mapping[str, Schema], compression: str
    ) -> None:
        self.names = names
        self._writers = {
            table: TableWriter(path / name, schemas[table], compression) for table, name in names.items()
        }

    def write(self, table: str, **columns: np.ndarray) -> None:
        """Write the chunk's row group of one table."""
        self._writers[table].write(**columns)

    def close(self) -> dict[str, Any]:
        """End the files; returns their bytes and checksums, by the manifest's keys."""
        figures = {table: writer.close() for table, writer in self._writers.items()}
        return {f"{table}_{key}": value for table, found in figures.items() for key, value in found.items()}


def write_chunk_table(path: Path, schema: Schema, table: np.ndarray, compression: str) -> dict[str, Any]:
    """Write ``chunks.parquet``, a row per chunk; returns its bytes and checksum."""
    writer = TableWriter(path / "chunks.parquet", schema, compression)
    writer.write(**{name: table[:, k] for k, name in enumerate(schema.names)})
    return writer.close()


def write_manifest(
    path: Path, kind: Kind[Any], fields: Mapping[str, Any], folders: Sequence[str] = ()
) -> dict[str, Any]:
    """Make the files in `path` and its folders durable and write the manifest, which is returned."""
    for folder in (*folders, ""):
        sync(path / folder)
    return write_metadata(path / "manifest.json", kind, fields)

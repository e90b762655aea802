"""Writing of a dataset: Parquet tables with checksums, parts of rows chunk by chunk, the manifest last."""

from __future__ import annotations

import hashlib
import os
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..core.errors import file_named
from ..core.files import content_digest, sync, write_metadata
from ..core.parallel import Threads
from .arrow_columns import arrow_array, extent_of, file_checksum, numbers_of, strings_of
from .schema import FIRST_OF_ROWS, ROW_CHUNKS, ROW_LAYOUT, Schema, no_norms, norms_record, row_schemas

_PAGE_BYTES = 1 << 20
_BATCH_ROWS = 1 << 16  # encoded at a time: with 2^10, Arrow's default, chunks take a tenth longer

_SAMPLE_ROWS = 1 << 17  # of the first row group; of a quarter of them, or fewer rows, nothing is to be gained
_LEAST_GAIN = 0.2
"""Least share of the bytes of plain numbers for which "auto" compresses them: plain pages are decoded in two fifths of the
time, so bytes have to be worth more than a processor where they were not asked for."""


class _HashedFile:
    """A file being written, and the SHA-256 of what was written."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - closed by `TableWriter.close`
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:  # everything else is the file's own
        return getattr(self._file, name)


class TableWriter:
    """One Parquet file being written, a row group per call.

    If `first_column` is given, the CRC-32 of each row group's bytes from that column on is recorded: those are the bytes
    that training reads at once, which can so be verified before they are decoded. Every row group's least and greatest
    number is recorded, of a table with ``value`` that of its first column alone, by which it is sorted: the others' take
    time. With "auto" the first row group decides about the compression of each column. Integers that ascend, by name, are
    stored as differences, which take hardly a byte and are decoded three times as fast. The digest of the columns `content`
    is recorded.
    """

    def __init__(
        self,
        path: Path,
        schema: Schema,
        compression: str,
        *,
        content: Sequence[str] = (),
        first_column: str = "",
        ascending: Sequence[str] = (),
    ) -> None:
        self.path, self.schema, self._compression = path, schema, compression
        self._content = TableContent(content) if content else None
        self._first_column, self._ascending = first_column, ascending
        self._file = _HashedFile(path)
        self._opened: pq.ParquetWriter | None = None

    def write(self, **columns: Any) -> None:
        arrays = [arrow_array(columns[field.name], field.type) for field in self.schema]
        table = pa.table(arrays, schema=self.schema)
        with file_named(self.path):
            self._writer(table).write_table(table, row_group_size=max(1, table.num_rows))
        if self._content is not None:
            self._content.add(table)

    def _writer(self, first: pa.Table) -> pq.ParquetWriter:
        if self._opened is None:
            codec = choose_codecs(first) if self._compression == "auto" else self._compression
            self._opened = pq.ParquetWriter(
                pa.PythonFile(self._file, mode="w"),
                self.schema,
                compression=codec,
                column_encoding=dict.fromkeys(self._ascending, "DELTA_BINARY_PACKED") or None,
                use_dictionary=False,
                write_statistics=self.schema.names[:1] if "value" in self.schema.names else True,
                write_page_checksum=True,
                data_page_size=_PAGE_BYTES,
                write_batch_size=_BATCH_ROWS,
                store_schema=False,
            )
        return self._opened

    def close(self) -> dict[str, Any]:
        """Make the file durable; returns its size, checksum, digest of content and, as ``crcs``, those of row groups."""
        writer = self._opened or self._writer(self.schema.empty_table())
        with file_named(self.path):
            writer.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            found = {"bytes": self._file.tell(), "checksum": "sha256:" + self._file.digest.hexdigest()}
            self._file.close()
        if self._content is not None:
            found["content"] = self._content.text()
        if self._first_column:
            found["crcs"] = [*_checksums(self.path, writer.writer.metadata, self._first_column)]
        return found


def _checksums(path: Path, metadata: pq.FileMetaData, first_column: str) -> Iterator[int]:
    """Yield the CRC-32 of every row group's bytes from a column on, which are in the page cache still."""
    with open(path, "rb", buffering=0) as file:
        for group in range(metadata.num_row_groups):
            start, n_bytes = extent_of(metadata, group, first_column)
            yield zlib.crc32(os.pread(file.fileno(), n_bytes, start))


def choose_codecs(table: pa.Table) -> str | dict[str, str]:
    """Choose the compression of the columns of a table: LZ4 where a sample of the numbers shrinks by a fifth, else none."""
    if table.num_rows < _SAMPLE_ROWS // 4 or not all(map(pa.types.is_primitive, table.schema.types)):
        return "lz4"  # by name it would miss the items of lists
    sample = table.slice(0, _SAMPLE_ROWS)
    with pq.ParquetWriter(
        pa.BufferOutputStream(), table.schema, compression="lz4", use_dictionary=False
    ) as writer:
        writer.write_table(sample, row_group_size=sample.num_rows)
    group = writer.writer.metadata.row_group(0)
    sizes = [group.column(number).total_compressed_size for number in range(table.num_columns)]
    return {
        name: "lz4" if n_bytes <= (1.0 - _LEAST_GAIN) * sample[name].nbytes else "none"
        for name, n_bytes in zip(table.schema.names, sizes, strict=True)
    }


def write_table(
    path: Path,
    schema: Schema,
    blocks: Iterable[Mapping[str, Any]],
    compression: str = "auto",
    *,
    ascending: Sequence[str] = (),
) -> dict[str, Any]:
    """Write a single file of a dataset from blocks of columns; returns what the manifest says of it.

    Its content is that of all columns but checksums.
    """
    content = [name for name in schema.names if not name.endswith("_crc")]
    writer = TableWriter(path, schema, compression, content=content, ascending=ascending)
    for block in blocks:
        writer.write(**block)
    return writer.close()


def file_record(path: Path) -> dict[str, Any]:
    """Make a file durable, and return what the manifest says of it."""
    sync(path)
    return {"bytes": path.stat().st_size, "checksum": file_checksum(path)}


def named_features(
    figures: Iterable[Mapping[str, Any]], indices: Any, encoding: Any
) -> Iterator[dict[str, Any]]:
    """Yield the columns of ``features.parquet`` from blocks of statistics, ascending by feature (see `schema.FEATURES`).

    `indices` (`source_features.SourceIndices`) gives the features' indices in the source, and a table's `encoding`
    (`models.encoding.Encoding`), if any, their names.
    """
    for block in figures:
        index = indices.of(block["feature"])
        if encoding is None:
            names = pa.nulls(index.size, pa.large_string())
        else:
            names = encoding.name_column(index - indices.base)
        if index.size:
            yield {**block, "index": index, "name": names}


# ---------------------------------------------------------------------------------------------------------------------
# Parts


def close_part(tables: Mapping[str, TableWriter]) -> dict[str, Any]:
    """Close the files of a part; returns bytes and checksums by the manifest's keys, and the chunks' as ``…_crcs``."""
    found = {table: writer.close() for table, writer in tables.items()}
    return {f"{table}_{key}": value for table, record in found.items() for key, value in record.items()}


def part_names(number: int) -> dict[str, str]:
    """Name the files of part `number` of a dataset, by table."""
    return {table: f"{table}/part-{number:05d}.parquet" for table in FIRST_OF_ROWS}


class Part(NamedTuple):
    """A part of a dataset that is written: its record in the manifest, its chunks as in the table, its rows' norms."""

    record: dict[str, Any]
    chunks: dict[str, np.ndarray]
    norms: dict[str, Any]


class PartWriter:
    """Writer of part `number` of a dataset, whose rows are counted from 0: a row group per chunk."""

    def __init__(
        self,
        folder: Path,
        number: int,
        *,
        index_dtype: np.dtype,
        value_dtype: np.dtype,
        row_dtype: np.dtype,
        compression: str,
    ) -> None:
        self._index_dtype, self._value_dtype, self._row_dtype = index_dtype, value_dtype, row_dtype
        self._names = part_names(number)
        for table in self._names:
            (folder / table).mkdir(parents=True, exist_ok=True)
        self._tables: dict[str, TableWriter] = {}
        for table, schema in row_schemas(row_dtype, index_dtype, value_dtype).items():
            path, first = folder / self._names[table], FIRST_OF_ROWS[table]
            self._tables[table] = TableWriter(path, schema, compression, first_column=first)
        self._threads = Threads(2)  # one for each file
        self._content = RowContent()
        self._norms = no_norms()
        # rows and entries of each chunk; a list would take ten times the memory
        self._chunk_rows, self._chunk_entries = array("q"), array("q")
        self.n_rows = self.n_entries = 0

    def write_chunk(
        self,
        source: np.ndarray,
        label: np.ndarray,
        weight: np.ndarray | None,
        indptr: np.ndarray,
        feature: np.ndarray,
        value: np.ndarray,
    ) -> None:
        """Append a chunk of rows, in their final order, features ascending within a row; rows are numbered here.

        Shapes are those of `ChunkData`: `source` int64, `label` and `weight` (None for all ones) float64, `indptr` int64.
        """
        from ..kernels.rows import add_row_norms  # here, because it imports numba

        value = np.ascontiguousarray(value, dtype=self._value_dtype)
        add_row_norms(np.ascontiguousarray(indptr, dtype=np.int64), value, self._norms)
        row = np.arange(self.n_rows, self.n_rows + label.size, dtype=self._row_dtype)
        counts = np.diff(indptr)
        weight = np.ones(label.size) if weight is None else weight
        n_stored = counts.astype(self._index_dtype)
        feature = feature.astype(self._index_dtype, copy=False)
        rows = {"row": row, "source": source, "label": label, "weight": weight, "n_entries": n_stored}
        entries = {"row": np.repeat(row, counts), "feature": feature, "value": value}

        def write_rows() -> None:
            self._tables["rows"].write(**rows)
            self._content.add_rows(row, source, label, weight)
            add_entries(**entries, sums=self._content.sums)

        self._threads.run([partial(self._tables["entries"].write, **entries), write_rows])
        self.n_rows += label.size
        self.n_entries += feature.size
        self._chunk_rows.append(label.size)
        self._chunk_entries.append(feature.size)

    def close(self) -> Part:
        self._threads.close()
        files = close_part(self._tables)
        chunks = {"n_rows": self._chunk_rows, "n_entries": self._chunk_entries}
        chunks |= {f"{table}_crc": files.pop(f"{table}_crcs") for table in self._tables}
        record = {
            **self._names,
            "content": self._content.text(),
            "n_rows": self.n_rows,
            "n_entries": self.n_entries,
            "n_chunks": len(self._chunk_rows),
            **files,
        }
        columns = {name: np.array(column, np.int64) for name, column in chunks.items()}
        return Part(record, columns, norms_record(self._norms, self.n_rows))


def joined_norms(norms: Sequence[Mapping[str, Any]], n_rows: Sequence[int]) -> dict[str, Any]:
    """Join the figures of the norms of several sets of rows (see `schema.norms_record`), in their order."""
    squares = [one["mean_square"] for one in norms]
    mean_square = squares[0] if len(squares) == 1 else None
    if len(squares) > 1 and None not in squares:
        mean_square = sum(square * n for square, n in zip(squares, n_rows, strict=True)) / max(sum(n_rows), 1)
    return {
        "min": min((one["min"] for one in norms if one["min"] is not None), default=None),
        "max": max(one["max"] for one in norms),
        "mean_square": mean_square if mean_square is not None and isfinite(mean_square) else None,
        "n_empty": sum(one["n_empty"] for one in norms),
    }


# ---------------------------------------------------------------------------------------------------------------------
# The whole


def write_dataset(
    folder: Path, parts: Sequence[Part], fields: Mapping[str, Any], compression: str = "auto"
) -> dict[str, Any]:
    """Write the chunk table and, last, the manifest, whose fields are returned; every other file is there already.

    `fields` are the manifest's, but for those that follow from the parts; their norms may be given.
    """
    n_rows, n_entries = ([part.record[name] for part in parts] for name in ("n_rows", "n_entries"))
    records = [part.record for part in parts]
    found = {
        "n_rows": sum(n_rows),
        "n_entries": sum(n_entries),
        "compression": compression,
        **(
            {}
            if "row_norms" in fields
            else {"row_norms": joined_norms([part.norms for part in parts], n_rows)}
        ),
        **fields,
        "data_digest": content_digest({"parts": [record["content"] for record in records]}),
        "parts": records,
        "chunks": write_table(
            folder / "chunks.parquet", ROW_CHUNKS, [chunk_table(ROW_CHUNKS, parts)], compression
        ),
    }
    for name in (*FIRST_OF_ROWS, ""):
        sync(folder / name)
    write_metadata(folder / "manifest.json", ROW_LAYOUT, found)
    return found


def chunk_table(schema: Schema, parts: Sequence[Part]) -> dict[str, np.ndarray]:
    """Return the table of the chunks of all parts."""
    columns = {"part": np.repeat(np.arange(len(parts)), [part.record["n_chunks"] for part in parts])}
    for name in schema.names[1:]:
        columns[name] = np.concatenate([np.empty(0, np.int64), *(part.chunks[name] for part in parts)])
    return columns


# ---------------------------------------------------------------------------------------------------------------------
# Digests of content, which depend neither on the compression of files nor on how writers cut them

_LABEL, _WEIGHT, _SOURCE = -1, -2, -3
"""In the place of features, for the numbers that a row has besides its entries."""


class RowContent:
    """Sum of 128-bit hashes of all entries and rows of a part, with their numbers: equal for the same ones in any order.

    Different ones have the same sum with probability 2⁻¹²⁸, unless they were made to.
    """

    def __init__(self) -> None:
        self.sums = np.zeros(2, np.uint64)

    def add_rows(self, row: np.ndarray, source: np.ndarray, label: np.ndarray, weight: np.ndarray) -> None:
        """Add rows: their numbers here and in the source, integers, labels and weights, float64; all of shape (rows,)."""
        for place, bits in ((_LABEL, label), (_WEIGHT, weight), (_SOURCE, source.astype(np.int64))):
            add_entries(row, np.full(row.size, place, row.dtype), bits.view(np.float64), self.sums)

    def text(self) -> str:
        """Return the sum as 32 hexadecimal digits."""
        return "".join(f"{part:016x}" for part in self.sums.tolist())


def add_entries(row: np.ndarray, feature: np.ndarray, value: np.ndarray, sums: np.ndarray) -> None:
    """Add hashes of entries (row, feature, value), all of shape (entries,), to `sums`, shape (2,) uint64, in place."""
    from ..kernels.primitives import add_entry_hashes  # here, because it imports numba

    columns = row, feature, value.astype(np.float64).view(np.uint64)
    # copies of arrays that cannot be written to, for which numba would compile the kernel once more
    add_entry_hashes(*(np.require(array, requirements=("C", "W")) for array in columns), sums)


class TableContent:
    """SHA-256 of columns of a table, numbers without nulls or strings, that comes in parts of any size."""

    def __init__(self, names: Sequence[str]) -> None:
        self._columns = {name: (hashlib.sha256(), hashlib.sha256()) for name in names}

    def add(self, table: pa.Table) -> None:
        """Add rows: of numbers their bytes, of strings their lengths, -1 for null, and their bytes."""
        for name, digests in self._columns.items():
            for part in table.column(name).chunks:
                if pa.types.is_primitive(part.type):
                    digests[0].update(np.ascontiguousarray(numbers_of(part)).data)
                    continue
                strings, valid = strings_of(part)
                lengths = np.diff(strings.offsets)
                lengths = np.where(valid, lengths, -1) if valid.size else lengths
                digests[0].update(lengths.data)
                digests[1].update(strings.data[strings.offsets[0] : strings.offsets[-1]].data)

    def text(self) -> str:
        """Return the digest as 32 hexadecimal digits."""
        whole = hashlib.sha256()
        for name, digests in self._columns.items():
            whole.update(name.encode() + b"\0" + b"".join(digest.digest() for digest in digests))
        return whole.hexdigest()[:32]

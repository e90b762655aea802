"""Writing of a dataset: Parquet tables with checksums, parts of rows chunk by chunk, the manifest last."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from isal.isal_zlib import crc32

from ..core.errors import file_named
from ..core.files import content_digest, sync, write_metadata
from ..core.parallel import Threads
from .arrow_columns import arrow_array, extent_of, strings_of
from .schema import FIRST_OF_ROWS, NO_NORMS, ROW_CHUNKS, ROW_LAYOUT, Schema, norms_record, row_schemas

_PAGE_BYTES = 1 << 20
_BATCH_ROWS = 1 << 16  # encoded at a time: with 2^10, Arrow's default, chunks take a tenth longer

_SAMPLE_ROWS = 1 << 17  # of the first row group; of a quarter of them, or fewer rows, nothing is to be gained
_LEAST_GAIN = 0.2
"""Least share of the bytes of plain numbers for which "auto" compresses them: plain pages are decoded in two fifths of the
time, so bytes have to be worth more than a processor where they were not asked for."""


class TableWriter:
    """One Parquet file being written, a row group per call.

    If `first_column` is given, the CRC-32 of each row group's bytes from that column on is recorded: those are the bytes
    that training reads at once, which can so be verified before they are decoded. Every row group's least and greatest
    number is recorded, of a table with ``value`` that of its first column alone, by which it is sorted: the others' take
    time. With "auto" the first row group decides about the compression of each column. Integers that ascend, by name, are
    stored as differences, which take hardly a byte and are decoded three times as fast.
    """

    def __init__(
        self,
        path: Path,
        schema: Schema,
        compression: str,
        *,
        first_column: str = "",
        ascending: Sequence[str] = (),
    ) -> None:
        self.path = path
        self.schema = schema
        self._compression = compression
        self._first_column = first_column
        self._ascending = ascending
        self._file = open(path, "wb")  # noqa: SIM115 - closed by `close`
        self._writer: pq.ParquetWriter | None = None

    def write(self, columns: Mapping[str, Any]) -> pa.Table:
        """Write a row group, by the names of its columns; returns it."""
        arrays = [arrow_array(columns[field.name], field.type) for field in self.schema]
        table = pa.table(arrays, schema=self.schema)
        with file_named(self.path):
            self._open(table).write_table(table, row_group_size=max(1, table.num_rows))
        return table

    def _open(self, first: pa.Table) -> pq.ParquetWriter:
        """Open the file, which with "auto" has LZ4 where a sample of the first numbers shrinks by a fifth, else none."""
        if self._writer is None:
            codecs: str | dict[str, str] = "lz4" if self._compression == "auto" else self._compression
            # by name it would miss the items of lists
            plain = all(map(pa.types.is_primitive, self.schema.types))
            if self._compression == "auto" and plain and first.num_rows >= _SAMPLE_ROWS // 4:
                codecs = {}
                for name in self.schema.names:
                    sample = np.from_dlpack(first[name].chunk(0))[:_SAMPLE_ROWS]
                    n_bytes = pa.compress(sample, "lz4_raw", asbytes=False).size
                    codecs[name] = "lz4" if n_bytes <= (1.0 - _LEAST_GAIN) * sample.nbytes else "none"
            self._writer = pq.ParquetWriter(
                pa.PythonFile(self._file, mode="w"),
                self.schema,
                compression=codecs,
                column_encoding=dict.fromkeys(self._ascending, "DELTA_BINARY_PACKED") or None,
                use_dictionary=False,
                write_statistics=self.schema.names[:1] if "value" in self.schema.names else True,
                write_page_checksum=True,
                data_page_size=_PAGE_BYTES,
                write_batch_size=_BATCH_ROWS,
                store_schema=False,
            )
        return self._writer

    def close(self) -> pq.FileMetaData:
        """Close the file; returns what its footer says."""
        with file_named(self.path), self._file:
            writer = self._writer or self._open(self.schema.empty_table())
            writer.close()
        return writer.writer.metadata

    def record(self) -> dict[str, Any]:
        """Close the file for good; returns what the manifest says of it and, as ``crcs``, checksums of the row groups."""
        metadata = self.close()
        first = self._first_column
        groups = range(metadata.num_row_groups if first else 0)
        return file_record(self.path, [extent_of(metadata, group, first) for group in groups])


def file_record(path: Path, extents: Iterable[tuple[int, int]] = ()) -> dict[str, Any]:
    """Make a file durable, and return what the manifest says of it; of extents, ascending, the CRC-32 as ``crcs``."""
    sync(path)  # safety: durability::power_cut[convert]
    digest = hashlib.sha256()
    crcs = []
    with open(path, "rb") as file:  # in the page cache still
        for start, n_bytes in extents:
            digest.update(file.read(start - file.tell()))
            data = file.read(n_bytes)
            digest.update(data)
            crcs.append(crc32(data))
        while data := file.read(_PAGE_BYTES):
            digest.update(data)
        record = {"bytes": file.tell(), "checksum": "sha256:" + digest.hexdigest()}
    return {**record, "crcs": crcs} if crcs else record


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
    writer = TableWriter(path, schema, compression, ascending=ascending)
    names = [name for name in schema.names if not name.endswith("_crc")]
    content = content_of(names, map(writer.write, blocks))
    return {**writer.record(), "content": content}


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


def part_names(number: int) -> dict[str, str]:
    """Name the files of part `number` of a dataset, by table."""
    return {table: f"{table}/part-{number:05d}.parquet" for table in FIRST_OF_ROWS}


class Part(NamedTuple):
    """A part of a dataset that is written: its record in the manifest, its chunks as in the table, its rows' norms."""

    record: dict[str, Any]
    chunks: dict[str, np.ndarray]
    norms: Sequence[float] = ()  # see `schema.norms_record`; none of columns


class PartFiles:
    """Files of a part being written, by table, of which a chunk is a row group.

    `first` has the first column that training reads of each, `counted` the names of the numbers of chunks in the chunk
    table, of which one after the other is added to `chunks`.
    """

    def __init__(
        self,
        folder: Path,
        names: Mapping[str, str],
        schemas: Mapping[str, Schema],
        compression: str,
        first: Mapping[str, str],
        counted: Sequence[str],
    ) -> None:
        self.names = names
        self._counted = counted
        self.tables = {
            table: TableWriter(folder / name, schemas[table], compression, first_column=first[table])
            for table, name in names.items()
        }
        self.chunks = array("q")  # a list would take ten times the memory

    def close(self, norms: Sequence[float] = (), **fields: Any) -> Part:
        """Close the files; returns the part, whose record has further `fields`."""
        records = {table: writer.record() for table, writer in self.tables.items()}
        numbers = np.array(self.chunks, np.int64).reshape(-1, len(self._counted))
        chunks = dict(zip(self._counted, numbers.T, strict=True))
        chunks |= {
            f"{table}_crc": np.array(file.pop("crcs", ()), np.int64) for table, file in records.items()
        }
        totals: dict[str, Any] = {
            name: int(chunks[name].sum()) for name in ("n_rows", "n_entries") if name in chunks
        }
        files = {f"{table}_{key}": value for table, file in records.items() for key, value in file.items()}
        return Part({**self.names, **fields, **totals, "n_chunks": len(numbers), **files}, chunks, norms)


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
        self._index_dtype = index_dtype
        self._value_dtype = value_dtype
        self._row_dtype = row_dtype
        for table in FIRST_OF_ROWS:
            (folder / table).mkdir(parents=True, exist_ok=True)
        schemas = row_schemas(row_dtype, index_dtype, value_dtype)
        counted = ROW_CHUNKS.names[1:3]
        self._files = PartFiles(folder, part_names(number), schemas, compression, FIRST_OF_ROWS, counted)
        self._threads = Threads(2)  # one for each file
        self._sums = np.zeros(2, np.uint64)
        self._norms = np.array(NO_NORMS)
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
        rows = {"row": row, "source": source, "label": label, "weight": weight}
        entries = {"row": np.repeat(row, counts), "feature": feature, "value": value}
        tables = self._files.tables
        self._threads.run(
            [
                partial(tables["entries"].write, entries),
                partial(tables["rows"].write, {**rows, "n_entries": n_stored}),
                partial(add_content, rows, entries, self._sums),
            ]
        )
        self.n_rows += label.size
        self.n_entries += feature.size
        self._files.chunks.extend((label.size, feature.size))

    def close(self) -> Part:
        self._threads.close()
        self._norms[2] /= max(self.n_rows, 1)
        return self._files.close(self._norms.tolist(), content=content_text(self._sums))


# ---------------------------------------------------------------------------------------------------------------------
# The whole


def write_dataset(
    folder: Path, parts: Sequence[Part], fields: Mapping[str, Any], compression: str = "auto"
) -> dict[str, Any]:
    """Write the chunk table and, last, the manifest, whose fields are returned; every other file is there already.

    `fields` are the manifest's, but for those that follow from the parts.
    """
    records = [part.record for part in parts]
    n_rows = [record["n_rows"] for record in records]
    content = {
        "n_rows": sum(n_rows),
        "n_entries": sum(record["n_entries"] for record in records),
        "compression": compression,
        "row_norms": norms_record([part.norms for part in parts], n_rows),
        **fields,
        "data_digest": content_digest({"parts": [record["content"] for record in records]}),
        "parts": records,
        "chunks": write_chunk_table(folder, ROW_CHUNKS, parts, compression),
    }
    for name in (*FIRST_OF_ROWS, ""):
        sync(folder / name)  # safety: durability::power_cut[convert]
    write_metadata(folder / "manifest.json", ROW_LAYOUT, content)
    return content


def write_chunk_table(
    folder: Path, schema: Schema, parts: Sequence[Part], compression: str
) -> dict[str, Any]:
    """Write the table of the chunks of all parts; returns what the manifest says of it."""
    columns = {"part": np.repeat(np.arange(len(parts)), [part.record["n_chunks"] for part in parts])}
    for name in schema.names[1:]:
        columns[name] = np.concatenate([np.empty(0, np.int64), *(part.chunks[name] for part in parts)])
    return write_table(folder / "chunks.parquet", schema, [columns], compression)


# ---------------------------------------------------------------------------------------------------------------------
# Digests of content, which depend neither on the compression of files nor on how writers cut them

_BESIDE = {"label": -1, "weight": -2, "source": -3}
"""In the place of features, for the numbers that a row has besides its entries."""


def add_content(rows: Mapping[str, np.ndarray], entries: Mapping[str, np.ndarray], sums: np.ndarray) -> None:
    """Add 128-bit hashes of rows and entries of a part, with their numbers, to `sums`, shape (2,) uint64, in place.

    The sums are equal for the same ones in any order; different ones have the same with probability 2⁻¹²⁸, unless they were
    made to. `rows` has columns ``row``, ``source``, integers, and ``label``, ``weight``, float64.
    """
    for name, position in _BESIDE.items():
        bits = rows[name].astype(np.int64).view(np.float64) if name == "source" else rows[name]
        add_entries(rows["row"], np.full(bits.size, position, rows["row"].dtype), bits, sums)
    add_entries(**entries, sums=sums)


def add_entries(row: np.ndarray, feature: np.ndarray, value: np.ndarray, sums: np.ndarray) -> None:
    """Add hashes of entries (row, feature, value), all of shape (entries,), to `sums` in place."""
    from ..kernels.primitives import add_entry_hashes  # here, because it imports numba

    columns = row, feature, value.astype(np.float64).view(np.uint64)
    # copies of arrays that cannot be written to, for which numba would compile the kernel once more
    add_entry_hashes(*(np.require(array, requirements=("C", "W")) for array in columns), sums)


def content_text(sums: np.ndarray) -> str:
    """Return sums of hashes as 32 hexadecimal digits."""
    return sums.astype(">u8").tobytes().hex()


def content_of(names: Sequence[str], tables: Iterable[pa.Table]) -> str:
    """Compute a digest, 32 hexadecimal digits, of columns of a table, numbers or strings, that comes in parts of any size.

    It is of numbers' bytes, and of strings' lengths, -1 for null, and their bytes.
    """
    digests = {name: (hashlib.sha256(), hashlib.sha256()) for name in names}
    for table in tables:
        for name, (numbers, texts) in digests.items():
            for part in table.column(name).chunks:
                if pa.types.is_primitive(part.type):
                    numbers.update(np.ascontiguousarray(np.from_dlpack(part)).data)
                    continue
                strings, valid = strings_of(part)
                lengths = np.diff(strings.offsets)
                numbers.update((np.where(valid, lengths, -1) if valid.size else lengths).data)
                texts.update(strings.data[strings.offsets[0] : strings.offsets[-1]].data)
    whole = hashlib.sha256()
    for name, pair in digests.items():
        whole.update(name.encode() + b"\0" + b"".join(digest.digest() for digest in pair))
    return whole.hexdigest()[:32]

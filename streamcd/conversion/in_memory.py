"""Data of a Python program as sources of rows: arrays, sparse matrices, frames, and batches of them."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from ..core.errors import DataError, UsageError
from ..dataset.arrow_columns import frame_reader
from ..dataset.in_memory import refuse_mask, sound_matrix
from .matrices import MatrixBlock, open_matrix
from .options import TableOptions
from .sources import FilePart, Reader, Reading, Source, locator
from .table_rows import TableBatch, column_types, open_tables

LABEL = "label"
"""Name of the column for labels that are given beside a frame."""


@dataclass(frozen=True)
class _InMemory(Reader):
    """Base of readers of data in memory."""

    batches_of: Iterable[Any]
    paths: tuple[str, ...] = ()

    in_memory = True

    @property
    def total_bytes(self) -> int | None:
        return None

    def whole(self) -> list[Any]:
        return [FilePart("data in memory")]


@dataclass(frozen=True)
class FrameReader(_InMemory):
    """Frames, as record batches of Arrow's."""

    first_types: dict[str, str] = field(default_factory=dict)

    def types(self) -> dict[str, str]:
        return self.first_types

    def batches(
        self, pieces: Sequence[Any], first_line: int, types: dict[str, str]
    ) -> Generator[TableBatch, None, None]:
        before = 0
        for table in self.batches_of:
            names = [name for name in types if name in table.schema.names]
            lacking = set(types) - set(names)
            if lacking:
                raise DataError(
                    f"row {before + 1}: expected the column {min(lacking)!r}, as before, found none"
                )
            for batch in table.select(names).to_batches(max_chunksize=1 << 16):
                yield TableBatch(batch, 0, locator("", before))
                before += batch.num_rows


@dataclass(frozen=True)
class ArrayReader(_InMemory):
    """Pairs of a matrix and labels, or triples with weights of rows too."""

    n_columns: int | None = None

    def blocks(self, pieces: Sequence[Any]) -> Iterator[MatrixBlock]:
        before = 0
        for X, label, weight in self.batches_of:
            label = None if label is None else np.asarray(label)
            weight = None if weight is None else np.asarray(weight)
            matrix = (X,) if isinstance(X, np.ndarray) else (None, X.indptr, X.indices, X.data)
            yield MatrixBlock(locator("", before), label, weight, *matrix)
            before += X.shape[0]


def is_files(data: Any) -> bool:
    """Return whether the sources are names of files, rather than data."""
    names = (str, os.PathLike)
    if isinstance(data, names):
        return True
    return isinstance(data, list | tuple) and all(isinstance(item, names) for item in data)


def open_data(data: Any, reading: Reading, options: TableOptions) -> Source:
    """Make the source of rows of data in memory, of the types that `convert` takes."""
    batches = _batches(data)
    first = next(batches, None)
    if first is None:
        raise DataError("expected rows, found none: there is no batch")
    batches = chain([first], batches)
    if _is_table(first):
        return _open_frames(_tables(batches), reading, options)
    if options.given:
        raise UsageError(f"{', '.join(options.given)}: expected a frame with named columns, found arrays")
    return _open_arrays(batches, reading)


def _open_frames(tables: Iterator[Any], reading: Reading, options: TableOptions) -> Source:
    first = next(tables)
    types = column_types(first.schema, "columns")
    if not options.label and LABEL in types and reading.encoding is None:
        options = replace(options, label=LABEL)
    return open_tables(
        FrameReader(chain([first], tables), first_types=types), types, reading, options, "data"
    )


def _open_arrays(batches: Iterator[Any], reading: Reading) -> Source:
    triples = (_triple(batch) for batch in batches)
    first = next(triples)
    X, label, weight = first
    names = label is not None and np.asarray(label).dtype.kind in "OUST"
    reader = ArrayReader(chain([first], triples), n_columns=X.shape[1])
    sparse = not isinstance(X, np.ndarray)
    return open_matrix(reader, reading, sparse=sparse, names_labels=names, weighted=weight is not None)


# ---------------------------------------------------------------------------------------------------------------------
# Batches


def _batches(data: Any) -> Iterator[Any]:
    """Batches: tables of Arrow's, or tuples of a matrix, labels and weights."""
    if _is_dask_frame(data):
        return (_table(part.compute()) for part in data.partitions)
    if isinstance(data, tuple):
        return iter(_of_pair(data))
    if hasattr(data, "__arrow_c_stream__"):
        return iter(_of_stream(data))
    if callable(data):
        data = data()
    arrays = hasattr(data, "__array__") or hasattr(data, "tocsr")
    if arrays or not isinstance(data, Iterable) or isinstance(data, str | bytes | Mapping):
        advice = "collect() it" if hasattr(data, "collect") else "give arrays together with their labels"
        advice = "make a frame of it" if isinstance(data, Mapping) else advice
        raise UsageError(
            f"expected files, (X, y), a frame, or an iterable of such batches, found {type(data).__name__}; {advice}"
        )
    return chain.from_iterable(_batches(batch) for batch in data)


def _is_table(batch: Any) -> bool:
    return isinstance(batch, pa.Table | pa.RecordBatch)


def _is_dask_frame(data: Any) -> bool:
    return all(hasattr(data, name) for name in ("partitions", "compute", "npartitions", "columns"))


def _of_stream(data: Any) -> Iterator[Any]:
    with frame_reader(data) as reader:
        for batch in reader:
            yield pa.Table.from_batches([batch])


def _table(frame: Any) -> Any:
    return pa.Table.from_batches(frame_reader(frame))


def _of_pair(data: tuple[Any, ...]) -> Iterator[Any]:
    if len(data) not in (2, 3):
        raise UsageError(f"expected (X, y) or (X, y, weights), found a tuple of {len(data)}")
    X, y = data[:2]
    weight = data[2] if len(data) == 3 else None
    if hasattr(X, "__arrow_c_stream__"):
        yield _with_labels(_table(X), y, weight)
    elif hasattr(X, "blocks") and hasattr(X, "chunks"):
        yield from _of_dask_arrays(X, y, weight)
    else:
        yield X, y, weight


def _with_labels(table: Any, y: Any, weight: Any) -> Any:
    if weight is not None:
        raise UsageError(
            "expected weights in a column of the frame, found an array; name it with weight_column"
        )
    if LABEL in table.schema.names:
        raise UsageError(
            f"the frame has a column {LABEL!r} already; give label={LABEL!r} and no y, or rename it"
        )
    labels = y if hasattr(y, "__arrow_c_array__") or hasattr(y, "__arrow_c_stream__") else np.asarray(y)
    column = pa.chunked_array(labels) if hasattr(labels, "__arrow_c_stream__") else pa.array(labels)
    if len(column) != table.num_rows:
        raise DataError(f"expected a label for every row, {table.num_rows:,}, found {len(column):,}")
    return table.append_column(LABEL, column)


def _of_dask_arrays(X: Any, y: Any, weight: Any) -> Iterator[Any]:
    """Yield rows of dask arrays, block by block; labels are cut like the matrix."""
    if len(X.chunks[1]) > 1:
        X = X.rechunk({1: -1})
    if np.isnan(X.chunks[0]).any():
        raise UsageError(
            "expected a dask array of known shape, found blocks of unknown size; call compute_chunk_sizes()"
        )
    ends = np.cumsum([0, *X.chunks[0]]).tolist()
    for number, (start, stop) in enumerate(zip(ends[:-1], ends[1:], strict=True)):  # noqa: RUF007
        parts: list[Any] = [part if part is None else part[start:stop] for part in (y, weight)]
        label, weights = (part.compute() if hasattr(part, "compute") else part for part in parts)
        yield X.blocks[number, 0].compute(), label, weights


def _tables(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        if not _is_table(batch):
            raise DataError("expected frames in all batches, as in the first one, found arrays")
        yield batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])


def _triple(batch: Any) -> tuple[Any, Any, Any]:
    """A matrix, as an array or as CSR, with labels and weights."""
    if _is_table(batch):
        raise DataError("expected arrays in all batches, as in the first one, found a frame")
    X, y, weight = batch
    refuse_mask(y, "y")
    refuse_mask(weight, "weights")
    X = sound_matrix(X)
    if hasattr(X, "tocsr"):
        X = X.tocsr()
    else:
        X = np.asarray(X)
    if len(X.shape) != 2 or X.dtype.kind not in "biuf":
        raise DataError(f"expected X with two dimensions, of numbers, found shape {X.shape} of {X.dtype}")
    return X, y, weight

"""Data of a Python program as sources of rows: arrays, sparse matrices, frames, and batches of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from ..core.errors import DataError, UsageError
from ..dataset.arrow_columns import flat_columns, frame_reader, one_batch
from ..dataset.in_memory import refuse_mask, sound_matrix
from .byte_sources import NoRows
from .encoded_rows import open_matrix
from .options import TableOptions
from .sources import LABEL, Block, FilePart, Reader, Reading, Source, locator
from .table_columns import FIRST_ROWS, column_types, index_of, open_tables, text_columns


@dataclass(frozen=True)
class InMemoryReader(Reader):
    """Tables of Arrow's, or matrices with labels and weights."""

    batches: Iterator[Any]
    index: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()

    in_memory = True

    @property
    def total_bytes(self) -> int | None:
        return None

    def index_columns(self) -> tuple[str, ...]:
        return self.index

    def whole(self) -> list[Any]:
        return [FilePart("data in memory")]

    def blocks(self, pieces: Sequence[Any], first_line: int, types: Mapping[str, str]) -> Iterator[Block]:
        before = 0
        for batch in self.batches:
            found = _columns(batch, types, before) if isinstance(batch, pa.Table) else [batch]
            for content, label, weight in found:
                yield Block(locator("", before), content, 0, label, weight)
                before += content.shape[0]


def _columns(table: Any, types: Mapping[str, str], before: int) -> Iterator[tuple[Any, None, None]]:
    table = flat_columns(table)
    if lacking := set(types).difference(table.schema.names):
        raise DataError(f"row {before + 1}: expected the column {min(lacking)!r}, as before, found none")
    for batch in table.select(list(types)).to_batches(max_chunksize=1 << 16):
        yield text_columns(batch, types, "data in memory"), None, None


def is_files(data: Any) -> bool:
    """Return whether the sources are names of files, rather than data."""
    names = (str, os.PathLike)
    if isinstance(data, names):
        return True
    return isinstance(data, list | tuple) and len(data) > 0 and all(isinstance(item, names) for item in data)


def open_data(data: Any, reading: Reading, options: TableOptions) -> Source:
    """Make the source of rows of data in memory, of the types that `convert` takes."""
    label = LABEL if reading.encoding is None else reading.encoding.label or LABEL
    batches = _alike(_batches(data, label))
    first = next(batches, None)
    if first is None:
        raise NoRows("expected rows, found none: there is no batch")
    batches = chain([first], batches)
    if isinstance(first, pa.Table):
        types = column_types(first.schema, "columns")
        if not options.label and LABEL in types and reading.encoding is None:
            options = replace(options, label=LABEL)
        rows = one_batch(flat_columns(first).slice(0, FIRST_ROWS))
        reader = InMemoryReader(batches, tuple(index_of(first.schema)))
        return open_tables(reader, types, rows, reading, options, "data")
    if options.given:
        raise UsageError(f"{', '.join(options.given)}: expected a frame with named columns, found arrays")
    X, y, weight = first
    names = y is not None and y.dtype.kind in "OUST"
    sparse = not isinstance(X, np.ndarray)
    reader = InMemoryReader(batches)
    return open_matrix(reader, reading, sparse=sparse, names_labels=names, weighted=weight is not None)


# ---------------------------------------------------------------------------------------------------------------------
# Batches


def _batches(data: Any, label: str) -> Iterator[Any]:
    """Batches: tables of Arrow's, with labels given beside them in a column `label`, or a matrix, labels and weights."""
    if all(hasattr(data, name) for name in ("partitions", "compute", "npartitions")):  # a frame of dask's
        return (_table(part.compute()) for part in data.partitions)
    if isinstance(data, tuple):
        return iter(_of_pair(data, label))
    if hasattr(data, "__arrow_c_stream__"):
        return iter(_of_stream(data))
    if callable(data):
        data = data()
    if hasattr(data, "__array__") or hasattr(data, "tocsr"):
        return iter([(data, None, None)])
    if not isinstance(data, Iterable) or isinstance(data, str | bytes | Mapping):
        advice = "; collect() it" if hasattr(data, "collect") else ""
        advice = "; make a frame of it" if isinstance(data, Mapping) else advice
        raise UsageError(
            f"expected files, (X, y), a frame, or an iterable of such batches, found {type(data).__name__}{advice}"
        )
    return chain.from_iterable(_batches(batch, label) for batch in data)


def _of_stream(data: Any) -> Iterator[Any]:
    with frame_reader(data) as reader:
        for batch in reader:
            yield pa.Table.from_batches([batch])


def _table(frame: Any) -> Any:
    return pa.Table.from_batches(frame_reader(frame))


def _of_pair(data: tuple[Any, ...], label: str) -> Iterator[Any]:
    if len(data) not in (2, 3):
        raise UsageError(f"expected (X, y) or (X, y, weights), found a tuple of {len(data)}")
    X, y = data[:2]
    weight = data[2] if len(data) == 3 else None
    if hasattr(X, "__arrow_c_stream__"):
        yield _with_labels(_table(X), label, y, weight)
    elif hasattr(X, "blocks") and hasattr(X, "chunks"):
        yield from _of_dask_arrays(X, y, weight)
    else:
        yield X, y, weight


def _with_labels(table: Any, label: str, y: Any, weight: Any) -> Any:
    if weight is not None:
        raise UsageError(
            "expected weights in a column of the frame, found an array; name it with weight_column"
        )
    if y is None:
        return table
    if label in table.schema.names:
        raise UsageError(f"the frame has a column {label!r} already; give it and no y, or rename it")
    is_stream = hasattr(y, "__arrow_c_stream__")
    labels = y if is_stream or hasattr(y, "__arrow_c_array__") else np.asarray(y)
    if getattr(labels, "ndim", 1) != 1 or len(labels) != table.num_rows:
        raise DataError(
            f"expected a label for every row, {table.num_rows:,}, found the shape {np.shape(labels)}"
        )
    return table.append_column(label, pa.chunked_array(labels) if is_stream else pa.array(labels))


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


def _alike(batches: Iterator[Any]) -> Iterator[Any]:
    """Make tables or triples of arrays of batches; refuse those of another kind than the first."""
    expected, before = "", 0
    for batch in batches:
        rows, found = batch, "a frame"
        if not isinstance(batch, pa.Table):
            X, _, weight = rows = _triple(batch)
            shape = f"{X.shape[1]:,} columns" if isinstance(X, np.ndarray) else "sparse rows"
            found = f"{shape} {'without' if weight is None else 'with'} weights"
        expected = expected or found
        if found != expected:
            raise DataError(f"row {before + 1}: expected {expected}, as in the first batch, found {found}")
        yield rows
        before += (batch if isinstance(batch, pa.Table) else rows[0]).shape[0]


def _triple(batch: tuple[Any, Any, Any]) -> tuple[Any, np.ndarray | None, np.ndarray | None]:
    """A matrix, as an array or as CSR, with labels and weights."""
    X, y, weight = batch
    refuse_mask(y, "y")
    refuse_mask(weight, "weights")
    X = sound_matrix(X)
    X = X.tocsr() if hasattr(X, "tocsr") else np.asarray(X)
    if len(X.shape) != 2 or X.dtype.kind not in "biuf":
        raise DataError(f"expected X with two dimensions, of numbers, found shape {X.shape} of {X.dtype}")
    return X, None if y is None else np.asarray(y), None if weight is None else np.asarray(weight)

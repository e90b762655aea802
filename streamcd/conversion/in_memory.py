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
from .byte_sources import NoRows, Piece
from .options import TableOptions
from .sources import Block, Reader, Reading, Source, locator, matrix_source
from .table_columns import FIRST_ROWS, column_types, index_of, open_tables, text_columns

LABEL = "label"
"""Name of the column of labels beside a frame."""


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

    def pieces(self, n_tasks: int = 1) -> list[Piece]:
        return [Piece("data in memory")]

    def blocks(self, pieces: Sequence[Any], first_line: int, types: Mapping[str, str]) -> Iterator[Block]:
        expected, before = "", 0
        for batch in self.batches:
            found, parts = "a frame", [batch]
            if isinstance(batch, pa.Table):
                table = flat_columns(batch)
                if lacking := set(types).difference(table.schema.names):
                    raise DataError(
                        f"row {before + 1}: expected the column {min(lacking)!r}, as before, found none"
                    )
                tables = table.select(list(types)).to_batches(max_chunksize=1 << 16)
                parts = [(text_columns(part, types, "data in memory"), None, None) for part in tables]
            else:
                X, _, weight = batch
                shape = f"{X.shape[1]:,} columns" if isinstance(X, np.ndarray) else "sparse rows"
                found = f"{shape} {'without' if weight is None else 'with'} weights"
            if found != (expected := expected or found):
                raise DataError(
                    f"row {before + 1}: expected {expected}, as in the first batch, found {found}"
                )
            for content, label, weight in parts:
                yield Block(locator("", before), content, 0, label, weight)
                before += content.shape[0]


def is_files(data: Any) -> bool:
    """Return whether the sources are names of files, rather than data."""
    names = (str, os.PathLike)
    if isinstance(data, names):
        return True
    return isinstance(data, list | tuple) and len(data) > 0 and all(isinstance(item, names) for item in data)


def open_data(data: Any, reading: Reading, options: TableOptions) -> Source:
    """Make the source of rows of data in memory, of the types that `convert` takes."""
    label = LABEL if reading.encoding is None else reading.encoding.label or LABEL
    batches = _batches(data, label)
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
    return matrix_source(
        InMemoryReader(batches),
        reading,
        sparse=not isinstance(X, np.ndarray),
        names_labels=y is not None and y.dtype.kind in "OUST",
        weighted=weight is not None,
    )


def _batches(data: Any, label: str) -> Iterator[Any]:
    """Yield tables of Arrow's, with labels given beside them in a column `label`, or matrices with labels and weights."""
    if isinstance(data, tuple):
        if len(data) not in (2, 3):
            raise UsageError(f"expected (X, y) or (X, y, weights), found a tuple of {len(data)}")
        X, y, weight = (*data, None)[:3]
        if hasattr(X, "__arrow_c_stream__"):
            yield _with_labels(pa.Table.from_batches(frame_reader(X)), label, y, weight)
        else:
            yield _triple(X, y, weight)
    elif hasattr(data, "__arrow_c_stream__"):
        with frame_reader(data) as reader:
            yield from (pa.Table.from_batches([batch]) for batch in reader)
    elif callable(data):
        yield from _batches(data(), label)
    elif hasattr(data, "__array__") or hasattr(data, "tocsr"):
        yield _triple(data, None, None)
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes | Mapping):
        for batch in data:
            yield from _batches(batch, label)
    else:
        advice = "; collect() it" if hasattr(data, "collect") else ""
        advice = "; make a frame of it" if isinstance(data, Mapping) else advice
        raise UsageError(
            f"expected files, (X, y), a frame, or an iterable of such batches, found {type(data).__name__}{advice}"
        )


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


def _triple(X: Any, y: Any, weight: Any) -> tuple[Any, np.ndarray | None, np.ndarray | None]:
    """Return a matrix, as an array or as CSR, with labels and weights."""
    refuse_mask(y, "y")
    refuse_mask(weight, "weights")
    X = sound_matrix(X)
    X = X.tocsr() if hasattr(X, "tocsr") else np.asarray(X)
    if len(X.shape) != 2 or X.dtype.kind not in "biuf":
        raise DataError(f"expected X with two dimensions, of numbers, found shape {X.shape} of {X.dtype}")
    return X, None if y is None else np.asarray(y), None if weight is None else np.asarray(weight)

"""Sources of rows: one protocol for text, tables and matrices in files and in memory."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from errno import EINVAL
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ..core.errors import DataError, StreamcdError, UsageError, first_of
from ..core.parallel import Pool
from ..core.storage import file_size
from ..dataset.arrow_columns import (
    arrow_strings,
    flat_columns,
    frame_reader,
    type_name,
)
from ..models.encoding import Encoding, check_columns
from ..models.matrix_encoder import refuse_mask, sound_matrix
from .options import MAX_FEATURES, TableOptions

STANDARD_INPUT = "-"
LIBSVM = "libsvm text"
BLOCK_BYTES = 8 << 20
"""Bytes of text that are parsed at a time, at most."""

DECODER_BYTES = 70 << 20
LEAST_DECODER_BYTES = 10 << 20
"""Memory of xz -9, and of xz -6."""

MOST_BATCH_ROWS = 1 << 16
"""Rows of a table that are encoded at a time, at most."""

EXACT_LABEL = "a label below 2^53 in size, where whole numbers are exact"
NUMBER_ANEW = "number the classes anew, or give --target for numbers to predict"
"""Words of a label that is too large: in float64 it may stand for several."""

LABEL = "label"
"""Name of the column of labels beside a frame."""


@dataclass(frozen=True)
class Reading:
    """Options of reading, for every format of source."""

    value_dtype: Any = np.float32
    block_bytes: int = BLOCK_BYTES  # of text, parsed at a time; memory used is about ten times as much
    max_line_bytes: int = 1_000_000_000  # for which a block may grow
    decoder_bytes: int = DECODER_BYTES  # for decompression
    batch_bytes: int = 64 << 20  # of tables, decoded
    # the least index allowed; None allows 0, `Counts.zero_index` tells if it occurs
    index_base: int | None = None
    any_width: bool = (
        False  # of matrices: the number of features is known, or is that of the indices that occur
    )
    n_features: int | None = None  # indices are below ``n_features + index_base``; no base counts as 1
    ignore_beyond: bool = False  # pass over entries beyond the width, and count them, rather than refuse them
    needs_label: bool = True  # else a row of text may begin with an entry; a missing label is NaN
    reads_weights: bool = True  # of a table's column, which has to be there where labels have to be
    encoding: Encoding | None = None  # given by another dataset or a model
    class_names: tuple[str, ...] = ()
    of_numbers: bool = False  # labels must be numbers, as in the data to match, or as targets
    label_word: str = "label"  # or target, in messages
    end_label: float = 2.0**53  # the least size of a number that is no label; infinite for targets
    # Arrow's threads decode columns of tables: where no other process wants the processors
    threaded: bool = False

    @property
    def width_end(self) -> int:
        """The first index that is too large."""
        if self.n_features is None:
            return MAX_FEATURES + 1
        return self.n_features + (1 if self.index_base is None else self.index_base)


class Piece(NamedTuple):
    """Bytes of a text, from line to line, or row groups, batches or rows of a file; all of it where `stop` is None."""

    path: str
    start: int = 0
    stop: int | None = None
    n_bytes: int = 0  # on disk


class Counted(NamedTuple):
    """Rows and lines of a piece or block of text; `whole` where it ends with a row."""

    n_rows: int
    n_lines: int = 0
    whole: bool = True


class Block(NamedTuple):
    """Some rows of a table or a matrix, after the first `before` rows of the source `name`, in memory where it is empty.

    `content` is a record batch of Arrow's, a dense array, or has the shape and the arrays of SciPy's CSR. Labels and
    weights of a table are columns of it.
    """

    name: str
    before: int
    content: Any
    bytes_read: int = 0
    label: np.ndarray | None = None
    weight: np.ndarray | None = None
    lines: np.ndarray = np.empty(0, np.int64)  # of text, where rows begin

    def place(self, row: int) -> str:
        """Describe the location of a row, by its number in the block."""
        if self.lines.size:  # after a quote within a cell Arrow sees more records than we
            return f"{self.name}:{self.lines[min(self.before + row, self.lines.size - 1)]}"
        return f"{self.name}, row {self.before + row + 1}".removeprefix(", ")


def is_typed(batch: pa.RecordBatch, column: str) -> bool:
    """Check if a column is there, and not of nulls without a type."""
    return column in batch.schema.names and not pa.types.is_null(batch.schema.field(column).type)


def no_values(column: str) -> Block:
    return Block("", 0, pa.RecordBatch.from_arrays([pa.nulls(0)], [column]))


class Reader:
    """Base of readers of rows in pieces, which processes share unless it is in memory.

    They read columns in `blocks`, but for `LibsvmReader`, which parses rows at once (`batches`).
    """

    paths: Sequence[str]  # files that are read

    def pieces(self, n_tasks: int = 1) -> list[Piece]:
        """Return all of it, in consecutive pieces: whole files, or about `n_tasks`."""
        return [Piece(path, n_bytes=file_size(path) or 0) for path in self.paths]

    def count(self, piece: Piece) -> Counted:
        """Count the rows of a piece."""
        raise NotImplementedError

    def load_kernels(self) -> None:
        """Call the kernels that parse over nothing; see `compile.load_together`."""

    def blocks(self, piece: Piece, types: Mapping[str, str], first_line: int = 0) -> Iterator[Block]:
        """Read a piece, of a table the columns of `types`, a block at a time; text begins after so many lines."""
        raise NotImplementedError


class TableReader(Reader):
    """Base of readers of tables."""

    is_text = False  # True where columns have no types but those asked for

    def schema(self, path: str) -> pa.Schema:
        """Return the columns of a file."""
        raise NotImplementedError

    def names(self, path: str) -> list[str]:
        """Return the names of the columns of a file."""
        return self.schema(path).names

    def first_blocks(self, names: Sequence[str]) -> Iterator[Block]:
        """Read the first rows of columns, a block for each; if these are nulls without a type, later ones that have one."""
        raise NotImplementedError

    def held_bytes(self, types: Mapping[str, str]) -> int:
        """Estimate the bytes that reading the columns of `types` holds all the time, besides blocks and batches."""
        return 0

    def renamed(self) -> Mapping[str, str]:
        """Return the names that columns of text were given, with the reason."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Source:
    """Rows that a reader reads, and how they become rows of features; processes share it, unless it is in memory."""

    reader: Any  # a `Reader`
    reading: Reading
    made_from: str  # the manifest's name of such a source
    in_memory: bool = False  # this process alone can read it, and once
    total_bytes: int | None = None  # on disk; None if unknown, or if the source can be read only once
    held_bytes: int = 0  # by reading, all the time, besides blocks and batches
    encoding: Encoding | None = None  # of a table's columns as features
    of_indices: bool = True  # features are numbered by indices in the data
    table_types: dict[str, str] = field(default_factory=dict)  # of the columns to read of a table
    grows: bool = False  # strings that occur become features: categories are numbered in order of appearance
    names_labels: bool = False
    weighted: bool = False  # rows come with weights
    unused: dict[str, str] = field(default_factory=dict)  # columns left out by themselves, with the reason
    columns: tuple[str, ...] = ()  # of a table whose encoding is made
    # of files, columns of one value
    keys: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    messages: tuple[str, ...] = ()  # of what is read, and what is not

    @property
    def has_strings(self) -> bool:
        """True where there are names of classes, or there may be categories."""
        return self.names_labels or self.encoding is not None

    def blocks(self, pieces: Sequence[Piece], first_line: int) -> Generator[Block, None, None]:
        """Read some pieces, a block at a time; the first one begins after so many lines of its file."""
        bytes_before = 0
        for piece in pieces:
            keys = {
                key: text for key, text in self.keys.get(piece.path, {}).items() if key in self.table_types
            }
            types = {name: kind for name, kind in self.table_types.items() if name not in keys}
            if keys and not types:  # nothing would tell how many rows there are
                types = {self.reader.names(piece.path)[0]: "string"}
            for block in self.reader.blocks(piece, types, first_line):
                if keys:
                    columns = dict(zip(block.content.schema.names, block.content.columns, strict=True))
                    for key, text in keys.items():
                        one = (
                            arrow_strings([text])
                            if self.table_types[key] != "number"
                            else numbers_or_text([text])
                        )
                        columns[key] = pa.repeat(one[0], block.content.num_rows)
                    block = block._replace(
                        content=pa.RecordBatch.from_arrays([*columns.values()], [*columns])
                    )
                yield block._replace(bytes_read=bytes_before + block.bytes_read)
            bytes_before = bytes_before + piece.n_bytes
            first_line = 0


def numbers_or_text(texts: Iterable[str | None]) -> pa.Array:
    """Make numbers of texts where all are."""
    column = arrow_strings(texts)
    with suppress(pa.ArrowInvalid):
        return column.cast(pa.float64())
    return column


def open_tables(
    reader: TableReader,
    reading: Reading,
    options: TableOptions,
    name: str,
    keys: Mapping[str, Mapping[str, str | None]] | None = None,
) -> Source:
    """Make the source of a reader's rows, with the encoding of the data to match, if any; `name` is for messages.

    `keys` are the columns that each file has by the names of its folders: numbers where all values are.
    """
    from .table_columns import (
        choose_encoding,
        column_types,
        index_of,
        wanted_types,
    )  # only where there are tables

    keys = keys or {}
    names = {path: {*reader.names(path)} for path in keys}
    all_keys = dict.fromkeys(chain.from_iterable(keys.values()))
    replaced = {key for path, texts in keys.items() for key in texts if key in names[path]}
    keys = {
        path: {key: texts.get(key) for key in all_keys if key in texts or key not in names[path]}
        for path, texts in keys.items()
    }
    columns = {
        key: numbers_or_text(texts[key] for texts in keys.values() if key in texts) for key in all_keys
    }
    schema = reader.schema(reader.paths[0] if reader.paths else "")
    is_new = reading.encoding is None
    types = column_types(schema, name) | {key: type_name(column.type) for key, column in columns.items()}

    if reading.encoding is None:
        index = index_of(schema)
        encoding, types, unused = choose_encoding(types, index, columns, reader, options, name)
    else:
        encoding = reading.encoding
        unused = {}
        check_columns(encoding, types, reading.needs_label, name)
        if reading.needs_label:
            lacking = [column for column in encoding.kept if column not in types]
            unused = dict.fromkeys(lacking, "this source lacks it, whose values would be kept")
        roles = encoding.weight if reading.reads_weights else "", encoding.id, encoding.fold
        weight, id, fold = (column if column in types else "" for column in roles)
        encoding = encoding.but(weight=weight, id=id, fold=fold)
    label_type = "string" if reading.class_names else "number" if reading.of_numbers else None
    table_types = wanted_types(encoding, types, types if reader.is_text else columns, label_type)
    keyed = [f"{key} (in place of the files' own)" if key in replaced else key for key in all_keys]
    messages = [f"columns by the names of folders: {', '.join(keyed)}"] if keyed else []
    for column, reason in unused.items():
        if not column.startswith("__index_level_"):  # as pandas names an index without a name
            messages.append(f"column {column!r} is not used: {reason}")
    for column, reason in reader.renamed().items() if is_new else ():
        messages.append(f"column {column!r} is named so: {reason}")
    return Source(
        reader=reader,
        reading=reading,
        made_from="table",
        held_bytes=reader.held_bytes(table_types),
        encoding=encoding,
        of_indices=encoding.sparse is not None and len(encoding.columns) == 1,
        grows=is_new,
        names_labels=bool(reading.class_names) or table_types.get(encoding.label) in ("string", "boolean"),
        weighted=bool(encoding.weight),
        table_types=table_types,
        columns=tuple(types) if is_new else (),
        keys=keys,
        messages=tuple(messages),
        unused=unused,
    )


def display_name(source: str) -> str:
    """Return the name of a source for messages."""
    return "standard input" if source == STANDARD_INPUT else source


def total_bytes(paths: Sequence[str]) -> int | None:
    """Sum the bytes of all files on disk; None if one can only be read from its beginning to its end.

    Such are standard input, pipes, and URLs of servers without ranges.
    """
    sizes = [None if path == STANDARD_INPUT else file_size(path) for path in paths]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def check_rows(n_rows: int, paths: Sequence[str], found: str = "none") -> None:
    """Refuse sources without a row."""
    if not n_rows:
        names = first_of([*map(display_name, paths)], 3)
        raise DataError(f"{names}: expected rows, found {found}; check that this is the file meant")


@contextmanager
def refusing_damage(damage: tuple[type[Exception], ...], description: str, name: str) -> Iterator[None]:
    """Turn errors of a library about the file `name`, of the types `damage` or without a number, into one line."""
    try:
        yield
    except StreamcdError:
        raise
    except Exception as error:
        # EINVAL: of a seek to before the file
        if error.errno not in (None, EINVAL) if isinstance(error, OSError) else not isinstance(error, damage):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{name}: {description} ({reason}); get it again") from None


class Task(NamedTuple):
    """Pieces of a source that one worker reads."""

    number: int
    pieces: Sequence[Piece]
    first_row: int = 0
    first_line: int = 0
    n_rows: int | None = None  # None where they were not counted


def counted_tasks(source: Source, n_tasks: int, pool: Pool) -> list[Task]:
    """Cut a source into pieces that end with a row, a task each, and count their rows where there are several."""
    reader = source.reader
    cut = reader.pieces(n_tasks)
    if len(cut) == 1:
        return [Task(0, cut)]
    for pieces in (cut, reader.pieces()):
        sizes = [piece.n_bytes for piece in pieces]
        counted: list[Counted] = pool.run(
            reader.count, [(piece,) for piece in pieces], phase="count", sizes=sizes
        )
        if all(count.whole for count in counted):
            break
    check_rows(sum(count.n_rows for count in counted), reader.paths)
    tasks = list[Task]()
    row = 0
    line = 0
    for piece, count in zip(pieces, counted, strict=True):
        line = line if piece.start else 0
        tasks.append(Task(len(tasks), [piece], row, line, count.n_rows))
        row += count.n_rows
        line += count.n_lines
    return tasks


# ---------------------------------------------------------------------------------------------------------------------
# Data of a Python program: arrays, sparse matrices, frames, and batches of them


@dataclass(frozen=True)
class MemoryReader(TableReader):
    """Batches of a program's data: each a record batch of Arrow's, or a matrix, with labels and weights."""

    first: list[tuple[Any, Any, Any]]  # those that tell the columns, until they are read
    others: Iterator[tuple[Any, Any, Any]]
    reading: Reading
    paths: tuple[str, ...] = ()

    def schema(self, path: str) -> pa.Schema:
        return self.first[0][0].schema

    def first_blocks(self, names: Sequence[str]) -> Iterator[Block]:
        for name in names:
            typed = (block for block in self._first_parts() if is_typed(block.content, name))
            yield next(typed, no_values(name))

    def _first_parts(self) -> Iterator[Block]:
        """Yield record batches, which are held, as far as the memory goes."""
        before = n_bytes = number = 0
        while n_bytes <= self.reading.batch_bytes:
            if number == len(self.first):
                self.first.extend(islice(self.others, 1))
            content = self.first[number][0] if number < len(self.first) else None
            if not isinstance(content, pa.RecordBatch):
                return
            yield Block("", before, content)
            before = before + content.num_rows
            n_bytes = n_bytes + content.nbytes
            number = number + 1

    def blocks(self, piece: Piece, types: Mapping[str, str], first_line: int = 0) -> Iterator[Block]:
        from .table_columns import index_of

        expected = ""
        columns = set[str]()
        before = 0
        first = (self.first.pop(0) for _ in range(len(self.first)))
        for number, (content, label, weight) in enumerate(chain(first, self.others), 1):
            form = "a frame"
            remedy = ""
            where = f"block {number}, row {before + 1}"
            if not isinstance(content, pa.RecordBatch):
                form = "" if isinstance(content, np.ndarray) else "sparse rows of "
                form += "any columns" if self.reading.any_width else f"{content.shape[1]:,} columns"
                weights = f" {'without' if weight is None else 'with'} weights"
                remedy = "; if column k is the same in all, give n_features=" if weights in expected else ""
                form += weights
            elif not self.reading.any_width:
                names = set(content.schema.names) - set(index_of(content.schema))
                columns = columns or names
                if odd := columns - names or names - columns:
                    listed = first_of(sorted(map(repr, odd)), 5)
                    raise DataError(
                        f"{where}: expected the columns of the first block, found "
                        f"{f'{listed} besides' if odd <= names else f'no {listed}'}; give all blocks the same columns"
                    )
            if form != (expected := expected or form):
                raise DataError(f"{where}: expected {expected}, as in the first block, found {form}{remedy}")
            yield Block("", before, content, 0, label, weight)
            before += content.shape[0]


def is_files(data: Any) -> bool:
    """Return whether the sources are names of files, rather than data."""
    several = data if isinstance(data, list | tuple) else [data]
    return len(several) > 0 and all(isinstance(item, str | os.PathLike) for item in several)


def open_data(data: Any, reading: Reading, options: TableOptions) -> Source:
    """Make the source of rows of data in memory, of the types that `convert` takes."""
    label = LABEL if reading.encoding is None else reading.encoding.label or LABEL
    batches = _batches(data, label)
    first = next(batches, None)
    if first is None:
        raise DataError("expected rows, found none: there is no batch")
    reader = MemoryReader([first], batches, reading)
    X, y, weight = first
    if isinstance(X, pa.RecordBatch):
        if not options.label and LABEL in X.schema.names and reading.encoding is None:
            options = replace(options, label=LABEL)
        return replace(open_tables(reader, reading, options, "data"), in_memory=True)
    if options.given:
        raise UsageError(f"{', '.join(options.given)}: expected a frame with named columns, found arrays")
    has_names = y is not None and y.dtype.kind in "OUST" and not reading.of_numbers
    return Source(
        reader=reader,
        reading=reading,
        made_from="dense array" if isinstance(X, np.ndarray) else "sparse matrix",
        in_memory=True,
        names_labels=bool(reading.class_names) or has_names,
        weighted=weight is not None,
    )


def _batches(data: Any, label: str) -> Iterator[tuple[Any, Any, Any]]:
    """Yield record batches, with labels given beside a frame in a column `label`, or matrices with labels and weights."""
    is_tuple = isinstance(data, tuple)
    if is_tuple and len(data) not in (2, 3):
        raise UsageError(f"expected (X, y) or (X, y, weights), found a tuple of {len(data)}")
    X, y, weight = (*data, None)[:3] if is_tuple else (data, None, None)
    if hasattr(X, "__arrow_c_stream__"):
        with frame_reader(X) as reader:
            parts = (pa.Table.from_batches([batch]) for batch in reader)
            for table in [_with_labels(reader.read_all(), label, y, weight)] if is_tuple else parts:
                for batch in flat_columns(table).to_batches(max_chunksize=MOST_BATCH_ROWS):
                    yield batch, None, None
    elif is_tuple or hasattr(X, "__array__") or hasattr(X, "tocsr"):
        yield _triple(X, y, weight)
    elif callable(X):
        yield from _batches(X(), label)
    elif isinstance(X, Iterable) and not isinstance(X, str | bytes | Mapping):
        for batch in X:
            yield from _batches(batch, label)
    else:
        advice = "; collect() it" if hasattr(X, "collect") else ""
        advice = "; make a frame of it" if isinstance(X, Mapping) else advice
        raise UsageError(
            f"expected files, (X, y), a frame, or an iterable of such batches, found {type(X).__name__}{advice}"
        )


def _with_labels(table: pa.Table, label: str, y: Any, weight: Any) -> pa.Table:
    """Return a frame with the labels `y` as one more column."""
    if weight is not None:
        raise UsageError(
            "expected weights in a column of the frame, found an array; name it with weight_column"
        )
    if y is None:
        return table
    is_stream = hasattr(y, "__arrow_c_stream__")
    labels = y if is_stream or hasattr(y, "__arrow_c_array__") else np.asarray(y)
    if getattr(labels, "ndim", 1) != 1 or len(labels) != table.num_rows or label in table.schema.names:
        raise DataError(
            f"expected a label for each of {table.num_rows:,} rows, beside a frame without a column {label!r}, found the "
            f"shape {np.shape(labels)}, and the columns {first_of(table.schema.names)}"
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

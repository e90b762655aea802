"""Sources of rows: one protocol for text, tables and matrices, in files or in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from errno import EINVAL
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import DataError, StreamcdError
from ..core.parallel import Pool
from ..models.encoding import Encoding
from . import byte_sources
from .byte_sources import (
    BLOCK_BYTES,
    DECODER_BYTES,
    STANDARD_INPUT,
    Piece,
    check_rows,
    cut_into_ranges,
    is_compressed,
    total_bytes,
)


@dataclass(frozen=True)
class Reading:
    """Options of reading, for every format of source."""

    value_dtype: Any = np.float32
    block_bytes: int = BLOCK_BYTES  # of text, parsed at a time; memory used is about ten times as much
    max_line_bytes: int | None = None  # for which a block may grow
    decoder_bytes: int = DECODER_BYTES  # for decompression
    batch_bytes: int = 64 << 20  # of tables, decoded
    # the least index allowed; None allows 0, `Counts.zero_index` tells if it occurs
    index_base: int | None = None
    n_features: int | None = None  # indices are below ``n_features + index_base``; no base counts as 1
    ignore_beyond: bool = False  # pass over entries beyond the width, and count them, rather than refuse them
    needs_label: bool = True  # else a row of text may begin with an entry; a missing label is NaN
    reads_weights: bool = True  # of a table's column, which has to be there where labels have to be
    encoding: Encoding | None = None  # given by another dataset or a model
    class_names: tuple[str, ...] = ()
    of_numbers: bool = False  # labels must be numbers, as in the data to match, or as targets
    label_word: str = "label"  # or target, in messages
    # Arrow's threads decode columns of tables: where no other process wants the processors
    threaded: bool = False

    @property
    def width_end(self) -> int:
        """The first index that is too large."""
        if self.n_features is None:
            from ..kernels.rows import LARGEST_INDEX  # with numba, which a manifest does not need

            return LARGEST_INDEX + 1
        return self.n_features + (1 if self.index_base is None else self.index_base)

    @property
    def of_text(self) -> tuple[int, int | None, int]:
        """Arguments of `byte_sources.read_blocks`."""
        return self.block_bytes, self.max_line_bytes, self.decoder_bytes


class Counted(NamedTuple):
    """Rows and lines of a piece; `whole` where it ends with a row."""

    n_rows: int
    n_lines: int = 0
    whole: bool = True


class Block(NamedTuple):
    """Some rows of a table or a matrix; `message` describes the location of a row, by its number in the block.

    `content` is a record batch of Arrow's, a dense array, or has the shape and the arrays of SciPy's CSR. Labels and
    weights of a table are columns of it.
    """

    message: Callable[[int], str]
    content: Any
    bytes_read: int = 0
    label: np.ndarray | None = None
    weight: np.ndarray | None = None


class Csr(NamedTuple):
    """Sparse rows, as SciPy's matrices have them."""

    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray
    n_columns: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.indptr.size - 1, self.n_columns


class Reader:
    """Base of readers of rows in pieces, which processes share unless it is in memory."""

    paths: Sequence[str]  # files that are read
    in_memory = False  # True where this process alone can read it
    is_text = False  # True where columns have no types but those asked for

    @property
    def total_bytes(self) -> int | None:
        """Bytes on disk; None if unknown, or if the source can be read only once."""
        return total_bytes(self.paths)

    def expected_bytes(self, pieces: Sequence[Piece]) -> int | None:
        """Estimate the bytes of some pieces as text; None if unknown."""
        return None if self.total_bytes is None else 2 * sum(piece.n_bytes for piece in pieces)

    def held_bytes(self, types: Mapping[str, str]) -> int:
        """Estimate the bytes that reading the columns of `types` holds all the time, besides blocks and batches."""
        return 0

    def index_columns(self) -> Sequence[str]:
        """Return the columns that are the index of a table, as pandas keeps it: no features, unless they are asked for."""
        return ()

    def renamed(self) -> Mapping[str, str]:
        """Return the names that columns were given, with the reason."""
        return {}

    def first_rows(self, types: Mapping[str, str]) -> Any:
        """Return the first rows of the columns of `types`, of a table."""
        raise NotImplementedError

    def pieces(self, n_tasks: int = 1) -> list[Piece]:
        """Return all of it, in consecutive pieces: whole files, or about `n_tasks`."""
        raise NotImplementedError

    def count(self, piece: Piece) -> Counted:
        """Count the rows of a piece."""
        raise NotImplementedError


@dataclass(frozen=True)
class TextReader(Reader):
    """Base of readers of text, whose pieces are ranges of bytes."""

    paths: list[str]
    reading: Reading
    head: bytes = field(default=b"", kw_only=True)  # of standard input, read already

    is_text = True

    def expected_bytes(self, pieces: Sequence[Piece]) -> int | None:
        if self.total_bytes is None:
            return None
        # compressed files may hold eight times their size
        return sum(
            (8 if part.stop is None and is_compressed(part.path) else 1) * part.n_bytes for part in pieces
        )

    def pieces(self, n_tasks: int = 1) -> list[Piece]:
        if n_tasks == 1:
            return [Piece.whole(path, self.head if path == STANDARD_INPUT else b"") for path in self.paths]
        size = (self.total_bytes or 0) // n_tasks
        least, most = byte_sources.LEAST_RANGE_BYTES, byte_sources.MOST_RANGE_BYTES
        return [*cut_into_ranges(self.paths, min(max(size, least), most))]


@dataclass(frozen=True, kw_only=True)
class Source:
    """Rows that a reader reads, and how they become rows of features; processes share it, unless it is in memory."""

    reader: Any  # a `Reader`, with more methods for tables and matrices
    reading: Reading
    made_from: str  # the manifest's name of such a source
    what: str = "rows"  # name of the rows, in messages
    encoding: Encoding | None = None  # of a table's columns as features
    table_types: dict[str, str] = field(default_factory=dict)  # of the columns to read of a table
    grows: bool = False  # strings that occur become features: categories are numbered in order of appearance
    names_labels: bool = False
    weighted: bool = False  # rows come with weights
    unused: dict[str, str] = field(default_factory=dict)  # columns left out by themselves, with the reason
    renamed: Mapping[str, str] = field(default_factory=dict)  # names that columns were given, with the reason
    columns: tuple[str, ...] = ()  # of a table whose encoding is made

    @property
    def of_indices(self) -> bool:
        """True where features are numbered by indices in the data."""
        encoding = self.encoding
        return encoding is None or (encoding.sparse is not None and len(encoding.columns) == 1)

    @property
    def in_memory(self) -> bool:
        return bool(self.reader.in_memory)

    @property
    def held_bytes(self) -> int:
        """Bytes that reading holds all the time, besides blocks and batches."""
        return int(self.reader.held_bytes(self.table_types))


LIBSVM = "libsvm text"


def matrix_source(
    reader: Reader, reading: Reading, *, sparse: bool, names_labels: bool, weighted: bool = False
) -> Source:
    """Make the source of a reader's rows, of `sparse` matrices or of dense ones; `names_labels` where labels are strings."""
    return Source(
        reader=reader,
        reading=reading,
        made_from="sparse matrix" if sparse else "dense array",
        names_labels=bool(reading.class_names) or (names_labels and not reading.of_numbers),
        weighted=weighted,
    )


def locator(name: str, before: int) -> Callable[[int], str]:
    """Make a function that describes a row by its number after the first `before` rows of `name`, in memory where empty."""
    start = f"{name}, row" if name else "row"
    return lambda row: f"{start} {before + row + 1}"


@contextmanager
def refusing_damage(damage: tuple[type[Exception], ...], found: str, name: str) -> Iterator[None]:
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
        raise DataError(f"{name}: {found} ({reason}); get it again") from None


def counted_pieces(source: Source, n_tasks: int, pool: Pool) -> list[tuple[Any, Counted, tuple[int, int]]]:
    """Cut a source into pieces that end with a row; returns each with its counts, and the rows and lines before it."""
    reader = source.reader
    for pieces in (reader.pieces(n_tasks), reader.pieces()):
        sizes = [piece.n_bytes for piece in pieces]
        counted: list[Counted] = pool.run(
            _count, [(reader, piece) for piece in pieces], phase="count", sizes=sizes
        )
        if all(found.whole for found in counted):
            break
    check_rows(sum(found.n_rows for found in counted), reader.paths, source.what)
    starts, row, line = [], 0, 0
    for piece, found in zip(pieces, counted, strict=True):
        line = line if piece.start else 0
        starts.append((row, line))
        row, line = row + found.n_rows, line + found.n_lines
    return list(zip(pieces, counted, starts, strict=True))


def _count(reader: Reader, piece: Piece) -> Counted:
    return reader.count(piece)

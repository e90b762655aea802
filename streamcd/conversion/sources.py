"""Sources of rows: one protocol for text, tables and matrices, in files or in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from errno import EINVAL
from typing import Any, NamedTuple, Protocol

from ..core.errors import DataError
from ..core.process_pool import Pool
from ..models.encoding import Encoding
from .byte_sources import (
    DECODER_BYTES,
    STANDARD_INPUT,
    ByteRange,
    expected_text_bytes,
    share_out,
    total_bytes,
)
from .numbering import TaskDictionary
from .rows import RowBatch


@dataclass(frozen=True)
class Reading:
    """Options of reading, for every format of source."""

    value_dtype: Any
    block_bytes: int
    max_line_bytes: int | None = None
    decoder_bytes: int = DECODER_BYTES
    batch_bytes: int = 64 << 20  # of tables, decoded
    index_base: int | None = None
    n_features: int | None = None
    ignore_beyond: bool = False
    needs_label: bool = True
    reads_weights: bool = True  # of a table's column, which has to be there where labels have to be
    encoding: Encoding | None = None  # given by another dataset or a model
    class_names: tuple[str, ...] = ()
    of_numbers: bool = False  # labels must be numbers, as in the data to match
    threaded: bool = (
        False  # Arrow's threads decode the columns of tables: where no other process wants the processors
    )

    @property
    def width_end(self) -> int:
        """The first index that is too large."""
        if self.n_features is None:
            return (1 << 62) + 1
        return self.n_features + (1 if self.index_base is None else self.index_base)


class FilePart(NamedTuple):
    """Row groups, or record batches, of a file; all of it where `stop` is None."""

    path: str
    start: int = 0
    stop: int | None = None
    n_bytes: int = 0


class Counted(NamedTuple):
    """Rows and lines of a piece; `whole` where it ends with a row."""

    n_rows: int
    n_lines: int
    whole: bool = True


class Reader(Protocol):
    """A reader of rows in pieces, which processes share unless it is in memory."""

    @property
    def paths(self) -> list[str]:
        """Files that are read."""

    @property
    def in_memory(self) -> bool:
        """True where this process alone can read it."""

    @property
    def total_bytes(self) -> int | None:
        """Bytes on disk; None if unknown, or if the source can be read only once."""

    def whole(self) -> list[Any]:
        """Return all of it, in consecutive pieces, each with `path`, `start`, and `n_bytes` on disk."""

    def pieces(self, n_tasks: int) -> list[Any]:
        """Return all of it, in about `n_tasks` pieces."""

    def count(self, piece: Any) -> Counted:
        """Count the rows of a piece."""


class Source(Reader, Protocol):
    """A source of rows; processes share it, unless it is in memory."""

    @property
    def what(self) -> str:
        """Name of the rows, in messages."""

    @property
    def encoding(self) -> Encoding | None:
        """Encoding of a table's columns as features."""

    @property
    def grows(self) -> bool:
        """True where strings that occur become features."""

    @property
    def names_labels(self) -> bool:
        """True where labels are names."""

    @property
    def class_names(self) -> list[str]:
        """Names of the classes known beforehand."""

    @property
    def weighted(self) -> bool:
        """True where rows come with weights."""

    @property
    def of_indices(self) -> bool:
        """True where features are numbered by indices in the data."""

    @property
    def held_bytes(self) -> int:
        """Bytes that reading holds all the time, besides blocks and batches."""

    def expected_bytes(self, pieces: Sequence[Any]) -> int | None:
        """Estimate the bytes of some pieces as text; None if unknown."""

    def parse(
        self, pieces: Sequence[Any], first_row: int, first_line: int, dictionary: TaskDictionary | None
    ) -> Iterator[RowBatch]:
        """Make batches of the rows of pieces; strings are numbered by `dictionary`, or by the encoding."""


@dataclass(frozen=True)
class FileReader:
    """Base of readers of files, which every process can open."""

    paths: list[str]

    in_memory = False

    @property
    def total_bytes(self) -> int | None:
        return total_bytes(self.paths)


@dataclass(frozen=True)
class TextReader(FileReader):
    """Base of readers of text, whose pieces are ranges of bytes."""

    head: bytes = field(default=b"", kw_only=True)  # of standard input, read already

    def expected_bytes(self, pieces: Sequence[ByteRange]) -> int | None:
        return expected_text_bytes(pieces)

    def whole(self) -> list[ByteRange]:
        return [self.all_of(path) for path in self.paths]

    def all_of(self, path: str) -> ByteRange:
        """Return all of a file as a range."""
        return ByteRange(path, head=self.head if path == STANDARD_INPUT else b"")

    def pieces(self, n_tasks: int) -> list[ByteRange]:
        return share_out(self.paths, n_tasks)


def locator(name: str, before: int) -> Callable[[int], str]:
    """Make a function that describes a row by its number after the first `before` rows of `name`, in memory where empty."""
    start = f"{name}, row" if name else "row"
    return lambda row: f"{start} {before + row + 1}"


@contextmanager
def refusing_damage(damage: tuple[type[Exception], ...], found: str, name: str) -> Iterator[None]:
    """Turn errors of a library about the file `name`, of the types `damage` or without a number, into one line."""
    try:
        yield
    except Exception as error:
        # EINVAL: of a seek to before the file
        if error.errno not in (None, EINVAL) if isinstance(error, OSError) else not isinstance(error, damage):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{name}: {found} ({reason}); get it again") from None


class ReaderSource:
    """Base of sources that get their rows from a reader."""

    reader: Any

    @property
    def held_bytes(self) -> int:
        return 0

    @property
    def paths(self) -> list[str]:
        return self.reader.paths

    @property
    def in_memory(self) -> bool:
        return self.reader.in_memory

    @property
    def total_bytes(self) -> int | None:
        return self.reader.total_bytes

    def whole(self) -> list[Any]:
        return self.reader.whole()

    def pieces(self, n_tasks: int) -> list[Any]:
        return self.reader.pieces(n_tasks)

    def count(self, piece: Any) -> Counted:
        return self.reader.count(piece)


@dataclass(frozen=True)
class LibsvmSource(TextReader):
    """Rows of libsvm text."""

    form: Any  # a `libsvm.LibsvmFormat`

    what = "rows of libsvm text"
    held_bytes = 0
    encoding = None
    grows = False
    names_labels = False
    weighted = False
    of_indices = True

    @property
    def class_names(self) -> list[str]:
        return []

    def count(self, piece: ByteRange) -> Counted:
        from .libsvm import count_rows  # the parser's kernels: only where there is text

        return Counted(*count_rows(piece, self.form))

    def parse(
        self, pieces: Sequence[Any], first_row: int, first_line: int, dictionary: TaskDictionary | None
    ) -> Iterator[RowBatch]:
        from .libsvm import iterate_batches

        return iterate_batches(pieces, self.form, first_row, first_line)


def count_piece(source: Source, piece: Any) -> Counted:
    """Count the rows of a piece."""
    return source.count(piece)


def counted_pieces(source: Source, n_tasks: int, pool: Pool) -> tuple[list[Any], list[Counted]]:
    """Cut a source into pieces that end with a row, and count the rows of each."""
    for pieces in (source.pieces(n_tasks), source.whole()):
        tasks = [(source, piece) for piece in pieces]
        sizes = [piece.n_bytes for piece in pieces]
        counted: list[Counted] = pool.run(count_piece, tasks, phase="count", sizes=sizes)
        if all(found.whole for found in counted):
            break
    return pieces, counted

"""Input as bytes: files, folders, globs, URLs, standard input, compressed or not, in blocks that end where a line ends.

A thread reads and decompresses ahead of the parser, into a fixed set of buffers, so memory is bounded by the size of a block
and by the longest line.
"""

from __future__ import annotations

import glob
import io
import lzma
import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import DataError, UsageError, first_of
from ..core.files import describe_set_aside
from ..core.memory_budget import format_size
from ..core.parallel import AHEAD, ahead
from ..core.storage import Url, file_size, location, open_bytes

STANDARD_INPUT = "-"
BLOCK_BYTES = 8 << 20
"""Bytes of text that are parsed at a time, at most."""

LEAST_RANGE_BYTES, MOST_RANGE_BYTES = 1 << 20, 128 << 20
"""Bounds on the bytes of a range if several processes read."""

DECODER_BYTES = 70 << 20
"""Enough for xz -9."""

PADDING = 16
"""Readable bytes after the end of a block's text: the parser loads eight bytes at once."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_CODECS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_COMPRESSED_READ_BYTES = 1 << 18


@dataclass(frozen=True)
class ByteBlock:
    """Lines of one source: ``buffer[start:stop]``, which ends with a newline, followed by `PADDING` more bytes."""

    buffer: bytearray  # reused after the next block but one is requested
    start: int
    stop: int
    name: str  # of the source, in messages
    first: bool  # of its source
    bytes_read: int  # of all sources so far; compressed where they are

    def as_array(self) -> np.ndarray:
        """The buffer as bytes, padding included, without a copy."""
        return np.frombuffer(self.buffer, dtype=np.uint8)


def expand(sources: str | Path | Sequence[str | Path]) -> tuple[list[str], dict[str, str]]:
    """List the files of the sources, in an order that does not depend on the file system; also where each was found.

    Sources are files, directories (the files in them, or if there are none those in their folders; hidden ones are
    skipped), glob patterns, URLs of any of these, or ``"-"`` for standard input. The second are the directories given, by
    their files.
    """
    given = [sources] if isinstance(sources, str | Path) else list(sources)
    paths: list[str] = []
    roots: dict[str, str] = {}
    for source in given:
        found = _expand(os.fspath(source))
        if os.path.isdir(source):
            roots |= dict.fromkeys(found, os.fspath(source))
        paths += found
    if not paths:
        raise UsageError(
            "expected at least one source, found none; name files, directories, globs or - for standard input"
        )
    if paths.count(STANDARD_INPUT) > 1:
        raise UsageError("standard input (-) can be read once only, found it twice among the sources")
    return paths, roots


def _expand(source: str) -> list[str]:
    if source == STANDARD_INPUT:
        return [source]
    if isinstance(url := location(source), Url):
        if not (there := url.expand()):
            raise UsageError(f"no such file, folder or pattern of files: {source}; check the name")
        return [str(file) for file in there]
    path = Path(url if "://" in source else source)  # file:// is a path
    if path.is_dir():
        if (path / "manifest.json").exists() and (path / "rows").is_dir():
            raise UsageError(
                f"{source}: expected files of data, found a dataset of streamcd; 'streamcd export {source} FILE' makes text "
                "of it, and train, evaluate and predict take it as it is"
            )
        found = _visible(path.iterdir(), path) or _visible(path.rglob("*"), path)
    elif path.exists():
        return [str(path)]
    elif not glob.has_magic(str(path)):
        aside = describe_set_aside(path) or "; check the name"
        raise UsageError(f"no such file or directory: {source}{aside}")
    else:
        # a pattern of pathlib's does not follow symbolic links, which may lead back
        pattern = path / "*" if path.name == "**" else path
        above = next(folder for folder in path.parents if not glob.has_magic(str(folder)))
        found = _visible(above.glob(str(pattern.relative_to(above))), above, ".")
    if not found:
        raise UsageError(f"expected files, found none: {source}; check the name, or the pattern")
    return found


def _visible(paths: Iterable[Path], root: Path, hidden: str = "._") -> list[str]:
    """Sort the names of files, but those hidden by a first letter of their own, or of a folder below `root`."""
    n = len(root.parts)
    return sorted(
        str(path)
        for path in paths
        if not any(part.startswith(tuple(hidden)) for part in path.parts[n:]) and not path.is_dir()
    )


def display_name(source: str) -> str:
    """Return the name of a source for messages."""
    return "standard input" if source == STANDARD_INPUT else source


def total_bytes(paths: Sequence[str]) -> int | None:
    """Sum the bytes of all files on disk; None if one can only be read from its beginning to its end.

    Such are standard input, pipes, and URLs of servers without ranges.
    """
    total = 0
    for path in paths:
        if path == STANDARD_INPUT or (n_bytes := file_size(path)) is None:
            return None
        total += n_bytes
    return total


class NoRows(DataError):
    """A source without a row."""


def check_rows(n_rows: int, paths: Sequence[str], what: str = "rows of libsvm text") -> None:
    """Refuse sources without a row."""
    if not n_rows:
        names = first_of([*map(display_name, paths)], 3)
        raise NoRows(f"{names}: expected {what}, found none; check that this is the file meant")


# ---------------------------------------------------------------------------------------------------------------------
# One source


class Piece(NamedTuple):
    """Bytes of a text, from line to line, or row groups, batches or rows of a file; all of it where `stop` is None."""

    path: str
    start: int = 0
    stop: int | None = None
    n_bytes: int = 0  # on disk
    head: bytes = b""  # already read, of a source that can be read only once

    @classmethod
    def whole(cls, path: str, head: bytes = b"") -> Piece:
        return cls(path, n_bytes=file_size(path) or 0, head=head)


class _Counted(io.RawIOBase):
    """File that counts the bytes read, up to `n_bytes`, and whose first bytes can be inspected before they are read."""

    def __init__(self, file: Any, n_bytes: int | None = None, head: bytes = b"") -> None:
        self._file = file
        self._limit = n_bytes
        self._head = head
        self.n_bytes = 0

    def readable(self) -> bool:
        return True

    def peek(self, size: int) -> bytes:
        while len(self._head) < size and (more := self._file.read(size - len(self._head))):
            self._head += more
        return self._head

    def readinto(self, buffer: Any) -> int:
        if self._head:
            size = min(len(buffer), len(self._head))
            buffer[:size] = self._head[:size]
            self._head = self._head[size:]
        else:
            if self._limit is not None:
                buffer = buffer[: max(self._limit - self.n_bytes, 0)]
            size = self._file.readinto(buffer) or 0
        self.n_bytes += size
        return size

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _open(part: Piece) -> _Counted:
    if part.path == STANDARD_INPUT:
        # closing the copy leaves the process's own standard input alone
        return _Counted(open(os.dup(sys.stdin.fileno()), "rb", buffering=0), head=part.head)
    file = open_bytes(part.path)
    if part.stop is None:
        return _Counted(file)
    file.seek(part.start)
    return _Counted(file, part.n_bytes)


def read_head(part: Piece, n_bytes: int, decoder_bytes: int = DECODER_BYTES) -> tuple[bytes, bytes]:
    """Read the first bytes of a file: as they are, and decompressed up to `n_bytes` of them."""
    found = part.head
    if not found:
        with _open(part) as raw:
            found = raw.peek(n_bytes)
    file = _decompressed(_Counted(io.BytesIO(found)), True, decoder_bytes)
    text, size = bytearray(n_bytes), 0
    with suppress(EOFError, lzma.LZMAError, OSError), memoryview(text) as room:  # it is cut off
        while size < n_bytes and (more := file.readinto(room[size : size + (1 << 14)])):
            size += more
    return found, bytes(text[:size])


def is_compressed(path: str) -> bool:
    """Return whether a file is compressed, by its first bytes."""
    with open_bytes(path) as file:
        return (file.read(6) or b"").startswith(tuple(_CODECS))


def cut_into_ranges(paths: Sequence[str], range_bytes: int) -> Iterator[Piece]:
    """Cut regular files into ranges of about `range_bytes` that can be read on their own; compressed ones are not cut."""
    for path in paths:
        size = file_size(path) or 0
        if size <= range_bytes or is_compressed(path):
            yield Piece.whole(path)
            continue
        with io.BufferedReader(open_bytes(path)) as file:
            start = 0
            while start < size:
                # the first line that begins where the cut should be, or after it; a long line is never cut
                file.seek(start + range_bytes - 1)
                while (text := file.readline(_COMPRESSED_READ_BYTES)) and not text.endswith(b"\n"):
                    pass
                stop = min(file.tell(), size)
                yield Piece(path, start, stop, stop - start)
                start = stop


class _XzStreams:
    """Text of xz streams, one after another; `lzma.LZMAFile` takes a damaged one for the end of the file.

    A stream that asks for more than `memory_bytes`, most of it for its dictionary, is refused.
    """

    def __init__(self, raw: _Counted, memory_bytes: int) -> None:
        self._raw, self._memory_bytes = io.BufferedReader(raw, _COMPRESSED_READ_BYTES), memory_bytes
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memory_bytes)

    def readinto(self, view: memoryview) -> int:
        text = b""
        while not text:
            given = b""
            if self._decoder.eof:
                given = self._decoder.unused_data
                while not given.lstrip(b"\0") and (more := self._raw.read1(_COMPRESSED_READ_BYTES)):
                    given = given[: len(given) % 4] + more
                stream = given.lstrip(b"\0")  # zeros in fours come between streams and after the last one
                if (len(given) - len(stream)) % 4:
                    raise lzma.LZMAError("bytes after a stream that are no stream")
                if not stream:
                    break
                given, self._decoder = stream, lzma.LZMADecompressor(lzma.FORMAT_XZ, self._memory_bytes)
            elif self._decoder.needs_input and not (given := self._raw.read1(_COMPRESSED_READ_BYTES)):
                raise EOFError("it ends within a stream")
            text = self._decoder.decompress(given, min(len(view), _COMPRESSED_READ_BYTES))
        view[: len(text)] = text
        return len(text)


def _decompressed(raw: _Counted, whole: bool, memory_bytes: int) -> Any:
    """Open the text in `raw`, decompressed according to its first bytes if it is a `whole` file."""
    head = raw.peek(6) if whole else b""
    codec = next((codec for magic, codec in _CODECS.items() if head.startswith(magic)), None)
    if codec is None:
        return raw
    if codec == "xz":
        return _XzStreams(raw, memory_bytes)
    import pyarrow as pa  # only compressed input needs it

    return pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), codec)


def _fill(file: Any, view: memoryview, name: str) -> int:
    """Read until the view is full or the source ends; return the bytes read."""
    filled = 0
    try:
        while filled < len(view):
            size = file.readinto(view[filled:])
            if not size:
                break
            filled += size
    except (EOFError, lzma.LZMAError, OSError) as error:
        if "Memory usage limit" in str(error):
            raise DataError(
                f"{name}: expected a compressed file that this memory budget has room to read, found one with a larger "
                "dictionary; give a larger --memory, or compress it anew with a smaller preset (xz -6)"
            ) from None
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = error.filename or name
            raise  # the device failed, not the data
        raise DataError(
            f"{name}: expected a whole compressed file, found a truncated or damaged one ({error}); get it again"
        ) from None
    return filled


# ---------------------------------------------------------------------------------------------------------------------
# Blocks of lines, read ahead

LastEnd = Callable[[bytearray, int], int]


def _last_line_end(buffer: bytearray, size: int) -> int:
    return buffer.rfind(b"\n", 0, size) + 1


def read_blocks(
    ranges: Sequence[Piece],
    block_bytes: int,
    max_line_bytes: int | None = None,
    decoder_bytes: int = DECODER_BYTES,
    last_end: LastEnd = _last_line_end,
) -> Generator[ByteBlock, None, None]:
    """Read ranges one after another in blocks of whole lines; an empty source gives one empty block.

    Three blocks of `block_bytes` are in memory, besides what decompression takes; a block may grow for a line of up to
    `max_line_bytes` (by default 64 blocks, or 1 GB if that is more), and a decoder of xz take up to `decoder_bytes`.
    `last_end` finds where the last whole line of a buffer's first bytes ends, 0 where none does.
    """
    most = max_line_bytes or max(64 * block_bytes, 1_000_000_000)
    return ahead(_blocks(ranges, block_bytes, most, decoder_bytes, last_end))


def _blocks(
    ranges: Sequence[Piece], block_bytes: int, max_line_bytes: int, decoder_bytes: int, last_end: LastEnd
) -> Generator[ByteBlock, None, None]:
    """Read blocks of lines into buffers that are used in turn."""
    bytes_before, buffers = 0, deque(bytearray(block_bytes + PADDING) for _ in range(1 + AHEAD))
    for part in ranges:
        name = display_name(part.path)
        with _open(part) as raw:
            file = _decompressed(raw, part.stop is None, decoder_bytes)
            tail, first, more = b"", part.start == 0, True
            while more:
                buffer, size = buffers.popleft(), len(tail)
                if len(buffer) != block_bytes + PADDING or size > block_bytes:  # for a long line
                    buffer = bytearray(max(size, block_bytes) + PADDING)
                buffer[:size] = tail
                while True:  # until the buffer holds the end of a line
                    room = len(buffer) - PADDING
                    with memoryview(buffer) as view:
                        size += _fill(file, view[size:room], name)
                    more = size == room
                    if not more or (stop := last_end(buffer, size)):
                        break
                    if room >= max_line_bytes:
                        raise DataError(
                            f"{name}: expected lines of at most {format_size(max_line_bytes)} under this memory budget, "
                            "found a longer one (a quote that is not closed?); give a larger --memory, or fewer --workers"
                        )
                    buffer = buffer + bytes(min(2 * room, max_line_bytes) - room)
                buffers.append(buffer)
                if not more:
                    if size and buffer[size - 1] != 0x0A:
                        buffer[size] = 0x0A  # the last line has no newline; there is room in the padding
                        size += 1
                    stop = size
                tail = bytes(memoryview(buffer)[stop:size])
                start = len(_BYTE_ORDER_MARK) if first and buffer.startswith(_BYTE_ORDER_MARK) else 0
                yield ByteBlock(buffer, start, stop, name, first, bytes_before + raw.n_bytes)
                first = False
            bytes_before += raw.n_bytes

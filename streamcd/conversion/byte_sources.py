"""Text of files, URLs and standard input, compressed or not, in blocks that end where a line ends.

A thread reads and decompresses ahead of the parser, into a fixed set of buffers, so memory is bounded by the size of a block
and by the longest line.
"""

from __future__ import annotations

import io
import lzma
import re
import select
import sys
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from isal import igzip, isal_zlib

from ..core.errors import DataError, file_named
from ..core.memory_budget import format_size
from ..core.parallel import AHEAD, is_abandoned
from ..core.storage import file_size, open_bytes
from .sources import STANDARD_INPUT, Counted, Piece, Reader, Reading, display_name, refusing_damage

LEAST_RANGE_BYTES = 1 << 20
MOST_RANGE_BYTES = 128 << 20
"""Bounds on the bytes of a range if several processes read."""

HEAD_BYTES = 1 << 20
"""First bytes of a text, by which formats are recognised, and types of columns inferred."""

PADDING = 16
"""Readable bytes after the end of a block's text: the parser loads eight bytes at once."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_CODECS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_COMPRESSED_READ_BYTES = 1 << 18
_DAMAGE: tuple[type[Exception], ...] = (
    EOFError,
    lzma.LZMAError,
    isal_zlib.error,  # type: ignore[assignment]  # its stub calls the class an instance
)
_DELIMITERS = ",;\t|"
_LIBSVM_TOKEN = re.compile(r"(?:qid|[0-9]+):")


# ---------------------------------------------------------------------------------------------------------------------
# One source


class _Input(io.RawIOBase):
    """File that counts the bytes read, up to `n_bytes`, and whose first bytes can be inspected before they are read."""

    def __init__(self, file: Any, n_bytes: int | None = None) -> None:
        self._file = file
        self._limit = n_bytes
        self._head = b""
        self.n_bytes = 0

    def readable(self) -> bool:
        return True

    def peek(self, size: int) -> bytes:
        while (
            len(self._head) < size and self._has_input() and (more := self._file.read(size - len(self._head)))
        ):
            self._head += more
        return self._head

    def readinto(self, buffer: Any) -> int:
        if self._limit is not None:
            buffer = buffer[: self._limit - self.n_bytes]
        if self._head:
            size = min(len(buffer), len(self._head))
            buffer[:size] = self._head[:size]
            self._head = self._head[size:]
        else:
            size = (self._file.readinto(buffer) or 0) if self._has_input() else 0
        self.n_bytes += size
        return size

    def _has_input(self) -> bool:
        """Wait for input of a pipe or a terminal, which may never come; false once nobody waits for it."""
        if not isinstance(self._file, io.FileIO):
            return True
        poll = select.poll()
        poll.register(self._file, select.POLLIN)
        while not poll.poll(200):  # milliseconds
            if is_abandoned():
                return False
        return True

    def close(self) -> None:
        self._file.close()
        super().close()


@lru_cache(maxsize=1)
def _standard_input(stdin: Any) -> _Input:
    return _Input(open(stdin.fileno(), "rb", buffering=0, closefd=False))


def _open(piece: Piece) -> _Input:
    if piece.path == STANDARD_INPUT:
        if _standard_input(sys.stdin).closed:  # read to its end before
            _standard_input.cache_clear()
        return _standard_input(sys.stdin)
    file = open_bytes(piece.path)
    if piece.start:
        file.seek(piece.start)
    return _Input(file, None if piece.stop is None else piece.stop - piece.start)


def read_head(path: str, decoder_bytes: int) -> bytes:
    """Read the first `HEAD_BYTES` of the text of a file, decompressed; those of standard input can be read again."""
    raw = _open(Piece(path))
    text = bytearray()
    n_bytes = HEAD_BYTES + len(_BYTE_ORDER_MARK)
    if path == STANDARD_INPUT:
        raw = _Input(io.BytesIO(raw.peek(n_bytes)))
    with raw, suppress(OSError, *_DAMAGE):  # what is cut off, or damaged, ends here
        file = _decompressed(raw, path, decoder_bytes)
        while len(text) < n_bytes and (more := file.read(1 << 14)):
            text += more
    return bytes(text).removeprefix(_BYTE_ORDER_MARK)[:HEAD_BYTES]


def is_compressed(path: str) -> bool:
    """Return whether a file is compressed, by its first bytes."""
    with open_bytes(path) as file:
        return (file.read(6) or b"").startswith(tuple(_CODECS))


def delimiter_of(text: bytes) -> str | None:
    """Return the delimiter of a table's first line; None for a line of libsvm text, or of a single word."""
    lines = text.decode("utf-8", errors="replace").splitlines()
    line = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    if any(_LIBSVM_TOKEN.match(token) for token in line.split()[:2]):
        return None
    counts = {delimiter: line.count(delimiter) for delimiter in _DELIMITERS}
    most = max(counts, key=counts.__getitem__)
    return most if counts[most] else None


class _XzStreams(io.RawIOBase):
    """Text of xz streams, one after another; `lzma.LZMAFile` takes a damaged one for the end of the file.

    A stream that asks for more than `memory_bytes`, most of it for its dictionary, is refused.
    """

    def __init__(self, raw: _Input, name: str, memory_bytes: int) -> None:
        self._raw = raw
        self._name = name
        self._memory_bytes = memory_bytes
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memory_bytes)

    def readinto(self, view: Any) -> int:
        text = b""
        while not text:
            given = b""
            if self._decoder.eof:
                given = self._decoder.unused_data
                while not given.lstrip(b"\0") and (more := self._raw.read(_COMPRESSED_READ_BYTES)):
                    given = given[: len(given) % 4] + more
                stream = given.lstrip(b"\0")  # zeros in fours come between streams and after the last one
                if (len(given) - len(stream)) % 4:
                    raise lzma.LZMAError("bytes after a stream that are no stream")
                if not stream:
                    break
                given = stream
                self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, self._memory_bytes)
            elif self._decoder.needs_input and not (given := self._raw.read(_COMPRESSED_READ_BYTES) or b""):
                raise EOFError("it ends within a stream")
            try:
                text = self._decoder.decompress(given, min(len(view), _COMPRESSED_READ_BYTES))
            except lzma.LZMAError as error:
                if "Memory usage limit" not in str(error):
                    raise
                raise DataError(
                    f"{self._name}: expected a compressed file that this memory budget has room to read, found one with a "
                    "larger dictionary; give a larger --memory, or compress it anew with a smaller preset (xz -6)"
                ) from None
        view[: len(text)] = text
        return len(text)


def _decompressed(raw: _Input, name: str, memory_bytes: int) -> Any:
    """Open the text of a whole file, decompressed according to its first bytes."""
    head = raw.peek(6)
    codec = next((codec for magic, codec in _CODECS.items() if head.startswith(magic)), None)
    if codec is None:
        return raw
    if codec == "xz":
        return _XzStreams(raw, name, memory_bytes)
    if codec == "gzip":  # three times as fast as Arrow's
        return igzip.IGzipFile(mode="rb", fileobj=raw)
    import pyarrow as pa  # only compressed input needs it

    return pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), codec)


# ---------------------------------------------------------------------------------------------------------------------
# Blocks of lines, read ahead


class ByteBlock(NamedTuple):
    """Lines of one source: ``text[:stop]``, which ends with a newline, followed by `PADDING` more bytes."""

    text: np.ndarray  # reused after the next block but one is requested
    stop: int
    name: str  # of the source, in messages
    first: bool  # of its source
    bytes_read: int  # of all sources so far; compressed where they are


@dataclass(frozen=True)
class TextReader(Reader):
    """Base of readers of text, whose pieces are ranges of bytes."""

    paths: list[str]
    reading: Reading

    def pieces(self, n_tasks: int = 1) -> list[Piece]:
        """Return whole files, or ranges of lines of about one size; compressed files are not cut."""
        ranges: list[Piece] = []
        most = sum(file_size(path) or 0 for path in self.paths) // n_tasks
        most = min(max(most, LEAST_RANGE_BYTES), MOST_RANGE_BYTES)
        for whole in super().pieces():
            path, _, _, size = whole
            if n_tasks == 1 or size <= most or is_compressed(path):
                ranges.append(whole)
                continue
            with io.BufferedReader(open_bytes(path)) as file:
                start = 0
                while start < size:
                    # the first line that begins where the cut should be, or after it; a long line is never cut
                    file.seek(start + most - 1)
                    while (text := file.readline(_COMPRESSED_READ_BYTES)) and not text.endswith(b"\n"):
                        pass
                    stop = min(file.tell(), size)
                    ranges.append(Piece(path, start, stop, stop - start))
                    start = stop
        return ranges

    def count(self, piece: Piece) -> Counted:
        n_rows, n_lines, whole = zip(*map(self.count_block, self.texts([piece])), strict=True)
        return Counted(sum(n_rows), sum(n_lines), whole[-1])

    def count_block(self, block: ByteBlock) -> Counted:
        """Count the rows and the lines of a block."""
        raise NotImplementedError

    def last_end(self, buffer: bytearray, size: int) -> int:
        """Return where the last whole line, or record, of a buffer's first bytes ends; 0 where none does."""
        return buffer.rfind(b"\n", 0, size) + 1

    def texts(self, pieces: Sequence[Piece]) -> Generator[ByteBlock, None, None]:
        """Read pieces one after another in blocks of whole lines; an empty source gives one empty block.

        Three blocks are in memory, besides what decompression takes; a block may grow for a line, and a decoder of xz take
        memory, as far as `reading` allows. Buffers are used in turn.
        """
        block_bytes = self.reading.block_bytes
        most = self.reading.max_line_bytes
        bytes_before = 0
        buffers = deque(bytearray(block_bytes + PADDING) for _ in range(1 + AHEAD))
        for piece in pieces:
            name = display_name(piece.path)
            tail = b""
            first = piece.start == 0
            more = True
            with _open(piece) as raw:
                file = _decompressed(raw, name, self.reading.decoder_bytes) if piece.stop is None else raw
                while more:
                    buffer = buffers.popleft()
                    size = len(tail)
                    if len(buffer) != block_bytes + PADDING or size > block_bytes:  # for a long line
                        buffer = bytearray(max(size, block_bytes) + PADDING)
                    buffer[:size] = tail
                    while True:  # until the buffer holds the end of a line
                        room = len(buffer) - PADDING
                        size += _fill(file, buffer, slice(size, room), name)
                        more = size == room
                        if not more or (stop := self.last_end(buffer, size)):
                            break
                        if room >= most:
                            raise DataError(
                                f"{name}: expected lines of at most {format_size(most)} under this memory budget, found a "
                                "longer one (a quote that is not closed?); give a larger --memory, or fewer --workers"
                            )
                        buffer = buffer + bytes(min(2 * room, most) - room)
                    buffers.append(buffer)
                    if not more:
                        if size and buffer[size - 1] != 0x0A:
                            buffer[size] = 0x0A  # the last line has no newline; there is room in the padding
                            size += 1
                        stop = size
                    tail = bytes(memoryview(buffer)[stop:size])
                    start = len(_BYTE_ORDER_MARK) if first and buffer.startswith(_BYTE_ORDER_MARK) else 0
                    text = np.frombuffer(buffer, np.uint8)[start:]
                    bytes_read = bytes_before + raw.n_bytes
                    yield ByteBlock(text, stop - start, name, first, bytes_read)
                    first = False
                bytes_before += raw.n_bytes


def _fill(file: Any, buffer: bytearray, part: slice, name: str) -> int:
    """Read until a part of a buffer is full or the source ends; return the bytes read."""
    filled = 0
    found = "expected a whole compressed file, found a truncated or damaged one"
    with (
        refusing_damage(_DAMAGE, found, name),
        file_named(name),
        memoryview(buffer)[part] as view,
    ):
        while filled < len(view) and (size := file.readinto(view[filled:])):
            filled += size
    return filled

"""Sequential writing of files past the page cache (O_DIRECT), by a thread, which computes their digest too; checksums.

In the page cache, data that will not be read again soon costs a copy into new pages, and evicts others.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import mmap
import os
import zlib
from array import array
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import file_named
from .parquet import NO_CRC

BUFFER_BYTES = 1 << 20
"""Size of each of a file's two buffers, one being filled, one being written: with it the disk took 2,100 MB/s."""

_BLOCK = 4096  # direct writes begin, end and come from multiples of it
_DIRECT = getattr(os, "O_DIRECT", 0)  # not on macOS

_POLYNOMIAL = 0xEDB88320  # of CRC-32; x⁰ is the highest bit


class DirectWriter:
    """A file being written, created or truncated first; durable once it is closed. It has the methods that pyarrow needs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = _create(path)
        self._buffers = [mmap.mmap(-1, BUFFER_BYTES), mmap.mmap(-1, BUFFER_BYTES)]
        self._filled = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="streamcd-disk")
        self._written: Future[None] | None = None
        self.n_bytes = 0
        self.digest = hashlib.sha256()  # of what has been written; of the whole file once it is closed
        self.closed = False
        self._crc = 0
        self._writes = array("q", (0, 0))  # bytes so far and their CRC-32, after each write

    def write(self, data: Any) -> int:
        """Append bytes, which are copied."""
        self._crc = zlib.crc32(data, self._crc)
        with memoryview(data) as given, given.cast("B") as whole:
            rest = 0
            while rest < len(whole):
                taken = min(BUFFER_BYTES - self._filled, len(whole) - rest)
                self._buffers[0][self._filled : self._filled + taken] = whole[rest : rest + taken]
                self._filled += taken
                rest += taken
                if self._filled == BUFFER_BYTES:
                    self._hand_over(BUFFER_BYTES)
            self.n_bytes += len(whole)
            self._writes.extend((self.n_bytes, self._crc))
            return len(whole)

    def flush(self) -> None:
        pass

    def tell(self) -> int:
        return self.n_bytes

    def close(self) -> None:
        """Write the rest and make the file durable."""
        if self.closed:
            return
        self.closed = True
        try:
            self._hand_over(-(-self._filled // _BLOCK) * _BLOCK)
            self._wait()
            with file_named(self._path):
                os.ftruncate(self._descriptor, self.n_bytes)
                os.fsync(self._descriptor)
        finally:
            self._thread.shutdown()
            os.close(self._descriptor)
            for buffer in self._buffers:
                buffer.close()

    @property
    def checksum(self) -> str:
        return "sha256:" + self.digest.hexdigest()

    def crcs(self, extents: Iterable[tuple[int, int]]) -> list[int]:
        """Compute the CRC-32 of byte ranges (offset, length); `NO_CRC` for a range that does not consist of whole writes."""
        ends, crcs = np.array(self._writes).reshape(-1, 2).T
        found = []
        for offset, n_bytes in extents:
            both = np.searchsorted(ends, [offset, offset + n_bytes])
            before, after = crcs[both].tolist()
            aligned = ends[both].tolist() == [offset, offset + n_bytes]
            found.append(after ^ _multiply(before, _power(n_bytes)) if aligned else NO_CRC)
        return found

    def _hand_over(self, n_bytes: int) -> None:
        """Let the thread write the first `n_bytes` of the buffer just filled."""
        self._wait()
        self._buffers.reverse()
        self._written = self._thread.submit(self._take_over, self._buffers[1], self._filled, n_bytes)
        self._filled = 0

    def _wait(self) -> None:
        if self._written is not None:
            written, self._written = self._written, None
            written.result()

    def _take_over(self, buffer: mmap.mmap, n_filled: int, n_bytes: int) -> None:
        with memoryview(buffer) as whole, whole[:n_filled] as filled:
            self.digest.update(filled)
        self._write_all(buffer, n_bytes)

    def _write_all(self, buffer: mmap.mmap, n_bytes: int) -> None:
        done = 0
        while done < n_bytes:
            with file_named(self._path), memoryview(buffer) as whole, whole[done:n_bytes] as rest:
                try:
                    done += os.write(self._descriptor, rest)
                except OSError as error:
                    if error.errno != errno.EINVAL or not self._give_up_directness():
                        raise

    def _give_up_directness(self) -> bool:
        """Continue through the page cache, if the file system refuses direct writes or writes only part of a block."""
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~_DIRECT)
        return bool(flags & _DIRECT)


def _create(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        return os.open(path, flags | _DIRECT, 0o644)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o644)


# ---------------------------------------------------------------------------------------------------------------------
# CRC-32 of concatenated bytes: crc(a ‖ b) = crc(a) x^(8 |b|) + crc(b) modulo the polynomial, as in zlib's crc32_combine,
# which Python does not export; so crc(b) follows from crc(a) and crc(a ‖ b)


def _multiply(a: int, b: int) -> int:
    """Multiply two polynomials over GF(2), modulo the polynomial."""
    product = 0
    while a:
        if a & 0x80000000:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def _power(n_bytes: int) -> int:
    """Compute ``x^(8 n_bytes)`` modulo the polynomial."""
    power = 0x80000000
    for k in range(n_bytes.bit_length()):
        if n_bytes >> k & 1:
            power = _multiply(power, _square(k))
    return power


@functools.lru_cache(maxsize=64)
def _square(k: int) -> int:
    """``x^8``, squared `k` times."""
    return _multiply(_square(k - 1), _square(k - 1)) if k else 0x00800000

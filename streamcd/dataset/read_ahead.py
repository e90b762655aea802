"""Ranges of a dataset's files that are read ahead, past the page cache, or by several requests at a time.

For data larger than the page cache: every page read through the cache evicts another one, and costs one more copy on the
processor that trains.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from ..core import storage
from ..core.storage import Location, Url

AHEAD_BYTES = 6_000_000
"""Largest number of bytes read ahead, unless a single range is larger: a 1 MB chunk for each thread, one being decoded."""

_THREADS = 4
"""One thread got 770 to 900 MB/s from the disk, four up to 1,030, eight no more (random ranges of a megabyte)."""

_BLOCK = 4096  # direct reads begin, end and land on multiples of it


@dataclass(eq=False)
class _Ahead:
    path: Location
    offset: int
    length: int
    start: int  # offset in the file at which the blocks of the range begin
    size: int  # bytes of these blocks
    buffer: mmap.mmap | None = None
    data: Future[memoryview | None] | None = None  # None until reading begins


class Ring:
    """Reader of announced ranges, in the order in which they were announced and will be taken.

    A range that cannot be read in this way (no direct reads on this file system, file too short or missing) is left to the
    caller, whose own read reports the error.
    """

    def __init__(self, ahead_bytes: int = 0, *, remote: bool = False) -> None:
        self._limit = ahead_bytes or (storage.AHEAD_BYTES if remote else AHEAD_BYTES)
        self.possible = True
        """False once the file system has refused a direct read."""
        self._ranges: deque[_Ahead] = deque()  # announced and not taken yet; the first ones are being read
        self._held = 0
        self._free: list[mmap.mmap] = []
        self._taken: _Ahead | None = None
        n_threads = storage.REQUESTS_AT_A_TIME if remote else _THREADS
        self._threads = ThreadPoolExecutor(n_threads, thread_name_prefix="streamcd-disk")

    def announce(self, path: Location, offset: int, length: int) -> None:
        """Announce a range of a file that will be taken."""
        start = offset - offset % _BLOCK
        size = -(-(offset + length - start) // _BLOCK) * _BLOCK
        self._ranges.append(_Ahead(path, offset, length, start, size))
        self._begin()

    def take(self, path: Location, offset: int) -> memoryview | None:
        """Return the bytes of an announced range, valid until the next call; None if the caller has to read them itself.

        Ranges announced earlier and not taken are dropped.
        """
        self._release(self._taken)
        self._taken = None
        matching = (n for n, one in enumerate(self._ranges) if one.offset == offset and one.path == path)
        position = next(matching, None)
        for _ in range(position or 0):
            self._release(self._ranges.popleft())
        self._begin()
        if position is None:
            return None
        self._taken = self._ranges.popleft()
        assert self._taken.data is not None, "no earlier range holds memory, so this one is being read"
        return self._taken.data.result()

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)

    def _begin(self) -> None:
        """Start reading the next ranges, as many as memory allows."""
        for wanted in self._ranges:
            if wanted.data is not None:
                continue
            if self._held and self._held + wanted.size > self._limit:
                return
            wanted.buffer = self._buffer(wanted.size)
            self._held += len(wanted.buffer)
            wanted.data = self._threads.submit(self._read, wanted)

    def _release(self, wanted: _Ahead | None) -> None:
        if wanted is not None and wanted.data is not None and wanted.buffer is not None:
            wanted.data.result()
            self._held -= len(wanted.buffer)
            self._free.append(wanted.buffer)

    def _buffer(self, size: int) -> mmap.mmap:
        """Return memory for a range; buffers are reused, since new ones cost a page fault every 4 kB."""
        for number, buffer in enumerate(self._free):
            if len(buffer) >= size and (self._held == 0 or self._held + len(buffer) <= self._limit):
                return self._free.pop(number)
        while self._free and self._held + sum(map(len, self._free)) + size > self._limit:
            self._free.pop()
        return mmap.mmap(-1, size)

    def _read(self, wanted: _Ahead) -> memoryview | None:
        """Read a range into its buffer; None where not all of it is there."""
        assert wanted.buffer is not None
        shift = wanted.offset - wanted.start
        try:
            if isinstance(wanted.path, Url):
                data = wanted.path.read(wanted.offset, wanted.length)
                stop = shift + len(data)
                wanted.buffer[shift:stop] = data
            else:
                stop = _read_blocks(wanted.path, wanted.buffer, wanted.start, wanted.size)
        except OSError as error:  # the caller's own read reports it
            self.possible = self.possible and error.errno != errno.EINVAL
            return None
        whole = shift + wanted.length
        return memoryview(wanted.buffer)[shift:whole] if stop >= whole else None


def _read_blocks(path: Location, buffer: mmap.mmap, start: int, n_bytes: int) -> int:
    """Read blocks of a file; returns how many bytes there are before its end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    done = 0
    try:
        with memoryview(buffer) as whole:
            while done < n_bytes:
                with whole[done:n_bytes] as rest:
                    n_read = os.preadv(descriptor, [rest], start + done)
                done += n_read
                if n_read == 0 or n_read % _BLOCK:
                    break  # the end of the file
        return done
    finally:
        os.close(descriptor)

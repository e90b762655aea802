"""Read-ahead of ranges of files past the page cache (O_DIRECT), or at URLs, by threads, into bounded memory.

For data larger than the page cache: every page read through the cache evicts another one, and costs one more copy on the
processor that trains.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

AHEAD_BYTES = 6_000_000
"""Largest number of bytes read ahead, unless a single range is larger: a 1 MB chunk for each thread, one being decoded."""

SHARED_AHEAD_BYTES = AHEAD_BYTES // 2
"""The same for each of several readers, some of which decode while others wait for the disk."""

_THREADS = 4
"""One thread got 770 to 900 MB/s from the disk, four up to 1,030, eight no more (random ranges of a megabyte)."""

_BLOCK = 4096  # direct reads begin, end and land on multiples of it
_DIRECT = getattr(os, "O_DIRECT", 0)  # not on macOS


@dataclass(eq=False)
class _Range:
    path: os.PathLike[str]
    offset: int
    length: int
    buffer: mmap.mmap | None = None
    complete: Future[bool] | None = None  # None until reading begins

    @property
    def key(self) -> tuple[os.PathLike[str], int]:
        return self.path, self.offset

    @property
    def start(self) -> int:
        """Offset in the file at which the blocks of the range begin."""
        return self.offset - self.offset % _BLOCK

    @property
    def size(self) -> int:
        """Bytes of the range's blocks."""
        return -(-(self.offset + self.length - self.start) // _BLOCK) * _BLOCK


Fetch = Callable[[Any, int, int], bytes]
"""Reads a range of what is named, as much as there is."""


class ReadAhead:
    """Reader of announced ranges, in the order in which they were announced and will be taken.

    A range that cannot be read in this way (no direct reads on this file system, file too short or missing) is left to the
    caller, whose own read reports the error. `fetch` reads ranges of what is no file.
    """

    def __init__(
        self, ahead_bytes: int = AHEAD_BYTES, fetch: Fetch | None = None, n_threads: int = _THREADS
    ) -> None:
        self._limit, self._fetch = ahead_bytes, fetch
        # false once the file system has refused a direct read
        self.possible = fetch is not None or bool(_DIRECT)
        self._coming: deque[_Range] = deque()  # announced and not taken yet
        self._announced: Counter[tuple[os.PathLike[str], int]] = Counter()  # keys of `_coming`
        self._waiting: deque[_Range] = deque()  # the end of `_coming`: not being read yet
        self._held = 0
        self._free: list[mmap.mmap] = []
        self._taken: _Range | None = None
        self._threads = ThreadPoolExecutor(n_threads, thread_name_prefix="streamcd-disk")

    def expect(self, path: os.PathLike[str], offset: int, length: int) -> None:
        """Announce a range of a file that will be taken."""
        wanted = _Range(path, offset, length)
        self._coming.append(wanted)
        self._announced[wanted.key] += 1
        self._waiting.append(wanted)
        self._begin()

    def take(self, path: os.PathLike[str], offset: int) -> memoryview | None:
        """Return the bytes of an announced range, valid until the next call; None if the caller has to read them itself.

        Ranges announced earlier and not taken are dropped.
        """
        if self._taken is not None:
            self._release(self._taken)
            self._taken = None
        if (path, offset) not in self._announced:
            self._begin()
            return None
        while (wanted := self._next()).key != (path, offset):
            self._release(wanted)
        self._begin()
        self._taken = wanted
        assert wanted.complete is not None, "no earlier range holds memory, so this one is being read"
        if not wanted.complete.result() or wanted.buffer is None:
            return None
        shift = wanted.offset - wanted.start
        return memoryview(wanted.buffer)[shift : shift + wanted.length]

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)

    def _next(self) -> _Range:
        wanted = self._coming.popleft()
        self._announced[wanted.key] -= 1
        if not self._announced[wanted.key]:
            del self._announced[wanted.key]
        return wanted

    def _begin(self) -> None:
        """Start reading the next ranges, as many as memory allows."""
        while self._waiting and (self._held == 0 or self._held + self._waiting[0].size <= self._limit):
            wanted = self._waiting.popleft()
            wanted.buffer = self._buffer(wanted.size)
            self._held += len(wanted.buffer)
            wanted.complete = self._threads.submit(self._read, wanted)

    def _release(self, wanted: _Range) -> None:
        if wanted.complete is None or wanted.buffer is None:
            self._waiting.popleft()  # this range: all before it are gone
            return
        wanted.complete.result()
        self._held -= len(wanted.buffer)
        self._free.append(wanted.buffer)
        wanted.buffer = None

    def _read(self, wanted: _Range) -> bool:
        try:
            return _read(wanted) if self._fetch is None else _copy(wanted, self._fetch)
        except OSError as error:  # the caller's own read reports it
            if error.errno == errno.EINVAL:
                self.possible = False
            return False

    def _buffer(self, size: int) -> mmap.mmap:
        """Return memory for a range; buffers are reused, since new ones cost a page fault every 4 kB."""
        for number, buffer in enumerate(self._free):
            if len(buffer) >= size and (self._held == 0 or self._held + len(buffer) <= self._limit):
                return self._free.pop(number)
        while self._free and self._held + sum(map(len, self._free)) + size > self._limit:
            self._free.pop()
        return mmap.mmap(-1, size)


def _copy(wanted: _Range, fetch: Fetch) -> bool:
    """Fetch a range; true where all of it is there."""
    assert wanted.buffer is not None
    data = fetch(wanted.path, wanted.offset, wanted.length)
    shift = wanted.offset - wanted.start
    wanted.buffer[shift : shift + len(data)] = data
    return len(data) == wanted.length


def _read(wanted: _Range) -> bool:
    """Read the blocks of a range; false if the file ends before the range does."""
    buffer = wanted.buffer
    assert buffer is not None
    descriptor = os.open(wanted.path, os.O_RDONLY | _DIRECT)
    try:
        done = 0
        with memoryview(buffer) as whole:
            while done < wanted.size:
                with whole[done : wanted.size] as rest:
                    n_bytes = os.preadv(descriptor, [rest], wanted.start + done)
                done += n_bytes
                if n_bytes == 0 or n_bytes % _BLOCK:
                    break  # the end of the file
        return wanted.start + done >= wanted.offset + wanted.length
    finally:
        os.close(descriptor)

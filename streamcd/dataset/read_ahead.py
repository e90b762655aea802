"""Ranges of files read ahead past the page cache (O_DIRECT), or from URLs, by threads, into a bounded number of bytes.

For data that the page cache cannot hold: there every page read through it must first push another one out and is copied
once more, on the processor that trains.
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
"""Bytes read ahead at most, unless a single range is larger: a chunk of the usual megabyte a thread, one being decoded."""

SHARED_AHEAD_BYTES = AHEAD_BYTES // 2
"""The same for each of several readers, which decode while others wait for the disk."""

_THREADS = 4
"""One alone got 770 to 900 MB/s of the disk, four up to 1,030, eight no more (random pieces of a megabyte)."""

_BLOCK = 4096  # direct reads begin, end and land on multiples of it
_DIRECT = getattr(os, "O_DIRECT", 0)  # not on macOS


@dataclass(eq=False)
class _Range:
    path: os.PathLike[str]
    offset: int
    length: int
    buffer: mmap.mmap | None = None
    complete: Future[bool] | None = None  # once it is being read

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
    """Reader of ranges in the order in which they are announced; they are taken in that order.

    A range that cannot be read in this way (a file system without direct reads, a file that is too short or gone) is
    left to the caller's own reading, which says what is wrong. `fetch` reads ranges of what is no file; `n_threads` read.
    """

    def __init__(
        self, ahead_bytes: int = AHEAD_BYTES, fetch: Fetch | None = None, n_threads: int = _THREADS
    ) -> None:
        self._limit, self._fetch = ahead_bytes, fetch
        # false once the file system has refused a direct read
        self.possible = fetch is not None or bool(_DIRECT)
        self._coming: deque[_Range] = deque()  # announced, and not taken yet
        self._announced: Counter[tuple[os.PathLike[str], int]] = Counter()  # their keys
        self._waiting: deque[_Range] = deque()  # of these, the last ones, not begun
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
        """Take the bytes of an announced range, valid until the next is taken; None where they must be read in another way.

        Ranges announced before it and not taken are given up.
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
        assert wanted.complete is not None, "nothing before it holds memory"
        if not wanted.complete.result() or wanted.buffer is None:
            return None
        shift = wanted.offset - wanted.start
        return memoryview(wanted.buffer)[shift : shift + wanted.length]

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(cancel_futures=True)

    def _next(self) -> _Range:
        wanted = self._coming.popleft()
        self._announced[wanted.key] -= 1
        if not self._announced[wanted.key]:
            del self._announced[wanted.key]
        return wanted

    def _begin(self) -> None:
        """Have the next ranges read, as far as there is memory for them."""
        while self._waiting and (self._held == 0 or self._held + self._waiting[0].size <= self._limit):
            wanted = self._waiting.popleft()
            wanted.buffer = self._buffer(wanted.size)
            self._held += len(wanted.buffer)
            wanted.complete = self._threads.submit(self._read, wanted)

    def _release(self, wanted: _Range) -> None:
        if wanted.complete is None or wanted.buffer is None:
            self._waiting.popleft()  # itself: all before it are gone
            return
        wanted.complete.result()
        self._held -= len(wanted.buffer)
        self._free.append(wanted.buffer)
        wanted.buffer = None

    def _read(self, wanted: _Range) -> bool:
        try:
            return _read(wanted) if self._fetch is None else _copy(wanted, self._fetch)
        except OSError as error:  # the caller's own reading says what is wrong
            if error.errno == errno.EINVAL:
                self.possible = False
            return False

    def _buffer(self, size: int) -> mmap.mmap:
        """Memory for a range; buffers are used again, since new ones cost a page fault every 4 kB."""
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
    """Read the blocks of a range; true where all of the range is there."""
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

"""Faults at the n-th operation on files of a process and of the children that it forks, by wrapping Python's functions.

Counted are calls from Python: of `os` by name, and every write to a file opened by `open`. Not seen: bytes that C code
writes by itself (`ndarray.tofile`); the sync and the rename of such a file are.
"""

from __future__ import annotations

import builtins
import errno
import io
import multiprocessing
import os
import signal
from collections.abc import Callable, Collection
from typing import Any

from streamcd.core import files

HOWS = ("before", "half", "after", "ENOSPC", "EIO", "short")
"""Killed before the operation, half-way or after it; its error; a write that takes half of the bytes and says so."""

WRITES = ("write", "pwrite", "pwritev", "file_write")
SYNCS = ("fsync", "fdatasync")
RENAMES = ("replace", "rename")
OTHERS = ("exchange", "open_new", "mkdir", "unlink", "remove", "rmdir", "ftruncate", "posix_fallocate")
ALL = (*WRITES, *SYNCS, *RENAMES, *OTHERS)

_OPEN = builtins.open


class FaultyFiles:
    """Count operations on files and let one of them fail.

    Parameters
    ----------
    at : int
        Number of the operation from 1; 0 counts only.
    how : str
        One of `HOWS`.
    operations : collection of str
        Those that count, of `ALL`.
    whole_group : bool
        Kill the group of the process, which has to be its own.
    """

    def __init__(
        self,
        at: int = 0,
        how: str = "before",
        operations: Collection[str] = ALL,
        *,
        whole_group: bool = False,
    ) -> None:
        self.at, self.how, self.operations, self.whole_group = at, how, operations, whole_group
        self._count = multiprocessing.get_context("fork").Value("q", 0)

    @property
    def count(self) -> int:
        return int(self._count.value)

    def install(self) -> None:
        """Wrap the functions of this process; for a process that ends soon."""
        for name in set(self.operations) - {"file_write", "open_new", "exchange"}:
            setattr(os, name, self._wrapped(getattr(os, name), self._halves().get(name)))
        if "open_new" in self.operations:
            os.open = self._wrapped_open(os.open)
        if "exchange" in self.operations:
            files.exchange = self._wrapped(files.exchange, None)
        if "file_write" in self.operations:
            builtins.open = io.open = self._open_file

    def perform(self, call: Callable[..., Any], half: Callable[..., Any] | None, *arguments: Any) -> Any:
        """Call a function, or fail where its turn has come; `half` does a part of its work."""
        if not self._is_now():
            return call(*arguments)
        if self.how == "short":
            return call(*arguments) if half is None else half(*arguments)
        if self.how in ("ENOSPC", "EIO"):
            number = getattr(errno, self.how)
            raise OSError(number, os.strerror(number))
        if self.how == "half" and half is not None:
            half(*arguments)
        if self.how == "after":
            call(*arguments)
        return self.die()

    def die(self) -> None:
        """Kill this process, and its group where `whole_group` is set."""
        if self.whole_group:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def _is_now(self) -> bool:
        with self._count.get_lock():
            self._count.value += 1
            return bool(self._count.value == self.at)

    def _wrapped(self, call: Callable[..., Any], half: Callable[..., Any] | None) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            if _is_cache(arguments[0]):
                return call(*arguments, **options)
            return self.perform(lambda *given: call(*given, **options), half, *arguments)

        return counted

    def _wrapped_open(self, call: Callable[..., int]) -> Callable[..., int]:
        def counted(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
            if not flags & os.O_CREAT or _is_cache(path):
                return call(path, flags, *arguments, **options)
            opened: int = self.perform(lambda: call(path, flags, *arguments, **options), None)
            return opened

        return counted

    @staticmethod
    def _halves() -> dict[str, Callable[..., int]]:
        write, pwrite = os.write, os.pwrite

        def first_half(data: Any) -> bytes:
            return bytes(data)[: len(bytes(data)) // 2]

        return {
            "write": lambda file, data: write(file, first_half(data)),
            "pwrite": lambda file, data, offset: pwrite(file, first_half(data), offset),
            "pwritev": lambda file, pieces, offset: pwrite(file, first_half(b"".join(pieces)), offset),
        }

    def _open_file(self, file: Any, mode: str = "r", buffering: int = -1, *more: Any, **options: Any) -> Any:
        if not set(mode) & set("wax+") or isinstance(file, int) or "opener" in options or _is_cache(file):
            return _OPEN(file, mode, buffering, *more, **options)
        if "open_new" in self.operations:
            self.perform(lambda: None, None)
        raw = _FaultyRaw(file, mode.replace("b", "").replace("t", "").replace("+", "") + "+", self)
        if "b" in mode:
            # not a BufferedWriter, into which numpy would write past Python
            return raw if buffering == 0 else io.BufferedRandom(raw)
        return io.TextIOWrapper(io.BufferedWriter(raw), *more, **options)


def _is_cache(file: Any) -> bool:
    """Recognise a file of the compile cache, which numba writes."""
    return any(part in str(file) for part in ("__pycache__", ".nbi", ".nbc"))


class _FaultyRaw(io.FileIO):
    def __init__(self, file: Any, mode: str, faults: FaultyFiles) -> None:
        super().__init__(file, mode)
        self._faults = faults

    def write(self, data: Any) -> int:
        def write(given: bytes) -> int:
            return io.FileIO.write(self, given)

        written: int = self._faults.perform(write, lambda given: write(given[: len(given) // 2]), bytes(data))
        return written

"""Recording of what a command does to the files below a directory, in its order, with the processes that it forks.

Calls of `os` that make, remove, rename or sync are seen by wrapping them, and those of `open` by an opener. Contents are
read from the files themselves, before every such call and after every write by `os`: so bytes that C code writes, or that
go past the page cache, are seen as those of Python are. A file that C code opens by its name is not seen.
"""

from __future__ import annotations

import builtins
import fcntl
import io
import os
import pickle
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from streamcd.core import files

_CONTENTS = ("write", "pwrite", "pwritev", "ftruncate", "posix_fallocate")
_OPEN, _OS_OPEN = builtins.open, os.open


class Event(NamedTuple):
    """One change of the files, by names below the directory; ``rename``, ``exchange`` and ``link`` have another."""

    kind: str
    path: str
    other: str = ""
    data: bytes = b""


class Recorder:
    """Recorder of the changes below `root`, installed in a process that ends soon; `events` reads them afterwards."""

    count = 0

    def __init__(self, root: Path, log: Path) -> None:
        self._root, self._log_path = os.path.realpath(root), log
        self._lock = threading.RLock()
        self._files: dict[
            int, tuple[int, bytes]
        ] = {}  # opened for writing, by inode: a descriptor, the content seen last

    def events(self) -> list[Event]:
        """Read what was recorded."""
        found = []
        with _OPEN(self._log_path, "rb") as file:
            while file.peek(1):
                found.append(Event(*pickle.load(file)))
        return found

    def install(self) -> None:
        """Wrap the functions of this process."""
        self._log = _OS_OPEN(self._log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.register_at_fork(after_in_child=self._begin_child)
        for name in _CONTENTS:
            self._wrap_content(name)
        for name in ("fsync", "fdatasync"):
            self._wrap(name, lambda file: self._note("sync", file))
        for name, kind in (
            ("unlink", "unlink"),
            ("remove", "unlink"),
            ("rmdir", "rmdir"),
            ("mkdir", "mkdir"),
        ):
            self._wrap(name, lambda path, *_, kind=kind, dir_fd=None: self._note(kind, path, dir_fd))
        for name, kind in (("rename", "rename"), ("replace", "rename"), ("link", "link")):
            self._wrap(name, lambda path, other, kind=kind: self._note_two(kind, path, other))
        self._wrap_exchange()
        os.open = self._open
        builtins.open = io.open = self._open_file

    def _begin_child(self) -> None:
        self._lock = threading.RLock()  # another thread of the parent may have held it

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Let one call at a time be made and recorded, among all threads and processes."""
        with self._lock:
            fcntl.lockf(self._log, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._log, fcntl.LOCK_UN)

    def _wrap(self, name: str, note: Callable[..., None]) -> None:
        call = getattr(os, name)

        def recorded(*arguments: Any, **options: Any) -> Any:
            with self._turn():
                self._look()
                result = call(*arguments, **options)
                note(*arguments, **options)
                return result

        setattr(os, name, recorded)

    def _wrap_content(self, name: str) -> None:
        call = getattr(os, name)

        def recorded(descriptor: int, *arguments: Any) -> Any:
            if os.fstat(descriptor).st_ino not in self._files:  # a pipe may wait for its reader
                return call(descriptor, *arguments)
            with self._turn():
                result = call(descriptor, *arguments)
                self._look()
                return result

        setattr(os, name, recorded)

    def _wrap_exchange(self) -> None:
        call = files.exchange

        def recorded(path: Path, other: Path) -> None:
            with self._turn():
                self._look()
                call(path, other)
                self._note_two("exchange", path, other)

        files.exchange = recorded

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        name = self._name(path, dir_fd)
        if name is None or not flags & (os.O_WRONLY | os.O_RDWR):
            return _OS_OPEN(path, flags, mode, dir_fd=dir_fd)
        with self._turn():
            self._look()
            full = os.path.join(self._root, name)
            before = None
            if os.path.lexists(full):
                with _OPEN(full, "rb") as file:
                    before = file.read()
            descriptor = _OS_OPEN(path, flags, mode, dir_fd=dir_fd)
            if before is None:
                self._write(Event("create", name))
            inode = os.fstat(descriptor).st_ino
            if inode not in self._files:
                self._files[inode] = _OS_OPEN(f"/proc/self/fd/{descriptor}", os.O_RDONLY), before or b""
            self._look()
            return descriptor

    def _open_file(self, file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if set(mode) & set("wax+") and not isinstance(file, int) and options.get("opener") is None:
            options["opener"] = lambda path, flags: self._open(path, flags, 0o666)
        return _OPEN(file, mode, *arguments, **options)

    def _look(self) -> None:
        """Record the contents that have changed."""
        for inode, (descriptor, before) in list(self._files.items()):
            found = os.fstat(descriptor)
            if not found.st_nlink:
                os.close(descriptor)
                del self._files[inode]
                continue
            content = os.pread(descriptor, found.st_size, 0)
            if content != before:
                self._files[inode] = descriptor, content
                name = self._name(descriptor)
                assert name is not None
                self._write(Event("content", name, data=content))

    def _note(self, kind: str, path: Any, dir_fd: int | None = None) -> None:
        name = self._name(path, dir_fd)
        if name is not None:
            self._write(Event(kind, name))

    def _note_two(self, kind: str, path: Any, other: Any) -> None:
        names = self._name(path), self._name(other)
        if names != (None, None):
            assert None not in names, "a file moves into the directory, or out of it"
            self._write(Event(kind, *names))  # type: ignore[arg-type]

    def _write(self, event: Event) -> None:
        _OS_WRITE(self._log, pickle.dumps(tuple(event)))

    def _name(self, path: Any, dir_fd: int | None = None) -> str | None:
        """Name a path, or an open file, below the directory; None where it is elsewhere."""
        if isinstance(path, int):
            full = os.readlink(f"/proc/self/fd/{path}")
        else:
            folder = os.getcwd() if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
            full = os.path.normpath(os.path.join(folder, os.fsdecode(path)))
            full = os.path.join(os.path.realpath(os.path.dirname(full)), os.path.basename(full))
        is_below = full == self._root or full.startswith(self._root + os.sep)
        return os.path.relpath(full, self._root) if is_below else None


_OS_WRITE = os.write


def tree_of(root: Path) -> dict[str, bytes | None]:
    """Read all files below a directory, by name; None stands for a directory, and comes before what is in it."""
    return {
        str(path.relative_to(root)): path.read_bytes() if stat.S_ISREG(path.lstat().st_mode) else None
        for path in sorted(root.rglob("*"))
    }


def make_tree(root: Path, tree: dict[str, bytes | None]) -> None:
    """Make the files of a tree in an empty directory."""
    for name, content in tree.items():
        if content is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(content)

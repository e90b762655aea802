"""What a power cut would leave: the contents and names that were synced, watched while a command of this process works.

Only what fsync was called for is safe: of a file its content at that moment, of a directory its names. A recorder compares
both with what is there when a file or a directory gets its final name, when a file that describes others does (a manifest, a
state, a model's description), and at the end. So it does not have to see the writes, nor whether C code makes them.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import RLock
from typing import Any

import pytest

from streamcd.core import atomic_files

SCRATCH = re.compile(r"(^|/)(lock|\.streamcd-[^/]*|[^/]*\.partial|again-[^/]*)$")
"""Names that the next command clears, unless they are in `KEPT`."""

KEPT = (".columns.partial",)
"""Directories of unfinished work that a later command goes on with."""

DESCRIBED: dict[str, Callable[[Path], list[Path]]] = {
    "manifest.json": lambda path: [path.parent],
    "state.npz": lambda path: [path.parent],
    "model.json": lambda path: [path.parent],
    "run-*.index": lambda path: [path.with_suffix("")],
    "sort-*.json": lambda path: [path.parent / "columns"],
}
"""Files that promise others, by name, and where these are: as soon as one has its name, they have to be durable."""


class Durability:
    """Recorder of syncs and renames below a directory; what lies there when it begins is durable."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.problems, self.names_given = root, list[str](), list[str]()
        self._contents: dict[int, bytes] = {}  # of files, by inode, when they were synced
        self._entries: dict[int, dict[str, int]] = {}  # names and inodes in a directory, when it was
        self._lock = RLock()
        for path in [root, *root.rglob("*")]:
            self._note(path)
        rename, replace, unlink = os.rename, os.replace, os.unlink
        patch.setattr(os, "fsync", self._fsync)
        patch.setattr(os, "fdatasync", self._fsync)
        for name, call in (("rename", rename), ("replace", replace)):
            patch.setattr(os, name, self._renaming(call))
        patch.setattr(atomic_files, "exchange", self._exchanging(atomic_files.exchange))
        for name in ("unlink", "remove"):
            patch.setattr(os, name, self._unlinking(unlink))

    def unsynced(self, place: Path, *, names: bool = True) -> list[str]:
        """List the contents at and below a path, and the names in it, that a power cut could take."""
        lost = []
        for path in [place, *_below(place)]:
            name = path.relative_to(self.root).as_posix()
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and not self._is_safe(path, found.st_ino):
                lost.append(f"content of {name}")
            if names and path != place:
                known = self._entries.get(path.parent.stat().st_ino, {})
                if known.get(path.name) != found.st_ino:
                    lost.append(f"name {name}")
        return lost

    def _lost_mark(self, mark: Path) -> list[str]:
        names = self._entries.get(mark.parent.stat().st_ino, {})
        is_safe = self._is_safe(mark, mark.stat().st_ino) and mark.name in names
        return [] if is_safe else [mark.relative_to(self.root).as_posix()]

    def _is_safe(self, path: Path, number: int) -> bool:
        """Compare a file with what was synced of it; space that was allocated and never written to holds nothing."""
        data = path.read_bytes()
        known = self._contents.get(number)
        return known == _digest(data) or (known is None and path.suffix == ".bin" and not any(data))

    def _note(self, path: Path) -> None:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            self._entries[found.st_ino] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self._contents[found.st_ino] = _digest(path.read_bytes())

    def _fsync(self, descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        with self._lock:
            self._note(Path(os.readlink(f"/proc/self/fd/{number}")))

    def _unlinking(self, call: Callable[..., None]) -> Callable[..., None]:
        def unlink(path: Any, *, dir_fd: int | None = None) -> None:
            number = os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_ino
            call(path, dir_fd=dir_fd)
            with self._lock:  # a new file may get the number of one that is gone
                self._contents.pop(number, None)

        return unlink

    def _renaming(self, call: Callable[..., None]) -> Callable[..., None]:
        def rename(source: Any, target: Any) -> None:
            path = Path(os.path.abspath(target))
            with self._lock:
                if self.root in path.parents:
                    self._check(Path(os.path.abspath(source)), path)
                if path.is_file():
                    self._contents.pop(path.stat().st_ino, None)
                call(source, target)

        return rename

    def _exchanging(self, call: Callable[[Path, Path], bool]) -> Callable[[Path, Path], bool]:
        def exchange(path: Path, other: Path) -> bool:
            with self._lock:
                self._check(path, other)
                return call(path, other)

        return exchange

    def _check(self, source: Path, target: Path) -> None:
        """Look at what is about to get a name, and at what it promises."""
        name = target.relative_to(self.root).as_posix()
        places = [place for pattern, of in DESCRIBED.items() if target.match(pattern) for place in of(target)]
        if source == target:
            self.problems.append(f"{name} had its name before it was complete")
        if not _is_scratch(target):
            self.names_given.append(name)
            places.append(source)
            if target.name != "model.json" and (target.parent / "model.json").exists():
                self.problems.append(f"{name} was replaced while model.json described the one before")
        mark = source.parent / "lock"  # by which what a cut leaves of the work is known as ours
        if source.is_dir() and mark.exists():
            self.problems += [f"{lost}, when work was done beside it" for lost in self._lost_mark(mark)]
        for place in places:
            whole = source.is_dir() or target.name in ("manifest.json", "model.json")
            self.problems += [
                f"{lost}, when {name} got its name" for lost in self.unsynced(place, names=whole)
            ]


def _below(place: Path) -> Iterator[Path]:
    """Iterate over what a directory holds, but for scratch."""
    if place.is_dir() and not place.is_symlink():
        for path in sorted(place.iterdir()):
            if not SCRATCH.search(path.as_posix()):
                yield path
                yield from _below(path)


def _is_scratch(path: Path) -> bool:
    return any(SCRATCH.search(part) and part not in KEPT for part in path.parts)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data).digest()

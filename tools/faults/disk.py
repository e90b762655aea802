"""A disk whose power is cut: names and contents, what a sync has made durable of them, and what a cut may leave of the rest.

A sync of a file makes its content durable, not its name; one of a directory the names in it. A rename takes back the old
name and gives the new one, or does neither. Everything else may be lost, and not in order: the usual file systems promise
more.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from itertools import count

from .recording import Event

Tree = dict[str, bytes | None]

NAMES = ("kept", "lost", "first", "one", "mixed")
"""Names not synced that are there: all, none, the first few, one and what it needs, or any that do not need another."""
CONTENTS = ("kept", "lost", "zeroed", "mixed")
"""Contents not synced that are there, see `_content`."""
_SECTOR = 512
_ROOT = 0


@dataclass(frozen=True)
class Change:
    """Names that change at once: in which directory, which name, and what it names then, if anything."""

    slots: tuple[tuple[int, str, int | None], ...]
    needs: frozenset[int]  # the last changes of the same names before

    def touches(self, folder: int) -> bool:
        return any(slot[0] == folder for slot in self.slots)


class Disk:
    """A disk with a tree of files, all durable at first."""

    def __init__(self, tree: Tree) -> None:
        self._new = count(1)
        self._names: dict[int, dict[str, int]] = {_ROOT: {}}  # now, by directory
        self._contents: dict[int, list[bytes]] = {}  # of files: the durable content, then those since
        self._changes: dict[int, Change] = {}  # of names, not durable
        self._last: dict[tuple[int, str], int] = {}
        self._number = count()
        for name, content in tree.items():
            self._make(name, content)
        self._durable = {folder: dict(names) for folder, names in self._names.items()}
        self._synced = {folder: dict(names) for folder, names in self._names.items()}  # by a sync of its own

    def _make(self, path: str, content: bytes | None) -> int:
        made = next(self._new)
        if content is None:
            self._names[made] = {}
        else:
            self._contents[made] = [content]
        folder, name = self._slot(path)
        self._names[folder][name] = made
        return made

    def _slot(self, path: str) -> tuple[int, str]:
        parent, name = os.path.split(path)
        return self._find(parent), name

    def _find(self, path: str) -> int:
        found = _ROOT
        for name in path.split(os.sep) if path not in ("", ".") else ():
            found = self._names[found][name]
        return found

    def has(self, path: str) -> bool:
        """Tell whether there is something of this name."""
        folder, name = os.path.split(path)
        return (not folder or self.has(folder)) and name in self._names.get(self._find(folder), {})

    def is_directory(self, path: str) -> bool:
        return self._find(path) in self._names

    def names(self, path: str) -> list[str]:
        """List what is in a directory."""
        return sorted(self._names[self._find(path)])

    def unsynced(self, path: str) -> list[str]:
        """List what has no sync of its own of a file or directory: its content, its name; unwritten space is no content."""
        found, (folder, name) = self._find(path), self._slot(path)
        versions = self._contents.get(found, [b""])
        is_written = not path.endswith(".bin") or any(versions[-1])
        lost = [f"content of {path}"] if versions[0] != versions[-1] and is_written else []
        return lost + [f"name {path}"] * (self._synced.get(folder, {}).get(name) != found)

    def apply(self, event: Event) -> None:
        """Make a recorded change."""
        if event.kind == "content":
            versions = self._contents[self._find(event.path)]
            if versions[-1] != event.data:
                versions.append(event.data)
        elif event.kind == "sync":
            self._sync(self._find(event.path))
        elif event.kind in ("create", "mkdir"):
            made = self._make(event.path, None if event.kind == "mkdir" else b"")
            self._change((*self._slot(event.path), made))
        elif event.kind in ("unlink", "rmdir"):
            self._change((*self._slot(event.path), None))
        else:
            one, two = self._slot(event.path), self._slot(event.other)
            moved, there = self._find(event.path), self._names[two[0]].get(two[1])
            left = {"rename": None, "link": moved, "exchange": there}[event.kind]
            self._change((*one, left), (*two, moved))

    def _change(self, *slots: tuple[int, str, int | None]) -> None:
        number = next(self._number)
        needs = {self._last[slot[:2]] for slot in slots if slot[:2] in self._last}
        self._changes[number] = Change(slots, frozenset(needs))
        self._last.update(dict.fromkeys((slot[:2] for slot in slots), number))
        _put(self._names, slots)

    def _sync(self, found: int) -> None:
        if found in self._contents:
            del self._contents[found][:-1]
            return
        self._synced[found] = dict(self._names[found])
        wanted = {number for number, change in self._changes.items() if change.touches(found)}
        for number in sorted(self._with_needs(wanted)):
            _put(self._durable, self._changes.pop(number).slots)

    def cut(self, rng: random.Random, names: str, contents: str) -> Tree:
        """Cut the power: returns what is there afterwards, by the policies for names and for contents."""
        left = {folder: dict(inside) for folder, inside in self._durable.items()}
        kept = self._kept(rng, names)
        for number, change in self._changes.items():
            if number in kept and not (change.needs & self._changes.keys()) - kept:
                _put(left, change.slots)
            else:
                kept.discard(number)
        tree: Tree = {}
        self._collect(left, _ROOT, "", tree, rng, contents)
        return tree

    def _kept(self, rng: random.Random, names: str) -> set[int]:
        """Draw the changes of names that are there, as far as what they need is there."""
        numbers = list(self._changes)
        if names == "first":
            return set(numbers[: rng.randint(0, len(numbers))])
        if names == "mixed":
            return {number for number in numbers if rng.random() < 0.5}
        if names == "one" and numbers:
            return self._with_needs({rng.choice(numbers)})
        return set(numbers) if names == "kept" else set()

    def _with_needs(self, wanted: set[int]) -> set[int]:
        """Add the changes that others need, and are not durable."""
        for number in sorted(self._changes, reverse=True):
            if number in wanted:
                wanted = wanted | self._changes[number].needs
        return wanted & self._changes.keys()

    def _collect(
        self,
        names: dict[int, dict[str, int]],
        folder: int,
        at: str,
        tree: Tree,
        rng: random.Random,
        contents: str,
    ) -> None:
        for name, found in sorted(names.get(folder, {}).items()):
            path = os.path.join(at, name)
            if found in self._contents:
                tree[path] = _content(self._contents[found], rng, contents)
            else:
                tree[path] = None
                self._collect(names, found, path, tree, rng, contents)

    @property
    def now(self) -> Tree:
        """The files as they are while the power is on."""
        tree: Tree = {}
        self._collect(self._names, _ROOT, "", tree, random.Random(0), "kept")
        return tree


def _put(names: dict[int, dict[str, int]], slots: tuple[tuple[int, str, int | None], ...]) -> None:
    for folder, name, found in slots:
        if found is None:
            names.setdefault(folder, {}).pop(name, None)
        else:
            names.setdefault(folder, {})[name] = found


def _content(versions: list[bytes], rng: random.Random, policy: str) -> bytes:
    """Return what is left of a file: all, what was synced, that with zeros up to its size, any version of each sector."""
    if policy == "kept" or len(versions) == 1:
        return versions[-1]
    if policy == "lost":
        return versions[0]
    if policy == "zeroed":
        synced = versions[0][: len(versions[-1])]
        return synced.ljust(len(versions[-1]), b"\0")
    n_bytes = len(rng.choice(versions))
    sectors = []
    for start in range(0, n_bytes, _SECTOR):
        stop = min(start + _SECTOR, n_bytes)
        sectors.append(rng.choice(versions)[start:stop].ljust(stop - start, b"\0"))
    return b"".join(sectors)

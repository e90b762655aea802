"""Files and directories that appear whole or not at all: temporary name, sync, replace, sync of the directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sync(path: Path) -> None:
    """Make the bytes of a file, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary name to write to; the file written there takes the place of `path` when the block ends.

    Where the block fails, `path` stays as it was and the temporary file is removed.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        sync(partial)
        os.replace(partial, path)
        sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_file(path: Path, data: bytes) -> None:
    """Write a small file, whole or not at all."""
    with replacing(path) as partial:
        partial.write_bytes(data)


def put_directory(new: Path, path: Path, replaced: Path | None) -> None:
    """Move a complete directory to `path`; what was there goes to `replaced`, or is in the way where that is None."""
    if replaced is not None and path.exists():
        os.rename(path, replaced)
    os.rename(new, path)
    sync(path.parent)


def restore_directory(path: Path, replaced: Path) -> None:
    """Undo a `put_directory` that was interrupted between its two moves."""
    if replaced.exists() and not path.exists():
        os.rename(replaced, path)

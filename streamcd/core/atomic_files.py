"""Files and directories that appear whole or not at all: temporary name, sync, replace, sync of the directory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from .errors import UsageError, file_named

_SYNCED_TOGETHER = 8


def sync(path: Path) -> None:
    """Make the bytes of a file, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with file_named(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_together(paths: Sequence[Path]) -> None:
    """Make several files or directories durable at a time, for which a file system writes its journal once or twice."""
    if len(paths) == 1:
        sync(paths[0])
        return
    with ThreadPoolExecutor(_SYNCED_TOGETHER, thread_name_prefix="streamcd-sync") as pool:
        for done in [pool.submit(sync, path) for path in paths]:
            done.result()


@contextmanager
def replacing(path: Path, before: Sequence[Path] = ()) -> Iterator[Path]:
    """Yield a temporary name to write to; the file written there replaces `path` when the block ends.

    If the block fails, `path` stays as it was and the temporary file is removed. The files `before`, which `path` refers to,
    are made durable first.
    """
    partial = _partial(path)
    try:
        with file_named(path):
            yield partial
        sync_together([*before, partial])
        os.replace(partial, path)
        sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replacing_together(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Yield temporary names for several files of one directory, the last of which describes the others.

    As with `replacing`; the file that describes is gone before the first of the others is replaced, and comes last.
    """
    partials, (*others, last), folder = [_partial(path) for path in paths], paths, paths[-1].parent
    try:
        with file_named(folder):
            yield partials
        sync_together(partials)
        last.unlink(missing_ok=True)
        for partial, path in zip(partials, others, strict=False):
            os.replace(partial, path)
        sync(folder)
        os.replace(partials[-1], last)
        sync_together([folder, folder.parent])
    finally:
        for partial in partials:
            partial.unlink(missing_ok=True)


def _partial(path: Path) -> Path:
    partial = path.with_name(path.name + ".partial")
    if partial.is_symlink():
        raise UsageError(f"{partial}: a symbolic link, through which nothing is written; remove it")
    return partial


def check_output(
    path: Path, kind: str, is_kind: Callable[[Path], bool], *, force: bool, inputs: Iterable[str | Path] = ()
) -> None:
    """Refuse an output that would replace an input, a file that `is_kind` rejects or, without `force`, anything at all.

    The message names --force only where it helps.
    """
    if not path.absolute().parent.is_dir():
        raise UsageError(f"no such directory: {path.absolute().parent}; make it first")
    if not os.path.lexists(path):
        return
    if any(os.path.exists(source) and os.path.exists(path) and path.samefile(source) for source in inputs):
        raise UsageError(f"{path} is an input; name another place for the output")
    if not is_kind(path):
        raise UsageError(f"{path} exists and is not {kind}; name another place")
    if not force:
        raise UsageError(f"{path} exists; name another place, or give --force to replace it")


_OTHER_FORMATS = {
    ".onnx": "ONNX",
    ".pmml": "PMML",
    ".csv": "CSV",
    ".tsv": "CSV",
    ".json": "JSON",
    ".jsonl": "JSON",
    ".parquet": "Parquet",
    ".arrow": "Arrow",
    ".feather": "Arrow",
    ".npy": "npy",
    ".npz": "npz",
    ".pkl": "pickle",
    ".pickle": "pickle",
    ".joblib": "pickle",
    ".gz": "gzip",
    ".bz2": "bzip2",
    ".xz": "xz",
    ".zst": "Zstandard",
}


def refuse_other_ending(path: Path, written: str) -> None:
    """Refuse a name that ends as files of another format than plain text do; `written` is what would be in the file."""
    other = _OTHER_FORMATS.get(path.suffix.lower())
    if other is not None:
        raise UsageError(
            f"{path}: expected a name for {written}, such as {path.stem}.txt, found the ending of {other}, which export "
            "does not write"
        )


def begins_with(path: Path, pattern: bytes) -> bool:
    """Check if a regular file begins with a match of a regular expression; false for devices and pipes."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return re.match(pattern, file.read(4096)) is not None


def write_file(path: Path, data: bytes) -> None:
    """Write a small file, whole or not at all."""
    with replacing(path) as partial:
        partial.write_bytes(data)


def put_directory(new: Path, path: Path, replaced: Path | None) -> None:
    """Move a complete directory to `path`; an existing one is moved to `replaced` first, or is an error if that is None."""
    if replaced is not None and path.exists():
        os.rename(path, replaced)
    os.rename(new, path)
    sync(path.parent)


def restore_directory(path: Path, replaced: Path) -> None:
    """Undo a `put_directory` that was interrupted between its two moves."""
    if replaced.exists() and not path.exists():
        os.rename(replaced, path)

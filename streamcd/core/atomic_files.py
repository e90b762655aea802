"""Files and directories that appear whole or not at all: temporary name, sync, replace, sync of the directory."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from .errors import UsageError, file_named

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux's renameat2
SET_ASIDE = "replaced"
"""Name, in a directory for work, of what is being replaced where two directories cannot change places in one step."""


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
    with ThreadPoolExecutor(8, thread_name_prefix="streamcd-sync") as pool:
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
        sync(folder)  # its name is gone before the others get theirs
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
    folder = path.absolute().parent
    if not folder.is_dir():
        wrong = f"no such directory: {folder}; make it first"
    elif not os.path.lexists(path):
        return
    elif any(os.path.exists(source) and os.path.exists(path) and path.samefile(source) for source in inputs):
        wrong = f"{path} is an input; name another place for the output"
    elif not is_kind(path):
        wrong = f"{path} exists and is not {kind}; name another place"
    elif not force:
        wrong = f"{path} exists; name another place, or give --force to replace it"
    else:
        return
    raise UsageError(wrong)


_OTHER_FORMATS = re.compile(
    r"\.(onnx|pmml|csv|tsv|jsonl?|parquet|arrow|feather|np[yz]|pkl|pickle|joblib|xml|html|yaml|xlsx|h5|pt|pb|safetensors|"
    r"mlmodel|ubj|arff|zip|gz|bz2|xz|zst)"
)
"""Endings of the names of files."""


def refuse_other_ending(path: Path, written: str) -> None:
    """Refuse a name that ends as files of another format than plain text do; `written` is what would be in the file."""
    if _OTHER_FORMATS.fullmatch(path.suffix.lower()):
        raise UsageError(
            f"{path}: expected a name for {written}, such as {path.stem}.txt, found the ending of another format, "
            f"{path.suffix}"
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


def work_directory(path: Path) -> Path:
    """Name the directory beside `path` in which is made what will be there."""
    path = path.absolute()
    return path.with_name(f".{path.name}.partial")


def make_directory(path: Path) -> None:
    """Make a directory whose name is durable, with its parents, unless it exists."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def put_directory(new: Path, path: Path, replaced: Path | None) -> None:
    """Move a complete directory to `path`; an existing one is an error if `replaced` is None.

    Otherwise it is replaced in one step where the system can, and then is at `new`; elsewhere it first moves to `replaced`.
    """
    if replaced is None or not path.exists():
        os.rename(new, path)
    elif not exchange(new, path):
        os.rename(path, replaced)
        os.rename(new, path)
    sync(path.parent)


def exchange(path: Path, other: Path) -> bool:
    """Let two directories change places in one step; returns False where the system or the file system cannot."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(path), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), os.fspath(path), None, os.fspath(other))


def restore_directory(path: Path, replaced: Path) -> None:
    """Undo a `put_directory` that was interrupted between its two moves."""
    if replaced.exists() and not path.exists():
        os.rename(replaced, path)
        sync(path.parent)


def describe_set_aside(path: Path) -> str:
    """Tell where an interrupted `put_directory` has set aside what was at `path`, and what to do; empty if it has not."""
    aside = work_directory(path) / SET_ASIDE
    if os.path.lexists(path) or not aside.is_dir():
        return ""
    return (
        f"; an interrupted call has set aside what was there: repeat that call, which goes on from it, or restore it by "
        f"'mv {shlex.quote(str(aside))} {shlex.quote(str(path))}'"
    )

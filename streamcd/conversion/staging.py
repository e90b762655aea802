"""A locked directory in which a dataset is written, beside its final name, which it gets when it is complete."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..core.atomic_files import put_directory, restore_directory
from ..core.errors import EnvironmentFailure
from ..core.locks import release_lock, take_lock


@contextmanager
def staging_directory(dest: Path, force: bool) -> Iterator[Path]:
    """A locked directory beside `dest`, for work in progress; its ``dataset`` becomes `dest` if all goes well.

    What an interrupted conversion left there is removed first; whatever happens, nothing of ours is left, unless
    the process is killed.
    """
    dest = dest.absolute()
    work = dest.with_name(f".{dest.name}.partial")
    try:
        with _locked(work):
            _clean(work, dest)
            try:
                yield work
                put_directory(work / "dataset", dest, work / "replaced" if force else None)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
            raise EnvironmentFailure(
                f"{dest.parent}: the disk is full, the conversion was undone; make room (about three times the size of the "
                "decoded entries, four with --scale) and run it again"
            ) from error
        raise


@contextmanager
def _locked(work: Path) -> Iterator[None]:
    """Hold the lock file in a directory, which is made where it is not there."""
    while True:
        work.mkdir(exist_ok=True)
        lock = take_lock(work / "lock", os.O_RDWR | os.O_CREAT)
        if lock is None:
            raise EnvironmentFailure(
                f"{work}: another conversion writes this dataset; wait for it or stop it"
            )
        # the one who held it may have removed the file after we opened it
        if _same_file(lock, work / "lock"):
            break
        release_lock(lock)
    try:
        yield
    finally:
        release_lock(lock)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _clean(work: Path, dest: Path) -> None:
    """Remove what an interrupted conversion left; give back a dataset that it was about to replace."""
    restore_directory(dest, work / "replaced")
    for entry in work.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != "lock":
            entry.unlink()

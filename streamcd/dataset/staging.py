"""A locked directory in which a dataset is written, beside its final name, which it gets when it is complete."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..core.errors import EnvironmentFailure, LockError, UsageError
from ..core.files import (
    exchange,
    put_directory,
    release_lock,
    sync,
    take_lock,
    work_directory,
)
from ..core.storage import Location

_MARK = b"streamcd works here\n"
"""Content of the lock file: who made the directory."""

_FOLDERS = {"rows", "entries", "columns"}
"""Folders of a dataset."""

_MADE = re.compile(
    r"lock|dataset|replaced|runs|weights|dictionaries|distinct|kept|sums|statistics|(original|scales|means)\.npy"
)
"""Names in a directory for work."""


def check_place(dest: Path, inputs: Iterable[str | Path], *, force: bool) -> None:
    """Refuse to replace anything but a dataset, one with an input or a run in it, and any without `force`."""
    clear_interrupted(dest)
    if not dest.absolute().parent.is_dir():
        raise UsageError(f"no such directory: {dest.absolute().parent}; make it first")
    if not os.path.lexists(dest):
        return
    if (not dest.is_dir() or any(dest.iterdir())) and not (dest / "manifest.json").exists():
        raise UsageError(  # safety: outside_conversion::what_is_no_dataset[another folder]
            f"{dest} exists and is not a dataset; name another place"
        )
    for path in inputs:
        if dest.resolve() in (real := Path(path).resolve(), *real.parents):
            raise UsageError(  # safety: outside_conversion::not_where_its_source
                f"{dest} holds the input {path}; name another place"
            )
    if not force:
        raise UsageError(f"{dest} exists; name another place or replace it with --force")
    folders = {entry.name for entry in os.scandir(dest) if entry.is_dir() and not entry.name.startswith(".")}
    if others := folders - _FOLDERS:
        raise UsageError(f"{dest} holds {min(others)}, which is no part of the dataset; move it away first")


@contextmanager
def dataset_workplace(dest: Path, *, force: bool) -> Iterator[Path]:
    """Make a locked directory for work beside `dest`; its ``dataset`` is put there at the end, with `force` for another.

    What an interrupted call left there is removed first, and the directory at the end, unless the process is killed.
    Another user's or program's directory is refused, and a symbolic link.
    """
    dest = dest.absolute()
    work = work_directory(dest)
    try:
        with _locked(work):
            _remove_entries(work)
            try:
                if force and dest.exists():  # tried before any work, on two empty directories
                    folders = work / "dataset", work / "replaced"
                    for folder in folders:
                        folder.mkdir()
                    try:
                        exchange(*folders)
                    except OSError as error:
                        if error.errno != errno.EINVAL:
                            raise
                        message = (
                            f"{dest}: its file system replaces no directory in one step; remove it first"
                        )
                        raise UsageError(message) from None
                    _remove_entries(work)
                yield work
                put_directory(work / "dataset", dest, force=force)
            finally:
                remove_work(work)
    except OSError as error:
        short = error.errno is None and "requested and" in str(error)  # a write by NumPy's tofile
        if error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error) or short:
            raise EnvironmentFailure(
                f"{dest.parent}: the disk is full, what was written is undone; make room (about three times the size of "
                "the decoded entries, six where the sums of all features exceed the memory) and run it again"
            ) from error
        raise


def clear_interrupted(dest: Path) -> None:
    """Remove what an interrupted conversion has left, unless one works there now."""
    work = work_directory(dest)
    if os.path.lexists(work):
        with (
            suppress(UsageError, EnvironmentFailure),
            _locked(work),
        ):  # these are told once there is work to do
            remove_work(work)


def remove_work(work: Path) -> None:
    """Remove a directory for work, the lock last; tries twice, and `leftovers` reports what could not be removed."""
    for _ in range(2):
        with suppress(OSError):
            _remove_entries(work)
            # else a power cut may take the lock, by which the rest is known as ours, and leave the rest
            sync(work)
            shutil.rmtree(work)
            return


def leftovers(dataset: Location) -> list[str]:
    """Describe the directories for work on a dataset, which an interrupted call has left unless one works there now."""
    if not isinstance(dataset, Path):  # a URL
        return []
    return [
        f"{work}: unless a call works there now, an interrupted one has left it; remove it, or repeat the call with --force"
        for work in (work_directory(dataset), *sorted(dataset.absolute().glob(".*.partial")))
        if work.is_dir() and not work.is_symlink()
    ]


@contextmanager
def _locked(work: Path) -> Iterator[None]:
    """Hold the lock file in a directory, which is made if missing."""
    while True:
        with suppress(FileExistsError):
            work.mkdir()
        _check_ours(work)
        lock = take_lock(work / "lock", os.O_RDWR | os.O_CREAT)
        if lock is None:  # safety: convert::second_conversion
            raise LockError(f"{work}: another process writes there; wait for it to end or stop it")
        if os.fstat(lock).st_nlink:  # the one who held it may have removed the file after we opened it
            break
        release_lock(lock)
    try:
        os.pwrite(lock, _MARK, 0)
        os.fsync(lock)  # safety: durability::power_cut[convert]
        sync(work)  # safety: durability::power_cut[convert]
        yield
    finally:
        release_lock(lock)


def _check_ours(work: Path) -> None:
    """Refuse what is no directory of this user, such as a symbolic link, and one with content that no call has begun.

    Of a mark never synced, a power cut leaves nothing or zeros: the other names then have to be those of a conversion.
    """
    lock = work / "lock"
    not_ours = UsageError(
        f"{work}: expected nothing, or what an interrupted call left there, found something else; "
        "move it away, or name another place"
    )
    with suppress(FileNotFoundError):
        status = os.lstat(work)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise not_ours  # safety: convert::work_goes_to_no_directory
        names = os.listdir(work)
        if names in ([], ["lock"]):
            return
        if "lock" not in names or not stat.S_ISREG(os.lstat(lock).st_mode):
            raise not_ours  # safety: convert::work_goes_to_no_directory
        with open(lock, "rb") as file:
            mark = file.read(len(_MARK) + 1)
        if mark != _MARK and (mark.strip(b"\0") or not all(map(_MADE.fullmatch, names))):
            raise not_ours


def _remove_entries(work: Path) -> None:
    """Empty a directory for work except its lock, which marks it as ours even after a kill in between."""
    for entry in work.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != "lock":
            entry.unlink()

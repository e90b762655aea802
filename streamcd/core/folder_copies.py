"""Runs and models at URLs: a folder of a bucket, copied to this machine to be read there, or kept as its copy is.

A run is worked on in its copy, in which files are replaced, synced and locked. `Published.update` brings the folder to
where the copy stands, in an order in which the folder is a run at every moment: the files that a state refers to come
before it, and what is removed is what no state in the bucket refers to any more.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from .errors import LockError, StreamcdError, UsageError
from .locks import scratch_directory
from .storage import CLIENT_BYTES, UPLOADING_BYTES, Location, Url, location

PUBLISHING_BYTES = CLIENT_BYTES + UPLOADING_BYTES
"""Memory of whoever keeps a run at a URL, in bytes: the client, and blocks of files on their way."""

_SESSION = "session"  # the object by which a process knows that no other has taken the run over
_NOT_COPIED = ("lock", _SESSION)
_LAST = ("state.npz", "model.json", "scores.json", "config.json")  # files that refer to others, in this order
_OF_TRAINING = ("dual", "rows")
_KINDS = ("config.json", "model.json")


def of_any_use(name: str) -> bool:
    """Tell the files of a run of which only a training, or a verification, has any use."""
    return not any(part in _OF_TRAINING for part in PurePosixPath(name).parts[:-1])


def of_models(name: str) -> bool:
    """Tell the files of a run by which it predicts."""
    return of_any_use(name) and PurePosixPath(name).name != "state.npz"


class Published:
    """A run at a URL, and its copy in `folder`; whoever opened it last has it."""

    def __init__(self, url: Url, folder: Path) -> None:
        self._url, self._folder = url, folder
        self._there = _states_of(folder)
        self._session: str | None = None
        self._begun = False

    def update(self) -> None:
        """Bring the URL to where the copy stands; refused where another process has taken the run over."""
        self._claim()
        here = _states_of(self._folder)
        self._url.remove(sorted(self._there.keys() - here.keys()))
        changed = [name for name, state in here.items() if self._there.get(name) != state]
        for name in sorted(changed, key=_order):
            (self._url / name).upload(self._folder / name)
        self._there = here

    def _claim(self) -> None:
        """Replace the session object, which has to be that of the last time; the first time it may be anybody's."""
        mark = self._url / _SESSION
        if not self._begun:
            self._session, self._begun = mark.version(), True
        try:
            mark.put(os.urandom(16).hex().encode(), self._session)
        except FileExistsError:
            raise LockError(
                f"{self._url}: another process has opened this run, and goes on with it; what this one did since its last "
                "checkpoint is left out"
            ) from None
        self._session = mark.version()


class Copy(NamedTuple):
    """A run directory of this machine, the name by which it is asked for, and its place at a URL, if it has one."""

    path: Path
    name: str
    published: Published | None


@contextmanager
def working_copy(path: str | os.PathLike[str] | None) -> Iterator[Copy]:
    """Provide a run directory on this machine: itself, or a copy of what is at a URL, removed at the end."""
    if path is None:
        raise UsageError("expected the directory of a run, found none; name one")
    place = location(path)
    if isinstance(place, Path):
        yield Copy(place, str(place), None)
        return
    with _copied(place, "a run", lambda name: True) as folder:
        yield Copy(folder, str(place), Published(place, folder))


@contextmanager
def copied(
    path: str | os.PathLike[str], what: str, wanted: Callable[[str], bool] = of_any_use
) -> Iterator[Path]:
    """Provide a folder to read on this machine: itself, or a copy of those files of one at a URL that are `wanted`."""
    place = location(path)
    if isinstance(place, Path):
        yield place
        return
    with _copied(place, what, wanted) as folder:
        if not any((folder / name).exists() for name in _KINDS) and not any(folder.glob("*/model.json")):
            raise UsageError(
                f"{place}: expected {what}, found none; 'streamcd train DATASET {place}' makes a run"
            )
        yield folder


@contextmanager
def _copied(url: Url, what: str, wanted: Callable[[str], bool]) -> Iterator[Path]:
    """Provide a copy of the files of a folder at a URL; errors name that folder."""
    if not url.is_bucket:
        raise UsageError(
            f"{url}: expected {what} on disk or in a bucket (s3://, gs://), found {url.scheme}://; download it first"
        )
    names = url.find()
    if names and not {name.rpartition("/")[2] for name in names} & {*_KINDS, _SESSION}:
        raise UsageError(f"{url} exists and is neither a run nor a model ({min(names)}); name another place")
    with scratch_directory(Path(tempfile.gettempdir()), "run") as scratch:
        folder = scratch / url.name
        folder.mkdir()
        try:
            for name in names:
                if wanted(name) and name not in _NOT_COPIED and _belongs(PurePosixPath(name), names):
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (url / name).download(folder / name)
            yield folder
        except StreamcdError as error:
            error.args = tuple(_renamed(part, folder, url) for part in error.args)
            raise


def _belongs(name: PurePosixPath, names: Collection[str]) -> bool:
    """Tell the files of a run, all of which are inside it; a log without a state is of a first checkpoint cut short."""
    return ".." not in name.parts and (name.name != "log.jsonl" or str(name.with_name("state.npz")) in names)


def _renamed(part: object, folder: Path, url: Location) -> object:
    return part.replace(str(folder), str(url)) if isinstance(part, str) else part


def _states_of(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return what tells if a file has changed, of every file of a run."""
    states = {}
    for path in folder.rglob("*"):
        if path.is_file() and path.name not in _NOT_COPIED and path.suffix != ".partial":
            status = path.stat()
            states[path.relative_to(folder).as_posix()] = (
                status.st_ino,
                status.st_mtime_ns,
                status.st_size,
            )
    return states


def _order(name: str) -> tuple[int, str]:
    """Sort files that refer to others behind these."""
    last = PurePosixPath(name).name
    return _LAST.index(last) + 1 if last in _LAST else 0, name

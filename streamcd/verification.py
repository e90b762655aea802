"""Verification of what is on disk: the files that a manifest lists, and what is in their chunks, by one process or several.

What is right for a chunk is said by those who know the layout (`rowchecks`, `columnchecks`); here is how all files and
chunks are gone through, and how that is told.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from .parquet import file_checksum
from .process_pool import TASKS_PER_WORKER, Workers, checked_workers, in_shares
from .progress import Listener, Progress


class Layout(Protocol):
    """Chunks on disk, open for reading."""

    n_chunks: int
    entry_start: np.ndarray

    def close(self) -> None: ...


Opened = TypeVar("Opened", bound=Layout)
Found = TypeVar("Found")


def file_problems(path: Path, files: Iterable[tuple[str, int, str]]) -> Iterator[tuple[Path, str]]:
    """Files in a directory that are missing or have other bytes than listed, each with a line that says so.

    Parameters
    ----------
    path : Path
    files : iterable of (str, int, str)
        Name, bytes and checksum of each.
    """
    for name, n_bytes, _ in files:
        try:
            found = os.stat(path / name).st_size
        except FileNotFoundError:
            yield path / name, f"{path / name}: the file is missing"
            continue
        if found != n_bytes:
            kind = "truncated" if found < n_bytes else "too long"
            yield path / name, f"{path / name}: {kind}, expected {n_bytes} bytes, found {found}"


class Readings:
    """The long readings of a verification, in this process.

    Parameters
    ----------
    listener : Listener
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def changed(
        self, files: Sequence[tuple[Path, int, str]], *, phase: str = "checksums"
    ) -> Iterator[tuple[Path, str]]:
        """Those of some files, given with bytes and checksums, that have another checksum; each with a line that says so."""
        for (path, _, _), is_changed in zip(files, self._are_changed(files, phase), strict=True):
            if is_changed:
                yield path, f"{path}: checksum differs from the manifest's, the file was changed or damaged"

    def _are_changed(self, files: Sequence[tuple[Path, int, str]], phase: str) -> list[bool]:
        total, done, found = sum(n_bytes for _, n_bytes, _ in files), 0, []
        for path, n_bytes, checksum in files:
            found.append(_is_changed(path, checksum))
            done += n_bytes
            self._listener.progress(Progress(phase, done, total, "B"))
        return found

    def chunks(
        self,
        check: Callable[[Opened, int, int], Found],
        layout: Opened,
        reopen: Callable[[], Opened],
        *,
        phase: str,
        unit: str,
        starts: np.ndarray,
    ) -> Iterable[Found]:
        """What a function finds in all chunks: in ranges of them, in their order.

        Parameters
        ----------
        check : callable
            ``check(layout, start, stop)`` looks at ``start <= chunk < stop``; of a module, for workers to import it.
        layout : Layout
        reopen : callable
            Opens the same layout in a worker.
        phase, unit : str
            What to call the progress.
        starts : ndarray, shape (n_chunks + 1,)
            How far it is before every chunk, in `unit`.
        """
        for chunk in range(layout.n_chunks):
            yield check(layout, chunk, chunk + 1)
            self._listener.progress(Progress(phase, int(starts[chunk + 1]), int(starts[-1]), unit))


class SharedReadings(Readings):
    """The same by several processes."""

    def __init__(self, workers: Workers) -> None:
        super().__init__(workers.listener)
        self._workers = workers

    def _are_changed(self, files: Sequence[tuple[Path, int, str]], phase: str) -> list[bool]:
        tasks = [(path, checksum) for path, _, checksum in files]
        sizes = [n_bytes for _, n_bytes, _ in files]
        return self._workers.run(_is_changed, tasks, phase=phase, sizes=sizes)

    def chunks(
        self,
        check: Callable[[Opened, int, int], Found],
        layout: Opened,
        reopen: Callable[[], Opened],
        *,
        phase: str,
        unit: str,
        starts: np.ndarray,
    ) -> Iterable[Found]:
        shares = in_shares(np.diff(layout.entry_start).tolist(), TASKS_PER_WORKER * self._workers.n_workers)
        tasks = [(check, reopen, start, stop) for start, stop in shares]
        sizes = [int(starts[stop] - starts[start]) for start, stop in shares]
        return self._workers.run(_check_share, tasks, phase=phase, unit=unit, sizes=sizes)


@contextmanager
def readings(workers: int, listener: Listener | None, module: str) -> Iterator[Readings]:
    """Readings by so many processes, which end with the context.

    Parameters
    ----------
    workers : int
    listener : Listener, optional
    module : str
        What the checks need, for processes to load.
    """
    listener = listener or Listener()
    if checked_workers(workers) == 1:
        yield Readings(listener)
    else:
        with Workers(workers, listener, module) as processes:
            yield SharedReadings(processes)


def _is_changed(path: Path, checksum: str) -> bool:
    return file_checksum(path) != checksum


def _check_share(
    check: Callable[[Any, int, int], Any], reopen: Callable[[], Layout], start: int, stop: int
) -> Any:
    layout = reopen()
    try:
        return check(layout, start, stop)
    finally:
        layout.close()

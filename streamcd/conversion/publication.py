"""Publication of a dataset, or of a column layout, in a bucket, which has no rename, no sync and no lock.

Files are written on disk and uploaded under their final names, with a random infix that is this writer's own. The manifest,
which names the infix, comes last, and only if there is still the one that was there at the beginning, or none. So of two
writers one wins; the other removes its own files. What a killed one left, the next with ``force`` removes.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import DatasetError, StreamcdError, UsageError
from ..core.locks import scratch_directory
from ..core.memory_budget import format_size
from ..core.metadata import Kind, metadata_text, read_metadata
from ..core.progress import Listener, Progress
from ..core.storage import Location, Url, location
from ..dataset.chunked_table import ChunkedTable, RowTable
from ..dataset.column_layout import FOLDER, Columns
from ..dataset.dataset import Dataset, open_dataset
from ..dataset.manifests import ROW_LAYOUT
from .staging import disk_full_means, leftovers

_MANIFEST = "manifest.json"
_OURS = re.compile(
    rf"(?:(?:rows|entries|{FOLDER})/)?[a-z]+(?:-\d+)?\.(?P<infix>[0-9a-f]{{16}})\.parquet|"
    r"added-\d{4}-(?P<of_batch>[0-9a-f]{16})/.+"
)
"""Name of a file that a publication writes."""


@dataclass(frozen=True)
class Publication:
    """A folder of a bucket to which one writer uploads a table's files."""

    folder: Url
    infix: str
    version: str | None  # of the manifest that is replaced
    force: bool
    kind: Kind[Any]  # of the manifest
    added: str = ""  # folder of a batch of rows

    def upload(self, work: Path, name: str) -> None:
        """Upload a file of the directory `work`, and remove it there."""
        (self.folder / self._stored(name)).upload(work / name)
        (work / name).unlink()

    def finish(self, work: Path, listener: Listener, fields: Mapping[str, Any] | None = None) -> None:
        """Upload what is left in `work`, the manifest last; then, with ``force``, remove what was there before.

        That of a dataset with more rows has the `fields` given; another is in `work`.
        """
        sizes = {
            str(path.relative_to(work)): path.stat().st_size for path in work.rglob("*") if path.is_file()
        }
        done, total = 0, sum(sizes.values())
        for name in sorted(set(sizes) - {_MANIFEST}):
            listener.progress(Progress("upload", done, total, "B"))
            self.upload(work, name)
            done += sizes[name]
        grown = fields is not None
        fields = fields or {**json.loads((work / _MANIFEST).read_bytes()), "infix": self.infix}
        before = self.folder.find() if self.force else {}
        replaced = _listed(self.folder)
        try:
            (self.folder / _MANIFEST).put(metadata_text(self.kind, fields), self.version)
        except FileExistsError:
            raise UsageError(
                f"{self.folder}: expected to be the only one that writes there, found that another was completed there "
                "meanwhile; the files of this call were removed; name another place, or replace what is there with --force"
            ) from None
        old = {name for name in before if name in replaced or _infix(name) not in ("", self.infix)}
        if grown:
            old = replaced - _listed(self.folder)
        with suppress(OSError):  # `unfinished` tells of what stays
            self._remove(sorted(old - {_MANIFEST}))

    def withdraw(self) -> None:
        """Remove what this writer has uploaded, unless its manifest is in place."""
        with suppress(OSError):
            if not any(map(self._is_own, _listed(self.folder))):
                self._remove(list(filter(self._is_own, self.folder.find())))

    def _is_own(self, name: str) -> bool:
        return _infix(name) == self.infix

    def _stored(self, name: str) -> str:
        if self.added:
            return f"{self.added}/{name}"
        return f"{name.removesuffix('.parquet')}.{self.infix}.parquet"

    def _remove(self, names: list[str]) -> None:
        if f"{FOLDER}/{_MANIFEST}" in names:  # first: it lists the others
            self.folder.remove([f"{FOLDER}/{_MANIFEST}"])
        self.folder.remove(names)


@contextmanager
def publishing(folder: Url, table: type[ChunkedTable], *, force: bool) -> Iterator[tuple[Path, Publication]]:
    """A directory for work on disk, and a publication to `folder`, withdrawn if the block fails.

    A folder with anything but a dataset in it is refused; one with a dataset too, without `force`.
    """
    there = folder.find()
    foreign = [name for name in there if not _infix(name) and name != _MANIFEST]
    if foreign and _MANIFEST not in there:
        raise UsageError(f"{folder} exists and is not a dataset ({foreign[0] or folder}); name another place")
    if _MANIFEST in there and not force:
        raise UsageError(f"{folder} exists; name another place or replace it with --force")
    version = (folder / _MANIFEST).version()
    found = Publication(folder, os.urandom(8).hex(), version, force, table.KIND)
    with _withdrawn(found, "three times" if table is Columns else "twice") as work:
        yield work, found


@contextmanager
def appending(folder: Url, batch: str) -> Iterator[tuple[Path, Publication]]:
    """A directory for work on disk, and a publication of a batch of rows to a dataset, withdrawn if the block fails."""
    infix = os.urandom(8).hex()
    found = Publication(folder, infix, (folder / _MANIFEST).version(), False, ROW_LAYOUT, f"{batch}-{infix}")
    with _withdrawn(found, "twice") as work:
        yield work, found


@contextmanager
def _withdrawn(found: Publication, room: str) -> Iterator[Path]:
    """A directory for work on disk; a publication is withdrawn if the block fails."""
    scratch, folder = Path(tempfile.gettempdir()), found.folder
    disk_full = (
        f"{scratch}: the disk is full, nothing was written to {folder}; make room (about {room} the size of the "
        "decoded entries), or name another directory in TMPDIR"
    )
    with disk_full_means(disk_full), scratch_directory(scratch, "upload") as work:
        try:
            yield work
        except BaseException:
            found.withdraw()
            raise


def open_or_tell(path: str) -> Dataset:
    """Open a dataset; where there is none, the error tells of what interrupted calls have left in its place."""
    try:
        return open_dataset(path)
    except DatasetError as error:
        raise DatasetError("; ".join([str(error), *unfinished(location(path))])) from None


def unfinished(dataset: Location) -> list[str]:
    """Tell of what interrupted calls have left in the place of a dataset, or beside it."""
    if isinstance(dataset, Url):
        return _unlisted_files(dataset) if dataset.is_bucket else []
    return leftovers(dataset)


def _unlisted_files(dataset: Url) -> list[str]:
    """Tell of files in a dataset's folder that no manifest lists, writer by writer."""
    listed = _listed(dataset)
    n_bytes: dict[str, list[int]] = defaultdict(list)
    for name, size in dataset.find().items():
        if name not in listed and _infix(name):
            n_bytes[_infix(name)].append(size)
    return [
        f"{dataset}: {len(sizes)} files ({format_size(sum(sizes))}) named *.{infix}.parquet, which no manifest lists: "
        "unless a call writes them now, an interrupted one has left them; remove them, or repeat the call with --force"
        for infix, sizes in n_bytes.items()
    ]


def _infix(name: str) -> str:
    """Return the infix of a file's name; empty where no publication has written it."""
    match = _OURS.fullmatch(name)
    return (match["infix"] or match["of_batch"]) if match else ""


def _listed(folder: Url) -> set[str]:
    """Return the names of the files that the manifests of a dataset, or of a column layout, list, and of these."""
    tables: list[tuple[type[ChunkedTable], str]] = [(RowTable, ""), (Columns, ""), (Columns, f"{FOLDER}/")]
    names: set[str] = set()
    for table, prefix in tables:
        with suppress(FileNotFoundError, StreamcdError):
            manifest, _ = read_metadata(folder / prefix / _MANIFEST, table.KIND)
            names |= {prefix + name for name, *_ in table.listed_files(manifest)} | {prefix + _MANIFEST}
    return names

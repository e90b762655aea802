"""Rows that come later: a dataset gets a batch of rows in one step, or stays as it is.

The rows are converted as a dataset of their own, which becomes a folder of the other. Then the manifest is replaced, and the
one before goes with them. Whatever no manifest lists, a call that was interrupted has left; the next one removes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..core.atomic_files import put_directory, write_file
from ..core.errors import DataError, DatasetError, UsageError, escaped
from ..core.metadata import as_structure, write_metadata
from ..core.progress import Listener, counted
from ..core.storage import local_path
from ..dataset.dataset import Dataset, open_dataset
from ..dataset.growth import FOLDER_OF_BATCH, moved, with_batch
from ..dataset.kept_columns import KEPT_FILE, kept_schema
from ..dataset.manifests import EARLIER_FILE, ROW_LAYOUT, RowForm
from ..dataset.parquet import file_checksum
from .options import ConvertOptions
from .plan import Like, load_like
from .sources import Source
from .staging import clear_interrupted, folders_of, remove_unlisted, staging_directory

_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Base:
    """A dataset to which rows are appended, as it is before."""

    dataset: Dataset
    like: Like  # its properties as those of the training side

    @property
    def first_row(self) -> int:
        """Number of the first row that comes."""
        return self.dataset.n_rows

    def check(self, source: Source, *, weighted: bool, listener: Listener) -> None:
        """Refuse rows that lack what those of the dataset have: columns, names as labels, weights (`weighted` by a file).

        Columns that the dataset's table had not, used or not, are told.
        """
        like, place, known = self.like, self.dataset.path, self.like.encoding
        if like.class_names and not source.names_labels:
            names = ", ".join(map(escaped, like.class_names[:5]))
            raise UsageError(f"--append to {place}: expected names as labels, such as {names}, found numbers")
        if self.dataset.weighted and not (weighted or source.weighted):
            raise UsageError(
                f"--append to {place}: expected weights, which its rows have, found none; give --weights FILE, in Python "
                "(X, y, weights)"
            )
        if known is None:
            return
        if source.encoding is None:
            raise UsageError(
                f"--append to {place}: expected a table with its columns, found {source.what} without names"
            )
        if lacking := [name for name in known.kept if name not in source.encoding.kept]:
            raise DataError(
                f"--append to {place}: expected the column {lacking[0]!r}, which it keeps beside the rows, found none; add "
                "it"
            )
        table = {fact["column"] for fact in self.dataset.manifest.get("table", ())}
        if new := [name for name in source.columns if name not in table]:
            named = ", ".join(map(escaped, new[:5])) + ", …" * (len(new) > 5)
            listener.message(
                f"not used, since {place} was made without: {counted(len(new), 'column')} ({named})"
            )

    @property
    def kept_schema(self) -> Any:
        """Names and types of the columns that it keeps beside the rows; None if it keeps none."""
        paths = self.dataset.files(KEPT_FILE)
        return kept_schema(paths[0]) if paths else None

    def finish(self, work: Path, folder: str) -> dict[str, Any]:
        """Make the dataset in `work` a batch; returns the fields of the manifest of all."""
        added = json.loads((work / _MANIFEST).read_bytes())
        (work / _MANIFEST).unlink()
        write_file(work / EARLIER_FILE, (self.dataset.path / _MANIFEST).read_bytes())
        size, checksum = (work / EARLIER_FILE).stat().st_size, file_checksum(work / EARLIER_FILE)
        batch = moved(added, folder)
        batch.record.update(
            before=self.dataset.fingerprint,
            earlier={"bytes": size, "checksum": checksum, "folder": folder},
            when=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        return with_batch(self.dataset.manifest, added, batch)


def open_base(place: Path, asked: ConvertOptions) -> Base:
    """Open the dataset to which rows are appended; refused where options say that they be encoded in another way.

    What an interrupted call has left there goes before.
    """
    if isinstance(place, Path):
        if place.is_symlink():
            raise UsageError(
                f"{place}: a symbolic link, through which nothing is written; name {place.resolve()}"
            )
        clear_interrupted(place)
    dataset = open_dataset(place)
    as_structure(dataset.manifest, RowForm, str(dataset.path / _MANIFEST))
    _refuse_other_form(asked, dataset)
    return Base(dataset, load_like(place))


def form_of(dataset: Dataset) -> dict[str, Any]:
    """Return the options of `convert` by which a dataset was made, as far as all its batches share them."""
    manifest = dataset.manifest
    return {
        "dtype": manifest["value_dtype"],
        "seed": manifest["seed"],
        "shuffle": manifest["shuffle"],
        "chunk_size": manifest["chunk_bytes"],
        "shard_size": manifest["shard_bytes"],
        "compact": manifest.get("compact", False),
    }


_OF_THE_DATASET = {
    "like": "--like",
    "scale": "--scale",
    "normalize": "--normalize",
    "dtype": "--dtype",
    "seed": "--seed",
    "shuffle": "--no-shuffle",
    "chunk_size": "--chunk-size",
    "shard_size": "--shard-size",
    "index_base": "--index-base",
    "n_features": "--n-features",
    "compact": "--compact",
    "force": "--force",
}


def _refuse_other_form(asked: ConvertOptions, dataset: Dataset) -> None:
    usual = {name: getattr(ConvertOptions(), name) for name in _OF_THE_DATASET}
    own = usual | form_of(dataset)
    given = [
        flag for name, flag in _OF_THE_DATASET.items() if getattr(asked, name) not in (usual[name], own[name])
    ]
    given += [*asked.given, *["--target"] * asked.target]
    if given:
        raise UsageError(
            f"{', '.join(dict.fromkeys(given))} and --append exclude each other: rows are appended to {dataset.path} as it "
            "was made; leave it out"
        )


@contextmanager
def growing(base: Base) -> Iterator[Path]:
    """A directory for work in progress: a dataset written there becomes a batch of `base` at the end.

    What no manifest lists goes then.
    """
    dataset, place = base.dataset, local_path(base.dataset.path, "a dataset that changes")
    folder = FOLDER_OF_BATCH.format(
        max((int(name[6:10]) for name in folders_of(dataset.manifest)), default=0) + 1
    )

    def put_in_place(new: Path) -> None:
        try:
            fields = base.finish(new, folder)
            put_directory(new, place / folder, None)
            write_metadata(place / _MANIFEST, ROW_LAYOUT, fields)
        finally:  # of what is not in place as well
            with suppress(OSError, DatasetError):
                remove_unlisted(place)

    with staging_directory(place, put_in_place) as work:
        _check_unchanged(dataset)
        remove_unlisted(place)
        yield work


def _check_unchanged(dataset: Dataset) -> None:
    found = open_dataset(dataset.path, check_files=False).manifest["seal"]
    if found != dataset.manifest["seal"]:
        raise UsageError(
            f"{dataset.path}: expected to be the only one that writes there, found that another call has changed it "
            "meanwhile; repeat this one"
        )

"""The row layout of a dataset: a row per sample in ``rows/``, and its non-zeros in ``entries/``, sorted by row."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from ..core.errors import DatasetError
from ..core.metadata import read_metadata
from .chunked_table import ChunkedTable, starts_of
from .schema import ROW_LAYOUT, ChunkData, row_dtype


class RowTable(ChunkedTable):
    """The row layout of a dataset, open for reading; its attributes are those of `dataset.Dataset`."""

    KIND = ROW_LAYOUT
    TABLES: ClassVar = {"rows": 2, "entries": 1}  # from label and n_entries on; from feature and value on

    def __init__(self, path: Path, manifest: dict[str, Any], chunk_table: Mapping[str, np.ndarray]) -> None:
        super().__init__(path, manifest, chunk_table)
        self.n_rows: int = manifest["n_rows"]
        self.n_features: int = manifest["n_features"]
        classes = manifest["classes"]
        self.classes = None if classes is None else np.array(classes, dtype=np.float64)
        self.class_counts = None if classes is None else np.array(manifest["class_counts"], dtype=np.int64)
        self.row_dtype = row_dtype(self.n_rows)
        self.entry_bytes = self.index_dtype.itemsize + self.value_dtype.itemsize
        self.row_start = starts_of(chunk_table["n_rows"])
        # the items of this layout are rows, and every chunk travels by itself (see `plan.Table`)
        self.n_items, self.item_start, self.unit_start = self.n_rows, self.row_start, None

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, check_files: bool = True) -> Self:
        """Open the row layout in a directory; see `dataset.open_dataset`."""
        path = Path(path)
        try:
            manifest, _ = read_metadata(path / "manifest.json", cls.KIND)
        except (FileNotFoundError, NotADirectoryError):
            raise DatasetError(_describe_absence(path)) from None
        return cls(path, manifest, cls.read_chunk_table(path, manifest, check_files))

    def read_rows(
        self, chunk: int, columns: Sequence[str] = ("label", "n_entries"), *, verify: bool = True
    ) -> list[np.ndarray]:
        """Read columns of the rows table of a chunk.

        Parameters
        ----------
        chunk : int
        columns : sequence of str
            Among ``row``, ``source``, ``label``, ``weight``, ``n_entries``.
        verify : bool
            Check the checksums of the pages.

        Returns
        -------
        list of ndarray, one per column, each of shape (rows of the chunk,)
            They may share memory that is freed with them; not writable.

        Raises
        ------
        DatasetError
            Where the file is missing or damaged; names it.
        """
        n_rows = int(self.row_start[chunk + 1] - self.row_start[chunk])
        return self._read("rows", chunk, columns, n_rows, verify)

    def read_entries(
        self, chunk: int, columns: Sequence[str] = ("feature", "value"), *, verify: bool = True
    ) -> list[np.ndarray]:
        """Read columns of the entries table of a chunk; as `read_rows`, with ``row``, ``feature``, ``value``."""
        return self._read_entries(chunk, columns, verify)

    def read(self, chunk: int, *, verify: bool = True) -> ChunkData:
        """Read a whole chunk."""
        source, label, weight, n_entries = self.read_rows(
            chunk, ("source", "label", "weight", "n_entries"), verify=verify
        )
        feature, value = self.read_entries(chunk, verify=verify)
        return ChunkData(
            int(self.row_start[chunk]), source, label, weight, starts_of(n_entries), feature, value
        )

    def select_parts(self, parts: Sequence[int]) -> Self:
        """Select parts, ascending, as a dataset of its own for reading; chunks and rows are numbered anew."""
        chunks = np.isin(self.chunk_part, parts)
        table = {
            "part": np.searchsorted(parts, self.chunk_part[chunks]),
            "n_rows": np.diff(self.row_start)[chunks],
            "n_entries": np.diff(self.entry_start)[chunks],
        }
        totals = {name: int(table[name].sum()) for name in ("n_rows", "n_entries")}
        chosen = [self.manifest["parts"][part] for part in parts]
        return type(self)(self.path, {**self.manifest, **totals, "parts": chosen}, table)


def _describe_absence(path: Path) -> str:
    if (path / "config.json").exists():
        return f"{path} is a run, not a dataset; 'streamcd evaluate DATASET {path}' and 'resume {path}' take runs"
    found = "is not a dataset (no manifest.json in it)" if path.exists() else "does not exist"
    return f"{path} {found}; 'streamcd convert SRC {path}' makes a dataset"

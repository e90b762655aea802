"""The row layout of a dataset: a row per sample in ``rows/``, and its non-zeros in ``entries/``, sorted by row."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from .chunked_table import ChunkedTable, starts_of
from .errors import DatasetError
from .metadata import read_metadata
from .schema import ROW_LAYOUT, ChunkData, row_dtype


class RowTable(ChunkedTable):
    """The row layout of a dataset, open for reading; see `ChunkedTable`.

    Attributes
    ----------
    n_rows, n_features : int
    classes : ndarray of float64 or None
        Distinct labels, ascending; None where there are more than `schema.MAX_CLASSES`.
    class_counts : ndarray of int64 or None
    row_start : ndarray of int64, shape (n_chunks + 1,)
        Chunk ``c`` holds the rows ``row_start[c]:row_start[c + 1]``.
    """

    KIND = ROW_LAYOUT
    TABLES: ClassVar = {"rows": 2, "entries": 1}  # from label and n_entries on; from feature and value on

    def __init__(self, path: Path, manifest: dict[str, Any], chunk_table: Mapping[str, np.ndarray]) -> None:
        super().__init__(path, manifest, chunk_table)
        self.n_rows: int = manifest["n_rows"]
        self.n_features: int = manifest["n_features"]
        classes = manifest["classes"]
        self.classes = None if classes is None else np.array(classes, dtype=np.float64)
        self.class_counts = None if classes is None else np.array(manifest["class_counts"], dtype=np.int64)
        self.row_start = starts_of(chunk_table["n_rows"])

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, check_files: bool = True) -> Self:
        """Open the row layout in a directory; see `dataset.open_dataset`."""
        path = Path(path)
        try:
            manifest, _ = read_metadata(path / "manifest.json", cls.KIND)
        except (FileNotFoundError, NotADirectoryError):
            raise DatasetError(_describe_absence(path)) from None
        return cls(path, manifest, cls._read_chunk_table(path, manifest, check_files))

    @property
    def n_items(self) -> int:
        """Of the row layout the rows (see `plan.Table`)."""
        return self.n_rows

    @property
    def item_start(self) -> np.ndarray:
        """As `row_start`."""
        return self.row_start

    @property
    def unit_start(self) -> None:
        """Every chunk travels by itself."""
        return None

    @property
    def entry_bytes(self) -> int:
        """Decoded bytes of one entry."""
        return self.index_dtype.itemsize + self.value_dtype.itemsize

    @property
    def row_dtype(self) -> np.dtype:
        """Type of the rows' numbers."""
        return row_dtype(self.n_rows)

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
        chosen = copy.copy(self)
        chunks = np.flatnonzero(np.isin(self.chunk_part, parts))
        chosen.manifest = {**self.manifest, "parts": [self.manifest["parts"][part] for part in parts]}
        chosen.n_shards, chosen.n_chunks = len(parts), chunks.size
        chosen.chunk_part = np.searchsorted(parts, self.chunk_part[chunks]).astype(np.int32)
        chosen.chunk_group = self.chunk_group[chunks]
        chosen.row_start = starts_of(np.diff(self.row_start)[chunks])
        chosen.entry_start = starts_of(np.diff(self.entry_start)[chunks])
        chosen.n_rows, chosen.n_entries = int(chosen.row_start[-1]), int(chosen.entry_start[-1])
        chosen._open_files()
        return chosen


def _describe_absence(path: Path) -> str:
    if (path / "config.json").exists():
        return f"{path} is a run, not a dataset; 'streamcd evaluate DATASET {path}' and 'resume {path}' take runs"
    found = "is not a dataset (no manifest.json in it)" if path.exists() else "does not exist"
    return f"{path} {found}; 'streamcd convert SRC {path}' makes a dataset"

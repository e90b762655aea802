"""Some rows of a dataset, as a dataset of their own: rows are left out, chunk by chunk, when they are read."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np

from ..core.errors import DatasetError, UsageError
from ..core.progress import Listener
from .chunked_table import starts_of
from .column_layout import Columns
from .dataset import Dataset
from .schema import row_dtype


class RowSelection(Dataset):
    """Rows of another dataset, which it reads by files of its own; made by ``dataset[rows]``.

    A row's ``source`` is its place in the selection; there is no column ``row``. Chunks without a row are not read.
    Figures of features and norms of rows are those of the whole dataset.

    Parameters
    ----------
    whole : Dataset
    rows : ndarray of int64, shape (rows,)
        Places in the order of the source, each at most once.

    Attributes
    ----------
    held_bytes : int
        Memory of what tells the rows, that of `whole` included.
    """

    def __init__(self, whole: Dataset, rows: np.ndarray) -> None:
        self._whole = whole.another()
        self._place = np.full(whole.n_rows, -1, row_dtype(whole.n_rows))
        self._place[rows] = np.arange(rows.size)
        if np.count_nonzero(self._place >= 0) != rows.size:
            raise UsageError(
                f"{whole.path}[rows]: expected every row at most once, found {rows.size} rows of which some are repeated; "
                "give a row more weight instead"
            )
        classes = whole.classes
        counts = np.zeros(0 if classes is None else classes.size, np.int64)
        n_rows, n_entries = np.zeros((2, whole.n_chunks), np.int64)
        for chunk in range(whole.n_chunks):
            label, entries = whole.read_rows(chunk)
            kept = self._kept(chunk)
            n_rows[chunk], n_entries[chunk] = kept.sum(), entries[kept].sum()
            if classes is not None:
                counts += np.bincount(np.searchsorted(classes, label[kept]), minlength=counts.size)
        self._chunks = (
            np.flatnonzero(n_rows) if rows.size else np.zeros(1, np.int64)
        )  # an empty one, of no rows
        manifest: dict[str, Any] = {
            **whole.manifest,
            "fingerprint": hashlib.sha256(whole.fingerprint.encode() + self._place.tobytes()).hexdigest()[
                :32
            ],
            "n_rows": rows.size,
            "n_entries": int(n_entries.sum()),
            "classes": None if classes is None else classes[counts > 0],
            "class_counts": None if classes is None else counts[counts > 0],
        }
        checksums = {f"{name}_crc": crc for name, crc in whole.chunk_crc.items()}
        table: dict[str, Any] = {
            "part": whole.chunk_part,
            "n_rows": n_rows,
            "n_entries": n_entries,
            **checksums,
        }
        super().__init__(whole.path, manifest, {name: column[self._chunks] for name, column in table.items()})
        # of a place in the selection, and of a row's number in the column layout
        self.held_bytes = 2 * self._place.nbytes + whole.held_bytes

    @property
    def whole(self) -> Dataset:
        """The dataset whose rows they are; where that is a selection, the one that it is made from."""
        return self._whole.whole

    def read_rows(
        self, chunk: int, columns: Sequence[str] = ("label", "n_entries"), *, verify: bool = True
    ) -> list[np.ndarray]:
        """Read columns of a chunk's rows; see `RowTable.read_rows`."""
        number = int(self._chunks[chunk])
        names = [*columns, "source"]
        arrays = dict(zip(names, self._whole.read_rows(number, names, verify=verify), strict=True))
        places = self._places(number, arrays["source"])
        kept = places >= 0
        arrays["source"] = places.astype(np.int64)
        return [arrays[name][kept] for name in columns]

    def read_entries(
        self, chunk: int, columns: Sequence[str] = ("feature", "value"), *, verify: bool = True
    ) -> list[np.ndarray]:
        """Read columns of a chunk's entries: ``feature``, ``value``."""
        number = int(self._chunks[chunk])
        source, n_entries = self._whole.read_rows(number, ("source", "n_entries"), verify=False)
        kept = np.repeat(self._places(number, source) >= 0, n_entries)
        return [array[kept] for array in self._whole.read_entries(number, columns, verify=verify)]

    def _kept(self, chunk: int) -> np.ndarray:
        """Tell which rows of a chunk of the whole are selected."""
        return self._places(chunk, self._whole.read_rows(chunk, ("source",), verify=False)[0]) >= 0

    def _places(self, chunk: int, source: np.ndarray) -> np.ndarray:
        """Return the place in the selection of rows of a chunk of the whole; -1 where they are left out."""
        if source.size and (source.min() < 0 or source.max() >= self._place.size):
            raise DatasetError(
                f"{self._whole.place(chunk, 'rows')}: a source outside 0 … {self._place.size - 1}; {self.KIND.remedy}"
            )
        return self._place[source]

    def open_columns(self) -> Columns:
        """Open the column layout of the whole, whose other rows are left out."""
        return self._columns

    @cached_property
    def _columns(self) -> Columns:
        numbers = np.full(self._whole.n_rows, -1, self.row_dtype)
        done = 0
        for chunk, start in enumerate(self._whole.row_start[:-1].tolist()):
            kept = start + np.flatnonzero(self._kept(chunk))
            numbers[kept] = np.arange(done, done + kept.size)
            done += kept.size
        return _SelectedColumns(self, self._whole.open_columns(), numbers)

    def another(self) -> Self:
        """Return the same selection with files of its own, to be read by another thread."""
        other = copy.copy(self)
        other._whole = self._whole.another()
        return other

    def expect(self, chunk: int) -> None:
        """Announce that a chunk will be read."""
        self._whole.expect(int(self._chunks[chunk]))

    def read_directly(self, ahead_bytes: int) -> None:
        """Read past the page cache from now until `close`."""
        self._whole.read_directly(ahead_bytes)

    def chunk_bytes(self, chunk: int) -> int:
        """Bytes on disk that reading a chunk for training asks for."""
        return self._whole.chunk_bytes(int(self._chunks[chunk]))

    def place(self, chunk: int, table: str = "entries") -> str:
        """Location of a chunk for messages."""
        return self._whole.place(int(self._chunks[chunk]), table)

    def close(self) -> None:
        """Close all files; the next read opens them again."""
        self._whole.close()

    def read_features(
        self, columns: Sequence[str] | None = None, *, first_group: int = 0
    ) -> Iterator[dict[str, np.ndarray]]:
        """Read statistics of the features of the whole."""
        return self._whole.read_features(columns, first_group=first_group)

    def verify(
        self, listener: Listener | None = None, *, workers: int = 1, memory: int | str | None = None
    ) -> list[str]:
        """Check the whole dataset."""
        return self._whole.verify(listener, workers=workers, memory=memory)


class _SelectedColumns(Columns):
    """The column layout of a selection: `numbers` gives each row of the whole its number, -1 where it is left out."""

    def __init__(self, selection: RowSelection, whole: Columns, numbers: np.ndarray) -> None:
        self._whole, self._numbers = whole.another(), numbers
        kept = [int((numbers[row] >= 0).sum()) for row in map(self._rows, range(whole.n_chunks))]
        digest = hashlib.sha256(f"{whole.fingerprint} {selection.fingerprint}".encode()).hexdigest()
        manifest = {**whole.manifest, "fingerprint": digest[:32], "n_entries": sum(kept)}
        manifest["row_dtype"] = selection.row_dtype.name
        checksums = {f"{name}_crc": crc for name, crc in whole.chunk_crc.items()}
        table = {
            **checksums,
            "part": whole.chunk_part,
            "n_entries": np.array(kept, np.int64),
            "first_feature": whole.first_feature,
            "n_features": whole.n_listed,
            "piece": ~np.isin(np.arange(whole.n_chunks), whole.unit_start),
        }
        super().__init__(selection, manifest, table)

    def _rows(self, chunk: int, verify: bool = False) -> np.ndarray:
        return self._whole.read_entries(chunk, ("row",), verify=verify)[0]

    def read_index(self, chunk: int, *, verify: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Read the features of a chunk and how many of the selection's entries each has, which may be none."""
        feature, n_entries = self._whole.read_index(chunk, verify=verify)
        before = starts_of(self._numbers[self._rows(chunk)] >= 0)
        return feature, np.diff(before[starts_of(n_entries)])

    def read_entries(
        self, chunk: int, columns: Sequence[str] = ("row", "value"), *, verify: bool = True
    ) -> list[np.ndarray]:
        """Read columns of a chunk's entries: ``row``, ``value``."""
        row, value = self._whole.read_entries(chunk, verify=verify)
        number = self._numbers[row]
        kept = number >= 0
        arrays = {"row": number[kept], "value": value[kept]}
        return [arrays[name] for name in columns]

    def another(self) -> Self:
        """Return the same layout with files of its own, to be read by another thread."""
        other = copy.copy(self)
        other._whole = self._whole.another()
        return other

    def expect(self, chunk: int) -> None:
        """Announce that a chunk will be read."""
        self._whole.expect(chunk)

    def read_directly(self, ahead_bytes: int) -> None:
        """Read past the page cache from now until `close`."""
        self._whole.read_directly(ahead_bytes)

    def chunk_bytes(self, chunk: int) -> int:
        """Bytes on disk that reading a chunk for training asks for."""
        return self._whole.chunk_bytes(chunk)

    def close(self) -> None:
        """Close all files; the next read opens them again."""
        self._whole.close()


def select_rows(dataset: Dataset, key: Any) -> RowSelection:
    """See `Dataset.__getitem__`."""
    if isinstance(key, tuple) and len(key) == 2 and key[1] is Ellipsis:
        key = key[0]  # all features of these rows
    if isinstance(key, slice):
        return RowSelection(dataset, np.arange(dataset.n_rows)[key])
    rows = np.asarray(None if isinstance(key, tuple) else key)
    if rows.size == 0:
        rows = rows.astype(np.int64)
    if rows.ndim != 1 or rows.dtype.kind not in "biu":
        raise UsageError(
            f"{dataset.path}[rows]: expected an array of numbers of rows, a mask or a slice, found "
            f"{type(key).__name__}; head() and to_scipy() read the rows themselves"
        )
    if rows.dtype.kind == "b":
        if rows.size != dataset.n_rows:
            raise UsageError(
                f"{dataset.path}[mask]: expected a mask of {dataset.n_rows} rows, found {rows.size}"
            )
        return RowSelection(dataset, np.flatnonzero(rows))
    rows = np.where(rows < 0, rows + dataset.n_rows, rows) if rows.dtype.kind == "i" else rows
    if rows.size and (rows.min() < 0 or rows.max() >= dataset.n_rows):
        raise UsageError(
            f"{dataset.path}[rows]: expected rows from 0 to {dataset.n_rows - 1}, found one beyond"
        )
    return RowSelection(dataset, rows.astype(np.int64, copy=False))

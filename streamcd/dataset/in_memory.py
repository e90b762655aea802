"""A dataset in memory: rows given as arrays, with the same interface of chunks as one on disk.

Chunks are views of the arrays; only arrays of another type are copied. Chunks are cut as on disk, so that a window that does
not hold all rows mixes rows from many places.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from .chunked_table import ChunkedTable, starts_of
from .column_layout import Columns
from .dataset import Dataset
from .feature_order import MOST_COUNTED
from .schema import NO_NORMS, norms_record, row_dtype

CHUNK_BYTES = 1_000_000
_ITEM_BYTES = 32  # of a row or feature besides its entries, when chunks are cut
_NOWHERE = Path("(arrays)")


class _Arrays(ChunkedTable):
    """A table whose columns are arrays; chunks are views of them."""

    _arrays: Mapping[str, dict[str, np.ndarray]]

    def _read(self, table: str, chunk: int, columns: Sequence[str], verify: bool) -> list[np.ndarray]:
        start, stop = self.starts[table][chunk : chunk + 2].tolist()
        return [self._arrays[table][column][start:stop] for column in columns]

    def announce(self, chunks: Sequence[int], first: Mapping[str, str] | None = None) -> None:
        """Do nothing: all is in memory."""

    def chunk_bytes(self, chunk: int) -> int:
        return 0

    def place(self, chunk: int, table: str = "entries") -> str:
        return f"{_NOWHERE}, chunk {chunk}"


class InMemoryDataset(_Arrays, Dataset):
    """Rows of two or more classes, or of targets, in memory.

    `rows` are not copied: ``indptr`` (int64), ``feature`` (integer, 0-based, ascending in a row) and ``value``
    (float32 or float64); row ``r`` has the entries ``indptr[r]:indptr[r + 1]``. `label` is each row's class, from 0 on,
    or its target where there are no classes.
    """

    is_shuffled = False

    def __init__(
        self,
        rows: tuple[np.ndarray, np.ndarray, np.ndarray],
        n_features: int,
        label: np.ndarray,
        n_classes: int | None,
        weight: np.ndarray | None = None,
    ) -> None:
        self.rows = rows
        indptr, feature, value = rows
        self._columns: Columns | None = None
        sizes = indptr * (feature.itemsize + value.itemsize) + _ITEM_BYTES * np.arange(label.size + 1)
        row_start = _cut(sizes)
        ends = {"min": float(label.min()), "max": float(label.max())} if n_classes is None else None
        manifest, table = _form(feature, value, row_start, indptr[row_start])
        manifest |= {
            "n_rows": label.size,
            "n_features": n_features,
            "classes": None if n_classes is None else np.arange(n_classes, dtype=np.float64),
            "class_counts": None if n_classes is None else np.bincount(label, minlength=n_classes),
            "label_kind": "decimal" if n_classes is None else "integer",
            "targets": ends,
            "weighted": weight is not None,
            "index_base": 0,
            "seed": 0,
            "row_norms": _row_norms(indptr, value, row_start),
        }
        self._arrays = {
            "rows": {
                "source": np.arange(label.size),
                "label": label.astype(np.float64),
                "weight": np.ones(label.size) if weight is None else weight,
                "n_entries": np.diff(indptr),
            },
            "entries": {"feature": feature, "value": value},
        }
        super().__init__(_NOWHERE, manifest, table | {"n_rows": np.diff(row_start)})

    def renumber(self, source: np.ndarray) -> None:
        """Give the rows other numbers in the source, by which they are assigned to folds."""
        self._arrays["rows"]["source"] = source

    def open_columns(self) -> Columns:
        """Return the column layout, which the first call makes."""
        if self._columns is None:
            self._columns = _InMemoryColumns(self)
        return self._columns

    def read_features(
        self, columns: Sequence[str] = (), *, start: int = 0
    ) -> Generator[dict[str, np.ndarray], None, None]:
        """Compute ``n_entries`` and ``mean_square`` of the features that occur.

        Where they are asked for, ``mean``, and ``min`` and ``max`` of the features in every row; of others these are nan.
        """
        _, feature, value = self.rows
        count = np.bincount(feature, minlength=self.n_features)
        n_rows = max(self.n_rows, 1)
        squares = np.bincount(feature, np.square(value, dtype=np.float64), self.n_features)
        figures = {"n_entries": count, "mean_square": squares / n_rows}
        if "mean" in columns:
            figures["mean"] = np.bincount(feature, value, self.n_features) / n_rows
        if "min" in columns:
            for name, end, keep in (("min", np.inf, np.minimum), ("max", -np.inf, np.maximum)):
                ends = np.full(self.n_features, end, value.dtype)
                keep.at(ends, feature, value)
                figures[name] = np.where(count == self.n_rows, ends, np.nan)
        occurs = np.flatnonzero(count)
        yield {"feature": occurs, **{name: column[occurs] for name, column in figures.items()}}

    def _entry_counts(self) -> np.ndarray:
        """Count the entries of every feature, about as many at a time as there are features: they are copied."""
        counts = np.zeros(self.n_features, np.int64)
        _, feature, _ = self.rows
        n_parts = 1 + feature.size // max(self.n_features, CHUNK_BYTES)
        for some in np.array_split(feature, n_parts):
            counts += np.bincount(some, minlength=self.n_features)
        return np.minimum(counts, MOST_COUNTED).astype(np.uint16)


class _InMemoryColumns(_Arrays, Columns):
    """Column layout of a dataset in memory; each feature is whole, in one chunk."""

    def __init__(self, dataset: InMemoryDataset) -> None:
        from scipy.sparse import csr_array

        indptr, feature, value = dataset.rows
        indptr = indptr.astype(row_dtype(max(value.size, dataset.n_rows)))
        columns = csr_array((value, feature, indptr), shape=(dataset.n_rows, dataset.n_features)).tocsc()
        n_entries = np.diff(columns.indptr.astype(np.int64))
        occurs = np.flatnonzero(n_entries)
        starts = starts_of(n_entries[occurs])
        row = columns.indices.astype(dataset.row_dtype, copy=False)
        sizes = starts * (row.itemsize + value.itemsize) + _ITEM_BYTES * np.arange(occurs.size + 1)
        item_start = _cut(sizes)
        manifest, table = _form(row, value, item_start, starts[item_start])
        manifest |= {"n_features": occurs.size, "row_dtype": row.dtype.name}
        table |= {
            "first_feature": occurs[item_start[:-1]],
            "n_features": np.diff(item_start),
            "piece": np.zeros(item_start.size - 1, dtype=np.int64),
        }
        index = {"feature": occurs, "n_entries": n_entries[occurs]}
        self._arrays = {"entries": {"row": row, "value": columns.data}, "index": index}
        super().__init__(dataset, manifest, table)


def _row_norms(indptr: np.ndarray, value: np.ndarray, row_start: np.ndarray) -> dict[str, Any]:
    """Compute the manifest's ``row_norms``, to the bits that they have on disk."""
    from ..kernels.rows import add_row_norms  # here, because it imports numba

    norms = np.array(NO_NORMS)
    for start, stop in pairwise(row_start.tolist()):
        first = indptr[start]
        # a copy, since numba would compile the kernel once more for arrays that cannot be written to
        add_row_norms(indptr[start : stop + 1] - first, value[first : indptr[stop]].copy(), norms)
    norms[2] /= max(indptr.size - 1, 1)
    return norms_record([norms.tolist()], [indptr.size - 1])


def _cut(sizes: np.ndarray) -> np.ndarray:
    """Cut items into chunks by `sizes`, the bytes before each; returns the first item of each chunk, and the item count."""
    cuts = np.searchsorted(sizes, np.arange(CHUNK_BYTES, int(sizes[-1]), CHUNK_BYTES))
    return np.unique(np.concatenate([[0], cuts, [sizes.size - 1]]))


def _form(
    index: np.ndarray, value: np.ndarray, item_start: np.ndarray, entry_start: np.ndarray
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what both layouts have in the manifest, without files, and in the chunk table, without checksums."""
    manifest = {
        "fingerprint": "",
        "n_entries": value.size,
        "index_dtype": index.dtype.name,
        "value_dtype": value.dtype.name,
        "parts": [{}],
    }
    return manifest, {"part": np.zeros(item_start.size - 1, np.int32), "n_entries": np.diff(entry_start)}

"""Some rows of a dataset: which ones are chosen, and their column layout; `dataset.RowSelection` is their row layout."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.errors import UsageError
from .chunked_table import RowTable, starts_of
from .column_layout import Columns


def chosen_rows(dataset: RowTable, key: Any) -> np.ndarray:
    """Return the places, int64, that ``dataset[key]`` chooses; see `Dataset.__getitem__`."""
    if isinstance(key, tuple) and len(key) == 2 and key[1] is Ellipsis:
        key = key[0]  # all features of these rows
    if isinstance(key, slice):
        return np.arange(dataset.n_rows)[key]
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
        return np.flatnonzero(rows)
    rows = np.where(rows < 0, rows + dataset.n_rows, rows) if rows.dtype.kind == "i" else rows
    if rows.size and (rows.min() < 0 or rows.max() >= dataset.n_rows):
        raise UsageError(
            f"{dataset.path}[rows]: expected rows from 0 to {dataset.n_rows - 1}, found one beyond"
        )
    return rows.astype(np.int64, copy=False)


class SelectedColumns(Columns):
    """The column layout of a selection: `numbers` gives each row of the whole its number, -1 where it is left out."""

    def __init__(self, selection: RowTable, whole: Columns, numbers: np.ndarray) -> None:
        self._stored, self._numbers = whole, numbers
        rows = (whole.read_entries(chunk, ("row",), verify=False)[0] for chunk in range(whole.n_chunks))
        kept = [np.count_nonzero(numbers[row] >= 0) for row in rows]
        digest = hashlib.sha256(f"{whole.fingerprint} {selection.fingerprint}".encode()).hexdigest()
        manifest = {**whole.manifest, "fingerprint": digest[:32], "n_entries": sum(kept)}
        manifest["row_dtype"] = selection.row_dtype.name
        table = {
            **{f"{name}_crc": crc for name, crc in whole.chunk_crc.items()},
            "part": whole.chunk_part,
            "n_entries": np.array(kept, np.int64),
            "first_feature": whole.first_feature,
            "n_features": whole.n_listed,
            "piece": ~np.isin(np.arange(whole.n_chunks), whole.unit_start),
        }
        super().__init__(selection, manifest, table)
        self._n_stored = whole._n_stored

    def read_index(self, chunk: int, *, verify: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Read the features of a chunk and how many of the selection's entries each has, which may be none."""
        feature, n_entries = super().read_index(chunk, verify=verify)
        (row,) = super().read_entries(chunk, ("row",), verify=False)
        return feature, np.diff(starts_of(self._numbers[row] >= 0)[starts_of(n_entries)])

    def read_entries(
        self, chunk: int, columns: Sequence[str] = ("row", "value"), *, verify: bool = True
    ) -> list[np.ndarray]:
        """Read columns of a chunk's entries: ``row``, ``value``."""
        row, value = super().read_entries(chunk, verify=verify)
        number = self._numbers[row]
        kept = number >= 0
        arrays = {"row": number[kept], "value": value[kept]}
        return [arrays[name] for name in columns]

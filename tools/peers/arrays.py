"""A dataset as arrays in a folder, the form that the peers load fastest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from streamcd.dataset.dataset import Dataset, open_dataset

_NAMES = ("indptr", "index", "value", "label")


def write_arrays(dataset: Path, folder: Path) -> None:
    """Write ``indptr``, ``index``, ``value`` (float64) and ``label`` of a dataset, where they are not there yet."""
    if (folder / "label.npy").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    data = open_dataset(dataset)
    index, value = np.empty(data.n_entries, dtype=np.int32), np.empty(data.n_entries)
    label, count = np.empty(data.n_rows), np.empty(data.n_rows, dtype=np.int64)
    for rows, entries, chunk in _chunks(data):
        label[rows], count[rows] = data.read_rows(chunk, ("label", "n_entries"))
        index[entries], value[entries] = data.read_entries(chunk)
    indptr = np.concatenate([[0], np.cumsum(count)])
    narrow = np.int32 if indptr[-1] < 2**31 else np.int64  # scipy and the peers convert both to the wider one
    np.save(folder / "shape.npy", np.array([data.n_rows, data.n_features]))
    arrays: list[np.ndarray] = [indptr.astype(narrow), index, value, label]
    for name, array in zip(_NAMES, arrays, strict=True):
        np.save(folder / f"{name}.npy", array)


def _chunks(data: Dataset) -> Iterator[tuple[slice, slice, int]]:
    for chunk in range(data.n_chunks):
        rows = slice(data.row_start[chunk], data.row_start[chunk + 1])
        yield rows, slice(data.entry_start[chunk], data.entry_start[chunk + 1]), chunk


def load_arrays(folder: Path) -> tuple[sp.csr_matrix, np.ndarray]:
    """Load the rows and their labels."""
    indptr, index, value, label = (np.load(folder / f"{name}.npy") for name in _NAMES)
    shape = tuple(np.load(folder / "shape.npy").tolist())
    return sp.csr_matrix((value, index, indptr), shape=shape, copy=False), label


def drop_from_page_cache(folder: Path) -> None:
    """Have the files of a folder read from disk the next time."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)

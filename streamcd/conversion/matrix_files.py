"""Matrices in files: SciPy's ``.npz`` of sparse ones, NumPy's ``.npy`` of dense ones."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import DataError, UsageError, first_of
from ..core.memory_budget import format_size
from .options import TableOptions
from .sources import Block, Counted, Piece, Reader, Reading, Source, refusing_damage

_LABELS = ("y", "label", "labels", "target")
"""Arrays of a ``.npz`` that are taken as labels if none is named."""

# the libraries may raise anything for bytes that they did not write
_refusing_damage = partial(
    refusing_damage, (Exception,), "expected NumPy's or SciPy's format, found it damaged"
)


class Csr(NamedTuple):
    """Sparse rows, as SciPy's matrices have them."""

    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray
    n_columns: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.indptr.size - 1, self.n_columns


class _Array:
    """An array of numbers or strings in a file ``.npy``, or in an archive of such; its elements are read in their order."""

    def __init__(self, path: str, member: str = "") -> None:
        self.name = f"{path}, array {member!r}" if member else path
        self._file: Any = io.BytesIO()
        with _refusing_damage(self.name):
            # closed with this object
            self._file = zipfile.ZipFile(path).open(f"{member}.npy") if member else open(path, "rb")  # noqa: SIM115
            version = np.lib.format.read_magic(self._file)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            self.shape, self.fortran, self.dtype = read[version](self._file)
            self._offset = self._file.tell()
        if self.dtype.hasobject:
            raise DataError(
                f"{self.name}: expected an array of numbers, found one of Python objects; save it as numbers"
            )

    def __del__(self) -> None:
        self._file.close()

    def read(self, start: int, n: int) -> np.ndarray:
        """Read `n` elements."""
        with _refusing_damage(self.name):
            self._file.seek(self._offset + start * self.dtype.itemsize)
            return np.frombuffer(self._file.read(n * self.dtype.itemsize), self.dtype, n)


@dataclass(frozen=True)
class MatrixReader(Reader):
    """Matrices in files: sparse ones, whose labels are another array of the file, or dense ones, of which a column has them.

    Labels may also be in a file of their own.
    """

    paths: list[str]
    label: str
    reading: Reading
    sparse: bool

    @cached_property
    def _column(self) -> int | None:
        """The column of labels, counted from the end where it is negative."""
        return int(self.label) if not self.sparse and self.label.lstrip("-").isdigit() else None

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, int]]:
        """Rows and columns of every file."""
        shapes = {path: (_sparse_shape if self.sparse else _dense_shape)(path) for path in self.paths}
        first = self.paths[0]
        width = shapes[self.paths[0]][1]
        for path, (_, n_columns) in shapes.items():
            if n_columns != width and not self.reading.any_width:
                raise DataError(
                    f"{path}: expected {width:,} columns, as in {first}, found {n_columns:,}; if column k is the same in "
                    "all, give --n-features"
                )
        return shapes

    def labels(self, path: str) -> _Array | None:
        """Open the labels of a file; None where a column has them, or nothing."""
        if self.label.endswith(".npy") and os.path.isfile(self.label):
            return _Array(self.label)
        if self.sparse:
            names = _members(path)
            name = self.label or next((name for name in _LABELS if name in names), "")
            if name in names:
                return _Array(path, name)
            expected = "an array of the file"
            given = ", ".join(names)
        else:
            n_columns = self._shapes[path][1]
            if self._column is not None and -n_columns <= self._column < n_columns:
                return None
            expected = "the number of a column (-1 is the last)"
            given = self.label or "none"
        if self.label or self.reading.needs_label:
            raise UsageError(
                f"{path}: expected as --label {expected} or a .npy, found {given}; check the name"
            )
        return None

    def pieces(self, n_tasks: int = 1) -> list[Piece]:
        shares = []
        for path, (n_rows, _) in self._shapes.items():
            ends = np.linspace(0, n_rows, min(n_tasks, max(n_rows, 1)) + 1).astype(np.int64).tolist()
            n_bytes = os.path.getsize(path) // (len(ends) - 1)
            shares += [Piece(path, start, stop, n_bytes) for start, stop in pairwise(ends)]
        return shares

    def count(self, piece: Piece) -> Counted:
        return Counted((piece.stop or 0) - piece.start)

    def blocks(self, piece: Piece, types: Mapping[str, str], first_line: int = 0) -> Iterator[Block]:
        labels = self.labels(piece.path)
        label = None
        rows: Any
        for before, rows in (self._sparse_rows if self.sparse else self._dense_rows)(piece):
            if labels is not None:
                label = labels.read(before, rows.shape[0])
            elif self._column is not None:
                label = rows[:, self._column].copy()
                rows = np.delete(rows, self._column, axis=1)
            yield Block(piece.path, before, rows, label=label)

    def _sparse_rows(self, piece: Piece) -> Iterator[tuple[int, Csr]]:
        """Read rows, some at a time, each time with the number of the first."""
        path = piece.path
        start = piece.start
        stop = piece.stop or 0
        indptr, indices, data = (_Array(path, name) for name in ("indptr", "indices", "data"))
        width = max(n_columns for _, n_columns in self._shapes.values())
        entry_bytes = indices.dtype.itemsize + data.dtype.itemsize
        batch_bytes = self.reading.batch_bytes
        most = max(batch_bytes // 4 // (entry_bytes + 16), 1)
        most_rows = max(batch_bytes // 64, 1)
        last = indptr.read(start, 1).astype(np.int64)
        for first in range(start, stop, most_rows):
            n_rows = min(most_rows, stop - first)
            row = 0
            # an archive is not read backwards
            ends = np.append(last, indptr.read(first + 1, n_rows).astype(np.int64))
            last = ends[-1:]
            if (np.diff(ends) < 0).any() or ends[0] < 0 or (ends[0] and not first):
                raise DataError(
                    f"{indptr.name}: expected it to begin at 0 and not to descend, found it does not; get it again"
                )
            while row < n_rows:
                end = max(int(np.searchsorted(ends, ends[row] + most, side="right")) - 1, row + 1)
                before = int(ends[row])
                n_entries = int(ends[end] - ends[row])
                if n_entries * entry_bytes > batch_bytes:
                    raise DataError(
                        f"{path}, row {first + row + 1}: expected rows of at most {format_size(batch_bytes)} under this "
                        "memory budget, found a longer one; give a larger --memory"
                    )
                entries = indices.read(before, n_entries), data.read(before, n_entries)
                yield first + row, Csr(ends[row : end + 1] - before, *entries, width)
                row = end

    def _dense_rows(self, piece: Piece) -> Iterator[tuple[int, np.ndarray]]:
        array = _Array(piece.path)
        n_columns = array.shape[1]
        stop = piece.stop or 0
        step = max(self.reading.batch_bytes // 4 // max(n_columns * array.dtype.itemsize, 1), 1)
        for first in range(piece.start, stop, step):
            n_rows = min(step, stop - first)
            yield first, array.read(first * n_columns, n_rows * n_columns).reshape(n_rows, n_columns)


def _members(path: str) -> list[str]:
    """Return the names of the arrays of an archive."""
    with _refusing_damage(path), zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def _sparse_shape(path: str) -> tuple[int, int]:
    names = _members(path)
    kind = str(_Array(path, "format").read(0, 1).astype(str)[0]) if "format" in names else "csr"
    if kind != "csr" or {"data", "indices", "indptr", "shape"} - set(names):
        description = f"a matrix in {kind}" if kind != "csr" else first_of(names, 10) or "nothing"
        raise DataError(
            f"{path}: expected a sparse matrix in CSR as scipy.sparse.save_npz writes it, found {description}; "
            "convert it with .tocsr()"
        )
    n_rows, n_columns = _Array(path, "shape").read(0, 2).tolist()
    return int(n_rows), int(n_columns)


def _dense_shape(path: str) -> tuple[int, int]:
    array = _Array(path)
    if len(array.shape) != 2 or array.dtype.kind not in "biuf" or (array.fortran and array.shape[0] > 1):
        layout = "Fortran's order" if array.fortran else f"shape {array.shape} of {array.dtype}"
        raise DataError(
            f"{path}: expected a matrix of numbers, row after row, found {layout}; save np.ascontiguousarray of it"
        )
    return array.shape


def open_matrices(paths: list[str], sparse: bool, reading: Reading, options: TableOptions) -> Source:
    if options.label.endswith(".npy") and len(paths) > 1:
        raise UsageError(
            "--label: expected one .npy of labels for one matrix, found several matrices; join them"
        )
    reader = MatrixReader(paths, options.label, reading, sparse)
    labels = reader.labels(paths[0]) if reader.pieces() else None  # once all are checked
    has_names = labels is not None and labels.dtype.kind in "US" and not reading.of_numbers
    return Source(
        reader=reader,
        reading=reading,
        made_from="sparse matrix" if sparse else "dense array",
        names_labels=bool(reading.class_names) or has_names,
    )

"""Matrices in files: SciPy's ``.npz`` of sparse ones, NumPy's ``.npy`` of dense ones."""

from __future__ import annotations

import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np

from ..core.errors import DataError, UsageError, first_of
from ..core.memory_budget import format_size
from .byte_sources import Piece
from .options import TableOptions
from .sources import Block, Counted, Csr, Reader, Reading, Source, locator, matrix_source, refusing_damage

_LABELS = ("y", "label", "labels", "target")
"""Arrays of a ``.npz`` that are taken as labels if none is named."""

_refusing_damage = partial(
    refusing_damage,
    # errors of zipfile, zlib and numpy for bytes that they did not write; RuntimeError also for what is encrypted
    (
        ValueError, KeyError, EOFError, RuntimeError, SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
        struct.error,
    ),
    "expected NumPy's or SciPy's format, found it damaged",
)  # fmt: skip


class _Array:
    """An array of numbers or strings in a file, whose elements are read row after row."""

    def __init__(self, file: Any, name: str) -> None:
        self.name, self._file = name, file
        with _refusing_damage(name):
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            self.shape, self.fortran, self.dtype = read[version](file)
            self._offset = file.tell()
        if self.dtype.hasobject:
            raise DataError(
                f"{name}: expected an array of numbers, found one of Python objects; save it as numbers"
            )

    def __del__(self) -> None:
        self._file.close()

    def seek(self, start: int) -> None:
        """Go on at an element."""
        with _refusing_damage(self.name):
            self._file.seek(self._offset + start * self.dtype.itemsize)

    def read(self, n: int) -> np.ndarray:
        """Read the next elements."""
        with _refusing_damage(self.name):
            content = self._file.read(n * self.dtype.itemsize)
        if len(content) < n * self.dtype.itemsize:
            raise DataError(
                f"{self.name}: expected {n:,} more elements, found {len(content) // self.dtype.itemsize:,} before the end; "
                "get it again"
            )
        return np.frombuffer(content, self.dtype)


def _open_npy(path: str) -> _Array:
    return _Array(open(path, "rb"), path)


class _Npz:
    """A CSR matrix of SciPy's; labels are an array of the same file, or a ``.npy`` beside it."""

    column = None

    def __init__(self, path: str, label: str, needs_label: bool) -> None:
        self._path, self._label = path, label
        with _refusing_damage(path), zipfile.ZipFile(path) as archive:
            self._names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        if not label:
            self._label = next((name for name in _LABELS if name in self._names), "")
        if needs_label and not label.endswith(".npy") and self._label not in self._names:
            raise UsageError(
                f"{path}: expected labels, found the arrays {', '.join(self._names)}; give --label, an array of the file or "
                "a .npy"
            )

    def _open(self, name: str) -> _Array:
        shown = f"{self._path}, array {name!r}"
        with _refusing_damage(shown):
            return _Array(zipfile.ZipFile(self._path).open(f"{name}.npy"), shown)

    def labels(self) -> _Array | None:
        if self._label.endswith(".npy"):
            return _open_npy(self._label)
        return self._open(self._label) if self._label in self._names else None

    def shape(self) -> tuple[int, int]:
        """Read the numbers of rows and columns."""
        kind = str(self._open("format").read(1).astype(str)[0]) if "format" in self._names else "csr"
        if kind != "csr" or {"data", "indices", "indptr", "shape"} - set(self._names):
            found = f"a matrix in {kind}" if kind != "csr" else first_of(self._names, 10) or "nothing"
            raise DataError(
                f"{self._path}: expected a sparse matrix in CSR as scipy.sparse.save_npz writes it, found {found}; "
                "convert it with .tocsr()"
            )
        n_rows, n_columns = self._open("shape").read(2).tolist()
        return int(n_rows), int(n_columns)

    def read(self, start: int, stop: int, width: int, batch_bytes: int) -> Iterator[tuple[int, Any]]:
        """Yield rows, some at a time, each time with the number of the first."""
        indptr, indices, data = (self._open(name) for name in ("indptr", "indices", "data"))
        indptr.seek(start)
        last = indptr.read(1).astype(np.int64)
        indices.seek(int(last[0]))
        data.seek(int(last[0]))
        entry_bytes = indices.dtype.itemsize + data.dtype.itemsize
        most, most_rows = max(batch_bytes // 4 // (entry_bytes + 16), 1), max(batch_bytes // 64, 1)
        for first in range(start, stop, most_rows):
            n_rows, row = min(most_rows, stop - first), 0
            ends = np.append(last, indptr.read(n_rows).astype(np.int64))
            last = ends[-1:]
            if (np.diff(ends) < 0).any() or ends[0] < 0 or (ends[0] and not first):
                raise DataError(
                    f"{indptr.name}: expected it to begin at 0 and not to descend, found it does not; get it again"
                )
            while row < n_rows:
                end = max(int(np.searchsorted(ends, ends[row] + most, side="right")) - 1, row + 1)
                n_entries = int(ends[end] - ends[row])
                if n_entries * entry_bytes > batch_bytes:
                    raise DataError(
                        f"{self._path}, row {first + row + 1}: expected rows of at most {format_size(batch_bytes)} under "
                        "this memory budget, found a longer one; give a larger --memory"
                    )
                entries = indices.read(n_entries), data.read(n_entries)
                yield first + row, Csr(ends[row : end + 1] - ends[row], *entries, width)
                row = end


class _Npy:
    """A dense matrix of NumPy's; labels are a column of it, by its number, or another ``.npy``."""

    def __init__(self, path: str, label: str, needs_label: bool) -> None:
        self._path, self._label, found = path, label, _open_npy(path)
        if len(found.shape) != 2 or found.dtype.kind not in "biuf" or (found.fortran and found.shape[0] > 1):
            layout = "Fortran's order" if found.fortran else f"shape {found.shape} of {found.dtype}"
            raise DataError(
                f"{path}: expected a matrix of numbers, row after row, found {layout}; save np.ascontiguousarray of it"
            )
        self._shape = found.shape
        self.column = int(label) if label.lstrip("-").isdigit() else None  # from the end where it is negative
        expected = "the number of a column (-1 is the last) or a .npy"
        if not label and needs_label:
            raise UsageError(f"{path}: expected labels; give --label, {expected}")
        if label and self.column is None and not os.path.isfile(label):
            raise UsageError(f"{path}: expected as --label {expected}, found {label!r}; check the name")

    def labels(self) -> _Array | None:
        return _open_npy(self._label) if self._label and self.column is None else None

    def shape(self) -> tuple[int, int]:
        return self._shape[0], self._shape[1] - (self.column is not None)

    def read(self, start: int, stop: int, width: int, batch_bytes: int) -> Iterator[tuple[int, Any]]:
        """Yield rows, some at a time, each time with the number of the first; a column of labels is among them."""
        found, n_columns = _open_npy(self._path), self._shape[1]
        step = max(batch_bytes // 4 // max(n_columns * found.dtype.itemsize, 1), 1)
        found.seek(start * n_columns)
        for first in range(start, stop, step):
            yield first, found.read(min(step, stop - first) * n_columns).reshape(-1, n_columns)


@dataclass(frozen=True)
class MatrixReader(Reader):
    """Matrices in files of one format, with their labels."""

    paths: list[str]
    label: str
    reading: Reading
    sparse: bool

    @cached_property
    def _files(self) -> dict[str, _Npz | _Npy]:
        kind = _Npz if self.sparse else _Npy
        return {path: kind(path, self.label, self.reading.needs_label) for path in self.paths}

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, int]]:
        return {path: file.shape() for path, file in self._files.items()}

    def names_labels(self) -> bool:
        """Tell if labels are strings."""
        labels = self._files[self.paths[0]].labels()
        return labels is not None and labels.dtype.kind in "US"

    def pieces(self, n_tasks: int = 1) -> list[Piece]:
        found = []
        for path, (n_rows, _) in self._shapes.items():
            ends = np.linspace(0, n_rows, min(n_tasks, max(n_rows, 1)) + 1).astype(np.int64).tolist()
            n_bytes = os.path.getsize(path) // (len(ends) - 1)
            found += [Piece(path, start, stop, n_bytes) for start, stop in pairwise(ends)]
        return found

    def count(self, piece: Piece) -> Counted:
        assert piece.stop is not None
        return Counted(piece.stop - piece.start)

    def blocks(self, pieces: Sequence[Piece], first_line: int, types: Mapping[str, str]) -> Iterator[Block]:
        width = max(n_columns for _, n_columns in self._shapes.values())
        for piece in pieces:
            file = self._files[piece.path]
            labels, column = file.labels(), file.column
            assert piece.stop is not None
            if labels is not None:
                labels.seek(piece.start)
            for start, rows in file.read(piece.start, piece.stop, width, self.reading.batch_bytes):
                label = None if labels is None else labels.read(rows.shape[0])
                if column is not None:
                    label, rows = rows[:, column].copy(), np.delete(rows, column, axis=1)
                yield Block(locator(piece.path, start), rows, label=label)


def open_matrices(paths: list[str], format: str, reading: Reading, options: TableOptions) -> Source:
    if options.label.endswith(".npy") and len(paths) > 1:
        raise UsageError(
            "--label: expected one .npy of labels for one matrix, found several matrices; join them"
        )
    reader = MatrixReader(paths, options.label, reading, format == "npz")
    return matrix_source(reader, reading, sparse=reader.sparse, names_labels=reader.names_labels())

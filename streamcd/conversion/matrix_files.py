"""Matrices in files: SciPy's ``.npz`` of sparse ones, NumPy's ``.npy`` of dense ones."""

from __future__ import annotations

import io
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import DataError, UsageError, first_of, refuse
from ..core.memory_budget import format_size
from .options import TableOptions
from .sources import Block, Counted, Piece, Reader, Reading, Source, refusing_damage

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

    def read(self, n: int, start: int | None = None) -> np.ndarray:
        """Read the next elements, or those from `start` on."""
        with _refusing_damage(self.name):
            if start is not None:
                self._file.seek(self._offset + start * self.dtype.itemsize)
            content = self._file.read(n * self.dtype.itemsize)
            return np.frombuffer(content, self.dtype, n)


@dataclass(frozen=True)
class MatrixReader(Reader):
    """Base of readers of matrices in files, with their labels."""

    paths: list[str]
    label: str
    reading: Reading

    def shape(self, path: str) -> tuple[int, int]:
        """Read the numbers of rows, and of columns that are features."""
        raise NotImplementedError

    def labels(self, path: str) -> _Array | None:
        """Open the labels; None where a column has them, or nothing."""
        raise NotImplementedError

    def rows(self, piece: Piece, width: int) -> Iterator[Block]:
        """Read rows, some at a time, with labels that are a column of them."""
        raise NotImplementedError

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, int]]:
        return {path: self.shape(path) for path in self.paths}

    def names_labels(self) -> bool:
        """Tell if labels are strings."""
        labels = self.labels(self.paths[0]) if self._shapes else None  # once these are checked
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

    def blocks(
        self, pieces: Sequence[Piece], types: Mapping[str, str], first_line: int = 0
    ) -> Iterator[Block]:
        width = max(n_columns for _, n_columns in self._shapes.values())
        for piece in pieces:
            labels = self.labels(piece.path)
            for block in self.rows(piece, width):
                if labels is not None:
                    block = block._replace(label=labels.read(block.content.shape[0], block.before))
                yield block


@dataclass(frozen=True)
class NpzReader(MatrixReader):
    """CSR matrices of SciPy's; labels are an array of the same file, or a ``.npy`` beside it."""

    @cached_property
    def _names(self) -> dict[str, list[str]]:
        found = {}
        for path in self.paths:
            with _refusing_damage(path), zipfile.ZipFile(path) as archive:
                members = archive.namelist()
            found[path] = [name.removesuffix(".npy") for name in members if name.endswith(".npy")]
        return found

    def labels(self, path: str) -> _Array | None:
        if self.label.endswith(".npy"):
            return _Array(self.label)
        names = self._names[path]
        name = self.label or next((name for name in _LABELS if name in names), "")
        if name in names:
            return _Array(path, name)
        if self.reading.needs_label:
            raise UsageError(
                f"{path}: expected labels, found the arrays {', '.join(names)}; give --label, an array of the file or a .npy"
            )
        return None

    def shape(self, path: str) -> tuple[int, int]:
        names = self._names[path]
        kind = str(_Array(path, "format").read(1).astype(str)[0]) if "format" in names else "csr"
        if kind != "csr" or {"data", "indices", "indptr", "shape"} - set(names):
            found = f"a matrix in {kind}" if kind != "csr" else first_of(names, 10) or "nothing"
            raise DataError(
                f"{path}: expected a sparse matrix in CSR as scipy.sparse.save_npz writes it, found {found}; "
                "convert it with .tocsr()"
            )
        n_rows, n_columns = _Array(path, "shape").read(2).tolist()
        return int(n_rows), int(n_columns)

    def rows(self, piece: Piece, width: int) -> Iterator[Block]:
        path, start, stop, _ = piece
        assert stop is not None
        indptr, indices, data = (_Array(path, name) for name in ("indptr", "indices", "data"))
        last = indptr.read(1, start).astype(np.int64)
        entry_bytes, batch_bytes = indices.dtype.itemsize + data.dtype.itemsize, self.reading.batch_bytes
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
                before, n_entries = int(ends[row]), int(ends[end] - ends[row])
                if n_entries * entry_bytes > batch_bytes:
                    raise DataError(
                        f"{path}, row {first + row + 1}: expected rows of at most {format_size(batch_bytes)} under this "
                        "memory budget, found a longer one; give a larger --memory"
                    )
                entries = indices.read(n_entries, before), data.read(n_entries, before)
                yield Block(path, first + row, Csr(ends[row : end + 1] - before, *entries, width))
                row = end


@dataclass(frozen=True)
class NpyReader(MatrixReader):
    """Dense matrices of NumPy's; labels are a column of each, by its number, or another ``.npy``."""

    @property
    def _column(self) -> int | None:
        return (
            int(self.label) if self.label.lstrip("-").isdigit() else None
        )  # from the end where it is negative

    def labels(self, path: str) -> _Array | None:
        return _Array(self.label) if self.label and self._column is None else None

    def shape(self, path: str) -> tuple[int, int]:
        found, expected = _Array(path), "the number of a column (-1 is the last) or a .npy"
        if len(found.shape) != 2 or found.dtype.kind not in "biuf" or (found.fortran and found.shape[0] > 1):
            layout = "Fortran's order" if found.fortran else f"shape {found.shape} of {found.dtype}"
            raise DataError(
                f"{path}: expected a matrix of numbers, row after row, found {layout}; save np.ascontiguousarray of it"
            )
        n_rows, n_columns = found.shape
        refuse(
            UsageError,
            (
                not self.label and self.reading.needs_label,
                f"{path}: expected labels; give --label, {expected}",
            ),
            (
                self.label and self._column is None and not os.path.isfile(self.label),
                f"{path}: expected as --label {expected}, found {self.label!r}; check the name",
            ),
            (
                self._column is not None and not -n_columns <= self._column < n_columns,
                f"{path}: expected a column as --label, one of {n_columns:,}, found {self.label}; check the number",
            ),
        )
        return n_rows, n_columns - (self._column is not None)

    def rows(self, piece: Piece, width: int) -> Iterator[Block]:
        path, start, stop, _ = piece
        assert stop is not None
        found, column = _Array(path), self._column
        n_columns = found.shape[1]
        step = max(self.reading.batch_bytes // 4 // max(n_columns * found.dtype.itemsize, 1), 1)
        for first in range(start, stop, step):
            rows = found.read(min(step, stop - first) * n_columns, first * n_columns).reshape(-1, n_columns)
            if column is None:
                yield Block(path, first, rows)
            else:
                yield Block(path, first, np.delete(rows, column, axis=1), label=rows[:, column].copy())


def open_matrices(paths: list[str], format: str, reading: Reading, options: TableOptions) -> Source:
    if options.label.endswith(".npy") and len(paths) > 1:
        raise UsageError(
            "--label: expected one .npy of labels for one matrix, found several matrices; join them"
        )
    reader = (NpzReader if format == "npz" else NpyReader)(paths, options.label, reading)
    return Source(
        reader=reader,
        reading=reading,
        made_from="sparse matrix" if format == "npz" else "dense array",
        names_labels=bool(reading.class_names) or (reader.names_labels() and not reading.of_numbers),
    )

"""Matrices in files: SciPy's ``.npz`` of sparse ones, NumPy's ``.npy`` of dense ones."""

from __future__ import annotations

import math
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

from ..core.errors import DataError, UsageError
from ..core.memory_budget import format_size
from .encoded_rows import open_matrix
from .options import TableOptions
from .sources import Block, Counted, Csr, FilePart, Reader, Reading, Source, locator, refusing_damage

_LABELS = ("y", "label", "labels", "target")
"""Arrays of a ``.npz`` that are taken as labels if none is named."""

_CHECKED_BYTES = 1 << 20  # at a time
_LOCAL_HEADER = struct.Struct("<26xHH")
"""Of a member of an archive: the lengths of its name and of what follows."""

_DAMAGE = (
    ValueError, KeyError, EOFError, RuntimeError, SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
    struct.error,
)  # fmt: skip
"""Errors of zipfile, zlib and numpy for bytes that they did not write; RuntimeError also for what is encrypted."""

_refusing_damage = partial(refusing_damage, _DAMAGE, "expected NumPy's or SciPy's format, found it damaged")


class _Array(NamedTuple):
    """An array of numbers or strings in a file, of which ranges are read; in memory where the file is compressed."""

    name: str  # in messages
    path: str
    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool
    offset: int  # of its first byte
    held: np.ndarray | None = None

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read elements, row after row."""
        wanted, present = stop - start, max(math.prod(self.shape) - start, 0)
        if self.held is not None:
            elements = self.held.reshape(-1)[start:stop]
        else:
            offset = self.offset + start * self.dtype.itemsize
            elements = np.fromfile(self.path, self.dtype, min(wanted, present), offset=offset)
        if elements.size < wanted:
            raise DataError(
                f"{self.name}: expected {wanted:,} more elements, found {elements.size:,} before the end; get it again"
            )
        return elements


def _open_array(file: Any, path: str, name: str) -> _Array:
    """Read the header of an array at a place in a file; refused if it is damaged, or the array holds objects."""
    with _refusing_damage(name):
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, fortran, dtype = read[version](file)
    if dtype.hasobject:
        raise DataError(
            f"{name}: expected an array of numbers, found one of Python objects; save it as numbers"
        )
    return _Array(name, path, shape, dtype, fortran, file.tell())


def _open_npy(path: str) -> _Array:
    with open(path, "rb") as file:
        return _open_array(file, path, path)


class _Npz:
    """A CSR matrix of SciPy's; labels are an array of the same file, or a ``.npy`` beside it."""

    column = None

    def __init__(self, path: str, label: str, needs_label: bool) -> None:
        self._path, self._label = path, label
        with self._open() as archive:
            members = archive.infolist()
        self._names = [one.filename.removesuffix(".npy") for one in members if one.filename.endswith(".npy")]
        compressed = [one.file_size for one in members if one.compress_type != zipfile.ZIP_STORED]
        self.compressed_bytes = sum(compressed)
        if not label:
            self._label = next((name for name in _LABELS if name in self._names), "")
        if needs_label and not label.endswith(".npy") and self._label not in self._names:
            raise UsageError(
                f"{path}: expected labels, found the arrays {', '.join(self._names)}; give --label, an array of the file or "
                "a .npy"
            )

    def labels(self, most_elements: int | None = None) -> _Array | None:
        if self._label.endswith(".npy"):
            return _open_npy(self._label)
        return self._array(self._label, most_elements) if self._label in self._names else None

    def _open(self) -> zipfile.ZipFile:
        with _refusing_damage(self._path):
            return zipfile.ZipFile(self._path)

    def _array(self, name: str, most_elements: int | None = None) -> _Array:
        """Open an array; of a compressed one, read all or the first `most_elements`."""
        path, told = self._path, f"{self._path}, array {name!r}"
        with self._open() as archive, _refusing_damage(told), archive.open(f"{name}.npy") as member:
            array = _open_array(member, path, told)
            info = archive.getinfo(f"{name}.npy")
            if info.compress_type != zipfile.ZIP_STORED:
                n_bytes = -1 if most_elements is None else most_elements * array.dtype.itemsize
                return array._replace(held=np.frombuffer(member.read(n_bytes), array.dtype))
            with open(path, "rb") as file:
                file.seek(info.header_offset)
                lengths = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
            return array._replace(
                offset=info.header_offset + _LOCAL_HEADER.size + sum(lengths) + array.offset
            )

    def shape(self) -> tuple[int, int]:
        """Read rows and columns, once the checksums of all arrays were compared."""
        for name in self._names:
            told = f"{self._path}, array {name!r}"
            with self._open() as archive, _refusing_damage(told), archive.open(f"{name}.npy") as member:
                while member.read(_CHECKED_BYTES):
                    pass
        kind = "csr"
        if "format" in self._names:
            found = self._array("format", 1).read(0, 1).tolist()[0]
            kind = found.decode(errors="replace") if isinstance(found, bytes) else str(found)
        lacking = {"data", "indices", "indptr", "shape"} - set(self._names)
        if kind != "csr" or lacking:
            shown = f"a matrix in {kind}" if kind != "csr" else ", ".join(self._names[:10]) or "nothing"
            raise DataError(
                f"{self._path}: expected a sparse matrix in CSR as scipy.sparse.save_npz writes it, found {shown}; "
                "convert it with .tocsr()"
            )
        n_rows, n_columns = self._array("shape", 2).read(0, 2).tolist()
        return int(n_rows), int(n_columns)

    def read(self, start: int, stop: int, width: int, batch_bytes: int) -> Iterator[tuple[int, Any]]:
        """Yield rows, some at a time, each time with the number of the first."""
        indptr, indices, data = (self._array(name) for name in ("indptr", "indices", "data"))
        entry_bytes = indices.dtype.itemsize + data.dtype.itemsize
        most = max(batch_bytes // 4 // (entry_bytes + 16), 1)
        most_rows = max(batch_bytes // 64, 1)
        while start < stop:
            ends = indptr.read(start, min(start + most_rows, stop) + 1).astype(np.int64)
            if (np.diff(ends) < 0).any() or ends[0] < 0 or (ends[0] and not start):
                raise DataError(
                    f"{indptr.name}: expected it to begin at 0 and not to descend, found it does not; get it again"
                )
            n_rows = max(int(np.searchsorted(ends, ends[0] + most, side="right")) - 1, 1)
            first, last = int(ends[0]), int(ends[n_rows])
            if (last - first) * entry_bytes > batch_bytes:
                raise DataError(
                    f"{self._path}, row {start + 1}: expected rows of at most {format_size(batch_bytes)} under this "
                    "memory budget, found a longer one; give a larger --memory"
                )
            entries = indices.read(first, last), data.read(first, last)
            yield start, Csr(ends[: n_rows + 1] - first, *entries, width)
            start += n_rows


class _Npy:
    """A dense matrix of NumPy's; labels are a column of it, by its number, or another ``.npy``."""

    compressed_bytes = 0

    def __init__(self, path: str, label: str, needs_label: bool) -> None:
        self._array, self._label = _open_npy(path), label
        found = self._array
        if len(found.shape) != 2 or found.dtype.kind not in "biuf" or (found.fortran and found.shape[0] > 1):
            layout = "Fortran's order" if found.fortran else f"shape {found.shape} of {found.dtype}"
            raise DataError(
                f"{path}: expected a matrix of numbers, row after row, found {layout}; save np.ascontiguousarray of it"
            )
        self.column = int(label) if label.lstrip("-").isdigit() else None  # from the end where it is negative
        expected = "the number of a column (-1 is the last) or a .npy"
        if not label and needs_label:
            raise UsageError(f"{path}: expected labels; give --label, {expected}")
        if label and self.column is None and not os.path.isfile(label):
            raise UsageError(f"{path}: expected as --label {expected}, found {label!r}; check the name")

    def labels(self, most_elements: int | None = None) -> _Array | None:
        if self.column is not None:
            return self._array
        return _open_npy(self._label) if self._label else None

    def shape(self) -> tuple[int, int]:
        n_rows, n_columns = self._array.shape
        return n_rows, n_columns - (self.column is not None)

    def read(self, start: int, stop: int, width: int, batch_bytes: int) -> Iterator[tuple[int, Any]]:
        """Yield rows, some at a time, each time with the number of the first; a column of labels is among them."""
        n_columns = self._array.shape[1]
        step = max(batch_bytes // 4 // max(n_columns * self._array.dtype.itemsize, 1), 1)
        for first in range(start, stop, step):
            end = min(first + step, stop)
            yield first, self._array.read(first * n_columns, end * n_columns).reshape(-1, n_columns)


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
        labels = self._files[self.paths[0]].labels(0)
        return labels is not None and labels.dtype.kind in "US"

    def held_bytes(self, types: Mapping[str, str]) -> int:
        """Bytes of the largest file's compressed arrays, in memory while it is read."""
        return max(file.compressed_bytes for file in self._files.values())

    def whole(self) -> list[FilePart]:
        return [
            FilePart(path, 0, n_rows, os.path.getsize(path)) for path, (n_rows, _) in self._shapes.items()
        ]

    def pieces(self, n_tasks: int) -> list[FilePart]:
        found = []
        for path, _, n_rows, n_bytes in self.whole():
            assert n_rows is not None
            n_ranges = 1 if self._files[path].compressed_bytes else min(n_tasks, max(n_rows, 1))
            ends = np.linspace(0, n_rows, n_ranges + 1).astype(np.int64).tolist()
            row_bytes = n_bytes / max(n_rows, 1)
            found += [
                FilePart(path, start, stop, int((stop - start) * row_bytes)) for start, stop in pairwise(ends)
            ]
        return found

    def count(self, piece: FilePart) -> Counted:
        assert piece.stop is not None
        return Counted(piece.stop - piece.start, piece.stop - piece.start)

    def blocks(
        self, pieces: Sequence[FilePart], first_line: int, types: Mapping[str, str]
    ) -> Iterator[Block]:
        width = max(n_columns for _, n_columns in self._shapes.values())
        for piece in pieces:
            file = self._files[piece.path]
            labels, column = file.labels(), file.column
            assert piece.stop is not None
            for start, rows in file.read(piece.start, piece.stop, width, self.reading.batch_bytes):
                label = None
                if column is not None:
                    label, rows = rows[:, column].copy(), np.delete(rows, column, axis=1)
                elif labels is not None:
                    label = labels.read(start, start + rows.shape[0])
                yield Block(locator(piece.path, start), rows, label=label)


def open_matrices(paths: list[str], format: str, reading: Reading, options: TableOptions) -> Source:
    given = [name for name in options.given if name != options.label_flag]
    if given:
        raise UsageError(
            f"{', '.join(given)}: expected a table with named columns, found {format} in {paths[0]}"
        )
    if options.label.endswith(".npy") and len(paths) > 1:
        raise UsageError(
            "--label: expected one .npy of labels for one matrix, found several matrices; join them"
        )
    reader = MatrixReader(paths, options.label, reading, format == "npz")
    return open_matrix(reader, reading, sparse=reader.sparse, names_labels=reader.names_labels())

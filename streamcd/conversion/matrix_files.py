"""Matrices in files: SciPy's ``.npz`` of sparse ones, NumPy's ``.npy`` and ``.npz`` of dense ones."""

from __future__ import annotations

import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import DataError, UsageError
from ..core.memory_budget import format_size
from .matrices import MatrixBlock, open_matrix
from .options import TableOptions
from .sources import Counted, Reader, Reading, Source, locator, refusing_damage

_LABELS = ("y", "label", "labels", "target")
"""Arrays of a ``.npz`` that are taken as labels if none is named."""


_CHECKED_BYTES = 1 << 20  # at a time

_DAMAGE = (
    ValueError, KeyError, EOFError, RuntimeError, SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
    struct.error,
)  # fmt: skip
"""Errors of zipfile, zlib and numpy for bytes that they did not write; RuntimeError also for what is encrypted."""


_refusing_damage = partial(refusing_damage, _DAMAGE, "expected NumPy's or SciPy's format, found it damaged")


class RowRange(NamedTuple):
    """Rows of a file."""

    path: str
    start: int
    stop: int
    n_bytes: int


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


@dataclass(frozen=True)
class _MatrixFiles(Reader):
    paths: list[str]
    label: str
    batch_bytes: int
    needs_label: bool = True

    compressed_bytes = 0  # of a file, in memory while it is read

    def pieces(self, n_tasks: int) -> list[RowRange]:
        found = []
        for piece in self.whole():
            n_ranges = 1 if self.compressed_bytes else min(n_tasks, max(piece.stop, 1))
            ends = np.linspace(0, piece.stop, n_ranges + 1).astype(np.int64).tolist()
            row_bytes = piece.n_bytes / max(piece.stop, 1)
            found += [
                RowRange(piece.path, start, stop, int((stop - start) * row_bytes))
                for start, stop in pairwise(ends)
            ]
        return found

    def count(self, piece: RowRange) -> Counted:
        return Counted(piece.stop - piece.start, piece.stop - piece.start)


# ---------------------------------------------------------------------------------------------------------------------
# npz


_LOCAL_HEADER = struct.Struct(
    "<26xHH"
)  # of a member of an archive: the lengths of its name and of what follows


@dataclass(frozen=True)
class NpzReader(_MatrixFiles):
    """SciPy's files of CSR matrices; labels are an array of the same file, or a ``.npy`` beside it."""

    @cached_property
    def n_columns(self) -> int | None:
        return max(n_columns for _, n_columns in self._shapes.values())

    @cached_property
    def compressed_bytes(self) -> int:  # type: ignore[override]
        """Bytes of the largest file's compressed arrays."""
        sizes = []
        for path in self.paths:
            with self._open(path) as archive:
                stored = zipfile.ZIP_STORED
                sizes.append(
                    sum(found.file_size for found in archive.infolist() if found.compress_type != stored)
                )
        return max(sizes)

    def _open(self, path: str) -> zipfile.ZipFile:
        with _refusing_damage(path):
            return zipfile.ZipFile(path)

    def _array(self, path: str, name: str, most_elements: int | None = None) -> _Array:
        """Open an array; of a compressed one, read all or the first `most_elements`."""
        told = f"{path}, array {name!r}"
        with self._open(path) as archive, _refusing_damage(told), archive.open(f"{name}.npy") as member:
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

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, int]]:
        """Rows and columns of each file, whose checksums are compared first."""
        return {path: self._checked_shape(path) for path in self.paths}

    def _checked_shape(self, path: str) -> tuple[int, int]:
        names = self._names(path)
        for name in names:
            told = f"{path}, array {name!r}"
            with self._open(path) as archive, _refusing_damage(told), archive.open(f"{name}.npy") as member:
                while member.read(_CHECKED_BYTES):
                    pass
        kind = "csr"
        if "format" in names:
            found = self._array(path, "format", 1).read(0, 1).tolist()[0]
            kind = found.decode(errors="replace") if isinstance(found, bytes) else str(found)
        lacking = {"data", "indices", "indptr", "shape"} - set(names)
        if kind != "csr" or lacking:
            shown = f"a matrix in {kind}" if kind != "csr" else ", ".join(names[:10]) or "nothing"
            raise DataError(
                f"{path}: expected a sparse matrix in CSR as scipy.sparse.save_npz writes it, found {shown}; "
                "convert it with .tocsr()"
            )
        n_rows, n_columns = self._array(path, "shape", 2).read(0, 2).tolist()
        return int(n_rows), int(n_columns)

    def _names(self, path: str) -> list[str]:
        with self._open(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]

    def whole(self) -> list[RowRange]:
        return [
            RowRange(path, 0, n_rows, os.path.getsize(path)) for path, (n_rows, _) in self._shapes.items()
        ]

    def label_dtype(self) -> np.dtype | None:
        """Type of the labels; None where there are none."""
        labels = self._labels(self.paths[0], 0)
        return None if labels is None else labels.dtype

    def _labels(self, path: str, most_elements: int | None = None) -> _Array | None:
        if self.label.endswith(".npy"):
            return _open_npy(self.label)
        names = self._names(path)
        name = self.label or next((name for name in _LABELS if name in names), "")
        if name in names:
            return self._array(path, name, most_elements)
        if self.needs_label:
            raise UsageError(
                f"{path}: expected labels, found the arrays {', '.join(names)}; give --label, an array of the file or a .npy"
            )
        return None

    def blocks(self, pieces: Sequence[RowRange]) -> Iterator[MatrixBlock]:
        for piece in pieces:
            arrays = [self._array(piece.path, name) for name in ("indptr", "indices", "data")]
            yield from self._read(piece, *arrays, labels=self._labels(piece.path))

    def _read(
        self, piece: RowRange, indptr: _Array, indices: _Array, data: _Array, *, labels: _Array | None
    ) -> Iterator[MatrixBlock]:
        entry_bytes = indices.dtype.itemsize + data.dtype.itemsize
        most = max(self.batch_bytes // 4 // (entry_bytes + 16), 1)
        most_rows = max(self.batch_bytes // 64, 1)
        start = piece.start
        while start < piece.stop:
            ends = indptr.read(start, min(start + most_rows, piece.stop) + 1).astype(np.int64)
            if (np.diff(ends) < 0).any() or ends[0] < 0 or (ends[0] and not start):
                raise DataError(
                    f"{indptr.name}: expected it to begin at 0 and not to descend, found it does not; get it again"
                )
            n_rows = max(int(np.searchsorted(ends, ends[0] + most, side="right")) - 1, 1)
            first, last = int(ends[0]), int(ends[n_rows])
            if (last - first) * entry_bytes > self.batch_bytes:
                raise DataError(
                    f"{piece.path}, row {start + 1}: expected rows of at most {format_size(self.batch_bytes)} under this "
                    "memory budget, found a longer one; give a larger --memory"
                )
            label = None if labels is None else labels.read(start, start + n_rows)
            entries = indices.read(first, last), data.read(first, last)
            yield MatrixBlock(
                locator(piece.path, start), label, None, None, ends[: n_rows + 1] - first, *entries
            )
            start += n_rows


# ---------------------------------------------------------------------------------------------------------------------
# npy


@dataclass(frozen=True)
class NpyReader(_MatrixFiles):
    """NumPy's files of dense matrices; labels are a column of it, by its number, or another ``.npy``."""

    def _array(self, path: str) -> _Array:
        found = _open_npy(path)
        if len(found.shape) != 2 or found.dtype.kind not in "biuf" or (found.fortran and found.shape[0] > 1):
            layout = "Fortran's order" if found.fortran else f"shape {found.shape} of {found.dtype}"
            raise DataError(
                f"{path}: expected a matrix of numbers, row after row, found {layout}; save np.ascontiguousarray of it"
            )
        return found

    @property
    def _column(self) -> int | None:
        """The number of the column of labels, from the end where it is negative."""
        return int(self.label) if self.label.lstrip("-").isdigit() else None

    @cached_property
    def n_columns(self) -> int | None:
        return max(self._array(path).shape[1] for path in self.paths) - (self._column is not None)

    def whole(self) -> list[RowRange]:
        return [RowRange(path, 0, self._array(path).shape[0], os.path.getsize(path)) for path in self.paths]

    def label_dtype(self) -> np.dtype | None:
        """Type of the labels; None where there are none."""
        if self._column is not None:
            return self._array(self.paths[0]).dtype
        if not self.label:
            if self.needs_label:
                raise UsageError(
                    f"{self.paths[0]}: expected labels; give --label, the number of a column (-1 is the last) or a .npy"
                )
            return None
        if not os.path.isfile(self.label):
            raise UsageError(
                f"{self.paths[0]}: expected as --label the number of a column (-1 is the last) or a .npy, found "
                f"{self.label!r}; check the name"
            )
        return _open_npy(self.label).dtype

    def blocks(self, pieces: Sequence[RowRange]) -> Iterator[MatrixBlock]:
        for piece in pieces:
            array = self._array(piece.path)
            labels = self._label_file()
            n_columns = array.shape[1]
            step = max(self.batch_bytes // 4 // max(n_columns * array.dtype.itemsize, 1), 1)
            for start in range(piece.start, piece.stop, step):
                stop = min(start + step, piece.stop)
                values = array.read(start * n_columns, stop * n_columns)
                values = values.reshape(stop - start, n_columns)
                label = None if labels is None else labels.read(start, stop)
                if self._column is not None:
                    label = values[:, self._column].copy()
                    values = np.delete(values, self._column, axis=1)
                yield MatrixBlock(locator(piece.path, start), label, None, values)

    def _label_file(self) -> _Array | None:
        if self._column is not None or not self.label:
            return None
        if len(self.paths) > 1:
            raise UsageError(
                "--label: expected one .npy of labels for one matrix, found several matrices; join them"
            )
        return _open_npy(self.label)


def open_matrices(paths: list[str], format: str, reading: Reading, options: TableOptions) -> Source:
    given = [name for name in options.given if name != options.label_flag]
    if given:
        raise UsageError(
            f"{', '.join(given)}: expected a table with named columns, found {format} in {paths[0]}"
        )
    reader: Any = (NpzReader if format == "npz" else NpyReader)(
        paths, options.label, reading.batch_bytes, reading.needs_label
    )
    dtype = reader.label_dtype()
    if options.label.endswith(".npy") and len(paths) > 1:
        raise UsageError(
            "--label: expected one .npy of labels for one matrix, found several matrices; join them"
        )
    names_labels = dtype is not None and dtype.kind in "US"
    more = {"sparse": format == "npz", "held_bytes": reader.compressed_bytes}
    return open_matrix(reader, reading, names_labels=names_labels, **more)

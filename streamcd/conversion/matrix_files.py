"""Matrices in files: SciPy's ``.npz`` of sparse ones, NumPy's ``.npy`` and ``.npz`` of dense ones."""

from __future__ import annotations

import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import DataError, UsageError
from ..core.memory_budget import format_size
from .matrices import MatrixBlock, open_matrix
from .sources import Counted, Reader, Reading, Source, TableOptions, locator, refusing_damage

_LABELS = ("y", "label", "labels", "target")
"""Arrays of a ``.npz`` that are taken as labels if none is named."""


_DAMAGE = (
    ValueError, KeyError, EOFError, RuntimeError, SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
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
    """An array in a file: shape and type; `offset` of its first byte in a plain file."""

    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool
    offset: int


def _header(file: Any, name: str) -> _Array:
    """Read the header of an array; refused if it is damaged, or the array holds objects."""
    with _refusing_damage(name):
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, fortran, dtype = read[version](file)
    if dtype.hasobject:
        raise DataError(
            f"{name}: expected an array of numbers, found one of Python objects; save it as numbers"
        )
    return _Array(shape, dtype, fortran, file.tell())


class _Stream:
    """The elements of an array in a file, one after the other."""

    def __init__(self, file: Any, name: str) -> None:
        self._file, self._name = file, name
        self.array = _header(file, name)

    def read(self, count: int) -> np.ndarray:
        wanted = count * self.array.dtype.itemsize
        parts, n_bytes = [], 0
        with _refusing_damage(self._name):
            while n_bytes < wanted and (part := self._file.read(wanted - n_bytes)):
                parts.append(part)
                n_bytes += len(part)
        if n_bytes < wanted:
            raise DataError(f"{self._name}: expected {count:,} more elements, found the end; get it again")
        return np.frombuffer(b"".join(parts), self.array.dtype)


@dataclass(frozen=True)
class _MatrixFiles(Reader):
    paths: list[str]
    label: str
    batch_bytes: int
    needs_label: bool = True


# ---------------------------------------------------------------------------------------------------------------------
# npz


@dataclass(frozen=True)
class NpzReader(_MatrixFiles):
    """SciPy's files of CSR matrices; labels are an array of the same file, or a ``.npy`` beside it."""

    @cached_property
    def n_columns(self) -> int | None:
        return max(self._shape(path)[1] for path in self.paths)

    def _open(self, path: str) -> zipfile.ZipFile:
        with _refusing_damage(path):
            return zipfile.ZipFile(path)

    def _member(self, files: ExitStack, archive: zipfile.ZipFile, path: str, name: str) -> Any:
        with _refusing_damage(f"{path}, array {name!r}"):
            return files.enter_context(archive.open(f"{name}.npy"))

    def _small(self, archive: zipfile.ZipFile, path: str, name: str) -> Any:
        """Read an array of a few elements."""
        with ExitStack() as files:
            stream = _Stream(self._member(files, archive, path, name), f"{path}, array {name!r}")
            count = int(np.prod(stream.array.shape, dtype=np.int64))
            if count > 2:
                raise DataError(
                    f"{path}, array {name!r}: expected at most 2 elements, found {count:,}; get it again"
                )
            return stream.read(count).tolist()

    def _shape(self, path: str) -> tuple[int, int]:
        with self._open(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            kind = "csr"
            if "format" in names:
                (found,) = self._small(archive, path, "format")
                kind = found.decode(errors="replace") if isinstance(found, bytes) else str(found)
            lacking = {"data", "indices", "indptr", "shape"} - set(names)
            if kind != "csr" or lacking:
                shown = f"a matrix in {kind}" if kind != "csr" else ", ".join(names[:10]) or "nothing"
                raise DataError(
                    f"{path}: expected a sparse matrix in CSR as scipy.sparse.save_npz writes it, found {shown}; "
                    "convert it with .tocsr()"
                )
            n_rows, n_columns = self._small(archive, path, "shape")
        return int(n_rows), int(n_columns)

    def whole(self) -> list[RowRange]:
        return [RowRange(path, 0, self._shape(path)[0], os.path.getsize(path)) for path in self.paths]

    def count(self, piece: RowRange) -> Counted:
        return Counted(piece.stop, piece.stop)

    def label_dtype(self) -> np.dtype | None:
        """Type of the labels; None where there are none."""
        with ExitStack() as files:
            stream = self._labels(files, self._open(self.paths[0]), self.paths[0])
            return None if stream is None else stream.array.dtype

    def _labels(self, files: ExitStack, archive: zipfile.ZipFile, path: str) -> _Stream | None:
        files.enter_context(archive)
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        if self.label.endswith(".npy"):
            file = files.enter_context(Path(self.label).open("rb"))  # noqa: SIM115
            return _Stream(file, self.label)
        name = self.label or next((name for name in _LABELS if name in names), "")
        if name in names:
            return _Stream(self._member(files, archive, path, name), f"{path}, array {name!r}")
        if self.needs_label:
            raise UsageError(
                f"{path}: expected labels, found the arrays {', '.join(names)}; give --label, an array of the file or a .npy"
            )
        return None

    def blocks(self, pieces: Sequence[RowRange]) -> Iterator[MatrixBlock]:
        for piece in pieces:
            with ExitStack() as files:
                archive = self._open(piece.path)
                labels = self._labels(files, archive, piece.path)
                streams = {
                    name: _Stream(
                        self._member(files, archive, piece.path, name), f"{piece.path}, array {name!r}"
                    )
                    for name in ("indptr", "indices", "data")
                }
                yield from self._read(piece, streams, labels)

    def _read(
        self, piece: RowRange, streams: dict[str, _Stream], labels: _Stream | None
    ) -> Iterator[MatrixBlock]:
        entry_bytes = sum(streams[name].array.dtype.itemsize for name in ("indices", "data"))
        most = max(self.batch_bytes // 4 // (entry_bytes + 16), 1)
        most_rows = max(self.batch_bytes // 64, 1)
        done, end = 0, int(streams["indptr"].read(1)[0])
        pending = np.empty(0, np.int64)
        while done < piece.stop:
            if not pending.size:
                pending = streams["indptr"].read(min(most_rows, piece.stop - done)).astype(np.int64)
            n_rows = max(int(np.searchsorted(pending, end + most, side="right")), 1)
            indptr = np.concatenate([[end], pending[:n_rows]])
            if (np.diff(indptr) < 0).any():
                raise DataError(
                    f"{piece.path}, array 'indptr': expected it not to descend, found it does; get it again"
                )
            n_entries = int(indptr[-1] - end)
            if n_entries * entry_bytes > self.batch_bytes:
                raise DataError(
                    f"{piece.path}, row {done + 1}: expected rows of at most {format_size(self.batch_bytes)} under this "
                    "memory budget, found a longer one; give a larger --memory"
                )
            index, value = streams["indices"].read(n_entries), streams["data"].read(n_entries)
            label = None if labels is None else labels.read(n_rows)
            yield MatrixBlock(locator(piece.path, done), label, None, None, indptr - end, index, value)
            done, end, pending = done + n_rows, int(indptr[-1]), pending[n_rows:]


# ---------------------------------------------------------------------------------------------------------------------
# npy


@dataclass(frozen=True)
class NpyReader(_MatrixFiles):
    """NumPy's files of dense matrices; labels are a column of it, by its number, or another ``.npy``."""

    def _array(self, path: str) -> _Array:
        with open(path, "rb") as file:
            found = _header(file, path)
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

    def pieces(self, n_tasks: int) -> list[RowRange]:
        found = []
        for piece in self.whole():
            ends = np.linspace(0, piece.stop, min(n_tasks, max(piece.stop, 1)) + 1).astype(np.int64).tolist()
            row_bytes = piece.n_bytes / max(piece.stop, 1)
            found += [
                RowRange(piece.path, start, stop, int((stop - start) * row_bytes))
                for start, stop in zip(ends[:-1], ends[1:], strict=True)  # noqa: RUF007
            ]
        return found

    def count(self, piece: RowRange) -> Counted:
        return Counted(piece.stop - piece.start, piece.stop - piece.start)

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
        with open(self.label, "rb") as file:
            return _header(file, self.label).dtype

    def blocks(self, pieces: Sequence[RowRange]) -> Iterator[MatrixBlock]:
        for piece in pieces:
            array = self._array(piece.path)
            labels = self._label_file()
            row_bytes = array.shape[1] * array.dtype.itemsize
            step = max(self.batch_bytes // 4 // max(row_bytes, 1), 1)
            for start in range(piece.start, piece.stop, step):
                stop = min(start + step, piece.stop)
                count, offset = (stop - start) * array.shape[1], array.offset + start * row_bytes
                values = np.fromfile(piece.path, array.dtype, count, offset=offset)
                if values.size < count:
                    raise DataError(
                        f"{piece.path}: expected {array.shape[0]:,} rows, found the end; get it again"
                    )
                values = values.reshape(stop - start, array.shape[1])
                label = None if labels is None else labels[start:stop]
                if self._column is not None:
                    label = values[:, self._column].copy()
                    values = np.delete(values, self._column, axis=1)
                yield MatrixBlock(locator(piece.path, start), label, None, values)

    def _label_file(self) -> np.ndarray | None:
        if self._column is not None or not self.label:
            return None
        if len(self.paths) > 1:
            raise UsageError(
                "--label: expected one .npy of labels for one matrix, found several matrices; join them"
            )
        labels: np.ndarray = np.load(self.label, mmap_mode="r", allow_pickle=False)
        return labels


def open_matrices(paths: list[str], format: str, reading: Reading, options: TableOptions) -> Source:
    given = [name for name in options.given if name != "--label"]
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
    return open_matrix(reader, reading, names_labels=dtype is not None and dtype.kind in "US")

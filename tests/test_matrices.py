"""Matrices and data in memory as sources: the same rows and entries as libsvm text of the same numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
from test_tables import convert, make_table, write_table

import streamcd
from streamcd import StreamcdError
from streamcd.conversion.matrix_files import MatrixReader
from streamcd.conversion.sources import Reading

N_ROWS, N_COLUMNS = 300, 12


def make_arrays() -> tuple[np.ndarray, np.ndarray]:
    """A matrix with zeros, a column of them at the end, and labels."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(N_ROWS, N_COLUMNS)) * (rng.random((N_ROWS, N_COLUMNS)) < 0.4)
    X[0, -1], X[:, 3] = 1.0, 0.0
    return X.astype(np.float32).astype(np.float64), rng.choice([-1.0, 2.0], N_ROWS)


def digest_of_text(X: np.ndarray, y: np.ndarray, path: Path) -> str:
    lines = [
        f"{label:g} " + " ".join(f"{j}:{float(row[j])!r}" for j in np.flatnonzero(row))
        for row, label in zip(X, y, strict=True)
    ]
    (path / "text.txt").write_text("\n".join(lines) + "\n")
    return str(streamcd.convert(path / "text.txt", path / "of-text").info()["data_digest"])


def wide_csr(X: np.ndarray) -> scipy.sparse.csr_array:
    """CSR with indices of 64 bits, descending within rows."""
    made = scipy.sparse.csr_array(X)
    indptr, indices, data = made.indptr, made.indices.astype(np.int64), made.data
    for start, stop in itertools.pairwise(indptr.tolist()):
        indices[start:stop], data[start:stop] = (
            indices[start:stop][::-1].copy(),
            data[start:stop][::-1].copy(),
        )
    made = scipy.sparse.csr_array((data, indices, indptr.astype(np.int64)), shape=X.shape)
    made.indices, made.indptr = indices, indptr.astype(np.int64)
    return made


def batches(X: np.ndarray, y: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for start in range(0, N_ROWS, 70):
        yield X[start : start + 70], y[start : start + 70]


SOURCES: dict[str, Callable[[np.ndarray, np.ndarray], Any]] = {
    "array": lambda X, y: (X, y),
    "float32": lambda X, y: (X.astype(np.float32), y.astype(np.int8)),
    "big-endian": lambda X, y: (X.astype(">f8"), y),
    "long double": lambda X, y: (X.astype(np.longdouble), y),
    "fortran": lambda X, y: (np.asfortranarray(X), y),
    "list": lambda X, y: (X.tolist(), y.tolist()),
    "csr": lambda X, y: (scipy.sparse.csr_matrix(X), y),
    "csr64": lambda X, y: (wide_csr(X), y),
    "csc": lambda X, y: (scipy.sparse.csc_array(X), y),
    "iterable": lambda X, y: list(batches(X, y)),
    "generator": batches,
    "callable": lambda X, y: lambda: batches(X, y),
    "frame of batches": lambda X, y: [
        pa.table({f"{j}": part[:, j] for j in range(N_COLUMNS)} | {"label": labels}) for part, labels in batches(X, y)
    ],
    "frame and labels": lambda X, y: (pa.table({f"{j}": X[:, j] for j in range(N_COLUMNS)}), y),
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_data_in_memory_gives_the_rows_and_entries_of_text(tmp_path: Path, name: str) -> None:
    X, y = make_arrays()
    made = streamcd.convert(SOURCES[name](X, y), tmp_path / "out")
    assert made.info()["data_digest"] == digest_of_text(X, y, tmp_path)
    assert (made.n_features, made.index_base) == (N_COLUMNS, 0)
    assert made.verify() == []


@pytest.mark.usefixtures("lend")
@pytest.mark.parametrize("library", ["pandas", "polars", "duckdb"])
def test_frames_give_the_dataset_of_their_file(tmp_path: Path, library: str) -> None:
    module = pytest.importorskip(library)
    table = make_table()
    frame: Any = None
    if library == "pandas":
        frame = table.to_pandas()
        frame["city"] = frame["city"].astype("category")
    elif library == "polars":
        frame = module.from_arrow(table)
    else:
        frame = module.from_arrow(table)
    expected = convert(write_table(table, tmp_path / "t.csv"), tmp_path / "of-file")
    assert convert(frame, tmp_path / "of-frame", workers=2).fingerprint == expected.fingerprint


def test_columns_may_have_numbers_as_names(tmp_path: Path) -> None:
    frame = pd.DataFrame({0: [1.0, 2.0], 1: [0, 1], 2: [1.0, 2.0], 3: [5, 5]})
    found = streamcd.convert(frame, tmp_path / "data", label=1, weight_column=2, drop=[0])
    assert (found.n_features, found.weighted, found.info()["classes"]) == (1, True, [0, 1])


def test_a_model_of_arrays_predicts_a_file_of_them(tmp_path: Path) -> None:
    X, y = make_arrays()
    streamcd.convert((X, np.where(y > 0, "b", "a")), tmp_path / "data")
    streamcd.train(tmp_path / "data", tmp_path / "run")
    np.save(tmp_path / "new.npy", X)
    streamcd.predict(tmp_path / "data", tmp_path / "run", tmp_path / "1.parquet")
    streamcd.predict(tmp_path / "new.npy", tmp_path / "run", tmp_path / "2.parquet")
    first, second = (pa.parquet.read_table(tmp_path / name) for name in ("1.parquet", "2.parquet"))
    assert first["prediction"].to_pylist() == second["prediction"].to_pylist()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.ones((2, 2)), "row 1: expected labels, found none"),
        ((np.ones((2, 2)), np.ones(3)), "row 1: expected numbers as labels, one for each of 2 rows"),
        ((np.array([[1.0, np.nan]]), np.ones(1)), "row 1: expected a finite value, found nan"),
        ((np.ones((2, 2)), None), "row 1: expected labels, found none"),
        ((np.ones(2), np.ones(2)), "expected X with two dimensions, of numbers"),
        ([], "there is no batch"),
        (3, "found int"),
        ([{"a": 1.0}], "found dict; make a frame of it"),  # letters of a string are strings: a crash
        (["data.csv", pd.DataFrame({"a": [1.0]})], "or an iterable of such batches, found str"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), r"found DataFrame \(Duplicate column names"),
        (pd.DataFrame({"a": [1j], "label": [0]}), "found DataFrame .*complex128"),
        ((scipy.sparse.csr_array([[1j]]), [0]), "of numbers, found shape .* of complex128"),
        (pl.LazyFrame({"a": [1.0]}), r"found LazyFrame; collect\(\) it"),
        (pl.Series("a", [1.0]), "expected a frame of named columns of one type each, found Series"),
        (
            pd.DataFrame({"p": [1, "a"], "label": [0, 1]}),
            r"of one type each, found DataFrame .*column p with type",
        ),
        (pd.DataFrame.sparse.from_spmatrix(scipy.sparse.eye(2)), "found DataFrame .*Sparse pandas data"),
        ((np.ones((1, 1)), np.ones(1), np.array([-1.0])), "row 1: expected a weight, 0 or from"),
    ],
)
def test_data_that_is_none_is_refused_in_a_line(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(StreamcdError, match=message):
        streamcd.convert(data, tmp_path / "out")


def test_a_label_of_a_matrix_is_a_column_or_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.ones((2, 2)))
    with pytest.raises(
        StreamcdError, match=r"t\.npy: expected as label the number of a column .*, found y; check"
    ):
        streamcd.convert(tmp_path / "t.npy", tmp_path / "out", label="y")


def test_names_of_classes_in_an_archive_need_no_option(tmp_path: Path) -> None:
    X, y = make_arrays()
    made, names = scipy.sparse.csr_array(X), np.where(y > 0, "yes", "no")
    parts = {"data": made.data, "indices": made.indices, "indptr": made.indptr, "shape": made.shape}
    np.savez(tmp_path / "m.npz", **parts, y=names)
    assert streamcd.convert(tmp_path / "m.npz", tmp_path / "out").info()["classes"] == ["no", "yes"]


@pytest.mark.parametrize("name", ["format.npy", "shape.npy", "y.npy", "indptr.npy", "data.npy"])
def test_a_damaged_array_of_an_archive_is_refused_by_name(tmp_path: Path, name: str) -> None:
    X, y = make_arrays()
    made, path = scipy.sparse.csr_array(X), tmp_path / "m.npz"
    parts = {"data": made.data, "indices": made.indices, "indptr": made.indptr, "shape": made.shape}
    np.savez(path, format=b"csr", **parts, y=y)
    data = bytearray(path.read_bytes())
    header_end = data.index(name.encode()) + len(name) + 20 + 128  # of the archive's member and of the array
    data[header_end + 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        StreamcdError, match=rf"m\.npz, array '{name[:-4]}': expected NumPy's or SciPy's.*Bad CRC"
    ):
        streamcd.convert(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_directory_of_an_archive_is_refused(tmp_path: Path) -> None:
    X, y = make_arrays()
    made, path = scipy.sparse.csr_array(X), tmp_path / "m.npz"
    np.savez(path, data=made.data, indices=made.indices, indptr=made.indptr, shape=made.shape, y=y)
    data = bytearray(path.read_bytes())
    data[-6:-2] = (2**31).to_bytes(4, "little")  # where the directory begins: before the file
    path.write_bytes(data)
    with pytest.raises(
        StreamcdError, match=r"m\.npz.*: expected NumPy's or SciPy's format, found it damaged"
    ):
        streamcd.convert(path, tmp_path / "out")


@pytest.mark.parametrize("header", [b"{'descr': (((", b"{'descr': '<f8', 'shape': 1", b"\0" * 20])
def test_a_damaged_header_of_an_array_is_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "m.npy"
    np.save(path, np.ones((3, 2)))
    data = bytearray(path.read_bytes())
    data[10 : 10 + len(header)] = header
    path.write_bytes(data)
    with pytest.raises(StreamcdError, match=r"m\.npy: expected NumPy's or SciPy's format, found it damaged"):
        streamcd.convert(path, tmp_path / "out", label="0")


@pytest.mark.parametrize("compressed", [True, False])
def test_an_archive_need_not_fit_in_memory(tmp_path: Path, compressed: bool) -> None:
    n = 1_000_000
    made = scipy.sparse.csr_array((np.ones(n), np.zeros(n, np.int32), np.arange(n + 1)), (n, 1))
    path = tmp_path / "m.npz"
    arrays = {"data": made.data, "indices": made.indices, "indptr": made.indptr, "shape": made.shape}
    (np.savez_compressed if compressed else np.savez)(path, **arrays, y=np.arange(n) % 2)
    reader = MatrixReader([str(path)], "", Reading(batch_bytes=1 << 20), sparse=True)
    block = next(iter(reader.blocks(reader.pieces(3)[1], {})))
    assert block.label is not None
    assert (block.place(0), block.label[0]) == (f"{path}, row {n // 3 + 1}", n // 3 % 2)
    assert block.content.indices.nbytes < 1 << 20
    assert streamcd.convert(path, tmp_path / "out", memory="255MB").n_rows == n

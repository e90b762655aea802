"""Small made problems, and datasets of a chosen cut written straight from arrays, without `convert`."""

from __future__ import annotations

import hashlib
import itertools
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp

from streamcd import Dataset, make_columns
from streamcd import open as open_dataset
from streamcd.stream.memory_plan import Plan
from tools.chunk_writer import ChunkWriter

SMALL_COLUMNS = {"chunk_size": 200, "shard_size": 1500}

Rows = tuple[sp.csr_array, np.ndarray]
"""Rows and their labels; values are exact in float32, so that a dataset holds the very same numbers."""


def random_rows(n_rows: int = 200, n_features: int = 20, *, seed: int = 0, density: float = 0.3) -> Rows:
    """Two noisy classes -1 and +1."""
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal((n_rows, n_features)) * (rng.random((n_rows, n_features)) < density)
    y = np.where(dense @ rng.standard_normal(n_features) + 0.7 * rng.standard_normal(n_rows) > 0, 1.0, -1.0)
    return _float32(dense), y


def empty_rows() -> Rows:
    """Rows without any entry, in both classes."""
    x, y = random_rows(60, 8, seed=1)
    dense = x.toarray()
    dense[[0, 20, 21, 59]] = 0
    y[[0, 20]], y[[21, 59]] = -1.0, 1.0
    return _float32(dense), y


def empty_columns() -> Rows:
    """Features that no row has: the first, one in the middle, the last."""
    x, y = random_rows(60, 8, seed=2)
    dense = x.toarray()
    dense[:, [0, 4, 7]] = 0
    return _float32(dense), y


def duplicate_rows() -> Rows:
    """Every row three times, once with the other label."""
    x, y = random_rows(25, 6, seed=3)
    return _float32(np.vstack([x.toarray()] * 3)), np.concatenate([y, y, -y])


def separable() -> Rows:
    """A plane leaves no row on its wrong side."""
    x, _ = random_rows(80, 6, seed=4, density=0.9)
    return x, np.where(x @ np.arange(1.0, 7.0) > 0, 2.0, 1.0)


def unscaled() -> Rows:
    """Features that differ by a factor of a thousand."""
    x, y = random_rows(80, 5, seed=5, density=0.9)
    return _float32(x.toarray() * np.array([1e-2, 1.0, 1.0, 3.0, 10.0])), y


def label_sorted(n_rows: int = 150) -> Rows:
    """All rows of one class, then all of the other."""
    x, y = random_rows(n_rows, 12, seed=6)
    order = np.argsort(y, kind="stable")
    return sp.csr_array(x[order]), y[order]


def multiclass(n_classes: int = 4, n_rows: int = 160) -> Rows:
    """Several classes with unequal counts and labels that are not 0, 1, 2, …"""
    rng = np.random.default_rng(7)
    dense = rng.standard_normal((n_rows, 9)) * (rng.random((n_rows, 9)) < 0.6)
    score = dense @ rng.standard_normal((9, n_classes)) + 0.5 * rng.standard_normal((n_rows, n_classes))
    score[:, 0] += 0.7
    return _float32(dense), score.argmax(axis=1) * 3.0 - 4.0


def columns_of(path: Path, rows: Rows, **options: Any) -> Dataset:
    """A dataset with both layouts, the column layout in small chunks."""
    dataset = write_dataset(path, rows, n_chunks=5, **options)
    make_columns(dataset, **SMALL_COLUMNS)
    return dataset


def unequal_columns(n_classes: int = 2) -> Rows:
    """A feature of every row, four of a fifth of them, and many of one."""
    rng = np.random.default_rng(11)
    dense = np.zeros((120, 90))
    dense[:, 0] = 1.0
    dense[:, 1:5] = rng.random((120, 4)) < 0.2
    for feature in range(5, 90):
        dense[rng.integers(0, 120), feature] = 1.0
    return sp.csr_array(dense), np.where(np.arange(120) % 2, 1.0, -1.0) + np.arange(120) % (n_classes - 1)


NAMED = {
    "random": random_rows,
    "empty_rows": empty_rows,
    "empty_columns": empty_columns,
    "duplicate_rows": duplicate_rows,
    "separable": separable,
    "unscaled": unscaled,
    "label_sorted": label_sorted,
}
"""Problems of two classes, named by what is special about them."""


def _float32(dense: np.ndarray) -> sp.csr_array:
    return sp.csr_array(dense.astype(np.float32).astype(np.float64))


def write_dataset(
    path: Path,
    rows: Rows,
    *,
    n_chunks: int = 5,
    weight: np.ndarray | None = None,
    value_dtype: type = np.float32,
    index_dtype: type = np.int32,
    n_shards: int = 1,
    source: np.ndarray | None = None,
    statistics: dict[str, np.ndarray] | None = None,
    **manifest: Any,
) -> Dataset:
    """Write rows as they lie, cut into chunks of (nearly) equal numbers of rows, and open the result.

    Parameters
    ----------
    n_chunks, n_shards : int
        A shard is full after ``n_chunks / n_shards`` chunks, as nearly as entries allow.
    weight : ndarray, shape (rows,), optional
    source : ndarray of int64, shape (rows,), optional
        Places in the input; 0, 1, … by default.
    statistics : dict, optional
        Columns of ``features.parquet``; those of the rows by default.
    **manifest
        Fields of the manifest other than those that follow from the rows.
    """
    x, y = rows
    x = sp.csr_array(x)
    x.sort_indices()
    entry_bytes = np.dtype(value_dtype).itemsize + np.dtype(index_dtype).itemsize
    writer = ChunkWriter(
        path,
        index_dtype=index_dtype,
        value_dtype=value_dtype,
        row_dtype=np.int32,
        weighted=weight is not None,
        shard_bytes=max(1, x.nnz * entry_bytes // n_shards) if n_shards > 1 else 1 << 40,
    )
    source = np.arange(y.size) if source is None else source
    bounds = np.linspace(0, y.size, n_chunks + 1).astype(int)
    indptr = x.indptr.astype(np.int64)
    for start, stop in itertools.pairwise(bounds.tolist()):
        first, last = indptr[start], indptr[stop]
        writer.write_chunk(
            source[start:stop],
            y[start:stop],
            None if weight is None else weight[start:stop],
            indptr[start : stop + 1] - first,
            x.indices[first:last],
            x.data[first:last],
        )
    writer.write_features([statistics or feature_statistics(x)])
    classes, counts = np.unique(y, return_counts=True)
    fields = {
        "n_features": x.shape[1],
        "index_base": 1,
        "classes": classes.tolist(),
        "class_counts": counts.tolist(),
        "label_kind": "integer",
        "seed": 0,
        "source": [{"name": "made", "bytes": 0}],
    }
    writer.close(**(fields | manifest))
    return open_dataset(path)


def feature_statistics(x: sp.csr_array) -> dict[str, np.ndarray]:
    """Columns of ``features.parquet``, of the features that occur."""
    columns = sp.csc_array(x)
    n_entries = np.diff(columns.indptr)
    present = np.flatnonzero(n_entries)
    n_rows = max(x.shape[0], 1)
    return {
        "feature": present,
        "n_entries": n_entries[present],
        "min": columns.min(axis=0).toarray().reshape(-1)[present],
        "max": columns.max(axis=0).toarray().reshape(-1)[present],
        "mean": np.asarray(columns.sum(axis=0)).reshape(-1)[present] / n_rows,
        "mean_square": np.asarray((columns * columns).sum(axis=0)).reshape(-1)[present] / n_rows,
    }


def windows_of(dataset: Dataset, n_chunks: int | None, *, resident: bool = False) -> Plan:
    """A plan whose windows hold so many chunks (all with None)."""
    largest = int(np.diff(dataset.row_start).max())
    rows = dataset.n_rows if n_chunks is None else n_chunks * largest
    return Plan(window_entries=max(dataset.n_entries, 1), window_rows=rows, resident=resident)


def repeated(rows: Rows, times: Sequence[int] | np.ndarray) -> Rows:
    """Row i so many times."""
    x, y = rows
    places = np.repeat(np.arange(y.size), times)
    return sp.csr_array(x[places]), y[places]


def column_of(columns: Any, feature: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and values of one feature, ascending by row; empty if it does not occur."""
    rows, values = [np.empty(0, columns.row_dtype)], [np.empty(0, columns.value_dtype)]
    after = np.append(columns.first_feature[1:], feature + 1)
    for chunk in np.flatnonzero((columns.first_feature <= feature) & (feature <= after)).tolist():
        chosen = np.repeat(*columns.read_index(chunk)) == feature
        row, value = columns.read_entries(chunk)
        rows.append(row[chosen])
        values.append(value[chosen])
    return np.concatenate(rows), np.concatenate(values)


def record_chunk_checksums(path: Path, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Write the table of chunks again with the checksums that they have now; returns what the manifest says of it."""
    chunks = path / "chunks.parquet"
    table = pq.read_table(chunks)
    for number, name in enumerate(table.column_names):
        if name.endswith("_crc"):
            kind, crcs = name.removesuffix("_crc"), []
            for part in parts:
                data, footer = (path / part[kind]).read_bytes(), pq.read_metadata(path / part[kind])
                for group in map(footer.row_group, range(footer.num_row_groups)):
                    start = group.column({"rows": 2, "entries": 1, "index": 0}[kind]).data_page_offset
                    last = group.column(group.num_columns - 1)
                    crcs.append(zlib.crc32(data[start : last.data_page_offset + last.total_compressed_size]))
            table = table.set_column(number, table.schema.field(number), pa.array(crcs))
    pq.write_table(table, chunks)
    return {"bytes": chunks.stat().st_size, "checksum": checksum(chunks)}


def checksum(path: Path) -> str:
    """The SHA-256 of a file, as manifests have it."""
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()

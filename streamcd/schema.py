"""The row layout on disk: the columns of its tables, the files and the fingerprint of its manifest, and a chunk decoded.

One table in sort order: ``rows/`` has a row per sample and ``entries/`` a row per non-zero, sorted by sample. The row
groups of the two files of a part correspond one to one; a pair of them is a chunk, the unit of reading.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .parquet import Schema, schema

FORMAT = "streamcd-dataset"
FORMAT_VERSION = 1
_INT32_MAX = 2**31 - 1
MAX_CLASSES = 65_536
"""Above so many distinct labels the labels are no classes, and the manifest lists none."""


@dataclass(frozen=True)
class ChunkData:
    """A chunk, decoded.

    Attributes
    ----------
    row0 : int
        Place of its first row in the dataset.
    source : ndarray of int64, shape (rows,)
        0-based place of each row in the input.
    label, weight : ndarray of float64, shape (rows,)
    indptr : ndarray of int64, shape (rows + 1,)
        Row ``r`` has the entries ``indptr[r]:indptr[r + 1]``.
    feature : ndarray of int32 or int64, shape (entries,)
        0-based.
    value : ndarray of float32 or float64, shape (entries,)
    """

    row0: int
    source: np.ndarray
    label: np.ndarray
    weight: np.ndarray
    indptr: np.ndarray
    feature: np.ndarray
    value: np.ndarray


# ---------------------------------------------------------------------------------------------------------------------
# Tables


def row_dtype(n_rows: int) -> np.dtype:
    """Type of the numbers of so many rows."""
    return np.dtype(np.int32 if n_rows <= _INT32_MAX else np.int64)


def rows_schema(row_dtype: np.dtype, count_dtype: np.dtype) -> Schema:
    """Of a part of ``rows/``."""
    return schema(row=row_dtype, source=np.int64, label=np.float64, weight=np.float64, n_entries=count_dtype)


def entries_schema(row_dtype: np.dtype, index_dtype: np.dtype, value_dtype: np.dtype) -> Schema:
    """Of a part of ``entries/``."""
    # `row` comes first: training skips it, and the two other columns are then one contiguous read
    return schema(row=row_dtype, feature=index_dtype, value=value_dtype)


CHUNKS_SCHEMA = schema(part=np.int32, n_rows=np.int64, n_entries=np.int64)


def features_schema(compact: bool) -> Schema:
    """Of ``features.parquet``."""
    statistics = {name: np.float64 for name in ("min", "max", "mean", "mean_square")}
    original = {"original": np.int64} if compact else {}
    return schema(feature=np.int64, n_entries=np.int64, **statistics, **original)


SCALES_SCHEMA = schema(feature=np.int64, scale=np.float64)


# ---------------------------------------------------------------------------------------------------------------------
# The manifest


def manifest_fingerprint(manifest: Mapping[str, Any]) -> str:
    """Fingerprint of a dataset: a hash of its manifest, checksums of all parts included, but for where it came from."""
    content = {key: value for key, value in manifest.items() if key not in ("fingerprint", "source")}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def listed_files(manifest: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
    """Name, bytes and checksum of every file that the manifest lists."""
    yield "chunks.parquet", manifest["chunks"]["bytes"], manifest["chunks"]["checksum"]
    yield "features.parquet", manifest["features"]["bytes"], manifest["features"]["checksum"]
    if "scales" in manifest:
        yield "scaling.parquet", manifest["scales"]["bytes"], manifest["scales"]["checksum"]
    for part in manifest["parts"]:
        for table in ("rows", "entries"):
            yield part[table], part[f"{table}_bytes"], part[f"{table}_checksum"]

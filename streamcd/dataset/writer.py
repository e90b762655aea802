"""Writing of a dataset: parts chunk by chunk, the manifest last."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..core.atomic_files import sync
from ..core.metadata import content_digest
from ..core.storage import Location
from ..core.threads import Threads
from .arrow_columns import null_strings
from .content import RowContent, TableContent
from .kept_columns import KEPT_FILE, join_kept
from .manifests import INDICES_FILE, ROW_LAYOUT
from .parquet import file_checksum
from .scaling import Scaling
from .schema import FEATURES, FIRST_OF_ROWS, INDICES, ROW_CHUNKS, SCALES, no_norms, norms_record, row_schemas
from .table_writer import PartFiles, TableWriter, chunk_records, write_manifest

_GROUP = 1 << 16
"""Features in a row group of ``scaling.parquet`` and ``indices.parquet``."""


class PartWriter:
    """Writer of part `number` of a dataset, whose rows are counted from 0: a row group per chunk."""

    def __init__(
        self,
        path: Path,
        number: int,
        *,
        index_dtype: np.dtype,
        value_dtype: np.dtype,
        row_dtype: np.dtype,
        compression: str,
    ) -> None:
        self._index_dtype, self._value_dtype, self._row_dtype = index_dtype, value_dtype, row_dtype
        self._number = number
        names = {table: f"{table}/part-{number:05d}.parquet" for table in ("rows", "entries")}
        schemas = row_schemas(row_dtype, index_dtype, value_dtype)
        self._files = PartFiles(path, names, schemas, compression, FIRST_OF_ROWS)
        self._threads = Threads(2)  # one for each file
        self.n_rows = self.n_entries = 0
        self.row_norms = no_norms()
        self._content = RowContent()
        # part, rows and entries of each chunk; a list would take ten times the memory
        self.chunk_table = array("q")

    def write_chunk(
        self,
        source: np.ndarray,
        label: np.ndarray,
        weight: np.ndarray | None,
        indptr: np.ndarray,
        feature: np.ndarray,
        value: np.ndarray,
    ) -> None:
        """Append a chunk of rows, in their final order, features ascending within a row; rows are numbered here.

        Shapes are those of `ChunkData`: `source` int64, `label` and `weight` (None for all ones) float64, `indptr` int64.
        """
        from ..kernels.rows import add_row_norms  # here, because it imports numba

        value = np.ascontiguousarray(value, dtype=self._value_dtype)
        add_row_norms(np.ascontiguousarray(indptr, dtype=np.int64), value, self.row_norms)
        row = np.arange(self.n_rows, self.n_rows + label.size, dtype=self._row_dtype)
        counts = np.diff(indptr)
        weight = np.ones(label.size) if weight is None else weight
        n_stored = counts.astype(self._index_dtype)
        feature = feature.astype(self._index_dtype, copy=False)
        rows = {"row": row, "source": source, "label": label, "weight": weight, "n_entries": n_stored}
        entries = {"row": np.repeat(row, counts), "feature": feature, "value": value}

        def write_rows() -> None:
            self._files.write("rows", **rows)
            self._content.add_rows(row, source, label, weight)
            self._content.add_entries(**entries)

        self._threads.run([lambda: self._files.write("entries", **entries), write_rows])
        self.n_rows += label.size
        self.n_entries += feature.size
        self.chunk_table.extend((self._number, label.size, feature.size))

    def close(self) -> dict[str, Any]:
        """Close the files; returns the manifest's record of the part."""
        self._threads.close()
        return {
            **self._files.names,
            "content": self._content.text(),
            "n_rows": self.n_rows,
            "n_entries": self.n_entries,
            "n_chunks": len(self.chunk_table) // 3,
            **self._files.close(),
        }


class DatasetWriter:
    """Writer of a dataset's files into a directory, beside the parts of `PartWriter`s, the manifest last.

    The directory is created if needed; the caller renames it at the end. `weighted` records that rows have weights other
    than 1.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        index_dtype: np.dtype,
        value_dtype: np.dtype,
        weighted: bool,
        compression: str,
    ) -> None:
        self.path = Path(path)
        self._index_dtype, self._value_dtype = index_dtype, value_dtype
        self._weighted, self._compression = weighted, compression
        self._parts: list[dict[str, Any]] = []
        self._chunk_table = array("q")
        self._features: dict[str, Any] | None = None
        self._scales: dict[str, Any] = {}
        self._encoding: dict[str, Any] = {}
        self._row_norms = no_norms()
        self._n_rows = self._n_entries = 0
        for folder in ("", "rows", "entries"):
            (self.path / folder).mkdir(parents=True, exist_ok=True)

    def add_part(self, part: dict[str, Any], chunk_table: array[int], row_norms: np.ndarray) -> None:
        self._parts.append(
            part | {f"{table}_crcs": array("q", part[f"{table}_crcs"]) for table in FIRST_OF_ROWS}
        )
        self._chunk_table.extend(chunk_table)
        # parts are added in their order, so that the sum does not depend on who wrote them
        least, greatest = min(self._row_norms[0], row_norms[0]), max(self._row_norms[1], row_norms[1])
        self._row_norms += row_norms
        self._row_norms[:2] = least, greatest
        self._n_rows += part["n_rows"]
        self._n_entries += part["n_entries"]

    def write_features(
        self,
        blocks: Iterable[Mapping[str, Any]],
        names: Callable[[np.ndarray], Any] | None = None,
    ) -> None:
        """Write ``features.parquet`` from blocks of columns, ascending by feature (see `Dataset.read_features`).

        `names` maps an array of features to that of their names, of Arrow's.
        """
        content, ascending = TableContent(FEATURES.names), ("feature", "index")
        path = self.path / "features.parquet"
        writer = TableWriter(path, FEATURES, self._compression, content, ascending=ascending)
        for block in blocks:
            feature = block["feature"]
            if len(feature):
                given = null_strings(len(feature)) if names is None else names(feature)
                writer.write(**{"index": feature, **block}, name=given)
        self._features = writer.close()

    def write_indices(self, indices: np.ndarray) -> None:
        """Write the indices of features in the source, where these are not successive."""
        writer = TableWriter(
            self.path / INDICES_FILE, INDICES, self._compression, TableContent(INDICES.names)
        )
        for start in range(0, indices.size, _GROUP):
            writer.write(index=indices[start : start + _GROUP])
        self._encoding["indices"] = writer.close()

    def write_encoding(self, encoding: Any) -> None:
        """Record a table's encoding (a `models.encoding.Encoding`), and write its categories."""
        self._encoding["encoding"] = encoding.record()
        if encoding.has_categories:
            path = self.path / "categories.parquet"
            encoding.save(path)
            self._encoding["categories"] = _file_record(path)

    def write_kept(self, parts: Iterable[Location]) -> None:
        """Write the columns that are kept beside the rows, from files of them in the order of the source."""
        path = self.path / KEPT_FILE
        join_kept(parts, path)
        self._encoding["kept"] = _file_record(path)

    def write_scaling(self, scaling: Scaling) -> None:
        """Record the transformation of the source's values, and write ``scaling.parquet`` if features were scaled.

        It holds ``feature`` and ``scale``, the divisor, of all features whose divisor is not 1.
        """
        if scaling.scales is not None:
            writer = TableWriter(
                self.path / "scaling.parquet", SCALES, self._compression, TableContent(SCALES.names)
            )
            for start in range(0, scaling.scales.size, _GROUP):
                block = scaling.scales[start : start + _GROUP]
                scaled = np.flatnonzero(block != 1.0)
                if scaled.size:
                    writer.write(feature=scaled + start, scale=block[scaled])
            self._scales["scales"] = writer.close()
        self._scales["scaling"] = scaling.to_json()

    def records(self) -> dict[str, Any]:
        """Return the manifest's records of the files written so far, but for parts."""
        return {**self._scales, **self._encoding, "features": self._features}

    def close(self, **manifest: Any) -> dict[str, Any]:
        """Write the chunk table and, last, the manifest, which is returned.

        Further keys of the manifest are arguments: ``n_features``, ``index_base``, ``classes``, ``class_counts``,
        ``label_kind``, ``seed``, ``source`` and others.
        """
        if self._features is None:
            raise AssertionError("write_features must be called before close")
        table = np.frombuffer(self._chunk_table, dtype=np.int64).reshape(-1, 3)
        fields = {
            "n_rows": self._n_rows,
            "n_entries": self._n_entries,
            "index_dtype": self._index_dtype.name,
            "value_dtype": self._value_dtype.name,
            "weighted": self._weighted,
            **manifest,
            "row_norms": norms_record(self._row_norms, self._n_rows),
            "data_digest": data_digest(self._parts),
            **chunk_records(self.path, ROW_CHUNKS, table, self._parts, self._compression),
            **self.records(),
        }
        return write_manifest(self.path, ROW_LAYOUT, fields, ("rows", "entries"))


def _file_record(path: Path) -> dict[str, Any]:
    """Make a file durable, and return what the manifest says of it."""
    sync(path)
    return {"bytes": path.stat().st_size, "checksum": file_checksum(path)}


def data_digest(parts: Iterable[Mapping[str, Any]]) -> str:
    """Compute the digest of rows and entries alone: equal for equal data, whatever its origin."""
    return content_digest({"parts": [part["content"] for part in parts]})[:32]

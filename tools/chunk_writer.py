"""Datasets written from chunks of rows in the order given, without a conversion: for made data, and for tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from streamcd.dataset.schema import FEATURES
from streamcd.dataset.source_features import SourceIndices
from streamcd.dataset.writer import Part, PartWriter, named_features, write_dataset, write_table


class ChunkWriter:
    """Writer of a dataset, part by part, the manifest last; a new part begins after `shard_bytes` of decoded entries."""

    def __init__(
        self,
        path: Path,
        *,
        index_dtype: np.dtype | type,
        value_dtype: np.dtype | type,
        row_dtype: np.dtype | type = np.int64,
        weighted: bool = False,
        shard_bytes: int = 256_000_000,
    ) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._dtypes = {"index_dtype": np.dtype(index_dtype), "value_dtype": np.dtype(value_dtype)}
        self._fields: dict[str, Any] = {name: dtype.name for name, dtype in self._dtypes.items()}
        self._fields["weighted"], self._row_dtype = weighted, np.dtype(row_dtype)
        self._most_entries = shard_bytes / sum(dtype.itemsize for dtype in self._dtypes.values())
        self._part: PartWriter | None = None
        self._parts: list[Part] = []

    def write_chunk(self, source: np.ndarray, label: np.ndarray, *others: Any) -> None:
        """Append a chunk of rows; the arguments are those of `PartWriter.write_chunk`."""
        if self._part is not None and self._part.n_entries >= self._most_entries:
            self._end_part()
        if self._part is None:
            form: dict[str, Any] = {**self._dtypes, "row_dtype": self._row_dtype, "compression": "lz4"}
            self._part = PartWriter(self._path, len(self._parts), **form)
        self._part.write_chunk(source, label, *others)

    def _end_part(self) -> None:
        if self._part is not None:
            self._parts.append(self._part.close())
            self._part = None

    def write_features(self, blocks: Iterable[Mapping[str, Any]]) -> None:
        """Write the features' statistics."""
        features = named_features(blocks, SourceIndices(0), None)
        path, ascending = self._path / "features.parquet", ("feature", "index")
        self._fields["features"] = write_table(path, FEATURES, features, "lz4", ascending=ascending)

    def close(self, **manifest: Any) -> dict[str, Any]:
        """End the last part, and write the chunk table and the manifest."""
        self._end_part()
        return write_dataset(self._path, self._parts, self._fields | manifest, "lz4")

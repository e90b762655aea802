"""Datasets written from chunks of rows in the order given, without a conversion: for made data, and for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from streamcd.dataset.writer import DatasetWriter, PartWriter


class ChunkWriter(DatasetWriter):
    """Writer of a dataset whose parts it writes itself, one after another.

    A new part begins after `shard_bytes` of decoded entries.
    """

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
        index, value = np.dtype(index_dtype), np.dtype(value_dtype)
        super().__init__(path, index_dtype=index, value_dtype=value, weighted=weighted, compression="lz4")
        dtypes = {"index_dtype": index, "value_dtype": value, "row_dtype": np.dtype(row_dtype)}
        self._part_options: dict[str, Any] = {**dtypes, "compression": "lz4"}
        self._most_entries = shard_bytes / (index.itemsize + value.itemsize)
        self._part: PartWriter | None = None
        self.n_parts = 0

    def write_chunk(self, source: np.ndarray, label: np.ndarray, *others: Any) -> None:
        """Append a chunk of rows; the arguments are those of `PartWriter.write_chunk`."""
        if self._part is not None and self._part.n_entries >= self._most_entries:
            self._end_part()
        if self._part is None:
            self._part = PartWriter(self.path, self.n_parts, **self._part_options)
            self.n_parts += 1
        self._part.write_chunk(source, label, *others)

    def _end_part(self) -> None:
        if self._part is not None:
            self.add_part(self._part.close(), self._part.chunk_table, self._part.row_norms)
            self._part = None

    def close(self, **manifest: Any) -> dict[str, Any]:
        """End the last part, and write the chunk table and the manifest."""
        self._end_part()
        return super().close(**manifest)

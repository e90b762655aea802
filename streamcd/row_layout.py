"""The row layout of a dataset, open for reading: its figures and its chunks."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from .errors import DatasetError
from .parquet import OpenParts, file_checksum, read_groups, read_table, reading
from .scaling import Scaling
from .schema import FORMAT, FORMAT_VERSION, ChunkData, listed_files, manifest_fingerprint, row_dtype
from .verification import file_problems

MAX_OPEN_PARTS = 64
"""Footers kept open; where shards outnumber it the order of a pass visits them in groups (`read_order.chunk_order`)."""


class RowTable:
    """The row layout of a dataset, open for reading; see `open`. Not for use by several threads at a time.

    Attributes
    ----------
    path : Path
    manifest : dict
    n_rows, n_features, n_entries, n_chunks, n_shards : int
    index_dtype, value_dtype : dtype
    classes : ndarray of float64 or None
        Distinct labels, ascending; None where there are more than `schema.MAX_CLASSES`.
    class_counts : ndarray of int64 or None
    label_kind : {"integer", "decimal"}
    weighted : bool
        Whether rows carry weights other than 1.
    index_base : int
        What the input's indices started at; features here start at 0.
    fingerprint : str
    chunk_part, chunk_group : ndarray of int32, shape (n_chunks,)
        The part and the row group in it that hold a chunk.
    row_start, entry_start : ndarray of int64, shape (n_chunks + 1,)
        Chunk ``c`` holds rows ``row_start[c]:row_start[c + 1]``, and entries likewise.
    """

    def __init__(self, path: Path, manifest: dict[str, Any], chunk_table: Mapping[str, np.ndarray]) -> None:
        self.path = path
        self.manifest = manifest
        self.n_rows = int(manifest["n_rows"])
        self.n_features = int(manifest["n_features"])
        self.n_entries = int(manifest["n_entries"])
        self.n_shards = len(manifest["parts"])
        self.index_dtype = np.dtype(manifest["index_dtype"])
        self.value_dtype = np.dtype(manifest["value_dtype"])
        classes = manifest["classes"]
        self.classes = None if classes is None else np.array(classes, dtype=np.float64)
        self.class_counts = None if classes is None else np.array(manifest["class_counts"], dtype=np.int64)
        self.label_kind: str = manifest["label_kind"]
        self.weighted = bool(manifest["weighted"])
        self.index_base = int(manifest["index_base"])
        self.seed = int(manifest["seed"])
        self.fingerprint: str = manifest["fingerprint"]

        self.chunk_part = chunk_table["part"].astype(np.int32)
        self.n_chunks = self.chunk_part.size
        first_of_part = np.searchsorted(self.chunk_part, np.arange(self.n_shards))
        self.chunk_group = (np.arange(self.n_chunks) - first_of_part[self.chunk_part]).astype(np.int32)
        self.row_start = np.concatenate([[0], np.cumsum(chunk_table["n_rows"], dtype=np.int64)])
        self.entry_start = np.concatenate([[0], np.cumsum(chunk_table["n_entries"], dtype=np.int64)])
        self._parts = OpenParts(path, 2 * MAX_OPEN_PARTS)
        self._chunk_bytes = np.full(self.n_chunks, -1, dtype=np.int64)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, check_files: bool = True) -> Self:
        """Open the row layout in a directory; see `dataset.open_dataset`."""
        path = Path(path)
        manifest = _read_manifest(path)
        if check_files:
            for _, problem in file_problems(path, listed_files(manifest)):
                raise DatasetError(problem + "; restore the file or convert the data again")
        chunks_path = path / "chunks.parquet"
        with reading(chunks_path):
            if file_checksum(chunks_path) != manifest["chunks"]["checksum"]:
                raise DatasetError(
                    f"{chunks_path}: checksum differs from the manifest's; convert the data again"
                )
        return cls(path, manifest, read_table(chunks_path))

    @property
    def n_items(self) -> int:
        """Of the row layout the rows (see `plan.Table`)."""
        return self.n_rows

    @property
    def item_start(self) -> np.ndarray:
        """As `row_start`."""
        return self.row_start

    @property
    def unit_start(self) -> None:
        """Every chunk travels by itself."""
        return None

    @property
    def entry_bytes(self) -> int:
        """Decoded bytes of one entry."""
        return self.index_dtype.itemsize + self.value_dtype.itemsize

    @property
    def row_dtype(self) -> np.dtype:
        """Type of the rows' numbers."""
        return row_dtype(self.n_rows)

    def read_rows(
        self, chunk: int, columns: Sequence[str] = ("label", "n_entries"), *, verify: bool = True
    ) -> list[np.ndarray]:
        """Read columns of the rows table of a chunk.

        Parameters
        ----------
        chunk : int
        columns : sequence of str
            Among ``row``, ``source``, ``label``, ``weight``, ``n_entries``.
        verify : bool
            Check the checksums of the pages.

        Returns
        -------
        list of ndarray, one per column, each of shape (rows of the chunk,)
            They may share memory that is freed with them; not writable.

        Raises
        ------
        DatasetError
            Where the file is missing or damaged; names it.
        """
        name, group = self._name("rows", chunk), int(self.chunk_group[chunk])
        arrays = self._parts.read(name, group, columns, verify)
        self._check_length("rows", chunk, arrays, self.row_start)
        return arrays

    def read_entries(
        self, chunk: int, columns: Sequence[str] = ("feature", "value"), *, verify: bool = True
    ) -> list[np.ndarray]:
        """Read columns of the entries table of a chunk; as `read_rows`, with ``row``, ``feature``, ``value``."""
        name, group = self._name("entries", chunk), int(self.chunk_group[chunk])
        arrays = self._parts.read(name, group, columns, verify)
        self._check_length("entries", chunk, arrays, self.entry_start)
        return arrays

    def read(self, chunk: int, *, verify: bool = True) -> ChunkData:
        """Read a whole chunk."""
        source, label, weight, n_entries = self.read_rows(
            chunk, ("source", "label", "weight", "n_entries"), verify=verify
        )
        feature, value = self.read_entries(chunk, verify=verify)
        indptr = np.concatenate([[0], np.cumsum(n_entries, dtype=np.int64)])
        return ChunkData(int(self.row_start[chunk]), source, label, weight, indptr, feature, value)

    def expect(self, chunk: int) -> None:
        """Say that a chunk's features and values will be read, in the order of such calls."""
        self._parts.expect(self._name("entries", chunk), int(self.chunk_group[chunk]), 1)

    def read_directly(self) -> None:
        """From now until `close`, chunks that are expected are read past the page cache."""
        self._parts.read_directly()

    def chunk_bytes(self, chunk: int) -> int:
        """Bytes on disk that reading a chunk for training asks for: its labels and counts, features and values."""
        if self._chunk_bytes[chunk] < 0:
            group = int(self.chunk_group[chunk])
            _, entries = self._parts[self._name("entries", chunk)].extent(group, 1)
            _, rows = self._parts[self._name("rows", chunk)].extent(group, 2)
            self._chunk_bytes[chunk] = entries + rows
        return int(self._chunk_bytes[chunk])

    def place(self, chunk: int) -> str:
        """Where a chunk is, for messages: the file and the number of the chunk in it."""
        return f"{self.path / self._name('entries', chunk)}, chunk {int(self.chunk_group[chunk])}"

    def read_features(
        self, columns: Sequence[str] | None = None, *, first_group: int = 0
    ) -> Iterator[dict[str, np.ndarray]]:
        """Statistics of the features that occur, ascending, in pieces: columns of ``features.parquet``.

        Parameters
        ----------
        columns : sequence of str, optional
            All by default.
        first_group : int
            The piece to begin with.
        """
        return read_groups(self.path / "features.parquet", columns, first_group=first_group)

    @property
    def scaling(self) -> Scaling:
        """What was done to the source's values, without the divisors (`read_scaling` reads them)."""
        return Scaling.from_json(self.manifest.get("scaling"))

    def read_scaling(self) -> Scaling:
        """What was done to the source's values, with the divisors: 8 bytes a feature."""
        scaling = self.scaling
        if scaling.scale == "none":
            return scaling
        scales = np.ones(self.n_features)
        with reading(self.path / "scaling.parquet"):  # a feature beyond the width is damage too
            for piece in read_groups(self.path / "scaling.parquet"):
                scales[piece["feature"]] = piece["scale"]
        return replace(scaling, scales=scales)

    def select_parts(self, parts: Sequence[int]) -> Self:
        """These parts, ascending, as a dataset of its own for reading; chunks and rows are numbered anew."""
        chosen = copy.copy(self)
        chunks = np.flatnonzero(np.isin(self.chunk_part, parts))
        chosen.manifest = {**self.manifest, "parts": [self.manifest["parts"][part] for part in parts]}
        chosen.n_shards, chosen.n_chunks = len(parts), chunks.size
        chosen.chunk_part = np.searchsorted(parts, self.chunk_part[chunks]).astype(np.int32)
        chosen.chunk_group = self.chunk_group[chunks]
        chosen.row_start = np.concatenate([[0], np.cumsum(np.diff(self.row_start)[chunks])])
        chosen.entry_start = np.concatenate([[0], np.cumsum(np.diff(self.entry_start)[chunks])])
        chosen.n_rows, chosen.n_entries = int(chosen.row_start[-1]), int(chosen.entry_start[-1])
        chosen._parts = OpenParts(self.path, 2 * MAX_OPEN_PARTS)
        chosen._chunk_bytes = np.full(chunks.size, -1, dtype=np.int64)
        return chosen

    def close(self) -> None:
        """Close all files; the next read opens them again."""
        self._parts.close()

    def bytes_on_disk(self) -> int:
        """Bytes of all files of the dataset."""
        manifest = self.manifest
        parts = sum(part["rows_bytes"] + part["entries_bytes"] for part in manifest["parts"])
        scales = manifest.get("scales", {"bytes": 0})
        return int(parts + manifest["chunks"]["bytes"] + manifest["features"]["bytes"] + scales["bytes"])

    def info(self) -> dict[str, Any]:
        """What there is to know without reading the data; the contract's keys and some more."""
        cells = self.n_rows * self.n_features
        return {
            "n_rows": self.n_rows,
            "n_features": self.n_features,
            "n_entries": self.n_entries,
            "classes": None if self.classes is None else labels_as_numbers(self.classes, self.label_kind),
            "class_counts": None if self.class_counts is None else self.class_counts.tolist(),
            "density": self.n_entries / cells if cells else 0.0,
            "n_shards": self.n_shards,
            "n_chunks": self.n_chunks,
            "bytes": self.bytes_on_disk(),
            "bytes_decoded": self.n_entries * self.entry_bytes,
            "index_dtype": self.index_dtype.name,
            "value_dtype": self.value_dtype.name,
            "index_base": self.index_base,
            "weighted": self.weighted,
            "seed": self.seed,
            "scale": self.scaling.scale,
            "normalize": self.scaling.normalize,
            "row_norms": self.manifest.get("row_norms"),
            "fingerprint": self.fingerprint,
        }

    def _name(self, table: str, chunk: int) -> str:
        return str(self.manifest["parts"][self.chunk_part[chunk]][table])

    def _check_length(self, table: str, chunk: int, arrays: Sequence[np.ndarray], start: np.ndarray) -> None:
        expected = int(start[chunk + 1] - start[chunk])
        if any(array.size != expected for array in arrays):
            raise DatasetError(
                f"{self.path / self._name(table, chunk)}: chunk {int(self.chunk_group[chunk])} holds {arrays[0].size} "
                f"rows, the chunk table says {expected}; convert the data again"
            )


def labels_as_numbers(labels: np.ndarray, label_kind: str) -> list[int] | list[float]:
    """Labels as the source wrote them: integers without a point."""
    return [int(label) for label in labels] if label_kind == "integer" else [float(label) for label in labels]


def _read_manifest(path: Path) -> dict[str, Any]:
    manifest_path = path / "manifest.json"
    try:
        manifest = json.loads(manifest_path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        if (path / "config.json").exists():
            raise DatasetError(
                f"{path} is a run, not a dataset; 'streamcd evaluate DATASET {path}' and 'resume {path}' take runs"
            ) from None
        kind = "is not a dataset (no manifest.json in it)" if path.exists() else "does not exist"
        raise DatasetError(f"{path} {kind}; 'streamcd convert SRC {path}' makes a dataset") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise DatasetError(
            f"{manifest_path}: damaged ({error}); restore it or convert the data again"
        ) from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DatasetError(f"{manifest_path}: expected the manifest of a {FORMAT}, found something else")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise DatasetError(
            f"{manifest_path}: expected format version {FORMAT_VERSION}, found {manifest.get('format_version')}; "
            "convert the data again or use another version of streamcd"
        )
    if manifest.get("fingerprint") != manifest_fingerprint(manifest):
        raise DatasetError(
            f"{manifest_path}: changed since it was written; restore it or convert the data again"
        )
    return manifest

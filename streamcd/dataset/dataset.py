"""A dataset, open for reading: rows, features, statistics and verification."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from ..core.errors import DatasetError, UsageError, counted, escaped, first_of
from ..core.files import describe_other_kind, read_metadata
from ..core.memory_budget import available_memory, format_size, parse_size, require
from ..core.options import Listener, with_known_keywords
from ..core.parallel import ahead
from ..core.setting import random_key
from ..core.storage import Location, is_url, local_path, location
from .arrow_columns import read_groups, reading
from .centring import STATISTICS, Centre, find_centre
from .chunked_table import ChunkedTable, starts_of
from .column_layout import Columns, open_columns
from .feature_order import MOST_COUNTED, make_rank
from .kept_columns import KEPT_FILE, kept_batches
from .schema import FEATURES, FIRST_OF_ROWS, ROW_LAYOUT, ChunkData, row_dtype
from .source_features import Scaling

_ROW_BYTES = 40  # of a row besides its entries: source, label, weight, count, offset


class Dataset(ChunkedTable):
    """A dataset directory, open for reading (see `open`). Not thread-safe.

    The row layout has a row per sample in ``rows/`` and its non-zeros, sorted by row, in ``entries/``. Files number rows
    within their part, so that parts of several datasets can stand together.

    Attributes
    ----------
    path : Path or core.storage.Url
    manifest : dict
    n_rows, n_features, n_entries, n_chunks, n_shards : int
    index_dtype, value_dtype : dtype
    classes : ndarray of float64 or None
        Distinct labels, ascending; None if there are more than 65,536.
    class_counts : ndarray of int64 or None
    targets : dict or None
        Range of the rows' targets, ``min`` and ``max``, where they are numbers to predict; None where labels are classes.
    label_kind : {"integer", "decimal"}
    weighted : bool
        Whether rows carry weights other than 1.
    index_base : int
        First feature index of the source; features here start at 0.
    class_names : list of str or None
        Names of the classes, which are then numbered from 0; None if labels are numbers.
    made_from : {"libsvm text", "table", "dense array", "sparse matrix"} or None
        Kind of the source, by which the default bias is chosen; frames are tables.
    fingerprint : str
    chunk_part, chunk_group : ndarray of int32, shape (n_chunks,)
        Part of each chunk, and row group in that part.
    row_start, entry_start : ndarray of int64, shape (n_chunks + 1,)
        Chunk ``c`` holds rows ``row_start[c]:row_start[c + 1]``, and entries likewise.

    Examples
    --------
    >>> data = streamcd.open("data")
    >>> data.n_rows, data.classes.tolist()
    (8000, [-1.0, 1.0])
    >>> data.verify()
    []
    """

    KIND = ROW_LAYOUT
    TABLES: ClassVar = FIRST_OF_ROWS
    is_shuffled = True  # neighbours have nothing in common
    _folds: np.ndarray | None = None

    def __init__(
        self, path: Location, manifest: dict[str, Any], chunk_table: Mapping[str, np.ndarray]
    ) -> None:
        super().__init__(path, manifest, chunk_table, "n_rows", chunk_table["n_rows"])
        self.n_rows = self.n_items
        self.n_features: int = manifest["n_features"]
        classes = manifest["classes"]
        self.classes = None if classes is None else np.array(classes, dtype=np.float64)
        self.class_counts = None if classes is None else np.array(manifest["class_counts"], dtype=np.int64)
        targets = manifest.get("targets")
        self.targets = None if targets is None else {end: float(targets[end]) for end in ("min", "max")}
        self.row_dtype = row_dtype(self.n_rows)
        self.entry_bytes = self.index_dtype.itemsize + self.value_dtype.itemsize
        self.row_start = self.item_start
        parts = manifest["parts"]
        self.part_starts = {
            "row": self.row_start[self.shard_start[:-1]].astype(self.row_dtype),
            "source": np.array([part.get("source", 0) for part in parts], np.int64),
        }
        self.unit_start = np.arange(self.n_chunks + 1)
        self.label_kind: str = manifest["label_kind"]
        self.weighted: bool = manifest["weighted"]
        self.index_base: int = manifest["index_base"]
        self.seed: int = manifest["seed"]
        self.class_names: list[str] | None = manifest.get("class_names")
        self.made_from: str | None = manifest.get("made_from")
        self.has_targets = targets is not None
        self.mean_square: float | None = (manifest.get("row_norms") or {}).get("mean_square")
        self.scaling = Scaling.from_json(manifest.get("scaling"))
        kept = manifest.get("encoding") if manifest.get("kept") else None
        self.id_column, self.fold_column = ((kept or {}).get(name) or "" for name in ("id", "fold"))
        self.kept = [name for name in (self.id_column, self.fold_column) if name]

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, check_files: bool = True, fingerprint: str | None = None
    ) -> Self:
        """Open the row layout in a directory, refused where it should have a `fingerprint` and has another."""
        folder = location(path)
        try:
            manifest, _ = read_metadata(folder / "manifest.json", cls.KIND)
        except (FileNotFoundError, NotADirectoryError):
            raise DatasetError(_describe_absence(folder)) from None
        if fingerprint not in (None, manifest["fingerprint"]):  # safety: resume::changed_dataset
            raise DatasetError(
                f"{folder}: expected the dataset with the fingerprint {fingerprint}, found {manifest['fingerprint']}"
            )
        return cls(folder, manifest, cls.read_chunk_table(folder, manifest, check_files))

    def read_rows(
        self, chunk: int, columns: Sequence[str] = ("label", "n_entries"), *, verify: bool = True
    ) -> list[np.ndarray]:
        """Read columns of a chunk's rows: among ``row``, ``source``, ``label``, ``weight``, ``n_entries``.

        The arrays are read-only. `verify` checks checksums; raises `DatasetError`, which names the file, if one is missing
        or damaged.
        """
        return self._read("rows", chunk, columns, verify)

    def read_entries(
        self, chunk: int, columns: Sequence[str] = ("feature", "value"), *, verify: bool = True
    ) -> list[np.ndarray]:
        """Read columns of a chunk's entries: among ``row``, ``feature``, ``value``; otherwise as `read_rows`."""
        return self._read("entries", chunk, columns, verify)

    def read(self, chunk: int, *, verify: bool = True) -> ChunkData:
        """Read a chunk, decoded."""
        source, label, weight, n_entries = self.read_rows(
            chunk, ("source", "label", "weight", "n_entries"), verify=verify
        )
        feature, value = self.read_entries(chunk, verify=verify)
        return ChunkData(source, label, weight, starts_of(n_entries), feature, value)

    def read_in_source_order(self, *columns: str) -> list[np.ndarray]:
        """Read columns of all rows, as `read_rows`, in the order of the source."""
        source, *arrays = self._all_rows("source", *columns)
        order = np.argsort(source)
        return [array[order] for array in arrays]

    def _all_rows(self, *columns: str) -> list[np.ndarray]:
        parts = [self.read_rows(chunk, columns) for chunk in range(self.n_chunks)]
        return [np.concatenate(some) for some in zip(*parts, strict=True)]

    def labels(self, memory: int | str | None = None) -> np.ndarray:
        """Read the labels of all rows, in the order of the source: names, integers or decimal numbers.

        `memory` and errors as in `to_scipy`.

        Examples
        --------
        >>> streamcd.open("data").labels().shape
        (8000,)
        """
        listed = self.class_labels()
        # stored and given, in both orders
        n_bytes = 40 + (8 if listed is None else np.array(listed).itemsize)
        self._require_room(memory, "the labels", self.n_rows * n_bytes)
        return self.source_labels(*self.read_in_source_order("label"))

    def class_labels(self) -> list[Any] | None:
        """Return the classes as in the source: names, integers or decimal numbers; None if there are none."""
        if self.classes is None:
            return None
        return class_labels(self.classes.tolist(), self.label_kind, self.class_names)

    def source_labels(self, label: np.ndarray) -> np.ndarray:
        """Convert labels to those of the source."""
        if self.classes is None:
            return label
        return np.array(self.class_labels())[np.searchsorted(self.classes, label)]

    def head(self, n_rows: int = 5) -> Any:
        """Read the first rows as they are stored, shuffled.

        Parameters
        ----------
        n_rows : int

        Returns
        -------
        pyarrow.Table
            Columns ``source`` (0-based row of the source), ``label``, ``weight``, and lists ``feature`` (0-based) and
            ``value``.
        """
        last = min(max(int(np.searchsorted(self.row_start, n_rows)), 1), self.n_chunks)
        parts = [self.read(chunk) for chunk in range(last)]
        starts = starts_of(np.concatenate([np.diff(part.indptr) for part in parts]))
        rows = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ChunkData.COLUMNS}
        rows["label"] = self.source_labels(rows["label"])
        lists = {name: pa.LargeListArray.from_arrays(starts, rows[name]) for name in ("feature", "value")}
        return pa.table(rows | lists).slice(0, n_rows)

    def to_scipy(self, memory: int | str | None = None) -> tuple[Any, np.ndarray]:
        """Read all rows, in the order of the source.

        Parameters
        ----------
        memory : int or str, optional
            Bound on the process's memory; by default what is free on this machine.

        Returns
        -------
        X : scipy.sparse.csr_array, shape (n_rows, n_features)
        y : ndarray, shape (n_rows,)
            Labels as in the source.

        Raises
        ------
        UsageError
            If the rows do not fit in that memory.
        """
        from scipy.sparse import csr_array

        n_bytes = self.n_entries * self.entry_bytes + self.n_rows * _ROW_BYTES
        self._require_room(memory, "SciPy's matrix", int(n_bytes))
        source, label, n_entries = self._all_rows("source", "label", "n_entries")
        order = np.argsort(source)
        indptr = starts_of(n_entries[order])
        start = indptr[np.argsort(order)]  # of each row's entries there
        feature, value = (np.empty(self.n_entries, dtype) for dtype in (self.index_dtype, self.value_dtype))
        # chunk by chunk, so that only one copy of the entries is in memory
        for chunk, (first, stop) in enumerate(pairwise(self.row_start)):
            counts = n_entries[first:stop]
            target = np.repeat(start[first:stop] - starts_of(counts)[:-1], counts)
            target += np.arange(target.size)
            feature[target], value[target] = self.read_entries(chunk)
        if feature.dtype == np.int32 and self.n_entries < 2**31:
            indptr = indptr.astype(np.int32)  # the type of the indices, or SciPy converts one of them
        matrix = csr_array((value, feature, indptr), shape=(self.n_rows, self.n_features))
        return matrix, self.source_labels(label[order])

    def _require_room(self, memory: int | str | None, what: str, n_bytes: int) -> None:
        """Refuse what does not fit in `memory`, by default in what is free."""
        if memory is not None:
            require(parse_size(memory), {what: n_bytes}, "give a larger memory, or read chunk by chunk")
            return
        free = int(min(available_memory(), 2**62))
        refusal = f"{self.path} does not fit in the memory that is free, {format_size(free)}:"
        require(free, {what: n_bytes}, "read it chunk by chunk", refusal)

    def __repr__(self) -> str:
        labels = "too many values to be classes"
        if self.targets is not None:
            labels = f"targets from {self.targets['min']:.6g} to {self.targets['max']:.6g}"
        elif (listed := self.class_labels()) is not None and self.class_counts is not None:
            counts = zip(listed, self.class_counts.tolist(), strict=True)
            labels = first_of([f"{label} ({count:,})" for label, count in counts], 10)
        size = f"{format_size(self.bytes_on_disk())} in {counted(self.n_shards, 'shard')}"
        figures = {
            "rows": f"{self.n_rows:,}",
            "features": f"{self.n_features:,}",
            "entries": f"{self.n_entries:,}, {self.value_dtype}",
            "labels": escaped(labels),
            "size": f"{size}, {counted(self.n_chunks, 'chunk')}",
            "scaling": self.scaling.options(),
        }
        lines = [f"{name}: {text}" for name, text in figures.items()]
        return "\n  ".join([f"<streamcd.Dataset {escaped(str(self.path))}", *lines]) + ">"

    def open_columns(self) -> Columns:
        """Open the column layout; raises ``DatasetError`` if there is none, or it is damaged."""
        return open_columns(self)

    def read_features(
        self, columns: Sequence[str] = (), *, start: int = 0
    ) -> Generator[dict[str, np.ndarray], None, None]:
        """Read columns of ``features.parquet``, statistics of the features that occur, ascending.

        By default all numeric columns; block by block, beginning with the one in which the feature `start` is.
        """
        columns = columns or [name for name in FEATURES.names if name != "name"]
        return read_groups(self.file("features.parquet"), columns, first=("feature", start))

    @cached_property
    def feature_rank(self) -> np.ndarray:
        """Places of the features, and of the bias, in a training's arrays; see `feature_order`."""
        return make_rank(self._entry_counts())

    def _entry_counts(self) -> np.ndarray:
        """Read the number of entries of every feature, uint16; larger ones are `MOST_COUNTED`."""
        counts = np.zeros(self.n_features, np.uint16)
        with reading(self.file("features.parquet")):  # a feature beyond the width is damage too
            for piece in self.read_features(("feature", "n_entries")):
                counts[piece["feature"]] = np.minimum(piece["n_entries"], MOST_COUNTED)
        return counts

    @cached_property
    def centre(self) -> Centre | None:
        """Shifts of features and targets in a training whose bias is not penalised; None where there are none."""
        shape = self.n_rows, self.n_features
        figures = self.read_features(STATISTICS)
        return find_centre(figures, shape, self.value_dtype, self.targets, self.mean_square)

    def read_scaling(self) -> Scaling:
        """Read the transformation of the source's values with its divisors: 8 bytes per feature."""
        scaling = self.scaling
        if scaling.scale == "none":
            return scaling
        scales = np.ones(self.n_features)
        path = self.file("scaling.parquet")
        with reading(path):  # a feature beyond the width is damage too
            for block in read_groups(path):
                scales[block["feature"]] = block["scale"]
        return replace(scaling, scales=scales)

    def read_deviations(self) -> np.ndarray:
        """Compute the standard deviations of the features' values as they are stored, over all rows: 8 bytes per feature.

        Where mean square and mean² are so large that their difference is rounding, it is taken as h / √3, that of values
        spread evenly, with h half the distance of the feature's ends.
        """
        deviations = np.zeros(self.n_features)
        with reading(self.file("features.parquet")), np.errstate(all="ignore"):
            for piece in ahead(self.read_features(("feature", "mean", "mean_square")), 1):
                variance = piece["mean_square"] - piece["mean"] ** 2
                exact = variance > 1e-10 * piece["mean_square"]  # to 1 %
                deviations[piece["feature"]] = np.sqrt(np.where(exact, variance, np.nan))
            if np.isnan(deviations).any():
                for piece in self.read_features(("feature", "min", "max")):
                    half = piece["max"] / 2 - piece["min"] / 2
                    known = deviations[piece["feature"]]
                    deviations[piece["feature"]] = np.where(np.isnan(known), half / np.sqrt(3), known)
        return deviations

    def use_folds(self, folds: np.ndarray | None) -> None:
        """Assign rows to the folds of a cross-validation: uint8, in the order of the source; None for those by a hash."""
        self._folds = folds

    def folds_of(self, source: np.ndarray, seed: int, n_folds: int) -> np.ndarray:
        """Return the folds of rows of the source, uint8: as assigned, else by a hash of them and the seed."""
        if self._folds is not None:
            return self._folds[source.astype(np.int64, copy=False)]
        return assign_folds(source, seed, n_folds)

    def read_kept(self, name: str) -> Iterator[Any]:
        """Read a kept column, in the order of the source, as arrays of Arrow's with the type that it had.

        Raises ``UsageError`` if there is no such column.
        """
        if name not in self.kept:
            known = f"it has {', '.join(self.kept)}" if self.kept else "it has none"
            raise UsageError(
                f"{self.path}: expected a column {name!r} kept beside the rows, {known}; convert it with --id or --fold"
            )
        return (batch.column(0) for batch in kept_batches(self.file(KEPT_FILE), [name]))

    def info(self) -> dict[str, Any]:
        """Summarise the dataset in a dict, without reading the data."""
        alike = "n_rows n_features n_entries n_shards n_chunks targets index_base made_from weighted seed fingerprint"
        stored = "compression row_norms data_digest table"
        return {
            **{name: getattr(self, name) for name in alike.split()},
            **{name: self.manifest.get(name) for name in stored.split()},
            "classes": self.class_labels(),
            "class_counts": None if self.class_counts is None else self.class_counts.tolist(),
            "density": self.n_entries / max(self.n_rows * self.n_features, 1),
            "bytes": self.bytes_on_disk(),
            "bytes_decoded": self.n_entries * self.entry_bytes,
            "index_dtype": self.index_dtype.name,
            "value_dtype": self.value_dtype.name,
            "id": self.id_column or None,
            "fold": self.fold_column or None,
            "scale": self.scaling.scale,
            "normalize": self.scaling.normalize,
        }

    def verify(
        self, listener: Listener | None = None, *, workers: int = 1, memory: int | str | None = None
    ) -> list[str]:
        """Check every checksum and invariant, including those of a column layout if there is one.

        Parameters
        ----------
        listener : Listener, optional
        workers : int
            Processes that share the work.
        memory : int or str, optional
            Bound on the process's resident memory, or on the sum of all of them.

        Returns
        -------
        list of str
            Problems found, one line each, which names the file; empty if there are none.

        Raises
        ------
        UsageError
            If `memory` is too small.
        """
        from .verify import verify  # here, because it imports numba

        return verify(self, listener, workers=workers, memory=memory)


def _describe_absence(path: Location) -> str:
    if other := describe_other_kind(path, "a dataset"):
        return other
    state = "is not a dataset (no manifest.json in it)" if path.exists() else "does not exist"
    source, made = (path, "DATASET") if isinstance(path, Path) and path.is_file() else ("SRC", path)
    return f"{path} {state}; 'streamcd convert {source} {made}' makes one"


@with_known_keywords
def open_dataset(
    path: str | os.PathLike[str] | Dataset,
    *,
    check_files: bool = True,
    cache: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Open a dataset directory.

    Parameters
    ----------
    path : path
        A directory, or the URL of one: ``s3://``, ``gs://``, ``https://``; an open dataset is returned.
    check_files : bool
        Check that every file exists with its recorded size; no file is read.
    cache : path, optional
        A directory on this machine to which the files of a dataset at a URL are copied when they are first read.

    Returns
    -------
    Dataset

    Raises
    ------
    DatasetError
        If it is not a dataset, or a file is missing, truncated or damaged; the message names the file.

    Examples
    --------
    >>> streamcd.open("data").info()["n_rows"]
    8000
    """
    if not isinstance(path, str | os.PathLike | Dataset):
        frame = hasattr(path, "__arrow_c_stream__")
        example = "streamcd.convert(FRAME, PATH, label=COLUMN)" if frame else "streamcd.convert((X, y), PATH)"
        raise UsageError(
            f"expected a dataset or its path, found {type(path).__name__}; convert it first: {example}"
        )
    dataset = path if isinstance(path, Dataset) else Dataset.open(path, check_files=check_files)
    if cache is not None:
        if not is_url(dataset.path):
            raise UsageError(
                f"cache: it is for a dataset at a URL, found {dataset.path} on disk; leave --cache out"
            )
        dataset.use_cache(str(local_path(cache, "a cache").absolute()))
    return dataset


def class_labels(classes: list[float], label_kind: str, names: list[str] | None) -> list[Any]:
    """Return classes in the source's type: names, integers or decimal numbers."""
    return names or ([int(label) for label in classes] if label_kind == "integer" else classes)


def assign_folds(source: np.ndarray, seed: int, n_folds: int) -> np.ndarray:
    """Assign rows to folds by a hash of the seed and their rows in the source; uint8."""
    from ..kernels.primitives import mix  # with numba

    upper = mix.py_func(source.astype(np.uint64) ^ random_key(seed, n_folds)) >> np.uint64(32)
    # undo the mixer's last step: existing runs assigned their folds without it
    upper ^= upper >> np.uint64(31)
    return (upper * np.uint64(n_folds) >> np.uint64(32)).astype(np.uint8)

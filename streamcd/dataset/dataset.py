"""A dataset, open for reading: its rows, its features, its figures, and its verification."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..core.progress import Listener
from ..core.storage import Location
from .chunked_table import RowTable
from .parquet import read_groups, reading
from .scaling import Scaling


class Dataset(RowTable):
    """A dataset directory, open for reading; made by `open`. Not for use by several threads at a time.

    Attributes
    ----------
    path : Path or core.storage.Url
    manifest : dict
    n_rows, n_features, n_entries, n_chunks, n_shards : int
    index_dtype, value_dtype : dtype
    classes : ndarray of float64 or None
        Distinct labels, ascending; None where there are more than 65,536.
    class_counts : ndarray of int64 or None
    label_kind : {"integer", "decimal"}
    weighted : bool
        Whether rows carry weights other than 1.
    index_base : int
        What the input's indices started at; features here start at 0.
    class_names : list of str or None
        Names of the classes, which are then numbered from 0; None where labels are numbers.
    fingerprint : str
    chunk_part, chunk_group : ndarray of int32, shape (n_chunks,)
        The part and the row group in it that hold a chunk.
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

    def __init__(
        self, path: Location, manifest: dict[str, Any], chunk_table: Mapping[str, np.ndarray]
    ) -> None:
        super().__init__(path, manifest, chunk_table)
        self.label_kind: str = manifest["label_kind"]
        self.weighted: bool = manifest["weighted"]
        self.index_base: int = manifest["index_base"]
        self.seed: int = manifest["seed"]
        self.class_names: list[str] | None = manifest.get("class_names")

    def __len__(self) -> int:
        """Number of rows."""
        return self.n_rows

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return self.n_rows, self.n_features

    def head(self, n_rows: int = 5) -> Any:
        """Read the first rows as they are stored, which is shuffled unless converted without.

        Returns
        -------
        pyarrow.Table
            Columns ``source`` (0-based row of the source), ``label``, ``weight``, and lists ``feature`` (0-based) and
            ``value``.
        """
        from .exchange import head  # here and below: only where it is asked for

        return head(self, n_rows)

    def to_arrow(self, memory: int | str | None = None) -> Any:
        """Read all rows, in the order of the source, as a ``pyarrow.Table`` with the columns of `head`.

        `memory` and errors as in `to_scipy`.
        """
        from .exchange import to_arrow

        return to_arrow(self, memory)

    def to_scipy(self, memory: int | str | None = None) -> tuple[Any, np.ndarray]:
        """Read all rows, in the order of the source.

        Parameters
        ----------
        memory : int or str, optional
            Bound on the process's memory; what is free on this machine by default.

        Returns
        -------
        X : scipy.sparse.csr_array, shape (rows, features)
        y : ndarray, shape (rows,)
            Labels.

        Raises
        ------
        UsageError
            Where they do not fit.
        """
        from .exchange import to_scipy

        return to_scipy(self, memory)

    def __repr__(self) -> str:
        from .exchange import summary

        figures = [f"{name}: {text}" for name, text in summary(self).items()]
        return "\n  ".join([f"<streamcd.Dataset {self.path}", *figures]) + ">"

    def _repr_html_(self) -> str:
        from .exchange import as_html

        return as_html(self)

    def open_columns(self) -> Any:
        """Open the column layout ; raises ``DatasetError`` where there is none, or it is damaged."""
        from .column_layout import open_columns  # only where it is read

        return open_columns(self)

    def read_features(
        self, columns: Sequence[str] | None = None, *, first_group: int = 0
    ) -> Iterator[dict[str, np.ndarray]]:
        """Read statistics of the features that occur, ascending, block by block from `first_group` on.

        They are columns of ``features.parquet``, all by default.
        """
        return read_groups(self.path / "features.parquet", columns, first_group=first_group)

    @property
    def scaling(self) -> Scaling:
        """Transformation of the source's values, without the divisors (`read_scaling` reads them)."""
        return Scaling.from_json(self.manifest.get("scaling"))

    def read_scaling(self) -> Scaling:
        """Read the transformation of the source's values, with the divisors: 8 bytes a feature."""
        scaling = self.scaling
        if scaling.scale == "none":
            return scaling
        scales = np.ones(self.n_features)
        with reading(self.path / "scaling.parquet"):  # a feature beyond the width is damage too
            for block in read_groups(self.path / "scaling.parquet"):
                scales[block["feature"]] = block["scale"]
        return replace(scaling, scales=scales)

    def info(self) -> dict[str, Any]:
        """Summarise the dataset without reading the data; the contract's keys and some more."""
        cells = self.n_rows * self.n_features
        return {
            "n_rows": self.n_rows,
            "n_features": self.n_features,
            "n_entries": self.n_entries,
            "classes": self._listed_classes(),
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
            "data_digest": self.manifest.get("data_digest"),
        }

    def _listed_classes(self) -> list[Any] | None:
        """The classes as in the source: names, integers or decimal numbers."""
        if self.classes is None or self.class_names is None:
            return None if self.classes is None else labels_as_numbers(self.classes, self.label_kind)
        return [self.class_names[int(number)] for number in self.classes]

    def verify(
        self, listener: Listener | None = None, *, workers: int = 1, memory: int | str | None = None
    ) -> list[str]:
        """Check every checksum and invariant, those of the column layout included where there is one.

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
            Problems, a line each, naming the file; empty where all is well.

        Raises
        ------
        UsageError
            Where `memory` is too small.
        """
        from .verify import verify  # numba: only where it is needed

        return verify(self, listener, workers=workers, memory=memory)


def labels_as_numbers(labels: np.ndarray, label_kind: str) -> list[int] | list[float]:
    """Labels as the source wrote them: integers without a point."""
    return [int(label) for label in labels] if label_kind == "integer" else [float(label) for label in labels]


def open_dataset(path: str | os.PathLike[str], *, check_files: bool = True) -> Dataset:
    """Open a dataset directory.

    Parameters
    ----------
    path : path
        A directory, or the URL of one: ``s3://``, ``gs://``, ``https://``.
    check_files : bool
        Check that every file is there with its recorded size (one look at each file's entry, no reading).

    Raises
    ------
    DatasetError
        Where it is not a dataset, or a file is missing, truncated or damaged; names the file.

    Examples
    --------
    >>> streamcd.open("data").info()["n_rows"]
    8000
    """
    return Dataset.open(path, check_files=check_files)

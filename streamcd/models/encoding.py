"""The encoding of a table: how its columns become features, made by a conversion and applied to tables to be predicted.

A column of numbers is a feature; one of strings has a feature for every category, ascending by their bytes; with the missing
values told apart, each column has one more. All hashed columns share 2^bits buckets, which come after; a pair of lists
(indices, values) comes last, its features numbered by its indices.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..core.errors import DataError
from ..core.metadata import Count, Structure

if TYPE_CHECKING:
    from ..dataset.arrow_columns import Strings

CATEGORIES_FILE = "categories.parquet"
"""Name of the file of the categories, in a dataset and in a model."""

MISSING = ("error", "zero", "indicator")


class Column(Structure):
    """A column that becomes features; a sparse one has its numbers in another, `values`."""

    name: str
    kind: Literal["number", "category", "hashed", "sparse"]
    values: str = ""
    n_categories: Count = 0


class EncodingRecord(Structure):
    """An encoding in a manifest or in a model's description, but for the categories."""

    columns: list[Column]
    missing: Literal["error", "zero", "indicator"]
    bits: Count
    label: str
    weight: str


@dataclass(frozen=True)
class Encoding:
    """How the columns of a table become features.

    Attributes
    ----------
    columns : tuple of Column
        In the order of their features.
    missing : {"error", "zero", "indicator"}
        A missing value is refused, has no entry, or has an entry 1 of a feature of its own.
    bits : int
        Hashed strings have 2^bits buckets; 0 where there are none.
    label, weight : str
        Columns of labels and of weights of rows; empty for none.
    categories : Strings or None
        Of all columns, in the order of their features; None until they are known.
    """

    columns: tuple[Column, ...]
    missing: str = "error"
    bits: int = 0
    label: str = ""
    weight: str = ""
    categories: Strings | None = field(default=None, compare=False)

    @classmethod
    def from_record(cls, record: EncodingRecord, categories: Strings | None) -> Encoding:
        """Make an encoding of what is stored of it."""
        return cls(
            tuple(record.columns), record.missing, record.bits, record.label, record.weight, categories
        )

    def record(self) -> dict[str, Any]:
        """What is stored of it in JSON."""
        columns = [
            {name: getattr(column, name) for name in Column.__struct_fields__} for column in self.columns
        ]
        return {
            "columns": columns,
            "missing": self.missing,
            "bits": self.bits,
            "label": self.label,
            "weight": self.weight,
        }

    @property
    def names(self) -> list[str]:
        """Columns of the table that become features."""
        return [name for column in self.columns for name in (column.name, column.values) if name]

    @property
    def sparse(self) -> Column | None:
        """The pair of lists, if there is one."""
        return next((column for column in self.columns if column.kind == "sparse"), None)

    @property
    def has_categories(self) -> bool:
        """True where there are columns of categories."""
        return any(column.kind == "category" for column in self.columns)

    def widths(self) -> list[int]:
        """Features of every column, those of missing values included; of hashed and sparse columns none of their own."""
        own = {"number": 1, "category": 0, "hashed": 0, "sparse": 0}
        indicated = int(self.missing == "indicator")
        return [
            own[column.kind]
            + column.n_categories
            + (indicated if column.kind in ("number", "category") else 0)
            for column in self.columns
        ]

    def first_features(self) -> np.ndarray:
        """The first feature of every column, and where those of all of them end; shape (columns + 1,)."""
        return np.cumsum([0, *self.widths()])

    @property
    def n_buckets(self) -> int:
        """Buckets of hashed strings."""
        return 1 << self.bits if self.bits else 0

    @property
    def sparse_start(self) -> int:
        """The feature of index 0 of a sparse column; the number of features where there is none."""
        return int(self.first_features()[-1]) + self.n_buckets

    def without_counts(self) -> Encoding:
        """The encoding before categories are known."""
        columns = tuple(Column(column.name, column.kind, column.values) for column in self.columns)
        return replace(self, columns=columns, categories=None)

    def feature_names(self, features: np.ndarray) -> Iterator[str]:
        """Name features: ``column``, ``column=category``, ``column is missing``, ``hash n``, ``column[index]``."""
        starts, n_before = self.first_features(), self._categories_before()
        numbers = np.searchsorted(starts, features, side="right") - 1
        for feature, number in zip(features.tolist(), numbers.tolist(), strict=True):
            if number < len(self.columns):
                yield self._name(number, feature - int(starts[number]), n_before[number])
            elif feature < self.sparse_start:
                yield f"hash {feature - int(starts[-1])}"
            else:
                yield f"{self.sparse.name if self.sparse else ''}[{feature - self.sparse_start}]"

    def _name(self, number: int, place: int, n_before: int) -> str:
        """Name of a feature of a column, by its place among them."""
        column = self.columns[number]
        if column.kind == "number" and not place:
            return column.name
        if column.kind == "number" or place == column.n_categories:
            return f"{column.name} is missing"
        assert self.categories is not None
        return f"{column.name}={self.categories.text(n_before + place)}"

    def _categories_before(self) -> list[int]:
        return np.cumsum([0, *(column.n_categories for column in self.columns)]).tolist()

    def category_features(self) -> np.ndarray:
        """The feature of every category, in their order."""
        starts, n_before = self.first_features(), self._categories_before()
        features = np.arange(n_before[-1])
        for number, column in enumerate(self.columns):
            if column.n_categories:
                features[n_before[number] : n_before[number + 1]] += starts[number] - n_before[number]
        return features

    def category_columns(self) -> np.ndarray:
        """The number of every category's column."""
        counts = [column.n_categories for column in self.columns]
        return np.repeat(np.arange(len(counts), dtype=np.int32), counts)

    @property
    def nbytes(self) -> int:
        """Memory of the categories, and of the table by which they are looked up."""
        return 0 if self.categories is None else 2 * self.categories.nbytes + 44 * self.categories.size

    def save(self, path: Path) -> None:
        """Write the categories."""
        from ..dataset.arrow_columns import write_strings  # pyarrow: not for a bare import

        assert self.categories is not None
        write_strings(path, "category", self.categories, column=self.category_columns())


def read_encoding(directory: Path, record: EncodingRecord | Mapping[str, Any] | None) -> Encoding | None:
    """Read the encoding in the directory of a dataset or a model; None where its data came from no table."""
    from ..dataset.arrow_columns import no_strings, read_strings

    if record is None:
        return None
    if isinstance(record, Mapping):
        columns = [Column(**column) for column in record["columns"]]
        record = EncodingRecord(**{**record, "columns": columns})
    encoding = Encoding.from_record(record, no_strings())
    if encoding.has_categories:
        encoding = replace(encoding, categories=read_strings(directory / CATEGORIES_FILE, "category"))
    return encoding


def check_columns(encoding: Encoding, names: Container[str], needs_label: bool, name: str) -> None:
    """Refuse a table that lacks a column of the encoding."""
    needed = [*encoding.names, *([encoding.label, encoding.weight] if needs_label else [])]
    missing = [column for column in needed if column and column not in names]
    if missing:
        raise DataError(
            f"{name}: expected the columns of the data trained on, found no {', '.join(map(repr, missing[:5]))}"
            f"{', …' if len(missing) > 5 else ''}; add what is missing"
        )


def first_feature_names(dataset: Any, most: int) -> list[str] | None:
    """The names of a dataset's first features; None where its data came from no table."""
    encoding = read_encoding(dataset.path, dataset.manifest.get("encoding"))
    if encoding is None:
        return None
    return list(encoding.feature_names(np.arange(min(most, dataset.n_features))))

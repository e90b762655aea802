"""Encoding of a table: the mapping of its columns to features, made by a conversion and applied to tables at prediction.

A column of numbers is one feature; a column of strings has a feature per category, sorted by bytes; with indicators of
missing values, each of these columns where values were missing has one feature more. Then come the 2^bits buckets that all
hashed columns share, and the features of a pair of lists (indices, values), numbered by the indices.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ..core.errors import DataError, counted, first_of, shortened
from ..core.files import Count, Structure, as_structure
from ..core.memory_budget import forget
from ..core.storage import Location

if TYPE_CHECKING:
    from ..dataset.arrow_columns import Strings

_IS_MISSING = " is missing"
"""End of the name of a feature of missing values."""

CATEGORIES_FILE = "categories.parquet"
"""File of the categories, in a dataset and in a model."""


class Column(Structure):
    """A column that becomes features; a sparse column has its indices in `name` and its numbers in the column `values`.

    `form` tells how its numbers are made from the table's: of a "boolean", or of a time, in "seconds" since `origin`, itself
    in seconds since 1970.
    """

    name: str
    kind: Literal["number", "category", "hashed", "sparse"]
    values: str = ""
    n_categories: Count = 0
    form: Literal["", "boolean", "seconds"] = ""
    origin: int = 0
    indicated: bool = False  # a missing value has an entry 1 in a feature of its own

    @property
    def n_features(self) -> int:
        """Number of features of its own; none of hashed and sparse columns."""
        return (self.kind == "number") + self.n_categories + self.indicated


class EncodingRecord(Structure):
    """An encoding as stored in a manifest or a model's description, without the categories."""

    columns: list[Column]
    missing: Literal["error", "zero", "indicator"]
    bits: Count
    label: str
    weight: str
    id: str = ""
    fold: str = ""


@dataclass(frozen=True)
class Encoding:
    """Mapping of the columns of a table to features."""

    columns: tuple[Column, ...]  # in the order of their features
    missing: str = (
        "error"  # or "zero": no entry; "indicator": an entry 1 in a feature of its own, where any was missing
    )
    bits: int = 0  # hashed strings share 2^bits buckets; 0 if there are none
    label: str = ""  # columns of the rows' labels and weights; empty for none
    weight: str = ""
    id: str = ""  # column that identifies rows, and the one of their folds; empty for none
    fold: str = ""
    categories: Strings | None = field(default=None, compare=False)
    """Of all columns, in the order of their features; None until they are known, looked up in a file if not held."""

    def record(self) -> dict[str, Any]:
        """Return its stored form, for JSON."""
        own = {name: getattr(self, name) for name in EncodingRecord.__struct_fields__}
        return {**own, "columns": [column.record() for column in self.columns]}

    @property
    def kept(self) -> list[str]:
        """Columns that are kept beside the rows."""
        return [name for name in (self.id, self.fold) if name]

    @property
    def names(self) -> list[str]:
        """Columns of the table that become features."""
        names = (name for column in self.columns for name in (column.name, column.values) if name)
        return list(dict.fromkeys(names))

    @property
    def string_columns(self) -> list[str]:
        """Columns of strings: categories, hashed."""
        return [column.name for column in self.columns if column.kind in ("category", "hashed")]

    @property
    def sparse(self) -> Column | None:
        return next((column for column in self.columns if column.kind == "sparse"), None)

    @property
    def has_categories(self) -> bool:
        """Check if there are strings to keep."""
        return any(column.kind == "category" for column in self.columns)

    def first_features(self) -> np.ndarray:
        """Return the first feature of every column; shape (columns,)."""
        return np.cumsum([0, *(column.n_features for column in self.columns)])[:-1]

    @property
    def bucket_start(self) -> int:
        """Feature of the first bucket of hashed strings: the first one behind those of columns."""
        return sum(column.n_features for column in self.columns)

    def indicator_features(self) -> dict[int, int]:
        """Return the features of missing values, by the numbers of their columns."""
        pairs = zip(self.columns, self.first_features().tolist(), strict=True)
        return {
            number: start + column.n_features - 1
            for number, (column, start) in enumerate(pairs)
            if column.indicated
        }

    def unindicated(self, n_missing: np.ndarray) -> list[int]:
        """Return the numbers of the columns with missing values that have no feature for them, though others have."""
        own = np.array([column.indicated for column in self.columns], np.bool_)
        return np.flatnonzero(self._may_be_indicated() & (n_missing > 0) & ~own).tolist()

    @property
    def n_static(self) -> int:
        """Number of the codes of numbers and indicators, while categories are not known."""
        return self.without_counts().bucket_start

    @property
    def n_buckets(self) -> int:
        """Number of buckets of hashed strings."""
        return 1 << self.bits if self.bits else 0

    @property
    def sparse_start(self) -> int:
        """Feature of index 0 of the sparse column; the number of features if there is none."""
        return self.bucket_start + self.n_buckets

    def without_counts(self) -> Encoding:
        """Return the encoding as it was before categories, and where values are missing, were known."""
        return self.with_counts(np.zeros(len(self.columns), np.int64), self._may_be_indicated(), None)

    def _may_be_indicated(self) -> np.ndarray:
        own = self.missing == "indicator"
        return np.array([own and column.kind in ("number", "category") for column in self.columns], np.bool_)

    def with_counts(
        self, n_categories: Sequence[int] | np.ndarray, n_missing: np.ndarray, categories: Strings | None
    ) -> Encoding:
        """Return the encoding with the categories, and the number of missing values, of every column."""
        indicated = self._may_be_indicated() & (n_missing > 0)
        columns = [
            column.but(n_categories=int(count), indicated=bool(missed))
            for column, count, missed in zip(self.columns, n_categories, indicated, strict=True)
        ]
        return replace(self, columns=tuple(columns), categories=categories)

    @property
    def numbers_late(self) -> bool:
        """Check if features are known only after all rows were read, by categories and indicators that occurred."""
        return self.has_categories or bool(self._may_be_indicated().any())

    @cached_property
    def _stems(self) -> list[str]:
        """Beginnings of the names of features, by the column that they are made from; the last is that of buckets.

        It is that name, with a number after it where another column's name begins as theirs would.
        """
        names = sorted(column.name for column in self.columns)
        stems = list[str]()
        ends = {"number": [], "category": ["="], "hashed": [], "sparse": ["["]}
        derived = [(one.name, [*ends[one.kind], *[_IS_MISSING] * one.indicated]) for one in self.columns]
        for name, suffixes in [*derived, ("hash", [" "] if self.bits else [])]:
            stem = name
            number = 0
            # of sorted names those with a beginning stand where it would
            while (number and stem in names) or any(
                next(iter(names[bisect_left(names, begin) :]), "").startswith(begin)
                for begin in [stem + suffix for suffix in suffixes]
            ):
                number += 1
                stem = f"{name}.{number}"
            stems.append(stem)
        return stems

    def feature_names(self, features: np.ndarray) -> Iterator[str]:
        """Name features: as ``column``, ``column=a``, ``column is missing``, ``hash n``, ``column[i]``."""
        starts = self.first_features()
        n_before = self.categories_before()
        numbers = np.searchsorted(starts, features, side="right") - 1
        for feature, number in zip(features.tolist(), numbers.tolist(), strict=True):
            if feature < int(starts[number]) + self.columns[number].n_features:
                yield self._name(number, feature - int(starts[number]), n_before[number])
            elif feature < self.sparse_start:
                yield f"{self._stems[-1]} {feature - self.bucket_start}"
            else:
                # the sparse column stands last
                yield f"{self._stems[-2]}[{feature - self.sparse_start}]"

    def name_column(self, features: np.ndarray) -> Any:
        """Name ascending features in an array of Arrow's, those of each column's strings at once."""
        from ..dataset.arrow_columns import arrow_strings, joined_arrays, prefixed_strings

        starts = self.first_features()
        n_before = self.categories_before()
        done = 0
        parts = []
        for number, column in enumerate(self.columns):
            if not column.n_categories:
                continue
            assert self.categories is not None
            start = starts[number]
            first, stop = np.searchsorted(features, [start, start + column.n_categories]).tolist()
            parts.append(arrow_strings(self.feature_names(features[done:first])))
            places = features[first:stop] - start + n_before[number]
            parts.append(prefixed_strings(f"{self._stems[number]}=", self.categories, places))
            for mapped in self.categories:
                forget(mapped)
            done = stop
        return joined_arrays([*parts, arrow_strings(self.feature_names(features[done:]))])

    def _name(self, number: int, offset: int, n_before: int) -> str:
        """Name the feature of a column at `offset` from the column's first."""
        column = self.columns[number]
        if column.kind == "number" and not offset:
            return column.name
        if offset == column.n_features - column.indicated:
            return self._stems[number] + _IS_MISSING
        assert self.categories is not None
        return f"{self._stems[number]}={self.categories.text(n_before + offset)}"

    def categories_before(self) -> list[int]:
        """Return the number of the categories before those of each column, and of all."""
        return np.cumsum([0, *(column.n_categories for column in self.columns)]).tolist()

    def categories_of_columns(self) -> Iterator[tuple[int, int, Strings]]:
        """Yield the number of each column of categories, the first one's feature, and the categories."""
        places = zip(self.columns, self.first_features().tolist(), self.categories_before(), strict=False)
        for number, (column, feature, before) in enumerate(places):
            if column.kind == "category" and self.categories is not None:
                yield number, feature, self.categories.slice(before, before + column.n_categories)

    @property
    def nbytes(self) -> int:
        """Bytes of the categories and of their hash table."""
        return 0 if self.categories is None else 3 * self.categories.nbytes + 52 * self.categories.size

    def save(self, path: Path) -> None:
        """Write the categories."""
        from ..dataset.kept_columns import write_categories  # pyarrow: not for a bare import

        assert self.categories is not None
        write_categories(path, self.categories, np.array(self.categories_before()[1:]))


def read_encoding(file: Location, record: EncodingRecord | None, *, held: bool = True) -> Encoding | None:
    """Read an encoding from its record and the file of its categories; None if there is none: no table was encoded.

    Where categories are not `held`, those that are named are looked up in the file.
    """
    if record is None:
        return None
    from ..dataset.arrow_columns import no_strings
    from ..dataset.kept_columns import StoredStrings

    fields: dict[str, Any] = {name: getattr(record, name) for name in record.__struct_fields__}
    encoding = Encoding(**{**fields, "columns": tuple(record.columns)}, categories=no_strings())
    if not encoding.has_categories:
        return encoding
    stored: Any = StoredStrings(file)
    if (counted := encoding.categories_before()[-1]) != stored.size:
        raise DataError(
            f"{file}: expected {counted:,} categories, found {stored.size:,}; convert the data again"
        )
    return replace(encoding, categories=stored.read() if held else stored)


def encoding_of(dataset: Any, *, held: bool = True) -> Encoding | None:
    """Read the encoding of a dataset (see `read_encoding`); None if its data did not come from a table."""
    record = dataset.manifest.get("encoding")
    place = dataset.path / "manifest.json"
    if record is not None:
        record = as_structure(record, EncodingRecord, f"{place}: the encoding of the table")
    return read_encoding(dataset.file(CATEGORIES_FILE), record, held=held)


def check_columns(encoding: Encoding, names: Container[str], needs_label: bool, name: str) -> None:
    """Refuse a table that lacks a column of the encoding."""
    needed = [*encoding.names, *([encoding.label, encoding.weight] if needs_label else [])]
    missing = [column for column in needed if column and column not in names]
    if missing:
        raise DataError(
            f"{name}: expected the columns of the data trained on, found no {first_of([*map(repr, missing)], 5)}; "
            "add what is missing"
        )


def first_feature_names(dataset: Any) -> list[str] | None:
    """Return the names of a dataset's first ten features; None if its data did not come from a table."""
    encoding = encoding_of(dataset, held=False)
    if encoding is None:
        return None
    return list(encoding.feature_names(np.arange(min(10, dataset.n_features))))


# ---------------------------------------------------------------------------------------------------------------------
# Values that an encoding has no feature for, counted by column

_LISTED = 3  # columns
_EXAMPLE = 40  # characters


class Unknown(NamedTuple):
    """Values of a column."""

    n_values: int
    example: str  # the first of them; empty where values are missing


def add_unknown(total: dict[Any, Unknown], more: Mapping[Any, Unknown]) -> None:
    """Take in, by column, the values of rows that come later."""
    for name, (n_values, example) in more.items():
        before = total.get(name, Unknown(0, example))
        total[name] = Unknown(before.n_values + n_values, before.example)


def count_unknown(of_columns: Mapping[str, Unknown]) -> int:
    """Return the number of values of all columns."""
    return sum(found.n_values for found in of_columns.values())


def listed(of_columns: Mapping[str, Unknown]) -> str:
    """List the columns with most values, the number of these, and an example of each."""
    most = sorted(of_columns.items(), key=lambda item: -item[1].n_values)
    texts = [f"{n_values:,} in {name}{_such_as(example)}" for name, (n_values, example) in most[:_LISTED]]
    if len(most) > _LISTED:
        texts.append(counted(len(most) - _LISTED, "more column"))
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _such_as(example: str) -> str:
    return f" (such as {shortened(example, _EXAMPLE)!r})" if example else ""


def unknown_values(
    unseen: Mapping[str, Unknown],
    unindicated: Mapping[str, Unknown],
    which: str = "the model has not seen in training",
) -> Iterator[str]:
    """Describe values of a table that those of training did not have: categories, and missing ones of complete columns."""
    if unseen:
        n_values = counted(count_unknown(unseen), "value")
        yield f"{n_values} ignored, of categories that {which}: {listed(unseen)}"
    if unindicated:
        n_values = counted(count_unknown(unindicated), "missing value")
        yield (
            f"{n_values} taken for zero, in columns that had none in the data trained on: {listed(unindicated)}"
        )

"""Encoding of a table: the mapping of its columns to features, made by a conversion and applied to tables at prediction.

A column of numbers is one feature; a column of strings has a feature per category, sorted by bytes; with indicators of
missing values, each of these columns where values were missing has one feature more. Then come the 2^bits buckets that all
hashed columns share, and the features of a pair of lists (indices, values), numbered by the indices.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ..core.errors import DataError, counted, first_of, shortened
from ..core.files import Count, Structure, as_structure
from ..core.memory_budget import forget
from ..core.storage import Location

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
    indicated: bool = False  # a missing value has an entry 1 in a feature of its own, the column's last

    @property
    def n_features(self) -> int:
        """Number of features of its own; none of hashed and sparse columns."""
        return (self.kind == "number") + self.n_categories + self.indicated


class Encoding(Structure, dict=True):
    """Mapping of the columns of a table to features, as it is stored in a manifest or a model's description."""

    columns: tuple[Column, ...]  # in the order of their features
    missing: str  # "error", "zero": no entry; "indicator": an entry 1 in a feature of its own, where any was missing
    bits: Count  # hashed strings share 2^bits buckets; 0 if there are none
    label: str  # columns of the rows' labels and weights; empty for none
    weight: str
    id: str  # column that identifies rows, and the one of their folds; empty for none
    fold: str
    categories: Any = None
    """`Strings` of all columns, in the order of their features; None until they are known, not part of its record."""

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
        """The pair of lists, which stands last."""
        return next((column for column in self.columns if column.kind == "sparse"), None)

    @property
    def has_categories(self) -> bool:
        """Check if there are strings to keep."""
        return any(column.kind == "category" for column in self.columns)

    # -- numbers of features

    @cached_property
    def starts(self) -> np.ndarray:
        """The first feature of every column, and of the buckets; shape (columns + 1,)."""
        return np.cumsum([0, *(column.n_features for column in self.columns)])

    @cached_property
    def category_starts(self) -> np.ndarray:
        """Number of the first category of every column, and of all categories; shape (columns + 1,)."""
        return np.cumsum([0, *(column.n_categories for column in self.columns)])

    @cached_property
    def indicators(self) -> np.ndarray:
        """The feature of missing values of every column, −1 for none; shape (columns,)."""
        return np.where([column.indicated for column in self.columns], self.starts[1:] - 1, -1)

    @property
    def may_indicate(self) -> np.ndarray:
        """The columns that have a feature of missing values where there are some; shape (columns,)."""
        kinds = ("number", "category") if self.missing == "indicator" else ()
        return np.array([column.kind in kinds for column in self.columns], np.bool_)

    @property
    def n_static(self) -> int:
        """Number of the codes of numbers and missing values while features are not known: two for each column."""
        return 2 * len(self.columns)

    @property
    def numbers_late(self) -> bool:
        """Check if features are known only after all rows were read, by categories and indicators that occurred."""
        return self.has_categories or bool(self.may_indicate.any())

    @property
    def bucket_start(self) -> int:
        """Feature of the first bucket of hashed strings: the first one behind those of columns."""
        return int(self.starts[-1])

    @property
    def n_buckets(self) -> int:
        """Number of buckets of hashed strings."""
        return 1 << self.bits if self.bits else 0

    @property
    def sparse_start(self) -> int:
        """Feature of index 0 of the sparse column; the number of features if there is none."""
        return self.bucket_start + self.n_buckets

    def with_counts(self, n_categories: Sequence[int], n_missing: np.ndarray, categories: Any) -> Encoding:
        """Return the encoding with the categories, and the number of missing values, of every column."""
        indicated = self.may_indicate & (n_missing > 0)
        columns = zip(self.columns, n_categories, indicated.tolist(), strict=True)
        return self.but(
            columns=tuple(column.but(n_categories=n, indicated=missed) for column, n, missed in columns),
            categories=categories,
        )

    # -- names of features

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

    def name_column(self, features: np.ndarray) -> Any:
        """Name ascending features in an array of Arrow's: ``column``, ``column=a``, ``column is missing``, ``hash n``,
        ``column[i]``.
        """
        from ..dataset.arrow_columns import arrow_strings, joined_arrays, prefixed_strings

        numbers = np.searchsorted(self.starts, features, side="right") - 1
        firsts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
        parts = []
        texts = list[str]()
        for first, stop in pairwise([*firsts, features.size]):
            number = int(numbers[first])
            offsets = features[first:stop] - self.starts[number]
            stem = self._stems[number]
            if number == len(self.columns):
                buckets, indices = np.split(offsets, np.searchsorted(offsets, [self.n_buckets]))
                texts += [f"{stem} {bucket}" for bucket in buckets]
                texts += [f"{self._stems[-2]}[{index}]" for index in indices - self.n_buckets]
                continue
            column = self.columns[number]
            if column.n_categories and offsets[0] < column.n_categories:
                chosen = self.category_starts[number] + offsets[offsets < column.n_categories]
                parts += [arrow_strings(texts), prefixed_strings(f"{stem}=", self.categories, chosen)]
                texts = []
                for mapped in self.categories:
                    forget(mapped)
            elif not offsets[0]:
                texts.append(column.name)
            if column.indicated and offsets[-1] == column.n_features - 1:
                texts.append(stem + _IS_MISSING)
        return joined_arrays([*parts, arrow_strings(texts)])

    def feature_names(self, features: np.ndarray) -> list[str]:
        """Name features, in any order."""
        ascending, order = np.unique(features, return_inverse=True)
        names = self.name_column(ascending).to_pylist()
        return [names[number] for number in order]

    # -- memory, files

    @property
    def nbytes(self) -> int:
        """Bytes of the categories and of their hash table."""
        return 0 if self.categories is None else 3 * self.categories.nbytes + 52 * self.categories.size

    def save(self, path: Path) -> None:
        """Write the categories."""
        from ..dataset.kept_columns import write_categories  # pyarrow: not for a bare import

        write_categories(path, self.categories, self.category_starts[1:])


def read_encoding(file: Location, encoding: Encoding, *, held: bool = True) -> Encoding:
    """Read the categories of an encoding from their file; where they are not `held`, they can be written alone."""
    from ..dataset.arrow_columns import no_strings
    from ..dataset.kept_columns import StoredStrings

    if not encoding.has_categories:
        return encoding.but(categories=no_strings())
    stored = StoredStrings(file)
    if (counted := encoding.category_starts[-1]) != stored.size:
        raise DataError(
            f"{file}: expected {counted:,} categories, found {stored.size:,}; convert the data again"
        )
    return encoding.but(categories=stored.read() if held else stored)


def encoding_of(dataset: Any, *, held: bool = True) -> Encoding | None:
    """Read the encoding of a dataset (see `read_encoding`); None if its data did not come from a table."""
    record = dataset.manifest.get("encoding")
    if record is None:
        return None
    name = f"{dataset.path / 'manifest.json'}: the encoding of the table"
    return read_encoding(dataset.file(CATEGORIES_FILE), as_structure(record, Encoding, name), held=held)


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
    n_features = min(10, dataset.n_features)
    categories = encoding.categories.slice(0, min(n_features, encoding.categories.size))
    return encoding.but(categories=categories).feature_names(np.arange(n_features))


# ---------------------------------------------------------------------------------------------------------------------
# Values that an encoding has no feature for, counted by column


class Unknown(NamedTuple):
    """Values of a column."""

    n_values: int
    example: str  # the first of them; empty where values are missing


def add_unknown(total: dict[Any, Unknown], more: Mapping[Any, Unknown]) -> None:
    """Take in, by column, the values of rows that come later."""
    for name, (n_values, example) in more.items():
        before = total.get(name, Unknown(0, example))
        total[name] = Unknown(before.n_values + n_values, before.example)


def unknown_values(
    unseen: Mapping[str, Unknown],
    unindicated: Mapping[str, Unknown],
    which: str = "the model has not seen in training",
) -> Iterator[str]:
    """Describe values of a table that those of training did not have: categories, and missing ones of complete columns."""
    kinds = (
        (unseen, "value", f"ignored, of categories that {which}"),
        (unindicated, "missing value", "taken for zero, in columns that had none in the data trained on"),
    )
    for of_columns, noun, what in kinds:
        if of_columns:
            most = sorted(of_columns.items(), key=lambda item: -item[1].n_values)
            texts = [
                f"{n_values:,} in {name}" + (f" (such as {shortened(example, 40)!r})" if example else "")
                for name, (n_values, example) in most
            ]
            n_values = sum(values.n_values for values in of_columns.values())
            yield f"{counted(n_values, noun)} {what}: {first_of(texts, 3)}"

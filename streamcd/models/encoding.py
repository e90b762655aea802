"""Encoding of a table: the mapping of its columns to features, made by a conversion and applied to tables at prediction.

A column of numbers is one feature; a column of strings has a feature per category, sorted by bytes; with indicators of
missing values, each of these columns where values were missing has one feature more. Then come columns of text, with a
feature per token, sorted by bytes, or 2^bits buckets each; the 2^bits buckets that all hashed columns share; and the
features of a pair of lists (indices, values), numbered by the indices. Categories and tokens of rows that were appended, and
indicators of columns whose first missing value is theirs, come behind all that, as further columns of the same name.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np

from ..core.errors import DataError
from ..core.mapped_arrays import forget
from ..core.metadata import Count, Structure, as_structure
from ..core.storage import Location

if TYPE_CHECKING:
    from ..dataset.arrow_columns import Strings

CATEGORIES_FILE = "categories.parquet"
"""File of the categories, in a dataset and in a model."""


Form = Literal["", "text", "boolean", "seconds", "numbers", "year", "month", "weekday", "hour"]

NONE_ADDED = 1 << 62
"""In place of the first feature of categories that were added, where none were."""

PARTS: tuple[Form, ...] = ("year", "month", "weekday", "hour")
"""Parts of a time that become categories."""


class Column(Structure):
    """A column that becomes features; a sparse column has its indices in `name` and its numbers in the column `values`.

    `form` tells how its numbers or strings are made from the table's: numbers of "text" (with the encoding's decimal mark),
    of a "boolean", or of a time, in "seconds" since `origin`, itself in seconds since 1970; categories of "numbers", or of a
    part of a time, one of `PARTS`. The categories of a column of text are its tokens, of one word or of several; where it is
    hashed, by `bits`, it has none, but an empty one for each bucket whose documents count (`counts_buckets`).
    """

    name: str
    kind: Literal["number", "category", "hashed", "text", "sparse"]
    values: str = ""
    n_categories: Count = 0
    form: Form = ""
    origin: int = 0
    order: Literal["", "dmy", "mdy"] = ""  # of day, month and year in a time's text; "" is that of ISO 8601
    indicated: bool = False  # a missing value has an entry 1 in a feature of its own
    ngrams: tuple[int, int] = (1, 1)  # least and most words of a token
    tf_idf: bool = False  # counts are weighed by inverse document frequencies, in parts of rows of unit norm
    min_count: int = 1  # documents in which a token occurs, or one of a bucket's
    bits: Count = 0
    n_documents: Count = 0  # by which tokens are weighed
    added: Count = 0  # first feature of categories, or tokens, that were added to a column's; 0 for its own

    @property
    def title(self) -> str:
        """Name of its features: the column's, and the part of a time."""
        return f"{self.name} {self.form}" if self.form in PARTS else self.name

    @property
    def mark(self) -> str:
        """Mark between its title and a category, or a token."""
        return ":" if self.kind == "text" else "="

    @property
    def n_features(self) -> int:
        """Number of features of its own; none of hashed and sparse columns."""
        buckets = 1 << self.bits if self.bits and not self.n_categories else 0
        return (self.kind == "number") + self.n_categories + self.indicated + buckets

    @property
    def has_categories(self) -> bool:
        """Tell if there are strings to keep: categories, tokens, or what counts for hashed ones."""
        return self.kind == "category" or (self.kind == "text" and (self.counts_buckets or not self.bits))

    @property
    def counts_buckets(self) -> bool:
        """Tell if it is hashed text for which the documents of every bucket are counted."""
        return bool(self.bits) and (self.tf_idf or self.min_count > 1)


class TokenRanges(NamedTuple):
    """Ranges of the features of tokens: those of each column of text, then those of tokens that were added.

    The place of a token is its number in their order; for hashed text, a bucket's.
    """

    starts: np.ndarray  # (ranges,) int64, the first feature of each
    places: np.ndarray  # (ranges + 1,) int64, the place of its first token, and the end of the last
    owners: np.ndarray  # (ranges,) int64, its column, by its number among those of text
    weighted: np.ndarray  # (columns of text,) bool, false where values are counts

    @property
    def has_added(self) -> bool:
        return self.owners.size > self.weighted.size

    def features_of(self, places: np.ndarray) -> np.ndarray:
        """Return the features of tokens by their places, -1 for those of none."""
        shifts = self.starts - self.places[:-1]
        if not self.has_added:
            return np.where(places < 0, -1, places + shifts[0])
        number = np.searchsorted(self.places, places, side="right") - 1
        return np.where(places < 0, -1, places + shifts[np.minimum(number, shifts.size - 1)])


class EncodingRecord(Structure):
    """An encoding as stored in a manifest or a model's description, without the categories."""

    columns: list[Column]
    missing: Literal["error", "zero", "indicator"]
    bits: Count
    label: str
    weight: str
    decimal: Literal[".", ","] = "."
    id: str = ""
    keep: tuple[str, ...] = ()


_Record: TypeAlias = EncodingRecord | Mapping[str, Any] | None


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
    decimal: str = "."  # mark of numbers in text
    id: str = ""  # column that identifies rows; empty for none
    keep: tuple[str, ...] = ()  # other columns that are kept beside the rows
    categories: Strings | None = field(default=None, compare=False)
    """Of all columns, in the order of their features; None until they are known."""
    documents: np.ndarray | None = field(default=None, compare=False)
    """Documents in which each token occurs, 0 of other categories; None where there are no tokens."""
    files: Sequence[Location] = field(default=(), compare=False)
    """Those of categories and documents that are not held: `categories` are looked up in them."""

    def record(self) -> dict[str, Any]:
        """Return its stored form, for JSON."""
        return {
            "columns": [{"values": "", "n_categories": 0} | column.record() for column in self.columns],
            "missing": self.missing,
            "bits": self.bits,
            "label": self.label,
            "weight": self.weight,
            **({} if self.decimal == "." else {"decimal": self.decimal}),
            **({"id": self.id} if self.id else {}),
            **({"keep": list(self.keep)} if self.keep else {}),
        }

    @property
    def kept(self) -> list[str]:
        """Columns that are kept beside the rows, the one that identifies them first."""
        return [name for name in (self.id, *self.keep) if name]

    @property
    def names(self) -> list[str]:
        """Columns of the table that become features."""
        names = (name for column in self.columns for name in (column.name, column.values) if name)
        return list(dict.fromkeys(names))

    @property
    def string_columns(self) -> list[str]:
        """Columns of strings: categories, hashed, text."""
        own = (column for column in self.columns if not column.added)
        return [column.name for column in own if column.kind in ("category", "hashed", "text")]

    @property
    def text(self) -> list[tuple[int, Column]]:
        """Columns of text, and their numbers, without those of tokens that were added."""
        own = (column for column in self.columns if not column.added)
        return [(number, column) for number, column in enumerate(own) if column.kind == "text"]

    @property
    def sparse(self) -> Column | None:
        return next((column for column in self.columns if column.kind == "sparse"), None)

    @property
    def has_categories(self) -> bool:
        """Check if there are strings to keep."""
        return any(column.has_categories for column in self.columns)

    def first_features(self) -> np.ndarray:
        """Return the first feature of every column; shape (columns,)."""
        ends = np.cumsum([column.n_features for column in self.columns])
        return np.array(
            [column.added or end - column.n_features for column, end in zip(self.columns, ends, strict=True)],
            np.int64,
        )

    @property
    def bucket_start(self) -> int:
        """Feature of the first bucket of hashed strings: the first one behind those of columns."""
        return sum(column.n_features for column in self.columns if not column.added)

    @property
    def least_added(self) -> int:
        """First feature of categories that were added; at its end there are no others. `NONE_ADDED` if there are none."""
        return min((column.added for column in self.columns if column.added), default=NONE_ADDED)

    @property
    def end(self) -> int:
        """End of the features of columns, and of categories that were added."""
        return max([self.bucket_start, *(column.added + column.n_features for column in self.columns)])

    def indicator_features(self) -> dict[int, int]:
        """Return the features of missing values, by the numbers of their columns."""
        starts, found = self.first_features().tolist(), {}
        of_name = {column.name: number for number, column in reversed(list(enumerate(self.columns)))}
        for column, start in zip(self.columns, starts, strict=True):
            if column.indicated:
                found[of_name[column.name]] = start + column.n_features - 1
        return found

    def unindicated(self, n_missing: np.ndarray) -> list[int]:
        """Return the numbers of the columns with missing values that have no feature for them, and may have one."""
        lacks = self._may_be_indicated() & (n_missing > 0)
        lacks[list(self.indicator_features())] = False
        return np.flatnonzero(lacks).tolist()

    def with_added(
        self,
        n_categories: Sequence[int],
        categories: Strings,
        documents: np.ndarray | None,
        n_missing: np.ndarray,
        first: int,
        n_documents: int,
    ) -> Encoding:
        """Return the encoding with more features from `first` on: so many categories of each column, then indicators.

        `categories` and `documents` are all of them, the new ones last; `n_documents` is for the weights of new tokens.
        """
        columns = list(self.columns)
        for column, count in zip(self.columns, n_categories, strict=True):
            if count:
                of_all = n_documents if column.tf_idf else 0
                columns.append(
                    column.but(n_categories=count, indicated=False, added=first, n_documents=of_all)
                )
                first += count
        for number in self.unindicated(n_missing):
            column = self.columns[number]
            form = column.form if column.kind == "category" else ""
            columns.append(Column(column.name, "category", form=form, indicated=True, added=first))
            first += 1
        return replace(self, columns=tuple(columns), categories=categories, documents=documents)

    def owners(self) -> list[int]:
        """Return the place of the column that each is of: its own, or, of categories that were added, that of the first."""
        first: dict[tuple[str, str], int] = {}
        keys = [(column.name, column.form) for column in self.columns]
        return [first.setdefault(key, number) for number, key in enumerate(keys)]

    def token_ranges(self) -> TokenRanges:
        """Return the ranges of the features of text, of which there is some."""
        numbers, owners = [number for number, _ in self.text], self.owners()
        chosen = [number for number, column in enumerate(self.columns) if column.kind == "text"]
        return TokenRanges(
            self.first_features()[chosen],
            np.cumsum([0, *(self.columns[number].n_features for number in chosen)]),
            np.array([numbers.index(owners[number]) for number in chosen]),
            np.array([column.tf_idf for _, column in self.text]),
        )

    @property
    def text_start(self) -> int:
        """The first feature of text, where there is text; before it are numbers, categories and indicators."""
        own = (column for column in self.columns if not column.added)
        return sum(column.n_features for column in own if column.kind in ("number", "category"))

    @property
    def n_static(self) -> int:
        """Number of the codes of numbers and indicators, while categories are not known."""
        return self.without_counts().text_start

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
        if self.missing != "indicator":
            return np.zeros(len(self.columns), np.bool_)
        before = ["", *(column.name for column in self.columns)]  # of a time's parts the first one alone
        return np.array(
            [
                column.kind in ("number", "category") and column.name != previous and not column.added
                for column, previous in zip(self.columns, before, strict=False)
            ],
            np.bool_,
        )

    def with_counts(
        self, n_categories: Sequence[int] | np.ndarray, n_missing: np.ndarray, categories: Strings | None
    ) -> Encoding:
        """Return the encoding with the categories, and the number of missing values, of every column; no documents."""
        indicated = self._may_be_indicated() & (n_missing > 0)
        columns = [
            column.but(n_categories=int(count), indicated=bool(missed))
            for column, count, missed in zip(self.columns, n_categories, indicated, strict=True)
        ]
        return replace(self, columns=tuple(columns), categories=categories)

    def with_documents(self, documents: np.ndarray, n_documents: int) -> Encoding:
        """Return the encoding with the number of documents of every token, and of all."""
        columns = [
            column.but(n_documents=n_documents) if column.tf_idf else column for column in self.columns
        ]
        return replace(self, columns=tuple(columns), documents=documents)

    @property
    def numbers_late(self) -> bool:
        """Check if features are known only after all rows were read, by categories and indicators that occurred."""
        return self.has_categories or bool(self.text) or bool(self._may_be_indicated().any())

    def feature_names(self, features: np.ndarray) -> Iterator[str]:
        """Name features: as ``column``, ``column=a``, ``column is missing``, ``column:token``, ``hash n``, ``column[i]``."""
        starts, n_before = self.first_features(), self.categories_before()
        numbers = np.searchsorted(starts, features, side="right") - 1
        for feature, number in zip(features.tolist(), numbers.tolist(), strict=True):
            if feature < int(starts[number]) + self.columns[number].n_features:
                yield self._name(number, feature - int(starts[number]), n_before[number])
            elif feature < self.sparse_start:
                yield f"hash {feature - self.bucket_start}"
            else:
                yield f"{self.sparse.name if self.sparse else ''}[{feature - self.sparse_start}]"

    def name_column(self, features: np.ndarray) -> Any:
        """Name ascending features in an array of Arrow's, those of each column's strings at once."""
        from ..dataset.arrow_columns import arrow_strings, joined_arrays, prefixed_strings

        starts, n_before, done, parts = self.first_features(), self.categories_before(), 0, []
        for number, column in enumerate(self.columns):
            if not column.n_categories or column.bits:
                continue
            assert self.categories is not None
            start = starts[number]
            first, stop = np.searchsorted(features, [start, start + column.n_categories]).tolist()
            parts.append(arrow_strings(self.feature_names(features[done:first])))
            places = features[first:stop] - start + n_before[number]
            parts.append(prefixed_strings(f"{column.title}{column.mark}", self.categories, places))
            for mapped in self.categories:
                forget(mapped)
            done = stop
        return joined_arrays([*parts, arrow_strings(self.feature_names(features[done:]))])

    def _name(self, number: int, offset: int, n_before: int) -> str:
        """Name the feature of a column at `offset` from the column's first."""
        column = self.columns[number]
        if column.kind == "number" and not offset:
            return column.name
        if column.bits:
            return f"{column.name}:hash {offset}"
        if column.kind == "number" or offset == column.n_categories:
            return f"{column.title} is missing"
        assert self.categories is not None
        return f"{column.title}{column.mark}{self.categories.text(n_before + offset)}"

    def categories_before(self) -> list[int]:
        """Return the number of the categories before those of each column, and of all."""
        return np.cumsum([0, *(column.n_categories for column in self.columns)]).tolist()

    def category_features(self) -> np.ndarray:
        """Return the feature of every category, without tokens, in order."""
        starts = self.first_features()
        own = [number for number, column in enumerate(self.columns) if column.kind == "category"]
        parts = [starts[number] + np.arange(self.columns[number].n_categories) for number in own]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def categories_of_columns(self) -> Iterator[tuple[int, Strings]]:
        """Yield the categories of `category_features`, with the number of the column that they are of."""
        pairs = zip(self.columns, self.owners(), self.categories_before(), strict=False)
        for column, owner, before in pairs:
            if column.kind == "category" and self.categories is not None:
                yield owner, self.categories.slice(before, before + column.n_categories)

    @property
    def nbytes(self) -> int:
        """Bytes of the categories and of their hash table."""
        of_tokens = 0 if self.documents is None else 24 * self.documents.size
        return (
            0
            if self.categories is None
            else 3 * self.categories.nbytes + 52 * self.categories.size + of_tokens
        )

    def save(self, path: Path, start: int = 0) -> None:
        """Write the categories, of columns from `start` on."""
        from ..dataset.string_files import join_files, write_strings  # pyarrow: not for a bare import

        if self.files:
            join_files(self.files, path)
            return
        assert self.categories is not None
        ends = np.cumsum([column.n_categories for column in self.columns])
        first = int(ends[start - 1]) if start else 0

        def columns_of(rows: slice) -> dict[str, np.ndarray]:
            places = np.arange(first + rows.start, first + rows.stop)
            columns = {"column": np.searchsorted(ends, places, side="right").astype(np.int32)}
            if self.documents is not None:
                columns["documents"] = self.documents[first + rows.start : first + rows.stop]
            return columns

        write_strings(path, "category", self.categories.slice(first, int(ends[-1])), columns_of)


def read_encoding(files: Sequence[Location], record: _Record) -> Encoding | None:
    """Read an encoding from its record and the files of its categories; None if there is none: no table was encoded."""
    encoding = _recorded(record, files)
    if encoding is None or not encoding.has_categories:
        return encoding
    from ..dataset.string_files import read_integers, read_strings

    texts = read_strings(files, "category")
    _check_count(encoding, files, texts.size)
    documents = read_integers(files, "documents") if encoding.text else None
    return replace(encoding, categories=texts, documents=documents)


def unread_encoding(files: Sequence[Location], record: _Record) -> Encoding | None:
    """Read an encoding without holding its categories: it looks up those that it names, and copies all when it is saved."""
    encoding = _recorded(record, files)
    if encoding is None or not encoding.has_categories:
        return encoding
    from ..dataset.string_files import StoredStrings, count_strings

    _check_count(encoding, files, count_strings(files))
    return replace(encoding, categories=cast(Any, StoredStrings(files, "category")), files=files)


def _check_count(encoding: Encoding, files: Sequence[Location], n_categories: int) -> None:
    counted = sum(column.n_categories for column in encoding.columns)
    if counted != n_categories:
        raise DataError(
            f"{files[-1] if files else 'the manifest'}: expected {counted:,} categories, found {n_categories:,}; convert "
            "the data again"
        )


def _recorded(record: _Record, files: Sequence[Location]) -> Encoding | None:
    """Make an encoding of its record, without the categories, which are in the files."""
    if record is None:
        return None
    from ..dataset.arrow_columns import no_strings

    if isinstance(record, Mapping):
        place = files[-1] if files else "the manifest"
        record = as_structure(record, EncodingRecord, f"{place}: the encoding of the table")
    return Encoding(
        tuple(record.columns),
        record.missing,
        record.bits,
        record.label,
        record.weight,
        record.decimal,
        record.id,
        record.keep,
        categories=no_strings(),
    )


def encoding_of(dataset: Any) -> Encoding | None:
    """Read the encoding of a dataset; None if its data did not come from a table."""
    return read_encoding(dataset.files(CATEGORIES_FILE), dataset.manifest.get("encoding"))


def check_columns(encoding: Encoding, names: Container[str], needs_label: bool, name: str) -> None:
    """Refuse a table that lacks a column of the encoding."""
    needed = [*encoding.names, *([encoding.label, encoding.weight] if needs_label else [])]
    missing = [column for column in needed if column and column not in names]
    if missing:
        raise DataError(
            f"{name}: expected the columns of the data trained on, found no {', '.join(map(repr, missing[:5]))}"
            f"{', …' if len(missing) > 5 else ''}; add what is missing"
        )


def unread_encoding_of(dataset: Any) -> Encoding | None:
    """Read the encoding of a dataset as `encoding_of`, without holding its categories (`unread_encoding`)."""
    return unread_encoding(dataset.files(CATEGORIES_FILE), dataset.manifest.get("encoding"))


def first_feature_names(dataset: Any) -> list[str] | None:
    """Return the names of a dataset's first ten features; None if its data did not come from a table."""
    encoding = unread_encoding_of(dataset)
    if encoding is None:
        return None
    return list(encoding.feature_names(np.arange(min(10, dataset.n_features))))

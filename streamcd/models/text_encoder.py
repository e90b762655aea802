"""Encoding of columns of text: the tokens of each document, counted, and weighed where that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from ..core.errors import DataError, UsageError
from ..core.mapped_arrays import forget, take_mapped
from ..dataset.arrow_columns import strings_of, type_name
from ..dataset.text_tokens import words_of
from ..kernels import tables
from ..kernels import text as kernels
from ..kernels.sparse_rows import CSR
from ..kernels.text import Words
from .encoding import Column, Encoding, TokenRanges
from .string_table import StringTable

_BLOCK_BYTES = 1 << 20
"""Text that is cut into words at a time."""

_AT_A_TIME = 1 << 16  # tokens that are weighed
_NO_END = (1 << 63) - 1


class Vocabulary(StringTable):
    """Tokens of the columns of text, and the number of documents of each; of hashed columns that of each bucket."""

    def __init__(self, memory_bytes: int | None = None) -> None:
        super().__init__(memory_bytes)
        self.block_bytes = min(_BLOCK_BYTES, max((memory_bytes or _BLOCK_BYTES << 7) >> 7, 1 << 14))
        self.documents = np.zeros(self._hashes.size, np.int64)
        self.documents_of_buckets: dict[int, np.ndarray] = {}  # by column
        self._places = np.empty(self._hashes.size, np.int32)

    def prepare(self, n_tokens: int, n_bytes: int, n_rows: int) -> None:
        """Prepare for up to so many tokens that are new, after the first `n_rows` rows; here there is nothing to do."""

    def count(self, number: int, column: Column, words: Words, adds: bool, out: CSR) -> None:
        """Count the tokens of documents as `kernels.text.count_ngrams`, into `out`; `number` is the column's."""
        documents = self.documents_of_buckets.get(number, np.empty(0, np.int64))
        if column.bits and self._places.size < 1 << column.bits:
            self._places = np.empty(1 << column.bits, np.int32)
        done = 0
        while True:
            if not column.bits:
                documents = self.documents if adds else documents
            table = (column.ngrams, column.bits, adds, self._arrays(), self._places, documents)
            done = kernels.count_ngrams(number, done, words, *table, np.empty(0, np.uint8), out)
            if done == words.indptr.size - 1:
                return
            self._grow(column.name)

    def _grow(self, name: str) -> None:
        super()._grow(name)
        if self.documents.size < self._hashes.size:
            self._places = np.empty(self._hashes.size, np.int32)
            documents, self.documents = self.documents, np.zeros(self._hashes.size, np.int64)
            self.documents[: documents.size] = documents

    def _refuse(self, name: str, n_strings: int, room: str) -> NoReturn:
        raise UsageError(
            f"column {name!r}: expected documents whose tokens fit in the {room} of --memory that are left for them, found "
            "longer ones; give a larger --memory, or --hash B (20, say)"
        )

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.documents.nbytes + self._places.nbytes


class TokenWeights:
    """Weights of the features of text, by the places of tokens; those of plain counts are 1."""

    def __init__(self, ranges: TokenRanges, weights: np.ndarray) -> None:
        self._ranges, self._weights = ranges, weights
        # entries of text are together in a row, unless tokens were added, whose features come behind all others
        own = (int(ranges.starts[0]), int(ranges.starts[-1] + ranges.places[-1] - ranges.places[-2]))
        self._sorted = (0, _NO_END) if ranges.has_added else own

    def finish(self, rows: CSR) -> CSR:
        """Drop entries of no feature (-1), sort those of text in each row, and weigh counts; the arrays are changed."""
        kernels.sort_tokens(*rows, *self._sorted)
        indptr, index, value = rows = rows.cut()
        starts, places, owners, weighted = self._ranges
        if weighted.any():
            of_entry, place = np.empty(index.size, np.int32), np.empty(index.size, np.int64)
            n_tokens = kernels.find_tokens(index, starts, places, of_entry, place)
            weights = take_mapped(self._weights, place[:n_tokens])
            kernels.weigh_tokens(indptr, of_entry, value, owners, weighted, weights, np.empty(weighted.size))
        return rows


def inverse_frequencies(documents: np.ndarray, n_documents: int) -> np.ndarray:
    """Compute ``ln((1 + n) / (1 + documents)) + 1``, scikit-learn's smooth inverse document frequencies."""
    return np.log((1.0 + n_documents) / (1.0 + documents)) + 1.0


def token_weights(encoding: Encoding) -> np.ndarray:
    """Compute the weights of the features of text; empty if nothing is weighed."""
    return np.concatenate([np.empty(0), *iterate_token_weights(encoding)])


def iterate_token_weights(encoding: Encoding) -> Iterator[np.ndarray]:
    """Yield `token_weights`, some at a time."""
    if not any(column.tf_idf for _, column in encoding.text):
        return
    documents = encoding.documents
    assert documents is not None
    for column, own in _pieces(encoding):
        if column.tf_idf:
            yield inverse_frequencies(np.asarray(documents[own]), column.n_documents)
            forget(documents)
        else:
            yield np.ones(own.stop - own.start)


def iterate_bucket_places(encoding: Encoding) -> Iterator[np.ndarray]:
    """Yield the place of every bucket of hashed text, -1 where too few documents have it; nothing where none is left out."""
    if not any(column.bits and column.min_count > 1 for _, column in encoding.text):
        return
    documents, first = encoding.documents, 0
    assert documents is not None
    for column, own in _pieces(encoding):
        places = np.arange(first, first + own.stop - own.start, dtype=np.int32)
        first += places.size
        if column.min_count > 1:
            places[documents[own] < column.min_count] = -1
            forget(documents)
        yield places


def _pieces(encoding: Encoding) -> Iterator[tuple[Column, slice]]:
    """Yield the columns of text, those of added tokens last, with the places of some of their tokens at a time."""
    for column, before in zip(encoding.columns, encoding.categories_before(), strict=False):
        if column.kind == "text":
            for start in range(0, column.n_features, _AT_A_TIME):
                yield column, slice(before + start, before + min(start + _AT_A_TIME, column.n_features))


class TextEncoder:
    """Encoder of the columns of text.

    With a `vocabulary`, which takes new tokens, codes are provisional, and values counts. Without it codes are the features
    of the encoding, entries ascend, values are weighed, and unknown tokens have no entry.
    """

    def __init__(self, encoding: Encoding, value_dtype: Any, vocabulary: Vocabulary | None) -> None:
        self.columns, self._refuses = encoding.text, encoding.missing == "error"
        self._value_dtype, self._grows = np.dtype(value_dtype), vocabulary is not None
        self._vocabulary = Vocabulary() if vocabulary is None else vocabulary
        self.code_start = tables.TEXT_CODES if self._grows else encoding.text_start
        self._ranges = encoding.token_ranges()
        self._bucket_starts = self._ranges.places[: len(encoding.text)] if encoding.text[0][1].bits else None
        self._buckets = np.empty(0, np.int32)  # the place of each, where not all have one
        self.weights = None
        self.n_unknown = 0  # tokens that the encoding does not have
        self._n_rows = 0
        if not self._grows:
            self.weights = TokenWeights(self._ranges, token_weights(encoding))
            self._buckets = np.concatenate([self._buckets, *iterate_bucket_places(encoding)])
            self._enter(encoding)
        elif self._bucket_starts is not None:
            self._vocabulary.documents_of_buckets = {
                number: np.zeros(1 << column.bits, np.int64)
                for number, column in self.columns
                if column.counts_buckets
            }

    def _enter(self, encoding: Encoding) -> None:
        categories, before = encoding.categories, encoding.categories_before()
        for number, column, start in zip(encoding.owners(), encoding.columns, before, strict=False):
            if column.kind == "text" and not column.bits and column.n_categories:
                assert categories is not None
                tokens = categories.slice(start, start + column.n_categories)
                self._vocabulary.number(number, tokens, np.empty(0, np.bool_), True, column.name)

    @property
    def largest_code(self) -> int:
        """The largest code that there may be so far."""
        if self._bucket_starts is not None:
            return self.code_start + int(self._ranges.places[-1]) - 1
        return self.code_start + self._vocabulary.size - 1

    def stops(self, batch: Any, most_rows: int) -> Iterator[int]:
        """Yield where blocks of a batch end that have up to `most_rows` rows, and no more text than fits, or one row."""
        n_bytes = np.zeros(batch.num_rows + 1, np.int64)
        for _, column in self.columns:
            if type_name(batch.column(column.name).type) == "string":
                strings, _ = strings_of(batch.column(column.name))
                n_bytes += strings.offsets - strings.offsets[0]
        start = 0
        while start < batch.num_rows:
            most = int(n_bytes[start]) + self._vocabulary.block_bytes
            stop = int(np.searchsorted(n_bytes, most, side="right")) - 1
            start = min(max(stop, start + 1), start + most_rows, batch.num_rows)
            yield start

    def rows(
        self, column_of: Callable[[str], Any], n_missing: np.ndarray, missing: Callable[[str, int], str]
    ) -> CSR:
        """Make the rows of a block, of which `column_of` returns a column by its name.

        Missing values are added to those of each column; `missing` makes the complaint about one that is refused.
        """
        words = []
        for number, column in self.columns:
            array = column_of(column.name)
            documents, valid = strings_of(array)
            if array.null_count and self._refuses:
                raise DataError(missing(column.name, int(np.flatnonzero(~valid)[0])))
            n_missing[number] += array.null_count
            words.append(words_of(documents, valid))
        if self._grows and self._bucket_starts is None:
            self._prepare(words)
        self._n_rows += words[0].indptr.size - 1
        found = None
        for (number, column), of_column in zip(self.columns, words, strict=True):
            found = self._joined(found, self._counted(number, column, of_column))
        assert found is not None
        return found

    def _prepare(self, words: list[Words]) -> None:
        sizes = [
            (_n_ngrams(column, of_column), int(of_column.ends[-1]) * sum(range(1, column.ngrams[1] + 1)))
            for (_, column), of_column in zip(self.columns, words, strict=True)
            if of_column.ends.size
        ]
        self._vocabulary.prepare(sum(n for n, _ in sizes), sum(n for _, n in sizes), self._n_rows)

    def _counted(self, number: int, column: Column, words: Words) -> CSR:
        room = _n_ngrams(column, words)
        rows = CSR.room(words.indptr.size - 1, room, self._value_dtype)
        self._vocabulary.count(number, column, words, self._grows, rows)
        rows = rows.cut()
        if self._bucket_starts is None and not self._grows:
            self.n_unknown += room - int(rows.value.sum(dtype=np.float64))
        return rows._replace(feature=self._codes(number, rows.feature))

    def _codes(self, number: int, index: np.ndarray) -> np.ndarray:
        """Return codes of a column's tokens, or buckets, by their numbers, which are changed; -1 for a rare bucket's."""
        if self._bucket_starts is not None:
            index += int(self._bucket_starts[[own for own, _ in self.columns].index(number)])
        if self._buckets.size:
            index = self._buckets[index].astype(np.int64)
            index[index >= 0] += self.code_start
        elif not self._grows and self._ranges.has_added:
            index = self._ranges.features_of(index)
        else:
            index += self.code_start
        return index

    def _joined(self, found: CSR | None, more: CSR) -> CSR:
        if found is None:
            return more
        room = self._room(found, more)
        tables.append_rows(found, more, room)
        return room

    def _room(self, rows: CSR, more: CSR) -> CSR:
        return CSR.room(more.indptr.size - 1, rows.feature.size + more.feature.size, self._value_dtype)

    def inserted(self, rows: CSR | None, of_text: CSR) -> CSR:
        """Insert the entries of text into rows of the other columns: they come before those of hashed ones."""
        if rows is not None:
            room = self._room(rows, of_text)
            kernels.insert_rows(rows, self.code_start, of_text, room)
            of_text = room
        return of_text if self.weights is None else self.weights.finish(of_text)


def _n_ngrams(column: Column, words: Words) -> int:
    lengths = np.diff(words.indptr)
    return sum(
        int(np.maximum(lengths - n + 1, 0).sum()) for n in range(column.ngrams[0], column.ngrams[1] + 1)
    )

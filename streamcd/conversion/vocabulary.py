"""Vocabulary of columns of text in bounded memory, exact: parts of it in files, merged by ranges of tokens.

A task numbers tokens in order of appearance. Where they outgrow the memory it leaves them in files, a part of the
vocabulary, and begins anew with its next rows. When all is parsed, parts are merged: documents are added up, rare tokens
left out, the others numbered by their bytes, and a map for each part turns its codes into places of tokens, and so features,
when its rows are written. Tokens that an encoding has are merged with them, and keep their places; new ones come behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from ..core.errors import UsageError
from ..core.mapped_arrays import take_mapped
from ..dataset.arrow_columns import Strings
from ..kernels.sparse_rows import CSR
from ..kernels.tables import TAIL_CODES, TEXT_CODES
from ..models.encoding import Column, Encoding, TokenRanges
from ..models.text_encoder import TokenWeights, Vocabulary, iterate_bucket_places, iterate_token_weights
from .dictionary_files import DATA, DOCUMENTS, OFFSETS, mapped
from .distinct_strings import sorted_distinct_strings
from .rows import Rows

_MAP, _WEIGHTS = "tokens.map", "tokens.weights"
_MERGE_FACTOR = 8
"""Bytes that merging takes for each byte of the tokens of a range."""

_SAMPLES = 256  # tokens for each range, by which ranges are cut


# ---------------------------------------------------------------------------------------------------------------------
# Parts


class TaskVocabulary(Vocabulary):
    """Tokens that a task has met; what outgrows `memory_bytes` is left in `directory`, in parts by their first rows."""

    def __init__(self, memory_bytes: int, directory: Path, first_row: int) -> None:
        super().__init__(memory_bytes)
        self._directory, self._task_row, self._part_row = directory, first_row, first_row

    def prepare(self, n_tokens: int, n_bytes: int, n_rows: int) -> None:
        """Begin a new part with the rows after the first `n_rows` if so many tokens might not fit beside those so far."""
        if self.size and not self._fits(n_tokens, n_bytes):
            self._save_part()
            self._slots.fill(-1)
            self._state.fill(0)
            self.documents.fill(0)
            self._part_row = self._task_row + n_rows

    def _fits(self, n_tokens: int, n_bytes: int) -> bool:
        n, used, _ = self._state.tolist()
        n_strings, n_arena = self._hashes.size, self._arena.size
        while n_strings < n + n_tokens:
            n_strings *= 2
        if used + n_bytes > n_arena:
            n_arena = 2 * (used + n_bytes)
        grown = n_strings * (8 + 4 + 8 + 2 * 4) + n_arena  # hashes, columns, ends, slots
        grown += grown // 2 + n_strings * (8 + 4)  # documents, places
        return self._memory_bytes is None or grown <= max(self._memory_bytes, self.nbytes)

    def end(self) -> None:
        """Leave the last part in files."""
        if self.size:
            self._save_part()
        for number, documents in self.documents_of_buckets.items():
            if documents.any():
                documents.tofile(self._directory / f"buckets-{number}-{self._task_row}.bin")

    def _save_part(self) -> None:
        strings, columns = self.strings(), self.columns()
        for number in np.unique(columns).tolist():
            codes = np.flatnonzero(columns == number)
            tokens, (ranks,) = sorted_distinct_strings([strings.take(codes)])
            ordered = np.empty_like(codes)
            ordered[ranks] = codes
            _Part(self._directory, self._part_row, number).save(
                tokens, self.documents[ordered], ordered.astype(np.int32)
            )


class _Part(NamedTuple):
    """Files of the tokens of a column in a part, sorted by their bytes."""

    directory: Path
    first_row: int
    column: int

    def path(self, kind: str) -> Path:
        return self.directory / f"tokens-{self.first_row:016d}-{self.column}.{kind}"

    def save(self, tokens: Strings, documents: np.ndarray, codes: np.ndarray) -> None:
        first = int(tokens.offsets[0])
        tokens.data[first : int(tokens.offsets[-1])].tofile(self.path("data"))
        (tokens.offsets - first).tofile(self.path("offsets"))
        documents.tofile(self.path("documents"))
        codes.tofile(self.path("codes"))
        self.path("places").touch()

    @property
    def size(self) -> int:
        return self.path("documents").stat().st_size // 8

    @property
    def nbytes(self) -> int:
        return sum(self.path(kind).stat().st_size for kind in ("data", "offsets"))

    def tokens(self, start: int, stop: int) -> Strings:
        offsets = np.fromfile(self.path("offsets"), np.int64, stop - start + 1, offset=8 * start)
        first, last = int(offsets[0]), int(offsets[-1])
        return Strings(np.fromfile(self.path("data"), np.uint8, last - first, offset=first), offsets - first)

    def documents(self, start: int, stop: int) -> np.ndarray:
        return np.fromfile(self.path("documents"), np.int64, stop - start, offset=8 * start)

    def token(self, place: int) -> bytes:
        return self.tokens(place, place + 1).data.tobytes()


class _Known(NamedTuple):
    """Tokens of a column that an encoding has, sorted by their bytes, from a `place` on."""

    strings: Strings
    place: int

    @property
    def size(self) -> int:
        return self.strings.size

    @property
    def nbytes(self) -> int:
        return int(self.strings.offsets[-1] - self.strings.offsets[0] + self.strings.offsets.nbytes)

    def tokens(self, start: int, stop: int) -> Strings:
        return self.strings.slice(start, stop)

    def token(self, place: int) -> bytes:
        start, stop = self.strings.offsets[place : place + 2].tolist()
        return self.strings.data[start:stop].tobytes()


def _place_of(part: _Part | _Known, token: bytes) -> int:
    """Return the place of the first token of a part that is not below another one."""
    start, stop = 0, part.size
    while start < stop:
        middle = (start + stop) // 2
        start, stop = (middle + 1, stop) if part.token(middle) < token else (start, middle)
    return start


def _parts(directory: Path) -> list[_Part]:
    found = (path.stem.split("-") for path in sorted(directory.glob("tokens-*.data")))
    return [_Part(directory, int(row), int(column)) for _, row, column in found]


# ---------------------------------------------------------------------------------------------------------------------
# Merging


class _Merger:
    """Merger of the parts of each column of text, whose tokens are appended to the files of the categories.

    Where an encoding `known` has tokens already, those that are new alone are appended, with places behind all of its own.
    """

    def __init__(
        self,
        directory: Path,
        memory_bytes: int,
        files: tuple[BinaryIO, BinaryIO, BinaryIO],
        known: Encoding | None,
    ) -> None:
        self._directory, self._memory_bytes = directory, memory_bytes
        self._data, self._offsets, self._documents = files
        self._known = _known_tokens(known) if known is not None else {}
        self.n_tokens = sum(part.size for parts in self._known.values() for part in parts)  # of all columns
        self.n_rare = 0
        self._n_bytes = self._data.seek(0, 2)

    def add(self, number: int, column: Column) -> int:
        """Add the tokens of a column; returns their number."""
        before = self.n_tokens
        if column.counts_buckets:
            self._add_buckets(number, column)
        elif not column.bits:
            parts = [part for part in _parts(self._directory) if part.column == number]
            known = self._known.get(number, [])
            for cuts in self._ranges([*parts, *known]):
                self._add_range(parts, known, cuts, column.min_count)
        return self.n_tokens - before

    def _add_buckets(self, number: int, column: Column) -> None:
        documents = np.zeros(1 << column.bits, np.int64)
        for path in self._directory.glob(f"buckets-{number}-*.bin"):
            documents += np.fromfile(path, np.int64)
        self.n_rare += int(np.count_nonzero((documents > 0) & (documents < column.min_count)))
        self._append(Strings(np.empty(0, np.uint8), np.zeros(documents.size + 1, np.int64)), documents)

    def _append(self, tokens: Strings, documents: np.ndarray) -> None:
        data = tokens.data[int(tokens.offsets[0]) : int(tokens.offsets[-1])]
        data.tofile(self._data)
        (tokens.offsets[1:] - tokens.offsets[0] + self._n_bytes).tofile(self._offsets)
        documents.tofile(self._documents)
        self._n_bytes += data.size
        self.n_tokens += documents.size

    def _ranges(self, parts: Sequence[_Part | _Known]) -> Iterator[list[tuple[int, int]]]:
        """Yield ranges of tokens that fit in the memory together, as places in every part."""
        n_ranges = _MERGE_FACTOR * sum(part.nbytes for part in parts) // self._memory_bytes + 1
        every = max(sum(part.size for part in parts) // (_SAMPLES * n_ranges), 1)
        sample = []
        if n_ranges > 1:
            sample = sorted(part.token(place) for part in parts for place in range(0, part.size, every))
        borders = sorted({sample[len(sample) * k // n_ranges] for k in range(1, n_ranges)})
        starts = [0] * len(parts)
        for border in [*borders, None]:
            stops = [part.size if border is None else _place_of(part, border) for part in parts]
            yield list(zip(starts, stops, strict=True))
            starts = stops

    def _add_range(
        self, parts: Sequence[_Part], known: Sequence[_Known], cuts: list[tuple[int, int]], min_count: int
    ) -> None:
        of_parts, of_known = cuts[: len(parts)], cuts[len(parts) :]
        tokens = [part.tokens(*cut) for part, cut in zip(parts, of_parts, strict=True)]
        tokens += [part.tokens(*cut) for part, cut in zip(known, of_known, strict=True)]
        distinct, found = sorted_distinct_strings(tokens)
        documents, places = np.zeros(distinct.size, np.int64), np.full(distinct.size, -1, np.int32)
        for part, cut, among in zip(parts, of_parts, found, strict=False):
            documents[among] += part.documents(*cut)
        for old, (start, stop), among in zip(known, of_known, found[len(parts) :], strict=True):
            places[among] = np.arange(old.place + start, old.place + stop)
        is_new = places < 0
        kept = is_new & (documents >= min_count)
        places[kept] = np.arange(self.n_tokens, self.n_tokens + np.count_nonzero(kept))
        for part, among in zip(parts, found, strict=False):
            with open(part.path("places"), "ab") as file:
                places[among].tofile(file)
        self.n_rare += int(np.count_nonzero(is_new & ~kept))
        self._append(distinct if kept.all() else distinct.take(np.flatnonzero(kept)), documents[kept])
        if self.n_tokens >= TEXT_CODES:
            raise UsageError(
                f"--text: expected fewer than {TEXT_CODES:,} tokens, found more; give a --min-count, or --hash B (20, say)"
            )


def _known_tokens(encoding: Encoding) -> dict[int, list[_Known]]:
    """Return the tokens that an encoding has, by the numbers of their columns."""
    found: dict[int, list[_Known]] = {}
    place = 0
    pairs = zip(encoding.columns, encoding.owners(), encoding.categories_before(), strict=False)
    for column, owner, before in pairs:
        if column.kind == "text":
            assert encoding.categories is not None
            strings = encoding.categories.slice(before, before + column.n_categories)
            found.setdefault(owner, []).append(_Known(strings, place))
            place += column.n_categories
    return found


def merge_vocabularies(
    directory: Path, encoding: Encoding, counts: list[int], memory_bytes: int, adds: bool = False
) -> int:
    """Append the tokens of all columns of text to the files of categories, and set their `counts`; writes the maps of parts.

    With `adds`, those that the encoding does not have. Returns the number of tokens, or buckets, left out because they are
    rare.
    """
    with (
        open(directory / DATA, "ab") as data,
        open(directory / OFFSETS, "ab") as offsets,
        open(directory / DOCUMENTS, "wb") as documents,
    ):
        if adds and encoding.documents is not None:
            encoding.documents.tofile(documents)
        np.zeros(sum(counts), np.int64).tofile(documents)
        merger = _Merger(directory, memory_bytes, (data, offsets, documents), encoding if adds else None)
        for number, column in encoding.text:
            if not (adds and column.bits):
                counts[number] = merger.add(number, column)
    parts = _parts(directory)
    with open(directory / _MAP, "wb") as file:
        for row in sorted({part.first_row for part in parts}):
            mine = [part for part in parts if part.first_row == row]
            places = np.empty(sum(part.size for part in mine), np.int32)
            for part in mine:
                places[np.fromfile(part.path("codes"), np.int32)] = np.fromfile(part.path("places"), np.int32)
            places.tofile(file)
    return merger.n_rare


def save_weights(directory: Path, encoding: Encoding) -> None:
    """Write the weights of the features of text, if any are weighed, and the places of buckets, if any is left out."""
    with open(directory / _WEIGHTS, "wb") as file:
        for weights in iterate_token_weights(encoding):
            weights.tofile(file)
    if encoding.text[0][1].bits:
        with open(directory / _MAP, "wb") as file:
            for places in iterate_bucket_places(encoding):
                places.tofile(file)


# ---------------------------------------------------------------------------------------------------------------------
# Rows as they are written


class TokenNumberer:
    """Map of the codes of tokens to features, and of counts to their weighed values."""

    def __init__(self, directory: Path, ranges: TokenRanges) -> None:
        self._ranges = ranges
        parts = _parts(directory)
        rows = sorted({part.first_row for part in parts})
        sizes = [sum(part.size for part in parts if part.first_row == row) for row in rows]
        self._first_rows, self._part_starts = np.array(rows, np.int64), np.cumsum([0, *sizes])
        self._map = mapped(directory / _MAP, "i4")
        self._weights = TokenWeights(ranges, mapped(directory / _WEIGHTS, "f8"))

    def features(self, rows: Rows) -> np.ndarray:
        """Return the features of the entries of text, in their order; -1 for none."""
        of_text = (rows.index >= TEXT_CODES) & (rows.index < TAIL_CODES)
        codes = rows.index[of_text].astype(np.int64) - TEXT_CODES
        if self._first_rows.size:
            part = np.searchsorted(self._first_rows, rows.source_row, side="right") - 1
            codes += np.repeat(self._part_starts[part], np.diff(rows.indptr))[of_text]
        if self._map.size:
            codes = take_mapped(self._map, codes).astype(np.int64)
        return self._ranges.features_of(codes)

    def finish(self, rows: Rows, index: np.ndarray) -> tuple[Rows, np.ndarray]:
        """Return rows without rare tokens, sorted and weighed, and their entries' features; those given are changed."""
        indptr, index, value = self._weights.finish(CSR(rows.indptr, index, rows.value))
        return replace(rows, indptr=indptr, index=index, value=value), index

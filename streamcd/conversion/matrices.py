"""Matrices as sources of rows: sparse rows and dense ones, in files and in memory, with their labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import DataError
from ..dataset.arrow_columns import arrow_strings, strings_of
from ..kernels import tables as kernels
from ..models.table_encoder import BLOCK_CELLS, describe_refusal, sorted_rows
from ..solvers.problem import LEAST_WEIGHT
from .numbering import TaskDictionary
from .rows import Counts, RowBatch, Rows, are_weights, count_decimals
from .sources import Reader, Reading, Source

_NOTHING = np.empty(0, np.int64)


class MatrixBlock(NamedTuple):
    """Some rows of a matrix: a dense one as `values`, a sparse one as the arrays of SciPy's CSR; labels or None."""

    message: Callable[[int], str]
    label: np.ndarray | None
    weight: np.ndarray | None
    values: np.ndarray | None
    indptr: np.ndarray = _NOTHING
    indices: np.ndarray = _NOTHING
    value: np.ndarray = _NOTHING

    @property
    def n_rows(self) -> int:
        return self.indptr.size - 1 if self.values is None else self.values.shape[0]


@dataclass(frozen=True, kw_only=True)
class MatrixSource(Source):
    """Rows of matrices, whose columns are the indices from `first_index` on.

    The reader has `n_columns`, the width of the matrix, and `blocks`, which reads the rows of pieces as `MatrixBlock`.
    """

    value_dtype: np.dtype
    needs_label: bool = True
    width_end: int = kernels.LARGEST_INDEX + 1  # columns beyond are too many
    ignore_beyond: bool = False
    first_index: int = 0

    def parse(
        self, pieces: Sequence[Any], first_row: int, first_line: int, dictionary: TaskDictionary | None
    ) -> Iterator[RowBatch]:
        maker = _RowMaker(self, dictionary)
        for block in self.reader.blocks(pieces):
            label = maker.labels(block)
            for start, stop in _cut(block):
                counts = maker.counts
                before = first_row + counts.n_rows
                indptr, index, value = maker.rows(block, start, stop)
                maker.count(label[start:stop], index.size, block, start)
                weight = None if block.weight is None else _checked(block.weight[start:stop])
                source_row = np.arange(before, before + stop - start)
                rows = Rows(source_row, label[start:stop], weight, indptr, index, value)
                yield RowBatch(rows, 0, counts)


def open_matrix(
    reader: Reader,
    reading: Reading,
    *,
    sparse: bool,
    names_labels: bool,
    weighted: bool = False,
    held_bytes: int = 0,
) -> MatrixSource:
    """Make the source of a reader's rows, of `sparse` matrices or of dense ones; `names_labels` where labels are strings."""
    first_index = reading.index_base or 0
    return MatrixSource(
        reader=reader,
        made_from="sparse matrix" if sparse else "dense array",
        value_dtype=np.dtype(reading.value_dtype),
        names_labels=bool(reading.class_names) or (names_labels and not reading.of_numbers),
        label_word=reading.label_word,
        class_names=reading.class_names,
        weighted=weighted,
        held_bytes=held_bytes,
        needs_label=reading.needs_label,
        width_end=reading.width_end - first_index,
        ignore_beyond=reading.ignore_beyond,
        first_index=first_index,
    )


def _checked(weight: np.ndarray) -> np.ndarray:
    """Return row weights as float64; refused if one is invalid."""
    weight = np.asarray(weight, np.float64)
    if not are_weights(weight).all():
        raise DataError(
            f"expected weights of 0, or from {LEAST_WEIGHT:g} to {1 / LEAST_WEIGHT:g}, found others"
        )
    return weight


def _native(numbers: np.ndarray) -> np.ndarray:
    """Return numbers in a type that kernels take: the processor's order of bytes, floats of 4 or 8 bytes."""
    dtype = numbers.dtype.newbyteorder("=")
    if dtype.kind == "f" and dtype.itemsize not in (4, 8):
        dtype = np.dtype(np.float32 if dtype.itemsize < 4 else np.float64)
    return numbers.astype(dtype, copy=False)


def _cut(block: MatrixBlock) -> Iterator[tuple[int, int]]:
    """Cut the rows of a block into ranges of about `BLOCK_CELLS` entries."""
    start = 0
    while start < block.n_rows:
        if block.values is None:
            most = block.indptr[start] + BLOCK_CELLS
            stop = int(np.searchsorted(block.indptr, most, side="right")) - 1
            stop = min(stop, start + BLOCK_CELLS)
        else:
            stop = start + BLOCK_CELLS // max(block.values.shape[1], 1)
        stop = min(max(stop, start + 1), block.n_rows)
        yield start, stop
        start = stop


class _RowMaker:
    """Maker of rows of entries, with counts."""

    def __init__(self, source: MatrixSource, dictionary: TaskDictionary | None) -> None:
        self._source, self._dictionary = source, dictionary
        self._known = {name: float(number) for number, name in enumerate(source.class_names)}
        self.counts = Counts()
        width = source.reader.n_columns
        if width:  # a column of zeros is a feature too
            self.counts.max_index = width - 1 + source.first_index
        self._state = np.zeros(kernels.N_STATE, np.int64)
        self._state[kernels.MAX_INDEX] = -1

    def rows(self, block: MatrixBlock, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        source = self._source
        indptr = np.zeros(stop - start + 1, np.int64)
        if block.values is None:
            starts = block.indptr[start : stop + 1].astype(np.int64)
            first, last = int(starts[0]), int(starts[-1])
            starts -= first
            found = sorted_rows(starts, _native(block.indices[first:last]), _native(block.value[first:last]))
            index, value = np.empty(last - first, np.int64), np.empty(last - first, source.value_dtype)
            status = kernels.sparse_rows(
                starts, *found, 0, source.width_end, source.ignore_beyond, indptr, index, value, self._state
            )
        else:
            values = _native(block.values[start:stop])
            found = (np.empty(0), values)
            index, value = np.empty(values.size, np.int64), np.empty(values.size, source.value_dtype)
            status = kernels.dense_rows(
                values, source.width_end, source.ignore_beyond, indptr, index, value, self._state
            )
        if status != kernels.OK:
            self._refuse(status, block, start, found)
        index = index[: indptr[-1]]
        index += source.first_index
        return indptr, index, value[: indptr[-1]]

    def _refuse(self, status: int, block: MatrixBlock, start: int, found: tuple[Any, Any]) -> None:
        row, at = int(self._state[kernels.ROW]), int(self._state[kernels.COLUMN])
        if block.values is None:
            number = found[0][at] if status >= kernels.NEGATIVE_INDEX else found[1][at]
        else:
            number = at if status >= kernels.NEGATIVE_INDEX else block.values[start + row, at]
        reason = describe_refusal(status, number, self._source.value_dtype, 0, self._source.width_end)
        if status == kernels.NULL_VALUE:
            reason = f"expected a finite value, found {number}; correct or remove the row"
        raise DataError(f"{block.message(start + row)}: {reason}")

    def labels(self, block: MatrixBlock) -> np.ndarray:
        """Return the labels of a block's rows, as numbers."""
        given, source = block.label, self._source
        if given is None:
            if source.needs_label:
                raise DataError(f"{block.message(0)}: expected labels, found none; see --label")
            return np.full(block.n_rows, np.nan)
        if given.shape != (block.n_rows,):
            raise DataError(
                f"{block.message(0)}: expected a label for each of {block.n_rows:,} rows, found an array of shape "
                f"{given.shape}"
            )
        if source.names_labels:
            return self._numbered(given)
        if given.dtype.kind not in "biuf":
            raise DataError(
                f"{block.message(0)}: expected numbers as {source.label_word}s, found {given.dtype}"
            )
        label = given.astype(np.float64) + 0.0
        bad = np.isinf(label) | (np.isnan(label) & source.needs_label)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise DataError(
                f"{block.message(row)}: expected a finite {source.label_word}, found {label[row]}; correct or remove the row"
            )
        return label

    def _numbered(self, given: np.ndarray) -> np.ndarray:
        names, places = np.unique(given.astype(str), return_inverse=True)
        if self._dictionary is None:
            known = np.array([self._known.get(name, len(self._known)) for name in names.tolist()], np.float64)
            return known[places]
        strings, valid = strings_of(arrow_strings(names.tolist()))
        codes = self._dictionary.labels.number(0, strings, valid, True, "label")
        return codes[places].astype(np.float64)

    def count(self, label: np.ndarray, n_entries: int, block: MatrixBlock, start: int) -> None:
        counts, state = self.counts, self._state
        counts.n_rows, counts.n_entries = counts.n_rows + label.size, counts.n_entries + n_entries
        counts.n_explicit_zeros = int(state[kernels.ZEROS])
        counts.n_underflows, counts.n_ignored = int(state[kernels.UNDERFLOWS]), int(state[kernels.IGNORED])
        counts.n_decimal_labels += count_decimals(label)
        first = self._source.first_index
        width = block.values.shape[1] if block.values is not None else self._source.reader.n_columns or 0
        largest = max(int(state[kernels.MAX_INDEX]), width - 1) + first
        if largest > counts.max_index:
            counts.max_index, counts.max_location = largest, block.message(start)
        counts.zero_index = not first

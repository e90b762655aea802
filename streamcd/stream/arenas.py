"""Row and column layout as solvers read them: the state of an item, arenas, and the decoding of chunks into them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ..core.errors import DatasetError
from ..core.setting import class_indices
from ..dataset.centring import Centre
from ..dataset.column_layout import Columns
from ..dataset.dataset import Dataset
from ..dataset.feature_order import SOURCE_ORDER
from ..kernels.primitives import Rows, unsigned
from ..kernels.rows import FITS, WRONG_COUNTS, WRONG_LABEL, place_rows

_LINE = 64  # bytes of a cache line


class RowArena:
    """Preallocated arrays into which chunks of rows are decoded, with the state of the rows.

    The scalars of a row are the fields of one record: rows are visited in random order, and separate arrays would cost a
    cache line each. With windows of 330,000 rows of 12 entries a visit took 190 ns per row with separate arrays, 125 with
    all of them prefetched, and 64 with records.
    """

    def __init__(
        self,
        record: np.dtype[Any],  # `RowLayout.record`
        widths: tuple[int, int],  # numbers and flags of a row's state
        dtypes: tuple[np.dtype[Any], np.dtype[Any]],
        n_rows: int,
        n_entries: int,
    ) -> None:
        # fields of a single record have no stride, and kernels would be compiled once more for them
        n_rows = max(n_rows, 2)
        rows = aligned_zeros(n_rows + 1, record)
        self.indptr = rows["indptr"]
        self.feature = np.empty(n_entries, dtype=dtypes[0])
        self.value = np.empty(n_entries, dtype=dtypes[1])
        self.code, self.weight, self.fold = (rows[name][:n_rows] for name in ("code", "weight", "fold"))
        self.fold[:] = 255  # no fold; stays if there are none
        # empty where rows have classes
        self.target = rows["target"][:n_rows] if "target" in (record.names or ()) else self.weight[:0]
        if "alpha" in (record.names or ()):
            self.alpha = rows["alpha"][:n_rows]
            self.active = rows["active"][:n_rows]
        else:
            self.alpha = aligned_zeros(n_rows * widths[0], np.dtype(np.float64)).reshape(n_rows, widths[0])
            self.active = np.empty((n_rows, widths[1]), dtype=np.uint8)
        feature = unsigned(self.feature)
        self.rows = Rows(self.indptr, feature, self.value, self.code, self.weight, self.fold, self.target)


def aligned_zeros(n: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Allocate zeros aligned to a cache line, so that as few records, or groups of eight lanes, as possible straddle two."""
    memory = np.zeros(n * dtype.itemsize + _LINE, dtype=np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + n * dtype.itemsize].view(dtype)


class ColumnArena:
    """Preallocated arrays into which chunks of columns are decoded, the segments of a feature one after another.

    Column ``c`` has the entries ``indptr[c]:indptr[c + 1]``.
    """

    def __init__(self, dtypes: tuple[np.dtype[Any], np.dtype[Any]], n_columns: int, n_entries: int) -> None:
        self.indptr = np.zeros(n_columns + 1, dtype=np.int64)
        self.feature = np.empty(n_columns, dtype=np.int64)
        self.row = np.empty(n_entries, dtype=dtypes[0])
        self.value = np.empty(n_entries, dtype=dtypes[1])


@dataclass(frozen=True)
class Window:
    """Chunks that are in memory together."""

    read: int
    number: int  # in the read, which has `count` windows
    count: int
    chunks: np.ndarray
    arena: Any  # RowArena or ColumnArena
    start: np.ndarray  # each chunk's items in the arena
    stop: np.ndarray
    n_entries: int
    sweep: Callable[[], Iterator[int]] | None = None
    """For a window of one feature with more entries than the arena holds: load them in order, a segment at a time, to the
    front of the arena, and yield the number of entries of each segment. None for other windows."""

    def chunk_ranges(self) -> Iterator[tuple[int, int, int]]:
        """Iterate over the chunks, each with the start and stop of its items in the arena."""
        return zip(self.chunks.tolist(), self.start.tolist(), self.stop.tolist(), strict=True)


def empty_window(arena: RowArena | ColumnArena) -> Window:
    """Make a window without items, by which kernels are loaded.

    An arena of rows has two records at least: fields of fewer would have the type of contiguous arrays.
    """
    none = np.zeros(0, dtype=np.int64)
    return Window(0, 0, 1, none, arena, none, none, 0)


RESIDENT_WINDOW_ENTRIES = 4_000_000
"""Entries of a window if the whole dataset is in memory: 32 MB, so that a window's rows stay in the processor's last-level
cache. Mixing more rows does not speed up convergence and costs time: 180 against 310 M entries/s with 32 M entries."""

Decoder = Callable[[Any, int, int, int, bool], None]
"""Decoder of a chunk: arguments are the arena, the chunk, the offsets of its items and entries in the arena, and whether
checksums are verified. Refuses indices out of range, which the kernels do not check."""

_REFUSALS = {
    WRONG_COUNTS: "the rows' counts of entries do not fit the entries",
    WRONG_LABEL: "a label that the manifest does not list",
}


@dataclass(frozen=True)
class RowLayout:
    """Row layout: an item is a row, with its label and its solver's state."""

    alpha_width: int  # dual variables (float64) of a row
    n_flags: int  # active flags (uint8) of a row
    resident_window: int = RESIDENT_WINDOW_ENTRIES
    n_orders: int = 1  # orders of a window's rows that the solver holds at a time
    has_targets: bool = False
    centred: bool = False  # features and targets are, see `dataset.centring`
    ranked: bool = False  # features stand in the order of their use, see `dataset.feature_order`

    # computed from these
    state_bytes: int = field(init=False)  # of a row's state between visits: alpha, active
    record: np.dtype[Any] = field(
        init=False
    )  # of a row in an arena; it holds the state if there is a single flag
    item_bytes: int = field(
        init=False
    )  # of a row in an arena: its record, and its state if that is not part of the record

    def __post_init__(self) -> None:
        fields: list[tuple[Any, ...]] = [("indptr", np.int64), ("weight", np.float64)]
        if self.has_targets:
            fields += [("target", np.float64)]
        if self.n_flags == 1:
            fields += [("alpha", np.float64, (self.alpha_width,))]
        fields += [("code", np.int32), ("fold", np.uint8)]
        if self.n_flags == 1:
            fields += [("active", np.uint8, (1,))]
        record = np.dtype(fields, align=True)
        state_bytes = 8 * self.alpha_width + self.n_flags
        item_bytes = record.itemsize + (0 if self.n_flags == 1 else state_bytes)
        vars(self).update(state_bytes=state_bytes, record=record, item_bytes=item_bytes)

    def open(self, dataset: Dataset) -> Dataset:
        """Return the dataset itself."""
        return dataset

    def new_arena(self, table: Any, n_items: int, n_entries: int) -> Any:
        """Allocate an arena for rows."""
        dtypes = (table.index_dtype, table.value_dtype)
        widths = (self.alpha_width, self.n_flags)
        return RowArena(self.record, widths, dtypes, n_items, n_entries)

    def decoder(self, table: Dataset, seed: int, n_folds: int) -> Decoder:
        """Make a decoder of entries by row, classes, weights and folds; its kernels are loaded."""
        centre = table.centre if self.centred else None
        arena = self.new_arena(table, 2, 0)
        rank = table.feature_rank if self.ranked else SOURCE_ORDER
        counts = np.zeros(0, table.index_dtype)
        values = np.zeros(0, table.value_dtype)
        _place_rows(table, centre, rank, arena, (0, 0), [np.zeros(0), counts, np.zeros(0)], counts, values)
        return partial(_decode_rows, table, seed, n_folds, centre, rank)


def _decode_rows(
    dataset: Dataset,
    seed: int,
    n_folds: int,
    centre: Centre | None,
    rank: np.ndarray,
    arena: RowArena,
    chunk: int,
    row_start: int,
    entry_start: int,
    verify: bool,
) -> None:
    columns = ["label", "n_entries", *["weight"] * dataset.weighted, *["source"] * bool(n_folds)]
    rows = dataset.read_rows(chunk, columns, verify=verify)
    feature, value = dataset.read_entries(chunk, verify=verify)
    _check_range("feature", feature, dataset.n_features, dataset, chunk)
    n_rows = rows[0].size
    if n_folds:
        arena.fold[row_start : row_start + n_rows] = dataset.folds_of(rows.pop(), seed, n_folds)
    starts = row_start, entry_start
    answer, n_shifted = _place_rows(dataset, centre, rank, arena, starts, rows, feature, value)
    if answer != FITS:
        raise DatasetError(f"{dataset.place(chunk)}: {_REFUSALS[answer]}")
    if centre is not None and n_shifted != n_rows * centre.features.size:
        raise DatasetError(
            f"{dataset.place(chunk)}: features are missing that features.parquet has in every row; {dataset.KIND.remedy}"
        )


def _place_rows(
    dataset: Dataset,
    centre: Centre | None,
    rank: np.ndarray,
    arena: RowArena,
    starts: tuple[int, int],
    rows: Sequence[np.ndarray],
    feature: np.ndarray,
    value: np.ndarray,
) -> tuple[int, int]:
    """Copy labels, counts, any weights, and entries of rows to an arena, from a row and an entry on; with `centre`, shifted.

    Features become their `rank`, if there is one.

    Returns the kernel's answer, and how many entries have a shift.
    """
    for array in (*rows, feature):
        array.flags.writeable = False  # as Arrow's are: the kernel is compiled for these alone
    label = rows[0]
    n_entries = rows[1]
    weight = rows[2] if dataset.weighted else rows[0][:0]
    classes = np.zeros(0) if dataset.classes is None else dataset.classes
    chunk = label, n_entries, weight, unsigned(feature)
    targets = arena.indptr, arena.code, arena.weight, arena.target, arena.feature
    span = slice(starts[1], starts[1] + feature.size)
    answer = int(place_rows(chunk, classes, rank, (*starts, span.stop), targets))
    if centre is None:
        arena.value[span] = value
        return answer, 0
    arena.target[starts[0] : starts[0] + label.size] -= centre.target
    shifts = centre.table[np.minimum(feature, centre.table.size - 1)]
    np.subtract(value, shifts, out=arena.value[span])
    return answer, int(np.count_nonzero(shifts))


@dataclass(frozen=True)
class ColumnLayout:
    """Column layout: an item is a feature; the solver keeps the state of rows itself."""

    resident_window: int = RESIDENT_WINDOW_ENTRIES
    state_bytes: int = 0
    item_bytes: int = 8 + 8  # indptr, feature
    n_orders: int = 1
    centred: bool = False
    ranked: bool = False

    def open(self, dataset: Dataset) -> Columns:
        """Open the dataset's column layout; raises `DatasetError` if there is none."""
        return dataset.open_columns()

    def new_arena(self, table: Any, n_items: int, n_entries: int) -> Any:
        """Allocate an arena for columns."""
        return ColumnArena((table.row_dtype, table.value_dtype), n_items, n_entries)

    def decoder(self, table: Columns, seed: int, n_folds: int) -> Decoder:
        """Make a decoder of entries by feature."""
        dataset = table.dataset
        assert isinstance(dataset, Dataset)
        return partial(_decode_columns, table, dataset.centre if self.centred else None)


def _decode_columns(
    columns: Columns,
    centre: Centre | None,
    arena: ColumnArena,
    chunk: int,
    start: int,
    entry_start: int,
    verify: bool,
) -> None:
    listed, n_entries = columns.read_index(chunk, verify=verify)
    row, value = columns.read_entries(chunk, verify=verify)
    _check_range("row", row, columns.dataset.n_rows, columns, chunk)
    _check_range("feature", listed, columns.dataset.n_features, columns, chunk)
    arena.row[entry_start : entry_start + row.size] = row
    arena.value[entry_start : entry_start + value.size] = value
    if centre is not None:
        shifts = centre.table[np.minimum(listed, centre.table.size - 1)]
        arena.value[entry_start : entry_start + value.size] -= np.repeat(shifts, n_entries)
    if columns.item_start[chunk + 1] == columns.item_start[chunk]:
        return  # a later segment: the first one has set the end of its feature
    stop = start + listed.size
    end_of_unit = columns.unit_start[np.searchsorted(columns.unit_start, chunk, side="right")]
    ends = item_ends(n_entries, entry_start)
    ends[-1] = entry_start + columns.entry_start[end_of_unit] - columns.entry_start[chunk]
    arena.feature[start:stop] = listed
    arena.indptr[start] = entry_start
    arena.indptr[start + 1 : stop + 1] = ends


def class_codes(dataset: Dataset, chunk: int, label: np.ndarray) -> np.ndarray:
    """Return the index of each row's class; raises `DatasetError` if the manifest does not list a label.

    All rows with targets are of one kind, 0.
    """
    if dataset.has_targets:
        return np.zeros(label.size, np.int64)
    classes = dataset.classes
    assert classes is not None
    code, known = class_indices(classes, label)
    if not known.all():
        raise DatasetError(f"{dataset.place(chunk)}: {_REFUSALS[WRONG_LABEL]}")
    return code


def _check_range(name: str, index: np.ndarray, n: int, table: Dataset | Columns, chunk: int) -> None:
    """Refuse indices out of range, which the kernels do not check."""
    # as unsigned integers, negative ones are large
    if index.size and index.view(f"u{index.itemsize}").max() >= n:  # safety: stream::does_not_fit_the_dataset
        raise DatasetError(f"{table.place(chunk)}: a {name} outside 0 … {n - 1}")


def item_ends(n_entries: np.ndarray, start: int) -> np.ndarray:
    """Compute the ends of items in an arena.

    The caller stores them in one assignment: if the data is resident, the last end is also the start of the next chunk's
    first item, which may be in training at this moment.
    """
    ends = np.cumsum(n_entries, dtype=np.int64)
    ends += start
    return ends

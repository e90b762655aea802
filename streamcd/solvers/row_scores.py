"""The scores of all rows that the primal methods keep, in memory or in a file of pages.

Pages are saved like dual variables (`slot_store.SlotStore`), so that a run killed at any moment resumes with the same bits.

For a window of columns, the rows that occur in it are renumbered, ascending, the row indices of the window's entries are
replaced by these numbers, and the scores are loaded and stored in one sweep over the file each. The bias, a column of all
rows, is visited page by page.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..dataset.dataset import Dataset
from ..kernels.primal import Scores
from ..kernels.rows import compact_rows
from ..stream.arenas import ColumnArena, Window, class_codes
from ..stream.slot_store import SlotStore
from .memory import constant_bytes, kind_dtype
from .problem import Problem

_SECTIONS = ("score", "fresh", "constant", "previous")  # of the file; "previous" only with acceleration


class Rows(NamedTuple):
    """Scores and constants of some rows, or of all in memory; the arrays may be changed in place."""

    first: int  # number of the first row, if they are a block
    score: np.ndarray  # (rows, lanes): w·x, updated with every step
    fresh: np.ndarray  # like `score`, recomputed by a read at fixed w; empty in other reads
    kind: np.ndarray  # see `kernels.primal.Scores`
    weight: np.ndarray  # empty if all are 1
    target: np.ndarray  # empty where rows have classes
    previous: np.ndarray  # scores at the end of an earlier pass, with acceleration; else empty

    @property
    def arrays(self) -> Scores:
        """Flat arrays as an argument of kernels."""
        return Scores(self.score.reshape(-1), self.fresh.reshape(-1), self.kind, self.weight, self.target)

    def head(self, n_rows: int, first: int = 0) -> Rows:
        """Return views of the first rows; `first` is the number of the first."""
        return Rows(first, *(array[:n_rows] for array in self[1:]))

    def section(self, name: str) -> list[np.ndarray]:
        """Return the arrays of a section of the file."""
        if name == "constant":
            return [array for array in (self.kind, self.weight, self.target) if array.size]
        return [getattr(self, name)]

    def iter_blocks(
        self, start: int = 0, stop: int | None = None, *, more: Sequence[str] = (), saved: Sequence[str] = ()
    ) -> Iterator[Rows]:
        """Iterate over ascending blocks of rows that hold all of ``start:stop``: all rows in memory are one."""
        yield self

    @contextmanager
    def loaded(self, window: Window, changed: str) -> Iterator[Rows]:
        """Provide the rows of a window's entries, by the numbers in its arena; the array `changed` may be."""
        yield self


class PagedRows:
    """All rows, in a file with pages of `page_rows` rows, in a folder of the run; `seed` is that of the folds.

    With `extrapolates` the scores of an earlier pass are kept too. The loop makes `slots` durable. Pages that were never
    saved are zero.
    """

    def __init__(
        self,
        folder: Path,
        dataset: Dataset,
        problem: Problem,
        seed: int,
        page_rows: int,
        *,
        extrapolates: bool = False,
    ) -> None:
        self._dataset, self._problem, self._seed = dataset, problem, seed
        self._n_rows, self._page_rows = dataset.n_rows, min(page_rows, max(dataset.n_rows, 1))
        sizes = np.diff(np.append(np.arange(0, max(dataset.n_rows, 1), self._page_rows), dataset.n_rows))
        self._n_pages = sizes.size
        widths = np.full(3 + extrapolates, 8 * problem.n_lanes)
        widths[_SECTIONS.index("constant")] = constant_bytes(problem, dataset)
        shards = np.zeros(widths.size * sizes.size, dtype=np.int64)
        self.slots = SlotStore(folder, shards, np.outer(widths, sizes).reshape(-1), 1)
        self._page = new_rows(problem, dataset, self._page_rows, extrapolates=extrapolates)
        self._rank = np.empty(min(8 * self._page_rows, max(self._n_rows, 1)), dtype=np.int64)
        self._room = self._page.head(0)
        self._listed: np.ndarray = np.zeros(0, dtype=np.int64)
        self._compacted: Window | None = None

    def write_constants(self) -> None:
        """Write kind, weight and target of all rows of a new run; reads the rows, not their entries."""
        page, filled, number = self._page, 0, 0
        for constants in read_rows(self._dataset, self._problem, self._seed):
            start, n_rows = 0, constants[0].size
            while start < n_rows:
                stop = min(start + self._page_rows - filled, n_rows)
                for to, given in zip((page.kind, page.weight, page.target), constants, strict=True):
                    to[filled : filled + stop - start] = given[start:stop]
                filled, start = filled + stop - start, stop
                if filled == self._page_of(number).kind.size:
                    self._write_page(number, "constant")
                    number, filled = number + 1, 0

    def iter_blocks(
        self, start: int = 0, stop: int | None = None, *, more: Sequence[str] = (), saved: Sequence[str] = ()
    ) -> Iterator[Rows]:
        """Iterate over ascending pages that hold all of ``start:stop``, with `more` arrays; those in `saved` are stored."""
        stop = self._n_rows if stop is None else stop
        for number in range(start // self._page_rows, -(-stop // self._page_rows)):
            yield self._read_page(number, {*more, *saved})
            for name in saved:
                self._write_page(number, name)

    @contextmanager
    def loaded(self, window: Window, changed: str) -> Iterator[Rows]:
        """Provide the rows of a window's entries, renumbered in the arena; then the array `changed` goes to their pages."""
        self._compact(window)
        rows = self._room.head(self._listed.size)
        for number, listed, offset in self._pages_of_listed():
            page = self._read_page(number, (changed,))
            for name in {"score", "constant", changed}:
                for to, array in zip(rows.section(name), page.section(name), strict=True):
                    to[listed] = array[offset]
        yield rows
        for number, listed, offset in self._pages_of_listed():
            page = self._read_page(number, (changed,))
            getattr(page, changed)[offset] = getattr(rows, changed)[listed]
            self._write_page(number, changed)

    # -- inside

    def _compact(self, window: Window) -> None:
        if self._compacted is window:
            return
        arena: ColumnArena = window.arena
        most = min(arena.row.size, self._n_rows)
        if self._room.kind.size < most or not self._compacted:
            self._room = new_rows(self._problem, self._dataset, most)
            self._all_listed = np.empty(most, dtype=arena.row.dtype)
            self._following = np.empty(arena.feature.size, dtype=np.int64)
        starts = arena.indptr[: int(window.stop.max(initial=0)) + 1]
        n = compact_rows(starts, arena.row, self._n_rows, self._following, self._rank, self._all_listed)
        self._listed, self._compacted = self._all_listed[:n], window

    def _pages_of_listed(self) -> Iterator[tuple[int, slice, np.ndarray]]:
        """Iterate over the pages with rows of the window: number, range of the loaded rows, their offsets in the page."""
        start = 0
        while start < self._listed.size:
            number = int(self._listed[start]) // self._page_rows
            first = number * self._page_rows
            stop = count_before(self._listed, min(first + self._page_rows, self._n_rows))
            yield number, slice(start, stop), self._listed[start:stop] - first
            start = stop

    def _page_of(self, number: int) -> Rows:
        """Return the page in memory, as long as page `number`."""
        first = number * self._page_rows
        return self._page.head(min(self._page_rows, self._n_rows - first), first)

    def _read_page(self, number: int, more: Collection[str]) -> Rows:
        """Read score and constants of a page, and the arrays named in `more`."""
        page = self._page_of(number)
        for section, name in enumerate(_SECTIONS):
            arrays = page.section(name) if name in ("score", "constant", *more) else []
            if arrays and not self.slots.load(section * self._n_pages + number, arrays):
                for array in arrays:
                    array[:] = 0
        return page

    def _write_page(self, number: int, name: str) -> None:
        arrays = self._page_of(number).section(name)
        self.slots.save(_SECTIONS.index(name) * self._n_pages + number, arrays)


def new_rows(problem: Problem, dataset: Dataset, n_rows: int = 0, *, extrapolates: bool = False) -> Rows:
    """Make arrays of some rows; none are for loading kernels."""
    n_lanes, kind = problem.n_lanes, kind_dtype(problem.n_kinds, problem.n_folds)
    score, fresh = np.empty((n_rows, n_lanes)), np.empty((n_rows, n_lanes))
    weight, target = (np.empty(n_rows if has else 0) for has in (dataset.weighted, problem.has_targets))
    previous = np.empty((n_rows if extrapolates else 0, n_lanes))
    return Rows(0, score, fresh, np.empty(n_rows, kind), weight, target, previous)


def count_before(rows: np.ndarray, row: int) -> int:
    """Count the ascending `rows` that are less than `row`."""
    # a row of another type would have all of `rows` converted
    return int(np.searchsorted(rows, rows.dtype.type(row)))


def read_rows(dataset: Dataset, problem: Problem, seed: int) -> Iterator[tuple[np.ndarray, ...]]:
    """Read kind, weight (empty if all are 1) and target (empty where rows have classes) of all rows, chunk by chunk.

    Raises `DatasetError` if the manifest does not list a label.
    """
    n_cells = problem.n_folds
    dtype = kind_dtype(problem.n_kinds, n_cells)
    for chunk in range(dataset.n_chunks):
        label, weight, source = dataset.read_rows(chunk, ("label", "weight", "source"))
        code = class_codes(dataset, chunk, label)
        if n_cells:
            code = code * n_cells + dataset.folds_of(source, seed, n_cells)
        target = label if problem.has_targets else label[:0]
        if problem.free_bias and dataset.centre is not None:
            target = target - dataset.centre.target
        yield code.astype(dtype), weight if dataset.weighted else weight[:0], target

"""What the primal methods keep of all rows, scores above all: in memory, or, where that is too little, in pages of a file.

In the file every page (a stretch of rows) has two slots, as dual variables have (`slot_store.SlotStore`): what the last
durable checkpoint points to is never overwritten, so that a kill at any moment leaves the bits of a resumed run alone.

A window of columns asks for the rows that occur in it: they are numbered anew, ascending, the window's entries are written
in these numbers, and the scores come in and go back in one walk through the file each. What runs over the window is the
kernel that runs in memory, on the same numbers in the same order: the same bits. A column of all rows goes page by page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .arenas import ColumnArena
from .dataset import Dataset
from .errors import DatasetError
from .primal_kernels import compact_rows
from .problems import Problem
from .randomness import deal_folds
from .slot_store import SlotStore
from .stream import Window

PAGE_BYTES = 1 << 19
"""Scores of a page: so large that the disk gives them at full speed, so small that a few are nothing in a budget."""

_RANK_ROWS = 1 << 19  # rows that are numbered at a time
_SCORE, _FRESH, _CONSTANT = range(3)  # the parts of the file


@dataclass(frozen=True)
class Rows:
    """What is kept of some rows; the arrays are to be changed in place.

    Attributes
    ----------
    first : int
        The first of them, where they are a stretch of rows.
    score, fresh : ndarray of float64, shape (rows, lanes)
        ``w·x`` as it is kept up to date, and as the read at fixed w has summed it up; the latter is empty outside of one.
    kind, weight : ndarray, shape (rows,)
        See `primal_kernels`; the weights are empty where all are 1.
    """

    first: int
    score: np.ndarray
    fresh: np.ndarray
    kind: np.ndarray
    weight: np.ndarray


class RowsInMemory:
    """All rows as one stretch.

    Parameters
    ----------
    arrays : dict of str to ndarray
        ``score``, and in a read at fixed w ``fresh``: the part of a `solvers.State` that checkpoints keep.
    kind, weight : ndarray
    """

    paged = False

    def __init__(self, arrays: dict[str, np.ndarray], kind: np.ndarray, weight: np.ndarray) -> None:
        self._arrays, self._kind, self._weight = arrays, kind, weight

    def begin_certificates(self) -> None:
        """Make room for fresh scores."""
        score = self._arrays["score"]
        if self._arrays.get("fresh", score[:0]).shape != score.shape:
            self._arrays["fresh"] = np.zeros_like(score)

    def end_read(self) -> None:
        """Fresh scores have served; keeps checkpoints small."""
        self._arrays.pop("fresh", None)

    def stretches(
        self, start: int = 0, stop: int | None = None, *, fresh: bool = False, saved: Sequence[str] = ()
    ) -> Iterator[Rows]:
        """Stretches of rows, ascending, that hold all of ``start:stop``."""
        yield self._rows()

    def bring(self, window: Window, *, fresh: bool) -> Rows:
        """The rows of a window's entries, by the numbers that the arena has."""
        return self._rows()

    def take_back(self, saved: Sequence[str]) -> None:
        """Keep what a visit has changed in the rows that were brought."""

    def _rows(self) -> Rows:
        score = self._arrays["score"]
        return Rows(0, score, self._arrays.get("fresh", score[:0]), self._kind, self._weight)


class PagedRows:
    """The same in a file of pages.

    Parameters
    ----------
    folder : Path
        In the run directory.
    dataset : Dataset
    problem : Problem
    seed : int
        Of the folds.
    page_rows : int
        Rows of a page.

    Attributes
    ----------
    slots : slot_store.SlotStore
        For a loop, which makes durable what is in them. Pages that were never saved are zero.
    """

    paged = True

    def __init__(self, folder: Path, dataset: Dataset, problem: Problem, seed: int, page_rows: int) -> None:
        self._dataset, self._problem, self._seed, self._page_rows = dataset, problem, seed, page_rows
        self._n_rows, n_lanes = dataset.n_rows, problem.n_lanes
        starts = np.arange(0, max(dataset.n_rows, 1), page_rows)
        self._n_pages = starts.size
        sizes = np.diff(np.append(starts, dataset.n_rows))
        kind = kind_dtype(problem.classes.size, problem.n_folds)
        widths = [8 * n_lanes, 8 * n_lanes, constant_bytes(problem, dataset)]
        self.slots = SlotStore(
            folder,
            np.repeat(np.arange(3), starts.size),
            np.concatenate([sizes * width for width in widths]),
            1,
        )
        self._page = _new_rows(page_rows, n_lanes, kind, dataset.weighted)
        self._brought: Rows | None = None
        self._room: Rows | None = None
        self._listed: np.ndarray = np.zeros(0, dtype=np.int64)
        self._compacted: Window | None = None

    def write_constants(self) -> None:
        """Write kind and weight of all rows, for a new run; reads the rows, not their entries."""
        page, filled, number = self._page, 0, 0
        kind: np.ndarray
        for kind, weight in read_rows(self._dataset, self._problem, self._seed):
            start = 0
            while start < kind.size:
                stop = min(start + self._page_rows - filled, kind.size)
                page.kind[filled : filled + stop - start] = kind[start:stop]
                page.weight[filled : filled + stop - start] = weight[start:stop]
                filled, start = filled + stop - start, stop
                if filled == self._size(number):
                    self._save(number, page, filled, "constant")
                    number, filled = number + 1, 0

    def begin_certificates(self) -> None:
        """Nothing: there is room for fresh scores in the file."""

    def end_read(self) -> None:
        """Nothing: fresh scores stay in the file, to be written anew."""

    def stretches(
        self, start: int = 0, stop: int | None = None, *, fresh: bool = False, saved: Sequence[str] = ()
    ) -> Iterator[Rows]:
        """Pages, ascending, that hold all of ``start:stop``; saves ``"score"`` or ``"fresh"`` of each as it is left."""
        assert self._brought is None, "what was brought is stale once a page changes"
        stop = self._n_rows if stop is None else stop
        for number in range(start // self._page_rows, -(-stop // self._page_rows)):
            size = self._size(number)
            self._load(number, size, fresh=fresh or "fresh" in saved)
            page = self._page
            yield Rows(
                number * self._page_rows,
                page.score[:size],
                page.fresh[:size],
                page.kind[:size],
                page.weight[:size],
            )
            for name in saved:
                self._save(number, page, size, name)

    def bring(self, window: Window, *, fresh: bool) -> Rows:
        """The rows of a window's entries, which the arena has by new numbers from now on."""
        if self._brought is None:
            self._compact(window)
            assert self._room is not None
            n, room = self._listed.size, self._room
            self._brought = Rows(0, room.score[:n], room.fresh[:n], room.kind[:n], room.weight[:n])
            for number, part, place in self._pages_of_listed():
                page = self._load(number, self._size(number), fresh=fresh)
                for name in ("score", "kind", "weight") + (("fresh",) if fresh else ()):
                    target, source = getattr(self._brought, name), getattr(page, name)
                    if source.size:
                        target[part] = source[place]
        return self._brought

    def take_back(self, saved: Sequence[str]) -> None:
        """Write what a visit has changed in the rows that were brought, and let go of them."""
        rows, self._brought = self._brought, None
        if rows is None or not saved:
            return
        for number, part, place in self._pages_of_listed():
            size = self._size(number)
            page = self._load(number, size, fresh="fresh" in saved)
            for name in saved:
                getattr(page, name)[place] = getattr(rows, name)[part]
                self._save(number, page, size, name)

    # -- inside

    def _compact(self, window: Window) -> None:
        if self._compacted is window:
            return
        arena: ColumnArena = window.arena
        if self._room is None:
            most = min(arena.row.size, self._n_rows)
            page = self._page
            self._room = _new_rows(most, page.score.shape[1], page.kind.dtype, page.weight.size > 0)
            self._all_listed = np.empty(most, dtype=arena.row.dtype)
            self._following = np.empty(arena.feature.size, dtype=np.int64)
            self._rank = np.empty(min(_RANK_ROWS, max(self._n_rows, 1)), dtype=np.int64)
        n_columns = int(window.stop.max(initial=0))
        n = compact_rows(
            arena.indptr, arena.row, n_columns, self._n_rows, self._following, self._rank, self._all_listed
        )
        self._listed = self._all_listed[:n]
        self._compacted = window

    def _pages_of_listed(self) -> Iterator[tuple[int, slice, np.ndarray]]:
        """Pages with rows of the window: the number of the page, the part of the rows brought, and their places in it."""
        start = 0
        while start < self._listed.size:
            number = int(self._listed[start]) // self._page_rows
            first = number * self._page_rows
            stop = place_of(self._listed, min(first + self._page_rows, self._n_rows))
            yield number, slice(start, stop), self._listed[start:stop] - first
            start = stop

    def _size(self, number: int) -> int:
        return min(self._page_rows, self._n_rows - number * self._page_rows)

    def _load(self, number: int, size: int, *, fresh: bool) -> Rows:
        page = self._page
        for part, arrays in (
            (_SCORE, [page.score[:size]]),
            (_CONSTANT, _constants(page, size)),
            (_FRESH, [page.fresh[:size]]),
        ):
            if (part != _FRESH or fresh) and not self.slots.load(part * self._n_pages + number, arrays):
                for array in arrays:
                    array[:] = 0
        return page

    def _save(self, number: int, page: Rows, size: int, name: str) -> None:
        part = {"score": _SCORE, "fresh": _FRESH, "constant": _CONSTANT}[name]
        arrays = _constants(page, size) if part == _CONSTANT else [getattr(page, name)[:size]]
        self.slots.save(part * self._n_pages + number, arrays)


def place_of(rows: np.ndarray, row: int) -> int:
    """How many of some ascending rows come before one."""
    return int(
        np.searchsorted(rows, rows.dtype.type(row))
    )  # of another type, all of `rows` would be converted


def _constants(page: Rows, size: int) -> list[np.ndarray]:
    return [page.kind[:size], *([page.weight[:size]] if page.weight.size else [])]


def _new_rows(n_rows: int, n_lanes: int, kind: np.dtype, weighted: bool) -> Rows:
    shape = (n_rows, n_lanes)
    return Rows(
        0, np.empty(shape), np.empty(shape), np.empty(n_rows, kind), np.empty(n_rows if weighted else 0)
    )


# ---------------------------------------------------------------------------------------------------------------------
# Kinds and weights; arithmetic


def kind_dtype(n_classes: int, n_folds: int) -> np.dtype:
    """The type of ``class * folds + fold``."""
    return np.dtype(np.uint16 if n_classes * max(n_folds, 1) <= 1 << 16 else np.uint32)


def constant_bytes(problem: Problem, dataset: Dataset) -> int:
    """Bytes of a row's kind and weight."""
    return kind_dtype(problem.classes.size, problem.n_folds).itemsize + 8 * dataset.weighted


def paging_bytes(problem: Problem, dataset: Dataset) -> tuple[int, int, int]:
    """What pages take in memory: bytes for each entry of a window, bytes beside, and the rows of a page.

    In the worst case every entry of a window is of another row.
    """
    row_bytes = 16 * problem.n_lanes + constant_bytes(problem, dataset)
    page_rows = max(PAGE_BYTES // (8 * problem.n_lanes), 1)
    n_pages = -(-dataset.n_rows // page_rows)
    # a page, its bytes as they are read, and temporary copies of both; of every page three times two slots in tables
    fixed = 4 * page_rows * row_bytes + 8 * _RANK_ROWS + 200 * n_pages
    return row_bytes + 8, fixed, page_rows


def read_rows(dataset: Dataset, problem: Problem, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Kind and weight (the latter empty where all are 1) of all rows, chunk by chunk.

    Raises
    ------
    DatasetError
        Where a label is none of the manifest's.
    """
    classes, n_folds = problem.classes, problem.n_folds
    dtype = kind_dtype(classes.size, n_folds)
    for chunk in range(dataset.n_chunks):
        label, weight, source = dataset.read_rows(chunk, ("label", "weight", "source"))
        code = np.minimum(np.searchsorted(classes, label), classes.size - 1)
        if not np.array_equal(classes[code], label):
            raise DatasetError(f"{dataset.place(chunk)}: a label that the manifest does not list")
        if n_folds:
            code = code * n_folds + deal_folds(source, seed, n_folds)
        yield code.astype(dtype), weight if dataset.weighted else weight[:0]

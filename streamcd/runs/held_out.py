"""Decisions on held-out rows: those of every fold by the lanes trained without it, in one read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..core.classes import has_vector_per_class
from ..core.progress import Progress
from ..kernels import rows as rows_kernels
from ..models.model import plane_distances
from ..solvers.problem import Problem
from ..stream.arenas import RowLayout
from ..stream.memory_plan import make_plan
from ..stream.stream import Stream
from ..stream.window import Window
from ..training import checkpoint
from ..training.loop import Session
from .config import ResolvedRun

_BYTES = 1 << 22  # of decisions at a time

Used = TypeVar("Used")


class HeldOut(NamedTuple):
    """Rows of a fold with the decisions by the lanes of one C trained without it."""

    C: float
    fold: int
    code: np.ndarray  # indices of the rows' classes
    decisions: np.ndarray  # shape (rows, vectors)
    w: np.ndarray  # of these vectors, the bias's row last


_Fold = tuple[int, list[float], np.ndarray]
"""Number of a fold, C of the classifiers trained without it, and w of all of them, side by side."""


def held_out_rows(
    path: Path, folds: ResolvedRun, session: Session, use: Callable[[HeldOut], Used], phase: str
) -> Iterator[Used]:
    """Decide all rows by the states of a run of folds in a directory; one read for each group of lanes.

    Threads decide blocks of rows, and call `use`, whose results are in the order of the rows.
    """
    problem, dataset, threads = folds.problem, folds.dataset, session.threads
    for group in folds.groups:
        lanes = problem.subset(group.lanes)
        arrays = checkpoint.read_arrays(path / group.directory / "state.npz", ("w",))
        assert arrays is not None
        layout, plan = folds.make_solver(lanes).layout, folds.config.plan
        if not isinstance(layout, RowLayout):  # decisions are by rows, also where features were visited
            layout = RowLayout(0, 0)
            needs = {"weights": 2 * arrays["w"].nbytes + 4 * _BYTES}
            plan = make_plan(dataset, folds.config.memory, layout, needs)
        by_fold = _by_fold(lanes, arrays.pop("w"))
        most = max(w.shape[1] for _, _, w in by_fold) * (threads.count + 1)
        options: dict[str, Any] = {"n_folds": problem.n_folds, "n_threads": threads.count}
        with Stream(dataset, plan, layout, folds.options.seed, **options) as stream:
            done = 0
            for window in stream.windows(0):
                decide = partial(_decide, window, by_fold, lanes.bias, use)
                for found in threads.in_order(partial(decide, rows) for rows in _row_blocks(window, most)):
                    yield from found
                done += window.n_entries
                session.listener.progress(Progress(phase, done, dataset.n_entries, "entries"))


def _by_fold(lanes: Problem, w: np.ndarray) -> list[_Fold]:
    """Sort the classifiers of all C by the fold that they were trained without."""
    first_lanes = lanes.lanes[:: lanes.block_lanes]
    weights, found = w.reshape(w.shape[0], len(first_lanes), -1), []
    for fold in sorted({lane.fold for lane in first_lanes}):
        mine = [number for number, lane in enumerate(first_lanes) if lane.fold == fold]
        found.append((fold, [first_lanes[n].C for n in mine], weights[:, mine].reshape(w.shape[0], -1)))
    return found


def _row_blocks(window: Window, n_columns: int) -> list[slice]:
    rows = max(1, _BYTES // (8 * n_columns))
    return [
        slice(first, min(first + rows, stop))
        for _, start, stop in window.chunk_ranges()
        for first in range(start, stop, rows)
    ]


def _decide(
    window: Window, folds: list[_Fold], bias: float, use: Callable[[HeldOut], Used], block: slice
) -> list[Used]:
    """Decide a block of rows, each by the classifiers trained without its fold."""
    arena, found = window.arena, []
    start, stop, code = arena.indptr[:-1][block], arena.indptr[1:][block], arena.code[block]
    for fold, costs, w in folds:
        mine = np.flatnonzero(arena.fold[block] == fold)
        decisions = np.empty((mine.size, w.shape[1]))
        rows_kernels.margins(start[mine], stop[mine], arena.feature, arena.value, w[:-1], decisions)
        decisions += bias * w[-1]
        width = w.shape[1] // len(costs)
        for own, C in enumerate(costs):
            vectors = slice(own * width, (own + 1) * width)
            found.append(use(HeldOut(C, fold, code[mine], decisions[:, vectors], w[:, vectors])))
    return found


def predicted_classes(problem: Problem, decisions: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the indices of the predicted classes, from the decisions of one classifier's vectors `w`."""
    if problem.loss == "twin":
        norms = np.sqrt(np.einsum("ij,ij->j", w[:-1], w[:-1]))
        return plane_distances(decisions, norms).argmin(axis=1)
    if problem.classes.size == 2 and decisions.shape[1] == 1:
        return (decisions[:, 0] > 0).astype(np.int64)
    if has_vector_per_class(problem.code):
        return decisions.argmax(axis=1)
    # a class at a time: the whole code as float64 may be larger than all else
    scores = np.stack([decisions @ row.astype(np.float64) for row in problem.code], axis=1)
    return np.asarray(scores.argmax(axis=1))

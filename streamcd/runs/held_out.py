"""Decisions on held-out rows: those of every fold by the lanes trained without it, in one read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..core.classes import has_vector_per_class
from ..core.progress import Listener, Progress
from ..kernels import rows as rows_kernels
from ..models.model import plane_distances
from ..solvers.problem import Problem
from ..stream.arenas import RowLayout
from ..stream.memory_plan import make_plan
from ..stream.stream import Stream
from ..stream.window import Window
from ..training import checkpoint
from .config import ResolvedRun

_BYTES = 1 << 22  # of decisions at a time


class HeldOut(NamedTuple):
    """Rows of a fold with the decisions by the lanes of one C trained without it."""

    C: float
    fold: int
    code: np.ndarray  # indices of the rows' classes
    decisions: np.ndarray  # shape (rows, vectors)
    w: np.ndarray  # of these vectors, the bias's row last


def held_out_rows(path: Path, folds: ResolvedRun, listener: Listener, phase: str) -> Iterator[HeldOut]:
    """Decide all rows by the states of a run of folds in a directory; one read for each group of lanes."""
    problem, dataset = folds.problem, folds.dataset
    for group in folds.groups:
        lanes = problem.subset(group.lanes)
        arrays = checkpoint.read_arrays(path / group.directory / "state.npz", ("w",))
        assert arrays is not None
        layout, plan = folds.make_solver(lanes).layout, folds.config.plan
        if not isinstance(layout, RowLayout):  # decisions are by rows, also where features were visited
            layout = RowLayout(0, 0)
            needs = {"weights": 2 * arrays["w"].nbytes + 4 * _BYTES}
            plan = make_plan(dataset, folds.config.memory, layout, needs)
        with Stream(dataset, plan, layout, folds.options.seed, n_folds=problem.n_folds) as stream:
            done = 0
            for window in stream.windows(0):
                for start, stop in _row_blocks(window, arrays["w"].shape[1]):
                    yield from _decide(window, start, stop, arrays["w"], lanes)
                done += window.n_entries
                listener.progress(Progress(phase, done, dataset.n_entries, "entries"))


def _row_blocks(window: Window, n_columns: int) -> list[tuple[int, int]]:
    rows = max(1, _BYTES // (8 * n_columns))
    return [
        (first, min(first + rows, stop))
        for _, start, stop in window.chunk_ranges()
        for first in range(start, stop, rows)
    ]


def _decide(window: Window, start: int, stop: int, w: np.ndarray, lanes: Problem) -> Iterator[HeldOut]:
    arena = window.arena
    decisions = np.empty((stop - start, w.shape[1]))
    indptr = np.ascontiguousarray(arena.indptr[start : stop + 1])
    rows_kernels.margins(indptr, arena.feature, arena.value, w[:-1], decisions)
    decisions += lanes.bias * w[-1]
    code, fold = arena.code[start:stop], arena.fold[start:stop]
    columns = lanes.block_lanes * lanes.lane_vectors
    for number in range(0, lanes.n_lanes, lanes.block_lanes):
        lane, first = lanes.lanes[number], number * lanes.lane_vectors
        mine = fold == lane.fold
        block = slice(first, first + columns)
        yield HeldOut(lane.C, lane.fold, code[mine], decisions[mine, block], w[:, block])


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

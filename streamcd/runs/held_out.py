"""Decisions on held-out rows: those of every fold by the lanes trained without it, in one read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from ..core.classes import class_indices
from ..core.memory_budget import RUNNING_BYTES, make_room, require
from ..core.progress import Progress
from ..core.setting import Setting
from ..core.threads import Threads
from ..dataset.centring import Centre
from ..dataset.schema import ChunkData
from ..kernels.sparse_rows import SparseRows
from ..models.scoring import ClassChoice, affordable_threads, chunk_bytes, score, score_chunks
from ..solvers.problem import Problem
from ..training import checkpoint
from ..training.loop import Session
from .config import ResolvedRun

_BYTES = 1 << 22  # of decisions at a time
_KERNEL_BYTES = 25_000_000  # of kernels, and of the library that loads them, which the first chunk does

Used = TypeVar("Used")


class HeldOut(NamedTuple):
    """Rows of a fold with the decisions by the lanes of one C and λ trained without it."""

    setting: Setting
    fold: int
    label: np.ndarray
    code: np.ndarray  # indices of the rows' classes; 0 where they have targets
    weight: np.ndarray
    decisions: np.ndarray  # shape (rows, vectors)
    choice: ClassChoice


class _Fold(NamedTuple):
    """The classifiers of all C and λ that were trained without a fold, their vectors side by side."""

    number: int
    settings: list[Setting]
    choices: list[ClassChoice]
    weights: np.ndarray  # shape (features, vectors)
    intercept: np.ndarray


def held_out_rows(
    path: Path,
    folds: ResolvedRun,
    session: Session,
    use: Callable[[HeldOut], Used],
    used_bytes: int = 0,
) -> Iterator[Used]:
    """Score all rows by the states of a run of folds in a directory; one read for each group of lanes.

    Threads score blocks of rows, and call `use`, whose results are in the order of the rows; the caller takes `used_bytes`
    for them.
    """
    dataset = folds.dataset
    for group in folds.groups:
        lanes = folds.problem.subset(group.lanes)
        by_fold = _by_fold(lanes, path / group.directory / "state.npz", folds.centre)
        n_columns = max(fold.intercept.size for fold in by_fold)
        needs = {
            "the client of the URL": dataset.client_bytes,
            "weights": 2 * sum(fold.weights.nbytes for fold in by_fold),
            "one chunk": chunk_bytes(dataset),
            "decisions": 2 * _BYTES,
            "scores": used_bytes,
            "folds of rows": dataset.held_bytes,
            "kernels": _KERNEL_BYTES,
        }
        left = require(folds.config.memory, needs, reserved=RUNNING_BYTES)
        make_room(folds.config.memory, sum(needs.values()))
        count, _ = affordable_threads(dataset, left, n_columns, session.threads.count)
        score_chunk = partial(_score_chunk, folds, by_fold, max(1, _BYTES // (8 * n_columns)), use)
        chunks = range(dataset.n_chunks)
        for chunk, scored in score_chunks(dataset, chunks, score_chunk, Threads(count)):
            yield from scored
            done = int(dataset.row_start[chunk + 1])
            session.listener.progress(Progress("score the folds", done, dataset.n_rows, "rows"))


def _by_fold(lanes: Problem, state: Path, centre: Centre | None) -> list[_Fold]:
    """Sort the classifiers of a state by the fold that they were trained without."""
    arrays = checkpoint.read_arrays(state, ("w",))
    assert arrays is not None
    n_rows, folds = lanes.n_features + 1, []
    first_lanes = lanes.lanes[:: lanes.block_lanes]
    weights = arrays.pop("w")
    if centre is not None:
        weights[-1] = centre.stored_bias(weights, lanes.bias)
    weights = weights.reshape(n_rows, len(first_lanes), -1)
    for fold in sorted({lane.fold for lane in first_lanes}):
        mine = [number for number, lane in enumerate(first_lanes) if lane.fold == fold]
        w = weights.take(mine, axis=1)
        choices = [ClassChoice(lanes.loss, lanes.code, w[:-1, own]) for own in range(len(mine))]
        settings, w = [first_lanes[n].setting for n in mine], w.reshape(n_rows, -1)
        folds.append(_Fold(fold, settings, choices, w[:-1], lanes.bias * w[-1]))
    return folds


def _score_chunk(
    folds: ResolvedRun,
    by_fold: list[_Fold],
    block_rows: int,
    use: Callable[[HeldOut], Used],
    data: ChunkData,
) -> Iterator[Used]:
    """Score the rows of a chunk, block by block, each by the classifiers trained without its fold."""
    code = np.zeros(data.label.size, np.int64)
    if not folds.problem.has_targets:
        code, _ = class_indices(folds.problem.classes, data.label)
    number = folds.dataset.folds_of(data.source, folds.options.seed, folds.problem.n_folds)
    for first in range(0, code.size, block_rows):
        block = slice(first, first + block_rows)
        for fold in by_fold:
            mine = first + np.flatnonzero(number[block] == fold.number)
            rows = SparseRows(data.indptr[mine], data.indptr[mine + 1], data.feature, data.value)
            decisions, _ = score(rows, fold.weights, fold.intercept)
            of_each = np.split(decisions, len(fold.settings), axis=1)
            for setting, choice, own in zip(fold.settings, fold.choices, of_each, strict=True):
                yield use(
                    HeldOut(
                        setting, fold.number, data.label[mine], code[mine], data.weight[mine], own, choice
                    )
                )

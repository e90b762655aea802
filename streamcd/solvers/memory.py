"""Memory of solvers: bytes as functions of the sizes of problem and data, by which a plan counts without a solver."""

from __future__ import annotations

import numpy as np

from ..dataset.dataset import Dataset
from ..dataset.feature_order import MOST_UNRANKED
from ..kernels.loss_table import CLASSES, LOG_LOSS, LOSSES
from ..kernels.weights import N_BUCKETS
from ..stream.arenas import RESIDENT_WINDOW_ENTRIES, ColumnLayout, RowLayout
from ..stream.memory_plan import SolverMemory
from .problem import Problem

PARTS = 4
"""Parts of a window that newton sums up."""

MOST_COPIED = 1 << 19
"""Largest number of weights with which two threads visit the rows of a lane, each with a copy of w."""

LANES_TOGETHER = 4
"""Largest number of lanes visited at a time that have a vector for each class, each with an order of the window's rows. It
does not depend on the number of threads, and so neither do the windows."""


def dual_memory(problem: Problem, *, accelerated: bool) -> SolverMemory:
    """Count w and acceleration's, copies of w for two threads, the rank, and what a row has: dual variables and flags.

    They are those of every lane, of the logistic loss ``C - alpha`` too: a subtraction would lose its digits. Losses of all
    classes have a variable of every class, and flags of those that leave.
    """
    size, n_lanes, centred = _size(problem), problem.n_lanes, problem.free_bias
    ranked = MOST_UNRANKED < problem.n_features < 1 << 32  # ranks are uint32
    if problem.form == CLASSES:
        n_vectors = n_lanes * problem.lane_vectors
        n_flags, n_orders = (
            n_lanes if LOSSES[problem.loss].smooth else n_vectors,
            min(n_lanes, LANES_TOGETHER),
        )
        layout = RowLayout(n_vectors, n_flags, n_orders=n_orders, centred=centred, ranked=ranked)
    else:
        width = (2 if problem.row_loss.kind == LOG_LOSS else 1) * n_lanes
        targets = problem.has_targets
        layout = RowLayout(width, n_lanes, has_targets=targets, centred=centred, ranked=ranked)
    copies = 1 + accelerated + problem.free_bias + (2 if n_lanes == 1 and size <= MOST_COPIED else 0)
    more = 16 * N_BUCKETS * n_lanes + 4 * ranked * (problem.n_features + 1)  # sketches, the rank
    return SolverMemory(layout, 8 * size * copies + more, message=8 * size * (1 + problem.free_bias))


def twin_sor_memory(problem: Problem) -> SolverMemory:
    """Count three vectors and a matrix of features × features for every plane, and copies of one."""
    n_lanes, size = problem.n_lanes, problem.n_features + 1
    return SolverMemory(
        RowLayout(n_lanes, n_lanes),
        8 * size * (n_lanes * (size + 3) + 2 * size),
        advice="give a larger --memory, or take --method dual, which needs no matrix",
    )


def primal_memory(
    problem: Problem, dataset: Dataset, *, with_replacement: bool, extrapolates: bool
) -> SolverMemory:
    """Count two arrays of the size of w, and as many scores of every row and lane; with extrapolation three.

    Where the scores take most, the dual method is named: its dual variables are on disk.
    """
    # with all columns in one window, independent draws are exactly Algorithm 3
    window = max(dataset.n_entries, 1) if with_replacement else RESIDENT_WINDOW_ENTRIES
    points = 3 if extrapolates else 2
    layout = ColumnLayout(window, centred=problem.free_bias)
    weights = points * 8 * _size(problem) + _signed_costs(problem)
    rows = dataset.n_rows * (points * 8 * problem.n_lanes + constant_bytes(problem, dataset))
    if rows <= weights:
        return SolverMemory(layout, weights, rows)
    advice = "give a larger --memory, or take --method dual, which keeps no scores of rows in memory"
    return SolverMemory(layout, weights, rows, advice=advice)


NARROW = 512
"""Largest number of columns of a working set that is solved for by its matrix."""


def working_set_memory(problem: Problem, dataset: Dataset) -> SolverMemory:
    """Count the scores of every row and lane, and the sums of every feature and lane.

    A row has its score, that of moved weights, that summed up anew and a dual variable in every lane, and four numbers in
    lanes that are solved for at a time; a feature has its weight twice and its sum in every lane, and a norm. A held column
    has its start, feature and nearness, and in those lanes the vectors of a working set.
    """
    from ..kernels.newton import BLOCK

    together, size = min(problem.n_lanes, LANES_TOGETHER), problem.n_features + 1
    narrow = min(NARROW + 1, size)
    matrices = 24 * (narrow + BLOCK) * narrow * together
    row_bytes = 32 * problem.n_lanes + 32 * together + 2 * constant_bytes(problem, dataset)
    return SolverMemory(
        ColumnLayout(item_bytes=64 + 128 * together, centred=problem.free_bias),
        size * (24 * problem.n_lanes + 8) + matrices + _signed_costs(problem),
        dataset.n_rows * row_bytes,
        advice="give a larger --memory: this method keeps numbers of every row in memory",
        held_bytes=72 + 120 * together,
    )


_MOST_PARTS = 1 << 23
"""Largest number of elements of all lanes' Hessians of which every part of a window sums up its own."""


def newton_parts(problem: Problem) -> int:
    """Count the sums of the Hessians that are made at a time; with one, the parts are rows of the Hessians."""
    return PARTS if problem.n_lanes * (problem.n_features + 1) ** 2 * PARTS <= _MOST_PARTS else 1


def newton_memory(problem: Problem, dataset: Dataset) -> SolverMemory:
    """Count the Hessian of every lane, in each of the sums made at a time, those of a solution, and some vectors."""
    from ..kernels.newton import BLOCK, LENGTHS

    n_lanes, size, n_parts = problem.n_lanes, problem.n_features + 1, newton_parts(problem)
    matrices, vectors = 8 * n_lanes * size**2, 8 * size * n_lanes
    sums = matrices + 3 * vectors + 8 * 64 * n_lanes
    of_model = 8 * size**2 if problem.l1.any() else 0  # of the support
    blocks = 8 * size * (PARTS * BLOCK + 3 * LENGTHS.size)
    l1_way = "--method working-set with the column layout ('streamcd columns DATASET' makes it)"
    way = l1_way if problem.l1.any() else "--method dual"
    return SolverMemory(
        RowLayout(0, 0, has_targets=problem.has_targets, centred=problem.free_bias),
        matrices + 16 * vectors + (sums * n_parts if n_parts > 1 else 0) + of_model + blocks,
        message=sums,
        advice=f"give a larger --memory, or take {way}, which needs no matrix",
    )


def _size(problem: Problem) -> int:
    """Count the weights of all lanes and vectors."""
    return (problem.n_features + 1) * problem.n_lanes * problem.lane_vectors


def _signed_costs(problem: Problem) -> int:
    """Count the signed costs, and temporary tables for them and for the smaller side of a row."""
    return 3 * max(problem.n_folds, 1) * problem.full_table_bytes


def kind_dtype(n_classes: int, n_cells: int) -> np.dtype:
    """Choose the integer type of ``class * cells + cell``."""
    return np.dtype(np.uint16 if n_classes * max(n_cells, 1) <= 1 << 16 else np.uint32)


def constant_bytes(problem: Problem, dataset: Dataset) -> int:
    """Compute the bytes of a row's kind, weight and target."""
    kind = kind_dtype(problem.n_kinds, problem.n_folds)
    return kind.itemsize + 8 * dataset.weighted + 8 * problem.has_targets

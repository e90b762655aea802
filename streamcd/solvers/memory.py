"""Memory of solvers: bytes as functions of the sizes of problem and data, by which a plan counts without a solver."""

from __future__ import annotations

from ..core.memory_budget import RUNNING_BYTES
from ..dataset.dataset import Dataset
from ..kernels.acceleration import N_BUCKETS
from ..kernels.loss_table import LOSSES, is_logistic
from ..stream.arenas import RESIDENT_WINDOW_ENTRIES, ColumnLayout, RowLayout
from ..stream.memory_plan import Holding, Paging, SolverMemory
from .problem import Problem

PARTS = 4
"""Parts of a window, certified by threads; the sums are the same for any number of these."""

MOST_COPIED = 1 << 19
"""Largest number of weights with which a window is certified in parts, each with a copy of w(alpha)."""

LANES_TOGETHER = 4
"""Largest number of lanes visited at a time that have a vector for each class, each with an order of the window's rows. It
does not depend on the number of threads, and so neither do the windows."""


def dual_memory(problem: Problem, *, accelerated: bool) -> SolverMemory:
    """Count w and w(alpha); a row has a dual variable per lane, of the logistic loss ``C - alpha`` too."""
    n_weights = (problem.n_features + 1) * problem.n_lanes
    more = {"parts' w(alpha)": 8 * PARTS * n_weights} if n_weights <= MOST_COPIED else {}
    if problem.free_bias:
        more["w(alpha) of a sign"] = 8 * n_weights
    # the subtraction would lose digits
    alpha_width = (2 if is_logistic(problem.loss) else 1) * problem.n_lanes
    free = problem.free_bias
    layout = RowLayout(alpha_width, problem.n_lanes, has_targets=problem.has_targets, centred=free)
    return SolverMemory(layout, _two_weights(problem) + _centre(problem, accelerated), more=more)


def class_memory(problem: Problem, *, accelerated: bool) -> SolverMemory:
    """Count w and w(alpha); a row has a dual variable of every lane and class, and flags of those that leave."""
    n_vectors = problem.n_lanes * problem.lane_vectors
    n_flags = problem.n_lanes if LOSSES[problem.loss].smooth else n_vectors
    layout = RowLayout(
        n_vectors, n_flags, n_orders=min(problem.n_lanes, LANES_TOGETHER), centred=problem.free_bias
    )
    more = {"sums of the classes": _two_weights(problem) // 2} if problem.free_bias else {}
    return SolverMemory(layout, _two_weights(problem) + _centre(problem, accelerated), more=more)


def twin_sor_memory(problem: Problem) -> SolverMemory:
    """Count three vectors and a matrix of features × features for every plane."""
    from ..kernels.twin import BLOCK

    n_lanes, size = problem.n_lanes, problem.n_features + 1
    matrices = f"{n_lanes} {'matrix' if n_lanes == 1 else 'matrices'} of {size:,} x {size:,}"
    return SolverMemory(
        RowLayout(n_lanes, n_lanes),
        3 * 8 * size * n_lanes,
        more={
            matrices: 8 * size**2 * n_lanes,
            "columns of one": 2 * 8 * BLOCK * size,
        },
        advice="give a larger --memory, or take --method dual, which needs no matrix",
    )


def primal_memory(
    problem: Problem, dataset: Dataset, *, with_replacement: bool, extrapolates: bool
) -> SolverMemory:
    """Count two arrays of the size of w, and as many scores of every row and lane; with extrapolation three."""
    from .row_scores import constant_bytes, paging_bytes  # with the kernels of columns

    # with all columns in one window, independent draws are exactly Algorithm 3
    window = max(dataset.n_entries, 1) if with_replacement else RESIDENT_WINDOW_ENTRIES
    points = 3 if extrapolates else 2
    entry_bytes, fixed_bytes, page_rows = paging_bytes(problem, dataset, extrapolates=extrapolates)
    # the signed costs, and temporary tables for them and for the smaller side of a row
    signed = 3 * max(problem.n_folds, 1) * problem.full_table_bytes
    return SolverMemory(
        ColumnLayout(window, centred=problem.free_bias),
        points * 8 * (problem.n_features + 1) * problem.n_lanes,
        dataset.n_rows * (points * 8 * problem.n_lanes + constant_bytes(problem, dataset)),
        {"signed costs": signed},
        Paging(entry_bytes, 8, fixed_bytes, page_rows),
    )


NARROW = 256
"""Largest number of columns of a working set that is solved for by its matrix."""

_HELD_SHARE = 0.9
"""Share of a budget's rest for columns that are held; the others are of windows."""

_HELD_BYTES, _HELD_LANE_BYTES = 72, 104
"""Bytes of a held column beside its entries: where it begins, its feature and nearness, choices among columns; and in each
of `LANES_TOGETHER` the vectors of a working set."""


def working_set_memory(problem: Problem, dataset: Dataset) -> SolverMemory:
    """Count the scores of every row and lane, and the sums of every feature and lane.

    A row has its score, that of moved weights, that summed up anew and a dual variable in every lane, and four numbers in
    lanes that are solved for at a time; a feature has its weight twice and its sum in every lane, a mark there, and two
    numbers of its own.
    """
    from ..kernels.newton import BLOCK
    from .row_scores import constant_bytes  # with the kernels of columns

    together, size = min(problem.n_lanes, LANES_TOGETHER), problem.n_features + 1
    narrow, n_lanes = min(NARROW + 1, size), problem.n_lanes
    of_rows = 32 * n_lanes + 40 * together + 2 * constant_bytes(problem, dataset)
    signed = 3 * max(problem.n_folds, 1) * problem.full_table_bytes
    return SolverMemory(
        ColumnLayout(item_bytes=64 + 112 * together, centred=problem.free_bias),
        size * 9 * n_lanes,
        8 * dataset.n_rows * n_lanes,
        {
            "rows": dataset.n_rows * (of_rows - 8 * n_lanes),
            "sums of features": size * (16 * n_lanes + 16),
            "matrices of a solution": 24 * (narrow + BLOCK) * narrow * together,
            "signed costs": signed,
        },
        advice="give a larger --memory: this method keeps numbers of every row in memory",
        holding=Holding(_HELD_BYTES + _HELD_LANE_BYTES * together, _HELD_SHARE),
    )


def _two_weights(problem: Problem) -> int:
    return 2 * 8 * (problem.n_features + 1) * problem.n_lanes * problem.lane_vectors


def _centre(problem: Problem, accelerated: bool) -> int:
    """Count acceleration's centre or w(alpha), and two sketches of a lane."""
    beside = (problem.n_features + 1) * problem.n_lanes * problem.lane_vectors
    return 8 * (beside + 2 * N_BUCKETS * problem.n_lanes) if accelerated else 0


_MOST_PARTS = 1 << 23
"""Largest number of elements of all lanes' Hessians of which every part of a window sums up its own."""


def newton_parts(problem: Problem) -> int:
    """Count the sums of the Hessians that are made at a time; with one, the parts are rows of the Hessians."""
    return PARTS if problem.n_lanes * (problem.n_features + 1) ** 2 * PARTS <= _MOST_PARTS else 1


_UNLOADED = 10_000_000
"""Bytes of kernels that other methods load and newton does not: with its own a process takes 82 to 88 MB."""


def newton_memory(problem: Problem, dataset: Dataset) -> SolverMemory:
    """Count the Hessian of every lane, in each of the sums made at a time, those of a solution, and some vectors."""
    from ..kernels.newton import BLOCK, LENGTHS, PANEL
    from .quadratic_model import ROWS

    n_lanes, size, n_parts = problem.n_lanes, problem.n_features + 1, newton_parts(problem)
    matrix, vectors = 8 * size**2, 8 * size * n_lanes
    sums = n_lanes * matrix + 5 * vectors + 8 * 64 * n_lanes
    return SolverMemory(
        RowLayout(0, 0, has_targets=problem.has_targets, centred=problem.free_bias),
        8 * vectors,
        more={
            f"{n_lanes} {'matrix' if n_lanes == 1 else 'matrices'} of {size:,} x {size:,}": n_lanes * matrix,
            "parts' matrices": sums * n_parts if n_parts > 1 else 0,
            # the support's, and a copy of the columns of some rows
            "matrix of a model": matrix + 8 * size * ROWS if problem.l1.any() else 0,
            "blocks of rows": (PARTS * BLOCK + 4 * PANEL) * 8 * size,
            "vectors of a visit": 8 * vectors + 3 * LENGTHS.size * 8 * size,
        },
        joined=4 * sums,  # what a worker sends, a neighbour's, what both make, and a message
        running=RUNNING_BYTES - _UNLOADED,
    )

"""Memory of solvers: bytes as functions of the sizes of problem and data, by which a plan counts without a solver."""

from __future__ import annotations

import numpy as np

from ..core.memory_budget import RUNNING_BYTES
from ..dataset.dataset import Dataset
from ..kernels.acceleration import N_BUCKETS
from ..kernels.loss_table import LOSSES, is_logistic
from ..stream.arenas import RESIDENT_WINDOW_ENTRIES, ColumnLayout, RowLayout
from ..stream.memory_plan import Holding, Paging, SolverMemory
from .block_sums import Blocks
from .kept_rows import ROW_UNITS, KeptRows
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

    A row has its score, that of moved weights, that summed up anew and a dual variable of every vector, and four numbers in
    lanes that are solved for at a time, with classes eight and two for each; a feature has its weight twice and its sum in
    every vector, a mark in every lane, and two numbers of its own.
    """
    from ..kernels.newton import BLOCK
    from .row_scores import constant_bytes  # with the kernels of columns

    together, size = min(problem.n_lanes, LANES_TOGETHER), problem.n_features + 1
    narrow, n_vectors = min(NARROW + 1, size), problem.n_lanes * problem.lane_vectors
    of_lane = 40 if problem.lane_vectors == 1 else 72 + 16 * problem.lane_vectors
    of_rows = 32 * n_vectors + of_lane * together + 2 * constant_bytes(problem, dataset)
    signed = 3 * max(problem.n_folds, 1) * problem.full_table_bytes
    return SolverMemory(
        ColumnLayout(item_bytes=64 + 112 * together, centred=problem.free_bias),
        size * (8 * n_vectors + problem.n_lanes),
        8 * dataset.n_rows * n_vectors,
        {
            "rows": dataset.n_rows * (of_rows - 8 * n_vectors),
            "sums of features": size * (16 * n_vectors + 16),
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
    return PARTS if problem.n_lanes * newton_width(problem) ** 2 * PARTS <= _MOST_PARTS else 1


def newton_width(problem: Problem) -> int:
    """Count the weights of a lane, which are the rows of its Hessian."""
    return (problem.n_features + 1) * problem.lane_vectors


_KEPT = 1 << 19
"""Room for rows that newton keeps, of all lanes, in units of an entry's 8 bytes."""


def kept_units(problem: Problem, dataset: Dataset, *, keeps_rows: bool) -> int:
    """Count the units of room for rows that newton keeps of each lane, if any: a function of problem and data alone.

    None are kept of losses of all classes or of targets, or where the matrices are large.
    """
    if not keeps_rows or problem.lane_vectors > 1 or problem.has_targets or newton_parts(problem) == 1:
        return 0
    return min(_KEPT // problem.n_lanes, dataset.n_entries + ROW_UNITS * dataset.n_rows)


def kept_rows(problem: Problem, dataset: Dataset, *, keeps_rows: bool) -> KeptRows:
    """Return the room for rows that newton keeps."""
    sizes, dtypes = (dataset.n_rows, dataset.n_entries), (dataset.index_dtype, dataset.value_dtype)
    units = kept_units(problem, dataset, keeps_rows=keeps_rows)
    return KeptRows(problem.n_lanes, units, sizes, dtypes)


def newton_blocks(problem: Problem, dataset: Dataset) -> Blocks:
    """Return the blocks whose sums are joined in an order fixed by the data."""
    return Blocks(dataset, newton_width(problem) ** 2)


_UNLOADED = 10_000_000
"""Bytes of kernels that other methods load and newton does not: with its own a process takes 82 to 88 MB."""


def newton_memory(problem: Problem, dataset: Dataset, *, keeps_rows: bool) -> SolverMemory:
    """Count the Hessian of every lane, half of it, in each of the sums that are made or wait at a time, and some vectors."""
    from ..kernels.newton import BLOCK
    from ..kernels.triangle import PANEL, triangle_size
    from .quadratic_model import ROWS

    n_lanes, size, n_parts = problem.n_lanes, newton_width(problem), newton_parts(problem)
    matrices = f"half of {n_lanes} {'matrix' if n_lanes == 1 else 'matrices'} of {size:,} x {size:,}"
    half, vectors = 8 * triangle_size(size), 8 * size * n_lanes
    own = half * n_lanes
    # the others have seven vectors, and numbers
    sums, depth = own + 7 * vectors + 8 * 64 * n_lanes, newton_blocks(problem, dataset).tree.depth
    kept = kept_units(problem, dataset, keeps_rows=keeps_rows)
    return SolverMemory(
        RowLayout(
            0,
            0,
            n_orders=1 + -(-n_lanes // 2) if kept else 1,  # and distances of rows, of 4 bytes
            has_targets=problem.has_targets,
            in_order=True,
            centred=problem.free_bias,
            fewest_chunks=_sample_chunks(dataset),
        ),
        6 * vectors,
        more={
            matrices: own,
            "parts' matrices": sums * n_parts if n_parts > 1 else 0,
            "sums of blocks": sums * depth,
            "blocks of rows": (PARTS * BLOCK + 4 * PANEL) * 8 * size,
            "vectors of a visit": 4 * vectors + 12 * 8 * size * PARTS,
            # whole, a copy of the columns of some rows, and half of that of the support
            "matrix of a model": 8 * size * (size + ROWS) + half if problem.l1.any() else 0,
            # in the state, as a solver visits them, and while others come; and matrices of the other rows, one whole
            "rows near the margin": kept * (8 * n_lanes + 8 + 16) + (own + 3 * half if kept else 0),
        },
        # a worker's blocks leave sums on both sides, of which it holds copies to send, a neighbour's and what both make
        joined=(4 * depth + 2) * sums + 4 * 8 * kept * n_lanes,
        running=RUNNING_BYTES - _UNLOADED,
    )


_SAMPLE_ENTRIES = 1 << 21
"""Entries of the first chunks, at most, from which a sample is drawn: two windows of them take 32 MB."""


def _sample_chunks(dataset: Dataset) -> int:
    """Count the chunks, from the first on, from which a sample is drawn: a function of the data alone."""
    return max(int(np.searchsorted(dataset.entry_start, _SAMPLE_ENTRIES, "right")) - 1, 1)

"""Acceleration of the primal methods by extrapolation of the points where passes end.

If a pass ends at x_k, the next one begins at ``x_k + beta (x_k - x_{k-1})``. The scores there are the same combination of
the scores at both points, so beta comes from a line search that reads no data: one Newton step for the objective along the
line, and beta is 0 after a pass that did not lower it. Objective, certificate, gap and violation are those at x_k: between
reads, and while a lane is certified, w and the scores are those. With beta = 0 this is plain coordinate descent, bit for
bit.

Where plain descent takes 40 passes or more, this takes a half to a quarter of them; Nesterov's momentum with restarts gains
as much by primal, and less by online, whose visits are noisy. Minimising over the last three points gains a fifth more, and
needs one more array of each kind.
"""

from __future__ import annotations

import numpy as np

from ..kernels import primal as primal_kernels
from ..kernels import weights as weight_kernels
from ..kernels.primal import ColumnCosts
from .problem import Problem
from .protocol import State
from .row_scores import PagedRows, RowsInMemory

_MAX_FACTOR = 1.0  # with 2 it took up to 2.5 times the passes, and rounding errors of scores would grow


def add_previous(state: State) -> None:
    """Add to a new state w and the scores where the pass before the last ended, and beta of the pass to come."""
    state.matrices["previous"] = np.zeros(state.w.shape)
    if "score" in state.rows:  # else they are in pages
        state.rows["previous"] = np.zeros(state.rows["score"].shape)
    state.lanes["extrapolation"] = np.zeros(state.w.shape[1])
    state.lanes["objective"] = np.full(state.w.shape[1], np.inf)


def begin_pass(state: State, lanes: np.ndarray, rows: RowsInMemory | PagedRows) -> None:
    """Extrapolate in lanes that begin a training read."""
    factor = state.lanes["extrapolation"]
    weight_kernels.extrapolate(state.w, state.matrices["previous"], lanes, factor)
    for block in rows.iter_blocks(saved=("score", "previous")):
        weight_kernels.extrapolate(block.score, block.previous, lanes, factor)


def end_pass(
    problem: Problem, state: State, lanes: np.ndarray, rows: RowsInMemory | PagedRows, costs: ColumnCosts
) -> np.ndarray:
    """Return the objectives of lanes that trained, shape (all lanes,), and choose how far the next pass is extrapolated."""
    sums, extrapolates = np.zeros((problem.n_lanes, 3)), "previous" in state.matrices
    if extrapolates:
        previous = state.matrices["previous"][problem.penalised]
        weight_kernels.add_line_products(state.w[problem.penalised], previous, lanes, sums)
    else:
        sums[:, 0] = problem.penalty(state.w)
    for block in rows.iter_blocks(more=("previous",) if extrapolates else ()):
        primal_kernels.add_line_terms(block.arrays, block.previous.reshape(-1), costs, lanes, sums)
    objective, slope, curve = sums.T
    if extrapolates:
        kept = state.lanes
        falls = (curve > 0.0) & (objective <= kept["objective"])  # else the last extrapolation was too long
        factor = np.clip(np.divide(-slope, curve, out=np.zeros_like(slope), where=falls), 0.0, _MAX_FACTOR)
        kept["extrapolation"][lanes], kept["objective"][lanes] = factor[lanes], objective[lanes]
    return objective

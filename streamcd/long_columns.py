"""Visits of a column that is not in memory as a whole, or whose rows are not: sweep after sweep, segment after segment.

The step is that of `primal_kernels.primal_visit`, with the same sums in the same order, so with the same bits. It costs a
read of the column (and of its rows' pages) for the derivatives, one for every trial that a step needs, and one for the move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import primal_kernels
from .arenas import ColumnArena
from .kernels import N_STEPS, N_VISITED
from .row_scores import PagedRows, Rows, RowsInMemory, count_before


@dataclass(frozen=True)
class LongColumn:
    """A column and the data that a visit of it needs; `signed`, `loss`, `totals` as in `primal_kernels`."""

    arena: ColumnArena
    sweep: Callable[[], Iterator[int]] | None  # `stream.Window.sweep`; None for the bias
    rows: RowsInMemory | PagedRows
    bias: float  # the value of the bias in every row
    ridge: float  # 1, or 0 where the column's weight is not penalised
    w: np.ndarray  # the column's weights, per lane; changed in place
    signed: np.ndarray
    loss: int
    totals: np.ndarray

    def segments(self, *, fresh: bool = False, saved: Sequence[str] = ()) -> Iterator[tuple[Rows, Any]]:
        """Iterate over all segments in order: the rows of each, and the first arguments of its kernels."""
        row, value = self.arena.row, self.arena.value
        if self.sweep is None:
            for rows in self.rows.iter_blocks(fresh=fresh, saved=saved):
                yield rows, (0, rows.score.shape[0], True, row, value, self.bias)
            return
        for n in self.sweep():
            start = 0
            for rows in self.rows.iter_blocks(int(row[0]), int(row[n - 1]) + 1, fresh=fresh, saved=saved):
                last = rows.first + rows.score.shape[0]
                stop = start + count_before(row[start:n], last)
                row[start:stop] -= rows.first  # the next sweep decodes them again
                yield rows, (start, stop, False, row, value, self.bias)
                start = stop


def train(column: LongColumn, begins: np.ndarray, lanes: np.ndarray) -> None:
    """Make one step along the column in every lane of `lanes`; changes w, scores and totals as `primal_visit` does."""
    n_lanes = column.w.size
    sums = np.zeros((n_lanes, 4))
    for rows, segment in column.segments():
        primal_kernels.piece_slopes(
            *segment, *_row_arrays(rows), column.signed, column.loss, begins, lanes, sums
        )
    steps = np.zeros((n_lanes, 3))
    own = column.ridge * column.w
    primal_kernels.begin_steps(sums, own, column.ridge, column.loss, begins, lanes, column.totals, steps)
    chosen = _line_search(column, own, lanes[steps[lanes, 1] != 0.0], steps)
    moving = np.flatnonzero(chosen)
    if moving.size:
        column.w[moving] += chosen[moving]
        for rows, segment in column.segments(saved=("score",)):
            primal_kernels.piece_moves(*segment, rows.score.reshape(-1), moving, chosen)


def _line_search(column: LongColumn, own: np.ndarray, lanes: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Search the step of each lane, 0 for none; shape (lanes,)."""
    chosen = np.zeros(column.w.size)
    gradient, step, free = steps[:, 0], steps[:, 1].copy(), steps[:, 2]
    share = 1.0
    for _ in range(primal_kernels.HALVINGS):
        accepted = share <= free[lanes]
        trying = lanes[~accepted]
        if trying.size:
            changes = np.zeros(column.w.size)
            for rows, segment in column.segments():
                primal_kernels.piece_changes(
                    *segment, *_row_arrays(rows), column.signed, column.loss, trying, step, changes
                )
            column.totals[trying, N_STEPS] += 1
            accepted = accepted | [
                primal_kernels.is_enough(
                    changes[lane], own[lane], column.ridge, gradient[lane], step[lane], column.loss
                )
                for lane in lanes
            ]
        chosen[lanes[accepted]] = step[lanes[accepted]]
        lanes = lanes[~accepted]
        if not lanes.size:
            break
        share *= 0.5
        step *= 0.5
    return chosen


def certify(column: LongColumn, side: np.ndarray, lanes: np.ndarray) -> None:
    """Sum up the column as `primal_kernels.primal_certify` does; changes the fresh scores and totals."""
    sums = np.zeros(column.w.size)
    for rows, segment in column.segments(fresh=True, saved=("fresh",)):
        primal_kernels.piece_dual_sums(
            *segment, *_row_arrays(rows), column.signed, column.loss, side, lanes, sums
        )
        primal_kernels.piece_moves(*segment, rows.fresh.reshape(-1), lanes, column.w)
    column.totals[lanes, N_VISITED] += 1
    if column.ridge:
        primal_kernels.tell_differences(column.w, sums, lanes, column.totals)


def _row_arrays(rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return rows.score.reshape(-1), rows.kind, rows.weight

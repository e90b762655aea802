"""Visits of a column too long for memory, or whose rows are paged: sweeps over the column, segment by segment.

The step is that of `kernels.primal.primal_visit`: the same line search with the same sums in the same order, hence the same
bits. It costs a read of the column (and of its rows' pages) for the derivatives, one for each trial, and one for the move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..kernels import primal as primal_kernels
from ..kernels.columns import ColumnCosts, ColumnData, Columns, Span
from ..kernels.primal import DONE, MOVE, Search
from ..kernels.primitives import N_VISITED
from ..stream.window import ColumnArena
from .row_scores import PagedRows, Rows, RowsInMemory, count_before


@dataclass(frozen=True)
class LongColumn:
    """A column with the arguments of its visits."""

    arena: ColumnArena
    sweep: Callable[[], Iterator[int]] | None  # `stream.Window.sweep`; None for the bias
    rows: RowsInMemory | PagedRows
    costs: ColumnCosts
    ridge: float  # 1, or 0 if the column's weight is not penalised
    w: np.ndarray  # (lanes,): the column's weights; changed in place
    totals: np.ndarray

    def data(self, rows: Rows) -> ColumnData:
        """Return the arena with some rows as an argument of kernels."""
        arena = self.arena
        columns = Columns(arena.indptr, arena.feature, arena.row, arena.value)
        return ColumnData(columns, rows.arrays, self.costs)

    def segments(self, *, saved: Sequence[str] = ()) -> Iterator[tuple[Rows, Span]]:
        """Iterate over the segments in order, each with its rows, whose arrays named in `saved` are stored afterwards."""
        row = self.arena.row
        if self.sweep is None:
            for rows in self.rows.iter_blocks(saved=saved):
                yield rows, Span(0, rows.score.shape[0], True)
            return
        for n in self.sweep():
            start = 0
            for rows in self.rows.iter_blocks(int(row[0]), int(row[n - 1]) + 1, saved=saved):
                stop = start + count_before(row[start:n], rows.first + rows.score.shape[0])
                row[start:stop] -= rows.first  # the next sweep decodes them again
                yield rows, Span(start, stop, False)
                start = stop


def load_kernels(column: LongColumn, rows: Rows, begins: np.ndarray, side: np.ndarray) -> None:
    """Load the kernels of both visits, with no rows and in no lanes."""
    data, span, none = column.data(rows), Span(0, 0, False), np.zeros(0, dtype=np.int64)
    sums, searches = np.zeros((column.w.size, 2)), np.zeros((column.w.size, len(Search._fields)))
    primal_kernels.sweep_segment(span, data, begins, none, searches)
    ends = column.ridge, column.costs.loss, begins, none, column.totals, searches
    primal_kernels.turn_searches(column.w, *ends)
    primal_kernels.segment_dual_sums(span, data, side, none, sums)
    primal_kernels.segment_moves(span, data, none, column.w)
    primal_kernels.accumulate_gap(column.w, sums, 0, column.ridge, none, column.totals)


def train(column: LongColumn, begins: np.ndarray, lanes: np.ndarray) -> None:
    """Make one step along the column in every lane of `lanes`; changes w, scores and totals as `primal_visit` does."""
    searches = np.zeros((column.w.size, len(Search._fields)))
    searches[:, Search._fields.index("share")] = 1.0
    while lanes.size:
        moves = (searches[lanes, 0] == MOVE).any()
        for rows, span in column.segments(saved=("score",) if moves else ()):
            primal_kernels.sweep_segment(span, column.data(rows), begins, lanes, searches)
        primal_kernels.turn_searches(
            column.w, column.ridge, column.costs.loss, begins, lanes, column.totals, searches
        )
        lanes = lanes[searches[lanes, 0] != DONE]


def certify(column: LongColumn, side: np.ndarray, lanes: np.ndarray) -> None:
    """Sum the column's terms as `kernels.primal.primal_certify` does; changes the fresh scores and totals."""
    sums, n_entries = np.zeros((column.w.size, 2)), 0
    for rows, span in column.segments(saved=("fresh",)):
        n_entries += span.stop - span.start
        primal_kernels.segment_dual_sums(span, column.data(rows), side, lanes, sums)
        primal_kernels.segment_moves(span, column.data(rows), lanes, column.w)
    column.totals[lanes, N_VISITED] += 1
    primal_kernels.accumulate_gap(column.w, sums, n_entries, column.ridge, lanes, column.totals)

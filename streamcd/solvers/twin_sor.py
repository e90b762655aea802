"""Twin planes by SOR, with the inverse of a matrix of features × features.

``min ½ aᵀBH⁻¹Bᵀa + ½ aᵀDa - Σ a`` over ``0 <= a_i <= U_i``, B the rows of the other classes, ``H = I + Σ C_i x_i x_iᵀ`` over
those of the plane's own; a visit (`twin_kernels.twin_sor_visit`) keeps ``w = H⁻¹Bᵀa``.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ..core.errors import UsageError
from ..kernels import twin as twin_kernels
from ..kernels.primitives import Total
from ..stream.arenas import Window
from . import over_relaxation
from .dual import RowSolver, rows_of, shuffled_active_rows
from .memory import twin_sor_memory
from .problem import Problem
from .protocol import CERTIFY, START, TRAIN, Array, Start, State, all_rows

ARRAYS = (
    Array("seen_phase", "phase in the last read", int, START),
    # zeros that are not written to take no memory, and a resumed run replaces them
    Array(
        "inverse", "H, summed up by the first read, then its inverse", axes=("lanes", "features", "features")
    ),
    Array("pulled", "Bᵀa, summed up by a read at fixed w", axes=("features", "lanes")),
    Array("w_alpha", "w(alpha), summed up by one", axes=("features", "lanes")),
)
"""State of `TwinSorSolver`."""


class TwinSorSolver(RowSolver):
    """Twin planes by SOR with the inverse of a matrix of features × features (`twin_kernels.twin_sor_visit`).

    The first read sums H, and Bᵀa of the dual variables of a warm start. The inverse of H is kept, and visits change only
    the dual variables of the other classes' rows. This is the problem that `DualSolver` solves for twin planes, with the
    variables of the plane's own rows eliminated: it converges well with a small ridge too, where that one does not.
    """

    warm_start: Start = "alpha"
    always_sums = True  # the own rows' variables are made by a read at fixed w

    def __init__(self, problem: Problem, omega: float | str) -> None:
        super().__init__(problem, twin_sor_memory(problem))
        self.omega = omega

    @property
    def arrays(self) -> tuple[Array, ...]:
        """See `protocol.Solver`."""
        return (*super().arrays, *ARRAYS, *over_relaxation.ARRAYS)

    def new_state(self, loop: tuple[Array, ...] = ()) -> State:
        """Return the state before the first read, which sums up the matrices."""
        state = super().new_state(loop)
        over_relaxation.begin(state, self.omega)
        state.phase[:] = START
        return state

    def visit(self, window: Window, state: State, order: np.ndarray, key: np.uint64) -> None:
        """Certify lanes at their fixed w (at 0 when starting, for `pulled` and DUAL), train others; sum matrices."""
        state.seen_phase[:] = state.phase
        super().visit(window, state, order, key)
        starting = state.lanes_in(START)
        if starting.size:
            self._sum_up(window, state, all_rows(window, order), starting)

    def v(self, state: State) -> np.ndarray:
        """Return w(alpha), of which the own rows' variables are those of a certificate."""
        return state.w_alpha

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Invert the summed matrices, recompute w from alpha where a lane goes on, set thresholds and omega."""
        seen, pulled = state.seen_phase, state.pulled
        for lane in np.flatnonzero(seen == START):
            self._invert(state.inverse[lane])
        goes_on = np.isin(seen, (START, CERTIFY)) & (state.phase == TRAIN)
        for lane in np.flatnonzero(goes_on):
            # not the certificate's w(alpha), in which a rounding error of w is multiplied by H
            w = state.w[:, lane] = state.inverse[lane] @ pulled[:, lane]
            if seen[lane] == START:
                # `RowSolver.estimate` subtracts ½‖w‖² from this sum; the quadratic term is ½ aᵀBH⁻¹Bᵀa
                state.dual_sum[lane] += 0.5 * float(np.einsum("i,i->", w, w - pulled[:, lane]))
        pulled[:] = 0.0
        over_relaxation.update_omega(state, state.w, trained)
        super().end_read(state, trained)

    def certify(
        self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray, totals: np.ndarray
    ) -> None:
        """Sum the terms of a window's rows, with the variables of the plane's own that are best at this w."""
        twin_kernels.set_own_alpha(order, *self.arguments(window, state), lanes)
        super().certify(window, state, order, lanes, totals)

    def sum_alpha(
        self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray, v: np.ndarray
    ) -> None:
        """Sum the rows of the other classes alone, too; see `RowSolver.sum_alpha`."""
        super().sum_alpha(window, state, order, lanes, v)
        for lane in lanes.tolist():
            others = order[self.problem.sign[window.arena.code[order], lane] > 0.0]
            super().sum_alpha(window, state, others, np.array([lane]), state.pulled)

    def _sum_up(self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray) -> None:
        rows, inverse = (order, rows_of(window), self.problem.costs, lanes), state.inverse
        n_parts = self.threads.count
        self.threads.run(
            [partial(twin_kernels.gram_visit, *rows, (part, n_parts), inverse) for part in range(n_parts)]
        )
        state.totals[lanes, Total.VIOLATION_MAX] = state.totals[lanes, Total.VIOLATION_MIN] = 0.0

    def _invert(self, matrix: np.ndarray) -> None:
        """Replace a Gram matrix G by ``(I + G)⁻¹``, in place."""
        matrix[np.diag_indices_from(matrix)] += 1.0
        try:
            if np.isfinite(matrix).all():  # what is not goes on to w, of which the loop says so
                np.linalg.cholesky(matrix)
            matrix[:] = np.linalg.inv(matrix)
        except np.linalg.LinAlgError:
            raise UsageError(
                f"ridge {self.problem.ridge:g} is too small for these rows: their matrix is singular in double "
                "precision; give a larger one"
            ) from None
        for i in range(1, matrix.shape[0]):
            matrix[:i, i] = matrix[i, :i]

    def train(
        self, window: Window, state: State, order: np.ndarray, key: np.uint64, lanes: np.ndarray
    ) -> None:
        """See `RowSolver`."""
        before, chosen = self.problem.penalty(state.w), shuffled_active_rows(window, lanes, order, key)
        rows = (chosen, *self.arguments(window, state), self.steering(state))
        room = np.empty(self.problem.n_features + 1)
        twin_kernels.twin_sor_visit(*rows, state.totals, lanes, state.inverse, room)
        # `RowSolver.estimate` subtracts ½‖w‖² from the sum of DUAL, which here includes the quadratic term already
        state.totals[lanes, Total.DUAL] += (self.problem.penalty(state.w) - before)[lanes]

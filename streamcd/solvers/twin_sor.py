"""Twin planes by SOR, with the inverse of a matrix of features × features.

``min ½ aᵀBH⁻¹Bᵀa + ½ aᵀDa - Σ a`` over ``0 <= a_i <= U_i``, B the rows of the other classes, ``H = I + Σ C_i x_i x_iᵀ`` over
those of the plane's own; a visit (`twin_kernels.twin_sor_visit`) keeps ``w = H⁻¹Bᵀa``.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ..core.errors import UsageError
from ..dataset.dataset import Dataset
from ..kernels import dual as dual_kernels
from ..kernels import twin as twin_kernels
from ..kernels.primitives import Total
from ..stream.arenas import RowLayout, Window
from ..stream.memory_plan import SolverMemory
from . import over_relaxation
from .dual import new_scratch
from .problem import Problem
from .protocol import CERTIFY, START, TRAIN, Array, SolverOptions, Start, State, all_rows
from .row_solver import Data, RowSolver

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

    Problem: the one above, by one a_i after another, omega times the step to its best value. Solution: ``w = H⁻¹Bᵀa``, kept
    at every step. It is what `DualSolver` solves for twin planes, with the variables of the plane's own rows eliminated, and
    converges well with a small ridge too, where that one does not. The first read sums H, and Bᵀa of the dual variables of a
    warm start. The inverse of H is kept, and visits change only the dual variables of the other classes' rows. Source:
    Mangasarian & Musicant, IEEE Trans. Neural Networks 10 (1999).
    """

    warm_start: Start = "alpha"
    arrays = (*ARRAYS, *over_relaxation.ARRAYS)
    w_alpha = "w_alpha"  # of which the own rows' variables are those of a certificate
    always_sums = True  # the own rows' variables are made by a read at fixed w

    @staticmethod
    def memory_of(problem: Problem, dataset: Dataset, options: SolverOptions) -> SolverMemory:
        """Count three vectors and a matrix of features × features for every plane, and copies of one."""
        n_lanes = problem.n_lanes
        size = problem.n_features + 1
        return SolverMemory(
            RowLayout(n_lanes, n_lanes),
            8 * size * (n_lanes * (size + 3) + 2 * size),
            advice="give a larger --memory, or take --method dual, which needs no matrix",
        )

    def new_state(self, loop: tuple[Array, ...] = ()) -> State:
        """Return the state before the first read, which sums up the matrices."""
        state = super().new_state(loop)
        state.phase[:] = START
        return state

    def visit(self, window: Window, state: State, order: np.ndarray, key: np.uint64) -> None:
        """Visit a window's rows once; see `RowSolver`.

        Given: lanes at fixed w (0 in those that start), and lanes that train. Changed in place: of the former the totals,
        `pulled`, `w_alpha` and the variables of the plane's own rows, where they start also `inverse`, which sums up H; of
        the latter w, the totals, and the variables and flags of the other rows.
        """
        state.seen_phase[:] = state.phase
        super().visit(window, state, order, key)
        starting = state.lanes_in(START)
        if starting.size:
            self._sum_up(window, state, all_rows(window, order), starting)

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Invert the summed matrices, recompute w from alpha where a lane goes on, set thresholds and omega."""
        seen = state.seen_phase
        pulled = state.pulled
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
        if self.options.omega == "auto":
            over_relaxation.update_omega(state, state.w, trained)
        super().end_read(state, trained)

    def certify_rows(
        self, data: Data, state: State, lanes: np.ndarray, order: np.ndarray, totals: np.ndarray
    ) -> None:
        """Sum the terms of rows, with the variables of the plane's own that are best at this w."""
        twin_kernels.set_own_alpha(order, *data, lanes)
        dual_kernels.dual_certify(order, *data, totals, new_scratch(state, lanes))

    def sum_alpha(
        self, data: Data, state: State, order: np.ndarray, lanes: np.ndarray, v: np.ndarray
    ) -> None:
        """Sum the rows of the other classes alone, too; see `RowSolver.sum_alpha`."""
        dual_kernels.add_alpha_rows(order, *data, new_scratch(state, lanes), v.reshape(-1))
        for lane in lanes.tolist():
            others = order[self.problem.sign[data[0].code[order], lane] > 0.0]
            scratch = new_scratch(state, np.array([lane]))
            dual_kernels.add_alpha_rows(others, *data, scratch, state.pulled.reshape(-1))

    def _sum_up(self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray) -> None:
        visit = partial(twin_kernels.gram_visit, order, window.arena.rows, self.problem.costs, lanes)
        n_parts = self.threads.count
        self.threads.run([partial(visit, (part, n_parts), state.inverse) for part in range(n_parts)])
        state.totals[lanes, Total.VIOLATION_MAX] = 0.0
        state.totals[lanes, Total.VIOLATION_MIN] = 0.0

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
        self, window: Window, data: Data, state: State, order: np.ndarray, key: np.uint64, lanes: np.ndarray
    ) -> None:
        """See `RowSolver`."""
        before = self.problem.penalty(state.w)
        chosen = self.shuffled_rows(window, lanes, order, key)
        rows = (chosen, *data, self.steering(state))
        room = np.empty(self.problem.n_features + 1)
        twin_kernels.twin_sor_visit(*rows, state.totals, lanes, state.inverse, room)
        # `RowSolver.estimate` subtracts ½‖w‖² from the sum of DUAL, which here includes the quadratic term already
        state.totals[lanes, Total.DUAL] += (self.problem.penalty(state.w) - before)[lanes]

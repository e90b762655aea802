"""Dual coordinate descent with a bias that is not penalised, by a proximal point in the bias alone.

The bias's weight b has ``mu/2 (b - c)²`` in place of its penalty, ``mu = 1 + kappa`` being the factor of the other weights,
and the centre c moves to b after every pass: visits are those of a penalised bias, and b goes to the optimum of the problem
without the term. A pass moves b by ``Σ beta/mu`` at most, so where beta has bounds it begins at the b that is best without
other weights, as a sample of the first window's targets tells.

The dual of that problem asks for ``Σ_i beta_i = 0``, ``beta = s alpha``, which a certificate brings
about: the beta of the heavier sign are scaled by the factor f <= 1 at which the sum is 0. As ``psi(f beta) <= f psi(beta)``,
a row's term of the gap is then at most f times what it was, and (1 - f) times the row's loss; nothing cancels.
"""

from __future__ import annotations

import numpy as np

from ..core.memory_budget import BLOCK_WEIGHTS
from ..kernels.losses import numbers_of
from ..kernels.primitives import N_TOTALS, Total
from ..stream.arenas import Window
from .dual import DualSolver
from .protocol import CERTIFY, NO_ROWS, Array, State, all_rows
from .row_solver import Data, penalised_blocks

_SUMMED = np.setdiff1d(np.arange(N_TOTALS), [Total.VIOLATION_MAX, Total.VIOLATION_MIN])


class FreeBiasSolver(DualSolver):
    """`DualSolver` for a bias that is not penalised; its acceleration, of which kappa may be 0, keeps the centre."""

    always_sums = True  # the feasible alpha asks for w(alpha) by sign

    sums = (
        Array(
            "positive",
            "w(alpha) of the rows with beta > 0, in a read at fixed w",
            axes=("features", "vectors"),
        ),
        Array(
            "positive_totals",
            "totals of them; the violations are in those of all rows",
            initial=NO_ROWS,
            axes=("lanes", N_TOTALS),
        ),
    )

    def visit(self, window: Window, state: State, order: np.ndarray, key: np.uint64) -> None:
        """Set the bias before the first pass; see `RowSolver.visit`."""
        if window.number == 0:
            self._start_bias(window, state, all_rows(window, order))
        super().visit(window, state, order, key)

    def _start_bias(self, window: Window, state: State, rows: np.ndarray) -> None:
        """Begin at the quantile of targets that is best for the loss, in lanes that have not begun, if beta has bounds."""
        begun = (state.moves + state.earlier_moves > 0) | state.in_pass | (state.w[-1] != 0.0)
        if begun.all() or not self.problem.has_targets:
            return
        *_, low, high, _ = numbers_of(self.problem.row_loss, 0.0, 1.0)
        rows = rows[window.arena.weight[rows] > 0.0]
        # a sample: an error of the start costs passes alone
        targets = window.arena.target[rows[:: rows.size // BLOCK_WEIGHTS + 1]]
        if targets.size and np.isfinite(high - low):
            best = np.quantile(targets, high / (high - low), method="averaged_inverted_cdf")
            state.w[-1, ~begun] = best / self.problem.bias

    def certify(
        self,
        data: Data,
        n_entries: int,
        state: State,
        order: np.ndarray,
        lanes: np.ndarray,
        totals: np.ndarray,
    ) -> None:
        """Sum the terms of a window's rows with beta > 0 apart, lane by lane: each has a sign of its own for a row."""
        positive = state.positive_totals
        for lane in lanes:
            is_positive = self._is_positive(data, order, lane)
            only = np.array([lane])
            super().certify(data, n_entries, state, order[is_positive], only, positive)
            super().certify(data, n_entries, state, order[~is_positive], only, totals)
        for name, extreme in ((Total.VIOLATION_MAX, np.maximum), (Total.VIOLATION_MIN, np.minimum)):
            extreme(totals[:, name], positive[:, name], out=totals[:, name])

    def _is_positive(self, data: Data, order: np.ndarray, lane: int) -> np.ndarray:
        """Mark the rows with beta > 0."""
        rows, _, variables = data
        return np.asarray(self.problem.sign[rows.code[order], lane] * variables.alpha[order, lane] > 0.0)

    def sum_alpha(
        self, data: Data, state: State, order: np.ndarray, lanes: np.ndarray, v: np.ndarray
    ) -> None:
        """Sum rows with beta > 0 apart; see `RowSolver.sum_alpha`."""
        for lane in lanes:
            is_positive = self._is_positive(data, order, lane)
            only = np.array([lane])
            super().sum_alpha(data, state, order[is_positive], only, state.positive)
            super().sum_alpha(data, state, order[~is_positive], only, v)

    def feasible_sums(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """Return those of the beta of each sign times its f: ``Σ f phi_i + (1 - f) C_i loss_i``; see `RowSolver`."""
        lanes = state.lanes_in(CERTIFY)
        sums = state.positive_totals
        negative = state.centre_or_w_alpha
        # 0 / 0 where a lane has no certificate, or no beta at all
        sides = np.abs([negative[-1] / state.positive[-1], state.positive[-1] / negative[-1]])
        factors = np.fmin(
            sides, 1.0
        )  # on the beta of both signs, the positive first, at which their sum is 0
        terms = np.zeros((3, self.problem.n_vectors))
        for rows in penalised_blocks(self.problem):
            v = factors[0] * state.positive[rows] + factors[1] * negative[rows]
            terms += self.penalty_terms(state.w[rows], v, lanes)
        joined = state.totals.copy()
        joined[:, _SUMMED] += sums[:, _SUMMED]
        parts = tuple(zip((sums, state.totals), factors, strict=True))
        joined[:, Total.GAP] = sum(
            f * part[:, Total.GAP] + (1.0 - f) * part[:, Total.LOSS] for part, f in parts
        )
        joined[:, Total.DUAL] = sum(f * part[:, Total.DUAL] for part, f in parts)
        return joined, terms

    def certificate(self, state: State) -> dict[str, np.ndarray]:
        """Join the sums of both signs, too; see `RowSolver`."""
        proof = super().certificate(state)
        sums = state.positive_totals
        state.totals[:, _SUMMED] += sums[:, _SUMMED]
        state.centre_or_w_alpha += state.positive
        state.positive[:] = 0.0
        sums[:] = NO_ROWS
        return proof

    def cost_of_feasibility(self, state: State, trained: np.ndarray) -> np.ndarray:
        """Return ``(1 - f) Σ loss`` over the heavier sign, as if both had equal losses; see `RowSolver`."""
        excess = np.abs(state.centre_or_w_alpha[-1]) / self.problem.bias  # |Σ beta|
        losses = np.maximum(state.dual_sum - state.w_alpha_square, 0.0)  # at the optimum Σ loss
        # without kappa Σ |beta| is not known
        size = np.where(state.alpha_sum > 0.0, state.alpha_sum, state.dual_sum)
        return np.divide(excess * losses, size, out=np.zeros_like(size), where=size > 0.0)[trained]

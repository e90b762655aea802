"""Dual coordinate descent with a bias that is not penalised, by a proximal point in the bias alone.

The bias's weight b has ``mu/2 (b - c)²`` in place of its penalty, ``mu = 1 + kappa`` being the factor of the other weights,
and the centre c moves to b after every pass: visits are those of a penalised bias, and b goes to the optimum of the problem
without the term. The dual of that problem asks for ``Σ_i beta_i = 0``, ``beta = s alpha``, which a certificate brings
about: the beta of the heavier sign are scaled by the factor f <= 1 at which the sum is 0. As ``psi(f beta) <= f psi(beta)``,
a row's term of the gap is then at most f times what it was, and (1 - f) times the row's loss; nothing cancels.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..kernels.primitives import (
    DUAL,
    LOSS,
    N_TOTALS,
    N_VISITED,
    ROUNDING,
    VIOLATION_MAX,
    VIOLATION_MIN,
)
from ..stream.window import Window
from .dual import LINEAR, DualSolver, largest_of, scaled
from .protocol import CERTIFY, State, new_totals

_SUMMED = np.setdiff1d(np.arange(N_TOTALS), [VIOLATION_MAX, VIOLATION_MIN])
_POSITIVE, _POSITIVE_TOTALS = "positive", "positive_totals"
"""w(alpha) and totals of the rows with beta > 0, in a certifying read; the violations are in the totals of all rows."""


class FreeBiasSolver(DualSolver):
    """`DualSolver` for a bias that is not penalised; its acceleration, of which kappa may be 0, keeps the centre."""

    def new_sums(self) -> dict[str, np.ndarray]:
        """Return zeros for the sums over the rows with beta > 0; see `RowSolver.new_sums`."""
        positive = np.zeros((self.problem.n_features + 1, self.n_vectors))
        return {_POSITIVE: positive, _POSITIVE_TOTALS: new_totals(self.problem.n_lanes)}

    def certify(self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray) -> None:
        """Sum the terms of a window's rows with beta > 0 apart, lane by lane: each has a sign of its own for a row."""
        if not lanes.size:  # to compile
            super().certify(window, state, order, lanes)
        sums, totals = state.matrices[_POSITIVE_TOTALS], state.totals
        positive = State(state.w, state.matrices[_POSITIVE], sums, state.lanes, state.rows)
        arena = window.arena
        code, alpha = arena.code[order], arena.alpha
        for lane in lanes:
            is_positive = self.problem.sign[code, lane] * alpha[order, lane] > 0.0
            only = np.array([lane])
            super().certify(window, positive, order[is_positive], only)
            super().certify(window, state, order[~is_positive], only)
        totals[:, VIOLATION_MAX] = np.maximum(totals[:, VIOLATION_MAX], sums[:, VIOLATION_MAX])
        totals[:, VIOLATION_MIN] = np.minimum(totals[:, VIOLATION_MIN], sums[:, VIOLATION_MIN])

    def certificate(self, state: State) -> dict[str, np.ndarray]:
        """Compute the certificate at the feasible alpha, and join the sums of both signs; see `RowSolver.certificate`."""
        lanes, sums = state.phase(CERTIFY), state.matrices[_POSITIVE_TOTALS]
        factors = self._factors(state)
        if not self.problem.l2:
            factors *= self._shares_of(state, factors)
        penalties = self._feasible_penalty_terms(state, lanes, factors)
        joined = state.totals.copy()
        joined[:, _SUMMED] += sums[:, _SUMMED]
        joined[:, LINEAR] = scaled(sums, factors[0]) + scaled(state.totals, factors[1])
        # the factors are wrong by the rounding of sums over the rows
        joined[:, ROUNDING] += joined[:, N_VISITED] * joined[:, LOSS]
        proof = self.proof(state, joined, penalties)
        state.totals[:, _SUMMED] += sums[:, _SUMMED]
        state.w_alpha += state.matrices[_POSITIVE]
        state.matrices[_POSITIVE][:], sums[:] = 0.0, new_totals(self.problem.n_lanes)
        return proof

    def _factors(self, state: State) -> np.ndarray:
        """Return the factors on the beta of both signs, the positive first, at which their sum is 0; shape (2, lanes)."""
        positive, negative = np.abs(state.matrices[_POSITIVE][-1]), np.abs(state.w_alpha[-1])
        with np.errstate(all="ignore"):  # 0 / 0 where a lane has no certificate, or no beta at all
            return np.fmin(np.stack([negative / positive, positive / negative]), 1.0)

    def _shares_of(self, state: State, factors: np.ndarray) -> np.ndarray:
        """Return the shares of the feasible alpha that L1 alone asks for."""
        totals = state.totals + state.matrices[_POSITIVE_TOTALS]
        largest = np.zeros(self.n_vectors)
        for v in self._feasible_blocks(state, factors):
            largest = np.maximum(largest, largest_of(v))
        return self.feasible_shares(totals, largest)

    def _feasible_blocks(self, state: State, factors: np.ndarray) -> Iterator[np.ndarray]:
        """Iterate over w(alpha) of the feasible alpha, in blocks of `penalised_blocks`."""
        for rows in self.penalised_blocks():
            yield factors[0] * state.matrices[_POSITIVE][rows] + factors[1] * state.w_alpha[rows]

    def _feasible_penalty_terms(self, state: State, lanes: np.ndarray, factors: np.ndarray) -> np.ndarray:
        """Sum the terms of the penalised weights, v being w(alpha) of the feasible alpha (`_penalty_terms`)."""
        out = np.zeros((5, self.n_vectors))
        for rows, v in zip(self.penalised_blocks(), self._feasible_blocks(state, factors), strict=True):
            out += self._penalty_terms(state.w[rows], v, lanes)
        return out

    def conclude_pass(self, state: State, trained: np.ndarray) -> np.ndarray:
        """Add to the estimate of the gap what making alpha feasible is expected to cost."""
        gap = super().conclude_pass(state, trained)
        excess = np.abs(state.matrices["centre_or_w_alpha"][-1]) / self.problem.bias  # |Σ beta|
        kept = state.lanes
        dual = kept["dual_sum"] + state.totals[:, DUAL]
        # (1 - f) Σ loss over the heavier sign, as if both had equal losses; at the optimum Σ loss is the difference below
        assert self.acceleration is not None  # with a kappa that may be 0
        losses = np.maximum(dual - self.acceleration.penalties(state), 0.0)
        # without kappa Σ |beta| is not known
        size = np.where(kept["alpha_sum"] > 0.0, kept["alpha_sum"], dual)
        cost = np.divide(excess * losses, size, out=np.zeros_like(size), where=size > 0.0)
        gap[trained] += cost[trained]
        kept["distance"][trained] += cost[trained]
        return gap

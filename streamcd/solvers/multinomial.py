"""Multinomial logistic regression by a dual method over rows (`kernels/multinomial`)."""

from __future__ import annotations

import numpy as np

from ..kernels.multinomial import add_alpha_shares, multinomial_certify, multinomial_visit
from ..stream.window import RowArena
from .class_biases import FreeBiasCrammerSingerSolver
from .crammer_singer import CrammerSingerSolver
from .protocol import State


class MultinomialSolver(CrammerSingerSolver):
    """Dual method of the form of Crammer and Singer's; no row leaves, as every variable is positive at the optimum."""

    kernels = (multinomial_visit, multinomial_certify, add_alpha_shares)

    def new_rows(self, arena: RowArena, start: int, stop: int) -> None:
        """Set the variable of a row's own class to C_i, the others to 0: then ``w(alpha) = 0``."""
        super().new_rows(arena, start, stop)
        rows = slice(start, stop)
        cost = self.problem.row_costs(arena.code[rows], arena.weight[rows], arena.fold[rows])
        for lane in range(self.problem.n_lanes):
            own = self.columns(lane).start + arena.code[rows]
            arena.alpha[np.arange(start, stop), own] = cost[:, lane]

    def flags(self, lane: int) -> np.ndarray:
        """Return the lane's flag, which is always set."""
        return np.array([lane])

    def restore_rows(self, state: State, arena: RowArena, start: int, stop: int) -> None:
        """Do nothing."""

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Set kappa of the next pass."""
        if self.acceleration:
            self.acceleration.update_kappa(state, trained)


class FreeBiasMultinomialSolver(FreeBiasCrammerSingerSolver, MultinomialSolver):
    """`MultinomialSolver` for biases that are not penalised."""

    def dual_of_shares(self, cost: np.ndarray, rho: np.ndarray) -> float:
        """Return the entropies of the shares; see `FreeBiasCrammerSingerSolver`."""
        return -float(cost.sum() * np.sum(rho * np.log(np.maximum(rho, 1e-300))))

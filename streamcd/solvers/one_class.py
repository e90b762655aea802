"""The one-class SVM by a dual method over rows, by steps on pairs (`kernels/one_class`)."""

from __future__ import annotations

import numpy as np

from ..kernels.one_class import (
    BETA,
    BETA_LOW,
    FREE,
    FREE_SCORE,
    FREE_SQUARE,
    LONGEST,
    MASS,
    MASS_LOW,
    N_LEVELS,
    N_SUMS,
    POOL,
    Levels,
    Pool,
    one_class_certify,
    one_class_visit,
)
from ..kernels.primitives import CURVE, N_VISITED, SLOPE, UNIT, VIOLATION_MAX, VIOLATION_MIN, W_ALPHA
from ..stream.window import RowArena, Window
from .dual import RowSolver, rows_of, variables_of
from .gap_bounds import NEGLIGIBLE
from .memory import one_class_memory
from .problem import Problem
from .protocol import START, Start, State

_WIDEST = 4.0  # times the spread of the free rows' scores: the farthest candidates for rho; each nearer one is at a half
_AROUND = (N_LEVELS - 5) // 2  # candidates on each side of the middle


class OneClassSolver(RowSolver):
    """Steps on pairs of a pool of rows within a window; no row leaves.

    The last row of w is -rho, the weight of a constant feature that is not penalised. Every β starts at nu times the row's
    weight, so the first read sums up w. ``levels`` are the candidates for rho of a read, and the sums at each; ``sums``
    those of `kernels.one_class`.
    """

    warm_start: Start = "alpha"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, one_class_memory(problem))
        self._pool = Pool(np.zeros(POOL, dtype=np.int64), np.zeros(POOL))

    def new_state(self) -> State:
        """Return the state before the first read: w = 0, to be summed up."""
        state = self.start_state({}, START)
        state.matrices |= {"levels": np.zeros((2, N_LEVELS)), "sums": np.zeros(N_SUMS)}
        return state

    def new_rows(self, arena: RowArena, start: int, stop: int) -> None:
        """Set β = nu c, whose sum is right."""
        arena.alpha[start:stop, 0] = self.problem.parameter * arena.weight[start:stop]
        arena.active[start:stop] = 1

    def certify(self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray) -> None:
        """See `RowSolver.certify`."""
        arguments = (order, rows_of(window), variables_of(window, state), state.w_alpha.reshape(-1))
        one_class_certify(*arguments, _levels(state), state.totals)

    def train(self, window: Window, state: State, order: np.ndarray, lanes: np.ndarray) -> None:
        """See `RowSolver.train`."""
        arguments = (order, rows_of(window), variables_of(window, state), _levels(state))
        one_class_visit(*arguments, state.totals, self._pool)

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Do nothing: `conclude_pass` and `adopt_certified_w` have chosen the candidates of the next read."""

    def conclude_pass(self, state: State, trained: np.ndarray) -> np.ndarray:
        """Estimate the gap by the best candidate; see `protocol.Solver`."""
        levels = _levels(state)
        best = int(levels.gap.argmin())
        gap = np.full(1, levels.gap[best])
        if trained.size:
            state.w[-1] = -levels.rho[best]
            _choose_levels(state, float(levels.rho[best]))
        return gap

    def adopt_certified_w(self, state: State, lanes: np.ndarray) -> None:
        """Continue from ``w(β)`` as summed by the read, and keep the rho of its certificate."""
        rho = _best_level(state)[0]
        if state.read == 0:  # every score was 0; those of the next read have this mean
            mass = float(state.matrices["sums"][MASS])
            rho = 2.0 * float(self._halves(state)[1]) / (self.problem.parameter * mass) if mass > 0.0 else 0.0
            state.matrices["sums"][:], state.totals[:, [VIOLATION_MIN, VIOLATION_MAX]] = 0.0, rho
        super().adopt_certified_w(state, lanes)
        state.w[-1] = -rho
        _choose_levels(state, rho)

    def changed_at_end(self, state: State) -> dict[str, np.ndarray]:
        """Return rho, its candidates, and their sums; see `protocol.Solver`."""
        return {"rho": state.w[-1], **state.matrices}

    def violation(self, state: State) -> np.ndarray:
        """Return the largest score of a row with β > 0 minus the smallest of one with β < c, or 0."""
        largest, smallest = state.totals[:, VIOLATION_MAX], state.totals[:, VIOLATION_MIN]
        return np.maximum(
            np.where(np.isfinite(largest) & np.isfinite(smallest), largest - smallest, 0.0), 0.0
        )

    def estimated_primals(self, state: State, estimates: np.ndarray) -> np.ndarray:
        """Add the estimate of the gap to the dual objective."""
        return estimates - self._halves(state)[0]

    def certificate(self, state: State) -> dict[str, np.ndarray]:
        """Compute the certificate after a read at fixed w; see `protocol.Solver`.

        The sum of β is right but for rounding. Where it is too large, a scaled down β has the sum and a better dual
        objective; where too small, larger ones of the same rows move ``w(β)`` by at most the longest row times what lacks.
        As in `RowSolver.certificate`, the gap is an upper bound, for this w and for ``w(β)``, which the lane keeps; with the
        best candidate, which becomes the threshold of w.
        """
        totals, sums = state.totals[0], state.matrices["sums"]
        with np.errstate(all="ignore"):  # the loop says what is wrong
            rho, phi = _best_level(state)
            state.w[-1] = -rho
            n = totals[N_VISITED] + 100.0
            mass, missing = sums[MASS] + sums[MASS_LOW], _missing(sums, self.problem.parameter)
            norm, length, drift = np.sqrt(2.0 * self._halves(state))
            # of w(β), as a sum over n rows; and of β that have the sum
            error = n * UNIT * totals[W_ALPHA]
            most = abs(missing) + 8.0 * UNIT * mass
            lost = (length + error) * sums[LONGEST] * most + 0.5 * (sums[LONGEST] * most) ** 2
            plain = phi + 0.5 * drift * drift
            margin = UNIT * norm + drift
            of_scores = (totals[SLOPE] + totals[CURVE] * margin) * margin + 8.0 * UNIT * mass * abs(rho)
            apart = drift * (1.0 + 1e-6) + error
            rounding = (
                of_scores
                + n * UNIT * phi
                + 0.5 * apart * apart
                - 0.5 * drift * drift
                + lost
                + abs(rho) * most
            )
            proven = not rounding <= NEGLIGIBLE * plain
            gap = plain + rounding if proven else plain
            dual = -0.5 * length * length
            primal_rounding = (
                rounding + 0.5 * apart * apart + (length + error) * error + n * UNIT * length * length
            )
        numbers = {"primal": dual + gap, "dual": dual, "gap": gap, "rounding": rounding}
        numbers |= {"primal_rounding": primal_rounding, "violation": self.violation(state)[0]}
        return {name: np.full(1, number) for name, number in numbers.items()}

    def _halves(self, state: State) -> np.ndarray:
        """Return ``½‖w‖²``, ``½‖w(β)‖²`` and ``½‖w - w(β)‖²``, without the last rows."""
        return self._penalty_terms(state.w[:-1], state.w_alpha[:-1], np.zeros(1, dtype=np.int64))[:3, 0]


def _levels(state: State) -> Levels:
    rho, gap = state.matrices["levels"]
    return Levels(rho, gap, state.matrices["sums"])


def _best_level(state: State) -> tuple[float, float]:
    """Return the candidate with the smallest gap, and that gap but for the weights' part."""
    levels = _levels(state)
    best = int(levels.gap.argmin())
    return float(levels.rho[best]), float(levels.gap[best])


def _missing(sums: np.ndarray, nu: float) -> float:
    """Return ``nu Σ c - Σ β``."""
    return float(nu * sums[MASS] - sums[BETA] + (nu * sums[MASS_LOW] - sums[BETA_LOW]))


def _choose_levels(state: State, rho: float) -> None:
    """Choose the candidates for rho of the next read, by the scores of this one, in which `rho` was the best; no sums yet.

    They are at geometric distances around the mean score of the rows between the bounds, all of which have the score rho at
    the optimum. If there are none, rho is between the scores of rows at the upper bound and at 0: these are candidates too.
    """
    levels, sums = _levels(state), state.matrices["sums"]
    bounds = state.totals[0, [VIOLATION_MAX, VIOLATION_MIN]]
    bounds = np.where(np.isfinite(bounds), bounds, bounds[::-1])
    bounds = np.where(np.isfinite(bounds), bounds, rho)
    between = middle = float(bounds.mean())
    variance = 0.0
    if sums[FREE] > 0.0:
        middle, square = (float(sum_) for sum_ in sums[[FREE_SCORE, FREE_SQUARE]] / sums[FREE])
        variance = max(square - middle * middle, 0.0)
    spread = max(variance**0.5, abs(middle - rho)) or abs(middle)
    distance = spread * _WIDEST * 0.5 ** np.arange(_AROUND)
    levels.rho[:] = np.concatenate([middle - distance, middle + distance, [middle, rho, between], bounds])
    levels.gap[:] = 0.0
    sums[:] = 0.0

"""SOR: steps of omega times coordinate descent's, and the choice of omega by trial.

Young's formula for the best omega assumes a consistently ordered matrix without active bounds. For the Gram matrix of rows
rho exceeds 1 and the formula does not apply, so a run with ``omega="auto"`` makes trials: a block of passes with the current
omega, one with the other of 1 and `CANDIDATE`, and one with the current again. With a constant omega the gain in the dual
objective shrinks by about the same factor from block to block, so the middle block would gain the geometric mean of its
neighbours; if it gains more, its omega is kept. Trials begin at passes 5, 50, 500, … because the faster omega may change.
"""

from __future__ import annotations

import numpy as np

from .protocol import Array, State

CANDIDATE = 1.5
"""Omega tried against 1. On four real datasets on which 1 took 14 to 300 passes, 1.4 and 1.6 took 0.65 to 1.4 times as many;
where 1 took 7, 1.4 to 2.4 times. See docs/methods.md."""

BEGIN = 5  # the pass at which the first trial begins; each later one at ten times the pass


# ---------------------------------------------------------------------------------------------------------------------
# Trials, for each lane


ARRAYS = (
    Array("omega", "over-relaxation of the next pass"),
    Array("kept_omega", "omega outside of trials"),
    Array("trial_begin", "pass at which the current or next trial begins; 0 if omega is fixed", int),
    Array(
        "trial_dual", "dual objective at the four ends of a trial's blocks", initial=np.nan, axes=("lanes", 4)
    ),
)
"""State of over-relaxation."""


def update_omega(state: State, w: np.ndarray, trained: np.ndarray) -> None:
    """Set the omega of the next pass, which is chosen by trial; `w` has the penalised weights."""
    for lane in trained.tolist():
        first = int(state.trial_begin[lane])
        block, rest = divmod(int(state.passes[lane]) - first, max(BEGIN, first // 5))
        if block < 0 or rest:
            continue
        omega = float(state.kept_omega[lane])
        other = CANDIDATE if omega == 1.0 else 1.0
        dual = state.trial_dual[lane]
        dual[block] = state.dual_sum[lane] - 0.5 * float(np.einsum("i,i->", w[:, lane], w[:, lane]))
        state.omega[lane] = other if block == 1 else omega
        if block == 3:
            gains = np.maximum(np.diff(dual), 0.0)
            if gains[1] > np.sqrt(gains[0] * gains[2]):
                state.omega[lane] = other
                state.kept_omega[lane] = other
            state.trial_begin[lane] = 10 * first

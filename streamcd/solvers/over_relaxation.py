"""SOR: steps of omega times coordinate descent's, and the choice of omega by trial.

Young's formula for the best omega assumes a consistently ordered matrix without active bounds. For the Gram matrix of rows
rho exceeds 1 and the formula does not apply, so a run with ``omega="auto"`` makes trials: a block of passes with the current
omega, one with the other of 1 and `CANDIDATE`, and one with the current again. With a constant omega the gain in the dual
objective shrinks by about the same factor from block to block, so the middle block would gain the geometric mean of its
neighbours; if it gains more, its omega is kept. Trials begin at passes 5, 50, 500, … because the faster omega may change.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

CANDIDATE = 1.5
"""Omega tried against 1. On four real datasets on which 1 took 14 to 300 passes, 1.4 and 1.6 took 0.65 to 1.4 times as many;
where 1 took 7, 1.4 to 2.4 times. See docs/methods.md."""

_BEGIN = 5  # the pass at which the first trial begins; each later one at ten times the pass


def young(rho: float) -> float:
    """Compute ``2 / (1 + √(1 - rho²))``, the best omega of a consistently ordered matrix with Jacobi spectral radius rho."""
    return 2.0 / (1.0 + float(np.sqrt(1.0 - rho * rho)))


# ---------------------------------------------------------------------------------------------------------------------
# Trials, for each lane


def new_lane_arrays(n_lanes: int, omega: float | str) -> dict[str, np.ndarray]:
    """Return the per-lane arrays of over-relaxation: the omega of the next pass, and the state of its trials.

    ``kept_omega`` is the omega outside of trials; ``trial_begin`` is the pass at which the current or next trial begins, 0
    if omega is fixed; ``trial_dual`` is the dual objective at the four ends of the blocks.
    """
    number = 1.0 if omega == "auto" else float(omega)
    return {
        "omega": np.full(n_lanes, number),
        "kept_omega": np.full(n_lanes, number),
        "trial_begin": np.full(n_lanes, _BEGIN if omega == "auto" else 0, dtype=np.int64),
        "trial_dual": np.full((n_lanes, 4), np.nan),
    }


def update_omega(lanes: Mapping[str, np.ndarray], w: np.ndarray, trained: np.ndarray) -> None:
    """Set the omega of the next pass, for lanes whose omega is chosen by trial; changes `lanes` in place."""
    for lane in trained[lanes["trial_begin"][trained] > 0]:
        begin, kept = int(lanes["trial_begin"][lane]), float(lanes["kept_omega"][lane])
        block, rest = divmod(int(lanes["passes"][lane]) - begin, max(_BEGIN, begin // 5))
        if block < 0 or rest:
            continue
        dual, other = lanes["trial_dual"][lane], CANDIDATE if kept == 1.0 else 1.0
        dual[block] = lanes["dual_sum"][lane] - 0.5 * float(np.einsum("i,i->", w[:, lane], w[:, lane]))
        lanes["omega"][lane] = other if block == 1 else kept
        if block == 3:
            gains = np.maximum(np.diff(dual), 0.0)
            if gains[1] > np.sqrt(gains[0] * gains[2]):
                lanes["kept_omega"][lane] = lanes["omega"][lane] = other
            lanes["trial_begin"][lane] = 10 * begin

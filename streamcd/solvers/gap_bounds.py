"""Certificates from the sums of a read at fixed w: the gap with its rounding, and LIBLINEAR's measure of violation."""

from __future__ import annotations

import numpy as np

from ..kernels.primitives import (
    CURVE,
    DUAL,
    GAP,
    LOSS,
    LOSS_SLOPE,
    N_VISITED,
    ROUNDING,
    SLOPE,
    UNIT,
    VIOLATION_MAX,
    VIOLATION_MIN,
    W_ALPHA,
)

NEGLIGIBLE = 1e-8
"""Relative rounding of a gap below which it is ignored."""


def proven_gap(
    totals: np.ndarray, norm: np.ndarray, drift: np.ndarray, moved: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bound the gap from above, including rounding; returns the gap, the rounding, and where the gap is that bound.

    Of every lane, `norm` is ‖w‖, `drift` the computed ‖w - w(alpha)‖, `moved` the distance from w to the w that it keeps.

    Rounding errors arise in the terms themselves and their sum, a few u of objectives and gap; in margins
    (`primitives.rounding_terms`), including their change when w moves; and in w(alpha), where a sum over n rows is wrong by
    at most n u times the sum of its terms' absolute values. If the bound exceeds the plain sum by less than `NEGLIGIBLE`
    times the sum, the plain sum is the gap.
    """
    with np.errstate(all="ignore"):  # the loop says what is wrong
        n = totals[:, N_VISITED] + 100.0  # rows, and additions of workers' sums and of squares in blocks
        plain = totals[:, GAP] + 0.5 * drift * drift
        terms = 64.0 * (totals[:, LOSS] + np.abs(totals[:, GAP])) + 8.0 * np.abs(totals[:, DUAL])
        margin = UNIT * norm + moved
        rounding = (
            UNIT * (terms + totals[:, ROUNDING]) + (totals[:, SLOPE] + totals[:, CURVE] * margin) * margin
        )
        apart = drift * (1.0 + 1e-6) + n * UNIT * totals[:, W_ALPHA]
        bound = (
            (np.abs(totals[:, GAP]) + rounding) * n * UNIT + totals[:, GAP] + rounding + 0.5 * apart * apart
        )
        proven = ~(bound - plain <= NEGLIGIBLE * plain)
        return np.where(proven, bound, plain), bound - plain, proven


LINEAR = [GAP, DUAL, SLOPE, W_ALPHA]
"""Sums that a factor on alpha changes; the rest keep their bounds."""


def scaled(totals: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Return the lanes' `LINEAR` sums, or bounds on them, after alpha was multiplied by factors of at most 1.

    As ``psi(f alpha) <= f psi(alpha)``, a row's term of the gap is at most f times what it was, and (1 - f) times its loss.
    """
    more = np.zeros((factor.size, len(LINEAR)))
    more[:, 0], more[:, 2] = totals[:, LOSS], totals[:, LOSS_SLOPE]
    out: np.ndarray = totals[:, LINEAR] * factor[:, None] + more * (1.0 - factor)[:, None]
    return out


def primal_rounding(totals: np.ndarray, norm: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """Bound the error of the primal objective by rounding, also at a w at a distance `moved` from the certified one."""
    with np.errstate(all="ignore"):  # the loop says what is wrong
        margin, n = UNIT * norm + moved, totals[:, N_VISITED] + 100.0
        sums = (n + 64.0) * UNIT * (totals[:, LOSS] + 0.5 * norm * norm) + UNIT * totals[:, ROUNDING]
        losses = (totals[:, LOSS_SLOPE] + totals[:, CURVE] * margin) * margin
        return np.asarray(sums + losses + (norm + 0.5 * moved) * moved)


def violation(totals: np.ndarray) -> np.ndarray:
    """Return LIBLINEAR's measure per lane: the largest of M - m, |M| and |m|; 0 if no row was visited."""
    largest, smallest = totals[:, VIOLATION_MAX], totals[:, VIOLATION_MIN]
    seen = np.isfinite(largest) & np.isfinite(smallest)
    largest, smallest = np.where(seen, largest, 0.0), np.where(seen, smallest, 0.0)
    return np.maximum.reduce([largest - smallest, np.abs(largest), np.abs(smallest)])

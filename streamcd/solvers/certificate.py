"""The certificate of every method: primal objective and duality gap from a read at fixed weights.

With ``v = Σ s_i a_i x_i`` of feasible dual variables a, the penalty g and the rows' terms phi_i of the gap,

    P(w) - D(a) = Σ phi_i + [g(w) + g*(v) - w·v],

where every phi_i and the bracket are sums of terms that are not negative: no digits cancel, and the dual objective is
``primal - gap``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..kernels.primitives import UNIT, Total

_DEVIATIONS = 8.0
"""Standard deviations of a sum's rounding that are bounded: n roundings of size u, of either sign, make about √n u.

Source: Higham & Mary, SIAM J. Sci. Comput. 41 (2019)."""


def certificate(
    primal: np.ndarray,
    gap: np.ndarray,
    violation: np.ndarray,
    n_terms: float | np.ndarray,
    more: float | np.ndarray = 0.0,
) -> dict[str, np.ndarray]:
    """Return the certificate of every lane by `protocol.Solver.certificate`'s names; arrays are (lanes,) float64.

    `primal` and `gap` are as summed, of `n_terms` terms in the longest sum; `violation` is LIBLINEAR's. `more` bounds
    what the gap lacks where v is not the sum over these rows, but kept; see `error_terms`. The part ``rounding`` of the gap
    is ``n u (primal + gap)`` and `more`. The gap is at most the primal, as a = 0 is feasible with the value 0.
    """
    rounding = n_terms * UNIT * (primal + gap) + more
    gap = np.fmin(gap + rounding, primal)
    dual, rounding = primal - gap, np.fmin(rounding, gap)
    return {"primal": primal, "dual": dual, "gap": gap, "violation": violation, "rounding": rounding}


def error_terms(apart: np.ndarray, error: np.ndarray) -> Any:
    """Bound the bracket's change with L2 where v is wrong by at most `error`, and `apart` is ``‖w - v‖``."""
    return (apart + 0.5 * error) * error


def deviation(size: Any) -> Any:
    """Bound the rounding of a sum, `size` being the root of the sum of its partial sums' squares."""
    return _DEVIATIONS * UNIT * size


def violation(totals: np.ndarray) -> np.ndarray:
    """Return LIBLINEAR's measure per lane: the largest of M - m, |M| and |m|; 0 if no row was visited."""
    largest, smallest = totals[:, Total.VIOLATION_MAX], totals[:, Total.VIOLATION_MIN]
    seen = np.isfinite(largest) & np.isfinite(smallest)
    largest, smallest = np.where(seen, largest, 0.0), np.where(seen, smallest, 0.0)
    return np.maximum.reduce([largest - smallest, np.abs(largest), np.abs(smallest)])
